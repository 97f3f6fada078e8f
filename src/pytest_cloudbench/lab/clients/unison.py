"""Unison, which compares both folders every two seconds, to its own server on a socket or over SSH."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pytest_cloudbench.lab.clients._ssh import BINARIES, TRUSTS, VERSION_ARGUMENTS, Ssh
from pytest_cloudbench.lab.clients.base import ClientFacts, Documented, LocalClient, client_option
from pytest_cloudbench.lab.clients.processes import tail

_REPEAT_S = 2


class UnisonClient(LocalClient):
    """Unison with ``-repeat 2``.

    Options:
        over: ``socket`` (not encrypted, the default) or ``ssh``.
    """

    version_arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {"unison": ("-version",), **VERSION_ARGUMENTS}

    def __init__(self, options: Mapping[str, str]) -> None:
        self._over_ssh = client_option("unison", options, "over", ("socket", "ssh"), "socket") == "ssh"
        self.facts = ClientFacts(
            "unison",
            watches_folder=True,
            is_plain_here=not self._over_ssh,
            trusts=TRUSTS if self._over_ssh else "",
            binaries=("unison", *(BINARIES if self._over_ssh else ())),
            testbed="unison openssh" if self._over_ssh else "unison",
            documented={
                "chunking": Documented("unknown"),
                "bundling": Documented("unknown", "small files are streamed one after another"),
                "deduplication": Documented("yes", "a file of the same content on the server is copied there"),
                "delta": Documented("yes", "rsync's algorithm against the file of the same name"),
                "compression": Documented("no"),
            },
        )

    def _configure(self) -> None:
        for side in ("client", "server"):
            (self.workdir / f"unison-{side}").mkdir(exist_ok=True)
        if self._over_ssh:
            self._ssh = Ssh(self)

    def secrets(self) -> Mapping[str, str]:
        """Return the key for SSH. Without SSH there is no secret."""
        return self._ssh.secrets() if self._over_ssh else {}

    def _start_server(self) -> None:
        if self._over_ssh:
            self._ssh.start()
            return
        argv = [self.programs["unison"], "-socket", str(self.server_port), "-listen", self.server_address]
        env = {"UNISON": str(self.workdir / "unison-server")}
        process = self.processes.start("server", "unison-server", argv, env=env)
        self.processes.wait_listening(process, self.server_port, self.start_s)

    def _start_client(self) -> None:
        # An absolute path comes after the slash that ends the host.
        if self._over_ssh:
            root = f"ssh://{self.server_host}/{self.stored}"
            options = ["-sshcmd", self.programs["ssh"], "-sshargs", " ".join(self._ssh.arguments)]
            options += ["-servercmd", self.programs["unison"]]
        else:
            root = f"socket://{self.server_host}:{self.server_port}/{self.stored}"
            options = []
        argv = [self.programs["unison"], str(self.folder), root, "-repeat", str(_REPEAT_S), "-batch", "-auto"]
        argv += ["-ui", "text", "-times", "-confirmbigdel=false", "-log=false", *options]
        env = {"UNISON": str(self.workdir / "unison-client")}
        process = self.processes.start("client", "unison", argv, env=env)
        self._log_path = process.log_path
        self.processes.wait_logged(process, "Sleeping", self.start_s)

    def _is_settled(self) -> bool:
        """Return whether the pass has ended, since it still sends after the file is in place."""
        return tail(self._log_path, 1).strip().startswith("Sleeping")
