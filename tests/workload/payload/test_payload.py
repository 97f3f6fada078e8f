"""Promises of payloads: exact size, random access, no repetition, and digests that others compute alike."""

from __future__ import annotations

import hashlib
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import xor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.model import KIB, MIB, Content, UsageError, chunks
from pytest_cloudbench.workload.payload import DIGESTS, Generator, IdenticalPayload, Payloads, RandomPayload, digest
from pytest_cloudbench.workload.payload.contents import difference
from tests.limits import scale_examples

PAYLOADS = Payloads("seed")
BOTH: list[Callable[[int], Generator]] = [PAYLOADS.random, PAYLOADS.identical]
SIZES = st.one_of(
    st.integers(0, 9),
    st.integers(64 * KIB - 3, 64 * KIB + 20),
    st.integers(0, 5 * KIB),
    st.integers(MIB - 3, MIB + 3),
    st.just(2 * MIB + 1),
)
FEW = settings(deadline=None, max_examples=scale_examples(40))


def read_all(content: Content) -> bytes:
    return content.read(0, content.size_bytes)


@dataclass(frozen=True)
class Bytes:
    """Content of another kind, for tests of the digests."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


@FEW
@given(size=SIZES, sensor=st.integers(0, 2**20), seq=st.integers(0, 2**20))
def test_the_size_is_exact(size: int, sensor: int, seq: int) -> None:
    for make in BOTH:
        content = make(size).content(sensor, seq)
        assert (content.size_bytes, len(read_all(content))) == (size, size)
        assert make(size).size_bytes == size


@FEW
@given(data=st.data(), size=SIZES)
def test_any_read_is_the_slice_of_the_whole(data: st.DataObject, size: int) -> None:
    content = PAYLOADS.random(size).content(3, 4)
    offset = data.draw(st.integers(0, size + 9))
    length = data.draw(st.one_of(st.integers(0, 9), st.integers(0, size + 9)))
    assert content.read(offset, length) == read_all(content)[offset : offset + length]


def test_reads_across_the_boundaries_of_blocks_join_up() -> None:
    content = PAYLOADS.random(3 * MIB + 7).content(0, 0)
    data = read_all(content)
    for boundary in (MIB, 2 * MIB, 3 * MIB):
        assert content.read(boundary - 5, 10) == data[boundary - 5 : boundary + 5]
    assert content.read(MIB - 1, 2 * MIB + 2) == data[MIB - 1 : 3 * MIB + 1]
    large = PAYLOADS.random(9 * MIB + 7).content(0, 0)  # more than is encrypted at once
    assert read_all(large) == b"".join(chunks(large, 3 * MIB + 5))
    assert large.read(5, 8 * MIB + 5) == read_all(large)[5 : 8 * MIB + 10]
    assert content.read(3 * MIB, MIB) == data[3 * MIB :]
    assert content.read(3 * MIB + 7, 1) == b""


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    def bytes_of(seed: str) -> list[bytes]:
        payloads: list[Generator] = [Payloads(seed).random(64), Payloads(seed).identical(64)]
        return [read_all(payload.content(7, 8)) for payload in payloads]

    assert bytes_of("a") == bytes_of("a")
    assert len({*bytes_of("a"), *bytes_of("b")}) == 4


def test_the_bytes_are_the_same_in_every_version() -> None:
    """Stored results name a seed, which must mean the same bytes years later.

    The first hash changed when AES began to make the content above 64 KiB. Smaller files stayed as they were.
    """
    assert (
        hashlib.sha256(read_all(RandomPayload("seed", MIB + 1).content(1, 2))).hexdigest()
        == "3a2a44f4857a9176cb788bd9bb3e42e8e2774f0a09859784cf8b28914e72aae4"
    )
    assert (
        hashlib.sha256(read_all(RandomPayload("seed", 5 * KIB).content(1, 2))).hexdigest()
        == "5f81aa52c8e208d8d9289cb034b7dc138226d3128ca937b955ed5d640504f6f6"
    )
    assert (
        hashlib.sha256(read_all(IdenticalPayload("seed", 100).content(1, 2))).hexdigest()
        == "d3433fd4b3b5351f5277340d96fd44fbdddcbdc610649fbae31d47a0a0649223"
    )


def test_random_files_share_no_block_within_and_between_files() -> None:
    """No 4 KiB block occurs twice, whatever the size, the seed, the sensor and the sequence number."""
    files = [
        read_all(payload.content(sensor, seq))
        for payload in (PAYLOADS.random(64 * KIB), Payloads("other").random(64 * KIB))
        for sensor in range(4)
        for seq in range(4)
    ]
    files.append(read_all(PAYLOADS.random(3 * MIB).content(0, 0)))
    blocks = [data[start : start + 4 * KIB] for data in files for start in range(0, len(data), 4 * KIB)]
    assert len(set(blocks)) == len(blocks)


def test_sensor_and_sequence_number_are_not_mixed_up() -> None:
    payload = PAYLOADS.random(32)
    assert len({read_all(payload.content(sensor, seq)) for sensor in range(30) for seq in range(30)}) == 900


@pytest.mark.parametrize("size", [5 * KIB, 2 * MIB])
def test_random_files_cannot_be_compressed(size: int) -> None:
    for seq in range(3):
        data = read_all(PAYLOADS.random(size).content(0, seq))
        assert len(zlib.compress(data, 9)) / size > 0.99


def test_identical_files_are_identical_yet_not_compressible_and_not_those_of_another_run() -> None:
    payload = PAYLOADS.identical(64 * KIB)
    files = {read_all(payload.content(sensor, seq)) for sensor in range(5) for seq in range(5)}
    assert len(files) == 1
    data = files.pop()
    assert len(zlib.compress(data, 9)) / len(data) > 0.99
    assert data != read_all(Payloads("another run").identical(64 * KIB).content(0, 0))
    assert data != read_all(PAYLOADS.random(64 * KIB).content(0, 0))


def test_a_gibibyte_is_read_in_pieces_through_constant_memory() -> None:
    content = PAYLOADS.random(1024 * MIB).content(0, 0)
    tracemalloc.start()
    try:
        for offset in (0, 4 * MIB - 1, 511 * MIB + 5, 1020 * MIB):
            assert len(content.read(offset, 4 * MIB)) == 4 * MIB
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 * MIB
    assert len(content.read(1024 * MIB - 3, 4 * MIB)) == 3


@pytest.mark.parametrize("size", [-1, -(2**40)])
@pytest.mark.parametrize("make", BOTH)
def test_a_negative_size_is_refused(make: Callable[[int], Generator], size: int) -> None:
    with pytest.raises(UsageError, match=f"{size}; expected 0 or more"):
        make(size)


def quickxor(data: bytes) -> bytes:
    """Hash by the published description: byte ``i`` at bit ``11 * i`` of a ring of 160 bits, then the length."""
    ring = len(data) << 96
    for index in range(160):
        ring ^= reduce(xor, data[index::160], 0) << 11 * index % 160
    return (ring % 2**160 ^ ring >> 160).to_bytes(20, "little")


def block_hash(data: bytes) -> bytes:
    """Hash by the published description: one digest for each 4 MiB, then the digest of these."""
    remaining, outer = memoryview(data), hashlib.sha256()
    while remaining:
        outer.update(hashlib.sha256(remaining[:4194304]).digest())
        remaining = remaining[4194304:]
    return outer.digest()


INDEPENDENT = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "sha1": lambda data: hashlib.sha1(data).digest(),
    "md5": lambda data: hashlib.md5(data).digest(),
    "sha256-4mib-blocks": block_hash,
    "quickxorhash": quickxor,
}


def test_every_digest_has_an_independent_implementation_here() -> None:
    assert INDEPENDENT.keys() == DIGESTS.keys()


@pytest.mark.parametrize("algorithm", DIGESTS)
@pytest.mark.parametrize("size", [0, 1, 5 * KIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 8 * MIB])
def test_digests_agree_with_an_independent_implementation(algorithm: str, size: int) -> None:
    data = (b"0123456789abcdef!" * (size // 17 + 1))[:size]
    assert digest(Bytes(data), algorithm) == INDEPENDENT[algorithm](data)


@pytest.mark.parametrize("algorithm", DIGESTS)
def test_digests_of_a_payload_are_those_of_its_bytes(algorithm: str) -> None:
    content = PAYLOADS.random(9 * KIB).content(1, 2)
    assert digest(content, algorithm) == INDEPENDENT[algorithm](read_all(content))


def test_an_unknown_algorithm_names_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        digest(Bytes(b""), "crc32")
    assert str(caught.value) == f"digest 'crc32' is not known; known are {', '.join(DIGESTS)}"
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("content", "expected", "message"),
    [
        (b"abc", b"abc", ""),
        (b"", b"", ""),
        (b"abX", b"abc", "3 bytes where 3 were expected, of which the first 2 are the same"),
        (b"ab", b"abc", "2 bytes where 3 were expected, of which the first 2 are the same"),
        (b"abc" * 1000, b"", "3,000 bytes where 0 were expected, of which the first 0 are the same"),
    ],
)
def test_the_first_difference_is_described(content: bytes, expected: bytes, message: str) -> None:
    assert difference(content, expected) == message
