"""Which figures a kind of experiment has besides the two that all have.

What may live here: what draws a whole test function: its own figures first, then tables of papers that it repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.figures.courses import courses
from pytest_cloudbench.report.figures.curves import curves
from pytest_cloudbench.report.figures.delays import delays_of_changes
from pytest_cloudbench.report.figures.grids import capabilities, losses
from pytest_cloudbench.report.figures.probes import levels_tried
from pytest_cloudbench.report.figures.rounds import completed_over_time, hash_calls_over_time
from pytest_cloudbench.report.figures.tables import beside_published
from pytest_cloudbench.report.gathering import Measurement

__all__ = ["of", "undrawn"]

_SINGLE: Mapping[str, Sequence[Callable[[Measurement], Figure | str | None]]] = {
    "availability": (completed_over_time, hash_calls_over_time),
    "capacity": (levels_tried,),
    "updates": (delays_of_changes,),
}
"""By suite: figures of one experiment on one provider, or why there is none; None if it never has one."""


def of(members: Sequence[Measurement]) -> list[Figure]:
    """Returns the figures of one test function's experiments."""
    suite, test = members[0].kind
    drawn = losses(members) if suite == "iot" else []
    drawn += capabilities(members) if (suite, test) == ("sync_capabilities", "test_table_1") else []
    drawn += [figure for _, figure in _single(members) if isinstance(figure, Figure)]
    drawn += [figure for figure in courses(members) if isinstance(figure, Figure)]
    return [*drawn, *curves(members), *beside_published(members)]


def undrawn(members: Sequence[Measurement]) -> list[str]:
    """Returns a line for each figure of one test function's experiments that their entries should have and lack."""
    single = [f"{each.subject}: {why}" for each, why in _single(members) if isinstance(why, str)]
    return single + [why for why in courses(members) if isinstance(why, str)]


def _single(members: Sequence[Measurement]) -> Iterator[tuple[Measurement, Figure | str | None]]:
    return ((each, draw(each)) for each in members for draw in _SINGLE.get(members[0].kind[0], ()))
