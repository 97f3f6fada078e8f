"""Faults: nothing is lost, and each one is reported and repaired once that is possible."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_cloudbench.savingbox.listings import FoundAll
from pytest_cloudbench.savingbox.side import FolderSide, VanishedError
from pytest_cloudbench.savingbox.watcher import EventWatcher
from tests.savingbox.pairs import Pair, save, stamp, tree, write


def act_at(step: str, act: Callable[[], object], count: int = 1) -> Callable[[str, str], None]:
    """Return a fault that acts when this step is reached for the ``count``-th time."""
    steps: list[str] = []

    def fault(now: str, path: str) -> None:
        steps.append(now)
        if now == step and steps.count(step) == count:
            act()

    return fault


def raise_disk_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- full disk ---


@pytest.mark.parametrize("step", ["copy", "publish", "mkdir"])
def test_a_full_disk_at_a_new_file(pair: Pair, step: str) -> None:
    write(pair.box / "d/a", "1")
    pair.fault = act_at(step, raise_disk_full)
    pair.advance(5.5)
    assert pair.troubles("failed")
    pair.settle()
    assert pair.equal_texts() == {"d/a": "1"}


@pytest.mark.parametrize(("step", "count"), [("patch", 1), ("write", 1), ("write", 2), ("write", 5), ("stamp", 1)])
def test_a_full_disk_at_a_patch(pair: Pair, step: str, count: int) -> None:
    write(pair.box / "a", "x" * 50_000)
    pair.settle()
    write(pair.box / "a", "y" * 50_000)
    pair.fault = act_at(step, raise_disk_full, count)
    pair.settle()
    assert pair.equal_texts() == {"a": "y" * 50_000}
    assert len(pair.troubles("failed")) == 1
    assert not pair.troubles("conflict")


def test_a_disk_that_stays_full_is_tried_ever_more_seldom(pair: Pair) -> None:
    write(pair.box / "a", "1")
    pair.fault = lambda step, path: raise_disk_full()
    pair.advance(5)
    attempts_ns: list[int] = []

    def note_and_fail(step: str, path: str) -> None:
        attempts_ns.append(pair.now_ns)
        raise_disk_full()

    pair.fault = note_and_fail
    pair.advance(600)
    assert 15 <= len(attempts_ns) <= 30
    assert len(pair.troubles("failed")) == 1, "reported once"
    pair.fault = lambda step, path: None
    pair.advance(31)
    assert pair.equal_texts() == {"a": "1"}


def test_failing_file_does_not_delay_others(pair: Pair) -> None:
    def fault(step: str, path: str) -> None:
        if path == "bad":
            raise_disk_full()

    pair.fault = fault
    write(pair.box / "bad", "1")
    pair.advance(300)
    assert pair.engine.unpushed_files == 1
    for text in ("1", "2", "3"):
        write(pair.box / "good", text)
        pair.advance(5)
        assert (pair.sync / "good").read_text() == text
    assert {push.why for push in pair.pushes()} == {"quiet"}
    pair.fault = lambda step, path: None
    pair.advance(31)
    assert pair.equal_texts() == {"bad": "1", "good": "3"}
    assert pair.pushes()[-1].why == "again"


def test_a_real_full_disk(pair: Pair, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    finished = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", small], capture_output=True, check=False
    )
    if finished.returncode:
        pytest.skip("mounting needs root")
    try:
        other = Pair.__new__(Pair)
        (small / "box").symlink_to(tmp_path / "big")
        (tmp_path / "big").mkdir()
        other.__init__(small)  # type: ignore[misc]  # the state file lies on the full disk, too
        write(other.box / "fits", b"x" * 1000)
        write(other.box / "large", os.urandom(400_000))
        other.advance(60)
        assert any("large" in text for text in other.troubles("failed"))
        assert tree(other.sync).keys() == {"fits"}
        (other.box / "large").unlink()
        write(other.box / "less", os.urandom(1_000))
        other.advance(120)
        assert tree(other.sync).keys() == {"fits", "less"}
        other.end()
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_a_mount_in_the_way(pair: Pair, tmp_path: Path) -> None:
    """A part of the sync folder is on another disk, or on the same disk mounted again."""
    inner, disk = pair.sync / "d", tmp_path / "disk"
    for folder in (inner, disk, pair.box / "d"):
        folder.mkdir()
    if subprocess.run(["mount", "--bind", disk, inner], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    try:
        write(pair.box / "d/a", "1")
        write(pair.box / "b", "2")
        pair.settle()
        save(pair.sync / "d/a", "theirs")
        write(pair.box / "d/big", b"x" * 20_000_000)
        pair.settle()
        write(pair.box / "d/big", b"y" * 20_000_000)
        pair.settle()
        assert pair.equal_texts()["d/a"] == "theirs"
        assert not pair.troubles("failed")
    finally:
        subprocess.run(["umount", "-l", inner], check=True)


def test_a_system_without_nameless_files(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    write(pair.box / "d/a", "1")
    write(pair.sync / "b", "2")
    pair.settle()
    save(pair.sync / "d/a", "theirs")
    write(pair.box / "new", "mine")
    pair.fault = act_at("publish", lambda: write(pair.sync / "new", "taken"))
    pair.settle()
    assert pair.equal_texts()["d/a"] == "theirs"
    assert sorted(pair.equal_texts().values()) == ["2", "mine", "taken", "theirs"]
    assert not pair.list_unfinished()


def test_unfinished_files_of_a_killed_process_are_removed(pair: Pair) -> None:
    (pair.sync / "d").mkdir()
    box, sync = pair.mirror.box._staged_prefix, pair.mirror.sync._staged_prefix
    unfinished = [pair.sync / f"d/{sync}1", pair.home / f"{box}2", pair.box / f"{box}3"]
    for path in unfinished:
        path.write_text("half")
    pair.restart()
    assert not any(path.exists() for path in unfinished)
    assert pair.engine.unpushed_files == 0


def test_unfinished_files_of_a_folder_with_a_longer_name_are_kept(tmp_path: Path) -> None:
    shorter, longer = (FolderSide(str(tmp_path / name), "savingbox") for name in ("Work", "Work-old"))
    for folder_side in (shorter, longer):
        Path(folder_side.root).mkdir()
        folder_side.open()
    unfinished = tmp_path / f"{longer._staged_prefix}1"
    unfinished.write_text("half")
    shorter.clean()
    assert unfinished.exists()
    longer.clean()
    assert not unfinished.exists()


@pytest.mark.parametrize(("side", "other"), [("box", "sync"), ("sync", "box")])
def test_deleted_folder_stays_deleted_after_a_failed_file_removal(pair: Pair, side: str, other: str) -> None:
    write(pair.box / "d/e/a", "1")
    write(pair.box / "d/e/b", "2")
    pair.settle()
    shutil.rmtree(pair.home / side / "d")
    pair.fault = act_at("unlink", raise_disk_full)
    pair.settle()
    assert tree(pair.home / other) == {}


@pytest.mark.parametrize("side", ["box", "sync"])
def test_folder_replaced_by_file_is_no_conflict_after_failed_removal(pair: Pair, side: str) -> None:
    write(pair.box / "d/a", "1")
    pair.settle()
    shutil.rmtree(pair.home / side / "d")
    write(pair.home / side / "d", "a file")
    pair.fault = act_at("unlink", raise_disk_full)
    pair.settle()
    assert pair.equal_texts() == {"d": "a file"}
    assert not pair.troubles("conflict")


@pytest.mark.parametrize(("side", "other"), [("box", "sync"), ("sync", "box")])
def test_a_deleted_folder_comes_back_for_a_new_file_deep_in_it(pair: Pair, side: str, other: str) -> None:
    """The deleted folders hold a new file on the other side, which was never carried, so they come back with it."""
    write(pair.box / "d/e/f/a", "1")
    pair.settle()
    shutil.rmtree(pair.home / side / "d")
    write(pair.home / other / "d/e/f/new", "2")
    pair.settle()
    assert pair.equal_texts() == {"d/e/f/new": "2"}
    assert not pair.troubles("conflict")


def test_bytes_are_counted_with_the_push_that_brings_them(pair: Pair) -> None:
    (pair.box / "a").write_bytes(os.urandom(3_000))
    (pair.box / "bad").write_bytes(os.urandom(5_000))

    def fail_bad(step: str, path: str) -> None:
        if Path(path).name == "bad":
            raise_disk_full()

    pair.fault = fail_bad
    pair.advance(5.5)
    pair.fault = lambda step, path: None
    pair.settle()
    first, again = pair.pushes()
    assert (first.why, first.files, again.why, again.files) == ("quiet", 1, "again", 1)
    assert 3_000 <= first.counted_bytes < 4_000
    assert 5_000 <= again.counted_bytes < 6_000


# --- a folder that vanishes ---


@pytest.mark.parametrize("side", ["box", "sync"])
def test_a_vanished_folder_deletes_nothing(pair: Pair, side: str) -> None:
    write(pair.box / "a", "1")
    write(pair.box / "d/b", "2")
    pair.settle()
    (pair.home / side).rename(pair.home / "elsewhere")
    with pytest.raises(VanishedError, match="No such file"):
        pair.scan()
    pair.engine.box_changed(["a", "d", "d/b"], pair.now_ns)
    pair.engine.sync_changed(["a", "d", "d/b"], pair.now_ns)
    with pytest.raises(VanishedError):
        pair.engine.work(pair.now_ns + 60_000_000_000)
    (pair.home / side).mkdir()  # as where a mount is missing
    with pytest.raises(VanishedError, match="another folder"):
        pair.engine.work(pair.now_ns + 60_000_000_000)
    (pair.home / side).rmdir()
    (pair.home / "elsewhere").rename(pair.home / side)
    pair.settle()
    assert pair.equal_texts() == {"a": "1", "d/b": "2"}


@pytest.mark.parametrize("side", ["box", "sync"])
def test_a_folder_that_vanishes_while_a_file_is_copied_from_it_makes_no_conflict(pair: Pair, side: str) -> None:
    """The copied content is agreed on. The open file can still be read to its end."""
    other = {"box": "sync", "sync": "box"}[side]
    write(pair.home / side / "a", "1")
    pair.fault = act_at("copy", lambda: (pair.home / side).rename(pair.home / "gone"))
    with contextlib.suppress(VanishedError):
        pair.advance(31)
    (pair.home / "gone").rename(pair.home / side)
    assert (pair.home / other / "a").read_text() == "1"
    write(pair.home / other / "a", "2")
    pair.settle()
    assert pair.equal_texts() == {"a": "2"}


@pytest.mark.parametrize("step", ["copy", "publish", "patch"])
@pytest.mark.parametrize("side", ["box", "sync"])
def test_a_folder_that_vanishes_while_a_file_is_copied_into_it_makes_no_conflict(
    pair: Pair, side: str, step: str
) -> None:
    """The copy may be in the vanished folder. Once that is back, the original has already changed again."""
    source = pair.home / {"box": "sync", "sync": "box"}[side]
    if step == "patch":
        write(source / "a", "0" * 9000)
        pair.settle()
    write(source / "a", "1" * 9000)
    pair.fault = act_at(step, lambda: (pair.home / side).rename(pair.home / "gone"))
    with contextlib.suppress(VanishedError):
        pair.advance(31)
    pair.fault = lambda step, path: None
    if (pair.home / "gone").exists():
        (pair.home / "gone").rename(pair.home / side)
    write(source / "a", "2" * 9000)
    pair.settle()
    assert pair.equal_texts() == {"a": "2" * 9000}
    assert not pair.troubles("conflict")


def test_a_folder_that_vanishes_between_two_steps(pair: Pair) -> None:
    for name in "abcd":
        write(pair.box / name, name)
    pair.settle()
    (pair.sync / "a").unlink()
    (pair.box / "b").unlink()
    pair.scan()
    pair.fault = act_at("unlink", lambda: pair.sync.rename(pair.home / "elsewhere"))
    with pytest.raises(VanishedError):
        pair.engine.work(pair.now_ns + 60_000_000_000)
    (pair.home / "elsewhere").rename(pair.sync)
    pair.settle()
    assert set(pair.equal_texts()) >= {"c", "d"}


def test_a_folder_that_cannot_be_read_deletes_nothing(pair: Pair) -> None:
    write(pair.box / "d/a", "1")
    pair.settle()
    entries = {path: entry for path, entry in pair.scan_side(pair.mirror.box).entries.items() if path == "d"}
    unreadable = FoundAll(entries, {"d": PermissionError(errno.EACCES, "Permission denied")})
    pair.engine.take_scan(unreadable, pair.scan_side(pair.mirror.sync), pair.now_ns)
    pair.engine.take_scan(pair.scan_side(pair.mirror.box), unreadable, pair.now_ns)
    assert (len(pair.engine.batcher), pair.engine.incoming) == (0, {})
    assert pair.engine.unread_folders == {"d"}
    assert "'d' cannot be read" in pair.troubles("failed")[0]
    pair.scan()
    assert not pair.engine.unread_folders


# --- files in use ---


def test_a_file_that_changes_while_it_is_copied_is_pushed_again(pair: Pair) -> None:
    write(pair.box / "a", "1" * 5000)
    pair.fault = act_at("publish", lambda: write(pair.box / "a", "2" * 6000))
    pair.settle()
    assert pair.equal_texts() == {"a": "2" * 6000}


def test_a_file_that_changes_at_every_copy_is_pushed_all_the_same(pair: Pair) -> None:
    path = write(pair.box / "log", "begin\n")

    def grow(step: str, _: str) -> None:
        if step == "publish":
            with path.open("a") as file:
                file.write("more\n")
            stamp(path)

    pair.fault = grow
    pair.advance(31)
    assert (pair.sync / "log").read_text().startswith("begin\n")
    pair.fault = lambda step, path: None
    pair.settle()
    assert pair.equal_texts()["log"].startswith("begin\nmore\n")


def test_a_file_that_the_client_is_writing_is_not_taken_in(pair: Pair) -> None:
    with (pair.sync / "a").open("w") as file:
        file.write("half of ")
        file.flush()
        pair.advance(30)
        assert tree(pair.box) == {}
        assert "open for writing" in pair.troubles("note")[0]
        file.write("it")
    pair.settle()
    assert pair.equal_texts() == {"a": "half of it"}


def test_a_file_that_a_program_writes_is_not_replaced_under_its_hands(pair: Pair) -> None:
    write(pair.box / "a", "1")
    pair.settle()
    with (pair.box / "a").open("a") as file:
        save(pair.sync / "a", "theirs")
        pair.advance(30)
        assert (pair.box / "a").read_text() == "1"
        file.write("mine")
        file.flush()
        stamp(pair.box / "a")
    pair.settle()
    assert sorted(pair.equal_texts().values()) == ["1mine", "theirs"]


@pytest.mark.parametrize("step", ["unlink", "publish"])
def test_a_file_that_is_written_just_before_it_is_replaced_is_kept(pair: Pair, step: str) -> None:
    write(pair.box / "a", "1")
    pair.settle()
    if step == "unlink":
        (pair.sync / "a").unlink()
    else:
        save(pair.sync / "a", "theirs")
    pair.fault = act_at(step, lambda: write(pair.box / "a", "just now"))
    pair.settle()
    assert "just now" in pair.equal_texts().values()
    assert step == "unlink" or "theirs" in pair.equal_texts().values()


def test_a_file_that_the_client_replaces_before_it_is_patched_is_kept(pair: Pair) -> None:
    write(pair.box / "a", "1")
    pair.settle()
    write(pair.box / "a", "mine")
    pair.fault = act_at("patch", lambda: save(pair.sync / "a", "theirs"))
    pair.settle()
    assert sorted(pair.equal_texts().values()) == ["mine", "theirs"]


@pytest.mark.parametrize("side", ["box", "sync"])
def test_a_link_that_becomes_a_file_while_it_is_carried_is_no_conflict(pair: Pair, side: str) -> None:
    link = pair.home / side / "a"
    link.symlink_to("somewhere")

    def become_a_file() -> None:
        link.unlink()
        write(link, "later")

    pair.fault = act_at("symlink", become_a_file)
    pair.settle()
    assert pair.equal_texts() == {"a": "later"}
    assert not pair.troubles("conflict")


def test_a_name_that_the_client_takes_before_it_is_given_is_the_clients(pair: Pair) -> None:
    write(pair.box / "a", "mine")
    pair.fault = act_at("publish", lambda: write(pair.sync / "a", "theirs"))
    pair.settle()
    assert sorted(pair.equal_texts().values()) == ["mine", "theirs"]


def test_a_long_write_that_goes_on_after_the_push_is_noticed(pair: Pair) -> None:
    """A file gets its new time when a write begins, and the remaining bytes do not change it again."""
    path = write(pair.box / "a", "x" * 10_000)
    pair.settle()
    mark = path.stat()
    with path.open("r+b") as file:
        file.seek(9_000)
        file.write(b"late")
    os.utime(path, ns=(mark.st_atime_ns, mark.st_mtime_ns))
    agreement = pair.store.entries["a"]
    entry = pair.mirror.box.find_entry("a")
    assert entry is not None
    pair.store.replace("a", agreement._replace(box=entry.mark))  # as if the mark had been read in the middle of a write
    pair.engine.box_changed(["a"], pair.now_ns)
    assert pair.engine.unpushed_files == 0
    pair.engine.box_changed(["a"], pair.now_ns, is_event=True)
    assert pair.engine.unpushed_files == 1
    pair.settle()
    assert "late" in pair.equal_texts()["a"]


def test_stores_into_a_mapping_are_pushed_though_no_event_tells(pair: Pair) -> None:
    path = write(pair.box / "a", b"x" * 8192)
    pair.settle()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8192) as mapping:
        for text in (b"first", b"second", b"third"):  # the same page, dirty since the first
            mapping[: len(text)] = text
            pair.settle()
            assert (pair.sync / "a").read_bytes().startswith(text)


# --- the watcher ---


def test_lost_events_are_noticed(tmp_path: Path) -> None:
    side = FolderSide(str(tmp_path), "savingbox")
    side.open()
    watcher = EventWatcher(side)
    watcher.begin_scan()
    side.find_all_entries(watcher.watch_folder)
    watcher.end_scan()
    assert watcher.read_changes() == set()
    write(tmp_path / "a", "1")
    assert watcher.read_changes() == {"a"}
    queue_limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for _ in range(queue_limit // 2 + 10):  # equal events in a row would be one
        (tmp_path / "a").touch()
        (tmp_path / "b").touch()
    assert watcher.read_changes() is None
    assert watcher.read_changes() is None, "until it is scanned"
    watcher.begin_scan()
    assert "b" in side.find_all_entries(watcher.watch_folder).entries
    watcher.end_scan()
    (tmp_path / "b").unlink()
    assert watcher.read_changes() == {"b"}
    watcher.close()


def test_new_folders_are_watched_with_their_existing_content(tmp_path: Path) -> None:
    side = FolderSide(str(tmp_path), "savingbox")
    side.open()
    watcher = EventWatcher(side)
    watcher.begin_scan()
    side.find_all_entries(watcher.watch_folder)
    watcher.end_scan()
    write(tmp_path / "d/e/f", "1")
    assert watcher.read_changes() == {"d", "d/e", "d/e/f"}
    write(tmp_path / "d/e/f", "2")
    assert watcher.read_changes() == {"d/e/f"}
    deep = [f"{tmp_path}{'/x' * depth}" for depth in range(1, 1201)]
    for folder in deep:
        os.mkdir(folder)
    changes = watcher.read_changes()
    for folder in reversed(deep):
        os.rmdir(folder)
    assert changes is not None
    assert len(changes) == 1200
    watcher.read_changes()
    (tmp_path / "d").rename(tmp_path / "g")
    assert watcher.read_changes() is None, "which names events have now is not known"
    watcher.begin_scan()
    side.find_all_entries(watcher.watch_folder)
    watcher.end_scan()
    write(tmp_path / "g/e/f", "3")
    assert watcher.read_changes() == {"g/e/f"}
    watcher.close()


# --- large ---


def test_a_sparse_file_stays_sparse(pair: Pair) -> None:
    path = pair.box / "disk.img"
    with path.open("wb") as file:
        file.truncate(1 << 33)
        file.seek(1 << 32)
        file.write(b"data")
    pair.settle_sparse()
    with path.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"more")
    stamp(path)
    pair.settle_sparse()
    copy = pair.sync / "disk.img"
    assert copy.stat().st_size == 1 << 33
    assert copy.stat().st_blocks * 512 < 1 << 20
    with copy.open("rb") as file:
        file.seek(1 << 20)
        assert file.read(4) == b"more"


@pytest.mark.slow
def test_a_hundred_thousand_files(pair: Pair) -> None:
    import resource
    import time

    began_s, rss_before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for folder in range(100):
        (pair.box / str(folder)).mkdir()
        for index in range(1000):
            (pair.box / f"{folder}/{index}").write_bytes(b"%d" % index)
    made_s = time.process_time()
    pair.advance(31)
    mirrored_s = time.process_time()
    assert sum(1 for _ in pair.sync.rglob("*")) == 100_100
    pair.restart()
    again_s = time.process_time()
    rss_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss_before) / 1024
    assert len(pair.engine.batcher) == 0
    write(pair.box / "50/500", "changed")
    pair.engine.box_changed(["50/500"], pair.now_ns)
    pair.engine.work(pair.now_ns + 6_000_000_000)
    assert (pair.sync / "50/500").read_text() == "changed"
    print(
        f"100,000 files: made {made_s - began_s:.1f}, mirrored {mirrored_s - made_s:.1f}, "
        f"restarted {again_s - mirrored_s:.1f} CPU-s; {rss_mib:.0f} MiB more"
    )
    assert rss_mib < 400
