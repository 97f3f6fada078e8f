"""Every metric, one row each: its unit, which direction is better, how it is computed from records, how it is shown.

What may live here: the registry, and the numbers of one run that its rows are computed from, as pure functions.
Entries, expectations, gates, tables, JUnit and bench files all read it: docs/extending/metric.md.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import compress, islice
from math import fsum
from operator import and_, sub
from typing import Any, Literal

from pytest_cloudbench.judge.quiet import WaitSeries, log_error, quiet_rows, waits_of
from pytest_cloudbench.judge.records import KINDS, OUTCOMES, OpTable, codes, values
from pytest_cloudbench.judge.stats import PERCENTILES, Verification, percentile, rows_in_order
from pytest_cloudbench.model import ErrorKind, Outcome, Verb

Times = Literal["response", "service", "refused", "first_byte", "lateness", "quiet"]
"""Names of durations that a run has for each operation, or for some (docs/method.md)."""

_OK = OUTCOMES.index(Outcome.OK)

_MOST_DETAILS = 5
"""The most texts of one kind of error in an entry; the records have all."""


class Run:
    """The records of one run, for the rows of the registry; a million records are read as columns, a few at a time.

    Attributes:
        table: all records.
        verification: what the provider lists at the end; None if that was not requested.
        beside: how long threads beside those that run operations waited for a CPU.
        outcomes: number of operations by outcome.
        kinds: number of operations by kind of error.
    """

    def __init__(self, table: OpTable, verification: Verification | None, beside: WaitSeries) -> None:
        self.table, self.verification, self.beside = table, verification, beside
        found = table.codes("outcome")
        self._ok = bytearray(code == _OK for code in found)
        self.outcomes, self.kinds = _counts(found, OUTCOMES), _counts(table.codes("kind"), KINDS)
        del self.kinds[None]
        self._ordered: tuple[str, list[int]] = ("", [])

    @cached_property
    def elapsed_s(self) -> float | None:
        """Seconds from the first scheduled start to the last end."""
        return (max(self._end_ns) - min(self._scheduled_ns)) / 1e9 if self.table else None

    @cached_property
    def good_bytes(self) -> int:
        """Bytes of operations that succeeded."""
        return sum(compress(self.table.column("size_bytes"), self._ok))

    def share(self, outcome: Outcome) -> float | None:
        """Operations with that outcome over all operations."""
        return _share(self.outcomes[outcome], len(self.table))

    def per_s(self, amount: float) -> float | None:
        """An amount over the elapsed time."""
        return amount / self.elapsed_s if self.elapsed_s else None

    def sorted_ns(self, times: Times) -> Sequence[int]:
        """Durations in nanoseconds, ascending. The last result is cached: rows of the same times are neighbours."""
        if self._ordered[0] != times:
            self._ordered = ("", [])  # memory for one
            self._ordered = (times, sorted(self._times_ns(times)))
        return self._ordered[1]

    def _times_ns(self, times: Times) -> array[int]:
        start_ns, ok = self._start_ns, self._ok
        if times == "response":
            return array("q", compress(self._response_ns, ok))
        if times == "service":
            return array("q", compress(map(sub, self._end_ns, start_ns), ok))
        if times == "quiet":
            return array("q", compress(map(sub, self._end_ns, start_ns), map(and_, ok, self.quiet)))
        if times == "refused":
            return array("q", compress(self._response_ns, (not each for each in ok)))
        if times == "lateness":
            return array("q", map(sub, start_ns, self._scheduled_ns))
        first_byte_ns = self.table.column("first_byte_ns")
        known = (is_ok and first_ns for is_ok, first_ns in zip(ok, first_byte_ns, strict=True))
        return array("q", compress(map(sub, first_byte_ns, start_ns), known))

    @cached_property
    def quiet(self) -> bytearray:
        """Return 1 for each operation that neither the client's own lateness nor waiting for a CPU has touched."""
        return quiet_rows(self._scheduled_ns, self._start_ns, self._end_ns, self._waits_ns)

    @property
    def starved_share(self) -> float | None:
        """Return the share of the operations' time that threads waited for a CPU, as far as they are known.

        None if it is not known of the threads that ran the operations.
        """
        if not self.table or -1 in self._own_waits_ns:
            return None
        whole_ns = sum(self._end_ns) - sum(self._start_ns)
        return fsum(self._waits_ns) / whole_ns if whole_ns else None

    @cached_property
    def _own_waits_ns(self) -> array[int]:
        return self.table.column("cpu_wait_ns")

    @cached_property
    def _waits_ns(self) -> array[float]:
        return waits_of(self._start_ns, self._end_ns, self._own_waits_ns, self.beside)

    @cached_property
    def _scheduled_ns(self) -> array[int]:
        return self.table.column("scheduled_ns")

    @cached_property
    def _start_ns(self) -> array[int]:
        return self.table.column("start_ns")

    @cached_property
    def _end_ns(self) -> array[int]:
        return self.table.column("end_ns")

    @cached_property
    def _response_ns(self) -> array[int]:
        return array("q", map(sub, self._end_ns, self._scheduled_ns))

    def response_s(self) -> array[float]:
        """The response times of all operations that succeeded, in the order they were due."""
        response_ns = self._response_ns
        due = (row for row in rows_in_order(self._scheduled_ns) if self._ok[row])
        return array("d", (response_ns[row] / 1e9 for row in due))

    def forget_times(self) -> None:
        """Free the memory of what only metrics need."""
        self._ordered = ("", [])
        for name in ("_start_ns", "_end_ns", "_own_waits_ns", "_waits_ns", "quiet"):
            self.__dict__.pop(name, None)


@dataclass(frozen=True, slots=True)
class Metric:
    """What a metric's number means, and how it is computed.

    Attributes:
        unit: of the number; a table shows seconds as milliseconds, fractions in percent, bytes/s as MB/s.
        better: which numbers are better; a gate bounds the other direction.
        time_like: the number shrinks or grows with ``--time-scale``.
        of: computes it from the records of one run (None if unknown); without ``of``, the metric is a conclusion's.
        column: its title in the table of single runs; empty: it is not shown there. A conclusion names its columns.
        about: the operations that it covers; empty: all.
        gated: how the regression gate takes a conclusion: what is ``exact`` must stay the same, a ``fact`` must never
            be above 0; empty: by its unit, if the suite's table shows it.
    """

    unit: str
    better: Literal["lower", "higher"] = "lower"
    time_like: bool = False
    of: Callable[[Run], float | None] | None = None
    column: str = ""
    about: tuple[Verb, ...] = ()
    gated: Literal["", "exact", "fact"] = ""


def _loss_rate(run: Run) -> float | None:
    return _share(run.verification.lost, run.verification.checked) if run.verification else None


def _silent_loss_rate(run: Run) -> float | None:
    return _share(run.verification.silent, run.verification.checked) if run.verification else None


def _duplicate_rate(run: Run) -> float | None:
    return _share(run.verification.listed_twice, run.verification.checked) if run.verification else None


def _requests_per_op(run: Run) -> float | None:
    """Return requests per operation; None if they are unknown for any operation."""
    count = requests = 0
    for block in run.table.blocks():
        found = values(block, "requests")
        if None in found:
            return None
        count, requests = count + len(found), requests + sum(found)
    return requests / count if count else None


def _requests_usual(table: OpTable) -> float | None:
    """Return how many requests the median operation took; None if they are unknown for any operation.

    Operations that were sent again after an error took more, but are few.
    """
    counts = Counter[int | None]()
    for block in table.blocks():
        counts.update(values(block, "requests"))
    if not counts or None in counts:
        return None
    ordered = sorted((count, often) for count, often in counts.items() if count is not None)
    half, passed = len(table) / 2, 0
    for count, often in ordered:
        passed += often
        if passed >= half:
            return float(count)
    return None


def _payload_bytes_per_op(run: Run) -> float | None:
    return run.good_bytes / run.outcomes[Outcome.OK] if run.outcomes[Outcome.OK] else None


def _percentile_s(times: Times, share: float, run: Run) -> float | None:
    ordered = run.sorted_ns(times)
    return percentile(ordered, share) / 1e9 if ordered else None


def _spread(times: Times, *, about: tuple[Verb, ...] = (), **columns: str) -> dict[str, Metric]:
    """Return rows for all percentiles of some times; ``columns`` are the titles of those that the table shows."""
    return {
        f"{times}_{label}": Metric("s", time_like=True, of=partial(_percentile_s, times, share), about=about,
                                   column=columns.get(label, ""))
        for label, share in PERCENTILES.items()
    }  # fmt: skip


def time_percentiles(*names: str) -> dict[str, Metric]:
    """Return rows of conclusions for all percentiles of some times: ``NAME_p50`` to ``NAME_max``."""
    return {f"{name}_{label}": Metric("s", time_like=True) for name in names for label in PERCENTILES}


CONCLUSIONS: dict[str, Metric] = {
    "cpu_per_op": Metric("s"),
    "wire_bytes_per_op": Metric("bytes"),
    **time_percentiles("readiness", "consistency"),
    "violation_rate": Metric("fraction"),
    "flips": Metric("flips", gated="fact"),
    "chunking": Metric("1 is yes", "higher"),
    "bundling": Metric("1 is yes", "higher"),
    "deduplication": Metric("1 is yes", "higher"),
    "delta": Metric("1 is yes", "higher"),
    "compression": Metric("1 is yes", "higher"),
    "tue": Metric("ratio", gated="exact"),
    "start_up": Metric("s", time_like=True),
    "completion": Metric("s", time_like=True),
    "overhead": Metric("fraction"),
    "recovery": Metric("s", time_like=True),
    "recovery_overhead": Metric("fraction"),
}
"""Metrics that this package concludes from several runs, or from what it has seen of a sync client.

Suites declare theirs themselves.
"""

METRICS: dict[str, Metric] = {
    "loss_rate": Metric("fraction", of=_loss_rate, column="loss rate", about=(Verb.PUT,)),
    "silent_loss_rate": Metric("fraction", of=_silent_loss_rate, about=(Verb.PUT,)),
    "duplicate_rate": Metric("fraction", of=_duplicate_rate, about=(Verb.PUT,)),
    "ok_rate": Metric("fraction", "higher", of=lambda run: run.share(Outcome.OK)),
    "throttled_rate": Metric("fraction", of=lambda run: run.share(Outcome.THROTTLED)),
    "failed_rate": Metric("fraction", of=lambda run: run.share(Outcome.FAILED)),
    "corrupt_rate": Metric("fraction", of=lambda run: run.share(Outcome.CORRUPT)),
    "elapsed": Metric("s", time_like=True, of=lambda run: run.elapsed_s),
    "throughput": Metric(
        "bytes/s", "higher", time_like=True, of=lambda run: run.per_s(run.good_bytes), about=(Verb.PUT, Verb.GET)
    ),
    "ops_per_s": Metric("1/s", "higher", time_like=True, of=lambda run: run.per_s(run.outcomes[Outcome.OK])),
    "requests_per_op": Metric("requests", of=_requests_per_op),
    "payload_bytes_per_op": Metric("bytes", of=_payload_bytes_per_op),
    **_spread("response", p50="p50 ms", p95="p95 ms", p99="p99 ms"),
    **_spread("service"),
    "service_p25": Metric("s", time_like=True, of=partial(_percentile_s, "service", 0.25)),
    **_spread("refused"),
    **_spread("first_byte", about=(Verb.GET,)),
    **_spread("lateness", p99="late p99"),
    **{name: metric for name, metric in _spread("quiet").items() if name in {"quiet_p50", "quiet_p99"}},
    "quiet_share": Metric("fraction", "higher", of=lambda run: _share(sum(run.quiet), len(run.table))),
    "starved_share": Metric("fraction", of=lambda run: run.starved_share, column="starved"),
    **CONCLUSIONS,
}
"""Every metric an expectation or a gate can name: those of one run, and those of conclusions.

Conclusions that suites declare join it (``declare``).
"""

BUILT_IN: Mapping[str, Metric] = dict(METRICS)
"""Those that are there whatever suites are."""


def declare(rows: Mapping[str, Metric]) -> list[str]:
    """Add the conclusions of a suite. Returns the names that mean something else already, which keep that meaning."""
    return [name for name, row in rows.items() if METRICS.setdefault(name, row) != row]


@dataclass(frozen=True, slots=True)
class Summary:
    """One experiment's metrics. None means "not known" and is never replaced by zero.

    Attributes:
        ops: operations that were tried and finished.
        outcomes: number of operations by outcome.
        kinds: number of operations by kind of error.
        metrics: name to value, for each row of ``METRICS`` that is computed from records (see docs/method.md).
        response_s: the response times of all operations that succeeded, in the order they were due.
        details: what the provider said of each kind of error, in the order in which it was first said, and how often.
        quiet: how many operations were quiet (``quiet_kept``), how many of these succeeded (``quiet_ops``), and the
            standard errors of the logarithms of their percentiles (``quiet_p50_error``, ``quiet_p99_error``), None if
            there are too few to tell; and how many requests most operations took (``requests_usual``).
    """

    ops: int
    outcomes: Mapping[Outcome, int]
    kinds: Mapping[ErrorKind, int]
    metrics: Mapping[str, float | None]
    response_s: array[float]
    details: Mapping[ErrorKind, Sequence[tuple[str, int]]] = field(default_factory=dict)
    quiet: Mapping[str, float | None] = field(default_factory=dict)

    def errors(self) -> dict[str, Any]:
        """For an entry: all errors by kind, and what the provider said about them."""
        kinds = {kind.value: count for kind, count in self.kinds.items()}
        said = {kind.value: details for kind, details in self.details.items()}
        return {"errors": kinds, "error_details": told_details(kinds, said)}


def summarize(table: OpTable, verification: Verification | None, beside: WaitSeries | None = None) -> Summary:
    """Reduce records to metrics. Times of operations that did not succeed are kept apart as ``refused_*``.

    Args:
        table: all records.
        verification: what the provider lists at the end; None if that was not requested.
        beside: how long threads beside those that run operations waited for a CPU; None if that was not sampled.
    """
    run = Run(table, verification, beside or WaitSeries(why="it was not sampled"))
    metrics = {name: metric.of(run) for name, metric in METRICS.items() if metric.of is not None}
    ordered = run.sorted_ns("quiet")
    errors = {f"quiet_{label}_error": log_error(ordered, PERCENTILES[label]) for label in ("p50", "p99")}
    quiet = {
        "quiet_kept": sum(run.quiet), "quiet_ops": len(ordered), **errors, "requests_usual": _requests_usual(table),
    }  # fmt: skip
    del ordered
    run.forget_times()
    return Summary(len(table), run.outcomes, run.kinds, metrics, run.response_s(), _details(table), quiet)


def _details(table: OpTable) -> dict[ErrorKind, list[tuple[str, int]]]:
    """See ``Summary``; operations without a message from the provider are omitted."""
    counts, first_ns = Counter[tuple[int, int]](), dict[tuple[int, int], int]()
    for block in table.blocks():
        details = values(block, "detail")
        if not any(details):
            continue
        for kind, detail, end_ns in zip(codes(block, "kind"), details, values(block, "end_ns"), strict=True):
            if kind and detail:
                said = kind, detail
                counts[said] += 1
                first_ns[said] = min(end_ns, first_ns.get(said, end_ns))
    found: dict[ErrorKind, list[tuple[str, int]]] = {}
    for kind, detail in sorted(first_ns, key=first_ns.__getitem__):
        found.setdefault(KINDS[kind] or ErrorKind.SERVER, []).append((table.details[detail], counts[kind, detail]))
    return found


def told_details(kinds: Mapping[str, int], details: Mapping[str, Iterable[tuple[str, int]]]) -> dict[str, Any]:
    """For an entry: each kind of error that the provider explained, how often it occurred, and the first texts.

    Args:
        kinds: operations by kind of error.
        details: by kind of error, what was said and how often, the first text first.
    """
    return {
        kind: {
            "count": kinds[kind],
            "said": [{"detail": detail, "count": count} for detail, count in islice(said, _MOST_DETAILS)],
        }
        for kind, said in details.items()
    }


def _counts(found: bytearray, meanings: Sequence[Any]) -> Counter[Any]:
    """Counts how often each meaning occurs."""
    return Counter({meanings[code]: count for code, count in Counter(found).items()})


def _share(count: int, whole: int) -> float | None:
    return count / whole if whole else None
