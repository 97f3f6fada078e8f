"""Evaluate reads after a write: how many were stale, when a file was consistent, and with which resolution.

Its functions are pure functions of observations. Times are seconds from the answer to the last write.
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
"""Prefix of ``seen`` if the read gives no information about the file, such as ``? throttled``."""

_MIN_READS = 10
"""The fewest reads in a quiet time. Each counts for a tenth of it at most, however long ago the read before it was."""


@dataclass(frozen=True, slots=True)
class ObservedRead:
    """One read that began after the last write was answered. ``seen`` is empty if it saw the last write."""

    start_s: float
    end_s: float
    seen: str

    @property
    def is_stale(self) -> bool:
        """True if the read saw other content than the last write."""
        return bool(self.seen) and not self.seen.startswith(UNKNOWN)


@dataclass(frozen=True, slots=True)
class Trial:
    """The reads of one file after its last write.

    Attributes:
        number: the number of the file.
        write_s: how long its last write took.
        reads: in the order of their starts.
        problem: why the file cannot be judged, such as a failed write. Empty if it can.
        is_settled: whether it was read for long enough after the last change. If not, its time is a lower bound.
    """

    number: int
    write_s: float
    reads: Sequence[ObservedRead] = field(default_factory=tuple)
    problem: str = ""
    is_settled: bool = True


@dataclass(slots=True)
class Settling:
    """Decides when the reads of one file have agreed for long enough: as long as they disagreed before.

    Replicas that disagree answer in turns or at random, so a few right reads in a row prove nothing. Reads without
    information about the file neither begin a new quiet time nor extend it.

    Attributes:
        least_s: the shortest quiet time.
        is_final: whether a file may end with what a read saw.
        changed_s: the start of the last read that saw other content than the current one. 0 if there is none.
        quiet_s: how long reads have agreed.
    """

    least_s: float
    is_final: Callable[[str], bool]
    changed_s: float = 0.0
    quiet_s: float = 0.0
    _seen: str | None = None
    _last_s: float = 0.0

    def add(self, read: ObservedRead) -> None:
        """Take the next read into account."""
        if read.seen.startswith(UNKNOWN):
            return
        if read.seen != self._seen:
            self.changed_s, self.quiet_s = self._last_s, 0.0
        self.quiet_s += min(read.start_s - self._last_s, self.needed_s / _MIN_READS)
        self._seen, self._last_s = read.seen, read.start_s

    @property
    def is_right(self) -> bool:
        """True if the last read saw content that the file may end with."""
        return self._seen is not None and self.is_final(self._seen)

    @property
    def stale_s(self) -> float:
        """The start of the last read that did not see content that the file may end with."""
        return self.changed_s if self.is_right else self._last_s

    @property
    def needed_s(self) -> float:
        """The seconds that reads must agree."""
        return max(self.least_s, self.stale_s)

    @property
    def is_settled(self) -> bool:
        """True if reads have agreed for long enough."""
        return self.is_right and self.quiet_s >= self.needed_s


@dataclass(frozen=True, slots=True)
class Staleness:
    """The result of the reads of one file.

    Attributes:
        stale: the number of reads that saw other content than the last write.
        flips: how many times the file went back, see ``_count_flips``.
        consistent_s: the start of the first read after the last stale one. 0 if no read was stale, None if unknown.
        low_s, high_s: bounds of the true time. It is not before the start of the last stale read, and not after the end
            of the first right read, or of the last read where files flap. None if there is no upper bound.
        resolution_s: the time between the two reads that bound it. None if no read was stale, or without upper bound.
    """

    stale: int
    flips: int
    consistent_s: float | None
    low_s: float
    high_s: float | None
    resolution_s: float | None


def staleness_of(trial: Trial, *, flaps: bool = False) -> Staleness | None:
    """Return the result of the reads of one file. None if it is unknown.

    ``flaps`` says that other files of the same kind went back, so that the first right read may have been luck.
    """
    informative = [read for read in trial.reads if not read.seen.startswith(UNKNOWN)]
    if trial.problem or not informative:
        return None
    stale, flips = sum(read.is_stale for read in informative), _count_flips(informative)
    first_right = next((index for index in range(len(informative), 0, -1) if informative[index - 1].is_stale), 0)
    low_s = informative[first_right - 1].start_s if first_right else 0.0
    if first_right == len(informative) or not trial.is_settled:
        return Staleness(stale, flips, None, low_s, None, None)
    first, bound = informative[first_right], informative[-1 if flips or flaps else first_right]
    consistent_s, resolution_s = (first.start_s, bound.start_s - low_s) if first_right else (0.0, None)
    return Staleness(stale, flips, consistent_s, low_s, bound.end_s, resolution_s)


def find_hidden_s(trial: Trial) -> float:
    """Return for how long failed reads hid when a file became right. 0 if none failed then, or it is not known."""
    result = staleness_of(trial)
    if result is None or result.consistent_s is None:
        return 0.0
    right = next(read for read in trial.reads if not read.seen and read.start_s >= result.consistent_s)
    has_failed = any(
        read.seen.startswith(UNKNOWN) and result.low_s <= read.start_s < right.start_s for read in trial.reads
    )
    return right.start_s - result.low_s if has_failed else 0.0


def _count_flips(reads: Sequence[ObservedRead]) -> int:
    """Count the reads that saw the file go back from the last write, or to content that was already replaced."""
    flips, replaced = 0, set[str]()
    for before, read in pairwise(reads):
        replaced.add(before.seen)
        flips += read.is_stale and read.seen != before.seen and (not before.is_stale or read.seen in replaced)
    return flips


def summarize_trials(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the metrics of some files, and the numbers behind them.

    A file that never became consistent is worse than all others, so a percentile that falls on it is unknown.
    """
    flaps = any(result.flips for result in map(staleness_of, trials) if result is not None)
    results = [(trial, staleness_of(trial, flaps=flaps)) for trial in trials]
    judged = [result for _, result in results if result is not None]
    times_s = sorted(inf if result.consistent_s is None else result.consistent_s for result in judged)
    metrics: dict[str, float | None] = {}
    for label, share in PERCENTILES.items():
        value = percentile(times_s, share) if times_s else inf
        metrics[f"consistency_{label}"] = None if isinf(value) else value
    violated = sum(result.stale > 0 for result in judged)
    metrics["violation_rate"] = violated / len(judged) if judged else None
    metrics["flips"] = sum(result.flips for result in judged) if judged else None
    problems = Counter(trial.problem for trial in trials if trial.problem)
    gaps = [later.start_s - earlier.start_s for trial in trials for earlier, later in pairwise(trial.reads)]
    return {
        "metrics": metrics,
        "extra": {
            "files": len(judged), "violated": violated, "stale_reads": sum(result.stale for result in judged),
            "flapped": sum(result.flips > 0 for result in judged),
            "never": sum(result.consistent_s is None and result.stale > 0 for result in judged),
            "undecided": sum(result.consistent_s is None and not result.stale for result in judged),
            "reads": sum(len(trial.reads) for trial in trials),
            "unknown_reads": sum(read.seen.startswith(UNKNOWN) for trial in trials for read in trial.reads),
            "seen": dict(Counter(read.seen for trial in trials for read in trial.reads if read.seen)),
            "problems": dict(problems),
            "stale_per_file": [result.stale for result in judged],
            "consistent_s": [result.consistent_s for result in judged], "low_s": [result.low_s for result in judged],
            "high_s": [result.high_s for result in judged],
            "write_s": [trial.write_s for trial, result in results if result is not None],
            "hidden_s": [find_hidden_s(trial) for trial, result in results if result is not None],
            "resolution_ms": max(
                (result.resolution_s * 1e3 for result in judged if result.resolution_s is not None), default=None
            ),
            "within_ms": max((result.high_s * 1e3 for result in judged if result.high_s is not None), default=None),
            "asked_every_ms": sorted(gaps)[len(gaps) // 2] * 1e3 if gaps else None,
        },
    }  # fmt: skip


def history_of(trials: Sequence[Trial]) -> list[Mapping[str, Any]]:
    """Return plain data of all reads of the files that had a stale read, for a file stored beside the entry."""
    return [
        {"file": trial.number, "write_s": trial.write_s,
         "reads": [[read.start_s, read.end_s, read.seen or "right"] for read in trial.reads]}
        for trial in trials
        if (result := staleness_of(trial)) is not None and result.stale
    ]  # fmt: skip
