"""The pure parts of the reference client: settings, digests, the choice of files to deflate, and delta matching."""

from __future__ import annotations

import hashlib
import io
import itertools
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.base import CAPABILITIES
from pytest_cloudbench.lab.clients.reference.content import Digester, is_worth_deflating
from pytest_cloudbench.lab.clients.reference.delta import (
    DeltaSegment,
    Signature,
    join_segments,
    make_signature,
    match_segments,
)
from pytest_cloudbench.lab.clients.reference.settings import Settings
from pytest_cloudbench.model import UsageError

BLOCK = 64


def signature(old: bytes, block_bytes: int = BLOCK) -> Signature:
    original = make_signature(io.BytesIO(old), block_bytes, hashlib.sha256(old).hexdigest())
    unpacked, remainder = Signature.unpack(memoryview(original.pack() + b"next"))
    assert bytes(remainder) == b"next"
    return unpacked


def delta(method: str, old: bytes, new: bytes, block_bytes: int = BLOCK) -> list[DeltaSegment]:
    def read_new(offset: int, length: int) -> bytes:
        return new[offset : offset + length]

    return join_segments(match_segments(method, read_new, 0, len(new), len(new), signature(old, block_bytes)))


def apply_segments(segments: list[DeltaSegment], old: bytes, new: bytes) -> bytes:
    sources = {"base": old, "data": new}
    return b"".join(
        sources[kind][offset : offset + length] for kind, offset, length in segments if isinstance(offset, int)
    )


def count_sent_bytes(segments: list[DeltaSegment]) -> int:
    return sum(segment.length_bytes for segment in segments if segment.kind == "data")


@pytest.mark.parametrize("method", ["fixed", "rolling"])
@given(
    seed=st.integers(0, 1000),
    size=st.integers(0, 1000),
    edits=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 200), st.binary(max_size=200)), max_size=3),
    letters=st.sampled_from([b"a", b"ab", bytes(range(256))]),
)
@example(seed=0, size=0, edits=[], letters=b"a")
@example(seed=0, size=BLOCK, edits=[(0, 0, b"")], letters=b"a")
def test_delta_restores_the_new_file(
    method: str, seed: int, size: int, edits: list[tuple[int, int, bytes]], letters: bytes
) -> None:
    old = bytes(Random(seed).choices(letters, k=size))
    new = old
    for offset, cut, more in edits:
        new = new[:offset] + more + new[offset + cut :]
    segments = delta(method, old, new)
    assert apply_segments(segments, old, new) == new
    assert all(segment.length_bytes for segment in segments)
    if new == old:
        assert count_sent_bytes(segments) == 0


@pytest.mark.parametrize(
    ("edit", "fixed_bytes", "rolling_bytes"),
    [
        ("append", 70, 70),
        ("prepend", 100_070, 70),
        ("insert", 50_070 + 48, 70 + BLOCK),
        ("overwrite", 2 * BLOCK, 2 * BLOCK),
        ("cut", 50_000, BLOCK),
    ],
)
def test_delta_size_follows_the_kind_of_edit(edit: str, fixed_bytes: int, rolling_bytes: int) -> None:
    random = Random(7)
    old, more = random.randbytes(100_032), random.randbytes(70)  # whole blocks
    new = {
        "append": old + more,
        "prepend": more + old,
        "insert": old[:50_032] + more + old[50_032:],
        "overwrite": old[:50_000] + more + old[50_070:],
        "cut": old[:50_032] + old[50_100:],
    }[edit]
    rolling, fixed = count_sent_bytes(delta("rolling", old, new)), count_sent_bytes(delta("fixed", old, new))
    assert rolling <= rolling_bytes
    assert fixed_bytes - BLOCK <= fixed <= fixed_bytes + BLOCK


def test_a_window_s_end_hides_no_block() -> None:
    random = Random(7)
    old = random.randbytes(3 << 20)
    new = old[: (1 << 20) - 100] + random.randbytes(333) + old[(1 << 20) - 100 :]
    assert count_sent_bytes(delta("rolling", old, new, 4096)) <= 4096 + 333
    assert count_sent_bytes(delta("rolling", old, random.randbytes(2 << 20), 4096)) == 2 << 20


def test_zeros_are_one_segment() -> None:
    assert delta("rolling", bytes(1 << 20), bytes(1 << 20), 4096) == [DeltaSegment("base", 0, 1 << 20)]


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=4))
def test_digests_do_not_depend_on_the_pieces(data: bytes, cuts: list[int]) -> None:
    offsets = [0, *sorted(cuts), len(data)]
    for block_bytes in (None, 0, 100):
        digester = Digester(block_bytes)
        for begin, end in itertools.pairwise(offsets):
            digester.update(data[begin:end])
        digests = digester.digests()
        assert (digests.size_bytes, digests.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        step = {None: 0, 0: len(data)}.get(block_bytes, block_bytes)
        blocks = [data[offset : offset + step] for offset in range(0, len(data), step)] if step else []
        assert digests.blocks == tuple((hashlib.sha256(block).digest(), len(block)) for block in blocks)


def test_settings_decide_documented_capabilities() -> None:
    plain = clients.make_client("reference").facts.documented
    assert {name: capability.answer for name, capability in plain.items()} == dict.fromkeys(CAPABILITIES, "no")
    spec = "reference?chunking=1&bundling=1&deduplication=1&delta=1&compression=1"
    assert {capability.answer for capability in clients.make_client(spec).facts.documented.values()} == {"yes"}
    mixed = clients.make_client(
        "reference?deduplication=block&chunk_bytes=4096&delta=no&compression=smart"
    ).facts.documented
    assert mixed["deduplication"].why == "by block, also of deleted content"
    assert mixed["delta"].answer == mixed["chunking"].answer == "no"
    assert "content" in mixed["compression"].why


def test_settings_accept_0_and_1_for_words() -> None:
    assert Settings.from_options(dict.fromkeys(CAPABILITIES, "0")) == Settings()
    ones = Settings.from_options(dict.fromkeys(CAPABILITIES, "1"))
    assert (ones.chunking, ones.bundling, ones.deduplication) == (True, "request", "file")
    assert (ones.delta, ones.compression) == ("rolling", "always")
    assert Settings.from_options({"polling": "0.5", "retry": "2"}) == Settings(polling_s=0.5, retries=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("delta=maybe", "delta must be 0, 1, no or fixed, rolling; not 'maybe'"),
        ("chunk_bytes=1M", "chunk_bytes must be a whole number from 1024 to 2.68435e\\+08; not '1M'"),
        ("chunk_bytes=3", "chunk_bytes must be a whole number"),
        ("polling=-1", "polling must be a number from 0"),
        ("polling=nan", "polling must be a number from 0"),
        ("connections=two", "connections must be one or per-file"),
        ("connections=per-file&bundling=1", "connections must be one, because bundling"),
        ("deduplicate=1", "unknown option 'deduplicate'"),
    ],
)
def test_a_wrong_option_is_named(options: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        clients.make_client(f"reference?{options}")


@pytest.mark.parametrize(
    ("name", "first", "smart", "by_name"),
    [
        ("a.txt", b"words", True, True),
        ("a.jpg", b"words", True, False),
        ("a.txt", b"\xff\xd8\xff\xe0", False, True),
        ("a.JPG", b"\xff\xd8\xff\xe0", False, False),
        ("a.mp4", b"\0\0\0\x20ftypisom", False, False),
        ("jpg", b"", True, True),
    ],
)
def test_only_compressible_files_are_deflated(name: str, first: bytes, smart: bool, by_name: bool) -> None:
    assert is_worth_deflating("smart", name, first) is smart
    assert is_worth_deflating("by-name", name, first) is by_name
    assert is_worth_deflating("always", name, first)
    assert not is_worth_deflating("no", name, first)
