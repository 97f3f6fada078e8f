"""Children for which much is queued: a write skips those that it does not need, and waits for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from pytest_cloudbench.model import MIB
from pytest_cloudbench.raid.coding.policies import Split
from pytest_cloudbench.raid.survey import survey_array
from pytest_cloudbench.support.clock import wait_for
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .harness import ArrayFolder

MakeArray = Callable[..., ArrayFolder]


def test_a_child_with_a_full_queue_is_skipped_and_rebuilt_later(
    make_array: MakeArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages for a frozen child do not fill the memory. They are noted, and rebuilt later."""
    monkeypatch.setattr("pytest_cloudbench.raid.transfers._MOST_QUEUED_BYTES", 10_000)
    array_folder = make_array(2, 1, durability="k+0")
    with array_folder.opened() as driver:
        array_folder.children[2].frozen = {"put"}
        for number in range(6):
            driver.put(f"/{number}", Literal(bytes(10_000)))
        put_count = array_folder.children[2].called_verbs.count("put")
        assert put_count <= 4, "two or three are from writes, and one from rebuilding"
        assert {package.child for package in driver.array.metadata.missing_packages()} == {2}
        array_folder.children[2].thawed.set()
        assert driver.settle(HANG_S)
        assert len(array_folder.children[2].packages) == 6


def test_a_write_waits_for_healthy_children_with_full_queues(
    make_array: MakeArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_cloudbench.raid.transfers._MOST_QUEUED_BYTES", 10_000)
    array_folder, count = make_array(2, 1, durability="k+0"), 8
    with array_folder.opened() as driver, ThreadPoolExecutor(count) as executor:
        for child in array_folder.children:
            child.frozen = {"put"}
        puts = [executor.submit(driver.put, f"/{number}", Literal(bytes(10_000))) for number in range(count)]

        def have_enough_arrived() -> bool:
            calls: int = sum(child.called_verbs.count("put") for child in array_folder.children)
            return calls >= 2 * count  # a write that comes last may skip one of three children

        try:
            assert wait_for(lambda: have_enough_arrived() or any(put.done() for put in puts), HANG_S, poll_s=0.01)
        finally:  # or the executor would wait for ever
            for child in array_folder.children:
                child.thawed.set()
        assert [put.exception(HANG_S) for put in puts] == [None] * count
        assert driver.settle(HANG_S)
        assert survey_array(driver.array).is_healthy


@pytest.mark.parametrize(
    ("queued_mib", "skipped"),
    [
        ((0, 0, 0, 32), set()),
        ((0, 0, 0, 33), {3}),
        ((0, 0, 33, 33), set()),
        ((0, 0, 33, 67), {3}),
        ((40, 40, 40, 80), set()),
        ((81, 40, 40, 40), {0}),
    ],
)
def test_children_that_a_write_does_not_need_are_skipped_if_they_are_far_behind(
    make_array: MakeArray, queued_mib: Sequence[int], skipped: set[int]
) -> None:
    with make_array(2, 2, durability="k+1").opened() as driver:
        for threads, mib in zip(driver.array.children._threads, queued_mib, strict=True):
            threads.queued_bytes = mib * MIB
        split = Split(2, (1, 1, 1, 1))
        are_enough = partial(driver.array.is_durable, split)
        assert driver.array.children.find_far_behind(range(4), are_enough) == skipped
