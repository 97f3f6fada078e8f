"""The log an agent writes while it runs, and its merge into one Parquet file per experiment.

A killed agent loses at most what happened after its last flush (a quarter of a second). A full disk moves the log to
another place instead of losing a record, and a log whose file is removed or replaced is written again.

Log schema 3 has one JSON line (``schema``, ``agent``, ``experiment``; from another host, its name as ``host``), then
records as ``records.pack`` makes them, and the texts of their details. Schema 2 had no ``cpu_wait_ns``, schema 1 also
no details and no requests.

Parquet schema 5 has the fields of ``Op``, enumerations as text, the digest as hexadecimal text, and ``phase``, which is
``warm_up`` or ``measured``. Metrics are computed from the latter. Where agents were on other hosts, it has ``host``.
Schema 4 never had ``host``, schema 3 no ``cpu_wait_ns``, schema 2 also no phase, schema 1 neither ``detail`` nor
``requests``. All of them can be read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_cloudbench.judge.records import (
    BLOCK_RECORDS,
    FORMER_BYTES,
    KINDS,
    OUTCOMES,
    RECORD_BYTES,
    VERBS,
    OpTable,
    codes,
    is_operation,
    lateness_s,
    numbers,
    pack,
    pack_text,
    response_s,
    split_texts,
    upgrade_records,
    values,
)
from pytest_cloudbench.model import ErrorKind, Op, Outcome, ResultsError, Verb
from pytest_cloudbench.results import parquet
from pytest_cloudbench.results.log_file import LogFile
from pytest_cloudbench.results.machine import THIS_MACHINE
from pytest_cloudbench.support import opening, redact
from pytest_cloudbench.support.printable import printable

LOG_SCHEMA = 3
PARQUET_SCHEMA = 5

_FLUSH_S = 0.25
_PIECE_BYTES = 256 * 1024
"""The most that is sent at once: other messages of the agent wait meanwhile."""
_MAX_HEADER_BYTES = 1 << 20
"""The maximum length of the first line."""
_MAX_DETAILS = 250
"""How many different details a log keeps, so that a provider that numbers its errors does not fill the disk."""
_OTHER_DETAIL = f"(not kept: the agent had {_MAX_DETAILS} different ones before)"
_MAX_DETAIL_CHARACTERS = 200
_OBJECT_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The address of a Python object, which some libraries print. With it, no two messages would be equal."""
_MAX_EXAMINED_CHARACTERS = 8192
"""The maximum number of characters examined in a longer text."""
_TEXTS: Mapping[str, Sequence[Any]] = {"verb": VERBS, "outcome": OUTCOMES, "kind": KINDS}
_FIELDS = Op._fields
_NUMBERS = frozenset({"sensor", "seq", "agent", "scheduled_ns", "start_ns", "first_byte_ns", "end_ns", "size_bytes"})
"""Fields whose values are known for every record, so that their columns are written as they are read."""
_OK = Outcome.OK
_PHASE, _HOST = parquet.Column("phase", parquet.TEXT), parquet.Column("host", parquet.TEXT)
_WARM_UP, _MEASURED = "warm_up", "measured"


class RecordLog:
    """The log of an agent that runs an experiment, without the place that it is written to.

    ``record`` may be called from many threads. A thread writes what was recorded every quarter of a second.

    Args:
        header: the content of the first line.
        progress: called about four times a second, and at the end, with the number of records, of those throttled, of
            others that did not succeed, and of a sample since the last call: response times in seconds of operations
            that succeeded, and the greatest lateness (None if nothing was recorded).

    Attributes:
        samples: the largest number of response times that ``progress`` gets.
        notes: remarks about how it was written.
    """

    samples = 64

    def __init__(
        self, header: Mapping[str, Any],
        progress: Callable[[int, int, int, list[float], float | None], None] | None = None,
    ) -> None:  # fmt: skip
        self.notes = list[str]()
        self.count = self.throttled = self.failed = 0
        self._progress = progress
        self._pending: deque[bytes] = deque()
        self._details, self._texts, self._details_lock = dict[str, int](), [""], threading.Lock()
        self._closing = threading.Event()
        self._unwritten = bytearray(json.dumps({"schema": LOG_SCHEMA, **header}).encode() + b"\n")
        self._failure: ResultsError | None = None
        self._flusher = threading.Thread(target=self._flush_until_closed, name="oplog", daemon=True)

    def __enter__(self) -> Self:
        with contextlib.suppress(ResultsError):  # ``stop`` raises it, unless writing succeeds later
            self._flush()  # writes the header early, so that a log is known even after an early kill
        self._flusher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Write all records, after which no more may follow. The place stays open until the context ends.

        Raises ResultsError if they cannot be written.
        """
        if not self._closing.is_set():
            self._closing.set()
            self._flusher.join()
            self._flush_and_report()

    def record(self, op: Op) -> None:
        """Keep one finished operation. Raises ResultsError if records can no longer be written.

        Its detail is kept as one short line without secrets and control characters.
        """
        self._pending.append(pack(op, self._detail_number(op.detail) if op.detail else 0))
        self.count += 1  # a progress figure: a race between threads costs a count here, never a record
        if op.outcome is not _OK:
            self.throttled += op.outcome is Outcome.THROTTLED
            self.failed += op.outcome is not Outcome.THROTTLED
        if self._failure is not None:
            raise self._failure

    def _detail_number(self, detail: str) -> int:
        """Return the number of a detail's text, which is written before the first record that uses it."""
        detail = _OBJECT_ADDRESS.sub("", detail[:_MAX_EXAMINED_CHARACTERS])
        with self._details_lock:
            number = self._details.get(detail)
            if number is None:
                is_full = len(self._details) >= _MAX_DETAILS
                text = _OTHER_DETAIL if is_full else _format_detail(redact.clean(detail))
                if text not in self._texts:
                    self._texts.append(text)
                    self._pending.extend(pack_text(len(self._texts) - 1, text))
                number = self._texts.index(text)
                if not is_full:
                    self._details[detail] = number
        return number

    def _flush_until_closed(self) -> None:
        while not self._closing.wait(_FLUSH_S):
            try:
                self._flush_and_report()
                self._failure = None
            except ResultsError as error:  # ``record`` raises it, unless a later flush succeeds
                self._failure = error

    def _flush_and_report(self) -> None:
        """Write pending records, and report the progress, even if they cannot be written."""
        recent = self._sample_pending() if self._progress is not None else ([], None)
        try:
            self._flush()
        finally:
            if self._progress is not None:
                self._progress(self.count, self.throttled, self.failed, *recent)

    def _sample_pending(self) -> tuple[list[float], float | None]:
        """Return the response times and the greatest lateness of an even sample of the pending records.

        It is a sample so that a report of the progress costs the same at any rate.
        """
        count = len(self._pending)  # only this thread removes any
        records = [self._pending[index] for index in range(0, count, -(-count // self.samples) or 1)]
        times_s = [taken_s for record in records if (taken_s := response_s(record)) is not None]
        return times_s, max(map(lateness_s, filter(is_operation, records)), default=None)

    def _flush(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._unwritten += self._pending.popleft()
        self._write()

    def _write(self) -> None:
        """Write ``_unwritten``, and remove from it what was written. Raises ResultsError."""
        raise NotImplementedError


class SentLog(RecordLog):
    """A log that is sent to another host while it grows, for agents whose files the controller cannot read.

    Args:
        header, progress: of ``RecordLog``.
        send: takes the next piece of the log.
        offset_ns: is added to all known times, which are then times of the other host's clock.
    """

    def __init__(
        self, header: Mapping[str, Any], progress: Callable[[int, int, int, list[float], float | None], None] | None,
        send: Callable[[bytes], None], offset_ns: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(header, progress)
        self._send, self._offset_ns = send, offset_ns

    def record(self, op: Op) -> None:
        """Keep one finished operation, see ``RecordLog``."""
        offset_ns, first_byte_ns = self._offset_ns, op.first_byte_ns
        super().record(
            op._replace(
                scheduled_ns=op.scheduled_ns + offset_ns, start_ns=op.start_ns + offset_ns,
                end_ns=op.end_ns + offset_ns, first_byte_ns=first_byte_ns and first_byte_ns + offset_ns,
            )
        )  # fmt: skip

    def _write(self) -> None:
        while self._unwritten:
            self._send(bytes(self._unwritten[:_PIECE_BYTES]))
            del self._unwritten[:_PIECE_BYTES]


class OpLog(RecordLog):
    """A log in a file.

    Args:
        path: the file, whose folder is created.
        header, progress: of ``RecordLog``.
        moved: called with the new path when the log has to continue elsewhere.
    """

    def __init__(
        self, path: Path, header: Mapping[str, Any],
        progress: Callable[[int, int, int, list[float], float | None], None] | None = None,
        moved: Callable[[Path], None] = lambda path: None,
    ) -> None:  # fmt: skip
        super().__init__(header, progress)
        self._records = LogFile(path, moved)
        self.notes = self._records.notes

    @property
    def path(self) -> Path:
        """The file of the log, which may have moved."""
        return self._records.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
            if kind is None:
                self._records.restore()
        finally:
            self._records.close()

    def _write(self) -> None:
        self._records.write(self._unwritten)


def _format_detail(text: str) -> str:
    """Return a text for people: short, on one line, and without terminal control characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _MAX_DETAIL_CHARACTERS else f"{line[: _MAX_DETAIL_CHARACTERS - 3]}..."


def _operation_records(block: bytearray) -> bytearray:
    return split_texts(block)[0]


class _Log:
    """The records that a log holds now, read from the file block by block.

    Raises ResultsError for records that no version wrote.
    """

    def __init__(self, path: Path, schema: int, start_byte: int, size_bytes: int, host: str) -> None:
        self._path, self._start_byte = path, start_byte
        self.hosts: Mapping[int, str] = {}
        self._schema, self._record_bytes = schema, FORMER_BYTES.get(schema, RECORD_BYTES)
        self._record_count = (size_bytes - start_byte) // self._record_bytes
        self._count, texts, highest_detail = 0, dict[int, bytes](), 0
        for block in self._read_blocks():
            ops, pieces = split_texts(block)
            for number, piece in pieces:
                texts[number] = texts.get(number, b"") + piece
            if any(max(codes(ops, name), default=0) >= len(meanings) for name, meanings in _TEXTS.items()):
                raise ResultsError(f"{path}: holds records of an unknown form")
            highest_detail = max([highest_detail, *values(ops, "detail")])
            self._count += len(ops) // RECORD_BYTES
            if host and ops and not self.hosts:
                self.hosts = {values(ops[:RECORD_BYTES], "agent")[0]: host}
        if highest_detail > len(texts) or set(texts) != set(range(1, len(texts) + 1)):
            raise ResultsError(f"{path}: holds records of an unknown form")
        texts_in_order = (texts[number].decode(errors="replace") for number in range(1, len(texts) + 1))
        self.details = ("", *map(_format_detail, texts_in_order))

    def __len__(self) -> int:
        return self._count

    def blocks(self) -> Iterator[bytearray]:
        # A loop here, or a name for a block in ``_read_blocks``, would keep one block while the next is read.
        return filter(None, map(_operation_records, self._read_blocks()))

    def _read_blocks(self) -> Iterator[bytearray]:
        """Yield all records, including those of texts."""
        size_bytes = self._record_bytes
        convert = partial(upgrade_records, schema=self._schema) if self._schema in FORMER_BYTES else bytearray
        try:
            with self._path.open("rb") as file:
                file.seek(self._start_byte)
                for first in range(0, self._record_count, BLOCK_RECORDS):
                    length = min(BLOCK_RECORDS, self._record_count - first) * size_bytes
                    yield convert(file.read(length))
        except OSError as error:
            raise ResultsError(f"{self._path}: cannot be read: {error.strerror}") from error


def read_logs(paths: Iterable[Path]) -> OpTable:
    """Read the logs of all agents of a run as one table. See ``read_log``.

    If some are from other hosts, the others are from agents on ``THIS_MACHINE``.
    """
    logs = list(paths)
    host = THIS_MACHINE if any(map(_read_host, logs)) else ""
    return OpTable(*(read_log(path, host) for path in logs))


def _read_host(path: Path) -> str:
    """Return the host that a log names. Empty if it names none or cannot be read, which ``read_log`` reports."""
    with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError), path.open("rb") as file:
        return str(json.loads(file.readline(_MAX_HEADER_BYTES)).get("host") or "")
    return ""


def read_log(path: Path, host: str = "") -> OpTable:
    """Read a log, even if its writer was killed. A torn last record is omitted. ``host`` is for a log that names none.

    The records stay in the file, and are read whenever the table is read. Raises ResultsError if the file cannot be
    read, now or later, or if it is not an operation log of a known schema.
    """
    try:
        with path.open("rb") as file:
            header_line, size_bytes = file.readline(_MAX_HEADER_BYTES), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from error
    expected_start = b'{"schema": '
    if not header_line.endswith(b"\n") and expected_start.startswith(header_line[: len(expected_start)]):
        return OpTable()  # killed before the first line was complete
    try:
        header = json.loads(header_line)
        schema = header["schema"]
        host = str(header.get("host") or host)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ResultsError(f"{path}: is not an operation log") from error
    if schema != LOG_SCHEMA and schema not in FORMER_BYTES:
        raise ResultsError(f"{path}: has log schema {schema}; this version reads 1 to {LOG_SCHEMA}")
    return OpTable(_Log(path, schema, len(header_line), size_bytes, host))


def write_parquet(
    table: OpTable, path: Path, metadata: Mapping[str, str], measured_from_ns: int | None = None
) -> None:  # fmt: skip
    """Write all records of one experiment, and the file's metadata. Raises ResultsError.

    Operations that were due before ``measured_from_ns`` belong to the warm-up.
    """
    metadata = {"cloudbench_schema": str(PARQUET_SCHEMA), **metadata}
    columns = [*map(_column, _FIELDS), _PHASE, *([_HOST] if table.hosts else [])]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opening.write_whole(
            path, lambda file: parquet.write(file, columns, _row_groups(table, measured_from_ns), metadata)
        )
    except OSError as error:
        raise ResultsError(f"{path}: cannot write the records: {error.strerror or error}; free some space") from error


def _row_groups(table: OpTable, measured_from_ns: int | None) -> Iterator[list[Sequence[Any]]]:
    """Yield the fields of one row group of records at a time. It joins the short blocks that many agents' logs have."""
    has_hosts = bool(table.hosts)

    def group() -> list[Sequence[Any]]:
        fields = [numbers(pending, name) if name in _NUMBERS else table.values(pending, name) for name in _FIELDS]
        since_ns, hosts = measured_from_ns, [table.values(pending, "host")] if has_hosts else []
        if since_ns is None:
            return [*fields, [_MEASURED] * len(fields[0]), *hosts]
        phases = [_MEASURED if due_ns >= since_ns else _WARM_UP for due_ns in values(pending, "scheduled_ns")]
        return [*fields, phases, *hosts]

    pending = bytearray()
    for block in table.blocks():
        pending += block
        if len(pending) >= BLOCK_RECORDS * RECORD_BYTES:
            yield group()
            pending = bytearray()
    if pending:
        yield group()


def _column(name: str) -> parquet.Column:
    if name == "retry_after_s":
        return parquet.Column(name, parquet.DOUBLE, is_optional=True)
    if name == "digest":
        return parquet.Column(name, parquet.TEXT, text_of=bytes.hex)
    if name == "detail":
        return parquet.Column(name, parquet.TEXT)
    if name in ("requests", "cpu_wait_ns"):
        return parquet.Column(name, parquet.INT64, is_optional=True)
    if name in _TEXTS:
        return parquet.Column(name, parquet.TEXT, is_optional=name == "kind", text_of=_text_of)
    return parquet.Column(name, parquet.INT64)


def _text_of(value: Verb | Outcome | ErrorKind) -> str:
    return str(value.value)


def read_parquet(path: Path) -> OpTable:
    """Read a file that ``write_parquet`` wrote, of any schema so far, into memory. Raises ResultsError."""
    try:
        columns, metadata = parquet.read(path.read_bytes())
    except parquet.NotReadable as error:
        columns, metadata = _read_foreign(path, error)
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror or error}") from error
    schema = metadata.get("cloudbench_schema", "none")
    if schema not in map(str, range(1, PARQUET_SCHEMA + 1)):
        raise ResultsError(f"{path}: has records schema {schema}; this version reads 1 to {PARQUET_SCHEMA}")
    count = len(columns.get("verb", ()))
    if schema == "1":
        columns |= {"detail": [""] * count, "requests": [None] * count}
    if schema in ("1", "2", "3"):
        columns |= {"cpu_wait_ns": [None] * count}
    if missing := [name for name in _FIELDS if name not in columns]:
        raise ResultsError(f"{path}: has no column {missing[0]!r}; expected records of an experiment")
    try:
        columns["verb"] = [Verb(value) for value in columns["verb"]]
        columns["outcome"] = [Outcome(value) for value in columns["outcome"]]
        columns["kind"] = [None if value is None else ErrorKind(value) for value in columns["kind"]]
        columns["digest"] = [bytes.fromhex(value) for value in columns["digest"]]
        hosts = dict(zip(columns["agent"], columns["host"], strict=True)) if "host" in columns else {}
        return OpTable.of((Op(*row) for row in zip(*(columns[name] for name in _FIELDS), strict=True)), hosts)
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise ResultsError(f"{path}: cannot be read: {error}") from error


def read_measured(path: Path, names: Sequence[str]) -> Iterator[Mapping[str, Sequence[Any]]]:
    """Yield some columns of a file that ``write_parquet`` wrote, without the operations of the warm-up.

    They come a few thousand records at a time, enumerations as text. Raises ResultsError, now or on the way.
    """
    for block in _read_columns(path, [*names, _PHASE.name]):
        is_measured = [phase != _WARM_UP for phase in block[_PHASE.name]]
        yield {name: block[name] if all(is_measured) else [*compress(block[name], is_measured)] for name in names}


def _read_columns(path: Path, names: Sequence[str]) -> Iterator[Mapping[str, Sequence[Any]]]:
    """Yield some columns of a file. One that another program wrote is read as a whole (see ``read_parquet``)."""
    defaults = {_PHASE.name: _MEASURED}  # schemas 1 and 2 have no such column
    try:
        with path.open("rb") as file:
            yield from parquet.read_groups(file, names, defaults)
    except parquet.NotReadable as error:
        columns, _ = _read_foreign(path, error)
        count = len(next(iter(columns.values()), ()))
        columns = {name: [value] * count for name, value in defaults.items()} | columns
        if missing := [name for name in names if name not in columns]:
            raise ResultsError(f"{path}: has no column {missing[0]!r}; expected records of an experiment") from None
        yield {name: columns[name] for name in names}
    except (OSError, ValueError) as error:  # ValueError for a name that no file can have
        raise ResultsError(f"{path}: cannot be read: {opening.explain_error(error)}") from error


def _read_foreign(path: Path, reason: Exception) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Read a file that another program, or an early version of this one, wrote. This needs pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet as arrow
    except ImportError:
        raise ResultsError(f"{path}: cannot be read: {reason}; pyarrow may read it: pip install pyarrow") from reason
    try:
        table = arrow.read_table(path)
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        return table.to_pydict(), metadata
    except (OSError, ValueError, pyarrow.ArrowException) as error:  # ValueError for a text that is not UTF-8
        raise ResultsError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error
