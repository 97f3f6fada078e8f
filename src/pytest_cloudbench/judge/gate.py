"""The regression gate: runs of before and a run of now into met, broken or inconclusive, with a known false-alarm rate.

What may live here: the rule, as pure functions of numbers (docs/gates.md states it). The unit is a run, never an
operation: operations of one run share its disturbances. A run that looks worse than its baseline is a suspect; it is
measured again, three times, later, and these count as one draw. Only then is anything called broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import ceil, expm1, floor, inf, isfinite, log, log1p, sqrt
from statistics import fmean, median
from typing import Literal

from pytest_cloudbench.judge.significance import Z90, Z95, binomial_sf, hypergeometric_sf, t_isf, t_sf, wilson
from pytest_cloudbench.judge.stats import percentile

__all__ = [
    "AGAIN",
    "ALPHA",
    "FEWEST_RUNS",
    "MOST_RUNS",
    "Answer",
    "Check",
    "Kind",
    "Reading",
    "Ruling",
    "amount_text",
    "answer_of",
    "backtest",
    "detectable",
    "holm",
    "is_suspect",
    "is_test",
    "judge",
    "operations_for",
]

Answer = Literal["met", "broken", "inconclusive"]
Kind = Literal["level", "rate", "exact", "yes"]
"""How a metric is judged: a level by Student's t on logarithms, a rate by counts, an exact number, a capability."""

ALPHA = 0.01
"""Probability of one or more false alarms in a session with nothing changed."""
MOST_RUNS, FEWEST_RUNS = 20, 10
AGAIN = 3
"""How often a suspect is measured again."""
_YES_RUNS = 3
_LOUD, _LOUD_RATE = 0.05, 0.10
_FLOOR = 0.005
_CONFIDENCE = 0.05
_LEAST_POINTS = 0.005
_MOST_DISPERSED = 3.0
_USUAL_SHARE = 0.995
_MOST_OPS = 10_000_000
"""It is no use to advise more operations in a run than this."""
_POWER_Z = 1.2815515655446004  # 90 % of the normal distribution lies below


@dataclass(frozen=True, slots=True)
class Reading:
    """What one run says of one metric.

    Attributes:
        value: the metric, None if it is not known.
        count, of: for a rate, how many operations of how many.
        error: standard error of the value's logarithm by sampling alone, if known.
        ops: operations that the value was computed from.
        run: its name, if that is known.
    """

    value: float | None
    count: int = 0
    of: int = 0
    error: float | None = None
    ops: int = 0
    run: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One metric of one experiment, with its baseline.

    Attributes:
        experiment, metric: what is judged.
        kind: how.
        margin: the smallest change that matters: a share, and for a rate an amount (0.01 is one point).
        baseline: its former runs, the oldest first.
        now: this run.
        again: the runs that measured a suspect again.
        why: why it cannot be judged, or an empty text.
        decides: whether it can make the experiment inconclusive; other checks can only break it.
        higher: whether higher is better.
        clump: for a rate, the most operations that one cause can affect at a time.
        since: the first run after the last lasting change, if earlier ones are not in the baseline for that reason.
    """

    experiment: str
    metric: str
    kind: Kind
    margin: float
    baseline: tuple[Reading, ...]
    now: Reading
    again: tuple[Reading, ...] = ()
    why: str = ""
    decides: bool = True
    higher: bool = False
    clump: int = 1
    since: str = ""


@dataclass(frozen=True, slots=True)
class Ruling:
    """The answer on one check.

    Attributes:
        check: what was judged.
        answer: met, broken or inconclusive.
        change: how much worse now is than the baseline (a share, for a rate an amount); None if unknown.
        low, high: its 95 % interval.
        detects: the smallest change that would have been seen in 9 of 10 cases, in the same measure.
        why: why it is inconclusive, or what else should be said.
        value: of an exact number or a capability, what was judged: this run's, or what measuring it again said.
    """

    check: Check
    answer: Answer
    change: float | None = None
    low: float | None = None
    high: float | None = None
    detects: float | None = None
    why: str = ""
    value: float | None = None


def holm(p_values: Sequence[float], alpha: float, tests: int) -> list[bool]:
    """Holm's step-down procedure (1979): which hypotheses to reject, so that any is false with at most ``alpha``.

    Args:
        p_values: of some of the tests; the others are known to be above all of these.
        alpha: probability of one or more false rejections.
        tests: how many there are in all, at least as many as ``p_values``.
    """
    rejected = [False] * len(p_values)
    for place, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] * (tests - place) > alpha:
            break
        rejected[index] = True
    return rejected


def is_suspect(check: Check) -> bool:
    """Returns whether this run looks worse than its baseline, so that it should be measured again."""
    if check.why or check.now.value is None or _too_few(check):
        return False
    if check.kind == "level":
        level = _level_of(check)
        return level is not None and level.t(level.now) > 0 and level.p_value(level.now) < _LOUD
    if check.kind == "rate":
        rate = _Rate(check)
        return rate.change([check.now]) > 0 and rate.p_value([check.now]) < _LOUD_RATE
    if check.kind == "exact":
        return _exceeds(check, check.now.value)
    return all(each.value == 1 for each in check.baseline) and check.now.value == 0


def is_test(check: Check) -> bool:
    """Returns whether it can be called significant, so that the session's probability of a false alarm is shared by it.

    A rate whose events were never seen in any run cannot: whatever the truth, its probability is 1 (Tarone, 1990).
    """
    if check.why or check.kind not in ("level", "rate"):
        return False
    return check.kind == "level" or any(each.count for each in (check.now, *check.baseline))


def judge(checks: Sequence[Check], tests: int | None = None) -> list[Ruling]:
    """Judge all checks of a session. A suspect that was not measured again three times is inconclusive.

    Args:
        checks: all of them: what is called broken depends on how many of them are tests (``is_test``).
        tests: how many are, if that is known to be more.
    """
    return _rulings(checks, checks, [check for check in checks if is_suspect(check)], tests)


def backtest(checks: Sequence[Check]) -> tuple[int, list[Ruling]]:
    """Returns how many checks of a session are suspects, and what is broken if measuring them again had said the same.

    It is what ``judge`` says, and takes much less time: nothing but a suspect can be broken.
    """
    suspects = [replace(check, again=(check.now,) * AGAIN) for check in checks if is_suspect(check)]
    rulings = _rulings(suspects, checks, suspects) if suspects else []
    return len(suspects), [each for each in rulings if each.answer == "broken"]


def _rulings(
    wanted: Sequence[Check], checks: Sequence[Check], suspects: Sequence[Check], tests: int | None = None
) -> list[Ruling]:
    """Returns the rulings on some checks of a session, of which ``checks`` are all."""
    tests = max(1, tests or 0, sum(map(is_test, checks)))
    again = [check for check in suspects if len(_known(check.again)) >= AGAIN]
    ranked = [(check, _p_again(check)) for check in again if check.kind in ("level", "rate")]
    rejected = holm([p for _, p in ranked], ALPHA, tests)
    significant = {id(check) for (check, _), is_rejected in zip(ranked, rejected, strict=True) if is_rejected}
    loudest = _loudest(checks) if significant else 0.0
    return [_verdict(check, tests, id(check) in significant, loudest) for check in wanted]


def answer_of(verdicts: Sequence[Ruling]) -> Answer | None:
    """The answer on an experiment: broken if one metric is, inconclusive if one that decides is; None without any."""
    if any(each.answer == "broken" for each in verdicts):
        return "broken"
    deciding = [each for each in verdicts if each.check.decides]
    if any(each.answer == "inconclusive" for each in deciding):
        return "inconclusive"
    return "met" if deciding else None


def detectable(check: Check, tests: int) -> float | None:
    """Returns the smallest change that is seen in 9 of 10 cases; None if that cannot be said."""
    if check.kind == "level" and (level := _level_of(check)):
        return level.detects(tests)
    if check.kind == "rate" and check.now.of and check.baseline:
        return _Rate(check).detects(tests)
    return None


def operations_for(check: Check, tests: int, runs: int = 15) -> int | None:
    """Returns how many operations in each run would let a change of the margin be seen in 9 of 10 cases.

    The variance between runs has a part that more operations make smaller, known from the sampling error of this run,
    and a part that they do not. None if no number is enough, or the parts are not known.
    """
    if check.kind == "rate":
        return _rate_operations(check, tests, max(runs, len(check.baseline)))
    level, now = _level_of(check), check.now
    if level is None or not now.error or not now.ops:
        return None
    runs = max(runs, len(check.baseline))
    wanted = log1p(check.margin) / (_critical(tests, runs - 1) + _POWER_Z) / sqrt(1 + 1 / runs)
    fixed = max(0.0, level.spread**2 - now.error**2)
    room = wanted**2 - fixed
    return ceil(now.ops * now.error**2 / room) if room > 0 and wanted > _FLOOR else None


# --- verdicts on one check ---


def _verdict(check: Check, tests: int, is_significant: bool, loudest: float) -> Ruling:
    if why := check.why or _too_few(check):
        return Ruling(check, "inconclusive", why=why)
    if check.now.value is None:
        return Ruling(check, "inconclusive", why="" if check.kind == "yes" else "this run has no value")
    again = _known(check.again)
    suspected = is_suspect(check)
    if suspected and len(again) < AGAIN:
        why = f"a suspect, measured again {len(again)} of {AGAIN} times"
        return Ruling(replace(check, decides=True), "inconclusive", why=why, change=_change(check))
    chosen = again if suspected else [check.now]
    if check.kind == "level":
        return _level_verdict(check, chosen, tests, is_significant, loudest)
    if check.kind == "rate":
        return _rate_verdict(check, chosen, tests, is_significant)
    return _plain_verdict(check, median(each.value for each in chosen if each.value is not None))


def _level_verdict(check: Check, chosen: Sequence[Reading], tests: int, is_significant: bool, loudest: float) -> Ruling:
    level = _level_of(check)
    if level is None:
        return Ruling(check, "inconclusive", why="a run of the baseline had no number above zero")
    x = median(level.log(each.value) for each in chosen if each.value is not None)
    middle, freedom = level.mean, len(level.logs) - 1
    half = _exceeded(_CONFIDENCE / 2, freedom) * level.scale
    found = Ruling(
        check, "inconclusive", expm1(x - middle), expm1(x - middle - half), expm1(x - middle + half),
        level.detects(tests),
    )  # fmt: skip
    is_large = x - median(level.logs) >= log1p(check.margin) / 2
    if is_significant and is_large and level.t(x) > loudest:
        return replace(found, answer="broken")
    if x - middle + _exceeded(_CONFIDENCE, freedom) * level.scale < log1p(check.margin):
        return replace(found, answer="met")
    if is_significant and is_large:
        return replace(found, why="runs in this session's unchanged baselines were as far from the rest of theirs")
    return replace(found, why=_not_seen(check, found.detects, tests))


def _rate_verdict(check: Check, chosen: Sequence[Reading], tests: int, is_significant: bool) -> Ruling:
    rate = _Rate(check)
    change = rate.change(chosen)
    low, high = rate.interval(chosen)
    found = Ruling(check, "inconclusive", change, low, high, rate.detects(tests))
    if rate.dispersion > _MOST_DISPERSED * check.clump:
        why = f"runs differ {rate.dispersion:.0f} times as much as independent operations would"
        return replace(found, why=why)
    if is_significant and rate.change([check.now, *chosen]) >= min(check.margin / 2, _LEAST_POINTS * check.clump):
        return replace(found, answer="broken")
    if rate.upper(chosen) < check.margin:
        return replace(found, answer="met")
    return replace(found, why=_not_seen(check, found.detects, tests))


def _plain_verdict(check: Check, value: float) -> Ruling:
    """An exact number, or a capability."""
    if check.kind == "yes":
        were = {each.value == 1 for each in check.baseline}
        worse: Answer = "broken" if were == {True} else "inconclusive"
        return Ruling(check, "met" if value == 1 or were == {False} else worse, value=value)
    former = check.baseline[-1].value or 0.0
    change = value / former - 1 if former else (inf if value else 0.0)
    answer: Answer = "broken" if _exceeds(check, value) else "met"
    return Ruling(check, answer, change, change, change, _FLOOR, value=value)


def _not_seen(check: Check, detects: float | None, tests: int) -> str:
    if detects is None:
        return "too little is known"
    text = f"only changes of {amount_text(check, detects)} or more would be found"
    wanted, runs = amount_text(check, check.margin), max(15, len(check.baseline))
    ops = operations_for(check, tests)
    if ops is not None and ops <= _MOST_OPS:
        return f"{text}; {_rounded(ops):,} operations and {runs} runs would find {wanted}"
    if check.now.error or check.kind == "rate":
        return f"{text}; no number of operations would find {wanted}: the runs themselves differ too much"
    return text


def amount_text(check: Check, share: float) -> str:
    """A change as people read it: ``43 %``, ``1 point``, ``1.5 points``."""
    number = f"{share * 100:.2g}" if share < 1 else f"{share * 100:,.0f}"
    return f"{number} {'%' if check.kind != 'rate' else 'point' if number == '1' else 'points'}"


def _rounded(count: int) -> int:
    """Two leading digits, rounded up."""
    unit: int = 10 ** max(0, len(str(count)) - 2)
    return ceil(count / unit) * unit


def _too_few(check: Check) -> str:
    least = _YES_RUNS if check.kind == "yes" else FEWEST_RUNS
    since = f" since the change at {check.since}" if check.since else ""
    return f"baseline {len(check.baseline)} of {least}{since}" if len(check.baseline) < least else ""


def _known(readings: Sequence[Reading]) -> list[Reading]:
    return [each for each in readings if each.value is not None]


def _exceeds(check: Check, value: float) -> bool:
    former = check.baseline[-1].value or 0.0
    return value < former * (1 - _FLOOR) if check.higher else value > former * (1 + _FLOOR)


def _change(check: Check) -> float | None:
    if check.kind == "level" and (level := _level_of(check)) is not None:
        return expm1(level.now - level.mean)
    return _Rate(check).change([check.now]) if check.kind == "rate" else None


def _p_again(check: Check) -> float:
    """Returns the probability of what measuring again found, if nothing has changed."""
    again = _known(check.again)
    if check.kind == "rate":  # together they are one larger run; but if only the first run was bad, that is no alarm
        rate = _Rate(check)
        return rate.p_value([check.now, *again]) if rate.p_value(again) < ALPHA else 1.0
    level = _level_of(check)
    return 1.0 if level is None else level.p_value(median(level.log(each.value or 0.0) for each in again))


# --- levels ---


@dataclass(frozen=True)
class _Level:
    """Logarithms of a baseline and of a run; larger is worse."""

    logs: tuple[float, ...]
    now: float
    sign: float
    mean: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", fmean(self.logs))

    @cached_property
    def spread(self) -> float:
        """Standard deviation between runs, never below half a percent."""
        return max(sqrt(sum((each - self.mean) ** 2 for each in self.logs) / (len(self.logs) - 1)), _FLOOR)

    @cached_property
    def scale(self) -> float:
        """That of one further run around the mean: three that were measured together count as one."""
        return self.spread * sqrt(1 + 1 / len(self.logs))

    def log(self, value: float | None) -> float:
        return self.sign * log(value) if value and value > 0 else inf

    def t(self, x: float) -> float:
        return (x - self.mean) / self.scale

    def p_value(self, x: float) -> float:
        return t_sf(self.t(x), len(self.logs) - 1) if isfinite(x) else 0.0

    def detects(self, tests: int) -> float:
        return expm1((_critical(tests, len(self.logs) - 1) + _POWER_Z) * self.scale)

    def left_out(self) -> list[float]:
        """Returns the t of each run of the baseline against the others."""
        logs, count = self.logs, len(self.logs)
        total, squares = sum(logs), sum((each - self.mean) ** 2 for each in logs)
        found = []
        for each in logs:
            others = (total - each) / (count - 1)
            left = max(0.0, squares - (each - self.mean) ** 2 * count / (count - 1))
            spread = max(sqrt(left / (count - 2)), _FLOOR)
            found.append((each - others) / spread / sqrt(1 + 1 / (count - 1)))
        return found


def _level_of(check: Check) -> _Level | None:
    """Returns None if logarithms cannot be taken."""
    sign = -1.0 if check.higher else 1.0
    values = [each.value for each in check.baseline if each.value is not None]
    if len(values) < 3 or any(value <= 0 for value in values):
        return None
    now = check.now.value
    return _Level(tuple(sign * log(value) for value in values), sign * log(now) if now and now > 0 else inf, sign)


def _loudest(checks: Sequence[Check]) -> float:
    """Returns the t that 99.5 % of the runs in a session's baselines do not exceed against the others of their own.

    In a single test's baseline that is the largest. Of many it would be one outlier, and would hide every change.
    """
    found: list[float] = []
    for check in checks:
        if (
            check.kind == "level"
            and not check.why
            and len(check.baseline) >= FEWEST_RUNS
            and (level := _level_of(check))
        ):
            found += level.left_out()
    return percentile(sorted(found), _USUAL_SHARE) if found else 0.0


def _critical(tests: int, freedom: int) -> float:
    return _exceeded(ALPHA / tests, freedom)


_exceeded = lru_cache(maxsize=256)(t_isf)


# --- rates ---


class _Rate:
    """Counts of a baseline, made smaller where runs differ more than independent operations would."""

    def __init__(self, check: Check) -> None:
        self._counts = [(each.count, each.of) for each in check.baseline if each.of]
        self._now_of = check.now.of
        self.count, self.of = sum(k for k, _ in self._counts), sum(n for _, n in self._counts)
        share = self.count / self.of if self.of else 0.0
        self.share, self.dispersion = share, float(check.clump)
        if 0 < share < 1 and len(self._counts) > 1:
            chi2 = sum((k - n * share) ** 2 / (n * share * (1 - share)) for k, n in self._counts)
            self.dispersion = max(self.dispersion, chi2 / (len(self._counts) - 1))

    def _pooled(self, readings: Sequence[Reading]) -> tuple[int, int]:
        return sum(each.count for each in readings), sum(each.of for each in readings)

    def change(self, readings: Sequence[Reading]) -> float:
        count, of = self._pooled(readings)
        return (count / of if of else 0.0) - self.share

    def p_value(self, readings: Sequence[Reading]) -> float:
        """Fisher's exact test against the pooled baseline."""
        count, of = self._pooled(readings)
        return self._tail(floor(count / self.dispersion), ceil(of / self.dispersion))

    def _tail(self, count: int, of: int) -> float:
        marked, whole = ceil(self.count / self.dispersion), ceil(self.of / self.dispersion)
        return hypergeometric_sf(count, of, count + marked, of + whole)

    def upper(self, readings: Sequence[Reading]) -> float:
        """One-sided 95 % bound of the change."""
        return self._newcombe(readings, Z90)[1]

    def interval(self, readings: Sequence[Reading]) -> tuple[float, float]:
        return self._newcombe(readings, Z95)

    def _newcombe(self, readings: Sequence[Reading], z: float) -> tuple[float, float]:
        """Newcombe's interval of a difference of shares (1998, method 10), from Wilson's of both."""
        count, of = self._pooled(readings)
        share = count / of if of else 0.0
        low, high = wilson(share, of / self.dispersion, z)
        their_low, their_high = wilson(self.share, self.of / self.dispersion, z)
        change = share - self.share
        return (
            change - sqrt((share - low) ** 2 + (their_high - self.share) ** 2),
            change + sqrt((high - share) ** 2 + (self.share - their_low) ** 2),
        )

    def detects(self, tests: int) -> float | None:
        """The smallest rise that this run and those again would call significant in 9 of 10 cases."""
        of = ceil((1 + AGAIN) * self._now_of / self.dispersion)
        if not of:
            return None
        low, high = ceil(of * self.share), of + 1
        while low < high:  # the first count that is significant
            middle = (low + high) // 2
            low, high = (low, middle) if self._tail(middle, of) < ALPHA / tests else (middle + 1, high)
        if low > of:
            return None
        below, above = self.share, 1.0
        for _ in range(30):
            share = (below + above) / 2
            below, above = (below, share) if binomial_sf(low, of, share) >= 0.9 else (share, above)
        return max(above - self.share, _LEAST_POINTS)


@lru_cache(maxsize=256)  # a session asks again when its last suspect is judged
def _rate_operations(check: Check, tests: int, runs: int) -> int | None:
    """Returns how many operations in each run would tell a rate's margin, to within a twentieth; None if none would."""
    rate, now_of = _Rate(check), check.now.of
    if not now_of:
        return None
    differs = max(0.0, rate.dispersion / check.clump - 1)  # operations of a run that are alike do not make up for it

    def would_do(ops: int) -> bool:
        reading = Reading(rate.share, round(rate.share * ops), ops)
        found = _Rate(replace(check, baseline=(reading,) * runs, now=reading))
        found.dispersion = check.clump * (1 + differs * ops / now_of)
        change = found.detects(tests)
        return change is not None and change <= check.margin and found.upper([reading]) < check.margin

    few, enough = 0, now_of
    while not would_do(enough):
        few, enough = enough, enough * 2
        if enough > _MOST_OPS:
            return None
    while enough - few > enough // 20:
        middle = (few + enough + 1) // 2
        few, enough = (few, middle) if would_do(middle) else (middle, enough)
    return enough
