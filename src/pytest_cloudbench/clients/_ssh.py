"""A private SSH server and the way to it, for clients that go over SSH.

What may live here: keys, configuration and start of one sshd that only its own client can enter.
"""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from pytest_cloudbench.clients.processes import Process, Processes, free_port
from pytest_cloudbench.model import UsageError

__all__ = ["BINARIES", "VERSION_ARGUMENTS", "Ssh"]

BINARIES = ("sshd", "ssh", "ssh-keygen")
VERSION_ARGUMENTS = {"sshd": ("-V",), "ssh": ("-V",), "ssh-keygen": ()}
_PRIVILEGE_FOLDER = Path("/run/sshd")

# HOME is set for what runs behind it: the account's own home is not to be written to.
_SSHD = """\
ListenAddress {listen}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
AllowUsers {user}
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PidFile none
PrintMotd no
PrintLastLog no
X11Forwarding no
AllowTcpForwarding no
UseDNS no
SetEnv HOME={home} UNISON={home}/unison
"""

_SSH = """\
Host *
  IdentityFile {folder}/client_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  HostKeyAlias cloudbench
  BatchMode yes
  ControlMaster no
  Compression no
  User {user}
  Port {port}
"""


class Ssh:
    """One sshd and the configuration of its only user.

    Args:
        processes: of the client it serves.
        programs: paths of BINARIES.
        folder: for keys and configuration.
        address: where sshd listens.
    """

    def __init__(self, processes: Processes, programs: dict[str, str], folder: Path, address: str) -> None:
        if os.geteuid() == 0 and not _PRIVILEGE_FOLDER.is_dir():
            raise UsageError(f"sshd as root needs the folder {_PRIVILEGE_FOLDER}: tools/testbed install openssh")
        self._processes, self._programs, self._folder = processes, programs, folder
        self.port = free_port(address)
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in ("host_key", "client_key"):
            keygen = [
                programs["ssh-keygen"],
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-C",
                "cloudbench",
                "-f",
                str(folder / name),
            ]
            processes.run("server", "ssh-keygen", keygen, timeout_s=30)
        user = getpass.getuser()
        listen = f"[{address}]:{self.port}" if ":" in address else f"{address}:{self.port}"
        home = processes.environment({})["HOME"]
        (folder / "sshd_config").write_text(_SSHD.format(listen=listen, folder=folder, user=user, home=home), "utf-8")
        (folder / "ssh_config").write_text(_SSH.format(folder=folder, user=user, port=self.port), "utf-8")
        (folder / "authorized_keys").write_text((folder / "client_key.pub").read_text("utf-8"), "utf-8")
        (folder / "known_hosts").write_text(f"cloudbench {(folder / 'host_key.pub').read_text('utf-8')}", "utf-8")

    @property
    def arguments(self) -> list[str]:
        """What ``ssh`` is called with besides the host."""
        return ["-F", str(self._folder / "ssh_config")]

    def start(self, timeout_s: float) -> Process:
        """Start sshd and wait until it listens."""
        argv = [self._programs["sshd"], "-D", "-e", "-f", str(self._folder / "sshd_config")]
        process = self._processes.start("server", "sshd", argv)
        self._processes.wait_listening(process, self.port, timeout_s)
        return process
