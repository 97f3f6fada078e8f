"""Traced writes: pushed copies equal the files, in the same histories and with programs that never pause."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from hypothesis.stateful import rule

from pytest_cloudbench.savingbox.batching.batcher import BatchRules
from pytest_cloudbench.savingbox.box import SavingBox
from pytest_cloudbench.savingbox.openfiles import BusyError
from pytest_cloudbench.savingbox.written import NoWrites, TracedWrites
from pytest_cloudbench.support.clock import wait_for
from tests.limits import HANG_S
from tests.savingbox import test_machine as machine
from tests.savingbox.loop import traced_folder
from tests.savingbox.pairs import Pair, are_equal, stamp, write

S = 1_000_000_000

PUNCH = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE of linux/falloc.h


@pytest.fixture(scope="module", params=["ext4", "xfs"])
def mount(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with traced_folder(tmp_path_factory.mktemp("loop"), request.param) as folder:
        yield folder


class Counting(TracedWrites):
    """Traced writes that count how often the written ranges were known."""

    known_count = 0

    def take_writes(self, fd: int):  # type: ignore[no-untyped-def]  # as the original
        result = super().take_writes(fd)
        Counting.known_count += result.ranges is not None
        return result


class TracedFolders(machine.Folders):
    def __init__(self) -> None:
        super().__init__()
        self.writes = Counting(self.home, buffer_kib=256)
        self.use(self.writes)

    def use(self, writes: TracedWrites | NoWrites) -> None:
        self.pair.writes = self.pair.mirror.writes = writes

    @rule(step=machine.KILL_STEPS, seconds=machine.LONG_PAUSES_S)
    def kill(self, step: int, seconds: float) -> None:
        """Kill the process, whose traced writes are unknown to the next one."""
        self.pair.writes = NoWrites("")
        super().kill(step, seconds)
        self.use(self.writes)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.writes.close()


def examine(mount: Path, monkeypatch: pytest.MonkeyPatch, examples: int, steps: int) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(mount))
    monkeypatch.setattr(machine, "Folders", TracedFolders)
    machine.examine(monkeypatch, examples, steps)


def test_a_few_histories_lose_nothing(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examine(mount, monkeypatch, 12, 15)


@pytest.mark.slow
def test_many_histories_lose_nothing(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examine(mount, monkeypatch, 300, 40)


@pytest.fixture
def pair(mount: Path) -> Iterator[Pair]:
    """A pair whose writes are traced, with three files that were pushed and patched twice."""
    with closing(TracedWrites(mount)) as writes:
        new_pair = Pair(Path(tempfile.mkdtemp(dir=mount)), writes=writes)
        for name in ("log", "log.1", "log.2"):
            write(new_pair.box / name, name * 20_000)
        new_pair.settle()
        for _ in range(2):
            for name in ("log", "log.1", "log.2"):
                with (new_pair.box / name).open("r+b") as file:
                    file.write(b"seen")
                stamp(new_pair.box / name)
            new_pair.settle()
        yield new_pair
        new_pair.end()


def test_logs_that_are_rotated_have_their_own_content(pair: Pair) -> None:
    """The written bytes of a file are counted from the time when it was equal to the copy under its former name."""
    for name in ("log.2", "log.1", "log"):
        (pair.box / name).rename(pair.box / f"log.{int(name[4:] or 0) + 1}")
    write(pair.box / "log", "new")
    pair.settle()
    assert pair.equal_texts()["log.1"].startswith("seen")


@pytest.mark.parametrize("is_pushed_between", [False, True])
def test_a_file_that_comes_back_to_its_name_has_its_own_content(pair: Pair, is_pushed_between: bool) -> None:
    (pair.box / "log").rename(pair.box / "beside")
    write(pair.box / "log", "x" * 60_000)
    if is_pushed_between:
        pair.settle()
    with (pair.box / "beside").open("r+b") as file:
        file.write(b"more")
    stamp(pair.box / "beside")
    if is_pushed_between:
        pair.settle()
    (pair.box / "beside").rename(pair.box / "log")
    pair.settle()
    assert pair.equal_texts()["log"].startswith("moreoglog")


def test_a_file_that_was_pushed_under_another_name_meanwhile_has_its_own_content(pair: Pair) -> None:
    """The agreement about the old name is older than the last push, so later written bytes do not suffice for it."""

    def is_in_use(step: str, path: str) -> None:
        if path == "log":
            raise BusyError("in use")

    (pair.box / "log").rename(pair.box / "beside")
    write(pair.box / "log", "another one" * 10_000)
    with (pair.box / "beside").open("r+b") as file:
        file.write(b"pushed beside")
    pair.fault = is_in_use
    pair.advance(31)
    assert (pair.sync / "beside").read_text().startswith("pushed beside")
    (pair.box / "beside").rename(pair.box / "log")
    pair.fault = lambda step, path: None
    pair.settle()
    assert pair.equal_texts()["log"].startswith("pushed beside")


def punch(fd: int, offset: int, size_bytes: int) -> None:
    if ctypes.CDLL(None).fallocate(fd, PUNCH, ctypes.c_long(offset), ctypes.c_long(size_bytes)):
        raise OSError(ctypes.get_errno(), "fallocate")


def test_folders_are_equal_after_continuous_writes(mount: Path) -> None:
    """Files are written, appended to, cut, punched and mapped during pushes. Both folders are equal in the end."""
    home = Path(tempfile.mkdtemp(dir=mount))
    for name in ("box", "sync"):
        (home / name).mkdir()
    rules = BatchRules(limit_bytes=20_000, quiet_ns=S // 20, at_most_ns=S // 5)
    writes = Counting(home / "box")
    Counting.known_count = 0
    box = SavingBox(home / "box", home / "sync", rules, state=home / "state", writes=writes)
    box.start()

    def program(number: int) -> None:
        random, path = Random(number), home / "box" / f"file{number}"
        with path.open("w+b", buffering=0) as file:
            for _ in range(400):
                choice, offset = random.random(), random.randrange(200_000)
                if number and choice < 0.02:
                    file.truncate(offset)
                elif number and choice < 0.04 and (size := os.fstat(file.fileno()).st_size):
                    with mmap.mmap(file.fileno(), 0) as mapping:
                        mapping[random.randrange(size)] = random.randrange(256)
                elif number and choice < 0.06:
                    punch(file.fileno(), offset, 9_000)
                elif choice < 0.5:
                    os.pwrite(file.fileno(), random.randbytes(random.randrange(1, 5_000)), offset)
                else:
                    file.seek(0, os.SEEK_END)
                    file.write(random.randbytes(random.randrange(1, 200)))

    threads = [threading.Thread(target=program, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(3):  # the second time at the latest, no doubt is left
        assert wait_for(lambda: are_equal(home), HANG_S, poll_s=0.05), box.status()
        with (home / "box/file0").open("ab") as file:
            file.write(b"more")
    assert wait_for(lambda: are_equal(home), HANG_S, poll_s=0.05), box.status()
    box.stop()
    assert Counting.known_count
    assert box.status().mechanism == "tracefs"
