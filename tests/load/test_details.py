"""The engine records a provider's messages and the requests of each operation."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from pytest_cloudbench.load.engine.engine import Budget, Engine
from pytest_cloudbench.model import CloudError, ErrorKind, Op, Verb
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.workload.arrival import FixedInterval, plan


@dataclass
class NumberedTask:
    """A task that refuses odd numbers, and sends as many requests as its number."""

    requests_sent: threading.local
    verb: Verb = Verb.PUT

    def prepare(self, sensor: int, seq: int) -> tuple[Any, int, bytes]:
        return seq, 0, b""

    def execute(self, prepared: int) -> int:
        self.requests_sent.count = self.count() + prepared
        if prepared % 2:
            raise CloudError(ErrorKind.THROTTLED, "put", "/a", detail=f"429 number {prepared}")
        return 0

    def count(self) -> int:
        return getattr(self.requests_sent, "count", 0)


def run_operations(*, counts: bool) -> list[Op]:
    task, ops = NumberedTask(threading.local()), list[Op]()
    engine = Engine(task, ops.append, 0, threading.Event(), Budget(), requests=task.count if counts else None)
    engine.run_schedule(plan(FixedInterval(0.001), range(3), 4, "seed"), now_ns())
    return sorted(ops, key=lambda op: (op.sensor, op.seq))


def test_provider_messages_are_recorded() -> None:
    assert [op.detail for op in run_operations(counts=False)] == ["", "429 number 1", "", "429 number 3"] * 3


def test_requests_are_counted_per_operation_across_threads() -> None:
    assert [op.requests for op in run_operations(counts=True)] == [0, 1, 2, 3] * 3


def test_uncounted_requests_are_unknown() -> None:
    assert {op.requests for op in run_operations(counts=False)} == {None}
