"""The client half of the reference client: watches its folder and uploads changes to the server.

It decides when the folder is scanned, when batches are sent and when the server is asked for news.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pytest_cloudbench.lab.clients.reference.connection import Connection
from pytest_cloudbench.lab.clients.reference.process import READY, log_line, run_until_failure
from pytest_cloudbench.lab.clients.reference.settings import Settings
from pytest_cloudbench.lab.clients.reference.telemetry import tell_everybody
from pytest_cloudbench.lab.clients.reference.upload import Known, Uploader
from pytest_cloudbench.lab.clients.reference.watch import Watch

BUSY = "busy"
"""A file in the client's own folder that exists from before a batch is sent until its last answer has come."""
_PATIENCE_S = 0.06


class Client:
    """One client.

    Args:
        config: ``folder``, ``private`` (paths), ``settings``, and what ``Connection`` takes.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._settings = Settings(**config["settings"])
        self._busy = Path(config["private"]) / BUSY
        self._folder: str = config["folder"]
        self._server: tuple[str, int] = (config["address"], config["port"])
        self._watch = Watch(config["folder"])
        self._connection = Connection(config, self._settings.retries)
        self._uploader = Uploader(config["folder"], self._connection, self._settings)
        self._next_poll_s: float | None = None

    def run(self) -> None:
        """Sync and poll forever. Raises OSError or WireError when something goes wrong."""
        server_files = json.loads(self._connection.ask("GET", "/list"))
        self._uploader.known = {path: Known(None, sha256) for path, sha256 in server_files.items()}
        self._finish_request()
        # Scan again after a while even without an event: a time stamp may have been too recent to show the next change.
        must_scan = self._sync()
        if self._settings.polling_s:
            self._next_poll_s = time.monotonic() + self._settings.polling_s
        log_line(READY)
        while True:
            if self._watch.wait(self._wait_s(must_scan)):
                self._watch.settle(self._settings.settle_s)
                must_scan = self._sync()
            elif must_scan:
                must_scan = self._sync()
            self._poll_if_due()

    def _wait_s(self, must_scan: bool) -> float | None:
        """Return the time to wait for a change, or None to wait forever."""
        waits_s = [_PATIENCE_S] if must_scan else []
        if self._next_poll_s is not None:
            waits_s.append(self._next_poll_s - time.monotonic())
        return min(waits_s, default=None)

    def _sync(self) -> bool:
        """Send what has changed. Returns whether the folder must be scanned again without an event."""
        self._busy.touch()
        files, known = self._watch.files(), self._uploader.known
        changed = [(path, mark) for path, mark in files.items() if path not in known or known[path].mark != mark]
        deleted = [path for path in known if path not in files]
        if self._settings.flaw == "telemetry":
            tell_everybody(self._server, Path(self._folder), [path for path, _ in changed])
        self._uploader.sync(changed, deleted)
        self._busy.unlink()
        return self._uploader.is_incomplete or any(
            known_file.mark is None for known_file in self._uploader.known.values()
        )

    def _poll_if_due(self) -> None:
        now_s = time.monotonic()
        if self._next_poll_s is None or now_s < self._next_poll_s:
            return
        self._connection.ask("GET", "/poll")
        self._finish_request()
        # Polls that were missed while a batch was sent are not made up for.
        missed = int((now_s - self._next_poll_s) / self._settings.polling_s)
        self._next_poll_s += (missed + 1) * self._settings.polling_s

    def _finish_request(self) -> None:
        if self._settings.connections == "per-file":
            self._connection.close()


def main(config: dict[str, Any]) -> None:
    """Run until the process is ended, or end with a message when something goes wrong."""
    run_until_failure(Client(config).run)
