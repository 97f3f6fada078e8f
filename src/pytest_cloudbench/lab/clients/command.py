"""Any tool described in a TOML file: run after each change, or started once if it watches the folder.

``command_file`` reads the description.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from pytest_cloudbench.lab.clients.base import ClientFacts, LocalClient, Proof
from pytest_cloudbench.lab.clients.command_file import CommandFile, fill_placeholders, load_command_file
from pytest_cloudbench.lab.clients.processes import (
    Side,
    find_binary,
    free_port,
    program_version,
    secret_values,
    user_name,
)
from pytest_cloudbench.model import ClientError
from pytest_cloudbench.support import redact

_LONG_SECRET = 8
"""Shorter secrets may be ordinary words, so they are removed only from the tool's own output."""
_RESTORE_POLL_S = 0.5
"""Restoring reads all that is stored, which takes time from the tool that is measured."""


class CommandClient(LocalClient):
    """A tool described in a file. Its capabilities are undocumented, so nothing is claimed about them."""

    def __init__(self, description: CommandFile) -> None:
        self._described = description
        self.start_s = description.start_s
        self.search_path = tuple(str(Path(folder).expanduser()) for folder in description.path)
        self.facts = ClientFacts(
            description.name,
            watches_folder=description.watches,
            binaries=description.programs(),
            testbed=description.testbed,
        )

    @classmethod
    def from_file(cls, path: str) -> CommandClient:
        """Return the client of a TOML file. Raises ConfigError."""
        return cls(load_command_file(path))

    def versions(self) -> Mapping[str, str]:
        """Return the output of the file's ``version`` command, or nothing if it has none."""
        program, *arguments = self._described.version or ("",)
        path = find_binary(program, self.search_path) if program else None
        return {self.facts.name: program_version(path, *arguments)} if path else {}

    def _configure(self) -> None:
        """Set the values of placeholders and variables, and write the described files."""
        self._values = {
            "user": user_name(),
            "folder": str(self.folder),
            "workdir": str(self.workdir),
            "server": self.server_address,
            "client": self.client_address,
            "port": str(self.server_port),
            "port2": str(free_port(self.server_address, besides=self.server_port)),
            "stored": str(self.stored),
            "restored": str(self.workdir / "restored"),
        }
        search_variable = (
            {"PATH": os.pathsep.join([*self.search_path, os.environ.get("PATH", os.defpath)])}
            if self.search_path
            else {}
        )
        own_variables = {
            name: fill_placeholders(value, self._values) for name, value in self._described.environment.items()
        }
        self._environment = {**search_variable, **own_variables}
        redact.learn(value for value in secret_values(self._environment) if len(value) >= _LONG_SECRET)
        for name, content in self._described.files.items():
            (self.workdir / name).write_text(fill_placeholders(content, self._values), "utf-8")

    def _fill_command(self, command: tuple[str, ...]) -> list[str]:
        return [self.programs[command[0]], *(fill_placeholders(word, self._values) for word in command[1:])]

    def _run_command(
        self, side: Side, name: str, command: tuple[str, ...], *, timeout_s: float | None = None, counted: bool = True
    ) -> None:  # fmt: skip
        argv = self._fill_command(command)
        timeout_s = timeout_s or self._described.timeout_s
        self.processes.run(
            side, name, argv, timeout_s=timeout_s, env=self._environment, cwd=self.folder, counted=counted
        )

    def _start_server(self) -> None:
        if self._described.server:
            process = self.processes.start(
                "server", "server", self._fill_command(self._described.server), env=self._environment
            )
            try:
                self.processes.wait_listening(process, self.server_port, self.start_s, udp=self._described.server_udp)
            except ClientError as error:
                if process.exit_status() == 0:
                    raise ClientError(f"server.command has to stay in the foreground: {error}") from error
                raise

    def _start_client(self) -> None:
        if self._described.daemon:
            argv = self._fill_command(self._described.daemon)
            daemon = self.processes.start("client", "daemon", argv, env=self._environment, cwd=self.folder)
            try:
                self.processes.wait_logged(
                    daemon, fill_placeholders(self._described.daemon_ready, self._values), self.start_s
                )
            except ClientError as error:
                if daemon.exit_status() == 0:
                    raise ClientError(f"daemon.command has to stay in the foreground: {error}") from error
                raise
        for index, command in enumerate(self._described.setup):
            self._run_command("client", f"setup-{index}", command, timeout_s=self._described.setup_s)
        if self._described.watches:
            argv = self._fill_command(self._described.sync)
            self.processes.start("client", "sync", argv, env=self._environment, cwd=self.folder)

    def after_change(self) -> None:
        """Run the ``sync`` command, unless it watches."""
        if not self._described.watches:
            self._run_command("client", "sync", self._described.sync)

    def wait_synced(self, timeout_s: float) -> Proof:
        """Wait for ``verify``. Without it, exit status 0 counts as the client's claim.

        ``timeout_s`` is for a tool that watches, and ``wait.synced_s`` overrides it.
        """
        timeout_s = self._described.synced_s or timeout_s
        if self._described.verify_command:
            if self._described.watches:
                self.processes.wait_until(self._is_verified, timeout_s, "verify.command did not end with status 0")
            else:
                try:
                    self._run_command("server", "verify", self._described.verify_command, counted=False)
                except ClientError as error:
                    raise ClientError(f"{error}{self.processes.last_run_words()}") from error
            return Proof.CONTENT
        if self._described.watches and self._described.verify_restore:
            self._wait_restored(timeout_s)
            return Proof.CONTENT
        if self._described.verify_folder or self._described.verify_restore:
            return super().wait_synced(timeout_s)
        self.processes.check()
        return Proof.CLIENT

    def _is_verified(self) -> bool:
        self.processes.check()
        try:
            self._run_command("server", "verify", self._described.verify_command, counted=False)
        except ClientError:
            return False
        return True

    def _wait_restored(self, timeout_s: float) -> None:
        """Restore until the folder's content comes back. Until something is stored, restoring may fail."""
        self.processes.check()
        digests, complaint = self._folder_tree.digests(), ""
        held: dict[str, str] | None = None

        def is_restored() -> bool:
            nonlocal held, complaint
            try:
                held, complaint = self.held(), ""
            except ClientError as error:
                self.processes.check()  # perhaps the tool itself has ended
                held, complaint = None, f"\n{error}"
            return held == digests

        failure = "verify.restore did not bring back the folder's content"
        try:
            self.processes.wait_until(is_restored, timeout_s, failure, poll_s=_RESTORE_POLL_S)
        except ClientError as error:
            self._must_hold(digests, digests if held is None else held, f"; {error}")
            raise ClientError(f"{error}{complaint}") from error

    def _stored(self) -> Path:
        if not self._described.verify_restore:
            return (
                Path(fill_placeholders(self._described.verify_folder, self._values))
                if self._described.verify_folder
                else self.stored
            )
        restored = Path(self._values["restored"])
        shutil.rmtree(restored, ignore_errors=True)
        restored.mkdir()
        self._run_command("server", "restore", self._described.verify_restore, counted=False)
        return restored
