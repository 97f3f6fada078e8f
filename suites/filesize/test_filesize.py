"""Is there a file size that a provider handles badly? (thesis, section 4.2.3)

Figures 4.5 and 4.6 plot the time of an upload and of a download over the size of the file, with one thread. A provider
that handles every size well takes a latency plus size over bandwidth; sizes off that line are flagged.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from pytest_cloudbench import KIB, MIB, Threads, Verb, fit_line, require_success

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment, Payloads

SIZES = {"1KB": KIB, "10KB": 10 * KIB, "100KB": 100 * KIB} | {f"{size}MB": size * MIB for size in (1, 5, 10, 15, 20)}
LARGEST_BYTES = {"quick": 5 * MIB, "paper": 20 * MIB}
FILES = 10


def test_upload(experiment: Experiment, payloads: Payloads, grid: str) -> None:
    """Figure 4.5: uploads of 1 KB to 20 MB."""
    _fit_times(experiment, payloads, grid, Verb.PUT)


def test_download(experiment: Experiment, payloads: Payloads, grid: str) -> None:
    """Figure 4.6: downloads of 1 KB to 20 MB."""
    _fit_times(experiment, payloads, grid, Verb.GET)


def _fit_times(experiment: Experiment, payloads: Payloads, grid: str, verb: Verb) -> None:
    sizes = {name: size for name, size in SIZES.items() if size <= LARGEST_BYTES[grid]}
    results = {
        name: experiment.run(
            payloads.random(size), arrival=Threads(1), files=FILES, operation=verb, store=False, detail=True
        )
        for name, size in sizes.items()
    }
    line = fit_line({size: results[name].ok_s for name, size in sizes.items() if results[name].ok_s})
    points = {name: line.sizes.get(size) for name, size in sizes.items()}
    for name, result in results.items():
        point, ok_s = points[name], result.ok_s
        experiment.conclude(
            {"elapsed": result["elapsed"] if result["ok"] == FILES else None},  # refused files take no time
            ok_s or [result["elapsed"] or 0.0],
            stats_of="time of one file" if ok_s else "elapsed time: no operation succeeded",
            of=[result],
            label=name,
            columns=("size", "median_s", "fitted_s", "deviation", "off", "ops", "throttled", "failed", "corrupt"),
            extra={
                "size": name, "median_s": median(ok_s) if ok_s else None, "fitted_s": point and point.fitted_s,
                "deviation": point and point.deviation, "limit": point and point.limit, "off": point and point.off,
                **{key: result[key] for key in ("operation", "throttled", "failed", "corrupt")},
            },
        )  # fmt: skip
    off = [name for name, point in points.items() if point and point.off]
    times_s = [taken_s for result in results.values() for taken_s in result.ok_s]
    unsure = [name for name, point in points.items() if point is None or point.off is None]
    conclusion = experiment.conclude(
        {
            "latency": line.latency_s, "bandwidth": line.bytes_per_s,
            "sizes_off": len(off) if line.is_known and not unsure else None,
        },
        times_s or [0.0],
        stats_of="time of one file, all sizes" if times_s else "nothing: no operation succeeded",
        of=list(results.values()),
        label="line",
        columns=("latency", "bandwidth", "noise", "sizes_off"),
        extra={"noise": line.noise, "sizes": list(sizes.values()), "off": off, "operation": verb.value},
        notes=[f"{name}: whether it is off the line is not known" for name in unsure],
    )  # fmt: skip
    require_success(*results.values())
    conclusion.check()
