"""Children of this process: their output, the reasons for their end, and their end with this process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pytest_cloudbench.services.child import HEALTH_CHECK_SOCKETS, Child, answers_http
from tests.limits import HANG_S

SOURCE = str(Path(__file__).parents[2] / "src")
ECHO = "import sys\nfor line in sys.stdin:\n    print(line.strip()[::-1], flush=True)\n"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """Children that are stopped at the end of the test."""
    started: list[Child] = []
    yield started
    for child in started:
        child.stop()


def test_a_child_answers_and_ends_with_its_lifeline(children: list[Child]) -> None:
    children.append(child := Child(python(ECHO)))
    child.write(b"live\n")
    assert child.readline(HANG_S) == b"evil\n"
    assert (child.alive(), child.exit_reason()) == (True, "")
    child.stop()
    child.stop()
    assert (child.alive(), child.exit_reason()) == (False, "stopped")
    assert not psutil.pid_exists(child.pid)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(3)", "exit status 3"),
        ("import sys; print('first\\nlast\\n\\n', file=sys.stderr); sys.exit(3)", "last (exit status 3)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by signal 9"),
    ],
    ids=["status", "words", "signal"],
)
def test_the_exit_reason_names_status_signal_and_last_line(children: list[Child], code: str, reason: str) -> None:
    children.append(child := Child(python(code)))
    assert child.readline(HANG_S) == b""
    child.wait(HANG_S)
    assert child.exit_reason() == reason
    child.stop()
    assert child.exit_reason() == reason


def test_the_exit_reason_ignores_the_log_of_an_earlier_run(children: list[Child], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("of yesterday\n")
    children.append(child := Child(python("raise SystemExit(1)"), log_path=tmp_path / "log"))
    child.wait(HANG_S)
    assert child.exit_reason() == "exit status 1"
    assert (tmp_path / "log").read_text() == "of yesterday\n"


def test_a_silent_child_is_killed_after_the_timeout(children: list[Child]) -> None:
    children.append(child := Child(python("import signal; signal.pause()")))
    assert child.readline(0.2) == b""
    child.wait(HANG_S)
    assert child.exit_reason() == "it said nothing for 0.2 s and was ended"


def test_a_watch_kills_only_a_child_that_does_not_answer(children: list[Child]) -> None:
    children += [silent := Child(python(ECHO)), healthy := Child(python(ECHO))]
    answered = threading.Semaphore(0)

    def answers(timeout_s: float) -> bool:
        answered.release()
        return True

    silent.watch(0.1, lambda timeout_s: False)
    healthy.watch(0.1, answers)
    silent.wait(HANG_S)
    assert silent.exit_reason() == "it did not answer for 0.1 s and was ended"
    for _ in range(4):
        assert answered.acquire(timeout=HANG_S)
    assert healthy.alive()


def test_a_child_that_ignores_its_lifeline_is_killed(children: list[Child], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cloudbench.services.child._STOP_S", 0.2)
    children.append(child := Child(python("import signal; print(flush=True); signal.pause()")))
    child.readline(HANG_S)
    child.stop()
    assert not psutil.pid_exists(child.pid)


def test_a_missing_program_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Child([str(tmp_path / "nothing")], log_path=tmp_path / "log")


def test_a_child_ends_with_a_killed_parent() -> None:
    code = (
        f"import os, signal, sys; from pytest_cloudbench.services.child import Child\n"
        f"child = Child([sys.executable, '-c', {ECHO!r}])\n"
        "child.write(b'x\\n'); child.readline(); print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        python(code), env={**os.environ, "PYTHONPATH": SOURCE}, stdout=subprocess.PIPE, check=False, timeout=HANG_S
    )
    assert done.returncode == -signal.SIGKILL
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(HANG_S)
    assert not psutil.pid_exists(int(done.stdout))


def test_a_server_that_ended_counts_as_answering() -> None:
    """The end of a process is noticed elsewhere, so a watch must not report it as slow."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not answers_http(f"http://127.0.0.1:{port}", 0.2), "it takes connections and says nothing"
    assert answers_http(f"http://127.0.0.1:{port}", 0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has numbers for sockets")
def test_health_checks_are_known_by_their_sockets() -> None:
    before = set(HEALTH_CHECK_SOCKETS)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not answers_http(f"http://127.0.0.1:{listener.getsockname()[1]}", 0.1)
    assert len(HEALTH_CHECK_SOCKETS - before) == 1
