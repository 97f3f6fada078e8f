"""Comparison of every function of ``judge/significance``, of the percentile and of Wilson's interval with SciPy.

Only tests need SciPy. It is imported in functions because it takes more than a second, which xdist's workers would
pay for at collection.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import comb, inf, nextafter, sqrt
from statistics import median
from types import FunctionType

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pytest_cloudbench.judge import significance
from pytest_cloudbench.judge.shapes import availability
from pytest_cloudbench.judge.significance import (
    Z90,
    Z95,
    best_line,
    binomial_sf,
    chi2_sf,
    f_sf,
    hypergeometric_sf,
    jonckheere,
    kruskal_wallis,
    normal_sf,
    relative_errors,
    t_isf,
    t_sf,
    theil_sen,
    trimmed_mean,
    weighted_line,
    wilson,
)
from pytest_cloudbench.judge.stats import percentile
from tests.limits import scale_examples

MANY = settings(deadline=None, max_examples=scale_examples(300))
TINY = 1e-290  # below, doubles lose digits

FREE = st.one_of(st.integers(1, 30), st.sampled_from([100, 101, 1000, 10_000, 1_000_000]))
MEASURED = st.floats(1e-6, 1e6)
TIED = st.sampled_from([0.5, 1.0, 1.0 + 2**-52, 2.0, 3.0, 1e-300, 1e300])  # many are equal, some nearly, some extreme
VALUES = st.one_of(st.lists(MEASURED, min_size=1, max_size=40), st.lists(TIED, min_size=1, max_size=40))
GROUPS = st.one_of(
    [st.lists(st.lists(values, min_size=1, max_size=12), min_size=2, max_size=8) for values in (MEASURED, TIED)]
)


def assert_near(ours: float, theirs: float, rel: float = 1e-9) -> None:
    assert ours == pytest.approx(theirs, rel=rel, abs=TINY)


def test_each_public_function_has_its_comparison() -> None:
    """Each function needs a test with its name in this module that calls both the function and SciPy."""
    function_names = {name for name, value in vars(significance).items() if isinstance(value, FunctionType)}
    names = {
        name
        for name in function_names
        if getattr(significance, name).__module__ == significance.__name__ and name[0] != "_"
    }
    assert names >= {"chi2_sf", "theil_sen"}
    for name in [*sorted(names), "percentile", "availability"]:
        test = getattr(sys.modules[__name__], f"test_{name}_agrees_with_scipy", None)
        assert test is not None, f"{name}: no comparison with SciPy"
        tree = ast.parse(inspect.getsource(test))
        called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and hasattr(node.func, "id")}
        assert name in called
        assert any(isinstance(node, ast.ImportFrom) and "scipy" in str(node.module) for node in ast.walk(tree)), name


@pytest.mark.slow
def test_quantiles_of_the_normal_distribution_agree_with_scipy() -> None:
    from scipy import stats

    assert pytest.approx(stats.norm.isf(0.025), rel=1e-15) == Z95
    assert pytest.approx(stats.norm.isf(0.05), rel=1e-15) == Z90


@MANY
@given(z=st.floats(allow_nan=False))
@example(z=-inf)
@example(z=37.0)
def test_normal_sf_agrees_with_scipy(z: float) -> None:
    from scipy import stats

    assert_near(normal_sf(z), stats.norm.sf(z))


@MANY
@given(statistic=st.one_of(st.floats(0, 50), st.floats(0), st.floats(0.5, 1.5)), freedom=FREE, is_share=st.booleans())
@example(statistic=inf, freedom=1, is_share=False)
@example(statistic=5e-324, freedom=3, is_share=False)
@example(statistic=1.0, freedom=1_000_000, is_share=True)
def test_chi2_sf_agrees_with_scipy(statistic: float, freedom: int, is_share: bool) -> None:
    """With many degrees of freedom, the difference of two large values of lgamma loses digits."""
    from scipy import stats

    statistic *= freedom if is_share else 1  # near the mean, where both ways to compute it meet
    assert_near(chi2_sf(statistic, freedom), stats.chi2.sf(statistic, freedom), rel=1e-11 + 1e-14 * freedom)


@MANY
@given(statistic=st.one_of(st.floats(0, 50), st.floats(0), st.floats(1e-14, 1e-8)), freedom=FREE, residual_freedom=FREE)
@example(statistic=inf, freedom=1, residual_freedom=5)
@example(statistic=5e-11, freedom=1, residual_freedom=1_000_000)
@example(statistic=1.0, freedom=1_000_000, residual_freedom=1_000_000)
@example(statistic=1.7747596174140102e-20, freedom=1, residual_freedom=1)
def test_f_sf_agrees_with_scipy(statistic: float, freedom: int, residual_freedom: int) -> None:
    """Many degrees of freedom lose digits here, too. SciPy's own F is off by 3e-11 at 1e-14, unlike its incomplete
    beta."""
    from scipy import special, stats

    odds = freedom * statistic / residual_freedom
    beta_value = special.betaincc(freedom / 2, residual_freedom / 2, odds / (1 + odds)) if odds < 1 else None
    if odds < 1e-15:  # here the complement is rounded to 1
        beta_value = 1 - special.betainc(freedom / 2, residual_freedom / 2, odds)
    expected = stats.f.sf(statistic, freedom, residual_freedom) if beta_value is None else beta_value
    assert_near(f_sf(statistic, freedom, residual_freedom), expected, rel=1e-11 + 1e-13 * (freedom + residual_freedom))


@MANY
@given(t=st.one_of(st.floats(-50, 50), st.floats(-1e150, 1e150)), freedom=FREE)
def test_t_sf_agrees_with_scipy(t: float, freedom: int) -> None:
    from scipy import stats

    assert_near(t_sf(t, freedom), stats.t.sf(t, freedom), rel=1e-9 + 1e-13 * freedom)


@pytest.mark.slow
@MANY
@given(p=st.floats(1e-12, 1 - 1e-12), freedom=st.integers(1, 100))
@example(p=0.05, freedom=19)
def test_t_isf_agrees_with_scipy(p: float, freedom: int) -> None:
    from scipy import stats

    assert t_isf(p, freedom) == pytest.approx(stats.t.isf(p, freedom), rel=1e-8, abs=1e-8)


def test_no_t_is_exceeded_with_probability_zero() -> None:
    assert t_isf(0.0, 9) == inf
    assert t_isf(1.0, 9) == -inf


@pytest.mark.slow
@MANY
@given(groups=GROUPS)
def test_kruskal_wallis_agrees_with_scipy(groups: list[list[float]]) -> None:
    from scipy import stats

    ours = kruskal_wallis(groups)
    if len({value for group in groups for value in group}) == 1:  # SciPy: no number
        assert (ours.statistic, ours.p_value) == (0.0, 1.0)
        return
    statistic, p_value = stats.kruskal(*groups)
    assert ours.statistic == pytest.approx(max(0.0, statistic), rel=1e-9, abs=1e-9)
    assert ours.p_value == pytest.approx(p_value, rel=1e-7)


@pytest.mark.slow
@MANY
@given(groups=GROUPS)
def test_jonckheere_agrees_with_scipy(groups: list[list[float]]) -> None:
    """It is Kendall's score of values and group numbers. For two groups it is Mann and Whitney's U, too."""
    from scipy import stats

    ours = jonckheere(groups)
    if len({value for group in groups for value in group}) == 1:
        assert (ours.statistic, ours.p_value) == (0.0, 0.5)
        return
    numbers = [number for number, group in enumerate(groups) for _ in group]
    values = [value for group in groups for value in group]
    if len(values) > 2:  # SciPy divides by n - 2
        theirs = stats.kendalltau(numbers, values, method="asymptotic", alternative="greater")
        assert_near(ours.p_value, theirs.pvalue)
    u = stats.mannwhitneyu(*groups[:2], alternative="less", use_continuity=False, method="asymptotic")
    if len({value for group in groups[:2] for value in group}) > 1:
        assert_near(jonckheere(groups[:2]).p_value, u.pvalue)


POINTS = st.one_of(
    st.lists(st.tuples(st.integers(0, 10**6).map(float), MEASURED), min_size=3, max_size=30),
    st.lists(st.tuples(st.integers(0, 8).map(float), st.integers(0, 5).map(float)), min_size=3, max_size=30),
)


@pytest.mark.slow
@MANY
@given(seasons=st.lists(POINTS, min_size=1, max_size=4))
@example(seasons=[[(0.0, 1.0), (0.0, 2.0), (0.0, 3.0), (1.0, 2.0)]])  # values at one time are not a trend
def test_theil_sen_agrees_with_scipy(seasons: list[list[tuple[float, float]]]) -> None:
    """Each season's score and variance come from Kendall's tau, with Mann-Kendall's correction for continuity."""
    from scipy import stats

    score = variance = 0.0
    for season in seasons:
        times, values = zip(*season, strict=True)
        assume(len(set(times)) > 1 and len(set(values)) > 1)
        tau = stats.kendalltau(times, values, method="asymptotic", variant="b")
        pairs = len(season) * (len(season) - 1) / 2
        untied = [pairs - sum(n * (n - 1) / 2 for n in map(column.count, set(column))) for column in (times, values)]
        season_score = tau.statistic * sqrt(untied[0] * untied[1])
        assume(abs(season_score) > 0.5)  # otherwise tau and p do not determine the variance
        score += season_score
        variance += (season_score / stats.norm.isf(tau.pvalue / 2)) ** 2
    expected = (abs(score) - 1) / sqrt(variance) if abs(score) > 0.5 else 0.0
    ours = theil_sen(seasons, is_seasonal=len(seasons) > 1)
    assert abs(ours.evidence.statistic) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert ours.evidence.statistic * score >= -1e-9
    assert_near(ours.evidence.p_value, 2 * stats.norm.sf(abs(ours.evidence.statistic)))
    single_season, (times, values) = theil_sen(seasons[:1], is_seasonal=False), zip(*seasons[0], strict=True)
    if len(set(times)) == len(times) or len(set(values)) == len(values):  # otherwise SciPy drops terms of the variance
        slope, _, low, high = stats.theilslopes(values, times, alpha=0.95)
        assert (single_season.slope, single_season.low, single_season.high) == pytest.approx((slope, low, high))


@pytest.mark.slow
@MANY
@given(
    points=st.lists(
        st.tuples(st.integers(-1000, 10**6), MEASURED, st.floats(1e-3, 1e3)),
        min_size=2, max_size=20, unique_by=lambda point: point[0],
    )
)  # fmt: skip
def test_weighted_line_agrees_with_scipy(points: list[tuple[int, float, float]]) -> None:
    from scipy import linalg

    xs, ys, weights = zip(*points, strict=True)
    fit = weighted_line(xs, ys, weights)
    largest = max(map(abs, xs))  # scaled, because SciPy's matrix is not centred
    design = [[sqrt(weight), sqrt(weight) * x / largest] for x, weight in zip(xs, weights, strict=True)]
    (level, slope), *_ = linalg.lstsq(design, [sqrt(weight) * y for y, weight in zip(ys, weights, strict=True)])
    size = max(ys) * max(weights) / min(weights)
    assert fit.level == pytest.approx(level, rel=1e-6, abs=1e-9 * size)
    assert fit.slope * largest == pytest.approx(slope, rel=1e-6, abs=1e-9 * size)
    inverse = linalg.pinv(design) @ linalg.pinv(design).T
    variances = (fit.level_variance, fit.slope_variance * largest**2, fit.covariance * largest)
    assert variances == pytest.approx((inverse[0, 0], inverse[1, 1], inverse[0, 1]), rel=1e-4, abs=1e-9)
    misfit = sum(w * (y - fit.level - fit.slope * x) ** 2 for x, y, w in points)
    assert fit.misfit == pytest.approx(misfit)


def _bends(levels: Sequence[int]) -> list[float]:
    """Return the bends that ``best_line`` tries, as its comment says: none before the second level."""
    steps = max(3, 80 // len(levels))
    return [low + (high - low) * step / steps for low, high in pairwise(levels[1:]) for step in range(steps)]


@pytest.mark.slow
@settings(deadline=None, max_examples=scale_examples(60))
@given(
    levels=st.lists(st.integers(1, 200), min_size=4, max_size=10, unique=True).map(sorted),
    bend_at=st.integers(0, 9), growth=st.floats(0, 3), data=st.data(),
)  # fmt: skip
def test_best_line_agrees_with_scipy(levels: list[int], bend_at: int, growth: float, data: st.DataObject) -> None:
    """The lines and the F test come from curve_fit, and the growth with its error from its lines.

    The growth is no fitted parameter, because it has no bound where the best line begins near 0.
    """
    import numpy as np
    from scipy import optimize, stats

    noise = data.draw(st.lists(st.floats(-0.2, 0.2), min_size=len(levels), max_size=len(levels)))
    errors = data.draw(st.lists(st.floats(0.03, 0.3), min_size=len(levels), max_size=len(levels)))
    start = levels[min(bend_at, len(levels) - 1)]
    truth = [10 * (1 + growth * max(0, level - start) / levels[-1]) for level in levels]
    centres = [value * (1 + offset) for value, offset in zip(truth, noise, strict=True)]
    sigma = np.array(errors) * centres

    def fit_bend(bend: float) -> tuple[float, float, float]:
        """Return the misfit, the growth from the bend to the last level, and its error with known variances."""
        reach = levels[-1] - bend
        xs = np.maximum(0.0, np.array(levels) - bend) / reach
        (level, slope), covariance = optimize.curve_fit(
            lambda x, level, slope: level + slope * x, xs, centres, p0=(centres[0], 0.1), sigma=sigma,
            absolute_sigma=True, method="trf", jac=lambda x, level, slope: np.stack([np.ones_like(x), x], axis=1),
            xtol=1e-15, ftol=1e-15, gtol=1e-15,
        )  # fmt: skip
        misfit = (((level + slope * xs - centres) / sigma) ** 2).sum()
        gradient = np.array([-slope / level**2, 1 / level])
        return float(misfit), float(slope / level), float(sqrt(gradient @ covariance @ gradient))

    ours = best_line(levels, centres, errors)
    fits = {bend: fit for bend in _bends(levels) if (fit := fit_bend(bend))[1] > 0}
    straight = chosen = fit_bend(levels[0])
    prior_freedom, freedom = 6, len(levels) - 2
    gain = 0.0
    if fits:
        bent = min(fits.values())
        gain = max(0.0, straight[0] - bent[0]) / max(1.0, (bent[0] + prior_freedom) / (len(levels) - 3 + prior_freedom))
        assert ours.bend.p_value == pytest.approx(stats.f.sf(gain, 1, len(levels) - 3 + prior_freedom), rel=1e-4)
        assume(abs(gain - 4) > 1e-4)
        if gain > 4:
            chosen, freedom = bent, len(levels) - 3
    assert ours.bend.statistic == pytest.approx(gain, rel=1e-4, abs=1e-6)
    assert ours.slowdown == pytest.approx(chosen[1], rel=1e-3, abs=1e-6)
    scale = max(1.0, (chosen[0] + prior_freedom) / (freedom + prior_freedom))
    assert ours.error == pytest.approx(chosen[2] * sqrt(scale), rel=1e-3)
    middle = float(np.average(centres, weights=sigma**-2))
    uneven = max(abs(y / middle - 1) - 3 * error for y, error in zip(centres, errors, strict=True))
    assert ours.unevenness == pytest.approx(uneven)


@MANY
@given(values=VALUES)
def test_trimmed_mean_agrees_with_scipy(values: list[float]) -> None:
    """The share given to SciPy cuts as many values as ours does: a tenth, rounded up."""
    from scipy import stats

    cut = -(-len(values) // 10) if len(values) > 2 else 0
    assert_near(trimmed_mean(values), stats.trim_mean(values, (cut + 0.5) / len(values) if cut else 0))


@pytest.mark.slow
@MANY
@given(groups=st.lists(st.lists(st.floats(0.5, 50), min_size=5, max_size=40), min_size=1, max_size=6))
def test_relative_errors_agrees_with_scipy(groups: list[list[float]]) -> None:
    """Compare the errors of trimmed means. No level's error is below the usual one, and 3 % of its mean is added."""
    from scipy.stats import mstats

    values_by_level = dict(enumerate(groups))
    centres = {level: trimmed_mean(values) for level, values in values_by_level.items()}
    spreads = []
    for level, values in values_by_level.items():
        share = nextafter(-(-len(values) // 10) / len(values), 1)
        error = float(mstats.trimmed_stde(values, limits=(share, share)))
        spreads.append(error * sqrt(len(values)) / centres[level])
    usual = median(spreads)
    sizes = map(len, groups)
    expected = [sqrt(max(spread, usual) ** 2 / size + 0.03**2) for spread, size in zip(spreads, sizes, strict=True)]
    assert relative_errors(values_by_level, centres) == pytest.approx(expected)


@MANY
@given(values=VALUES, share=st.sampled_from([0.0, 0.025, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0]))
def test_percentile_agrees_with_scipy(values: list[float], share: float) -> None:
    from scipy import stats

    assert percentile(sorted(values), share) == stats.quantile(values, share, method="inverted_cdf")


@MANY
@given(tried=st.integers(1, 10**7), share=st.floats(0, 1))
@example(tried=72_500, share=1.0)
@example(tried=1, share=0.0)
def test_availability_agrees_with_scipy(tried: int, share: float) -> None:
    from scipy import stats

    completed = round(tried * share)
    ours, theirs = availability(completed, tried), stats.binomtest(completed, tried).proportion_ci(method="wilson")
    assert ours.share == completed / tried
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9, abs=1e-15)


@MANY
@given(tries=st.integers(1, 10**7), share=st.floats(0, 1), level=st.sampled_from([(0.90, Z90), (0.95, Z95)]))
@example(tries=34, share=0.0, level=(0.95, Z95))
def test_wilson_agrees_with_scipy(tries: int, share: float, level: tuple[float, float]) -> None:
    from scipy import stats

    (confidence, z), count = level, round(tries * share)
    theirs = stats.binomtest(count, tries).proportion_ci(confidence, method="wilson")
    assert wilson(count / tries, tries, z) == pytest.approx((theirs.low, theirs.high), rel=1e-9, abs=1e-15)


def test_without_tries_any_share_is_possible() -> None:
    assert wilson(0.0, 0) == (0.0, 1.0)


@MANY
@given(tries=st.integers(1, 5000), share=st.floats(1e-6, 1 - 1e-6), data=st.data())
@example(tries=300, share=0.01, data=None)
def test_binomial_sf_agrees_with_scipy(tries: int, share: float, data: st.DataObject | None) -> None:
    from scipy import stats

    count = 3 if data is None else data.draw(st.integers(0, tries + 1))
    theirs = stats.binom.sf(count - 1, tries, share)
    # Below this SciPy itself is wrong, by 4 % at 4e-282: the next test compares with whole numbers there.
    assert binomial_sf(count, tries, share) == pytest.approx(theirs, rel=1e-6, abs=1e-240)


@pytest.mark.parametrize("count", [1, 139, 300, 520, 532, 556])
def test_binomial_sf_is_right_far_out_in_the_tail(count: int) -> None:
    tries = 556
    ways = sum(comb(tries, successes) * 3 ** (tries - successes) for successes in range(count, tries + 1))
    assert binomial_sf(count, tries, 0.25) == pytest.approx(float(Fraction(ways, 4**tries)), rel=1e-10, abs=0)


def test_binomial_sf_of_certain_and_impossible_success() -> None:
    assert (binomial_sf(1, 5, 0.0), binomial_sf(5, 5, 1.0), binomial_sf(6, 5, 1.0)) == (0.0, 1.0, 0.0)


@MANY
@given(population=st.integers(1, 3000), data=st.data())
def test_hypergeometric_sf_agrees_with_scipy(population: int, data: st.DataObject) -> None:
    from scipy import stats

    drawn, marked = data.draw(st.integers(0, population)), data.draw(st.integers(0, population))
    count = data.draw(st.integers(0, min(drawn, marked) + 1))
    assert_near(
        hypergeometric_sf(count, drawn, marked, population),
        stats.hypergeom.sf(count - 1, population, marked, drawn),
        1e-7,
    )


def test_more_cannot_be_drawn_than_there_are() -> None:
    with pytest.raises(ValueError, match="6 drawn and 1 marked of 5"):
        hypergeometric_sf(1, 6, 1, 5)
