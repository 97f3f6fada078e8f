"""Arrival processes: when each operation is due, as a pure function of a seed.

There is no clock and no sleep here: times are seconds from the start of the experiment, and the engine acts on them.

Every open-loop process has a method ``due_s(seed, sensor, count)``. Each sensor draws from its own random stream, so
due times do not depend on which agent carries the sensor. docs/reference/arrivals.md has the formulas.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import partial
from itertools import accumulate, islice, repeat
from math import cos, exp, inf, log, pi, sqrt
from operator import le
from random import Random
from typing import Protocol

from pytest_cloudbench.model import ConfigError, UsageError, Verb
from pytest_cloudbench.workload.trace import VERBS, Mixture, Replay, parse_trace

_SHORTEST_S = 1e-9
_LARGEST = 1e15
_MOST_DUE = 1_000_000


class Arrival(Protocol):
    """An open-loop process: operations are due at fixed times, however earlier ones end. A frozen value."""

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """Return the due times of a sensor's first ``count`` operations, ascending, in seconds from the start.

        A larger ``count`` only appends times. A process that returns ``steps`` may return fewer than ``count``.
        """
        ...

    def steps(self, sensor: int, count: int) -> Sequence[tuple[Verb, int]] | None:
        """Return the verb and the size in bytes of each operation, or None if the experiment chooses them."""
        ...


def count_due(arrival: Arrival, seed: str, sensor: int, for_s: float) -> int:
    """Return how many operations of a sensor are due in the first ``for_s`` seconds.

    Raises UsageError for more than a million, such as an endless number that is due at once.
    """
    count = 16
    while len(due_s := arrival.due_s(seed, sensor, count)) == count and due_s[-1] < for_s:
        if count > _MOST_DUE:
            raise UsageError(f"{arrival!r}: more than {_MOST_DUE:,} operations of a sensor are due in {for_s:g} s")
        count *= 2
    return bisect_left(due_s, for_s)


class _TimesOnly:
    """A base for processes that set times but not operations."""

    __slots__ = ()

    def steps(self, sensor: int, count: int) -> None:
        """Return None: the experiment chooses the operations."""
        return


def _check_number(
    process: str, key: str, value: object, expected: str, low: float = 0.0, high: float = _LARGEST
) -> None:
    """Raise ConfigError unless ``value`` is a number from ``low`` to ``high``."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"arrival {process}", key, f"{value!r}: expected {expected}")


def _check_seconds(process: str, **values: object) -> None:
    for key, value in values.items():
        _check_number(process, key, value, "0 or more seconds")


def _check_positive(process: str, key: str, value: object, high: float = _LARGEST, but: str = "") -> None:
    _check_number(process, key, value, f"seconds, at least {_SHORTEST_S:g}{but}", _SHORTEST_S, high)


def _first_delay_s(seed: str, sensor: int, longest_s: float) -> float:
    return Random(f"{seed}/first/{sensor}").uniform(0.0, longest_s) if longest_s else 0.0


# Python promises the same numbers in later versions for Random.random() alone, so other distributions are built on it.


def _draw_exponential(draws: Random) -> float:
    return -log(1.0 - draws.random())


def _draw_normal(draws: Random) -> float:
    return sqrt(-2.0 * log(1.0 - draws.random())) * cos(2.0 * pi * draws.random())


# --- the processes ---


@dataclass(frozen=True, slots=True)
class FixedInterval(_TimesOnly):
    """A fixed interval: a sensor keeps its schedule, however its operations end.

    Attributes:
        interval_s: seconds between two due times of one sensor.
        first_delay_max_s: the first operation is due at a uniformly random time up to this. At 0, all sensors start
            together.
    """

    interval_s: float
    first_delay_max_s: float = 0.0

    def __post_init__(self) -> None:
        _check_seconds("fixed", interval_s=self.interval_s, first_delay_max_s=self.first_delay_max_s)

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """Return the due times of a sensor's first ``count`` operations, in seconds from the start."""
        first_s = _first_delay_s(seed, sensor, self.first_delay_max_s)
        return [first_s + self.interval_s * seq for seq in range(count)]


@dataclass(frozen=True, slots=True)
class Jittered(_TimesOnly):
    """A fixed schedule with each operation a little late. Delays do not accumulate.

    Attributes:
        interval_s: seconds between two ticks of one sensor.
        jitter_s: each operation is due at a uniformly random time up to this after its tick. At most ``interval_s``.
        first_delay_max_s: the first tick is at a uniformly random time up to this.
    """

    interval_s: float
    jitter_s: float
    first_delay_max_s: float = 0.0

    def __post_init__(self) -> None:
        _check_seconds("jittered", interval_s=self.interval_s, first_delay_max_s=self.first_delay_max_s)
        _check_number("jittered", "jitter_s", self.jitter_s, "seconds from 0 to interval_s", high=self.interval_s)

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """Return the due times of a sensor's first ``count`` operations, in seconds from the start."""
        first_s = _first_delay_s(seed, sensor, self.first_delay_max_s)
        draws = Random(f"{seed}/jittered/{sensor}")
        times_s = (first_s + self.interval_s * seq + self.jitter_s * draws.random() for seq in range(count))
        return list(accumulate(times_s, max))  # with a jitter of a whole interval, rounding may swap two neighbours


@dataclass(frozen=True, slots=True)
class Poisson(_TimesOnly):
    """Independent events at a constant rate, with exponential times before the first and between events.

    Attributes:
        interval_s: mean seconds between two operations of one sensor.
    """

    interval_s: float

    def __post_init__(self) -> None:
        _check_positive("poisson", "interval_s", self.interval_s)

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """Return the due times of a sensor's first ``count`` operations, in seconds from the start."""
        draws = Random(f"{seed}/poisson/{sensor}")
        return list(accumulate(self.interval_s * _draw_exponential(draws) for _ in range(count)))


@dataclass(frozen=True, slots=True)
class Lognormal(_TimesOnly):
    """Lognormal gaps between operations: many short ones and a few very long ones, like the pauses of people.

    Attributes:
        interval_s: *mean* seconds between two operations of one sensor.
        sigma: standard deviation of the logarithm. 0 is a fixed interval, and 1 has a median of 0.61 of the mean.
        first_delay_max_s: the first gap begins at a uniformly random time up to this.
    """

    interval_s: float
    sigma: float
    first_delay_max_s: float = 0.0

    def __post_init__(self) -> None:
        _check_positive("lognormal", "interval_s", self.interval_s)
        _check_number("lognormal", "sigma", self.sigma, "a number from 0 to 10", high=10.0)
        _check_seconds("lognormal", first_delay_max_s=self.first_delay_max_s)

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """Return the due times of a sensor's first ``count`` operations, in seconds from the start."""
        draws = Random(f"{seed}/lognormal/{sensor}")
        median_s = self.interval_s * exp(-(self.sigma**2) / 2)
        gaps_s = (median_s * exp(self.sigma * _draw_normal(draws)) for _ in range(count))
        begin_s = _first_delay_s(seed, sensor, self.first_delay_max_s)
        return list(accumulate(gaps_s, initial=begin_s))[1:]


@dataclass(frozen=True, slots=True)
class Bursts(_TimesOnly):
    """Bursts of Poisson arrivals with silence between them, both of exponentially distributed length.

    A sensor starts inside a burst with the probability of being in one at any time, so sensors are not in step.

    Attributes:
        interval_s: mean seconds between two operations within a burst, at most ``on_s``.
        on_s: mean seconds that a burst lasts.
        off_s: mean seconds between two bursts.
    """

    interval_s: float
    on_s: float
    off_s: float

    def __post_init__(self) -> None:
        _check_positive("bursts", "on_s", self.on_s)
        _check_seconds("bursts", off_s=self.off_s)
        _check_positive("bursts", "interval_s", self.interval_s, self.on_s, " and at most on_s")

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """Return the due times of a sensor's first ``count`` operations, in seconds from the start."""
        draws = Random(f"{seed}/bursts/{sensor}")
        now_s = 0.0
        if draws.random() * (self.on_s + self.off_s) >= self.on_s:
            now_s = self.off_s * _draw_exponential(draws)
        burst_end_s = now_s + self.on_s * _draw_exponential(draws)
        times_s: list[float] = []
        while len(times_s) < count:
            candidate_s = now_s + self.interval_s * _draw_exponential(draws)
            if candidate_s <= burst_end_s:
                times_s.append(candidate_s)
                now_s = candidate_s
            else:  # exponential times have no memory, so a time past the end may be redrawn
                now_s = burst_end_s + self.off_s * _draw_exponential(draws)
                burst_end_s = now_s + self.on_s * _draw_exponential(draws)
        return times_s


DAY_CURVE = (
    0.45, 0.32, 0.25, 0.21, 0.20, 0.24, 0.36, 0.55, 0.74, 0.86, 0.92, 0.95,
    0.94, 0.93, 0.92, 0.91, 0.90, 0.91, 0.94, 0.98, 1.00, 0.96, 0.83, 0.63,
)  # fmt: skip
"""Relative load at each full hour, lowest at 04:00 and five times that at 20:00. Chosen, not measured."""


@dataclass(frozen=True, slots=True)
class Diurnal(_TimesOnly):
    """Poisson arrivals whose rate follows the time of day, interpolated linearly between weights.

    Attributes:
        interval_s: mean seconds between two operations of one sensor, averaged over a whole period.
        curve: relative rates at equally spaced moments of the period, the first at its beginning.
        period_s: length of the curve in seconds, at least a hundredth of ``interval_s``. A shorter period compresses
            the day.
        start_s: the time within the period at which the experiment starts. 28800 of the default period is 08:00.
    """

    interval_s: float
    curve: Sequence[float] = DAY_CURVE
    period_s: float = 86_400.0
    start_s: float = 0.0

    def __post_init__(self) -> None:
        _check_positive("diurnal", "interval_s", self.interval_s)
        _check_number(
            "diurnal", "period_s", self.period_s, "seconds, at least interval_s / 100", low=self.interval_s / 100
        )
        _check_seconds("diurnal", start_s=self.start_s)
        weights: object = self.curve
        if not isinstance(weights, (list, tuple)) or len(weights) == 0:
            raise ConfigError("arrival diurnal", "curve", f"{weights!r}: expected a list of numbers")
        for position, weight in enumerate(weights, 1):
            _check_number(
                "diurnal", "curve", weight, f"numbers from 0 to 1e9 (value {position} of {len(weights)})", high=1e9
            )
        if not any(weights):
            raise ConfigError("arrival diurnal", "curve", "expected at least one number above 0")
        object.__setattr__(self, "curve", tuple(weights))

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """Return the due times of a sensor's first ``count`` operations, in seconds from the start.

        Uses thinning on each piece of the curve: candidates arrive at the larger of its two end rates, and each is kept
        with a probability equal to the rate at its own time divided by that larger rate.
        """
        draws = Random(f"{seed}/diurnal/{sensor}")
        pieces = len(self.curve)
        peak_weight = max(self.curve)
        shares = [weight / peak_weight for weight in (*self.curve, self.curve[0])]
        rate_per_share = pieces / (sum(shares[:-1]) * self.interval_s)
        rates = [share * rate_per_share for share in shares]
        piece_length_s = self.period_s / pieces
        full_pieces, offset_s = divmod(self.start_s % self.period_s, piece_length_s)
        piece_number = int(full_pieces)  # counted from the beginning of the first period
        times_s: list[float] = []
        while len(times_s) < count:
            start_rate, end_rate = rates[piece_number % pieces], rates[piece_number % pieces + 1]
            peak_rate = max(start_rate, end_rate)
            offset_s = offset_s + _draw_exponential(draws) / peak_rate if peak_rate else inf
            if offset_s >= piece_length_s:  # exponential times have no memory, so the next piece draws again
                piece_number, offset_s = piece_number + 1, 0.0
            elif draws.random() * peak_rate < start_rate + (end_rate - start_rate) * offset_s / piece_length_s:
                times_s.append(max(0.0, piece_number * piece_length_s + offset_s - self.start_s % self.period_s))
        return list(accumulate(times_s, max))  # rounding may swap two times at the border of two pieces


@dataclass(frozen=True, slots=True)
class ThinkTime:
    """A closed loop where a sensor sleeps ``interval_s`` *after* each operation, like the thesis's threads (4.2.4)."""

    interval_s: float
    first_delay_max_s: float = 0.0

    def __post_init__(self) -> None:
        _check_seconds("think", interval_s=self.interval_s, first_delay_max_s=self.first_delay_max_s)

    def first_s(self, seed: str, sensor: int) -> float:
        """Return the due time of the sensor's first operation, in seconds from the start."""
        return _first_delay_s(seed, sensor, self.first_delay_max_s)

    def horizon_s(self, count: int) -> float:
        """Return the longest time that ``count`` operations of a sensor take, if each completes instantly."""
        return self.first_delay_max_s + self.interval_s * count

    def shortest_s(self, count: int) -> float:
        """Return the shortest time that ``count`` operations of a sensor take: the pauses between them."""
        return self.interval_s * max(count - 1, 0)


@dataclass(frozen=True, slots=True)
class Threads:
    """A closed loop of ``count`` threads that each take the next file as soon as they are free (thesis 4.2.2).

    Attributes:
        count: number of threads, divided evenly among the agents.
        pause_s: seconds that a thread sleeps after each operation.
        first_delay_max_s, first_delay_min_s: each thread begins at a uniformly random time between the two.
    """

    count: int
    pause_s: float = 0.0
    first_delay_max_s: float = 0.0
    first_delay_min_s: float = 0.0

    def __post_init__(self) -> None:
        _check_number("threads", "count", self.count, "1 or more threads", 1)
        if not isinstance(self.count, int):
            raise ConfigError("arrival threads", "count", f"{self.count!r}: expected a whole number of threads")
        _check_seconds("threads", pause_s=self.pause_s, first_delay_min_s=self.first_delay_min_s)
        longest_s = self.first_delay_max_s
        _check_number(
            "threads", "first_delay_max_s", longest_s, "first_delay_min_s or more seconds", self.first_delay_min_s
        )

    def first_s(self, seed: str, thread: int) -> float:
        """Return the time at which a thread begins, in seconds from the start."""
        shortest_s = self.first_delay_min_s
        return shortest_s + _first_delay_s(seed, thread, self.first_delay_max_s - shortest_s)

    def horizon_s(self, count: int) -> float:
        """Return the longest time that ``count`` operations take, if each completes instantly."""
        return self.first_delay_max_s + self.pause_s * -(-count // self.count)

    def shortest_s(self, count: int) -> float:
        """Return the shortest time that ``count`` operations take: the first delay, and the pauses of a thread."""
        return self.first_delay_min_s + self.pause_s * max(-(-count // self.count) - 1, 0)


Closed = ThinkTime | Threads
"""A closed loop: an operation starts only after others have ended."""


def changes(arrival: Arrival | Closed) -> bool:
    """Return whether the load itself varies during a run, so that times may drift with it."""
    return isinstance(arrival.times if isinstance(arrival, Mixture) else arrival, (Diurnal, Replay))


# --- names for configuration files ---


def _make_uniform(interval_s: float, first_delay_max_s: float | None = None) -> FixedInterval:
    _check_seconds("uniform", interval_s=interval_s)
    if first_delay_max_s is not None:
        _check_seconds("uniform", first_delay_max_s=first_delay_max_s)
    return FixedInterval(interval_s, interval_s if first_delay_max_s is None else first_delay_max_s)


@dataclass(frozen=True, slots=True)
class _NamedProcess:
    """A process that configurations can name, with its keys. ``keys`` holds True for each required one."""

    make: Callable[..., Arrival | Closed]
    keys: Mapping[str, bool]


def _describe_process(process: type[Arrival] | type[ThinkTime] | type[Threads]) -> _NamedProcess:
    process_fields = fields(process)  # type: ignore[arg-type]  # mypy has no type "class of a dataclass"
    return _NamedProcess(process, {attribute.name: attribute.default is MISSING for attribute in process_fields})


def _make_replay(file: object, read: Callable[[str], str] | None, **params: float | bool) -> Replay:
    if not isinstance(file, str) or not file:
        raise ConfigError("arrival trace", "file", f"{file!r}: expected the name of a CSV file")
    if read is None:
        raise ConfigError("arrival trace", "file", "files cannot be read here")
    return Replay(parse_trace(read(file), file), **params)  # type: ignore[arg-type]  # Replay checks its values


_REGISTRY: dict[str, _NamedProcess] = {
    "fixed": _describe_process(FixedInterval),
    "uniform": _NamedProcess(_make_uniform, {"interval_s": True, "first_delay_max_s": False}),
    "jittered": _describe_process(Jittered),
    "poisson": _describe_process(Poisson),
    "lognormal": _describe_process(Lognormal),
    "bursts": _describe_process(Bursts),
    "diurnal": _describe_process(Diurnal),
    "trace": _NamedProcess(_make_replay, {"file": True, "scale": False, "from_first": False}),
    "think": _describe_process(ThinkTime),
    "threads": _describe_process(Threads),
}

NAMES = tuple(_REGISTRY)
"""The names that ``arrival`` accepts. All but ``think`` and ``threads`` are open loops."""


def arrival(name: str, params: Mapping[str, object], read: Callable[[str], str] | None = None) -> Arrival | Closed:
    """Return the arrival process with a name and parameters from a configuration file.

    Raises ConfigError, a UsageError, with the key that is wrong, unknown or missing.

    Args:
        name: one of ``NAMES``.
        params: the process's attributes by name; for ``trace`` also ``file``.
        read: returns the text of a trace's ``file``, since this module opens no files.
    """
    if name not in _REGISTRY:
        raise ConfigError("arrival", "name", f"{name!r}: expected one of {', '.join(NAMES)}")
    process = _REGISTRY[name]
    for key in params:
        if key not in process.keys:
            raise ConfigError(f"arrival {name}", str(key), f"unknown key, expected one of {', '.join(process.keys)}")
    for key, is_needed in process.keys.items():
        if is_needed and key not in params:
            raise ConfigError(f"arrival {name}", key, "is missing")
    make = partial(process.make, read=read) if name == "trace" else process.make
    return make(**params)


# --- the plan ---


@dataclass(frozen=True, slots=True)
class Plan:
    """All operations of a schedule in due order, as columns of equal length.

    Attributes:
        due_ns: nanoseconds from the start, ascending.
        sensor: the number of the sensor.
        seq: the operation's sequence number within its sensor.
        code: the verb of each operation, as an index into ``trace.VERBS``. None if the experiment chooses.
        size_bytes: the size of each operation. None if ``code`` is None.
    """

    due_ns: array[int]
    sensor: array[int]
    seq: array[int]
    code: array[int] | None = None
    size_bytes: array[int] | None = None

    def __len__(self) -> int:
        return len(self.due_ns)

    @property
    def horizon_s(self) -> float:
        """Due time of the last operation, in seconds from the start."""
        return self.due_ns[-1] / 1e9 if self.due_ns else 0.0

    def limit_operations(self, count_of: Callable[[int], int]) -> Plan:
        """Return the plan with at most ``count_of(sensor)`` operations of each sensor."""
        rows = [row for row, sensor in enumerate(self.sensor) if self.seq[row] < count_of(sensor)]

        def select(column: array[int]) -> array[int]:
            return array(column.typecode, map(column.__getitem__, rows))

        codes, sizes = self.code, self.size_bytes
        return Plan(
            select(self.due_ns), select(self.sensor), select(self.seq), codes if codes is None else select(codes),
            sizes if sizes is None else select(sizes),
        )  # fmt: skip

    def busiest(self, window_ns: int) -> int:
        """Return the largest number of operations due within any ``window_ns``."""
        best, due_ns = 0, self.due_ns
        for row, due in enumerate(due_ns):
            best += due - due_ns[row - best] <= window_ns  # so the window that ends here holds one more
        return best


def plan(arrival: Arrival, sensors: Iterable[int], count: int, seed: str, time_scale: float = 1.0) -> Plan:
    """Return the plan of ``count`` operations for each of the sensors, with all times divided by ``time_scale``.

    Raises UsageError if a time does not fit into 64 bits of nanoseconds (292 years).
    """
    sensors = sorted(sensors)
    due_ns, sensor_column, seq_column = array("q"), array("q"), array("q")
    try:
        for sensor in sensors:
            due_ns.extend(round(due * 1e9 / time_scale) for due in arrival.due_s(seed, sensor, count))
            seq_column.extend(range(len(due_ns) - len(seq_column)))
            sensor_column.extend(repeat(sensor, len(due_ns) - len(sensor_column)))
    except (OverflowError, ValueError) as error:
        raise UsageError(f"{arrival!r}: an operation is due more than 292 years after the start") from error
    if not all(map(le, due_ns, islice(due_ns, 1, None))):
        rows = sorted(range(len(due_ns)), key=due_ns.__getitem__)  # operations due at once stay in the order of sensors
        due_ns, sensor_column, seq_column = (
            array("q", map(column.__getitem__, rows)) for column in (due_ns, sensor_column, seq_column)
        )
    steps_of = {sensor: steps for sensor in sensors if (steps := arrival.steps(sensor, count)) is not None}
    if not steps_of:
        return Plan(due_ns, sensor_column, seq_column)
    codes = {verb: code for code, verb in enumerate(VERBS)}
    return Plan(
        due_ns, sensor_column, seq_column,
        array("b", (codes[steps_of[sensor][seq][0]] for sensor, seq in zip(sensor_column, seq_column, strict=True))),
        array("q", (steps_of[sensor][seq][1] for sensor, seq in zip(sensor_column, seq_column, strict=True))),
    )  # fmt: skip
