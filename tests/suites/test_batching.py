"""The batching suite: what a savingbox hands on is what its rules say, and the client behind it sends less."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from tests.tool import load_tool

ROOT = Path(__file__).resolve().parents[2]


def test_the_made_log_has_the_statistics_that_the_paper_prints() -> None:
    tool = load_tool("make_update_log")
    assert tool.FILE.read_text("ascii") == tool.text()
    with tool.FILE.open(encoding="ascii", newline="") as file:
        rows = [(float(row["due_s"]), int(row["size_bytes"])) for row in csv.DictReader(file)]
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(rows)]
    assert fmean(gaps) == pytest.approx(2.6, abs=0.01)
    assert rows[-1][0] == pytest.approx(4 * 3600, abs=1)
    size_bytes = sum(size for _, size in rows)
    assert 1.13 + len(rows) * 36_300 / size_bytes == pytest.approx(21, rel=0.05), "a session for each update"
    assert min(gaps) >= 0
