"""One agent in a process of its own, with a driver that does nothing: ``python -m benchmarks.engine_agent BLOCKS``.

Prints as JSON how late 10,000 sensors are, each due every 10 s, and in turns with them one thread that sleeps until the
same times.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.harness import alternating
from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.judge.stats import percentile
from pytest_cloudbench.load.engine.engine import Budget, Engine, Task
from pytest_cloudbench.load.engine.operations import Upload
from pytest_cloudbench.load.request import Files
from pytest_cloudbench.model import Capabilities, Content, Endpoint, Entry, ProviderSpec, Verb
from pytest_cloudbench.results.oplog import OpLog, read_log
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.workload.arrival import FixedInterval, plan
from pytest_cloudbench.workload.payload import Payloads

__all__ = ["NoDriver", "measure_lateness"]

_MANY_SENSORS, _INTERVAL_S = 10_000, 10.0
_MARGIN_NS = 50_000_000
_DONE = Entry("/done")


class NoDriver:
    """Does nothing and succeeds."""

    capabilities: ClassVar[Capabilities] = Capabilities(digest=None, verbs=frozenset({Verb.PUT}))

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> Driver:
        return cls()

    def versions(self) -> Mapping[str, str]:
        return {}

    def put(self, path: str, content: Content) -> Entry:
        return _DONE

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        return iter(())

    def stat(self, path: str) -> Entry:
        return _DONE

    def list(self, folder: str) -> Iterator[Entry]:
        return iter(())

    def delete(self, path: str) -> None: ...

    def mkdir(self, path: str) -> None: ...

    def close(self) -> None: ...


def measure_lateness(blocks: int) -> dict[str, Any]:
    """Return the lateness (p99, ms) of many sensors, and of a thread that only sleeps until the same times."""
    upload = Upload(NoDriver(), Files("/run/experiment", Payloads("bench").random(5120)))
    runs: list[dict[str, float]] = []

    def sensors() -> float:
        runs.append(_run_engine(upload))
        return runs[-1]["lateness_p99_ms"]

    blocks_ms = alternating(sensors, _sleeper_p99_ms, blocks)
    return {"ours": blocks_ms.ours, "reference": blocks_ms.reference, "runs": runs[1:]}


def _sleeper_p99_ms() -> float:
    schedule = plan(FixedInterval(_INTERVAL_S, _INTERVAL_S), range(_MANY_SENSORS), 1, "bench")
    begun_ns, late_ns = now_ns() + _MARGIN_NS, []
    for due_ns in schedule.due_ns:
        while (left_ns := begun_ns + due_ns - now_ns()) > 0:
            time.sleep(left_ns / 1e9)
        late_ns.append(-left_ns)
    return percentile(sorted(late_ns), 0.99) / 1e6


def _run_engine(task: Task) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="cloudbench-bench-") as folder:
        schedule = plan(FixedInterval(_INTERVAL_S, _INTERVAL_S), range(_MANY_SENSORS), 1, "bench")
        begun_s, begun_wall_s = time.process_time(), time.monotonic()
        with OpLog(Path(folder) / "agent.oplog", {"agent": "bench"}, progress=lambda *totals: None) as log:
            Engine(task, log.record, 0, threading.Event(), Budget()).run_schedule(schedule, now_ns() + _MARGIN_NS)
        cpu_s, wall_s = time.process_time() - begun_s, time.monotonic() - begun_wall_s
        table = read_log(log.path)
        late_ns = sorted(op.lateness_ns for op in table.ops())
    if len(table) != _MANY_SENSORS:
        raise RuntimeError(f"{len(table)} records of {_MANY_SENSORS} operations")
    return {
        "ops": len(table), "cpu_s": cpu_s, "wall_s": wall_s,
        **{f"lateness_{name}_ms": percentile(late_ns, share) / 1e6
           for name, share in {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}.items()},
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measure_lateness(int(sys.argv[1]))))
