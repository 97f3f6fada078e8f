"""Names of entries, which are unique, the same whenever the test is run again, and can be taken apart."""

from __future__ import annotations

import pytest

from pytest_cloudbench.results.entry_names import Labels, entry_names, parse_label, split_name


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


def test_label_is_parsed_under_any_stored_path() -> None:
    fullname, _ = entry_names("suites/iot/test_iot.py::test_it[a]", "test_it[a]", "up")
    assert parse_label("test_iot.py::test_it[a]", fullname) == "up"
    assert parse_label("load.bench.toml", "load.bench.toml#up") == "up"


@pytest.mark.parametrize(
    ("path", "function", "parameters"),
    [
        ("t.py", "test_it", ""),
        ("t.py", "C::test_it", "[a]"),
        ("t.py", "test_it", "[a#1]"),
        ("t.py", "test_it", "[a]#b]"),
        ("t.py", "test_it", "[a[0]-#]"),
        ("t.py", "test_it", "[s3://a::b]"),
        ("t.py", "test_it", "[]"),
        ("a#b/[c]/t.py", "test_it", "[a]"),
        ("", "load.bench.toml", ""),
    ],
)
def test_full_name_is_split_into_its_parts(path: str, function: str, parameters: str) -> None:
    stored = f"{path}{'::' if path else ''}{function}{parameters}"
    for label in ("", "up", "2", "5-KiB", "a[1", "a[1]", "[a]"):
        name = split_name(entry_names(stored, stored, label)[0])
        assert (name.path, name.function, name.parameters, name.label) == (path, function, parameters, label)
        assert name.item == stored


def test_short_name_and_title_have_neither_file_nor_class() -> None:
    assert split_name("a/t.py::C::test_it[x::y#1]#up").short == "test_it[x::y#1]"
    assert split_name("a/t.py::C::test_it[x::y#1]#up").title == "test_it[x::y#1]#up"
    assert split_name("a/t.py::C::test_it[x]").title == "test_it[x]"
    assert split_name("a/t.py::C::test_it[x]#up").test == "a/t.py::C::test_it"
