"""What a link leaves whose owner was killed, and that the next run removes it."""

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


def owner_of_a_link(*wrap: str) -> tuple[subprocess.Popen[str], list[int]]:
    """An owner, and the pids of its holder and of a command on each side, the client's behind the words ``wrap``."""
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


def wait_gone(pids: list[int]) -> list[int]:
    """Those that do not end within five seconds."""
    left = []
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        if not select.select([descriptor], (), (), 5.0)[0]:
            left.append(pid)
        os.close(descriptor)
    return left


def namespaces(pids: list[int]) -> set[int]:
    return {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in pids}


def all_namespaces() -> set[int]:
    found = set()
    for name in os.listdir("/proc"):
        try:
            found.add(os.stat(f"/proc/{name}/ns/net").st_ino)
        except OSError:
            continue
    return found


def test_killing_the_owner_ends_everything() -> None:
    owner, pids = owner_of_a_link()
    kill(owner)
    assert wait_gone(pids) == []


_TRIES = 20
"""A link of another worker's test is "the next run", too, and may come first."""


def test_the_next_run_ends_leftovers_of_a_killed_holder() -> None:
    for _ in range(_TRIES):
        owner, pids = owner_of_a_link()
        holder, *inside = pids
        os.kill(holder, signal.SIGSTOP)  # it cannot clean up
        ours = namespaces(inside)
        assert len(ours) == 2
        kill(owner)
        os.kill(holder, signal.SIGKILL)
        assert wait_gone([holder]) == []
        if ours <= all_namespaces() and set(inside) <= {one.pid for one in find_leftovers()}:
            break
        assert wait_gone(inside) == [], "they are neither found nor ended by another worker's link"
    else:
        pytest.fail("another worker's link came first each time")
    with Link():  # the next run
        # Nobody is in the namespaces any more, so the kernel has removed them; it may reuse their numbers.
        assert wait_gone(inside) == []


def test_a_command_without_its_mark_is_found_by_its_namespace() -> None:
    for _ in range(_TRIES):
        owner, pids = owner_of_a_link("env", "-i")
        holder, marked, bare = pids
        os.kill(holder, signal.SIGSTOP)
        kill(owner)
        found = {one.pid: one for one in find_leftovers()}
        if {holder, marked, bare} <= found.keys():
            break
        assert wait_gone(pids) == [], "they are neither found nor ended by another worker's link"
    else:
        pytest.fail("another worker's link came first each time")
    assert {found[pid].mark.partition(":")[0] for pid in pids} == {"killed"}
    sweep()
    assert wait_gone(pids) == []


def test_links_of_living_owners_are_left_alone() -> None:
    with Link() as link, Link():
        assert [one for one in sweep() if one.mark == str(Mark.of_this_process(""))] == []
        assert link.run("client", ["true"]).returncode == 0


def test_a_reused_pid_is_another_process() -> None:
    mine = Mark.of_this_process("a:b")
    assert mine.is_alive()
    assert Mark.parse(str(mine)) == mine
    assert not replace(mine, start_ticks=mine.start_ticks + 1).is_alive()
    assert not replace(mine, pid=2**22 + 1).is_alive()


_PAUSE = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
_DEAD = replace(Mark.of_this_process("dead"), pid=2**22 + 1, start_ticks=1) if sys.platform == "linux" else None
_NEEDS_ROOT = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root, to be another user")


@contextlib.contextmanager
def _paused(*wrap: str, mark: object = "", **options: Any) -> Iterator[int]:
    """A process with a mark in its environment; its number."""
    words = [*wrap, *_PAUSE]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, MARK: str(mark)}, **options) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            yield process.pid
        finally:
            process.kill()


def _is_found(pid: int, user: int | None = None) -> bool:
    return pid in {one.pid for one in find_leftovers(user)}


def test_a_process_with_only_the_variable_is_left_alone() -> None:
    """In the network namespace that all share, whatever the variable says."""
    for mark in (_DEAD, "killed:1:1", "x", ""):
        with _paused(mark=mark) as pid:
            assert not _is_found(pid)


@_NEEDS_ROOT
@pytest.mark.parametrize("who", ["another user's", "another user's, with my mark", "mine"])
def test_another_user_with_the_variable_is_left_alone(who: str) -> None:
    """In a network namespace of its own, like a command in a link; only this test's process is ended."""
    assert _DEAD is not None
    mark = replace(_DEAD, user=65534) if who == "another user's" else _DEAD
    become = [] if who == "mine" else ["setpriv", "--reuid=65534", "--clear-groups", "--"]
    # Another link's sweep may come first, and rightly end this test's process.
    with _paused("unshare", "--net", *become, mark=mark) as pid:
        assert _is_found(pid) is (who == "mine")


@_NEEDS_ROOT
def test_a_run_in_another_pid_namespace_is_left_alone() -> None:
    """Its owner lives, with a pid that belongs to another process here, or to none."""
    code = (
        "import os, sys; from pytest_cloudbench.net.link.leftovers import MARK, Mark; "
        "os.environ[MARK] = str(Mark.of_this_process('live')); import subprocess; "
        "subprocess.run(['unshare', '--net', *sys.argv[1:]])"
    )
    source = str(Path(__file__).resolve().parents[3] / "src")
    for proc in (["--mount-proc"], []):
        words = ["unshare", "--pid", "--fork", "--kill-child", *proc, sys.executable, "-c", code, *_PAUSE]
        environment = {**os.environ, "PYTHONPATH": source}
        with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"up\n"
                assert [one for one in find_leftovers() if one.mark.startswith("live:")] == []
            finally:
                process.kill()


@_NEEDS_ROOT
def test_a_proc_of_another_namespace_gives_no_leftovers() -> None:
    """Its pids are not valid here, so signals would hit other processes."""
    code = "from pytest_cloudbench.net.link.leftovers import find_leftovers; print(find_leftovers())"
    source = str(Path(__file__).resolve().parents[3] / "src")
    with _paused("unshare", "--net", mark=_DEAD):
        words = ["unshare", "--pid", "--fork", sys.executable, "-c", code]
        done = subprocess.run(words, env={**os.environ, "PYTHONPATH": source}, capture_output=True, check=True)
    assert done.stdout == b"[]\n"
