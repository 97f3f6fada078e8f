"""Captures with dumpcap, proven ready and complete. If that fails, the result explains why.

A sentinel is a small datagram that is sent on the captured interface until it appears in the file: one kind before the
measurement, and one after it. Everything between the two was captured. Every sentinel goes to ``SENTINEL_ADDRESS``,
port ``SENTINEL_PORT``, and carries the capture's token. All three are in the file's comment, so that analysis can leave
sentinels out.
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
from pytest_cloudbench.support.clock import wall_offset_ns
from pytest_cloudbench.support.wording import format_count

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
_LEAST_SNAPLEN = 96
"""A whole sentinel: at most 20 bytes of the link's header, 28 of IP and UDP, and 42 of payload."""
_CHECK_BUFFERS_MIB = (2, 16, 64)
"""Buffer sizes that ``check`` tries in turn as long as packets are dropped."""
_MOST_SET_NS, _MOST_DRIFT = 1_000_000, 0.0 if sys.platform == "linux" else 500e-6
"""How far the wall clock may move beside the monotonic one: in all, and for each second where only one is adjusted."""
_STATISTICS = re.compile(r"Packets received/dropped on interface .*?: (\d+)/(\d+) \(([^)]*)\)")
_HOW_TO_ALLOW = {
    "linux": (
        "any one of these allows it: `sudo setcap cap_net_raw+ep {dumpcap}`; on Debian and Ubuntu "
        "`sudo dpkg-reconfigure wireshark-common` (answer yes), `sudo usermod -aG wireshark $USER` and a new login; "
        "or capture inside a link (pytest_cloudbench.net.link), which needs no rights where user namespaces are allowed"
    ),
    "darwin": "install ChmodBPF, which comes with Wireshark, or run `sudo chmod o+r /dev/bpf*`",
}
_HOW_TO_INSTALL = {
    "linux": "install it (`sudo apt-get install wireshark-common`, `sudo dnf install wireshark-cli`)",
    "darwin": "install it (`brew install wireshark`)",
}


class CaptureUnavailable(UsageError):
    """Capturing is not possible here. The message says how to enable it."""


class CaptureError(CloudbenchError):
    """A capture did not become ready."""


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """A finished capture. Take measurements only from a valid one."""

    path: Path
    is_valid: bool
    reasons: tuple[str, ...]
    """Reasons why it is invalid, empty for a valid capture."""
    packets: int
    """Number of packets in the file, without sentinels."""
    sentinels: int
    cut_packets: int
    """Packets truncated in the file (``snaplen``)."""
    received: int | None
    """Packets received according to the interface statistics, with sentinels. None without statistics."""
    dropped: int | None
    """The largest drop count reported by dumpcap or the file, or None if neither reports one. On Linux's loopback each
    packet counts twice, once out and once in."""
    interface: str
    token: str
    """The token in the payload of every sentinel of this capture."""


class Capture:
    """A capture of an interface into a pcapng file while the context is open. ``result`` is set afterwards.

    Args:
        interface: the name of the interface.
        path: the file, which is replaced.
        netns: the namespace to capture in, as a name (``ip netns``) or as the command prefix that enters it
            (``link.enter("client", as_root=True)``).
        comment: metadata for the file, such as ``{"run": ..., "experiment": ...}``. No secrets.
        filter: a capture filter (pcap-filter). Sentinels always pass.
        snaplen: bytes to keep of each packet, or 0 for all. Below 96, it is 96, because sentinels have to be whole.
            Truncation keeps packet lengths, but loses the contents of TLS hellos.
        buffer_mib: size of the kernel's ring buffer. A small one drops packets.
        patience_s: seconds to wait for dumpcap and for each sentinel.

    Raises CaptureUnavailable on entering if dumpcap is missing or not allowed to capture, and CaptureError if it does
    not become ready. Leaving never raises: failures are added to the reasons of the result.
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
        self._filter, self._buffer_mib, self._patience_s = filter, buffer_mib, patience_s
        self._snaplen = max(snaplen, _LEAST_SNAPLEN) if snaplen else 0
        self._comment = {
            "cloudbench_capture": 1,
            **(comment or {}),
            "interface": interface,
            "snaplen": self._snaplen,
            "sentinel": {"address": SENTINEL_ADDRESS, "port": SENTINEL_PORT, "token": self.token},
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._error_output = _ErrorOutput()
        self._began_ns = self._wall_offset_ns = 0

    # --- its life ---

    def __enter__(self) -> Capture:
        dumpcap = shutil.which("dumpcap")
        if dumpcap is None:
            advice = _HOW_TO_INSTALL.get(sys.platform, "install Wireshark's command line tools")
            raise CaptureUnavailable(f"dumpcap is not installed: {advice}")
        with self.path.open("wb") as file:
            try:
                guard = [sys.executable, "-I", "-S", _GUARD, self.interface, self.token]
                self._process = subprocess.Popen(
                    [*self._prefix, *guard, *self._build_command(dumpcap)],
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise CaptureUnavailable(
                    f"{self._prefix[0]} is not installed, but is needed to enter the namespace"
                ) from error
        assert self._process.stderr is not None
        self._began_ns, self._wall_offset_ns = time.monotonic_ns(), wall_offset_ns()
        self._error_output.follow(self._process.stderr)
        try:
            if not self._error_output.wait_for("File:", self._patience_s):
                raise self._explain_refusal(dumpcap)
            if not self._confirm_sentinel("start"):
                raise CaptureError(
                    f"capture of {self.interface}: the first sentinel was not seen{self._error_output.last_line()}"
                )
        except BaseException:
            self._kill_dumpcap()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> CaptureResult:
        """End the capture and judge it. It is safe to call again."""
        if self.result is not None:
            return self.result
        process = self._process
        assert process is not None, "the capture was not started"
        reasons = []
        if not self._confirm_sentinel("end"):
            if self._error_output.wait_for_end(0.0):
                reasons.append(f"dumpcap ended before it was told to{self._error_output.last_line()}")
            reasons.append("the last sentinel is not in the file, so the capture may be incomplete")
        self._send_word("stop")
        try:
            status = process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            reasons.append("dumpcap did not stop and was killed")
        else:
            if status and not reasons:
                reasons.append(f"dumpcap ended with status {status}{self._error_output.last_line()}")
        self._kill_dumpcap()
        reasons += self._doubt_clock()
        self.result = self._judge_file(reasons)
        return self.result

    # --- inside ---

    def _build_command(self, dumpcap: str) -> list[str]:
        # To stdout, because dumpcap then flushes every batch at once, and this user owns the file even under sudo.
        command = [dumpcap, "-q", "-n", "-i", self.interface, "-B", str(self._buffer_mib), "-w", "-"]
        command += ["--capture-comment", json.dumps(self._comment)]
        if self._snaplen:
            command += ["-s", str(self._snaplen)]
        if self._filter:
            sentinels = f"udp and dst host {SENTINEL_ADDRESS} and dst port {SENTINEL_PORT}"
            command += ["-f", f"({self._filter}) or ({sentinels})"]
        return command

    def _send_word(self, word: str) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # dumpcap has ended, which the waiting code notices
            process.stdin.write(word.encode() + b"\n")
            process.stdin.flush()

    def _confirm_sentinel(self, label: str) -> bool:
        """Send a sentinel repeatedly until it is in the file, and return whether it arrived."""
        payload, until_s, read_bytes = sentinel_payload(self.token, label), time.monotonic() + self._patience_s, 0
        with self.path.open("rb") as file:
            while time.monotonic() < until_s:
                self._send_word(label)
                if self._error_output.wait_for_end(_RESEND_S):
                    return False
                # A sentinel may straddle the end of the previous read.
                file.seek(max(0, read_bytes - len(payload)))
                while piece := file.read(1 << 20):
                    if payload in piece:
                        return True
                    if len(piece) == 1 << 20:
                        file.seek(-len(payload), os.SEEK_CUR)
                read_bytes = file.tell()
        return False

    def _explain_refusal(self, dumpcap: str) -> Exception:
        """Return an error that explains why dumpcap did not start."""
        output = self._error_output.all_text()
        subject = f"capture of {self.interface}"
        if re.search(r"permission|not permitted|privilege", output, re.IGNORECASE):
            advice = _HOW_TO_ALLOW.get(sys.platform, "run it as an administrator").format(dumpcap=dumpcap)
            return CaptureUnavailable(f"{subject}: dumpcap is not allowed to capture here; {advice}")
        if re.search(r"no such device|not up|no interface|does ?n.t exist", output, re.IGNORECASE):
            return CaptureUnavailable(
                f"{subject}: there is no such interface, or it is down{self._error_output.last_line()}"
            )
        return CaptureError(f"{subject}: dumpcap did not start{self._error_output.last_line()}")

    def _doubt_clock(self) -> list[str]:
        """Return a reason if the wall clock, which gives packets their times, was set during the capture."""
        set_ns, took_ns = wall_offset_ns() - self._wall_offset_ns, time.monotonic_ns() - self._began_ns
        if abs(set_ns) <= _MOST_SET_NS + _MOST_DRIFT * took_ns:
            return []
        return [f"this machine's clock was set by {set_ns / 1e9:+.3g} s, or it slept: times do not fit together"]

    def _kill_dumpcap(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        self._send_word("kill")
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait()
        self._error_output.close()

    def _judge_file(self, reasons: list[str]) -> CaptureResult:
        """Judge the file and dumpcap's statistics."""
        contents, sentinels = Walk(), 0
        if self.path.stat().st_size:
            with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                contents = walk(data)
                sentinels = max(0, _count_token(data, self.token.encode()) - 1)  # one is in the comment
        statistics = _STATISTICS.findall(self._error_output.all_text())
        drop_counts = [] if contents.dropped is None else [contents.dropped]
        for _, dropped, parts in statistics:
            # Include the parts of the sum, in case a version of dumpcap leaves one of them out of the sum.
            drop_counts += [int(dropped), *(int(number) for number in re.findall(r":(\d+)", parts))]
        if not contents.is_whole:
            reasons.append("the file ends in the middle of a block")
        if contents.dropped is None:
            reasons.append("the file has no interface statistics, so drops are unknown")
        if not statistics:
            reasons.append("dumpcap gave no statistics, so drops are unknown")
        max_dropped = max(drop_counts, default=None)
        if max_dropped:
            packets = format_count(max_dropped, "packet was", "packets were")
            reasons.append(f"{packets} dropped; a larger buffer_mib than {self._buffer_mib} may help")
        return CaptureResult(
            path=self.path,
            is_valid=not reasons,
            reasons=tuple(reasons),
            packets=contents.packets - sentinels,
            sentinels=sentinels,
            cut_packets=contents.cut_packets,
            received=contents.received,
            dropped=max_dropped,
            interface=self.interface,
            token=self.token,
        )


def check(interface: str = "lo", *, netns: str | Sequence[str] | None = None) -> None:
    """Check that capturing works by doing it, because ``dumpcap -D`` succeeds without rights.

    Raises CaptureUnavailable and CaptureError.
    """
    # Only sentinels pass the filter, but until it is set, a busy interface can overflow a small buffer.
    sentinels_only = f"udp and dst host {SENTINEL_ADDRESS}"
    for buffer_mib in _CHECK_BUFFERS_MIB:
        with tempfile.TemporaryDirectory(prefix="cloudbench-capture-") as folder:
            path = Path(folder, "check.pcapng")
            with Capture(interface, path, netns=netns, filter=sentinels_only, buffer_mib=buffer_mib) as capture:
                pass
        result = capture.result
        if result is not None and not result.dropped:
            break
    assert result is not None
    if not result.is_valid:
        raise CaptureError(f"capture of {interface}: {'; '.join(result.reasons)}")


def _count_token(data: mmap.mmap, token: bytes) -> int:
    count, position = 0, data.find(token)
    while position >= 0:
        count, position = count + 1, data.find(token, position + 1)
    return count


class _ErrorOutput:
    """The stderr of the guard and dumpcap, read by a thread so that they never block."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
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
            self._queue.put(self._lines[-1])
        self._queue.put(None)

    def wait_for(self, word: str, patience_s: float) -> bool:
        """Wait for a line with ``word``, and return whether it came."""
        until_s = time.monotonic() + patience_s
        while not self._ended and (remaining_s := until_s - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                line = self._queue.get(timeout=remaining_s)
                self._ended = line is None
                if line is not None and word in line:
                    return True
        return False

    def wait_for_end(self, wait_s: float) -> bool:
        """Wait at most ``wait_s`` until stderr is closed, and return whether it is."""
        until_s = time.monotonic() + wait_s
        while not self._ended and (remaining_s := until_s - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._ended = self._queue.get(timeout=remaining_s) is None
        return self._ended

    def all_text(self) -> str:
        return "\n".join(self._lines)

    def last_line(self) -> str:
        """Return the last line in a form to append to a message."""
        lines = [line for line in self._lines if line and not line.startswith(("Capturing on", "File:", "Running as"))]
        return f": {lines[-1]}" if lines else ""

    def close(self) -> None:
        if self._thread is not None and self._stream is not None:
            self._thread.join()
            self._stream.close()
