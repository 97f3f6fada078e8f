"""The chapters of a page: one test function each, with what all of its experiments show together and each by itself.

What may live here: which measurements belong together, and the order within a chapter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_cloudbench.judge.stats import PERCENTILES
from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.report import html, versus
from pytest_cloudbench.report.digest import Digest, digest
from pytest_cloudbench.report.distance import compare_with_published
from pytest_cloudbench.report.figures import Figure, families, times
from pytest_cloudbench.report.figures.developments import over_runs
from pytest_cloudbench.report.figures.sides import between_sides
from pytest_cloudbench.report.gathering import Earlier, Measurement, line_name
from pytest_cloudbench.report.html import safe
from pytest_cloudbench.report.outcomes import gated
from pytest_cloudbench.report.quantities import format_parameter
from pytest_cloudbench.report.svg import SERIES
from pytest_cloudbench.report.table import cells, errors_said, parameter_title

_NONE = "no expectation"


@dataclass(slots=True)
class Chapter:
    """Everything about one test function.

    Attributes:
        name, title: of the element, and of the chapter.
        earlier: stored runs for histories, if any are known.
        groups: experiments without their providers, each with a name for its element and its measurements.
    """

    name: str
    title: str
    names: html.ElementIds
    earlier: Earlier | None = None
    groups: dict[str, tuple[str, list[Measurement]]] = field(default_factory=dict)
    drawn: set[Path] = field(default_factory=set)

    @property
    def members(self) -> list[Measurement]:
        """All measurements, in order."""
        return [each for _, group in self.groups.values() for each in group]

    @property
    def single(self) -> list[Measurement]:
        """Those that are not of two sides."""
        return [each for each in self.members if each.versus is None]

    def place(self, about: Measurement) -> str:
        """Return the name of the element that is about a measurement."""
        return self.groups[about.experiment][0]

    def label(self, about: Measurement) -> str:
        """Return what tells an experiment from the others of its test: parameters that differ, a label."""
        varied = [
            name for name, value in about.params.items() if any(each.params.get(name) != value for each in self.members)
        ]
        told = [
            f"{parameter_title(name)} {format_parameter(name, about.params[name]).replace('_', ' ')}" for name in varied
        ]
        label = about.experiment.rpartition("]#" if "]#" in about.experiment else "#")
        values = {str(about.params[name]).lower() for name in varied}
        told += [label[2].replace("-", " ")] if label[1] and label[2].lower() not in values else []
        return ", ".join(told) or (about.label if about.label != about.kind[1] else "") or self.title

    def html(self, *, folded: bool) -> Iterator[str]:
        """Yield the chapter in pieces; ``folded``: experiments are opened by the reader."""
        first = self.members[0]
        head = f'<h2 id="{self.name}-h">{safe(self.title)}</h2>'
        yield f'<section class="chapter" id="{self.name}" aria-labelledby="{self.name}-h">{head}'
        yield f'<p class="source"><code>{safe(first.test)}</code></p>'
        if self.single:
            yield from _figures(families.of(self.single), self.name, self.names, "h3")
            yield html.listed([safe(line) for line in dict.fromkeys(families.undrawn(self.single))], "soft")
        yield from self._tables()
        made = {name: list(self._developments(group)) for name, group in self.groups.values()}
        yield html.listed(
            dict.fromkeys(safe(each) for of in made.values() for each in of if isinstance(each, str)), "soft"
        )
        for name, group in self.groups.values():
            label, histories = self.label(group[0]), [each for each in made[name] if isinstance(each, Figure)]
            figures, remarks = "".join(self._experiment(name, label, group, histories)), "".join(_remarks(group))
            if not figures:
                told = f"<p><b>{safe(label)}</b></p>{remarks}" if remarks else ""
                yield f'<div id="{name}">{told}</div>'
            elif folded:
                yield f'<details class="run" id="{name}"><summary>{safe(label)}</summary>{figures}{remarks}</details>'
            else:
                yield f'<section id="{name}"><h3>{safe(label)}</h3>{figures}{remarks}</section>'
        yield "</section>"

    def _tables(self) -> Iterator[str]:
        """Yield a table for all experiments that are measured alike."""
        kinds: dict[tuple[object, ...], list[Measurement]] = {}
        for each in self.single:
            kinds.setdefault((*each.columns, each.info.get("operation", "")), []).append(each)
        for members in kinds.values():
            rows = cells(members)
            head = ["experiment", "provider", *rows[0]]
            body = [
                [self.label(each), each.subject + (" (?)" if each.info["doubts"] else ""), *row]
                for each, row in zip(members, rows[1:], strict=True)
            ]
            yield html.table(f"{self.title}: {', '.join(rows[0])}", head, body, style="values")
        compared = [
            [self.label(each), each.subject, *astuple(comparison)]
            for each in self.single for comparison in compare_with_published(each.info)
        ]  # fmt: skip
        if compared:
            head = ["experiment", "provider", "what", "measured", "published", "apart", "allowed"]
            yield html.table(f"{self.title}: beside what was published", head, compared, style="values")

    def _experiment(
        self, name: str, label: str, group: Sequence[Measurement], histories: Sequence[Figure]
    ) -> Iterator[str]:  # fmt: skip
        found, missing = dict[str, tuple[Measurement, Digest]](), list[str]()
        for each in group:
            if each.versus is not None:  # its records are of both sides, block by block
                yield from self._in_turns(name, each, each.versus)
                continue
            records = [path for path in each.records if path not in self.drawn]
            self.drawn.update(records)
            line = line_name(each, group)
            try:
                read = digest(records) if records else None
            except ResultsError as error:
                missing.append(f"{each.subject}: not drawn, {error}")
                continue
            if read is not None:
                found[line] = each, replace(read, exact=_exact_percentiles(each, read.ops))
        drawn = list[Figure]()
        lines = list(found.items())
        for first in range(0, len(lines), SERIES):  # more lines than there are styles: another figure
            some = {line: read for line, (_, read) in lines[first : first + SERIES]}
            if (shown := times.distribution(label, some)) is not None:
                drawn.append(shown)
        drawn += [
            times.over_time(f"{label}, {line}", read, line if len(lines) > 1 else "") for line, (_, read) in lines
        ]
        yield from _figures([*drawn, *histories], name, self.names)
        yield html.listed([safe(line) for line in dict.fromkeys(missing)], "soft")

    def _in_turns(self, name: str, each: Measurement, told: Mapping[str, Any]) -> Iterator[str]:
        """Yield what is known of two sides that were measured in turns."""
        yield f"<p>A is <code>{safe(told.get('A'))}</code>, B is <code>{safe(told.get('B'))}</code>.</p>"
        rows = [[name.replace("_", " "), *rest] for name, *rest in versus.cells(told)]
        if not rows:
            yield "<p>Nothing could be compared.</p>"
        else:
            yield html.table(f"{self.title}: B against A", versus.TITLES, rows, style="sides")
        drawn = between_sides(each)
        yield from _figures([drawn] if drawn else [], name, self.names)
        yield html.listed(map(safe, [*versus.remarks(told), *each.info["notes"]]), "plain soft")

    def _developments(self, group: Sequence[Measurement]) -> Iterator[Figure | str]:
        """Yield a history for each entry, which can be of several runs of the page, or why there is none."""
        if self.earlier is None:
            return
        entries: dict[str, list[Measurement]] = {}
        for each in group:
            if each.versus is not None:
                continue
            entries.setdefault(each.nodeid, []).append(each)
        for same in entries.values():
            if (made := over_runs(same, self.earlier)) is not None:
                yield made


def chapters(found: Sequence[Measurement], names: html.ElementIds, earlier: Earlier | None = None) -> list[Chapter]:
    """Return the chapters of a page, in the order in which their tests ran."""
    made: dict[str, Chapter] = {}
    for each in found:
        folder, test = each.kind
        if each.test not in made:
            words = re.sub(r"(?<=\d)_(?=\d)", ".", test.removeprefix("test_")).replace("_", " ")
            title = f"{folder}: {words}" if folder else words
            made[each.test] = Chapter(names.new(f"{folder}-{test}"), title, names, earlier)
        groups = made[each.test].groups
        if each.experiment not in groups:
            groups[each.experiment] = names.new(f"{folder}-{test}-{each.label}"), []
        groups[each.experiment][1].append(each)
    for title, count in Counter(each.title for each in made.values()).items():
        for test, chapter in made.items() if count > 1 else ():
            if chapter.title == title:
                chapter.title = f"{PurePosixPath(test.partition('::')[0]).stem.removeprefix('test_')}: {title}"
    return list(made.values())


def _exact_percentiles(each: Measurement, ops: int) -> dict[float, float]:
    """Return the percentiles that an entry has stored, by their shares, if its records are of the same operations."""
    if each.number("ops") != ops:
        return {}
    stored = {share: each.number(f"response_{label}") for label, share in PERCENTILES.items()}
    return {share: value for share, value in stored.items() if value is not None}


def _figures(drawn: Sequence[Figure], name: str, names: html.ElementIds, heading: str = "h4") -> Iterator[str]:
    if drawn:
        inside = "".join(html.figure(each, names.new(f"{name}-{each.name}"), heading) for each in drawn)
        yield f'<div class="figs">{inside}</div>'


def _remarks(group: Sequence[Measurement]) -> Iterator[str]:
    """Yield what was claimed, doubted and said about an experiment."""
    lines = list[str]()
    for each in group:
        who = f"{each.subject}: " if len(group) > 1 else ""
        lines += [f"? {safe(who + doubt)}" for doubt in each.info["doubts"]]
        lines += [safe(who + line) for line in each.info["expectations"] if line != _NONE]
        lines += [safe(who + told.claim) for told in gated(each)]
        lines += [safe(who + line) for line in _said(each)]
    yield html.listed(dict.fromkeys(lines), "plain soft")


def _said(each: Measurement) -> list[str]:
    try:
        return list(errors_said(each.info))
    except (LookupError, TypeError, ValueError):  # written by something else
        return []
