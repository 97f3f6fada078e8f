"""Power cuts that undo the newest transactions, which were not synced. Nothing acknowledged is lost.

SQLite itself tells which transactions it syncs. A cut leaves the write-ahead log as it was after the last of these, or
after any later one, while the children keep what they have acknowledged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.model import MIB, CloudError, ErrorKind
from pytest_cloudbench.raid.coding.policies import Equal
from pytest_cloudbench.raid.database import Database
from pytest_cloudbench.raid.driver import RaidDriver
from pytest_cloudbench.raid.maintenance import discard_incomplete_versions, rebalance_array, repair_array
from pytest_cloudbench.raid.metadata import Metadata
from pytest_cloudbench.raid.survey import survey_array
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .harness import ArrayFolder, Child

MakeArray = Callable[..., ArrayFolder]
Objects = Mapping[str, bytes]
pytestmark = pytest.mark.filterwarnings("ignore:.*was older than what the children hold")


@dataclass(frozen=True)
class Moment:
    """All files at one moment, and the sets of objects that a power cut at this moment may leave."""

    packages: Mapping[Path, bytes]
    database: bytes
    log: bytes
    log_sizes: Sequence[int]
    allowed: Sequence[Objects]

    def restore(self, array_folder: ArrayFolder, log_size: int) -> None:
        """Put all files back, and the write-ahead log only up to a size."""
        for child in range(array_folder.k + array_folder.m):
            for path in (array_folder.folder / str(child)).rglob("*"):
                if path.is_file():
                    path.unlink()
        for path, content in self.packages.items():
            path.write_bytes(content)
        array_folder.metadata.write_bytes(self.database)  # the same file: another one would count as a copy
        array_folder.metadata.with_name("array.sqlite-wal").write_bytes(self.log[:log_size])
        array_folder.metadata.with_name("array.sqlite-shm").unlink(missing_ok=True)


class Recorder:
    """A recorder of a moment after each change of a child, and of the log's sizes that a power cut may leave."""

    def __init__(self, array_folder: ArrayFolder) -> None:
        self._array_folder, self._lock = array_folder, threading.RLock()
        self.moments, self.allowed = list[Moment](), list[Objects]()
        self.begin_log()

    def begin_log(self) -> None:
        """Note that the log is empty, because all earlier transactions are synced into the database itself."""
        self._log_sizes = [0]

    def record_transaction(self, original: Any) -> Any:
        @contextmanager
        def transaction(database: Database, **options: Any) -> Iterator[Any]:
            with database._lock, self._lock:
                is_outer = not database._db.in_transaction
                with original(database, **options) as db:
                    is_synced = db.execute("PRAGMA synchronous").fetchone() == (2,)
                    yield db
                if is_outer:
                    size = self._array_folder.metadata.with_name("array.sqlite-wal").stat().st_size
                    self._log_sizes = [size] if is_synced else [*self._log_sizes, size]

        return transaction

    def record_change(self, original: Any) -> Any:
        @wraps(original)
        def change(*arguments: Any) -> Any:
            with self._lock:
                result = original(*arguments)
                self.record_moment()
                return result

        return change

    def record_moment(self) -> None:
        """Record the present state of the disk."""
        folder, metadata = self._array_folder.folder, self._array_folder.metadata
        children = (folder / str(number) for number in range(self._array_folder.k + self._array_folder.m))
        packages = {path: path.read_bytes() for child in children for path in child.rglob("*") if path.is_file()}
        log = metadata.with_name("array.sqlite-wal").read_bytes()
        moment = Moment(packages, metadata.read_bytes(), log, list(self._log_sizes), list(self.allowed))
        self.moments.append(moment)


SMALL = ("put /a", "put /b", "put /a", "put /a", "delete /b", "put /c", "put /b", "delete /c", "put /a")
LARGE = ("put-2 /a", "put /b", "put-2 /a", "delete /b", "put-3 /b")
"""Objects of two or three segments. Only the packages of the last segment name their object."""


def write_and_delete(
    driver: RaidDriver, recorder: Recorder, operations: Sequence[str], objects: dict[str, bytes]
) -> dict[str, bytes]:
    """Do all operations, and let background work end after each. Return the objects that remain."""
    for number, operation in enumerate(operations):
        verb, path = operation.split()
        verb, _, segments = verb.partition("-")
        before, content = objects, f"{operation} {number}".encode() + bytes(MIB * (int(segments or 1) - 1))
        objects = {name: content for name, content in before.items() if name != path}
        if verb == "put":
            objects[path] = content
        recorder.allowed = [before, objects]
        if verb == "put":
            driver.put(path, Literal(content))
        else:
            driver.delete(path)
        recorder.allowed = [objects]
        assert driver.settle(HANG_S)
    return objects


def wait_for_other_children(original: Any, children: int) -> Any:
    """Return a ``note_deleted`` that waits until all children have deleted packages, the worst moment for a cut."""
    barrier = threading.Barrier(children, timeout=HANG_S)

    @wraps(original)
    def note_deleted(*arguments: Any) -> Any:
        barrier.wait()
        return original(*arguments)

    return note_deleted


def record_moments(array_folder: ArrayFolder, operations: Sequence[str]) -> Sequence[Moment]:
    """Return the moments of writes, deletions and moves."""
    recorder, objects = Recorder(array_folder), dict[str, bytes]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "transaction", recorder.record_transaction(Database.transaction))
        patch.setattr(Metadata, "note_deleted", wait_for_other_children(Metadata.note_deleted, 3))
        for verb in ("put", "delete"):
            patch.setattr(Child, verb, recorder.record_change(getattr(Child, verb)))
        with array_folder.opened() as driver:
            objects = write_and_delete(driver, recorder, operations, objects)
        recorder.begin_log()
        with array_folder.opened(placement=Equal(1, 3)) as driver:
            driver.stat("/a")
            assert rebalance_array(driver.array).moved == len(objects)
            assert driver.settle(HANG_S)
            write_and_delete(driver, recorder, operations, objects)
    return recorder.moments


def contents_of(driver: RaidDriver) -> Objects:
    return {entry.path: b"".join(driver.get(entry.path)) for entry in driver.list("/")}


@pytest.mark.slow
@pytest.mark.parametrize("operations", [SMALL, LARGE], ids=["small", "large"])
def test_a_power_cut_at_any_moment_loses_nothing_that_was_acknowledged_and_leaves_nothing(
    make_array: MakeArray, operations: Sequence[str]
) -> None:
    """The packages of an incomplete version are removed when incomplete versions are discarded."""
    array_folder = make_array()
    moments = record_moments(array_folder, operations)
    undoing_cuts = 0
    for number, moment in enumerate(moments):
        for log_size in dict.fromkeys(moment.log_sizes):
            moment.restore(array_folder, log_size)
            with array_folder.opened() as driver:
                objects = contents_of(driver)
                assert objects in moment.allowed, (number, log_size)
                assert driver.settle(HANG_S)
                assert contents_of(driver) == objects, (number, log_size)
                discard_incomplete_versions(driver.array)
                repair_array(driver.array)
                assert contents_of(driver) == objects
                survey = survey_array(driver.array, deep=True)
                assert not survey.unreadable
                assert [child.strange for child in survey.children] == [0, 0, 0], (number, log_size)
            undoing_cuts += log_size < len(moment.log)
    assert undoing_cuts > len(moments) / 3, "few cuts undid anything"


def overwrite_with_failure(array_folder: ArrayFolder, fails: int) -> Sequence[Moment]:
    """Overwrite an object while one child fails, and return two moments after that.

    At the first one, a power cut has undone all of the write's transactions, at the second one all but the first. No
    child has deleted anything yet.
    """
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"old"))
        assert driver.settle(HANG_S)
    recorder = Recorder(array_folder)
    with array_folder.opened() as driver:
        assert contents_of(driver) == {"/a": b"old"}
        recorder.record_moment()
        for child in array_folder.children:
            child.frozen = {"delete"}
            child.after_put = recorder.record_moment
        array_folder.children[fails].fails = {"put": ErrorKind.SERVER}
        driver.put("/a", Literal(b"acknowledged"))
        recorder.record_moment()
        undone, begun, *_, acknowledged = recorder.moments
    return [replace(moment, packages=acknowledged.packages) for moment in (undone, begun)]


@pytest.mark.parametrize("number", [0, 1], ids=["undone", "begun"])
@pytest.mark.parametrize("fails", [0, 2])
def test_parts_missing_on_a_silent_child_after_an_undone_write_are_rebuilt(
    make_array: MakeArray, number: int, fails: int
) -> None:
    array_folder = make_array(2, 1, durability="k+0")
    moment = overwrite_with_failure(array_folder, fails)[number]
    moment.restore(array_folder, len(moment.log))
    with array_folder.opened() as driver:
        array_folder.children[fails].fails = {"list": ErrorKind.NETWORK}
        assert contents_of(driver) == {"/a": b"acknowledged"}
        array_folder.children[fails].fails.clear()
        assert driver.settle(HANG_S)
        assert survey_array(driver.array, deep=True).is_healthy
        assert [len(child.packages) for child in array_folder.children] == [1, 1, 1]


@pytest.mark.parametrize("number", [0, 1], ids=["undone", "begun"])
@pytest.mark.parametrize("silent", [(0, 1), (1, 2)])
def test_an_old_object_is_not_read_while_silent_children_may_have_an_acknowledged_one(
    make_array: MakeArray, number: int, silent: tuple[int, ...]
) -> None:
    """Three of the four children have the new object. Any two are enough to read the old one, but not the new one."""
    array_folder = make_array(2, 2, durability="k+1")
    moment = overwrite_with_failure(array_folder, 3)[number]
    moment.restore(array_folder, len(moment.log))
    with array_folder.opened() as driver:
        for child in silent:
            array_folder.children[child].fails = dict.fromkeys(("list", "get"), ErrorKind.NETWORK)
        with pytest.raises(CloudError, match="may be newer on children that do not answer"):
            contents_of(driver)
        for child in silent[1:]:
            array_folder.children[child].fails.clear()
        assert contents_of(driver) == {"/a": b"acknowledged"}
