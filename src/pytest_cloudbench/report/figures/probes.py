"""Figures of searches for a limit: the probes in their order, their verdicts, and the interval of the limit."""

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
"""The word and the number of the marker for each verdict of a probe."""


@dataclass(frozen=True, slots=True)
class _Probe:
    level: float
    passed: bool | None
    loss: float | None
    p99_s: float | None
    why: str


def levels_tried(row: Probes, measurement: Measurement) -> Figure | str | None:
    """Return the figure of a search, the reason why it cannot be drawn, or None if the entry is not of a search."""
    stored = measurement.info.get("probes")
    searched = next((words for metric, words in row.searched.items() if metric in measurement.info), None)
    if searched is None:
        return None
    if not isinstance(stored, list) or not stored:
        return "not drawn, the entry keeps no probes"
    try:
        probes = [_parse_probe(probe) for probe in stored]
    except (LookupError, TypeError, ValueError) as error:
        return f"not drawn, a probe is not as expected ({error})"
    return _build_figure(measurement, searched, probes)


def _parse_probe(stored: Any) -> _Probe:
    level, passed = float(stored["level"]), stored["passed"]
    if level <= 0 or not (passed is None or isinstance(passed, bool)):
        raise ValueError(f"level {level:g}, passed {passed!r}")
    loss, p99_s = (None if stored.get(key) is None else float(stored[key]) for key in ("loss_rate", "response_p99"))
    return _Probe(level, passed, loss, p99_s, "; ".join(str(doubt) for doubt in stored.get("doubts") or ()))


def _build_figure(measurement: Measurement, searched: str, probes: list[_Probe]) -> Figure:
    """Return the figure of the levels that a search tried, in their order, and of where the limit is."""
    low, high = measurement.number("low"), measurement.number("high")
    levels = [probe.level for probe in probes]
    bottom, top_level = min([*levels, low or levels[0]]) * 0.8, max([*levels, high or levels[0]]) * 1.25
    verdicts = [verdict for verdict in _VERDICTS if any(probe.passed is verdict for probe in probes)]

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"Search for the limit, {measurement.subject}")
        entries = [(f"d{_VERDICTS[verdict][1]}", _VERDICTS[verdict][0]) for verdict in verdicts]
        entries += [("band", "where the limit is")] if low is not None and high is not None else []
        top = canvas.draw_legend(6, 14, entries, width - 4) + 34
        x = Linear(0.5, len(probes) + 0.5, format_number, fixed=True)
        plane = Plane(canvas, x, Log(bottom, top_level), 62, top, width - 14, top + 190)
        plane.draw_axes("probe", searched)
        if low is not None and high is not None:
            plane.draw_bar(0.5, len(probes) + 0.5, low, high, "band")
        plane.draw_line([(number, probe.level) for number, probe in enumerate(probes, 1)], "base")
        for number, probe in enumerate(probes, 1):
            plane.draw_dot(number, probe.level, _VERDICTS[probe.passed][1], _probe_tooltip(probe))
        canvas.height = plane.bottom + 42
        return canvas

    description = (
        f"Each mark is one load, tried in this order; its place is the number of {searched}. "
        f"{_describe_limit(measurement)} "
        "A probe is not judged when this machine was late or the run has another doubt."
    )
    if measurement.info["emulated"]:
        description += " Emulated: this is the profile's limit and this machine's, not a service's."
    head = ["probe", searched, "verdict", "loss", "response p99, s", "doubts"]
    rows = [
        [number, probe.level, _VERDICTS[probe.passed][0], probe.loss, probe.p99_s, probe.why]
        for number, probe in enumerate(probes, 1)
    ]
    notes = [str(note) for note in measurement.info["notes"][:1]]  # the condition for a load to pass
    return Figure("levels-tried", f"Search for the limit: {measurement.subject}", description, draw, head, rows, notes)


def _probe_tooltip(probe: _Probe) -> str:
    texts = [f"{format_number(probe.level)}: {_VERDICTS[probe.passed][0]}"]
    texts += [f"{format_short_share(probe.loss)} lost"] if probe.loss is not None else []
    texts += [f"p99 {format_seconds(probe.p99_s)}"] if probe.p99_s is not None else []
    return ", ".join([*texts, *([probe.why] if probe.why else [])])


def _describe_limit(measurement: Measurement) -> str:
    passes_at, fails_at = measurement.number("passes_at"), measurement.number("fails_at")
    if passes_at is None and fails_at is None:
        return "The limit is not known."
    if fails_at is None:
        return f"The limit is at least {format_number(passes_at or 0)}: nothing failed."
    if passes_at is None:
        return f"The limit is below {format_number(fails_at)}: nothing passed."
    return (
        f"The limit is between {format_number(passes_at)}, which passed, and {format_number(fails_at)}, which failed."
    )
