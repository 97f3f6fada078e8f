"""The kernel's events of followed files only: small BPF programs on the tracepoints drop those of all other files.

What may live here: the programs, as machine code for the kernel's virtual machine; the maps that they share with this
process; loading and attaching them. ``written`` interprets the events. Linux 5.8 or newer on x86-64; needs CAP_BPF and
CAP_PERFMON (root), and the formats of the events from tracefs. No compiler, no library:
a program is 60 instructions at most.

Programs, maps and their attachment are descriptors of this process: nothing outlives it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import select
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from pytest_cloudbench.savingbox.tracing import EventField, Tracefs, TracingUnavailable, Wanted

_BPF, _PERF_EVENT_OPEN = 321, 298  # x86-64
_CREATE_MAP, _LOOKUP, _UPDATE, _DELETE, _LOAD = 0, 1, 2, 3, 5
_HASH, _ARRAY, _LRU_HASH, _RING = 1, 2, 9, 27
_TRACEPOINT_PROGRAM, _TRACEPOINT_EVENT = 5, 2
_NO_PREALLOC, _CLOEXEC = 1, 8
_SET_BPF, _ENABLE = 0x4004_2408, 0x2400
_MOST_FOLLOWED, _MOST_UNMAPPED = 1 << 18, 1 << 16  # the kernel allocates for so many at once
_HEAD = struct.Struct("=I36x")
_RECORD = struct.Struct("=8xQqqQ")
"""An event behind the ring's own 8 bytes: inode, two values, and which event it is."""
_BUSY = 1 << 31
_NUMBER, _TWO = struct.Struct("@Q"), struct.Struct("@QQ")

_Tell = Callable[[int, int, int], None]


class BpfEvents:
    """Events of followed inodes on one file system, in order, until ``close``. The other way is ``TraceInstance``.

    Raises TracingUnavailable if the kernel does not have BPF, refuses it, or a required event is missing.
    """

    name = "bpf"

    def __init__(self, events: Sequence[Wanted], device: int, *, buffer_kib: int = 4096) -> None:
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            raise TracingUnavailable("BPF is used on x86-64 Linux only")
        # A ring is readable as soon as one event is there. Only its edges show that a program wants to wake us.
        self._edges = select.epoll()
        self._fds: list[int] = []
        self._memory: list[mmap.mmap] = []
        self._tell: list[_Tell] = []
        self._lost = 0
        tracefs = None
        try:
            tracefs = Tracefs()
            self._ring_bytes = 1 << max(12, (buffer_kib * 1024 - 1).bit_length())
            self._followed = self._map(_HASH, 8, 1, _MOST_FOLLOWED, _NO_PREALLOC)
            self._unmapped = self._map(_LRU_HASH, 8, 1, _MOST_UNMAPPED)
            self._counts = self._map(_ARRAY, 4, _TWO.size, 1)
            self._ring = self._map(_RING, 0, 0, self._ring_bytes)
            page_bytes = mmap.PAGESIZE
            self._consumed = mmap.mmap(self._ring, page_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            self._memory.append(self._consumed)
            # The data follow the page with the producer's position; they are there twice, so that no record is split.
            self._produced = mmap.mmap(
                self._ring, page_bytes + 2 * self._ring_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=page_bytes
            )
            self._memory.append(self._produced)
            self._edges.register(self._ring, select.EPOLLIN | select.EPOLLET)
            for wanted in events:
                if wanted.is_required or tracefs.has(wanted.name):
                    self._attach(wanted, tracefs, device)
        except OSError as error:
            self.close()
            why = f"{error.filename or 'bpf'}: {error.strerror}"
            raise TracingUnavailable(f"BPF cannot be used ({why}); root may use it") from error
        except BaseException:
            self.close()
            raise
        finally:
            if tracefs is not None:
                tracefs.close()

    def filenos(self) -> tuple[int, ...]:
        """A descriptor that becomes readable once a quarter of the buffer is full."""
        return (self._edges.fileno(),)

    def follow(self, inode: int) -> bool:
        """From now on record this inode's events. Returns False if there are too many."""
        try:
            self._element(_UPDATE, self._followed, _NUMBER.pack(inode), b"\1")
        except OSError:
            return False
        return True

    def forget(self, inode: int) -> None:
        """Stop recording this inode's events."""
        with suppress(FileNotFoundError):
            self._element(_DELETE, self._followed, _NUMBER.pack(inode))

    def is_unmapped(self, inode: int) -> bool:
        """Whether no program has had a followed inode mapped since it was created, or read into memory."""
        # The programs take an inode off this list before they check whether it is followed. So a mapping that is not
        # noticed here raises an event.
        with suppress(FileNotFoundError):
            self._element(_LOOKUP, self._unmapped, _NUMBER.pack(inode), bytes(1))
            return not self._counted()[1]
        return False

    def read(self, lost: Callable[[], None]) -> None:
        """Pass on the events since the last call; ``lost`` is called if events did not fit into the buffer."""
        self._edges.poll(0)
        begin = _NUMBER.unpack_from(self._consumed)[0]
        end = _NUMBER.unpack_from(self._produced)[0]
        while begin < end:
            at = mmap.PAGESIZE + begin % self._ring_bytes
            heads = self._produced[at : at + end - begin]
            ready = 0
            for (head,) in _HEAD.iter_unpack(heads):
                if head & _BUSY:
                    break
                ready += 1
            # Read again what is known to be complete: the first copy may have been made back to front.
            for inode, one, other, event in _RECORD.iter_unpack(self._produced[at : at + ready * _RECORD.size]):
                self._tell[event](inode, one, other)
            begin += ready * _RECORD.size
            _NUMBER.pack_into(self._consumed, 0, begin)
            if not ready:
                os.sched_yield()  # another CPU is writing that event at this moment
        were, self._lost = self._lost, self._counted()[0]
        if self._lost != were:
            lost()

    def close(self) -> None:
        """Detach the programs; safe to call again."""
        while self._memory:
            self._memory.pop().close()
        self._edges.close()
        while self._fds:
            os.close(self._fds.pop())

    # --- inside ---

    def _counted(self) -> tuple[int, int]:
        """How many events did not fit into the buffer, and how many inodes could not be taken off the list."""
        lost, kept = _TWO.unpack(self._element(_LOOKUP, self._counts, bytes(4), bytes(_TWO.size)))
        return lost, kept

    def _map(self, kind: int, key_bytes: int, value_bytes: int, most: int, flags: int = 0) -> int:
        return self._held(_bpf(_CREATE_MAP, struct.pack("=5I", kind, key_bytes, value_bytes, most, flags)))

    def _held(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def _element(self, command: int, fd: int, key: bytes, value: bytes = b"") -> bytes:
        at, there = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(value, max(1, len(value)))
        _bpf(command, struct.pack("=I4xQQQ", fd, ctypes.addressof(at), ctypes.addressof(there) if value else 0, 0))
        return there.raw

    def _attach(self, wanted: Wanted, tracefs: Tracefs, device: int) -> None:
        import fcntl

        form = tracefs.format_of(wanted)
        for inode in wanted.inodes:
            number = len(self._tell)
            self._tell.append(_teller(wanted))
            values = [form.fields[name] for name in wanted.values]
            code = self._program(number, wanted, form.fields[wanted.device], device, form.fields[inode], values)
            program = self._held(_load(code))
            # A program runs on all CPUs, wherever the event that it is attached to was opened.
            event = self._held(_open_event(form.number))
            fcntl.ioctl(event, _SET_BPF, program)
            fcntl.ioctl(event, _ENABLE, 0)

    def _program(
        self, number: int, wanted: Wanted, device_field: EventField, device: int, inode: EventField,
        values: Sequence[EventField],
    ) -> bytes:  # fmt: skip
        """Pass the event on if its inode is followed, and note whether the inode may be mapped."""
        code = _Assembler()
        code.copy(_CONTEXT, _R1)
        code.load(_R1, _CONTEXT, device_field)
        code.leave_unless_equal(_R1, device)
        code.load(_R7, _CONTEXT, inode)
        code.store(_INODE, _R7)
        if wanted.is_unmapped is not None:
            code.map_argument(self._unmapped)
            code.stack_argument(_R2, _INODE)
            if wanted.is_unmapped:
                code.stack_argument(_R3, _INODE)  # any byte will do: only the key matters
                code.set(_R4, 0)
                code.call(_MAP_UPDATE)
            else:
                code.call(_MAP_DELETE)
                code.count_unless(self._counts, 8, (0, -errno.ENOENT))
        code.map_argument(self._followed)
        code.stack_argument(_R2, _INODE)
        code.call(_MAP_LOOKUP)
        code.leave_if_equal(_R0, 0)
        for place, value in zip((_ONE, _OTHER), [*values, None, None], strict=False):
            if value is None:
                code.set(_R1, 0)
            else:
                code.load(_R1, _CONTEXT, value)
            code.store(place, _R1)
        code.set(_R1, number)
        code.store(_EVENT, _R1)
        code.map_argument(self._ring)
        code.set(_R2, 0)  # how much is in it
        code.call(_RING_QUERY)
        code.set(_R4, _DO_NOT_WAKE)
        code.skip_if_below(_R0, self._ring_bytes // 4, 1)
        code.set(_R4, _WAKE)
        code.map_argument(self._ring)
        code.stack_argument(_R2, _INODE)
        code.set(_R3, _RECORD.size - 8)
        code.call(_RING_OUTPUT)
        code.count_unless(self._counts, 0, (0,))
        return code.assembled()


def _teller(wanted: Wanted) -> _Tell:
    tell = wanted.tell
    if wanted.values:
        return tell
    return lambda inode, one, other: tell(inode)


# --- the kernel's virtual machine ---

_R0, _R1, _R2, _R3, _R4, _CONTEXT, _R7, _STACK = 0, 1, 2, 3, 4, 6, 7, 10
_INODE, _ONE, _OTHER, _EVENT, _KEY = -32, -24, -16, -8, -40
_MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE, _RING_OUTPUT, _RING_QUERY = 1, 2, 3, 130, 134
_DO_NOT_WAKE, _WAKE = 1, 2
_LOADS = {1: 0x71, 2: 0x69, 4: 0x61, 8: 0x79}
_INSTRUCTION = struct.Struct("=BBhi")


class _Instruction(NamedTuple):
    code: int
    target: int = 0
    source: int = 0
    offset: int = 0
    value: int = 0


class _Assembler:
    """Instructions in the order in which they run. A jump to the end gets its distance when they are assembled."""

    def __init__(self) -> None:
        self._code: list[_Instruction] = []
        self._leaving: list[int] = []

    def _add(self, *instruction: int) -> None:
        self._code.append(_Instruction(*instruction))

    def copy(self, target: int, source: int) -> None:
        self._add(0xBF, target, source)

    def set(self, target: int, value: int) -> None:
        self._add(0xB7, target, 0, 0, value)

    def load(self, target: int, base: int, field: EventField) -> None:
        self._add(_LOADS[field.size_bytes], target, base, field.offset)
        if field.is_signed and field.size_bytes < 8:
            for shift in (0x67, 0xC7):  # left, and right again with the sign
                self._add(shift, target, 0, 0, 64 - 8 * field.size_bytes)

    def store(self, place: int, source: int) -> None:
        self._add(0x7B, _STACK, source, place)

    def map_argument(self, fd: int) -> None:
        self._add(0x18, _R1, 1, 0, fd)
        self._add(0)

    def stack_argument(self, target: int, place: int) -> None:
        self.copy(target, _STACK)
        self._add(0x07, target, 0, 0, place)

    def call(self, function: int) -> None:
        self._add(0x85, 0, 0, 0, function)

    def leave_if_equal(self, register: int, value: int) -> None:
        self._leaving.append(len(self._code))
        self._add(0x15, register, 0, 0, value)

    def leave_unless_equal(self, register: int, value: int) -> None:
        self._leaving.append(len(self._code))
        self._add(0x56, register, 0, 0, value - (value >> 31 << 32))  # compares 32 bits

    def skip_if_below(self, register: int, value: int, count: int) -> None:
        self._add(0xA5, register, 0, count, value)

    def count_unless(self, counts: int, offset: int, results: Sequence[int]) -> None:
        """Add 1 to a count unless the last call had one of these results."""
        skipped = 9
        for number, result in enumerate(results):
            self._add(0x15, _R0, 0, skipped + len(results) - 1 - number, result)
        self._add(0x62, _STACK, 0, _KEY, 0)
        self.map_argument(counts)
        self.stack_argument(_R2, _KEY)
        self.call(_MAP_LOOKUP)
        self._add(0x15, _R0, 0, 2, 0)
        self.set(_R1, 1)
        self._add(0xDB, _R0, _R1, offset, 0)  # an atomic add

    def assembled(self) -> bytes:
        end = len(self._code)
        self.set(_R0, 0)  # no event for perf itself
        self._add(0x95)
        for at in self._leaving:
            self._code[at] = self._code[at]._replace(offset=end - at - 1)
        return b"".join(
            _INSTRUCTION.pack(each.code, each.target | each.source << 4, each.offset, each.value) for each in self._code
        )


# --- system calls ---


def _bpf(command: int, attributes: bytes) -> int:
    memory = ctypes.create_string_buffer(attributes, len(attributes))
    return _called(_BPF, command, ctypes.byref(memory), len(attributes))


def _load(code: bytes) -> int:
    text, license_text = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"Apache-2.0")
    addresses = ctypes.addressof(text), ctypes.addressof(license_text)
    attributes = struct.pack("=IIQQ", _TRACEPOINT_PROGRAM, len(code) // _INSTRUCTION.size, *addresses)
    return _bpf(_LOAD, attributes.ljust(48, b"\0"))


def _open_event(number: int) -> int:
    attributes = struct.pack("=IIQQ", _TRACEPOINT_EVENT, 64, number, 1).ljust(64, b"\0")
    memory = ctypes.create_string_buffer(attributes, len(attributes))
    return _called(_PERF_EVENT_OPEN, ctypes.byref(memory), -1, 0, -1, _CLOEXEC)


def _called(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "bpf" if number == _BPF else "perf_event_open")
    return result
