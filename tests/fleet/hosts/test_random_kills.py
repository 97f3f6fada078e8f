"""Kills of a host at random moments. Nothing hangs, and no record acknowledged a second before is lost.

``CLOUDBENCH_TEST_KILLS`` is the number of kills, three by default.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.fleet.harness import Lab, RunningSession, keys

KILLS = int(os.environ.get("CLOUDBENCH_TEST_KILLS", "3"))
PATIENCE_S = 20
LONGEST_S = PATIENCE_S + 10
MARK = "CLOUDBENCH_TEST_HOST"
NEWEST_S = 1.0
"""Records that were acknowledged in this time before the end of their host may be lost."""
_NAME = re.compile(r"(\d+)\D+(\d+)\D*$")

TESTS = """
    from pytest_cloudbench import FixedInterval

    def test_first(experiment, payloads):
        experiment.run(payloads.random(50), arrival=FixedInterval(0.05), sensors=8, ops_per_sensor=60).check()

    def test_second(experiment, payloads):
        experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=8, ops_per_sensor=4).check()
"""
CONFTEST = f"""
    import os, time
    from pytest_cloudbench.drivers.folder import FolderDriver

    put = FolderDriver.put
    acknowledged = os.open(os.environ["ACKNOWLEDGED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def put_and_note(self, path, content):
        entry = put(self, path, content)
        line = f"{{time.monotonic_ns()}} {{os.environ.get('{MARK}', '')}} {{path}}\\n"
        os.write(acknowledged, line.encode())
        return entry

    FolderDriver.put = put_and_note
"""


def find_processes(running: RunningSession, name: str) -> list[psutil.Process]:
    """Return all processes that run on a host."""
    mark, processes = f"{MARK}={name}".encode(), []
    for process in running.relatives():
        with contextlib.suppress(OSError, psutil.Error):
            if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                processes.append(process)
    return processes


def read_acknowledged(path: Path, test: str, before_ns: int) -> set[tuple[int, int]]:
    """Return sensor and number of each operation of a test that any agent had finished before this moment."""
    operations = set()
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        at_ns, _, name = line.split(" ")
        match = _NAME.search(name.rpartition("/")[2])
        if match and test in name and int(at_ns) < before_ns:
            operations.add((int(match[1]), int(match[2])))
    return operations


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(KILLS))
def test_a_host_that_is_killed_at_any_moment_stops_nothing_and_loses_less_than_a_second(lab: Lab, seed: int) -> None:
    (lab.folder / "objects").mkdir()
    temporary = lab.folder.with_name(f"{lab.folder.name}-tmp")
    temporary.mkdir()
    rows = [
        f'[[host]]\nname = "{name}"\nagents = 2\ncommand = ["env", "{MARK}={name}", "{sys.executable}"]\n'
        for name in ("stays", "dies")
    ]
    lab.write(TESTS).write(CONFTEST, "conftest.py").write("\n".join(rows), "hosts.toml")
    acknowledged = lab.folder.with_name(f"{lab.folder.name}-acknowledged")
    running = lab.start(
        "--provider", f"folder:{lab.folder / 'objects'}", "--cloudbench-hosts", "hosts.toml",
        f"-ocloudbench_patience={PATIENCE_S}", env={"TMPDIR": str(temporary), "ACKNOWLEDGED": str(acknowledged)},
    )  # fmt: skip
    running.wait_for("host", lambda: find_processes(running, "dies"))
    delay_s = random.Random(f"kill {seed}").uniform(0, 4.5)  # the rest of the session takes 5 s on an idle machine
    with contextlib.suppress(subprocess.TimeoutExpired):
        running.process.wait(delay_s)
    victims = find_processes(running, "dies")
    killed_ns = time.monotonic_ns()
    for process in victims:
        with contextlib.suppress(psutil.Error):
            process.kill()
    run = running.end()
    ended_s = (time.monotonic_ns() - killed_ns) / 1e9
    assert "INTERNALERROR" not in run.text
    assert run.leftovers == []
    assert ended_s < LONGEST_S + 10, f"it was killed {delay_s:.2f} s after its relay began:\n{run.text}"
    for test in ("test_first", "test_second"):
        due = read_acknowledged(acknowledged, test, killed_ns - round(NEWEST_S * 1e9))
        table = run.records().get(test)
        lost = due - set(keys(table) if table is not None else ())
        assert not lost, f"killed {delay_s:.2f} s after its relay began, lost {len(lost)} of {len(due)}:\n{run.text}"
    assert read_acknowledged(acknowledged, "test_second", time.monotonic_ns()), "nothing was noted"
    is_said = bool(run.lines_with("cloudbench: host dies: "))
    print(
        f"kill {seed}: of {len(victims)} after {delay_s:.2f} s, {is_said=}, ended {ended_s:.1f} s later, {run.counts()}"
    )
