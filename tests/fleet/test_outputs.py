"""Optional files of a session: a job's summary, and bounds for a review."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pytest_cloudbench.commands import cli

from .harness import FOLDER, Lab

TESTS = """
    SMALL = dict(arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=3)

    @pytest.mark.parametrize("size", [50])
    def test_fine(experiment, payloads, size):
        experiment.run(payloads.random(size), **SMALL).check()

    def test_broken(experiment, payloads):
        experiment.run(payloads.random(50), **SMALL)
        assert False, "after it measured"

    def test_other():
        pass
"""
AGREED = """\
[[expect]]  # ours
provider = "folder:objects"
metric = "loss_rate"
at_most = 0.5
source = "an agreement"
date = 2026-01-01
where = { test = "test_fine" }
"""
OLD = """
[[expect]]
provider = "folder:objects"
metric = "response_p50"
at_most = 0.0  # nothing holds this
source = "observed 0 s"
date = 2026-01-01
where = { test = "test_fine" }
"""


@pytest.mark.slow
def test_bounds_and_a_summary_are_written_if_asked_for(lab: Lab) -> None:
    """One session of two agents adds a summary to a file, renews an observed bound and leaves the failed test out."""
    file, report = lab.folder / "e.toml", lab.folder / "summary.md"
    file.write_text(AGREED + OLD)
    report.write_text("of another step\n")
    run = lab.write(TESTS).run(
        *FOLDER, "-n", "2", "-ocloudbench_expectations=e.toml", "-ocloudbench_update_expectations=e.toml",
        "--cloudbench-summary", "summary.md", env={"GITHUB_STEP_SUMMARY": str(lab.folder / "not-asked-for.md")},
    )  # fmt: skip
    assert run.counts() == {"passed": 2, "failed": 1}, run.text
    agreed, renewed = tomllib.loads(file.read_text())["expect"]
    assert file.read_text().startswith(AGREED)
    assert renewed["at_most"] > 0
    assert renewed["source"].startswith("observed 0.")
    assert "at_most = 0.0  # nothing" not in file.read_text()
    assert "  # nothing holds this" in file.read_text()
    assert agreed["source"] == "an agreement"
    assert "expectations in e.toml: 1 renewed, 0 added, 0 unchanged, 5 left out (the run did not pass)" in run.text
    before, text = report.read_text().split("\n", 1)
    assert before == "of another step"
    assert "**2 experiments: 1 broken, 1 met**\n<br>pytest: 1 failed, 2 passed\n" in text
    assert "- `test_it.py::test_broken[folder:objects]`: the test failed\n" in text
    assert "| ✅ met | `test_it.py::test_fine[folder:objects-50]` | `folder:objects` |" in text
    assert not (lab.folder / "not-asked-for.md").exists()
    stored = {name.partition("[")[0]: entry["extra_info"]["verdict"] for name, entry in run.entries.items()}
    assert stored == {"test_fine": "met", "test_broken": "none"}
    _check_export(lab.folder)


def _check_export(folder: Path) -> None:
    """Check that the stored entries can be exported, without unknown values."""
    path = folder / "metrics.txt"
    assert cli.main(["export", str(folder / "out.json"), "--format", "openmetrics", "-o", str(path)]) == 0
    assert path.read_text().endswith("# EOF\n")
    assert "cloudbench_response_p99_seconds{" in path.read_text()
    assert "first_byte" not in path.read_text()


def test_run_with_doubts_sets_no_bounds_but_is_summarized(lab: Lab) -> None:
    run = lab.write(TESTS).run(
        *FOLDER, "-k", "test_fine", "--max-ops", "4", "-ocloudbench_update_expectations=new.toml",
        "--cloudbench-summary", "summary.md",
    )  # fmt: skip
    assert run.status == 0, run.text
    assert "expectations in new.toml: 0 renewed, 0 added, 0 unchanged, 5 left out (the run had doubts)" in run.text
    assert not (lab.folder / "new.toml").exists()
    assert "--max-ops 4 is used up" in (lab.folder / "summary.md").read_text()


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (["--cloudbench-summary", "no/where.md"], "expected a file in a folder that exists"),
        (["--cloudbench-report", "."], "--cloudbench-report .: expected a file, and this is a folder"),
        (["-ocloudbench_update_expectations=bad.toml"], "bad.toml: is not valid TOML"),
    ],
)
def test_unwritable_output_file_is_refused_before_anything_starts(option: list[str], reason: str, lab: Lab) -> None:
    (lab.folder / "bad.toml").write_text("[[expect\n")
    run = lab.write(TESTS).run(*FOLDER, *option)
    assert run.status == 4
    assert reason in run.text
    assert "passed" not in run.text
