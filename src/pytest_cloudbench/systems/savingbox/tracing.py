"""The kernel's own record of what happens on a file system: static tracepoints, read raw through tracefs.

What may live here: our own instance of tracefs, its raw pages, and the events in them. ``written`` interprets the
events. Linux only; needs the right to mount tracefs (root), or to create instances in a mounted one.

An instance has its own buffers, events and filters, so no other program's tracing is touched. It belongs to the kernel
and outlives a killed process; the next process that opens an instance removes it.
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

from pytest_cloudbench.model import UsageError

__all__ = ["TraceInstance", "TracingUnavailable", "Wanted"]

_MOUNTED = Path("/sys/kernel/tracing")
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # the same numbers on every architecture
_FSCONFIG_CREATE, _CLOEXEC = 6, 1
_PREFIX = "cloudbench-"
_BUFFER_KIB = 4096
_PERCENT_FULL = 25
_TRIES = 20
"""How many times to create an instance that other processes keep removing."""
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
    """Tracepoints cannot be used here; the message says why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An event to record.

    Attributes:
        name: such as ``ext4/ext4_da_write_end``.
        fields: the values to read from it, by their names in its format file.
        tell: called with these values for each event.
        only: a filter in the kernel's own filter language; empty: no filter.
        is_required: whether to refuse a kernel without this event.
    """

    name: str
    fields: tuple[str, ...]
    tell: Callable[..., None]
    only: str = ""
    is_required: bool = True


_Tell = Callable[[bytes, int], None]
"""Reads the event at an offset of a page, and passes its values on."""


class TraceInstance:
    """Events of the whole machine, as they happen, until ``close``.

    Raises TracingUnavailable if there is no tracefs, no permission to use it, or a required event is missing.
    """

    def __init__(self, events: Sequence[Wanted], *, buffer_kib: int = _BUFFER_KIB) -> None:
        self._root = -1
        self._pipes: list[int] = []
        self._folder = Path()
        if sys.byteorder != "little":
            raise TracingUnavailable("tracing works on little-endian machines only")
        try:
            tracefs = self._open_tracefs()
            self._remove_left(tracefs)
            self._make(tracefs / "instances")
            self._page_bytes, self._commit, self._data = _page_layout(self._folder)
            self._write("buffer_size_kb", str(buffer_kib))
            with suppress(OSError):  # since Linux 5.0; without it, every event wakes the reader
                self._write("buffer_percent", str(_PERCENT_FULL))
            self._tell: dict[int, _Tell] = dict(
                self._enable(each) for each in events if each.is_required or self._has(each)
            )
        except OSError as error:
            self.close()
            raise TracingUnavailable(f"tracefs cannot be used: {error.strerror}: {error.filename}") from error
        except BaseException:
            self.close()
            raise

    def filenos(self) -> tuple[int, ...]:
        """Descriptors that become readable once a quarter of a CPU's buffer is full."""
        return tuple(self._pipes)

    def read(self, lost: Callable[[], None]) -> None:
        """Pass on the events since the last call, in order on each CPU.

        ``lost`` is called wherever events were lost because the buffer was full.
        """
        for pipe in self._pipes:
            with suppress(BlockingIOError):
                while page := os.read(pipe, self._page_bytes):
                    self._read_page(page, lost)

    def close(self) -> None:
        """Remove the instance; safe to call again."""
        self._close_pipes()
        if self._folder.name:
            with suppress(OSError):
                self._folder.rmdir()
            self._folder = Path()
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    # --- inside ---

    def _open_tracefs(self) -> Path:
        if (_MOUNTED / "instances").is_dir():
            return _MOUNTED
        # Our own mount. It is not attached to any folder and ends with this process.
        self._root = _mounted_nowhere(b"tracefs")
        return Path(f"/proc/self/fd/{self._root}")

    @staticmethod
    def _remove_left(tracefs: Path) -> None:
        """Remove instances of killed processes. The kernel refuses to remove one in use: it is busy."""
        for path in tracefs.joinpath("instances").glob(f"{_PREFIX}*"):
            with suppress(OSError):
                path.rmdir()

    def _make(self, instances: Path) -> None:
        """Create an instance, and hold it. Until its pipes are open, other processes may take it for a leftover."""
        for _ in range(_TRIES):
            self._folder = instances / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
            self._folder.mkdir()
            if self._hold():
                return
        why = f"removed by other processes {_TRIES} times, as soon as it was created"
        raise FileNotFoundError(errno.ENOENT, why, self._folder)

    def _hold(self) -> bool:
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

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text, "ascii")

    def _has(self, wanted: Wanted) -> bool:
        return (self._folder / "events" / wanted.name).is_dir()

    def _enable(self, wanted: Wanted) -> tuple[int, _Tell]:
        folder = self._folder / "events" / wanted.name
        if not self._has(wanted):
            raise TracingUnavailable(f"this kernel does not have the tracepoint {wanted.name}")
        number, fields = _format_of((folder / "format").read_text("ascii"))
        if lacking := [name for name in wanted.fields if name not in fields]:
            raise TracingUnavailable(f"this kernel's tracepoint {wanted.name} has no field {', '.join(lacking)}")
        if wanted.only:
            (folder / "filter").write_text(wanted.only, "ascii")
        (folder / "enable").write_text("1", "ascii")
        return number, _teller(wanted, fields)

    def _read_page(self, page: bytes, lost: Callable[[], None]) -> None:
        head_of, number_of, tell_of = _HEAD.unpack_from, _NUMBER.unpack_from, self._tell
        (committed,) = head_of(page, self._commit)
        if committed & _MISSED:
            lost()
        at, end = self._data, min(self._data + (committed & _LENGTH_BITS), len(page))
        while at + 4 <= end:
            (head,) = head_of(page, at)
            kind = head & 31
            if 0 < kind < _PADDING:  # an event; its length in words
                tell = tell_of.get(number_of(page, at + 4)[0])
                if tell is not None:
                    tell(page, at + 4)
                at += 4 + 4 * kind
            elif kind in (_TIME_EXTEND, _TIME_STAMP):
                at += 8
            elif kind == _PADDING and not head >> 5:
                return
            else:  # a long event, or a dropped one; its length follows
                tell = tell_of.get(number_of(page, at + 8)[0]) if kind == 0 else None
                if tell is not None:
                    tell(page, at + 8)
                at += 4 + head_of(page, at + 4)[0]


def _teller(wanted: Wanted, fields: Mapping[str, tuple[int, str, int]]) -> _Tell:
    by_place = sorted(wanted.fields, key=lambda name: fields[name][0])
    layout, at = "=", 0
    for name in by_place:
        offset, code, size = fields[name]
        layout += f"{offset - at}x{code}"
        at = offset + size
    unpack, tell = struct.Struct(layout).unpack_from, wanted.tell
    if by_place == list(wanted.fields):
        return lambda page, begin: tell(*unpack(page, begin))
    order = [by_place.index(name) for name in wanted.fields]

    def tell_sorted(page: bytes, begin: int) -> None:
        values = unpack(page, begin)
        tell(*(values[place] for place in order))

    return tell_sorted


def _mounted_nowhere(kind: bytes) -> int:
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
    """The size of a page in bytes, and the offsets of its length field and of its events."""
    text = (folder / "events" / "header_page").read_text("ascii")
    places = {found["name"]: (int(found["offset"]), int(found["size"])) for found in _FIELD.finditer(text)}
    at, size = places["data"]
    return at + size, places["commit"][0], at


def _format_of(text: str) -> tuple[int, Mapping[str, tuple[int, str, int]]]:
    """An event's number, and the offset, type code and size of each field."""
    fields = {}
    for found in _FIELD.finditer(text):
        size = int(found["size"])
        if size in _CODES:
            code = _CODES[size] if found["signed"] == "1" else _CODES[size].upper()
            fields[found["name"]] = (int(found["offset"]), code, size)
    number = re.search(r"^ID: (\d+)", text, re.MULTILINE)
    if number is None:
        raise TracingUnavailable("an event's format file has no number")
    return int(number[1]), fields
