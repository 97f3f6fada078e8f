"""Many operations in flight at once: a server that answers only when all have arrived, and limits that are reached."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_cloudbench.load.engine.engine import Budget, Engine
from pytest_cloudbench.load.engine.limits import (
    allow_descriptors,
    available_bytes,
    count_fitting_threads,
    describe_limit,
)
from pytest_cloudbench.load.engine.pool import MAX_THREADS, count_ready_threads, start_time_s
from pytest_cloudbench.model import Op, Verb
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.workload.arrival import FixedInterval, Plan, plan
from tests.limits import HANG_S

TOGETHER = FixedInterval(0.0)

MEETING_SERVER = """
import asyncio, resource, sys, time

count, delay_s = int(sys.argv[1]), float(sys.argv[2])
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

async def main():
    arrived, all_are_here = 0, asyncio.Event()

    async def answer(reader, writer):
        nonlocal arrived
        await reader.readline()
        arrived_ns = time.monotonic_ns()
        arrived += 1
        if arrived == count:
            all_are_here.set()
        await all_are_here.wait()
        await asyncio.sleep(delay_s)
        writer.write(f"{arrived_ns} {time.monotonic_ns()}\\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


class Request:
    """A task that sends one line over a connection of its own, and keeps the times that the server returns."""

    verb = Verb.PUT

    def __init__(self, port: int) -> None:
        self.port, self.server_ns = port, dict[int, tuple[int, int]]()

    def prepare(self, sensor: int, seq: int) -> tuple[int, int, bytes]:
        return sensor, 5, b""

    def execute(self, sensor: int) -> int:
        with socket.create_connection(("127.0.0.1", self.port), HANG_S) as connection:
            connection.sendall(b"hello\n")
            arrived_ns, answered_ns = map(int, connection.makefile("rb").readline().split())
        self.server_ns[sensor] = arrived_ns, answered_ns
        return 0


class Call:
    """A task that calls a function."""

    verb = Verb.PUT

    def __init__(self, act: Callable[[int, int], object]) -> None:
        self.act = act

    def prepare(self, sensor: int, seq: int) -> tuple[tuple[int, int], int, bytes]:
        return (sensor, seq), 5, b""

    def execute(self, prepared: tuple[int, int]) -> int:
        self.act(*prepared)
        return 0


@contextmanager
def meeting_server(count: int, delay_s: float) -> Iterator[int]:
    """Yield the port of a server that answers no request before ``count`` have arrived, and then after a delay."""
    command = [sys.executable, "-c", MEETING_SERVER, str(count), str(delay_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.stdin.close()


def run(task: Request | Call, schedule: Plan, max_threads: int = MAX_THREADS) -> tuple[list[Op], list[str]]:
    """Run a plan. Return its records and the engine's notes."""
    ops: list[Op] = []
    engine = Engine(task, ops.append, 0, threading.Event(), Budget(), max_threads=max_threads)
    engine.run_schedule(schedule, now_ns())
    return ops, engine.notes


def meet(count: int) -> Callable[[int, int], object]:
    """Return an operation that ends only when ``count`` of them have begun."""
    barrier = threading.Barrier(count, timeout=HANG_S)
    return lambda sensor, seq: barrier.wait()


# --- operations that are due together ---


@pytest.mark.parametrize(("count", "delay_s"), [(700, 0.3), (60, 0.0), pytest.param(2000, 1.0, marks=pytest.mark.slow)])
def test_all_operations_that_are_due_at_once_are_in_flight_together(count: int, delay_s: float) -> None:
    with meeting_server(count, delay_s) as port:
        task = Request(port)
        ops, notes = run(task, plan(TOGETHER, range(count), 1, "seed"))
    assert sorted(op.sensor for op in ops) == list(range(count))
    for op in ops:
        arrived_ns, answered_ns = task.server_ns[op.sensor]
        assert op.scheduled_ns <= op.start_ns <= arrived_ns <= answered_ns <= op.end_ns
        assert op.response_ns >= delay_s * 1e9
    assert max(arrived for arrived, _ in task.server_ns.values()) <= min(
        answered for _, answered in task.server_ns.values()
    )
    assert notes == []


def test_threads_of_one_burst_serve_the_next_one() -> None:
    threads, first, second = set[int](), meet(200), meet(200)

    def act(sensor: int, seq: int) -> None:
        threads.add(threading.get_ident())
        (second if seq else first)(sensor, seq)

    ops, _ = run(Call(act), plan(FixedInterval(0.5, 0.0), range(200), 2, "seed"))
    assert len(ops) == 400
    assert 200 <= len(threads) <= 264  # at most 64 threads wait for the next operations


def test_many_threads_leave_the_interpreter_as_it_was() -> None:
    before = sys.getswitchinterval(), threading.stack_size()
    inside = set[bool]()
    act = meet(150)

    def check_interval(sensor: int, seq: int) -> None:
        act(sensor, seq)
        inside.add(sys.getswitchinterval() > before[0])

    run(Call(check_interval), plan(TOGETHER, range(150), 1, "seed"))
    assert inside == {True}
    assert (sys.getswitchinterval(), threading.stack_size()) == before


@pytest.mark.parametrize(
    ("schedule", "ready"),
    [
        (plan(TOGETHER, range(1500), 1, "seed"), 1500),
        (plan(TOGETHER, range(5000), 1, "seed"), 2048),
        (plan(TOGETHER, range(MAX_THREADS + 1), 1, "seed"), 64),
        (plan(FixedInterval(1.0, 0.0), [1], 5, "seed"), 1),
        (plan(TOGETHER, [], 1, "seed"), 1),
    ],
)
def test_threads_are_ready_for_a_burst_and_get_time_to_start(schedule: Plan, ready: int) -> None:
    assert count_ready_threads(schedule) == ready
    assert start_time_s(schedule) == pytest.approx(ready * 0.0002)


def test_tracing_reaches_operations() -> None:
    traced = set[str]()

    def trace(frame: object, event: str, argument: object) -> None:
        traced.add(event)

    former = threading.gettrace()
    threading.settrace(trace)
    try:
        run(Call(lambda sensor, seq: None), plan(TOGETHER, range(3), 1, "seed"))
    finally:
        threading.settrace(former)
    assert traced == {"call"}


# --- limits ---


def write_system(root: Path, texts: dict[str, str]) -> None:
    """Write files as a system shows them below ``root``."""
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_run_says_that_the_limit_of_an_agent_was_reached() -> None:
    ops, notes = run(Call(meet(7)), plan(TOGETHER, range(70), 1, "seed"), max_threads=7)
    assert len(ops) == 70
    assert notes == [
        "at most 7 operations were in flight in one agent, as many as its engine allows: further "
        "ones began late; use more agents"
    ]


def test_memory_limits_operations_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cloudbench.load.engine.limits.available_bytes", lambda root: 5 * 48 * 1024)
    assert (count_fitting_threads(1), count_fitting_threads(2), count_fitting_threads(50)) == (5, 2, 1)
    ops, notes = run(Call(meet(5)), plan(TOGETHER, range(20), 1, "seed"))
    assert len(ops) == 20
    assert [note.split(",")[0] for note in notes] == ["at most 5 operations were in flight in one agent"]


@pytest.mark.parametrize(
    ("cgroup", "folder"), [("0::/a/b", "a/b"), ("8:pids:/a\n5:memory:/m", "pids/a"), ("4:memory:/a", "")]
)
def test_a_refused_thread_is_explained_by_limits_of_system_and_container(
    tmp_path: Path, cgroup: str, folder: str
) -> None:
    texts = {
        "proc/self/cgroup": cgroup,
        "proc/sys/kernel/pid_max": "32768\n",
        "proc/loadavg": "0.2 0.1 0.1 3/2768 99\n",
    }
    if folder:
        texts |= {f"sys/fs/cgroup/{folder}/pids.max": "200\n", f"sys/fs/cgroup/{folder}/pids.current": "199\n"}
    write_system(tmp_path, texts)
    line = describe_limit(190, 10_000, are_refused=True, root=tmp_path)
    assert line.startswith(
        "at most 190 operations were in flight in one agent, because the system refused a further thread"
    )
    assert ("pids.max 200" in line) == bool(folder)
    assert "kernel.pid_max 32768" in line
    assert "\n" not in line


@pytest.mark.parametrize(("agents", "threads"), [(1, 15_000), (50, 300), (100_000, 1)])
def test_agents_share_half_of_the_threads_that_a_machine_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agents: int, threads: int
) -> None:
    monkeypatch.setattr("pytest_cloudbench.load.engine.limits.available_bytes", lambda root: None)
    monkeypatch.setattr("resource.getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    write_system(tmp_path, {"proc/sys/kernel/pid_max": "32768", "proc/loadavg": "0.2 0.1 0.1 3/2768 99"})
    assert count_fitting_threads(agents, tmp_path) == threads
    line = describe_limit(threads, 20_000, are_refused=False, root=tmp_path)
    assert "its share of this machine's memory and threads (kernel.pid_max 32768)" in line
    assert line.endswith("use more machines")


@pytest.mark.parametrize(("limit", "threads"), [(3000, 1450), (8000, 2616)])
def test_threads_of_other_users_do_not_count_towards_the_limit_of_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, threads: int
) -> None:
    """All threads stand for the user's if they are few, because it takes long to read the status of each process."""
    for name in ("getuid", "geteuid"):
        monkeypatch.setattr(os, name, lambda: 1000)
    monkeypatch.setattr("resource.getrlimit", lambda which: (limit, resource.RLIM_INFINITY))
    status = "Name:\tx: y\nUid:\t{}\t0\t0\t0\nThreads:\t{}\n"
    texts = {"7/status": status.format(1000, 60), "8/status": status.format(1000, 40), "9/status": status.format(0, 5)}
    texts |= {"loadavg": "0.2 0.1 0.1 3/2768 99", "meminfo": "MemAvailable: 99999999 kB\n"}
    write_system(tmp_path, {f"proc/{name}": text for name, text in texts.items()})
    assert count_fitting_threads(1, tmp_path) == threads


MEMORY_2 = {
    "memory.max": "1000000",
    "memory.current": "990000",
    "memory.stat": "inactive_file 300000\nactive_file 1000\n",
}
MEMORY_1 = {
    "memory.limit_in_bytes": "1000000",
    "memory.usage_in_bytes": "990000",
    "memory.stat": "inactive_file 5\nactive_file 5\ntotal_inactive_file 300000\ntotal_active_file 1000\n",
}


@pytest.mark.parametrize(
    ("cgroup", "folder", "texts"),
    [
        ("0::/", "", MEMORY_2),
        ("0::/a/b", "a", MEMORY_2),
        ("5:memory:/m\n0::/", "memory/m", MEMORY_1),
        ("5:memory:/docker/1", "memory", MEMORY_1),
    ],
)
def test_files_that_a_container_has_in_memory_are_memory_that_it_can_provide(
    tmp_path: Path, cgroup: str, folder: str, texts: dict[str, str]
) -> None:
    write_system(tmp_path, {"proc/self/cgroup": cgroup, "proc/meminfo": "MemAvailable: 99999999 kB\n"})
    write_system(tmp_path / "sys/fs/cgroup" / folder, texts)
    assert available_bytes(tmp_path) == 311_000


def test_a_container_without_a_limit_has_the_memory_of_its_machine(tmp_path: Path) -> None:
    write_system(tmp_path, {"proc/self/cgroup": "0::/", "proc/meminfo": "MemAvailable: 2000 kB\n"})
    write_system(tmp_path / "sys/fs/cgroup", {**MEMORY_2, "memory.max": "max\n"})
    assert available_bytes(tmp_path) == 2_048_000


def test_a_thread_that_the_system_refuses_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    import _thread

    start, count = _thread.start_new_thread, 0

    def refuse_further(function: Callable[..., object], args: tuple[object, ...]) -> int:
        nonlocal count
        count += 1
        if count > 4:
            raise RuntimeError("can't start new thread")
        return start(function, args)

    monkeypatch.setattr(_thread, "start_new_thread", refuse_further)
    ops, notes = run(Call(meet(4)), plan(TOGETHER, range(40), 1, "seed"))
    assert len(ops) == 40
    assert len(notes) == 1
    assert notes[0].startswith("at most 4 operations were in flight in one agent, because the system refused")


@pytest.mark.parametrize(
    ("soft", "hard", "threads", "allowed"), [(100, 900, 50, 400), (100, 300, 50, 300), (500, 900, 50, 500)]
)
def test_files_are_allowed_for_each_thread_as_far_as_the_system_does(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, threads: int, allowed: int
) -> None:
    limits = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, new: limits.__setitem__(slice(None), new))
    allow_descriptors(threads)
    assert limits == [allowed, hard]
