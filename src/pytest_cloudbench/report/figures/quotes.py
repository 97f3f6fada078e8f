"""Published values for figures. They are from the text of papers whose figures print no numbers.

They are rows of the published tables, and are drawn where the same quantity was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.results import published
from pytest_cloudbench.results.suite import Quote


@dataclass(frozen=True, slots=True)
class QuotedValue:
    """One value of a paper.

    Attributes:
        x: its position on the x axis, or None if it holds for all.
        value: in the unit of the figure.
        words: the service, or the condition.
        bound: whether it is a bound or a mean, in words such as ``at least``.
        source: the paper and its section.
    """

    x: float | str | None
    value: float
    words: str
    bound: str
    source: str

    def label(self, text: Callable[[float], str]) -> str:
        """Return a label such as ``SkyDrive: at least 9 s``."""
        return f"{self.words}: {self.bound} {text(self.value)}".replace(":  ", ": ")


def find_quotes(quotes: Iterable[Quote], members: Sequence[Measurement]) -> list[QuotedValue]:
    """Return the published values whose conditions at least one of the experiments repeats."""
    return [
        QuotedValue(quote.x, row.value * quote.factor + quote.plus, _quote_label(row),
               str(row.entry["extra_info"].get("bound") or ""), table.source)
        for quote in quotes if any(_applies_to(quote, measurement) for measurement in members)
        for table in _load_tables(quote.table)
        for row in table.rows
        if row.params["quantity"] == quote.quantity and row.params["condition"].endswith(quote.condition)
    ]  # fmt: skip


@cache
def _load_tables(name: str) -> list[published.Table]:
    """Return the table of that name, or nothing since an entry from another installation may name a missing table."""
    return [published.load_table(name)] if name in published.table_names() else []


def _applies_to(quote: Quote, measurement: Measurement) -> bool:
    return all(measurement.params.get(name, measurement.info.get(name)) == value for name, value in quote.given.items())


def _quote_label(row: published.Row) -> str:
    """Return the service of a row, or its condition if all rows of the table are about one service."""
    return str(row.params.get("service") or row.params["condition"])
