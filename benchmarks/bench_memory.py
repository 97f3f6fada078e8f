"""The controller's memory for each additional operation, at most: a session of two agents with a driver that does
nothing.

Two sizes of the same session; the difference of the controller's peaks over the difference in operations. This includes
listing, verification, summary, Parquet and pytest-benchmark's table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import MIB, ROOT, Figure, environment, median, python, run_tree, scratch

__all__ = ["measure"]

_FEW, _MANY = 20_000, 220_000
_SENSORS = 50

_TEST = """
    from pytest_cloudbench.workload.arrival import FixedInterval

    def test_many(experiment, payloads):
        experiment.run(payloads.random(5120), arrival=FixedInterval(0.0), sensors=50, ops_per_sensor=OPS)
"""
_CONFTEST = """
    import json, os, pathlib, pytest
    from benchmarks.engine_agent import NoDriver
    from pytest_cloudbench.providers import Provider
    from pytest_cloudbench.lab.sync.usage import rss_bytes
    from pytest_cloudbench.model import Entry

    class Lists(NoDriver):
        def list(self, folder):
            for number in range(50 * OPS):
                yield Entry(f"{folder}/s{number % 50:05d}-{number // 50:06d}.bin", 5120)

    @pytest.fixture(scope="session")
    def provider():
        return Provider("own:nothing", Lists())

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(config):
        if not hasattr(config, "workerinput"):
            peak = rss_bytes([os.getpid()], peak=True)
            pathlib.Path("peak.json").write_text(json.dumps(peak))
"""


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``controller_bytes_per_op``."""
    few, many = ([_peak_bytes(ops) for _ in range(max(1, runs // 3))] for ops in (_FEW, _MANY))
    value = (median(many) - median(few)) / (_MANY - _FEW)
    absolute = {f"peak with {ops:,} operations, MiB": median(peaks) / MIB
                for ops, peaks in ((_FEW, few), (_MANY, many))}  # fmt: skip
    return [Figure("controller_bytes_per_op", round(value, 1), "bytes of the controller's peak / operation", 100,
                   absolute=absolute)]  # fmt: skip


def _peak_bytes(ops: int) -> float:
    per_sensor = str(ops // _SENSORS)
    with scratch(test_many=_TEST.replace("OPS", per_sensor), conftest=_CONFTEST.replace("OPS", per_sensor)) as folder:
        (folder / "pytest.ini").write_text("[pytest]\n")
        command = python("-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-ocloudbench_max_lateness=600")
        run_tree(command, folder, environment(PYTHONPATH=str(ROOT)), sampled=False).require()
        return float(json.loads(Path(folder, "peak.json").read_text()))
