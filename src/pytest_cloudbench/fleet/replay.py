"""What the operations of a replayed trace do to a provider.

What may live here: the task behind each verb of a trace, and the check that a trace can be replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_cloudbench.arrival import Arrival
from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.engine import Task, now_ns
from pytest_cloudbench.fleet.facts import object_name
from pytest_cloudbench.model import CloudError, Content, ErrorKind, UsageError, Verb
from pytest_cloudbench.payload import Generator, digest

__all__ = ["Load", "Upload", "load_of"]

_REPLAYED = (Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST)


@dataclass(frozen=True, slots=True)
class Load:
    """What some sensors are going to do.

    Attributes:
        ops, size_bytes: operations, and bytes moved by them, up and down.
        targets: for a get or stat of (sensor, sequence number), the number and size of the file it is about.
    """

    ops: int
    size_bytes: int
    targets: Mapping[tuple[int, int], tuple[int, int]]


def load_of(arrival: Arrival, sensors: Iterable[int], count: int) -> Load | None:
    """The load of an arrival process that says what each operation is; None for the others.

    A get or a stat is about the file that the same sensor has put last. Raises UsageError where there is none, and
    for verbs that are not replayed.
    """
    if arrival.steps(0, 0) is None:
        return None
    ops = size_bytes = 0
    targets: dict[tuple[int, int], tuple[int, int]] = {}
    for sensor in sensors:
        steps = arrival.steps(sensor, count) or ()
        last: tuple[int, int] | None = None
        for seq, (verb, size) in enumerate(steps):
            where = f"{arrival!r}: operation {seq + 1} of sensor {sensor} is {verb.value}"
            if verb not in _REPLAYED:
                raise UsageError(f"{where}; only {', '.join(each.value for each in _REPLAYED)} are replayed")
            if verb is Verb.PUT:
                last = (seq, size)
                size_bytes += size
            elif verb is not Verb.LIST:
                if last is None:
                    raise UsageError(f"{where}, but the sensor has put nothing before")
                targets[sensor, seq] = last
                size_bytes += last[1] if verb is Verb.GET else 0
        ops += len(steps)
    return Load(ops, size_bytes, targets)


@dataclass(frozen=True, slots=True)
class Upload:
    """Puts one new file per operation into the experiment's folder, or does what a trace says."""

    driver: Driver
    folder: str
    payload: Generator
    targets: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    suffix: str = ""
    verb: Verb = Verb.PUT

    def prepare(self, sensor: int, seq: int) -> tuple[tuple[str, Content], int, bytes]:
        """The file's name and content, its size and its digest."""
        content = self.payload.content(sensor, seq)
        algorithm = self.driver.capabilities.digest
        name = f"{self.folder}/{object_name(sensor, seq, self.suffix)}"
        return (name, content), content.size_bytes, digest(content, algorithm) if algorithm else b""

    def execute(self, prepared: tuple[str, Content]) -> int:
        """Upload it."""
        self.driver.put(*prepared)
        return 0

    def step(self, verb: Verb, size_bytes: int) -> Task:
        """The task of one row of a trace."""
        if verb is not Verb.PUT:
            return _Other(self.driver, self.folder, self.targets, self.suffix, verb)
        try:
            sized: Any = replace(self.payload, size_bytes=size_bytes)  # type: ignore[type-var]  # checked right here
        except TypeError as error:
            name = type(self.payload).__name__
            raise UsageError(f"{name} makes files of one size only, and a trace says the size of each") from error
        return replace(self, payload=sized)


@dataclass(frozen=True, slots=True)
class _Other:
    """A get, stat or list of a trace."""

    driver: Driver
    folder: str
    targets: Mapping[tuple[int, int], tuple[int, int]]
    suffix: str
    verb: Verb

    def prepare(self, sensor: int, seq: int) -> tuple[tuple[str, int], int, bytes]:
        """The path and the size of the file it is about."""
        if self.verb is Verb.LIST:
            return (self.folder, 0), 0, b""
        number, size_bytes = self.targets[sensor, seq]
        path = f"{self.folder}/{object_name(sensor, number, self.suffix)}"
        return (path, size_bytes), size_bytes if self.verb is Verb.GET else 0, b""

    def execute(self, prepared: tuple[str, int]) -> int:
        """Do it. A download of another length than was uploaded is corrupt."""
        path, size_bytes = prepared
        if self.verb is Verb.STAT:
            self.driver.stat(path)
        elif self.verb is Verb.LIST:
            for _ in self.driver.list(path):
                pass
        else:
            first_byte_ns = got = 0
            for piece in self.driver.get(path):
                first_byte_ns = first_byte_ns or now_ns()
                got += len(piece)
            if got != size_bytes:
                detail = f"{got} bytes instead of {size_bytes}"
                raise CloudError(ErrorKind.CORRUPT, self.verb.value, path, detail=detail)
            return first_byte_ns
        return 0
