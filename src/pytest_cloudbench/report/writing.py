"""A page as a file.

What may live here: where a page goes, whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.report.gathering import Gathered
from pytest_cloudbench.report.page import page

__all__ = ["write"]


def write(path: Path, gathered: Gathered) -> int:
    """Write a page, and return its size in bytes. A page that was there is replaced when the new one is complete.

    Raises ResultsError.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
            for piece in page(gathered):
                file.write(piece)
        size_bytes = partial.stat().st_size
        os.replace(partial, path)
    except OSError as error:
        raise ResultsError(f"{path}: cannot write the report: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return size_bytes
