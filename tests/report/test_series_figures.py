"""Figures of what went on over a time: a long series, a search, a history; and what is said where there is none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.cli import main
from pytest_cloudbench.report.figures import NARROW, WIDE, Figure, families
from pytest_cloudbench.report.gathering import gather
from tests.report.stored import entry, store

SERIES = "suites/availability/test_availability.py::test_series"


def texts(figure: Figure, width: int = WIDE) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", figure.draw(width).svg())


def said_of(page: Path) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8")).split())


# --- a long series ---


def state_file(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [{"schema": 1}, *lines]))


def a_round(number: int, at_s: float, ok: int, doubts: tuple[str, ...] = ()) -> dict[str, Any]:
    writes = {"tried": 100, "ok": ok, "errors": {}}
    return {"round": number, "began_s": at_s, "ended_s": at_s + 60, "writes": writes, "doubts": list(doubts)}


def test_a_series_has_its_bad_hour_its_stop_and_its_doubt(tmp_path: Path) -> None:
    state_file(tmp_path / "series" / "s.jsonl", [
        {"session": {"at_s": 1000}}, a_round(0, 1000, 100), a_round(1, 4600, 40),
        {"session": {"at_s": 11_860}}, a_round(2, 11_860, 100, ("late",)),
        {"session": {"at_s": 90_000}}, a_round(3, 90_000, 0),  # after the entry was made
    ])  # fmt: skip
    found = gather([store(tmp_path / "0001_r.json", [
        entry(tmp_path, SERIES, "emulated:a", rounds=3, availability=0.8, state_file="s.jsonl"),
        entry(tmp_path, SERIES, "emulated:a", params={"size_kb": 100}, hash_calls=9),
    ])])  # fmt: skip
    figure = next(each for each in families.of(found.measurements) if each.name == "completed-over-time")
    assert [list(row[:5]) for row in figure.rows] == [
        [0, 60, 100, 100, 1.0], [3600, 3660, 100, 40, 0.4], [10_860, 10_920, 100, 100, 1.0]
    ]  # fmt: skip
    assert [row[-1] for row in figure.rows] == [False, False, True]
    assert figure.rows[1][5] < 0.4 < figure.rows[1][6]
    assert "240 of 300 writes completed; some did not in 1 of 3 parts" in figure.told
    assert "Emulated" in figure.told
    assert "Stopped 1 x" in figure.told
    assert "Published: 99.655 % to 100 %" in figure.told
    assert "Table III" in figure.notes[0]
    drawing = figure.draw(WIDE).svg()
    assert drawing.count('data-tip="stopped: not measured"') == 1
    assert 'data-tip="40 of 100 writes completed"' in drawing
    assert 'data-tip="100 of 100 writes completed, has doubts"' in drawing
    assert "hours since the start" in texts(figure, NARROW)
    assert families.undrawn(found.measurements) == []


@pytest.mark.parametrize(("state", "why"), [("gone.jsonl", "gone.jsonl: cannot be read"), (None, "no state file")])
def test_a_series_without_its_state_file_is_said(tmp_path: Path, state: str | None, why: str) -> None:
    run = store(tmp_path / "0001_r.json", [entry(tmp_path, SERIES, "a", rounds=3, state_file=state)])
    assert main(["report", str(run), "-o", str(tmp_path / "page.html")]) == 0
    said = said_of(tmp_path / "page.html")
    assert "a: not drawn, " in said
    assert why in said
    assert "Writes completed over time" not in said
