"""The gate's rule until 2026-11-25, reduced to its differences, for comparison with its successor.

Student's t on mean and standard deviation of the runs since the last change in either direction. A suspect counts as
the median of three repetitions. What is broken must also be further from its baseline than 99.5 % of the session's
baseline runs are from the others in theirs. Lost and corrupt files are rates. In closed loops it did not know of waits
for a CPU, so there its times are those of all operations. On the open loops of the first records it was red in the same
metrics as the rule itself in 150 of 150 sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import ceil, floor, inf, isfinite, log, log1p, sqrt
from statistics import fmean, median

from benchmarks.gate_sessions import Answered, Experiment, Session
from pytest_cloudbench.judge.changepoints import find_changes
from pytest_cloudbench.judge.gate import AGAIN, ALPHA, FEWEST_RUNS, MOST_RUNS, Answer, holm
from pytest_cloudbench.judge.significance import Z90, hypergeometric_sf, t_isf, t_sf, wilson
from pytest_cloudbench.judge.stats import percentile
from pytest_cloudbench.judge.watched import FOLLOWED_ONLY, TIMES_DOUBTED, Numbers

__all__ = ["former_gate"]

_SUSPECT, _SUSPECT_RATE = 0.05, 0.10
_LEAST_SPREAD, _LEAST_POINTS = 0.005, 0.005
_USUAL_SHARE = 0.995
_MOST_DISPERSED = 3.0
_MARGINS = {"quiet_p50": 0.10, "quiet_p99": 0.25, "cpu_per_op": 0.25}
_MARGIN_RATE = 0.01
_COUNTS = {"failed_rate": ("failed", "ops"), "throttled_rate": ("throttled", "ops"),
           "corrupt_rate": ("corrupt", "ops"), "loss_rate": ("lost", "files")}  # fmt: skip
_EXACT = ("requests_per_op", "payload_bytes_per_op", "wire_bytes_per_op")

_Count = tuple[int, int]


def former_gate(session: Session) -> list[Answered]:
    """Judge a session as the gate did then."""
    checks: list[_Check] = []
    answers: list[Answered] = []
    measured = 0
    for number, experiment in enumerate(session.experiments):
        mine = [check for check in _checks_of(experiment) if check.is_possible]
        checks += mine
        judged = {check.metric for check in mine}
        answers += [Answered(experiment.name, metric, "inconclusive", metric != "cpu_per_op")
                    for metric in _MARGINS if metric in experiment.now and metric not in judged]  # fmt: skip
        if any(check.is_suspect for check in mine):
            again = [session.again(number, measured + index) for index in range(AGAIN)]
            measured += AGAIN
            for check in mine:
                check.again = again if check.is_suspect else []
    tests = [check for check in checks if check.is_test]
    rejected = holm([check.p_value for check in tests], ALPHA, max(1, len(tests)))
    significant = {id(check) for check, is_rejected in zip(tests, rejected, strict=True) if is_rejected}
    distances = sorted(t for check in checks for t in check.leave_one_out()) if significant else []
    usual = percentile(distances, _USUAL_SHARE) if distances else 0.0
    return answers + [
        Answered(check.experiment.name, check.metric, check.answer(id(check) in significant, usual),
                 check.metric != "cpu_per_op")
        for check in checks
    ]  # fmt: skip


def _checks_of(experiment: Experiment) -> list[_Check]:
    former = [run for run in experiment.former if not run.get(FOLLOWED_ONLY)]
    checks: list[_Check] = [_Level(experiment, former, metric) for metric in _MARGINS if metric in experiment.now]
    checks += [_Rate(experiment, former, metric) for metric, names in _COUNTS.items()
               if all(name in experiment.now for name in names)]  # fmt: skip
    return checks + [_Exact(experiment, former, metric) for metric in _EXACT if metric in experiment.now]


@dataclass(eq=False)
class _Check:
    """One metric of one experiment. ``again`` has the repetitions of a suspect."""

    experiment: Experiment
    former: Sequence[Numbers]
    metric: str
    again: Sequence[Numbers] = field(default_factory=list)

    is_test = False

    @property
    def is_possible(self) -> bool:
        raise NotImplementedError

    @property
    def is_suspect(self) -> bool:
        raise NotImplementedError

    @property
    def p_value(self) -> float:
        return 1.0

    def leave_one_out(self) -> list[float]:
        return []

    def answer(self, is_significant: bool, usual: float) -> Answer:
        raise NotImplementedError


@dataclass(eq=False)
class _Level(_Check):
    """A time, on a logarithmic scale."""

    is_test = True

    def _value(self, run: Numbers) -> float:
        """Return the logarithm of a run's number, infinite if there is none."""
        name = self.metric if self.experiment.kind == "open" else self.metric.replace("quiet", "service")
        value, unit = run.get(name), run.get("reference_cpu_s") if self.metric == "cpu_per_op" else 1.0
        return log(value / unit) if value and unit else inf

    @cached_property
    def logs(self) -> list[float]:
        values = [value for run in self.former if not run.get(TIMES_DOUBTED) and isfinite(value := self._value(run))]
        looked_at = values[-3 * MOST_RUNS :]
        changes = find_changes(looked_at)
        return looked_at[changes[-1].first if changes else 0 :][-MOST_RUNS:]

    @cached_property
    def now(self) -> float:
        return self._value(self.experiment.now)

    @property
    def judged(self) -> float:
        return median(map(self._value, self.again)) if self.again else self.now

    @property
    def is_possible(self) -> bool:
        is_doubted = bool(self.experiment.now.get(TIMES_DOUBTED))
        return not is_doubted and isfinite(self.now) and len(self.logs) >= FEWEST_RUNS

    @cached_property
    def is_suspect(self) -> bool:
        return self.now > self._mean and self._p_value(self.now) < _SUSPECT

    @cached_property
    def _mean(self) -> float:
        return fmean(self.logs)

    @cached_property
    def _scale(self) -> float:
        return _spread(self.logs) * sqrt(1 + 1 / len(self.logs))

    def _p_value(self, value: float) -> float:
        return t_sf((value - self._mean) / self._scale, len(self.logs) - 1) if isfinite(value) else 0.0

    @property
    def p_value(self) -> float:
        return self._p_value(self.judged) if self.again else 1.0

    def leave_one_out(self) -> list[float]:
        """Return the t of each run of the baseline against the others."""
        distances = []
        for index, value in enumerate(self.logs):
            others = self.logs[:index] + self.logs[index + 1 :]
            distances.append((value - fmean(others)) / _spread(others) / sqrt(1 + 1 / len(others)))
        return distances

    def answer(self, is_significant: bool, usual: float) -> Answer:
        margin, change = log1p(_MARGINS[self.metric]), self.judged - self._mean
        is_large = self.judged - median(self.logs) >= margin / 2
        if is_significant and is_large and change / self._scale > usual:
            return "broken"
        return "met" if change + _t_isf(0.05, len(self.logs) - 1) * self._scale < margin else "inconclusive"


@dataclass(eq=False)
class _Rate(_Check):
    """Counts by Fisher's exact test, made smaller where runs differ more than independent operations would."""

    def _count(self, run: Numbers) -> _Count:
        count, of = _COUNTS[self.metric]
        return round(run[count]), round(run[of])

    @cached_property
    def _counts(self) -> list[_Count]:
        names = _COUNTS[self.metric]
        usable = [run for run in self.former if all(run.get(name) is not None for name in names)]
        return [self._count(run) for run in usable[-MOST_RUNS:]]

    @cached_property
    def _usual(self) -> _Count:
        return _pool(self._counts)

    @cached_property
    def _dispersion(self) -> float:
        share = self._usual[0] / self._usual[1]
        if not 0 < share < 1:
            return 1.0
        chi2 = sum((count - of * share) ** 2 / (of * share * (1 - share)) for count, of in self._counts)
        return max(1.0, chi2 / (len(self._counts) - 1))

    def _change(self, counts: Sequence[_Count]) -> float:
        count, of = _pool(counts)
        return count / of - self._usual[0] / self._usual[1]

    def _p_value(self, counts: Sequence[_Count]) -> float:
        count, of = _pool(counts)
        hits, draws = floor(count / self._dispersion), ceil(of / self._dispersion)
        usual_hits, usual_draws = (ceil(number / self._dispersion) for number in self._usual)
        return hypergeometric_sf(hits, draws, hits + usual_hits, draws + usual_draws)

    @cached_property
    def now(self) -> _Count:
        return self._count(self.experiment.now)

    @property
    def is_possible(self) -> bool:
        return len(self._counts) >= FEWEST_RUNS and self.now[1] > 0

    @property
    def is_test(self) -> bool:  # type: ignore[override]  # of counts it depends on what was seen
        return bool(self._usual[0] or self.now[0])

    @cached_property
    def is_suspect(self) -> bool:
        return self._change([self.now]) > 0 and self._p_value([self.now]) < _SUSPECT_RATE

    @property
    def p_value(self) -> float:
        again = [self._count(run) for run in self.again]
        return self._p_value([self.now, *again]) if again and self._p_value(again) < ALPHA else 1.0

    def answer(self, is_significant: bool, usual: float) -> Answer:
        again = [self._count(run) for run in self.again]
        if self._dispersion > _MOST_DISPERSED:
            return "inconclusive"
        if is_significant and self._change([self.now, *again]) >= _LEAST_POINTS:
            return "broken"
        return "met" if self._upper(again or [self.now]) < _MARGIN_RATE else "inconclusive"

    def _upper(self, counts: Sequence[_Count]) -> float:
        """Return Newcombe's one-sided 95 % bound of the change."""
        (count, of), (theirs, of_theirs) = _pool(counts), self._usual
        share, usual = count / of, theirs / of_theirs
        _, high = wilson(share, of / self._dispersion, Z90)
        low, _ = wilson(usual, of_theirs / self._dispersion, Z90)
        return share - usual + sqrt((high - share) ** 2 + (usual - low) ** 2)


@dataclass(eq=False)
class _Exact(_Check):
    """A number that never varied."""

    @cached_property
    def _values(self) -> list[float]:
        return [run[self.metric] for run in self.former if run.get(self.metric) is not None][-MOST_RUNS:]

    @property
    def is_possible(self) -> bool:
        return len(self._values) >= FEWEST_RUNS and max(self._values) - min(self._values) <= 1e-9 * max(self._values)

    def _exceeds(self, value: float) -> bool:
        return value > self._values[-1] * (1 + _LEAST_SPREAD)

    @property
    def is_suspect(self) -> bool:
        return self._exceeds(self.experiment.now[self.metric])

    def answer(self, is_significant: bool, usual: float) -> Answer:
        values = [run[self.metric] for run in self.again or [self.experiment.now]]
        return "broken" if self._exceeds(median(values)) else "met"


def _spread(values: Sequence[float]) -> float:
    middle = fmean(values)
    return max(sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1)), _LEAST_SPREAD)


def _pool(counts: Sequence[_Count]) -> _Count:
    return sum(count for count, _ in counts), sum(of for _, of in counts)


_t_isf = lru_cache(maxsize=64)(t_isf)
