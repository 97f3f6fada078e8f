"""The state of a long series on disk. A stop of any kind loses at most the round that was running.

Each series has a file of JSON lines, which the controller writes. A file is made under a temporary name. A line is one
write, then fsync, so that only the last can be torn. Only one process has a file open.

Schema 1 has a header (``schema``, ``key``, ``setup``, ``plan``), then lines with ``session`` (a process continued it),
``conditions`` (of the rounds after it in this session), ``round`` (numbered from 0, with ``ended_s``) or ``end`` (its
entry was made). Times are seconds of the Unix epoch.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, count
from math import inf
from pathlib import Path
from typing import IO, Any

from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.support import opening

SCHEMA = 1
_SUFFIX = ".jsonl"
_NO_CONDITIONS = "{}"

_Line = dict[str, Any]


class SeriesFile:
    """An open series.

    Attributes:
        path: the file.
        header: its first line.
        rounds: how many rounds are done.
        rounds_under: how many of them were done under which conditions, as JSON. Older versions recorded none.
        observed_s: how long sessions before this one ran until the end of their last round.
        is_finished: whether its entry has been made.
        was_torn: whether a torn last line was cut off.
    """

    def __init__(self, path: Path) -> None:
        """Open and check a series. Raises ResultsError for one of another schema, a damaged one, or one in use."""
        self.path, self.rounds, self.observed_s = path, 0, 0.0
        self.rounds_under, self._conditions = Counter[str](), _NO_CONDITIONS
        self.is_finished = self.was_torn = False
        try:
            self._file: IO[bytes] = path.open("r+b")
        except OSError as error:
            raise ResultsError(f"{path}: expected the state file of a series ({error.strerror})") from error
        try:
            self._lock()
            self.header = _parse_header(path, self._file.readline())
            self._count_lines()
        except BaseException:
            self._file.close()
            raise

    def add(self, line: Mapping[str, Any]) -> None:
        """Write a line so that it survives a power loss. Raises ResultsError."""
        try:
            self._file.seek(0, os.SEEK_END)
            self._file.write(_encode_line(line))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ResultsError(f"{self.path}: cannot write the state of the series: {error.strerror}") from error
        self._note(line)

    def note_conditions(self, conditions: Mapping[str, Any]) -> None:
        """Write the conditions of the rounds that follow, unless they are the same as before. Raises ResultsError."""
        if _encode_conditions(conditions) != self._conditions:
            self.add({"conditions": conditions})

    def read_page(self, offset: int, max_lines: int) -> tuple[list[_Line], int]:
        """Return lines from a byte offset (0: the first after the header), and the offset of the next ones, or 0."""
        self._file.seek(offset)
        if not offset:
            self._file.readline()
        read_lines: list[_Line] = []
        while len(read_lines) < max_lines and (raw := self._file.readline()):
            read_lines.append(json.loads(raw))
        return read_lines, self._file.tell() if len(read_lines) == max_lines else 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows has no such locks, so there the user must not use one series in two sessions
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResultsError(f"{self.path}: another run is using this series now") from error

    def _count_lines(self) -> None:
        """Read and count all lines, and cut off a torn last one."""
        session_start_s = last_end_s = 0.0
        while True:
            offset = self._file.tell()
            raw = self._file.readline()
            if not raw:
                break
            line = _decode_line(raw)
            if line is None:
                if self._file.read(1):
                    raise ResultsError(f"{self.path}: damaged at byte {offset}: {raw[:40]!r}; start a new series")
                self._file.truncate(offset)
                self.was_torn = True
                break
            try:
                if "session" in line:
                    self.observed_s += max(0.0, last_end_s - session_start_s)  # a clock may have been set back
                    session_start_s = last_end_s = read_time(line["session"]["at_s"])
                elif "round" in line:
                    if line["round"] != self.rounds:
                        raise ResultsError(f"{self.path}: expected round {self.rounds}, found {line['round']!r}")
                    last_end_s = read_time(line["ended_s"])
                self._note(line)
                self.is_finished = "end" in line
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise ResultsError(f"{self.path}: damaged at byte {offset}: {error}; start a new series") from error
        self.observed_s += max(0.0, last_end_s - session_start_s)

    def _note(self, line: Mapping[str, Any]) -> None:
        """Count a line that is a round, under the conditions of its session."""
        if "session" in line:
            self._conditions = _NO_CONDITIONS
        elif "conditions" in line:
            self._conditions = _encode_conditions(line["conditions"])
        elif "round" in line:
            self.rounds += 1
            self.rounds_under[self._conditions] += 1


def create_series(path: Path, header: Mapping[str, Any]) -> SeriesFile:
    """Create a series. A number is appended to the name of a file that exists. Raises ResultsError."""
    path = _find_free_path(path)
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(_encode_line({"schema": SCHEMA, **header}))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        with contextlib.suppress(OSError):
            opening.sync_names(path.parent)
    except OSError as error:
        raise ResultsError(f"{path}: cannot begin a series: {error.strerror}") from error
    return SeriesFile(path)


def _find_free_path(path: Path) -> Path:
    """Return ``path``, or the first numbered one beside it that no series of the same session has."""
    names = (f"{path.stem}-{number}{path.suffix}" for number in count(2))
    return next(free for free in chain([path], map(path.with_name, names)) if not free.exists())


def resume_series(path: Path, key: Mapping[str, Any], setup: Mapping[str, Any]) -> SeriesFile:
    """Resume a series. Raises ResultsError if it has another test, provider or set-up, or cannot be read."""
    series = SeriesFile(path)
    for name, expected in (("key", key), ("setup", setup)):
        actual = series.header.get(name)
        if actual != expected:
            series.close()
            differences = "; ".join(_list_differences(actual if isinstance(actual, dict) else {}, expected))
            raise ResultsError(f"{path}: belongs to another series: {differences}")
    return series


def read_lines(path: Path) -> Iterator[_Line]:
    """Yield the lines of a series after its header, even while it is in use. A torn last line is omitted.

    Raises ResultsError if it cannot be read, or is of another schema.
    """
    try:
        with path.open("rb") as file:
            _parse_header(path, file.readline())
            for raw in file:
                line = _decode_line(raw)
                if line is None:
                    return
                yield line
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from error


def find_latest(folder: Path, key: Mapping[str, Any]) -> Path | None:
    """Return the most recently written unfinished series of a key, or None. Raises ResultsError for one of another
    schema.
    """
    paths = sorted(folder.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths:
        with path.open("rb") as file:
            header = _parse_header(path, file.readline())
            if header.get("key") == key and not any("end" in (_decode_line(raw) or {}) for raw in _read_tail(file)):
                return path
    return None


def _read_tail(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the last lines. The line that ends a series is short."""
    start = max(file.tell(), file.seek(0, os.SEEK_END) - 200)
    file.seek(start)
    yield from file


def _list_differences(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*actual, *expected}):
        if actual.get(name) != expected.get(name):
            yield f"{name} was {actual.get(name)!r} and is {expected.get(name)!r}"


def _encode_conditions(conditions: Mapping[str, Any]) -> str:
    return json.dumps(dict(conditions), sort_keys=True)


def _parse_header(path: Path, raw: bytes) -> _Line:
    header = _decode_line(raw)
    if header is None or "schema" not in header:
        raise ResultsError(f"{path}: expected the state file of a series")
    if header["schema"] != SCHEMA:
        raise ResultsError(f"{path}: schema {header['schema']!r}; this version reads {SCHEMA}: move the file away")
    return header


def read_time(value: Any) -> float:
    """Return a time of the Unix epoch in seconds. Raises TypeError and ValueError for anything else."""
    time_s = float(value)
    if not 0 <= time_s < inf:
        raise ValueError(f"{value!r} is not a time")
    return time_s


def _encode_line(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _decode_line(raw: bytes) -> _Line | None:
    """Return a decoded line, or None for a torn one."""
    if not raw.endswith(b"\n"):
        return None
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None
