"""Parts of the test suite, so that ``make test-all PART=2/4`` runs a quarter of it.

Each test is in exactly one part, which a hash chooses. The tests of a file stay together, because they share what is
expensive to make. Slow tests and those of large files are divided one by one: otherwise one part would take twice as
long as another.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

import pytest

__all__ = ["LARGE_FILE_TESTS", "choose_part", "mark_slow_cases", "parse_part", "part_of"]

LARGE_FILE_TESTS = 100
"""About 1 % of all tests."""


def mark_slow_cases(items: Iterable[pytest.Item]) -> None:
    """Mark all cases of a parametrized test as slow except the first n of ``quick_cases(n)``."""
    cases = Counter[str]()
    for item in items:
        if marker := item.get_closest_marker("quick_cases"):
            test = item.nodeid.partition("[")[0]
            cases[test] += 1
            if cases[test] > marker.args[0]:
                item.add_marker("slow")


def parse_part(text: str) -> tuple[int, int]:
    """Return the number of a part, from 1, and how many there are. Raises ValueError for anything but ``2/4``."""
    match = re.fullmatch(r"([1-9][0-9]{0,2})/([1-9][0-9]{0,2})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise ValueError(f"expected PART/PARTS, such as 2/4, and not {text!r}")
    return int(match[1]), int(match[2])


def part_of(nodeid: str, parts: int, *, is_alone: bool) -> int:
    """Return the part, from 1, of a test. Unless ``is_alone``, all tests of its file are in that part."""
    name = nodeid if is_alone else nodeid.partition("::")[0]
    return 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % parts


def choose_part(items: Iterable[pytest.Item], part: int, parts: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests of one part in their order, and all others."""
    items = list(items)
    sizes = Counter(item.nodeid.partition("::")[0] for item in items)
    chosen, others = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        is_large = sizes[item.nodeid.partition("::")[0]] > LARGE_FILE_TESTS
        is_alone = is_large or item.get_closest_marker("slow") is not None
        is_chosen = part_of(item.nodeid, parts, is_alone=is_alone) == part
        (chosen if is_chosen else others).append(item)
    return chosen, others
