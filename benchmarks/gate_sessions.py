"""Sessions with known truth, drawn from recorded runs or simulated.

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

from benchmarks.gate_recorded import KINDS, SAMPLE, Record, compute_unstarved, read_record
from pytest_cloudbench.judge.gate import Answer
from pytest_cloudbench.judge.watched import Numbers

__all__ = [
    "EXPERIMENTS", "FORMER_RUNS", "LATER_SESSIONS", "Answered", "Change", "Experiment", "History", "Noise", "Session",
    "drawn_session", "missing_loads", "simulated_run", "simulated_session",
]  # fmt: skip

EXPERIMENTS = 20
"""The experiments of a session. The first one has the change."""
FORMER_RUNS = 40
"""The former runs of each experiment. The last 20 are the baseline, and a slow rise is sought in all."""
LATER_SESSIONS = 3
"""The number of later sessions with the same change, for rules that need several runs to notice one."""
_BASELINE_RUNS = 20
_INCIDENT = 3.0
"""All times of a bad run are longer by this factor."""
_NORMAL = NormalDist()
_TIMES = ("quiet_p50", "quiet_p99", "service_p50", "service_p99")


@dataclass(frozen=True, slots=True)
class Change:
    """Today's difference.

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
        """Return the part of it that a repetition shows, too."""
        return Change(self.p50, self.p99, self.failed, self.requests, self.wire_bytes)


@dataclass(frozen=True, slots=True)
class Noise:
    """The differences of simulated runs without a change.

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
    """The experiments that a rule judges.

    Attributes:
        experiments: in the order of measuring.
        again: measures an experiment again. Takes its index and the number of repetitions before.
    """

    experiments: Sequence[Experiment]
    again: Callable[[int, int], Numbers]


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer of a rule for one metric of one experiment.

    Attributes:
        experiment: the experiment's name.
        metric: the metric's name.
        answer: met, broken or inconclusive. Most rules have no third answer.
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
    """The records that a session is drawn from.

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
    """Return the loads without a record of the wanted kinds."""
    loads = dict.fromkeys((*history.before, history.now))
    records = {load: read_record(load) for load in loads}
    return [load for load, record in records.items() if record is None or not set(record.kinds) & set(history.kinds)]


def drawn_session(history: History, change: Change, seed: object, experiments: int = EXPERIMENTS) -> Session:
    """Return one session, drawn from recorded runs. Raises LookupError if a load was not recorded."""
    if missing := missing_loads(history):
        raise LookupError(f"no record of: {', '.join(missing)}")
    draws = random.Random(f"gate/{seed}")
    sources = [_Stretch.draw(draws.choice(history.before), history, draws) for _ in range(FORMER_RUNS)]
    today, *later = (_Stretch.draw(history.now, history, draws) for _ in range(1 + LATER_SESSIONS))
    incident = Change(p50=_INCIDENT - 1)
    bad = set(draws.sample(range(FORMER_RUNS - _BASELINE_RUNS, FORMER_RUNS), history.incidents))
    kinds = [kind for kind in history.kinds if all(kind in stretch.record.kinds for stretch in (*sources, today))]

    def experiment(number: int) -> Experiment:
        mine, kind = change if number == 0 else Change(), kinds[number % len(kinds)]
        position = number // len(kinds)
        former = [
            stretch.run(position, kind, incident if index in bad else Change(), f"{seed}/{number}/{index}")
            for index, stretch in enumerate(sources)
        ]
        following = [
            stretch.run(position, kind, mine.again, f"{seed}/{number}/later {index}")
            for index, stretch in enumerate(later)
        ]
        return Experiment(f"t{number}", former, today.run(position, kind, mine, f"{seed}/{number}"), following, kind)

    def again(number: int, before: int) -> Numbers:
        mine = change.again if number == 0 else Change()
        position = -(-experiments // len(kinds)) + before // len(kinds)
        return today.run(position, kinds[number % len(kinds)], mine, f"{seed}/{number}/again {before}")

    return Session([experiment(number) for number in range(experiments)], again)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Neighbouring rounds of a record, from ``begin`` on. The first round follows the last."""

    record: Record
    begin: int
    ops: int

    @classmethod
    def draw(cls, load: str, history: History, draws: random.Random) -> _Stretch:
        record = read_record(load)
        assert record is not None
        return cls(record, draws.randrange(len(record.rounds)), history.ops)

    def run(self, position: int, kind: str, change: Change, seed: str) -> Numbers:
        numbers = self.record.rounds[(self.begin + position) % len(self.record.rounds)][kind]
        if self.ops:
            numbers = _with_failures(numbers, self.ops, change.failed, random.Random(f"failures/{seed}"))
        return apply_change(numbers, change)


def _with_failures(numbers: Numbers, ops: int, more: float, draws: random.Random) -> Numbers:
    """Return a run's numbers with the failures of so many operations."""
    share = numbers["failed"] / numbers["ops"] + more
    count = sum(draws.random() < share for _ in range(ops))
    counted = dict(numbers) | {"failed": count, "failed_rate": count / ops, "ops": ops, "files": ops}
    counted |= {"lost": count, "loss_rate": count / ops}
    for rate in ("throttled", "corrupt"):
        counted |= {rate: 0, f"{rate}_rate": 0.0}
    return counted | {"silently_lost": 0, "silent_loss_rate": 0.0}


def apply_change(numbers: Numbers, change: Change) -> Numbers:
    """Return a run's numbers with a change result to them, but for failures, which are drawn."""
    if change == Change():
        return numbers
    result: dict[str, Any] = dict(numbers)
    for name in _TIMES:
        if name in result:
            result[name] *= 1 + change.p50 + (change.p99 if name.endswith("p99") else 0.0)
    result |= compute_unstarved(numbers, change.p50)
    if SAMPLE in result:
        slow = sorted(result[SAMPLE])[-max(1, len(result[SAMPLE]) // 50)] if result[SAMPLE] else 0
        result[SAMPLE] = [us * (1 + change.p50 + (change.p99 if us >= slow else 0.0)) for us in result[SAMPLE]]
    for name in ("requests_per_op", "requests_usual"):
        if name in result:
            result[name] += change.requests
    if "wire_bytes_per_op" in result:
        result["wire_bytes_per_op"] += change.wire_bytes
    if change.lost:
        lost, silent = result["lost"] + change.lost, result["silently_lost"] + change.lost
        result |= {"lost": lost, "loss_rate": lost / result["files"]}
        result |= {"silently_lost": silent, "silent_loss_rate": silent / result["files"]}
    if change.corrupt:
        result["corrupt"] += change.corrupt
        result["corrupt_rate"] = result["corrupt"] / result["ops"]
    return result


# --- simulated ---


def simulated_session(noise: Noise, change: Change, seed: object, experiments: int = EXPERIMENTS) -> Session:
    """Return one simulated session: times and failures."""
    shared = [_disturbance(noise, random.Random(f"{seed}/{number}")) for number in range(experiments)]

    def run(number: int, name: str, mine: Change, *, is_today: bool = False) -> Numbers:
        common = sqrt(noise.shared) * shared[number] if is_today else None
        return simulated_run(noise, mine if number == 0 else Change(), random.Random(f"{seed}/{number}/{name}"), common)

    all_experiments = [
        Experiment(
            f"t{number}",
            [run(number, f"former {index}", Change()) for index in range(FORMER_RUNS)],
            run(number, "now", change, is_today=True),
            [run(number, f"later {index}", change.again) for index in range(LATER_SESSIONS)],
        )
        for number in range(experiments)
    ]
    return Session(all_experiments, lambda number, before: run(number, f"again {before}", change.again, is_today=True))


def simulated_run(noise: Noise, change: Change, draws: random.Random, common: float | None = None) -> Numbers:
    """Return the numbers of one run.

    Args:
        noise: the differences of runs.
        change: the difference of this run.
        draws: its random numbers.
        common: the disturbance that a run shares with its repetitions, or None.
    """
    numbers: dict[str, Any] = {"quiet_ops": noise.ops, "ops": noise.ops}
    for name, share in (("quiet_p50", 0.5), ("quiet_p99", 0.99)):
        rank = max(1, round(share * noise.ops))
        quantile = _NORMAL.inv_cdf(draws.betavariate(rank, noise.ops - rank + 1))
        own = _disturbance(noise, draws)
        own = own if common is None else common + sqrt(1 - noise.shared) * own
        numbers[name] = 0.1 * exp(noise.sigma * quantile + own)
    count = sum(draws.random() < change.failed for _ in range(noise.ops)) if change.failed else 0
    return apply_change(numbers | {"failed": count, "failed_rate": count / noise.ops}, change)


def _disturbance(noise: Noise, draws: random.Random) -> float:
    if not noise.freedom:
        return draws.gauss(0, noise.spread)
    chi2 = draws.gammavariate(noise.freedom / 2, 2)
    return draws.gauss(0, noise.spread) / sqrt(chi2 / noise.freedom) / sqrt(noise.freedom / (noise.freedom - 2))
