"""Does the time of a transfer change with the number of simultaneous transfers? (Cloud-RAID, III.D, Figures 5 and 6)

Each level starts that number of transfers of one size at the same time, one per thread. A provider is constant,
degrading from the first additional transfer, or degrading above a level.
"""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING

import pytest

from pytest_cloudbench import KIB, MIB, Threads, Verb, judge_constancy, require_success

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment, Payloads, Result

SIZES = {"quick": {"100KB": 100 * KIB}, "paper": {"1MB": MIB, "10MB": 10 * MIB}}
LEVELS = {"quick": (1, 2, 5, 10, 20), "paper": (1, 5, *range(10, 101, 10))}
TRANSFERS = 24
"""The least number of transfers per level, so that level one is measured as precisely as the others."""

REPEATS = 3


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one experiment for each size, which goes through all levels."""
    sizes = SIZES[metafunc.config.option.cloudbench_grid]
    metafunc.parametrize("size_bytes", sizes.values(), ids=sizes)


def test_upload(experiment: Experiment, payloads: Payloads, size_bytes: int, grid: str) -> None:
    """Figures 5 and 6: simultaneous uploads."""
    _classify_provider(experiment, payloads, size_bytes, grid, Verb.PUT)


def test_download(experiment: Experiment, payloads: Payloads, size_bytes: int, grid: str) -> None:
    """The same for simultaneous downloads, which the paper measured but did not plot."""
    _classify_provider(experiment, payloads, size_bytes, grid, Verb.GET)


def _classify_provider(experiment: Experiment, payloads: Payloads, size_bytes: int, grid: str, verb: Verb) -> None:
    payload, on = payloads.random(size_bytes), None
    if verb is not Verb.PUT:  # the same files for all levels
        on = experiment.run(
            payload, arrival=Threads(8), files=max(TRANSFERS, *LEVELS[grid]), keep=True, store=False
        ).files
    durations_s: dict[int, list[float]] = {}
    runs: list[Result] = []
    notes: list[str] = []
    for level in LEVELS[grid]:
        files, repeats = (TRANSFERS, 1) if level == 1 else (level, max(REPEATS, -(-TRANSFERS // level)))
        results = [
            experiment.run(
                payload, arrival=Threads(level), files=files, operation=verb, on=on, store=False, detail=True
            )
            for _ in range(repeats)
        ]
        runs += results
        missed = sum(result["ops"] - result["ok"] for result in results)
        if missed:  # refused transfers left more bandwidth to the others
            notes.append(f"level {level} is left out: {missed} transfers failed")
        else:
            durations_s[level] = [taken_s for result in results for taken_s in result.ok_s]
        _conclude_level(experiment, level, results, is_complete=not missed)
    constancy = judge_constancy(durations_s)
    tests = {name: getattr(constancy, name) for name in ("difference", "trend", "bend")}
    conclusion = experiment.conclude(
        {"slowdown": constancy.slowdown},
        [taken_s for level_s in durations_s.values() for taken_s in level_s] or [0.0],
        stats_of="time of one transfer, all levels" if durations_s else "nothing: all levels are left out",
        of=runs,
        label="category",
        columns=("category", "above_level", "slowdown", "slowdown_error", "trend_p"),
        extra={
            "category": constancy.category, "reason": constancy.reason, "above_level": constancy.above_level,
            "above_interval": list(constancy.above_interval or ()), "slowdown_error": constancy.slowdown_error,
            "bound": constancy.bound, "trend_p": constancy.trend and constancy.trend.p_value,
            "tests": {name: asdict(test) for name, test in tests.items() if test},
            "centres_s": {str(level): centre_s for level, centre_s in constancy.centres_s.items()},
            "size_bytes": size_bytes, "operation": verb.value,
        },
        notes=[*notes, *([f"category unknown: {constancy.reason}"] if constancy.reason else [])],
    )  # fmt: skip
    require_success(*runs)
    conclusion.check()


def _conclude_level(experiment: Experiment, level: int, results: list[Result], *, is_complete: bool) -> None:
    """Store one bar of Figure 5: the times of single transfers at one level. They are None if it is left out."""
    ok_s = sorted(taken_s for result in results for taken_s in result.ok_s)
    elapsed_s = [result["elapsed"] for result in results if result["elapsed"] is not None]
    experiment.conclude(
        {"elapsed": median(elapsed_s) if elapsed_s and is_complete else None},
        ok_s or elapsed_s or [0.0],
        stats_of="time of one transfer" if ok_s else "elapsed time: no operation succeeded",
        of=results,
        label=f"level {level}",
        columns=("level", "median_s", "slowest_s", "elapsed", "ops", "throttled", "failed"),
        extra={
            "level": level, "median_s": median(ok_s) if ok_s and is_complete else None,
            "slowest_s": ok_s[-1] if ok_s and is_complete else None, "operation": results[0]["operation"],
            **{key: sum(result[key] for result in results) for key in ("throttled", "failed", "corrupt")},
        },
    )  # fmt: skip
