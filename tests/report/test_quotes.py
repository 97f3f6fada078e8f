"""Values that papers quote are drawn with their service, in figures of the same quantity."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.report.figures import WIDTH, Figure, families
from tests.report.stored import entry
from tests.report.test_figures import gather_entries, only_figure, texts

CAPABILITIES = "suites/sync_capabilities/test_sync_capabilities.py::"
PERFORMANCE = "suites/sync_performance/test_sync_performance.py::test_figure_6"
UPDATES = "suites/updates/test_updates.py::"


def figure(tmp_path: Path, name: str, test: str, *changes: tuple[dict[str, Any], dict[str, Any]]) -> Figure:
    entries = [entry(tmp_path, test, "mine", params=params, **extra) for params, extra in changes]
    return only_figure(families.draw_figures(gather_entries(tmp_path, *entries)), name)


def published_points(figure: Figure) -> list[tuple[object, ...]]:
    """Return x, value and label of each published value."""
    return [(row[1], pytest.approx(row[5]), row[0]) for row in figure.rows if str(row[0]).startswith("published")]


def count_rings(figure: Figure) -> int:
    return len(re.findall(r'<circle[^>]* r="4.5" class="published" data-tip', figure.draw(WIDTH).to_svg()))


def test_quotes_of_connections_and_times_of_many_files(tmp_path: Path) -> None:
    changes = [({"files": files}, {"syns": syns, "completion_s": 0.5}) for files, syns in ((1, 1), (100, 7), (1000, 9))]
    syns = figure(tmp_path, "syns-by-files", f"{CAPABILITIES}test_figure_3", *changes)
    assert published_points(syns) == [(100, 100, "published: Google Drive"), (100, 400, "published: Cloud Drive")]
    assert count_rings(syns) == 2
    assert {"Google Drive: 100", "Cloud Drive: 400"} <= set(texts(syns)) & set(texts(syns))
    assert syns.notes[0].startswith("Published: Idilio Drago et al., Benchmarking personal cloud storage")
    times = figure(tmp_path, "completion-s-by-files", f"{CAPABILITIES}test_figure_3", *changes)
    assert [value for _, value, _ in published_points(times)] == [30, 55]


def test_quote_of_another_condition_is_not_drawn(tmp_path: Path) -> None:
    changes = [({"files": files}, {"syns": 3}) for files in (1, 10)]
    assert published_points(figure(tmp_path, "syns-by-files", f"{CAPABILITIES}test_figure_3", *changes)) == []


def test_quotes_of_sets_of_files(tmp_path: Path) -> None:
    sets = ("1 x 100 kB", "1 x 1 MB", "10 x 100 kB", "100 x 10 kB")
    changes = [
        ({"set": name, "kind": "binary"}, {"start_up": 0.2, "completion": 1.0, "overhead": 0.1}) for name in sets
    ]
    start_up, completion, overhead = (
        figure(tmp_path, f"{name}-by-set", PERFORMANCE, *changes) for name in ("start-up", "completion", "overhead")
    )
    assert published_points(start_up) == [
        (None, 9, "published: SkyDrive at least"), ("100 x 10 kB", 20, "published: SkyDrive more than"),
    ]  # fmt: skip
    assert {"SkyDrive: at least 9 s", "SkyDrive: more than 20 s"} <= set(texts(start_up)), (
        "it is of all sets: a line across"
    )
    assert count_rings(start_up) == 1
    assert [(x, value) for x, value, _ in published_points(completion)] == [
        ("1 x 1 MB", 4), ("1 x 1 MB", 0.3), ("100 x 10 kB", 42), ("100 x 10 kB", 60),
    ]  # fmt: skip
    assert [(x, value) for x, value, _ in published_points(overhead)] == [
        ("1 x 100 kB", 0.47), ("1 x 1 MB", 0.22), ("100 x 10 kB", 1.0), ("100 x 10 kB", 4.0),
    ]  # fmt: skip


def test_quotes_of_downloads_and_appends(tmp_path: Path) -> None:
    changes = [
        ({"rate_kbit_per_s": rate}, {"traffic_kb": 9000.0, "up_over_file": 1.3, "file_bytes": 5 << 20,
                                     "each_second_bytes": [4_500_000, 4_500_000]})
        for rate in (80, 800)
    ]  # fmt: skip
    test = f"{UPDATES}test_download"
    assert published_points(figure(tmp_path, "traffic-kb-by-rate-kbit-per-s", test, *changes)) == [
        (80, 75_000, "published: Dropbox alone")
    ]
    ratio = figure(tmp_path, "up-over-file-by-rate-kbit-per-s", test, *changes)
    assert published_points(ratio) == [(None, 30, "published: the worst rate"), (None, 1.1, "published: the best rate")]
    assert {"the worst rate: 30", "the best rate: 1.1"} <= set(texts(ratio))
    assert not [text for text in texts(ratio) if text.endswith((" s", " min"))], "kbit/s are not seconds"
    course = figure(tmp_path, "each-second-bytes-over-time", test, *changes)
    assert ["rate kbit per s 80", 2.0, 9_000_000 / (5 << 20)] in [list(row) for row in course.rows]
    assert ["published: Dropbox alone", None, 15.0] in [list(row) for row in course.rows]


@pytest.mark.parametrize(("count", "values"), [(1024, [1.2e6, 2e6]), (8, [])])
def test_appends_have_quote_of_equal_count(tmp_path: Path, count: int, values: list[float]) -> None:
    changes = [({"interval_s": interval_s, "count": count}, {"traffic_kb": 300.0, "each_second_bytes": [100_000] * 3})
             for interval_s in (0.5, 1.0)]  # fmt: skip
    course = figure(tmp_path, "each-second-bytes-over-time", f"{UPDATES}test_appends", *changes)
    assert [row[2] for row in course.rows if row[1] is None] == pytest.approx(values)
    assert bool(course.notes) == bool(values)
    assert {row[0] for row in course.rows if row[1] is not None} == {"interval s 0.5", "interval s 1.0"}
    curve = figure(tmp_path, "traffic-kb-by-interval-s", f"{UPDATES}test_appends", *changes)
    assert [(x, value) for x, value, _ in published_points(curve)] == [(1.0, value / 1e3) for value in values]


def test_published_shares_of_sync_delays(tmp_path: Path) -> None:
    extra = {
        "start_ups_s": [0.1] * 4, "sync_delays_s": [0.5, 2.0, 3.0, 5.0], "published": {
            "source": "UDS, Figures 8 and 9", "sync_delay_1_to_4_s_share": 1 / 3, "sync_delay_4_to_7_s_share": 1 / 3,
        },
    }  # fmt: skip
    delays = figure(tmp_path, "delays-of-changes", f"{UPDATES}test_delays", ({"append_bytes": 1}, extra))
    assert "From 1 to 4 s: 50 % of sync delays, published 33 %." in delays.description
    assert "From 4 to 7 s: 25 % of sync delays, published 33 %." in delays.description
    assert [row[0] for row in delays.rows if row[2] is None] == [
        "published: sync delay from 1 to 4 s", "published: sync delay from 4 to 7 s",
    ]  # fmt: skip
    drawing = delays.draw(WIDTH).to_svg()
    bands = re.findall(
        r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="[\d.]+" class="(band[^"]*)" data', drawing
    )
    assert [style for _, _, style in bands] == ["band", "band other"]
    assert float(bands[0][0]) + float(bands[0][1]) == pytest.approx(float(bands[1][0]), abs=0.2), "4 s is both ends"
    assert delays.notes == ["Published: UDS, Figures 8 and 9"]


def test_sparse_files_and_versions_have_figures(tmp_path: Path) -> None:
    sparse = [({"size_mb": size}, {"traffic_mb": 0.3}) for size in (1, 10, 100)]
    curve = figure(tmp_path, "traffic-mb-by-size-mb", f"{CAPABILITIES}test_figure_4_8", *sparse)
    assert [row[1:3] for row in curve.rows] == [[1, 0.3], [10, 0.3], [100, 0.3]]
    shared = [({"percent": percent}, {"traffic_mb": 52.0, "delta_encoded_mb": 50.0 - 0.4 * percent})
              for percent in (10, 50, 90)]  # fmt: skip
    curve = figure(tmp_path, "traffic-mb-by-percent", f"{CAPABILITIES}test_figure_4_10", *shared)
    assert [row[5] for row in curve.rows] == [46.0, 30.0, 14.0]
    assert "with delta encoding" in texts(curve)
    assert curve.notes == [], "it is computed, not published"
