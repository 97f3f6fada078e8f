"""rclone, run as ``rclone sync`` after each change, to ``rclone serve webdav``.

Content is sent plain, in chunks, compressed or encrypted.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pytest_cloudbench.lab.clients.base import ClientFacts, Documented, LocalClient, client_option
from pytest_cloudbench.lab.clients.processes import find_binary

_RUN_S = 600.0

# Overlays by name, as lines of rclone's configuration. Without level and mode, ``compress`` stores even text as it is.
# Even with them, it decides by its first read whether a file is worth compressing. Read-ahead gives it 4 KiB when it
# asks for 1 MiB, and 4 KiB of plain words are not worth it. So read-ahead is off.
_OVERLAYS: Mapping[str, str] = {
    "plain": "",
    "chunker": "type = chunker\nchunk_size = {chunk_size}\n",
    "compress": "type = compress\nmode = gzip\nlevel = 6\n",
    "crypt": "type = crypt\npassword = {password}\n",
}


class RcloneClient(LocalClient):
    """rclone to WebDAV.

    Options:
        remote: ``plain`` (the default), ``chunker``, ``compress`` or ``crypt``, which encrypts contents and names.
        chunk_size: of the chunker, as rclone writes sizes (``1M``).

    The plain remote sees an edit by the size, or by time stamps a second apart if this rclone and its server exchange
    them (an older one, such as Debian 12's 1.60, goes by the size alone). Other edits are not uploaded, and
    ``wait_synced`` then says which file differs.
    """

    version_arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {"rclone": ("version",)}

    def __init__(self, options: Mapping[str, str]) -> None:
        self._remote = client_option("rclone", options, "remote", _OVERLAYS, "plain")
        self._chunk_size = options.get("chunk_size", "1M")
        self._secrets: dict[str, str] = {}
        chunks, compresses = self._remote == "chunker", self._remote == "compress"
        self.facts = ClientFacts(
            "rclone",
            watches_folder=False,
            is_plain_here=True,
            binaries=("rclone",),
            testbed="rclone",
            documented={
                "chunking": Documented("yes" if chunks else "no", f"chunks of {self._chunk_size}" if chunks else ""),
                "bundling": Documented("no", "a request per file, four at a time"),
                "deduplication": Documented("no"),
                "delta": Documented("no"),
                "compression": Documented("yes" if compresses else "no", "gzip, level 6" if compresses else ""),
            },
        )

    def _configure(self) -> None:
        self._secrets = self._make_secrets() if self._remote == "crypt" else {}
        overlay = _OVERLAYS[self._remote].format(
            chunk_size=self._chunk_size, password=self._secrets.get("obscured password", "")
        )
        vendor = "rclone" if self._knows_own_server() else "other"
        url = f"http://{self.server_host}:{self.server_port}"
        if self.account is not None:
            url += f"/{self.account.name}"
        self._write_config("client", f"type = webdav\nurl = {url}\nvendor = {vendor}\n", overlay)
        # The server reads what it stores through the same overlay, over its own disk.
        self._write_config("server", f"type = alias\nremote = {self.stored}\n", overlay)

    def _write_config(self, side: str, base: str, overlay: str) -> None:
        top = f"{overlay}remote = base:\n" if overlay else "type = alias\nremote = base:\n"
        path = self.workdir / f"rclone-{side}.conf"
        path.touch(mode=0o600)  # as rclone makes it
        path.write_text(f"[base]\n{base}\n[top]\n{top}", "utf-8")

    def _make_secrets(self) -> dict[str, str]:
        """Return a new password, plain and as rclone's configuration has it, from which anybody can recover it."""
        password = secrets.token_hex(16)
        argv = [self.programs["rclone"], "obscure", password]
        obscured = self.processes.run("client", "rclone-obscure", argv, timeout_s=self.start_s, counted=False).strip()
        return {"password": password, "obscured password": obscured}

    def why_one_account(self) -> str:
        """Return nothing: each account has a folder of one WebDAV server."""
        return ""

    def secrets(self) -> Mapping[str, str]:
        """Return the password of ``crypt``. Other remotes have none."""
        return self._secrets

    def _knows_own_server(self) -> bool:
        """Return whether this rclone can exchange time stamps with a WebDAV server that is an rclone."""
        argv = [self.programs["rclone"], "help", "backend", "webdav"]
        printed = self.processes.run("client", "rclone-help", argv, timeout_s=self.start_s, counted=False)
        return bool(re.search(r'^\s*- "rclone"$', printed, re.MULTILINE))

    def _rclone_command(self, side: str, *arguments: str) -> list[str]:
        return [self.programs["rclone"], f"--config={self.workdir / f'rclone-{side}.conf'}", *arguments]

    def _start_server(self) -> None:
        argv = self._rclone_command(
            "server", "serve", "webdav", f"--addr={self.server_host}:{self.server_port}", "base:"
        )
        process = self.processes.start("server", "rclone-serve", argv)
        self.processes.wait_listening(process, self.server_port, self.start_s)

    def _start_client(self) -> None:
        self.after_change()

    def after_change(self) -> None:
        """Run ``rclone sync``, which does not retry a file that failed."""
        options = ["--retries=1", "--low-level-retries=1"]
        if self._remote == "compress":
            options.append("--buffer-size=0")
        argv = self._rclone_command("client", "sync", *options, str(self.folder), "top:")
        self.processes.run("client", "rclone-sync", argv, timeout_s=_RUN_S)

    def lead_elsewhere(self, address: str, port: int, authority: str, folder: Path) -> list[str]:
        """Return ``rclone copy`` of an invented file to another WebDAV server."""
        program = find_binary("rclone")
        (folder / "file").write_bytes(b"invented")
        words = [f"--config={folder / 'none.conf'}", f"--ca-cert={authority}", "--retries=1", "--low-level-retries=1"]
        server = f"--webdav-url=https://{address}:{port}"
        return [program, *words, "copyto", str(folder / "file"), ":webdav:/file", server] if program else []

    def _stored(self) -> Path:
        if self._remote == "plain":
            return self.stored
        restored = self.workdir / "restored"
        argv = self._rclone_command("server", "sync", "--ignore-times", "top:", str(restored))
        self.processes.run("server", "rclone-restore", argv, timeout_s=_RUN_S, counted=False)
        return restored
