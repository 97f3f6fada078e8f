"""Valid images: a decoder written here from the standard reads every coefficient, and Pillow agrees."""

from __future__ import annotations

import importlib
import importlib.util
import io
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.model import KIB
from pytest_cloudbench.workload.payload import Payloads
from pytest_cloudbench.workload.payload.jpeg import MIN_BYTES
from tests.limits import scale_examples

SIZES = st.one_of(st.integers(MIN_BYTES, MIN_BYTES + 300), st.integers(MIN_BYTES, 20 * KIB))


def image(size: int, seq: int = 0) -> bytes:
    content = Payloads("s").jpeg(size).content(0, seq)
    return content.read(0, size)


@dataclass
class Decoded:
    """The result of a baseline decoder: the frame, the tables and the coefficients of each block."""

    width: int = 0
    height: int = 0
    markers: list[int] = field(default_factory=list)
    tables: dict[int, dict[tuple[int, int], int]] = field(default_factory=dict)
    blocks: list[list[int]] = field(default_factory=list)
    trailer: bytes = b""


def decode(data: bytes) -> Decoded:
    """Decode by ITU T.81: marker segments, Huffman tables, one scan of one component."""
    decoded, position = Decoded(), 2
    assert data[:2] == b"\xff\xd8"
    while True:
        assert data[position] == 0xFF
        while data[position + 1] == 0xFF:  # fill bytes
            position += 1
        marker, length = data[position + 1], int.from_bytes(data[position + 2 : position + 4], "big")
        body = data[position + 4 : position + 2 + length]
        assert len(body) == length - 2
        decoded.markers.append(marker)
        position += 2 + length
        if marker == 0xC4:
            decoded.tables[body[0]] = huffman(body[1:17], body[17:])
        elif marker == 0xC0:
            decoded.height, decoded.width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
        elif marker == 0xDA:
            break
    count = -(-decoded.width // 8) * -(-decoded.height // 8)
    end = data.index(b"\xff", position)  # no byte is stuffed, so the first 0xFF ends the scan
    bits = Bits(data[position:end])
    decoded.blocks = [read_block(bits, decoded) for _ in range(count)]
    assert bits.position == len(bits.data) * 8, "nothing is left of the scan"
    decoded.trailer = data[end:]
    return decoded


def huffman(counts: bytes, symbols: bytes) -> dict[tuple[int, int], int]:
    assert sum(counts) == len(symbols)
    codes, code, number = {}, 0, 0
    for length, count in enumerate(counts, 1):
        for _ in range(count):
            assert code != (1 << length) - 1, "the code of all ones is reserved"
            codes[length, code] = symbols[number]
            code, number = code + 1, number + 1
        code <<= 1
    return codes


@dataclass
class Bits:
    data: bytes
    position: int = 0

    def take(self, count: int) -> int:
        value = 0
        for _ in range(count):
            value = value << 1 | self.data[self.position >> 3] >> (7 - (self.position & 7)) & 1
            self.position += 1
        return value

    def symbol(self, codes: dict[tuple[int, int], int]) -> int:
        code = 0
        for length in range(1, 17):
            code = code << 1 | self.take(1)
            if (length, code) in codes:
                return codes[length, code]
        raise AssertionError("no such code")


def read_block(bits: Bits, decoded: Decoded) -> list[int]:
    def number(size: int) -> int:
        value = bits.take(size)
        return value if not size or value >> (size - 1) else value - (1 << size) + 1

    values = [number(bits.symbol(decoded.tables[0x00]))]
    while len(values) < 64:
        run, size = divmod(bits.symbol(decoded.tables[0x10]), 16)
        values += [0] * run + [number(size)]
    return values


@settings(deadline=None, max_examples=scale_examples(25))
@given(size=SIZES, seq=st.integers(0, 99))
def test_every_size_decodes_to_the_last_bit(size: int, seq: int) -> None:
    data = image(size, seq)
    decoded = decode(data)
    assert len(data) == size
    assert decoded.trailer == b"\xff\xd9"
    assert [marker for marker in decoded.markers if marker != 0xFE] == [0xE0, 0xDB, 0xC0, 0xC4, 0xC4, 0xDA]
    assert all(len(values) == 64 and values[0] == 0 and max(map(abs, values)) <= 127 for values in decoded.blocks)


@pytest.mark.slow
def test_beyond_four_gigabytes_comments_fill_the_rest() -> None:
    size = 6 * 2**30 + 3
    content = Payloads("s").jpeg(size).content(0, 0)
    position, frame, comments = 2, b"", 0
    while True:
        marker = content.read(position, 2)
        if marker[1] == 0xFF:
            position += 1
            continue
        assert marker[0] == 0xFF
        length = int.from_bytes(content.read(position + 2, 2), "big")
        comments += marker[1] == 0xFE
        frame = content.read(position + 5, 4) if marker[1] == 0xC0 else frame
        position += 2 + length
        if marker[1] == 0xDA:
            break
    height, width = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:], "big")
    assert (height, width) == (65496, 65496)
    assert comments > 30_000
    assert position + height * width + 2 == size
    assert content.read(20 + 65537 - 3, 9) == content.read(20 + 65530, 30)[4:13]


def test_the_pixels_are_random_and_most_of_the_file() -> None:
    decoded = decode(image(20 * KIB))
    assert len(decoded.blocks) * 64 > 0.95 * 20 * KIB
    assert len({tuple(values) for values in decoded.blocks}) == len(decoded.blocks)
    values = [value for coefficients in decoded.blocks for value in coefficients[1:]]
    assert len(set(values)) == 254  # -127 to 127, never 0
    assert abs(sum(values) / len(values)) < 3


@pytest.mark.parametrize("size", [MIN_BYTES, 1000, 100_000, 1_500_000])
@pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="install Pillow to decode with libjpeg too")
def test_pillow_decodes_it(size: int) -> None:
    Image = importlib.import_module("PIL.Image")

    with Image.open(io.BytesIO(image(size))) as picture:
        picture.load()
        assert (picture.format, picture.mode) == ("JPEG", "L")
        low, high = picture.getextrema()
        assert picture.width * picture.height >= 0.9 * (size - MIN_BYTES)
        assert high - low > 100


def test_a_fake_has_a_jpeg_header_and_words() -> None:
    data = Payloads("s").fake_jpeg(50 * KIB).content(0, 1).read(0, 50 * KIB)
    start = data.index(b"\xff\xda")
    assert data[:11] == image(1000)[:11] == b"\xff\xd8\xff\xe0\x00\x10JFIF\x00"
    assert start < 200
    assert data[start + 10 :].decode("ascii").isprintable() is False  # it has line breaks
    assert data[start + 10 :].replace(b"\n", b" ").decode("ascii").isprintable()
    assert (Payloads("s").fake_jpeg(1), getattr(Payloads("s").fake_jpeg(1), "suffix", None))[1] == ".jpg"
    assert Payloads("s").fake_jpeg(7).content(0, 1).read(0, 9) == data[:7]
