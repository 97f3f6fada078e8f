"""Layout of tables for a terminal: columns are folded or continued below, and no content is lost."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Sequence

_GAP = "  "
_UNFOLDED = 12
"""Cells up to this many characters, such as ``12.5 ms``, are never folded at their spaces."""
_LONGEST_WORD = 24
"""Longer words, such as paths, are broken if the table does not fit otherwise."""

_Row = Sequence[str]


def wrap_line(line: str, width: int) -> list[str]:
    """Break a line between words, with its continuation indented.

    A command at its end stays whole, so that it can be copied.
    """
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    command = re.search(r": (cloudbench [a-z]+ .+)$", line)
    text = line[: command.start() + 1] if command else line
    parts = textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False) or [text]
    return [*parts, *([f"{indent}{command[1]}"] if command else [])]


def fit_to_width(rows: Sequence[_Row], width: int, *, attached: Collection[int] = ()) -> list[str]:
    """Return lines of at most ``width`` characters for a row of titles and the rows below it.

    Wide columns are folded. If that is not enough, further columns follow in a second table below, which repeats the
    first columns that distinguish its rows. Columns in ``attached`` stay beside the one before them.
    """
    natural = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if _total_width(natural) <= width:  # without folding, thousands of rows need not be split into words
        lines = [_GAP.join(map(str.rjust, row, natural)).rstrip() for row in rows]
        return [lines[0], "-" * _total_width(natural), *lines[1:]]
    tables: list[list[int]] = []
    columns = list(range(len(rows[0])))
    narrowest = [max(_narrowest_width(row[column]) for row in rows) for column in columns]
    key_columns = _identifying_columns(rows, narrowest, width // 2)
    while columns:
        count, fewest = len(columns), len(key_columns) + bool(tables)
        while count > fewest and (
            _total_width([narrowest[column] for column in columns[:count]]) > width
            or (count < len(columns) and columns[count] in attached)
        ):
            count -= 1
        tables.append(columns[:count])
        columns = [] if count == len(columns) else [*key_columns, *columns[count:]]
    return [
        line for table in tables for line in _draw_table([[row[column] for column in table] for row in rows], width)
    ]


def _identifying_columns(rows: Sequence[_Row], widths: Sequence[int], room: int) -> list[int]:
    """Return the fewest first columns that distinguish the rows, or column 0 if these need more than ``room``."""
    for count in range(1, len(widths)):
        key_columns = list(range(count))
        if _total_width(widths[:count]) > room:
            break
        if len({tuple(row[:count]) for row in rows[1:]}) == len(rows) - 1:
            return key_columns
    return [0]


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _narrowest_width(cell: str) -> int:
    """Return the smallest width that a cell can be folded to."""
    words = [cell] if len(cell) <= _UNFOLDED else cell.split()
    return min(_LONGEST_WORD, max(map(len, words), default=0))


def _draw_table(rows: Sequence[_Row], width: int) -> list[str]:
    """Lay out one table: titles, a rule, and the rows, each as high as its tallest cell."""
    columns = list(zip(*rows, strict=True))
    natural = [max(map(len, column)) for column in columns]
    widths = [max(map(_narrowest_width, column)) for column in columns]
    room = width - _total_width(widths)
    # Columns that need the least more width come first, so that most columns need no folding.
    for index in sorted(range(len(widths)), key=lambda index: natural[index] - widths[index]):
        more = min(natural[index] - widths[index], max(0, room))
        widths[index], room = widths[index] + more, room - more
    # Text that is folded begins at the left. Numbers below a folded title still end at the right.
    is_text = [any(len(cell) > width for cell in column[1:]) for column, width in zip(columns, widths, strict=True)]
    row_lines = [_row_lines(row, widths, is_text) for row in rows]
    rule = "-" * _total_width(widths)
    return [*row_lines[0], rule[:width], *(line for lines in row_lines[1:] for line in lines)]


def _row_lines(row: _Row, widths: Sequence[int], is_text: Sequence[bool]) -> list[str]:
    cells = [
        [cell] if len(cell) <= width else textwrap.wrap(cell, max(1, width))
        for cell, width in zip(row, widths, strict=True)
    ]
    lines = []
    for number in range(max(map(len, cells))):
        parts = [cell[number] if number < len(cell) else "" for cell in cells]
        placed = [
            part.ljust(width) if is_left else part.rjust(width)
            for part, width, is_left in zip(parts, widths, is_text, strict=True)
        ]
        lines.append(_GAP.join(placed).rstrip())
    return lines
