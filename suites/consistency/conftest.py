"""Options of the consistency suite."""

from __future__ import annotations

import pytest

from pytest_cloudbench.options import Option, add_suite_options


def pytest_addoption(parser: pytest.Parser) -> None:
    add_suite_options(parser, "consistency", (
        Option("--consistency-files", {
            "type": int, "metavar": "N", "help": "how many files each check uses (default: by grid)",
        }, "one file or more", lambda value: value >= 1),
    ))  # fmt: skip
