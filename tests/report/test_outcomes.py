"""The claims of a page: expectations, and the answers of the regression gate with their lines."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.report.stored import HOSTILE, entry, store
from tests.report.test_page import Page, make_page

TEST = "suites/iot/test_iot.py::test_worst_case"
BROKEN = (
    "gate broken: quiet_p50: +31 % (+22 to +41 %) worse than 15 runs; first suspect commit 4303970fed (of 3 since 1c2d)"
)
UNSURE = "gate inconclusive: baseline 3 of 10 runs (12 other runs had doubts)"
NOTHING = "These runs had asserts only"


def entry_with_gate(tmp_path: Path, gate: Any, **changes: Any) -> Page:
    return make_page(
        tmp_path, store(tmp_path / "0001_r.json", [entry(tmp_path, TEST, "emulated:a", gate=gate, **changes)])
    )


def rows(page: Page) -> list[list[str]]:
    """Return the cells of the table of answers, row by row."""
    part = page.text[page.text.index('id="good-and-bad"') : page.text.index('id="beside"')]
    sources = re.findall(r"<tr>(.*?)</tr>", part, re.DOTALL)
    cells = [
        [unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall(r"<t[dh].*?</t[dh]>", row)] for row in sources
    ]
    return [row for row in cells if row[0] != "verdict"]


@pytest.mark.parametrize(
    ("answer", "line", "outcome", "mark"),
    [("broken", BROKEN, "failed", "\u2717 broken"), ("inconclusive", UNSURE, "passed", "? inconclusive"),
     ("met", "gate met: quiet_p50: +1.0 % (-2.1 to +4.2 %) worse than 20 runs", "passed", "\u2713 met")],
)  # fmt: skip
def test_gate_answers_are_shown_with_their_lines(
    tmp_path: Path, answer: str, line: str, outcome: str, mark: str
) -> None:
    page = entry_with_gate(tmp_path, {"answer": answer, "lines": [line]}, outcome=outcome)
    assert rows(page) == [[mark, "iot: worst case, 1, emulated:a", line]]
    assert NOTHING not in page.plain_text
    assert page.plain_text.count(line) == 2, "and beside the experiment"
    assert f"{int(answer == 'broken')} \u2717 broken" in page.plain_text
    assert ("1 ? inconclusive" in page.plain_text) == (answer == "inconclusive")


def test_worst_claims_come_first(tmp_path: Path) -> None:
    unmet = "loss_rate <= 0: broken, measured 0.1"
    page = entry_with_gate(
        tmp_path, {"answer": "inconclusive", "lines": [UNSURE]}, outcome="failed",
        expectations=["ok_rate >= 0.9", unmet], expectations_unmet=[unmet], statuses=["met", "broken"],
    )  # fmt: skip
    assert [row[0] for row in rows(page)] == ["\u2717 broken", "? inconclusive", "\u2713 met"]
    assert "Inconclusive is not good" in page.plain_text


@pytest.mark.parametrize("gate", [None, [], "broken", {"answer": ["broken"]}, {"answer": "odd", "lines": ["x"]}])
def test_invalid_gate_answer_is_ignored(tmp_path: Path, gate: Any) -> None:
    assert NOTHING in entry_with_gate(tmp_path, gate).plain_text


def test_gate_answer_without_lines_is_shown(tmp_path: Path) -> None:
    assert rows(entry_with_gate(tmp_path, {"answer": "broken", "lines": 1}))[0][2] == "gate broken"


def test_gate_line_is_shown_as_text(tmp_path: Path) -> None:
    page = entry_with_gate(tmp_path, {"answer": "broken", "lines": [HOSTILE]})
    assert page.tags.count("script") == 1
