"""Logs of a killed controller. The next run reports them, and ``cloudbench recover`` merges all but a live run's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.model import Op, Outcome, Verb
from pytest_cloudbench.results import owner, parquet, recovery
from pytest_cloudbench.results.oplog import OpLog, read_parquet
from tests.limits import HANG_S
from tests.runs import SPREAD

from .harness import FOLDER, IDEAL, Lab, RunningSession, keys
from .test_sessions import ENDLESS

QUICK = """
    def test_quick(experiment, payloads):
        experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=2).check()
"""
DEAD = json.dumps([*json.loads(owner.owner_text())[:3], 2**22 + 1, 1])


def recover(folder: Path, *options: str, status: int = 0) -> list[str]:
    finished = subprocess.run(
        [sys.executable, "-m", "pytest_cloudbench.commands.cli", "recover", *options],
        cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert (finished.returncode, finished.stderr) == (status, ""), finished.stdout + finished.stderr
    return finished.stdout.splitlines()


def kill_in_mid_run(lab: Lab, provider: tuple[str, str], spread: list[str]) -> int:
    """Kill the controller when each agent has logged 40 operations, and wait until its agents have gone."""
    running = lab.write(ENDLESS).start(*provider, *spread)
    agents = ("gw0", "gw1") if spread else ("main",)
    for agent in agents:
        running.wait_for_records(agent, "test_long", 40)
    running.process.kill()
    run = running.end()
    assert run.leftovers == []
    return 40 * len(agents)


@pytest.mark.slow
@SPREAD
@pytest.mark.parametrize("chosen", [FOLDER, IDEAL], ids=["folder", "emulated"])
def test_records_of_killed_controller_are_recovered(lab: Lab, chosen: tuple[str, str], spread: list[str]) -> None:
    min_records = kill_in_mid_run(lab, chosen, spread)
    next_run = lab.write(QUICK, "test_quick.py").run(*chosen, "test_quick.py")
    assert next_run.lines_with("cloudbench: 1 killed run has left records; `cloudbench recover results` merges them")
    (line,) = recover(lab.folder, "--dry-run")
    assert line.startswith(f"would be recovered: test_it.py::test_long[{chosen[1]}]: ")
    (line,) = recover(lab.folder)
    assert line.startswith(f"recovered: test_it.py::test_long[{chosen[1]}]: ")
    (path,) = [path for path in lab.folder.rglob("*.parquet") if "test_long" in path.name]
    records = keys(read_parquet(path))
    assert len(records) == len(set(records)) >= min_records
    assert f": {len(records)} records in " in line
    (entry,) = json.loads(path.with_suffix(".json").read_text())["benchmarks"]
    assert entry["fullname"] == f"test_it.py::test_long[{chosen[1]}]"
    info = entry["extra_info"]
    assert (info["ops"], info["outcome"], info["planned_ops"]) == (len(records), "interrupted", 16000)
    assert info["doubts"] == [
        "interrupted: the controller was killed", f"{16000 - len(records)} of 16000 operations were not tried"
    ]  # fmt: skip
    assert list(lab.folder.rglob("*.oplog")) == list(lab.folder.rglob("run.json")) == []
    assert recover(lab.folder) == [], "again, there is nothing to do"
    last_run = lab.run(*chosen, "test_quick.py")
    assert "recover" not in last_run.text


def stop_in_mid_run(lab: Lab) -> RunningSession:
    running = lab.write(ENDLESS).start(*FOLDER, "-n", "2")
    running.wait_for_records("gw1", "test_long", 20)
    running.wait_for_records("gw0", "test_long", 20)
    return running


@pytest.mark.slow
def test_a_live_run_is_left_alone(lab: Lab) -> None:
    running = stop_in_mid_run(lab)
    assert recover(lab.folder) == ["left alone: test_it.py::test_long[folder:objects]: still running"]
    assert recover(lab.folder, "--force") == ["left alone: test_it.py::test_long[folder:objects]: still running"]
    running.workers()["gw0"].suspend()  # an agent that may yet write, though the controller has gone
    running.process.kill()
    running.process.wait()
    assert recover(lab.folder) == ["left alone: test_it.py::test_long[folder:objects]: still running"]
    running.destroy()
    assert len(recover(lab.folder)) == 1


# --- without a run ---


def write_run_folder(folder: Path, count: int = 100, agents: int = 2, **head: Any) -> Path:
    """Write a run's folder as a killed controller leaves it."""
    run_folder = folder / "results" / "machine" / "run" / "test_it"
    for agent in range(agents):
        header = {"agent": f"gw{agent}", "nodeid": "a.py::test_it", "run": "a.py::test_it#1", "owner": DEAD, **head}
        with OpLog(run_folder / f"gw{agent}.oplog", header) as log:
            for seq in range(count):
                log.record(Op(Verb.PUT, agent, seq, agent, 3, 4, 0, 5, 6, Outcome.OK))
    return run_folder


@pytest.mark.slow
def test_logs_without_a_note_say_enough_themselves(tmp_path: Path) -> None:
    run_folder = write_run_folder(tmp_path)
    (line,) = recover(tmp_path)
    assert line == "recovered: a.py::test_it: 200 records in results/machine/run/test_it.parquet"
    assert len(read_parquet(run_folder.with_name("test_it.parquet"))) == 200
    assert not run_folder.exists()


def test_hosts_are_known_from_the_logs_alone(tmp_path: Path) -> None:
    run_folder = tmp_path / "results" / "machine" / "run" / "test_it"
    for agent, host in enumerate(("", "oslo", "lima", "oslo")):
        header = {"agent": f"gw{agent}", "nodeid": "a.py::test_it", "run": "r", "owner": DEAD}
        with OpLog(run_folder / f"gw{agent}.oplog", header | ({"host": host} if host else {})) as log:
            for seq in range(5):
                log.record(Op(Verb.PUT, agent, seq, agent, seq, seq, 0, seq + 5, 6, Outcome.OK))
    (unmerged_run,) = recovery.find_unmerged(tmp_path)
    recovered = recovery.recover_run(unmerged_run)
    assert recovered is not None
    assert read_parquet(recovered[1]).hosts == {0: "this machine", 1: "oslo", 2: "lima", 3: "oslo"}
    (entry,) = json.loads(recovered[1].with_suffix(".json").read_text())["benchmarks"]
    ops = {name: figures["ops"] for name, figures in entry["extra_info"]["by_host"].items()}
    assert ops == {"this machine": 5, "oslo": 10, "lima": 5}


def test_recovery_omits_the_warm_up_declared_in_the_note(tmp_path: Path) -> None:
    run_folder = tmp_path / "results" / "machine" / "run" / "test_it"
    with OpLog(run_folder / "gw0.oplog", {"agent": "gw0", "nodeid": "a.py::test_it", "run": "r", "owner": DEAD}) as log:
        for seq in range(10):
            log.record(Op(Verb.PUT, 0, seq, 0, seq, seq, 0, seq + 5, 6, Outcome.OK))
    note = {
        "fullname": "a.py::test_it",
        "run": "r",
        "info": {"warm_up_s": 1.0, "planned_ops": 30},
        "measured_from_ns": 4,
    }
    recovery.write_note(run_folder, note, {})
    (unmerged_run,) = recovery.find_unmerged(tmp_path)
    recovered = recovery.recover_run(unmerged_run)
    assert recovered is not None
    assert recovered[0] == 10
    (entry,) = json.loads(recovered[1].with_suffix(".json").read_text())["benchmarks"]
    info = entry["extra_info"]
    assert (info["ops"], info["warm_up_ops"], info["warm_up_s"]) == (6, 4, 1.0)
    assert info["doubts"][1] == "20 of 30 operations were not tried"
    columns, _ = parquet.read(recovered[1].read_bytes())
    assert columns["phase"] == ["warm_up"] * 4 + ["measured"] * 6


@pytest.mark.slow
def test_torn_log_is_recovered_and_foreign_log_is_left_alone(tmp_path: Path) -> None:
    run_folder = write_run_folder(tmp_path)
    os.truncate(run_folder / "gw1.oplog", (run_folder / "gw1.oplog").stat().st_size - 10)
    (line,) = recover(tmp_path)
    assert ": 199 records in " in line
    write_run_folder(tmp_path / "two")
    (tmp_path / "two/results/machine/run/test_it/gw7.oplog").write_bytes(b"\x00\xff nothing of ours\n")
    (line,) = recover(tmp_path / "two", status=1)
    assert line.startswith("left alone: a.py::test_it: ")
    assert "is not an operation log" in line
    assert len(list((tmp_path / "two").rglob("*.oplog"))) == 3, "everything is left as it was"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("note", [
    "", "{", "[]", "null", "[" * 100_000, '{"owner": 7, "logs": [], "info": 3, "params": "x"}',
    '{"logs": {"gw9": "/etc/passwd", "gw8": "/dev/zero", "gw7": 5}, "run": "a.py::test_it#1"}',
    '{"fullname": "\\u001b[31m\\nred", "info": {"planned_ops": "many"}}',
])  # fmt: skip
def test_recovery_survives_torn_and_malicious_notes(tmp_path: Path, note: str) -> None:
    run_folder = write_run_folder(tmp_path)
    (run_folder / "run.json").write_text(note)
    os.mkfifo(run_folder / "gw5.oplog")
    (run_folder / "gw6.oplog").symlink_to("/dev/zero")
    (line,) = recover(tmp_path)
    assert line.startswith("recovered: ")
    assert line.isprintable()
    assert ": 200 records in " in line
    assert sorted(path.name for path in run_folder.iterdir()) == ["gw5.oplog", "gw6.oplog"]
    assert recover(tmp_path) == []


def test_a_log_that_went_on_elsewhere_is_found_by_the_note(tmp_path: Path) -> None:
    run_folder = write_run_folder(tmp_path)
    moved_log = tmp_path / "cloudbench-1-x-gw1.oplog"
    (run_folder / "gw1.oplog").rename(moved_log)
    recovery.write_note(run_folder, {"run": "a.py::test_it#1"}, {"gw1": moved_log})
    note = json.loads((run_folder / "run.json").read_text())
    (run_folder / "run.json").write_text(json.dumps({**note, "owner": DEAD}))
    (line,) = recover(tmp_path)
    assert ": 200 records in " in line
    assert not moved_log.exists()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("change", [(0, "another-host"), (2, "pid:[7]")], ids=["host", "container"])
def test_records_of_another_machine_are_recovered_only_if_forced(tmp_path: Path, change: tuple[int, str]) -> None:
    owner_fields = json.loads(DEAD)
    owner_fields[change[0]] = change[1]
    write_run_folder(tmp_path, owner=json.dumps(owner_fields))
    (line,) = recover(tmp_path)
    assert line.startswith("left alone: a.py::test_it: may run on another machine")
    assert len(recover(tmp_path, "--force")) == 1
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_a_process_with_the_owners_number_is_not_the_owner() -> None:
    owner_fields = json.loads(owner.owner_text())
    assert owner.is_alive(json.dumps(owner_fields)) is True
    assert owner.is_alive(json.dumps([*owner_fields[:4], owner_fields[4] + 1])) is False
    assert owner.is_alive(json.dumps([owner_fields[0], "another boot", *owner_fields[2:]])) is False
    assert [owner.is_alive(text) for text in ("", "7", "[]", "[" * 100_000)] == [None] * 4
    assert owner.is_alive(json.dumps([*owner_fields[:4], 0])) is None, "the system did not say when it started"


@pytest.mark.slow
def test_a_recovery_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    """It was killed after it had written the records, and before it removed the logs."""
    run_folder = write_run_folder(tmp_path)
    (unmerged_run,) = recovery.find_unmerged(tmp_path)
    contents = {path.name: path.read_bytes() for path in run_folder.iterdir()}
    assert recovery.recover_run(unmerged_run) == (200, run_folder.with_name("test_it.parquet"))
    run_folder.mkdir()
    for name, content in contents.items():
        (run_folder / name).write_bytes(content)
    assert len(recover(tmp_path)) == 1
    assert sorted(path.name for path in run_folder.parent.iterdir()) == ["test_it.json", "test_it.parquet"]
    assert len(read_parquet(run_folder.with_name("test_it.parquet"))) == 200


@pytest.mark.slow
def test_two_at_a_time_recover_each_run_once(tmp_path: Path) -> None:
    write_run_folder(tmp_path, count=5000, agents=4)
    command = [sys.executable, "-m", "pytest_cloudbench.commands.cli", "recover"]
    processes = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    lines = [line for process in processes for line in process.communicate(timeout=HANG_S)[0].splitlines()]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert lines == ["recovered: a.py::test_it: 20,000 records in results/machine/run/test_it.parquet"]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_missing_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "pytest_cloudbench.commands.cli", "recover", "nowhere"],
        cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert (finished.returncode, finished.stdout, len(finished.stderr.splitlines())) == (4, "", 1)
