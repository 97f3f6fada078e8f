"""From the rounds of a series to counts, and from counts to conclusions: pure functions of results and stored lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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

KEPT_PER_ROUND = 64
"""The most hash calls of one size that a round records; of more, those at evenly spaced ranks."""

KEPT = 10_000
"""The most hash calls of one size that the conclusion uses; of more recorded ones, a random sample."""

ROUNDS_STORED = 1000
"""The most hash calls that become rounds of an entry."""

_DOUBTS = 20

Ops = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class SizeClasses:
    """Incompressible files; the sizes take turns."""

    seed: str
    sizes_kb: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The mean size."""
        return sum(self.sizes_kb) * KIB // len(self.sizes_kb)

    def size_kb(self, sensor: int) -> int:
        """The size of a file."""
        return self.sizes_kb[sensor % len(self.sizes_kb)]

    def content(self, sensor: int, seq: int) -> RandomContent:
        """Different bytes for each file."""
        return RandomContent(f"{self.seed}/{sensor}/{seq}", self.size_kb(sensor) * KIB)


# -- one round --------------------------------------------------------------------------------------------------


def completed(ops: Ops) -> list[tuple[int, int]]:
    """(sensor, sequence number) of the files whose upload was confirmed."""
    rows = zip(ops["sensor"], ops["seq"], ops["outcome"], strict=True)
    return sorted((sensor, seq) for sensor, seq, outcome in rows if outcome == "ok")


def counts(ops: Ops, is_compared: bool = True) -> dict[str, Any]:
    """How many operations were tried, succeeded and could be compared, and how the others failed, by kind."""
    outcomes = Counter(ops.get("outcome", ()))
    wrong = outcomes["corrupt"] if is_compared else 0
    return {
        "tried": outcomes.total(), "ok": outcomes["ok"], "compared": outcomes["ok"] + wrong if is_compared else 0,
        "wrong": wrong, "errors": dict(sorted(Counter(kind for kind in ops.get("kind", ()) if kind).items())),
    }  # fmt: skip


def checked(compared: Iterable[Ops]) -> dict[str, int]:
    """How many files were compared by content or digest (each counts once), and how many of them were wrong."""
    rows = [row for ops in compared for row in zip(ops["sensor"], ops["outcome"], strict=True)]
    wrong = {sensor for sensor, outcome in rows if outcome == "corrupt"}
    return {"checked": len({sensor for sensor, outcome in rows if outcome in {"ok", "corrupt"}}), "wrong": len(wrong)}


def hash_calls(ops: Ops, began_s: float, payload: SizeClasses) -> dict[str, Any]:
    """By size: how many calls were answered; of the recorded ones, when they began and how long they took."""
    found: dict[int, list[tuple[float, float]]] = {}
    for sensor, outcome, at_s, call_s in zip(
        *(ops[name] for name in ("sensor", "outcome", "start_s", "service_s")), strict=True
    ):
        if outcome in {"ok", "corrupt"}:  # a wrong digest is an answer, too
            found.setdefault(payload.size_kb(sensor), []).append((call_s, began_s + at_s))
    made = {}
    for size_kb, calls in sorted(found.items()):
        kept = evenly(sorted(calls), KEPT_PER_ROUND)
        made[str(size_kb)] = {
            "answered": len(calls), "total_s": sum(call_s for call_s, _ in calls),
            "call_s": [call_s for call_s, _ in kept], "at_s": [round(at_s, 3) for _, at_s in kept],
        }  # fmt: skip
    return made


def evenly(ordered: Sequence[Any], most: int) -> Sequence[Any]:
    """At most ``most`` of some ascending values, at evenly spaced ranks, including the first and the last."""
    if len(ordered) <= most:
        return ordered
    return [ordered[round(rank * (len(ordered) - 1) / (most - 1))] for rank in range(most)]


# -- all rounds --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Calls:
    """Hash calls of one size: exact counts, sum and largest, and a sample (algorithm R) of bounded size."""

    answered: int = 0
    total_s: float = 0.0
    most_s: float = 0.0
    seen: int = 0
    sample: list[tuple[float, float]] = field(default_factory=list)

    def add(self, calls: Mapping[str, Any], chance: Random) -> None:
        self.answered += calls["answered"]
        self.total_s += calls["total_s"]
        self.most_s = max(self.most_s, *calls["call_s"])
        for point in zip(calls["at_s"], calls["call_s"], strict=True):
            self.seen += 1
            if len(self.sample) < KEPT:
                self.sample.append(point)
            elif (place := chance.randrange(self.seen)) < KEPT:
                self.sample[place] = point


@dataclass(slots=True)
class _Series:
    """The state after some lines of a series."""

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

    def take_up(self, at_s: float) -> None:
        if self.sessions:
            self.gap_s += max(0.0, at_s - self.last_s)
            self.earlier = self.rounds
        self.sessions, self.last_s = self.sessions + 1, at_s

    def add(self, line: Mapping[str, Any], chance: Random) -> None:
        self.rounds += 1
        self.observed_s += max(0.0, line["ended_s"] - self.last_s)
        self.last_s = line["ended_s"]
        for name in ("writes", "reads", "calls", "files"):
            told = dict(line[name])
            self.errors.setdefault(name, Counter()).update(told.pop("errors", {}))
            self.counts.setdefault(name, Counter()).update(told)
        for size_kb, calls in line["hash"].items():
            self.calls.setdefault(int(size_kb), _Calls()).add(calls, chance)
        self.doubtful += bool(line["doubts"])
        if len(self.doubts) < _DOUBTS:
            self.doubts |= dict.fromkeys(line["doubts"])


def fold(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Fold all lines of a state file into counts, times and answers: plain data, of bounded size."""
    series, chance = _Series(), Random(0)
    for line in lines:
        if "session" in line:
            series.take_up(line["session"]["at_s"])
        elif "round" in line:
            series.add(line, chance)
    by_size = dict(sorted(series.calls.items()))
    points = [
        (at_s, call_s / middle_s)
        for calls in by_size.values()
        for middle_s in [percentile(sorted(call_s for _, call_s in calls.sample), 0.5)]
        for at_s, call_s in calls.sample
    ]
    return {
        **_told(series), "by_size": {str(size_kb): _times([calls]) for size_kb, calls in by_size.items()},
        "all_sizes": _times(by_size.values()), "time_of_day": _drift(points), "size_matters": _size_matters(by_size),
    }  # fmt: skip


def _told(series: _Series) -> dict[str, Any]:
    """Counts, and the quantities of Table III."""
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


def _times(found: Iterable[_Calls]) -> dict[str, Any]:
    """Table I: calls answered, their mean, and percentiles of the sample (the largest is exact)."""
    each = list(found)
    ordered = sorted(call_s for calls in each for _, call_s in calls.sample)
    answered = sum(calls.answered for calls in each)
    spread = {f"hash_call_{label}": percentile(ordered, share) if ordered else None
              for label, share in PERCENTILES.items()}  # fmt: skip
    if ordered:
        spread["hash_call_max"] = max(calls.most_s for calls in each)
    return {
        **spread, "hash_calls": answered, "hash_calls_kept": len(ordered),
        "hash_call_s": sum(calls.total_s for calls in each) / answered if answered else None,
        "times_s": list(evenly(ordered, ROUNDS_STORED)),
    }  # fmt: skip


def _drift(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Whether calls take longer at some hours (UTC), each over the median of its size."""
    found: Drift = judge_drift([at_s for at_s, _ in points], [ratio for _, ratio in points])
    test = found.daily_test
    return {
        "answer": found.daily, "reason": found.daily_reason, "change": found.daily_change, "hours": found.hours,
        "days": found.days, "statistic": test.statistic if test else None, "p_value": test.p_value if test else None,
        "trend": found.trend, "trend_reason": found.trend_reason, "trend_change": found.trend_change,
    }  # fmt: skip


def _size_matters(by_size: Mapping[int, _Calls]) -> str:
    """Observation 2 of Cloud-RAID, III.D.1: "the measured time span is not affected by the size of a data unit"."""
    times_s = {
        size_kb * KIB: list(evenly(sorted(call_s for _, call_s in calls.sample if call_s > 0), ROUNDS_STORED))
        for size_kb, calls in by_size.items()
    }
    line, least = fit_line(times_s), min(map(len, times_s.values()), default=0)
    if not line.is_known or least < (3 if line.bytes_per_s else 10):  # with few calls, a difference may go unnoticed
        return "unknown"
    return "yes" if line.bytes_per_s else "no"
