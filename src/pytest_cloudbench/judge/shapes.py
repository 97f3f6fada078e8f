"""Statements about the shape of numbers along a parameter: a knee, a line, a category, a daily pattern.

All are pure functions of measured numbers. Random draws have a fixed seed. Each answer may be "unknown" (or None), and
then has a reason unless that is obvious.

All times are seconds. A parameter's value without measurements is omitted. Numbers that are not finite, and times that
are not above zero, raise ``ValueError``.
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


def _check_times(values: Mapping[int, Sequence[float]]) -> dict[int, list[float]]:
    """Return the parameter's values that were measured, ascending, with their times."""
    times = {key: list(values[key]) for key in sorted(values) if len(values[key])}
    if not all(isfinite(value) and value > 0 for repeats in times.values() for value in repeats):
        raise ValueError("times must be finite and above zero")
    return times


# --- knee: how many threads are enough ---


@dataclass(frozen=True, slots=True)
class Knee:
    """The smallest level that is nearly as quick as the best one. None if fewer than two levels were measured.

    Attributes:
        level: the smallest level whose median total is within the tolerance of the best median. None if unknown.
        edge: why the knee is unknown although levels were measured: it is at their edge, so that it may lie beyond
            them. Otherwise empty.
        time_s: the median total at ``level``, or at the edge.
        best_level: the level with the shortest median total. The smallest of equal ones.
        best_time_s: the median total at ``best_level``.
        interval: the smallest and largest measured level that may be the knee with 95 % confidence. None if a level was
            measured only once, so that the noise is unknown.
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
    """Find the level from which on more threads do not pay off (thesis 4.2.2, Figures 4.1 to 4.4).

    Args:
        totals_s: number of threads to the total time of each repeat.
        tolerance: how much slower than the best a level may be, as a share.
        refused: levels that were tried and did not work. The knee is not beyond them.
        most: the level above which nothing can change, such as the number of files.
    """
    times = _check_times(totals_s)
    if len(times) < 2:
        return Knee(None, None, None, None, None, tolerance)
    medians = {level: median(values) for level, values in times.items()}
    level, best = _find_knee(medians, tolerance)
    edge = edge_of(level, medians, refused, most)
    return Knee(
        None if edge else level, medians[level], best, medians[best], _knee_interval(times, medians, tolerance),
        tolerance, edge,
    )  # fmt: skip


def edge_of(level: int, measured: Collection[int], refused: Collection[int] = (), most: float = inf) -> str:
    """Explain why an answer among measured levels may lie beyond them. Empty if it cannot.

    Args:
        level: the answer.
        measured: all levels that were measured.
        refused: levels that were tried and did not work.
        most: the level above which nothing can change.
    """
    if level == max(measured) and level < most and not any(other > level for other in refused):
        return f"at the edge: {level} is the highest level that was measured, and more levels would be needed"
    if level == min(measured) and level > 1 and not any(other < level for other in refused):
        return f"at the edge: {level} is the lowest level that was measured, and lower levels would be needed"
    return ""


def _find_knee(medians: Mapping[int, float], tolerance: float) -> tuple[int, int]:
    best = min(medians, key=lambda level: (medians[level], level))
    return min(level for level in medians if medians[level] <= medians[best] * (1 + tolerance)), best


def _knee_interval(
    times: Mapping[int, Sequence[float]], medians: Mapping[int, float], tolerance: float, rounds: int = 400
) -> tuple[int, int] | None:
    """Bootstrap the knee over the repeats of all levels together, because one level has too few to draw from.

    Deviations are relative, and widened because they are taken from the level's own median. The best level is not
    chosen again in each round: the least of many noisy medians is too low, and would push the knee up.
    """
    if min(len(values) for values in times.values()) < 2:
        return None
    pool = [
        log(value / medians[level]) * sqrt(len(values) / (len(values) - 1))
        for level, values in times.items()
        for value in values
    ]
    generator, knees = Random(0), []
    best = _find_knee(medians, tolerance)[1]
    for _ in range(rounds):
        drawn = {
            level: centre * exp(median(generator.choices(pool, k=len(times[level]))))
            for level, centre in medians.items()
        }
        knees.append(min(level for level in drawn if drawn[level] <= drawn[best] * (1 + tolerance)))
    knees.sort()
    observed = _find_knee(medians, tolerance)[0]
    return min(knees[rounds // 40], observed), max(knees[-rounds // 40 - 1], observed)


# --- line: latency and bandwidth over the size of a file ---


@dataclass(frozen=True, slots=True)
class SizePoint:
    """One size compared with the line.

    Attributes:
        fitted_s: the time by the line.
        measured_s: the median of the repeats.
        deviation: measured over fitted, minus one.
        limit: a size is off if the larger of measured and fitted exceeds the other by more than this share.
        off: whether the size is off. None if another line is nearly as good, and other sizes are off from it.
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
        is_known: whether there were three sizes or more. If not, the other values are None or empty.
        latency_s: the time of an empty file. None if it is too small a part of the shortest time to differ from zero.
        bytes_per_s: the bandwidth. None if size has no visible effect.
        noise: the relative standard deviation of the repeats at one size, or of the sizes around the line if nothing
            was measured twice. None for fewer than five sizes that were measured once each.
        sizes: the size in bytes to its comparison with the line.
    """

    is_known: bool
    latency_s: float | None
    bytes_per_s: float | None
    noise: float | None
    sizes: Mapping[int, SizePoint]


def fit_line(times_s: Mapping[int, Sequence[float]], tolerance: float = 0.25, noise_factor: float = 3.0) -> Line:
    """Find sizes whose files take longer than the other sizes predict (thesis 4.2.3, Figures 4.5 and 4.6).

    The line has the least sum of absolute deviations of the logarithms, so that over four decades of size each point
    counts by its relative error, and one that is off does not pull the line. It is then refined by least squares over
    the points that are not off.

    Args:
        times_s: size in bytes to the time of each repeat.
        tolerance: the smallest relative deviation of a size that is off.
        noise_factor: a size that is off must also deviate by this many standard deviations of the repeats.
    """
    times = _check_times(times_s)
    if len(times) < 3:
        return Line(False, None, None, _noise(times), {})
    medians = {size: median(values) for size, values in times.items()}
    lines = sorted(_candidate_lines(medians), key=lambda line: sum(_log_deviations(medians, line).values()))
    noise = _noise(times)
    if noise is None and len(times) > 4:  # by the median deviation, which a few sizes that are off do not move
        noise_factor *= 2  # so few deviations estimate the noise less well than repeats do
        noise = 1.4826 * median(_log_deviations(medians, lines[0]).values()) * sqrt(len(times) / (len(times) - 2))
    limits = {
        size: max(tolerance, noise_factor * (noise or 0.0), noise_factor * _spread(values) * (len(values) > 2))
        for size, values in times.items()
    }
    latency_s, s_per_byte = _refine_line(medians, limits, lines[0])
    min_s, max_s = (latency_s + s_per_byte * size for size in (min(times), max(times)))
    limit = max(tolerance, noise_factor * (noise or 0.0))
    growth = 1 - latency_s / max_s
    rises = jonckheere(list(times.values())).p_value < 0.01 and growth > 0.05
    if growth < limit / (1 + limit) and not rises:  # a growth that would not even make one size off
        latency_s, s_per_byte = min(
            ((time_s, 0.0) for time_s in medians.values()),
            key=lambda line: sum(_log_deviations(medians, line).values()),
        )
        min_s = latency_s
    slack = 2 * (tolerance / 2 if noise is None else noise)
    points = _compare_sizes(medians, limits, (latency_s, s_per_byte), lines, slack)
    has_latency = latency_s / min_s >= limit / (1 + limit)
    return Line(True, latency_s if has_latency else None, 1 / s_per_byte if s_per_byte else None, noise, points)


def _spread(values: Sequence[float]) -> float:
    return stdev([log(value) for value in values]) if len(values) > 1 else 0.0


def _noise(times: Mapping[int, Sequence[float]]) -> float | None:
    """Return the median spread of the repeats, so that one erratic size does not excuse the others."""
    spreads = [_spread(values) for values in times.values() if len(values) > 1]
    return median(spreads) if spreads else None


def _candidate_lines(medians: Mapping[int, float]) -> Iterator[tuple[float, float]]:
    """Yield (latency, seconds per byte) through any two points, or through one without latency or without slope.

    A line with the least sum of absolute deviations goes through two points, or through one with a parameter at zero.
    """
    for (size, time_s), (larger, later_s) in combinations(medians.items(), 2):
        slope = (later_s - time_s) / (larger - size)
        latency_s = time_s - slope * size
        if slope >= 0 and (latency_s > 0 or (latency_s == 0 and min(medians) > 0)):  # nothing takes no time at all
            yield latency_s, slope
    for size, time_s in medians.items():
        yield time_s, 0.0
        if min(medians) > 0:
            yield 0.0, time_s / size


def _log_deviations(medians: Mapping[int, float], line: tuple[float, float]) -> dict[int, float]:
    return {size: abs(log(time_s / (line[0] + line[1] * size))) for size, time_s in medians.items()}


def _sizes_off(medians: Mapping[int, float], limits: Mapping[int, float], line: tuple[float, float]) -> frozenset[int]:
    return frozenset(
        size for size, deviation in _log_deviations(medians, line).items() if deviation > log(1 + limits[size])
    )


def _refine_line(
    medians: Mapping[int, float], limits: Mapping[int, float], line: tuple[float, float]
) -> tuple[float, float]:
    regular = {size: medians[size] for size in medians.keys() - _sizes_off(medians, limits, line)}
    if len(regular) < 3:
        return line
    sizes = sorted(regular)
    fit = weighted_line(sizes, [regular[size] for size in sizes], [regular[size] ** -2 for size in sizes])
    is_possible = fit.level >= 0 and fit.slope >= 0 and fit.level + fit.slope * min(medians) > 0
    return (fit.level, fit.slope) if is_possible else line


def _compare_sizes(
    medians: Mapping[int, float],
    limits: Mapping[int, float],
    line: tuple[float, float],
    rivals: Sequence[tuple[float, float]],
    slack: float,
) -> dict[int, SizePoint]:
    """Compare each size with the line.

    If only three points are given, it is unknown which one is off. With more points it is unknown too if another line
    has no more sizes off, but different ones, and is as close to the others (within ``slack``).
    """

    def sum_deviations(candidate: tuple[float, float], excluded: frozenset[int]) -> float:
        deviations = _log_deviations(medians, candidate)
        return sum(deviation for size, deviation in deviations.items() if size not in excluded)

    off = _sizes_off(medians, limits, line)
    uncertain: set[int] = set(medians) if len(medians) == 3 and off else set()
    bound = sum_deviations(line, off) + slack
    for rival in rivals if off else ():
        rival_off = _sizes_off(medians, limits, rival)
        if len(rival_off) <= len(off) and rival_off != off and sum_deviations(rival, rival_off) <= bound:
            uncertain |= rival_off ^ off
    return {
        size: SizePoint(fitted, time_s, time_s / fitted - 1, limits[size], None if size in uncertain else size in off)
        for size, time_s in medians.items()
        for fitted in [line[0] + line[1] * size]
    }


# --- constancy: does a transfer slow down beside others ---


@dataclass(frozen=True, slots=True)
class Constancy:
    """The effect of the number of simultaneous transfers on each of them.

    Attributes:
        category: ``constant``: the slowdown from the lowest to the highest level is certainly below the bound.
            ``degrading``: it exceeds the bound, and grows from the first level or from one near it.
            ``degrading_above``: it exceeds the bound, and durations are flat up to a level.
        reason: why the category is unknown, else empty.
        above_level: the level up to which durations are flat. None for any other category.
        above_interval: the smallest and largest such level that fit nearly as well (95 %).
        slowdown: fitted duration at the highest level over that at the lowest, minus one.
        slowdown_error: its standard error.
        bound: as the caller gave it.
        centres_s: level to the trimmed mean of its durations.
        difference: Kruskal-Wallis test whether levels differ at all. It assumes independent transfers.
        trend: Jonckheere-Terpstra test, one-sided, whether durations rise with the level. It assumes the same.
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

    A category is a statement about size, not about significance: with thousands of transfers a slowdown of 3 % is
    certain, but does not matter. So a line and a bent line are fitted to the centres of levels, and the slowdown with
    its error is compared with the bound. The bend must pay for its parameter in an F test. Transfers of one level ran
    at the same time and share their conditions, so each centre has an error of 3 % of its own, however many there were.
    Centres are trimmed means (a tenth at each end): a median would miss that two transfers of five are slow, which is
    how Figure 6d degrades, and a mean would be moved by a single transfer that hangs.

    Args:
        durations_s: number of simultaneous transfers to the duration of each of them, all repeats together.
        bound: the largest slowdown from the lowest to the highest level that still counts as constant.
    """
    durations = _check_times(durations_s)
    centres = {level: trimmed_mean(values) for level, values in durations.items()}
    if len(durations) < 3:
        return Constancy("unknown", "fewer than three levels", None, None, None, None, bound, centres, None, None, None)
    groups = list(durations.values())
    difference, trend = kruskal_wallis(groups), jonckheere(groups)
    shape = best_line(list(centres), list(centres.values()), relative_errors(durations, centres))
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
    is_above = category == "degrading_above"
    return Constancy(
        category, reason, shape.bend_level if is_above else None, shape.bend_interval if is_above else None,
        shape.slowdown, shape.error, bound, centres, difference, trend, shape.bend,
    )  # fmt: skip


# --- availability ---


@dataclass(frozen=True, slots=True)
class Availability:
    """The share of operations that completed, with its 95 % interval (Wilson). None if nothing was tried."""

    share: float | None
    low: float
    high: float


def availability(completed: int, tried: int) -> Availability:
    """Return completed over tried (Cloud-RAID, III.D.3, Table III). Never certain: 72,500 of 72,500 is above 99.994 %.

    Raises:
        ValueError: not 0 <= completed <= tried.
    """
    if not 0 <= completed <= tried:
        raise ValueError(f"{completed} of {tried} is not a share")
    if not tried:
        return Availability(None, 0.0, 1.0)
    share = completed / tried
    return Availability(share, *wilson(share, tried))


# --- drift: over the day and over all the time ---


@dataclass(frozen=True, slots=True)
class Drift:
    """The changes of a value with the time of day, and over all the time.

    Attributes:
        daily: ``yes``: hours of the day differ at 1 % significance, and at least by the bound. ``no``: they do not.
        daily_reason: why unknown, else empty.
        daily_test: Kruskal-Wallis test over hours of the day.
        daily_change: the largest minus the smallest median of an hour, as a share of the overall median (None if that
            is 0), without the part that chance alone makes of it.
        trend: ``yes``: the value rises or falls at 1 % significance, and at least by the bound. ``no``: the change over
            all the time is below the bound with 95 % confidence.
        trend_reason: why unknown, else empty.
        trend_test: Mann-Kendall test, two-sided. Within each hour of the day (seasonal) from two days on.
        slope_per_s: Theil-Sen slope, the median of all slopes.
        trend_change: the slope times all the time, as a share of the overall median.
        trend_interval: its 95 % interval.
        hours: how many hours of the day have values.
        days: the length of all the time, in periods.
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
    """Find out whether a value changes with the time of day, and over time (Cloud-RAID, III.D.1, Figures 3 and 4).

    From two days on, values are first reduced to one median for each hour of each day (of up to 40 blocks of days).
    Successive values are similar, so only a pattern that recurs on another day counts as daily. Over a shorter time
    a trend is sought in up to 300 medians of consecutive values, and hours are compared by up to 20,000. This also
    bounds the work: 100,000 values take less than a second.

    Args:
        at_s: times of the values, in any order; zero is the start of a day.
        values: the measured values.
        period_s: the length of a day. An hour is its 24th part.
        bound: the smallest change that matters, as a share of the median.
        least: with fewer values than this, every answer is unknown.
    """
    points = sorted(zip(at_s, values, strict=True))
    if not all(isfinite(at) and isfinite(value) for at, value in points):
        raise ValueError("values and their times must be finite")
    days = (points[-1][0] - points[0][0]) / period_s if points else 0.0
    hours = len({_hour(at, period_s) for at, _ in points})
    if len(points) < least or not days:
        reason = f"fewer than {least} values" if days or not points else "all at one time"
        return Drift("unknown", reason, None, None, "unknown", reason, None, None, None, None, hours, days)
    is_seasonal = days >= _TWO_DAYS
    cells = _hourly_medians(points, period_s, days) if is_seasonal else _reduce_points(points, 20_000)
    by_hour: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for at, value in cells:
        by_hour[_hour(at, period_s)].append((at, value))
    trend = theil_sen(list(by_hour.values()) if is_seasonal else [_reduce_points(points)], is_seasonal=is_seasonal)
    overall_median = abs(median(value for _, value in points))
    daily_test, daily_change = _test_hours(
        by_hour, trend.slope if trend.evidence.p_value < 0.01 else 0.0, overall_median
    )
    daily, daily_reason = _daily_answer(by_hour, daily_test, daily_change, days, bound)
    changes = [
        slope * days * period_s / overall_median if overall_median else None
        for slope in (trend.slope, trend.low, trend.high)
    ]
    answer, trend_reason = _trend_answer(trend.evidence, changes, bound)
    if not is_seasonal and (daily_test.p_value < 0.01 or (daily == "unknown" and hours > 12)):
        answer, trend_reason = "unknown", "in less than two days a trend cannot be told from the time of day"
    change, low, high = changes
    return Drift(
        daily, daily_reason, daily_test, daily_change, answer, trend_reason, trend.evidence, trend.slope, change,
        (low, high) if low is not None and high is not None else None, hours, days,
    )  # fmt: skip


_TWO_DAYS = 47 / 24  # the time from the first value to the last, if each hour of two days has one


def _hour(at_s: float, period_s: float) -> int:
    return min(23, int(at_s % period_s / period_s * 24))


def _hourly_medians(points: Sequence[tuple[float, float]], period_s: float, days: float) -> list[tuple[float, float]]:
    """Return one median time and median value for each hour of each block of days."""
    block_s = period_s * max(1, ceil(days / 40))
    cells: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for at, value in points:
        cells[int(at // block_s), _hour(at, period_s)].append((at, value))
    # Each has the time of the middle observation, which is in the same hour as all of them.
    return [(cell[len(cell) // 2][0], median(value for _, value in cell)) for cell in cells.values()]


def _reduce_points(points: Sequence[tuple[float, float]], max_points: int = 300) -> list[tuple[float, float]]:
    if len(points) <= max_points:
        return list(points)
    edges = [len(points) * index // max_points for index in range(max_points + 1)]
    parts = [points[low:high] for low, high in pairwise(edges)]
    return [(fmean(at for at, _ in part), median(value for _, value in part)) for part in parts]


def _test_hours(
    by_hour: Mapping[int, Sequence[tuple[float, float]]], slope: float, overall_median: float
) -> tuple[Evidence, float | None]:
    """Test whether hours differ, after removing the trend if it is certain."""
    groups = [[value - slope * at for at, value in points] for points in by_hour.values()]
    centres = [median(group) for group in groups]
    test = kruskal_wallis(groups)
    chance_share = min(1.0, (len(groups) - 1) / test.statistic) if test.statistic else 1.0
    return test, (max(centres) - min(centres)) * sqrt(1 - chance_share) / overall_median if overall_median else None


def _daily_answer(
    by_hour: Mapping[int, Sequence[object]], test: Evidence, change: float | None, days: float, bound: float
) -> tuple[Answer, str]:
    if len(by_hour) < 2:
        return "unknown", "only one hour of the day was seen"
    if test.p_value < 0.01 and (change is None or change >= bound):
        return ("yes", "") if days >= _TWO_DAYS else ("unknown", "hours differ, but less than two days were seen")
    has_few = median(len(values) for values in by_hour.values()) < 3
    return ("unknown", "fewer than three values in an hour of the day") if has_few else ("no", "")


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
