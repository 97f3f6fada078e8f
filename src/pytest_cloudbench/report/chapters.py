"""The chapters of a page. A chapter is about one test function, with all experiments together and each by itself."""

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
from pytest_cloudbench.report.digest import Digest, digest_records
from pytest_cloudbench.report.distance import compare_with_published
from pytest_cloudbench.report.figures import Figure, families, times
from pytest_cloudbench.report.figures.developments import over_runs
from pytest_cloudbench.report.figures.hosts import from_hosts
from pytest_cloudbench.report.figures.sides import between_sides
from pytest_cloudbench.report.gathering import EarlierRuns, Measurement, line_name
from pytest_cloudbench.report.html import safe
from pytest_cloudbench.report.outcomes import gate_claims
from pytest_cloudbench.report.quantities import format_parameter
from pytest_cloudbench.report.svg import SERIES
from pytest_cloudbench.report.table import (
    OPERATION_TITLES,
    describe_errors,
    operation_rows,
    parameter_title,
    table_cells,
)
from pytest_cloudbench.results.entry_names import split_name

_NO_EXPECTATION = "no expectation"


@dataclass(slots=True)
class Chapter:
    """The part of a page about one test function.

    Attributes:
        name: the ID of its HTML element.
        title: its heading.
        ids: all IDs of the page.
        earlier: stored runs for histories, if any are known.
        groups: the ID and the measurements of each experiment on all providers, by the experiment's name.
        drawn_records: record files that are already drawn, since several entries may name the same file.
    """

    name: str
    title: str
    ids: html.ElementIds
    earlier: EarlierRuns | None = None
    groups: dict[str, tuple[str, list[Measurement]]] = field(default_factory=dict)
    drawn_records: set[Path] = field(default_factory=set)

    @property
    def measurements(self) -> list[Measurement]:
        """All measurements, in order."""
        return [measurement for _, group in self.groups.values() for measurement in group]

    @property
    def one_sided(self) -> list[Measurement]:
        """The measurements that are not comparisons of two sides."""
        return [measurement for measurement in self.measurements if measurement.versus is None]

    def element_id(self, measurement: Measurement) -> str:
        """Return the ID of the HTML element about a measurement."""
        return self.groups[measurement.experiment][0]

    def label(self, measurement: Measurement) -> str:
        """Return the parameters and the label that distinguish an experiment from others of its test."""
        varied = [
            name
            for name, value in measurement.params.items()
            if any(other.params.get(name) != value for other in self.measurements)
        ]
        texts = [
            f"{parameter_title(name)} {format_parameter(name, measurement.params[name]).replace('_', ' ')}"
            for name in varied
        ]
        label = split_name(measurement.experiment).label
        values = {str(measurement.params[name]).lower() for name in varied}
        texts += [label.replace("-", " ")] if label and label.lower() not in values else []
        return ", ".join(texts) or (measurement.label if measurement.label != measurement.kind[1] else "") or self.title

    def _subject(self, measurement: Measurement) -> str:
        """Return the provider of a row, with the run if it measured the experiment more than once."""
        return line_name(measurement, self.groups[measurement.experiment][1])

    def render(self, *, folded: bool) -> Iterator[str]:
        """Yield the chapter in pieces. If it is ``folded``, the reader opens the experiments."""
        first = self.measurements[0]
        head = f'<h2 id="{self.name}-h">{safe(self.title)}</h2>'
        yield f'<section class="chapter" id="{self.name}" aria-labelledby="{self.name}-h">{head}'
        yield f'<p class="source"><code>{safe(first.test)}</code></p>'
        if self.one_sided:
            yield from _render_figures(families.draw_figures(self.one_sided), self.name, self.ids, "h3")
            undrawn = dict.fromkeys(families.explain_undrawn(self.one_sided))
            yield html.item_list([safe(line) for line in undrawn], "soft")
        yield from self._render_tables()
        developments = {name: list(self._histories(group)) for name, group in self.groups.values()}
        yield html.item_list(
            dict.fromkeys(safe(item) for items in developments.values() for item in items if isinstance(item, str)),
            "soft",
        )
        for name, group in self.groups.values():
            label, histories = self.label(group[0]), [item for item in developments[name] if isinstance(item, Figure)]
            figures = "".join(self._render_experiment(name, label, group, histories))
            remarks = "".join(_render_remarks(group))
            if not figures:
                content = f"<p><b>{safe(label)}</b></p>{remarks}" if remarks else ""
                yield f'<div id="{name}">{content}</div>'
            elif folded:
                yield f'<details class="run" id="{name}"><summary>{safe(label)}</summary>{figures}{remarks}</details>'
            else:
                yield f'<section id="{name}"><h3>{safe(label)}</h3>{figures}{remarks}</section>'
        yield "</section>"

    def _render_tables(self) -> Iterator[str]:
        """Yield a table for all experiments with the same columns, then others for mixed loads and published values."""
        kinds: dict[tuple[object, ...], list[Measurement]] = {}
        for measurement in self.one_sided:
            kinds.setdefault((*measurement.columns, measurement.info.get("operation", "")), []).append(measurement)
        for members in kinds.values():
            rows = table_cells(members)
            head = ["experiment", "provider", *rows[0]]
            body = [
                [
                    self.label(measurement),
                    self._subject(measurement) + (" (?)" if measurement.info["doubts"] else ""),
                    *row,
                ]
                for measurement, row in zip(members, rows[1:], strict=True)
            ]
            yield html.table(f"{self.title}: {', '.join(rows[0])}", head, body, style="values")
        operations = [
            [self.label(measurement), self._subject(measurement), *row]
            for measurement in self.one_sided for row in operation_rows(measurement.info)
        ]  # fmt: skip
        if operations:
            head = ["experiment", "provider", *OPERATION_TITLES]
            yield html.table(f"{self.title}: by kind of operation", head, operations, style="values")
        compared = [
            [self.label(measurement), self._subject(measurement), *astuple(comparison)]
            for measurement in self.one_sided for comparison in compare_with_published(measurement.info)
        ]  # fmt: skip
        if compared:
            head = ["experiment", "provider", "what", "measured", "published", "apart", "allowed"]
            yield html.table(f"{self.title}: beside what was published", head, compared, style="values")

    def _render_experiment(
        self, name: str, label: str, group: Sequence[Measurement], histories: Sequence[Figure]
    ) -> Iterator[str]:  # fmt: skip
        """Yield the figures of one experiment, and why others are missing."""
        digests, missing = dict[str, tuple[Measurement, Digest]](), list[str]()
        for measurement in group:
            if measurement.versus is not None:  # its records are of blocks of both sides
                yield from self._render_sides(name, measurement, measurement.versus)
                continue
            records = [path for path in measurement.records if path not in self.drawn_records]
            self.drawn_records.update(records)
            line = line_name(measurement, group)
            try:
                summary = digest_records(records) if records else None
            except ResultsError as error:
                missing.append(f"{measurement.subject}: not drawn, {error}")
                continue
            if summary is not None:
                digests[line] = measurement, replace(summary, exact=_exact_percentiles(measurement, summary.ops))
        drawn = list[Figure]()
        lines = list(digests.items())
        for first in range(0, len(lines), SERIES):  # with more lines than styles, there are several figures
            lines_of_figure = {line: summary for line, (_, summary) in lines[first : first + SERIES]}
            if (response_figure := times.distribution(label, lines_of_figure)) is not None:
                drawn.append(response_figure)
        drawn += [
            figure for measurement in group
            if (figure := from_hosts(measurement, measurement.subject if len(group) > 1 else "")) is not None
        ]  # fmt: skip
        drawn += [
            times.over_time(f"{label}, {line}", summary, line if len(lines) > 1 else "") for line, (_, summary) in lines
        ]
        yield from _render_figures([*drawn, *histories], name, self.ids)
        yield html.item_list([safe(line) for line in dict.fromkeys(missing)], "soft")

    def _render_sides(self, name: str, measurement: Measurement, comparison: Mapping[str, Any]) -> Iterator[str]:
        """Yield the table, figure and remarks of two sides that were measured in turns."""
        yield f"<p>A is <code>{safe(comparison.get('A'))}</code>, B is <code>{safe(comparison.get('B'))}</code>.</p>"
        rows = [[name.replace("_", " "), *cells] for name, *cells in versus.comparison_cells(comparison)]
        if not rows:
            yield "<p>Nothing could be compared.</p>"
        else:
            yield html.table(f"{self.title}: B against A", versus.TITLES, rows, style="sides")
        drawn = between_sides(measurement)
        yield from _render_figures([drawn] if drawn else [], name, self.ids)
        yield html.item_list(
            map(safe, [*versus.comparison_remarks(comparison), *measurement.info["notes"]]), "plain soft"
        )

    def _histories(self, group: Sequence[Measurement]) -> Iterator[Figure | str]:
        """Yield the history of each entry over all runs of the page, or the reason why it is not drawn."""
        if self.earlier is None:
            return
        entries: dict[str, list[Measurement]] = {}
        for measurement in group:
            if measurement.versus is not None:
                continue
            entries.setdefault(measurement.nodeid, []).append(measurement)
        for entry_measurements in entries.values():
            if (development := over_runs(entry_measurements, self.earlier)) is not None:
                yield development


def make_chapters(
    measurements: Sequence[Measurement], names: html.ElementIds, earlier: EarlierRuns | None = None
) -> list[Chapter]:
    """Group measurements into chapters, in the order in which their tests ran."""
    chapters_by_test: dict[str, Chapter] = {}
    for measurement in measurements:
        folder, test = measurement.kind
        if measurement.test not in chapters_by_test:
            words = re.sub(r"(?<=\d)_(?=\d)", ".", test.removeprefix("test_")).replace("_", " ")
            title = f"{folder}: {words}" if folder else words
            chapters_by_test[measurement.test] = Chapter(names.new(f"{folder}-{test}"), title, names, earlier)
        groups = chapters_by_test[measurement.test].groups
        if measurement.experiment not in groups:
            groups[measurement.experiment] = names.new(f"{folder}-{test}-{measurement.label}"), []
        groups[measurement.experiment][1].append(measurement)
    for title, count in Counter(chapter.title for chapter in chapters_by_test.values()).items():
        for test, chapter in chapters_by_test.items() if count > 1 else ():
            if chapter.title == title:
                chapter.title = f"{PurePosixPath(test.partition('::')[0]).stem.removeprefix('test_')}: {title}"
    return list(chapters_by_test.values())


def _exact_percentiles(measurement: Measurement, ops: int) -> dict[float, float]:
    """Return an entry's stored percentiles by their shares, if its records are of the same operations."""
    if measurement.number("ops") != ops:
        return {}
    stored = {share: measurement.number(f"response_{label}") for label, share in PERCENTILES.items()}
    return {share: value for share, value in stored.items() if value is not None}


def _render_figures(drawn: Sequence[Figure], name: str, names: html.ElementIds, heading: str = "h4") -> Iterator[str]:
    if drawn:
        inside = "".join(html.figure(figure, names.new(f"{name}-{figure.name}"), heading) for figure in drawn)
        yield f'<div class="figs">{inside}</div>'


def _render_remarks(group: Sequence[Measurement]) -> Iterator[str]:
    """Yield the list of doubts, expectations, gate answers and errors of an experiment."""
    lines = list[str]()
    for measurement in group:
        prefix = f"{measurement.subject}: " if len(group) > 1 else ""
        lines += [f"? {safe(prefix + doubt)}" for doubt in measurement.info["doubts"]]
        lines += [safe(prefix + line) for line in measurement.info["expectations"] if line != _NO_EXPECTATION]
        lines += [safe(prefix + gate_claim.claim) for gate_claim in gate_claims(measurement)]
        lines += [safe(prefix + line) for line in _error_lines(measurement)]
    yield html.item_list(dict.fromkeys(lines), "plain soft")


def _error_lines(measurement: Measurement) -> list[str]:
    try:
        return list(describe_errors(measurement.info))
    except (LookupError, TypeError, ValueError):  # the entry was written by another program
        return []
