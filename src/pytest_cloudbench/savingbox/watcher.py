"""Watchers that notice which entries of a folder may have changed, by the kernel's events or by scans.

A watcher that does not know the changes asks for a scan of the folder:
after events were lost, after folders were renamed, and on systems without events.
"""

from __future__ import annotations

import contextlib
import os
from typing import Protocol

from pytest_cloudbench.savingbox.side import STAGED, FolderSide
from pytest_cloudbench.support.watching import GONE, Inotify


class FolderWatcher(Protocol):
    """A watcher of one folder."""

    kind: str

    def fileno(self) -> int:
        """Return a descriptor that becomes readable after a change, or -1 if the folder must be scanned instead."""
        ...

    def begin_scan(self) -> None:
        """Begin a scan of the whole folder: ``watch_folder`` will be called for each folder in it."""
        ...

    def watch_folder(self, relative: str) -> None:
        """Notice what changes in this folder from now on. Raises OSError."""
        ...

    def end_scan(self) -> None:
        """End the scan, and stop watching folders that it did not meet."""
        ...

    def read_changes(self) -> set[str] | None:
        """Return the entries that may have changed since the last call, or None if the folder must be scanned."""
        ...

    def close(self) -> None:
        """Stop watching."""
        ...


def make_watcher(side: FolderSide) -> tuple[FolderWatcher, str]:
    """Return a watcher of a folder, and the reason if it has to poll."""
    try:
        return EventWatcher(side), ""
    except OSError as error:
        return PollingWatcher(), f"{side.name}: no events ({error.strerror or error}); it is scanned from time to time"


class PollingWatcher:
    """A watcher that sees no changes itself, so that the folder is scanned from time to time. Works everywhere."""

    kind = "polling"

    def fileno(self) -> int:
        """Return -1: there is none."""
        return -1

    def begin_scan(self) -> None:
        """Nothing to do."""

    def watch_folder(self, relative: str) -> None:
        """Nothing to do."""

    def end_scan(self) -> None:
        """Nothing to do."""

    def read_changes(self) -> set[str] | None:
        """Return None: the folder must be scanned."""
        return None

    def close(self) -> None:
        """Nothing to do."""


class EventWatcher:
    """A watcher that uses inotify. Raises OSError where there is none.

    ``watch_folder`` raises OSError if there are too many folders.
    """

    kind = "inotify"

    def __init__(self, side: FolderSide) -> None:
        self._side = side
        self._inotify = Inotify()
        self._folders: dict[int, str] = {}
        self._before: dict[int, str] = {}
        self._is_lost = False

    def fileno(self) -> int:
        """Return the descriptor of the events."""
        return self._inotify.fileno()

    def begin_scan(self) -> None:
        """Drop the pending events: the scan sees their changes."""
        self._inotify.drop_events()
        self._before, self._folders, self._is_lost = self._folders, {}, False

    def watch_folder(self, relative: str) -> None:
        """Notice what changes in this folder from now on. Raises OSError."""
        self._folders[self._inotify.add(self._side.path(relative) if relative else self._side.root)] = relative

    def end_scan(self) -> None:
        """Stop watching folders that the scan did not meet."""
        for number in self._before.keys() - self._folders.keys():
            self._inotify.remove(number)
        self._before = {}

    def read_changes(self) -> set[str] | None:
        """Return the entries that may have changed since the last call, or None if the folder must be scanned."""
        paths: set[str] = set()
        for event in self._inotify.read():
            if event.is_overflow or (event.is_folder and event.is_move):
                self._is_lost = True
            elif event.is_unwatched:
                self._folders.pop(event.watch, None)
            elif event.watch in self._folders and event.name and not event.name.startswith(STAGED):
                folder = self._folders[event.watch]
                path = f"{folder}/{event.name}" if folder else event.name
                paths.add(path)
                if event.is_folder and event.is_new:
                    self._watch_new_folder(path, paths)
        return None if self._is_lost else paths

    def close(self) -> None:
        """Stop watching."""
        self._inotify.close()

    def _watch_new_folder(self, folder: str, paths: set[str]) -> None:
        """Watch a new folder, and add the entries created in it before it was watched."""
        unwatched = [folder]
        while unwatched:
            folder = unwatched.pop()
            try:
                self.watch_folder(folder)
                with os.scandir(self._side.path(folder)) as entries:
                    children = {
                        f"{folder}/{entry.name}": entry for entry in entries if not entry.name.startswith(STAGED)
                    }
            except GONE:
                continue
            except OSError:  # too many watches, or an unreadable folder: the scan will find and report it
                self._is_lost = True
                return
            paths.update(children)
            for path, entry in children.items():
                with contextlib.suppress(*GONE):
                    if entry.is_dir(follow_symlinks=False):
                        unwatched.append(path)
