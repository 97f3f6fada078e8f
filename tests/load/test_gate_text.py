"""The regression gate's texts about each answer, word for word."""

from __future__ import annotations

from dataclasses import replace
from math import log, log1p

import pytest

from pytest_cloudbench.judge.checks import Check, Kind, Reading
from pytest_cloudbench.judge.drift import SeriesDrift
from pytest_cloudbench.judge.gate import AGAIN, Ruling, judge
from pytest_cloudbench.load.gate.text import change_text, exclusion_text, remarks_of, ruling_text

YES, NO = 1.0, 0.0


def capability(now: float | None, before: tuple[float, ...], again: tuple[float, ...] = ()) -> str:
    return text_for("yes", now, before, again)


def text_for(
    kind: Kind, now: float | None, before: tuple[float, ...], again: tuple[float, ...] = (), why: str = ""
) -> str:
    readings = tuple(map(Reading, before)), Reading(now), tuple(map(Reading, again))
    check = Check("t", "m", kind, 0.1, *readings, why, higher=kind == "yes")
    (ruling,) = judge([check])
    return f"{ruling.answer}: {ruling_text(ruling)}"


@pytest.mark.parametrize(
    ("again", "left_out", "text"),
    [
        ((1.2, 1.2), [], ""),
        ((1.2, None), [], "; 1 repetition had too few operations for it, or a slower machine"),
        ((None, None), ["late", "later"], "; 2 repetitions do not count: late"),
        ((None, None, None), ["late"],
         "; 1 repetition does not count: late; 2 repetitions had too few operations for it, or a slower machine"),
    ],
)  # fmt: skip
def test_repetitions_that_do_not_count_have_a_reason(
    again: tuple[float | None, ...], left_out: list[str], text: str
) -> None:
    check = Check("t", "quiet_p50", "level", 0.1, (), Reading(1.2), tuple(map(Reading, again)))
    assert exclusion_text(Ruling(check, "inconclusive"), left_out) == text


@pytest.mark.parametrize(("now", "before", "again", "expected"), [
    (NO, (NO,) * 4, (), "met: m: was no in 4 runs, and is no"),
    (YES, (NO,) * 4, (), "met: m: was no in 4 runs, and is yes"),
    (YES, (YES,) * 4, (), "met: m: was yes in 4 runs, and is yes"),
    (NO, (YES,) * 4, (NO,) * AGAIN, "broken: m: was yes in 4 runs, and is no"),
    (NO, (YES,) * 4, (YES, YES, NO), "met: m: was yes in 4 runs, and is yes"),
    (NO, (YES, NO, YES), (), "inconclusive: m: was yes in 2 of 3 runs, and is no"),
    (YES, (YES, NO, YES), (), "met: m: was yes in 2 of 3 runs, and is yes"),
    (None, (YES,) * 4, (), "inconclusive: m: was yes in 4 runs, and is not known"),
    (None, (NO,) * 4, (), "inconclusive: m: was no in 4 runs, and is not known"),
    (NO, (YES,) * 2, (), "inconclusive: m: baseline 2 of 3"),
    (NO, (YES,) * 4, (NO,),
     "inconclusive: m: was yes in 4 runs, and is no: a suspect, measured again 1 of 3 times"),
])  # fmt: skip
def test_text_of_a_capability_has_its_former_and_present_values(
    now: float | None, before: tuple[float, ...], again: tuple[float, ...], expected: str
) -> None:
    assert capability(now, before, again) == expected


@pytest.mark.parametrize(("higher", "before", "now", "expected"), [
    (True, YES, NO, "broken: m: +100 % worse than 20 runs: it was not measured again"),
    (True, 2.0, 3.0, "met: m: better than 20 runs, -50 %"),
    (True, NO, YES, "met: m: better than 20 runs, -inf %"),
    (True, YES, YES, "met: m: +0.0 % worse than 20 runs"),
    (False, NO, YES, "broken: m: +inf % worse than 20 runs: it was not measured again"),
    (False, 2.0, 3.0, "broken: m: +50 % worse than 20 runs: it was not measured again"),
    (False, 2.0, 1.0, "met: m: better than 20 runs, -50 %"),
])  # fmt: skip
def test_text_of_an_exact_number_says_worse_in_the_direction_that_is_worse(
    higher: bool, before: float, now: float, expected: str
) -> None:
    check = Check("t", "m", "exact", 0.1, (Reading(before),) * 20, Reading(now), higher=higher)
    assert text_of(check) == expected


RUNS = tuple(1 + number % 5 / 20 for number in range(11))


def test_text_of_an_improvement_does_not_say_worse() -> None:
    assert text_for("level", 0.8, RUNS).startswith("met: m: better than 11 runs, -27 % (")
    assert text_for("level", 1.1, RUNS).startswith("inconclusive: m: +1.1 % (")
    assert " %) worse than 11 runs: only changes of " in text_for("level", 1.1, RUNS)


def test_text_without_judgement_has_no_comparison() -> None:
    assert text_for("level", 1.0, (), why="300 quiet operations are needed, found 50") == (
        "inconclusive: m: 300 quiet operations are needed, found 50"
    )
    assert text_for("level", None, RUNS) == "inconclusive: m: this run has no value"


def level(now: float, again: tuple[float, ...] = (), odd: tuple[float, ...] = ()) -> Check:
    """Return a check of a metric around 1, with some runs far away from it. Each run has a name."""
    values = [*(1 + number % 5 / 200 for number in range(20 - len(odd))), *odd]
    baseline = tuple(Reading(value, run=f"{number:04d}") for number, value in enumerate(values))
    return Check("t", "p50", "level", 0.1, baseline, Reading(now), tuple(map(Reading, again)))


def rate(now: int, again: tuple[int, ...] = (), before: tuple[int, ...] = (0,) * 20) -> Check:
    def make_reading(count: int, run: str = "") -> Reading:
        return Reading(count / 400, count, 400, run=run)

    baseline = tuple(make_reading(count, f"{number:04d}") for number, count in enumerate(before))
    return Check("t", "failed_rate", "rate", 0.01, baseline, make_reading(now), tuple(map(make_reading, again)))


def lines(check: Check) -> list[str]:
    (ruling,) = judge([check])
    return remarks_of(ruling)


def test_an_unremarkable_ruling_needs_no_remark() -> None:
    assert lines(level(1.0)) == []
    assert lines(rate(0)) == []


def test_remark_on_a_single_outlier_has_both_values() -> None:
    assert lines(level(4.9, (1.01,))) == ["p50: +385 % in the run, +0.0 % when repeated: this run is no baseline"]
    assert lines(rate(12, (0, 0, 1))) == [
        "failed_rate: an incident, 12 of 400 in the run, 1 of 1,200 when repeated: this run is no baseline"
    ]


def test_remark_on_excluded_runs_has_their_changes() -> None:
    assert lines(level(1.01, odd=(5.05, 0.101))) == [
        "p50: left out of the baseline, too far from its other runs: 0018 (+400 %), 0019 (-90 %)"
    ]
    assert lines(rate(0, before=(*(0,) * 19, 100))) == [
        "failed_rate: left out of the baseline, too far from its other runs: 0019 (+25 points)"
    ]


def test_a_run_without_a_name_is_a_run() -> None:
    check = level(1.01, odd=(5.05,))
    (line,) = lines(replace(check, baseline=tuple(replace(reading, run="") for reading in check.baseline)))
    assert line.endswith(": a run (+400 %)")


def test_remark_names_improvement_at_the_start_of_the_baseline() -> None:
    improved = replace(level(1.01), since="0041", improved=-0.3)
    assert lines(improved) == ["p50: improved by 30 % at 0041, where the baseline begins"]
    assert lines(replace(improved, is_before=True)) == []
    more = replace(improved, improved=1.02, higher=True)
    assert lines(more) == ["p50: improved by 102 % at 0041, where the baseline begins"]


def test_text_of_a_broken_incident_has_its_repetitions() -> None:
    text = text_of(rate(120, (0, 0, 0)))
    assert text.startswith("broken: failed_rate: +7.5 points (")
    assert text.endswith(" worse than 20 runs; an incident, 120 of 400 in the run, 0 of 1,200 when repeated")


def text_of(check: Check) -> str:
    (ruling,) = judge([check])
    return f"{ruling.answer}: {ruling_text(ruling)}"


def test_text_of_a_fact_has_its_counts() -> None:
    fact = Check("t", "silent_loss_rate", "fact", 0.1, (), Reading(0.2, 60, 300), (Reading(0.0, 0, 300),) * 3)
    assert text_of(fact) == "broken: silent_loss_rate: 60 of 300: not in 3 repetitions: intermittent"
    assert text_of(replace(fact, again=())) == "broken: silent_loss_rate: 60 of 300: it was not measured again"
    assert text_of(replace(fact, again=(Reading(0.1, 30, 300),))).endswith(": in 1 of 1 repetition, too")
    flips = Check("t", "flips", "fact", 0.1, (), Reading(1234.0, 1234))
    assert text_of(flips) == "broken: flips: 1,234: it was not measured again"
    (clean,) = judge([replace(fact, now=Reading(0.0, 0, 300))])
    assert (clean.answer, change_text(clean)) == ("met", "")


def open_regression(step: float, now: float) -> Check:
    """Return a check of thirty runs around 1, and of thirty that are worse by this share."""
    drift = SeriesDrift(log1p(0.1))
    for number in range(60):
        drift.add(log(1 + number % 5 / 200) + log1p(step) * (number >= 30), name=f"{number:04d}")
    check = level(now * (1 + step), (now * (1 + step),) * AGAIN)
    baseline = tuple(replace(reading, value=(reading.value or 0) * (1 + step)) for reading in check.baseline)
    return replace(check, baseline=baseline, drift=drift)


def test_text_of_an_open_regression_has_begin_change_and_slope() -> None:
    text = text_of(open_regression(0.15, 1.01))
    assert text.startswith("broken: p50: an open regression since 00")
    assert ", +15 % worse than the accepted state, +0." in text
    assert text.endswith(" over 61 runs")


def test_text_of_an_open_regression_mentions_better_last_runs() -> None:
    check = open_regression(0.15, 1.01)
    assert check.drift is not None
    for number in range(2):
        check.drift.add(log(1.075), name=f"006{number}")
    text = text_of(replace(check, now=Reading(1.075), again=(Reading(1.075),) * AGAIN))
    assert text.startswith("inconclusive: p50: an open regression since 00")
    assert text.endswith("; the last runs are better, but it is not sure that it is gone")
