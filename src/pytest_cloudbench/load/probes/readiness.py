"""How long after its upload a file can be downloaded intact by another client (thesis, section 4.2.5).

What may live here: one agent that uploads, another one (or a helper process of the only agent) that downloads,
and what their times mean once both are on one clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import inf, isinf
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_cloudbench.drivers.base import Counting
from pytest_cloudbench.fleet.agent import host_id
from pytest_cloudbench.fleet.messages import Message
from pytest_cloudbench.fleet.offsets import Offset, Span, measure_offset
from pytest_cloudbench.judge.expect import Expectation
from pytest_cloudbench.judge.stats import PERCENTILES, percentile
from pytest_cloudbench.load.engine.engine import Budget, outcome_of
from pytest_cloudbench.load.messages import ClockReading, LoadShape, ProgressReport, UploadSeen, Whereabouts
from pytest_cloudbench.load.probes.reader import NOT_INTACT, SHORT, Attempt, ReaderProcess, Watcher
from pytest_cloudbench.load.request import Files
from pytest_cloudbench.model import CloudError, ErrorKind, Op, Outcome, UsageError, Verb
from pytest_cloudbench.results.oplog import OpLog
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.workload.payload import Generator

if TYPE_CHECKING:
    from pytest_cloudbench.load.experiment import Experiment, Result

_M = TypeVar("_M", bound=Message)

_COLUMNS = (
    "files", "not_ready", "readiness_p50", "readiness_max", "published_ms", "clock_offset_ms", "clock_bound_ms",
    "resolution_ms",
)  # fmt: skip


class Seen(Message, frozen=True):
    """What the reader has seen of one file; times are its own clock in ns.

    Attributes:
        intact_start_ns, intact_end_ns: the first intact download; None if there was none.
        unready_ns: start of the last try that showed that the file was not there or not intact.
        problems: tries by problem; the intact one is not among them.
        stopped: why the reader ended early (a budget is used up), or an empty text.
    """

    intact_start_ns: int | None
    intact_end_ns: int | None
    unready_ns: int | None
    problems: Mapping[str, int] = {}
    stopped: str = ""

    @classmethod
    def of(cls, attempts: Sequence[Attempt], stopped: str = "") -> Seen:
        """Summarize the tries at one file."""
        intact = next((each for each in attempts if not each.problem), None)
        unready = [each.start_ns for each in attempts if each.problem in NOT_INTACT]
        problems = Counter(each.problem for each in attempts if each.problem)
        start_ns, end_ns = (intact.start_ns, intact.end_ns) if intact else (None, None)
        return cls(start_ns, end_ns, unready[-1] if unready else None, dict(problems), "" if intact else stopped)


@dataclass(frozen=True, slots=True)
class FileReadiness:
    """One file's readiness time; seconds from the end of its upload.

    Attributes:
        readiness_s: to the start of the first intact download, 0 if that began before the upload was answered.
        raw_s: the same without the floor of 0; may be negative, by no more than the upload took.
        low_s, high_s: the truth is between them, errors of the clock included: from the last try that showed the file
            not ready to the first intact download.
        resolution_s: the time between these two tries.
        is_impossible: the file was read before its upload began; a clock has jumped.
    """

    readiness_s: float
    raw_s: float
    low_s: float
    high_s: float
    resolution_s: float
    is_impossible: bool = False


def readiness_of(upload_ns: tuple[int, int], seen: Seen, clock: Span) -> FileReadiness | None:
    """One file's readiness from start and end of its upload, on the writer's clock; None if it was never intact.

    ``clock`` converts the reader's clock to the writer's. A file cannot be ready before its upload has begun, so that
    start is a lower bound as well.
    """
    if seen.intact_start_ns is None or seen.intact_end_ns is None:
        return None
    started_ns, ended_ns = upload_ns
    raw_ns = seen.intact_start_ns + clock.offset_ns - ended_ns
    began_ns = started_ns - ended_ns
    unready_ns = began_ns if seen.unready_ns is None else seen.unready_ns + clock.offset_ns - ended_ns
    low_ns = min(raw_ns, max(unready_ns, began_ns))
    since_ns = low_ns if seen.unready_ns is None else unready_ns
    return FileReadiness(
        readiness_s=max(0, raw_ns) / 1e9,
        raw_s=raw_ns / 1e9,
        low_s=max(0, low_ns - clock.error_ns) / 1e9,
        high_s=max(0, raw_ns + clock.error_ns) / 1e9,
        resolution_s=(raw_ns - since_ns) / 1e9,
        is_impossible=seen.intact_end_ns + clock.offset_ns + clock.error_ns < started_ns,
    )


def summarize(
    uploads: Sequence[tuple[int, int] | None], seen: Sequence[Seen], clock: Span | None
) -> tuple[dict[str, float | None], list[FileReadiness], list[str]]:
    """Metrics, the readiness of each file that became ready, and why these may be wrong.

    A file that did not become ready is worse than any number: percentiles that fall on one are unknown. If the
    clocks cannot be trusted, no time is known. An upload that was answered with an error is lost, whatever the reader
    finds.

    Args:
        uploads: start and end of each upload, None for one that was not answered with success.
        seen: what the reader has seen of the same files.
        clock: offset from the reader's clock to the writer's, None if that was not measured.
    """
    given = [(upload, each) for upload, each in zip(uploads, seen, strict=True) if upload and not each.stopped]
    doubts = sorted({each.stopped for each in seen if each.stopped})
    found = [readiness_of(upload, each, clock) if clock else None for upload, each in given]
    ready = [each for each in found if each is not None]
    if clock is None:
        doubts.append("the offset between the clocks of writer and reader was not measured")
    elif clock.has_jumped:
        doubts.append(
            f"the offset between the clocks of writer and reader changed by {clock.drift_ns / 1e6:+.3f} ms in "
            f"{abs(clock.after.at_ns - clock.before.at_ns) / 1e9:.1f} s: one of them was set or jumped"
        )
    impossible = sum(each.is_impossible for each in ready)
    if impossible:
        doubts.append(f"{impossible} of {len(ready)} files were read before their upload began: a clock has jumped")
    is_sound = clock is not None and not clock.has_jumped and not impossible
    values = sorted(inf if each is None else each.readiness_s for each in found)
    metrics: dict[str, float | None] = {}
    for label, share in PERCENTILES.items():
        value = percentile(values, share) if values and is_sound else inf
        metrics[f"readiness_{label}"] = None if isinf(value) else value
    judged = [(upload, each) for upload, each in zip(uploads, seen, strict=True) if not each.stopped]
    lost = [upload for upload, each in judged if upload is None or each.intact_start_ns is None]
    metrics["loss_rate"] = len(lost) / len(judged) if judged else None
    metrics["silent_loss_rate"] = sum(upload is not None for upload in lost) / len(judged) if judged else None
    return metrics, ready if is_sound else [], doubts


# --- on all agents ---------------------------------------------------------------------------------


def measure_readiness(
    experiment: Experiment, payload: Generator, files: int, *, poll_s: float | None = None, deadline_s: float = 60.0,
    clock: Callable[[], int] = now_ns, label: str = "", published: Mapping[str, Any] | None = None,
    expect: Sequence[Expectation] = (),
) -> Result:  # fmt: skip
    """Upload files one after another while another client tries to download each; make one entry.

    The first agent uploads. The reader is the first agent on another host, else the second one, else a process that is
    started for it; the others idle. It tries from before the upload begins until the file exists and equals what was
    uploaded. The offset between the two clocks is measured before and after (``clock.Span``).

    Args:
        experiment: the test's experiment.
        payload: makes the content of each file.
        files: how many.
        poll_s: from the end of one try to the start of the next (the thesis: 0.5); None: as long as a try takes, 10 ms
            at most. A provider that refuses or fails is asked ever more rarely.
        deadline_s: how long to wait for a file after its upload; then it counts as lost ("not ready").
        clock: the clock of this process; tests shift it.
        label: as for ``Experiment.conclude``.
        published: as there.
        expect: as there.

    Raises UsageError for arguments that make no sense, and otherwise what ``Experiment.run`` raises.
    """
    if files < 1 or (poll_s is not None and poll_s < 0) or deadline_s <= 0:
        given = f"files={files}, poll_s={poll_s}, deadline_s={deadline_s:g}"
        raise UsageError(f"measure_readiness: {given}; expected files and a deadline above 0, poll_s 0 or more")
    with experiment.scratch(payload) as (run, on):
        series = _Series(experiment, run, on, poll_s, deadline_s, clock)
        series.measure(files)
    told = series.conclusion(files)
    if published and "readiness_s" in published:
        told["extra"]["published_ms"] = published["readiness_s"] * 1e3
    else:
        told["columns"] = [each for each in _COLUMNS if each != "published_ms"]
    return experiment.conclude(**told, label=label, published=published, expect=expect)


@dataclass(slots=True)
class _Series:
    """Some files of one size, as every agent sees them: all agents hold the same roles and the same results.

    Attributes:
        writer, reader: indices of agents; equal if the reader is a helper process of the only agent.
        uploads, seen: for every file so far.
        problems: why uploads failed.
        span: from the reader's clock to the writer's.
    """

    experiment: Experiment
    run: str
    on: Files
    poll_s: float | None
    deadline_s: float
    clock: Callable[[], int]
    writer: int = 0
    reader: int = 0
    is_other_host: bool = False
    uploads: list[tuple[int, int] | None] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)
    span: Span | None = None
    stopped: str = ""

    def measure(self, files: int) -> None:
        """Measure all files; all agents call this together."""
        agent, facts = self.experiment.agent, self.experiment.facts
        self._cast()
        size_bytes = self.on.payload.size_bytes
        fits = [files]
        fits += [facts.max_ops // 2] if facts.max_ops is not None else []
        fits += [facts.max_bytes // max(1, 2 * size_bytes)] if facts.max_bytes is not None else []
        count = min(fits)
        if count < files:
            self.stopped = f"{count} of {files} files fit into --max-ops and --max-bytes"
        budget = Budget(
            None if facts.max_ops is None else facts.max_ops - count,
            None if facts.max_bytes is None else facts.max_bytes - count * size_bytes,
        )
        load = LoadShape(2 * count, count * size_bytes)
        with self.experiment.logged(self.run, load) as log, agent.sign_of_life(), self._reads(budget) as reader:
            before = self._measure_clocks("before", reader)
            for number in range(count):
                if not self._one(number, reader, log):
                    break
            after = self._measure_clocks("after", reader)
        self.span = Span(before, after) if before and after else None

    def _cast(self) -> None:
        """Choose who uploads and who reads: an agent on another host if there is one."""
        agent = self.experiment.agent
        told = agent.gather(f"cast:{self.run}", Whereabouts(agent.index, host_id()))
        hosts = {each.index: each.host for each in map(Whereabouts.from_plain, told.values())}
        self.writer = min(hosts)
        others = [index for index in sorted(hosts) if index != self.writer]
        elsewhere = [index for index in others if hosts[index] != hosts[self.writer]]
        self.reader = next(iter([*elsewhere, *others]), self.writer)
        self.is_other_host = bool(elsewhere)

    @property
    def _is_writer(self) -> bool:
        return self.experiment.agent.index == self.writer

    @property
    def _is_alone(self) -> bool:
        return self.reader == self.writer

    def _reads(self, budget: Budget) -> AbstractContextManager[Watcher | ReaderProcess | None]:
        """Provide the reader if this agent is the reader or runs the reading process."""
        agent, provider = self.experiment.agent, self.experiment.provider
        if agent.index != self.reader:
            return nullcontext()
        if self._is_alone:
            return ReaderProcess(agent.ask("provide", provider.spec), budget)
        return Watcher(provider.driver, budget, self.clock)

    def _measure_clocks(self, when: str, reader: Watcher | ReaderProcess | None) -> Offset | None:
        """Measure the current offset from the reader's clock to the writer's; None if one of them is gone."""
        agent, mine = self.experiment.agent, None
        if isinstance(reader, ReaderProcess):
            mine = measure_offset(reader.clock, self.clock).inverse()
        elif self._is_writer or reader is not None:
            mine = measure_offset(lambda: int(agent.ask("clock")), self.clock)
        told = agent.gather(f"clock:{self.run}:{when}", ClockReading(agent.index, mine))
        readings = map(ClockReading.from_plain, told.values())
        offsets = {each.index: each.offset for each in readings if each.offset is not None}
        if self._is_alone:
            return offsets.get(self.reader)
        if self.reader not in offsets or self.writer not in offsets:
            return None
        return offsets[self.reader].minus(offsets[self.writer])

    def _one(self, number: int, reader: Watcher | ReaderProcess | None, log: OpLog) -> bool:
        """Measure one file. Return False if it cannot go on: a needed agent is gone, or a budget is used up."""
        agent, name = self.experiment.agent, f"{self.run}:{number}"
        path, content = self.on.file(number, 0)
        if reader is not None:
            reader.watch(path, content, self.poll_s)
        agent.gather(f"watched:{name}")
        put = self._upload(number, log) if self._is_writer else None
        upload = _first(UploadSeen, agent.gather(f"uploaded:{name}", put))
        told = None
        if reader is not None:
            is_there = upload is not None and not upload.problem
            attempts = reader.finish(self.deadline_s if is_there else 0.0, agent.stop.is_set)
            self._record(number, attempts, log)
            told = Seen.of(attempts, reader.stopped)
        seen = _first(Seen, agent.gather(f"seen:{name}", told))
        if upload is None or seen is None:
            return False
        self.problems.update([upload.problem] if upload.problem else [])
        self.uploads.append(None if upload.problem else (upload.start_ns, upload.end_ns))
        self.seen.append(seen)
        if self._is_writer:
            failed = sum(each.intact_start_ns is None for each in self.seen)
            agent.tell("progress", ProgressReport(2 * len(self.seen), 0, failed, ()))
        return not seen.stopped

    def _upload(self, number: int, log: OpLog) -> UploadSeen:
        """Upload a file; a failure is counted, and not retried."""
        path, content = self.on.file(number, 0)
        driver, index = self.experiment.provider.driver, self.experiment.agent.index
        outcome, kind, detail = Outcome.OK, None, ""
        requests = driver.requests if isinstance(driver, Counting) else None
        before = requests() if requests else 0
        start_ns = self.clock()
        try:
            driver.put(path, content)
            end_ns = self.clock()
        except CloudError as error:
            end_ns, kind, detail = self.clock(), error.kind, error.detail
            outcome = outcome_of(error.kind)
        log.record(
            Op(Verb.PUT, number, 0, index, start_ns, start_ns, 0, end_ns, content.size_bytes, outcome, kind,
               detail=detail, requests=requests() - before if requests else None)
        )  # fmt: skip
        return UploadSeen(start_ns, end_ns, kind.value if kind else "")

    def _record(self, number: int, attempts: Sequence[Attempt], log: OpLog) -> None:
        """Record every try as an ordinary operation."""
        for seq, each in enumerate(attempts):
            kind = None
            if each.problem:
                kind = ErrorKind.CORRUPT if each.problem == SHORT else ErrorKind(each.problem)
            outcome = outcome_of(kind) if kind else Outcome.OK
            index, start_ns = self.experiment.agent.index, each.start_ns
            log.record(
                Op(Verb.GET, number, seq, index, start_ns, start_ns, each.first_byte_ns, each.end_ns, each.read_bytes,
                   outcome, kind, detail=each.detail, requests=each.requests)
            )  # fmt: skip

    # -- what came of it --------------------------------------------------------------------------

    def conclusion(self, files: int) -> dict[str, Any]:
        """The arguments of ``Experiment.conclude``."""
        metrics, ready, doubts = summarize(self.uploads, self.seen, self.span)
        doubts = [self.stopped, *doubts] if self.stopped else doubts
        if len(self.seen) < files and not doubts:
            doubts.append(f"{files - len(self.seen)} of {files} files were not measured")
        errors = sum((Counter(each.problems) for each in self.seen), Counter[str]())
        rounds_s = [each.readiness_s for each in ready]
        extra = {
            "files": len(self.seen),
            "size_bytes": self.on.payload.size_bytes,
            "not_ready": sum(
                upload is not None and each.intact_start_ns is None and not each.stopped
                for upload, each in zip(self.uploads, self.seen, strict=True)
            ),
            "upload_s": [(end - start) / 1e9 for start, end in filter(None, self.uploads)],
            "readiness_s": metrics["readiness_p50"],
            "readiness_raw_s": [each.raw_s for each in ready],
            "readiness_low_s": [each.low_s for each in ready],
            "readiness_high_s": [each.high_s for each in ready],
            "resolution_ms": max((each.resolution_s * 1e3 for each in ready), default=None),
            "reader": "a process of its own" if self._is_alone else f"agent {self.reader}",
            "reader_host": "another host" if self.is_other_host else "the same host",
            "poll_s": self.poll_s,
            "deadline_s": self.deadline_s,
            "upload_errors": dict(self.problems),
            "tries": dict(errors),
            "partial_reads": errors[SHORT],
            "corrupt_reads": errors[ErrorKind.CORRUPT.value],
            **self._clock_values(),
        }
        return {
            "metrics": metrics, "rounds_s": rounds_s or [self.deadline_s], "extra": extra, "doubts": doubts,
            "notes": self._notes(ready, extra), "columns": _COLUMNS,
            "spread": dict.fromkeys(("readiness_p50", "readiness_max"), rounds_s),
            "stats_of": "readiness time: from the end of the upload to the start of the first intact download"
            if rounds_s else "the deadline: no readiness time is known",
        }  # fmt: skip

    def _clock_values(self) -> dict[str, Any]:
        span = self.span
        values = (span.offset_ns, span.error_ns, span.drift_ns) if span else (None, None, None)
        names = ("clock_offset_ms", "clock_bound_ms", "clock_drift_ms")
        return {name: None if value is None else value / 1e6 for name, value in zip(names, values, strict=True)}

    def _notes(self, ready: Sequence[FileReadiness], extra: Mapping[str, Any]) -> list[str]:
        """Return what the numbers mean, in sentences."""
        notes = []
        size = f"files of {extra['size_bytes']:,} bytes"
        if extra["not_ready"]:
            notes.append(
                f"{size}: {extra['not_ready']} of {extra['files']} were not ready within {self.deadline_s:g} s"
            )
        if self.problems:
            why = ", ".join(f"{count} {problem}" for problem, count in sorted(self.problems.items()))
            notes.append(f"{size}: {sum(self.problems.values())} of {extra['files']} uploads failed ({why})")
        for key, what in (("partial_reads", "a part of the file"), ("corrupt_reads", "other bytes than were uploaded")):
            if extra[key]:
                notes.append(f"{size}: {extra[key]} downloads gave {what}, and no error")
        high_ms = [each.high_s * 1e3 for each in ready if not each.low_s]
        if high_ms:
            later = f", or {max(high_ms):.1f} ms later at most" if max(high_ms) >= 0.1 else ""
            count = f"{len(high_ms)} of {len(ready)}"
            notes.append(f"{size}: {count} were never seen missing after the end of their upload: ready at once{later}")
        return notes


def _first(kind: type[_M], told: Mapping[str, Any]) -> _M | None:
    """Return the answer of the one agent that gave one."""
    return next((kind.from_plain(each) for each in told.values() if each is not None), None)
