"""When operations are due: arrival processes as pure functions of a seed.

What may live here: arrival processes, their names in configuration files, and the plan they unfold to. No
clock, no sleep: times are seconds from the start of the experiment; the engine acts on them.

Every open-loop process has one ``due_s(seed, sensor, count)``. Each sensor draws from a stream of its own, so
due times do not depend on how sensors are assigned to agents. docs/arrivals.md has the formulas.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import partial
from itertools import accumulate
from math import cos, exp, inf, log, pi, sqrt
from random import Random
from typing import Protocol

from pytest_cloudbench.model import ConfigError, UsageError, Verb
from pytest_cloudbench.workload.trace import VERBS, Replay, parse_trace

_TINY_S = 1e-9
_HUGE = 1e15


class Arrival(Protocol):
    """Open loop: when the operations of each sensor are due, regardless of how they end. A frozen value."""

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """The due times of a sensor's first ``count`` operations, ascending, in seconds from the start.

        The first times stay the same when ``count`` grows. Only a process that says ``steps`` may give fewer.
        """
        ...

    def steps(self, sensor: int, count: int) -> Sequence[tuple[Verb, int]] | None:
        """What each of these operations is, and its size in bytes; None where the experiment decides."""
        ...


class _Bare:
    """A process that gives times only, not operations."""

    __slots__ = ()

    def steps(self, sensor: int, count: int) -> None:
        """The experiment decides what each operation is."""
        return


def _number(process: str, key: str, value: object, expected: str, low: float = 0.0, high: float = _HUGE) -> None:
    """Raise ConfigError unless ``value`` is a number from ``low`` to ``high``."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"arrival {process}", key, f"{value!r}: expected {expected}")


def _seconds(process: str, **values: object) -> None:
    for key, value in values.items():
        _number(process, key, value, "0 or more seconds")


def _positive(process: str, key: str, value: object, high: float = _HUGE, but: str = "") -> None:
    _number(process, key, value, f"seconds, at least {_TINY_S:g}{but}", _TINY_S, high)


def _first_delay_s(seed: str, sensor: int, longest_s: float) -> float:
    return Random(f"{seed}/first/{sensor}").uniform(0.0, longest_s) if longest_s else 0.0


# Only Random.random() is promised to give the same numbers in later Pythons, so the rest is made from it here.


def _exponential(draws: Random) -> float:
    return -log(1.0 - draws.random())


def _normal(draws: Random) -> float:
    return sqrt(-2.0 * log(1.0 - draws.random())) * cos(2.0 * pi * draws.random())


# --- the processes ---


@dataclass(frozen=True, slots=True)
class FixedInterval(_Bare):
    """Open loop: a sensor keeps its schedule, regardless of how its operations end.

    Attributes:
        interval_s: seconds between two due times of one sensor.
        first_delay_max_s: the first operation is due at a uniformly random time up to this; 0 starts
            all sensors together.
    """

    interval_s: float
    first_delay_max_s: float = 0.0

    def __post_init__(self) -> None:
        _seconds("fixed", interval_s=self.interval_s, first_delay_max_s=self.first_delay_max_s)

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """The due times of ``count`` operations of one sensor, in seconds from the start."""
        first = _first_delay_s(seed, sensor, self.first_delay_max_s)
        return [first + self.interval_s * seq for seq in range(count)]


@dataclass(frozen=True, slots=True)
class Jittered(_Bare):
    """A sensor keeps its schedule, and each operation is a little late: delays do not accumulate.

    Attributes:
        interval_s: seconds between two ticks of one sensor.
        jitter_s: each operation is due at a uniformly random time up to this after its tick; at most ``interval_s``.
        first_delay_max_s: the first tick is at a uniformly random time up to this.
    """

    interval_s: float
    jitter_s: float
    first_delay_max_s: float = 0.0

    def __post_init__(self) -> None:
        _seconds("jittered", interval_s=self.interval_s, first_delay_max_s=self.first_delay_max_s)
        _number("jittered", "jitter_s", self.jitter_s, "seconds from 0 to interval_s", high=self.interval_s)

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """The due times of ``count`` operations of one sensor, in seconds from the start."""
        first = _first_delay_s(seed, sensor, self.first_delay_max_s)
        draws = Random(f"{seed}/jittered/{sensor}")
        due = (first + self.interval_s * seq + self.jitter_s * draws.random() for seq in range(count))
        return list(accumulate(due, max))  # a jitter of a whole interval can round to the wrong side of the next


@dataclass(frozen=True, slots=True)
class Poisson(_Bare):
    """Independent events at a constant rate: exponential times between them, and before the first.

    Attributes:
        interval_s: mean seconds between two operations of one sensor.
    """

    interval_s: float

    def __post_init__(self) -> None:
        _positive("poisson", "interval_s", self.interval_s)

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """The due times of ``count`` operations of one sensor, in seconds from the start."""
        draws = Random(f"{seed}/poisson/{sensor}")
        return list(accumulate(self.interval_s * _exponential(draws) for _ in range(count)))


@dataclass(frozen=True, slots=True)
class Lognormal(_Bare):
    """Lognormal times between operations: many short ones and a few very long ones, as people make them.

    Attributes:
        interval_s: *mean* seconds between two operations of one sensor.
        sigma: standard deviation of the logarithm; 0 is a fixed interval, 1 has a median of 0.61 of the mean.
        first_delay_max_s: counting begins at a uniformly random time up to this.
    """

    interval_s: float
    sigma: float
    first_delay_max_s: float = 0.0

    def __post_init__(self) -> None:
        _positive("lognormal", "interval_s", self.interval_s)
        _number("lognormal", "sigma", self.sigma, "a number from 0 to 10", high=10.0)
        _seconds("lognormal", first_delay_max_s=self.first_delay_max_s)

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """The due times of ``count`` operations of one sensor, in seconds from the start."""
        draws = Random(f"{seed}/lognormal/{sensor}")
        median_s = self.interval_s * exp(-(self.sigma**2) / 2)
        gaps = (median_s * exp(self.sigma * _normal(draws)) for _ in range(count))
        begin = _first_delay_s(seed, sensor, self.first_delay_max_s)
        return list(accumulate(gaps, initial=begin))[1:]


@dataclass(frozen=True, slots=True)
class Bursts(_Bare):
    """On and off: Poisson while a sensor is on, nothing while it is off; both last exponentially distributed times.

    A sensor is on at the start with the probability that it is on at any time, so sensors are not in step.

    Attributes:
        interval_s: mean seconds between two operations within a burst, at most ``on_s``.
        on_s: mean seconds that a burst lasts.
        off_s: mean seconds between two bursts.
    """

    interval_s: float
    on_s: float
    off_s: float

    def __post_init__(self) -> None:
        _positive("bursts", "on_s", self.on_s)
        _seconds("bursts", off_s=self.off_s)
        _positive("bursts", "interval_s", self.interval_s, self.on_s, " and at most on_s")

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """The due times of ``count`` operations of one sensor, in seconds from the start."""
        draws = Random(f"{seed}/bursts/{sensor}")
        now = 0.0
        if draws.random() * (self.on_s + self.off_s) >= self.on_s:
            now = self.off_s * _exponential(draws)
        end = now + self.on_s * _exponential(draws)
        due: list[float] = []
        while len(due) < count:
            after = now + self.interval_s * _exponential(draws)
            if after <= end:
                due.append(after)
                now = after
            else:  # exponential times have no memory: what was drawn past the end is drawn anew
                now = end + self.off_s * _exponential(draws)
                end = now + self.on_s * _exponential(draws)
        return due


DAY_CURVE = (
    0.45, 0.32, 0.25, 0.21, 0.20, 0.24, 0.36, 0.55, 0.74, 0.86, 0.92, 0.95,
    0.94, 0.93, 0.92, 0.91, 0.90, 0.91, 0.94, 0.98, 1.00, 0.96, 0.83, 0.63,
)  # fmt: skip
"""Relative load at each full hour: quiet at 4, five times as much at 20 o'clock. A choice, not a measurement."""


@dataclass(frozen=True, slots=True)
class Diurnal(_Bare):
    """Poisson with a rate that follows the time of day: a curve through weights, straight between them.

    Attributes:
        interval_s: mean seconds between two operations of one sensor, over a whole period.
        curve: relative rates at equally spaced moments of the period, the first at its beginning.
        period_s: seconds the curve takes; shorter ones give a day in less time. At least a hundredth of ``interval_s``.
        start_s: where in the period the experiment starts: 28800 with the default period is 8 o'clock.
    """

    interval_s: float
    curve: Sequence[float] = DAY_CURVE
    period_s: float = 86_400.0
    start_s: float = 0.0

    def __post_init__(self) -> None:
        _positive("diurnal", "interval_s", self.interval_s)
        _number("diurnal", "period_s", self.period_s, "seconds, at least interval_s / 100", low=self.interval_s / 100)
        _seconds("diurnal", start_s=self.start_s)
        weights: object = self.curve
        if not isinstance(weights, (list, tuple)) or len(weights) == 0:
            raise ConfigError("arrival diurnal", "curve", f"{weights!r}: expected a list of numbers")
        for place, weight in enumerate(weights, 1):
            _number("diurnal", "curve", weight, f"numbers from 0 to 1e9 (value {place} of {len(weights)})", high=1e9)
        if not any(weights):
            raise ConfigError("arrival diurnal", "curve", "expected at least one number above 0")
        object.__setattr__(self, "curve", tuple(weights))

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """The due times of ``count`` operations of one sensor, in seconds from the start.

        By thinning, piece by piece of the curve: candidates come at the larger of the piece's two rates, and one
        is kept with the rate at its time over that.
        """
        draws = Random(f"{seed}/diurnal/{sensor}")
        pieces = len(self.curve)
        top = max(self.curve)
        shares = [weight / top for weight in (*self.curve, self.curve[0])]
        per_share = pieces / (sum(shares[:-1]) * self.interval_s)
        rates = [share * per_share for share in shares]
        length = self.period_s / pieces
        piece, within = divmod(self.start_s % self.period_s, length)
        number = int(piece)  # of the piece, counted from the beginning of the first period
        due: list[float] = []
        while len(due) < count:
            left, right = rates[number % pieces], rates[number % pieces + 1]
            most = max(left, right)
            within = within + _exponential(draws) / most if most else inf
            if within >= length:  # no memory: the next piece begins anew
                number, within = number + 1, 0.0
            elif draws.random() * most < left + (right - left) * within / length:
                due.append(max(0.0, number * length + within - self.start_s % self.period_s))
        return list(accumulate(due, max))  # at the border of two pieces a time can round to the wrong side


@dataclass(frozen=True, slots=True)
class ThinkTime:
    """Closed loop: a sensor sleeps ``interval_s`` *after* each operation, as the thesis's threads do (4.2.4)."""

    interval_s: float
    first_delay_max_s: float = 0.0

    def __post_init__(self) -> None:
        _seconds("think", interval_s=self.interval_s, first_delay_max_s=self.first_delay_max_s)

    def first_s(self, seed: str, sensor: int) -> float:
        """When the sensor's first operation is due, in seconds from the start."""
        return _first_delay_s(seed, sensor, self.first_delay_max_s)

    def horizon_s(self, count: int) -> float:
        """How long ``count`` operations of a sensor take at most, if each takes no time at all."""
        return self.first_delay_max_s + self.interval_s * count


@dataclass(frozen=True, slots=True)
class Threads:
    """Closed loop: ``count`` threads, each of which takes the next file as soon as it is free (thesis 4.2.2).

    Attributes:
        count: threads in all, shared out evenly among the agents.
        pause_s: seconds that a thread sleeps after each operation.
        first_delay_max_s, first_delay_min_s: each thread begins at a uniformly random time between the two.
    """

    count: int
    pause_s: float = 0.0
    first_delay_max_s: float = 0.0
    first_delay_min_s: float = 0.0

    def __post_init__(self) -> None:
        _number("threads", "count", self.count, "1 or more threads", 1)
        if self.count % 1:
            raise ConfigError("arrival threads", "count", f"{self.count!r}: expected a whole number of threads")
        _seconds("threads", pause_s=self.pause_s, first_delay_min_s=self.first_delay_min_s)
        most = self.first_delay_max_s
        _number("threads", "first_delay_max_s", most, "first_delay_min_s or more seconds", self.first_delay_min_s)

    def first_s(self, seed: str, thread: int) -> float:
        """When a thread begins, in seconds from the start."""
        least_s = self.first_delay_min_s
        return least_s + _first_delay_s(seed, thread, self.first_delay_max_s - least_s)

    def horizon_s(self, count: int) -> float:
        """How long ``count`` operations take at most, if each takes no time at all."""
        return self.first_delay_max_s + self.pause_s * -(-count // self.count)


Closed = ThinkTime | Threads
"""A closed loop: when an operation starts depends on when others have ended."""


def changes(arrival: Arrival | Closed) -> bool:
    """Returns whether the load changes by itself during a run, so that times may drift with it."""
    return isinstance(arrival, (Diurnal, Replay))


# --- names for configuration files ---


def _uniform(interval_s: float, first_delay_max_s: float | None = None) -> FixedInterval:
    _seconds("uniform", interval_s=interval_s)
    if first_delay_max_s is not None:
        _seconds("uniform", first_delay_max_s=first_delay_max_s)
    return FixedInterval(interval_s, interval_s if first_delay_max_s is None else first_delay_max_s)


@dataclass(frozen=True, slots=True)
class _Named:
    """How a process is made from a configuration: its keys, True for those that must be given."""

    make: Callable[..., Arrival | Closed]
    keys: Mapping[str, bool]


def _of(process: type[Arrival] | type[ThinkTime] | type[Threads]) -> _Named:
    columns = fields(process)  # type: ignore[arg-type]  # mypy has no type "class of a dataclass"
    return _Named(process, {column.name: column.default is MISSING for column in columns})


def _replay(file: object, read: Callable[[str], str] | None, **params: float | bool) -> Replay:
    if not isinstance(file, str) or not file:
        raise ConfigError("arrival trace", "file", f"{file!r}: expected the name of a CSV file")
    if read is None:
        raise ConfigError("arrival trace", "file", "files cannot be read here")
    return Replay(parse_trace(read(file), file), **params)  # type: ignore[arg-type]  # Replay checks what it is given


_REGISTRY: dict[str, _Named] = {
    "fixed": _of(FixedInterval),
    "uniform": _Named(_uniform, {"interval_s": True, "first_delay_max_s": False}),
    "jittered": _of(Jittered),
    "poisson": _of(Poisson),
    "lognormal": _of(Lognormal),
    "bursts": _of(Bursts),
    "diurnal": _of(Diurnal),
    "trace": _Named(_replay, {"file": True, "scale": False, "from_first": False}),
    "think": _of(ThinkTime),
    "threads": _of(Threads),
}

NAMES = tuple(_REGISTRY)
"""Names that ``arrival`` knows. All are open loops but ``think`` and ``threads``."""


def arrival(name: str, params: Mapping[str, object], read: Callable[[str], str] | None = None) -> Arrival | Closed:
    """An arrival process by its name and parameters, as configuration files have them.

    Raises ConfigError, a UsageError that names the key which is wrong, unknown or missing.

    Args:
        name: one of ``NAMES``.
        params: the process's attributes by name; for ``trace`` also ``file``.
        read: gives the text of a trace's ``file``; this module opens none.
    """
    if name not in _REGISTRY:
        raise ConfigError("arrival", "name", f"{name!r}: expected one of {', '.join(NAMES)}")
    named = _REGISTRY[name]
    for key in params:
        if key not in named.keys:
            raise ConfigError(f"arrival {name}", str(key), f"unknown key, expected one of {', '.join(named.keys)}")
    for key, is_needed in named.keys.items():
        if is_needed and key not in params:
            raise ConfigError(f"arrival {name}", key, "is missing")
    make = partial(named.make, read=read) if name == "trace" else named.make
    return make(**params)


# --- the plan ---


@dataclass(frozen=True, slots=True)
class Plan:
    """Every operation of a schedule in the order it is due: columns of equal length.

    Attributes:
        due_ns: nanoseconds from the start, ascending.
        sensor: the sensor that is due.
        seq: the sensor's sequence number of the operation.
        code: what each operation is, an index into ``trace.VERBS``; None where the experiment decides.
        size_bytes: the size of each operation, None where ``code`` is.
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
        """When the last operation is due, in seconds from the start."""
        return self.due_ns[-1] / 1e9 if self.due_ns else 0.0

    def limited(self, count_of: Callable[[int], int]) -> Plan:
        """Returns the plan with at most ``count_of(sensor)`` operations of each sensor."""
        rows = [row for row, sensor in enumerate(self.sensor) if self.seq[row] < count_of(sensor)]

        def chosen(column: array[int]) -> array[int]:
            return array(column.typecode, map(column.__getitem__, rows))

        codes, sizes = self.code, self.size_bytes
        return Plan(
            chosen(self.due_ns), chosen(self.sensor), chosen(self.seq), codes if codes is None else chosen(codes),
            sizes if sizes is None else chosen(sizes),
        )  # fmt: skip

    def busiest(self, window_ns: int) -> int:
        """The most operations due within any ``window_ns``."""
        best, tail = 0, 0
        for head, due in enumerate(self.due_ns):
            while due - self.due_ns[tail] > window_ns:
                tail += 1
            best = max(best, head - tail + 1)
        return best


def plan(arrival: Arrival, sensors: Iterable[int], count: int, seed: str, time_scale: float = 1.0) -> Plan:
    """Unfold an arrival process for some sensors, ``count`` operations each; ``time_scale`` divides all times.

    Raises UsageError when a time does not fit into 64 bits of nanoseconds (292 years).
    """
    sensors = list(sensors)
    try:
        rows = sorted(
            (round(due * 1e9 / time_scale), sensor, seq)
            for sensor in sensors
            for seq, due in enumerate(arrival.due_s(seed, sensor, count))
        )
        due_ns, number, seqs = (array("q", (row[place] for row in rows)) for place in range(3))
    except (OverflowError, ValueError) as error:
        raise UsageError(f"{arrival!r}: an operation is due more than 292 years after the start") from error
    given = {sensor: steps for sensor in sensors if (steps := arrival.steps(sensor, count)) is not None}
    if not given:
        return Plan(due_ns, number, seqs)
    codes = {verb: code for code, verb in enumerate(VERBS)}
    return Plan(
        due_ns, number, seqs,
        array("b", (codes[given[sensor][seq][0]] for _, sensor, seq in rows)),
        array("q", (given[sensor][seq][1] for _, sensor, seq in rows)),
    )  # fmt: skip
