"""What the first bytes of a flow say: TLS hellos, QUIC headers, DNS messages.

What may live here: parsers of untrusted bytes. Every length is checked, no input raises, and what is truncated is
unknown (None), never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from pytest_cloudbench.net.traffic.packets import Address

_TLS_VERSIONS = {0x0300: "SSLv3", 0x0301: "TLSv1.0", 0x0302: "TLSv1.1", 0x0303: "TLSv1.2", 0x0304: "TLSv1.3"}
_QUIC_VERSIONS = {1: "1", 0x6B3343CF: "2"}

_HANDSHAKE, _CLIENT_HELLO, _SERVER_HELLO = 22, 1, 2
_SERVER_NAME, _ALPN, _SUPPORTED_VERSIONS = 0, 16, 43
_ENCRYPTED_CLIENT_HELLO = 0xFE0D


@dataclass(frozen=True, slots=True)
class ClientHello:
    """What a client offered.

    Attributes:
        sni: the name of the server it wants. With ``has_ech`` only the outer one.
        alpn: protocols offered; in TLS 1.3 the choice itself is encrypted.
        versions: TLS versions offered.
        has_ech: whether there is an encrypted hello (or its GREASE imitation).
    """

    sni: str | None
    alpn: tuple[str, ...]
    versions: tuple[str, ...]
    has_ech: bool


@dataclass(frozen=True, slots=True)
class DnsMessage:
    """A DNS query or answer: the name that was asked for, and the addresses that were given for it."""

    name: str
    is_answer: bool
    addresses: tuple[Address, ...]


class _Short(Exception):
    """The bytes end too early. Never raised outside this module."""


class _Bytes:
    """Reads bytes from the front."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def take(self, count: int) -> bytes:
        if self.place + count > len(self.data):
            raise _Short
        self.place += count
        return self.data[self.place - count : self.place]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def part(self, width: int) -> _Bytes:
        """The bytes that follow a length of ``width`` bytes."""
        return _Bytes(self.take(self.number(width)))

    @property
    def left(self) -> int:
        return len(self.data) - self.place


def _text(data: bytes) -> str:
    """A name as text. Unprintable characters are replaced, since a terminal would interpret them."""
    text = data.decode("ascii", "replace")
    return text if text.isprintable() else "".join(each if each.isprintable() else "\ufffd" for each in text)


def _message(stream: bytes, kind: int) -> _Bytes | None:
    """The first handshake message of a TLS stream, from as many records as it spans, if it is of this kind."""
    records, message = _Bytes(stream), b""
    while True:
        head = records.take(5)
        if head[0] != _HANDSHAKE or head[1] != 3:
            return None
        message += records.take(int.from_bytes(head[3:5], "big"))
        if message[:1] and message[0] != kind:
            return None
        if len(message) >= 4 and len(message) >= 4 + (length := int.from_bytes(message[1:4], "big")):
            return _Bytes(message[4 : 4 + length])


def _extensions(body: _Bytes) -> dict[int, _Bytes]:
    if not body.left:
        return {}
    inside, found = body.part(2), dict[int, _Bytes]()
    while inside.left:
        code = inside.number(2)
        found[code] = inside.part(2)
    return found


def client_hello(stream: bytes) -> ClientHello | None:
    """The hello at the start of what a client sent; None if it is missing or incomplete."""
    try:
        body = _message(stream, _CLIENT_HELLO)
        if body is None:
            return None
        legacy = body.number(2)
        body.take(32)
        for width in (1, 2, 1):  # session, ciphers, compression
            body.part(width)
        found = _extensions(body)
        sni, alpn, versions = None, list[str](), [legacy]
        if _SERVER_NAME in found and found[_SERVER_NAME].left:
            names = found[_SERVER_NAME].part(2)
            if names.number(1) == 0:
                sni = _text(names.part(2).data).lower().rstrip(".")
        if _ALPN in found:
            names = found[_ALPN].part(2)
            while names.left:
                alpn.append(_text(names.part(1).data))
        if _SUPPORTED_VERSIONS in found:
            offered = found[_SUPPORTED_VERSIONS].part(1)
            versions = [offered.number(2) for _ in range(offered.left // 2)]
    except _Short:
        return None
    known = tuple(_TLS_VERSIONS[version] for version in versions if version in _TLS_VERSIONS)
    return ClientHello(sni, tuple(alpn), known, _ENCRYPTED_CLIENT_HELLO in found)


def server_version(stream: bytes) -> str | None:
    """The TLS version that a server chose; None if its hello is missing or incomplete.

    A truncated hello may lack ``supported_versions`` and would then look like TLS 1.2, so its version is unknown.
    """
    try:
        body = _message(stream, _SERVER_HELLO)
        if body is None:
            return None
        version = body.number(2)
        body.take(32)
        body.part(1)
        body.take(3)
        found = _extensions(body)
        if _SUPPORTED_VERSIONS in found:
            version = found[_SUPPORTED_VERSIONS].number(2)
    except _Short:
        return None
    return _TLS_VERSIONS.get(version)


def quic_version(datagram: bytes) -> str | None:
    """The QUIC version of a client's Initial packet (RFC 8999, 9000, 9369): ``1``, ``2`` or ``draft-N``; else None."""
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


def dns_message(datagram: bytes) -> DnsMessage | None:
    """A DNS message over UDP with one question; None if it is something else or incomplete."""
    try:
        body = _Bytes(datagram)
        body.take(2)
        flags, questions, answers = body.number(2), body.number(2), body.number(2)
        body.take(4)
        if questions != 1 or flags >> 11 & 15:
            return None
        name = _dns_name(body)
        body.take(4)
        addresses: list[Address] = []
        for _ in range(answers):
            _dns_name(body)
            kind, _, _ = body.number(2), body.number(2), body.number(4)
            data = body.part(2).data
            if kind == 1 and len(data) == 4:
                addresses.append(IPv4Address(data))
            elif kind == 28 and len(data) == 16:
                addresses.append(IPv6Address(data))
    except _Short:
        return None
    return DnsMessage(name, bool(flags >> 15), tuple(addresses))


def _dns_name(body: _Bytes) -> str:
    """Read a name, and move the place behind it. Pointers lead backwards only, so this ends."""
    labels: list[str] = []
    place, following = body.place, None
    for _ in range(128):
        if place >= len(body.data):
            raise _Short
        length = body.data[place]
        if length >= 0xC0:
            if place + 2 > len(body.data):
                raise _Short
            following = place + 2 if following is None else following
            target = int.from_bytes(body.data[place : place + 2], "big") & 0x3FFF
            if target >= place:
                raise _Short
            place = target
            continue
        if length > 63 or place + 1 + length > len(body.data):
            raise _Short
        if not length:
            body.place = place + 1 if following is None else following
            return ".".join(labels).lower()
        labels.append(_text(body.data[place + 1 : place + 1 + length]))
        place += 1 + length
    raise _Short
