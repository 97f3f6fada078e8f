"""Waits of threads for a CPU, compared with Linux's counts and with processes that take the CPU away."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from pytest_cloudbench.load.engine import cpu_wait
from pytest_cloudbench.load.engine.cpu_wait import WaitSampler, find_thread_wait
from pytest_cloudbench.support.clock import wait_for
from tests.limits import HANG_S

pytestmark = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="only Linux counts how long a thread waits for a CPU"
)

NO_PROCESS = 2**22 + 1
"""More than the largest process id that Linux gives."""
OWN_CHILD = NO_PROCESS + 1
"""Stands for a process of a test. This process itself may have hundreds of threads, of which not all are read."""

BUSY = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
print("busy", flush=True)
while time.process_time() < 20:
    pass
"""
SERVICE = """
import os, sys, threading, time
os.sched_setaffinity(0, {int(sys.argv[1])})

def waited_ns():
    folder = "/proc/self/task"
    return sum(int(open(f"{folder}/{thread}/schedstat").read().split()[1]) for thread in os.listdir(folder))

def work(until_s):
    while time.thread_time() < until_s:
        pass

print("ready", flush=True)
for line in sys.stdin:
    kind, work_s = line.split()
    before_ns = waited_ns()
    if kind == "work":
        work(time.thread_time() + float(work_s))
    print(waited_ns() - before_ns, flush=True)
"""


def read_linux_wait_ns(pid: int | None = None) -> int:
    """Return the time that the threads of a process, or this thread, have waited."""
    if pid is None:
        paths = [f"/proc/self/task/{threading.get_native_id()}/schedstat"]
    else:
        paths = [f"/proc/{pid}/task/{thread}/schedstat" for thread in os.listdir(f"/proc/{pid}/task")]
    return sum(int(Path(path).read_text().split()[1]) for path in paths)


def test_a_reading_is_not_changed_by_another_thread_that_reads_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, is_switched = cpu_wait._Library(), threading.Event()
    monkeypatch.setattr(cpu_wait, "_library", lambda: library)
    files = []
    for wait_ns in (111, 2222222):
        (tmp_path / str(wait_ns)).write_text(f"5 {wait_ns} 7\n", "ascii")
        files.append(cpu_wait._ThreadFile(os.open(tmp_path / str(wait_ns), os.O_RDONLY)))
        monkeypatch.setattr(cpu_wait._ThreadFile, "open_count", cpu_wait._ThreadFile.open_count + 1)
    pread = library._pread

    def pread_and_switch(*arguments: object) -> int:
        """Let another thread read directly after this one, as the interpreter may after any call."""
        read_bytes: int = pread(*arguments)
        if not is_switched.is_set():
            is_switched.set()
            assert files[1].read_wait_ns() == 2222222
        return read_bytes

    monkeypatch.setattr(library, "_pread", pread_and_switch)
    assert files[0].read_wait_ns() == 111


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def work(work_s: float) -> None:
    until_s = time.thread_time() + work_s
    while time.thread_time() < until_s:
        pass


def read_known_ns(read: Callable[[], int | None]) -> int:
    waited_ns = read()
    assert waited_ns is not None
    return waited_ns


@contextmanager
def start_process(code: str, cpu: int) -> Iterator[subprocess.Popen[str]]:
    """Start a process on one CPU, and yield it once it has printed that it runs."""
    command = [sys.executable, "-c", code, str(cpu)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() in ("busy", "ready")
            yield process
        finally:
            process.kill()


@pytest.fixture
def cpu() -> Iterator[int]:
    """The one CPU on which this thread, and what it starts, runs."""
    former = os.sched_getaffinity(0)
    chosen_cpu = max(former)
    os.sched_setaffinity(0, {chosen_cpu})
    yield chosen_cpu
    os.sched_setaffinity(0, former)


@contextmanager
def competition(cpu: int, processes: int = 2) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(processes):
            stack.enter_context(start_process(BUSY, cpu))
        yield


# --- this thread ---


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_a_thread_has_waited_as_long_as_linux_says(cpu: int, processes: int) -> None:
    read = find_thread_wait()
    with competition(cpu, processes):
        outer_ns = read_linux_wait_ns()
        before_ns = read_known_ns(read)
        inner_ns = read_linux_wait_ns()
        work(0.05)
        inner_ns = read_linux_wait_ns() - inner_ns
        waited_ns = read_known_ns(read) - before_ns
        outer_ns = read_linux_wait_ns() - outer_ns
    assert inner_ns <= waited_ns <= outer_ns


def test_a_thread_waits_while_others_have_its_cpu_and_hardly_without_them(cpu: int) -> None:
    read = find_thread_wait()

    def wait_share(work_s: float) -> float:
        before_ns = read_known_ns(read)
        work(work_s)
        waited_s = (read_known_ns(read) - before_ns) / 1e9
        return waited_s / (waited_s + work_s)

    assert min(wait_share(0.001) for _ in range(50)) < 0.05, "whatever else this machine does"
    with competition(cpu):
        assert wait_share(0.2) > 0.4, "two others get as much of the CPU, so that it is two thirds"


def test_a_thread_that_sleeps_waits_for_no_cpu(cpu: int) -> None:
    """It blocks until another process, on the same CPU, has printed a line after much work."""
    read = find_thread_wait()
    with start_process(SERVICE, cpu) as service:
        assert service.stdin is not None
        assert service.stdout is not None
        before_ns = read_known_ns(read)
        print("work 0.3", file=service.stdin, flush=True)
        service.stdout.readline()
        assert read_known_ns(read) - before_ns < 0.15e9


def test_each_thread_gets_its_own_wait(cpu: int) -> None:
    read, waits_ns = find_thread_wait(), dict[str, int]()

    def busy() -> None:
        before_ns = read_known_ns(read)
        work(0.05)
        waits_ns["busy"] = read_known_ns(read) - before_ns

    def idle() -> None:
        before_ns = read_known_ns(read)
        worker.join()
        waits_ns["idle"] = read_known_ns(read) - before_ns

    with competition(cpu, 3):
        worker, other = threading.Thread(target=busy), threading.Thread(target=idle)
        worker.start()
        other.start()
        other.join()
    assert waits_ns["busy"] > 0.05e9
    assert waits_ns["idle"] < waits_ns["busy"]


def test_many_threads_all_get_an_answer_and_their_descriptors_are_few_and_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_wait, "count_descriptors_for_waits", lambda: 128)
    read, threads, answers = find_thread_wait(), 200, list[int | None]()
    read()  # this thread's own descriptor stays
    all_have_read, may_end = threading.Barrier(threads + 1), threading.Event()
    before = open_files()

    def answer() -> None:
        answers.append(read())
        all_have_read.wait(HANG_S)
        may_end.wait(HANG_S)
        answers.append(read())

    workers = [threading.Thread(target=answer) for _ in range(threads)]
    for worker in workers:
        worker.start()
    all_have_read.wait(HANG_S)
    assert 100 < open_files() - before <= 128
    may_end.set()
    for worker in workers:
        worker.join()
    assert len(answers) == 2 * threads
    assert None not in answers
    assert open_files() == before


def test_descriptors_of_threads_that_ended_serve_others() -> None:
    read, before = find_thread_wait(), open_files()
    for _ in range(300):
        worker = threading.Thread(target=read)
        worker.start()
        worker.join()
    assert open_files() <= before + 1


def test_wait_is_unknown_without_a_free_descriptor() -> None:
    code = """
import os, resource, threading
from pytest_cloudbench.load.engine.cpu_wait import find_thread_wait
read, answers = find_thread_wait(), []
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
first_free = os.dup(0)
os.close(first_free)
for limit in (first_free, soft, first_free, soft):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    thread = threading.Thread(target=lambda: answers.append(read() is None))
    thread.start()
    thread.join()
print(answers)
"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (finished.stdout.strip(), finished.stderr) == ("[True, False, True, False]", "")


# --- other threads and processes ---


@pytest.mark.parametrize("processes", [0, 2])
def test_a_service_has_waited_as_long_as_it_says_itself(cpu: int, processes: int) -> None:
    with competition(cpu, processes), start_process(SERVICE, cpu) as service:
        assert service.stdin is not None
        assert service.stdout is not None
        outer_ns = read_linux_wait_ns(service.pid)
        sampler = WaitSampler([service.pid], [])
        print("work 0.2", file=service.stdin, flush=True)
        inner_ns = int(service.stdout.readline())
        series = sampler.stop()
        outer_ns = read_linux_wait_ns(service.pid) - outer_ns
    waited_ns = series.waited_ns[-1] - series.waited_ns[0]
    assert inner_ns <= waited_ns <= outer_ns
    assert series.why == ""
    assert not processes or waited_ns > 0.1e9, "two others get as much of the CPU"
    assert all(early <= late for early, late in pairwise(series.waited_ns))
    assert all(early <= late for early, late in pairwise(series.time_ns))
    assert len(series.time_ns) == len(series.waited_ns) >= 2


def test_a_service_that_does_nothing_waits_for_nothing_beside_busy_processes(cpu: int) -> None:
    with competition(cpu), start_process(SERVICE, cpu) as service:
        assert wait_for(lambda: state_of(service.pid) == "S", HANG_S, poll_s=0.01), "it sleeps until a line comes"
        sampler = WaitSampler([service.pid], [])
        work(0.1)
        series = sampler.stop()
    assert series.waited_ns[-1] == series.waited_ns[0]


def test_samples_are_taken_while_a_run_lasts_and_at_its_end(cpu: int) -> None:
    """Each wait counts for the operations that run at that time."""
    with competition(cpu), start_process(SERVICE, cpu) as service:
        assert service.stdin is not None
        assert service.stdout is not None
        sampler = WaitSampler([service.pid], [])
        counted_ns = []
        for line in ("work 0.1", "none 0", "work 0.1"):
            print(line, file=service.stdin, flush=True)
            counted_ns.append(int(service.stdout.readline()))
        series = sampler.stop()
    assert series.waited_ns[-1] >= sum(counted_ns)
    assert len(set(series.waited_ns)) > 2, "it has risen in steps"


def test_sampler_reads_child_processes_and_later_threads() -> None:
    """The service is a child of the process that the sampler is given."""
    code = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]], stdin=sys.stdin)
child.wait()
"""
    cpu = max(os.sched_getaffinity(0))
    command = [sys.executable, "-c", code, str(cpu), SERVICE]
    with (
        competition(cpu),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent,
    ):
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        sampler = WaitSampler([parent.pid], [])
        print("work 0.1", file=parent.stdin, flush=True)
        counted_ns = int(parent.stdout.readline())
        series = sampler.stop()
        parent.stdin.close()
    assert series.waited_ns[-1] >= counted_ns > 0


def test_ended_service_keeps_its_wait_and_no_descriptor() -> None:
    before = open_files()
    cpu = max(os.sched_getaffinity(0))
    with competition(cpu), start_process(SERVICE, cpu) as service:
        assert service.stdin is not None
        assert service.stdout is not None
        sampler = WaitSampler([service.pid], [])
        print("work 0.2", file=service.stdin, flush=True)
        service.stdout.readline()
        service.kill()
        service.wait()
        assert wait_for(lambda: not open_files_of(service.pid), HANG_S, poll_s=0.01)
        series = sampler.stop()
    assert series.waited_ns[-1] > 0
    assert open_files() == before


THREADS = """
import sys, threading

def start():
    thread = threading.Thread(target=may_end.wait)
    thread.start()
    return thread

may_end, threads = threading.Event(), []
print("ready", flush=True)
for line in sys.stdin:
    kind, count = line.split()
    if kind == "replace":
        may_end.set()
        for thread in threads:
            thread.join()
        may_end, threads = threading.Event(), []
    threads += [start() for _ in range(int(count))]
    print(*(thread.native_id for thread in threads), flush=True)
may_end.set()
"""


def wait_for_open_files(pid: int, threads: Sequence[str], count: int) -> None:
    """Wait until a sampler in this process has opened the files of ``count`` of a process's threads."""
    paths = {f"/proc/{pid}/task/{thread}/schedstat" for thread in threads}
    assert wait_for(lambda: len(paths & {*open_files_of(pid)}) == count, HANG_S, poll_s=0.01)


@pytest.mark.parametrize(
    ("kind", "batches", "why"),
    [("replace", [1] * 20, ""), ("add", [20], "only 5 threads were read")],
    ids=["one after another", "at once"],
)
def test_a_remark_says_that_threads_were_left_out_only_if_they_were(
    monkeypatch: pytest.MonkeyPatch, kind: str, batches: list[int], why: str
) -> None:
    monkeypatch.setattr(cpu_wait, "_MOST_THREADS", 5)
    with start_process(THREADS, max(os.sched_getaffinity(0))) as service:
        assert service.stdin is not None
        assert service.stdout is not None
        sampler = WaitSampler([service.pid], [])
        for count in batches:
            print(kind, count, file=service.stdin, flush=True)
            threads = service.stdout.readline().split()
            wait_for_open_files(service.pid, threads, min(count, 4))  # one more is of the service's first thread
        assert sampler.stop().why == why


def state_of(pid: int) -> str:
    """Return the letter that Linux gives the state of a process."""
    return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]


def open_files_of(pid: int) -> list[str]:
    """Return the open files of this process that belong to another one."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return [link for link in links if link.startswith(f"/proc/{pid}/")]


@pytest.mark.parametrize("clients", [[], [os.getppid()], [os.getpid()]], ids=["none", "parent", "the service itself"])
def test_all_descriptors_of_a_sampler_are_closed(clients: list[int]) -> None:
    before = open_files()
    sampler = WaitSampler([os.getpid()], clients)
    assert open_files() > before
    sampler.stop()
    assert open_files() == before


@pytest.mark.parametrize(("services", "clients", "why"), [
    ([NO_PROCESS], [], "this system does not count how long threads wait for a CPU"),
    ([], [NO_PROCESS], "this system does not count how long threads wait for a CPU"),
    ([], [], "this system does not count how long threads wait for a CPU"),
    ([], [OWN_CHILD], "the server is not a process of this run, so only the client is known"),
    ([OWN_CHILD], [0], "agents on other hosts are not read"),
])  # fmt: skip
def test_stop_returns_a_remark_on_unknown_waits(services: list[int], clients: list[int], why: str) -> None:
    with start_process(SERVICE, max(os.sched_getaffinity(0))) as child:
        pids = [[child.pid if pid == OWN_CHILD else pid for pid in side] for side in (services, clients)]
        series = WaitSampler(*pids).stop()
    assert series.why == why
    assert len(series.time_ns) == len(series.waited_ns) >= 2


def test_no_remark_with_a_service_and_a_client_of_this_run() -> None:
    """Both are processes of this test, because this process and its ancestors may have hundreds of threads."""
    cpu = max(os.sched_getaffinity(0))
    with start_process(SERVICE, cpu) as service, start_process(SERVICE, cpu) as client:
        assert WaitSampler([service.pid], [client.pid]).stop().why == ""
