"""``*.bench.toml`` as tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_cloudbench.arrival import Threads
from pytest_cloudbench.collect.module import ConfigModule
from pytest_cloudbench.configs.bench import SensorLoad, parse_bench

__all__ = ["BenchFileModule"]


class BenchFileModule(ConfigModule):
    """Thin slice."""

    def tests(self, path: Path) -> Mapping[str, Callable[..., Any]]:
        found = parse_bench(path.read_text("utf-8"), path.name)
        made = {}
        for experiment in found.experiments:
            case = experiment.cases[0]

            def test(experiment: Any, payloads: Any, case: Any = case) -> None:
                load = case.load
                if isinstance(load, SensorLoad):
                    args = {"arrival": load.arrival, "sensors": load.sensors, "ops_per_sensor": load.ops_per_sensor}
                else:
                    args = {"arrival": Threads(load.threads, load.pause_s), "files": load.files}
                experiment.run(case.payload.make(payloads.seed), **args).check()

            made[f"test_{experiment.name}"] = test
        return made
