"""Links: two network namespaces joined by a network with the requested delay, loss and rate.

What may live here: what users of a link call. Importable on every system; a link itself needs Linux.

The client's and the server's processes run in namespaces of their own, so a capture on either side has their traffic
and nobody else's. Between them is netem if the kernel has it, otherwise this package's forwarder
(:mod:`pytest_cloudbench.net.link.forward`). What a link delivers is measured, not assumed.
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
    is_rate,
    judged,
    probe_settings,
    stream_bytes,
    train_rate,
    train_settings,
)
from pytest_cloudbench.net.link.devices import ADDRESSES, INTERFACE
from pytest_cloudbench.net.link.leftovers import MARK, Leftover, Mark, end_leftovers

__all__ = ["Delivered", "DeliveredWay", "Leftover", "Link", "LinkError", "LinkUnavailable", "Side", "Way", "sweep"]

Side = Literal["client", "server"]

_ROOT = str(Path(__file__).parents[3])
_LAUNCH = str(Path(__file__).with_name("launch.py"))
_ECHO = str(Path(__file__).with_name("echo.py"))
_BOOT = "import sys; sys.path.append(sys.argv.pop(1)); from pytest_cloudbench.net.link.{} import main; sys.exit(main())"
_MODES = ("netem", "tun", "packet")
_FORWARDED = ("tun", "packet")
_RIGHTS = ("root", "sudo", "user")
_STOP_S = 10.0
_PROBE_S, _STREAM_WAIT_S = 120.0, 30.0
_TRAINS = 3
"""A busy machine may send or forward a train too slowly now and then; a wrong link is wrong every time."""
_DIRECT = Way()
_HOW_DEVICES = {
    "netem": "`netem` needs `ip` and `tc` (package iproute2) and `sudo modprobe -a veth sch_netem cls_u32 act_mirred`",
    "tun": "`tun` needs /dev/net/tun (`sudo chmod 666 /dev/net/tun`; in a container `--device /dev/net/tun`)",
    "packet": "`packet` needs `ip` (package iproute2) and `sudo modprobe veth`",
}
_HOW = (
    "a link needs network namespaces; any one of these will do: run as root; let `sudo -n true` work; allow "
    "unprivileged user namespaces (`sudo sysctl -w kernel.unprivileged_userns_clone=1` on Debian, `sudo sysctl -w "
    "kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu); in a container: "
    "`--cap-add SYS_ADMIN --cap-add NET_ADMIN --device /dev/net/tun`"
)


class LinkUnavailable(UsageError):
    """This machine cannot make a link now; the message says how to enable it."""


class LinkError(CloudbenchError):
    """A link ended while in use, or a command inside it failed."""


def sweep() -> list[Leftover]:
    """End what links of killed runs left behind; returns what was found and ended.

    Every link does this first. Processes whose owner still runs, and other users' processes, are left alone.
    """
    if sys.platform != "linux":
        return []
    ended = end_leftovers()
    if os.geteuid() and _sudo_works():  # root's processes, of a link that was made with sudo
        words = ["sudo", "-n", sys.executable, "-P", "-c", _BOOT.format("leftovers"), _ROOT]
        done = subprocess.run(words, capture_output=True, check=False)
        if done.returncode == 0:
            ended += [Leftover(**one) for one in json.loads(done.stdout)]
    return ended


def _sudo_works() -> bool:
    if shutil.which("sudo") is None:
        return False
    return subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0


class Link:
    """Two namespaces, ``client`` and ``server``, and the network between them, while the context is open.

    Args:
        up: from client to server.
        down: from server to client; the same as ``up`` by default.
        mode: ``netem``; ``tun``: the forwarder between two TUN devices; ``packet``: the forwarder between two veth
            pairs, which needs no /dev/net/tun; ``auto``: the first of these that works.
        interruptible: whether ``interrupt`` will be called, which needs the forwarder.
        seed: of loss and jitter. The forwarder draws once per packet and direction; netem has a seed of its own.
        run: name of the run, for those who find a process of this link.
        rights: ``root``, ``sudo`` or ``user`` (an unprivileged user namespace); ``auto``: the first that works.

    Raises UsageError for an impossible combination, and LinkUnavailable on entering if no mode works here.
    """

    interface = INTERFACE
    """The device of the link, in either namespace."""

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
            raise UsageError("link: netem cannot interrupt; leave mode out, or take tun or packet")
        self.up, self.down = up, up if down is None else down
        self.mode, self.rights, self.seed, self.run_name = mode, rights, seed, run
        self.delivered: Delivered | None = None
        self._modes = (mode,) if mode != "auto" else _FORWARDED if interruptible else _MODES
        self._process: subprocess.Popen[bytes] | None = None
        self._answer: dict[str, Any] = {}
        self._mark = ""
        self._lock = threading.Lock()

    # --- its life ---

    def __enter__(self) -> Link:
        if sys.platform != "linux":
            raise LinkUnavailable(f"links need Linux; this is {sys.platform}")
        if self._process is not None:
            raise UsageError("link: it is open already")
        sweep()
        self._mark = str(Mark.own(self.run_name))
        reasons = []
        for rights in _RIGHTS if self.rights == "auto" else (self.rights,):
            reason = self._start(rights)
            if not reason:
                return self
            reasons.append(f"{rights}: {reason}")
        how = _HOW
        if self._answer.get("has_namespaces"):
            ways = "; ".join(_HOW_DEVICES[mode] for mode in self._modes)
            how = f"network namespaces work here, but nothing can connect them: {ways}"
        raise LinkUnavailable(f"{how}. Tried here: {'; '.join(reasons)}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, rights: str) -> str:
        """Start the holder; returns why that failed, or an empty text."""
        if rights == "root" and os.geteuid() != 0:
            return "this is not root"
        if rights == "sudo" and not _sudo_works():
            return "sudo is not installed, or asks for a password"
        settings = {
            "mark": self._mark,
            "user_namespace": rights == "user",
            "modes": self._modes,
            "seed": self.seed,
            "up": self.up.settings(),
            "down": self.down.settings(),
        }
        wrap = ["sudo", "-n", "env", f"{MARK}={self._mark}"] if rights == "sudo" else []
        log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the holder
        process = subprocess.Popen(
            [*wrap, sys.executable, "-P", "-c", _BOOT.format("holder"), _ROOT, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, MARK: self._mark},
            start_new_session=True,
        )
        assert process.stdout is not None
        answer = json.loads(process.stdout.readline() or b"{}")
        if not answer.get("ok"):
            self._answer = self._answer or answer
            reason = str(answer.get("error") or _last_line(log))
            _end(process, log)
            return reason
        self._log = log
        self._process, self._answer, self.rights, self.mode = process, answer, rights, answer["mode"]
        self._finalizer = weakref.finalize(self, _end, process, log)
        return ""

    def close(self) -> None:
        """End everything inside and remove namespaces and devices; safe to call again."""
        if self._process is not None:
            self._finalizer()
            self._process = None

    # --- what runs inside ---

    def address(self, side: Side, *, ipv6: bool = False) -> str:
        """The address of a side, in the ranges for benchmarks (RFC 2544, RFC 5180)."""
        if ipv6 and not self._answer.get("has_ipv6", True):
            raise LinkUnavailable("this kernel has no IPv6")
        return ADDRESSES[side][ipv6]

    def enter(self, side: Side, *, as_root: bool = False) -> list[str]:
        """The command prefix that runs a command on that side.

        Args:
            side: where.
            as_root: keep the rights with which the link was made, for a capture. Otherwise a command under ``sudo``
                runs as this user. In a user namespace it always has rights over the link, and none elsewhere.
        """
        self._alive()
        is_sudo = self.rights == "sudo"
        return [
            *(["sudo", "-n"] if is_sudo else []),
            *(sys.executable, "-I", "-S", _LAUNCH),
            *(str(self._answer["pid"]), str(self._answer["namespaces"][side])),
            "user" if self.rights == "user" else "-",
            f"{os.getuid()}:{os.getgid()}" if is_sudo and not as_root else "-",
            self._mark,
        ]

    def popen(self, side: Side, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """``subprocess.Popen`` on that side; the process ends with the link at the latest."""
        return subprocess.Popen([*self.enter(side), *argv], **options)

    def run(self, side: Side, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """``subprocess.run`` on that side."""
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
        """Arm one interruption; it replaces one that has not happened yet.

        Args:
            how: ``reset``: both ends get a TCP reset; ``drop``: packets of the connection no longer pass, and neither
                end is told; ``black_hole``: nothing at all passes for ``duration_s``.
            at_byte: when that many payload bytes have passed from client to server from now on, over all connections,
                retransmissions counted once. Exact: a packet is cut if needed. ``reset`` and ``drop`` hit the
                connection with that byte.
            at_s: seconds from now. ``reset`` and ``drop`` hit every existing connection; one without any packet between
                now and then is hit at its next packet.
            duration_s: how long a black hole lasts.

        Raises UsageError for an impossible combination, or a link without forwarder.
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
            raise UsageError("link: only a black hole has a duration_s, and it must be above 0")
        at_byte = None if at_byte is None else int(at_byte)
        self._ask(interrupt={"how": how, "at_byte": at_byte, "at_s": at_s, "duration_s": duration_s})

    def interruptions(self) -> list[dict[str, Any]]:
        """Every interruption, with ``happened_ns`` (monotonic, 0: not yet), ``passed_bytes`` and ``flows`` cut."""
        return list(self.stats()["interruptions"])

    # --- what it is and does ---

    def stats(self) -> dict[str, Any]:
        """Counts since the start: ``directions`` of the forwarder, ``devices`` of each side, ``interruptions``."""
        return self._ask()

    def measure(self, *, stream_s: float = 1.0) -> Delivered:
        """Measure what this link delivers while nobody uses it; also kept in ``delivered``.

        Args:
            stream_s: how long one TCP stream runs in each direction; 0 for none, and then rates are not measured.

        Raises LinkError when the measurement did not come to an end.
        """
        address = self.address("server")
        echo = [sys.executable, "-I", "-S", _ECHO]
        seen: dict[str, Any] = {"rates": {}}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
        server = self.popen("server", [*echo, "serve", address], **pipes)
        with server:
            assert server.stdin is not None
            assert server.stdout is not None
            try:
                ports = server.stdout.readline().decode()
                for name, settings in probe_settings((self.up, self.down)).items():
                    seen[name] = self._probe([*echo, "probe", address, ports], settings)
                    server.stdin.write(f"{seen[name]['port']}\n".encode())
                    server.stdin.flush()
                    seen[name]["arrived"] = int(server.stdout.readline())
                for way, side in (("up", "server"), ("down", "client")) if stream_s else ():
                    before = self.stats()["devices"][side]
                    asked = {"way": way, "seconds": stream_s, "wait_s": stream_s + _STREAM_WAIT_S}
                    most_bytes = stream_bytes(self.up if way == "up" else self.down, stream_s) or 0
                    stream = self._probe([*echo, "probe", address, ports], {**asked, "most_bytes": most_bytes})
                    stream["overhead"] = self._overhead(before, self.stats()["devices"][side], stream["bytes"])
                    seen[way] = stream
                    if rate := self._rate([*echo, "probe", address, ports], way):
                        seen["rates"][way] = rate[0]
            finally:
                server.stdin.close()
        seen["missed"] = {name: counts["missed"] for name, counts in self.stats()["directions"].items()}
        self.delivered = judged(self.up, self.down, seen)
        return self.delivered

    def record(self) -> dict[str, Any]:
        """What was requested, how the link was made and what it delivered, as plain data to store beside results."""
        return {
            "asked": {"up": asdict(self.up), "down": asdict(self.down)},
            "queue_bytes": {"up": self.up.settings()["queue_bytes"], "down": self.down.settings()["queue_bytes"]},
            "mode": self.mode,
            "rights": self.rights,
            "seed": self.seed,
            "offloads": self._answer.get("offloads"),
            "has_ipv6": self._answer.get("has_ipv6"),
            "delivered": None if self.delivered is None else self.delivered.as_dict(),
        }

    # --- inside ---

    def _probe(self, words: list[str], settings: dict[str, Any]) -> dict[str, Any]:
        words = [*words, json.dumps(settings)]
        try:
            done = self.run("client", words, capture_output=True, timeout=_PROBE_S, start_new_session=True)
        except subprocess.TimeoutExpired as error:
            raise LinkError(f"the link could not be measured within {_PROBE_S:g} s") from error
        if done.returncode:
            told = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise LinkError(f"the link could not be measured: {told[-1]}")
        return dict(json.loads(done.stdout))

    def _rate(self, words: list[str], name: str) -> tuple[float | None] | None:
        """What datagrams show of one direction's rate; None if no rate, or a loss, was requested."""
        way, back = (self.up, self.down) if name == "up" else (self.down, self.up)
        settings, found = train_settings(way, back), []
        if settings is None or self.up.loss or self.down.loss:
            return None
        for _ in range(_TRAINS):
            arrived = self._probe(words, {**settings, "way": name})
            found.append(train_rate(arrived["arrived_ns"], int(settings["size_bytes"])))
            if is_rate(way, found[-1]):
                break
        return (found[-1],)

    def _overhead(self, before: dict[str, int], after: dict[str, int], payload_bytes: int) -> float:
        """IP bytes over payload bytes at the receiver's device; a veth counts its link header too."""
        ip_bytes = after["received_bytes"] - before["received_bytes"]
        if self.mode != "tun":
            ip_bytes -= 14 * (after["received_packets"] - before["received_packets"])
        return ip_bytes / payload_bytes if payload_bytes else 1.0

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise LinkError("the link is not open (any more)")
        return self._process

    def _ask(self, **request: Any) -> dict[str, Any]:
        with self._lock, contextlib.suppress(BrokenPipeError):
            process = self._alive()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            if line := process.stdout.readline():
                return dict(json.loads(line))
        raise LinkError(f"the link's holder has ended: {_last_line(self._log)}")


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _end(process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Let the holder clean up and end; if it does not, the kernel and the next sweep do."""
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
