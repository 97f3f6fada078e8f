"""Runs as Markdown, for people who look at a CI job: what is broken first, then every experiment, then what to doubt.

What may live here: turning entries into GitHub's Markdown, which GitLab reads too. Names and texts may come from
anybody: none of them can become a link, a mention, a tag or another cell. What is unknown is a dash and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.report import versus
from pytest_cloudbench.report.export import StoredRun, doubts_of, emulated_text, is_comparison
from pytest_cloudbench.report.table import column

_OF_RUN = (
    "ops", "loss_rate", "throttled", "failed", "corrupt", "response_p50", "response_p95", "response_p99",
    "lateness_p99",
)  # fmt: skip
_MOST_COLUMNS, _MOST_ROWS, _MOST_COMPARISONS, _MOST_LINES, _LONGEST = 9, 500, 50, 200, 300
"""What keeps a summary below the 1 MiB that GitHub shows."""

_NOT_STORED = ""
_VERDICTS = {
    "broken": "❌ broken", "inconclusive": "⚠️ inconclusive", "note": "note", "met": "✅ met", "none": "-",
    _NOT_STORED: "-",
}  # fmt: skip
_UNKNOWN = "-"

_PLAIN = re.compile(r"[^`|\\]*")
_ACTIVE = re.compile(r"[&<>|\\`*\[\]~#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_LINKS = re.compile(r"@(?=\w)|:(?=//)|w(?=\.)", re.IGNORECASE)
"""Where GitHub would begin a mention or a link in plain text; an empty comment in between prevents it."""

_Entry = tuple[str, Mapping[str, Any]]


def summary(runs: Sequence[StoredRun], metrics: Sequence[str] = (), remark: str = "") -> str:
    """Return a section for each run.

    Args:
        runs: what to show.
        metrics: the columns, names in ``METRICS``; empty: those that an experiment of its kind is known by.
        remark: what else is known of the session, in one line.
    """
    lines: list[str] = []
    for run in runs:
        lines += [f"## cloudbench: {_code(run.name)}", "", *_about(run, remark), ""]
        ordered = sorted(run.entries, key=lambda entry: [*_VERDICTS].index(_verdict(entry[1])))
        lines += _tables([entry for entry in ordered if not is_comparison(entry[1])], metrics)
        lines += _comparisons([entry for entry in ordered if is_comparison(entry[1])])
        lines += _list("Broken", _lines(ordered, "broken"))
        lines += _list("Inconclusive", _lines(ordered, "inconclusive"))
        lines += _list("Not met", _lines(ordered, _NOT_STORED))
        lines += _list("Doubts: these numbers may be wrong", _doubts(ordered))
        lines += _list("Notes", _notes(ordered))
    return "\n".join(lines)


def _about(run: StoredRun, remark: str) -> Iterator[str]:
    counted = Counter(_verdict(info) for _, info in run.entries)
    told = [f"{count} {word}" for verdict, word in _COUNTED if (count := counted[verdict])]
    count = len(run.entries)
    experiments = "no experiment was measured" if not count else f"{count} experiment{'s' * (count > 1)}"
    yield f"**{experiments}{': ' if told else ''}{', '.join(told)}**"
    if remark:
        yield f"<br>{_text(remark)}"
    known = [f"commit {_code(run.commit[:12])}"] if run.commit else []
    known += [f"branch {_code(run.branch)}"] if run.branch else []
    if run.time_ms is not None:
        known.append(f"{datetime.fromtimestamp(run.time_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC")
    known += [
        _text(machine)
        for machine in dict.fromkeys(str(info["machine"]) for _, info in run.entries if info.get("machine"))
    ]
    if known:
        yield f"<br>{'; '.join(known)}"
    if any(emulated_text(info) for _, info in run.entries):
        yield "<br>Emulated services measure the client and the loopback, not the service."


_COUNTED = (
    ("broken", "broken"), ("inconclusive", "inconclusive"), ("met", "met"), ("note", "without a verdict yet"),
    ("none", "without an expectation"), (_NOT_STORED, "of a version that stored no verdict"),
)  # fmt: skip


def _verdict(info: Mapping[str, Any]) -> str:
    """Return the worse of the verdict by expectations and the answer of the regression gate."""
    given = (info.get("verdict"), _gate(info).get("answer"))
    known = [verdict for verdict in given if isinstance(verdict, str) and verdict in _VERDICTS]
    return min(known, key=[*_VERDICTS].index, default="none" if is_comparison(info) else _NOT_STORED)


def _gate(info: Mapping[str, Any]) -> Mapping[str, Any]:
    gate = info.get("gate")
    return gate if isinstance(gate, dict) else {}


def _tables(entries: Sequence[_Entry], metrics: Sequence[str]) -> Iterator[str]:
    """Yield a table for each kind of experiment, and how many numbers are unknown."""
    shown, unknown = entries[:_MOST_ROWS], 0
    kinds: dict[tuple[str, ...], list[_Entry]] = {}
    for entry in shown:
        kinds.setdefault(_keys(entry[1], metrics), []).append(entry)
    for keys, members in kinds.items():
        yield f"| verdict | experiment | provider |{''.join(f' {_text(column(key)[0])} |' for key in keys)}"
        yield f"|---|---|---|{'---:|' * len(keys)}"
        for fullname, info in members:
            cells = [_cell(key, info.get(key)) for key in keys]
            unknown += cells.count(_UNKNOWN)
            emulated = emulated_text(info)
            doubt = " **?**" if doubts_of(info) else ""
            provider = _code(str(info.get("provider", ""))) + (f" ({emulated})" if emulated else "")
            yield f"| {_VERDICTS[_verdict(info)]} | {_code(fullname)}{doubt} | {provider} | {' | '.join(cells)} |"
        yield ""
    if unknown:
        yield f"{unknown} {'number is' if unknown == 1 else 'numbers are'} unknown: {_UNKNOWN}"
        yield ""
    if len(entries) > len(shown):
        yield f"{len(entries) - len(shown)} more experiments are left out here, and are in the stored run."
        yield ""


def _comparisons(entries: Sequence[_Entry]) -> Iterator[str]:
    """Yield a table of two sides that were measured in turns; B is compared with A."""
    if not entries:
        return
    yield "### A versus B"
    yield ""
    yield f"| verdict | experiment |{''.join(f' {title} |' for title in versus.TITLES)}"
    yield f"|---|---|---|{'---:|' * (len(versus.TITLES) - 2)}---|"
    for fullname, info in entries[:_MOST_COMPARISONS]:
        told = info["versus"]
        sides = " versus ".join(_code(str(told.get(side))) for side in "AB")
        begin = f"| {_VERDICTS[_verdict(info)]} | {_code(fullname)}{' **?**' if doubts_of(info) else ''}: {sides} |"
        for row in versus.cells(told) or [(_UNKNOWN,) * len(versus.TITLES)]:
            yield f"{begin}{''.join(f' {_text(cell)} |' for cell in row)}"
            begin = "| | |"
    yield ""
    if len(entries) > _MOST_COMPARISONS:
        yield f"{len(entries) - _MOST_COMPARISONS} more comparisons are left out here, and are in the stored run."
        yield ""


def _keys(info: Mapping[str, Any], metrics: Sequence[str]) -> tuple[str, ...]:
    if metrics:
        return tuple(metrics)
    keys = _OF_RUN if "operation" in info else [key for key in info if key in METRICS]
    return tuple(key for key in keys if key in info)[:_MOST_COLUMNS]


def _cell(key: str, value: Any) -> str:
    return _text(column(key)[2](value)) if is_finite(value) else _UNKNOWN


def _lines(entries: Sequence[_Entry], verdict: str) -> Iterator[str]:
    """Yield what is not met in entries with a verdict."""
    for fullname, info in entries:
        if _verdict(info) == verdict:
            gate = _texts(_gate(info), "lines") if _gate(info).get("answer") == verdict else []
            yield from (f"{_code(fullname)}: {_text(line)}" for line in [*_texts(info, "expectations_unmet"), *gate])


def _doubts(entries: Sequence[_Entry]) -> Iterator[str]:
    for fullname, info in entries:
        yield from (f"{_code(fullname)}: {_text(doubt)}" for doubt in doubts_of(info))


def _notes(entries: Sequence[_Entry]) -> Iterator[str]:
    yield from dict.fromkeys(_text(note) for _, info in entries for note in _texts(info, "notes"))


def _texts(info: Mapping[str, Any], key: str) -> list[str]:
    found = info.get(key)
    return [str(each) for each in found] if isinstance(found, list) else []


def _list(title: str, found: Iterator[str]) -> Iterator[str]:
    items = list(found)
    if items:
        yield f"### {title}"
        yield ""
        yield from (f"- {item}" for item in items[:_MOST_LINES])
        if len(items) > _MOST_LINES:
            yield f"- and {len(items) - _MOST_LINES} more"
        yield ""


# --- what others have written ---


def _code(text: str) -> str:
    """Return a name in the letters of a program."""
    text = _printable(text)
    if _PLAIN.fullmatch(text):
        return f"`{text}`" if text.strip() else _UNKNOWN
    return f"<code>{re.sub(r'[^A-Za-z0-9 ]', lambda found: f'&#{ord(found[0])};', text)}</code>"


def _text(text: str) -> str:
    """Return a text in which nothing has a meaning in Markdown or HTML."""
    escaped = _ACTIVE.sub(lambda found: f"&#{ord(found[0])};", _printable(text))
    return _LINKS.sub(lambda found: f"{found[0]}<!-- -->", escaped)


def _printable(text: str) -> str:
    """Return one line of at most ``_LONGEST`` characters."""
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
