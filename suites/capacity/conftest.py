"""Options of the capacity suite."""

from __future__ import annotations

from math import inf

import pytest

from pytest_cloudbench import Option, add_suite_options


def pytest_addoption(parser: pytest.Parser) -> None:
    add_suite_options(parser, "capacity", (
        Option("--capacity-loss", {
            "type": float, "metavar": "SHARE", "default": 0.01,
            "help": "the loss rate that is still good enough (default: %(default)s)",
        }, "a share from 0 to 1", lambda value: 0 <= value <= 1),
        Option("--capacity-p99", {
            "type": float, "metavar": "SECONDS", "default": 2.0,
            "help": "the response time p99 that is still good enough (default: %(default)s)",
        }, "seconds above 0", lambda value: value > 0),
        Option("--capacity-seconds", {
            "type": float, "metavar": "SECONDS", "help": "how long each probe lasts (default: by grid)",
        }, "seconds above 0", lambda value: 0 < value < inf),
        Option("--capacity-ops", {
            "type": int, "metavar": "N", "help": "operations that a search may take (default: by grid)",
        }, "a whole number, 1 or more", lambda value: value >= 1),
    ))  # fmt: skip
