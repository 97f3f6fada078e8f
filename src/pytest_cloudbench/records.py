"""Operation records in bulk, packed as in an agent's log: 94 bytes each, in blocks that are read where they lie.

What may live here: the layout of a record and tables made of such records. No clock, no I/O. A table over logs on disk
costs the memory of one block, and what is corrected afterwards: two bytes per record.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any, Protocol

from pytest_cloudbench.model import ErrorKind, Op, Outcome, Verb

__all__ = [
    "BLOCK_RECORDS",
    "KINDS",
    "OUTCOMES",
    "RECORD_BYTES",
    "VERBS",
    "Held",
    "OpTable",
    "codes",
    "pack",
    "response_s",
    "values",
]

VERBS, OUTCOMES, KINDS = tuple(Verb), tuple(Outcome), (None, *ErrorKind)
"""What the codes in a record mean: a place in one of these. An enumeration only ever grows at its end."""

BLOCK_RECORDS = 1 << 13

_PACKED = struct.Struct("<5qIIHBBBBd32s")
RECORD_BYTES = _PACKED.size

_FIELDS = (
    ("scheduled_ns", "q"), ("start_ns", "q"), ("first_byte_ns", "q"), ("end_ns", "q"), ("size_bytes", "q"),
    ("sensor", "I"), ("seq", "I"), ("agent", "H"), ("verb", "B"), ("outcome", "B"), ("kind", "B"),
    ("digest_length", "B"), ("retry_after_s", "d"), ("digest", "32s"),
)  # fmt: skip
_PLACES = {name: struct.calcsize("<" + "".join(code for _, code in _FIELDS[:number]))
           for number, (name, _) in enumerate(_FIELDS)}  # fmt: skip
_READERS = {
    name: struct.Struct(f"<{_PLACES[name]}x{code}{RECORD_BYTES - _PLACES[name] - struct.calcsize('<' + code)}x")
    for name, code in _FIELDS
}
_TIMES = struct.Struct("<4q")
_MEANINGS: dict[str, Sequence[Any]] = {"verb": VERBS, "outcome": OUTCOMES, "kind": KINDS}
_VERB_CODE = {verb: code for code, verb in enumerate(VERBS)}
_OUTCOME_CODE = {outcome: code for code, outcome in enumerate(OUTCOMES)}
_KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
_UNKNOWN = float("nan")


def pack(op: Op) -> bytes:
    """One record as it is in a log."""
    digest = op.digest
    return _PACKED.pack(
        op.scheduled_ns, op.start_ns, op.first_byte_ns, op.end_ns, op.size_bytes,
        op.sensor, op.seq, op.agent,
        _VERB_CODE[op.verb], _OUTCOME_CODE[op.outcome], _KIND_CODE[op.kind], len(digest),
        _UNKNOWN if op.retry_after_s is None else op.retry_after_s, digest,
    )  # fmt: skip


def response_s(record: bytes) -> float | None:
    """Seconds from the scheduled start to the end of one packed operation that succeeded; None of another one."""
    (outcome,), (scheduled_ns,), (end_ns,) = (
        _READERS[name].unpack(record) for name in ("outcome", "scheduled_ns", "end_ns")
    )
    return (end_ns - scheduled_ns) / 1e9 if outcome == _OUTCOME_CODE[Outcome.OK] else None


class Held(Protocol):
    """Something that holds records."""

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[bytearray]:
        """All records in order, packed, at most ``BLOCK_RECORDS`` at a time. A block is the caller's to change."""
        ...


def codes(block: bytes | bytearray, name: str) -> bytes | bytearray:
    """The enumeration ``name`` of a block's records, as codes: one byte each."""
    return block[_PLACES[name] :: RECORD_BYTES]


def values(block: bytes | bytearray, name: str) -> list[Any]:
    """One field of a block's records, as ``Op`` has it."""
    if (meanings := _MEANINGS.get(name)) is not None:
        return [meanings[code] for code in codes(block, name)]
    found = [value for (value,) in _READERS[name].iter_unpack(block)]
    if name == "retry_after_s":
        return [None if isnan(value) else value for value in found]
    if name == "digest":
        return [padded[:length] for padded, length in zip(found, codes(block, "digest_length"), strict=True)]
    return found


class OpTable:
    """The records of several parts (logs, blocks in memory, other tables), one after the other.

    Every field of ``Op`` is an attribute: a list that is made anew each time, for those who look at some thousand
    records. Whatever is done for each of a million goes through ``blocks``, ``column`` and ``codes``.
    """

    if TYPE_CHECKING:
        verb: list[Verb]
        sensor: list[int]
        seq: list[int]
        agent: list[int]
        scheduled_ns: list[int]
        start_ns: list[int]
        first_byte_ns: list[int]
        end_ns: list[int]
        size_bytes: list[int]
        outcome: list[Outcome]
        kind: list[ErrorKind | None]
        retry_after_s: list[float | None]
        digest: list[bytes]

    def __init__(self, *parts: Held) -> None:
        self._parts = parts
        self._corrected: tuple[bytes | bytearray, bytes | bytearray] | None = None

    @classmethod
    def of(cls, ops: Iterable[Op]) -> OpTable:
        """A table in memory."""
        return cls(_Held(b"".join(map(pack, ops))))

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def blocks(self) -> Iterator[bytearray]:
        """See ``Held``; with what was corrected."""
        row = 0
        for part in self._parts:
            for block in part.blocks():
                last = row + len(block) // RECORD_BYTES
                if self._corrected is not None:
                    for name, corrected in zip(("outcome", "kind"), self._corrected, strict=True):
                        block[_PLACES[name] :: RECORD_BYTES] = corrected[row:last]
                row = last
                yield block

    def column(self, name: str) -> array[int]:
        """One numeric field of all records."""
        found = array("q")
        for block in self.blocks():
            found.extend(value for (value,) in _READERS[name].iter_unpack(block))
        return found

    def codes(self, name: str) -> bytearray:
        """One enumeration of all records, as codes."""
        found = bytearray()
        for block in self.blocks():
            found += codes(block, name)
        return found

    def correct(self, outcomes: bytes | bytearray, kinds: bytes | bytearray) -> None:
        """Replace all outcomes and kinds of errors by what came out afterwards (codes, one of each per record)."""
        self._corrected = outcomes, kinds

    def shifted(self, offset_ns: int) -> OpTable:
        """These records with every time that is known moved: another host's, on the common clock."""
        return OpTable(_Shifted(self, offset_ns)) if offset_ns else self

    def ops(self) -> Iterator[Op]:
        """The records one by one."""
        for block in self.blocks():
            for row in zip(*(values(block, name) for name in Op.__slots__), strict=True):
                yield Op(*row)

    def __getattr__(self, name: str) -> list[Any]:
        if name not in Op.__slots__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return [value for block in self.blocks() for value in values(block, name)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpTable) and len(self) == len(other) and list(self.ops()) == list(other.ops())

    __hash__ = None  # type: ignore[assignment]  # as every class that defines __eq__ and can change

    def __repr__(self) -> str:
        return f"<OpTable of {len(self)} records>"


class _Held:
    """Records in memory."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def __len__(self) -> int:
        return len(self._packed) // RECORD_BYTES

    def blocks(self) -> Iterator[bytearray]:
        size = BLOCK_RECORDS * RECORD_BYTES
        for place in range(0, len(self._packed), size):
            yield bytearray(self._packed[place : place + size])


class _Shifted:
    """Records of another clock; the times come first in the layout."""

    def __init__(self, part: Held, offset_ns: int) -> None:
        self._part, self._offset_ns = part, offset_ns

    def __len__(self) -> int:
        return len(self._part)

    def blocks(self) -> Iterator[bytearray]:
        offset_ns = self._offset_ns
        for block in self._part.blocks():
            for place in range(0, len(block), RECORD_BYTES):
                times = _TIMES.unpack_from(block, place)
                _TIMES.pack_into(block, place, *(each and each + offset_ns for each in times))
            yield block
