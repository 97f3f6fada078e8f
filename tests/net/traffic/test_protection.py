"""Encryption of everything in a capture: yes, no and unknown, each from a capture with that truth."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from pathlib import Path
from random import Random

import pytest

from pytest_cloudbench.net.traffic import Analysis, analyze
from pytest_cloudbench.net.traffic.protection import is_text

from . import craft
from .test_handshake import HELLO, server_hello

CAPTURES = Path(__file__).resolve().parents[3] / "fixtures" / "captures"


@pytest.mark.parametrize(
    ("name", "verdict", "what"),
    [
        ("tls12", "yes", "TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("tls13", "yes", "TLSv1.3 TLS_AES_256_GCM_SHA384"),
        ("canary", "no", "10.9.0.2:9000"),
        ("upload-ipv4", "unknown", "10.9.0.2:9000"),
    ],
)
def test_a_capture_of_known_protection_is_judged(name: str, verdict: str, what: str) -> None:
    encryption = analyze((CAPTURES / f"{name}.pcapng").read_bytes()).summary()["encryption"]
    assert encryption["verdict"] == verdict
    assert [*encryption["encrypted"], *encryption["plain"], *encryption["unknown"]] == [what]


def test_a_request_in_plain_http_is_found() -> None:
    request = b"PUT /secret.txt HTTP/1.1\r\nhost: example.org\r\n\r\n"
    encryption = analyze(craft.pcap(craft.records(craft.connection(request)))).summary()["encryption"]
    assert (encryption["verdict"], len(encryption["plain"])) == ("no", 1)


def test_a_binary_protocol_of_its_own_is_unknown() -> None:
    payload = Random(3).randbytes(500)
    encryption = analyze(craft.pcap(craft.records(craft.connection(payload)))).summary()["encryption"]
    assert (encryption["verdict"], encryption["plain"], len(encryption["unknown"])) == ("unknown", [], 1)


def test_flows_beyond_those_that_are_read_are_unknown_and_named_up_to_a_limit() -> None:
    greeting = b"a greeting in plain text"
    ports = [443] * 5000 + list(range(5001, 5021))
    packets = [
        (craft.START_NS + index, craft.udp(craft.CLIENT, 10_000 + index, craft.SERVER, port, greeting))
        for index, port in enumerate(ports)
    ]
    encryption = analyze(craft.pcap(packets)).summary()["encryption"]
    assert (encryption["verdict"], encryption["plain"]) == ("no", [f"{craft.SERVER}:443"])
    assert encryption["unknown"] == [f"{craft.SERVER}:{port}" for port in range(5001, 5009)]


UNENCRYPTED = (
    *range(0x0000, 0x0003), *range(0x002C, 0x002F), 0x003B, 0x00B0, 0x00B1, 0x00B4, 0x00B5, 0x00B8, 0x00B9,
    0xC001, 0xC006, 0xC00B, 0xC010, 0xC015, *range(0xC039, 0xC03C), 0xC0B4, 0xC0B5,
)  # fmt: skip


@pytest.mark.parametrize("number", UNENCRYPTED, ids="{:04X}".format)
def test_tls_with_a_cipher_suite_that_encrypts_nothing_is_plain(number: int) -> None:
    encryption = analyze_tls(HELLO, server_hello(b"", number)).summary()["encryption"]
    assert (encryption["verdict"], len(encryption["plain"]), encryption["encrypted"]) == ("no", 1, {})


@pytest.mark.parametrize("number", [0x1301, 0xC02B, 0xC0B3, 0xC0B6, 0x0003, 0x009C])
def test_tls_with_a_cipher_suite_that_encrypts_is_not_plain(number: int) -> None:
    encryption = analyze_tls(HELLO, server_hello(b"", number)).summary()["encryption"]
    assert (encryption["verdict"], encryption["plain"], len(encryption["encrypted"])) == ("yes", [], 1)


def analyze_tls(up: bytes, down: bytes, canary: bytes | None = None) -> Analysis:
    """Analyze a connection in which each side sends bytes of TLS."""
    *opening, last = craft.connection(up, mss=1400)[:-3]
    answer = craft.Segment(last.at_ns + 1, False, last.seq, last.ack, 24, down)
    return analyze(craft.pcapng(craft.records([*opening, last, answer])), canary=canary)


CONNECT = b"CONNECT files.example.com:443 HTTP/1.1\r\nhost: files.example.com:443\r\nuser-agent: sync/1.0\r\n\r\n"
STREAM = b"<stream:stream to='example.com' xmlns='jabber:client' version='1.0'><starttls xmlns='urn:ietf:xmpp-tls'/>"
GREETING = b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"
PUT = b"PUT /capture.pcap HTTP/1.1\r\nhost: example.com\r\ncontent-length: 2000\r\n\r\n"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize(
    ("up", "verdict"),
    [
        (CONNECT + HELLO, "unknown"), (CONNECT + Random(5).randbytes(500), "unknown"), (CONNECT, "unknown"),
        (STREAM + HELLO, "unknown"), (b"EHLO sync\r\nSTARTTLS\r\n" + HELLO, "unknown"), (GREETING, "unknown"),
        (STREAM, "no"), (PUT + Random(5).randbytes(100) + HELLO, "no"), (HTTP2 + bytes(200), "no"),
    ],
)  # fmt: skip
def test_text_that_leads_to_encryption_or_through_a_proxy_is_not_plain(up: bytes, verdict: str) -> None:
    encryption = analyze_tls(up, b"\x05\x00").summary()["encryption"]
    assert encryption["verdict"] == verdict


@pytest.mark.parametrize(("number", "verdict"), [(0xC006, "yes"), (0xC02B, "no")])
def test_an_encoded_text_is_found_in_tls_that_encrypts_nothing(number: int, verdict: str) -> None:
    text = b"secret-canary-4711"
    record = b"\x17\x03\x03\x00\x80" + gzip.compress(b64encode(text)).ljust(128)
    canary = analyze_tls(HELLO + record, server_hello(b"", number), text).canary
    assert canary is not None
    assert canary.verdict == verdict


@pytest.mark.parametrize(
    ("request_line", "text"),
    [
        ("PUT /Quarterly%20report.docx HTTP/1.1", "Quarterly report"),
        ("PUT /?name=Quarterly+report HTTP/1.1", "Quarterly report"),
        (json.dumps({"name": "Überblick"}), "Überblick"),
        ("PUT /%c3%9cberblick.docx HTTP/1.1", "Überblick"),
    ],
)
def test_a_text_that_is_escaped_in_part_is_found(request_line: str, text: str) -> None:
    request = craft.records(craft.connection(request_line.encode() + b"\r\n\r\n"))
    canary = analyze(craft.pcap(request), canary=text.encode()).canary
    assert canary is not None
    assert canary.verdict == "yes"


def test_text_is_told_from_bytes() -> None:
    assert is_text(b"USER somebody\r\n")
    assert not is_text(Random(1).randbytes(64))
    assert not is_text(b"short")


def test_a_text_that_is_only_encoded_is_found_with_its_form() -> None:
    text = b"secret-canary-4711"
    request = b"POST / HTTP/1.1\r\n\r\n" + gzip.compress(b64encode(b"xy" + text))
    canary = analyze(craft.pcap(craft.records(craft.connection(request))), canary=text).canary
    assert canary is not None
    assert (canary.verdict, [item.form for item in canary.found]) == ("yes", ["gzip, base64"])
    other = analyze(craft.pcap(craft.records(craft.connection(request))), canary=b"another-canary").canary
    assert other is not None
    assert (other.verdict, other.found) == ("no", ())
