"""Fixtures of the fleet's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import Lab, lab_in


@pytest.fixture
def lab(tmp_path: Path, ctrl_c: None) -> Iterator[Lab]:
    """A folder for generated tests. Processes that still run at the end are killed."""
    with lab_in(tmp_path) as new_lab:
        yield new_lab
