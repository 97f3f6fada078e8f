"""Figures of the gated metrics of an experiment over the stored runs, with their lasting changes.

They show the same as ``cloudbench history``: ``report.history`` decides which runs are comparable, which of them count
and where a metric changed, and ``judge.watched`` which metrics are gated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from pytest_cloudbench.judge.baseline import ONLY_AT_GATE, conditions_of, unfit_reason
from pytest_cloudbench.judge.changepoints import LEAST_RUNS, ChangePoint
from pytest_cloudbench.judge.checks import Check
from pytest_cloudbench.judge.metrics import METRICS, is_answer, is_higher_better, number_key
from pytest_cloudbench.judge.watched import checks_of
from pytest_cloudbench.report import history
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.figures.curves import value_format
from pytest_cloudbench.report.gathering import EarlierRuns, Measurement
from pytest_cloudbench.report.quantities import format_metric
from pytest_cloudbench.report.scales import Categories, Linear, Log, Scale
from pytest_cloudbench.report.svg import Canvas, Plane
from pytest_cloudbench.results.points import Point
from pytest_cloudbench.results.stored import start_ms
from pytest_cloudbench.support.wording import format_count

_PANEL_HEIGHT, _PANEL_GAP = 110.0, 48.0
_LEGEND = (("d0", "run"), ("d4", "run that does not count"), ("line s0 solid", "median"), ("rule", "lasting change"))
_BROKEN, _MARGIN = ("d6", "broken, said the gate"), ("margin", "within the gate's margin")


@dataclass(frozen=True, slots=True)
class _Panel:
    """One metric of a history: its course, the check of the gate, and the indexes of the runs that the gate failed."""

    metric: str
    course: history.Course
    check: Check
    broken_runs: frozenset[int] = frozenset()

    def margin_band(self, page_runs: Sequence[int]) -> tuple[int, int, float, float] | None:
        """Return the band of values that the gate accepts: first run, end run, lowest value, highest value.

        It begins at the median before the runs of this page.
        """
        last_before = page_runs[0] - 1 if page_runs and page_runs[0] else len(self.course.points) - 1
        level = next((segment for segment in self.median_levels if segment[0] <= last_before < segment[1]), None)
        if level is None or not self.check.margin or self.check.kind not in ("level", "rate"):
            return None
        first, end, value = level
        distance = self.check.margin if self.check.kind == "rate" else self.check.margin * value
        edge = value - distance if self.check.higher else value + distance
        return first, max([end, *(index + 1 for index in page_runs)]), min(value, edge), max(value, edge)

    @property
    def known_values(self) -> list[tuple[int, float]]:
        return [(index, point.value) for index, point in enumerate(self.course.points) if point.value is not None]

    @property
    def value_range(self) -> tuple[float, float]:
        """The ends of the axis. Runs that do not count are ignored, so that an outlier does not flatten the others."""
        counted = [value for index, value in self.known_values if not self.course.points[index].unfit_reason]
        values = counted if len({*counted}) > 1 else [value for _, value in self.known_values]
        return min(values), max(values)

    @property
    def outlying_runs(self) -> frozenset[int]:
        """The indexes of the runs whose values are beyond the axis."""
        low, high = self.value_range
        return frozenset(index for index, value in self.known_values if not low <= value <= high)

    @property
    def title(self) -> str:
        return self.metric.replace("_", " ")

    @property
    def column_title(self) -> str:
        unit = METRICS[self.metric].unit if self.metric in METRICS else ""
        return f"{self.metric}, {unit}" if unit else self.metric

    @property
    def value_text(self) -> Callable[[float], str]:
        return value_format(self.metric)

    @property
    def changes(self) -> list[tuple[Point, ChangePoint]]:
        """The lasting changes, each with the first run after it."""
        return [(self.course.points[index], change) for index, change in self.course.changes]

    @property
    def median_levels(self) -> list[tuple[int, int, float]]:
        """The medians of the runs that count between changes, each as first run, end run and value."""
        ends = [0, *(index for index, _ in self.course.changes), len(self.course.points)]
        levels = []
        for first, end in pairwise(ends):
            values = [
                point.value
                for point in self.course.points[first:end]
                if not point.unfit_reason and point.value is not None
            ]
            levels += [(first, end, median(values))] if values else []
        return levels


def over_runs(members: Sequence[Measurement], earlier: EarlierRuns) -> Figure | str | None:
    """Return the history of one entry, the reason why it is not drawn, or None if nothing of the entry is gated.

    Args:
        members: the entry in each run of the page. Its history has the runs with the same conditions as the last one.
        earlier: the stored runs.
    """
    measurement = members[-1]
    stored_runs = _find_stored_runs(members, earlier)
    panels = []
    for metric, check in _gated_metrics(measurement, earlier):
        now = _to_point(measurement, metric, stored_runs[-1])
        course = history.metric_course(earlier.index, measurement.nodeid, metric, now, earlier.last)
        panels.append(_Panel(metric, course, check, _broken_runs(measurement, course, earlier)))
    if not panels:
        return None
    runs = max(len(panel.known_values) for panel in panels)
    if runs < LEAST_RUNS:
        needed = f"{LEAST_RUNS} runs under these conditions are needed, found {runs}"
        return f"{measurement.subject}: no history is drawn: {needed}"
    drawn = [panel for panel in panels if len({value for _, value in panel.known_values}) > 1]
    constant_panels = [panel for panel in panels if len(panel.known_values) >= LEAST_RUNS and panel not in drawn]
    constants = "; ".join(f"{panel.title} {panel.value_text(panel.known_values[0][1])}" for panel in constant_panels)
    constant_remark = f"The same in each of {runs} runs: {constants}." if constants else ""
    if not drawn:
        return f"{measurement.label}, {measurement.subject}: no history is drawn. {constant_remark}"
    return _build_figure(measurement, drawn, earlier, set(stored_runs), constant_remark)


def _gated_metrics(measurement: Measurement, earlier: EarlierRuns) -> list[tuple[str, Check]]:
    """Return the metrics of an entry that the gate watches, with their checks. A capability counts as 1 or 0."""
    checks = checks_of(measurement.nodeid, measurement.info, measurement.columns, (), earlier.margins)
    return [(check.metric, check) for check in checks]


def _broken_runs(measurement: Measurement, course: history.Course, earlier: EarlierRuns) -> frozenset[int]:
    """Return the indexes of the runs for which the gate's answer was ``broken``."""

    def answer(point: Point) -> str:
        if not point.run:
            return measurement.gate_answer
        return earlier.gate_answer(point.run, measurement.nodeid) if ONLY_AT_GATE in point.faults else ""

    return frozenset(index for index, point in enumerate(course.points) if answer(point) == "broken")


def _find_stored_runs(members: Sequence[Measurement], earlier: EarlierRuns) -> list[str]:
    """Return the place of the stored run of one entry's measurement each, or ``""`` if the run is not stored."""
    places: dict[tuple[str, int | None], str] = {}
    for point in earlier.index.series(members[-1].nodeid, "ops"):
        run_id = earlier.runs[point.run].run_id
        places[run_id, point.time_ms] = point.run
        if run_id:  # it is enough for a measurement without a time
            places[run_id, None] = point.run
    return [places.get((str(member.info.get("run_id", "")), _start_time_ms(member)), "") for member in members]


def _start_time_ms(measurement: Measurement) -> int | None:
    return start_ms(measurement.info) or measurement.run.stored_ms


def _to_point(measurement: Measurement, metric: str, run: str) -> Point:
    """Convert a measurement to a point of the index."""
    fingerprint = {"schema": measurement.info.get("schema", 1), **conditions_of(measurement.info)}
    needs_level = is_higher_better(metric) and not is_answer(metric)
    commit = measurement.run.commit.partition(" ")[0]
    return Point(run, _start_time_ms(measurement) or 1 << 53, commit, "", measurement.number(number_key(metric)),
                 fingerprint, unfit_reason(measurement.info, metric, needs_level))  # fmt: skip


def _build_figure(
    measurement: Measurement, panels: Sequence[_Panel], earlier: EarlierRuns, stored_runs: set[str],
    constant_remark: str,
) -> Figure:  # fmt: skip
    """Return the figure of all gated metrics of an experiment over its runs, one panel below the other."""
    points = panels[0].course.points
    names = {place: run.name for place, run in earlier.runs.items()} | {"": measurement.run.name}
    page_runs = [index for index, point in enumerate(points) if point.run in stored_runs]
    page_runs = page_runs if len(page_runs) < len(points) else []  # if all runs are of this page, the band says nothing

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"History, {measurement.label}, {measurement.subject}")
        legend = [*_LEGEND, *([_BROKEN] if any(panel.broken_runs for panel in panels) else [])]
        legend += [_MARGIN] if any(panel.margin_band(page_runs) for panel in panels) else []
        top = canvas.draw_legend(6, 14, [*legend, *([("band", "this page")] if page_runs else [])], width - 4) + 34
        x = Categories([history.format_day(point.time_ms)[:10] for point in points])
        for panel in panels:
            plane = Plane(canvas, x, _value_scale(panel), 66, top, width - 14, top + _PANEL_HEIGHT)
            is_last = panel is panels[-1]
            plane.draw_axes("runs, the latest on the right" if is_last else "", panel.title, x_labels=is_last)
            _draw_panel(plane, panel, page_runs, names)
            top = plane.bottom + _PANEL_GAP
        canvas.height = top - _PANEL_GAP + 42
        return canvas

    description = " ".join(_describe_history(panels, names, constant_remark))
    head = ["run", "time (UTC)", "commit", *(panel.column_title for panel in panels), "remark"]
    rows = [
        [
            names[point.run], history.format_day(point.time_ms), point.commit[:10] or None,
            *(panel.course.points[index].value for panel in panels),
            _run_remark(index, panels, is_of_page=index in page_runs),
        ]
        for index, point in enumerate(points)
    ]  # fmt: skip
    title = f"History: {measurement.subject}" if measurement.subject else "History"
    return Figure("history", title, description, draw, head, rows)


def _describe_history(panels: Sequence[_Panel], names: Mapping[str, str], constant_remark: str) -> Iterator[str]:
    """Yield sentences about the runs, their changes, and runs and metrics that are not drawn."""
    points, apart = panels[0].course.points, panels[0].course.apart
    yield f"{format_count(len(points), 'run')} under the conditions of this one."
    uncounted = sum(any(panel.course.points[index].unfit_reason for panel in panels) for index in range(len(points)))
    if uncounted:
        edge_remark = (
            "; what is beyond the others is drawn at the edge" if any(panel.outlying_runs for panel in panels) else ""
        )
        yield f"{format_count(uncounted, 'of them does', 'of them do')} not count (see the numbers){edge_remark}."
    changes = [
        f"{panel.title}: {history.describe_change(first, change, panel.metric, names[first.run])}"
        for panel in panels for first, change in panel.changes
    ]  # fmt: skip
    yield (
        f"Lasting changes: {'; '.join(changes)}." if changes else f"{history.describe_no_change(points).capitalize()}."
    )
    if apart:
        yield f"{format_count(apart, 'run under other conditions is', 'runs under other conditions are')} left out."
    if constant_remark:
        yield constant_remark


def _run_remark(index: int, panels: Sequence[_Panel], *, is_of_page: bool) -> str:
    """Return the remarks on a run: whether it is of this page, why it does not count, which changes begin with it."""
    remarks = ["this page"] if is_of_page else []
    remarks += ["broken, said the gate"] if any(index in panel.broken_runs for panel in panels) else []
    remarks += dict.fromkeys(
        panel.course.points[index].unfit_reason for panel in panels if panel.course.points[index].unfit_reason
    )
    remarks += [
        f"first run after a change of {panel.title}"
        for panel in panels for first, _ in panel.course.changes if first == index
    ]  # fmt: skip
    return "; ".join(remarks)


def _value_scale(panel: _Panel) -> Scale:
    low, high = panel.value_range
    if low > 0 and high / low >= 30:
        return Log(low * 0.8, high * 1.25, panel.value_text)
    return Linear(low, high, panel.value_text)


def _draw_panel(plane: Plane, panel: _Panel, page_runs: Sequence[int], names: Mapping[str, str]) -> None:
    """Draw one metric. The band of this page's runs is drawn first, then levels, runs and changes on top of it."""
    points, canvas, beyond = panel.course.points, plane.canvas, panel.outlying_runs
    for index in page_runs:
        left, right = plane.canvas_x(index - 0.5), plane.canvas_x(index + 0.5)
        tip = f"this page: {format_metric(points[index].value, panel.metric)}"
        canvas.draw_box(left, plane.top, max(3.0, right - left), plane.bottom - plane.top, "band", tip)
    if (band := panel.margin_band(page_runs)) is not None:
        first, end, low, high = band
        plane.draw_bar(first - 0.5, end - 0.5, low, high, "margin", "within the gate's margin")
    for first, end, level in panel.median_levels:
        plane.draw_line([(first - 0.5, level), (end - 0.5, level)], "s0 solid")
    special = {index for index, _ in panel.known_values if points[index].unfit_reason} | panel.broken_runs
    plane.draw_dots([(index, value) for index, value in panel.known_values if index not in special], "points")
    for index, value in panel.known_values:
        if index in special:
            texts = [format_metric(value, panel.metric), points[index].unfit_reason]
            texts += ["broken, said the gate"] if index in panel.broken_runs else []
            tip = f"{names[points[index].run]}: {', '.join(filter(None, texts))}"
            tip += "; drawn at the edge" if index in beyond else ""
            plane.draw_dot(index, value, 6 if index in panel.broken_runs else 4, tip)
    for number, (index, _) in enumerate(panel.course.changes):
        plane.draw_rule(x=index - 0.5, label=_change_label(points[index]), label_line=number % 3 - 1)


def _change_label(point: Point) -> str:
    """Label a change with the commit and the day of the first run after it."""
    return ", ".join([text for text in (point.commit[:10], history.format_day(point.time_ms)[:10]) if text])
