"""Options of the availability suite."""

from __future__ import annotations

import pytest

from pytest_cloudbench import Option, add_suite_options


def pytest_addoption(parser: pytest.Parser) -> None:
    add_suite_options(parser, "availability", (
        Option("--duration", {
            "type": parse_seconds, "metavar": "TIME",
            "help": "how long the series lasts, such as 90s, 6h or 20d (default: by grid)",
        }),
        Option("--pause", {
            "type": parse_seconds, "metavar": "TIME", "help": "pause between two rounds (default: by grid)",
        }),
        Option("--resume", {
            "nargs": "?", "const": "", "metavar": "FILE",
            "help": "continue the latest unfinished series of the same provider, or that of a state file",
        }),
        Option("--keep-files", {
            "action": "store_true", "help": "remove the files at the end of the series instead of after each round",
        }),
    ))  # fmt: skip


def parse_seconds(text: str) -> float:
    """Return the value of an option that is a duration. Raises pytest.UsageError."""
    from pytest_cloudbench import parse_duration_s

    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise pytest.UsageError(f"duration {text!r}: {error}") from None
