"""The client half of the reference client: watches its folder and uploads changes to the server.

What may live here: when the folder is looked at, when batches are sent and when the server is asked for news.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pytest_cloudbench.lab.clients.reference.connection import Connection
from pytest_cloudbench.lab.clients.reference.process import READY, say, until_it_fails
from pytest_cloudbench.lab.clients.reference.settings import Settings
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
        self._watch = Watch(config["folder"])
        self._connection = Connection(config, self._settings.retries)
        self._uploader = Uploader(config["folder"], self._connection, self._settings)
        self._next_poll_s: float | None = None

    def run(self) -> None:
        """Sync and poll forever. Raises OSError or WireError when something goes wrong."""
        there = json.loads(self._connection.ask("GET", "/list"))
        self._uploader.known = {path: Known(None, sha256) for path, sha256 in there.items()}
        self._end_of_question()
        # Also after a while without an event: a time stamp may have been too young to show the next change.
        look_again = self._sync()
        if self._settings.polling_s:
            self._next_poll_s = time.monotonic() + self._settings.polling_s
        say(READY)
        while True:
            if self._watch.wait(self._wait_s(look_again)):
                self._watch.settle(self._settings.settle_s)
                look_again = self._sync()
            elif look_again:
                look_again = self._sync()
            self._poll_if_due()

    def _wait_s(self, look_again: bool) -> float | None:
        """How long to wait for a change; None: forever."""
        waits_s = [_PATIENCE_S] if look_again else []
        if self._next_poll_s is not None:
            waits_s.append(self._next_poll_s - time.monotonic())
        return min(waits_s, default=None)

    def _sync(self) -> bool:
        """Send what has changed; returns whether the folder must be scanned again without an event."""
        self._busy.touch()
        files, known = self._watch.files(), self._uploader.known
        changed = [(path, mark) for path, mark in files.items() if path not in known or known[path].mark != mark]
        deleted = [path for path in known if path not in files]
        self._uploader.sync(changed, deleted)
        self._busy.unlink()
        return self._uploader.is_incomplete or any(one.mark is None for one in self._uploader.known.values())

    def _poll_if_due(self) -> None:
        now_s = time.monotonic()
        if self._next_poll_s is None or now_s < self._next_poll_s:
            return
        self._connection.ask("GET", "/poll")
        self._end_of_question()
        # Polls that were missed while a batch was sent are not made up for.
        missed = int((now_s - self._next_poll_s) / self._settings.polling_s)
        self._next_poll_s += (missed + 1) * self._settings.polling_s

    def _end_of_question(self) -> None:
        if self._settings.connections == "per-file":
            self._connection.close()


def main(config: dict[str, Any]) -> None:
    """Run until the process is ended; ends by itself, with a message, when something goes wrong."""
    until_it_fails(Client(config).run)
