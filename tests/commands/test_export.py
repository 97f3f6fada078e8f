"""``cloudbench export``: its files, its messages, and the runs and options that it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.results.benchmarks import write_entry
from pytest_cloudbench.results.machine import describe_machine

INFO = {"schema": 2, "provider": "folder:x", "emulated": False, "outcome": "passed", "doubts": [], "response_p99": 0.5}


def write_run(folder: Path, name: str = "0001_x.json", **changes: Any) -> str:
    path = folder / name
    write_entry(path, name="t", fullname="t.py::t", params={}, extra_info={**INFO, **changes}, data_s=[0.5])
    return str(path)


def test_a_run_becomes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    argv = ["export", write_run(tmp_path), "--format", "bencher", "--metric", "response_p99", "-o", str(path)]
    assert cli.main(argv) == 0
    assert json.loads(path.read_text()) == {"t.py::t": {"response_p99 (s, lower is better)": {"value": 0.5}}}
    out, err = capsys.readouterr()
    assert (out, err) == ("", "cloudbench export: 1 number of 1 experiment\n")


def test_unreadable_run_is_reported_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torn, newer = tmp_path / "torn\n.json", write_run(tmp_path, "0002_x.json", schema=99)
    torn.write_text('{"benchmarks": [')
    argv = ["export", write_run(tmp_path), str(torn), newer, str(tmp_path), "--format", "csv"]
    assert cli.main(argv) == 0
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 2
    lines = err.splitlines()
    assert [line.startswith("cloudbench export: left out: ") for line in lines] == [True, True, True, False]
    assert "is not JSON" in lines[0]
    assert "99" in lines[1]
    assert cli.main(["export", str(torn), "--format", "markdown"]) == 1


def test_a_run_is_named_as_in_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, "0001_first.json", response_p99=1.0)
    write_run(tmp_path, "0002_second.json", response_p99=2.0)
    for name, value in (("last", "2.0"), ("1", "1.0"), ("0002_sec", "2.0")):
        argv = ["export", name, "--storage", str(tmp_path), "--format", "csv", "--metric", "response_p99"]
        assert cli.main(argv) == 0
        assert f",response_p99,{value},s,lower" in capsys.readouterr().out
    assert cli.main(["export", "0003", "--storage", str(tmp_path), "--format", "csv"]) == 4
    assert "there is no such run" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["csv", "markdown", "openmetrics"])
@pytest.mark.parametrize("start_ms", [None, -1, 0, 8 * 10**15, 10**17, "soon"])
def test_a_start_that_no_calendar_has_is_unknown(
    start_ms: object, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "0001_run.json", start_wall_ms=start_ms)
    assert cli.main(["export", "last", "--storage", str(tmp_path), "--format", form]) == 0
    assert "t.py::t" in capsys.readouterr().out


def test_a_run_began_at_the_same_time_whether_it_is_named_or_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path, "0001_run.json", start_wall_ms=1_790_000_000_000)
    for name in (path, "last"):
        assert cli.main(["export", name, "--storage", str(tmp_path), "--format", "csv"]) == 0
        assert "0001_run,2026-09-21T14:13:20.000+00:00," in capsys.readouterr().out


def test_a_run_that_is_named_twice_is_exported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path, "0001_run.json")
    assert cli.main(["export", "last", path, "1", "--storage", str(tmp_path), "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_export_without_a_number_writes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.txt"
    run = write_run(tmp_path, response_p99=None)
    assert cli.main(["export", run, "--format", "openmetrics", "-o", str(path)]) == 1
    assert not path.exists()
    assert capsys.readouterr().err == "cloudbench export: 0 numbers of 0 experiments; left out: 1 unknown\n"
    assert cli.main(["export", run, "--format", "markdown", "--metric", "response_p99", "-o", str(path)]) == 1
    assert "1 number is unknown: -" in path.read_text()


@pytest.mark.parametrize("form", ["github-action-benchmark", "bencher"])
def test_chart_formats_need_a_metric(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", write_run(tmp_path), "--format", form]) == 4
    assert "--metric is missing" in capsys.readouterr().err
    assert cli.main(["export", write_run(tmp_path), "--format", form, "--metric", "response_p9"]) == 4
    assert "did you mean response_p90" in capsys.readouterr().err


def test_a_class_of_machines_has_a_name_for_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["machine"]) == 0
    assert cli.main(["machine", "--key"]) == 0
    text, key = capsys.readouterr().out.splitlines()
    assert text == describe_machine()
    assert re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)+", key)
    assert key.split("-")[0] == text.split()[0].lower()


def test_unwritable_file_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", write_run(tmp_path), "--format", "csv", "-o", str(tmp_path)]) == 1
    assert "cannot be written: Is a directory" in capsys.readouterr().err
