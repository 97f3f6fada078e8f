"""The last table of a run of several providers: what was measured alike stands one below the other.

What may live here: turning findings of one experiment on several providers into lines of text. Who is best is
``judge.ranking``'s to say; here it becomes a mark.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.judge.ranking import FEWEST_OPS, Candidate, Distance, Ranking, distance, rank
from pytest_cloudbench.report.table import column
from pytest_cloudbench.results.suite import read_titles

BEST, _AMONG, _DOUBTED = "*", "~", "?"
_LEGEND = "* best by 25 % or more (five runs: 10 %, rates: 1 point)   ~ closer to the best   ? has doubts, not compared"
_EMPHASIZED = re.compile(r"\S+( %)?\*(?=\s|$)")

_REPEAT = re.compile(r"(#[a-z]+)-\d+$")
"""How a bench file labels what it repeats: ``upload``, ``upload-2``..."""

_SHORTEST_NAME = 16
_GAP = "  "
_SHARE = 0.01
_LEAST_RUNS = 5
_OF_RUN = ("loss_rate", "ok_rate", "throttled", "failed", "corrupt", "response_p50", "response_p99", "first_byte_p50",
           "throughput", "requests_per_op")  # fmt: skip
_TITLES = {
    "ok_rate": "ok", "first_byte_p50": "1st byte ms", "throughput": "MB/s", "requests_per_op": "req/op",
}  # fmt: skip
_COUNTS = frozenset({"throttled", "failed", "corrupt"})
_TWINS = {"response_p50": "lateness_p50", "response_p99": "lateness_p99"}


class _Finding(Protocol):
    @property
    def nodeid(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def info(self) -> Mapping[str, Any]: ...
    @property
    def columns(self) -> Sequence[str]: ...
    @property
    def experiment(self) -> str: ...
    @property
    def spread(self) -> Mapping[str, Sequence[float]]: ...


@dataclass(frozen=True, slots=True)
class _Row:
    """One experiment on one provider; several findings if it was run several times."""

    provider: str
    findings: Sequence[_Finding]

    @property
    def info(self) -> Mapping[str, Any]:
        return self.findings[-1].info

    @property
    def has_doubts(self) -> bool:
        return any(finding.info["doubts"] for finding in self.findings)

    def value(self, key: str) -> Any:
        numbers = self.numbers(key)
        return median(numbers) if len(numbers) > 1 and key in METRICS else self.info.get(key)

    def numbers(self, key: str) -> list[float]:
        """The value in each run, if it is known in all of them."""
        values = [finding.info.get(key) for finding in self.findings]
        numbers = [float(value) for value in values if isinstance(value, (int, float))]
        return numbers if len(numbers) == len(values) else []

    def candidate(self, key: str, most_ok: float) -> Candidate:
        value = self.value(key)
        runs = self.numbers(key)
        is_of_runs = len(runs) >= _LEAST_RUNS
        metric, exclusion = METRICS.get(key), ""
        ok = self.info.get("ok_rate")
        if self.has_doubts:
            exclusion = "all others have doubts"
        elif metric and metric.time_like:
            if self.info["time_scale"] != 1.0:
                exclusion = "the time scale distorts times"
            elif ok is not None and ok < most_ok - _SHARE:
                exclusion = "the others completed fewer operations"
        samples: Sequence[float] = runs if is_of_runs else self.findings[-1].spread.get(key, ())
        if key == "loss_rate" and not is_of_runs and not self._outcomes_tell_losses:
            samples = ()
        return Candidate(
            value if isinstance(value, (int, float)) else None, samples, is_of_runs,
            any(note.startswith("this machine was busy") for note in self.info["notes"]),
            self.info.get(_TWINS.get(key, "")) or 0.0, exclusion,
        )  # fmt: skip

    @property
    def _outcomes_tell_losses(self) -> bool:
        """Return whether as many files are lost as operations did not succeed."""
        info = self.info
        return bool(info.get("lost") == (info.get("ops") or 0) - (info.get("ok") or 0))


@dataclass(frozen=True, slots=True)
class _Group:
    """One experiment on several providers."""

    experiment: str
    rows: Sequence[_Row]

    @property
    def label(self) -> str:
        return self.experiment.rpartition("::")[2].replace("]#", "] ").replace("#", " ")

    @property
    def titles(self) -> Mapping[str, str]:
        """Return what its suite calls columns."""
        return read_titles(self.rows[0].info)

    def has_spread(self, key: str) -> bool:
        """Return whether a metric can vary within its runs: a conclusion says so, and a run does if it is long."""
        last = [row.findings[-1] for row in self.rows]
        return not any(finding.columns for finding in last) or any(finding.spread.get(key) for finding in last)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What groups have in common that share their columns."""
        info = self.rows[0].info
        columns = tuple(self.rows[0].findings[-1].columns)
        return columns or (info.get("operation", ""), info.get("threads") is None)


def _groups(findings: Sequence[_Finding]) -> list[_Group]:
    found: dict[str, dict[str, list[_Finding]]] = {}
    for finding in findings:
        name = _REPEAT.sub(r"\1", finding.experiment)
        found.setdefault(name, {}).setdefault(finding.provider, []).append(finding)
    return [
        _Group(experiment, [_Row(provider, runs) for provider, runs in of.items()])
        for experiment, of in found.items() if len(of) > 1 and experiment
    ]  # fmt: skip


def compared(findings: Sequence[_Finding]) -> set[str]:
    """Return the names of the experiments that several providers went through."""
    return {finding.experiment for group in _groups(findings) for row in group.rows for finding in row.findings}


def emphasized(line: str, tone: Callable[[str], str]) -> str:
    """Return a line of ``comparison`` with ``tone`` put on what is marked as best."""
    return _EMPHASIZED.sub(lambda match: tone(match[0]), line)


def comparison(findings: Sequence[_Finding], width: int) -> list[str]:
    """Return the lines of the table for a terminal of ``width`` columns; none if nothing was measured twice."""
    groups = [group for group in _groups(findings) if _keys([group])]
    if not groups:
        return []
    names = _short_names([row.provider for group in groups for row in group.rows], width)
    lines = [""]
    marks = ""
    former: tuple[Any, ...] | None = None
    for kind in dict.fromkeys(group.kind for group in groups):
        alike = [group for group in groups if group.kind == kind]
        keys, titles = _keys(alike), alike[0].titles
        cells = {group.experiment: _cells(group, keys) for group in alike}
        widths = [
            max(len(_title(key, titles)) + 1, *(len(row[place]) for rows, _ in cells.values() for row in rows))
            for place, key in enumerate(keys)
        ]
        wide = max(len("provider"), *(len(name) + 2 for name in names.values()))
        for places in _pages(widths, width - wide):
            lines += [""] if former is not None else []
            former = kind
            heads = [f"{_title(keys[at], titles)} ".rjust(widths[at]) for at in places]
            head = "provider".ljust(wide) + "".join(_GAP + text for text in heads)
            lines += [head.rstrip(), "-" * min(width, wide + sum(widths[at] + len(_GAP) for at in places) - 1)]
            for group in alike:
                rows, told = cells[group.experiment]
                lines += textwrap.wrap(group.label, width, subsequent_indent="  ", break_on_hyphens=False)
                for row, texts in zip(group.rows, rows, strict=True):
                    name = names[row.provider] + (_DOUBTED if row.has_doubts else "")
                    line = f"  {name}".ljust(wide) + "".join(_GAP + texts[at].rjust(widths[at]) for at in places)
                    lines.append(line.rstrip())
                    marks += line[wide:] + (_DOUBTED if row.has_doubts else "")
                for line in told if places[-1] == len(keys) - 1 else ():
                    lines += textwrap.wrap(line, width, initial_indent="  ", subsequent_indent="    ")
    if any(mark in marks for mark in (BEST, _AMONG, _DOUBTED)):
        lines += ["", *textwrap.wrap(_LEGEND, width, subsequent_indent="  ")]
    for note in _notes(groups, names):
        lines += textwrap.wrap(f"note: {note}", width, subsequent_indent="  ")
    return [*lines, ""]


@dataclass(frozen=True, slots=True)
class Standing:
    """One experiment with its providers one below the other, for other tables than that of a terminal.

    Attributes:
        experiment: its name, without a provider.
        keys, titles: its columns: metrics or extra values, and what they are called.
        providers: each with its cells, and whether its run has doubts.
        distances: by column, how far each provider is from the best value; see ``judge.ranking.distance``.
        told: what to read below it.
    """

    experiment: str
    keys: Sequence[str]
    titles: Sequence[str]
    providers: Sequence[tuple[str, Sequence[str], bool]]
    distances: Mapping[str, tuple[str, Mapping[str, Distance | None]]]
    told: Sequence[str]


def standings(findings: Sequence[_Finding]) -> tuple[list[Standing], list[str]]:
    """Return what several providers went through, and notes that hold for all of it."""
    groups = [group for group in _groups(findings) if _keys([group])]
    found = []
    for group in groups:
        keys = _keys([group])
        cells, told = _cells(group, keys)
        lines = [(row.provider, texts, row.has_doubts) for row, texts in zip(group.rows, cells, strict=True)]
        apart = {key: far for key in keys if key in METRICS and (far := _distances(group, key)) is not None}
        titles = [_title(key, group.titles) for key in keys]
        found.append(Standing(group.experiment, keys, titles, lines, apart, told))
    return found, _notes(groups, {row.provider: row.provider for group in groups for row in group.rows})


def _distances(group: _Group, key: str) -> tuple[str, dict[str, Distance | None]] | None:
    """Return who has the best value, and how far each other provider is from it; None if there is no such value."""
    candidates = _candidates(group, key)
    known = {name: each.value for name, each in candidates.items() if each.value is not None and not each.exclusion}
    if len(known) < 2:
        return None
    best = (min if METRICS[key].better == "lower" else max)(known, key=lambda name: known[name])
    others = {name: distance(key, each, candidates[best]) for name, each in candidates.items() if name != best}
    return (best, others) if any(others.values()) else None


def _candidates(group: _Group, key: str) -> dict[str, Candidate]:
    most_ok = max((row.info.get("ok_rate") or 0.0 for row in group.rows if not row.has_doubts), default=0.0)
    return {row.provider: row.candidate(key, most_ok) for row in group.rows}


def _keys(groups: Sequence[_Group]) -> list[str]:
    """Return the columns of some experiments that are measured alike."""
    rows = [row for group in groups for row in group.rows]
    named = rows[0].findings[-1].columns
    if named:
        known = [key for key in named if key in METRICS]
        return known or [key for key in named if not all(_is_quoted(row, key) for row in rows)] or list(named)
    keys = [key for key in _OF_RUN if any(row.value(key) is not None for row in rows)]
    if "loss_rate" in keys:
        keys.remove("ok_rate")
    if all(row.info.get("threads") is None for row in rows) and "throughput" in keys:
        keys.remove("throughput")  # an open loop sets it
    return [key for key in keys if key not in _COUNTS or any(row.value(key) for row in rows)]


def _is_quoted(row: _Row, key: str) -> bool:
    """Return whether a text is a paper's, and thus says nothing of who is compared."""
    value, published = row.value(key), row.info.get("published")
    return isinstance(value, str) and isinstance(published, Mapping) and value in published.values()


def _cells(group: _Group, keys: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Return the texts of an experiment's rows, with their marks, and what is to be said below them."""
    ranked: dict[str, Ranking] = {}
    for key in keys:
        if key in METRICS and key != "requests_per_op" and not group.has_spread(key):
            ranked[key] = Ranking("not judged", why="one value each")
        elif key in METRICS and key != "requests_per_op":
            ranked[key] = rank(key, _candidates(group, key))
    cells = []
    for row in group.rows:
        texts = []
        for key in keys:
            mark, found = " ", ranked.get(key)
            if found and row.provider in found.leaders and found.verdict in ("best", "among the best"):
                mark = BEST if found.verdict == "best" else _AMONG
            texts.append(column(key)[2](row.value(key)) + mark)
        cells.append(texts)
    close, unjudged = dict[str, list[str]](), dict[str, list[str]]()
    for key, ranking in ranked.items():
        if ranking.verdict == "close":
            close.setdefault(ranking.why, []).append(_title(key, group.titles))
        elif ranking.verdict == "not judged" and ranking.why != "only one value is known":
            unjudged.setdefault(ranking.why, []).append(_title(key, group.titles))
    told = [f"{finding}: {', '.join(titles)}" for finding, titles in close.items()]
    told += [f"not judged: {', '.join(titles)} ({_explained(reason)})" for reason, titles in unjudged.items()]
    return cells, told


def _explained(reason: str) -> str:
    needed = f": {FEWEST_OPS} operations, or 5 rounds or runs, are needed"
    return reason + needed * reason.startswith("too few")


def _title(key: str, titles: Mapping[str, str]) -> str:
    return titles.get(key) or _TITLES.get(key) or column(key)[0]


def _pages(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return which columns stand in which table: those that do not fit follow below."""
    pages: list[list[int]] = [[]]
    used = 0
    for place, size in enumerate(widths):
        if pages[-1] and used + size + len(_GAP) > room + 1:
            pages.append([])
            used = 0
        pages[-1].append(place)
        used += size + len(_GAP)
    return pages


def _short_names(providers: Sequence[str], width: int) -> dict[str, str]:
    """Return a name for each provider that leaves room for numbers; a long one is cut where they do not differ."""
    most, names = max(_SHORTEST_NAME, width * 3 // 10), list(dict.fromkeys(providers))
    ways = ([_cut(name, most, keeps_end=end) for name in names] for end in (True, False))
    short = next((found for found in ways if len(set(found)) == len(names)), None)
    if short is None:
        short = [f"{_cut(name, most - 4, keeps_end=False)}({number})" for number, name in enumerate(names, 1)]
    return dict(zip(names, short, strict=True))


def _cut(name: str, most: int, *, keeps_end: bool) -> str:
    if len(name) <= most:
        return name
    if not keeps_end:
        return f"{name[: most - 2]}.."
    head = name.partition(":")[0][: most // 2]
    return f"{head}:..{name[len(name) - (most - len(head) - 3) :]}"


def _notes(groups: Sequence[_Group], names: Mapping[str, str]) -> list[str]:
    kinds: dict[Any, list[str]] = {}
    for group in groups:
        for row in group.rows:
            kinds.setdefault(row.info["emulated"], []).append(names[row.provider])
    notes = []
    if kinds.keys() == {True}:
        notes.append("all are emulated: this compares profiles, clients and loopback, not services")
    elif len(kinds) > 1:
        words = {True: "emulated (client and loopback)", False: "not emulated", "some": "partly emulated"}
        told = "; ".join(f"{words[kind]}: {', '.join(dict.fromkeys(who))}" for kind, who in kinds.items())
        notes.append(f"{told}. A difference between these kinds is not one between services")
    return notes
