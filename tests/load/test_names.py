"""Names of entries, which are unique, and the same whenever the test is run again."""

from __future__ import annotations

import pytest

from pytest_cloudbench.load.names import FileNames, Labels, entry_names, parse_label, strip_label
from pytest_cloudbench.load.request import Files
from pytest_cloudbench.workload.payload import Payloads


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


@pytest.mark.parametrize("stored", ["t.py::test_it", "t.py::test_it[a]", "t.py::test_it[a#1]", "t.py::test_it[a[0]-#]"])
def test_full_name_without_label_is_the_stored_test(stored: str) -> None:
    for label in ("", "up", "2"):
        assert strip_label(entry_names(stored, stored, label)[0]) == stored


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (FileNames(), "/run/s00003-000014.bin"),
        (FileNames(".100%s", "%d-", folder="50%/s00000-000000"), "/run/50%/s00000-000000/%d-s00003-000014.100%s"),
        (FileNames("", only="%s.txt"), "/run/%s.txt"),
        (FileNames(".b", key="k"), "/run/e700e715af992ed5.b"),
    ],
)
def test_paths_are_the_names_below_the_folder_even_with_percent_signs(names: FileNames, expected: str) -> None:
    files = Files("/run", Payloads("x").random(1), named=names)
    assert files.path(3, 14) == files.file(3, 14)[0] == expected == f"/run/{names.path(3, 14)}"
    assert names.namer()(3, 14) == names.name(3, 14) == expected.rpartition("/")[2]


def test_the_folder_of_files_may_look_like_a_format() -> None:
    assert Files("/100%d", Payloads("x").random(1)).path(123_456, 1_234_567) == "/100%d/s123456-1234567.bin"
