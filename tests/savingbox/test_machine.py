"""Random histories of a user, a client and a killed process, which end with equal folders and lose nothing.

Files are pages, each filled with a word that occurs once. A word that was not overwritten or deleted in either folder
must be there in the end. Where only one side has acted since both folders were equal, the other one follows: nothing
comes back, and nothing conflicts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pytest_cloudbench.savingbox.batching.batcher import BatchRules
from pytest_cloudbench.savingbox.side import VanishedError
from tests.savingbox.pairs import Pair, S, make_marks_certain, stamp, tree

PAGE = 4096
NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "f/a"])
ODD_NAMES = st.sampled_from(["two\nlines", "d/\udcff\udcfe", " ", "d/-rf"])
SIDES = st.sampled_from(["box", "sync"])
KILL_STEPS = st.integers(1, 40)
LONG_PAUSES_S = st.sampled_from([5.0, 31.0])
RULES = BatchRules(limit_bytes=200, quiet_ns=5 * S, at_most_ns=30 * S)


def words(data: bytes) -> set[bytes]:
    return {data[at : at + PAGE].strip(b"\0")[:8] for at in range(0, len(data), PAGE)} - {b""}


def may_write(path: Path) -> bool:
    """Return whether a program of this user can write into a file. Only root can against the file's mode."""
    return path.is_file() and not path.is_symlink() and os.access(path, os.W_OK)


class Folders(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="savingbox-"))
        self.pair = Pair(self.home, RULES)
        self.count = 0
        self.untouched: set[bytes] = set()

    # --- actions of users and clients ---

    def page(self) -> bytes:
        self.count += 1
        word = b"%08d" % self.count
        self.untouched.add(word)
        return word.ljust(PAGE, b".")

    def root(self, side: str) -> Path:
        """Return the folder in which this side acts now."""
        return self.home / side

    def path(self, side: str, name: str) -> Path:
        root = self.root(side)  # called once, as the actor may change with each folder that is made
        path = root / name
        for parent in reversed(path.relative_to(root).parents[:-1]):
            folder = root / parent
            if folder.is_symlink() or folder.is_file():
                self.remove(folder)
            folder.mkdir(exist_ok=True)
        return path

    def touch(self, path: Path) -> None:
        if path.is_symlink():
            return
        if path.is_file():
            self.untouched -= words(path.read_bytes())
        elif path.is_dir():
            for inner in path.iterdir():
                self.touch(inner)

    def remove(self, path: Path) -> None:
        self.touch(path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    @rule(side=SIDES, name=NAMES, pages=st.integers(0, 3), by_rename=st.booleans())
    def write(self, side: str, name: str, pages: int, by_rename: bool) -> None:
        path = self.path(side, name)
        if path.is_symlink() or path.is_dir():
            self.remove(path)
        if path.exists() and not by_rename and not may_write(path):
            return
        self.touch(path)
        target = path.with_name("new") if by_rename else path
        target.write_bytes(b"".join(self.page() for _ in range(pages)))
        stamp(target)
        target.rename(path)

    @rule(side=SIDES, name=NAMES, at=st.integers(0, 3))
    def patch(self, side: str, name: str, at: int) -> None:
        path = self.root(side) / name
        if may_write(path):
            with path.open("r+b") as file:
                file.seek(at * PAGE)
                self.untouched -= words(file.read(PAGE))
                file.seek(at * PAGE)
                file.write(self.page())
            stamp(path)

    @rule(side=SIDES, name=NAMES)
    def append(self, side: str, name: str) -> None:
        path = self.root(side) / name
        if may_write(path):
            with path.open("ab") as file:
                file.write(self.page())
            stamp(path)

    @rule(side=SIDES, name=NAMES)
    def cut(self, side: str, name: str) -> None:
        path = self.root(side) / name
        if may_write(path):
            self.untouched -= words(path.read_bytes()[PAGE:])
            os.truncate(path, PAGE)
            stamp(path)

    @rule(side=SIDES, old=st.sampled_from(["a", "d", "d/e", "d/a", "f"]), new=st.sampled_from(["b", "f", "g", "d/b"]))
    def rename(self, side: str, old: str, new: str) -> None:
        source = self.root(side) / old
        if os.path.lexists(source) and not (self.root(side) / new).is_relative_to(source):
            target = self.path(side, new)
            if os.path.lexists(source) and not source.is_relative_to(target):
                self.remove(target)
                source.rename(target)

    @rule(side=SIDES, name=st.sampled_from(["a", "b", "d", "d/a", "d/e", "f"]))
    def delete(self, side: str, name: str) -> None:
        path = self.root(side) / name
        if os.path.lexists(path):
            self.remove(path)

    @rule(side=SIDES, name=NAMES)
    def link(self, side: str, name: str) -> None:
        path = self.path(side, name)
        self.remove(path)
        path.symlink_to("somewhere")

    @rule(side=SIDES, name=ODD_NAMES)
    def write_odd_name(self, side: str, name: str) -> None:
        self.write(side, name, 1, by_rename=False)

    @rule(side=SIDES, old=NAMES, new=NAMES)
    def link_hard(self, side: str, old: str, new: str) -> None:
        source = self.root(side) / old
        if source.is_file() and not source.is_symlink():
            target = self.path(side, new)
            if source.is_file() and not (target.exists() and target.samefile(source)):
                self.remove(target)
                target.hardlink_to(source)
                stamp(target)

    @rule(side=SIDES, name=NAMES, pages=st.integers(1, 300))
    def leave_hole(self, side: str, name: str, pages: int) -> None:
        path = self.root(side) / name
        if may_write(path):
            os.truncate(path, path.stat().st_size + pages * PAGE)
            stamp(path)

    @rule(side=SIDES, name=st.sampled_from(["d", "d/e", "f"]), mode=st.sampled_from([0o700, 0o755, 0o711]))
    def chmod_folder(self, side: str, name: str, mode: int) -> None:
        path = self.root(side) / name
        if path.is_dir() and not path.is_symlink():
            path.chmod(mode)

    @rule(side=SIDES, name=NAMES, mode=st.sampled_from([0o600, 0o644, 0o400]))
    def chmod(self, side: str, name: str, mode: int) -> None:
        path = self.root(side) / name
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)

    # --- time, faults and kills ---

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.pair.advance(seconds)

    @rule(step=KILL_STEPS, seconds=LONG_PAUSES_S)
    def kill(self, step: int, seconds: float) -> None:
        """Work in a separate process that ends at a step as by SIGKILL, with nothing cleaned up and nothing written."""
        self.pair.end()
        child = os.fork()
        if not child:
            steps_left = step

            def fault(_: str, __: str) -> None:
                nonlocal steps_left
                steps_left -= 1
                if not steps_left:
                    os._exit(0)

            try:
                self.pair.fault = fault
                self.pair.open()
                self.pair.advance(seconds)
            except BaseException:  # such as a broken promise: the parent's own steps would show it
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "the process failed before it was killed"
        self.pair.open()
        self.pair.scan()

    @rule(step=st.integers(1, 12))
    def disk_is_full(self, step: int) -> None:
        """Let one step fail as on a full disk. The steps after it succeed."""
        steps_left = step

        def fault(_: str, __: str) -> None:
            nonlocal steps_left
            steps_left -= 1
            if not steps_left:
                raise OSError(28, "No space left on device")

        self.pair.fault = fault
        self.pair.advance(31)
        self.pair.fault = lambda step, path: None

    @rule(step=st.integers(1, 12), side=SIDES)
    def folder_vanishes(self, step: int, side: str) -> None:
        """Let a folder vanish with its disk before a step. Later it is back unchanged."""
        steps_left, folder, gone = step, self.home / side, self.home / "gone"

        def fault(_: str, __: str) -> None:
            nonlocal steps_left
            steps_left -= 1
            if not steps_left:
                folder.rename(gone)

        self.pair.fault = fault
        with suppress(VanishedError, OSError):  # as the running box, which waits
            self.pair.advance(31)
        self.pair.fault = lambda step, path: None
        if gone.exists():
            with suppress(VanishedError):
                self.pair.advance(31)
            gone.rename(folder)
            self.pair.mirror.settle_begun()  # as the running box, which looks for the folder every second

    @rule(step=st.integers(1, 12), side=SIDES, seconds=LONG_PAUSES_S)
    def somebody_else_is_at_work(self, step: int, side: str, seconds: float) -> None:
        """Let a user or a client write the very file that a step is about to change."""
        steps_left = step

        def fault(_: str, path: str) -> None:
            nonlocal steps_left
            steps_left -= 1
            if not steps_left and not (self.home / side / path).is_dir():
                self.write(side, path, 2, side == "sync")

        self.pair.fault = fault
        self.pair.advance(seconds)
        self.pair.fault = lambda step, path: None

    @precondition(lambda self: self.count)
    @rule()
    def restart(self) -> None:
        self.pair.restart()

    # --- invariants ---

    @invariant()
    def nothing_waits_longer_than_the_fail_safe(self) -> None:
        assert all(push.waited_ns <= RULES.at_most_ns + 31 * S for push in self.pair.pushes())
        if not self.pair.troubles("failed"):
            assert all(push.waited_ns <= RULES.at_most_ns for push in self.pair.pushes())

    def teardown(self) -> None:
        try:
            self.pair.settle()
            self.pair.restart()
            before = tree(self.pair.box)
            self.pair.settle()
            assert tree(self.pair.box) == before, "a restart changed something"
            present_words = set().union(*(words(data) for _, _, data in tree(self.pair.box).values()))
            assert present_words >= self.untouched, f"lost: {self.untouched - present_words}"
            assert not self.pair.list_unfinished()
        finally:
            self.pair.end()
            shutil.rmtree(self.home, ignore_errors=True)


class Turns(Folders):
    """Histories in which only one side acts until both folders are equal again."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = ""
        self.has_acted = False
        self.last_entries: dict[str, tuple[str, int, bytes]] = {}

    def root(self, side: str) -> Path:
        if not self.actor or self.are_equal():
            self.actor = side
        self.has_acted = True
        return self.home / self.actor

    def are_equal(self) -> bool:
        # A file with the same content and a new time has been written to.
        return tree(self.pair.box) == tree(self.pair.sync) and times(self.pair.box) == times(self.pair.sync)

    @invariant()
    def who_acts_alone_keeps_what_was_made(self) -> None:
        if self.actor:
            entries = tree(self.home / self.actor)
            assert self.has_acted or entries == self.last_entries, (
                f"{self.actor} had {self.last_entries}, and has {entries}"
            )
            self.last_entries, self.has_acted = entries, False

    def teardown(self) -> None:
        super().teardown()
        assert not self.pair.troubles("conflict")


def times(root: Path) -> dict[Path, int]:
    return {path.relative_to(root): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


def examine(monkeypatch: pytest.MonkeyPatch, examples: int, steps: int, machine: type[Folders] = Folders) -> None:
    make_marks_certain(monkeypatch)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_a_few_histories_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    examine(monkeypatch, 25, 15)


@pytest.mark.slow
def test_a_few_turns_bring_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    examine(monkeypatch, 25, 15, Turns)


@pytest.mark.slow
def test_many_turns_bring_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    examine(monkeypatch, 600, 40, Turns)


@pytest.mark.slow
def test_many_histories_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    examine(monkeypatch, 600, 40)
