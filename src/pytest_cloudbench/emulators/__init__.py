"""Emulators as services: starting an emulator in its own process, and talking to its control socket.

This package is light to import, because only the process of an emulator imports the libraries of the server.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_cloudbench.emulators.registry import SKINS
from pytest_cloudbench.model import Endpoint, ServiceError
from pytest_cloudbench.services.child import Child, ChildService

__all__ = ["SKINS", "EmulatorService", "serve_foreground", "start_emulator"]

_START_S = 60.0
_CONTROL_S = 30.0
_ENDING_S = 1.0
_ROOT = str(Path(__file__).parents[2])
_BOOT = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from pytest_cloudbench.emulators.server import main; sys.exit(main())"
)


class EmulatorService(ChildService):
    """An emulator as a service. It ends when its context is left, when ``stop`` is called, or with this process.

    Args:
        name_or_path: the name of a shipped profile, or the path of a file. The profile defines the API.
        api: the API whose profiles have the name, such as ``ideal`` of Drive. If empty, all profiles are searched.
        time_scale: how many times faster than real time the emulator's clock runs.
        seed: the seed of all its random draws.
        port: the TLS port. 0 picks a free one.
        address: where it listens. By default nobody on another machine can reach it.
        log_path: the file that receives its error output, by default an unnamed temporary file.

    Raises ConfigError if the profile is invalid.
    """

    kind, display_name = "emulator", "the emulator"

    def __init__(
        self,
        name_or_path: str,
        *,
        api: str = "",
        time_scale: float = 1.0,
        seed: int = 0,
        port: int = 0,
        address: str = "127.0.0.1",
        log_path: Path | None = None,
    ) -> None:
        # Imported here, so that not every process pays for reading TOML.
        from pytest_cloudbench.emulators.profile import find_profile

        find_profile(name_or_path, api)
        self._options = [
            *([api] if api else []), f"--profile={name_or_path}", f"--port={port}", f"--time-scale={time_scale}",
            f"--seed={seed}", f"--address={address}", "--lifeline",
        ]  # fmt: skip
        self._log_path = log_path

    def start(self) -> Endpoint:
        """Start the emulator and wait until it accepts requests. Raises ServiceError with its last line of output."""
        child = Child([sys.executable, "-P", "-c", _BOOT, _ROOT, *self._options], log_path=self._log_path)
        try:
            ready = json.loads(child.readline(_START_S))
            self._token = Path(ready["control_token_file"]).read_text("ascii")
            self._started = (child, Endpoint.from_plain(ready))
        except BaseException as error:
            if not isinstance(error, (ValueError, TypeError, KeyError)):
                child.stop()
                raise
            child.wait()
            reason = child.exit_reason()
            child.stop()
            raise ServiceError(f"the emulator did not start: {reason}") from error
        return self.endpoint

    def control(self, **request: object) -> dict[str, Any]:
        """Send a request to the control socket, and return the answer.

        Requests are ``set={"latency.median_s": 0.1}``, ``get="stats"``, ``get="stored"``, ``reset=True``,
        ``refill=True``, ``faults=False``, ``delays=False`` and ``account=2``.

        Raises ServiceError if the request is refused or not answered.
        """
        child, endpoint = self._child_and_endpoint
        host, _, port = endpoint.control.rpartition(":")
        try:
            with (
                socket.create_connection((host, int(port)), timeout=_CONTROL_S) as connection,
                connection.makefile("rwb") as stream,
            ):
                for line in ({"token": self._token}, request):
                    stream.write(json.dumps(line).encode() + b"\n")
                stream.flush()
                stream.readline()  # the answer to the token (a wrong token ends the connection)
                reply = stream.readline()
                if not reply:  # a process that ends closes its connections before its port
                    raise ConnectionError("it closed the connection")
                answer: dict[str, Any] = json.loads(reply)
        except (OSError, ValueError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_ENDING_S)  # a process that ends closes its port a moment earlier
            reason = child.exit_reason()
            raise ServiceError(
                f"{self.display_name} (process {child.pid}) has ended: {reason}" if reason else
                f"{self.display_name} (process {child.pid}) runs, but does not answer at {endpoint.control}: {error}"
            ) from error  # fmt: skip
        if not answer.get("ok"):
            raise ServiceError(f"the emulator refused: {answer.get('error', 'no reason given')}")
        return answer

    def reset(self) -> None:
        """Empty the account, and refill the token bucket."""
        self.control(reset=True)

    def refill(self) -> None:
        """Refill the token bucket. The account keeps its content."""
        self.control(refill=True)

    def faults(self, are_on: bool) -> None:
        """Switch the profile's faults and delays on or off."""
        self.control(faults=are_on)
        self.control(delays=are_on)

    def open_account(self, number: int) -> Endpoint:
        """Return the endpoint of the account with this number, from 1. Makes the account if it does not exist yet.

        The same number has the same credentials after a reset. Raises ServiceError if the API's emulator has only one
        account.
        """
        credentials = self.control(account=number)["credentials"]
        return replace(self.endpoint, credentials=credentials)

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """Yield each version that the accounts hold: the path of its file with the skin's data, and the content."""
        for name, content in self.control(get="stored")["stored"]:
            yield name, base64.b64decode(content)

    def cpu_s(self) -> float:
        """Return the CPU time that the process has used, seconds."""
        return float(self.control(get="stats")["stats"]["cpu_s"])

    def stop(self) -> None:
        """End the process, and remove its certificate. Safe to call again."""
        super().stop()
        if self._started is not None:
            shutil.rmtree(Path(self.endpoint.ca_file).parent, ignore_errors=True)  # only a killed process leaves it


def start_emulator(name_or_path: str, **options: Any) -> EmulatorService:
    """Start an emulator and return it. Takes the arguments of ``EmulatorService``, and raises as its ``start`` does."""
    service = EmulatorService(name_or_path, **options)
    service.start()
    return service


def serve_foreground(
    api: str, profile: str | None = None, port: int = 0, time_scale: float = 1.0, seed: int = 0
) -> int:
    """Run an API's emulator here until Ctrl-C, and return the exit status. Prints one JSON line when ready."""
    from pytest_cloudbench.emulators.server import main

    options = [f"--port={port}", f"--time-scale={time_scale}", f"--seed={seed}"]
    return main([api, *options, *([f"--profile={profile}"] if profile else [])])
