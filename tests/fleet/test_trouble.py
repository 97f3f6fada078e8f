"""Problems that the user learns in one clear line: bad input, a dead emulator, a full disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.runs import SPREAD, Spread

from .harness import FOLDER, IDEAL, FinishedRun, Lab, keys

ONE = """
    def test_one(experiment, payloads):
        experiment.run(payloads.random(100), arrival=FixedInterval(0.02), sensors=2, ops_per_sensor=2).check()
"""

BAD_INPUT = {
    "provider": (["--provider", "nosuch:thing"], "provider 'nosuch'"),
    "spec": (["--provider", ":::"], "provider ':::': expected SCHEME"),
    "query": (["--provider", "folder:x?y"], "after '?' expected KEY=VALUE"),
    "parameter": (["--provider", "folder:x?fsnyc=1"], "unknown parameter 'fsnyc'; folder knows: fsync"),
    "credentials": (["--provider", "dropbox"], "credentials"),
    "no profile": (["--provider", "emulated:nosuch"], "profile 'nosuch'"),
    "profile key": (["--provider", "emulated:bad.toml"], "bad.toml: latency.medain_s: unknown"),
    "profile missing": (["--provider", "emulated:./none.toml"], "none.toml"),
    "expectations": (["-ocloudbench_expectations=wrong.toml"], "wrong.toml: expect[0].metric"),
    "expectations missing": (["-ocloudbench_expectations=none.toml"], "none.toml"),
    "gate": (["--cloudbench-fail", "speed:1"], "gate 'speed:1': expected METRIC:BOUND"),
    "gate bound": (
        ["--cloudbench-fail", "loss_rate:much"],
        "gate 'loss_rate:much': expected METRIC:BOUND with a bound such as",
    ),
    "time scale": ([*FOLDER, "--time-scale", "10"], "--time-scale 10 needs an emulated provider"),
    "time scale 0": ([*IDEAL, "--time-scale", "0"], "--time-scale 0"),
    "patience": ([*FOLDER, "-ocloudbench_patience=0"], "cloudbench_patience 0: expected seconds above 0"),
    "max ops": ([*FOLDER, "--max-ops", "-1"], "--max-ops"),
}


@pytest.mark.quick_cases(3)
@SPREAD
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(lab: Lab, case: str, spread: Spread) -> None:
    lab.write(ONE)
    (lab.folder / "bad.toml").write_text(
        '[meta]\nname = "x"\napi = "dropbox"\ndescription = "y"\n[latency]\nmedain_s = 1\n'
    )
    (lab.folder / "wrong.toml").write_text(
        '[[expect]]\nprovider = "x"\nmetric = "speed"\nat_most = 1\nsource = "s"\ndate = 2026-01-01\n'
    )
    env: dict[str, str | None] = {name: None for name in os.environ if name.startswith("DROPBOX")}
    env |= {"HOME": str(lab.folder), "XDG_CONFIG_HOME": str(lab.folder)}
    env |= {"PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}
    args, message = BAD_INPUT[case]
    run = lab.run(*args, *spread, env=env)
    assert run.status == 4, run.text
    assert run.leftovers == []
    assert len(run.lines_with(message)) == 1, run.text
    assert "Traceback" not in run.text
    assert "INTERNALERROR" not in run.text
    assert len([line for line in run.text.splitlines() if line.strip()]) <= 5, run.text
    assert not (lab.folder / "results").exists()


LONG = """
    def test_long(experiment, payloads, fleet):
        told(fleet)
        experiment.run(payloads.random(500), arrival=FixedInterval(0.05), sensors=4, ops_per_sensor=80).check()
"""


def failures(run: FinishedRun) -> str:
    return run.text.partition("= FAILURES =")[2].partition("= cloudbench =")[0]


@pytest.mark.slow
@SPREAD
def test_an_emulator_dies(lab: Lab, spread: Spread) -> None:
    running = lab.write(LONG).start(*IDEAL, *spread)
    for agent in ("gw0", "gw1") if spread else ("main",):
        running.wait_for_records(agent, "test_long", 20)
    running.emulator().kill()
    run = running.end()
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert run.counts()["failed"] == 1
    assert "Traceback" not in run.text
    assert "INTERNALERROR" not in run.text
    assert "the emulator of emulated:ideal died" in run.text
    assert (
        len([line for line in failures(run).splitlines() if line.strip() and not line.startswith(("_", "[", "="))]) <= 2
    )
    info = run.info("test_long[emulated:ideal]")
    assert any("the emulator of emulated:ideal died" in doubt for doubt in info["doubts"]), info["doubts"]
    assert info["ok"] >= 20
    assert info["errors"].get("network", 0) > 0
    assert len(keys(run.records()["test_long"])) == info["ops"] == 320


@pytest.mark.slow
@SPREAD
def test_an_emulator_that_is_stopped_for_ever_is_named(lab: Lab, spread: Spread) -> None:
    running = lab.write(LONG).start(*IDEAL, *spread, "-ocloudbench_patience=20")
    for agent in ("gw0", "gw1") if spread else ("main",):
        running.wait_for_records(agent, "test_long", 20)
    running.emulator().suspend()
    run = running.end()
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert "Traceback" not in run.text
    assert "INTERNALERROR" not in run.text
    assert "the emulator of emulated:ideal died (it did not answer for 5 s and was ended)" in run.text
    assert run.info("test_long[emulated:ideal]")["missing_agents"] == {}, "no agent is blamed"
    assert run.info("test_long[emulated:ideal]")["ok"] >= 20


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_an_emulator_that_is_told_to_end_under_load_leaves_no_traceback(lab: Lab, how: signal.Signals) -> None:
    running = lab.write(LONG.replace("0.05", "0.1")).start(*IDEAL, "-n", "2")
    for agent in ("gw0", "gw1"):
        running.wait_for_records(agent, "test_long", 20)
    running.emulator().send_signal(how)
    run = running.end()
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert "Traceback" not in run.text
    assert "the emulator of emulated:ideal died (exit status 0)" in run.text
    (log,) = lab.folder.rglob("emulator-*.log")
    assert log.read_text() == ""


CAN_MOUNT = (
    os.name == "posix"
    and shutil.which("unshare") is not None
    and subprocess.run(
        ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"], capture_output=True, check=False
    ).returncode
    == 0
)
FULL = pytest.mark.skipif(not CAN_MOUNT, reason="needs the right to mount a small disk: run as root")


ON_ANOTHER_HOST = """
    import os
    from pytest_cloudbench.fleet import agent

    if "PYTEST_XDIST_WORKER" in os.environ:
        agent.host_id = lambda: "another"
"""
NO_SPARE_ROOM = """
    import tempfile

    tempfile.tempdir = "small"
"""


@pytest.mark.quick_cases(1)
@FULL
@SPREAD
@pytest.mark.parametrize("size_kib", [16, 72], ids=["log", "parquet"])
def test_a_full_disk_loses_no_record(lab: Lab, spread: Spread, size_kib: int) -> None:
    check_full_disk(lab, size_kib, *spread)


@FULL
def test_a_full_disk_loses_no_record_of_another_host(lab: Lab) -> None:
    lab.write(ON_ANOTHER_HOST, "conftest.py")
    run = check_full_disk(lab, 16, "-n", "2", "-ocloudbench_start=spawn")
    assert (
        len([note for note in run.info("test_many[folder:objects]")["notes"] if "the records continue in" in note]) == 2
    )


@FULL
def test_records_of_another_host_that_fit_nowhere_are_a_doubt(lab: Lab) -> None:
    lab.write(ON_ANOTHER_HOST + NO_SPARE_ROOM, "conftest.py")
    run = run_on_small_disk(lab, 16, "-n", "2", "-ocloudbench_start=spawn")
    assert run.status == 1, run.text
    assert "the controller is gone" not in run.text
    doubts = run.info("test_many[folder:objects]")["doubts"]
    assert any(doubt.startswith("not all records of gw0 could be written: ") for doubt in doubts), doubts


def run_on_small_disk(lab: Lab, size_kib: int, *args: str) -> FinishedRun:
    """Run a session whose results are on a disk of this size."""
    lab.write("""
        def test_many(experiment, payloads):
            experiment.run(payloads.random(20), arrival=FixedInterval(0.005), sensors=4, ops_per_sensor=150).check()

        def test_after(experiment, payloads):
            pass
    """)
    (lab.folder / "small").mkdir()
    temporary = lab.folder / "kept"
    temporary.mkdir()
    return lab.run(*FOLDER, *args, "--cloudbench-results", "small",
                   env={"TMPDIR": str(temporary)}, within=f"mount -t tmpfs -o size={size_kib}k none small",
                   after="cp -a small copied")  # fmt: skip


def check_full_disk(lab: Lab, size_kib: int, *args: str) -> FinishedRun:
    run = run_on_small_disk(lab, size_kib, *args)
    assert run.status == 1, run.text
    assert run.leftovers == []
    assert "Traceback" not in run.text
    assert "INTERNALERROR" not in run.text
    assert run.lines_with("No space left on device"), run.text
    assert len(run.lines_with("free some space")) >= 1
    info = run.info("test_many[folder:objects]")
    assert info["ops"] == 600, "the entry counts all"
    records = run.all_records()
    assert sorted(set(records)) == [(sensor, seq) for sensor in range(4) for seq in range(150)], "no record is lost"
    return run


@FULL
def test_unsavable_entries_are_reported_in_one_line(lab: Lab) -> None:
    (lab.folder / "small").mkdir()
    fill = "mount -t tmpfs -o size=4k none small; head -c 4096 /dev/zero > small/filler"
    run = lab.write(ONE).run(*FOLDER, "--benchmark-autosave", "--benchmark-storage", "file://small", within=fill)
    assert run.status == 1, run.text
    assert "Traceback" not in run.text
    assert "INTERNALERROR" not in run.text
    assert len(run.lines_with("cannot save the entries")) == 1, run.text
    assert run.lines_with("entries: not stored (see above)"), "the option that stores them was given"
    assert len(list(Path(lab.folder).rglob("*.parquet"))) == 1


@pytest.mark.quick_cases(1)
@SPREAD
@pytest.mark.parametrize("provider", [FOLDER, IDEAL], ids=["folder", "emulated"])
def test_unwritable_project_is_reported_in_one_line_with_advice(
    lab: Lab, provider: tuple[str, ...], spread: Spread
) -> None:
    run = lab.write(ONE).run(*provider, *spread, "--cloudbench-results", "test_it.py/results")
    assert run.status == 1, run.text
    lines = run.lines_with("choose another place with --cloudbench-results")
    assert lines
    assert [line for line in lines if "test_it.py/results" not in line] == []
    assert "Traceback" not in run.text
    assert "NotADirectoryError" not in run.text


def test_a_metric_that_is_not_there_is_named_with_one_that_is(lab: Lab) -> None:
    lab.write("""
        def test_one(experiment, payloads):
            result = experiment.run(payloads.random(100), arrival=FixedInterval(0.02), sensors=2, ops_per_sensor=2)
            for name in ("response_p9", "respons_p99", "p99", "no such thing"):
                with pytest.raises(KeyError) as caught:
                    result[name]
                print(caught.value)
            result["throughputs"]
    """)
    run = lab.run(*FOLDER, "-s")
    assert "response_p9: this run has no such metric; did you mean response_p9" in run.text
    assert "respons_p99: this run has no such metric; did you mean response_p99?" in run.text
    assert "p99: this run has no such metric; did you mean " in run.text
    assert "no such thing: this run has no such metric; docs/method.md lists all" in run.text
    assert run.lines_with("FAILED test_it.py::test_one")[0].endswith(
        "throughputs: this run has no such metric; did you mean throughput?"
    )


@pytest.mark.slow
def test_a_loss_for_want_of_files_is_not_the_providers(lab: Lab) -> None:
    """A hundred connections at once do not fit into 64 files. The service has begun with more."""
    lab.write(
        """
        import resource

        def test_it(experiment, payloads):
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            experiment.run(payloads.random(100), arrival=FixedInterval(0), sensors=100, ops_per_sensor=1)
        """
    )
    run = lab.run("--provider", "emulated:ideal", "--cloudbench-fail", "loss_rate:0.9")
    assert run.lines_with("operations failed at limits of their own machine"), run.text
    assert run.counts() == {"failed": 1}, run.text
    assert run.lines_with("gate loss_rate:0.9: unknown"), run.text
