"""The suite's option, and the choice of tests: of providers, of the sync clients that ``--client`` names, or both."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cloudbench import Option, add_suite_options


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's option."""
    add_suite_options(parser, "security", (
        Option("--security-copies", {
            "type": int, "default": 1, "metavar": "K",
            "help": "how many copies the first account stores before the second uploads a file that the first has "
            "(default: %(default)s; services may wait for 20)",
        }, "one copy or more", lambda value: value >= 1),
    ))  # fmt: skip


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests of clients, or of providers, if the command line names only the other kind."""
    has_clients, has_providers = bool(config.option.cloudbench_client), bool(config.option.cloudbench_provider)
    if collection_path.name == "test_clients.py":
        return None if has_clients else True
    if collection_path.name == "test_security.py":
        return True if has_clients and not has_providers else None
    return None
