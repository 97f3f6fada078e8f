"""The log an agent writes while it runs, and its merge into one Parquet file per experiment.

What may live here: the log's writer and reader, and the Parquet schema. A killed agent
loses at most what happened after its last flush (a quarter of a second). A full disk moves the log to
another place instead of losing a record, and a log whose file is removed or replaced is written again.

Log schema 3: one JSON line (``schema``, ``agent``, ``experiment``), then records as ``records.pack`` makes them, and
the texts of their details. Schema 2 had no ``cpu_wait_ns``, schema 1 also no details and no requests.
Parquet schema 4: the fields of ``Op``, enumerations as text, digest as hexadecimal text, and ``phase``: ``warm_up`` or
``measured``; metrics are of the latter. Schema 3 had no ``cpu_wait_ns``, schema 2 also no phase, schema 1 neither
``detail`` nor ``requests``. All are read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any

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
    pack,
    pack_text,
    parted,
    response_s,
    values,
    widened,
)
from pytest_cloudbench.model import ErrorKind, Op, Outcome, ResultsError, Verb
from pytest_cloudbench.results import parquet
from pytest_cloudbench.support import redact

LOG_SCHEMA = 3
PARQUET_SCHEMA = 4

_FLUSH_S = 0.25
_COPY_BYTES = 1024 * 1024
_HEAD_BYTES = 1 << 20
"""The maximum length of the first line."""
_MOST_DETAILS = 250
"""This many different details are kept in one log; a provider that numbers its errors must not fill the disk."""
_OTHER_DETAIL = f"(not kept: the agent had {_MOST_DETAILS} different ones before)"
_DETAIL_CHARACTERS = 200
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Of a Python object, which libraries show in their messages: no two would be equal."""
_LONGEST_DETAIL = 8192
"""The maximum number of characters examined in a longer text."""
_TEXTS: Mapping[str, Sequence[Any]] = {"verb": VERBS, "outcome": OUTCOMES, "kind": KINDS}
_FIELDS = Op.__slots__
_PHASE = parquet.Column("phase", parquet.TEXT)
_WARM_UP, _MEASURED = "warm_up", "measured"


class OpLog:
    """Writes records to a file while an experiment runs. ``record`` may be called from many threads.

    Args:
        path: the file; its folder is created.
        header: content of the first line.
        progress: called about four times a second, and at the end, with the number of records, of those throttled, of
            others that did not succeed, and of a sample since the last call: response times in seconds of operations
            that succeeded, and the greatest lateness (None if nothing was recorded).
        moved: called with the new path when the log has to continue elsewhere.

    Attributes:
        samples: the most response times that ``progress`` gets.
    """

    samples = 64

    def __init__(
        self, path: Path, header: Mapping[str, Any],
        progress: Callable[[int, int, int, list[float], float | None], None] | None = None,
        moved: Callable[[Path], None] = lambda path: None,
    ) -> None:  # fmt: skip
        self.path, self.notes = path, list[str]()
        self.count = self.throttled = self.failed = 0
        self._progress, self._on_move = progress, moved
        self._pending: deque[bytes] = deque()
        self._details, self._texts, self._details_lock = dict[str, int](), [""], threading.Lock()
        self._closing = threading.Event()
        self._unwritten = bytearray(json.dumps({"schema": LOG_SCHEMA, **header}).encode() + b"\n")
        self._failure: ResultsError | None = None
        self._moved = False
        self._file = self._open(path)
        self._flusher = threading.Thread(target=self._flush_until_closed, name="oplog", daemon=True)

    @staticmethod
    def _open(path: Path, mode: str = "ab") -> IO[bytes]:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open(f"{mode}+", buffering=0)
        except OSError as error:
            raise ResultsError(f"{path}: {error.strerror}; choose another place with --cloudbench-results") from error

    def __enter__(self) -> OpLog:
        with contextlib.suppress(ResultsError):  # whose log it is, should a kill come at once; tried again with records
            self._flush()
        self._flusher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
            if kind is None and self._is_taken_away():
                self._write_again()
        finally:
            self._file.close()

    def stop(self) -> None:
        """All records are written, and no more will follow; the file stays open until the context ends.

        Raises ResultsError when they cannot be written.
        """
        if not self._closing.is_set():
            self._closing.set()
            self._flusher.join()
            self._flush_and_tell()

    def record(self, op: Op) -> None:
        """Keep one finished operation. Raises ResultsError if records can no longer be written.

        Its detail is kept as one short line without secrets and control characters.
        """
        self._pending.append(pack(op, self._number(op.detail) if op.detail else 0))
        self.count += 1  # a progress figure: a race between threads costs a count here, never a record
        if op.outcome is Outcome.THROTTLED:
            self.throttled += 1
        elif op.outcome is not Outcome.OK:
            self.failed += 1
        if self._failure is not None:
            raise self._failure

    def _number(self, detail: str) -> int:
        """Returns the number of a detail's text, which is written before the first record that uses it."""
        detail = _ADDRESS.sub("", detail[:_LONGEST_DETAIL])
        with self._details_lock:
            number = self._details.get(detail)
            if number is None:
                is_full = len(self._details) >= _MOST_DETAILS
                text = _OTHER_DETAIL if is_full else _one_line(redact.clean(detail))
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
                self._flush_and_tell()
                self._failure = None
            except ResultsError as error:  # ends the run through ``record``; the last word is ``__exit__``'s
                self._failure = error

    def _flush_and_tell(self) -> None:
        """Write what is pending, and say how far the run is, even if it cannot be written."""
        recent = self._recent() if self._progress is not None else ([], None)
        try:
            self._flush()
        finally:
            if self._progress is not None:
                self._progress(self.count, self.throttled, self.failed, *recent)

    def _recent(self) -> tuple[list[float], float | None]:
        """Samples records waiting to be written, evenly: the cost is the same at any rate. See ``progress``."""
        count = len(self._pending)  # only this thread takes any away
        records = [self._pending[at] for at in range(0, count, -(-count // self.samples) or 1)]
        times_s = [taken_s for record in records if (taken_s := response_s(record)) is not None]
        return times_s, max(map(lateness_s, filter(is_operation, records)), default=None)

    def _flush(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._unwritten += self._pending.popleft()
        while self._unwritten:
            try:
                del self._unwritten[: self._file.write(self._unwritten)]
            except OSError as error:
                self._move(error.strerror or str(error))
        if self._is_taken_away():
            self._write_again()

    def _is_taken_away(self) -> bool:
        """Returns whether the file is no longer where it was opened: removed, moved away, or replaced by another."""
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # the path can no longer be read, but the open file can still be written
            return False

    def _write_again(self) -> None:
        """Write all records so far, which the open file still has, to a new file at the same place or elsewhere."""
        reason = "was removed, moved or replaced in mid-run"
        try:
            file = self._open(self.path, "xb")
        except ResultsError:
            self._move(reason)
            return
        try:
            self._copy_to(file)
        except OSError:
            file.close()
            self._move(reason)
            return
        self._go_on(file, self.path, f"{self.path}: {reason}; all records were written there again")

    def _move(self, reason: str) -> None:
        """Continue in the system's temporary folder with all records so far. Raises ResultsError if it is full too."""
        former = self.path
        if self._moved:
            raise ResultsError(f"{former}: {reason}; free some space and run again")
        try:
            number, name = tempfile.mkstemp(prefix=f"cloudbench-{os.getpid()}-", suffix=f"-{former.name}")
        except OSError as error:
            raise ResultsError(f"{former}: {reason}, and no other place: {error.strerror}") from error
        os.close(number)
        target = Path(name)
        file = self._open(target)
        try:
            self._copy_to(file)
        except OSError as error:
            file.close()
            target.unlink()
            raise ResultsError(f"{former}: {reason}, and {target}: {error.strerror}") from error
        self._moved = True
        self._go_on(file, target, f"{former}: {reason}; the records went on in {target}")
        self._on_move(target)

    def pieces(self) -> Iterator[bytes]:
        """Yields everything written, piece by piece, for a host that cannot read this file."""
        with self.path.open("rb") as file:
            while piece := file.read(_COPY_BYTES):
                yield piece

    def _copy_to(self, file: IO[bytes]) -> None:
        source = self._file.fileno()
        os.lseek(source, 0, os.SEEK_SET)  # what is appended goes to the end wherever this stands
        while piece := memoryview(os.read(source, _COPY_BYTES)):
            while piece:
                piece = piece[file.write(piece) :]

    def _go_on(self, file: IO[bytes], path: Path, note: str) -> None:
        self._file.close()
        self._file, self.path = file, path
        if note not in self.notes:
            self.notes.append(note)


def _one_line(text: str) -> str:
    """Returns a text for people: short, on one line, and without terminal control characters."""
    line = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in " ".join(text.split())
    )
    return line if len(line) <= _DETAIL_CHARACTERS else f"{line[: _DETAIL_CHARACTERS - 3]}..."


def _ops_of(block: bytearray) -> bytearray:
    return parted(block)[0]


class _Log:
    """The records that a log holds now, read from the file block by block.

    Raises ResultsError for records that no version wrote.
    """

    def __init__(self, path: Path, schema: int, start_byte: int, size_bytes: int) -> None:
        self._path, self._start_byte = path, start_byte
        self._schema, self._record_bytes = schema, FORMER_BYTES.get(schema, RECORD_BYTES)
        self._all = (size_bytes - start_byte) // self._record_bytes
        self._count, texts, most = 0, dict[int, bytes](), 0
        for block in self._raw():
            ops, pieces = parted(block)
            for number, piece in pieces:
                texts[number] = texts.get(number, b"") + piece
            if any(max(codes(ops, name), default=0) >= len(meanings) for name, meanings in _TEXTS.items()):
                raise ResultsError(f"{path}: holds records that no version has written")
            most = max([most, *values(ops, "detail")])
            self._count += len(ops) // RECORD_BYTES
        if most > len(texts) or set(texts) != set(range(1, len(texts) + 1)):
            raise ResultsError(f"{path}: holds records that no version has written")
        found = (texts[number].decode(errors="replace") for number in range(1, len(texts) + 1))
        self.details = ("", *map(_one_line, found))

    def __len__(self) -> int:
        return self._count

    def blocks(self) -> Iterator[bytearray]:
        # No loop here, and no name for a block in ``_raw``: that would keep one while the next is read.
        return filter(None, map(_ops_of, self._raw()))

    def _raw(self) -> Iterator[bytearray]:
        """All records, including those of texts."""
        size_bytes = self._record_bytes
        made = partial(widened, schema=self._schema) if self._schema in FORMER_BYTES else bytearray
        try:
            with self._path.open("rb") as file:
                file.seek(self._start_byte)
                for first in range(0, self._all, BLOCK_RECORDS):
                    length = min(BLOCK_RECORDS, self._all - first) * size_bytes
                    yield made(file.read(length))
        except OSError as error:
            raise ResultsError(f"{self._path}: cannot be read: {error.strerror}") from error


def read_log(path: Path) -> OpTable:
    """Read a log, even if its writer was killed: a torn last record is omitted.

    The records stay in the file, and are read whenever the table is read. Raises ResultsError, now or then, if
    the file cannot be read, and now if it is not an operation log of a known schema.
    """
    try:
        with path.open("rb") as file:
            head, size_bytes = file.readline(_HEAD_BYTES), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from error
    start = b'{"schema": '
    if not head.endswith(b"\n") and start.startswith(head[: len(start)]):
        return OpTable()  # killed before the first line was complete
    try:
        schema = json.loads(head)["schema"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ResultsError(f"{path}: is not an operation log") from error
    if schema != LOG_SCHEMA and schema not in FORMER_BYTES:
        raise ResultsError(f"{path}: has log schema {schema}; this version reads 1 to {LOG_SCHEMA}")
    return OpTable(_Log(path, schema, len(head), size_bytes))


def write_parquet(
    table: OpTable, path: Path, metadata: Mapping[str, str], measured_from_ns: int | None = None
) -> None:  # fmt: skip
    """Write all records of one experiment, and the file's metadata. Raises ResultsError.

    Operations that were due before ``measured_from_ns`` are of the warm-up.
    """
    metadata = {"cloudbench_schema": str(PARQUET_SCHEMA), **metadata}
    unfinished = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            parquet.write(file, [*map(_column, _FIELDS), _PHASE], _groups(table, measured_from_ns), metadata)
        os.replace(unfinished, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise ResultsError(f"{path}: cannot write the records: {error.strerror or error}; free some space") from error


def _groups(table: OpTable, measured_from_ns: int | None) -> Iterator[list[list[Any]]]:
    """Yields the fields of one row group of records at a time, since logs of fifty agents have shorter blocks."""

    def group() -> list[list[Any]]:
        fields = [table.values(waiting, name) for name in _FIELDS]
        since_ns = measured_from_ns
        if since_ns is None:
            return [*fields, [_MEASURED] * len(fields[0])]
        return [*fields, [_MEASURED if due_ns >= since_ns else _WARM_UP for due_ns in values(waiting, "scheduled_ns")]]

    waiting = bytearray()
    for block in table.blocks():
        waiting += block
        if len(waiting) >= BLOCK_RECORDS * RECORD_BYTES:
            yield group()
            waiting = bytearray()
    if waiting:
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
    """Read what ``write_parquet`` wrote, of any schema so far, into memory. Raises ResultsError."""
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
    if lacking := [name for name in _FIELDS if name not in columns]:
        raise ResultsError(f"{path}: has no column {lacking[0]!r}; expected records of an experiment")
    columns["verb"] = [Verb(value) for value in columns["verb"]]
    columns["outcome"] = [Outcome(value) for value in columns["outcome"]]
    columns["kind"] = [None if value is None else ErrorKind(value) for value in columns["kind"]]
    columns["digest"] = [bytes.fromhex(value) for value in columns["digest"]]
    return OpTable.of(Op(*row) for row in zip(*(columns[name] for name in _FIELDS), strict=True))


def read_columns(path: Path, names: Sequence[str]) -> Iterator[Mapping[str, Sequence[Any]]]:
    """Yields some columns of what ``write_parquet`` wrote, a few thousand records at a time, enumerations as text.

    A file that another program wrote is read as a whole (see ``read_parquet``). Raises ResultsError, now or on the way.
    """
    try:
        with path.open("rb") as file:
            yield from parquet.groups(file, names)
    except parquet.NotReadable as error:
        columns, _ = _read_foreign(path, error)
        if lacking := [name for name in names if name not in columns]:
            raise ResultsError(f"{path}: has no column {lacking[0]!r}; expected records of an experiment") from None
        yield {name: columns[name] for name in names}
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_foreign(path: Path, why: Exception) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Read a file that another program, or an early version of this one, wrote; this needs pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet as arrow
    except ImportError:
        raise ResultsError(f"{path}: cannot be read: {why}; pyarrow may read it: pip install pyarrow") from why
    try:
        content = arrow.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise ResultsError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error
    metadata = {key.decode(): value.decode() for key, value in (content.schema.metadata or {}).items()}
    return content.to_pydict(), metadata
