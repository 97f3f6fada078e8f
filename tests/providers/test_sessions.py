"""Sessions on providers made of others and on a real server, whose services belong to the run and end with it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from tests.fleet.harness import Lab, RunningSession
from tests.limits import HANG_S
from tests.runs import SPREAD, Spread

TWO = "mirror:emulated:ideal,emulated:ideal"
SMALL = """
    def test_small(experiment, payloads):
        result = experiment.run(payloads.random(50), arrival=FixedInterval(0.02), sensors=4, ops_per_sensor=3)
        result.check()
        assert (result["ops"], result["ok"], result["lost"]) == (12, 12, 0)
"""
LONG = """
    def test_long(experiment, payloads):
        experiment.run(payloads.random(50), arrival=FixedInterval(0.05), sensors=4, ops_per_sensor=80).check()
"""


@pytest.mark.slow
@SPREAD
def test_two_equal_emulated_children_are_two_accounts(lab: Lab, spread: Spread) -> None:
    lab.write("""
        from pytest_cloudbench.model import CloudError

        def test_apart(experiment, provider, fleet, payloads):
            def look():
                first, second = provider.driver.children
                provider.driver.put("/both", payloads.random(50).content(0, 0))
                first.delete("/both")
                with pytest.raises(CloudError):
                    first.stat("/both")
                return second.stat("/both").size_bytes
            assert fleet.once("look", look) == 50
    """).write(SMALL, "test_small.py")
    run = lab.run("--provider", TWO, *spread)
    assert run.status == 0, run.text
    assert run.leftovers == []
    info = run.info(f"test_small[{TWO}]")
    assert (info["provider"], info["emulated"], info["profile"]) == (TWO, True, None)
    assert info["profile_digest"]
    assert info["versions"]["mirror"] == "1"
    assert "emulated: measures the client and the loopback" in run.text
    assert "about 12 operations" not in run.text, "nothing of it is kept"
    logs = sorted(path.name for path in lab.folder.rglob("emulator-*.log"))
    assert logs == ["emulator-ideal-1.log", "emulator-ideal-2.log"]


@pytest.mark.slow
@SPREAD
def test_a_child_dies_and_is_named(lab: Lab, spread: Spread) -> None:
    running = lab.write(LONG).start("--provider", TWO, *spread)
    for agent in ("gw0", "gw1") if spread else ("main",):
        running.wait_for_records(agent, "test_long", 20)
    running.emulator().kill()
    run = running.end()
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert "Traceback" not in run.text
    assert "INTERNALERROR" not in run.text
    reason = re.escape(f"of {TWO}) died (killed by signal 9)")
    assert re.search(rf"the emulator of emulated:ideal \(child [12] {reason}", run.text), run.text
    info = run.info(f"test_long[{TWO}]")
    assert any("died (killed by signal 9)" in doubt for doubt in info["doubts"]), info["doubts"]
    assert info["ok"] >= 20


def test_a_part_that_is_kept_makes_all_of_it_kept(lab: Lab) -> None:
    spec = "mirror:folder:objects,emulated:ideal"
    journal = {"CLOUDBENCH_JOURNAL": str(lab.folder / "journal.jsonl")}
    run = lab.write(SMALL).run("--provider", spec, env=journal)
    assert run.status == 0, run.text
    assert run.leftovers == []
    assert run.info(f"test_small[{spec}]")["emulated"] == "some"
    assert "partly emulated: measures the client and the loopback" in run.text
    assert f"{spec}: about 12 operations, 600 bytes up" in run.text
    assert list((lab.folder / "objects").iterdir()) == []
    assert (lab.folder / "journal.jsonl").read_bytes() == b"", "noted, and crossed out"


SERVED = "served:tiny.toml"


def find_server(running: RunningSession) -> psutil.Process:
    """Return the real server's process."""
    log = running.wait_for("server's log", lambda: next(running.folder.rglob("server-*.log"), None))
    pid = running.wait_for("server", lambda: re.search(r"process (\d+) serves", Path(log).read_text()))
    return psutil.Process(int(pid[1]))


def folder_of(lab: Lab) -> Path:
    (log,) = lab.folder.rglob("server-*.log")
    match = re.search(r"serves (\S+)", log.read_text())
    assert match is not None
    return Path(match[1])


@pytest.mark.slow
@SPREAD
def test_a_real_server_belongs_to_the_run(lab: Lab, spread: Spread) -> None:
    run = lab.write(SMALL).run("--provider", SERVED, *spread)
    assert run.status == 0, run.text
    assert run.leftovers == []
    info = run.info(f"test_small[{SERVED}]")
    assert (info["emulated"], info["profile"]) == (False, None)
    assert info["profile_digest"], "runs of another recipe are not compared"
    assert "emulated" not in run.lines_with(SERVED)[-1]
    assert "about 12 operations" not in run.text, "nothing of it outlives the run"
    assert not folder_of(lab).exists()


@pytest.mark.slow
def test_a_real_server_dies_and_is_named(lab: Lab) -> None:
    running = lab.write(LONG).start("--provider", SERVED, "-n", "2")
    running.wait_for_records("gw0", "test_long", 20)
    find_server(running).kill()
    run = running.end()
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert "Traceback" not in run.text
    assert re.search(r"the server of served:tiny\.toml died \(.*killed by signal 9\)", run.text), run.text
    assert not folder_of(lab).exists()


def test_a_real_server_ends_with_a_run_that_is_killed(lab: Lab) -> None:
    running = lab.write(LONG).start("--provider", SERVED)
    running.wait_for_records("main", "test_long", 20)
    process = find_server(running)
    guard = process.parent()
    os.kill(running.process.pid, signal.SIGKILL)
    psutil.wait_procs([process, *([guard] if guard else [])], timeout=HANG_S)
    assert not process.is_running()
    assert not folder_of(lab).exists()


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mirror:emulated:ideal,nosuch:x", "provider 'nosuch': no driver"),
        ("mirror:emulated:ideal", "expected two children or more"),
        ("mirror:(emulated:ideal", "a parenthesis of a child is not closed"),
        ("served:none.toml", "none.toml: cannot be read"),
        ("mirror:emulated:ideal,dropbox", "dropbox: no credentials found"),
    ],
)
def test_bad_spec_is_refused_in_one_line_before_anything_starts(lab: Lab, spec: str, message: str) -> None:
    env = {"HOME": str(lab.folder), "XDG_CONFIG_HOME": str(lab.folder)}
    env |= {"PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}
    run = lab.write(SMALL).run("--provider", spec, env=env)
    assert run.status == 4, run.text
    assert run.leftovers == []
    assert len(run.lines_with(message)) == 1, run.text
    assert "Traceback" not in run.text
    assert not (lab.folder / "results").exists()
