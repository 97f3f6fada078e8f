"""Figures that are grids: losses over sensors and interval, and capabilities of sync clients, with published values.

Each cell contains its value as text. The colour only repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.report.quantities import format_share
from pytest_cloudbench.report.scales import Categories
from pytest_cloudbench.report.svg import Canvas, Plane, shorten_text, text_width
from pytest_cloudbench.results import published
from pytest_cloudbench.results.suite import Answers, LossGrid

_MOST_ACROSS = 7
"""The most questions side by side. More of them are below each other, so that their names can be read."""
_PUBLISHED_GAP = 14
_Answered = tuple[str, Mapping[str, tuple[str, str]], bool]
"""A subject, its answers with their reasons by question, and whether they were measured and not published."""
_LAST_SHOWN = " Of what was measured more than once, the last is shown."
_MARKS = {"yes": "\u2713 yes", "no": "\u2717 no", "unknown": "? unknown"}


def draw_loss_grids(row: LossGrid, members: Sequence[Measurement]) -> list[Figure]:
    """Return a grid of loss rates over sensors and interval for each provider."""
    table = published.load_table(row.table) if row.table in published.table_names() else None
    published_rates: dict[tuple[float, float], float] = {}
    for cell in table.rows if table else ():
        condition: Any = cell.params.get("sensors"), cell.params.get("interval_s")
        if all(map(is_finite, condition)):  # a suite may name a table of another kind
            published_rates[condition] = cell.value / 100
    drawn = []
    for subject in dict.fromkeys(measurement.subject for measurement in members):
        cells: dict[tuple[float, float], list[Measurement]] = {}
        for measurement in members:
            sensors, interval_s = measurement.number("sensors"), measurement.number("interval_s")
            if measurement.subject == subject and sensors is not None and interval_s is not None:
                cells.setdefault((sensors, interval_s), []).append(measurement)
        if len(cells) > 1 or (cells and published_rates):
            drawn.append(_build_loss_grid(subject, cells, published_rates, table.source if table else ""))
    return drawn


def _build_loss_grid(
    subject: str, cells: Mapping[tuple[float, float], Sequence[Measurement]],
    published_rates: Mapping[tuple[float, float], float], source: str,
) -> Figure:  # fmt: skip
    """Return the figure of one provider's loss rates, with published ones below them."""
    sensors, intervals_s = (sorted({key[index] for key in (*cells, *published_rates)}) for index in (0, 1))
    rates = {key: _latest_loss_rate(measurements) for key, measurements in cells.items()}

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"Loss rate, {subject}")
        x = Categories([f"{number:g}" for number in sensors])
        y = Categories([f"{number:g} s" for number in reversed(intervals_s)])
        plane = Plane(canvas, x, y, 52, 30, width - 8, 30 + 54 * len(intervals_s))
        plane.draw_axes("sensors", "interval", grid=False)
        cell_width = (plane.right - plane.left) / len(sensors)
        for column, count in enumerate(sensors):
            for row, interval_s in enumerate(intervals_s):
                key, corner = (count, interval_s), (plane.left + column * cell_width, plane.top + row * 54)
                _draw_cell(canvas, *corner, cell_width, key, rates.get(key, (None, False)), published_rates.get(key))
        canvas.height = plane.bottom + 42
        return canvas

    description = "Share of files that were not there at the end"
    description += ", and below it what was published (p). " if published_rates else ". "
    description += "A darker cell lost more; a dash was not measured; a question mark has doubts."
    description += _LAST_SHOWN if any(len(measurements) > 1 for measurements in cells.values()) else ""
    head = ["sensors", "interval, s", "loss rate", "published", "doubts"]
    unknown = (None, False)
    table = [
        [*key, rates.get(key, unknown)[0], published_rates.get(key), rates.get(key, unknown)[1]]
        for key in sorted({*rates, *published_rates})
    ]
    return Figure(
        "losses", f"Loss rate: {subject}", description, draw, head, table, [f"Published: {source}"] if source else []
    )


def _draw_cell(
    canvas: Canvas, left: float, top: float, width: float, key: tuple[float, float],
    measured: tuple[float | None, bool], published_rate: float | None,
) -> None:  # fmt: skip
    """Draw one cell: the measured rate, and the published one below it."""
    rate, is_doubted = measured
    doubt = "?" if is_doubted else ""
    tip = f"{key[0]:g} sensors, {key[1]:g} s: {_format_percent(rate)}{doubt}"
    canvas.draw_box(
        left,
        top,
        width,
        54,
        "cell blank",
        tip + ("" if published_rate is None else f"; published {_format_percent(published_rate)}"),
    )
    if rate is not None:
        rectangle = f'x="{left + 1:.1f}" y="{top + 1:.1f}" width="{width - 2:.1f}" height="52" pointer-events="none"'
        canvas.add_element(f'<rect {rectangle} class="heat" fill-opacity="{0.04 + 0.62 * min(1.0, rate):.2f}"/>')
    middle, share = left + width / 2, _format_percent(rate)
    canvas.draw_text(middle, top + (31 if published_rate is None else 23), share + doubt, "value", "middle")
    if published_rate is not None:
        text = f"p {_format_percent(published_rate)}"
        text = text if text_width(text) <= width - 6 else f"p {published_rate * 100:.0f} %"
        canvas.draw_text(middle, top + 40, text, "note", "middle")


def _latest_loss_rate(measurements: Sequence[Measurement]) -> tuple[float | None, bool]:
    """Return the loss rate of the last measurement and whether it has doubts."""
    return measurements[-1].number("loss_rate"), bool(measurements[-1].info["doubts"])


def _format_percent(value: float | None) -> str:
    return "-" if value is None else format_share(value)


def draw_capabilities(row: Answers, members: Sequence[Measurement]) -> list[Figure]:
    """Return a grid of the capabilities of sync clients with their evidence, above those in a paper."""
    measured_answers: dict[str, dict[str, Measurement]] = {}
    answering = [member for member in members if isinstance(member.params.get(row.question), str)]
    for measurement in answering:
        measured_answers.setdefault(measurement.subject, {})[measurement.params[row.question]] = measurement
    if not measured_answers:
        return []
    published_answers: dict[str, dict[str, Mapping[str, Any]]] = {}
    table = published.load_table(row.table) if row.table in published.table_names() else None
    cells = table.rows if table else ()
    for cell in cells:
        published_answers.setdefault(str(cell.params.get("service")), {})[str(cell.params.get(row.question))] = (
            cell.entry["extra_info"]
        )
    names = list(dict.fromkeys([
        *(str(cell.params.get(row.question)) for cell in cells),
        *(key for by_question in measured_answers.values() for key in by_question),
    ]))  # fmt: skip
    columns: list[_Answered] = [
        (
            subject,
            {
                key: (_read_answer(measurement), str(measurement.info.get("how") or ""))
                for key, measurement in by_question.items()
            },
            True,
        )
        for subject, by_question in measured_answers.items()
    ]
    columns += [
        (
            service,
            {key: (str(info.get("verdict")), str(info.get("printed") or "")) for key, info in by_question.items()},
            False,
        )
        for service, by_question in published_answers.items()
    ]

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, row.title)
        if len(names) > _MOST_ACROSS:
            _draw_questions_down(canvas, names, columns)
        else:
            _draw_questions_across(canvas, names, columns)
        return canvas

    description = f"Measured: {', '.join(measured_answers)}. "
    description += f"Below: {', '.join(published_answers)}, as published ({table.date}). " if table else ""
    description += "The evidence is in the numbers."
    description += _LAST_SHOWN if len(answering) > sum(map(len, measured_answers.values())) else ""
    rows = [
        [subject, name, *answers.get(name, (None, None)), _read_evidence(measured_answers.get(subject, {}).get(name))]
        for subject, answers, _ in columns for name in names
    ]  # fmt: skip
    head = ["subject", row.question, "answer", "how", "evidence"]
    notes = [f"Published: {table.source}"] if table else []
    return [Figure("capabilities", row.title, description, draw, head, rows, notes)]


def _draw_questions_across(canvas: Canvas, names: Sequence[str], columns: Sequence[_Answered]) -> None:
    """Draw a row for each subject, with few questions side by side."""
    left, row_height = 92.0, 34.0
    cell_width = (canvas.width - 96) / len(names)
    is_narrow = cell_width < 62
    top = 106.0 if is_narrow else 28.0
    for index, name in enumerate(names):
        middle = left + (index + 0.5) * cell_width
        if is_narrow:
            canvas.draw_text(middle + 4, top - 4, shorten_text(name, 98), "note", turned=True)
        else:
            canvas.draw_text(middle, top - 8, shorten_text(name, cell_width), "note", "middle")
    for row, (subject, answers, is_measured) in enumerate(columns):
        y = top + row * row_height + (0 if is_measured else _PUBLISHED_GAP)
        canvas.draw_text(left - 6, y + 20, shorten_text(subject, left - 8), "value" if is_measured else "", "end")
        for index, name in enumerate(names):
            _draw_answer(canvas, left + index * cell_width, y, (cell_width, row_height), subject, name, answers)
    canvas.height = top + len(columns) * row_height + 22


def _draw_questions_down(canvas: Canvas, names: Sequence[str], columns: Sequence[_Answered]) -> None:
    """Draw a row for each question, with the subjects side by side."""
    left, row_height, top = canvas.width * 0.45, 30.0, 110.0
    cell_width = (canvas.width - left - _PUBLISHED_GAP - 4) / len(columns)
    for row, name in enumerate(names):
        canvas.draw_text(left - 6, top + row * row_height + 18, shorten_text(name, left - 8), "", "end")
    for index, (subject, answers, is_measured) in enumerate(columns):
        x = left + index * cell_width + (0 if is_measured else _PUBLISHED_GAP)
        style = "value" if is_measured else "note"
        canvas.draw_text(x + cell_width / 2 + 4, top - 4, shorten_text(subject, 88), style, turned=True)
        for row, name in enumerate(names):
            _draw_answer(canvas, x, top + row * row_height, (cell_width, row_height), subject, name, answers)
    canvas.height = top + len(names) * row_height + 8


def _draw_answer(
    canvas: Canvas, x: float, y: float, size: tuple[float, float], subject: str, name: str,
    answers: Mapping[str, tuple[str, str]],
) -> None:  # fmt: skip
    answer, how = answers.get(name, ("", ""))
    width, height = size
    style = answer if answer in _MARKS else "blank"
    tip = f"{subject}, {name}: {answer or 'not measured'}. {how}"
    canvas.draw_box(x + 2, y, width - 4, height - 5, style, tip)
    mark = _MARKS.get(answer, "-")
    shown = mark if text_width(mark) <= width - 6 else mark[:1]
    canvas.draw_text(x + width / 2, y + height / 2 + 2, shown, "value", "middle")


def _read_answer(measurement: Measurement) -> str:
    answer = str(measurement.info.get("answer") or "unknown")
    return answer if answer in _MARKS else "unknown"


def _read_evidence(measurement: Measurement | None) -> str | None:
    evidence = measurement.info.get("evidence") if measurement else None
    return "; ".join(map(str, evidence)) if isinstance(evidence, list) else None
