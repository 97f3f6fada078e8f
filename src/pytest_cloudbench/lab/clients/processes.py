"""The processes of one sync client: started through a runner, watched, measured and ended.

They run on both sides, with logs and a clean environment. Callers wait for them to end, to listen, or to log something.
Linux only: it relies on pidfd and /proc, so nothing is polled if the kernel has a signal for it, and no probe packet
shows up in a capture.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from pytest_cloudbench.lab.clients import watchdog
from pytest_cloudbench.model import ClientError, UsageError
from pytest_cloudbench.support import redact
from pytest_cloudbench.support.printable import printable

End = Literal["client", "server"]
"""The end of a link at which a process runs."""
Side = Literal["client", "server", "device"]
"""The half that a process belongs to. ``device`` is a second device beside a server, and runs at the server's end."""

_STOP_S = 5.0
_VERSION_S = 10.0
_POLL_S = 0.02
_TAIL_LINES, _LINE_CHARACTERS = 8, 300
_LISTEN, _BOUND = "0A", "07"


class Runner(Protocol):
    """The place where processes run: one method, which a link between two network namespaces also provides."""

    def popen(self, side: End, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        """Start ``argv`` at one end as ``subprocess.Popen(argv, **kwargs)`` would. The pid is that of ``argv``."""
        ...


class Loopback:
    """Both sides on this machine, told apart by their ports."""

    def popen(self, side: End, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        """Start a process here."""
        del side
        return subprocess.Popen(list(argv), **kwargs)


class Process:
    """One started process, its log and, once it has ended, its CPU time."""

    def __init__(
        self, side: Side, name: str, popen: subprocess.Popen[bytes], log_path: Path, secrets: Collection[str] = ()
    ) -> None:
        self.side, self.name, self.log_path, self.secrets = side, name, log_path, secrets
        self._popen = popen
        self._pidfd = os.pidfd_open(popen.pid)
        stat = watchdog.read_stat(popen.pid)
        self._start = stat.start if stat else None
        self._final_cpu_s: float | None = None

    @property
    def pid(self) -> int:
        """Its process id, also that of its session."""
        return self._popen.pid

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the process ends."""
        return self._pidfd

    def exit_status(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        if self._final_cpu_s is None:
            if not watchdog.wait_any([self._pidfd], 0):
                return None
            try:
                # In microseconds, including the children that it waited for. /proc has only hundredths of a second.
                _, status, usage = os.wait4(self.pid, 0)
                self._popen.returncode = os.waitstatus_to_exitcode(status)
                self._final_cpu_s = usage.ru_utime + usage.ru_stime
            except ChildProcessError:  # the caller has already waited for it
                self._popen.wait()
                self._final_cpu_s = 0.0
        return self._popen.returncode

    def cpu_s(self) -> float:
        """Return the CPU seconds of its tree so far. For an ended process, of itself and its children."""
        if self.exit_status() is not None:
            assert self._final_cpu_s is not None
            return self._final_cpu_s
        return sum(stat.cpu_s for stat in self.tree())

    def tree(self) -> tuple[watchdog.ProcessStat, ...]:
        """Return the process with its descendants and its session, but never those of a later process with its pid."""
        return watchdog.find_tree(self.pid, self._start)

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended. One that belongs to root, such as sudo, ends with its descendants."""
        if self.exit_status() is not None:
            return
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except PermissionError:
            # sudo runs as root, but its command runs as this user.
            watchdog.signal_processes(tuple(stat for stat in self.tree() if stat.pid != self.pid), number)

    def close(self) -> None:
        """Close the descriptor. Afterwards only ``cpu_s`` and ``exit_status`` of an ended process work."""
        os.close(self._pidfd)

    def describe_end(self) -> str:
        """Return in words how it ended, with the last lines of its log."""
        status = self.exit_status()
        ending = "runs" if status is None else f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return f"{self.name} ({self.side}): {ending}{tail(self.log_path, secrets=self.secrets)}"


class Processes:
    """All processes of one client, on all sides.

    Args:
        workdir: an existing folder. Home, temporary files and logs of all processes go below it.
        runner: starts them where they run.
    """

    def __init__(self, workdir: Path, runner: Runner) -> None:
        if sys.platform != "linux":
            raise UsageError("sync clients are started on Linux only; the `external` client works elsewhere")
        self._workdir, self._runner = workdir, runner
        self._running: list[Process] = []
        self._last_run: Process | None = None
        self._finished_cpu_s: dict[Side, float] = {"client": 0.0, "server": 0.0}
        for folder in ("home", "tmp", "logs"):
            (workdir / folder).mkdir(exist_ok=True)
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", str(watchdog.__file__)], stdin=subprocess.PIPE, start_new_session=True
        )
        own = watchdog.read_stat(self._watchdog.pid)
        self._start = own.start if own else 0
        self._sign = secrets.token_hex(16)
        self._tell_watchdog(f"{self._sign}\n")

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Return a clean environment: the search path, and folders below the workdir, but nothing else from the user's.

        A variable such as AWS_CA_BUNDLE breaks some clients, and a proxy would redirect them.
        """
        home = self._workdir / "home"
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "XDG_DATA_HOME": str(home / ".local"),
            "TMPDIR": str(self._workdir / "tmp"),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            watchdog.SIGN: self._sign,
            **extra,
        }

    def start(
        self,
        side: Side,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Process:
        """Start a long-running process in a session of its own. Raises ClientError when it cannot start."""
        log_path = self._workdir / "logs" / f"{name}.log"
        with log_path.open("ab") as log:
            process = self._popen(side, name, argv, log_path, env or {}, cwd, log, log)
        self._running.append(process)
        return process

    def run(
        self,
        side: Side,
        name: str,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        counted: bool = True,
    ) -> str:
        """Run a command to its end. Returns its output.

        Raises ClientError when it, or a long-running process, fails. ``counted`` says whether it is the client's own
        work, whose CPU time counts, and not this package's.
        """
        log_path, out_path = (self._workdir / "logs" / f"{name}.{kind}" for kind in ("log", "out"))
        # Not appended: an error shows the end of this run's log, and nothing of an earlier one's.
        with log_path.open("wb") as log, out_path.open("w+b") as out:
            process = self._popen(side, name, argv, log_path, env or {}, cwd, out, log)
            self._running.append(process)
            try:
                deadline_s = time.monotonic() + timeout_s
                while process.exit_status() is None:
                    self._wait_for_end(deadline_s, f"{name} took longer than {timeout_s:g} s", process=process)
                if process.exit_status() != 0:
                    description = process.describe_end()
                    raise ClientError(
                        description if tail(log_path) else f"{description}{tail(out_path, secrets=process.secrets)}"
                    )
            finally:
                self._end_process(process, counted=counted)
            if counted:
                self._last_run = process
            out.seek(0)
            return out.read().decode(errors="replace")

    def check(self) -> None:
        """Raise ClientError when one of the processes has ended."""
        for process in self._running:
            if process.exit_status() is not None:
                raise ClientError(f"ended while it was needed: {process.describe_end()}")

    def idle(self, duration_s: float) -> None:
        """Return after that long. Raises ClientError at once when a process ends."""
        if not self._wait_any(duration_s):
            return
        self.check()

    def wait_until(
        self, is_true: Callable[[], bool], timeout_s: float, failure: str, *, poll_s: float = _POLL_S
    ) -> None:  # fmt: skip
        """Return when ``is_true()``. Raises ClientError at once when a process ends, and after ``timeout_s``.

        For conditions without a signal: there are ``poll_s`` between two calls of ``is_true``.
        """
        deadline_s = time.monotonic() + timeout_s
        while not is_true():
            self.check()
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise ClientError(f"{failure} within {timeout_s:g} s{self.last_words()}")
            # A process that ends wakes this up before the next call.
            self._wait_any(min(poll_s, left_s))

    def wait_listening(self, process: Process, port: int, timeout_s: float, *, udp: bool = False) -> None:
        """Return when something in the process's network namespace listens on the TCP port, or has the UDP port.

        The namespaces of its descendants count, too: under sudo, only they are in the one that is meant.
        """
        failure = f"{process.name} did not listen on {'UDP ' if udp else ''}port {port}"

        def is_listening() -> bool:
            pids = {process.pid, *(stat.pid for stat in process.tree())}
            return any(port in _listening_ports(pid, udp=udp) for pid in pids)

        self.wait_until(is_listening, timeout_s, failure)

    def wait_logged(self, process: Process, words: str, timeout_s: float) -> None:
        """Return when the words occur in the process's log."""
        self.wait_until(
            lambda: words.encode() in process.log_path.read_bytes(), timeout_s, f"{process.name} did not say {words!r}"
        )

    def last_words(self) -> str:
        """Return the last lines of all logs of processes that run, for an error's text."""
        return "".join(
            f"\n{process.name}:{tail(process.log_path, secrets=process.secrets)}" for process in self._running
        )

    def last_run_words(self) -> str:
        """Return the last lines of the client's own last run that ended well, or nothing if it printed none."""
        if (process := self._last_run) is None:
            return ""
        log_paths = (process.log_path, process.log_path.with_suffix(".out"))
        words = next(filter(None, (tail(path, secrets=process.secrets) for path in log_paths)), "")
        return f"\n{process.name}:{words}" if words else ""

    def pids(self, side: Side) -> tuple[int, ...]:
        """Return the processes of one side that run now, with their descendants."""
        leaders = [process for process in self._running if process.side == side and process.exit_status() is None]
        return tuple(sorted({stat.pid for leader in leaders for stat in leader.tree() if stat.state != "Z"}))

    def cpu_s(self, side: Side) -> float | None:
        """Return the CPU seconds of one side since the start, including ended commands, or None for a missing side.

        A lower bound: processes that ended between two samples without being waited for are missing.
        """
        if side not in self._finished_cpu_s:
            return None
        running = sum(process.cpu_s() for process in self._running if process.side == side)
        return self._finished_cpu_s[side] + running

    def stop(self) -> None:
        """End everything, the last started first. Safe to call again."""
        while self._running:
            self._end_process(self._running[-1])
        # Those that are left are in sessions of their own, without parents.
        watchdog.kill_processes(watchdog.find_carriers(self._sign, self._start))
        assert self._watchdog.stdin is not None
        with suppress(OSError):
            self._watchdog.stdin.close()
        self._watchdog.wait()

    # --- inside -----------------------------------------------------------------------------------

    def _popen(
        self,
        side: Side,
        name: str,
        argv: Sequence[str],
        log_path: Path,
        env: Mapping[str, str],
        cwd: Path | None,
        out: IO[bytes],
        log: IO[bytes],
    ) -> Process:
        """Start a process that the watchdog ends if this one is killed. Raises ClientError."""
        try:
            popen = self._runner.popen(
                "client" if side == "client" else "server",
                argv,
                env=self.environment(env),
                cwd=str(cwd or self._workdir),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            raise ClientError(f"{name} cannot be started: {error}") from error
        process = Process(side, name, popen, log_path, secret_values(env))
        self._finished_cpu_s.setdefault(side, 0.0)
        try:
            self._tell_watchdog(f"{popen.pid}\n")
        except BaseException:
            self._running.append(process)
            self._end_process(process)
            raise
        return process

    def _tell_watchdog(self, line: str) -> None:
        if self._watchdog.poll() is not None:
            raise ClientError("the watchdog was killed, so processes started now may be left running")
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.write(line.encode())
        self._watchdog.stdin.flush()

    def _wait_any(self, timeout_s: float) -> list[int]:
        return watchdog.wait_any([process.fileno() for process in self._running], timeout_s)

    def _wait_for_end(self, deadline_s: float, late: str, *, process: Process) -> None:
        """Return when ``process`` ends. Raises ClientError when another process does, or on timeout with ``late``."""
        if process.fileno() in self._wait_any(deadline_s - time.monotonic()):
            return
        self.check()
        raise ClientError(f"{late}{self.last_words()}")

    def _end_process(self, process: Process, *, counted: bool = True) -> None:
        """End one process and everything it started, and count its CPU time."""
        family = process.tree()
        process.signal(signal.SIGTERM)
        watchdog.wait_any([process.fileno()], _STOP_S)
        # Look again for what it started meanwhile. The first look found what has no parent afterwards.
        family += process.tree()
        watchdog.kill_processes(tuple(stat for stat in family if stat.pid != process.pid))
        process.signal(signal.SIGKILL)
        watchdog.wait_any([process.fileno()], None)
        process.exit_status()
        process.close()
        self._running.remove(process)
        self._finished_cpu_s[process.side] += process.cpu_s() if counted else 0.0
        with suppress(OSError, ClientError):  # the watchdog itself may have been killed
            self._tell_watchdog(f"-{process.pid}\n")


def find_binary(name: str, before: Sequence[str] = ()) -> str | None:
    """Find a program in ``before``, beside this interpreter (as wheels install it), on PATH, or in sbin folders.

    Returns an absolute path, since the program may be run in another folder than this one.
    """
    path = os.pathsep.join(
        [*before, str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    )
    found_path = shutil.which(name, path=path)
    return None if found_path is None else os.path.abspath(found_path)


def user_name() -> str:
    """Return the name of the user that runs this, or the number of one without a name, as containers have them."""
    import pwd  # here, because Windows does not have it

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def free_port(address: str, *, besides: int = 0) -> int:
    """Return a TCP port that is free now. For an address in another namespace, one that is free here."""
    with _bind_any_port(address) as server:
        port: int = server.getsockname()[1]
        return port if port != besides else free_port(address)


@contextmanager
def _bind_any_port(address: str) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as server:
        try:
            server.bind((address, 0))
        except OSError:
            server.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", 0))
        yield server


def program_version(path: str, *arguments: str) -> str:
    """Return the first line that a program prints about its version, or nothing if it prints none in ten seconds."""
    try:
        printed = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": os.devnull, "LANG": "C.UTF-8"},
            timeout=_VERSION_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return printed.stdout.decode(errors="replace").strip().partition("\n")[0].strip()


_LEAST_SECRET = 4
"""Shorter values are not treated as secrets: they would match in any text."""
_SECRET_WORDS = re.compile(
    r"(?P<before>://[^/\s:@]*:|\b(?:[\w-]{0,40}(?:pass(?:word|wd|phrase)|token|secret|(?:api|access|account|private)[-_]?"
    r"key)|pass|authorization)\b['\"]?\s*[=:]\s*"
    r"(?:(?:basic|bearer)\s+)?['\"]?)(?P<secret>[^\s@'\"]+)",
    re.IGNORECASE,
)


def secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of the environment that must not be shown, the longest first."""
    values = {
        value
        for name, value in environment.items()
        if redact.names_secret(name) and len(value) >= _LEAST_SECRET and not _is_harmless(value)
    }
    return tuple(sorted(values, key=len, reverse=True))


def _is_harmless(value: str) -> bool:
    """Return whether a value only says where a secret is, or whether there is one."""
    # A key in base64 may begin like a path, too, so only a path that exists counts as one.
    return value.lower() in {"true", "false", "none", "null"} or (value.startswith(os.sep) and os.path.exists(value))


def tail(path: Path, lines: int = _TAIL_LINES, *, secrets: Collection[str] = ()) -> str:
    """Return the last lines of a log, each indented on a line of its own, or nothing if there are none.

    Safe to show: without ``secrets`` and what looks like one, without control characters, and short.
    """
    try:
        text = path.read_bytes()[-16_384:].decode(errors="replace")
    except OSError:
        return ""
    return last_lines(text, lines, secrets=secrets)


def last_lines(text: str, lines: int = _TAIL_LINES, *, secrets: Collection[str] = ()) -> str:
    """Return the last lines of what a program printed, as ``tail`` returns those of a log."""
    text = redact.clean(text)
    for secret in secrets:
        text = text.replace(secret, redact.MASK)
    text = _SECRET_WORDS.sub(rf"\g<before>{redact.MASK}", text)
    return "".join(f"\n  {_printable_line(line)}" for line in text.strip().splitlines()[-lines:])


def _printable_line(line: str) -> str:
    """Return a log line without control characters, or only its end if it is long."""
    text = printable(line.expandtabs(1))
    return text if len(text) <= _LINE_CHARACTERS else f"...{text[-_LINE_CHARACTERS:]}"


def _listening_ports(pid: int, *, udp: bool = False) -> set[int]:
    """Return the listening ports in the network namespace of a process, without sending a packet."""
    ports = set()
    tables, state = (("udp", "udp6"), _BOUND) if udp else (("tcp", "tcp6"), _LISTEN)
    for table in tables:
        with suppress(OSError):
            rows = [line.split() for line in Path(f"/proc/{pid}/net/{table}").read_text("ascii").splitlines()[1:]]
            ports |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == state}
    return ports
