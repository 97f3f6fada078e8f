"""Options of the batching suite."""

from __future__ import annotations

from math import inf

import pytest

from pytest_cloudbench import Option, add_suite_options


def pytest_addoption(parser: pytest.Parser) -> None:
    add_suite_options(parser, "batching", (
        Option("--batching-bytes", {
            "type": int, "default": None, "metavar": "N",
            "help": "size of the growing file, instead of the grid's",
        }, "one byte or more", lambda value: value >= 1),
        Option("--batching-seconds", {
            "type": float, "default": None, "metavar": "S",
            "help": "how many seconds of the log, or of appends, to replay, instead of the grid's",
        }, "seconds above 0", lambda value: 0 < value < inf),
    ))  # fmt: skip
