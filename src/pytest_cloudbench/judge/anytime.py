"""How far two sides are apart, as an interval that may be looked at after every pair.

What may live here: differences of pairs into an interval, and how many pairs it would take. Pure functions.

Three players bet against each value that the difference might have, and what they own together says how wrong it is.
The first begins with a half, the others with a quarter each, and none can expect to win while the value is right. So
together they ever own 1/alpha with a probability of at most alpha (Ville 1939), and a session may stop at any look.
The interval is all values against which they own less.

The first bets as if the noise were normal: its wealth is a mixture of t statistics (Lai 1976; Wang and Ramdas,
"Anytime-valid t-tests", 2023). It is the fastest on a calm machine, and a few wild pairs ruin it. The others bet that
the next pair is above the value, or below. That is fair whenever the noise is symmetric, however heavy its tails are
and whatever the pairs before were (de la Pena, "A general class of exponential inequalities for martingales and
ratios", 1999; Ramdas, Grunwald, Vovk and Shafer, "Game-theoretic statistics and safe anytime-valid inference", 2023).
What they stake may depend on everything but the order of the sides: on former pairs, and on how slow both sides of
this pair were together. Where a machine is busy, slow pairs tell little and quick ones much.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, fsum, inf, isinf, log, log1p, pi, sqrt
from statistics import fmean, median

_FIRST, _OTHER = 0.5, 0.25
"""What the first player begins with, and each of the others."""

_EFFECT_VARIANCE = 2.0
"""How large a difference the t statistic expects, in variances of a pair. This and the next numbers decide when an
interval is short, not how often it is wrong."""

_STAKE = 1.0
"""The logarithm of the odds of a bet on one side, if the pair is as far away as such pairs usually are."""

_BOLDEST = 3.0
"""A pair that is expected to be precise gets at most this many times the usual stake."""

_WATCHED = 3
"""Pairs before the first bet: bets need a scale."""

_ALIKE = 8
"""Former pairs with nearly the same level, from which a pair's scale is known."""

_TINY = 1e-12
_NINE_OF_TEN = 1.2816
"""Standard deviations below which nine of ten normal values lie."""

_MOST_VALUES = 100_000


@dataclass(frozen=True, slots=True)
class AnytimeInterval:
    """Where a difference is: ``change`` in the middle, the limits infinite while nothing can be said."""

    change: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Bet:
    """What is staked on one pair: per unit of its distance, and up to which distance."""

    value: float
    stake: float
    reach: float


def interval(
    values: Sequence[float], alpha: float, least_sd: float = 0.0, levels: Sequence[float] | None = None
) -> AnytimeInterval:
    """Return the interval of the difference.

    The probability that it ever misses the true difference is at most ``alpha``, after however many values one looks,
    if the values are distributed symmetrically around it.

    Args:
        values: the difference of each pair, in the order they were measured.
        alpha: see above.
        least_sd: the least standard deviation to believe in.
        levels: the sum of the sides of each pair, from which its precision is guessed.
    """
    if len(values) < 2:
        return AnytimeInterval(fmean(values) if values else 0.0, -inf, inf)
    sd = max(_deviation(values), least_sd, _TINY)
    bets = _bets(values, levels or [0.0] * len(values), max(least_sd, _TINY))
    low = _lower(values, bets, sd, alpha)
    high = -_lower([-value for value in values], [_Bet(-bet.value, bet.stake, bet.reach) for bet in bets], sd, alpha)
    if isinf(low) or isinf(high):
        return AnytimeInterval(fmean(values), low, high)
    return AnytimeInterval((low + high) / 2, min(low, high), max(low, high))


def needed(found: AnytimeInterval, values: Sequence[float], alpha: float, least_sd: float, change: float) -> int | None:
    """Return how many values would find a change in nine of ten cases, if they went on like this.

    The interval is assumed to shrink like one of normal values that is as long now.
    """
    if len(values) < 2:
        return None
    alpha, count = alpha * _FIRST, len(values)
    half, of_one = (found.high - found.low) / 2, _half(count, 1.0, alpha)
    sd = max(_deviation(values), least_sd) if isinf(half) or isinf(of_one) else half / of_one
    if not sd:
        return None
    count = 2
    while _half(count, sd, alpha) + _NINE_OF_TEN * sd / sqrt(count) > change:
        count += max(1, count // 20)
        if count > _MOST_VALUES:
            return None
    return count


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation of two values or more."""
    mean = fmean(values)
    return sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


# --- the limits -----------------------------------------------------------------------------------------


def _lower(values: Sequence[float], bets: Sequence[_Bet], sd: float, alpha: float) -> float:
    """Return the lower limit: below it, those who bet on larger values own enough.

    What they own falls with the value that they bet against, so there is one such place. The player who bets on smaller
    values is left out, which can only move the limit outwards.
    """
    count, mean, enough = len(values), fmean(values), -log(alpha)

    def is_beaten(value: float) -> bool:
        first = log(_FIRST) + _log_normal(count, (mean - value) / sd) if value < mean else -inf
        return _log_sum(first, log(_OTHER) + _log_signs(bets, value)) >= enough

    half = _half(count, sd, alpha * _FIRST)
    below, above = mean - half, max(values)
    if isinf(half):
        below = min(values) - max(bet.reach for bet in bets)
        if not is_beaten(below):
            return -inf
    while above - below > 1e-9 * sd:
        middle = (below + above) / 2
        if not below < middle < above:
            break
        below, above = (middle, above) if is_beaten(middle) else (below, middle)
    return below


def _log_sum(one: float, other: float) -> float:
    """The logarithm of the sum of two numbers, from theirs."""
    return max(one, other) + log1p(exp(-abs(one - other)))


# --- the player who expects normal noise ------------------------------------------------------------------


def _log_normal(count: int, effect: float) -> float:
    """The logarithm of the Bayes factor of an effect ~ N(0, g) against none; ``effect`` is in standard deviations."""
    spread, square = 1 + count * _EFFECT_VARIANCE, count * effect**2 / (count - 1)
    return count / 2 * log((1 + square) / (1 + square / spread)) - log(spread) / 2


def _half(count: int, sd: float, alpha: float) -> float:
    """How far from the mean this Bayes factor is 1/alpha."""
    spread = 1 + count * _EFFECT_VARIANCE
    bound = exp(2 / count * log(sqrt(spread) / alpha))
    if bound >= spread:
        return inf
    return sd / sqrt(count) * sqrt((count - 1) * (bound - 1) / (1 - bound / spread))


# --- those who expect symmetric noise ---------------------------------------------------------------------


def _bets(values: Sequence[float], levels: Sequence[float], least_scale: float) -> list[_Bet]:
    """Return the stakes, each from the pairs before and from the pair's own level."""
    bets = [_Bet(value, 0.0, 0.0) for value in values[:_WATCHED]]
    for count in range(_WATCHED, len(values)):
        middle = median(values[:count])
        away = [abs(value - middle) for value in values[:count]]
        gaps = [abs(level - levels[count]) for level in levels[:count]]
        alike = sorted(range(count - 1, -1, -1), key=gaps.__getitem__)[:_ALIKE]
        usual, here = (max(_scale(some), least_scale) for some in (away, (away[place] for place in alike)))
        bets.append(_Bet(values[count], _STAKE * min(usual / here, _BOLDEST) / here, here))
    return bets


def _scale(distances: Iterable[float]) -> float:
    """The standard deviation of normal values that are so far from their middle; large distances count less."""
    return fmean(distances) * sqrt(pi / 2)


def _log_signs(bets: Sequence[_Bet], value: float) -> float:
    """The logarithm of what bets on larger values have won against ``value``."""
    won = 0.0
    for bet in bets:
        distance = bet.value - value
        away = bet.reach if distance > bet.reach else max(distance, -bet.reach)
        won -= log1p(exp(-bet.stake * away))
    return won + len(bets) * log(2)
