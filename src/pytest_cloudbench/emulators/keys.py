"""A view of a store as flat keys, as in an object store: names may hold any character, and there are no folders.

Buckets are folders in the store's root, and their keys are the names of files in them. The skin decides which keys are
valid.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import NamedTuple

from pytest_cloudbench.emulators.blob import Blob
from pytest_cloudbench.emulators.core import NodeStore
from pytest_cloudbench.emulators.nodes import File, Folder, StoreError, Version

_LAST_CHARACTER = chr(0x10FFFF)


class KeyPage(NamedTuple):
    """One page of a listing.

    Attributes:
        keys: the keys, sorted by their characters, each with the version that reads see.
        prefixes: the common prefixes, which are the keys that continue after a delimiter, cut after it, each once.
        after: the last key or prefix of this page, after which the next one begins. Empty on the last page.
    """

    keys: list[tuple[str, Version]]
    prefixes: list[str]
    after: str


class KeyView:
    """The keys of one bucket. All writes to its folder must use the view, and its store must be case-sensitive."""

    def __init__(self, store: NodeStore, bucket: Folder) -> None:
        self.store = store
        self.bucket = bucket
        self._order = sorted(bucket.children)
        self._removed: dict[str, File] = {}
        """Removed files that reads still see for a while. Their keys stay in ``_order``."""

    def find(self, key: str) -> File | None:
        """Return the file under a key, even if reads do not see it yet, or None."""
        namesakes = self.store.named(self.bucket, key)
        return namesakes[0] if namesakes and isinstance(namesakes[0], File) else None

    def get(self, key: str, now_s: float) -> Version:
        """Return the version that reads see under a key. Raises StoreError."""
        file = self.find(key) or self._find_lingering(key, now_s)
        version = file.seen(now_s) if file is not None else None
        if version is None:
            raise StoreError("not_found")
        return version

    def put(
        self, key: str, blob: Blob, now_s: float, *, client_s: float | None = None, extra: object = None
    ) -> Version:
        """Store content under a new or existing key. Raises StoreError if there is no space for it."""
        file = self.find(key)
        if file is not None:
            return self.store.add_version(file, blob, now_s, client_s=client_s, extra=extra)
        file = self.store.add_file(self.bucket, key, blob, now_s, client_s=client_s, extra=extra)
        if self._removed.pop(key, None) is None:
            insort(self._order, key)
        return file.versions[-1]

    def remove(self, key: str, now_s: float) -> bool:
        """Remove a key, and return whether it existed."""
        file = self.find(key)
        if file is None:
            return False
        self.store.remove(file, now_s)
        if self.store.delete_delay_s:
            self._removed[key] = file
        else:
            del self._order[bisect_left(self._order, key)]
        return True

    def page(
        self, now_s: float, *, prefix: str = "", delimiter: str = "", after: str = "", limit: int = 1000
    ) -> KeyPage:
        """Return at most ``limit`` keys and prefixes that begin with ``prefix`` and come after ``after``."""
        page = KeyPage([], [], "")
        index = max(bisect_left(self._order, prefix), bisect_right(self._order, after) if after else 0)
        if delimiter and after and self._common_prefix(after, prefix, delimiter) == after:
            index = max(index, self._index_after(after))
        last_listed = ""
        while index < len(self._order) and self._order[index].startswith(prefix):
            key = self._order[index]
            version = self._listed_version(key, now_s)
            if version is None:
                index += 1
                continue
            group = self._common_prefix(key, prefix, delimiter)
            if len(page.keys) + len(page.prefixes) == limit:
                return page._replace(after=last_listed)
            if group:
                page.prefixes.append(group)
                index = self._index_after(group)
            else:
                page.keys.append((key, version))
                index += 1
            last_listed = group or key
        return page

    def _listed_version(self, key: str, now_s: float) -> Version | None:
        file = self.find(key) or self._find_lingering(key, now_s)
        return file.listed(now_s) if file is not None else None

    def _find_lingering(self, key: str, now_s: float) -> File | None:
        """Return a removed file that reads still see, or None."""
        file = self._removed.get(key)
        return file if file is not None and now_s < self.store.fading_until_s(file) else None

    def _common_prefix(self, key: str, prefix: str, delimiter: str) -> str:
        """Return the part of a key up to the first delimiter after ``prefix``, which is empty if there is none."""
        if not delimiter or not key.startswith(prefix):
            return ""
        end = key.find(delimiter, len(prefix))
        return key[: end + len(delimiter)] if end >= 0 else ""

    def _index_after(self, group: str) -> int:
        """Return the index after the last key that begins with ``group``."""
        stem = group.rstrip(_LAST_CHARACTER)
        return bisect_left(self._order, stem[:-1] + chr(ord(stem[-1]) + 1)) if stem else len(self._order)
