"""How many threads does an application need to upload or download fifty files? (thesis, section 4.2.2)

Figures 4.1 to 4.4 plot the average time of an operation and the total time of all over the number of threads. The
answer is the knee: the smallest number of threads whose total time is within 5 % of the best.
"""

from __future__ import annotations

from collections.abc import Collection
from statistics import fmean, median
from typing import TYPE_CHECKING

import pytest

from pytest_cloudbench import KIB, MIB, Threads, Verb, find_knee, require_success

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment, Payloads, Result

FILES = 50
SIZES = {"quick": {"100KB": 100 * KIB}, "paper": {"100KB": 100 * KIB, "1MB": MIB}}
THREADS = {"quick": (1, 5, 10, 25, FILES), "paper": (1, *range(5, FILES + 1, 5))}
"""The last level has a thread for each file. More would change nothing, so a knee there is not cut off by the range."""
REPEATS = {"quick": 2, "paper": 3}
SINGLE_FAILURES = 0.05
"""The largest share of missed files that says nothing about a number of threads: it may be the knee all the same."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one experiment for each size, which goes through all numbers of threads."""
    sizes = SIZES[metafunc.config.option.cloudbench_grid]
    metafunc.parametrize("size_bytes", sizes.values(), ids=sizes)


def test_upload(experiment: Experiment, payloads: Payloads, size_bytes: int, grid: str) -> None:
    """Figures 4.1 (100 KB) and 4.2 (1 MB): uploads."""
    _measure_knee(experiment, payloads, size_bytes, grid, Verb.PUT)


def test_download(experiment: Experiment, payloads: Payloads, size_bytes: int, grid: str) -> None:
    """Figures 4.3 (100 KB) and 4.4 (1 MB): downloads."""
    _measure_knee(experiment, payloads, size_bytes, grid, Verb.GET)


def _measure_knee(experiment: Experiment, payloads: Payloads, size_bytes: int, grid: str, verb: Verb) -> None:
    payload, on = payloads.random(size_bytes), None
    if verb is not Verb.PUT:  # the same files for all numbers of threads
        on = experiment.run(payload, arrival=Threads(8), files=FILES, keep=True, store=False).files
    totals_s: dict[int, list[float]] = {}
    refused: set[int] = set()
    runs: list[Result] = []
    notes: list[str] = []
    for threads in THREADS[grid]:
        arrival = Threads(threads)
        results = [
            experiment.run(payload, arrival=arrival, files=FILES, operation=verb, on=on, store=False, detail=True)
            for _ in range(REPEATS[grid])
        ]
        runs += results
        missed = sum(FILES - result["ok"] for result in results)
        if missed:  # refused files take no time, so this total would be too short
            notes.append(
                f"{threads} threads are left out: {missed} of {FILES * len(results)} files did not get through"
            )
            if missed > SINGLE_FAILURES * FILES * len(results):
                refused.add(threads)
        else:
            totals_s[threads] = [result["elapsed"] for result in results]
        _conclude_level(experiment, threads, results, totals_s.get(threads))
    knee = find_knee(totals_s, refused=refused, most=FILES)
    unmeasured = find_unmeasured_level(knee.level, totals_s, set(THREADS[grid]) - refused)
    if unmeasured is not None:
        notes.append(f"the knee may be at {unmeasured} threads, where single files failed")
    knee_interval = knee.interval or (None, None)
    conclusion = experiment.conclude(
        {"knee_threads": knee.level if unmeasured is None else None, "best_total": knee.best_time_s},
        [total_s for totals in totals_s.values() for total_s in totals] or [0.0],
        stats_of=f"total time of {FILES} files, for each number of threads" if totals_s else "nothing: none is left",
        of=runs,
        label="knee",
        columns=("knee_threads", "knee_from", "knee_to", "knee_s", "best_threads", "best_total"),
        extra={
            "totals_s": {str(threads): totals for threads, totals in totals_s.items()},
            "knee_s": knee.time_s, "knee_from": knee_interval[0], "knee_to": knee_interval[1],
            "best_threads": knee.best_level, "size_bytes": size_bytes, "operation": verb.value,
        },
        notes=[*notes, *filter(None, [knee.edge])],
    )  # fmt: skip
    require_success(*runs)
    conclusion.check()


def find_unmeasured_level(knee: int | None, measured: Collection[int], working: Collection[int]) -> int | None:
    """Return a level below the knee that was not measured, although it works, and above which nothing else was."""
    below = [threads for threads in working if knee is not None and threads < knee]
    nearest = max(below, default=None)
    return None if nearest in measured else nearest


def _conclude_level(
    experiment: Experiment, threads: int, results: list[Result], totals_s: list[float] | None
) -> None:  # fmt: skip
    """Store one point of a figure: the total time, None if the level is left out, and that of an operation."""
    ok_s = [taken_s for result in results for taken_s in result.ok_s]
    experiment.conclude(
        {"elapsed": median(totals_s) if totals_s else None},
        totals_s or ok_s or [0.0],
        stats_of=f"total time of {FILES} files" if totals_s else "time of one file: some did not get through",
        of=results,
        label=f"{threads} threads",
        columns=("threads", "elapsed", "mean_s", "ops", "throttled", "failed", "corrupt"),
        extra={
            "threads": threads, "mean_s": fmean(ok_s) if ok_s else None, "operation": results[0]["operation"],
            **{key: sum(result[key] for result in results) for key in ("throttled", "failed", "corrupt")},
        },
    )  # fmt: skip
