"""Sets of files: sizes, kinds, different content for a different seed, and all files appearing at once."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.lab.sync.changes import Workload, put
from pytest_cloudbench.model import UsageError


def test_workload_appears_with_its_number_and_size_of_files(tmp_path: Path) -> None:
    before_ns = time.time_ns()
    moved_ns = put(Workload(3, 5_000), tmp_path / "folder", tmp_path / "stage", "seed")
    assert before_ns <= moved_ns <= time.time_ns()
    files = sorted((tmp_path / "folder").iterdir())
    assert [path.stat().st_size for path in files] == [5_000] * 3
    assert len({path.read_bytes() for path in files}) == 3
    assert list((tmp_path / "stage").iterdir()) == []


@pytest.mark.parametrize(("kind", "min_ratio", "max_ratio"), [("binary", 0.99, 1.01), ("text", 0.2, 0.6)])
def test_kinds_of_content_differ_in_compressibility(kind: str, min_ratio: float, max_ratio: float) -> None:
    ((_, content),) = Workload(1, 200_000, kind).contents("seed")
    data = content.read(0, 200_000)
    assert len(data) == 200_000
    assert min_ratio <= len(zlib.compress(data)) / len(data) <= max_ratio


@given(st.text(max_size=8), st.text(max_size=8))
def test_another_seed_is_other_content(one: str, other: str) -> None:
    ((_, first),) = Workload(1, 64).contents(one)
    ((_, second),) = Workload(1, 64).contents(other)
    assert (first.read(0, 64) == second.read(0, 64)) == (one == other)


@pytest.mark.parametrize("wrong", [(0, 1, "binary"), (1, 0, "binary"), (1, 1, "image")])
def test_a_set_that_cannot_be_is_refused(wrong: tuple[int, int, str]) -> None:
    with pytest.raises(UsageError):
        Workload(*wrong)
