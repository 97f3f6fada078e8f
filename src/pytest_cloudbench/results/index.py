"""An index of all stored runs: what they measured, when, and at which commit, in one small Parquet file.

The index follows the runs that pytest-benchmark has stored. The runs are the truth: the index may be deleted at any
time, and is made again. Files that change are read again. Writers at the same time lose nothing, since each replaces
the whole file, and what it did not see is read again.

Its columns are those of ``cells``. Its metadata has the conclusions that the entries' suites declare, each as in the
latest entry that carries it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from pytest_cloudbench.judge.baseline import (
    COMPARABLE,
    HAD_DOUBTFUL_TIMES,
    ONLY_AT_GATE,
    WAS_OUTLIER,
    unfit_reason,
)
from pytest_cloudbench.judge.metrics import METRICS, declare_stored, is_answer, is_higher_better, number_key
from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.results import parquet, stored
from pytest_cloudbench.results.acceptance import Accepted, explain_superseded, read_acceptances
from pytest_cloudbench.results.cells import (
    CONDITION_COLUMNS,
    FIXED_COLUMNS,
    INTEGER_COLUMNS,
    SCHEMA,
    TEXT_COLUMNS,
    NewRows,
    combine_outcomes,
    decode_conditions,
    decode_json,
    describe_emulated,
    find_faults,
    make_row,
)
from pytest_cloudbench.results.points import Point, run_name
from pytest_cloudbench.results.suite import plain_conclusions, read_conclusions
from pytest_cloudbench.support import opening

INDEX_NAME = "cloudbench.index"
"""The index in a storage: a Parquet file, but no file of records, which readers of all ``*.parquet`` would read."""

_GROUP_ROWS = 8192
_MAX_NUMBERS = 500
"""The most columns of numbers. Metrics come first, so that a stranger's entry cannot crowd them out."""
_REWRITE_SHARE = 16
"""The file is rewritten when one sixteenth of its runs is new. Until then they are read from their own files."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One stored run.

    Attributes:
        place: its identity, which is its file's path below the storage, or the folder of a recovered run's entries.
        name: the last part of ``place``, without ``.json``.
        time_ms: when its first entry started, or when it was stored, Unix epoch, milliseconds.
        commit, branch: those of the code under test, or empty if unknown. ``is_dirty`` means it was changed since.
        outcome: ``interrupted`` if any entry was, else ``failed`` if any test failed, else ``passed``. ``unknown`` if
            its version did not store it.
        entries: the number of its entries.
        doubtful: how many of them had doubts.
        ops: the operations in all entries, or None if no entry has the number.
        emulated: whether ``all``, ``some`` or ``none`` of the measured providers were emulated.
        providers: their specs, in order.
        run_id: the id of the session, or empty if unknown.
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
    """A comparison of two sides in one run, which is not a measurement of either.

    Attributes:
        run: the run's ``place``.
        fullname: the full name of the test.
        time_ms: when it started, Unix epoch, milliseconds.
        commit, branch: those of the code under test, or empty if unknown.
        comparison: the sides and their differences, as in the entry, but without the blocks. Unchecked.
    """

    run: str
    fullname: str
    time_ms: int
    commit: str
    branch: str
    comparison: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EntryRow:
    """One entry of a run.

    Attributes:
        fullname, name, params: those of the test, as pytest writes them. The fullname ends in the label of ``run``.
        info: pytest-benchmark's extra_info as stored (``Index.entries``), or the part of it that the index holds
            (``Index.brief_entries``): its numbers, conditions, doubts, outcome and facts.
    """

    fullname: str
    name: str
    params: Mapping[str, Any]
    info: Mapping[str, Any]


class Index:
    """All runs below a storage. Make it with ``Index.open``.

    Conclusions that only its entries declare are metrics from then on.

    Attributes:
        storage: the folder.
        problems: a line for each file that was left out.
    """

    def __init__(self, storage: Path) -> None:
        self.storage, self.problems = storage, list[str]()
        self._data = b""
        self._stamps: dict[str, list[Any]] = {}
        self._conclusions: dict[str, dict[str, Any]] = {}  # plain, with the time of the entry that carries it
        self._valid_rows: list[int] | None = None  # rows of the file that are still valid
        self._new_rows = NewRows()
        self._columns: dict[str, list[Any]] = {}
        self._order: list[int] | None = None  # of rows by time, or None if they are in order
        self._row_lists: dict[str, dict[str, list[int]]] = {}
        self._acceptances: list[Accepted] | None = None
        self._row_faults: list[tuple[str, ...]] = []
        self._foreign_paths: list[Path] = []  # files of runs from elsewhere

    @classmethod
    def open(cls, storage: Path) -> Index:
        """Return the index of a storage as it is now. New and changed files are read, and removed ones are left out.

        Raises ResultsError if the storage cannot be listed.
        """
        index = cls(storage)
        index._load_file()
        index._read_changed_runs()
        return index

    def _read_changed_runs(self) -> None:
        """Read the runs that are new or changed since the file was written, and leave out removed ones."""
        files = {file.place: file for file in stored.find_run_files(self.storage)}
        changed = [file for place, file in files.items() if self._stamps.get(place, [])[:2] != _make_stamp(file)]
        removed = [place for place in self._stamps if place not in files]
        outdated = {file.place for file in changed}.union(removed)
        for place in removed:
            del self._stamps[place]
        if self._data and not outdated.isdisjoint(self._column("place")):
            self._valid_rows = [row for row, place in enumerate(self._column("place")) if place not in outdated]
            self._columns.clear()
        for file in changed:
            self._add_run_file(file)
        stamps = self._stamps.items()
        self.problems = sorted(f"{self.storage / place}: {stamp[2]}" for place, stamp in stamps if stamp[2])
        self._columns.clear()
        self._sort_by_time()
        if outdated and len(outdated) * _REWRITE_SHARE >= len(files):
            self.write()

    def _make_again(self) -> None:
        """Read all runs again, because the file is damaged where ``_load_file`` did not look."""
        again = Index(self.storage)
        again._read_changed_runs()
        for path in self._foreign_paths:
            again._add_foreign_file(path)
        vars(self).update(vars(again))

    def add_file(self, path: Path) -> RunRow:
        """Add a run's file from elsewhere, for the life of this object, and return the run. Raises ResultsError."""
        resolved = path.resolve()
        for run in self.runs():
            if resolved == (self.storage / run.place).resolve():
                return run
        place = self._add_foreign_file(resolved)
        return self._make_run_row(place, self._find_rows(place, "run"))

    def add_storage(self, storage: Path) -> None:
        """Add all runs of another storage, for the life of this object. Files without an experiment are left out."""
        for file in stored.find_run_files(storage):
            with contextlib.suppress(ResultsError):
                self._add_foreign_file(file.path.resolve())

    def _add_foreign_file(self, path: Path) -> str:
        """Add a run's file from elsewhere, and return the run's place. Raises ResultsError."""
        place = path.as_posix()
        commit, stored_ms, entries = stored.read_run(path)
        if not entries:
            raise ResultsError(f"{path}: has no entry of an experiment")
        status = path.stat()
        file = stored.RunFile(path, place, place, status.st_size, status.st_mtime_ns)
        try:
            self._append([make_row(file, commit, stored_ms, entry) for entry in entries], entries)
        except (TypeError, ValueError, RecursionError) as error:
            raise ResultsError(f"{path}: cannot be read: {error}") from error
        self._foreign_paths.append(path)
        for lookup in (self._columns, self._row_lists, self._row_faults):
            lookup.clear()
        self._order = None
        self._sort_by_time()
        return place

    def write(self) -> bool:
        """Write the file, so that other programs see every run in it, and return whether that was possible."""
        try:
            opening.write_whole(self.storage / INDEX_NAME, self._write_file)
        except OSError:  # not writable, but reading needs no file
            return False
        return True

    # --- reading ---

    def runs(self) -> list[RunRow]:
        """Return all runs, the latest last."""
        rows = [
            self._make_run_row(place, self._find_rows(place, "run")) for place in dict.fromkeys(self._column("run"))
        ]
        return sorted(rows, key=lambda run: (run.time_ms, run.place))

    def last_start_ms(self, bound_ms: int) -> int:
        """Return when the last entry until ``bound_ms`` started, or 0 if there is none.

        Both are Unix epoch, milliseconds.
        """
        return max((time_ms for time_ms in self._column("time_ms") if time_ms <= bound_ms), default=0)

    def tests(self) -> list[str]:
        """Return the full names of all entries that measured one side, in the order of their last runs."""
        pairs = zip(reversed(self._column("fullname")), reversed(self._column("sides")), strict=True)
        return list(dict.fromkeys(name for name, sides in pairs if not sides))

    def comparisons(self) -> list[SidesRow]:
        """Return all comparisons of two sides, the latest last."""
        names = ("run", "fullname", "time_ms", "commit", "branch")
        columns = {name: self._column(name) for name in names}
        sides_of_rows = ((row, decode_json(sides)) for row, sides in enumerate(self._column("sides")) if sides)
        return [
            SidesRow(**{name: columns[name][row] for name in names}, comparison=decoded["versus"])
            for row, decoded in sides_of_rows if "versus" in decoded
        ]  # fmt: skip

    def has_number(self, name: str) -> bool:
        """Return whether any entry has a number of that name."""
        return any(value is not None for value in self._numbers(number_key(name)))

    def find_parting_ms(self, former: str, later: str) -> float:
        """Return when the first run began that measured a test under its later name, and one under its former name.

        Since then these are two tests. Infinite if there is no such run.
        """
        runs = {point.run for point in self.series(later, "ops")}
        return min((point.time_ms for point in self.series(former, "ops") if point.run in runs), default=inf)

    def collect_runs(self, names: Sequence[str], numbers: Sequence[str]) -> list[tuple[Point, dict[str, Any]]]:
        """Return a test's entries under its name and its former names, each with numbers of these names.

        ``names`` begins with the present one. Entries under a former name end when another test has taken it.
        """
        present, runs = names[0], []
        for name in names:
            parted_ms = inf if name == present else self.find_parting_ms(name, present)
            rows = zip(self.series(name, "ops"), self.numbers(name, numbers), strict=True)
            runs += [(point, row) for point, row in rows if point.time_ms < parted_ms]
        return runs

    def series(self, fullname: str, metric: str) -> list[Point]:
        """Return a metric of a test in all runs that have such an entry, the latest last."""
        values = self._numbers(number_key(metric))
        run, time_ms, commit, branch, fingerprint, shown = map(
            self._column, ("run", "time_ms", "commit", "branch", "fingerprint", "columns")
        )
        needs_level = is_higher_better(metric) and not is_answer(metric)
        points = []
        for row in self._rows_of_test(fullname):
            has_other_unit = metric in self._names_in_other_units(row)
            value = None if has_other_unit else values[row]
            reason = self._explain_unfit(row)
            newer = self._explain_superseded(row) if reason in COMPARABLE else ""
            if not (reason or newer) and has_other_unit:
                reason = f"held {metric} in another unit"
            elif not (reason or newer) and (value is None or value <= 0):
                reason = unfit_reason({metric: value}, metric, needs_level)
            conditions = decode_json(fingerprint[row])
            points.append(Point(run[row], time_ms[row], commit[row], branch[row], value, conditions, reason or newer,
                                bool(newer), self._row_faults[row], self._is_accepted(row),
                                tuple(decode_json(shown[row])), self._begins_baseline(row)))  # fmt: skip
        return points

    def numbers(self, fullname: str, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return numbers of a test in all runs that have its entry, as in ``series``. Unknown ones are None."""
        columns = {name: self._numbers(name) for name in names}
        rows = []
        for row in self._rows_of_test(fullname):
            numbers = {name: column[row] for name, column in columns.items()}
            for name in self._names_in_other_units(row):
                numbers |= {key: None for key in (name, number_key(name)) if key in numbers}
            rows.append(numbers)
        return rows

    def entries(self, run: str) -> list[EntryRow]:
        """Return the entries of a run as they are stored. ``run`` is its ``place``. Raises ResultsError."""
        rows: list[EntryRow] = []
        for path in self.files(run):
            _, _, entries = stored.read_run(path)
            rows += [EntryRow(entry.fullname, entry.name, entry.params, entry.info) for entry in entries]
        return rows

    def files(self, run: str) -> list[Path]:
        """Return the files of a run. ``run`` is its ``place``."""
        return [
            self.storage / place
            for place in dict.fromkeys(self._column("place")[row] for row in self._find_rows(run, "run"))
        ]

    def brief_entries(self, run: str) -> list[EntryRow]:
        """Return the entries of a run without texts such as notes. It is quick, because the index holds all of this."""
        names, rows = self._number_names(), []
        self._read_columns([name for name in [*names, *FIXED_COLUMNS] if name not in self._columns])
        for row in self._find_rows(run, "run"):
            numbers = {name: value for name in names if (value := self._column(name)[row]) is not None}
            texts = {name: self._column(name)[row] for name in TEXT_COLUMNS}
            info: dict[str, Any] = {**numbers, "run_id": texts["run_id"]}
            for name in ("facts", "records", "fingerprint"):
                info |= decode_json(texts[name])
            info |= self._entry_conditions(row)
            rows.append(EntryRow(texts["fullname"], texts["name"], decode_json(texts["params"]), info))
        return rows

    def find(self, text: str) -> RunRow:
        """Return the run that a user names: ``last``, a number as in ``0012``, a name, a run's id, a path.

        The beginning of a name is enough. Raises UsageError if there is none, or several.
        """
        runs = self.runs()
        if text == "last" and runs:
            return runs[-1]
        by_name = [run for run in runs if text in (run.place, run.name, f"{run.name}.json")]
        by_id = [run for run in runs if text and text == run.run_id]
        by_number = [
            run for run in runs if text.isdigit() and run.name.partition("_")[0].lstrip("0") == text.lstrip("0")
        ]
        by_beginning = [run for run in runs if text and run.name.startswith(text)]
        with contextlib.suppress(OSError, ValueError):
            by_name += [run for run in runs if Path(text).resolve() == (self.storage / run.place).resolve()]
        for matches in ([*dict.fromkeys(by_name)], by_id, by_number, by_beginning):
            if len(matches) == 1:
                return matches[0]
            if matches:
                places = ", ".join(run.place for run in matches[:5])
                raise UsageError(f"run {text}: matches {len(matches)} runs ({places}); type more of the name")
        hint = f"the last one is {runs[-1].name}" if runs else "there is no stored run at all"
        raise UsageError(f"run {text}: there is no such run in {self.storage}; {hint}")

    def not_passed(self, run: str, tests: Collection[str]) -> list[tuple[str, str]]:
        """Return the entries of a run that did not pass, whatever the regression gate said, each with its outcome.

        ``run`` is its ``place``. ``tests`` are full names, or empty for all.
        """
        failed, sides = [], self._column("sides")
        for row in (row for row in self._find_rows(run, "run") if not sides[row]):
            test, conditions = self._column("fullname")[row], [self._column(name)[row] for name in CONDITION_COLUMNS]
            has_passed = {*find_faults(*conditions)} - {HAD_DOUBTFUL_TIMES} == {ONLY_AT_GATE}
            outcome = "passed" if has_passed else combine_outcomes([self._column("outcome")[row]])
            if outcome != "passed" and (not tests or test in tests):
                failed.append((test, outcome))
        return failed

    # --- rows and columns ---

    def _explain_unfit(self, row: int) -> str:
        """Return why an entry may not be a baseline, whatever the metric and its age, or an empty text."""
        if not self._row_faults:
            conditions = zip(*map(self._column, CONDITION_COLUMNS), strict=True)
            self._row_faults = [find_faults(*row_conditions) for row_conditions in conditions]
        pardoned = (ONLY_AT_GATE, WAS_OUTLIER) if self._is_accepted(row) else ()
        return next((fault for fault in self._row_faults[row] if fault not in pardoned), "")

    def _is_accepted(self, row: int) -> bool:
        """Return whether an entry was already stored when its run, or an earlier one, became the new baseline."""
        time_ms = self._column("time_ms")[row]
        return any(acceptance.time_ms <= time_ms <= acceptance.until_ms for acceptance in self._acceptances_of(row))

    def _begins_baseline(self, row: int) -> bool:
        """Return whether the user accepted the run of an entry itself, and not only one before it."""
        accepted_ms = [acceptance.time_ms for acceptance in self._acceptances_of(row)]
        if not accepted_ms:
            return False
        times = self._column("time_ms")
        return min(times[other] for other in self._find_rows(self._column("run")[row], "run")) in accepted_ms

    def _explain_superseded(self, row: int) -> str:
        """Return the reason if a run is too old because the user accepted a later one as the new baseline."""
        return explain_superseded(
            self._acceptances_of(row), [self._column("fullname")[row]], self._column("time_ms")[row]
        )

    def _acceptances_of(self, row: int) -> list[Accepted]:
        """Return the acceptances that are about an entry's test, the latest run last."""
        if self._acceptances is None:
            self._acceptances = read_acceptances(self.storage)
        return [acceptance for acceptance in self._acceptances if acceptance.covers(self._column("fullname")[row])]

    def _names_in_other_units(self, row: int) -> list[str]:
        """Return the metrics that had another unit when an entry was stored than they have now."""
        units = self._column("units")[row]
        return [
            name for name, unit in (decode_json(units) if units else {}).items()
            if name in METRICS and METRICS[name].unit != unit
        ]  # fmt: skip

    def _entry_conditions(self, row: int) -> Mapping[str, Any]:
        return decode_conditions(*(self._column(name)[row] for name in CONDITION_COLUMNS))

    def _make_run_row(self, place: str, rows: Sequence[int]) -> RunRow:
        def values_of(name: str) -> list[Any]:
            column = self._column(name)
            return [column[row] for row in rows]

        facts = [decode_json(text) for text in values_of("facts")]
        ops = [value for value in values_of("ops") if value is not None]
        return RunRow(
            place=place,
            name=run_name(place),
            time_ms=min(values_of("time_ms")),
            commit=values_of("commit")[0],
            branch=values_of("branch")[0],
            is_dirty=bool(values_of("is_dirty")[0]),
            outcome=combine_outcomes(values_of("outcome")),
            entries=len(rows),
            doubtful=sum(doubts != "[]" for doubts in values_of("doubts")),
            ops=round(sum(ops)) if ops else None,
            emulated=describe_emulated([fact.get("emulated") for fact in facts]),
            providers=tuple(dict.fromkeys(str(fact["provider"]) for fact in facts if fact.get("provider"))),
            run_id=values_of("run_id")[0],
        )

    def _rows_of_test(self, fullname: str) -> list[int]:
        """Return the rows of a test that measured one side."""
        sides = self._column("sides")
        return [row for row in self._find_rows(fullname) if not sides[row]]

    def _find_rows(self, value: str, name: str = "fullname") -> list[int]:
        """Return the rows that have a value in a column of texts."""
        if name not in self._row_lists:
            rows_by_value = dict[str, list[int]]()
            for row, row_value in enumerate(self._column(name)):
                rows_by_value.setdefault(row_value, []).append(row)
            self._row_lists[name] = rows_by_value
        return self._row_lists[name].get(value, [])

    def _number_names(self) -> list[str]:
        """Return the names of all columns of numbers."""
        stored_names = parquet.column_names(self._data) if self._data else []
        names = dict.fromkeys([*stored_names, *(name for numbers in self._new_rows.numbers for name in numbers)])
        return [name for name in names if name not in FIXED_COLUMNS]

    def _numbers(self, name: str) -> list[Any]:
        return [None] * len(self._column("schema")) if name in FIXED_COLUMNS else self._column(name)

    def _column(self, name: str) -> list[Any]:
        """Return a column in the order of times, with the valid rows of the file and the new rows."""
        if name not in self._columns:
            self._read_columns([name])
        return self._columns[name]

    def _read_columns(self, names: Sequence[str]) -> None:
        try:
            stored_columns = _read_stored_columns(self._data, {*names, "schema"}) if self._data else {}
        except parquet.NotReadable:
            self._make_again()
            stored_columns = {}
        count = len(stored_columns.get("schema", ()))
        for name in names:
            stored_values = stored_columns.get(name, [None] * count)
            if self._valid_rows is not None:
                stored_values = [stored_values[row] for row in self._valid_rows]
            rows = stored_values + (
                self._new_rows.fixed[name]
                if name in FIXED_COLUMNS
                else [numbers.get(name) for numbers in self._new_rows.numbers]
            )
            self._columns[name] = rows if self._order is None else [rows[row] for row in self._order]

    def _sort_by_time(self) -> None:
        times, places = self._column("time_ms"), self._column("place")
        order = sorted(range(len(times)), key=lambda row: (times[row], places[row], row))
        self._order = None if order == list(range(len(order))) else order
        self._columns.clear()

    # --- from files, and to the file ---

    def _load_file(self) -> None:
        """Read the file, unless it is missing, damaged, or another version's. Then it is made again."""
        try:
            data = (self.storage / INDEX_NAME).read_bytes()
            columns, metadata = parquet.read(data, {"place", "time_ms", "schema"})
            if metadata.get("cloudbench_index") != SCHEMA or len(columns) != 3:
                return
            stamps, conclusions = json.loads(metadata["files"]), json.loads(metadata["conclusions"])
            times_known = all(isinstance(row["time_ms"], int) for row in conclusions.values())
            if times_known and all(isinstance(stamp, list) and len(stamp) == 3 for stamp in stamps.values()):
                self._stamps, self._conclusions, self._data = stamps, conclusions, data
                declare_stored(read_conclusions({"conclusions": conclusions}))
        except (OSError, parquet.NotReadable, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return

    def _add_run_file(self, file: stored.RunFile) -> None:
        try:
            commit, stored_ms, entries = stored.read_run(file.path)
            rows = [make_row(file, commit, stored_ms, entry) for entry in entries]
        except (ResultsError, TypeError, ValueError, RecursionError) as error:
            # What the system refuses, such as one more open file, it may allow the next time: no file has this stamp.
            stamp = [-1, -1] if isinstance(error.__cause__, OSError) else _make_stamp(file)
            self._stamps[file.place] = [*stamp, str(error).removeprefix(f"{file.path}: ")]
            return
        self._stamps[file.place] = [*_make_stamp(file), ""]
        self._append(rows, entries)

    def _append(
        self, rows: Iterable[tuple[dict[str, Any], dict[str, float]]], entries: Iterable[stored.StoredEntry]
    ) -> None:
        for (fixed, numbers), entry in zip(rows, entries, strict=True):
            for name, column in self._new_rows.fixed.items():
                column.append(fixed[name])
            self._new_rows.numbers.append(numbers)
            time_ms, carried = fixed["time_ms"], read_conclusions(entry.info.get("suite"))
            for name, row in plain_conclusions(carried).items():
                if time_ms >= self._conclusions.get(name, {"time_ms": time_ms})["time_ms"]:
                    self._conclusions[name] = {**row, "time_ms": time_ms}
                    declare_stored({name: carried[name]})

    def _write_file(self, file: Any) -> None:
        names = sorted(self._number_names(), key=lambda name: name not in METRICS)[:_MAX_NUMBERS]
        columns = [
            *(parquet.Column(name, parquet.TEXT) for name in TEXT_COLUMNS),
            *(parquet.Column(name, parquet.INT64) for name in INTEGER_COLUMNS),
            *(parquet.Column(name, parquet.DOUBLE, is_optional=True) for name in names),
        ]
        self._read_columns([column.name for column in columns])
        values = [self._columns[column.name] for column in columns]
        starts = range(0, len(values[0]), _GROUP_ROWS)
        groups: Iterable[list[list[Any]]] = (
            [column[start : start + _GROUP_ROWS] for column in values] for start in starts
        )  # fmt: skip
        metadata = {
            "cloudbench_index": SCHEMA, "files": json.dumps(self._stamps), "conclusions": json.dumps(self._conclusions)
        }  # fmt: skip
        parquet.write(file, columns, groups, metadata)


def _read_stored_columns(data: bytes, names: set[str]) -> Mapping[str, list[Any]]:
    """Return columns of the file. Raises NotReadable, also if a column lacks cells that every row has."""
    columns, _ = parquet.read(data, names)
    for name in names & FIXED_COLUMNS:
        if None in columns.get(name, [None]):
            raise parquet.NotReadable(f"the column {name} is incomplete")
    return columns


def _make_stamp(file: stored.RunFile) -> list[Any]:
    return [file.size_bytes, file.mtime_ns]
