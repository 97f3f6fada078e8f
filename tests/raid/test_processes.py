"""Several processes that share an array. Each reads what others wrote, and finishes what others left unfinished."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from pytest_cloudbench.model import MIB, CloudError, ErrorKind, UsageError
from pytest_cloudbench.raid.costs import Costs
from pytest_cloudbench.raid.database import Database
from pytest_cloudbench.raid.driver import RaidDriver, prepare_array
from pytest_cloudbench.raid.metadata import Metadata
from pytest_cloudbench.raid.upkeep import delete_leftovers
from pytest_cloudbench.raid.writing import write_object
from pytest_cloudbench.results.owner import owner_text
from pytest_cloudbench.support.clock import wait_for
from pytest_cloudbench.workload.payload import RandomContent
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .harness import ArrayFolder
from .test_failing_children import fail_after_storing

MakeArray = Callable[..., ArrayFolder]


def read_content(driver: RaidDriver, path: str) -> bytes:
    return b"".join(driver.get(path))


def open_new_files(together: Barrier, folder: Path, count: int) -> None:
    for number in range(count):
        together.wait(HANG_S)
        try:
            Database(folder / f"{number}.sqlite", "rebuild").close()
        except UsageError:
            together.abort()  # the others would wait
            raise


def test_processes_that_make_the_same_file_at_once_wait_for_each_other(tmp_path: Path) -> None:
    context = get_context("spawn")
    together = context.Barrier(6)
    processes = [context.Process(target=open_new_files, args=(together, tmp_path, 100)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(HANG_S)
    assert [process.exitcode for process in processes] == [0] * 6
    assert len(list(tmp_path.glob("*.sqlite"))) == 100


def test_two_drivers_of_one_array_see_each_others_objects(make_array: MakeArray) -> None:
    array_folder = make_array()
    with ExitStack() as stack:
        one, other = (stack.enter_context(array_folder.opened()) for _ in range(2))
        one.put("/a", Literal(b"first"))
        assert read_content(other, "/a") == b"first"
        other.put("/a", Literal(b"second"))
        assert read_content(one, "/a") == b"second"
        one.delete("/a")
        assert list(other.list("/")) == []


def test_concurrent_writes_leave_one_version_and_nothing_else(make_array: MakeArray) -> None:
    array_folder = make_array()
    contents = [RandomContent(f"writer {number}", MIB + 1 + number) for number in range(8)]  # two segments each
    with ExitStack() as stack:
        drivers = [stack.enter_context(array_folder.opened()) for _ in range(2)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: drivers[number % 2].put("/a", contents[number]), range(8)))
        content = read_content(drivers[0], "/a")
        winner = len(content) - MIB - 1
        assert content == contents[winner].read(0, len(content))
        assert drivers[1].stat("/a").size_bytes == len(content)
        assert all(driver.settle(HANG_S) for driver in drivers)
        assert [len(child.packages) for child in array_folder.children] == [2, 2, 2]


def test_a_process_may_open_a_new_array_while_another_one_writes(make_array: MakeArray) -> None:
    array_folder = make_array()
    with ExitStack() as stack:
        one, other = (stack.enter_context(array_folder.opened()) for _ in range(2))
        child = array_folder.children[0]
        list_folder = child.list

        def write_first(folder: str) -> object:
            one.put("/a", Literal(b"content"))
            return list_folder(folder)

        child.list = write_first
        assert read_content(other, "/a") == b"content"


def test_a_package_that_arrives_during_another_process_s_deletion_stays_noted(make_array: MakeArray) -> None:
    """The other process looks before the package arrives, and must not remove the note of a package that it missed."""
    array_folder = make_array()
    with ExitStack() as stack:
        one = prepare_array(stack.enter_context(array_folder.opened()).array, "prepare", "/")
        first_children = array_folder.children
        other = stack.enter_context(array_folder.opened()).array
        first_children[0].fails, first_children[2].frozen = {"put": ErrorKind.SERVER}, {"put"}
        first_children[0].fails_when = first_children[2].has_frozen  # otherwise it might never be written to
        with pytest.raises(CloudError):
            write_object(one, "/a", Literal(b"content"), Costs())
        assert wait_for(lambda: one.pending.count == 1, HANG_S, poll_s=0.01), "the second child has its own"

        def fail_after_arrival(path: str) -> None:
            first_children[2].thawed.set()
            assert wait_for(lambda: one.pending.count == 0, HANG_S, poll_s=0.01)
            raise CloudError(ErrorKind.NOT_FOUND, "delete", path, detail="as it was when it was looked for")

        array_folder.children[2].delete = fail_after_arrival
        delete_leftovers(other, other.metadata.garbage(), Costs())
        assert [package.child for package in other.metadata.garbage()] == [2]
        delete_leftovers(one, other.metadata.garbage(), Costs())
        assert [len(child.packages) for child in first_children] == [0, 0, 0]


def test_a_package_stored_by_a_failed_put_is_deleted_after_another_process_found_nothing(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1, durability="k+0")
    with ExitStack() as stack:
        one = stack.enter_context(array_folder.opened())
        first_children = array_folder.children
        other = stack.enter_context(array_folder.opened()).array  # without upkeep, which would make the package, too
        first_children[2].frozen, first_children[2].after_put = {"put"}, fail_after_storing
        one.put("/a", Literal(b"content"))
        row = other.metadata.find("/a")
        assert row is not None
        delete_leftovers(other, other.metadata.remove_object(row, 3), Costs())
        assert other.metadata.garbage() == [], "it is not there yet"
        first_children[2].thawed.set()
        assert one.settle(HANG_S)
        assert [len(child.packages) for child in first_children] == [0, 0, 0]


def test_a_reader_gets_one_version_or_an_error_during_overwrites(make_array: MakeArray) -> None:
    array_folder = make_array()
    versions = [RandomContent(f"version {number}", 2 * MIB + 7) for number in range(6)]
    complete_contents = {version.read(0, 2 * MIB + 7) for version in versions}
    with array_folder.opened() as driver:
        driver.put("/a", versions[0])
        with ThreadPoolExecutor(4) as pool:
            writing = pool.submit(lambda: [driver.put("/a", version) for version in versions[1:]])
            reads = 0
            while not writing.done() or not reads:
                try:
                    content = read_content(driver, "/a")
                except CloudError:
                    continue  # it was replaced after some of it had been read
                assert content in complete_contents
                reads += 1
            writing.result()
        assert read_content(driver, "/a") == versions[-1].read(0, 2 * MIB + 7)


# --- the layout of the metadata ---

TO_LAYOUT_2 = """
ALTER TABLE objects DROP COLUMN checksum;
DELETE FROM settings WHERE name = 'checksum';
UPDATE settings SET value = 2 WHERE name = 'layout';
"""
TO_LAYOUT_1 = f"""
{TO_LAYOUT_2}
ALTER TABLE garbage DROP COLUMN note;
UPDATE settings SET value = 1 WHERE name = 'layout';
"""


@pytest.mark.parametrize("script", [TO_LAYOUT_1, TO_LAYOUT_2], ids=["1", "2"])
def test_metadata_of_an_earlier_layout_is_converted_when_opened(make_array: MakeArray, script: str) -> None:
    """Objects stay readable, noted garbage is still deleted, and the file has the current layout from then on."""
    array_folder = make_array()
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"content"))
        driver.put("/b", Literal(b"content"))
    metadata = Metadata(array_folder.metadata, owner_text())
    row = metadata.find("/b")
    assert row is not None
    assert len(metadata.remove_object(row, 3)) == 3
    current_layout = metadata.setting("layout")
    metadata.close()
    with closing(sqlite3.connect(array_folder.metadata)) as db:
        db.executescript(script)
    with array_folder.opened() as driver:
        assert driver.array.metadata.setting("layout") == current_layout
        assert read_content(driver, "/a") == b"content"
        assert driver.settle(HANG_S)
        assert [len(child.packages) for child in array_folder.children] == [1, 1, 1]


def test_metadata_of_a_newer_layout_is_refused_and_kept(make_array: MakeArray) -> None:
    array_folder = make_array()
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"content"))
    with closing(sqlite3.connect(array_folder.metadata)) as db, db:
        db.execute("UPDATE settings SET value = 99 WHERE name = 'layout'")
    with pytest.raises(UsageError, match=r"has layout 99, and this version .* update it, or rebuild the file with"):
        Metadata(array_folder.metadata, owner_text())
    with closing(sqlite3.connect(array_folder.metadata)) as db:
        assert db.execute("SELECT count(*) FROM objects").fetchone() == (1,)
        assert db.execute("SELECT value FROM settings WHERE name = 'layout'").fetchone() == (99,)
