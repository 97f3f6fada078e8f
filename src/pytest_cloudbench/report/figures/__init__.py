"""Figures of a report: a drawing, the numbers behind it, and words for both.

What may live here: what a figure is. Each module beside it draws one family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_cloudbench.report.svg import Canvas

WIDE, NARROW = 540, 344
"""Widths for which a figure is drawn, in units of its labels: on a page, and on a telephone."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        name: what its CSV file is called, without the ending.
        title: what is drawn.
        told: how to read it and what it shows, for everybody; also what a screen reader says.
        draw: draws it for a width.
        head, rows: the numbers behind it; None is "not known".
        notes: where published values are from, and what limits them.
    """

    name: str
    title: str
    told: str
    draw: Callable[[int], Canvas]
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()
