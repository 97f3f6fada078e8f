"""A published table beside what was measured of the same rows.

What may live here: one figure for every table that ships and shares a row with an experiment, in the table's own unit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache

from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.report.quantities import format_number, format_seconds
from pytest_cloudbench.report.scales import Linear, Log, Scale
from pytest_cloudbench.report.svg import SERIES, Canvas, Plane, shortened
from pytest_cloudbench.results import published
from pytest_cloudbench.results.suite import PublishedTable

_MOST_ROWS = 30
_UNITS: dict[str, Callable[[float], str]] = {"seconds": format_seconds, "s": format_seconds}


_names = cache(published.table_names)


def beside_published(
    members: Sequence[Measurement], without: Collection[str] = (), own: Iterable[PublishedTable] = ()
) -> list[Figure]:
    """Return a figure for each table and unit that has rows which these experiments repeat.

    Args:
        members: the experiments of one test function.
        without: names of tables that another figure shows.
        own: tables of their suite, besides those that are installed.
    """
    run = [{"fullname": each.nodeid, "params": each.params, "extra_info": each.info} for each in members]
    drawn = []
    declared = {table.name: table for table in own}
    for name in dict.fromkeys([*_names(), *declared]):
        if name in without:
            continue
        table = published.make_table(declared[name]) if name in declared else published.load_table(name)
        if published.add_measured(table, run):
            rows = [row for row in table.rows if any(each.value is not None for each in row.measured)]
            for unit in dict.fromkeys(row.unit for row in rows):
                drawn.append(_figure(table, unit, [row for row in rows if row.unit == unit]))
    return drawn


def _figure(table: published.Table, unit: str, rows: Sequence[published.Row]) -> Figure:
    shown, text = rows[:_MOST_ROWS], _UNITS.get(unit, format_number)
    providers = list(dict.fromkeys(each.provider for row in rows for each in row.measured))
    values = [row.value for row in shown] + [
        each.value for row in shown for each in row.measured if each.value is not None
    ]
    low, high = min(values), max(values)

    def scale() -> Scale:
        return Log(low * 0.8, high * 1.25, text) if low > 0 and high / low >= 30 else Linear(min(0.0, low), high, text)

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"{table.of}, {table.name}", told)
        entries = [(f"s{number % SERIES}", name) for number, name in enumerate(providers)]
        top = canvas.legend(6, 14, [*entries, ("published", "published")], width - 4) + 20
        left = min(190.0, width * 0.42)
        plane = Plane(canvas, scale(), Linear(0, len(shown), fixed=True), left, top, width - 14, top + 24 * len(shown))
        canvas.add(f'<path d="M{plane.left:.1f} {plane.bottom:.1f}H{plane.right:.1f}" class="base"/>')
        for place, row in enumerate(shown):
            y = len(shown) - place - 0.5
            canvas.text(left - 8, plane.py(y) + 4, shortened(_label(row), left - 10), anchor="end")
            canvas.add(f'<path d="M{plane.left:.1f} {plane.py(y):.1f}H{plane.right:.1f}" class="grid"/>')
            plane.ring(row.value, y, f"published: {text(row.value)}")
            for each in row.measured:
                if each.value is not None:
                    doubt = ", has doubts" if each.doubts else ""
                    plane.dot(
                        each.value, y, providers.index(each.provider), f"{each.provider}: {text(each.value)}{doubt}"
                    )
        for value, label in plane.x.ticks(5):
            canvas.text(plane.px(value), plane.bottom + 17, label, anchor="middle")
        canvas.text(plane.right, plane.bottom + 34, "" if unit in _UNITS else unit, "axis", "end")
        canvas.height = plane.bottom + 42
        return canvas

    told = f"Rings: {table.of}, as published ({table.date}). Marks: measured here."
    told += f" The first {_MOST_ROWS} of {len(rows)} rows are drawn." if len(rows) > _MOST_ROWS else ""
    told += (
        " An emulated run measures the client and the loopback, not the service."
        if any(each.is_emulated for row in rows for each in row.measured)
        else ""
    )
    numbers = [
        [_label(row), row.value, each.provider, each.value, bool(each.doubts)] for row in rows for each in row.measured
    ]
    head = ["row", f"published, {unit}", "provider", f"measured, {unit}", "doubts"]
    more = [f"The table has {len(table.notes)} remarks: cloudbench published {table.name}"] if table.notes else []
    notes = [f"Published: {table.source} ({table.date})", *more]
    return Figure(f"{table.name}-{unit}", f"Published beside measured: {table.of}", told, draw, head, numbers, notes)


def _label(row: published.Row) -> str:
    return ", ".join(f"{value}" for value in row.params.values())
