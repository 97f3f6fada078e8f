"""Runs of one machine under named loads, in the order in which they were measured, for the gate's figures.

``python -m benchmarks.gate_recorded LOAD MINUTES [--rounds N] [--folder FOLDER]`` records this machine under a load,
into ``gate-LOAD.jsonl.gz``. A round is one run of each kind: an open loop and a closed one against an emulator, and a
closed one against a threaded server in a child process. A run's line holds all numbers that the gate watches, a sample
of its quiet service times for rules that work on operations, and the time and the waits of each operation, from which
other metrics can be computed later. Runs with doubts about their times stay in, as in a history.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from statistics import median_low
from typing import Any

from benchmarks.harness import environment, python, scratch
from pytest_cloudbench.judge.baseline import is_about_times
from pytest_cloudbench.judge.watched import TIMES_DOUBTED, Numbers, needed_numbers

__all__ = [
    "COLUMNS",
    "KINDS",
    "LOADS",
    "SAMPLE",
    "Record",
    "busy_machine",
    "compute_unstarved",
    "read_record",
    "record",
]

FOLDER = Path(__file__).parent

KINDS = ("open", "closed", "served")
SAMPLE = "sample_us"
"""The key of a run's sample: up to 200 service times of quiet operations, in microseconds."""

COLUMNS = ("service_us", "own_wait_us", "other_wait_us", "late_us")
"""The keys of a run's columns, with a number for each operation that succeeded, in the order in which they were due.

In microseconds, rounded to ten: its service time, how long its own thread waited for a CPU (below 0 if unknown), its
part of how long threads of servers and helpers waited, and how late it began.
"""

_SAMPLED = 200
_OPS = 800
_ROUNDS = 3
"""Rounds of a recorded session: how a process begins is part of the noise."""


@dataclass(frozen=True, slots=True)
class Load:
    """The other work of the machine.

    Attributes:
        about: in words.
        processes: how many of them compute.
        busy_s, idle_s: how long, on average, each computes and then sleeps. With ``idle_s`` 0 they never sleep.
    """

    about: str
    processes: int = 0
    busy_s: float = 1.0
    idle_s: float = 0.0


LOADS: Mapping[str, Load] = {
    "calm": Load("nothing else to do"),
    "other work": Load("whatever else the machine does, which this process does not start"),
    "busy4": Load("4 busy processes beside", 4),
    "busy16": Load("16 busy processes beside", 16),
    "bursts": Load("10 processes beside that compute for 2 s and sleep for 4 s, on average", 10, 2.0, 4.0),
}

_BUSY = """
import os, random, sys, time
parent, busy_s, idle_s, seed = (float(word) for word in sys.argv[1:])
draws = random.Random(seed)
while os.getppid() == parent:
    end_s = time.monotonic() + draws.expovariate(1 / busy_s)
    while time.monotonic() < end_s:
        sum(range(10_000))
    if idle_s:
        time.sleep(draws.expovariate(1 / idle_s))
"""

_PROFILE = """
    [meta]
    name = "gate-noise"
    api = "dropbox"
    description = "uploads of 0.05 s"
    [latency]
    median_s = 0.05
    sigma = 0.1
"""
_RECIPE = f"""
    name = "threads"
    driver = "webdav"
    command = ["{{python}}", {json.dumps(str(FOLDER / "gate_server.py"))}, "{{port}}"]
    url = "http://127.0.0.1:{{port}}/"
    [credentials]
    user = "cloudbench"
    password = "{{secret}}"
"""
_CONFTEST = f"""
    import random
    from dataclasses import replace

    from pytest_cloudbench.judge.metrics import Run
    from pytest_cloudbench.judge.quiet import WaitSeries, waits_of
    from pytest_cloudbench.judge.stats import rows_in_order
    from pytest_cloudbench.load.merging import merge
    from pytest_cloudbench.model import Outcome

    summarize = merge.summarize

    def with_operations(table, verification, beside=None):
        summary, beside = summarize(table, verification, beside), beside or WaitSeries()
        quiet_ns = Run(table, verification, beside).sorted_ns("quiet")
        chosen = random.Random(len(quiet_ns)).sample(quiet_ns, min({_SAMPLED}, len(quiet_ns)))
        sample = {{"{SAMPLE}": [round(ns / 1000) for ns in chosen]}}
        return replace(summary, quiet=dict(summary.quiet) | sample | columns_of(table, beside))

    def columns_of(table, beside):
        names = ("scheduled_ns", "start_ns", "end_ns", "cpu_wait_ns")
        scheduled, start, end, own = (table.column(name) for name in names)
        waits, outcomes, rows = waits_of(start, end, own, beside), table.outcome, []
        for row in rows_in_order(scheduled):
            if outcomes[row] is Outcome.OK:
                other_ns = waits[row] - max(0, own[row])
                rows.append((end[row] - start[row], own[row], other_ns, start[row] - scheduled[row]))
        tens = [[round(ns / 10_000) * 10 if ns >= 0 else -10 for ns in column] for column in zip(*rows)]
        return dict(zip({COLUMNS!r}, tens))

    merge.summarize = with_operations

    def pytest_collection_modifyitems(items):
        items.sort(key=lambda item: item.callspec.params["number"])  # a round after the other
"""
_TEST = """
    import os

    import pytest
    from pytest_cloudbench.workload.arrival import Jittered, Threads

    OPS, BYTES = int(os.environ["OPS"]), 5120
    EMULATED, SERVED = "emulated:./noise.toml?driver=dropbox%2Bfast", "served:./threads.toml"
    rounds = pytest.mark.parametrize("number", range(int(os.environ["ROUNDS"])))

    @pytest.mark.cloudbench_provider(EMULATED)
    @rounds
    def test_open(experiment, payloads, number):
        experiment.run(payloads.random(BYTES), arrival=Jittered(0.25, 0.2), sensors=20, ops_per_sensor=OPS // 20)

    @pytest.mark.cloudbench_provider(EMULATED)
    @rounds
    def test_closed(experiment, payloads, number):
        experiment.run(payloads.random(BYTES), arrival=Threads(4), files=OPS)

    @pytest.mark.cloudbench_provider(SERVED)
    @rounds
    def test_served(experiment, payloads, number):
        experiment.run(payloads.random(BYTES), arrival=Threads(4), files=OPS)
"""
_NAME = re.compile(r"test_(?P<kind>\w+)\[.*?(?P<round>\d+)\]$")


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one load.

    Attributes:
        about: the operations, the date and the machine.
        rounds: the runs of each round by their kind, in order.
    """

    about: str
    rounds: Sequence[Mapping[str, Numbers]]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of runs that each of its rounds has."""
        return tuple(kind for kind in KINDS if kind in self.rounds[0])


@cache
def read_record(load: str, folder: Path = FOLDER) -> Record | None:
    """Return the record of a load, or None if there is none. Rounds that lack a run are left out."""
    path = folder / f"gate-{load}.jsonl.gz"
    if not path.exists():
        return None
    with gzip.open(path, "rt", encoding="utf-8") as file:
        about, *runs = map(json.loads, file)
    rounds: dict[int, dict[str, Numbers]] = {}
    for run in runs:
        rounds.setdefault(run["round"], {})[run["kind"]] = run | compute_unstarved(run)
    most_runs = max(map(len, rounds.values()))
    averages = [run["load_average"] for run in runs if "load_average" in run]
    text = f"{about['about']}, load average {min(averages)} to {max(averages)}" if averages else about["about"]
    return Record(text, [runs_of for runs_of in rounds.values() if len(runs_of) == most_runs])


def compute_unstarved(numbers: Numbers, slowdown: float = 0.0) -> dict[str, float]:
    """Return the numbers of a run without its threads' waits, or none if it lacks the columns.

    Args:
        numbers: of the run.
        slowdown: the share that operations take longer by, but for the waits, which stay as they were.
    """
    if any(name not in numbers for name in COLUMNS) or min(numbers["own_wait_us"], default=-1) < 0:
        return {}
    rows = zip(numbers["service_us"], numbers["own_wait_us"], numbers["other_wait_us"], strict=True)
    times_us = [(took - own - other) * (1 + slowdown) + other for took, own, other in rows]
    return {
        "ok": len(times_us),
        "unstarved_p50": median_low(times_us) / 1e6,
        "starved_elsewhere_share": sum(numbers["other_wait_us"]) / sum(times_us),
    }


@contextmanager
def busy_machine(load: str) -> Iterator[None]:
    """Keep the machine as busy as a load says, by processes that end with this block, or with this process."""
    work = LOADS[load]
    with ExitStack() as stack:
        for seed in range(work.processes):
            command = python("-c", _BUSY, str(os.getpid()), str(work.busy_s), str(work.idle_s), str(seed))
            process = stack.enter_context(subprocess.Popen(command))
            stack.callback(process.kill)
        yield


def record(
    load: str, minutes: float, folder: Path = FOLDER, ops: int = _OPS, rounds: int = _ROUNDS, most_rounds: float = inf
) -> Path:
    """Record sessions under a load for some minutes. What was recorded so far is on disk after each session.

    Args:
        load: which of ``LOADS``.
        minutes: after which no further session begins.
        folder: of the file that is written. A former one is replaced.
        ops: operations of a run.
        rounds: of each session.
        most_rounds: after which no further session begins, either.
    """
    path, end_s = folder / f"gate-{load}.jsonl.gz", time.monotonic() + minutes * 60
    now = datetime.datetime.now(datetime.UTC)
    about = f"{ops:,} uploads of 5 KiB a run, {LOADS[load].about}; {os.cpu_count()} cores, {now:%Y-%m-%d %H:%M} UTC"
    _append(path, [{"load": load, "about": about}], mode="wb")
    first = 0
    with busy_machine(load):
        while first == 0 or (first < most_rounds and time.monotonic() < end_s):
            runs = _session(ops, rounds)
            for run in runs:
                run["round"] += first
            _append(path, runs)
            first += rounds
            doubted = sum(TIMES_DOUBTED in run for run in runs)
            print(f"{first} rounds, {doubted} doubted runs in the last {len(runs)}, {path.stat().st_size:,} bytes",
                  flush=True)  # fmt: skip
    read_record.cache_clear()
    return path


def _append(path: Path, lines: Sequence[Mapping[str, Any]], mode: str = "ab") -> None:
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    with path.open(mode) as file:
        file.write(gzip.compress(text.encode(), mtime=0))


def _session(ops: int, rounds: int) -> list[dict[str, Any]]:
    """Return the runs of one session, in order, except those whose counts are in doubt."""
    with scratch() as folder:
        texts = {"noise.toml": _PROFILE, "threads.toml": _RECIPE, "conftest.py": _CONFTEST, "test_put.py": _TEST}
        for name, text in texts.items():
            (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")
        # With the gate, each run also measures the CPU time of a fixed piece of work, by which it divides others.
        command = python("-m", "pytest", "-q", "--cloudbench-gate", "--benchmark-json", "out.json", "test_put.py")
        settings = environment(OPS=str(ops), ROUNDS=str(rounds))
        ended = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)
        if not (folder / "out.json").exists():
            output = f"{ended.stdout[-3000:]}{ended.stderr[-2000:]}"
            raise RuntimeError(f"the session ended with {ended.returncode}:\n{output}")
        entries = json.loads((folder / "out.json").read_text(encoding="utf-8"))["benchmarks"]
    load_average = round(os.getloadavg()[0], 1)
    return [
        _line(entry) | {"load_average": load_average}
        for entry in entries
        if all(map(is_about_times, entry["extra_info"]["doubts"]))
    ]


def _line(entry: Mapping[str, Any]) -> dict[str, Any]:
    name, info = _NAME.search(entry["fullname"]), entry["extra_info"]
    assert name is not None
    line: dict[str, Any] = {"kind": name["kind"], "round": int(name["round"])}
    line |= {name: _round(info[name]) for name in sorted(needed_numbers()) if info.get(name) is not None}
    line |= {TIMES_DOUBTED: True} if info["doubts"] else {}
    return line | {name: info[name] for name in (SAMPLE, *COLUMNS) if name in info}


def _round(value: Any) -> Any:
    return float(f"{value:.7g}") if isinstance(value, float) else value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Record this machine under a load, for the gate's figures.")
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--rounds", type=int, default=inf, metavar="N", help="end after so many, too")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write (default: beside this file)")
    options = parser.parse_args(arguments)
    record(options.load, options.minutes, options.folder, most_rounds=options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
