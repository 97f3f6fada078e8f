"""Schedules: the right due times, each operation once however the sensors are shared out, and uniform first delays."""

from __future__ import annotations

from array import array
from math import inf, nan, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.arrival import FixedInterval, Plan, ThinkTime, plan
from pytest_cloudbench.model import UsageError

FEW = settings(deadline=None, max_examples=60)
SECONDS = st.floats(0, 1000, allow_nan=False)
Row = tuple[int, int, int]


def rows(made: Plan) -> list[Row]:
    return list(zip(made.due_ns, made.sensor, made.seq, strict=True))


def test_sensors_that_start_together_are_due_together() -> None:
    made = plan(FixedInterval(10.0), range(3), 2, "seed")
    assert rows(made) == [(0, 0, 0), (0, 1, 0), (0, 2, 0), (10**10, 0, 1), (10**10, 1, 1), (10**10, 2, 1)]


def test_due_times_are_the_first_delay_plus_whole_intervals_without_drift() -> None:
    arrival = FixedInterval(0.1, first_delay_max_s=5.0)
    due = arrival.due_s("seed", 7, 10_001)
    assert 0 <= due[0] <= 5
    assert due[10_000] - due[0] == pytest.approx(1000.0, abs=1e-9)
    assert due == arrival.due_s("seed", 7, 10_001)


def test_no_operations_is_an_empty_plan() -> None:
    assert rows(plan(FixedInterval(1.0), range(5), 0, "seed")) == []
    assert rows(plan(FixedInterval(1.0), (), 5, "seed")) == []
    assert plan(FixedInterval(1.0), (), 5, "seed").busiest(10**9) == 0


@FEW
@given(
    interval=SECONDS, delay=SECONDS, sensors=st.integers(0, 30), count=st.integers(0, 5),
    scale=st.sampled_from([1.0, 0.5, 2.0, 60.0]),
)  # fmt: skip
def test_a_plan_is_sorted_complete_and_on_time(
    interval: float, delay: float, sensors: int, count: int, scale: float
) -> None:
    arrival = FixedInterval(interval, delay)
    made = plan(arrival, range(sensors), count, "seed", scale)
    assert len(made) == sensors * count
    assert list(made.due_ns) == sorted(made.due_ns)
    assert sorted(zip(made.sensor, made.seq, strict=True)) == [
        (sensor, seq) for sensor in range(sensors) for seq in range(count)
    ]
    for due_ns, sensor, seq in rows(made):
        expected_s = (arrival.due_s("seed", sensor, 1)[0] + interval * seq) / scale
        assert due_ns == pytest.approx(expected_s * 1e9, rel=1e-12, abs=1)


@FEW
@given(sensors=st.integers(0, 40), agents=st.integers(1, 60), count=st.integers(0, 3), delay=SECONDS)
def test_the_shares_of_the_agents_unite_to_the_whole(sensors: int, agents: int, count: int, delay: float) -> None:
    """With 1, 2 or 50 agents the same operations are due at the same times."""
    arrival = FixedInterval(3.0, delay)
    shares = [rows(plan(arrival, range(agent, sensors, agents), count, "seed")) for agent in range(agents)]
    assert sorted(row for share in shares for row in share) == rows(plan(arrival, range(sensors), count, "seed"))


def kolmogorov_smirnov(values: list[float]) -> float:
    """The largest distance between the values' distribution and the uniform one on 0..1."""
    ordered = sorted(values)
    count = len(ordered)
    return max(
        max((place + 1) / count - value, value - place / count) for place, value in enumerate(ordered)
    )  # fmt: skip


def test_first_delays_are_uniform_within_their_bound_for_both_loops() -> None:
    longest_s, sensors = 30.0, 2000
    opened = [FixedInterval(1.0, longest_s).due_s("seed", sensor, 1)[0] for sensor in range(sensors)]
    closed = [ThinkTime(1.0, longest_s).first_s("seed", sensor) for sensor in range(sensors)]
    assert opened == closed
    assert min(opened) >= 0
    assert max(opened) <= longest_s
    # 1.63 / sqrt(n) is passed by one uniform sample in a hundred; the seed is fixed.
    assert kolmogorov_smirnov([value / longest_s for value in opened]) < 1.63 / sqrt(sensors)
    assert kolmogorov_smirnov([(value / longest_s) ** 2 for value in opened]) > 1.63 / sqrt(sensors)
    assert len(set(opened)) == sensors


def test_another_seed_gives_other_first_delays() -> None:
    arrival = FixedInterval(1.0, 30.0)
    assert {arrival.due_s("a", sensor, 1)[0] for sensor in range(50)}.isdisjoint(
        arrival.due_s("b", sensor, 1)[0] for sensor in range(50)
    )


def test_time_scale_divides_every_time() -> None:
    arrival = FixedInterval(7.0, 20.0)
    slow, fast = (plan(arrival, range(20), 3, "seed", scale) for scale in (1.0, 10.0))
    assert list(slow.sensor) == list(fast.sensor)
    assert [due / 10 for due in slow.due_ns] == pytest.approx(list(fast.due_ns), abs=1)


@pytest.mark.parametrize("bad", [-1.0, -1e-9, nan, inf, -inf])
@pytest.mark.parametrize("process", [FixedInterval, ThinkTime])
def test_times_that_are_no_times_are_refused(process: type[FixedInterval | ThinkTime], bad: float) -> None:
    with pytest.raises(UsageError, match="expected 0 or more seconds"):
        process(bad)
    with pytest.raises(UsageError, match="expected 0 or more seconds"):
        process(1.0, first_delay_max_s=bad)


@FEW
@given(due=st.lists(st.integers(0, 60), max_size=25), window=st.integers(0, 30))
def test_busiest_is_the_fullest_window(due: list[int], window: int) -> None:
    zeros = array("q", [0] * len(due))
    made = Plan(array("q", sorted(due)), zeros, zeros)
    by_definition = max((sum(start <= each <= start + window for each in due) for start in due), default=0)
    assert made.busiest(window) == by_definition
