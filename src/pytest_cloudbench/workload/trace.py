"""Traces of recorded loads: parsed strictly from CSV text, then replayed as an arrival process.

Everything here is pure. The caller reads the file.
"""

from __future__ import annotations

import csv
import hashlib
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import Random
from typing import Protocol

from pytest_cloudbench.model import ConfigError, Verb

COLUMNS = ("time", "sensor", "operation", "size")
"""The columns of a trace's header, which may be in any order."""

VERBS = tuple(Verb)
"""All verbs. A trace and a plan store a verb as its index in this tuple."""

MAX_WAIT_S = 86400.0
"""A longer wait for the first operation is taken for a mistake: a trace with calendar times needs ``from_first``."""

_CODES = {verb.value: code for code, verb in enumerate(VERBS)}
_CODES |= {"upload": _CODES["put"], "download": _CODES["get"]}
_TIME_PATTERN = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_SIZE_PATTERN = re.compile(r"[0-9]{1,15}")
_LAST_S = 9e9
"""The latest time whose nanoseconds fit into 64 bits. In seconds since 1970, that is the year 2255."""


@dataclass(frozen=True, slots=True, repr=False)
class Trace:
    """A trace's rows, grouped by sensor and sorted by time within each group.

    Attributes:
        name: the source of the text.
        sha256: the text's digest in hexadecimal.
        sensors: the sensors' names. A sensor's number is its index here.
        first: the index of each sensor's first row, followed by the total number of rows.
        begin_s: the earliest time.
        time_s, code, size_bytes: columns with one value per row. ``code`` is an index into ``VERBS``.
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
        """Return the slice of a sensor's first ``count`` rows, which is empty for an unknown sensor."""
        if not 0 <= sensor < len(self.sensors):
            return slice(0, 0)
        return slice(self.first[sensor], min(self.first[sensor + 1], self.first[sensor] + count))


class OpenLoop(Protocol):
    """The source of due times of operations in an open loop (see ``arrival.Arrival``)."""

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """Return the due times of a sensor's first ``count`` operations, ascending."""
        ...


@dataclass(frozen=True, slots=True)
class Replay:
    """An open loop that replays a trace: each row sets the time, the verb and the size of one operation.

    Attributes:
        trace: the trace to replay.
        scale: divides all times. At 60, an hour is replayed in a minute.
        from_first: whether times count from the trace's earliest row, for traces in seconds since 1970.
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
        """Number of sensors in the trace."""
        return len(self.trace.sensors)

    @property
    def ops_per_sensor(self) -> int:
        """The largest number of rows of any sensor. As ``count``, it replays the whole trace."""
        first = self.trace.first
        return max(after - before for before, after in pairwise(first))

    @property
    def begin_s(self) -> float:
        """The seconds until the first operation is due."""
        return 0.0 if self.from_first else self.trace.begin_s / self.scale

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """Return the due times of at most ``count`` operations of one sensor. ``seed`` is unused."""
        origin = self.trace.begin_s if self.from_first else 0.0
        return [(time - origin) / self.scale for time in self.trace.time_s[self.trace.rows(sensor, count)]]

    def steps(self, sensor: int, count: int) -> Sequence[tuple[Verb, int]]:
        """Return the verb and the size in bytes of at most ``count`` operations of one sensor."""
        rows = self.trace.rows(sensor, count)
        return [
            (VERBS[code], size) for code, size in zip(self.trace.code[rows], self.trace.size_bytes[rows], strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Mixture:
    """An open loop whose operations are chosen at random: put, get, stat and list in given shares.

    A sensor's first operation is always a put, since get and stat use the file that the same sensor put last.

    Attributes:
        times: an open loop that says when operations are due.
        shares: the share of each operation, in all 1.
        size_bytes: the size of each file.
    """

    times: OpenLoop
    shares: Mapping[Verb, float]
    size_bytes: int

    def __post_init__(self) -> None:
        total = sum(self.shares.values())
        if any(share < 0 for share in self.shares.values()) or not 0.999 <= total <= 1.001:
            raise ConfigError("arrival mixture", "shares", f"{total:g}: expected shares that are 1 in all")

    def __repr__(self) -> str:
        shares = ", ".join(f"{verb.value} {share:.0%}" for verb, share in self.shares.items())
        return f"Mixture({self.times!r}, {shares}, {self.size_bytes} bytes)"

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """Return the due times of a sensor's first ``count`` operations, in seconds from the start."""
        return self.times.due_s(seed, sensor, count)

    def steps(self, sensor: int, count: int) -> Sequence[tuple[Verb, int]]:
        """Return the verb and the size in bytes of a sensor's first ``count`` operations, the same in every run."""
        draws = Random(f"mixture/{sensor}")
        limits = list(accumulate(self.shares.values()))
        verbs = [*self.shares, *list(self.shares)[-1:]]  # rounding may leave the last limit a little below 1
        drawn = [verbs[bisect_right(limits, draws.random())] for _ in range(count)]
        chosen = [Verb.PUT, *drawn[1:]][:count]
        return [(verb, 0 if verb is Verb.LIST else self.size_bytes) for verb in chosen]


# --- text to trace ---


def parse_trace(text: str, name: str = "trace") -> Trace:
    """Parse a trace. Raises only ConfigError, with the line, the column and the expected value.

    The first line is the header, ``time,sensor,operation,size`` in any order. Empty lines and lines that start with
    ``#`` are skipped. Rows need not be sorted by time.

    Args:
        text: the CSV text.
        name: the trace's name in errors and results.
    """
    lines = _split_lines(text, name)
    number, header = next(lines, (1, []))
    columns = [word.lower() for word in header]
    if sorted(columns) != sorted(COLUMNS):
        header_text = ",".join(header) or "nothing"
        raise ConfigError(name, f"line {number}", f"{header_text!r}: expected the header {','.join(COLUMNS)}")
    positions = [columns.index(column) for column in COLUMNS]
    times, names, codes, sizes = array("d"), list[str](), bytearray(), array("q")
    for number, cells in lines:
        if len(cells) != len(COLUMNS):
            where = f"line {number}, column {min(len(cells), len(COLUMNS)) + (len(cells) > len(COLUMNS))}"
            raise ConfigError(name, where, f"the line has {len(cells)} values: expected {len(COLUMNS)}")
        time, sensor, operation, size = (cells[position] for position in positions)

        def fail(column: str, expected: str, number: int = number, cells: list[str] = cells) -> ConfigError:
            position = columns.index(column)
            return ConfigError(
                name, f"line {number}, column {position + 1} ({column})", f"{cells[position]!r}: expected {expected}"
            )

        if not _TIME_PATTERN.fullmatch(time) or float(time) > _LAST_S:
            raise fail("time", f"seconds, a number from 0 to {_LAST_S:g}")
        if not sensor or not sensor.isprintable():
            raise fail("sensor", "a number or a name")
        if operation.lower() not in _CODES:
            raise fail("operation", f"one of {', '.join(_CODES)}")
        if not _SIZE_PATTERN.fullmatch(size):
            raise fail("size", "bytes, a whole number of at most 15 digits")
        times.append(float(time))
        names.append(sensor)
        codes.append(_CODES[operation.lower()])
        sizes.append(int(size))
    if not times:
        raise ConfigError(name, "", "the trace has no row: expected at least one below the header")
    return _group_by_sensor(
        name, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), times, names, codes, sizes
    )


def _split_lines(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, stripped cells) of every line that is neither empty nor a comment."""
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            [cells] = csv.reader([line.rstrip("\r")], strict=True, skipinitialspace=True)
        except (csv.Error, ValueError) as error:  # ValueError: a carriage return inside splits it into two rows
            raise ConfigError(name, f"line {number}", f"not a line of CSV ({error})") from error
        yield number, [cell.strip() for cell in cells]


def _group_by_sensor(
    name: str, sha256: str, times: array[float], names: list[str], codes: bytearray, sizes: array[int]
) -> Trace:
    sensors = list(dict.fromkeys(names))
    if all(re.fullmatch(r"[0-9]{1,18}", sensor_name) for sensor_name in sensors):
        sensors.sort(key=lambda sensor_name: (int(sensor_name), sensor_name))
    numbers = {sensor_name: index for index, sensor_name in enumerate(sensors)}
    order = sorted(range(len(times)), key=lambda row: (numbers[names[row]], times[row]))  # stable: ties as written
    counts = [0] * len(sensors)
    for sensor_name in names:
        counts[numbers[sensor_name]] += 1
    first = [0]
    for count in counts:
        first.append(first[-1] + count)
    return Trace(
        name, sha256, tuple(sensors), tuple(first), min(times), array("d", (times[row] for row in order)),
        bytes(codes[row] for row in order), array("q", (sizes[row] for row in order)),
    )  # fmt: skip
