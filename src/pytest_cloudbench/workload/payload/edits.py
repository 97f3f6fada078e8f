"""Changes to an existing file, and streams of them: content in, content out.

What may live here: edits as values, and iterators of (second at which it is due, edit). Nothing is changed in place:
the content before an edit stays readable, so a test can compare both.
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
    """A change to a file by ``author`` (0, 1...: one of the users who share it)."""

    @property
    def author(self) -> int: ...

    @property
    def size_bytes(self) -> int:
        """How many bytes the user wrote: what TUE divides by."""
        ...

    def apply(self, content: Content) -> Content:
        """The content after the edit. Raises UsageError when the edit does not fit."""
        ...


@dataclass(frozen=True, slots=True)
class Insert:
    """``new`` inserted at ``where``: front (prepend), middle, random, back (append)."""

    new: Content
    where: str = "back"
    key: str = ""
    author: int = 0

    @property
    def size_bytes(self) -> int:
        """Of what is new."""
        return self.new.size_bytes

    def apply(self, content: Content) -> Content:
        """Longer by what is new."""
        size = content.size_bytes
        at = _place(self.where, size, self.key)
        return Pieces.join(
            [Piece(content, 0, at), Piece(self.new, 0, self.new.size_bytes), Piece(content, at, size - at)]
        )


@dataclass(frozen=True, slots=True)
class Overwrite:
    """``new`` written over as many bytes at ``where``: front, middle, random, back."""

    new: Content
    where: str = "random"
    key: str = ""
    author: int = 0

    @property
    def size_bytes(self) -> int:
        """Of what is new."""
        return self.new.size_bytes

    def apply(self, content: Content) -> Content:
        """As long as before."""
        size, length = content.size_bytes, self.new.size_bytes
        if length > size:
            raise UsageError(f"overwrite: {length} bytes do not fit into a file of {size}")
        at = _place(self.where, size - length, self.key)
        end = at + length
        return Pieces.join([Piece(content, 0, at), Piece(self.new, 0, length), Piece(content, end, size - end)])


@dataclass(frozen=True, slots=True)
class Truncate:
    """Keep only the first ``keep_bytes``."""

    keep_bytes: int
    author: int = 0

    @property
    def size_bytes(self) -> int:
        """None: nothing is written."""
        return 0

    def apply(self, content: Content) -> Content:
        """Shorter, or the same."""
        if self.keep_bytes > content.size_bytes:
            raise UsageError(f"truncate: keep_bytes is {self.keep_bytes}; the file has {content.size_bytes}")
        return Pieces.join([Piece(content, 0, self.keep_bytes)])


def _place(where: str, size: int, key: str) -> int:
    if where == "random":
        return Random(f"{key}/where/{size}").randint(0, size)
    return {"front": 0, "middle": size // 2, "back": size}[where]


def appends(
    seed: str, interval_s: float = 1.0, block_bytes: int = 1, until_bytes: int = KIB
) -> Iterator[tuple[float, Edit]]:
    """One block of random bytes per interval until ``until_bytes`` were appended; the first at once.

    Source: paper 002, 3.2 and 3.3: one byte until 1 KiB every 0.1 to 10 s; 50 to 100 KB every second until 5 MB.
    """
    for number, offset in enumerate(range(0, until_bytes, block_bytes)):
        size = min(block_bytes, until_bytes - offset)
        yield number * interval_s, Insert(RandomContent(f"{seed}/{number}", size))


def http_download(
    seed: str, size_bytes: int = 5 * MIB, rate_bytes_per_s: float = 10_000.0, write_bytes: int = 4 * KIB
) -> Iterator[tuple[float, Edit]]:
    """A file that arrives at a steady rate: appended in writes, each due when its last byte has come in.

    Source: paper 002, 4.2: 5 MB at 80 kbit/s; about 9 KB per write at 200 kbit/s and above.
    """
    whole = RandomContent(f"{seed}/download", size_bytes)
    for offset in range(0, size_bytes, write_bytes):
        length = min(write_bytes, size_bytes - offset)
        part = Pieces.join([Piece(whole, offset, length)])
        yield (offset + length) / rate_bytes_per_s, Insert(part)


def two_users(
    seed: str, duration_s: float = 3600.0, max_interval_s: float = 10.0, max_edit_bytes: int = 10, users: int = 2
) -> Iterator[tuple[float, Edit]]:
    """Users who edit one document: each, every 0 to ``max_interval_s``, appends or overwrites 1 to ``max_edit_bytes``.

    Source: paper 002, 4.2: two users, one hour, a document of 1 MB, both kinds of edit equally likely.
    ``author`` of each edit says whose it is.
    """

    def one(user: int) -> Iterator[tuple[float, int, int, Edit]]:
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

    for due_s, _, _, edit in heapq.merge(*(one(user) for user in range(users)), key=lambda each: each[:3]):
        yield due_s, edit
