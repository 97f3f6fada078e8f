"""Stored runs as text: their history, runs side by side, and possible baselines.

An unknown value is a dash, never a zero. Runs under other conditions are kept apart, with the conditions that differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from pytest_cloudbench.judge.baseline import (
    HAD_DOUBTFUL_TIMES,
    HAD_DOUBTS,
    WAS_CUT,
    describe_differences,
    find_number,
    is_finite,
    list_doubts,
)
from pytest_cloudbench.judge.changepoints import ChangePoint, find_changes
from pytest_cloudbench.judge.metrics import FACTS, IS_YES, METRICS, find_metric, is_higher_better
from pytest_cloudbench.report import versus
from pytest_cloudbench.report.columns import fit_to_width
from pytest_cloudbench.report.distance import format_distance
from pytest_cloudbench.report.export import is_comparison
from pytest_cloudbench.report.hosts import list_locations
from pytest_cloudbench.report.quantities import format_metric
from pytest_cloudbench.report.table import HOST_TITLES, host_rows
from pytest_cloudbench.results.index import EntryRow, Index, RunRow, SidesRow
from pytest_cloudbench.results.points import Point
from pytest_cloudbench.support.printable import printable
from pytest_cloudbench.support.wording import format_count

_BARS, _PLAIN_BARS = "▁▂▃▄▅▆▇█", "_,:-=+*#"
_MOST_BARS = 40
_USUAL_METRICS = (
    "response_p50", "response_p95", "response_p99", "throughput", "failed_rate", "throttled_rate", "loss_rate",
)  # fmt: skip
_SHORT_COMMIT = 10
_DOUBTED, _DOUBTED_LEGEND = "?", "?: the run had doubts about this entry, see cloudbench show"


def _format_difference(value: float | None, former: float | None, metric: str) -> str:
    """Return the difference from a former value: in points for shares, in a word for answers, otherwise in percent."""
    if value is None or former is None:
        return "-"
    row = find_metric(metric)
    if row is not None and row.unit in ("fraction", IS_YES):
        return format_distance(value, former, row.unit)
    return f"{(value / former - 1) * 100:+.1f} %" if former > 0 else "-"


def format_day(time_ms: int) -> str:
    """Return a time of the Unix epoch to the minute, in UTC."""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return "-"


def _format_commit(commit: str, is_dirty: bool = False) -> str:
    return printable(commit[:_SHORT_COMMIT]) + ("+" if is_dirty else "") or "-"


def _render_bars(values: Sequence[float | None], *, plain: bool) -> str:
    """Return a line of bars. A run without a value is a dot."""
    levels = _PLAIN_BARS if plain else _BARS
    known_values = [value for value in values if value is not None]
    low, high = min(known_values, default=0.0), max(known_values, default=0.0)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return "".join("." if value is None else levels[round((value - low) * scale)] for value in values)


def _doubt_mark(point: Point) -> str:
    """Return the mark of a number from a run with doubts, or an interrupted one. Empty for others."""
    return _DOUBTED if {WAS_CUT, HAD_DOUBTS, HAD_DOUBTFUL_TIMES} & {*point.faults} else ""


def _order_metrics() -> list[str]:
    """Return the names of all metrics: usual ones first, and last those that are zero unless something went wrong."""
    return [*dict.fromkeys([*_USUAL_METRICS, *(name for name in METRICS if name not in FACTS), *FACTS])]


def main_metric(index: Index, test: str) -> str:
    """Return the first metric for which a test has a value, preferably a usual one."""
    return next(
        (name for name in _order_metrics() if any(point.value is not None for point in index.series(test, name))),
        _USUAL_METRICS[0],
    )


# --- history ---


def _read_series(index: Index, test: str, metric: str, kept_run: str = "") -> list[Point]:
    """Return a metric of a test in all runs, each once. A folder that was copied into another one holds them twice.

    Copies would make a change by chance look certain. If ``kept_run`` is one of several copies, it is returned.
    """
    points = index.series(test, metric)
    kept_last = [*points, *(point for point in points if point.run == kept_run)]
    return list({(point.time_ms, point.value): point for point in kept_last}.values())


def _comparable_points(points: Sequence[Point]) -> list[Point]:
    """Return the points with the same conditions as the last one."""
    return [point for point in points if points and point.fingerprint == points[-1].fingerprint]


def _group_by_conditions(points: Sequence[Point]) -> list[list[Point]]:
    """Group points that may be compared, in the order of their first points."""
    groups: list[list[Point]] = []
    for point in points:
        for group in groups:
            if group[0].fingerprint == point.fingerprint:
                group.append(point)
                break
        else:
            groups.append([point])
    return groups


def _find_changes(points: Sequence[Point]) -> list[tuple[Point, ChangePoint]]:
    """Return the changes among comparable points, each with the first point after it."""
    counted = [point for point in points if point.counts]
    return [(counted[change.first], change) for change in find_changes([point.value or 0.0 for point in counted])]


def describe_change(point: Point, change: ChangePoint, metric: str, run: str) -> str:
    """Return the size and certainty of a change and its first run. ``point`` is the first one after the change."""
    difference = _format_difference(change.after, change.before, metric)
    tone = ""  # other numbers have no direction
    if find_metric(metric) is not None:
        tone = "better, " if (change.after > change.before) == is_higher_better(metric) else "worse, "
    certainty = "certain" if change.p_value == 0 else f"p {change.p_value:.0e}"
    run_text = f"{printable(run)} ({_format_commit(point.commit)}, {format_day(point.time_ms)})"
    levels = f"{format_metric(change.before, metric)} to {format_metric(change.after, metric)}"
    doubt = f"; may be chance: successive runs are alike (correlation {change.correlation:.2f})"
    return f"{difference} ({levels}, {tone}{certainty}) since {run_text}{doubt if change.is_doubtful else ''}"


@dataclass(frozen=True, slots=True)
class Course:
    """A metric of a test over comparable runs.

    Attributes:
        points: the last runs, the oldest first. ``unfit_reason`` is the reason why the history does not count a run.
        changes: the lasting changes, each with the index in ``points`` of the first run after it.
        apart: the number of runs of the test under other conditions.
    """

    points: Sequence[Point]
    changes: Sequence[tuple[int, ChangePoint]]
    apart: int


def metric_course(index: Index, test: str, metric: str, now: Point, last: int) -> Course:
    """Return the course of a metric under the conditions of a measurement, which need not be stored.

    Args:
        index: the stored runs.
        test: an entry's full name.
        metric: any number of an entry.
        now: the measurement. Its run is ``""`` if it is not stored.
        last: the maximum number of runs.
    """
    all_points = _read_series(index, test, metric, now.run)
    if not now.run:
        all_points = sorted([*all_points, now], key=lambda point: point.time_ms)
    conditions = next(point for point in all_points if point.run == now.run).fingerprint
    comparable = [point for point in all_points if point.fingerprint == conditions]
    points = comparable[-last:]
    indexes = {point.run: position for position, point in enumerate(points)}
    shown = [replace(point, unfit_reason="") if point.counts else point for point in points]
    return Course(
        shown,
        [(indexes[point.run], change) for point, change in _find_changes(points)],
        len(all_points) - len(comparable),
    )


def render_overview(
    index: Index, tests: Sequence[str], metric: str | None, last: int, width: int, *, plain: bool
) -> list[str]:
    """Return one line for each test, with its last value, its course, and its last change."""
    runs = {run.place: run for run in index.runs()}
    rows = [["test", "metric", "runs", "last", "course", "last change"]]
    tests_with_others = 0
    for test in tests:
        name = metric or main_metric(index, test)
        all_points = _read_series(index, test, name)
        points = _comparable_points(all_points)[-last:]
        tests_with_others += len(all_points) > len(_comparable_points(all_points))
        changes = _find_changes(points)
        difference = _format_difference(changes[-1][1].after, changes[-1][1].before, name) if changes else ""
        since = f"{difference} since {runs[changes[-1][0].run].name}" if changes else "none"
        since += " (may be chance)" if changes and changes[-1][1].is_doubtful else ""
        bars = _render_bars([point.value for point in points[-_MOST_BARS:]], plain=plain)
        counted = sum(point.counts for point in points)
        count = f"{counted} of {len(points)}" if counted < len(points) else str(counted)
        last_value = format_metric(points[-1].value, name) + _doubt_mark(points[-1])
        rows.append([printable(test), name, count, last_value, bars, printable(since)])
    lines = fit_to_width(rows, width)
    if any(row[3].endswith(_DOUBTED) for row in rows):
        lines.append(_DOUBTED_LEGEND)
    if tests_with_others:
        has = "has" if tests_with_others == 1 else "have"
        counts = f"{tests_with_others} of {format_count(len(tests), 'test')}"
        lines.append(f"{counts} also {has} runs under other conditions: name a test to see them")
    return lines


def render_test_history(index: Index, test: str, metric: str, last: int, width: int, *, plain: bool) -> list[str]:
    """Return the comparable runs of one test with their changes, and then the others, grouped by conditions."""
    runs = {run.place: run for run in index.runs()}
    points = _read_series(index, test, metric)
    latest = points[-1].fingerprint
    lines = [f"{printable(test)}: {metric}"]
    for group in sorted(_group_by_conditions(points), key=lambda group: group[-1].time_ms, reverse=True):
        lines.append("")
        if group[-1].fingerprint != latest:
            lines.append(f"apart: {printable(describe_differences(group[-1].fingerprint, latest))}")
        shown = group[-last:]
        rows = [["run", "time (UTC)", "commit", "branch", "value", "remark"]]
        changes = {point.run: change for point, change in _find_changes(shown)}
        for point in shown:
            remarks = [point.unfit_reason, _change_remark(changes[point.run], metric) if point.run in changes else ""]
            remark = "; ".join(filter(None, remarks))
            run = runs[point.run]
            commit, branch = _format_commit(run.commit, run.is_dirty), printable(run.branch) or "-"
            value = format_metric(point.value, metric)
            rows.append([printable(run.name), format_day(point.time_ms), commit, branch, value, printable(remark)])
        lines += [_render_bars([point.value for point in shown[-_MOST_BARS:]], plain=plain), *fit_to_width(rows, width)]
        if len(group) > last:
            lines.append(f"{len(group) - last} earlier runs are not shown: --last")
        change_lines = [
            describe_change(point, change, metric, runs[point.run].name) for point, change in _find_changes(shown)
        ]
        lines += [f"change: {line}" for line in change_lines] or [describe_no_change(shown)]
    return lines


def render_sides_history(index: Index, rows: Sequence[SidesRow], metric: str | None, width: int) -> list[str]:
    """Return comparisons of two sides, run by run. They have no series of a metric."""
    runs = {run.place: run for run in index.runs()}
    table = [["two sides in turns", "run", "time (UTC)", "commit", "A", "B", "pairs", "B against A"]]
    for row in rows:
        sides = [printable(str(row.comparison.get(side) or "-")) for side in "AB"]
        run, pairs = printable(runs[row.run].name), printable(str(row.comparison.get("pairs", "-")))
        when = [format_day(row.time_ms), _format_commit(row.commit)]
        table.append([printable(row.fullname), run, *when, *sides, pairs, _sides_difference(row.comparison, metric)])
    return fit_to_width(table, width)


def _sides_difference(comparison: Mapping[str, Any], metric: str | None) -> str:
    """Return the difference of two sides in a metric, or in the deciding ones."""
    deciding = comparison.get("deciding")
    metrics = [metric] if metric else [str(name) for name in deciding] if isinstance(deciding, list) else []
    cells = {name: f"{name} {change}: {answer}" for name, _, _, change, answer in versus.comparison_cells(comparison)}
    texts = [cells[name] for name in metrics if name in cells]
    return printable("; ".join(texts or ([] if metric else cells.values()))) or "-"


def _change_remark(change: ChangePoint, metric: str) -> str:
    return f"first run after a change ({_format_difference(change.after, change.before, metric)})"


def describe_no_change(points: Sequence[Point]) -> str:
    """Return a remark that no change was found in the runs, or that there are too few runs."""
    counted = sum(point.counts for point in points)
    runs = format_count(counted, "run")
    return "no change found" if counted >= 8 else f"no change can be found yet: {runs}, 8 are needed"


# --- runs side by side ---


def _describe_providers(run: RunRow) -> str:
    emulated = {"all": "emulated", "some": "partly emulated"}.get(run.emulated, "real")
    return f"{', '.join(map(printable, run.providers)) or '-'} ({emulated})"


def render_run_list(runs: Sequence[RunRow], width: int) -> list[str]:
    """Return one line for each run."""
    rows = [["run", "time (UTC)", "commit", "branch", "outcome", "entries", "doubtful", "operations", "what"]]
    rows += [
        [printable(run.name), format_day(run.time_ms), _format_commit(run.commit, run.is_dirty),
         printable(run.branch) or "-", run.outcome, str(run.entries), str(run.doubtful),
         "-" if run.ops is None else f"{run.ops:,}", _describe_providers(run)]
        for run in runs
    ]  # fmt: skip
    return fit_to_width(rows, width)


def render_side_by_side(index: Index, chosen: Sequence[RunRow], metrics: Sequence[str], width: int) -> list[str]:
    """Return runs side by side for each test. Differences are to the first run under the same conditions."""
    names = Counter(run.name for run in chosen)
    places = {run.place: run if names[run.name] == 1 else replace(run, name=run.place) for run in chosen}
    lines = []
    if len({run.emulated for run in chosen}) > 1:
        lines += ["note: some of these runs were emulated and some real: no difference between the two is shown", ""]
    for test in index.tests():
        compared = [*metrics] or _find_compared_metrics(index, test, places)
        points_by_metric = {name: _points_by_run(index, test, name, places) for name in compared}
        known_metrics = {
            name
            for name, points in points_by_metric.items()
            if any(point.value is not None for point in points.values())
        }
        points_by_metric = {
            name: points for name, points in points_by_metric.items() if name in known_metrics or metrics
        }
        shown_places = [
            run_place for run_place in places if any(run_place in points for points in points_by_metric.values())
        ]
        if known_metrics:
            lines += [printable(test), *_side_by_side_tables(shown_places, places, points_by_metric, width), ""]
            absent = [printable(run.name) for run_place, run in places.items() if run_place not in shown_places]
            if absent:
                lines.insert(-1, f"no entry in {_first_names(absent)}")
    comparisons = [row for row in index.comparisons() if row.run in places]
    if comparisons:
        names_of = dict.fromkeys(places[row.run].name for row in comparisons)
        lines += [
            f"left out: comparisons of two sides ({len(comparisons)}, see cloudbench show {_first_names([*names_of])})",
            "",
        ]
    return lines[:-1] if lines else ["none of these runs has an entry with such a metric"]


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _find_compared_metrics(index: Index, test: str, places: Mapping[str, RunRow]) -> list[str]:
    """Return the usual metrics, and those in the table of a conclusion."""
    points = _points_by_run(index, test, "ops", places).values()
    columns = [name for point in points for name in point.columns if name in METRICS]
    return list(dict.fromkeys([*_USUAL_METRICS, *columns]))


def _points_by_run(index: Index, test: str, metric: str, places: Mapping[str, RunRow]) -> dict[str, Point]:
    series = index.series(test, metric)
    return {point.run: point for point in series if point.run in places}


def _side_by_side_tables(
    places: Sequence[str], runs: Mapping[str, RunRow], points_by_metric: Mapping[str, Mapping[str, Point]], width: int
) -> list[str]:
    """Return a table for each group of comparable runs, in the order in which the user named them."""
    first_points = {
        place: next(points[place] for points in points_by_metric.values() if place in points) for place in places
    }
    lines = []
    for comparable in _group_by_conditions([first_points[place] for place in places]):
        first, group = comparable[0], [point.run for point in comparable]
        if group[0] != places[0]:
            lines.append(
                f"apart: {printable(describe_differences(first.fingerprint, first_points[places[0]].fingerprint))}"
            )
        rows = [["run", "commit", *(title for name in points_by_metric for title in (name, "difference")), "remark"]]
        for place in group:
            row = [printable(runs[place].name), _format_commit(runs[place].commit, runs[place].is_dirty)]
            for name, points in points_by_metric.items():
                point, former = points.get(place), points.get(group[0])
                doubt = "" if point is None else _doubt_mark(point)
                value = None if point is None else point.value
                difference = (
                    ""
                    if place == group[0]
                    else _format_difference(value, None if former is None else former.value, name)
                )
                row += [format_metric(value, name) + doubt, difference]
            rows.append([*row, "; ".join(first_points[place].faults)])
        if not any(row[-1] for row in rows[1:]):
            rows = [row[:-1] for row in rows]
        differences = range(3, 2 + 2 * len(points_by_metric), 2)
        if len(group) == 1:
            rows = [[cell for column, cell in enumerate(row) if column not in differences] for row in rows]
        lines += fit_to_width(rows, width, attached=differences if len(group) > 1 else ())
        if any(cell.endswith(_DOUBTED) for row in rows for cell in row[2:]):
            lines.append(_DOUBTED_LEGEND)
    return lines


def render_run(run: RunRow, entries: Sequence[EntryRow], metrics: Sequence[str], width: int) -> list[str]:
    """Return a run's conditions, and its entries with published values and doubts."""
    commit = (printable(run.commit) or "-") + (", with changes" if run.is_dirty else "")
    lines = [
        f"{printable(run.place)}: {run.outcome}, {format_day(run.time_ms)} UTC",
        f"commit {commit}, branch {printable(run.branch) or '-'}; {_describe_providers(run)}",
        "",
    ]
    if run.emulated != "none":
        lines.insert(2, "an emulated run measures the client and the loopback, not the service")
    comparisons = [entry for entry in entries if is_comparison(entry.info)]
    entries = [entry for entry in entries if entry not in comparisons]
    names = [*metrics] or [
        name for name in _order_metrics() if _is_shown(name) and any(name in entry.info for entry in entries)
    ]
    rows = [["entry", "outcome", *names]]
    for entry in entries:
        cells = [format_metric(find_number(entry.info, name), name) for name in names]
        outcome = str(entry.info.get("outcome") or "-")
        rows.append([printable(entry.fullname), printable(outcome), *(_with_published(entry, names, cells))])
    lines += fit_to_width(rows, width) if entries or not comparisons else []
    hosts = [[printable(entry.fullname), *map(printable, row)] for entry in entries for row in host_rows(entry.info)]
    lines += ["", *fit_to_width([["entry", *HOST_TITLES], *hosts], width)] if hosts else []
    located = list_locations([(str(entry.info.get("provider")), entry.info) for entry in entries])
    lines += [f"{printable(f'servers of {name}: {text}')}" for name, texts in located.items() for text in texts]
    lines += [f"published: {printable(line)}" for line in _published_sources(entries)]
    doubts = [(entry.fullname, doubt) for entry in entries for doubt in list_doubts(entry.info, is_time=True)]
    lines += [f"! {printable(f'{fullname}: {doubt}')}" for fullname, doubt in doubts]
    for entry in comparisons:
        lines += [printable(line) for line in versus.render_stored(entry.fullname, entry.info, width)]
        lines.append(f"  outcome: {printable(str(entry.info.get('outcome') or '-'))}")
    return lines


def _is_shown(name: str) -> bool:
    return name in _USUAL_METRICS or bool(METRICS[name].column) or METRICS[name].of is None


def _with_published(entry: EntryRow, names: Sequence[str], cells: Iterable[str]) -> Iterator[str]:
    """Yield each cell, with the published value in the same unit if there is one."""
    published = entry.info.get("published")
    values = published if isinstance(published, Mapping) else {}
    for name, cell in zip(names, cells, strict=True):
        value = values.get(name)
        yield f"{cell} (published {format_metric(float(value), name)})" if is_finite(value) else cell  # type: ignore[arg-type]  # the same


def _published_sources(entries: Sequence[EntryRow]) -> list[str]:
    published = [entry.info.get("published") for entry in entries]
    return list(
        dict.fromkeys(str(table["source"]) for table in published if isinstance(table, Mapping) and "source" in table)
    )


# --- baselines ---


def render_baselines(
    index: Index, tests: Sequence[str], metric: str | None, width: int, explain_commit: Callable[[Point], str]
) -> list[str]:
    """Return for each test the number of runs that may serve as a baseline, and why others may not.

    ``explain_commit`` returns why a run does not count because of its commit, or an empty text.
    """
    rows = [["test", "metric", "runs", "fit", "why the others are not"]]
    for test in tests:
        name = metric or main_metric(index, test)
        points = _read_series(index, test, name)
        latest = points[-1].fingerprint
        reasons = sorted(filter(None, (
            point.unfit_reason or describe_differences(point.fingerprint, latest) or explain_commit(point)
            for point in points
        )))  # fmt: skip
        reason_counts = [f"{len(list(group))} {reason}" for reason, group in groupby(reasons)]
        rows.append(
            [
                printable(test),
                name,
                str(len(points)),
                str(len(points) - len(reasons)),
                printable("; ".join(reason_counts)),
            ]
        )
    return fit_to_width(rows, width)
