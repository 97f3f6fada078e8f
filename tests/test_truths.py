"""A run with doubts is left out and counted. A run without doubts is judged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.harness import FinishedRun
from tests.truths import JUDGED, Truths, summary

BUSY = "this machine was busy (CPU above 95%), which may have added to the times"
LATE = "engine saturated (lateness p99 900 ms is over 200 ms)"


def make_run(*lines: str) -> FinishedRun:
    return FinishedRun(0, "\n".join(lines), Path(), [], 1.0)


def entry(*, doubts: tuple[str, ...] = (), notes: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"doubts": list(doubts), "notes": list(notes)}


def test_a_run_without_a_doubt_is_judged(request: pytest.FixtureRequest) -> None:
    truths = Truths(request.node)
    assert truths.judged(make_run("1 passed in 2.00s"), entry(notes=("2 probes",)))
    with pytest.raises(AssertionError):
        truths.judged(make_run("1 failed in 2.00s"), entry())
    with pytest.raises(AssertionError):  # skipped without a reason is not left out
        truths.judged(make_run("1 skipped in 2.00s"), entry())
    request.node.user_properties.clear()


@pytest.mark.parametrize("info", [entry(notes=(BUSY,)), entry(doubts=(LATE,))])
def test_a_run_in_doubt_is_left_out_when_it_says_so(request: pytest.FixtureRequest, info: dict[str, Any]) -> None:
    truths, reason = Truths(request.node), next(iter(info["doubts"] + info["notes"]))
    assert not truths.judged(make_run(f"note: {reason}", "1 skipped in 2.00s"), info, entry())
    with pytest.raises(AssertionError, match="it does not say"):
        truths.judged(make_run("1 passed in 2.00s"), info)
    with pytest.raises(AssertionError):
        truths.judged(make_run(f"note: {reason}", "1 failed in 2.00s"), info)
    request.node.user_properties.clear()


def test_session_summary_counts_omitted_truths() -> None:
    def report(name: str, doubts: str) -> pytest.TestReport:
        properties: list[tuple[str, object]] = [(JUDGED, doubts)]
        return pytest.TestReport(name, ("", 0, ""), {}, "passed", None, "call", user_properties=properties)

    assert summary([]) == []
    assert summary([report("a", "")]) == ["set truths: 1 judged, 0 left out because the run had doubts"]
    lines = summary([report("a", ""), report("b", BUSY)])
    assert lines[:2] == ["set truths: 1 judged, 1 left out because the run had doubts", f"  b: {BUSY}"]


def test_only_files_that_name_truths_have_tests_of_them() -> None:
    """``make test`` collects only these files. A fixture that asks for truths in a test's place would hide the test."""
    asks = re.compile(r"@pytest.fixture.*\ndef \w+\([^)]*\btruths\b|mark\.truth")
    helpers = [path for path in Path(__file__).parent.rglob("*.py") if not path.name.startswith("test_")]
    assert [path.name for path in helpers if asks.search(path.read_text("utf-8"))] == []
