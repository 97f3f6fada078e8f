"""The papers' tables that ship with the package, and the values of a stored run that correspond to them.

What may live here: reading ``published/*.json`` (made by tools/make_published.py) and pytest-benchmark's files of runs,
and telling which entry repeats which row. ``report/published`` shows them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_cloudbench.judge.expect import ClaimBounds, find_bounds
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.results.installed import installed_suites
from pytest_cloudbench.results.suite import PublishedTable

_PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = (_PACKAGE / "data" / "published", _PACKAGE.parents[1] / "results" / "published")
"""In a wheel, and in a checkout."""

_Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run measured for a row, and what it was expected to be, in the table's unit. None: not known."""

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
    """A published table. ``of`` says what its values mean."""

    name: str
    of: str
    source: str
    date: str
    notes: Sequence[str]
    rows: Sequence[Row]


def _folder() -> Path:
    return next((place for place in _PLACES if place.is_dir()), _PLACES[0])


def names() -> list[str]:
    """Returns the names of all tables: of those that ship, and of those of installed suites."""
    return sorted({*(path.stem for path in _folder().glob("*.json")), *_of_suites()})


def _of_suites() -> dict[str, PublishedTable]:
    return {table.name: table for suite in installed_suites().values() for table in suite.published}


def table_of(declared: PublishedTable) -> Table:
    """Returns a table that a suite declares."""
    about = {
        "stats_unit": declared.unit, "stats_of": declared.of, "stats_metric": declared.metric,
        "stats_scale": declared.scale, "source": declared.source, "date": declared.date, "notes": [*declared.notes],
    }  # fmt: skip
    rows = [
        Row(params, value, declared.unit, {"fullname": declared.test, "params": params, "extra_info": about})
        for params, value in declared.rows
    ]
    return Table(declared.name, declared.of, declared.source, declared.date, declared.notes, rows)


def load(name: str) -> Table:
    """Returns a table by its name. Raises UsageError that lists the known names."""
    if name not in names():
        raise UsageError(f"published {name}: there is no such table; there are: {', '.join(names())}")
    if name in (declared := _of_suites()):
        return table_of(declared[name])
    entries = json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))["benchmarks"]
    rows = [
        Row(each["params"], each["stats"]["data"][0], each["extra_info"]["stats_unit"], each) for each in entries
    ]  # fmt: skip
    first = entries[0]["extra_info"]
    notes = dict.fromkeys(note for each in entries for note in each["extra_info"]["notes"])
    of = {each["extra_info"]["stats_of"] for each in entries}
    return Table(
        name, of.pop() if len(of) == 1 else "several quantities", first["source"], first["date"], [*notes], rows
    )


def read_run(path: Path) -> list[_Entry]:
    """The entries of a run that pytest-benchmark has stored. Raises UsageError."""
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
        found: list[_Entry] = [{key: each[key] for key in ("fullname", "params", "extra_info")} for each in entries]
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path}: is not a run stored by pytest-benchmark") from error
    return found


@dataclass(frozen=True, slots=True)
class _Figure:
    """Where a run has the figure of a row.

    Attributes:
        test: the test function, as in an entry's full name.
        metric, scale: its number, and what that is multiplied by to be in the table's unit.
        like: parameters of the entry, or what else it says of itself, that must be these.
        has, lacks: what it must say something of, or nothing.
    """

    test: str
    metric: str
    scale: float
    like: Mapping[str, Any]
    has: Sequence[str] = ()
    lacks: Sequence[str] = ()


def _figure_of(row: _Entry) -> _Figure:
    about = row["extra_info"]
    if told := about.get("beside"):
        like, has, lacks = told.get("run", {}), told.get("has", ()), told.get("lacks", ())
        return _Figure(told["test"], told["metric"], told["scale"], like, has, lacks)
    wanted = {name: row["params"][name] for name in about.get("match", row["params"])}
    return _Figure(row["fullname"], about["stats_metric"], about["stats_scale"], wanted)


def beside(table: Table, run: Sequence[_Entry]) -> int:
    """Put what a run measured beside the rows that it repeats. Returns how many values were added."""
    count = 0
    for row in table.rows:
        figure = _figure_of(row.entry)
        for mine in run:
            if not _has(mine, figure):
                continue
            info = mine["extra_info"]
            value = info.get(figure.metric)
            is_number = isinstance(value, (int, float)) and isfinite(value)
            scaled = value * figure.scale if is_number else None
            doubts = [*map(str, info.get("doubts") or [])]
            bounds = find_bounds(info.get("expectations"), figure.metric)
            allowed = bounds.times(figure.scale) if bounds else None
            row.measured.append(
                Measured(str(info.get("provider")), scaled, doubts, bool(info.get("emulated")), allowed)
            )
            count += 1
    return count


def _has(mine: _Entry, figure: _Figure) -> bool:
    """Returns whether an entry is of this test function, in a checkout or a wheel, and of the right kind."""
    (my_file, my_test), (file, test) = map(_named, (mine["fullname"], figure.test))
    if not test:  # a suite's own table names the function alone
        (file, test) = my_file, figure.test
    if (my_file, my_test) != (file, test):
        return False
    info = mine["extra_info"]
    given = {**info, **(mine["params"] or {})}
    if any(given.get(name) != value for name, value in figure.like.items()):
        return False
    return all(name in info for name in figure.has) and not any(name in info for name in figure.lacks)


def _named(fullname: Any) -> tuple[tuple[str, ...], str]:
    """Returns the last two parts of a test's file, and its function: without parameters, and without a label."""
    file, _, test = str(fullname).partition("::")
    return PurePosixPath(file).parts[-2:], re.split(r"[\[#]", test, maxsplit=1)[0]
