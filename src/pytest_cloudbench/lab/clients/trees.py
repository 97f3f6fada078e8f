"""Digests of the files below folders, which tell whether two folders are equal.

They are computed again only where a file may have changed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

# Time stamps move in steps of some milliseconds: a file that was changed just now may change again unseen.
_SETTLED_NS = 50_000_000


class FolderTree:
    """The regular files below a folder.

    Args:
        root: the folder. A missing one counts as empty.
        ignored: names of files and folders, at any depth, that the sync client keeps for itself.
    """

    def __init__(self, root: Path, ignored: frozenset[str] = frozenset()) -> None:
        self.root, self._ignored = root, ignored
        self._certain: dict[str, tuple[tuple[int, ...], str]] = {}

    def sizes_bytes(self) -> dict[str, int]:
        """Return relative paths and sizes, without reading any file."""
        return {name: status.st_size for name, status in self._files(self.root)}

    def digests(self) -> dict[str, str]:
        """Return relative paths and their SHA-256, without files that disappear meanwhile."""
        earlier, self._certain = self._certain, {}
        digests = {}
        for name, status in self._files(self.root):
            mark = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            earlier_digest = earlier.get(name)
            try:
                digest = earlier_digest[1] if earlier_digest and earlier_digest[0] == mark else self._hash_file(name)
            except OSError:
                continue
            digests[name] = digest
            if time.time_ns() - status.st_ctime_ns > _SETTLED_NS:
                self._certain[name] = (mark, digest)
        return digests

    def _hash_file(self, name: str) -> str:
        with (self.root / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _files(self, folder: Path) -> Iterator[tuple[str, os.stat_result]]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            if entry.name in self._ignored:
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    yield from self._files(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    yield Path(entry.path).relative_to(self.root).as_posix(), entry.stat(follow_symlinks=False)
            except OSError:
                continue


def difference(expected: Mapping[str, str], held: Mapping[str, str]) -> str:
    """Return, in one line, what ``held`` lacks, has in excess, or has different, or nothing if they are equal."""
    kinds = {
        "missing": sorted(expected.keys() - held.keys()),
        "too many": sorted(held.keys() - expected.keys()),
        "different": sorted(name for name in expected.keys() & held.keys() if expected[name] != held[name]),
    }
    return "; ".join(
        f"{len(names)} {kind} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for kind, names in kinds.items()
        if names
    )
