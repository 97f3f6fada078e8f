"""Reed-Solomon: any k shares are enough and k - 1 are not, and both codecs give the same bytes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.raid.coding.reed_solomon import Codec, Isal, Portable, codec, parts, share_bytes

CODECS = [pytest.param(Portable, id="portable"), pytest.param(Isal, id="isa-l")]


def made(kind: type[Portable] | type[Isal], data: int, parity: int) -> Codec:
    if not kind.serves(data, parity):
        pytest.skip(f"{kind.name} does not serve {data}+{parity} here")
    return kind(data, parity)


def encoded(code: Codec, whole: bytes, parity: int, size: int) -> list[bytes]:
    made = [bytearray(b"?" * size) for _ in range(parity)]
    code.encode(whole, [memoryview(share) for share in made])
    return [*map(bytes, made)]


def rebuilt(code: Codec, shares: Mapping[int, bytes], wanted: Iterable[int]) -> dict[int, bytes]:
    made = {number: bytearray(b"?" * len(next(iter(shares.values())))) for number in wanted}
    code.rebuild(shares, {number: memoryview(share) for number, share in made.items()})
    return {number: bytes(share) for number, share in made.items()}


def times(one: int, other: int) -> int:
    """Multiplication in GF(2^8) with 0x11d, bit by bit: not how the package does it."""
    product = 0
    while other:
        product ^= one * (other & 1)
        one = (one << 1) ^ (0x11D * (one >> 7))
        other >>= 1
    return product


def parity_by_definition(shares: Sequence[bytes], parity: int) -> list[bytes]:
    """Each parity share j is the sum of all data shares i times the number that (i xor j) times it is 1."""
    data = len(shares)
    factors = [
        [next(value for value in range(256) if times(value, i ^ j) == 1) for i in range(data)]
        for j in range(data, data + parity)
    ]
    found = []
    for row in factors:
        share = bytearray(len(shares[0]))
        for factor, content in zip(row, shares, strict=True):
            for place, byte in enumerate(content):
                share[place] ^= times(factor, byte)
        found.append(bytes(share))
    return found


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize(("data", "parity"), [(1, 1), (1, 3), (2, 1), (3, 2), (4, 2), (10, 4)])
def test_parity_is_what_the_definition_says(kind: type[Portable], data: int, parity: int) -> None:
    shares = [random.Random(f"{data} {number}").randbytes(37) for number in range(data)]
    assert encoded(made(kind, data, parity), b"".join(shares), parity, 37) == parity_by_definition(shares, parity)


@pytest.mark.parametrize("kind", CODECS)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_k_shares_give_every_share(kind: type[Portable], drawn: st.DataObject) -> None:
    data, parity = drawn.draw(st.integers(1, 9)), drawn.draw(st.integers(1, 5))
    content = drawn.draw(st.binary(min_size=1, max_size=300))
    size = share_bytes(len(content), data)
    whole = content + bytes(size * data - len(content))
    code = made(kind, data, parity)
    shares = dict(enumerate([*map(bytes, parts(whole, data)), *encoded(code, whole, parity, size)]))
    left = drawn.draw(st.permutations(range(data + parity)))[:data]
    lost = shares.keys() - set(left)
    assert rebuilt(code, {number: shares[number] for number in left}, lost) == {each: shares[each] for each in lost}
    with pytest.raises(ValueError, match=f"{data - 1} shares: expected {data}"):
        code.rebuild({number: shares[number] for number in left[1:]}, {left[0]: memoryview(bytearray(size))})


@pytest.mark.parametrize("size", [1, 15, 16, 17, (1 << 16) - 1, (1 << 16) + 1, 300_001])
def test_both_engines_give_the_same_bytes(size: int) -> None:
    """Even though one codec works block by block, and the other pads to the size of its instructions."""
    data, parity = 5, 3
    fast, portable = made(Isal, data, parity), Portable(data, parity)
    whole = random.Random(size).randbytes(size * data)
    expected = encoded(portable, whole, parity, size)
    assert encoded(fast, whole, parity, size) == expected
    given_shares = dict(zip((1, 4, 5, 6, 7), [whole[size : 2 * size], whole[4 * size :], *expected], strict=True))
    found = [rebuilt(each, given_shares, (0, 2, 3)) for each in (fast, portable)]
    assert found[0] == found[1]
    assert found[0][0] == whole[:size]


def test_a_code_of_many_shares_is_served_by_what_can() -> None:
    code = codec(40, 20)
    assert isinstance(code, Portable)
    whole = random.Random(1).randbytes(40 * 11)
    shares = dict(enumerate([*map(bytes, parts(whole, 40)), *encoded(code, whole, 20, 11)]))
    found = rebuilt(code, {number: shares[number] for number in range(20, 60)}, range(20))
    assert b"".join(found.values()) == whole[: 20 * 11]


@pytest.mark.parametrize(("data", "parity"), [(0, 1), (1, -1), (200, 57)])
def test_a_code_that_cannot_be_is_refused(data: int, parity: int) -> None:
    with pytest.raises(ValueError, match="at most 256"):
        codec(data, parity)


def test_shares_of_two_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="of 2 sizes"):
        rebuilt(Portable(2, 1), {0: b"abc", 2: b"ab"}, [1])
    with pytest.raises(ValueError, match="cannot be divided into 2 equal shares"):
        encoded(Portable(2, 1), b"abc", 1, 1)


@pytest.mark.parametrize("kind", CODECS)
def test_empty_shares_stay_empty(kind: type[Portable]) -> None:
    code = made(kind, 2, 2)
    assert encoded(code, b"", 2, 0) == [b"", b""]
    assert rebuilt(code, {2: b"", 3: b""}, [0, 1]) == {0: b"", 1: b""}
