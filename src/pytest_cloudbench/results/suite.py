"""What a suite declares: its figures, its conclusions and the titles of its columns, as values and as plain data.

What may live here: the values that a suite's module names, and their way into an entry and back. An entry carries what
its suite declares about it, so a report needs neither the suite nor its path
(docs/decisions/0013-suites-declare-what-is-theirs.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType, NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from pytest_cloudbench.judge.metrics import Metric
from pytest_cloudbench.model import UsageError

_T = TypeVar("_T")
_OWN = ("unit", "better", "time_like", "gated")
"""What a suite says of a conclusion. All other fields of a metric are about single runs."""
_NONE: Mapping[str, Any] = MappingProxyType({})

# Figures are named tuples and not dataclasses: each of fifty agents imports them, which takes half the time.


class Quote(NamedTuple):
    """Which rows of a published table are quoted of a figure.

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
    given: Mapping[str, float | str] = _NONE


class Curve(NamedTuple):
    """Values along a parameter, a line for each provider or client.

    Attributes:
        test: of which test function; a name that ends in ``*`` stands for all that begin so.
        x, y: a parameter, metric or extra value.
        title: of the figure; ``told`` says what to look for.
        x_title, y_title: of the axes, if the names of the values do not say it well.
        published: the extra value that holds the published value of the same point; ``beside``: what it is instead, if
            it is not a paper's.
        quotes: published values of single points, or of the whole line.
        low, high: extra values that bound the value.
        inside: an extra value that holds all points of one experiment: level to values, whose median is drawn.
        mark: a metric, extra or published value that names a value of x, such as a knee; it may be of another entry of
            the same test.
        table: the published table that this figure shows; it is not drawn a second time.
    """

    test: str
    x: str
    y: str
    title: str
    told: str
    x_title: str = ""
    y_title: str = ""
    published: str = ""
    low: str = ""
    high: str = ""
    inside: str = ""
    mark: str = ""
    beside: str = "published"
    quotes: tuple[Quote, ...] = ()
    table: str = ""


class TimeCourse(NamedTuple):
    """What an entry's list says over the time of one experiment, a line for each client.

    Attributes:
        test: see ``Curve``.
        y: what the axis is called; its ending says the unit.
        values: the entry's list of what was seen in each interval.
        times: the entry's list of when, in seconds, or what says how long each interval is: a number, or its name.
        title: of the figure; ``told`` says what to look for.
        is_sum: draw the sum so far.
        over: the extra value by which it is divided, if any.
        published: names of published values, of the times at which they hold (empty: always), and words.
        quotes: published values that hold always.
        table: see ``Curve``.
    """

    test: str
    y: str
    values: str
    times: float | str
    title: str
    told: str
    is_sum: bool = True
    over: str = ""
    published: tuple[tuple[str, str, str], ...] = ()
    quotes: tuple[Quote, ...] = ()
    table: str = ""


class Delays(NamedTuple):
    """The distributions of an entry's lists of delays, in seconds.

    Attributes:
        test: see ``Curve``.
        values: the entry's lists, to what each is called.
        told: what to look for.
        published: published values, to words.
        shares: published shares of the delays in ``shares_of``, to the two times between which they are.
        shares_of: what the list that the shares are about is called.
        table: see ``Curve``.
    """

    test: str
    values: Mapping[str, str]
    told: str = ""
    published: Mapping[str, str] = _NONE
    shares: Mapping[str, tuple[float, float]] = _NONE
    shares_of: str = ""
    table: str = ""


class Probes(NamedTuple):
    """A search for a limit: its probes in their order, and the interval that is left for the answer.

    Attributes:
        test: see ``Curve``.
        searched: the metrics that may be searched for, to the words for their levels.
        table: see ``Curve``.
    """

    test: str
    searched: Mapping[str, str]
    table: str = ""


class Rounds(NamedTuple):
    """A long series over its time: which share of its writes completed, and how long its hash calls took.

    Attributes:
        test: see ``Curve``.
        table: the published table with the shares that other services completed, in percent; empty: none.
        calls_told: what to look for in the figure of the hash calls.
    """

    test: str
    table: str = ""
    calls_told: str = ""


class LossGrid(NamedTuple):
    """Loss rates over the number of sensors and their interval.

    Attributes:
        test: see ``Curve``.
        table: the published table with the loss rates of the same cells, in percent; empty: none.
    """

    test: str
    table: str = ""


class Answers(NamedTuple):
    """A grid of yes, no and unknown: what each client can do.

    Attributes:
        test: see ``Curve``.
        table: the published table with other clients' answers; empty: none.
    """

    test: str
    table: str = ""


class PublishedTable(NamedTuple):
    """Numbers that somebody has published, for a figure beside what is measured of the same rows.

    Attributes:
        name: of the table, such as ``thesis-2014-table-4.2``.
        test: the test function whose entries repeat it.
        metric: their number; ``scale`` makes a value of the table from it.
        of: what the values mean; ``unit``, ``source`` and ``date`` are the table's.
        rows: the parameters of an entry, and the published value, in the table's unit.
        notes: what limits it.
    """

    name: str
    test: str
    metric: str
    of: str
    unit: str
    source: str
    date: str
    rows: tuple[tuple[Mapping[str, float | str], float], ...]
    scale: float = 1.0
    notes: tuple[str, ...] = ()

    def of_entry(self, given: Mapping[str, Any]) -> tuple[PublishedTable, ...]:
        """Return the table with those rows only that an entry repeats; nothing if it repeats none."""
        rows = tuple(row for row in self.rows if all(given.get(name) == value for name, value in row[0].items()))
        return (self._replace(rows=rows),) if rows else ()


SuiteFigure = Curve | TimeCourse | Delays | Probes | Rounds | LossGrid | Answers
_KINDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(SuiteFigure)}


@dataclass(frozen=True, slots=True)
class Suite:
    """What a suite declares, as ``CLOUDBENCH_SUITE`` in its test module or in the package of its tests.

    Attributes:
        name: what it is called.
        figures: what a report draws of its entries.
        conclusions: the metrics that it concludes from several runs: expectations and gates can name them.
        columns: titles of columns of its tables, by metric or extra value, if their names do not say it well.
        published: tables that its entries repeat.
    """

    name: str
    figures: tuple[SuiteFigure, ...] = ()
    conclusions: Mapping[str, Metric] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    published: tuple[PublishedTable, ...] = ()

    def __post_init__(self) -> None:
        for name, metric in self.conclusions.items():
            if metric.of is not None or metric.column or metric.about:
                raise UsageError(f"suite {self.name}: {name}: a conclusion has no of, column or about")

    def about(self, test: str) -> Declared:
        """Return what it declares about one test function."""
        figures = tuple(figure for figure in self.figures if _matches(figure.test, test))
        published = tuple(table for table in self.published if _matches(table.test, test))
        return Declared(self.name, figures, self.conclusions, self.columns, published)


class Declared(NamedTuple):
    """What a suite declares about the entries of one test function; an entry carries it. See ``Suite``."""

    suite: str
    figures: tuple[SuiteFigure, ...] = ()
    conclusions: Mapping[str, Metric] = _NONE
    columns: Mapping[str, str] = _NONE
    published: tuple[PublishedTable, ...] = ()

    def of_entry(self, given: Mapping[str, Any]) -> Declared:
        """Return what is about one entry: the conclusions, titles and published rows of what it has."""
        return self._replace(
            conclusions={name: row for name, row in self.conclusions.items() if name in given},
            columns={name: title for name, title in self.columns.items() if name in given},
            published=tuple(part for table in self.published for part in table.of_entry(given)),
        )

    def plain(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {
            "name": self.suite,
            "figures": [{"kind": type(figure).__name__, **_plain(figure)} for figure in self.figures],
            "conclusions": {name: {key: getattr(row, key) for key in _OWN} for name, row in self.conclusions.items()},
            "columns": dict(self.columns),
            "published": [_plain(table) for table in self.published],
        }


def declared_in(found: Any) -> Declared | None:
    """Return what an entry's plain data declares; None if it declares nothing. What cannot be read is left out.

    A file of results may be from anywhere, and from a later version that knows more kinds of figures.
    """
    if not isinstance(found, Mapping) or not isinstance(found.get("name"), str):
        return None
    figures = [_read(_KINDS.get(str(_mapping(each).get("kind"))), each) for each in _listed(found.get("figures"))]
    tables = [_read(PublishedTable, each) for each in _listed(found.get("published"))]
    return Declared(
        found["name"], tuple(figure for figure in figures if figure is not None), conclusions_in(found),
        _titles(found), tuple(table for table in tables if table is not None),
    )  # fmt: skip


def conclusions_in(found: Any) -> dict[str, Metric]:
    """Return the conclusions among an entry's plain data of its suite."""
    given = found.get("conclusions") if isinstance(found, Mapping) else None
    rows = {name: _conclusion(each) for name, each in _mapping(given).items()}
    return {name: row for name, row in rows.items() if row is not None}


def titles_in(info: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the titles that an entry's suite has for columns, by metric or extra value."""
    found = info.get("suite")
    return _titles(found) if isinstance(found, Mapping) and isinstance(found.get("name"), str) else {}


def _titles(found: Mapping[str, Any]) -> dict[str, str]:
    return {name: title for name, title in _mapping(found.get("columns")).items() if isinstance(title, str)}


def _matches(pattern: str, test: str) -> bool:
    return test.startswith(pattern[:-1]) if pattern.endswith("*") else test == pattern


def _mapping(found: Any) -> Mapping[str, Any]:
    return {str(name): value for name, value in found.items()} if isinstance(found, Mapping) else {}


def _listed(found: Any) -> Sequence[Any]:
    return found if isinstance(found, (list, tuple)) else ()


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(each) for name, each in value._asdict().items() if each not in ("", (), {})}
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _read(kind: type[_T] | None, found: Any) -> _T | None:
    """Build a named tuple from plain data. Returns None if that is not possible, or the kind is not known."""
    try:
        return _made(kind, found) if kind is not None and isinstance(found, Mapping) else None
    except (TypeError, ValueError):
        return None


def _conclusion(found: Any) -> Metric | None:
    given = {name: found[name] for name in _OWN if name in found} if isinstance(found, Mapping) else {}
    is_sound = (
        isinstance(given.get("unit"), str) and given.get("better", "lower") in ("lower", "higher")
        and isinstance(given.get("time_like", False), bool) and given.get("gated", "") in ("", "exact", "fact")
    )  # fmt: skip
    return Metric(**given) if is_sound else None


def _made(kind: type[_T], found: Mapping[str, Any]) -> _T:
    """Build a named tuple from plain data. Raises ValueError for a wrong type, TypeError if a field is missing."""
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], found[name]) for name in hints if name in found})


def _value(hint: Any, found: Any) -> Any:
    """Read plain data as what a field's type says. Raises ValueError."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        for each in inside:
            if _is_of(each, found):
                return found
    if hasattr(hint, "_fields") and isinstance(found, Mapping):
        return _made(hint, found)
    if origin is tuple and isinstance(found, (list, tuple)):
        kinds = [inside[0]] * len(found) if inside[-1] is ... else [*inside]
        return tuple(_value(each, value) for each, value in zip(kinds, found, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(found, Mapping):
        return {str(name): _value(inside[1], value) for name, value in found.items()}
    if origin is None and _is_of(hint, found):
        return found
    raise ValueError(f"expected {hint}, found {type(found).__name__}")


def _is_of(hint: Any, found: Any) -> bool:
    if hint is float:
        return isinstance(found, (int, float)) and not isinstance(found, bool) and isfinite(found)
    return isinstance(found, NoneType if hint is None else hint)
