"""Make expectations from the entries of a session: bounds wide enough for the next run, with date and source.

This module decides which metrics become bounds, how wide these are, and which entries give none. A bound comes only
from an entry that may be a baseline: its test passed, to the end, without doubts. Claims from other sources (an
agreement, a paper) are no observations and stay as they are.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10
from typing import Any

from pytest_cloudbench.judge.baseline import find_number, is_finite, unfit_reason
from pytest_cloudbench.judge.expect import Expectation, select
from pytest_cloudbench.judge.metrics import METRICS, is_answer
from pytest_cloudbench.judge.significance import wilson
from pytest_cloudbench.model import Verb

_SOURCE = "observed "
"""The beginning of the source of every observed claim. Only claims with it are renewed."""

_NEW_METRICS = ("loss_rate", "failed_rate", "throttled_rate", "response_p50", "response_p99")
"""The metrics of a run that become claims. A conclusion gets claims on all its metrics, of times only p50 and p99."""
_OMITTED_PERCENTILES = ("_p90", "_p95", "_p99.9", "_max")

_MARGINS = {"p50": 0.10}
_MARGIN = 0.25
"""The distance of a bound from the number: 10 % for a median and for all but times, 25 % for other times."""

_SHARES_OF_TIME = ("starved_share",)
"""Metrics of a run that are fractions, but not of a number of operations or files."""

_DIGITS = 3


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """One entry of a session.

    Attributes:
        names: the names of its provider in claims, the last one being the shortest unique one.
        test: the test function's name.
        params: the test's parameters besides the provider.
        info: the entry's extra_info.
        is_conclusion: whether it is a conclusion from several runs.
    """

    names: Sequence[str]
    test: str
    params: Mapping[str, Any]
    info: Mapping[str, Any]
    is_conclusion: bool = False


@dataclass(slots=True)
class ClaimChanges:
    """The changes to a file of claims.

    Attributes:
        renewed: the index of an old claim to the claim that replaces it, if the bounds differ.
        added: claims on metrics that had none.
        kept: the number of old observed claims whose bounds stay the same.
        left: how many claims or metrics are left unchanged, by the reason.
    """

    renewed: dict[int, Expectation] = field(default_factory=dict)
    added: list[Expectation] = field(default_factory=list)
    kept: int = 0
    left: Counter[str] = field(default_factory=Counter)


def is_observed(claim: Expectation) -> bool:
    """Return whether a claim was made from observations, so that it may be renewed."""
    return claim.source.startswith(_SOURCE)


def observe(measured: Sequence[SessionEntry], claims: Sequence[Expectation], date: datetime.date) -> ClaimChanges:
    """Return the changes of recorded claims by a session. A claim on several entries holds for all of them.

    Args:
        measured: the session's entries.
        claims: the claims in the file, in its order.
        date: the date of the session.
    """
    changes = ClaimChanges()
    for index, claim in enumerate(claims):
        if is_observed(claim):
            _renew(index, claim, measured, date, changes)
    for (provider, metric, *_), entries in _find_unclaimed(measured, claims).items():
        where = _where_of(entries[0])
        reason = next(_find_objections(entries, metric), "")
        if not reason and not all(map(_is_toml_value, where.values())):
            reason = "has a parameter that TOML cannot hold"
        if reason:
            changes.left[reason] += 1
            continue
        at_least, at_most = (0.0, None) if METRICS[metric].better == "higher" else (None, 0.0)
        claim = Expectation(provider, metric, at_least, at_most, "", date, where)
        changes.added.append(_make_claim(claim, entries, date))
    return changes


def _renew(
    index: int, claim: Expectation, measured: Sequence[SessionEntry], date: datetime.date, changes: ClaimChanges
) -> None:
    entries = [entry for entry in measured if _applies_to(claim, entry) and claim.metric in entry.info]
    if reason := next(_find_objections(entries, claim.metric), ""):
        changes.left[reason] += 1
    elif entries:
        new_claim = _make_claim(claim, entries, date)
        if (new_claim.at_least, new_claim.at_most) == (claim.at_least, claim.at_most):
            changes.kept += 1
        else:
            changes.renewed[index] = new_claim


def _find_unclaimed(
    measured: Sequence[SessionEntry], claims: Sequence[Expectation]
) -> dict[tuple[str, ...], list[SessionEntry]]:
    """Return the entries that get new claims, by provider, metric, and what the claims apply to.

    An entry that already has an observed claim gets no others, because the user has chosen its metrics.
    """
    unclaimed: dict[tuple[str, ...], list[SessionEntry]] = {}
    for entry in measured:
        entry_claims = [claim for claim in claims if _applies_to(claim, entry) and claim.metric in entry.info]
        if any(is_observed(claim) for claim in entry_claims):
            continue
        for metric in _claimable_metrics(entry):
            if metric not in {claim.metric for claim in entry_claims}:
                key = (entry.names[-1], metric, repr(sorted(_where_of(entry).items())))
                unclaimed.setdefault(key, []).append(entry)
    return unclaimed


def _where_of(entry: SessionEntry) -> dict[str, Any]:
    """Return what a new claim on an entry applies to: its test, and parameters of other names."""
    return {"test": entry.test, **{name: value for name, value in entry.params.items() if name != "test"}}


def _applies_to(claim: Expectation, entry: SessionEntry) -> bool:
    return bool(select([claim], entry.names, entry.test, entry.params))


def _claimable_metrics(entry: SessionEntry) -> list[str]:
    """Return the metrics of an entry that new claims are made on: those with a known value."""
    metrics = [name for name in METRICS if not name.endswith(_OMITTED_PERCENTILES)]
    return [name for name in (metrics if entry.is_conclusion else _NEW_METRICS) if entry.info.get(name) is not None]


def _find_objections(entries: Sequence[SessionEntry], metric: str) -> Iterator[str]:
    """Yield the reasons why entries may not become a bound."""
    for entry in entries:
        if reason := unfit_reason(entry.info, metric, False):
            yield reason
        elif METRICS[metric].time_like and entry.info.get("time_scale", 1.0) != 1.0:
            yield "had times that --time-scale distorts"
        elif METRICS[metric].time_like and entry.info.get("through_controller"):
            yield "had times that include the connection to other hosts"


def _make_claim(old: Expectation, entries: Sequence[SessionEntry], date: datetime.date) -> Expectation:
    """Return a claim with bounds around the observed values, on the same sides as the old claim's."""
    values = [_number(entry, old.metric) for entry in entries]
    highest = max(entries, key=lambda entry: _number(entry, old.metric))
    lowest = min(entries, key=lambda entry: _number(entry, old.metric))
    at_most = None if old.at_most is None else _round_outwards(_bound(highest, old.metric, 1), ceil)
    at_least = None if old.at_least is None else _round_outwards(_bound(lowest, old.metric, -1), floor)
    observed = f"{min(values):.4g}" if min(values) == max(values) else f"{min(values):.4g} to {max(values):.4g}"
    info = entries[-1].info
    where = f"in run {info.get('run_id', 'unknown')} on {info.get('machine', 'an unknown machine')}"
    source = f"{_SOURCE}{observed} {METRICS[old.metric].unit} {where}; {_margin_text(entries[0], old.metric)}"
    return Expectation(old.provider, old.metric, at_least, at_most, source, date, old.where)


def _number(entry: SessionEntry, metric: str) -> float:
    """Return a metric of an entry without objections, which is known."""
    value = find_number(entry.info, metric)
    assert value is not None
    return value


def _count_tries(entry: SessionEntry, metric: str) -> int | None:
    """Return the number of operations or files behind a rate. None if it is not a rate of a run, or a share of time."""
    if METRICS[metric].unit != "fraction" or METRICS[metric].of is None or metric in _SHARES_OF_TIME:
        return None
    count = entry.info.get("files" if _counts_files(metric) else "ops")
    return count if isinstance(count, int) and count > 0 else None


def _counts_files(metric: str) -> bool:
    """Return whether a rate of a run is one of the files that it put, as the provider lists them at the end."""
    return METRICS[metric].about == (Verb.PUT,)


def _bound(entry: SessionEntry, metric: str, direction: int) -> float:
    """Return the bound above (``direction`` 1) or below (-1) an entry's number.

    The bound of a rate is the end of its 95 % interval (Wilson's), because a run of few operations measures a rate
    badly. But a rate of exactly 0 or 1 is its own bound.
    """
    value, count = _number(entry, metric), _count_tries(entry, metric)
    if is_answer(metric):
        return value
    if count is None:
        return value + direction * abs(value) * _margin(metric)
    if value in (0.0, 1.0):
        return value
    return wilson(value, count)[direction > 0]


def _margin(metric: str) -> float:
    label = metric.rpartition("_")[2]
    return _MARGINS.get(label, _MARGIN) if METRICS[metric].time_like else _MARGINS["p50"]


def _margin_text(entry: SessionEntry, metric: str) -> str:
    if is_answer(metric):
        return "exact"
    count = _count_tries(entry, metric)
    if count is None:
        return f"margin {_margin(metric):.0%}"
    return f"95 % interval of {count} {'files' if _counts_files(metric) else 'operations'}, 0 and 1 exact"


def _round_outwards(value: float, outwards: Any) -> float:
    """Return the number with few digits, rounded away from the observed values."""
    if value in {0.0, 1.0}:
        return value
    digits = _DIGITS - 1 - floor(log10(abs(value)))
    return float(f"{outwards(round(value * 10.0**digits, 6)) / 10.0**digits:.{_DIGITS + 1}g}")


def _is_toml_value(value: Any) -> bool:
    return isinstance(value, (str, bool)) or is_finite(value)
