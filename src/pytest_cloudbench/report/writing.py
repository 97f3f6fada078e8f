"""A page as a file.

What may live here: where a page goes, whole or not at all.
"""

from __future__ import annotations

from pathlib import Path

from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.report.gathering import Gathered
from pytest_cloudbench.report.page import page
from pytest_cloudbench.support.opening import write_whole


def write(path: Path, gathered: Gathered) -> int:
    """Write a page, and return its size in bytes. A page that was there is replaced when the new one is complete.

    Raises ResultsError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.writelines(piece.encode(errors="replace") for piece in page(gathered)))
        return path.stat().st_size
    except OSError as error:
        raise ResultsError(f"{path}: cannot write the report: {error.strerror or error}") from error
