"""Access lines that ``cloudbench line`` has measured: one JSON line each, in a file among the results.

Runs state the last one of each host. Nothing that is read is trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_cloudbench.results.machine import THIS_MACHINE
from pytest_cloudbench.results.rows import add_row, read_rows

LINES = "lines.jsonl"
"""The name of the file, in the results folder."""


def add_line(folder: Path, line: Mapping[str, Any]) -> Path:
    """Append a line, with ``host``, ``key`` (``rows.identify``), ``provider`` and ``date``. Raises ResultsError."""
    add_row(folder / LINES, line)
    return folder / LINES


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Return all lines in the order of measuring. Other content is left out, as is a file that cannot be read."""
    return read_rows(folder / LINES)


def find_line(
    lines: Sequence[Mapping[str, Any]], host: str, key: str, provider: str
) -> dict[str, Any]:  # fmt: skip
    """Return the last line of a host to a provider, or else to any other. Empty if none was measured."""
    own = [line for line in lines if line.get("host") == (host or THIS_MACHINE) and line.get("key") == key]
    chosen = [line for line in own if line.get("provider") == provider] or own
    return {name: value for name, value in chosen[-1].items() if name not in ("host", "key")} if chosen else {}
