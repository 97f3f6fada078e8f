"""Measure the CPU and memory of fifty agents' whole process tree before their first operation.

The reference is bare pytest: one empty test on ``-n 50`` with no plugin but pytest-xdist. Commands take turns, and
ratios compare medians.

``fleet50_start`` is a whole session with one empty experiment, ``iot50_ready`` is ``pytest suites/iot -n 50`` until its
first operation. ``providers50_ready_ratio`` is the same for each provider that can run here, and its value the largest:
fifty agents need each SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import (
    MIB,
    ROOT,
    Figure,
    Growth,
    Usage,
    at,
    environment,
    measure_growth,
    median,
    python,
    run_tree,
    scratch,
)
from pytest_cloudbench import providers
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.results.oplog import read_log, read_parquet

__all__ = ["measure"]

_AGENTS = 50
_EMPTY_TEST = "def test_empty(): pass\n"
_EMPTY_EXPERIMENT = "def test_empty_experiment(experiment): pass\n"
_INTERRUPTED = 2
_PROVIDERS = (
    "emulated:dropbox", "emulated:dropbox?driver=dropbox+fast", "emulated:gdrive", "emulated:onedrive", "emulated:box",
    "emulated:mega", "local:s3", "local:s3?driver=s3+fast", "local:azure", "local:gcs", "local:swift", "local:webdav",
    "local:sftp", "local:s3?driver=opendal", "local:s3?driver=rclone", "local:tahoe",
)  # fmt: skip

_Command = Callable[[int], Usage]
"""Runs with so many agents."""


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``fleet50_start``, ``iot50_ready``, each with its memory, and ``providers50_ready_ratio``."""
    with scratch(test_bare=_EMPTY_TEST, test_empty=_EMPTY_EXPERIMENT) as folder:
        (folder / "pytest.ini").write_text("[pytest]\n")
        commands: dict[str, _Command] = {
            "bare": lambda agents: _run_bare(folder, agents),
            "fleet50_start": lambda agents: _run_empty(folder, agents),
            "iot50_ready": lambda agents: _run_until_first_operation(folder, agents),
        }
        chosen = {name: command for name, command in commands.items() if f"{name}_ratio" in (*names, "bare_ratio")}
        figures = []
        if len(chosen) > 1:
            used = _take_turns(chosen, runs)
            for name in chosen.keys() - {"bare"}:
                growth = measure_growth("agents", _AGENTS // 10, _cpu_s(commands[name]))
                figures += _ratios(name, used[name], used["bare"], growth)
        if "providers50_ready_ratio" in names:
            figures.append(_measure_providers(folder, commands["bare"], runs))
    return figures


def _cpu_s(command: _Command) -> Callable[[int], float]:
    return lambda agents: command(agents).cpu_s


def _take_turns(commands: Mapping[str, _Command], runs: int) -> dict[str, list[Usage]]:
    """Run commands in turn, after one run of each with one agent, which leaves byte code behind."""
    used: dict[str, list[Usage]] = {name: [] for name in commands}
    for agents in [1] + [_AGENTS] * runs:
        for name, command in commands.items():
            usage = command(agents)
            if agents == _AGENTS:
                used[name].append(usage)
    return used


def _run_bare(folder: Path, agents: int) -> Usage:
    command = python("-m", "pytest", "-n", str(agents), "test_bare.py", "-p", "xdist")
    return run_tree(command, folder, environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")).require()


def _run_empty(folder: Path, agents: int) -> Usage:
    results = ["-o", f"cache_dir={folder}/cache", "--cloudbench-results", str(folder / "results")]
    selected = ["suites/iot", str(folder / "test_empty.py"), "-k", "test_empty_"]
    return run_tree(python("-m", "pytest", "-n", str(agents), *selected, *results), ROOT, environment()).require()


def _run_until_first_operation(folder: Path, agents: int, *more: str) -> Usage:
    """Run ``pytest suites/iot`` until its first operation starts. Ctrl-C cuts off the rest."""
    results = folder / f"ready-{len(list(folder.glob('ready-*')))}"

    def is_started() -> bool:
        return any(len(read_log(path)) for path in results.rglob("*.oplog"))

    options = ["-o", f"cache_dir={folder}/cache", "--cloudbench-results", str(results), *more]
    usage = run_tree(python("-m", "pytest", "suites/iot", "-n", str(agents), *options), ROOT, enough=is_started)
    usage.require(_INTERRUPTED)
    first_ns = min(min(read_parquet(path).start_ns) for path in results.rglob("*.parquet"))
    ready = at(usage.samples, first_ns)
    wall_s = (first_ns - usage.samples[0].at_ns) / 1e9
    before = [sample for sample in usage.samples if sample.at_ns <= first_ns]
    # Agents grow until the moment of the first operation, and the size is read less often: the next one counts.
    next_size = next((sample for sample in usage.samples[len(before) :] if sample.pss_bytes), ready)
    return Usage(usage.status, ready.cpu_s, wall_s, "", [*before, ready, next_size])


def _ratios(name: str, ours: Sequence[Usage], bare: Sequence[Usage], growth: Growth) -> list[Figure]:
    sides = {"": ours, " of bare pytest": bare}
    absolute = {f"CPU-seconds{side}": median([usage.cpu_s for usage in used]) for side, used in sides.items()}
    absolute |= {f"seconds{side}": median([usage.wall_s for usage in used]) for side, used in sides.items()}
    sizes = {f"MiB, proportional{side}": _pss_mib(used) for side, used in sides.items()}
    cpu_ratio = absolute["CPU-seconds"] / absolute["CPU-seconds of bare pytest"]
    pss_ratio = sizes["MiB, proportional"] / sizes["MiB, proportional of bare pytest"]
    unit = "of bare pytest -n 50, no other plugins"
    return [
        Figure(f"{name}_ratio", round(cpu_ratio, 3), f"CPU / CPU {unit}", 0.3, absolute=absolute, growth=growth),
        Figure(f"{name}_pss_ratio", round(pss_ratio, 3), f"PSS / PSS {unit}", 0.85, absolute=sizes),
    ]


def _pss_mib(used: Sequence[Usage]) -> float:
    return round(median([usage.pss_bytes for usage in used]) / MIB)


def _measure_providers(folder: Path, bare: _Command, runs: int) -> Figure:
    absent = {spec: why for spec in _PROVIDERS if (why := _describe_missing(spec))}

    def run_provider(spec: str) -> _Command:
        return lambda agents: _run_until_first_operation(folder, agents, "--provider", spec)

    commands = {"bare": bare} | {spec: run_provider(spec) for spec in _PROVIDERS if spec not in absent}
    cpu_s = {name: [usage.cpu_s for usage in used] for name, used in _take_turns(commands, runs).items()}
    bare_s = median(cpu_s.pop("bare"))
    ratios = {spec: round(median(costs) / bare_s, 3) for spec, costs in cpu_s.items()}
    unit = "CPU / CPU of bare pytest -n 50, no other plugins"
    return Figure("providers50_ready_ratio", max(ratios.values()), unit, 2.0,
                  details={"ratios": ratios, "absent": absent})  # fmt: skip


def _describe_missing(spec: str) -> str:
    try:
        providers.resolve(spec)
    except UsageError as error:
        return str(error)
    return ""
