"""Options of the Cloud-RAID suite."""

from __future__ import annotations

from math import inf

import pytest

from pytest_cloudbench import Option, add_suite_options


def pytest_addoption(parser: pytest.Parser) -> None:
    add_suite_options(parser, "cloudraid", (
        Option("--cloudraid-objects", {
            "type": int, "metavar": "N", "help": "how many objects each measurement uses (default: by grid)",
        }, "one object or more", lambda value: value >= 1),
        Option("--cloudraid-bytes", {
            "type": int, "metavar": "BYTES", "help": "the size of these objects (default: by grid)",
        }, "one byte or more", lambda value: value >= 1),
        Option("--cloudraid-slower", {
            "type": float, "metavar": "X", "default": 1.3,
            "help": "expected: with up to m children lost, reads take at most X times as long (default: %(default)s)",
        }, "a number above 0", lambda value: 0 < value < inf),
        Option("--cloudraid-over", {
            "type": float, "metavar": "SHARE", "default": 0.1,
            "help": "expected: uploads by throughput to emulated children take at most this share longer than the "
                    "least time by their profiles (default: %(default)s)",
        }, "a number of 0 or more", lambda value: 0 <= value < inf),
        Option("--cloudraid-failure", {
            "type": float, "metavar": "SHARE", "default": 0.15,
            "help": "the probability that a child fails, in the test that compares availability with its prediction "
                    "(default: %(default)s)",
        }, "a share from 0 to 1", lambda value: 0 <= value <= 1),
        Option("--cloudraid-shared", {
            "type": float, "metavar": "SHARE", "default": 0.0,
            "help": "the probability that all fail together, which the prediction leaves out (default: %(default)s)",
        }, "a share from 0 to 1", lambda value: 0 <= value <= 1),
    ))  # fmt: skip
