"""Measure how well the regression gate decides: the product's rule on the sessions of ``gate_cases``.

Each figure is the share of sessions that are red with nothing changed, or in which the change is found, and so on.
``python -m benchmarks.gate_cases`` compares it with other rules, on the same sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.gate_cases import CASES, COURSES, Count, count_case, count_course, describe_missing
from benchmarks.gate_recorded import read_record
from benchmarks.gate_rules import RULES
from benchmarks.gate_sessions import EXPERIMENTS, FORMER_RUNS, History
from benchmarks.harness import Figure

__all__ = ["FIGURES", "measure"]

SESSIONS, SERIES = 500, 100

_RULE = next(iter(RULES))
_NAMES: Mapping[str, str] = {
    f"gate_{name}": name for name in (*(name for name, case in CASES.items() if case.bound is not None), *COURSES)
}
FIGURES = tuple(_NAMES)


def measure(figures: list[str], runs: int) -> list[Figure]:
    """Measure ``SESSIONS`` sessions, or ``SERIES`` series, for each figure, however many runs are asked.

    A figure whose record is not there yet is left out.
    """
    measured: list[Figure] = []
    for figure in figures:
        name = _NAMES[figure]
        if name in COURSES:
            red, met, opened = count_course(name, [_RULE], SERIES)[_RULE]
            details = {"series": SERIES, "simulated": True, "interval": red.interval, "met_after": met.share}
            details |= asdict(COURSES[name])
            measured.append(Figure(figure, red.share, "of series", 0.95, "at least", details))
            details = {"series": opened.of, "simulated": True, "interval": opened.interval}
            measured.append(Figure(f"{figure}_open_met", opened.share, "of series", 0.0, "at most", details))
        elif reason := describe_missing(CASES[name]):
            print(f"{figure} is left out: {reason}", flush=True)
        else:
            measured.append(_figure(figure, name, count_case(name, [_RULE], SESSIONS)[_RULE]))
    return measured


def _figure(figure: str, name: str, count: Count) -> Figure:
    case = CASES[name]
    details: dict[str, Any] = {
        "sessions": SESSIONS, "experiments": EXPERIMENTS, "former_runs": FORMER_RUNS, "change": asdict(case.change),
        "source": asdict(case.source), "simulated": case.is_simulated, "interval": count.interval, "of": count.of,
    }  # fmt: skip
    if isinstance(case.source, History):
        loads = dict.fromkeys((*case.source.before, case.source.now))
        details["recorded"] = {load: record.about for load in loads if (record := read_record(load))}
    unit = "of metrics" if case.asks == "decided" else "of sessions"
    assert case.bound is not None
    return Figure(figure, count.share, unit, case.bound, case.sense, details)
