"""Tests of the regression gate's rule against known truths: broken, met and inconclusive."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from math import exp, inf

import pytest

from benchmarks.gate_recorded import read_record
from benchmarks.gate_rules import gate
from benchmarks.gate_sessions import Answered, Change, History, Noise, drawn_session, simulated_session
from pytest_cloudbench.judge.checks import Check, Kind, Reading
from pytest_cloudbench.judge.gate import (
    AGAIN,
    Ruling,
    amount_text,
    answer_of,
    detectable,
    holm,
    is_suspect,
    is_test,
    judge,
    needs_again,
    operations_for,
)


def level(now: float, again: tuple[float, ...] = (), *, spread: float = 0.01, runs: int = 20, higher: bool = False,
          name: str = "t", margin: float = 0.10, error: float | None = None) -> Check:  # fmt: skip
    """Return the check of a metric around 1, with a normal spread between runs and this run's value."""
    source = random.Random(f"{name}/{runs}")
    draws = [source.gauss(0, 1) for _ in range(runs)]
    middle = sum(draws) / runs
    deviation = (sum((draw - middle) ** 2 for draw in draws) / (runs - 1)) ** 0.5
    baseline = tuple(Reading(exp((draw - middle) / deviation * spread)) for draw in draws)
    return Check(name, "quiet_p50", "level", margin, baseline, Reading(now, error=error, ops=100),
                 tuple(map(Reading, again)), higher=higher)  # fmt: skip


def rate(
    now: tuple[int, int], again: tuple[tuple[int, int], ...] = (), before: tuple[tuple[int, int], ...] = ()
) -> Check:
    def reading(count: int, total: int) -> Reading:
        return Reading(count / total, count, total)

    baseline = tuple(reading(*counts) for counts in before or ((0, 300),) * 20)
    return Check("t", "failed_rate", "rate", 0.01, baseline, reading(*now), tuple(reading(*counts) for counts in again))


def plain(kind: Kind, now: float | None, before: tuple[float, ...], again: tuple[float, ...] = ()) -> Check:
    readings = tuple(map(Reading, before)), Reading(now), tuple(map(Reading, again))
    return Check("t", "m", kind, 0.1, *readings, higher=kind == "yes")


def verdict(check: Check) -> Ruling:
    (ruling,) = judge([check])
    return ruling


# --- levels ---


def test_a_run_like_its_baseline_is_met() -> None:
    ruling = verdict(level(1.005))
    assert (ruling.answer, is_suspect(level(1.005))) == ("met", False)
    assert ruling.change == pytest.approx(0.005, abs=1e-9)
    assert ruling.low is not None
    assert ruling.high is not None
    assert ruling.low < 0 < ruling.high < 0.10


def test_a_run_that_is_worse_is_a_suspect_until_it_was_measured_three_times() -> None:
    assert is_suspect(level(1.12))
    assert verdict(level(1.12)).answer == "inconclusive"
    assert verdict(level(1.12, (1.12, 1.12))).why == "a suspect, measured again 2 of 3 times"
    assert verdict(level(1.12, (1.11, 1.13, 1.10))).answer == "broken"


def test_repetitions_clear_a_suspect() -> None:
    assert verdict(level(1.12, (1.0, 1.01, 1.12))).answer == "met"


def test_better_is_met_and_higher_may_be_better() -> None:
    assert verdict(level(0.5)).answer == "met"
    assert verdict(level(2.0, higher=True)).answer == "met"
    assert verdict(level(0.85, (0.85, 0.85, 0.85), higher=True)).answer == "broken"


def test_less_than_half_the_margin_is_never_broken_however_sure_it_is() -> None:
    ruling = verdict(level(1.045, (1.045, 1.045, 1.045), spread=0.0001))
    assert (is_suspect(ruling.check), ruling.answer) == (True, "met")


def test_a_spread_of_zero_is_taken_as_half_a_percent() -> None:
    same = replace(level(1.005), baseline=(Reading(1.0),) * 20)
    assert verdict(same).answer == "met"
    assert not is_suspect(same)


@pytest.mark.parametrize(("former", "now"), [((1e-300, 1e300), 1.0), ((1e-300, 1e-300), 1e300)])
def test_runs_beyond_all_bounds_are_judged(former: tuple[float, float], now: float) -> None:
    ruling = verdict(replace(level(now, (now, now, now)), baseline=tuple(map(Reading, former * 10 + (1e-300,)))))
    assert ruling.answer != "met"
    assert ruling.high == inf


def test_noisy_baseline_is_inconclusive_with_its_detectable_change() -> None:
    ruling = verdict(level(1.05, spread=0.1))
    assert ruling.answer == "inconclusive"
    assert ruling.why.startswith("only changes of ")
    assert ruling.detects == detectable(ruling.check, 1)
    assert ruling.detects == pytest.approx(0.48, abs=0.02), (
        "exp((t of .01 with 19 degrees + 1.28) * .1 * sqrt(1.05)) - 1"
    )


def test_detectable_change_is_found_in_nine_of_ten_cases() -> None:
    """The number is about the power of the rule, so the test simulates it."""
    check, source = level(1.0, spread=0.03), random.Random("power")
    change = detectable(check, 1)
    assert change is not None
    draws = [(1 + change) * exp(source.gauss(0, 0.03) * 1.0247) for _ in range(400)]
    broken_count = sum(
        verdict(replace(check, now=Reading(value), again=(Reading(value),) * 3)).answer == "broken" for value in draws
    )
    assert 0.85 <= broken_count / 400 <= 0.95


def test_operations_that_would_suffice_come_from_the_part_that_they_make_smaller() -> None:
    sampled = level(1.0, spread=0.07, error=0.069)
    assert "operations and 20 runs would find 10 %" in verdict(sampled).why
    needed_ops = operations_for(sampled, 1)
    assert needed_ops is not None
    assert 400 < needed_ops < 2000
    assert operations_for(level(1.0, spread=0.07, error=0.001), 1) is None
    assert "no number of operations would find 10 %" in verdict(level(1.0, spread=0.1, error=0.001)).why


def test_ten_runs_are_the_least() -> None:
    assert verdict(level(1.5, runs=9)).why == "baseline 9 of 10"
    assert not is_suspect(level(1.5, runs=9))
    assert verdict(level(1.0, runs=10)).answer == "met"


@pytest.mark.parametrize("runs", [3, 4, 10])
def test_a_change_beyond_all_numbers_is_detectable_as_a_number(runs: int) -> None:
    """Student's t with half a degree of freedom is 30,000 at 0.1 %."""
    change = detectable(level(1.0, spread=3.0, runs=runs), 10)
    assert change is not None
    assert change > 1e3


def test_more_tests_in_the_session_want_a_larger_change() -> None:
    alone = level(1.06, (1.06, 1.06, 1.06), spread=0.018)
    assert verdict(alone).answer == "broken"
    rulings = judge([alone, *(level(1.0, name=f"t{number}") for number in range(100))])
    assert rulings[0].answer != "broken"


@pytest.mark.parametrize("incidents", [0, 1, 2, 4])
def test_incidents_in_a_baseline_hide_no_change(incidents: int) -> None:
    """They hide none in their own experiment or in others, and the runs that do not count are named."""
    clean, other = level(1.15, (1.15,) * 3), level(1.15, (1.15,) * 3, name="other")
    odd = tuple(Reading(5.0, run=f"{number:04d}") for number in range(incidents))
    hurt = replace(clean, baseline=(*clean.baseline[incidents:], *odd))
    rulings = judge([hurt, other])
    assert [ruling.answer for ruling in rulings] == ["broken", "broken"]
    assert [run for run, _ in rulings[0].left_out] == [reading.run for reading in odd]


def test_a_suspect_that_is_cleared_is_quarantined_with_both_values() -> None:
    ruling = verdict(level(4.9, (0.995,)))
    assert (ruling.answer, ruling.is_quarantined) == ("met", True)
    assert ruling.first == pytest.approx(3.9, abs=0.02)
    assert ruling.change == pytest.approx(-0.005, abs=0.002)
    assert not needs_again(ruling.check), "the first repetition that is not bad clears it"


def test_repetitions_for_another_metric_do_not_excuse_a_run_that_was_no_suspect() -> None:
    """A change of 7 % may be chance here, but also a regression of the whole margin."""
    alone, repeated = level(1.07, spread=0.05), level(1.07, (1.0,) * AGAIN, spread=0.05)
    assert not is_suspect(alone)
    assert verdict(alone).answer == "inconclusive"
    assert replace(verdict(repeated), check=alone) == verdict(alone)


@pytest.mark.parametrize(("count", "answer"), [(120, "broken"), (12, "inconclusive"), (3, "met")])
def test_failures_are_judged_with_their_repetitions_together(count: int, answer: str) -> None:
    """An incident of a minute is broken if all runs together exceed the margin of one point."""
    ruling = verdict(rate((count, 400), ((0, 400),) * 3, ((0, 400),) * 20))
    assert (ruling.answer, ruling.is_quarantined) == (answer, True)
    assert ruling.change == pytest.approx(count / 1600)


def test_numbers_that_are_not_known_are_inconclusive() -> None:
    assert verdict(replace(level(1.0), now=Reading(None))).why == "this run has no value"
    assert verdict(replace(level(1.0), why="doubts")).why == "doubts"
    zero = replace(level(1.0), baseline=(Reading(0.0),) * 20)
    assert verdict(zero).answer == "inconclusive"


# --- rates ---


def test_no_failures_before_and_none_now_are_met_from_299_operations_on() -> None:
    assert verdict(rate((0, 300))).answer == "met"
    few = verdict(rate((0, 80), before=((0, 80),) * 20))
    assert few.answer == "inconclusive"
    assert " points or more would be found; " in few.why


def test_operations_that_would_find_a_rise_of_the_margin_do() -> None:
    few = rate((0, 80), before=((0, 80),) * 20)
    needed_ops = operations_for(few, 60)
    assert needed_ops is not None
    assert 250 < needed_ops < 400
    assert re.search(r"; \d+ operations and 20 runs would find 1 points?$", verdict(few).why)
    enough = rate((0, needed_ops), before=((0, needed_ops),) * 20)
    assert verdict(enough).answer == "met"
    change = detectable(enough, 60)
    assert change is not None
    assert change <= 0.01


@pytest.mark.parametrize("margin", [0.05, 0.1, 0.2, 0.3, 0.5])
@pytest.mark.parametrize("ops", [1, 2, 5, 10, 15, 40])
def test_search_for_enough_operations_ends_for_few_operations_and_wide_margins(margin: float, ops: int) -> None:
    base = tuple(Reading(0.0, 0, ops, run=f"r{number}") for number in range(20))
    needed_ops = operations_for(Check("t", "failed_rate", "rate", margin, base, base[0]), 1)
    assert needed_ops is not None
    assert needed_ops >= 1


def test_no_number_of_operations_makes_up_for_runs_that_differ() -> None:
    before = tuple((3 + 9 * (number % 2), 300) for number in range(20))
    noisy = rate((8, 300), before=before)
    assert operations_for(noisy, 60) is None
    assert "; no number of operations would find 1 point: the runs themselves differ too much" in verdict(noisy).why


def test_failures_that_stay_are_broken() -> None:
    assert is_suspect(rate((3, 300)))
    assert verdict(rate((3, 300), ((3, 300), (2, 300), (4, 300)))).answer == "broken"
    assert verdict(rate((3, 300), ((0, 300), (0, 300), (0, 300)))).answer == "met"


def test_unchanged_failure_rate_is_met() -> None:
    before = tuple((30 + number % 3, 3000) for number in range(20))
    assert verdict(rate((31, 3000), before=before)).answer == "met"


def test_runs_that_differ_far_more_than_operations_are_inconclusive() -> None:
    before = tuple((60 * (number % 2), 300) for number in range(20))
    ruling = verdict(rate((70, 300), ((70, 300),) * 3, before))
    assert ruling.answer == "inconclusive"
    assert "times as much as independent operations would" in ruling.why


@pytest.mark.parametrize(
    ("share", "text"), [(0.0123, "1.2 %"), (0.994, "99 %"), (0.996, "100 %"), (1.0, "100 %"), (12.3456, "1,235 %")]
)
def test_an_amount_is_never_written_with_an_exponent(share: float, text: str) -> None:
    assert amount_text(level(1.0), share) == text


# --- exact numbers, capabilities ---


def test_a_number_that_never_changed_may_not_change() -> None:
    assert verdict(plain("exact", 3.0, (3.0,) * 10)).answer == "met"
    assert verdict(plain("exact", 3.01, (3.0,) * 10)).answer == "met", "a retry among hundreds"
    ruling = verdict(plain("exact", 4.0, (3.0,) * 10, (4.0,) * AGAIN))
    assert (ruling.answer, ruling.why) == ("broken", "in 3 of 3 repetitions, too")
    assert verdict(plain("exact", 4.0, (3.0,) * 10)).answer == "broken", "it has happened"
    intermittent = verdict(plain("exact", 4.0, (3.0,) * 10, (3.0,) * AGAIN))
    assert (intermittent.answer, intermittent.why) == ("broken", "not in 3 repetitions: intermittent")
    assert ruling.change == pytest.approx(1 / 3)
    assert verdict(plain("exact", 2.0, (3.0,) * 10)).answer == "met"


def test_a_capability_that_is_gone_is_broken_once_that_is_confirmed() -> None:
    assert verdict(plain("yes", 1, (1, 1, 1))).answer == "met"
    assert verdict(plain("yes", 0, (1, 1, 1), (0, 0, 0))).answer == "broken"
    assert verdict(plain("yes", 0, (1, 1, 1), (1, 1, 0))).answer == "met"
    assert verdict(plain("yes", None, (1, 1, 1))).answer == "inconclusive"
    assert verdict(plain("yes", 0, (1, 0, 1))).answer == "inconclusive"
    assert verdict(plain("yes", 0, (0, 0, 0))).answer == "met", "it never had it"
    assert verdict(plain("yes", None, (0, 0, 0))).answer == "inconclusive"
    assert verdict(plain("yes", 1, (1, 1))).why == "baseline 2 of 3"


# --- a session ---


def test_an_experiment_is_broken_by_one_metric_and_inconclusive_by_one_that_decides() -> None:
    met, broken = verdict(level(1.0)), verdict(level(1.2, (1.2, 1.2, 1.2)))
    unsure = verdict(level(1.0, spread=0.3))
    not_deciding = verdict(replace(level(1.0, spread=0.3), decides=False))
    assert answer_of([met, broken, unsure]) == "broken"
    assert answer_of([met, unsure]) == "inconclusive"
    assert answer_of([met, not_deciding]) == "met"
    assert answer_of([]) is None


def test_a_suspect_that_was_not_measured_again_is_never_met_even_if_it_does_not_decide() -> None:
    met, not_deciding = verdict(level(1.0)), replace(level(1.2, (1.2,)), decides=False)
    assert answer_of([met, verdict(not_deciding)]) == "inconclusive"
    assert answer_of([met, verdict(replace(not_deciding, again=(Reading(1.0),) * AGAIN))]) == "met"


def test_holm_rejects_in_steps_until_one_holds() -> None:
    assert holm([0.001, 0.004, 0.5], 0.01, 3) == [True, True, False]
    assert holm([0.006, 0.001, 0.006], 0.01, 3) == [False, True, False]
    assert holm([], 0.01, 5) == []


@pytest.mark.parametrize(("counted", "tests", "answer"), [(0, 1, "broken"), (1, 301, "inconclusive")])
def test_rates_that_were_always_zero_do_not_tighten_other_checks(counted: int, tests: int, answer: str) -> None:
    worse = level(1.09, (1.09,) * 3, spread=0.02)
    rates = [replace(rate((0, 300), before=((counted, 300),) * 20), experiment=f"e{number}") for number in range(300)]
    assert sum(map(is_test, [worse, *rates])) == tests
    assert judge([worse, *rates])[0].answer == answer
    assert judge([worse])[0].answer == "broken"


def broken_metrics(answers: list[Answered]) -> set[tuple[str, str]]:
    return {(answer.experiment, answer.metric) for answer in answers if answer.answer == "broken"}


def test_a_session_with_nothing_changed_is_not_red_and_a_changed_one_is() -> None:
    """These are few sessions. benchmarks/bench_gate.py has the figures of 500 sessions and more."""

    def judge_sessions(change: Change, sessions: int, ops: int = 3000) -> list[set[tuple[str, str]]]:
        return [broken_metrics(gate(simulated_session(Noise(ops), change, seed))) for seed in range(sessions)]

    assert judge_sessions(Change(), 12) == [set()] * 12
    assert all(("t0", "quiet_p50") in broken for broken in judge_sessions(Change(p50=0.15), 6))
    assert all(("t0", "quiet_p99") in broken for broken in judge_sessions(Change(p99=0.40), 6))
    assert all(("t0", "failed_rate") in broken for broken in judge_sessions(Change(failed=0.03), 6, ops=300))


@pytest.mark.slow
@pytest.mark.parametrize("load", ["calm", "beside"])
def test_changes_in_sessions_drawn_from_recorded_runs_are_found(load: str) -> None:
    """Sessions use the default settings. benchmarks/bench_gate.py has the figures of 500 sessions and more."""

    def find_broken(change: Change, ops: int = 0) -> list[set[tuple[str, str]]]:
        history = History((load,), load, ops=ops)
        return [broken_metrics(gate(drawn_session(history, change, seed))) for seed in range(4)]

    assert find_broken(Change()) == [set()] * 4
    assert all(("t0", "quiet_p50") in broken for broken in find_broken(Change(p50=0.5)))
    slow_tail = find_broken(Change(p99=1.0))
    assert all(("t0", "quiet_p99") in broken and ("t0", "quiet_p50") not in broken for broken in slow_tail)
    assert all(("t0", "failed_rate") in broken for broken in find_broken(Change(failed=0.05), ops=300))
    assert {experiment for experiment, _ in find_broken(Change(p50=0.5))[0]} == {"t0"}
    assert find_broken(Change(lost=1)) == [{("t0", "silent_loss_rate")}] * 4
    assert find_broken(Change(corrupt=1)) == [{("t0", "corrupt_rate")}] * 4


@pytest.mark.slow
@pytest.mark.parametrize("load", ["busy4", "busy16", "bursts"])
def test_sessions_on_a_busy_machine_alarm_only_for_changed_tests(load: str) -> None:
    """If four or more other processes compute, too few operations may be quiet. Then times are not judged."""

    def judge_sessions(change: Change, ops: int = 0) -> list[list[Answered]]:
        history = History((load,), load, ops=ops)
        return [list(gate(drawn_session(history, change, seed))) for seed in range(4)]

    def find_broken(change: Change, ops: int = 0) -> list[set[tuple[str, str]]]:
        return [broken_metrics(session) for session in judge_sessions(change, ops)]

    def answers_on_t0(change: Change, metric: str) -> set[str]:
        return {answer.answer for session in judge_sessions(change) for answer in session
                if (answer.experiment, answer.metric) == ("t0", metric)}  # fmt: skip

    assert find_broken(Change()) == [set()] * 4
    assert answers_on_t0(Change(p50=0.5), "quiet_p50") <= {"broken", "inconclusive"}
    assert answers_on_t0(Change(p99=1.0), "quiet_p99") <= {"broken", "inconclusive"}
    assert "broken" not in answers_on_t0(Change(p99=1.0), "quiet_p50")
    assert answers_on_t0(Change(p50=0.5), "unstarved_p50") <= {"broken"}
    assert "broken" not in answers_on_t0(Change(p99=1.0), "unstarved_p50")
    assert all(("t0", "failed_rate") in broken for broken in find_broken(Change(failed=0.05), ops=300))
    assert {experiment for experiment, _ in find_broken(Change(requests=1))[0]} == {"t0"}
    assert find_broken(Change(lost=1)) == [{("t0", "silent_loss_rate")}] * 4
    assert find_broken(Change(corrupt=1)) == [{("t0", "corrupt_rate")}] * 4


@pytest.mark.parametrize(
    ("load", "minimum"), [("calm", 50), ("beside", 50), ("busy4", 30), ("busy16", 15), ("bursts", 30)]
)
def test_recorded_runs_are_as_many_as_documented(load: str, minimum: int) -> None:
    record = read_record(load)
    assert record is not None
    runs = [run for round_runs in record.rounds for run in round_runs.values()]
    assert len(runs) >= minimum
    assert len({run["elapsed"] for run in runs}) > len(runs) / 2, "each run was measured"
