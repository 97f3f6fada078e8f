"""Captures of real traffic with a known truth, and every way in which a capture can be invalid.

This machine's loopback also carries the traffic of other programs, so captures of it have a filter. The tests are
skipped where nothing can be captured.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.net import capture as capture_module
from pytest_cloudbench.net.capture import (
    SENTINEL_ADDRESS,
    SENTINEL_PORT,
    Capture,
    CaptureError,
    CaptureResult,
    CaptureUnavailable,
    check,
    read_comment,
    walk,
)
from pytest_cloudbench.net.link import Link, LinkUnavailable
from pytest_cloudbench.support.clock import wall_offset_ns
from tests.net.capture.test_pcapng import pcapng
from tests.unprivileged import needs_root, run_as_nobody

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


@pytest.fixture(scope="session")
def can_capture() -> None:
    """Skip the test if nothing can be captured. The reason says what to install or which right to give."""
    try:
        check(LOOPBACK)
    except CaptureUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def port() -> Iterator[int]:
    """A port of loopback where datagrams are received and discarded."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("127.0.0.1", 0))
        yield sink.getsockname()[1]


def send(port: int, payloads: list[bytes]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for payload in payloads:
            sender.sendto(payload, ("127.0.0.1", port))


def read_datagrams(path: Path) -> list[bytes]:
    """Return the datagrams in a capture of this machine's loopback: Ethernet, IPv4 and UDP."""
    data, offset, datagrams = path.read_bytes(), 0, []
    while offset < len(data):
        kind, length = (int.from_bytes(data[offset + i : offset + i + 4], sys.byteorder) for i in (0, 4))
        if kind == 6:
            ip = data[offset + 28 + 14 : offset + 28 + int.from_bytes(data[offset + 20 : offset + 24], sys.byteorder)]
            datagrams.append(ip[(ip[0] & 15) * 4 + 8 : int.from_bytes(ip[2:4])])
        offset += length
    return datagrams


def count_other_sentinels(path: Path, token: str) -> int:
    """Count the sentinels of other captures of the same loopback. Tests run side by side."""
    return sum(data.startswith(b"cloudbench-sentinel") and token.encode() not in data for data in read_datagrams(path))


def read_own_datagrams(path: Path) -> list[bytes]:
    """Return the datagrams that are not sentinels of this capture or of any other."""
    return [data for data in read_datagrams(path) if not data.startswith(b"cloudbench-sentinel")]


def list_guard_children(capture: Capture) -> list[int]:
    """Return the pids of the guard's children. The only one is dumpcap's."""
    process = capture._process
    assert process is not None
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.usefixtures("can_capture")
def test_every_sent_byte_is_captured(tmp_path: Path, port: int) -> None:
    payloads = [bytes([number]) * (1000 + number) for number in range(100)]
    path = tmp_path / "all.pcapng"
    comment = {"run": "2026-11-20", "experiment": "test_all"}
    with Capture(LOOPBACK, path, filter=f"udp port {port}", comment=comment) as capture:
        send(port, payloads)
    result = capture.result
    assert result is not None
    assert (result.is_valid, result.reasons) == (True, ())
    other_sentinels = count_other_sentinels(path, result.token)
    assert (result.packets - other_sentinels, result.dropped, result.cut_packets) == (100, 0, 0)
    assert result.received == result.packets + result.sentinels
    sentinels = [data for data in read_datagrams(path) if result.token.encode() in data]
    assert read_own_datagrams(path) == payloads
    assert len(sentinels) == result.sentinels >= 2
    metadata = read_comment(walk(path.read_bytes()).comments)
    assert comment.items() <= metadata.items()
    assert metadata["sentinel"] == {"address": SENTINEL_ADDRESS, "port": SENTINEL_PORT, "token": result.token}


@pytest.mark.usefixtures("can_capture")
def test_first_and_last_datagram_are_always_captured(tmp_path: Path, port: int) -> None:
    for number in range(2):
        path = tmp_path / f"{number}.pcapng"
        with Capture(LOOPBACK, path, filter=f"udp port {port}") as capture:
            send(port, [b"first", b"last"])
        assert capture.result is not None
        assert read_own_datagrams(path) == [b"first", b"last"]


@pytest.mark.usefixtures("can_capture")
@pytest.mark.parametrize("snaplen", [64, 100])
def test_a_snaplen_cuts_packets_and_reports_it(tmp_path: Path, port: int, snaplen: int) -> None:
    path = tmp_path / "cut.pcapng"
    with Capture(LOOPBACK, path, filter=f"udp port {port}", snaplen=snaplen) as capture:
        send(port, [b"x" * 1000, b"y"])
    assert capture.result is not None
    assert capture.result.is_valid
    assert (capture.result.packets - count_other_sentinels(path, capture.token), capture.result.cut_packets) == (2, 1)


@pytest.mark.usefixtures("can_capture")
@pytest.mark.parametrize(("set_s", "reason"), [(0.0, ""), (0.4, "set by +0.4 s"), (-3600.0, "set by -3.6e+03 s")])
def test_a_clock_that_is_set_makes_a_capture_invalid(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch, set_s: float, reason: str
) -> None:
    with Capture(LOOPBACK, tmp_path / "set.pcapng", filter=f"udp port {port}") as capture:
        monkeypatch.setattr(capture_module, "wall_offset_ns", lambda: wall_offset_ns() + round(set_s * 1e9))
    assert capture.result is not None
    assert capture.result.is_valid == (not reason)
    assert [text for text in capture.result.reasons if reason not in text] == []


@pytest.mark.usefixtures("can_capture")
@pytest.mark.skipif(sys.platform != "linux", reason="finds dumpcap in /proc")
def test_drops_make_a_capture_invalid(tmp_path: Path, port: int) -> None:
    with Capture(LOOPBACK, tmp_path / "drops.pcapng", filter=f"udp port {port}", buffer_mib=1) as capture:
        (dumpcap,) = list_guard_children(capture)
        os.kill(dumpcap, signal.SIGSTOP)  # the ring fills up
        send(port, [b"x" * 60_000] * 200)
        os.kill(dumpcap, signal.SIGCONT)
    result = capture.result
    assert result is not None
    assert not result.is_valid
    assert result.dropped is not None
    assert result.dropped > 0
    assert result.packets < 200 <= result.packets + result.dropped
    assert any("dropped" in reason for reason in result.reasons)


@pytest.mark.usefixtures("can_capture")
@pytest.mark.skipif(sys.platform != "linux", reason="finds dumpcap in /proc")
@pytest.mark.parametrize(
    ("number", "word"),
    [(signal.SIGSTOP, "last sentinel"), (signal.SIGKILL, "ended before"), (signal.SIGTERM, "before")],
)
def test_an_early_end_of_dumpcap_makes_a_capture_invalid(
    tmp_path: Path, port: int, number: signal.Signals, word: str
) -> None:
    with Capture(LOOPBACK, tmp_path / "ended.pcapng", filter=f"udp port {port}") as capture:
        capture._patience_s = 0.5  # it is ready now
        send(port, [b"x"])
        (dumpcap,) = list_guard_children(capture)
        descriptor = os.pidfd_open(dumpcap)
        os.kill(dumpcap, number)
        if number != signal.SIGSTOP:
            capture._error_output.wait_for_end(5.0)
    os.close(descriptor)
    assert capture.result is not None
    assert not capture.result.is_valid
    assert any(word in reason for reason in capture.result.reasons), capture.result.reasons


@pytest.mark.usefixtures("can_capture")
@pytest.mark.skipif(sys.platform != "linux", reason="finds dumpcap in /proc")
def test_dumpcap_ends_with_its_owner(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom pytest_cloudbench.net.capture import Capture\n"
        "capture = Capture(sys.argv[1], sys.argv[2]).__enter__()\nguard = capture._process.pid\n"
        "print(guard, Path(f'/proc/{guard}/task/{guard}/children').read_text(), flush=True)\ninput()"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src")}
    words = [sys.executable, "-c", script, LOOPBACK, str(tmp_path / "left.pcapng")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, env=environment, **pipes) as owner:
        assert owner.stdout is not None
        descriptors = [os.pidfd_open(int(pid)) for pid in owner.stdout.readline().split()]
        assert len(descriptors) == 2
        owner.kill()
    for descriptor in descriptors:
        assert select.select([descriptor], (), (), 10.0)[0]
        os.close(descriptor)


def judge_capture(tmp_path: Path, data: bytes, output: str) -> CaptureResult:
    """Return the result of a capture with this file and this output of dumpcap."""
    capture = Capture("lo", tmp_path / "judged.pcapng")
    capture.path.write_bytes(data.replace(b"TOKEN-OF-SIXTEEN", capture.token.encode()))
    capture._error_output._lines = output.splitlines()
    return capture._judge_file([])


STATISTICS_LINE = "Packets received/dropped on interface 'lo': 3/{} (pcap:{}/dumpcap:0/flushed:0/ps_ifdrop:0) (100.0%)"
PACKETS: list[tuple[bytes, int]] = [(b"x", 0), (b" TOKEN-OF-SIXTEEN start", 0), (b" TOKEN-OF-SIXTEEN end", 0)]


@pytest.mark.parametrize(
    ("data", "output", "word"),
    [
        (pcapng("<", PACKETS, (3, 0), "TOKEN-OF-SIXTEEN"), STATISTICS_LINE.format(0, 0), ""),
        (pcapng("<", PACKETS, (3, 2), "TOKEN-OF-SIXTEEN"), STATISTICS_LINE.format(0, 0), "2 packets were dropped"),
        (pcapng("<", PACKETS, (3, 0), "TOKEN-OF-SIXTEEN"), STATISTICS_LINE.format(4, 4), "4 packets were dropped"),
        (pcapng("<", PACKETS, None, "TOKEN-OF-SIXTEEN"), STATISTICS_LINE.format(0, 0), "no interface statistics"),
        (pcapng("<", PACKETS, (3, 0), "TOKEN-OF-SIXTEEN"), "", "no statistics"),
        (pcapng("<", PACKETS, (3, 0), "TOKEN-OF-SIXTEEN")[:-1], STATISTICS_LINE.format(0, 0), "middle of a block"),
        (b"", STATISTICS_LINE.format(0, 0), "middle of a block"),
    ],
    ids=["valid", "drops-file", "drops-said", "no-statistics", "nothing-said", "cut", "empty"],
)
def test_only_a_provably_complete_capture_is_valid(tmp_path: Path, data: bytes, output: str, word: str) -> None:
    result = judge_capture(tmp_path, data, output)
    if word:
        assert not result.is_valid
        assert any(word in reason for reason in result.reasons), result.reasons
    else:
        assert (result.is_valid, result.packets, result.sentinels, result.dropped) == (True, 1, 2, 0)


@pytest.mark.skipif(shutil.which("dumpcap") is None, reason="needs dumpcap (wireshark-common)")
def test_a_missing_interface_is_named(tmp_path: Path) -> None:
    with pytest.raises((CaptureUnavailable, CaptureError), match="nosuch0"), Capture("nosuch0", tmp_path / "x.pcapng"):
        pytest.fail("captured")


@pytest.mark.usefixtures("can_capture")
@pytest.mark.skipif(sys.platform != "linux", reason="finds dumpcap in /proc")
@pytest.mark.parametrize(("small_buffers", "is_refused"), [(1, False), (2, False), (3, True)])
def test_check_takes_a_larger_buffer_after_drops(
    monkeypatch: pytest.MonkeyPatch, small_buffers: int, is_refused: bool
) -> None:
    """A busy interface overflows the first buffers."""
    buffers_mib: list[int] = []

    class Overflowed(Capture):
        def __exit__(self, *error: Any) -> None:
            buffers_mib.append(self._buffer_mib)
            if len(buffers_mib) <= small_buffers:
                (dumpcap,) = list_guard_children(self)
                os.kill(dumpcap, signal.SIGSTOP)
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
                    for _ in range(self._buffer_mib * 40):
                        sender.sendto(b"x" * 60_000, (SENTINEL_ADDRESS, SENTINEL_PORT))
                os.kill(dumpcap, signal.SIGCONT)
            super().__exit__(*error)

    monkeypatch.setattr(capture_module, "Capture", Overflowed)
    if is_refused:
        with pytest.raises(CaptureError, match="were dropped"):
            check()
    else:
        check()
    assert buffers_mib == [2, 16, 64][: small_buffers + 1]


def test_missing_dumpcap_error_advises_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CaptureUnavailable, match="install"):
        check()


@needs_root
@pytest.mark.skipif(not (shutil.which("dumpcap") and shutil.which("setcap")), reason="needs dumpcap and setcap")
def test_missing_capture_rights_error_names_working_command() -> None:
    script = (
        "from pytest_cloudbench.net.capture import CaptureUnavailable, check\n"
        "try: check()\nexcept CaptureUnavailable as error: print(error)\nelse: print('captured')"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        copy = shutil.copy(shutil.which("dumpcap") or "", folder)
        os.chmod(copy, 0o755)
        refused = run_as_nobody(script, path=folder)
        assert "not allowed to capture" in refused
        instruction = re.findall(r"`sudo (setcap .*?)`", refused)[0]
        assert instruction.endswith(copy)
        subprocess.run(instruction.split(), check=True)
        assert run_as_nobody(script, path=folder) == "captured\n"


@pytest.mark.usefixtures("can_capture")
@pytest.mark.skipif(sys.platform != "linux", reason="links need Linux")
@pytest.mark.parametrize("rights", ["auto", "user"])
def test_a_capture_inside_a_link_has_only_its_traffic(tmp_path: Path, rights: str) -> None:
    path = tmp_path / "link.pcapng"
    script = (
        "import socket; one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "for number in range(50): one.sendto(b'%d' % number, ('198.18.0.2', 4000))"
    )
    try:
        with Link(rights=rights, run="capture") as link:
            with Capture(link.interface, path, netns=link.enter("client", as_root=True)) as capture:
                assert link.run("client", [sys.executable, "-c", script]).returncode == 0
            stats = json.loads(json.dumps(link.stats()))
    except LinkUnavailable as error:
        pytest.skip(str(error))
    assert capture.result is not None
    assert capture.result.reasons == ()
    # Fifty datagrams, and rate-limited ICMP messages because nobody listens on the port.
    assert 50 < capture.result.packets <= 100
    if stats["directions"]:
        assert stats["directions"]["up"]["taken"] == 50  # sentinels stay on their side
