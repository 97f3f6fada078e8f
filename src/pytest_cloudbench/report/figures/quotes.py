"""What the text of a paper quotes of a figure that prints no numbers: values with words, beside what was measured.

What may live here: rows of tables that ship, as values of a figure. They are drawn where the same thing was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.results import published

__all__ = ["Quote", "Quoted", "quoted"]


@dataclass(frozen=True, slots=True)
class Quote:
    """Which rows of a table are quoted of a figure.

    Attributes:
        table, quantity, condition: which rows; of the condition its end, and if that is empty, all of the quantity.
        x: where on the figure's axis; None: they are of all of it.
        factor, plus: make values of the figure from those of the table.
        given: names of parameters or facts, and what they must be: of another experiment nothing was published.
    """

    table: str
    quantity: str
    condition: str = ""
    x: float | str | None = None
    factor: float = 1.0
    plus: float = 0.0
    given: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Quoted:
    """One value of a paper: where it is, in the figure's unit, whose it is, and whether it is a bound, or a mean."""

    x: float | str | None
    value: float
    words: str
    bound: str
    source: str

    def told(self, text: Callable[[float], str]) -> str:
        """Returns it as words, such as ``SkyDrive: at least 9 s``."""
        return f"{self.words}: {self.bound} {text(self.value)}".replace(":  ", ": ")


def quoted(quotes: Iterable[Quote], members: Sequence[Measurement]) -> list[Quoted]:
    """Returns the values that are published of what these experiments repeat."""
    return [
        Quoted(quote.x, row.value * quote.factor + quote.plus, _words(row),
               str(row.entry["extra_info"].get("bound") or ""), table.source)
        for quote in quotes if any(_is_of(quote, each) for each in members)
        for table in [_table(quote.table)]
        for row in table.rows
        if row.params["quantity"] == quote.quantity and row.params["condition"].endswith(quote.condition)
    ]  # fmt: skip


_table = cache(published.load)


def _is_of(quote: Quote, each: Measurement) -> bool:
    return all(each.params.get(name, each.info.get(name)) == value for name, value in quote.given.items())


def _words(row: published.Row) -> str:
    """Returns a service, or the condition where all rows of a table are of one service."""
    return str(row.params.get("service") or row.params["condition"])
