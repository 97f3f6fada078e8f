"""restic, run as ``restic backup`` after each change, to a REST or an S3 server that rclone provides."""

from __future__ import annotations

import base64
import hashlib
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pytest_cloudbench.lab.clients.base import ClientFacts, Documented, LocalClient, client_option
from pytest_cloudbench.lab.clients.processes import Side, find_binary

_RUN_S = 600.0
_USER = "cloudbench"


class ResticClient(LocalClient):
    """restic. Options: ``server``: ``rest`` (the default) or ``s3``, which needs rclone 1.65 or later."""

    version_arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {"restic": ("version",), "rclone": ("version",)}

    def __init__(self, options: Mapping[str, str]) -> None:
        self._server = client_option("restic", options, "server", ("rest", "s3"), "rest")
        self.facts = ClientFacts(
            "restic",
            watches_folder=False,
            is_plain_here=True,
            binaries=("restic", "rclone"),
            testbed="restic",
            documented={
                "chunking": Documented("yes", "content-defined chunks of 512 KiB to 8 MiB"),
                "bundling": Documented("yes", "chunks of many files in one pack"),
                "deduplication": Documented("yes", "by chunk"),
                "delta": Documented("unknown", "chunks that changed; at a few MiB, how many depends on chance"),
                "compression": Documented("yes", "zstd, from repository version 2 on"),
            },
        )

    def _configure(self) -> None:
        self._key = secrets.token_hex(8)
        self._environment = {
            "RESTIC_PASSWORD": self._key, "AWS_ACCESS_KEY_ID": _USER, "AWS_SECRET_ACCESS_KEY": self._key,
        }  # fmt: skip
        self._address = f"{self.server_host}:{self.server_port}"
        url = f"http://{self._address}"
        self._repository = f"rest:{url}/" if self._server == "rest" else f"s3:{url}/bucket"
        if self.account is not None:
            name = self.account.name
            self._repository = f"rest:http://{name}:{self.account.host.accounts[name]}@{self._address}/{name}/"

    def _start_server(self) -> None:
        kind = "restic" if self._server == "rest" else "s3"
        key = [f"--auth-key={_USER},{self._key}"] if self._server == "s3" else []
        argv = [self.programs["rclone"], "serve", kind, f"--addr={self._address}", *key, *self._admit_accounts()]
        argv.append(str(self.stored))
        process = self.processes.start("server", "rclone-serve", argv)
        self.processes.wait_listening(process, self.server_port, self.start_s)

    def _admit_accounts(self) -> list[str]:
        """Return the options by which each account has a repository below its name, and no other."""
        if not self.accounts:
            return []
        digests = {
            name: base64.b64encode(hashlib.sha1(secret.encode(), usedforsecurity=False).digest()).decode()
            for name, secret in self.accounts.items()
        }
        path = self.workdir / "htpasswd"
        path.write_text("".join(f"{name}:{{SHA}}{digest}\n" for name, digest in digests.items()), "ascii")
        return [f"--htpasswd={path}", "--private-repos"]

    def _start_client(self) -> None:
        self._run_restic("client", "restic-init", "-r", self._repository, "init")
        self._has_snapshot = False  # restic makes no snapshot of an empty folder

    def _run_restic(self, side: Side, name: str, *arguments: str, counted: bool = True) -> None:
        argv = [self.programs["restic"], f"--cache-dir={self.workdir / f'cache-{side}'}", *arguments]
        self.processes.run(side, name, argv, timeout_s=_RUN_S, env=self._environment, cwd=self.folder, counted=counted)

    def after_change(self) -> None:
        """Run ``restic backup``, which refuses a folder without files."""
        self._run_restic("client", "restic-backup", "-r", self._repository, "backup", ".")
        self._has_snapshot = True

    def why_one_account(self) -> str:
        """Return nothing for the REST server, which has users."""
        return "" if self._server == "rest" else "as it is set up here, its S3 server has one key and one bucket"

    def secrets(self) -> Mapping[str, str]:
        """Return the password of the repository."""
        return {"password": self._key}

    def lead_elsewhere(self, address: str, port: int, authority: str, folder: Path) -> list[str]:
        """Return ``restic init`` at another server, by the protocol of this one."""
        program, url = find_binary("restic"), f"https://{address}:{port}/"
        words = [f"--cacert={authority}", f"--cache-dir={folder}", "--password-command=echo invented"]
        repository, keys = f"rest:{url}", list[str]()
        if self._server == "s3":
            repository = f"s3:{url}bucket"
            keys = ["env", "AWS_ACCESS_KEY_ID=invented", "AWS_SECRET_ACCESS_KEY=invented"]
        return [*keys, program, *words, "-r", repository, "init"] if program else []

    def _stored(self) -> Path:
        """Restore the latest snapshot from the server's disk, where the repository has the same layout."""
        restored = self.workdir / "restored"
        shutil.rmtree(restored, ignore_errors=True)
        if not self._has_snapshot:
            return restored
        repository = self.stored if self._server == "rest" else self.stored / "bucket"
        arguments = ["-r", str(repository), "--no-lock", "restore", "latest", f"--target={restored}"]
        self._run_restic("server", "restic-restore", *arguments, counted=False)
        return restored
