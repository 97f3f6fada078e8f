"""Which figures a kind of experiment has besides the two that all have.

What may live here: what draws a whole test function: its own figures first, then tables of papers that it repeats.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.figures.curves import curves
from pytest_cloudbench.report.figures.grids import capabilities, losses
from pytest_cloudbench.report.figures.tables import beside_published
from pytest_cloudbench.report.gathering import Measurement

__all__ = ["of"]


def of(members: Sequence[Measurement]) -> list[Figure]:
    """Returns the figures of one test function's experiments."""
    suite, test = members[0].kind
    drawn = losses(members) if suite == "iot" else []
    drawn += capabilities(members) if (suite, test) == ("sync_capabilities", "test_table_1") else []
    return [*drawn, *curves(members), *beside_published(members)]
