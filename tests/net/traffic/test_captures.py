"""Real captures: equal to tshark frame by frame, and to the traffic that tools/make_captures.py put into them."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from pytest_cloudbench.data import read_flow_rules
from pytest_cloudbench.net.traffic import Analysis, analyze, metrics, parse_rules
from pytest_cloudbench.net.traffic.resent import FAST, KEEP_ALIVE, OUT_OF_ORDER, RETRANSMITTED, SPURIOUS
from tests.limits import HANG_S
from tests.net.traffic import craft

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "fixtures" / "captures"
STORED: dict[str, dict[str, Any]] = json.loads((FOLDER / "tshark.json").read_text("utf-8"))["captures"]
CAPTURES = sorted(path.name for path in FOLDER.glob("*.pcap*"))
MARKS = {
    "retransmission": (RETRANSMITTED, FAST, SPURIOUS), "fast_retransmission": (FAST,),
    "spurious_retransmission": (SPURIOUS,), "out_of_order": (OUT_OF_ORDER,), "keep_alive": (KEEP_ALIVE,),
}  # fmt: skip
RULES = parse_rules(read_flow_rules())


@cache
def analyze_file(name: str, canary: bytes | None = None) -> Analysis:
    return analyze((FOLDER / name).read_bytes(), source=name, rules=RULES, canary=canary)


def summarize_file(name: str) -> dict[str, Any]:
    return analyze_file(name).as_dict()


def assert_equal(analysis: Analysis, truth: dict[str, Any]) -> None:
    """Assert that an analysis equals tshark's, frame by frame."""
    result = analysis.as_dict()
    tcp = [flow for flow in analysis.table.flows if flow.is_tcp]
    assert analysis.records == truth["packets"]
    assert len(tcp) == truth["streams"]
    payload_bytes: dict[str, int] = {}
    for flow in tcp:
        for address, side in ((flow.client, flow.up), (flow.server, flow.down)):
            payload_bytes[str(address)] = payload_bytes.get(str(address), 0) + side.payload_bytes
    assert payload_bytes == truth["payload_bytes"]
    assert (result["syns"], result["syn_acks"]) == (truth["syns"], truth["syn_acks"])
    for mark, kinds in MARKS.items():
        rows = np.isin(analysis.table.verdicts, kinds)
        assert analysis.table.packets.number[rows].tolist() == truth[mark], mark
    assert result["retransmissions"] == len(truth["retransmission"])
    stored = [flow.initial_rtt_ns / 1e9 for flow in tcp if flow.initial_rtt_ns is not None]
    assert sorted(set(stored)) == pytest.approx(truth["initial_rtt_s"])


def test_every_capture_has_stored_answers() -> None:
    assert sorted(STORED) == CAPTURES
    assert sum(len(truth["retransmission"]) for truth in STORED.values()) > 20, "there is something to find"


@pytest.mark.parametrize("name", CAPTURES)
def test_equal_to_stored_tshark_answers(name: str) -> None:
    assert_equal(analyze_file(name), STORED[name])


def load_make_captures() -> Any:
    specification = importlib.util.spec_from_file_location("make_captures", ROOT / "tools" / "make_captures.py")
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_equal_to_the_installed_tshark() -> None:
    tool = load_make_captures()
    for name in CAPTURES:
        assert_equal(analyze_file(name), tool.ask_tshark(FOLDER / name))


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [
        ("upload-ipv4.pcapng", 100_000, 2), ("upload-ipv6.pcapng", 60_000, 2), ("download.pcap", 0, 60_002),
        ("vlan.pcap", 40_000, 2), ("offload.pcap", 200_000, 2), ("cooked.pcap", 20_000, 2), ("cooked2.pcap", 20_000, 2),
        ("nanoseconds.pcap", 20_000, 2), ("chunks.pcapng", 65_000, 10), ("reuse.pcapng", 7_000, 0),
        ("loss-up.pcapng", 150_000, 2), ("loss-heavy.pcapng", 60_000, 2), ("loss-down.pcapng", 0, 60_002),
        ("loss-syn.pcapng", 9_000, 2), ("loss-ack.pcapng", 90_000, 2),
    ],
)  # fmt: skip
def test_unique_bytes_equal_the_sent_bytes(name: str, up: int, down: int) -> None:
    summary = summarize_file(name)
    assert (summary["unique_up_bytes"], summary["unique_down_bytes"]) == (up, down)
    assert summary["payload_up_bytes"] >= up


@pytest.mark.parametrize("name", CAPTURES)
def test_verdicts_of_captures_are_as_known(name: str) -> None:
    summary = summarize_file(name)
    # Only dumpcap writes how many packets it lost; these captures lost none.
    assert summary["validity"]["verdict"] == ("valid" if name.endswith("ng") else "unknown"), summary["validity"]
    assert summary["validity"]["drops"] == (0 if name.endswith("ng") else None)
    assert summary["validity"]["sizes_known"] == (name != "offload.pcap")
    assert (summary["header_bytes"] is None) == (name == "offload.pcap")


@pytest.mark.parametrize(("name", "version"), [("tls13.pcapng", "TLSv1.3"), ("tls12.pcapng", "TLSv1.2")])
def test_tls_names_and_versions_are_read(name: str, version: str) -> None:
    (flow,) = summarize_file(name)["flows"]
    assert (flow["sni"], flow["tls_version"], flow["alpn_offered"]) == (
        "storage.example.com", version, ["h2", "http/1.1"],
    )  # fmt: skip
    assert flow["protocol"] == "tls"
    assert STORED[name]["names"] == [flow["sni"]]


def test_a_cut_hello_of_a_capture_is_unknown() -> None:
    summary = summarize_file("snaplen.pcap")
    (flow,) = summary["flows"]
    assert (flow["sni"], flow["tls_version"], flow["alpn_offered"]) == (None, None, [])
    assert summary["cut_packets"] > 0
    assert summary["payload_up_bytes"] > 20_000, "sizes are those of the wire"


def test_dns_names_a_flow_without_a_hello() -> None:
    summary = summarize_file("names.pcapng")
    flows = {flow["protocol"]: flow for flow in summary["flows"]}
    assert flows["tcp"]["name"] == "upload.example.com"
    assert summary["dns_queries"] == {"upload.example.com": 1}
    assert flows["udp"]["role"] == "dns"
    assert flows["quic"]["quic_version"] == "1"
    assert flows["quic"]["sni"] is None, "it is encrypted"
    assert flows["quic"]["dns_names"] == ["upload.example.com"]


def test_a_reset_and_a_new_syn_are_two_flows() -> None:
    flows = summarize_file("reuse.pcapng")["flows"]
    assert [flow["payload_up_bytes"] for flow in flows] == [2_000, 5_000]
    assert {flow["client_port"] for flow in flows} == {45_000}
    assert [flow["resets"] > 0 for flow in flows] == [True, True]


def test_keep_alives_are_not_retransmissions() -> None:
    (flow,) = analyze_file("keep-alive.pcapng").table.flows
    assert (flow.up.retransmissions, flow.up.keep_alives) == (0, 3)


def test_chunk_boundaries_are_found() -> None:
    table = analyze_file("chunks.pcapng").table
    assert metrics.chunks(table, table.flows[0]) == [20_000, 20_000, 20_000, 5_000]
    assert metrics.turns(table, table.flows[0]) == 4
    (flow,) = summarize_file("upload-ipv4.pcapng")["flows"]
    assert flow["chunks_bytes"] == [100_000], "one object has no boundary"


def test_a_canary_across_packets_is_found() -> None:
    text = b"CANARY-IN-PLAIN-TEXT"
    data = (FOLDER / "canary.pcapng").read_bytes()
    assert text not in data, "no packet holds all of it"
    canary = analyze_file("canary.pcapng", text).canary
    assert canary is not None
    assert canary.verdict == "yes"
    assert [(sighting.flow, sighting.up, sighting.offset_bytes) for sighting in canary.found] == [(0, True, 1000)]
    encrypted_canary = analyze_file("tls13.pcapng", text).canary
    assert encrypted_canary is not None
    assert (encrypted_canary.verdict, encrypted_canary.found) == ("no", ())
    cut_canary = analyze_file("snaplen.pcap", text).canary
    assert cut_canary is not None
    assert cut_canary.verdict == "unknown", "most of the payload is not in the file"


def test_the_chosen_client_sends_up() -> None:
    data = (FOLDER / "upload-ipv4.pcapng").read_bytes()
    assert analyze(data, client="10.9.0.1").as_dict()["payload_up_bytes"] == 100_000
    assert analyze(data, client="10.9.0.2").as_dict()["payload_down_bytes"] == 100_000


@pytest.mark.parametrize("name", ["loss-up.pcapng", "offload.pcap"])
def test_the_command_prints_the_analysis(name: str) -> None:
    command = [sys.executable, "-m", "pytest_cloudbench.commands.cli", "analyze", str(FOLDER / name), "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")
    output = json.loads(finished.stdout)
    keys = set("payload_up_bytes payload_down_bytes unique_up_bytes wire_up_bytes wire_down_bytes syns".split())
    for entry in (output, *output["flows"]):
        assert keys | {"packets", "retransmissions"} <= entry.keys()
    assert output["retransmissions"] == len(STORED[name]["retransmission"])


@pytest.mark.parametrize("every", [1, 3, 100])
def test_repeated_packets_make_the_verdict_unknown(every: int) -> None:
    single = craft.records(craft.connection(bytes(200_000)))
    packets = [
        (at_ns + 20_000 * copy, frame)
        for number, (at_ns, frame) in enumerate(single)
        for copy in range(1 + (number % every == 0))
    ]
    validity = analyze(craft.pcapng(packets)).validity
    is_reported = every < 10  # one in a hundred also occurs in real networks
    assert validity.verdict == ("unknown" if is_reported else "valid")
    assert any("packets twice" in reason for reason in validity.reasons) == is_reported


@pytest.mark.parametrize("keeps_datagrams", [True, False])
@pytest.mark.parametrize("size", [1, 7, 8, 40, 1200, 1203])
@pytest.mark.parametrize("every", [1, 3, 100])
def test_repeated_datagrams_make_the_verdict_unknown(every: int, size: int, keeps_datagrams: bool) -> None:
    """Single packets differ in one byte only, wherever it is."""
    packets = []
    for number in range(400):
        data = bytearray(size)
        data[number * 7 % size] = 1 + number % 255
        at_ns, ends = craft.START_NS + number * 100_000, [("10.0.0.1", 5000 + number % 3), ("10.0.0.2", 443)]
        source, target = ends if number % 5 else ends[::-1]
        frame = craft.udp(*source, *target, bytes(data))
        packets += [(at_ns + 20_000 * copy, frame) for copy in range(1 + (number % every == 0))]
    validity = analyze(craft.pcapng(packets), keeps_datagrams=keeps_datagrams).validity
    is_reported = every < 10
    assert validity.verdict == ("unknown" if is_reported else "valid")
    repeated = sum(number % every == 0 for number in range(400))
    reasons = (f"{repeated:,} packets repeat the previous one: the capture may hold packets twice",)
    assert validity.reasons == (reasons if is_reported else ())


@pytest.mark.parametrize(
    ("change", "is_twin"),
    [
        ({"client": "192.0.2.1", "client_port": 50_000}, True),
        ({"server": "172.17.0.2", "server_port": 8443}, True),
        ({"client_port": 50_000}, False),
        ({"client": "192.0.2.1", "seq": 7}, False),
        ({"client": "192.0.2.1", "at_ns": 2 * craft.SECOND}, False),
    ],
)
def test_connections_on_both_sides_of_a_translation_make_the_verdict_unknown(
    change: dict[str, Any], is_twin: bool
) -> None:
    """As on a router, or with containers, where the interface ``any`` shows each packet before and behind it."""
    inside = craft.connection(b"x" * 3000)
    later_ns, more = change.pop("at_ns", 20_000), change.pop("seq", 0)
    outside = [
        replace(segment, at_ns=segment.at_ns + later_ns, seq=segment.seq + more * segment.up,
                ack=segment.ack + more * (not segment.up), **change)
        for segment in inside
    ]  # fmt: skip
    both = sorted([*inside, *outside], key=lambda segment: segment.at_ns)
    validity = analyze(craft.pcapng(craft.records(both))).validity
    reasons = ("1 connection is in it twice, with other addresses (NAT)",) if is_twin else ()
    assert (validity.verdict, validity.reasons) == ("unknown" if is_twin else "valid", reasons)
    own = analyze(craft.pcapng(craft.records(both)), client=craft.CLIENT).validity
    assert own.verdict == ("unknown" if is_twin and "client" not in change else "valid")


@pytest.mark.parametrize("keeps_datagrams", [True, False])
@pytest.mark.parametrize(("is_same", "verdict"), [(True, "unknown"), (False, "valid")])
def test_quic_on_both_sides_of_a_translation_makes_the_verdict_unknown(
    is_same: bool, verdict: str, keeps_datagrams: bool
) -> None:
    packets = []
    for number, client in enumerate((craft.CLIENT, "192.0.2.1")):
        draw = Random(0 if is_same else number)
        for at_ns in range(0, 10_000_000, 1_000_000):
            datagram = (b"\xc3\0\0\0\1\x08" if not at_ns else b"\x43") + draw.randbytes(1194)
            packets.append((craft.START_NS + at_ns + number, craft.udp(client, 5000, "10.0.0.2", 443, datagram)))
    assert analyze(craft.pcapng(sorted(packets)), keeps_datagrams=keeps_datagrams).validity.verdict == verdict


@pytest.mark.parametrize("snaplen", [60, 90, 120])
def test_cut_datagrams_of_one_connection_are_not_taken_for_duplicates(snaplen: int) -> None:
    datagrams = [b"\x40" * 21 + Random(number).randbytes(1200) for number in range(100)]
    packets = [
        (craft.START_NS + number * 10_000, craft.udp("10.0.0.1", 5000, "10.0.0.2", 443, datagram))
        for number, datagram in enumerate(datagrams)
    ]
    data = craft.pcap(packets, nano=True, snaplen=snaplen)
    assert not [reason for reason in analyze(data).validity.reasons if "twice" in reason]


def test_retransmissions_are_not_taken_for_duplicates() -> None:
    for name in ("loss-heavy.pcapng", "loss-up.pcapng", "loss-down.pcapng", "keep-alive.pcapng"):
        assert not [reason for reason in analyze_file(name).validity.reasons if "twice" in reason]


@pytest.mark.parametrize(("client", "server"), [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")])
@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4, 6, 11, 12, 13, 20])
def test_a_cut_mss_option_is_unknown(cut: int, client: str, server: str) -> None:
    """The next record in the file must not be taken for payload."""
    segments = [
        replace(segment, client=client, server=server, options=b"\1\1\1\3\3\7\1\1\2\4\5\x78" * (segment.flags & 2 > 0))
        for segment in craft.connection(b"x" * 3000, mss=1400)
    ]
    data = craft.pcap(craft.records(segments), snaplen=len(segments[2].frame()) + cut)
    (flow,) = analyze(data).table.flows
    expected = 0x578 if cut >= 12 else None
    assert (flow.up.mss_bytes, flow.down.mss_bytes) == (expected, expected)
    if shutil.which("tshark"):
        command = ["tshark", "-n", "-r", "-", "-T", "fields", "-e", "tcp.options.mss_val", "-Y", "tcp.flags.syn == 1"]
        values = subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode().split()
        assert values == ([str(expected)] * 2 if expected else [])
