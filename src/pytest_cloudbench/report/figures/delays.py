"""Delays of single changes: which share of them a sync client began, and finished, within a time.

What may live here: the distributions of an entry's lists of delays, as a suite declares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.judge.stats import percentile
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.report.quantities import format_seconds, format_short_share
from pytest_cloudbench.report.scales import Linear, Log
from pytest_cloudbench.report.svg import Canvas, Plane
from pytest_cloudbench.results.suite import Delays


def delays_of_changes(row: Delays, each: Measurement) -> Figure | str | None:
    """Return the figure of an entry's delays, why there is none, or None for an entry that has none."""
    if not any(name in each.info for name in row.values):
        return None
    lines = {words: _seconds(each.info.get(name)) for name, words in row.values.items()}
    known = {words: values for words, values in lines.items() if values}
    return _figure(row, each, known) if known else "not drawn, the entry's delays are not a list of positive numbers"


def _seconds(found: object) -> list[float]:
    values = found if isinstance(found, list) else []
    numbers = [float(each) for each in values if isinstance(each, (int, float)) and not isinstance(each, bool)]
    is_sound = len(numbers) == len(values) and all(isfinite(each) and each > 0 for each in numbers)
    return sorted(numbers) if is_sound else []


def _figure(row: Delays, each: Measurement, lines: dict[str, list[float]]) -> Figure:
    theirs = {
        words: float(value)
        for key, words in row.published.items()
        if isinstance(value := each.info["published"].get(key), (int, float))
    }
    thirds = {
        ends: float(value)
        for key, ends in row.shares.items()
        if is_finite(value := each.info["published"].get(key)) and row.shares_of in lines
    }
    every = [end for ends in thirds for end in ends]
    every += [value for values in lines.values() for value in values] + list(theirs.values())

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"Delays of single changes, {each.subject}", told)
        entries = [(f"s{number}", words) for number, words in enumerate(lines)]
        entries += [("rule", "published")] if theirs else []
        entries += [("band", f"published share of {row.shares_of}s")] if thirds else []
        top = canvas.legend(6, 14, entries, width - 4) + 34
        x, y = Log(min(every) * 0.8, max(every) * 1.25, format_seconds), Linear(0, 1, format_short_share, fixed=True)
        plane = Plane(canvas, x, y, 54, top, width - 14, top + 190)
        plane.axes("time since the change", "share of changes")
        for number, ((from_s, to_s), share) in enumerate(thirds.items()):
            style = "band" if number % 2 == 0 else "band other"
            plane.bar(from_s, to_s, 0, 1, style, f"published: {format_short_share(share)} of {row.shares_of}s")
            middle = (plane.px(from_s) + plane.px(to_s)) / 2
            canvas.text(middle, plane.bottom - 6, f"{share:.0%}".replace("%", " %"), "note", "middle")
        for value in theirs.values():
            plane.rule(x=value)
        for number, values in enumerate(lines.values()):
            plane.line([(values[0], 0.0), *_steps(values)], f"s{number}", steps=True)
            plane.dot(_median(values), 0.5, number, f"half within {format_seconds(_median(values))}")
        canvas.height = plane.bottom + 42
        return canvas

    middle = "; ".join(f"{words}: {format_seconds(_median(values))}" for words, values in lines.items())
    told = f"{row.told} Medians: {middle}.".lstrip()
    for (from_s, to_s), share in thirds.items():
        values = lines[row.shares_of]
        mine = sum(from_s <= value < to_s for value in values) / len(values)
        words = f"{mine:.0%} of {row.shares_of}s, published {share:.0%}".replace("%", " %")
        told += f" From {from_s:g} to {to_s:g} s: {words}."
    head, rows = ["delay", "number", "seconds", "share of changes"], list[list[object]]()
    for words, values in lines.items():
        rows += [[words, number, value, share] for number, (value, share) in enumerate(_steps(values), 1)]
    rows += [[words, None, value, None] for words, value in theirs.items()]
    rows += [[f"published: {row.shares_of} from {from_s:g} to {to_s:g} s", None, None, share]
             for (from_s, to_s), share in thirds.items()]  # fmt: skip
    source = str(each.info["published"].get("source") or "")
    notes = [
        "; ".join([f"Published: {source}", *(f"{words} {format_seconds(value)}" for words, value in theirs.items())])
    ]
    return Figure("delays-of-changes", f"Delays of single changes: {each.subject}", told, draw, head, rows,
                  notes if theirs or thirds else [])  # fmt: skip


def _steps(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(value, number / len(values)) for number, value in enumerate(values, 1)]


def _median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)
