"""Needles are found through every encoding that clients use, and only where they are."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable
from importlib import import_module
from itertools import product
from random import Random
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.net import needles
from pytest_cloudbench.net.needles import (
    Needle,
    find_needles,
    looks_random,
    make_text_needle,
    search_needles,
    searched_formats,
    slice_needles,
)

NEEDLE = make_text_needle("content", "seed")
NOISE = Random(5).randbytes(5000)


def pack_zstd(data: bytes) -> bytes:
    """Pack a frame with a checksum. The library is imported here because only these tests need it."""
    library = import_module("zstandard")
    packed: bytes = library.ZstdCompressor(write_checksum=True).compress(data)
    return packed


def stream_zstd(data: bytes) -> bytes:
    """Pack a frame as a stream, which does not say its size at the beginning."""
    packer = import_module("zstandard").ZstdCompressor(level=19).compressobj()
    packed: bytes = packer.compress(data) + packer.flush()
    return packed


def pack_lz4(data: bytes) -> bytes:
    """Pack a frame of LZ4."""
    packed: bytes = import_module("lz4.frame").compress(data, content_checksum=True)
    return packed


def chunk(data: bytes, size: int) -> bytes:
    """Return an HTTP message with a body in chunks."""
    parts = [data[begin : begin + size] for begin in range(0, len(data), size)]
    return b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(b"%x;a=b\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "raw": lambda data: data,
    "base64": lambda data: base64.b64encode(b"x" + data),
    "base64 at another place": lambda data: base64.b64encode(b"xy" + data),
    "base64 of URLs": base64.urlsafe_b64encode,
    "base32": lambda data: base64.b32encode(b"abc" + data),
    "hex": lambda data: data.hex().upper().encode(),
    "json escapes": lambda data: "".join(f"\\u{byte:04x}" for byte in data).encode(),
    "json twice": lambda data: json.dumps(json.dumps({"name": data.decode()})).encode(),
    "percent": lambda data: "".join(f"%{byte:02X}" for byte in data).encode(),
    "utf-16": lambda data: data.decode().encode("utf-16-be"),
    "chunks": lambda data: chunk(data, 9),
    "zlib": zlib.compress,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": pack_zstd,
    "zstd stream": stream_zstd,
    "lz4": pack_lz4,
    "chunks of gzip": lambda data: chunk(gzip.compress(data), 10),
    "gzip of chunks": lambda data: gzip.compress(chunk(data, 10)),
    "base64 of gzip": lambda data: base64.b64encode(gzip.compress(data)),
    "gzip of base64": lambda data: gzip.compress(base64.b64encode(data)),
    "base64 of zstd": lambda data: base64.b64encode(pack_zstd(data)),
    "zstd of base64": lambda data: pack_zstd(base64.b64encode(data)),
    "base64 of lz4": lambda data: base64.urlsafe_b64encode(pack_lz4(data)),
    "lz4 of base64": lambda data: pack_lz4(base64.b64encode(data)),
}


def wrap(text: bytes, width: int, line_break: bytes) -> bytes:
    """Return a text in lines of some width, with a break after each of them."""
    return b"".join(text[begin : begin + width] + line_break for begin in range(0, len(text), width))


WRAPPINGS: dict[str, Callable[[bytes], bytes]] = {
    "mime": lambda text: wrap(text, 76, b"\r\n"),
    "pem": lambda text: b"-----BEGIN CERTIFICATE-----\n%b-----END CERTIFICATE-----\n" % wrap(text, 64, b"\n"),
    "xml": lambda text: b"<data>\n    %b</data>" % wrap(text, 76, b"\n    "),
    "xml of java": lambda text: b"<data>%b</data>" % wrap(text, 76, b"&#13;\n"),
    "json of mime": lambda text: json.dumps({"data": wrap(text, 76, b"\r\n").decode()}).encode(),
    "json of pem": lambda text: json.dumps({"data": wrap(text, 64, b"\n").decode()}).encode(),
    "json in json": lambda text: json.dumps(json.dumps({"data": wrap(text, 76, b"\r\n").decode()})).encode(),
    "json of php": lambda text: json.dumps({"data": text.decode()}).replace("/", r"\/").encode(),
    "json of .net": lambda text: json.dumps({"data": text.decode()}).replace("+", r"\u002B").encode(),
    "form": lambda text: b"data=" + quote(wrap(text, 60, b"\r\n"), safe="+/=").encode(),
    "form of one line": lambda text: b"data=" + quote(text, safe="").encode(),
    "form in lower case": lambda text: re.sub(
        rb"%..", lambda match: match[0].lower(), b"data=" + quote(wrap(text, 60, b"\n"), safe="").encode()
    ),
    "gzip": lambda text: gzip.compress(wrap(text, 76, b"\n")),
    "chunks": lambda text: chunk(wrap(text, 76, b"\r\n"), 1000),
}
WRAPPED: dict[str, Callable[[bytes], bytes]] = {
    "base64": base64.b64encode,
    "base64 of URLs": base64.urlsafe_b64encode,
    "base64 of gzip": lambda data: base64.b64encode(gzip.compress(data)),
    "base32": base64.b32encode,
    "hex": lambda data: data.hex().encode(),
    "hex in upper case": lambda data: data.hex().upper().encode(),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_needle_is_found_in_each_encoding(name: str) -> None:
    data = NOISE + ENCODINGS[name](b"some words, then " + NEEDLE.data + b" and more words") + NOISE
    assert [sighting.needle for sighting in find_needles(data, [NEEDLE])] == [NEEDLE]


@pytest.mark.quick_cases(14)
@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("encoding", WRAPPED)
def test_a_needle_is_found_in_wrapped_text_wherever_a_line_ends(encoding: str, wrapping: str) -> None:
    for begin, length in product(range(120, 200, 9), (24, 90)):
        needle, other = (make_text_needle("content", seed, length) for seed in ("seed", "another seed"))
        data = Random(begin).randbytes(begin).hex().encode() + needle.data + b" and more words" * 9
        packed = NOISE + WRAPPINGS[wrapping](WRAPPED[encoding](data)) + NOISE
        search = search_needles(packed, [needle, other])
        assert [sighting.needle for sighting in search.sightings] == [needle]
        assert search.is_whole


def test_sighting_names_the_lines_around_the_needle() -> None:
    data = wrap(base64.b64encode(bytes(50) + NEEDLE.data), 76, b"\r\n")
    (sighting,) = find_needles(gzip.compress(data), [NEEDLE])
    assert sighting.form == "gzip, lines, base64"
    needle = Needle("content", b"\xff" * 24)  # in base64, a row of slashes
    (sighting,) = find_needles(base64.b64encode(bytes(50) + needle.data).replace(b"/", rb"\/"), [needle])
    assert sighting.form == "escapes, base64"


def test_a_needle_is_found_in_any_of_several_encoded_lines() -> None:
    lines = [base64.b64encode(gzip.compress(b"%b %d" % (NEEDLE.data[::-1], number))) for number in range(30)]
    lines[20] = base64.b64encode(gzip.compress(NEEDLE.data + b" 20"))
    assert [sighting.needle for sighting in find_needles(b"\n".join(lines), [NEEDLE])] == [NEEDLE]
    unpadded = [line.rstrip(b"=") for line in lines]
    assert [sighting.needle for sighting in find_needles(b"\n".join(unpadded), [NEEDLE])] == [NEEDLE]
    assert find_needles(b"\n".join(lines[:20] + lines[21:]), [NEEDLE]) == []


def test_lines_are_joined_only_in_a_copy_of_what_is_searched() -> None:
    stored = zlib.compressobj(0)
    packed = stored.compress(wrap(base64.b64encode(TEXT[:3000]), 76, b"\n") + NEEDLE.data) + stored.flush()
    assert search_needles(packed, [NEEDLE, make_text_needle("name", "seed")]).is_whole
    words = b"Here are_words_of_a_text\nand_more_words of it"
    assert find_needles(words, [Needle("content", b"words_of_a_text\nand_more_words")])


TEXTS = (
    "Quarterly report",
    "Überblick 2026",
    "\N{CLOUD} \U0001f4c8 figures",
    'she said "no"',
    "R&D/plan (final)+notes~1",
)
TEXT_ENCODINGS: dict[str, Callable[[str], str]] = {
    "path": lambda text: quote(text, safe=""),
    "path with slashes": quote,
    "path in lower case": lambda text: re.sub("%..", lambda match: match[0].lower(), quote(text)),
    "path of JavaScript": lambda text: quote(text, safe="!'()*"),
    "form": quote_plus,
    "path in a path": lambda text: quote(quote(text)),
    "json": json.dumps,
    "json in upper case": lambda text: re.sub(
        r"u([0-9a-f]{4})", lambda match: f"u{match[1].upper()}", json.dumps(text)
    ),
    "json of UTF-8": lambda text: json.dumps(text, ensure_ascii=False),
    "json of PHP": lambda text: json.dumps(text).replace("/", "\\/"),
    "json in json": lambda text: json.dumps(json.dumps(text)),
}


@pytest.mark.parametrize("name", TEXT_ENCODINGS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_of_any_characters_is_found_escaped(text: str, name: str) -> None:
    data = NOISE + f"PUT /{TEXT_ENCODINGS[name](text)}.docx".encode() + NOISE
    assert find_needles(data, [Needle("name", text.encode())])
    assert find_needles(data, [Needle("name", text.replace("no", "to")[::-1].encode())]) == []


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_of_any_characters_is_found_in_utf_16(text: str, encoding: str) -> None:
    (sighting,) = find_needles(NOISE + text.encode(encoding) + NOISE, [Needle("name", text.encode())])
    assert sighting.form == "utf-16"


@given(st.text(min_size=8, max_size=30), st.integers(0, 2**30 - 1))
def test_a_text_is_found_whichever_characters_are_escaped(text: str, choice: int) -> None:
    escaped = [
        quote(character, safe="") if choice >> number & 1 else character for number, character in enumerate(text)
    ]
    assert find_needles("".join(escaped).encode(), [Needle("name", text.encode())])


@pytest.mark.parametrize(
    ("data", "form"), [(b"Quarterly%20report", "percent"), (b"Quarterly\\u0020report", "json escapes")]
)
def test_sighting_names_the_escapes(data: bytes, form: str) -> None:
    assert [sighting.form for sighting in find_needles(data, [Needle("name", b"Quarterly report")])] == [form]


def test_sighting_names_encodings_around_the_needle() -> None:
    (sighting,) = find_needles(gzip.compress(base64.b64encode(NEEDLE.data)), [NEEDLE])
    assert sighting.form == "gzip, base64"


def test_a_needle_that_is_not_there_is_not_found() -> None:
    other = make_text_needle("content", "another seed")
    assert find_needles(NOISE + NEEDLE.data, [other]) == []
    masked = bytes(byte ^ 0x5A for byte in NEEDLE.data)
    assert find_needles(NOISE + masked + gzip.compress(masked), [NEEDLE]) == []


@pytest.mark.parametrize(
    ("pack", "name"), [(zlib.compress, "zlib"), (pack_zstd, "zstd"), (stream_zstd, "zstd"), (pack_lz4, "lz4")]
)
def test_words_that_a_packer_takes_apart_are_found_only_by_unpacking(pack: Callable[[bytes], bytes], name: str) -> None:
    first, second = NEEDLE.data[:12], NEEDLE.data[12:]
    parts = b"".join(b"%s! %s? " % (second, first) for _ in range(50))
    packed = NOISE + pack(parts + NEEDLE.data) + NOISE
    assert NEEDLE.data not in packed
    assert [sighting.form for sighting in find_needles(packed, [NEEDLE])] == [f"{name}, raw"]
    assert find_needles(NOISE + pack(parts), [NEEDLE]) == []


def test_random_bytes_with_the_beginnings_of_all_formats_show_nothing() -> None:
    random = Random(11)
    beginnings = (b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"\x1f\x8b\x08", b"\x78\x9c", b"BZh91AY", b"\xfd7zXZ\x00")
    data = b"".join(random.choice(beginnings) + random.randbytes(300) for _ in range(2000))
    assert find_needles(data + base64.b64encode(data), [NEEDLE]) == []


def test_a_stream_that_was_cut_is_searched_as_far_as_it_goes() -> None:
    packed = gzip.compress(NEEDLE.data + NOISE)
    assert find_needles(packed[:-600], [NEEDLE])


TEXT = b"".join(b"line %d of %d\n" % (number, number * number) for number in range(150_000))


@pytest.mark.parametrize(
    ("data", "is_whole"),
    [
        (NOISE, True),
        (gzip.compress(TEXT[:900_000]), True),
        (gzip.compress(TEXT), False),
        (zlib.compress(Random(2).randbytes(1_500_000)), False),
        (gzip.compress(TEXT[:90_000])[:-9], False),
        (bz2.compress(TEXT[:90_000])[:-9], False),
        (pack_zstd(TEXT[:900_000])[:-9], False),
        (zlib.compress(TEXT[:90_000])[:9_000] + b"\r\n1000\r\n" + zlib.compress(TEXT[:90_000])[9_000:], False),
        (chunk(zlib.compress(TEXT[:90_000]), 3000), True),
    ],
    ids=["noise", "short", "long", "stored", "cut", "cut bzip2", "cut zstd", "broken off", "chunks"],
)
def test_search_is_whole_if_each_stream_is_unpacked_to_its_end(data: bytes, is_whole: bool) -> None:
    assert search_needles(NOISE + data + NOISE, [NEEDLE]) == ([], is_whole)


def test_search_is_not_whole_beyond_the_deepest_encoding() -> None:
    data = TEXT[:90_000]
    for depth in range(5):
        assert search_needles(data, [NEEDLE]) == ([], depth < 4)
        data = base64.b64encode(data) if depth == 1 else gzip.compress(data)


def test_search_is_not_whole_beyond_the_last_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"\x78\x9c" * 50
    assert search_needles(data, [NEEDLE]).is_whole
    monkeypatch.setattr(needles, "_MAX_OFFSETS", 49)
    assert not search_needles(data, [NEEDLE]).is_whole


def test_search_is_not_whole_if_a_format_cannot_be_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    needles._unpackers.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(needles, "_zstd_decompressor", lambda: None)
            assert {"zstd", "lz4"} & {*searched_formats()} == {"lz4"}
            assert search_needles(pack_zstd(TEXT[:900]), [NEEDLE]) == ([], False)
            assert search_needles(pack_lz4(TEXT[:900]), [NEEDLE]) == ([], True)
    finally:
        needles._unpackers.cache_clear()


@pytest.mark.parametrize(
    ("head", "is_whole"),
    [
        (b"content-encoding: br", False),
        (b"Content-Encoding: gzip,  BR", False),
        (b"Content-Encoding:deflate", False),
        (b"Content-Encoding: gzip", True),
        (b"Accept-Encoding: gzip, deflate, br", True),
        (b"Content-Encoding: abrasive", True),
    ],
)
def test_search_is_not_whole_behind_the_head_of_a_body_that_has_no_header_of_its_own(
    head: bytes, is_whole: bool
) -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = deflater.compress(TEXT[:900]) + deflater.flush()
    body = b"PUT / HTTP/1.1\r\n" + head + b"\r\nhost: a\r\n\r\n"
    assert search_needles(body + packed, [NEEDLE]) == ([], is_whole)
    assert search_needles(b"1\r\n\r\n" + head + b"\r\n", [NEEDLE]).is_whole, "without a body nothing is hidden"


def test_deflate_with_a_header_is_searched_whole() -> None:
    body = b"PUT / HTTP/1.1\r\nContent-Encoding: deflate\r\nhost: a\r\n\r\n"
    assert search_needles(body + zlib.compress(TEXT[:900]), [NEEDLE]) == ([], True)


def test_bytes_that_begin_like_a_stream_by_chance_leave_the_search_whole() -> None:
    random = Random(12)
    stored = b"\x78\x01\x00\xff\xff\x00\x00" + random.randbytes(70_000)
    extra = b"\x1f\x8b\x08\x04" + bytes(6) + b"\xff\xff" + random.randbytes(70_000)
    chances = b"".join(b"\x78\x9c" + random.randbytes(300) for _ in range(5000))
    assert search_needles(stored + extra + chances + random.randbytes(4_000_000), [NEEDLE]) == ([], True)


def test_random_content_is_readable_through_deflate_without_a_header() -> None:
    content = Random(9).randbytes(65536)
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = deflater.compress(content) + deflater.flush()
    needles = slice_needles("content", content)
    assert len(needles) == 16
    assert len(find_needles(packed, needles)) >= 14


def test_compressible_data_does_not_look_random() -> None:
    assert looks_random(NOISE) is True
    assert looks_random(NOISE.hex().encode()) is False
    assert looks_random(NOISE[:100]) is None


def test_formats_of_the_standard_library_are_always_searched() -> None:
    assert set(searched_formats()) >= {"zlib", "gzip", "bzip2", "xz"}


def test_zstd_and_lz4_are_searched_if_installed() -> None:
    assert set(searched_formats()) >= {"zstd", "lz4"}


def test_needles_of_one_seed_are_the_same_and_of_another_differ() -> None:
    assert make_text_needle("name", "a") == make_text_needle("name", "a") != make_text_needle("name", "b")
    assert Needle("name", b"x") != Needle("content", b"x")
