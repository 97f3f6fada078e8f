"""The relay of a host: the frames it carries, the agents it starts, and its end."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.fleet.hosts.connection import HostConnection
from pytest_cloudbench.fleet.hosts.relay import FOLDER_PREFIX
from pytest_cloudbench.fleet.hosts.streams import FILES, FrameReader, pack_frame
from pytest_cloudbench.fleet.hosts.table import Host
from pytest_cloudbench.fleet.hosts.travel import pack_files
from pytest_cloudbench.model import FleetError, UsageError
from pytest_cloudbench.support.clock import wait_for
from tests.fleet.hosts.conftest import Losses
from tests.limits import HANG_S

ECHO = "import os\nwhile data := os.read(0, 4096): os.write(1, data.upper())"
frames = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=50)), max_size=8)


@given(frames=frames, cuts=st.lists(st.integers(0, 500), max_size=10))
def test_frames_are_whole_however_their_bytes_arrive(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(pack_frame(*frame) for frame in frames)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = FrameReader()
    received = [frame for start, end in itertools.pairwise(bounds) for frame in reader.feed(data[start:end])]
    assert received == frames


def start(connection: HostConnection, number: int, program: str, **more: str) -> None:
    argv = ["", "-u", "-c", program]
    connection.command(start={"stream": number, "argv": argv, "env": more, "folder": "."})


def test_each_agent_has_a_stream_of_its_own(connection: HostConnection) -> None:
    streams = [connection.add_stream(number, None) for number in (1, 2)]
    for stream in streams:
        start(connection, stream.number, ECHO)
    streams[0].write(b"one" * 100_000)
    streams[1].write(b"two")
    assert streams[1].read(3) == b"TWO"
    assert streams[0].read(300_000) == b"ONE" * 100_000
    streams[0].close_write()
    streams[0].wait()
    with pytest.raises(EOFError):
        streams[0].read(1)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has mount namespaces")
@pytest.mark.parametrize("has_processes", [True, False], ids=["proc", "no-proc"])
def test_only_folders_of_relays_that_have_ended_are_removed(tmp_path: Path, has_processes: bool) -> None:
    """A /proc that shows no other process is that of other systems, or one with ``hidepid``."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    for pid in (os.getpid(), ended.pid, 1 << 80):
        (tmp_path / f"{FOLDER_PREFIX}{pid}-x").mkdir()
    clean = [sys.executable, "-c", "from pytest_cloudbench.fleet.hosts import relay; relay.remove_abandoned_folders()"]
    if not has_processes:
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        clean = ["unshare", "--mount", *user, "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh", *clean]
    done = subprocess.run(
        clean, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True, check=False
    )
    if not has_processes and done.returncode and "unshare" in done.stderr:
        pytest.skip(f"a mount namespace is needed: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert [folder.name for folder in tmp_path.iterdir()] == [f"{FOLDER_PREFIX}{os.getpid()}-x"]


def test_host_describes_its_cores_and_python(connection: HostConnection) -> None:
    connection.wait(HANG_S)
    assert connection.description["cores"] == os.cpu_count()
    assert connection.description["executable"] == sys.executable


def test_an_agent_has_the_tests_and_the_environment(connection: HostConnection, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    (project / "sub" / "test_it.py").write_text("content")
    connection.send(FILES, pack_files(project))
    connection.send(FILES, b"")
    stream = connection.add_stream(1, None)
    start(connection, 1, "import os; print(open('sub/test_it.py').read(), os.environ['KEY'], flush=True)", KEY="value")
    assert stream.read(13) == b"content value"


def test_children_of_an_agent_end_with_the_connection(connection: HostConnection) -> None:
    stream = connection.add_stream(1, None)
    start(connection, 1, "import subprocess, sys\n"
                         "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
                         "print(f'{child.pid:10}', flush=True)\nchild.wait()")  # fmt: skip
    pid = int(stream.read(10))
    connection.close()
    assert wait_for(lambda: not os.path.exists(f"/proc/{pid}"), HANG_S, poll_s=0.02)


def test_a_killed_agent_ends_alone(connection: HostConnection) -> None:
    killed, other = (connection.add_stream(number, None) for number in (1, 2))
    for stream in (killed, other):
        start(connection, stream.number, ECHO)
    killed.kill()
    killed.wait()
    with pytest.raises(OSError, match="gone"):
        killed.write(b"x")
    other.write(b"still here")
    assert other.read(10) == b"STILL HERE"


def test_a_program_that_is_not_there_ends_the_host_with_its_name(connection: HostConnection, losses: Losses) -> None:
    stream = connection.add_stream(1, None)
    connection.command(start={"stream": 1, "argv": ["/none/python"], "env": {}, "folder": "."})
    stream.wait()
    assert losses.is_lost.wait(HANG_S)
    assert "cannot start /none/python" in losses.reasons[0]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("/none/ssh", "host"), "/none/ssh: No such file or directory"),
        (("sh", "-c", "echo Permission denied >&2; exit 255"), "Permission denied"),
        (("sh", "-c", "exit 3"), "sh ended with exit status 3"),
        (("sh", "-c", "yes"), "started no Python"),
        (("sh", "-c", "echo Welcome; exec sleep 1000"), "has not answered for"),
    ],
)
def test_a_host_that_cannot_be_reached_is_given_up_once(command: tuple[str, ...], reason: str, losses: Losses) -> None:
    patience_s = 1.0 if "answered" in reason else HANG_S
    connection = HostConnection(Host("gone", command), patience_s, losses)
    stream = connection.add_stream(1, None)
    connection.open()
    with pytest.raises(FleetError, match=reason):
        connection.wait(HANG_S)
    stream.wait()
    connection.close()
    assert len(losses.reasons) == 1


def test_greeting_of_a_login_shell_is_skipped(losses: Losses, tmp_path: Path) -> None:
    greeting = tmp_path / "shell"
    greeting.write_text(f'#!/bin/sh\necho "Welcome to host"; exec {sys.executable} "$@"\n')
    greeting.chmod(0o755)
    connection = HostConnection(Host("polite", (str(greeting),)), HANG_S, losses)
    connection.open()
    connection.wait(HANG_S)
    connection.close()
    assert losses.reasons == []


def test_a_project_that_is_too_large_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cloudbench.fleet.hosts.travel._MOST_BYTES", 1 << 20)
    (tmp_path / "data.csv").write_bytes(bytes(2 << 20))
    with pytest.raises(UsageError, match="too large to be sent"):
        pack_files(tmp_path)
