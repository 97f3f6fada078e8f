"""The shipped conformance suite on an array of folders, which is a driver like any other and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drivers.test_driver_conformance import ALWAYS, assert_nothing_is_left, conform
from tests.fleet.harness import Lab, lab_in
from tests.provider_folders import make_folders


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_in(tmp_path) as new_lab:
        yield new_lab


@pytest.mark.slow
def test_an_array_of_three_folders_conforms(lab: Lab) -> None:
    children = ", ".join(f'"folder:{lab.folder}/objects/{number}"' for number in range(3))
    make_folders(lab.folder, [children])
    text = f'k = 2\nm = 1\nchildren = [{children}]\nkey = "array.key"\nfolder = "/"\nsegment_mib = 1\n'
    (lab.folder / "array.toml").write_text(text, "utf-8")
    run = conform(lab, "--provider", f"raid:{lab.folder}/array.toml", "-n", "2")
    assert (run.status, run.leftovers) == (0, []), run.text
    reasons = {line.rpartition(": ")[0].rpartition(": ")[2] for line in run.lines_with("SKIPPED")}
    assert reasons <= {"not declared"}, run.text
    passed = {line.rpartition("::test_")[2].partition("[")[0] for line in run.lines_with("PASSED")}
    assert passed >= ALWAYS, run.text
    assert [path for path in (run.folder / "objects").rglob("*") if path.is_file()] == []
    for empty in (run.folder / "objects").iterdir():
        empty.rmdir()
    assert_nothing_is_left(run)
