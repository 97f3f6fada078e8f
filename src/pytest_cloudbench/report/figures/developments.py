"""How the gated metrics of an experiment developed over the stored runs, with their lasting changes.

What may live here: drawing what ``cloudbench history`` says. Which runs are comparable, which of them count and where
a metric changed is decided by ``report.history``, and what is gated by ``judge.watched``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from pytest_cloudbench.judge.baseline import CONDITIONS, ONLY_AT_GATE, unfit_reason
from pytest_cloudbench.judge.changepoints import LEAST_RUNS, ChangePoint
from pytest_cloudbench.judge.gate import Check
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.judge.watched import checks_of
from pytest_cloudbench.report import history
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.figures.curves import text_of
from pytest_cloudbench.report.gathering import Earlier, Measurement
from pytest_cloudbench.report.quantities import format_metric
from pytest_cloudbench.report.scales import Categories, Linear, Log, Scale
from pytest_cloudbench.report.svg import Canvas, Plane
from pytest_cloudbench.results.points import Point

_HIGH, _GAP = 110.0, 48.0
_LEGEND = (("d0", "run"), ("d4", "run that does not count"), ("line s0 solid", "median"), ("rule", "lasting change"))
_BROKEN, _MARGIN = ("d6", "broken, said the gate"), ("margin", "within the gate's margin")


@dataclass(frozen=True, slots=True)
class _Panel:
    """One metric: its course, what it is called, and the band in which the gate calls no change worse, if any."""

    metric: str
    course: history.Course
    check: Check
    broken: frozenset[int] = frozenset()

    def margin(self, mine: Sequence[int]) -> tuple[int, int, float, float] | None:
        """Return the band above the median before the runs of this page: from, up to, and between which values."""
        before = mine[0] - 1 if mine and mine[0] else len(self.course.points) - 1
        level = next((each for each in self.levels if each[0] <= before < each[1]), None)
        if level is None or not self.check.margin or self.check.kind not in ("level", "rate"):
            return None
        first, end, value = level
        far = self.check.margin if self.check.kind == "rate" else self.check.margin * value
        edge = value - far if self.check.higher else value + far
        return first, max([end, *(place + 1 for place in mine)]), min(value, edge), max(value, edge)

    @property
    def known(self) -> list[tuple[int, float]]:
        return [(place, each.value) for place, each in enumerate(self.course.points) if each.value is not None]

    @property
    def reach(self) -> tuple[float, float]:
        """The ends of the axis: those of the runs that count. One in doubt must not flatten all others."""
        counted = [value for place, value in self.known if not self.course.points[place].fit]
        values = counted if len({*counted}) > 1 else [value for _, value in self.known]
        return min(values), max(values)

    @property
    def beyond(self) -> frozenset[int]:
        """The places of the runs that lie beyond the axis."""
        low, high = self.reach
        return frozenset(place for place, value in self.known if not low <= value <= high)

    @property
    def words(self) -> str:
        return self.metric.replace("_", " ")

    @property
    def head(self) -> str:
        unit = METRICS[self.metric].unit if self.metric in METRICS else ""
        return f"{self.metric}, {unit}" if unit else self.metric

    @property
    def text(self) -> Callable[[float], str]:
        return text_of(self.metric)

    @property
    def changes(self) -> list[tuple[Point, ChangePoint]]:
        """Each change with the first run after it."""
        return [(self.course.points[place], change) for place, change in self.course.changes]

    @property
    def levels(self) -> list[tuple[int, int, float]]:
        """The median of the runs that count between two changes: from which place, up to which, and its value."""
        ends = [0, *(place for place, _ in self.course.changes), len(self.course.points)]
        found = []
        for first, end in pairwise(ends):
            values = [each.value for each in self.course.points[first:end] if not each.fit and each.value is not None]
            found += [(first, end, median(values))] if values else []
        return found


def over_runs(members: Sequence[Measurement], earlier: Earlier) -> Figure | str | None:
    """Return the history of one entry, why it is not drawn, or None if nothing of the entry is gated.

    Args:
        members: the entry in each run of the page; the history is that of the last one's conditions.
        earlier: the stored runs.
    """
    each = members[-1]
    places = [_place(member, earlier) for member in members]
    panels = []
    for metric, check in _gated(each, earlier):
        now = _point(each, metric, places[-1])
        course = history.course(earlier.index, each.nodeid, metric, now, earlier.last)
        panels.append(_Panel(metric, course, check, _broken(each, course, earlier)))
    if not panels:
        return None
    runs = max(len(panel.known) for panel in panels)
    if runs < LEAST_RUNS:
        return f"{each.subject}: no history is drawn: {LEAST_RUNS} runs under these conditions are needed, found {runs}"
    drawn = [panel for panel in panels if len({value for _, value in panel.known}) > 1]
    same = [panel for panel in panels if len(panel.known) >= LEAST_RUNS and panel not in drawn]
    told = "; ".join(f"{panel.words} {panel.text(panel.known[0][1])}" for panel in same)
    always = f"The same in each of {runs} runs: {told}." if told else ""
    if not drawn:
        return f"{each.label}, {each.subject}: no history is drawn. {always}"
    return _figure(each, drawn, earlier, set(places), always)


def _gated(each: Measurement, earlier: Earlier) -> list[tuple[str, Check]]:
    """Return the numbers of an entry that the gate watches, and how; that of a capability is 1 or 0."""
    checks = checks_of(each.nodeid, each.info, each.columns, (), earlier.margins)
    return [(f"is_{check.metric}" if check.kind == "yes" else check.metric, check) for check in checks]


def _broken(each: Measurement, course: history.Course, earlier: Earlier) -> frozenset[int]:
    """Return the places of the runs that the gate called broken."""

    def answer(point: Point) -> str:
        if not point.run:
            return each.gate_answer
        return earlier.gate_answer(point.run, each.nodeid) if ONLY_AT_GATE in point.faults else ""

    return frozenset(place for place, point in enumerate(course.points) if answer(point) == "broken")


def _place(each: Measurement, earlier: Earlier) -> str:
    """Return which stored run a measurement is of; empty if it is not stored."""
    run_id, time_ms = str(each.info.get("run_id", "")), _time_ms(each)
    found = [
        point.run for point in earlier.index.series(each.nodeid, "ops")
        if earlier.runs[point.run].run_id == run_id and (point.time_ms == time_ms or (time_ms is None and run_id))
    ]  # fmt: skip
    return found[-1] if found else ""


def _time_ms(each: Measurement) -> int | None:
    found = each.info.get("start_wall_ms")
    return found if isinstance(found, int) and 0 < found < 1 << 53 else each.run.stored_ms


def _point(each: Measurement, metric: str, place: str) -> Point:
    """Return a measurement as the index would have it."""
    fingerprint = {"schema": each.info.get("schema", 1), **{key: each.info.get(key) for key in CONDITIONS}}
    is_higher = metric in METRICS and METRICS[metric].better == "higher"
    commit = each.run.commit.partition(" ")[0]
    return Point(place, _time_ms(each) or 1 << 53, commit, "", each.number(metric), fingerprint,
                 unfit_reason(each.info, metric, is_higher))  # fmt: skip


def _figure(
    each: Measurement, drawn: Sequence[_Panel], earlier: Earlier, here: set[str], always: str
) -> Figure:  # fmt: skip
    points = drawn[0].course.points
    names = {place: run.name for place, run in earlier.runs.items()} | {"": each.run.name}
    mine = [place for place, point in enumerate(points) if point.run in here]
    mine = mine if len(mine) < len(points) else []  # all are of this page: none stands out

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"History, {each.label}, {each.subject}", told)
        legend = [*_LEGEND, *([_BROKEN] if any(panel.broken for panel in drawn) else [])]
        legend += [_MARGIN] if any(panel.margin(mine) for panel in drawn) else []
        top = canvas.legend(6, 14, [*legend, *([("band", "this page")] if mine else [])], width - 4) + 34
        x = Categories([history.day_text(point.time_ms)[:10] for point in points])
        for panel in drawn:
            plane = Plane(canvas, x, _scale(panel), 66, top, width - 14, top + _HIGH)
            is_last = panel is drawn[-1]
            plane.axes("runs, the latest on the right" if is_last else "", panel.words, x_labels=is_last)
            _draw(plane, panel, mine, names)
            top = plane.bottom + _GAP
        canvas.height = top - _GAP + 42
        return canvas

    told = " ".join(_told(drawn, names, always))
    head = ["run", "time (UTC)", "commit", *(panel.head for panel in drawn), "remark"]
    rows = [
        [
            names[point.run], history.day_text(point.time_ms), point.commit[:10] or None,
            *(panel.course.points[place].value for panel in drawn), _remark(place, drawn, is_mine=place in mine),
        ]
        for place, point in enumerate(points)
    ]  # fmt: skip
    title = f"History: {each.subject}" if each.subject else "History"
    return Figure("history", title, told, draw, head, rows)


def _told(drawn: Sequence[_Panel], names: Mapping[str, str], always: str) -> Iterator[str]:
    """Yield sentences about the runs, their changes, and what is not drawn."""
    points, apart = drawn[0].course.points, drawn[0].course.apart
    yield f"{len(points)} runs under the conditions of this one."
    uncounted = sum(any(panel.course.points[place].fit for panel in drawn) for place in range(len(points)))
    if uncounted:
        edge = "; what is beyond the others is drawn at the edge" if any(panel.beyond for panel in drawn) else ""
        yield f"{uncounted} of them {'does' if uncounted == 1 else 'do'} not count (see the numbers){edge}."
    changes = [
        f"{panel.words}: {history.change_text(first, change, panel.metric, names[first.run])}"
        for panel in drawn for first, change in panel.changes
    ]  # fmt: skip
    yield f"Lasting changes: {'; '.join(changes)}." if changes else f"{history.no_change(points).capitalize()}."
    if apart:
        runs, are = ("run", "is") if apart == 1 else ("runs", "are")
        yield f"{apart} {runs} under other conditions {are} left out."
    if always:
        yield always


def _remark(place: int, drawn: Sequence[_Panel], *, is_mine: bool) -> str:
    """Return what there is to say of a run: that it is of this page, why it does not count, which changes begin."""
    told = ["this page"] if is_mine else []
    told += ["broken, said the gate"] if any(place in panel.broken for panel in drawn) else []
    told += dict.fromkeys(panel.course.points[place].fit for panel in drawn if panel.course.points[place].fit)
    told += [
        f"first run after a change of {panel.words}"
        for panel in drawn for first, _ in panel.course.changes if first == place
    ]  # fmt: skip
    return "; ".join(told)


def _scale(panel: _Panel) -> Scale:
    low, high = panel.reach
    if low > 0 and high / low >= 30:
        return Log(low * 0.8, high * 1.25, panel.text)
    return Linear(low, high, panel.text)


def _draw(plane: Plane, panel: _Panel, mine: Sequence[int], names: Mapping[str, str]) -> None:
    """Draw one metric: the runs of this page behind all, then levels, runs and changes."""
    points, canvas, beyond = panel.course.points, plane.canvas, panel.beyond
    for place in mine:
        left, right = plane.px(place - 0.5), plane.px(place + 0.5)
        tip = f"this page: {format_metric(points[place].value, panel.metric)}"
        canvas.box(left, plane.top, max(3.0, right - left), plane.bottom - plane.top, "band", tip)
    if (band := panel.margin(mine)) is not None:
        first, end, low, high = band
        plane.bar(first - 0.5, end - 0.5, low, high, "margin", "within the gate's margin")
    for first, end, level in panel.levels:
        plane.line([(first - 0.5, level), (end - 0.5, level)], "s0 solid")
    named = {place for place, _ in panel.known if points[place].fit} | panel.broken
    plane.dots([(place, value) for place, value in panel.known if place not in named], "points")
    for place, value in panel.known:
        if place in named:
            told = [format_metric(value, panel.metric), points[place].fit]
            told += ["broken, said the gate"] if place in panel.broken else []
            tip = f"{names[points[place].run]}: {', '.join(filter(None, told))}"
            tip += "; drawn at the edge" if place in beyond else ""
            plane.dot(place, value, 6 if place in panel.broken else 4, tip)
    for number, (place, _) in enumerate(panel.course.changes):
        plane.rule(x=place - 0.5, label=_since(points[place]), line=number % 3 - 1)


def _since(point: Point) -> str:
    """Return the commit and the day of the first run after a change."""
    return ", ".join([each for each in (point.commit[:10], history.day_text(point.time_ms)[:10]) if each])
