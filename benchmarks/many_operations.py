"""A session of many operations with a driver that does nothing, and the CPU and memory that it has used.

This includes start, listing, verification, summary, Parquet and pytest-benchmark's table.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT, environment, python, run_tree, scratch

__all__ = ["Used", "run_session"]

_TEST = """
    import os
    from pytest_cloudbench import FixedInterval, ThinkTime

    def test_many(experiment, payloads):
        sensors, count = int(os.environ["SENSORS"]), int(os.environ["COUNT"])
        arrival = {"open": FixedInterval(0.0), "closed": ThinkTime(0.0)}[os.environ["LOOP"]]
        experiment.run(payloads.random(5120), arrival=arrival, sensors=sensors, ops_per_sensor=count)
"""
_CONFTEST = """
    import json, os, pathlib, pytest, time
    from benchmarks.engine_agent import NoDriver
    from pytest_cloudbench.providers import Provider
    from pytest_cloudbench.lab.sync.usage import rss_bytes
    from pytest_cloudbench.model import Entry

    SENSORS, COUNT = int(os.environ["SENSORS"]), int(os.environ["COUNT"])

    class Lists(NoDriver):
        def list(self, folder):
            for number in range(SENSORS * COUNT):
                yield Entry(f"{folder}/s{number % SENSORS:05d}-{number // SENSORS:06d}.bin", 5120)

    @pytest.fixture(scope="session")
    def provider():
        return Provider("own:nothing", Lists())

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(config):
        if not hasattr(config, "workerinput"):
            used = [time.process_time(), rss_bytes([os.getpid()], peak=True)]
            pathlib.Path("used.json").write_text(json.dumps(used))
"""


@dataclass(frozen=True, slots=True)
class Used:
    """The CPU and memory of a session: of all its processes from start to end, and of its controller."""

    cpu_s: float
    controller_cpu_s: float
    controller_peak_bytes: float


def run_session(sensors: int, ops: int, *args: str, hosts: str = "", loop: str = "open") -> Used:
    """Run a session and return what it has used.

    Args:
        sensors: among which the operations are divided.
        ops: how many there are.
        args: pytest's, which say where agents run.
        hosts: the content of ``hosts.toml``.
        loop: "open" makes all operations due at once, "closed" lets each sensor do one after the other.
    """
    with scratch(test_many=_TEST, conftest=_CONFTEST) as folder:
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "hosts.toml").write_text(hosts)
        command = python("-m", "pytest", "-q", *args, "-p", "no:cacheprovider", "-ocloudbench_max_lateness=600")
        counts = {"SENSORS": str(sensors), "COUNT": str(ops // sensors), "LOOP": loop}
        variables = environment(PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'src'}", **counts)
        usage = run_tree(command, folder, variables, sampled=False).require()
        return Used(usage.cpu_s, *json.loads(Path(folder, "used.json").read_text()))
