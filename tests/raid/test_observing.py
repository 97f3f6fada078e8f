"""Observed rates place new shares, and decide which children reads ask and how long they wait."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import pytest

from pytest_cloudbench.model import MIB, ConfigError, ErrorKind
from pytest_cloudbench.raid import config
from pytest_cloudbench.raid.array import Array
from pytest_cloudbench.raid.coding.policies import Split
from pytest_cloudbench.raid.driver import RaidDriver
from pytest_cloudbench.raid.maintenance import rebalance_array
from pytest_cloudbench.raid.observing import Observer
from pytest_cloudbench.workload.payload.contents import Literal

from .harness import Lab

Make = Callable[..., Lab]
CONTENT = random.Random(4).randbytes(2 * MIB + 4567)


def teach(array: Array, rates: Sequence[int]) -> None:
    """As if each child had been observed for so long that a test's own writes do not matter."""
    observer = array.children.rates
    assert isinstance(observer, Observer)
    known = [{"at_s": 0.0, "moved_bytes": rate * 1e12, "taken_s": 1e6} for rate in rates]
    observer.restore(json.dumps([known, known]))


def splits(array: Array, path: str) -> list[Split]:
    row = array.metadata.find(path)
    assert row is not None
    return [segment.split for segment in array.manifest_of("test", row).segments]


def read(driver: RaidDriver, path: str = "/a") -> bytes:
    return b"".join(driver.get(path))


def test_faster_children_hold_more_and_any_one_may_be_lost(lab: Make) -> None:
    made = lab(2, 1, placement="throughput", mends=False)
    with made.opened() as driver:
        driver.put("/equal", Literal(CONTENT))
        assert splits(driver.array, "/equal")[0].counts == (1, 1, 1), "nothing was known of the children"
        teach(driver.array, (10, 10, 1))
        driver.put("/a", Literal(CONTENT))
        for split in splits(driver.array, "/a")[:-1]:  # the last segment is too small to matter
            fast, other, slow = split.counts
            assert fast == other > slow
        for lost in range(3):
            made.children[lost].fails = {"get": ErrorKind.SERVER}
            assert (read(driver), read(driver, "/equal")) == (CONTENT, CONTENT), lost
            made.children[lost].fails.clear()


def test_what_was_observed_is_known_to_the_next_process(lab: Make) -> None:
    made = lab(2, 1, placement="throughput")
    with made.opened() as driver:
        driver.put("/first", Literal(b"x"))
        teach(driver.array, (10, 10, 1))
        before = driver.array.placement.split(MIB)
    with made.opened() as driver:
        assert driver.array.placement.split(MIB) == before != Split(2, (1, 1, 1))


def test_what_was_placed_before_moves_when_it_is_asked_to(lab: Make) -> None:
    made = lab(2, 1, placement="throughput")
    with made.opened() as driver:
        driver.put("/a", Literal(CONTENT))
        teach(driver.array, (1, 10, 10))
        assert rebalance_array(driver.array).moved == 1
        slow, fast, other = splits(driver.array, "/a")[0].counts
        assert slow < fast == other
        assert read(driver) == CONTENT
        assert rebalance_array(driver.array).moved == 0


def test_a_child_that_is_late_is_not_waited_for_until_patience_ends(lab: Make) -> None:
    made = lab(2, 1, patience_s=3600)
    with made.opened() as driver:
        driver.put("/a", Literal(b"content"))
        for _ in range(10):
            assert read(driver) == b"content"
        first = next(iter(driver.array.hedge.order(Split(2, (1, 1, 1)), 8)))
        made.children[first].frozen = {"get"}
        assert read(driver) == b"content"
        costs = driver.ledger.last()
        assert costs is not None
        assert costs.hedged >= 1


def test_an_overhead_that_cannot_be_is_bad_input(lab: Make) -> None:
    with pytest.raises(
        ConfigError, match=r"overhead_at_most: expected at least 1.5, which is k \+ m over k, found 1.2"
    ):
        config.load(lab(2, 1, placement="throughput", overhead_at_most=1.2).file)


def test_less_overhead_than_throughput_would_take(lab: Make) -> None:
    made = lab(3, 1, placement="throughput", overhead_at_most=1.4)
    with made.opened() as driver:
        driver.put("/first", Literal(b"x"))
        teach(driver.array, (10, 10, 1, 1))
        split = driver.array.placement.split(MIB)
        assert sum(split.counts) <= 1.4 * split.data


@pytest.mark.parametrize("name", config.shipped_names())
def test_what_ships_is_an_array_of_emulated_children(name: str) -> None:
    file = config.load(name)
    assert all(child.spec.startswith("emulated:") for child in file.children)
    assert not file.key


def test_a_name_that_does_not_ship() -> None:
    with pytest.raises(ConfigError, match=r"expected raid:FILE.toml, or one of cloud-raid-2012, six; did you mean six"):
        config.load("siix")
