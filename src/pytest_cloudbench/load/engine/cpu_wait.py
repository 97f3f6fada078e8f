"""How long threads were ready to run and had to wait for a CPU.

What may live here: reading what Linux counts for each thread, the second number of ``/proc/PID/task/TID/schedstat``.
That needs no rights for one's own processes. Waiting for Python's interpreter lock is not in it: such a thread sleeps.
"""

from __future__ import annotations

import contextlib
import os
import threading
from array import array
from collections.abc import Callable, Collection

from pytest_cloudbench.judge.quiet import WaitSeries
from pytest_cloudbench.net.sockets.owners import find_descendants
from pytest_cloudbench.support.clock import now_ns

_OWN = "/proc/thread-self/schedstat"
_READ_BYTES = 64
_MOST_KEPT = 128
"""Threads whose descriptor stays open. A process may have few descriptors, and each thread a connection of its own."""

_SAMPLE_S, _REST = 0.04, 50
"""Seconds between two samples, but at least 50 times as long as one takes: sampling uses 2 % of one CPU at most."""
_LOOK_FOR_PROCESSES = 25
"""New processes are looked for at every 25th sample, once a second: that takes far longer than a sample."""
_MOST_THREADS = 400
"""More threads are not read, because each needs a descriptor."""


# --- this thread ---


class _Descriptor:
    """An open file of a thread, closed when the thread ends."""

    __slots__ = ("number",)
    kept = 0
    lock = threading.RLock()  # a descriptor may be collected, and so be closed, while its thread holds the lock

    def __init__(self, number: int) -> None:
        self.number = number

    @classmethod
    def open(cls) -> _Descriptor | None:
        """Returns the calling thread's file, or None if enough are open. Raises ``OSError`` if it can't be opened."""
        with cls.lock:
            if cls.kept >= _MOST_KEPT:
                return None
            descriptor = cls(os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC))
            cls.kept += 1
            return descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        with self.lock:
            type(self).kept -= 1  # no name of the module: while the interpreter ends, these are gone
        close(self.number)


class _Kept(threading.local):
    descriptor: _Descriptor | None = None


_kept = _Kept()


def find_thread_wait() -> Callable[[], int | None]:
    """Returns a function that says how long the calling thread has waited for a CPU so far, in nanoseconds.

    The function returns None where the system does not count it. One call takes about 1.3 microseconds.
    """
    try:
        with open(_OWN, "rb") as file:
            counts = len(file.read(_READ_BYTES).split()) == 3
    except OSError:
        counts = False
    return _thread_wait_ns if counts else lambda: None


def _thread_wait_ns() -> int | None:
    descriptor = _kept.descriptor
    if descriptor is not None:
        return _waited_ns(descriptor.number)
    try:
        descriptor = _kept.descriptor = _Descriptor.open()
        return _read_once(_OWN) if descriptor is None else _waited_ns(descriptor.number)
    except OSError:  # no descriptor is left, or the thread is ending
        return None


def _waited_ns(descriptor: int) -> int:
    return int(os.pread(descriptor, _READ_BYTES, 0).split(None, 2)[1])


def _read_once(path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _waited_ns(descriptor)
    finally:
        os.close(descriptor)


# --- other threads and processes ---


class WaitSampler:
    """Samples how long the threads of a run's services, and those that work for its clients, have waited for a CPU.

    Threads that run operations are left out: the engine knows their waits for each operation. They do not exist yet
    when sampling begins, so of the clients' own threads only those that exist by then are read.

    Args:
        services: process ids of services. All their threads, and those of their descendants, are read.
        clients: process ids of agents, 0 for one on another host. What they have started is read, too, unless it is a
            service.
    """

    def __init__(self, services: Collection[int], clients: Collection[int]) -> None:
        self._services, self._clients, self._has_strangers = set(services), {*clients} - {0}, 0 in clients
        self._watched = set[int]()
        self._descriptors: dict[str, int] = {}
        self._last_ns: dict[str, int] = {}
        self._first_ns: dict[str, int] = {}
        self._time_ns, self._waited_ns = array("q"), array("q")
        self._ended = threading.Event()
        for pid in self._clients:
            self._open_threads(pid)
        self._find_new_processes()
        self._sample()
        self._thread = threading.Thread(target=self._run, name="cpu-wait", daemon=True)
        self._thread.start()

    def stop(self) -> WaitSeries:
        """End sampling. Returns what was seen, and what of it is not known."""
        self._ended.set()
        self._thread.join()
        self._find_new_processes()
        self._sample()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        return WaitSeries(self._time_ns, self._waited_ns, self._unknown())

    def _unknown(self) -> str:
        """Returns which waits are not known, or an empty text."""
        if not self._last_ns:
            return "this system does not count how long threads wait for a CPU"
        if len(self._last_ns) >= _MOST_THREADS:
            return f"only {_MOST_THREADS} threads were read"
        if self._has_strangers:
            return "agents on other hosts are not read"
        return "" if self._services else "the server is not a process of this run, so only the client is known"

    def _run(self) -> None:
        count, took_s = 0, 0.0
        while not self._ended.wait(max(_SAMPLE_S, _REST * took_s)):
            begun_ns = now_ns()
            count += 1
            if count % _LOOK_FOR_PROCESSES == 0:
                self._find_new_processes()
            self._sample()
            took_s = (now_ns() - begun_ns) / 1e9

    def _sample(self) -> None:
        """Add one sample. A thread that has ended keeps the wait that was read last."""
        for pid in self._watched:  # at each sample: a thread of one connection may live shorter than a second
            self._open_threads(pid)
        for path, descriptor in list(self._descriptors.items()):
            try:
                waited_ns = _waited_ns(descriptor)
            except (OSError, IndexError, ValueError):
                os.close(self._descriptors.pop(path))
                continue
            self._first_ns.setdefault(path, 0 if self._time_ns else waited_ns)
            self._last_ns[path] = waited_ns
        self._time_ns.append(now_ns())
        self._waited_ns.append(sum(self._last_ns.values()) - sum(self._first_ns.values()))

    def _find_new_processes(self) -> None:
        with contextlib.suppress(OSError):
            of_services = find_descendants(*self._services) if self._services else set()
            started = find_descendants(*self._clients) - self._clients - of_services if self._clients else set()
            self._watched = of_services | started

    def _open_threads(self, pid: int) -> None:
        folder = f"/proc/{pid}/task"
        with contextlib.suppress(OSError):
            for thread in os.listdir(folder):
                path = f"{folder}/{thread}/schedstat"
                is_new = path not in self._last_ns and path not in self._descriptors
                if is_new and len(self._descriptors) < _MOST_THREADS:
                    with contextlib.suppress(OSError):
                        self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
