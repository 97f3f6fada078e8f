"""Child processes that serve this one: how they are started, watched and ended, and why one has ended.

What may live here: starting and ending one, its lifeline, its log, a watch on whether it still answers, and what
services that are one child share. The caller defines what is sent over the pipes. The child's standard input is a pipe
from this process. The child ends when the pipe closes, so it ends with this process, even if this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from pytest_cloudbench.model import Endpoint, ServiceError

_STOP_S = 5.0

HEALTH_CHECK_SOCKETS: set[int] = set()
"""The kernel's cookies of the sockets by which this process checks its services. They are not a client's."""


class Child:
    """One running child, in a session of its own. Safe to call from any thread.

    Args:
        argv: its command line.
        log_path: the file to append its error output to, by default an unnamed temporary file.
        env: its whole environment, or None for that of this process.
        cwd: its current folder.
        ends_others: whether it ends what it has started on SIGTERM, for which it gets a moment before it is killed.

    Raises OSError if it cannot be started or the log cannot be written.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        log_path: Path | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        ends_others: bool = False,
    ) -> None:
        self._ends_others = ends_others
        self._log = _ErrorLog(log_path)
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log.file, env=env, cwd=cwd,
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self._log.file.close()
            raise
        self._lock = threading.Lock()
        self._reason = ""
        self._stopping = threading.Event()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def write(self, data: bytes) -> None:
        """Write to its standard input. Raises OSError if it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def readline(self, timeout_s: float | None = None) -> bytes:
        """Return its next line of output, or nothing if it has ended. Kills it if it is silent for ``timeout_s``."""
        assert self._process.stdout is not None
        if timeout_s is None:
            return self._process.stdout.readline()
        alarm = threading.Timer(timeout_s, self.kill, [f"it said nothing for {timeout_s:g} s and was ended"])
        alarm.daemon = True
        alarm.start()
        try:
            return self._process.stdout.readline()
        finally:
            alarm.cancel()

    def watch(self, patience_s: float, answers: Callable[[float], bool]) -> None:
        """Kill it as soon as it does not answer for this long, because it is stopped or stuck.

        Clients that wait for it then see their connections end, and ``exit_reason`` says why.

        Args:
            patience_s: how long it may be silent.
            answers: asks it something, and returns whether it answered within the given number of seconds.
        """
        threading.Thread(
            target=self._watch_answers, args=(patience_s, answers), name="service-watch", daemon=True
        ).start()

    def _watch_answers(self, patience_s: float, answers: Callable[[float], bool]) -> None:
        silent_in_a_row = 0
        while not self._stopping.wait(patience_s / 2) and self.alive():
            silent_in_a_row = 0 if answers(patience_s / 2) else silent_in_a_row + 1
            # After one silence, this process may have been stopped itself.
            if silent_in_a_row == 2 and not self._stopping.is_set():
                self.kill(f"it did not answer for {patience_s:g} s and was ended")
                return

    def alive(self) -> bool:
        """Return whether the process runs."""
        with self._lock:  # Popen.poll() also returns None while another thread polls
            return self._process.poll() is None

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the child's end. Raises subprocess.TimeoutExpired."""
        self._process.wait(timeout_s)

    def exit_reason(self) -> str:
        """Return in one line why the process ended, or nothing while it runs."""
        if self.alive():
            return ""
        return self._reason or self._describe_end()

    def kill(self, reason: str = "") -> None:
        """Kill the process, so that ``exit_reason`` returns ``reason``."""
        if self.alive():
            self._reason = self._reason or reason
            if self._ends_others:
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_STOP_S)
            self._process.kill()

    def stop(self) -> None:
        """Close the lifeline and wait. Kills the child if it does not end. Safe to call again."""
        self._stopping.set()
        was_alive = self.alive()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # a process that is gone no longer needs what was not sent
                    stream.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reason = self._reason or ("stopped" if was_alive else self._describe_end())
        self._log.file.close()

    def _describe_end(self) -> str:
        """Return how it ended, with its last line of output."""
        status = self._process.wait()
        line = self._log.last_line()
        ending = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return f"{line} ({ending})" if line else ending


class ChildService:
    """Base of services that are one child process. A subclass starts it, and says what ``stop`` also removes.

    Attributes:
        display_name: its name in messages, such as ``the emulator``.
    """

    display_name = "the service"
    _started: tuple[Child, Endpoint] | None = None

    @property
    def child(self) -> Child:
        """Its process. Raises ServiceError before ``start``."""
        return self._child_and_endpoint[0]

    @property
    def endpoint(self) -> Endpoint:
        """The address of the service. Raises ServiceError before ``start``."""
        return self._child_and_endpoint[1]

    @property
    def _child_and_endpoint(self) -> tuple[Child, Endpoint]:
        if self._started is None:
            raise ServiceError(f"{self.display_name} was not started")
        return self._started

    def watch(self, patience_s: float) -> None:
        """End it as soon as it does not answer a request for this long. Only HTTP servers are asked.

        The request is for no path of its API, so throttling and a profile's delays and faults do not affect it.
        """
        child, endpoint = self._child_and_endpoint
        if endpoint.url.startswith("http"):
            child.watch(patience_s, lambda timeout_s: answers_http(endpoint.url, timeout_s))

    def alive(self) -> bool:
        """Return whether the service runs."""
        return self.child.alive()

    def exit_reason(self) -> str:
        """Return in one line why the service ended, or nothing while it runs."""
        return self.child.exit_reason()

    def stop(self) -> None:
        """End the service, if it was started. Safe to call again."""
        if self._started is not None:
            self.child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _ErrorLog:
    """A child's stderr, in an unnamed temporary file or appended to a given one."""

    def __init__(self, path: Path | None) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile() if path is None else path.open("a+b")  # noqa: SIM115  # lives as long as the child
        self._start = self.file.seek(0, os.SEEK_END)

    def last_line(self) -> str:
        """Return the last line of this run, or an empty text if there is none or the log is closed."""
        if self.file.closed:
            return ""
        self.file.seek(self._start)
        lines = self.file.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")


def answers_http(url: str, timeout_s: float) -> bool:
    """Return whether a server answers a request, with any status, on the port that clients use.

    The request is for a path that no API has. A server that has died counts as answering: ``exit_reason`` reports it.
    """
    import socket
    import ssl
    from http.client import HTTPConnection, HTTPException
    from urllib.parse import urlsplit

    from pytest_cloudbench.net.sockets.kernel import cookie_of

    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connection = HTTPConnection(parts.hostname or "", port, timeout=timeout_s)
    with contextlib.closing(connection):
        try:
            connection.sock = socket.create_connection((connection.host, connection.port), timeout_s)
            if (cookie := cookie_of(connection.sock)) is not None:
                HEALTH_CHECK_SOCKETS.add(cookie)
            if parts.scheme == "https":
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                # Nothing secret is sent, and nothing that it answers is trusted.
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                connection.sock = context.wrap_socket(connection.sock)
            connection.request("GET", "/.cloudbench-alive")
            connection.getresponse()
        except TimeoutError:
            return False
        except (OSError, HTTPException):
            return True
    return True
