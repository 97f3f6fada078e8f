"""What a relative gate compares with: which of the stored entries may be a baseline.

What may live here: the choice, as a pure function of stored entries and of the judged entry. Stored entries are
not trusted: they can come from an older version or another program, or be damaged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

ENTRY_SCHEMA = 2
"""Version of an entry's extra_info. 1: the first. 2: adds how its test ended, and the conditions that runs must share
to be compared."""

CONDITIONS = (
    "agents", "machine", "provider", "profile_digest", "time_scale", "operation", "sensors", "threads", "planned_ops",
    "payload", "size_bytes", "arrival", "loop", "warm_up_s", "until", "for_s",
)  # fmt: skip
"""What two runs must have in common for their numbers to be comparable."""

ONLY_AT_GATE = "failed only at the gate"
"""Why an entry is not a baseline if its test passed until the regression gate called it broken."""
HAD_DOUBTS = "had doubts"
HAD_DOUBTFUL_TIMES = "had doubts about its times"
"""Why an entry is not a baseline for times; its counts are right."""
WAS_OUTLIER = "was an outlier that did not come again"
FOLLOWED = (ONLY_AT_GATE, WAS_OUTLIER)
"""Such a run is no baseline, but belongs to a series that is followed for what adds up. Without its outliers, which lie
on one side, a series would seem better than it is.
"""
COMPARABLE = ("", *FOLLOWED, HAD_DOUBTFUL_TIMES)
"""What may be said of a run that the regression gate compares with, at least in part."""
"""Why an entry is not a baseline if the regression gate has measured it again, and it was not as bad."""

SATURATED = "engine saturated ("
"""How the doubt begins that the client was late."""

STARVED = "threads waited for a CPU for "
"""How the doubt begins that the times are those of a busy machine."""

_LONGEST = 60
_ABOUT_TIMES = re.compile(
    rf"{re.escape(SATURATED)}|{STARVED}|\S+ drifted during the run \(|\S+ is \S+ .* still settling$"
)


@dataclass(frozen=True, slots=True)
class Stored:
    """One stored entry of a test: the name of the run's file, and the entry's ``extra_info``."""

    run: str
    info: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """What a gate compares with.

    Attributes:
        value: the metric in the chosen run, or None if there is none.
        remark: with a ``value``, how that run's conditions differ (only a named run's may); else why there is none.
        fails: if there is no value, whether that is an error because the user named the run.
    """

    value: float | None
    remark: str = ""
    fails: bool = False


def finite(value: object) -> bool:
    """Return whether this is a number that a float can hold."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:
        return False


def unfit(info: Mapping[str, Any], metric: str, higher: bool) -> str:
    """Return why an entry cannot be a baseline, worded for one entry or many; empty if it can."""
    for fault in faults(info):
        return fault
    value: Any = info.get(metric)
    if not finite(value):
        return f"held no number for {metric}"
    return f"held {value:g} for {metric}, to which no percentage applies" if higher and value <= 0 else ""


def faults(info: Mapping[str, Any]) -> list[str]:
    """Return all that keeps an entry from being a baseline whatever the metric, the gravest first."""
    found = ["compared two sides"] if "versus" in info or "block" in info else []
    if info.get("schema") != ENTRY_SCHEMA:
        return found
    is_cut = info.get("outcome") in ("interrupted", "unfinished")
    found += ["ended in an interruption"] * is_cut
    doubts = info.get("doubts")
    is_doubtful = doubts != [] or info.get("missing_agents") != {}
    has_counts = isinstance(doubts, list) and all(map(is_about_times, doubts)) and info.get("missing_agents") == {}
    found += [HAD_DOUBTS] * (is_doubtful and not has_counts)
    if info.get("outcome") != "passed" and not is_cut:
        found.append(ONLY_AT_GATE if _gate_failed_it(info) else "did not pass")
    elif isinstance(gate := info.get("gate"), Mapping) and gate.get("quarantined"):
        found.append(WAS_OUTLIER)
    return found + [HAD_DOUBTFUL_TIMES] * (is_doubtful and has_counts)


def is_about_times(doubt: object) -> bool:
    """Return whether a doubt is about times only, so that counts can be judged all the same."""
    return isinstance(doubt, str) and _ABOUT_TIMES.match(doubt) is not None


def _gate_failed_it(info: Mapping[str, Any]) -> bool:
    """Return whether nothing but the regression gate failed an entry's test: it judges those alone that had passed."""
    gate = info.get("gate")
    return info.get("outcome") == "failed" and isinstance(gate, Mapping) and isinstance(gate.get("answer"), str)


def differing(info: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how an entry's conditions differ from the current ones, in the past tense; empty if they do not."""
    if info.get("schema") != ENTRY_SCHEMA:
        return "came from another version"
    fields = [key for key in CONDITIONS if info.get(key) != now.get(key)]
    if not fields:
        return ""
    return "differed in " + ", ".join(f"{key} ({_shown(info.get(key))}, here {_shown(now.get(key))})" for key in fields)


def choose(
    stored: Sequence[Stored], now: Mapping[str, Any], metric: str, named: str = "", *, higher: bool = False
) -> Compared:
    """Choose the latest entry that may be a baseline. ``stored`` holds all entries of one test, the latest last.

    A named run is used even if it ran under other conditions, which the remark states, but never a run that
    did not pass, was interrupted or had doubts.

    Args:
        stored: entries of the named run, or of all runs.
        now: ``extra_info`` of the entry that is judged.
        metric: the metric to compare.
        named: the run that the user named, or nothing.
        higher: whether higher is better; if so, a run with zero is not used as a baseline, because no gate could break.
    """
    if named and not stored:
        return Compared(None, f"the run {named} has no entry for this test", fails=True)
    reasons: list[str] = []
    for entry in reversed(stored):
        reason = unfit(entry.info, metric, higher)
        differs = "" if reason else differing(entry.info, now)
        if not reason and (named or not differs):
            return Compared(float(entry.info[metric]), f"{entry.run} {differs}" if differs else "")
        reasons.append(reason or differs)
    if named:
        return Compared(None, f"{stored[-1].run} {reasons[0]}", fails=True)
    return Compared(None, told(reasons))


def told(reasons: Sequence[str]) -> str:
    """Return why there is no baseline, in one line."""
    if not reasons:
        return "no baseline yet"
    if len(set(reasons)) == 1:
        runs = f"the {len(reasons)} stored runs" if len(reasons) > 1 else "the stored run"
        return f"no baseline: {runs} {reasons[0]}"
    counted = ", ".join(f"{count} {reason}" for reason, count in Counter(reasons).items())
    return f"no baseline: of {len(reasons)} stored runs {counted}"


def _shown(value: object) -> str:
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
