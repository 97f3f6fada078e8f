"""Response times: how they are distributed, and how they and the outcomes went over the run.

What may live here: the two figures that every experiment with records has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from pytest_cloudbench.model import Outcome
from pytest_cloudbench.report.digest import Digest
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.quantities import format_seconds, format_short_share
from pytest_cloudbench.report.scales import Linear, Log, Tail
from pytest_cloudbench.report.svg import SERIES, Canvas, Plane

OUTCOMES: Mapping[str, str] = {
    Outcome.OK.value: "succeeded",
    Outcome.THROTTLED.value: "throttled",
    Outcome.FAILED.value: "failed",
    Outcome.CORRUPT.value: "corrupt",
    Outcome.LOST.value: "lost",
}
"""Outcomes in the order in which bars are stacked, and what they are called."""

_TOLD_SHARES = (0.5, 0.95, 0.99)
"""The percentiles that a curve has dots for, and its caption names: those of the tables."""


def distribution(title: str, digests: Mapping[str, Digest]) -> Figure | None:
    """Draw the share of operations that were answered within a time; None if none succeeded.

    Args:
        title: of the experiment, for the description.
        digests: by the name of each line, in their order.
    """
    known = {name: each for name, each in digests.items() if each.whole.total}
    if not known:
        return None
    steps = {name: list(each.whole.steps()) for name, each in known.items()}
    low, high = (edge(each[at][0] for each in steps.values()) for edge, at in ((min, 0), (max, -1)))
    most = 1 - 0.5 / max(each.whole.seen for each in known.values())

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"Response times, {title}", told)
        entries = [(f"s{number % SERIES}", name) for number, name in enumerate(known)]
        top = canvas.legend(6, 14, entries, width - 4) + 34 if len(known) > 1 else 30.0
        plane = Plane(canvas, Log(low * 0.9, high * 1.1, format_seconds), Tail(most), 54, top, width - 12, top + 208)
        plane.axes("response time", "answered within")
        for number, (name, points) in enumerate(steps.items()):
            line = [(points[0][0], 0.0), *points]
            line[-1] = (line[-1][0], min(line[-1][1], most))
            plane.line(line, f"s{number % SERIES}", steps=True)
            for share in _TOLD_SHARES:
                at = known[name].response_s(share)
                if at is not None and share <= most:
                    plane.dot(at, share, number, f"{format_short_share(share)} within {format_seconds(at)}")
        canvas.height = top + 208 + 42
        return canvas

    middle = "; ".join(
        f"{name}: " + ", ".join(f"p{share * 100:g} {_or_dash(each.response_s(share))}" for share in _TOLD_SHARES)
        for name, each in list(known.items())[:SERIES]
    )
    told = f"Operations that succeeded, by response time. Each step up is ten times rarer. {middle}."
    seen, total = (sum(getattr(each.whole, name) for each in known.values()) for name in ("seen", "total"))
    told += f" A sample of {seen:,} of {total:,.0f} operations." if seen < round(total) else ""
    shares = [number / 100 for number in range(5, 95, 5)] + [0.95, 0.98, 0.99, 0.995, 0.999, 0.9999, 1.0]
    rows = [[share, *(each.response_s(share) for each in known.values())] for share in shares]
    return Figure("response-times", "Response times", told, draw, ["share", *(f"{name}, s" for name in known)], rows)


def _or_dash(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


def over_time(title: str, found: Digest, line: str = "") -> Figure:
    """Draw response times and outcomes over the run, with the times in which nothing ended.

    ``line`` is added to the figure's title if there are several of one experiment.
    """
    p50, p99, edges = found.p50_s, found.p99_s, found.edges_s
    there = [name for name in OUTCOMES if any(of.get(name) for of in found.outcomes)]
    known = [value for value in (*p50, *p99) if value is not None]
    merged = list(_merged(found.outcomes, edges))
    most = max(sum(of.values()) / (to_s - from_s) for from_s, to_s, of in merged)
    placed = "ended" if found.is_by_end else "were due"

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"Over time, {title}", told)
        entries = [("s0", "median"), ("s1", "99 %")] if known else []
        entries += [("silence", "nothing ended")] if found.silences else []
        top, right = canvas.legend(6, 14, entries, width - 4) + 34, width - 12
        x = Linear(0, found.span_s, format_seconds, fixed=True)
        low, high = (min(known) * 0.8, max(known) * 1.25) if known else (0.001, 1.0)
        upper = Plane(canvas, x, Log(low, high, format_seconds), 54, top, right, top + 120)
        bars = [(f"o-{name}", OUTCOMES[name]) for name in there]
        head = canvas.legend(6, top + 144, bars, width - 4)
        lower = Plane(canvas, x, Linear(0, most), 54, head + 34, right, head + 104)
        for each in found.silences:
            tip = f"nothing ended from {each.from_s:.2f} to {each.to_s:.2f} s, {each.waiting} or more waited"
            wide = max(1.5, upper.px(each.to_s) - upper.px(each.from_s))
            for plane in (upper, lower):  # not across the legend between them
                canvas.box(plane.px(each.from_s), plane.top, wide, plane.bottom - plane.top, "silence", tip)
        upper.axes("", "response time", x_labels=False)
        middles = [(one + two) / 2 for one, two in pairwise(edges)]
        upper.band([None if a is None or b is None else (at, a, b) for at, a, b in zip(middles, p50, p99, strict=True)],
                   "band")  # fmt: skip
        for number, values in ((1, p99), (0, p50)):
            points = [None if value is None else (at, value) for at, value in zip(middles, values, strict=True)]
            upper.line(points, f"s{number}")
            for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False):
                if point is not None and before is None and after is None:
                    upper.dot(*point, number)
        lower.axes("since the start", f"operations {placed.removeprefix('were ')} per second")
        for from_s, to_s, of in merged:
            below = 0.0
            for name in there:
                if count := of.get(name, 0):
                    rate = count / (to_s - from_s)
                    tip = f"{from_s:.1f} to {to_s:.1f} s: {count:,} {OUTCOMES[name]}"
                    lower.bar(from_s, to_s, below, below + rate, f"o-{name}", tip)
                    below += rate
        canvas.height = lower.bottom + 42
        return canvas

    told = f"{found.ops:,} operations in {format_seconds(found.span_s)}, by the time at which they {placed}. "
    counts = {name: sum(of.get(name, 0) for of in found.outcomes) for name in there}
    told += ", ".join(f"{count:,} {OUTCOMES[name]}" for name, count in counts.items()) + ". " + _silent(found)
    rows = [
        [edges[number], p50[number], p99[number], *(of.get(name, 0) for name in there)]
        for number, of in enumerate(found.outcomes)
    ]
    name = f"Over time: {line}" if line else "Over time"
    return Figure("over-time", name, told, draw, ["from, s", "median, s", "99 %, s", *there], rows)


def _merged(
    outcomes: Sequence[Mapping[str, int]], edges: Sequence[float]
) -> Iterator[tuple[float, float, Mapping[str, int]]]:  # fmt: skip
    """Yield parts of the run, with equal neighbours put together: an even load is a few bars, and not a hundred."""
    ends = [0, *(at for at, (one, two) in enumerate(pairwise(outcomes), 1) if one != two), len(outcomes)]
    for first, last in pairwise(ends):
        yield edges[first], edges[last], {name: count * (last - first) for name, count in outcomes[first].items()}


def _silent(found: Digest) -> str:
    if not found.silences:
        return "No time in which nothing ended although operations waited."
    longest = max(found.silences, key=lambda each: each.to_s - each.from_s)
    times = f"{len(found.silences)} times" if len(found.silences) > 1 else "Once"
    return (
        f"{times} nothing ended although operations waited; the longest lasted "
        f"{format_seconds(longest.to_s - longest.from_s)}, {format_seconds(longest.from_s)} after the start."
    )
