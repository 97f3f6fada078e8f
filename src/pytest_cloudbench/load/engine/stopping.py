"""When a run ends before all of its operations are done: its metric has been steady (``judge.steady``).

What may live here: the agents' half, which reports what operations took, and the controller's half, which decides for
the whole fleet. All agents end at one due time: what is due before is done, and nothing later is begun. And whether a
metric drifted in any run, which its end is the time to say.
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
from pytest_cloudbench.judge.steady import Lookout, Stable, amount_of, drift, steadiness, unsettled
from pytest_cloudbench.load.engine.engine import Engine
from pytest_cloudbench.load.messages import EndOfRun, Watched
from pytest_cloudbench.model import Op, Outcome

_USUAL = "response_p50"
"""What is looked at for a drift in a run that does not say what is to be steady."""
_AMOUNT_FIELDS = ("scheduled_ns", "start_ns", "end_ns", "size_bytes")
"""What ``amount_of`` takes."""


class RunWatch:
    """What one agent's operations took, for the controller, and the end of the run when that says so.

    Args:
        agent: this process in the fleet.
        run: which run.
        until: what is to be steady.
        record: where records go.

    Attributes:
        measured_from_ns: the end of the warm-up on this host's clock; None before the start.
    """

    def __init__(self, agent: Agent, run: str, until: Stable, record: Callable[[Op], None]) -> None:
        self._agent, self._run, self._metric, self._record = agent, run, until.metric, record
        self._waiting: deque[tuple[int, int]] = deque()
        self.measured_from_ns: int | None = None

    def record(self, op: Op) -> None:
        """Keep a finished operation; from many threads."""
        self._record(op)
        first_ns = self.measured_from_ns
        if op.outcome is Outcome.OK and first_ns is not None and op.scheduled_ns >= first_ns:
            amount = amount_of(self._metric, op.scheduled_ns, op.start_ns, op.end_ns, op.size_bytes)
            self._waiting.append((op.end_ns + self._agent.clock_offset_ns, amount))

    def report(self) -> None:
        """Tell the controller what is new."""
        if self._waiting:
            new = [self._waiting.popleft() for _ in range(len(self._waiting))]
            ends_ns, amounts = (array("q", column).tobytes() for column in zip(*new, strict=True))
            self._agent.tell("watched", Watched(self._run, ends_ns, amounts))

    def ends(self, engine: Engine) -> None:
        """Let the controller end this agent's engine."""

        def end(payload: object) -> None:
            told = EndOfRun.from_plain(payload)
            if told.run == self._run:
                end_ns = told.end_ns - self._agent.clock_offset_ns
                engine.end_ns = end_ns if engine.end_ns is None else min(end_ns, engine.end_ns)

        self._agent.listeners["end"] = end


class Decider:
    """Decides when a run may end; agents report from different threads."""

    def __init__(self, until: Stable) -> None:
        self._lookout, self._lock, self._is_over = Lookout(until), threading.Lock(), False

    def is_over(self, told: Watched) -> bool:
        """Take a report. Returns True once: when the run is to end."""
        with self._lock:
            if self._is_over:
                return False
            self._is_over = self._lookout.add(_numbers(told.ends_ns), _numbers(told.amounts))
            return self._is_over


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended, for its entry, for a reader, as a reason to doubt its numbers, and how its metric drifted."""

    info: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    drift: str = ""


def drift_of(summary: Summary) -> str:
    """Returns how the usual metric drifted in a run that was to do all of its operations, in words; or nothing."""
    return drift(_USUAL, (), summary.response_s, summary.metrics["elapsed"] or 0.0)


def end_of(table: OpTable, until: Stable, ops: tuple[int, int], start_ns: int, end_ns: int | None) -> End:
    """Returns how a run ended that was to end when its metric is steady, with figures from all its records.

    Args:
        table: its records without the warm-up.
        until: what was to be steady.
        ops: operations that were tried, the warm-up among them, and operations at most.
        start_ns: when it began.
        end_ns: when the controller ended it, None if it did not.
    """
    ends_ns, amounts = _columns(table, until.metric)
    found, off = steadiness(until, ends_ns, amounts), unsettled(until, ends_ns, amounts)
    in_turn = (
        amounts if until.metric in ("ops_per_s", "throughput") else _columns(table, until.metric, "scheduled_ns")[1]
    )
    elapsed_ns = ends_ns[-1] - start_ns if ends_ns else 0
    moved = drift(until.metric, ends_ns, in_turn, elapsed_ns, until.within)
    known = "too few operations succeeded to tell" if found is None else f"known to ±{found.error:.1%}"
    tried, planned = ops
    if end_ns is not None:
        took = f"after {(end_ns - start_ns) / 1e9:.1f} s, with {tried:,} of {planned:,} operations"
        line = f"ended steady {took}: {until.metric} {known}"
    else:
        where = f"at its budget of {planned:,}" if tried >= planned else f"early, with {tried:,} of {planned:,}"
        asked = f" (±{until.within:.1%} was asked for)" if found is not None else ""
        line = f"ended {where} operations: {until.metric} not steady, {known}{asked}"
    info = {
        "until": make_plain(until),
        "ended": "steady" if end_ns is not None else "budget" if tried >= planned else "stopped",
        "steadiness": None if found is None else {
            "ops": found.ops, "value": found.value, "error": found.error, "change": found.change,
        },
    }  # fmt: skip
    return End(info, (line,), (off,) if off and not moved else (), moved)


def _columns(table: OpTable, metric: str, by: str = "end_ns") -> tuple[array[int], array[int]]:
    """Returns that time of all successful operations in its order, and what the metric is made of."""
    times_ns, amounts, place = array("q"), array("q"), _AMOUNT_FIELDS.index(by)
    for block in table.blocks():
        fields = zip(*(values(block, name) for name in _AMOUNT_FIELDS), strict=True)
        for each, outcome in zip(fields, values(block, "outcome"), strict=True):
            if outcome is Outcome.OK:
                times_ns.append(each[place])
                amounts.append(amount_of(metric, *each))
    rows = rows_in_order(times_ns)
    return array("q", map(times_ns.__getitem__, rows)), array("q", map(amounts.__getitem__, rows))


def _numbers(packed: bytes) -> array[int]:
    found = array("q")
    found.frombytes(packed)
    return found
