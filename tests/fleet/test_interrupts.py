"""Interruptions of a session: Ctrl-C once, repeated, ignored or typed, SIGTERM, and a terminal that is closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.limits import HANG_S
from tests.runs import SPREAD

from .harness import FOLDER, IDEAL, Lab
from .test_sessions import ENDLESS, check_interrupted

IGNORED = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
NOHUP = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
TERMINAL = """
import os, pty, sys
pid, master = pty.fork()
if not pid:
    os.execvp(sys.argv[1], sys.argv[1:])
while not os.path.exists("close"):
    os.write(1, os.read(master, 1 << 16))
if os.path.getsize("close"):
    with open("close", "rb") as keys:
        os.write(master, keys.read())
    try:
        while True:
            os.write(1, os.read(master, 1 << 16))
    except OSError:
        pass
os.close(master)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

ENDING = """
    import os, pathlib, time
    import pytest
    HERE = pathlib.Path(__file__).parent
    TOLD = os.environ.get("PYTEST_XDIST_WORKER", "main")

    def wait_for_more(where):
        (HERE / f"{where}-{TOLD}").touch()
        limit = time.monotonic() + 30
        while not (HERE / f"again-{where}").exists() and time.monotonic() < limit:
            time.sleep(0.01)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish():
        wait_for_more("finish")
"""


@pytest.mark.slow
@SPREAD
@pytest.mark.parametrize("group", [True, False], ids=["group", "controller"])
def test_ctrl_c_again_while_the_session_ends(lab: Lab, spread: list[str], group: bool) -> None:
    running = lab.write(ENDING, "conftest.py").write(ENDLESS).start(*FOLDER, *spread)
    for agent in ("gw0", "gw1") if spread else ("main",):
        running.wait_for_records(agent, "test_long", 40)
    running.interrupt(group)
    running.wait_for("the end of the session", (lab.folder / "finish-main").exists)
    running.interrupt(group)
    running.wait_for("an answer", lambda: "the run is ending" in running.text())
    (lab.folder / "again-finish").touch()
    run = running.end()
    assert "Traceback" not in run.text
    assert (
        len(run.lines_with("cloudbench: the run is ending and keeps its records; interrupt it again to end it at once"))
        == 1
    )
    check_interrupted(run, "folder:objects")


def test_a_gate_that_is_interrupted_before_it_judged_has_no_empty_section(lab: Lab) -> None:
    running = lab.write(ENDLESS).start(*FOLDER, "--cloudbench-gate", "-k", "test_long")
    running.wait_for_records("main", "test_long", 40)
    running.interrupt(False)
    run = running.end()
    assert "interrupted" in run.info("test_long[folder:objects]")["doubts"]
    assert run.lines_with("= cloudbench: gate =") == []


@pytest.mark.slow
@SPREAD
def test_ctrl_c_a_third_time_ends_at_once(lab: Lab, spread: list[str]) -> None:
    running = lab.write(ENDING, "conftest.py").write(ENDLESS).start(*IDEAL, *spread)
    for agent in ("gw0", "gw1") if spread else ("main",):
        running.wait_for_records(agent, "test_long", 40)
    running.interrupt(group=True)
    running.wait_for("the end of the session", (lab.folder / "finish-main").exists)
    running.interrupt(group=True)
    running.wait_for("an answer", lambda: "the run is ending" in running.text())
    running.interrupt(group=True)
    run = running.end()
    assert run.status == 2, run.text
    assert run.leftovers == []
    assert "Traceback" not in run.text
    assert len(run.lines_with("cloudbench: ended at once")) == 1


@pytest.mark.slow
@SPREAD
def test_ctrl_c_twice_while_it_is_set_up(lab: Lab, spread: list[str]) -> None:
    running = (
        lab.write(ENDING, "conftest.py")
        .write("""
        @pytest.fixture
        def slow(fleet):
            told(fleet)
            threading.Event().wait()

        def test_never(slow, experiment, payloads):
            pass
    """)
        .start(*IDEAL, *spread)
    )
    running.wait_for("set-up", lambda: len(running.workers()) == (2 if spread else 1))
    running.interrupt(group=True)
    running.wait_for("the end of the session", (lab.folder / "finish-main").exists)
    running.interrupt(group=True)
    running.wait_for("an answer", lambda: "the run is ending" in running.text())
    (lab.folder / "again-finish").touch()
    run = running.end()
    assert run.status == 2, run.text
    assert run.leftovers == []
    assert "Traceback" not in run.text
    assert "INTERNALERROR" not in run.text


@pytest.mark.slow
@SPREAD
def test_ignored_ctrl_c_is_noted_and_sigterm_ends_the_run_cleanly(lab: Lab, spread: list[str]) -> None:
    running = lab.write(ENDLESS).start(*FOLDER, *spread, enter=IGNORED)
    for agent in ("gw0", "gw1") if spread else ("main",):
        running.wait_for_records(agent, "test_long", 40)
    running.interrupt(group=True)
    running.process.send_signal(signal.SIGTERM)
    run = running.end()
    lines = run.lines_with("Ctrl-C is ignored because of how this run was started")
    assert len(lines) == 1, run.text
    assert f"`kill {running.process.pid}` ends it cleanly" in lines[0]
    check_interrupted(run, "folder:objects")


@SPREAD
@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("group", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["group", "controller"])
def test_a_hangup_ends_in_order(lab: Lab, spread: list[str], group: bool) -> None:
    running = lab.write(ENDLESS).start(*FOLDER, *spread)
    for agent in ("gw0", "gw1") if spread else ("main",):
        running.wait_for_records(agent, "test_long", 40)
    if group:
        os.killpg(running.process.pid, signal.SIGHUP)
    else:
        running.process.send_signal(signal.SIGHUP)
    check_interrupted(running.end(), "folder:objects")


@pytest.mark.slow
@SPREAD
@pytest.mark.usefixtures("hangup")
def test_a_closed_terminal_ends_in_order(lab: Lab, spread: list[str]) -> None:
    """From then on every write fails. The records are kept all the same."""
    running = lab.write(ENDLESS).start(*FOLDER, *spread, enter=(sys.executable, "-c", TERMINAL))
    for agent in ("gw0", "gw1") if spread else ("main",):
        running.wait_for_records(agent, "test_long", 40)
    (lab.folder / "close").touch()
    run = running.end()
    assert run.status == 2, run.text
    assert run.leftovers == []
    assert run.logs() == []
    info = run.info("test_long[folder:objects]")
    assert "interrupted" in info["doubts"]
    assert info["ops"] == len(run.records()["test_long"]) >= 40
    assert info["missing_agents"] == {}


@pytest.mark.slow
@SPREAD
def test_ctrl_c_that_is_typed_into_a_terminal(lab: Lab, spread: list[str]) -> None:
    """On a terminal, the progress line is redrawn until Ctrl-C is typed."""
    running = lab.write(ENDLESS).start(*FOLDER, *spread, enter=(sys.executable, "-c", TERMINAL))
    for agent in ("gw0", "gw1") if spread else ("main",):
        running.wait_for_records(agent, "test_long", 40)
    running.wait_for("progress", lambda: "/16,000 ops in" in running.text())
    (lab.folder / "keys").write_bytes(b"\x03")
    (lab.folder / "keys").rename(lab.folder / "close")
    run = running.end()
    assert "Traceback" not in run.text
    assert "I/O operation" not in run.text
    check_interrupted(run, "folder:objects")


@pytest.mark.slow
@SPREAD
def test_nohup_is_respected(lab: Lab, spread: list[str]) -> None:
    running = lab.write(ENDLESS).start(*FOLDER, *spread, enter=NOHUP)
    agents = ("gw0", "gw1") if spread else ("main",)
    for count in (40, 80):  # it goes on
        for agent in agents:
            running.wait_for_records(agent, "test_long", count)
        os.killpg(running.process.pid, signal.SIGHUP)
    running.process.send_signal(signal.SIGTERM)
    check_interrupted(running.end(), "folder:objects")


@pytest.mark.slow
def test_run_with_working_ctrl_c_does_not_mention_it(lab: Lab) -> None:
    run = lab.write("def test_one(experiment):\n    pass\n").run(*FOLDER)
    assert run.status == 0, run.text
    assert "Ctrl-C" not in run.text


@pytest.mark.slow
@pytest.mark.parametrize("spread", [(), ("-n", "1")], ids=["alone", "n1"])
def test_a_test_of_this_project_that_hangs_is_ended_and_named(lab: Lab, spread: tuple[str, ...]) -> None:
    """The options are those of the Makefile, with a shorter limit."""
    lab.write("def test_hangs():\n    threading.Event().wait()\n\ndef test_next():\n    pass\n")
    config = os.path.join(os.path.dirname(__file__), "..", "..", "pyproject.toml")
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", config, "--rootdir=.", "-o", "faulthandler_timeout=1",
         "-o", "faulthandler_exit_on_timeout=true", "-o", "addopts=", "-p", "no:cacheprovider", *spread, "test_it.py"],
        cwd=lab.folder, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert "in test_hangs" in finished.stderr
    if spread:
        assert "crashed while running 'test_it.py::test_hangs'" in finished.stdout
        assert "1 failed, 1 passed" in finished.stdout
