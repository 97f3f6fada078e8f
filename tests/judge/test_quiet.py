"""Which operations are quiet, and how well a percentile of them is known."""

from __future__ import annotations

import random
from array import array
from math import exp, log
from statistics import stdev

import pytest

from pytest_cloudbench.judge.quiet import LATE_NS, NEIGHBOURS, log_error, quiet_rows

MS = 1_000_000


def rows(*lateness_ms: float) -> tuple[array[int], array[int]]:
    """Operations due every 10 ms that began this late."""
    due = array("q", (10 * MS * number for number in range(len(lateness_ms))))
    return due, array("q", (at + round(late * MS) for at, late in zip(due, lateness_ms, strict=True)))


def test_all_are_quiet_where_nothing_is_late() -> None:
    assert quiet_rows(*rows(0, 1, 20, 0)) == bytearray(b"\1\1\1\1")


def test_a_late_one_touches_five_before_and_five_after_it() -> None:
    late = [0.0] * 20
    late[9] = 20.1
    assert list(quiet_rows(*rows(*late))) == [1] * 4 + [0] * 11 + [1] * 5
    assert (LATE_NS, NEIGHBOURS) == (20 * MS, 5), "what docs/gates.md says"


def test_neighbours_are_those_in_the_order_of_due_times_whoever_recorded_them() -> None:
    """The rows of two agents, one after the other: the second's late operation was due amid the first's."""
    due, start = rows(*[0.0] * 12, 50.0, *[0.0] * 11)
    order = [*range(0, 24, 2), *range(1, 24, 2)]
    quiet = quiet_rows(array("q", (due[row] for row in order)), array("q", (start[row] for row in order)))
    assert {row for place, row in enumerate(order) if not quiet[place]} == set(range(7, 18))


def test_nothing_is_quiet_where_everything_is_late_and_no_operations_are_no_error() -> None:
    assert quiet_rows(*rows(*[30.0] * 40)) == bytearray(40)
    assert quiet_rows(array("q"), array("q")) == bytearray()


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_the_error_of_a_percentile_is_what_repeated_draws_have(share: float) -> None:
    source = random.Random("quiet")
    runs = [sorted(round(1e8 * exp(source.gauss(0, 0.35))) for _ in range(800)) for _ in range(150)]
    seen = stdev(log(run[round(share * 800) - 1]) for run in runs)
    told = [error for run in runs if (error := log_error(run, share))]
    assert sum(told) / len(told) == pytest.approx(seen, rel=0.15)


def test_the_error_is_unknown_of_too_few_operations() -> None:
    assert log_error([5], 0.5) is None
    assert log_error([5, 6], 0.999) is None
    assert log_error([], 0.5) is None
