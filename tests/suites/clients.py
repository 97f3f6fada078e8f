"""Helpers that run the real suites with sync clients whose behaviour is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.fleet.harness import FinishedRun, Lab

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
"""Parts of the reasons for which a client is skipped here. The last is that of a machine too busy to shape a link."""


def run_client_suite(lab: Lab, suite: str, *args: str) -> FinishedRun:
    """Run a suite. Skip with the suite's own reason if a link, a capture or a program is not available."""
    return skip_if_unavailable(run_suite(lab, suite, *args))


def skip_if_unavailable(run: FinishedRun) -> FinishedRun:
    """Return the run, or skip as ``run_client_suite`` does."""
    assert run.status in (0, 5), run.text
    reasons = [line for line in run.lines_with("SKIPPED") if any(text in line for text in _NOT_HERE)]
    if reasons:
        pytest.skip(reasons[0])
    return run


def entries_of(run: FinishedRun) -> Mapping[str, Mapping[str, Any]]:
    """Return the content of each entry by its label, or by the item's parameters if it has no label."""
    entries = {}
    for entry in run.document["benchmarks"]:
        _, _, label = entry["fullname"].partition("#")
        entries[label or entry["param"]] = entry["extra_info"]
    assert entries, run.text
    return entries
