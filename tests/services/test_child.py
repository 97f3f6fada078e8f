"""Children of this process: what they say, why they ended, and that they end with it."""

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

from pytest_cloudbench.services.child import OWN_QUESTIONS, Child, answers_http
from tests.limits import HANG_S

SOURCE = str(Path(__file__).parents[2] / "src")
ECHO = "import sys\nfor line in sys.stdin:\n    print(line.strip()[::-1], flush=True)\n"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """What a test starts is stopped at its end."""
    made: list[Child] = []
    yield made
    for child in made:
        child.stop()


def test_it_is_talked_to_and_ends_with_its_lifeline(children: list[Child]) -> None:
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
def test_it_says_why_it_ended(children: list[Child], code: str, reason: str) -> None:
    children.append(child := Child(python(code)))
    assert child.readline(HANG_S) == b""
    child.wait(HANG_S)
    assert child.exit_reason() == reason
    child.stop()
    assert child.exit_reason() == reason


def test_the_log_of_another_run_is_not_its_last_word(children: list[Child], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("of yesterday\n")
    children.append(child := Child(python("raise SystemExit(1)"), log_path=tmp_path / "log"))
    child.wait(HANG_S)
    assert child.exit_reason() == "exit status 1"
    assert (tmp_path / "log").read_text() == "of yesterday\n"


def test_one_that_says_nothing_in_time_is_ended(children: list[Child]) -> None:
    children.append(child := Child(python("import signal; signal.pause()")))
    assert child.readline(0.2) == b""
    child.wait(HANG_S)
    assert child.exit_reason() == "it said nothing for 0.2 s and was ended"


def test_one_that_does_not_answer_is_ended_and_one_that_does_is_not(children: list[Child]) -> None:
    children += [silent := Child(python(ECHO)), healthy := Child(python(ECHO))]
    asked = threading.Semaphore(0)

    def answers(timeout_s: float) -> bool:
        asked.release()
        return True

    silent.watch(0.1, lambda timeout_s: False)
    healthy.watch(0.1, answers)
    silent.wait(HANG_S)
    assert silent.exit_reason() == "it did not answer for 0.1 s and was ended"
    for _ in range(4):
        assert asked.acquire(timeout=HANG_S)
    assert healthy.alive()


def test_one_that_ignores_its_lifeline_is_killed(children: list[Child], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cloudbench.services.child._STOP_S", 0.2)
    children.append(child := Child(python("import signal; print(flush=True); signal.pause()")))
    child.readline(HANG_S)
    child.stop()
    assert not psutil.pid_exists(child.pid)


def test_what_cannot_be_started_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Child([str(tmp_path / "nothing")], log_path=tmp_path / "log")


def test_it_ends_with_its_parent_even_if_that_is_killed() -> None:
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


def test_nobody_there_is_no_silence() -> None:
    """The end of a process is noticed elsewhere; a watch must not report it as slow."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not answers_http(f"http://127.0.0.1:{port}", 0.2), "it takes connections and says nothing"
    assert answers_http(f"http://127.0.0.1:{port}", 0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has numbers for sockets")
def test_a_question_whether_a_service_answers_is_known_by_its_socket() -> None:
    before = set(OWN_QUESTIONS)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not answers_http(f"http://127.0.0.1:{listener.getsockname()[1]}", 0.1)
    assert len(OWN_QUESTIONS - before) == 1
