"""One agent in a process of its own, with a driver that does nothing. Prints what it measured as JSON.

``python -m benchmarks.engine_agent MODE`` with MODE ``open`` (every operation is due at once), ``closed``
(no think time), ``bare`` (as ``open``, without a driver: the engine and the log alone) or ``sensors``
(10,000 sensors, each due every 10 s, for 3 rounds).
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

from pytest_cloudbench.arrival import FixedInterval, ThinkTime, plan
from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.engine import Budget, Engine, Task, now_ns
from pytest_cloudbench.fleet.operations import Files, Upload
from pytest_cloudbench.model import Capabilities, Content, Endpoint, Entry, ProviderSpec, Verb
from pytest_cloudbench.payload import Payloads
from pytest_cloudbench.results.oplog import OpLog, read_log
from pytest_cloudbench.stats import percentile

__all__ = ["main"]

_SENSORS, _OPS_PER_SENSOR = 50, 2000
_MANY_SENSORS, _INTERVAL_S, _ROUNDS = 10_000, 10.0, 3
_MARGIN_NS = 50_000_000
_DONE = Entry("/done")


class NoDriver:
    """Does nothing, and succeeds."""

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


class NoTask:
    """Not even a driver: the rest is the engine and the log."""

    verb = Verb.PUT

    def prepare(self, sensor: int, seq: int) -> tuple[Any, int, bytes]:
        return None, 5120, b""

    def execute(self, prepared: Any) -> int:
        return 0


def main(mode: str) -> dict[str, float]:
    upload = Upload(NoDriver(), Files("/run/experiment", Payloads("bench").random(5120)))
    task: Task = NoTask() if mode == "bare" else upload
    sensors, count = (_MANY_SENSORS, _ROUNDS) if mode == "sensors" else (_SENSORS, _OPS_PER_SENSOR)
    arrival = FixedInterval(_INTERVAL_S, _INTERVAL_S) if mode == "sensors" else FixedInterval(0.0)
    with tempfile.TemporaryDirectory(prefix="cloudbench-bench-") as folder:
        schedule = plan(arrival, range(sensors), count, "bench")
        begun_s, begun_wall_s = time.process_time(), time.monotonic()
        with OpLog(Path(folder) / "agent.oplog", {"agent": "bench"}, progress=lambda *told: None) as log:
            engine = Engine(task, log.record, 0, threading.Event(), Budget())
            if mode == "closed":
                engine.run_closed(ThinkTime(0.0), range(sensors), count, "bench", now_ns())
            else:
                engine.run_schedule(schedule, now_ns() + (_MARGIN_NS if mode == "sensors" else 0))
        cpu_s, wall_s = time.process_time() - begun_s, time.monotonic() - begun_wall_s
        table = read_log(log.path)
    if len(table) != sensors * count:
        raise RuntimeError(f"{len(table)} records of {sensors * count} operations")
    late_ns = sorted(start - due for start, due in zip(table.start_ns, table.scheduled_ns, strict=True))
    return {
        "ops": len(table), "cpu_s": cpu_s, "wall_s": wall_s, "ops_per_cpu_s": len(table) / cpu_s,
        **{f"lateness_{name}_ms": percentile(late_ns, share) / 1e6
           for name, share in {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}.items()},
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
