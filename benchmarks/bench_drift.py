"""Measure how often a steady run is said to drift, and how often a drift is found.

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

__all__ = ["STEADY", "count_alarms", "cut_recorded", "draw_steady", "measure"]

SIGMA, TYPICAL_S = 0.35, 0.05
RUNS, SIZES = 2000, (200, 300, 1000, 3000)
RISE, RISING_OPS = 1.0, 1000
_STEP = 20


def _draw_independent(draws: random.Random, ops: int) -> Iterator[float]:
    return (draws.gauss(0, SIGMA) for _ in range(ops))


def _draw_alike(draws: random.Random, ops: int) -> Iterator[float]:
    state = draws.gauss(0, SIGMA)
    for _ in range(ops):
        yield state
        state = 0.7 * state + draws.gauss(0, SIGMA * sqrt(1 - 0.7**2))


def _draw_disturbed(draws: random.Random, ops: int) -> Iterator[float]:
    level = draws.gauss(0, 0.05)
    for at in range(ops):
        if at % max(1, ops // 10) == 0:
            level = 0.5 * level + draws.gauss(0, 0.05 * sqrt(1 - 0.5**2))
        yield level + draws.gauss(0, SIGMA)


def _draw_in_stretches(draws: random.Random, ops: int) -> Iterator[float]:
    is_slow = draws.random() < 0.5
    for _ in range(ops):
        is_slow ^= draws.random() < 5 / ops
        yield 0.4 * is_slow + draws.gauss(0, SIGMA)


STEADY: dict[str, Callable[[random.Random, int], Iterator[float]]] = {
    "independent": _draw_independent, "alike by 0.7": _draw_alike, "disturbed": _draw_disturbed,
    "in stretches": _draw_in_stretches,
}  # fmt: skip
"""Functions that draw the logarithms of operations' times, by the kind of series."""


def draw_steady(kind: str, ops: int, seed: int, rise: float = 0.0) -> list[float]:
    """Return the times of one run's operations, in seconds.

    ``rise`` is the share by which the last operation takes longer.
    """
    logarithms = STEADY[kind](random.Random(f"{kind}/{ops}/{seed}"), ops)
    return [TYPICAL_S * exp(logarithm) * (1 + rise * at / ops) for at, logarithm in enumerate(logarithms)]


def cut_recorded(ops: int) -> Iterator[list[float]]:
    """Yield overlapping runs of ``ops`` operations from the records."""
    for path in (NOISE, BUSY):
        pairs = json.loads(path.read_text(encoding="utf-8"))["pairs"]
        times_s = [ms / 1e3 for both in pairs for _, times in both for ms in times]
        for first in range(0, len(times_s) - ops, _STEP):
            yield times_s[first : first + ops]


def count_alarms(runs: Iterator[Sequence[float]]) -> tuple[int, int]:
    """Return how many runs are said to drift, and how many there are."""
    are_drifting = [bool(drift("response_p50", (), times_s, sum(times_s))) for times_s in runs]
    return sum(are_drifting), len(are_drifting)


def _count_simulated(kind: str, ops: int, rise: float, first: int) -> tuple[int, int]:
    return count_alarms(draw_steady(kind, ops, seed, rise) for seed in range(first, first + RUNS // 10))


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``drift_false_doubts`` and ``drift_found``: shares of runs, ``RUNS`` of each kind and size."""
    figures, firsts = [], range(0, RUNS, RUNS // 10)
    with ProcessPoolExecutor() as pool:

        def share(kind: str, ops: int, rise: float) -> tuple[int, int]:
            counts = list(pool.map(partial(_count_simulated, kind, ops, rise), firsts))
            return sum(count for count, _ in counts), sum(total for _, total in counts)

        if "drift_false_doubts" in names:
            counts = {f"{kind}, {ops} operations": share(kind, ops, 0.0) for kind in STEADY for ops in SIZES}
            counts |= {f"recorded, {ops} operations": count_alarms(cut_recorded(ops)) for ops in SIZES}
            count, total = (sum(column) for column in zip(*counts.values(), strict=True))
            details = {"runs": total, "interval": [round(limit, 6) for limit in wilson(count / total, total)],
                       "alarms of runs": counts}  # fmt: skip
            figures.append(Figure("drift_false_doubts", count / total, "of steady runs", 0.001, "at most", details))
        if "drift_found" in names:
            counts = {kind: share(kind, RISING_OPS, RISE) for kind in STEADY}
            count, total = counts["independent"]
            details = {"rise": RISE, "operations": RISING_OPS, "found of runs": counts}
            figures.append(Figure("drift_found", count / total, "of drifting runs", 0.9, "at least", details))
    return figures
