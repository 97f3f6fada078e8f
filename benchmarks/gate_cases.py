"""Measure how well the gate and other rules decide on the same data: a table, and the figures of ``bench_gate``.

``python -m benchmarks.gate_cases --sessions 500 --json gate-cases.json`` prints a Markdown table of all cases and rules
and writes the same with counts and intervals. A case without a record is left out. With ``PYTHONPATH=src:.`` it
also runs in an environment that has the package ``apache-otava``; see ``gate_rules``.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from math import expm1, log1p
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.gate_recorded import read_record
from benchmarks.gate_rules import OPERATIONS, RULES
from benchmarks.gate_sessions import (
    EXPERIMENTS,
    FORMER_RUNS,
    Answered,
    Change,
    Experiment,
    History,
    Noise,
    Session,
    drawn_session,
    missing_loads,
    simulated_run,
    simulated_session,
)
from pytest_cloudbench.judge.baseline import ONLY_AT_GATE, WAS_OUTLIER
from pytest_cloudbench.judge.significance import wilson
from pytest_cloudbench.judge.watched import FOLLOWED_ONLY, Numbers

__all__ = ["CASES", "COURSES", "Case", "Count", "Course", "count_case", "count_course", "describe_missing"]

Sense = Literal["at most", "at least"]

_LOST = ("silent_loss_rate", "loss_rate")
_TIMES = frozenset({"quiet_p50", "quiet_p99", "unstarved_p50"})
_P50_METRICS = ("quiet_p50", "unstarved_p50")


@dataclass(frozen=True, slots=True)
class Case:
    """Sessions of one kind, and the answer that is counted in them.

    Attributes:
        text: their description.
        source: the history that they are drawn from, or the noise of simulated ones.
        asks: whether anything is ``red``; whether the change is ``found``, or ``met`` by a metric that decides, in the
            first experiment; or which share of all metrics that can make an experiment inconclusive is ``decided``
            (met or broken).
        bound: the limit of the answer's share, None if it is only reported.
        sense: of the bound.
        change: today's difference.
        shows: the metrics that count, or none for all.
    """

    text: str
    source: History | Noise
    asks: Literal["red", "found", "met", "decided"] = "red"
    bound: float | None = 0.01
    sense: Sense = "at most"
    change: Change = field(default_factory=Change)
    shows: Collection[str] = ()

    @property
    def is_simulated(self) -> bool:
        return isinstance(self.source, Noise)


def _finds(text: str, source: History | Noise, change: Change, *shows: str, bound: float = 0.95) -> Case:
    return Case(f"{text}: found", source, "found", bound, "at least", change, shows)


def _decides(text: str, source: History, bound: float | None, shows: Collection[str] = ()) -> Case:
    return Case(text, source, "decided", bound, "at least", Change(), shows)


_CALM, _BUSY4, _BUSY16 = (History((load,), load) for load in ("calm", "busy4", "busy16"))
_NEW = History(("calm", "busy4", "busy16"), "bursts")
_P50, _P99 = Change(p50=0.10), Change(p99=0.25)
_FAILED_OPS = 400


def _incidents(load: str, count: int, ops: int = 0) -> History:
    return History((load,), load, incidents=count, ops=ops)


CASES: Mapping[str, Case] = {
    "false_alarms_calm": Case("nothing changed, calm", _CALM),
    "false_alarms_busy4": Case("nothing changed, 4 busy processes", _BUSY4),
    "false_alarms_busy16": Case("nothing changed, 16 busy processes", _BUSY16),
    "false_alarms_new": Case("nothing changed, bursts that no earlier session had", _NEW),
    "false_alarms_calm_to_busy16": Case("nothing changed, 16 busy processes after a calm history",
                                        History(("calm",), "busy16")),
    "false_alarms_calm_to_bursts": Case("nothing changed, bursts after a calm history", History(("calm",), "bursts")),
    "false_alarms": Case("nothing changed, disturbances t4 of 1 %, a fifth shared", Noise()),
    "false_alarms_t3": Case("nothing changed, disturbances t3 of 1 %, half shared",
                            Noise(shared=0.5, freedom=3), bound=0.05),
    "false_alarms_t3_shared": Case("nothing changed, disturbances t3 of 1 %, 90 % shared",
                                   Noise(shared=0.9, freedom=3), bound=0.05),
    "finds_lost": _finds("one file lost, once", _CALM, Change(lost=1), *_LOST, bound=1.0),
    "finds_lost_busy16": _finds("one file lost, once, 16 busy processes", _BUSY16, Change(lost=1), *_LOST, bound=1.0),
    "finds_corrupt": _finds("one byte corrupt, once", _CALM, Change(corrupt=1), "corrupt_rate", bound=1.0),
    "finds_p50": _finds("p50 +10 %, calm", _CALM, _P50, *_TIMES),
    "finds_p50_simulated": _finds("p50 +10 %, disturbances t4 of 1 %", Noise(), _P50, *_TIMES),
    "finds_p99": _finds("p99 +25 %, calm", _CALM, _P99, "quiet_p99"),
    "finds_errors": _finds("+1 point of errors in 400 operations, calm", _incidents("calm", 0, _FAILED_OPS),
                           Change(failed=0.01), "failed_rate", "loss_rate"),
    "finds_request": _finds("one request more, calm", _CALM, Change(requests=1), "requests_per_op"),
    "finds_bytes": _finds("+200 bytes, calm", _CALM, Change(wire_bytes=200), "wire_bytes_per_op"),
    "finds_request_busy16": _finds("one request more, 16 busy processes", _BUSY16, Change(requests=1),
                                   "requests_per_op"),
    "finds_bytes_busy16": _finds("+200 bytes, 16 busy processes", _BUSY16, Change(wire_bytes=200),
                                 "wire_bytes_per_op"),
    "finds_p50_incident": _finds("p50 +10 %, calm, one incident before", _incidents("calm", 1), _P50, *_TIMES),
    "finds_p50_incidents": _finds("p50 +10 %, calm, two incidents before", _incidents("calm", 2), _P50, *_TIMES),
    "finds_p99_incident": _finds("p99 +25 %, calm, one incident before", _incidents("calm", 1), _P99, "quiet_p99"),
    "finds_p99_incidents": _finds("p99 +25 %, calm, two incidents before", _incidents("calm", 2), _P99, "quiet_p99"),
    "finds_errors_incidents": _finds("+1 point of errors, calm, two incidents before",
                                     _incidents("calm", 2, _FAILED_OPS), Change(failed=0.01), "failed_rate",
                                     "loss_rate"),
    "finds_p99_incident_busy4": _finds("p99 +25 %, 4 busy processes, one incident before", _incidents("busy4", 1),
                                       _P99, "quiet_p99", bound=0.8),
    "finds_p99_incidents_busy4": _finds("p99 +25 %, 4 busy processes, two incidents before", _incidents("busy4", 2),
                                        _P99, "quiet_p99", bound=0.8),
    "finds_p50_new": _finds("p50 +25 %, bursts that no earlier session had", _NEW, Change(p50=0.25), *_TIMES),
    "finds_p50_calm_to_bursts": _finds("p50 +25 %, bursts after a calm history", History(("calm",), "bursts"),
                                       Change(p50=0.25), *_TIMES),
    "finds_p50_busy4": _finds("p50 +25 %, 4 busy processes", _BUSY4, Change(p50=0.25), *_TIMES),
    "finds_p50_busy16": _finds("p50 +25 %, 16 busy processes", _BUSY16, Change(p50=0.25), *_TIMES),
    "met_p50_busy16_to_calm": Case("p50 +10 %, calm after 16 busy processes: met", History(("busy16",), "calm"), "met",
                                   0.05, "at most", _P50, _P50_METRICS),
    "met_p50_new": Case("p50 +10 %, bursts that no earlier session had: met", _NEW, "met", 0.05, "at most", _P50,
                        _P50_METRICS),
    "met_p50_calm_to_bursts": Case("p50 +10 %, bursts after a calm history: met", History(("calm",), "bursts"), "met",
                                   0.05, "at most", _P50, _P50_METRICS),
    "decided_open": _decides("16 busy processes, open loop: metrics decided",
                             History(("busy16",), "busy16", ("open",)), 0.5),
    "decided_closed": _decides("16 busy processes, closed loop: metrics decided",
                               History(("busy16",), "busy16", ("closed", "served")), 0.8),
    "decided_times_open": _decides("the same, p50 and p99 alone, open loop",
                                   History(("busy16",), "busy16", ("open",)), None, _TIMES),
    "decided_times_closed": _decides("the same, p50 and p99 alone, closed loop",
                                     History(("busy16",), "busy16", ("closed", "served")), None, _TIMES),
}  # fmt: skip
"""The cases that the gate must decide, by the names of ``bench_gate``'s figures without ``gate_``."""


@dataclass(frozen=True, slots=True)
class Count:
    """The number of expected answers of a rule. ``of`` is 0 if the rule cannot answer."""

    count: int
    of: int

    @property
    def share(self) -> float:
        return self.count / self.of if self.of else 0.0

    @property
    def interval(self) -> list[float]:
        """Return the 95 % interval of the share, as if all were independent."""
        return [round(bound, 4) for bound in wilson(self.share, self.of)] if self.of else [0.0, 1.0]


def describe_missing(case: Case) -> str:
    """Return why a case cannot be run here, or an empty text."""
    if isinstance(case.source, Noise):
        return ""
    if missing := missing_loads(case.source):
        return f"no record of {', '.join(missing)}"
    record = read_record(case.source.now)
    assert record is not None
    recorded_metrics = {metric for run in record.rounds[0].values() for metric in run}
    if case.asks == "found" and recorded_metrics.isdisjoint(case.shows):
        return f"the record of {case.source.now} lacks {', '.join(case.shows)}"
    return ""


def count_case(name: str, rules: Sequence[str], sessions: int) -> dict[str, Count]:
    """Return for each rule how often it answered what the case asks, in a number of sessions."""
    with ProcessPoolExecutor() as pool:
        answers = list(pool.map(partial(_count_session, name, rules), range(sessions), chunksize=5))
    return {
        rule: Count(sum(counts[index][0] for counts in answers), sum(counts[index][1] for counts in answers))
        for index, rule in enumerate(rules)
    }


def _count_session(name: str, rules: Sequence[str], seed: int) -> list[tuple[int, int]]:
    case = CASES[name]
    if isinstance(case.source, Noise):
        session = simulated_session(case.source, case.change, f"{name}/{seed}")
    else:
        session = drawn_session(case.source, case.change, f"{name}/{seed}")
    return [count_answers(case, RULES[rule](session)) for rule in rules]


def count_answers(case: Case, answers: Sequence[Answered]) -> tuple[int, int]:
    """Return how many answers of one session are what the case asks, and of how many."""
    if not answers:
        return 0, 0
    if case.asks == "decided":
        deciding = [answer for answer in answers if answer.decides and (not case.shows or answer.metric in case.shows)]
        return sum(answer.answer != "inconclusive" for answer in deciding), len(deciding)
    expected = "met" if case.asks == "met" else "broken"
    is_so = any(
        answer.answer == expected and (expected == "broken" or answer.decides)
        for answer in answers
        if case.asks == "red" or (answer.experiment == "t0" and answer.metric in (*case.shows, OPERATIONS))
    )
    return int(is_so), 1


# --- courses: many sessions of one experiment, each with those before it as its history ---


@dataclass(frozen=True, slots=True)
class Course:
    """A simulated course of an experiment from its 21st run on. Runs differ by a normal disturbance.

    Attributes:
        text: its description.
        spread: of runs, a standard deviation as a share.
        slope: the share that times rise by with each run.
        step: the share that they rise by at once.
    """

    text: str
    spread: float
    slope: float = 0.0
    step: float = 0.0

    def rise(self, run: int) -> float:
        """Return the logarithm of how much longer times are in a run, counted from the first one with the change."""
        return run * log1p(self.slope) + log1p(self.step)


_SPREADS = (0.01, 0.03, 0.05)
COURSES: Mapping[str, Course] = {
    f"{name}_{spread * 100:.0f}": Course(f"{text}, runs differ by {spread * 100:.0f} %", spread, slope, step)
    for name, text, slope, step in (
        ("drift_03", "+0.3 % with each run", 0.003, 0.0),
        ("drift_05", "+0.5 % with each run", 0.005, 0.0),
        ("step_15", "a step of +15 %", 0.0, 0.15),
    )
    for spread in _SPREADS
}
_ACCEPTED_RUNS = 20
_MOST_RISE = 0.20
"""Twice the margin: a drift must be red before it has added up to this."""
_STEP_RUNS = 30
"""A step must be red within so many runs."""
_RUNS_AFTER = 10
"""A regression is followed for so many runs after that. While times are longer by the margin, none may be met."""
_MARGIN = 0.10


class Ending(NamedTuple):
    """The answers of a rule in a course.

    Attributes:
        was_red: in time.
        was_met: after that, although times were longer by the margin.
        was_open: a regression was open, by the runs that are stored.
        was_met_open: after that, it called a run met although times were longer by the margin.
    """

    was_red: bool
    was_met: bool
    was_open: bool
    was_met_open: bool


def count_course(name: str, rules: Sequence[str], series: int) -> dict[str, tuple[Count, Count, Count]]:
    """Return for each rule in how many series it was red in time, and in how many of these it was then met.

    The third count is of the series with an open regression that were then met.
    """
    with ProcessPoolExecutor() as pool:
        answers = list(pool.map(partial(_follow_all, name, rules), range(series), chunksize=2))
    totals = {}
    for index, rule in enumerate(rules):
        ends = [end for endings in answers if (end := endings[index]) is not None]
        red = [end.was_met for end in ends if end.was_red]
        opened = [end.was_met_open for end in ends if end.was_open]
        totals[rule] = Count(len(red), len(ends)), Count(sum(red), len(red)), Count(sum(opened), len(opened))
    return totals


def _follow_all(name: str, rules: Sequence[str], seed: int) -> list[Ending | None]:
    return [follow(COURSES[name], rule, f"{name}/{seed}") for rule in rules]


def follow(course: Course, rule: str, seed: str) -> Ending | None:
    """Return the answers of a rule in a course, or None if it cannot answer."""
    noise = Noise(spread=course.spread, freedom=0)
    former: list[Numbers] = [_simulate_times(noise, 0.0, f"{seed}/before {run}") for run in range(_ACCEPTED_RUNS)]
    was_red = was_met = was_open = was_met_open = False
    for run in range(_most_runs(course) + _RUNS_AFTER):
        if run == _most_runs(course) and not was_red:
            break
        now = _simulate_times(noise, course.rise(run), f"{seed}/{run}")
        again = partial(_again, noise, course.rise(run), f"{seed}/{run}")
        answers = RULES[rule](Session([Experiment("t0", former, now)], again))
        if not answers:
            return None
        is_red = any(answer.answer == "broken" for answer in answers)
        is_met = course.rise(run) >= log1p(_MARGIN) and all(answer.answer == "met" for answer in answers)
        was_met |= was_red and is_met
        was_met_open |= was_open and is_met
        was_red |= is_red
        was_open |= any(answer.is_open and not answer.is_outlier for answer in answers)  # an outlier is not stored
        is_outlier = any(answer.is_outlier for answer in answers)
        barred = ONLY_AT_GATE if is_red else WAS_OUTLIER if is_outlier else ""
        former.append(dict(now) | ({FOLLOWED_ONLY: barred} if barred else {}))
    return Ending(was_red, was_met, was_open, was_met_open)


def _most_runs(course: Course) -> int:
    if not course.slope:
        return _STEP_RUNS
    return next(run for run in range(10_000) if expm1(course.rise(run)) >= _MOST_RISE)


def _simulate_times(noise: Noise, rise: float, seed: str) -> Numbers:
    numbers = simulated_run(noise, Change(p50=expm1(rise)), random.Random(seed))
    return {name: numbers[name] for name in ("quiet_ops", "ops", "quiet_p50")}


def _again(noise: Noise, rise: float, seed: str, _: int, before: int) -> Numbers:
    return _simulate_times(noise, rise, f"{seed}/again {before}")


# --- the table ---


def compare(names: Iterable[str], rules: Sequence[str], sessions: int, series: int) -> dict[str, Any]:
    """Return the answers of all rules in all cases and courses that can be run here."""
    rows: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        if name in COURSES:
            rows |= _course_rows(name, count_course(name, rules, series))
        elif reason := describe_missing(CASES[name]):
            left_out[name] = reason
        else:
            case = CASES[name]
            rows[name] = _row(case.text, case.bound, case.sense, count_case(name, rules, sessions))
            rows[name] |= {"simulated": case.is_simulated, "change": asdict(case.change)}
    loads = sorted({load for case in CASES.values() if isinstance(case.source, History)
                    for load in (*case.source.before, case.source.now)})  # fmt: skip
    return {
        "sessions": sessions, "series": series, "experiments": EXPERIMENTS, "former_runs": FORMER_RUNS,
        "records": {load: {"about": record.about, "rounds": len(record.rounds), "kinds": record.kinds}
                    for load in loads if (record := read_record(load))},
        "rows": rows, "left_out": left_out,
    }  # fmt: skip


def _course_rows(name: str, counts: Mapping[str, tuple[Count, Count, Count]]) -> dict[str, Any]:
    course = COURSES[name]
    red, met, opened = ({rule: triple[index] for rule, triple in counts.items()} for index in range(3))
    limit = f"within {_STEP_RUNS} runs" if course.step else "before +20 %"
    return {
        name: _row(f"{course.text}: red {limit}", 0.95, "at least", red),
        f"{name}_met": _row(f"{course.text}: met after that, over the margin", 0.0, "at most", met),
        f"{name}_open_met": _row(f"{course.text}: met while open, over the margin", 0.0, "at most", opened),
    }


def _row(text: str, bound: float | None, sense: Sense, counts: Mapping[str, Count]) -> dict[str, Any]:
    return {
        "text": text, "wanted": bound, "sense": sense, "simulated": True,
        "rules": {rule: {"count": count.count, "of": count.of, "interval": count.interval}
                  for rule, count in counts.items()},
    }  # fmt: skip


def table(compared: Mapping[str, Any]) -> list[str]:
    """Return the lines of a Markdown table."""
    rules = list(dict.fromkeys(rule for row in compared["rows"].values() for rule in row["rules"]))
    lines = [f"| situation | by | wanted | {' | '.join(rules)} |", "|---" * (3 + len(rules)) + "|"]
    for row in compared["rows"].values():
        by = "simulated" if row["simulated"] else "recorded"
        bound = "" if row["wanted"] is None else f"{row['sense']} {row['wanted'] * 100:g} %"
        cells = [_percent(row["rules"].get(rule)) for rule in rules]
        lines.append(f"| {row['text']} | {by} | {bound} | {' | '.join(cells)} |")
    return lines


def _percent(answer: Mapping[str, Any] | None) -> str:
    return f"{answer['count'] / answer['of'] * 100:.3g} %" if answer and answer["of"] else "-"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the gate's rule with others, on the same sessions.")
    parser.add_argument("cases", nargs="*", help="all by default", choices=[[], *CASES, *COURSES])
    parser.add_argument("--sessions", type=int, default=500, metavar="N", help="of each case (default: %(default)s)")
    parser.add_argument("--series", type=int, default=200, metavar="N", help="of each course (default: %(default)s)")
    parser.add_argument("--rules", nargs="*", default=list(RULES), metavar="RULE", help="all by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write counts and intervals")
    options = parser.parse_args(arguments)
    if unknown := set(options.rules) - set(RULES):
        parser.error(f"no rule is called {unknown.pop()!r}; there are {', '.join(RULES)}")
    compared = compare(options.cases or [*CASES, *COURSES], options.rules, options.sessions, options.series)
    if options.json:
        options.json.write_text(json.dumps(compared, indent=1) + "\n", encoding="utf-8")
    print(*table(compared), sep="\n")
    for name, reason in compared["left_out"].items():
        print(f"left out: {name}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
