"""HTML elements of a page: tables, lists and figures. All texts from elsewhere are escaped here."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from pytest_cloudbench.report.figures import WIDTH, Figure
from pytest_cloudbench.report.quantities import format_value
from pytest_cloudbench.support.printable import printable

_NUMBER = re.compile(r"[-+]?\d")
_FORMULA_STARTS = set("=+-@\t\r")
"""A spreadsheet interprets a text with one of these first characters as a formula."""

_PATTERNS = (
    ("throttled", "M-1 7l8-8M3 11l8-8"), ("failed", "M0 0l8 8M8 0l-8 8"), ("corrupt", "M0 4h8"), ("lost", "M4 0v8"),
    ("silence", ""), ("yes", ""), ("unknown", "M0 8l8-8"),
)  # fmt: skip
"""Patterns that differ in their texture, not only in colour. The style sheet colours them, so that a page's security
policy may forbid styles of elements."""


def safe(text: object) -> str:
    """Escape a text of unknown origin for HTML, and escape control characters in it."""
    return escape(printable(text))


class ElementIds:
    """Unique IDs of a page's elements."""

    def __init__(self) -> None:
        self._used = set[str]()

    def new(self, text: str) -> str:
        """Return an unused ID that is similar to a text."""
        slug = "-".join(
            "".join(character if character.isascii() and character.isalnum() else " " for character in text)
            .lower()
            .split()
        )
        name, number = (slug or "x")[:60], 2
        while name in self._used:
            name, number = f"{(slug or 'x')[:56]}-{number}", number + 1
        self._used.add(name)
        return name


def _are_words(cells: Sequence[str]) -> bool:
    """Return whether most cells of a column are words. Some may begin with a number, as "17 of 17 files" does."""
    return 2 * sum(_NUMBER.match(cell) is not None for cell in cells) < len(cells) or not cells


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]], *, style: str = "", is_html: bool = False
) -> str:  # fmt: skip
    """Return a table in a region of its own that scrolls. The first cell of a row is its header.

    With ``is_html``, the cells of ``rows`` are HTML and are not escaped.
    """
    texts = [[cell if is_html else safe(format_value(cell)) for cell in row] for row in rows]
    is_text = [not is_html and _are_words([row[index] for row in texts]) for index in range(len(head))]
    marks = [' class="t"' if is_text_column else "" for is_text_column in is_text]
    # On a telephone, each row is a card whose cells need titles. Tables without a style are narrow enough not to.
    labels = [f' data-label="{safe(title)}"' if style else "" for title in head]
    lines = [
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td{mark}{label}>{cell}</td>"
                  for mark, label, cell in zip(marks[1:], labels[1:], row[1:], strict=True)) + "</tr>"
        for row in texts
    ]  # fmt: skip
    titles = "".join(f'<th scope="col"{mark}>{safe(title)}</th>' for mark, title in zip(marks, head, strict=True))
    name = f' class="{style}"' if style else ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{safe(caption)}"><table{name}><caption>'
        f"{safe(caption)}</caption><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def pattern_definitions() -> str:
    """Return the definitions of the patterns that figures refer to."""
    elements = "".join(
        f'<pattern id="p-{name}" width="8" height="8" patternUnits="userSpaceOnUse"><rect width="8" height="8"/>'
        + (f'<path d="{path}"/>' if path else "") + "</pattern>"
        for name, path in _PATTERNS
    )  # fmt: skip
    return f'<svg class="defs" aria-hidden="true"><defs>{elements}</defs></svg>'


def item_list(items: Iterable[str], style: str = "") -> str:
    """Return a list of HTML items, or ``""`` if there are none."""
    lines = "".join(f"<li>{item}</li>" for item in items)
    return f'<ul class="{style}">{lines}</ul>' if lines else ""


def figure(drawn: Figure, name: str, heading: str = "h4") -> str:
    """Return a figure with its description and its numbers.

    The numbers are in the page once, as CSV. The page's script makes a table and a file of them.
    """
    canvas = drawn.draw(WIDTH)
    notes = "".join(f'<p class="source">{safe(note)}</p>' for note in drawn.notes)
    return (
        f'<figure id="{name}"><figcaption><{heading}>{safe(drawn.title)}</{heading}>'
        f'<p id="{canvas.name}d">{safe(drawn.description)}</p></figcaption>{canvas.to_svg()}{notes}'
        f"<details><summary>Numbers<span class=of> of {safe(drawn.title)}</span></summary>"
        f'<pre tabindex="0">{escape(_to_csv(drawn), quote=False)}</pre></details></figure>'
    )


def _to_csv(drawn: Figure) -> str:
    """Return a figure's numbers as CSV with six digits. An unknown value is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_csv_cell(title) for title in drawn.head])
    writer.writerows([_csv_cell(value) for value in row] for row in drawn.rows)
    return text.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text[:1] in _FORMULA_STARTS else text
    return f"{value:.6g}" if isinstance(value, float) else value
