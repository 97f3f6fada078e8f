"""Distributions of the delays until a sync client began, and finished, the transfer of single changes.

Suites declare which lists of an entry are delays.
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


def delays_of_changes(row: Delays, measurement: Measurement) -> Figure | str | None:
    """Return the figure of an entry's delays, the reason why it cannot be drawn, or None if it has no delays."""
    if not any(name in measurement.info for name in row.values):
        return None
    lines = {words: _read_delays(measurement.info.get(name)) for name, words in row.values.items()}
    sound_lines = {words: values for words, values in lines.items() if values}
    return (
        _build_figure(row, measurement, sound_lines)
        if sound_lines
        else "not drawn, the entry's delays are not a list of positive numbers"
    )


def _read_delays(stored: object) -> list[float]:
    values = stored if isinstance(stored, list) else []
    numbers = [float(value) for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    is_sound = len(numbers) == len(values) and all(isfinite(value) and value > 0 for value in numbers)
    return sorted(numbers) if is_sound else []


def _build_figure(row: Delays, measurement: Measurement, lines: dict[str, list[float]]) -> Figure:
    """Return the figure of the distributions of delays, beside published medians and shares."""
    published_medians = {
        words: float(value)
        for key, words in row.published.items()
        if isinstance(value := measurement.info["published"].get(key), (int, float))
    }
    published_shares = {
        ends: float(value)
        for key, ends in row.shares.items()
        if is_finite(value := measurement.info["published"].get(key)) and row.shares_of in lines
    }
    all_s = [end for ends in published_shares for end in ends]
    all_s += [value for values in lines.values() for value in values] + list(published_medians.values())

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"Delays of single changes, {measurement.subject}")
        entries = [(f"s{number}", words) for number, words in enumerate(lines)]
        entries += [("rule", "published")] if published_medians else []
        entries += [("band", f"published share of {row.shares_of}s")] if published_shares else []
        top = canvas.draw_legend(6, 14, entries, width - 4) + 34
        x, y = Log(min(all_s) * 0.8, max(all_s) * 1.25, format_seconds), Linear(0, 1, format_short_share, fixed=True)
        plane = Plane(canvas, x, y, 54, top, width - 14, top + 190)
        plane.draw_axes("time since the change", "share of changes")
        for number, ((from_s, to_s), share) in enumerate(published_shares.items()):
            style = "band" if number % 2 == 0 else "band other"
            plane.draw_bar(from_s, to_s, 0, 1, style, f"published: {format_short_share(share)} of {row.shares_of}s")
            middle = (plane.canvas_x(from_s) + plane.canvas_x(to_s)) / 2
            canvas.draw_text(middle, plane.bottom - 6, f"{share:.0%}".replace("%", " %"), "note", "middle")
        for value in published_medians.values():
            plane.draw_rule(x=value)
        for number, values in enumerate(lines.values()):
            plane.draw_line([(values[0], 0.0), *_cumulative_shares(values)], f"s{number}", steps=True)
            plane.draw_dot(_median_delay(values), 0.5, number, f"half within {format_seconds(_median_delay(values))}")
        canvas.height = plane.bottom + 42
        return canvas

    median_texts = "; ".join(f"{words}: {format_seconds(_median_delay(values))}" for words, values in lines.items())
    description = f"{row.caption} Medians: {median_texts}.".lstrip()
    for (from_s, to_s), share in published_shares.items():
        values = lines[row.shares_of]
        measured_share = sum(from_s <= value < to_s for value in values) / len(values)
        words = f"{measured_share:.0%} of {row.shares_of}s, published {share:.0%}".replace("%", " %")
        description += f" From {from_s:g} to {to_s:g} s: {words}."
    head, rows = ["delay", "number", "seconds", "share of changes"], list[list[object]]()
    for words, values in lines.items():
        rows += [[words, number, value, share] for number, (value, share) in enumerate(_cumulative_shares(values), 1)]
    rows += [[words, None, value, None] for words, value in published_medians.items()]
    rows += [[f"published: {row.shares_of} from {from_s:g} to {to_s:g} s", None, None, share]
             for (from_s, to_s), share in published_shares.items()]  # fmt: skip
    source = str(measurement.info["published"].get("source") or "")
    medians = [f"{words} {format_seconds(value)}" for words, value in published_medians.items()]
    notes = ["; ".join([f"Published: {source}", *medians])]
    title = f"Delays of single changes: {measurement.subject}"
    is_published = published_medians or published_shares
    return Figure("delays-of-changes", title, description, draw, head, rows, notes if is_published else [])


def _cumulative_shares(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(value, number / len(values)) for number, value in enumerate(values, 1)]


def _median_delay(values: Sequence[float]) -> float:
    return percentile(values, 0.5)
