"""The table of two sides that were measured in turns: how far they are apart, and what follows.

What may live here: turning a stored comparison (``extra_info["versus"]``) into lines of text.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pytest_cloudbench.judge.paired import COMPARED
from pytest_cloudbench.report.columns import fitted
from pytest_cloudbench.report.quantities import format_with_unit

_ROWS = ("quiet_p50", "quiet_p99", "response_p50", "response_p99", "throughput", "requests_per_op", "loss_rate",
         "throttled_rate", "failed_rate", "corrupt_rate")  # fmt: skip
"""What is shown of each comparison; the others with -v."""

_OTHER_FORM = (LookupError, TypeError, ValueError, AttributeError)
_SAME = "no difference"
_ENDLESS = 10.0
"""An interval that ends above 1,000 % has no end."""


class _Finding(Protocol):
    @property
    def nodeid(self) -> str: ...
    @property
    def info(self) -> Mapping[str, Any]: ...


def render(findings: Sequence[_Finding], width: int, verbosity: int = 0) -> list[str]:
    """Return lines for a terminal of ``width`` columns; with ``-v`` all metrics, with ``-qq`` only doubts."""
    return [*(line for each in findings for line in _lines(each.nodeid, each.info, width, verbosity)), ""]


def stored(name: str, info: Mapping[str, Any], width: int) -> list[str]:
    """Return the same lines for an entry of a stored run, and those of the gate; entries are not trusted."""
    try:
        lines = _lines(name, info, width)
    except _OTHER_FORM:
        lines = ["", name, "  its comparison has another form, and is not shown"]
    gate = info.get("gate")
    told = gate.get("lines") if isinstance(gate, Mapping) else None
    return (
        [*lines, *(line for each in told for line in _wrapped(str(each), width))] if isinstance(told, list) else lines
    )


def _lines(name: str, info: Mapping[str, Any], width: int, verbosity: int = 0) -> list[str]:
    told = info["versus"]
    rows = _rows(told, verbosity > 0) if verbosity > -2 else {}
    lines = ["", name, *_wrapped(f"A = {told['A']}   B = {told['B']}", width)]
    if verbosity > -2:
        lines += _wrapped(_headline(told), width)
        lines += [f"  {line}" for line in fitted([TITLES, *rows.values()], width - 2)] if rows else []
        lines += [line for name in rows for line in _wrapped(_needed(name, told), width)]
    for mark, texts in (("!", info["doubts"]), ("note:", info["notes"])):
        for text in texts:
            lines += textwrap.wrap(f"{mark} {text}", width, subsequent_indent="  ")
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def markup(line: str) -> dict[str, bool]:
    """Return how a line looks on a terminal that has colours."""
    if line.startswith("!"):
        return {"yellow": True}
    return {"bold": True} if line.rstrip().endswith(("A better", "B better")) else {}


TITLES = ("metric", "A", "B", "B against A", "answer")


def _headline(told: Mapping[str, Any]) -> str:
    ops = sorted(block["ops"] for block in told["blocks"] if not block["is_warm_up"])
    each = f", {ops[len(ops) // 2]:,} operations a block," if ops and ops[-1] else ""
    return f"{told['pairs']} pairs of blocks{each} in {told['minutes']:.1f} minutes: {told['stopped']}"


def cells(told: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a stored comparison as rows below ``TITLES``; none if it has another form: entries are not trusted."""
    try:
        return list(_rows(told, is_verbose=False).values())
    except _OTHER_FORM:
        return []


def deciding(told: Mapping[str, Any]) -> list[str]:
    """Return a line for each metric that decides, or for all if none of them is there; none of another form."""
    rows = {row[0]: row for row in cells(told)}
    named = told.get("deciding")
    names = [name for name in rows if isinstance(named, list) and name in named] or list(rows)
    return [f"{name}: {rows[name][-1]}, {rows[name][-2]}" for name in names]


def remarks(told: Mapping[str, Any]) -> list[str]:
    """Return how much a stored comparison measured, and what would have answered the rest; none of another form."""
    try:
        return [_headline(told), *(line for name in _rows(told, is_verbose=False) if (line := _needed(name, told)))]
    except _OTHER_FORM:
        return []


def _rows(told: Mapping[str, Any], is_verbose: bool) -> dict[str, tuple[str, ...]]:
    found: Mapping[str, Mapping[str, Any]] = told["differences"]
    names = [name for name in found if is_verbose or name in _ROWS or name in told["deciding"]] or list(found)
    return {name: _row(name, found[name]) for name in names}


def _row(name: str, each: Mapping[str, Any]) -> tuple[str, ...]:
    a, b = (format_with_unit(each[side], COMPARED[name].unit) for side in "ab")
    return (
        name,
        a,
        b,
        _change(each),
        f"{each['answer']} above {_margin(each)}" if each["answer"] == _SAME else each["answer"],
    )


def _change(each: Mapping[str, Any]) -> str:
    if each["change"] is None:
        return "-"
    unit = " points" if each["is_points"] else " %"
    low, high = _percent(each["low"], "-inf"), _percent(each["high"], "+inf")
    if (low, high) == ("-100.0", "+inf") and not each["is_points"]:  # a ratio between nothing and anything
        low = high = "-"
    return f"{_percent(each['change'], '')}{unit} [{low}, {high}]"


def _percent(value: float | None, unknown: str) -> str:
    return unknown if value is None or abs(value) >= _ENDLESS else f"{value * 100:+.1f}"


def _margin(each: Mapping[str, Any]) -> str:
    return f"{each['margin'] * 100:g} {'points' if each['is_points'] else '%'}"


def _needed(name: str, told: Mapping[str, Any]) -> str:
    """Return what would have answered a metric; nothing if it is answered."""
    each = told["differences"][name]
    if each["answer"] != "inconclusive":
        return ""
    why = f"{each['why']}; " if each["why"] else ""
    if each["needed"] is None:
        return f"{name}: {why}how long it would take is not known"
    minutes = each["needed"] * told["minutes"] / (told["pairs"] + 1)
    pairs = f"{each['needed']:,} pairs ({minutes:,.0f} minutes)"
    return f"{name}: {why}about {pairs} would find a difference of {_margin(each)}"
