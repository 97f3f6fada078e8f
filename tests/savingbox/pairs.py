"""A pair of real folders with the engine between them in virtual time, and functions that change the folders."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from pytest_cloudbench.savingbox.batching.batcher import Batcher, BatchRules
from pytest_cloudbench.savingbox.engine import BoxEngine, MirrorProgress, Pull, Push, Trouble
from pytest_cloudbench.savingbox.listings import FoundAll
from pytest_cloudbench.savingbox.mirror import Mirror
from pytest_cloudbench.savingbox.side import STAGED, FolderSide
from pytest_cloudbench.savingbox.store import AgreementStore
from pytest_cloudbench.savingbox.written import NoWrites, Writes
from pytest_cloudbench.support.watching import FileMark

S = 1_000_000_000
RULES = BatchRules()
_times_ns = itertools.count(1_000_000_000_000_000_000, 1_000)


class KilledError(BaseException):
    """Simulated end of the process."""


def make_marks_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make marks reliable at once, not after some milliseconds, as every change here gives a file a new time."""
    monkeypatch.setattr(FileMark, "is_reliable", lambda mark, taken_ns=None: True)


def stamp(path: Path) -> None:
    """Give a file a unique time, because the file system's clock advances in steps and tests are fast."""
    now_ns = next(_times_ns)
    os.utime(path, ns=(now_ns, now_ns), follow_symlinks=False)


def write(path: Path, data: bytes | str) -> Path:
    """Write a file in place, as most programs do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    stamp(path)
    return path


def save(path: Path, data: bytes | str) -> Path:
    """Replace a file as editors and clients do, by renaming a new file over it."""
    new_path = path.with_name(f"{path.name}.new")
    write(new_path, data)
    return new_path.rename(path)


def tree(root: Path) -> dict[str, tuple[str, int, bytes]]:
    """Return all entries with their kind, permissions and content."""
    entries = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder) / name
            status = path.lstat()
            kind, content = "file", b""
            if stat.S_ISLNK(status.st_mode):
                entries[str(path.relative_to(root))] = ("link", 0, os.fsencode(os.readlink(path)))
                continue
            if stat.S_ISDIR(status.st_mode):
                kind = "folder"
            else:
                content = path.read_bytes()
            entries[str(path.relative_to(root))] = (kind, stat.S_IMODE(status.st_mode), content)
    return entries


def are_equal(home: Path) -> bool:
    """Return whether both folders are equal. They are not if an entry disappears during the comparison."""
    with suppress(FileNotFoundError):
        return tree(home / "box") == tree(home / "sync")
    return False


def texts(root: Path) -> dict[str, str]:
    """Return the files as texts."""
    return {path: content.decode() for path, (kind, _, content) in tree(root).items() if kind == "file"}


class Pair:
    """Two folders in ``home``, and successive processes that keep them equal."""

    def __init__(self, home: Path, rules: BatchRules = RULES, writes: Writes | None = None) -> None:
        self.home, self.rules, self.writes = home, rules, writes or NoWrites("")
        self.box, self.sync = home / "box", home / "sync"
        for folder in (self.box, self.sync):
            folder.mkdir(parents=True, exist_ok=True)
        self.now_ns = 0
        self.events: list[Push | Pull | MirrorProgress | Trouble] = []
        self.fault: Callable[[str, str], None] = lambda step, path: None
        self.open()

    def before(self, step: str, path: str) -> None:
        self.fault(step, path)

    def open(self) -> None:
        """Start a process."""
        self.store = AgreementStore(self.home / "state" / "state.sqlite", "pair")
        sides = [
            FolderSide(str(folder), name, before=self.before)
            for folder, name in ((self.box, "savingbox"), (self.sync, "sync folder"))
        ]
        for side in sides:
            side.open()
            side.clean()
        self.mirror = Mirror(sides[0], sides[1], self.store, self.writes)
        self.engine = BoxEngine(self.mirror, Batcher(self.rules), self.events.append)
        self.mirror.settle_begun()

    def end(self) -> None:
        """End the process without notice."""
        self.store.close()

    def restart(self) -> None:
        self.end()
        self.open()
        self.scan()

    def scan(self) -> None:
        agreed = self.store.entries.listing
        box = self.mirror.box.find_all_entries(lambda folder: None, partial(agreed, side="ours"))
        sync = self.mirror.sync.find_all_entries(lambda folder: None, partial(agreed, side="theirs"))
        self.engine.take_scan(box, sync, self.now_ns)

    def scan_side(self, side: FolderSide) -> FoundAll:
        return side.find_all_entries(lambda folder: None)

    def advance(self, seconds: float) -> None:
        """Scan the folders, and do everything that is due within these seconds."""
        self.scan()
        until_ns = self.now_ns + round(seconds * S)
        while (due_ns := self.engine.due_ns()) is not None and due_ns <= until_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.engine.work(self.now_ns)
        self.now_ns = until_ns

    def settle(self) -> None:
        """Run until both folders no longer change. Fail if they never stop."""
        for _ in range(20):
            before = len(self.events)
            self.advance(61)
            if tree(self.box) == tree(self.sync) and len(self.events) == before and not self.engine.unpushed_files:
                return
        raise AssertionError(f"{tree(self.box)}\n{tree(self.sync)}\n{self.events[-5:]}")

    def settle_sparse(self) -> None:
        """Settle a pair with files too large to be read as a whole."""
        self.advance(61)
        assert not self.engine.unpushed_files
        assert not self.troubles("failed")

    def pushes(self) -> list[Push]:
        return [event for event in self.events if isinstance(event, Push)]

    def troubles(self, kind: str) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Trouble) and event.kind == kind]

    def list_unfinished(self) -> list[str]:
        """List unfinished files that users or clients could see."""
        return [str(path) for path in self.home.rglob(f"{STAGED}*")]

    def equal_texts(self) -> Mapping[str, str]:
        """Return the texts in both folders, which must be equal."""
        assert texts(self.box) == texts(self.sync)
        return texts(self.box)
