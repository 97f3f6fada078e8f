"""The metrics of an entry that the regression gate watches: how each is judged, and by which margin.

The table of metrics and the user's margins turn stored numbers into checks, as pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log1p
from typing import Any, Literal

from pytest_cloudbench.judge.baseline import ONLY_AT_GATE, find_number, is_finite
from pytest_cloudbench.judge.changepoints import ChangePoint, find_changes
from pytest_cloudbench.judge.checks import Check, Kind, Reading
from pytest_cloudbench.judge.drift import ANCHOR_RUNS, SeriesDrift
from pytest_cloudbench.judge.gate import FEWEST_RUNS, MOST_RUNS, fewest_runs, followed_value
from pytest_cloudbench.judge.metrics import FACTS, METRICS, is_answer, number_key
from pytest_cloudbench.judge.noise import LEAST_SPREAD
from pytest_cloudbench.judge.paired import margin_of
from pytest_cloudbench.judge.quiet import MAX_WAIT_SHARE, NEIGHBOURS
from pytest_cloudbench.model import UsageError, did_you_mean

Margins = Mapping[str, float | None]
"""The smallest change that matters by metric, or by ``p50`` and ``p99`` for all that end so. None is not gated."""

Numbers = Mapping[str, Any]
"""The numbers at the top level of an entry. A missing one is unknown."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """The gate's rule for a metric.

    Attributes:
        kind: see ``checks.Kind``.
        margin: the default margin.
        decides: see ``checks.Check``.
        ops_key: the key of the number of operations that it is computed from.
        min_ops: how many of them it needs.
        count_key, total_key: the keys of a rate's counts.
        counts_remainder: whether the rate is of all other operations, which ``count_key`` does not count.
        divisor_key: the key of the number by which it is divided before it is compared.
        speed_key: the key of a number that shows the machine's speed. If it is much larger than before, the machine is
            slower, and the metric cannot be judged.
        cluster_ops: see ``checks.Check``.
        has_handshakes: whether it includes handshakes of connections that operations open. A busy machine has more
            connections at a time.
        median_key: the key of the metric's value for the median operation.
        is_time: whether delays of the client, and waiting for the CPU, change it.
        starved_key: the key of the share of these times that threads waited for a CPU. If that is unknown,
            ``starved_share`` takes its place.
        stands_for: the metric that it replaces in deciding if the machine was busy. It is judged only against former
            runs that have it.
    """

    kind: Kind
    margin: float = 0.10
    decides: bool = True
    ops_key: str = "quiet_ops"
    min_ops: int = 0
    count_key: str = ""
    total_key: str = "ops"
    counts_remainder: bool = False
    divisor_key: str = ""
    speed_key: str = ""
    cluster_ops: int = 1
    has_handshakes: bool = False
    median_key: str = ""
    is_time: bool = False
    starved_key: str = "starved_share"
    stands_for: str = ""


_RUN_METRICS: dict[str, _Watched] = {
    "quiet_p50": _Watched("level", 0.10, min_ops=40, is_time=True),
    "quiet_p99": _Watched("level", 0.25, min_ops=300, is_time=True),
    "unstarved_p50": _Watched(
        "level",
        0.10,
        ops_key="ok",
        min_ops=40,
        is_time=True,
        starved_key="starved_elsewhere_share",
        stands_for="quiet_p50",
    ),
    "silent_loss_rate": _Watched("fact", 0.0, count_key="silently_lost", total_key="files"),
    "corrupt_rate": _Watched("fact", 0.0, count_key="corrupt"),
    "failed_rate": _Watched("rate", 0.01, count_key="failed"),
    "throttled_rate": _Watched("rate", 0.01, count_key="throttled"),
    "loss_rate": _Watched("rate", 0.01, count_key="lost", total_key="files"),
    "quiet_share": _Watched(
        "rate",
        0.10,
        decides=False,
        count_key="quiet_kept",
        counts_remainder=True,
        cluster_ops=2 * NEIGHBOURS + 1,
        is_time=True,
    ),
    "requests_per_op": _Watched("exact", median_key="requests_usual"),
    "payload_bytes_per_op": _Watched("exact"),
    "wire_bytes_per_op": _Watched("exact", 0.01, decides=False, has_handshakes=True),
    "cpu_per_op": _Watched("level", 0.25, decides=False, divisor_key="reference_cpu_s", is_time=True),
}
"""The watched metrics of a run of operations."""

_ENDINGS = ("p50", "p99")
"""Names of margins that stand for all metrics which end so."""
_MARGIN_FROM = {"service_p25": "service_p50", "unstarved_p50": "quiet_p50"}
"""Metrics that take the margin of another one, unless the user gives them their own."""

_EXACT = ("requests_per_op", "payload_bytes_per_op", "wire_bytes_per_op")
"""Metrics of a conclusion that must not get worse at all, besides those that are declared ``exact``."""
_LEVEL_UNITS = frozenset({"s", "bytes", "bytes/s", "ratio", "MB", "1/s", "bit/s"})
_SEARCHED_BASELINES = 3
"""A lasting improvement is searched in this many times the runs of a baseline."""
TIMES_DOUBTED = "times_doubted"
"""A key among the numbers of a run: whether its times are doubtful, though its counts are not."""
ACCEPTED = "accepted"
"""A key among the numbers of a run: whether the user has accepted this very run as the new baseline."""
FOLLOWED_ONLY = "followed_only"
"""A key among the numbers of a run: why it is no baseline, but counts for a slow rise (``baseline.FOLLOWED``)."""
COLUMNS = "columns"
"""A key among the numbers of a run: of a conclusion, the names that its table shows."""
_TIME_UNITS = frozenset({"s", "bytes/s", "1/s", "bit/s"})
_MAX_HANDSHAKE_BYTES = 8192
"""A handshake of TLS or SSH carries fewer bytes, in both directions together."""
_PLAIN = _Watched("level")
_EXACT_TOLERANCE = 1e-9
_MAX_SLOWDOWN = 1.5
_MISSPELT = 0.85
"""How alike names are, by ``difflib``, if one is the other misspelt: ``quiet_p05``, but not a suite's ``knee_p50``."""

_OTHER_NUMBERS = frozenset({
    *(row.count_key for row in _RUN_METRICS.values() if row.count_key),
    *(number for row in _RUN_METRICS.values() for number in (row.total_key, row.ops_key, row.starved_key)),
    "quiet_p50_error", "quiet_p99_error", "unstarved_p50_error",
    "reference_cpu_s", "wire_connections", "requests_usual",
})  # fmt: skip
"""Numbers of an entry that a check may need in addition to its metrics."""


def needed_numbers() -> frozenset[str]:
    """Return the names of all numbers of an entry that a check may need."""
    return frozenset({*METRICS, *map(number_key, METRICS), *_OTHER_NUMBERS})


def facts_of(numbers: Numbers) -> dict[str, Any]:
    """Return the facts of a run, and the counts that they are computed from. No doubt about the run undoes them."""
    names = {name for name in METRICS if name in FACTS or METRICS[name].gated == "fact"}
    names |= {number for name in FACTS for number in (_RUN_METRICS[name].count_key, _RUN_METRICS[name].total_key)}
    return {name: numbers[name] for name in sorted(names) if numbers.get(name) is not None}


def capabilities(metrics: Numbers) -> dict[str, Any]:
    """Return an entry's capabilities under keys of their own, because the metrics' names hold words for readers."""
    return {number_key(name): value for name, value in metrics.items() if is_answer(name)}


def parse_margins(raw_margins: Mapping[str, Any], where: str) -> dict[str, float | None]:
    """Read margins: ``0.1``, ``"10%"``, or ``False`` and None for a metric that is not gated. Raises UsageError."""
    margins: dict[str, float | None] = {}
    for name, value in raw_margins.items():
        if name not in METRICS and name not in _ENDINGS:
            raise UsageError(f"{where}: {name}: no such metric{did_you_mean(name, METRICS)}")
        margins[name] = _parse_margin(value, f"{where}: {name}")
    return margins


def find_unknown(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of margins that no metric has. A suite that is not loaded here may declare them."""
    return tuple(name for name in names if name not in METRICS and name not in _ENDINGS)


def hint_at_metric(name: str) -> str:
    """Return a hint at the metric that a name is but for a letter or two. Empty if it may well be a suite's own."""
    from difflib import get_close_matches

    is_misspelt = any(metric.startswith(name) for metric in METRICS) or get_close_matches(name, METRICS, 1, _MISSPELT)
    return did_you_mean(name, METRICS) if is_misspelt else ""


def merge_margins(farther: Mapping[str, Any], nearer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the margins of two places, of which the nearer one is the more specific.

    A nearer ``p50`` or ``p99`` also replaces the farther margins of all metrics for which it stands.
    """
    endings = tuple(f"_{ending}" for ending in _ENDINGS if ending in nearer)
    return {name: margin for name, margin in farther.items() if not name.endswith(endings)} | dict(nearer)


def _parse_margin(value: Any, where: str) -> float | None:
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


def list_unjudged(margins: Margins) -> list[str]:
    """Return the metrics whose margins only comparisons of two sides use, because no former runs can judge them."""
    return [
        name for name, margin in margins.items()
        if margin is not None and name in METRICS and name not in _RUN_METRICS
        and METRICS[name].unit not in _LEVEL_UNITS and _watched_in_conclusion(name, is_column=True) is None
    ]  # fmt: skip


class FormerNumbers:
    """The numbers of former runs, the oldest first. Each is read once per metric, for all later runs that are compared.

    Args:
        runs: the numbers of each run. A run that may not be a baseline has the key ``FOLLOWED_ONLY``.
        end: only the runs before this index count. None for all.
    """

    def __init__(self, runs: Sequence[Numbers], end: int | None = None) -> None:
        self._runs, self._end = runs, len(runs) if end is None else end
        self._columns: dict[tuple[str, _Watched], list[Reading]] = {}
        self._drifts: dict[str, SeriesDrift] = {}

    def before(self, end: int) -> FormerNumbers:
        """Return the runs before an index. They share the readings that were made so far."""
        earlier = FormerNumbers(self._runs, end)
        earlier._columns, earlier._drifts = self._columns, self._drifts
        return earlier

    def baseline_readings(self, metric: str, watched: _Watched) -> list[Reading]:
        """Return the known readings of a metric in the runs that may be a baseline."""
        return [
            reading
            for reading in self._all_readings(metric, watched)
            if reading.value is not None and not reading.is_barred
        ]

    def is_usually_known(self, metric: str, watched: _Watched) -> bool:
        """Return whether most of the last runs have a value of a metric."""
        last = self._all_readings(metric, watched)[-MOST_RUNS:]
        return sum(reading.value is not None for reading in last) > len(last) / 2

    @property
    def columns(self) -> frozenset[str]:
        """The names that the tables of the last runs show."""
        return frozenset(name for run in self._runs[: self._end][-MOST_RUNS:] for name in run.get(COLUMNS, ()))

    def accepted_share(self, metric: str, watched: _Watched) -> float:
        """Return the largest value of a fact in a run that the user has accepted. 0 if there is none."""
        accepted = [run.get(ACCEPTED) for run in self._runs[: self._end]]
        readings = zip(self._all_readings(metric, watched), accepted, strict=True)
        return max((reading.value or 0.0 for reading, is_accepted in readings if is_accepted), default=0.0)

    def drift(self, metric: str, watched: _Watched, margin: float, *, higher: bool) -> SeriesDrift | None:
        """Return the drift of a metric over all runs so far. None if it is not followed, or has too few runs."""
        is_rate = watched.kind == "rate"
        if watched.kind not in ("level", "exact") and not (is_rate and watched.decides):
            return None
        readings = [
            (reading, value)
            for reading in self._all_readings(metric, watched)
            if (value := followed_value(watched.kind, reading.value, higher=higher)) is not None
        ]
        followed = _without_early_barred(readings)
        if len(followed) < ANCHOR_RUNS:
            return None
        drift = self._drifts.get(metric)
        if drift is None or len(drift) > len(followed):  # it has seen more runs than there are now, so it starts again
            drift = self._drifts[metric] = SeriesDrift(margin if is_rate else log1p(margin), is_rate=is_rate)
        for reading, value in followed[len(drift) :]:
            drift.add(value, reading.starved, reading.run, was_broken=reading.was_broken)
        return drift.snapshot()

    def _all_readings(self, metric: str, watched: _Watched) -> list[Reading]:
        column = self._columns.get((metric, watched))
        if column is None:
            column = [_read_metric(metric, watched, numbers) for numbers in self._runs]
            self._columns[metric, watched] = column
        return column[: self._end]


def checks_of(
    experiment: str, info: Numbers, columns: Sequence[str], baseline: FormerNumbers | Sequence[Numbers],
    margins: Margins, again: Sequence[Numbers] = (), why: str = "", runs: int = MOST_RUNS, why_times: str = "",
) -> list[Check]:  # fmt: skip
    """Return a check for each watched metric of an entry.

    Args:
        experiment: the entry's full name.
        info: the numbers of the entry.
        columns: the metrics of a conclusion that the table at the end shows.
        baseline: the numbers of former runs, the oldest first. The key ``run`` has a run's name. All runs are followed
            for a slow rise, and the last ones are searched for a lasting improvement of each metric. The runs after the
            improvement are the baseline.
        margins: the user's margins.
        again: the numbers of runs that measured the entry again.
        why: why the entry cannot be judged, or an empty text.
        runs: the most runs of a baseline.
        why_times: why the times of the entry cannot be judged, or an empty text.
    """
    checks, former = [], baseline if isinstance(baseline, FormerNumbers) else FormerNumbers(baseline)
    selected = _select_watched(info, columns, margins, former)
    deciding = _select_deciding(selected, info, former)
    for metric, watched in selected.items():
        margin = _find_margin(metric, watched, margins)
        if margin is None:
            continue
        higher = METRICS[metric].better == "higher" and watched.kind != "rate"
        readings = former.baseline_readings(metric, watched)
        improvement = _find_improvement(readings[-_SEARCHED_BASELINES * runs :], higher=higher)
        first, since = 0, None
        if improvement is not None:
            first = max(0, len(readings) - _SEARCHED_BASELINES * runs) + improvement.first
            since = readings[first]
        is_before = since is not None and len(readings) - first < fewest_runs(watched.kind) <= first
        usable = readings[:first] if is_before else readings[first:]
        reason = why or (watched.is_time and why_times) or _reason_to_skip(watched, info, former)
        check = Check(
            experiment, metric, watched.kind, margin, tuple(usable[-runs:]), _read_metric(metric, watched, info),
            tuple(_read_repetition(metric, watched, numbers, former) for numbers in again), reason,
            decides=metric in deciding, cluster_ops=watched.cluster_ops, higher=higher,
            since=since.run if since else "", improved=improvement.ratio if improvement else None, is_before=is_before,
            bound=_allowed_share(metric, watched, margins, former),
            tolerance=max(LEAST_SPREAD, margin if _margin_name(metric, margins) else 0.0),
            drift=former.drift(metric, watched, margin, higher=higher),
        )  # fmt: skip
        if watched.has_handshakes:
            check = _without_handshakes(check, info, again, former)
        checks.append(_demote_varying(check))
    return checks


def _select_deciding(selected: Mapping[str, _Watched], info: Numbers, former: FormerNumbers) -> set[str]:
    """Return the selected metrics that can make the entry inconclusive.

    Where the machine was busy, a metric decides in the place of the one that it stands for, unless the client itself
    may have used more CPU than before: then it has caused a part of its waits itself.
    """
    is_busy = (_number(info, "starved_share") or 0.0) > MAX_WAIT_SHARE
    is_busy_by_others = is_busy and _cpu_against_before(info, former) == "no more"
    stand_ins = {name: watched.stands_for for name, watched in selected.items() if watched.stands_for in selected}
    replaced = set(stand_ins.values() if is_busy_by_others else stand_ins)
    return {name for name, watched in selected.items() if watched.decides} - replaced


def _allowed_share(metric: str, watched: _Watched, margins: Margins, former: FormerNumbers) -> float:
    """Return the largest value of a fact that is allowed, by the user's bound or by an accepted run."""
    if watched.kind != "fact":
        return 0.0
    bound = margins.get(metric)
    return former.accepted_share(metric, watched) if bound is None else bound


def _without_early_barred(readings: Sequence[tuple[Reading, float]]) -> Sequence[tuple[Reading, float]]:
    """Return the first runs of a series without barred ones, as many as an anchor needs, and then all later runs."""
    good = [index for index, (reading, _) in enumerate(readings) if not reading.is_barred][:ANCHOR_RUNS]
    return [readings[index] for index in good] + list(readings[good[-1] + 1 :] if len(good) == ANCHOR_RUNS else ())


def _find_improvement(readings: Sequence[Reading], *, higher: bool) -> ChangePoint | None:
    """Return the last lasting change if it is an improvement.

    A change for the worse begins no baseline, because the gate must report it.
    """
    changes = find_changes([reading.value for reading in readings if reading.value is not None])
    is_better = bool(changes) and (changes[-1].after > changes[-1].before) == higher
    return changes[-1] if is_better else None


def paired_margin(metric: str, margins: Margins) -> float | None:
    """Return the margin of a metric in a comparison of two sides. None if it is not gated."""
    return _find_margin(metric, _RUN_METRICS.get(metric) or _Watched("level", margin_of(metric)), margins)


def watched_pairs(metrics: Iterable[str], deciding: Sequence[str], margins: Margins) -> list[str]:
    """Return the metrics of a comparison of two sides that are gated, in their order.

    These are the deciding metrics, those that are watched of a run of operations, and those that the user names. If no
    deciding metric was measured, all metrics are gated.
    """
    measured = list(metrics)
    gated = {name for name, row in _RUN_METRICS.items() if not row.counts_remainder and not row.stands_for}
    watched = {*deciding, *margins, *gated}
    names = [name for name in measured if name in watched] if not set(deciding).isdisjoint(measured) else measured
    return [name for name in names if paired_margin(name, margins) is not None]


def _demote_varying(check: Check) -> Check:
    """Turn an exact metric whose baseline varies into a level that cannot decide alone."""
    values = [reading.value for reading in check.baseline if reading.value is not None]
    if check.kind != "exact" or not values or max(values) - min(values) <= _EXACT_TOLERANCE * abs(max(values)):
        return check
    return replace(check, kind="level", decides=False)


def _select_watched(
    info: Numbers, columns: Iterable[str], margins: Margins, former: FormerNumbers
) -> dict[str, _Watched]:
    """Return the watched metrics of an entry: the table's, a conclusion's own, and those that the user names.

    They have a value, or most former runs had one, because a run must not pass by omitting a value.
    """
    given = {name for name in METRICS if name in info or number_key(name) in info}
    if "quiet_ops" in info:
        names = {
            name: watched for name, watched in _RUN_METRICS.items()
            if not watched.stands_for or _can_stand_in(name, watched, info, former)
        }  # fmt: skip
    else:
        omitted = former.columns - given
        shown = {*columns, *omitted}
        own = {name: _watched_in_conclusion(name, name in shown) for name in METRICS if name in given | omitted}
        names = {name: watched for name, watched in own.items() if watched is not None}
    names |= {
        name: _Watched("level", is_time=METRICS[name].unit in _TIME_UNITS) for name in margins
        if name in METRICS and name not in names and METRICS[name].unit in _LEVEL_UNITS
    }  # fmt: skip
    return {
        name: watched for name, watched in names.items()
        if info.get(name) is not None or (watched.kind == "yes" and name in given)
        or (watched.decides and former.is_usually_known(name, watched))
    }  # fmt: skip


def _can_stand_in(metric: str, watched: _Watched, info: Numbers, former: FormerNumbers) -> bool:
    """Return whether this run has a metric, of enough operations, and enough former runs have it, too."""
    return (
        _number(info, metric) is not None
        and (_number(info, watched.ops_key) or 0) >= watched.min_ops
        and len(former.baseline_readings(metric, watched)) >= FEWEST_RUNS
    )


def _watched_in_conclusion(name: str, is_column: bool) -> _Watched | None:
    """Return how a metric of a conclusion is judged, or None if it is not judged."""
    metric = METRICS[name]
    if is_answer(name):
        return _Watched("yes")
    if name in _EXACT or metric.gated == "exact":
        return _RUN_METRICS.get(name) or _Watched("exact")
    if name in FACTS or metric.gated == "fact":
        return _Watched("fact")
    if not is_column or metric.unit not in _LEVEL_UNITS:
        return None
    speed_key = "reference_cpu_s" if metric.unit == "s" else ""  # a client's times depend on the machine's speed
    is_time = metric.unit in _TIME_UNITS
    return _Watched("level", 0.25 if name.endswith("_p99") else 0.10, speed_key=speed_key, is_time=is_time)


def _find_margin(metric: str, watched: _Watched, margins: Margins) -> float | None:
    return margins[name] if (name := _margin_name(metric, margins)) else watched.margin


def _margin_name(metric: str, margins: Margins) -> str:
    """Return the name under which the user has set the margin of a metric. Empty if there is none."""
    source = _MARGIN_FROM.get(metric, metric)
    return next((name for name in (metric, source, source.rpartition("_")[2]) if name in margins), "")


def _read_metric(metric: str, watched: _Watched, numbers: Numbers) -> Reading:
    """Return what a run says about a metric, without a value if its numbers cannot be used."""
    run, fault = str(numbers.get("run", "")), numbers.get(FOLLOWED_ONLY)
    is_barred, was_broken = bool(fault), fault == ONLY_AT_GATE
    if watched.is_time and numbers.get(TIMES_DOUBTED):
        return Reading(None)
    if watched.kind == "fact" and not watched.count_key:
        value = _number(numbers, metric)
        return Reading(value, round(value or 0), run=run, is_barred=is_barred)
    if watched.kind in ("rate", "fact"):
        total, count = _number(numbers, watched.total_key), _number(numbers, watched.count_key)
        if not total or count is None:
            return Reading(None)
        hits = round(total - count if watched.counts_remainder else count)
        if not 0 <= hits <= total:  # damaged: no version has written such counts
            return Reading(None)
        return Reading(hits / total, hits, round(total), run=run, is_barred=is_barred)
    value = find_number(numbers, metric)
    if value is not None and value < 0 and metric in METRICS and METRICS[metric].unit != "ratio":
        value = None  # no time or size is below zero: a clock was set back
    if watched.divisor_key and value is not None:
        divisor = _number(numbers, watched.divisor_key)
        value = value / divisor if divisor else None
    error, ops = _number(numbers, f"{metric}_error"), _number(numbers, watched.ops_key)
    return Reading(
        value, error=error, ops=round(ops or 0), run=run, is_barred=is_barred, was_broken=was_broken,
        starved=_find_starved_share(numbers, watched) if watched.is_time else None,
        usual=_number(numbers, watched.median_key) if watched.median_key else None,
    )  # fmt: skip


def _find_starved_share(numbers: Numbers, watched: _Watched) -> float | None:
    share = _number(numbers, watched.starved_key)
    return _number(numbers, "starved_share") if share is None else share


def _number(numbers: Numbers, name: str) -> float | None:
    value = numbers.get(name)
    return float(value) if is_finite(value) and value is not None else None


def _read_repetition(metric: str, watched: _Watched, numbers: Numbers, baseline: FormerNumbers) -> Reading:
    """Return what a repetition says about a metric. Too few operations, or a slow machine, clear no suspect."""
    return Reading(None) if _why_unknown(watched, numbers, baseline) else _read_metric(metric, watched, numbers)


def _reason_to_skip(watched: _Watched, info: Numbers, baseline: FormerNumbers) -> str:
    """Return why this run gives no information about the metric, or an empty text."""
    if watched.counts_remainder and _cpu_against_before(info, baseline) != "more":
        return "the client itself used no more CPU than before, so the machine was busy with something else"
    if watched.counts_remainder and _waits_more(info, baseline):
        return "threads waited for a CPU for more of the time than in any run before, as beside other work"
    return _why_unknown(watched, info, baseline)


def _why_unknown(watched: _Watched, numbers: Numbers, baseline: FormerNumbers) -> str:
    """Return why a run has too few operations for a metric, or too slow a machine, or an empty text."""
    ops = _number(numbers, watched.ops_key)
    if ops is not None and ops < watched.min_ops:
        return f"{watched.min_ops} quiet operations are needed, found {round(ops)}"
    if (speed_key := watched.divisor_key or watched.speed_key) and (value := _number(numbers, speed_key)):
        before = [reading.value for reading in baseline.baseline_readings(speed_key, _PLAIN) if reading.value]
        if before and value > max(before) * _MAX_SLOWDOWN:
            return f"this machine is {value / (sum(before) / len(before)):.1f} times as slow as in the baseline"
    return ""


def _cpu_against_before(info: Numbers, baseline: FormerNumbers) -> Literal["more", "no more", "unknown"]:
    """Return whether this client uses more CPU per operation than in any run of the baseline."""
    watched = _RUN_METRICS["cpu_per_op"]
    now = _read_metric("cpu_per_op", watched, info).value
    former_values = [
        reading.value for reading in baseline.baseline_readings("cpu_per_op", watched) if reading.value is not None
    ]
    if now is None or not former_values:
        return "unknown"
    return "more" if now > max(former_values) else "no more"


def _waits_more(info: Numbers, baseline: FormerNumbers) -> bool:
    """Return whether threads are known to have waited for a CPU more than in any run of the baseline.

    On a busy machine each operation also costs a little more CPU time, so CPU time alone does not show what was busy.
    """
    now = _number(info, "starved_share")
    before = [
        reading.value for reading in baseline.baseline_readings("starved_share", _PLAIN) if reading.value is not None
    ]
    return now is not None and now > max(before, default=0.0)


def _without_handshakes(check: Check, info: Numbers, again: Sequence[Numbers], former: FormerNumbers) -> Check:
    """Subtract the bytes of handshakes of more connections than any run of the baseline had.

    A busy machine has more operations at a time, and each needs an open connection. But a client that opens one for
    most of its operations has changed itself, so that nothing is subtracted.
    """
    before = [
        reading.value for reading in former.baseline_readings("wire_connections", _PLAIN) if reading.value is not None
    ]
    if not before:
        return check
    now, *later = (
        _subtract_handshakes(reading, numbers, max(before))
        for reading, numbers in zip((check.now, *check.again), (info, *again), strict=True)
    )
    return replace(check, now=now, again=tuple(later))


def _subtract_handshakes(reading: Reading, numbers: Numbers, connections: float) -> Reading:
    opened, ops = _number(numbers, "wire_connections"), _number(numbers, "ops")
    if reading.value is None or opened is None or not ops or opened <= connections or opened >= ops / 2:
        return reading
    return replace(reading, value=reading.value - (opened - connections) * _MAX_HANDSHAKE_BYTES / ops)
