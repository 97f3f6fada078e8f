"""Runs the real suites with sync clients whose behaviour is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.fleet.harness import Ended, Lab

from .harness import run_suite

_NOT_HERE = (
    "a link needs",
    "network namespaces work here",
    "dumpcap",
    "is not installed",
    "sshd as root needs",
    "capture",
    "inconclusive: link",
)
"""Also if this machine, busy with other work, could not make a link as requested."""


def ran(lab: Lab, suite: str, *args: str) -> Ended:
    """Run it; skips if a link, a capture or a program is not available, with the suite's own reason."""
    return not_skipped(run_suite(lab, suite, *args))


def not_skipped(run: Ended) -> Ended:
    """Return the run, or skip as ``ran`` does."""
    assert run.status in (0, 5), run.text
    reasons = [line for line in run.lines_with("SKIPPED") if any(text in line for text in _NOT_HERE)]
    if reasons:
        pytest.skip(reasons[0])
    return run


def entries_of(run: Ended) -> Mapping[str, Mapping[str, Any]]:
    """What each entry says, by its label, or by the item's parameters where it has none."""
    found = {}
    for entry in run.document["benchmarks"]:
        _, _, label = entry["fullname"].partition("#")
        found[label or entry["param"]] = entry["extra_info"]
    assert found, run.text
    return found
