"""What is left of a link whose owner was killed, and that the next run removes it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cloudbench.link import Link, sweep
from pytest_cloudbench.link.leftovers import Mark, leftovers

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="links need Linux"),
    pytest.mark.usefixtures("can_link"),
]

OWNER = """
import subprocess, sys
from pytest_cloudbench.link import Link
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
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")},
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


def test_all_is_gone_when_the_owner_is_killed() -> None:
    owner, pids = owner_of_a_link()
    kill(owner)
    assert wait_gone(pids) == []


_TRIES = 20
"""A link of another worker's test is "the next run", too, and may come first."""


def test_the_next_run_removes_what_a_killed_holder_left() -> None:
    for _ in range(_TRIES):
        owner, pids = owner_of_a_link()
        holder, *inside = pids
        os.kill(holder, signal.SIGSTOP)  # it cannot clean up
        ours = namespaces(inside)
        assert len(ours) == 2
        kill(owner)
        os.kill(holder, signal.SIGKILL)
        assert wait_gone([holder]) == []
        if ours <= all_namespaces() and set(inside) <= {one.pid for one in leftovers()}:
            break
        assert wait_gone(inside) == [], "they are neither found nor ended by another worker's link"
    else:
        pytest.fail("another worker's link came first each time")
    with Link():  # the next run
        # Nobody is in the namespaces any more, so the kernel has them no longer; it may use their numbers again.
        assert wait_gone(inside) == []


def test_a_command_without_its_mark_is_found_by_its_namespace() -> None:
    for _ in range(_TRIES):
        owner, pids = owner_of_a_link("env", "-i")
        holder, marked, bare = pids
        os.kill(holder, signal.SIGSTOP)
        kill(owner)
        found = {one.pid: one for one in leftovers()}
        if {holder, marked, bare} <= found.keys():
            break
        assert wait_gone(pids) == [], "they are neither found nor ended by another worker's link"
    else:
        pytest.fail("another worker's link came first each time")
    assert {found[pid].mark.partition(":")[0] for pid in pids} == {"killed"}
    sweep()
    assert wait_gone(pids) == []


def test_links_of_the_living_are_left_alone() -> None:
    with Link() as link, Link():
        assert [one for one in sweep() if one.mark == str(Mark.own(""))] == []
        assert link.run("client", ["true"]).returncode == 0


def test_a_number_that_is_used_again_is_another_process() -> None:
    mine = Mark.own("a:b")
    assert mine.is_alive()
    assert Mark.parse(str(mine)) == mine
    assert not Mark("a", mine.pid, mine.start_ticks + 1).is_alive()
    assert not Mark("a", 2**22 + 1, 5).is_alive()
