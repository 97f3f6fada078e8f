"""The user's own desktop client, which is already running: its folder, its interface, the names of its servers.

What may live here: what can be known about a client that this package neither starts nor configures. It writes one
new folder below the given one and nothing else; ``stop`` removes it.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path

from pytest_cloudbench.lab.clients.base import ClientFacts, ClientUnavailable, Outside, Proof, option
from pytest_cloudbench.lab.clients.processes import Runner, Side
from pytest_cloudbench.lab.clients.watchdog import read_stat
from pytest_cloudbench.model import ClientError, UsageError
from pytest_cloudbench.results.journal import marker_beside, run_of
from pytest_cloudbench.support.clock import due_ns, sleep_until_ns, wait_for

PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "dropbox": ("*.dropbox.com", "*.dropboxapi.com", "*.dropboxusercontent.com", "*.dropbox-dns.com"),
    "googledrive": ("drive.google.com", "*.googleapis.com", "*.googleusercontent.com", "clients*.google.com"),
    "onedrive": ("*.onedrive.com", "*.live.com", "*.sharepoint.com", "*.svc.ms", "*.1drv.com"),
}
"""A first guess at the names of a product's servers. Not measured here: check them in a capture of your own."""

_COUNTERS = Path("/proc/self/net/dev")
"""Shows the network namespace that this process is in; files below /sys show the one in which /sys was mounted."""
_POLL_S = 0.2
_VERIFY_POLL_S = 1.0


class ExternalClient:
    """A client started by somebody else.

    Options: ``folder`` that it mirrors (required); ``interface`` it uses, and ``address``, its addresses there, if it
    does not use all of them; ``names``: patterns of its servers' names, separated by commas, or ``product``, one of
    PRODUCTS; ``servers``: their addresses or networks; ``process``: its name, for CPU time (Linux); ``verify``: a
    command that ends with 0 when the cloud has what ``{folder}`` holds; or ``quiet_s``: in sync when the interface,
    after some traffic, carried less than ``quiet_bytes`` (20,000) for that long. Without ``verify`` and
    ``quiet_s``, nothing shows when it is in sync, and ``wait_synced`` says so.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        if not options.get("folder"):
            raise UsageError("client 'external': folder is missing, such as external?folder=/home/me/Dropbox")
        self._mirrored = Path(options["folder"]).expanduser()
        if not self._mirrored.is_dir():
            raise UsageError(f"client 'external': {options['folder']} is not a folder")
        self._interface = options.get("interface", "")
        product = option("external", options, "product", ("", *PRODUCTS), "")
        names = _listed(options, "names") or PRODUCTS.get(product, ())
        addresses, servers = _listed(options, "address"), _listed(options, "servers")
        for key, values, read in (("address", addresses, ip_address), ("servers", servers, ip_network)):
            for value in values:
                try:
                    read(value)
                except ValueError as error:
                    raise UsageError(f"client 'external': {key}: {error}") from error
        self._process = options.get("process", "")
        self._verify = shlex.split(options.get("verify", ""))
        self._quiet_s = _number(options, "quiet_s", 0.0)
        self._quiet_bytes = _number(options, "quiet_bytes", 20_000.0)
        if self._verify and self._quiet_s:
            raise UsageError("client 'external': verify and quiet_s exclude each other")
        if self._quiet_s and self._interface not in _carried():
            there = f"not {self._interface!r}; there are: {', '.join(_carried()) or 'none'}"
            raise UsageError(f"client 'external': quiet_s needs an interface of {_COUNTERS}, {there}")
        outside = Outside(self._interface, addresses, names, servers)
        self.facts = ClientFacts("external", watches_folder=True, outside=outside)
        self._run_folder = self._mirrored / f"cloudbench-{secrets.token_hex(4)}"
        self._marker = self._mirrored / marker_beside(f"/{self._run_folder.name}")[1:]
        self._changed_bytes = 0
        self._lock: int | None = None

    @property
    def folder(self) -> Path:
        """A new folder below the mirrored one."""
        return self._run_folder

    def prepare(
        self,
        workdir: Path,
        *,
        server_address: str = "",
        client_address: str = "",
        runner: Runner | None = None,
    ) -> None:
        """Make the new folder. The client is already running: addresses and a runner have no effect.

        Raises ClientUnavailable when files cannot be made in ``workdir`` and moved in, so that they appear at once, and
        when another process measures the same client now: each would count traffic caused by the other.
        """
        del server_address, client_address, runner
        fix = "set TMPDIR to a folder beside it"
        if workdir.resolve().is_relative_to(self._mirrored.resolve()):
            raise ClientUnavailable(f"external: temporary files would be in {self._mirrored} and be synced: {fix}")
        workdir.mkdir(parents=True, exist_ok=True)
        if workdir.stat().st_dev != self._mirrored.stat().st_dev:
            why = "not on the file system of temporary files, so they cannot be moved in atomically"
            raise ClientUnavailable(f"external: {self._mirrored} is {why}: {fix}")
        self._take()
        # First the marker: what a killed run leaves is recognised by name and marker before it is removed.
        self._marker.write_text(run_of(f"/{self._run_folder.name}"), "ascii")
        self._run_folder.mkdir()

    def start(self) -> None:
        """No effect: it is already running."""
        self.before_change()

    def before_change(self) -> None:
        """Remember how much the interface had carried: the client may finish before anyone asks."""
        self._changed_bytes = self._carried_bytes() if self._quiet_s else 0

    def after_change(self) -> None:
        """Nothing: it watches the folder."""

    def wait_synced(self, timeout_s: float) -> Proof:
        """By the ``verify`` command or the quiet rule; ClientUnavailable when neither was given: it is unknown."""
        if self._verify:
            self._wait_verified(timeout_s)
            return Proof.CONTENT
        if self._quiet_s:
            self._wait_quiet(timeout_s)
            return Proof.QUIET
        raise ClientUnavailable("external: unknown whether it is in sync; give verify=COMMAND or quiet_s=SECONDS")

    def idle(self, duration_s: float) -> None:
        """Leave it alone for that long; whether it runs is not known."""
        sleep_until_ns(due_ns(duration_s))

    def stop(self) -> None:
        """Remove the new folder; the client goes on running."""
        shutil.rmtree(self._run_folder, ignore_errors=True)
        if not self._run_folder.exists():
            self._marker.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def versions(self) -> Mapping[str, str]:
        """Unknown: we do not ask programs that we did not start for their version."""
        return {}

    def pids(self, side: Side) -> tuple[int, ...]:
        """Processes with the given name on this machine; none without a name, and none outside Linux."""
        if side != "client" or not self._process or not Path("/proc/self/comm").exists():
            return ()
        return tuple(int(name) for name in os.listdir("/proc") if name.isdecimal() and _comm(name) == self._process)

    def cpu_s(self, side: Side) -> float | None:
        """CPU seconds of these processes since they began; None: unknown."""
        stats = [stat for pid in self.pids(side) if (stat := read_stat(pid))]
        return sum(stat.cpu_s for stat in stats) if stats else None

    def receiver(self) -> None:
        """None: the account's other devices are elsewhere."""

    # --- inside -----------------------------------------------------------------------------------

    def _take(self) -> None:
        """Lock the mirrored folder against other measurements; nothing is written for that."""
        import fcntl

        self._lock = os.open(self._mirrored, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            self._lock = None
            raise ClientUnavailable(
                f"external: another process measures the client of {self._mirrored} now; run it without -n"
            ) from error
        except OSError:  # a file system without locks
            return

    def _wait_verified(self, timeout_s: float) -> None:
        argv = [word.replace("{folder}", str(self.folder)) for word in self._verify]
        deadline_s, said = time.monotonic() + timeout_s, ""

        def is_verified() -> bool:
            nonlocal said
            rest_s = deadline_s - time.monotonic()
            if rest_s <= 0:
                return False
            try:
                done = subprocess.run(argv, capture_output=True, timeout=rest_s, check=False)
            except subprocess.TimeoutExpired as error:
                raise ClientError(f"external: not verified within {timeout_s:g} s") from error
            except OSError as error:
                raise ClientError(f"external: the verify command cannot be run: {error}") from error
            said = done.stderr.decode(errors="replace").strip() or str(done.returncode)
            return done.returncode == 0

        if not wait_for(is_verified, timeout_s, poll_s=_VERIFY_POLL_S):
            raise ClientError(f"external: not verified within {timeout_s:g} s: {said}")

    def _wait_quiet(self, timeout_s: float) -> None:
        last_bytes, since_s, was_busy = self._changed_bytes, time.monotonic(), False

        def is_quiet() -> bool:
            nonlocal last_bytes, since_s, was_busy
            now_bytes = self._carried_bytes()
            if now_bytes - last_bytes > self._quiet_bytes:
                last_bytes, since_s, was_busy = now_bytes, time.monotonic(), True
            elif time.monotonic() - since_s >= self._quiet_s:
                if was_busy:
                    return True
                # Nothing yet: a client that has not noticed the change is quiet as well.
                last_bytes, since_s = now_bytes, time.monotonic()
            return False

        if not wait_for(is_quiet, timeout_s, poll_s=min(_POLL_S, self._quiet_s / 4)):
            seen = "it stayed busy" if was_busy else "the change caused no traffic that stands out"
            raise ClientError(f"external: not known to be in sync within {timeout_s:g} s: {seen}")

    def _carried_bytes(self) -> int:
        try:
            return _carried()[self._interface]
        except KeyError as error:
            raise ClientError(f"external: the interface {self._interface} is gone") from error


def _carried() -> dict[str, int]:
    """Maps an interface to the bytes that it has carried, both ways; empty on systems without these counters."""
    try:
        lines = _COUNTERS.read_text("utf-8").splitlines()
    except OSError:
        return {}
    rows = [line.partition(":") for line in lines[2:]]
    return {name.strip(): int(counts.split()[0]) + int(counts.split()[8]) for name, _, counts in rows}


def _listed(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The values of an option that is a list, separated by commas."""
    return tuple(each.strip() for each in options.get(name, "").split(",") if each.strip())


def _comm(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(options: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"client 'external': {name} must be a number from 0, not {options[name]!r}")
    return value
