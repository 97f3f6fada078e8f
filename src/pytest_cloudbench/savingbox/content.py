"""Differences between two open files, page by page, and their compressed size.

Holes of sparse files are not read: they count as zeros.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

PAGE_BYTES = 4096
"""The unit of patches: the page cache writes pages whole, and so does a writer that is killed."""

_CHUNK_BYTES = 1 << 18
_ZEROS = bytes(_CHUNK_BYTES)
_WRITE_OUT = 1 | 2  # SYNC_FILE_RANGE_WAIT_BEFORE (_WRITE skips pages that are being written already), and _WRITE
_LEVEL = 1
"""zlib's compression level. Low: the counter only estimates what a client sends, and runs at every change."""


class Page(NamedTuple):
    """The difference within one page: its offset, and its bytes in both files. The older may have fewer."""

    offset: int
    new: bytes
    old: bytes


def copy_data(source: int, target: int, status: os.stat_result) -> int:
    """Copy a file, which had this status just now, into an empty one, holes included. Return the bytes written."""
    if status.st_size <= min(_CHUNK_BYTES - 1, 512 * getattr(status, "st_blocks", 0)):  # a small file without holes
        # One byte more than its size shows whether it has grown. Reading a chunk would take memory for all of it.
        piece = os.pread(source, status.st_size + 1, 0)
        if len(piece) <= status.st_size:
            write_at(target, piece, 0)
            return len(piece)
    offset = written_bytes = 0
    while (offset := _find_data(source, offset)) >= 0:
        piece = os.pread(source, _CHUNK_BYTES, offset)
        if not piece:
            break
        if piece != _ZEROS[: len(piece)]:
            write_at(target, piece, offset)
            written_bytes += len(piece)
        offset += len(piece)
    os.ftruncate(target, os.fstat(source).st_size)
    return written_bytes


def are_equal(one: int, other: int) -> bool:
    """Return whether two files have the same bytes."""
    if os.fstat(one).st_size != os.fstat(other).st_size:
        return False
    return all(
        os.pread(one, length, offset) == os.pread(other, length, offset)
        for offset, length in _iterate_chunks(one, other, None)
    )


def changed_pages(new: int, old: int, ranges: Iterable[tuple[int, int]] | None = None) -> Iterator[Page]:
    """Yield the pages of a file that differ from an older version, from front to back.

    Nothing beyond the new file's end is yielded: the caller truncates the older version there.

    Args:
        new: the file as it is now.
        old: its older version. If it is shorter, the missing end counts as zeros, as ``ftruncate`` makes it.
        ranges: where the two may differ, as begin and end (exclusive), or None for anywhere.
    """
    for offset, length in _iterate_chunks(new, old, ranges):
        new_data, old_data = os.pread(new, length, offset), os.pread(old, length, offset)
        if new_data == old_data:
            continue
        for inside in range(0, len(new_data), PAGE_BYTES):
            page, was = new_data[inside : inside + PAGE_BYTES], old_data[inside : inside + PAGE_BYTES]
            if page != was[: len(page)].ljust(len(page), b"\0"):
                begin, end = _trim_equal_ends(page, was)
                yield Page(offset + inside + begin, page[begin:end], was[begin:end])


def compressed_bytes(
    new: int, old: int | None, ranges: Sequence[tuple[int, int]] | None = None, *, enough_bytes: int
) -> int:
    """Return the deflated size of a difference in bytes, at least 1 if there is a difference.

    Args:
        new: the file as it is now.
        old: its older version, or None if all of it is new.
        ranges: where the file was written, as begin and end (exclusive). They count as the difference, and the older
            version is not read. With None, the two are compared.
        enough_bytes: stop counting at this size.
    """
    packer = zlib.compressobj(_LEVEL, wbits=-15)
    counted_bytes = 0
    pieces: Iterator[bytes]
    if old is None:
        pieces = (os.pread(new, length, offset) for offset, length in _iterate_chunks(new, None, None))
    elif ranges is not None:
        pieces = _read_ranges(new, ranges)
    else:
        pieces = (page.new for page in changed_pages(new, old))
    has_difference = False
    for piece in pieces:
        has_difference = True
        counted_bytes += len(packer.compress(piece))
        if counted_bytes >= enough_bytes:
            return counted_bytes
    if not has_difference:
        return int(old is not None and os.fstat(new).st_size != os.fstat(old).st_size)
    return counted_bytes + len(packer.flush())


def _trim_equal_ends(new: bytes, old: bytes) -> tuple[int, int]:
    """Return the begin and end of the differing part of two different pages."""
    begin = _measure_common(lambda length: new[:length] == old[:length], min(len(new), len(old)))
    if len(new) != len(old):
        return begin, len(new)
    limit = len(new) - begin
    return begin, len(new) - _measure_common(lambda length: new[len(new) - length :] == old[len(old) - length :], limit)


def _measure_common(is_equal: Callable[[int], bool], limit: int) -> int:
    """Return the greatest length up to ``limit`` for which ``is_equal`` holds, as it does for any smaller one."""
    return bisect_left(range(1, limit + 1), True, key=lambda length: not is_equal(length))


def _iterate_chunks(
    first: int, second: int | None, ranges: Iterable[tuple[int, int]] | None
) -> Iterator[tuple[int, int]]:
    """Yield offsets and lengths of pieces with data in either file, aligned to pages, up to the first file's end."""
    size_bytes = os.fstat(first).st_size
    if ranges is not None:
        done = 0
        for begin, end in sorted(ranges):
            offset = max(begin // PAGE_BYTES * PAGE_BYTES, done)
            end = min(-(-end // PAGE_BYTES) * PAGE_BYTES, size_bytes)  # noqa: PLW2901  # to whole pages
            while offset < end:
                yield offset, min(_CHUNK_BYTES, end - offset)
                offset += _CHUNK_BYTES
            done = max(done, end)
        return
    offset = 0
    while offset < size_bytes:
        data_offsets = [
            data_offset for fd in (first, second) if fd is not None and (data_offset := _find_data(fd, offset)) >= 0
        ]
        if not data_offsets or min(data_offsets) >= size_bytes:
            return
        offset = min(data_offsets) // PAGE_BYTES * PAGE_BYTES
        yield offset, min(_CHUNK_BYTES, size_bytes - offset)
        offset += _CHUNK_BYTES


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def notice_stores(fd: int) -> None:
    """Make the next store into a memory map of the file update its time. Otherwise only a page's first store does."""
    with contextlib.suppress(AttributeError, TypeError):  # a system without it
        _libc().sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE_OUT)


def _read_ranges(fd: int, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    for begin, end in ranges:
        for offset in range(begin, end, _CHUNK_BYTES):
            if piece := os.pread(fd, min(_CHUNK_BYTES, end - offset), offset):
                yield piece


def _find_data(fd: int, offset: int) -> int:
    """Return the offset of the next data at or after ``offset``, or -1 if there is none."""
    seek_data = getattr(os, "SEEK_DATA", None)
    if seek_data is None:
        return offset if offset < os.fstat(fd).st_size else -1
    try:
        return os.lseek(fd, offset, seek_data)
    except OSError as error:
        if error.errno == errno.ENXIO:  # only a hole, or the end of the file
            return -1
        if error.errno == errno.EINVAL:  # this file system does not know holes
            return offset if offset < os.fstat(fd).st_size else -1
        raise


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all the data, since a single ``pwrite`` may write less."""
    done = os.pwrite(fd, data, offset)
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], offset + done)
