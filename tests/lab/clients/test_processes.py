"""Processes of clients: their CPU time, waiting for them, and the end of every one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.lab.clients import processes as module
from pytest_cloudbench.lab.clients import watchdog
from pytest_cloudbench.lab.clients.processes import (
    End,
    Loopback,
    Processes,
    find_binary,
    free_port,
    secret_values,
    tail,
)
from pytest_cloudbench.model import ClientError
from tests.lab.clients.conftest import is_gone, leftovers
from tests.limits import HANG_S

BUSY = "import time\nwhile time.process_time() < 0.2: pass"


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    running = Processes(tmp_path, Loopback())
    yield running
    running.stop()
    running.stop()
    assert leftovers(tmp_path) == []


def py(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


def test_cpu_time_of_commands_that_have_ended_counts(processes: Processes) -> None:
    assert processes.run("client", "busy", py(BUSY), timeout_s=60) == ""
    assert 0.15 <= (processes.cpu_s("client") or 0) < 5
    assert processes.cpu_s("server") == 0
    assert processes.cpu_s("device") is None, "there is none"


def test_cpu_time_of_uncounted_commands_is_left_out(processes: Processes) -> None:
    processes.run("server", "busy", py(BUSY), timeout_s=60, counted=False)
    assert processes.cpu_s("server") == 0


def test_cpu_time_of_children_counts(processes: Processes) -> None:
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-I', '-S', '-c', {BUSY!r}])\n"
    code += "print('done', flush=True)\n"
    process = processes.start("server", "parent", py(code + "import signal\nsignal.pause()"))
    processes.wait_logged(process, "done", 60)
    assert (processes.cpu_s("server") or 0) >= 0.15  # /proc counts hundredths of a second


def test_a_command_that_ends_with_a_process_that_is_needed_gone(processes: Processes) -> None:
    server = processes.start("server", "brief", py("import os; os.kill(os.getpid(), 15)"))
    started_s = time.monotonic()
    with pytest.raises(ClientError, match=r"brief \(server\): killed by signal 15"):
        processes.run("client", "long", ["sleep", "600"], timeout_s=600)
    assert time.monotonic() - started_s < 60
    assert server.exit_status() == -15
    assert processes.pids("client") == ()


def test_a_program_that_cannot_be_started(processes: Processes) -> None:
    with pytest.raises(ClientError, match="none cannot be started: "):
        processes.start("client", "none", ["/no/such/program"])


def test_listening_is_seen_without_a_packet(processes: Processes) -> None:
    port = free_port("127.0.0.1")
    code = f"import socket\ns = socket.create_server(('127.0.0.1', {port}))\nprint(s.accept())"
    process = processes.start("server", "listener", py(code))
    processes.wait_listening(process, port, 60)
    assert process.exit_status() is None, "something connected"
    with pytest.raises(ClientError, match=r"listener did not listen on port 1 within 0.1 s"):
        processes.wait_listening(process, 1, 0.1)


class Elsewhere(Loopback):
    """Starts a process in a network namespace of its own, below a leader that stays outside, as sudo does."""

    def popen(self, side: End, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        inside = ["unshare", "--user", "--map-root-user", "--net", *argv]
        return super().popen(side, ["sh", "-c", '"$@" & wait', "sh", *inside], **kwargs)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Processes]:
    probe = ["unshare", "--user", "--map-root-user", "--net", "true"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no network namespaces: allow user namespaces, or run as root")
    running = Processes(tmp_path, Elsewhere())
    yield running
    running.stop()
    assert leftovers(tmp_path) == []


def test_listening_is_seen_in_the_namespace_of_a_child(elsewhere: Processes) -> None:
    port = free_port("0.0.0.0")
    code = f"import signal, socket\ns = socket.create_server(('0.0.0.0', {port}))\nsignal.pause()"
    process = elsewhere.start("server", "listener", py(code))
    elsewhere.wait_listening(process, port, 60)
    assert process.exit_status() is None


def test_a_leader_that_belongs_to_root_ends_with_its_children(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = processes.start("client", "sudo", ["sh", "-c", "sleep 600 & wait"])
    processes.wait_until(lambda: len(processes.pids("client")) == 2, 60, "no two processes")
    pids, send_signal = processes.pids("client"), signal.pidfd_send_signal

    def refuse_for_leader(pidfd: int, number: int) -> None:
        if pidfd == process.fileno():
            raise PermissionError
        send_signal(pidfd, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse_for_leader)  # sudo is not installed everywhere
    processes.stop()
    assert [pid for pid in pids if not is_gone(pid)] == []


def test_a_free_port_of_an_address_that_is_elsewhere() -> None:
    port = free_port("198.51.100.7")
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
    assert free_port("::1") > 0


def test_child_in_its_own_session_ends_with_the_client(processes: Processes) -> None:
    process = processes.start("client", "parent", ["sh", "-c", "setsid sleep 600 & sleep 600; true"])
    processes.wait_until(lambda: len(processes.pids("client")) == 3, 60, "no three processes")
    pids = processes.pids("client")
    assert process.pid in pids
    processes.stop()
    assert [pid for pid in pids if not is_gone(pid)] == []


def test_process_that_ignores_sigterm_is_ended(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STOP_S", 0.1)
    code = "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('deaf', flush=True)\nsignal.pause()"
    process = processes.start("client", "deaf", py(code))
    processes.wait_logged(process, "deaf", 60)
    processes.stop()
    assert process.exit_status() == -signal.SIGKILL


def test_nothing_is_started_without_a_watchdog(processes: Processes) -> None:
    processes._watchdog.kill()
    processes._watchdog.wait()
    with pytest.raises(ClientError, match="the watchdog was killed"):
        processes.start("client", "x", ["sleep", "600"])


def test_watchdog_kills_only_processes_still_on_its_list(tmp_path: Path) -> None:
    removed, listed = (subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2))
    text = f"{removed.pid}\n{listed.pid}\n-{removed.pid}\n"
    subprocess.run([sys.executable, "-I", "-S", watchdog.__file__], input=text.encode(), check=True, timeout=HANG_S)
    assert listed.wait(HANG_S) == -signal.SIGKILL
    assert removed.poll() is None
    removed.kill()
    removed.wait()


def test_the_watchdog_does_not_kill_another_process_with_the_same_pid() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        stat = watchdog.read_stat(process.pid)
        assert stat is not None
        watchdog.kill_processes((stat._replace(start=stat.start - 1),))
        assert process.poll() is None
        watchdog.kill_processes((stat,))
        assert process.wait(HANG_S) == -signal.SIGKILL


def test_runner_receives_side_and_popen_arguments(tmp_path: Path) -> None:
    calls: list[tuple[End, str, Any]] = []

    class Recording(Loopback):
        def popen(self, side: End, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen[bytes]:
            calls.append((side, argv[0], kwargs["cwd"]))
            return super().popen(side, argv, **kwargs)

    running = Processes(tmp_path, Recording())
    running.run("server", "a", ["true"], timeout_s=60)
    running.run("client", "b", ["true"], timeout_s=60, cwd=Path("/"))
    running.run("device", "c", ["true"], timeout_s=60)
    running.stop()
    folder = str(tmp_path)
    assert calls == [("server", "true", folder), ("client", "true", "/"), ("server", "true", folder)]


def test_a_program_beside_the_interpreter_is_found_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("environment", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tool").write_text("#!/bin/sh\n")
        (tmp_path / folder / "tool").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "environment" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_binary("tool") == str(tmp_path / "environment" / "tool")
    os.remove(tmp_path / "environment" / "tool")
    assert find_binary("tool") == str(tmp_path / "path" / "tool")
    assert find_binary("no-such-tool") is None


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join(map(str, range(20))) + "\n\n")
    assert tail(tmp_path / "log", 2) == "\n  18\n  19"
    assert tail(tmp_path / "none") == ""


def test_the_end_of_a_log_shows_no_secrets_no_control_characters_and_no_endless_lines(tmp_path: Path) -> None:
    lines = [
        "opened with hunter22 and again hunter22",
        "GET http://me:s3cret@server/x password=s3cret Authorization: Bearer s3cret",
        "refresh_token=s3cret, 'secret_access_key': 's3cret', access_key_id=mine, token_type=bearer",
        "\x1b[31mred\x1b[0m\tand a bell\a",
        "x" * 5000 + "the end",
    ]
    (tmp_path / "log").write_text("\n".join(lines))
    log_lines = tail(tmp_path / "log", secrets=["hunter22"]).splitlines()[1:]
    assert log_lines[0] == "  opened with *** and again ***"
    assert log_lines[1] == "  GET http://me:***@server/x password=*** Authorization: Bearer ***"
    assert log_lines[2] == "  refresh_token=*** 'secret_access_key': '***', access_key_id=mine, token_type=bearer"
    assert log_lines[3] == "  \\x1b[31mred\\x1b[0m and a bell\\x07"
    assert log_lines[4].endswith("the end")
    assert max(map(len, log_lines)) < 320


def test_secrets_of_an_environment_are_neither_ids_nor_paths_nor_switches(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.touch()
    public = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "TOOL_KEY": str(key_file), "TOOL_ASK_PASSWORD": "false"}
    secret = {"AWS_SECRET_ACCESS_KEY": "/begins/like/a/path", "TOOL_APIKEY": "hunter22", "SSHPASS": "four"}
    assert secret_values(public | secret) == ("/begins/like/a/path", "hunter22", "four")


def test_error_quotes_command_output_without_secrets(tmp_path: Path) -> None:
    processes = Processes(tmp_path, Loopback())
    try:
        with pytest.raises(ClientError) as raised:
            processes.run(
                "client", "sync", ["sh", "-c", 'echo "key $TOOL_PASSWORD refused"; exit 7'], timeout_s=10,
                env={"TOOL_PASSWORD": "hunter22"},
            )  # fmt: skip
    finally:
        processes.stop()
    assert str(raised.value) == "sync (client): exit status 7\n  key *** refused"


def test_a_failed_run_is_not_explained_by_an_earlier_one(processes: Processes) -> None:
    processes.run("client", "sync", ["sh", "-c", "echo all is well >&2"], timeout_s=60)
    with pytest.raises(ClientError) as raised:
        processes.run("client", "sync", ["sh", "-c", "echo disk full; exit 7"], timeout_s=60)
    assert str(raised.value) == "sync (client): exit status 7\n  disk full"


_KILLED = """
import os, signal, sys
from pathlib import Path
from pytest_cloudbench.lab.clients.processes import Loopback, Processes
processes = Processes(Path(sys.argv[1]), Loopback())
child = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
fork = (  # Popen returns when the child has its session: what is still in the command's own one ends with it
    "import subprocess, sys; "
    f"subprocess.Popen([sys.executable, '-c', {child!r}], stdout=open('pid', 'w'), start_new_session=True)"
)
processes.run("client", "setup", [sys.executable, "-c", fork], timeout_s=60)
processes.wait_until(lambda: Path(sys.argv[1], "pid").read_text().endswith("\\n"), 60, "no child")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_session_of_its_own_ends_also_when_this_process_is_killed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False, timeout=HANG_S)
    pid = int((tmp_path / "pid").read_text())
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert watchdog.wait_any([pidfd], 30) == [pidfd]
    os.close(pidfd)


def test_processes_with_another_sign_or_earlier_start_are_left_alone(processes: Processes) -> None:
    start = watchdog.read_stat(os.getpid()).start  # type: ignore[union-attr]  # this process is there
    other = subprocess.Popen(["cat"], env={watchdog.SIGN: "mine"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(b".")
        other.stdin.flush()
        assert other.stdout.read(1) == b"."  # the kernel shows a new program's environment a moment after its start
        other_stat = watchdog.read_stat(other.pid)
        assert other_stat is not None
        assert [stat.pid for stat in watchdog.find_carriers("mine", start)] == [other.pid]
        assert watchdog.find_carriers("mine", other_stat.start + 1) == ()
        assert watchdog.find_carriers("min", start) == ()
        processes.stop()
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()


def test_a_number_that_is_another_process_by_now_has_no_tree() -> None:
    stat = watchdog.read_stat(os.getpid())
    assert stat is not None
    assert os.getpid() in {process.pid for process in watchdog.find_tree(os.getpid(), stat.start)}
    assert watchdog.find_tree(os.getpid(), stat.start - 1) == ()
