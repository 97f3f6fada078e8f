"""How often the regression gate is wrong, and what it finds: sessions of 20 experiments, unchanged and changed.

Simulated: each run of an experiment has a disturbance of its own (Student's t with 4 degrees of freedom, standard
deviation 1 %), a fifth of whose variance a run and its repetitions share, and the order statistics of independent
operations (lognormal, sigma 0.35). The rule is the product's own (``judge/gate``), and suspects are measured again.

The same figures stand for recorded runs (``gate_recorded``): all four for a machine that did little else, false alarms
for one that others used.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import exp, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

from benchmarks.gate_recorded import BUSY, NOISE, drawn_session, recorded
from benchmarks.harness import Figure
from pytest_cloudbench.judge.gate import AGAIN, Check, Reading, Ruling, is_suspect, judge
from pytest_cloudbench.judge.significance import wilson

__all__ = ["Change", "Noise", "alarms", "finds", "measure", "session"]

_NORMAL = NormalDist()
_METRICS = (("quiet_p50", 0.5, 0.10), ("quiet_p99", 0.99, 0.25))


@dataclass(frozen=True, slots=True)
class Noise:
    """How runs differ with nothing changed.

    Attributes:
        ops: quiet operations in a run.
        sigma: of the logarithm of an operation's time.
        spread: standard deviation of a run's own disturbance, a share.
        shared: the share of its variance that repetitions at the session's end have in common with the first run.
        freedom: of its distribution, Student's t; 0 for a normal one.
        failed: the share of operations that fail.
    """

    ops: int = 3000
    sigma: float = 0.35
    spread: float = 0.01
    shared: float = 0.2
    freedom: int = 4
    failed: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """What the first experiment of a changed session has: shares that p50 and p99 rise by, and more failures."""

    p50: float = 0.0
    p99: float = 0.0
    failed: float = 0.0


def session(noise: Noise, runs: int, experiments: int, change: Change, seed: object) -> list[Ruling]:
    """One session from its baselines to its verdicts; suspects are measured again."""
    source = random.Random(str(seed))
    checks: list[Check] = []
    repeats: list[Callable[[], Reading]] = []  # of each check
    for number in range(experiments):
        mine = change if number == 0 else Change()
        with_this = sqrt(noise.shared) * _disturbance(noise, source)
        rows = [(name, share, margin, getattr(mine, name.removeprefix("quiet_"))) for name, share, margin in _METRICS]
        for name, share, margin, more in rows:
            draw = _level(noise, source, share)
            baseline = tuple(draw(0.0, None) for _ in range(runs))
            checks.append(Check(f"t{number}", name, "level", margin, baseline, draw(more, with_this)))
            repeats.append(partial(draw, more, with_this))
        fail = _failing(noise, source)
        before = tuple(fail(noise.failed) for _ in range(runs))
        share = noise.failed + mine.failed
        checks.append(Check(f"t{number}", "failed_rate", "rate", 0.01, before, fail(share)))
        repeats.append(partial(fail, share))
    judged = [
        replace(check, again=tuple(repeat() for _ in range(AGAIN))) if is_suspect(check) else check
        for check, repeat in zip(checks, repeats, strict=True)
    ]
    return judge(judged)


def _disturbance(noise: Noise, source: random.Random) -> float:
    if not noise.freedom:
        return source.gauss(0, noise.spread)
    chi2 = source.gammavariate(noise.freedom / 2, 2)
    return source.gauss(0, noise.spread) / sqrt(chi2 / noise.freedom) / sqrt(noise.freedom / (noise.freedom - 2))


def _level(noise: Noise, source: random.Random, share: float) -> Callable[[float, float | None], Reading]:
    rank = max(1, round(share * noise.ops))

    def draw(more: float, common: float | None) -> Reading:
        quantile = _NORMAL.inv_cdf(source.betavariate(rank, noise.ops - rank + 1))
        own = _disturbance(noise, source)
        own = own if common is None else common + sqrt(1 - noise.shared) * own
        return Reading(0.1 * (1 + more) * exp(noise.sigma * quantile + own), ops=noise.ops)

    return draw


def _failing(noise: Noise, source: random.Random) -> Callable[[float], Reading]:
    def draw(share: float) -> Reading:
        count = sum(source.random() < share for _ in range(noise.ops)) if share else 0
        return Reading(count / noise.ops, count, noise.ops)

    return draw


def alarms(verdicts: Sequence[Ruling]) -> bool:
    """Returns whether anything is called broken."""
    return any(each.answer == "broken" for each in verdicts)


def finds(metric: str) -> Callable[[Sequence[Ruling]], bool]:
    """Returns what tells whether the change of the first experiment is found."""
    return lambda verdicts: any(
        each.answer == "broken" for each in verdicts if (each.check.experiment, each.check.metric) == ("t0", metric)
    )


EXPERIMENTS, SESSIONS = 20, 600

_RUNS = 15

CASES: dict[str, tuple[Noise, Change, str]] = {
    "gate_false_alarms": (Noise(), Change(), ""),
    "gate_finds_p50": (Noise(), Change(p50=0.10), "quiet_p50"),
    "gate_finds_p99": (Noise(), Change(p99=0.25), "quiet_p99"),
    "gate_finds_errors": (Noise(ops=300), Change(failed=0.01), "failed_rate"),
}
"""Figure to the noise, what has changed, and the metric that must show it."""

_RECORDS = {"_recorded": NOISE, "_busy": BUSY}
"""How the names of figures end that are of recorded runs."""


def one(name: str, record: Path | None, seed: int) -> bool:
    """Whether one session, simulated or drawn from recorded runs, alarms, or finds its change."""
    noise, change, metric = CASES[name]
    if record:
        ops = noise.ops if change.failed else 0
        made = {each: more for each, more in asdict(change).items() if more}
        found = drawn_session(recorded(record)["runs"], _RUNS, EXPERIMENTS, made, ops, f"{name}/{seed}")
    else:
        found = session(noise, _RUNS, EXPERIMENTS, change, f"{name}/{seed}")
    return finds(metric)(found) if metric else alarms(found)


def measure(figures: list[str], runs: int) -> list[Figure]:
    """The share of sessions that alarm, or find what has changed: ``SESSIONS`` of them, however many runs are asked."""
    found = []
    for figure in figures:
        end, record = next((each for each in _RECORDS.items() if figure.endswith(each[0])), ("", None))
        name = figure.removesuffix(end)
        noise, change, metric = CASES[name]
        with ProcessPoolExecutor() as pool:
            count = sum(pool.map(partial(one, name, record), range(SESSIONS), chunksize=20))
        details: dict[str, Any] = {
            "sessions": SESSIONS, "experiments": EXPERIMENTS, "baseline_runs": _RUNS, "change": asdict(change),
            "metric": metric, "simulated": not record,
            "interval": [round(each, 4) for each in wilson(count / SESSIONS, SESSIONS)],
        }  # fmt: skip
        if record:
            details |= {"recorded": recorded(record)["told"], "recorded_runs": len(recorded(record)["runs"])}
        if not record or change.failed:
            details["ops"] = noise.ops
        bound, sense = (0.9, "at least") if metric else (0.01, "at most")
        found.append(Figure(figure, count / SESSIONS, "of sessions", bound, sense, details))  # type: ignore[arg-type]  # mypy takes a conditional's literals for str
    return found
