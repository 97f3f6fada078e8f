"""A process that stands still is noticed, and so are the operations that were under way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from pytest_cloudbench.load.engine.engine import Budget, Engine
from pytest_cloudbench.load.engine.standstill import NAP_S, Standstills
from pytest_cloudbench.model import Op
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.workload.arrival import FixedInterval, ThinkTime, Threads, plan

from .test_in_flight import Call

STOP = """
import os, sys, time
pid, stop, go_on = map(int, sys.argv[1:])
os.kill(pid, stop)
time.sleep(1.5)
os.kill(pid, go_on)
"""
"""A program that stops a process for longer than a thread of a busy one may oversleep."""


class Clock:
    """A clock that a wait moves."""

    def __init__(self) -> None:
        self.time_ns = 0

    def read(self) -> int:
        return self.time_ns

    def wait_longer(self, more_s: float) -> Callable[[float], None]:
        """Return a wait that takes longer than it should."""

        def wait(seconds: float) -> None:
            self.time_ns += round((seconds + more_s) * 1e9)

        return wait


@pytest.mark.parametrize(
    ("more_s", "total_s", "ops"),
    [((0.0, 0.3, 0.9, -0.1), 0.0, 0), ((0.0, 1.5), 1.5, 7), ((2.0, 0.0, 3.0, 1.0), 6.0, 21)],
)
def test_a_nap_that_lasts_much_longer_is_a_standstill(more_s: tuple[float, ...], total_s: float, ops: int) -> None:
    clock = Clock()
    standstills = Standstills(lambda: 7, int, clock.read)
    for seconds in more_s:
        standstills.nap(clock.wait_longer(seconds))
    assert standstills.total_s == pytest.approx(total_s)
    assert standstills.ops == ops
    assert clock.time_ns == pytest.approx((sum(more_s) + len(more_s) * NAP_S) * 1e9)


@pytest.mark.parametrize(("in_flight", "begun"), [(4, [9, 9]), (1, [9, 12]), (0, [0, 4])])
def test_operations_that_began_before_a_standstill_or_in_its_nap_count(in_flight: int, begun: list[int]) -> None:
    """Even if they have ended by the time at which the nap ends."""
    clock, begun_counts = Clock(), iter(begun)
    standstills = Standstills(lambda: in_flight, lambda: next(begun_counts), clock.read)
    standstills.nap(clock.wait_longer(2.0))
    assert standstills.ops == 4


def test_a_standstill_without_any_operation_under_way_does_not_count() -> None:
    clock = Clock()
    standstills = Standstills(lambda: 0, lambda: 3, clock.read)
    standstills.nap(clock.wait_longer(2.0))
    assert (standstills.total_s, standstills.ops) == (0, 0)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="only POSIX can stop a process")
@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "not-stopped"])
@pytest.mark.parametrize("loop", ["open", "closed", "pool"])
def test_a_run_of_a_process_that_was_stopped_is_doubtful(loop: str, is_stopped: bool) -> None:
    ops = list[Op]()

    def act(sensor: int, seq: int) -> None:
        if sensor == 0 and is_stopped:
            numbers = (os.getpid(), signal.SIGSTOP, signal.SIGCONT)
            subprocess.run([sys.executable, "-c", STOP, *(str(int(number)) for number in numbers)], check=True)

    engine = Engine(Call(act), ops.append, 0, threading.Event(), Budget())
    if loop == "open":
        engine.run_schedule(plan(FixedInterval(0.0), range(2), 1, "seed"), now_ns())
    elif loop == "closed":
        engine.run_closed(ThinkTime(0.0), range(2), 1, "seed", now_ns())
    else:
        engine.run_pool(Threads(2), range(2), [(0, 0), (1, 0)], "seed", now_ns)
    assert len(ops) == 2
    doubts = [doubt.partition(" for ")[0] for doubt in engine.doubts]
    assert doubts == (["an agent stood still"] if is_stopped else [])
