"""Options of runs under test, and parameters that run them in one process or as a fleet of two agents."""

from __future__ import annotations

from typing import TypeAlias

import pytest

__all__ = ["ALONE", "FLEET", "LEAN", "QUIET", "SPREAD", "Spread"]

LEAN = "-p no:anyio -p no:randomly -Wignore:assertions"
"""Options for PYTEST_ADDOPTS. Without anyio's plugin a small run takes a quarter less CPU. Without pytest-randomly
tests run in their written order. The warning of `python -O` is ignored."""
QUIET = f"{LEAN} -ocloudbench_max_lateness=60"
"""The same with a large bound for lateness, for tests that are not about a busy machine."""

Spread: TypeAlias = tuple[str, ...]

# Most users run agents, and more can go wrong in a fleet: only the slow tests also use a single process.
ALONE = pytest.param((), id="alone", marks=pytest.mark.slow)
FLEET = pytest.param(("-n", "2"), id="n2")
SPREAD = pytest.mark.parametrize("spread", [ALONE, FLEET])
