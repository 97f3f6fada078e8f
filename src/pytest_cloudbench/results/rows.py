"""Files of rows that commands and runs append to, one JSON object a line. Nothing that is read is trusted."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results.places import make_results_folder

_MOST_BYTES = 16 << 20


def identify(command: Sequence[str] = ()) -> str:
    """Return a digest of the command that reaches a host, or of this machine's own name, to tell namesakes apart."""
    text = json.dumps([*command] if command else platform.node())
    return sha256(text.encode()).hexdigest()[:12]


def add_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a file in the results folder. Raises ResultsError."""
    make_results_folder(path.parent)
    try:
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(f"{json.dumps(dict(row))}\n")
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written: {error.strerror}") from error


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return all rows in the order of writing, or the last ones of a large file.

    Lines that are not rows are left out, as is a file that cannot be read.
    """
    rows = list[dict[str, Any]]()
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_BYTES))
            texts = file.read(_MOST_BYTES).split(b"\n")
    except OSError:
        return rows
    for text in texts:
        try:
            value = json.loads(text) if text else None
        except (ValueError, RecursionError):  # a torn row, if two commands were killed while they wrote
            continue
        if isinstance(value, dict):
            rows.append(value)
    return rows
