"""Captures: dumpcap in the right place, proven ready and complete; otherwise the result says why not.

What may live here: starting, proving and ending a capture. Other modules read the traffic, without I/O.

A sentinel is a small datagram sent on the captured interface until it appears in the file: one kind before
the measurement, one after. Everything between the two was captured. Every sentinel goes to ``SENTINEL_ADDRESS``, port
``SENTINEL_PORT``, and carries the capture's token; both are in the file's comment, so that analysis can leave them out.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import queue
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from pytest_cloudbench.model import CloudbenchError, UsageError
from pytest_cloudbench.net.capture.guard import SENTINEL_ADDRESS, SENTINEL_PORT, sentinel_payload
from pytest_cloudbench.net.capture.pcapng import Walk, read_comment, walk

__all__ = [
    "SENTINEL_ADDRESS",
    "SENTINEL_PORT",
    "Capture",
    "CaptureError",
    "CaptureResult",
    "CaptureUnavailable",
    "check",
    "read_comment",
    "walk",
]

_GUARD = str(Path(__file__).with_name("guard.py"))
_RESEND_S = 0.1
_STATISTICS = re.compile(r"Packets received/dropped on interface .*?: (\d+)/(\d+) \(([^)]*)\)")
_HOW = {
    "linux": (
        "any one of these gives the right: `sudo setcap cap_net_raw+ep {dumpcap}`; on Debian and Ubuntu "
        "`sudo dpkg-reconfigure wireshark-common` (answer yes), `sudo usermod -aG wireshark $USER` and a new login; "
        "or capture inside a link (pytest_cloudbench.net.link), which needs no right where user namespaces are allowed"
    ),
    "darwin": "install ChmodBPF, which comes with Wireshark, or run `sudo chmod o+r /dev/bpf*`",
}
_INSTALL = {
    "linux": "install it (`sudo apt-get install wireshark-common`, `sudo dnf install wireshark-cli`)",
    "darwin": "install it (`brew install wireshark`)",
}


class CaptureUnavailable(UsageError):
    """Capturing is not possible here now; the message says how to enable it."""


class CaptureError(CloudbenchError):
    """A capture did not become ready."""


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """A finished capture. Only a valid one may be measured."""

    path: Path
    is_valid: bool
    reasons: tuple[str, ...]
    """Why it is not valid; empty when it is."""
    packets: int
    """In the file, without sentinels."""
    sentinels: int
    cut_packets: int
    """Packets truncated in the file (``snaplen``)."""
    received: int | None
    """By the interface statistics, sentinels included; None if there are no statistics."""
    dropped: int | None
    """The largest count that dumpcap or the file reports; None if neither does. On Linux's loopback each packet counts
    twice, out and in."""
    interface: str
    token: str
    """In the payload of every sentinel of this capture."""


class Capture:
    """Capture an interface into a pcapng file while the context is open; ``result`` is there afterwards.

    Args:
        interface: its name.
        path: the file; replaced.
        netns: where to capture: a namespace's name (``ip netns``), or the words to put before a command so that it
            runs there (``link.enter("client", as_root=True)``).
        comment: what the file says about itself, such as ``{"run": ..., "experiment": ...}``. No secrets.
        filter: a capture filter (pcap-filter); sentinels always pass.
        snaplen: bytes to keep of each packet; 0 for all. Lengths survive truncation, the contents of a TLS hello do
            not.
        buffer_mib: of the kernel's ring. Small ones drop packets.
        patience_s: how long to wait for dumpcap and for each sentinel.

    Raises CaptureUnavailable on entering when dumpcap is missing or not allowed to capture, CaptureError when it does
    not become ready. Leaving never raises: failures are among the result's reasons.
    """

    def __init__(
        self,
        interface: str,
        path: str | os.PathLike[str],
        *,
        netns: str | Sequence[str] | None = None,
        comment: Mapping[str, Any] | None = None,
        filter: str | None = None,
        snaplen: int = 0,
        buffer_mib: int = 64,
        patience_s: float = 10.0,
    ) -> None:
        self.interface, self.path = interface, Path(path)
        self.token = secrets.token_hex(8)
        self.result: CaptureResult | None = None
        self._prefix = ["ip", "netns", "exec", netns] if isinstance(netns, str) else list(netns or ())
        self._filter, self._snaplen, self._buffer_mib, self._patience_s = filter, snaplen, buffer_mib, patience_s
        self._comment = {
            "cloudbench_capture": 1,
            **(comment or {}),
            "interface": interface,
            "snaplen": snaplen,
            "sentinel": {"address": SENTINEL_ADDRESS, "port": SENTINEL_PORT, "token": self.token},
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._said = _Said()

    # --- its life ---

    def __enter__(self) -> Capture:
        dumpcap = shutil.which("dumpcap")
        if dumpcap is None:
            how = _INSTALL.get(sys.platform, "install Wireshark's command line tools")
            raise CaptureUnavailable(f"dumpcap is not installed: {how}")
        with self.path.open("wb") as file:
            try:
                guard = [sys.executable, "-I", "-S", _GUARD, self.interface, self.token]
                self._process = subprocess.Popen(
                    [*self._prefix, *guard, *self._command(dumpcap)],
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise CaptureUnavailable(
                    f"{self._prefix[0]} is not installed; it is needed to enter the namespace"
                ) from error
        assert self._process.stderr is not None
        self._said.follow(self._process.stderr)
        try:
            if not self._said.wait_for("File:", self._patience_s):
                raise self._trouble(dumpcap)
            if not self._sentinel("start"):
                raise CaptureError(f"capture of {self.interface}: the first sentinel was not seen{self._said.last()}")
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> CaptureResult:
        """End the capture and judge it; safe to call again."""
        if self.result is not None:
            return self.result
        process = self._process
        assert process is not None, "the capture was not started"
        reasons = []
        if not self._sentinel("end"):
            if self._said.wait_for_end(0.0):
                reasons.append(f"dumpcap ended before it was asked to{self._said.last()}")
            reasons.append("the last sentinel is not in the file, so the capture may be incomplete")
        self._tell("stop")
        try:
            status = process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            reasons.append("dumpcap did not stop and was killed")
        else:
            if status and not reasons:
                reasons.append(f"dumpcap ended with status {status}{self._said.last()}")
        self._kill()
        self.result = self._judge(reasons)
        return self.result

    # --- inside ---

    def _command(self, dumpcap: str) -> list[str]:
        # To stdout, because dumpcap then hands over every batch at once, and the file is ours also under sudo.
        words = [dumpcap, "-q", "-n", "-i", self.interface, "-B", str(self._buffer_mib), "-w", "-"]
        words += ["--capture-comment", json.dumps(self._comment)]
        if self._snaplen:
            words += ["-s", str(self._snaplen)]
        if self._filter:
            sentinels = f"udp and dst host {SENTINEL_ADDRESS} and dst port {SENTINEL_PORT}"
            words += ["-f", f"({self._filter}) or ({sentinels})"]
        return words

    def _tell(self, word: str) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it is gone, which the waiting code finds out
            process.stdin.write(word.encode() + b"\n")
            process.stdin.flush()

    def _sentinel(self, label: str) -> bool:
        """Send a sentinel repeatedly until it is in the file; returns whether it arrived."""
        wanted, until_s, seen_bytes = sentinel_payload(self.token, label), time.monotonic() + self._patience_s, 0
        with self.path.open("rb") as file:
            while time.monotonic() < until_s:
                self._tell(label)
                if self._said.wait_for_end(_RESEND_S):
                    return False
                # A sentinel may lie across the end of what was read before.
                file.seek(max(0, seen_bytes - len(wanted)))
                while piece := file.read(1 << 20):
                    if wanted in piece:
                        return True
                    if len(piece) == 1 << 20:
                        file.seek(-len(wanted), os.SEEK_CUR)
                seen_bytes = file.tell()
        return False

    def _trouble(self, dumpcap: str) -> Exception:
        """Explain why dumpcap refused."""
        said = self._said.text()
        where = f"capture of {self.interface}"
        if re.search(r"permission|not permitted|privilege", said, re.IGNORECASE):
            how = _HOW.get(sys.platform, "run it as an administrator").format(dumpcap=dumpcap)
            return CaptureUnavailable(f"{where}: dumpcap is not allowed to capture here; {how}")
        if re.search(r"no such device|not up|no interface|does ?n.t exist", said, re.IGNORECASE):
            return CaptureUnavailable(f"{where}: there is no such interface, or it is down{self._said.last()}")
        return CaptureError(f"{where}: dumpcap did not start{self._said.last()}")

    def _kill(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        self._tell("kill")
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait()
        self._said.close()

    def _judge(self, reasons: list[str]) -> CaptureResult:
        """Judge the file and dumpcap's statistics."""
        found, sentinels = Walk(), 0
        if self.path.stat().st_size:
            with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                found = walk(data)
                sentinels = max(0, _count(data, self.token.encode()) - 1)  # one is in the comment
        said = _STATISTICS.findall(self._said.text())
        numbers = [] if found.dropped is None else [found.dropped]
        for _, dropped, parts in said:
            # The parts of the sum as well, in case a version leaves one of them out.
            numbers += [int(dropped), *(int(number) for number in re.findall(r":(\d+)", parts))]
        if not found.is_whole:
            reasons.append("the file ends in the middle of a block")
        if found.dropped is None:
            reasons.append("the file has no interface statistics, so drops are not known")
        if not said:
            reasons.append("dumpcap gave no statistics, so drops are not known")
        dropped_most = max(numbers, default=None)
        if dropped_most:
            reasons.append(f"{dropped_most} packets were dropped; a larger buffer_mib than {self._buffer_mib} may help")
        return CaptureResult(
            path=self.path,
            is_valid=not reasons,
            reasons=tuple(reasons),
            packets=found.packets - sentinels,
            sentinels=sentinels,
            cut_packets=found.cut_packets,
            received=found.received,
            dropped=dropped_most,
            interface=self.interface,
            token=self.token,
        )


def check(interface: str = "lo", *, netns: str | Sequence[str] | None = None) -> None:
    """Capture one packet: ``dumpcap -D`` does not show permissions. Raises CaptureUnavailable, CaptureError."""
    with tempfile.TemporaryDirectory(prefix="cloudbench-capture-") as folder:
        # Nothing but the sentinels, so that a busy interface does no harm.
        only = f"udp and dst host {SENTINEL_ADDRESS}"
        with Capture(interface, Path(folder, "check.pcapng"), netns=netns, filter=only, buffer_mib=2) as capture:
            pass
        assert capture.result is not None
        if not capture.result.is_valid:
            raise CaptureError(f"capture of {interface}: {'; '.join(capture.result.reasons)}")


def _count(data: mmap.mmap, token: bytes) -> int:
    found, at = 0, data.find(token)
    while at >= 0:
        found, at = found + 1, data.find(token, at + 1)
    return found


class _Said:
    """stderr of the guard and dumpcap, read by a thread so that they never block."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._news: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._ended = False
        self._thread: threading.Thread | None = None
        self._stream: IO[bytes] | None = None

    def follow(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._lines.append(line.decode(errors="replace").strip())
            self._news.put(self._lines[-1])
        self._news.put(None)

    def wait_for(self, word: str, patience_s: float) -> bool:
        """Wait for a line with ``word``; returns False if none comes."""
        until_s = time.monotonic() + patience_s
        while not self._ended and (left_s := until_s - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                line = self._news.get(timeout=left_s)
                self._ended = line is None
                if line is not None and word in line:
                    return True
        return False

    def wait_for_end(self, wait_s: float) -> bool:
        """Wait until stderr is closed, at most that long; returns whether it is."""
        until_s = time.monotonic() + wait_s
        while not self._ended and (left_s := until_s - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._ended = self._news.get(timeout=left_s) is None
        return self._ended

    def text(self) -> str:
        return "\n".join(self._lines)

    def last(self) -> str:
        """The last line, to append to a message."""
        lines = [line for line in self._lines if line and not line.startswith(("Capturing on", "File:", "Running as"))]
        return f": {lines[-1]}" if lines else ""

    def close(self) -> None:
        if self._thread is not None and self._stream is not None:
            self._thread.join()
            self._stream.close()
