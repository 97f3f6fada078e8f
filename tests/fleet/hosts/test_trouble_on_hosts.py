"""Trouble on hosts. Each case takes one line, hangs nothing, loses nothing acknowledged and leaves nothing behind."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.results.oplog import read_log
from tests.fleet.harness import FinishedRun, Lab, RunningSession, grid, keys, lab_in
from tests.fleet.hosts.command_hosts import HERE, describe_hosts, find_relay, find_temporary, write_tests
from tests.limits import HANG_S

pytestmark = pytest.mark.slow

INTERVAL_S = 0.1
SENSORS, COUNT = 8, 40
TESTS = write_tests(SENSORS, COUNT, INTERVAL_S)
needs_mounts = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs Linux and root, to mount a small disk"
)


@pytest.fixture
def temporary(lab: Lab) -> Path:
    """The folder that hosts write to, which is outside the project."""
    folder = find_temporary(lab)
    folder.mkdir()
    (lab.folder / "objects").mkdir()
    return folder


def begin(lab: Lab, temporary: Path, *more: str) -> RunningSession:
    options = ("--provider", f"folder:{lab.folder / 'objects'}", "--cloudbench-hosts", "hosts.toml", *more)
    return lab.start(*options, env={"TMPDIR": str(temporary), "PIDS": str(lab.folder)})


def check_nothing_is_left(run: FinishedRun, temporary: Path) -> None:
    assert "INTERNALERROR" not in run.text
    assert run.leftovers == []
    assert list(temporary.glob("cloudbench-host-*")) == []


def find_entry(run: FinishedRun, name: str) -> dict[str, Any]:
    [info] = [entry["extra_info"] for test, entry in run.entries.items() if test.startswith(name)]
    return dict(info)


@needs_mounts
def test_disk_too_small_for_the_tests_is_reported_in_one_line(lab: Lab, temporary: Path) -> None:
    (lab.folder / "data.csv").write_bytes(os.urandom(1 << 18))
    small = f'mount -t tmpfs -o size=64k none {temporary} && exec {sys.executable} \\"$@\\"'
    row = f'command = ["unshare", "-m", "sh", "-c", "{small}", "sh"]'
    lab.write(TESTS).write(describe_hosts(HERE, row), "hosts.toml")
    run = begin(lab, temporary, "-k", "second").end()
    [line] = run.lines_with("cloudbench: host host2: ")
    assert "cannot write the tests to " in line
    assert "No space left on device" in line
    assert find_entry(run, "test_second")["agents"] == 2
    check_nothing_is_left(run, temporary)


@needs_mounts
def test_a_disk_that_fills_up_loses_no_record(lab: Lab, temporary: Path) -> None:
    """Agents on other hosts write no records to their own disks."""
    small = f'mount -t tmpfs -o size=4m none {temporary} && exec {sys.executable} \\"$@\\"'
    row = f'command = ["unshare", "-m", "sh", "-c", "{small}", "sh"]'
    fill = """
    @pytest.fixture(autouse=True)
    def fill():
        with open(os.environ["TMPDIR"] + f"/fill-{os.getpid()}", "wb", buffering=0) as file:
            with pytest.raises(OSError, match="No space left"):
                while True:
                    file.write(bytes(1 << 16))
    """
    lab.write(fill + TESTS).write(describe_hosts(row), "hosts.toml")
    run = begin(lab, temporary).end()
    assert run.status == 0, run.text
    assert keys(run.records()["test_first"]) == grid(SENSORS, COUNT)
    check_nothing_is_left(run, temporary)


def test_a_clock_that_jumps_is_a_doubt(lab: Lab, temporary: Path) -> None:
    flag = temporary / "jump"
    clock = lab.folder.with_name(f"{lab.folder.name}-clock")
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(
        "import os, time\nright = time.monotonic_ns\n"
        f"time.monotonic_ns = lambda: right() + 100 * 10**9 * os.path.exists({str(flag)!r})\n"
    )
    lab.write(TESTS).write(describe_hosts(HERE, f'{HERE}\nenv = {{ PYTHONPATH = "{clock}" }}'), "hosts.toml")
    running = begin(lab, temporary)
    running.wait_for_records("gw2", "test_first", 5)
    flag.touch()
    run = running.end()
    assert keys(run.records()["test_first"]) == grid(SENSORS, COUNT)
    doubts = " ".join(find_entry(run, "test_first")["doubts"])
    assert "the clock of gw2 on host2 jumped by 100 s" in doubts
    assert "the clock of gw0" not in doubts
    second = " ".join(find_entry(run, "test_second")["doubts"])
    assert "jumped" not in second, "it was measured anew"
    check_nothing_is_left(run, temporary)


def test_half_of_the_agents_killed_lose_at_most_a_second_and_are_named(lab: Lab, temporary: Path) -> None:
    lab.write(TESTS).write(describe_hosts(HERE, HERE), "hosts.toml")
    running = begin(lab, temporary)
    running.wait_for_records("gw1", "test_first", 20)
    running.wait_for_records("gw3", "test_first", 20)
    workers = running.workers()
    killed_ns = time.monotonic_ns()
    for agent in ("gw1", "gw3"):
        workers[agent].kill()
    run = running.end()
    first = run.records()["test_first"]
    start_ns = min(first.scheduled_ns)
    due = {
        key
        for key in grid(SENSORS, COUNT)
        if start_ns + round(key[1] * INTERVAL_S * 1e9) < killed_ns - 1_200_000_000 or key[0] % 4 in (0, 2)
    }
    assert due <= set(keys(first))
    assert set(find_entry(run, "test_first")["missing_agents"]) == {"gw1", "gw3"}
    second = find_entry(run, "test_second")
    assert second["agents"] == 4 or any("began with" in doubt for doubt in second["doubts"])
    assert not run.lines_with("cloudbench: host host"), "both hosts still answer"
    check_nothing_is_left(run, temporary)


def test_two_sessions_use_the_same_hosts_at_once(lab: Lab, temporary: Path) -> None:
    lab.write(TESTS).write(describe_hosts(HERE, HERE), "hosts.toml")
    folder = lab.folder.with_name(f"{lab.folder.name}-other")
    folder.mkdir()
    with lab_in(folder) as other:
        (other.folder / "objects").mkdir()
        other.write(TESTS).write(describe_hosts(HERE, HERE), "hosts.toml")
        sessions = [begin(lab, temporary), begin(other, temporary)]
        for session in sessions:
            session.wait_for_records("gw2", "test_first", 1)
        assert all(session.process.poll() is None for session in sessions), "they are there at the same time"
        for run in [session.end() for session in sessions]:
            assert run.counts()["passed"] == 2, run.text
            assert keys(run.records()["test_first"]) == grid(SENSORS, COUNT)
            check_nothing_is_left(run, temporary)


_SLOW = """
import os, queue, subprocess, sys, threading, time

def copy(source, sink):
    pieces = queue.SimpleQueue()
    threading.Thread(target=write, args=(pieces, sink)).start()
    data = b"begin"
    while data:
        data = os.read(source, 1 << 16)
        pieces.put((time.monotonic() + 0.2, data))

def write(pieces, sink):
    data = b"begin"
    while data:
        due_s, data = pieces.get()
        time.sleep(max(0, due_s - time.monotonic()))
        while data and (sent := os.write(sink, data)) < len(data):
            data = data[sent:]
    os.close(sink)

process = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
threading.Thread(target=copy, args=(0, process.stdin.fileno()), daemon=True).start()
copy(process.stdout.fileno(), 1)
"""
"""A program that runs another one, and delays its input and output by 0.2 s."""


def test_a_host_that_answers_slowly_takes_part_and_its_clock_has_an_honest_bound(lab: Lab, temporary: Path) -> None:
    slow = lab.folder.with_name(f"{lab.folder.name}-slow.py")
    slow.write_text(_SLOW, "utf-8")
    row = f'command = ["{sys.executable}", "{slow}", "{sys.executable}"]'
    lab.write(TESTS).write(describe_hosts(HERE, row), "hosts.toml")
    run = begin(lab, temporary, "-k", "second").end()
    assert run.counts()["passed"] == 1, run.text
    assert keys(run.records()["test_second"]) == grid(8, 2)
    info = find_entry(run, "test_second")
    assert info["agents"] == 4
    near, far = (host["clock_error_ns"] for host in info["hosts"])
    assert far >= 200_000_000 > near, "half of a round trip"
    table = run.records()["test_second"]
    late_s = [(begun - due) / 1e9 for begun, due in zip(table.start_ns, table.scheduled_ns, strict=True)]
    first_of_far = [
        late_s[row]
        for row, (sensor, seq) in enumerate(zip(table.sensor, table.seq, strict=True))
        if sensor % 4 >= 2 and not seq
    ]
    assert min(first_of_far) < 0.1, "the common start reached it in time"
    check_nothing_is_left(run, temporary)


def test_a_steady_run_ends_at_the_same_due_time_on_a_host_that_answers_slowly(lab: Lab, temporary: Path) -> None:
    slow = lab.folder.with_name(f"{lab.folder.name}-slow.py")
    slow.write_text(_SLOW, "utf-8")
    row = f'command = ["{sys.executable}", "{slow}", "{sys.executable}"]'
    lab.write("""
        from pytest_cloudbench.judge import steady
        steady.LEAST_OPS = dict.fromkeys(steady.LEAST_OPS, 100)
    """, "conftest.py").write(describe_hosts(HERE, row), "hosts.toml").write("""
        from pytest_cloudbench import FixedInterval, Stable

        def test_it(experiment, payloads):
            load = dict(arrival=FixedInterval(0.02), sensors=4, ops_per_sensor=2000)
            experiment.run(payloads.random(50), **load, until=Stable("response_p50", within=1.0))
    """)  # fmt: skip
    run = begin(lab, temporary).end()
    assert find_entry(run, "test_it")["ended"] == "steady", run.text
    counts = Counter(sensor for sensor, _ in keys(run.records()["test_it"]))
    assert max(counts.values()) - min(counts.values()) <= 1
    check_nothing_is_left(run, temporary)


def test_records_that_come_late_are_a_note(lab: Lab, temporary: Path) -> None:
    lab.write(TESTS).write(describe_hosts(HERE, HERE), "hosts.toml")
    running = begin(lab, temporary)
    running.wait_for_records("gw2", "test_first", 5)
    relay = find_relay(running, "gw2")
    log = running.log_of("gw0", "test_first")
    assert log is not None
    count = len(read_log(log))
    relay.suspend()
    running.wait_for_records("gw0", "test_first", count + 50)  # two sensors, every 0.1 s, for 2.5 s
    relay.resume()
    run = running.end()
    assert run.counts() == {"passed": 2}, run.text
    notes = {name: find_entry(run, name)["notes"] for name in ("test_first", "test_second")}
    [note] = [note for note in notes["test_first"] if note.startswith("records of other hosts came up to ")]
    assert 1.2 < float(note.split()[7]) < HANG_S
    assert not any("records of other hosts" in note for note in notes["test_second"])
