"""The papers' tables that ship with the package, and the values of a stored run that correspond to them.

The tables are in ``published/*.json``, which tools/make_published.py makes. ``report/published`` shows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_cloudbench.judge.baseline import is_finite, list_doubts
from pytest_cloudbench.judge.expect import ClaimBounds, find_bounds
from pytest_cloudbench.judge.metrics import find_metric
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.results.entry_names import split_name
from pytest_cloudbench.results.installed import installed_suites
from pytest_cloudbench.results.suite import PublishedTable

_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS = (_PACKAGE / "data" / "published", _PACKAGE.parents[1] / "results" / "published")
"""The folder in a wheel, and the one in a checkout."""

_Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """The value of a run for a row and its expected bounds, in the table's unit. None means not known."""

    provider: str
    value: float | None
    doubts: Sequence[str] = ()
    is_emulated: bool = False
    allowed: ClaimBounds | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: its parameters, the published value in the table's unit, the entry itself."""

    params: Mapping[str, Any]
    value: float
    unit: str
    entry: _Entry
    measured: list[Measured] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Table:
    """A published table. ``of`` describes its values."""

    name: str
    of: str
    source: str
    date: str
    notes: Sequence[str]
    rows: Sequence[Row]


def _tables_folder() -> Path:
    return next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])


def table_names() -> list[str]:
    """Return the names of all tables: of those that ship, and of those of installed suites."""
    return sorted({*(path.stem for path in _tables_folder().glob("*.json")), *_suite_tables()})


def _suite_tables() -> dict[str, PublishedTable]:
    """Return the tables of installed suites by their names. Tables that ship keep theirs, whoever takes one again."""
    tables = dict[str, PublishedTable]()
    for suite in installed_suites().values():
        for table in suite.published:
            tables.setdefault(table.name, table)
    return {name: table for name, table in tables.items() if not (_tables_folder() / f"{name}.json").is_file()}


def make_table(declared: PublishedTable) -> Table:
    """Return a table that a suite declares."""
    info = {
        "stats_unit": declared.unit, "stats_of": declared.of, "stats_metric": declared.metric,
        "stats_scale": declared.scale, "source": declared.source, "date": declared.date, "notes": [*declared.notes],
    }  # fmt: skip
    rows = [
        Row(params, value, declared.unit, {"fullname": declared.test, "params": params, "extra_info": info})
        for params, value in declared.rows
    ]
    return Table(declared.name, declared.of, declared.source, declared.date, declared.notes, rows)


def load_table(name: str) -> Table:
    """Return a table by its name. Raises UsageError, which lists the known names."""
    if name not in table_names():
        raise UsageError(f"published {name}: there is no such table; there are: {', '.join(table_names())}")
    if name in (declared := _suite_tables()):
        return make_table(declared[name])
    entries = json.loads((_tables_folder() / f"{name}.json").read_text(encoding="utf-8"))["benchmarks"]
    rows = [
        Row(entry["params"], entry["stats"]["data"][0], entry["extra_info"]["stats_unit"], entry) for entry in entries
    ]  # fmt: skip
    first = entries[0]["extra_info"]
    notes = dict.fromkeys(note for entry in entries for note in entry["extra_info"]["notes"])
    quantities = {entry["extra_info"]["stats_of"] for entry in entries}
    return Table(
        name,
        quantities.pop() if len(quantities) == 1 else "several quantities",
        first["source"],
        first["date"],
        [*notes],
        rows,
    )


def read_run(path: Path) -> list[_Entry]:
    """Return the entries of a run that pytest-benchmark has stored. Raises UsageError."""
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
        selected: list[_Entry] = [
            {key: entry[key] for key in ("fullname", "params", "extra_info")} for entry in entries
        ]
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path}: is not a run stored by pytest-benchmark") from error
    return selected


@dataclass(frozen=True, slots=True)
class _Figure:
    """The number in a run's entries that corresponds to a row of a table.

    Attributes:
        test: the test function, as in an entry's full name.
        metric, scale: the key of the number, and the factor that converts it to the table's unit.
        like: parameters or other fields of the entry that must have these values.
        has, lacks: fields that the entry must have, or must not have.
    """

    test: str
    metric: str
    scale: float
    like: Mapping[str, Any]
    has: Sequence[str] = ()
    lacks: Sequence[str] = ()


def _describe_figure(row: _Entry) -> _Figure:
    info = row["extra_info"]
    if comparison := info.get("beside"):
        like, has, lacks = comparison.get("run", {}), comparison.get("has", ()), comparison.get("lacks", ())
        return _Figure(comparison["test"], comparison["metric"], comparison["scale"], like, has, lacks)
    parameters = {name: row["params"][name] for name in info.get("match", row["params"])}
    return _Figure(row["fullname"], info["stats_metric"], info["stats_scale"], parameters)


def add_measured(table: Table, run: Sequence[_Entry]) -> int:
    """Add what a run measured to the rows that it repeats, and return the number of added values."""
    count = 0
    for row in table.rows:
        figure = _describe_figure(row.entry)
        for entry in run:
            info = entry["extra_info"]
            if figure.metric not in info or not _repeats_row(entry, figure):
                continue
            value: Any = info.get(figure.metric)
            scaled = value * figure.scale if isinstance(value, bool) or is_finite(value) else None
            metric = find_metric(figure.metric)
            doubts = list_doubts(info, is_time=row.unit == "s" or (metric is not None and metric.time_like))
            bounds = find_bounds(info.get("expectations"), figure.metric)
            allowed = bounds.times(figure.scale) if bounds else None
            row.measured.append(
                Measured(str(info.get("provider")), scaled, doubts, bool(info.get("emulated")), allowed)
            )
            count += 1
    return count


def _repeats_row(entry: _Entry, figure: _Figure) -> bool:
    """Return whether an entry has the test function of a figure, in a checkout or a wheel, and matching fields."""
    measured, listed = split_name(str(entry["fullname"])), split_name(figure.test)
    if measured.function != listed.function:
        return False
    if listed.path and _last_parts(measured.path) != _last_parts(listed.path):  # a suite's own table names no file
        return False
    info = entry["extra_info"]
    values = {**info, **(entry["params"] or {})}
    if any(values.get(name) != value for name, value in figure.like.items()):
        return False
    return all(name in info for name in figure.has) and not any(name in info for name in figure.lacks)


def _last_parts(path: str) -> tuple[str, ...]:
    """Return the last folder and the name of a file, which are the same in a checkout and in a wheel."""
    return PurePosixPath(path).parts[-2:]
