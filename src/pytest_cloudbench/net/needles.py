"""A search for needles: bytes that were put into names and contents, and may come out encoded.

A needle is found raw, and through the encodings that clients use: base64 at its three alignments, base32, hexadecimal,
percent and JSON escapes, UTF-16, the chunks of HTTP, and streams of zlib, gzip, bzip2, xz, zstd and lz4, also nested,
and also if the text of an encoding is wrapped into lines. A needle of text is not found in deflate or brotli without a
header, so a search is not whole where HTTP says that such bytes follow. A needle of random bytes stays readable even
there, because nothing can shorten it.
"""

from __future__ import annotations

import base64
import bz2
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote

_MAX_DEPTH = 3
_UNPACKED_BYTES = 1024 * 1024
"""The most bytes of one stream that are unpacked, and that come out. The rest of a longer stream is not searched."""
_PIECE_BYTES = 256
"""Number of bytes that are unpacked at once. What a piece with an error unpacks to is lost."""
_PASSED_BYTES = 2 * 65_536
"""The most bytes after a chance beginning of zlib or gzip that seem to be an extra field and a block stored as it is.
Nothing is hidden in them. All other bytes have an error within the first piece."""
_MAX_OFFSETS = 20_000
_CHUNK_HEAD = re.compile(rb"\r\n([0-9A-Fa-f]{1,16})[ \t]{0,16}(?:;[^\r\n]{0,200})?\r\n")
_CHUNKED_BODY = re.compile(rb"\r\n(?=%b)" % _CHUNK_HEAD.pattern)
_HEADLESS_BODY = (
    rb"(?i:\ncontent-encoding:)(?i:[^\r\n]*\bbr\b[^\r\n]*(?:\r\n[^\r\n]+)*\r\n\r\n."
    rb"|[^\r\n]*\bdeflate\b[^\r\n]*(?:\r\n[^\r\n]+)*\r\n\r\n[^\x78])"
)
"""The head of a message whose body is brotli, or deflate that does not begin as zlib does, and a byte of that body."""
_BASE64_TEXT = re.compile(rb"[A-Za-z0-9+/_-]{40,}")
_LINE_BREAKS = (
    rb"\r", rb"\n", rb"\r\n", rb"\\n", rb"\\r\\n", rb"\\\\n", rb"\\\\r\\\\n", rb"%0[Aa]", rb"%0[Dd]%0[Aa]", rb"&#13;\n",
    rb"&#x[Dd];\n",
)  # fmt: skip
"""Breaks as they are, and with the escapes of JSON, of JSON within JSON, of forms and of XML."""
_WRAPPED_LINE = rb"(?<=[A-Za-z0-9+/_-]{16}%b)(?<!--%b)"
"""The end of a line of encoded text, which a mark such as ``-----BEGIN CERTIFICATE-----`` is not."""
_WRAPPING = re.compile(
    rb"(?:%b)[ \t]{0,64}(?=[A-Za-z0-9+/_-])"
    % b"|".join(line_break + _WRAPPED_LINE % (line_break, line_break) for line_break in _LINE_BREAKS)
)
_ESCAPED_DIGITS = (
    (rb"\\/", b"/"), (rb"\/", b"/"), (rb"\u002B", b"+"), (rb"\u002b", b"+"),
    (b"%2F", b"/"), (b"%2f", b"/"), (b"%2B", b"+"), (b"%2b", b"+"),
)  # fmt: skip
"""Digits of base64 that some programs escape: PHP's JSON, the JSON of .NET, and forms."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_SHORT_JSON_ESCAPES = {'"': b'"', "\\": b"\\", "/": b"/", "\n": b"n", "\r": b"r", "\t": b"t", "\b": b"b", "\f": b"f"}


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


class NeedleSearch(NamedTuple):
    """The result of a search: the first sighting of each needle, and whether no packed content was left out.

    Content is left out if it is beyond a limit, or in a stream that breaks off before its end.
    """

    sightings: list[Sighting]
    is_whole: bool


def find_needles(data: bytes, needles: Sequence[Needle]) -> list[Sighting]:
    """Return the first sighting of each needle that is readable in some bytes."""
    return search_needles(data, needles).sightings


def search_needles(data: bytes, needles: Sequence[Needle]) -> NeedleSearch:
    """Search some bytes for needles. The search ends when it has seen all of them."""
    sightings: dict[Needle, Sighting] = {}
    layers = _Layers()
    for form, layer in layers.unpack(data, (), _MAX_DEPTH):
        for needle in needles:
            if needle not in sightings and (encoding := _find_encoded(layer, needle.data)):
                sightings[needle] = Sighting(needle, ", ".join((*form, encoding)))
        if len(sightings) == len({*needles}):
            break
    found = [sightings[needle] for needle in dict.fromkeys(needles) if needle in sightings]
    return NeedleSearch(found, layers.is_whole)


def _find_encoded(data: bytes, plain: bytes) -> str:
    """Return the name of an encoding in which a needle is in some bytes, or an empty text."""
    found = next((encoding for encoding, text in _encode(plain) if text in data), "")
    if found or (pattern := _make_escaped_pattern(plain)) is None or (match := pattern.search(data)) is None:
        return found
    return "json escapes" if match[0].count(b"\\") > plain.count(b"\\") else "percent"


@cache
def _encode(plain: bytes) -> tuple[tuple[str, bytes], ...]:
    """Return the name of each encoding, and the needle in that encoding."""
    forms = [("raw", plain), *_encode_base64(plain)]
    forms += [("hex", plain.hex().encode()), ("hex", plain.hex().upper().encode())]
    forms += [("base32", needle) for needle in _encode_base32(plain)]
    if (text := _decode_text(plain)) is not None:
        forms += [("utf-16", text.encode(f"utf-16-{order}")) for order in ("le", "be")]
    else:
        forms += [("percent", b"".join(b"%%%02X" % byte for byte in plain)), ("percent", quote(plain).encode())]
    return tuple(forms)


def _decode_text(plain: bytes) -> str | None:
    try:
        return plain.decode()
    except UnicodeDecodeError:
        return None


@cache
def _make_escaped_pattern(plain: bytes) -> re.Pattern[bytes] | None:
    """Return a pattern of a text in which some characters have percent or JSON escapes. None unless it is a text.

    Encoders differ in which characters they escape, so each character may be escaped or not. Texts that are escaped
    again, such as JSON within JSON, match, too.
    """
    text = _decode_text(plain)
    return None if text is None else re.compile(b"".join(map(_make_character_pattern, text)))


def _make_character_pattern(character: str) -> bytes:
    raw, units = character.encode(), character.encode("utf-16-be").hex()
    forms = [re.escape(raw), b"".join(rb"%%(?:25){0,3}%b" % _match_hex(f"{byte:02x}") for byte in raw)]
    escapes = (units[start : start + 4] for start in range(0, len(units), 4))
    forms.append(b"".join(rb"\\\\{0,7}u%b" % _match_hex(digits) for digits in escapes))
    if character == " ":
        forms.append(rb"\+")
    if character in _SHORT_JSON_ESCAPES:
        forms.append(rb"\\\\{0,2}" + re.escape(_SHORT_JSON_ESCAPES[character]))
    return b"(?:%b)" % b"|".join(forms)


def _match_hex(digits: str) -> bytes:
    """Return a pattern of hexadecimal digits in both cases. A flag for this would make the search much slower."""
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in digits).encode()


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


class _Layers:
    """The contents packed in some bytes, one inside another.

    Attributes:
        is_whole: whether nothing has been left out up to now.
    """

    def __init__(self) -> None:
        self.is_whole = True

    def unpack(self, data: bytes, form: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], bytes]]:
        """Yield the bytes themselves and all contents packed inside them, each with the encodings around it."""
        yield form, data
        if (joined := _join_chunks(data)) is not data:
            data, form = joined, (*form, "chunks")
            yield form, data
        unescaped = _unescape_digits(data)
        if (unwrapped := _WRAPPING.sub(b"", unescaped)) != data:
            yield (*form, "escapes" if unwrapped == unescaped else "lines"), unwrapped
        for name, content, is_certain in self._list_contents(data, unwrapped):
            if depth:
                yield from self.unpack(content, (*form, name), depth - 1)
            elif is_certain:
                self.is_whole = False

    def _list_contents(self, data: bytes, unwrapped: bytes) -> Iterator[tuple[str, bytes, bool]]:
        """Yield the encoding of each content, the content, and whether it is certain that these bytes are encoded.

        ``unwrapped`` are the bytes without the line breaks and escapes of encoded text. Only base64 is looked for in
        them, because what looks like a break can be in a stream.
        """
        for name, magic, unpack in _unpackers():
            for start in self._find_offsets(data, magic):
                stream = unpack(data, start)
                self.is_whole &= stream.is_ended or not stream.is_certain
                if stream.content:
                    yield name, stream.content, stream.is_certain
        texts = (data,) if unwrapped == data else (data, unwrapped)
        for match in chain.from_iterable(map(_BASE64_TEXT.finditer, texts)):
            digits = match[0].translate(bytes.maketrans(b"-_", b"+/"))
            inside = base64.b64decode(digits[: len(digits) - (len(digits) % 4 == 1)] + b"==")
            if any(re.match(magic, inside, re.DOTALL) for _, magic, _ in _unpackers()):
                yield "base64", inside, True

    def _find_offsets(self, data: bytes, magic: bytes) -> Iterator[int]:
        for number, match in enumerate(re.finditer(magic, data, re.DOTALL)):
            if number >= _MAX_OFFSETS:
                self.is_whole = False
                return
            yield match.start()


def _unescape_digits(data: bytes) -> bytes:
    """Return the bytes with the digits of base64 as they were before some program escaped them."""
    for escape, digit in _ESCAPED_DIGITS:
        data = data.replace(escape, digit)
    return data


def _join_chunks(data: bytes) -> bytes:
    """Return some bytes without the sizes of chunks, which HTTP puts into the bodies of messages."""
    position, end, parts = 0, 0, list[bytes]()
    while found := _CHUNKED_BODY.search(data, position):
        position = found.end()
        while (head := _CHUNK_HEAD.match(data, position)) and (size_bytes := int(head[1], 16)):
            parts += [data[end:position], data[head.end() : head.end() + size_bytes]]
            position = end = head.end() + size_bytes
    return b"".join((*parts, data[end:])) if parts else data


class _Stream(NamedTuple):
    """A compressed stream, as far as it was unpacked.

    Attributes:
        content: the content.
        is_ended: whether the stream was unpacked up to its end.
        is_certain: whether it is a stream, and not other bytes that begin like one.
    """

    content: bytes
    is_ended: bool
    is_certain: bool


@cache
def _unpackers() -> tuple[tuple[str, bytes, Callable[[bytes, int], _Stream]], ...]:
    """Return the name and the first bytes of each format, and a function that unpacks it."""
    formats: list[tuple[str, bytes, Callable[[], Any], int]] = [
        ("zlib", rb"\x78[\x01\x5e\x9c\xda]", zlib.decompressobj, _PASSED_BYTES),
        ("gzip", rb"\x1f\x8b\x08", lambda: zlib.decompressobj(31), _PASSED_BYTES),
        ("bzip2", rb"BZh[1-9]1AY", bz2.BZ2Decompressor, 0),
        ("xz", rb"\xfd7zXZ\x00", lzma.LZMADecompressor, 0),
    ]
    unpackers = [(name, magic, _make_unpacker(make, passed_bytes)) for name, magic, make, passed_bytes in formats]
    for name, magic, make in (
        ("zstd", rb"\x28\xb5\x2f\xfd", _zstd_decompressor()), ("lz4", rb"\x04\x22\x4d\x18", _lz4_decompressor()),
    ):  # fmt: skip
        unpackers.append((name, magic, _leave_packed if make is None else _make_unpacker(make, 0)))
    unpackers.append(("without a header", _HEADLESS_BODY, _leave_packed))
    return tuple(unpackers)


def searched_formats() -> tuple[str, ...]:
    """Return the formats that are unpacked here. zstd and lz4 are included only if their libraries are installed."""
    return tuple(name for name, _, unpack in _unpackers() if unpack is not _leave_packed)


def _leave_packed(data: bytes, start: int) -> _Stream:
    """Unpack nothing, because there is no library for the format, or it is not installed."""
    return _Stream(b"", is_ended=False, is_certain=True)


def _make_unpacker(make: Callable[[], Any], passed_bytes: int) -> Callable[[bytes, int], _Stream]:
    """Return a function that unpacks the stream at an offset of some bytes.

    Args:
        make: makes a decoder.
        passed_bytes: the most bytes that a decoder may accept although they are no stream.
    """

    def unpack(data: bytes, start: int) -> _Stream:
        decoder, parts, size_bytes, unpacked_bytes, is_ended = make(), list[bytes](), 0, 0, False
        try:
            for begin in range(start, min(len(data), start + _UNPACKED_BYTES), _PIECE_BYTES):
                piece = data[begin : begin + _PIECE_BYTES]
                parts.append(decoder.decompress(piece))
                size_bytes, unpacked_bytes = size_bytes + len(piece), unpacked_bytes + len(parts[-1])
                is_ended = getattr(decoder, "eof", False)
                if is_ended or unpacked_bytes > _UNPACKED_BYTES:
                    break
        except Exception:
            pass  # output before an error counts, too
        is_chance = size_bytes < _PIECE_BYTES or unpacked_bytes <= size_bytes <= passed_bytes
        return _Stream(b"".join(parts), is_ended, is_ended or not is_chance)

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
