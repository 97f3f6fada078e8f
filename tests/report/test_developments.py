"""Histories on a page: runs, changes and the page's own run at their positions, or the reason for no history."""

from __future__ import annotations

import random
import re
from math import exp
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands.cli import main
from pytest_cloudbench.report.figures import WIDTH, Figure
from pytest_cloudbench.report.figures.developments import over_runs
from pytest_cloudbench.report.gathering import EarlierRuns, gather_runs
from pytest_cloudbench.results.index import Index
from pytest_cloudbench.results.points import Point
from tests.report.stored import HOSTILE, path_points
from tests.report.test_page import Page
from tests.results.stored_runs import DAY_MS, MACHINE, START_MS, info, store

TEST = "test_it.py::test_put[emulated:dropbox]"
RUNS, CHANGED_AT = 30, 20


def store_run(storage: Path, number: int, quiet_p50: float | None, fullname: str = TEST, **changes: Any) -> Path:
    """Store the run of one day. The same fraction of operations fails in each run."""
    run_info = info(
        quiet_p50=quiet_p50, quiet_ops=300, run_id=f"run-{number}", start_wall_ms=START_MS + number * DAY_MS,
        failed_rate=0.02, failed=6, **changes,
    )  # fmt: skip
    return store(storage, number, {fullname: run_info}, commit=f"c{number:03}")


def store_slower_runs(storage: Path, change: float) -> list[Path]:
    """Store thirty runs, the last ten of them slower. Two runs have doubts and are outliers."""
    rng = random.Random(1)
    paths = []
    for number in range(1, RUNS + 1):
        level = 0.1 * exp(rng.gauss(0, 0.02)) * (1 + change * (number > CHANGED_AT))
        is_doubted = number in (5, 25)
        paths.append(store_run(storage, number, 0.3 if is_doubted else level, doubts=["late"] * is_doubted))
    return paths


def history_of(storage: Path, *runs: Path, last: int = 100) -> Figure | str | None:
    return over_runs(gather_runs(runs).measurements, EarlierRuns(Index.open(storage), {}, last))


def require_figure(figure: Figure | str | None) -> Figure:
    assert isinstance(figure, Figure)
    return figure


def test_figure_draws_change_at_the_run_found_by_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = store_slower_runs(tmp_path, 0.2)
    figure = require_figure(history_of(tmp_path, paths[27]))
    assert main(["history", TEST, "--metric", "quiet_p50", "--storage", str(tmp_path)]) == 0
    (change,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("change: ")]
    assert f"quiet p50: {change.removeprefix('change: ')}" in figure.description
    assert "since 0021_run (c021, " in change
    assert figure.head == ["run", "time (UTC)", "commit", "quiet_p50, s", "remark"]
    assert len(figure.rows) == RUNS
    assert {str(row[0]): row[-1] for row in figure.rows if row[-1]} == {
        "0005_run": "had doubts", "0021_run": "first run after a change of quiet p50", "0025_run": "had doubts",
        "0028_run": "this page",
    }  # fmt: skip
    assert (
        "2 of them do not count (see the numbers); what is beyond the others is drawn at the edge."
        in figure.description
    )
    assert "The same in each of 30 runs: failed rate 2 %." in figure.description


def test_each_of_two_runs_that_began_at_once_has_a_history(tmp_path: Path) -> None:
    """Two jobs of a CI may begin in the same millisecond, and find the same."""
    paths = [store_run(tmp_path, number, 0.1 + number / 1000) for number in range(1, 11)]
    same = info(quiet_p50=0.105, quiet_ops=300, run_id="twin", start_wall_ms=START_MS + 5 * DAY_MS, failed_rate=0.02)
    for path in (paths[4], store(tmp_path, 11, {TEST: same}, commit="c005")):
        figure = require_figure(history_of(tmp_path, path))
        assert [row[-1] for row in figure.rows].count("this page") == 1


@pytest.mark.parametrize(("now", "change"), [(1.0, "no to yes, better, certain"), (0.0, "yes to no, worse, certain")])
def test_a_capability_that_is_gained_is_better(tmp_path: Path, now: float, change: str) -> None:
    for number in range(1, RUNS + 1):
        answer = now if number > CHANGED_AT else 1 - now
        changes = {"is_delta": answer, "delta": "yes" if answer else "no", "columns": ["delta"]}
        entry = info(run_id=f"run-{number}", start_wall_ms=START_MS + number * DAY_MS, **changes)
        path = store(tmp_path, number, {TEST: entry})
    figure = require_figure(history_of(tmp_path, path))
    assert f"delta: other ({change}) since 0021_run" in figure.description
    assert figure.rows[-1][-1] == "this page"


def test_run_that_only_the_gate_failed_is_drawn(tmp_path: Path) -> None:
    """The gate called all runs after the change broken."""
    rng = random.Random(1)
    for number in range(1, RUNS + 1):
        is_broken = number > CHANGED_AT
        lines: dict[str, Any] = {"outcome": "failed", "gate": {"answer": "broken"}} if is_broken else {}
        path = store_run(tmp_path, number, 0.1 * exp(rng.gauss(0, 0.02)) * (1 + 0.2 * is_broken), **lines)
    figure = require_figure(history_of(tmp_path, path))
    assert "since 0021_run" in figure.description
    assert "not count" not in figure.description


def test_runs_changes_and_page_band_have_their_positions(tmp_path: Path) -> None:
    paths = store_slower_runs(tmp_path, 0.2)
    figure = require_figure(history_of(tmp_path, paths[27]))
    values = [float(row[3]) for row in figure.rows]
    drawing = figure.draw(WIDTH).to_svg()

    def x(position: float) -> float:
        return 66 + (position + 0.5) / RUNS * (WIDTH - 14 - 66)

    (path,) = re.findall(r'<path d="([^"]+)" class="points"', drawing)
    points = [(float(point_x), float(point_y)) for point_x, point_y in re.findall(r"M(\S+) (\S+?)h0", path)]
    counted = [position for position in range(RUNS) if position not in (4, 24)]
    assert [point_x for point_x, _ in points] == [pytest.approx(x(position), abs=0.06) for position in counted]
    lowest, highest = (edge(points, key=lambda point: point[1]) for edge in (max, min))  # y grows downwards
    low, high = (values[counted[points.index(point)]] for point in (lowest, highest))
    assert (low, high) == pytest.approx((min(values), max(values[position] for position in counted)), rel=0.01)

    def y(value: float) -> float:
        return lowest[1] + (value - low) / (high - low) * (highest[1] - lowest[1])

    assert [point_y for _, point_y in points] == [pytest.approx(y(values[position]), abs=0.2) for position in counted]
    lines = [path_points(path) for path in re.findall(r'd="([^"]+)" class="line s0 ', drawing)]
    levels = [(*start, end[0]) for start, end in lines if start[0] + 20 != pytest.approx(end[0])]  # without the legend
    before, after = (
        sorted(values[position] for position in counted if (position < CHANGED_AT) == early) for early in (1, 0)
    )
    assert levels == [
        pytest.approx((x(-0.5), y(before[9]), x(19.5)), abs=0.2),
        pytest.approx((x(19.5), y(after[4]), x(29.5)), abs=0.2),
    ]
    (rule,) = re.findall(r'<path d="M(\S+) \S+" class="rule"/>(?:<text[^>]*>c021, 2026-)', drawing)
    assert float(rule) == pytest.approx(x(19.5), abs=0.06)
    band = re.search(r'<rect x="(\S+)" [^>]*width="(\S+)" [^>]*class="band" data-tip="this page', drawing)
    assert band is not None
    assert float(band[1]) + float(band[2]) / 2 == pytest.approx(x(27), abs=0.1)
    assert drawing.count('data-tip="0005_run: 300 ms, had doubts; drawn at the edge"') == 1
    assert highest[1] < lowest[1] - 60, "runs that do not count leave most of 110 pixels to those that do"
    assert "c021, 2026-" in figure.draw(WIDTH).to_svg()


def test_steady_runs_have_no_change(tmp_path: Path) -> None:
    paths = store_slower_runs(tmp_path, 0.0)
    figure = require_figure(history_of(tmp_path, *paths))
    assert "No change found." in figure.description
    drawing = figure.draw(WIDTH).to_svg()
    assert "c021" not in drawing
    assert 'class="band"' not in drawing  # all are of this page


def test_history_has_at_most_the_last_runs(tmp_path: Path) -> None:
    paths = store_slower_runs(tmp_path, 0.2)
    figure = require_figure(history_of(tmp_path, paths[-1], last=7))
    assert [row[0] for row in figure.rows] == [f"{number:04}_run" for number in range(24, 31)]
    assert "No change can be found yet" in figure.description


@pytest.mark.parametrize("count", [1, 3])
def test_too_few_runs_are_explained(tmp_path: Path, count: int) -> None:
    paths = [store_run(tmp_path, number, 0.1 + number / 100) for number in range(1, count + 1)]
    for number in range(4, 12):
        store_run(tmp_path, number, 0.1 + number / 100, provider="emulated:ideal")  # other conditions
    reason = history_of(tmp_path, paths[0])
    assert reason == f"emulated:dropbox: no history is drawn: 4 runs under these conditions are needed, found {count}"


def test_runs_under_other_conditions_are_left_out(tmp_path: Path) -> None:
    paths = [store_run(tmp_path, number, 0.1 + number / 100) for number in range(1, 5)]
    store_run(tmp_path, 5, 0.9, agents=50)
    figure = require_figure(history_of(tmp_path, paths[1]))
    assert [row[3] for row in figure.rows] == pytest.approx([0.11, 0.12, 0.13, 0.14])
    assert "1 run under other conditions is left out" in figure.description


def test_constant_metric_is_described_in_one_line(tmp_path: Path) -> None:
    paths = [store_run(tmp_path, number, None, requests_per_op=1.0) for number in range(1, 6)]
    description = history_of(tmp_path, paths[4])
    assert isinstance(description, str)
    assert description.startswith("test_put, emulated:dropbox: no history is drawn. ")
    assert description.endswith(" The same in each of 5 runs: failed rate 2 %; requests per op 1.")


def test_unknown_value_is_a_gap_and_a_dash(tmp_path: Path) -> None:
    levels = [0.1, 0.2, None, 0.1, 0.2, 0.1]
    paths = [store_run(tmp_path, number, level) for number, level in enumerate(levels, 1)]
    figure = require_figure(history_of(tmp_path, paths[5]))
    assert [row[3] for row in figure.rows] == levels
    assert figure.rows[2][-1] == "held no number for quiet_p50"
    (path,) = re.findall(r'<path d="([^"]+)" class="points"', figure.draw(WIDTH).to_svg())
    assert path.count("h0") == 5


def test_unstored_run_is_placed_by_its_time(tmp_path: Path) -> None:
    for number in (1, 2, 3, 5, 6):
        store_run(tmp_path / "results", number, 0.1 + number / 100)
    elsewhere = store_run(tmp_path / "elsewhere", 4, 0.5, doubts=["late"])
    figure = require_figure(history_of(tmp_path / "results", elsewhere))
    assert [row[3] for row in figure.rows] == pytest.approx([0.11, 0.12, 0.13, 0.5, 0.15, 0.16])
    assert figure.rows[3][-1] == "this page; had doubts"


def test_page_of_one_run_has_its_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(1, 7):
        name = f"test_{HOSTILE}.py::test_it[emulated:dropbox]"
        output: Any = info(quiet_p50=0.1 * number, quiet_ops=300, run_id=str(number), doubts=[HOSTILE][: number % 2],
                         start_wall_ms=START_MS + number * DAY_MS)  # fmt: skip
        store(tmp_path / "results", number, {name: output}, name=f"r{number}", commit=HOSTILE, branch=HOSTILE)
    assert main(["report", "last", "-o", "page.html"]) == 0
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "<script>alert" not in page.text
    assert page.tags.count("script") == 1
    assert "History: emulated:dropbox" in page.plain_text
    assert "6 runs under the conditions of this one. 3 of them do not count" in page.plain_text
    assert "0006_r6" in page.plain_text
    assert "0005_r5" in page.plain_text  # in the numbers, although the page is about another run
    lone = tmp_path / "results" / MACHINE / "0001_r1.json"
    assert main(["report", str(lone), "--storage", str(tmp_path), "-o", "none.html"]) == 0
    assert "found 1" not in (tmp_path / "none.html").read_text()
    assert main(["report", "last", "--last", "0"]) == 4


def test_broken_run_is_marked_and_margin_is_a_band(tmp_path: Path) -> None:
    paths = [store_run(tmp_path, number, 0.1 + number * 1e-4) for number in range(1, 13)]
    gate = {"answer": "broken", "lines": ["gate broken: quiet_p50: +90 %"]}
    paths.append(store_run(tmp_path, 13, 0.19, outcome="failed", gate=gate))
    figure = require_figure(history_of(tmp_path, paths[-1]))
    (row,) = [row for row in figure.rows if "broken, said the gate" in str(row[-1])]
    assert (row[0], row[-1]) == ("0013_run", "this page; broken, said the gate")
    drawing = figure.draw(WIDTH).to_svg()
    assert drawing.count('class="dot d6"') == 2, "in the legend and at its place"
    assert "broken, said the gate" in drawing
    (band,) = re.findall(r'<rect x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)" class="margin" data', drawing)
    assert float(band[1]) > 0
    assert "broken, said the gate" in re.findall(r"<text[^>]*>([^<]*)</text>", figure.draw(WIDTH).to_svg())


def test_stored_runs_are_read_as_often_for_a_page_of_many_runs_as_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, reads, read = store_slower_runs(tmp_path, 0.2), list[str](), Index.series

    def count(index: Index, fullname: str, metric: str) -> list[Point]:
        reads.append(metric)
        return read(index, fullname, metric)

    monkeypatch.setattr(Index, "series", count)
    require_figure(history_of(tmp_path, paths[-1]))
    reads_of_one = [*reads]
    reads.clear()
    require_figure(history_of(tmp_path, *paths))
    assert reads == reads_of_one


def test_deleted_run_has_no_gate_answer(tmp_path: Path) -> None:
    paths = store_slower_runs(tmp_path, 0.2)
    earlier = EarlierRuns(Index.open(tmp_path), {})
    (run_path,) = [run_path for run_path in earlier.runs if "0025" in run_path]
    paths[24].unlink()
    assert earlier.gate_answer(run_path, TEST) == ""
