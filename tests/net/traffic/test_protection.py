"""Encryption of everything in a capture: yes, no and unknown, each from a capture with that truth."""

from __future__ import annotations

import gzip
from base64 import b64encode
from pathlib import Path
from random import Random

import pytest

from pytest_cloudbench.net.traffic import analyze
from pytest_cloudbench.net.traffic.protection import is_text

from . import craft

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
