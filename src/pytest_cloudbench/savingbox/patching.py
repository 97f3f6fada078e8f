"""Patches of files that have begun, as they are noted before the first byte is written.

After a kill, the note tells a half-written patch of ours from a change by somebody else.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from pytest_cloudbench.savingbox.content import Page, changed_pages


class WrittenPiece(NamedTuple):
    """One piece of a patched file: its offset, and the length and CRC-32 of its bytes before and after."""

    offset: int
    old_bytes: int
    old_crc: int
    new_bytes: int
    new_crc: int


def written_pieces(pages: Iterable[Page]) -> list[WrittenPiece]:
    """Return the pieces of a patch that writes these pages."""
    return [
        WrittenPiece(page.offset, len(page.old), zlib.crc32(page.old), len(page.new), zlib.crc32(page.new))
        for page in pages
    ]


def unwritten_pieces(old: int, pages: Iterable[Page], was_bytes: int, to_bytes: int) -> list[WrittenPiece]:
    """Return the pieces that a patch leaves unchanged, up to where it truncates the file."""
    pieces, offset = [], 0
    for begin, end in (*((page.offset, page.offset + len(page.new)) for page in pages), (was_bytes, was_bytes)):
        if offset < min(begin, was_bytes):
            unchanged = os.pread(old, min(begin, was_bytes) - offset, offset)
            remaining = unchanged[: max(0, to_bytes - offset)]
            pieces.append(
                WrittenPiece(offset, len(unchanged), zlib.crc32(unchanged), len(remaining), zlib.crc32(remaining))
            )
        offset = end
    return pieces


class Patching(NamedTuple):
    """A patch that has begun: the inode of the sync folder's file, its size before and after, and its pieces."""

    inode: int
    was_bytes: int
    to_bytes: int
    pieces: tuple[WrittenPiece, ...]

    @property
    def covers_old_file(self) -> bool:
        """True if the pieces cover the whole old file, including the parts that are not written."""
        return sum(piece.old_bytes for piece in self.pieces) == self.was_bytes

    def has_known_pieces(self, fd: int) -> bool:
        """Return whether each piece of a file is as before or as after the patch, and its size lies between both."""
        size_bytes = os.fstat(fd).st_size
        if not min(self.was_bytes, self.to_bytes) <= size_bytes <= max(self.was_bytes, self.to_bytes):
            return False
        if size_bytes > self.to_bytes and not self.covers_old_file:
            return False  # not cut yet, and nothing is known of the part to be cut off
        for piece in self.pieces:
            data = os.pread(fd, max(piece.new_bytes, piece.old_bytes), piece.offset)
            known = {(piece.old_bytes, piece.old_crc), (piece.new_bytes, piece.new_crc)}
            if (len(data), zlib.crc32(data)) not in known:
                return False
        return True

    def explains_differences(self, source: int, patched: int) -> bool:
        """Return whether all pages in which the patched file differs from its source lie in pieces of the patch."""
        return all(
            page.offset >= self.was_bytes or self.covers(page.offset, page.offset + len(page.new))
            for page in changed_pages(source, patched)
        )

    def covers(self, begin: int, end: int) -> bool:
        """Return whether a part of the file lies in one of the pieces."""
        index = bisect_right(self.pieces, begin, key=lambda piece: piece.offset) - 1
        return index >= 0 and end <= self.pieces[index].offset + max(
            self.pieces[index].old_bytes, self.pieces[index].new_bytes
        )
