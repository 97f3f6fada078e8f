"""The log an agent writes while it runs, and its merge into one Parquet file per experiment.

What may live here: the log's writer and reader, and the Parquet schema. A killed agent
loses at most what happened after its last flush (a quarter of a second). A full disk moves the log to
another place instead of losing a record, and a log whose file is taken away is written again.

Log schema 1: one JSON line (``schema``, ``agent``, ``experiment``), then records as ``records.pack`` makes them.
Parquet schema 1: the fields of ``Op``, enumerations as text, digest as hexadecimal text.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from pytest_cloudbench.model import ErrorKind, Op, Outcome, ResultsError, Verb
from pytest_cloudbench.records import (
    BLOCK_RECORDS,
    KINDS,
    OUTCOMES,
    RECORD_BYTES,
    VERBS,
    OpTable,
    codes,
    pack,
    response_s,
    values,
)
from pytest_cloudbench.results import parquet

__all__ = ["LOG_SCHEMA", "PARQUET_SCHEMA", "OpLog", "read_log", "read_parquet", "write_parquet"]

LOG_SCHEMA = 1
PARQUET_SCHEMA = 1

_FLUSH_S = 0.25
_COPY_BYTES = 1024 * 1024
_HEAD_BYTES = 1 << 20
"""The first line is never longer."""
_TEXTS: Mapping[str, Sequence[Any]] = {"verb": VERBS, "outcome": OUTCOMES, "kind": KINDS}
_FIELDS = Op.__slots__


class OpLog:
    """Writes records to a file while an experiment runs. ``record`` may be called from many threads.

    Args:
        path: the file; its folder is created.
        header: facts for the first line.
        progress: called about four times a second with the number of records, of those throttled, of others that did
            not succeed, and response times in seconds: those of a sample of the operations that succeeded since the
            last call.
        moved: called with the new place when the log has to go on elsewhere.

    Attributes:
        samples: how many response times ``progress`` gets at most.
    """

    samples = 64

    def __init__(
        self, path: Path, header: Mapping[str, Any],
        progress: Callable[[int, int, int, list[float]], None] | None = None,
        moved: Callable[[Path], None] = lambda path: None,
    ) -> None:  # fmt: skip
        self.path, self.notes = path, list[str]()
        self.count = self.throttled = self.failed = 0
        self._progress, self._on_move = progress, moved
        self._pending: deque[bytes] = deque()
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
        """All records are written, and no more will come; the file stays open until the context is left.

        Raises ResultsError when they cannot be written.
        """
        if not self._closing.is_set():
            self._closing.set()
            self._flusher.join()
            self._flush()

    def record(self, op: Op) -> None:
        """Keep one finished operation. Raises ResultsError when records cannot be written any more."""
        self._pending.append(pack(op))
        self.count += 1  # a progress figure: a race between threads costs a count here, never a record
        if op.outcome is Outcome.THROTTLED:
            self.throttled += 1
        elif op.outcome is not Outcome.OK:
            self.failed += 1
        if self._failure is not None:
            raise self._failure

    def _flush_until_closed(self) -> None:
        while not self._closing.wait(_FLUSH_S):
            recent_s = self._recent_s() if self._progress is not None else []
            try:
                self._flush()
                self._failure = None
            except ResultsError as error:  # ends the run through ``record``; the last word is ``__exit__``'s
                self._failure = error
            if self._progress is not None:
                self._progress(self.count, self.throttled, self.failed, recent_s)

    def _recent_s(self) -> list[float]:
        """Response times of what waits to be written, evenly sampled: a look costs the same at any rate."""
        count = len(self._pending)  # only this thread takes any away
        records = (self._pending[at] for at in range(0, count, -(-count // self.samples) or 1))
        return [taken_s for record in records if (taken_s := response_s(record)) is not None]

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
        """Whether the file is not where it was opened: removed, or moved away, or another one is in its place."""
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # nobody may look there any more: what is open can be written all the same
            return False

    def _write_again(self) -> None:
        """Write all records so far to a new file at the same place, or elsewhere. The one that is open has them."""
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
        """Go on in the system's temporary folder with all records so far. Raises ResultsError if that is full too."""
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
        """All that is written, some of it at a time: for where this file cannot be read."""
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


class _Log:
    """The records of a log, read from the file block by block; those that it holds now."""

    def __init__(self, path: Path, start_byte: int, count: int) -> None:
        self._path, self._start_byte, self._count = path, start_byte, count

    def __len__(self) -> int:
        return self._count

    def blocks(self) -> Iterator[bytearray]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._start_byte)
                for first in range(0, self._count, BLOCK_RECORDS):
                    yield bytearray(file.read(min(BLOCK_RECORDS, self._count - first) * RECORD_BYTES))
        except OSError as error:
            raise ResultsError(f"{self._path}: cannot be read: {error.strerror}") from error


def read_log(path: Path) -> OpTable:
    """Read a log, also one whose writer was killed: a torn last record is left out.

    The records stay in the file, and are read from it whenever the table is. Raises ResultsError, now or then, when
    it cannot be read, and now when it is not an operation log of a known schema.
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
    if schema != LOG_SCHEMA:
        raise ResultsError(f"{path}: has log schema {schema}; this version reads {LOG_SCHEMA}")
    table = OpTable(_Log(path, len(head), (size_bytes - len(head)) // RECORD_BYTES))
    for block in table.blocks():
        if any(max(codes(block, name)) >= len(meanings) for name, meanings in _TEXTS.items()):
            raise ResultsError(f"{path}: holds records that no version has written")
    return table


def write_parquet(table: OpTable, path: Path, facts: Mapping[str, str]) -> None:
    """Write all records of one experiment; ``facts`` become the file's metadata. Raises ResultsError."""
    metadata = {"cloudbench_schema": str(PARQUET_SCHEMA), **facts}
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            parquet.write(file, [_column(name) for name in _FIELDS], _groups(table), metadata)
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise ResultsError(f"{path}: cannot write the records: {error.strerror or error}; free some space") from error


def _groups(table: OpTable) -> Iterator[list[list[Any]]]:
    """The fields of so many records at a time as make a group of rows; logs of fifty agents have shorter blocks."""
    waiting = bytearray()
    for block in table.blocks():
        waiting += block
        if len(waiting) >= BLOCK_RECORDS * RECORD_BYTES:
            yield [values(waiting, name) for name in _FIELDS]
            waiting = bytearray()
    if waiting:
        yield [values(waiting, name) for name in _FIELDS]


def _column(name: str) -> parquet.Column:
    if name == "retry_after_s":
        return parquet.Column(name, parquet.DOUBLE, is_optional=True)
    if name == "digest":
        return parquet.Column(name, parquet.TEXT, text_of=bytes.hex)
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
    if schema != str(PARQUET_SCHEMA):
        raise ResultsError(f"{path}: has records schema {schema}; this version reads {PARQUET_SCHEMA}")
    columns["verb"] = [Verb(value) for value in columns["verb"]]
    columns["outcome"] = [Outcome(value) for value in columns["outcome"]]
    columns["kind"] = [None if value is None else ErrorKind(value) for value in columns["kind"]]
    columns["digest"] = [bytes.fromhex(value) for value in columns["digest"]]
    return OpTable.of(Op(*row) for row in zip(*(columns[name] for name in _FIELDS), strict=True))


def _read_foreign(path: Path, why: Exception) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Read a file that another program has written, or an early version of this one, where pyarrow is installed."""
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
