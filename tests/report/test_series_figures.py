"""Figures of a long series, a search and delays, or the reason for a missing figure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands.cli import main
from pytest_cloudbench.report.figures import WIDTH, Figure, families
from pytest_cloudbench.report.gathering import gather_runs
from tests.report.stored import entry, store

SERIES = "suites/availability/test_availability.py::test_series"


def texts(figure: Figure) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", figure.draw(WIDTH).to_svg())


def page_text(page: Path) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8")).split())


# --- a long series ---


def state_file(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [{"schema": 1}, *lines]))


def make_round(number: int, at_s: float, ok: int, doubts: tuple[str, ...] = ()) -> dict[str, Any]:
    writes = {"tried": 100, "ok": ok, "errors": {}}
    return {"round": number, "began_s": at_s, "ended_s": at_s + 60, "writes": writes, "doubts": list(doubts)}


def test_series_shows_bad_hour_stop_and_doubt(tmp_path: Path) -> None:
    state_file(tmp_path / "series" / "s.jsonl", [
        {"session": {"at_s": 1000}}, make_round(0, 1000, 100), make_round(1, 4600, 40),
        {"session": {"at_s": 11_860}}, make_round(2, 11_860, 100, ("late",)),
        {"session": {"at_s": 90_000}}, make_round(3, 90_000, 0),  # after the entry was made
    ])  # fmt: skip
    gathered = gather_runs([store(tmp_path / "0001_r.json", [
        entry(tmp_path, SERIES, "emulated:a", rounds=3, availability=0.8, state_file="s.jsonl"),
        entry(tmp_path, SERIES, "emulated:a", params={"size_kb": 100}, hash_calls=9),
    ])])  # fmt: skip
    figure = next(
        figure for figure in families.draw_figures(gathered.measurements) if figure.name == "completed-over-time"
    )
    assert [list(row[:5]) for row in figure.rows] == [
        [0, 60, 100, 100, 1.0], [3600, 3660, 100, 40, 0.4], [10_860, 10_920, 100, 100, 1.0]
    ]  # fmt: skip
    assert [row[-1] for row in figure.rows] == [False, False, True]
    assert figure.rows[1][5] < 0.4 < figure.rows[1][6]
    assert "240 of 300 writes completed; some did not in 1 of 3 parts" in figure.description
    assert "Emulated" in figure.description
    assert "Stopped 1 x" in figure.description
    assert "Published: 99.655 % to 100 %" in figure.description
    assert "Table III" in figure.notes[0]
    drawing = figure.draw(WIDTH).to_svg()
    assert drawing.count('data-tip="stopped: not measured"') == 1
    assert 'data-tip="40 of 100 writes completed"' in drawing
    assert 'data-tip="100 of 100 writes completed, has doubts"' in drawing
    assert "hours since the start" in texts(figure)
    assert families.explain_undrawn(gathered.measurements) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [({"ended_s": 10**400}, "int too large"), ({"ended_s": float("inf")}, "inf is not a time"),
     ({"writes": {"tried": 5, "ok": 6}}, "6 of 5 writes"), ({"writes": {"tried": float("inf"), "ok": 1}}, "infinity"),
     (None, "1 of the entry's 2 rounds are there")],
)  # fmt: skip
def test_series_with_odd_or_missing_rounds_is_explained(tmp_path: Path, change: Any, why: str) -> None:
    rounds = [make_round(0, 1000, 100), *([] if change is None else [make_round(1, 2000, 90) | change])]
    state_file(tmp_path / "series" / "s.jsonl", [{"session": {"at_s": 1000}}, *rounds])
    run = store(tmp_path / "0001_r.json", [entry(tmp_path, SERIES, "emulated:a", rounds=2, state_file="s.jsonl")])
    assert main(["report", str(run), "-o", str(tmp_path / "page.html")]) == 0
    text = page_text(tmp_path / "page.html")
    assert "its rounds are not as expected (" in text
    assert why.replace("'", "&#39;") in text.replace("&#x27;", "&#39;")


@pytest.mark.parametrize(("state", "why"), [("gone.jsonl", "gone.jsonl: cannot be read"), (None, "no state file")])
def test_series_without_state_file_is_explained(tmp_path: Path, state: str | None, why: str) -> None:
    run = store(tmp_path / "0001_r.json", [entry(tmp_path, SERIES, "a", rounds=3, state_file=state)])
    assert main(["report", str(run), "-o", str(tmp_path / "page.html")]) == 0
    reason = page_text(tmp_path / "page.html")
    assert "a: not drawn, " in reason
    assert why in reason
    assert "Writes completed over time" not in reason


def test_hash_calls_are_drawn_by_size(tmp_path: Path) -> None:
    def calls(number: int, at_s: float, **sizes: tuple[int, float]) -> dict[str, Any]:
        hash_calls = {
            size[1:]: {"answered": answered, "total_s": total_s} for size, (answered, total_s) in sizes.items()
        }
        return {**make_round(number, at_s, 100), "hash": hash_calls}

    state_file(tmp_path / "series" / "s.jsonl", [
        {"session": {"at_s": 1000}}, calls(0, 1000, _100=(10, 2.0), _10=(4, 0.4)), calls(1, 4600, _10=(0, 0.0)),
        {"session": {"at_s": 90_000}}, calls(2, 90_000, _100=(10, 3.0), _10=(4, 0.6)),
    ])  # fmt: skip
    run = store(tmp_path / "0001_r.json", [entry(tmp_path, SERIES, "emulated:a", rounds=3, state_file="s.jsonl")])
    figures = families.draw_figures(gather_runs([run]).measurements)
    figure = next(figure for figure in figures if figure.name == "hash-calls-over-time")
    assert [(row[0], row[3], row[4]) for row in figure.rows] == [
        (10, 4, pytest.approx(0.1)), (10, 0, None), (10, 4, pytest.approx(0.15)),
        (100, 10, pytest.approx(0.2)), (100, 0, None), (100, 10, pytest.approx(0.3)),
    ]  # fmt: skip
    drawing = figure.draw(WIDTH).to_svg()
    assert drawing.count('data-tip="stopped: not measured"') == 1
    assert {"10 kB", "100 kB"} <= set(texts(figure))
    assert drawing.count(' on average"/>') == 4


# --- a search for a limit ---

SEARCH = "suites/capacity/test_capacity.py::test_rate"


def make_probe(level: float, passed: bool | None, doubts: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    return {"level": level, "passed": passed, "loss_rate": 0.0, "response_p99": 0.2, "doubts": list(doubts), **changes}


def test_search_shows_probes_and_interval(tmp_path: Path) -> None:
    probes = [
        make_probe(16.0, True), make_probe(32.0, None, ("late",), response_p99=None),
        make_probe(32.0, False, loss_rate=0.25),
    ]  # fmt: skip
    limit: dict[str, Any] = {"passes_at": 16.0, "fails_at": 32.0, "low": 16.0, "high": 32.0}
    gathered = gather_runs([store(tmp_path / "0001_r.json", [
        entry(tmp_path, SEARCH, "emulated:a", capacity_per_s=16.0, probes=probes, notes=["probes of 2 s"], **limit),
    ])])  # fmt: skip
    [figure] = [figure for figure in families.draw_figures(gathered.measurements) if figure.name == "levels-tried"]
    assert [list(row[:4]) for row in figure.rows] == [
        [1, 16.0, "passed", 0.0], [2, 32.0, "not judged", 0.0], [3, 32.0, "failed", 0.25]
    ]  # fmt: skip
    assert "between 16, which passed, and 32, which failed" in figure.description
    assert "Emulated" in figure.description
    assert figure.notes == ["probes of 2 s"]
    drawing = figure.draw(WIDTH).to_svg()
    assert 'data-tip="32: failed, 25 % lost, p99 200 ms"' in drawing
    assert 'data-tip="32: not judged, 0 % lost, late"' in drawing
    assert {"passed", "failed", "not judged", "where the limit is", "uploads per second"} <= set(texts(figure))


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ({"passes_at": 64.0, "low": 64.0}, "at least 64: nothing failed"),
        ({"fails_at": 4.0, "high": 4.0}, "below 4: nothing passed"),
        ({}, "The limit is not known"),
    ],
)
def test_search_describes_missing_bound(tmp_path: Path, limit: Mapping[str, Any], sentence: str) -> None:
    about = {"capacity_sensors": None, "probes": [make_probe(4.0, None)], **limit}
    gathered = gather_runs([store(tmp_path / "0001_r.json", [entry(tmp_path, SEARCH, "a", **about)])])
    [figure] = families.draw_figures(gathered.measurements)
    assert sentence in figure.description
    assert "where the limit is" not in texts(figure)
    assert "sensors" in texts(figure)


@pytest.mark.parametrize(
    "probes", [None, [], ["16"], [make_probe(0.0, True)], [{"level": 4}], [make_probe(4.0, None) | {"passed": 1}]]
)
def test_undrawable_search_is_explained(tmp_path: Path, probes: Any) -> None:
    gathered = gather_runs(
        [store(tmp_path / "0001_r.json", [entry(tmp_path, SEARCH, "a", capacity_per_s=4.0, probes=probes)])]
    )
    assert families.draw_figures(gathered.measurements) == []
    [reason] = families.explain_undrawn(gathered.measurements)
    assert reason.startswith("a: not drawn, ")


# --- delays of single changes ---

DELAYS = "suites/updates/test_updates.py::test_delays"


def test_delays_have_published_medians(tmp_path: Path) -> None:
    published = {"source": "UDS, Figures 8 and 9", "start_up_p50_7200_rpm_s": 0.2, "sync_delay_1_to_4_s_share": 1 / 3}
    gathered = gather_runs([store(tmp_path / "0001_r.json", [
        entry(tmp_path, DELAYS, "", client="syncthing", start_ups_s=[0.4, 0.1, 0.2], sync_delays_s=[3, 1, 2],
              published=published),
        entry(tmp_path, DELAYS, "", client="reference", start_ups_s=[0.5, 0.5]),
        entry(tmp_path, DELAYS, "", client="odd", start_ups_s=["soon"], sync_delays_s=[0]),
    ])])  # fmt: skip
    figures = {figure.title: figure for figure in families.draw_figures(gathered.measurements)}
    figure = figures["Delays of single changes: syncthing"]
    assert [list(row) for row in figure.rows] == [
        ["start-up", 1, 0.1, 1 / 3], ["start-up", 2, 0.2, 2 / 3], ["start-up", 3, 0.4, 1.0],
        ["sync delay", 1, 1.0, 1 / 3], ["sync delay", 2, 2.0, 2 / 3], ["sync delay", 3, 3.0, 1.0],
        ["median start-up with a disk of 7,200 rpm", None, 0.2, None],
        ["published: sync delay from 1 to 4 s", None, None, 1 / 3],
    ]  # fmt: skip
    assert "start-up: 200 ms; sync delay: 2 s" in figure.description
    assert "UDS, Figures 8 and 9" in figure.notes[0]
    assert 'data-tip="half within 2 s"' in figure.draw(WIDTH).to_svg()
    assert "published" not in texts(figures["Delays of single changes: reference"])
    assert families.explain_undrawn(gathered.measurements) == [
        "odd: not drawn, the entry's delays are not a list of positive numbers"
    ]
