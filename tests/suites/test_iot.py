"""Where the thesis's tables are repeated, and that the command line decides."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_S

ROOT = Path(__file__).parents[2]


def collected(*options: str) -> dict[str, set[str]]:
    """The providers of each test of the suite."""
    command = [sys.executable, "-m", "pytest", "suites/iot", "--collect-only", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANG_S)
    found: dict[str, set[str]] = {}
    for test, provider in re.findall(r"::(\w+)\[[\w-]*?-((?:emulated|folder):[^\]]+)\]", done.stdout):
        found.setdefault(test, set()).add(provider)
    return found


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("options", "of_tables", "of_others"),
    [
        ((), {"emulated:dropbox-2014"}, {"emulated:dropbox"}),
        (("--provider", "folder:/tmp"), {"folder:/tmp"}, {"folder:/tmp"}),
        (
            ("--provider", "emulated:ideal", "--provider", "emulated:dropbox"),
            {"emulated:ideal", "emulated:dropbox"}, {"emulated:ideal", "emulated:dropbox"},
        ),
    ],
)  # fmt: skip
def test_tables_default_to_the_profile_of_their_year(
    options: tuple[str, ...], of_tables: set[str], of_others: set[str]
) -> None:
    assert collected(*options) == {
        "test_table_4_2": of_tables,
        "test_table_4_3": of_tables,
        "test_worst_case": of_others,
        "test_average_case": of_others,
    }
