"""Differences from published values have the same words on the terminal, in the command and in the report."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.judge.expect import ClaimBounds, Expectation, find_bounds, judge_expectation
from pytest_cloudbench.report.distance import compare_with_published, format_bounds, format_distance
from pytest_cloudbench.report.published import render_table as render_published
from pytest_cloudbench.report.table import render
from pytest_cloudbench.results.published import add_measured, load_table
from tests.report.stored import entry, store
from tests.report.test_page import make_page
from tests.report.test_table import Finding, info

CLAIM = "loss_rate <= 0.16 (thesis 2014, Table 4.2: 0 %, 2014-06-01): met, measured 0.06"
LINE = "loss rate: published 0.00 %, measured 6.00 %: +6.00 points, allowed: at most 16 %"
TEST = "suites/iot/test_iot.py::test_table_4_2"


@pytest.mark.parametrize(("at_least", "at_most"), [(None, 0.16), (0.1, None), (0.1, 0.45), (0, 1e6)])
def test_bounds_are_parsed_from_a_claim(at_least: float | None, at_most: float | None) -> None:
    claim = Expectation("p", "loss_rate", at_least, at_most, "a source (2014)", datetime.date(2014, 6, 1))
    line = judge_expectation(claim, {"loss_rate": 0.2}, []).line
    assert find_bounds(["gate loss_rate:0.1: met", line], "loss_rate") == ClaimBounds(at_least, at_most)
    assert find_bounds([line], "ok_rate") is None


@pytest.mark.parametrize("lines", [None, "loss_rate <= 1 (", ["loss_rate <= much (", 3], ["no expectation"]])
def test_foreign_claim_has_no_bound(lines: Any) -> None:
    assert find_bounds(lines, "loss_rate") is None


@pytest.mark.parametrize(
    ("bounds", "unit", "text"),
    [(ClaimBounds(None, 0.16), "fraction", "at most 16 %"), (ClaimBounds(10, 45), "%", "10 % to 45 %"),
     (ClaimBounds(2, None), "s", "at least 2 s"), (ClaimBounds(1, None), "1 is yes", "at least yes"),
     (None, "s", "no bound")],
)  # fmt: skip
def test_bounds_have_the_unit_of_the_value(bounds: ClaimBounds | None, unit: str, text: str) -> None:
    assert format_bounds(bounds, unit) == text


def test_terminal_shows_distance_and_allowed_range() -> None:
    finding = Finding(info(loss_rate=0.06, published={"loss_rate": 0.0, "source": "thesis"}, expectations=[CLAIM]))
    assert any(line.strip().endswith(LINE) for line in render([finding], 200))


def test_a_small_ratio_is_not_shown_as_zero() -> None:
    assert format_distance(0.012, 9.0, "s") == "0.00133 x"
    assert format_distance(9.0, 12.0, "s") == "0.75 x"
    assert format_distance(0.0, 12.0, "s") == "0.00 x"


def test_unmeasured_value_is_a_dash() -> None:
    (lines,) = compare_with_published({"loss_rate": None, "published": {"loss_rate": 0.5, "source": "s"}})
    assert (lines.measured, lines.distance, lines.allowed) == ("-", "-", "no bound")


@pytest.mark.parametrize(("name", "measured", "published", "texts"), [
    ("sync_delay_1_to_4_s_share", 0.5, 0.25, ("50.00 %", "25.00 %", "+25.00 points")),
    ("start_up_max_s", 0.5, 0.25, ("500 ms", "250 ms", "2.00 x")),
    ("uploads_per_s", 0.5, 0.25, ("0.5", "0.25", "2.00 x")),
])  # fmt: skip
def test_numbers_have_the_unit_that_their_names_end_in(
    name: str, measured: float, published: float, texts: tuple[str, ...]
) -> None:
    (line,) = compare_with_published({name: measured, "published": {name: published}})
    assert (line.measured, line.published, line.distance) == texts


def test_answer_in_words_is_compared_by_its_number() -> None:
    (line,) = compare_with_published({"delta": "no", "is_delta": 0, "published": {"delta": 1}})
    assert (line.measured, line.published, line.distance) == ("no", "yes", "other")


def test_command_shows_allowed_range() -> None:
    run = {"fullname": f"{TEST}[30-1s-x]", "params": {"sensors": 30, "interval_s": 1, "first_delay_max_s": 0},
           "extra_info": {"provider": "x", "loss_rate": 0.58, "expectations": [CLAIM]}}  # fmt: skip
    table = load_table("thesis-2014-table-4.2")
    assert add_measured(table, [run]) == 1
    lines = render_published(table)
    assert any(line.split()[-6:] == ["+2.67", "points", "at", "most", "16", "%"] for line in lines)


def test_report_shows_distance_and_allowed_range(tmp_path: Path) -> None:
    one = entry(tmp_path, TEST, "emulated:a", params={"sensors": 10, "interval_s": 1}, loss_rate=0.06,
                published={"loss_rate": 0.0, "source": "thesis"}, expectations=[CLAIM], statuses=["met"])  # fmt: skip
    page = make_page(tmp_path, store(tmp_path / "0001_r.json", [one]))
    assert "what measured published apart allowed" in page.plain_text
    assert "loss rate 6.00 % 0.00 % +6.00 points at most 16 %" in page.plain_text
