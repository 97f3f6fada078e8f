"""How often do writes complete, do files come back unchanged, and how quickly is a hash call answered?

A long series (Cloud-RAID, III.B to III.D): each round uploads files of the sizes of Table I, reads a random 10 % back,
and requests the metadata of a random half, to compare the digest. Table III has completed over tried writes, and wrong
hashes; Table I has the time of hash calls by size. Each round is recorded by itself, so a series can be stopped at any
time and resumed (``--resume``); ``--duration`` says how long it lasts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import KIB, RandomContent, Series, SeriesPlan, Threads, Verb, content_digest, format_counts

from .rounds import (
    NO_OPS,
    SizeClasses,
    count_compared,
    count_outcomes,
    find_completed,
    fold_series,
    select_sizes,
    summarize_hash_calls,
)

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment, Payloads, Result

READ_BACK = 0.1
"""III.B: "the test client reads 10% of randomly selected data back from the cloud"."""

HASH_CALLS = 0.5
"""The share of files with a hash call. The paper only says "a series of randomized" requests."""

THREADS = 8

SIZES_KB = {"quick": (100, 1024, 4096), "paper": (100, 1024, 10_240, 102_400)}
"""The sizes of Table I. ``quick`` leaves out those for which an emulator on two cores is the bottleneck."""

FILES = {"quick": 18, "paper": 88}
"""Files in each round. 480 rounds of 88 are the 42,000 writes that Table III has for four of its providers."""

PLANS = {"quick": SeriesPlan(rounds=3), "paper": SeriesPlan(rounds=480, duration_s=20 * 86_400, pause_s=3600)}
"""Twenty days (III.A) with a round in each hour, without which a daily pattern could not be seen."""

TABLE_III = "Cloud-RAID 2012, Table III: 99.655 % to 100 % of 42,000 or 72,500 writes, 0 to 40 wrong hashes"
TABLE_I = "Cloud-RAID 2012, Table I: the range of seven providers"
TABLE_I_MS = {100: (28, 1326), 1024: (36, 1069), 10_240: (26, 1280), 102_400: (26, 1390)}
"""The fastest and the slowest call of Table I in ms, by size in kB."""


@dataclass(frozen=True, slots=True)
class _Options:
    """The settings from the command line and the grid."""

    files: int
    sizes_kb: tuple[int, ...]
    plan: SeriesPlan
    keeps_plan: bool
    resume: str | None
    keep: bool


@pytest.fixture
def options(request: pytest.FixtureRequest) -> _Options:
    """The settings of the grid, replaced by those that the command line gives."""
    option, grid = request.config.option, request.config.option.cloudbench_grid
    plan = PLANS[grid]
    if option.cloudbench_duration is not None:
        plan = replace(plan, duration_s=option.cloudbench_duration)
    if option.cloudbench_pause is not None:
        plan = replace(plan, pause_s=option.cloudbench_pause)
    keeps_plan = option.cloudbench_duration is None and option.cloudbench_pause is None
    return _Options(
        FILES[grid], SIZES_KB[grid], plan, keeps_plan, option.cloudbench_resume, option.cloudbench_keep_files
    )


def test_series(experiment: Experiment, payloads: Payloads, options: _Options) -> None:
    """Tables I and III, for one provider."""
    setup = {"files": options.files, "sizes_kb": list(options.sizes_kb), "read_back": READ_BACK,
             "hash_calls": HASH_CALLS, "threads": THREADS}  # fmt: skip
    series = Series(experiment, setup, options.plan, options.resume, options.keeps_plan)
    for number in series.rounds():
        payload = SizeClasses(f"{payloads.seed}/{number}", options.sizes_kb)
        series.add({"round": number, **_run_round(experiment, series, payload, options)})
    summary = series.sum(fold_series)
    results = [_conclude_availability(experiment, summary), *_conclude_sizes(experiment, summary)]
    series.end()
    for result in results:
        result.check()


def _run_round(experiment: Experiment, series: Series, payload: SizeClasses, options: _Options) -> dict[str, Any]:
    """Upload files, read a tenth back and request hashes. Return the line for the state file."""
    run = partial(experiment.run, arrival=Threads(THREADS), store=False, detail=True, verify=False)
    began_s = series.now_s()
    upload = run(payload, files=options.files, keep=True, mkdir=False)
    assert upload.files is not None
    uploaded = replace(upload.files, members=find_completed(upload.ops))
    download = hash_run = None
    calls_began_s = 0.0
    if uploaded.members:
        download = run(on=uploaded, sample=READ_BACK, operation=Verb.GET)
        calls_began_s = series.now_s()
        hash_run = run(on=uploaded, sample=HASH_CALLS, operation=Verb.STAT)
    if not options.keep:
        experiment.remove(upload.files)
    results = [result for result in (upload, download, hash_run) if result is not None]
    digest_of = experiment.provider.driver.capabilities.digest_of  # large files may have none
    reads, calls = (result.ops if result else NO_OPS for result in (download, hash_run))
    with_digest = select_sizes(calls, payload, lambda size_bytes: digest_of(size_bytes) is not None)
    return {
        "began_s": began_s, "writes": count_outcomes(upload.ops), "reads": count_outcomes(reads),
        "calls": count_outcomes(calls, with_digest), "files": count_compared([reads, with_digest]),
        "hash": summarize_hash_calls(calls, calls_began_s, payload),
        "doubts": list(dict.fromkeys(doubt for result in results for doubt in result.doubts)),
        "ops_files": [result["ops_file"] for result in results if "ops_file" in result.info],
    }  # fmt: skip


def _conclude_availability(experiment: Experiment, summary: Mapping[str, Any]) -> Result:
    """Conclude this provider's row of Table III."""
    times = summary["all_sizes"]
    daily = summary["time_of_day"]
    metrics = {name: summary[name] for name in ("availability", "wrong_hash_rate")}
    metrics |= {name: value for name, value in times.items() if name in _TIME_METRICS}
    details = {name: value for name, value in summary.items() if name not in {"by_size", "all_sizes", *metrics}}
    details |= {
        "loop": "closed", "errors": format_counts(summary["write_errors"]) or "none",
        "time_of_day": daily["answer"], "time_of_day_test": daily,
        "interval": f"{summary['availability_low']:.2%} to {summary['availability_high']:.2%}",
        "checked": summary["files_checked"], "hash_calls": times["hash_calls"], "hash_call_s": times["hash_call_s"],
    }  # fmt: skip
    columns = ["rounds", "writes", "errors", "availability", "interval", "checked", "wrong_hashes", "hash_call_p50",
               "hash_call_p99", "time_of_day", "size_matters"]  # fmt: skip
    return experiment.conclude(
        metrics, times["times_s"] or [summary["observed_s"]], columns=columns, extra=details,
        doubts=_list_doubts(summary),
        stats_of="time of hash calls" if times["times_s"] else "time of the whole series: no hash call was answered",
        notes=_list_notes(summary), published={"source": TABLE_III},
    )  # fmt: skip


def _conclude_sizes(experiment: Experiment, summary: Mapping[str, Any]) -> list[Result]:
    """Conclude this provider's rows of Table I, one entry for each size."""
    params, results = experiment.params, []
    for size, times in summary["by_size"].items():
        experiment.params = {**params, "size_kb": int(size)}
        results.append(_conclude_size(experiment, int(size), times, _list_doubts(summary)))
    experiment.params = params
    return results


def _conclude_size(experiment: Experiment, size_kb: int, times: Mapping[str, Any], doubts: Sequence[str]) -> Result:
    algorithm = experiment.provider.driver.capabilities.digest or "sha256"
    local_s = experiment.agent.once(f"local-hash:{size_kb}", partial(_time_local_hash_s, size_kb, algorithm))
    low, high = TABLE_I_MS.get(size_kb, (None, None))
    extra = {
        "ops": times["hash_calls"], "hash_calls": times["hash_calls"], "hash_calls_kept": times["hash_calls_kept"],
        "hash_call_s": times["hash_call_s"], "local_hash_s": local_s, "local_hash": algorithm,
        "local_hash_ms": round(local_s * 1e3, 2), "loop": "closed",
        "published_range": f"{low} to {high} ms" if low is not None else "-",
    }  # fmt: skip
    columns = ["hash_calls", "hash_call_p50", "hash_call_p90", "hash_call_p99", "hash_call_max", "local_hash_ms",
               "published_range"]  # fmt: skip
    metrics = {name: times[name] for name in _TIME_METRICS}
    return experiment.conclude(
        metrics, times["times_s"], stats_of="time of hash calls", label=f"{size_kb}kB", extra=extra, columns=columns,
        doubts=doubts, published={"source": TABLE_I}, spread={"hash_call_p50": times["times_s"]},
    )  # fmt: skip


_TIME_METRICS = tuple(f"hash_call_{label}" for label in ("p50", "p90", "p95", "p99", "p99.9", "max"))


def _list_doubts(summary: Mapping[str, Any]) -> list[str]:
    count = summary["doubtful_rounds"]
    return [*summary["doubts_of_rounds"], f"{count} of {summary['rounds']} rounds are doubtful"] if count else []


def _list_notes(summary: Mapping[str, Any]) -> list[str]:
    """Return the remarks that belong to the numbers."""
    notes = []
    earlier = summary["sessions"] - 1
    if earlier:
        source = "an earlier run" if earlier == 1 else f"{earlier} earlier runs"
        rounds = f"{summary['earlier_rounds']} round{'s' * (summary['earlier_rounds'] != 1)}"
        notes.append(f"resumed: {rounds} of {source}, stopped for {_format_duration(summary['gap_s'])}, "
                     "which counts neither as time nor as unavailability")  # fmt: skip
    if summary["was_torn"]:
        notes.append("the stop cut off the state file's last line; that round was repeated")
    times, daily = summary["all_sizes"], summary["time_of_day"]
    if times["hash_calls_kept"] < times["hash_calls"]:
        notes.append(f"percentiles of {times['hash_calls_kept']:,} of {times['hash_calls']:,} hash calls; "
                     "counts, means and largest are of all")  # fmt: skip
    if daily["answer"] == "yes":
        test = f"Kruskal-Wallis {daily['statistic']:.1f}, p {daily['p_value']:.1g}, {daily['days']:.1f} days"
        notes.append(
            f"hash calls depend on the time of day: hours differ by {daily['change']:.0%} of the median ({test})"
        )
    if summary["throttled"]:
        unthrottled = summary["availability_unthrottled"]
        rest = "there was no other" if unthrottled is None else f"without them {unthrottled:.2%} completed"
        notes.append(f"{summary['throttled']} writes were throttled; {rest}")
    if summary["read_errors"] or summary["hash_call_errors"]:
        notes.append(f"downloads that failed: {format_counts(summary['read_errors']) or 'none'}; "
                     f"hash calls that failed: {format_counts(summary['hash_call_errors']) or 'none'}")  # fmt: skip
    return notes


def _format_duration(duration_s: float) -> str:
    """Return a duration as text, such as ``3 h 2 min``."""
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s"))
    return " ".join([f"{count} {unit}" for count, unit in parts if count][:2]) or "less than a second"


@dataclass(frozen=True, slots=True)
class _PreparedFile:
    """A file whose bytes were made beforehand, so that making them does not count as time for the hash."""

    size_bytes: int
    block: bytes

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size_bytes - offset)
        return self.block if length >= len(self.block) else self.block[:length]


def _time_local_hash_s(size_kb: int, algorithm: str) -> float:
    """Return this machine's time for the same digest, the median of three (third column of Table I)."""
    size_bytes = size_kb * KIB
    content = _PreparedFile(size_bytes, RandomContent("local", min(size_bytes, 4096 * KIB)).read(0, 4096 * KIB))
    times_s = []
    for _ in range(3):
        began_s = perf_counter()
        content_digest(content, algorithm)
        times_s.append(perf_counter() - began_s)
    return median(times_s)
