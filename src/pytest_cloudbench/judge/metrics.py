"""The registry of metrics: unit, better direction, computation and presentation, one row each.

This module also has the numbers of one run that the rows are computed from. Entries, expectations, gates, tables, JUnit
and bench files all read the registry: docs/extending/metric.md.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import compress, islice, repeat
from math import fsum
from operator import and_, mul, not_, sub, truediv
from typing import Any, Literal

from pytest_cloudbench.judge.quiet import WaitSeries, log_error, quiet_rows, waits_of
from pytest_cloudbench.judge.records import KINDS, OUTCOMES, OpTable, codes, numbers, values
from pytest_cloudbench.judge.stats import PERCENTILES, Verification, percentile, rows_in_order
from pytest_cloudbench.model import ErrorKind, Outcome, Verb

Times = Literal["response", "service", "refused", "first_byte", "lateness", "quiet", "unstarved"]
"""Names of the durations that a run has for all or some of its operations (docs/method.md)."""

_OK = OUTCOMES.index(Outcome.OK)
_IS_OK = bytes(code == _OK for code in range(256))
_COLUMNS = ("scheduled_ns", "start_ns", "end_ns", "cpu_wait_ns")
_QUARTER = 0.25
_SHARES = (_QUARTER, *PERCENTILES.values())
_SHARES_WITH_ERROR = (PERCENTILES["p50"], PERCENTILES["p99"])

_MAX_DETAILS = 5
"""The most texts of one kind of error in an entry. The records have all of them."""


class Run:
    """The records of one run, for the rows of the registry. A million records are read as columns, a few at a time.

    Attributes:
        table: all records.
        verification: the comparison with the provider's listing at the end. None if that was not requested.
        other_waits: how long threads other than those that run operations waited for a CPU.
        outcomes: number of operations by outcome.
        kinds: number of operations by kind of error.
    """

    def __init__(self, table: OpTable, verification: Verification | None, other_waits: WaitSeries) -> None:
        self.table, self.verification, self.other_waits = table, verification, other_waits
        outcome_codes, kind_codes = bytearray(), bytearray()
        self._scheduled_ns, self._start_ns, self._end_ns, self._own_waits_ns = columns = [array("q") for _ in _COLUMNS]
        for block in table.blocks():  # all at once, because each block is read from a log
            outcome_codes += codes(block, "outcome")
            kind_codes += codes(block, "kind")
            for name, column in zip(_COLUMNS, columns, strict=True):
                column.extend(numbers(block, name))
        self._ok = outcome_codes.translate(_IS_OK)
        self.outcomes, self.kinds = _counts(outcome_codes, OUTCOMES), _counts(kind_codes, KINDS)
        del self.kinds[None]
        self._ordered: tuple[str, list[float]] = ("", [])
        self._order_statistics: dict[Times, OrderStatistics] = {}

    @cached_property
    def elapsed_s(self) -> float | None:
        """The seconds from the first scheduled start to the last end. None without records."""
        return (max(self._end_ns) - min(self._scheduled_ns)) / 1e9 if self.table else None

    @cached_property
    def good_bytes(self) -> int:
        """The bytes of operations that succeeded."""
        return sum(compress(self.table.column("size_bytes"), self._ok))

    @cached_property
    def requests(self) -> Counter[int]:
        """The number of operations by how many requests they took. Empty if that is unknown for any operation."""
        counts = Counter[int | None]()
        for block in self.table.blocks():
            counts.update(values(block, "requests"))
            if None in counts:
                return Counter()
        return Counter({count: ops for count, ops in counts.items() if count is not None})

    def share(self, outcome: Outcome) -> float | None:
        """Return the share of operations that had this outcome."""
        return _share(self.outcomes[outcome], len(self.table))

    def per_s(self, amount: float) -> float | None:
        """Return an amount per second of the elapsed time."""
        return amount / self.elapsed_s if self.elapsed_s else None

    def sorted_ns(self, times: Times) -> Sequence[float]:
        """Return durations in nanoseconds, ascending. The last result is cached, for the other rows of these times.

        They are floating-point numbers, which are sorted faster than whole numbers above a second, and hold 104 days of
        nanoseconds exactly.
        """
        if self._ordered[0] != times:
            self._ordered = ("", [])  # frees the former result first, so that only one is in memory
            self._ordered = (times, sorted(map(float, self._times_ns(times))))
        return self._ordered[1]

    def order_statistics(self, times: Times) -> OrderStatistics:
        """Return the numbers of some times that the registry needs. They are cached, so that times are sorted once."""
        if (times == "quiet" and 0 not in self.quiet) or (times == "unstarved" and not any(self._own_waits_ns)):
            times = "service"  # these are the same then
        if times not in self._order_statistics:
            self._order_statistics[times] = OrderStatistics.of(self.sorted_ns(times))
            self._ordered = ("", [])  # frees them before the next columns are made
        return self._order_statistics[times]

    def _times_ns(self, times: Times) -> Iterable[int]:
        start_ns, ok = self._start_ns, self._ok
        if times == "response":
            return compress(self._response_ns, ok)
        if times == "service":
            return compress(map(sub, self._end_ns, start_ns), ok)
        if times == "quiet":
            return compress(map(sub, self._end_ns, start_ns), map(and_, ok, self.quiet))
        if times == "unstarved":
            return compress(self._unstarved_ns, ok)
        if times == "refused":
            return compress(self._response_ns, map(not_, ok)) if 0 in ok else ()
        if times == "lateness":
            return map(sub, start_ns, self._scheduled_ns)
        first_byte_ns = self.table.column("first_byte_ns")
        if not any(first_byte_ns):  # no upload has one
            return ()
        has_first_byte = (is_ok and first_ns for is_ok, first_ns in zip(ok, first_byte_ns, strict=True))
        return compress(map(sub, first_byte_ns, start_ns), has_first_byte)

    @cached_property
    def quiet(self) -> bytearray:
        """A byte for each operation: 1 if neither the client's lateness nor waiting for a CPU has disturbed it."""
        return quiet_rows(self._scheduled_ns, self._start_ns, self._end_ns, self._waits_ns)

    @property
    def starved_share(self) -> float | None:
        """The share of the operations' time that threads waited for a CPU, as far as the waits are known.

        None if the wait of a thread that ran operations is unknown.
        """
        if not self.table or not self._knows_own_waits:
            return None
        total_ns = sum(self._end_ns) - sum(self._start_ns)
        return fsum(self._waits_ns) / total_ns if total_ns else None

    @property
    def starved_elsewhere_share(self) -> float | None:
        """The waits for a CPU of all other threads that worked for the operations, as a share of the unstarved time.

        None unless all these threads are known.
        """
        if self.other_waits.why:
            return None
        rest_ns = sum(self._unstarved_ns)
        return max(0.0, fsum(self._waits_ns) - sum(self._own_waits_ns)) / rest_ns if rest_ns > 0 else None

    @property
    def _unstarved_ns(self) -> array[int]:
        """The service times less the waits for a CPU of each operation's own thread. Empty if any wait is unknown."""
        if not self._knows_own_waits:
            return array("q")
        rest_ns = map(sub, map(sub, self._end_ns, self._start_ns), self._own_waits_ns)
        return array("q", map(max, rest_ns, repeat(0)))

    @cached_property
    def _knows_own_waits(self) -> bool:
        return -1 not in self._own_waits_ns

    @cached_property
    def _waits_ns(self) -> array[float]:
        return waits_of(self._start_ns, self._end_ns, self._own_waits_ns, self.other_waits)

    @cached_property
    def _response_ns(self) -> array[int]:
        return array("q", map(sub, self._end_ns, self._scheduled_ns))

    def response_s(self) -> array[float]:
        """Return the response times of all operations that succeeded, in the order they were due."""
        ordered_rows = rows_in_order(self._scheduled_ns)
        rows = compress(ordered_rows, map(self._ok.__getitem__, ordered_rows)) if 0 in self._ok else ordered_rows
        return array("d", map(truediv, map(self._response_ns.__getitem__, rows), repeat(1e9)))

    def free_times(self) -> None:
        """Free the memory of columns that only metrics need."""
        self._ordered = ("", [])
        self._start_ns = self._end_ns = self._own_waits_ns = array("q")
        for name in ("_waits_ns", "quiet"):
            self.__dict__.pop(name, None)


@dataclass(frozen=True, slots=True)
class OrderStatistics:
    """Some percentiles of times, and their errors.

    Attributes:
        count: how many times there are.
        percentiles_ns: by share. Empty if there are no times.
        errors: the standard errors of the logarithms of some percentiles by share, None if there are too few times.
    """

    count: int
    percentiles_ns: Mapping[float, float]
    errors: Mapping[float, float | None]

    @classmethod
    def of(cls, ordered: Sequence[float]) -> OrderStatistics:
        """Return the percentiles of ascending times."""
        shares = _SHARES if ordered else ()
        return cls(
            len(ordered), {share: percentile(ordered, share) for share in shares},
            {share: log_error(ordered, share) for share in _SHARES_WITH_ERROR},
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Metric:
    """The meaning of a metric's number, and how it is computed.

    Attributes:
        unit: of the number. A table shows seconds as milliseconds, fractions in percent, bytes/s as MB/s.
        better: which numbers are better. A gate bounds the other direction.
        time_like: whether the number shrinks or grows with ``--time-scale``.
        of: computes it from the records of one run (None if unknown). Without ``of``, it is the metric of a conclusion.
        column: its title in the table of single runs. Empty if it is not shown there. A conclusion names its columns.
        about: the operations that it covers. Empty for all.
        gated: how the regression gate judges a conclusion: an ``exact`` metric must not get worse at all, a ``fact``
            must never be above 0. Empty: by its unit, if the suite's table shows it.
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
    """Return the requests per operation. None if they are unknown for any operation."""
    counts = run.requests
    return sum(map(mul, counts, counts.values())) / counts.total() if counts else None


def _median_requests(run: Run) -> float | None:
    """Return the requests of the median operation. None if they are unknown for any operation.

    Operations that were repeated after an error took more requests, but they are few.
    """
    half, passed = run.requests.total() / 2, 0
    for count, ops in sorted(run.requests.items()):
        passed += ops
        if passed >= half:
            return float(count)
    return None


def _payload_bytes_per_op(run: Run) -> float | None:
    return run.good_bytes / run.outcomes[Outcome.OK] if run.outcomes[Outcome.OK] else None


def _percentile_s(times: Times, share: float, run: Run) -> float | None:
    value_ns = run.order_statistics(times).percentiles_ns.get(share)
    return None if value_ns is None else value_ns / 1e9


def _percentile_rows(times: Times, *, about: tuple[Verb, ...] = (), **columns: str) -> dict[str, Metric]:
    """Return the rows for all percentiles of some times. ``columns`` are the titles of those that the table shows."""
    return {
        f"{times}_{label}": Metric("s", time_like=True, of=partial(_percentile_s, times, share), about=about,
                                   column=columns.get(label, ""))
        for label, share in PERCENTILES.items()
    }  # fmt: skip


def time_percentiles(*names: str) -> dict[str, Metric]:
    """Return the rows of a conclusion for all percentiles of some times: ``NAME_p50`` to ``NAME_max``."""
    return {f"{name}_{label}": Metric("s", time_like=True) for name in names for label in PERCENTILES}


IS_YES = "1 is yes"
"""The unit of a metric that answers a question: 1 is yes, 0 is no."""

CONCLUSIONS: dict[str, Metric] = {
    "cpu_per_op": Metric("s"),
    "wire_bytes_per_op": Metric("bytes"),
    **time_percentiles("readiness", "consistency"),
    "violation_rate": Metric("fraction"),
    "flips": Metric("flips", gated="fact"),
    "chunking": Metric(IS_YES, "higher"),
    "bundling": Metric(IS_YES, "higher"),
    "deduplication": Metric(IS_YES, "higher"),
    "delta": Metric(IS_YES, "higher"),
    "compression": Metric(IS_YES, "higher"),
    "tue": Metric("ratio", gated="exact"),
    "start_up": Metric("s", time_like=True),
    "completion": Metric("s", time_like=True),
    "overhead": Metric("fraction"),
    "recovery": Metric("s", time_like=True),
    "recovery_overhead": Metric("fraction"),
}
"""Metrics that this package concludes from several runs, or from observations of a sync client.

Suites declare their own metrics.
"""

FACTS = ("silent_loss_rate", "corrupt_rate")
"""Metrics of events that must not happen even once. No doubt about a run, and no repetition, undoes them."""

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
    **_percentile_rows("response", p50="p50 ms", p95="p95 ms", p99="p99 ms"),
    **_percentile_rows("service"),
    "service_p25": Metric("s", time_like=True, of=partial(_percentile_s, "service", _QUARTER)),
    **_percentile_rows("refused"),
    **_percentile_rows("first_byte", about=(Verb.GET,)),
    **_percentile_rows("lateness", p99="late p99"),
    **{name: metric for name, metric in _percentile_rows("quiet").items() if name in {"quiet_p50", "quiet_p99"}},
    "unstarved_p50": Metric("s", time_like=True, of=partial(_percentile_s, "unstarved", 0.5)),
    "quiet_share": Metric("fraction", "higher", of=lambda run: _share(sum(run.quiet), len(run.table))),
    "starved_share": Metric("fraction", of=lambda run: run.starved_share, column="starved"),
    **CONCLUSIONS,
}
"""All metrics that an expectation or a gate can name: those of one run, and those of conclusions.

``declare`` adds the conclusions of suites.
"""

BUILT_IN: Mapping[str, Metric] = dict(METRICS)
"""The metrics of this package, without those of suites."""
_FROM_STORED: set[str] = set()
"""Names in ``METRICS`` whose meaning only stored entries have given so far."""


def find_metric(name: str) -> Metric | None:
    """Return the row of a metric, or None if there is none. ``NAME@HOST`` is that of one host."""
    return METRICS.get(name.partition("@")[0])


def is_higher_better(name: str) -> bool:
    """Return whether a higher value of a metric, or of one host's, is better. Other numbers have no direction."""
    row = find_metric(name)
    return row is not None and row.better == "higher"


def is_answer(name: str) -> bool:
    """Return whether a metric answers a question with yes or no."""
    return name in METRICS and METRICS[name].unit == IS_YES


def number_key(name: str) -> str:
    """Return the key under which an entry holds a metric's number.

    That of an answer is ``is_NAME``, because ``NAME`` may hold the answer in words.
    """
    return f"is_{name}" if is_answer(name) and not name.startswith("is_") else name


def declare(rows: Mapping[str, Metric]) -> list[str]:
    """Add the conclusions of a suite. Return the names that already mean something else and keep that meaning.

    A suite may have changed since its runs were stored: what it declares now replaces what they carry.
    """
    replaced = _FROM_STORED.intersection(rows)
    _FROM_STORED.difference_update(replaced)
    METRICS.update({name: rows[name] for name in replaced})
    return [name for name, row in rows.items() if METRICS.setdefault(name, row) != row]


def declare_stored(rows: Mapping[str, Metric]) -> None:
    """Add conclusions that stored entries carry. They replace only what other stored entries carry."""
    new = {name: row for name, row in rows.items() if name not in METRICS or name in _FROM_STORED}
    _FROM_STORED.update(new)
    METRICS.update(new)


@dataclass(frozen=True, slots=True)
class Summary:
    """The metrics of one experiment. None means "unknown" and is never replaced by zero.

    Attributes:
        ops: operations that were tried and finished.
        outcomes: number of operations by outcome.
        kinds: number of operations by kind of error.
        metrics: name to value, for each row of ``METRICS`` that is computed from records (see docs/method.md).
        response_s: the response times of all operations that succeeded, in the order they were due.
        details: the provider's messages for each kind of error, in the order of their first occurrence, with counts.
        quiet: how many operations were quiet (``quiet_kept``), how many of these succeeded (``quiet_ops``), the
            standard errors of the logarithms of their percentiles (``quiet_p50_error``, ``quiet_p99_error``), None if
            there are too few to tell, and the requests of the median operation (``requests_usual``). Also
            ``unstarved_p50_error`` and ``starved_elsewhere_share`` (``Run.starved_elsewhere_share``).
    """

    ops: int
    outcomes: Mapping[Outcome, int]
    kinds: Mapping[ErrorKind, int]
    metrics: Mapping[str, float | None]
    response_s: array[float]
    details: Mapping[ErrorKind, Sequence[tuple[str, int]]] = field(default_factory=dict)
    quiet: Mapping[str, float | None] = field(default_factory=dict)

    def errors(self) -> dict[str, Any]:
        """Return for an entry all errors by kind, and the provider's messages about them."""
        kinds = {kind.value: count for kind, count in self.kinds.items()}
        messages = {kind.value: details for kind, details in self.details.items()}
        return {"errors": kinds, "error_details": error_details(kinds, messages)}


def summarize(table: OpTable, verification: Verification | None, other_waits: WaitSeries | None = None) -> Summary:
    """Reduce records to metrics. Times of operations that did not succeed are kept apart as ``refused_*``.

    Args:
        table: all records.
        verification: the comparison with the provider's listing at the end. None if that was not requested.
        other_waits: how long threads other than those that run operations waited for a CPU. None if not sampled.
    """
    run = Run(table, verification, other_waits or WaitSeries(why="it was not sampled"))
    metrics = {name: metric.of(run) for name, metric in METRICS.items() if metric.of is not None}
    times = run.order_statistics("quiet")
    quiet = {
        "quiet_kept": sum(run.quiet), "quiet_ops": times.count,
        **{f"quiet_{label}_error": times.errors[PERCENTILES[label]] for label in ("p50", "p99")},
        "requests_usual": _median_requests(run), "starved_elsewhere_share": run.starved_elsewhere_share,
        "unstarved_p50_error": run.order_statistics("unstarved").errors[PERCENTILES["p50"]],
    }  # fmt: skip
    run.free_times()
    return Summary(len(table), run.outcomes, run.kinds, metrics, run.response_s(), _details(table), quiet)


def _details(table: OpTable) -> dict[ErrorKind, list[tuple[str, int]]]:
    """Return ``Summary.details``. Operations without a message from the provider are omitted."""
    counts, first_ns = Counter[tuple[int, int]](), dict[tuple[int, int], int]()
    for block in table.blocks() if len(table.details) > 1 else ():
        details = values(block, "detail")
        if not any(details):
            continue
        for kind, detail, end_ns in zip(codes(block, "kind"), details, values(block, "end_ns"), strict=True):
            if kind and detail:
                key = kind, detail
                counts[key] += 1
                first_ns[key] = min(end_ns, first_ns.get(key, end_ns))
    messages: dict[ErrorKind, list[tuple[str, int]]] = {}
    for kind, detail in sorted(first_ns, key=first_ns.__getitem__):
        messages.setdefault(KINDS[kind] or ErrorKind.SERVER, []).append((table.details[detail], counts[kind, detail]))
    return messages


def error_details(kinds: Mapping[str, int], details: Mapping[str, Iterable[tuple[str, int]]]) -> dict[str, Any]:
    """Return for an entry each kind of error that the provider explained, its count, and the first messages.

    Args:
        kinds: number of operations by kind of error.
        details: messages with counts by kind of error, in the order of their first occurrence.
    """
    return {
        kind: {
            "count": kinds[kind],
            "said": [{"detail": detail, "count": count} for detail, count in islice(messages, _MAX_DETAILS)],
        }
        for kind, messages in details.items()
    }


def _counts(codes: bytearray, meanings: Sequence[Any]) -> Counter[Any]:
    """Count how often each meaning occurs, in the order of their first occurrence."""
    firsts = sorted((first, code) for code in range(len(meanings)) if (first := codes.find(code)) >= 0)
    return Counter({meanings[code]: codes.count(code) for _, code in firsts})


def _share(count: int, total: int) -> float | None:
    return count / total if total else None
