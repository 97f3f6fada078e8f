"""A private SSH server and its client configuration, for clients that run over SSH.

The sshd accepts only its own client.
"""

from __future__ import annotations

import os
from pathlib import Path

from pytest_cloudbench.lab.clients.base import ClientUnavailable, LocalClient, MissingProgramError
from pytest_cloudbench.lab.clients.processes import Process, user_name

TRUSTS = "the SSH host key that it has on file"
BINARIES = ("sshd", "ssh", "ssh-keygen")
VERSION_ARGUMENTS = {"sshd": ("-V",), "ssh": ("-V",), "ssh-keygen": ()}
_PRIVILEGE_FOLDER = Path("/run/sshd")

# HOME is set for programs started through sshd, which must not write to the account's own home.
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
    """One sshd on the server's port, and the configuration of its only user.

    Args:
        client: the client of this server half. It is being configured and has the programs of BINARIES.
    """

    def __init__(self, client: LocalClient) -> None:
        if os.geteuid() == 0 and not _PRIVILEGE_FOLDER.is_dir():
            raise MissingProgramError(f"sshd as root needs {_PRIVILEGE_FOLDER}: tools/testbed install openssh")
        user = user_name()
        if user == str(os.geteuid()):
            reason = f"sshd and ssh need a user with a name, and number {user} has none"
            raise ClientUnavailable(f"{reason}: add it to /etc/passwd, or choose a client without SSH")
        self._client = client
        self._folder = folder = client.workdir / "ssh"
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in ("host_key", "client_key"):
            argv = [client.programs["ssh-keygen"], "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            client.processes.run("server", "ssh-keygen", argv, timeout_s=client.start_s, counted=False)
        values = {
            "folder": folder,
            "user": user,
            "listen": f"{client.server_host}:{client.server_port}",
            "port": client.server_port,
            "home": client.workdir / "home",
        }
        (folder / "sshd_config").write_text(_SSHD.format_map(values), "utf-8")
        (folder / "ssh_config").write_text(_SSH.format_map(values), "utf-8")
        (folder / "authorized_keys").write_text((folder / "client_key.pub").read_text("utf-8"), "utf-8")
        (folder / "known_hosts").write_text(f"cloudbench {(folder / 'host_key.pub').read_text('utf-8')}", "utf-8")

    @property
    def arguments(self) -> list[str]:
        """The arguments of ``ssh`` besides the host."""
        return ["-F", str(self._folder / "ssh_config")]

    def secrets(self) -> dict[str, str]:
        """Return the key by which the server knows the client."""
        return {"SSH key": (self._folder / "client_key").read_text("utf-8")}

    def start(self) -> Process:
        """Start sshd and wait until it listens."""
        client = self._client
        argv = [*client.as_plain_user(), client.programs["sshd"], "-D", "-e", "-f", str(self._folder / "sshd_config")]
        process = client.processes.start("server", "sshd", argv)
        client.processes.wait_listening(process, client.server_port, client.start_s)
        return process
