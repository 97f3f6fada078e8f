"""A recorded load: who did what, when, with how many bytes. Read strictly from CSV text, and replayed.

What may live here: the text of a trace into columns, and columns into due times. Pure: reading a file is
the caller's.
"""

from __future__ import annotations

import csv
import hashlib
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_cloudbench.model import ConfigError, Verb

COLUMNS = ("time", "sensor", "operation", "size")
"""The header of a trace; the columns may stand in any order."""

VERBS = tuple(Verb)
"""A trace and a plan keep a verb as its index here."""

_CODES = {verb.value: code for code, verb in enumerate(VERBS)}
_CODES |= {"upload": _CODES["put"], "download": _CODES["get"]}
_TIME = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_SIZE = re.compile(r"[0-9]{1,15}")
_LAST_S = 9e9
"""Nanoseconds of a later time do not fit into 64 bits. Seconds since 1970 do, until the year 2255."""


@dataclass(frozen=True, slots=True, repr=False)
class Trace:
    """A trace's rows, grouped by sensor, each group in the order of time.

    Attributes:
        name: where the text came from.
        sha256: of the text, in hexadecimal.
        sensors: the sensors' names; their place here is their number.
        first: the first row of each sensor, and at the end the number of rows.
        begin_s: the earliest time.
        time_s, code, size_bytes: one value per row; ``code`` is an index into ``VERBS``.
    """

    name: str
    sha256: str
    sensors: tuple[str, ...]
    first: tuple[int, ...]
    begin_s: float
    time_s: array[float]
    code: bytes
    size_bytes: array[int]

    def __len__(self) -> int:
        return len(self.time_s)

    def __repr__(self) -> str:
        return f"<{self.name}, {len(self.sensors)} sensors, {len(self)} operations, sha256 {self.sha256[:12]}>"

    def rows(self, sensor: int, count: int) -> slice:
        """The first ``count`` rows of a sensor; none for a sensor that the trace does not have."""
        if not 0 <= sensor < len(self.sensors):
            return slice(0, 0)
        return slice(self.first[sensor], min(self.first[sensor + 1], self.first[sensor] + count))


@dataclass(frozen=True, slots=True)
class Replay:
    """Open loop: operations are due when a trace says, and each row says what it is and how big.

    Attributes:
        trace: the trace to replay.
        scale: all times are divided by this: 60 replays an hour in a minute.
        from_first: times count from the trace's earliest row (a trace whose times are seconds since 1970).
    """

    trace: Trace
    scale: float = 1.0
    from_first: bool = False

    def __post_init__(self) -> None:
        scale: object = self.scale
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 1e-9 <= scale <= 1e9:
            raise ConfigError("arrival trace", "scale", f"{scale!r}: expected a number from 1e-9 to 1e9")
        flag: object = self.from_first
        if not isinstance(flag, bool):
            raise ConfigError("arrival trace", "from_first", f"{flag!r}: expected true or false")

    @property
    def sensors(self) -> int:
        """How many sensors the trace has."""
        return len(self.trace.sensors)

    @property
    def ops_per_sensor(self) -> int:
        """The most rows that one sensor has: with it as ``count`` the whole trace is replayed."""
        first = self.trace.first
        return max(after - before for before, after in pairwise(first))

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """The due times of at most ``count`` operations of one sensor; ``seed`` is unused."""
        origin = self.trace.begin_s if self.from_first else 0.0
        return [(time - origin) / self.scale for time in self.trace.time_s[self.trace.rows(sensor, count)]]

    def steps(self, sensor: int, count: int) -> Sequence[tuple[Verb, int]]:
        """What each of these operations is, and its size in bytes."""
        rows = self.trace.rows(sensor, count)
        return [
            (VERBS[code], size) for code, size in zip(self.trace.code[rows], self.trace.size_bytes[rows], strict=True)
        ]


# --- text to trace ---


def parse_trace(text: str, name: str = "trace") -> Trace:
    """Read a trace. Raises ConfigError that names line and column, and what was expected; never anything else.

    The first line is the header: ``time,sensor,operation,size`` in any order. Empty lines and lines that start
    with ``#`` are left out. Rows need not be in the order of time.

    Args:
        text: the CSV text.
        name: what errors and results call it.
    """
    lines = _lines(text, name)
    number, header = next(lines, (1, []))
    columns = [word.lower() for word in header]
    if sorted(columns) != sorted(COLUMNS):
        found = ",".join(header) or "nothing"
        raise ConfigError(name, f"line {number}", f"{found!r}: expected the header {','.join(COLUMNS)}")
    places = [columns.index(column) for column in COLUMNS]
    times, names, codes, sizes = array("d"), list[str](), bytearray(), array("q")
    for number, cells in lines:
        if len(cells) != len(COLUMNS):
            wrong = f"line {number}, column {min(len(cells), len(COLUMNS)) + (len(cells) > len(COLUMNS))}"
            raise ConfigError(name, wrong, f"the line has {len(cells)} values: expected {len(COLUMNS)}")
        time, sensor, operation, size = (cells[place] for place in places)

        def fail(column: str, expected: str, number: int = number, cells: list[str] = cells) -> ConfigError:
            place = columns.index(column)
            return ConfigError(
                name, f"line {number}, column {place + 1} ({column})", f"{cells[place]!r}: expected {expected}"
            )

        if not _TIME.fullmatch(time) or float(time) > _LAST_S:
            raise fail("time", f"seconds, a number from 0 to {_LAST_S:g}")
        if not sensor or not sensor.isprintable():
            raise fail("sensor", "a number or a name")
        if operation.lower() not in _CODES:
            raise fail("operation", f"one of {', '.join(_CODES)}")
        if not _SIZE.fullmatch(size):
            raise fail("size", "bytes, a whole number of at most 15 digits")
        times.append(float(time))
        names.append(sensor)
        codes.append(_CODES[operation.lower()])
        sizes.append(int(size))
    if not times:
        raise ConfigError(name, "", "the trace has no row: expected at least one below the header")
    return _grouped(name, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), times, names, codes, sizes)


def _lines(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, its cells without surrounding blanks) of every line that is neither empty nor a comment."""
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            [cells] = csv.reader([line.rstrip("\r")], strict=True, skipinitialspace=True)
        except (csv.Error, ValueError) as error:  # ValueError: a carriage return inside makes two rows of it
            raise ConfigError(name, f"line {number}", f"not a line of CSV ({error})") from error
        yield number, [cell.strip() for cell in cells]


def _grouped(
    name: str, sha256: str, times: array[float], names: list[str], codes: bytearray, sizes: array[int]
) -> Trace:
    seen = list(dict.fromkeys(names))
    if all(re.fullmatch(r"[0-9]{1,18}", each) for each in seen):
        seen.sort(key=lambda each: (int(each), each))
    number = {each: place for place, each in enumerate(seen)}
    order = sorted(range(len(times)), key=lambda row: (number[names[row]], times[row]))  # stable: ties as written
    counts = [0] * len(seen)
    for each in names:
        counts[number[each]] += 1
    first = [0]
    for count in counts:
        first.append(first[-1] + count)
    return Trace(
        name, sha256, tuple(seen), tuple(first), min(times), array("d", (times[row] for row in order)),
        bytes(codes[row] for row in order), array("q", (sizes[row] for row in order)),
    )  # fmt: skip
