"""What protects the flows between a client and its server, by captures with that truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_cloudbench.lab.sync.overheard import read_flows
from pytest_cloudbench.net.traffic import analyze
from tests.net.traffic import craft

CAPTURES = Path(__file__).resolve().parents[3] / "fixtures" / "captures"
SECRET = b"in the open"


def capture_flow(up: bytes, down: bytes) -> bytes:
    """Return a capture of a connection in which all that the server sends comes after all that it gets."""
    segments = craft.connection(up, mss=60_000)
    answer = replace(segments[4], data=down, flags=24)
    ends = [replace(segment, ack=segment.ack + len(down)) if segment.up else segment for segment in segments[5:]]
    ends = [segment if segment.up else replace(segment, seq=segment.seq + len(down)) for segment in ends]
    return craft.pcapng(craft.records([*segments[:4], answer, *ends]))


@pytest.mark.parametrize(
    ("ciphers", "protocol"),
    [
        ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("ECDHE-ECDSA-NULL-SHA:@SECLEVEL=0", ""),
    ],
)
def test_tls_without_encryption_protects_nothing(ciphers: str, protocol: str) -> None:
    up, down = craft.tls(ciphers, SECRET)
    assert (SECRET in up) is not bool(protocol)
    analysis = analyze(capture_flow(up, down))
    encryption = analysis.summary()["encryption"]
    assert (encryption["verdict"], [*encryption["encrypted"]]) == (("yes", [protocol]) if protocol else ("no", []))
    assert [(flow.protocol, flow.up, flow.down) for flow in read_flows(analysis)] == [(protocol, up, down)]


@pytest.mark.parametrize(
    ("name", "protocols"),
    [("tls13", {"TLSv1.3 TLS_AES_256_GCM_SHA384"}), ("canary", {""}), ("upload-ipv4", {""})],
)
def test_what_protects_the_flows_of_a_capture_is_named(name: str, protocols: set[str]) -> None:
    analysis = analyze((CAPTURES / f"{name}.pcapng").read_bytes())
    assert {flow.protocol for flow in read_flows(analysis)} == protocols
