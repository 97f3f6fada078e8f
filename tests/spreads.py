"""Whether a run under test is one process or a fleet of two agents.

Most users run agents, and in a fleet there is more to go wrong: one process is asked by the slow tests.
"""

from __future__ import annotations

from typing import TypeAlias

import pytest

__all__ = ["ALONE", "FLEET", "SPREAD", "Spread"]

Spread: TypeAlias = tuple[str, ...]

ALONE = pytest.param((), id="alone", marks=pytest.mark.slow)
FLEET = pytest.param(("-n", "2"), id="n2")
SPREAD = pytest.mark.parametrize("spread", [ALONE, FLEET])
