"""What the regression gate says of each answer, word for word."""

from __future__ import annotations

import pytest

from pytest_cloudbench.judge.gate import AGAIN, Check, Kind, Reading, judge
from pytest_cloudbench.load.gate_text import ruling_text

YES, NO = 1.0, 0.0


def capability(now: float | None, before: tuple[float, ...], again: tuple[float, ...] = ()) -> str:
    return said("yes", now, before, again)


def said(kind: Kind, now: float | None, before: tuple[float, ...], again: tuple[float, ...] = (), why: str = "") -> str:
    check = Check("t", "m", kind, 0.1, tuple(map(Reading, before)), Reading(now), tuple(map(Reading, again)), why)
    (found,) = judge([check])
    return f"{found.answer}: {ruling_text(found)}"


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
def test_a_capability_says_what_it_was_and_is(
    now: float | None, before: tuple[float, ...], again: tuple[float, ...], expected: str
) -> None:
    assert capability(now, before, again) == expected


RUNS = tuple(1 + number % 5 / 20 for number in range(11))


def test_what_is_better_is_not_called_worse() -> None:
    assert said("level", 0.8, RUNS).startswith("met: m: better than 11 runs, -27 % (")
    assert said("level", 1.1, RUNS).startswith("inconclusive: m: +1.1 % (")
    assert " %) worse than 11 runs: only changes of " in said("level", 1.1, RUNS)


def test_what_is_not_judged_compares_with_nothing() -> None:
    assert said("level", 1.0, (), why="300 quiet operations are needed, found 50") == (
        "inconclusive: m: 300 quiet operations are needed, found 50"
    )
    assert said("level", None, RUNS) == "inconclusive: m: this run has no value"
