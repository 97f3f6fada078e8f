"""Folders of killed processes are removed by the next process, and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cloudbench.results.owner import make_private_folder
from tests.limits import HANG_S

MAKE = """
import sys
from pytest_cloudbench.results.owner import make_private_folder
print(make_private_folder("cloudbench-test-"), flush=True)
sys.stdin.read()
"""


def test_folder_of_killed_process_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (unknown := tmp_path / "cloudbench-test-unknown").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", MAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        (folder / "array.key").write_text("secret")
        first = make_private_folder("cloudbench-test-")
        assert folder.exists(), "its process lives"
        process.kill()
        process.wait(HANG_S)
        other = make_private_folder("cloudbench-other-")
        assert folder.exists(), "another prefix"
        second = make_private_folder("cloudbench-test-")
    assert not folder.exists()
    assert all(path.is_dir() for path in (unknown, first, second, other))
    assert {path.stat().st_mode & 0o777 for path in (first, second, other)} == {0o700}
