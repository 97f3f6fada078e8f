"""Rows of cells as lines that fit a terminal, without losing content.

The content of cells comes from ``table``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

_GAP = "  "
_WHOLE = 12
"""Cells up to this many characters, such as ``12.5 ms``, are not folded at their spaces."""
_LONGEST_WORD = 24
"""Longer words, such as paths, are cut if nothing else helps."""

_Row = Sequence[str]


def fitted(rows: Sequence[_Row], width: int) -> list[str]:
    """Return lines of at most ``width`` characters for a row of titles and the rows below it.

    Wide columns are folded; if that is not enough, further columns follow in a second table below, which begins with
    the columns again that tell its rows apart.
    """
    natural = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if _total(natural) <= width:  # nothing is folded: thousands of rows need not be looked at word by word
        drawn = [_GAP.join(map(str.rjust, row, natural)).rstrip() for row in rows]
        return [drawn[0], "-" * _total(natural), *drawn[1:]]
    tables: list[list[int]] = []
    columns = list(range(len(rows[0])))
    least = [max(_least(row[column]) for row in rows) for column in columns]
    names = _names(rows, least, width // 2)
    while columns:
        count = len(columns)
        while count > len(names) + bool(tables) and _total([least[column] for column in columns[:count]]) > width:
            count -= 1
        tables.append(columns[:count])
        columns = [] if count == len(columns) else [*names, *columns[count:]]
    return [line for table in tables for line in _drawn([[row[column] for column in table] for row in rows], width)]


def _names(rows: Sequence[_Row], least: Sequence[int], room: int) -> list[int]:
    """Return the first columns, as few as tell the rows apart; only the first one if that takes too much room."""
    for count in range(1, len(least)):
        names = list(range(count))
        if _total(least[:count]) > room:
            break
        if len({tuple(row[:count]) for row in rows[1:]}) == len(rows) - 1:
            return names
    return [0]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _least(cell: str) -> int:
    """Return the smallest width that a cell can be folded to."""
    words = [cell] if len(cell) <= _WHOLE else cell.split()
    return min(_LONGEST_WORD, max(map(len, words), default=0))


def _drawn(rows: Sequence[_Row], width: int) -> list[str]:
    """Draw one table: titles, a rule, and the rows, each with as many lines as its tallest cell."""
    columns = list(zip(*rows, strict=True))
    natural = [max(map(len, column)) for column in columns]
    widths = [max(map(_least, column)) for column in columns]
    room = width - _total(widths)
    # The narrowest wishes first: then most columns are as wide as they want to be.
    for place in sorted(range(len(widths)), key=lambda place: natural[place] - widths[place]):
        more = min(natural[place] - widths[place], max(0, room))
        widths[place], room = widths[place] + more, room - more
    is_text = [wish > given for wish, given in zip(natural, widths, strict=True)]
    drawn = [_lines(row, widths, is_text) for row in rows]
    rule = "-" * _total(widths)
    return [*drawn[0], rule[:width], *(line for lines in drawn[1:] for line in lines)]


def _lines(row: _Row, widths: Sequence[int], is_text: Sequence[bool]) -> list[str]:
    cells = [
        [cell] if len(cell) <= size else textwrap.wrap(cell, max(1, size))
        for cell, size in zip(row, widths, strict=True)
    ]
    lines = []
    for number in range(max(map(len, cells))):
        parts = [cell[number] if number < len(cell) else "" for cell in cells]
        placed = [
            part.ljust(size) if folded else part.rjust(size)
            for part, size, folded in zip(parts, widths, is_text, strict=True)
        ]
        lines.append(_GAP.join(placed).rstrip())
    return lines
