"""The second device of the reference client: polls the server for news, and mirrors it.

Local changes go unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_cloudbench.lab.clients.reference.connection import Connection
from pytest_cloudbench.lab.clients.reference.process import READY, log_line, run_until_failure
from pytest_cloudbench.lab.clients.reference.protocol import PIECE_BYTES, Part
from pytest_cloudbench.lab.clients.reference.settings import Settings
from pytest_cloudbench.lab.clients.reference.telemetry import tell_everybody
from pytest_cloudbench.support.clock import due_ns, sleep_until_ns


class Device:
    """One device, whose folder is empty when it starts.

    Args:
        config: ``folder``, ``private`` (paths), ``settings``, and what ``Connection`` takes.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._settings = Settings(**config["settings"])
        self._folder, self._arriving = Path(config["folder"]), Path(config["private"]) / "arriving"
        self._server: tuple[str, int] = (config["address"], config["port"])
        self._connection = Connection(config, self._settings.retries)
        self._has: dict[str, str] = {}
        self._changes = 0

    def run(self) -> None:
        """Poll forever, each time ``pull_s`` after the last news has been fetched. Raises OSError or WireError."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        is_ready = False
        while True:
            if self._fetch_news() and not is_ready:
                is_ready = True
                log_line(READY)
            sleep_until_ns(due_ns(self._settings.pull_s))

    def _fetch_news(self) -> bool:
        """Fetch what is new. Returns whether all of it has arrived. The rest is part of the next news."""
        news = json.loads(self._connection.ask("GET", f"/news?since={self._changes}"))
        files: dict[str, str | None] = news["files"]
        # Deletions first: a file may have become a folder, or a folder a file.
        for path in [path for path in self._has if path in files and files[path] is None]:
            self._delete(path)
        changed = [(path, sha256) for path, sha256 in files.items() if sha256 and self._has.get(path) != sha256]
        failed = [path for path, sha256 in changed if not self._fetch_file(path, sha256)]
        if self._settings.flaw == "device-telemetry":
            tell_everybody(self._server, self._folder, [path for path, _ in changed if path not in failed])
        if not failed:
            self._changes = news["changes"]
        if self._settings.connections == "per-file":
            self._connection.close()
        return not failed

    def _fetch_file(self, path: str, sha256: str) -> bool:
        """Fetch a file and move it into place. Returns False if its content is not what was announced."""
        digest, received_bytes = hashlib.sha256(), 0
        with self._arriving.open("wb") as file:
            while True:
                request = Part.from_bytes(json.dumps([path, sha256, received_bytes]).encode())
                piece = self._connection.ask("POST", "/content", [request])
                digest.update(piece)
                file.write(piece)
                received_bytes += len(piece)
                if len(piece) < PIECE_BYTES:
                    break
        if digest.hexdigest() != sha256:
            log_line(f"{path!r} differs from what was announced, or has changed since")
            return False
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self._arriving, target)
        self._has[path] = sha256
        return True

    def _delete(self, path: str) -> None:
        """Remove a file, and folders that become empty."""
        target = self._folder / path
        target.unlink()
        del self._has[path]
        for folder in target.parents:
            if folder == self._folder:
                break
            with suppress(OSError):  # something else is in it
                folder.rmdir()


def main(config: dict[str, Any]) -> None:
    """Run until the process is ended, or end with a message when something goes wrong."""
    run_until_failure(Device(config).run)
