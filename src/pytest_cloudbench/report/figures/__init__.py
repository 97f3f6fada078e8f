"""Figures of a report. Each module of this package draws one family of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_cloudbench.report.svg import Canvas

WIDTH = 380
"""The width of a figure in the drawing's units (see ``svg``). Three are beside each other on a page, and one fits a
telephone."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing, its description, and the numbers behind it.

    Attributes:
        name: the name of its CSV file, without the ending.
        title: the heading above it.
        description: how to read it and what it shows. A screen reader reads it aloud.
        draw: draws it for a width.
        head, rows: the table of its numbers. None is an unknown value.
        notes: sources of published values, and limits of the measurement.
    """

    name: str
    title: str
    description: str
    draw: Callable[[int], Canvas]
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()
