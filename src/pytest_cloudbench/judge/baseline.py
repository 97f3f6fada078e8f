"""Choose the stored entry that a relative gate compares with, as a pure function of stored entries.

Stored entries are not trusted: they can come from an older version or another program, or be damaged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_cloudbench.judge.metrics import METRICS, number_key

ENTRY_SCHEMA = 2
"""Version of an entry's extra_info. Version 2 adds how its test ended, and the conditions that runs must share to be
compared."""

CONDITIONS = (
    "agents", "machine", "provider", "profile_digest", "time_scale", "operation", "sensors", "threads", "planned_ops",
    "payload", "size_bytes", "arrival", "loop", "warm_up_s", "until", "for_s", "suite_options",
    "resumed_rounds",
)  # fmt: skip
"""The keys of an entry that must be equal in two runs for their numbers to be comparable, besides its hosts."""

_OF_SESSION = ("agents", "machine", "profile_digest")
"""Conditions that may differ between the sessions of one series. All others are in its name and set-up."""

ONLY_AT_GATE = "failed only at the gate"
"""Why an entry is not a baseline if its test passed until the regression gate called it broken."""
WAS_CUT = "ended in an interruption"
HAD_DOUBTS = "had doubts"
HAD_DOUBTFUL_TIMES = "had doubts about its times"
"""Why an entry is not a baseline for times; its counts are right."""
WAS_OUTLIER = "was an outlier that did not come again"
"""Why an entry is not a baseline if the regression gate has measured it again, and it was not as bad."""
FOLLOWED = (ONLY_AT_GATE, WAS_OUTLIER)
"""Faults of runs that are no baseline, but belong to the series in which the gate looks for a slow rise.

Outliers lie on the worse side, so a series without them would seem better than it is.
"""
COMPARABLE = ("", *FOLLOWED, HAD_DOUBTFUL_TIMES)
"""Faults of runs that the regression gate compares with all the same, at least in part."""

SATURATED = "engine saturated ("
"""The beginning of the doubt that the client was late."""

STARVED = "threads waited for a CPU for "
"""The beginning of the doubt that the machine was busy."""

LINK_IN_TIMES = "the connection to other hosts is a part of times"
"""The doubt about times of agents that reached the provider through the controller's connection to their host."""

_LARGEST = 1e150
_MAX_LENGTH = 100  # machines with the longest names differ in the Python at their end
_ABOUT_TIMES = re.compile(
    rf"{re.escape(SATURATED)}|{STARVED}|\S+ drifted during the run \(|\S+ is \S+ .* still settling$"
)


@dataclass(frozen=True, slots=True)
class BaselineCandidate:
    """One stored entry of a test: the name of the run's file, and the entry's ``extra_info``."""

    run: str
    info: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BaselineValue:
    """The value that a relative gate compares with, or why there is none.

    Attributes:
        value: the metric in the chosen run, or None if there is none.
        remark: with a ``value``, how that run's conditions differ (only a named run's may). Otherwise the reason.
        fails: if there is no value, whether that is an error because the user named the run.
    """

    value: float | None
    remark: str = ""
    fails: bool = False


def is_finite(value: object) -> bool:
    """Return whether a value is a number whose square a float can hold. Larger ones are damaged, and sums overflow."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST


def find_number(info: Mapping[str, Any], name: str) -> float | None:
    """Return a metric, or another number, of an entry. None if it is unknown, or has another unit than the metric."""
    value: Any = info.get(number_key(name), info.get(name))
    return float(value) if is_finite(value) and not is_in_other_unit(info, name) else None


def list_doubts(info: Mapping[str, Any], *, is_time: bool) -> list[str]:
    """Return the doubts about an entry's numbers, or about one that is a time. Entries are not trusted."""
    stored, scale = info.get("doubts"), info.get("time_scale", 1.0)
    doubts = [str(doubt) for doubt in stored] if isinstance(stored, list) else []
    if info.get("outcome") in ("interrupted", "unfinished"):
        doubts.append(f"the test was {info['outcome']}")
    if is_time and scale != 1.0:
        doubts.append(f"--time-scale {f'{scale:g}' if is_finite(scale) else scale} distorts times")
    return [*doubts, *([LINK_IN_TIMES] if is_time and info.get("through_controller") else [])]


def unfit_reason(info: Mapping[str, Any], metric: str, higher: bool) -> str:
    """Return why an entry cannot be a baseline, worded for one entry or many. Empty if it can."""
    for fault in baseline_faults(info):
        return fault
    if is_in_other_unit(info, metric):
        return f"held {metric} in another unit"
    value = find_number(info, metric)
    if value is None:
        return f"held no number for {metric}"
    return f"held {value:g} for {metric}, to which no percentage applies" if higher and value <= 0 else ""


def is_in_other_unit(info: Mapping[str, Any], metric: str) -> bool:
    """Return whether an entry's suite declared a metric in another unit then than the metric has now."""
    declared: Any = info
    for key in ("suite", "conclusions", metric, "unit"):
        declared = declared.get(key) if isinstance(declared, Mapping) else None
    return declared is not None and metric in METRICS and METRICS[metric].unit != declared


def baseline_faults(info: Mapping[str, Any]) -> list[str]:
    """Return all faults that keep an entry from being a baseline whatever the metric, the gravest first."""
    result = ["compared two sides"] if "versus" in info or "block" in info else []
    if info.get("schema") != ENTRY_SCHEMA:
        return result
    is_cut = info.get("outcome") in ("interrupted", "unfinished")
    result += [WAS_CUT] * is_cut
    doubts = info.get("doubts")
    is_doubtful = doubts != [] or info.get("missing_agents") != {}
    has_counts = isinstance(doubts, list) and all(map(is_about_times, doubts)) and info.get("missing_agents") == {}
    result += [HAD_DOUBTS] * (is_doubtful and not has_counts)
    if info.get("outcome") != "passed" and not is_cut:
        result.append(ONLY_AT_GATE if _gate_failed_it(info) else "did not pass")
    elif isinstance(gate := info.get("gate"), Mapping) and gate.get("quarantined"):
        result.append(WAS_OUTLIER)
    return result + [HAD_DOUBTFUL_TIMES] * (is_doubtful and has_counts)


def is_about_times(doubt: object) -> bool:
    """Return whether a doubt is about times only, so that counts can still be judged."""
    return isinstance(doubt, str) and _ABOUT_TIMES.match(doubt) is not None


def _gate_failed_it(info: Mapping[str, Any]) -> bool:
    """Return whether only the regression gate failed an entry's test. The gate judges only tests that had passed."""
    gate = info.get("gate")
    return info.get("outcome") == "failed" and isinstance(gate, Mapping) and isinstance(gate.get("answer"), str)


def conditions_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions of an entry, or the same conditions if ``info`` is a result of this function.

    The entry's hosts are a condition where agents were on other machines than the controller's.
    """
    hosts = _hosts_by_name(info.get("hosts"))
    return {key: info.get(key) for key in CONDITIONS} | ({"hosts": hosts} if hosts else {})


def session_conditions(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what may differ between the sessions of one series, for ``describe_differences``."""
    hosts = _hosts_by_name(info.get("hosts"))
    return {key: info.get(key) for key in ("schema", *_OF_SESSION)} | ({"hosts": hosts} if hosts else {})


def _hosts_by_name(stored: Any) -> dict[str, str]:
    """Return what must be equal in two runs of each host that still had agents at the end, by the host's name."""
    if isinstance(stored, Mapping):
        return {str(name): str(text) for name, text in stored.items()}
    hosts = {}
    for host in stored if isinstance(stored, list) else ():
        counts = [host.get(key, 0) if isinstance(host, Mapping) else 0 for key in ("agents", "lost_agents")]
        if all(isinstance(count, int) for count in counts) and counts[0] > counts[1]:
            hosts[str(host.get("name"))] = f"{counts[0] - counts[1]} agents on {host.get('machine')}"
    return hosts


def describe_differences(info: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how an entry's conditions differ from the current ones, in the past tense. Empty if they do not."""
    if info.get("schema") != ENTRY_SCHEMA:
        return "came from another version"
    then, here = conditions_of(info), conditions_of(now)
    differences = [
        f"{key} ({_format_value(then[key])}, here {_format_value(here[key])})"
        for key in CONDITIONS if then[key] != here[key]
    ]  # fmt: skip
    if hosts := _describe_hosts(then.get("hosts", {}), here.get("hosts", {})):
        differences.append(f"hosts ({'; '.join(hosts)})")
    return "differed in " + ", ".join(differences) if differences else ""


def _describe_hosts(then: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Return a text for each host that was missing, is missing now, or was another one."""
    texts = [f"without {name}" for name in here if name not in then]
    texts += [f"with {name}, which is missing here" for name in then if name not in here]
    texts += [
        f"{name}: {_format_value(then[name])}, here {_format_value(here[name])}"
        for name in then if name in here and then[name] != here[name]
    ]  # fmt: skip
    return texts


def choose_baseline(
    stored: Sequence[BaselineCandidate], now: Mapping[str, Any], metric: str, named: str = "", *, higher: bool = False
) -> BaselineValue:
    """Choose the latest entry that may be a baseline. ``stored`` holds all entries of one test, the latest last.

    A named run is used even if it ran under other conditions, which the remark states, but never a run that
    did not pass, was interrupted or had doubts.

    Args:
        stored: entries of the named run, or of all runs.
        now: ``extra_info`` of the entry that is judged.
        metric: the metric to compare.
        named: the run that the user named, or an empty text.
        higher: whether higher is better. If so, a run with zero is no baseline, because no gate could ever break.
    """
    if named and not stored:
        return BaselineValue(None, f"the run {named} has no entry for this test", fails=True)
    reasons: list[str] = []
    for entry in reversed(stored):
        reason = unfit_reason(entry.info, metric, higher)
        differs = "" if reason else describe_differences(entry.info, now)
        if not reason and (named or not differs):
            return BaselineValue(find_number(entry.info, metric), f"{entry.run} {differs}" if differs else "")
        reasons.append(reason or differs)
    if named:
        return BaselineValue(None, f"{stored[-1].run} {reasons[0]}", fails=True)
    return BaselineValue(None, explain_no_baseline(reasons))


def explain_no_baseline(reasons: Sequence[str]) -> str:
    """Return why there is no baseline, in one line."""
    if not reasons:
        return "no baseline yet"
    if len(set(reasons)) == 1:
        runs = f"the {len(reasons)} stored runs" if len(reasons) > 1 else "the stored run"
        return f"no baseline: {runs} {reasons[0]}"
    counts = ", ".join(f"{count} {reason}" for reason, count in Counter(reasons).items())
    return f"no baseline: of {len(reasons)} stored runs {counts}"


def _format_value(value: object) -> str:
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..."
