"""What reads after a write have seen, and when a file was consistent: counts, a distribution, and its resolution.

What may live here: pure functions of observations. Times are seconds from the answer to the last write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isinf
from typing import Any

from pytest_cloudbench.judge.stats import PERCENTILES, percentile

__all__ = ["UNKNOWN", "Glance", "Staleness", "Trial", "history_of", "staleness_of", "summarize_trials"]

UNKNOWN = "?"
"""Prefix of ``seen`` if the read says nothing about the file, such as ``? throttled``."""


@dataclass(frozen=True, slots=True)
class Glance:
    """One read that began after the last write was answered; ``seen`` is empty if it saw the last write."""

    start_s: float
    end_s: float
    seen: str

    @property
    def is_stale(self) -> bool:
        """Whether it saw something else."""
        return bool(self.seen) and not self.seen.startswith(UNKNOWN)


@dataclass(frozen=True, slots=True)
class Trial:
    """One file.

    Attributes:
        number: which one.
        write_s: how long its last write took.
        reads: in the order of their starts.
        problem: why the file cannot be judged, such as a failed write; or an empty text.
    """

    number: int
    write_s: float
    reads: Sequence[Glance] = field(default_factory=tuple)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Staleness:
    """What one file's reads come to.

    Attributes:
        stale: reads that saw something else than the last write.
        regressions: of these, reads after one that had seen the last write.
        consistent_s: start of the first read after which no stale one follows, 0 if no read was stale; None: never.
        low_s, high_s: bounds of the true time: start of the last stale read, end of the first read that was not.
        resolution_s: the time between the starts of these two reads; None if no read was stale.
    """

    stale: int
    regressions: int
    consistent_s: float | None
    low_s: float
    high_s: float | None
    resolution_s: float | None


def staleness_of(trial: Trial) -> Staleness | None:
    """Returns what the reads of one file come to; None if nothing is known of it."""
    known = [read for read in trial.reads if not read.seen.startswith(UNKNOWN)]
    if trial.problem or not known:
        return None
    places = [place for place, read in enumerate(known) if read.is_stale]
    right = next((place for place, read in enumerate(known) if not read.is_stale), len(known))
    regressions = sum(place > right for place in places)
    if not places:
        return Staleness(0, 0, 0.0, 0.0, known[0].end_s, None)
    last = places[-1]
    if last == len(known) - 1:
        return Staleness(len(places), regressions, None, known[last].start_s, None, None)
    first = known[last + 1]
    return Staleness(
        len(places), regressions, first.start_s, known[last].start_s, first.end_s, first.start_s - known[last].start_s
    )


def summarize_trials(trials: Sequence[Trial]) -> dict[str, Any]:
    """Returns the metrics of some files, and what is behind them.

    A file that never was consistent is worse than all others: a percentile that falls on it is unknown.
    """
    found = [(trial, staleness_of(trial)) for trial in trials]
    judged = [each for _, each in found if each is not None]
    times_s = sorted(inf if each.consistent_s is None else each.consistent_s for each in judged)
    metrics: dict[str, float | None] = {}
    for label, share in PERCENTILES.items():
        value = percentile(times_s, share) if times_s else inf
        metrics[f"consistency_{label}"] = None if isinf(value) else value
    violated = sum(each.stale > 0 for each in judged)
    metrics["violation_rate"] = violated / len(judged) if judged else None
    problems = Counter(trial.problem for trial in trials if trial.problem)
    gaps = [later.start_s - earlier.start_s for trial in trials for earlier, later in _pairs(trial)]
    return {
        "metrics": metrics,
        "extra": {
            "files": len(judged), "violated": violated, "stale_reads": sum(each.stale for each in judged),
            "regressions": sum(each.regressions for each in judged),
            "never": sum(each.consistent_s is None for each in judged),
            "reads": sum(len(trial.reads) for trial in trials),
            "unknown_reads": sum(read.seen.startswith(UNKNOWN) for trial in trials for read in trial.reads),
            "seen": dict(Counter(read.seen for trial in trials for read in trial.reads if read.seen)),
            "problems": dict(problems),
            "stale_per_file": [each.stale for each in judged],
            "consistent_s": [each.consistent_s for each in judged], "low_s": [each.low_s for each in judged],
            "high_s": [each.high_s for each in judged],
            "write_s": [trial.write_s for trial, each in found if each is not None],
            "resolution_ms": max(
                (each.resolution_s * 1e3 for each in judged if each.resolution_s is not None), default=None
            ),
            "within_ms": max((each.high_s * 1e3 for each in judged if each.high_s is not None), default=None),
            "asked_every_ms": sorted(gaps)[len(gaps) // 2] * 1e3 if gaps else None,
        },
    }  # fmt: skip


def _pairs(trial: Trial) -> Sequence[tuple[Glance, Glance]]:
    return list(zip(trial.reads, trial.reads[1:], strict=False))


def history_of(trials: Sequence[Trial]) -> list[Mapping[str, Any]]:
    """Returns plain data of all reads of the files that had a stale read, for a file beside the entry."""
    return [
        {"file": trial.number, "write_s": trial.write_s,
         "reads": [[read.start_s, read.end_s, read.seen or "right"] for read in trial.reads]}
        for trial in trials
        if (each := staleness_of(trial)) is not None and each.stale
    ]  # fmt: skip
