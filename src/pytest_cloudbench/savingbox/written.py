"""Mechanisms that see which bytes of files were written, without reading them again (UDS+, paper 002, section 6.2).

Linux only.

The paper patched the kernel so that inotify reports offset and length. The kernel's own tracepoints report the same
without a patch. ``TracedWrites`` gets their events from tracefs. Its ranges may be too large, never too small. Where it
cannot be sure, it says so, and the file is compared with its copy, as it is without any mechanism (``NoWrites``).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pytest_cloudbench.savingbox.batching.ranges import ByteRanges
from pytest_cloudbench.savingbox.tracing import TraceInstance, TracingUnavailable, WantedEvent

_INIT_PIDS = "pid:[4026531836]"
_FAULTS = ("mm_filemap_fault", "mm_filemap_map_pages")
_CUT, _ALLOCATED, _CLONED = "it was truncated", "space in it was allocated or freed", "it took blocks of another file"


@dataclass(frozen=True, slots=True)
class _Tracepoints:
    """The tracepoints of a file system, by name, and the fields to read from them.

    Attributes:
        writes: a write through the page cache, to the fields with offset and length.
        doubtful: another change of content, to the fields with the inodes, and why the written bytes are then unknown.
        early: those of ``doubtful`` that come before the change, which may still be under way when they are seen.
        newer: those of ``doubtful`` that older kernels lack, as they lack the operation.
        born: an inode is created, or read into memory. No program has it mapped, and it may be a new file.
        gone: an inode is freed.
    """

    writes: Mapping[str, tuple[str, str]]
    doubtful: Mapping[str, tuple[tuple[str, ...], str]]
    early: frozenset[str] = frozenset()
    newer: frozenset[str] = frozenset()
    born: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


_EXT4_MOVES = ("ext4_punch_hole", "ext4_zero_range", "ext4_collapse_range", "ext4_insert_range")
_XFS_MOVES = ("xfs_alloc_file_space", "xfs_free_file_space", "xfs_collapse_file_space", "xfs_insert_file_space")
_TRACEPOINTS: Mapping[str, _Tracepoints] = {
    "ext4": _Tracepoints(
        writes=dict.fromkeys(("ext4_da_write_end", "ext4_write_end", "ext4_journalled_write_end"), ("pos", "len")),
        doubtful={
            "ext4_truncate_enter": (("ino",), _CUT),
            **dict.fromkeys(("ext4_fallocate_enter", "ext4_fallocate_exit", *_EXT4_MOVES), (("ino",), _ALLOCATED)),
        },
        early=frozenset(_EXT4_MOVES),
        born=("ext4_allocate_inode",),
        gone=("ext4_free_inode",),
    ),
    # XFS raises its event before it writes. By then it holds the inode's lock, and readers need that lock, too: a
    # reader that has seen the event reads the new content. One event covers all attributes, including the size.
    "xfs": _Tracepoints(
        writes={"xfs_file_buffered_write": ("offset", "count")},
        doubtful={
            "xfs_setattr": (("ino",), f"{_CUT}, or its attributes were set"),
            **dict.fromkeys(_XFS_MOVES, (("ino",), _ALLOCATED)),
            "xfs_reflink_remap_range": (("dest_ino",), _CLONED),
            "xfs_exchrange_mappings": (("ip1_ino", "ip2_ino"), _CLONED),
        },
        newer=frozenset({"xfs_exchrange_mappings"}),
        born=("xfs_iget_miss", "xfs_iget_recycle"),
    ),
}
_LOST = "events were lost because the buffer was full"
_UNKNOWN = "it was not followed"
_MAPPED = "it is mapped"
_LINKED = "it has, or had, several names"
_CLOSED = "it is open for writing, and may be mapped by a process that cannot be inspected"


@dataclass(frozen=True, slots=True)
class SeenWrites:
    """The writes to a file since the last answer.

    Attributes:
        ranges: all written ranges, and perhaps more, or None if unknown: the file must be compared with its copy.
        doubt: the reason why they are unknown, or empty.
    """

    ranges: ByteRanges | None
    doubt: str = ""


class Writes(Protocol):
    """A mechanism that sees which bytes of files are written.

    The order for one file: ``follow_file``, make the copy (nothing is missed meanwhile), and for each push
    ``take_writes``, then read the changed bytes. Writes after a ``take_writes`` are in the next one.
    """

    @property
    def name(self) -> str:
        """The mechanism's name, for people."""
        ...

    @property
    def why(self) -> str:
        """The reason why no better mechanism is in use, or empty if this is the best one."""
        ...

    def follow_file(self, fd: int) -> None:
        """See all writes to this open file from now on. No effect if it is already followed."""
        ...

    def peek_writes(self, fd: int) -> SeenWrites:
        """Return what ``take_writes`` would return, without taking it, to estimate the size of an update."""
        ...

    def take_writes(self, fd: int) -> SeenWrites:
        """Return the writes to the file since ``follow_file`` or the last ``take_writes``."""
        ...

    def distrust_file(self, fd: int, why: str) -> None:
        """Make the next answer "unknown", because the copy is wrong, for instance after a failed push."""
        ...

    def close(self) -> None:
        """Stop. Safe to call again."""
        ...


class NoWrites:
    """No mechanism: every changed file is compared with its copy. Needs no special rights, but must read both files."""

    name = "compare"

    def __init__(self, why: str) -> None:
        self.why = why

    def follow_file(self, fd: int) -> None:
        """No effect."""

    def peek_writes(self, fd: int) -> SeenWrites:
        """Return "unknown"."""
        return SeenWrites(None, self.why)

    def take_writes(self, fd: int) -> SeenWrites:
        """Return "unknown"."""
        return SeenWrites(None, self.why)

    def distrust_file(self, fd: int, why: str) -> None:
        """No effect."""

    def close(self) -> None:
        """No effect."""


@dataclass(slots=True)
class _FollowedFile:
    """The seen writes of one file, and why they may be incomplete, now and after the next ``take_writes``.

    An empty reason means that they are complete.
    """

    ranges: ByteRanges | None = None
    doubt: str = ""
    later: str = ""


class TracedWrites:
    """Writes as the tracepoints of ext4 or XFS show them, by offset and length.

    Seen with offset and length: write, pwrite, writev, O_APPEND, O_DIRECT, sendfile, copy_file_range and splice. Other
    changes only cause the file to be compared. These are stores into a mapping of the file (its first access shows that
    there is one), truncating, allocating, punching holes and cloning, changes before ``follow_file``, and all changes
    under way when events were lost. A mapped or doubtful file is trusted again once it has been compared and no program
    maps it.

    The kernel filters by device, not by file. So every write to the same file system costs its writer 0.2 to 0.5 us,
    and this process 0.5 to 2 us (docs/decisions/0015).

    Args:
        folder: one on ext4 or XFS.
        buffer_kib: the size of each CPU's event buffer.

    Raises TracingUnavailable where this cannot be used.
    """

    name = "tracefs"
    why = ""

    def __init__(self, folder: Path, *, buffer_kib: int = 4096) -> None:
        if sys.platform != "linux":
            raise TracingUnavailable("tracepoints need Linux")
        try:
            device = folder.stat().st_dev
            kind, options = _find_file_system(folder)
        except OSError as error:
            raise TracingUnavailable(f"{error.filename!r}: {error.strerror}") from error
        if kind not in _TRACEPOINTS:
            kind = kind or "an unknown file system"
            raise TracingUnavailable(
                f"{str(folder)!r} is on {kind}; writes can be traced on {' and '.join(_TRACEPOINTS)} only"
            )
        if any(option == "dax" or option.startswith("dax=") for option in options - {"dax=never"}):
            raise TracingUnavailable(f"{str(folder)!r} is on {kind} mounted with dax, where writes leave no trace")
        self._device = device
        kernel_device = os.major(device) << 20 | os.minor(device)
        self._files: dict[int, _FollowedFile] = {}
        self._lock = threading.Lock()
        self._trace = TraceInstance(self._wanted_events(kind), kernel_device, buffer_kib=buffer_kib)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._keep_reading, name="read-trace", daemon=True)
        self._thread.start()

    def follow_file(self, fd: int) -> None:
        """See all writes to this file, open for reading, from now on. Keeps what is already known about it."""
        status = os.fstat(fd)
        if status.st_dev != self._device:
            return
        with self._lock:
            self._read_events()
            if status.st_ino in self._files:
                return
            # A later mapping raises an event, but whether there is one already must be checked.
            self._files[status.st_ino] = _FollowedFile(doubt=self._find_mapping(fd, status))

    def peek_writes(self, fd: int) -> SeenWrites:
        """Return what ``take_writes`` would return, without taking it."""
        with self._lock:
            self._read_events()
            file = self._find_followed(os.fstat(fd))
            if file is None or file.doubt:
                return SeenWrites(None, _UNKNOWN if file is None else file.doubt)
            return SeenWrites(file.ranges.copy() if file.ranges is not None else ByteRanges())

    def take_writes(self, fd: int) -> SeenWrites:
        """Return the writes to the file since ``follow_file`` or the last ``take_writes``."""
        with self._lock:
            self._read_events()
            status = os.fstat(fd)
            file = self._find_followed(status)
            if file is None:
                return SeenWrites(None, _UNKNOWN)
            doubt, file.doubt, file.later = file.doubt, file.later, ""
            ranges, file.ranges = file.ranges or ByteRanges(), None
            # An event comes before the file gets its new size: keep ranges beyond the end for the next ``take_writes``.
            beyond_end = ranges.copy().split(status.st_size)
            if beyond_end:
                file.ranges = beyond_end
            if doubt:
                file.doubt = file.doubt or (self._find_mapping(fd, status) if status.st_nlink == 1 else _LINKED)
                return SeenWrites(None, doubt)
            return SeenWrites(ranges)

    def distrust_file(self, fd: int, why: str) -> None:
        """Make the next answer "unknown"."""
        with self._lock:
            if file := self._find_followed(os.fstat(fd)):
                file.doubt = file.doubt or why

    def close(self) -> None:
        """Stop, and detach from the tracepoints. Safe to call again."""
        if self._wake_write < 0:
            return
        os.write(self._wake_write, b"x")
        self._thread.join()
        with self._lock:
            self._trace.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_write = -1
            self._files.clear()

    # --- inside ---

    def _find_followed(self, status: os.stat_result) -> _FollowedFile | None:
        file = self._files.get(status.st_ino) if status.st_dev == self._device else None
        if file is not None and status.st_nlink > 1:  # writes taken by one name would be missing for the others
            file.doubt = _LINKED
        return file

    def _keep_reading(self) -> None:
        """Read events before the buffer is full, even while no answer is asked for."""
        poll = select.poll()
        for pipe in (*self._trace.filenos(), self._wake_read):
            poll.register(pipe, select.POLLIN)
        while self._wake_read not in {pipe for pipe, _ in poll.poll()}:
            with self._lock:
                self._read_events()

    def _read_events(self) -> None:
        self._trace.read(self._note_lost_events)

    def _note_lost_events(self) -> None:
        for file in self._files.values():
            file.doubt = file.doubt or _LOST

    def _add_write(self, inode: int, offset: int, size_bytes: int) -> None:
        if (file := self._files.get(inode)) is not None:
            if file.ranges is None:
                file.ranges = ByteRanges()
            file.ranges.add(offset, size_bytes)

    def _add_direct_write(self, inode: int, offset: int, size_bytes: int) -> None:
        """Add a direct write. Its offset is that of its begin or its end, depending on the kernel: cover both."""
        if size_bytes > 0:
            self._add_write(inode, max(0, offset - size_bytes), 2 * size_bytes)

    def _make_doubter(self, why: str, *, is_early: bool) -> Callable[..., None]:
        def doubt(*inodes: int) -> None:
            for inode in inodes:
                if (file := self._files.get(inode)) is not None:
                    file.doubt = file.doubt or why
                    if is_early:  # an inotify event at the end of the change has the file examined again
                        file.later = why

        return doubt

    def _note_mapping(self, inode: int) -> None:
        if (file := self._files.get(inode)) is not None:
            file.doubt = file.doubt or _MAPPED

    def _stop_following(self, inode: int) -> None:
        self._files.pop(inode, None)

    def _find_mapping(self, fd: int, status: os.stat_result) -> str:
        """Return why a program might be able to change the file untraced, or nothing if none has it mapped."""
        return "" if self._trace.is_unmapped(status.st_ino) else _find_mapping(fd, status)

    def _wanted_events(self, kind: str) -> list[WantedEvent]:
        """Return the events that tell which bytes of a kind of file system's files are written."""
        tracepoints = _TRACEPOINTS[kind]
        return [
            *(
                WantedEvent(f"{kind}/{name}", ("ino",), self._add_write, fields)
                for name, fields in tracepoints.writes.items()
            ),
            WantedEvent("iomap/iomap_dio_rw_begin", ("ino",), self._add_write, ("pos", "count")),
            WantedEvent("iomap/iomap_dio_complete", ("ino",), self._add_direct_write, ("pos", "ret")),
            *(
                WantedEvent(
                    f"{kind}/{name}", inodes, self._make_doubter(why, is_early=name in tracepoints.early),
                    is_required=name not in tracepoints.newer,
                )
                for name, (inodes, why) in tracepoints.doubtful.items()
            ),
            *(
                WantedEvent(f"filemap/{name}", ("i_ino",), self._note_mapping, device="s_dev", is_unmapped=False)
                for name in _FAULTS
            ),
            *(
                WantedEvent(f"{kind}/{name}", ("ino",), self._stop_following, is_unmapped=is_unmapped)
                for names, is_unmapped in ((tracepoints.born, True), (tracepoints.gone, False))
                for name in names
            ),
        ]  # fmt: skip


def find_writes(folder: Path, how: Literal["auto", "trace", "compare"] = "auto") -> TracedWrites | NoWrites:
    """Return the best mechanism that works for this folder. Its ``why`` says why no better one does.

    Args:
        folder: the savingbox.
        how: all but ``auto`` require that mechanism.

    Raises TracingUnavailable for ``trace`` if that does not work here.
    """
    if how == "compare":
        return NoWrites("asked for by --ranges compare")
    try:
        return TracedWrites(folder)
    except TracingUnavailable as error:
        if how == "trace":
            raise TracingUnavailable(f"--ranges trace: {error}") from error
        return NoWrites(str(error))


def _find_file_system(folder: Path) -> tuple[str, frozenset[str]]:
    """Return the kind and options of the mounted file system that a folder is on, or nothing if it is unknown."""
    # Look for the mount's number, because files on btrfs have other devices than their mount.
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fdinfo = Path(f"/proc/self/fdinfo/{fd}").read_text("ascii")
    finally:
        os.close(fd)
    (mount,) = (line.split()[1] for line in fdinfo.splitlines() if line.startswith("mnt_id:"))
    for line in Path("/proc/self/mountinfo").read_text("utf-8", errors="replace").splitlines():
        mount_fields, _, system_fields = line.partition(" - ")
        if mount_fields.split()[0] == mount:
            kind, _, options = system_fields.split(" ", 2)
            return kind, frozenset(f"{mount_fields.split()[5]},{options}".split(","))
    return "", frozenset()


def _find_mapping(fd: int, status: os.stat_result) -> str:
    """Return why a program might be able to change the file untraced, or nothing if no program has it mapped.

    A file that no program has open for writing cannot be stored into. Otherwise the mappings of all processes are
    searched, if all processes are visible.
    """
    import fcntl

    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # harmless, should a program open it right now
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)  # refused while any program has it open for writing
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return ""
    with suppress(OSError):
        if os.readlink("/proc/self/ns/pid") == _INIT_PIDS:
            file_id = f" {os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x} {status.st_ino} "
            return _MAPPED if any(file_id in text for text in _read_all_mappings()) else ""
    return _CLOSED


def _read_all_mappings() -> list[str]:
    mappings = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(ProcessLookupError, FileNotFoundError):
                mappings.append(Path(f"/proc/{name}/maps").read_text("utf-8", errors="replace"))
    return mappings
