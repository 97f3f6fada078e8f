"""The probability that at least k of n children answer: the Poisson-binomial distribution.

What may live here: pure functions of probabilities. Children fail independently here, each with its own probability.
In practice independence is the assumption that fails most often, so an outage of all children at once has a probability
of its own (``shared``).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum


def up_count_chances(failures: Sequence[float]) -> list[float]:
    """Return the probability that exactly 0, 1, ... n children are up.

    All terms are sums of products of positive numbers, so small probabilities are as exact as large ones.

    Args:
        failures: for each child, the probability that it does not answer: 0 to 1.

    Raises:
        ValueError: a number that is not a probability.
    """
    if not all(0 <= failure <= 1 for failure in failures):
        raise ValueError(f"expected probabilities from 0 to 1, got {list(failures)}")
    chances = [1.0]
    for failure in failures:
        when_down = [chance * failure for chance in chances]
        when_up = [chance * (1 - failure) for chance in chances]
        chances = [down + up for down, up in zip([*when_down, 0.0], [0.0, *when_up], strict=True)]
    return chances


def chance_of_fewer_than(wanted: int, failures: Sequence[float], shared: float = 0.0) -> float:
    """Return the probability that fewer than ``wanted`` children are up, so that an object cannot be read.

    The terms are summed directly, because ``1 - chance_of_at_least(...)`` loses everything below 1e-16.

    Args:
        wanted: how many children must be up.
        failures: for each child, the probability that it does not answer, not counting shared outages.
        shared: the probability of an outage of all children together, such as of the client's own network.

    Raises:
        ValueError: a number that is not a probability, or more children wanted than there are.
    """
    _check_arguments(wanted, len(failures), shared)
    return shared + (1 - shared) * fsum(up_count_chances(failures)[:wanted])


def chance_of_at_least(wanted: int, failures: Sequence[float], shared: float = 0.0) -> float:
    """Return the probability that ``wanted`` children or more are up, see ``chance_of_fewer_than``."""
    _check_arguments(wanted, len(failures), shared)
    return (1 - shared) * min(1.0, fsum(up_count_chances(failures)[wanted:]))


def _check_arguments(wanted: int, children: int, shared: float) -> None:
    if not 0 <= wanted <= children:
        raise ValueError(f"{wanted} of {children} children is not possible")
    if not 0 <= shared <= 1:
        raise ValueError(f"{shared} is not a probability")
