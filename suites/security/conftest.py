"""The choice of tests: those of providers, or those of the sync clients that ``--client`` names, or both."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_ignore_collect."""
    has_clients, has_providers = bool(config.option.cloudbench_client), bool(config.option.cloudbench_provider)
    if collection_path.name == "test_clients.py":
        return None if has_clients else True
    if collection_path.name == "test_security.py":
        return True if has_clients and not has_providers else None
    return None
