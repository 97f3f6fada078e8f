"""The threads of an open loop.

What may live here: threads that take operations in due order, how many there are, and where an idle one waits.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytest_cloudbench.load.engine.limits import allow_descriptors
from pytest_cloudbench.workload.arrival import Plan

MAX_THREADS = 10_000
"""The most operations in flight at once in one agent. With more, operations begin late, and their records show it."""

_WAITING_THREADS = 64
"""The most threads that have prepared an operation and wait for its due time. Further idle ones are parked."""

_READY_WINDOW_NS = 10_000_000
_READY_THREADS = 2048
"""The most threads that are made before the start, for operations that are due within a hundredth of a second. In that
time, few can be made. More threads than this would take half a second and 30 MiB, and their operations would be late.
"""
_START_S = 0.0002
"""The time that it takes to make one thread, at most."""

_SWITCH_INTERVAL_S = 0.02
"""How long a thread may hold the interpreter while others wait for it. This is longer than an operation's own work.
Answers that arrive together are therefore finished one by one, and do not all wait for the last one."""
_SWITCH_INTERVAL_PER_THREAD_S = 0.0001
"""A thread that waits for the interpreter wakes up after each interval. Thousands that do so in vain, fifty times a
second each, leave no CPU for those whose turn it is."""
_THREADS_PER_ADJUSTMENT = 100

_STACK_BYTES = 1024 * 1024
"""The space for a thread's stack, as on Windows. Linux's 8 MiB cost a page more of the kernel's tables per thread."""


class TicketPool:
    """Threads that take numbered tickets, and do the work of one after the other.

    A thread that begins its work lets another one wait for the next ticket: a parked one, or a new one. All threads are
    kept until the last work is done, because the end of a thread takes more time than its work, and delays the others.

    Args:
        total: the number of tickets.
        run_ticket: does the work of a ticket. It calls the function that it gets when the work begins, raises nothing,
            and returns whether the pool is to go on.
        max_threads: the most threads.
        prepare_thread: called once by each thread, as early as possible.

    Attributes:
        max_threads: the most threads, which are fewer once the system has refused one.
        are_refused: whether the system has refused a thread.
        is_full: whether all threads were in use when a further one was needed.
    """

    def __init__(
        self, total: int, run_ticket: Callable[[int, Callable[[], None]], bool], max_threads: int,
        prepare_thread: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self.max_threads, self.are_refused, self.is_full = max_threads, False, False
        self._total, self._run_ticket, self._prepare_thread = total, run_ticket, prepare_thread
        self._next = self._waiting = self._threads = 0
        self._active = 1
        """Threads that are not parked. Until all are started, the one that starts them counts, too."""
        self._parked: list[_thread.LockType] = []
        self._is_over, self._lock, self._has_ended = False, threading.Lock(), threading.Event()

    def start(self, count: int) -> None:
        """Start threads before the first ticket is due. Raises RuntimeError if the system allows none."""
        for number in range(min(count, self.max_threads, self._total)):
            self._start_thread(is_parked=number >= _WAITING_THREADS)
        if self._total and not self.max_threads:
            raise RuntimeError("can't start new thread")

    def join(self, nap: Callable[[Callable[[float], object]], None]) -> None:
        """Wait until all threads have ended, in naps, so that Ctrl-C reaches the main thread on every platform."""
        with self._lock:
            self._leave()
            if not self._threads:
                return
        while not self._has_ended.is_set():
            nap(self._has_ended.wait)

    def _start_thread(self, *, is_parked: bool = False) -> None:
        """Start one more thread, which waits at a gate. If the system refuses, the others do its work."""
        gate = _thread.allocate_lock()
        gate.acquire()
        with self._lock:
            self._threads += 1
            count = self._threads
            if is_parked:
                self._parked.append(gate)
            else:
                self._waiting += 1
                self._active += 1
        adjust_to_threads(count)
        try:
            _thread.start_new_thread(self._run, (gate, is_parked))
        except RuntimeError:  # the system gives no more threads: the existing ones do the work, and are late
            with self._lock:
                self._threads -= 1
                self.max_threads = self._threads
                self.are_refused = self.is_full = True
                if is_parked:
                    self._parked.remove(gate)
                else:
                    self._waiting -= 1
                    self._active -= 1

    def _run(self, gate: _thread.LockType, is_parked: bool) -> None:
        if (trace := threading.gettrace()) is not None:  # such as that of a measurement of coverage
            sys.settrace(trace)
        self._prepare_thread()
        if is_parked:
            gate.acquire()
        self._take_tickets(gate)
        with self._lock:
            self._threads -= 1
            is_last = not self._threads
        if is_last:
            self._has_ended.set()

    def _take_tickets(self, gate: _thread.LockType) -> None:
        lock, total, run_ticket, begin = self._lock, self._total, self._run_ticket, self._begin
        is_counted = True  # whoever starts or wakes a thread counts it as waiting
        while not self._is_over:
            with lock:  # ``acquire()`` takes less time, but may change threads while it holds the lock: all others wait
                ticket = self._next
                is_idle = ticket >= total or (self._waiting >= _WAITING_THREADS and not is_counted)
                if is_idle:
                    self._parked.append(gate)
                    self._leave()
                else:
                    self._next = ticket + 1
                    self._waiting += not is_counted
            if is_idle:
                gate.acquire()
            elif not run_ticket(ticket, begin):
                self._next = total
            is_counted = is_idle

    def _begin(self) -> None:
        """Count the calling thread as working, and let another one wait for the next ticket if none does."""
        with self._lock:
            self._waiting -= 1
            if self._waiting or self._next >= self._total:
                return
            gate = self._parked.pop() if self._parked else None
            if gate is not None:
                self._waiting += 1
                self._active += 1
            elif self._threads >= self.max_threads:
                self.is_full = True
                return
        if gate is not None:
            gate.release()
        else:
            self._start_thread()

    def _leave(self) -> None:
        """Count a thread as parked. The last one ends the pool."""
        self._active -= 1
        if not self._active:
            self._is_over = True
            while self._parked:
                self._parked.pop().release()


def count_ready_threads(plan: Plan, max_threads: int = MAX_THREADS) -> int:
    """Return how many threads are to be ready before the first operation of a plan is due.

    They are few if more operations are due at once than may be in flight: these are late in any case.
    """
    busiest = max(1, plan.busiest(_READY_WINDOW_NS))
    return min(busiest, _READY_THREADS if busiest <= max_threads else _WAITING_THREADS)


def start_time_s(plan: Plan) -> float:
    """Return the time that it takes to make the threads that are to be ready."""
    return count_ready_threads(plan) * _START_S


def adjust_to_threads(count: int) -> None:
    """Adjust this process to the number of its threads that run operations, at every hundredth one."""
    if count % _THREADS_PER_ADJUSTMENT:
        return
    sys.setswitchinterval(max(_SWITCH_INTERVAL_S, count * _SWITCH_INTERVAL_PER_THREAD_S))
    allow_descriptors(count)


@contextmanager
def many_threads() -> Iterator[None]:
    """Prepare this process for threads that run operations. Its settings are restored at the end."""
    former_interval_s, former_bytes = sys.getswitchinterval(), threading.stack_size(_STACK_BYTES)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        threading.stack_size(former_bytes)
        sys.setswitchinterval(former_interval_s)
