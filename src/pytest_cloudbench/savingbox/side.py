"""One of the two folders: its entries, and the only code that changes them.

Each step that creates, replaces, patches, renames or removes an entry is announced to ``before``, where tests end the
process.

No client or user ever sees half a file that looks whole. A new file gets its name once it is complete (with
``O_TMPFILE`` it has no name until then), and replaces an old one by a rename. A patched file is written page by page,
after its journal. A file is removed or replaced only if it is still the one that the caller saw, and no program has it
open for writing: a read lease is held meanwhile, which the system refuses while there is a writer. Only Linux has
leases. Elsewhere, a last look at the file decides.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_cloudbench.model import CloudbenchError
from pytest_cloudbench.savingbox import content
from pytest_cloudbench.savingbox.agreements import join_path
from pytest_cloudbench.savingbox.listings import (
    NUMBERS,
    FoundAll,
    FoundEntry,
    decode_row,
    encode_name,
    encode_row,
    name_of,
    split_listing,
)
from pytest_cloudbench.savingbox.mounts import find_mounts, identify
from pytest_cloudbench.savingbox.openfiles import (
    can_name_open_files,
    close_new_file,
    link_name,
    rename_to_free_name,
    take_lease,
)
from pytest_cloudbench.savingbox.openfolder import FOLDER_FLAGS, OpenFolder
from pytest_cloudbench.support.opening import open_flags, sync_names
from pytest_cloudbench.support.watching import GONE, FileMark, mark_file

STAGED = ".~cloudbench-saving-"
"""Prefix of unfinished files' names, on systems where every file needs a name. Such entries are never mirrored."""

_MOST_PATCHED_PAGES = 4096
"""If more pages differ than this (16 MiB), the file is replaced: the journal of a patch would cost more."""
_PASSES = 3
"""The most passes over a file that changes during its copy, before the copy is accepted as it is."""
_PLAIN_MODE = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO
"""Permissions that a file can be created with. A write takes the others away."""
_UNNAMED_FLAGS = os.O_RDWR | open_flags("O_TMPFILE", "O_CLOEXEC")
_READ_FLAGS = os.O_RDONLY | open_flags("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC")


class OvertakenError(CloudbenchError):
    """The file has changed since it was examined, so that it will be examined again."""


class VanishedError(CloudbenchError):
    """The folder is gone, or another folder has its name."""


@dataclass
class FolderSide:
    """One of the two folders.

    Attributes:
        root: its path.
        name: what messages call it.
        before: called before each step that changes the folder, with the step and the relative path.
        is_durable: whether each file is flushed to the disk by itself, and its name by ``sync_names``. Otherwise the
            caller flushes many together.
        identity: the root's identity when it was opened, or empty before that.
    """

    root: str
    name: str
    before: Callable[[str, str], None] = lambda step, path: None
    is_durable: bool = True
    identity: str = field(default="", init=False)
    _staging: str = field(default="", init=False)
    _real_folder: str | None = field(default=None, init=False)
    _entered: OpenFolder | None = field(default=None, init=False)
    _unsynced_folders: set[str] = field(default_factory=set, init=False)

    def open(self) -> None:
        """Accept the folder that is there now as the right one. Raises VanishedError if there is none."""
        self.identity = self._read_identity(self.root)
        parent_folder = os.path.dirname(os.path.abspath(self.root))
        # No client watches the parent folder, but a rename needs the same file system and write permission.
        is_fit = (
            os.access(parent_folder, os.W_OK | os.X_OK) and os.stat(parent_folder).st_dev == os.stat(self.root).st_dev
        )
        self._staging = parent_folder if is_fit and parent_folder != os.path.abspath(self.root) else self.root

    def clean(self) -> None:
        """Remove unfinished files that a killed process has left. A scan removes those in inner folders."""
        for folder in {self._staging or self.root, self.root}:
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):
                    self._remove_staged(f"{folder}/{name}")

    def must_be_there(self) -> None:
        """Raise VanishedError unless the root is still the folder that was opened."""
        self._must_be_root(self.root)

    def _must_be_root(self, root: str | int) -> None:
        if self._read_identity(root) != self.identity:
            raise VanishedError(f"{self.name} {self.root!r}: another folder has its name now")

    # --- looking ---

    def path(self, relative: str) -> str:
        """Return the path of an entry."""
        return f"{self.root}/{relative}"

    def find_entry(self, relative: str) -> FoundEntry | None:
        """Return one entry as it is now, or None if there is none. Raises OSError if that cannot be determined.

        A path through a symbolic link is not an entry: the link's target is not part of the folder.
        """
        if not self.has_folder_of(relative):
            return None
        path = self.path(relative)
        try:
            return _make_entry(path, os.lstat(path))
        except GONE:
            return None

    def has_folder_of(self, relative: str) -> bool:
        """Return whether the folder that an entry is in exists, and no part of its path is a symbolic link."""
        folder = relative.rpartition("/")[0]
        if not folder or folder == self._real_folder:
            return True
        path = self.root
        try:
            for part in folder.split("/"):
                path = f"{path}/{part}"
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    return False
        except GONE:
            return False
        if self._real_folder is not None:
            self._real_folder = folder
        return True

    @contextlib.contextmanager
    def remembering_folder(self) -> Iterator[None]:
        """Remember, while the context is open, which folder was checked last, until a step changes anything."""
        self._real_folder = ""
        try:
            yield
        finally:
            self._real_folder = None

    def _begin_step(self, step: str, relative: str) -> None:
        """Announce a step that changes the folder, and forget which folder was checked last."""
        self.before(step, relative)
        if self._real_folder is not None:
            self._real_folder = ""

    def find_all_entries(
        self, on_folder: Callable[[str], None], agreed: Callable[[str], bytes] | None = None
    ) -> FoundAll:
        """Return all entries. Raises VanishedError.

        Args:
            on_folder: called with each folder's relative path before the folder is listed, so that changes are
                noticed from then on.
            agreed: returns a folder's listing as agreed. With None, no folder is compared.
        """
        entries, unknown, compared, gone = dict[str, FoundEntry](), dict[str, OSError](), set[str](), set[str]()
        open_folders, folders = [""], list[str]()
        while open_folders:
            folder = open_folders.pop()
            folders.append(folder)
            try:
                on_folder(folder)
                rows = self._list_rows(folder, open_folders)
            except GONE:
                entries.pop(folder, None)
                gone.add(folder)
                continue
            except OSError as error:
                unknown[folder] = error
                continue
            was = b"" if agreed is None else agreed(folder)
            if agreed is not None:
                compared.add(folder)
            if was == b"".join(sorted(rows)):
                continue
            agreed_rows = set(split_listing(was))
            entries.update((join_path(folder, name_of(row)), decode_row(row)) for row in rows if row not in agreed_rows)
            gone.update(join_path(folder, name) for name in {*map(name_of, agreed_rows)}.difference(map(name_of, rows)))
        mounts = find_mounts(self.root, folders)  # afterwards, so that a mount that went away meanwhile is missing
        self.must_be_there()
        return FoundAll(entries, unknown, compared, gone, mounts)

    def _list_rows(self, folder: str, open_folders: list[str]) -> list[bytes]:
        """Return the rows of a folder's listing, in any order, and add the folders in it. Raises OSError."""
        rows: list[bytes] = []
        fd = os.open(self.path(folder), FOLDER_FLAGS)
        try:
            with os.scandir(fd) as listed:  # of a descriptor: then the system looks names up without their folders
                for entry in listed:
                    name = entry.name
                    if name.startswith(STAGED):
                        self._remove_staged(name, fd)
                        continue
                    try:
                        status = entry.stat(follow_symlinks=False)
                        row = _make_row(name, status, fd)
                    except GONE:
                        continue
                    if row:
                        rows.append(row)
                        if stat.S_ISDIR(status.st_mode):
                            open_folders.append(join_path(folder, name))
        finally:
            os.close(fd)
        return rows

    def names(self, relative: str) -> list[str]:
        """Return the names in a folder. Raises OSError."""
        return os.listdir(self.path(relative))

    def find_names(self, relative: str) -> frozenset[str]:
        """Return the names in a folder, or none if no entry can be there. Raises OSError if that cannot be determined.

        As for ``find_entry``, a path through a symbolic link has no entries.
        """
        try:
            return frozenset(self.names(relative)) if self.has_folder_of(f"{relative}/name") else frozenset()
        except GONE:
            return frozenset()

    def open_file(self, relative: str) -> int:
        """Open an entry. Raises OvertakenError if it is gone or a symbolic link, and OSError."""
        try:
            return os.open(self.path(relative), _READ_FLAGS)
        except OSError as error:
            if isinstance(error, GONE) or error.errno == errno.ELOOP:
                raise OvertakenError(f"{relative!r} is gone") from error
            raise

    @contextlib.contextmanager
    def reading(self, relative: str) -> Iterator[int]:
        """Open a regular file. Raises OvertakenError if it no longer is one, and OSError."""
        fd = self.open_file(relative)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OvertakenError(f"{relative!r} is no longer a file")
            yield fd
        finally:
            os.close(fd)

    # --- changing ---

    def sync_names(self) -> None:
        """Wait until the names of entries that were made or renamed are on the disk."""
        while self._unsynced_folders:
            try:
                sync_names(Path(self.path(self._unsynced_folders.pop())))
            except OSError:  # it has another name by now, or may not be read
                os.sync()

    def _note_name(self, relative: str) -> None:
        """Note that an entry got its name just now."""
        if self.is_durable:
            self._unsynced_folders.add(relative.rpartition("/")[0])

    def make_folder(self, relative: str, mode: int) -> None:
        """Create a folder. Raises OSError."""
        self._begin_step("mkdir", relative)
        os.mkdir(self.path(relative), mode | stat.S_IRWXU)
        self._note_name(relative)
        os.chmod(self.path(relative), mode)

    def make_link(self, relative: str, target: str) -> None:
        """Create a symbolic link. Raises OSError."""
        self._begin_step("symlink", relative)
        os.symlink(target, self.path(relative))
        self._note_name(relative)

    def set_mode(self, relative: str, mode: int) -> None:
        """Change permissions. Raises OvertakenError, BusyError and OSError.

        A file with other names is replaced by a copy, so that what they show does not change.
        """
        entry = self.find_entry(relative)
        if entry is not None and entry.kind == "file" and entry.names > 1:
            with self.reading(relative) as source:
                self.put_file(relative, source, mode, entry)
            return
        self._begin_step("chmod", relative)
        os.chmod(self.path(relative), mode)

    def remove_folder(self, relative: str) -> None:
        """Remove an empty folder. Raises OSError if it is not."""
        self._begin_step("rmdir", relative)
        os.rmdir(self.path(relative))

    def remove(self, relative: str, seen: FoundEntry) -> None:
        """Remove a file or link, if it is unchanged since ``seen``. Raises OvertakenError, BusyError and OSError."""
        self._begin_step("unlink", relative)
        with self.hold_entry(relative, seen):
            os.unlink(self.path(relative))

    def rename(self, old: str, new: str) -> None:
        """Rename an entry. Raises FileExistsError if the new name is taken, and OSError."""
        self._begin_step("rename", new)
        rename_to_free_name(self.path(old), self.path(new))
        for name in (old, new):
            self._note_name(name)

    def put_file(
        self, relative: str, source: int, mode: int, replaced: FoundEntry | None,
        note: Callable[[FileMark], None] = lambda mark: None,
    ) -> tuple[FoundEntry, FileMark, int]:  # fmt: skip
        """Copy an open file, with its time, to a new entry, or atomically over one unchanged since ``replaced``.

        ``note`` is called with the size and time that the file will have, before the file is visible.
        Returns the new file, the mark that the source had before the copied content was read, and how many bytes were
        written. Raises FileExistsError, OvertakenError, BusyError and OSError, and leaves the folder as before.
        """
        self._begin_step("copy", relative)
        try:
            return self._write_new_file(relative, source, mode, replaced, note)
        except OSError as error:
            if error.errno != errno.EXDEV or not self._staging:
                raise
            self._staging = ""  # a mount at or in the folder: create files next to their final place
            return self._write_new_file(relative, source, mode, replaced, note)

    def _write_new_file(
        self, relative: str, source: int, mode: int, replaced: FoundEntry | None, note: Callable[[FileMark], None]
    ) -> tuple[FoundEntry, FileMark, int]:
        staging = self._staging or os.path.dirname(self.path(relative))
        with self._unnamed_file(staging) as (fd, name):
            status = os.fstat(source)
            source_mark = mark_file(status)
            written_bytes = content.copy_data(source, fd, status)
            for _ in range(_PASSES - 1):
                if (now := mark_file(os.fstat(source))) == source_mark:
                    break
                source_mark = now
                for page in content.changed_pages(source, fd):
                    content.write_at(fd, page.new, page.offset)
                    written_bytes += len(page.new)
                os.ftruncate(fd, os.fstat(source).st_size)
            os.fchmod(fd, mode)
            os.utime(fd, ns=(source_mark.modified_ns, source_mark.modified_ns))
            if self.is_durable:
                os.fsync(fd)
            note(source_mark)
            self._begin_step("publish", relative)
            if replaced is None:
                link_name(fd, name, self.path(relative))
                close_new_file(self.path(relative))
            else:
                staged = name or f"{staging}/{self._staged_prefix}{os.fstat(fd).st_ino}"
                if not name:
                    link_name(fd, name, staged)
                try:
                    with self.hold_entry(relative, replaced):
                        os.replace(staged, self.path(relative))
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(staged)
                    raise
            self._note_name(relative)
            return self._check_published(relative, fd), source_mark, written_bytes

    def put_new_file(self, relative: str, source: int, status: os.stat_result) -> tuple[FoundEntry, int] | None:
        """Copy an open file, which had this status just now, to a new entry, in fewer calls than ``put_file``.

        Returns the new file, and how many bytes were written. Returns None, and leaves the folder as before, where this
        is not enough: the file changes meanwhile, the entry exists, its folder does not, or this system cannot. Raises
        OvertakenError, VanishedError and OSError.
        """
        folder, _, name = relative.rpartition("/")
        if not can_name_open_files() or (entered := self._enter_folder(folder)) is None:
            return None
        self._begin_step("copy", relative)
        try:
            fd = os.open(self._staging or ".", _UNNAMED_FLAGS, status.st_mode & _PLAIN_MODE, dir_fd=entered.fd)
        except OSError:
            return None
        try:
            written_bytes = content.copy_data(source, fd, status)
            if mark_file(os.fstat(source)) != mark_file(status):
                return None
            os.utime(fd, ns=(status.st_mtime_ns, status.st_mtime_ns))
            copied = os.fstat(fd)
            if copied.st_mode != status.st_mode:  # the umask, or a right that only chmod gives
                os.fchmod(fd, stat.S_IMODE(status.st_mode))
            if self.is_durable:
                os.fsync(fd)
            self._begin_step("publish", relative)
            if not entered.publish(fd, name):
                self.leave_folder()
                return None
            self._note_name(relative)
            new_entry = entered.find_published(name, copied)
            if new_entry is None:
                self.leave_folder()
                self.must_be_there()
                raise OvertakenError(f"{relative!r} was changed by another program")
            return new_entry, written_bytes
        finally:
            os.close(fd)

    def patch_file(
        self, relative: str, source: int, mode: int, seen: FoundEntry,
        ranges: Callable[[], Iterable[tuple[int, int]] | None], note: Callable[[FileMark], None],
        journal: Callable[[list[content.Page], int, int], None],
    ) -> tuple[FoundEntry, FileMark, int]:  # fmt: skip
        """Patch a file in place to match ``source``, writing only the pages that differ.

        Refuses if it changed since ``seen``.

        Args:
            relative: the file's relative path.
            source: the open file.
            mode: permissions.
            seen: the file as it was seen.
            ranges: called after the source's mark was read. Returns where the two may differ, or None for anywhere.
            note: called with the size and time that the file will have, before it is changed.
            journal: called with all pages, the old size and the new size, before the first page is written.

        Returns the file, the mark that the source had before the copied content was read, and how many bytes were
        written. Raises as ``put_file`` does. An OSError may leave the file patched in part, which the journal covers.
        """
        source_mark = mark_file(os.fstat(source))
        pages = None
        with contextlib.suppress(PermissionError), self.hold_entry(relative, seen), self.reading(relative) as old:
            pages = _take_at_most(content.changed_pages(source, old, ranges()), _MOST_PATCHED_PAGES)
        was_bytes = seen.mark.size_bytes
        is_as_before = pages == [] and was_bytes == source_mark.size_bytes
        if is_as_before and (seen.mode, seen.mark.modified_ns) == (mode, source_mark.modified_ns):
            return seen, source_mark, 0
        is_writable = is_as_before or os.access(self.path(relative), os.W_OK)
        if pages is None or seen.names > 1 or not is_writable:  # what other names show does not change
            return self.put_file(relative, source, mode, seen, note)
        note(source_mark)
        if not is_as_before:
            journal(pages, was_bytes, source_mark.size_bytes)
        self._begin_step("patch", relative)
        flags = (os.O_RDONLY if is_as_before else os.O_RDWR) | open_flags("O_NOFOLLOW", "O_CLOEXEC")
        fd = os.open(self.path(relative), flags)
        try:
            if mark_file(os.fstat(fd)) != seen.mark:
                raise OvertakenError(f"{relative!r} has changed")
            if source_mark.size_bytes < was_bytes:  # first, so that a killed patch that has written has also cut
                os.ftruncate(fd, source_mark.size_bytes)
            for page in pages:
                self._begin_step("write", relative)
                content.write_at(fd, page.new, page.offset)
            if not is_as_before:
                os.ftruncate(fd, source_mark.size_bytes)
            self._begin_step("stamp", relative)
            os.fchmod(fd, mode)
            os.utime(fd, ns=(source_mark.modified_ns, source_mark.modified_ns))
            if self.is_durable and not is_as_before:
                os.fsync(fd)
            return self._check_published(relative, fd), source_mark, sum(len(page.new) for page in pages)
        finally:
            os.close(fd)

    # --- inside ---

    def _read_identity(self, root: str | int) -> str:
        try:
            status = os.stat(root)
            identity = identify(root, status)
        except OSError as error:
            raise VanishedError(f"{self.name} {self.root!r}: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode):
            raise VanishedError(f"{self.name} {self.root!r}: no longer a folder")
        return identity

    def _remove_staged(self, path: str, folder: int | None = None) -> None:
        """Remove the entry if it is an unfinished file of this folder. Call it only while no file is being created."""
        if os.path.basename(path).startswith(self._staged_prefix):
            with contextlib.suppress(OSError):
                os.unlink(path, dir_fd=folder)

    @functools.cached_property
    def _staged_prefix(self) -> str:
        """The beginning of unfinished files' names, which no other folder has."""
        digest = hashlib.sha256(os.fsencode(os.path.realpath(self.root))).hexdigest()
        return f"{STAGED}{digest[:16]}-"

    @contextlib.contextmanager
    def _unnamed_file(self, staging: str) -> Iterator[tuple[int, str]]:
        """Create a file that no other program sees. Its name is empty where the system needs none."""
        fd, name = -1, ""
        if can_name_open_files():
            with contextlib.suppress(OSError):  # many file systems in user space cannot
                fd = os.open(staging, _UNNAMED_FLAGS, 0o600)
        if fd < 0:
            name = f"{staging}/{self._staged_prefix}{os.getpid()}"
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            yield fd, name
        finally:
            os.close(fd)
            if name:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)

    @contextlib.contextmanager
    def hold_entry(self, relative: str, seen: FoundEntry) -> Iterator[None]:
        """Hold an entry unchanged since ``seen``, so that nobody can open it for writing.

        Raises OvertakenError and BusyError.
        """
        with contextlib.ExitStack() as stack:
            if seen.kind == "file":
                with contextlib.suppress(PermissionError):  # a file that even its owner may not read
                    take_lease(stack.enter_context(self.reading(relative)), relative)
            now = self.find_entry(relative)
            if now is None or (now.kind, now.mark, now.target) != (seen.kind, seen.mark, seen.target):
                raise OvertakenError(f"{relative!r} has changed")
            yield

    def _check_published(self, relative: str, fd: int) -> FoundEntry:
        """Return the entry at the path, which must still be the open file. Raises OvertakenError."""
        now = self.find_entry(relative)
        if now is None or now.mark != mark_file(os.fstat(fd)):
            raise OvertakenError(f"{relative!r} was changed by another program")
        return now

    def _enter_folder(self, relative: str) -> OpenFolder | None:
        """Return an open folder, which stays open until ``leave_folder``, or None if it cannot be opened.

        Raises VanishedError.
        """
        if self._entered is None or self._entered.relative != relative:
            self.leave_folder()
            with contextlib.suppress(OSError):
                self._entered = OpenFolder(self.root, relative, self._must_be_root)
        return self._entered

    def leave_folder(self) -> None:
        """Close the folder that ``put_new_file`` has kept open."""
        if self._entered is not None:
            self._entered.close()
            self._entered = None


def _make_entry(path: str, status: os.stat_result, folder: int | None = None) -> FoundEntry | None:
    """Return the entry with this status, or None for pipes, sockets and devices, which are not mirrored."""
    mode, mark = stat.S_IMODE(status.st_mode), mark_file(status)
    if stat.S_ISREG(status.st_mode):
        return FoundEntry("file", mode, mark, status.st_nlink)
    if stat.S_ISDIR(status.st_mode):
        return FoundEntry("folder", mode | stat.S_IRWXU, mark)  # we need all rights, to change its entries
    if stat.S_ISLNK(status.st_mode):
        return FoundEntry("link", 0, mark, target=os.readlink(path, dir_fd=folder))
    return None


def _make_row(name: str, status: os.stat_result, folder: int) -> bytes:
    """Return the row of an entry of an open folder, or nothing for pipes, sockets and devices. Raises OSError."""
    mode = status.st_mode
    if stat.S_ISREG(mode):
        try:
            return encode_name(name) + b"\0" + NUMBERS.pack(
                mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, 0
            )  # fmt: skip
        except struct.error:
            pass  # wide numbers, as below
    entry = _make_entry(name, status, folder)
    return b"" if entry is None else encode_row(name, entry.kind, entry.mode, entry.mark, entry.target)


def _take_at_most(pages: Iterable[content.Page], limit: int) -> list[content.Page] | None:
    """Return all pages, or None if there are more than ``limit``."""
    taken_pages = []
    for page in pages:
        taken_pages.append(page)
        if len(taken_pages) > limit:
            return None
    return taken_pages
