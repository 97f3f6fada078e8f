"""Pure functions that summarize the rounds of a series, and then the whole series from its stored lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pytest_cloudbench import (
    KIB,
    PERCENTILES,
    Drift,
    RandomContent,
    fit_line,
    judge_availability,
    judge_drift,
    percentile,
)

RECORDED_CALLS_PER_ROUND = 64
"""The most hash calls of one size that a round records. Of more calls it records those at evenly spaced ranks."""

SAMPLE_CALLS = 10_000
"""The most hash calls of one size that the conclusion uses. Of more recorded calls it uses a random sample."""

STORED_CALLS = 1000
"""The most hash calls that an entry stores as its rounds."""

_LEAST_HOURS = 12
"""The fewest hours of the day that show that calls take equally long at all of them."""

_MAX_DOUBTS = 20

Ops = Mapping[str, Sequence[Any]]

NO_OPS: Ops = {"sensor": (), "seq": (), "outcome": (), "kind": (), "start_s": (), "service_s": ()}


@dataclass(frozen=True, slots=True)
class SizeClasses:
    """A payload of incompressible files whose sizes take turns."""

    seed: str
    sizes_kb: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The mean size."""
        return sum(self.sizes_kb) * KIB // len(self.sizes_kb)

    def size_kb(self, sensor: int) -> int:
        """Return the size of the file of a sensor."""
        return self.sizes_kb[sensor % len(self.sizes_kb)]

    def content(self, sensor: int, seq: int) -> RandomContent:
        """Return content that is different for each file."""
        return RandomContent(f"{self.seed}/{sensor}/{seq}", self.size_kb(sensor) * KIB)


# -- one round --------------------------------------------------------------------------------------------------


def find_completed(ops: Ops) -> list[tuple[int, int]]:
    """Return sensor and sequence number of each file whose upload was confirmed."""
    rows = zip(ops["sensor"], ops["seq"], ops["outcome"], strict=True)
    return sorted((sensor, seq) for sensor, seq, outcome in rows if outcome == "ok")


def select_sizes(ops: Ops, payload: SizeClasses, is_selected: Callable[[int], bool]) -> Ops:
    """Return the operations on files of some sizes. ``is_selected`` is called with the bytes of each file."""
    rows = [row for row, sensor in enumerate(ops["sensor"]) if is_selected(payload.size_kb(sensor) * KIB)]
    return {name: [values[row] for row in rows] for name, values in ops.items()}


def count_outcomes(ops: Ops, compared: Ops | None = None) -> dict[str, Any]:
    """Count the operations that were tried, succeeded and were compared, and the failures by their kind.

    ``compared`` are those whose content or digest is compared if they succeed, None for all.
    """
    outcomes = Counter(ops.get("outcome", ()))
    judged = outcomes if compared is None else Counter(compared["outcome"])
    return {
        "tried": outcomes.total(), "ok": outcomes["ok"], "compared": judged["ok"] + judged["corrupt"],
        "wrong": judged["corrupt"],
        "errors": dict(sorted(Counter(kind for kind in ops.get("kind", ()) if kind).items())),
    }  # fmt: skip


def count_compared(compared: Iterable[Ops]) -> dict[str, int]:
    """Count the files that were compared by content or digest, each file once, and the wrong ones among them."""
    rows = [row for ops in compared for row in zip(ops["sensor"], ops["outcome"], strict=True)]
    wrong = {sensor for sensor, outcome in rows if outcome == "corrupt"}
    return {"checked": len({sensor for sensor, outcome in rows if outcome in {"ok", "corrupt"}}), "wrong": len(wrong)}


def summarize_hash_calls(ops: Ops, began_s: float, payload: SizeClasses) -> dict[str, Any]:
    """Return, by size, the number of answered calls, and the start and duration of the recorded ones."""
    calls_by_size: dict[int, list[tuple[float, float]]] = {}
    for sensor, outcome, at_s, call_s in zip(
        *(ops[name] for name in ("sensor", "outcome", "start_s", "service_s")), strict=True
    ):
        if outcome in {"ok", "corrupt"}:  # a call with a wrong digest was answered, too
            calls_by_size.setdefault(payload.size_kb(sensor), []).append((call_s, began_s + at_s))
    summaries = {}
    for size_kb, calls in sorted(calls_by_size.items()):
        recorded = sample_evenly(sorted(calls), RECORDED_CALLS_PER_ROUND)
        summaries[str(size_kb)] = {
            "answered": len(calls), "total_s": sum(call_s for call_s, _ in calls),
            "call_s": [call_s for call_s, _ in recorded], "at_s": [round(at_s, 3) for _, at_s in recorded],
        }  # fmt: skip
    return summaries


def sample_evenly(ordered: Sequence[Any], limit: int) -> Sequence[Any]:
    """Return at most ``limit`` of some ascending values, at evenly spaced ranks that include the first and the last."""
    if len(ordered) <= limit:
        return ordered
    return [ordered[round(rank * (len(ordered) - 1) / (limit - 1))] for rank in range(limit)]


# -- all rounds --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Calls:
    """Hash calls of one size: their exact count, sum and maximum, and a sample of bounded size (algorithm R)."""

    answered: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0
    offered: int = 0
    sample: list[tuple[float, float]] = field(default_factory=list)

    def add_calls(self, calls: Mapping[str, Any], chance: Random) -> None:
        self.answered += calls["answered"]
        self.total_s += calls["total_s"]
        self.longest_s = max(self.longest_s, *calls["call_s"])
        for point in zip(calls["at_s"], calls["call_s"], strict=True):
            self.offered += 1
            if len(self.sample) < SAMPLE_CALLS:
                self.sample.append(point)
            elif (index := chance.randrange(self.offered)) < SAMPLE_CALLS:
                self.sample[index] = point


@dataclass(slots=True)
class _Series:
    """The sums over the lines of a series that were read so far."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    errors: dict[str, Counter[str]] = field(default_factory=dict)
    calls: dict[int, _Calls] = field(default_factory=dict)
    rounds: int = 0
    earlier: int = 0
    sessions: int = 0
    gap_s: float = 0.0
    observed_s: float = 0.0
    last_s: float = 0.0
    doubts: dict[str, None] = field(default_factory=dict)
    doubtful: int = 0

    def start_session(self, at_s: float) -> None:
        if self.sessions:
            self.gap_s += max(0.0, at_s - self.last_s)
            self.earlier = self.rounds
        self.sessions, self.last_s = self.sessions + 1, at_s

    def add_round(self, line: Mapping[str, Any], chance: Random) -> None:
        self.rounds += 1
        self.observed_s += max(0.0, line["ended_s"] - self.last_s)
        self.last_s = line["ended_s"]
        for name in ("writes", "reads", "calls", "files"):
            outcome_counts = dict(line[name])
            self.errors.setdefault(name, Counter()).update(outcome_counts.pop("errors", {}))
            self.counts.setdefault(name, Counter()).update(outcome_counts)
        for size_kb, calls in line["hash"].items():
            self.calls.setdefault(int(size_kb), _Calls()).add_calls(calls, chance)
        self.doubtful += bool(line["doubts"])
        if len(self.doubts) < _MAX_DOUBTS:
            self.doubts |= dict.fromkeys(line["doubts"])


def fold_series(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Fold all lines of a state file into counts, times and answers, as plain data of bounded size."""
    series, chance = _Series(), Random(0)
    for line in lines:
        if "session" in line:
            series.start_session(line["session"]["at_s"])
        elif "round" in line:
            series.add_round(line, chance)
    by_size = dict(sorted(series.calls.items()))
    points = [
        (at_s, call_s / middle_s)
        for calls in by_size.values()
        for middle_s in [percentile(sorted(call_s for _, call_s in calls.sample), 0.5)]
        for at_s, call_s in calls.sample
    ]
    return {
        **_describe_counts(series),
        "by_size": {str(size_kb): _describe_times([calls]) for size_kb, calls in by_size.items()},
        "all_sizes": _describe_times(by_size.values()), "time_of_day": _describe_drift(points),
        "size_matters": _judge_size_influence(by_size),
    }  # fmt: skip


def _describe_counts(series: _Series) -> dict[str, Any]:
    """Return all counts, and the quantities of Table III."""
    writes, reads, calls, files = (series.counts.get(name, Counter()) for name in ("writes", "reads", "calls", "files"))
    share = judge_availability(writes["ok"], writes["tried"])
    throttled = series.errors.get("writes", Counter())["throttled"]
    wrong = judge_availability(files["wrong"], files["checked"])
    return {
        "rounds": series.rounds, "ops": writes["tried"] + reads["tried"] + calls["tried"],
        "writes": writes["tried"], "completed": writes["ok"], "throttled": throttled,
        "availability": share.share, "availability_low": share.low, "availability_high": share.high,
        "availability_unthrottled": judge_availability(writes["ok"], writes["tried"] - throttled).share,
        "write_errors": dict(series.errors.get("writes", {})), "read_errors": dict(series.errors.get("reads", {})),
        "hash_call_errors": dict(series.errors.get("calls", {})),
        "files_checked": files["checked"], "wrong_hashes": files["wrong"], "wrong_hash_rate": wrong.share,
        "wrong_hash_low": wrong.low, "wrong_hash_high": wrong.high, "downloads_compared": reads["compared"],
        "wrong_downloads": reads["wrong"], "digests_compared": calls["compared"], "wrong_digests": calls["wrong"],
        "sessions": series.sessions, "earlier_rounds": series.earlier, "gap_s": series.gap_s,
        "observed_s": series.observed_s, "doubts_of_rounds": list(series.doubts), "doubtful_rounds": series.doubtful,
    }  # fmt: skip


def _describe_times(sizes: Iterable[_Calls]) -> dict[str, Any]:
    """Return the quantities of Table I: answered calls, their mean and maximum, and percentiles of the sample."""
    all_calls = list(sizes)
    ordered = sorted(call_s for calls in all_calls for _, call_s in calls.sample)
    answered = sum(calls.answered for calls in all_calls)
    spread = {f"hash_call_{label}": percentile(ordered, share) if ordered else None
              for label, share in PERCENTILES.items()}  # fmt: skip
    if ordered:
        spread["hash_call_max"] = max(calls.longest_s for calls in all_calls)
    return {
        **spread, "hash_calls": answered, "hash_calls_kept": len(ordered),
        "hash_call_s": sum(calls.total_s for calls in all_calls) / answered if answered else None,
        "times_s": list(sample_evenly(ordered, STORED_CALLS)),
    }  # fmt: skip


def _describe_drift(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Judge whether calls take longer at some hours (UTC), after dividing each by the median of its size."""
    drift: Drift = judge_drift([at_s for at_s, _ in points], [ratio for _, ratio in points])
    test, answer, reason = drift.daily_test, drift.daily, drift.daily_reason
    if answer == "no" and drift.hours < _LEAST_HOURS:
        answer, reason = "unknown", f"only {drift.hours} hours of the day were seen"
    return {
        "answer": answer, "reason": reason, "change": drift.daily_change, "hours": drift.hours,
        "days": drift.days, "statistic": test.statistic if test else None, "p_value": test.p_value if test else None,
        "trend": drift.trend, "trend_reason": drift.trend_reason, "trend_change": drift.trend_change,
    }  # fmt: skip


def _judge_size_influence(by_size: Mapping[int, _Calls]) -> str:
    """Judge observation 2 of Cloud-RAID (III.D.1): "not affected by the size of a data unit"."""
    times_s = {
        size_kb * KIB: list(sample_evenly(sorted(call_s for _, call_s in calls.sample if call_s > 0), STORED_CALLS))
        for size_kb, calls in by_size.items()
    }
    line, fewest = fit_line(times_s), min(map(len, times_s.values()), default=0)
    if not line.is_known or line.noise is None or fewest < 3:
        return "unknown"
    if line.bytes_per_s:
        return "yes"
    # With fewer calls, times that are half as long again for the largest size would often go unnoticed.
    return "no" if fewest >= max(10, (15 * line.noise) ** 2) else "unknown"
