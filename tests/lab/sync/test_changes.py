"""Changes in a client's folder: they are as described, appear at once, and can be undone."""

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


def read_files(tmp_path: Path) -> dict[str, bytes]:
    root = tmp_path / "folder"
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def new_content(before: dict[str, bytes], after: dict[str, bytes]) -> bytes:
    (name,) = after.keys() - before.keys()
    return after[name]


def test_a_copy_has_another_name_in_another_folder(changes: Changes, tmp_path: Path) -> None:
    changes.apply(Step("new", SIZE))
    before = read_files(tmp_path)
    observation = changes.apply(Step("copy"))
    after = read_files(tmp_path)
    first, second = (name.split("/") for name in after)
    assert new_content(before, after) == next(iter(before.values()))
    assert first[0] != second[0]
    assert first[1][:4] != second[1][:4]
    assert (observation.size_bytes, observation.changed_bytes) == (SIZE, SIZE)


@pytest.mark.parametrize("kind", ["append", "insert", "change", "spliced"])
def test_edits_change_the_declared_bytes(changes: Changes, tmp_path: Path, kind: str) -> None:
    changes.apply(Step("new", SIZE))
    (old,) = read_files(tmp_path).values()
    observation = changes.apply(Step(kind, 64))
    (new,) = read_files(tmp_path).values()
    if kind == "change":
        assert len(new) == SIZE + 32
        assert next(offset for offset in range(SIZE) if new[offset] != old[offset]) in range(SIZE // 4, SIZE // 4 + 4)
        assert new[SIZE // 4 + 32 : SIZE] == old[SIZE // 4 + 32 :]
    else:
        offset = {"append": SIZE, "insert": SIZE // 2}.get(
            kind, next((index for index in range(SIZE) if new[index] != old[index]), 0)
        )
        rest_offset = new.find(old[offset : offset + 500], offset) if offset < SIZE else SIZE + 64
        assert len(new) == SIZE + 64
        assert new[:offset] + new[rest_offset:] == old
    assert (observation.size_bytes, observation.changed_bytes) == (len(new), 64)


def test_a_twin_differs_from_the_file_as_an_edit_does(changes: Changes, tmp_path: Path) -> None:
    changes.apply(Step("new", SIZE))
    before = read_files(tmp_path)
    changes.apply(Step("twin_insert", 64))
    (old,), twin = before.values(), new_content(before, read_files(tmp_path))
    assert twin[: SIZE // 2] + twin[SIZE // 2 + 64 :] == old
    assert read_files(tmp_path).items() >= before.items()


def test_contents_compress_as_their_kind_says(changes: Changes, tmp_path: Path) -> None:
    for kind in ("text", "text_in_jpeg", "text_as_jpeg", "fake_jpeg", "jpeg", "sparse"):
        before = read_files(tmp_path)
        observation = changes.apply(Step(kind, SIZE))
        after = read_files(tmp_path)
        (name,) = after.keys() - before.keys()
        assert observation.zlib_bytes == len(zlib.compress(after[name], 6))
        assert (observation.zlib_bytes < 0.5 * SIZE) == (kind != "jpeg")
        assert name.endswith(".jpg") == (kind in ("text_as_jpeg", "fake_jpeg", "jpeg"))
        assert after[name].startswith(b"\xff\xd8") == (kind in ("text_in_jpeg", "fake_jpeg", "jpeg"))


def test_texts_are_never_the_same(changes: Changes, tmp_path: Path) -> None:
    for _ in range(2):
        changes.apply(Step("text", SIZE))
    first, second = read_files(tmp_path).values()
    blocks = {first[offset : offset + 32] for offset in range(0, SIZE, 32)}
    assert not any(second[offset : offset + 32] in blocks for offset in range(0, SIZE, 32))


def test_a_version_keeps_a_share(changes: Changes, tmp_path: Path) -> None:
    changes.apply(Step("new", SIZE))
    (old,) = read_files(tmp_path).values()
    observation = changes.apply(Step("version", share=0.3))
    (new,) = read_files(tmp_path).values()
    assert (len(new), new[: SIZE * 3 // 10]) == (SIZE, old[: SIZE * 3 // 10])
    assert new[SIZE * 3 // 10 :] != old[SIZE * 3 // 10 :]
    assert observation.changed_bytes == SIZE * 7 // 10


def test_batches_hold_as_many_bytes(changes: Changes, tmp_path: Path) -> None:
    for kind, files in (("few", 10), ("many", 100)):
        before = read_files(tmp_path)
        changes.apply(Step(kind, 100_000, files))
        new = [data for name, data in read_files(tmp_path).items() if name not in before]
        assert (len(set(new)), sum(map(len, new))) == (files, 100_000)


def test_deleted_content_is_gone_everywhere_and_comes_back(changes: Changes, tmp_path: Path) -> None:
    changes.apply(Step("text", SIZE))
    others = read_files(tmp_path)
    for kind in ("new", "copy", "append", "twin_change"):
        changes.apply(Step(kind, SIZE if kind == "new" else 64))
    (base_content,) = [
        data for data in read_files(tmp_path).values() if len(data) == SIZE + 64 and data not in others.values()
    ]
    changes.apply(Step("delete"))
    assert read_files(tmp_path) == others
    changes.apply(Step("restore"))
    assert new_content(others, read_files(tmp_path)) == base_content


@pytest.mark.parametrize("kind", ["copy", "append", "change", "text", "many", "delete"])
def test_a_step_can_be_taken_back(changes: Changes, tmp_path: Path, kind: str) -> None:
    changes.apply(Step("new", SIZE))
    changes.apply(Step("copy"))
    before = read_files(tmp_path)
    changes.apply(Step(kind, SIZE if kind in ("text", "many") else 64, 10 if kind == "many" else 1))
    assert read_files(tmp_path) != before
    changes.undo()
    assert read_files(tmp_path) == before
    changes.apply(Step("append", 64))
    assert sorted(map(len, read_files(tmp_path).values())) == [SIZE, SIZE + 64]


def test_a_step_that_does_not_fit_the_folder_is_explained(changes: Changes) -> None:
    changes.apply(Step("new", SIZE))
    changes.apply(Step("delete"))
    assert changes.explain_conflict(Step("append", 64)) == "the file that it changes was deleted and not put back"
    assert changes.explain_conflict(Step("restore")) == ""
    changes.undo()
    assert changes.explain_conflict(Step("restore")) == "the file that it puts back was not deleted"
    assert changes.explain_conflict(Step("append", 64)) == ""


def test_steps_that_cannot_be(changes: Changes) -> None:
    with pytest.raises(UsageError, match="must come before its edits"):
        changes.apply(Step("append", 64))
    with pytest.raises(UsageError, match="unknown; expected one of append"):
        changes.apply(Step("rename"))


def test_every_kind_can_be_done(changes: Changes) -> None:
    changes.apply(Step("new", SIZE))
    for kind in KINDS:
        observation = changes.apply(Step(kind, SIZE, 2 if kind in ("few", "many") else 1))
        assert observation.kind == kind
