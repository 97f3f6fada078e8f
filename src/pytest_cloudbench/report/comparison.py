"""The last tables of a run of several providers or hosts, with their results for the same experiment below each other.

``judge.ranking`` decides which provider is best. This module marks it in the table.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.judge.ranking import FEWEST_OPS, Candidate, Distance, Ranking, distance, rank
from pytest_cloudbench.report.finding import ReportedFinding
from pytest_cloudbench.report.hosts import ALL_HOSTS, HostFinding, format_distance, list_locations, split_by_host
from pytest_cloudbench.report.quantities import UNKNOWN
from pytest_cloudbench.report.table import column_of
from pytest_cloudbench.results.entry_names import split_name
from pytest_cloudbench.results.suite import read_titles

BEST, _CLOSE_TO_BEST, _DOUBTED = "*", "~", "?"
_LEGEND = "* best by 25 % or more (five runs: 10 %, rates: 1 point)   ~ closer to the best   ? has doubts, not compared"
_EMPHASIZED = re.compile(r"\S+( %)?\*(?=\s|$)")

_REPEAT = re.compile(r"(#[a-z]+)-\d+$")
"""The number that a bench file appends to the label of a repeated experiment: ``upload``, ``upload-2``..."""

_SHORTEST_NAME = 16
_GAP = "  "
_OK_RATE_MARGIN = 0.01
_FEWEST_RUNS = 5
_RUN_KEYS = ("loss_rate", "ok_rate", "throttled", "failed", "corrupt", "response_p50", "response_p99", "first_byte_p50",
           "throughput", "requests_per_op")  # fmt: skip
_TITLES = {
    "ok_rate": "ok", "first_byte_p50": "1st byte ms", "throughput": "MB/s", "requests_per_op": "req/op",
}  # fmt: skip
_COUNTS = frozenset({"throttled", "failed", "corrupt"})
_EMULATION_WORDS: Mapping[bool | str, str] = {
    True: "emulated (client and loopback)", False: "not emulated", "some": "partly emulated",
}  # fmt: skip
_LATENESS_KEYS = {"response_p50": "lateness_p50", "response_p99": "lateness_p99"}


class _Finding(ReportedFinding, Protocol):
    @property
    def columns(self) -> Sequence[str]: ...
    @property
    def experiment(self) -> str: ...
    @property
    def spread(self) -> Mapping[str, Sequence[float]]: ...


@dataclass(frozen=True, slots=True)
class _Row:
    """One experiment on one provider, or from one host, with a finding for each time it was run.

    ``name`` is that of the provider or host. A row over all hosts ``is_total``, and not compared with them.
    """

    name: str
    findings: Sequence[_Finding]
    is_total: bool = False

    @property
    def info(self) -> Mapping[str, Any]:
        return self.findings[-1].info

    @property
    def has_doubts(self) -> bool:
        return any(finding.info["doubts"] for finding in self.findings)

    def value(self, key: str) -> Any:
        """Return the median of a metric over all runs, the sum of a count, or what the last run says of all else."""
        numbers = self.numbers(key)
        if len(numbers) > 1 and key in _COUNTS:
            return sum(numbers)
        return median(numbers) if len(numbers) > 1 and key in METRICS else self.info.get(key)

    def numbers(self, key: str) -> list[float]:
        """Return a metric's value in each run. Empty if it is unknown in any of them."""
        values = [finding.info.get(key) for finding in self.findings]
        numbers = [float(value) for value in values if isinstance(value, (int, float))]
        return numbers if len(numbers) == len(values) else []

    def candidate(self, key: str, best_ok_rate: float) -> Candidate:
        value = self.value(key)
        runs = self.numbers(key)
        is_of_runs = len(runs) >= _FEWEST_RUNS
        metric, exclusion = METRICS.get(key), ""
        ok_rate = self.value("ok_rate")
        if self.has_doubts:
            exclusion = "all others have doubts"
        elif metric and metric.time_like:
            if self.info["time_scale"] != 1.0:
                exclusion = "the time scale distorts times"
            elif ok_rate is not None and ok_rate < best_ok_rate - _OK_RATE_MARGIN:
                exclusion = "the others completed fewer operations"
        last = self.findings[-1]
        if isinstance(last, HostFinding):
            exclusion = exclusion or last.exclusions.get(key, "")
        samples: Sequence[float] = runs if is_of_runs else self.findings[-1].spread.get(key, ())
        if key == "loss_rate" and not is_of_runs and not self._outcomes_tell_losses:
            samples = ()
        return Candidate(
            value if isinstance(value, (int, float)) else None, samples, is_of_runs,
            any(note.startswith("this machine was busy") for note in self.info["notes"]),
            self.info.get(_LATENESS_KEYS.get(key, "")) or 0.0, exclusion,
        )  # fmt: skip

    @property
    def _outcomes_tell_losses(self) -> bool:
        """True if the number of lost files equals the number of operations that did not succeed."""
        info = self.info
        return bool(info.get("lost") == (info.get("ops") or 0) - (info.get("ok") or 0))


@dataclass(frozen=True, slots=True)
class _Group:
    """One experiment on several providers, from all hosts or from one ``host``, or on one provider from several hosts.

    In the latter case, ``provider`` is its name if the table has several providers.
    """

    experiment: str
    rows: Sequence[_Row]
    host: str = ""
    provider: str = ""

    @property
    def label(self) -> str:
        name = split_name(self.experiment)
        label = f"{name.short} {name.label}".rstrip()
        return label + (f" on {self.provider}" if self.provider else "") + (f" from {self.host}" if self.host else "")

    @property
    def titles(self) -> Mapping[str, str]:
        """Titles of columns that the experiment's suite declares, by their keys."""
        return read_titles(self.rows[0].info)

    def has_spread(self, key: str) -> bool:
        """Return whether a metric's spread within a run is known. A finding without own columns counts as known."""
        last = [row.findings[-1] for row in self.rows]
        return not any(finding.columns for finding in last) or any(finding.spread.get(key) for finding in last)

    @property
    def kind(self) -> tuple[Any, ...]:
        """A key that is equal for groups with the same columns."""
        info = self.rows[0].info
        columns = tuple(self.rows[0].findings[-1].columns)
        return columns or (info.get("operation", ""), info.get("threads") is None, bool(self.host))


def _strip_repeat_number(name: str, known: Set[str]) -> str:
    """Return the name of the experiment that ``name`` repeats. A number is the label's own if the rest is unknown."""
    stem = _REPEAT.sub(r"\1", name)
    return stem if stem in known else name


def _group_findings(findings: Sequence[_Finding]) -> list[_Group]:
    known = {finding.experiment for finding in findings}
    experiments: dict[str, dict[str, list[_Finding]]] = {}
    for finding in findings:
        name = _strip_repeat_number(finding.experiment, known)
        experiments.setdefault(name, {}).setdefault(finding.provider, []).append(finding)
    groups = list[_Group]()
    for experiment, providers in experiments.items():
        if len(providers) > 1 and experiment:
            groups.append(_Group(experiment, [_Row(provider, runs) for provider, runs in providers.items()]))
            groups += _groups_by_host(experiment, providers)
    return groups


def _groups_by_host(experiment: str, providers: Mapping[str, Sequence[_Finding]]) -> list[_Group]:
    """Return an experiment on several providers once more for each host that measured more than one of them."""
    by_host: dict[str, dict[str, list[_Finding]]] = {}
    for provider, findings in providers.items():
        for finding in findings:
            for host, part in split_by_host(finding).items():
                by_host.setdefault(host, {}).setdefault(provider, []).append(part)
    return [
        _Group(experiment, [_Row(provider, parts) for provider, parts in rows.items()], host)
        for host, rows in by_host.items() if len(rows) > 1
    ]  # fmt: skip


def _group_by_hosts(findings: Sequence[_Finding]) -> list[_Group]:
    """Return each experiment on one provider that several hosts measured, with a row for each and one for all."""
    providers = {finding.provider for finding in findings}
    known = {finding.experiment or finding.nodeid for finding in findings}
    groups: dict[tuple[str, str], list[_Finding]] = {}
    for finding in findings:
        name = _strip_repeat_number(finding.experiment or finding.nodeid, known)
        groups.setdefault((name, finding.provider), []).append(finding)
    result = list[_Group]()
    for (experiment, provider), runs in groups.items():
        hosts: dict[str, list[_Finding]] = {}
        for finding in runs:
            for host, part in split_by_host(finding).items():
                hosts.setdefault(host, []).append(part)
        if hosts:
            rows = [_Row(host, parts) for host, parts in hosts.items()]
            result.append(
                _Group(experiment, [*rows, _total_row(runs)], provider=provider if len(providers) > 1 else "")
            )
    return result


def _total_row(findings: Sequence[_Finding]) -> _Row:
    """Return the row over all hosts, with the same columns as theirs."""
    totals = [
        HostFinding(finding.nodeid, finding.provider, finding.experiment, {**finding.info, "loss_rate": None}, {}, {})
        for finding in findings
    ]  # fmt: skip
    return _Row(ALL_HOSTS, totals, is_total=True)


def compared_experiments(findings: Sequence[_Finding]) -> set[str]:
    """Return the names of the experiments that ran on several providers."""
    return {finding.experiment for group in _group_findings(findings) for row in group.rows for finding in row.findings}


def emphasize_best(line: str, tone: Callable[[str], str]) -> str:
    """Apply ``tone`` to the values that are marked as best in a line of ``render_comparison``."""
    return _EMPHASIZED.sub(lambda match: tone(match[0]), line)


def render_comparison(findings: Sequence[_Finding], width: int) -> list[str]:
    """Return the table for a terminal of ``width`` columns, or no lines if no experiment ran on several providers."""
    groups = [group for group in _group_findings(findings) if _column_keys([group])]
    lines = _render_groups(groups, "provider", width)
    names = _short_names([row.name for group in groups for row in group.rows], width)
    for note in _provider_notes(groups, names):
        lines += textwrap.wrap(f"note: {note}", width, subsequent_indent="  ")
    return [*lines, ""] if lines else []


def render_hosts(findings: Sequence[_Finding], width: int) -> list[str]:
    """Return the table of hosts for a terminal, or no lines if no experiment was measured by several hosts."""
    groups = [group for group in _group_by_hosts(findings) if _column_keys([group])]
    lines = _render_groups(groups, "host", width)
    return [*lines, ""] if lines else []


def _render_groups(groups: Sequence[_Group], head_title: str, width: int) -> list[str]:
    """Return the lines of a table whose rows are the providers or hosts of each experiment, and its legend."""
    if not groups:
        return []
    names = _short_names([row.name for group in groups for row in group.rows], width)
    lines = [""]
    marks = ""
    former: tuple[Any, ...] | None = None
    for kind in dict.fromkeys(group.kind for group in groups):
        members = [group for group in groups if group.kind == kind]
        keys, titles = _column_keys(members), members[0].titles
        cells = [_cell_texts(group, keys) for group in members]
        widths = [
            max(len(_column_title(key, titles)) + 1, *(len(row[index]) for rows, _ in cells for row in rows))
            for index, key in enumerate(keys)
        ]
        name_width = max(len(head_title), *(len(name) + 2 for name in names.values()))
        room = max(_SHORTEST_NAME, width - name_width - len(_GAP))
        aligns = [str.ljust if column_width > room else str.rjust for column_width in widths]
        widths = [min(column_width, room) for column_width in widths]
        for indexes in _split_columns(widths, width - name_width):
            lines += [""] if former is not None else []
            former = kind
            heads = [aligns[index](f"{_column_title(keys[index], titles)} ", widths[index]) for index in indexes]
            head = head_title.ljust(name_width) + "".join(_GAP + text for text in heads)
            table_width = name_width + sum(widths[index] + len(_GAP) for index in indexes) - 1
            lines += [head.rstrip(), "-" * min(width, table_width)]
            for group, (rows, remarks) in zip(members, cells, strict=True):
                lines += textwrap.wrap(group.label, width, subsequent_indent="  ", break_on_hyphens=False)
                for row, texts in zip(group.rows, rows, strict=True):
                    name = names[row.name] + (_DOUBTED if row.has_doubts else "")
                    row_lines = _render_row([(texts[index], widths[index], aligns[index]) for index in indexes])
                    marks += "".join(row_lines) + (_DOUBTED if row.has_doubts else "")
                    labels = [f"  {name}", *[""] * len(row_lines)]
                    lines += [
                        (label.ljust(name_width) + line).rstrip()
                        for label, line in zip(labels, row_lines, strict=False)
                    ]
                for line in remarks if indexes[-1] == len(keys) - 1 else ():
                    lines += textwrap.wrap(line, width, initial_indent="  ", subsequent_indent="    ")
    if any(mark in marks for mark in (BEST, _CLOSE_TO_BEST, _DOUBTED)):
        lines += ["", *textwrap.wrap(_LEGEND, width, subsequent_indent="  ")]
    return lines


def _render_row(row_cells: Sequence[tuple[str, int, Callable[[str, int], str]]]) -> list[str]:
    """Return the lines of a row. Each cell is its text, its width and its alignment. Longer texts are wrapped."""
    columns = []
    for text, width, align in row_cells:
        lines = textwrap.wrap(text, width) if len(text) > width else [text]
        columns.append([align(line, width) for line in lines])
    height = max(map(len, columns))
    for lines, (_, width, _) in zip(columns, row_cells, strict=True):
        lines.extend([" " * width] * (height - len(lines)))
    return ["".join(_GAP + part for part in parts) for parts in zip(*columns, strict=True)]


@dataclass(frozen=True, slots=True)
class Standing:
    """The results of one experiment on several providers, or from several hosts, for tables outside the terminal.

    Attributes:
        experiment: its name, without a provider.
        host: the host whose results these are, empty for all hosts.
        provider: the provider that several hosts measured, if there are several providers.
        keys, titles: the metrics or extra values of its columns, and their titles.
        providers: each provider, or host, with its cells, and whether its run has doubts.
        distances: by key, the best provider and the distance of each other provider from its value, see
            ``judge.ranking.distance``.
        remarks: lines to show below the table.
    """

    experiment: str
    keys: Sequence[str]
    titles: Sequence[str]
    providers: Sequence[tuple[str, Sequence[str], bool]]
    distances: Mapping[str, tuple[str, Mapping[str, Distance | None]]]
    remarks: Sequence[str]
    host: str = ""
    provider: str = ""


def rank_providers(findings: Sequence[_Finding]) -> tuple[list[Standing], list[str]]:
    """Return the experiments that ran on several providers, and notes that apply to all of them."""
    groups = [group for group in _group_findings(findings) if _column_keys([group])]
    return _list_standings(groups), _provider_notes(
        groups, {row.name: row.name for group in groups for row in group.rows}
    )


def rank_hosts(findings: Sequence[_Finding]) -> list[Standing]:
    """Return the experiments that several hosts measured, with hosts in place of providers."""
    return _list_standings([group for group in _group_by_hosts(findings) if _column_keys([group])])


def _list_standings(groups: Sequence[_Group]) -> list[Standing]:
    result = []
    for group in groups:
        keys = _column_keys([group])
        cells, remarks = _cell_texts(group, keys)
        providers = [(row.name, texts, row.has_doubts) for row, texts in zip(group.rows, cells, strict=True)]
        distances_by_key = {
            key: distances
            for key in keys
            if key in METRICS and (distances := _distances_from_best(group, key)) is not None
        }
        titles = [_column_title(key, group.titles) for key in keys]
        result.append(
            Standing(
                group.experiment, keys, titles, providers, distances_by_key, remarks, group.host, group.provider
            )
        )  # fmt: skip
    return result


def _distances_from_best(group: _Group, key: str) -> tuple[str, dict[str, Distance | None]] | None:
    """Return the provider with the best value and the distances of the others from it, or None without a best one."""
    candidates = _candidates(group, key)
    values = {
        name: candidate.value
        for name, candidate in candidates.items()
        if candidate.value is not None and not candidate.exclusion
    }
    if len(values) < 2:
        return None
    best = (min if METRICS[key].better == "lower" else max)(values, key=lambda name: values[name])
    distances = {
        name: distance(key, candidate, candidates[best]) for name, candidate in candidates.items() if name != best
    }
    return (best, distances) if any(distances.values()) else None


def _candidates(group: _Group, key: str) -> dict[str, Candidate]:
    best_ok_rate = max((row.value("ok_rate") or 0.0 for row in group.rows if not row.has_doubts), default=0.0)
    return {row.name: row.candidate(key, best_ok_rate) for row in group.rows if not row.is_total}


def _column_keys(groups: Sequence[_Group]) -> list[str]:
    """Return the keys of the columns for experiments of the same kind. The first is the servers' distance, if known."""
    rows = [row for group in groups for row in group.rows]
    is_any_far = any(format_distance(row.info.get("location")) != UNKNOWN for row in rows)
    return ["location"] * is_any_far + _measured_keys(rows)


def _measured_keys(rows: Sequence[_Row]) -> list[str]:
    columns = rows[0].findings[-1].columns
    if columns:
        metrics = [key for key in columns if key in METRICS]
        measured = [key for key in columns if not all(_is_quoted(row, key) for row in rows)]
        return (
            metrics
            or [key for key in measured if any(_format_cell(row, key) != UNKNOWN for row in rows)]
            or list(columns)
        )
    keys = [key for key in _RUN_KEYS if any(row.value(key) is not None for row in rows)]
    if "loss_rate" in keys:
        keys = [key for key in keys if key != "ok_rate"]
    if all(row.info.get("threads") is None for row in rows) and "throughput" in keys:
        keys.remove("throughput")  # the arrival process of an open loop determines it
    return [key for key in keys if key not in _COUNTS or any(row.value(key) for row in rows)]


def _is_quoted(row: _Row, key: str) -> bool:
    """Return whether a value is a text that was copied from a paper, so that it does not describe the provider."""
    value, published = row.value(key), row.info.get("published")
    return isinstance(value, str) and isinstance(published, Mapping) and value in published.values()


def _cell_texts(group: _Group, keys: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Return the cells of an experiment's rows with their marks, and remarks to show below them."""
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
            mark, ranking = " ", ranked.get(key)
            if ranking and row.name in ranking.leaders and ranking.verdict in ("best", "among the best"):
                mark = BEST if ranking.verdict == "best" else _CLOSE_TO_BEST
            texts.append(_format_cell(row, key) + mark)
        cells.append(texts)
    close, unjudged = dict[str, list[str]](), dict[str, list[str]]()
    for key, judged in ranked.items():
        if judged.verdict == "close":
            close.setdefault(judged.why, []).append(_column_title(key, group.titles))
        elif judged.verdict == "not judged" and judged.why != "only one value is known":
            unjudged.setdefault(judged.why, []).append(_column_title(key, group.titles))
    remarks = [f"{reason}: {', '.join(titles)}" for reason, titles in close.items()]
    remarks += [f"not judged: {', '.join(titles)} ({_explain_reason(reason)})" for reason, titles in unjudged.items()]
    return cells, remarks


def _format_cell(row: _Row, key: str) -> str:
    return column_of(key)[2](row.value(key))


def _explain_reason(reason: str) -> str:
    needed = f": {FEWEST_OPS} operations, or 5 rounds or runs, are needed"
    return reason + needed * reason.startswith("too few")


def _column_title(key: str, titles: Mapping[str, str]) -> str:
    return titles.get(key) or _TITLES.get(key) or column_of(key)[0]


def _split_columns(widths: Sequence[int], room: int) -> list[list[int]]:
    """Distribute columns over tables. The ones that do not fit into a table go to the next one below it."""
    pages: list[list[int]] = [[]]
    used_width = 0
    for index, column_width in enumerate(widths):
        if pages[-1] and used_width + column_width + len(_GAP) > room + 1:
            pages.append([])
            used_width = 0
        pages[-1].append(index)
        used_width += column_width + len(_GAP)
    return pages


def _short_names(providers: Sequence[str], width: int) -> dict[str, str]:
    """Return a name for each provider that leaves room for numbers. Long names are cut where they are equal."""
    longest, names = max(_SHORTEST_NAME, width * 3 // 10), list(dict.fromkeys(providers))
    attempts = ([_shorten_name(name, longest, keeps_end=keeps_end) for name in names] for keeps_end in (True, False))
    short = next((shortened for shortened in attempts if len(set(shortened)) == len(names)), None)
    if short is None:
        short = [
            f"{_shorten_name(name, longest - 4, keeps_end=False)}({number})" for number, name in enumerate(names, 1)
        ]
    return dict(zip(names, short, strict=True))


def _shorten_name(name: str, longest: int, *, keeps_end: bool) -> str:
    if len(name) <= longest:
        return name
    if not keeps_end:
        return f"{name[: longest - 2]}.."
    head = name.partition(":")[0][: longest // 2]
    return f"{head}:..{name[len(name) - (longest - len(head) - 3) :]}"


def _provider_notes(groups: Sequence[_Group], names: Mapping[str, str]) -> list[str]:
    """Return notes on which providers are emulated, and on where the servers of each are, if known."""
    findings = [finding for group in groups for row in group.rows for finding in row.findings]
    located = list_locations((finding.provider, finding.info) for finding in findings)
    return [
        *_emulation_notes(groups, names),
        *(f"{names[provider]}: {text}" for provider, texts in located.items() if provider in names for text in texts),
    ]


def _emulation_notes(groups: Sequence[_Group], names: Mapping[str, str]) -> list[str]:
    kinds: dict[str, list[str]] = {}
    for group in groups:
        for row in group.rows:
            kind = _EMULATION_WORDS.get(row.info["emulated"], "unknown whether emulated")
            kinds.setdefault(kind, []).append(names[row.name])
    notes = []
    if kinds.keys() == {_EMULATION_WORDS[True]}:
        notes.append("all are emulated: this compares profiles, clients and loopback, not services")
    elif len(kinds) > 1:
        groups_text = "; ".join(f"{kind}: {', '.join(dict.fromkeys(providers))}" for kind, providers in kinds.items())
        notes.append(f"{groups_text}. A difference between these kinds is not one between services")
    return notes
