"""Figures of kinds of experiments: what is drawn, beside which published value, and what is left out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.report.figures import NARROW, WIDE, Figure, families
from pytest_cloudbench.report.gathering import Measurement, gather_runs
from pytest_cloudbench.report.quantities import format_seconds, format_short_share
from pytest_cloudbench.report.scales import Linear, Log, Tail
from tests.report.stored import entry, store


def measured(tmp_path: Path, *entries: dict[str, Any]) -> list[Measurement]:
    found = gather_runs([store(tmp_path / "0001_r.json", entries)])
    assert found.left_out == []
    return found.measurements


def drawn(figures: list[Figure], name: str) -> Figure:
    return next(each for each in figures if each.name == name)


def texts(figure: Figure, width: int = WIDE) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", figure.draw(width).to_svg())


def test_losses_stand_in_a_grid_with_the_published_ones(tmp_path: Path) -> None:
    test = "suites/iot/test_iot.py::test_table_4_2"
    (figure, *_) = families.draw_figures(measured(
        tmp_path,
        entry(tmp_path, test, "emulated:a", params={"sensors": 30, "interval_s": 1}, loss_rate=0.58),
        entry(tmp_path, test, "emulated:a", params={"sensors": 50, "interval_s": 1}, loss_rate=0.7, doubts=["late"]),
    ))  # fmt: skip
    said = texts(figure)
    assert said.count("-") == 13  # of fifteen cells
    assert {"58.00 %", "publ. 55.33 %", "70.00 %?", "publ. 77.20 %"} <= set(said)
    assert "p 55 %" in texts(figure, NARROW)
    assert [30, 1, 0.58, pytest.approx(0.5533), False] in [list(row) for row in figure.rows]
    assert "Table 4.2" in figure.notes[0]


def test_losses_without_a_published_table_are_only_what_was_measured(tmp_path: Path) -> None:
    test = "suites/iot/test_iot.py::test_worst_case"
    (figure,) = families.draw_figures(measured(
        tmp_path,
        *(entry(tmp_path, test, "a", params={"sensors": sensors, "interval_s": 1}, loss_rate=rate)
          for sensors, rate in ((10, 0.0), (50, None))),
    ))  # fmt: skip
    assert "0.00 %" in texts(figure)
    assert "-" in texts(figure)  # not known is not zero
    assert not any("publ" in each for each in texts(figure))


def test_the_knee_is_marked_and_said(tmp_path: Path) -> None:
    test = "suites/concurrency/test_concurrency.py::test_upload"
    levels = [
        entry(tmp_path, test, "a", threads=threads, elapsed=total) for threads, total in ((1, 8.0), (5, 2.0), (9, 2.0))
    ]
    figure = drawn(
        families.draw_figures(measured(tmp_path, *levels, entry(tmp_path, test, "a", knee_threads=5))),
        "elapsed-by-threads",
    )
    assert "a: knee threads 5" in figure.description
    assert "knee: 5" in texts(figure)
    assert [row[1:3] for row in figure.rows] == [[1.0, 8.0], [5.0, 2.0], [9.0, 2.0]]


def test_segments_are_the_medians_of_their_repeats(tmp_path: Path) -> None:
    test = "suites/segmentation/test_segmentation.py::test_table_2"
    only = entry(tmp_path, test, "a", params={"size_mb": 10}, segments_s={"1": [3.0], "4": [1.0, 1.2, 2.0], "x": ["?"]},
                 best_segments=4, segmented=1.2)  # fmt: skip
    figures = families.draw_figures(measured(tmp_path, only))
    assert [row[1:5] for row in drawn(figures, "time-s-by-segments").rows] == [
        [1.0, 3.0, None, None],
        [4.0, 1.2, 1.0, 2.0],
    ]
    published = next(each for each in figures if each.name.startswith("cloud-raid-2012-table-2"))
    assert len(published.rows) == 6  # services that the paper measured with 10 MB
    assert {row[3] for row in published.rows} == {1.2}


def test_the_matrix_has_measured_clients_above_the_published_ones(tmp_path: Path) -> None:
    test = "suites/sync_capabilities/test_sync_capabilities.py::test_table_1"
    (figure, *_) = families.draw_figures(measured(
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


def test_a_published_value_is_of_the_same_point(tmp_path: Path) -> None:
    test = "suites/updates/test_updates.py::test_table_1"
    found = measured(tmp_path, *(
        entry(tmp_path, test, "mine", params={"size": size}, changed_bytes=changed, tue=tue, uds_tue=published,
              published={"source": "UDS, Table 1"})
        for size, changed, tue, published in (("1 B", 1, 521, 38200), ("1 MB", 10**6, 1.05, 1.22))
    ))  # fmt: skip
    figure = drawn(families.draw_figures(found), "tue-by-changed-bytes")
    assert [(row[0], row[1], row[2], row[5]) for row in figure.rows] == [
        ("mine", 1, 521.0, 38200.0), ("mine", 10**6, 1.05, 1.22)
    ]  # fmt: skip
    assert list(figure.notes) == ["Published: UDS, Table 1"]
    assert "published" in texts(figure)


def test_a_test_of_nobody_knows_has_no_figure_of_a_kind(tmp_path: Path) -> None:
    assert families.draw_figures(measured(tmp_path, entry(tmp_path, "tests/test_mine.py::test_it", "a"))) == []


@pytest.mark.parametrize(
    ("scale", "value", "place"),
    [
        (Log(0.01, 1), 0.1, 0.5),
        (Log(0.01, 1), 0, 0),
        (Linear(0, 10), 5, 0.5),
        (Linear(0, 10), 50, 1),
        (Tail(0.99), 0.9, 0.5),
    ],
)
def test_values_have_their_places(scale: Log | Linear | Tail, value: float, place: float) -> None:
    assert scale.position(value) == pytest.approx(place)


def test_labels_are_those_that_people_write() -> None:
    assert [text for _, text in Tail(0.9999).ticks(9)] == ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"]
    assert [text for _, text in Log(0.001, 1, format_seconds).ticks(5)] == ["1 ms", "10 ms", "100 ms", "1 s"]
    assert [text for _, text in Linear(0, 7).ticks(4)] == ["0", "5"]
    assert [format_short_share(share) for share in (0, 1, 0.5, 0.999)] == ["0 %", "100 %", "50 %", "99.9 %"]
    assert [format_seconds(each) for each in (0, 0.00085, 1.5, 180, 90_000)] == [
        "0 s",
        "850 us",
        "1.5 s",
        "3 min",
        "25 h",
    ]


def test_recovery_is_drawn_by_interruption_with_a_line_for_each_set_of_files(tmp_path: Path) -> None:
    test = "suites/mobile/test_mobile.py::test_figure_4"
    entries = [
        entry(tmp_path, test, "", params={"how": how, "files": files, "set": files}, client="reference",
              recovery_overhead=overhead)
        for how, files, overhead in (
            ("reset", "1x1MB", 1.0), ("black_hole", "1x1MB", 0.5),
            ("reset", "10x1MB", 0.1), ("black_hole", "10x1MB", 0.2),
        )
    ]  # fmt: skip
    figure = drawn(families.draw_figures(measured(tmp_path, *entries)), "recovery-overhead-by-how")
    assert {"reset", "black_hole"} <= set(texts(figure))
    assert {"reference, files 1x1MB", "reference, files 10x1MB"} <= set(texts(figure)), "set says the same as files"


def test_connections_are_drawn_over_the_number_of_files(tmp_path: Path) -> None:
    test = "suites/sync_capabilities/test_sync_capabilities.py::test_figure_3"
    entries = [entry(tmp_path, test, "", params={"files": files}, client="c", syns=files + 1) for files in (1, 10, 100)]
    figure = drawn(families.draw_figures(measured(tmp_path, *entries)), "syns-by-files")
    assert [list(row[:3]) for row in figure.rows][:3] == [["c", 1, 2.0], ["c", 10, 11.0], ["c", 100, 101.0]]
