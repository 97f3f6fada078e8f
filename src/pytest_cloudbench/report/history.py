"""Stored runs as text: their history, one beside the other, and what may serve as a baseline.

What may live here: turning what the index says into lines. What is unknown is a dash, never a zero; runs that were
measured under other conditions are kept apart, with the condition that differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from pytest_cloudbench.judge.baseline import HAD_DOUBTFUL_TIMES, HAD_DOUBTS, describe_differences, is_finite
from pytest_cloudbench.judge.changepoints import ChangePoint, find_changes
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.report import versus
from pytest_cloudbench.report.columns import fitted
from pytest_cloudbench.report.quantities import format_metric, format_points
from pytest_cloudbench.results.index import EntryRow, Index, RunRow, SidesRow
from pytest_cloudbench.results.points import Point

_BARS, _PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
_MOST_BARS = 40
_USUAL = (
    "response_p50", "response_p95", "response_p99", "throughput", "failed_rate", "throttled_rate", "loss_rate",
)  # fmt: skip
_SHORT_COMMIT = 10


def printable(text: str) -> str:
    """Return a text without control characters: names in files can hold anything."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _difference(value: float | None, former: float | None, metric: str) -> str:
    """Return how far a value is from a former one: in points for shares, otherwise in percent of it."""
    if value is None or former is None:
        return "-"
    if metric in METRICS and METRICS[metric].unit == "fraction":
        return format_points(value - former)
    return f"{(value / former - 1) * 100:+.1f} %" if former > 0 else "-"


def day_text(time_ms: int) -> str:
    """Return a time of the Unix epoch to the minute, in UTC."""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return "-"


def _commit(commit: str, is_dirty: bool = False) -> str:
    return printable(commit[:_SHORT_COMMIT]) + "+" * is_dirty or "-"


def _bars(values: Sequence[float | None], *, plain: bool) -> str:
    """Return a line of bars; a run without a value is a dot."""
    levels = _PLAIN_BARS if plain else _BARS
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return "".join("." if value is None else levels[round((value - low) * scale)] for value in values)


def main_metric(index: Index, test: str) -> str:
    """Return the first metric for which a test has a value: a usual one if there is any."""
    names = dict.fromkeys([*_USUAL, *METRICS])
    return next(
        (name for name in names if any(point.value is not None for point in index.series(test, name))), _USUAL[0]
    )


# --- history ---


def _like(points: Sequence[Point]) -> list[Point]:
    """Return the points that were measured under the conditions of the last one."""
    return [point for point in points if points and point.fingerprint == points[-1].fingerprint]


def _groups(points: Sequence[Point]) -> list[list[Point]]:
    """Return points that may be compared together, in the order of the first ones."""
    groups: list[list[Point]] = []
    for point in points:
        for group in groups:
            if group[0].fingerprint == point.fingerprint:
                group.append(point)
                break
        else:
            groups.append([point])
    return groups


def _changes(points: Sequence[Point]) -> list[tuple[Point, ChangePoint]]:
    """Return the changes among points that may be compared, each with the first run after it."""
    fit = [point for point in points if point.counts]
    return [(fit[change.first], change) for change in find_changes([point.value or 0.0 for point in fit])]


def change_text(point: Point, change: ChangePoint, metric: str, run: str) -> str:
    """Return how far a metric changed, how certainly, and since which run: ``point`` is the first one after it."""
    far = _difference(change.after, change.before, metric)
    good = METRICS[metric].better == "higher" if metric in METRICS else False
    tone = "better" if (change.after > change.before) == good else "worse"
    sure = "certain" if change.p_value == 0 else f"p {change.p_value:.0e}"
    where = f"{printable(run)} ({_commit(point.commit)}, {day_text(point.time_ms)})"
    levels = f"{format_metric(change.before, metric)} to {format_metric(change.after, metric)}"
    doubt = f"; may be chance: successive runs are alike (correlation {change.correlation:.2f})"
    return f"{far} ({levels}, {tone}, {sure}) since {where}{doubt if change.is_doubtful else ''}"


@dataclass(frozen=True, slots=True)
class Course:
    """A metric of a test over the runs that may be compared.

    Attributes:
        points: the last of them, the oldest first; ``fit`` says why the history does not count one.
        changes: the lasting changes among them, each with the place in ``points`` of the first run after it.
        apart: how many runs of the test were measured under other conditions.
    """

    points: Sequence[Point]
    changes: Sequence[tuple[int, ChangePoint]]
    apart: int


def course(index: Index, test: str, metric: str, now: Point, last: int) -> Course:
    """Return the course of a metric under the conditions of one measurement, which need not be stored.

    Args:
        index: the stored runs.
        test: an entry's full name.
        metric: any number of an entry.
        now: the measurement; its run is empty if it is not stored.
        last: how many runs at most.
    """
    every = index.series(test, metric)
    if not now.run:
        every = sorted([*every, now], key=lambda point: point.time_ms)
    conditions = next(point for point in every if point.run == now.run).fingerprint
    alike = [point for point in every if point.fingerprint == conditions]
    points = alike[-last:]
    places = {point.run: place for place, point in enumerate(points)}
    shown = [replace(point, fit="") if point.counts else point for point in points]
    return Course(shown, [(places[point.run], change) for point, change in _changes(points)], len(every) - len(alike))


def overview(
    index: Index, tests: Sequence[str], metric: str | None, last: int, width: int, *, plain: bool
) -> list[str]:
    """One line for each test: its last value, its course, and its last change."""
    runs = {run.place: run for run in index.runs()}
    rows = [["test", "metric", "runs", "last", "course", "last change"]]
    apart = 0
    for test in tests:
        name = metric or main_metric(index, test)
        every = index.series(test, name)
        points = _like(every)[-last:]
        apart += len(every) > len(_like(every))
        changes = _changes(points)
        far = _difference(changes[-1][1].after, changes[-1][1].before, name) if changes else ""
        since = f"{far} since {runs[changes[-1][0].run].name}" if changes else "none"
        since += " (may be chance)" if changes and changes[-1][1].is_doubtful else ""
        bars = _bars([point.value for point in points[-_MOST_BARS:]], plain=plain)
        fit = sum(point.counts for point in points)
        rows.append([printable(test), name, f"{fit} of {len(points)}" if fit < len(points) else str(fit),
                     format_metric(points[-1].value, name), bars, printable(since)])  # fmt: skip
    lines = fitted(rows, width)
    if apart:
        lines.append(f"{apart} of {len(tests)} tests also have runs under other conditions: name a test to see them")
    return lines


def test_history(index: Index, test: str, metric: str, last: int, width: int, *, plain: bool) -> list[str]:
    """All runs of one test that may be compared, the changes among them, and the others kept apart."""
    runs = {run.place: run for run in index.runs()}
    points = index.series(test, metric)
    latest = points[-1].fingerprint
    lines = [f"{printable(test)}: {metric}"]
    for group in sorted(_groups(points), key=lambda group: group[-1].time_ms, reverse=True):
        lines.append("")
        if group[-1].fingerprint != latest:
            lines.append(f"apart: {printable(describe_differences(group[-1].fingerprint, latest))}")
        shown = group[-last:]
        rows = [["run", "time (UTC)", "commit", "branch", "value", "remark"]]
        changes = {point.run: change for point, change in _changes(shown)}
        for point in shown:
            told = [point.fit, _difference_told(changes[point.run], metric) if point.run in changes else ""]
            remark = "; ".join(filter(None, told))
            run = runs[point.run]
            commit, branch = _commit(run.commit, run.is_dirty), printable(run.branch) or "-"
            value = format_metric(point.value, metric)
            rows.append([printable(run.name), day_text(point.time_ms), commit, branch, value, printable(remark)])
        lines += [_bars([point.value for point in shown[-_MOST_BARS:]], plain=plain), *fitted(rows, width)]
        if len(group) > last:
            lines.append(f"{len(group) - last} earlier runs are not shown: --last")
        told = [change_text(point, change, metric, runs[point.run].name) for point, change in _changes(shown)]
        lines += [f"change: {line}" for line in told] or [no_change(shown)]
    return lines


def sides_history(index: Index, rows: Sequence[SidesRow], metric: str | None, width: int) -> list[str]:
    """Comparisons of two sides, run by run: no series of a metric, since neither side was measured by itself."""
    runs = {run.place: run for run in index.runs()}
    table = [["two sides in turns", "run", "time (UTC)", "commit", "A", "B", "pairs", "B against A"]]
    for row in rows:
        sides = [printable(str(row.found.get(side) or "-")) for side in "AB"]
        run, pairs = printable(runs[row.run].name), printable(str(row.found.get("pairs", "-")))
        when = [day_text(row.time_ms), _commit(row.commit)]
        table.append([printable(row.fullname), run, *when, *sides, pairs, _apart(row.found, metric)])
    return fitted(table, width)


def _apart(found: Mapping[str, Any], metric: str | None) -> str:
    """Return how far two sides are apart in a metric, or in those that were to decide."""
    deciding = found.get("deciding")
    wanted = [metric] if metric else [str(each) for each in deciding] if isinstance(deciding, list) else []
    cells = {name: f"{name} {change}: {answer}" for name, _, _, change, answer in versus.cells(found)}
    told = [cells[name] for name in wanted if name in cells]
    return printable("; ".join(told or ([] if metric else cells.values()))) or "-"


def _difference_told(change: ChangePoint, metric: str) -> str:
    return f"first run after a change ({_difference(change.after, change.before, metric)})"


def no_change(points: Sequence[Point]) -> str:
    """Return what to say of runs without a change."""
    fit = sum(point.counts for point in points)
    return "no change found" if fit >= 8 else f"no change can be found yet: {fit} runs, 8 are needed"


# --- runs side by side ---


def _about(run: RunRow) -> str:
    emulated = {"all": "emulated", "some": "partly emulated"}.get(run.emulated, "real")
    return f"{', '.join(map(printable, run.providers)) or '-'} ({emulated})"


def run_list(runs: Sequence[RunRow], width: int) -> list[str]:
    """One line for each run."""
    rows = [["run", "time (UTC)", "commit", "branch", "outcome", "entries", "doubtful", "operations", "what"]]
    rows += [
        [printable(run.name), day_text(run.time_ms), _commit(run.commit, run.is_dirty), printable(run.branch) or "-",
         run.outcome, str(run.entries), str(run.doubtful), "-" if run.ops is None else f"{run.ops:,}", _about(run)]
        for run in runs
    ]  # fmt: skip
    return fitted(rows, width)


def compared(index: Index, chosen: Sequence[RunRow], metrics: Sequence[str], width: int) -> list[str]:
    """Runs side by side, test by test: differences are from the first run under the same conditions."""
    names = Counter(run.name for run in chosen)
    places = {run.place: run if names[run.name] == 1 else replace(run, name=run.place) for run in chosen}
    lines = []
    if len({run.emulated for run in chosen}) > 1:
        lines += ["note: some of these runs were emulated and some real: no difference between the two is shown", ""]
    for test in index.tests():
        found = {name: _chosen(index, test, name, places) for name in [*metrics] or _USUAL}
        known = {name for name, points in found.items() if any(each.value is not None for each in points.values())}
        found = {name: points for name, points in found.items() if name in known or metrics}
        there = [place for place in places if any(place in points for points in found.values())]
        if known:
            lines += [printable(test), *_beside(there, places, found, width), ""]
            absent = [printable(run.name) for place, run in places.items() if place not in there]
            if absent:
                lines.insert(-1, f"no entry in {_some(absent)}")
    apart = [each for each in index.comparisons() if each.run in places]
    if apart:
        names_of = dict.fromkeys(places[each.run].name for each in apart)
        lines += [f"left out: comparisons of two sides ({len(apart)}, see cloudbench show {_some([*names_of])})", ""]
    return lines[:-1] if lines else ["none of these runs has an entry with such a metric"]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _chosen(index: Index, test: str, metric: str, places: Mapping[str, RunRow]) -> dict[str, Point]:
    series = index.series(test, metric)
    return {point.run: point for point in series if point.run in places}


def _beside(
    there: Sequence[str], runs: Mapping[str, RunRow], found: Mapping[str, Mapping[str, Point]], width: int
) -> list[str]:
    """Return a table for each set of runs that may be compared, in the order in which the user named them."""
    some = {place: next(points[place] for points in found.values() if place in points) for place in there}
    lines = []
    for like in _groups([some[place] for place in there]):
        first, group = like[0], [point.run for point in like]
        if group[0] != there[0]:
            lines.append(f"apart: {printable(describe_differences(first.fingerprint, some[there[0]].fingerprint))}")
        rows = [["run", "commit", *(title for name in found for title in (name, "difference")), "remark"]]
        for place in group:
            row = [printable(runs[place].name), _commit(runs[place].commit, runs[place].is_dirty)]
            for name, points in found.items():
                point, former = points.get(place), points.get(group[0])
                doubt = "?" if point is not None and {HAD_DOUBTS, HAD_DOUBTFUL_TIMES} & {*point.faults} else ""
                value = None if point is None else point.value
                far = "" if place == group[0] else _difference(value, None if former is None else former.value, name)
                row += [format_metric(value, name) + doubt, far]
            rows.append([*row, "; ".join(some[place].faults)])
        if not any(row[-1] for row in rows[1:]):
            rows = [row[:-1] for row in rows]
        lines += fitted(rows, width)
        if any(cell.endswith("?") for row in rows for cell in row[2:]):
            lines.append("?: the run had doubts about this entry, see cloudbench show")
    return lines


def shown_run(run: RunRow, entries: Sequence[EntryRow], metrics: Sequence[str], width: int) -> list[str]:
    """One run: what it was, its entries with published values beside the measured, and their doubts."""
    dirty = ", with changes" if run.is_dirty else ""
    lines = [
        f"{printable(run.place)}: {run.outcome}, {day_text(run.time_ms)} UTC",
        f"commit {printable(run.commit) or '-'}{dirty}, branch {printable(run.branch) or '-'}; {_about(run)}",
        "",
    ]
    if run.emulated != "none":
        lines.insert(2, "an emulated run measures the client and the loopback, not the service")
    compared = [each for each in entries if _is_of_two(each)]
    entries = [each for each in entries if each not in compared]
    known = dict.fromkeys([*_USUAL, *METRICS])
    names = [*metrics] or [name for name in known if _is_shown(name) and any(name in each.info for each in entries)]
    rows = [["entry", "outcome", *names]]
    for entry in entries:
        cells = [format_metric(_number(entry, name), name) for name in names]
        outcome = str(entry.info.get("outcome") or "-")
        rows.append([printable(entry.fullname), printable(outcome), *(_with_published(entry, names, cells))])
    lines += fitted(rows, width) if entries or not compared else []
    lines += [f"published: {printable(line)}" for line in _sources(entries)]
    lines += [f"! {printable(f'{entry.fullname}: {doubt}')}" for entry in entries for doubt in _doubts(entry)]
    for each in compared:
        lines += [printable(line) for line in versus.stored(each.fullname, each.info, width)]
        lines.append(f"  outcome: {printable(str(each.info.get('outcome') or '-'))}")
    return lines


def _is_of_two(entry: EntryRow) -> bool:
    """Return whether an entry is about two sides that were measured in turns."""
    return isinstance(entry.info.get("versus"), Mapping)


def _is_shown(name: str) -> bool:
    return name in _USUAL or bool(METRICS[name].column) or METRICS[name].of is None


def _number(entry: EntryRow, name: str) -> float | None:
    value = entry.info.get(name)
    return float(value) if is_finite(value) else None  # type: ignore[arg-type]  # finite says that it is a number


def _with_published(entry: EntryRow, names: Sequence[str], cells: Iterable[str]) -> Iterator[str]:
    """Yield each cell with the published value in the metric's own unit, where there is one."""
    published = entry.info.get("published")
    given = published if isinstance(published, Mapping) else {}
    for name, cell in zip(names, cells, strict=True):
        value = given.get(name)
        yield f"{cell} (published {format_metric(float(value), name)})" if is_finite(value) else cell  # type: ignore[arg-type]  # the same


def _sources(entries: Sequence[EntryRow]) -> list[str]:
    published = [entry.info.get("published") for entry in entries]
    return list(
        dict.fromkeys(str(each["source"]) for each in published if isinstance(each, Mapping) and "source" in each)
    )


def _doubts(entry: EntryRow) -> Sequence[Any]:
    doubts = entry.info.get("doubts")
    return doubts if isinstance(doubts, list) else []


# --- baselines ---


def baselines(index: Index, tests: Sequence[str], metric: str | None, width: int) -> list[str]:
    """For each test: how many of its runs may serve as a baseline, and why others may not."""
    rows = [["test", "metric", "runs", "fit", "why the others are not"]]
    for test in tests:
        name = metric or main_metric(index, test)
        points = index.series(test, name)
        latest = points[-1].fingerprint
        whys = sorted(
            point.fit or describe_differences(point.fingerprint, latest)
            for point in points if point.fit or point.fingerprint != latest
        )  # fmt: skip
        told = [f"{len(list(group))} {why}" for why, group in groupby(whys)]
        rows.append([printable(test), name, str(len(points)), str(len(points) - len(whys)), printable("; ".join(told))])
    return fitted(rows, width)
