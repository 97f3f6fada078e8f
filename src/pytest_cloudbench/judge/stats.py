"""Exact percentiles, the comparison with the provider's listing, and records as plain columns.

Every percentile is taken from all records, never from a histogram. A million records pass through as columns of
numbers, a few of them at a time: names and digests are compared by their hashes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, compress, groupby, islice, repeat
from math import ceil
from operator import eq, le, mul
from struct import calcsize

from pytest_cloudbench.judge.records import KINDS, OUTCOMES, VERBS, OpTable, codes, values
from pytest_cloudbench.model import ErrorKind, Outcome, Verb

PERCENTILES: dict[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "max": 1.0}

_PUT, _DELETE = VERBS.index(Verb.PUT), VERBS.index(Verb.DELETE)
_VERIFIED = frozenset({_PUT, _DELETE})
_MOST_NAMED = 3
_OK, _FAILED = OUTCOMES.index(Outcome.OK), OUTCOMES.index(Outcome.FAILED)
_LOST, _CORRUPT = OUTCOMES.index(Outcome.LOST), OUTCOMES.index(Outcome.CORRUPT)
_NO_ERROR, _SERVER_ERROR, _CORRUPT_ERROR = map(KINDS.index, (None, ErrorKind.SERVER, ErrorKind.CORRUPT))


class Listing:
    """The provider's listing at the end: 17 bytes per file, whatever its name. Of equal names the last one counts.

    Names are compared by 64 bits of a hash with a random key: of runs with a million files, less than one in ten
    million confuses two names.
    """

    def __init__(self) -> None:
        self._names, self._contents, self._has_digest = array("q"), array("q"), bytearray()
        self._is_ordered = True

    def __len__(self) -> int:
        return len(self._names)

    def add(self, names: Iterable[str], sizes_bytes: Iterable[int], digests: Sequence[str | None]) -> None:
        """Add files, each with its lower-case hex digest if the provider lists one."""
        self._names.extend(map(_hash, names))
        self._contents.extend(map(_hash, zip(sizes_bytes, digests, strict=True)))
        self._has_digest.extend(digest is not None for digest in digests)
        self._is_ordered = False

    @property
    def has_digests(self) -> bool:
        """True if all files have a digest."""
        return all(self._has_digest)

    def is_exactly(self, table: OpTable, names: array[int]) -> bool:
        """Return whether exactly the files of all records are listed, each once and with its content.

        That takes a fraction of the time of finding each file. The sums of the products of the hashes of names and
        contents are compared, which are equal by chance as seldom as the hashes of two names. ``names`` has the hash of
        the name of each record's file.
        """
        has_digests = self.has_digests
        if len(names) != len(self._names) or (any(self._has_digest) and not has_digests):
            return False
        total, remaining_names = 0, iter(names)
        for block in table.blocks():
            digests = map(bytes.hex, values(block, "digest")) if has_digests else repeat(None)
            contents = map(_hash, zip(values(block, "size_bytes"), digests, strict=False))
            total += _sum_products(contents, remaining_names)
        return total == _sum_products(self._contents, self._names) and _are_distinct(names)

    def order(self) -> None:
        """Prepare the listing for lookups."""
        if not self._is_ordered:
            rows = rows_in_order(self._names)
            self._names = array("q", map(self._names.__getitem__, rows))
            self._contents = array("q", map(self._contents.__getitem__, rows))
            self._has_digest = bytearray(map(self._has_digest.__getitem__, rows))
            self._is_ordered = True

    def find(self, name: int, size_bytes: int, digest: bytes) -> int:
        """Return the bits ``_LISTED``, ``_RIGHT``, ``_DIGEST`` and ``_TWICE`` of a file, by the hash of its name."""
        row = bisect_right(self._names, name) - 1
        if row < 0 or self._names[row] != name:
            return 0
        has_digest = self._has_digest[row]
        expected_hash = _hash((size_bytes, digest.hex() if has_digest else None))
        is_twice = row > 0 and self._names[row - 1] == name
        return _LISTED | _DIGEST * has_digest | _RIGHT * (expected_hash == self._contents[row]) | _TWICE * is_twice


_LISTED, _RIGHT, _DIGEST, _TWICE = 1, 2, 4, 8
_SORT_RUN = 1 << 16
_SAMPLES_PER_RUN = 16


def _hash_slowly(value: object) -> int:
    return int.from_bytes(blake2b(repr(value).encode(), digest_size=8).digest(), "little", signed=True)


_hash: Callable[[object], int] = hash if calcsize("P") >= 8 else _hash_slowly
"""Python's own hash takes a tenth of the time, and has as many bits as a pointer."""


def _sum_products(contents: Iterable[int], names: Iterable[int]) -> int:
    """Return the sum of the products of the hashes of contents and names. No names are taken beyond the contents.

    A sum of the hashes of pairs would not do: Python's hash of a tuple is almost linear, so that swapped contents would
    not show.
    """
    return sum(map(mul, contents, names))


def _are_distinct(hashes: Iterable[int]) -> bool:
    """Return whether no two hashes have the same first 53 bits. In one of a million runs, two do by chance.

    As numbers of 53 bits, hashes are sorted in half the time, and in two thirds of the memory.
    """
    ordered = sorted(map(float, hashes))
    return not any(map(eq, ordered, islice(ordered, 1, None)))


def rows_in_order(keys: array[int]) -> array[int]:
    """Return rows in ascending order of their keys (stable). Sorts in runs, so that few objects are in memory."""
    if all(map(le, keys, islice(keys, 1, None))):
        return array("q", range(len(keys)))
    runs = [
        array("q", sorted(range(first, min(first + _SORT_RUN, len(keys))), key=keys.__getitem__))
        for first in range(0, len(keys), _SORT_RUN)
    ]
    return runs[0] if len(runs) == 1 else _merge_runs(runs, keys)


def _merge_runs(runs: Sequence[array[int]], keys: array[int]) -> array[int]:
    """Return the rows of all runs in order: those below a bound, those below the next, and so on.

    A list of ordered parts is sorted in a fifth of the time in which ``heapq`` merges them one row after the other.
    """
    key_of = keys.__getitem__
    step = _SORT_RUN // _SAMPLES_PER_RUN
    samples = sorted(key_of(run[position]) for run in runs for position in range(0, len(run), step))
    merged, firsts = array("q"), [0] * len(runs)
    for bound in samples[_SAMPLES_PER_RUN::_SAMPLES_PER_RUN]:
        lasts = [bisect_left(run, bound, first, key=key_of) for run, first in zip(runs, firsts, strict=True)]
        merged.extend(sorted(_rows_between(runs, firsts, lasts), key=key_of))
        firsts = lasts
    merged.extend(sorted(_rows_between(runs, firsts, map(len, runs)), key=key_of))
    return merged


def _rows_between(runs: Sequence[array[int]], firsts: Iterable[int], lasts: Iterable[int]) -> Iterator[int]:
    return chain.from_iterable(run[first:last] for run, first, last in zip(runs, firsts, lasts, strict=True))


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of the provider's listing at the end with the files that were written. Counts of files.

    Attributes:
        checked: files that should be listed.
        lost: files that are not listed with the right size and digest, whatever the cause.
        silent: lost files whose upload was answered with success.
        wrong: lost files that are listed, but with a wrong size or digest.
        digest_checked: whether the provider lists digests, so that contents were compared.
        listed_twice: files whose name is listed more than once, as by services that store each upload as a new file.
        silent_names: the names of the first few silently lost files, for readers.
    """

    checked: int
    lost: int
    silent: int
    wrong: int
    digest_checked: bool
    listed_twice: int = 0
    silent_names: tuple[str, ...] = field(default=(), compare=False)


def verify(
    table: OpTable, listing: Listing, name_of: Callable[[int, int], str], since_ns: int | None = None
) -> Verification:
    """Compare every file that was written with the listing, and set the outcomes of lost and corrupt files.

    A deletion that was answered with success has failed if the file is still listed. Of uploads to one name, only the
    last one must be listed. Of simultaneous uploads, any may be the last one.

    Args:
        table: all records. Outcomes of operations that were answered with success are corrected.
        listing: the files that the provider lists.
        name_of: the name of the file of a sensor and sequence number.
        since_ns: count only files of operations that were due at this time or later. None for all.
    """
    due_ns = table.column("scheduled_ns") if since_ns is not None else ()
    verbs, names = table.codes("verb"), _hash_names(table, name_of)
    if verbs.count(_PUT) == len(verbs) and listing.is_exactly(table, names):
        checked = len(names) if since_ns is None else sum(map(since_ns.__le__, due_ns))
        return Verification(checked, 0, 0, 0, listing.has_digests)
    outcomes, kinds, listings = table.codes("outcome"), table.codes("kind"), _look_up_files(table, listing, names)
    overwritten = _mark_overwritten(table, verbs, outcomes, names, listings)
    checked = lost = silent = wrong = 0
    digest_checked = True
    names_listed_twice, silent_rows = set[int](), list[int]()
    for row, verb in enumerate(verbs):
        if verb not in _VERIFIED:
            continue
        is_answered, listed = outcomes[row] == _OK, listings[row]
        if verb == _DELETE:
            if is_answered and listed:
                outcomes[row], kinds[row] = _FAILED, _SERVER_ERROR
            continue
        counts = since_ns is None or due_ns[row] >= since_ns
        checked += counts
        if counts and listed & _TWICE:
            names_listed_twice.add(names[row])
        if overwritten[row]:
            continue
        if listed and not listed & _DIGEST:
            digest_checked = False
        if listed & _RIGHT:
            continue
        lost += counts
        silent += counts and is_answered
        if counts and is_answered and len(silent_rows) < _MOST_NAMED:
            silent_rows.append(row)
        wrong += counts and listed & _LISTED
        if is_answered:
            outcomes[row], kinds[row] = (_CORRUPT, _CORRUPT_ERROR) if listed else (_LOST, _NO_ERROR)
    table.correct(outcomes, kinds)
    sensors, seqs = (table.column(name) if silent_rows else array("q") for name in ("sensor", "seq"))
    silent_names = tuple(name_of(sensors[row], seqs[row]) for row in silent_rows)
    return Verification(checked, lost, silent, wrong, digest_checked, len(names_listed_twice), silent_names)


def _hash_names(table: OpTable, name_of: Callable[[int, int], str]) -> array[int]:
    """Return the hash of the name of each record's file."""
    names = array("q")
    for block in table.blocks():
        names.extend(map(_hash, map(name_of, values(block, "sensor"), values(block, "seq"))))
    return names


def _look_up_files(table: OpTable, listing: Listing, names: array[int]) -> bytearray:
    """Return for each verified record the listing of its file, by the hash of its name (see ``Listing.find``)."""
    listing.order()
    listings, names_in_order = bytearray(), iter(names)
    for block in table.blocks():
        fields = zip(
            codes(block, "verb"), names_in_order, values(block, "size_bytes"), values(block, "digest"), strict=False
        )
        listings.extend(listing.find(*file) if verb in _VERIFIED else 0 for verb, *file in fields)
    return listings


def _mark_overwritten(
    table: OpTable, verbs: bytearray, outcomes: bytearray, names: array[int], listings: bytearray
) -> bytearray:
    """Mark uploads that were answered with success, but whose content need no longer be listed."""
    marks = bytearray(len(names))
    if _are_distinct(compress(names, map(_PUT.__eq__, verbs))):
        return marks
    start_ns = end_ns = array("q")
    for _, rows in groupby(rows_in_order(names), names.__getitem__):
        puts = array("q", (row for row in rows if verbs[row] == _PUT))
        if len(puts) < 2:
            continue
        answered = array("q", (row for row in puts if outcomes[row] == _OK))
        if not answered:
            continue
        if not start_ns:
            start_ns, end_ns = table.column("start_ns"), table.column("end_ns")
        last_start_ns = max(map(start_ns.__getitem__, answered))
        last = max(answered, key=lambda row: (end_ns[row], row))
        # The listing should have the last upload, a simultaneous one, or a later one that failed but arrived.
        has_expected_content = any(listings[row] & _RIGHT and end_ns[row] >= last_start_ns for row in puts)
        for row in answered:
            marks[row] = has_expected_content or row != last
    return marks


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of ascending values: an observed value, at most the maximum."""
    return ordered[_rank(len(ordered), share)]


def _rank(count: int, share: float) -> int:
    return max(0, ceil(share * count - 1e-9) - 1)


def columns(table: OpTable, began_ns: int) -> dict[str, list[int | float | str | None]]:
    """Return all records in the order of their start, as plain columns with times in seconds (``Result.ops``).

    ``began_ns`` is the run's start, from which ``start_s`` counts.
    """
    start_ns, end_ns, first_byte_ns = table.start_ns, table.end_ns, table.first_byte_ns
    sensor, seq, outcome, kind, scheduled_ns = table.sensor, table.seq, table.outcome, table.kind, table.scheduled_ns
    rows = sorted(range(len(table)), key=start_ns.__getitem__)

    def seconds(later: Sequence[int], earlier: Sequence[int]) -> list[int | float | str | None]:
        return [(later[row] - earlier[row]) / 1e9 for row in rows]

    return {
        "sensor": [sensor[row] for row in rows],
        "seq": [seq[row] for row in rows],
        "outcome": [outcome[row].value for row in rows],
        "kind": [None if (error := kind[row]) is None else error.value for row in rows],
        "start_s": [(start_ns[row] - began_ns) / 1e9 for row in rows],
        "service_s": seconds(end_ns, start_ns),
        "response_s": seconds(end_ns, scheduled_ns),
        "first_byte_s": [(first_byte_ns[row] - start_ns[row]) / 1e9 if first_byte_ns[row] else None for row in rows],
    }
