"""How long after its upload can a file be downloaded intact by another client? (thesis, section 4.2.5)

The thesis tried every 0.5 s, with clocks that agreed only to within a second, and printed negative times. Here the
reader retries after at most 10 ms, and the offset between the two clocks is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import KIB, MIB, format_counts, measure_readiness

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment, Payloads

PUBLISHED_MS = {
    "200 MB": 255, "100 MB": 21, "50 MB": -125, "10 MB": 102, "1 MB": -83, "100 KB": 412, "10 KB": 285, "1 KB": -198,
}  # fmt: skip
"""The column "Readiness time (ms)" of Table 4.5, which has one measurement per size."""

SOURCE = "BenchCloud thesis, section 4.2.5, Table 4.5, 2014: one file each, tried every 0.5 s, clocks within 1 s"

SIZES = {"quick": ("1 MB", "100 KB", "1 KB"), "paper": tuple(PUBLISHED_MS)}
FILES = {"quick": 5, "paper": 10}
LARGE_FILES = 3
"""The number of files of more than 10 MB. It is small because an emulator holds all of them in memory."""

DEADLINE_S = {"quick": 15.0, "paper": 120.0}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests with the sizes that the table prints."""
    if "size" in metafunc.fixturenames:
        sizes = SIZES[metafunc.config.option.cloudbench_grid]
        metafunc.parametrize("size", sizes, ids=lambda size: size.replace(" ", ""))


def parse_size(size: str) -> int:
    """Return a printed size in bytes. The thesis has 1024 bytes in 1 KB, and 1048576 in 1 MB (appendices A.1, A.3)."""
    number, _, unit = size.partition(" ")
    return int(number) * {"KB": KIB, "MB": MIB}[unit]


def test_table_4_5(experiment: Experiment, payloads: Payloads, size: str, pytestconfig: pytest.Config) -> None:
    """Table 4.5: from the end of the upload to the start of the first intact download by another client."""
    grid, size_bytes = pytestconfig.option.cloudbench_grid, parse_size(size)
    published: dict[str, Any] = {"readiness_s": PUBLISHED_MS[size] / 1e3, "source": SOURCE}
    result = measure_readiness(
        experiment,
        payloads.random(size_bytes),
        FILES[grid] if size_bytes <= 10 * MIB else LARGE_FILES,
        deadline_s=DEADLINE_S[grid],
        published=published,
    )
    if result["upload_errors"] and not result["files"]:
        pytest.fail(f"no upload succeeded: {format_counts(result['upload_errors'])}", pytrace=False)
    result.check()
