"""Differences between two open files, page by page, and their compressed size.

What may live here: reading and comparing file descriptors. Holes of sparse files are not read: they count as zeros.
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
    """The difference within one page: its offset, and its bytes in both files; the older file may have fewer."""

    offset: int
    new: bytes
    old: bytes


def copy_data(source: int, target: int) -> None:
    """Copy a file into an empty one, holes included."""
    at = 0
    while (at := _data(source, at)) >= 0:
        piece = os.pread(source, _CHUNK_BYTES, at)
        if not piece:
            break
        if piece != _ZEROS[: len(piece)]:
            write_at(target, piece, at)
        at += len(piece)
    os.ftruncate(target, os.fstat(source).st_size)


def equal(one: int, other: int) -> bool:
    """Whether two files have the same bytes."""
    if os.fstat(one).st_size != os.fstat(other).st_size:
        return False
    return all(os.pread(one, length, at) == os.pread(other, length, at) for at, length in _chunks(one, other, None))


def changed_pages(new: int, old: int, ranges: Iterable[tuple[int, int]] | None = None) -> Iterator[Page]:
    """Yields the pages of a file that differ from an older version, from front to back.

    Nothing beyond the new file's end is yielded: the caller truncates the older version there.

    Args:
        new: the file as it is now.
        old: its older version. If it is shorter, the missing end counts as zeros, as ``ftruncate`` makes it.
        ranges: where the two may differ, as begin and end (exclusive); None: anywhere.
    """
    for at, length in _chunks(new, old, ranges):
        ours, theirs = os.pread(new, length, at), os.pread(old, length, at)
        if ours == theirs:
            continue
        for inside in range(0, len(ours), PAGE_BYTES):
            page, was = ours[inside : inside + PAGE_BYTES], theirs[inside : inside + PAGE_BYTES]
            if page != was[: len(page)].ljust(len(page), b"\0"):
                begin, end = _differing(page, was)
                yield Page(at + inside + begin, page[begin:end], was[begin:end])


def compressed_bytes(
    new: int, old: int | None, ranges: Sequence[tuple[int, int]] | None = None, *, enough_bytes: int
) -> int:
    """The deflated size of a difference in bytes; at least 1 if there is a difference.

    Args:
        new: the file as it is now.
        old: its older version; None: all of it is new.
        ranges: where the file was written, as begin and end (exclusive). They count as the difference, and the older
            version is not read. None: the two are compared.
        enough_bytes: stop counting at this size.
    """
    packer = zlib.compressobj(_LEVEL, wbits=-15)
    counted_bytes = 0
    pieces: Iterator[bytes]
    if old is None:
        pieces = (os.pread(new, length, at) for at, length in _chunks(new, None, None))
    elif ranges is not None:
        pieces = _read(new, ranges)
    else:
        pieces = (page.new for page in changed_pages(new, old))
    is_any = False
    for piece in pieces:
        is_any = True
        counted_bytes += len(packer.compress(piece))
        if counted_bytes >= enough_bytes:
            return counted_bytes
    if not is_any:
        return int(old is not None and os.fstat(new).st_size != os.fstat(old).st_size)
    return counted_bytes + len(packer.flush())


def _differing(new: bytes, old: bytes) -> tuple[int, int]:
    """Begin and end of the differing part of two different pages."""
    begin = _common(lambda length: new[:length] == old[:length], min(len(new), len(old)))
    if len(new) != len(old):
        return begin, len(new)
    most = len(new) - begin
    return begin, len(new) - _common(lambda length: new[len(new) - length :] == old[len(old) - length :], most)


def _common(is_equal: Callable[[int], bool], most: int) -> int:
    """The greatest length up to ``most`` at which two texts are equal; they are equal at any smaller length."""
    return bisect_left(range(1, most + 1), True, key=lambda length: not is_equal(length))


def _chunks(one: int, other: int | None, ranges: Iterable[tuple[int, int]] | None) -> Iterator[tuple[int, int]]:
    """Offsets and lengths of pieces with data in either file, aligned to pages; up to the end of the first file."""
    size_bytes = os.fstat(one).st_size
    if ranges is not None:
        done = 0
        for begin, end in sorted(ranges):
            at = max(begin // PAGE_BYTES * PAGE_BYTES, done)
            end = min(-(-end // PAGE_BYTES) * PAGE_BYTES, size_bytes)  # noqa: PLW2901  # to whole pages
            while at < end:
                yield at, min(_CHUNK_BYTES, end - at)
                at += _CHUNK_BYTES
            done = max(done, end)
        return
    at = 0
    while at < size_bytes:
        found = [where for fd in (one, other) if fd is not None and (where := _data(fd, at)) >= 0]
        if not found or min(found) >= size_bytes:
            return
        at = min(found) // PAGE_BYTES * PAGE_BYTES
        yield at, min(_CHUNK_BYTES, size_bytes - at)
        at += _CHUNK_BYTES


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def notice_stores(fd: int) -> None:
    """Make the next store into a memory map of the file update its time; otherwise only a page's first store does."""
    with contextlib.suppress(AttributeError, TypeError):  # a system without it
        _libc().sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE_OUT)


def _read(fd: int, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    for begin, end in ranges:
        for at in range(begin, end, _CHUNK_BYTES):
            if piece := os.pread(fd, min(_CHUNK_BYTES, end - at), at):
                yield piece


def _data(fd: int, at: int) -> int:
    """The offset of the next data at or after ``at``; -1: there is none."""
    seek_data = getattr(os, "SEEK_DATA", None)
    if seek_data is None:
        return at if at < os.fstat(fd).st_size else -1
    try:
        return os.lseek(fd, at, seek_data)
    except OSError as error:
        if error.errno == errno.ENXIO:  # only a hole, or the end of the file
            return -1
        if error.errno == errno.EINVAL:  # this file system does not know holes
            return at if at < os.fstat(fd).st_size else -1
        raise


def write_at(fd: int, data: bytes, at: int) -> None:
    """Write all the data; a single ``pwrite`` may write less."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done
