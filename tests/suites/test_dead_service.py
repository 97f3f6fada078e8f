"""A suite that measures nothing, because its service answers every operation with an error, does not pass."""

from __future__ import annotations

import pytest

from tests.fleet.harness import Lab
from tests.suites.harness import profile, run_suite

TESTS = {
    "concurrency": 2, "consistency": 8, "constancy": 2, "filesize": 2, "readiness": 3, "segmentation": 1, "transfer": 8,
}  # fmt: skip
"""The number of tests of suites whose numbers are those of operations that succeeded."""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("suite", TESTS)
def test_suite_fails_on_a_service_that_answers_only_errors(lab: Lab, suite: str) -> None:
    run = run_suite(lab, suite, *profile(lab, faults={"error_rate": 1.0}), "--max-ops", "60")
    assert run.counts() == {"failed": TESTS[suite]}, run.text
    assert "server" in run.text
    assert len(run.document["benchmarks"]) >= TESTS[suite], "what failed is stored"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("suite", ["filesize", "readiness", "concurrency"])
def test_suite_passes_on_a_service_that_answers_some_operations(lab: Lab, suite: str) -> None:
    run = run_suite(lab, suite, *profile(lab, faults={"error_rate": 0.1}), "--max-ops", "60")
    assert run.counts() == {"passed": TESTS[suite]}, run.text
