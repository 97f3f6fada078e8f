"""Reads from children whose answer times are known: a slow tail is cut off, and no unnecessary requests are sent."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from math import inf, isinf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.raid.coding.hedging import Hedging, HedgingRule

SIZE_BYTES = 100_000
FAILS = None

Answer = Callable[[int], float | None]
"""A function from a child's number to the seconds of its next answer. None means that it fails at once."""


def simulate_read(hedging: Hedging, needed: int, answer: Answer, at_s: float, children: int = 6) -> float:
    """Simulate one read in virtual time, as the driver does it. Returns its duration, infinite if too few answered."""
    candidates = deque(hedging.order(range(children), needed, SIZE_BYTES, at_s))
    began_s, since_s, late_s, ends = at_s, dict[int, float](), dict[int, float](), list[tuple[float, int, bool]]()

    def ask() -> None:
        child = candidates.popleft()
        taken_s = answer(child)
        since_s[child], late_s[child] = at_s, at_s + hedging.late_after_s(child, SIZE_BYTES)
        heapq.heappush(ends, (at_s if taken_s is None else at_s + taken_s, child, taken_s is not FAILS))

    for _ in range(needed):
        ask()
    answered = 0
    while answered < needed:
        if not ends:
            return inf
        due_s = min((due for child, due in late_s.items() if candidates), default=inf)
        if ends[0][0] <= due_s:
            at_s, child, is_answer = heapq.heappop(ends)
            late_s.pop(child, None)
            if is_answer:
                answered += 1
                hedging.note_answer(child, SIZE_BYTES, at_s - since_s.pop(child), at_s)
            else:
                del since_s[child]
                hedging.note_failure(child, at_s)
                if candidates:
                    ask()
        else:
            at_s = due_s
            late_s.pop(min(late_s, key=lambda child: late_s[child]))
            hedging.note_extra_request()
            ask()
    for child, then_s in since_s.items():
        if child not in late_s:
            hedging.note_unanswered(child, SIZE_BYTES, at_s - then_s, at_s)
    return at_s - began_s


def simulate_reads(
    rule: HedgingRule | None, answer: Answer, *, needed: int = 4, count: int = 2000
) -> tuple[list[float], Hedging]:
    hedging = Hedging(6, rule)
    return sorted(simulate_read(hedging, needed, answer, number * 1.5) for number in range(count)), hedging


def with_tail(seed: int, share: float) -> Answer:
    """Return answers of 10 ms, but of a second in a share of the cases, independently for each child."""
    chance = Random(seed)
    return lambda child: 1.0 if chance.random() < share else 0.01 * (0.9 + 0.2 * chance.random())


def p99(durations_s: list[float]) -> float:
    return durations_s[int(0.99 * len(durations_s))]


def is_bounded(hedging: Hedging) -> bool:
    return hedging.extra <= hedging.rule.burst + hedging.rule.budget * hedging.requests


def test_hedging_cuts_the_tail_with_bounded_extra_requests() -> None:
    plain, never = simulate_reads(HedgingRule(percentile=1.0), with_tail(1, 0.02))
    hedged, hedging = simulate_reads(None, with_tail(1, 0.02))
    assert (p99(plain), never.extra) == (1.0, 0)
    assert p99(hedged) < 0.05
    assert is_bounded(hedging)
    assert hedged[len(hedged) // 2] == pytest.approx(plain[len(plain) // 2], rel=0.05), "the median stays"


def test_a_tail_of_all_children_at_once_stays() -> None:
    chance = Random(2)
    is_slow = {"now": False}
    hedging, durations_s = Hedging(6), []
    for number in range(1000):
        is_slow["now"] = chance.random() < 0.05
        durations_s.append(simulate_read(hedging, 4, lambda child: 1.0 if is_slow["now"] else 0.01, number * 10.0))
    assert p99(sorted(durations_s)) >= 1.0
    assert is_bounded(hedging)


def test_equally_quick_children_get_no_extra_requests() -> None:
    _, hedging = simulate_reads(None, lambda child: 0.02, count=300)
    assert hedging.extra == 0


def test_the_budget_bounds_requests_when_all_children_become_slow() -> None:
    times = iter(range(10**9))
    rule = HedgingRule(budget=0.05, burst=2)
    _, hedging = simulate_reads(rule, lambda child: 0.01 if next(times) < 400 else 0.5, count=300)
    assert hedging.extra > 0
    assert is_bounded(hedging)


def test_a_slow_child_is_soon_asked_last() -> None:
    durations_s, hedging = simulate_reads(None, lambda child: 1.0 if child == 0 else 0.01, count=100)
    assert durations_s[int(0.8 * len(durations_s))] == pytest.approx(0.01)
    assert hedging.order(range(6), 4, SIZE_BYTES, 150.0)[-1] == 0


def test_children_that_become_slow_are_asked_last_for_a_minute() -> None:
    hedging, slow = Hedging(6), set[int]()
    at_s = 0.0

    def answer(child: int) -> float:
        return 0.25 if child in slow else 0.01

    for _ in range(20):
        simulate_read(hedging, 4, answer, at_s := at_s + 0.1)
    slow = {0, 1}
    durations_s = [simulate_read(hedging, 4, answer, at_s := at_s + 0.3) for _ in range(16)]
    assert sorted(durations_s)[8] < 0.02, "most reads do not wait for the slow ones"
    assert hedging.order(range(6), 4, SIZE_BYTES, at_s)[-2:] == [0, 1]
    slow.clear()
    assert hedging.order(range(6), 4, SIZE_BYTES, at_s + 61)[:2] == [0, 1]


def test_a_hanging_child_delays_one_read_by_the_patience() -> None:
    hedging = Hedging(6, HedgingRule(patience_s=5.0, budget=0.0, burst=0.0))

    def answer(child: int) -> float:
        return 1e9 if child == 0 else 0.01

    first, *others = [simulate_read(hedging, 4, answer, at_s) for at_s in (0.0, 5.1, 5.2, 5.3)]
    assert first == pytest.approx(5.01)
    assert others == pytest.approx([0.01] * 3)


def test_a_failed_child_is_asked_again_later() -> None:
    hedging, broken, requests = Hedging(3), {0}, list[int]()

    def answer(child: int) -> float | None:
        requests.append(child)
        return FAILS if child in broken else 0.01

    assert simulate_read(hedging, 2, answer, 0.0, 3) == pytest.approx(0.01)
    assert requests == [0, 1, 2]
    requests.clear()
    simulate_read(hedging, 2, answer, 0.1, 3)
    assert requests == [1, 2]
    broken.clear()
    requests.clear()
    simulate_read(hedging, 2, answer, 100.0, 3)
    assert 0 in requests


@pytest.mark.parametrize("down", range(7))
def test_reads_succeed_with_any_k_children_and_fail_with_fewer(down: int) -> None:
    assert isinf(simulate_read(Hedging(6), 4, lambda child: FAILS if child < down else 0.01, 0.0)) == (down > 2)


def test_impossible_rules_are_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        HedgingRule(percentile=0.0)


outcomes = st.none() | st.sampled_from([0.001, 0.01, 0.5, 40.0, 1e6])


@given(st.lists(outcomes, min_size=6, max_size=6), st.integers(1, 6), st.floats(0, 0.5), st.floats(0, 3))
def test_every_read_ends_and_extra_requests_are_bounded(
    answers: list[float | None], needed: int, budget: float, burst: float
) -> None:
    hedging = Hedging(6, HedgingRule(budget=budget, burst=burst))
    answering = [answer_s for answer_s in answers if answer_s is not None]
    for number in range(10):
        duration_s = simulate_read(hedging, needed, lambda child: answers[child], number * 30.0)
        assert isinf(duration_s) == (len(answering) < needed)
