"""What agents report of a run while it lasts, in the few numbers that its figures need.

What may live here: reports into digests, as ``report.digest`` makes them of records. Memory does not grow with a run:
when it has more parts than a drawing tells apart, neighbours are put together.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_cloudbench.model import Outcome
from pytest_cloudbench.report.digest import (
    MOST_PARTS,
    MOST_SILENCES,
    WAITING,
    Digest,
    Histogram,
    Silence,
    least_silence_s,
    longest,
    parts_for,
)
from pytest_cloudbench.report.live import AgentReport
from pytest_cloudbench.report.svg import SERIES

_LEAST_PART_S = 1.0


@dataclass(slots=True)
class _Part:
    """A part of a run. Percentiles are kept until another response time comes."""

    response: Histogram = field(default_factory=Histogram)
    outcomes: dict[str, int] = field(default_factory=dict)
    _seen: int = 0
    _p50_s: float | None = None
    _p99_s: float | None = None

    def count(self, outcome: Outcome, number: int) -> None:
        """Count operations, if there are any."""
        if number > 0:
            self.outcomes[outcome.value] = self.outcomes.get(outcome.value, 0) + number

    def p50_p99_s(self) -> tuple[float | None, float | None]:
        """Return the median and the 99th percentile of response times; None if there are none."""
        if self._seen != self.response.seen:
            self._seen = self.response.seen
            self._p50_s, self._p99_s = self.response.at(0.5), self.response.at(0.99)
        return self._p50_s, self._p99_s

    @classmethod
    def of(cls, parts: Iterable[_Part]) -> _Part:
        """Return neighbours as one part."""
        one = cls()
        for each in parts:
            one.response.merge(each.response)
            for name, number in each.outcomes.items():
                one.outcomes[name] = one.outcomes.get(name, 0) + number
        return one


def _together(parts: Sequence[_Part], count: int) -> list[_Part]:
    """Return as many neighbours at a time as one part."""
    return [_Part.of(parts[at : at + count]) for at in range(0, len(parts), count)]


class LiveDigest:
    """Takes the reports of one line of the figures: of a run, or of several that belong together.

    Operations are in the part in which their report came, up to a quarter of a second after they ended.
    """

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._parts, self._part_s = list[_Part](), _LEAST_PART_S
        self._whole, self._ops, self._last_s = Histogram(), 0, 0.0
        self._heard_s, self._waiting = dict[str, float](), dict[str, int]()
        self._silences = list[Silence]()
        self._silent_s: float | None = None

    def begin(self) -> None:
        """A run begins: none of its agents has reported."""
        self._heard_s, self._waiting, self._silent_s = {}, {}, None

    def take(self, heard: AgentReport) -> None:
        """Take an agent's report. What comes before the start has no operations."""
        at_s = (heard.at_ns - self._start_ns) / 1e9
        if at_s < 0:
            return
        self._look_for_silence(heard, at_s)
        self._last_s = at_s
        if heard.done <= 0:
            return
        part = self._part(at_s)
        part.count(Outcome.OK, heard.ok)
        part.count(Outcome.THROTTLED, heard.throttled)
        part.count(Outcome.FAILED, heard.failed)
        self._ops += heard.done
        for each in heard.sample_s:
            part.response.add(each, heard.weight)
            self._whole.add(each, heard.weight)

    def _part(self, at_s: float) -> _Part:
        while at_s >= MOST_PARTS * self._part_s:
            self._part_s *= 2
            self._parts = _together(self._parts, 2)
        number = int(at_s / self._part_s)
        self._parts += [_Part() for _ in range(number + 1 - len(self._parts))]
        return self._parts[number]

    # A silence lasts only while nothing can have ended: from the last report before agents said that nothing had ended
    # and operations were in flight, to the last report of the agent that then says that some have ended. An agent
    # counts once it has said so, which a lost one never does.

    def _look_for_silence(self, heard: AgentReport, at_s: float) -> None:
        before_s, self._heard_s[heard.agent] = self._heard_s.get(heard.agent, at_s), at_s
        if heard.done > 0:
            self._end_silence(before_s)
            self._waiting.clear()
            return
        former = heard.in_flight if self._silent_s is None else self._waiting.get(heard.agent, heard.in_flight)
        self._waiting[heard.agent] = min(former, heard.in_flight)
        is_silent = sum(self._waiting.values()) >= WAITING
        if is_silent and self._silent_s is None:
            self._silent_s = self._last_s
        elif not is_silent:
            self._end_silence(at_s)

    def _silence_until(self, to_s: float) -> list[Silence]:
        """Return the silence that lasts until then, if there is one; how long it must be is seen when it is drawn."""
        if self._silent_s is None or to_s - self._silent_s < least_silence_s(None):
            return []
        return [Silence(self._silent_s, to_s, max(WAITING, sum(self._waiting.values())))]

    def _end_silence(self, to_s: float) -> None:
        if self._silent_s is not None:
            self._silences += self._silence_until(to_s)
            self._silent_s = None
            if len(self._silences) > 2 * MOST_SILENCES:
                self._silences = longest(self._silences)

    def digest(self) -> Digest | None:
        """Return what the figures need; None before an operation has ended."""
        if not self._ops or self._last_s <= 0:
            return None
        self._part(self._last_s)
        together = -(-len(self._parts) // parts_for(self._ops))
        parts = self._parts if together == 1 else _together(self._parts, together)
        part_s = self._part_s * together
        edges_s = [part_s * number for number in range(len(parts))] + [self._last_s]
        if len(parts) > 1 and edges_s[-1] - edges_s[-2] < part_s / 2:  # too short for a rate
            parts, edges_s = [*parts[:-2], _Part.of(parts[-2:])], [*edges_s[:-2], edges_s[-1]]
        p50_s, p99_s = map(list, zip(*(each.p50_p99_s() for each in parts), strict=True))
        least_s, found = least_silence_s(self._whole.at(0.5)), [*self._silences, *self._silence_until(self._last_s)]
        silences = longest(each for each in found if each.to_s - each.from_s >= least_s)
        whole = Histogram()
        whole.merge(self._whole)
        outcomes = [dict(each.outcomes) for each in parts]
        return Digest(edges_s, p50_s, p99_s, outcomes, whole, silences, self._ops, is_by_end=True)


@dataclass(slots=True)
class _Experiment:
    """Lines of one experiment, oldest first; what is no longer measured is a digest."""

    version: int = 0
    lines: dict[str, LiveDigest | Digest] = field(default_factory=dict)

    def digests(self) -> dict[str, Digest]:
        """Return the lines of which an operation has ended."""
        made = {name: each.digest() if isinstance(each, LiveDigest) else each for name, each in self.lines.items()}
        return {name: each for name, each in made.items() if each is not None}


class LiveDigests:
    """Follows a meter: what figures need of each experiment that has been measured, whoever asks and when."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._experiments: dict[str, _Experiment] = {}
        self._latest: str | None = None
        self._line: LiveDigest | None = None

    def begin(self, nodeid: str, line: str, start_ns: int) -> None:
        """See ``live.Follower``. A line of an earlier run continues, unless others were measured in between."""
        with self._lock:
            if self._latest is not None and self._latest != nodeid:
                former = self._experiments[self._latest]
                former.lines = {**former.digests()}
            self._latest = nodeid
            lines = self._experiments.setdefault(nodeid, _Experiment()).lines
            known = lines.pop(line, None)
            self._line = lines[line] = known if isinstance(known, LiveDigest) else LiveDigest(start_ns)
            self._line.begin()
            for oldest in list(lines)[:-SERIES]:
                del lines[oldest]

    def take(self, heard: AgentReport) -> None:
        """See ``live.Follower``."""
        with self._lock:
            if self._line is not None and self._latest is not None:
                self._line.take(heard)
                self._experiments[self._latest].version += 1

    @property
    def latest(self) -> str | None:
        """The experiment that was measured last."""
        return self._latest

    def version(self, nodeid: str) -> int | None:
        """Return a number that changes when there is news of an experiment; None if it was not measured."""
        with self._lock:
            found = self._experiments.get(nodeid)
            return found.version if found is not None else None

    def of(self, nodeid: str) -> Mapping[str, Digest]:
        """Return the experiment's latest lines, the latest last."""
        with self._lock:
            return self._experiments.get(nodeid, _Experiment()).digests()
