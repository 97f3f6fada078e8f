"""Edits of content, which equal the same edits of bytes, and the update streams of the paper."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.model import KIB, MIB, Content, UsageError
from pytest_cloudbench.workload.payload import Payloads
from pytest_cloudbench.workload.payload.contents import Literal, Piece, Pieces
from pytest_cloudbench.workload.payload.edits import Edit, Insert, Overwrite, Truncate
from pytest_cloudbench.workload.payload.registry import EDITS, UPDATES
from tests.limits import scale_examples

PAYLOADS = Payloads("seed")
FEW = settings(deadline=None, max_examples=scale_examples(60))
WHERE = st.sampled_from(["front", "middle", "random", "back"])


def read_all(content: Content) -> bytes:
    return content.read(0, content.size_bytes)


def apply_all(edits: list[Edit], content: Content | None = None) -> Content:
    start: Content = content or Literal(b"")
    return reduce(lambda before, edit: edit.apply(before), edits, start)


@FEW
@given(data=st.binary(max_size=300), new=st.binary(min_size=1, max_size=50), where=WHERE, key=st.text(max_size=3))
def test_insert_adds_bytes_at_each_position(data: bytes, new: bytes, where: str, key: str) -> None:
    edit = Insert(Literal(new), where, key)
    result = read_all(edit.apply(Literal(data)))
    places = {"front": [0], "middle": [len(data) // 2], "back": [len(data)], "random": range(len(data) + 1)}[where]
    assert result in [data[:offset] + new + data[offset:] for offset in places]
    assert edit.size_bytes == len(new)
    assert read_all(edit.apply(Literal(data))) == result


@FEW
@given(data=st.binary(min_size=50, max_size=300), new=st.binary(min_size=1, max_size=50), where=WHERE)
def test_overwrite_keeps_the_size(data: bytes, new: bytes, where: str) -> None:
    result = read_all(Overwrite(Literal(new), where, "k").apply(Literal(data)))
    last = len(data) - len(new)
    places = {"front": [0], "middle": [last // 2], "back": [last], "random": range(last + 1)}[where]
    assert result in [data[:offset] + new + data[offset + len(new) :] for offset in places]
    assert len(result) == len(data)


@FEW
@given(data=st.binary(max_size=300), keep=st.integers(0, 300))
def test_truncate_keeps_the_first_bytes(data: bytes, keep: int) -> None:
    if keep > len(data):
        with pytest.raises(UsageError, match=f"keep_bytes is {keep}; the file has {len(data)}"):
            Truncate(keep).apply(Literal(data))
    else:
        assert read_all(Truncate(keep).apply(Literal(data))) == data[:keep]


def test_an_overwrite_longer_than_the_file_is_refused() -> None:
    with pytest.raises(UsageError, match="overwrite: 3 bytes do not fit into a file of 2"):
        Overwrite(Literal(b"abc")).apply(Literal(b"xy"))


def test_random_offsets_cover_the_file() -> None:
    data = bytes(1000)
    offsets = [
        read_all(Insert(Literal(b"x"), "random", str(key)).apply(Literal(data))).index(b"x") for key in range(300)
    ]
    assert min(offsets) < 50
    assert max(offsets) > 950
    assert len({offset * 4 // 1001 for offset in offsets}) == 4


ONE_EDIT = st.one_of(
    st.builds(Insert, st.binary(max_size=9).map(Literal), WHERE, st.text(max_size=2)),
    st.builds(Overwrite, st.binary(max_size=5).map(Literal), WHERE, st.text(max_size=2)),
)


@FEW
@given(edits=st.lists(ONE_EDIT, max_size=30), offset=st.integers(0, 300), length=st.integers(0, 300))
def test_many_edits_stack_and_stay_readable(edits: list[Insert | Overwrite], offset: int, length: int) -> None:
    content: Content = Literal(b"0123456789")
    flat = read_all(content)
    for edit in edits:
        content, flat = edit.apply(content), read_all(edit.apply(Literal(flat)))
    assert read_all(content) == flat
    assert content.read(offset, length) == flat[offset : offset + length]
    if isinstance(content, Pieces):
        assert not any(isinstance(piece.content, Pieces) for piece in content.pieces)


def test_an_edit_of_a_big_file_copies_nothing() -> None:
    big = PAYLOADS.random(2**40).content(0, 0)
    edited = Insert(Literal(b"here"), "middle").apply(big)
    assert edited.size_bytes == 2**40 + 4
    assert edited.read(2**39 - 2, 8) == big.read(2**39 - 2, 2) + b"here" + big.read(2**39, 2)
    assert Pieces.join([Piece(edited, 2**39, 4)]).read(0, 9) == b"here"


@pytest.mark.parametrize("name", EDITS)
def test_edits_are_made_by_name(name: str) -> None:
    before = Literal(bytes(range(100)))
    params: dict[str, Any] = {"keep_bytes": 7} if name == "truncate" else {"size_bytes": 10}
    result = read_all(PAYLOADS.edit(name, **params).apply(before))
    assert result == read_all(PAYLOADS.edit(name, **params).apply(before))
    if name == "truncate":
        assert result == before.data[:7]
    else:
        assert len(result) == (100 if name == "overwrite" else 110)
        assert result != read_all(PAYLOADS.edit(name, 1, **params).apply(before))
        assert {"append": result[:100] == before.data, "prepend": result[10:] == before.data}.get(name, True)


def test_new_bytes_can_be_text() -> None:
    assert read_all(PAYLOADS.edit("append", size_bytes=500, content="text").apply(Literal(b""))).isascii()


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("replace", {}, f"edit 'replace' is not known; known are {', '.join(EDITS)}"),
        ("append", {}, "edit append: size_bytes is missing; expected 1 or more"),
        ("append", {"size_bytes": 0}, "edit append: size_bytes is 0; expected 1 or more"),
        (
            "append",
            {"size_bytes": 1, "where": "front"},
            "edit append: where is not a parameter of it; known are size_bytes",
        ),
        (
            "insert",
            {"size_bytes": 1, "where": "top"},
            "edit insert: where is 'top'; expected one of front, middle, back",
        ),
        ("truncate", {"keep_bytes": 1.5}, "edit truncate: keep_bytes is 1.5; expected 0 or more"),
    ],
)
def test_a_wrong_key_of_an_edit_is_named(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        PAYLOADS.edit(name, **params)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("typing", {}, f"updates 'typing' is not known; known are {', '.join(UPDATES)}"),
        ("two_users", {"users": 0}, "updates two_users: users is 0; expected 1 or more"),
        ("byte_appends", {"interval_s": 0}, "updates byte_appends: interval_s is 0; expected a number above 0"),
    ],
)
def test_a_wrong_key_of_a_stream_is_named_at_once(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        PAYLOADS.updates(name, **params)
    assert str(caught.value).startswith(message)


# --- the streams of paper 002 ---


def test_one_byte_per_interval_until_one_kibibyte() -> None:
    updates = list(PAYLOADS.updates("byte_appends", interval_s=0.5))
    assert [due_s for due_s, _ in updates] == [number * 0.5 for number in range(1024)]
    assert {edit.size_bytes for _, edit in updates} == {1}
    data = read_all(apply_all([edit for _, edit in updates]))
    assert len(data) == KIB
    assert len(set(data)) > 200  # random bytes


@pytest.mark.parametrize("block", [50_000, 100 * KIB])
def test_blocks_every_second_until_five_mebibytes(block: int) -> None:
    updates = list(PAYLOADS.updates("block_appends", block_bytes=block))
    content = apply_all([edit for _, edit in updates])
    assert content.size_bytes == 5 * MIB
    assert {edit.size_bytes for _, edit in updates[:-1]} == {block}
    assert [due_s for due_s, _ in updates] == list(range(-(-5 * MIB // block)))
    assert content.read(block - 3, 6) != content.read(2 * block - 3, 6)


@FEW
@given(size=st.integers(0, 100_000), rate=st.floats(100, 1e6), write=st.integers(500, 9000))
def test_a_download_arrives_at_its_rate(size: int, rate: float, write: int) -> None:
    params: dict[str, Any] = {"size_bytes": size, "rate_bytes_per_s": rate, "write_bytes": write}
    updates = list(PAYLOADS.updates("http_download", **params))
    arrived = 0
    for due_s, edit in updates:
        arrived += edit.size_bytes
        assert due_s == pytest.approx(arrived / rate)
        assert edit.size_bytes <= write
    content = apply_all([edit for _, edit in updates])
    assert arrived == content.size_bytes == size


def test_the_papers_download_takes_its_original_time() -> None:
    """5 MB at 80 kbit/s."""
    *_, (due_s, _) = PAYLOADS.updates("http_download", size_bytes=5_000_000)
    assert due_s == 500


@pytest.mark.slow
def test_two_users_edit_one_document_for_an_hour() -> None:
    document = PAYLOADS.text(MIB).content(0, 0)
    updates = list(PAYLOADS.updates("two_users"))
    assert all(first <= second for (first, _), (second, _) in pairwise(updates))
    assert all(0 <= due_s < 3600 for due_s, _ in updates)
    for user in (0, 1):
        own = [(due_s, edit) for due_s, edit in updates if edit.author == user]
        assert len(own) == pytest.approx(720, abs=75)  # every 5 s on average
        assert all(second - first <= 10 for (first, _), (second, _) in pairwise(own))
        assert sum(isinstance(edit, Insert) for _, edit in own) == pytest.approx(len(own) / 2, abs=65)
        assert {edit.size_bytes for _, edit in own} == set(range(1, 11))
    edited = apply_all([edit for _, edit in updates], document)
    assert edited.size_bytes == MIB + sum(edit.size_bytes for _, edit in updates if isinstance(edit, Insert))
    same = sum(a == b for a, b in zip(read_all(edited), read_all(document), strict=False))
    assert 0.99 * MIB < same < MIB
    assert [(due, read_all(edit.apply(document))) for due, edit in PAYLOADS.updates("two_users", duration_s=20)] == [
        (due, read_all(edit.apply(document))) for due, edit in PAYLOADS.updates("two_users", duration_s=20)
    ]
