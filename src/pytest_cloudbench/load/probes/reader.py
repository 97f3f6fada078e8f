"""The second client, which tries to download a file until it is there and intact.

What may live here: the watching thread, and its counterpart in a separate process for a run without xdist. The process
speaks JSON lines over its pipes and ends with its parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from pytest_cloudbench.drivers.base import Counting, Driver
from pytest_cloudbench.load.engine.engine import Budget
from pytest_cloudbench.load.engine.operations import compare_content
from pytest_cloudbench.model import BudgetError, CloudError, Content, ErrorKind, FleetError, chunks
from pytest_cloudbench.services.child import Child
from pytest_cloudbench.support import redact
from pytest_cloudbench.support.clock import now_ns, wait_for

SHORT = "short"
"""The problem of a download that ended too early, with only a part of the file."""

NOT_INTACT = frozenset({ErrorKind.NOT_FOUND.value, ErrorKind.CORRUPT.value, SHORT})
"""Problems that show that a file was not ready. Others (throttled, network...) say nothing about the file."""

_AT_ONCE = frozenset({ErrorKind.NOT_FOUND.value, SHORT})
"""After these problems the next attempt follows soon.

After others it follows ever later, to spare a provider in trouble.
"""

_PAUSE_S = (0.0005, 0.01)
"""Bounds of the pause, which is as long as a try: a fast provider is asked often, but is idle half of the time."""

_MAX_PAUSE_S = 1.0
_POLL_S = 0.2
_ROOT = str(Path(__file__).parents[3])
_BOOT = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from pytest_cloudbench.load.probes.reader import main; sys.exit(main())"
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to download a file. Times are on the reader's clock in ns.

    Attributes:
        start_ns, end_ns: from the request to the last byte, or to the error.
        first_byte_ns: 0 if none came.
        read_bytes: the number of bytes received.
        problem: empty if the file was intact, else ``SHORT`` or the value of an ``ErrorKind`` ("corrupt": other bytes).
        detail: the provider's own message, if it refused.
        requests: the number of requests, None if the driver does not count them.
    """

    start_ns: int
    end_ns: int
    first_byte_ns: int
    read_bytes: int
    problem: str
    detail: str = ""
    requests: int | None = None


class FileWatcher(Protocol):
    """A watcher of files until they appear, in this process or in another one."""

    @property
    def stopped(self) -> str:
        """The reason if it no longer watches (a budget is used up), or an empty text."""
        ...

    def watch(self, path: str, content: Content, poll_s: float | None) -> None:
        """Begin to try downloading ``path`` again and again. Returns when the first try is over."""
        ...

    def finish(self, patience_s: float, gone: Callable[[], bool]) -> Sequence[Attempt]:
        """Wait until the file is intact, at most ``patience_s``, or until ``gone``. Return all tries in order."""
        ...


class Watcher:
    """A watcher of one file at a time, in a thread of this process.

    Args:
        driver: a connected driver.
        budget: bound on tries, and on bytes that they read.
        clock: gives the times of the tries.
    """

    def __init__(self, driver: Driver, budget: Budget | None = None, clock: Callable[[], int] = now_ns) -> None:
        self._driver, self._budget, self._clock = driver, budget or Budget(), clock
        self._attempts: list[Attempt] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._stop, self._first_try_ended, self._finished = threading.Event(), threading.Event(), threading.Event()
        self.stopped = ""

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()

    def watch(self, path: str, content: Content, poll_s: float | None) -> None:
        """See ``FileWatcher``.

        A try begins ``poll_s`` after the end of the previous one, or, if that is None, after a pause as long as the
        previous try (within the bounds of ``_PAUSE_S``).
        """
        self._attempts, self._error = [], None
        self._stop, self._first_try_ended, self._finished = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._poll_file, args=(path, content, poll_s), name="reader", daemon=True
        )
        self._thread.start()
        self._first_try_ended.wait()

    def finish(self, patience_s: float, gone: Callable[[], bool] = lambda: False) -> Sequence[Attempt]:
        """See ``FileWatcher``. Raises what the thread raised, unless it was a CloudError or the used-up budget."""
        assert self._thread is not None, "watch comes first"
        wait_for(self._finished, patience_s, poll_s=_POLL_S, stop=gone)
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._attempts

    def _poll_file(self, path: str, content: Content, poll_s: float | None) -> None:
        """Download a file again and again until it is there, or until the watch is stopped."""
        size_bytes, stop, trouble_s = content.size_bytes, self._stop, 0.0
        try:
            while not stop.is_set():
                self._budget.take(size_bytes)
                attempt, wait_s = self._try_download(path, content)
                self._budget.bytes -= size_bytes - min(size_bytes, attempt.read_bytes)
                self._attempts.append(attempt)
                self._first_try_ended.set()
                if not attempt.problem:
                    return
                pause_s = poll_s
                if pause_s is None:
                    pause_s = min(max((attempt.end_ns - attempt.start_ns) / 1e9, _PAUSE_S[0]), _PAUSE_S[1])
                trouble_s = 0.0 if attempt.problem in _AT_ONCE else min(_MAX_PAUSE_S, 2 * max(trouble_s, pause_s))
                stop.wait(max(pause_s, trouble_s, wait_s))
        except BudgetError as error:
            self.stopped = str(error)
        except BaseException as error:  # a bug: the thread that waits for the file raises it
            self._error = error
        finally:
            self._first_try_ended.set()
            self._finished.set()

    def _try_download(self, path: str, content: Content) -> tuple[Attempt, float]:
        """Try one download. Return the attempt, and the pause that the provider asks for in seconds."""
        driver = self._driver
        requests = driver.requests if isinstance(driver, Counting) else None
        before = requests() if requests else 0
        start_ns = self._clock()
        try:
            first_byte_ns, read_bytes, is_right = compare_content(driver, path, content, self._clock)
        except CloudError as error:
            end_ns, request_count = self._clock(), requests() - before if requests else None
            detail = redact.clean(error.detail)  # a separate process sends it over a pipe
            return Attempt(start_ns, end_ns, 0, 0, error.kind.value, detail, request_count), error.retry_after_s or 0.0
        end_ns, request_count = self._clock(), requests() - before if requests else None
        is_short = is_right and read_bytes < content.size_bytes
        is_intact = is_right and read_bytes == content.size_bytes
        problem = "" if is_intact else SHORT if is_short else ErrorKind.CORRUPT.value
        return Attempt(start_ns, end_ns, first_byte_ns, read_bytes, problem, requests=request_count), 0.0


# --- a process of its own -------------------------------------------------------------------------


class ReaderProcess:
    """A reader in a child process: another client, with connections, a clock and an interpreter of its own.

    Args:
        provided: the controller's answer to "provide".
        budget: bound on tries and bytes, for all files together.
        command: starts the process. The test of a shifted clock puts a command in front of it.

    Raises FleetError when the process does not come up, or ends before its work.
    """

    COMMAND = (sys.executable, "-P", "-c", _BOOT, _ROOT)

    def __init__(
        self, provided: Mapping[str, Any], budget: Budget | None = None, command: Sequence[str] = COMMAND
    ) -> None:
        self.stopped = ""
        self._folder = tempfile.TemporaryDirectory(prefix="cloudbench-reader-")
        self._child = Child(command)
        limits = budget or Budget()
        try:
            self._request(
                "connect", provided=dict(provided), max_ops=limits.max_ops, max_bytes=limits.max_bytes,
                folder=self._folder.name,
            )  # fmt: skip
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ReaderProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._child.pid

    def clock(self) -> int:
        """Return the current time of the process's clock in ns."""
        return int(self._request("clock"))

    def watch(self, path: str, content: Content, poll_s: float | None) -> None:
        """See ``FileWatcher``. The expected content is passed through a temporary file."""
        with self._expected_path.open("wb") as file:
            for piece in chunks(content):
                file.write(piece)
        self._request("watch", path=path, expected=str(self._expected_path), poll_s=poll_s)

    def finish(self, patience_s: float, gone: Callable[[], bool] = lambda: False) -> Sequence[Attempt]:
        """See ``FileWatcher``. ``gone`` is ignored: a run without xdist has no other agent that could leave."""
        answer = self._request("finish", patience_s=patience_s)
        self._expected_path.unlink()
        self.stopped = answer["stopped"]
        return [Attempt(*row) for row in answer["attempts"]]

    def close(self) -> None:
        """End the process. Safe to call again."""
        self._child.stop()
        self._folder.cleanup()

    @property
    def _expected_path(self) -> Path:
        return Path(self._folder.name) / "expected"

    def _request(self, verb: str, **arguments: Any) -> Any:
        try:
            self._child.write(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
            answer = json.loads(self._child.readline())
        except (OSError, ValueError) as error:
            self._child.wait()
            raise FleetError(f"the reading process ended: {self._child.exit_reason()}") from error
        if "error" in answer:
            raise FleetError(f"the reading process: {answer['error']}")
        return answer["value"]


class _FileContent:
    """The expected content of a file, read from a local file that holds it."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115  # closed when the next file is watched
        self.size_bytes = os.fstat(self._file.fileno()).st_size

    def read(self, offset: int, length: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(length)

    def close(self) -> None:
        self._file.close()


class _ReaderService:
    """The service of the child process for its parent, one request after another."""

    def __init__(self, clock: Callable[[], int], orphaned: threading.Event) -> None:
        self._clock, self._orphaned = clock, orphaned
        self._driver: Driver | None = None
        self._watcher: Watcher | None = None
        self._content: _FileContent | None = None
        self._folder = ""

    def connect(self, provided: Mapping[str, Any], max_ops: int | None, max_bytes: int | None, folder: str) -> None:
        from pytest_cloudbench.providers import connect
        from pytest_cloudbench.providers.for_agents import Provided

        self._folder = folder
        self._driver = connect(Provided.from_plain(provided))
        self._watcher = Watcher(self._driver, Budget(max_ops, max_bytes), self._clock)

    def clock(self) -> int:
        return self._clock()

    def watch(self, path: str, expected: str, poll_s: float | None) -> None:
        assert self._watcher is not None
        self._content = _FileContent(expected)
        self._watcher.watch(path, self._content, poll_s)

    def finish(self, patience_s: float) -> dict[str, Any]:
        assert self._watcher is not None
        assert self._content is not None
        attempts = self._watcher.finish(patience_s, self._orphaned.is_set)
        self._content.close()
        return {"attempts": [astuple(attempt) for attempt in attempts], "stopped": self._watcher.stopped}

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()
        if self._folder:  # a killed parent cannot remove it
            shutil.rmtree(self._folder, ignore_errors=True)


def main(clock: Callable[[], int] = now_ns) -> int:
    """Run the reading process until the parent closes the pipe or dies. Return the exit status."""
    answers, sys.stdout = sys.stdout, sys.stderr  # a library's output must not get between the answers
    requests, orphaned = queue.SimpleQueue[str | None](), threading.Event()
    service = _ReaderService(clock, orphaned)

    def listen() -> None:
        for line in sys.stdin:
            requests.put(line)
        orphaned.set()  # ends a wait for a file at once
        requests.put(None)

    threading.Thread(target=listen, name="parent", daemon=True).start()
    while (line := requests.get()) is not None:
        request = json.loads(line)
        try:
            answer = {"value": getattr(service, request.pop("verb"))(**request)}
        except Exception as error:  # whatever it is, the parent reports it
            answer = {"error": redact.clean(f"{type(error).__name__}: {error}")}
        with contextlib.suppress(BrokenPipeError):  # the parent is gone, so there is no next request
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    service.close()
    return 0
