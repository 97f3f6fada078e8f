"""Sets of new files that a sync client is given at once.

What may live here: what a set is, its content, and putting it into the folder. Nothing knows of clients or captures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_cloudbench.model import Content, UsageError, chunks
from pytest_cloudbench.payload import RandomContent
from pytest_cloudbench.payload.contents import Text

__all__ = ["Workload", "put"]

_SUFFIX = {"binary": ".bin", "text": ".txt"}


@dataclass(frozen=True, slots=True)
class Workload:
    """A set of files of one size and kind.

    Attributes:
        files: how many.
        size_bytes: of each.
        kind: ``binary``: random bytes; ``text``: random words of a dictionary.
    """

    files: int
    size_bytes: int
    kind: str = "binary"

    def __post_init__(self) -> None:
        """Raises UsageError for a set that cannot be."""
        if self.files < 1 or self.size_bytes < 1 or self.kind not in _SUFFIX:
            raise UsageError(f"{self}: expected files and bytes above 0, and one of the kinds {', '.join(_SUFFIX)}")

    @property
    def total_bytes(self) -> int:
        """Of all files together."""
        return self.files * self.size_bytes

    def contents(self, seed: str) -> Iterator[tuple[str, Content]]:
        """Name and content of each file; other ones for another ``seed``."""
        make = RandomContent if self.kind == "binary" else Text
        for number in range(self.files):
            yield f"f{number:05d}{_SUFFIX[self.kind]}", make(f"{seed}/{number}", self.size_bytes)


def put(workload: Workload, folder: Path, stage: Path, seed: str) -> int:
    """Let the set appear at once as a new folder ``folder``; when it did, in nanoseconds since 1970.

    It is made in ``stage``, which must be on the same file system, and moved in: so no client sees half a file, and
    the time of writing is not measured.
    """
    made = stage / folder.name
    made.mkdir(parents=True)
    for name, content in workload.contents(seed):
        with (made / name).open("wb") as file:
            file.writelines(chunks(content))
    moved_ns = time.time_ns()
    os.rename(made, folder)
    return moved_ns
