"""Which figures a kind of experiment has besides the two that all have.

What may live here: what draws a whole test function: the figures that its suite declares, then tables of papers that it
repeats. An entry itself says what its suite declares. Older entries do not: for them the installed suite speaks whose
name their folder has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.figures.courses import courses
from pytest_cloudbench.report.figures.curves import curves
from pytest_cloudbench.report.figures.delays import delays_of_changes
from pytest_cloudbench.report.figures.grids import capabilities, losses
from pytest_cloudbench.report.figures.probes import levels_tried
from pytest_cloudbench.report.figures.rounds import completed_over_time, hash_calls_over_time
from pytest_cloudbench.report.figures.tables import beside_published
from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.results.installed import installed_suites
from pytest_cloudbench.results.suite import (
    Answers,
    Curve,
    Declared,
    Delays,
    LossGrid,
    Probes,
    PublishedTable,
    Rounds,
    SuiteFigure,
    TimeCourse,
    read_declared,
)

_Kind = TypeVar("_Kind", bound=SuiteFigure)


def of(members: Sequence[Measurement]) -> list[Figure]:
    """Return the figures of one test function's experiments."""
    declared = _declared(members)
    rows = declared.figures
    drawn = [figure for row in _of_kind(rows, LossGrid) for figure in losses(row, members)]
    drawn += [figure for row in _of_kind(rows, Answers) for figure in capabilities(row, members)]
    drawn += [figure for _, figure in _single(rows, members) if isinstance(figure, Figure)]
    drawn += [figure for figure in courses(_of_kind(rows, TimeCourse), members) if isinstance(figure, Figure)]
    drawn += curves(_of_kind(rows, Curve), members)
    return [*drawn, *beside_published(members, {row.table for row in rows}, declared.published)]


def undrawn(members: Sequence[Measurement]) -> list[str]:
    """Return a line for each figure of one test function's experiments that their entries should have and lack."""
    rows = _declared(members).figures
    single = [f"{each.subject}: {why}" for each, why in _single(rows, members) if isinstance(why, str)]
    return single + [why for why in courses(_of_kind(rows, TimeCourse), members) if isinstance(why, str)]


def _declared(members: Sequence[Measurement]) -> Declared:
    """Return what the suite of some experiments declares: the figures of the latest, and all published rows."""
    found = [each for each in (read_declared(each.info.get("suite")) for each in members) if each is not None]
    if not found:
        folder, test = members[0].kind
        suite = installed_suites().get(folder)
        return Declared("") if suite is None else suite.about(test)
    tables: dict[str, PublishedTable] = {}
    for table in (table for each in found for table in each.published):
        former = tables.get(table.name, table).rows
        tables[table.name] = table._replace(rows=(*former, *(row for row in table.rows if row not in former)))
    return found[-1]._replace(published=tuple(tables.values()))


def _of_kind(rows: Sequence[SuiteFigure], kind: type[_Kind]) -> list[_Kind]:
    return [row for row in rows if isinstance(row, kind)]


def _single(
    rows: Sequence[SuiteFigure], members: Sequence[Measurement]
) -> Iterator[tuple[Measurement, Figure | str | None]]:
    """Yield the figures of one experiment on one provider, or why there is none; None if it never has one."""
    for each in members:
        for row in rows:
            if isinstance(row, Rounds):
                yield each, completed_over_time(row, each)
                yield each, hash_calls_over_time(row, each)
            elif isinstance(row, Probes):
                yield each, levels_tried(row, each)
            elif isinstance(row, Delays):
                yield each, delays_of_changes(row, each)
