"""Parquet files of plain columns, written and read without a library (why: docs/decisions/0005).

What may live here: the part of the format that records need: flat columns of integers, floats and texts, with or
without nulls, plain-encoded, packed by gzip, in row groups that bound the memory. Any Parquet reader opens these
files; ``read`` opens no others.

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
from typing import IO, Any

INT64, DOUBLE, TEXT = 2, 5, 6
"""Physical types of the format; a text is a BYTE_ARRAY marked as UTF-8."""

_MAGIC = b"PAR1"
_REQUIRED, _OPTIONAL, _UTF8, _PLAIN, _RLE, _GZIP, _DATA_PAGE = 0, 1, 0, 0, 3, 2, 0
_WINDOW_BITS, _LEVEL = 31, 1  # a gzip member; level 6 saves 2 % and takes four times as long
_LENGTH = struct.Struct("<I")
_CODES = {INT64: "q", DOUBLE: "d"}


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
    """Write a whole file. Each group of rows is the values of all columns; one at a time is held. Raises OSError."""
    place, rows = file.write(_MAGIC), 0
    groups = []
    for group in groups_of_rows:
        count, chunks, size = len(group[0]), [], 0
        rows += count
        for column, values in zip(columns, group, strict=True):
            page = _page(column, values)
            packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS)
            packed = packer.compress(page) + packer.flush()
            levels = {1: count, 2: _PLAIN, 3: _RLE, 4: _RLE}
            head = _struct({1: _DATA_PAGE, 2: len(page), 3: len(packed), 5: levels})
            fields = {1: column.type, 2: [_PLAIN, _RLE], 3: [column.name], 4: _GZIP, 5: _Long(count),
                     6: _Long(len(head) + len(page)), 7: _Long(len(head) + len(packed)), 9: _Long(place)}  # fmt: skip
            chunks.append({2: _Long(place), 3: fields})
            place += file.write(head) + file.write(packed)
            size += len(head) + len(page)
        groups.append({1: chunks, 2: _Long(size), 3: _Long(count)})
    schema: list[dict[int, Any]] = [{4: "schema", 5: len(columns)}]
    for column in columns:
        kind = {6: _UTF8} if column.type == TEXT else {}
        schema.append({1: column.type, 3: _OPTIONAL if column.is_optional else _REQUIRED, 4: column.name, **kind})
    pairs = [{1: key, 2: value} for key, value in metadata.items()]
    footer = _struct({1: 1, 2: schema, 3: _Long(rows), 4: groups, 5: pairs, 6: "pytest-cloudbench"})
    file.write(footer + _LENGTH.pack(len(footer)) + _MAGIC)


def _page(column: Column, values: Sequence[Any]) -> bytes:
    """Encode the values of some rows, after the bits that say which of them are present."""
    levels = b""
    if column.is_optional:
        there = "".join("0" if value is None else "1" for value in reversed(values))
        size = -(-len(values) // 8)
        levels = _varint(size << 1 | 1) + int(there, 2).to_bytes(size, "little")
        levels = _LENGTH.pack(len(levels)) + levels
        values = [value for value in values if value is not None]
    if column.type in _CODES:
        numbers = array(_CODES[column.type], values)
        if sys.byteorder == "big":
            numbers.byteswap()
        return levels + numbers.tobytes()
    text_of, known = column.text_of, dict[Any, bytes]()

    def item(value: Any) -> bytes:
        found = known.get(value)
        if found is None:
            text = (value if text_of is None else text_of(value)).encode()
            found = known[value] = _LENGTH.pack(len(text)) + text
        return found

    return levels + b"".join(map(item, values))


class _Long(int):
    """An integer that the format declares as 64 bits wide; others have 32."""


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _kind(value: Any) -> int:
    return 6 if isinstance(value, _Long) else 5 if isinstance(value, int) else 12 if isinstance(value, dict) else (
        9 if isinstance(value, list) else 8
    )  # fmt: skip


def _value(value: Any) -> bytes:
    if isinstance(value, int):
        return _varint(value << 1)  # zigzag; nothing here is negative
    if isinstance(value, dict):
        return _struct(value)
    if isinstance(value, list):
        kind, count = _kind(value[0]) if value else 12, len(value)
        head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + _varint(count)
        return head + b"".join(map(_value, value))
    text: bytes = value.encode("utf-8", "replace")
    return _varint(len(text)) + text


def _struct(fields: Mapping[int, Any]) -> bytes:
    found, former = bytearray(), 0
    for number, value in fields.items():
        found.append(number - former << 4 | _kind(value))
        found += _value(value)
        former = number
    return bytes(found) + b"\0"


# --- reading ---


def read(data: bytes, wanted: Collection[str] | None = None) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Read columns and metadata of a file that ``write`` wrote; any other raises NotReadable.

    ``wanted`` are the columns to read, as far as the file has them; without it, all.
    """
    with _readable():
        footer = _footer(data)
        schema, found = footer[2][1:], _names(footer)
        columns: dict[str, list[Any]] = {name: [] for name in found if wanted is None or name in wanted}
        for group in footer.get(4, []):
            for name, each, chunk in zip(found, schema, group[1], strict=True):
                if name in columns:
                    columns[name] += _chunk(data, chunk[3], each)
        return columns, {pair[1].decode(): pair[2].decode() for pair in footer.get(5, [])}


def names(data: bytes) -> list[str]:
    """Returns the names of all columns of a file that ``write`` wrote; any other raises NotReadable."""
    with _readable():
        return _names(_footer(data))


def groups(file: IO[bytes], wanted: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
    """Yields some columns of one row group after the other: the memory is that of one, however large the file is.

    Raises NotReadable, at once or on the way, for a file that ``write`` did not write, or one without such a column.
    """
    end = file.seek(0, os.SEEK_END)
    with _readable():
        file.seek(max(0, end - 8))
        tail = file.read()
        (size,) = _LENGTH.unpack(tail[:4])
        file.seek(max(0, end - 8 - size))
        footer = _footer(_MAGIC + file.read())
        places = {name: place for place, name in enumerate(_names(footer))}
        if lacking := [name for name in wanted if name not in places]:
            raise NotReadable(f"has no column {lacking[0]!r}")
    for group in footer.get(4, []):
        found = {}
        with _readable():
            for name in wanted:
                fields = group[1][places[name]][3]
                file.seek(fields[9])
                packed = file.read(min(fields[7], end))
                found[name] = _chunk(packed, {**fields, 9: 0}, footer[2][1 + places[name]])
        yield found


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except NotReadable:
        raise
    except (LookupError, ValueError, AttributeError, TypeError, RecursionError, struct.error, zlib.error) as error:
        raise NotReadable(f"is damaged, or has a feature that is not known here ({error})") from error


def _footer(data: bytes) -> dict[int, Any]:
    if data[:4] != _MAGIC or data[-4:] != _MAGIC:
        raise NotReadable("is no Parquet file")
    (size,) = _LENGTH.unpack(data[-8:-4])
    footer: dict[int, Any] = _parse(data, len(data) - 8 - size)[0]
    return footer


def _names(footer: Mapping[int, Any]) -> list[str]:
    return [each[4].decode() for each in footer[2][1:]]


def _chunk(data: bytes, fields: Mapping[int, Any], element: Mapping[int, Any]) -> list[Any]:
    head, start = _parse(data, fields[9])
    page_fields = head[5]
    if fields[4] != _GZIP or page_fields[2] != _PLAIN or page_fields[1] != fields[5]:
        raise NotReadable("has another packing or encoding than records have")
    page = memoryview(zlib.decompress(data[start : start + head[3]], _WINDOW_BITS))
    count, there = page_fields[1], None
    if element[3] == _OPTIONAL:
        (size,) = _LENGTH.unpack(page[:4])
        levels, page = page[4 : 4 + size], page[4 + size :]
        _, bits_at = _number(bytes(levels), 0)
        bits = int.from_bytes(levels[bits_at:], "little")
        there = f"{bits:0{count}b}"[::-1]
        count = there.count("1")
    values = iter(_texts(page, count) if element[1] == TEXT else _numbers(page, element[1]))
    return list(values) if there is None else [next(values) if bit == "1" else None for bit in there]


def _numbers(page: memoryview, kind: int) -> Sequence[Any]:
    numbers = array(_CODES[kind])
    numbers.frombytes(page)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _texts(page: memoryview, count: int) -> Iterator[str]:
    data, place, size_at = bytes(page), 0, _LENGTH.unpack_from
    for _ in range(count):
        start = place + 4
        place = start + size_at(data, place)[0]
        yield data[start:place].decode()


def _number(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _parse(data: bytes, place: int, kind: int = 12) -> tuple[Any, int]:
    """Parse one value of Thrift's compact protocol. Returns it and the position after it."""
    if kind in (5, 6):
        value, place = _number(data, place)
        return value >> 1 ^ -(value & 1), place
    if kind == 8:
        size, place = _number(data, place)
        return data[place : place + size], place + size
    if kind == 9:
        head, place = data[place], place + 1
        count, kind, items = head >> 4, head & 15, []
        if count == 15:
            count, place = _number(data, place)
        for _ in range(count):
            item, place = _parse(data, place, kind)
            items.append(item)
        return items, place
    if kind != 12:
        raise NotReadable("has a feature that is not known here")
    fields, number = dict[int, Any](), 0
    while head := data[place]:
        if not head >> 4:
            raise NotReadable("has a feature that is not known here")
        number += head >> 4
        fields[number], place = _parse(data, place + 1, head & 15)
    return fields, place + 1
