"""Expectations from what a session has measured: bounds that are wide enough for the next run, with date and source.

What may live here: which metrics become bounds, how wide they are, and which entries may not become any, as pure
functions. A bound is only ever from an entry that may be a baseline: it passed, to its end, without doubts. Claims of
other sources (an agreement, a paper) are not observations and stay as they are.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10
from typing import Any

from pytest_cloudbench.judge.baseline import is_finite, unfit_reason
from pytest_cloudbench.judge.expect import Expectation, select
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.judge.significance import wilson

_SOURCE = "observed "
"""Begins the source of every claim that is made here; claims with it are renewed."""

_NEW = ("loss_rate", "failed_rate", "throttled_rate", "response_p50", "response_p99")
"""What a run without observed claims gets; a conclusion gets its own metrics, but of times the p50 and p99 only."""
_OTHER_SHARES = ("_p90", "_p95", "_p99.9", "_max")

_MARGINS = {"p50": 0.10}
_MARGIN = 0.25
"""A bound's distance from the number: 10 % for a median and for everything but times, 25 % for other times."""

_EXACT = "1 is yes"
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """One entry of a session.

    Attributes:
        names: what its provider goes by in claims, the shortest that tells it apart last.
        test: the test function's name.
        params: the test's parameters besides the provider.
        info: the entry's extra_info.
        is_conclusion: whether it stands for several runs.
    """

    names: Sequence[str]
    test: str
    params: Mapping[str, Any]
    info: Mapping[str, Any]
    is_conclusion: bool = False


@dataclass(slots=True)
class ClaimChanges:
    """What is to be written.

    Attributes:
        renewed: place of an old claim to the one that replaces it, only where bounds differ.
        added: claims on what had none.
        kept: old observed claims that hold as they are.
        left: how many claims or metrics were left as they are, by the reason.
    """

    renewed: dict[int, Expectation] = field(default_factory=dict)
    added: list[Expectation] = field(default_factory=list)
    kept: int = 0
    left: Counter[str] = field(default_factory=Counter)


def is_observed(claim: Expectation) -> bool:
    """Return whether a claim was made here, so that it may be renewed."""
    return claim.source.startswith(_SOURCE)


def observe(measured: Sequence[SessionEntry], claims: Sequence[Expectation], date: datetime.date) -> ClaimChanges:
    """Return what a session changes about recorded claims. A claim on several entries holds for all of them.

    Args:
        measured: the session's entries.
        claims: those in the file, in its order.
        date: of the session.
    """
    changes = ClaimChanges()
    for place, claim in enumerate(claims):
        if is_observed(claim):
            _renew(place, claim, measured, date, changes)
    for (provider, metric, *_), about in _unclaimed(measured, claims).items():
        test, params = about[0].test, about[0].params
        reason = next(_reasons(about, metric), "")
        if not reason and not all(_is_plain(value) for value in params.values()):
            reason = "has a parameter that TOML cannot hold"
        if reason:
            changes.left[reason] += 1
            continue
        at_least, at_most = (0.0, None) if METRICS[metric].better == "higher" else (None, 0.0)
        claim = Expectation(provider, metric, at_least, at_most, "", date, {"test": test, **params})
        changes.added.append(_claim(claim, about, date))
    return changes


def _renew(
    place: int, claim: Expectation, measured: Sequence[SessionEntry], date: datetime.date, changes: ClaimChanges
) -> None:
    about = [each for each in measured if _is_about(claim, each) and claim.metric in each.info]
    if reason := next(_reasons(about, claim.metric), ""):
        changes.left[reason] += 1
    elif about:
        found = _claim(claim, about, date)
        if (found.at_least, found.at_most) == (claim.at_least, claim.at_most):
            changes.kept += 1
        else:
            changes.renewed[place] = found


def _unclaimed(
    measured: Sequence[SessionEntry], claims: Sequence[Expectation]
) -> dict[tuple[str, ...], list[SessionEntry]]:
    """Return the entries that get new claims, by provider, metric and whatever else tells them apart.

    An entry that already has an observed claim is left out: its bound was chosen by the user.
    """
    found: dict[tuple[str, ...], list[SessionEntry]] = {}
    for each in measured:
        mine = [claim for claim in claims if _is_about(claim, each) and claim.metric in each.info]
        if any(is_observed(claim) for claim in mine):
            continue
        for metric in _metrics(each):
            if metric not in {claim.metric for claim in mine}:
                key = (each.names[-1], metric, each.test, repr(sorted(each.params.items())))
                found.setdefault(key, []).append(each)
    return found


def _is_about(claim: Expectation, each: SessionEntry) -> bool:
    return bool(select([claim], each.names, each.test, each.params))


def _metrics(each: SessionEntry) -> list[str]:
    """Return the metrics that an entry's new claims are on: known ones."""
    own = [name for name in METRICS if not name.endswith(_OTHER_SHARES)]
    return [name for name in (own if each.is_conclusion else _NEW) if each.info.get(name) is not None]


def _reasons(about: Sequence[SessionEntry], metric: str) -> Iterator[str]:
    """Yield why an entry may not become a bound."""
    for each in about:
        if reason := unfit_reason(each.info, metric, False):
            yield reason
        elif METRICS[metric].time_like and each.info.get("time_scale", 1.0) != 1.0:
            yield "had times that --time-scale distorts"


def _claim(old: Expectation, about: Sequence[SessionEntry], date: datetime.date) -> Expectation:
    """Return a claim with the same bounds, below and above, around what was observed."""
    values = [float(each.info[old.metric]) for each in about]
    highest = max(about, key=lambda each: float(each.info[old.metric]))
    lowest = min(about, key=lambda each: float(each.info[old.metric]))
    at_most = None if old.at_most is None else _rounded(_bound(highest, old.metric, 1), ceil)
    at_least = None if old.at_least is None else _rounded(_bound(lowest, old.metric, -1), floor)
    seen = f"{min(values):.4g}" if min(values) == max(values) else f"{min(values):.4g} to {max(values):.4g}"
    info = about[-1].info
    where = f"in run {info.get('run_id', 'unknown')} on {info.get('machine', 'an unknown machine')}"
    source = f"{_SOURCE}{seen} {METRICS[old.metric].unit} {where}; {_margin_text(about[0], old.metric)}"
    return Expectation(old.provider, old.metric, at_least, at_most, source, date, old.where)


def _count(each: SessionEntry, metric: str) -> int | None:
    """Return the number of operations or files behind a rate; None if it is not a rate of a run."""
    if METRICS[metric].unit != "fraction" or METRICS[metric].of is None:
        return None
    count = each.info.get("files" if metric.endswith("loss_rate") else "ops")
    return count if isinstance(count, int) and count > 0 else None


def _bound(each: SessionEntry, metric: str, way: int) -> float:
    """Return the bound above (``way`` 1) or below (-1) an entry's number.

    A rate's is the end of its 95 % interval (Wilson's), since one run of few operations tells a rate badly; but what
    never happened, or always, stays at 0 or 1.
    """
    value, count = float(each.info[metric]), _count(each, metric)
    if METRICS[metric].unit == _EXACT:
        return value
    if count is None:
        return value + way * abs(value) * _margin(metric)
    if value in (0.0, 1.0):
        return value
    return wilson(value, count)[way > 0]


def _margin(metric: str) -> float:
    label = metric.rpartition("_")[2]
    return _MARGINS.get(label, _MARGIN) if METRICS[metric].time_like else _MARGINS["p50"]


def _margin_text(each: SessionEntry, metric: str) -> str:
    if METRICS[metric].unit == _EXACT:
        return "exact"
    count = _count(each, metric)
    if count is None:
        return f"margin {_margin(metric):.0%}"
    return f"95 % interval of {count} {'files' if metric.endswith('loss_rate') else 'operations'}, 0 and 1 exact"


def _rounded(value: float, outwards: Any) -> float:
    """Return the number with few digits, never inside of the bound."""
    if value in {0.0, 1.0}:
        return value
    digits = _DIGITS - 1 - floor(log10(abs(value)))
    return float(f"{outwards(round(value * 10.0**digits, 6)) / 10.0**digits:.{_DIGITS + 1}g}")


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, bool)) or is_finite(value)
