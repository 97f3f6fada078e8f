"""Rules that decide whether a session got worse: the gate's own, its former one, and others.

All use the same numbers of the same sessions (``gate_sessions``). Otava is the package ``apache-otava`` where that is
installed, which needs an environment of its own; otherwise this project's own E-divisive takes its place under a name
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from math import sqrt
from statistics import fmean

from benchmarks.gate_former import former_gate
from benchmarks.gate_recorded import SAMPLE
from benchmarks.gate_sessions import Answered, Experiment, Session
from pytest_cloudbench.judge.changepoints import find_changes
from pytest_cloudbench.judge.checks import Check
from pytest_cloudbench.judge.gate import AGAIN, is_suspect, judge, needs_again, suspicion
from pytest_cloudbench.judge.significance import normal_sf
from pytest_cloudbench.judge.watched import TIMES_DOUBTED, FormerNumbers, Numbers, checks_of

__all__ = ["OPERATIONS", "RULES", "Rule", "change_points", "gate", "last_run", "mann_whitney", "slower_p_value"]

OPERATIONS = "operations"
"""The metric of a rule that compares operations, and not one number of each run."""


Rule = Callable[[Session], list[Answered]]

_WATCHED = (
    "quiet_p50", "quiet_p99", "failed_rate", "loss_rate", "silent_loss_rate", "corrupt_rate", "throttled_rate",
    "requests_per_op", "payload_bytes_per_op", "wire_bytes_per_op",
)  # fmt: skip
"""The metrics that the simple rules compare. CPU time and the share of quiet operations would add false alarms."""


# --- the gate's own rule ---


def _checks(experiment: Experiment, former: FormerNumbers, again: Sequence[Numbers]) -> list[Check]:
    why = "doubts about times" if experiment.now.get(TIMES_DOUBTED) else ""
    return checks_of(experiment.name, experiment.now, (), former, {}, again, why_times=why)


def gate(session: Session) -> list[Answered]:
    """Judge by the product's rule.

    Suspects are measured again as in ``load.gate.session``, for half the session's own time at most.
    """
    experiments = session.experiments
    former = [FormerNumbers(experiment.former) for experiment in experiments]
    again: list[list[Numbers]] = [[] for _ in experiments]
    checks = [_checks(*arguments) for arguments in zip(experiments, former, again, strict=True)]
    suspects = [number for number, those in enumerate(checks) if any(map(is_suspect, those))]
    ranked = sorted(suspects, key=lambda number: min(map(suspicion, filter(is_suspect, checks[number]))))
    budget, spent = len(experiments) // 2, 0
    sure = max(1, budget // AGAIN)
    for number in ranked[:sure] * AGAIN + [number for number in ranked[sure:] for _ in range(AGAIN)]:
        if not any(map(needs_again, checks[number])) or (number != ranked[0] and spent >= budget):
            continue
        again[number].append(session.again(number, spent))
        spent += 1
        checks[number] = _checks(experiments[number], former[number], again[number])
    rulings = judge([check for those in checks for check in those])
    return [
        Answered(ruling.check.experiment, ruling.check.metric, ruling.answer, ruling.check.decides,
                 ruling.is_quarantined, ruling.course is not None)
        for ruling in rulings
    ]  # fmt: skip


# --- other rules in use ---


def last_run(session: Session, ratio: float, *, both_ways: bool = False) -> list[Answered]:
    """Call a metric broken if it is larger than in the run before by more than a ratio.

    With ``both_ways``, a smaller one is broken, too.
    """

    def answer(experiment: Experiment, metric: str) -> Answered:
        before, now = experiment.former[-1][metric], experiment.now[metric]
        is_worse = now > before * ratio or (both_ways and now < before * (2 - ratio))
        return Answered(experiment.name, metric, "broken" if is_worse else "met")

    return [
        answer(experiment, metric)
        for experiment in session.experiments
        for metric in _WATCHED
        if experiment.now.get(metric) is not None and experiment.former[-1].get(metric) is not None
    ]


def mann_whitney(session: Session, alpha: float = 0.01) -> list[Answered]:
    """Call an experiment broken if its operations are slower than in the run before, as if all were independent."""
    return [
        Answered(experiment.name, OPERATIONS, "broken" if p_value < alpha else "met")
        for experiment in session.experiments
        if (before := experiment.former[-1].get(SAMPLE)) and (now := experiment.now.get(SAMPLE))
        for p_value in [slower_p_value(now, before)]
    ]


def slower_p_value(now: Sequence[float], before: Sequence[float]) -> float:
    """Return the one-sided probability by Mann and Whitney's U, from its normal distribution with ties."""
    both = sorted([(value, True) for value in now] + [(value, False) for value in before])
    ranks, ties, first = 0.0, 0.0, 0
    while first < len(both):
        last = first
        while last < len(both) and both[last][0] == both[first][0]:
            last += 1
        count = last - first
        ranks += sum(is_now for _, is_now in both[first:last]) * (first + last + 1) / 2
        ties += count**3 - count
        first = last
    m, n, total = len(now), len(before), len(both)
    variance = m * n / 12 * (total + 1 - ties / (total * (total - 1)))
    return normal_sf((ranks - m * (total + 1) / 2 - 0.5) / sqrt(variance)) if variance else 1.0


_NEWEST = 10
"""A change point is news if it is among the last so many runs."""


def change_points(session: Session, find: Callable[[Sequence[float]], list[int]]) -> list[Answered]:
    """Call a metric broken if it has lastingly changed for the worse, as seen after some more sessions."""
    answers = []
    for experiment in session.experiments:
        runs = [*experiment.former, experiment.now, *experiment.later]
        for metric in _WATCHED:
            values = [run[metric] for run in runs if run.get(metric) is not None]
            if len(values) < len(runs):
                continue
            news = [index for index in find(values) if index >= len(values) - _NEWEST] if len(set(values)) > 1 else []
            is_worse = any(fmean(values[index:]) > fmean(values[:index]) for index in news)
            answers.append(Answered(experiment.name, metric, "broken" if is_worse else "met"))
    return answers


def _otava(values: Sequence[float]) -> list[int]:
    """Return the change points that Otava sees with its default settings."""
    from otava.analysis import compute_change_points  # type: ignore[import-not-found]  # in an environment of its own

    points, _ = compute_change_points(list(values), window_len=50, max_pvalue=0.001, min_magnitude=0.0)
    return [point.index for point in points]


def _own_changes(values: Sequence[float]) -> list[int]:
    return [change.first for change in find_changes(values)]


_OTAVA: tuple[str, Callable[[Sequence[float]], list[int]]] = ("E-divisive of this project, 4 runs after", _own_changes)
if find_spec("otava"):
    _OTAVA = ("Otava, 4 runs after", _otava)

RULES: Mapping[str, Rule] = {
    "this gate": gate,
    "its former rule": former_gate,
    "last run ±10 %": partial(last_run, ratio=1.1, both_ways=True),
    "Mann-Whitney on operations, 1 %": mann_whitney,
    "github-action-benchmark, 200 %": partial(last_run, ratio=2.0),
    "github-action-benchmark, 110 %": partial(last_run, ratio=1.1),
    _OTAVA[0]: partial(change_points, find=_OTAVA[1]),
}
"""All rules by name, the gate's own first."""
