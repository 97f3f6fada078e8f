"""Operation records in bulk, packed as in an agent's log: 106 bytes each, in blocks that are read in place.

What may live here: the layout of a record and tables made of such records. No clock, no I/O. A table over logs on disk
costs the memory of one block, plus two bytes per record for corrections made afterwards.

Each text that a provider gives for failures is kept once: a record has its number, and the log has the text before the
first record that uses it, in separate records whose verb is ``_TEXT``, with 32 bytes of text in place of the digest.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any, Protocol

from pytest_cloudbench.model import ErrorKind, Op, Outcome, Verb

VERBS, OUTCOMES, KINDS = tuple(Verb), tuple(Outcome), (None, *ErrorKind)
"""What the codes in a record mean: a place in one of these. An enumeration only ever grows at its end."""

BLOCK_RECORDS = 1 << 13

_PACKED = struct.Struct("<5qIIHBBBBd32sHHq")
RECORD_BYTES = _PACKED.size
FORMER_BYTES = {1: RECORD_BYTES - 12, 2: RECORD_BYTES - 8}
"""Bytes of a record of an earlier log schema. Schema 1 ends before the detail's number, schema 2 before the wait."""

_NO_REQUESTS = 0xFFFF
"""How many is not known."""
_NO_WAIT = -1
"""How long is not known."""

_TEXT, _TEXT_BYTES, _MOST_TEXTS = 0xFF, 32, 0xFFFE
_MANY = "(more different details than a table holds)"

_FIELDS = (
    ("scheduled_ns", "q"), ("start_ns", "q"), ("first_byte_ns", "q"), ("end_ns", "q"), ("size_bytes", "q"),
    ("sensor", "I"), ("seq", "I"), ("agent", "H"), ("verb", "B"), ("outcome", "B"), ("kind", "B"),
    ("digest_length", "B"), ("retry_after_s", "d"), ("digest", "32s"), ("detail", "H"), ("requests", "H"),
    ("cpu_wait_ns", "q"),
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
_NUMBER = struct.Struct("<H")
_NEWER = struct.Struct("<HHq").pack(0, _NO_REQUESTS, _NO_WAIT)
"""What later schemas have added to a record, where nothing is known."""


def pack(op: Op, detail: int = 0) -> bytes:
    """Pack one record as in a log, with the number of its detail's text (0: none)."""
    digest, requests = op.digest, op.requests
    return _PACKED.pack(
        op.scheduled_ns, op.start_ns, op.first_byte_ns, op.end_ns, op.size_bytes,
        op.sensor, op.seq, op.agent,
        _VERB_CODE[op.verb], _OUTCOME_CODE[op.outcome], _KIND_CODE[op.kind], len(digest),
        _UNKNOWN if op.retry_after_s is None else op.retry_after_s, digest,
        detail, _NO_REQUESTS if requests is None else min(requests, _NO_REQUESTS - 1),
        _NO_WAIT if op.cpu_wait_ns is None else op.cpu_wait_ns,
    )  # fmt: skip


def pack_text(number: int, text: str) -> list[bytes]:
    """Pack the records that hold a detail's text; they come before the first record with its number."""
    data = text.encode()
    pieces = [data[place : place + _TEXT_BYTES] for place in range(0, len(data), _TEXT_BYTES)]
    return [
        _PACKED.pack(
            0, 0, 0, 0, 0, 0, 0, 0, _TEXT, _TEXT, 0, len(piece), _UNKNOWN, piece, number, _NO_REQUESTS, _NO_WAIT
        )
        for piece in pieces
    ]


def parted(block: bytearray) -> tuple[bytearray, list[tuple[int, bytes]]]:
    """Split a block into its records of operations and the pieces of texts among them, with their numbers."""
    verbs = codes(block, "verb")
    if _TEXT not in verbs:
        return block, []
    ops, pieces = bytearray(), []
    numbers, digests = values(block, "detail"), values(block, "digest")
    for row, verb in enumerate(verbs):
        if verb == _TEXT:
            pieces.append((numbers[row], digests[row]))
        else:
            ops += block[row * RECORD_BYTES : (row + 1) * RECORD_BYTES]
    return ops, pieces


def widened(block: bytes, schema: int) -> bytearray:
    """Convert records of an earlier schema to the current one. What it did not have is not known."""
    size_bytes = FORMER_BYTES[schema]
    more = _NEWER[size_bytes - RECORD_BYTES :]
    return bytearray(b"").join(block[start : start + size_bytes] + more for start in range(0, len(block), size_bytes))


def response_s(record: bytes) -> float | None:
    """Return seconds from the scheduled start to the end of one packed operation; None if it did not succeed."""
    (outcome,), (scheduled_ns,), (end_ns,) = (
        _READERS[name].unpack(record) for name in ("outcome", "scheduled_ns", "end_ns")
    )
    return (end_ns - scheduled_ns) / 1e9 if outcome == _OUTCOME_CODE[Outcome.OK] else None


def is_operation(record: bytes) -> bool:
    """Return whether a packed record is of an operation, not a piece of a detail's text."""
    return record[_PLACES["verb"]] != _TEXT


def lateness_s(record: bytes) -> float:
    """Return seconds from the scheduled start to the real one of one packed operation."""
    (scheduled_ns,), (start_ns,) = (_READERS[name].unpack(record) for name in ("scheduled_ns", "start_ns"))
    return float(start_ns - scheduled_ns) / 1e9


class Held(Protocol):
    """Something that holds records, and the texts of their details by number; the first one is empty."""

    @property
    def details(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[bytearray]:
        """All records in order, packed, at most ``BLOCK_RECORDS`` at a time. A block is the caller's to change."""
        ...


def codes(block: bytes | bytearray, name: str) -> bytes | bytearray:
    """The enumeration ``name`` of a block's records, as codes: one byte each."""
    return block[_PLACES[name] :: RECORD_BYTES]


def values(block: bytes | bytearray, name: str) -> list[Any]:
    """One field of a block's records, as ``Op`` has it; for a detail its number (see ``OpTable.values``)."""
    if (meanings := _MEANINGS.get(name)) is not None:
        return [meanings[code] for code in codes(block, name)]
    found = [value for (value,) in _READERS[name].iter_unpack(block)]
    if name == "retry_after_s":
        return [None if isnan(value) else value for value in found]
    if name == "requests":
        return [None if value == _NO_REQUESTS else value for value in found]
    if name == "cpu_wait_ns":
        return [None if value == _NO_WAIT else value for value in found]
    if name == "digest":
        return [padded[:length] for padded, length in zip(found, codes(block, "digest_length"), strict=True)]
    return found


class OpTable:
    """The records of several parts (logs, blocks in memory, other tables), one after another.

    Every field of ``Op`` is an attribute: a list that is rebuilt at each access, meant for up to a few thousand
    records. Code that handles a million records uses ``blocks``, ``column`` and ``codes``.
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
        detail: list[str]
        requests: list[int | None]
        cpu_wait_ns: list[int | None]

    def __init__(self, *parts: Held) -> None:
        self._parts = parts
        self._corrected: tuple[bytes | bytearray, bytes | bytearray] | None = None
        self._details: tuple[list[str], list[dict[int, int]]] | None = None

    @classmethod
    def of(cls, ops: Iterable[Op]) -> OpTable:
        """A table in memory."""
        numbers = {"": 0}
        packed = b"".join(pack(op, numbers.setdefault(op.detail, len(numbers))) for op in ops)
        return cls(_Held(packed, tuple(numbers)))

    @property
    def details(self) -> Sequence[str]:
        """The different texts of details by the numbers that blocks have; the first one is empty."""
        return self._joined_details()[0]

    def _joined_details(self) -> tuple[list[str], list[dict[int, int]]]:
        """Return the texts of all parts, and for each part how its numbers map to this table's, if they differ."""
        if self._details is None:
            numbers: dict[str, int] = {"": 0}
            changes = []
            for part in self._parts:
                here = [numbers.setdefault(text, min(len(numbers), _MOST_TEXTS)) for text in part.details]
                changes.append({number: new for number, new in enumerate(here) if new != number})
            texts = [*list(numbers)[:_MOST_TEXTS], *([_MANY] if len(numbers) > _MOST_TEXTS else [])]
            self._details = texts, changes
        return self._details

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def blocks(self) -> Iterator[bytearray]:
        """See ``Held``; includes corrections."""
        row = 0
        for part, changes in zip(self._parts, self._joined_details()[1], strict=True):
            for block in part.blocks():
                if changes:
                    _renumber(block, changes)
                last = row + len(block) // RECORD_BYTES
                if self._corrected is not None:
                    for name, corrected in zip(("outcome", "kind"), self._corrected, strict=True):
                        block[_PLACES[name] :: RECORD_BYTES] = corrected[row:last]
                row = last
                yield block

    def values(self, block: bytes | bytearray, name: str) -> list[Any]:
        """One field of the records of one of the blocks, as ``Op`` has it."""
        found = values(block, name)
        if name == "detail":
            details = self.details
            return [details[number] for number in found]
        return found

    def column(self, name: str) -> array[int]:
        """One numeric field of all records. A wait that is not known is -1."""
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
        """Replace all outcomes and kinds of errors by those found afterwards (codes, one of each per record)."""
        self._corrected = outcomes, kinds

    def shifted(self, offset_ns: int) -> OpTable:
        """Return these records with every known time shifted, to bring another host's times onto the common clock."""
        return OpTable(_Shifted(self, offset_ns)) if offset_ns else self

    def since(self, scheduled_ns: int) -> OpTable:
        """Return the records of operations that were due at this time or later, with this table's corrections."""
        return OpTable(_Chosen(self, "scheduled_ns", scheduled_ns.__le__))

    def of_verb(self, verb: Verb) -> OpTable:
        """Return the records of one kind of operation, with this table's corrections."""
        return OpTable(_Chosen(self, "verb", verb.__eq__))

    def ops(self) -> Iterator[Op]:
        """The records one by one."""
        for block in self.blocks():
            for row in zip(*(self.values(block, name) for name in Op.__slots__), strict=True):
                yield Op(*row)

    def __getattr__(self, name: str) -> list[Any]:
        if name not in Op.__slots__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return [value for block in self.blocks() for value in self.values(block, name)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpTable) and len(self) == len(other) and list(self.ops()) == list(other.ops())

    __hash__ = None  # type: ignore[assignment]  # as every class that defines __eq__ and can change

    def __repr__(self) -> str:
        return f"<OpTable of {len(self)} records>"


def _renumber(block: bytearray, changes: Mapping[int, int]) -> None:
    """Replace details' numbers by those of the whole table."""
    for row, number in enumerate(values(block, "detail")):
        if number in changes:
            _NUMBER.pack_into(block, row * RECORD_BYTES + _PLACES["detail"], changes[number])


class _Held:
    """Records in memory."""

    def __init__(self, packed: bytes, details: Sequence[str]) -> None:
        self._packed, self.details = packed, details

    def __len__(self) -> int:
        return len(self._packed) // RECORD_BYTES

    def blocks(self) -> Iterator[bytearray]:
        size = BLOCK_RECORDS * RECORD_BYTES
        for place in range(0, len(self._packed), size):
            yield bytearray(self._packed[place : place + size])


class _Shifted:
    """Records with shifted times, which come first in the layout."""

    def __init__(self, part: Held, offset_ns: int) -> None:
        self._part, self._offset_ns, self.details = part, offset_ns, part.details

    def __len__(self) -> int:
        return len(self._part)

    def blocks(self) -> Iterator[bytearray]:
        offset_ns = self._offset_ns
        for block in self._part.blocks():
            for place in range(0, len(block), RECORD_BYTES):
                times = _TIMES.unpack_from(block, place)
                _TIMES.pack_into(block, place, *(each and each + offset_ns for each in times))
            yield block


class _Chosen:
    """Some of the records of a table."""

    def __init__(self, part: OpTable, field: str, choose: Callable[[Any], bool]) -> None:
        self._part, self._field, self._choose, self.details = part, field, choose, part.details

    def __len__(self) -> int:
        return sum(len(block) // RECORD_BYTES for block in self.blocks())

    def blocks(self) -> Iterator[bytearray]:
        for block in self._part.blocks():
            is_in = list(map(self._choose, values(block, self._field)))
            if all(is_in):
                yield block
            elif any(is_in):
                rows = (place * RECORD_BYTES for place, each in enumerate(is_in) if each)
                yield bytearray(b"").join(block[row : row + RECORD_BYTES] for row in rows)
