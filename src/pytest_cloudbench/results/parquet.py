"""Parquet files of plain columns, written and read without a library (why: docs/decisions/0005).

This is the part of the format that records need: flat columns of integers, floats and texts, with or without nulls,
plain-encoded, packed by gzip, in row groups that bound the memory. Any Parquet reader opens these files. ``read`` opens
no others.

The names and numbers are those of the format's ``parquet.thrift``, in Thrift's compact protocol.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from operator import is_not
from types import MappingProxyType
from typing import IO, Any

INT64, DOUBLE, TEXT = 2, 5, 6
"""Physical types of the format. A text is a BYTE_ARRAY marked as UTF-8."""

_MAGIC = b"PAR1"
_REQUIRED, _OPTIONAL, _UTF8, _PLAIN, _RLE, _GZIP, _DATA_PAGE = 0, 1, 0, 0, 3, 2, 0
_WINDOW_BITS, _LEVEL = 31, 1  # a gzip member (level 6 would save 2 % in four times the time)
_LENGTH_FIELD = struct.Struct("<I")
_CODES = {INT64: "q", DOUBLE: "d"}
_DIGITS = bytes.maketrans(b"\0\1", b"01")


@dataclass(frozen=True, slots=True)
class Column:
    """One column. A value may be None if the column ``is_optional``.

    ``text_of`` turns values of a TEXT column into texts, such as the members of an enumeration.
    """

    name: str
    type: int
    is_optional: bool = False
    text_of: Callable[[Any], str] | None = None


class NotReadable(ValueError):
    """The file is not a Parquet file, or uses features that this module never writes."""


# --- writing ---


def write(
    file: IO[bytes], columns: Sequence[Column], groups_of_rows: Iterable[Sequence[Sequence[Any]]],
    metadata: Mapping[str, str],
) -> None:  # fmt: skip
    """Write a whole file, with one group of rows at a time in memory: the values of each column. Raises OSError."""
    offset, rows = file.write(_MAGIC), 0
    row_groups = []
    for group in groups_of_rows:
        count, chunks, size = len(group[0]), [], 0
        rows += count
        for column, values in zip(columns, group, strict=True):
            page = _encode_page(column, values)
            packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS)
            packed = packer.compress(page) + packer.flush()
            page_fields = {1: count, 2: _PLAIN, 3: _RLE, 4: _RLE}
            header = _encode_struct({1: _DATA_PAGE, 2: len(page), 3: len(packed), 5: page_fields})
            fields = {1: column.type, 2: [_PLAIN, _RLE], 3: [column.name], 4: _GZIP,
                     5: _Long(count), 6: _Long(len(header) + len(page)), 7: _Long(len(header) + len(packed)),
                     9: _Long(offset)}  # fmt: skip
            chunks.append({2: _Long(offset), 3: fields})
            offset += file.write(header) + file.write(packed)
            size += len(header) + len(page)
        row_groups.append({1: chunks, 2: _Long(size), 3: _Long(count)})
    schema: list[dict[int, Any]] = [{4: "schema", 5: len(columns)}]
    for column in columns:
        text_mark = {6: _UTF8} if column.type == TEXT else {}
        schema.append({1: column.type, 3: _OPTIONAL if column.is_optional else _REQUIRED, 4: column.name, **text_mark})
    pairs = [{1: key, 2: value} for key, value in metadata.items()]
    footer = _encode_struct({1: 1, 2: schema, 3: _Long(rows), 4: row_groups, 5: pairs, 6: "pytest-cloudbench"})
    file.write(footer + _LENGTH_FIELD.pack(len(footer)) + _MAGIC)


def _encode_page(column: Column, values: Sequence[Any]) -> bytes:
    """Encode the values of some rows, preceded by bits that mark those that are present."""
    levels = b""
    if column.is_optional:
        is_present = bytes(map(is_not, reversed(values), repeat(None)))
        size = -(-len(values) // 8)
        levels = _encode_varint(size << 1 | 1) + int(is_present.translate(_DIGITS), 2).to_bytes(size, "little")
        levels = _LENGTH_FIELD.pack(len(levels)) + levels
        values = [value for value in values if value is not None] if 0 in is_present else values
    if column.type in _CODES:
        numbers = array(_CODES[column.type], values)
        if sys.byteorder == "big":
            numbers.byteswap()
        return levels + numbers.tobytes()
    encoded = _EncodedTexts(column.text_of)
    if values and values.count(values[0]) == len(values):  # most columns of most runs, in a tenth of the time
        return levels + encoded[values[0]] * len(values)
    return levels + b"".join(map(encoded.__getitem__, values))


class _EncodedTexts(dict[Any, bytes]):
    """The texts of values as a page has them, each encoded once."""

    def __init__(self, text_of: Callable[[Any], str] | None) -> None:
        super().__init__()
        self._text_of = text_of

    def __missing__(self, value: Any) -> bytes:
        text = (value if self._text_of is None else self._text_of(value)).encode()
        data = self[value] = _LENGTH_FIELD.pack(len(text)) + text
        return data


class _Long(int):
    """An integer that the format declares as 64 bits wide. Others have 32."""


def _encode_varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def _thrift_type(value: Any) -> int:
    return 6 if isinstance(value, _Long) else 5 if isinstance(value, int) else 12 if isinstance(value, dict) else (
        9 if isinstance(value, list) else 8
    )  # fmt: skip


def _encode_value(value: Any) -> bytes:
    if isinstance(value, int):
        return _encode_varint(value << 1)  # zigzag encoding of numbers that are never negative here
    if isinstance(value, dict):
        return _encode_struct(value)
    if isinstance(value, list):
        item_type, count = _thrift_type(value[0]) if value else 12, len(value)
        header = bytes([count << 4 | item_type]) if count < 15 else bytes([0xF0 | item_type]) + _encode_varint(count)
        return header + b"".join(map(_encode_value, value))
    text: bytes = value.encode("utf-8", "replace")
    return _encode_varint(len(text)) + text


def _encode_struct(fields: Mapping[int, Any]) -> bytes:
    data, last_number = bytearray(), 0
    for number, value in fields.items():
        data.append(number - last_number << 4 | _thrift_type(value))
        data += _encode_value(value)
        last_number = number
    return bytes(data) + b"\0"


# --- reading ---


def read(data: bytes, wanted: Collection[str] | None = None) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Read columns and metadata of a file that ``write`` wrote. Any other file raises NotReadable.

    ``wanted`` are the columns to read, as far as the file has them. Without it, all are read.
    """
    with _translate_errors():
        footer = _read_footer(data)
        schema, names = footer[2][1:], _footer_names(footer)
        columns: dict[str, list[Any]] = {name: [] for name in names if wanted is None or name in wanted}
        for group in footer.get(4, []):
            for name, element, chunk in zip(names, schema, group[1], strict=True):
                if name in columns:
                    columns[name] += _decode_chunk(data, chunk[3], element)
        return columns, {pair[1].decode(): pair[2].decode() for pair in footer.get(5, [])}


def column_names(data: bytes) -> list[str]:
    """Return the names of all columns of a file that ``write`` wrote. Any other file raises NotReadable."""
    with _translate_errors():
        return _footer_names(_read_footer(data))


def read_groups(
    file: IO[bytes], wanted: Sequence[str], defaults: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[dict[str, list[Any]]]:
    """Yield some columns of one row group after the other, in the memory of one group, however large the file is.

    A column in ``defaults`` that the file does not have is filled with the value there. Raises NotReadable, at once or
    on the way, for a file that ``write`` did not write, or one without any other column.
    """
    end = file.seek(0, os.SEEK_END)
    with _translate_errors():
        file.seek(max(0, end - 8))
        tail = file.read()
        (size,) = _LENGTH_FIELD.unpack(tail[:4])
        file.seek(max(0, end - 8 - size))
        footer = _read_footer(_MAGIC + file.read())
        indexes = {name: index for index, name in enumerate(_footer_names(footer))}
        if missing := [name for name in wanted if name not in indexes and name not in defaults]:
            raise NotReadable(f"has no column {missing[0]!r}")
    for group in footer.get(4, []):
        columns = {}
        with _translate_errors():
            for name in indexes.keys() & wanted:
                fields = group[1][indexes[name]][3]
                file.seek(fields[9])
                packed = file.read(min(fields[7], end))
                columns[name] = _decode_chunk(packed, {**fields, 9: 0}, footer[2][1 + indexes[name]])
        count = len(next(iter(columns.values()), ()))
        yield {name: columns[name] if name in columns else [defaults[name]] * count for name in wanted}


_DAMAGE_ERRORS = (
    LookupError, ValueError, AttributeError, TypeError, RecursionError, StopIteration, struct.error, zlib.error,
)  # fmt: skip


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except NotReadable:
        raise
    except _DAMAGE_ERRORS as error:
        raise NotReadable(f"is damaged, or has a feature that is not known here ({error})") from error


def _read_footer(data: bytes) -> dict[int, Any]:
    if data[:4] != _MAGIC or data[-4:] != _MAGIC:
        raise NotReadable("is not a Parquet file")
    (size,) = _LENGTH_FIELD.unpack(data[-8:-4])
    footer: dict[int, Any] = _parse(data, len(data) - 8 - size)[0]
    return footer


def _footer_names(footer: Mapping[int, Any]) -> list[str]:
    return [element[4].decode() for element in footer[2][1:]]


def _decode_chunk(data: bytes, fields: Mapping[int, Any], element: Mapping[int, Any]) -> list[Any]:
    header, start = _parse(data, fields[9])
    page_fields = header[5]
    if fields[4] != _GZIP or page_fields[2] != _PLAIN or page_fields[1] != fields[5]:
        raise NotReadable("has another packing or encoding than records have")
    page = memoryview(zlib.decompress(data[start : start + header[3]], _WINDOW_BITS))
    count, present = page_fields[1], None
    if element[3] == _OPTIONAL:
        (size,) = _LENGTH_FIELD.unpack(page[:4])
        levels, page = page[4 : 4 + size], page[4 + size :]
        _, bits_at = _decode_varint(bytes(levels), 0)
        bits = int.from_bytes(levels[bits_at:], "little")
        present = f"{bits:0{count}b}"[::-1]
        count = present.count("1")
    values = iter(_decode_texts(page, count) if element[1] == TEXT else _decode_numbers(page, element[1]))
    return list(values) if present is None else [next(values) if bit == "1" else None for bit in present]


def _decode_numbers(page: memoryview, kind: int) -> Sequence[Any]:
    numbers = array(_CODES[kind])
    numbers.frombytes(page)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _decode_texts(page: memoryview, count: int) -> Iterator[str]:
    data, offset, read_size = bytes(page), 0, _LENGTH_FIELD.unpack_from
    for _ in range(count):
        start = offset + 4
        offset = start + read_size(data, offset)[0]
        yield data[start:offset].decode()


def _decode_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset


def _parse(data: bytes, offset: int, kind: int = 12) -> tuple[Any, int]:
    """Parse one value of Thrift's compact protocol. Return it and the position after it."""
    if kind in (5, 6):
        value, offset = _decode_varint(data, offset)
        return value >> 1 ^ -(value & 1), offset
    if kind == 8:
        size, offset = _decode_varint(data, offset)
        return data[offset : offset + size], offset + size
    if kind == 9:
        header, offset = data[offset], offset + 1
        count, kind, items = header >> 4, header & 15, []
        if count == 15:
            count, offset = _decode_varint(data, offset)
        for _ in range(count):
            item, offset = _parse(data, offset, kind)
            items.append(item)
        return items, offset
    if kind != 12:
        raise NotReadable("has a feature that is not known here")
    fields, number = dict[int, Any](), 0
    while header := data[offset]:
        if not header >> 4:
            raise NotReadable("has a feature that is not known here")
        number += header >> 4
        fields[number], offset = _parse(data, offset + 1, header & 15)
    return fields, offset + 1
