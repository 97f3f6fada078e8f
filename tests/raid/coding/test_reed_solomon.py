"""Reed-Solomon: any k shares are enough and k - 1 are not, and both codecs give the same bytes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.raid.coding.reed_solomon import Codec, Isal, Portable, find_codec, share_bytes, split_evenly
from tests.limits import scale_examples

CODECS = [pytest.param(Portable, id="portable"), pytest.param(Isal, id="isa-l")]


def make_codec(kind: type[Portable] | type[Isal], data: int, parity: int) -> Codec:
    if not kind.serves(data, parity):
        pytest.skip(f"{kind.name} does not serve {data}+{parity} here")
    return kind(data, parity)


def encode_shares(code: Codec, content: bytes, parity: int, size: int) -> list[bytes]:
    parity_shares = [bytearray(b"?" * size) for _ in range(parity)]
    code.encode(content, [memoryview(share) for share in parity_shares])
    return [*map(bytes, parity_shares)]


def rebuild_shares(code: Codec, shares: Mapping[int, bytes], numbers: Iterable[int]) -> dict[int, bytes]:
    rebuilt = {number: bytearray(b"?" * len(next(iter(shares.values())))) for number in numbers}
    code.rebuild(shares, {number: memoryview(share) for number, share in rebuilt.items()})
    return {number: bytes(share) for number, share in rebuilt.items()}


def times(one: int, other: int) -> int:
    """Multiply in GF(2^8) with 0x11d, bit by bit, unlike the package."""
    product = 0
    while other:
        product ^= one * (other & 1)
        one = (one << 1) ^ (0x11D * (one >> 7))
        other >>= 1
    return product


def parity_by_definition(shares: Sequence[bytes], parity: int) -> list[bytes]:
    """Return parity shares. Share j is the sum of all data shares i, each times the inverse of (i xor j)."""
    data = len(shares)
    factors = [
        [next(value for value in range(256) if times(value, i ^ j) == 1) for i in range(data)]
        for j in range(data, data + parity)
    ]
    parity_shares = []
    for row in factors:
        share = bytearray(len(shares[0]))
        for factor, content in zip(row, shares, strict=True):
            for offset, byte in enumerate(content):
                share[offset] ^= times(factor, byte)
        parity_shares.append(bytes(share))
    return parity_shares


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize(("data", "parity"), [(1, 1), (1, 3), (2, 1), (3, 2), (4, 2), (10, 4)])
def test_parity_matches_the_definition(kind: type[Portable], data: int, parity: int) -> None:
    shares = [random.Random(f"{data} {number}").randbytes(37) for number in range(data)]
    assert encode_shares(make_codec(kind, data, parity), b"".join(shares), parity, 37) == parity_by_definition(
        shares, parity
    )


@pytest.mark.parametrize("kind", CODECS)
@settings(max_examples=scale_examples(60), deadline=None)
@given(st.data())
def test_any_k_shares_rebuild_every_share(kind: type[Portable], draws: st.DataObject) -> None:
    data, parity = draws.draw(st.integers(1, 9)), draws.draw(st.integers(1, 5))
    content = draws.draw(st.binary(min_size=1, max_size=300))
    size = share_bytes(len(content), data)
    padded = content + bytes(size * data - len(content))
    code = make_codec(kind, data, parity)
    shares = dict(enumerate([*map(bytes, split_evenly(padded, data)), *encode_shares(code, padded, parity, size)]))
    kept_numbers = draws.draw(st.permutations(range(data + parity)))[:data]
    lost = shares.keys() - set(kept_numbers)
    assert rebuild_shares(code, {number: shares[number] for number in kept_numbers}, lost) == {
        number: shares[number] for number in lost
    }
    with pytest.raises(ValueError, match=f"{data - 1} shares: expected {data}"):
        code.rebuild(
            {number: shares[number] for number in kept_numbers[1:]}, {kept_numbers[0]: memoryview(bytearray(size))}
        )


@pytest.mark.parametrize("size", [1, 15, 16, 17, (1 << 16) - 1, (1 << 16) + 1, 300_001])
def test_both_codecs_give_the_same_bytes(size: int) -> None:
    """One codec works block by block, and the other one pads to the size of its instructions."""
    data, parity = 5, 3
    fast, portable = make_codec(Isal, data, parity), Portable(data, parity)
    content = random.Random(size).randbytes(size * data)
    expected = encode_shares(portable, content, parity, size)
    assert encode_shares(fast, content, parity, size) == expected
    known_shares = dict(zip((1, 4, 5, 6, 7), [content[size : 2 * size], content[4 * size :], *expected], strict=True))
    results = [rebuild_shares(codec, known_shares, (0, 2, 3)) for codec in (fast, portable)]
    assert results[0] == results[1]
    assert results[0][0] == content[:size]


def test_the_portable_codec_serves_codes_of_many_shares() -> None:
    code = find_codec(40, 20)
    assert isinstance(code, Portable)
    content = random.Random(1).randbytes(40 * 11)
    shares = dict(enumerate([*map(bytes, split_evenly(content, 40)), *encode_shares(code, content, 20, 11)]))
    data_shares = rebuild_shares(code, {number: shares[number] for number in range(20, 60)}, range(20))
    assert b"".join(data_shares.values()) == content[: 20 * 11]


@pytest.mark.parametrize(("data", "parity"), [(0, 1), (1, -1), (200, 57)])
def test_impossible_codes_are_refused(data: int, parity: int) -> None:
    with pytest.raises(ValueError, match="at most 256"):
        find_codec(data, parity)


def test_shares_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="of 2 sizes"):
        rebuild_shares(Portable(2, 1), {0: b"abc", 2: b"ab"}, [1])
    with pytest.raises(ValueError, match="cannot be divided into 2 equal shares"):
        encode_shares(Portable(2, 1), b"abc", 1, 1)


@pytest.mark.parametrize("kind", CODECS)
def test_empty_shares_stay_empty(kind: type[Portable]) -> None:
    code = make_codec(kind, 2, 2)
    assert encode_shares(code, b"", 2, 0) == [b"", b""]
    assert rebuild_shares(code, {2: b"", 3: b""}, [0, 1]) == {0: b"", 1: b""}
