"""A session with agents on several hosts. It does the same work, and does not wait for a host that is gone."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

import pytest_cloudbench
from pytest_cloudbench.commands.cli import main
from pytest_cloudbench.judge.baseline import conditions_of
from pytest_cloudbench.results.lines import add_line
from pytest_cloudbench.results.machine import describe_machine
from pytest_cloudbench.results.rows import identify
from tests.fleet.harness import FinishedRun, Lab, grid, keys
from tests.fleet.hosts.command_hosts import (
    HERE,
    describe_hosts,
    find_relay,
    find_temporary,
    temporary,
    write_tests,
)
from tests.runs import QUIET

INTERVAL_S = 0.1
SENSORS, COUNT = 6, 40
TESTS = write_tests(SENSORS, COUNT, INTERVAL_S)


@pytest.fixture
def options(lab: Lab) -> tuple[str, ...]:
    objects = lab.folder / "objects"
    objects.mkdir()
    find_temporary(lab).mkdir()
    return ("--provider", f"folder:{objects}", "--cloudbench-hosts", "hosts.toml")


def check_host_was_lost(run: FinishedRun, reason: str) -> None:
    assert run.leftovers == []
    assert "INTERNALERROR" not in run.text
    assert len(run.lines_with(f"cloudbench: host host2: {reason}")) == 1, run.text
    assert "replacing crashed worker" not in run.text


def test_hosts_do_the_same_work_beside_local_agents_and_keep_nothing(lab: Lab, options: tuple[str, ...]) -> None:
    lab.write(TESTS).write(describe_hosts(HERE, HERE), "hosts.toml")
    lab.write("import os\nassert os.getcwd() == os.path.dirname(__file__)", "conftest.py")
    for name, key in (("host1", identify([sys.executable])), ("this machine", identify())):
        add_line(lab.folder / "results", {"host": name, "key": key, "provider": "x", "date": f"{name}'s day"})
    run = lab.run(*options, "-n", "1", "-v", env=temporary(lab))
    assert run.status == 0, run.text
    assert "warnings" not in run.counts(), run.text
    assert run.lines_with(" cwd: ") == [], "what xdist would print of a host before it has answered"
    assert run.counts() == {"passed": 2}
    assert run.leftovers == []
    assert list(find_temporary(lab).glob("cloudbench-host-*")) == []
    assert run.logs() == []
    assert keys(run.records()["test_first"]) == grid(SENSORS, COUNT)
    [info] = [entry["extra_info"] for name, entry in run.entries.items() if name.startswith("test_first")]
    assert info["agents"] == 5
    assert info["missing_agents"] == {}
    hosts = {host["name"]: host for host in info["hosts"]}
    assert {name: host["agents"] for name, host in hosts.items()} == {"this machine": 1, "host1": 2, "host2": 2}
    assert hosts["host1"]["machine"] == hosts["this machine"]["machine"] == describe_machine()
    assert abs(hosts["host1"]["clock_offset_ns"]) <= hosts["host1"]["clock_error_ns"], "it is the same clock"
    days = {name: host.get("line", {}).get("date") for name, host in hosts.items()}
    assert days == {"this machine": "this machine's day", "host1": "host1's day", "host2": None}
    first = run.records()["test_first"]
    assert first.hosts == dict(enumerate(["this machine", "host1", "host1", "host2", "host2"]))
    assert Counter(first.host) == {name: figures["ops"] for name, figures in info["by_host"].items()}
    assert run.lines_with("5 agents on 3 hosts, open loop")
    assert [line.split()[0] for line in run.text.partition("hosts compared")[2].splitlines()[4:8]] == [
        "test_first", "this", "host1", "host2"
    ]  # fmt: skip


@pytest.mark.parametrize("place", ["addopts", "PYTEST_ADDOPTS", "a file of arguments"])
def test_a_table_of_hosts_that_nobody_types_is_used(lab: Lab, options: tuple[str, ...], place: str) -> None:
    lab.write(describe_hosts(f'command = ["sh", "-c", "touch {lab.folder}/reached; exec {sys.executable} $*", "sh"]'),
              "hosts.toml")  # fmt: skip
    lab.write(f"""
        from pytest_cloudbench import FixedInterval

        @pytest.mark.cloudbench_provider({options[1]!r})
        def test_it(experiment, payloads):
            experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=2).check()
    """)
    typed, settings, environment = "--cloudbench-hosts=hosts.toml", lab.folder / "pytest.ini", temporary(lab)
    if place == "addopts":
        settings.write_text(f"{settings.read_text()}addopts = {typed}\n")
    elif place == "PYTEST_ADDOPTS":
        environment["PYTEST_ADDOPTS"] = f"{QUIET} {typed}"
    else:
        (lab.folder / "arguments").write_text(f"{typed}\n{lab.folder}/test_it.py\n")
    run = lab.run(*(["@arguments"] if place == "a file of arguments" else []), env=environment)
    assert run.status == 0, run.text
    assert (lab.folder / "reached").exists(), "the agents run through the host's command"
    assert run.leftovers == []


def test_a_table_that_cannot_be_read_ends_the_session_in_one_line(lab: Lab, options: tuple[str, ...]) -> None:
    run = lab.write(TESTS).run(*options)
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert run.lines_with("ERROR: hosts.toml: cannot be read (No such file or directory); expected a table of hosts")


def test_a_project_that_is_too_large_for_hosts_ends_the_session_in_one_line(lab: Lab, options: tuple[str, ...]) -> None:
    lab.write(TESTS).write(describe_hosts(HERE), "hosts.toml")
    lab.write("from pytest_cloudbench.fleet.hosts import travel\ntravel._MOST_BYTES = 10", "conftest.py")
    run = lab.run(*options)
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert run.lines_with(f"ERROR: the tests below {lab.folder} are larger than 0 MiB, too large to be sent to other")
    assert "INTERNALERROR" not in run.text


@pytest.mark.slow
def test_a_killed_host_loses_at_most_its_last_second(lab: Lab, options: tuple[str, ...]) -> None:
    lab.write(TESTS).write(describe_hosts(HERE, HERE), "hosts.toml")
    running = lab.start(*options, env=temporary(lab))
    running.wait_for_records("gw2", "test_first", 20)
    find_relay(running, "gw2").kill()
    killed_ns = time.monotonic_ns()
    run = running.end()
    check_host_was_lost(run, "the connection broke")
    assert run.counts() == {"failed": 1, "passed": 1}, run.text
    first = run.records()["test_first"]
    start_ns = min(first.scheduled_ns)
    due = {
        key for key in grid(SENSORS, COUNT) if start_ns + round(key[1] * INTERVAL_S * 1e9) < killed_ns - 1_200_000_000
    }
    assert {key for key in due if key[0] % 4 in (2, 3)}, "it was killed in mid-run"
    assert due <= set(keys(first))
    [info] = [entry["extra_info"] for name, entry in run.entries.items() if name.startswith("test_second")]
    assert info["agents"] == 2
    assert any("began with 2 of 4 agents" in doubt for doubt in info["doubts"])
    doubt_prefix = "host host2 was not there to the end: the connection broke: "
    for name in ("test_first", "test_second"):
        [info] = [entry["extra_info"] for test, entry in run.entries.items() if test.startswith(name)]
        assert any(doubt.startswith(doubt_prefix) for doubt in info["doubts"]), info["doubts"]
        assert conditions_of(info)["hosts"].keys() == {"host1"}
        [host2] = [host for host in info["hosts"] if host["name"] == "host2"]
        counts = (2, 2, 0) if name == "test_first" else (0, 0, 2)
        assert (host2["agents"], host2["lost_agents"], host2["absent_agents"]) == counts
    leftover = list(find_temporary(lab).glob("cloudbench-host-*"))
    lab.run(*options, "-k", "second", env=temporary(lab))
    assert leftover, "a killed relay could not remove its folder"
    assert list(find_temporary(lab).glob("cloudbench-host-*")) == [], "the next one has"


@pytest.mark.slow
def test_a_frozen_host_is_given_up_after_the_patience(lab: Lab, options: tuple[str, ...]) -> None:
    lab.write(TESTS).write(describe_hosts(HERE, HERE), "hosts.toml")
    running = lab.start(*options, "-ocloudbench_patience=5", env=temporary(lab))
    running.wait_for_records("gw2", "test_first", 5)
    relay = find_relay(running, "gw2")
    processes = [relay, *relay.children(recursive=True)]
    for process in processes:
        process.suspend()
    status = running.process.wait()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    run = running.end()
    assert status == 1
    check_host_was_lost(run, "has not answered for")
    assert run.counts() == {"failed": 1, "passed": 1}, run.text


REFUSED = 'command = ["sh", "-c", "echo Permission denied >&2; exit 255"]'
UNREACHABLE = {
    "no such program": ('command = ["/none/ssh", "host"]', "/none/ssh: No such file or directory"),
    "refused": (REFUSED, "Permission denied"),
    "silent": ('command = ["sh", "-c", "exec sleep 1000"]', "has not answered for"),
    "bare": (f'{HERE}\npython = "./bare"', "an agent did not start: ModuleNotFoundError: No module named"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case == "refused" else pytest.mark.slow) for case in UNREACHABLE]
)
def test_a_host_that_does_not_begin_is_left_out(lab: Lab, options: tuple[str, ...], case: str) -> None:
    row, reason = UNREACHABLE[case]
    bare = lab.folder / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n', "utf-8")
    bare.chmod(0o755)
    lab.write(TESTS).write(describe_hosts(HERE, row.replace("./bare", str(bare))), "hosts.toml")
    run = lab.run(*options, "-k", "second", "-ocloudbench_patience=8", env=temporary(lab))
    check_host_was_lost(run, reason)
    assert run.status == 0, run.text
    assert "warnings" not in run.counts(), run.text
    assert run.counts()["passed"] == 1
    [entry] = run.entries.values()
    assert entry["extra_info"]["agents"] == 2
    assert any("began with 2 of 4 agents" in doubt for doubt in entry["extra_info"]["doubts"])


def test_a_session_without_any_host_left_ends(lab: Lab, options: tuple[str, ...]) -> None:
    lab.write(TESTS).write(describe_hosts(REFUSED, REFUSED), "hosts.toml")
    run = lab.run(*options, env=temporary(lab))
    assert run.status != 0
    assert "INTERNALERROR" not in run.text
    assert "no host is left" in run.text
    assert run.leftovers == []


def test_a_service_of_this_machine_is_reached_through_the_connection(lab: Lab, options: tuple[str, ...]) -> None:
    lab.write(TESTS).write(describe_hosts(HERE), "hosts.toml")
    run = lab.run(*options[2:], "--provider", "emulated:ideal", "-n", "1", "-k", "second", env=temporary(lab))
    assert run.status == 0, run.text
    assert "warnings" not in run.counts(), run.text
    assert keys(run.records()["test_second"]) == grid(6, 2)
    [entry] = run.entries.values()
    info = entry["extra_info"]
    assert info["ok_rate"] == 1.0
    assert len(info["through_controller"]) == 2, "and the third is here"
    assert "2 of 3 agents reached emulated:ideal through this machine's connection" in " ".join(info["notes"])
    assert info["wire_bytes_per_op"] > 50, "each connection to the service is counted, whoever made it"
    assert run.leftovers == []


@pytest.mark.slow
def test_paths_of_the_controller_become_those_of_a_host(lab: Lab, options: tuple[str, ...]) -> None:
    (lab.folder / "sub").mkdir()
    lab.write("from pytest_cloudbench import FixedInterval\n" + textwrap.dedent(TESTS), "sub/test_it.py").write(
        describe_hosts(HERE), "hosts.toml"
    )
    path = Path(lab.folder / "sub" / "test_it.py")
    run = lab.run(*options, f"{path}", "-k", "second", f"--rootdir={lab.folder}", env=temporary(lab))
    assert run.status == 0, run.text
    assert "warnings" not in run.counts(), run.text
    assert run.counts()["passed"] == 1


@pytest.mark.parametrize(
    "args",
    [
        ("second/tests/test_it.py::test_second",),
        ("second/tests", "-k", "second", "-c", "second/own.ini"),
        ("second/tests", "-k", "second", "--config-file=second/own.ini"),
        ("./second/../second", "-k", "second", "--rootdir=second"),
        ("second", "-k", "second"),
    ],
)
def test_relative_paths_from_above_the_project_lead_to_the_same_files_on_a_host(
    lab: Lab, options: tuple[str, ...], args: tuple[str, ...]
) -> None:
    tests = lab.folder / "second" / "tests"  # a name that is an expression, too
    tests.mkdir(parents=True)
    for name in ("pytest.ini", "own.ini"):
        (tests.parent / name).write_text("[pytest]\n")
    lab.write(textwrap.dedent(TESTS), "second/tests/test_it.py").write(describe_hosts(HERE), "hosts.toml")
    # In one word, because pytest takes a file in a word of its own for an argument, and looks for the root above both.
    run = lab.run(*options[:2], "--cloudbench-hosts=hosts.toml", *args, env=temporary(lab))
    assert run.status == 0, run.text
    assert run.lines_with(f"rootdir: {lab.folder}/second")
    assert run.counts()["passed"] == 1


@pytest.mark.slow
def test_a_host_with_other_code_is_left_out_before_anything_runs(lab: Lab, options: tuple[str, ...]) -> None:
    package = Path(pytest_cloudbench.__file__).parent
    theirs = shutil.copytree(package, lab.folder / "o" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    (theirs / "model.py").write_text((theirs / "model.py").read_text("utf-8") + "# changed\n", "utf-8")
    other = f'{HERE}\nenv = {{ PYTHONPATH = "{theirs.parent}" }}'
    lab.write(TESTS).write(describe_hosts(HERE, other), "hosts.toml")
    run = lab.run(*options, "-k", "second", "test_it.py", env=temporary(lab))
    check_host_was_lost(run, "an agent did not start: it has pytest-cloudbench ")
    assert "run cloudbench hosts install; going on without its agents (2)" in run.text
    [entry] = run.entries.values()
    assert entry["extra_info"]["agents"] == 2


WHO = """
    def test_who(experiment, payloads, fleet):
        (pathlib.Path(os.environ["PIDS"]) / f"parent-{fleet.name}").write_text(
            " ".join(__import__("psutil").Process(os.getppid()).cmdline())
        )
        experiment.run(payloads.random(50), arrival=FixedInterval(0.02), sensors=4, ops_per_sensor=3).check()
"""
STARTED_ALONE = "cloudbench: agents of host host1 were started one by one: "


def count_forked(lab: Lab) -> int:
    """Return the number of agents that were forked from the process that had collected the tests."""
    return sum("warm_entry" in path.read_text() for path in lab.folder.glob("parent-*"))


@pytest.mark.parametrize(("start", "forked"), [("fork", 4), pytest.param("spawn", 0, marks=pytest.mark.slow)])
def test_agents_of_a_host_are_forked_from_one_process(
    lab: Lab, options: tuple[str, ...], start: str, forked: int
) -> None:
    lab.write(WHO).write(describe_hosts(HERE, HERE), "hosts.toml")
    run = lab.run(*options, f"-ocloudbench_start={start}", env=temporary(lab))
    assert (run.status, run.leftovers) == (0, []), run.text
    assert len(list(lab.folder.glob("parent-*"))) == 4
    assert count_forked(lab) == forked
    assert "one by one" not in run.text


def test_agents_start_one_by_one_on_host_whose_conftest_read_worker_id(lab: Lab, options: tuple[str, ...]) -> None:
    lab.write(WHO).write("import os\nNAME = os.environ.get('PYTEST_XDIST_WORKER')", "conftest.py")
    run = lab.write(describe_hosts(HERE), "hosts.toml").run(*options, env=temporary(lab))
    assert (run.status, run.leftovers) == (0, []), run.text
    assert count_forked(lab) == 0
    [line] = run.lines_with(STARTED_ALONE)
    assert line.endswith("conftest.py:2 reads PYTEST_XDIST_WORKER")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_agents_start_on_host_without_its_process_to_fork_from(
    lab: Lab, options: tuple[str, ...], number: signal.Signals
) -> None:
    lab.write(
        f"""
        import os, pathlib
        def pytest_collection_finish(session):
            if hasattr(session.config, "workerinput"):
                try:
                    (pathlib.Path(os.environ["PIDS"]) / "first").touch(exist_ok=False)
                except FileExistsError:
                    return
                os.kill(os.getpid(), {int(number)})
        """,
        "conftest.py",
    )
    run = lab.write(WHO).write(describe_hosts(HERE), "hosts.toml").run(*options, env=temporary(lab))
    assert (run.status, run.leftovers) == (0, []), run.text
    assert len(list(lab.folder.glob("parent-*"))) == 2
    assert run.lines_with(f"{STARTED_ALONE}the process that others are forked from has ended")


def test_a_lost_agent_of_a_host_is_replaced_by_another_fork(lab: Lab, options: tuple[str, ...]) -> None:
    lab.write(WHO, "test_b.py").write(describe_hosts(HERE), "hosts.toml")
    lab.write(
        """
        @pytest.mark.parametrize("number", range(8))
        def test_plain(number, worker_id):
            folder = pathlib.Path(os.environ["PIDS"])
            (folder / f"began-{worker_id}").touch()
            if worker_id == "gw1":
                os._exit(1)
            wait_for(folder / "began-gw2")
        """,
        "test_a.py",
    )
    run = lab.run(*options, env=temporary(lab))
    assert run.leftovers == []
    assert run.counts() == {"failed": 1, "passed": 8}, run.text
    assert count_forked(lab) == 2


@pytest.mark.slow
def test_packets_that_nobody_sees_are_unknown(lab: Lab, options: tuple[str, ...]) -> None:
    """Each host has a loopback of its own, so one agent's capture would have a part of all packets."""
    lab.write("""
        from pytest_cloudbench import FixedInterval, Wire

        def test_it(experiment, payloads):
            wire = Wire(experiment)
            _, seen = wire.of(
                lambda: experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=6, ops_per_sensor=2)
            )
            assert seen.bytes is None
            assert "on several machines" in seen.why
    """).write(describe_hosts(HERE), "hosts.toml")
    run = lab.run(*options[2:], "--provider", "emulated:ideal", env=temporary(lab))
    assert run.counts() == {"passed": 1}, run.text


@pytest.mark.slow
def test_clean_removes_folders_of_killed_session_on_hosts(
    lab: Lab, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.write(TESTS).write(describe_hosts(HERE, HERE), "hosts.toml")
    running = lab.start(*options, env=temporary(lab))
    running.wait_for_records("gw2", "test_first", 1)
    relays = [find_relay(running, "gw0"), find_relay(running, "gw2")]
    for relay in relays:
        relay.suspend()  # or it would notice the end of the session, and remove its folder itself
    running.process.kill()
    for relay in relays:
        relay.kill()
    running.process.wait()
    psutil.wait_procs(relays)
    assert len(list(find_temporary(lab).glob("cloudbench-host-*"))) == 2
    monkeypatch.setenv("TMPDIR", str(find_temporary(lab)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(find_temporary(lab) / "cache"))
    assert main(["clean", "--hosts", str(lab.folder / "hosts.toml")]) == 0
    assert capsys.readouterr().out == "host1: nothing was installed there\nhost2: nothing was installed there\n"
    assert list(find_temporary(lab).glob("cloudbench-host-*")) == []


def test_reason_is_reported_when_the_last_host_ends_the_session(lab: Lab, options: tuple[str, ...]) -> None:
    """xdist ends a session without workers before it has handled all events."""
    lab.write(
        """
        def pytest_sessionstart(session):
            events = session.config.pluginmanager.getplugin("dsession").queue
            put = events.put
            events.put = lambda event: None if event[0] == "cloudbench_host_lost" else put(event)
        """,
        "conftest.py",
    )
    broken = f'{HERE}\npython = "/none/python"'
    run = lab.write(TESTS).write(describe_hosts(broken), "hosts.toml").run(*options, env=temporary(lab))
    assert "no host is left" in run.text
    [line] = run.lines_with("cloudbench: host host1: ")
    assert "/none/python" in line
