"""Figures of published tables with the measured values of the same rows, in the unit of the table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache

from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.report.quantities import format_number, format_seconds
from pytest_cloudbench.report.scales import Linear, Log, Scale
from pytest_cloudbench.report.svg import SERIES, Canvas, Plane, shorten_text
from pytest_cloudbench.results import published
from pytest_cloudbench.results.suite import PublishedTable
from pytest_cloudbench.support.wording import format_count

_MOST_ROWS = 30
_UNITS: dict[str, Callable[[float], str]] = {"seconds": format_seconds, "s": format_seconds}


_table_names = cache(published.table_names)


def beside_published(
    members: Sequence[Measurement], without: Collection[str] = (), own: Iterable[PublishedTable] = ()
) -> list[Figure]:
    """Return a figure for each table and unit with rows that these experiments repeat.

    Args:
        members: the experiments of one test function.
        without: names of tables that other figures show.
        own: tables of their suite, in addition to the installed ones.
    """
    run = [
        {"fullname": measurement.nodeid, "params": measurement.params, "extra_info": measurement.info}
        for measurement in members
    ]
    drawn = []
    declared = {table.name: table for table in own}
    for name in dict.fromkeys([*_table_names(), *declared]):
        if name in without:
            continue
        table = published.make_table(declared[name]) if name in declared else published.load_table(name)
        if published.add_measured(table, run):
            rows = [row for row in table.rows if any(measured.value is not None for measured in row.measured)]
            for unit in dict.fromkeys(row.unit for row in rows):
                drawn.append(_build_figure(table, unit, [row for row in rows if row.unit == unit]))
    return drawn


def _build_figure(table: published.Table, unit: str, rows: Sequence[published.Row]) -> Figure:
    shown, text = rows[:_MOST_ROWS], _UNITS.get(unit, format_number)
    providers = list(dict.fromkeys(measured.provider for row in rows for measured in row.measured))
    values = [row.value for row in shown] + [
        measured.value for row in shown for measured in row.measured if measured.value is not None
    ]
    low, high = min(values), max(values)

    def scale() -> Scale:
        return Log(low * 0.8, high * 1.25, text) if low > 0 and high / low >= 30 else Linear(min(0.0, low), high, text)

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"{table.of}, {table.name}")
        entries = [(f"s{number % SERIES}", name) for number, name in enumerate(providers)]
        top = canvas.draw_legend(6, 14, [*entries, ("published", "published")], width - 4) + 20
        left = min(190.0, width * 0.42)
        plane = Plane(canvas, scale(), Linear(0, len(shown), fixed=True), left, top, width - 14, top + 24 * len(shown))
        canvas.add_element(f'<path d="M{plane.left:.1f} {plane.bottom:.1f}H{plane.right:.1f}" class="base"/>')
        for index, row in enumerate(shown):
            y = len(shown) - index - 0.5
            canvas.draw_text(left - 8, plane.canvas_y(y) + 4, shorten_text(_row_label(row), left - 10), anchor="end")
            canvas.add_element(f'<path d="M{plane.left:.1f} {plane.canvas_y(y):.1f}H{plane.right:.1f}" class="grid"/>')
            plane.draw_ring(row.value, y, f"published: {text(row.value)}")
            for measured in row.measured:
                if measured.value is not None:
                    doubt = ", has doubts" if measured.doubts else ""
                    plane.draw_dot(
                        measured.value,
                        y,
                        providers.index(measured.provider),
                        f"{measured.provider}: {text(measured.value)}{doubt}",
                    )
        for value, label in plane.x.ticks(5):
            canvas.draw_text(plane.canvas_x(value), plane.bottom + 17, label, anchor="middle")
        canvas.draw_text(plane.right, plane.bottom + 34, "" if unit in _UNITS else unit, "axis", "end")
        canvas.height = plane.bottom + 42
        return canvas

    description = f"Rings: {table.of}, as published ({table.date}). Marks: measured here."
    description += f" The first {_MOST_ROWS} of {len(rows)} rows are drawn." if len(rows) > _MOST_ROWS else ""
    description += (
        " An emulated run measures the client and the loopback, not the service."
        if any(measured.is_emulated for row in rows for measured in row.measured)
        else ""
    )
    numbers = [
        [_row_label(row), row.value, measured.provider, measured.value, bool(measured.doubts)]
        for row in rows
        for measured in row.measured
    ]
    head = ["row", f"published, {unit}", "provider", f"measured, {unit}", "doubts"]
    notes = [f"Published: {table.source} ({table.date})"]
    if table.notes:
        notes.append(f"The table has {format_count(len(table.notes), 'remark')}: cloudbench published {table.name}")
    return Figure(
        f"{table.name}-{unit}", f"Published beside measured: {table.of}", description, draw, head, numbers, notes
    )


def _row_label(row: published.Row) -> str:
    return ", ".join(f"{value}" for value in row.params.values())
