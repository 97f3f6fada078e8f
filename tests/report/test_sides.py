"""Two sides that were measured in turns, as a page and ``cloudbench show`` present them after the run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.report import versus
from pytest_cloudbench.report.figures import WIDTH
from pytest_cloudbench.report.figures.sides import between_sides
from pytest_cloudbench.report.gathering import Measurement, gather_runs
from pytest_cloudbench.results.index import Index
from tests.report.stored import HOSTILE, entry
from tests.report.test_page import Page, make_page
from tests.results.stored_runs import store

TEST = "test_it.py::test_put"
LINE = "gate broken: B is worse than A: quiet_p50 +9.7 % (+1.3 to +19 %), margin 5 %"


def difference(
    change: float | None, low: float | None, high: float | None, answer: str, **changes: Any
) -> dict[str, Any]:  # fmt: skip
    return {"a": 0.0712, "b": 0.0784, "is_points": False, "change": change, "low": low, "high": high, "pairs": 31,
            "margin": 0.1, "answer": answer, "needed": None, "why": "", **changes}  # fmt: skip


def comparison_info(**changes: Any) -> dict[str, Any]:
    """Return the extra_info of an entry of two sides."""
    comparison = {
        "A": "s3://old", "B": f"s3://{HOSTILE}", "setup": None, "deciding": ["quiet_p50"], "pairs": 31, "minutes": 6.4,
        "stopped": "decided", "blocks": [{"ops": 200, "is_warm_up": False}], "differences": {
            "quiet_p50": difference(0.097, 0.013, 0.188, "A better"),
            "failed_rate": difference(0.0, -0.001, 0.001, "no difference", is_points=True, margin=0.005, a=0.0, b=0.0),
            "quiet_p99": difference(0.051, -0.402, None, "inconclusive", margin=0.25, needed=160),
        },
    }  # fmt: skip
    return {
        "schema": 2, "outcome": "failed", "machine": "M", "agents": 1, "time_scale": 1.0, "emulated": False,
        "provider": f"s3://old versus s3://{HOSTILE}", "profile": {"A": "ideal", "B": None}, "ops": 12800,
        "versions": {"A": {"boto3": "1.0", "x": "7"}, "B": {"boto3": "1.1", "x": "7"}}, "doubts": [], "published": {},
        "notes": ["quiet_p50 of both sides drifted by +30% meanwhile"], "expectations": ["no expectation"],
        "gate": {"answer": "broken", "lines": [LINE]}, "versus": comparison, **changes,
    }  # fmt: skip


def test_unbounded_interval_is_a_dash() -> None:
    comparison = comparison_info()["versus"]
    comparison["differences"] = {"quiet_p99": difference(0.05, -0.9999, None, "inconclusive")}
    assert versus.comparison_cells(comparison)[0][3] == "+5.0 % [-, -]"
    comparison["differences"] = {"loss_rate": difference(0.05, None, None, "inconclusive", is_points=True)}
    assert versus.comparison_cells(comparison)[0][3] == "+5.0 points [-, -]"


def test_a_large_change_has_all_its_bounds() -> None:
    comparison = comparison_info()["versus"]
    comparison["differences"] = {"quiet_p50": difference(12.0, 11.0, 13.5, "A better")}
    assert versus.comparison_cells(comparison)[0][3] == "+1,200.0 % [+1,100.0, +inf]"


def test_a_small_change_of_a_share_is_not_shown_as_none() -> None:
    comparison = comparison_info()["versus"]
    small = difference(0.0003, -0.00002, 0.0012, "no difference", is_points=True, margin=0.005, a=0.0001, b=0.0004)
    comparison["differences"] = {"loss_rate": small}
    assert versus.comparison_cells(comparison)[0][1:4] == ("0.01 %", "0.04 %", "+0.03 points [-0.002, +0.1]")


@pytest.mark.parametrize(("minutes", "text"), [(0.05, "less than a minute"), (6.4, "32 minutes"), (0.25, "1 minute")])
def test_the_time_that_an_answer_would_take_is_not_zero(minutes: float, text: str) -> None:
    remarks = versus.comparison_remarks(comparison_info()["versus"] | {"minutes": minutes})
    assert remarks[-1] == f"quiet_p99: about 160 pairs ({text}) would find a difference of 25 %"


def measurement(tmp_path: Path, **changes: Any) -> Measurement:
    (measurement,) = gather_runs([store(tmp_path, 1, {f"{TEST}[a-vs-b]": comparison_info(**changes)})]).measurements
    return measurement


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return make_page(tmp_path, store(tmp_path, 1, {f"{TEST}[a-vs-b]": comparison_info()}))


def test_page_shows_sides_answers_intervals_and_gate(page: Page) -> None:
    for text in (
        f"\u2717 broken put, s3://old versus s3://{HOSTILE.encode('unicode_escape').decode()[:20]}", LINE,
        "quiet_p50: A better, +9.7 % [+1.3, +18.8]", "quiet p50 71.2 ms 78.4 ms +9.7 % [+1.3, +18.8] A better",
        "no difference above 0.5 points", "31 pairs of blocks, 200 operations a block, in 6.4 minutes: decided",
        "about 160 pairs (32 minutes) would find a difference of 25 %", "drifted by +30%", "12,800",
    ):  # fmt: skip
        assert text in page.plain_text, text
    for wrong in ("Nothing was", "{'", "None", "nan", "ops files", "ran on more than one provider"):
        assert wrong not in page.plain_text, wrong
    assert page.tags.count("script") == 1


def test_differing_versions_and_profiles_name_their_side(page: Page) -> None:
    assert "ideal (A)" in page.plain_text
    assert "boto3 1.0 (A), 1.1 (B) 1" in page.plain_text
    assert "x 7 1" in page.plain_text


def test_emulated_and_real_sides_are_labelled(tmp_path: Path) -> None:
    note = "A is emulated, B is real: their difference is not one between services"
    comparison = comparison_info()["versus"] | {"emulated": {"A": True, "B": False}}
    path = store(tmp_path, 1, {f"{TEST}[a-vs-b]": comparison_info(emulated="some", notes=[note], versus=comparison)})
    page = make_page(tmp_path, path)
    assert "Some of it is emulated." in page.plain_text
    assert "All of it" not in page.plain_text
    assert "A emulated, B real ideal (A)" in page.plain_text
    assert page.plain_text.count(note) == 2, "among the notes, and beside the comparison"
    (row,) = Index.open(tmp_path).runs()
    assert row.emulated == "some"


def test_figure_positions_changes_intervals_and_margins(tmp_path: Path) -> None:
    figure = between_sides(measurement(tmp_path))
    assert figure is not None
    assert [list(row) for row in figure.rows] == [
        ["quiet_p50", 0.0712, 0.0784, 0.097, 0.013, 0.188, 0.1, "fraction, B / A - 1", 31, "A better"],
        ["failed_rate", 0.0, 0.0, 0.0, -0.001, 0.001, 0.005, "fraction, B - A", 31, "no difference above 0.5 points"],
        ["quiet_p99", 0.0712, 0.0784, 0.051, -0.402, None, 0.25, "fraction, B / A - 1", 31, "inconclusive"],
    ]
    drawing = figure.draw(WIDTH).to_svg()
    left_x, right_x = WIDTH * 0.42, WIDTH - 14.0
    reach = 0.402 * 1.05

    def x(value: float) -> float:
        return left_x + (value + reach) / (2 * reach) * (right_x - left_x)

    spans = re.findall(r'<path d="M([\d.]+) [\d.]+H([\d.]+)[^"]*" class="whisker s0"', drawing)
    assert [float(end) for span in spans[:2] for end in span] == pytest.approx(
        [x(0.013), x(0.188), x(-0.402), right_x], abs=0.1
    )
    bands = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="[\d.]+" class="band"', drawing)
    assert tuple(map(float, bands[1])) == pytest.approx((x(-0.1), x(0.1) - x(-0.1)), abs=0.1)  # the first explains it
    assert "l6 4l-6 4" in drawing, "an arrow where an interval has no end"
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawing)
    assert {"quiet p50", "A better", "inconclusive", "change of B against A, %"} <= set(texts)


def test_large_changes_have_a_logarithmic_axis(tmp_path: Path) -> None:
    comparison = comparison_info()["versus"]
    comparison["differences"] = {
        "quiet_p50": difference(-0.5, -0.9, -0.2, "B better"), "throughput": difference(1.0, 0.5, 19.0, "B better"),
    }  # fmt: skip
    figure = between_sides(measurement(tmp_path, versus=comparison))
    assert figure is not None
    drawing = figure.draw(WIDTH).to_svg()
    zero = (WIDTH * 0.42 + WIDTH - 14) / 2
    (half, double) = (float(x) for x in re.findall(r'<path d="M([\d.]+) [\d.]+[^"]*" class="dot d0"', drawing)[1:])
    assert zero - half == pytest.approx(double - zero, abs=0.2)
    assert {"-80", "0", "+400"} <= set(re.findall(r"<text[^>]*>([^<]*)</text>", drawing))


ODD: list[Any] = [
    {}, {"differences": 1, "A": None}, {"differences": {"x": {}}, "deciding": []},
    {"differences": {"quiet_p50": difference(0.1, 0.0, 0.2, "A better", margin="?")}, "deciding": [["quiet_p50"]]},
]  # fmt: skip


@pytest.mark.parametrize("comparison", ODD)
def test_comparison_of_unknown_form_is_explained(tmp_path: Path, comparison: Any) -> None:
    assert between_sides(measurement(tmp_path, versus=comparison)) is None
    page = make_page(tmp_path, store(tmp_path, 1, {f"{TEST}[a-vs-b]": comparison_info(versus=comparison)}))
    assert "measured in turns" in page.text
    lines = versus.render_stored(TEST, comparison_info(versus=comparison), 80)
    assert TEST in lines
    assert any(LINE[:20] in line for line in lines)


def test_page_with_comparison_and_usual_experiment(tmp_path: Path) -> None:
    usual = entry(tmp_path, TEST, "folder:/x")["extra_info"]
    page = make_page(tmp_path, store(tmp_path, 1, {f"{TEST}[a-vs-b]": comparison_info(), f"{TEST}[folder:/x]": usual}))
    assert "No experiment ran on more than one provider." in page.plain_text
    assert "A better" in page.plain_text


def test_show_prints_the_terminals_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored_info = comparison_info(provider="a versus b")
    stored_info["versus"]["B"] = "s3://new"
    store(tmp_path, 1, {f"{TEST}[a-vs-b]": stored_info})
    assert cli.main(["show", "1", "--storage", str(tmp_path)]) == 0
    output = capsys.readouterr().out.splitlines()

    class Finding:
        nodeid, info = f"{TEST}[a-vs-b]", stored_info

    lines = [line for line in versus.render([Finding()], 100) if line]
    first = output.index(lines[0])
    assert output[first : first + len(lines)] == lines
    assert " ".join("".join(output[first + len(lines) :]).split()) == f"{LINE} outcome: failed"
    assert not any(line.startswith("entry") for line in output)
