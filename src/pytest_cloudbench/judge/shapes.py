"""Turns numbers along a parameter into a statement about their shape: a knee, a line, a category, a daily pattern.

What may live here: pure functions of measured numbers. No clock, no I/O; what is drawn at random has a fixed seed. Each
answer may be "unknown" (or None), and then says why unless that is obvious.

All times are seconds. A parameter's value without measurements is omitted. Numbers that are not finite, and times
that are not above zero, raise ``ValueError``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import ceil, exp, inf, isfinite, log, sqrt
from random import Random
from statistics import fmean, median, stdev
from typing import Literal

from pytest_cloudbench.judge.significance import (
    Z90,
    Evidence,
    best_line,
    jonckheere,
    kruskal_wallis,
    relative_errors,
    theil_sen,
    trimmed_mean,
    weighted_line,
    wilson,
)

__all__ = [
    "Answer",
    "Availability",
    "Category",
    "Constancy",
    "Drift",
    "Evidence",
    "Knee",
    "Line",
    "SizePoint",
    "availability",
    "constancy",
    "drift",
    "edge_of",
    "fit_line",
    "knee",
]

Answer = Literal["yes", "no", "unknown"]
Category = Literal["constant", "degrading", "degrading_above", "unknown"]


def _measured(values: Mapping[int, Sequence[float]]) -> dict[int, list[float]]:
    """Return the parameter's measured values, ascending."""
    found = {key: list(values[key]) for key in sorted(values) if len(values[key])}
    if not all(isfinite(value) and value > 0 for each in found.values() for value in each):
        raise ValueError("times must be finite and above zero")
    return found


# --- the knee: how many threads are enough ---


@dataclass(frozen=True, slots=True)
class Knee:
    """The smallest level that is nearly as quick as the best one. None: fewer than two levels were measured.

    Attributes:
        level: smallest level whose median total is within the tolerance of the best median. None if it is not known.
        edge: why the knee is not known although levels were measured: it is at the edge of them, so that it may lie
            beyond. Otherwise empty.
        time_s: its median total.
        best_level: the level with the least median total; the smallest such one.
        best_time_s: its median total.
        interval: smallest and largest level that the knee may be with 95 % confidence, among the levels that were
            measured. None: a level was measured only once, so the noise is not known.
        tolerance: as a share of the best time.
    """

    level: int | None
    time_s: float | None
    best_level: int | None
    best_time_s: float | None
    interval: tuple[int, int] | None
    tolerance: float
    edge: str = ""


def knee(
    totals_s: Mapping[int, Sequence[float]], tolerance: float = 0.05, refused: Collection[int] = (), most: float = inf
) -> Knee:
    """Find where more threads stop paying off (thesis 4.2.2, Figures 4.1 to 4.4).

    Args:
        totals_s: number of threads to the total time of each repeat.
        tolerance: how much slower than the best a level may be, as a share.
        refused: levels that were tried and did not work. The knee is not beyond them.
        most: level above which nothing can change, such as the number of files.
    """
    found = _measured(totals_s)
    if len(found) < 2:
        return Knee(None, None, None, None, None, tolerance)
    medians = {level: median(values) for level, values in found.items()}
    level, best = _knee_of(medians, tolerance)
    edge = edge_of(level, medians, refused, most)
    return Knee(
        None if edge else level, medians[level], best, medians[best], _knee_interval(found, medians, tolerance),
        tolerance, edge,
    )  # fmt: skip


def edge_of(level: int, measured: Collection[int], refused: Collection[int] = (), most: float = inf) -> str:
    """Explain why an answer among measured levels may lie beyond them. It is empty if it may not.

    Args:
        level: the answer.
        measured: all levels that were measured.
        refused: levels that were tried and did not work.
        most: level above which nothing can change.
    """
    if level == max(measured) and level < most and not any(other > level for other in refused):
        return f"at the edge: {level} is the highest level that was measured, and more levels would be needed"
    if level == min(measured) and level > 1 and not any(other < level for other in refused):
        return f"at the edge: {level} is the lowest level that was measured, and lower levels would be needed"
    return ""


def _knee_of(medians: Mapping[int, float], tolerance: float) -> tuple[int, int]:
    best = min(medians, key=lambda level: (medians[level], level))
    return min(level for level in medians if medians[level] <= medians[best] * (1 + tolerance)), best


def _knee_interval(
    found: Mapping[int, Sequence[float]], medians: Mapping[int, float], tolerance: float, rounds: int = 400
) -> tuple[int, int] | None:
    """A bootstrap over the repeats of all levels together, since a level alone has too few to be drawn from.

    Deviations are relative, and widened because they are taken from the level's own median. The best level is not
    chosen again in each round: the least of many noisy medians is too low, and would push the knee up.
    """
    if min(len(values) for values in found.values()) < 2:
        return None
    pool = [
        log(value / medians[level]) * sqrt(len(values) / (len(values) - 1))
        for level, values in found.items()
        for value in values
    ]
    chance, knees = Random(0), []
    best = _knee_of(medians, tolerance)[1]
    for _ in range(rounds):
        drawn = {
            level: centre * exp(median(chance.choices(pool, k=len(found[level])))) for level, centre in medians.items()
        }
        knees.append(min(level for level in drawn if drawn[level] <= drawn[best] * (1 + tolerance)))
    knees.sort()
    observed = _knee_of(medians, tolerance)[0]
    return min(knees[rounds // 40], observed), max(knees[-rounds // 40 - 1], observed)


# --- a line: latency and bandwidth over the size of a file ---


@dataclass(frozen=True, slots=True)
class SizePoint:
    """One size against the line.

    Attributes:
        fitted_s: what the line says.
        measured_s: the median of the repeats.
        deviation: measured over fitted, minus one.
        limit: a size is off when the larger of measured and fitted exceeds the other by more than this share.
        off: whether it is off. None: a size is off, but another line, nearly as good, puts it elsewhere.
    """

    fitted_s: float
    measured_s: float
    deviation: float
    limit: float
    off: bool | None


@dataclass(frozen=True, slots=True)
class Line:
    """time = latency_s + size / bytes_per_s, and the sizes that are off.

    Attributes:
        is_known: whether there were three sizes or more; otherwise the rest is None or empty.
        latency_s: time of an empty file. None if too small a part of the shortest time to be distinguished from zero.
        bytes_per_s: None if size has no visible effect.
        noise: relative standard deviation of the repeats at one size; where nothing was measured twice, of the sizes
            around the line. None: fewer than five sizes, each measured once.
        sizes: size in bytes to what was found there.
    """

    is_known: bool
    latency_s: float | None
    bytes_per_s: float | None
    noise: float | None
    sizes: Mapping[int, SizePoint]


def fit_line(times_s: Mapping[int, Sequence[float]], tolerance: float = 0.25, noise_factor: float = 3.0) -> Line:
    """Find sizes whose files take longer than the other sizes predict (thesis 4.2.3, Figures 4.5 and 4.6).

    The line has the least sum of absolute deviations of the logarithms: over four decades of size each point counts by
    its relative error, and one that is off cannot pull the line. It is then smoothed by least squares over the points
    that are not off.

    Args:
        times_s: size in bytes to the time of each repeat.
        tolerance: smallest relative deviation of a size that is off.
        noise_factor: a deviation must also exceed this many standard deviations of the repeats.
    """
    found = _measured(times_s)
    if len(found) < 3:
        return Line(False, None, None, _noise(found), {})
    medians = {size: median(values) for size, values in found.items()}
    lines = sorted(_candidates(medians), key=lambda line: sum(_deviations(medians, line).values()))
    noise = _noise(found)
    if noise is None and len(found) > 4:  # the middle one of the deviations, which a few that are off do not move
        noise_factor *= 2  # so few deviations tell the noise less well than repeats do
        noise = 1.4826 * median(_deviations(medians, lines[0]).values()) * sqrt(len(found) / (len(found) - 2))
    limits = {
        size: max(tolerance, noise_factor * (noise or 0.0), noise_factor * _spread(values) * (len(values) > 2))
        for size, values in found.items()
    }
    latency_s, s_per_byte = _smoothed(medians, limits, lines[0])
    least_s, most_s = (latency_s + s_per_byte * size for size in (min(found), max(found)))
    limit = max(tolerance, noise_factor * (noise or 0.0))
    growth = 1 - latency_s / most_s
    rises = jonckheere(list(found.values())).p_value < 0.01 and growth > 0.05
    if growth < limit / (1 + limit) and not rises:  # a change that one size off would be forgiven
        latency_s, s_per_byte = min(
            ((time_s, 0.0) for time_s in medians.values()), key=lambda line: sum(_deviations(medians, line).values())
        )
        least_s = latency_s
    slack = 2 * (tolerance / 2 if noise is None else noise)
    points = _points(medians, limits, (latency_s, s_per_byte), lines, slack)
    has_latency = latency_s / least_s >= limit / (1 + limit)
    return Line(True, latency_s if has_latency else None, 1 / s_per_byte if s_per_byte else None, noise, points)


def _spread(values: Sequence[float]) -> float:
    return stdev([log(value) for value in values]) if len(values) > 1 else 0.0


def _noise(found: Mapping[int, Sequence[float]]) -> float | None:
    """Return the median of the spreads, so that one erratic size does not excuse the others."""
    spreads = [_spread(values) for values in found.values() if len(values) > 1]
    return median(spreads) if spreads else None


def _candidates(medians: Mapping[int, float]) -> Iterator[tuple[float, float]]:
    """(latency, seconds per byte) through any two points, or through one without latency, or without slope.

    A least sum of absolute deviations with two parameters is reached through two points, or one on an edge.
    """
    for (size, time_s), (larger, later_s) in combinations(medians.items(), 2):
        slope = (later_s - time_s) / (larger - size)
        if slope >= 0 and time_s - slope * size >= 0:
            yield time_s - slope * size, slope
    for size, time_s in medians.items():
        yield time_s, 0.0
        if min(medians) > 0:
            yield 0.0, time_s / size


def _deviations(medians: Mapping[int, float], line: tuple[float, float]) -> dict[int, float]:
    return {size: abs(log(time_s / (line[0] + line[1] * size))) for size, time_s in medians.items()}


def _off(medians: Mapping[int, float], limits: Mapping[int, float], line: tuple[float, float]) -> frozenset[int]:
    return frozenset(size for size, each in _deviations(medians, line).items() if each > log(1 + limits[size]))


def _smoothed(
    medians: Mapping[int, float], limits: Mapping[int, float], line: tuple[float, float]
) -> tuple[float, float]:
    kept = {size: medians[size] for size in medians.keys() - _off(medians, limits, line)}
    if len(kept) < 3:
        return line
    sizes = sorted(kept)
    fit = weighted_line(sizes, [kept[size] for size in sizes], [kept[size] ** -2 for size in sizes])
    return (fit.level, fit.slope) if fit.level >= 0 and fit.slope >= 0 and fit.level + fit.slope > 0 else line


def _points(
    medians: Mapping[int, float],
    limits: Mapping[int, float],
    line: tuple[float, float],
    rivals: Sequence[tuple[float, float]],
    slack: float,
) -> dict[int, SizePoint]:
    """Sizes against the line. Three points cannot say which one is off; nor can more, where another line has no more
    sizes off, but others, and passes the rest as closely (but for the slack).
    """

    def closeness(each: tuple[float, float], but: frozenset[int]) -> float:
        return sum(deviation for size, deviation in _deviations(medians, each).items() if size not in but)

    off = _off(medians, limits, line)
    doubted: set[int] = set(medians) if len(medians) == 3 and off else set()
    bound = closeness(line, off) + slack
    for rival in rivals if off else ():
        others = _off(medians, limits, rival)
        if len(others) <= len(off) and others != off and closeness(rival, others) <= bound:
            doubted |= others ^ off
    return {
        size: SizePoint(fitted, time_s, time_s / fitted - 1, limits[size], None if size in doubted else size in off)
        for size, time_s in medians.items()
        for fitted in [line[0] + line[1] * size]
    }


# --- constancy: does one transfer slow down when there are others ---


@dataclass(frozen=True, slots=True)
class Constancy:
    """What the number of simultaneous transfers does to each of them.

    Attributes:
        category: ``constant``: the slowdown from the lowest to the highest level is certainly below the bound.
            ``degrading``: it exceeds the bound and grows from the first, or from one not told from the first.
            ``degrading_above``: it exceeds the bound, and durations are flat up to a level.
        reason: why the category is unknown, else empty.
        above_level: the level up to which durations are flat. None for any other category.
        above_interval: smallest and largest such level that fit nearly as well (95 %).
        slowdown: fitted duration at the highest level over that at the lowest, minus one.
        slowdown_error: its standard error.
        bound: as the caller gave it.
        centres_s: level to the trimmed mean of its durations.
        difference: Kruskal-Wallis: do levels differ at all? It takes transfers for independent.
        trend: Jonckheere-Terpstra, one-sided: do durations rise with the level? The same.
        bend: F test of a flat start and then a line against a line from the first.
    """

    category: Category
    reason: str
    above_level: int | None
    above_interval: tuple[int, int] | None
    slowdown: float | None
    slowdown_error: float | None
    bound: float
    centres_s: Mapping[int, float]
    difference: Evidence | None
    trend: Evidence | None
    bend: Evidence | None


def constancy(durations_s: Mapping[int, Sequence[float]], bound: float = 0.2) -> Constancy:
    """Sort a provider into the categories of Cloud-RAID, III.D (Figures 5 and 6).

    A category is a statement about size, not about significance, since with thousands of transfers a slowdown of 3 % is
    certain and does not matter. So a line and a bent line are fitted to the centres of levels, and the slowdown with
    its error is held against the bound. The bend must pay for its parameter in an F test. Transfers of one level ran at
    the same time and share their conditions, so each centre has an error of 3 % of its own, however many there were.
    Centres are trimmed means (a tenth at each end): a median would not see that two transfers of five are slow, which
    is how Figure 6d degrades, and a mean would be moved by a single one that hangs.

    Args:
        durations_s: number of simultaneous transfers to the duration of each of them, all repeats together.
        bound: largest slowdown from the lowest to the highest level that still counts as constant.
    """
    found = _measured(durations_s)
    centres = {level: trimmed_mean(values) for level, values in found.items()}
    if len(found) < 3:
        return Constancy("unknown", "fewer than three levels", None, None, None, None, bound, centres, None, None, None)
    groups = list(found.values())
    difference, trend = kruskal_wallis(groups), jonckheere(groups)
    shape = best_line(list(centres), list(centres.values()), relative_errors(found, centres))
    low, high = (shape.slowdown + sign * Z90 * shape.error for sign in (-1, 1))
    category: Category = "unknown"
    reason = ""
    if -bound <= low and high <= bound:
        uneven = shape.unevenness > bound
        category, reason = ("unknown", "levels differ, but not by their order") if uneven else ("constant", "")
    elif shape.slowdown > bound and low > bound / 2 and trend.p_value < 0.05:
        category = "degrading_above" if shape.bend_level is not None else "degrading"
    elif shape.slowdown < -bound and high < 0:
        reason = "durations fall as levels rise"
    else:
        reason = f"the slowdown lies between {low:.0%} and {high:.0%}, on both sides of the bound"
    above = category == "degrading_above"
    return Constancy(
        category, reason, shape.bend_level if above else None, shape.bend_interval if above else None,
        shape.slowdown, shape.error, bound, centres, difference, trend, shape.bend,
    )  # fmt: skip


# --- availability ---


@dataclass(frozen=True, slots=True)
class Availability:
    """Share of operations that completed, with its 95 % interval (Wilson). None: nothing was tried."""

    share: float | None
    low: float
    high: float


def availability(completed: int, tried: int) -> Availability:
    """Completed over tried (Cloud-RAID, III.D.3, Table III), never certain: 72,500 of 72,500 is above 99.994 %.

    Raises:
        ValueError: not 0 <= completed <= tried.
    """
    if not 0 <= completed <= tried:
        raise ValueError(f"{completed} of {tried} is not a share")
    if not tried:
        return Availability(None, 0.0, 1.0)
    share = completed / tried
    return Availability(share, *wilson(share, tried))


# --- drift: over the day and over the whole time ---


@dataclass(frozen=True, slots=True)
class Drift:
    """Whether a value changes with the time of day, and over the whole time.

    Attributes:
        daily: ``yes``: hours of the day differ by chance in less than 1 of 100, and by the bound at least.
            ``no``: this was not seen.
        daily_reason: why unknown, else empty.
        daily_test: Kruskal-Wallis over hours of the day.
        daily_change: largest minus smallest median of an hour, as a share of the overall median (None if that is 0),
            less what chance alone makes of it.
        trend: ``yes``: the value rises or falls by chance in less than 1 of 100, and by the bound at least.
            ``no``: the change over the whole time is below the bound with 95 % confidence.
        trend_reason: why unknown, else empty.
        trend_test: Mann-Kendall, two-sided; within each hour of the day (seasonal) from two days on.
        slope_per_s: Theil-Sen, the median of all slopes.
        trend_change: slope times the whole time, as a share of the overall median.
        trend_interval: its 95 % interval.
        hours: how many hours of the day were seen.
        days: how long the whole time is, in periods.
    """

    daily: Answer
    daily_reason: str
    daily_test: Evidence | None
    daily_change: float | None
    trend: Answer
    trend_reason: str
    trend_test: Evidence | None
    slope_per_s: float | None
    trend_change: float | None
    trend_interval: tuple[float, float] | None
    hours: int
    days: float


def drift(
    at_s: Sequence[float],
    values: Sequence[float],
    period_s: float = 86400.0,
    *,
    bound: float = 0.1,
    least: int = 20,
) -> Drift:
    """Does a value change with the time of day, and is there a trend (Cloud-RAID, III.D.1, Figures 3 and 4)?

    From two days on, values are first reduced to one median for each hour of each day (of up to 40 blocks of days):
    values that follow one another are alike, and so only what comes again on another day counts as daily. Over a
    shorter time a trend is looked for in up to 300 medians of consecutive values, and hours are compared by up to
    20,000. This also bounds the work: 100,000 values take less than a second.

    Args:
        at_s: times of the values, in any order; zero is the start of a day.
        values: what was measured.
        period_s: length of a day; an hour is its 24th part.
        bound: smallest change that matters, as a share of the median.
        least: with fewer values than this everything is unknown.
    """
    points = sorted(zip(at_s, values, strict=True))
    if not all(isfinite(at) and isfinite(value) for at, value in points):
        raise ValueError("values and their times must be finite")
    days = (points[-1][0] - points[0][0]) / period_s if points else 0.0
    hours = len({_hour(at, period_s) for at, _ in points})
    if len(points) < least or not days:
        why = f"fewer than {least} values" if days or not points else "all at one time"
        return Drift("unknown", why, None, None, "unknown", why, None, None, None, None, hours, days)
    is_seasonal = days >= _TWO_DAYS
    cells = _cells(points, period_s, days) if is_seasonal else _thinned(points, 20_000)
    by_hour: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for at, value in cells:
        by_hour[_hour(at, period_s)].append((at, value))
    trend = theil_sen(list(by_hour.values()) if is_seasonal else [_thinned(points)], is_seasonal=is_seasonal)
    middle = abs(median(value for _, value in points))
    daily_test, daily_change = _daily(by_hour, trend.slope if trend.evidence.p_value < 0.01 else 0.0, middle)
    daily, daily_reason = _daily_answer(by_hour, daily_test, daily_change, days, bound)
    changes = [slope * days * period_s / middle if middle else None for slope in (trend.slope, trend.low, trend.high)]
    answer, trend_reason = _trend_answer(trend.evidence, changes, bound)
    if not is_seasonal and (daily_test.p_value < 0.01 or (daily == "unknown" and hours > 12)):
        answer, trend_reason = "unknown", "in less than two days a trend cannot be told from the time of day"
    change, low, high = changes
    return Drift(
        daily, daily_reason, daily_test, daily_change, answer, trend_reason, trend.evidence, trend.slope, change,
        (low, high) if low is not None and high is not None else None, hours, days,
    )  # fmt: skip


_TWO_DAYS = 47 / 24  # from the first value to the last, where there is one in each hour


def _hour(at_s: float, period_s: float) -> int:
    return min(23, int(at_s % period_s / period_s * 24))


def _cells(points: Sequence[tuple[float, float]], period_s: float, days: float) -> list[tuple[float, float]]:
    """Return one median time and median value for each hour of each block of days."""
    block_s = period_s * max(1, ceil(days / 40))
    cells: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for at, value in points:
        cells[int(at // block_s), _hour(at, period_s)].append((at, value))
    # The middle observation's own time, so that the cell keeps its hour.
    return [(each[len(each) // 2][0], median(value for _, value in each)) for each in cells.values()]


def _thinned(points: Sequence[tuple[float, float]], most: int = 300) -> list[tuple[float, float]]:
    if len(points) <= most:
        return list(points)
    edges = [len(points) * index // most for index in range(most + 1)]
    parts = [points[low:high] for low, high in pairwise(edges)]
    return [(fmean(at for at, _ in part), median(value for _, value in part)) for part in parts]


def _daily(
    by_hour: Mapping[int, Sequence[tuple[float, float]]], slope: float, middle: float
) -> tuple[Evidence, float | None]:
    """Test the hours for differences, after removing a trend if it is certain."""
    groups = [[value - slope * at for at, value in each] for each in by_hour.values()]
    centres = [median(group) for group in groups]
    test = kruskal_wallis(groups)
    by_chance = min(1.0, (len(groups) - 1) / test.statistic) if test.statistic else 1.0
    return test, (max(centres) - min(centres)) * sqrt(1 - by_chance) / middle if middle else None


def _daily_answer(
    by_hour: Mapping[int, Sequence[object]], test: Evidence, change: float | None, days: float, bound: float
) -> tuple[Answer, str]:
    if len(by_hour) < 2:
        return "unknown", "only one hour of the day was seen"
    if test.p_value < 0.01 and (change is None or change >= bound):
        return ("yes", "") if days >= _TWO_DAYS else ("unknown", "hours differ, but less than two days were seen")
    few = median(len(each) for each in by_hour.values()) < 3
    return ("unknown", "fewer than three values in an hour of the day") if few else ("no", "")


def _trend_answer(test: Evidence, changes: Sequence[float | None], bound: float) -> tuple[Answer, str]:
    change, low, high = changes
    if change is None or low is None or high is None:  # the median is zero, so a share of it says nothing
        return ("yes", "") if test.p_value < 0.01 else ("no", "")
    if test.p_value < 0.01 and abs(change) >= bound:
        return "yes", ""
    if -bound < low and high < bound:
        return "no", ""
    if not isfinite(high):
        return "unknown", "no hour of the day was seen twice"
    return "unknown", f"the change over the whole time lies between {low:+.0%} and {high:+.0%}"
