"""The files of the client's folder, and a sign that they may have changed.

Linux only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from pytest_cloudbench.support.watching import GONE, FileMark, Inotify, mark_file

# A folder that keeps changing is scanned all the same after this many times the requested time without a change.
_RESTLESS = 10


class Watch:
    """A folder with all folders in it. Raises OSError when the kernel cannot watch them."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._inotify = Inotify()

    def files(self) -> dict[str, FileMark]:
        """Return relative paths and marks of all regular files. From now on, changes in any folder are noticed."""
        return dict(self._walk(self._root, ""))

    def wait(self, timeout_s: float | None) -> bool:
        """Return True once something has changed, False if the time is over first. None: no limit."""
        if not self._inotify.wait(timeout_s):
            return False
        self._inotify.drop_events()
        return True

    def settle(self, rest_s: float) -> None:
        """Return when nothing has changed for ``rest_s`` seconds, or after ten times that."""
        latest_s = time.monotonic() + _RESTLESS * rest_s
        while time.monotonic() < latest_s and self.wait(rest_s):
            pass

    def _walk(self, folder: str, prefix: str) -> Iterator[tuple[str, FileMark]]:
        """Watch a folder and those below it, and yield the path and mark of each file."""
        # Watch first and list afterwards, so that nothing can come in between unseen.
        try:
            self._inotify.add(folder)
        except GONE:
            if prefix:
                return
            raise
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except GONE:
            return
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    yield from self._walk(entry.path, f"{prefix}{entry.name}/")
                elif entry.is_file(follow_symlinks=False):
                    yield prefix + entry.name, mark_file(entry.stat(follow_symlinks=False))
            except GONE:
                continue
