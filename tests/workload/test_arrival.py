"""Schedules: their due times, their assignment to agents, and their distributions.

The distributions are tested with fixed seeds, so a test either always passes or always fails. One correct sample in a
hundred would exceed the bounds, and each test shows that a slightly wrong parameter does.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import erf, exp, factorial, inf, log, nan, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.model import ConfigError, UsageError, Verb
from pytest_cloudbench.workload.arrival import (
    DAY_CURVE,
    NAMES,
    Arrival,
    Bursts,
    Closed,
    Diurnal,
    FixedInterval,
    Jittered,
    Lognormal,
    Plan,
    Poisson,
    ThinkTime,
    Threads,
    arrival,
    changes,
    plan,
)
from pytest_cloudbench.workload.trace import VERBS, Mixture, Replay, parse_trace
from tests.limits import scale_examples

FEW = settings(deadline=None, max_examples=scale_examples(60))
SECONDS = st.floats(0, 1000, allow_nan=False)
Row = tuple[int, int, int]


def rows(schedule: Plan) -> list[Row]:
    return list(zip(schedule.due_ns, schedule.sensor, schedule.seq, strict=True))


def test_sensors_that_start_together_are_due_together() -> None:
    schedule = plan(FixedInterval(10.0), range(3), 2, "seed")
    assert rows(schedule) == [(0, 0, 0), (0, 1, 0), (0, 2, 0), (10**10, 0, 1), (10**10, 1, 1), (10**10, 2, 1)]


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
    schedule = plan(arrival, range(sensors), count, "seed", scale)
    assert len(schedule) == sensors * count
    assert list(schedule.due_ns) == sorted(schedule.due_ns)
    assert sorted(zip(schedule.sensor, schedule.seq, strict=True)) == [
        (sensor, seq) for sensor in range(sensors) for seq in range(count)
    ]
    for due_ns, sensor, seq in rows(schedule):
        expected_s = (arrival.due_s("seed", sensor, 1)[0] + interval * seq) / scale
        assert due_ns == pytest.approx(expected_s * 1e9, rel=1e-12, abs=1)


@FEW
@given(sensors=st.integers(0, 40), agents=st.integers(1, 60), count=st.integers(0, 3), delay=SECONDS)
def test_the_shares_of_agents_add_up_to_the_plan(sensors: int, agents: int, count: int, delay: float) -> None:
    """With 1, 2 or 50 agents the same operations are due at the same times."""
    arrival = FixedInterval(3.0, delay)
    shares = [rows(plan(arrival, range(agent, sensors, agents), count, "seed")) for agent in range(agents)]
    assert sorted(row for share in shares for row in share) == rows(plan(arrival, range(sensors), count, "seed"))


def kolmogorov_smirnov(values: list[float]) -> float:
    """Return the largest distance between the values' distribution and the uniform one on 0..1."""
    ordered = sorted(values)
    count = len(ordered)
    return max(
        max((index + 1) / count - value, value - index / count) for index, value in enumerate(ordered)
    )  # fmt: skip


def test_first_delays_are_uniform_within_their_bound_for_both_loops() -> None:
    longest_s, sensors = 30.0, 2000
    open_delays_s = [FixedInterval(1.0, longest_s).due_s("seed", sensor, 1)[0] for sensor in range(sensors)]
    closed_delays_s = [ThinkTime(1.0, longest_s).first_s("seed", sensor) for sensor in range(sensors)]
    assert open_delays_s == closed_delays_s
    assert min(open_delays_s) >= 0
    assert max(open_delays_s) <= longest_s
    # One uniform sample in a hundred exceeds 1.63 / sqrt(n), and the seed is fixed.
    assert kolmogorov_smirnov([value / longest_s for value in open_delays_s]) < 1.63 / sqrt(sensors)
    assert kolmogorov_smirnov([(value / longest_s) ** 2 for value in open_delays_s]) > 1.63 / sqrt(sensors)
    assert len(set(open_delays_s)) == sensors


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
def test_invalid_times_are_refused(process: type[FixedInterval | ThinkTime], bad: float) -> None:
    with pytest.raises(UsageError, match="expected 0 or more seconds"):
        process(bad)
    with pytest.raises(UsageError, match="expected 0 or more seconds"):
        process(1.0, first_delay_max_s=bad)


@pytest.mark.parametrize("process", [FixedInterval(1e10), Poisson(1e14), Lognormal(1e15, 1.0), FixedInterval(1e15)])
def test_times_beyond_292_years_are_refused(process: Arrival) -> None:
    with pytest.raises(UsageError, match="more than 292 years"):
        plan(process, range(5), 50, "seed")


@FEW
@given(due=st.lists(st.integers(0, 60), max_size=25), window=st.integers(0, 30))
def test_busiest_is_the_fullest_window(due: list[int], window: int) -> None:
    zeros = array("q", [0] * len(due))
    schedule = Plan(array("q", sorted(due)), zeros, zeros)
    by_definition = max((sum(start <= time <= start + window for time in due) for start in due), default=0)
    assert schedule.busiest(window) == by_definition


# --- properties of all processes ---

TRACE = "time,sensor,operation,size\n" + "".join(
    f"{(37 * row) % 101}.5,{row % 7},{('put', 'get', 'stat')[row % 3]},{row}\n" for row in range(40)
)
INTERVAL = st.floats(1e-6, 1e4)
PROCESSES: st.SearchStrategy[Arrival] = st.one_of(
    st.builds(FixedInterval, SECONDS, SECONDS),
    INTERVAL.flatmap(lambda interval: st.builds(Jittered, st.just(interval), st.floats(0, interval), SECONDS)),
    st.builds(Poisson, INTERVAL),
    st.builds(Lognormal, INTERVAL, st.floats(0, 4), SECONDS),
    INTERVAL.flatmap(lambda interval: st.builds(Bursts, st.just(interval), st.floats(interval, 1e5), SECONDS)),
    INTERVAL.flatmap(
        lambda interval: st.builds(
            Diurnal, st.just(interval), st.lists(st.floats(0, 9), min_size=1, max_size=30).filter(any),
            st.floats(interval / 10, 1e5), SECONDS,
        )
    ),
    st.builds(Replay, st.just(parse_trace(TRACE)), st.floats(0.01, 100), st.booleans()),
)  # fmt: skip
SEEDS = st.text(max_size=5)


@FEW
@given(process=PROCESSES, seed=SEEDS, sensor=st.integers(0, 99), count=st.integers(0, 20), more=st.integers(0, 20))
def test_due_times_ascend_and_do_not_depend_on_their_number(
    process: Arrival, seed: str, sensor: int, count: int, more: int
) -> None:
    due, steps = process.due_s(seed, sensor, count), process.steps(sensor, count)
    assert len(due) == (count if steps is None else len(steps))
    assert due == sorted(due)
    assert all(0 <= time_s < inf for time_s in due)
    assert due == process.due_s(seed, sensor, count + more)[:count]


@FEW
@given(process=PROCESSES, seed=SEEDS, sensors=st.integers(0, 12), agents=st.integers(1, 15), count=st.integers(0, 5))
def test_assigning_sensors_to_agents_changes_no_due_time(
    process: Arrival, seed: str, sensors: int, agents: int, count: int
) -> None:
    def full_rows(schedule: Plan) -> list[tuple[int, ...]]:
        columns = [
            schedule.due_ns,
            schedule.sensor,
            schedule.seq,
            schedule.code or [-1] * len(schedule),
            schedule.size_bytes or [-1] * len(schedule),
        ]
        return list(zip(*columns, strict=True))

    shares = [full_rows(plan(process, range(agent, sensors, agents), count, seed)) for agent in range(agents)]
    full = full_rows(plan(process, range(sensors), count, seed))
    assert sorted(row for share in shares for row in share) == full
    expected = {
        (sensor, seq): round(due * 1e9)
        for sensor in range(sensors)
        for seq, due in enumerate(process.due_s(seed, sensor, count))
    }
    assert {(row[1], row[2]): row[0] for row in full} == expected


@FEW
@given(process=PROCESSES, seed=SEEDS, scale=st.floats(0.1, 1000))
def test_time_scale_divides_every_time_of_any_process(process: Arrival, seed: str, scale: float) -> None:
    plain, scaled = (
        {(sensor, seq): due for due, sensor, seq in rows(plan(process, range(4), 5, seed, factor))}
        for factor in (1.0, scale)
    )
    assert plain.keys() == scaled.keys()
    for key, due in plain.items():
        assert scaled[key] == pytest.approx(due / scale, rel=1e-9, abs=1 + 1 / scale)


@pytest.mark.parametrize(
    "process",
    [
        FixedInterval(1.0, 9.0), Jittered(1.0, 0.5), Poisson(1.0), Lognormal(1.0, 1.0), Bursts(1.0, 5.0, 5.0),
        Diurnal(1.0, period_s=100.0),
    ],
    ids=lambda process: type(process).__name__,
)  # fmt: skip
def test_sensors_and_seeds_have_due_times_of_their_own(process: Arrival) -> None:
    due = [tuple(process.due_s(seed, sensor, 5)) for seed in ("a", "b") for sensor in range(100)]
    assert len(set(due)) == len(due)
    assert due[7] == tuple(process.due_s("a", 7, 5))


def test_the_horizon_is_the_last_due_time() -> None:
    schedule = plan(FixedInterval(10.0), range(3), 4, "seed", 2.0)
    assert schedule.horizon_s == 15.0
    assert plan(FixedInterval(10.0), (), 4, "seed").horizon_s == 0.0
    assert ThinkTime(3.0, 5.0).horizon_s(4) == 17.0


def test_the_shortest_time_of_a_closed_loop_has_the_pauses_between_operations_alone() -> None:
    assert ThinkTime(3.0, 5.0).shortest_s(4) == 9.0
    assert ThinkTime(3.0, 5.0).shortest_s(1) == 0.0
    assert Threads(2, 3.0, first_delay_max_s=5.0, first_delay_min_s=1.0).shortest_s(4) == 4.0
    assert Threads(2, 3.0, first_delay_max_s=5.0).shortest_s(1) == 0.0


# --- distributions ---


def passes(values: Sequence[float], cdf: Callable[[float], float]) -> bool:
    """Return whether the values pass the Kolmogorov-Smirnov test at one in a hundred."""
    return kolmogorov_smirnov([cdf(value) for value in values]) < 1.63 / sqrt(len(values))


def chi_square_passes(observed: Sequence[int], shares: Sequence[float]) -> bool:
    """Return whether counts pass Pearson's test at one in a hundred, by Wilson and Hilferty's approximation."""
    total, freedom = sum(observed), len(observed) - 1
    expected = [total * share / sum(shares) for share in shares]
    assert min(expected) >= 5, "the test needs fuller bins"
    statistic = sum(
        (count - expectation) ** 2 / expectation for count, expectation in zip(observed, expected, strict=True)
    )
    return statistic < freedom * (1 - 2 / (9 * freedom) + 2.3263 * sqrt(2 / (9 * freedom))) ** 3


def gaps(process: Arrival, sensors: int = 40, count: int = 501) -> list[float]:
    """Return the times between operations of all sensors."""
    return [
        after - before
        for sensor in range(sensors)
        for before, after in pairwise(process.due_s("seed", sensor, count))
    ]  # fmt: skip


def exponential(mean: float) -> Callable[[float], float]:
    return lambda value: 1 - exp(-value / mean)


def lognormal(mean: float, sigma: float) -> Callable[[float], float]:
    mu = log(mean) - sigma**2 / 2
    return lambda value: (1 + erf((log(value) - mu) / (sigma * sqrt(2)))) / 2


def on_off(interval_s: float, on_s: float, off_s: float) -> Callable[[float], float]:
    """Return the hyperexponential distribution of gaps in an interrupted Poisson process (Kuczura 1973)."""
    rate, ends, begins = 1 / interval_s, 1 / on_s, 1 / off_s
    total = rate + ends + begins
    root = sqrt(total**2 - 4 * rate * begins)
    fast, slow = (total + root) / 2, (total - root) / 2
    share = (rate - slow) / (fast - slow)
    return lambda value: 1 - share * exp(-fast * value) - (1 - share) * exp(-slow * value)


def test_jitter_is_uniform_and_delays_do_not_add_up() -> None:
    process, count = Jittered(10.0, 4.0, 30.0), 500
    late = []
    for sensor in range(40):
        first = FixedInterval(10.0, 30.0).due_s("seed", sensor, 1)[0]
        late += [due - first - 10.0 * seq for seq, due in enumerate(process.due_s("seed", sensor, count))]
    assert min(late) > -1e-9
    assert passes(late, lambda value: value / 4.0)
    assert not passes(late, lambda value: min(1.0, value / 3.9))
    assert not passes(late, lambda value: value / 4.1)


def test_poisson_has_exponential_gaps_also_before_the_first() -> None:
    intervals = gaps(Poisson(3.0))
    assert passes(intervals, exponential(3.0))
    assert not passes(intervals, exponential(3.0 * 1.05))
    assert not passes(intervals, exponential(3.0 / 1.05))
    first = [Poisson(3.0).due_s("seed", sensor, 1)[0] for sensor in range(5000)]
    assert passes(first, exponential(3.0))
    assert not passes(first, exponential(3.3))


def test_poisson_has_poisson_counts_so_gaps_are_independent() -> None:
    mean, windows, highest = 4.0, 4000, 9
    due = Poisson(0.5).due_s("seed", 0, 10_000)
    assert due[-1] > windows
    counts = [0] * windows
    for time_s in due:
        if time_s < windows:
            counts[int(time_s / 1.0)] += 1
    doubled = [before + after for before, after in zip(counts[::2], counts[1::2], strict=True)]
    observed = [sum(min(count, highest) == number for count in doubled) for number in range(highest + 1)]

    def shares(mean: float) -> list[float]:
        probabilities = [exp(-mean) * mean**number / factorial(number) for number in range(highest)]
        return [*probabilities, 1 - sum(probabilities)]

    assert chi_square_passes(observed, shares(mean))
    assert not chi_square_passes(observed, shares(mean * 1.1))
    assert not chi_square_passes(observed, shares(mean / 1.1))


def test_lognormal_gaps_have_the_requested_mean_and_spread() -> None:
    intervals = gaps(Lognormal(3.0, 1.2, first_delay_max_s=50.0))
    assert passes(intervals, lognormal(3.0, 1.2))
    for mean, sigma in ((3.2, 1.2), (2.8, 1.2), (3.0, 1.26), (3.0, 1.14)):
        assert not passes(intervals, lognormal(mean, sigma))
    assert sum(intervals) / len(intervals) == pytest.approx(3.0, rel=0.05)
    assert set(gaps(Lognormal(4.0, 0.0), 2, 5)) == {4.0}


def test_bursts_have_the_gaps_of_an_interrupted_poisson_process() -> None:
    intervals = gaps(Bursts(0.5, 10.0, 30.0))
    assert passes(intervals, on_off(0.5, 10.0, 30.0))
    for interval, on, off in (
        (0.53, 10, 30),
        (0.47, 10, 30),
        (0.5, 7, 30),
        (0.5, 14, 30),
        (0.5, 10, 90),
        (0.5, 10, 10),
    ):
        assert not passes(intervals, on_off(interval, on, off))
    assert not passes(intervals, exponential(sum(intervals) / len(intervals))), "it is not Poisson with the same rate"
    assert sum(intervals) / len(intervals) == pytest.approx(0.5 * 40 / 10, rel=0.1)


def test_bursts_of_many_sensors_are_not_in_step() -> None:
    """The first periods have equally many operations, and no sensor is on for longer than another."""
    process, sensors = Bursts(5.0, 10.0, 30.0), 4000
    due = [time_s for sensor in range(sensors) for time_s in process.due_s("seed", sensor, 40)]
    early = [sum(begin <= time_s < begin + 4 for time_s in due) for begin in range(0, 40, 4)]
    on_share = process.on_s / (process.on_s + process.off_s)
    assert sum(early) == pytest.approx(sensors * on_share * 40 / process.interval_s, rel=0.05)
    for count in early:  # a quarter of the sensors is on at any time, from the first moment
        assert count == pytest.approx(sensors * on_share * 4 / process.interval_s, rel=0.15)


def test_without_a_pause_bursts_are_poisson() -> None:
    assert passes(gaps(Bursts(1.0, 5.0, 0.0)), exponential(1.0))


HOUR_S = 3600.0


def count_by_hour(process: Diurnal, days: int, sensors: int) -> list[int]:
    """Count the operations of whole days by the hour of the day since the start."""
    counts = [0] * 24
    for sensor in range(sensors):
        due = process.due_s("seed", sensor, round(2 * days * 86_400 / process.interval_s))
        assert due[-1] > days * 86_400
        for time_s in due[: bisect_right(due, days * 86_400)]:
            counts[int(time_s / HOUR_S) % 24] += 1
    return counts


def hourly(curve: Sequence[float]) -> list[float]:
    """Return the shares of the hours. The curve is straight between full hours."""
    return [(begin + end) / 2 for begin, end in pairwise([*curve, curve[0]])]


def test_a_day_follows_the_requested_curve() -> None:
    counts = count_by_hour(Diurnal(300.0), days=4, sensors=20)
    assert chi_square_passes(counts, hourly(DAY_CURVE))
    assert not chi_square_passes(counts, hourly([*DAY_CURVE[1:], DAY_CURVE[0]])), "an hour off"
    assert not chi_square_passes(counts, hourly([*DAY_CURVE[:20], 1.3 * DAY_CURVE[20], *DAY_CURVE[21:]]))
    assert not chi_square_passes(counts, [1.0] * 24)
    assert sum(counts) == pytest.approx(4 * 20 * 86_400 / 300, rel=0.02)


def test_a_day_starts_at_the_requested_time() -> None:
    counts = count_by_hour(Diurnal(300.0, start_s=8 * HOUR_S), days=4, sensors=20)
    shares = hourly(DAY_CURVE)
    assert chi_square_passes(counts, shares[8:] + shares[:8])
    assert not chi_square_passes(counts, shares)
    assert not chi_square_passes(counts, shares[9:] + shares[:9])


def test_a_day_can_be_short_and_its_load_is_poisson_in_between() -> None:
    """Times that are measured in expected operations are a unit Poisson process."""
    curve, period, interval = (1.0, 0.0, 0.0, 4.0, 2.0), 50.0, 2.0
    process = Diurnal(interval, curve, period, start_s=17.0)
    areas = [rate * period / len(curve) for rate in hourly(curve)]
    begins = list(accumulate(areas, initial=0.0))

    def expected_ops(time: float, interval: float) -> float:
        days, within = divmod(time, period)
        piece, within_piece = divmod(within, period / len(curve))
        begin_rate, end_rate = curve[int(piece)], curve[(int(piece) + 1) % len(curve)]
        area = (
            begins[int(piece)]
            + begin_rate * within_piece
            + (end_rate - begin_rate) * within_piece**2 / (2 * period / len(curve))
        )
        return (days + area / begins[-1]) * period / interval

    due_times = [process.due_s("seed", sensor, 400) for sensor in range(40)]
    for times in due_times:
        assert not [due for due in times if 10 < (due + 17.0) % period < 20], "the rate is zero there"

    def units(interval: float) -> list[float]:
        return [
            expected_ops(after + 17.0, interval) - expected_ops(before + 17.0, interval)
            for due in due_times
            for before, after in pairwise(due)
        ]

    assert passes(units(interval), exponential(1.0))
    assert not passes(units(interval * 1.05), exponential(1.0))
    assert not passes(units(interval / 1.05), exponential(1.0))


def test_a_replay_is_due_when_the_trace_says() -> None:
    trace = parse_trace("time,sensor,operation,size\n100,a,put,7\n130.5,b,get,0\n104,a,stat,3\n", "t.csv")
    assert [Replay(trace).due_s("any", sensor, 9) for sensor in (0, 1, 2)] == [[100.0, 104.0], [130.5], []]
    assert [Replay(trace, 2.0, True).due_s("", sensor, 1) for sensor in (0, 1)] == [[0.0], [15.25]]
    schedule = plan(Replay(trace), range(2), 9, "seed", 0.5)
    assert rows(schedule) == [(200 * 10**9, 0, 0), (208 * 10**9, 0, 1), (261 * 10**9, 1, 0)]
    assert schedule.code is not None
    assert [VERBS[code] for code in schedule.code] == [Verb.PUT, Verb.STAT, Verb.GET]
    assert schedule.size_bytes == array("q", [7, 3, 0])
    assert plan(FixedInterval(1.0), range(2), 2, "seed").code is None


# --- names for configuration files ---

GIVEN: dict[str, tuple[dict[str, object], object]] = {
    "fixed": ({"interval_s": 2, "first_delay_max_s": 1}, FixedInterval(2, 1)),
    "uniform": ({"interval_s": 2}, FixedInterval(2, 2)),
    "jittered": ({"interval_s": 2, "jitter_s": 0.5}, Jittered(2, 0.5)),
    "poisson": ({"interval_s": 2}, Poisson(2)),
    "lognormal": ({"interval_s": 2, "sigma": 1}, Lognormal(2, 1)),
    "bursts": ({"interval_s": 2, "on_s": 9, "off_s": 8}, Bursts(2, 9, 8)),
    "diurnal": ({"interval_s": 2, "curve": [1, 2], "period_s": 60}, Diurnal(2, (1, 2), 60)),
    "trace": ({"file": "a.csv", "scale": 2}, Replay(parse_trace(TRACE, "a.csv"), 2)),
    "think": ({"interval_s": 2}, ThinkTime(2)),
    "threads": ({"count": 25, "pause_s": 1}, Threads(25, 1)),
}


def read_file(file: str) -> str:
    return {"a.csv": TRACE}[file]


@pytest.mark.parametrize("name", NAMES)
def test_every_process_has_a_name(name: str) -> None:
    params, expected = GIVEN[name]
    assert arrival(name, params, read_file) == expected


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_key_is_named(name: str) -> None:
    params, _ = GIVEN[name]
    with pytest.raises(
        ConfigError, match=rf"arrival {name}: intervall_s: unknown key, expected one of .*{min(params)}"
    ):
        arrival(name, {**params, "intervall_s": 1}, read_file)


@pytest.mark.parametrize(("name", "key"), [(name, next(iter(GIVEN[name][0]))) for name in NAMES])
def test_a_missing_key_is_named(name: str, key: str) -> None:
    params = {other: value for other, value in GIVEN[name][0].items() if other != key}
    with pytest.raises(ConfigError, match=f"arrival {name}: {key}: is missing"):
        arrival(name, params, read_file)


@pytest.mark.parametrize("count", [25.0, 2.5])
def test_a_count_of_threads_that_is_no_integer_is_refused(count: float) -> None:
    with pytest.raises(ConfigError, match=rf"arrival threads: count: {count}: expected a whole number of threads"):
        arrival("threads", {"count": count})


@pytest.mark.parametrize("bad", ["3", None, [3], True, nan, inf, -1, pytest.param(10**400, id="huge"), {}])
@pytest.mark.parametrize(("name", "key"), [(name, key) for name in NAMES for key in GIVEN[name][0]])
def test_a_wrong_value_is_named(name: str, key: str, bad: object) -> None:
    if (key, bad) == ("file", "3") or (key, bad) == ("curve", [3]):
        return
    with pytest.raises(ConfigError, match=rf"arrival {name}: {key}: .*expected ") as caught:
        arrival(name, {**GIVEN[name][0], key: bad}, read_file)
    assert isinstance(caught.value, UsageError)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("name", "params", "key"),
    [
        ("jittered", {"interval_s": 1, "jitter_s": 1.1}, "jitter_s"),
        ("poisson", {"interval_s": 0}, "interval_s"),
        ("lognormal", {"interval_s": 1, "sigma": 11}, "sigma"),
        ("bursts", {"interval_s": 2, "on_s": 1, "off_s": 1}, "interval_s"),
        ("diurnal", {"interval_s": 1, "curve": []}, "curve"),
        ("diurnal", {"interval_s": 1, "curve": [0, 0.0]}, "curve"),
        ("diurnal", {"interval_s": 1, "curve": [1, -1]}, "curve"),
        ("diurnal", {"interval_s": 1000, "period_s": 9}, "period_s"),
        ("trace", {"file": "a.csv", "scale": 0}, "scale"),
        ("trace", {"file": "a.csv", "from_first": 1}, "from_first"),
    ],
)
def test_a_value_out_of_range_is_named(name: str, params: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"arrival {name}: {key}: .*expected "):
        arrival(name, params, read_file)


def test_an_unknown_name_and_a_trace_without_a_reader_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"arrival: name: 'posson': expected one of fixed, uniform, .*poisson"):
        arrival("posson", {})
    with pytest.raises(ConfigError, match=r"arrival trace: file: .*cannot be read here"):
        arrival("trace", {"file": "a.csv"})


def test_only_diurnal_and_trace_loads_change() -> None:
    assert changes(Diurnal(1.0))
    assert changes(Mixture(Diurnal(1.0), {Verb.PUT: 1.0}, 1))
    assert not changes(Mixture(Poisson(1.0), {Verb.PUT: 1.0}, 1))
    assert changes(Replay(parse_trace("time,sensor,operation,size\n0,a,put,1\n", "t.csv")))
    steady: list[Arrival | Closed] = [
        FixedInterval(1.0),
        Poisson(1.0),
        Bursts(1.0, 2.0, 3.0),
        Threads(2),
        ThinkTime(1.0),
    ]
    assert not [process for process in steady if changes(process)]
