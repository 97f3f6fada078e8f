"""Policy that all suites share: their results folder, their expectations and their grid."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cloudbench import adopt_suites


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Set the defaults of the suites before pytest-benchmark reads its options."""
    adopt_suites(config, Path(__file__).parent)


@pytest.fixture
def grid(request: pytest.FixtureRequest) -> str:
    """The grid of ``--grid``: ``quick`` or ``paper``."""
    name: str = request.config.option.cloudbench_grid
    return name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep warnings of libraries from failing a measurement, however strict the surrounding project is."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("default"))
