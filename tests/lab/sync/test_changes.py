"""The changes that a client is shown are as described, appear at once, and can be undone."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from pytest_cloudbench.lab.detect import KINDS, Step
from pytest_cloudbench.lab.sync.changes import Changes
from pytest_cloudbench.model import UsageError

SIZE = 200_000


@pytest.fixture
def changes(tmp_path: Path) -> Changes:
    (tmp_path / "folder").mkdir()
    return Changes(tmp_path / "folder", tmp_path / "stage", "seed")


def held(tmp_path: Path) -> dict[str, bytes]:
    root = tmp_path / "folder"
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def only_new(before: dict[str, bytes], after: dict[str, bytes]) -> bytes:
    (name,) = after.keys() - before.keys()
    return after[name]


def test_a_copy_has_another_name_in_another_folder(changes: Changes, tmp_path: Path) -> None:
    changes.apply(Step("new", SIZE))
    before = held(tmp_path)
    seen = changes.apply(Step("copy"))
    after = held(tmp_path)
    first, second = (name.split("/") for name in after)
    assert only_new(before, after) == next(iter(before.values()))
    assert first[0] != second[0]
    assert first[1][:4] != second[1][:4]
    assert (seen.size_bytes, seen.changed_bytes) == (SIZE, SIZE)


@pytest.mark.parametrize("kind", ["append", "insert", "change", "spliced"])
def test_edits_change_the_declared_bytes(changes: Changes, tmp_path: Path, kind: str) -> None:
    changes.apply(Step("new", SIZE))
    (old,) = held(tmp_path).values()
    seen = changes.apply(Step(kind, 64))
    (new,) = held(tmp_path).values()
    if kind == "change":
        assert len(new) == SIZE + 32
        assert next(at for at in range(SIZE) if new[at] != old[at]) in range(SIZE // 4, SIZE // 4 + 4)
        assert new[SIZE // 4 + 32 : SIZE] == old[SIZE // 4 + 32 :]
    else:
        at = {"append": SIZE, "insert": SIZE // 2}.get(kind, next((i for i in range(SIZE) if new[i] != old[i]), 0))
        where = new.find(old[at : at + 500], at) if at < SIZE else SIZE + 64
        assert len(new) == SIZE + 64
        assert new[:at] + new[where:] == old
    assert (seen.size_bytes, seen.changed_bytes) == (len(new), 64)


def test_a_twin_differs_from_the_file_as_an_edit_does(changes: Changes, tmp_path: Path) -> None:
    changes.apply(Step("new", SIZE))
    before = held(tmp_path)
    changes.apply(Step("twin_insert", 64))
    (old,), twin = before.values(), only_new(before, held(tmp_path))
    assert twin[: SIZE // 2] + twin[SIZE // 2 + 64 :] == old
    assert held(tmp_path).items() >= before.items()


def test_contents_compress_as_their_kind_says(changes: Changes, tmp_path: Path) -> None:
    for kind in ("text", "text_in_jpeg", "text_as_jpeg", "fake_jpeg", "jpeg", "sparse"):
        before = held(tmp_path)
        seen = changes.apply(Step(kind, SIZE))
        after = held(tmp_path)
        (name,) = after.keys() - before.keys()
        assert seen.zlib_bytes == len(zlib.compress(after[name], 6))
        assert (seen.zlib_bytes < 0.5 * SIZE) == (kind != "jpeg")
        assert name.endswith(".jpg") == (kind in ("text_as_jpeg", "fake_jpeg", "jpeg"))
        assert after[name].startswith(b"\xff\xd8") == (kind in ("text_in_jpeg", "fake_jpeg", "jpeg"))


def test_texts_are_never_the_same(changes: Changes, tmp_path: Path) -> None:
    for _ in range(2):
        changes.apply(Step("text", SIZE))
    first, second = held(tmp_path).values()
    blocks = {first[at : at + 32] for at in range(0, SIZE, 32)}
    assert not any(second[at : at + 32] in blocks for at in range(0, SIZE, 32))


def test_a_version_keeps_a_share(changes: Changes, tmp_path: Path) -> None:
    changes.apply(Step("new", SIZE))
    (old,) = held(tmp_path).values()
    seen = changes.apply(Step("version", share=0.3))
    (new,) = held(tmp_path).values()
    assert (len(new), new[: SIZE * 3 // 10]) == (SIZE, old[: SIZE * 3 // 10])
    assert new[SIZE * 3 // 10 :] != old[SIZE * 3 // 10 :]
    assert seen.changed_bytes == SIZE * 7 // 10


def test_batches_hold_as_many_bytes(changes: Changes, tmp_path: Path) -> None:
    for kind, files in (("few", 10), ("many", 100)):
        before = held(tmp_path)
        changes.apply(Step(kind, 100_000, files))
        new = [data for name, data in held(tmp_path).items() if name not in before]
        assert (len(set(new)), sum(map(len, new))) == (files, 100_000)


def test_deleted_content_is_gone_everywhere_and_comes_back(changes: Changes, tmp_path: Path) -> None:
    changes.apply(Step("text", SIZE))
    others = held(tmp_path)
    for kind in ("new", "copy", "append", "twin_change"):
        changes.apply(Step(kind, SIZE if kind == "new" else 64))
    (base,) = [data for data in held(tmp_path).values() if len(data) == SIZE + 64 and data not in others.values()]
    changes.apply(Step("delete"))
    assert held(tmp_path) == others
    changes.apply(Step("restore"))
    assert only_new(others, held(tmp_path)) == base


@pytest.mark.parametrize("kind", ["copy", "append", "change", "text", "many", "delete"])
def test_a_step_can_be_taken_back(changes: Changes, tmp_path: Path, kind: str) -> None:
    changes.apply(Step("new", SIZE))
    changes.apply(Step("copy"))
    before = held(tmp_path)
    changes.apply(Step(kind, SIZE if kind in ("text", "many") else 64, 10 if kind == "many" else 1))
    assert held(tmp_path) != before
    changes.undo()
    assert held(tmp_path) == before
    changes.apply(Step("append", 64))
    assert sorted(map(len, held(tmp_path).values())) == [SIZE, SIZE + 64]


def test_steps_that_cannot_be(changes: Changes) -> None:
    with pytest.raises(UsageError, match="must come before its edits"):
        changes.apply(Step("append", 64))
    with pytest.raises(UsageError, match="unknown; expected one of append"):
        changes.apply(Step("rename"))


def test_every_kind_can_be_done(changes: Changes) -> None:
    changes.apply(Step("new", SIZE))
    for kind in KINDS:
        seen = changes.apply(Step(kind, SIZE, 2 if kind in ("few", "many") else 1))
        assert seen.kind == kind
