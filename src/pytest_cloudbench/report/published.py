"""Published tables as text, each value in its own unit, with the values of a run in columns beside them.

A value that is not known is a dash, never a zero. There is no ratio to zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cloudbench.report.distance import format_bounds, format_distance
from pytest_cloudbench.report.quantities import format_number, format_share, format_value
from pytest_cloudbench.results.published import Measured, Row, Table


def overview(tables: Sequence[Table]) -> list[str]:
    """Return one line for each table."""
    rows = [["table", "rows", "what it holds"]]
    rows += [[table.name, str(len(table.rows)), table.of] for table in tables]
    return _align_columns(rows, left={0, 2})


def render(table: Table) -> list[str]:
    """Return a table with the values that each provider measured, how far apart they are, and what is allowed."""
    heads = list(dict.fromkeys(name for row in table.rows for name in row.params))
    units = dict.fromkeys(row.unit for row in table.rows)
    providers = list(dict.fromkeys(each.provider for row in table.rows for each in row.measured))
    bounded = {each.provider for row in table.rows for each in row.measured if each.allowed is not None}
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
            mine = [each for each in row.measured if each.provider == provider]
            cells.append("; ".join(_format_measured(each, row) for each in mine) or "-")
            cells.append("; ".join(format_distance(each.value, row.value, row.unit) for each in mine) or "-")
            if provider in bounded:
                cells.append("; ".join(dict.fromkeys(format_bounds(each.allowed, row.unit) for each in mine)) or "-")
        rows.append(cells)
    text = {at for at, name in enumerate(heads) if any(isinstance(row.params.get(name), str) for row in table.rows)}
    what = table.of if unit in ("%", "") or unit in table.of.split() else f"{table.of}, {unit}"
    lines = [f"{table.name}: {what}", f"{table.source} ({table.date})", "", *_align_columns(rows, left=text), ""]
    measured = [each for row in table.rows for each in row.measured]
    lines += [f"? {doubt}" for doubt in dict.fromkeys(doubt for each in measured for doubt in each.doubts)]
    if any(each.is_emulated for each in measured):
        lines.append("note: an emulated run measures the client and the loopback, not the service")
    return [*lines, *(f"note: {note}" for note in table.notes)]


def _format_published(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "yes/no":
        return "yes" if value else "no"
    return format_share(value / 100) if unit == "%" else format_number(value, 6)


def _format_measured(each: Measured, row: Row) -> str:
    return _format_published(each.value, row.unit) + ("?" if each.doubts else "")


def _align_columns(rows: Sequence[Sequence[str]], left: set[int]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if at in left else cell.rjust(width)
                  for at, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip
    return [lines[0], "-" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]]
