"""The table at the end of a run, in the manner of the thesis's Table 4.2.

What may live here: turning findings into lines of text. Throttling is separate from failure, and what is not
known is a dash, never a zero.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, Protocol

from pytest_cloudbench.judge.metrics import BUILT_IN, METRICS
from pytest_cloudbench.judge.quiet import MAX_WAIT_SHARE
from pytest_cloudbench.report.columns import fitted
from pytest_cloudbench.report.distance import compare_with_published
from pytest_cloudbench.report.quantities import (
    format_bytes,
    format_megabytes,
    format_milliseconds,
    format_parameter,
    format_share,
    format_value,
)
from pytest_cloudbench.results.suite import read_titles


class _Finding(Protocol):
    @property
    def nodeid(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def params(self) -> Mapping[str, Any]: ...
    @property
    def info(self) -> Mapping[str, Any]: ...
    @property
    def columns(self) -> Sequence[str]: ...


_RATIO_ENDS = ("deviation", "noise", "share")
"""Ends of names without a row in ``METRICS`` that are ratios; ``_s`` is seconds (docs/extending/metric.md)."""

_Column = tuple[str, str, Callable[[Any], str]]


def _if_number(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """Format numbers only: a suite's extra value may have any name, and may be a text."""
    return lambda value: show(value) if isinstance(value, (int, float)) else format_value(value)


_OF_UNIT: Mapping[str, Callable[[float], str]] = {
    "s": format_milliseconds, "fraction": format_share, "bytes": format_bytes, "bytes/s": format_megabytes,
}  # fmt: skip
"""How a column shows a metric of a unit: titles name ms and MB/s, cells the others."""


def _measured(key: str) -> _Column:
    """Return the column of a metric of one run, with the title and unit of its row in ``METRICS``."""
    return METRICS[key].column, key, _if_number(_OF_UNIT.get(METRICS[key].unit, format_value))


def column(key: str) -> _Column:
    """Return title, key and format of a metric or extra value, as every table shows it."""
    return _measured(key) if key in METRICS and METRICS[key].column else _named(key)


_NONE = ["no expectation"]

_PERCENTAGE = re.compile(r"\d+\.\d\d %|-")
_STARVED = METRICS["starved_share"].column
_LONG_FORM = frozenset({METRICS["response_p95"].column})
_OMITTED = {"0": "0 in all rows", "-": "unknown in all rows"}
_OF_UPLOADS = ("files", "listed_twice", "lost", "loss_rate", "published_loss_rate", "silently_lost", "threads")

_COLUMNS: tuple[_Column, ...] = (
    ("threads", "threads", format_value),
    ("sensors", "sensors", format_value),
    ("interval s", "interval_s", _if_number(lambda value: f"{value:g}")),
    ("files", "files", format_value),
    ("ops", "ops", format_value),
    ("MB/s", "throughput", _if_number(lambda value: f"{value / 1e6:,.2f}")),
    ("ops/s", "ops_per_s", _if_number(lambda value: f"{value:,.3g}" if value < 1000 else f"{value:,.0f}")),
    ("lost", "lost", format_value),
    _measured("loss_rate"),
    ("published", "published_loss_rate", _if_number(format_share)),
    ("throttled", "throttled", format_value),
    ("failed", "failed", format_value),
    ("corrupt", "corrupt", format_value),
    ("silent", "silently_lost", format_value),
    ("twice", "listed_twice", format_value),
    *(_measured(name) for name, metric in BUILT_IN.items() if metric.column and name != "loss_rate"),
)


def render(findings: Sequence[_Finding], width: int, verbosity: int = 0) -> list[str]:
    """Lines for a terminal of ``width`` columns: one table for each provider and test.

    With a verbosity of -1 (``-q``) only doubts and what is not met appear below the tables, with -2 only they appear.
    """
    lines: list[str] = []
    groups: dict[tuple[str, ...], list[_Finding]] = {}
    for finding in findings:
        test = finding.nodeid.partition("[")[0].partition("#")[0]
        key = (finding.provider, test, finding.info.get("operation", ""), *finding.columns)
        groups.setdefault(key, []).append(finding)
    for (provider, test, *_), members in groups.items():
        told = _remarks(members, width, is_short=verbosity < 0)
        if verbosity > -2 or told:
            title = _title(provider, test, members[0].info)
            lines += ["", *textwrap.wrap(title, width, subsequent_indent="  ", break_on_hyphens=False)]
        if verbosity > -2:
            lines += _table(members, width)
        lines += told
    return [*lines, ""] if lines else []


_TONES = (
    (re.compile(r"  .*(: broken, measured | breaks the bound |: gate \S+: unknown, )"), {"red": True}),
    (re.compile(r"! |  .*: unknown, "), {"yellow": True}),
    (re.compile(r"  .*( is within the bound |\d expectations? met$)"), {"green": True}),
)


def markup(line: str) -> Mapping[str, bool]:
    """Return the markup for a line of ``render`` in colour: what fails is red, in doubt yellow, met green."""
    return next((tone for pattern, tone in _TONES if pattern.match(line)), {})


def _title(provider: str, test: str, info: Mapping[str, Any]) -> str:
    operation = info.get("operation", "put")
    agents = info["agents"]
    parts = [f"{test.rpartition('::')[2]}  {provider}", f"{agents} agent{'s' * (agents != 1)}"]
    parts += [f"{info['loop']} loop"] if info["loop"] else []
    parts += [operation] if operation != "put" else []
    file_system = info["versions"].get("file system") if isinstance(info.get("versions"), dict) else None
    parts += [f"on {file_system}"] if file_system else []
    if info["emulated"]:
        how = "partly emulated" if info["emulated"] == "some" else "emulated"
        parts.append(f"{how}: measures the client and the loopback")
    if info["time_scale"] != 1.0:
        parts.append(f"time scale {info['time_scale']:g}: times are not comparable")
    return ", ".join(parts)


def cells(members: Sequence[_Finding]) -> list[list[str]]:
    """Return the titles, and a row for each of some findings that are measured alike."""
    columns = _columns(members)
    rows = [[title for title, _, _ in columns]]
    for finding in members:
        known = {
            **finding.params, **finding.info, "published_loss_rate": finding.info["published"].get("loss_rate"),
        }  # fmt: skip
        rows.append([show(known.get(key)) for _, key, show in columns])
    return rows


def _table(members: Sequence[_Finding], width: int) -> list[str]:
    rows, left_out = _fitting(_without_long_form(cells(members), width), width)
    told = "; ".join(
        f"{', '.join(title for title in left_out if left_out[title] == why)} ({why})"
        for why in dict.fromkeys(left_out.values())
    )
    return [*fitted(rows, width), *([f"  columns omitted: {told}"] if told else [])]


def _columns(members: Sequence[_Finding]) -> list[_Column]:
    """Return a table's columns: those that a conclusion names, or all relevant ones that a row has a key for."""
    if members[0].columns:
        params = [key for key in members[0].params if key not in members[0].columns]
        titles, named = read_titles(members[0].info), [_named(key) for key in members[0].columns]
        named = [(titles.get(key, title), key, show) for title, key, show in named]
        return [(titles.get(key, title), key, show) for title, key, show in map(_parameter, params)] + named

    first = members[0].info
    hidden = {"ops", "threads"} if first.get("operation", "put") == "put" else set(_OF_UPLOADS)
    if first.get("threads") is not None:
        hidden ^= {"threads", "sensors", "interval_s"} if "threads" in hidden else {"sensors", "interval_s"}
    if not _is_unpaced(first):
        hidden |= {"throughput", "ops_per_s"}
    if not any(finding.info["published"] for finding in members):
        hidden.add("published_loss_rate")
    if not any(finding.info.get("listed_twice") for finding in members):
        hidden.add("listed_twice")  # few services list a name more than once
    measured = {"published_loss_rate"}.union(*({*finding.params, *finding.info} for finding in members))
    shown = [column for column in _COLUMNS if column[1] in measured - hidden]
    return [*_varied(members, {key for _, key, _ in shown}), *shown]


def _is_unpaced(info: Mapping[str, Any]) -> bool:
    """Return whether the load went as fast as the provider let it, so that its rate is the question."""
    return info.get("threads") is not None or f"{info.get('arrival')}".startswith("ThinkTime(interval_s=0,")


def _varied(members: Sequence[_Finding], shown: Set[str]) -> list[_Column]:
    """Return parameters that distinguish the rows and have no column yet."""
    params = [key for key in members[0].params if key not in shown]
    return [
        _parameter(key)
        for key in params
        if any(finding.params.get(key) != members[0].params[key] for finding in members)
    ]


def parameter_title(name: str) -> str:
    """Return what a parameter is called where its value is shown; a size has its unit in its value."""
    return "size" if name == "size_bytes" else name.replace("_", " ")


def _parameter(key: str) -> _Column:
    return parameter_title(key), key, partial(format_parameter, key)


def _named(key: str) -> _Column:
    """Return a column of a conclusion, shown in the unit of its metric, or as the end of its name says."""
    unit = METRICS[key].unit if key in METRICS else ""
    title = key.replace("_", " ").removesuffix(" per s") + (" /s" if key.endswith("_per_s") else "")
    if unit == "s" or (not unit and key.endswith("_s") and not key.endswith("_per_s")):
        return f"{title.removesuffix(' s')} ms", key, _if_number(format_milliseconds)
    if unit == "fraction" or (not unit and key.endswith(_RATIO_ENDS)):
        return title, key, _if_number(format_share)
    if unit == "bytes/s":
        return f"{title} MB/s", key, _if_number(format_megabytes)
    if unit == "bytes" or (not unit and key.endswith("_bytes")):
        return title, key, _if_number(format_bytes)
    return title, key, format_value


def _fitting(rows: list[list[str]], width: int) -> tuple[list[list[str]], dict[str, str]]:
    """On a narrow terminal, omit columns that say little. Returns the rows, and what omitted columns hold."""
    left_out: dict[str, str] = {}
    for title in (_STARVED, "silent", "corrupt", "failed", "published", "throttled", "lost"):
        if _needed_width(rows) > width and title in rows[0]:
            place = rows[0].index(title)
            if held := _little_in({row[place] for row in rows[1:]}, is_starved=title == _STARVED):
                rows = [row[:place] + row[place + 1 :] for row in rows]
                left_out[title] = held
    return rows, left_out


def _without_long_form(rows: list[list[str]], width: int) -> list[list[str]]:
    """Return rows without the columns that only ``cloudbench show`` and the report have, if they do not fit."""
    if _needed_width(rows) <= width:
        return rows
    places = [place for place, title in enumerate(rows[0]) if title not in _LONG_FORM]
    return [[row[place] for place in places] for row in rows]


def _needed_width(rows: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True)) - 2


def _little_in(cells: Set[str], *, is_starved: bool) -> str:
    """Return what a column holds, in words, if that is nothing or so little that nothing depends on it."""
    if cells <= _OMITTED.keys():
        return _OMITTED[min(cells)] if len(cells) == 1 else "0 or unknown"
    if not is_starved or not all(map(_PERCENTAGE.fullmatch, cells)):
        return ""
    shares = [float(cell.removesuffix(" %")) / 100 for cell in cells if cell != "-"]
    if max(shares) > MAX_WAIT_SHARE:
        return ""
    return f"at most {format_share(max(shares))}" + (" or unknown" if "-" in cells else "")


def errors_said(info: Mapping[str, Any]) -> Iterator[str]:
    """Yield for each kind of error how often it occurred, and what the provider said first."""
    for kind, told in info.get("error_details", {}).items():
        count, first = told["count"], told["said"][0]
        of = "" if first["count"] == count else f", {first['count']:,} of them"
        yield f"{kind} {count:,} x{of}: {first['detail']}"


def _remarks(members: Sequence[_Finding], width: int, *, is_short: bool) -> list[str]:
    """Return all remarks to read beside the numbers, each once; or only those on doubts and broken claims."""
    remarks, said = dict[str, None](), dict[str, None]()
    met = 0
    for finding in members:
        info, label = finding.info, finding.nodeid.partition("[")[2].replace("]#", " ").removesuffix("]")
        told = [
            line for line in info["expectations"]
            if line in info["expectations_unmet"] or (line.startswith("gate ") and not is_short)
        ]  # fmt: skip
        met += len(info["expectations"]) - len(told) if info["expectations"] != _NONE else 0
        remarks |= dict.fromkeys(f"! {label}: {doubt}" for doubt in info["doubts"])
        remarks |= dict.fromkeys(f"note: {note}" for note in info["notes"] if not is_short)
        said |= dict.fromkeys(f"{label}: {line}" for line in errors_said(info))
        remarks |= dict.fromkeys(f"  {label}: {line}" for line in told)
        if not is_short:
            remarks |= dict.fromkeys(f"  {label}: {each.line}" for each in compare_with_published(info))
        if "source" in info["published"] and not is_short:
            remarks[f"  published: {info['published']['source']}"] = None
    if is_short:
        return list(remarks)
    words = [line for text in said for line in textwrap.wrap(f"  {text}", width, subsequent_indent="    ")]
    if met:
        remarks[f"  {met} expectation{'s' * (met > 1)} met"] = None
    if met and any(finding.info["expectations"] == _NONE for finding in members):
        remarks["  no expectation for the others"] = None
    if any(finding.info.get("digest_checked") is False for finding in members):
        remarks["note: sizes were compared, not content: this provider lists no digest"] = None
    return [*words, *remarks]
