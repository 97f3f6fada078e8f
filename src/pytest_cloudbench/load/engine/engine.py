"""The load engine, which runs operations at their due times and records them. The only clock for operations.

Only it has threads, waiting and time stamps. One agent runs one engine at a time.

**Open loop** (``run_schedule``): the plan is fixed in advance. Threads of a bounded pool take
numbered tickets in due order, prepare the payload, wait for the due time and do the operation, so
a slow operation delays nobody else and no dispatcher stands between the clock and the driver.
**Closed loop** (``run_closed``): one thread per sensor, which waits *after* each operation.
**Pool** (``run_pool``): a closed loop in which some threads share one queue of operations.

Sensors are entries in a schedule, not threads. Every record leaves through ``record`` at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

from pytest_cloudbench.load.engine.cpu_wait import find_thread_wait
from pytest_cloudbench.load.engine.limits import count_fitting_threads, describe_limit, find_own_limit
from pytest_cloudbench.load.engine.pool import (
    MAX_THREADS,
    TicketPool,
    adjust_to_threads,
    count_ready_threads,
    many_threads,
)
from pytest_cloudbench.load.engine.standstill import NAP_S, Standstills
from pytest_cloudbench.model import BudgetError, CloudError, ErrorKind, Op, Outcome, UsageError, Verb
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.workload.arrival import Plan, ThinkTime, Threads
from pytest_cloudbench.workload.trace import VERBS

_OK = Outcome.OK
"""A name of its own, because Python's enumerations look up each member by a slow function."""

_make_op: Callable[[tuple[Any, ...]], Op] = partial(tuple.__new__, Op)
"""Make an operation's record of all its fields, in a third of the time that ``Op(...)`` takes."""

_MOST_STOOD = 0.01
"""The most of a run's time, and of its operations, that a standstill may take before both are doubtful."""


class Task(Protocol):
    """One operation of a run. ``prepare`` runs before the due time, and only ``execute`` is timed."""

    @property
    def verb(self) -> Verb: ...

    def prepare(self, sensor: int, seq: int) -> tuple[Any, int, bytes]:
        """Return the argument of ``execute``, the number of bytes that the operation will move, and their digest."""
        ...

    def execute(self, prepared: Any) -> int:
        """Run the operation. Return the time of the first byte in ns, or 0 if it is unknown. Raises CloudError."""
        ...


@runtime_checkable
class Steps(Task, Protocol):
    """A task that can also follow a plan that specifies each operation, such as a replayed trace."""

    def step(self, verb: Verb, size_bytes: int) -> Task:
        """Return the task for one operation of the plan."""
        ...


def outcome_of(kind: ErrorKind) -> Outcome:
    """Return the outcome of an operation that ended with this kind of error. Throttling is not a failure."""
    if kind is ErrorKind.THROTTLED:
        return Outcome.THROTTLED
    return Outcome.CORRUPT if kind is ErrorKind.CORRUPT else Outcome.FAILED


class Budget:
    """A limit on the operations and bytes of a run. None means no limit."""

    def __init__(self, max_ops: int | None = None, max_bytes: int | None = None) -> None:
        self.max_ops, self.max_bytes = max_ops, max_bytes
        self.ops = self.bytes = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        """Reserve one operation. Raises BudgetError if it no longer fits."""
        with self._lock:
            if self.max_ops is not None and self.ops >= self.max_ops:
                raise BudgetError(f"--max-ops {self.max_ops} is used up")
            if self.max_bytes is not None and self.bytes + size_bytes > self.max_bytes:
                raise BudgetError(f"--max-bytes {self.max_bytes} is used up ({self.bytes} bytes so far)")
            self.ops += 1
            self.bytes += size_bytes


@dataclass(slots=True)
class Engine:
    """One agent's engine.

    Attributes:
        task: the operation to run. It must also be a ``Steps`` if the plan specifies each operation.
        record: called with every finished ``Op``, from many threads.
        agent: this agent's index, kept in every record.
        stop: set from outside to end the run early.
        budget: limit on operations and bytes.
        agents_here: the number of agents that share this machine.
        requests: returns how many requests the calling thread has sent so far (see ``drivers.base.Counting``). None if
            the driver does not count them.
        max_threads: limit on operations in flight.
        end_ns: operations that are due at this time or later are not begun. Set from outside while the engine runs.
        measured_from_ns: operations that are due earlier are a warm-up. Set from outside before the first operation.
        notes: remarks on limits of the system that delayed operations.
        own_limits: limits of this machine at which measured operations failed, in the system's words.
    """

    task: Task
    record: Callable[[Op], None]
    agent: int
    stop: threading.Event
    budget: Budget
    agents_here: int = 1
    requests: Callable[[], int] | None = None
    max_threads: int = MAX_THREADS
    error: BaseException | None = None
    end_ns: int | None = None
    measured_from_ns: int = 0
    notes: list[str] = field(default_factory=list)
    own_limits: set[str] = field(default_factory=set)
    _cpu_at_start_s: float | None = None
    _thread_wait_ns: Callable[[], int | None] = field(default_factory=find_thread_wait)
    _is_halted: bool = False
    _busy_threads: set[int] = field(default_factory=set)
    _ops_before: int = 0
    _ran_ns: int = 0
    _standstills: Standstills = field(init=False)

    def __post_init__(self) -> None:
        self._ops_before = self.budget.ops
        self._standstills = Standstills(lambda: self.in_flight, lambda: self.budget.ops)

    def run_schedule(self, plan: Plan, start_ns: int) -> None:
        """Run every operation of ``plan``, due at ``start_ns`` plus its due time.

        Raises what the first failing thread raised, unless it was a CloudError. Raises UsageError if the plan specifies
        each operation and ``task`` is not a ``Steps``.
        """
        due_ns, sensor, seq = plan.due_ns, plan.sensor, plan.seq
        task_of, run_one = self._find_step(plan), self._run_one

        def run_ticket(ticket: int, begin: Callable[[], None]) -> bool:
            try:
                task = self.task if task_of is None else task_of(ticket)
                end_ns = run_one(task, sensor[ticket], seq[ticket], start_ns + due_ns[ticket], begin)
            except BaseException as error:  # a bug or the budget: ends the run, and the caller raises it
                self.error = self.error or error
                self._is_halted = True
                return False
            return end_ns is not None

        max_threads = min(self.max_threads, count_fitting_threads(self.agents_here))
        pool = TicketPool(len(plan), run_ticket, max_threads, self._thread_wait_ns)
        begin = partial(pool.start, count_ready_threads(plan, max_threads))
        self._run_until_joined(begin, 1, lambda: pool.join(self._standstills.nap))
        if pool.is_full:
            self.notes.append(describe_limit(pool.max_threads, self.max_threads, pool.are_refused))

    def run_closed(
        self, arrival: ThinkTime, sensors: Iterable[int], count: int | Callable[[int], int], seed: str, start_ns: int,
        time_scale: float = 1.0,
    ) -> None:  # fmt: skip
        """Run ``count`` operations of each sensor in a thread of its own, which sleeps after each operation.

        ``count`` may also be a function of the sensor.
        """
        think_ns = round(arrival.interval_s * 1e9 / time_scale)

        def run_sensor(sensor: int) -> None:
            due = start_ns + round(arrival.first_s(seed, sensor) * 1e9 / time_scale)
            for seq in range(count(sensor) if callable(count) else count):
                end = self._run_one(self.task, sensor, seq, due)
                if end is None:
                    return
                due = end + think_ns

        threads = [
            threading.Thread(target=self._run_guarded, args=(run_sensor, sensor), name=f"sensor-{sensor}", daemon=True)
            for sensor in sensors
        ]
        self._run_threads(threads)

    def run_pool(
        self, arrival: Threads, threads: Iterable[int], files: Sequence[tuple[int, int]], seed: str,
        start_ns: Callable[[], int], time_scale: float = 1.0,
    ) -> None:  # fmt: skip
        """Run one operation for each of ``files`` (sensor, sequence number), each on the next free thread.

        An operation is due when a thread is free for it. All are prepared before ``start_ns`` is called, because the
        time that this process takes to make a payload must not count as the provider's.

        Args:
            arrival: when threads begin and how long they pause.
            threads: the numbers of this agent's threads.
            files: the files to work on, in this order.
            seed: of random first delays.
            start_ns: called once when all is prepared. It returns the common start.
            time_scale: divides all times.
        """
        works = [self.task.prepare(*file) for file in files]
        queue, common_ns = deque(range(len(files))), start_ns()
        pause_ns = round(arrival.pause_s * 1e9 / time_scale)

        def run_thread(thread: int) -> None:
            due = common_ns + round(arrival.first_s(seed, thread) * 1e9 / time_scale)
            while self._wait_until_due(due, queue):
                try:
                    ticket = queue.popleft()
                except IndexError:
                    return
                due = self._execute(self.task, *files[ticket], works[ticket], due) + pause_ns

        self._run_threads(
            [
                threading.Thread(
                    target=self._run_guarded, args=(run_thread, thread), name=f"thread-{thread}", daemon=True
                )
                for thread in threads
            ]
        )

    def _find_step(self, plan: Plan) -> Callable[[int], Task] | None:
        """Return a function from a ticket to its task, or None if the plan does not specify each operation."""
        codes, sizes, task = plan.code, plan.size_bytes, self.task
        if codes is None or sizes is None:
            return None
        if not isinstance(task, Steps):
            raise UsageError(f"the plan specifies each operation, which {type(task).__name__} does not support")
        step = task.step
        return lambda ticket: step(VERBS[codes[ticket]], sizes[ticket])

    @property
    def in_flight(self) -> int:
        """The number of operations that have begun and not ended."""
        return len(self._busy_threads)

    def measured_cpu_s(self) -> float:
        """Return this process's CPU time since the first operation after the warm-up began, or 0 if there was none."""
        return 0.0 if self._cpu_at_start_s is None else time.process_time() - self._cpu_at_start_s

    @property
    def doubts(self) -> list[str]:
        """The reasons to distrust the outcomes and times of operations."""
        doubts = []
        if self.own_limits:
            limits = " and ".join(sorted(self.own_limits))
            doubts.append(f"operations failed at limits of their own machine ({limits}), and not at the provider")
        stood, ops = self._standstills, self.budget.ops - self._ops_before
        if stood.ops > _MOST_STOOD * ops or stood.total_s > _MOST_STOOD * self._ran_ns / 1e9:
            doubts.append(f"an agent stood still for {stood.total_s:.0f} s while operations were under way")
        return doubts

    def _run_threads(self, threads: Sequence[threading.Thread]) -> None:
        waiting = iter(enumerate(threads))

        def start_next() -> None:
            number, thread = next(waiting)
            adjust_to_threads(number)
            try:
                thread.start()
            except RuntimeError as error:
                raise UsageError(
                    f"a closed loop needs {len(threads)} threads here, but the system allows {number}; "
                    "raise its limit on processes, or use fewer sensors or agents"
                ) from error

        self._run_until_joined(start_next, len(threads), lambda: _join_threads(threads, self._standstills.nap))

    def _run_until_joined(self, start: Callable[[], None], count: int, join: Callable[[], None]) -> None:
        begun_ns = now_ns()
        with many_threads():
            try:
                for _ in range(count):
                    start()
                join()
                self._ran_ns += now_ns() - begun_ns
            except BaseException:
                self._is_halted = True
                join()
                raise
        if self.error is not None:
            raise self.error

    def _run_guarded(self, target: Callable[..., None], *args: Any) -> None:
        try:
            target(*args)
        except BaseException as error:  # a bug or the budget: ends the run, and the caller raises it
            self.error = self.error or error
            self._is_halted = True

    def _wait_until_due(self, due_ns: int, queue: Sized | None = None) -> bool:
        """Wait for ``due_ns``. Return False if the run is to stop, or as soon as ``queue`` is empty."""
        while (left_ns := due_ns - now_ns()) > 0:
            if self._is_over(due_ns) or (queue is not None and not queue):
                return False
            time.sleep(min(left_ns / 1e9, NAP_S))
        return not self._is_over(due_ns)

    def _is_over(self, due_ns: int) -> bool:
        return self._is_halted or self.stop.is_set() or (self.end_ns is not None and due_ns >= self.end_ns)

    def _run_one(
        self, task: Task, sensor: int, seq: int, due_ns: int, on_start: Callable[[], None] | None = None
    ) -> int | None:
        """Prepare, wait, run and record one operation. Return its end, or None if the run is to stop."""
        work = task.prepare(sensor, seq)
        if not self._wait_until_due(due_ns):
            return None
        if on_start is not None:
            on_start()
        return self._execute(task, sensor, seq, work, due_ns)

    def _execute(self, task: Task, sensor: int, seq: int, work: tuple[Any, int, bytes], due_ns: int) -> int:
        """Run and record one operation that is prepared and due. Return its end."""
        prepared, size_bytes, digest = work
        self.budget.take(size_bytes)
        outcome, kind, retry_after_s, first_byte_ns, detail = _OK, None, None, 0, ""
        if self._cpu_at_start_s is None and due_ns >= self.measured_from_ns:
            self._cpu_at_start_s = time.process_time()
        requests = self.requests
        before = requests() if requests is not None else 0
        thread = threading.get_ident()
        self._busy_threads.add(thread)
        before_ns = self._thread_wait_ns()
        start_ns = now_ns()
        try:
            first_byte_ns = task.execute(prepared)
            end_ns = now_ns()
        except CloudError as error:
            end_ns = now_ns()
            outcome, kind, retry_after_s = outcome_of(error.kind), error.kind, error.retry_after_s
            detail = error.detail
            if due_ns >= self.measured_from_ns and (limit := find_own_limit(error)):
                self.own_limits.add(limit)
        finally:
            self._busy_threads.discard(thread)
        waited_ns = self._thread_wait_ns()
        self.record(
            _make_op(
                (
                    task.verb,
                    sensor,
                    seq,
                    self.agent,
                    due_ns,
                    start_ns,
                    first_byte_ns,
                    end_ns,
                    size_bytes,
                    outcome,
                    kind,
                    retry_after_s,
                    digest,
                    detail,
                    requests() - before if requests is not None else None,
                    None if waited_ns is None or before_ns is None else min(waited_ns - before_ns, end_ns - start_ns),
                )
            )
        )
        return end_ns


def _join_threads(threads: Iterable[threading.Thread], nap: Callable[[Callable[[float], object]], None]) -> None:
    """Wait for threads in naps, so that Ctrl-C reaches the main thread on every platform."""
    for thread in threads:
        while thread.is_alive():
            nap(thread.join)
