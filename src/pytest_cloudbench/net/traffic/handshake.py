"""Parsers of the first bytes of a flow: TLS hellos, QUIC headers and DNS messages.

The bytes are untrusted. Every length is checked, no input raises, and truncated data gives None and never a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from pytest_cloudbench.net.traffic.packets import Address

_TLS_VERSIONS = {0x0300: "SSLv3", 0x0301: "TLSv1.0", 0x0302: "TLSv1.1", 0x0303: "TLSv1.2", 0x0304: "TLSv1.3"}
_QUIC_VERSIONS = {1: "1", 0x6B3343CF: "2"}

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client that speaks HTTP/2 without TLS and without asking before (RFC 9113, section 3.4)."""

_HANDSHAKE, _CLIENT_HELLO, _SERVER_HELLO = 22, 1, 2
_SERVER_NAME, _ALPN, _SUPPORTED_VERSIONS = 0, 16, 43
_ENCRYPTED_CLIENT_HELLO = 0xFE0D
_GREASE = 0x0A0A
"""RFC 8701: numbers that clients offer at random, so that servers do not choke on new ones."""
_CIPHERS = {
    0x1301: "TLS_AES_128_GCM_SHA256", 0x1302: "TLS_AES_256_GCM_SHA384", 0x1303: "TLS_CHACHA20_POLY1305_SHA256",
    0xC02B: "ECDHE-ECDSA-AES128-GCM-SHA256", 0xC02C: "ECDHE-ECDSA-AES256-GCM-SHA384",
    0xC02F: "ECDHE-RSA-AES128-GCM-SHA256", 0xC030: "ECDHE-RSA-AES256-GCM-SHA384",
    0xCCA8: "ECDHE-RSA-CHACHA20-POLY1305", 0xCCA9: "ECDHE-ECDSA-CHACHA20-POLY1305",
    0xC009: "ECDHE-ECDSA-AES128-SHA", 0xC00A: "ECDHE-ECDSA-AES256-SHA", 0xC013: "ECDHE-RSA-AES128-SHA",
    0xC014: "ECDHE-RSA-AES256-SHA", 0xC023: "ECDHE-ECDSA-AES128-SHA256", 0xC024: "ECDHE-ECDSA-AES256-SHA384",
    0xC027: "ECDHE-RSA-AES128-SHA256", 0xC028: "ECDHE-RSA-AES256-SHA384", 0x009C: "AES128-GCM-SHA256",
    0x009D: "AES256-GCM-SHA384", 0x002F: "AES128-SHA", 0x0035: "AES256-SHA", 0x000A: "DES-CBC3-SHA",
    0x0005: "RC4-SHA",
}  # fmt: skip
"""Names of usual cipher suites (IANA's numbers; OpenSSL's names below TLS 1.3)."""
_NULL_CIPHERS = {
    0x0000: "NULL", 0x0001: "NULL-MD5", 0x0002: "NULL-SHA", 0x003B: "NULL-SHA256",
    0x002C: "PSK-NULL-SHA", 0x00B0: "PSK-NULL-SHA256", 0x00B1: "PSK-NULL-SHA384",
    0x002D: "DHE-PSK-NULL-SHA", 0x00B4: "DHE-PSK-NULL-SHA256", 0x00B5: "DHE-PSK-NULL-SHA384",
    0x002E: "RSA-PSK-NULL-SHA", 0x00B8: "RSA-PSK-NULL-SHA256", 0x00B9: "RSA-PSK-NULL-SHA384",
    0xC001: "ECDH-ECDSA-NULL-SHA", 0xC006: "ECDHE-ECDSA-NULL-SHA", 0xC00B: "ECDH-RSA-NULL-SHA",
    0xC010: "ECDHE-RSA-NULL-SHA", 0xC015: "AECDH-NULL-SHA", 0xC039: "ECDHE-PSK-NULL-SHA",
    0xC03A: "ECDHE-PSK-NULL-SHA256", 0xC03B: "ECDHE-PSK-NULL-SHA384",
    0xC0B4: "TLS_SHA256_SHA256", 0xC0B5: "TLS_SHA384_SHA384",
}  # fmt: skip
"""Names of all cipher suites at IANA that encrypt nothing. The last two are for TLS 1.3 (RFC 9150)."""
_NULL_NAMES = frozenset(_NULL_CIPHERS.values())


class ClientHello(NamedTuple):
    """The contents of a client's TLS hello.

    Attributes:
        sni: the requested server name, only the outer one with ``has_ech``.
        alpn: protocols offered. In TLS 1.3 the choice is encrypted.
        versions: TLS versions offered.
        has_ech: whether there is an encrypted hello, or its GREASE imitation.
        ciphers: cipher suites offered, by name or number, without GREASE.
    """

    sni: str | None
    alpn: tuple[str, ...]
    versions: tuple[str, ...]
    has_ech: bool
    ciphers: tuple[str, ...] = ()


class ServerHello(NamedTuple):
    """The choice in a server's TLS hello.

    Attributes:
        version: TLS version, None if it is unknown.
        cipher: cipher suite, by name, or by number if this package does not know its name.
    """

    version: str | None
    cipher: str

    @property
    def is_plain(self) -> bool:
        """True if the connection is not encrypted."""
        return is_null_cipher(self.cipher)


class DnsMessage(NamedTuple):
    """A DNS query or answer, with the requested name and its addresses."""

    name: str
    is_answer: bool
    addresses: tuple[Address, ...]


class _TruncatedError(Exception):
    """The bytes end too early. Never raised outside this module."""


class _ByteReader:
    """A reader of bytes that raises if they end too early."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def read_bytes(self, count: int) -> bytes:
        if self.position + count > len(self.data):
            raise _TruncatedError
        self.position += count
        return self.data[self.position - count : self.position]

    def read_number(self, width: int) -> int:
        return int.from_bytes(self.read_bytes(width), "big")

    def read_part(self, width: int) -> _ByteReader:
        """Read a length of ``width`` bytes, and return the bytes that follow it."""
        return _ByteReader(self.read_bytes(self.read_number(width)))

    @property
    def remaining(self) -> int:
        return len(self.data) - self.position


def _decode_name(data: bytes) -> str:
    """Decode a name, and replace unprintable characters, which a terminal would interpret."""
    text = data.decode("ascii", "replace")
    return (
        text
        if text.isprintable()
        else "".join(character if character.isprintable() else "\ufffd" for character in text)
    )


def _read_message(stream: bytes, kind: int) -> _ByteReader | None:
    """Return the first handshake message of a TLS stream, from all records it spans, if it is of this kind."""
    records, message = _ByteReader(stream), b""
    while True:
        head = records.read_bytes(5)
        if head[0] != _HANDSHAKE or head[1] != 3:
            return None
        message += records.read_bytes(int.from_bytes(head[3:5], "big"))
        if message[:1] and message[0] != kind:
            return None
        if len(message) >= 4 and len(message) >= 4 + (length := int.from_bytes(message[1:4], "big")):
            return _ByteReader(message[4 : 4 + length])


def _read_extensions(body: _ByteReader) -> dict[int, _ByteReader]:
    if not body.remaining:
        return {}
    block, extensions = body.read_part(2), dict[int, _ByteReader]()
    while block.remaining:
        code = block.read_number(2)
        extensions[code] = block.read_part(2)
    return extensions


def parse_client_hello(stream: bytes) -> ClientHello | None:
    """Return the hello at the start of a client's stream, or None if it is missing or incomplete."""
    try:
        body = _read_message(stream, _CLIENT_HELLO)
        if body is None:
            return None
        legacy_version = body.read_number(2)
        body.read_bytes(32)
        body.read_part(1)  # session
        suites = body.read_part(2)
        ciphers = [suites.read_number(2) for _ in range(suites.remaining // 2)]
        body.read_part(1)  # compression
        extensions = _read_extensions(body)
        sni, alpn, versions = None, list[str](), [legacy_version]
        if _SERVER_NAME in extensions and extensions[_SERVER_NAME].remaining:
            names = extensions[_SERVER_NAME].read_part(2)
            if names.read_number(1) == 0:
                sni = _decode_name(names.read_part(2).data).lower().rstrip(".")
        if _ALPN in extensions:
            names = extensions[_ALPN].read_part(2)
            while names.remaining:
                alpn.append(_decode_name(names.read_part(1).data))
        if _SUPPORTED_VERSIONS in extensions:
            offered = extensions[_SUPPORTED_VERSIONS].read_part(1)
            versions = [offered.read_number(2) for _ in range(offered.remaining // 2)]
    except _TruncatedError:
        return None
    version_names = tuple(_TLS_VERSIONS[version] for version in versions if version in _TLS_VERSIONS)
    cipher_names = tuple(_name_cipher(cipher) for cipher in ciphers if cipher & 0x0F0F != _GREASE)
    return ClientHello(sni, tuple(alpn), version_names, _ENCRYPTED_CLIENT_HELLO in extensions, cipher_names)


def is_null_cipher(cipher: str | None) -> bool:
    """Return whether a cipher suite, by its name, encrypts nothing, and only shows that the bytes are unchanged."""
    return cipher in _NULL_NAMES


def _name_cipher(number: int) -> str:
    return _CIPHERS.get(number) or _NULL_CIPHERS.get(number) or f"0x{number:04X}"


def parse_server_hello(stream: bytes) -> ServerHello | None:
    """Return the version and cipher that a server chose, or None if its hello is missing or incomplete.

    A truncated hello may lack ``supported_versions`` and would then look like TLS 1.2.
    """
    try:
        body = _read_message(stream, _SERVER_HELLO)
        if body is None:
            return None
        version = body.read_number(2)
        body.read_bytes(32)
        body.read_part(1)
        cipher = body.read_number(2)
        body.read_bytes(1)
        extensions = _read_extensions(body)
        if _SUPPORTED_VERSIONS in extensions:
            version = extensions[_SUPPORTED_VERSIONS].read_number(2)
    except _TruncatedError:
        return None
    return ServerHello(_TLS_VERSIONS.get(version), _name_cipher(cipher))


def parse_quic_version(datagram: bytes) -> str | None:
    """Return the QUIC version of a client's Initial packet: ``1``, ``2`` or ``draft-N``, else None.

    Sources: RFC 8999, 9000 and 9369.
    """
    if len(datagram) < 7 or datagram[0] & 0xC0 != 0xC0:
        return None
    version = int.from_bytes(datagram[1:5], "big")
    is_draft = version >> 8 == 0xFF0000
    if version not in _QUIC_VERSIONS and not is_draft:
        return None
    kind = datagram[0] >> 4 & 3
    if kind != (1 if _QUIC_VERSIONS.get(version) == "2" else 0) or datagram[5] > 20:
        return None
    return f"draft-{version & 0xFF}" if is_draft else _QUIC_VERSIONS[version]


def parse_dns_message(datagram: bytes) -> DnsMessage | None:
    """Return a DNS message over UDP with one question, or None for anything else."""
    try:
        body = _ByteReader(datagram)
        body.read_bytes(2)
        flags, questions, answers = body.read_number(2), body.read_number(2), body.read_number(2)
        body.read_bytes(4)
        if questions != 1 or flags >> 11 & 15:
            return None
        name = _read_dns_name(body)
        body.read_bytes(4)
        addresses: list[Address] = []
        for _ in range(answers):
            _read_dns_name(body)
            kind, _, _ = body.read_number(2), body.read_number(2), body.read_number(4)
            data = body.read_part(2).data
            if kind == 1 and len(data) == 4:
                addresses.append(IPv4Address(data))
            elif kind == 28 and len(data) == 16:
                addresses.append(IPv6Address(data))
    except _TruncatedError:
        return None
    return DnsMessage(name, bool(flags >> 15), tuple(addresses))


def count_dns_messages(datagrams: Sequence[bytes]) -> Iterator[tuple[DnsMessage, int]]:
    """Yield each distinct DNS message in the order of first occurrence, and how often it occurs.

    Other datagrams are left out. Messages that differ only in their id count as the same, unless a name may include it.
    """
    id_bytes = 2
    counts = Counter([datagram[id_bytes:] for datagram in datagrams])
    if any(b"\xc0\x00" in datagram or b"\xc0\x01" in datagram for datagram in counts):
        counts, id_bytes = Counter(datagrams), 0  # a compressed name may point to the id and so include it
    for datagram, count in counts.items():
        message = parse_dns_message(bytes(id_bytes) + datagram)
        if message is not None:
            yield message, count


def _read_dns_name(body: _ByteReader) -> str:
    """Read a name, and move behind it. Pointers may only lead backwards, so this ends."""
    labels: list[str] = []
    position, resume_at = body.position, None
    for _ in range(128):
        if position >= len(body.data):
            raise _TruncatedError
        length = body.data[position]
        if length >= 0xC0:
            if position + 2 > len(body.data):
                raise _TruncatedError
            resume_at = position + 2 if resume_at is None else resume_at
            target = int.from_bytes(body.data[position : position + 2], "big") & 0x3FFF
            if target >= position:
                raise _TruncatedError
            position = target
            continue
        if length > 63 or position + 1 + length > len(body.data):
            raise _TruncatedError
        if not length:
            body.position = position + 1 if resume_at is None else resume_at
            return ".".join(labels).lower()
        labels.append(_decode_name(body.data[position + 1 : position + 1 + length]))
        position += 1 + length
    raise _TruncatedError
