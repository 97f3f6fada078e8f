"""Helpers that start pytest on small generated tests, watch it and read its files.

Nothing here sleeps for an effect: a test waits for a file, a record or the end of a process,
and every wait has a bound that only a hang reaches.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.results.oplog import read_log, read_parquet
from pytest_cloudbench.support.clock import wait_for
from tests.limits import HANG_S
from tests.provider_folders import make_folders
from tests.runs import LEAN, QUIET
from tests.warm_pytest import WarmPytest

_POLL_S = 0.02
_LOG_HEAD = 64

PRELUDE = """
import os, pathlib, signal, threading, time
import pytest
from pytest_cloudbench.workload.arrival import FixedInterval, ThinkTime
HERE = pathlib.Path(__file__).parent

def told(fleet):
    (HERE / f"pid-{fleet.name}").write_text(str(os.getpid()))

def wait_for(name):
    limit = time.monotonic() + 90
    while not (HERE / name).exists():
        assert time.monotonic() < limit, f"no {name}"
        time.sleep(0.02)
"""


@dataclass
class FinishedRun:
    """A finished pytest run: its exit status, its output and its stored entries."""

    status: int
    text: str
    folder: Path
    leftovers: list[str]
    duration_s: float
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def entries(self) -> dict[str, Mapping[str, Any]]:
        """Return pytest-benchmark's entries by the test's name."""
        return {entry["name"]: entry for entry in self.document.get("benchmarks", [])}

    def info(self, name: str) -> Mapping[str, Any]:
        """Return an entry's facts about its experiment."""
        info: Mapping[str, Any] = self.entries[name]["extra_info"]
        return info

    def counts(self) -> dict[str, int]:
        """Return the numbers of the last line, such as {"passed": 2, "failed": 1}."""
        last = [line for line in self.text.splitlines() if re.search(r" in \d+\.\d+s", line)][-1]
        return {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]{2,})", last)}

    def records(self) -> dict[str, OpTable]:
        """Return every experiment's merged records by the name of the test function."""
        tables = {}
        for path in sorted(self.folder.rglob("*.parquet")):
            match = re.search(r"__(test_\w+?)_(folder|emulated|own|provider\d)", path.stem)
            assert match is not None, path
            tables[match[1]] = read_parquet(path)
        return tables

    def all_records(self) -> list[tuple[int, int]]:
        """Return the ``keys`` of all records in all files, merged or not, in any folder."""
        tables = [*map(read_parquet, self.folder.rglob("*.parquet")), *map(read_log, self.folder.rglob("*.oplog"))]
        return [key for table in tables for key in keys(table)]

    def logs(self) -> list[Path]:
        """Return the agents' logs that were not merged."""
        return sorted(self.folder.rglob("*.oplog"))

    def lines_with(self, text: str) -> list[str]:
        return [line for line in unwrapped_lines(self.text) if text in line]


def unwrapped_lines(text: str) -> list[str]:
    """Return the lines of a terminal's text, with wrapped lines joined again."""
    physical = text.splitlines()
    width = max((len(line) for line in physical if line.startswith("====")), default=0)
    lines: list[str] = []
    before = ""
    for line in physical:
        words = line.split(maxsplit=1)
        indent = len(lines[-1]) - len(lines[-1].lstrip()) + 2 if lines else -1
        is_next = bool(words) and len(line) - len(line.lstrip()) == indent and before[:1] not in "=-"
        is_command = before.endswith(":") and line.strip().startswith("cloudbench ")
        if is_next and width and (is_command or len(before) + 1 + len(words[0]) > width):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
        before = line
    return lines


def keys(table: OpTable) -> list[tuple[int, int]]:
    """Return (sensor, seq) of every record in order. A duplicate record appears twice."""
    return sorted(zip(table.sensor, table.seq, strict=True))


def grid(sensors: int, count: int) -> list[tuple[int, int]]:
    """Return the ``keys`` of a complete experiment."""
    return [(sensor, seq) for sensor in range(sensors) for seq in range(count)]


class RunningSession:
    """A pytest process in a session of its own, with a mark that identifies all processes it has started."""

    def __init__(
        self, folder: Path, args: tuple[str, ...], env: Mapping[str, str | None], within: str = "", after: str = "true",
        enter: Sequence[str] = (), may_fork: bool = False,
    ) -> None:  # fmt: skip
        self.folder = folder
        self._mark = f"cloudbench-test-{uuid.uuid4().hex}"
        self._out = folder / "out.txt"
        dropped = [name for name in os.environ if name.startswith(("PYTEST_", "CLOUDBENCH_", "COV_"))]
        environment = {name: value for name, value in os.environ.items() if name not in dropped}
        environment |= {"CLOUDBENCH_TEST_MARK": self._mark, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
        environment |= {name: value for name, value in env.items() if value is not None}
        for name in (name for name, value in env.items() if value is None):
            environment.pop(name, None)
        options = ["-p", "no:hypothesispytest", *(arg for arg in args if arg != "cacheprovider")]
        if "--lf" not in args and "cacheprovider" not in args:
            options[:0] = ["-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", *options]
        if within:  # in a mount namespace of its own, which ends with it
            command = ["unshare", "-m", "sh", "-c", f'{within}; "$@"; status=$?; {after}; exit $status', "sh", *command]
        command = [*enter, *command]
        self._began_s = time.monotonic()
        self.process: subprocess.Popen[bytes] | WarmPytest
        with self._out.open("wb") as out:
            if may_fork and not within and not enter and not any(name.startswith("PYTHON") for name in env):
                self.process = WarmPytest(options, folder, environment, self._out)
                return
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    # -- observing --------------------------------------------------------------------------------

    def text(self) -> str:
        return self._out.read_text(encoding="utf-8", errors="replace")

    def relatives(self) -> list[psutil.Process]:
        """Return all living processes that this run has started, even if they have another parent now.

        The mark shows in processes that began by exec. Those that a forked pytest has forked share its session.
        """
        mark, processes = f"CLOUDBENCH_TEST_MARK={self._mark}".encode(), []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                is_marked = mark in Path(f"/proc/{process.pid}/environ").read_bytes()
                if (is_marked or os.getsid(process.pid) == self.process.pid) and process.status() != "zombie":
                    processes.append(process)
        return processes

    def wait_for(self, what: str, probe: Callable[[], Any]) -> Any:
        """Return the first true value of ``probe``. Fail if pytest ends before, or after ``HANG_S``."""
        values: list[Any] = []

        def has_value() -> bool:
            values.append(probe())
            if not values[-1] and self.process.poll() is not None:
                pytest.fail(f"pytest ended before {what}:\n{self.text()}")
            return bool(values[-1])

        if not wait_for(has_value, HANG_S, poll_s=_POLL_S):
            self.destroy()
            pytest.fail(f"no {what} in {HANG_S:g} s:\n{self.text()}")
        return values[-1]

    def workers(self) -> dict[str, psutil.Process]:
        """Return xdist's workers by their ids, as their tests reported them (``told`` of the prelude)."""
        workers = {}
        for path in self.folder.glob("pid-*"):
            with contextlib.suppress(psutil.NoSuchProcess, ValueError):
                workers[path.name.removeprefix("pid-")] = psutil.Process(int(path.read_text()))
        return workers

    def emulator(self) -> psutil.Process:
        return next(process for process in self.relatives() if "emulators.server" in " ".join(process.cmdline()))

    def log_of(self, agent: str, test: str = "") -> Path | None:
        folders = (Path(folder) for folder, _, names in os.walk(self.folder) if f"{agent}.oplog" in names)
        paths = [folder / f"{agent}.oplog" for folder in folders if test in str(folder)]  # walk: folders may vanish
        return paths[0] if paths else None

    def wait_for_records(self, agent: str, test: str = "", count: int = 1) -> None:
        """Wait until an agent's log holds some records. The agent is then in mid-run."""

        def has_enough() -> bool:
            path = self.log_of(agent, test)
            if path is None:
                return False
            try:
                return len(read_log(path)) >= count
            except FileNotFoundError:
                return False

        self.wait_for(f"record of {agent}", has_enough)

    # -- controlling ------------------------------------------------------------------------------

    def interrupt(self, group: bool) -> None:
        if group:
            os.killpg(self.process.pid, signal.SIGINT)
        else:
            self.process.send_signal(signal.SIGINT)

    def destroy(self) -> None:
        for process in self.relatives():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait()

    def end(self, timeout_s: float = HANG_S) -> FinishedRun:
        """Wait for the end, and list the processes that are left. Fail on a hang."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.destroy()
            pytest.fail(f"pytest did not end in {timeout_s:g} s:\n{self.text()}", pytrace=False)
        duration_s = time.monotonic() - self._began_s
        _, alive = psutil.wait_procs(self.relatives(), timeout=HANG_S)  # a process that is ending may take a moment
        leftovers = [f"{process.pid} {' '.join(process.cmdline())[:150]}" for process in alive if process.is_running()]
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        stored = self.folder / "out.json"
        document = json.loads(stored.read_text()) if stored.exists() and stored.stat().st_size else {}
        return FinishedRun(status, self.text(), self.folder, leftovers, duration_s, document)


class Lab:
    """A folder with generated tests, and pytest in it."""

    def __init__(self, folder: Path, may_be_late: bool = True) -> None:
        self.folder = folder
        self._running: list[RunningSession] = []
        self._options = QUIET if may_be_late else LEAN
        # Processes that share pytest's folder of temporary folders remove each other's, and may warn about it.
        self._temporary = tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True)
        os.chmod(self._temporary.name, 0o1777)  # some labs run as another user
        (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")

    def write(self, body: str, name: str = "test_it.py") -> Lab:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        prelude = PRELUDE if path.name.startswith("test_") else ""
        path.write_text(prelude + textwrap.dedent(body))
        return self

    def start(
        self, *args: str, env: Mapping[str, str | None] | None = None, within: str = "", after: str = "true",
        enter: Sequence[str] = (), store: bool = True, may_fork: bool = False,
    ) -> RunningSession:  # fmt: skip
        """Start pytest, and store its entries in ``out.json`` if ``store`` is set.

        ``within`` are shell commands to run before it in a mount namespace, ``after`` those to run there at the end.
        ``enter`` are words to put before its command, for example to enter a network namespace. ``may_fork`` lets it be
        forked from a process that has imported pytest, for tests that only look at what it leaves.
        """
        make_folders(self.folder, args)
        for old in [*self.folder.glob("pid-*"), self.folder / "out.json"]:
            old.unlink(missing_ok=True)
        stored = ("--benchmark-json=out.json",) if store else ()
        environment = {"PYTEST_ADDOPTS": self._options, "PYTEST_DEBUG_TEMPROOT": self._temporary.name, **(env or {})}
        running = RunningSession(self.folder, (*stored, *args), environment, within, after, enter, may_fork)
        self._running.append(running)
        return running

    def run(
        self, *args: str, env: Mapping[str, str | None] | None = None, within: str = "", after: str = "true",
        enter: Sequence[str] = (), timeout_s: float = HANG_S, store: bool = True,
    ) -> FinishedRun:  # fmt: skip
        started = self.start(*args, env=env, within=within, after=after, enter=enter, store=store, may_fork=True)
        return started.end(timeout_s)

    def close(self) -> None:
        for running in self._running:
            running.destroy()
        self._temporary.cleanup()


FOLDER = ("--provider", "folder:objects")
IDEAL = ("--provider", "emulated:ideal")


def outcomes(text: str) -> Counter[str]:
    """Count the words of ``-rA``'s short summary."""
    return Counter(re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED)\b", text, re.M))


@contextlib.contextmanager
def lab_in(folder: Path, may_be_late: bool = True) -> Iterator[Lab]:
    """Yield a lab, and kill its processes at the end. A late engine is a doubt unless ``may_be_late``."""
    lab = Lab(folder, may_be_late)
    try:
        yield lab
    finally:
        lab.close()
