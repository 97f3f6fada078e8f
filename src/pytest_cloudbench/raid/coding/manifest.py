"""Manifests: the sealed description of one object. Each child can hold a copy that reveals nothing to it.

What may live here: the values, and their one layout in bytes. A manifest holds the object's key and the SHA-256 of each
share, which locates damage. Its generation tells an older version from the newest. Each copy is sealed for the place
that it is stored in, so no copy opens in another's place, and no two copies have bytes in common.

The layout, before it is sealed: the length of a JSON text (4 bytes), the text, the digests of all shares in order, and
zeros up to a multiple of 256 bytes, which hide the length of the path. The text names the layout.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_cloudbench.raid.coding.policies import Split
from pytest_cloudbench.raid.coding.reed_solomon import MOST_SHARES, Buffer, share_bytes
from pytest_cloudbench.raid.coding.sealing import (
    CHUNK_BYTES,
    KEY_BYTES,
    PREFIX_BYTES,
    SALT_BYTES,
    TAG_BYTES,
    MasterKey,
    NotGenuine,
    sealed_bytes,
)

VERSION_BYTES = 16
"""Random bytes that name one version of an object."""
DIGEST_BYTES = 32

_LAYOUT = 1
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_PADDING_BYTES = 256
_KEY_SIZES = (KEY_BYTES, PREFIX_BYTES)
_KEYS = frozenset({"layout", "version", "path", "size", "generation", "key", "prefix", "segments"})


@dataclass(frozen=True, slots=True)
class CodedSegment:
    """One stretch of an object, coded by itself.

    Attributes:
        size_bytes: of its content, before it is sealed: whole chunks, except in an object's last segment.
        split: who holds how many shares.
        digests: SHA-256 of each share.
    """

    size_bytes: int
    split: Split
    digests: tuple[bytes, ...]

    @property
    def sealed_bytes(self) -> int:
        """The size of its sealed content, without the zeros that pad the last share."""
        return sealed_bytes(self.size_bytes)

    @property
    def share_bytes(self) -> int:
        """The size of each of its shares."""
        return share_bytes(self.sealed_bytes, self.split.data)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of one version of an object.

    Attributes:
        version: 16 random bytes, from which the names of its packages are derived.
        generation: a later version has a larger number.
        path: the object's.
        size_bytes: of its content.
        key: seals its content; used for this version alone.
        prefix: the random part of its chunks' nonces.
        segments: in order; there is at least one.
    """

    version: bytes
    generation: int
    path: str
    size_bytes: int
    key: bytes = field(repr=False)
    prefix: bytes = field(repr=False)
    segments: tuple[CodedSegment, ...]
    _bytes: bytes = field(default=b"", init=False, repr=False, compare=False)

    def seal(self, master: MasterKey, salt: bytes, place: str) -> bytes:
        """Return the manifest as bytes that only the master key opens.

        Args:
            master: the array's key.
            salt: 16 random bytes, new for each copy.
            place: where this copy is stored, such as the name of a package.
        """
        return master.seal(self._to_bytes(), salt, place.encode())

    @property
    def sealed_size(self) -> int:
        """The size of each sealed copy."""
        return len(self._to_bytes()) + SALT_BYTES + TAG_BYTES

    def _to_bytes(self) -> bytes:
        if not self._bytes:  # every child gets a copy
            object.__setattr__(self, "_bytes", self._make_bytes())
        return self._bytes

    def _make_bytes(self) -> bytes:
        text = _ENCODER.encode(
            {
                "layout": _LAYOUT,
                "version": self.version.hex(),
                "path": self.path,
                "size": self.size_bytes,
                "generation": self.generation,
                "key": self.key.hex(),
                "prefix": self.prefix.hex(),
                "segments": [
                    [segment.size_bytes, segment.split.data, [*segment.split.counts]] for segment in self.segments
                ],
            }
        ).encode("ascii")
        digests = b"".join(digest for segment in self.segments for digest in segment.digests)
        plain = len(text).to_bytes(4, "big") + text + digests
        return plain + bytes(-len(plain) % _PADDING_BYTES)

    @classmethod
    def open(cls, master: MasterKey, sealed: Buffer, place: str) -> Manifest:
        """Return the manifest stored at a place. Raises NotGenuine if it was not sealed for this place."""
        plain = master.open(sealed, place.encode())
        end = 4 + int.from_bytes(plain[:4], "big")
        try:
            return _parse_manifest(json.loads(plain[4:end]), plain[end:])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise NotGenuine(f"a manifest of a layout other than {_LAYOUT}: a newer version wrote it") from error


def _parse_manifest(fields: Any, digest_bytes: bytes) -> Manifest:
    """Return the manifest from its parsed JSON fields and the digests that follow it.

    Raises ValueError, TypeError and KeyError for fields that no writer seals.
    """
    if fields.keys() != _KEYS or fields["layout"] != _LAYOUT:
        raise ValueError("keys")
    segments, at = [], 0
    for size_bytes, data, counts in fields["segments"]:
        split = Split(_check_int(data, 1), tuple(_check_int(count, 0) for count in counts))
        total = sum(split.counts)
        if not split.data <= total <= MOST_SHARES:
            raise ValueError("shares")
        end = at + total * DIGEST_BYTES
        digests = [digest_bytes[begin : begin + DIGEST_BYTES] for begin in range(at, end, DIGEST_BYTES)]
        at = end
        segments.append(CodedSegment(_check_int(size_bytes, 0), split, tuple(digests)))
    size_bytes, path = _check_int(fields["size"], 0), fields["path"]
    key, prefix = bytes.fromhex(fields["key"]), bytes.fromhex(fields["prefix"])
    fits = at <= len(digest_bytes) < at + _PADDING_BYTES and not any(digest_bytes[at:])
    if not fits or not isinstance(path, str) or (len(key), len(prefix)) != _KEY_SIZES:
        raise ValueError("sizes")
    _check_sizes(size_bytes, segments)
    version = bytes.fromhex(fields["version"])
    return Manifest(version, _check_int(fields["generation"], 1), path, size_bytes, key, prefix, tuple(segments))


def _check_sizes(size_bytes: int, segments: Sequence[CodedSegment]) -> None:
    sizes = [segment.size_bytes for segment in segments]
    if not sizes or sum(sizes) != size_bytes or any(size % CHUNK_BYTES or not size for size in sizes[:-1]):
        raise ValueError("segments")


def _check_int(value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError("number")
    return value
