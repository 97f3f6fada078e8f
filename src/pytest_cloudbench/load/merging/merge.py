"""One run from the agents' logs to its records, its metrics and its entry.

What may live here: a running experiment as the controller sees it, and how it becomes an entry at its end.
"""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.fleet.coordinator import Item
from pytest_cloudbench.judge import expect, stats
from pytest_cloudbench.judge.baseline import SATURATED, STARVED
from pytest_cloudbench.judge.metrics import METRICS, Summary, summarize
from pytest_cloudbench.judge.paired import quiet_service_s
from pytest_cloudbench.judge.quiet import WaitSeries
from pytest_cloudbench.judge.ranking import spread_of
from pytest_cloudbench.judge.records import VERBS, OpTable, values
from pytest_cloudbench.load.engine.stopping import Decider, End, describe_drift, describe_end
from pytest_cloudbench.load.merging import wire
from pytest_cloudbench.load.merging.entries import Entries
from pytest_cloudbench.load.messages import LoadShape, Merged, Start, Subject
from pytest_cloudbench.model import ErrorKind, Outcome, ResultsError, Verb
from pytest_cloudbench.net.sockets.sums import Carried
from pytest_cloudbench.report.quantities import format_metric
from pytest_cloudbench.results import oplog
from pytest_cloudbench.results.machine import CpuTicks

if TYPE_CHECKING:
    from pytest_cloudbench.load.engine.cpu_wait import WaitSampler
    from pytest_cloudbench.net.sockets.counter import TcpCounter

NOT_TRIED = "operations were not tried"
"""The end of the doubt about a run that did less than planned, other than by stopping early."""

_OF_UPLOADS = frozenset(name for name, metric in METRICS.items() if metric.about == (Verb.PUT,))

_NOT_ENDED = Carried(why="its operations did not all end")
_MOST_STARVED = 0.5
"""Threads that wait for a CPU for half of the operations' time make these doubtful, if that is long."""
_NOT_SAMPLED = WaitSeries(why="its operations did not all end")


@dataclass(slots=True)
class OpenRun:
    """One ``experiment.run`` while it lasts, as the controller sees it.

    Attributes:
        folder: holds the agents' logs.
        item: the test item.
        asked: what the agents have said about it.
        start_ns, start_wall_ms: the common start, on the monotonic clock and of the Unix epoch.
        profile_digest: of the emulator's behaviour, None for a real service.
        listing: what the provider lists at the end; ``verified`` says whether it was asked.
        notes: remarks to show with the numbers.
        logs: agent to its log, if that is not in ``folder``.
        cpu_ticks: ticks of this machine's CPUs at the start; ``cpu_share`` is the busy share since.
        client_cpu_s: CPU time of all agents without that of a warm-up, None if one agent's is not known.
        reference_s: CPU times of the reference work before and after the run, if they were measured.
        is_incomplete: its records could not be written.
        measured_from_ns: the end of the warm-up on the monotonic clock; the start, if there is none.
        decider, end_ns: what decides that it ends early, and the due time at which it did, None if it did not.
        counter, carried: what counts the bytes of its connections, and what it has counted when all have measured.
        sampler, beside: what samples how long threads wait for a CPU that do not run operations themselves, and what it
            has seen when all have measured.
        steal_share: the share of this machine's CPU time that its host gave to others.
    """

    folder: Path
    item: Item
    asked: Start
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
    verified: bool = False
    is_incomplete: bool = False
    measured_from_ns: int = 0
    decider: Decider | None = None
    end_ns: int | None = None
    counter: TcpCounter | None = None
    carried: Carried = _NOT_ENDED
    sampler: WaitSampler | None = None
    beside: WaitSeries = _NOT_SAMPLED
    steal_share: float | None = None


@dataclass(frozen=True, slots=True)
class _Measured:
    """What the records of a run say.

    Attributes:
        table: all operations.
        counted: those that count, without a warm-up.
        since_ns: from when on they count, None for all.
        summary: of those that count.
        verification: of what was uploaded; None if nothing was, or it was not verified.
        metrics: all numbers that are known.
        on_wire: what its connections carried.
        ending: how it ended early, and what follows from that.
    """

    table: OpTable
    counted: OpTable
    since_ns: int | None
    summary: Summary
    verification: stats.Verification | None
    metrics: Mapping[str, float | None]
    on_wire: Carried
    ending: End

    @property
    def left_out(self) -> int:
        """Return how many operations belong to the warm-up."""
        return len(self.table) - self.summary.ops


def merge(
    run: OpenRun, entries: Entries, doubts: Sequence[str], died: str, servers: str, offsets_ns: Mapping[str, int]
) -> Merged:
    """Merge, verify, judge and store one run.

    Args:
        run: its logs are removed once their records are written.
        entries: where its entry goes, if it becomes one.
        doubts: reasons to distrust its numbers that are known before they are computed.
        died: why its emulator has died, or an empty text.
        servers: the servers that were chosen and started for it, or an empty text.
        offsets_ns: agent to the offset to add to its times.
    """
    logs = {path.stem: path for path in sorted(run.folder.glob("*.oplog"))} | run.logs
    table = OpTable(*(oplog.read_log(path).shift_times(offsets_ns.get(agent, 0)) for agent, path in logs.items()))
    measured = _measure(run, table)
    doubts = [*doubts, *_doubts(run, measured, entries.facts.max_lateness_s), *([died] if died else [])]
    doubts += server_doubts(servers, measured.summary.kinds, measured.summary.ops)
    run.notes += [*_warm_up_notes(run, measured), *_time_notes(run, measured), *measured.ending.notes]
    if drift := _drift(run, measured):
        (run.notes if run.asked.load.may_drift else doubts).append(drift)
    info = _info(run, measured, entries)
    run.notes += _operation_notes(info.get("by_operation", {}))
    subject, entry = run.asked.subject, run.asked.entry
    judgements = entries.judge(subject, entry.expect, measured.metrics, doubts, info) if entry.store else []
    # All that is read of the logs comes before they are removed.
    ops = stats.columns(measured.counted, run.start_ns) if run.asked.load.detail else {}
    spread = _spread(run, measured) if entry.store else {}
    tried = _tried_by_sensor(table) if run.asked.load.keeps and _may_end_early(run) else b""
    try:
        info["ops_file"] = _write_records(run, measured, entries.facts.run_id, logs.values())
    except ResultsError as error:
        run.is_incomplete = True
        folders = sorted({str(path.parent) for path in logs.values()})
        run.notes.append(f"{error}; the agents' logs stay in {' and '.join(folders)}")
        judgements.append(expect.Judgement("broken", str(error)))
    if entry.store:
        _store(run, measured, entries, info, judgements, doubts, spread)
    return answer(info, judgements, doubts, run.notes, ops, tried)


def _measure(run: OpenRun, table: OpTable) -> _Measured:
    """Return what all records of a run say, verified against what the provider lists."""
    asked = run.asked
    since_ns = run.measured_from_ns if asked.load.warm_up_s else None
    verification = stats.verify(table, run.listing, asked.load.names.name, since_ns) if run.verified else None
    run.listing = stats.Listing()  # frees the former listing's memory for what follows
    counted = table if since_ns is None else table.since(since_ns)
    summary = summarize(counted, verification, run.beside)
    metrics = summary.metrics
    if asked.load.operation is not Verb.PUT:  # nothing was uploaded that could be lost
        metrics = {name: value for name, value in metrics.items() if name not in _OF_UPLOADS}
        verification = None
    ok_bytes = (metrics["payload_bytes_per_op"] or 0) * summary.outcomes.get(Outcome.OK, 0)
    on_wire = wire.believed(run.carried, asked.load.operation, round(ok_bytes), run.item.missing)
    metrics = {
        **metrics, "cpu_per_op": run.client_cpu_s / summary.ops if run.client_cpu_s and summary.ops else None,
        "wire_bytes_per_op": on_wire.bytes / len(table) if on_wire.bytes is not None and table else None,
    }  # fmt: skip
    tried = len(table), asked.load.ops
    ending = describe_end(counted, asked.load.until, tried, run.start_ns, run.end_ns) if asked.load.until else End()
    return _Measured(table, counted, since_ns, summary, verification, metrics, on_wire, ending)


def _info(run: OpenRun, measured: _Measured, entries: Entries) -> dict[str, Any]:
    """Return the extra_info of a run's entry."""
    entry = run.asked.entry
    return {
        **entries.info(run.asked.subject, run.item, entry.published, run.profile_digest), **entry.extra,
        **_run_info(run, measured.summary, measured.verification), **wire.told(measured.on_wire),
        **warm_up_info(run, measured.left_out), **measured.ending.info,
        **_by_operation(run, measured), **measured.metrics,
    }  # fmt: skip


_OF_ONE_OPERATION = (
    "ok_rate", "throttled_rate", "failed_rate", "corrupt_rate", "service_p50", "service_p99", "response_p50",
    "response_p99",
)  # fmt: skip


def _by_operation(run: OpenRun, measured: _Measured) -> dict[str, Any]:
    """Return what an entry says of each kind of operation; nothing unless it is of a load that mixes several."""
    if not run.asked.entry.store or run.asked.load.size_bytes is not None:
        return {}
    kinds: dict[str, Any] = {}
    for code in sorted(set(measured.counted.codes("verb"))):
        summary = summarize(measured.counted.of_verb(VERBS[code]), None, run.beside)
        metrics = {name: summary.metrics[name] for name in _OF_ONE_OPERATION}
        kinds[VERBS[code].value] = {"ops": summary.ops, **metrics}
    return {"by_operation": kinds}


def _operation_notes(kinds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a note on each kind of operation, where a run mixes several."""
    return [
        f"{name}: {figures['ops']:,} operations, {format_metric(figures['ok_rate'], 'ok_rate')} ok, "
        f"p50 {format_metric(figures['response_p50'], 'response_p50')}, "
        f"p99 {format_metric(figures['response_p99'], 'response_p99')}"
        for name, figures in kinds.items()
    ]


def _spread(run: OpenRun, measured: _Measured) -> Mapping[str, Sequence[float]]:
    """Return the samples by which providers, or the two sides of a comparison, are ranked."""
    if run.asked.subject.turn is not None:
        return {"quiet_service": quiet_service_s(measured.counted, run.beside)}
    return spread_of(measured.counted, measured.summary.response_s)


def _write_records(run: OpenRun, measured: _Measured, run_id: str, logs: Iterable[Path]) -> str:
    """Write the records into one file, remove the agents' logs, and return the file's name for the entry.

    Raises ResultsError if it cannot be written; then the logs stay.
    """
    path = run.folder.parent / f"{run.folder.name}.parquet"
    subject = run.asked.subject
    about = {
        "nodeid": subject.nodeid, "run_id": run_id, "start_ns": str(run.start_ns),
        "start_wall_ms": str(run.start_wall_ms), **_block_of(subject),
    }  # fmt: skip
    oplog.write_parquet(measured.table, path, about, measured.since_ns)
    shutil.rmtree(run.folder, ignore_errors=True)
    for log in logs:
        log.unlink(missing_ok=True)
    return str(Path(path.parent.name) / path.name)


def _store(
    run: OpenRun, measured: _Measured, entries: Entries, info: dict[str, Any],
    judgements: Sequence[expect.Judgement], doubts: Sequence[str], spread: Mapping[str, Sequence[float]],
) -> None:  # fmt: skip
    """Add the run's entry, with the response times of its operations as pytest-benchmark's data."""
    info["stats_of"] = f"response time of operations ({run.asked.load.operation.value}) that succeeded"
    data_s = measured.summary.response_s
    if not data_s:
        info["stats_of"] = "elapsed time: no operation succeeded"
        data_s = array("d", [] if info["elapsed"] is None else [info["elapsed"]])
    entries.add(
        run.asked.subject, info, data_s, judgements, doubts, run.notes, spread=spread, margins=run.asked.entry.gate
    )


def server_doubts(servers: str, kinds: Mapping[ErrorKind, int], ops: int) -> list[str]:
    """Return a doubt if a server has failed that the run has chosen by itself: then the provider is not to blame.

    Args:
        servers: which these are, or an empty text.
        kinds: number of operations by kind of error.
        ops: operations that were tried.
    """
    failed = kinds.get(ErrorKind.SERVER, 0)
    if not servers or not failed:
        return []
    return [f"{failed} of {ops} operations failed by an error of {servers}, which this run started"]


def _block_of(subject: Subject) -> dict[str, str]:
    """Return what records of a block say of it."""
    turn = subject.turn
    return {} if turn is None else {"side": turn.side, "block": str(turn.number), "provider": subject.provider}


def answer(
    info: Mapping[str, Any], judgements: Sequence[expect.Judgement], doubts: Sequence[str], notes: Sequence[str],
    ops: Mapping[str, Any] | None = None, tried: bytes = b"",
) -> Merged:  # fmt: skip
    """Return the answer that all agents get for a run or a conclusion."""
    judged = tuple((each.status, each.line) for each in judgements)
    return Merged(info, judged, tuple(doubts), tuple(notes), ops or {}, tried)


def planned_of(load: LoadShape) -> dict[str, Any]:
    """Return what an entry says of how long a load was to be. Bounded by time, its operations may differ by chance."""
    return {"planned_ops": None, "for_s": load.for_s} if load.for_s else {"planned_ops": load.ops}


def _may_end_early(run: OpenRun) -> bool:
    """Return whether fewer operations than planned are no surprise."""
    return run.end_ns is not None or run.asked.load.ends_by_time


def _time_notes(run: OpenRun, measured: _Measured) -> list[str]:
    """Return a note if a closed loop had done the most that it may do before its time was up."""
    load = run.asked.load
    if not load.ends_by_time or len(measured.table) < load.ops:
        return []
    return [f"all {load.ops:,} operations, the most that it may do, were done before the {load.for_s:g} s were up"]


def warm_up_info(run: OpenRun, left_out: int | None = None) -> dict[str, Any]:
    """Return what an entry says of the warm-up; nothing if there is none."""
    warm_up_s = run.asked.load.warm_up_s
    if not warm_up_s:
        return {}
    return {"warm_up_s": warm_up_s} | ({} if left_out is None else {"warm_up_ops": left_out})


def _warm_up_notes(run: OpenRun, measured: _Measured) -> list[str]:
    if not run.asked.load.warm_up_s:
        return []
    note, unsuccessful = f"warm-up of {run.asked.load.warm_up_s:g} s: {measured.left_out:,} operations left out", 0
    for block in measured.table.blocks():
        fields = zip(values(block, "scheduled_ns"), values(block, "outcome"), strict=True)
        unsuccessful += sum(due_ns < run.measured_from_ns and ended is not Outcome.OK for due_ns, ended in fields)
    return [f"{note}, {unsuccessful:,} of them did not succeed" if unsuccessful else note]


def _tried_by_sensor(table: OpTable) -> bytes:
    """Return how many operations of each sensor were tried; see ``Merged``."""
    sensors, seqs = table.column("sensor"), table.column("seq")
    found = array("I", bytes(4 * (max(sensors, default=-1) + 1)))
    for sensor, seq in zip(sensors, seqs, strict=True):
        found[sensor] = max(found[sensor], seq + 1)
    return found.tobytes()


def _drift(run: OpenRun, measured: _Measured) -> str:
    """Return how an entry's metric drifted; parts of a conclusion are short, and turns of two sides even it out."""
    if run.asked.load.until:
        return measured.ending.drift
    return describe_drift(measured.summary) if run.asked.entry.store and run.asked.subject.turn is None else ""


def _doubts(run: OpenRun, measured: _Measured, max_lateness_s: float) -> list[str]:
    """Return why this run's numbers may be wrong."""
    summary, left_out = measured.summary, measured.left_out
    doubts, planned = [], run.asked.load.ops
    late_s = summary.metrics["lateness_p99"]
    if late_s is not None and late_s > max_lateness_s:
        doubts.append(f"{SATURATED}lateness p99 {late_s * 1e3:.0f} ms is over {max_lateness_s * 1e3:.0f} ms)")
    starved, usual_s = summary.metrics["starved_share"] or 0.0, summary.metrics["service_p50"] or 0.0
    if starved > _MOST_STARVED and starved * usual_s > max_lateness_s:
        doubts.append(f"{STARVED}{starved:.0%} of the operations' time")
    tried = summary.ops + left_out
    if tried < planned and not _may_end_early(run):
        doubts.append(f"{planned - tried} of {planned} {NOT_TRIED}")
    if left_out and not summary.ops:
        doubts.append(f"all operations were due in the warm-up of {run.asked.load.warm_up_s:g} s")
    return [*doubts, *measured.ending.doubts]


def _run_info(run: OpenRun, summary: Summary, verification: stats.Verification | None) -> dict[str, Any]:
    """Return what else the extra_info of one run's entry holds: all counts, and what the load was."""
    load = run.asked.load
    return {
        "start_wall_ms": run.start_wall_ms,
        "ops": summary.ops,
        **planned_of(load),
        "files": verification.checked if verification else None,
        "lost": verification.lost if verification else None,
        "silently_lost": verification.silent if verification else None,
        "listed_twice": verification.listed_twice if verification else None,
        **{name.value: summary.outcomes.get(name, 0) for name in Outcome if name is not Outcome.LOST},
        **summary.errors(),
        "digest_checked": verification.digest_checked if verification else None,
        "operation": run.asked.load.operation.value,
        **{key: getattr(load, key) for key in ("sensors", "threads", "arrival", "loop", "size_bytes", "payload")},
        "cpu_share": run.cpu_share,
        "steal_share": run.steal_share,
        "starved_unknown": run.beside.why or None,
        "client_cpu_s": run.client_cpu_s,
        "reference_cpu_s": fmean(run.reference_s) if run.reference_s else None,
        **summary.quiet,
    }
