"""Statistics and probabilities for ``shapes`` and other modules: rank tests, slopes, lines, distributions.

These are textbook formulas. SciPy has most of them but is too large to depend on, so ``tests/judge/test_scipy.py``
compares each function with it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import ceil, erfc, exp, inf, isinf, lgamma, log, log1p, sqrt
from statistics import fmean, median, stdev
from typing import Any

Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution
Z90 = 1.6448536269514722  # two-sided 90 %: each side of a bound is tested at 5 %


@dataclass(frozen=True, slots=True)
class Evidence:
    """A test of significance: its name, its statistic, and the probability of such a statistic by chance alone."""

    test: str
    statistic: float
    p_value: float


@dataclass(frozen=True, slots=True)
class Fit:
    """The line ``level + slope * x``, with the variances of both if the weights were inverse variances."""

    level: float
    slope: float
    misfit: float  # weighted sum of squares
    level_variance: float
    slope_variance: float
    covariance: float


def weighted_line(xs: Sequence[float], ys: Sequence[float], weights: Sequence[float]) -> Fit:
    """Fit a line by weighted least squares, in closed form. Variances hold if weights are inverse variances.

    Raises:
        ZeroDivisionError: all xs are equal, or all weights zero.
    """
    total = sum(weights)
    middle_x = sum(w * x for w, x in zip(weights, xs, strict=True)) / total
    middle_y = sum(w * y for w, y in zip(weights, ys, strict=True)) / total
    spread = sum(w * (x - middle_x) ** 2 for w, x in zip(weights, xs, strict=True))
    slope = sum(w * (x - middle_x) * (y - middle_y) for w, x, y in zip(weights, xs, ys, strict=True)) / spread
    level = middle_y - slope * middle_x
    misfit = sum(w * (y - level - slope * x) ** 2 for w, x, y in zip(weights, xs, ys, strict=True))
    return Fit(level, slope, misfit, 1 / total + middle_x**2 / spread, 1 / spread, -middle_x / spread)


@dataclass(frozen=True, slots=True)
class Trend:
    """A slope with its 95 % interval, and the test whether it differs from zero."""

    evidence: Evidence
    slope: float
    low: float
    high: float


def theil_sen(groups: Sequence[Sequence[tuple[float, float]]], *, is_seasonal: bool) -> Trend:
    """Return the Mann-Kendall test and the Theil-Sen slope over the pairs within each group.

    If groups are seasons, scores and variances of all are added (Hirsch, Slack and Smith 1982). The test has the
    correction for continuity. The interval is Sen's (1968), with Kendall's variance: SciPy's lacks terms and can be
    negative if both times and values are tied.

    Args:
        groups: pairs of time and value, in any order. Two values at one time do not count for a trend.
        is_seasonal: selects the name of the test.
    """
    slopes: list[float] = []
    score = 0
    variance = 0.0
    for group in groups:
        ordered = sorted(group)
        variance += _score_variance(len(group), Counter(at for at, _ in group), Counter(value for _, value in group))
        for (at, value), (later_time, later_value) in combinations(ordered, 2):
            if later_time > at:
                score += (later_value > value) - (later_value < value)
                slopes.append((later_value - value) / (later_time - at))
    slopes.sort()
    name = "Mann-Kendall, seasonal" if is_seasonal else "Mann-Kendall"
    if not slopes:
        return Trend(Evidence(name, 0.0, 1.0), 0.0, -inf, inf)
    if variance <= 0:  # all values are equal
        return Trend(Evidence(name, 0.0, 1.0), 0.0, slopes[0], slopes[-1])
    z = (score - (score > 0) + (score < 0)) / sqrt(variance)
    rank_error = Z95 * sqrt(variance) / 2
    low = max(round(len(slopes) / 2 - rank_error) - 1, 0)
    high = min(round(len(slopes) / 2 + rank_error), len(slopes) - 1)
    return Trend(Evidence(name, z, 2 * normal_sf(abs(z))), median(slopes), slopes[low], slopes[high])


def _score_variance(count: int, first: Mapping[Any, int], second: Mapping[Any, int]) -> float:
    """Return the variance by chance of Kendall's score, rising minus falling pairs (Kendall 1970, chapter 4).

    ``count`` is the number of points. The mappings have the number of occurrences of each value of either coordinate.
    Computed in integers, so that zero is exactly zero.
    """
    if count < 2:
        return 0.0
    (pairs_1, triples_1, ties_1), (pairs_2, triples_2, ties_2) = _tie_sums(first), _tie_sums(second)
    pairs, others = count * (count - 1), max(1, count - 2)
    untied = (pairs * (2 * count + 5) - ties_1 - ties_2) * pairs * others
    return (untied + 9 * pairs_1 * pairs_2 * others + 2 * triples_1 * triples_2) / (18 * pairs * others)


def _tie_sums(counts: Mapping[Any, int]) -> tuple[int, int, int]:
    """Return sums over the numbers t of tied values: t (t - 1), t (t - 1) (t - 2), t (t - 1) (2 t + 5)."""
    ties = [count for count in counts.values() if count > 1]
    return (
        sum(tied * (tied - 1) for tied in ties),
        sum(tied * (tied - 1) * (tied - 2) for tied in ties),
        sum(tied * (tied - 1) * (2 * tied + 5) for tied in ties),
    )


_PRIOR_LEVELS = 6  # the known errors of the centres count in an estimate of the noise like this many levels


@dataclass(frozen=True, slots=True)
class BentLine:
    """The better fit to the centres of levels: a line from the first level, or a flat start and then a line.

    Attributes:
        slowdown: the value at the highest level over that at the lowest, minus one, by the line that fits better.
        error: the standard error of the slowdown.
        unevenness: the largest deviation of a centre from the mean of all, less three times its error, as a share.
        bend_level: where the flat start ends. None if the bend does not pay for its parameter (F test at 1 %).
        bend_interval: the smallest and largest such level that fit nearly as well (95 %, by the profile of the misfit).
        bend: the F test.
    """

    slowdown: float
    error: float
    unevenness: float
    bend_level: int | None
    bend_interval: tuple[int, int] | None
    bend: Evidence


def best_line(levels: Sequence[int], centres: Sequence[float], errors: Sequence[float]) -> BentLine:
    """Fit a straight and a bent line to the centres of at least three levels, by weighted least squares.

    Args:
        levels: ascending.
        centres: a value for each level, above zero.
        errors: standard errors of the centres, as shares of them.
    """
    weights = [(error * centre) ** -2 for error, centre in zip(errors, centres, strict=True)]
    count = len(levels)

    def bent_at(bend: float) -> Fit:
        return weighted_line([max(0.0, level - bend) for level in levels], centres, weights)

    # The flat start has at least two levels. Between two levels, several positions of a bend are tried.
    steps = max(3, 80 // count)
    bends = [low + (high - low) * step / steps for low, high in pairwise(levels[1:]) for step in range(steps)]
    fits = {at: fit for at in bends if (fit := bent_at(at)).slope > 0}
    fit, start, freedom = bent_at(levels[0]), float(levels[0]), count - 2
    bend, bend_level, interval = Evidence("F, bent against straight", 0.0, 1.0), None, None
    if fits:
        best_bend = min(fits, key=lambda at: fits[at].misfit)
        bent, scale = fits[best_bend], _scale(fits[best_bend], count - 3)
        gain = max(0.0, fit.misfit - bent.misfit) / scale
        bend = Evidence(bend.test, gain, f_sf(gain, 1, count - 3 + _PRIOR_LEVELS))
        if bend.p_value < 0.01:
            near_fits = [at for at in fits if fits[at].misfit <= bent.misfit + 3.84 * scale]
            bend_level, interval = round(best_bend), (round(min(near_fits)), round(max(near_fits)))
        if gain > 4:  # the line that fits better gives the slowdown, whether or not the bend is certain
            fit, start, freedom = bent, best_bend, count - 3
    slowdown, error = _growth(fit, levels[-1] - start, fit.level if fit.level > 0 else min(centres))
    mean = sum(w * y for w, y in zip(weights, centres, strict=True)) / sum(weights)
    unevenness = max(abs(y / mean - 1) - 3 * error for y, error in zip(centres, errors, strict=True))
    return BentLine(slowdown, error * sqrt(_scale(fit, freedom)), unevenness, bend_level, interval, bend)


def _scale(fit: Fit, freedom: int) -> float:
    """Return the factor by which the variances are too small, from what the line leaves unexplained."""
    return max(1.0, (fit.misfit + _PRIOR_LEVELS) / (freedom + _PRIOR_LEVELS))


def _growth(fit: Fit, reach: float, level: float) -> tuple[float, float]:
    """Return the growth over ``reach`` as a share of ``level``, and its standard error.

    The error allows for the covariance of slope and level.
    """
    ratio = fit.slope / level
    variance = fit.slope_variance + ratio**2 * fit.level_variance - 2 * ratio * fit.covariance
    return ratio * reach, sqrt(max(variance, 0.0)) * reach / level


def kruskal_wallis(groups: Sequence[Sequence[float]]) -> Evidence:
    """Return the Kruskal-Wallis H test with the correction for ties. The p value is 1 if all values are equal.

    Raises:
        ZeroDivisionError: a group is empty.
    """
    ordered = sorted(value for group in groups for value in group)
    count = len(ordered)
    # Equal values have the mean of their ranks.
    squares = sum(
        sum((bisect_left(ordered, value) + bisect_right(ordered, value) + 1) / 2 for value in group) ** 2 / len(group)
        for group in groups
    )
    tied = sum(count**3 - count for count in Counter(ordered).values())
    correction = 1 - tied / (count**3 - count) if count > 1 else 0.0
    if len(groups) < 2 or correction <= 0:
        return Evidence("Kruskal-Wallis", 0.0, 1.0)
    statistic = max(0.0, (12 / (count * (count + 1)) * squares - 3 * (count + 1)) / correction)
    return Evidence("Kruskal-Wallis", statistic, chi2_sf(statistic, len(groups) - 1))


def jonckheere(groups: Sequence[Sequence[float]]) -> Evidence:
    """Return the Jonckheere-Terpstra test against rising groups: one-sided, normal approximation, corrected for ties.

    It is Kendall's score of the values and the numbers of their groups. SciPy has it only as ``kendalltau``.
    """
    score = 0
    lower_values: list[float] = []  # ascending values of the former groups
    for group in groups:
        score += sum(
            bisect_left(lower_values, value) + bisect_right(lower_values, value) - len(lower_values) for value in group
        )
        lower_values = sorted([*lower_values, *group])
    variance = _score_variance(len(lower_values), dict(enumerate(map(len, groups))), Counter(lower_values))
    z = score / sqrt(variance) if variance else 0.0
    return Evidence("Jonckheere-Terpstra", z, normal_sf(z))


def normal_sf(z: float) -> float:
    """Return the probability that a standard normal value exceeds z."""
    return erfc(z / sqrt(2)) / 2


def chi2_sf(statistic: float, freedom: int) -> float:
    """Return the probability that chi-square exceeds the statistic: the regularised upper incomplete gamma function."""
    a, x = freedom / 2, statistic / 2
    if x <= 0:
        return 1.0
    if x == inf:
        return 0.0
    factor = exp(a * log(x) - x - lgamma(a))
    if x < a + 1:  # the series of P converges fast here, the continued fraction of Q elsewhere
        term = total = 1 / a
        step = a
        while term > total * 1e-16:
            step += 1
            term *= x / step
            total += term
        return max(0.0, 1 - factor * total)
    return factor / _continued_fraction(x + 1 - a, lambda k: (-k * (k - a), x + 2 * k + 1 - a))


def _sort_and_cut(values: Sequence[float]) -> tuple[list[float], int]:
    """Return ascending values, and how many to cut at each end: a tenth, but at least one from three values on."""
    return sorted(values), ceil(len(values) / 10) if len(values) > 2 else 0


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean after cutting a tenth of the values at each end, at least one each from three values on."""
    ordered, cut = _sort_and_cut(values)
    return fmean(ordered[cut : len(ordered) - cut])


def relative_errors(values_by_level: Mapping[int, Sequence[float]], centres: Mapping[int, float]) -> list[float]:
    """Return the standard error of each centre as a share of it, from winsorised values as for a trimmed mean."""
    spreads = {}
    for level, values in values_by_level.items():
        ordered, cut = _sort_and_cut(values)
        if len(values) >= 5:
            clipped = [min(max(value, ordered[cut]), ordered[-1 - cut]) for value in ordered]
            spreads[level] = stdev(clipped) / centres[level] / (1 - 2 * cut / len(values))
    if not spreads:
        spreads = {
            level: stdev(values) / centres[level] for level, values in values_by_level.items() if len(values) > 1
        }
    median_spread = median(spreads.values()) if spreads else 0.0
    return [
        sqrt(max(spreads.get(level, median_spread), median_spread) ** 2 / len(values) + 0.03**2)
        for level, values in values_by_level.items()
    ]


def f_sf(statistic: float, freedom: int, denominator_freedom: float) -> float:
    """Return the probability that F with these degrees of freedom exceeds the statistic: incomplete beta function."""
    odds = freedom * statistic / denominator_freedom
    if odds <= 0:
        return 1.0
    if odds == inf:
        return 0.0
    x, y = 1 / (1 + odds), odds / (1 + odds)  # x + y = 1, each with all its digits
    a, b = denominator_freedom / 2, freedom / 2
    factor = exp(lgamma(a + b) - lgamma(a) - lgamma(b) - a * log1p(odds) + b * log(y))
    if x < (a + 1) / (a + b + 2):  # where the continued fraction converges fast
        return factor / a * _beta_fraction(x, a, b)
    return 1 - factor / b * _beta_fraction(y, b, a)


def t_sf(t: float, freedom: float) -> float:
    """Return the probability that Student's t with these degrees of freedom exceeds t."""
    half = f_sf(t * t, 1, freedom) / 2
    return half if t >= 0 else 1 - half


def t_isf(p: float, freedom: float) -> float:
    """Return the t that is exceeded with probability p, by bisection to all digits. Infinite for p = 0."""
    if p > 0.5:
        return -t_isf(1 - p, freedom)
    if p <= 0:
        return inf
    low, high = 0.0, 1.0
    while t_sf(high, freedom) > p:
        low, high = high, high * 2
        if isinf(high):
            return inf
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_sf(middle, freedom) > p else (low, middle)
    return high


def binomial_sf(count: int, tries: int, share: float) -> float:
    """Return the probability of ``count`` or more successes in ``tries`` tries, each with probability ``share``."""
    if count <= 0:
        return 1.0
    if count > tries or share <= 0:
        return 0.0
    if share >= 1:
        return 1.0
    freedom, double_count = 2 * (tries - count + 1), 2 * count
    return f_sf(double_count * (1 - share) / (share * freedom), freedom, double_count)


def wilson(share: float, tries: float, z: float = Z95) -> tuple[float, float]:
    """Return Wilson's interval (1927) of the true share if ``share`` of the tries succeeded. (0, 1) without tries.

    ``z`` is the normal quantile of one side. Tries may be fractional, because an overdispersed sample counts as fewer.
    """
    if tries <= 0:
        return 0.0, 1.0
    weight = z * z / tries
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * sqrt(share * (1 - share) / tries + weight / 4 / tries)
    # At shares of 0 and 1 the exact limit is 0 or 1, which rounding would miss.
    return max(0.0, middle - half) if share > 0 else 0.0, min(1.0, middle + half) if share < 1 else 1.0


def hypergeometric_sf(count: int, drawn: int, marked: int, population: int) -> float:
    """Return the probability of ``count`` or more marked ones among ``drawn``: Fisher's exact test, one-sided.

    Raises ValueError if more are drawn or marked than the population has.
    """
    if not 0 <= drawn <= population or not 0 <= marked <= population:
        raise ValueError(f"{drawn} drawn and {marked} marked of {population}: expected at most {population}")
    low, high = max(count, drawn + marked - population, 0), min(drawn, marked)
    if count <= max(0, drawn + marked - population):
        return 1.0
    if low > high:
        return 0.0
    unmarked, mode = population - marked, drawn * marked / population
    term = exp(_log_choices(marked, low) + _log_choices(unmarked, drawn - low) - _log_choices(population, drawn))
    if low < mode and term < 1e-250:  # the terms up to here are too small for a double, so the sum is 1
        return 1.0
    total = term
    for k in range(low, high):
        term *= (marked - k) * (drawn - k) / ((k + 1) * (unmarked - drawn + k + 1))
        total += term
        if k > mode and term < total * 1e-17:
            break
    return min(1.0, total)


def _log_choices(population: int, chosen: int) -> float:
    return lgamma(population + 1) - lgamma(chosen + 1) - lgamma(population - chosen + 1)


def _beta_fraction(x: float, a: float, b: float) -> float:
    def term(k: int) -> tuple[float, float]:
        m, is_odd = divmod(k, 2)
        if is_odd:
            return -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)), 1.0
        return m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), 1.0

    return 1 / _continued_fraction(1.0, term)


def _continued_fraction(first: float, term: Callable[[int], tuple[float, float]]) -> float:
    """Return the continued fraction first + a1 / (b1 + a2 / (b2 + ...)), by Lentz's method."""
    value = c = first or 1e-300
    d = 0.0
    for k in range(1, 10_000):
        a, b = term(k)
        d = 1 / (b + a * d or 1e-300)
        c = b + a / c or 1e-300
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
