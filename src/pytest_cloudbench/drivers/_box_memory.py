"""The Box driver's memory of paths: ids of folders, and of files that it has stored.

What may live here: the memory, safe for threads. It sends no requests: the driver tells it what is true and what no
longer is. Paths that differ only in case are the same, as names are at Box.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

ROOT = "0"
"""The id of the root folder."""

_MOST_FILES = 10_000


class Memory:
    """Ids by path, as far as the driver knows them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._folders: dict[str, str] = {}
        self._stored: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def nearest_folder(self, path: str) -> tuple[str, str, Sequence[str]]:
        """Return the longest known folder on the way to a path (empty: the root), its id, and the names after it."""
        names = [name for name in path.split("/") if name]
        for count in range(len(names), 0, -1):
            parent = "/" + "/".join(names[:count])
            folder_id = self._folders.get(parent.lower())
            if folder_id is not None:
                return parent, folder_id, names[count:]
        return "", ROOT, names

    def remember_folder(self, path: str, folder_id: str) -> str:
        """Remember a folder's id, and return it."""
        with self._lock:
            self._folders[path.lower()] = folder_id
        return folder_id

    def forget_folders_to(self, *paths: str) -> bool:
        """Forget the folders on the way to paths, and those at the paths. Return whether there were any."""
        keys = [f"{path.lower()}/" for path in paths]
        with self._lock:
            parents = [folder for folder in self._folders if any(key.startswith(f"{folder}/") for key in keys)]
            for parent in parents:
                del self._folders[parent]
        return bool(parents)

    def forget_below(self, path: str) -> None:
        """Forget all that was at a path, or below it."""
        key = path.lower()
        with self._lock:
            for memory in (self._folders, self._stored):
                for inner in [other for other in memory if f"{other}/".startswith(f"{key}/")]:
                    del memory[inner]

    def remember_stored(self, path: str, file_id: str, etag: str) -> None:
        """Remember a file that was stored just now."""
        with self._lock:
            self._stored[path.lower()] = file_id, etag
            if len(self._stored) > _MOST_FILES:
                self._stored.popitem(last=False)

    def take_stored(self, path: str) -> tuple[str, str] | None:
        """Return id and etag of a file that was stored at a path, and forget them."""
        with self._lock:
            return self._stored.pop(path.lower(), None)
