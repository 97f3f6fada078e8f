"""Three hosts on this machine: network namespaces with sshd, each with its own address, name, boot id and clock."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_cloudbench.support.clock import wait_for
from tests.limits import HANG_S

AHEAD_S = (3, 86_400, 0)
"""Seconds that each host's monotonic clock is ahead of this machine's."""
_SSHD = """
Port 22
HostKey {folder}/hostkey
AuthorizedKeysFile {folder}/authorized
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
UsePAM no
PidFile none
MaxStartups 200
MaxSessions 200
"""
_SSH = """
Host 10.*
 User root
 IdentityFile {folder}/userkey
 UserKnownHostsFile {folder}/known_hosts
 StrictHostKeyChecking accept-new
 LogLevel ERROR
"""


def why_impossible() -> str:
    """Return the reason why hosts cannot be made here. Empty if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root, to make network namespaces"
    absent = [name for name in ("ip", "ssh", "ssh-keygen", "unshare") if not shutil.which(name)]
    if not Path("/usr/sbin/sshd").exists():
        absent.append("sshd")
    return f"needs {', '.join(absent)}" if absent else ""


@dataclass(frozen=True)
class SshHost:
    """A host: its name, its address, its namespace, and this machine's address on the same cable."""

    name: str
    address: str
    namespace: str
    config: Path
    gateway: str

    @property
    def ssh(self) -> str:
        """The ``ssh`` setting in a table of hosts."""
        return f"-F {self.config} {self.address}"

    def unplug(self) -> None:
        """Take it off the network."""
        _run("ip", "link", "set", self.namespace, "down")

    def plug(self) -> None:
        """Bring it back onto the network."""
        _run("ip", "link", "set", self.namespace, "up")

    def pids(self) -> list[int]:
        """Return the ids of the processes on this host, except its sshd."""
        result = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False)
        pids = map(int, result.stdout.split())
        return [pid for pid in pids if "sshd" not in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")]


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def describe(hosts: Sequence[SshHost], agents: int = 1) -> str:
    """Return the table of these hosts."""
    return "\n".join(
        f'[[host]]\nname = "{host.name}"\nagents = {agents}\nssh = "{host.ssh}"\npython = "{sys.executable}"\n'
        for host in hosts
    )


@contextlib.contextmanager
def three_hosts(folder: Path) -> Iterator[list[SshHost]]:
    """Make three hosts, and remove them with all their processes. Their addresses allow one set at a time here."""
    for name in ("hostkey", "userkey"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    shutil.copy(folder / "userkey.pub", folder / "authorized")
    for name, text in (("sshd_config", _SSHD), ("ssh_config", _SSH)):
        (folder / name).write_text(text.format(folder=folder), "utf-8")
    Path("/run/sshd").mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        hosts = []
        for number, ahead_s in enumerate(AHEAD_S, 1):
            namespace = f"cbh{os.getpid() % 100_000}-{number}"
            net = f"10.{78 + os.getpid() % 100}.{number}"
            hosts.append(SshHost(f"host{number}", f"{net}.2", namespace, folder / "ssh_config", f"{net}.1"))
            _make_host(hosts[-1], ahead_s, folder, stack)
        for host in hosts:
            assert wait_for(partial(_answers, host), HANG_S, poll_s=0.2), f"{host.name} has no sshd"
        yield hosts


def _make_host(host: SshHost, ahead_s: int, folder: Path, stack: contextlib.ExitStack) -> None:
    name = host.namespace
    _run("ip", "netns", "add", name)
    stack.callback(_remove, name)
    _run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
    _run("ip", "addr", "add", f"{host.gateway}/30", "dev", name)
    _run("ip", "link", "set", name, "up")
    _run("ip", "-n", name, "addr", "add", f"{host.address}/30", "dev", "eth0")
    for device in ("eth0", "lo"):
        _run("ip", "-n", name, "link", "set", device, "up")
    _run("ip", "-n", name, "route", "add", "default", "via", host.gateway)
    boot_id = folder / f"boot-{name}"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    inside = (
        f"hostname {host.name}; mount --bind '{boot_id}' /proc/sys/kernel/random/boot_id; "
        f"exec /usr/sbin/sshd -D -f '{folder / 'sshd_config'}'"
    )
    process = subprocess.Popen(
        ["ip", "netns", "exec", name, "unshare", "--time", "--monotonic", str(ahead_s), "--mount", "--uts", "--fork",
         "bash", "-c", inside],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    stack.callback(process.wait)
    stack.callback(_end_all, name)


def _answers(host: SshHost) -> bool:
    command = ["ssh", "-F", str(host.config), "-o", "ConnectTimeout=2", host.address, "true"]
    return not subprocess.run(command, capture_output=True, check=False).returncode


def _end_all(namespace: str) -> None:
    def are_gone() -> bool:
        pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False).stdout
        for pid in pids.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        return not pids.split()

    assert wait_for(are_gone, HANG_S, poll_s=0.05)


def _remove(namespace: str) -> None:
    for words in (("ip", "link", "del", namespace), ("ip", "netns", "del", namespace)):
        subprocess.run(words, capture_output=True, check=False)
