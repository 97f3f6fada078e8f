"""Opening files that a user or another program names: regular files of limited size, and nothing else.

A name can be that of a FIFO without a writer, an endless device, a socket, a folder, or a symbolic link to one of
these. Opening or reading these as files could hang or fill memory.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from pytest_cloudbench.model import ConfigError

MIB = 1024 * 1024

_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)  # fmt: skip


def explain_error(error: BaseException) -> str:
    """Return why a file cannot be used, without its name, which the message around it has."""
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    return str(getattr(error, "strerror", None) or error)


def open_regular_file(path: str | os.PathLike[str], most_bytes: int | None) -> io.BufferedReader:
    """Open a file for reading.

    Args:
        path: its name. A symbolic link is followed.
        most_bytes: the size of the largest file that is opened. None means no limit.

    Raises OSError, whose ``strerror`` says what it is instead or how large it is, and ValueError for a name that no
    file can have.
    """
    return open(_open_descriptor(path, os.O_RDONLY, most_bytes), "rb")


def open_regular_log(path: str | os.PathLike[str], most_bytes: int) -> io.BufferedRandom:
    """Open a file to read and append, creating it for its owner only. Raises as ``open_regular_file`` does."""
    return open(_open_descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, most_bytes), "a+b")


def open_flags(*names: str) -> int:
    """Return flags of ``os.open`` by their names. Those that this system neither has nor needs count as nothing."""
    return sum(getattr(os, name, 0) for name in names)


def _open_descriptor(path: str | os.PathLike[str], flags: int, most_bytes: int | None) -> int:
    try:
        descriptor = os.open(path, flags | open_flags("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"), 0o600)
    except OSError as error:
        if error.errno == errno.ENXIO:  # the system's error for a socket
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
    """Return the content of a regular file of limited size. Raises like ``open_regular_file``."""
    with open_regular_file(path, most_bytes) as file:
        data = file.read(most_bytes + 1)  # some files of the system report no size and have no end
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"more than the {most_bytes:,} bytes that it may have", str(Path(path)))
    return data


def read_tree(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the files below a folder, and their bytes. Symbolic links are left out, and what goes away meanwhile.

    Raises OSError if another file cannot be read, or a folder cannot be listed.
    """

    def raise_unless_gone(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for place, folders, names in os.walk(folder, onerror=raise_unless_gone):
        folders.sort()
        for path in (Path(place, name) for name in sorted(names)):
            try:
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path, path.read_bytes()
            except OSError as error:
                raise_unless_gone(error)


def read_text(path: str | os.PathLike[str], expected: str) -> str:
    """Return the text of a file. Raises ConfigError, which says what was expected instead."""
    try:
        return read_file(path).decode()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name that no file can have
        message = f"cannot be read ({explain_error(error)}); expected {expected}"
        raise ConfigError(os.fspath(path), "", message) from error


def read_toml(path: str | os.PathLike[str], expected: str) -> dict[str, Any]:
    """Return the table in a TOML file. Raises ConfigError, which says what was expected instead."""
    return parse_toml(read_text(path, expected), os.fspath(path), expected)


def parse_toml(text: str, source: str, expected: str) -> dict[str, Any]:
    """Return the table that a TOML text holds. Raises ConfigError, which names ``source`` and what was expected."""
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError, too, for an integer of thousands of digits
        reason = str(error).partition("\n")[0]
        raise ConfigError(source, "", f"not TOML ({reason}); expected {expected}") from error


def sync_names(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk, where the system can do that. Raises OSError."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # of file systems that cannot do it
            raise
    finally:
        os.close(descriptor)


def write_whole(
    path: Path, write: Callable[[BinaryIO], object], *,
    is_durable: bool = False, keeps_mode: bool = False, mode: int = 0o666,
) -> None:  # fmt: skip
    """Write a file so that it is complete or absent, even if others write it at the same time.

    Args:
        path: the file, which is replaced if it exists.
        write: writes its content.
        is_durable: whether a power cut must leave the old or the new file, which takes longer.
        keeps_mode: whether the new file has the rights of the one that it replaces.
        mode: its rights from the beginning, without those that the process's mask removes.

    Raises OSError, and the errors of ``write``.
    """
    if path.is_dir():  # which may have no name, such as "."
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # 50 characters, as each may take 4 of the 255 bytes of a name.
    partial = path.with_name(f".{path.name[:50]}-{os.getpid()}-{os.urandom(4).hex()}")
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
