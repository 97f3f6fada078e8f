"""Options of the idle suite."""

from __future__ import annotations

from math import inf

import pytest

from pytest_cloudbench import Option, add_suite_options


def pytest_addoption(parser: pytest.Parser) -> None:
    add_suite_options(parser, "idle", (
        Option("--idle-seconds", {
            "type": float, "metavar": "SECONDS", "help": "how long the client is left alone (default: by grid)",
        }, "a second or more", lambda value: 1 <= value < inf),
    ))  # fmt: skip
