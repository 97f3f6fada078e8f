"""The user's decisions about baselines are read back as they were written, and malformed files are ignored."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results.acceptance import (
    ACCEPTED_FOLDER,
    Accepted,
    former_names,
    read_acceptances,
    write_acceptance,
    write_rename,
)


def test_acceptances_are_read_back_in_order_of_runs(tmp_path: Path) -> None:
    later, earlier = Accepted("b", 20, "t::a", "stronger", 30), Accepted("a", 10)
    write_acceptance(tmp_path, later)
    write_acceptance(tmp_path, earlier)
    assert read_acceptances(tmp_path) == [earlier, later]
    assert (earlier.covers("t::b"), later.covers("t::b"), later.covers("t::a")) == (True, False, True)


def test_the_same_decision_twice_is_one(tmp_path: Path) -> None:
    assert write_acceptance(tmp_path, Accepted("a", 10)) == write_acceptance(tmp_path, Accepted("a", 10))
    assert len(read_acceptances(tmp_path)) == 1


@pytest.mark.parametrize(
    ("renamings", "former"),
    [
        ([], {}),
        ([("a", "b")], {"b": ["a"]}),
        ([("a", "b"), ("b", "c")], {"b": ["a"], "c": ["a", "b"]}),
        ([("b", "c"), ("c", "d"), ("a", "b")], {"b": ["a"], "c": ["a", "b"], "d": ["a", "b", "c"]}),
        ([("a", "c"), ("b", "c")], {"c": ["a", "b"]}),
        ([("a", "b"), ("b", "a")], {"a": ["b"], "b": ["a"]}),
        ([("a", "b"), ("b", "c"), ("c", "a")], {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]}),
        ([("a", "a")], {"a": ["a"]}),
        ([("x[1]#up", "y[1]#up")], {"y[1]#up": ["x[1]#up"]}),
    ],
)
def test_a_test_has_all_names_that_it_ever_had(
    tmp_path: Path, renamings: list[tuple[str, str]], former: dict[str, list[str]]
) -> None:
    for old, new in renamings:
        write_rename(tmp_path, old, new)
    assert {name: sorted(names) for name, names in former_names(tmp_path).items()} == former


def test_a_renaming_accepts_no_run_and_an_acceptance_renames_nothing(tmp_path: Path) -> None:
    write_rename(tmp_path, "a", "b")
    write_acceptance(tmp_path, Accepted("run", 10))
    assert (len(read_acceptances(tmp_path)), former_names(tmp_path)) == (1, {"b": ["a"]})


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"renamed": 1, "to": "b"}', '{"renamed": "a"}', '{"run": "a"}',
     '{"run": "a", "time_ms": "x"}', "[" * 5000, '{"renamed": "a", "to": ["b"]}', "\xff"],
)  # fmt: skip
def test_malformed_acceptance_files_are_ignored(tmp_path: Path, content: str) -> None:
    write_rename(tmp_path, "a", "b")
    write_acceptance(tmp_path, Accepted("run", 10))
    (tmp_path / ACCEPTED_FOLDER / "odd.accepted").write_bytes(content.encode("latin-1"))
    (tmp_path / ACCEPTED_FOLDER / "folder.accepted").mkdir()
    assert (len(read_acceptances(tmp_path)), former_names(tmp_path)) == (1, {"b": ["a"]})


def test_decisions_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_rename(tmp_path, f"old{number}", f"new{number}"), range(40)))
    assert len(former_names(tmp_path)) == 40


def test_a_storage_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / ACCEPTED_FOLDER).write_text("a file")
    with pytest.raises(ResultsError, match=f"{ACCEPTED_FOLDER}.* cannot be written: "):
        write_rename(tmp_path, "a", "b")
