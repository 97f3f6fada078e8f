"""In how many parallel segments is an object uploaded fastest, and what does it gain? (Cloud-RAID, III.D, Table II)

P(F) is the time of the whole object in one transfer, P(F_x) the time of all its x segments in parallel, and P(s(F_x))
the time of one such segment alone; the improvement factor is P(F) / P(F_x). The best level is searched for, not only
looked up in a grid: the search continues between the grid's levels as long as times can be told apart.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import pytest

from pytest_cloudbench import MIB, BestLevel, LevelSearch, Threads, require_success

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment, Payloads, Result

SIZES_MB = {"quick": (10,), "paper": (1, 10, 100)}
START = {"quick": (1, 5, 10, 20, 50), "paper": (1, *range(5, 101, 5))}
"""The levels at which the search begins. Table II has 5 to 100 segments."""

MOST_PROBES = {"quick": 24, "paper": 120}
REPEATS = 3


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one experiment for each size of the object."""
    metafunc.parametrize(
        "size_mb", SIZES_MB[metafunc.config.option.cloudbench_grid], ids=lambda size_mb: f"{size_mb}MB"
    )


def test_table_2(experiment: Experiment, payloads: Payloads, size_mb: int, grid: str) -> None:
    """Table II: best segmentation level, P(F), P(F_x), improvement factor and single chunk time."""
    search = LevelSearch(1, 100, REPEATS, MOST_PROBES[grid], start=START[grid])
    refused: set[int] = set()
    results: list[Result] = []

    def upload(segments: int, count: int) -> Result:
        """Upload the first ``count`` of ``segments`` segments, in parallel."""
        part = payloads.segments(size_mb * MIB, segments)
        results.append(experiment.run(part, arrival=Threads(count), files=count, store=False, detail=True))
        return results[-1]

    def upload_all(segments: int) -> float | None:
        """Upload all segments in parallel. Return the time, None if the object lacks one and does not count."""
        result = upload(segments, segments)
        if result["ok"] == segments and not result["loss_rate"]:
            elapsed_s: float | None = result["elapsed"]
            return elapsed_s
        refused.add(segments)
        return None

    while (level := search.next()) is not None:
        search.tell(level, upload_all(level))
    best = search.result()
    times_s = {
        name: list(best.measured.get(level, ())) for name, level in (("native", 1), ("segmented", best.level or 0))
    }
    if times_s["native"] and best.level != 1:  # the search measures what is far from the best only once
        again_s = [upload_all(1) for _ in range(REPEATS - len(times_s["native"]))]
        times_s["native"] += [taken_s for taken_s in again_s if taken_s is not None]
    if best.level:
        times_s["single_chunk"] = [taken_s for _ in range(REPEATS) for taken_s in upload(best.level, 1).ok_s]
    conclusion = _conclude(experiment, size_mb, best, times_s, refused)
    require_success(*results)
    conclusion.check()


def _conclude(
    experiment: Experiment, size_mb: int, best: BestLevel, times_s: dict[str, list[float]], refused: set[int]
) -> Result:
    time_s = {name: median(values) if values else None for name, values in times_s.items()}
    native_s, segmented_s, level = time_s["native"], time_s["segmented"], best.level
    notes = [f"{segments} segments: some uploads failed" for segments in sorted(refused)]
    if not best.is_complete:
        notes.append(f"the search used up its {best.probes} probes; a level nearby may be better")
    if best.edge:
        notes.append(best.edge)
    return experiment.conclude(
        {
            "best_segments": None if best.edge else level, **time_s,
            "improvement_factor": native_s / segmented_s if native_s and segmented_s else None,
        },
        times_s["segmented"] or times_s["native"] or [0.0],
        stats_of=f"time of the object in {level} segments" if level else "nothing: no upload was complete",
        columns=(
            "best_segments", "contenders", "native", "segmented", "improvement_factor", "segment_mb", "single_chunk",
            "probes", "noise",
        ),
        extra={
            "object_bytes": size_mb * MIB, "segment_mb": size_mb / level if level else None,
            "contenders": f"{best.contenders[0]}-{best.contenders[-1]}" if best.contenders else None,
            "segments_s": {str(segments): list(values) for segments, values in best.measured.items()},
            "refused": sorted(refused), "probes": best.probes, "noise": best.noise, "is_complete": best.is_complete,
        },
        notes=notes,
        spread=times_s,
    )  # fmt: skip
