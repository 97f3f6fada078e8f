"""What runs under test have in common: their options, and whether they are one process or a fleet of two agents."""

from __future__ import annotations

from typing import TypeAlias

import pytest

__all__ = ["ALONE", "FLEET", "QUIET", "SPREAD", "Spread"]

QUIET = "--cloudbench-max-lateness=60 -p no:anyio"
"""For PYTEST_ADDOPTS. That this machine is busy is not what is tested, and anyio's plugin takes a quarter of a small
run's CPU."""

Spread: TypeAlias = tuple[str, ...]

# Most users run agents, and in a fleet there is more to go wrong: one process is asked by the slow tests.
ALONE = pytest.param((), id="alone", marks=pytest.mark.slow)
FLEET = pytest.param(("-n", "2"), id="n2")
SPREAD = pytest.mark.parametrize("spread", [ALONE, FLEET])
