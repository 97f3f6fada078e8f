"""System calls on open files: leases, which show writers, and names for files that have none.

What may live here: calls that Python's ``os`` lacks, or that need more than one call. Systems other than Linux do
without the calls that they lack.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from typing import Any

from pytest_cloudbench.model import CloudbenchError
from pytest_cloudbench.support.opening import open_flags

_F_SETSIG, _SIGURG = 10, 23
_AT_FDCWD, _AT_EMPTY_PATH, _RENAME_NOREPLACE = -100, 0x1000, 1
_CLOSE_EVENT_FLAGS = os.O_WRONLY | open_flags("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC")


class BusyError(CloudbenchError):
    """Some program has the file open for writing, so that it will be tried again."""


def may_be_written(fd: int) -> bool:
    """Return whether some program may have this open file open for writing, or mapped for writing."""
    try:
        if not take_lease(fd, ""):
            return True
    except BusyError:
        return True
    fcntl = _fcntl()
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def take_lease(fd: int, relative: str) -> bool:
    """Keep other programs from opening the file for writing, as long as the descriptor is open.

    Returns False where the system has no leases. Raises BusyError if a program already has the file open for writing.
    """
    try:
        fcntl = _fcntl()
        fcntl.fcntl(fd, _F_SETSIG, _SIGURG)  # a writer waits for us, signalled by SIGURG, which is ignored
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise BusyError(f"{relative!r} is open for writing") from error
        return False  # a file system without leases, or another user's file
    except (ImportError, AttributeError):
        return False  # a system without leases
    return True


@functools.cache
def can_name_open_files() -> bool:
    """Return whether a file that has no name until it is complete can be given one."""
    return hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd")


def link_name(fd: int, name: str, path: str) -> None:
    """Give a finished file its name. Raises FileExistsError if the name is taken."""
    if name:
        rename_to_free_name(name, path)
    else:
        name_open_file(fd, path, fd)


def name_open_file(fd: int, name: str, folder: int) -> None:
    """Give an open file its first name, in an open folder. Raises FileExistsError if it is taken, and OSError.

    An absolute path is a name in any folder.
    """
    linkat = _find_function("linkat")
    # By its descriptor alone, which takes half the time. Older kernels let only root do it.
    if linkat is not None and not linkat(fd, b"", folder, os.fsencode(name), _AT_EMPTY_PATH):
        return
    # Only with a folder's descriptor does Python call linkat(AT_SYMLINK_FOLLOW), which is needed here. The system
    # ignores the descriptor, because the path is absolute.
    os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=fd, dst_dir_fd=folder, follow_symlinks=True)


def close_new_file(path: str, folder: int | None = None) -> os.stat_result | None:
    """Open and close a file that got its name by a link. Returns its status, or None if it cannot be opened.

    Many clients wait until a writer closes a new file, which a link does not do.
    """
    try:
        fd = os.open(path, _CLOSE_EVENT_FLAGS, dir_fd=folder)
    except OSError:
        return None
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def rename_to_free_name(old: str, new: str) -> None:
    """Rename an entry. Raises FileExistsError if the new name is taken, and OSError."""
    renameat2 = _find_function("renameat2")
    if renameat2 is not None:
        names = (os.fsencode(old), os.fsencode(new))
        if not renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE):
            return
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EINVAL):  # this file system cannot
            raise OSError(number, os.strerror(number), old, None, new)
    if os.path.lexists(new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(old, new)


@functools.cache
def _fcntl() -> Any:
    """Return the module ``fcntl``. Raises ImportError where there is none."""
    import fcntl

    return fcntl


@functools.cache
def _find_function(name: str) -> Any:
    """Return a function of the C library, or None if there is none."""
    try:
        return getattr(ctypes.CDLL(None, use_errno=True), name)
    except (AttributeError, TypeError):
        return None
