"""Several processes share an array: each reads what others wrote, and finishes what others left unfinished."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from pytest_cloudbench.model import MIB, CloudError, ErrorKind
from pytest_cloudbench.raid.costs import Costs
from pytest_cloudbench.raid.driver import RaidDriver, prepare_array
from pytest_cloudbench.raid.metadata import Metadata
from pytest_cloudbench.raid.upkeep import delete_leftovers
from pytest_cloudbench.raid.writing import write_object
from pytest_cloudbench.results.owner import owner_text
from pytest_cloudbench.support.clock import wait_for
from pytest_cloudbench.workload.payload import RandomContent
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .harness import Lab
from .test_truths import stored_but_failed

Make = Callable[..., Lab]


def content_of(driver: RaidDriver, path: str) -> bytes:
    return b"".join(driver.get(path))


def test_two_drivers_of_one_array_see_each_others_objects(lab: Make) -> None:
    made = lab()
    with ExitStack() as stack:
        one, other = (stack.enter_context(made.opened()) for _ in range(2))
        one.put("/a", Literal(b"first"))
        assert content_of(other, "/a") == b"first"
        other.put("/a", Literal(b"second"))
        assert content_of(one, "/a") == b"second"
        one.delete("/a")
        assert list(other.list("/")) == []


def test_of_writes_at_once_one_is_read_and_the_others_leave_nothing(lab: Make) -> None:
    made = lab()
    contents = [RandomContent(f"writer {number}", MIB + number) for number in range(8)]
    with ExitStack() as stack:
        drivers = [stack.enter_context(made.opened()) for _ in range(2)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: drivers[number % 2].put("/a", contents[number]), range(8)))
        found = content_of(drivers[0], "/a")
        winner = len(found) - MIB
        assert found == contents[winner].read(0, len(found))
        assert drivers[1].stat("/a").size_bytes == len(found)
        assert all(driver.settle(HANG_S) for driver in drivers)
        assert [len(child.packages) for child in made.children] == [2, 2, 2]


def test_what_arrives_while_another_process_deletes_it_stays_noted(lab: Make) -> None:
    """The other process looks before the package arrives; it must not drop the note of what it has not seen."""
    made = lab()
    with ExitStack() as stack:
        one = prepare_array(stack.enter_context(made.opened()).array, "prepare", "/")
        mine = made.children
        other = stack.enter_context(made.opened()).array
        mine[0].fails, mine[2].frozen = {"put": ErrorKind.SERVER}, {"put"}
        with pytest.raises(CloudError):
            write_object(one, "/a", Literal(b"content"), Costs())
        assert wait_for(lambda: one.pending.count == 1, HANG_S, poll_s=0.01), "the second child has its own"

        def has_arrived(path: str) -> None:
            mine[2].thawed.set()
            assert wait_for(lambda: one.pending.count == 0, HANG_S, poll_s=0.01)
            raise CloudError(ErrorKind.NOT_FOUND, "delete", path, detail="as it was when it was looked for")

        made.children[2].delete = has_arrived
        delete_leftovers(other, other.metadata.garbage(), Costs())
        assert [each.child for each in other.metadata.garbage()] == [2]
        delete_leftovers(one, other.metadata.garbage(), Costs())
        assert [len(child.packages) for child in mine] == [0, 0, 0]


def test_what_a_child_stored_and_said_it_had_not_is_deleted_though_another_process_looked_before(lab: Make) -> None:
    made = lab(2, 1, durability="k+0")
    with ExitStack() as stack:
        one = stack.enter_context(made.opened())
        mine = made.children
        other = stack.enter_context(made.opened()).array  # without upkeep, which would make the package, too
        mine[2].frozen, mine[2].after_put = {"put"}, stored_but_failed
        one.put("/a", Literal(b"content"))
        row = other.metadata.find("/a")
        assert row is not None
        delete_leftovers(other, other.metadata.remove_object(row, 3), Costs())
        assert other.metadata.garbage() == [], "it is not there yet"
        mine[2].thawed.set()
        assert one.settle(HANG_S)
        assert [len(child.packages) for child in mine] == [0, 0, 0]


def test_a_reader_gets_one_version_or_an_error_while_it_is_replaced(lab: Make) -> None:
    made = lab()
    versions = [RandomContent(f"version {number}", 2 * MIB + 7) for number in range(6)]
    whole = {version.read(0, 2 * MIB + 7) for version in versions}
    with made.opened() as driver:
        driver.put("/a", versions[0])
        with ThreadPoolExecutor(4) as pool:
            writing = pool.submit(lambda: [driver.put("/a", version) for version in versions[1:]])
            read = 0
            while not writing.done() or not read:
                try:
                    found = content_of(driver, "/a")
                except CloudError:
                    continue  # it was replaced after some of it had been read
                assert found in whole
                read += 1
            writing.result()
        assert content_of(driver, "/a") == versions[-1].read(0, 2 * MIB + 7)


def test_metadata_of_an_earlier_layout_is_brought_up_with_all_that_is_noted(lab: Make) -> None:
    made = lab()
    with made.opened() as driver:
        driver.put("/a", Literal(b"content"))
        driver.put("/b", Literal(b"content"))
    metadata = Metadata(made.metadata, owner_text())
    row = metadata.find("/b")
    assert row is not None
    assert len(metadata.remove_object(row, 3)) == 3
    metadata.close()
    with closing(sqlite3.connect(made.metadata)) as db, db:
        db.execute("ALTER TABLE garbage DROP COLUMN note")
        db.execute("UPDATE settings SET value = 1 WHERE name = 'layout'")
    with made.opened() as driver:
        assert content_of(driver, "/a") == b"content"
        assert driver.settle(HANG_S)
        assert [len(child.packages) for child in made.children] == [1, 1, 1]
