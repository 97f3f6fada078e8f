"""The declarations of a suite: its figures, its conclusions and the titles of its columns, as values and as plain data.

An entry carries what its suite declares about it, so a report needs neither the suite nor its path
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
_CONCLUSION_FIELDS = ("unit", "better", "time_like", "gated")
"""The fields of a metric that a conclusion has. All others are about single runs."""
_FORMER_FIELDS = {"told": "caption", "calls_told": "calls_caption"}
"""Names of fields in entries that were stored before the first release, and their names now."""
_EMPTY: Mapping[str, Any] = MappingProxyType({})

# Figures are named tuples, because each of fifty agents imports them, and dataclasses would take twice the time.


class Quote(NamedTuple):
    """The rows of a published table that are quoted in a figure.

    Attributes:
        table, quantity, condition: select the rows. The condition is given by its end. If it is empty, all rows of the
            quantity are selected.
        x: the position on the figure's axis, or None if they hold along all of it.
        factor, plus: convert values of the table to those of the figure.
        given: parameters or facts that must have these values, because nothing was published for other experiments.
    """

    table: str
    quantity: str
    condition: str = ""
    x: float | str | None = None
    factor: float = 1.0
    plus: float = 0.0
    given: Mapping[str, float | str] = _EMPTY


class Curve(NamedTuple):
    """Values along a parameter, with a line for each provider or client.

    Attributes:
        test: the test function. A name that ends in ``*`` matches all that begin so.
        x, y: a parameter, metric or extra value.
        title: the title of the figure. ``caption`` says what to look for.
        x_title, y_title: titles of the axes, if the names of the values do not suffice.
        published: the extra value that holds the published value of the same point. ``beside`` describes it if it is
            not from a paper.
        quotes: published values of single points, or of the whole line.
        low, high: extra values that bound the value.
        inside: an extra value with all points of one experiment, which maps a level to values, whose median is drawn.
        mark: a metric, extra or published value that marks a value of x, such as a knee. It may be of another entry of
            the same test.
        table: the published table that this figure shows, so that it is not drawn again.
    """

    test: str
    x: str
    y: str
    title: str
    caption: str
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
    """An entry's list of values over the time of one experiment, with a line for each client.

    Attributes:
        test: see ``Curve``.
        y: the name of the axis, whose ending is the unit.
        values: the entry's list with a value for each interval.
        times: the entry's list of times in seconds, or the length of each interval as a number or as its name.
        title: the title of the figure. ``caption`` says what to look for.
        is_sum: draw the sum so far.
        over: the extra value by which it is divided, if any.
        published: names of published values, names of the times at which they hold (empty: always), and labels.
        quotes: published values that always hold.
        table: see ``Curve``.
    """

    test: str
    y: str
    values: str
    times: float | str
    title: str
    caption: str
    is_sum: bool = True
    over: str = ""
    published: tuple[tuple[str, str, str], ...] = ()
    quotes: tuple[Quote, ...] = ()
    table: str = ""


class Delays(NamedTuple):
    """The distributions of an entry's lists of delays, in seconds.

    Attributes:
        test: see ``Curve``.
        values: maps each of the entry's lists to its label.
        caption: what to look for.
        published: maps a published value to its label.
        shares: maps a published share of the delays in ``shares_of`` to the two times between which they are.
        shares_of: the label of the list that the shares are about.
        table: see ``Curve``.
    """

    test: str
    values: Mapping[str, str]
    caption: str = ""
    published: Mapping[str, str] = _EMPTY
    shares: Mapping[str, tuple[float, float]] = _EMPTY
    shares_of: str = ""
    table: str = ""


class Probes(NamedTuple):
    """A search for a limit: its probes in their order, and the interval that remains for the answer.

    Attributes:
        test: see ``Curve``.
        searched: maps each metric that may be searched for to the words for its levels.
        table: see ``Curve``.
    """

    test: str
    searched: Mapping[str, str]
    table: str = ""


class Rounds(NamedTuple):
    """A long series over its time: the share of its writes that completed, and how long its hash calls took.

    Attributes:
        test: see ``Curve``.
        table: the published table with the shares that other services completed, in percent, if any.
        calls_caption: what to look for in the figure of the hash calls.
    """

    test: str
    table: str = ""
    calls_caption: str = ""


class LossGrid(NamedTuple):
    """Loss rates over the number of sensors and their interval.

    Attributes:
        test: see ``Curve``.
        table: the published table with the loss rates of the same cells, in percent, if any.
    """

    test: str
    table: str = ""


class Answers(NamedTuple):
    """A grid of yes, no and unknown, with a line for each client or provider, and the evidence in its numbers.

    Attributes:
        test: see ``Curve``.
        table: the published table with other clients' answers, if any.
        title: the title of the figure.
        question: the parameter that names what was asked, of entries and of the table.
    """

    test: str
    table: str = ""
    title: str = "What clients can do"
    question: str = "capability"


class WorldMap(NamedTuple):
    """A world map of an entry's servers, as far as their places are known.

    Attributes:
        test: see ``Curve``.
        places: the entry's list of servers. Each is a mapping with ``name``, ``operator``, ``place`` and ``known_by``,
            and if the region is known with ``latitude_deg``, ``longitude_deg`` and ``radius_km``.
        title: the title of the figure.
        caption: what to look for.
        table: see ``Curve``.
        published: places of a paper: what is there, and the degrees north and east of the middle of the named area.
    """

    test: str
    places: str
    title: str
    caption: str = ""
    table: str = ""
    published: tuple[tuple[str, float, float], ...] = ()


class PublishedTable(NamedTuple):
    """Published numbers, for a figure that compares them with measurements of the same rows.

    Attributes:
        name: the name of the table, such as ``thesis-2014-table-4.2``.
        test: the test function whose entries repeat it.
        metric: their number, which ``scale`` converts to a value of the table.
        of: the meaning of the values. ``unit``, ``source`` and ``date`` are the table's.
        rows: the parameters of an entry, and the published value in the table's unit.
        notes: the limits of the table.
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
        """Return the table with only those rows that an entry repeats, or nothing if it repeats none."""
        rows = tuple(row for row in self.rows if all(given.get(name) == value for name, value in row[0].items()))
        return (self._replace(rows=rows),) if rows else ()


SuiteFigure = Curve | TimeCourse | Delays | Probes | Rounds | LossGrid | Answers | WorldMap
_FIGURE_KINDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(SuiteFigure)}


@dataclass(frozen=True, slots=True)
class Suite:
    """The declarations of a suite, as ``CLOUDBENCH_SUITE`` in its test module or in the package of its tests.

    Attributes:
        name: the name of the suite.
        figures: the figures that a report draws from its entries.
        conclusions: the metrics that it concludes from several runs. Expectations and gates can name them.
        columns: titles of columns of its tables, by metric or extra value, if their names do not suffice.
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
                raise UsageError(f"suite {self.name}: {name}: a conclusion takes no `of`, `column` or `about`")

    def about(self, test: str) -> Declared:
        """Return the declarations about one test function."""
        figures = tuple(figure for figure in self.figures if _matches(figure.test, test))
        published = tuple(table for table in self.published if _matches(table.test, test))
        return Declared(self.name, figures, self.conclusions, self.columns, published)


class Declared(NamedTuple):
    """A suite's declarations about the entries of one test function, which an entry carries. See ``Suite``."""

    suite: str
    figures: tuple[SuiteFigure, ...] = ()
    conclusions: Mapping[str, Metric] = _EMPTY
    columns: Mapping[str, str] = _EMPTY
    published: tuple[PublishedTable, ...] = ()

    def of_entry(self, given: Mapping[str, Any]) -> Declared:
        """Return the declarations about one entry: conclusions, titles and published rows of its values."""
        return self._replace(
            conclusions={name: row for name, row in self.conclusions.items() if name in given},
            columns={name: title for name, title in self.columns.items() if name in given},
            published=tuple(part for table in self.published for part in table.of_entry(given)),
        )

    def plain(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {
            "name": self.suite,
            "figures": [{"kind": type(figure).__name__, **_to_plain(figure)} for figure in self.figures],
            "conclusions": plain_conclusions(self.conclusions),
            "columns": dict(self.columns),
            "published": [_to_plain(table) for table in self.published],
        }


def read_declared(plain: Any) -> Declared | None:
    """Return the declarations in an entry's plain data, or None if there are none. What cannot be read is omitted.

    A file of results may be from anywhere, and from a later version that knows more kinds of figures.
    """
    if not isinstance(plain, Mapping) or not isinstance(plain.get("name"), str):
        return None
    figures = [_read_figure(_as_mapping(item)) for item in _as_sequence(plain.get("figures"))]
    tables = [_read_tuple(PublishedTable, item) for item in _as_sequence(plain.get("published"))]
    return Declared(
        plain["name"], tuple(figure for figure in figures if figure is not None), read_conclusions(plain),
        _read_columns(plain), tuple(table for table in tables if table is not None),
    )  # fmt: skip


def plain_conclusions(rows: Mapping[str, Metric]) -> dict[str, dict[str, Any]]:
    """Convert conclusions to plain data."""
    return {name: {key: getattr(row, key) for key in _CONCLUSION_FIELDS} for name, row in rows.items()}


def read_conclusions(plain: Any) -> dict[str, Metric]:
    """Return the conclusions in the plain data of an entry's suite."""
    conclusions = plain.get("conclusions") if isinstance(plain, Mapping) else None
    rows = {name: _read_conclusion(conclusion) for name, conclusion in _as_mapping(conclusions).items()}
    return {name: row for name, row in rows.items() if row is not None}


def read_titles(info: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the titles that an entry's suite gives columns, by metric or extra value."""
    suite = info.get("suite")
    return _read_columns(suite) if isinstance(suite, Mapping) and isinstance(suite.get("name"), str) else {}


def _read_columns(plain: Mapping[str, Any]) -> dict[str, str]:
    return {name: title for name, title in _as_mapping(plain.get("columns")).items() if isinstance(title, str)}


def _matches(pattern: str, test: str) -> bool:
    return test.startswith(pattern[:-1]) if pattern.endswith("*") else test == pattern


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return {str(name): item for name, item in value.items()} if isinstance(value, Mapping) else {}


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _to_plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        defaults = getattr(value, "_field_defaults", {})
        return {
            name: _to_plain(item) for name, item in value._asdict().items()
            if item not in ("", (), {}) or defaults.get(name) != item
        }  # fmt: skip
    if isinstance(value, Mapping):
        return {name: _to_plain(item) for name, item in value.items()}
    return [_to_plain(item) for item in value] if isinstance(value, tuple) else value


def _read_figure(plain: Mapping[str, Any]) -> SuiteFigure | None:
    fields = {_FORMER_FIELDS.get(name, name): value for name, value in plain.items()}
    return _read_tuple(_FIGURE_KINDS.get(str(fields.get("kind"))), fields)


def _read_tuple(kind: type[_T] | None, plain: Any) -> _T | None:
    """Build a named tuple from plain data. Return None if that is not possible, or the kind is not known."""
    try:
        return _build_tuple(kind, plain) if kind is not None and isinstance(plain, Mapping) else None
    except (TypeError, ValueError):
        return None


def _read_conclusion(plain: Any) -> Metric | None:
    fields = {name: plain[name] for name in _CONCLUSION_FIELDS if name in plain} if isinstance(plain, Mapping) else {}
    is_valid = (
        isinstance(fields.get("unit"), str) and fields.get("better", "lower") in ("lower", "higher")
        and isinstance(fields.get("time_like", False), bool) and fields.get("gated", "") in ("", "exact", "fact")
    )  # fmt: skip
    return Metric(**fields) if is_valid else None


def _build_tuple(kind: type[_T], plain: Mapping[str, Any]) -> _T:
    """Build a named tuple from plain data. Raises ValueError for a wrong type, TypeError if a field is missing."""
    hints = get_type_hints(kind)
    return kind(**{name: _read_value(hints[name], plain[name]) for name in hints if name in plain})


def _read_value(hint: Any, plain: Any) -> Any:
    """Read plain data as the type of a field. Raises ValueError."""
    origin, type_arguments = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        for item_hint in type_arguments:
            if _has_type(item_hint, plain):
                return plain
    if hasattr(hint, "_fields") and isinstance(plain, Mapping):
        return _build_tuple(hint, plain)
    if origin is tuple and isinstance(plain, (list, tuple)):
        item_hints = [type_arguments[0]] * len(plain) if type_arguments[-1] is ... else [*type_arguments]
        return tuple(_read_value(item_hint, value) for item_hint, value in zip(item_hints, plain, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(plain, Mapping):
        return {str(name): _read_value(type_arguments[1], value) for name, value in plain.items()}
    if origin is None and _has_type(hint, plain):
        return plain
    raise ValueError(f"expected {hint}, found {type(plain).__name__}")


def _has_type(hint: Any, value: Any) -> bool:
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    return isinstance(value, NoneType if hint is None else hint)
