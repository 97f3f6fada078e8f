"""The two figures of every experiment with records: its distribution of response times, and its course over time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from pytest_cloudbench.model import Outcome
from pytest_cloudbench.report.digest import Digest
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.quantities import format_seconds, format_short_share
from pytest_cloudbench.report.scales import Linear, Log, Tail
from pytest_cloudbench.report.svg import SERIES, Canvas, Plane
from pytest_cloudbench.support.wording import format_count

OUTCOMES: Mapping[str, str] = {
    Outcome.OK.value: "succeeded",
    Outcome.THROTTLED.value: "throttled",
    Outcome.FAILED.value: "failed",
    Outcome.CORRUPT.value: "corrupt",
    Outcome.LOST.value: "lost",
}
"""The words for outcomes, in the order in which bars are stacked."""

_MARKED_SHARES = (0.5, 0.95, 0.99)
"""The percentiles that have dots and are in the description, the same as in the tables."""


def distribution(title: str, digests: Mapping[str, Digest]) -> Figure | None:
    """Return the figure of the share of operations that were answered within a time, or None if none succeeded.

    Args:
        title: the experiment's title, for the description.
        digests: the operations of each line, by its name.
    """
    drawn = {name: digest for name, digest in digests.items() if digest.overall.total}
    if not drawn:
        return None
    steps_by_name = {name: list(digest.overall.cumulative_shares()) for name, digest in drawn.items()}
    shortest, longest = (
        edge(steps_of_line[index][0] for steps_of_line in steps_by_name.values())
        for edge, index in ((min, 0), (max, -1))
    )
    top_share = 1 - 0.5 / max(digest.overall.value_count for digest in drawn.values())

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"Response times, {title}")
        entries = [(f"s{number % SERIES}", name) for number, name in enumerate(drawn)]
        top = canvas.draw_legend(6, 14, entries, width - 4) + 34 if len(drawn) > 1 else 30.0
        plane = Plane(
            canvas, Log(shortest * 0.9, longest * 1.1, format_seconds), Tail(top_share), 54, top, width - 12, top + 208
        )
        plane.draw_axes("response time", "answered within")
        for number, (name, points) in enumerate(steps_by_name.items()):
            line = [(points[0][0], 0.0), *points]
            line[-1] = (line[-1][0], min(line[-1][1], top_share))
            plane.draw_line(line, f"s{number % SERIES}", steps=True)
            for share in _MARKED_SHARES:
                time_s = drawn[name].response_s(share)
                if time_s is not None and share <= top_share:
                    plane.draw_dot(
                        time_s, share, number, f"{format_short_share(share)} within {format_seconds(time_s)}"
                    )
        canvas.height = top + 208 + 42
        return canvas

    percentiles = "; ".join(
        f"{name}: "
        + ", ".join(f"p{share * 100:g} {_format_or_dash(digest.response_s(share))}" for share in _MARKED_SHARES)
        for name, digest in list(drawn.items())[:SERIES]
    )
    description = f"Operations that succeeded, by response time. Each step up is ten times rarer. {percentiles}."
    sample_size, total = (
        sum(getattr(digest.overall, name) for digest in drawn.values()) for name in ("value_count", "total")
    )
    description += f" A sample of {sample_size:,} of {total:,.0f} operations." if sample_size < round(total) else ""
    shares = [number / 100 for number in range(5, 95, 5)] + [0.95, 0.98, 0.99, 0.995, 0.999, 0.9999, 1.0]
    rows = [[share, *(digest.response_s(share) for digest in drawn.values())] for share in shares]
    return Figure(
        "response-times", "Response times", description, draw, ["share", *(f"{name}, s" for name in drawn)], rows
    )


def _format_or_dash(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


def over_time(title: str, digest: Digest, line: str = "") -> Figure:
    """Return the figure of response times and outcomes over the run, with the times in which nothing ended.

    ``line`` is the name that distinguishes the figures of one experiment.
    """
    p50, p99, edges = digest.p50_s, digest.p99_s, digest.edges_s
    outcomes_seen = [name for name in OUTCOMES if any(counts.get(name) for counts in digest.outcomes)]
    known_s = [value for value in (*p50, *p99) if value is not None]
    rates = [
        {name: count / (to_s - from_s) for name, count in counts.items()}
        for counts, (from_s, to_s) in zip(digest.outcomes, pairwise(edges), strict=True)
    ]
    highest_rate = max(sum(rate.values()) for rate in rates)
    counted_when = "ended" if digest.is_by_end else "were due"

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"Over time, {title}")
        entries = [("s0", "median"), ("s1", "99 %")] if known_s else []
        entries += [("silence", "nothing ended")] if digest.silences else []
        top, right = canvas.draw_legend(6, 14, entries, width - 4) + 34, width - 12
        x = Linear(0, digest.span_s, format_seconds, fixed=True)
        low, high = (min(known_s) * 0.8, max(known_s) * 1.25) if known_s else (0.001, 1.0)
        upper = Plane(canvas, x, Log(low, high, format_seconds), 54, top, right, top + 120)
        bars = [(f"o-{name}", OUTCOMES[name]) for name in outcomes_seen]
        head = canvas.draw_legend(6, top + 144, bars, width - 4)
        lower = Plane(canvas, x, Linear(0, highest_rate), 54, head + 34, right, head + 104)
        for plane in (upper, lower):
            plane.show_rows(digest.span_s)
        for silence in digest.silences:
            tip = f"nothing ended from {silence.from_s:.2f} to {silence.to_s:.2f} s, {silence.waiting} or more waited"
            box_width = max(1.5, upper.canvas_x(silence.to_s) - upper.canvas_x(silence.from_s))
            for plane in (upper, lower):  # a box across both would cover the legend
                canvas.draw_box(
                    plane.canvas_x(silence.from_s), plane.top, box_width, plane.bottom - plane.top, "silence", tip
                )
        upper.draw_axes("", "response time", x_labels=False)
        middles = [(from_s + to_s) / 2 for from_s, to_s in pairwise(edges)]
        for number, values in ((1, p99), (0, p50)):
            points = [None if value is None else (middle, value) for middle, value in zip(middles, values, strict=True)]
            upper.draw_line(points, f"s{number}")
            for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False):
                if point is not None and before is None and after is None:
                    upper.draw_dot(*point, number)
        lower.draw_axes("since the start", f"operations {counted_when.removeprefix('were ')} per second")
        heights = [0.0] * len(rates)
        for name in outcomes_seen:
            boxes = list[tuple[float, float, float, float]]()
            for number, (from_s, to_s) in enumerate(pairwise(edges)):
                if rate := rates[number].get(name, 0.0):
                    boxes.append((from_s, to_s, heights[number], heights[number] + rate))
                    heights[number] += rate
            lower.draw_boxes(boxes, f"o-{name}")
        canvas.height = lower.bottom + 42
        return canvas

    operations, span = format_count(digest.ops, "operation"), format_seconds(digest.span_s)
    description = f"{operations} in {span}, by the time at which they {counted_when}. "
    counts = {name: sum(counts.get(name, 0) for counts in digest.outcomes) for name in outcomes_seen}
    description += ", ".join(f"{count:,} {OUTCOMES[name]}" for name, count in counts.items())
    description += f". {_describe_silences(digest)}"
    rows = [
        [edges[number], p50[number], p99[number], *(counts.get(name, 0) for name in outcomes_seen)]
        for number, counts in enumerate(digest.outcomes)
    ]
    figure_title = f"Over time: {line}" if line else "Over time"
    return Figure(
        "over-time", figure_title, description, draw, ["from, s", "median, s", "99 %, s", *outcomes_seen], rows
    )


def _describe_silences(digest: Digest) -> str:
    if not digest.silences:
        return "No time in which nothing ended although operations waited."
    longest = max(digest.silences, key=lambda silence: silence.to_s - silence.from_s)
    times = f"{len(digest.silences)} times" if len(digest.silences) > 1 else "Once"
    return (
        f"{times} nothing ended although operations waited; the longest lasted "
        f"{format_seconds(longest.to_s - longest.from_s)}, {format_seconds(longest.from_s)} after the start."
    )
