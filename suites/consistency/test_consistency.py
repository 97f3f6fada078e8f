"""What do reads return after a write was confirmed, and for how long may they return anything else?

One client writes, and another one in the same process reads each file repeatedly. docs/suites/consistency.md defines
stale reads and the numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_cloudbench import CONSISTENCY_CHECKS, format_counts, measure_consistency

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment, Payloads

FILES = {"quick": 10, "paper": 200}
DEADLINE_S = {"quick": 15.0, "paper": 300.0}
SIZE_BYTES = 1000


@pytest.fixture
def files(pytestconfig: pytest.Config, grid: str) -> int:
    """The number of files that each check uses."""
    option: int | None = pytestconfig.option.cloudbench_consistency_files
    return FILES[grid] if option is None else option


@pytest.mark.parametrize("check", CONSISTENCY_CHECKS)
def test_consistency(
    experiment: Experiment, payloads: Payloads, check: str, files: int, grid: str, pytestconfig: pytest.Config
) -> None:
    """Reads and listings after a write, an overwrite and a removal, and simultaneous and repeated writes."""
    capabilities = experiment.provider.driver.capabilities
    if "overwrite" in check and not capabilities.overwrites:
        pytest.skip(f"{experiment.provider.spec}: this driver does not overwrite")
    settle_s: float = pytestconfig.option.cloudbench_consistency_settle
    result = measure_consistency(
        experiment, payloads.random(SIZE_BYTES), check, files, deadline_s=DEADLINE_S[grid], settle_s=settle_s
    )
    if result["problems"] and not result["files"]:
        pytest.fail(f"no file could be judged: {format_counts(result['problems'])}", pytrace=False)
    result.check()
