"""All figures of a test function: those that its suite declares, then published tables with the same conditions.

An entry contains the declarations of its suite. Older entries do not: for them, the declarations of the installed suite
with the name of the entry's folder are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.figures.courses import draw_courses
from pytest_cloudbench.report.figures.curves import draw_curves
from pytest_cloudbench.report.figures.delays import delays_of_changes
from pytest_cloudbench.report.figures.grids import draw_capabilities, draw_loss_grids
from pytest_cloudbench.report.figures.maps import draw_maps
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
    WorldMap,
    read_declared,
)

_Kind = TypeVar("_Kind", bound=SuiteFigure)


def draw_figures(members: Sequence[Measurement]) -> list[Figure]:
    """Return the figures for the experiments of one test function."""
    declared = _suite_declarations(members)
    rows = declared.figures
    drawn = [figure for row in _rows_of_kind(rows, LossGrid) for figure in draw_loss_grids(row, members)]
    drawn += [figure for row in _rows_of_kind(rows, Answers) for figure in draw_capabilities(row, members)]
    drawn += [figure for row in _rows_of_kind(rows, WorldMap) for figure in draw_maps(row, members)]
    drawn += [figure for _, figure in _single_figures(rows, members) if isinstance(figure, Figure)]
    drawn += [figure for figure in draw_courses(_rows_of_kind(rows, TimeCourse), members) if isinstance(figure, Figure)]
    drawn += draw_curves(_rows_of_kind(rows, Curve), members)
    return [*drawn, *beside_published(members, {row.table for row in rows}, declared.published)]


def explain_undrawn(members: Sequence[Measurement]) -> list[str]:
    """Return a line for each declared figure that cannot be drawn from the entries, with the reason."""
    rows = _suite_declarations(members).figures
    single = [
        f"{measurement.subject}: {reason}"
        for measurement, reason in _single_figures(rows, members)
        if isinstance(reason, str)
    ]
    return single + [
        reason for reason in draw_courses(_rows_of_kind(rows, TimeCourse), members) if isinstance(reason, str)
    ]


def _suite_declarations(members: Sequence[Measurement]) -> Declared:
    """Return the declarations of the experiments' suite: the latest figures, and the published rows of all entries."""
    stored = (read_declared(measurement.info.get("suite")) for measurement in members)
    declarations = [declared for declared in stored if declared is not None]
    if not declarations:
        folder, test = members[0].kind
        suite = installed_suites().get(folder)
        return Declared("") if suite is None else suite.about(test)
    tables: dict[str, PublishedTable] = {}
    for table in (table for declared in declarations for table in declared.published):
        former = tables.get(table.name, table).rows
        tables[table.name] = table._replace(rows=(*former, *(row for row in table.rows if row not in former)))
    return declarations[-1]._replace(published=tuple(tables.values()))


def _rows_of_kind(rows: Sequence[SuiteFigure], kind: type[_Kind]) -> list[_Kind]:
    return [row for row in rows if isinstance(row, kind)]


def _single_figures(
    rows: Sequence[SuiteFigure], members: Sequence[Measurement]
) -> Iterator[tuple[Measurement, Figure | str | None]]:
    """Yield each measurement with a figure, the reason why it has none, or None if it is of another kind."""
    for measurement in members:
        for row in rows:
            if isinstance(row, Rounds):
                yield measurement, completed_over_time(row, measurement)
                yield measurement, hash_calls_over_time(row, measurement)
            elif isinstance(row, Probes):
                yield measurement, levels_tried(row, measurement)
            elif isinstance(row, Delays):
                yield measurement, delays_of_changes(row, measurement)
