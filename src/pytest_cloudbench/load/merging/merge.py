"""The merge of one run: from the agents' logs to its records, its metrics and its entry.

What may live here: a running experiment as the controller sees it, and its entry at the end.
"""

from __future__ import annotations

import shutil
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.fleet.coordinator import Item
from pytest_cloudbench.judge import expect, stats
from pytest_cloudbench.judge.baseline import SATURATED, STARVED
from pytest_cloudbench.judge.by_host import figures_by_host
from pytest_cloudbench.judge.metrics import METRICS, Summary, summarize
from pytest_cloudbench.judge.quiet import WaitSeries
from pytest_cloudbench.judge.ranking import spread_of
from pytest_cloudbench.judge.records import VERBS, OpTable, values
from pytest_cloudbench.load.engine.stopping import Decider, End, describe_drift, describe_end
from pytest_cloudbench.load.merging import wire
from pytest_cloudbench.load.merging.entries import Entries
from pytest_cloudbench.load.messages import LoadShape, Merged, Start, Subject
from pytest_cloudbench.model import ErrorKind, Outcome, ResultsError, Verb
from pytest_cloudbench.net.sockets.sums import Carried
from pytest_cloudbench.results import oplog
from pytest_cloudbench.results.machine import CpuTicks
from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:
    from pytest_cloudbench.load.engine.cpu_wait import WaitSampler
    from pytest_cloudbench.net.sockets.counter import TcpCounter

NOT_TRIED = "operations were not tried"
"""The end of the doubt about a run that did less than planned, other than by stopping early."""

_UPLOAD_METRICS = frozenset(name for name, metric in METRICS.items() if metric.about == (Verb.PUT,))

_NOT_ENDED = Carried(why="its operations did not all end")
_MOST_STARVED = 0.5
"""The share of the operations' time above which waits for a CPU make them doubtful, if these waits are long."""
_NOT_SAMPLED = WaitSeries(why="its operations did not all end")


@dataclass(slots=True)
class OpenRun:
    """One ``experiment.run`` while it lasts, as the controller sees it.

    Attributes:
        folder: holds the agents' logs.
        item: the test item.
        request: the run that the agents asked for.
        start_ns, start_wall_ms: the common start, on the monotonic clock and since the Unix epoch.
        margin_ns: the longest time that a message takes to reach all its agents.
        profile_digest: digest of the emulator's behaviour, None for a real service.
        listing: the provider's listing at the end. ``is_verified`` is True if the provider was asked for it.
        notes: remarks to show with the numbers.
        logs: agent to its log, if that is not in ``folder``.
        cpu_ticks: ticks of this machine's CPUs at the start. ``cpu_share`` is the busy share since.
        client_cpu_s: CPU time of all agents without that of a warm-up, None if that of one agent is unknown.
        reference_s: CPU times of the reference work before and after the run, if they were measured.
        is_incomplete: True if its records could not be written.
        measured_from_ns: the end of the warm-up on the monotonic clock, or the start if there is no warm-up.
        decider, end_ns: the decision whether it ends early, and the due time at which it did. None if it did not.
        counter, carried: counts the bytes of its connections, and the result when all agents have measured.
        sampler, helper_waits: samples how long threads other than those of its operations wait for a CPU, and the
            result when all agents have measured.
        steal_share: the share of this machine's CPU time that its host gave to others.
    """

    folder: Path
    item: Item
    request: Start
    start_ns: int
    start_wall_ms: int
    profile_digest: str | None = None
    listing: stats.Listing = field(default_factory=stats.Listing)
    notes: list[str] = field(default_factory=list)
    logs: dict[str, Path] = field(default_factory=dict)
    cpu_ticks: CpuTicks | None = None
    cpu_share: float | None = None
    client_cpu_s: float | None = None
    reference_s: tuple[float, ...] = ()
    is_verified: bool = False
    is_incomplete: bool = False
    measured_from_ns: int = 0
    decider: Decider | None = None
    end_ns: int | None = None
    counter: TcpCounter | None = None
    carried: Carried = _NOT_ENDED
    sampler: WaitSampler | None = None
    helper_waits: WaitSeries = _NOT_SAMPLED
    steal_share: float | None = None
    margin_ns: int = 0


@dataclass(frozen=True, slots=True)
class _Measurement:
    """The results that follow from the records of a run.

    Attributes:
        table: all operations.
        counted: those that count, without a warm-up.
        since_ns: the time from which on they count, None for all.
        summary: of those that count.
        verification: of the uploaded files. None if nothing was uploaded or verified.
        metrics: all numbers that are known.
        on_wire: the bytes of its connections.
        ending: its early end, with the notes and doubts that follow from it.
        warm_up_outcomes: the number of operations of the warm-up by outcome, corrected by the provider's listing.
    """

    table: OpTable
    counted: OpTable
    since_ns: int | None
    summary: Summary
    verification: stats.Verification | None
    metrics: Mapping[str, float | None]
    on_wire: Carried
    ending: End
    warm_up_outcomes: Counter[Outcome]

    @property
    def warm_up_ops(self) -> int:
        """The number of operations that belong to the warm-up."""
        return len(self.table) - self.summary.ops


def merge_run(run: OpenRun, entries: Entries, doubts: Sequence[str], died: str, servers: str) -> Merged:
    """Merge, verify, judge and store one run.

    Args:
        run: its logs are removed once their records are written.
        entries: the session's entries. The run's own is added, unless the run is only a part of a conclusion.
        doubts: reasons to distrust its numbers that are known before they are computed.
        died: the reason if its emulator has died, or an empty text.
        servers: names the servers that this session chose and started for it, or is empty.
    """
    logs = {path.stem: path for path in sorted(run.folder.glob("*.oplog"))} | run.logs
    table = oplog.read_logs(logs.values())
    measurement = _measure(run, table)
    doubts = [*doubts, *_list_doubts(run, measurement, entries.facts.max_lateness_s), *([died] if died else [])]
    doubts += server_doubts(servers, measurement.summary.kinds, measurement.summary.ops)
    run.notes += [*_warm_up_notes(run, measurement), *_time_notes(run, measurement), *measurement.ending.notes]
    run.notes += _lost_notes(measurement.verification)
    if drift := _drift_text(run, measurement):
        (run.notes if run.request.load.may_drift else doubts).append(drift)
    info = _entry_info(run, measurement, entries)
    subject, entry = run.request.subject, run.request.entry
    judgements = entries.judge(subject, entry.expect, measurement.metrics, doubts, info) if entry.store else []
    # The logs are removed below, so all that needs them is computed here.
    ops = stats.columns(measurement.counted, run.start_ns) if run.request.load.detail else {}
    spread = _ranking_samples(run, measurement) if entry.store else {}
    load = run.request.load
    tried = _tried_by_sensor(table) if load.keeps and (_may_end_early(run) or len(table) < load.ops) else None
    try:
        info["ops_file"] = _write_records(run, measurement, entries.facts.run_id, logs.values())
    except ResultsError as error:
        run.is_incomplete = True
        folders = sorted({str(path.parent) for path in logs.values()})
        run.notes.append(f"{error}; the agents' logs stay in {' and '.join(folders)}")
        judgements.append(expect.Judgement("broken", str(error)))
    if entry.store:
        _store_entry(run, measurement, entries, info, judgements, doubts, spread)
    return make_answer(info, judgements, doubts, run.notes, ops, tried)


def _measure(run: OpenRun, table: OpTable) -> _Measurement:
    """Compute the results of a run from all its records, verified against the provider's listing."""
    request = run.request
    since_ns = run.measured_from_ns if request.load.warm_up_s else None
    verification = stats.verify(table, run.listing, request.load.names.namer(), since_ns) if run.is_verified else None
    run.listing = stats.Listing()  # frees the former listing's memory for what follows
    counted = table if since_ns is None else table.since(since_ns)
    summary = summarize(counted, verification, run.helper_waits)
    metrics = summary.metrics
    if request.load.operation is not Verb.PUT:  # nothing was uploaded that could be lost
        metrics = {name: value for name, value in metrics.items() if name not in _UPLOAD_METRICS}
        verification = None
    ok_bytes = (metrics["payload_bytes_per_op"] or 0) * summary.outcomes.get(Outcome.OK, 0)
    on_wire = wire.trusted_counts(run.carried, request.load.operation, round(ok_bytes), run.item.missing)
    metrics = {
        **metrics, "cpu_per_op": run.client_cpu_s / summary.ops if run.client_cpu_s and summary.ops else None,
        "wire_bytes_per_op": on_wire.bytes / len(table) if on_wire.bytes is not None and table else None,
    }  # fmt: skip
    tried = len(table), request.load.ops
    ending = describe_end(counted, request.load.until, tried, run.start_ns, run.end_ns) if request.load.until else End()
    warm_up = Counter[Outcome]() if since_ns is None else _count_outcomes_before(table, since_ns)
    return _Measurement(table, counted, since_ns, summary, verification, metrics, on_wire, ending, warm_up)


def _count_outcomes_before(table: OpTable, since_ns: int) -> Counter[Outcome]:
    """Return the number of operations that were due before some time, by outcome."""
    counts = Counter[Outcome]()
    for block in table.blocks():
        fields = zip(values(block, "scheduled_ns"), values(block, "outcome"), strict=True)
        counts.update(outcome for due_ns, outcome in fields if due_ns < since_ns)
    return counts


def _entry_info(run: OpenRun, measurement: _Measurement, entries: Entries) -> dict[str, Any]:
    """Return the extra_info of a run's entry."""
    entry = run.request.entry
    return {
        **entries.common_info(run.request.subject, run.item, entry.published, run.profile_digest), **entry.extra,
        **_run_info(run, measurement.summary, measurement.verification), **wire.wire_info(measurement.on_wire),
        **warm_up_info(run, measurement.warm_up_ops), **measurement.ending.info,
        **_info_by_operation(run, measurement), **_info_by_host(run, measurement), **measurement.metrics,
    }  # fmt: skip


_OPERATION_METRICS = (
    "ok_rate", "throttled_rate", "failed_rate", "corrupt_rate", "service_p50", "service_p99", "response_p50",
    "response_p95", "response_p99",
)  # fmt: skip


def _info_by_operation(run: OpenRun, measurement: _Measurement) -> dict[str, Any]:
    """Return the metrics of each kind of operation for the entry. Empty unless the load mixes several kinds."""
    if not run.request.entry.store or run.request.load.size_bytes is not None:
        return {}
    kinds: dict[str, Any] = {}
    for code in sorted(set(measurement.counted.codes("verb"))):
        summary = summarize(measurement.counted.of_verb(VERBS[code]), None, run.helper_waits)
        metrics = {name: summary.metrics[name] for name in _OPERATION_METRICS}
        kinds[VERBS[code].value] = {"ops": summary.ops, **metrics}
    return {"by_operation": kinds}


def _info_by_host(run: OpenRun, measurement: _Measurement) -> dict[str, Any]:
    """Return what each host's agents measured for the entry. Empty unless there are several hosts."""
    if not run.request.entry.store:
        return {}
    hosts = figures_by_host(measurement.table, measurement.since_ns, run.helper_waits)
    return {"by_host": hosts} if hosts else {}


def _ranking_samples(run: OpenRun, measurement: _Measurement) -> Mapping[str, Sequence[float]]:
    """Return the samples by which providers, or the two sides of a comparison, are ranked."""
    if run.request.subject.turn is not None:
        from pytest_cloudbench.judge.paired import quiet_service_s

        return {"quiet_service": quiet_service_s(measurement.counted, run.helper_waits)}
    return spread_of(measurement.counted, measurement.summary.response_s)


def _write_records(run: OpenRun, measurement: _Measurement, run_id: str, logs: Iterable[Path]) -> str:
    """Write the records into one file, remove the agents' logs, and return the file's name for the entry.

    Raises ResultsError, and leaves the logs, if the file cannot be written.
    """
    path = run.folder.parent / f"{run.folder.name}.parquet"
    subject = run.request.subject
    about = {
        "nodeid": subject.nodeid, "run_id": run_id, "start_ns": str(run.start_ns),
        "start_wall_ms": str(run.start_wall_ms), **_block_info(subject),
    }  # fmt: skip
    oplog.write_parquet(measurement.table, path, about, measurement.since_ns)
    shutil.rmtree(run.folder, ignore_errors=True)
    for log in logs:
        log.unlink(missing_ok=True)
    return f"{path.parent.name}/{path.name}"


def _store_entry(
    run: OpenRun, measurement: _Measurement, entries: Entries, info: dict[str, Any],
    judgements: Sequence[expect.Judgement], doubts: Sequence[str], spread: Mapping[str, Sequence[float]],
) -> None:  # fmt: skip
    """Add the run's entry, with the response times of its operations as pytest-benchmark's data."""
    verbs = ", ".join(info.get("by_operation") or [run.request.load.operation.value])
    info["stats_of"] = f"response time of operations ({verbs}) that succeeded"
    data_s = measurement.summary.response_s
    if not data_s:
        info["stats_of"] = "elapsed time: no operation succeeded"
        data_s = array("d", [] if info["elapsed"] is None else [info["elapsed"]])
    entries.add(
        run.request.subject, info, data_s, judgements, doubts, run.notes, spread=spread, margins=run.request.entry.gate
    )


def server_doubts(servers: str, kinds: Mapping[ErrorKind, int], ops: int) -> list[str]:
    """Return a doubt if a server that this run started has failed, because the provider is not to blame then.

    Args:
        servers: names these servers, or is empty.
        kinds: the number of operations by kind of error.
        ops: operations that were tried.
    """
    failed = kinds.get(ErrorKind.SERVER, 0)
    if not servers or not failed:
        return []
    return [f"{failed:,} of {format_count(ops, 'operation')} failed by an error of {servers}, which this run started"]


def _block_info(subject: Subject) -> dict[str, str]:
    """Return the metadata by which the records of a block of a comparison are recognized."""
    turn = subject.turn
    return {} if turn is None else {"side": turn.side, "block": str(turn.number), "provider": subject.shown_provider}


def make_answer(
    info: Mapping[str, Any], judgements: Sequence[expect.Judgement], doubts: Sequence[str], notes: Sequence[str],
    ops: Mapping[str, Any] | None = None, tried: bytes | None = None,
) -> Merged:  # fmt: skip
    """Return the answer that all agents get for a run or a conclusion."""
    statuses = tuple((judgement.status, judgement.line) for judgement in judgements)
    return Merged(info, statuses, tuple(doubts), tuple(notes), ops or {}, tried)


def plan_info(load: LoadShape) -> dict[str, Any]:
    """Return the planned length of a load for its entry: its time limit, or its number of operations without one.

    With a time limit, chance decides how many operations are due.
    """
    return {"planned_ops": None, "for_s": load.for_s} if load.for_s else {"planned_ops": load.ops}


def _may_end_early(run: OpenRun) -> bool:
    """Return whether the run may have done fewer operations than planned without a doubt about it."""
    return run.end_ns is not None or run.request.load.ends_by_time


def _lost_notes(verification: stats.Verification | None) -> list[str]:
    """Return a note that names silently lost files, by which their owner finds them in the service's own logs."""
    if verification is None or not verification.silent_names:
        return []
    names, more = ", ".join(verification.silent_names), verification.silent - len(verification.silent_names)
    rest = f" and {more:,} more" if more else ""
    return [f"answered with success, but missing or changed at the end: {names}{rest}"]


def _time_notes(run: OpenRun, measurement: _Measurement) -> list[str]:
    """Return a note if a closed loop did all its operations before its time was up."""
    load = run.request.load
    if not load.ends_by_time or len(measurement.table) < load.ops:
        return []
    return [f"all {load.ops:,} operations, the most that it may do, were done before the {load.for_s:g} s were up"]


def warm_up_info(run: OpenRun, warm_up_ops: int | None = None) -> dict[str, Any]:
    """Return the warm-up's length, and its operations if known, for the entry. Empty without a warm-up."""
    warm_up_s = run.request.load.warm_up_s
    if not warm_up_s:
        return {}
    return {"warm_up_s": warm_up_s} | ({} if warm_up_ops is None else {"warm_up_ops": warm_up_ops})


def _warm_up_notes(run: OpenRun, measurement: _Measurement) -> list[str]:
    if not run.request.load.warm_up_s:
        return []
    note = f"warm-up of {run.request.load.warm_up_s:g} s: {measurement.warm_up_ops:,} operations left out"
    unsuccessful = measurement.warm_up_ops - measurement.warm_up_outcomes[Outcome.OK]
    return [f"{note}, {unsuccessful:,} of them did not succeed" if unsuccessful else note]


def _tried_by_sensor(table: OpTable) -> bytes:
    """Return the number of operations that each sensor tried, as in ``Merged.tried``."""
    sensors, seqs = table.column("sensor"), table.column("seq")
    counts = array("I", bytes(4 * (max(sensors, default=-1) + 1)))
    for sensor, seq in zip(sensors, seqs, strict=True):
        counts[sensor] = max(counts[sensor], seq + 1)
    return counts.tobytes()


def _drift_text(run: OpenRun, measurement: _Measurement) -> str:
    """Return in words how the metric of an entry drifted, or an empty text.

    Parts of a conclusion are not examined, because they are too short for a drift. Neither are blocks of a comparison,
    because both sides drift alike.
    """
    if run.request.load.until:
        return measurement.ending.drift
    return describe_drift(measurement.summary) if run.request.entry.store and run.request.subject.turn is None else ""


def _list_doubts(run: OpenRun, measurement: _Measurement, max_lateness_s: float) -> list[str]:
    """Return the reasons why this run's numbers may be wrong."""
    summary, warm_up_ops = measurement.summary, measurement.warm_up_ops
    doubts, planned = [], run.request.load.ops
    late_s = summary.metrics["lateness_p99"]
    if late_s is not None and late_s > max_lateness_s:
        doubts.append(f"{SATURATED}lateness p99 {late_s * 1e3:.0f} ms is over {max_lateness_s * 1e3:.0f} ms)")
    starved, usual_s = summary.metrics["starved_share"] or 0.0, summary.metrics["service_p50"] or 0.0
    if starved > _MOST_STARVED and starved * usual_s > max_lateness_s:
        doubts.append(f"{STARVED}{starved:.0%} of the operations' time")
    tried = summary.ops + warm_up_ops
    if tried < planned and not _may_end_early(run):
        doubts.append(f"{planned - tried} of {planned} {NOT_TRIED}")
    if warm_up_ops and not summary.ops:
        doubts.append(f"all operations were due in the warm-up of {run.request.load.warm_up_s:g} s")
    if lost := sum(measurement.warm_up_outcomes[outcome] for outcome in (Outcome.LOST, Outcome.CORRUPT)):
        files = format_count(lost, "file of the warm-up was", "files of the warm-up were")
        doubts.append(f"{files} lost or changed, which no metric counts")
    return [*doubts, *measurement.ending.doubts]


def _run_info(run: OpenRun, summary: Summary, verification: stats.Verification | None) -> dict[str, Any]:
    """Return the part of extra_info that only a run has: all counts, and a description of its load."""
    load = run.request.load
    return {
        "start_wall_ms": run.start_wall_ms,
        "ops": summary.ops,
        **plan_info(load),
        "files": verification.checked if verification else None,
        "lost": verification.lost if verification else None,
        "silently_lost": verification.silent if verification else None,
        "listed_twice": verification.listed_twice if verification else None,
        **{name.value: summary.outcomes.get(name, 0) for name in Outcome if name is not Outcome.LOST},
        **summary.errors(),
        "digest_checked": verification.digest_checked if verification else None,
        "operation": run.request.load.operation.value,
        **{key: getattr(load, key) for key in ("sensors", "threads", "arrival", "loop", "size_bytes", "payload")},
        "cpu_share": run.cpu_share,
        "steal_share": run.steal_share,
        "starved_unknown": run.helper_waits.why or None,
        "client_cpu_s": run.client_cpu_s,
        "reference_cpu_s": fmean(run.reference_s) if run.reference_s else None,
        **summary.quiet,
    }
