"""Writing a page to a file."""

from __future__ import annotations

from pathlib import Path

from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.report.gathering import GatheredRuns
from pytest_cloudbench.report.page import render_page
from pytest_cloudbench.support.opening import write_whole


def write_page(path: Path, gathered: GatheredRuns) -> int:
    """Write a page and return its size in bytes. An existing file is replaced when the new page is complete.

    Raises ResultsError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(
            path, lambda file: file.writelines(piece.encode(errors="replace") for piece in render_page(gathered))
        )
        return path.stat().st_size
    except OSError as error:
        raise ResultsError(f"{path}: cannot write the report: {error.strerror or error}") from error
