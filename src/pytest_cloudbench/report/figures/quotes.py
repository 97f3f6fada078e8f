"""What the text of a paper quotes of a figure that prints no numbers: values with words, beside what was measured.

What may live here: rows of tables that ship, as values of a figure. They are drawn where the same thing was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.results import published
from pytest_cloudbench.results.suite import Quote


@dataclass(frozen=True, slots=True)
class Quoted:
    """One value of a paper: where it is, in the figure's unit, whose it is, and whether it is a bound, or a mean."""

    x: float | str | None
    value: float
    words: str
    bound: str
    source: str

    def told(self, text: Callable[[float], str]) -> str:
        """Return it as words, such as ``SkyDrive: at least 9 s``."""
        return f"{self.words}: {self.bound} {text(self.value)}".replace(":  ", ": ")


def quoted(quotes: Iterable[Quote], members: Sequence[Measurement]) -> list[Quoted]:
    """Return the values that are published of what these experiments repeat."""
    return [
        Quoted(quote.x, row.value * quote.factor + quote.plus, _words(row),
               str(row.entry["extra_info"].get("bound") or ""), table.source)
        for quote in quotes if any(_is_of(quote, each) for each in members)
        for table in _tables(quote.table)
        for row in table.rows
        if row.params["quantity"] == quote.quantity and row.params["condition"].endswith(quote.condition)
    ]  # fmt: skip


@cache
def _tables(name: str) -> list[published.Table]:
    """Return the table of that name, if it is here: an entry may be from another installation."""
    return [published.load_table(name)] if name in published.table_names() else []


def _is_of(quote: Quote, each: Measurement) -> bool:
    return all(each.params.get(name, each.info.get(name)) == value for name, value in quote.given.items())


def _words(row: published.Row) -> str:
    """Return a service, or the condition where all rows of a table are of one service."""
    return str(row.params.get("service") or row.params["condition"])
