"""A search for a limit: its probes in their order, which passed, and the interval that is left for the answer.

What may live here: the probes that an entry keeps, and the figure of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.report.quantities import format_number, format_seconds, format_short_share
from pytest_cloudbench.report.scales import Linear, Log
from pytest_cloudbench.report.svg import Canvas, Plane
from pytest_cloudbench.results.suite import Probes

_VERDICTS = {True: ("passed", 0), False: ("failed", 1), None: ("not judged", 4)}
"""What a probe said: its word and its series' marker."""


@dataclass(frozen=True, slots=True)
class _Probe:
    level: float
    passed: bool | None
    loss: float | None
    p99_s: float | None
    why: str


def levels_tried(row: Probes, each: Measurement) -> Figure | str | None:
    """Return the figure of a search, why there is none, or None for an entry that is not about a search."""
    found = each.info.get("probes")
    searched = next((words for metric, words in row.searched.items() if metric in each.info), None)
    if searched is None:
        return None
    if not isinstance(found, list) or not found:
        return "not drawn, the entry keeps no probes"
    try:
        probes = [_probe(one) for one in found]
    except (LookupError, TypeError, ValueError) as error:
        return f"not drawn, a probe is not as expected ({error})"
    return _figure(each, searched, probes)


def _probe(found: Any) -> _Probe:
    level, passed = float(found["level"]), found["passed"]
    if level <= 0 or not (passed is None or isinstance(passed, bool)):
        raise ValueError(f"level {level:g}, passed {passed!r}")
    loss, p99_s = (None if found.get(key) is None else float(found[key]) for key in ("loss_rate", "response_p99"))
    return _Probe(level, passed, loss, p99_s, "; ".join(str(doubt) for doubt in found.get("doubts") or ()))


def _figure(each: Measurement, searched: str, probes: list[_Probe]) -> Figure:
    low, high = each.number("low"), each.number("high")
    levels = [one.level for one in probes]
    bottom, top_level = min([*levels, low or levels[0]]) * 0.8, max([*levels, high or levels[0]]) * 1.25
    seen = [verdict for verdict in _VERDICTS if any(one.passed is verdict for one in probes)]

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"Search for the limit, {each.subject}", told)
        entries = [(f"d{_VERDICTS[verdict][1]}", _VERDICTS[verdict][0]) for verdict in seen]
        entries += [("band", "where the limit is")] if low is not None and high is not None else []
        top = canvas.legend(6, 14, entries, width - 4) + 34
        x = Linear(0.5, len(probes) + 0.5, format_number, fixed=True)
        plane = Plane(canvas, x, Log(bottom, top_level), 62, top, width - 14, top + 190)
        plane.axes("probe", searched)
        if low is not None and high is not None:
            plane.bar(0.5, len(probes) + 0.5, low, high, "band")
        plane.line([(number, one.level) for number, one in enumerate(probes, 1)], "base")
        for number, one in enumerate(probes, 1):
            plane.dot(number, one.level, _VERDICTS[one.passed][1], _tip(one))
        canvas.height = plane.bottom + 42
        return canvas

    told = (
        f"Each mark is one load, tried in this order; its place is the number of {searched}. {_answer(each)} "
        "A probe is not judged when this machine was late or the run has another doubt."
    )
    if each.info["emulated"]:
        told += " Emulated: this is the profile's limit and this machine's, not a service's."
    head = ["probe", searched, "verdict", "loss", "response p99, s", "doubts"]
    rows = [
        [number, one.level, _VERDICTS[one.passed][0], one.loss, one.p99_s, one.why]
        for number, one in enumerate(probes, 1)
    ]
    notes = [str(note) for note in each.info["notes"][:1]]  # what a load had to keep to, to pass
    return Figure("levels-tried", f"Search for the limit: {each.subject}", told, draw, head, rows, notes)


def _tip(one: _Probe) -> str:
    said = [f"{format_number(one.level)}: {_VERDICTS[one.passed][0]}"]
    said += [f"{format_short_share(one.loss)} lost"] if one.loss is not None else []
    said += [f"p99 {format_seconds(one.p99_s)}"] if one.p99_s is not None else []
    return ", ".join([*said, *([one.why] if one.why else [])])


def _answer(each: Measurement) -> str:
    passes_at, fails_at = each.number("passes_at"), each.number("fails_at")
    if passes_at is None and fails_at is None:
        return "The limit is not known."
    if fails_at is None:
        return f"The limit is at least {format_number(passes_at or 0)}: nothing failed."
    if passes_at is None:
        return f"The limit is below {format_number(fails_at)}: nothing passed."
    return (
        f"The limit is between {format_number(passes_at)}, which passed, and {format_number(fails_at)}, which failed."
    )
