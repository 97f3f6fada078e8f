"""Helpers that run the real suites against emulators whose behaviour is known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fleet.harness import FinishedRun, Lab

SUITES = Path(__file__).resolve().parents[2] / "suites"


def profile(lab: Lab, api: str = "dropbox", **sections: Mapping[str, Any]) -> tuple[str, str]:
    """Write a behaviour profile and return the options that choose it."""
    lines = ["[meta]", 'name = "known"', f'api = "{api}"', 'description = "a truth to be found again"']
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {value}" for key, value in values.items())]
    (lab.folder / "known.toml").write_text("\n".join(lines) + "\n")
    return "--provider", "emulated:./known.toml"


def run_suite(lab: Lab, suite: str, *args: str) -> FinishedRun:
    """Run ``suites/SUITE``, or one of its tests (``SUITE::test``)."""
    folder, _, test = suite.partition("::")
    path = SUITES / folder / f"test_{folder}.py"
    return lab.run(f"{path}{'::' if test else ''}{test}", "-rs", *args)


def conclusion(run: FinishedRun, label: str, test: str = "") -> Mapping[str, Any]:
    """Return the entry whose full name ends with ``#label``, or the entry without a label if ``label`` is empty."""
    ending = f"#{label}" if label else "]"
    entries = [
        entry
        for entry in run.document["benchmarks"]
        if entry["fullname"].endswith(ending) and test in entry["fullname"]
    ]
    assert len(entries) == 1, [entry["fullname"] for entry in run.document["benchmarks"]]
    info: Mapping[str, Any] = entries[0]["extra_info"]
    return info
