"""Options of the consistency suite."""

from __future__ import annotations

from math import inf

import pytest

from pytest_cloudbench import CONSISTENCY_SETTLE_S, Option, add_suite_options


def pytest_addoption(parser: pytest.Parser) -> None:
    add_suite_options(parser, "consistency", (
        Option("--consistency-files", {
            "type": int, "metavar": "N", "help": "how many files each check uses (default: by grid)",
        }, "one file or more", lambda value: value >= 1),
        Option("--consistency-settle", {
            "type": float, "default": CONSISTENCY_SETTLE_S, "metavar": "S",
            "help": "seconds without a stale read that end a file's reading, at least (default: %(default)g)",
        }, "a time above 0", lambda value: 0 < value < inf),
    ))  # fmt: skip
