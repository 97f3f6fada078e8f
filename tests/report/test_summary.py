"""A run as Markdown: broken experiments come first, unknown values are dashes, and no name becomes markup."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_cloudbench.report.export import StoredRun
from pytest_cloudbench.report.summary import render_summary


def info(**changes: Any) -> dict[str, Any]:
    return {
        "provider": "emulated:ideal", "emulated": True, "outcome": "passed", "doubts": [], "notes": [], "ops": 1200,
        "operation": "put", "machine": "Linux, 2 x CPU", "verdict": "met", "expectations_unmet": [],
        "loss_rate": 0.01, "throttled": 3, "failed": 0, "response_p50": 0.0118, "response_p99": None, **changes,
    }  # fmt: skip


def summary_lines(*entries: tuple[str, dict[str, Any]], **options: Any) -> list[str]:
    return render_summary([StoredRun("r1", None, "", "", entries)], **options).splitlines()


def cells(line: str) -> list[str]:
    """Return the cells of a row, which GitHub separates at bars without a backslash."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_broken_experiment_comes_first_with_reason() -> None:
    lines = summary_lines(
        ("t::fine", info()), ("t::bad", info(verdict="broken", expectations_unmet=["loss_rate <= 0: broken"]))
    )
    assert "**2 experiments: 1 broken, 1 met**" in lines
    rows = [cells(line) for line in lines if line.startswith("| ")]
    assert [row[1] for row in rows] == ["experiment", "`t::bad`", "`t::fine`"]
    assert rows[0][3:] == ["ops", "loss rate", "throttled", "failed", "p50 ms", "p99 ms"]
    assert rows[1] == ["❌ broken", "`t::bad`", "`emulated:ideal` (emulated)", "1,200", "1.00 %", "3", "0", "11.8", "-"]
    assert lines[lines.index("### Broken") + 2] == "- `t::bad`: loss_rate &#60;= 0: broken"
    assert "2 numbers are unknown: -" in lines
    assert "<br>Emulated services measure the client and the loopback, not the service." in lines


def test_a_failed_test_is_broken_whatever_was_expected() -> None:
    lines = summary_lines(("t", info(outcome="failed")), ("u", info(outcome="failed", verdict="inconclusive")))
    assert "**2 experiments: 1 broken, 1 inconclusive**" in lines
    assert lines[lines.index("### Broken") + 2] == "- `t`: the test failed"


def test_doubts_are_marked_and_listed() -> None:
    lines = summary_lines(("t", info(doubts=["engine saturated"], verdict="inconclusive", emulated=False)))
    assert any("⚠️ inconclusive | `t` **?** |" in line for line in lines)
    assert lines[lines.index("### Doubts: these numbers may be wrong") + 2] == "- `t`: engine saturated"
    assert not [line for line in lines if "emulated" in line.lower().replace("emulated:ideal", "")]


def test_metrics_select_the_columns() -> None:
    head = next(
        line for line in summary_lines(("t", info()), metrics=["response_p99", "throughput"]) if line.startswith("| v")
    )
    assert cells(head) == ["verdict", "experiment", "provider", "p99 ms", "throughput MB/s"]


@pytest.mark.parametrize(
    ("verdict", "answer", "shown_verdict"),
    [("met", "broken", "❌ broken"), ("none", "inconclusive", "⚠️ inconclusive"), ("none", "met", "✅ met"),
     ("broken", "met", "❌ broken"), ("met", ["odd"], "✅ met")],
)  # fmt: skip
def test_gate_answer_changes_the_verdict(verdict: str, answer: Any, shown_verdict: str) -> None:
    gate = {"answer": answer, "lines": ["gate: response_p50 is 30 % slower"]}
    lines = summary_lines(("t", info(verdict=verdict, gate=gate, expectations_unmet=[])))
    assert any(line.startswith(f"| {shown_verdict} | `t` |") for line in lines)
    assert ("- `t`: gate: response_p50 is 30 % slower" in lines) == (answer in ("broken", "inconclusive"))


def test_answer_in_words_has_a_cell_and_only_an_unknown_one_is_counted() -> None:
    answers = {"chunking": "yes", "is_chunking": 1, "delta": "no", "is_delta": 0, "bundling": "unknown",
               "is_bundling": None}  # fmt: skip
    lines = summary_lines(("t", {"provider": "rclone", "verdict": "met", **answers}))
    head, row = (cells(line)[3:] for line in lines if line.startswith("| "))
    assert dict(zip(head, row, strict=True)) == {"chunking": "yes", "delta": "no", "bundling": "-"}
    assert "1 number is unknown: -" in lines


def test_empty_session_is_reported() -> None:
    assert "**no experiment was measured**" in summary_lines(remark="pytest: 1 failed")
    assert "<br>pytest: 1 failed" in summary_lines(remark="pytest: 1 failed")


def test_older_run_shows_unmet_expectations() -> None:
    old = {key: value for key, value in info(expectations_unmet=["x: broken"]).items() if key != "verdict"}
    lines = summary_lines(("t", old))
    assert "**1 experiment: 1 of a version that stored no verdict**" in lines
    assert lines[lines.index("### Not met") + 2] == "- `t`: x: broken"


HOSTILE = [
    "a|b", "a\\|b", "``x`", "<script>alert(1)</script>", "[x](https://evil.example)", "![x](y)", "@team", "# head",
    "https://evil.example", "www.evil.example", "**bold**", "a\n\n## b\r\x1b[31m", "__x__", "~~y~~", "&lt;", "",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_have_no_markup(text: str) -> None:
    hostile = info(
        provider=text, doubts=[text], notes=[text], expectations_unmet=[text], verdict="broken", machine=text
    )
    lines = summary_lines((text, hostile), remark=text)
    plain = summary_lines(
        ("t", info(provider="p", doubts=["d"], notes=["n"], expectations_unmet=["u"], verdict="broken"))
    )
    assert [line[:3] for line in lines if line[:1] == "#"] == [line[:3] for line in plain if line[:1] == "#"]
    (head, row) = (cells(line) for line in lines if line.startswith("| "))
    assert len(row) == len(head)
    remaining = "\n".join(lines)
    for harmless in (r"`[^`|\\\n]*`", r"&#\d+;", "<code>", "</code>", "<br>", "<!-- -->"):
        remaining = re.sub(harmless, "\0", remaining)
    assert not re.findall(r"[<>`]|\]\(|@\w|://|www\.|__|~~", remaining)
    assert re.findall(r"\*\*.*?\*\*", remaining) == ["**1 experiment: 1 broken**", "**?**"]


@pytest.mark.slow
def test_summary_stays_below_githubs_limit() -> None:
    long = "x" * 5000
    entries = [(f"{at}{long}", info(doubts=[long], notes=[f"{at}{long}"], verdict="broken", expectations_unmet=[long]))
               for at in range(2000)]  # fmt: skip
    text = "\n".join(summary_lines(*entries))
    assert len(text.encode()) < 1024 * 1024
    assert "1,500 more experiments are left out here, and in the stored run." in text
    assert text.count("\n- and 1800 more") == 3


def comparison_info(**changes: Any) -> dict[str, Any]:
    """Return the stored extra_info of an entry of two sides."""
    difference = {"a": 0.07, "b": 0.14, "is_points": False, "change": 1.0, "low": 0.8, "high": 1.2, "pairs": 4,
                  "margin": 0.1, "answer": "A better", "needed": None, "why": ""}  # fmt: skip
    rate = {**difference, "a": 0.0, "b": 0.0, "is_points": True, "change": 0.0, "low": -0.001, "high": 0.001,
            "answer": "no difference", "margin": 0.005}  # fmt: skip
    comparison = {"A": "s3://old", "B": "s3://<new>", "deciding": ["quiet_p50"], "pairs": 4, "minutes": 0.5,
            "stopped": "decided", "blocks": [],
            "differences": {"quiet_p50": difference, "failed_rate": rate}}  # fmt: skip
    return {"provider": "s3://old versus s3://<new>", "outcome": "passed", "doubts": [], "notes": [], "ops": 800,
            "operation": "put", "versus": comparison, **changes}  # fmt: skip


def test_kinds_of_operations_of_a_mixed_load_have_a_table() -> None:
    figures = {"ops": 1600, "throttled_rate": 0.25, "failed_rate": 0.005, "corrupt_rate": 0.0, "response_p50": 0.0123}
    lines = summary_lines(("t::one", info(by_operation={"get|put": figures})), ("t::two", info()))
    (row,) = [line for line in lines if "1,600" in line]
    assert cells(lines[lines.index(row) - 2])[:3] == ["experiment", "operation", "ops"]
    assert cells(row) == ["`t::one`", "get&#124;put", "1,600", "400", "8", "0", "12.3", "-", "-"]


def test_comparisons_have_their_own_table() -> None:
    lines = summary_lines(("t::one", info()), ("t::two", comparison_info()))
    assert "**2 experiments: 1 met, 1 without an expectation**" in lines
    head, _, first, second = lines[lines.index("### A versus B") + 2 :][:4]
    assert cells(head) == ["verdict", "experiment", "metric", "A", "B", "B against A", "answer"]
    assert cells(first)[:2] == ["-", "`t::two`: `s3://old` versus `s3://<new>`"]
    assert cells(first)[2:] == ["quiet_p50", "70 ms", "140 ms", "+100.0 % &#91;+80.0, +120.0&#93;", "A better"]
    assert cells(second)[:3] == ["", "", "failed_rate"]
    assert cells(second)[-1] == "no difference above 0.5 points"
    assert sum("t::two" in line for line in lines) == 1, "it is not a row of the other table"


def test_broken_comparison_comes_first_with_its_line() -> None:
    gate = {"answer": "broken", "lines": ["gate broken: B is worse than A: quiet_p50 +100 %"]}
    lines = summary_lines(("t::fine", comparison_info()), ("t::bad", comparison_info(gate=gate)))
    assert "**2 experiments: 1 broken, 1 without an expectation**" in lines
    rows = [cells(line) for line in lines if line.startswith("| ❌")]
    assert [row[1].partition(" ")[0] for row in rows] == ["`t::bad`:"]
    assert lines[lines.index("### A versus B") + 4].startswith("| ❌ broken | `t::bad`:")
    assert lines[lines.index("### Broken") + 2].startswith("- `t::bad`: gate broken: B is worse than A: quiet_p50")


@pytest.mark.parametrize("comparison", [{}, {"differences": 1}, {"differences": {"x": {}}, "deciding": []}])
def test_comparison_of_unknown_form_is_shown_as_unknown(comparison: dict[str, Any]) -> None:
    (row,) = [cells(line) for line in summary_lines(("t::odd", comparison_info(versus=comparison))) if "t::odd" in line]
    assert row[2:] == ["-"] * 5
