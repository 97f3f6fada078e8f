"""Figures of each kind of experiment: their values, the published values beside them, and omitted values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import Curve, Suite
from pytest_cloudbench.report.figures import WIDTH, Figure, families
from pytest_cloudbench.report.gathering import Measurement, gather_runs
from pytest_cloudbench.report.quantities import format_seconds, format_short_share
from pytest_cloudbench.report.scales import Linear, Log, Tail
from tests.report.stored import entry, store


def gather_entries(tmp_path: Path, *entries: dict[str, Any]) -> list[Measurement]:
    gathered = gather_runs([store(tmp_path / "0001_r.json", entries)])
    assert gathered.left_out == []
    return gathered.measurements


def only_figure(figures: list[Figure], name: str) -> Figure:
    return next(figure for figure in figures if figure.name == name)


def texts(figure: Figure) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", figure.draw(WIDTH).to_svg())


def test_loss_grid_has_published_values(tmp_path: Path) -> None:
    test = "suites/iot/test_iot.py::test_table_4_2"
    (figure, *_) = families.draw_figures(gather_entries(
        tmp_path,
        entry(tmp_path, test, "emulated:a", params={"sensors": 30, "interval_s": 1}, loss_rate=0.58),
        entry(tmp_path, test, "emulated:a", params={"sensors": 50, "interval_s": 1}, loss_rate=0.7, doubts=["late"]),
    ))  # fmt: skip
    tips = texts(figure)
    assert tips.count("-") == 13  # of fifteen cells
    assert {"58.00 %", "p 55 %", "70.00 %?", "p 77 %"} <= set(tips)
    assert [30, 1, 0.58, pytest.approx(0.5533), False] in [list(row) for row in figure.rows]
    assert "Table 4.2" in figure.notes[0]


def test_loss_grid_without_published_table(tmp_path: Path) -> None:
    test = "suites/iot/test_iot.py::test_worst_case"
    (figure,) = families.draw_figures(gather_entries(
        tmp_path,
        *(entry(tmp_path, test, "a", params={"sensors": sensors, "interval_s": 1}, loss_rate=rate)
          for sensors, rate in ((10, 0.0), (50, None))),
    ))  # fmt: skip
    assert "0.00 %" in texts(figure)
    assert "-" in texts(figure)  # not known is not zero
    assert not any(text.startswith("p ") for text in texts(figure))


@pytest.mark.parametrize(
    ("test", "params", "name", "values"),
    [
        ("suites/iot/test_iot.py::test_table_4_2", {"sensors": 30, "interval_s": 1}, "loss_rate", (0.1, 0.2)),
        ("suites/sync_capabilities/test_sync_capabilities.py::test_table_1", {"capability": "Chunking"}, "answer",
         ("yes", "no")),
    ],
    ids=["losses", "capabilities"],
)  # fmt: skip
def test_a_grid_says_which_of_several_measurements_it_shows(
    test: str, params: dict[str, Any], name: str, values: tuple[object, ...], tmp_path: Path
) -> None:
    changes: list[dict[str, Any]] = [{name: value} for value in values]
    twice = [entry(tmp_path, test, "mine", params=params, **change) for change in changes]
    (once, *_) = families.draw_figures(gather_entries(tmp_path, twice[0]))
    (grid, *_) = families.draw_figures(gather_entries(tmp_path, *twice))
    assert "the last is shown" not in once.description
    assert grid.description == f"{once.description} Of what was measured more than once, the last is shown."
    assert values[1] in [row[2] for row in grid.rows]


def test_knee_is_marked_and_described(tmp_path: Path) -> None:
    test = "suites/concurrency/test_concurrency.py::test_upload"
    levels = [
        entry(tmp_path, test, "a", threads=threads, elapsed=total) for threads, total in ((1, 8.0), (5, 2.0), (9, 2.0))
    ]
    figure = only_figure(
        families.draw_figures(gather_entries(tmp_path, *levels, entry(tmp_path, test, "a", knee_threads=5))),
        "elapsed-by-threads",
    )
    assert "a: knee threads 5" in figure.description
    assert "knee: 5" in texts(figure)
    assert [row[1:3] for row in figure.rows] == [[1.0, 8.0], [5.0, 2.0], [9.0, 2.0]]


@pytest.mark.parametrize("values", [[1, 4, "auto"], ["auto", 1, 4]])
def test_a_curve_over_numbers_and_names_has_each_point_above_its_label(values: list[Any], tmp_path: Path) -> None:
    declared = Suite("mine", (Curve("test_it", "threads", "elapsed", "Time", "By threads."),)).about("test_it").plain()
    entries = [
        entry(tmp_path, "mine/test_mine.py::test_it", "a", threads=value, elapsed=1.0 + number, suite=declared)
        for number, value in enumerate(values)
    ]
    figure = only_figure(families.draw_figures(gather_entries(tmp_path, *entries)), "elapsed-by-threads")
    drawing = figure.draw(WIDTH).to_svg()
    dots = re.findall(r'<path d="M([0-9.]+) [^"]+" class="dot d0" data-tip="a,(?: threads)? (auto|1|4):', drawing)
    labels = re.findall(r'<text x="([^"]+)" y="[^"]+" class="middle">(auto|1|4)<', drawing)
    assert len(dots) == len(values)
    assert sorted(dots) == sorted(labels)


def test_segment_curve_uses_medians_of_repeats(tmp_path: Path) -> None:
    test = "suites/segmentation/test_segmentation.py::test_table_2"
    only = entry(tmp_path, test, "a", params={"size_mb": 10}, segments_s={"1": [3.0], "4": [1.0, 1.2, 2.0], "x": ["?"]},
                 best_segments=4, segmented=1.2)  # fmt: skip
    figures = families.draw_figures(gather_entries(tmp_path, only))
    assert [row[1:5] for row in only_figure(figures, "time-s-by-segments").rows] == [
        [1.0, 3.0, None, None],
        [4.0, 1.2, 1.0, 2.0],
    ]
    published = next(figure for figure in figures if figure.name.startswith("cloud-raid-2012-table-2"))
    assert len(published.rows) == 6  # services that the paper measured with 10 MB
    assert {row[3] for row in published.rows} == {1.2}


def test_many_questions_are_listed_beside_advertised_answers(tmp_path: Path) -> None:
    test = "suites/security/test_security.py::test_table_2_1"
    titles = ["TLS", "File encryption", *(f"a question of number {number}" for number in range(8))]
    entries = [
        entry(tmp_path, test, "mine", params={"question": title}, answer="yes", how="seen", evidence=["a", "b"])
        for title in titles
    ]
    (figure, *_) = families.draw_figures(gather_entries(tmp_path, *entries))
    assert figure.title == "Security: as measured, and as advertised in 2014"
    assert ["mine", "TLS", "yes", "seen", "a; b"] in figure.rows
    assert [row[2] for row in figure.rows if row[:2] == ["Dropbox", "File encryption"]] == ["no"]
    assert texts(figure).count("\u2713") == len(titles) + 15


def test_capabilities_show_measured_above_published(tmp_path: Path) -> None:
    test = "suites/sync_capabilities/test_sync_capabilities.py::test_table_1"
    (figure, *_) = families.draw_figures(gather_entries(
        tmp_path,
        entry(tmp_path, test, "mine", params={"capability": "Chunking"}, answer="yes", how="4 MiB",
              evidence=["16 MiB: 4"]),
        entry(tmp_path, test, "mine", params={"capability": "Bundling"}, answer="maybe"),
    ))  # fmt: skip
    rows = {(row[0], row[1]): list(row[2:]) for row in figure.rows}
    assert rows["mine", "Chunking"] == ["yes", "4 MiB", "16 MiB: 4"]
    assert rows["mine", "Bundling"][0] == "unknown"  # no other word is an answer
    assert rows["mine", "Compression"] == [None, None, None]
    assert rows["Dropbox", "Delta-encoding"][0] == "yes"
    assert texts(figure).count("\u2713 yes") == 1 + 10


def test_published_value_belongs_to_its_point(tmp_path: Path) -> None:
    test = "suites/updates/test_updates.py::test_table_1"
    measurements = gather_entries(tmp_path, *(
        entry(tmp_path, test, "mine", params={"size": size}, changed_bytes=changed, tue=tue, uds_tue=published,
              published={"source": "UDS, Table 1"})
        for size, changed, tue, published in (("1 B", 1, 521, 38200), ("1 MB", 10**6, 1.05, 1.22))
    ))  # fmt: skip
    figure = only_figure(families.draw_figures(measurements), "tue-by-changed-bytes")
    assert [(row[0], row[1], row[2], row[5]) for row in figure.rows] == [
        ("mine", 1, 521.0, 38200.0), ("mine", 10**6, 1.05, 1.22)
    ]  # fmt: skip
    assert list(figure.notes) == ["Published: UDS, Table 1"]
    assert "published" in texts(figure)


def test_unknown_test_has_no_figures(tmp_path: Path) -> None:
    assert families.draw_figures(gather_entries(tmp_path, entry(tmp_path, "tests/test_mine.py::test_it", "a"))) == []


@pytest.mark.parametrize(
    ("scale", "value", "position"),
    [
        (Log(0.01, 1), 0.1, 0.5),
        (Log(0.01, 1), 0, 0),
        (Linear(0, 10), 5, 0.5),
        (Linear(0, 10), 50, 1),
        (Tail(0.99), 0.9, 0.5),
    ],
)
def test_scales_map_values_to_positions(scale: Log | Linear | Tail, value: float, position: float) -> None:
    assert scale.position(value) == pytest.approx(position)


@pytest.mark.parametrize("span", [1.05, 1.3, 1.6, 2.0, 3.0, 9.0])
@pytest.mark.parametrize("low", [0.0024, 0.024, 0.03, 0.5, 1.0, 7.0])
def test_a_logarithmic_scale_has_two_labels_at_least(low: float, span: float) -> None:
    scale = Log(low * 0.8, low * span * 1.25, format_seconds)
    ticks = scale.ticks(4)
    assert 2 <= len(ticks) <= 4
    assert all(low * 0.8 - 1e-9 <= value <= low * span * 1.25 + 1e-9 for value, _ in ticks)
    assert len({text for _, text in ticks}) == len(ticks)


def test_numbers_that_differ_by_rounding_have_a_scale() -> None:
    assert Linear(0.3, 0.1 + 0.2).position(0.3) == 0.0


def test_a_scale_of_all_numbers_has_ticks() -> None:
    assert len(Log(5e-324, 1e308).ticks(5)) == 5
    assert [text for _, text in Linear(0, 5e-324).ticks(3)] == ["0", "0.5", "1"]


def test_tick_labels_are_round() -> None:
    assert [text for _, text in Tail(0.9999).ticks(9)] == ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"]
    assert [text for _, text in Log(0.001, 1, format_seconds).ticks(5)] == ["1 ms", "10 ms", "100 ms", "1 s"]
    assert [text for _, text in Linear(0, 7).ticks(4)] == ["0", "5"]
    assert [format_short_share(share) for share in (0, 1, 0.5, 0.999)] == ["0 %", "100 %", "50 %", "99.9 %"]
    assert [format_seconds(seconds) for seconds in (0, 0.00085, 1.5, 180, 90_000)] == [
        "0 s",
        "850 us",
        "1.5 s",
        "3 min",
        "25 h",
    ]


def test_recovery_has_a_line_per_set_of_files(tmp_path: Path) -> None:
    test = "suites/mobile/test_mobile.py::test_figure_4"
    entries = [
        entry(tmp_path, test, "", params={"how": how, "files": files, "set": files}, client="reference",
              recovery_overhead=overhead)
        for how, files, overhead in (
            ("reset", "1x1MB", 1.0), ("black_hole", "1x1MB", 0.5),
            ("reset", "10x1MB", 0.1), ("black_hole", "10x1MB", 0.2),
        )
    ]  # fmt: skip
    figure = only_figure(families.draw_figures(gather_entries(tmp_path, *entries)), "recovery-overhead-by-how")
    assert {"reset", "black_hole"} <= set(texts(figure))
    assert {"reference, files 1x1MB", "reference, files 10x1MB"} <= set(texts(figure)), "set says the same as files"


def test_provider_in_two_runs_has_two_lines(tmp_path: Path) -> None:
    test = "suites/sync_capabilities/test_sync_capabilities.py::test_figure_3"
    grids = {1: (1, 10, 100), 2: (1, 10)}
    runs = [
        store(tmp_path / f"000{run}_r.json", [
            entry(tmp_path, test, "", params={"files": files}, client=client, syns=run * files)
            for files in grid for client in (["a", "b"] if run == 1 else ["a"])
        ])
        for run, grid in grids.items()
    ]  # fmt: skip
    figure = only_figure(families.draw_figures(gather_runs(runs).measurements), "syns-by-files")
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, x, y, *_ in figure.rows:
        if not str(name).startswith("published"):
            lines.setdefault(str(name), []).append((x, y))
    assert lines == {
        "a, 0001_r.json (1)": [(1, 1.0), (10, 10.0), (100, 100.0)], "a, 0002_r.json (2)": [(1, 2.0), (10, 20.0)],
        "b": [(1, 1.0), (10, 10.0), (100, 100.0)],
    }  # fmt: skip


def test_mark_belongs_to_the_line_of_its_run(tmp_path: Path) -> None:
    test = "suites/segmentation/test_segmentation.py::test_upload"
    runs = [
        store(tmp_path / f"000{run}_r.json", [
            entry(tmp_path, test, "a", params={"size_bytes": 10}, best_segments=run, segments_s={"1": [run], "2": [3]})
        ])
        for run in (1, 2)
    ]  # fmt: skip
    (figure,) = families.draw_figures(gather_runs(runs).measurements)
    assert "a, 0001_r.json (1): best segments 1; a, 0002_r.json (2): best segments 2." in figure.description


def test_changes_at_other_places_of_a_file_are_not_joined(tmp_path: Path) -> None:
    test = "suites/sync_capabilities/test_sync_capabilities.py::test_figure_4"
    entries = [
        entry(tmp_path, test, "", params={"where": where, "size_bytes": size_bytes}, client="c", uploaded_mb=0.2)
        for where, size_bytes in (("end", 1 << 20), ("random", 10 << 20))
    ]
    figure = only_figure(families.draw_figures(gather_entries(tmp_path, *entries)), "uploaded-mb-by-size-bytes")
    assert [row[0] for row in figure.rows] == ["c, where end", "c, where random"]


def test_size_in_words_is_the_same_as_its_number(tmp_path: Path) -> None:
    test = "suites/updates/test_updates.py::test_table_1"
    entries = [entry(tmp_path, test, "", params={"size": size}, client="c", changed_bytes=size_bytes, tue=2.0)
               for size, size_bytes in (("1 B", 1), ("1 KB", 1024))]  # fmt: skip
    figure = only_figure(families.draw_figures(gather_entries(tmp_path, *entries)), "tue-by-changed-bytes")
    assert [row[0] for row in figure.rows if row[1] in (1, 1024)] == ["c", "c"]


def test_connections_are_drawn_by_number_of_files(tmp_path: Path) -> None:
    test = "suites/sync_capabilities/test_sync_capabilities.py::test_figure_3"
    entries = [entry(tmp_path, test, "", params={"files": files}, client="c", syns=files + 1) for files in (1, 10, 100)]
    figure = only_figure(families.draw_figures(gather_entries(tmp_path, *entries)), "syns-by-files")
    assert [list(row[:3]) for row in figure.rows][:3] == [["c", 1, 2.0], ["c", 10, 11.0], ["c", 100, 101.0]]
