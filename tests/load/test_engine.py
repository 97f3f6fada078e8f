"""The engine against drivers of known behaviour, which block on signals, count calls and fail on purpose.

No test asserts how fast this machine is. A driver that waits gives up after ``PATIENCE_S``, so that an
engine which would hang fails instead.
"""

from __future__ import annotations

import _thread
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_cloudbench.load.engine.engine import Budget, Engine, outcome_of
from pytest_cloudbench.load.engine.pool import MAX_THREADS
from pytest_cloudbench.model import BudgetError, CloudError, ErrorKind, Op, Outcome, ResultsError, UsageError, Verb
from pytest_cloudbench.support.clock import due_ns, now_ns, sleep_until_ns
from pytest_cloudbench.workload.arrival import FixedInterval, Plan, ThinkTime, Threads, plan
from pytest_cloudbench.workload.trace import Replay, parse_trace
from tests.limits import HANG_S

PATIENCE_S = HANG_S
HOUR_S = 3600.0
MS = 1_000_000
TOGETHER = FixedInterval(0.0)
TOTALS = pytest.mark.parametrize("loop", ["open", "closed"])

Act = Callable[[int, int], Any]


@dataclass
class Scripted:
    """A task whose operation calls ``act(sensor, seq)``."""

    act: Act
    verb: Verb = Verb.PUT
    size_bytes: int = 5

    def prepare(self, sensor: int, seq: int) -> tuple[Any, int, bytes]:
        return (sensor, seq), self.size_bytes, b"%d-%d" % (sensor, seq)

    def execute(self, prepared: tuple[int, int]) -> int:
        return int(self.act(*prepared) or 0)


@dataclass
class Bench:
    """An engine with its records."""

    act: Act
    max_threads: int = MAX_THREADS
    budget: Budget = field(default_factory=Budget)
    agent: int = 3
    ops: list[Op] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.engine = Engine(
            Scripted(self.act), self.ops.append, self.agent, self.stop, self.budget, max_threads=self.max_threads
        )

    def run_open(self, schedule: Plan, start_ns: int | None = None) -> dict[tuple[int, int], Op]:
        self.engine.run_schedule(schedule, now_ns() if start_ns is None else start_ns)
        return self.ops_by_key

    def run_closed(self, arrival: ThinkTime, sensors: int, count: int, time_scale: float = 1.0) -> None:
        self.engine.run_closed(arrival, range(sensors), count, "seed", now_ns(), time_scale)

    def run(self, loop: str, sensors: int, count: int, interval_s: float) -> None:
        """Run either loop over the same operations."""
        if loop == "open":
            self.run_open(plan(FixedInterval(interval_s), range(sensors), count, "seed"))
        else:
            self.run_closed(ThinkTime(interval_s), sensors, count)

    @property
    def ops_by_key(self) -> dict[tuple[int, int], Op]:
        return {(op.sensor, op.seq): op for op in self.ops}


def do_nothing(sensor: int, seq: int) -> None:
    """Do nothing, as an operation."""


def wait_for(signal: threading.Event) -> None:
    assert signal.wait(PATIENCE_S), "the engine hangs: a signal that another operation gives never came"


def run_to_end(call: Callable[[], None]) -> None:
    """Make a call that has to end by itself, and fail instead of hanging."""
    outcome: list[BaseException | None] = []

    def body() -> None:
        try:
            call()
        except BaseException as error:  # is raised again where the test sees it
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert outcome, "the engine did not end"
    if outcome[0] is not None:
        raise outcome[0]


# --- open loop ---


def test_every_operation_runs_once_and_has_a_complete_record() -> None:
    bench, start_ns = Bench(lambda sensor, seq: 77), now_ns()
    schedule = plan(FixedInterval(0.01, 0.02), range(20), 5, "seed")
    ops = bench.run_open(schedule, start_ns)
    assert Counter((op.sensor, op.seq) for op in bench.ops) == Counter(zip(schedule.sensor, schedule.seq, strict=True))
    for due, sensor, seq in zip(schedule.due_ns, schedule.sensor, schedule.seq, strict=True):
        op = ops[sensor, seq]
        assert op.scheduled_ns == start_ns + due
        assert op.scheduled_ns <= op.start_ns <= op.end_ns
        assert (op.verb, op.agent, op.size_bytes, op.first_byte_ns) == (Verb.PUT, 3, 5, 77)
        assert (op.outcome, op.kind, op.retry_after_s) == (Outcome.OK, None, None)
        assert op.digest == b"%d-%d" % (sensor, seq)


def test_an_empty_plan_ends_at_once() -> None:
    bench = Bench(do_nothing)
    assert bench.run_open(plan(TOGETHER, (), 5, "seed")) == {}
    bench.run_closed(ThinkTime(1.0), 0, 5)
    assert bench.ops == []


@pytest.mark.parametrize("sensors", [5, 100, 300])
def test_slow_operation_does_not_delay_others(sensors: int) -> None:
    """One operation of each sensor ends only when every other operation of all sensors has ended."""
    others_done = threading.Event()

    def act(sensor: int, seq: int) -> None:
        if seq == 1:
            wait_for(others_done)

    bench = Bench(act)

    def record(op: Op) -> None:
        bench.ops.append(op)
        if len(bench.ops) == 2 * sensors:
            others_done.set()

    bench.engine.record = record
    ops = bench.run_open(plan(FixedInterval(0.002), range(sensors), 3, "seed"))
    assert len(ops) == 3 * sensors
    assert {seq for _, seq in ops} == {0, 1, 2}


def test_response_times_count_from_the_due_time_during_a_freeze() -> None:
    """The service freezes while operations 20 to 59 become due. The 60th ends the freeze.

    A closed loop would start few of them and report those few alone (coordinated omission).
    """
    first, last, early_done, thawed = 20, 60, threading.Event(), threading.Event()
    thawed_ns: list[int] = []

    def act(sensor: int, seq: int) -> None:
        if first <= seq < last:
            wait_for(thawed)
        elif seq == last:
            wait_for(early_done)
            thawed_ns.append(now_ns())
            thawed.set()

    bench, start_ns = Bench(act), now_ns()

    def record(op: Op) -> None:
        bench.ops.append(op)
        if sum(op.seq < first for op in tuple(bench.ops)) == first:
            early_done.set()

    bench.engine.record = record
    bench.run_open(plan(FixedInterval(0.002), [0], 100, "seed"), start_ns)
    assert len(bench.ops) == 100
    for op in bench.ops:
        assert op.scheduled_ns == start_ns + op.seq * 2 * MS
        assert op.response_ns == op.service_ns + op.lateness_ns
    frozen = {op.seq for op in bench.ops if op.scheduled_ns < start_ns + last * 2 * MS and op.end_ns >= thawed_ns[0]}
    assert frozen == set(range(first, last))
    for op in bench.ops:
        if op.seq in frozen:
            assert op.response_ns >= thawed_ns[0] - op.scheduled_ns


def test_the_pool_is_bounded_and_its_bound_is_reached() -> None:
    lock, bound, together = threading.Lock(), 7, threading.Barrier(7)
    running = max_in_flight = 0

    def act(sensor: int, seq: int) -> None:
        nonlocal running, max_in_flight
        with lock:
            running += 1
            max_in_flight = max(max_in_flight, running)
        if seq == 0:
            together.wait(PATIENCE_S)
        with lock:
            running -= 1

    # Seven operations meet, and hundreds more are due at the same time.
    bench = Bench(act, max_threads=bound)
    bench.run_open(plan(FixedInterval(0.001), range(bound), 40, "seed"))
    assert len(bench.ops_by_key) == len(bench.ops) == 40 * bound
    assert max_in_flight == bound


def test_when_the_pool_is_full_lateness_grows_and_is_recorded() -> None:
    bench = Bench(lambda sensor, seq: sleep_until_ns(due_ns(0.002)), max_threads=1)
    bench.run_open(plan(TOGETHER, range(20), 1, "seed"))
    ordered = sorted(bench.ops, key=lambda op: op.start_ns)
    waited_ns = 0
    for before, after in itertools.pairwise(ordered):
        waited_ns += before.service_ns
        assert after.start_ns >= before.end_ns
        assert after.lateness_ns >= waited_ns
        assert after.response_ns >= waited_ns + after.service_ns
    assert waited_ns >= 19 * 2 * MS


def test_start_in_the_past_is_recorded_as_lateness() -> None:
    bench = Bench(do_nothing)
    bench.run_open(plan(TOGETHER, range(3), 1, "seed"), now_ns() - 5_000 * MS)
    assert min(op.lateness_ns for op in bench.ops) >= 5_000 * MS
    assert min(op.response_ns for op in bench.ops) >= 5_000 * MS


def test_ten_thousand_sensors_need_no_thread_each() -> None:
    threads: set[int] = set()
    bench = Bench(lambda sensor, seq: threads.add(threading.get_ident()))
    bench.run_open(plan(FixedInterval(2.0, 2.0), range(10_000), 1, "seed"))
    assert sorted(bench.ops_by_key) == [(sensor, 0) for sensor in range(10_000)]
    assert len(bench.ops) == 10_000
    assert len(threads) <= 512


@pytest.fixture
def limit_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that makes the system refuse further threads, as a container's limit does for fifty agents."""
    start, start_new_thread = threading.Thread.start, _thread.start_new_thread

    def limit(count: int) -> None:
        ours = itertools.count(1)

        def refuse_some() -> None:
            if next(ours) > count:
                raise RuntimeError("can't start new thread")

        def start_sensor(thread: threading.Thread) -> None:
            if thread.name.startswith("sensor"):
                refuse_some()
            start(thread)

        def start_in_pool(function: Callable[..., object], args: tuple[Any, ...]) -> int:
            refuse_some()
            return start_new_thread(function, args)

        monkeypatch.setattr(threading.Thread, "start", start_sensor)
        monkeypatch.setattr(_thread, "start_new_thread", start_in_pool)

    return limit


@pytest.mark.parametrize("count", [1, 4, 70])
def test_open_loop_goes_on_when_the_system_has_no_more_threads(
    count: int, limit_threads: Callable[[int], None]
) -> None:
    limit_threads(count)
    bench = Bench(do_nothing)
    run_to_end(lambda: bench.run("open", 100, 3, 0.0))
    assert len(bench.ops_by_key) == len(bench.ops) == 300


def test_run_fails_when_the_system_has_no_thread(limit_threads: Callable[[int], None]) -> None:
    limit_threads(0)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run_to_end(lambda: Bench(do_nothing).run("open", 100, 3, 0.0))


# --- closed loop ---


def test_closed_loop_short_of_threads_is_refused_and_keeps_its_records(
    limit_threads: Callable[[int], None],
) -> None:
    limit_threads(4)
    bench = Bench(do_nothing)
    with pytest.raises(UsageError, match="a closed loop needs 9 threads here, but the system allows 4"):
        run_to_end(lambda: bench.run("closed", 9, 2, HOUR_S))
    assert {seq for _, seq in bench.ops_by_key} <= {0}
    assert {sensor for sensor, _ in bench.ops_by_key} <= set(range(4))


def test_a_closed_loop_thinks_after_each_operation_and_has_one_in_flight_per_sensor() -> None:
    bench, arrival = Bench(do_nothing), ThinkTime(0.004, first_delay_max_s=0.02)
    start_ns = now_ns()
    bench.engine.run_closed(arrival, range(2, 8), 5, "seed", start_ns)
    ops = bench.ops_by_key
    assert sorted(ops) == [(sensor, seq) for sensor in range(2, 8) for seq in range(5)]
    for (sensor, seq), op in ops.items():
        due_ns = start_ns + round(arrival.first_s("seed", sensor) * 1e9)
        if seq:
            due_ns = ops[sensor, seq - 1].end_ns + 4 * MS
        assert op.scheduled_ns == due_ns
        assert op.start_ns >= due_ns


def test_sensors_of_a_closed_loop_do_not_wait_for_each_other() -> None:
    together = threading.Barrier(80)
    bench = Bench(lambda sensor, seq: together.wait(PATIENCE_S) and 0)
    run_to_end(lambda: bench.run("closed", 80, 2, 0.0))
    assert len(bench.ops_by_key) == 160


def test_time_scale_shortens_think_time_and_first_delay() -> None:
    bench = Bench(do_nothing)
    run_to_end(lambda: bench.run_closed(ThinkTime(HOUR_S, HOUR_S), 3, 2, time_scale=1e6))
    ops = bench.ops_by_key
    for sensor in range(3):
        assert ops[sensor, 1].scheduled_ns - ops[sensor, 0].end_ns == round(HOUR_S * 1e9 / 1e6)


# --- failures ---


@pytest.mark.parametrize("kind", ErrorKind)
@TOTALS
def test_refused_operation_is_recorded_and_the_run_goes_on(kind: ErrorKind, loop: str) -> None:
    def act(sensor: int, seq: int) -> None:
        if seq == 1:
            raise CloudError(kind, "put", "/a", retry_after_s=2.5)

    bench = Bench(act)
    bench.run(loop, 2, 3, 0.0)
    special = {ErrorKind.THROTTLED: Outcome.THROTTLED, ErrorKind.CORRUPT: Outcome.CORRUPT}
    assert len(bench.ops) == 6
    for (_, seq), op in bench.ops_by_key.items():
        expected = (special.get(kind, Outcome.FAILED), kind, 2.5) if seq == 1 else (Outcome.OK, None, None)
        assert (op.outcome, op.kind, op.retry_after_s) == expected
        assert op.end_ns >= op.start_ns
        assert (op.first_byte_ns, op.size_bytes) == (0, 5)


def test_throttling_is_not_failure() -> None:
    assert outcome_of(ErrorKind.THROTTLED) is Outcome.THROTTLED
    assert outcome_of(ErrorKind.CORRUPT) is Outcome.CORRUPT
    others = set(ErrorKind) - {ErrorKind.THROTTLED, ErrorKind.CORRUPT}
    assert {outcome_of(kind) for kind in others} == {Outcome.FAILED}


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), SystemExit(3), OSError("not mapped")])
@TOTALS
def test_driver_bug_ends_the_run_and_keeps_finished_records(error: BaseException, loop: str) -> None:
    """The second operations of all others are an hour away, and the run does not wait for them."""
    others_done = threading.Event()

    def act(sensor: int, seq: int) -> None:
        if sensor == 0:
            wait_for(others_done)
            raise error

    bench = Bench(act)

    def record(op: Op) -> None:
        bench.ops.append(op)
        if len(bench.ops) == 4:
            others_done.set()

    bench.engine.record = record
    with pytest.raises(type(error), match=str(error)):
        run_to_end(lambda: bench.run(loop, 5, 2, HOUR_S))
    assert sorted(bench.ops_by_key) == [(sensor, 0) for sensor in range(1, 5)]


@TOTALS
def test_operations_in_flight_at_the_end_are_finished_and_recorded(loop: str) -> None:
    started, failed = threading.Event(), threading.Event()

    def act(sensor: int, seq: int) -> None:
        if sensor == 0:
            wait_for(started)
            failed.set()
            raise ZeroDivisionError
        started.set()
        wait_for(failed)

    bench = Bench(act)
    with pytest.raises(ZeroDivisionError):
        run_to_end(lambda: bench.run(loop, 2, 2, HOUR_S))
    assert sorted(bench.ops_by_key) == [(1, 0)]


@TOTALS
def test_a_payload_that_cannot_be_made_ends_the_run(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(self: Scripted, sensor: int, seq: int) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Scripted, "prepare", prepare)
    bench = Bench(do_nothing)
    with pytest.raises(ZeroDivisionError):
        run_to_end(lambda: bench.run(loop, 5, 5, HOUR_S))
    assert bench.ops == []


@TOTALS
def test_records_that_cannot_be_kept_end_the_run(loop: str) -> None:
    def record(op: Op) -> None:
        raise ResultsError("the disk is full")

    bench = Bench(do_nothing)
    bench.engine.record = record
    with pytest.raises(ResultsError, match="the disk is full"):
        run_to_end(lambda: bench.run(loop, 5, 5, HOUR_S))


@TOTALS
def test_stop_signal_ends_the_run_and_keeps_finished_records(loop: str) -> None:
    bench = Bench(do_nothing)

    def record(op: Op) -> None:
        bench.ops.append(op)
        if len(bench.ops) == 6:
            bench.stop.set()

    bench.engine.record = record
    run_to_end(lambda: bench.run(loop, 6, 2, HOUR_S))
    assert sorted(bench.ops_by_key) == [(sensor, 0) for sensor in range(6)]


def test_end_time_lets_earlier_operations_finish_and_begins_no_later_one() -> None:
    """The end is set while the first operations run. Those due before it are done, however late they are."""
    bench = Bench(lambda sensor, seq: None)
    start_ns = now_ns()

    def act(sensor: int, seq: int) -> None:
        bench.engine.end_ns = start_ns + 300 * MS

    bench.engine.task = Scripted(act)
    bench.run_open(plan(FixedInterval(0.1), range(3), 20, "s"), start_ns)
    assert sorted((op.sensor, op.seq) for op in bench.ops) == [(sensor, seq) for sensor in range(3) for seq in range(3)]


def test_an_end_stops_closed_loops_before_their_next_operation() -> None:
    bench = Bench(lambda sensor, seq: setattr(bench.engine, "end_ns", now_ns()) if seq == 4 else None)
    bench.engine.run_closed(ThinkTime(0.0), range(1), 1000, "s", now_ns())
    assert [op.seq for op in bench.ops] == [0, 1, 2, 3, 4]
    pool = Bench(lambda sensor, seq: setattr(pool.engine, "end_ns", now_ns()) if sensor == 4 else None)
    pool.engine.run_pool(Threads(1), range(1), [(file, 0) for file in range(1000)], "s", now_ns)
    assert [op.sensor for op in pool.ops] == [0, 1, 2, 3, 4]


def test_closed_loop_with_a_different_count_for_each_sensor() -> None:
    bench = Bench(lambda sensor, seq: None)
    bench.engine.run_closed(ThinkTime(0.0), range(3), lambda sensor: sensor, "s", now_ns())
    assert sorted((op.sensor, op.seq) for op in bench.ops) == [(1, 0), (2, 0), (2, 1)]


@TOTALS
def test_a_run_that_is_stopped_before_it_starts_does_nothing(loop: str) -> None:
    bench = Bench(do_nothing)
    bench.stop.set()
    run_to_end(lambda: bench.run(loop, 6, 2, 0.0))
    assert bench.ops == []


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="an interrupt reaches the main thread only"
)
@pytest.mark.usefixtures("ctrl_c")
@TOTALS
def test_ctrl_c_ends_the_run_and_keeps_finished_records(loop: str) -> None:
    bench = Bench(do_nothing)

    def record(op: Op) -> None:
        bench.ops.append(op)
        if len(bench.ops) == 6:
            _thread.interrupt_main()

    bench.engine.record = record
    with pytest.raises(KeyboardInterrupt):
        bench.run(loop, 6, 2, HOUR_S)
    assert sorted(bench.ops_by_key) == [(sensor, 0) for sensor in range(6)]
    assert not [thread for thread in threading.enumerate() if thread.name == "engine" and thread.is_alive()]


def test_switch_interval_is_restored_after_success_and_failure() -> None:
    former = sys.getswitchinterval()
    during: list[float] = []

    def act(sensor: int, seq: int) -> None:
        during.append(sys.getswitchinterval())
        if sensor == 1:
            raise ZeroDivisionError

    Bench(act).run("open", 1, 1, 0.0)
    assert sys.getswitchinterval() == former
    with pytest.raises(ZeroDivisionError):
        Bench(act).run("closed", 2, 1, 0.0)
    assert sys.getswitchinterval() == former
    assert min(during) > former


# --- the budget ---


class Yielding(int):
    """A bound that lets other threads run during the comparison. Without a lock, all of them would pass."""

    def __le__(self, other: int) -> bool:
        time.sleep(0)
        return int(self) <= other

    def __lt__(self, other: int) -> bool:
        time.sleep(0)
        return int(self) < other


@pytest.mark.parametrize(("limits", "fits"), [((100, None), 100), ((None, 770), 110), ((100, 770), 100), ((0, 0), 0)])
def test_a_budget_is_exact_under_threads(limits: tuple[int | None, int | None], fits: int) -> None:
    bounds = [None if limit is None else Yielding(limit) for limit in limits]
    budget, together = Budget(*bounds), threading.Barrier(8)

    def take() -> int:
        together.wait(PATIENCE_S)
        count = 0
        for _ in range(50):
            try:
                budget.take(7)
            except BudgetError:
                continue
            count += 1
        return count

    with ThreadPoolExecutor(8) as pool:
        count = [future.result() for future in [pool.submit(take) for _ in range(8)]]
    assert (sum(count), budget.ops, budget.bytes) == (fits, fits, 7 * fits)


def test_a_budget_without_bounds_counts_only() -> None:
    budget = Budget()
    for size in range(5):
        budget.take(size)
    assert (budget.ops, budget.bytes) == (5, 10)


@pytest.mark.parametrize(
    ("budget", "line"),
    [
        (Budget(max_ops=7), "--max-ops 7 is used up"),
        (Budget(max_bytes=39), r"--max-bytes 39 is used up \(35 bytes so far\)"),
    ],
)
@TOTALS
def test_a_run_ends_before_it_exceeds_its_budget(budget: Budget, line: str, loop: str) -> None:
    bench = Bench(do_nothing, budget=Budget(budget.max_ops, budget.max_bytes))
    with pytest.raises(BudgetError, match=line):
        run_to_end(lambda: bench.run(loop, 20, 2, 0.0))
    assert len(bench.ops) == len(bench.ops_by_key) == 7


def test_the_clock_of_operations_is_monotonic_and_in_nanoseconds() -> None:
    assert now_ns.__name__ == "monotonic_ns"
    assert now_ns() <= now_ns()


# --- plans with a verb and a size for each operation ---


@dataclass
class Replaying(Scripted):
    """A task that follows a trace. Each step keeps its own verb and size."""

    def step(self, verb: Verb, size_bytes: int) -> Scripted:
        return Scripted(self.act, verb, size_bytes)


TRACE = "time,sensor,operation,size\n0,0,put,7\n0,1,stat,0\n0.001,0,get,7\n0.002,1,put,9\n"


def test_a_trace_is_recorded_with_the_verb_and_size_of_each_row() -> None:
    bench = Bench(do_nothing)
    bench.engine.task = Replaying(do_nothing)
    ops = bench.run_open(plan(Replay(parse_trace(TRACE)), range(2), 9, "seed"))
    assert {key: (op.verb, op.size_bytes) for key, op in ops.items()} == {
        (0, 0): (Verb.PUT, 7), (1, 0): (Verb.STAT, 0), (0, 1): (Verb.GET, 7), (1, 1): (Verb.PUT, 9),
    }  # fmt: skip
    assert len(bench.ops) == 4


def test_trace_needs_a_task_with_steps_and_a_plain_plan_does_not() -> None:
    bench = Bench(do_nothing)
    with pytest.raises(UsageError, match="Scripted does not support"):
        bench.run_open(plan(Replay(parse_trace(TRACE)), range(2), 9, "seed"))
    assert bench.ops == []
    bench.engine.task = Replaying(do_nothing)
    assert {op.verb for op in bench.run_open(plan(TOGETHER, range(2), 2, "seed")).values()} == {Verb.PUT}


def test_a_step_that_cannot_be_made_ends_the_run() -> None:
    class Broken(Replaying):
        def step(self, verb: Verb, size_bytes: int) -> Scripted:
            raise ZeroDivisionError

    bench = Bench(do_nothing)
    bench.engine.task = Broken(do_nothing)
    with pytest.raises(ZeroDivisionError):
        run_to_end(lambda: bench.engine.run_schedule(plan(Replay(parse_trace(TRACE)), range(2), 9, "seed"), now_ns()))


# --- CPU time ---

BURNT_S = 0.2


def burn(sensor: int, seq: int, which: int) -> None:
    """Take CPU time in one of the operations."""
    end_s = time.thread_time() + BURNT_S
    while seq == which and time.thread_time() < end_s:
        pass


@pytest.mark.parametrize("which", [0, 1])
def test_cpu_time_begins_with_the_first_operation_after_the_warm_up(which: int) -> None:
    bench = Bench(lambda sensor, seq: burn(sensor, seq, which))
    start_ns = now_ns()
    bench.engine.measured_from_ns = start_ns + 1  # the first operation is due before, the second one when it has ended
    bench.engine.run_closed(ThinkTime(0.0), [0], 2, "seed", start_ns)
    took_s = bench.engine.measured_cpu_s()
    assert len(bench.ops) == 2
    assert (took_s >= BURNT_S) == (which == 1), took_s


def test_run_of_warm_up_only_has_no_cpu_time() -> None:
    bench = Bench(lambda sensor, seq: None)
    bench.engine.measured_from_ns = now_ns() + 10**15
    bench.run_closed(ThinkTime(0.0), 2, 2)
    assert len(bench.ops) == 4
    assert bench.engine.measured_cpu_s() == 0.0


@TOTALS
def test_operations_in_flight_are_those_that_have_begun_and_not_ended(loop: str) -> None:
    together, in_flight = threading.Barrier(3, timeout=PATIENCE_S), list[int]()

    def act(sensor: int, seq: int) -> None:
        if together.wait() == 0:
            in_flight.append(bench.engine.in_flight)
        together.wait()
        if sensor == 0:
            raise CloudError(ErrorKind.THROTTLED, Verb.PUT, "x")
        if sensor == 1:
            raise CloudError(ErrorKind.SERVER, Verb.PUT, "x")

    bench = Bench(act)
    bench.run(loop, sensors=3, count=1, interval_s=0.0)
    assert in_flight == [3]
    assert bench.engine.in_flight == 0
