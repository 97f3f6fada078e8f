"""Operation records in bulk, packed as in an agent's log: 106 bytes each, in blocks that are read in place.

This module has the layout of a record, and tables of such records. A table over logs on disk costs the memory of one
block, plus two bytes per record for corrections made afterwards.

Each text that a provider gives for failures is stored once: a record has its number, and the log has the text before
the first record that uses it, in separate records whose verb is ``_TEXT``, with 32 bytes of text in place of the
digest.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isnan
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from pytest_cloudbench.model import ErrorKind, Op, Outcome, Verb

VERBS, OUTCOMES, KINDS = tuple(Verb), tuple(Outcome), (None, *ErrorKind)
"""The meanings of the codes in a record, which are indices into these. An enumeration only ever grows at its end."""

BLOCK_RECORDS = 1 << 13

_PACKED = struct.Struct("<5qIIHBBBBd32sHHq")
RECORD_BYTES = _PACKED.size
FORMER_BYTES = {1: RECORD_BYTES - 12, 2: RECORD_BYTES - 8}
"""Bytes of a record by earlier log schema. Schema 1 ends before the detail's number, schema 2 before the wait."""

_NO_REQUESTS = 0xFFFF
"""Stands for an unknown number of requests."""
_NO_WAIT = -1
"""Stands for an unknown wait for a CPU."""

_TEXT, _TEXT_BYTES, _MAX_TEXTS = 0xFF, 32, 0xFFFE
_TOO_MANY_TEXTS = "(more different details than a table holds)"

_FIELDS = (
    ("scheduled_ns", "q"), ("start_ns", "q"), ("first_byte_ns", "q"), ("end_ns", "q"), ("size_bytes", "q"),
    ("sensor", "I"), ("seq", "I"), ("agent", "H"), ("verb", "B"), ("outcome", "B"), ("kind", "B"),
    ("digest_length", "B"), ("retry_after_s", "d"), ("digest", "32s"), ("detail", "H"), ("requests", "H"),
    ("cpu_wait_ns", "q"),
)  # fmt: skip
_OFFSETS = {name: struct.calcsize("<" + "".join(code for _, code in _FIELDS[:number]))
           for number, (name, _) in enumerate(_FIELDS)}  # fmt: skip
_READERS = {
    name: struct.Struct(f"<{_OFFSETS[name]}x{code}{RECORD_BYTES - _OFFSETS[name] - struct.calcsize('<' + code)}x")
    for name, code in _FIELDS
}
_TYPES = dict(_FIELDS)
_IS_BIG_ENDIAN = struct.pack("=H", 1)[0] == 0
"""True if this machine's numbers begin with their highest byte. Those of records begin with the lowest."""
_MEANINGS: dict[str, Sequence[Any]] = {"verb": VERBS, "outcome": OUTCOMES, "kind": KINDS}
_VERB_CODE = {verb: code for code, verb in enumerate(VERBS)}
_OUTCOME_CODE = {outcome: code for code, outcome in enumerate(OUTCOMES)}
_KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
_UNKNOWN = float("nan")
_UNKNOWN_VALUES: dict[str, array[Any]] = {
    "retry_after_s": array("d", [_UNKNOWN]), "requests": array("H", [_NO_REQUESTS]),
    "cpu_wait_ns": array("q", [_NO_WAIT]),
}  # fmt: skip
"""The stored value that stands for an unknown one, for each field that may be unknown."""
_NUMBER = struct.Struct("<H")
_DEFAULTS_OF_NEW_FIELDS = struct.Struct("<HHq").pack(0, _NO_REQUESTS, _NO_WAIT)
"""The fields that later schemas have added at the end of a record, with unknown values."""


def pack(op: Op, detail: int = 0) -> bytes:
    """Pack one record as in a log, with the number of its detail's text (0 for none)."""
    (
        verb, sensor, seq, agent, scheduled_ns, start_ns, first_byte_ns, end_ns, size_bytes, outcome, kind,
        retry_after_s, digest, _, requests, cpu_wait_ns,
    ) = op  # fmt: skip
    return _PACKED.pack(
        scheduled_ns, start_ns, first_byte_ns, end_ns, size_bytes, sensor, seq, agent,
        _VERB_CODE[verb], _OUTCOME_CODE[outcome], _KIND_CODE[kind], len(digest),
        _UNKNOWN if retry_after_s is None else retry_after_s, digest,
        detail, _NO_REQUESTS if requests is None else min(requests, _NO_REQUESTS - 1),
        _NO_WAIT if cpu_wait_ns is None else cpu_wait_ns,
    )  # fmt: skip


def pack_text(number: int, text: str) -> list[bytes]:
    """Pack the records that hold a detail's text. They precede the first record with its number."""
    data = text.encode()
    pieces = [data[offset : offset + _TEXT_BYTES] for offset in range(0, len(data), _TEXT_BYTES)]
    return [
        _PACKED.pack(
            0, 0, 0, 0, 0, 0, 0, 0, _TEXT, _TEXT, 0, len(piece), _UNKNOWN, piece, number, _NO_REQUESTS, _NO_WAIT
        )
        for piece in pieces
    ]


def split_texts(block: bytearray) -> tuple[bytearray, list[tuple[int, bytes]]]:
    """Split a block into its records of operations, and the pieces of texts among them with their numbers."""
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


def upgrade_records(block: bytes, schema: int) -> bytearray:
    """Convert records of an earlier schema to the current one. Fields that it did not have are unknown."""
    size_bytes = FORMER_BYTES[schema]
    new_fields = _DEFAULTS_OF_NEW_FIELDS[size_bytes - RECORD_BYTES :]
    return bytearray(b"").join(
        block[start : start + size_bytes] + new_fields for start in range(0, len(block), size_bytes)
    )


def response_s(record: bytes) -> float | None:
    """Return the seconds from the scheduled start to the end of one packed operation. None if it did not succeed."""
    (outcome,), (scheduled_ns,), (end_ns,) = (
        _READERS[name].unpack(record) for name in ("outcome", "scheduled_ns", "end_ns")
    )
    return (end_ns - scheduled_ns) / 1e9 if outcome == _OUTCOME_CODE[Outcome.OK] else None


def is_operation(record: bytes) -> bool:
    """Return whether a packed record is of an operation, not of a piece of a detail's text."""
    return record[_OFFSETS["verb"]] != _TEXT


def lateness_s(record: bytes) -> float:
    """Return the seconds from the scheduled start to the real start of one packed operation."""
    (scheduled_ns,), (start_ns,) = (_READERS[name].unpack(record) for name in ("scheduled_ns", "start_ns"))
    return float(start_ns - scheduled_ns) / 1e9


class RecordSource(Protocol):
    """Something that holds records, the texts of their details by number, and the hosts of agents.

    The first text is empty. An agent whose host is not known, as in a run on one machine, is not among ``hosts``.
    """

    @property
    def details(self) -> Sequence[str]: ...

    @property
    def hosts(self) -> Mapping[int, str]: ...

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[bytearray]:
        """Yield all records in order, packed, at most ``BLOCK_RECORDS`` at a time. The caller may change a block."""
        ...


def codes(block: bytes | bytearray, name: str) -> bytes | bytearray:
    """Return an enumeration of a block's records as codes, one byte each."""
    return block[_OFFSETS[name] :: RECORD_BYTES]


def values(block: bytes | bytearray, name: str) -> list[Any]:
    """Return one field of a block's records as ``Op`` has it. A detail is its number (see ``OpTable.values``)."""
    if (meanings := _MEANINGS.get(name)) is not None:
        return list(map(meanings.__getitem__, codes(block, name)))
    if name == "digest":
        lengths = codes(block, "digest_length")
        if not any(lengths):
            return [b""] * len(lengths)
        padded_digests = (padded for (padded,) in _READERS[name].iter_unpack(block))
        return [padded[:length] for padded, length in zip(padded_digests, lengths, strict=True)]
    column = numbers(block, name)
    if (unknown := _UNKNOWN_VALUES.get(name)) is None:
        return column.tolist()
    if column.tobytes() == unknown.tobytes() * len(column):  # the usual case: no value is known
        return [None] * len(column)
    if name == "retry_after_s":
        return [None if isnan(value) else value for value in column]
    return [None if value == unknown[0] else value for value in column] if unknown[0] in column else column.tolist()


def numbers(block: bytes | bytearray, name: str) -> array[Any]:
    """Return a numeric field of a block's records.

    Each byte of the field is copied from all records at once, which takes 6 ns for a record. Unpacking one record after
    the other takes 20 to 60 ns.
    """
    column, offset = array(_TYPES[name]), _OFFSETS[name]
    data = bytearray(len(block) // RECORD_BYTES * column.itemsize)
    for byte in range(column.itemsize):
        data[byte :: column.itemsize] = block[offset + byte :: RECORD_BYTES]
    column.frombytes(data)
    if _IS_BIG_ENDIAN:
        column.byteswap()
    return column


class OpTable:
    """The records of several parts (logs, blocks in memory, other tables), one after another.

    Every field of ``Op`` is an attribute: a list that is rebuilt at each access, for up to a few thousand records. Code
    that handles a million records uses ``blocks``, ``column`` and ``codes``. Another attribute is ``host``, the name of
    the host of an operation's agent. No record holds it, because an agent never changes its host (docs/decisions/0019).
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
        host: list[str]

    def __init__(self, *parts: RecordSource) -> None:
        self._parts = parts
        self._corrected: tuple[bytes | bytearray, bytes | bytearray] | None = None
        self._details: tuple[list[str], list[dict[int, int]]] | None = None

    @classmethod
    def of(cls, ops: Iterable[Op], hosts: Mapping[int, str] = MappingProxyType({})) -> OpTable:
        """Return a table in memory. ``hosts`` has the names of agents' hosts."""
        numbers = {"": 0}
        packed = b"".join(pack(op, numbers.setdefault(op.detail, len(numbers))) for op in ops)
        return cls(_PackedRecords(packed, tuple(numbers), hosts))

    @property
    def details(self) -> Sequence[str]:
        """The different texts of details, by the numbers that blocks have. The first text is empty."""
        return self._joined_details()[0]

    @property
    def hosts(self) -> Mapping[int, str]:
        """The names of the hosts of all agents that have one."""
        return {agent: name for part in self._parts for agent, name in part.hosts.items()}

    def of_host(self, host: str) -> OpTable:
        """Return the records of a host's agents, with this table's corrections. Parts of other hosts are not read."""
        parts, outcomes, kinds, row = list[RecordSource](), bytearray(), bytearray(), 0
        for part in self._parts:
            last = row + len(part)
            if host in part.hosts.values():
                parts.append(part)
                if self._corrected is not None:
                    outcomes += self._corrected[0][row:last]
                    kinds += self._corrected[1][row:last]
            row = last
        table = OpTable(*parts)
        if self._corrected is not None:
            table.correct(outcomes, kinds)
        agents = {agent for agent, name in self.hosts.items() if name == host}
        if all(agents >= part.hosts.keys() for part in parts):
            return table
        return OpTable(_SelectedRecords(table, "agent", agents.__contains__))

    def _joined_details(self) -> tuple[list[str], list[dict[int, int]]]:
        """Return the texts of all parts, and for each part the numbers that differ in this table."""
        if self._details is None:
            numbers: dict[str, int] = {"": 0}
            changes = []
            for part in self._parts:
                part_numbers = [numbers.setdefault(text, min(len(numbers), _MAX_TEXTS)) for text in part.details]
                changes.append({number: new for number, new in enumerate(part_numbers) if new != number})
            texts = [*list(numbers)[:_MAX_TEXTS], *([_TOO_MANY_TEXTS] if len(numbers) > _MAX_TEXTS else [])]
            self._details = texts, changes
        return self._details

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def blocks(self) -> Iterator[bytearray]:
        """Yield all records with corrections, see ``RecordSource``."""
        row = 0
        for part, changes in zip(self._parts, self._joined_details()[1], strict=True):
            for block in part.blocks():
                if changes:
                    _renumber(block, changes)
                last = row + len(block) // RECORD_BYTES
                if self._corrected is not None:
                    for name, corrected in zip(("outcome", "kind"), self._corrected, strict=True):
                        block[_OFFSETS[name] :: RECORD_BYTES] = corrected[row:last]
                row = last
                yield block

    def values(self, block: bytes | bytearray, name: str) -> list[Any]:
        """Return one field of the records of one of the blocks, as ``Op`` has it."""
        if name == "host":
            hosts = self.hosts
            return [hosts.get(agent, "") for agent in values(block, "agent")]
        field_values = values(block, name)
        if name == "detail":
            details = self.details
            return [details[number] for number in field_values]
        return field_values

    def column(self, name: str) -> array[int]:
        """Return one numeric field of all records. An unknown wait is -1."""
        column = array("q")
        for block in self.blocks():
            part = numbers(block, name)
            column.extend(part if part.typecode == "q" else part.tolist())
        return column

    def codes(self, name: str) -> bytearray:
        """Return one enumeration of all records as codes."""
        all_codes = bytearray()
        for block in self.blocks():
            all_codes += codes(block, name)
        return all_codes

    def correct(self, outcomes: bytes | bytearray, kinds: bytes | bytearray) -> None:
        """Replace all outcomes and kinds of errors by corrected ones (codes, one of each per record)."""
        self._corrected = outcomes, kinds

    def since(self, scheduled_ns: int) -> OpTable:
        """Return the records of operations that were due at this time or later, with this table's corrections."""
        return OpTable(_SelectedRecords(self, "scheduled_ns", scheduled_ns.__le__))

    def of_verb(self, verb: Verb) -> OpTable:
        """Return the records of one kind of operation, with this table's corrections."""
        return OpTable(_SelectedRecords(self, "verb", verb.__eq__))

    def ops(self) -> Iterator[Op]:
        """Yield the records one by one."""
        for block in self.blocks():
            for row in zip(*(self.values(block, name) for name in Op._fields), strict=True):
                yield Op(*row)

    def __getattr__(self, name: str) -> list[Any]:
        if name not in Op._fields and name != "host":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return [value for block in self.blocks() for value in self.values(block, name)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpTable) and len(self) == len(other) and list(self.ops()) == list(other.ops())

    __hash__ = None  # type: ignore[assignment]  # as every class that defines __eq__ and can change

    def __repr__(self) -> str:
        return f"<OpTable of {len(self)} records>"


def _renumber(block: bytearray, changes: Mapping[int, int]) -> None:
    """Replace the numbers of details by those of the whole table."""
    for row, number in enumerate(values(block, "detail")):
        if number in changes:
            _NUMBER.pack_into(block, row * RECORD_BYTES + _OFFSETS["detail"], changes[number])


class _PackedRecords:
    """Records in memory."""

    def __init__(self, packed: bytes, details: Sequence[str], hosts: Mapping[int, str]) -> None:
        self._packed, self.details, self.hosts = packed, details, hosts

    def __len__(self) -> int:
        return len(self._packed) // RECORD_BYTES

    def blocks(self) -> Iterator[bytearray]:
        size = BLOCK_RECORDS * RECORD_BYTES
        for offset in range(0, len(self._packed), size):
            yield bytearray(self._packed[offset : offset + size])


class _SelectedRecords:
    """The records of a table whose field fulfils a condition."""

    def __init__(self, part: OpTable, field: str, choose: Callable[[Any], bool]) -> None:
        self._part, self._field, self._choose = part, field, choose
        self.details, self.hosts = part.details, part.hosts

    def __len__(self) -> int:
        return sum(len(block) // RECORD_BYTES for block in self.blocks())

    def blocks(self) -> Iterator[bytearray]:
        for block in self._part.blocks():
            is_selected = list(map(self._choose, values(block, self._field)))
            if all(is_selected):
                yield block
            elif any(is_selected):
                offsets = (row * RECORD_BYTES for row, is_chosen in enumerate(is_selected) if is_chosen)
                yield bytearray(b"").join(block[offset : offset + RECORD_BYTES] for offset in offsets)
