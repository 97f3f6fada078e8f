"""Links: two network namespaces joined by a network with the requested delay, loss and rate.

The client's and the server's processes run in namespaces of their own, so a capture on either side has only their
traffic. Between them is netem if the kernel has it, and otherwise this package's forwarder
(:mod:`pytest_cloudbench.net.link.forward`). The delivered delay, loss and rate are measured, not assumed.

This module can be imported on every system, but a link needs Linux.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

from pytest_cloudbench.model import CloudbenchError, UsageError
from pytest_cloudbench.net.link.delivered import (
    Delivered,
    DeliveredWay,
    Way,
    choose_probe_settings,
    choose_train_settings,
    compute_train_rate,
    describe_missed,
    judge_delivery,
    limit_stream_bytes,
    matches_rate,
)
from pytest_cloudbench.net.link.devices import ADDRESSES, INTERFACE
from pytest_cloudbench.net.link.leftovers import MARK, Leftover, Mark, end_leftovers

__all__ = ["Delivered", "DeliveredWay", "Leftover", "Link", "LinkError", "LinkUnavailable", "Side", "Way", "sweep"]

Side = Literal["client", "server"]

_ROOT = str(Path(__file__).parents[3])
_LAUNCH = str(Path(__file__).with_name("launch.py"))
_ECHO = str(Path(__file__).with_name("echo.py"))
_RUN_MODULE = (
    "import sys; sys.path.append(sys.argv.pop(1)); from pytest_cloudbench.net.link.{} import main; sys.exit(main())"
)
_MODES = ("netem", "tun", "packet")
_FORWARDED = ("tun", "packet")
_RIGHTS = ("root", "sudo", "user")
_STOP_S = 10.0
_PROBE_S, _STREAM_WAIT_S = 120.0, 30.0
_TRAINS = 3
"""Attempts at measuring a rate. A busy machine may handle one train too slowly, but a wrong link is always wrong."""
_DIRECT = Way()
_HOW_TO_CONNECT = {
    "netem": "`netem` needs `ip` and `tc` (package iproute2) and `sudo modprobe -a veth sch_netem cls_u32 act_mirred`",
    "tun": "`tun` needs /dev/net/tun (`sudo chmod 666 /dev/net/tun`; in a container `--device /dev/net/tun`)",
    "packet": "`packet` needs `ip` (package iproute2) and `sudo modprobe veth`",
}
_HOW_TO_ENABLE = (
    "a link needs network namespaces. Any one of these enables them: run as root; let `sudo -n true` work; allow "
    "unprivileged user namespaces (`sudo sysctl -w kernel.unprivileged_userns_clone=1` on Debian, `sudo sysctl -w "
    "kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu); in a container: "
    "`--cap-add SYS_ADMIN --cap-add NET_ADMIN --device /dev/net/tun`"
)


class LinkUnavailable(UsageError):
    """This machine cannot make a link. The message says how to enable it."""


class LinkError(CloudbenchError):
    """A link ended while in use, or a command inside it failed."""


def sweep() -> list[Leftover]:
    """End leftover processes of killed links, and return those that ended.

    Every link does this first. Processes of other users, and those whose owner still runs, are left alone.
    """
    if sys.platform != "linux":
        return []
    ended = end_leftovers()
    if os.geteuid() and _can_sudo():  # a link made with sudo leaves processes of root
        command = ["sudo", "-n", sys.executable, "-P", "-c", _RUN_MODULE.format("leftovers"), _ROOT]
        process = subprocess.run(command, capture_output=True, check=False)
        if process.returncode == 0:
            ended += [Leftover(**leftover) for leftover in json.loads(process.stdout)]
    return ended


def _can_sudo() -> bool:
    if shutil.which("sudo") is None:
        return False
    return subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0


class Link:
    """Two namespaces, ``client`` and ``server``, and the network between them while the context is open.

    Args:
        up: from client to server.
        down: from server to client, by default the same as ``up``.
        mode: ``netem``, ``tun`` (the forwarder between two TUN devices), ``packet`` (the forwarder between two veth
            pairs, without /dev/net/tun), or ``auto`` for the first of these that works.
        interruptible: whether ``interrupt`` will be called, which needs the forwarder.
        seed: the seed of loss and jitter. The forwarder draws once per packet and direction. netem ignores it.
        run: the name of the run, to identify a leftover process of this link.
        rights: ``root``, ``sudo``, ``user`` (an unprivileged user namespace), or ``auto`` for the first that works.

    Raises UsageError for an impossible combination, and LinkUnavailable on entering if no mode works here.
    """

    interface = INTERFACE
    """Name of the link's device in both namespaces."""

    def __init__(
        self,
        up: Way = _DIRECT,
        down: Way | None = None,
        *,
        mode: str = "auto",
        interruptible: bool = False,
        seed: int = 0,
        run: str = "",
        rights: str = "auto",
    ) -> None:
        if mode not in ("auto", *_MODES) or rights not in ("auto", *_RIGHTS):
            raise UsageError(f"link: mode is auto, {', '.join(_MODES)}; rights is auto, {', '.join(_RIGHTS)}")
        if interruptible and mode == "netem":
            raise UsageError("link: netem cannot interrupt; leave mode out, or use tun or packet")
        self.up, self.down = up, up if down is None else down
        self.mode, self.rights, self.seed, self.run_name = mode, rights, seed, run
        self.delivered: Delivered | None = None
        self._modes = (mode,) if mode != "auto" else _FORWARDED if interruptible else _MODES
        self._process: subprocess.Popen[bytes] | None = None
        self._facts: dict[str, Any] = {}
        self._mark_text = ""
        self._lock = threading.Lock()
        self._missed: dict[str, int] = {}

    # --- its life ---

    def __enter__(self) -> Link:
        if sys.platform != "linux":
            raise LinkUnavailable(f"links need Linux; this is {sys.platform}")
        if self._process is not None:
            raise UsageError("link: already open")
        sweep()
        self._mark_text = str(Mark.of_this_process(self.run_name))
        reasons = []
        for rights in _RIGHTS if self.rights == "auto" else (self.rights,):
            reason = self._start_holder(rights)
            if not reason:
                return self
            reasons.append(f"{rights}: {reason}")
        advice = _HOW_TO_ENABLE
        if self._facts.get("has_namespaces"):
            options = "; ".join(_HOW_TO_CONNECT[mode] for mode in self._modes)
            advice = f"network namespaces work here, but nothing can connect them: {options}"
        raise LinkUnavailable(f"{advice}. Tried here: {'; '.join(reasons)}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_holder(self, rights: str) -> str:
        """Start the holder and return an empty text, or the reason why that failed."""
        if rights == "root" and os.geteuid() != 0:
            return "not running as root"
        if rights == "sudo" and not _can_sudo():
            return "sudo is not installed or asks for a password"
        settings = {
            "mark": self._mark_text,
            "user_namespace": rights == "user",
            "modes": self._modes,
            "seed": self.seed,
            "up": self.up.settings(),
            "down": self.down.settings(),
        }
        wrap = ["sudo", "-n", "env", f"{MARK}={self._mark_text}"] if rights == "sudo" else []
        log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the holder
        process = subprocess.Popen(
            [*wrap, sys.executable, "-P", "-c", _RUN_MODULE.format("holder"), _ROOT, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, MARK: self._mark_text},
            start_new_session=True,
        )
        assert process.stdout is not None
        answer = json.loads(process.stdout.readline() or b"{}")
        if not answer.get("ok"):
            self._facts = self._facts or answer
            reason = str(answer.get("error") or _read_last_line(log))
            _end_holder(process, log)
            return reason
        self._holder_log = log
        self._process, self._facts, self.rights, self.mode = process, answer, rights, answer["mode"]
        self._finalizer = weakref.finalize(self, _end_holder, process, log)
        return ""

    def close(self) -> None:
        """End everything inside and remove namespaces and devices. It is safe to call again."""
        if self._process is not None:
            self._finalizer()
            self._process = None

    # --- what runs inside ---

    def address(self, side: Side, *, ipv6: bool = False) -> str:
        """Return the address of a side, from the benchmarking ranges (RFC 2544, RFC 5180)."""
        if ipv6 and not self._facts.get("has_ipv6", True):
            raise LinkUnavailable("this kernel has no IPv6")
        return ADDRESSES[side][ipv6]

    def enter(self, side: Side, *, as_root: bool = False) -> list[str]:
        """Return the command prefix that runs a command on a side.

        Args:
            side: the side to run on.
            as_root: whether to keep the rights that made the link, as a capture needs. Otherwise a command under
                ``sudo`` runs as this user. In a user namespace it always has rights over the link, and none elsewhere.
        """
        self._open_process()
        is_sudo = self.rights == "sudo"
        return [
            *(["sudo", "-n"] if is_sudo else []),
            *(sys.executable, "-I", "-S", _LAUNCH),
            *(str(self._facts["pid"]), str(self._facts["namespaces"][side])),
            "user" if self.rights == "user" else "-",
            f"{os.getuid()}:{os.getgid()}" if is_sudo and not as_root else "-",
            self._mark_text,
        ]

    def popen(self, side: Side, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process on a side like ``subprocess.Popen``. It ends with the link at the latest."""
        return subprocess.Popen([*self.enter(side), *argv], **options)

    def run(self, side: Side, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run a command on a side like ``subprocess.run``."""
        check = options.pop("check", False)
        return subprocess.run([*self.enter(side), *argv], check=check, **options)

    # --- interruptions ---

    def interrupt(
        self,
        how: Literal["reset", "drop", "black_hole"],
        *,
        at_byte: int | None = None,
        at_s: float | None = None,
        duration_s: float | None = None,
    ) -> None:
        """Schedule one interruption, which replaces a pending one.

        Args:
            how: ``reset`` sends a TCP reset to both ends. ``drop`` silently drops the packets of the connection.
                ``black_hole`` drops all packets for ``duration_s``.
            at_byte: the number of payload bytes from client to server, over all connections from now on, after which to
                interrupt. Retransmissions count once, and a packet is cut if needed to be exact. ``reset`` and ``drop``
                affect the connection with that byte.
            at_s: seconds from now. ``reset`` and ``drop`` affect every existing connection. One that is idle until then
                is interrupted at its next packet.
            duration_s: length of a black hole.

        Raises UsageError for an impossible combination, or if the link has no forwarder.
        """
        if self.mode not in _FORWARDED:
            raise UsageError(f"link: {self.mode} cannot interrupt; make the link with interruptible=True")
        if how not in ("reset", "drop", "black_hole"):
            raise UsageError("link: an interruption must be reset, drop or black_hole")
        if (at_byte is None) == (at_s is None):
            raise UsageError("link: give either at_byte or at_s")
        if at_byte is not None and (at_byte < 1 or at_byte % 1 != 0):
            raise UsageError("link: at_byte must be a whole number of at least 1")
        if at_s is not None and not 0 <= at_s < math.inf:
            raise UsageError("link: at_s must be a number of seconds, at least 0")
        if (how == "black_hole") != (duration_s is not None and duration_s > 0):
            raise UsageError("link: a black hole needs a duration_s above 0, and no other interruption has one")
        at_byte = None if at_byte is None else int(at_byte)
        self._request(interrupt={"how": how, "at_byte": at_byte, "at_s": at_s, "duration_s": duration_s})

    def interruptions(self) -> list[dict[str, Any]]:
        """Return all interruptions with ``happened_ns`` (0 if pending), ``passed_bytes`` and ``flows`` cut."""
        return list(self.stats()["interruptions"])

    # --- what it is and does ---

    def stats(self) -> dict[str, Any]:
        """Return counts since the start: of the forwarder's ``directions``, ``devices`` and ``interruptions``."""
        return self._request()

    def measure(self, *, stream_s: float = 1.0) -> Delivered:
        """Measure delay, loss and rate of this idle link. The result is also kept in ``delivered``.

        Args:
            stream_s: seconds that a TCP stream runs in each direction. At 0 there is none, and rates are not measured.

        Raises LinkError if the measurement does not finish.
        """
        address, missed_before = self.address("server"), self._count_missed()
        echo = [sys.executable, "-I", "-S", _ECHO]
        measured: dict[str, Any] = {"rates": {}}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
        server = self.popen("server", [*echo, "serve", address], **pipes)
        with server:
            assert server.stdin is not None
            assert server.stdout is not None
            try:
                ports = server.stdout.readline().decode()
                for name, settings in choose_probe_settings((self.up, self.down)).items():
                    measured[name] = self._run_probe([*echo, "probe", address, ports], settings)
                    server.stdin.write(f"{measured[name]['port']}\n".encode())
                    server.stdin.flush()
                    measured[name]["arrived"] = int(server.stdout.readline())
                for way, side in (("up", "server"), ("down", "client")) if stream_s else ():
                    counters_before = self.stats()["devices"][side]
                    stream_settings = {"way": way, "seconds": stream_s, "wait_s": stream_s + _STREAM_WAIT_S}
                    max_bytes = limit_stream_bytes(self.up if way == "up" else self.down, stream_s) or 0
                    stream = self._run_probe(
                        [*echo, "probe", address, ports], {**stream_settings, "most_bytes": max_bytes}
                    )
                    counters_after = self.stats()["devices"][side]
                    stream["overhead"] = self._compute_overhead(counters_before, counters_after, stream["bytes"])
                    measured[way] = stream
                    if rate := self._measure_rate([*echo, "probe", address, ports], way):
                        measured["rates"][way] = rate[0]
            finally:
                server.stdin.close()
        self._missed = self._count_missed()
        measured["missed"] = {name: count - missed_before[name] for name, count in self._missed.items()}
        self.delivered = judge_delivery(self.up, self.down, measured)
        return self.delivered

    def deviations(self) -> list[str]:
        """Return how the link differs from the request: as measured, and by packets that were missed since then."""
        missed = {name: count - self._missed.get(name, 0) for name, count in self._count_missed().items()}
        return [*(self.delivered.off if self.delivered is not None else ()), *describe_missed(missed)]

    def record(self) -> dict[str, Any]:
        """Return the request, the mode and rights, and the measured properties as plain data to store with results."""
        return {
            "asked": {"up": asdict(self.up), "down": asdict(self.down)},
            "queue_bytes": {"up": self.up.settings()["queue_bytes"], "down": self.down.settings()["queue_bytes"]},
            "mode": self.mode,
            "rights": self.rights,
            "seed": self.seed,
            "offloads": self._facts.get("offloads"),
            "has_ipv6": self._facts.get("has_ipv6"),
            "delivered": None if self.delivered is None else self.delivered.as_dict(),
        }

    # --- inside ---

    def _run_probe(self, command: list[str], settings: dict[str, Any]) -> dict[str, Any]:
        command = [*command, json.dumps(settings)]
        try:
            process = self.run("client", command, capture_output=True, timeout=_PROBE_S, start_new_session=True)
        except subprocess.TimeoutExpired as error:
            raise LinkError(f"the link could not be measured within {_PROBE_S:g} s") from error
        if process.returncode:
            errors = process.stderr.decode(errors="replace").strip().splitlines() or ["no error output"]
            raise LinkError(f"the link could not be measured: {errors[-1]}")
        return dict(json.loads(process.stdout))

    def _measure_rate(self, command: list[str], name: str) -> tuple[float | None] | None:
        """Return one direction's rate by datagrams as a 1-tuple, or None if no rate or a loss was requested."""
        way, reverse = (self.up, self.down) if name == "up" else (self.down, self.up)
        settings, rates = choose_train_settings(way, reverse), []
        if settings is None or self.up.loss or self.down.loss:
            return None
        for _ in range(_TRAINS):
            arrived = self._run_probe(command, {**settings, "way": name})
            rates.append(compute_train_rate(arrived["arrived_ns"], int(settings["size_bytes"])))
            if matches_rate(way, rates[-1]):
                break
        return (rates[-1],)

    def _count_missed(self) -> dict[str, int]:
        """Return by direction how many packets the forwarder has missed since the start."""
        return {name: int(counts["missed"]) for name, counts in self.stats()["directions"].items()}

    def _compute_overhead(self, before: dict[str, int], after: dict[str, int], payload_bytes: int) -> float:
        """Return the ratio of IP bytes to payload bytes at the receiver's device."""
        ip_bytes = after["received_bytes"] - before["received_bytes"]
        if self.mode != "tun":  # a veth counts its link header too
            ip_bytes -= 14 * (after["received_packets"] - before["received_packets"])
        return ip_bytes / payload_bytes if payload_bytes else 1.0

    def _open_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise LinkError("the link is not open")
        return self._process

    def _request(self, **request: Any) -> dict[str, Any]:
        with self._lock, contextlib.suppress(BrokenPipeError):
            process = self._open_process()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            if line := process.stdout.readline():
                return dict(json.loads(line))
        raise LinkError(f"the link's holder has ended: {_read_last_line(self._holder_log)}")


def _read_last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no error output"


def _end_holder(process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Let the holder clean up and end. If it hangs, kill it: the kernel and the next sweep then clean up."""
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(PermissionError):
            process.send_signal(signal.SIGKILL)
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
    log.close()
