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

from .harness import ArrayFolder

MakeArray = Callable[..., ArrayFolder]
CONTENT = random.Random(4).randbytes(2 * MIB + 4567)


def set_observed_rates(array: Array, rates: Sequence[int]) -> None:
    """Set rates as if each child had been observed for so long that a test's own writes do not matter."""
    observer = array.children.rates
    assert isinstance(observer, Observer)
    plain_rates = [{"at_s": 0.0, "moved_bytes": rate * 1e12, "taken_s": 1e6} for rate in rates]
    observer.restore(json.dumps([plain_rates, plain_rates]))


def splits_of(array: Array, path: str) -> list[Split]:
    row = array.metadata.find(path)
    assert row is not None
    return [segment.split for segment in array.manifest_of("test", row).segments]


def read_content(driver: RaidDriver, path: str = "/a") -> bytes:
    return b"".join(driver.get(path))


def test_faster_children_hold_more_and_any_one_may_be_lost(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1, placement="throughput", mends=False)
    with array_folder.opened() as driver:
        driver.put("/equal", Literal(CONTENT))
        assert splits_of(driver.array, "/equal")[0].counts == (1, 1, 1), "nothing was known of the children"
        set_observed_rates(driver.array, (10, 10, 1))
        driver.put("/a", Literal(CONTENT))
        for split in splits_of(driver.array, "/a")[:-1]:  # the last segment is too small to matter
            fast, other, slow = split.counts
            assert fast == other > slow
        for lost in range(3):
            array_folder.children[lost].fails = {"get": ErrorKind.SERVER}
            assert (read_content(driver), read_content(driver, "/equal")) == (CONTENT, CONTENT), lost
            array_folder.children[lost].fails.clear()


def test_observed_rates_are_restored_by_the_next_process(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1, placement="throughput")
    with array_folder.opened() as driver:
        driver.put("/first", Literal(b"x"))
        set_observed_rates(driver.array, (10, 10, 1))
        before = driver.array.placement.split(MIB)
    with array_folder.opened() as driver:
        assert driver.array.placement.split(MIB) == before != Split(2, (1, 1, 1))


def test_a_rebalance_moves_objects_to_faster_children(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1, placement="throughput")
    with array_folder.opened() as driver:
        driver.put("/a", Literal(CONTENT))
        set_observed_rates(driver.array, (1, 10, 10))
        assert rebalance_array(driver.array).moved == 1
        slow, fast, other = splits_of(driver.array, "/a")[0].counts
        assert slow < fast == other
        assert read_content(driver) == CONTENT
        assert rebalance_array(driver.array).moved == 0


def test_a_late_child_is_hedged_before_patience_ends(make_array: MakeArray) -> None:
    array_folder = make_array(2, 1, patience_s=3600)
    with array_folder.opened() as driver:
        driver.put("/a", Literal(b"content"))
        for _ in range(10):
            assert read_content(driver) == b"content"
        first = next(iter(driver.array.hedge.order(Split(2, (1, 1, 1)), 8)))
        array_folder.children[first].frozen = {"get"}
        assert read_content(driver) == b"content"
        costs = driver.ledger.last()
        assert costs is not None
        assert costs.hedged >= 1


def test_an_impossible_overhead_is_refused(make_array: MakeArray) -> None:
    with pytest.raises(
        ConfigError, match=r"overhead_at_most: expected at least 1.5, which is k \+ m over k, found 1.2"
    ):
        config.load(make_array(2, 1, placement="throughput", overhead_at_most=1.2).file)


def test_a_split_stays_within_the_overhead_bound(make_array: MakeArray) -> None:
    array_folder = make_array(3, 1, placement="throughput", overhead_at_most=1.4)
    with array_folder.opened() as driver:
        driver.put("/first", Literal(b"x"))
        set_observed_rates(driver.array, (10, 10, 1, 1))
        split = driver.array.placement.split(MIB)
        assert sum(split.counts) <= 1.4 * split.data


@pytest.mark.parametrize("name", config.shipped_names())
def test_shipped_arrays_have_only_emulated_children(name: str) -> None:
    file = config.load(name)
    assert all(child.spec.startswith("emulated:") for child in file.children)
    assert not file.key


def test_an_unknown_shipped_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"expected raid:FILE.toml, or one of cloud-raid-2012, six; did you mean six"):
        config.load("siix")
