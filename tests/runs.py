"""Options of runs under test, and whether they are one process or a fleet of two agents."""

from __future__ import annotations

from typing import TypeAlias

import pytest

__all__ = ["ALONE", "FLEET", "LEAN", "QUIET", "SPREAD", "Spread"]

LEAN = "-p no:anyio -p no:randomly -Wignore:assertions"
"""For PYTEST_ADDOPTS: anyio's plugin takes a quarter of a small run's CPU, tests of a session run in the order in which
they stand, beside pytest-randomly, too, and `python -O` is a warning."""
QUIET = f"{LEAN} -ocloudbench_max_lateness=60"
"""The same for tests that are not about a busy machine."""

Spread: TypeAlias = tuple[str, ...]

# Most users run agents, and more can go wrong in a fleet: only the slow tests also use a single process.
ALONE = pytest.param((), id="alone", marks=pytest.mark.slow)
FLEET = pytest.param(("-n", "2"), id="n2")
SPREAD = pytest.mark.parametrize("spread", [ALONE, FLEET])
