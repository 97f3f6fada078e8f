"""Removal of the folders of killed runs while other processes remove them, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.model import ProviderSpec
from pytest_cloudbench.results import journal
from tests.limits import HANG_S

fcntl = pytest.importorskip("fcntl")


def leave_folder(store: Path, monkeypatch: pytest.MonkeyPatch) -> journal.LeftFolder:
    """Write the folder of a killed run, with files in three folders, and its entry in the journal."""
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(store.parent / "journal.jsonl"))
    for name in ("a", "b", "c"):
        (store / "cloudbench-x" / name).mkdir(parents=True)
        (store / "cloudbench-x" / name / "file").write_bytes(b"left")
    (store / "cloudbench-x" / journal.MARKER).write_text("x")
    journal.note_folder(f"folder:{store}", "/cloudbench-x")
    return journal.LeftFolder(f"folder:{store}", "/cloudbench-x")


class RacingDriver:
    """A driver whose first deletion comes a moment after another process has removed the same entry."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._is_first = driver, True

    def __getattr__(self, name: str) -> object:
        return getattr(self._driver, name)

    def delete(self, path: str) -> None:
        if self._is_first:
            self._is_first = False
            self._driver.delete(path)
        self._driver.delete(path)


def test_folder_removed_by_another_process_counts_as_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = leave_folder(tmp_path / "store", monkeypatch)
    driver = drivers.connect(ProviderSpec.parse(folder.provider), None, None)
    assert journal.remove_folder(RacingDriver(driver), folder) == ""  # type: ignore[arg-type]  # forwards the rest
    assert list((tmp_path / "store").iterdir()) == []
    assert journal.pending_folders() == ([], [])


def test_a_second_clean_waits_for_the_first_and_finds_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = leave_folder(tmp_path / "store", monkeypatch)
    command = [sys.executable, "-m", "pytest_cloudbench.commands.cli", "clean"]
    with journal.wait_to_clean(lambda: pytest.fail("nobody else is at work")):
        second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
        assert second.stdout is not None
        assert second.stdout.readline() == "another `cloudbench clean` is at work: waiting for it\n"
        driver = drivers.connect(ProviderSpec.parse(folder.provider), None, None)
        assert journal.remove_folder(driver, folder) == ""
    out, errors = second.communicate(timeout=HANG_S)
    assert (second.returncode, out, errors) == (0, "0 folders removed\n", "")


def test_waiting_without_a_journal_creates_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    with journal.wait_to_clean(lambda: pytest.fail("nobody else is at work")):
        assert journal.pending_folders() == ([], [])
    assert list(tmp_path.iterdir()) == []
