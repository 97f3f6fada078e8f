"""Summary of runs in Markdown for a CI job, with the broken experiments first, and the doubts at the end.

It is GitHub's Markdown, which GitLab supports, too. Names and texts may come from anybody, and none of them can become
a link, a mention, a tag or another cell. Unknown values are dashes, and are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pytest_cloudbench.judge.baseline import find_number
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.report import versus
from pytest_cloudbench.report.export import StoredRun, emulated_text, entry_doubts, is_comparison
from pytest_cloudbench.report.table import HOST_TITLES, OPERATION_TITLES, column_of, host_rows, operation_rows
from pytest_cloudbench.support.printable import printable
from pytest_cloudbench.support.wording import format_count

_RUN_KEYS = (
    "ops", "loss_rate", "throttled", "failed", "corrupt", "response_p50", "response_p95", "response_p99",
    "lateness_p99",
)  # fmt: skip
_MOST_COLUMNS, _MOST_ROWS, _MOST_COMPARISONS, _MOST_LINES, _LONGEST = 9, 500, 50, 200, 300
"""Limits that keep a summary below the 1 MiB that GitHub shows."""

_NOT_STORED = ""
_VERDICTS = {
    "broken": "❌ broken", "inconclusive": "⚠️ inconclusive", "note": "note", "met": "✅ met", "none": "-",
    _NOT_STORED: "-",
}  # fmt: skip
_UNKNOWN = "-"

_PLAIN = re.compile(r"[^`|\\]*")
_ACTIVE = re.compile(r"[&<>|\\`*\[\]~#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_LINKS = re.compile(r"@(?=\w)|:(?=//)|w(?=\.)", re.IGNORECASE)
"""The beginning of a mention or a link in plain text. An empty comment after it keeps GitHub from making a link."""

_Entry = tuple[str, Mapping[str, Any]]


def render_summary(runs: Sequence[StoredRun], metrics: Sequence[str] = (), remark: str = "") -> str:
    """Return a section for each run.

    Args:
        runs: the runs to show.
        metrics: the columns, names in ``METRICS``. If there are none, the usual ones for the kind of experiment.
        remark: a remark on the session, in one line.
    """
    lines: list[str] = []
    for run in runs:
        lines += [f"## cloudbench: {_escape_code(run.name)}", "", *_run_header(run, remark), ""]
        ordered = sorted(run.entries, key=lambda entry: [*_VERDICTS].index(_worst_verdict(entry[1])))
        lines += _experiment_tables([entry for entry in ordered if not is_comparison(entry[1])], metrics)
        lines += _operation_table([entry for entry in ordered if not is_comparison(entry[1])])
        lines += _host_table([entry for entry in ordered if not is_comparison(entry[1])])
        lines += _comparison_table([entry for entry in ordered if is_comparison(entry[1])])
        lines += _render_list("Broken", _unmet_lines(ordered, "broken"))
        lines += _render_list("Inconclusive", _unmet_lines(ordered, "inconclusive"))
        lines += _render_list("Not met", _unmet_lines(ordered, _NOT_STORED))
        lines += _render_list("Doubts: these numbers may be wrong", _doubt_lines(ordered))
        lines += _render_list("Notes", _note_lines(ordered))
    return "\n".join(lines)


def _run_header(run: StoredRun, remark: str) -> Iterator[str]:
    """Yield the lines above the tables of a run: counts of verdicts, commit and machines."""
    counted = Counter(_worst_verdict(info) for _, info in run.entries)
    counts_text = [f"{count} {word}" for verdict, word in _COUNTED if (count := counted[verdict])]
    count = len(run.entries)
    experiments = "no experiment was measured" if not count else format_count(count, "experiment")
    yield f"**{experiments}{': ' if counts_text else ''}{', '.join(counts_text)}**"
    if remark:
        yield f"<br>{_escape_text(remark)}"
    details = [f"commit {_escape_code(run.commit[:12])}"] if run.commit else []
    details += [f"branch {_escape_code(run.branch)}"] if run.branch else []
    if run.time_ms is not None:
        details.append(f"{datetime.fromtimestamp(run.time_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC")
    details += [
        _escape_text(machine)
        for machine in dict.fromkeys(str(info["machine"]) for _, info in run.entries if info.get("machine"))
    ]
    if details:
        yield f"<br>{'; '.join(details)}"
    if any(emulated_text(info) for _, info in run.entries):
        yield "<br>Emulated services measure the client and the loopback, not the service."


_COUNTED = (
    ("broken", "broken"), ("inconclusive", "inconclusive"), ("met", "met"), ("note", "without a verdict yet"),
    ("none", "without an expectation"), (_NOT_STORED, "of a version that stored no verdict"),
)  # fmt: skip


def _worst_verdict(info: Mapping[str, Any]) -> str:
    """Return the verdict by expectations or the answer of the regression gate, whichever is worse."""
    stored = (info.get("verdict"), _gate_outcome(info).get("answer"))
    verdicts = [verdict for verdict in stored if isinstance(verdict, str) and verdict in _VERDICTS]
    worst = min(verdicts, key=[*_VERDICTS].index, default="none" if is_comparison(info) else _NOT_STORED)
    has_failed = info.get("outcome") == "failed" and worst in ("note", "met", "none")  # for a reason of its own
    return "broken" if has_failed else worst


def _gate_outcome(info: Mapping[str, Any]) -> Mapping[str, Any]:
    gate = info.get("gate")
    return gate if isinstance(gate, dict) else {}


def _experiment_tables(entries: Sequence[_Entry], metrics: Sequence[str]) -> Iterator[str]:
    """Yield a table for each kind of experiment, and the count of unknown numbers."""
    shown, unknown = entries[:_MOST_ROWS], 0
    kinds: dict[tuple[str, ...], list[_Entry]] = {}
    for entry in shown:
        kinds.setdefault(_column_keys(entry[1], metrics), []).append(entry)
    for keys, members in kinds.items():
        yield f"| verdict | experiment | provider |{''.join(f' {_escape_text(column_of(key)[0])} |' for key in keys)}"
        yield f"|---|---|---|{'---:|' * len(keys)}"
        for fullname, info in members:
            cells = [_format_cell(key, find_number(info, key)) for key in keys]
            unknown += cells.count(_UNKNOWN)
            emulated = emulated_text(info)
            name = _escape_code(fullname) + (" **?**" if entry_doubts(info) else "")
            provider = _escape_code(str(info.get("provider", ""))) + (f" ({emulated})" if emulated else "")
            yield f"| {_VERDICTS[_worst_verdict(info)]} | {name} | {provider} | {' | '.join(cells)} |"
        yield ""
    if unknown:
        yield f"{format_count(unknown, 'number is', 'numbers are')} unknown: {_UNKNOWN}"
        yield ""
    if len(entries) > len(shown):
        more = format_count(len(entries) - len(shown), "more experiment is", "more experiments are")
        yield f"{more} left out here, and in the stored run."
        yield ""


def _operation_table(entries: Sequence[_Entry]) -> Iterator[str]:
    """Yield the table of the kinds of operations of mixed loads."""
    yield from _part_table(entries, OPERATION_TITLES, operation_rows)


def _host_table(entries: Sequence[_Entry]) -> Iterator[str]:
    """Yield the table of what each of several hosts measured."""
    yield from _part_table(entries, HOST_TITLES, host_rows)


def _part_table(
    entries: Sequence[_Entry], titles: Sequence[str], rows_of: Callable[[Mapping[str, Any]], Sequence[Sequence[str]]]
) -> Iterator[str]:  # fmt: skip
    """Yield a table with rows for parts of each experiment, or nothing if none has parts."""
    rows = [(fullname, row) for fullname, info in entries[:_MOST_ROWS] for row in rows_of(info)][:_MOST_ROWS]
    if not rows:
        return
    yield f"| experiment |{''.join(f' {title} |' for title in titles)}"
    yield f"|---|---|{'---:|' * (len(titles) - 1)}"
    for fullname, row in rows:
        yield f"| {_escape_code(fullname)} |{''.join(f' {_escape_text(cell)} |' for cell in row)}"
    yield ""


def _comparison_table(entries: Sequence[_Entry]) -> Iterator[str]:
    """Yield the table of comparisons of side B with side A, which were measured in turns."""
    if not entries:
        return
    yield "### A versus B"
    yield ""
    yield f"| verdict | experiment |{''.join(f' {title} |' for title in versus.TITLES)}"
    yield f"|---|---|---|{'---:|' * (len(versus.TITLES) - 2)}---|"
    for fullname, info in entries[:_MOST_COMPARISONS]:
        comparison = info["versus"]
        sides = " versus ".join(_escape_code(str(comparison.get(side))) for side in "AB")
        name = _escape_code(fullname) + (" **?**" if entry_doubts(info) else "")
        row_start = f"| {_VERDICTS[_worst_verdict(info)]} | {name}: {sides} |"
        for row in versus.comparison_cells(comparison) or [(_UNKNOWN,) * len(versus.TITLES)]:
            yield f"{row_start}{''.join(f' {_escape_text(cell)} |' for cell in row)}"
            row_start = "| | |"
    yield ""
    if len(entries) > _MOST_COMPARISONS:
        more = format_count(len(entries) - _MOST_COMPARISONS, "more comparison is", "more comparisons are")
        yield f"{more} left out here, and in the stored run."
        yield ""


def _column_keys(info: Mapping[str, Any], metrics: Sequence[str]) -> tuple[str, ...]:
    if metrics:
        return tuple(metrics)
    keys = _RUN_KEYS if "operation" in info else [key for key in info if key in METRICS]
    return tuple(key for key in keys if key in info)[:_MOST_COLUMNS]


def _format_cell(key: str, value: float | None) -> str:
    return _UNKNOWN if value is None else _escape_text(column_of(key)[2](value))


def _unmet_lines(entries: Sequence[_Entry], verdict: str) -> Iterator[str]:
    """Yield the unmet expectations and gate lines of the entries with a verdict."""
    for fullname, info in entries:
        if _worst_verdict(info) == verdict:
            gate = _text_list(_gate_outcome(info), "lines") if _gate_outcome(info).get("answer") == verdict else []
            lines = [*_text_list(info, "expectations_unmet"), *gate]
            lines += ["the test failed"] if verdict == "broken" and not lines else []
            yield from (f"{_escape_code(fullname)}: {_escape_text(line)}" for line in lines)


def _doubt_lines(entries: Sequence[_Entry]) -> Iterator[str]:
    for fullname, info in entries:
        yield from (f"{_escape_code(fullname)}: {_escape_text(doubt)}" for doubt in entry_doubts(info))


def _note_lines(entries: Sequence[_Entry]) -> Iterator[str]:
    yield from dict.fromkeys(_escape_text(note) for _, info in entries for note in _text_list(info, "notes"))


def _text_list(info: Mapping[str, Any], key: str) -> list[str]:
    stored = info.get(key)
    return [str(text) for text in stored] if isinstance(stored, list) else []


def _render_list(title: str, lines: Iterator[str]) -> Iterator[str]:
    items = list(lines)
    if items:
        yield f"### {title}"
        yield ""
        yield from (f"- {item}" for item in items[:_MOST_LINES])
        if len(items) > _MOST_LINES:
            yield f"- and {len(items) - _MOST_LINES} more"
        yield ""


# --- texts of unknown origin ---


def _escape_code(text: str) -> str:
    """Return a name as code."""
    text = _printable_line(text)
    if _PLAIN.fullmatch(text):
        return f"`{text}`" if text.strip() else _UNKNOWN
    return f"<code>{re.sub(r'[^A-Za-z0-9 ]', lambda match: f'&#{ord(match[0])};', text)}</code>"


def _escape_text(text: str) -> str:
    """Escape everything in a text that has a meaning in Markdown or HTML."""
    escaped = _ACTIVE.sub(lambda match: f"&#{ord(match[0])};", _printable_line(text))
    return _LINKS.sub(lambda match: f"{match[0]}<!-- -->", escaped)


def _printable_line(text: str) -> str:
    """Return a text in one line of at most ``_LONGEST`` characters."""
    text = printable(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
