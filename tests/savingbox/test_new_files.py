"""Files that only the box has go to the sync folder in few steps, whatever others do in between."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_cloudbench.savingbox import openfiles, openfolder
from tests.savingbox.pairs import Pair, tree, write

DATA = "of the box"


@pytest.fixture
def pair(pair: Pair) -> Pair:
    write(pair.box / "d/a", DATA)
    return pair


def act_before(pair: Pair, step: str, act: Callable[[], object]) -> list[str]:
    """Act once before this step on the new file. Return a list that then holds the step."""
    happened: list[str] = []

    def act_once(announced: str, path: str) -> None:
        if (announced, path) == (step, "d/a") and not happened:
            happened.append(step)
            act()

    pair.fault = act_once
    return happened


def note_full_copies(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each file that is copied the long way is added."""
    copied: list[str] = []
    put_file = pair.mirror.sync.put_file

    def put_and_note(relative: str, *args: object) -> object:
        copied.append(relative)
        return put_file(relative, *args)  # type: ignore[arg-type]  # they are passed on as they come

    monkeypatch.setattr(pair.mirror.sync, "put_file", put_and_note)
    return copied


def test_a_file_keeps_its_content_mode_and_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = note_full_copies(pair, monkeypatch)
    (pair.box / "d/a").chmod(0o640)
    write(pair.box / "b", DATA)
    write(pair.box / "d/e/c", DATA)
    pair.settle()
    assert not copied
    assert tree(pair.sync) == tree(pair.box)
    assert (pair.sync / "d/a").stat().st_mtime_ns == (pair.box / "d/a").stat().st_mtime_ns


@pytest.mark.parametrize("mode", [0o666, 0o4755, 0o400])
def test_a_file_keeps_permissions_that_no_new_file_gets(pair: Pair, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = note_full_copies(pair, monkeypatch)
    (pair.box / "d/a").chmod(mode)
    old_umask = os.umask(0o077)
    try:
        pair.settle()
    finally:
        os.umask(old_umask)
    assert not copied
    assert (pair.sync / "d/a").stat().st_mode & 0o7777 == mode


def test_a_file_that_even_its_owner_may_not_write_is_copied(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openfolder, "close_new_file", lambda name, folder: None)
    copied = note_full_copies(pair, monkeypatch)
    pair.settle()
    assert not copied
    assert pair.equal_texts() == {"d/a": DATA}


def test_a_system_that_names_files_only_by_their_path_is_served(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openfiles, "_find_function", lambda name: None)
    copied = note_full_copies(pair, monkeypatch)
    pair.settle()
    assert not copied
    assert pair.equal_texts() == {"d/a": DATA}


@pytest.mark.parametrize("step", ["copy", "publish"])
def test_client_file_arriving_during_a_push_is_kept(pair: Pair, step: str) -> None:
    happened = act_before(pair, step, lambda: write(pair.sync / "d/a", "of the client"))
    pair.settle()
    assert happened
    assert sorted(pair.equal_texts().values()) == [DATA, "of the client"]


@pytest.mark.parametrize("step", ["copy", "publish"])
def test_write_during_a_push_is_pushed_afterwards(pair: Pair, step: str) -> None:
    happened = act_before(pair, step, lambda: write(pair.box / "d/a", "later, and longer"))
    pair.settle()
    assert happened
    assert pair.equal_texts() == {"d/a": "later, and longer"}


def test_a_write_during_the_copy_starts_it_anew(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = note_full_copies(pair, monkeypatch)
    put_new_file = pair.mirror.sync.put_new_file

    def write_and_put(relative: str, source: int, status: os.stat_result) -> object:
        write(pair.box / "d/a", "later, and longer")
        return put_new_file(relative, source, status)

    monkeypatch.setattr(pair.mirror.sync, "put_new_file", write_and_put)
    pair.settle()
    assert copied == ["d/a"]
    assert pair.equal_texts() == {"d/a": "later, and longer"}


def test_a_write_right_after_the_name_appears_is_the_clients(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    close = openfiles.close_new_file

    def write_and_close(name: str, folder: int) -> os.stat_result | None:
        with (pair.sync / "d/a").open("a") as file:
            file.write(", and of the client")
        return close(name, folder)

    with monkeypatch.context() as patch:
        patch.setattr(openfolder, "close_new_file", write_and_close)
        pair.advance(6)
    pair.settle()
    assert sorted(pair.equal_texts().values()) == [DATA, f"{DATA}, and of the client"]


@pytest.mark.parametrize("step", ["copy", "publish"])
def test_a_folder_that_the_client_renames_gets_all_of_its_files_all_the_same(pair: Pair, step: str) -> None:
    write(pair.box / "d/b", DATA)
    happened = act_before(pair, step, lambda: (pair.sync / "d").rename(pair.sync / "other"))
    pair.settle()
    assert happened
    pushed_texts = pair.equal_texts()
    assert {"d/a", "d/b"} <= pushed_texts.keys()
    assert {*pushed_texts.values()} == {DATA}


@pytest.mark.parametrize("step", ["copy", "publish"])
def test_nothing_goes_through_a_link_that_replaces_the_folder(pair: Pair, tmp_path: Path, step: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()

    def replace_folder() -> None:
        (pair.sync / "d").rename(tmp_path / "moved away")
        (pair.sync / "d").symlink_to(outside)

    happened = act_before(pair, step, replace_folder)
    pair.settle()
    assert happened
    assert os.listdir(outside) == []
    assert DATA in pair.equal_texts().values()


def test_another_root_of_the_same_name_gets_nothing(pair: Pair, tmp_path: Path) -> None:
    def replace_root() -> None:
        pair.sync.rename(tmp_path / "moved away")
        (pair.sync / "d").mkdir(parents=True)

    happened = act_before(pair, "publish", replace_root)
    with pytest.raises(Exception, match="another folder has its name now"):
        pair.advance(6)
    assert happened
    assert tree(pair.sync) == {"d": ("folder", 0o755, b"")}


def test_no_folder_stays_open(pair: Pair) -> None:
    before = os.listdir("/proc/self/fd")
    pair.settle()
    assert os.listdir("/proc/self/fd") == before
