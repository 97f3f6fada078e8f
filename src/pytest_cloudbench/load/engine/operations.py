"""The operations of an experiment: the task behind each verb, and the operations that each agent does.

What may live here: these tasks, files that a run leaves for the next one, how operations are dealt out, and the check
that a trace can be replayed.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.load.engine.engine import Budget, Task
from pytest_cloudbench.load.messages import LoadShape
from pytest_cloudbench.load.request import Files, Load
from pytest_cloudbench.model import CloudError, Content, Entry, ErrorKind, UsageError, Verb
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.workload.arrival import Arrival, Closed, Threads, changes, count_due
from pytest_cloudbench.workload.payload import Generator, digest
from pytest_cloudbench.workload.trace import MAX_WAIT_S, Replay

OPERATIONS = (Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE, Verb.SHARE)
"""The operations that an experiment can do. All but the first work on existing files."""

_REPLAYED = (Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST)

_WITHOUT_FILES = (Verb.PUT, Verb.LIST)
"""Operations that succeed for a sensor that has no file."""


@dataclass(frozen=True, slots=True)
class TracedWork:
    """The operations of some sensors as a trace specifies them.

    Attributes:
        counts: the number of operations of each verb.
        up_bytes, down_bytes: the bytes that they upload and download.
        targets: maps the (sensor, sequence number) of a get or stat to the sequence number and size of its file.
    """

    counts: Mapping[Verb, int]
    up_bytes: int
    down_bytes: int
    targets: Mapping[tuple[int, int], tuple[int, int]]

    @property
    def ops(self) -> int:
        """The number of operations."""
        return sum(self.counts.values())

    @property
    def size_bytes(self) -> int:
        """The bytes that they move, up and down."""
        return self.up_bytes + self.down_bytes


def find_traced_work(
    arrival: Arrival | Closed, sensors: Iterable[int], count: int | Callable[[int], int]
) -> TracedWork | None:
    """Return the work of an arrival process that specifies each operation, None for any other.

    A sensor has at most ``count`` operations. A get or a stat uses the file that the same sensor put last. Raises
    UsageError if there is no such file, for verbs that are not replayed, and for a trace that begins in some days.
    """
    if isinstance(arrival, Closed) or arrival.steps(0, 0) is None:
        return None
    if isinstance(arrival, Replay) and arrival.begin_s > MAX_WAIT_S:  # most likely seconds since 1970
        days = arrival.begin_s / 86400
        raise UsageError(
            f"{arrival.trace!r} begins after {days:,.1f} days; with from_first, its times count from its earliest row"
        )
    counts, up_bytes, down_bytes = Counter[Verb](), 0, 0
    targets: dict[tuple[int, int], tuple[int, int]] = {}
    for sensor in sensors:
        steps = arrival.steps(sensor, count(sensor) if callable(count) else count) or ()
        last: tuple[int, int] | None = None
        for seq, (verb, size) in enumerate(steps):
            where = f"{arrival!r}: operation {seq + 1} of sensor {sensor} is {verb.value}"
            if verb not in _REPLAYED:
                raise UsageError(f"{where}; only {', '.join(operation.value for operation in _REPLAYED)} are replayed")
            if verb is Verb.PUT:
                last = (seq, size)
                up_bytes += size
            elif verb is not Verb.LIST:
                if last is None:
                    raise UsageError(f"{where}, but the sensor has put nothing before")
                targets[sensor, seq] = last
                down_bytes += last[1] if verb is Verb.GET else 0
            counts[verb] += 1
    return TracedWork(counts, up_bytes, down_bytes, targets)


def _count_allowed(load: Load) -> Sequence[int] | None:
    """Return the most operations of each sensor on the files of a former run, or None for no limit."""
    if load.on is None:
        return None
    if not load.in_turn:
        return load.on.limits
    if load.operation in _WITHOUT_FILES:
        return None
    with_files = {sensor for sensor, _ in load.on.members}
    if with_files.issuperset(range(load.sensors)):
        return None
    return [sys.maxsize if sensor in with_files else 0 for sensor in range(load.sensors)]


def sample_files(on: Files, share: float, seed: str) -> Sequence[tuple[int, int]]:
    """Return a random share of kept files, the same on every agent: at least one file if there are any."""
    if share >= 1.0 or not on.members:
        return on.members
    count = max(1, round(share * len(on.members)))
    return sorted(Random(seed).sample(list(on.members), count))


def written_files(files: Files, deal: Deal, tried: bytes | None) -> Files:
    """Return the files that a run has left. ``tried`` has the number of each sensor's files if the run ended early."""
    if tried is None:
        return replace(files, members=deal.agent_files(0, 1), limits=deal.limits)
    limits = array("I")
    limits.frombytes(tried)
    written = sorted((seq, sensor) for sensor, count in enumerate(limits) for seq in range(count))
    return replace(files, members=[(sensor, seq) for seq, sensor in written], limits=limits)


@dataclass(frozen=True, slots=True)
class Deal:
    """The distribution of a run's operations to its agents. Every agent computes the same one.

    Sensor *s* belongs to agent *s* mod *n*. ``Threads`` are dealt out in the same way, and so are files to threads. The
    threads of an agent share one queue.

    Attributes:
        arrival: when operations are due.
        sensors: logical sensors, or with ``Threads`` the number of files.
        ops_per_sensor: operations of each sensor.
        members: with ``Threads``, the existing files that operations work on. None for new files.
        limits: with sensors, the most operations of each sensor: files of a run that ended early, none for a sensor
            without files, or operations that are due in time. None for no limit.
        for_s: seconds after which a closed loop ends. 0 if it ends with its last operation.
    """

    arrival: Arrival | Closed
    sensors: int
    ops_per_sensor: int
    members: Sequence[tuple[int, int]] | None = None
    limits: Sequence[int] | None = None
    for_s: float = 0.0

    @classmethod
    def from_load(cls, load: Load, members: Sequence[tuple[int, int]] | None, seed: str = "") -> Deal:
        """Deal out a load. ``members`` are the existing files that it works on, and ``seed`` decides due times.

        Raises UsageError.
        """
        arrival, sensors, count, files = load.arrival, load.sensors, load.ops_per_sensor, load.files
        counts: dict[str, object] = {"sensors": sensors, "ops_per_sensor": count, "files": files}
        for key, value in counts.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise UsageError(f"experiment.run: {key}={value!r}: expected a whole number of 1 or more")
        if not isinstance(arrival, Threads):
            if files or sensors < 1 or count < 1:
                stated = f"files={files}" if files else f"sensors={sensors}, ops_per_sensor={count}"
                raise UsageError(f"experiment.run: {stated}: {arrival!r} expects 1 or more sensors and ops_per_sensor")
            limits = _count_allowed(load)
            if load.for_s and not isinstance(arrival, Closed):
                due = [count_due(arrival, seed, sensor, load.for_s) for sensor in range(sensors)]
                limits = (
                    due
                    if limits is None
                    else [min(limits_of_sensor) for limits_of_sensor in zip(due, limits, strict=False)]
                )
                return cls(arrival, sensors, max(limits, default=0), limits=limits)
            return cls(arrival, sensors, count, limits=limits, for_s=load.for_s)
        if sensors or (files < 1 and members is None):
            raise UsageError("experiment.run: Threads expect the number of files, not sensors")
        chosen = members if members is None or not files else members[:files]
        return cls(arrival, files if chosen is None else len(chosen), 1, chosen, for_s=load.for_s)

    def ops_of_sensor(self, sensor: int) -> int:
        """Return the number of operations of a sensor."""
        if self.limits is None:
            return self.ops_per_sensor
        return min(self.ops_per_sensor, self.limits[sensor]) if sensor < len(self.limits) else 0

    @property
    def ops(self) -> int:
        """The number of operations of all sensors together."""
        if self.limits is None:
            return self.sensors * self.ops_per_sensor
        return sum(map(self.ops_of_sensor, range(self.sensors)))

    def agent_files(self, index: int, agents: int) -> list[tuple[int, int]]:
        """Return (sensor, sequence number) of each of one agent's files, in the order in which a pool takes them."""
        if isinstance(self.arrival, Threads):
            threads, members = self.arrival.count, self.members
            numbers = (number for number in range(self.sensors) if number % threads % agents == index)
            return [members[number] if members is not None else (number, 0) for number in numbers]
        sensors = range(index, self.sensors, agents)
        return [
            (sensor, seq)
            for seq in range(self.ops_per_sensor)
            for sensor in sensors
            if seq < self.ops_of_sensor(sensor)
        ]

    def count_agent_files(self, index: int, agents: int) -> int:
        """Return the length of ``agent_files`` without making the list."""
        if isinstance(self.arrival, Threads):
            threads = self.arrival.count
            return sum(len(range(thread, self.sensors, threads)) for thread in range(index, threads, agents))
        sensors = range(index, self.sensors, agents)
        return self.ops_per_sensor * len(sensors) if self.limits is None else sum(map(self.ops_of_sensor, sensors))

    def traced_work(self, index: int, agents: int) -> TracedWork | None:
        """Return one agent's work as a trace specifies it, or None if there is no trace."""
        return find_traced_work(self.arrival, range(index, self.sensors, agents), self.ops_of_sensor)

    def agent_threads(self, index: int, agents: int) -> range:
        """Return the numbers of one agent's threads in a pool."""
        count = self.arrival.count if isinstance(self.arrival, Threads) else 0
        return range(index, min(count, self.sensors), agents)

    def planned_s(self) -> float:
        """Return the longest time that a closed loop takes if each operation is instant, or ``for_s`` if that ends it.

        Return 0 for an open loop.
        """
        if self.for_s or not isinstance(self.arrival, Closed):
            return self.for_s
        return self.arrival.horizon_s(self._operations_in_turn)

    def shortest_s(self) -> float:
        """Return the shortest time that a closed loop takes, or ``for_s`` if that ends it.

        Return 0 for an open loop.
        """
        if self.for_s or not isinstance(self.arrival, Closed):
            return self.for_s
        return self.arrival.shortest_s(self._operations_in_turn)

    @property
    def _operations_in_turn(self) -> int:
        """The operations among which a closed loop pauses: of all its threads, or of each sensor."""
        return self.sensors if isinstance(self.arrival, Threads) else self.ops_per_sensor


def _with_size(payload: Generator, size_bytes: int) -> Generator:
    """Return the same generator for another size. Raises UsageError if it has one size only."""
    try:
        resized: Any = replace(payload, size_bytes=size_bytes)  # type: ignore[type-var]  # checked right here
    except TypeError as error:
        name = type(payload).__name__
        raise UsageError(f"{name} makes files of one size only, but a trace gives the size of each") from error
    generator: Generator = resized
    return generator


@dataclass(frozen=True, slots=True)
class Upload:
    """A task that uploads one new file per operation, or does the operations of a trace."""

    driver: Driver
    files: Files
    targets: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    verb: Verb = Verb.PUT

    def prepare(self, sensor: int, seq: int) -> tuple[tuple[str, Content], int, bytes]:
        """Return (path, content) of the file, its size and its digest."""
        path, content = self.files.file(sensor, seq)
        algorithm = self.driver.capabilities.digest_of(content.size_bytes)
        return (path, content), content.size_bytes, digest(content, algorithm) if algorithm else b""

    def execute(self, prepared: tuple[str, Content]) -> int:
        """Upload the file."""
        self.driver.put(*prepared)
        return 0

    def step(self, verb: Verb, size_bytes: int) -> Task:
        """Return the task of one row of a trace."""
        if verb is Verb.PUT:
            return replace(self, files=replace(self.files, payload=_with_size(self.files.payload, size_bytes)))
        return FileOperation(self.driver, verb, self.files.folder, self._target_file)

    def _target_file(self, sensor: int, seq: int) -> tuple[str, Content]:
        number, size_bytes = self.targets[sensor, seq]
        return self.files.path(sensor, number), _with_size(self.files.payload, size_bytes).content(sensor, number)


@dataclass(frozen=True, slots=True)
class FileOperation:
    """A task on a file or folder that exists already.

    Attributes:
        driver: the provider's driver.
        verb: any of ``OPERATIONS`` except the first.
        folder: the folder that a list lists.
        file: returns path and expected content of a file from its sensor and sequence number.
    """

    driver: Driver
    verb: Verb
    folder: str
    file: Callable[[int, int], tuple[str, Content]]

    def prepare(self, sensor: int, seq: int) -> tuple[tuple[str, Content | None, bytes], int, bytes]:
        """Return (path, content, digest), the number of bytes that will be moved, and the digest again.

        The digest is empty if it is not compared.
        """
        if self.verb is Verb.LIST:
            return (self.folder, None, b""), 0, b""
        path, content = self.file(sensor, seq)
        algorithm = self.driver.capabilities.digest_of(content.size_bytes) if self.verb is Verb.STAT else None
        expected = digest(content, algorithm) if algorithm else b""
        return (path, content, expected), content.size_bytes if self.verb is Verb.GET else 0, expected

    def execute(self, prepared: tuple[str, Content | None, bytes]) -> int:
        """Run the operation.

        A download, or a stat's size or digest, is corrupt if it differs from the uploaded file.
        """
        path, content, expected = prepared
        if self.verb is Verb.GET and content is not None:
            return _download_and_compare(self.driver, path, content)
        if self.verb is Verb.STAT and content is not None:
            _compare_metadata(self.driver.stat(path), content.size_bytes, expected)
        elif self.verb is Verb.LIST:
            for _ in self.driver.list(path):
                pass
        else:
            getattr(self.driver, self.verb.value)(path)
        return 0


def compare_content(
    driver: Driver, path: str, content: Content, clock: Callable[[], int] = now_ns
) -> tuple[int, int, bool]:
    """Read a file to its end and compare it with the uploaded content.

    Return the time of its first byte (ns, 0 if unknown), the number of bytes that were read, and whether they are the
    uploaded ones.
    """
    first_byte_ns = offset = 0
    is_right, streams = True, driver.capabilities.streams
    for piece in driver.get(path):
        first_byte_ns = first_byte_ns or (clock() if streams else 0)
        is_right = is_right and content.read(offset, len(piece)) == piece
        offset += len(piece)
    return first_byte_ns, offset, is_right


def _download_and_compare(driver: Driver, path: str, content: Content) -> int:
    """Read a file and compare it. Return the time of its first byte. Raises CloudError if the content differs."""
    first_byte_ns, read_bytes, is_right = compare_content(driver, path, content)
    if read_bytes != content.size_bytes:
        detail = f"{read_bytes} bytes instead of {content.size_bytes}"
    elif not is_right:
        detail = "other bytes than were uploaded"
    else:
        return first_byte_ns
    raise CloudError(ErrorKind.CORRUPT, Verb.GET.value, path, detail=detail)


def _compare_metadata(entry: Entry, size_bytes: int, expected: bytes) -> None:
    """Compare a provider's metadata of a file with the uploaded content, by its digest if there is one."""
    if entry.size_bytes != size_bytes:
        detail = f"size {entry.size_bytes} instead of {size_bytes}"
    elif expected and entry.digest is not None and entry.digest != expected.hex():
        detail = f"digest {entry.digest} instead of {expected.hex()}"
    else:
        return
    raise CloudError(ErrorKind.CORRUPT, Verb.STAT.value, entry.path, detail=detail)


def _share_evenly(total: int, demands: Sequence[int]) -> list[int]:
    """Divide ``total`` as evenly as the demands allow, until it is used up or all demands are met."""
    shares, remaining = [0] * len(demands), total
    for rank, index in enumerate(sorted(range(len(demands)), key=demands.__getitem__)):
        shares[index] = min(demands[index], -(-remaining // (len(demands) - rank)))
        remaining -= shares[index]
    return shares


def agent_budget(
    deal: Deal, payload: Generator, prepares: bool, agent: tuple[int, int], bounds: tuple[int | None, int | None]
) -> Budget:
    """Return one agent's part of a run's budget. Files that are uploaded in preparation count, too.

    Args:
        deal: the distribution of operations to agents.
        payload: makes the content of the files.
        prepares: whether its files are uploaded first.
        agent: the agent's index, and the number of agents.
        bounds: the most operations and bytes of the run, None for no bound.
    """
    index, agents = agent
    max_ops, max_bytes = bounds
    if max_ops is None and max_bytes is None:
        return Budget()
    works = [deal.traced_work(number, agents) for number in range(agents)]
    times, unit = 1 + prepares, 1
    ops = [work.ops if work else deal.count_agent_files(number, agents) * times for number, work in enumerate(works)]
    units = [work.size_bytes if work else 0 for work in works]
    if works[0] is None:
        units, unit = ops, max(1, payload.size_bytes)

    def share_of(bound: int | None, demands: Sequence[int], unit: int) -> int | None:
        if bound is None:
            return None
        shares = _share_evenly(bound // unit, demands)
        # Demands in bytes are estimates: if sizes differ, an agent's files may be larger than the mean.
        rest = bound - sum(shares) * unit
        return shares[index] * unit + rest // agents

    return Budget(share_of(max_ops, ops, 1), share_of(max_bytes, units, unit))


def make_load_shape(load: Load, deal: Deal, files: Files, prepares: bool) -> LoadShape:
    """Return the plan of a run. ``prepares`` says whether its files are uploaded first."""
    work, payload = deal.traced_work(0, 1), files.payload
    ops = work.ops if work else deal.ops
    threads = deal.arrival.count if isinstance(deal.arrival, Threads) else None
    return LoadShape(
        ops, work.size_bytes if work else ops * payload.size_bytes, ops if prepares else 0,
        deal.sensors if threads is None else None, deal.ops_per_sensor, threads, repr(deal.arrival),
        "closed" if isinstance(deal.arrival, Closed) else "open", None if work else payload.size_bytes,
        type(payload).__name__, files.names, load.operation, load.warm_up_s, load.for_s, load.until,
        load.may_drift or changes(load.arrival), load.detail, load.keep and load.on is None,
        *((work.counts, work.down_bytes) if work else ()),
    )  # fmt: skip


def make_task(driver: Driver, operation: Verb, files: Files, targets: Mapping[Any, Any]) -> Upload | FileOperation:
    """Return the task of a run. Raises UsageError for an operation or a file name that this driver does not support."""
    if operation not in OPERATIONS or operation not in driver.capabilities.verbs:
        offered = [verb.value for verb in OPERATIONS if verb in driver.capabilities.verbs]
        raise UsageError(f"operation {operation.value!r}: this provider's driver offers {', '.join(offered)}")
    for name in files.path(0, 0).split("/")[1:]:
        if problem := driver.capabilities.names.problem(name):
            raise UsageError(f"file name {name!r}: this provider does not accept it: {problem}")
    if operation is Verb.PUT:
        return Upload(driver, files, targets)
    return FileOperation(driver, operation, files.folder, files.file)
