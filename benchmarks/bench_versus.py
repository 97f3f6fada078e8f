"""Measure how often ``--cloudbench-versus`` errs about equal sides, and if it finds a tenth within ten minutes.

Simulated: a record holds pairs of blocks of two equal sides, as they were measured on a machine that others used, and
has its load. ``versus-noise.json`` is of two cores with two endless loops, ``versus-noise-busy.json`` of two
cores with some thirty busy processes. Sessions are drawn from a record in stretches of neighbouring pairs, in which
either side may be B. A difference is made by longer times of B. The rule is the product's own, applied after each pair.

Real: sessions of this machine as it is now, on two emulators whose latency differs by a tenth.

``python -m benchmarks.bench_versus MINUTES`` records the noise of this machine anew, into ``versus-noise.json``.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, environment, median, python, scratch
from pytest_cloudbench.judge.paired import DECIDING, BlockValues, Pair, compare, is_decided, quiet_service_s
from pytest_cloudbench.judge.quiet import WaitSeries
from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.judge.stats import percentile
from pytest_cloudbench.model import Outcome
from pytest_cloudbench.results.oplog import read_parquet

__all__ = ["measure", "record"]

_Times = Sequence[Sequence[float]]
"""Service times of a block in ms: of its quiet operations, and of all."""

NOISE = Path(__file__).with_name("versus-noise.json")
BUSY = Path(__file__).with_name("versus-noise-busy.json")
MINUTES = 10.0
SESSIONS, STRETCH = 500, 8
CHANGE = 0.10
_SIMULATED = {
    "versus_false_answers": (NOISE, 0.0),
    "versus_finds_p50": (NOISE, CHANGE),
    "versus_false_answers_busy": (BUSY, 0.0),
    "versus_finds_p50_busy": (BUSY, CHANGE),
}
"""For each figure, the recorded noise and the change of B."""

_TEST = """
    from pytest_cloudbench.workload.arrival import Jittered

    def test_put(experiment, payloads):
        experiment.run(payloads.random(5120), arrival=Jittered(0.5, 0.5), sensors=20, ops_per_sensor=4, verify=False)
"""
_PROFILE = """
    [meta]
    name = "{name}"
    api = "dropbox"
    description = "uploads of 0.14 s, as from a good connection; side {name}"
    [latency]
    median_s = {median_s}
    sigma = 0.35
    min_s = 0.02
    write_factor = 1.75
"""


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """The simulated figures, and the real ``versus_finds_p50_really``."""
    figures = []
    for name, (noise, change) in _SIMULATED.items():
        if name not in names:
            continue
        with ProcessPoolExecutor() as pool:
            answers = list(pool.map(partial(session, noise, change), range(SESSIONS), chunksize=10))
        count = sum(answer.endswith("better") if not change else answer == "A better" for answer, _ in answers)
        noise_record = _read_noise(noise)
        details = {
            "simulated": True, "sessions": SESSIONS, "change": change, "recorded": noise_record["told"],
            "median_minutes": round(median([pairs for _, pairs in answers]) * noise_record["pair_s"] / 60, 2),
            "wrong_way": sum(answer == "B better" for answer, _ in answers) if change else None,
        }  # fmt: skip
        bound, share = (0.9, count / SESSIONS) if change else (0.01, count / SESSIONS)
        figures.append(Figure(name, share, "of sessions", bound, "at least" if change else "at most", details))
    if "versus_finds_p50_really" in names:
        real_sessions = [run_real_session(CHANGE) for _ in range(runs)]
        share = sum(any(run[name]["answer"] == "A better" for name in DECIDING if name in run) for run in real_sessions)
        details = {"simulated": False, "sessions": real_sessions, "change": CHANGE}
        figures.append(
            Figure("versus_finds_p50_really", share / len(real_sessions), "of sessions", 0.9, "at least", details)
        )
    return figures


# --- simulated ------------------------------------------------------------------------------------------


@cache
def _read_noise(noise: Path) -> Mapping[str, Any]:
    """Return a record: ``pairs`` of blocks, the seconds that a pair takes, and a description of the machine."""
    noise_record: Mapping[str, Any] = json.loads(noise.read_text(encoding="utf-8"))
    return noise_record


def session(noise: Path, change: float, seed: int) -> tuple[str, int]:
    """Return the answer of one simulated session, and the number of pairs before it."""
    draws, answer = random.Random(f"versus/{change}/{seed}"), "inconclusive"
    pairs: list[Pair] = []
    for pair in _draw_pairs(_read_noise(noise), draws, change):
        pairs.append(pair)
        differences = compare(pairs)
        if is_decided(differences, DECIDING):
            deciding = [differences[name].answer for name in DECIDING if name in differences]
            answer = next((word for word in deciding if word.endswith("better")), "no difference")
            break
    return answer, len(pairs)


def _draw_pairs(noise: Mapping[str, Any], draws: random.Random, change: float) -> Iterator[Pair]:
    """Yield the pairs that fit into the budget."""
    blocks: list[list[_Times]] = noise["pairs"]
    count = int(MINUTES * 60 / noise["pair_s"]) - 1
    for _ in range(0, count, STRETCH):
        begin, is_turned = draws.randrange(len(blocks)), draws.random() < 0.5
        for index in range(min(STRETCH, count)):
            a, b = blocks[(begin + index) % len(blocks)]
            a, b = (b, a) if is_turned else (a, b)
            yield _values(a, 0.0), _values(b, change)
            count -= 1


def _values(times: _Times, change: float) -> BlockValues:
    quiet_s, all_s = ([time_ms / 1e3 * (1 + change) for time_ms in times_ms] for times_ms in times)
    ordered = sorted(all_s)
    shares = {"service_p50": 0.5, "service_p25": 0.25} if ordered else {}
    return BlockValues({name: percentile(ordered, share) for name, share in shares.items()}, len(ordered), quiet_s)


# --- real -----------------------------------------------------------------------------------------------


def run_real_session(change: float) -> dict[str, Any]:
    """Return the answers of one real session, and the load of the machine."""
    with scratch() as folder:
        comparison = _run_session(folder, change, MINUTES, *DECIDING)
    decided = {name: answer for name, answer in comparison["differences"].items() if name in DECIDING}
    answers = {
        name: {key: answer[key] for key in ("answer", "change", "low", "high")} for name, answer in decided.items()
    }
    more = {name: comparison[name] for name in ("pairs", "minutes", "stopped")}
    return {**answers, **more, "load": round(os.getloadavg()[2], 1)}


def record(minutes: float) -> None:
    """Record two equal sides for some minutes, into ``versus-noise.json``."""
    before = os.getloadavg()[0]
    with scratch() as folder:
        comparison = _run_session(folder, 0.0, minutes, "tue")  # nothing here has this metric, so the time decides
        sides: dict[int, dict[str, list[list[float]]]] = {}
        for block in comparison["blocks"]:
            (path,) = folder.rglob(Path(block["ops_file"]).name)
            sides.setdefault(block["pair"], {})[block["side"]] = _times_ms(read_parquet(path))
    complete_pairs = [both for pair, both in sorted(sides.items()) if pair and len(both) == 2]
    description = f"uploads of 5 KiB, 40 a second, 80 a block; {os.cpu_count()} cores"
    load = f"load average {before:.0f} before and {os.getloadavg()[2]:.0f} in the last 15 minutes"
    document = {
        "told": f"{description}, {load}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "pair_s": round(comparison["minutes"] * 60 / (comparison["pairs"] + 1), 2),
        "pairs": [[both["A"], both["B"]] for both in complete_pairs],
    }
    NOISE.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")


def _times_ms(table: OpTable) -> list[list[float]]:
    """Return service times of a block's quiet operations that succeeded, and those of all."""
    quiet = quiet_service_s(table, WaitSeries())
    times = zip(table.column("start_ns"), table.column("end_ns"), table.outcome, strict=True)
    all_s = ((end - start) / 1e9 for start, end, outcome in times if outcome is Outcome.OK)
    return [[round(time_s * 1e3, 1) for time_s in times_s] for times_s in (quiet, all_s)]


def _run_session(folder: Path, change: float, minutes: float, *metrics: str) -> Mapping[str, Any]:
    for name, median_s in (("a", 0.08), ("b", 0.08 * (1 + change))):
        (folder / f"{name}.toml").write_text(textwrap.dedent(_PROFILE.format(name=name, median_s=median_s)))
    (folder / "test_put.py").write_text(textwrap.dedent(_TEST))
    sides = ["--provider", "emulated:./a.toml", "--cloudbench-versus", "emulated:./b.toml"]
    rules = [f"-ocloudbench_versus_minutes={minutes:g}"]
    rules += [f"-ocloudbench_versus_metric={' '.join(metrics)}"] if metrics else []
    command = python("-m", "pytest", "-q", *sides, *rules, "--benchmark-json", "out.json", "test_put.py")
    subprocess.run(command, cwd=folder, env=environment(), check=True, stdout=subprocess.DEVNULL)
    (entry,) = json.loads((folder / "out.json").read_text())["benchmarks"]
    comparison: Mapping[str, Any] = entry["extra_info"]["versus"]
    return comparison


if __name__ == "__main__":
    record(float(sys.argv[1]))
