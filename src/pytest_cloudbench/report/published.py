"""Published tables as text, with the measured values of a run in further columns.

An unknown value is a dash, never a zero. There is no ratio to zero.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from pytest_cloudbench.report.columns import fit_to_width
from pytest_cloudbench.report.distance import format_bounds, format_distance
from pytest_cloudbench.report.quantities import format_number, format_share, format_value
from pytest_cloudbench.results.published import Measured, Row, Table

_WIDE = 10_000
"""Wider than any line of a table."""


def render_overview(tables: Sequence[Table]) -> list[str]:
    """Return an overview with one line for each table."""
    rows = [["table", "rows", "what it holds"]]
    rows += [[table.name, str(len(table.rows)), table.of] for table in tables]
    return _align_columns(rows, left_aligned={0, 2})


def render_table(table: Table, width: int = _WIDE) -> list[str]:
    """Return a table with the measured values of each provider, their difference, and the allowed range.

    Lines have at most ``width`` characters.
    """
    heads = list(dict.fromkeys(name for row in table.rows for name in row.params))
    units = dict.fromkeys(row.unit for row in table.rows)
    providers = list(dict.fromkeys(measured.provider for row in table.rows for measured in row.measured))
    bounded = {measured.provider for row in table.rows for measured in row.measured if measured.allowed is not None}
    unit = next(iter(units)) if len(units) == 1 else ""
    head = [*heads, *([] if unit else ["unit"]), "published"]
    rows = [
        [
            *head,
            *(
                title
                for provider in providers
                for title in (provider, "difference", *["allowed"] * (provider in bounded))
            ),
        ]
    ]
    for row in table.rows:
        cells = [format_value(row.params.get(name)) for name in heads]
        cells += [*([] if unit else [row.unit]), _format_published(row.value, row.unit)]
        for provider in providers:
            measures = [measured for measured in row.measured if measured.provider == provider]
            cells.append("; ".join(_format_measured(measured, row) for measured in measures) or "-")
            cells.append(
                "; ".join(format_distance(measured.value, row.value, row.unit) for measured in measures) or "-"
            )
            if provider in bounded:
                cells.append(
                    "; ".join(dict.fromkeys(format_bounds(measured.allowed, row.unit) for measured in measures)) or "-"
                )
        rows.append(cells)
    text_columns = {
        index for index, name in enumerate(heads) if any(isinstance(row.params.get(name), str) for row in table.rows)
    }
    is_clear = unit in ("%", "") or f" {'seconds' if unit == 's' else unit} " in f" {table.of} "
    quantity = table.of if is_clear else f"{table.of}, {unit}"
    body = _align_columns(rows, left_aligned=text_columns)
    if max(map(len, body)) > width:
        attached = [index for index, title in enumerate(rows[0]) if title in ("difference", "allowed")]
        body = fit_to_width(rows, width, attached=attached)
    lines = [*_wrap(f"{table.name}: {quantity}", width), *_wrap(f"{table.source} ({table.date})", width), "", *body, ""]
    values = [measured for row in table.rows for measured in row.measured]
    remarks = [f"? {doubt}" for doubt in dict.fromkeys(doubt for measured in values for doubt in measured.doubts)]
    if any(measured.is_emulated for measured in values):
        remarks.append("note: an emulated run measures the client and the loopback, not the service")
    remarks += [f"note: {note}" for note in table.notes]
    return lines + [line for remark in remarks for line in _wrap(remark, width)]


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)


def _format_published(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "yes/no":
        return "yes" if value else "no"
    return format_share(value / 100) if unit == "%" else format_number(value, 6)


def _format_measured(measured: Measured, row: Row) -> str:
    return _format_published(measured.value, row.unit) + ("?" if measured.doubts else "")


def _align_columns(rows: Sequence[Sequence[str]], left_aligned: set[int]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if index in left_aligned else cell.rjust(width)
                  for index, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip
    return [lines[0], "-" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]]
