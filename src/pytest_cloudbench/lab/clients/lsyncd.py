"""lsyncd, which drives ``rsync -z`` when the kernel reports a change, to an rsync daemon or over SSH."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from pytest_cloudbench.lab.clients._ssh import BINARIES, TRUSTS, VERSION_ARGUMENTS, Ssh
from pytest_cloudbench.lab.clients.base import ClientFacts, Documented, LocalClient, client_option
from pytest_cloudbench.lab.clients.processes import user_name

# lsyncd collects changes for `delay` seconds. Its default of 15 would only make experiments longer.
_LSYNCD = """\
settings {{ nodaemon = true, maxProcesses = 1 }}
sync {{
  default.rsync,
  source = {source},
  target = {target},
  delay = 1,
  delete = true,
  rsync = {{ binary = {rsync}, archive = true, compress = {compress}{rsh} }},
}}
"""

# A daemon that root starts would become "nobody". No group may be given: only root can set it.
_RSYNCD = """\
use chroot = no
uid = {user}
[stored]
path = {stored}
read only = no
"""


class LsyncdClient(LocalClient):
    """lsyncd and rsync.

    Options:
        over: ``daemon`` (an rsync daemon, not encrypted, the default) or ``ssh``.
        compress: ``1`` (``rsync -z``, the default) or ``0``.
    """

    version_arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {"lsyncd": ("-version",), **VERSION_ARGUMENTS}

    def __init__(self, options: Mapping[str, str]) -> None:
        self._over_ssh = client_option("lsyncd", options, "over", ("daemon", "ssh"), "daemon") == "ssh"
        self._compress = client_option("lsyncd", options, "compress", ("0", "1"), "1") == "1"
        self.facts = ClientFacts(
            "lsyncd",
            watches_folder=True,
            is_plain_here=not self._over_ssh,
            trusts=TRUSTS if self._over_ssh else "",
            binaries=("lsyncd", "rsync", *(BINARIES if self._over_ssh else ())),
            testbed="lsyncd openssh" if self._over_ssh else "lsyncd",
            documented={
                "chunking": Documented("unknown", "one stream; the protocol has blocks, but no pauses between them"),
                "bundling": Documented("unknown", "one stream for all files of a run"),
                "deduplication": Documented("no"),
                "delta": Documented("yes", "rolling checksums against the file of the same name"),
                "compression": Documented("yes" if self._compress else "no", "rsync -z" if self._compress else ""),
            },
        )

    def _configure(self) -> None:
        """Write the configuration of lsyncd, and of an rsync daemon or SSH."""
        rsync = self.programs["rsync"]
        if self._over_ssh:
            self._ssh = Ssh(self)
            target = f"{self.server_host}:{self.stored}/"
            shell = " ".join([self.programs["ssh"], *self._ssh.arguments])
            rsh = f", rsh = {_quote_lua(shell)}"
        else:
            target = f"rsync://{self.server_host}:{self.server_port}/stored/"
            rsh = ""
            (self.workdir / "rsyncd.conf").write_text(_RSYNCD.format(user=user_name(), stored=self.stored), "utf-8")
        (self.workdir / "lsyncd.lua").write_text(
            _LSYNCD.format(
                source=_quote_lua(str(self.folder)),
                target=_quote_lua(target),
                rsync=_quote_lua(rsync),
                compress="true" if self._compress else "false",
                rsh=rsh,
            ),
            "utf-8",
        )

    def secrets(self) -> Mapping[str, str]:
        """Return the key for SSH. Without SSH there is no secret."""
        return self._ssh.secrets() if self._over_ssh else {}

    def _start_server(self) -> None:
        if self._over_ssh:
            self._ssh.start()
            return
        argv = [*self.as_plain_user(), self.programs["rsync"], "--daemon", "--no-detach"]
        argv += [
            f"--config={self.workdir / 'rsyncd.conf'}",
            f"--address={self.server_address}",
            f"--port={self.server_port}",
            "--log-file=/dev/stderr",
        ]
        process = self.processes.start("server", "rsyncd", argv)
        self.processes.wait_listening(process, self.server_port, self.start_s)

    def _start_client(self) -> None:
        argv = [self.programs["lsyncd"], "-log", "Normal", str(self.workdir / "lsyncd.lua")]
        process = self.processes.start("client", "lsyncd", argv)
        # It begins to watch before the first pass, and logs the end of that pass.
        self.processes.wait_logged(process, "Startup of", self.start_s)
        self._resting_processes = len(self.pids("client"))  # more than one if sudo started it

    def _is_settled(self) -> bool:
        """Return whether the last rsync has ended, since it still sends after the file is in place."""
        return len(self.pids("client")) == self._resting_processes


def _quote_lua(text: str) -> str:
    """Return a Lua string, which for a path is the same as JSON's."""
    return json.dumps(text, ensure_ascii=False)
