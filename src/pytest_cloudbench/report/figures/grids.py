"""Grids: losses over sensors and interval, and what sync clients can do, with the published values in the same cells.

What may live here: figures whose cells hold a value or a verdict, written out: colour repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.report.quantities import format_share
from pytest_cloudbench.report.scales import Categories
from pytest_cloudbench.report.svg import Canvas, Plane, shortened
from pytest_cloudbench.results import published
from pytest_cloudbench.results.suite import Answers, LossGrid

_MARKS = {"yes": "\u2713 yes", "no": "\u2717 no", "unknown": "? unknown"}


def losses(row: LossGrid, members: Sequence[Measurement]) -> list[Figure]:
    """Draw loss rates over sensors and interval, a grid for each provider."""
    table = published.load_table(row.table) if row.table in published.table_names() else None
    known: dict[tuple[float, float], float] = {}
    for cell in table.rows if table else ():
        place: Any = cell.params.get("sensors"), cell.params.get("interval_s")
        if all(map(is_finite, place)):  # any suite may name any table
            known[place] = cell.value / 100
    drawn = []
    for subject in dict.fromkeys(each.subject for each in members):
        cells: dict[tuple[float, float], list[Measurement]] = {}
        for each in members:
            sensors, interval_s = each.number("sensors"), each.number("interval_s")
            if each.subject == subject and sensors is not None and interval_s is not None:
                cells.setdefault((sensors, interval_s), []).append(each)
        if len(cells) > 1 or (cells and known):
            drawn.append(_losses(subject, cells, known, table.source if table else ""))
    return drawn


def _losses(
    subject: str, cells: Mapping[tuple[float, float], Sequence[Measurement]],
    known: Mapping[tuple[float, float], float], source: str,
) -> Figure:  # fmt: skip
    sensors, intervals_s = (sorted({key[at] for key in (*cells, *known)}) for at in (0, 1))
    rates = {key: _rate(each) for key, each in cells.items()}

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"Loss rate, {subject}", told)
        x, y = (
            Categories([f"{each:g}" for each in sensors]),
            Categories([f"{each:g} s" for each in reversed(intervals_s)]),
        )
        plane = Plane(canvas, x, y, 52, 30, width - 8, 30 + 54 * len(intervals_s))
        plane.axes("sensors", "interval", grid=False)
        wide = (plane.right - plane.left) / len(sensors)
        for column, count in enumerate(sensors):
            for row, interval_s in enumerate(intervals_s):
                key, place = (count, interval_s), (plane.left + column * wide, plane.top + row * 54)
                _cell(canvas, *place, wide, key, rates.get(key, (None, False)), known.get(key))
        canvas.height = plane.bottom + 42
        return canvas

    told = "Share of files that were not there at the end"
    told += ", and below it what was published. " if known else ". "
    told += "A darker cell lost more; a dash was not measured; a question mark has doubts."
    head = ["sensors", "interval, s", "loss rate", "published", "doubts"]
    unknown = (None, False)
    table = [
        [*key, rates.get(key, unknown)[0], known.get(key), rates.get(key, unknown)[1]]
        for key in sorted({*rates, *known})
    ]
    return Figure(
        "losses", f"Loss rate: {subject}", told, draw, head, table, [f"Published: {source}"] if source else []
    )


def _cell(
    canvas: Canvas, left: float, top: float, wide: float, key: tuple[float, float], found: tuple[float | None, bool],
    there: float | None,
) -> None:  # fmt: skip
    """Draw one cell: the measured rate, and the published one below it."""
    rate, is_doubted = found
    doubt, is_short = "?" if is_doubted else "", wide < 60
    tip = f"{key[0]:g} sensors, {key[1]:g} s: {_percent(rate)}{doubt}"
    canvas.box(left, top, wide, 54, "cell blank", tip + ("" if there is None else f"; published {_percent(there)}"))
    if rate is not None:
        place = f'x="{left + 1:.1f}" y="{top + 1:.1f}" width="{wide - 2:.1f}" height="52" pointer-events="none"'
        canvas.add(f'<rect {place} class="heat" fill-opacity="{0.04 + 0.62 * min(1.0, rate):.2f}"/>')
    middle, share = left + wide / 2, _percent(rate, short=is_short)
    canvas.text(middle, top + (31 if there is None else 23), share + doubt, "value", "middle")
    if there is not None:
        text = ("p " if is_short else "publ. ") + _percent(there, short=is_short)
        canvas.text(middle, top + 40, text, "note", "middle")


def _rate(found: Sequence[Measurement]) -> tuple[float | None, bool]:
    """Return the loss rate of the last measurement, and whether it has doubts."""
    return found[-1].number("loss_rate"), bool(found[-1].info["doubts"])


def _percent(value: float | None, *, short: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value * 100:.0f} %" if short else format_share(value)


def capabilities(row: Answers, members: Sequence[Measurement]) -> list[Figure]:
    """Draw which sync client can do what, with its evidence, beside those of a paper."""
    mine: dict[str, dict[str, Measurement]] = {}
    for each in members:
        if isinstance(each.params.get("capability"), str):
            mine.setdefault(each.subject, {})[str(each.params["capability"])] = each
    if not mine:
        return []
    theirs: dict[str, dict[str, Mapping[str, Any]]] = {}
    table = published.load_table(row.table) if row.table in published.table_names() else None
    cells = table.rows if table else ()
    for cell in cells:
        theirs.setdefault(str(cell.params["service"]), {})[str(cell.params["capability"])] = cell.entry["extra_info"]
    names = list(dict.fromkeys([
        *(str(cell.params["capability"]) for cell in cells), *(key for of in mine.values() for key in of),
    ]))  # fmt: skip
    columns = [
        (subject, {key: (_answer(each), str(each.info.get("how") or "")) for key, each in of.items()}, True)
        for subject, of in mine.items()
    ]
    columns += [
        (service, {key: (str(info.get("verdict")), str(info.get("printed") or "")) for key, info in of.items()}, False)
        for service, of in theirs.items()
    ]

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, "What clients can do", told)
        left, wide, high = 92.0, (width - 96) / len(names), 34.0
        is_narrow = wide < 62
        top = 100.0 if is_narrow else 28.0
        for place, name in enumerate(names):
            middle = left + (place + 0.5) * wide
            if is_narrow:
                canvas.text(middle + 4, top - 4, shortened(name, 92), "note", turned=True)
            else:
                canvas.text(middle, top - 8, shortened(name, wide), "note", "middle")
        for line, (subject, answers, is_mine) in enumerate(columns):
            gap = 14 if not is_mine else 0
            y = top + line * high + gap
            canvas.text(left - 6, y + 20, shortened(subject, left - 8), "value" if is_mine else "", "end")
            for place, name in enumerate(names):
                answer, how = answers.get(name, ("", ""))
                x = left + place * wide
                style = answer if answer in _MARKS else "blank"
                canvas.box(x + 2, y, wide - 4, high - 5, style, f"{subject}, {name}: {answer or 'not measured'}. {how}")
                mark = _MARKS.get(answer, "-")
                canvas.text(x + wide / 2, y + 19, mark[:1] if is_narrow else mark, "value", "middle")
        canvas.height = top + len(columns) * high + 22
        return canvas

    told = f"Measured: {', '.join(mine)}. "
    told += f"Below: {', '.join(theirs)}, as published ({table.date}). " if table else ""
    told += "The evidence is in the numbers."
    rows = [
        [subject, name, *answers.get(name, (None, None)), _evidence(mine.get(subject, {}).get(name))]
        for subject, answers, _ in columns for name in names
    ]  # fmt: skip
    head = ["client", "capability", "answer", "how", "evidence"]
    notes = [f"Published: {table.source}"] if table else []
    return [Figure("capabilities", "What clients can do", told, draw, head, rows, notes)]


def _answer(each: Measurement) -> str:
    found = str(each.info.get("answer") or "unknown")
    return found if found in _MARKS else "unknown"


def _evidence(each: Measurement | None) -> str | None:
    found = each.info.get("evidence") if each else None
    return "; ".join(map(str, found)) if isinstance(found, list) else None
