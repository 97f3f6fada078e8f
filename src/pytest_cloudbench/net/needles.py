"""A search for needles: bytes that were put into names and contents, and may come out encoded.

A needle is found raw, and through the encodings that clients use: base64 at its three alignments, base32, hexadecimal,
percent and JSON escapes, UTF-16, and streams of zlib, gzip, bzip2, xz, zstd and lz4, also nested. A needle of text is
not found in deflate or brotli without a header. A needle of random bytes stays readable even there, because nothing can
shorten it.
"""

from __future__ import annotations

import base64
import bz2
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, NamedTuple

_MAX_DEPTH = 3
_UNPACKED_BYTES = 1024 * 1024
"""The most bytes that are unpacked from one stream. The rest of a longer stream is not searched."""
_MAX_OFFSETS = 20_000
_BASE64_TEXT = re.compile(rb"[A-Za-z0-9+/_-]{40,}")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


class Needle(NamedTuple):
    """Bytes that occur nowhere by chance, and where they were put: ``name`` or ``content``."""

    what: str
    data: bytes


class Sighting(NamedTuple):
    """The first occurrence of a needle, with the encodings around it, outermost first, such as ``gzip, base64``."""

    needle: Needle
    form: str


def make_text_needle(what: str, seed: str, length: int = 24) -> Needle:
    """Return a needle of letters and digits, which can be a part of a name."""
    random = Random(f"{seed}/needle/{what}")
    return Needle(what, "".join(random.choice(_LETTERS) for _ in range(length)).encode())


def slice_needles(what: str, content: bytes, count: int = 16, length: int = 24) -> list[Needle]:
    """Return needles that are slices of a random content, evenly spread over it."""
    step = max(1, (len(content) - length) // count)
    return [Needle(what, content[start : start + length]) for start in range(0, step * count, step)]


def find_needles(data: bytes, needles: Sequence[Needle]) -> list[Sighting]:
    """Return the first sighting of each needle that is readable in some bytes."""
    sightings: dict[Needle, Sighting] = {}
    for form, layer in _unpack_layers(data, (), _MAX_DEPTH):
        for needle in needles:
            if needle not in sightings and (encoding := _find_encoded(layer, needle.data)):
                sightings[needle] = Sighting(needle, ", ".join((*form, encoding)))
        if len(sightings) == len({*needles}):
            break
    return [sightings[needle] for needle in dict.fromkeys(needles) if needle in sightings]


def _find_encoded(data: bytes, plain: bytes) -> str:
    return next((encoding for encoding, text in _encode(plain) if text in data), "")


@cache
def _encode(plain: bytes) -> tuple[tuple[str, bytes], ...]:
    """Return the name of each encoding, and the needle in that encoding."""
    forms = [("raw", plain), *_encode_base64(plain)]
    forms += [("hex", plain.hex().encode()), ("hex", plain.hex().upper().encode())]
    forms += [("base32", needle) for needle in _encode_base32(plain)]
    forms.append(("percent", b"".join(b"%%%02X" % byte for byte in plain)))
    if plain.isascii() and plain.isalnum():
        forms += [("utf-16", plain.decode().encode(f"utf-16-{order}")) for order in ("le", "be")]
        forms += [("json escapes", b"".join(b"\\u%04x" % byte for byte in plain))]
    return tuple(forms)


def _encode_base64(plain: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the base64 characters that depend on the needle alone, for each of the three alignments."""
    for shift in range(3):
        text = base64.b64encode(bytes(shift) + plain)
        begin, end = -(-shift * 8 // 6), (shift + len(plain)) * 8 // 6
        for needle in {text[begin:end], text[begin:end].translate(bytes.maketrans(b"+/", b"-_"))}:
            yield "base64", needle


def _encode_base32(plain: bytes) -> Iterator[bytes]:
    for shift in range(5):
        text = base64.b32encode(bytes(shift) + plain)
        needle = text[-(-shift * 8 // 5) : (shift + len(plain)) * 8 // 5]
        yield needle
        yield needle.lower()


def _unpack_layers(data: bytes, form: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], bytes]]:
    """Yield the bytes themselves and all contents packed inside them, each with the encodings around it."""
    yield form, data
    if not depth:
        return
    for name, magic, unpack in _unpackers():
        for start in _find_offsets(data, magic):
            if inside := unpack(data[start : start + _UNPACKED_BYTES]):
                yield from _unpack_layers(inside, (*form, name), depth - 1)
    for match in _BASE64_TEXT.finditer(data):
        text = match[0].translate(bytes.maketrans(b"-_", b"+/"))
        inside = base64.b64decode(text[: len(text) // 4 * 4])
        if any(re.match(magic, inside, re.DOTALL) for _, magic, _ in _unpackers()):
            yield from _unpack_layers(inside, (*form, "base64"), depth - 1)


def _find_offsets(data: bytes, magic: bytes) -> Iterator[int]:
    for number, match in enumerate(re.finditer(magic, data, re.DOTALL)):
        if number >= _MAX_OFFSETS:
            return
        yield match.start()


@cache
def _unpackers() -> tuple[tuple[str, bytes, Callable[[bytes], bytes]], ...]:
    """Return the name, the first bytes and the decoder of each format that can be unpacked here."""
    formats = [
        ("zlib", rb"\x78[\x01\x5e\x9c\xda]", zlib.decompressobj),
        ("gzip", rb"\x1f\x8b\x08", lambda: zlib.decompressobj(31)),
        ("bzip2", rb"BZh[1-9]1AY", bz2.BZ2Decompressor),
        ("xz", rb"\xfd7zXZ\x00", lzma.LZMADecompressor),
    ]
    unpackers = [(name, magic, _make_unpacker(make)) for name, magic, make in formats]
    for name, magic, make in (
        ("zstd", rb"\x28\xb5\x2f\xfd", _zstd_decompressor()), ("lz4", rb"\x04\x22\x4d\x18", _lz4_decompressor()),
    ):  # fmt: skip
        if make is not None:
            unpackers.append((name, magic, _make_unpacker(make)))
    return tuple(unpackers)


def searched_formats() -> tuple[str, ...]:
    """Return the formats that are unpacked here. zstd and lz4 are included only if their libraries are installed."""
    return tuple(name for name, _, _ in _unpackers())


def _make_unpacker(make: Callable[[], Any]) -> Callable[[bytes], bytes]:
    def unpack(data: bytes) -> bytes:
        decoder, parts, size_bytes = make(), list[bytes](), 0
        try:
            for start in range(0, len(data), 4096):  # output before an error counts, too
                parts.append(decoder.decompress(data[start : start + 4096]))
                size_bytes += len(parts[-1])
                if size_bytes > _UNPACKED_BYTES or getattr(decoder, "eof", False):
                    break
        except Exception:
            pass
        return b"".join(parts)

    return unpack


def _zstd_decompressor() -> Callable[[], Any] | None:
    from importlib import import_module

    try:
        decompressor: Callable[[], Any] = import_module("compression.zstd").ZstdDecompressor  # from Python 3.14 on
    except ImportError:
        try:
            library: Any = import_module("zstandard")
        except ImportError:
            return None
        return lambda: library.ZstdDecompressor().decompressobj()
    return decompressor


def _lz4_decompressor() -> Callable[[], Any] | None:
    from importlib import import_module

    try:
        decompressor: Callable[[], Any] = import_module("lz4.frame").LZ4FrameDecompressor
    except ImportError:
        return None
    return decompressor


def looks_random(data: bytes, least_bytes: int = 4096) -> bool | None:
    """Return whether bytes look random, because deflate does not shorten them. None if there are too few."""
    if len(data) < least_bytes:
        return None
    return len(zlib.compress(data, 6)) > 0.99 * len(data)


def count_by_form(sightings: Sequence[Sighting]) -> Mapping[str, int]:
    """Return how many needles were seen in each form, for a sentence of evidence."""
    counts: dict[str, int] = {}
    for sighting in sightings:
        counts[sighting.form] = counts.get(sighting.form, 0) + 1
    return counts
