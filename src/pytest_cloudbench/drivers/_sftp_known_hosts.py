"""The host keys that a ``known_hosts`` file trusts for a host, as OpenSSH reads it (sshd(8), SSH_KNOWN_HOSTS).

What may live here: the text of the file, without I/O. paramiko's own reader fails on markers and knows no patterns.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_PORT = 22
_MARKERS = ("@cert-authority", "@revoked")


@dataclass(frozen=True)
class KnownKeys:
    """The keys that a file has for one host.

    Attributes:
        trusted: pairs of key type and key, in the order of the file.
        revoked: keys that must not be accepted, whatever else the file says.
        has_authority: True if the file trusts a certificate authority for this host.
    """

    trusted: Sequence[tuple[str, bytes]] = ()
    revoked: frozenset[bytes] = frozenset()
    has_authority: bool = False

    @property
    def types(self) -> Sequence[str]:
        """Types of the trusted keys, each once."""
        return list(dict.fromkeys(key_type for key_type, _ in self.trusted))


def fingerprint_of(key: bytes) -> str:
    """Return a key's fingerprint as ``ssh-keygen -l`` prints it."""
    return f"SHA256:{base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip('=')}"


def known_keys(text: str, host: str, port: int) -> KnownKeys:
    """Return what the text of a ``known_hosts`` file says about a host. Lines that cannot be read are left out.

    A server on another port than 22 is ``[HOST]:PORT``. If the file has no key for this name, it is looked up as HOST.
    """
    names = [host.lower()] if port == _PORT else [f"[{host.lower()}]:{port}", host.lower()]
    lines = list(_parse_lines(text))
    revoked = frozenset(key for marker, hosts, _, key in lines if marker == "@revoked" and _matches_any(hosts, names))
    for name in names:
        host_lines = [(marker, key_type, key) for marker, hosts, key_type, key in lines if _matches(hosts, name)]
        trusted = [(key_type, key) for marker, key_type, key in host_lines if not marker]
        has_authority = any(marker == "@cert-authority" for marker, *_ in host_lines)
        if trusted or has_authority:
            return KnownKeys(trusted, revoked, has_authority)
    return KnownKeys(revoked=revoked)


def _parse_lines(text: str) -> Iterator[tuple[str, str, str, bytes]]:
    """Yield marker, host patterns, key type and key of each line that has them."""
    for line in text.splitlines():
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        if len(fields) < 3 or (marker and marker not in _MARKERS):
            continue
        hosts, key_type, encoded = fields[:3]
        try:
            key = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            continue
        # A key begins with the name of its own type.
        if key[4 : 4 + len(key_type)] == key_type.encode():
            yield marker, hosts, key_type, key


def _matches_any(hosts: str, names: Sequence[str]) -> bool:
    return any(_matches(hosts, name) for name in names)


def _matches(hosts: str, name: str) -> bool:
    """Return whether a list of patterns means a host. A negated pattern that matches excludes it."""
    if hosts.startswith("|"):
        return _is_hash_of(hosts, name)
    patterns = hosts.lower().split(",")
    if any(_fits_pattern(pattern[1:], name) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(_fits_pattern(pattern, name) for pattern in patterns)


def _fits_pattern(pattern: str, name: str) -> bool:
    """Return whether a pattern means a host. Only ``*`` and ``?`` are special: brackets enclose a host with a port."""
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, name) is not None


def _is_hash_of(hashed: str, name: str) -> bool:
    try:
        _, version, salt, digest = hashed.split("|")
        expected = base64.b64decode(digest, validate=True)
        actual = hmac.digest(base64.b64decode(salt, validate=True), name.encode(), hashlib.sha1)
    except (binascii.Error, ValueError):
        return False
    return version == "1" and hmac.compare_digest(actual, expected)
