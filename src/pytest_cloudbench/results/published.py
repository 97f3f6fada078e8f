"""The papers' tables that ship with the package, and the values of a stored run that correspond to them.

What may live here: reading ``published/*.json`` (made by tools/make_published.py) and pytest-benchmark's files of runs,
and telling which entry repeats which row. ``report/published`` shows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_cloudbench.model import UsageError

__all__ = ["Measured", "Row", "Table", "beside", "load", "names", "read_run"]

_PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = (_PACKAGE / "data" / "published", _PACKAGE.parents[1] / "results" / "published")
"""In a wheel, and in a checkout."""

_Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run measured for a row, in the table's unit. None: not known."""

    provider: str
    value: float | None
    doubts: Sequence[str] = ()
    is_emulated: bool = False


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
    """Returns the names of all tables."""
    return sorted(path.stem for path in _folder().glob("*.json"))


def load(name: str) -> Table:
    """Returns a table by its name. Raises UsageError that lists the known names."""
    if name not in names():
        raise UsageError(f"published {name}: there is no such table; there are: {', '.join(names())}")
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


def beside(table: Table, run: Sequence[_Entry]) -> int:
    """Put what a run measured beside the rows that it repeats. Returns how many values were added."""
    count = 0
    for row in table.rows:
        about = row.entry["extra_info"]
        for mine in run:
            if not _is_same_row(mine, row.entry):
                continue
            info = mine["extra_info"]
            value = info.get(about["stats_metric"])
            is_number = isinstance(value, (int, float)) and isfinite(value)
            scaled = value * about["stats_scale"] if is_number else None
            doubts = [*map(str, info.get("doubts") or [])]
            row.measured.append(Measured(str(info.get("provider")), scaled, doubts, bool(info.get("emulated"))))
            count += 1
    return count


def _is_same_row(mine: _Entry, theirs: _Entry) -> bool:
    """Returns whether two entries have the same test function, in a checkout or a wheel, and the same parameters."""
    (my_file, _, my_test), (file, _, test) = (str(each["fullname"]).partition("::") for each in (mine, theirs))
    if PurePosixPath(my_file).parts[-2:] != PurePosixPath(file).parts[-2:]:
        return False
    if my_test.partition("[")[0] != test.partition("[")[0]:
        return False
    given = mine["params"] or {}
    wanted = theirs["extra_info"].get("match", theirs["params"])
    return all(given.get(name) == theirs["params"][name] for name in wanted)
