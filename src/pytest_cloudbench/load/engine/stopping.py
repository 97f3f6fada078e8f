"""The early end of a run whose metric has been steady (``judge.steady``), and the drift of a metric in any run.

What may live here: the agents' half, which reports the times of operations, and the controller's half, which decides
for the whole fleet. All agents end at one due time: operations that are due earlier are done, later ones are not begun.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.messages import make_plain
from pytest_cloudbench.judge.metrics import Summary
from pytest_cloudbench.judge.records import OpTable, values
from pytest_cloudbench.judge.stats import rows_in_order
from pytest_cloudbench.judge.steady import Stable, SteadinessWatch, amount_of, describe_settling, drift, steadiness
from pytest_cloudbench.load.engine.engine import Engine
from pytest_cloudbench.load.messages import EndOfRun, Watched
from pytest_cloudbench.model import Op, Outcome
from pytest_cloudbench.support.wording import format_count

_DEFAULT_METRIC = "response_p50"
"""The metric whose drift is described in a run without ``until``."""
_AMOUNT_FIELDS = ("scheduled_ns", "start_ns", "end_ns", "size_bytes")
"""The arguments of ``amount_of`` after the metric."""


class RunWatch:
    """The reports of one agent's operations to the controller, which may end the run.

    Args:
        agent: this process in the fleet.
        run: the run's name.
        until: the metric that is to be steady.
        record: called with every finished operation.

    Attributes:
        measured_from_ns: the end of the warm-up on this host's clock, None before the start.
    """

    def __init__(self, agent: Agent, run: str, until: Stable, record: Callable[[Op], None]) -> None:
        self._agent, self._run, self._metric, self._record = agent, run, until.metric, record
        self._waiting: deque[tuple[int, int]] = deque()
        self.measured_from_ns: int | None = None

    def record(self, op: Op) -> None:
        """Keep a finished operation. Many threads call this."""
        self._record(op)
        first_ns = self.measured_from_ns
        if op.outcome is Outcome.OK and first_ns is not None and op.scheduled_ns >= first_ns:
            amount = amount_of(self._metric, op.scheduled_ns, op.start_ns, op.end_ns, op.size_bytes)
            self._waiting.append((op.end_ns + self._agent.clock_offset_ns, amount))

    def report(self) -> None:
        """Send the operations since the last report to the controller."""
        if self._waiting:
            new = [self._waiting.popleft() for _ in range(len(self._waiting))]
            ends_ns, amounts = (array("q", column).tobytes() for column in zip(*new, strict=True))
            self._agent.tell("watched", Watched(self._run, ends_ns, amounts))

    def end_engine(self, engine: Engine) -> None:
        """Let a message from the controller end this agent's engine."""

        def end_in_time(payload: object) -> None:
            message = EndOfRun.from_plain(payload)
            if message.run == self._run:
                end_ns = message.end_ns - self._agent.clock_offset_ns
                engine.end_ns = end_ns if engine.end_ns is None else min(end_ns, engine.end_ns)

        self._agent.listeners["end"] = end_in_time


class Decider:
    """The decision when a run may end. Agents report from different threads."""

    def __init__(self, until: Stable) -> None:
        self._lookout, self._lock, self._is_over = SteadinessWatch(until), threading.Lock(), False

    def add_report(self, report: Watched) -> bool:
        """Take an agent's report. Return True once, when the run is to end."""
        with self._lock:
            if self._is_over:
                return False
            self._is_over = self._lookout.add(_unpack_numbers(report.ends_ns), _unpack_numbers(report.amounts))
            return self._is_over


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run: what its entry holds, notes for a reader, doubts about its numbers, and its metric's drift."""

    info: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    drift: str = ""


def describe_drift(summary: Summary) -> str:
    """Return in words how the default metric drifted in a run without ``until``. Empty if it did not."""
    return drift(_DEFAULT_METRIC, (), summary.response_s, summary.metrics["elapsed"] or 0.0)


def describe_end(table: OpTable, until: Stable, ops: tuple[int, int], start_ns: int, end_ns: int | None) -> End:
    """Describe the end of a run that had to go on until its metric is steady, with figures from all its records.

    Args:
        table: its records without the warm-up.
        until: the metric that had to be steady.
        ops: operations that were tried, the warm-up among them, and the most that were allowed.
        start_ns: the start of the run.
        end_ns: the end that the controller set, None if it set none.
    """
    ends_ns, amounts = _times_and_amounts(table, until.metric)
    steady, doubt = steadiness(until, ends_ns, amounts), describe_settling(until, ends_ns, amounts)
    amounts_in_order = (
        amounts
        if until.metric in ("ops_per_s", "throughput")
        else _times_and_amounts(table, until.metric, "scheduled_ns")[1]
    )
    elapsed_ns = ends_ns[-1] - start_ns if ends_ns else 0
    drift_text = drift(until.metric, ends_ns, amounts_in_order, elapsed_ns, until.within)
    precision = "too few operations succeeded to tell" if steady is None else f"known to ±{steady.error:.1%}"
    tried, planned = ops
    if end_ns is not None:
        took = f"after {(end_ns - start_ns) / 1e9:.1f} s, with {tried:,} of {format_count(planned, 'operation')}"
        line = f"ended steady {took}: {until.metric} {precision}"
    else:
        budget = format_count(planned, "operation")
        where = f"at its budget of {budget}" if tried >= planned else f"early, with {tried:,} of {budget}"
        required = f" (±{until.within:.1%} was asked for)" if steady is not None else ""
        is_steady_at_end = steady is not None and steady.is_within(until.within)  # a run ends if it is so twice
        state = "not steady for long enough" if is_steady_at_end else "not steady"
        line = f"ended {where}: {until.metric} {state}, {precision}{required}"
    info = {
        "until": make_plain(until),
        "ended": "steady" if end_ns is not None else "budget" if tried >= planned else "stopped",
        "steadiness": None if steady is None else {
            "ops": steady.ops, "value": steady.value, "error": steady.error, "change": steady.change,
        },
    }  # fmt: skip
    return End(info, (line,), (doubt,) if doubt and not drift_text else (), drift_text)


def _times_and_amounts(table: OpTable, metric: str, time_field: str = "end_ns") -> tuple[array[int], array[int]]:
    """Return one time of all successful operations, in order, and the amounts that the metric is computed from."""
    times_ns, amounts, column = array("q"), array("q"), _AMOUNT_FIELDS.index(time_field)
    for block in table.blocks():
        fields = zip(*(values(block, name) for name in _AMOUNT_FIELDS), strict=True)
        for times_and_size, outcome in zip(fields, values(block, "outcome"), strict=True):
            if outcome is Outcome.OK:
                times_ns.append(times_and_size[column])
                amounts.append(amount_of(metric, *times_and_size))
    rows = rows_in_order(times_ns)
    return array("q", map(times_ns.__getitem__, rows)), array("q", map(amounts.__getitem__, rows))


def _unpack_numbers(packed: bytes) -> array[int]:
    numbers = array("q")
    numbers.frombytes(packed)
    return numbers
