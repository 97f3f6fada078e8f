"""Opening files that a user or another program names: regular files of limited size; anything else is an error.

What may live here: opening such files, and replacing them. A name can be a FIFO without a writer, an endless device, a
socket, a folder, or a symbolic link to one of these. Opening or reading these as files could hang or fill memory.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from pytest_cloudbench.model import ConfigError

MIB = 1024 * 1024

_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)  # fmt: skip


def regular_file(path: str | os.PathLike[str], most_bytes: int | None) -> io.BufferedReader:
    """Open a file for reading.

    Args:
        path: its name; a symbolic link is followed.
        most_bytes: larger files are refused; None means no limit.

    Raises OSError, whose ``strerror`` says what it is instead or how large it is, and ValueError for a name that no
    file can have.
    """
    return open(_descriptor(path, os.O_RDONLY, most_bytes), "rb")


def regular_log(path: str | os.PathLike[str], most_bytes: int) -> io.BufferedRandom:
    """Open a file to read and append; a missing one is created for its owner only. Raises as ``regular_file`` does."""
    return open(_descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, most_bytes), "a+b")


def _descriptor(path: str | os.PathLike[str], flags: int, most_bytes: int | None) -> int:
    for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):  # not every system has, or needs, each
        flags |= getattr(os, name, 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ENXIO:  # what the system says of a socket
            raise OSError(errno.EINVAL, "a socket, not a regular file", os.fspath(path)) from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "something else")
            number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
            raise OSError(number, f"{kind}, not a regular file", os.fspath(path))
        if most_bytes is not None and status.st_size > most_bytes:
            size = f"{status.st_size:,} bytes, more than the {most_bytes:,} that it may have"
            raise OSError(errno.EFBIG, size, os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: str | os.PathLike[str], most_bytes: int = 16 * MIB) -> bytes:
    """Returns the content of a regular file of limited size. Raises OSError and ValueError as ``regular_file`` does."""
    with regular_file(path, most_bytes) as file:
        data = file.read(most_bytes + 1)  # some files of the system have no size and no end
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"more than the {most_bytes:,} bytes that it may have", str(Path(path)))
    return data


def read_toml(path: str | os.PathLike[str], expected: str) -> dict[str, Any]:
    """Returns the table in a TOML file. Raises ConfigError, which says what was expected instead."""
    import tomllib

    try:
        return tomllib.loads(read_file(path).decode())
    except OSError as error:
        told = f"cannot be read ({error.strerror or error}); expected {expected}"
        raise ConfigError(os.fspath(path), "", told) from error
    except (ValueError, RecursionError) as error:
        told = f"not TOML ({str(error).partition(chr(10))[0]}); expected {expected}"
        raise ConfigError(os.fspath(path), "", told) from error


def write_whole(
    path: Path, write: Callable[[BinaryIO], object], *,
    is_durable: bool = False, keeps_mode: bool = False, mode: int = 0o666,
) -> None:  # fmt: skip
    """Write a file so that it is complete or absent, even if others write it at the same time.

    Args:
        path: the file; one that is there is replaced.
        write: writes its content.
        is_durable: whether a power cut must leave one of the two, which takes longer.
        keeps_mode: whether the new one has the rights of the one that it replaces.
        mode: its rights from the beginning, without those that the process's mask takes away.

    Raises OSError, and what ``write`` raises.
    """
    partial = path.with_name(f".{path.name[:200]}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            write(file)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        if keeps_mode:
            partial.chmod(path.stat().st_mode & 0o777)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
