"""Words around numbers, as people write them."""

from __future__ import annotations

from collections.abc import Mapping


def format_count(count: int, noun: str, plural: str = "") -> str:
    """Write a number with what it counts: ``1 run``, ``1,200 runs``.

    Args:
        count: the number.
        noun: what is counted, and words that depend on there being one, such as ``run has``.
        plural: the same for any other number. By default the noun with an s.
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def format_counts(counts: Mapping[str, int]) -> str:
    """Write how often different things occurred, such as ``server 3, timeout 1``. What did not occur is left out."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count)
