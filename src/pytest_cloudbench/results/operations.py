"""The operations of stored runs, as tables for SQL: records joined with the facts of their entries.

There are two tables, whose columns docs/reference/records.md documents. Paths in entries are not trusted: records are
looked up below the results folder only.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.results import stored
from pytest_cloudbench.results.entry_names import split_name
from pytest_cloudbench.results.index import EntryRow

if TYPE_CHECKING:
    import duckdb

_ENTRY_TEXTS = ("run", "entry", "test", "provider", "profile", "emulated", "test_outcome", "machine")
_OPTIONAL_COLUMNS = {
    "detail": "NULL::VARCHAR",
    "requests": "NULL::BIGINT",
    "cpu_wait_ns": "NULL::BIGINT",
    "phase": "'measured'",
    "host": "NULL::VARCHAR",
}
"""Columns that records of earlier schemas lack, and their substitutes."""

_OPS = """
CREATE VIEW ops AS
SELECT e.* EXCLUDE (file, start_wall_ms), w.side, w.block,
    o.verb, o.sensor, o.seq, o.agent, o.size_bytes, o.outcome, o.kind,
    {optional}, o.retry_after_s, o.digest,
    o.scheduled_ns, o.start_ns, nullif(o.first_byte_ns, 0) AS first_byte_ns, o.end_ns,
    (o.end_ns - o.scheduled_ns) / 1e9 AS response_s,
    (o.end_ns - o.start_ns) / 1e9 AS service_s,
    (o.start_ns - o.scheduled_ns) / 1e9 AS lateness_s,
    (nullif(o.first_byte_ns, 0) - o.start_ns) / 1e9 AS first_byte_s,
    make_timestamp_ns(w.offset_ns + o.scheduled_ns) AS scheduled_at,
    make_timestamp_ns(w.offset_ns + o.start_ns) AS started_at,
    make_timestamp_ns(w.offset_ns + o.end_ns) AS ended_at
FROM records o JOIN files e ON e.file = o.filename JOIN walls w ON w.file = o.filename
"""


@dataclass(frozen=True, slots=True)
class SqlAnswer:
    """The answer to a query: the names of its columns, and rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def find_records(entry: EntryRow, folders: Sequence[Path]) -> list[Path]:
    """Return the files with an entry's operations, from the first folder that has them. Raises ResultsError."""
    info = entry.info
    names = [info["ops_file"]] if "ops_file" in info else info.get("ops_files") or []
    return [_find_file(str(name), entry.fullname, folders) for name in names]


def _find_file(name: str, fullname: str, folders: Sequence[Path]) -> Path:
    for folder in folders:
        try:
            path = (folder / stored.records_path(name)).resolve()
            if path.is_relative_to(folder.resolve()) and path.is_file():
                return path
        except (OSError, ValueError):
            continue
    searched = ", ".join({folder.resolve(): str(folder) for folder in folders}.values())
    raise ResultsError(f"{name}: the operations of {fullname} are not in {searched}; give their folder with --records")


def run_query(sql: str, entries: Sequence[tuple[str, EntryRow, Sequence[Path]]], limit: int | None = None) -> SqlAnswer:
    """Run a query over the operations of entries, each with the name of its run and the files of its records.

    ``limit`` is the largest number of rows to return. Raises UsageError if the query is invalid.
    """
    import duckdb

    with duckdb.connect() as database:
        try:
            _create_tables(database, entries)
        except duckdb.Error as error:
            raise ResultsError(f"the records cannot be read: {_first_line(error)}") from error
        try:
            if not database.extract_statements(sql):
                raise UsageError("--sql: expected a query, such as: FROM ops LIMIT 5")
            result = database.execute(sql)
            rows = result.fetchall() if limit is None else result.fetchmany(limit)
            return SqlAnswer([column[0] for column in result.description or ()], rows)
        except duckdb.Error as error:
            raise UsageError(f"--sql: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _create_tables(
    database: duckdb.DuckDBPyConnection, entries: Sequence[tuple[str, EntryRow, Sequence[Path]]]
) -> None:
    """Create the tables that a query may use: entries, files and all their operations."""
    params = _drop_namesakes((name for _, entry, _ in entries for name in entry.params), ())
    numbers = _drop_namesakes(
        (name for _, entry, _ in entries for name, value in entry.info.items() if is_finite(value)),
        {"", *_ENTRY_TEXTS, *(f"param_{name}".casefold() for name in params)},
    )
    is_number = {name: all(_is_number(entry.params.get(name)) for _, entry, _ in entries) for name in params}
    common = [f"{name} VARCHAR" for name in _ENTRY_TEXTS]
    common += [f"{_quote_name(f'param_{name}')} {'DOUBLE' if is_number[name] else 'VARCHAR'}" for name in params]
    database.execute(
        f"CREATE TABLE entries ({', '.join([*common, *(f'{_quote_name(name)} DOUBLE' for name in numbers)])})"
    )
    database.execute(f"CREATE TABLE files ({', '.join(common)}, file VARCHAR, start_wall_ms BIGINT)")
    files = []
    for run, entry, paths in entries:
        texts = [*_entry_texts(run, entry), *(_param_value(entry.params.get(name), is_number[name]) for name in params)]
        values = (entry.info.get(name) for name in numbers)
        row = [*texts, *(value if is_finite(value) else None for value in values)]
        database.execute(f"INSERT INTO entries VALUES ({', '.join('?' * len(row))})", row)
        for path in paths:
            files.append(str(path))
            row = [*texts, str(path), stored.start_ms(entry.info)]
            database.execute(f"INSERT INTO files VALUES ({', '.join('?' * len(row))})", row)
    if not files:
        raise ResultsError("these runs have no operations: their entries name no records")
    file_list = ", ".join("'" + name.replace("'", "''") + "'" for name in dict.fromkeys(files))
    database.execute(
        f"CREATE VIEW records AS SELECT * FROM read_parquet([{file_list}], union_by_name=true, filename=true)"
    )
    present = {row[0] for row in database.execute("DESCRIBE records").fetchall()}
    optional = ", ".join(
        f"coalesce(o.{name}, {default}) AS {name}" if name in present else f"{default} AS {name}"
        for name, default in _OPTIONAL_COLUMNS.items()
    )
    _create_walls(database, file_list)
    database.execute(_OPS.format(optional=optional))


def _drop_namesakes(names: Iterable[str], taken: Collection[str]) -> list[str]:
    """Return names, each once, without those that SQL takes for an earlier one, or for a column that is ``taken``.

    SQL ignores case.
    """
    first_names: dict[str, str] = {}
    for name in names:
        first_names.setdefault(name.casefold(), name)
    return [name for folded, name in first_names.items() if folded not in taken]


def _create_walls(database: duckdb.DuckDBPyConnection, file_list: str) -> None:
    """Create a table with the offset from each file's times to the wall clock, and with its side and block.

    Records hold the start of the run on both clocks. Older ones do not, and then their first operation stands for it.
    Only records of two sides that were measured in turns have a side and a block.
    """
    database.execute(f"""
        CREATE TABLE walls AS
        WITH told AS (
            SELECT file_name AS file,
                max(CASE WHEN decode(key) = 'start_ns' THEN decode(value)::BIGINT END) AS start_ns,
                max(CASE WHEN decode(key) = 'start_wall_ms' THEN decode(value)::BIGINT END) AS wall_ms,
                max(CASE WHEN decode(key) = 'side' THEN decode(value) END) AS side,
                max(CASE WHEN decode(key) = 'block' THEN try_cast(decode(value) AS BIGINT) END) AS block
            FROM parquet_kv_metadata([{file_list}]) GROUP BY ALL
        ), first AS (SELECT filename AS file, min(scheduled_ns) AS first_ns FROM records GROUP BY ALL)
        SELECT DISTINCT f.file, coalesce(t.wall_ms, f.start_wall_ms) * 1000000 - coalesce(t.start_ns, s.first_ns)
            AS offset_ns, t.side, t.block
        FROM files f LEFT JOIN told t ON t.file = f.file LEFT JOIN first s ON s.file = f.file
    """)


def _entry_texts(run: str, entry: EntryRow) -> list[Any]:
    info: Mapping[str, Any] = entry.info
    emulated = "all" if info.get("emulated") is True else info.get("emulated") or "none"
    test = split_name(entry.fullname).test
    texts = [run, entry.fullname, test, info.get("provider"), info.get("profile"), emulated, info.get("outcome"),
             info.get("machine")]  # fmt: skip
    return [None if text is None else str(text) for text in texts]


def _is_number(value: Any) -> bool:
    return value is None or is_finite(value)


def _param_value(value: Any, is_number: bool) -> Any:
    return value if value is None or is_number or isinstance(value, str) else json.dumps(value)


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
