"""The user's own desktop client, which is already running: its folder, its interface, the names of its servers.

This package neither starts nor configures the client. It writes one new folder below the given one and nothing else,
and ``stop`` removes it.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path

from pytest_cloudbench.lab.clients.base import ClientFacts, ClientUnavailable, Outside, Proof, client_option
from pytest_cloudbench.lab.clients.processes import Runner, Side, last_lines
from pytest_cloudbench.lab.clients.watchdog import read_stat
from pytest_cloudbench.model import ClientError, UsageError
from pytest_cloudbench.net.quiet import QUIET_BYTES, QuietWatch
from pytest_cloudbench.results.journal import marker_beside, run_in_name
from pytest_cloudbench.support.clock import due_ns, sleep_until_ns, wait_for

PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "dropbox": ("*.dropbox.com", "*.dropboxapi.com", "*.dropboxusercontent.com", "*.dropbox-dns.com"),
    "googledrive": ("drive.google.com", "*.googleapis.com", "*.googleusercontent.com", "clients*.google.com"),
    "onedrive": ("*.onedrive.com", "*.live.com", "*.sharepoint.com", "*.svc.ms", "*.1drv.com"),
}
"""A first guess at the names of a product's servers. Not measured here: check them in a capture of your own."""

_COUNTERS = Path("/proc/self/net/dev")
"""It shows the network namespace of this process. Files below /sys show the one in which /sys was mounted."""
_PROCESS_NAME_BYTES = 15
"""Linux keeps no more of a process's name."""
_POLL_S = 0.2
_VERIFY_POLL_S = 1.0


class ExternalClient:
    """A client started by somebody else.

    Options:
        folder: the folder that it mirrors (required).
        interface: the interface that it uses.
        address: its addresses there, if it does not use all of them.
        names: patterns of its servers' names, separated by commas.
        product: one of PRODUCTS, instead of ``names``.
        servers: addresses or networks of its servers.
        process: its name, for CPU time (Linux).
        verify: a command that ends with 0 when the cloud has what ``{folder}`` holds.
        quiet_s: instead of ``verify``: it is in sync when the interface, after some traffic, carried less than
            ``quiet_bytes`` (20,000) for that long.

    Without ``verify`` and ``quiet_s``, nothing shows when it is in sync, and ``wait_synced`` says so.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        if not options.get("folder"):
            raise UsageError("client 'external': folder is missing, such as external?folder=/home/me/Dropbox")
        self._mirrored = _find_folder(options["folder"])
        self._interface = options.get("interface", "")
        product = client_option("external", options, "product", ("", *PRODUCTS), "")
        names = _split_list(options, "names") or PRODUCTS.get(product, ())
        addresses, servers = _split_list(options, "address"), _split_list(options, "servers")
        for key, values, parse in (("address", addresses, ip_address), ("servers", servers, ip_network)):
            for value in values:
                try:
                    parse(value)
                except ValueError as error:
                    raise UsageError(f"client 'external': {key}: {error}") from error
        self._process = options.get("process", "")
        self._verify = _split_command(options.get("verify", ""))
        self._quiet_s = _read_number(options, "quiet_s", 0.0)
        self._quiet_bytes = _read_number(options, "quiet_bytes", QUIET_BYTES)
        if self._verify and self._quiet_s:
            raise UsageError("client 'external': verify and quiet_s exclude each other")
        if self._quiet_s and self._interface not in _read_counters():
            interfaces = f"not {self._interface!r}; there are: {', '.join(_read_counters()) or 'none'}"
            raise UsageError(f"client 'external': quiet_s needs an interface of {_COUNTERS}, {interfaces}")
        outside = Outside(self._interface, addresses, names, servers)
        self.facts = ClientFacts("external", watches_folder=True, outside=outside)
        self._run_folder = self._mirrored / f"cloudbench-{secrets.token_hex(4)}"
        self._marker = self._mirrored / marker_beside(f"/{self._run_folder.name}")[1:]
        self._changed_bytes = 0
        self._counted: set[tuple[int, int]] = set()  # processes of the last reading of CPU time: pid, start
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
        remedy = "set TMPDIR to a folder beside it"
        if workdir.resolve().is_relative_to(self._mirrored.resolve()):
            raise ClientUnavailable(f"external: temporary files would be in {self._mirrored} and be synced: {remedy}")
        workdir.mkdir(parents=True, exist_ok=True)
        if workdir.stat().st_dev != self._mirrored.stat().st_dev:
            reason = "not on the file system of temporary files, so they cannot be moved in atomically"
            raise ClientUnavailable(f"external: {self._mirrored} is {reason}: {remedy}")
        self._lock_folder()
        # First the marker: what a killed run leaves is recognised by name and marker before it is removed.
        self._marker.write_text(run_in_name(f"/{self._run_folder.name}"), "ascii")
        self._run_folder.mkdir()

    def start(self) -> None:
        """No effect: it is already running."""
        self.before_change()

    def before_change(self) -> None:
        """Remember how much the interface had carried, because the client may finish before anyone asks."""
        self._changed_bytes = self._carried_bytes() if self._quiet_s else 0

    def after_change(self) -> None:
        """Do nothing: it watches the folder."""

    def wait_synced(self, timeout_s: float) -> Proof:
        """Wait for the ``verify`` command, or for a quiet interface.

        Raises ClientUnavailable when neither was given, because nothing can tell.
        """
        if self._verify:
            self._wait_verified(timeout_s)
            return Proof.CONTENT
        if self._quiet_s:
            self._wait_quiet(timeout_s)
            return Proof.QUIET
        raise ClientUnavailable("external: cannot tell whether it is in sync; give verify=COMMAND or quiet_s=SECONDS")

    def idle(self, duration_s: float) -> None:
        """Leave it alone for that long, whether it runs or not."""
        sleep_until_ns(due_ns(duration_s))

    def stop(self) -> None:
        """Remove the new folder. The client goes on running."""
        shutil.rmtree(self._run_folder, ignore_errors=True)
        if not self._run_folder.exists():
            self._marker.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def versions(self) -> Mapping[str, str]:
        """Return nothing: we do not ask programs that we did not start for their version."""
        return {}

    def pids(self, side: Side) -> tuple[int, ...]:
        """Return the processes with the given name on this machine. None without a name, and none outside Linux."""
        if side != "client" or not self._process or not Path("/proc/self/comm").exists():
            return ()
        kept = os.fsencode(self._process)[:_PROCESS_NAME_BYTES]
        return tuple(int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and _read_process_name(pid) == kept)

    def cpu_s(self, side: Side) -> float | None:
        """Return the CPU seconds of these processes since they began, or None if unknown.

        Unknown as well if one of them has ended since the last call, as its time is missing from the difference.
        """
        if side != "client":
            return None
        stats = [stat for pid in self.pids(side) if (stat := read_stat(pid))]
        former, self._counted = self._counted, {(stat.pid, stat.start) for stat in stats}
        return sum(stat.cpu_s for stat in stats) if stats and former <= self._counted else None

    def receiver(self) -> None:
        """Return None: the account's other devices are elsewhere."""

    # --- inside -----------------------------------------------------------------------------------

    def _lock_folder(self) -> None:
        """Lock the mirrored folder against other measurements, without writing anything."""
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
        """Run the verify command until it succeeds. Raises ClientError when the time is over."""
        argv = [word.replace("{folder}", str(self.folder)) for word in self._verify]
        deadline_s, complaint = time.monotonic() + timeout_s, ""

        def is_verified() -> bool:
            nonlocal complaint
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            try:
                status, errors = _run_in_session(argv, left_s)
            except subprocess.TimeoutExpired as error:
                raise ClientError(f"external: not verified within {timeout_s:g} s") from error
            except OSError as error:
                raise ClientError(f"external: the verify command cannot be run: {error}") from error
            complaint = last_lines(errors.decode(errors="replace")).strip() or str(status)
            return status == 0

        if not wait_for(is_verified, timeout_s, poll_s=_VERIFY_POLL_S):
            raise ClientError(f"external: not verified within {timeout_s:g} s: {complaint}")

    def _wait_quiet(self, timeout_s: float) -> None:
        watch = QuietWatch(self._quiet_s, self._quiet_bytes, self._changed_bytes, time.monotonic())

        def is_quiet() -> bool:
            return watch.is_quiet(self._carried_bytes(), time.monotonic())

        if not wait_for(is_quiet, timeout_s, poll_s=min(_POLL_S, self._quiet_s / 4)):
            reason = "it stayed busy" if watch.was_busy else "the change caused no traffic that stands out"
            raise ClientError(f"external: not known to be in sync within {timeout_s:g} s: {reason}")

    def _carried_bytes(self) -> int:
        try:
            return _read_counters()[self._interface]
        except KeyError as error:
            raise ClientError(f"external: the interface {self._interface} is gone") from error


def _read_counters() -> dict[str, int]:
    """Return the bytes that each interface has carried, both ways, or nothing on systems without these counters."""
    try:
        lines = _COUNTERS.read_text("utf-8").splitlines()
    except OSError:
        return {}
    rows = [line.partition(":") for line in lines[2:]]
    return {name.strip(): int(counts.split()[0]) + int(counts.split()[8]) for name, _, counts in rows}


def _split_list(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the values of an option that is a list, separated by commas."""
    return tuple(value.strip() for value in options.get(name, "").split(",") if value.strip())


def _find_folder(option: str) -> Path:
    with suppress(RuntimeError):  # ~ of nobody
        folder = Path(option).expanduser()
        if folder.is_dir():
            return folder
    raise UsageError(f"client 'external': {option} is not a folder")


def _split_command(option: str) -> list[str]:
    try:
        return shlex.split(option)
    except ValueError as error:
        raise UsageError(f"client 'external': verify: {error}: {option}") from error


def _run_in_session(argv: list[str], timeout_s: float) -> tuple[int, bytes]:
    """Run a command in a session of its own. Returns its status and its errors, or ends it with its children."""
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            _, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, errors


def _read_process_name(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().removesuffix(b"\n")
    except OSError:
        return b""


def _read_number(options: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"client 'external': {name} must be a number from 0, not {options[name]!r}")
    return value
