"""A folder that is kept open, so that a file gets its name in this folder, whatever happens to its path meanwhile."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from pytest_cloudbench.savingbox.listings import FoundEntry
from pytest_cloudbench.savingbox.openfiles import close_new_file, name_open_file
from pytest_cloudbench.support.opening import open_flags
from pytest_cloudbench.support.watching import GONE, mark_file

_ROOT_FLAGS = os.O_RDONLY | open_flags("O_DIRECTORY", "O_CLOEXEC")
FOLDER_FLAGS = _ROOT_FLAGS | open_flags("O_NOFOLLOW")


class OpenFolder:
    """A folder below a root. Raises OSError if it is not there, or if a part of its path is a symbolic link.

    Args:
        root: the root's path.
        relative: the folder's path below it, or empty for the root.
        check_root: called with the root's descriptor. Raises if it is the wrong folder.

    Attributes:
        fd: its descriptor.
    """

    __slots__ = ("_identity", "_root", "fd", "relative")

    def __init__(self, root: str, relative: str, check_root: Callable[[int], None]) -> None:
        self._root, self.relative = root, relative
        self.fd = os.open(root, _ROOT_FLAGS)
        try:
            check_root(self.fd)
            for part in relative.split("/") if relative else ():
                outer_fd, self.fd = self.fd, os.open(part, FOLDER_FLAGS, dir_fd=self.fd)
                os.close(outer_fd)
            status = os.fstat(self.fd)
        except BaseException:
            self.close()
            raise
        self._identity = status.st_dev, status.st_ino

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    def publish(self, fd: int, name: str) -> bool:
        """Give an open file its first name, in this folder.

        Returns False if the name is taken, the folder is gone, or the file is on another file system. Raises OSError.
        """
        try:
            name_open_file(fd, name, self.fd)
        except OSError as error:
            if isinstance(error, (FileExistsError, *GONE)) or error.errno == errno.EXDEV:
                return False
            raise
        return True

    def find_published(self, name: str, copied: os.stat_result) -> FoundEntry | None:
        """Return the entry of a file that was published, or None if it is no longer that file, or no longer there.

        ``copied`` is its status before it got its name: getting it changed only the time of change. Raises OSError.
        """
        try:
            now = close_new_file(name, self.fd) or os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            mark = mark_file(now)
            if mark[:3] != mark_file(copied)[:3] or not self._is_still_there():
                return None
        except GONE:
            return None
        return FoundEntry("file", stat.S_IMODE(now.st_mode), mark, now.st_nlink)

    def _is_still_there(self) -> bool:
        """Return whether the path still leads to this folder, without symbolic links below the root."""
        path, status = self._root, None
        for part in self.relative.split("/") if self.relative else ():
            path = f"{path}/{part}"
            status = os.lstat(path)
            if not stat.S_ISDIR(status.st_mode):
                return False
        status = status or os.stat(path)
        return (status.st_dev, status.st_ino) == self._identity
