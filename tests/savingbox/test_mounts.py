"""Mounts inside a folder: entries that come and go with a mount are not taken for changes of the user or the client."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from pytest_cloudbench.savingbox import mounts
from pytest_cloudbench.savingbox.box import SavingBox
from tests.savingbox.pairs import Pair, texts, write
from tests.savingbox.test_faults import act_at

OTHER_SIDES = {"box": "sync", "sync": "box"}


def make_mount_point(pair: Pair, side: str) -> Path:
    """Make the folder ``d`` of a side, and return it."""
    inner = pair.home / side / "d"
    inner.mkdir()
    return inner


def make_disk(folder: Path) -> Path:
    """Make a folder that a test mounts, and return it."""
    disk = folder / "disk"
    disk.mkdir()
    return disk


@contextlib.contextmanager
def mounted(*arguments: str | Path) -> Iterator[None]:
    """Mount something while the context is open. The last argument is the mount point."""
    if subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", arguments[-1]], check=True)


def change_everything(pair: Pair, paths: Iterable[str]) -> None:
    """Tell the engine by events that these entries may have changed on both sides, and let it work."""
    pair.engine.box_changed(paths, pair.now_ns, is_event=True)
    pair.engine.sync_changed(paths, pair.now_ns)
    pair.advance(61)


@pytest.mark.parametrize(("side", "other"), [*OTHER_SIDES.items()])
def test_a_missing_mount_inside_a_folder_deletes_nothing(pair: Pair, tmp_path: Path, side: str, other: str) -> None:
    inner, disk = make_mount_point(pair, side), make_disk(tmp_path)
    with mounted("--bind", disk, inner):
        write(inner / "a", "1")
        write(inner / "e/b", "2")
        write(pair.home / side / "c", "3")
        pair.settle()
    assert not os.listdir(inner)
    change_everything(pair, ["d", "d/a", "d/e", "d/e/b"])
    assert texts(pair.home / other) == {"c": "3", "d/a": "1", "d/e/b": "2"}
    assert any("'d' cannot be read (it is no longer mounted)" in text for text in pair.troubles("failed"))
    assert "d" in pair.engine.unread_folders
    pair.restart()
    write(pair.home / other / "d/new", "4")
    write(pair.home / other / "d/a", "changed")
    write(pair.home / side / "c", "changed")
    change_everything(pair, ["d", "d/a", "d/e", "d/e/b", "d/new", "c"])
    assert not os.listdir(inner), "it is no place for files of the mount"
    assert texts(pair.home / other) == {"c": "changed", "d/a": "changed", "d/e/b": "2", "d/new": "4"}
    with mounted("--bind", disk, inner):
        (inner / "e/b").unlink()
        pair.settle()
        assert pair.equal_texts() == {"c": "changed", "d/a": "changed", "d/new": "4"}
        assert not pair.engine.unread_folders
        assert not pair.troubles("conflict")


@pytest.mark.parametrize("side", ["box", "sync"])
def test_nothing_goes_into_the_place_of_a_missing_mount(pair: Pair, tmp_path: Path, side: str) -> None:
    """Files that were put there would be hidden by the mount, and would then seem to be deleted."""
    inner, disk, other = make_mount_point(pair, side), make_disk(tmp_path), pair.home / OTHER_SIDES[side]
    with mounted("--bind", disk, inner):
        write(inner / "a", "1")
        pair.settle()
    write(other / "d/new", "2")
    write(inner / "meanwhile", "3")
    change_everything(pair, ["d/new", "d/meanwhile"])
    assert os.listdir(inner) == ["meanwhile"]
    with mounted("--bind", disk, inner):
        pair.settle()
        assert pair.equal_texts() == {"d/a": "1", "d/new": "2"}


@pytest.mark.parametrize("side", ["box", "sync"])
def test_a_mount_that_goes_away_during_a_copy_into_it_deletes_nothing(pair: Pair, tmp_path: Path, side: str) -> None:
    inner, disk, other = make_mount_point(pair, side), make_disk(tmp_path), pair.home / OTHER_SIDES[side]
    with mounted("--bind", disk, inner):
        write(inner / "a", "1")
        pair.settle()
        write(other / "d/new", "2")
        write(other / "d/e/new", "3")
        unmount = ["umount", "-l", str(inner)]
        pair.fault = act_at("mkdir", lambda: subprocess.run(unmount, check=True))
        pair.advance(61)
        subprocess.run(["mount", "--bind", disk, inner], check=True)
        pair.settle()
        assert pair.equal_texts() == {"d/a": "1", "d/new": "2", "d/e/new": "3"}


@pytest.mark.parametrize(("side", "other"), [*OTHER_SIDES.items()])
def test_a_mount_that_hides_files_deletes_nothing(pair: Pair, tmp_path: Path, side: str, other: str) -> None:
    inner, disk = pair.home / side / "d", tmp_path / "disk"
    write(pair.home / side / "d/e/a", "1")
    pair.settle()
    write(disk / "b", "2")
    with mounted("--bind", disk, inner):
        pair.settle()
        assert pair.equal_texts() == {"d/b": "2", "d/e/a": "1"}
        (pair.home / other / "d/b").unlink()
        pair.settle()
        assert pair.equal_texts() == {"d/e/a": "1"}, "deletions follow as before"


@pytest.mark.parametrize(("side", "other"), [*OTHER_SIDES.items()])
def test_another_disk_at_a_mount_point_deletes_nothing(pair: Pair, tmp_path: Path, side: str, other: str) -> None:
    inner = make_mount_point(pair, side)
    for number in (1, 2):
        write(tmp_path / f"disk{number}" / f"{number}", f"{number}")
    with mounted("--bind", tmp_path / "disk1", inner):
        pair.settle()
    with mounted("--bind", tmp_path / "disk2", inner):
        pair.settle()
        assert pair.equal_texts() == {"d/1": "1", "d/2": "2"}


@pytest.mark.parametrize("side", ["box", "sync"])
def test_renames_around_the_place_of_a_missing_mount_delete_nothing(pair: Pair, tmp_path: Path, side: str) -> None:
    inner, disk, other = pair.home / side / "x/d", tmp_path / "disk", pair.home / {"box": "sync", "sync": "box"}[side]
    for folder in (inner, disk):
        folder.mkdir(parents=True)
    with mounted("--bind", disk, inner):
        write(inner / "a", "1")
        write(pair.box / "x/b", "2")
        write(pair.box / "c", "3")
        pair.settle()
    (pair.box / "c").rename(pair.box / "x/d/c")
    (pair.box / "x").rename(pair.box / "y")
    for _ in range(3):
        pair.advance(61)
    assert {path.rpartition("/")[2] for path in texts(other)} == {"a", "b", "c"}


@pytest.mark.parametrize("side", ["box", "sync"])
def test_the_place_of_a_mount_is_forgotten_once_it_is_gone_on_both_sides(pair: Pair, tmp_path: Path, side: str) -> None:
    inner, disk = make_mount_point(pair, side), make_disk(tmp_path)
    with mounted("--bind", disk, inner):
        write(inner / "a", "1")
        pair.settle()
    inner.rmdir()
    pair.advance(61)
    other = pair.home / {"box": "sync", "sync": "box"}[side]
    assert texts(other) == {"d/a": "1"}, "some systems remove the mount point when a disk is taken out"
    shutil.rmtree(other / "d")
    pair.settle()
    assert dict(pair.store.entries) == {}
    write(pair.home / side / "d/a", "2")
    pair.settle()
    assert pair.equal_texts() == {"d/a": "2"}


@pytest.mark.parametrize(("side", "other"), [*OTHER_SIDES.items()])
def test_a_missing_mount_of_a_single_file_changes_nothing(pair: Pair, tmp_path: Path, side: str, other: str) -> None:
    write(tmp_path / "disk", "1")
    write(pair.home / side / "a b", "")
    with mounted("--bind", tmp_path / "disk", pair.home / side / "a b"):
        pair.settle()
    change_everything(pair, ["a b"])
    assert texts(pair.home / other) == {"a b": "1"}


def test_a_new_folder_needs_no_mount_of_the_old_one(tmp_path: Path) -> None:
    box, sync, state = (tmp_path / name for name in ("box", "sync", "state"))
    for folder in (box / "d", sync, tmp_path / "disk"):
        folder.mkdir(parents=True)
    with mounted("--bind", tmp_path / "disk", box / "d"):
        write(box / "d/a", "1")
        assert SavingBox(box, sync, state=state).once()
    assert not SavingBox(box, sync, state=state).once()
    box.rename(tmp_path / "gone")
    box.mkdir()
    assert SavingBox(box, sync, state=state).once()
    assert texts(box) == texts(sync) == {"d/a": "1"}


def test_a_system_without_a_list_of_mounts_knows_them_by_their_devices(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "_MOUNTS", tmp_path / "no such file")
    inner = pair.box / "d"
    inner.mkdir()
    with mounted("-t", "tmpfs", "none", inner):
        write(inner / "e/a", "1")
        pair.settle()
        assert pair.mirror.box.find_all_entries(lambda folder: None).mounts.keys() == {"d"}
    pair.advance(61)
    assert texts(pair.sync) == {"d/e/a": "1"}
