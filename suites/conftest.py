"""Policy of the suites: where their results go, and which expectations they bring."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cloudbench.fleet.policy import adopt


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Runs before pytest-benchmark reads its options."""
    adopt(config, Path(__file__).parent)
