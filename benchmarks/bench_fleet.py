"""What fifty agents cost before they do anything: CPU and memory of the whole process tree, as ratios.

All commands take turns in one run, and ratios compare medians. Two baselines, both one empty test on
``-n 50``: ``bare`` is plain pytest and xdist with all other plugins of the environment (``-p no:cloudbench``),
``strict`` is without any plugin but xdist.

The empty experiment of ``fleet50_start_ratio`` asks for the ``experiment`` fixture, which the suites' tests do;
``marked`` is what it costs with the marker ``fleet`` alone, which needs no provider.

``providers50_ready_ratio`` is ``iot50_ready_ratio`` for each provider that can run here, and its value the largest:
fifty agents import each SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import MIB, ROOT, Figure, Usage, at, environment, median, python, run_tree, scratch
from pytest_cloudbench import providers
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.results.oplog import read_log, read_parquet

__all__ = ["measure"]

_AGENTS = 50
_EMPTY_TEST = "def test_empty(): pass\n"
_EMPTY_EXPERIMENT = "def test_empty_experiment(experiment): pass\n"
_MARKED_TEST = 'import pytest\n@pytest.mark.usefixtures("fleet")\ndef test_marked_only(): pass\n'
_INTERRUPTED = 2
_PROVIDERS = (
    "emulated:dropbox", "emulated:dropbox?driver=dropbox+fast", "emulated:gdrive", "emulated:onedrive", "emulated:box",
    "emulated:mega", "local:s3", "local:s3?driver=s3+fast", "local:azure", "local:gcs", "local:swift", "local:webdav",
    "local:sftp", "local:s3?driver=opendal", "local:s3?driver=rclone", "local:tahoe",
)  # fmt: skip


@dataclass(slots=True)
class _Series:
    """What one command used, run by run."""

    cpu_s: list[float] = field(default_factory=list)
    rss_bytes: list[float] = field(default_factory=list)
    pss_bytes: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)

    def add(self, usage: Usage) -> None:
        self.cpu_s.append(usage.cpu_s)
        self.rss_bytes.append(usage.rss_bytes)
        self.pss_bytes.append(usage.pss_bytes)
        self.wall_s.append(usage.wall_s)

    def plain(self) -> dict[str, list[float]]:
        return {
            "cpu_s": [round(value, 2) for value in self.cpu_s],
            "rss_mib": [round(value / MIB) for value in self.rss_bytes],
            "pss_mib": [round(value / MIB) for value in self.pss_bytes],
            "wall_s": [round(value, 1) for value in self.wall_s],
        }


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``fleet50_start_ratio``, ``iot50_ready_ratio`` and the memory of each; ``providers50_ready_ratio``."""
    figures = _providers(runs) if "providers50_ready_ratio" in names else []
    if figures and len(names) == 1:
        return figures
    with scratch(test_bare=_EMPTY_TEST, test_empty=_EMPTY_EXPERIMENT, test_marked=_MARKED_TEST) as folder:
        (folder / "pytest.ini").write_text("[pytest]\n")
        commands = _commands(folder, with_fleet="fleet50_start_ratio" in names, with_iot="iot50_ready_ratio" in names)
        series = {name: _Series() for name in commands}
        for workers in [1] + [_AGENTS] * runs:  # the first run is to leave byte code of rewritten tests behind
            for name, command in commands.items():
                usage = command(workers)
                if workers == _AGENTS:
                    series[name].add(usage)
    if "empty" in series:
        figures += _ratios("fleet50_start", series, "empty", cpu_bound=1.25, rss_bound=1.3)
    if "ready" in series:
        figures += _ratios("iot50_ready", series, "ready", cpu_bound=2.0, rss_bound=2.0)
    return figures


def _providers(runs: int) -> list[Figure]:
    """The same until the first operation, with each provider in turn."""
    absent: dict[str, str] = {}
    for spec in _PROVIDERS:
        try:
            providers.resolve(spec)
        except UsageError as error:
            absent[spec] = str(error)
    chosen = [spec for spec in _PROVIDERS if spec not in absent]
    cpu_s: dict[str, list[float]] = {name: [] for name in ("bare", *chosen)}
    with scratch(test_bare=_EMPTY_TEST) as folder:
        (folder / "pytest.ini").write_text("[pytest]\n")
        cache = ["-o", f"cache_dir={folder}/cache"]
        bare = _commands(folder, with_fleet=False, with_iot=False)["bare"]
        for workers in [1] + [_AGENTS] * runs:
            used = {"bare": bare(workers).cpu_s}
            for number, spec in enumerate(chosen):
                results = folder / f"ready-{number}-{workers}"
                used[spec] = _until_first_operation(workers, cache, results, "--provider", spec).cpu_s
            if workers == _AGENTS:
                for name, value in used.items():
                    cpu_s[name].append(value)
    ratios = {spec: round(median(cpu_s[spec]) / median(cpu_s["bare"]), 3) for spec in chosen}
    details = {
        "ratios": ratios,
        "absent": absent,
        "cpu_s": {name: [round(each, 2) for each in runs_] for name, runs_ in cpu_s.items()},
    }
    return [
        Figure("providers50_ready_ratio", max(ratios.values()), "CPU / CPU of bare pytest -n 50", 2.0, details=details)
    ]


def _commands(folder: Path, with_fleet: bool, with_iot: bool) -> dict[str, Callable[[int], Usage]]:
    cache = ["-o", f"cache_dir={folder}/cache"]
    results = ["--cloudbench-results", str(folder / "results")]

    def pytest(workers: int, cwd: Path, *args: str, **env: str) -> Usage:
        command = python("-m", "pytest", "-n", str(workers), *cache, *args)
        return run_tree(command, cwd, environment(**env)).require()

    def strict(workers: int) -> Usage:
        return pytest(workers, folder, "test_bare.py", "-p", "xdist", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")

    commands = {}
    if with_fleet:

        def one_of_suite(workers: int, name: str) -> Usage:
            return pytest(workers, ROOT, "suites/iot", str(folder / f"test_{name}.py"), "-k", f"test_{name}_", *results)

        commands["empty"] = lambda workers: one_of_suite(workers, "empty")
        commands["marked"] = lambda workers: one_of_suite(workers, "marked")
    commands["bare"] = lambda workers: pytest(workers, folder, "test_bare.py", "-p", "no:cloudbench")
    if with_iot:
        commands["ready"] = lambda workers: _until_first_operation(workers, cache, folder / f"iot-{workers}")
    return commands | {"strict": strict}


def _until_first_operation(workers: int, cache: list[str], results: Path, *more: str) -> Usage:
    """``pytest suites/iot`` until its first operation starts. Ctrl-C cuts off the rest."""
    number = len(list(results.parent.glob(f"{results.name}*")))
    results = results.with_name(f"{results.name}-{number}")

    def started() -> bool:
        return any(len(read_log(path)) for path in results.rglob("*.oplog"))

    options = ["--cloudbench-results", str(results), *more]
    command = python("-m", "pytest", "suites/iot", "-n", str(workers), *cache, *options)
    usage = run_tree(command, ROOT, enough=started).require(_INTERRUPTED)
    first_ns = min(min(read_parquet(path).start_ns) for path in results.rglob("*.parquet"))
    ready = at(usage.samples, first_ns)
    wall_s = (first_ns - usage.samples[0].at_ns) / 1e9
    before = [sample for sample in usage.samples if sample.at_ns <= first_ns]
    return Usage(usage.status, ready.cpu_s, wall_s, "", [*before[-1:], ready], usage.pss_bytes)


def _ratios(name: str, series: dict[str, _Series], measured: str, cpu_bound: float, rss_bound: float) -> list[Figure]:
    ours, bare, strict = series[measured], series["bare"], series["strict"]
    others = [key for key in series if key not in {"empty", "ready"}]
    runs = {key: series[key].plain() for key in (measured, *others)}

    def ratio(column: str, over: _Series) -> float:
        return round(median(getattr(ours, column)) / median(getattr(over, column)), 3)

    more_cpu_s = (median(ours.cpu_s) - median(bare.cpu_s)) / _AGENTS
    more_rss = (median(ours.rss_bytes) - median(bare.rss_bytes)) / _AGENTS / MIB
    details = {"over_strict": ratio("cpu_s", strict), "more_ms_per_agent": round(more_cpu_s * 1e3, 1), "runs": runs}
    if measured == "empty":
        details["without_provider"] = {
            column: round(median(getattr(series["marked"], column)) / median(getattr(bare, column)), 3)
            for column in ("cpu_s", "rss_bytes")
        }
    memory = {
        "over_strict": ratio("rss_bytes", strict),
        "pss_ratio": ratio("pss_bytes", bare),
        "more_mib_per_agent": round(more_rss, 2),
    }
    unit = "of bare pytest -n 50"
    return [
        Figure(f"{name}_ratio", ratio("cpu_s", bare), f"CPU / CPU {unit}", cpu_bound, details=details),
        Figure(f"{name}_rss_ratio", ratio("rss_bytes", bare), f"RSS / peak RSS {unit}", rss_bound, details=memory),
    ]
