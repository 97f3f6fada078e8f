"""Driver for a local folder: a sync client's folder, a mount, or plain disk.

What may live here: everything that is specific to files on a local path, in this order: imports,
capabilities, error table, connect, required verbs, optional verbs.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR, S_ISLNK
from typing import BinaryIO, ClassVar

from pytest_cloudbench.drivers.base import check_params, choice_of, walk
from pytest_cloudbench.model import (
    MIB,
    Capabilities,
    CloudError,
    Conflict,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    NameRules,
    ProviderSpec,
    SpecError,
    Verb,
    chunks,
)
from pytest_cloudbench.support import opening

# --- capabilities ---------------------------------------------------------------------------------

_VERBS = frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE, Verb.COPY, Verb.MOVE})

_CAPABILITIES = Capabilities(
    digest="sha256",
    verbs=_VERBS,
    ranges=True,
    conflicts=frozenset(Conflict) - {Conflict.SHARE_AGAIN},
    moves_folders=True,
    space=True,
    # What the usual file systems do. On an unusual one, the user has to know the differences.
    names=NameRules(
        case_sensitive=sys.platform not in {"darwin", "win32"},
        max_chars=255,
        max_bytes=None if sys.platform in {"darwin", "win32"} else 255,
        refused='<>:"\\|?*' if sys.platform == "win32" else "",
    ),
    requests=dict.fromkeys(_VERBS, 0),
    via="os",
)

_PIECE_BYTES = MIB
# A name that sync clients ignore, so that a half-written file never travels.
_TEMPORARY_PREFIX = ".~cloudbench-"

# --- error table ----------------------------------------------------------------------------------

_ERRNO_KINDS: Mapping[int | None, ErrorKind] = {
    errno.ENOENT: ErrorKind.NOT_FOUND,
    errno.ENOSPC: ErrorKind.QUOTA,
    errno.EDQUOT: ErrorKind.QUOTA,
    errno.EACCES: ErrorKind.AUTH,
    errno.EPERM: ErrorKind.AUTH,
    errno.EROFS: ErrorKind.AUTH,
    errno.EEXIST: ErrorKind.CONFLICT,
    errno.ENOTDIR: ErrorKind.CONFLICT,
    errno.EISDIR: ErrorKind.CONFLICT,
    errno.ENOTEMPTY: ErrorKind.CONFLICT,
    errno.EINVAL: ErrorKind.INVALID,
    errno.ENAMETOOLONG: ErrorKind.INVALID,
    errno.EILSEQ: ErrorKind.INVALID,
}


@contextmanager
def _cloud_errors(operation: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = _ERRNO_KINDS.get(error.errno, ErrorKind.SERVER)
        raise CloudError(kind, operation, path, detail=error.strerror or str(error)) from error


def _remove_tree(folder: Path) -> None:
    """Remove a folder with all its contents. A file that another program removes meanwhile is no error."""
    if sys.version_info >= (3, 12):
        shutil.rmtree(folder, onexc=_ignore_missing)
    else:
        shutil.rmtree(folder, onerror=lambda function, path, info: _ignore_missing(function, path, info[1]))


def _ignore_missing(_function: object, _path: object, error: BaseException) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _may_have_link(root: Path, parts: Sequence[str]) -> bool:
    """Return whether a part of a path below the root may be a symbolic link, which may lead out of the root.

    Resolving the whole path would take several times as long. Where there are other kinds of links, it may be one.
    """
    if sys.platform == "win32":
        return True
    path = str(root)
    for part in parts:
        path = os.path.join(path, part)  # pathlib would take as long as resolving
        try:
            if S_ISLNK(os.lstat(path).st_mode):
                return True
        except OSError:  # nothing is there, so nothing is below
            return False
    return False


def _create_file(path: Path) -> BinaryIO:
    """Create a new file, and the folders above it if they are missing, and open it to write."""
    try:
        return path.open("xb")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")


def _is_listed(item: os.DirEntry[str]) -> bool:
    if item.name.startswith(_TEMPORARY_PREFIX):
        return False
    return item.is_file(follow_symlinks=False) or item.is_dir(follow_symlinks=False)


# --- connect --------------------------------------------------------------------------------------


def _root_folder(spec: ProviderSpec) -> Path:
    try:
        root = Path(spec.target).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise SpecError(f"provider {spec.text!r}: cannot use this folder: {error}") from error
    if "?" in str(root):
        raise SpecError(f"provider {spec.text!r}: cannot use {root}: a spec ends at its first '?'")
    return root


def file_system(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type, device and mount point of a folder's file system, such as ``nfs4 (nas:/export at /mnt/nas)``.

    Args:
        folder: its absolute path, without symbolic links.
        mounts: the kernel's list of mounts (proc_pid_mountinfo(5)). Systems without it give ``unknown``.
    """
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return "unknown"
    nearest, described = -1, "unknown"
    for line in lines:
        mount_fields, _, system_fields = line.partition(" - ")
        mount_point, system = mount_fields.split(" ")[4:5], system_fields.split(" ")[:2]
        if len(mount_point) + len(system) < 3:
            continue
        point, kind, device = map(_unescape, (*mount_point, *system))
        # Of two mounts on one point the later one hides the other.
        if folder.is_relative_to(point) and len(point) >= nearest:
            nearest, described = len(point), f"{kind} ({device} at {point})"
    return described


def _unescape(field: str) -> str:
    """Return a field of mountinfo unescaped: the kernel writes spaces, tabs and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


class FolderDriver:
    """Files below one root. Safe for many threads: its only state is the root.

    ``?fsync=1`` makes ``put`` wait until the file is on the disk, with its name. By default it does not wait: a program
    that writes into a synced folder does not either, and the disk would hide the sync client's effect.
    """

    capabilities: ClassVar[Capabilities] = _CAPABILITIES

    def __init__(self, root: Path, *, fsync: bool = False) -> None:
        self._root, self._fsync = root, fsync

    def __repr__(self) -> str:
        return f"FolderDriver({str(self._root)!r}, fsync={self._fsync})"

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> FolderDriver:
        """Return the driver for ``folder:PATH``. Raises SpecError if there is no such folder.

        The folder is never created: a missing one is often a mount that is not there, and the disk below it would be
        measured instead.
        """
        driver = cls.connect_part(spec, endpoint, credentials)
        if not (root := _root_folder(spec)).is_dir():
            raise SpecError(f"provider {spec.text!r}: there is no folder {root}; mount it, or make it first")
        return driver

    @classmethod
    def connect_part(
        cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]
    ) -> FolderDriver:
        """Return the driver for a part of an array: a folder that is not there may come back, such as a mount.

        Until then every operation fails. Raises SpecError.
        """
        del endpoint, credentials  # a local folder needs neither
        if not spec.target:
            raise SpecError(f"provider {spec.text!r}: expected folder:PATH, such as folder:/tmp/cloudbench")
        check_params(spec, {"fsync"})
        fsync = choice_of(spec, "fsync", ("0", "1"))
        root = _root_folder(spec)
        try:
            if not S_ISDIR(root.stat().st_mode):
                raise SpecError(f"provider {spec.text!r}: {root} is not a folder")
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise SpecError(f"provider {spec.text!r}: cannot use this folder: {error}") from error
        return cls(root, fsync=fsync == "1")

    def _is_there(self) -> bool:
        try:
            return S_ISDIR(self._root.stat().st_mode)
        except OSError:
            return False

    @classmethod
    def absolute(cls, spec: ProviderSpec) -> str:
        """Return the spec with the folder's absolute path. Raises SpecError."""
        _, mark, query = spec.text.partition("?")
        return f"{spec.scheme}:{_root_folder(spec)}{mark}{query}"

    def versions(self) -> Mapping[str, str]:
        """Return the interpreter, the platform and the file system. No library is involved."""
        fsync = "on" if self._fsync else "off"
        versions = {"python": sys.version.split()[0], "platform": sys.platform, "fsync": fsync}
        return {**versions, "file system": file_system(self._root)}

    def requests(self) -> int:
        """Return 0: nothing goes over a network."""
        return 0

    def close(self) -> None:
        """Do nothing: no file is held open."""

    def _local_path(self, operation: str, path: str) -> Path:
        """Return the local path of ``path``, never one outside the root, whatever ``path`` contains."""
        parts = [part for part in path.split("/") if part]
        if not path.startswith("/") or any(part in {".", ".."} for part in parts):
            raise CloudError(ErrorKind.INVALID, operation, path, detail="expected /NAME/... without '.' and '..'")
        if "\0" in path or (os.sep != "/" and any(os.sep in part or ":" in part for part in parts)):
            raise CloudError(ErrorKind.INVALID, operation, path, detail="a character that no file name here can have")
        if not self._is_there():  # never created: the disk below a lost mount would be measured
            raise CloudError(ErrorKind.NETWORK, operation, path, detail=f"the folder {self._root} is not there")
        local = self._root.joinpath(*parts)
        try:
            inside = not _may_have_link(self._root, parts) or Path(os.path.realpath(local)).is_relative_to(self._root)
        except UnicodeEncodeError as error:
            raise CloudError(ErrorKind.INVALID, operation, path, detail="not a file name here") from error
        if not inside:
            raise CloudError(ErrorKind.INVALID, operation, path, detail="a link on this path leaves the folder")
        return local

    def _sync_names_above(self, local: Path) -> None:
        """Wait until a file's name is on the disk, and those of the folders above it, which may be new as well."""
        for folder in local.parents:
            opening.sync_names(folder)
            if folder == self._root:
                return

    def _entry_of_file(self, local: Path) -> Entry:
        status = local.stat()
        path = "/" + "/".join(local.relative_to(self._root).parts)
        if S_ISDIR(status.st_mode):
            return Entry(path, is_folder=True)
        with opening.open_regular_file(local, None) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Entry(path, size_bytes=status.st_size, digest=digest)

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Write beside the target, then rename over it: a reader sees the old or the new file, never a partial one."""
        local = self._local_path("put", path)
        # Other drivers of this folder, here or on a machine that mounts it too, may be writing at the same time.
        temporary = local.with_name(f"{_TEMPORARY_PREFIX}{secrets.token_hex(8)}")
        digest = hashlib.sha256()
        with _cloud_errors("put", path):
            try:
                with _create_file(temporary) as file:
                    for piece in chunks(content):
                        digest.update(piece)
                        file.write(piece)
                    if self._fsync:
                        file.flush()
                        os.fsync(file.fileno())
                temporary.replace(local)
                if self._fsync:
                    self._sync_names_above(local)
            except BaseException:
                with suppress(OSError):  # the first error is the one to report
                    temporary.unlink()
                raise
        return Entry(path, size_bytes=content.size_bytes, digest=digest.hexdigest())

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset``. It is opened when the first piece is asked for."""
        local = self._local_path("get", path)
        with _cloud_errors("get", path), opening.open_regular_file(local, None) as file:
            file.seek(offset)
            while piece := file.read(_PIECE_BYTES):
                yield piece

    def stat(self, path: str) -> Entry:
        """Return size and digest. Reads the file to compute the digest."""
        local = self._local_path("stat", path)
        with _cloud_errors("stat", path):
            return self._entry_of_file(local)

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield all files and folders below ``folder``, without links, pipes, devices, or what disappears meanwhile."""
        return walk(folder, self._list_children)

    def _list_children(self, folder: str) -> Iterator[tuple[Entry, str]]:
        local = self._local_path("list", folder)
        with _cloud_errors("list", folder):
            with os.scandir(local) as items:
                names = sorted(item.name for item in items if _is_listed(item))
            for name in names:
                try:
                    entry = self._entry_of_file(local / name)
                except FileNotFoundError:
                    continue
                yield entry, entry.path

    def stored(self, folder: str) -> Sequence[tuple[str, bytes]]:
        """Return the files below a folder of this driver, by their paths on this machine. Raises CloudError."""
        local = self._local_path("list", folder)
        with _cloud_errors("list", folder):
            return [(str(path), content) for path, content in opening.read_tree(local)]

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all its contents. The root itself stays."""
        local = self._local_path("delete", path)
        if local == self._root:
            raise CloudError(ErrorKind.INVALID, "delete", path, detail="the root cannot be deleted")
        with _cloud_errors("delete", path):
            if local.is_dir() and not local.is_symlink():
                _remove_tree(local)
            else:
                local.unlink()

    def mkdir(self, path: str) -> None:
        """Create a folder and its parents. No error if it exists."""
        local = self._local_path("mkdir", path)
        with _cloud_errors("mkdir", path):
            local.mkdir(parents=True, exist_ok=True)

    # --- optional verbs ---------------------------------------------------------------------------

    def copy(self, source: str, target: str) -> Entry:
        """Copy a file. An existing target is a conflict."""
        source_local, target_local = self._local_path("copy", source), self._local_path("copy", target)
        with _cloud_errors("copy", source):
            with opening.open_regular_file(source_local, None) as reader:
                target_local.parent.mkdir(parents=True, exist_ok=True)
                writer = target_local.open("xb")
                try:
                    with writer:
                        shutil.copyfileobj(reader, writer, _PIECE_BYTES)
                except BaseException:
                    with suppress(OSError):
                        target_local.unlink()  # a reader must not see a part of it
                    raise
            return self._entry_of_file(target_local)

    def move(self, source: str, target: str) -> Entry:
        """Rename a file or folder. An existing target is a conflict."""
        source_local, target_local = self._local_path("move", source), self._local_path("move", target)
        with _cloud_errors("move", source):
            source_local.lstat()  # a missing source must leave no new folder behind
            if target_local.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target_local))
            target_local.parent.mkdir(parents=True, exist_ok=True)
            source_local.rename(target_local)
            return self._entry_of_file(target_local)

    def space(self) -> tuple[int, int]:
        """Return the bytes used and the total bytes of the disk that holds the folder."""
        with _cloud_errors("space", "/"):
            usage = shutil.disk_usage(self._root)
        return usage.used, usage.total
