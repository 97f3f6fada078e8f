"""The regression gate: judges a run against former runs as met, broken or inconclusive, with a known false-alarm rate.

docs/method/gate.md states the rule. The unit is a run, never an operation, because operations of one run share its
disturbances. Facts and likelihoods are judged differently. A fact has happened: a file that was lost silently is lost,
whatever later runs show. What is only likely must come again: a run that looks slower than its baseline is a suspect,
and is measured again later, up to three times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf, log, log1p, sqrt
from statistics import fmean, median
from typing import Literal

from pytest_cloudbench.judge.checks import Check, Kind, Reading
from pytest_cloudbench.judge.drift import DriftState
from pytest_cloudbench.judge.noise import LEAST_SPREAD, MAX_EXPLAINED, Noise, allowance, share_of_log, t_quantile
from pytest_cloudbench.judge.rates import LEAST_POINTS, BaselineRates, operations_needed

Answer = Literal["met", "broken", "inconclusive"]

ALPHA = 0.01
"""The probability of one or more false alarms in a session if nothing has changed."""
MOST_RUNS, FEWEST_RUNS = 20, 10
AGAIN = 3
"""The most times that a suspect is measured again."""
_YES_RUNS = 3
_SUSPECT, _SUSPECT_RATE = 0.01, 0.10
_CONFIDENCE = 0.05
_MAX_OPS = 10_000_000
"""The most operations in a run that make useful advice."""
_MAX_DISPERSION = 3.0
_NO_VALUE = "this run has no value"
_POWER_Z = 1.2815515655446004  # 90 % of the normal distribution lies below


@dataclass(frozen=True, slots=True)
class Ruling:
    """The answer on one check, with its reasons.

    Attributes:
        check: the check that was judged.
        answer: met, broken or inconclusive.
        change: how much worse the run is than the baseline (a share, for a rate an amount). None if unknown.
        low, high: the 95 % interval of the change.
        detects: the smallest change that would have been seen in 9 of 10 cases, in the same unit.
        why: why it is inconclusive, or another remark.
        value: for an exact number or a capability, the judged value: of this run, or of its repetitions.
        first: how much worse this run was, if its repetitions were not. Otherwise None.
        is_quarantined: whether this run was an outlier that did not come again, and is no baseline for later ones.
        left_out: runs of the baseline that lie too far from the others to count, each with its change.
        course: the state of the runs since the last accepted state, if that is a regression.
        is_significant: whether this run, with its repetitions, is alone enough to call it broken.
    """

    check: Check
    answer: Answer
    change: float | None = None
    low: float | None = None
    high: float | None = None
    detects: float | None = None
    why: str = ""
    value: float | None = None
    first: float | None = None
    is_quarantined: bool = False
    left_out: tuple[tuple[str, float], ...] = ()
    course: DriftState | None = None
    is_significant: bool = False


def holm(p_values: Sequence[float], alpha: float, tests: int) -> list[bool]:
    """Return which hypotheses to reject by Holm's step-down procedure (1979), with a family-wise error of ``alpha``.

    Args:
        p_values: those of some of the tests. The others are known to be above all of these.
        alpha: probability of one or more false rejections.
        tests: the number of all tests, at least as many as ``p_values``.
    """
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] * (tests - rank) > alpha:
            break
        rejected[index] = True
    return rejected


def fewest_runs(kind: Kind) -> int:
    """Return the fewest runs of a baseline with which a metric is judged."""
    return _YES_RUNS if kind == "yes" else FEWEST_RUNS


def is_suspect(check: Check) -> bool:
    """Return whether this run looks worse than it should, so that it should be measured again."""
    if check.kind == "fact":  # whatever is doubted, it has happened
        return _has_happened(check, check.now)
    if check.why or check.now.value is None or _too_few(check):
        return False
    if check.kind == "level":
        level = _level_of(check)
        return level is not None and (level.is_bad(check.now) or _is_adrift(check))
    if check.kind == "rate":
        return _is_rate_bad(_rates_of(check), check.now) or _is_adrift(check)
    if check.kind == "exact":
        return _exceeds(check, check.now.value) or _is_adrift(check)
    return _was_always_good(check) and check.now.value == 1 - check.higher


def needs_again(check: Check) -> bool:
    """Return whether a suspect must be measured again, after the repetitions that it already has.

    A level is cleared by the first repetition that is not bad. Counts are judged together, and need all repetitions.
    """
    if not is_suspect(check):
        return False
    again = _with_values(check.again)
    if check.kind == "level" and (level := _level_of(check)) and not all(map(level.is_bad, again)):
        return _is_adrift(check) and len(again) < AGAIN
    return len(again) < AGAIN


def suspicion(check: Check) -> float:
    """Return the probability of a suspect if nothing has changed. The smaller it is, the sooner it is measured again.

    It is 1 for a metric that is broken already, where repetitions only show how often it comes again.
    """
    if check.kind == "level" and (level := _level_of(check)):
        return level.noise.p_value(level.log_without_waits(check.now))
    if check.kind == "rate":
        return _rates_of(check).p_value([_count_of(check.now)])
    return 1.0 if check.kind in ("fact", "exact") else 0.0


def is_test(check: Check) -> bool:
    """Return whether a check can be significant, so that it has a part in the session's probability of a false alarm.

    A rate without events in any run cannot: its probability is always 1 (Tarone, 1990).
    """
    if check.why or check.kind not in ("level", "rate"):
        return False
    return check.kind == "level" or any(reading.count for reading in (check.now, *check.baseline))


def judge(checks: Sequence[Check], tests: int | None = None) -> list[Ruling]:
    """Judge all checks of a session. A suspect that was not measured again often enough is inconclusive.

    Args:
        checks: all checks, because what is called broken depends on how many of them are tests (``is_test``).
        tests: the number of tests, if it is known to be larger.
    """
    return _rulings(checks, checks, tests)


def backtest(checks: Sequence[Check]) -> tuple[int, list[Ruling]]:
    """Return how many checks of a session are suspects, and what is broken if their repetitions were just like them.

    The result is that of ``judge``, but takes much less time, because only a suspect can be broken.
    """
    suspects = [replace(check, again=(check.now,) * AGAIN) for check in checks if is_suspect(check)]
    rulings = _rulings(suspects, checks) if suspects else []
    broken = [ruling for ruling in rulings if ruling.answer == "broken"]
    came_again = _describe_repeats(AGAIN, AGAIN)
    return len(suspects), [
        replace(ruling, why="assumed to come again") if ruling.why == came_again else ruling for ruling in broken
    ]


def _rulings(selected: Sequence[Check], checks: Sequence[Check], tests: int | None = None) -> list[Ruling]:
    """Return the rulings on some checks of a session. ``checks`` are all checks of the session."""
    tests = max(1, tests or 0, sum(map(is_test, checks)))
    ranked = [(check, _p_value(check)) for check in selected if check.kind in ("level", "rate") and is_suspect(check)]
    rejected = holm([p_value for _, p_value in ranked], ALPHA, tests)
    significant = {id(check) for (check, _), is_rejected in zip(ranked, rejected, strict=True) if is_rejected}
    return [_ruling(check, tests, id(check) in significant) for check in selected]


def answer_of(rulings: Sequence[Ruling]) -> Answer | None:
    """Return the answer on an experiment. Any metric can break it, a deciding one can make it inconclusive."""
    if any(ruling.answer == "broken" for ruling in rulings):
        return "broken"
    deciding = [ruling for ruling in rulings if ruling.check.decides]
    if any(ruling.answer == "inconclusive" for ruling in deciding):
        return "inconclusive"
    return "met" if deciding else None


def detectable(check: Check, tests: int) -> float | None:
    """Return the smallest change that is seen in 9 of 10 cases. None if it is unknown."""
    if check.kind == "level" and (level := _level_of(check)):
        return level.detects(tests)
    if check.kind == "rate" and check.now.of and check.baseline:
        return _detected_rise(_rates_of(check), check.now.of, tests)
    return None


@lru_cache(maxsize=256)  # a session needs it again when its last suspect is judged
def _detected_rise(rates: BaselineRates, ops: int, tests: int) -> float | None:
    return rates.detects((1 + AGAIN) * ops, ALPHA / tests)


_cached_operations_needed = lru_cache(maxsize=256)(operations_needed)


def operations_for(check: Check, tests: int, runs: int = 15) -> int | None:
    """Return how many operations in each run would show a change of the margin in 9 of 10 cases.

    The variance between runs has a part that more operations reduce, known from the sampling error of this run, and a
    part that they do not reduce. None if no number is enough, or the parts are unknown.
    """
    runs = max(runs, len(check.baseline))
    if check.kind == "rate":
        return _cached_operations_needed(_rates_of(check), check.now.of, runs, check.margin, ALPHA / tests, 1 + AGAIN)
    level, now = _level_of(check), check.now
    if level is None or not now.error or not now.ops:
        return None
    imagined = Noise(tuple(range(runs)))  # only for its degrees of freedom
    max_spread = log1p(check.margin) / (t_quantile(ALPHA / tests, imagined.freedom) + _POWER_Z) / sqrt(1 + 1 / runs)
    fixed_variance = max(0.0, level.noise.spread**2 - now.error**2)
    sampling_variance = max_spread**2 - fixed_variance
    if sampling_variance <= 0 or max_spread <= LEAST_SPREAD:
        return None
    return ceil(now.ops * now.error**2 / sampling_variance)


# --- rulings on one check ---


def _ruling(check: Check, tests: int, is_significant: bool) -> Ruling:
    """Judge a metric by its kind, unless something is missing for that."""
    if check.kind == "fact":
        return _fact_ruling(check)
    if why := check.why or _too_few(check):
        return Ruling(check, "inconclusive", why=why)
    if check.now.value is None:
        return Ruling(check, "inconclusive", why="" if check.kind == "yes" else _NO_VALUE)
    if check.kind == "rate":
        return _rate_ruling(check, tests, is_significant)
    if check.kind == "exact":
        return _exact_ruling(check)
    again = _with_values(check.again)
    if needs_again(check):
        return Ruling(
            replace(check, decides=True), "inconclusive", change=_change_of(check),
            why=f"a suspect, measured again {len(again)} of {AGAIN} times",
        )  # fmt: skip
    if check.kind == "yes":
        chosen = again if is_suspect(check) else [check.now]
        return _capability_ruling(check, median(reading.value or 0.0 for reading in chosen))
    return _level_ruling(check, tests, is_significant)


def _level_ruling(check: Check, tests: int, is_significant: bool) -> Ruling:
    """Judge a number above zero against the noise of its baseline."""
    level = _level_of(check)
    if level is None:
        return Ruling(check, "inconclusive", why="a run of the baseline had no number above zero")
    noise, again = level.noise, _with_values(check.again)
    # The best repetition counts: a disturbance may last for several of them, a regression is in each. But repetitions
    # that only another metric needed say nothing about this run.
    judged = min(again, key=level.log_without_waits) if again and is_suspect(check) else check.now
    value, raw = level.log_without_waits(judged), level.log(judged.value)
    half = noise.reach(_CONFIDENCE / 2)
    ruling = Ruling(
        check, "inconclusive", share_of_log(raw - noise.middle), share_of_log(raw - noise.middle - half),
        share_of_log(raw - noise.middle + half), level.detects(tests), left_out=level.left_out(),
    )  # fmt: skip
    if level.is_bad(check.now) and again and not level.is_bad(judged):
        ruling = replace(ruling, first=_change_of(check), is_quarantined=True)
    course = _course_of(check, judged)
    if is_significant and value - noise.middle >= log1p(check.margin) / 2:
        return replace(ruling, answer="broken", course=course, is_significant=True)
    if course is not None:
        return _open_ruling(ruling, course)
    if raw - noise.middle + level.hidden_rise(judged) + noise.reach(_CONFIDENCE) >= log1p(check.margin):
        return replace(ruling, why=_why_not_seen(check, ruling.detects, tests))
    if check.is_before:
        return replace(ruling, why=_too_few_since(check))
    return replace(ruling, answer="met")


def _open_ruling(ruling: Ruling, course: DriftState) -> Ruling:
    """Return the ruling on a metric with an open regression: it is never met."""
    return replace(ruling, answer="broken" if course.is_worse else "inconclusive", course=course)


def _course_of(check: Check, reading: Reading) -> DriftState | None:
    """Return the state of the runs since the last accepted state, if it is an open regression."""
    value = followed_value(check.kind, reading.value, higher=check.higher)
    if check.drift is None or value is None:
        return None
    course = check.drift.preview(value, reading.starved)
    return course if course.is_open else None


def followed_value(kind: Kind, value: float | None, *, higher: bool) -> float | None:
    """Return the number to follow over runs: a rate itself, or the logarithm of any other value. None if there is none.

    Larger is worse.
    """
    if kind == "rate" or value is None:
        return value
    return (-1.0 if higher else 1.0) * log(value) if value > 0 else None


def _is_adrift(check: Check) -> bool:
    """Return whether this run opens a regression, or continues one."""
    return _course_of(check, check.now) is not None


def _rate_ruling(check: Check, tests: int, is_significant: bool) -> Ruling:
    """Judge a rate. Its events count together with those of the repetitions."""
    rates, now = _rates_of(check), _count_of(check.now)
    again = [_count_of(reading) for reading in _with_values(check.again)]
    counts = [now, *again]
    change, (low, high) = rates.change(counts), rates.interval(counts)
    left_out = tuple(
        (check.baseline[index].run, rates.counts[index][0] / rates.counts[index][1] - rates.share)
        for index in sorted(rates.left_out)
    )
    detects = _detected_rise(rates, check.now.of, tests)
    ruling = Ruling(check, "inconclusive", change, low, high, detects, left_out=left_out)
    course = _course_of(check, check.now)
    if rates.dispersion > _MAX_DISPERSION * check.cluster_ops:
        why = f"runs differ {rates.dispersion:.0f} times as much as independent operations would"
        return replace(ruling, why=why) if course is None else _open_ruling(ruling, course)
    came_again = bool(again) and rates.p_value(again) < ALPHA
    if _is_rate_bad(rates, check.now) and again and not came_again:
        ruling = replace(ruling, first=rates.change([now]), is_quarantined=True)
    min_change = min(check.margin / 2, LEAST_POINTS * check.cluster_ops) if came_again else check.margin
    if is_significant and change >= min_change and (came_again or check.decides):
        return replace(ruling, answer="broken", course=course, is_significant=True)
    if course is not None:
        return _open_ruling(ruling, course)
    if needs_again(check):
        why = f"a suspect, measured again {len(again)} of {AGAIN} times"
        return replace(ruling, check=replace(check, decides=True), why=why)
    if rates.upper(again if came_again else counts) >= check.margin:
        return replace(ruling, why=_why_not_seen(check, ruling.detects, tests))
    return replace(ruling, why=_too_few_since(check)) if check.is_before else replace(ruling, answer="met")


def _fact_ruling(check: Check) -> Ruling:
    """Judge a fact, which must not happen even once."""
    again = _with_values(check.again)
    count = sum(_has_happened(check, reading) for reading in again)
    if _has_happened(check, check.now):
        return Ruling(check, "broken", check.now.value, value=check.now.value, why=_describe_repeats(count, len(again)))
    if not count:
        why = check.why or (_NO_VALUE if check.now.value is None else "")
        return Ruling(check, "inconclusive" if why else "met", check.now.value, value=check.now.value, why=why)
    worst = max(again, key=lambda reading: reading.value or 0.0)
    why = f"not in the run, but in {count} of {len(again)} {_repetitions(len(again))}: intermittent"
    return Ruling(replace(check, now=worst), "broken", worst.value, value=worst.value, why=why)


def _exact_ruling(check: Check) -> Ruling:
    """Judge a number that never varied before. If it rose in few operations only, its repetitions count, too."""
    now, again = check.now, _with_values(check.again)
    values = [reading.value or 0.0 for reading in (now, *again)]
    value, change = values[0], _exact_change(check, values[0])
    ruling = Ruling(check, "met", change, change, change, check.tolerance, value=value)
    if not _exceeds(check, value):
        risen = sum(_has_risen_for_most(check, reading) and _exceeds(check, reading.value or 0) for reading in again)
        if risen:
            why = f"not in the run, but in {risen} of {len(again)} {_repetitions(len(again))}: intermittent"
            return replace(ruling, answer="broken", why=why)
        return _exact_ruling_if_not_worse(ruling, now)
    count = sum(_exceeds(check, reading.value or 0.0) for reading in again)
    middle = fmean(values)
    if _has_risen_for_most(check, now) or count or _exceeds(check, middle):
        return replace(ruling, answer="broken", why=_describe_repeats(count, len(again)))
    cleared = replace(ruling, first=change, change=_exact_change(check, middle), is_quarantined=True)
    return _exact_ruling_if_not_worse(cleared, replace(now, value=middle))


def _exact_ruling_if_not_worse(ruling: Ruling, judged: Reading) -> Ruling:
    """Return the ruling on an exact number that is no worse than in its baseline.

    It is not met while a regression is open, nor if the baseline is older than an improvement.
    """
    check = ruling.check
    if course := _course_of(check, judged):
        return _open_ruling(ruling, course)
    return replace(ruling, answer="inconclusive", why=_too_few_since(check)) if check.is_before else ruling


def _exact_change(check: Check, value: float) -> float:
    """Return how much worse an exact number is than in the baseline, as a share of the former number."""
    former = check.baseline[-1].value or 0.0
    rise = former - value if check.higher else value - former
    if not former:
        return rise * inf if rise else 0.0
    return rise / former


def _has_risen_for_most(check: Check, reading: Reading) -> bool:
    """Return whether most operations of a run had more than those of any run of the baseline."""
    usual = [former.usual for former in check.baseline if former.usual is not None]
    return reading.usual is not None and bool(usual) and reading.usual > max(usual) * (1 + check.tolerance)


def _capability_ruling(check: Check, value: float) -> Ruling:
    was_ever_good = any(reading.value == check.higher for reading in check.baseline)
    worse: Answer = "broken" if _was_always_good(check) else "inconclusive"
    return Ruling(check, "met" if value == check.higher or not was_ever_good else worse, value=value)


def _was_always_good(check: Check) -> bool:
    """Return whether all former runs had the better of two answers: yes (1) if higher is better, else no (0)."""
    return all(reading.value == check.higher for reading in check.baseline)


def _describe_repeats(count: int, repetitions: int) -> str:
    """Return in words how often something came again."""
    if not repetitions:
        return "it was not measured again"
    noun = _repetitions(repetitions)
    return f"in {count} of {repetitions} {noun}, too" if count else f"not in {repetitions} {noun}: intermittent"


def _repetitions(count: int) -> str:
    return "repetition" if count == 1 else "repetitions"


def _why_not_seen(check: Check, detects: float | None, tests: int) -> str:
    if detects is None:
        return "too little is known"
    text = f"only changes of {amount_text(check, detects)} or more would be found"
    margin_text, runs = amount_text(check, check.margin), max(15, len(check.baseline))
    ops = operations_for(check, tests)
    if ops is not None and ops <= _MAX_OPS:
        return f"{text}; {_round_up(ops):,} operations and {runs} runs would find {margin_text}"
    if check.now.error or check.kind == "rate":
        return f"{text}; no number of operations would find {margin_text}: the runs themselves differ too much"
    return text


def amount_text(check: Check, share: float) -> str:
    """Return a change as people read it: ``43 %``, ``1 point``, ``1.5 points``."""
    number = f"{share * 100:.2g}" if share < 0.995 else f"{share * 100:,.0f}"
    return f"{number} {'%' if check.kind != 'rate' else 'point' if number == '1' else 'points'}"


def _round_up(count: int) -> int:
    """Round up to two leading digits."""
    unit: int = 10 ** max(0, len(str(count)) - 2)
    return ceil(count / unit) * unit


def _too_few(check: Check) -> str:
    min_runs = fewest_runs(check.kind)
    return f"baseline {len(check.baseline)} of {min_runs}" if len(check.baseline) < min_runs else ""


def _too_few_since(check: Check) -> str:
    """Return why a metric is inconclusive although it is not worse than before an improvement."""
    improved = "" if check.improved is None else f" by {abs(check.improved) * 100:.0f} %"
    return f"it improved{improved} at {check.since}: too few runs since then, and not worse than before"


def _with_values(readings: Sequence[Reading]) -> list[Reading]:
    return [reading for reading in readings if reading.value is not None]


def _exceeds(check: Check, value: float) -> bool:
    former = check.baseline[-1].value or 0.0
    return value < former * (1 - check.tolerance) if check.higher else value > former * (1 + check.tolerance)


def _has_happened(check: Check, reading: Reading) -> bool:
    """Return whether a run has more of a fact than the user, or the accepted state, allows."""
    return (reading.value or 0.0) > check.bound


def _change_of(check: Check) -> float | None:
    """Return how much worse this run is than its baseline."""
    if check.kind == "level" and (level := _level_of(check)) is not None:
        return share_of_log(level.log(check.now.value) - level.noise.middle)
    return _rates_of(check).change([_count_of(check.now)]) if check.kind == "rate" else None


def _p_value(check: Check) -> float:
    """Return the probability of this run and its repetitions if nothing has changed."""
    again = _with_values(check.again)
    if check.kind == "rate":
        return _rates_of(check).p_value([_count_of(check.now), *map(_count_of, again)])
    level = _level_of(check)
    if level is None or len(again) < AGAIN:
        return 1.0
    return level.noise.p_value(min(map(level.log_without_waits, again)))


def _is_rate_bad(rates: BaselineRates, reading: Reading) -> bool:
    """Return whether one run, without its repetitions, has a larger rate than its baseline, and hardly by chance."""
    count = _count_of(reading)
    return rates.change([count]) > 0 and rates.p_value([count]) < _SUSPECT_RATE


def _rates_of(check: Check) -> BaselineRates:
    return BaselineRates(tuple(_count_of(reading) for reading in check.baseline if reading.of), check.cluster_ops)


def _count_of(reading: Reading) -> tuple[int, int]:
    return reading.count, reading.of


# --- levels ---


@dataclass(frozen=True)
class _Level:
    """A metric on a logarithmic scale, on which larger is worse."""

    check: Check
    noise: Noise
    sign: float
    starved: float | None

    def log(self, value: float | None) -> float:
        # Zero, and what is below, is as low as it can be: the best, or the worst where higher is better.
        return inf if value is None else self.sign * (log(value) if value > 0 else -inf)

    def log_without_waits(self, reading: Reading) -> float:
        """Return the logarithm of a value, less what waiting for a CPU explains if there was more than before."""
        value = self.log(reading.value)
        if self.starved is None or reading.starved is None:
            return value
        return value - allowance(reading.starved, self.starved)

    def hidden_rise(self, reading: Reading) -> float:
        """Return how large a rise may be hidden, because threads waited less for a CPU than before."""
        if self.starved is None or reading.starved is None:
            return 0.0
        return -log1p(-min(max(0.0, self.starved - reading.starved), MAX_EXPLAINED))

    def is_bad(self, reading: Reading) -> bool:
        value = self.log_without_waits(reading)
        return value > self.noise.middle and self.noise.p_value(value) < _SUSPECT

    def detects(self, tests: int) -> float:
        reach = self.noise.reach(ALPHA / tests) + _POWER_Z * self.noise.scale
        return share_of_log(max(reach, log1p(self.check.margin) / 2))

    def left_out(self) -> tuple[tuple[str, float], ...]:
        """Return the runs that are left out, and how much worse each was."""
        noise, baseline = self.noise, self.check.baseline
        return tuple(
            (baseline[index].run, share_of_log(noise.values[index] - noise.middle)) for index in sorted(noise.left_out)
        )


@lru_cache(maxsize=4096)  # each ruling needs it several times
def _level_of(check: Check) -> _Level | None:
    """Return the level of a check. None if logarithms cannot be taken."""
    sign = -1.0 if check.higher else 1.0
    values = [reading.value for reading in check.baseline if reading.value is not None]
    if len(values) < 3 or any(value <= 0 for value in values):
        return None
    shares = [reading.starved for reading in check.baseline if reading.starved is not None]
    starved = median(shares) if len(shares) == len(values) else None
    return _Level(check, Noise(tuple(sign * log(value) for value in values)), sign, starved)
