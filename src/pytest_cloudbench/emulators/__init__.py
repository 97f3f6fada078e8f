"""Emulators: the registry of APIs, and the launcher that starts one as a process of its own.

What may live here: the registry, starting and stopping. Light to import: the server's libraries are
imported by the process that serves.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from pytest_cloudbench.model import ConfigError, EmulatorError, Endpoint

if TYPE_CHECKING:
    from pytest_cloudbench.emulators.profile import Profile

__all__ = ["SKINS", "RunningEmulator", "find_profile", "serve_foreground", "start"]

SKINS: Mapping[str, str] = {"dropbox": "pytest_cloudbench.emulators.dropbox"}
"""API name to the module of its skin, which is imported by the emulator's process only."""

_START_S = 60.0
_STOP_S = 5.0
_CONTROL_S = 30.0
_ROOT = str(Path(__file__).parents[2])
_BOOT = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from pytest_cloudbench.emulators.server import main; sys.exit(main())"
)


def find_profile(name_or_path: str) -> Profile:
    """The profile of that name or file, for an API that there is. Raises ConfigError."""
    from pytest_cloudbench.emulators.profile import load_profile

    profile = load_profile(name_or_path)
    if profile.meta.api not in SKINS:
        raise ConfigError(name_or_path, "meta.api", f"expected one of {', '.join(SKINS)}, got {profile.meta.api!r}")
    return profile


class RunningEmulator:
    """A running emulator. Leave its context, or call ``stop``, to end it; it also ends with this process."""

    def __init__(self, process: subprocess.Popen[bytes], endpoint: Endpoint, log: _Log) -> None:
        self._process = process
        self._log = log
        self._reason = ""
        self._stopping = threading.Event()
        self.endpoint = endpoint

    def __enter__(self) -> RunningEmulator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def control(self, **request: object) -> dict[str, Any]:
        """Ask the control socket: ``set={"latency.median_s": 0.1}``, ``get="stats"``, ``reset=True``, ``refill=True``,
        ``faults=False``.

        Raises EmulatorError when it is refused or nobody answers.
        """
        host, _, port = self.endpoint.control.rpartition(":")
        try:
            token = Path(self.endpoint.control_token_file).read_text("ascii")
            with (
                socket.create_connection((host, int(port)), timeout=_CONTROL_S) as connection,
                connection.makefile("rwb") as stream,
            ):
                for line in ({"token": token}, request):
                    stream.write(json.dumps(line).encode() + b"\n")
                stream.flush()
                stream.readline()  # the answer to the token; a wrong one ends the connection
                answer: dict[str, Any] = json.loads(stream.readline() or b"{}")
        except (OSError, ValueError) as error:
            raise EmulatorError(f"the emulator does not answer: {self.exit_reason() or error}") from error
        if not answer.get("ok"):
            raise EmulatorError(f"the emulator refused: {answer.get('error', 'no answer')}")
        return answer

    def watch(self, patience_s: float) -> None:
        """From now on end the process if it does not answer for this long: it is stopped, or stuck in its loop.

        Whoever waits for it then hears that its connection is gone, and ``exit_reason`` says why.
        """
        threading.Thread(target=self._watch, args=(patience_s,), name="emulator-watch", daemon=True).start()

    def _watch(self, patience_s: float) -> None:
        silent = 0
        while not self._stopping.wait(patience_s / 2) and self.alive():
            silent = 0 if self._answers(patience_s / 2) else silent + 1
            if silent == 2 and not self._stopping.is_set():  # not one: this process may have been stopped itself
                self._reason = f"it did not answer for {patience_s:g} s and was ended"
                self._process.kill()
                return

    def _answers(self, timeout_s: float) -> bool:
        """Whether a request is answered, by whatever, through the door that clients use.

        It asks for a path that no API has, so neither throttling nor a profile's delays and faults touch it.
        """
        import ssl
        from http.client import HTTPException, HTTPSConnection

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is told, and nothing believed
        with contextlib.closing(
            HTTPSConnection("127.0.0.1", self.endpoint.port, timeout=timeout_s, context=context)
        ) as connection:
            try:
                connection.request("GET", "/.cloudbench-alive")
                connection.getresponse()
            except TimeoutError:
                return False
            except (OSError, HTTPException):  # it has ended, which others find out
                return True
        return True

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def exit_reason(self) -> str:
        """Why the process is gone, in one line; empty while it runs."""
        if self.alive():
            return ""
        if self._reason:
            return self._reason
        return _reason(self._process, self._log)

    def cpu_s(self) -> float:
        """CPU seconds the process has used."""
        return float(self.control(get="stats")["stats"]["cpu_s"])

    def stop(self) -> None:
        """End the process; safe to call again."""
        self._stopping.set()
        was_alive = self.alive()
        _end(self._process)
        self._reason = self._reason or ("stopped" if was_alive else _reason(self._process, self._log))
        self._log.file.close()
        shutil.rmtree(Path(self.endpoint.ca_file).parent, ignore_errors=True)  # left only by one that was killed


def start(
    name_or_path: str,
    *,
    time_scale: float = 1.0,
    seed: int = 0,
    port: int = 0,
    log_path: Path | None = None,
) -> RunningEmulator:
    """Start the emulator of a profile (shipped name or file) and wait until it takes requests.

    Args:
        name_or_path: the profile; it says which API.
        time_scale: how much faster than the world's the emulator's clock runs.
        seed: of all its random draws.
        port: TLS port on loopback; 0 takes a free one.
        log_path: where its error output goes; appended to; by default to a file without a name.

    Raises ConfigError when the profile is wrong, EmulatorError with the last line it said if it does not come up.
    """
    find_profile(name_or_path)
    log = _Log(log_path)
    options = [f"--profile={name_or_path}", f"--port={port}", f"--time-scale={time_scale}", f"--seed={seed}"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, _ROOT, *options, "--lifeline"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log.file,
        start_new_session=True,
    )
    try:
        endpoint = _ready(process, log)
    except BaseException:
        _end(process)
        log.file.close()
        raise
    return RunningEmulator(process, endpoint, log)


def serve_foreground(
    api: str, profile: str | None = None, port: int = 0, time_scale: float = 1.0, seed: int = 0
) -> int:
    """Be the emulator of an API until Ctrl-C; prints one JSON line when ready. The exit status."""
    from pytest_cloudbench.emulators.server import main

    options = [f"--port={port}", f"--time-scale={time_scale}", f"--seed={seed}"]
    return main([api, *options, *([f"--profile={profile}"] if profile else [])])


def _ready(process: subprocess.Popen[bytes], log: _Log) -> Endpoint:
    """Read the ready line; a process that says nothing for a minute is killed."""
    assert process.stdout is not None
    alarm = threading.Timer(_START_S, process.kill)
    alarm.daemon = True
    alarm.start()
    try:
        line = process.stdout.readline()
    finally:
        alarm.cancel()
    try:
        return Endpoint(**json.loads(line))
    except (ValueError, TypeError) as error:
        process.wait()
        raise EmulatorError(f"the emulator did not start: {_reason(process, log)}") from error


class _Log:
    """What an emulator says on stderr: in a file without a name, or appended to one that was asked for."""

    def __init__(self, path: Path | None) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile() if path is None else path.open("a+b")  # noqa: SIM115  # lives as long as the emulator
        self._start = self.file.seek(0, os.SEEK_END)

    def last_line(self) -> str:
        """The last line of this run; empty where there is none, or when the log is closed."""
        if self.file.closed:
            return ""
        self.file.seek(self._start)
        lines = self.file.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")


def _reason(process: subprocess.Popen[bytes], log: _Log) -> str:
    status = process.wait()
    line = log.last_line()
    ending = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return f"{line} ({ending})" if line else ending


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the lifeline and wait; kill what does not go."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
