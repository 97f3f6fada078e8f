"""Leftovers of a link whose owner was killed, and their removal by the next run."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.net.link import Link, sweep
from pytest_cloudbench.net.link.leftovers import MARK, Mark, find_leftovers

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="links need Linux"),
    pytest.mark.usefixtures("can_link"),
]

OWNER = """
import subprocess, sys
from pytest_cloudbench.net.link import Link
link = Link(run="killed").__enter__()
command = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
pids = [link._facts["pid"]]
for side, words in (("server", command), ("client", [*sys.argv[1:], *command])):
    process = link.popen(side, words, stdout=subprocess.PIPE)
    process.stdout.readline()
    pids.append(process.pid)
print(*pids, flush=True)
input()
"""


def start_owner(*wrap: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Start the owner of a link. Return it and the pids of its holder and of a command on each side.

    The client's command is behind the words ``wrap``.
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, *wrap],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src")},
    )
    assert owner.stdout is not None
    return owner, [int(word) for word in owner.stdout.readline().split()]


def kill(owner: subprocess.Popen[str]) -> None:
    owner.kill()
    owner.communicate()


def wait_until_gone(pids: list[int]) -> list[int]:
    """Return the processes that do not end within five seconds."""
    remaining = []
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        if not select.select([descriptor], (), (), 5.0)[0]:
            remaining.append(pid)
        os.close(descriptor)
    return remaining


def namespaces(pids: list[int]) -> set[int]:
    return {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in pids}


def all_namespaces() -> set[int]:
    inodes = set()
    for name in os.listdir("/proc"):
        try:
            inodes.add(os.stat(f"/proc/{name}/ns/net").st_ino)
        except OSError:
            continue
    return inodes


def test_killing_the_owner_ends_everything() -> None:
    owner, pids = start_owner()
    kill(owner)
    assert wait_until_gone(pids) == []


_TRIES = 20
"""A link of another worker's test may come first and be the next run, so a test tries several times."""


def test_the_next_run_ends_leftovers_of_a_killed_holder() -> None:
    for _ in range(_TRIES):
        owner, pids = start_owner()
        holder, *commands = pids
        os.kill(holder, signal.SIGSTOP)  # so that it cannot clean up
        link_namespaces = namespaces(commands)
        assert len(link_namespaces) == 2
        kill(owner)
        os.kill(holder, signal.SIGKILL)
        assert wait_until_gone([holder]) == []
        if link_namespaces <= all_namespaces() and set(commands) <= {leftover.pid for leftover in find_leftovers()}:
            break
        assert wait_until_gone(commands) == [], "they are neither found nor ended by another worker's link"
    else:
        pytest.fail("another worker's link came first each time")
    with Link():  # the next run
        # No process is in the namespaces any more, so the kernel has removed them. It may reuse their numbers.
        assert wait_until_gone(commands) == []


def test_a_command_without_its_mark_is_found_by_its_namespace() -> None:
    for _ in range(_TRIES):
        owner, pids = start_owner("env", "-i")
        holder, marked, unmarked = pids
        os.kill(holder, signal.SIGSTOP)
        kill(owner)
        leftovers = {leftover.pid: leftover for leftover in find_leftovers()}
        if {holder, marked, unmarked} <= leftovers.keys():
            break
        assert wait_until_gone(pids) == [], "they are neither found nor ended by another worker's link"
    else:
        pytest.fail("another worker's link came first each time")
    assert {leftovers[pid].mark.partition(":")[0] for pid in pids} == {"killed"}
    sweep()
    assert wait_until_gone(pids) == []


def test_links_of_living_owners_are_left_alone() -> None:
    with Link() as link, Link():
        assert [leftover for leftover in sweep() if leftover.mark == str(Mark.of_this_process(""))] == []
        assert link.run("client", ["true"]).returncode == 0


def test_a_reused_pid_is_another_process() -> None:
    mark = Mark.of_this_process("a:b")
    assert mark.is_alive()
    assert Mark.parse(str(mark)) == mark
    assert not replace(mark, start_ticks=mark.start_ticks + 1).is_alive()
    assert not replace(mark, pid=2**22 + 1).is_alive()


_PAUSE = ["sh", "-c", "echo up; read _"]  # no Python: another user may not be able to load its shared library
_DEAD = replace(Mark.of_this_process("dead"), pid=2**22 + 1, start_ticks=1) if sys.platform == "linux" else None
_NEEDS_ROOT = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root, to be another user")


@contextlib.contextmanager
def _run_paused_process(*wrap: str, mark: object = "", **options: Any) -> Iterator[int]:
    """Run a process that does nothing, with a mark in its environment. Yield its pid."""
    words = [*wrap, *_PAUSE]
    environment = {**os.environ, MARK: str(mark)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, **options) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            yield process.pid
        finally:
            process.kill()


def _is_leftover(pid: int, user: int | None = None) -> bool:
    return pid in {leftover.pid for leftover in find_leftovers(user)}


def test_a_process_with_only_the_variable_is_left_alone() -> None:
    """The process is in the network namespace of all processes, so the value of the variable does not matter."""
    for mark in (_DEAD, "killed:1:1", "x", ""):
        with _run_paused_process(mark=mark) as pid:
            assert not _is_leftover(pid)


@_NEEDS_ROOT
@pytest.mark.parametrize("who", ["another user's", "another user's, with my mark", "mine"])
def test_another_user_with_the_variable_is_left_alone(who: str) -> None:
    """The process has its own network namespace, like a command in a link. Only this test's process is ended."""
    assert _DEAD is not None
    mark = replace(_DEAD, user=65534) if who == "another user's" else _DEAD
    switch_user = [] if who == "mine" else ["setpriv", "--reuid=65534", "--clear-groups", "--"]
    # The sweep of another link may come first and end this test's process, which is right.
    with _run_paused_process("unshare", "--net", *switch_user, mark=mark) as pid:
        assert _is_leftover(pid) is (who == "mine")


@_NEEDS_ROOT
def test_a_run_in_another_pid_namespace_is_left_alone() -> None:
    """The owner is alive, but in this namespace its pid belongs to another process or to none."""
    code = (
        "import os, sys; from pytest_cloudbench.net.link.leftovers import MARK, Mark; "
        "os.environ[MARK] = str(Mark.of_this_process('live')); import subprocess; "
        "subprocess.run(['unshare', '--net', *sys.argv[1:]])"
    )
    source = str(Path(__file__).resolve().parents[3] / "src")
    for proc_options in (["--mount-proc"], []):
        words = ["unshare", "--pid", "--fork", "--kill-child", *proc_options, sys.executable, "-c", code, *_PAUSE]
        environment = {**os.environ, "PYTHONPATH": source}
        with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"up\n"
                assert [leftover for leftover in find_leftovers() if leftover.mark.startswith("live:")] == []
            finally:
                process.kill()


@_NEEDS_ROOT
def test_a_proc_of_another_namespace_gives_no_leftovers() -> None:
    """Its pids are not valid here, so signals would hit other processes."""
    code = "from pytest_cloudbench.net.link.leftovers import find_leftovers; print(find_leftovers())"
    source = str(Path(__file__).resolve().parents[3] / "src")
    with _run_paused_process("unshare", "--net", mark=_DEAD):
        words = ["unshare", "--pid", "--fork", sys.executable, "-c", code]
        finished = subprocess.run(words, env={**os.environ, "PYTHONPATH": source}, capture_output=True, check=True)
    assert finished.stdout == b"[]\n"
