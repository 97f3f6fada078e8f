"""Names of a run's files."""

from __future__ import annotations

import pytest

from pytest_cloudbench.load.names import FileNames
from pytest_cloudbench.load.request import Files
from pytest_cloudbench.workload.payload import Payloads


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
