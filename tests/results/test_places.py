"""Commands look where pytest was told to store, in any way that pytest allows; pytest itself confirms it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results.places import USUAL, configured, in_order, make_results_folder
from tests.results.stored_runs import store_series

OPTION = "--benchmark-storage=file://stored"
FILES = {
    "pytest.ini": f"[pytest]\naddopts = -q {OPTION}\n",
    ".pytest.ini": f"[pytest]\naddopts = {OPTION}  # where\n",
    "pytest.toml": f'[pytest]\naddopts = ["{OPTION}"]\n',
    "pyproject.toml": f'[tool.pytest.ini_options]\naddopts = "{OPTION}"\n',
    "pyproject.toml, native": f'[tool.pytest]\naddopts = ["{OPTION}"]\n',
    "tox.ini": f"[tox]\nenvlist = a\n[pytest]\naddopts =\n    -q\n    {OPTION}\n",
    "setup.cfg": f"[tool:pytest]\naddopts = --benchmark-storage file://other {OPTION}\n",
}
TEST = """
from pytest_cloudbench.workload.arrival import Threads

def test_speed(experiment, payloads):
    experiment.run(payloads.random(10), arrival=Threads(1), files=2)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_every_configuration_file_of_pytest_is_read(name: str, folder: Path) -> None:
    (folder / name.partition(",")[0]).write_text(FILES[name], "utf-8")
    assert configured() == Path("stored")
    assert in_order() == [Path("stored"), *USUAL]


def test_pytest_stores_there_and_the_command_finds_it(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "pytest.ini").write_text(FILES["pytest.ini"], "utf-8")
    (folder / "test_speed.py").write_text(TEST, "utf-8")
    (folder / "f").mkdir()
    command = [sys.executable, "-m", "pytest", "--benchmark-autosave", "-p", "no:cacheprovider", "--provider=folder:f"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert len(list((folder / "stored").rglob("0001_*.json"))) == 1
    assert cli.main(["baseline", "list"]) == 0
    assert "0001_" in capfd.readouterr().out


def test_what_is_imported_goes_where_the_gate_looks(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store_series(folder / "there", [0.1])
    assert cli.main(["baseline", "export", "carried.zip", "--storage", "there"]) == 0
    (folder / "pytest.ini").write_text(FILES["pytest.ini"], "utf-8")
    assert cli.main(["baseline", "import", "carried.zip"]) == 0, capfd.readouterr()
    assert len(list((folder / "stored").rglob("0001_*.json"))) == 1


def test_the_nearest_file_with_a_section_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pytest.ini").write_text(FILES["pytest.ini"], "utf-8")
    (inner := folder / "inner").mkdir()
    monkeypatch.chdir(inner)
    assert configured() == Path("stored")
    (inner / "tox.ini").write_text("[tox]\nenvlist = a\n", "utf-8")
    (inner / "pyproject.toml").write_text('[project]\nname = "a"\n', "utf-8")
    assert configured() == Path("stored"), "neither is a configuration of pytest"
    (inner / "pytest.ini").write_text("", "utf-8")
    assert configured() is None, "an empty pytest.ini is one"


def test_the_environment_counts_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pytest.ini").write_text(FILES["pytest.ini"], "utf-8")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-q --benchmark-storage file://elsewhere")
    assert configured() == Path("elsewhere")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--benchmark-storage=elasticsearch+https://host/index")
    assert configured() is None, "no folder"


@pytest.mark.parametrize("text", [
    "[pytest", "[pytest]\naddopts = 'open", "[pytest]\naddopts\n", "[pytest]\naddopts = --benchmark-storage", "\udcff",
])  # fmt: skip
def test_a_file_that_cannot_be_read_says_nothing(text: str, folder: Path) -> None:
    (folder / "pytest.ini").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert configured() is None
    assert in_order() == list(USUAL)


def test_without_any_configuration_the_usual_folders_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert configured() is None
    assert cli.main(["history"]) != 0
    assert "there are no stored runs in results or .benchmarks" in capfd.readouterr().err


@pytest.mark.parametrize("place", ["/proc/results", "file/results", "file", "a" * 300])
def test_a_place_that_cannot_be_written_is_named_with_advice(place: str, folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(ResultsError, match="; choose another place with --cloudbench-results"):
        make_results_folder(folder / place)
