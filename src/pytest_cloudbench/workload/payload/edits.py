"""Changes to an existing file as values, and streams of (due time in seconds, edit).

Nothing is changed in place: the content before an edit stays readable, so a test can compare both.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Protocol

from pytest_cloudbench.model import KIB, MIB, Content, UsageError
from pytest_cloudbench.workload.payload.base import RandomContent
from pytest_cloudbench.workload.payload.contents import Piece, Pieces


class Edit(Protocol):
    """A change to a file by ``author``, the number of one of the users who share it (0, 1, ...)."""

    @property
    def author(self) -> int: ...

    @property
    def size_bytes(self) -> int:
        """Number of bytes the user wrote, the divisor of TUE (traffic usage efficiency)."""
        ...

    def apply(self, content: Content) -> Content:
        """Return the content after the edit. Raises UsageError if the edit does not fit."""
        ...


@dataclass(frozen=True, slots=True)
class Insert:
    """An insertion of ``new`` at ``where``: front (prepend), middle, random or back (append)."""

    new: Content
    where: str = "back"
    key: str = ""
    author: int = 0

    @property
    def size_bytes(self) -> int:
        """Size of the new bytes."""
        return self.new.size_bytes

    def apply(self, content: Content) -> Content:
        """Return the content with the new bytes inserted."""
        size = content.size_bytes
        offset = _choose_offset(self.where, size, self.key)
        return Pieces.join(
            [Piece(content, 0, offset), Piece(self.new, 0, self.new.size_bytes), Piece(content, offset, size - offset)]
        )


@dataclass(frozen=True, slots=True)
class Overwrite:
    """An overwrite of as many bytes as ``new`` has, at ``where``: front, middle, random or back."""

    new: Content
    where: str = "random"
    key: str = ""
    author: int = 0

    @property
    def size_bytes(self) -> int:
        """Size of the new bytes."""
        return self.new.size_bytes

    def apply(self, content: Content) -> Content:
        """Return the content with some bytes replaced, as long as before."""
        size, length = content.size_bytes, self.new.size_bytes
        if length > size:
            raise UsageError(f"overwrite: {length} bytes do not fit into a file of {size}")
        offset = _choose_offset(self.where, size - length, self.key)
        end = offset + length
        return Pieces.join([Piece(content, 0, offset), Piece(self.new, 0, length), Piece(content, end, size - end)])


@dataclass(frozen=True, slots=True)
class Truncate:
    """A truncation to the first ``keep_bytes``."""

    keep_bytes: int
    author: int = 0

    @property
    def size_bytes(self) -> int:
        """Zero, because nothing is written."""
        return 0

    def apply(self, content: Content) -> Content:
        """Return the content, shortened to ``keep_bytes``."""
        if self.keep_bytes > content.size_bytes:
            raise UsageError(f"truncate: keep_bytes is {self.keep_bytes}; the file has {content.size_bytes}")
        return Pieces.join([Piece(content, 0, self.keep_bytes)])


def _choose_offset(where: str, size: int, key: str) -> int:
    if where == "random":
        return Random(f"{key}/where/{size}").randint(0, size)
    return {"front": 0, "middle": size // 2, "back": size}[where]


def appends(
    seed: str, interval_s: float = 1.0, block_bytes: int = 1, until_bytes: int = KIB
) -> Iterator[tuple[float, Edit]]:
    """Append one block of random bytes per interval, starting at once, until ``until_bytes`` were appended.

    Source: paper 002, 3.2 and 3.3: one byte every 0.1 to 10 s up to 1 KiB, and 50 to 100 KB every second up to 5 MB.
    """
    for number, offset in enumerate(range(0, until_bytes, block_bytes)):
        size = min(block_bytes, until_bytes - offset)
        yield number * interval_s, Insert(RandomContent(f"{seed}/{number}", size))


def http_download(
    seed: str, size_bytes: int = 5 * MIB, rate_bytes_per_s: float = 10_000.0, write_bytes: int = 4 * KIB
) -> Iterator[tuple[float, Edit]]:
    """Append to a file as a download at a steady rate does: each write is due when its last byte has arrived.

    Source: paper 002, 4.2: 5 MB at 80 kbit/s, and about 9 KB per write at 200 kbit/s and above.
    """
    download = RandomContent(f"{seed}/download", size_bytes)
    for offset in range(0, size_bytes, write_bytes):
        length = min(write_bytes, size_bytes - offset)
        part = Pieces.join([Piece(download, offset, length)])
        yield (offset + length) / rate_bytes_per_s, Insert(part)


def two_users(
    seed: str, duration_s: float = 3600.0, max_interval_s: float = 10.0, max_edit_bytes: int = 10, users: int = 2
) -> Iterator[tuple[float, Edit]]:
    """Edit one document as several users, each adding or overwriting 1 to ``max_edit_bytes`` at random intervals.

    Each user makes an edit every 0 to ``max_interval_s``, an append or an overwrite.
    Each edit's ``author`` is its user. Source: paper 002, 4.2: two users, one hour, a document of 1 MB, both kinds of
    edit equally likely.
    """

    def edits_of_user(user: int) -> Iterator[tuple[float, int, int, Edit]]:
        chance = Random(f"{seed}/user/{user}")
        due_s, number = chance.uniform(0, max_interval_s), 0
        while due_s < duration_s:
            key = f"{seed}/{user}/{number}"
            new = RandomContent(key, chance.randint(1, max_edit_bytes))
            edit: Edit = Insert(new, author=user)
            if chance.random() < 0.5:
                edit = Overwrite(new, "random", key, user)
            yield due_s, user, number, edit
            due_s += chance.uniform(0, max_interval_s)
            number += 1

    for due_s, _, _, edit in heapq.merge(
        *(edits_of_user(user) for user in range(users)), key=lambda timed_edit: timed_edit[:3]
    ):
        yield due_s, edit
