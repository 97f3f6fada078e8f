"""Tables of two sides that were measured in turns: their differences, and the answer for each metric.

Their source is a stored comparison (``extra_info["versus"]``).
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pytest_cloudbench.judge.paired import COMPARED
from pytest_cloudbench.report.columns import fit_to_width
from pytest_cloudbench.report.hosts import describe_location
from pytest_cloudbench.report.quantities import UNKNOWN, format_points, format_with_unit
from pytest_cloudbench.support.wording import format_count

_USUAL_METRICS = (
    "quiet_p50", "quiet_p99", "response_p50", "response_p99", "throughput", "requests_per_op", "loss_rate",
    "throttled_rate", "failed_rate", "corrupt_rate",
)  # fmt: skip
"""The metrics that are always shown. The others are shown with -v."""

_UNKNOWN_FORM = (LookupError, TypeError, ValueError, AttributeError)
_SAME = "no difference"
_ENDLESS = 10.0
"""An interval that ends above 1,000 % is shown without an end."""


class _Finding(Protocol):
    @property
    def nodeid(self) -> str: ...
    @property
    def info(self) -> Mapping[str, Any]: ...


def render(findings: Sequence[_Finding], width: int, verbosity: int = 0) -> list[str]:
    """Return lines for a terminal of ``width`` columns, with ``-v`` for all metrics, with ``-qq`` only for doubts."""
    lines: list[str] = []
    for finding in findings:
        lines += _comparison_lines(finding.nodeid, finding.info, width, verbosity)
    return [*lines, ""]


def render_stored(name: str, info: Mapping[str, Any], width: int) -> list[str]:
    """Return the same lines for an entry of a stored run, and the lines of the gate. Entries are not trusted."""
    try:
        lines = _comparison_lines(name, info, width)
    except _UNKNOWN_FORM:
        lines = ["", name, "  its comparison has another form, and is not shown"]
    gate = info.get("gate")
    gate_lines = gate.get("lines") if isinstance(gate, Mapping) else None
    for gate_line in gate_lines if isinstance(gate_lines, list) else ():
        lines += _wrap_indented(str(gate_line), width)
    return lines


def _comparison_lines(name: str, info: Mapping[str, Any], width: int, verbosity: int = 0) -> list[str]:
    comparison = info["versus"]
    rows = _metric_rows(comparison, verbosity > 0) if verbosity > -2 else {}
    lines = ["", name, *_wrap_indented(f"A = {comparison['A']}   B = {comparison['B']}", width)]
    if verbosity > -2:
        lines += [line for text in _describe_locations(comparison) for line in _wrap_indented(text, width)]
        lines += _wrap_indented(_headline(comparison), width)
        lines += [f"  {line}" for line in fit_to_width([TITLES, *rows.values()], width - 2)] if rows else []
        lines += [line for metric in rows for line in _wrap_indented(_effort_needed(metric, comparison), width)]
    for mark, texts in (("!", info["doubts"]), ("note:", info["notes"])):
        for text in texts:
            lines += textwrap.wrap(f"{mark} {text}", width, subsequent_indent="  ")
    return lines


def _describe_locations(comparison: Mapping[str, Any]) -> list[str]:
    """Return where the servers of each side are, if known, so that times can be read against distance."""
    locations = comparison.get("locations")
    known = locations if isinstance(locations, Mapping) else {}
    texts = {side: describe_location(known.get(side)) for side in "AB"}
    return [f"servers of {side}: {text}" for side, text in texts.items() if text != UNKNOWN]


def _wrap_indented(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def markup(line: str) -> dict[str, bool]:
    """Return the markup of a line on a terminal that has colours."""
    if line.startswith("!"):
        return {"yellow": True}
    return {"bold": True} if line.rstrip().endswith(("A better", "B better")) else {}


TITLES = ("metric", "A", "B", "B against A", "answer")


def _headline(comparison: Mapping[str, Any]) -> str:
    ops = sorted(block["ops"] for block in comparison["blocks"] if not block["is_warm_up"])
    block_size = f", {format_count(ops[len(ops) // 2], 'operation')} a block," if ops and ops[-1] else ""
    pairs = format_count(comparison["pairs"], "pair of blocks", "pairs of blocks")
    return f"{pairs}{block_size} in {comparison['minutes']:.1f} minutes: {comparison['stopped']}"


def comparison_cells(comparison: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a stored comparison as rows below ``TITLES``, or no rows if its form is unknown."""
    try:
        return list(_metric_rows(comparison, is_verbose=False).values())
    except _UNKNOWN_FORM:
        return []


def deciding_lines(comparison: Mapping[str, Any]) -> list[str]:
    """Return a line for each deciding metric, or for all metrics if none of these was compared."""
    rows = {row[0]: row for row in comparison_cells(comparison)}
    deciding_names = comparison.get("deciding")
    names = [name for name in rows if isinstance(deciding_names, list) and name in deciding_names] or list(rows)
    return [f"{name}: {rows[name][-1]}, {rows[name][-2]}" for name in names]


def comparison_remarks(comparison: Mapping[str, Any]) -> list[str]:
    """Return how much a stored comparison measured, where, and what would have answered each inconclusive metric."""
    try:
        efforts = (_effort_needed(name, comparison) for name in _metric_rows(comparison, is_verbose=False))
        return [_headline(comparison), *_describe_locations(comparison), *(effort for effort in efforts if effort)]
    except _UNKNOWN_FORM:
        return []


def _metric_rows(comparison: Mapping[str, Any], is_verbose: bool) -> dict[str, tuple[str, ...]]:
    differences: Mapping[str, Mapping[str, Any]] = comparison["differences"]
    shown = {*_USUAL_METRICS, *comparison["deciding"]}
    names = [name for name in differences if is_verbose or name in shown] or list(differences)
    return {name: _metric_row(name, differences[name]) for name in names}


def _metric_row(name: str, difference: Mapping[str, Any]) -> tuple[str, ...]:
    a, b = (format_with_unit(difference[side], COMPARED[name].unit) for side in "ab")
    answer = difference["answer"]
    if answer == _SAME:
        answer = f"{answer} above {_format_margin(difference)}"
    return name, a, b, _format_change(difference), answer


def _format_change(difference: Mapping[str, Any]) -> str:
    if difference["change"] is None:
        return "-"
    unit = " points" if difference["is_points"] else " %"
    low = "-inf" if difference["low"] is None else _format_percent(difference["low"])
    is_endless = difference["high"] is None or difference["high"] >= _ENDLESS
    high = "+inf" if is_endless else _format_percent(difference["high"])
    if (low, high) == ("-inf" if difference["is_points"] else "-100.0", "+inf"):  # an interval without information
        low = high = "-"
    return f"{_format_percent(difference['change'])}{unit} [{low}, {high}]"


def _format_percent(value: float) -> str:
    """Return a change in percent or points with one decimal, or more where one would show it as zero."""
    return f"{value * 100:+,.1f}" if abs(value) >= 0.0005 or not value else format_points(value).removesuffix(" points")


def _format_margin(difference: Mapping[str, Any]) -> str:
    return f"{difference['margin'] * 100:g} {'points' if difference['is_points'] else '%'}"


def _effort_needed(name: str, comparison: Mapping[str, Any]) -> str:
    """Return how long an inconclusive metric would have to be measured, or ``""`` for others."""
    difference = comparison["differences"][name]
    if difference["answer"] != "inconclusive":
        return ""
    reason = f"{difference['why']}; " if difference["why"] else ""
    if difference["needed"] is None:
        return f"{name}: {reason}how long it would take is not known"
    minutes = difference["needed"] * comparison["minutes"] / (comparison["pairs"] + 1)
    duration = format_count(round(minutes), "minute") if minutes >= 1 else "less than a minute"
    pairs = f"{format_count(difference['needed'], 'pair')} ({duration})"
    return f"{name}: {reason}about {pairs} would find a difference of {_format_margin(difference)}"
