"""What the regression gate watches of an entry: which metrics, how each is judged, and by which margin.

What may live here: the table of metrics, the user's margins, and stored numbers into checks, as pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log1p
from typing import Any

from pytest_cloudbench.judge.baseline import ONLY_AT_GATE, is_finite
from pytest_cloudbench.judge.changepoints import ChangePoint, find_changes
from pytest_cloudbench.judge.drift import ANCHOR_RUNS, SeriesDrift
from pytest_cloudbench.judge.gate import FEWEST_RUNS, MOST_RUNS, Check, Kind, Reading, followed_value
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.judge.paired import margin_of
from pytest_cloudbench.judge.quiet import NEIGHBOURS
from pytest_cloudbench.model import UsageError, did_you_mean

Margins = Mapping[str, float | None]
"""Metric, or ``p50`` and ``p99`` for all that end so, to the smallest change that matters; None: not gated."""

Numbers = Mapping[str, Any]
"""The numbers at the top level of an entry; one that is missing is not known."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """How a metric is judged.

    Attributes:
        kind: see ``gate.Kind``.
        margin: its default.
        decides: see ``gate.Check``.
        fewest_ops: quiet operations that it needs.
        count, of: keys of a rate's counts; with ``rest``, what is left of the whole is counted.
        by: the number that it is divided by before it is compared.
        beside: the number that must not be much larger than before, or nothing can be said.
        clump: see ``gate.Check``.
        handshakes: whether those of connections that operations open are in it; a busy machine has more at a time.
        usual: the number that says what most operations had.
        is_time: whether what delays the client, or keeps it from the CPU, changes it.
    """

    kind: Kind
    margin: float = 0.10
    decides: bool = True
    fewest_ops: int = 0
    count: str = ""
    of: str = "ops"
    rest: bool = False
    by: str = ""
    beside: str = ""
    clump: int = 1
    handshakes: bool = False
    usual: str = ""
    is_time: bool = False


_OF_RUNS: dict[str, _Watched] = {
    "quiet_p50": _Watched("level", 0.10, fewest_ops=40, is_time=True),
    "quiet_p99": _Watched("level", 0.25, fewest_ops=300, is_time=True),
    "silent_loss_rate": _Watched("fact", count="silently_lost", of="files"),
    "corrupt_rate": _Watched("fact", count="corrupt"),
    "failed_rate": _Watched("rate", 0.01, count="failed"),
    "throttled_rate": _Watched("rate", 0.01, count="throttled"),
    "loss_rate": _Watched("rate", 0.01, count="lost", of="files"),
    "quiet_share": _Watched(
        "rate",
        0.10,
        decides=False,
        count="quiet_kept",
        rest=True,
        clump=2 * NEIGHBOURS + 1,
        is_time=True,
    ),
    "requests_per_op": _Watched("exact", usual="requests_usual"),
    "payload_bytes_per_op": _Watched("exact"),
    "wire_bytes_per_op": _Watched("exact", 0.01, decides=False, handshakes=True),
    "cpu_per_op": _Watched("level", 0.25, decides=False, by="reference_cpu_s", is_time=True),
}
"""What is watched of a run of operations."""

_LIKE = {"service_p25": "service_p50"}
"""Metrics that have the margin of another one, unless they are given one of their own."""

_EXACT = ("requests_per_op", "payload_bytes_per_op", "wire_bytes_per_op")
_FACTS = ("silent_loss_rate", "corrupt_rate")
"""Of a conclusion: what must never happen, besides the metrics that say so themselves."""
_LEVEL_UNITS = frozenset({"s", "bytes", "bytes/s", "ratio", "MB", "1/s", "bit/s"})
_LOOKED_AT = 3
"""How many times as many runs as a baseline has are searched for a lasting improvement."""
TIMES_DOUBTED = "times_doubted"
"""Among the numbers of a run whose times cannot be believed. Its counts can."""
ACCEPTED = "accepted"
"""Among the numbers of a run that the user has accepted as the new baseline."""
FOLLOWED_ONLY = "followed_only"
"""Among the numbers of a run that is no baseline, but belongs to a rise that adds up: why (``baseline.FOLLOWED``)."""
_TIME_UNITS = frozenset({"s", "bytes/s", "1/s", "bit/s"})
_MOST_HANDSHAKE_BYTES = 8192
"""A handshake of TLS or SSH carries fewer bytes, in both directions together."""
_BARE = _Watched("level")
_SAME = 1e-9
_SLOWER = 1.5

_MORE = frozenset({
    *(each.count for each in _OF_RUNS.values() if each.count), *(each.of for each in _OF_RUNS.values()),
    "quiet_ops", "quiet_p50_error", "quiet_p99_error", "reference_cpu_s", "wire_connections", "requests_usual",
})  # fmt: skip
"""Numbers of an entry that a check may need besides its metrics."""


def needed_numbers() -> frozenset[str]:
    """Return the names of all numbers of an entry that a check may need."""
    capable = (f"is_{name}" for name, metric in METRICS.items() if metric.unit == "1 is yes")
    return frozenset({*METRICS, *capable, *_MORE})


def facts_of(numbers: Numbers) -> dict[str, Any]:
    """Return the numbers of a run that say what has happened, which no doubt undoes."""
    names = {name for name in METRICS if name in _FACTS or METRICS[name].gated == "fact"}
    names |= {number for name in _FACTS for number in (_OF_RUNS[name].count, _OF_RUNS[name].of)}
    return {name: numbers[name] for name in sorted(names) if numbers.get(name) is not None}


def capabilities(metrics: Numbers) -> dict[str, Any]:
    """Return an entry's capabilities as numbers of their own, since readers see a word under the metric's name."""
    return {f"is_{name}": value for name, value in metrics.items() if name in METRICS and _is_capability(name)}


def _is_capability(name: str) -> bool:
    return METRICS[name].unit == "1 is yes"


def parse_margins(given: Mapping[str, Any], where: str) -> dict[str, float | None]:
    """Read margins: ``0.1``, ``"10%"``, or ``False`` and None for what is not to be gated. Raises UsageError."""
    found: dict[str, float | None] = {}
    for name, value in given.items():
        if name not in METRICS and name not in {"p50", "p99"}:
            raise UsageError(f"{where}: {name}: no such metric{did_you_mean(name, METRICS)}")
        found[name] = _margin(value, f"{where}: {name}")
    return found


def _margin(value: Any, where: str) -> float | None:
    if value is None or value is False:
        return None
    try:
        number = float(value.removesuffix("%")) / 100 if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = 0.0
    if (
        isinstance(value, bool)
        or not is_finite(number)
        or number <= 0
        or (isinstance(value, str) and value[-1:] != "%")
    ):
        raise UsageError(f'{where}: expected a margin such as 0.1 or "10%", or false, found {value!r}')
    return number


class Former:
    """Former runs, the oldest first. Each is read once for a metric, however many later runs are compared with it.

    Args:
        runs: their numbers. Those that may not be a baseline have ``FOLLOWED_ONLY`` among them.
        end: only the runs before this place count; None for all.
    """

    def __init__(self, runs: Sequence[Numbers], end: int | None = None) -> None:
        self._runs, self._end = runs, len(runs) if end is None else end
        self._columns: dict[tuple[str, _Watched], list[Reading]] = {}
        self._drifts: dict[str, SeriesDrift] = {}

    def before(self, end: int) -> Former:
        """Return the runs before a place; what was read of them is shared."""
        earlier = Former(self._runs, end)
        earlier._columns, earlier._drifts = self._columns, self._drifts
        return earlier

    def readings(self, metric: str, watched: _Watched) -> list[Reading]:
        """Return what the runs that may be a baseline say of a metric, as far as they say anything."""
        return [
            reading for reading in self._all(metric, watched) if reading.value is not None and not reading.is_barred
        ]

    def is_usually_known(self, metric: str, watched: _Watched) -> bool:
        """Return whether most of the last runs say something of a metric."""
        last = self._all(metric, watched)[-MOST_RUNS:]
        return sum(reading.value is not None for reading in last) > len(last) / 2

    def accepted_share(self, metric: str, watched: _Watched) -> float:
        """Return how much of what must not happen the user has accepted."""
        accepted = [run.get(ACCEPTED) for run in self._runs[: self._end]]
        readings = zip(self._all(metric, watched), accepted, strict=True)
        return max((reading.value or 0.0 for reading, is_accepted in readings if is_accepted), default=0.0)

    def drift(self, metric: str, watched: _Watched, margin: float, *, higher: bool) -> SeriesDrift | None:
        """Return a metric's course since the last accepted state; None if it is not followed."""
        is_rate = watched.kind == "rate"
        if watched.kind not in ("level", "exact") and not (is_rate and watched.decides):
            return None
        readings = [
            (reading, value)
            for reading in self._all(metric, watched)
            if (value := followed_value(watched.kind, reading.value, higher=higher)) is not None
        ]
        followed = _without_early_barred(readings)
        if len(followed) < ANCHOR_RUNS:
            return None
        drift = self._drifts.get(metric)
        if drift is None or len(drift) > len(followed):  # fewer runs than it was asked about before
            drift = self._drifts[metric] = SeriesDrift(margin if is_rate else log1p(margin), is_rate=is_rate)
        for reading, value in followed[len(drift) :]:
            drift.add(value, reading.starved, reading.run, was_broken=reading.was_broken)
        return drift.now()

    def _all(self, metric: str, watched: _Watched) -> list[Reading]:
        column = self._columns.get((metric, watched))
        if column is None:
            column = [_reading(metric, watched, numbers) for numbers in self._runs]
            self._columns[metric, watched] = column
        return column[: self._end]


def checks_of(
    experiment: str, info: Numbers, columns: Sequence[str], baseline: Former | Sequence[Numbers], margins: Margins,
    again: Sequence[Numbers] = (), why: str = "", runs: int = MOST_RUNS, why_times: str = "",
) -> list[Check]:  # fmt: skip
    """Return a check for each metric of an entry that is watched.

    Args:
        experiment: the entry's full name.
        info: its numbers.
        columns: what the table at the end shows of a conclusion.
        baseline: the numbers of former runs, the oldest first; ``run`` among them is a run's name. All of them are
            followed for a slow rise, and the last ones are searched for a lasting improvement of each metric. Those
            that came after it are the baseline.
        margins: the user's.
        again: the numbers of runs that measured it again.
        why: why nothing of it can be judged, or an empty text.
        runs: how many of the last ones are the baseline at most.
        why_times: why none of its times can be judged, or an empty text.
    """
    checks, former = [], baseline if isinstance(baseline, Former) else Former(baseline)
    for metric, watched in _watched_in(info, columns, margins, former).items():
        margin = _margin_of(metric, watched, margins)
        if margin is None:
            continue
        higher = METRICS[metric].better == "higher" and watched.kind != "rate"
        readings = former.readings(metric, watched)
        improvement = _improvement(readings[-_LOOKED_AT * runs :], higher=higher)
        first, since = 0, None
        if improvement is not None:
            first = max(0, len(readings) - _LOOKED_AT * runs) + improvement.first
            since = readings[first]
        is_before = since is not None and len(readings) - first < FEWEST_RUNS <= first
        usable = readings[:first] if is_before else readings[first:]
        reason = why or (watched.is_time and why_times) or _unfit_now(metric, watched, info, former)
        check = Check(
            experiment, metric, watched.kind, margin, tuple(usable[-runs:]), _reading(metric, watched, info),
            tuple(_reading(metric, watched, numbers) for numbers in again), reason,
            decides=watched.decides, clump=watched.clump, higher=higher,
            since=since.run if since else "", improved=improvement.ratio if improvement else None, is_before=is_before,
            bound=_allowed_share(metric, watched, margins, former),
            drift=former.drift(metric, watched, margin, higher=higher),
        )  # fmt: skip
        if watched.handshakes:
            check = _without_handshakes(check, info, again, former)
        checks.append(_settled(check))
    return checks


def _allowed_share(metric: str, watched: _Watched, margins: Margins, former: Former) -> float:
    """Return how much of what must not happen is allowed, by the user's bound or by an accepted run."""
    if watched.kind != "fact":
        return 0.0
    bound = margins.get(metric)
    return former.accepted_share(metric, watched) if bound is None else bound


def _without_early_barred(readings: Sequence[tuple[Reading, float]]) -> Sequence[tuple[Reading, float]]:
    """Return a course whose first runs are all good ones: others before these are complete are left out."""
    good = [index for index, (reading, _) in enumerate(readings) if not reading.is_barred][:ANCHOR_RUNS]
    return [readings[index] for index in good] + list(readings[good[-1] + 1 :] if len(good) == ANCHOR_RUNS else ())


def _improvement(readings: Sequence[Reading], *, higher: bool) -> ChangePoint | None:
    """Return the last lasting change, if that is for the better.

    A change for the worse begins no baseline: it is what a gate is to find.
    """
    changes = find_changes([reading.value for reading in readings if reading.value is not None])
    is_better = bool(changes) and (changes[-1].after > changes[-1].before) == higher
    return changes[-1] if is_better else None


def paired_margin(metric: str, margins: Margins) -> float | None:
    """Return the margin of a metric in a comparison of two sides; None if it is not gated."""
    return _margin_of(metric, _OF_RUNS.get(metric) or _Watched("level", margin_of(metric)), margins)


def watched_pairs(metrics: Iterable[str], deciding: Sequence[str], margins: Margins) -> list[str]:
    """Return which metrics of a comparison of two sides are gated, in their order.

    These are the metrics that decide, those that are watched of a run of operations, and those that the user names.
    Where there is none of those that decide, all are.
    """
    given = list(metrics)
    watched = {*deciding, *margins, *(name for name, each in _OF_RUNS.items() if not each.rest)}
    names = [name for name in given if name in watched] if not set(deciding).isdisjoint(given) else given
    return [name for name in names if paired_margin(name, margins) is not None]


def _settled(check: Check) -> Check:
    """An exact metric whose baseline varies is a level that cannot decide alone."""
    values = [each.value for each in check.baseline if each.value is not None]
    if check.kind != "exact" or not values or max(values) - min(values) <= _SAME * abs(max(values)):
        return check
    return replace(check, kind="level", decides=False)


def _watched_in(info: Numbers, columns: Iterable[str], margins: Margins, former: Former) -> dict[str, _Watched]:
    """Return the metrics of an entry that are watched: the table's, a conclusion's own, and those that the user names.

    They have a value, or most former runs had one: a run that does not say what others said is not as good as they.
    """
    if "quiet_ops" in info:
        names = dict(_OF_RUNS)
    else:
        own = {name: _watched_in_conclusion(name, name in columns) for name in info if name in METRICS}
        names = {name: watched for name, watched in own.items() if watched is not None}
    named = {
        name: _Watched("level", is_time=METRICS[name].unit in _TIME_UNITS) for name in margins
        if name in info and name in METRICS and name not in names and METRICS[name].unit in _LEVEL_UNITS
    }  # fmt: skip
    own_names = {
        name: watched for name, watched in names.items()
        if info.get(name) is not None or watched.kind == "yes"
        or (watched.decides and former.is_usually_known(name, watched))
    }  # fmt: skip
    return own_names | named


def _watched_in_conclusion(name: str, is_column: bool) -> _Watched | None:
    """Return how a metric of a conclusion is judged; None if it is not."""
    metric = METRICS[name]
    if _is_capability(name):
        return _Watched("yes")
    if name in _EXACT or metric.gated == "exact":
        return _OF_RUNS.get(name) or _Watched("exact")
    if name in _FACTS or metric.gated == "fact":
        return _Watched("fact")
    if not is_column or metric.unit not in _LEVEL_UNITS:
        return None
    beside = "reference_cpu_s" if metric.unit == "s" else ""  # a client's times are this machine's
    is_time = metric.unit in _TIME_UNITS
    return _Watched("level", 0.25 if name.endswith("_p99") else 0.10, beside=beside, is_time=is_time)


def _margin_of(metric: str, watched: _Watched, margins: Margins) -> float | None:
    median = _LIKE.get(metric, metric)
    for name in (metric, median, median.rpartition("_")[2]):
        if name in margins:
            return margins[name]
    return watched.margin


def _reading(metric: str, watched: _Watched, numbers: Numbers) -> Reading:
    run, barred = str(numbers.get("run", "")), numbers.get(FOLLOWED_ONLY)
    is_barred, was_broken = bool(barred), barred == ONLY_AT_GATE
    if watched.is_time and numbers.get(TIMES_DOUBTED):
        return Reading(None)
    if watched.kind == "fact" and not watched.count:
        value = _number(numbers, metric)
        return Reading(value, round(value or 0), run=run, is_barred=is_barred)
    if watched.kind in ("rate", "fact"):
        of, count = _number(numbers, watched.of), _number(numbers, watched.count)
        if not of or count is None:
            return Reading(None)
        counted = round(of - count if watched.rest else count)
        if not 0 <= counted <= of:  # no version wrote that
            return Reading(None)
        return Reading(counted / of, counted, round(of), run=run, is_barred=is_barred)
    value = _number(numbers, f"is_{metric}" if watched.kind == "yes" else metric)
    if watched.by and value is not None:
        by = _number(numbers, watched.by)
        value = value / by if by else None
    error, ops = _number(numbers, f"{metric}_error"), _number(numbers, "quiet_ops")
    return Reading(
        value, error=error, ops=round(ops or 0), run=run, is_barred=is_barred, was_broken=was_broken,
        starved=_number(numbers, "starved_share") if watched.is_time else None,
        usual=_number(numbers, watched.usual) if watched.usual else None,
    )  # fmt: skip


def _number(numbers: Numbers, name: str) -> float | None:
    value = numbers.get(name)
    return float(value) if is_finite(value) and value is not None else None


def _unfit_now(metric: str, watched: _Watched, info: Numbers, baseline: Former) -> str:
    """Why this run says nothing of the metric, or an empty text."""
    ops = _number(info, "quiet_ops")
    if ops is not None and ops < watched.fewest_ops:
        return f"{watched.fewest_ops} quiet operations are needed, found {round(ops)}"
    if watched.rest and not _uses_more_cpu(info, baseline):
        return "the client itself used no more CPU than before, so the machine was busy with something else"
    if watched.rest and _waits_more(info, baseline):
        return "threads waited for a CPU for more of the time than in any run before, as beside other work"
    if (by := watched.by or watched.beside) and (now := _number(info, by)):
        before = [reading.value for reading in baseline.readings(by, _BARE) if reading.value]
        if before and now > max(before) * _SLOWER:
            return f"this machine is {now / (sum(before) / len(before)):.1f} times as slow as in the baseline"
    return ""


def _uses_more_cpu(info: Numbers, baseline: Former) -> bool:
    """Return whether this client used more CPU per operation than in any run of the baseline, as far as is known."""
    watched = _OF_RUNS["cpu_per_op"]
    now = _reading("cpu_per_op", watched, info).value
    known = [each.value for each in baseline.readings("cpu_per_op", watched) if each.value is not None]
    return now is not None and bool(known) and now > max(known)


def _waits_more(info: Numbers, baseline: Former) -> bool:
    """Return whether threads waited for a CPU more than in any run of the baseline, as far as is known.

    On a busy machine each operation costs a little more CPU time, too, so CPU time alone does not show who was busy.
    """
    now = _number(info, "starved_share")
    before = [reading.value for reading in baseline.readings("starved_share", _BARE) if reading.value is not None]
    return now is not None and now > max(before, default=0.0)


def _without_handshakes(check: Check, info: Numbers, again: Sequence[Numbers], former: Former) -> Check:
    """Take off what handshakes of more connections carry than any run of the baseline had.

    As many are open as there are operations at a time, which a busy machine makes more. A client that opens one for
    most operations has changed itself.
    """
    before = [reading.value for reading in former.readings("wire_connections", _BARE) if reading.value is not None]
    if not before:
        return check
    now, *later = (
        _less(reading, numbers, max(before))
        for reading, numbers in zip((check.now, *check.again), (info, *again), strict=True)
    )
    return replace(check, now=now, again=tuple(later))


def _less(reading: Reading, numbers: Numbers, connections: float) -> Reading:
    opened, ops = _number(numbers, "wire_connections"), _number(numbers, "ops")
    if reading.value is None or opened is None or not ops or opened <= connections or opened >= ops / 2:
        return reading
    return replace(reading, value=reading.value - (opened - connections) * _MOST_HANDSHAKE_BYTES / ops)
