"""Sessions with known truth: what a rule sees of one, drawn from recorded runs or simulated.

Drawn: today's experiments are one stretch of neighbouring runs (``gate_recorded``), suspects are measured again by the
runs that follow, and each earlier session is a stretch from elsewhere, of the loads that its history had. So what a
whole session has in common stays in. Simulated: each run has a disturbance of its own, a part of which a run and its
repetitions share, and the order statistics of independent operations. A change is made to today's first experiment.
Every rule sees the same runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import NormalDist
from typing import Any

from benchmarks.gate_recorded import KINDS, SAMPLE, Record, read_record, unstarved
from pytest_cloudbench.judge.gate import Answer
from pytest_cloudbench.judge.watched import Numbers

__all__ = [
    "EXPERIMENTS", "FORMER_RUNS", "LATER_SESSIONS", "Answered", "Change", "Experiment", "History", "Noise", "Session",
    "drawn_session", "missing_loads", "simulated_run", "simulated_session",
]  # fmt: skip

EXPERIMENTS = 20
"""In each session; the first one has the change."""
FORMER_RUNS = 40
"""Of each experiment: the last 20 are the baseline, and all of them are followed for a slow rise."""
LATER_SESSIONS = 3
"""How many sessions with the same change follow, for rules that need several runs to notice one."""
_BASELINE_RUNS = 20
_INCIDENT = 3.0
"""How many times as long all times of a bad run are."""
_NORMAL = NormalDist()
_TIMES = ("quiet_p50", "quiet_p99", "service_p50", "service_p99")


@dataclass(frozen=True, slots=True)
class Change:
    """What is different today.

    Attributes:
        p50: the share that all times are longer by.
        p99: the share that the longest times are longer by.
        failed: the share of operations that fail in addition.
        requests: how many more an operation takes.
        wire_bytes: how many more an operation sends.
        lost, corrupt: files of the run itself that were lost without an error, or came back different; its repetitions
            have none.
    """

    p50: float = 0.0
    p99: float = 0.0
    failed: float = 0.0
    requests: float = 0.0
    wire_bytes: float = 0.0
    lost: int = 0
    corrupt: int = 0

    @property
    def again(self) -> Change:
        """Returns what of it comes again when it is measured again."""
        return Change(self.p50, self.p99, self.failed, self.requests, self.wire_bytes)


@dataclass(frozen=True, slots=True)
class Noise:
    """How simulated runs differ with nothing changed.

    Attributes:
        ops: quiet operations in a run.
        sigma: of the logarithm of an operation's time.
        spread: standard deviation of a run's own disturbance, a share.
        shared: the share of its variance that repetitions at the session's end have in common with the first run.
        freedom: of its distribution, Student's t; 0 for a normal one.
    """

    ops: int = 3000
    sigma: float = 0.35
    spread: float = 0.01
    shared: float = 0.2
    freedom: int = 4


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment of a session.

    Attributes:
        name: of the experiment.
        former: its former runs, the oldest first.
        now: today's run.
        later: its runs in the sessions that follow.
        kind: which of ``gate_recorded.KINDS`` it is; a simulated one is an open loop.
    """

    name: str
    former: Sequence[Numbers]
    now: Numbers
    later: Sequence[Numbers] = ()
    kind: str = "open"


@dataclass(frozen=True, slots=True)
class Session:
    """What a rule judges.

    Attributes:
        experiments: in the order of measuring.
        again: what measuring an experiment again gives: its index, and how many runs were measured again before.
    """

    experiments: Sequence[Experiment]
    again: Callable[[int, int], Numbers]


@dataclass(frozen=True, slots=True)
class Answered:
    """What a rule says of one metric of one experiment.

    Attributes:
        experiment: its name.
        metric: which.
        answer: met, broken or inconclusive; most rules know no third answer.
        decides: whether the metric alone can make the experiment inconclusive.
        is_outlier: the run is no baseline for later ones.
        is_open: the metric has a regression that is not gone, whatever this run says.
    """

    experiment: str
    metric: str
    answer: Answer
    decides: bool = True
    is_outlier: bool = False
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """From what a session is drawn.

    Attributes:
        before: the loads under which earlier sessions ran.
        now: today's load.
        kinds: of experiments, which take turns.
        incidents: how many of the baseline's sessions had times three times as long.
        ops: operations whose failures are counted, in all runs alike; 0 leaves them as they were recorded.
    """

    before: tuple[str, ...]
    now: str
    kinds: tuple[str, ...] = KINDS
    incidents: int = 0
    ops: int = 0


def missing_loads(history: History) -> list[str]:
    """Returns the loads of which there is no record, or none of the wanted kinds."""
    loads = dict.fromkeys((*history.before, history.now))
    records = {load: read_record(load) for load in loads}
    return [load for load, each in records.items() if each is None or not set(each.kinds) & set(history.kinds)]


def drawn_session(history: History, change: Change, seed: object, experiments: int = EXPERIMENTS) -> Session:
    """Returns one session, drawn from recorded runs. Raises LookupError if a load was not recorded."""
    if missing := missing_loads(history):
        raise LookupError(f"no record of: {', '.join(missing)}")
    draws = random.Random(f"gate/{seed}")
    sources = [_Stretch.drawn(draws.choice(history.before), history, draws) for _ in range(FORMER_RUNS)]
    today, *later = (_Stretch.drawn(history.now, history, draws) for _ in range(1 + LATER_SESSIONS))
    incident = Change(p50=_INCIDENT - 1)
    bad = set(draws.sample(range(FORMER_RUNS - _BASELINE_RUNS, FORMER_RUNS), history.incidents))
    kinds = [kind for kind in history.kinds if all(kind in stretch.record.kinds for stretch in (*sources, today))]

    def experiment(number: int) -> Experiment:
        mine, kind = change if number == 0 else Change(), kinds[number % len(kinds)]
        place = number // len(kinds)
        former = [
            stretch.run(place, kind, incident if index in bad else Change(), f"{seed}/{number}/{index}")
            for index, stretch in enumerate(sources)
        ]
        following = [
            stretch.run(place, kind, mine.again, f"{seed}/{number}/later {index}")
            for index, stretch in enumerate(later)
        ]
        return Experiment(f"t{number}", former, today.run(place, kind, mine, f"{seed}/{number}"), following, kind)

    def again(number: int, before: int) -> Numbers:
        mine = change.again if number == 0 else Change()
        place = -(-experiments // len(kinds)) + before // len(kinds)
        return today.run(place, kinds[number % len(kinds)], mine, f"{seed}/{number}/again {before}")

    return Session([experiment(number) for number in range(experiments)], again)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Neighbouring rounds of a record, from one on; after the last comes the first."""

    record: Record
    begin: int
    ops: int

    @classmethod
    def drawn(cls, load: str, history: History, draws: random.Random) -> _Stretch:
        record = read_record(load)
        assert record is not None
        return cls(record, draws.randrange(len(record.rounds)), history.ops)

    def run(self, place: int, kind: str, change: Change, seed: str) -> Numbers:
        numbers = self.record.rounds[(self.begin + place) % len(self.record.rounds)][kind]
        if self.ops:
            numbers = _with_failures(numbers, self.ops, change.failed, random.Random(f"failures/{seed}"))
        return changed(numbers, change)


def _with_failures(numbers: Numbers, ops: int, more: float, draws: random.Random) -> Numbers:
    """Returns a run's numbers with the failures of so many operations."""
    share = numbers["failed"] / numbers["ops"] + more
    count = sum(draws.random() < share for _ in range(ops))
    counted = dict(numbers) | {"failed": count, "failed_rate": count / ops, "ops": ops, "files": ops}
    counted |= {"lost": count, "loss_rate": count / ops}
    for rate in ("throttled", "corrupt"):
        counted |= {rate: 0, f"{rate}_rate": 0.0}
    return counted | {"silently_lost": 0, "silent_loss_rate": 0.0}


def changed(numbers: Numbers, change: Change) -> Numbers:
    """Returns a run's numbers with a change made to them, but for failures, which are drawn."""
    if change == Change():
        return numbers
    made: dict[str, Any] = dict(numbers)
    for name in _TIMES:
        if name in made:
            made[name] *= 1 + change.p50 + (change.p99 if name.endswith("p99") else 0.0)
    made |= unstarved(numbers, change.p50)
    if SAMPLE in made:
        slow = sorted(made[SAMPLE])[-max(1, len(made[SAMPLE]) // 50)] if made[SAMPLE] else 0
        made[SAMPLE] = [us * (1 + change.p50 + (change.p99 if us >= slow else 0.0)) for us in made[SAMPLE]]
    for name in ("requests_per_op", "requests_usual"):
        if name in made:
            made[name] += change.requests
    if "wire_bytes_per_op" in made:
        made["wire_bytes_per_op"] += change.wire_bytes
    if change.lost:
        lost, silent = made["lost"] + change.lost, made["silently_lost"] + change.lost
        made |= {"lost": lost, "loss_rate": lost / made["files"]}
        made |= {"silently_lost": silent, "silent_loss_rate": silent / made["files"]}
    if change.corrupt:
        made["corrupt"] += change.corrupt
        made["corrupt_rate"] = made["corrupt"] / made["ops"]
    return made


# --- simulated ---


def simulated_session(noise: Noise, change: Change, seed: object, experiments: int = EXPERIMENTS) -> Session:
    """Returns one simulated session: times and failures."""
    shared = [_disturbance(noise, random.Random(f"{seed}/{number}")) for number in range(experiments)]

    def run(number: int, name: str, mine: Change, *, is_today: bool = False) -> Numbers:
        common = sqrt(noise.shared) * shared[number] if is_today else None
        return simulated_run(noise, mine if number == 0 else Change(), random.Random(f"{seed}/{number}/{name}"), common)

    made = [
        Experiment(
            f"t{number}",
            [run(number, f"former {index}", Change()) for index in range(FORMER_RUNS)],
            run(number, "now", change, is_today=True),
            [run(number, f"later {index}", change.again) for index in range(LATER_SESSIONS)],
        )
        for number in range(experiments)
    ]
    return Session(made, lambda number, before: run(number, f"again {before}", change.again, is_today=True))


def simulated_run(noise: Noise, change: Change, draws: random.Random, common: float | None = None) -> Numbers:
    """Returns the numbers of one run.

    Args:
        noise: how runs differ.
        change: what is different in it.
        draws: of its chances.
        common: what a run and its repetitions share of their disturbance; None if nothing.
    """
    numbers: dict[str, Any] = {"quiet_ops": noise.ops, "ops": noise.ops}
    for name, share in (("quiet_p50", 0.5), ("quiet_p99", 0.99)):
        rank = max(1, round(share * noise.ops))
        quantile = _NORMAL.inv_cdf(draws.betavariate(rank, noise.ops - rank + 1))
        own = _disturbance(noise, draws)
        own = own if common is None else common + sqrt(1 - noise.shared) * own
        numbers[name] = 0.1 * exp(noise.sigma * quantile + own)
    count = sum(draws.random() < change.failed for _ in range(noise.ops)) if change.failed else 0
    return changed(numbers | {"failed": count, "failed_rate": count / noise.ops}, change)


def _disturbance(noise: Noise, draws: random.Random) -> float:
    if not noise.freedom:
        return draws.gauss(0, noise.spread)
    chi2 = draws.gammavariate(noise.freedom / 2, 2)
    return draws.gauss(0, noise.spread) / sqrt(chi2 / noise.freedom) / sqrt(noise.freedom / (noise.freedom - 2))
