"""Searches that decide which level to measure next from the results so far.

They are state machines: pure functions of the results so far. Nothing is random, so agents with the same results ask
for the same level. The caller measures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import inf, isfinite, log, sqrt
from statistics import fmean, median
from typing import Literal

from pytest_cloudbench.judge.shapes import edge_of

_MAX_MEDIAN_DIFFERENCES = 4.0
"""Repeats that differ by more than this many median differences do not count as noise: 0.7 % of the differences in a
normal distribution."""


@dataclass(frozen=True, slots=True)
class BestLevel:
    """The level with the shortest time, as far as the search has found it.

    Attributes:
        level: the smallest of the contenders, because more segments that are not measurably better are of no use. None
            if nothing was measured.
        edge: why the answer may lie beyond the limits of the search. Empty if it does not.
        time_s: median time at this level.
        quickest: the level with the shortest median time. The smallest of equal ones.
        contenders: ascending levels whose times cannot be distinguished from the quickest one's.
        noise: relative standard deviation of the repeats at one level, apart from single measurements that took much
            longer. None if nothing was measured twice.
        probes: the number of measurements, including failed ones.
        is_complete: whether the search finished. If not, its probes ran out, or it is still running.
        measured: ascending levels with their times in seconds, in the order of measuring. A level whose measurements
            all failed has no times.
    """

    level: int | None
    time_s: float | None
    quickest: int | None
    contenders: tuple[int, ...]
    noise: float | None
    probes: int
    is_complete: bool
    measured: Mapping[int, tuple[float, ...]]
    edge: str = ""


class LevelSearch:
    """A search for the number of parallel segments with the shortest time (Cloud-RAID, Table II), without a full grid.

    First each of the levels at doubling distances is measured once. Then these two steps repeat until nothing is left
    to do. Contenders, which are the levels that do not differ from the quickest one, are measured up to ``repeats``
    times, those with the fewest measurements first. After that the gaps next to the quickest level, and the gap below
    the smallest contender, are halved (in proportion) while they are wider than ``resolution``. Two levels differ if
    their medians differ by more than two standard errors of that difference, and by more than 2 %. Until a level was
    measured twice, the noise is assumed to be 10 %.

    One measurement that took much longer than the others must not decide. So differences between repeats that are far
    beyond the median difference do not count as noise, and no level next to the answer is excluded by a single
    measurement: at the end, the levels next to the quickest and next to the smallest contender are measured again, up
    to ``repeats`` times if one of their measurements is as quick as a contender.

    A level that failed twice, and more often than it was measured, is not requested again.
    """

    def __init__(
        self,
        lowest: int = 1,
        highest: int = 100,
        repeats: int = 3,
        max_probes: int = 60,
        *,
        start: Sequence[int] | None = None,
        resolution: float = 0.15,
    ) -> None:
        """Set the limits.

        Args:
            lowest: smallest level, at least 1.
            highest: largest level.
            repeats: how often a contender is measured.
            max_probes: the most measurements, including failed ones.
            start: the levels of the first pass; by default lowest, doubled repeatedly up to highest.
            resolution: gaps narrower than this share of their lower end are not halved.

        Raises:
            ValueError: limits that leave nothing to search, or a start outside of them.
        """
        if not (1 <= lowest <= highest and repeats >= 1 and max_probes >= 1 and resolution > 0):
            raise ValueError("needs 1 <= lowest <= highest, repeats and max_probes of at least 1, resolution above 0")
        self._first = sorted(set(start)) if start else _doubling(lowest, highest)
        if not lowest <= self._first[0] <= self._first[-1] <= highest:
            raise ValueError(f"start must lie between {lowest} and {highest}")
        self._repeats, self._max_probes, self._resolution = repeats, max_probes, resolution
        self._times: dict[int, list[float]] = defaultdict(list)
        self._failures: dict[int, int] = defaultdict(int)
        self._probes = 0

    def next(self) -> int | None:
        """Return the level to measure now. It stays the same until ``tell`` is called. None if the search is over."""
        return self._next_level() if self._probes < self._max_probes else None

    def tell(self, level: int, seconds: float | None) -> None:
        """Report the time measured at the requested level. None if the measurement failed.

        Raises:
            ValueError: not the requested level, or a time that is not finite and above zero.
        """
        if level != self.next():
            raise ValueError(f"expected a measurement of level {self.next()}, got one of {level}")
        if seconds is not None and not (isfinite(seconds) and seconds > 0):
            raise ValueError(f"{seconds} is not a time")
        self._probes += 1
        if seconds is None:
            self._failures[level] += 1
        else:
            self._times[level].append(seconds)

    def result(self) -> BestLevel:
        """Return the result so far."""
        measured = {level: tuple(self._times.get(level, ())) for level in sorted({*self._times, *self._failures})}
        is_complete = self._next_level() is None
        medians = self._medians()
        if not medians:
            return BestLevel(None, None, None, (), None, self._probes, is_complete, measured)
        contenders = self._contenders(medians)
        return BestLevel(
            contenders[0], medians[contenders[0]], _quickest(medians), tuple(contenders), self._noise(),
            self._probes, is_complete, measured, edge_of(contenders[0], medians, self._failures),
        )  # fmt: skip

    def _next_level(self) -> int | None:
        for level in sorted({*self._first, *self._failures}):
            if not self._times.get(level) and not self._is_hopeless(level):
                return level
        medians = self._medians()
        if not medians:
            return None
        contenders = self._contenders(medians)
        if (contender := self._least_measured(contenders)) is not None:
            return contender
        if (middle := self._level_in_gap(_quickest(medians), contenders[0])) is not None:
            return middle
        return self._least_measured(self._levels_to_confirm(medians, contenders))

    def _least_measured(self, levels: Iterable[int]) -> int | None:
        """Return the level with the fewest measurements, of those that may be measured again."""
        candidates = [
            level for level in levels if len(self._times[level]) < self._repeats and not self._is_hopeless(level)
        ]
        return min(candidates, key=lambda level: (len(self._times[level]), level), default=None)

    def _levels_to_confirm(self, medians: Mapping[int, float], contenders: Sequence[int]) -> set[int]:
        """Return the levels that a single slow measurement may have excluded."""
        levels, quickest = list(medians), _quickest(medians)
        indices = [levels.index(level) for level in (quickest, contenders[0])]
        neighbours = {level for index in indices for level in levels[max(0, index - 1) : index + 2]}
        measured_once = {level for level in neighbours if len(self._times[level]) == 1}
        min_times_s = {level: min(self._times[level]) for level in levels}
        return measured_once | set(self._indistinguishable(min_times_s, medians, quickest))

    def _level_in_gap(self, quickest: int, smallest: int) -> int | None:
        """Return a level in the widest gap next to the quickest level, or in the gap below all contenders."""
        levels = sorted({*self._times, *self._failures})
        gaps = [gap for gap in pairwise(levels) if self._is_wide(*gap)]
        adjacent = [gap for gap in gaps if quickest in gap] or [gap for gap in gaps if gap[1] == smallest]
        if not adjacent:
            return None
        low, high = max(adjacent, key=lambda gap: (gap[1] / gap[0], -gap[0]))
        return min(max(round(sqrt(low * high)), low + 1), high - 1)

    def _is_wide(self, low: int, high: int) -> bool:
        return high - low > 1 and high > low * (1 + self._resolution)

    def _is_hopeless(self, level: int) -> bool:
        failures = self._failures.get(level, 0)
        return failures >= 2 and failures > len(self._times.get(level, ()))

    def _medians(self) -> dict[int, float]:
        return {level: median(self._times[level]) for level in sorted(self._times) if self._times[level]}

    def _noise(self) -> float | None:
        """Return the noise pooled over levels, because one level has too few repeats to estimate its own."""
        differences = [abs(log(one / other)) for times in self._times.values() for one, other in combinations(times, 2)]
        if not differences:
            return None
        limit = _MAX_MEDIAN_DIFFERENCES * median(differences)
        return sqrt(fmean(difference**2 for difference in differences if difference <= limit) / 2)

    def _contenders(self, medians: Mapping[int, float]) -> list[int]:
        return self._indistinguishable(medians, medians, _quickest(medians))

    def _indistinguishable(self, times_s: Mapping[int, float], medians: Mapping[int, float], best: int) -> list[int]:
        """Return the levels whose given times do not differ measurably from the median of the best one."""
        noise = self._noise()
        noise = 0.1 if noise is None else noise

        def margin(level: int) -> float:
            # The error of a median is 1.25 times that of a mean.
            return max(0.02, 2 * 1.25 * noise * sqrt(1 / len(self._times[level]) + 1 / len(self._times[best])))

        return [level for level, time_s in times_s.items() if log(time_s / medians[best]) <= margin(level)]


def _doubling(lowest: int, highest: int) -> list[int]:
    levels = [lowest]
    while levels[-1] * 2 < highest:
        levels.append(levels[-1] * 2)
    return sorted({*levels, highest})


def _quickest(medians: Mapping[int, float]) -> int:
    return min(medians, key=lambda level: (medians[level], level))


# --- search for the largest level that passes ---


@dataclass(frozen=True, slots=True)
class BracketProbe:
    """One measurement: its level, whether it passed (None if it could not be judged), and its number of operations."""

    level: float
    passed: bool | None
    ops: int


@dataclass(frozen=True, slots=True)
class Bracket:
    """The limit of passing. If passing is a matter of chance over a range of levels, these are no confidence limits.

    Attributes:
        passes_at: the largest level that passed and lies below every level that failed. None if there is none.
        fails_at: the smallest level that failed. None if none failed.
        low: lower end of a wider interval for the answer: the largest level such that no probe at it or below it
            failed. Equal to passes_at if probes agree. None if unknown.
        high: its upper end: the smallest level that failed such that no probe at it or above it passed. Equal to
            fails_at if probes agree. None if unknown.
        is_bounded: whether passes_at and fails_at are known. Otherwise one of them is a bound of the answer.
        is_monotonic: whether no level passed above one that failed.
        inconclusive: which levels could not be judged and made the interval wider than requested. Empty if none did.
        ended: ``resolution``: the interval is as narrow as requested. ``edge``: the highest level passed, or the lowest
            failed. ``inconclusive``: a level could not be judged. ``budget``: probes or operations ran out.
            ``running``: the search is not over.
        ops: operations of all probes.
        probes: all measurements in their order.
    """

    passes_at: float | None
    fails_at: float | None
    low: float | None
    high: float | None
    is_bounded: bool
    is_monotonic: bool
    inconclusive: str
    ended: Literal["resolution", "edge", "inconclusive", "budget", "running"]
    ops: int
    probes: tuple[BracketProbe, ...]


@dataclass(frozen=True, slots=True)
class _JudgedLevels:
    """All probed levels by their verdict, ascending."""

    passed: tuple[float, ...]
    failed: tuple[float, ...]
    blocked: tuple[float, ...]  # could not be judged
    open: tuple[float, ...]  # needs more probes

    @property
    def low(self) -> float | None:
        """The largest level that passed below all that failed."""
        lowest_fail = min(self.failed, default=inf)
        return max((level for level in self.passed if level < lowest_fail), default=None)

    @property
    def top(self) -> float | None:
        """The smallest level above ``low`` that did not pass."""
        low = self.low
        return min((level for level in (*self.failed, *self.blocked) if low is None or level > low), default=None)


class BracketSearch:
    """A search for the largest rate, or number of sensors, that passes (thesis 4.2.4).

    The search doubles from ``start`` until a level fails (or halves until one passes). Then it halves the interval in
    proportion until its ends differ by at most ``resolution``. A level passes if more than half of ``repeats`` probes
    pass, and its probes stop as soon as that is decided.

    One disturbance must not hide the levels above it: if a level fails, one level above it is tried too. If that
    passes, the level that failed gets as many probes again. If it still fails, outcomes are not monotonic: the search
    goes on upwards until nothing passes, and its result has a wider interval.

    A probe that could not be judged counts for neither side. A level with ``repeats`` such probes is abandoned. The
    search goes on below it, and the upper end of the answer stays open unless a level failed.
    """

    def __init__(
        self,
        lowest: float,
        highest: float,
        resolution: float = 0.1,
        repeats: int = 3,
        *,
        max_probes: int = 60,
        max_ops: int | None = None,
        start: float | None = None,
        integer: bool = False,
    ) -> None:
        """Set the limits.

        Args:
            lowest: smallest level, above zero.
            highest: largest level.
            resolution: largest difference between the ends, as a share of the lower one.
            repeats: probes of one level, of which more than half must pass.
            max_probes: most probes.
            max_ops: the most operations of all probes. A level is not requested if it would exceed them, estimated by
                the largest number of operations per level so far. The first probe can exceed them, and so can one that
                takes more than this estimate.
            start: the first level, instead of lowest.
            integer: whether levels are whole numbers.

        Raises:
            ValueError: limits that leave nothing to search.
        """
        start = lowest if start is None else start
        if not (0 < lowest <= start <= highest < inf and resolution > 0 and repeats >= 1 and max_probes >= 1):
            raise ValueError("needs 0 < lowest <= start <= highest, resolution above 0, repeats and max_probes from 1")
        if integer and not all(float(level).is_integer() for level in (lowest, start, highest)):
            raise ValueError("lowest, start and highest must be whole")
        self._lowest, self._highest, self._start = lowest, highest, start
        self._resolution, self._repeats, self._is_integer = resolution, repeats, integer
        self._max_probes, self._max_ops = max_probes, max_ops
        self._probes: list[BracketProbe] = []

    def next(self) -> float | None:
        """Return the level to probe now. It stays the same until ``tell`` is called. None if the search is over."""
        if len(self._probes) >= self._max_probes:
            return None
        return next((level for level in self._useful_levels() if self._is_affordable(level)), None)

    def tell(self, level: float, passed: bool | None, ops: int = 0) -> None:
        """Report whether the requested level passed. None if it could not be judged, as with a saturated engine.

        Raises:
            ValueError: not the requested level, or a negative number of operations.
        """
        if level != self.next():
            raise ValueError(f"expected a measurement of level {self.next()}, got one of {level}")
        if ops < 0:
            raise ValueError(f"{ops} operations")
        self._probes.append(BracketProbe(level, passed, ops))

    def result(self) -> Bracket:
        """Return the result so far."""
        judged = self._judge()
        passes_at, fails_at = judged.low, min(judged.failed, default=None)
        votes_against = min((probe.level for probe in self._probes if probe.passed is False), default=inf)
        votes_for = max((probe.level for probe in self._probes if probe.passed), default=0.0)
        low = max((level for level in judged.passed if level < votes_against), default=None)
        high = min((level for level in judged.failed if level > votes_for), default=None)
        ended: Literal["resolution", "edge", "inconclusive", "budget", "running"]
        if self.next() is not None:
            ended = "running"
        elif next(self._useful_levels(), None) is not None:
            ended = "budget"
        elif judged.top in judged.blocked:
            ended = "inconclusive"
        else:
            ended = "resolution" if passes_at is not None and judged.top is not None else "edge"
        doubtful = [level for level in judged.blocked if (passes_at or 0) < level < (fails_at or inf)]
        return Bracket(
            passes_at, fails_at, low, high, passes_at is not None and fails_at is not None,
            fails_at is None or not judged.passed or judged.passed[-1] < fails_at,
            f"could not be judged: {', '.join(f'{level:g}' for level in doubtful)}" if doubtful else "",
            ended, sum(probe.ops for probe in self._probes), tuple(self._probes),
        )  # fmt: skip

    def _judge(self) -> _JudgedLevels:
        outcomes: dict[float, list[bool | None]] = defaultdict(list)
        for probe in self._probes:
            outcomes[probe.level].append(probe.passed)
        first_verdicts = {level: _verdict(level_outcomes, self._repeats) for level, level_outcomes in outcomes.items()}
        highest_pass = max((level for level, verdict in first_verdicts.items() if verdict == "passed"), default=0.0)
        groups: dict[str, list[float]] = {"passed": [], "failed": [], "blocked": [], "open": []}
        for level, first_verdict in sorted(first_verdicts.items()):
            # A higher level that passed contradicts a failure, so twice as many probes decide.
            is_contradicted = first_verdict == "failed" and level < highest_pass
            verdict = _verdict(outcomes[level], 2 * self._repeats) if is_contradicted else first_verdict
            groups[verdict].append(level)
        return _JudgedLevels(*(tuple(groups[name]) for name in ("passed", "failed", "blocked", "open")))

    def _useful_levels(self) -> Iterator[float]:
        """Yield levels that would help, the most useful first. If one costs too much, the next one counts."""
        judged = self._judge()
        yield from judged.open
        if not (judged.passed or judged.failed or judged.blocked):
            if not judged.open:
                yield self._start
            return
        low, top = judged.low, judged.top
        highest = max((*judged.passed, *judged.failed, *judged.blocked))
        if top is None:  # all levels passed, so the limit is above them
            if highest < self._highest:
                yield self._step(highest * 2)
            return
        # One level above the first that failed, and further ones while levels above a failed one pass.
        if judged.failed and highest < self._highest and (highest == judged.failed[0] or highest in judged.passed):
            yield self._step(highest * 2)
        if low is None:
            if top > self._lowest:
                yield self._step(top / 2)
            return
        if (middle := self._middle(low, top)) is not None:
            yield middle

    def _step(self, level: float) -> float:
        level = min(max(level, self._lowest), self._highest)
        return int(level) if self._is_integer else level

    def _middle(self, low: float, top: float) -> float | None:
        if top <= low * (1 + self._resolution):
            return None
        middle = sqrt(low * top)
        if self._is_integer:
            middle = min(max(round(middle), low + 1), top - 1)
        return middle if low < middle < top else None

    def _is_affordable(self, level: float) -> bool:
        if self._max_ops is None:
            return True
        used = sum(probe.ops for probe in self._probes)
        per_level = max((probe.ops / probe.level for probe in self._probes), default=0.0)
        return used < self._max_ops and used + per_level * level <= self._max_ops


def _verdict(outcomes: Sequence[bool | None], repeats: int) -> str:
    """Return the earliest possible decision about a level. Later outcomes do not change it."""
    needed = repeats // 2 + 1
    passed = failed = unjudged = 0
    for outcome in outcomes:
        passed, failed, unjudged = passed + (outcome is True), failed + (outcome is False), unjudged + (outcome is None)
        if passed >= needed:
            return "passed"
        if failed > repeats - needed:
            return "failed"
        if unjudged >= repeats:
            return "blocked"
    return "open"
