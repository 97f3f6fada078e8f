"""The thesis's tables run on the profile of their year, unless the command line names another provider."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_S

ROOT = Path(__file__).parents[2]


def collect_providers(*options: str) -> dict[str, set[str]]:
    """Return the providers of each test of the suite."""
    command = [sys.executable, "-m", "pytest", "suites/iot", "--collect-only", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANG_S)
    providers: dict[str, set[str]] = {}
    for test, provider in re.findall(r"::(\w+)\[[\w-]*?-((?:emulated|folder):[^\]]+)\]", done.stdout):
        providers.setdefault(test, set()).add(provider)
    return providers


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
    assert collect_providers(*options) == {
        "test_table_4_2": of_tables,
        "test_table_4_3": of_tables,
        "test_worst_case": of_others,
        "test_average_case": of_others,
    }
