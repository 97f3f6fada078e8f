"""What reads after a write have seen, and when a file was consistent: counts, a distribution, and its resolution.

What may live here: pure functions of observations. Times are seconds from the answer to the last write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, isinf
from typing import Any

from pytest_cloudbench.judge.stats import PERCENTILES, percentile

UNKNOWN = "?"
"""Prefix of ``seen`` if the read says nothing about the file, such as ``? throttled``."""

_FEWEST = 10
"""Reads that a quiet time needs: each vouches for a tenth of it at most, however long ago the one before it was."""


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
        is_settled: whether it was read for long enough after the last change. If not, its time is a lower bound.
    """

    number: int
    write_s: float
    reads: Sequence[Glance] = field(default_factory=tuple)
    problem: str = ""
    is_settled: bool = True


@dataclass(slots=True)
class Settling:
    """Decides when reads of one file have agreed for long enough: as long as they did not before.

    Replicas that do not agree answer in turns or at random, so a few right reads in a row prove nothing. Reads that say
    nothing of the file neither begin a new quiet time nor fill it.

    Attributes:
        least_s: the shortest quiet time.
        is_final: whether a file may end with what a read saw.
        changed_s: start of the last read that saw something else than the current one; 0 if there is none.
        quiet_s: how long reads have agreed.
    """

    least_s: float
    is_final: Callable[[str], bool]
    changed_s: float = 0.0
    quiet_s: float = 0.0
    _seen: str | None = None
    _last_s: float = 0.0

    def add(self, read: Glance) -> None:
        """Take the next read into account."""
        if read.seen.startswith(UNKNOWN):
            return
        if read.seen != self._seen:
            self.changed_s, self.quiet_s = self._last_s, 0.0
        self.quiet_s += min(read.start_s - self._last_s, self.needed_s / _FEWEST)
        self._seen, self._last_s = read.seen, read.start_s

    @property
    def is_right(self) -> bool:
        """Whether the last read saw what the file may end with."""
        return self._seen is not None and self.is_final(self._seen)

    @property
    def stale_s(self) -> float:
        """Start of the last read that did not see what the file may end with."""
        return self.changed_s if self.is_right else self._last_s

    @property
    def needed_s(self) -> float:
        """How long reads must agree."""
        return max(self.least_s, self.stale_s)

    @property
    def is_settled(self) -> bool:
        """Whether they have agreed for long enough."""
        return self.is_right and self.quiet_s >= self.needed_s


@dataclass(frozen=True, slots=True)
class Staleness:
    """What one file's reads come to.

    Attributes:
        stale: reads that saw something else than the last write.
        flips: how many times the file went back: see ``_flips``.
        consistent_s: start of the first read after which no stale one follows, 0 if no read was stale; None: not known.
        low_s, high_s: bounds of the true time. It is not before the start of the last stale read, and not after the end
            of the first read that was not; where files flap, not after the last read. None: there is no upper bound.
        resolution_s: the time between the two reads that bound it; None if no read was stale, or without a bound.
    """

    stale: int
    flips: int
    consistent_s: float | None
    low_s: float
    high_s: float | None
    resolution_s: float | None


def staleness_of(trial: Trial, *, flaps: bool = False) -> Staleness | None:
    """Return what the reads of one file come to; None if nothing is known of it.

    With ``flaps``, other files written alike went back: then this one's first right read may have been luck.
    """
    known = [read for read in trial.reads if not read.seen.startswith(UNKNOWN)]
    if trial.problem or not known:
        return None
    stale, flips = sum(read.is_stale for read in known), _flips(known)
    after = next((place for place in range(len(known), 0, -1) if known[place - 1].is_stale), 0)
    low_s = known[after - 1].start_s if after else 0.0
    if after == len(known) or not trial.is_settled:
        return Staleness(stale, flips, None, low_s, None, None)
    first, bound = known[after], known[-1 if flips or flaps else after]
    consistent_s, resolution_s = (first.start_s, bound.start_s - low_s) if after else (0.0, None)
    return Staleness(stale, flips, consistent_s, low_s, bound.end_s, resolution_s)


def _flips(known: Sequence[Glance]) -> int:
    """Return how many reads saw the file go back: from the last write, or to something that was already replaced."""
    flips, former = 0, set[str]()
    for before, read in pairwise(known):
        former.add(before.seen)
        flips += read.is_stale and read.seen != before.seen and (not before.is_stale or read.seen in former)
    return flips


def summarize_trials(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the metrics of some files, and what is behind them.

    A file that never was consistent is worse than all others: a percentile that falls on it is unknown.
    """
    flaps = any(each.flips for each in map(staleness_of, trials) if each is not None)
    found = [(trial, staleness_of(trial, flaps=flaps)) for trial in trials]
    judged = [each for _, each in found if each is not None]
    times_s = sorted(inf if each.consistent_s is None else each.consistent_s for each in judged)
    metrics: dict[str, float | None] = {}
    for label, share in PERCENTILES.items():
        value = percentile(times_s, share) if times_s else inf
        metrics[f"consistency_{label}"] = None if isinf(value) else value
    violated = sum(each.stale > 0 for each in judged)
    metrics["violation_rate"] = violated / len(judged) if judged else None
    metrics["flips"] = sum(each.flips for each in judged) if judged else None
    problems = Counter(trial.problem for trial in trials if trial.problem)
    gaps = [later.start_s - earlier.start_s for trial in trials for earlier, later in pairwise(trial.reads)]
    return {
        "metrics": metrics,
        "extra": {
            "files": len(judged), "violated": violated, "stale_reads": sum(each.stale for each in judged),
            "flapped": sum(each.flips > 0 for each in judged),
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


def history_of(trials: Sequence[Trial]) -> list[Mapping[str, Any]]:
    """Return plain data of all reads of the files that had a stale read, for a file beside the entry."""
    return [
        {"file": trial.number, "write_s": trial.write_s,
         "reads": [[read.start_s, read.end_s, read.seen or "right"] for read in trial.reads]}
        for trial in trials
        if (each := staleness_of(trial)) is not None and each.stale
    ]  # fmt: skip
