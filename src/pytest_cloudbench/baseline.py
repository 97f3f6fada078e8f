"""What a relative gate compares with: which of the stored entries may be a baseline.

What may live here: the choice, as a pure function of stored entries and of the entry that is judged. What was stored is
not trusted: it can be an older version's, another program's, or damaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

__all__ = ["Compared", "Stored", "choose", "finite"]

_SCHEMA = 2
"""Of entries that say how their test ended."""

_SAME = (
    "agents", "machine", "provider", "profile_digest", "time_scale", "operation", "sensors", "threads", "planned_ops",
    "payload", "size_bytes", "arrival", "loop",
)  # fmt: skip
"""What two runs must have in common, or their numbers say nothing about each other."""

_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Stored:
    """One stored entry of a test: the name of the run's file, and the entry's ``extra_info``."""

    run: str
    info: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """What a gate compares with.

    Attributes:
        value: the metric in the run that was chosen, or None where there is none.
        remark: where ``value`` is given, how that run differs, which only a named one may; else why there is none.
        fails: where there is none, whether that is an error: the user has named the run.
    """

    value: float | None
    remark: str = ""
    fails: bool = False


def finite(value: object) -> bool:
    """Whether this is a number that a float can hold."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:
        return False


def _unfit(info: Mapping[str, Any], metric: str) -> str:
    """Why an entry cannot be a baseline, worded for one entry or many; empty if it can."""
    if info.get("schema") == _SCHEMA:
        if info.get("outcome") in ("interrupted", "unfinished"):
            return "ended in an interruption"
        if info.get("doubts") != [] or info.get("missing_agents") != {}:
            return "had doubts"
        if info.get("outcome") != "passed":
            return "did not pass"
    return "" if finite(info.get(metric)) else f"held no number for {metric}"


def _differing(info: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How an entry's conditions differ from now's, as a phrase in the past tense; empty if they do not."""
    if info.get("schema") != _SCHEMA:
        return "came from another version"
    fields = [key for key in _SAME if info.get(key) != now.get(key)]
    if not fields:
        return ""
    return "differed in " + ", ".join(f"{key} ({_shown(info.get(key))}, here {_shown(now.get(key))})" for key in fields)


def choose(stored: Sequence[Stored], now: Mapping[str, Any], metric: str, named: str = "") -> Compared:
    """The metric of the latest entry that may be a baseline. ``stored`` holds all entries of one test, the latest last.

    A named run is compared with although it ran under other conditions, which the remark says, but never one that
    did not pass, was interrupted or had doubts.

    Args:
        stored: those of the runs that ``named`` says, or of all.
        now: ``extra_info`` of the entry that is judged.
        metric: what is compared.
        named: the run that the user has named, or nothing.
    """
    if named and not stored:
        return Compared(None, f"the run {named} has no entry for this test", fails=True)
    reasons: list[str] = []
    for entry in reversed(stored):
        reason = _unfit(entry.info, metric)
        differs = "" if reason else _differing(entry.info, now)
        if not reason and (named or not differs):
            return Compared(float(entry.info[metric]), f"{entry.run} {differs}" if differs else "")
        reasons.append(reason or differs)
    if named:
        return Compared(None, f"{stored[-1].run} {reasons[0]}", fails=True)
    return Compared(None, _told(reasons))


def _told(reasons: Sequence[str]) -> str:
    """Why there is no baseline, in one line."""
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
