"""Fixtures of the tests of suites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.harness import Lab, lab_in


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A folder that a suite is run in; whatever still runs at the end is ended."""
    with lab_in(tmp_path, may_be_late=False) as made:
        yield made
