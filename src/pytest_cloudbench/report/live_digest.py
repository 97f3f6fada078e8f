"""Summaries of agents' reports for figures during a run, as ``report.digest`` makes them from records.

Memory does not grow with a run. When it has more parts than a drawing shows, neighbours are merged.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_cloudbench.model import Outcome
from pytest_cloudbench.report.digest import (
    FEWEST_WAITING,
    MOST_PARTS,
    MOST_SILENCES,
    Digest,
    Histogram,
    Silence,
    longest_silences,
    part_count,
    shortest_silence_s,
)
from pytest_cloudbench.report.live import AgentReport
from pytest_cloudbench.report.svg import SERIES

_SHORTEST_PART_S = 1.0


@dataclass(slots=True)
class _Part:
    """A part of a run. Percentiles are cached until another response time is added."""

    response: Histogram = field(default_factory=Histogram)
    outcomes: dict[str, int] = field(default_factory=dict)
    _cached_count: int = 0
    _p50_s: float | None = None
    _p99_s: float | None = None

    def count(self, outcome: Outcome, number: int) -> None:
        """Count operations. A number that is not positive is ignored."""
        if number > 0:
            self.outcomes[outcome.value] = self.outcomes.get(outcome.value, 0) + number

    def p50_p99_s(self) -> tuple[float | None, float | None]:
        """Return the median and the 99th percentile of response times, or None if there are none."""
        if self._cached_count != self.response.value_count:
            self._cached_count = self.response.value_count
            self._p50_s, self._p99_s = self.response.value_at(0.5), self.response.value_at(0.99)
        return self._p50_s, self._p99_s

    @classmethod
    def merge(cls, parts: Iterable[_Part]) -> _Part:
        """Merge neighbours into one part."""
        merged = cls()
        for part in parts:
            merged.response.merge(part.response)
            for name, number in part.outcomes.items():
                merged.outcomes[name] = merged.outcomes.get(name, 0) + number
        return merged


def _merge_neighbours(parts: Sequence[_Part], count: int) -> list[_Part]:
    """Merge each ``count`` neighbours into one part."""
    return [_Part.merge(parts[first : first + count]) for first in range(0, len(parts), count)]


class LiveDigest:
    """Collects the reports for one line of the figures, which is a run, or several successive ones.

    Operations are counted when their report arrives, up to a quarter of a second after they ended.
    """

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._parts, self._part_s = list[_Part](), _SHORTEST_PART_S
        self._overall, self._ops, self._last_s = Histogram(), 0, 0.0
        self._heard_s, self._waiting = dict[str, float](), dict[str, int]()
        self._silences = list[Silence]()
        self._silent_s: float | None = None

    def begin(self) -> None:
        """Begin a run, of which no agent has reported yet."""
        self._heard_s, self._waiting, self._silent_s = {}, {}, None

    def take(self, report: AgentReport) -> None:
        """Add an agent's report. Reports before the start are ignored, since they contain no operations."""
        at_s = (report.at_ns - self._start_ns) / 1e9
        if at_s < 0:
            return
        self._look_for_silence(report, at_s)
        self._last_s = at_s
        if report.done <= 0:
            return
        part = self._part_at(at_s)
        part.count(Outcome.OK, report.ok)
        part.count(Outcome.THROTTLED, report.throttled)
        part.count(Outcome.FAILED, report.failed)
        self._ops += report.done
        for response_s in report.sample_s:
            part.response.add(response_s, report.weight)
            self._overall.add(response_s, report.weight)

    def _part_at(self, at_s: float) -> _Part:
        while at_s >= MOST_PARTS * self._part_s:
            self._part_s *= 2
            self._parts = _merge_neighbours(self._parts, 2)
        number = int(at_s / self._part_s)
        self._parts += [_Part() for _ in range(number + 1 - len(self._parts))]
        return self._parts[number]

    # A silence is only the time in which certainly nothing ended. It begins with the last report before agents reported
    # operations in flight and no ended ones. It ends with the former report of the first agent that reports an ended
    # one. An agent's operations count as waiting once it has reported so, which an agent that was lost never does.

    def _look_for_silence(self, report: AgentReport, at_s: float) -> None:
        before_s, self._heard_s[report.agent] = self._heard_s.get(report.agent, at_s), at_s
        if report.done > 0:
            self._end_silence(before_s)
            self._waiting.clear()
            return
        former = report.in_flight if self._silent_s is None else self._waiting.get(report.agent, report.in_flight)
        self._waiting[report.agent] = min(former, report.in_flight)
        is_silent = sum(self._waiting.values()) >= FEWEST_WAITING
        if is_silent and self._silent_s is None:
            self._silent_s = self._last_s
        elif not is_silent:
            self._end_silence(at_s)

    def _silence_until(self, to_s: float) -> list[Silence]:
        """Return the silence that lasts until ``to_s``, if there is one. ``digest`` drops those that are too short."""
        if self._silent_s is None or to_s - self._silent_s < shortest_silence_s(None):
            return []
        return [Silence(self._silent_s, to_s, max(FEWEST_WAITING, sum(self._waiting.values())))]

    def _end_silence(self, to_s: float) -> None:
        if self._silent_s is not None:
            self._silences += self._silence_until(to_s)
            self._silent_s = None
            if len(self._silences) > 2 * MOST_SILENCES:
                self._silences = longest_silences(self._silences)

    def digest(self) -> Digest | None:
        """Return the summary for the figures, or None before an operation has ended."""
        if not self._ops or self._last_s <= 0:
            return None
        self._part_at(self._last_s)
        merged_count = -(-len(self._parts) // part_count(self._ops))
        parts = self._parts if merged_count == 1 else _merge_neighbours(self._parts, merged_count)
        part_s = self._part_s * merged_count
        edges_s = [part_s * number for number in range(len(parts))] + [self._last_s]
        if len(parts) > 1 and edges_s[-1] - edges_s[-2] < part_s / 2:  # too short for a rate
            parts, edges_s = [*parts[:-2], _Part.merge(parts[-2:])], [*edges_s[:-2], edges_s[-1]]
        p50_s, p99_s = map(list, zip(*(part.p50_p99_s() for part in parts), strict=True))
        shortest_s = shortest_silence_s(self._overall.value_at(0.5))
        silences = [*self._silences, *self._silence_until(self._last_s)]
        silences = longest_silences(silence for silence in silences if silence.to_s - silence.from_s >= shortest_s)
        overall = Histogram()
        overall.merge(self._overall)
        outcomes = [dict(part.outcomes) for part in parts]
        return Digest(edges_s, p50_s, p99_s, outcomes, overall, silences, self._ops, is_by_end=True)


@dataclass(slots=True)
class _Experiment:
    """Lines of one experiment, oldest first. Lines that are no longer measured are digests."""

    version: int = 0
    lines: dict[str, LiveDigest | Digest] = field(default_factory=dict)

    def digests(self) -> dict[str, Digest]:
        """Return the digests of the lines with at least one ended operation."""
        digests = {
            name: digest.digest() if isinstance(digest, LiveDigest) else digest for name, digest in self.lines.items()
        }
        return {name: digest for name, digest in digests.items() if digest is not None}


class LiveDigests:
    """Follows a meter, and keeps the digests of each measured experiment. It is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._experiments: dict[str, _Experiment] = {}
        self._latest: str | None = None
        self._line: LiveDigest | None = None

    def begin(self, nodeid: str, line: str, start_ns: int) -> None:
        """See ``live.Follower``. A line of an earlier run continues unless other experiments were measured since."""
        with self._lock:
            if self._latest is not None and self._latest != nodeid:
                former = self._experiments[self._latest]
                former.lines = {**former.digests()}
            self._latest = nodeid
            lines = self._experiments.setdefault(nodeid, _Experiment()).lines
            former_line = lines.pop(line, None)
            self._line = lines[line] = former_line if isinstance(former_line, LiveDigest) else LiveDigest(start_ns)
            self._line.begin()
            for oldest in list(lines)[:-SERIES]:
                del lines[oldest]

    def take(self, report: AgentReport) -> None:
        """See ``live.Follower``."""
        with self._lock:
            if self._line is not None and self._latest is not None:
                self._line.take(report)
                self._experiments[self._latest].version += 1

    @property
    def latest(self) -> str | None:
        """The experiment that was measured last."""
        return self._latest

    def version(self, nodeid: str) -> int | None:
        """Return a number that changes with each report of an experiment, or None if it was not measured."""
        with self._lock:
            experiment = self._experiments.get(nodeid)
            return experiment.version if experiment is not None else None

    def digests_of(self, nodeid: str) -> Mapping[str, Digest]:
        """Return the digests of an experiment's lines, the latest last."""
        with self._lock:
            return self._experiments.get(nodeid, _Experiment()).digests()
