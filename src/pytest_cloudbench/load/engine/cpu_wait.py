"""The time that threads were ready to run and had to wait for a CPU.

Linux counts it for each thread in the second number of ``/proc/PID/task/TID/schedstat``, which one may read of one's
own processes. Waiting for Python's interpreter lock does not count, because such a thread sleeps.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from array import array
from collections.abc import Callable, Collection
from functools import cache, partial
from typing import Any

from pytest_cloudbench.judge.quiet import WaitSeries
from pytest_cloudbench.load.engine.limits import count_descriptors_for_waits
from pytest_cloudbench.net.sockets.owners import find_descendants
from pytest_cloudbench.support.clock import now_ns

_OWN_SCHEDSTAT = "/proc/thread-self/schedstat"
_READ_BYTES = 64

_SAMPLE_S, _REST_FACTOR = 0.04, 50
"""Seconds between two samples, and the least factor between that pause and the time that a sample takes: sampling uses
2 % of one CPU at most."""
_SAMPLES_PER_SEARCH = 25
"""New processes are searched at every 25th sample, once a second: that takes far longer than a sample."""
_MOST_THREADS = 400
"""Further threads are not read, because each needs a descriptor."""


# --- this thread ---


class _Library:
    """The C library's calls that read a file, made without releasing the interpreter lock.

    The functions of ``os`` release the lock. If many threads are ready to run, each such call then costs a change of
    threads and back, which takes several times as long as the whole operation.
    """

    def __init__(self) -> None:
        library = ctypes.PyDLL(None)
        self._pread = getattr(library, "pread64", None) or library.pread
        self._pread.restype = ctypes.c_ssize_t
        self._open, self.close = library.open, library.close
        self._path, self._flags = ctypes.c_char_p(os.fsencode(_OWN_SCHEDSTAT)), ctypes.c_int(os.O_RDONLY | os.O_CLOEXEC)
        self._size, self._beginning = ctypes.c_size_t(_READ_BYTES), ctypes.c_int64(0)

    def open_own(self) -> int:
        """Return a descriptor of the calling thread's file. Raises OSError."""
        descriptor: int = self._open(self._path, self._flags)
        if descriptor < 0:
            raise OSError("no descriptor is left")
        return descriptor

    def read_wait_ns(self, descriptor: int, buffer: ctypes.Array[ctypes.c_char]) -> int:
        """Return how long the thread of a descriptor has waited. Raises OSError if it cannot be read.

        No other thread may use the buffer: the interpreter may change threads as soon as it is filled.
        """
        if self._pread(descriptor, buffer, self._size, self._beginning) <= 0:
            raise OSError("the thread has ended")
        return int(buffer.value.split(None, 2)[1])  # numbers only grow, so nothing is left of a former reading


@cache
def _library() -> _Library:
    return _Library()


def _find_usage() -> Callable[[], Any]:
    """Return a function that returns the calling thread's resource usage. One call takes 1 microsecond."""
    try:
        from resource import RUSAGE_THREAD, getrusage
    except ImportError:  # only Linux counts for each thread, and only there is it needed
        return lambda: None
    return partial(getrusage, RUSAGE_THREAD)


_read_usage = _find_usage()


class _ThreadFile:
    """The open ``schedstat`` file of a thread, closed when the thread ends."""

    __slots__ = ("_buffer", "_switches", "_wait_ns", "number")
    open_count = 0
    lock = threading.RLock()  # a descriptor may be collected, and so be closed, while its thread holds the lock

    def __init__(self, number: int) -> None:
        self.number, self._wait_ns, self._switches = number, 0, -1
        self._buffer = ctypes.create_string_buffer(_READ_BYTES + 1)

    def read_wait_ns(self) -> int:
        """Return how long the thread has waited. Raises OSError if it cannot be read.

        The file is not read again before the thread has left its CPU, because it cannot have waited meanwhile.
        """
        usage = _read_usage()
        switches = usage.ru_nvcsw + usage.ru_nivcsw
        if switches != self._switches:
            self._wait_ns, self._switches = _library().read_wait_ns(self.number, self._buffer), switches
        return self._wait_ns

    @classmethod
    def open(cls) -> _ThreadFile | None:
        """Return the calling thread's file, or None if enough are open. Raises OSError if it cannot be opened."""
        with cls.lock:
            if cls.open_count >= count_descriptors_for_waits():
                return None
            descriptor = cls(_library().open_own())
            cls.open_count += 1
            return descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        with self.lock:
            type(self).open_count -= 1  # the module's names are gone while the interpreter ends
        close(self.number)


class _ThreadFiles(threading.local):
    descriptor: _ThreadFile | None = None


_thread_files = _ThreadFiles()


def find_thread_wait() -> Callable[[], int | None]:
    """Return a function that returns how long the calling thread has waited for a CPU so far, in nanoseconds.

    The function returns None where the system does not count it. One call takes about 1.5 microseconds.
    """
    try:
        with open(_OWN_SCHEDSTAT, "rb") as file:
            is_counted = len(file.read(_READ_BYTES).split()) == 3
    except OSError:
        is_counted = False
    return _thread_wait_ns if is_counted else lambda: None


def _thread_wait_ns() -> int | None:
    descriptor = _thread_files.descriptor
    try:
        if descriptor is not None:
            return descriptor.read_wait_ns()
        descriptor = _thread_files.descriptor = _ThreadFile.open()
        return _read_own_once() if descriptor is None else descriptor.read_wait_ns()
    except OSError:  # no descriptor is left, or the thread is ending
        return None


def _read_wait_ns(descriptor: int) -> int:
    return int(os.pread(descriptor, _READ_BYTES, 0).split(None, 2)[1])


def _read_own_once() -> int:
    library = _library()
    descriptor = library.open_own()
    try:
        return library.read_wait_ns(descriptor, ctypes.create_string_buffer(_READ_BYTES + 1))
    finally:
        library.close(descriptor)


# --- other threads and processes ---


class WaitSampler:
    """A sampler of the time that threads of a run's services, and of its clients' helpers, have waited for a CPU.

    Threads that run operations are left out, because the engine measures their waits for each operation. They do not
    exist yet when sampling begins: of the clients' own threads, only those that exist by then are read.

    Args:
        services: process ids of services. All their threads, and those of their descendants, are read.
        clients: process ids of agents, 0 for one on another host. Processes that they have started are read, too,
            unless they are services.
    """

    def __init__(self, services: Collection[int], clients: Collection[int]) -> None:
        self._services, self._clients, self._has_remote_agents = set(services), {*clients} - {0}, 0 in clients
        self._watched = set[int]()
        self._descriptors: dict[str, int] = {}
        self._last_ns: dict[str, int] = {}
        self._left_out = set[str]()
        self._first_ns: dict[str, int] = {}
        self._time_ns, self._total_wait_ns = array("q"), array("q")
        self._ended = threading.Event()
        for pid in self._clients:
            self._open_threads(pid)
        self._find_new_processes()
        self._sample()
        self._thread = threading.Thread(target=self._run, name="cpu-wait", daemon=True)
        self._thread.start()

    def stop(self) -> WaitSeries:
        """End sampling. Return the samples, with a remark if they are incomplete."""
        self._ended.set()
        self._thread.join()
        self._find_new_processes()
        self._sample()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        return WaitSeries(self._time_ns, self._total_wait_ns, self._gap_remark())

    def _gap_remark(self) -> str:
        """Return a remark on waits that the samples lack, or an empty text."""
        if not self._last_ns:
            return "this system does not count how long threads wait for a CPU"
        if self._left_out - self._last_ns.keys():
            return f"only {len(self._last_ns)} threads were read"
        if self._has_remote_agents:
            return "agents on other hosts are not read"
        return "" if self._services else "the server is not a process of this run, so only the client is known"

    def _run(self) -> None:
        count, took_s = 0, 0.0
        while not self._ended.wait(max(_SAMPLE_S, _REST_FACTOR * took_s)):
            begun_ns = now_ns()
            count += 1
            if count % _SAMPLES_PER_SEARCH == 0:
                self._find_new_processes()
            self._sample()
            took_s = (now_ns() - begun_ns) / 1e9

    def _sample(self) -> None:
        """Add one sample. A thread that has ended keeps the wait that was read last."""
        for pid in self._watched:  # at each sample: a thread of one connection may live shorter than a second
            self._open_threads(pid)
        for path, descriptor in list(self._descriptors.items()):
            try:
                waited_ns = _read_wait_ns(descriptor)
            except (OSError, IndexError, ValueError):
                os.close(self._descriptors.pop(path))
                continue
            self._first_ns.setdefault(path, 0 if self._time_ns else waited_ns)
            self._last_ns[path] = waited_ns
        self._time_ns.append(now_ns())
        self._total_wait_ns.append(sum(self._last_ns.values()) - sum(self._first_ns.values()))

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
                if is_new and len(self._descriptors) >= _MOST_THREADS:
                    self._left_out.add(path)  # until another thread has ended
                elif is_new:
                    with contextlib.suppress(OSError):
                        self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
