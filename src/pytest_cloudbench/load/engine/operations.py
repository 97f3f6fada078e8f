"""What the operations of an experiment do to a provider, and which agent does which of them.

What may live here: the task behind each verb, files that a run leaves for the next one, how operations are dealt
out, and the check that a trace can be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.load.engine.engine import Budget, Task
from pytest_cloudbench.load.request import Files, Load
from pytest_cloudbench.model import CloudError, Content, Entry, ErrorKind, UsageError, Verb
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.workload.arrival import Arrival, Closed, ThinkTime, Threads, count_due
from pytest_cloudbench.workload.payload import Generator, digest

OPERATIONS = (Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE, Verb.SHARE)
"""What an experiment can do. All but the first work on existing files."""

_REPLAYED = (Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST)


@dataclass(frozen=True, slots=True)
class TracedWork:
    """What a trace has some sensors do.

    Attributes:
        ops, size_bytes: operations, and bytes moved by them, up and down.
        targets: for a get or stat by (sensor, sequence number), the sequence number and size of its file.
    """

    ops: int
    size_bytes: int
    targets: Mapping[tuple[int, int], tuple[int, int]]


def traced_work(
    arrival: Arrival | Closed, sensors: Iterable[int], count: int | Callable[[int], int]
) -> TracedWork | None:
    """Return the work of an arrival process that specifies each operation; None for the others.

    ``count`` is how many operations a sensor has at most. A get or a stat uses the file that the same sensor put
    last. Raises UsageError if there is none, and for verbs that are not replayed.
    """
    if isinstance(arrival, Closed) or arrival.steps(0, 0) is None:
        return None
    ops = size_bytes = 0
    targets: dict[tuple[int, int], tuple[int, int]] = {}
    for sensor in sensors:
        steps = arrival.steps(sensor, count(sensor) if callable(count) else count) or ()
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
    return TracedWork(ops, size_bytes, targets)


@dataclass(frozen=True, slots=True)
class Deal:
    """How the operations of a run are dealt out to agents. Every agent computes the same.

    Sensor *s* belongs to agent *s* mod *n*. ``Threads`` are dealt in the same way, and files to threads; within an
    agent its threads share one queue.

    Attributes:
        arrival: when operations are due.
        sensors: logical sensors; with ``Threads`` the number of files.
        ops_per_sensor: operations of each.
        members: with ``Threads``, the files that operations are about; None for new ones.
        limits: with sensors, the most operations of each: files of a run that ended early, or operations that are due
            in time. None for no limit.
        for_s: when a closed loop ends; 0 when its operations are done.
    """

    arrival: Arrival | Closed
    sensors: int
    ops_per_sensor: int
    members: Sequence[tuple[int, int]] | None = None
    limits: Sequence[int] | None = None
    for_s: float = 0.0

    @classmethod
    def of(cls, load: Load, members: Sequence[tuple[int, int]] | None, seed: str = "") -> Deal:
        """Deal out a load; ``members`` are the existing files that it is about, ``seed`` decides due times.

        Raises UsageError.
        """
        arrival, sensors, count, files = load.arrival, load.sensors, load.ops_per_sensor, load.files
        given: dict[str, object] = {"sensors": sensors, "ops_per_sensor": count, "files": files}
        for key, value in given.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise UsageError(f"experiment.run: {key}={value!r}: expected a whole number of 1 or more")
        if not isinstance(arrival, Threads):
            if files or sensors < 1 or count < 1:
                found = f"files={files}" if files else f"sensors={sensors}, ops_per_sensor={count}"
                raise UsageError(f"experiment.run: {found}: {arrival!r} expects 1 or more sensors and ops_per_sensor")
            limits = load.on.limits if load.on is not None and not load.in_turn else None
            if load.for_s and not isinstance(arrival, Closed):
                due = [count_due(arrival, seed, sensor, load.for_s) for sensor in range(sensors)]
                limits = due if limits is None else [min(both) for both in zip(due, limits, strict=False)]
                return cls(arrival, sensors, max(limits, default=0), limits=limits)
            return cls(arrival, sensors, count, limits=limits, for_s=load.for_s)
        if sensors or (files < 1 and members is None):
            raise UsageError("experiment.run: Threads expect the number of files, not sensors")
        chosen = members if members is None or not files else members[:files]
        return cls(arrival, files if chosen is None else len(chosen), 1, chosen, for_s=load.for_s)

    def count_of(self, sensor: int) -> int:
        """Returns how many operations a sensor has."""
        if self.limits is None:
            return self.ops_per_sensor
        return min(self.ops_per_sensor, self.limits[sensor]) if sensor < len(self.limits) else 0

    @property
    def ops(self) -> int:
        """All operations."""
        if self.limits is None:
            return self.sensors * self.ops_per_sensor
        return sum(map(self.count_of, range(self.sensors)))

    def files(self, index: int, agents: int) -> list[tuple[int, int]]:
        """Returns (sensor, sequence number) of one agent's operations, in the order in which a pool takes them."""
        if isinstance(self.arrival, Threads):
            threads, members = self.arrival.count, self.members
            places = (place for place in range(self.sensors) if place % threads % agents == index)
            return [members[place] if members is not None else (place, 0) for place in places]
        mine = range(index, self.sensors, agents)
        return [(sensor, seq) for seq in range(self.ops_per_sensor) for sensor in mine if seq < self.count_of(sensor)]

    def count(self, index: int, agents: int) -> int:
        """Returns how many files there are."""
        if isinstance(self.arrival, Threads):
            threads = self.arrival.count
            return sum(len(range(thread, self.sensors, threads)) for thread in range(index, threads, agents))
        mine = range(index, self.sensors, agents)
        return self.ops_per_sensor * len(mine) if self.limits is None else sum(map(self.count_of, mine))

    def traced(self, index: int, agents: int) -> TracedWork | None:
        """Return one agent's work as a trace specifies it; None if there is no trace."""
        return traced_work(self.arrival, range(index, self.sensors, agents), self.count_of)

    def threads(self, index: int, agents: int) -> range:
        """The numbers of one agent's threads in a pool."""
        count = self.arrival.count if isinstance(self.arrival, Threads) else 0
        return range(index, min(count, self.sensors), agents)

    def planned_s(self) -> float:
        """Returns the least time that a closed loop takes; if it ends at a time, that one."""
        if self.for_s:
            return self.for_s
        if isinstance(self.arrival, Threads):
            return self.arrival.horizon_s(self.sensors)
        return self.arrival.horizon_s(self.ops_per_sensor) if isinstance(self.arrival, ThinkTime) else 0.0


def _sized(payload: Generator, size_bytes: int) -> Generator:
    """Returns the same generator for another size."""
    try:
        sized: Any = replace(payload, size_bytes=size_bytes)  # type: ignore[type-var]  # checked right here
    except TypeError as error:
        name = type(payload).__name__
        raise UsageError(f"{name} makes files of one size only, but a trace gives the size of each") from error
    made: Generator = sized
    return made


@dataclass(frozen=True, slots=True)
class Upload:
    """Puts one new file per operation into a folder, or does what a trace says."""

    driver: Driver
    files: Files
    targets: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    verb: Verb = Verb.PUT

    def prepare(self, sensor: int, seq: int) -> tuple[tuple[str, Content], int, bytes]:
        """The file's path and content, its size and its digest."""
        path, content = self.files.file(sensor, seq)
        algorithm = self.driver.capabilities.digest_of(content.size_bytes)
        return (path, content), content.size_bytes, digest(content, algorithm) if algorithm else b""

    def execute(self, prepared: tuple[str, Content]) -> int:
        """Upload it."""
        self.driver.put(*prepared)
        return 0

    def step(self, verb: Verb, size_bytes: int) -> Task:
        """The task of one row of a trace."""
        if verb is Verb.PUT:
            return replace(self, files=replace(self.files, payload=_sized(self.files.payload, size_bytes)))
        return OnFile(self.driver, verb, self.files.folder, self._target)

    def _target(self, sensor: int, seq: int) -> tuple[str, Content]:
        number, size_bytes = self.targets[sensor, seq]
        return self.files.path(sensor, number), _sized(self.files.payload, size_bytes).content(sensor, number)


@dataclass(frozen=True, slots=True)
class OnFile:
    """An operation on a file or folder that exists already.

    Attributes:
        driver: where.
        verb: any of ``OPERATIONS`` except the first.
        folder: what a list lists.
        file: path and expected content of the file that an operation uses.
    """

    driver: Driver
    verb: Verb
    folder: str
    file: Callable[[int, int], tuple[str, Content]]

    def prepare(self, sensor: int, seq: int) -> tuple[tuple[str, Content | None, bytes], int, bytes]:
        """Path, content and digest (if it will be compared), and the bytes that will be moved."""
        if self.verb is Verb.LIST:
            return (self.folder, None, b""), 0, b""
        path, content = self.file(sensor, seq)
        algorithm = self.driver.capabilities.digest_of(content.size_bytes) if self.verb is Verb.STAT else None
        expected = digest(content, algorithm) if algorithm else b""
        return (path, content, expected), content.size_bytes if self.verb is Verb.GET else 0, expected

    def execute(self, prepared: tuple[str, Content | None, bytes]) -> int:
        """Do it. A download, or a stat's size or digest, is corrupt if it differs from what was uploaded."""
        path, content, expected = prepared
        if self.verb is Verb.GET and content is not None:
            return _download(self.driver, path, content)
        if self.verb is Verb.STAT and content is not None:
            _compare(self.driver.stat(path), content.size_bytes, expected)
        elif self.verb is Verb.LIST:
            for _ in self.driver.list(path):
                pass
        else:
            getattr(self.driver, self.verb.value)(path)
        return 0


def compare(driver: Driver, path: str, content: Content, clock: Callable[[], int] = now_ns) -> tuple[int, int, bool]:
    """Read a file to its end and compare it with what was uploaded.

    Returns when its first byte came (ns, 0 if that is not known), how many bytes came, and whether these were the
    right ones.
    """
    first_byte_ns = at = 0
    is_right, streams = True, driver.capabilities.streams
    for piece in driver.get(path):
        first_byte_ns = first_byte_ns or (clock() if streams else 0)
        is_right = is_right and content.read(at, len(piece)) == piece
        at += len(piece)
    return first_byte_ns, at, is_right


def _download(driver: Driver, path: str, content: Content) -> int:
    """Read a file and compare it. Returns when its first byte came."""
    first_byte_ns, read_bytes, is_right = compare(driver, path, content)
    if read_bytes != content.size_bytes:
        detail = f"{read_bytes} bytes instead of {content.size_bytes}"
    elif not is_right:
        detail = "other bytes than were uploaded"
    else:
        return first_byte_ns
    raise CloudError(ErrorKind.CORRUPT, Verb.GET.value, path, detail=detail)


def _compare(found: Entry, size_bytes: int, expected: bytes) -> None:
    """Compare a provider's metadata of a file with what was uploaded. Content is compared if there is a digest."""
    if found.size_bytes != size_bytes:
        detail = f"size {found.size_bytes} instead of {size_bytes}"
    elif expected and found.digest is not None and found.digest != expected.hex():
        detail = f"digest {found.digest} instead of {expected.hex()}"
    else:
        return
    raise CloudError(ErrorKind.CORRUPT, Verb.STAT.value, found.path, detail=detail)


def _shares(whole: int, wanted: Sequence[int]) -> list[int]:
    """Divide ``whole`` as evenly as the demands allow; nothing is left over while a demand is unmet."""
    given, left = [0] * len(wanted), whole
    for rank, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[index] = min(wanted[index], -(-left // (len(wanted) - rank)))
        left -= given[index]
    return given


def budget_of(
    deal: Deal, payload: Generator, prepares: bool, place: tuple[int, int], bounds: tuple[int | None, int | None]
) -> Budget:
    """One agent's part of a run's budget; files uploaded in preparation count too.

    Args:
        deal: what agents do.
        payload: of the files.
        prepares: whether its files are uploaded first.
        place: which agent, of how many.
        bounds: the most operations and bytes of the run; None for no bound.
    """
    index, agents = place
    max_ops, max_bytes = bounds
    if max_ops is None and max_bytes is None:
        return Budget()
    works = [deal.traced(number, agents) for number in range(agents)]
    times, unit = 1 + prepares, 1
    ops = [work.ops if work else deal.count(number, agents) * times for number, work in enumerate(works)]
    units = [work.size_bytes if work else 0 for work in works]
    if works[0] is None:
        units, unit = ops, max(1, payload.size_bytes)

    def part(whole: int | None, wanted: Sequence[int], unit: int) -> int | None:
        return None if whole is None else _shares(whole // unit, wanted)[index] * unit

    return Budget(part(max_ops, ops, 1), part(max_bytes, units, unit))


def task_of(driver: Driver, operation: Verb, files: Files, targets: Mapping[Any, Any]) -> Upload | OnFile:
    """The task of a run. Raises UsageError for an operation, or a name, that an experiment or this driver cannot do."""
    if operation not in OPERATIONS or operation not in driver.capabilities.verbs:
        able = [each.value for each in OPERATIONS if each in driver.capabilities.verbs]
        raise UsageError(f"operation {operation.value!r}: this provider's driver offers {', '.join(able)}")
    for name in files.path(0, 0).split("/")[1:]:
        if problem := driver.capabilities.names.problem(name):
            raise UsageError(f"file name {name!r}: this provider does not accept it: {problem}")
    if operation is Verb.PUT:
        return Upload(driver, files, targets)
    return OnFile(driver, operation, files.folder, files.file)
