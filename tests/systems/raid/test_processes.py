"""Several processes share an array: what one has written the others read, and what one left the others see to."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from pytest_cloudbench.model import MIB, CloudError
from pytest_cloudbench.payload import RandomContent
from pytest_cloudbench.payload.contents import Literal
from pytest_cloudbench.systems.raid.driver import RaidDriver
from tests.limits import HANG_S

from .harness import Lab

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
