"""Figures over time: traffic and CPU of clients beside published values, or the reason for a missing figure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.report.figures import WIDTH, Figure, families
from pytest_cloudbench.report.gathering import Measurement, gather_runs
from pytest_cloudbench.report.quantities import format_short_share
from tests.report.stored import HOSTILE, entry, path_points, store
from tests.report.test_figures import gather_entries, only_figure, texts

BATCHING = "suites/batching/test_batching.py"
DOWNLOAD = {"source": "UDS", "uds_tue": 15.0, "uds_tue_batched": 1.24}
CPU = {"source": "UDS", "uds_cpu_share": 0.54, "uds_cpu_share_batched": 0.12, "uds_cpu_share_ranges": 0.07}
BOX = "savingbox?over=reference"


def line_points(drawing: str, style: str) -> list[list[tuple[float, float]]]:
    """Return the points of the lines of a style."""
    paths = re.findall(rf'<path d="([^"]+)" class="line {style}"', drawing)
    return [path_points(path) for path in paths if not path.endswith("h20")]  # the lines of the legend


def rule_heights(figure: Figure) -> dict[str, float]:
    """Return the heights of the lines across the plane, by their labels."""
    rules = re.findall(r'<path d="M\S+ (\S+?)H\S+" class="rule"/><text[^>]*>([^<]+)<', figure.draw(WIDTH).to_svg())
    return {label: float(y) for y, label in rules}


def test_download_traffic_is_cumulated_with_published_rule(tmp_path: Path) -> None:
    measurements = gather_entries(
        tmp_path,
        entry(tmp_path, f"{BATCHING}::test_download", "reference", each_second_bytes=[500, 0, 500], file_bytes=100,
              published=DOWNLOAD),
        entry(tmp_path, f"{BATCHING}::test_download", BOX, each_second_bytes=[0, 0, 0, 120], file_bytes=100,
              published=DOWNLOAD),
    )  # fmt: skip
    figure = only_figure(families.draw_figures(measurements), "each-second-bytes-over-time")
    assert [list(row) for row in figure.rows] == [
        ["reference", 0.0, 0.0], ["reference", 1.0, 5.0], ["reference", 2.0, 5.0], ["reference", 3.0, 10.0],
        [BOX, 0.0, 0.0], [BOX, 1.0, 0.0], [BOX, 2.0, 0.0], [BOX, 3.0, 0.0], [BOX, 4.0, pytest.approx(1.2)],
        ["published: client alone", None, 15.0], ["published: with UDS", None, 1.24],
    ]  # fmt: skip
    assert f"reference: 10 after 3 s. {BOX}: 1.2 after 4 s." in figure.description
    assert figure.notes == ["Published: UDS"]
    (alone,) = line_points(figure.draw(WIDTH).to_svg(), "s0")
    (left_x, bottom), *_, (end, top) = alone
    assert left_x == 62
    assert end == pytest.approx(62 + (WIDTH - 14 - 62) * 3 / 4)
    rules = rule_heights(figure)
    assert set(rules) == {"client alone: 15", "with UDS: 1.24"}
    for label, value in (("client alone: 15", 15), ("with UDS: 1.24", 1.24)):
        assert rules[label] == pytest.approx(bottom + (top - bottom) * value / 10, abs=0.2)
    assert "traffic per byte of the file" in texts(figure)
    assert families.explain_undrawn(measurements) == []


def test_cpu_time_of_client_uds_and_uds_plus(tmp_path: Path) -> None:
    test = f"{BATCHING}::test_cpu"
    figure = only_figure(families.draw_figures(gather_entries(
        tmp_path,
        entry(tmp_path, test, "reference", cpu_shares=[0.5, 0.6], cpu_shares_at_s=[1.0, 2.2], published=CPU),
        entry(tmp_path, test, f"{BOX}&ranges=compare", cpu_shares=[0.1, 0.2], cpu_shares_at_s=[1, 2], published=CPU),
        entry(tmp_path, test, BOX, cpu_shares=[0.02, 0.04], cpu_shares_at_s=[1.0, 2.0], published=CPU),
    )), "cpu-shares-over-time")  # fmt: skip
    assert list(rule_heights(figure)) == ["client alone: 54 %", "with UDS: 12 %", "with UDS+: 7 %"]
    assert "reference: 55 % on average" in figure.description
    assert f"{BOX}: 3 % on average" in figure.description
    assert [list(row) for row in figure.rows[:2]] == [["reference", 1.0, 0.5], ["reference", 2.2, 0.6]]
    assert len(line_points(figure.draw(WIDTH).to_svg(), "s2")) == 1


def test_long_log_is_drawn_from_means_of_parts(tmp_path: Path) -> None:
    entries = entry(tmp_path, f"{BATCHING}::test_log", "reference", each_second_bytes=[1] * 14_400, file_bytes=14_400,
                  published={})  # fmt: skip
    figure = only_figure(families.draw_figures(gather_entries(tmp_path, entries)), "each-second-bytes-over-time")
    assert len(figure.rows) <= 202
    assert list(figure.rows[-1]) == ["reference", 14_400.0, 1.0]
    assert list(figure.rows[100]) == ["reference", 7200.0, 0.5]
    assert figure.notes == []


def test_small_values_are_drawn_and_the_mean_is_of_all_values(tmp_path: Path) -> None:
    shares = [3e-5, 4e-5]
    small = entry(tmp_path, f"{BATCHING}::test_cpu", "reference", cpu_shares=shares, cpu_shares_at_s=[1.0, 2.0],
                  published={})  # fmt: skip
    figure = only_figure(families.draw_figures(gather_entries(tmp_path, small)), "cpu-shares-over-time")
    assert [row[2] for row in figure.rows] == shares
    many = entry(tmp_path, f"{BATCHING}::test_cpu", "reference", cpu_shares=[0.0] * 200 + [1.0], published={},
                 cpu_shares_at_s=[float(number) for number in range(201)])  # fmt: skip
    figure = only_figure(families.draw_figures(gather_entries(tmp_path, many)), "cpu-shares-over-time")
    assert f"reference: {format_short_share(1 / 201)} on average" in figure.description


@pytest.mark.parametrize(("test", "changes", "why"), [
    ("test_cpu", {}, "the entry's cpu_shares is not a list of numbers"),
    ("test_cpu", {"cpu_shares": [0.1, 0.2]}, "the entry does not say when its cpu_shares were seen (cpu_shares_at_s)"),
    ("test_cpu", {"cpu_shares": [0.1, 0.2], "cpu_shares_at_s": [1.0]}, "the entry does not say when"),
    ("test_cpu", {"cpu_shares": [0.1, HOSTILE], "cpu_shares_at_s": [1, 2]}, "is not a list of numbers"),
    ("test_log", {"each_second_bytes": [1, -1], "file_bytes": 1}, "is not a list of numbers"),
    ("test_log", {"each_second_bytes": [1]}, "the entry does not say its file_bytes"),
    ("test_log", {"each_second_bytes": [1], "file_bytes": 0}, "the entry does not say its file_bytes"),
])  # fmt: skip
def test_undrawable_course_is_explained(tmp_path: Path, test: str, changes: dict[str, Any], why: str) -> None:
    measurements = gather_entries(tmp_path, entry(tmp_path, f"{BATCHING}::{test}", "reference", **changes))
    assert families.draw_figures(measurements) == []
    (line,) = families.explain_undrawn(measurements)
    assert line.startswith("reference: not drawn, ")
    assert why in line


def test_start_traffic_has_published_ring(tmp_path: Path) -> None:
    mobile = "suites/mobile/test_mobile.py::test_figure_2"
    published = {"source": "mobile", "published_start_bytes": 421_470, "published_start_s": 91.8}
    figure = only_figure(families.draw_figures(gather_entries(
        tmp_path, entry(tmp_path, mobile, HOSTILE, interval_s=5.0, interval_bytes=[40_000] + [0] * 22 + [2000],
                        published=published),
    )), "interval-bytes-over-time")  # fmt: skip
    drawing = figure.draw(WIDTH).to_svg()
    ring = re.search(r'<circle cx="(\S+)" cy="(\S+)" r="4.5" class="published" data-tip="published, the largest start: '
                     r'421 kB after 91.8 s"/>', drawing)  # fmt: skip
    assert ring is not None
    (line,) = line_points(drawing, "s0")
    (left_x, bottom), (first, up), *_, (end, _) = line
    assert float(ring[1]) == pytest.approx(left_x + (end - left_x) * 91.8 / 120, abs=0.2)
    assert float(ring[2]) == pytest.approx(bottom - (bottom - up) * 421_470 / 40_000, abs=1.5)
    assert first == pytest.approx(left_x + (end - left_x) * 5 / 120, abs=0.2)
    assert [figure.rows[index][1:] for index in (0, 1, -2, -1)] == [
        [0.0, 0.0], [5.0, 40_000.0], [120.0, 42_000.0], [91.8, 421_470.0]
    ]  # fmt: skip
    assert "<script>alert" not in drawing


def test_idle_client_without_published_value_is_drawn(tmp_path: Path) -> None:
    idle_entry = entry(tmp_path, "suites/idle/test_idle.py::test_idle", "reference", interval_s=2.0,
                       interval_bytes=[0, 300], published={"idle_traffic": "in words"})  # fmt: skip
    figure = only_figure(families.draw_figures(gather_entries(tmp_path, idle_entry)), "interval-bytes-over-time")
    assert [list(row) for row in figure.rows] == [["reference", 0, 0], ["reference", 2, 0], ["reference", 4, 300]]
    assert "published" not in texts(figure)
    assert figure.notes == []


def thresholds(tmp_path: Path, published: dict[str, Any]) -> list[Measurement]:
    return gather_entries(tmp_path, *(
        entry(tmp_path, f"{BATCHING}::test_threshold", BOX, params={"threshold_kb": size}, tue=tue, pushes=pushes,
              sync_delay_s=delay_s, published=published)
        for size, tue, pushes, delay_s in ((20, 9.0, 20, 1.0), (100, 2.0, 4, 5.0))
    ))  # fmt: skip


def test_byte_counter_threshold_has_published_mark(tmp_path: Path) -> None:
    measurements = thresholds(tmp_path, {"source": "UDS", "published_best_kb": 250})
    for name, values in (("tue", [9.0, 2.0]), ("pushes", [20, 4]), ("sync-delay-s", [1.0, 5.0])):
        figure = only_figure(families.draw_figures(measurements), f"{name}-by-threshold-kb")
        assert [(row[1], row[2]) for row in figure.rows] == [(20, values[0]), (100, values[1])]
        drawing = figure.draw(WIDTH).to_svg()
        (rule,) = re.findall(r'<path d="M(\S+) \S+" class="rule"/>', drawing)
        (line,) = line_points(drawing, "s0")
        assert line[0][0] < line[1][0] < float(rule) <= WIDTH - 14, "250 KB is right of what was measured"
        assert "published: 250" in texts(figure)
        assert BOX not in figure.description, "what the paper found best is not this client's"
        assert figure.notes == ["Published: UDS"]


def test_byte_counter_without_published_threshold_has_no_mark(tmp_path: Path) -> None:
    figure = only_figure(families.draw_figures(thresholds(tmp_path, {})), "tue-by-threshold-kb")
    assert 'class="rule"' not in figure.draw(WIDTH).to_svg()
    assert figure.notes == []


def test_client_in_two_runs_has_two_lines(tmp_path: Path) -> None:
    runs = [
        store(tmp_path / f"000{number}_r.json", [entry(tmp_path, f"{BATCHING}::test_log", "reference",
                                                       each_second_bytes=[number], file_bytes=1)])
        for number in (1, 2)
    ]  # fmt: skip
    figure = only_figure(families.draw_figures(gather_runs(runs).measurements), "each-second-bytes-over-time")
    assert {row[0] for row in figure.rows} == {"reference, 0001_r.json (1)", "reference, 0002_r.json (2)"}
