"""The kernel's own record of what happens on a file system: static tracepoints, read raw through tracefs.

Here are tracefs, our own instance of it, its raw pages, and the events in them. ``written`` interprets the events.
Linux only. It needs the right to mount tracefs (root), or to create instances in a mounted one.

An instance has its own buffers, events and filters, so no other program's tracing is touched. It belongs to the kernel
and outlives a killed process. The next process that opens an instance removes it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

from pytest_cloudbench.model import UsageError

_MOUNTED = Path("/sys/kernel/tracing")
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # the same numbers on every architecture
_FSCONFIG_CREATE, _CLOEXEC = 6, 1
_PREFIX = "cloudbench-"
_BUFFER_KIB = 4096
_PERCENT_FULL = 25
_MOST_UNMAPPED = 1_000_000
_TRIES = 20
"""The number of attempts to create an instance that other processes keep removing."""
_FIELD = re.compile(
    r"field:[^;]*?(?P<name>\w+)(?:\[\w*\])?;\s*offset:(?P<offset>\d+);\s*size:(?P<size>\d+);\s*signed:(?P<signed>\d)"
)
_HEAD, _NUMBER = struct.Struct("=I"), struct.Struct("=H")
_CODES = {1: "b", 2: "h", 4: "i", 8: "q"}
_PADDING, _TIME_EXTEND, _TIME_STAMP = 29, 30, 31
_MISSED = 1 << 31
_LENGTH_BITS = 0xFFFFF
_numbers = count()


class TracingUnavailable(UsageError):
    """Tracepoints cannot be used here, as the message explains."""


@dataclass(frozen=True, slots=True)
class WantedEvent:
    """An event to record.

    Attributes:
        name: such as ``ext4/ext4_da_write_end``.
        inodes: the fields with the inodes that it is about, by their names in its format file.
        on_event: called for each event, with these inodes and then ``values``.
        values: two more fields to read, or none. Only for an event about one inode.
        device: the field with the device.
        is_unmapped: what the event says about mappings of its inode. True: no program has it mapped, since it was just
            created, or read into memory. False: from now on, one may have it mapped. None: nothing.
        is_required: whether to refuse a kernel without this event.
    """

    name: str
    inodes: tuple[str, ...]
    on_event: Callable[..., None]
    values: tuple[()] | tuple[str, str] = ()
    device: str = "dev"
    is_unmapped: bool | None = None
    is_required: bool = True

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields to read."""
        return self.inodes + self.values


class EventField(NamedTuple):
    """A value in an event: its offset, its size, and whether it can be negative."""

    offset: int
    size_bytes: int
    is_signed: bool


class EventFormat(NamedTuple):
    """An event's number in this kernel, and its fields by name."""

    number: int
    fields: Mapping[str, EventField]


_EventReader = Callable[[bytes, int], None]
"""Reads the event at an offset of a page, and passes its values on."""


class Tracefs:
    """Access to tracefs until ``close``, mounted privately if needed. Raises TracingUnavailable."""

    def __init__(self) -> None:
        self._fd = -1
        self.path = _MOUNTED
        if not (_MOUNTED / "instances").is_dir():
            # Our own mount. It is not attached to any folder and ends with this process.
            self._fd = _mount_privately(b"tracefs")
            self.path = Path(f"/proc/self/fd/{self._fd}")

    def has_event(self, name: str) -> bool:
        """Return whether this kernel has an event."""
        return (self.path / "events" / name).is_dir()

    def read_format(self, wanted: WantedEvent) -> EventFormat:
        """Return the layout of an event.

        Raises TracingUnavailable if the kernel does not have the event, or one of its fields.
        """
        if not self.has_event(wanted.name):
            raise TracingUnavailable(f"this kernel does not have the tracepoint {wanted.name}")
        event_format = _parse_format((self.path / "events" / wanted.name / "format").read_text("ascii"))
        if lacking := [name for name in (*wanted.fields, wanted.device) if name not in event_format.fields]:
            raise TracingUnavailable(f"this kernel's tracepoint {wanted.name} has no field {', '.join(lacking)}")
        return event_format

    def close(self) -> None:
        """Unmount it. Safe to call again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class TraceInstance:
    """All events of one file system, by an instance of tracefs, until ``close``.

    Raises TracingUnavailable if there is no tracefs, no permission to use it, or a required event is missing.
    """

    def __init__(self, events: Sequence[WantedEvent], device: int, *, buffer_kib: int = _BUFFER_KIB) -> None:
        self._tracefs: Tracefs | None = None
        self._pipes: list[int] = []
        self._folder = Path()
        self._unmapped: set[int] = set()
        """Inodes created, or read into memory, while all events were seen, and not mapped since."""
        if sys.byteorder != "little":
            raise TracingUnavailable("tracing works on little-endian machines only")
        try:
            self._tracefs = tracefs = Tracefs()
            self._remove_abandoned(tracefs.path)
            self._create_instance(tracefs.path / "instances")
            self._page_bytes, self._commit, self._data = _page_layout(self._folder)
            self._write_setting("buffer_size_kb", str(buffer_kib))
            with suppress(OSError):  # since Linux 5.0. Without it, every event wakes the reader
                self._write_setting("buffer_percent", str(_PERCENT_FULL))
            self._readers: dict[int, _EventReader] = dict(
                self._enable_event(event, tracefs, device)
                for event in events
                if event.is_required or tracefs.has_event(event.name)
            )
        except OSError as error:
            self.close()
            raise TracingUnavailable(f"tracefs cannot be used: {error.strerror}: {error.filename}") from error
        except BaseException:
            self.close()
            raise

    def filenos(self) -> tuple[int, ...]:
        """Return descriptors that become readable once a quarter of a CPU's buffer is full."""
        return tuple(self._pipes)

    def is_unmapped(self, inode: int) -> bool:
        """Return whether no program has had the inode mapped since it was created, or read into memory."""
        return inode in self._unmapped

    def read(self, lost: Callable[[], None]) -> None:
        """Pass on the events since the last call, in order on each CPU.

        ``lost`` is called wherever events were lost because the buffer was full.
        """

        def note_loss() -> None:
            self._unmapped.clear()
            lost()

        for pipe in self._pipes:
            with suppress(BlockingIOError):
                while page := os.read(pipe, self._page_bytes):
                    self._read_page(page, note_loss)

    def close(self) -> None:
        """Remove the instance. Safe to call again."""
        self._close_pipes()
        if self._folder.name:
            with suppress(OSError):
                self._folder.rmdir()
            self._folder = Path()
        if self._tracefs is not None:
            self._tracefs.close()

    # --- inside ---

    @staticmethod
    def _remove_abandoned(tracefs: Path) -> None:
        """Remove instances of killed processes. The kernel refuses to remove one that is in use."""
        for path in tracefs.joinpath("instances").glob(f"{_PREFIX}*"):
            with suppress(OSError):
                path.rmdir()

    def _create_instance(self, instances: Path) -> None:
        """Create an instance, and open its pipes.

        Until then, other processes may take it for one that was left behind.
        """
        for _ in range(_TRIES):
            self._folder = instances / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
            self._folder.mkdir()
            if self._open_pipes():
                return
        why = f"removed by other processes {_TRIES} times, as soon as it was created"
        raise FileNotFoundError(errno.ENOENT, why, self._folder)

    def _open_pipes(self) -> bool:
        """Open the pipes. Returns whether they are the instance's: with one of them open, no process can remove it.

        A pipe opened while the instance was being removed may belong to another instance that now has its memory.
        """
        try:
            for path in sorted((self._folder / "per_cpu").iterdir()):
                self._pipes.append(os.open(path / "trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # ENODEV: being removed
                raise
        else:
            if self._pipes and self._folder.is_dir():
                return True
        self._close_pipes()
        return False

    def _close_pipes(self) -> None:
        while self._pipes:
            os.close(self._pipes.pop())

    def _write_setting(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text, "ascii")

    def _enable_event(self, wanted: WantedEvent, tracefs: Tracefs, device: int) -> tuple[int, _EventReader]:
        event_format = tracefs.read_format(wanted)
        folder = self._folder / "events" / wanted.name
        (folder / "filter").write_text(f"{wanted.device} == {device}", "ascii")
        (folder / "enable").write_text("1", "ascii")
        return event_format.number, _make_reader(wanted.fields, event_format.fields, self._with_mapping_notes(wanted))

    def _with_mapping_notes(self, wanted: WantedEvent) -> Callable[..., None]:
        if wanted.is_unmapped is None:
            return wanted.on_event

        def note_mapping(inode: int) -> None:
            if not wanted.is_unmapped:
                self._unmapped.discard(inode)
            else:
                if len(self._unmapped) >= _MOST_UNMAPPED:
                    self._unmapped.clear()
                self._unmapped.add(inode)
            wanted.on_event(inode)

        return note_mapping

    def _read_page(self, page: bytes, note_loss: Callable[[], None]) -> None:
        """Hand each event of a page of the kernel's ring buffer to its reader."""
        read_head, read_number, readers = _HEAD.unpack_from, _NUMBER.unpack_from, self._readers
        (committed,) = read_head(page, self._commit)
        if committed & _MISSED:
            note_loss()
        offset, end = self._data, min(self._data + (committed & _LENGTH_BITS), len(page))
        while offset + 4 <= end:
            (head,) = read_head(page, offset)
            kind = head & 31
            if 0 < kind < _PADDING:  # an event, with its length in words
                read_event = readers.get(read_number(page, offset + 4)[0])
                if read_event is not None:
                    read_event(page, offset + 4)
                offset += 4 + 4 * kind
            elif kind in (_TIME_EXTEND, _TIME_STAMP):
                offset += 8
            elif kind == _PADDING and not head >> 5:
                return
            else:  # a long event, or a dropped one: its length follows
                read_event = readers.get(read_number(page, offset + 8)[0]) if kind == 0 else None
                if read_event is not None:
                    read_event(page, offset + 8)
                offset += 4 + read_head(page, offset + 4)[0]


def _make_reader(names: Sequence[str], fields: Mapping[str, EventField], on_event: Callable[..., None]) -> _EventReader:
    in_order = sorted(names, key=lambda name: fields[name].offset)
    layout, offset = "=", 0
    for name in in_order:
        field = fields[name]
        code = _CODES[field.size_bytes]
        layout += f"{field.offset - offset}x{code if field.is_signed else code.upper()}"
        offset = field.offset + field.size_bytes
    unpack = struct.Struct(layout).unpack_from
    if in_order == list(names):
        return lambda page, begin: on_event(*unpack(page, begin))
    order = [in_order.index(name) for name in names]

    def read_sorted(page: bytes, begin: int) -> None:
        values = unpack(page, begin)
        on_event(*(values[position] for position in order))

    return read_sorted


def _mount_privately(kind: bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: object) -> int:
        result: int = libc.syscall(number, *arguments)
        if result < 0:
            error = ctypes.get_errno()
            why = f"{kind.decode()} cannot be mounted ({os.strerror(error)}), which root may"
            raise TracingUnavailable(why)
        return result

    context = call(_FSOPEN, kind, _CLOEXEC)
    try:
        call(_FSCONFIG, context, _FSCONFIG_CREATE, None, None, 0)
        return call(_FSMOUNT, context, _CLOEXEC, 0)
    finally:
        os.close(context)


def _page_layout(folder: Path) -> tuple[int, int, int]:
    """Return the size of a page in bytes, and the offsets of its length field and of its events."""
    text = (folder / "events" / "header_page").read_text("ascii")
    fields = {match["name"]: (int(match["offset"]), int(match["size"])) for match in _FIELD.finditer(text)}
    offset, size = fields["data"]
    return offset + size, fields["commit"][0], offset


def _parse_format(text: str) -> EventFormat:
    fields = {
        match["name"]: EventField(int(match["offset"]), int(match["size"]), match["signed"] == "1")
        for match in _FIELD.finditer(text)
        if int(match["size"]) in _CODES
    }
    number = re.search(r"^ID: (\d+)", text, re.MULTILINE)
    if number is None:
        raise TracingUnavailable("an event's format file has no number")
    return EventFormat(int(number[1]), fields)
