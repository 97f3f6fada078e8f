"""Commands find runs in the folder that pytest is configured to store them in, by any of its ways to configure it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results.places import (
    configured_storage,
    find_results_folder,
    make_results_folder,
    project_folder,
    storage_folders,
)
from tests.results.stored_runs import store_series

USUAL = (Path("results"), Path(".benchmarks"))
OPTION = "--benchmark-storage=file://stored"
FILES = {
    "pytest.ini": f"[pytest]\naddopts = -q {OPTION}\n",
    ".pytest.ini": f"[pytest]\naddopts = {OPTION}  # where\n",
    "pytest.toml": f'[pytest]\naddopts = ["{OPTION}"]\n',
    "pyproject.toml": f'[tool.pytest.ini_options]\naddopts = "{OPTION}"\n',
    "pyproject.toml, native": f'[tool.pytest]\naddopts = ["{OPTION}"]\n',
    "tox.ini": f"[tox]\nenvlist = a\n[pytest]\naddopts =\n    -q\n    {OPTION}\n",
    "pytest.ini, without file://": "[pytest]\naddopts = --benchmark-storage=stored\n",
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
    assert configured_storage() == Path("stored")
    assert storage_folders() == [Path("stored"), *USUAL]


def test_pytest_stores_there_and_the_command_finds_it(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "pytest.ini").write_text(FILES["pytest.ini"], "utf-8")
    (folder / "test_speed.py").write_text(TEST, "utf-8")
    (folder / "f").mkdir()
    command = [sys.executable, "-m", "pytest", "--benchmark-autosave", "-p", "no:cacheprovider", "--provider=folder:f"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert len(list((folder / "stored").rglob("0001_*.json"))) == 1
    assert cli.main(["baseline", "list"]) == 0
    assert "0001_" in capfd.readouterr().out


def run_pytest(*options: str, cwd: Path) -> str:
    """Run pytest in ``cwd``, with a folder there as the provider. Return its output."""
    (cwd / "f").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--provider=folder:f", *options]
    # pytest-benchmark measures nothing in a worker, and this test may run in one.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=cwd, env=env, check=True, capture_output=True, timeout=120, text=True)
    return done.stdout + done.stderr


def stored_files(folder: Path) -> list[str]:
    return sorted(path.name.partition("_")[0] for path in folder.rglob("0*.json"))


@pytest.mark.slow
def test_experiments_are_stored_in_the_project_from_any_of_its_folders(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    (inner := folder / "inner").mkdir()
    for directory in (folder, inner):
        (directory / "test_speed.py").write_text(TEST, "utf-8")
    first = run_pytest("--benchmark-autosave", "test_speed.py", cwd=folder)
    second = run_pytest("--benchmark-autosave", "--benchmark-compare", cwd=inner)
    assert stored_files(folder / "results") == ["0001", "0002"]
    assert stored_files(folder / ".benchmarks") == []
    assert not (inner / "results").exists()
    assert "benchmark: 1 tests" not in first, "pytest-benchmark's own table is off by default"
    assert "Comparing against benchmarks from" in second
    assert "Can't compare" not in second
    monkeypatch.chdir(inner)
    assert cli.main(["show", "last"]) == 0
    assert "0002_" in capfd.readouterr().out


def test_options_in_a_file_of_arguments_count_as_typed(folder: Path) -> None:
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    (inner := folder / "inner").mkdir()
    (inner / "test_speed.py").write_text(TEST, "utf-8")
    (inner / "more").write_text("--cloudbench-results=records\n", "utf-8")
    (inner / "options").write_text("@more\n--benchmark-storage=file://stored\n--benchmark-autosave\n", "utf-8")
    run_pytest("@options", cwd=inner)
    assert stored_files(inner / "stored") == ["0001"]
    assert [*(inner / "records").rglob("*.parquet")]
    assert not (folder / "results").exists()
    assert not (folder / "records").exists()


@pytest.mark.slow
def test_stock_benchmarks_stay_in_the_storage_of_pytest_benchmark(folder: Path) -> None:
    (folder / "test_stock.py").write_text("def test_stock(benchmark):\n    benchmark(int)\n", "utf-8")
    run_pytest("--benchmark-autosave", "--benchmark-columns=min", cwd=folder)
    compared = run_pytest("--benchmark-autosave", "--benchmark-compare=0001", cwd=folder)
    assert stored_files(folder / ".benchmarks") == ["0001", "0002"]
    assert "Comparing against benchmarks from" in compared
    assert "0001_" in compared


@pytest.mark.slow
def test_the_last_run_is_the_last_of_all_folders(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "test_speed.py").write_text(TEST, "utf-8")
    run_pytest("--benchmark-autosave", cwd=folder)
    run_pytest("--benchmark-autosave", "--benchmark-storage=.benchmarks", "--cloudbench-seed=later", cwd=folder)
    assert stored_files(folder / "results") == stored_files(folder / ".benchmarks") == ["0001"]
    assert cli.main(["baseline", "list"]) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if "0001_" in line]
    assert len(lines) == 2
    assert cli.main(["show", "last"]) == 0
    (latest,) = (folder / ".benchmarks").rglob("0001_*.json")
    assert latest.name in capfd.readouterr().out


def test_results_folder_is_relative_to_its_option_or_configuration(folder: Path) -> None:
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    (inner := folder / "inner").mkdir()
    assert find_results_folder(inner, None, ()) == folder / "results"
    assert find_results_folder(inner, "out", ["--cloudbench-results=out"]) == inner / "out"
    assert find_results_folder(inner, "out", []) == folder / "out", "it is named in the configuration"


@pytest.mark.parametrize("sign", [".git", "setup.py", "pyproject.toml"])
def test_project_folder_is_the_one_with_a_sign(sign: str, folder: Path) -> None:
    (inner := folder / "a" / "b").mkdir(parents=True)
    assert project_folder(inner) == inner
    (folder / sign).touch()
    assert project_folder(inner) == folder


def test_stored_runs_make_a_folder_a_project(folder: Path) -> None:
    (inner := folder / "a").mkdir()
    store_series(folder / "results", [0.1])
    assert project_folder(inner) == folder


def test_import_stores_runs_in_the_folder_read_by_the_gate(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store_series(folder / "there", [0.1])
    assert cli.main(["baseline", "export", "carried.zip", "--storage", "there"]) == 0
    (folder / "pytest.ini").write_text(FILES["pytest.ini"], "utf-8")
    assert cli.main(["baseline", "import", "carried.zip"]) == 0, capfd.readouterr()
    assert len(list((folder / "stored").rglob("0001_*.json"))) == 1


def test_the_nearest_file_with_a_section_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pytest.ini").write_text(FILES["pytest.ini"], "utf-8")
    (inner := folder / "inner").mkdir()
    monkeypatch.chdir(inner)
    assert configured_storage() == Path("stored")
    (inner / "tox.ini").write_text("[tox]\nenvlist = a\n", "utf-8")
    (inner / "pyproject.toml").write_text('[project]\nname = "a"\n', "utf-8")
    assert configured_storage() == Path("stored"), "neither is a configuration of pytest"
    (inner / "pytest.ini").write_text("", "utf-8")
    assert configured_storage() is None, "an empty pytest.ini is one"


def test_the_environment_counts_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pytest.ini").write_text(FILES["pytest.ini"], "utf-8")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-q --benchmark-storage file://elsewhere")
    assert configured_storage() == Path("elsewhere")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--benchmark-storage=elasticsearch+https://host/index")
    assert configured_storage() is None, "no folder"


@pytest.mark.parametrize("text", [
    "[pytest", "[pytest]\naddopts = 'open", "[pytest]\naddopts\n", "[pytest]\naddopts = --benchmark-storage", "\udcff",
])  # fmt: skip
def test_unreadable_configuration_is_ignored(text: str, folder: Path) -> None:
    (folder / "pytest.ini").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert configured_storage() is None
    assert storage_folders() == list(USUAL)


def test_without_any_configuration_the_usual_folders_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert configured_storage() is None
    assert cli.main(["history"]) != 0
    assert "there are no stored runs in results or .benchmarks" in capfd.readouterr().err


@pytest.mark.parametrize("path", ["/proc/results", "file/results", "file", "a" * 300])
def test_a_place_that_cannot_be_written_is_named_with_advice(path: str, folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(ResultsError, match="; choose another place with --cloudbench-results"):
        make_results_folder(folder / path)
