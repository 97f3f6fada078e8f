"""Commands find stored runs in ``.benchmarks`` and records in ``results``, the folders that pytest uses by default."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.results.owner import owner_text
from tests.results.stored_runs import MACHINE, info, store, store_series

FIXTURES = Path(__file__).parents[2] / "fixtures"
TEST = "test_it.py::test_put"
KILLED = "20261122T071148Z-ec62"
Run = Callable[..., str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs, and the records of a third one whose session was killed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    store_series(tmp_path / ".benchmarks", [0.1, 0.2])
    killed_run = tmp_path / "results" / MACHINE / KILLED / "test_put_1"
    killed_run.mkdir(parents=True)
    shutil.copy(FIXTURES / "results-schema-2" / "gw0.oplog", killed_run)
    fields = {"fullname": TEST, "name": "test_put", "run": "r", "run_id": KILLED, "params": {}}
    note = {**fields, "info": info(outcome="unfinished"), "owner": json.dumps(["elsewhere", "b", "n", 1, 1])}
    (killed_run / "run.json").write_text(json.dumps(note))
    return tmp_path


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*argv: str) -> str:
        status = cli.main([*argv])
        output = capfd.readouterr()
        assert status == 0, output.err
        return output.out

    return run


def store_recorded_run(storage: Path, results: Path) -> None:
    """Store a run whose records are in a results folder."""
    target = results / MACHINE / "20261123T071148Z-ec63"
    target.mkdir(parents=True)
    shutil.copy(FIXTURES / "results-schema-2" / "worst-case.parquet", target)
    (entry,) = json.loads((FIXTURES / "results-schema-2" / "0001_worst-case.json").read_text())["benchmarks"]
    store(storage, 3, {TEST: {**entry["extra_info"], "ops_file": f"{target.name}/worst-case.parquet"}})


def test_a_killed_session_with_records_elsewhere_is_reported(run: Run) -> None:
    out = run("baseline", "list")
    assert "0002_run" in out
    assert f"not in the list: {TEST} of {KILLED} was killed" in out


def test_a_recovered_run_does_not_hide_the_others(run: Run) -> None:
    run("recover", "--force")
    out = run("baseline", "list")
    assert "0001_run" in out
    assert "0002_run" in out
    assert f"not in the list: the recovered run {KILLED}: cloudbench baseline list --storage results has it" in out
    assert "0002_run" in run("history", TEST)
    assert f"{KILLED}" in run("baseline", "list", "--storage", "results")


def test_baseline_list_shows_a_single_recovered_run(folder: Path, run: Run) -> None:
    run("recover", "--force")
    shutil.rmtree(folder / ".benchmarks")
    assert KILLED in run("baseline", "list")


@pytest.mark.parametrize("options", [(), ("--records", "kept")])
def test_operations_are_found_in_the_results_folder(folder: Path, run: Run, options: tuple[str, ...]) -> None:
    pytest.importorskip("duckdb")
    store_recorded_run(folder / ".benchmarks", folder / (options[-1] if options else "results"))
    assert "200" in run("ops", "3", "--sql", "SELECT count(*) FROM ops", *options)


@pytest.mark.parametrize("options", [(), ("--records", "kept")])
def test_a_page_has_figures_of_the_operations_records(folder: Path, run: Run, options: tuple[str, ...]) -> None:
    store_recorded_run(folder / ".benchmarks", folder / (options[-1] if options else "results"))
    assert "left out" not in run("report", "3", *options)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Over time, " in page
    assert "holds no records" not in page


def test_records_are_found_in_the_configured_folder(folder: Path, run: Run) -> None:
    pytest.importorskip("duckdb")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --cloudbench-results=kept\n")
    store_recorded_run(folder / ".benchmarks", folder / "kept")
    assert "200" in run("ops", "3", "--sql", "SELECT count(*) FROM ops")


def test_imported_runs_join_the_stored_ones(folder: Path, run: Run) -> None:
    store(folder / "elsewhere", 9, {TEST: info()})
    run("baseline", "export", "runs.zip", "--storage", "elsewhere")
    assert run("baseline", "import", "runs.zip").startswith("results: 1 file is new")


def test_recover_looks_in_the_configured_folder(folder: Path, run: Run) -> None:
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --cloudbench-results=kept/records\n")
    (folder / "kept").mkdir()
    (folder / "results").rename(folder / "kept" / "records")
    assert run("recover", "--force").startswith(f"recovered: {TEST}: ")
    assert list((folder / "kept" / "records").rglob("*.parquet"))


def test_recover_looks_among_stored_runs_too_and_takes_each_run_once(folder: Path, run: Run) -> None:
    (folder / "results").rename(folder / ".benchmarks" / "results")
    (folder / "results").symlink_to(folder / ".benchmarks" / "results")
    assert run("recover", "--force").count("recovered: ") == 1


def test_recover_names_the_missing_results_folders(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder / "empty")
    assert cli.main(["recover"]) == 4
    message = "recover: there is no results or .benchmarks; give the folder that --cloudbench-results named"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("storage", ["none", "empty", "named"])
def test_an_empty_storage_hints_at_an_interrupted_session(
    folder: Path, capsys: pytest.CaptureFixture[str], storage: str
) -> None:
    shutil.rmtree(folder / ".benchmarks")
    if storage == "empty":
        (folder / ".benchmarks").mkdir()
    (folder / "elsewhere").mkdir()
    assert cli.main(["history", *(["--storage", "elsewhere"] if storage == "named" else [])]) == 4
    message = "; an interrupted session is there: cloudbench recover makes it a run"
    assert capsys.readouterr().err.rstrip().endswith(message)
    assert cli.main(["recover", "--force"]) == 0
    if storage != "named":
        assert cli.main(["history"]) == 0


def test_an_empty_storage_hints_at_a_running_session(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(folder / ".benchmarks")
    (note,) = (folder / "results").rglob("run.json")
    note.write_text(json.dumps({**json.loads(note.read_text()), "owner": owner_text()}))
    assert cli.main(["history"]) == 4
    assert "; a session still runs, and is stored at its end" in capsys.readouterr().err
