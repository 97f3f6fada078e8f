"""Options of the datacenters suite, and the choice of its tests: of providers, or of sync clients, or of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cloudbench import Option, add_suite_options


def pytest_addoption(parser: pytest.Parser) -> None:
    add_suite_options(parser, "datacenters", (
        Option("--datacenters-here", {
            "metavar": "PLACE", "help": "where this machine is: a city, or degrees such as 59.91,10.75",
        }),
    ))  # fmt: skip


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests of clients, or of providers, if the command line names only the other kind."""
    has_clients, has_providers = bool(config.option.cloudbench_client), bool(config.option.cloudbench_provider)
    if collection_path.name == "test_clients.py":
        return None if has_clients else True
    if collection_path.name == "test_datacenters.py":
        return True if has_clients and not has_providers else None
    return None
