"""Transfers of packages to and from children. Each child has its own threads, so that one that hangs delays no other.

What may live here: threads, names of packages, and calls of the children's drivers. Nothing here blocks the caller: a
transfer calls back from its own thread when it has ended. The one exception is small writes that the caller waits for
anyway: a child that answers sooner than a thread begins is called by the caller itself.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from pytest_cloudbench.drivers.base import Counting, Driver
from pytest_cloudbench.model import CloudError, ErrorKind, ignore_missing
from pytest_cloudbench.raid.coding.policies import Rates
from pytest_cloudbench.raid.coding.reed_solomon import Buffer
from pytest_cloudbench.raid.coding.sealing import MasterKey
from pytest_cloudbench.support import clock, redact

_MOST_THREADS = 32
_IDLE_S = 30.0
_CLOSE_S = 1.0
_LEAST_KEPT_BYTES = 1 << 19
_MOST_KEPT_BYTES = 32 << 20
_MOST_QUEUED_BYTES = 32 << 20
"""The most bytes that may be queued for one child before packages that no write needs are refused."""
_SMALL_BYTES = 1 << 16
_MOST_NS = 1 << 62
_QUICK_NS = 1_000_000
"""About the time that a separate thread adds to a small write. A child that takes less is called without one."""


@dataclass(frozen=True, slots=True)
class TransferResult:
    """The result of a transfer.

    Attributes:
        child: the child.
        data: the bytes read, empty for other verbs.
        error: why it failed, or None if it did not.
        duration_ns: how long it took, including the wait for a thread.
        requests: how many the child's driver sent, or None if it does not count them.
    """

    child: int
    data: Buffer = b""
    error: Exception | None = None
    duration_ns: int = 0
    requests: int | None = None


class Package:
    """Bytes in several parts, not copied until they are read: a content for the children's drivers."""

    def __init__(self, parts: Iterable[Buffer]) -> None:
        self._lock, self._parts = threading.Lock(), [memoryview(part) for part in parts]
        self.size_bytes = sum(map(len, self._parts))

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``, or fewer at the end."""
        pieces, end = [], offset + length
        with self._lock:
            if not offset and end >= self.size_bytes:
                return b"".join(self._parts)
            for part in self._parts:
                if offset < len(part) and end > 0:
                    pieces.append(part[max(0, offset) : end])
                offset, end = offset - len(part), end - len(part)
            return b"".join(pieces)

    def detach(self) -> None:
        """Copy the bytes, so that the original memory is no longer read."""
        with self._lock:
            self._parts = [memoryview(b"".join(self._parts))]


class Buffers:
    """A pool of memory for segments, because new memory from the system costs more than encrypting its content."""

    def __init__(self) -> None:
        self._lock, self._free = threading.Lock(), list[bytearray]()

    def take(self, size_bytes: int) -> bytearray:
        """Return a buffer with arbitrary content."""
        with self._lock:
            for index, buffer in enumerate(self._free):
                if len(buffer) == size_bytes:
                    return self._free.pop(index)
        return bytearray(size_bytes)

    def give(self, buffer: bytearray) -> None:
        """Take back a buffer that is no longer read. The caller must not use it afterwards."""
        if len(buffer) < _LEAST_KEPT_BYTES:
            return
        with self._lock:
            self._free.append(buffer)
            while sum(map(len, self._free)) > _MOST_KEPT_BYTES:
                del self._free[0]


_STORED_NAME = re.compile("[mde][0-9a-f]{32}")
"""The names that an array gives to files on its children: of packages, and of the marker."""


def is_package(path: str) -> bool:
    """Return whether a file on a child has a package's name, whatever its key is."""
    return re.fullmatch("[md][0-9a-f]{32}", path.rpartition("/")[2]) is not None


class PendingRead:
    """A read that can be cancelled: it never begins, or ends at its next piece."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self.buffer: bytearray | None = None


class Children:
    """The children of an array.

    Args:
        drivers: connected drivers, which ``close`` closes.
        names: their names in messages.
        folder: where packages are on each; ``/`` for the root.
        master: the key from which the packages' names are derived.
        rates: records each put and get.
    """

    def __init__(
        self, drivers: Sequence[Driver], names: Sequence[str], folder: str, master: MasterKey, rates: Rates
    ) -> None:
        self.drivers, self.names, self.folder, self.rates = drivers, names, folder, rates
        self._master, self.buffers = master, Buffers()
        self._threads = [_ChildThreads(f"raid-{number}", driver.close) for number, driver in enumerate(drivers)]
        self._small_writes_ns = [_MOST_NS] * len(drivers)
        self._counts = [driver.requests if isinstance(driver, Counting) else None for driver in drivers]

    def __len__(self) -> int:
        return len(self.drivers)

    @property
    def all_count_requests(self) -> bool:
        """True if all drivers count their requests."""
        return None not in self._counts

    def package_name(self, version: bytes, child: int, segment: int, *, is_last: bool) -> str:
        """Return a package's name on a child. Without the key, no two names show anything in common.

        The package of the last segment, which also holds the manifest, has a different first letter.
        """
        return f"{'m' if is_last else 'd'}{self._master.hide_name(version, child, segment)}"

    def marker_name(self, child: int) -> str:
        """Return the name of a child's marker of the last deletion, see ``Array.make_marker``."""
        return f"e{self._master.hide_name(b'deleted', child)}"

    def path_of(self, name: str) -> str:
        """Return the path of a package on a child."""
        return f"{self.folder.rstrip('/')}/{name}"

    def close(self) -> None:
        """End the threads, and close each child's driver after its last transfer, which may still open a connection.

        A driver that still has transfers after a second is closed at once, which ends what hangs, and again after the
        last of them.
        """
        closed = [threads.close() for threads in self._threads]
        until_ns = clock.due_ns(_CLOSE_S)
        for driver, is_closed in zip(self.drivers, closed, strict=True):
            if not is_closed.wait(max(0, until_ns - clock.now_ns()) / 1e9):
                driver.close()

    # --- transfers ------------------------------------------------------------------------------------

    def put_package(
        self, child: int, name: str, package: Package, done: Callable[[TransferResult], object], *,
        waits: bool, is_skipped: bool = False,
    ) -> None:  # fmt: skip
        """Write a package.

        Args:
            child: the child.
            name: the package's name there.
            package: the package.
            done: called with the result.
            waits: an operation waits for this child. A small write to a quick child has then ended when this returns.
            is_skipped: fail immediately, because too much is queued for the child, see ``find_far_behind``.
        """
        if is_skipped:
            error = CloudError(ErrorKind.NETWORK, "put", self.path_of(name), detail="the child is too far behind")
            done(TransferResult(child, error=error))
            return

        def call(driver: Driver) -> bytes:
            begin_ns = clock.now_ns()
            driver.put(self.path_of(name), package)
            if package.size_bytes <= _SMALL_BYTES:
                self.note_small_write(child, clock.now_ns() - begin_ns)
            return b""

        is_direct = waits and package.size_bytes <= _SMALL_BYTES and self.is_quick(child)
        self._start(child, call, done, is_read=False, size_bytes=package.size_bytes, is_direct=is_direct)

    def find_far_behind(self, children: Iterable[int], are_enough: Callable[[set[int]], bool]) -> set[int]:
        """Return the children for which too much is queued, of those that a write does not need.

        It needs the children with the shortest queues that are enough. Others may have twice as much queued, because
        under load healthy children differ, while the queue of one that hangs only grows.
        """
        queued_bytes = {child: self._threads[child].queued_bytes for child in children}
        needed = set[int]()
        for child in sorted(queued_bytes, key=queued_bytes.__getitem__):
            needed.add(child)
            if are_enough(needed):
                break
        most_bytes = max(_MOST_QUEUED_BYTES, 2 * max(queued_bytes[child] for child in needed))
        return {child for child, waiting_bytes in queued_bytes.items() if waiting_bytes > most_bytes}

    def note_small_write(self, child: int, taken_ns: int) -> None:
        """Note how long a child took for a small write. The quickest recent write counts, as others wait for threads.

        Each write raises the noted time by a fifth at most, so it takes a few writes to notice that a child is slow.
        """
        self._small_writes_ns[child] = min(taken_ns, self._small_writes_ns[child] * 6 // 5 + 1)

    def is_quick(self, child: int) -> bool:
        """Return whether a child takes less time for a small write than it takes to begin a thread."""
        return self._small_writes_ns[child] < _QUICK_NS

    def get_package(
        self, child: int, name: str, most_bytes: int, done: Callable[[TransferResult], object]
    ) -> PendingRead:
        """Read the first ``most_bytes`` bytes of a package, and one more byte if there is one."""
        pending = PendingRead()

        def call(driver: Driver) -> Buffer:
            if pending.is_cancelled:
                return b""
            buffer, filled = self.buffers.take(most_bytes + 1), 0
            pieces = driver.get(self.path_of(name))
            for piece in pieces:
                end = min(filled + len(piece), len(buffer))
                buffer[filled:end] = piece[: end - filled]
                filled = end
                if filled == len(buffer) or pending.is_cancelled:
                    break
            close = getattr(pieces, "close", None)
            if close is not None:
                close()
            pending.buffer = buffer
            return memoryview(buffer)[:filled]

        def pass_on(result: TransferResult) -> None:
            if not pending.is_cancelled:
                done(result)

        self._start(child, call, pass_on, is_read=True, pending=pending)
        return pending

    def delete_packages(
        self, child: int, names: Iterable[str], done: Callable[[TransferResult], object], marker: Package | None = None
    ) -> None:
        """Write the marker, if there is one, and delete packages. Those that are not there count as deleted."""

        def call(driver: Driver) -> bytes:
            if marker is not None:
                with suppress(CloudError):  # a marker on any other child is enough
                    driver.put(self.path_of(self.marker_name(child)), marker)
            for name in names:
                with ignore_missing():
                    driver.delete(self.path_of(name))
            return b""

        self._start(child, call, done)

    def list_packages(self, child: int, done: Callable[[TransferResult, Mapping[str, int]], object]) -> None:
        """List packages and the marker: name to size. Files with other names are the user's."""
        sizes: dict[str, int] = {}

        def call(driver: Driver) -> bytes:
            with ignore_missing():
                for entry in driver.list(self.folder):
                    folder, _, name = entry.path.rpartition("/")
                    if not entry.is_folder and (folder or "/") == self.folder and _STORED_NAME.fullmatch(name):
                        sizes[name] = entry.size_bytes
            return b""

        self._start(child, call, lambda ended: done(ended, sizes))

    def make_folder(self, child: int, done: Callable[[TransferResult], object]) -> None:
        """Create the folder for packages."""

        def call(driver: Driver) -> bytes:
            if self.folder != "/":
                driver.mkdir(self.folder)
            return b""

        self._start(child, call, done)

    def _start(
        self, child: int, call: Callable[[Driver], Buffer], done: Callable[[TransferResult], object], *,
        is_read: bool | None = None, size_bytes: int = 0, pending: PendingRead | None = None, is_direct: bool = False,
    ) -> None:  # fmt: skip
        """Begin a call of a child's driver on the child's threads, or make it here and now if it ``is_direct``."""
        driver, count, begin_ns = self.drivers[child], self._counts[child], clock.now_ns()

        def task() -> None:
            before, error = count() if count else 0, None
            data: Buffer = b""
            try:
                data = call(driver)
            except Exception as raised:  # drivers raise only CloudError, and all others go to the waiting caller
                error = raised
                if isinstance(error, CloudError):
                    redact.clean_error(error)  # otherwise the error's frames keep the package in memory
            duration_ns = clock.now_ns() - begin_ns
            if is_read is not None and not (pending and pending.is_cancelled):
                if error is None:
                    self.rates.observe(child, size_bytes or len(data), duration_ns, is_read=is_read)
                elif not (isinstance(error, CloudError) and error.kind is ErrorKind.NOT_FOUND):  # also an answer
                    self.rates.note_failure(child, is_read=is_read)
            done(TransferResult(child, data, error, duration_ns, count() - before if count else None))

        if not is_direct:
            try:
                self._threads[child].run(task, size_bytes)
            except RuntimeError as error:
                done(TransferResult(child, error=error))
            return
        try:
            task()
        except BaseException:  # Ctrl-C, for instance: the child may have the package, or not
            done(TransferResult(child, error=CloudError(ErrorKind.NETWORK, "put", "/", detail="interrupted")))
            raise


class _ChildThreads:
    """One child's threads: as many as there is work for, up to a bound. Threads that are idle for long end.

    ``close_driver`` is called when the threads are closed, by the last that ends.
    """

    def __init__(self, name: str, close_driver: Callable[[], None]) -> None:
        self._name, self._close_driver, self._lock = name, close_driver, threading.Lock()
        self._tasks: SimpleQueue[tuple[Callable[[], None], int] | None] = SimpleQueue()
        self._count = self._idle = self._waiting = 0
        self._is_closed = False
        self._has_ended = threading.Event()
        self.queued_bytes = 0

    def run(self, task: Callable[[], None], size_bytes: int) -> None:
        """Run a task in one of the threads. Raises RuntimeError if there is none, and the system allows none."""
        with self._lock:
            if self._waiting >= self._idle and self._count < _MOST_THREADS:
                try:
                    threading.Thread(target=self._work, name=self._name, daemon=True).start()
                    self._count += 1
                except RuntimeError:
                    if not self._count:
                        raise
            self.queued_bytes += size_bytes
            self._waiting += 1
            self._tasks.put((task, size_bytes))

    def close(self) -> threading.Event:
        """End the threads when their work is done. Returns the event that is set once the driver is closed."""
        with self._lock:
            self._is_closed = True
            count = self._count
        for _ in range(count):
            self._tasks.put(None)
        if not count:
            self._end()
        return self._has_ended

    def _end(self) -> None:
        try:
            self._close_driver()
        finally:
            self._has_ended.set()

    def _work(self) -> None:
        """Carry out tasks until there are none for a while. The last thread of a closed child closes its driver."""
        while True:
            with self._lock:
                self._idle += 1
            try:
                item = self._tasks.get(timeout=_IDLE_S)
            except Empty:
                item = None
            with self._lock:
                self._idle -= 1
                if item is None:
                    if self._waiting and not self._is_closed:
                        continue
                    self._count -= 1
                    is_last = self._is_closed and not self._count
                else:
                    self._waiting -= 1
            if item is None:
                if is_last:
                    self._end()
                return
            task, size_bytes = item
            task()
            del task, item  # an idle thread keeps no package in memory
            with self._lock:
                self.queued_bytes -= size_bytes


_REPORTED_FIRST = (
    ErrorKind.THROTTLED, ErrorKind.QUOTA, ErrorKind.AUTH, ErrorKind.CORRUPT, ErrorKind.NETWORK, ErrorKind.SERVER,
    ErrorKind.INVALID, ErrorKind.CONFLICT, ErrorKind.NOT_FOUND,
)  # fmt: skip
"""The order by which a failed operation reports one of several children's errors: first those that pass by themselves,
then those that the user can fix."""


def shortage_error(
    verb: str, path: str, summary: str, failures: Mapping[int, Exception], names: Sequence[str]
) -> CloudError:
    """Return the error of an operation in which too few children took part.

    Args:
        verb: the operation.
        path: the object's.
        summary: how many took part, and how many are needed.
        failures: the error of each failed child.
        names: the children's.

    Passes on any error that is not a CloudError, unchanged: a mistake of a driver.
    """
    errors: dict[int, CloudError] = {}
    for child, error in failures.items():
        if not isinstance(error, CloudError):
            raise error
        errors[child] = error
    kinds = {error.kind for error in errors.values()}
    kind = next((kind for kind in _REPORTED_FIRST if kind in kinds), ErrorKind.NETWORK)
    if kinds - {ErrorKind.NOT_FOUND} and kind is ErrorKind.NOT_FOUND:
        kind = ErrorKind.NETWORK
    waits = [error.retry_after_s for error in errors.values() if error.retry_after_s is not None]
    reasons = "; ".join(
        f"{names[child]}: {error.kind.value}{f' ({error.detail})' if error.detail else ''}"
        for child, error in sorted(errors.items())
    )
    return CloudError(
        kind, verb, path, detail=f"{summary}: {reasons}"[:500],
        retry_after_s=max(waits) if waits and kind is ErrorKind.THROTTLED else None,
    )  # fmt: skip
