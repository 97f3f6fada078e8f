"""The interval of a difference between two sides, which stays valid however often one looks at it.

Three players bet against each value that the difference might have. What they own together says how wrong that value
is. The first player begins with a half, the others with a quarter each, and none can expect to win while the value is
right. So the probability that they ever own 1/alpha together is at most alpha (Ville 1939), and a session may stop at
any look. The interval holds all values against which they own less.

The first player bets as if the noise were normal. Its wealth is a mixture of t statistics (Lai 1976; Wang and Ramdas,
"Anytime-valid t-tests", 2023). It is the fastest on a calm machine, but a few wild pairs ruin it. The other two bet
that the next pair is above the value, or below it. That is fair whenever the noise is symmetric, however heavy its
tails are and whatever the pairs before were (de la Pena, "A general class of exponential inequalities for martingales
and ratios", 1999; Ramdas, Grunwald, Vovk and Shafer, "Game-theoretic statistics and safe anytime-valid inference",
2023). Their stakes may depend on everything but the order of the sides: on former pairs, and on how slow both sides of
this pair were together. Where a machine is busy, slow pairs tell little and quick ones much.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, fsum, inf, isinf, log, log1p, pi, sqrt
from statistics import fmean, median

_NORMAL_WEALTH, _SIGN_WEALTH = 0.5, 0.25
"""The wealth with which the player who expects normal noise begins, and each of the other two."""

_EFFECT_VARIANCE = 2.0
"""The difference that the t statistic expects, in variances of a pair. This number and the next ones decide how soon an
interval is short, not how often it is wrong."""

_STAKE = 1.0
"""The logarithm of the odds of a bet on one side, if the pair is as far away as such pairs usually are."""

_MAX_BOLDNESS = 3.0
"""A pair that is expected to be precise gets at most this many times the usual stake."""

_PAIRS_BEFORE_BETS = 3
"""Pairs before the first bet, because bets need a scale."""

_SIMILAR_PAIRS = 8
"""The number of former pairs with the most similar levels, from which a pair's scale is estimated."""

_MIN_SD = 1e-12
_NINE_OF_TEN = 1.2816
"""Standard deviations below which nine of ten normal values lie."""

_MAX_VALUES = 100_000


@dataclass(frozen=True, slots=True)
class AnytimeInterval:
    """The interval of a difference: its middle ``change``, and limits that are infinite while nothing is certain."""

    change: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Bet:
    """A bet on one pair: the pair's value, the stake per unit of distance, and the longest distance that counts."""

    value: float
    stake: float
    reach: float


def interval(
    values: Sequence[float], alpha: float, least_sd: float = 0.0, levels: Sequence[float] | None = None
) -> AnytimeInterval:
    """Return the interval of the difference.

    If the values are distributed symmetrically around the true difference, the probability that the interval ever
    misses it is at most ``alpha``, however often and after however many values one looks.

    Args:
        values: the difference of each pair, in the order they were measured.
        alpha: see above.
        least_sd: the smallest standard deviation of the values to assume.
        levels: the sum of the sides of each pair, from which the precision of the pair is estimated.
    """
    if len(values) < 2:
        return AnytimeInterval(fmean(values) if values else 0.0, -inf, inf)
    sd = max(_deviation(values), least_sd, _MIN_SD)
    bets = _place_bets(values, levels or [0.0] * len(values), max(least_sd, _MIN_SD))
    low = _lower_limit(values, bets, sd, alpha)
    high = -_lower_limit(
        [-value for value in values], [_Bet(-bet.value, bet.stake, bet.reach) for bet in bets], sd, alpha
    )
    if isinf(low) or isinf(high):
        return AnytimeInterval(fmean(values), low, high)
    return AnytimeInterval((low + high) / 2, min(low, high), max(low, high))


def values_needed(
    current: AnytimeInterval, values: Sequence[float], alpha: float, least_sd: float, change: float
) -> int | None:
    """Return how many values would find a change in nine of ten cases, if the noise stays the same. None if too many.

    The interval is assumed to shrink like an interval of normal values that has the same width now.
    """
    if len(values) < 2:
        return None
    alpha, count = alpha * _NORMAL_WEALTH, len(values)
    width, unit_width = (current.high - current.low) / 2, _half_width(count, 1.0, alpha)
    sd = max(_deviation(values), least_sd) if isinf(width) or isinf(unit_width) else width / unit_width
    if not sd:
        return None
    count = 2
    while _half_width(count, sd, alpha) + _NINE_OF_TEN * sd / sqrt(count) > change:
        count += max(1, count // 20)
        if count > _MAX_VALUES:
            return None
    return count


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of two values or more."""
    mean = fmean(values)
    return sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


# --- the limits -----------------------------------------------------------------------------------------


def _lower_limit(values: Sequence[float], bets: Sequence[_Bet], sd: float, alpha: float) -> float:
    """Return the lower limit of the interval: below it, the players who bet on larger values own enough.

    Their wealth falls as the value that they bet against rises, so there is one such limit, found by bisection. The
    player who bets on smaller values is left out, which can only move the limit outwards.
    """
    count, mean, log_enough = len(values), fmean(values), -log(alpha)

    def is_beaten(value: float) -> bool:
        log_normal = log(_NORMAL_WEALTH) + _log_normal_wealth(count, (mean - value) / sd) if value < mean else -inf
        return _log_of_sum(log_normal, log(_SIGN_WEALTH) + _log_sign_wealth(bets, value)) >= log_enough

    width = _half_width(count, sd, alpha * _NORMAL_WEALTH)
    low, high = mean - width, max(values)
    if isinf(width):
        low = min(values) - max(bet.reach for bet in bets)
        if not is_beaten(low):
            return -inf
    while high - low > 1e-9 * sd:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if is_beaten(middle) else (low, middle)
    return low


def _log_of_sum(one: float, other: float) -> float:
    """Return the logarithm of the sum of two numbers that are given by their logarithms."""
    return max(one, other) + log1p(exp(-abs(one - other)))


# --- the player who expects normal noise ------------------------------------------------------------------


def _log_normal_wealth(count: int, effect: float) -> float:
    """Return the logarithm of the Bayes factor of an effect ~ N(0, g) against none.

    ``effect`` is in standard deviations.
    """
    spread, square = 1 + count * _EFFECT_VARIANCE, count * effect**2 / (count - 1)
    return count / 2 * log((1 + square) / (1 + square / spread)) - log(spread) / 2


def _half_width(count: int, sd: float, alpha: float) -> float:
    """Return the distance from the mean at which the Bayes factor of ``_log_normal_wealth`` is 1/alpha."""
    spread = 1 + count * _EFFECT_VARIANCE
    bound = exp(2 / count * log(sqrt(spread) / alpha))
    if bound >= spread:
        return inf
    return sd / sqrt(count) * sqrt((count - 1) * (bound - 1) / (1 - bound / spread))


# --- the players who expect symmetric noise ---------------------------------------------------------------------


def _place_bets(values: Sequence[float], levels: Sequence[float], least_scale: float) -> list[_Bet]:
    """Return a bet on each pair. Its stake depends on the pairs before and on the pair's own level."""
    bets = [_Bet(value, 0.0, 0.0) for value in values[:_PAIRS_BEFORE_BETS]]
    for count in range(_PAIRS_BEFORE_BETS, len(values)):
        centre = median(values[:count])
        distances = [abs(value - centre) for value in values[:count]]
        level_gaps = [abs(level - levels[count]) for level in levels[:count]]
        similar = sorted(range(count - 1, -1, -1), key=level_gaps.__getitem__)[:_SIMILAR_PAIRS]
        usual_scale, pair_scale = (
            max(_scale(sample), least_scale) for sample in (distances, (distances[index] for index in similar))
        )
        bets.append(_Bet(values[count], _STAKE * min(usual_scale / pair_scale, _MAX_BOLDNESS) / pair_scale, pair_scale))
    return bets


def _scale(distances: Iterable[float]) -> float:
    """Return the standard deviation of normal values that have these distances from their centre.

    It follows from the mean distance, in which large distances count less than in a mean of squares.
    """
    return fmean(distances) * sqrt(pi / 2)


def _log_sign_wealth(bets: Sequence[_Bet], value: float) -> float:
    """Return the logarithm of what bets on larger values have won against ``value``."""
    log_wealth = 0.0
    for bet in bets:
        distance = bet.value - value
        capped = bet.reach if distance > bet.reach else max(distance, -bet.reach)
        log_wealth -= log1p(exp(-bet.stake * capped))
    return log_wealth + len(bets) * log(2)
