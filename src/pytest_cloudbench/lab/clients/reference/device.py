"""The second device of the reference client: polls the server for news, and mirrors it.

What may live here: when the server is polled, and how files arrive and disappear. Local changes go unnoticed.
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
from pytest_cloudbench.lab.clients.reference.process import READY, say, until_it_fails
from pytest_cloudbench.lab.clients.reference.protocol import PIECE_BYTES, Part
from pytest_cloudbench.lab.clients.reference.settings import Settings
from pytest_cloudbench.support.clock import due_ns, sleep_until_ns


class Device:
    """One device; its folder is empty when it starts.

    Args:
        config: ``folder``, ``private`` (paths), ``settings``, and what ``Connection`` takes.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._settings = Settings(**config["settings"])
        self._folder, self._arriving = Path(config["folder"]), Path(config["private"]) / "arriving"
        self._connection = Connection(config, self._settings.retries)
        self._has: dict[str, str] = {}
        self._changes = 0

    def run(self) -> None:
        """Poll forever, each time ``pull_s`` after the last news has been fetched. Raises OSError or WireError."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        is_ready = False
        while True:
            if self._pull() and not is_ready:
                is_ready = True
                say(READY)
            sleep_until_ns(due_ns(self._settings.pull_s))

    def _pull(self) -> bool:
        """Fetch what is new; returns whether all of it has arrived. What has not is part of the next news."""
        news = json.loads(self._connection.ask("GET", f"/news?since={self._changes}"))
        files: dict[str, str | None] = news["files"]
        # Deletions first: a file may have become a folder, or a folder a file.
        for path in [path for path in self._has if path in files and files[path] is None]:
            self._delete(path)
        new = [(path, sha256) for path, sha256 in files.items() if sha256 and self._has.get(path) != sha256]
        lacking = [path for path, sha256 in new if not self._bring(path, sha256)]
        if not lacking:
            self._changes = news["changes"]
        if self._settings.connections == "per-file":
            self._connection.close()
        return not lacking

    def _bring(self, path: str, sha256: str) -> bool:
        """Fetch a file and move it into place; returns False if its content is not what was announced."""
        digest, at_bytes = hashlib.sha256(), 0
        with self._arriving.open("wb") as file:
            while True:
                asked = Part.of(json.dumps([path, sha256, at_bytes]).encode())
                piece = self._connection.ask("POST", "/content", [asked])
                digest.update(piece)
                file.write(piece)
                at_bytes += len(piece)
                if len(piece) < PIECE_BYTES:
                    break
        if digest.hexdigest() != sha256:
            say(f"{path!r} differs from what was announced, or has changed since")
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
    """Run until the process is ended; ends by itself, with a message, when something goes wrong."""
    until_it_fails(Device(config).run)
