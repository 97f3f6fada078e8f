"""The probability that at least k of n children answer: the Poisson-binomial distribution.

What may live here: pure functions of probabilities. Children fail independently here, each with its own probability.
Since independence is the assumption that most often fails in practice, an outage that all children share has its own
probability (``shared``).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum


def up_counts(failures: Sequence[float]) -> list[float]:
    """Return the probability that exactly 0, 1, ... n children are up.

    All terms are sums of products of positive numbers, so that small ones are as exact as large ones.

    Args:
        failures: for each child, the probability that it does not answer: 0 to 1.

    Raises:
        ValueError: a number that is not a probability.
    """
    if not all(0 <= failure <= 1 for failure in failures):
        raise ValueError(f"expected probabilities from 0 to 1, got {list(failures)}")
    chances = [1.0]
    for failure in failures:
        stays = [chance * failure for chance in chances]
        rises = [chance * (1 - failure) for chance in chances]
        chances = [low + high for low, high in zip([*stays, 0.0], [0.0, *rises], strict=True)]
    return chances


def fewer_than(wanted: int, failures: Sequence[float], shared: float = 0.0) -> float:
    """Return the probability that fewer than ``wanted`` children are up: how often an object cannot be read.

    It is summed directly, because ``1 - at_least(...)`` loses everything below 1e-16.

    Args:
        wanted: how many children must be up.
        failures: for each child, the probability that it does not answer, not counting shared outages.
        shared: the probability of an outage of all children together, such as of the client's own network.

    Raises:
        ValueError: a number that is not a probability, or more children wanted than there are.
    """
    return shared + (1 - shared) * fsum(_counted(wanted, failures, shared)[:wanted])


def at_least(wanted: int, failures: Sequence[float], shared: float = 0.0) -> float:
    """Return the probability that ``wanted`` children or more are up, see ``fewer_than``."""
    return (1 - shared) * min(1.0, fsum(_counted(wanted, failures, shared)[wanted:]))


def _counted(wanted: int, failures: Sequence[float], shared: float) -> list[float]:
    if not 0 <= wanted <= len(failures):
        raise ValueError(f"{wanted} of {len(failures)} children is not possible")
    if not 0 <= shared <= 1:
        raise ValueError(f"{shared} is not a probability")
    return up_counts(failures)
