"""Fixtures of the tests of suites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.harness import Lab, lab_in


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A folder in which a suite is run. Processes that still run at the end are ended."""
    with lab_in(tmp_path, may_be_late=False) as suite_lab:
        yield suite_lab
