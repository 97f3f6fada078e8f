"""A session of many operations with a driver that does nothing, and what its controller has used at the end.

This includes listing, verification, summary, Parquet and pytest-benchmark's table.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.harness import ROOT, environment, python, run_tree, scratch

__all__ = ["run_session"]

_TEST = """
    import os
    from pytest_cloudbench import FixedInterval

    def test_many(experiment, payloads):
        sensors, count = int(os.environ["SENSORS"]), int(os.environ["COUNT"])
        experiment.run(payloads.random(5120), arrival=FixedInterval(0.0), sensors=sensors, ops_per_sensor=count)
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


def run_session(sensors: int, ops: int, *args: str, hosts: str = "") -> tuple[float, float]:
    """Return the controller's CPU in seconds, and its peak of memory in bytes.

    Args:
        sensors: among which the operations are divided.
        ops: how many there are.
        args: pytest's, which say where agents run.
        hosts: the content of ``hosts.toml``.
    """
    with scratch(test_many=_TEST, conftest=_CONFTEST) as folder:
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "hosts.toml").write_text(hosts)
        command = python("-m", "pytest", "-q", *args, "-p", "no:cacheprovider", "-ocloudbench_max_lateness=600")
        variables = environment(PYTHONPATH=str(ROOT), SENSORS=str(sensors), COUNT=str(ops // sensors))
        run_tree(command, folder, variables, sampled=False).require()
        cpu_s, peak_bytes = json.loads(Path(folder, "used.json").read_text())
        return cpu_s, peak_bytes
