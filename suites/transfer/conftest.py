"""Options of the transfer suite."""

from __future__ import annotations

import pytest

from pytest_cloudbench import Option, add_suite_options


def pytest_addoption(parser: pytest.Parser) -> None:
    add_suite_options(parser, "transfer", (
        Option("--cloudbench-capture", {
            "nargs": "?", "const": "", "metavar": "INTERFACE",
            "help": "repeat each transfer under capture and compare bytes on the wire with the payload; default "
                    "interface: the loopback",
        }),
        Option("--transfer-largest", {
            "type": int, "metavar": "BYTES", "help": "leave out larger files (default: none)",
        }, "one byte or more", lambda value: value >= 1),
    ))  # fmt: skip
