"""A process killed at any step: the next one recognises its work, and takes none of it for a client's change."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_cloudbench.savingbox.records import Record
from pytest_cloudbench.savingbox.side import VanishedError
from pytest_cloudbench.savingbox.store import AgreementStore, Intent
from tests.savingbox.pairs import KilledError, Pair, save, stamp, tree, write

PAGES = b"".join(bytes([letter]) * 4096 for letter in b"abcdef")


@pytest.fixture
def summed_bytes(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Limit of the size up to which checksums of a whole file are noted before it is patched."""
    monkeypatch.setattr("pytest_cloudbench.savingbox.mirror._SUMMED_BYTES", request.param)


SMALL_AND_LARGE = pytest.mark.parametrize("summed_bytes", [1 << 20, 0], ids=["small", "large"], indirect=True)


def kill_at(pair: Pair, step: str, count: int = 1) -> None:
    """End the process when it reaches this step for the ``count``-th time."""
    steps: list[str] = []

    def fault(now: str, path: str) -> None:
        steps.append(now)
        if steps.count(step) == count:
            raise KilledError

    pair.fault = fault
    with pytest.raises(KilledError):
        pair.advance(6)
    pair.fault = lambda step, path: None


def kill_half_patched(pair: Pair) -> None:
    change_file(pair, PAGES, b"".join(bytes([letter]) * 4096 for letter in b"AbCdEf"))
    kill_at(pair, "write", 2)
    assert (pair.sync / "a").read_bytes()[::4096] == b"Abcdef"


def change_file(pair: Pair, old: bytes | None, new: bytes) -> None:
    """Create or change a file of the box, which then waits to be pushed. Both folders first agree on ``old``."""
    if old is not None:
        write(pair.box / "a", old)
        pair.settle()
    write(pair.box / "a", new)


@SMALL_AND_LARGE
def test_a_half_patched_file_is_finished(pair: Pair, summed_bytes: None) -> None:
    kill_half_patched(pair)
    pair.restart()
    pair.settle()
    assert pair.equal_texts()["a"][::4096] == "AbCdEf"
    assert not pair.troubles("conflict")


@SMALL_AND_LARGE
@pytest.mark.parametrize("page", [0, 1, 2, 3], ids=["one of ours", "another", "one to come", "a last one"])
def test_a_half_patched_file_that_the_client_changed_is_kept(pair: Pair, page: int, summed_bytes: None) -> None:
    kill_half_patched(pair)
    with (pair.sync / "a").open("r+b") as file:
        file.seek(page * 4096 + 100)
        file.write(b"client")
    stamp(pair.sync / "a")
    pair.restart()
    pair.settle()
    assert pair.equal_texts()["a"][::4096] == "AbCdEf"
    assert any("client" in text for text in pair.equal_texts().values())


def test_half_patched_file_is_not_taken_for_a_change_of_the_client(pair: Pair) -> None:
    kill_half_patched(pair)
    write(pair.box / "a", PAGES[::-1])
    pair.restart()
    pair.settle()
    assert pair.equal_texts() == {"a": PAGES[::-1].decode()}


@SMALL_AND_LARGE
def test_client_bytes_beside_a_patched_byte_are_kept(pair: Pair, summed_bytes: None) -> None:
    change_file(pair, PAGES, b"A" + PAGES[1:4096] + b"B" + PAGES[4097:])
    kill_at(pair, "write", 2)
    with (pair.sync / "a").open("r+b") as file:
        file.seek(100)
        file.write(b"client")
    stamp(pair.sync / "a")
    pair.restart()
    pair.settle()
    assert any("client" in text for text in pair.equal_texts().values())


@pytest.mark.parametrize("new", [PAGES[:5000], b"A" + PAGES[1:9000] + b"longer" * 5000], ids=["cut", "grown"])
def test_a_half_patched_file_of_another_size_is_ours(pair: Pair, new: bytes) -> None:
    change_file(pair, PAGES, new)
    kill_at(pair, "stamp")
    assert (pair.sync / "a").read_bytes() == new
    write(pair.box / "a", PAGES[::-1])
    pair.restart()
    pair.settle()
    assert pair.equal_texts() == {"a": PAGES[::-1].decode()}


@SMALL_AND_LARGE
@pytest.mark.parametrize(
    ("old", "new", "step"),
    [(b"x" * 20_000, b"x" * 5_000, "patch"), (b"x" * 5_000, b"x" * 20_000, "write")],
    ids=["cut", "grown"],
)
def test_client_bytes_where_a_killed_patch_cuts_or_grows_the_file_are_kept(
    pair: Pair, old: bytes, new: bytes, step: str, summed_bytes: None
) -> None:
    change_file(pair, old, new)
    kill_at(pair, step)
    with (pair.sync / "a").open("r+b") as file:
        file.seek(15_000)
        file.write(b"client")
    stamp(pair.sync / "a")
    pair.restart()
    pair.settle()
    assert pair.troubles("conflict")
    assert any("client" in text for text in pair.equal_texts().values())


def test_a_half_patched_file_that_is_deleted_meanwhile_is_gone(pair: Pair) -> None:
    kill_half_patched(pair)
    (pair.box / "a").unlink()
    pair.restart()
    pair.settle()
    assert pair.equal_texts() == {}


NEW_AND_PATCHED = pytest.mark.parametrize("old", [None, b"x" + PAGES[1:]], ids=["new", "patched"])


def kill_before_the_push_is_noted(pair: Pair) -> None:
    def kill() -> None:
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair.store, "flush", kill)
        with pytest.raises(KilledError):
            pair.advance(6)


def test_rename_by_killed_process_is_not_taken_for_a_client_change(pair: Pair) -> None:
    write(pair.box / "a", PAGES)
    pair.settle()
    (pair.box / "a").rename(pair.box / "b")
    kill_before_the_push_is_noted(pair)
    assert (pair.sync / "b").read_bytes() == PAGES
    write(pair.box / "b", "later")
    pair.restart()
    pair.settle()
    assert pair.equal_texts() == {"b": "later"}


@NEW_AND_PATCHED
def test_push_by_killed_process_is_not_taken_for_a_client_change(pair: Pair, old: bytes | None) -> None:
    change_file(pair, old, PAGES)
    kill_before_the_push_is_noted(pair)
    assert (pair.sync / "a").read_bytes() == PAGES
    write(pair.box / "a", PAGES[:-1] + b"later, and longer")
    pair.restart()
    pair.settle()
    assert pair.equal_texts() == {"a": PAGES[:-1].decode() + "later, and longer"}
    assert not pair.troubles("conflict")


@NEW_AND_PATCHED
def test_write_between_note_and_push_is_recognized_as_pushed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, old: bytes | None
) -> None:
    change_file(pair, old, PAGES)
    begin, remaining = pair.store.begin_intents, [PAGES[:-1] + b"later, and longer"]

    def begin_and_write(intents: Mapping[str, Intent]) -> None:
        begin(intents)
        if remaining:
            write(pair.box / "a", remaining.pop())

    monkeypatch.setattr(pair.store, "begin_intents", begin_and_write)
    kill_before_the_push_is_noted(pair)
    assert (pair.sync / "a").read_bytes().endswith(b"longer")
    write(pair.box / "a", PAGES[::-1])
    pair.restart()
    pair.settle()
    assert pair.equal_texts() == {"a": PAGES[::-1].decode()}
    assert not pair.troubles("conflict")


@pytest.mark.parametrize("content", ["mine", "else"])
def test_client_file_arriving_between_note_and_push_is_compared(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    write(pair.box / "a", "mine")
    begin, remaining = pair.store.begin_intents, [content]

    def begin_and_write(intents: Mapping[str, Intent]) -> None:
        begin(intents)
        if remaining:
            write(pair.sync / "a", remaining.pop())

    monkeypatch.setattr(pair.store, "begin_intents", begin_and_write)
    pair.settle()
    assert set(pair.equal_texts().values()) == {"mine", content}
    assert len(pair.troubles("conflict")) == (content == "else")
    assert not pair.troubles("failed")


@NEW_AND_PATCHED
def test_client_change_after_a_killed_push_is_a_conflict(pair: Pair, old: bytes | None) -> None:
    change_file(pair, old, PAGES)
    kill_before_the_push_is_noted(pair)
    write(pair.box / "a", "mine")
    write(pair.sync / "a", b"client" + PAGES[6:])
    pair.restart()
    pair.settle()
    assert set(pair.equal_texts().values()) == {"mine", "client" + PAGES[6:].decode()}


def test_another_file_with_the_same_time_and_size_is_not_taken_for_pushed(pair: Pair) -> None:
    write(pair.box / "a", "ours")
    write(pair.sync / "a", "else")
    os.utime(pair.sync / "a", ns=((pair.box / "a").stat().st_mtime_ns,) * 2)
    kill_at(pair, "rename")
    pair.restart()
    pair.settle()
    assert set(pair.equal_texts().values()) == {"ours", "else"}


def create(path: Path, kind: str) -> None:
    if kind == "file":
        write(path, "text")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("somewhere")


def delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink()


def rename(path: Path) -> None:
    path.rename(path.with_name("other"))


def retarget(path: Path) -> None:
    delete(path)
    path.symlink_to("elsewhere")


def become_a_file(path: Path) -> None:
    delete(path)
    write(path, "a file")


LATER_ACTS = pytest.mark.parametrize("act", [delete, rename, retarget, become_a_file])


def assert_followed(pair: Pair, side: str) -> None:
    """Check that both folders end up in the present state of this side."""
    expected = tree(pair.home / side)
    pair.restart()
    pair.settle()
    assert tree(pair.box) == tree(pair.sync) == expected
    assert not pair.troubles("conflict")


@LATER_ACTS
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
@pytest.mark.parametrize("side", ["box", "sync"])
def test_entries_copied_by_killed_process_are_recognized(
    pair: Pair, side: str, kind: str, act: Callable[[Path], None]
) -> None:
    create(pair.home / side / "x", kind)
    kill_before_the_push_is_noted(pair)
    assert tree(pair.box) == tree(pair.sync) != {}
    act(pair.home / side / "x")
    assert_followed(pair, side)


@pytest.mark.parametrize("side", ["box", "sync"])
@pytest.mark.parametrize(
    ("old", "new"), [("file", "folder"), ("file", "link"), ("file", "file"), ("link", "folder"), ("link", "file")]
)
def test_entry_replaced_by_killed_process_is_recognized(pair: Pair, side: str, old: str, new: str) -> None:
    create(pair.home / side / "x", old)
    pair.settle()
    delete(pair.home / side / "x")
    create(pair.home / side / "x", new)
    kill_before_the_push_is_noted(pair)
    delete(pair.home / side / "x")
    assert_followed(pair, side)


@pytest.mark.parametrize("write_again", [write, save])
def test_a_pulled_file_that_the_client_writes_again_is_pulled_again(
    pair: Pair, write_again: Callable[[Path, str], Path]
) -> None:
    write(pair.sync / "a", "1")
    pair.settle()
    save(pair.sync / "a", "from afar")
    kill_before_the_push_is_noted(pair)
    assert (pair.box / "a").read_text() == "from afar"
    write_again(pair.sync / "a", "later")
    assert_followed(pair, "sync")


@pytest.mark.parametrize("first", ["box", "sync"])
@pytest.mark.parametrize("then", ["box", "sync"])
@pytest.mark.parametrize("act", [delete, rename, become_a_file])
def test_copied_entry_is_noted_before_the_next_one(
    pair: Pair, first: str, then: str, act: Callable[[Path], None]
) -> None:
    """After a kill at the next entry, the result for the previous entry is known, whichever side acts on it then."""
    write(pair.home / first / "a", "1")
    write(pair.home / first / "b", "2")
    kill_at(pair, "copy", 2)
    (copied,) = {"a", "b"} & tree(pair.sync if first == "box" else pair.box).keys()
    act(pair.home / then / copied)
    pair.restart()
    pair.settle()
    assert tree(pair.box) == tree(pair.sync)
    assert (pair.box / copied).exists() == (act is become_a_file)
    assert not pair.troubles("conflict")


# --- a power cut ---


def replace_file(folder: Path) -> None:
    save(folder / "d/old", "replaced")


def move_file(folder: Path) -> None:
    (folder / "d/old").rename(folder / "e/new")


NAMING: Mapping[str, tuple[Callable[[Path], object], str, str]] = {
    "file": (lambda folder: write(folder / "d/new", "new"), "publish", "d"),
    "replaced file": (replace_file, "publish", "d"),
    "folder": (lambda folder: (folder / "d/new").mkdir(), "mkdir", "d"),
    "link": (lambda folder: (folder / "d/new").symlink_to("old"), "symlink", "d"),
    "moved file": (move_file, "rename", "e"),
}


@pytest.mark.parametrize("side", ["box", "sync"])
@pytest.mark.parametrize("name", NAMING)
def test_a_name_is_on_the_disk_before_its_agreement_is_stored(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, side: str, name: str
) -> None:
    """Otherwise the entry would seem to be deleted after a power cut that undoes its name."""
    act, step, folder = NAMING[name]
    actor = pair.home / {"box": "sync", "sync": "box"}[side]
    if name == "moved file" and side == "box":
        step = "publish"  # the client's renames are copied
    monkeypatch.setattr("pytest_cloudbench.savingbox.side._MOST_PATCHED_PAGES", 0)  # files are replaced
    write(actor / "d/old", "old")
    (actor / "e").mkdir()
    pair.settle()
    steps: list[str] = []
    fsync, write_records = os.fsync, pair.store._file.write

    def note_fsync(fd: int) -> None:
        steps.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    def note_records(records: Iterable[Record]) -> None:
        records = list(records)
        steps.extend("agreement" for about, _, value in records if about in ("agreed", "folder") and value)
        write_records(records)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(pair.store._file, "write", note_records)
    pair.fault = lambda now, path: steps.append(now)
    act(actor)
    pair.settle()
    begin = steps.index(step)
    assert str(pair.home / side / folder) in steps[begin : steps.index("agreement", begin)]


@pytest.mark.parametrize("side", ["box", "sync"])
def test_many_names_are_on_the_disk_before_their_agreements_are_stored(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    actor = pair.home / {"box": "sync", "sync": "box"}[side]
    (actor / "d").mkdir()
    pair.settle()
    steps: list[str] = []
    write_records = pair.store._file.write

    def note_records(records: Iterable[Record]) -> None:
        records = list(records)
        steps.extend("agreement" for about, _, value in records if about in ("agreed", "folder") and value)
        write_records(records)

    monkeypatch.setattr(os, "sync", lambda: steps.append("sync"))
    monkeypatch.setattr(os, "fsync", lambda fd: steps.append("fsync"))
    monkeypatch.setattr(pair.store._file, "write", note_records)

    def fail_in_the_middle(now: str, path: str) -> None:
        steps.append(now)
        if now == "publish" and steps.count(now) == 50:
            raise VanishedError("gone for a moment")

    for number in range(100):
        write(actor / f"d/{number}", f"{number}")
    pair.fault = fail_in_the_middle
    with suppress(VanishedError):
        pair.advance(61)
    write(actor / "d/later", "later")
    pair.settle()
    last_names = [number for number, step in enumerate(steps) if step == "publish"]
    for number in [number for number, step in enumerate(steps) if step == "agreement"]:
        before = [name for name in last_names if name < number]
        assert {"sync", "fsync"}.intersection(steps[before[-1] : number]), "of the last name before it"


def test_what_a_killed_process_has_made_is_on_the_disk_before_it_is_agreed_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(pair.box / "a", "1")
    kill_before_the_push_is_noted(pair)
    pair.end()
    steps: list[str] = []
    monkeypatch.setattr(os, "sync", lambda: steps.append("sync"))
    monkeypatch.setattr(AgreementStore, "flush", lambda store: steps.append("agreement"))
    pair.open()
    assert steps == ["sync", "agreement"]


# --- what had to be removed to make room ---

MAKERS: Mapping[str, Callable[[Path], object]] = {
    "file": lambda path: write(path, "new"),
    "folder": Path.mkdir,
    "link": lambda path: path.symlink_to("there"),
    "other link": lambda path: path.symlink_to("elsewhere"),
}
STEPS = {"file": "copy", "folder": "mkdir", "link": "symlink", "other link": "symlink"}


def replace_entry(path: Path, kind: str) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    MAKERS[kind](path)


@pytest.mark.parametrize("side", ["box", "sync"])
@pytest.mark.parametrize(
    "error", [KilledError(), OSError(5, "Input/output error"), VanishedError("it is gone")], ids=type
)
@pytest.mark.parametrize(
    ("kind", "other"),
    [("link", "file"), ("link", "folder"), ("link", "other link"), ("folder", "file"), ("folder", "link")],
)
def test_an_entry_that_is_made_again_as_it_was_is_not_deleted(
    pair: Pair, side: str, error: BaseException, kind: str, other: str
) -> None:
    """The other side's was removed to make room for what came between, and nobody has deleted it."""
    path = pair.home / side / "a"
    replace_entry(path, kind)
    pair.settle()
    agreed = tree(pair.box)
    replace_entry(path, other)

    def fail(step: str, _: str) -> None:
        if step == STEPS[other]:
            raise error

    pair.fault = fail
    with suppress(KilledError, VanishedError):
        pair.advance(6)
    assert not tree(pair.sync if side == "box" else pair.box), "it was removed"
    pair.fault = lambda step, path: None
    replace_entry(path, kind)
    if isinstance(error, KilledError):
        pair.restart()
    pair.settle()
    assert tree(pair.box) == tree(pair.sync) == agreed
    assert not pair.troubles("conflict")
