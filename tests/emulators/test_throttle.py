from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.emulators.throttle import Refusal, Throttle, ThrottlePolicy

GAPS = st.lists(st.floats(0, 5), min_size=1, max_size=80)
BUCKETS = st.builds(
    ThrottlePolicy,
    rate_per_s=st.floats(0.01, 50),
    burst=st.floats(0, 30),
    refused_cost=st.floats(0, 3),
    max_debt=st.floats(0, 50),
)
Step = tuple[bool, bool, str, float]
STEPS = st.lists(st.tuples(st.booleans(), st.booleans(), st.sampled_from("ab"), st.floats(-1, 2)), max_size=120)


def try_admit(throttle: Throttle, now_s: float, *, write: bool = True) -> bool:
    return throttle.admit(now_s, write=write) is None


def test_default_policy_admits_everything() -> None:
    throttle = Throttle(ThrottlePolicy())
    assert all(try_admit(throttle, 0.0) for _ in range(1000))
    assert throttle.in_flight == 1000


@given(BUCKETS, GAPS)
def test_no_window_admits_more_than_burst_and_rate(policy: ThrottlePolicy, gaps: list[float]) -> None:
    throttle = Throttle(policy)
    times = [now_s for now_s in accumulate(gaps) if try_admit(throttle, now_s)]
    for first, start_s in enumerate(times):
        for count, end_s in enumerate(times[first:], start=1):
            assert count <= policy.capacity + policy.rate_per_s * (end_s - start_s) + 1e-6


@given(BUCKETS, GAPS)
def test_level_stays_between_debt_and_capacity(policy: ThrottlePolicy, gaps: list[float]) -> None:
    throttle = Throttle(policy)
    for now_s in accumulate(gaps):
        throttle.admit(now_s, write=True)
        assert -policy.max_debt <= throttle.level(now_s) <= policy.capacity


@given(BUCKETS, st.integers(1, 100))
def test_refused_write_costs_tokens_of_the_policy(policy: ThrottlePolicy, count: int) -> None:
    throttle = Throttle(policy)
    while try_admit(throttle, 0.0):
        pass
    for _ in range(count):
        before = throttle.level(0.0)
        assert throttle.admit(0.0, write=True) == Refusal(policy.reason, policy.retry_after_s)
        assert throttle.level(0.0) == max(-policy.max_debt, before - policy.refused_cost)


@given(BUCKETS, GAPS)
def test_reads_take_no_tokens(policy: ThrottlePolicy, gaps: list[float]) -> None:
    throttle = Throttle(policy)
    assert all(try_admit(throttle, now_s, write=False) for now_s in accumulate(gaps))
    assert throttle.level(0.0) == policy.capacity


@dataclass
class Counts:
    reads: int = 0
    writes: int = 0


@given(st.integers(0, 5), st.integers(0, 3), STEPS)
def test_limits_hold_for_any_sequence(max_in_flight: int, write_lock: int, steps: list[Step]) -> None:
    throttle = Throttle(ThrottlePolicy(max_in_flight=max_in_flight, write_lock=write_lock))
    counts_by_namespace = {"a": Counts(), "b": Counts()}
    now_s = 0.0
    for take, write, namespace, gap_s in steps:
        now_s += gap_s
        counts = counts_by_namespace[namespace]
        total = sum(entry.reads + entry.writes for entry in counts_by_namespace.values())
        if take:
            full = bool(max_in_flight and total >= max_in_flight)
            locked = bool(write and write_lock and counts.writes >= write_lock)
            refusal = throttle.admit(now_s, write=write, namespace=namespace)
            assert (refusal is not None) == (full or locked)
            counts.writes += write and refusal is None
            counts.reads += not write and refusal is None
        elif counts.writes if write else counts.reads:
            throttle.release(now_s, write=write, namespace=namespace)
            counts.writes -= write
            counts.reads -= not write
        assert throttle.in_flight == sum(entry.reads + entry.writes for entry in counts_by_namespace.values())


@given(BUCKETS, st.lists(st.floats(-100, 100), min_size=1, max_size=60))
def test_clock_that_runs_backwards_counts_as_standing_still(policy: ThrottlePolicy, times: list[float]) -> None:
    throttle, straight = Throttle(policy), Throttle(policy)
    for now_s, latest_s in zip(times, accumulate(times, max), strict=True):
        assert try_admit(throttle, now_s) == try_admit(straight, latest_s)
    assert throttle.level(max(times)) == straight.level(max(times))


@pytest.mark.parametrize("rate_per_s", [0.1, 1.0, 3.0, 7.0])
def test_regular_requests_at_the_rate_are_all_admitted(rate_per_s: float) -> None:
    throttle = Throttle(ThrottlePolicy(rate_per_s=rate_per_s, burst=1))
    assert all(try_admit(throttle, number / rate_per_s) for number in range(1000))


def test_refused_requests_delay_recovery() -> None:
    throttle = Throttle(ThrottlePolicy(rate_per_s=1, burst=1, refused_cost=1, max_debt=3))
    assert [try_admit(throttle, 0.0) for _ in range(10)] == [True] + [False] * 9
    assert throttle.level(0.0) == -3.0
    assert not try_admit(throttle, 3.9)
    assert throttle.level(3.9) == pytest.approx(-0.1)
    assert try_admit(throttle, 5.0)


def test_first_time_may_be_any() -> None:
    throttle = Throttle(ThrottlePolicy(rate_per_s=1, burst=2))
    assert [try_admit(throttle, 1.7e9) for _ in range(3)] == [True, True, False]


def test_locked_write_costs_tokens_but_takes_no_place() -> None:
    throttle = Throttle(ThrottlePolicy(rate_per_s=1, burst=10, refused_cost=2, write_lock=1))
    assert try_admit(throttle, 0.0)
    assert not try_admit(throttle, 0.0)
    assert (throttle.level(0.0), throttle.in_flight) == (7.0, 1)
    throttle.release(0.0, write=True)
    assert try_admit(throttle, 0.0)


def test_policy_change_keeps_level_and_requests_in_flight() -> None:
    throttle = Throttle(ThrottlePolicy(rate_per_s=1, burst=10))
    assert all(try_admit(throttle, 0.0) for _ in range(4))
    throttle.policy = ThrottlePolicy(rate_per_s=2, burst=20, max_in_flight=4)
    assert (throttle.level(0.0), throttle.in_flight) == (6.0, 4)
    assert not try_admit(throttle, 0.0)
    throttle.policy = ThrottlePolicy(rate_per_s=2, burst=5)
    assert throttle.level(0.0) == 5.0
    assert try_admit(throttle, 0.0)


def test_bucket_switched_on_starts_full() -> None:
    throttle = Throttle(ThrottlePolicy())
    assert try_admit(throttle, 0.0)
    throttle.policy = ThrottlePolicy(rate_per_s=1, burst=8)
    assert throttle.level(0.0) == 8.0


@pytest.mark.parametrize("write", [True, False])
def test_release_without_admit_is_a_programming_error(write: bool) -> None:
    throttle = Throttle(ThrottlePolicy())
    with pytest.raises(ValueError, match="release without admit"):
        throttle.release(0.0, write=write)
    throttle.admit(0.0, write=True, namespace="a")
    with pytest.raises(ValueError, match="namespace='b'"):
        throttle.release(0.0, write=True, namespace="b")


@pytest.mark.parametrize("key", ["rate_per_s", "burst", "refused_cost", "max_debt", "max_in_flight", "retry_after_s"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_impossible_number_is_refused(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=key):
        ThrottlePolicy(**{key: value})  # type: ignore[arg-type]  # the key is chosen at run time
