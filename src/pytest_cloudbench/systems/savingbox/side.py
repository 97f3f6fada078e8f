"""One of the two folders: what is in it, and the only code that changes it.

What may live here: looking at entries, and the steps that create, replace, patch, rename and remove them. Each step is
announced to ``before``, where tests end the process.

What a client or a user might take for whole *is* whole: a new file gets its name once it is complete (it has none
before, where the system knows ``O_TMPFILE``), a replaced file is renamed over. A patched file is written page by page,
after its journal. Nothing that is removed or replaced is another file than the caller has seen, nor one that some
program has open for writing: a read lease, which such a program excludes, is held meanwhile (Linux; elsewhere the last
look decides).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pytest_cloudbench.model import CloudbenchError
from pytest_cloudbench.systems.savingbox import content
from pytest_cloudbench.watching import GONE, FileMark, mark_of

__all__ = [
    "STAGED",
    "BusyError",
    "FolderSide",
    "FoundAll",
    "FoundEntry",
    "Kind",
    "OvertakenError",
    "VanishedError",
    "may_be_written",
    "parents",
]  # fmt: skip

STAGED = ".~cloudbench-saving-"
"""How names of unfinished files begin where a file cannot be without a name. Such entries are never mirrored."""

Kind = Literal["file", "folder", "link"]

_MOST_PATCHED_PAGES = 4096
"""A difference of more pages than these (16 MiB) replaces the file: its journal would not pay."""
_PASSES = 3
"""How often a file that changes while it is copied is gone over before it is taken as it is."""
_F_SETSIG, _SIGURG = 10, 23
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1


class BusyError(CloudbenchError):
    """Some program has the file open for writing: it will be tried again."""


class OvertakenError(CloudbenchError):
    """The file is no longer what was looked at: it will be looked at again."""


class VanishedError(CloudbenchError):
    """The folder is gone, or another one has its name."""


class FoundEntry(NamedTuple):
    """One entry as it was seen.

    Attributes:
        kind: ``file``, ``folder`` or ``link`` (symbolic).
        mode: permissions.
        mark: what changes with it.
        names: how many hard links it has.
        target: of a symbolic link.
    """

    kind: Kind
    mode: int
    mark: FileMark
    names: int = 1
    target: str = ""


@dataclass(frozen=True, slots=True)
class FoundAll:
    """A whole folder as it was seen.

    Attributes:
        entries: by their relative paths; of a folder, the folder comes before what is in it.
        unknown: relative paths of folders that could not be read, to the reason: what is in them is not known.
    """

    entries: Mapping[str, FoundEntry]
    unknown: Mapping[str, OSError]

    def is_known(self, path: str) -> bool:
        """Whether the absence of this path means that there is no such entry."""
        return not self.unknown or not any(parent in self.unknown for parent in ("", *parents(path)))


def parents(path: str) -> list[str]:
    """The folders that a relative path is in, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


@dataclass
class FolderSide:
    """One of the two folders.

    Attributes:
        root: its path.
        name: what messages call it.
        before: is told of each step that changes it: the step, and the relative path.
        is_durable: whether files are flushed to the disk one by one; the caller flushes many at once otherwise.
        identity: of the root when it was opened. Empty: not yet.
    """

    root: str
    name: str
    before: Callable[[str, str], None] = lambda step, path: None
    is_durable: bool = True
    identity: str = field(default="", init=False)
    _staging: str = field(default="", init=False)

    def open(self) -> None:
        """Take the folder as it is now for the right one. Raises VanishedError if there is none."""
        self.identity = self._identity()
        outside = os.path.dirname(os.path.abspath(self.root))
        # Beside the folder nobody watches; but a rename needs the same file system, and the right to write.
        is_fit = os.access(outside, os.W_OK | os.X_OK) and os.stat(outside).st_dev == os.stat(self.root).st_dev
        self._staging = outside if is_fit and outside != os.path.abspath(self.root) else self.root

    def clean(self) -> None:
        """Remove unfinished files of a process that was killed; those in inner folders go when they are scanned."""
        for folder in {self._staging or self.root, self.root}:
            with contextlib.suppress(OSError):
                for entry in os.scandir(folder):
                    self._remove_staged(entry)

    def must_be_there(self) -> None:
        """Raises VanishedError unless the root is the folder that was opened."""
        if self._identity() != self.identity:
            raise VanishedError(f"{self.name} {self.root}: another folder has its name now")

    # --- looking ---

    def path(self, relative: str) -> str:
        """The path of an entry."""
        return f"{self.root}/{relative}"

    def look(self, relative: str) -> FoundEntry | None:
        """One entry as it is now; None: there is none. Raises OSError where that cannot be told.

        A path through a symbolic link is none: what is behind a link is not in the folder.
        """
        for parent in parents(relative):
            try:
                if not stat.S_ISDIR(os.lstat(self.path(parent)).st_mode):
                    return None
            except GONE:
                return None
        try:
            return _found(self.path(relative), os.lstat(self.path(relative)))
        except GONE:
            return None

    def look_everywhere(self, on_folder: Callable[[str], None]) -> FoundAll:
        """All entries. Raises VanishedError.

        Args:
            on_folder: is told of each folder, by its relative path, before it is listed: from then on its changes are
                noticed.
        """
        entries: dict[str, FoundEntry] = {}
        unknown: dict[str, OSError] = {}
        open_folders = [""]
        while open_folders:
            folder = open_folders.pop()
            try:
                on_folder(folder)
                with os.scandir(self.path(folder)) as listed:
                    found = [(entry.name, entry) for entry in listed]
            except GONE:
                entries.pop(folder, None)
                continue
            except OSError as error:
                unknown[folder] = error
                continue
            for name, entry in found:
                if name.startswith(STAGED):
                    self._remove_staged(entry)
                    continue
                path = f"{folder}/{name}" if folder else name
                with contextlib.suppress(*GONE):
                    if (seen := _found(entry.path, entry.stat(follow_symlinks=False))) is not None:
                        entries[path] = seen
                        if seen.kind == "folder":
                            open_folders.append(path)
        self.must_be_there()
        return FoundAll(entries, unknown)

    @contextlib.contextmanager
    def reading(self, relative: str) -> Iterator[int]:
        """A descriptor of a regular file. Raises OvertakenError if it is none any longer, and OSError."""
        flags = os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC
        try:
            fd = os.open(self.path(relative), flags)
        except OSError as error:
            if isinstance(error, GONE) or error.errno == errno.ELOOP:
                raise OvertakenError(f"{relative!r} is gone") from error
            raise
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OvertakenError(f"{relative!r} is no file any longer")
            yield fd
        finally:
            os.close(fd)

    # --- changing ---

    def make_folder(self, relative: str, mode: int) -> None:
        """Create a folder. Raises OSError."""
        self.before("mkdir", relative)
        os.mkdir(self.path(relative), mode | stat.S_IRWXU)
        os.chmod(self.path(relative), mode)

    def make_link(self, relative: str, target: str) -> None:
        """Create a symbolic link. Raises OSError."""
        self.before("symlink", relative)
        os.symlink(target, self.path(relative))

    def set_mode(self, relative: str, mode: int) -> None:
        """Change permissions. Raises OSError."""
        self.before("chmod", relative)
        os.chmod(self.path(relative), mode)

    def remove_folder(self, relative: str) -> None:
        """Remove an empty folder. Raises OSError if it is not."""
        self.before("rmdir", relative)
        os.rmdir(self.path(relative))

    def remove(self, relative: str, seen: FoundEntry) -> None:
        """Remove a file or link that is what was seen. Raises OvertakenError, BusyError and OSError."""
        self.before("unlink", relative)
        with self.held(relative, seen):
            os.unlink(self.path(relative))

    def rename(self, old: str, new: str) -> None:
        """Rename an entry to a name that is free. Raises FileExistsError if it is not, and OSError."""
        self.before("rename", new)
        _rename_to_free_name(self.path(old), self.path(new))

    def put_file(
        self, relative: str, source: int, mode: int, replaced: FoundEntry | None,
        note: Callable[[FileMark], None] = lambda taken: None,
    ) -> tuple[FoundEntry, FileMark]:  # fmt: skip
        """Create a file, or replace one that is what was seen, by a copy of an open one: with its time, whole at once.

        ``note`` is given the size and time that the file will have, before anybody sees it.
        Returns the new file, and the mark that the source had before what was copied was read.
        Raises FileExistsError, OvertakenError, BusyError and OSError; then the folder is as before.
        """
        self.before("copy", relative)
        try:
            return self._put_file(relative, source, mode, replaced, note)
        except OSError as error:
            if error.errno != errno.EXDEV or not self._staging:
                raise
            self._staging = ""  # a mount begins at the folder, or in it: files are made beside where they go
            return self._put_file(relative, source, mode, replaced, note)

    def _put_file(
        self, relative: str, source: int, mode: int, replaced: FoundEntry | None, note: Callable[[FileMark], None]
    ) -> tuple[FoundEntry, FileMark]:
        staging = self._staging or os.path.dirname(self.path(relative))
        with self._unnamed(staging) as (fd, name):
            taken = mark_of(os.fstat(source))
            content.copy_data(source, fd)
            for _ in range(_PASSES - 1):
                if (now := mark_of(os.fstat(source))) == taken:
                    break
                taken = now
                for page in content.changed_pages(source, fd):
                    content.write_at(fd, page.new, page.offset)
                os.ftruncate(fd, os.fstat(source).st_size)
            os.fchmod(fd, mode)
            os.utime(fd, ns=(taken.modified_ns, taken.modified_ns))
            if self.is_durable:
                os.fsync(fd)
            note(taken)
            self.before("publish", relative)
            if replaced is None:
                _name(fd, name, self.path(relative))
                _announce(self.path(relative))
            else:
                staged = name or f"{staging}/{self._prefix()}{os.fstat(fd).st_ino}"
                if not name:
                    _name(fd, name, staged)
                try:
                    with self.held(relative, replaced):
                        os.replace(staged, self.path(relative))
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(staged)
                    raise
            return self._published(relative, fd), taken

    def patch_file(
        self, relative: str, source: int, mode: int, seen: FoundEntry,
        ranges: Callable[[], Iterable[tuple[int, int]] | None], note: Callable[[FileMark], None],
        journal: Callable[[list[content.Page], int, int], None],
    ) -> tuple[FoundEntry, FileMark, int]:  # fmt: skip
        """Make a file that is what was seen equal to an open one, by writing the pages that differ.

        Args:
            relative: which file.
            source: the open file.
            mode: permissions.
            seen: the file as it was looked at.
            ranges: asked for where the two may differ, after the source's mark was read; None: anywhere.
            note: is given the size and time that the file will have, before it is changed.
            journal: is given all pages, the old size and the new one before the first one is written.

        Returns the file, the mark that the source had before what was copied was read, and how many bytes were
        written. Raises as ``put_file`` does; after an OSError the file may be patched in part, and the journal knows.
        """
        taken = mark_of(os.fstat(source))
        pages = None
        with contextlib.suppress(PermissionError), self.held(relative, seen), self.reading(relative) as old:
            pages = _first(content.changed_pages(source, old, ranges()), _MOST_PATCHED_PAGES)
        was_bytes = seen.mark.size_bytes
        is_as_before = not pages and was_bytes == taken.size_bytes
        if pages is None or not (is_as_before or (seen.names == 1 and os.access(self.path(relative), os.W_OK))):
            return *self.put_file(relative, source, mode, seen, note), taken.size_bytes
        if is_as_before and (seen.mode, seen.mark.modified_ns) == (mode, taken.modified_ns):
            return seen, taken, 0
        note(taken)
        if not is_as_before:
            journal(pages, was_bytes, taken.size_bytes)
        self.before("patch", relative)
        flags = (os.O_RDONLY if is_as_before else os.O_RDWR) | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC
        fd = os.open(self.path(relative), flags)
        try:
            if mark_of(os.fstat(fd)) != seen.mark:
                raise OvertakenError(f"{relative!r} has changed")
            for page in pages:
                self.before("write", relative)
                content.write_at(fd, page.new, page.offset)
            if not is_as_before:
                os.ftruncate(fd, taken.size_bytes)
            self.before("stamp", relative)
            os.fchmod(fd, mode)
            os.utime(fd, ns=(taken.modified_ns, taken.modified_ns))
            if self.is_durable and not is_as_before:
                os.fsync(fd)
            return self._published(relative, fd), taken, sum(len(page.new) for page in pages)
        finally:
            os.close(fd)

    # --- how it is done ---

    def _identity(self) -> str:
        try:
            status = os.stat(self.root)
            system = os.statvfs(self.root).f_fsid if hasattr(os, "statvfs") else status.st_dev
        except OSError as error:
            raise VanishedError(f"{self.name} {self.root}: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode):
            raise VanishedError(f"{self.name} {self.root}: no folder any longer")
        return f"{system:x}:{status.st_ino}"

    def _remove_staged(self, entry: os.DirEntry[str]) -> None:
        """Remove an unfinished file of this folder's; at the moment, none is being made."""
        if entry.name.startswith(self._prefix()):
            with contextlib.suppress(OSError):
                os.unlink(entry.path)

    def _prefix(self) -> str:
        return f"{STAGED}{os.path.basename(os.path.abspath(self.root))}-"

    @contextlib.contextmanager
    def _unnamed(self, staging: str) -> Iterator[tuple[int, str]]:
        """A new file that nobody sees, and its name, which is empty where the system needs none."""
        fd, name = -1, ""
        if hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # a file system that cannot, such as many in user space
                fd = os.open(staging, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        if fd < 0:
            name = f"{staging}/{self._prefix()}{os.getpid()}"
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            yield fd, name
        finally:
            os.close(fd)
            if name:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)

    @contextlib.contextmanager
    def held(self, relative: str, seen: FoundEntry) -> Iterator[None]:
        """While the entry is what was seen, and nobody can open it for writing. Raises OvertakenError and BusyError."""
        with contextlib.ExitStack() as stack:
            if seen.kind == "file":
                with contextlib.suppress(PermissionError):  # a file that even its owner may not read
                    _lease(stack.enter_context(self.reading(relative)), relative)
            now = self.look(relative)
            if now is None or (now.kind, now.mark, now.target) != (seen.kind, seen.mark, seen.target):
                raise OvertakenError(f"{relative!r} has changed")
            yield

    def _published(self, relative: str, fd: int) -> FoundEntry:
        """The entry at the path, which must be the open file still."""
        now = self.look(relative)
        if now is None or now.mark != mark_of(os.fstat(fd)):
            raise OvertakenError(f"{relative!r} was changed by another program")
        return now


def _found(path: str, status: os.stat_result) -> FoundEntry | None:
    """What an entry is; None for pipes, sockets and devices, which are not mirrored."""
    mode, mark = stat.S_IMODE(status.st_mode), mark_of(status)
    if stat.S_ISREG(status.st_mode):
        return FoundEntry("file", mode, mark, status.st_nlink)
    if stat.S_ISDIR(status.st_mode):
        return FoundEntry("folder", mode | stat.S_IRWXU, mark)  # ours to change, or what is in it could not follow
    if stat.S_ISLNK(status.st_mode):
        return FoundEntry("link", 0, mark, target=os.readlink(path))
    return None


def _first(pages: Iterable[content.Page], most: int) -> list[content.Page] | None:
    """All pages; None: there are more than ``most``."""
    found = []
    for page in pages:
        found.append(page)
        if len(found) > most:
            return None
    return found


def may_be_written(fd: int) -> bool:
    """Whether some program may have an open file open for writing, or mapped for it."""
    try:
        if not _lease(fd, ""):
            return True
        import fcntl

        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BusyError:
        return True
    return False


def _lease(fd: int, relative: str) -> bool:
    """While the descriptor is open, nobody opens the file for writing.

    Returns False where the system has no leases. Raises BusyError if somebody has the file open for writing already.
    """
    try:
        import fcntl

        fcntl.fcntl(fd, _F_SETSIG, _SIGURG)  # who wants to write waits for us; the signal says so, and is ignored
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise BusyError(f"{relative!r} is open for writing") from error
        return False  # a file system without leases, or another user's file
    except (ImportError, AttributeError):
        return False  # a system without leases
    return True


def _name(fd: int, name: str, path: str) -> None:
    """Give a finished file its name. Raises FileExistsError if the name is taken."""
    if name:
        _rename_to_free_name(name, path)
        return
    folder = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a folder's descriptor Python calls linkat(AT_SYMLINK_FOLLOW), which it must be.
        os.link(str(fd), path, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _announce(path: str) -> None:
    """Open and close a file that a link has named: many clients wait for a writer's end, and a link has none."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))


def _rename_to_free_name(old: str, new: str) -> None:
    """Rename. Raises FileExistsError if the new name is taken, and OSError."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, TypeError):
        renameat2 = None
    if renameat2 is not None:
        names = (os.fsencode(old), os.fsencode(new))
        if not renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE):
            return
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EINVAL):  # a file system that cannot
            raise OSError(number, os.strerror(number), old, None, new)
    if os.path.lexists(new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(old, new)
