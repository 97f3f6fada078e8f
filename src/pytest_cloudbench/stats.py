"""Numbers into summaries. Every percentile is exact: taken from all records, never from a histogram.

What may live here: columns of operation records and pure functions of them. No clock, no I/O.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from pytest_cloudbench.model import ErrorKind, Op, Outcome, Verb

__all__ = [
    "PERCENTILES",
    "OpTable",
    "Summary",
    "Verification",
    "columns",
    "percentile",
    "summarize",
    "verify",
]

_VERIFIED = frozenset({Verb.PUT, Verb.DELETE})

PERCENTILES: dict[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


@dataclass(slots=True)
class OpTable:
    """Operation records as columns of equal length (see ``Op`` for their meaning and units)."""

    verb: list[Verb] = field(default_factory=list)
    sensor: array[int] = field(default_factory=lambda: array("q"))
    seq: array[int] = field(default_factory=lambda: array("q"))
    agent: array[int] = field(default_factory=lambda: array("q"))
    scheduled_ns: array[int] = field(default_factory=lambda: array("q"))
    start_ns: array[int] = field(default_factory=lambda: array("q"))
    first_byte_ns: array[int] = field(default_factory=lambda: array("q"))
    end_ns: array[int] = field(default_factory=lambda: array("q"))
    size_bytes: array[int] = field(default_factory=lambda: array("q"))
    outcome: list[Outcome] = field(default_factory=list)
    kind: list[ErrorKind | None] = field(default_factory=list)
    retry_after_s: list[float | None] = field(default_factory=list)
    digest: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.outcome)

    def append(self, op: Op) -> None:
        """Add one record."""
        for name in self.__slots__:
            getattr(self, name).append(getattr(op, name))

    def extend(self, other: OpTable) -> None:
        """Add all records of another table."""
        for name in self.__slots__:
            getattr(self, name).extend(getattr(other, name))

    def shift(self, offset_ns: int) -> None:
        """Add ``offset_ns`` to every time that is known: puts another host's records on the common clock."""
        if offset_ns:
            for name in ("scheduled_ns", "start_ns", "first_byte_ns", "end_ns"):
                column = getattr(self, name)
                setattr(self, name, array("q", (value + offset_ns if value else 0 for value in column)))


@dataclass(frozen=True, slots=True)
class Verification:
    """What the provider lists at the end against what was written. Counts of files.

    Attributes:
        checked: files that were to be there.
        lost: files that are not listed with the right size and digest, whatever the cause.
        silent: of these, files whose upload had been answered with success.
        wrong: of these, files that are listed with a wrong size or digest.
        digest_checked: whether the provider lists a digest, so that content was compared.
    """

    checked: int
    lost: int
    silent: int
    wrong: int
    digest_checked: bool


def verify(
    table: OpTable, listing: Mapping[str, tuple[int, str | None]], name_of: Callable[[int, int], str]
) -> Verification:
    """Compare every file that was written with the listing, and set the outcomes of lost and corrupt files.

    A deletion that was answered with success has failed if the file is still listed. Of uploads to one name, only the
    last one must be listed: which one that is, is not known of uploads at the same time.

    Args:
        table: all records; outcomes of operations that were answered with success are corrected in place.
        listing: name to size in bytes and lower-case hex digest.
        name_of: the name of the file of a sensor and sequence number.
    """
    checked = lost = silent = wrong = 0
    digest_checked = True
    overwritten = _overwritten(table, listing, name_of)
    for row, verb in enumerate(table.verb):
        if verb not in _VERIFIED:
            continue
        found = listing.get(name_of(table.sensor[row], table.seq[row]))
        answered = table.outcome[row] is Outcome.OK
        if verb is Verb.DELETE:
            if answered and found is not None:
                table.outcome[row], table.kind[row] = Outcome.FAILED, ErrorKind.SERVER
            continue
        checked += 1
        if row in overwritten:
            continue
        if found is not None:
            digest_checked = digest_checked and found[1] is not None
            if _is_listed(table, row, found):
                continue
            wrong += 1
        lost += 1
        silent += answered
        if answered:
            table.outcome[row] = Outcome.LOST if found is None else Outcome.CORRUPT
            table.kind[row] = None if found is None else ErrorKind.CORRUPT
    return Verification(checked, lost, silent, wrong, digest_checked)


def _is_listed(table: OpTable, row: int, found: tuple[int, str | None]) -> bool:
    size_bytes, digest = found
    return size_bytes == table.size_bytes[row] and (digest is None or digest == table.digest[row].hex())


def _overwritten(
    table: OpTable, listing: Mapping[str, tuple[int, str | None]], name_of: Callable[[int, int], str]
) -> set[int]:
    """Uploads that were answered with success, and of which nothing need be listed any more."""
    uploads: dict[str, list[int]] = {}
    for row, verb in enumerate(table.verb):
        if verb is Verb.PUT:
            uploads.setdefault(name_of(table.sensor[row], table.seq[row]), []).append(row)
    found: set[int] = set()
    for name, rows in uploads.items():
        answered = sorted((row for row in rows if table.outcome[row] is Outcome.OK), key=table.end_ns.__getitem__)
        if len(rows) == 1 or not answered:
            continue
        began_ns, listed = max(table.start_ns[row] for row in answered), listing.get(name)
        # May be there: what was written last, or meanwhile, and what was refused since and has arrived all the same.
        late = [row for row in rows if table.end_ns[row] >= began_ns]
        is_there = listed is not None and any(_is_listed(table, row, listed) for row in late)
        found.update(answered if is_there else answered[:-1])
    return found


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of ascending values: a value that was observed, at most the maximum."""
    return ordered[max(0, ceil(share * len(ordered) - 1e-9) - 1)]


@dataclass(frozen=True, slots=True)
class Summary:
    """One experiment's metrics. None means "not known" and is never replaced by zero.

    Attributes:
        ops: operations that were tried and finished.
        outcomes: number of operations by outcome.
        kinds: number of operations by kind of error.
        metrics: name to value; rates are fractions, times seconds, sizes bytes (see docs/method.md).
        response_s: the response times of all operations that succeeded, in the order they were due.
    """

    ops: int
    outcomes: Mapping[Outcome, int]
    kinds: Mapping[ErrorKind, int]
    metrics: Mapping[str, float | None]
    response_s: Sequence[float]


def _spread(name: str, values_ns: Iterable[int]) -> dict[str, float | None]:
    ordered = sorted(values_ns)
    if not ordered:
        return {f"{name}_{label}": None for label in PERCENTILES}
    return {f"{name}_{label}": percentile(ordered, share) / 1e9 for label, share in PERCENTILES.items()}


def summarize(table: OpTable, verification: Verification | None) -> Summary:
    """Reduce records to metrics. Times of operations that did not succeed are kept apart as ``refused_*``."""
    rows = range(len(table))
    ok = [row for row in rows if table.outcome[row] is Outcome.OK]
    refused = [row for row in rows if table.outcome[row] is not Outcome.OK]
    outcomes, kinds = Counter(table.outcome), Counter(kind for kind in table.kind if kind is not None)
    elapsed_s = (max(table.end_ns) - min(table.scheduled_ns)) / 1e9 if table else None
    good_bytes = sum(table.size_bytes[row] for row in ok)

    def response_ns(row: int) -> int:
        return table.end_ns[row] - table.scheduled_ns[row]

    def service_ns(row: int) -> int:
        return table.end_ns[row] - table.start_ns[row]

    first_byte = (table.first_byte_ns[row] - table.start_ns[row] for row in ok if table.first_byte_ns[row])
    metrics: dict[str, float | None] = {
        "loss_rate": verification.lost / verification.checked if verification and verification.checked else None,
        **{f"{name.value}_rate": _share(outcomes[name], len(table)) for name in Outcome if name is not Outcome.LOST},
        "silent_loss_rate": _share(verification.silent, verification.checked) if verification else None,
        "elapsed": elapsed_s,
        "throughput": good_bytes / elapsed_s if elapsed_s else None,
        "ops_per_s": len(ok) / elapsed_s if elapsed_s else None,
        **_spread("response", (response_ns(row) for row in ok)),
        **_spread("service", (service_ns(row) for row in ok)),
        **_spread("refused", (response_ns(row) for row in refused)),
        **_spread("first_byte", first_byte),
        **_spread("lateness", (table.start_ns[row] - table.scheduled_ns[row] for row in rows)),
    }
    ok.sort(key=table.scheduled_ns.__getitem__)
    return Summary(len(table), outcomes, kinds, metrics, array("d", (response_ns(row) / 1e9 for row in ok)))


def columns(table: OpTable, began_ns: int) -> dict[str, list[int | float | str | None]]:
    """All records in the order of their start, as plain columns with times in seconds (``Result.ops``).

    ``began_ns`` is the run's start, from which ``start_s`` counts.
    """
    rows = sorted(range(len(table)), key=table.start_ns.__getitem__)
    first_byte_ns = table.first_byte_ns

    def seconds(later: Sequence[int], earlier: Sequence[int]) -> list[int | float | str | None]:
        return [(later[row] - earlier[row]) / 1e9 for row in rows]

    return {
        "sensor": [table.sensor[row] for row in rows],
        "seq": [table.seq[row] for row in rows],
        "outcome": [table.outcome[row].value for row in rows],
        "kind": [kind.value if (kind := table.kind[row]) is not None else None for row in rows],
        "start_s": [(table.start_ns[row] - began_ns) / 1e9 for row in rows],
        "service_s": seconds(table.end_ns, table.start_ns),
        "response_s": seconds(table.end_ns, table.scheduled_ns),
        "first_byte_s": [
            (first_byte_ns[row] - table.start_ns[row]) / 1e9 if first_byte_ns[row] else None for row in rows
        ],
    }


def _share(count: int, whole: int) -> float | None:
    return count / whole if whole else None
