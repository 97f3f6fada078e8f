"""The client that reads what another one writes, in this process and in a process of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.fleet.offsets import measure_offset
from pytest_cloudbench.load.engine.engine import Budget
from pytest_cloudbench.load.probes.reader import SHORT, ReaderProcess, Watcher
from pytest_cloudbench.model import Content, FleetError, ProviderSpec
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.workload.payload import Payloads
from tests.limits import HANG_S

DAY_NS = 86_400 * 10**9


def describe_provider(spec: str) -> dict[str, Any]:
    """Return a controller's description of a provider without a service."""
    return Provided(spec).plain()


@pytest.fixture
def content() -> Content:
    return Payloads("reader").random(300_000).content(0, 0)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    connected = drivers.connect(ProviderSpec.parse(f"folder:{tmp_path}"), None, {})
    yield connected
    connected.close()


@pytest.fixture(params=["here", "process"])
def reader(request: pytest.FixtureRequest, tmp_path: Path, driver: Driver) -> Iterator[Watcher | ReaderProcess]:
    new_reader = Watcher(driver) if request.param == "here" else ReaderProcess(describe_provider(f"folder:{tmp_path}"))
    with new_reader:
        yield new_reader


def test_a_file_is_missing_then_short_then_wrong_then_intact(
    reader: Watcher | ReaderProcess, tmp_path: Path, driver: Driver, content: Content
) -> None:
    reader.watch("/a.bin", content, 0.0)
    assert {attempt.problem for attempt in reader.finish(0)} == {"not_found"}
    data = content.read(0, content.size_bytes)
    for stored_bytes, problem in (
        (data[:-1], SHORT),
        (b"", SHORT),
        (b"x" + data[1:], "corrupt"),
        (data + b"x", "corrupt"),
    ):
        (tmp_path / "a.bin").write_bytes(stored_bytes)
        reader.watch("/a.bin", content, None)
        attempts = reader.finish(0)
        assert {attempt.problem for attempt in attempts} == {problem}
        assert attempts[0].read_bytes == len(stored_bytes)
    driver.delete("/a.bin")
    reader.watch("/a.bin", content, 0.001)
    driver.put("/a.bin", content)
    attempts = reader.finish(HANG_S)
    assert [attempt.problem for attempt in attempts] == ["not_found"] * (len(attempts) - 1) + [""]
    last = attempts[-1]
    assert last.start_ns <= last.first_byte_ns <= last.end_ns
    assert last.read_bytes == content.size_bytes
    assert all(earlier.end_ns <= later.start_ns for earlier, later in pairwise(attempts))


def test_reader_ends_when_its_parent_is_gone(driver: Driver, content: Content) -> None:
    with Watcher(driver) as watcher:
        watcher.watch("/never.bin", content, 0.0)
        assert watcher.finish(HANG_S * 100, gone=lambda: True)[-1].problem == "not_found"


def test_reader_stops_at_its_budget_over_all_files(tmp_path: Path, driver: Driver, content: Content) -> None:
    """Only received bytes count. A missing file costs none."""
    driver.put("/there.bin", content)
    size_bytes = content.size_bytes
    for limits, expected in ((Budget(max_ops=3), 3), (Budget(max_bytes=2 * size_bytes), None)):
        with (
            Watcher(driver, limits) as watcher,
            ReaderProcess(describe_provider(f"folder:{tmp_path}"), limits) as process,
        ):
            for reader in (watcher, process):
                reader.watch("/missing.bin", content, 0.0)
                missing = reader.finish(HANG_S if expected else 0)
                assert len(missing) == expected if expected else missing
                for _ in range(2):
                    reader.watch("/there.bin", content, 0.0)
                    assert [attempt.problem for attempt in reader.finish(HANG_S)] == ([] if expected else [""])
                reader.watch("/there.bin", content, 0.0)
                assert list(reader.finish(HANG_S)) == []
                assert "is used up" in reader.stopped


def test_programming_error_in_a_reader_is_raised(driver: Driver, content: Content) -> None:
    class Broken:
        size_bytes = 300_000

        def read(self, offset: int, length: int) -> bytes:
            raise ZeroDivisionError

    driver.put("/a.bin", content)
    with Watcher(driver) as watcher:
        watcher.watch("/a.bin", Broken(), 0.0)
        with pytest.raises(ZeroDivisionError):
            watcher.finish(HANG_S)


def test_a_process_that_cannot_connect_says_why() -> None:
    with pytest.raises(FleetError, match=r"the reading process: SpecError: .*nonsense"):
        ReaderProcess(describe_provider("nonsense:x"))


def test_a_process_that_dies_is_reported(tmp_path: Path, content: Content) -> None:
    with ReaderProcess(describe_provider(f"folder:{tmp_path}")) as reader:
        os.kill(reader.pid, signal.SIGKILL)
        with pytest.raises(FleetError, match="the reading process ended: killed by signal 9"):
            reader.watch("/a.bin", content, 0.0)


def test_reader_process_ends_with_its_killed_parent(tmp_path: Path) -> None:
    """The parent is killed while the reader waits for a file that never comes."""
    source = (
        "import json, os, signal\n"
        "from pytest_cloudbench.load.probes.reader import ReaderProcess\n"
        "from pytest_cloudbench.workload.payload import Payloads\n"
        f"reader = ReaderProcess({describe_provider(f'folder:{tmp_path}')})\n"
        "reader.watch('/never.bin', Payloads('x').random(5).content(0, 0), 0.01)\n"
        "request = {'verb': 'finish', 'patience_s': 100_000}\n"
        "reader._child.write(json.dumps(request).encode() + b'\\n')\n"
        "print(reader.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    finished = subprocess.run(
        [sys.executable, "-c", source], env={**os.environ, "TMPDIR": str(scratch)}, stdout=subprocess.PIPE,
        check=False, timeout=HANG_S,
    )  # fmt: skip
    assert finished.returncode == -signal.SIGKILL
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(finished.stdout)).wait(HANG_S)
    assert not psutil.pid_exists(int(finished.stdout))
    assert list(scratch.iterdir()) == []


def _find_time_namespace() -> tuple[str, ...] | None:
    """Return a command that starts a process with another monotonic clock. None where that is not allowed."""
    command = ("unshare", "-T", "--monotonic", str(DAY_NS // 10**9))
    if shutil.which("unshare") is None:
        return None
    program = "import time; print(time.monotonic_ns())"
    finished = subprocess.run([*command, sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return command if finished.returncode == 0 and int(finished.stdout) > now_ns() + DAY_NS // 2 else None


@pytest.mark.skipif(_find_time_namespace() is None, reason="the kernel gives no time namespace here")
def test_another_clock_is_measured_within_the_bound(tmp_path: Path, driver: Driver, content: Content) -> None:
    """Nothing is mocked: the kernel itself shifts the clock of the child process by a day."""
    prefix = _find_time_namespace()
    assert prefix is not None
    with ReaderProcess(describe_provider(f"folder:{tmp_path}"), command=(*prefix, *ReaderProcess.COMMAND)) as reader:
        offset = measure_offset(reader.clock)
        driver.put("/a.bin", content)
        start_ns = now_ns()
        reader.watch("/a.bin", content, 0.0)
        (attempt,) = reader.finish(HANG_S)
        assert start_ns <= attempt.start_ns - offset.offset_ns + offset.error_ns
        assert attempt.end_ns - offset.offset_ns - offset.error_ns <= now_ns()
    assert abs(offset.offset_ns - DAY_NS) <= offset.error_ns
