"""An index of all stored runs: what they measured, when, and of which commit, in one small Parquet file.

What may live here: keeping that file in step with the runs that pytest-benchmark has stored, and reading it. The runs
are the truth: the index may be deleted at any time, and is made again; files that change are read again. Writers at the
same time lose nothing, since each replaces the whole file, and what it did not see is read again.

Schema 4: a row for each entry of a run, in the order of their times. Columns: ``place`` and ``run`` (the entry's file
and its run, below the storage), ``fullname``, ``name``, ``params`` (JSON), ``time_ms`` (Unix epoch), ``commit``,
``branch``, ``is_dirty``, ``outcome``, ``gate`` (the regression gate's answer, and a word if the run was an outlier),
``schema``, ``doubts`` (JSON), ``missing_agents`` (JSON), ``fingerprint`` (JSON: what must be the same in runs that are
compared), ``facts`` (JSON: provider, emulated, published, profile), ``run_id``, ``records`` (JSON: ops_file or
ops_files), ``sides`` (JSON: what a comparison of two sides found, or whose block an entry is; empty for others), and
each number at the top level of any entry's extra_info, such as ``response_p50``, as a double.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_cloudbench.judge.baseline import (
    COMPARABLE,
    CONDITIONS,
    HAD_DOUBTFUL_TIMES,
    ONLY_AT_GATE,
    WAS_OUTLIER,
    faults,
    finite,
    unfit,
)
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.results import parquet, stored
from pytest_cloudbench.results.acceptance import Accepted, accepted
from pytest_cloudbench.results.points import Point, name_of
from pytest_cloudbench.support import opening

INDEX_NAME = "cloudbench-index.parquet"
"""The index of a storage, in it."""

_SCHEMA = "4"
_TEXTS = (
    "place", "run", "fullname", "name", "params", "commit", "branch", "outcome", "gate", "doubts", "missing_agents",
    "fingerprint", "facts", "run_id", "records", "sides",
)  # fmt: skip
_INTEGERS = ("time_ms", "is_dirty", "schema")
_FIXED = frozenset({*_TEXTS, *_INTEGERS})
_ENDINGS = ("schema", "outcome", "gate", "doubts", "missing_agents", "sides")
"""What the choice of baselines asks of an entry, whatever the metric."""
_ABOUT = ("provider", "emulated", "published", "profile")
_RECORDS = ("ops_file", "ops_files")
_GROUP_ROWS = 8192
_MOST_NUMBERS = 500
"""The most different names of numbers; metrics come first, so that a stranger's entry cannot crowd them out."""
_LONGEST_NAME = 100
_REWRITE_SHARE = 16
"""The file is written again when one sixteenth of its runs is new; until then they are read from their own files."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One stored run.

    Attributes:
        place: names the run: its file's path below the storage, or the folder of a recovered run's entries.
        name: the last part of ``place``, without ``.json``.
        time_ms: when its first entry started, or when it was stored; Unix epoch, milliseconds.
        commit, branch: of the code under test; empty if unknown. ``is_dirty``: it had been changed since.
        outcome: ``interrupted`` if any entry was; else ``failed`` if any test failed; else ``passed``; ``unknown`` if
            its version did not say.
        entries: how many.
        doubtful: how many of them had doubts.
        ops: operations in all entries; None if no entry says.
        emulated: ``all``, ``some`` or ``none`` of what was measured was emulated.
        providers: specs, in order.
        run_id: of the session, empty if unknown.
    """

    place: str
    name: str
    time_ms: int
    commit: str
    branch: str
    is_dirty: bool
    outcome: str
    entries: int
    doubtful: int
    ops: int | None
    emulated: str
    providers: tuple[str, ...]
    run_id: str


@dataclass(frozen=True, slots=True)
class SidesRow:
    """A comparison of two sides in one run, which is no measurement of either.

    Attributes:
        run: the run's ``place``.
        fullname: of the test.
        time_ms: when it started, Unix epoch, milliseconds.
        commit, branch: of the code under test; empty if unknown.
        found: the sides, and how far they are apart, as the entry has it but for the blocks; not to be trusted.
    """

    run: str
    fullname: str
    time_ms: int
    commit: str
    branch: str
    found: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EntryRow:
    """One entry of a run.

    Attributes:
        fullname, name, params: of the test, as pytest writes them; the fullname ends in what ``run`` was labelled.
        info: pytest-benchmark's extra_info as stored (``Index.entries``), or what the index holds of it
            (``Index.briefs``): its numbers, conditions, doubts, outcome, what it is about.
    """

    fullname: str
    name: str
    params: Mapping[str, Any]
    info: Mapping[str, Any]


@dataclass(slots=True)
class _New:
    """Rows that are not in the file, as columns."""

    fixed: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in (*_TEXTS, *_INTEGERS)})
    numbers: list[dict[str, float]] = field(default_factory=list)


class Index:
    """All runs below a storage. Make it with ``Index.open``.

    Attributes:
        storage: the folder.
        problems: a line for each file that was left out.
    """

    def __init__(self, storage: Path) -> None:
        self.storage, self.problems = storage, list[str]()
        self._data = b""
        self._stamps: dict[str, list[Any]] = {}
        self._kept: list[int] | None = None  # rows of the file that still hold
        self._new = _New()
        self._columns: dict[str, list[Any]] = {}
        self._order: list[int] | None = None  # of rows by time, None if they are
        self._rows_of: dict[str, dict[str, list[int]]] = {}
        self._accepted: list[Accepted] | None = None
        self._faults: list[tuple[str, ...]] = []

    @classmethod
    def open(cls, storage: Path) -> Index:
        """Returns the index of a storage as it is now: new and changed files are read, those that are gone left out.

        Raises ResultsError if the storage cannot be listed.
        """
        index = cls(storage)
        index._load()
        found = {file.place: file for file in stored.find(storage)}
        fresh = [file for place, file in found.items() if index._stamps.get(place, [])[:2] != _stamp(file)]
        gone = [place for place in index._stamps if place not in found]
        stale = {file.place for file in fresh}.union(gone)
        for place in gone:
            del index._stamps[place]
        if index._data and not stale.isdisjoint(index._column("place")):
            index._kept = [row for row, place in enumerate(index._column("place")) if place not in stale]
            index._columns.clear()
        for file in fresh:
            index._add(file)
        index.problems = sorted(f"{storage / place}: {stamp[2]}" for place, stamp in index._stamps.items() if stamp[2])
        index._columns.clear()
        index._sort()
        if stale and len(stale) * _REWRITE_SHARE >= len(found):
            index.write()
        return index

    def take(self, path: Path) -> RunRow:
        """Take in a run's file from elsewhere, until this object goes. Returns the run. Raises ResultsError."""
        whole = path.resolve()
        for run in self.runs():
            if whole == (self.storage / run.place).resolve():
                return run
        place = self._take(whole)
        return self._run(place, self._rows(place, "run"))

    def take_storage(self, storage: Path) -> None:
        """Take in all runs of another storage, until this object goes. Files without an experiment are left out."""
        for file in stored.find(storage):
            with contextlib.suppress(ResultsError):
                self._take(file.path.resolve())

    def _take(self, path: Path) -> str:
        """Take in a run's file from elsewhere. Returns the run's place. Raises ResultsError."""
        place = path.as_posix()
        commit, stored_ms, entries = stored.read(path)
        if not entries:
            raise ResultsError(f"{path}: has no entry of an experiment")
        status = path.stat()
        file = stored.RunFile(path, place, place, status.st_size, status.st_mtime_ns)
        try:
            self._append([self._row(file, commit, stored_ms, entry) for entry in entries])
        except (TypeError, ValueError, RecursionError) as error:
            raise ResultsError(f"{path}: cannot be read: {error}") from error
        for known in (self._columns, self._rows_of, self._faults):
            known.clear()
        self._order = None
        self._sort()
        return place

    def write(self) -> bool:
        """Write the file, so that other programs see every run in it. Returns whether that was possible."""
        try:
            opening.write_whole(self.storage / INDEX_NAME, self._write)
        except OSError:  # not writable: reading needs no file
            return False
        return True

    # --- reading ---

    def runs(self) -> list[RunRow]:
        """Returns all runs, the latest last."""
        found = [self._run(place, self._rows(place, "run")) for place in dict.fromkeys(self._column("run"))]
        return sorted(found, key=lambda run: (run.time_ms, run.place))

    def tests(self) -> list[str]:
        """Returns the full names of all entries that measured one side, in the order of their last runs."""
        named = zip(reversed(self._column("fullname")), reversed(self._column("sides")), strict=True)
        return list(dict.fromkeys(name for name, sides in named if not sides))

    def comparisons(self) -> list[SidesRow]:
        """Returns all comparisons of two sides, the latest last."""
        names = ("run", "fullname", "time_ms", "commit", "branch")
        columns = {name: self._column(name) for name in names}
        told = ((row, _parsed(sides)) for row, sides in enumerate(self._column("sides")) if sides)
        return [
            SidesRow(**{name: columns[name][row] for name in names}, found=each["versus"])
            for row, each in told if "versus" in each
        ]  # fmt: skip

    def has_number(self, name: str) -> bool:
        """Returns whether any entry has a number of that name."""
        return any(value is not None for value in self._numbers(name))

    def series(self, fullname: str, metric: str) -> list[Point]:
        """Returns a metric of a test in all runs that have such an entry, the latest last."""
        values = self._numbers(metric)
        run, time_ms, commit, branch, fingerprint = map(
            self._column, ("run", "time_ms", "commit", "branch", "fingerprint")
        )
        higher = metric in METRICS and METRICS[metric].better == "higher"
        found = []
        for row in self._plain(fullname):
            value = values[row]
            fit = self._unfit(row)
            newer = self._superseded(row) if fit in COMPARABLE else ""
            if not (fit or newer) and (value is None or value <= 0):
                fit = unfit({metric: value}, metric, higher)
            found.append(Point(run[row], time_ms[row], commit[row], branch[row], value, _parsed(fingerprint[row]),
                               fit or newer, bool(newer), self._faults[row]))  # fmt: skip
        return found

    def numbers(self, fullname: str, names: Iterable[str]) -> list[dict[str, Any]]:
        """Returns numbers of a test in all runs that have such an entry, as in ``series``; None if not known."""
        columns = {name: self._numbers(name) for name in names}
        return [{name: column[row] for name, column in columns.items()} for row in self._plain(fullname)]

    def entries(self, run: str) -> list[EntryRow]:
        """Returns the entries of a run as they are stored. ``run`` is its ``place``. Raises ResultsError."""
        found: list[EntryRow] = []
        for path in self.files(run):
            _, _, entries = stored.read(path)
            found += [EntryRow(each.fullname, each.name, each.params, each.info) for each in entries]
        return found

    def files(self, run: str) -> list[Path]:
        """Returns the files of a run. ``run`` is its ``place``."""
        return [
            self.storage / place
            for place in dict.fromkeys(self._column("place")[row] for row in self._rows(run, "run"))
        ]

    def briefs(self, run: str) -> list[EntryRow]:
        """Returns the entries of a run as far as the index holds them: quick, and without texts such as notes."""
        names, found = self._number_names(), []
        self._read([name for name in [*names, *_FIXED] if name not in self._columns])
        for row in self._rows(run, "run"):
            numbers = {name: value for name in names if (value := self._column(name)[row]) is not None}
            column = {name: self._column(name)[row] for name in _TEXTS}
            told = [_parsed(column[name]) for name in ("facts", "records", "fingerprint")]
            info = {**numbers, "run_id": column["run_id"], **told[0], **told[1], **told[2], **self._told(row)}
            found.append(EntryRow(column["fullname"], column["name"], _parsed(column["params"]), info))
        return found

    def find(self, text: str) -> RunRow:
        """Returns the run that a user names: ``last``, a number as in ``0012``, a name, a run's id, a path.

        The beginning of a name is enough. Raises UsageError if there is none, or several.
        """
        runs = self.runs()
        if text == "last" and runs:
            return runs[-1]
        exact = [run for run in runs if text in (run.place, run.name, f"{run.name}.json")]
        by_id = [run for run in runs if text and text == run.run_id]
        numbered = [
            run for run in runs if text.isdigit() and run.name.partition("_")[0].lstrip("0") == text.lstrip("0")
        ]
        begun = [run for run in runs if text and run.name.startswith(text)]
        with contextlib.suppress(OSError, ValueError):
            exact += [run for run in runs if Path(text).resolve() == (self.storage / run.place).resolve()]
        for found in (exact, by_id, numbered, begun):
            if len(found) == 1:
                return found[0]
            if found:
                places = ", ".join(run.place for run in found[:5])
                raise UsageError(f"run {text}: names {len(found)} runs ({places}); give more of the name")
        known = f"the last one is {runs[-1].name}" if runs else "there is no stored run at all"
        raise UsageError(f"run {text}: there is no such run in {self.storage}; {known}")

    def not_passed(self, run: str, tests: Collection[str]) -> list[tuple[str, str]]:
        """Returns which entries of a run did not pass, whatever the regression gate said, each with its outcome.

        ``run`` is its ``place``; ``tests`` are full names, none for all.
        """
        found, sides = [], self._column("sides")
        for row in (row for row in self._rows(run, "run") if not sides[row]):
            test, ending = self._column("fullname")[row], [self._column(name)[row] for name in _ENDINGS]
            has_passed = {*_faults(*ending)} - {HAD_DOUBTFUL_TIMES} == {ONLY_AT_GATE}
            outcome = "passed" if has_passed else _outcome_of([self._column("outcome")[row]])
            if outcome != "passed" and (not tests or test in tests):
                found.append((test, outcome))
        return found

    # --- what is in it ---

    def _unfit(self, row: int) -> str:
        """Returns why an entry may not be a baseline, whatever the metric and however old it is."""
        if not self._faults:
            told = zip(*map(self._column, _ENDINGS), strict=True)
            self._faults = [_faults(*each) for each in told]
        time_ms = self._column("time_ms")[row]
        is_accepted = any(each.time_ms <= time_ms <= each.until_ms for each in self._accepted_of(row))
        pardoned = (ONLY_AT_GATE, WAS_OUTLIER) if is_accepted else ()
        return next((why for why in self._faults[row] if why not in pardoned), "")

    def _superseded(self, row: int) -> str:
        """Returns why a run is too old: the user accepted a later one as the new baseline."""
        time_ms = self._column("time_ms")[row]
        newer = [each for each in self._accepted_of(row) if each.time_ms > time_ms]
        return f"was before {newer[-1].run}, which was accepted as the new baseline" if newer else ""

    def _accepted_of(self, row: int) -> list[Accepted]:
        """Returns the acceptances that are about an entry's test, the latest run last."""
        if self._accepted is None:
            self._accepted = accepted(self.storage)
        return [each for each in self._accepted if each.is_about(self._column("fullname")[row])]

    def _told(self, row: int) -> Mapping[str, Any]:
        return _entry_told(*(self._column(name)[row] for name in _ENDINGS))

    def _run(self, place: str, rows: Sequence[int]) -> RunRow:
        def of(name: str) -> list[Any]:
            column = self._column(name)
            return [column[row] for row in rows]

        about = [_parsed(text) for text in of("facts")]
        ops = [value for value in of("ops") if value is not None]
        return RunRow(
            place=place,
            name=name_of(place),
            time_ms=min(of("time_ms")),
            commit=of("commit")[0],
            branch=of("branch")[0],
            is_dirty=bool(of("is_dirty")[0]),
            outcome=_outcome_of(of("outcome")),
            entries=len(rows),
            doubtful=sum(doubts != "[]" for doubts in of("doubts")),
            ops=round(sum(ops)) if ops else None,
            emulated=_emulated_of([each.get("emulated") for each in about]),
            providers=tuple(dict.fromkeys(str(each["provider"]) for each in about if each.get("provider"))),
            run_id=of("run_id")[0],
        )

    def _plain(self, fullname: str) -> list[int]:
        """Returns the rows of a test that measured one side."""
        sides = self._column("sides")
        return [row for row in self._rows(fullname) if not sides[row]]

    def _rows(self, value: str, name: str = "fullname") -> list[int]:
        """Returns the rows that have a value in a column of texts."""
        if name not in self._rows_of:
            found = self._rows_of[name] = {}
            for row, each in enumerate(self._column(name)):
                found.setdefault(each, []).append(row)
        return self._rows_of[name].get(value, [])

    def _number_names(self) -> list[str]:
        """Returns the names of all columns of numbers."""
        old = parquet.names(self._data) if self._data else []
        found = dict.fromkeys([*old, *(name for each in self._new.numbers for name in each)])
        return [name for name in found if name not in _FIXED]

    def _numbers(self, name: str) -> list[Any]:
        return [None] * len(self._column("schema")) if name in _FIXED else self._column(name)

    def _column(self, name: str) -> list[Any]:
        """Returns a column: rows of the file that still hold and new ones, in the order of their times."""
        if name not in self._columns:
            try:
                self._read([name])
            except parquet.NotReadable:  # damaged where ``_load`` did not look
                with contextlib.suppress(OSError):
                    (self.storage / INDEX_NAME).unlink()
                vars(self).update(vars(Index.open(self.storage)))
                self._read([name])
        return self._columns[name]

    def _read(self, names: Sequence[str]) -> None:
        found = parquet.read(self._data, {*names, "schema"})[0] if self._data else {}
        count = len(found.get("schema", ()))
        for name in names:
            old = found.get(name, [None] * count)
            if self._kept is not None:
                old = [old[row] for row in self._kept]
            rows = old + (self._new.fixed[name] if name in _FIXED else [each.get(name) for each in self._new.numbers])
            self._columns[name] = rows if self._order is None else [rows[row] for row in self._order]

    def _sort(self) -> None:
        times, places = self._column("time_ms"), self._column("place")
        order = sorted(range(len(times)), key=lambda row: (times[row], places[row], row))
        self._order = None if order == list(range(len(order))) else order
        self._columns.clear()

    # --- from files, and to the file ---

    def _load(self) -> None:
        """Read the file, unless it is missing, damaged, or another version's: then it is made again."""
        try:
            data = (self.storage / INDEX_NAME).read_bytes()
            columns, metadata = parquet.read(data, {"place", "time_ms"})
            if metadata.get("cloudbench_index") != _SCHEMA or len(columns) != 2:
                return
            stamps = json.loads(metadata["files"])
            if all(isinstance(stamp, list) and len(stamp) == 3 for stamp in stamps.values()):
                self._stamps, self._data = stamps, data
        except (OSError, parquet.NotReadable, ValueError, LookupError, AttributeError, RecursionError):
            return

    def _add(self, file: stored.RunFile) -> None:
        try:
            commit, stored_ms, entries = stored.read(file.path)
            rows = [self._row(file, commit, stored_ms, entry) for entry in entries]
        except (ResultsError, TypeError, ValueError, RecursionError) as error:
            self._stamps[file.place] = [*_stamp(file), str(error).removeprefix(f"{file.path}: ")]
            return
        self._stamps[file.place] = [*_stamp(file), ""]
        self._append(rows)

    def _append(self, rows: Iterable[tuple[dict[str, Any], dict[str, float]]]) -> None:
        for fixed, numbers in rows:
            for name, column in self._new.fixed.items():
                column.append(fixed[name])
            self._new.numbers.append(numbers)

    @staticmethod
    def _row(
        file: stored.RunFile, commit: stored.Commit, stored_ms: int | None, entry: stored.StoredEntry
    ) -> tuple[dict[str, Any], dict[str, float]]:
        info, started_ms = entry.info, entry.info.get("start_wall_ms")
        is_known = isinstance(started_ms, int) and 0 < started_ms < 1 << 53
        fixed: dict[str, Any] = {
            "place": file.place,
            "run": file.run,
            "fullname": entry.fullname,
            "name": entry.name,
            "params": _json(entry.params),
            "time_ms": started_ms if is_known else stored_ms or file.mtime_ns // 1_000_000,
            "commit": commit.id,
            "branch": commit.branch,
            "is_dirty": int(commit.is_dirty),
            "outcome": str(info.get("outcome", "")),
            "gate": _answer(info.get("gate")),
            "schema": entry.schema,
            "doubts": _json(info.get("doubts", [])),
            "missing_agents": _json(info.get("missing_agents", {})),
            "fingerprint": _json({"schema": entry.schema, **{key: info.get(key) for key in CONDITIONS}}),
            "facts": _json({key: info[key] for key in _ABOUT if key in info}),
            "run_id": str(info.get("run_id", "")),
            "records": _json({key: info[key] for key in _RECORDS if key in info}),
            "sides": _json(sides) if (sides := stored.sides_of(info)) else "",
        }
        numbers = {
            name: float(value) for name, value in info.items()
            if finite(value) and len(name) <= _LONGEST_NAME and name not in fixed
        }  # fmt: skip
        return {name: _text(value) if name in _TEXTS else value for name, value in fixed.items()}, numbers

    def _write(self, file: Any) -> None:
        names = sorted(self._number_names(), key=lambda name: name not in METRICS)[:_MOST_NUMBERS]
        columns = [
            *(parquet.Column(name, parquet.TEXT) for name in _TEXTS),
            *(parquet.Column(name, parquet.INT64) for name in _INTEGERS),
            *(parquet.Column(name, parquet.DOUBLE, is_optional=True) for name in names),
        ]
        self._read([column.name for column in columns])
        values = [self._columns[column.name] for column in columns]
        starts = range(0, len(values[0]), _GROUP_ROWS)
        groups: Iterable[list[list[Any]]] = (
            [column[start : start + _GROUP_ROWS] for column in values] for start in starts
        )  # fmt: skip
        metadata = {"cloudbench_index": _SCHEMA, "files": json.dumps(self._stamps)}
        parquet.write(file, columns, groups, metadata)


def _stamp(file: stored.RunFile) -> list[Any]:
    return [file.size_bytes, file.mtime_ns]


def _text(value: str) -> str:
    """Returns a text that UTF-8 can hold: JSON can have half a character."""
    return value.encode("utf-8", "backslashreplace").decode()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


@cache
def _faults(schema: int, outcome: str, gate: str, doubts: str, missing: str, sides: str) -> tuple[str, ...]:
    return tuple(faults(_entry_told(schema, outcome, gate, doubts, missing, sides)))


def _entry_told(schema: int, outcome: str, gate: str, doubts: str, missing: str, sides: str) -> dict[str, Any]:
    """Returns what the choice of baselines asks of an entry."""
    gated = {"gate": {"answer": gate.partition(" ")[0], "quarantined": " " in gate}} if gate else {}
    return {
        "schema": schema, "outcome": outcome, **gated, "doubts": _parsed(doubts),
        "missing_agents": _parsed(missing), **(_parsed(sides) if sides else {}),
    }  # fmt: skip


def _answer(gate: Any) -> str:
    answer = gate.get("answer") if isinstance(gate, dict) else None
    return answer + " quarantined" * bool(gate.get("quarantined")) if isinstance(answer, str) else ""


@cache
def _parsed(text: str) -> Any:
    """Returns what JSON of the index says; many rows have the same."""
    found = json.loads(text)
    return MappingProxyType(found) if isinstance(found, dict) else found


def _outcome_of(outcomes: Sequence[str]) -> str:
    if any(outcome in ("interrupted", "unfinished") for outcome in outcomes):
        return "interrupted"
    if any(outcome in ("failed", "error") for outcome in outcomes):
        return "failed"
    return "passed" if all(outcomes) else "unknown"


def _emulated_of(found: Sequence[Any]) -> str:
    if all(each is True for each in found):
        return "all"
    return "some" if any(found) else "none"
