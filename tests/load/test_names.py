"""The names of entries are unique, and the same whenever the test is run again."""

from __future__ import annotations

import pytest

from pytest_cloudbench.load.names import Labels, entry_names, parse_label


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        (["", "", ""], ["", "2", "3"]),
        (["x", "x", "x"], ["x", "x-2", "x-3"]),
        (["x", "", "x", "y"], ["x", "2", "x-2", "y"]),
        (["x", "x-2", "x"], ["x", "x-2", "x-3"]),
        (["x", "x", "x-2"], ["x", "x-2", "x-2-2"]),
        (["2", ""], ["2", "2-2"]),
    ],
)
def test_labels_are_unique_and_unique_requests_stay(requested: list[str], expected: list[str]) -> None:
    labels = Labels()
    assert [labels.new(label) for label in requested] == expected


def test_the_label_ends_the_full_name_and_belongs_to_the_function_in_the_name() -> None:
    assert entry_names("t.py::C::test_it[a[0]-b]", "test_it[a[0]-b]", "up") == (
        "t.py::C::test_it[a[0]-b]#up", "test_it#up[a[0]-b]",
    )  # fmt: skip
    assert entry_names("t.py::test_it", "test_it", "up") == ("t.py::test_it#up", "test_it#up")
    assert entry_names("t.py::test_it[a]", "test_it[a]", "") == ("t.py::test_it[a]", "test_it[a]")
    for label in ("", "up", "up-2", "2"):
        assert parse_label("t.py::test_it[a]", entry_names("t.py::test_it[a]", "test_it[a]", label)[0]) == label


def test_a_label_is_read_whatever_path_the_test_is_stored_under() -> None:
    fullname, _ = entry_names("suites/iot/test_iot.py::test_it[a]", "test_it[a]", "up")
    assert parse_label("test_iot.py::test_it[a]", fullname) == "up"
    assert parse_label("load.bench.toml", "load.bench.toml#up") == "up"
