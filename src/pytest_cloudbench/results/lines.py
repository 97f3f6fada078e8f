"""Access lines that ``cloudbench line`` has measured: one JSON line each, in a file among the results.

Runs state the last one of each host. Nothing that is read is trusted.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results.machine import THIS_MACHINE
from pytest_cloudbench.results.places import make_results_folder

LINES = "lines.jsonl"
"""The name of the file, in the results folder."""

_MOST_BYTES = 16 << 20


def identify(command: Sequence[str] = ()) -> str:
    """Return what tells hosts of one name apart: a digest of the way to one, or of this machine's own name."""
    way = json.dumps([*command] if command else platform.node())
    return sha256(way.encode()).hexdigest()[:12]


def add_line(folder: Path, line: Mapping[str, Any]) -> Path:
    """Append a line, with ``host``, ``key`` (see ``identify``), ``provider`` and ``date``. Raises ResultsError."""
    make_results_folder(folder)
    path = folder / LINES
    try:
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(f"{json.dumps(dict(line))}\n")
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Return all lines in the order of measuring. What is not one is left out, as is a file that cannot be read."""
    lines = list[dict[str, Any]]()
    try:
        with (folder / LINES).open("rb") as file:
            rows = file.read(_MOST_BYTES).split(b"\n")
    except OSError:
        return lines
    for row in rows:
        try:
            value = json.loads(row) if row else None
        except (ValueError, RecursionError):  # a torn one, if two commands were killed while they wrote
            continue
        if isinstance(value, dict):
            lines.append(value)
    return lines


def find_line(
    lines: Sequence[Mapping[str, Any]], host: str, key: str, provider: str
) -> dict[str, Any]:  # fmt: skip
    """Return the last line of a host to a provider, or else to any other. Empty if none was measured."""
    own = [line for line in lines if line.get("host") == (host or THIS_MACHINE) and line.get("key") == key]
    chosen = [line for line in own if line.get("provider") == provider] or own
    return {name: value for name, value in chosen[-1].items() if name not in ("host", "key")} if chosen else {}
