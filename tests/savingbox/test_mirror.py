"""Effects of changes on one side, on the other and on both."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_cloudbench.savingbox import content, side
from pytest_cloudbench.support.watching import FileMark
from tests.savingbox.pairs import Pair, save, stamp, tree, write


def settle_files(pair: Pair, **files: str) -> None:
    for name, text in files.items():
        write(pair.box / name, text)
    pair.settle()
    pair.events.clear()


# --- one side ---


def test_new_files_folders_and_links_are_pushed(pair: Pair) -> None:
    write(pair.box / "a/b/c", "deep")
    (pair.box / "empty").mkdir(mode=0o750)
    (pair.box / "link").symlink_to("a/b/c")
    (pair.box / "a/b/c").chmod(0o640)
    pair.settle()
    assert tree(pair.sync)["a/b/c"] == ("file", 0o640, b"deep")
    assert tree(pair.sync)["empty"][:2] == ("folder", 0o750)
    assert tree(pair.sync)["link"] == ("link", 0, b"a/b/c")
    assert (pair.sync / "a/b/c").stat().st_mtime_ns == (pair.box / "a/b/c").stat().st_mtime_ns


def test_a_changed_file_is_patched_in_place(pair: Pair) -> None:
    data = bytearray(os.urandom(300_000))
    write(pair.box / "big", bytes(data))
    pair.settle()
    inode = (pair.sync / "big").stat().st_ino
    pair.events.clear()
    data[100_000:100_010] = b"0123456789"
    write(pair.box / "big", bytes(data) + b"more")
    pair.settle()
    assert (pair.sync / "big").stat().st_ino == inode
    assert [push.files for push in pair.pushes()] == [1]
    assert pair.pushes()[0].written_bytes <= 4 * 4096


def test_many_changed_pages_are_pushed_though_size_and_time_are_as_before(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side, "_MOST_PATCHED_PAGES", 2)
    settle_files(pair, a="x" * 4 * 4096)
    status = (pair.box / "a").stat()
    (pair.box / "a").write_bytes(b"y" * 4 * 4096)
    os.utime(pair.box / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    pair.settle()
    assert pair.equal_texts() == {"a": "y" * 4 * 4096}


def test_a_shorter_file_is_cut(pair: Pair) -> None:
    settle_files(pair, a="x" * 10_000)
    write(pair.box / "a", "x" * 5_000)
    pair.settle()
    assert pair.equal_texts() == {"a": "x" * 5_000}
    assert pair.pushes()[0].written_bytes == 0


@pytest.mark.skipif(not hasattr(os, "SEEK_DATA"), reason="this system does not tell where the holes of files are")
def test_holes_of_a_file_are_not_counted_as_written(pair: Pair) -> None:
    settle_files(pair, patched="old")
    for name in ("new", "patched"):
        with (pair.box / name).open("wb") as file:
            file.seek(10 << 20)
            file.write(b"x" * 4096)
    pair.settle()
    assert sum(push.files for push in pair.pushes()) == 2
    assert sum(push.written_bytes for push in pair.pushes()) == 3 * 4096, "the page with the old text, too"


def test_an_editor_that_saves_by_rename_gives_a_patch(pair: Pair) -> None:
    settle_files(pair, a="x" * 100_000)
    inode = (pair.sync / "a").stat().st_ino
    save(pair.box / "a", "x" * 50_000 + "!" + "x" * 50_000)
    pair.settle()
    assert (pair.sync / "a").stat().st_ino == inode
    assert "!" in pair.equal_texts()["a"]


def test_deletions_renames_and_permissions_follow(pair: Pair) -> None:
    settle_files(pair, a="1", b="2", **{"d/e": "3", "d/f": "4"})
    inode = (pair.sync / "d/e").stat().st_ino
    (pair.box / "a").unlink()
    (pair.box / "b").chmod(0o600)
    (pair.box / "d").rename(pair.box / "moved")
    pair.settle()
    assert pair.equal_texts() == {"b": "2", "moved/e": "3", "moved/f": "4"}
    assert (pair.sync / "b").stat().st_mode & 0o777 == 0o600
    assert (pair.sync / "moved/e").stat().st_ino == inode, "it was copied, not renamed"


def test_a_renamed_and_changed_file_is_renamed_and_patched(pair: Pair) -> None:
    settle_files(pair, a="x" * 20_000)
    inode = (pair.sync / "a").stat().st_ino
    (pair.box / "a").rename(pair.box / "b")
    write(pair.box / "b", "x" * 20_000 + "y")
    pair.settle()
    assert (pair.sync / "b").stat().st_ino == inode
    assert pair.equal_texts() == {"b": "x" * 20_000 + "y"}


def test_two_files_that_change_their_names_with_each_other(pair: Pair) -> None:
    settle_files(pair, a="1", b="22")
    (pair.box / "a").rename(pair.box / "c")
    (pair.box / "b").rename(pair.box / "a")
    (pair.box / "c").rename(pair.box / "b")
    pair.settle()
    assert pair.equal_texts() == {"a": "22", "b": "1"}


def test_a_second_name_of_a_file_follows_its_first(pair: Pair) -> None:
    settle_files(pair, a="1")
    os.link(pair.box / "a", pair.box / "b")
    pair.settle()
    write(pair.box / "a", "2")
    pair.engine.box_changed(["a"], pair.now_ns)  # all that an event tells
    assert {"a", "b"} == {path for path in ("a", "b", "c") if path in pair.engine.batcher}
    pair.settle()
    assert pair.equal_texts() == {"a": "2", "b": "2"}


@pytest.mark.parametrize("side", ["box", "sync"])
@pytest.mark.parametrize("change", ["mode", "time", "content"])
def test_a_change_of_one_name_does_not_reach_another_name_of_the_file(pair: Pair, side: str, change: str) -> None:
    """Both names belong to one file on the other side, where only the changed name must follow."""
    settle_files(pair, a="1" * 20_000, b="1" * 20_000)
    actor, linked = (pair.box, pair.sync) if side == "box" else (pair.sync, pair.box)
    (linked / "b").unlink()
    os.link(linked / "a", linked / "b")
    pair.settle()
    before = tree(actor)["b"]
    if change == "mode":
        (actor / "a").chmod(0o600)
    elif change == "time":
        stamp(actor / "a")
    else:
        write(actor / "a", "1" * 20_000 + "2")
    changed = tree(actor)["a"]
    pair.settle()
    assert tree(actor) == tree(linked) == {"a": changed, "b": before}
    assert not pair.troubles("conflict")


@pytest.mark.parametrize("kinds", [("file", "folder"), ("folder", "link"), ("link", "file"), ("folder", "file")])
def test_an_entry_that_becomes_another_kind(pair: Pair, kinds: tuple[str, str]) -> None:
    def make(path: Path, kind: str) -> None:
        if kind == "file":
            write(path, "text")
        elif kind == "folder":
            write(path / "inside", "inner")
        else:
            path.symlink_to("nowhere")

    make(pair.box / "x", kinds[0])
    pair.settle()
    if kinds[0] == "folder":
        (pair.box / "x/inside").unlink()
        (pair.box / "x").rmdir()
    else:
        (pair.box / "x").unlink()
    make(pair.box / "x", kinds[1])
    pair.settle()
    assert tree(pair.sync)["x"][0] == kinds[1]
    assert not pair.troubles("conflict")


def test_client_changes_are_copied_into_the_box(pair: Pair) -> None:
    settle_files(pair, a="1", b="2")
    write(pair.sync / "new/file", "theirs")
    save(pair.sync / "a", "from afar")
    (pair.sync / "b").unlink()
    pair.settle()
    assert pair.equal_texts() == {"a": "from afar", "new/file": "theirs"}
    assert not pair.pushes()


def test_events_of_own_writes_are_no_changes(pair: Pair) -> None:
    settle_files(pair, a="1")
    pair.engine.sync_changed(["a"], pair.now_ns)
    pair.engine.box_changed(["a"], pair.now_ns)
    pair.advance(120)
    assert pair.events == []


def test_attributes_that_a_client_sets_are_no_change(pair: Pair) -> None:
    settle_files(pair, a="1")
    inode = (pair.box / "a").stat().st_ino
    os.setxattr(pair.sync / "a", "user.client", b"seen")
    write(pair.box / "a", "2")
    pair.settle()
    assert pair.equal_texts() == {"a": "2"}
    assert not pair.troubles("conflict")
    os.setxattr(pair.sync / "a", "user.client", b"seen again")
    pair.settle()
    assert (pair.box / "a").stat().st_ino == inode


def test_a_file_put_back_as_it_was_is_not_pushed(pair: Pair) -> None:
    settle_files(pair, a="1")
    time_ns = (pair.box / "a").stat().st_mtime_ns
    write(pair.box / "a", "2")
    pair.scan()
    assert "a" in pair.engine.batcher
    write(pair.box / "a", "1")
    os.utime(pair.box / "a", ns=(time_ns, time_ns))
    pair.settle()
    assert pair.pushes() == []


def test_a_file_that_came_and_went_is_not_pushed(pair: Pair) -> None:
    settle_files(pair, a="1")
    write(pair.box / "swap", "x" * 1000)
    pair.scan()
    (pair.box / "swap").unlink()
    pair.settle()
    assert pair.pushes() == []


def test_pipes_are_left_alone(pair: Pair) -> None:
    os.mkfifo(pair.box / "pipe")
    write(pair.box / "a", "1")
    pair.advance(60)
    assert set(tree(pair.sync)) == {"a"}


# --- both sides ---


def test_both_changed_to_the_same(pair: Pair) -> None:
    settle_files(pair, a="1")
    write(pair.box / "a", "2")
    write(pair.sync / "a", "2")
    pair.settle()
    assert (pair.equal_texts(), pair.troubles("conflict")) == ({"a": "2"}, [])


@pytest.mark.parametrize("change", [write, save])
def test_both_changed_and_both_are_kept(pair: Pair, change: Callable[[Path, str], Path]) -> None:
    settle_files(pair, **{"d/a.txt": "1"})
    inode = (pair.box / "d/a.txt").stat().st_ino
    write(pair.box / "d/a.txt", "mine")
    change(pair.sync / "d/a.txt", "theirs")
    pair.settle()
    remaining_texts = dict(pair.equal_texts())
    assert remaining_texts.pop("d/a.txt") == "mine"
    assert (pair.box / "d/a.txt").stat().st_ino == inode, "a program may have it open"
    ((name, text),) = remaining_texts.items()
    assert text == "theirs"
    assert name.startswith("d/a (conflict ")
    assert name.endswith(").txt")
    (message,) = pair.troubles("conflict")
    assert name in message


@pytest.mark.parametrize("is_sure", [True, False], ids=["time", "unsure"])
@pytest.mark.parametrize(
    ("act", "expected"),
    [(lambda path: save(path, "theirs"), ["box's", "theirs"]), (Path.unlink, ["box's"])],
    ids=["replaced", "deleted"],
)
def test_a_change_whose_time_was_set_back_outlives_one_of_the_client(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], object], expected: list[str], is_sure: bool
) -> None:
    monkeypatch.setattr(FileMark, "is_reliable", lambda mark, taken_ns=None: is_sure)
    write(pair.box / "a", "first")
    pair.advance(61)
    status = (pair.box / "a").stat()
    (pair.box / "a").write_text("box's")
    os.utime(pair.box / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    pair.advance(1)
    assert "a" in pair.engine.batcher
    act(pair.sync / "a")
    pair.settle()
    assert sorted(pair.equal_texts().values()) == expected
    assert len(pair.troubles("conflict")) == len(expected) - 1


@pytest.mark.parametrize("name", ["\u6f22" * 80, f"a.{'x' * 240}"], ids=["stem", "ending"])
def test_both_are_kept_of_a_file_with_the_longest_name(pair: Pair, name: str) -> None:
    write(pair.box / name, "mine")
    write(pair.sync / name, "theirs")
    pair.settle()
    assert pair.troubles("failed") == []
    assert sorted(pair.equal_texts().values()) == ["mine", "theirs"]
    assert pair.equal_texts()[name] == "mine"


def test_both_created_different_files_of_one_name(pair: Pair) -> None:
    write(pair.box / ".conf", "mine")
    write(pair.sync / ".conf", "theirs")
    pair.settle()
    assert sorted(pair.equal_texts().values()) == ["mine", "theirs"]
    assert pair.equal_texts()[".conf"] == "mine"


def test_a_file_here_and_a_folder_there(pair: Pair) -> None:
    write(pair.box / "x", "file")
    write(pair.sync / "x/inside", "folder")
    pair.settle()
    assert sorted(pair.equal_texts().values()) == ["file", "folder"]
    assert pair.equal_texts()["x"] == "file"


@pytest.mark.parametrize(("changed", "gone"), [("box", "sync"), ("sync", "box")])
def test_a_change_outlives_a_deletion(pair: Pair, changed: str, gone: str) -> None:
    settle_files(pair, **{"d/a": "1"})
    write(pair.home / changed / "d/a", "2")
    (pair.home / gone / "d/a").unlink()
    (pair.home / gone / "d").rmdir()
    pair.settle()
    assert pair.equal_texts() == {"d/a": "2"}


def test_both_deleted(pair: Pair) -> None:
    settle_files(pair, a="1")
    (pair.box / "a").unlink()
    (pair.sync / "a").unlink()
    pair.settle()
    assert (pair.equal_texts(), dict(pair.store.entries)) == ({}, {})


def test_a_new_file_in_a_folder_that_was_deleted_here(pair: Pair) -> None:
    settle_files(pair, **{"d/a": "1"})
    (pair.box / "d/a").unlink()
    (pair.box / "d").rmdir()
    write(pair.sync / "d/new", "theirs")
    pair.settle()
    assert pair.equal_texts() == {"d/new": "theirs"}


def test_folders_that_were_filled_before_the_first_start_are_merged(pair: Pair) -> None:
    for index in range(5):
        write(pair.box / f"same{index}", "are_equal")
        write(pair.sync / f"same{index}", "are_equal")
    write(pair.box / "mine", "1")
    write(pair.sync / "theirs", "2")
    pair.settle()
    assert len(pair.equal_texts()) == 7
    assert [push.files for push in pair.pushes()] == [1]


def test_permission_change_survives_a_comparison_of_contents(pair: Pair) -> None:
    settle_files(pair, a="1")
    (pair.sync / "a").chmod(0o600)
    stamp(pair.box / "a")
    pair.settle()
    assert (pair.box / "a").stat().st_mode & 0o777 == 0o600


def test_permissions_that_the_client_gave_a_file_that_was_renamed_here_are_kept(pair: Pair) -> None:
    settle_files(pair, **{"d/a": "1"})
    (pair.sync / "b").symlink_to("somewhere")  # so that the file is renamed, and its folder is not
    (pair.sync / "d/a").chmod(0o600)
    (pair.box / "d").rename(pair.box / "b")
    pair.settle()
    assert tree(pair.box)["b/a"] == ("file", 0o600, b"1")


# --- outside the folder ---


def test_nothing_is_written_through_a_link_in_the_sync_folder(pair: Pair) -> None:
    outside = pair.home / "outside"
    outside.mkdir()
    settle_files(pair, **{"d/a": "1"})
    (pair.sync / "d/a").unlink()
    (pair.sync / "d").rmdir()
    (pair.sync / "d").symlink_to(outside)
    write(pair.box / "d/b", "2")
    pair.settle()
    assert list(outside.iterdir()) == []
    assert pair.equal_texts()["d/b"] == "2"


# --- no needless conflict ---


def touch(path: Path) -> None:
    stamp(path)


def protect(path: Path) -> None:
    path.chmod(0o600)


def save_the_same(path: Path) -> None:
    save(path, path.read_bytes())


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("act", [touch, protect, save_the_same])
def test_quick_changes_by_the_client_alone_never_conflict(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None], is_restarted: bool
) -> None:
    """No mark is old enough here to show a change with certainty."""
    monkeypatch.setattr(FileMark, "is_reliable", lambda mark, taken_ns=None: False)
    write(pair.sync / "a", "first")
    pair.advance(1)
    act(pair.sync / "a")
    pair.engine.sync_changed(["a"], pair.now_ns)
    pair.engine.pull_all(pair.now_ns)
    if is_restarted:
        pair.restart()
    write(pair.sync / "a", "second")
    pair.engine.sync_changed(["a"], pair.now_ns)
    pair.engine.pull_all(pair.now_ns)
    assert pair.equal_texts() == {"a": "second"}
    assert not pair.troubles("conflict")


@pytest.mark.parametrize(("age_ms", "is_compared_again"), [(1, True), (60, False)])
def test_a_mark_is_as_old_as_it_was_when_taken_however_slow_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_ms: int, is_compared_again: bool
) -> None:
    """The box may change in the same step of the clock, after its mark was taken and before the copy has ended."""
    pair = Pair(tmp_path)
    file, copy_data = pair.box / "a", content.copy_data
    file.write_text("first")
    now_ns = file.stat().st_ctime_ns + age_ms * 1_000_000

    def copy_slowly(source: int, target: int, status: os.stat_result) -> int:
        nonlocal now_ns
        written_bytes = copy_data(source, target, status)
        now_ns += 1_000_000_000
        return written_bytes

    monkeypatch.setattr(content, "copy_data", copy_slowly)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    assert pair.mirror.reconcile("a") == "pushed"
    assert ("a" in pair.mirror.again) is is_compared_again
    pair.end()


def test_a_change_by_the_client_during_a_comparison_is_not_taken_for_one_of_the_box(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_files(pair, a="first")
    equal = content.are_equal

    def change_and_compare(ours: int, theirs: int) -> bool:
        write(pair.sync / "a", "other")
        return equal(ours, theirs)

    with monkeypatch.context() as patch:
        patch.setattr(content, "are_equal", change_and_compare)
        pair.engine.box_changed(["a"], pair.now_ns, is_event=True)
    pair.settle()
    assert pair.equal_texts() == {"a": "other"}
    assert not pair.troubles("conflict")
