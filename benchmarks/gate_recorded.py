"""The regression gate on recorded runs, resampled: how often it alarms with nothing changed, and what it finds.

``gate-noise.json`` holds runs of one experiment on a machine that did little else, ``gate-noise-busy.json`` on one
that others used, in the order in which they were measured and with all numbers that the gate watches. A session is
drawn from it: today's experiments are one stretch of neighbouring runs, suspects are measured again by the runs that
follow, and each session of the baseline is a stretch from elsewhere. So what a whole session has in common stays in.
A change makes today's times longer, or more of today's operations fail. What is watched, the rule and the margins are
the product's own.

``python -m benchmarks.gate_recorded MINUTES`` records this machine anew.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.harness import environment, python, scratch
from pytest_cloudbench.judge.gate import AGAIN, Check, Ruling, is_suspect, judge
from pytest_cloudbench.judge.watched import NUMBERS, Numbers, checks_of

__all__ = ["BUSY", "NOISE", "drawn_session", "record", "recorded"]

NOISE = Path(__file__).with_name("gate-noise.json")
BUSY = Path(__file__).with_name("gate-noise-busy.json")

_OPS = 3400
_QUIET_OPS = 3000
"""A run with fewer quiet operations is left out: the figures are of runs with so many."""
_LATENCY_S = 0.05
_EACH_SESSION = 8
"""Experiments of a recorded session: how a process begins is part of the noise."""

_PROFILE = f"""
    [meta]
    name = "gate-noise"
    api = "dropbox"
    description = "uploads of 0.05 s"
    [latency]
    median_s = {_LATENCY_S}
    sigma = 0.35
"""
_TEST = f"""
    import pytest
    from pytest_cloudbench.arrival import Jittered

    @pytest.mark.parametrize("number", range({_EACH_SESSION}))
    def test_put(experiment, payloads, number):
        experiment.run(payloads.random(5120), arrival=Jittered(0.2, 0.2), sensors=50, ops_per_sensor={_OPS // 50})
"""


@cache
def recorded(noise: Path) -> Mapping[str, Any]:
    """A record: ``told`` says of what, and ``runs`` are the numbers of each run."""
    found: Mapping[str, Any] = json.loads(noise.read_text(encoding="utf-8"))
    return found


def drawn_session(
    runs: Sequence[Numbers], baseline: int, experiments: int, change: Mapping[str, float], ops: int, seed: object
) -> list[Ruling]:
    """One session, from its baselines to its verdicts.

    Args:
        runs: recorded ones, in order.
        baseline: how many sessions came before.
        experiments: of each session; the first of today's has the change.
        change: ``p50`` or ``p99``, a share that these times are longer by; or ``failed``, a share of operations.
        ops: operations whose failures are counted, in all runs alike; 0 leaves them as they were recorded.
        seed: of the draws.
    """
    draws = random.Random(f"gate/{seed}")
    begins = [draws.randrange(len(runs)) for _ in range(baseline + 1)]
    today = begins.pop()
    checks: list[Check] = []
    for number in range(experiments):
        mine = change if number == 0 else {}
        former = [_seen(runs, begin + number, {}, ops, draws) for begin in begins]
        now = _seen(runs, today + number, mine, ops, draws)
        first = today + experiments + AGAIN * number
        again = [_seen(runs, first + place, mine, ops, draws) for place in range(AGAIN)]
        for check in checks_of(f"t{number}", now, (), former, {}, again):
            checks.append(check if is_suspect(check) else replace(check, again=()))
    return judge(checks)


def _seen(runs: Sequence[Numbers], place: int, change: Mapping[str, float], ops: int, draws: random.Random) -> Numbers:
    """The numbers of a run, changed and with the failures of so many operations."""
    found = dict(runs[place % len(runs)])
    for name, more in change.items():
        for metric in ("quiet_p50", "quiet_p99"):
            if name == "p50" or metric.endswith(name):
                found[metric] *= 1 + more
    if ops:
        share = found["failed"] / found["ops"] + change.get("failed", 0.0)
        count = sum(draws.random() < share for _ in range(ops))
        found |= {"failed": count, "failed_rate": count / ops, "ops": ops}
        found |= {"lost": count, "loss_rate": count / ops, "files": ops}
        for rate in ("throttled", "corrupt"):
            found |= {rate: 0, f"{rate}_rate": 0.0}
    return found


def record(minutes: float) -> None:
    """Record sessions of this machine as it is for some minutes, into ``gate-noise.json``."""
    before, end_s = os.getloadavg()[0], time.monotonic() + minutes * 60
    runs: list[dict[str, Any]] = []
    left_out = 0
    loads = [before]
    while time.monotonic() < end_s:
        measured = _session()
        fit = [each for each in measured if not each["doubts"] and each["quiet_ops"] >= _QUIET_OPS]
        left_out += len(measured) - len(fit)
        runs += [{name: each[name] for name in sorted(NUMBERS) if each.get(name) is not None} for each in fit]
        loads.append(os.getloadavg()[0])
        print(f"{len(runs)} runs, {left_out} left out, load average {loads[-1]:.1f}", flush=True)
    load = f"load average {min(loads):.1f} to {max(loads):.1f}"
    fewest = min(each["quiet_ops"] for each in runs)
    document = {
        "told": f"{_OPS:,} uploads of 5 KiB, 250 a second, {fewest:,} or more quiet; {os.cpu_count()} cores, {load}, "
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC; {left_out} of {len(runs) + left_out} runs left out "
        "for doubts or too few quiet operations",
        "runs": runs,
    }
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in runs)
    NOISE.write_text(f'{{"told":{json.dumps(document["told"])},"runs":[\n{lines}\n]}}\n', encoding="utf-8")


def _session() -> list[dict[str, Any]]:
    """The entries of one session, in order."""
    with scratch() as folder:
        (folder / "noise.toml").write_text(textwrap.dedent(_PROFILE))
        (folder / "test_put.py").write_text(textwrap.dedent(_TEST))
        provider = "emulated:./noise.toml?driver=dropbox%2Bfast"
        command = python("-m", "pytest", "-q", "--provider", provider, "--benchmark-json", "out.json", "test_put.py")
        subprocess.run(
            command, cwd=folder, env=environment(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        entries = json.loads((folder / "out.json").read_text())["benchmarks"]
        return [each["extra_info"] for each in entries]


if __name__ == "__main__":
    record(float(sys.argv[1]))
