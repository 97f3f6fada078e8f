"""Ends of a capture: our sentinels, which are not traffic, and dumpcap's statistics."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.net.capture import Capture, CaptureUnavailable, check
from pytest_cloudbench.net.capture.guard import SENTINEL_ADDRESS, SENTINEL_PORT, sentinel_payload
from pytest_cloudbench.net.traffic import Analysis, analyze
from pytest_cloudbench.net.traffic.headers import SENTINEL
from pytest_cloudbench.net.traffic.headers import SENTINEL_ADDRESS as ADDRESS_NUMBER
from tests.limits import HANG_S
from tests.net.traffic import craft
from tests.net.traffic.craft import SECOND, START_NS, Record

TOKEN = "0123456789abcdef"
COMMENT = json.dumps({"cloudbench_capture": 1, "sentinel": {"token": TOKEN}})
FLOW = craft.records(craft.connection(b"x" * 5000))
KILLED = "the capture was killed"
NO_STATISTICS = "it lacks the statistics with which dumpcap ends a capture"


def sentinel(label: str, at_ns: int, token: str = TOKEN) -> Record:
    return at_ns, craft.udp("10.0.0.1", 50_000, SENTINEL_ADDRESS, SENTINEL_PORT, sentinel_payload(token, label))


START, END = sentinel("start", START_NS - 9 * SECOND), sentinel("end", START_NS + 99 * SECOND)


def make_capture(packets: list[Record], *, program: str = "", comment: str = "", ends: bool = True) -> bytes:
    options = b"".join(craft.option(code, text.encode()) for code, text in ((1, comment), (4, program)) if text)
    head = craft.block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + options + bytes(4))
    body = b"".join(craft.packet(at_ns, frame) for at_ns, frame in packets)
    return head + craft.interface(resolution=9) + body + craft.statistics(received=len(packets)) * ends


def count_traffic(analysis: Analysis) -> dict[str, Any]:
    result = analysis.as_dict()
    return {
        key: result[key] for key in result if key not in ("sentinels", "format", "comments", "interfaces", "validity")
    }


def test_guard_and_reader_agree_on_sentinels() -> None:
    assert sentinel_payload(TOKEN, "end").startswith(SENTINEL)
    assert socket.inet_ntoa(struct.pack(">I", ADDRESS_NUMBER)) == SENTINEL_ADDRESS


@pytest.mark.parametrize("wrap", [make_capture, craft.pcap, lambda packets: craft.pcap(packets, order=">", nano=True)])
def test_sentinels_do_not_count(wrap: Any) -> None:
    plain, marked = analyze(wrap(FLOW)), analyze(wrap([START, START, *FLOW, END]))
    assert count_traffic(marked) == count_traffic(plain)
    assert (marked.sentinels, plain.sentinels) == (3, 0)
    assert marked.validity == plain.validity


def test_packets_similar_to_sentinels_count() -> None:
    others = [
        (START_NS, craft.udp("10.0.0.1", 50_000, SENTINEL_ADDRESS, SENTINEL_PORT, b"something else entirely")),
        (START_NS, craft.udp("10.0.0.1", 50_000, "10.0.0.9", SENTINEL_PORT, sentinel_payload(TOKEN, "start"))),
    ]
    analysis = analyze(make_capture([*others, *FLOW]))
    assert (analysis.sentinels, len(analysis.table.flows), analysis.records) == (0, 3, len(FLOW) + 2)


def test_truncated_sentinels_are_recognized() -> None:
    for snaplen in (50, 70, 42):
        analysis = analyze(craft.pcap([START, *FLOW, END], snaplen=snaplen))
        assert (analysis.sentinels, analysis.records) == (2, len(FLOW))


@pytest.mark.parametrize(
    ("packets", "is_whole"),
    [
        ([START, *FLOW, END], True),
        ([START, *FLOW], False),
        ([START], False),
        ([*FLOW, sentinel("end", START_NS, "f" * 16)], False),
    ],
)
def test_a_missing_last_sentinel_makes_invalid(packets: list[Record], is_whole: bool) -> None:
    analysis = analyze(make_capture(packets, comment=COMMENT))
    assert analysis.validity.verdict == ("valid" if is_whole else "invalid")
    assert any(KILLED in reason for reason in analysis.validity.reasons) != is_whole


@pytest.mark.parametrize(
    ("program", "ends", "verdict"),
    [
        ("Dumpcap (Wireshark) 4.0.17", True, "valid"), ("Dumpcap (Wireshark) 4.0.17", False, "invalid"),
        ("Mergecap (Wireshark) 4.0.17", False, "unknown"), ("", False, "unknown"), ("", True, "valid"),
    ],
)  # fmt: skip
def test_missing_dumpcap_statistics_make_invalid(program: str, ends: bool, verdict: str) -> None:
    validity = analyze(make_capture(FLOW, program=program, ends=ends)).validity
    assert validity.verdict == verdict
    assert any(NO_STATISTICS in reason for reason in validity.reasons) == (verdict == "invalid")


def test_each_section_needs_statistics() -> None:
    good, bad = (make_capture(FLOW, program="Dumpcap 4", ends=ends) for ends in (True, False))
    assert analyze(good + make_capture(FLOW)).validity.verdict == "valid"
    for data in (good + bad, bad + good, bad + bad):
        assert analyze(data).validity.verdict == "invalid"


def find_loopback() -> str:
    name = "lo" if sys.platform == "linux" else "lo0"
    try:
        check(name)
    except CaptureUnavailable as error:
        pytest.skip(str(error))
    return name


@pytest.mark.skipif(sys.platform != "linux", reason="finds dumpcap in /proc")
def test_a_killed_dumpcap_makes_invalid(tmp_path: Path) -> None:
    with Capture(find_loopback(), tmp_path / "killed.pcapng", filter="udp port 1") as capture:
        capture._patience_s = 0.5
        assert capture._process is not None
        children = Path(f"/proc/{capture._process.pid}/task/{capture._process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        capture._error_output.wait_for_end(5.0)
    validity = analyze((tmp_path / "killed.pcapng").read_bytes()).validity
    assert validity.verdict == "invalid"
    assert any(KILLED in reason for reason in validity.reasons)


def test_a_properly_ended_capture_is_valid(tmp_path: Path) -> None:
    with Capture(find_loopback(), tmp_path / "whole.pcapng", filter="udp port 1") as capture:
        pass
    assert capture.result is not None
    analysis = analyze((tmp_path / "whole.pcapng").read_bytes())
    assert (analysis.validity.verdict, analysis.table.flows, analysis.records) == ("valid", [], 0)
    assert analysis.sentinels >= capture.result.sentinels >= 2  # other captures of the same loopback may add theirs


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("arguments", [[], ["--json"], ["--canary", "x"]])
@pytest.mark.parametrize("packed", [False, True])
def test_the_command_reports_skipped_sentinels(tmp_path: Path, arguments: list[str], packed: bool) -> None:
    path, data = tmp_path / "marked.pcapng", make_capture([START, *FLOW, END], comment=COMMENT)
    path.write_bytes(gzip.compress(data) if packed else data)
    command = [sys.executable, "-m", "pytest_cloudbench.commands.cli", "analyze", str(path), *arguments]
    output = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True).stdout
    if "--json" in arguments:
        assert json.loads(output)["sentinels"] == 2
    else:
        assert "2 sentinels of this program" in output
