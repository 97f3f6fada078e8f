"""Sealing: content in AES-256-GCM chunks that cannot be truncated, reordered or swapped, and small secrets as a whole.

What may live here: deriving keys, and sealing and opening bytes. Random bytes are arguments.

Content is sealed by the STREAM construction: each chunk's nonce is a random prefix, the chunk's number and whether it
is the last one. Source: V. T. Hoang et al., "Online Authenticated-Encryption and its Nonce-Reuse Misuse-Resistance",
2015. All that does not open raises the same error, ``NotGenuine``: damaged, truncated or reordered content, and content
of another object or key.
"""

from __future__ import annotations

import hmac
from functools import cache
from typing import Any

from pytest_cloudbench.model import MIB
from pytest_cloudbench.raid.coding.reed_solomon import Buffer

CHUNK_BYTES = MIB
"""Content bytes in one chunk. Only the last one has fewer."""
KEY_BYTES = 32
PREFIX_BYTES = 7
TAG_BYTES = 16
SALT_BYTES = 16

_NAME_BYTES = 16


class NotGenuine(ValueError):
    """Sealed bytes do not open: they were changed, or sealed with another key."""


def sealed_bytes(size_bytes: int) -> int:
    """Return the sealed size of content of a size: each chunk has a tag, and there is at least one chunk."""
    return size_bytes + TAG_BYTES * chunk_count(size_bytes)


def chunk_count(size_bytes: int) -> int:
    """Return the number of chunks of content of a size."""
    return max(1, -(-size_bytes // CHUNK_BYTES))


class Stream:
    """The chunks of one object.

    Args:
        key: 32 random bytes, for this object alone.
        prefix: 7 random bytes.
    """

    def __init__(self, key: bytes, prefix: bytes) -> None:
        self._cipher, self._prefix = _aes_gcm(key), prefix

    def seal(self, number: int, is_last: bool, plain: Buffer, into: memoryview) -> None:
        """Seal a chunk into memory of its size plus ``TAG_BYTES``."""
        nonce = self._nonce(number, is_last)
        if hasattr(self._cipher, "encrypt_into"):  # newer versions; new memory for each chunk costs more than AES
            self._cipher.encrypt_into(nonce, plain, None, into)
        else:
            into[:] = self._cipher.encrypt(nonce, plain, None)

    def open(self, number: int, is_last: bool, sealed: Buffer) -> bytes:
        """Return a chunk's content. Raises NotGenuine."""
        return _decrypt(self._cipher, self._nonce(number, is_last), sealed, None)

    def _nonce(self, number: int, is_last: bool) -> bytes:
        return self._prefix + number.to_bytes(4, "big") + bytes([is_last])


class MasterKey:
    """The key of an array, from which all others are derived. It never leaves the client.

    Args:
        key: 32 random bytes.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes: expected {KEY_BYTES}")
        master = _Authenticator(key)
        self._sealing = _Authenticator(master.derive_key(b"sealing"))
        self._naming = _Authenticator(master.derive_key(b"naming"))
        self.fingerprint = master.derive_key(b"fingerprint")[:8].hex()

    def __repr__(self) -> str:
        return f"MasterKey(fingerprint={self.fingerprint!r})"

    def seal(self, plain: bytes, salt: bytes, about: bytes = b"") -> bytes:
        """Seal bytes with a derived key of their own.

        Args:
            plain: what to seal.
            salt: 16 random bytes, new each time.
            about: context that must be given again to open them.
        """
        if len(salt) != SALT_BYTES:
            raise ValueError(f"a salt of {len(salt)} bytes: expected {SALT_BYTES}")
        cipher = _aes_gcm(self._sealing.derive_key(salt))
        sealed: bytes = cipher.encrypt(bytes(12), plain, about)
        return salt + sealed

    def open(self, sealed: Buffer, about: bytes = b"") -> bytes:
        """Return what was sealed. Raises NotGenuine."""
        salt = bytes(sealed[:SALT_BYTES])
        return _decrypt(_aes_gcm(self._sealing.derive_key(salt)), bytes(12), sealed[SALT_BYTES:], about)

    def hide_name(self, *parts: bytes | int) -> str:
        """Return a name that reveals nothing to others: 32 hex digits, the same for the same parts."""
        texts = [part.to_bytes(8, "big") if isinstance(part, int) else part for part in parts]
        text = b"".join([len(part).to_bytes(4, "big") + part for part in texts])
        return self._naming.digest(text)[:_NAME_BYTES].hex()


class _Authenticator:
    """HMAC-SHA256 with one key, which is hashed once. ``hmac.digest`` hashes it again for each text."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")

    def digest(self, text: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(text)
        return keyed.digest()

    def derive_key(self, label: bytes) -> bytes:
        return self.digest(b"cloudbench raid 1 " + label)


def _aes_gcm(key: bytes) -> Any:
    return _aes_gcm_class()(key)


@cache  # an import statement costs half as much as the cipher
def _aes_gcm_class() -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM


def _decrypt(cipher: Any, nonce: bytes, sealed: Buffer, about: bytes | None) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        plain: bytes = cipher.decrypt(nonce, sealed, about)
    except InvalidTag as error:
        raise NotGenuine("it was changed, or sealed with another key") from error
    return plain
