"""Parsers of first bytes: real hellos, truncated ones, and other bytes."""

from __future__ import annotations

import ssl
import struct
from collections import Counter
from ipaddress import ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.net.traffic import analyze
from pytest_cloudbench.net.traffic.handshake import (
    DnsMessage,
    ServerHello,
    count_dns_messages,
    parse_client_hello,
    parse_dns_message,
    parse_quic_version,
    parse_server_hello,
)
from tests.net.traffic import craft


def hello(name: str = "files.example.com", alpn: tuple[str, ...] = ("h2", "http/1.1")) -> bytes:
    """Return a client hello as OpenSSL sends it."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(list(alpn))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


HELLO = hello()


def test_a_client_hello_is_parsed() -> None:
    client_hello = parse_client_hello(HELLO + b"more")
    assert client_hello is not None
    assert (client_hello.sni, client_hello.alpn, client_hello.has_ech) == (
        "files.example.com",
        ("h2", "http/1.1"),
        False,
    )
    assert "TLSv1.3" in client_hello.versions


def test_unprintable_names_are_replaced() -> None:
    client_hello = parse_client_hello(HELLO.replace(b"files.example.com", b"files\x1b[31m\r.com  "))
    assert client_hello is not None
    assert client_hello.sni == "files\ufffd[31m\ufffd.com  "


@pytest.mark.parametrize("size", range(0, len(HELLO), 7))
def test_a_cut_hello_is_unknown(size: int) -> None:
    assert parse_client_hello(HELLO[:size]) is None


def test_a_hello_in_several_records_and_segments_is_joined() -> None:
    body = HELLO[5:]
    parts = [body[:40], body[40:100], body[100:]]
    stream = b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)
    assert parse_client_hello(stream) == parse_client_hello(HELLO)
    segments = craft.connection(stream, mss=30)
    first, second = segments[5], segments[7]
    segments[5], segments[7] = second, first  # out of order
    (facts,) = analyze(craft.pcap(craft.records(segments))).facts
    assert (facts.sni, facts.alpn) == ("files.example.com", ("h2", "http/1.1"))
    assert facts.tls_version is None, "the server did not answer"


def server_hello(extension: bytes, cipher: int = 0x1301) -> bytes:
    choice = cipher.to_bytes(2, "big") + b"\0"
    body = b"\x03\x03" + bytes(32) + b"\0" + choice + len(extension).to_bytes(2, "big") + extension
    message = b"\x02" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x03" + len(message).to_bytes(2, "big") + message


def test_the_server_hello_sets_version_and_cipher() -> None:
    new = server_hello(b"\x00\x2b\x00\x02\x03\x04")
    assert parse_server_hello(new) == ServerHello("TLSv1.3", "TLS_AES_128_GCM_SHA256")
    assert parse_server_hello(server_hello(b"")) == ServerHello("TLSv1.2", "TLS_AES_128_GCM_SHA256")
    assert all(parse_server_hello(new[:size]) is None for size in range(len(new))), "a cut one would look like TLS 1.2"


def test_quic_versions_are_recognized() -> None:
    def initial(first: int, version: int) -> bytes:
        return bytes([first]) + struct.pack(">I", version) + b"\x08" + bytes(1200)

    assert parse_quic_version(initial(0xC3, 1)) == "1"
    assert parse_quic_version(initial(0xD3, 0x6B3343CF)) == "2"
    assert parse_quic_version(initial(0xC3, 0xFF00001D)) == "draft-29"
    assert parse_quic_version(initial(0xE3, 1)) is None, "a handshake packet"
    assert parse_quic_version(initial(0x43, 1)) is None, "a short header"
    assert parse_quic_version(initial(0xC3, 0x0A0A0A0A)) is None
    assert parse_quic_version(b"") is None


def question(name: str) -> bytes:
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"


def test_dns_messages_are_parsed() -> None:
    query = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + question("a.Example.com") + b"\0\1\0\1"
    message = parse_dns_message(query)
    assert message is not None
    assert (message.name, message.is_answer, message.addresses) == ("a.example.com", False, ())
    alias = b"\xc0\x0c\0\5\0\1\0\0\0\1\0\7\4node\xc0\x0e"
    four = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + bytes([10, 1, 2, 3])
    six = b"\xc0\x0c\0\x1c\0\1\0\0\0\1\0\x10" + ip_address("2001:db8::5").packed
    answer = (
        b"\x12\x34\x81\x80\x00\x01\x00\x03" + bytes(4) + question("a.Example.com") + b"\0\1\0\1" + alias + four + six
    )
    message = parse_dns_message(answer)
    assert message is not None
    assert (message.is_answer, [str(address) for address in message.addresses]) == (True, ["10.1.2.3", "2001:db8::5"])
    assert parse_dns_message(answer[:-1]) is None
    assert parse_dns_message(query[:12] + b"\xc0\x0c" + b"\0\1\0\1") is None, "a name that points at itself"


def test_pages_are_released_while_many_messages_are_read() -> None:
    message = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + question("a.example.com") + b"\0\1\0\1"
    frames = [
        (craft.START_NS + number, craft.udp("10.0.0.1", 5000 + number % 7, "10.0.0.9", 53, message))
        for number in range(3000)
    ]
    released, data = list[int](), craft.pcap(frames, nano=True)
    analysis = analyze(data, release=released.append)
    assert analysis.dns_queries == {"a.example.com": 3000}
    assert released.count(len(data)) > 3000 // 512


def test_messages_that_differ_in_their_number_are_counted_together_unless_a_name_refers_to_it() -> None:
    header, numbers = b"\x01\x00\x00\x01" + bytes(6), (b"\1a", b"\1b", b"\0\0", b"\1a", b"\3\0", b"\3a")
    plain, referring = [question("a.example.com"), question("b.example.com")], [b"\1x\xc0\x00", b"\1y\xc0\x01"]
    for names in (plain, referring, plain + referring):
        messages = [b"\1", *(number + header + name + b"\0\1\0\1" for number in numbers for name in names)]
        counted = Counter[DnsMessage]()
        for message, count in count_dns_messages(messages):
            counted[message] += count
        singly = Counter(parsed for data in messages if (parsed := parse_dns_message(data)) is not None)
        assert [*counted.items()] == [*singly.items()]
        assert counted.total() > 0


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(HELLO)), st.binary(max_size=4))
def test_no_input_raises(data: bytes, offset: int, patch: bytes) -> None:
    broken = HELLO[:offset] + patch + HELLO[offset + len(patch) :]
    for parser in (parse_client_hello, parse_server_hello, parse_quic_version, parse_dns_message):
        parser(data)
        parser(broken)
        parser(broken + data)
    assert parse_client_hello(broken[: offset // 2]) is None
