"""Tests of quiet operations: which of them are quiet, and the error of their percentiles."""

from __future__ import annotations

import itertools
import random
from array import array
from math import exp, log
from statistics import stdev

import pytest

from pytest_cloudbench.judge.quiet import LATE_NS, NEIGHBOURS, WaitSeries, log_error, quiet_rows, waits_of

MS = 1_000_000


Rows = tuple["array[int]", "array[int]", "array[int]", list[float]]


def rows(*lateness_ms: float, waits_ms: dict[int, float] | None = None) -> Rows:
    """Return operations of 8 ms that were due every 10 ms and began late by these times. Some waited for a CPU."""
    due = array("q", (10 * MS * number for number in range(len(lateness_ms))))
    start = array("q", (time_ns + round(late_ms * MS) for time_ns, late_ms in zip(due, lateness_ms, strict=True)))
    waits = [(waits_ms or {}).get(number, 0.0) * MS for number in range(len(due))]
    return due, start, array("q", (time_ns + 8 * MS for time_ns in start)), waits


def test_all_operations_are_quiet_if_none_is_late() -> None:
    assert quiet_rows(*rows(0, 1, 20, 0)) == bytearray(b"\1\1\1\1")


def test_a_late_operation_disturbs_five_before_and_five_after_it() -> None:
    late = [0.0] * 20
    late[9] = 20.1
    assert list(quiet_rows(*rows(*late))) == [1] * 4 + [0] * 11 + [1] * 5
    assert (LATE_NS, NEIGHBOURS) == (20 * MS, 5), "what docs/method.md says"


def test_neighbours_follow_due_times_across_agents() -> None:
    """The rows of one agent follow those of the other, whose late operation was due amid the first agent's."""
    due, start, end, waits = rows(*[0.0] * 12, 50.0, *[0.0] * 11)
    order = [*range(0, 24, 2), *range(1, 24, 2)]
    due_ns, start_ns, end_ns = (array("q", (column[row] for row in order)) for column in (due, start, end))
    quiet = quiet_rows(due_ns, start_ns, end_ns, waits)
    assert {row for position, row in enumerate(order) if not quiet[position]} == set(range(7, 18))


def test_late_operations_are_never_quiet_and_none_are_no_error() -> None:
    assert quiet_rows(*rows(*[30.0] * 40)) == bytearray(40)
    assert quiet_rows(array("q"), array("q"), array("q"), []) == bytearray()


def test_an_operation_that_waited_for_a_cpu_for_a_twentieth_of_its_time_is_not_quiet() -> None:
    assert list(quiet_rows(*rows(*[0.0] * 4, waits_ms={1: 0.4, 2: 0.41}))) == [1, 1, 0, 1]


def waits(start: list[int], end: list[int], own: list[int], series: list[tuple[int, int]]) -> list[float]:
    server_waits = WaitSeries(
        array("q", (time_ns for time_ns, _ in series)), array("q", (wait_ns for _, wait_ns in series))
    )
    return list(waits_of(array("q", start), array("q", end), array("q", own), server_waits))


def test_the_waits_of_a_server_are_shared_by_the_operations_in_flight() -> None:
    """Two operations run at once until 100, then one. The server waits for 20 before 100 and for 30 after it."""
    series = [(0, 0), (100, 20), (200, 50)]
    assert waits([0, 0], [100, 200], [0, 0], series) == [10.0, 40.0]
    assert waits([0, 0], [50, 200], [0, 5], series) == pytest.approx([6.67, 48.33], abs=0.01)


def test_waits_while_nothing_is_in_flight_belong_to_no_operation() -> None:
    assert sum(waits([0, 150], [10, 160], [0, 0], [(0, 0), (100, 40), (200, 80)])) == pytest.approx(8.0)


def test_only_own_wait_counts_without_samples() -> None:
    assert list(waits_of(array("q", [0]), array("q", [9]), array("q", [3]), WaitSeries())) == [3.0]
    assert list(waits_of(array("q", [0]), array("q", [9]), array("q", [-1]), WaitSeries())) == [0.0]


def test_waits_between_any_two_samples_are_those_of_a_straight_line() -> None:
    """Some operations lie within one interval, others span several, or begin or end outside of all samples."""
    source = random.Random("waits")
    times = sorted(source.sample(range(1000), 40))
    series = [(time, 10 * number) for number, time in enumerate(times)]
    start = [source.randrange(-50, 1000) for _ in range(500)]
    end = [begin + source.randrange(1, source.choice([5, 300])) for begin in start]
    elapsed = [sum(max(0, min(e, till) - max(s, since)) for s, e in zip(start, end, strict=True))
               for since, till in itertools.pairwise(times)]  # fmt: skip
    expected = []
    for s, e in zip(start, end, strict=True):
        parts = (
            max(0, min(e, till) - max(s, since)) * 10 / max(till - since, total)
            for (since, till), total in zip(itertools.pairwise(times), elapsed, strict=True)
        )
        expected.append(min(sum(parts), e - s))
    assert waits(start, end, [0] * 500, series) == pytest.approx(expected, abs=1e-9)


def test_any_late_operations_disturb_those_that_were_due_around_them() -> None:
    source = random.Random("late")
    for share in (0.02, 0.3, 0.98):
        late = [30.0 if source.random() < share else 0.0 for _ in range(300)]
        is_near = [any(late[max(0, index - NEIGHBOURS) : index + NEIGHBOURS + 1]) for index in range(300)]
        due, start, end, waits_ns = rows(*late)
        order = source.sample(range(300), 300)
        due_ns, start_ns, end_ns = (array("q", map(column.__getitem__, order)) for column in (due, start, end))
        assert list(quiet_rows(due_ns, start_ns, end_ns, waits_ns)) == [not is_near[row] for row in order]


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_the_error_of_a_percentile_is_that_of_repeated_draws(share: float) -> None:
    source = random.Random("quiet")
    runs = [sorted(round(1e8 * exp(source.gauss(0, 0.35))) for _ in range(800)) for _ in range(150)]
    spread = stdev(log(run[round(share * 800) - 1]) for run in runs)
    errors = [error for run in runs if (error := log_error(run, share))]
    assert sum(errors) / len(errors) == pytest.approx(spread, rel=0.15)


def test_the_error_is_unknown_of_too_few_operations() -> None:
    assert log_error([5], 0.5) is None
    assert log_error([5, 6], 0.999) is None
    assert log_error([], 0.5) is None
