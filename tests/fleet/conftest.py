"""Fixtures of the fleet's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import Lab, lab_in


@pytest.fixture
def lab(tmp_path: Path, ctrl_c: None) -> Iterator[Lab]:
    """A folder for generated tests; whatever still runs at the end is ended."""
    with lab_in(tmp_path) as made:
        yield made
