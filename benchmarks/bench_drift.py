"""How often a run whose times are steady is said to drift, and which drift is found.

Simulated: operations are lognormal (sigma 0.35), and either independent, or each resembles the one before (0.7), or
stretches of a tenth of the run share a disturbance of 5 % and resemble the stretch before (0.5), or the machine is
slower by half in stretches of random length. Recorded: the uploads of ``versus-noise.json`` and of
``versus-noise-busy.json`` as they followed each other, cut into runs that begin at every twentieth operation.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from math import exp, sqrt

from benchmarks.bench_versus import BUSY, NOISE
from benchmarks.harness import Figure
from pytest_cloudbench.judge.significance import wilson
from pytest_cloudbench.judge.steady import drift

__all__ = ["STEADY", "alarms", "measure", "recorded", "steady"]

SIGMA, TYPICAL_S = 0.35, 0.05
RUNS, SIZES = 2000, (200, 300, 1000, 3000)
RISE, RISING_OPS = 1.0, 1000
_STEP = 20


def _independent(draws: random.Random, ops: int) -> Iterator[float]:
    return (draws.gauss(0, SIGMA) for _ in range(ops))


def _alike(draws: random.Random, ops: int) -> Iterator[float]:
    state = draws.gauss(0, SIGMA)
    for _ in range(ops):
        yield state
        state = 0.7 * state + draws.gauss(0, SIGMA * sqrt(1 - 0.7**2))


def _disturbed(draws: random.Random, ops: int) -> Iterator[float]:
    level = draws.gauss(0, 0.05)
    for at in range(ops):
        if at % max(1, ops // 10) == 0:
            level = 0.5 * level + draws.gauss(0, 0.05 * sqrt(1 - 0.5**2))
        yield level + draws.gauss(0, SIGMA)


def _in_stretches(draws: random.Random, ops: int) -> Iterator[float]:
    is_slow = draws.random() < 0.5
    for _ in range(ops):
        is_slow ^= draws.random() < 5 / ops
        yield 0.4 * is_slow + draws.gauss(0, SIGMA)


STEADY: dict[str, Callable[[random.Random, int], Iterator[float]]] = {
    "independent": _independent, "alike by 0.7": _alike, "disturbed": _disturbed, "in stretches": _in_stretches,
}  # fmt: skip
"""Logarithms of what operations took, by what they are like."""


def steady(kind: str, ops: int, seed: int, rise: float = 0.0) -> list[float]:
    """What the operations of one run took, in seconds; ``rise`` is how much longer the last one takes."""
    found = STEADY[kind](random.Random(f"{kind}/{ops}/{seed}"), ops)
    return [TYPICAL_S * exp(each) * (1 + rise * at / ops) for at, each in enumerate(found)]


def recorded(ops: int) -> Iterator[list[float]]:
    """Runs of so many operations out of what was recorded; they overlap."""
    for path in (NOISE, BUSY):
        pairs = json.loads(path.read_text(encoding="utf-8"))["pairs"]
        every = [ms / 1e3 for both in pairs for _, times in both for ms in times]
        for first in range(0, len(every) - ops, _STEP):
            yield every[first : first + ops]


def alarms(runs: Iterator[Sequence[float]]) -> tuple[int, int]:
    """How many runs are said to drift, of how many."""
    found = [bool(drift("response_p50", (), times_s, sum(times_s))) for times_s in runs]
    return sum(found), len(found)


def _simulated(kind: str, ops: int, rise: float, first: int) -> tuple[int, int]:
    return alarms(steady(kind, ops, seed, rise) for seed in range(first, first + RUNS // 10))


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``drift_false_doubts`` and ``drift_found``: shares of runs, ``RUNS`` of each kind and size."""
    figures, firsts = [], range(0, RUNS, RUNS // 10)
    with ProcessPoolExecutor() as pool:

        def share(kind: str, ops: int, rise: float) -> tuple[int, int]:
            told = list(pool.map(partial(_simulated, kind, ops, rise), firsts))
            return sum(count for count, _ in told), sum(of for _, of in told)

        if "drift_false_doubts" in names:
            found = {f"{kind}, {ops} operations": share(kind, ops, 0.0) for kind in STEADY for ops in SIZES}
            found |= {f"recorded, {ops} operations": alarms(recorded(ops)) for ops in SIZES}
            count, of = (sum(column) for column in zip(*found.values(), strict=True))
            details = {"runs": of, "interval": [round(each, 6) for each in wilson(count / of, of)],
                       "alarms of runs": found}  # fmt: skip
            figures.append(Figure("drift_false_doubts", count / of, "of steady runs", 0.001, "at most", details))
        if "drift_found" in names:
            found = {kind: share(kind, RISING_OPS, RISE) for kind in STEADY}
            count, of = found["independent"]
            details = {"rise": RISE, "operations": RISING_OPS, "found of runs": found}
            figures.append(Figure("drift_found", count / of, "of drifting runs", 0.9, "at least", details))
    return figures
