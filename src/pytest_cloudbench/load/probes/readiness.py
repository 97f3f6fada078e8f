"""The time from a file's upload until another client can download it intact (thesis, section 4.2.5).

What may live here: one agent that uploads, another one (or a helper process of the only agent) that downloads,
and the results of their times on one clock.
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
from pytest_cloudbench.results.machine import THIS_MACHINE
from pytest_cloudbench.results.oplog import RecordLog
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.support.wording import format_count, format_counts
from pytest_cloudbench.workload.payload import Generator

if TYPE_CHECKING:
    from pytest_cloudbench.load.experiment import Experiment, Result

_M = TypeVar("_M", bound=Message)

_COLUMNS = (
    "files", "not_ready", "readiness_p50", "readiness_max", "published_ms", "clock_offset_ms", "clock_bound_ms",
    "resolution_ms",
)  # fmt: skip

_MOST_HIDDEN_S = 1.0
"""The longest pause that a reader makes by itself. Bounds that are wider for other reasons make a time doubtful."""


class ReaderResult(Message, frozen=True):
    """The reader's result for one file. Times are on its own clock in ns.

    Attributes:
        intact_start_ns, intact_end_ns: the first intact download, None if there was none.
        unready_ns: start of the last try that showed that the file was not there or not intact.
        problems: the number of failed tries by problem.
        stopped: the reason if the reader ended early (a budget is used up), or an empty text.
        hidden: of the tries since ``unready_ns``, those that failed for another reason, by problem.
    """

    intact_start_ns: int | None
    intact_end_ns: int | None
    unready_ns: int | None
    problems: Mapping[str, int] = {}
    stopped: str = ""
    hidden: Mapping[str, int] = {}

    @classmethod
    def from_attempts(cls, attempts: Sequence[Attempt], stopped: str = "") -> ReaderResult:
        """Summarize the tries at one file."""
        intact = next((attempt for attempt in attempts if not attempt.problem), None)
        unready = [attempt.start_ns for attempt in attempts if attempt.problem in NOT_INTACT]
        failed = [attempt for attempt in attempts if attempt.problem]
        problems = Counter(attempt.problem for attempt in failed)
        hidden = Counter(attempt.problem for attempt in failed if not unready or attempt.start_ns > unready[-1])
        start_ns, end_ns = (intact.start_ns, intact.end_ns) if intact else (None, None)
        return cls(
            start_ns, end_ns, unready[-1] if unready else None, dict(problems), "" if intact else stopped, dict(hidden)
        )


@dataclass(frozen=True, slots=True)
class FileReadiness:
    """One file's readiness time, in seconds from the end of its upload.

    Attributes:
        readiness_s: to the start of the first intact download, 0 if that began before the upload was answered.
        raw_s: the same without the floor of 0. It may be negative, by no more than the upload and the read took.
        low_s, high_s: bounds of the true value, errors of the clock included: from the last try that showed the file
            not ready to the first intact download.
        resolution_s: the time between these two tries.
        download_s: the time that the first intact download took. In that time, the service judged the file ready.
        is_impossible: the file was read before its upload began, because a clock has jumped.
    """

    readiness_s: float
    raw_s: float
    low_s: float
    high_s: float
    resolution_s: float
    download_s: float
    is_impossible: bool = False


def compute_readiness(upload_ns: tuple[int, int], result: ReaderResult, clock: Span) -> FileReadiness | None:
    """Compute one file's readiness from start and end of its upload on the writer's clock. None if it was never intact.

    ``clock`` converts the reader's clock to the writer's. A file cannot be ready before its upload has begun, so that
    start is a lower bound, too.
    """
    if result.intact_start_ns is None or result.intact_end_ns is None:
        return None
    started_ns, ended_ns = upload_ns
    raw_ns = result.intact_start_ns + clock.offset_ns - ended_ns
    began_ns = started_ns - ended_ns
    unready_ns = began_ns if result.unready_ns is None else result.unready_ns + clock.offset_ns - ended_ns
    low_ns = min(raw_ns, max(unready_ns, began_ns))
    since_ns = low_ns if result.unready_ns is None else unready_ns
    return FileReadiness(
        readiness_s=max(0, raw_ns) / 1e9,
        raw_s=raw_ns / 1e9,
        low_s=max(0, low_ns - clock.error_ns) / 1e9,
        high_s=max(0, raw_ns + clock.error_ns) / 1e9,
        resolution_s=(raw_ns - since_ns) / 1e9,
        download_s=(result.intact_end_ns - result.intact_start_ns) / 1e9,
        is_impossible=result.intact_end_ns + clock.offset_ns + clock.error_ns < started_ns,
    )


def is_unjudged(upload: tuple[int, int] | None, result: ReaderResult, clock: Span | None) -> bool:
    """Return whether no try after an answered upload showed whether the file was there: all failed for other reasons.

    Without ``clock``, any try that found the file missing counts as one after the upload.
    """
    if upload is None or result.stopped or result.intact_start_ns is not None:
        return False
    if result.unready_ns is None:
        return True
    return clock is not None and result.unready_ns + clock.offset_ns + clock.error_ns < upload[1]


def summarize(
    uploads: Sequence[tuple[int, int] | None], results: Sequence[ReaderResult], clock: Span | None
) -> tuple[dict[str, float | None], list[FileReadiness], list[str]]:
    """Return metrics, the readiness of each file that became ready, and doubts about them.

    A file that did not become ready is worse than any number, so percentiles that fall on one are unknown. So are those
    that fall on one that could not be judged, which counts as neither lost nor there. If the clocks cannot be trusted,
    no time is known. An upload that was answered with an error is lost, whatever the reader finds.

    Args:
        uploads: start and end of each upload, None for one that was not answered with success.
        results: the reader's results for the same files.
        clock: offset from the reader's clock to the writer's, None if that was not measured.
    """
    measured = [
        (upload, result) for upload, result in zip(uploads, results, strict=True) if upload and not result.stopped
    ]
    doubts = sorted({result.stopped for result in results if result.stopped})
    readiness = [compute_readiness(upload, result, clock) if clock else None for upload, result in measured]
    ready = [file for file in readiness if file is not None]
    if clock is None:
        doubts.append("the offset between the clocks of writer and reader was not measured")
    elif clock.has_jumped:
        doubts.append(
            f"the offset between the clocks of writer and reader changed by {clock.drift_ns / 1e6:+.3f} ms in "
            f"{abs(clock.after.at_ns - clock.before.at_ns) / 1e9:.1f} s: one of them was set or jumped"
        )
    impossible = sum(file.is_impossible for file in ready)
    if impossible:
        doubts.append(f"{impossible} of {len(ready)} files were read before their upload began: a clock has jumped")
    pairs = list(zip(uploads, results, strict=True))
    if unjudged := [result for upload, result in pairs if is_unjudged(upload, result, clock)]:
        problems = sum((Counter(result.problems) for result in unjudged), Counter[str]())
        why = format_counts(problems)
        doubts.append(
            f"whether {len(unjudged)} of {len(pairs)} files were there is not known: no try could tell ({why})"
        )
    doubts += _doubt_hidden([(file, result) for file, (_, result) in zip(readiness, measured, strict=True) if file])
    is_sound = clock is not None and not clock.has_jumped and not impossible
    values = sorted(inf if file is None else file.readiness_s for file in readiness)
    metrics: dict[str, float | None] = {}
    for label, share in PERCENTILES.items():
        value = percentile(values, share) if values and is_sound else inf
        metrics[f"readiness_{label}"] = None if isinf(value) else value
    complete = [
        (upload, result) for upload, result in pairs if not (result.stopped or is_unjudged(upload, result, clock))
    ]
    lost = [upload for upload, result in complete if upload is None or result.intact_start_ns is None]
    metrics["loss_rate"] = len(lost) / len(complete) if complete else None
    metrics["silent_loss_rate"] = sum(upload is not None for upload in lost) / len(complete) if complete else None
    return metrics, ready if is_sound else [], doubts


def _doubt_hidden(ready: Sequence[tuple[FileReadiness, ReaderResult]]) -> list[str]:
    """Return a doubt if tries that could not tell made times much longer than they may be."""
    hidden = [pair for pair in ready if pair[1].hidden and pair[0].readiness_s - pair[0].low_s > _MOST_HIDDEN_S]
    if not hidden:
        return []
    problems = sum((Counter(result.hidden) for _, result in hidden), Counter[str]())
    why = format_counts(problems)
    longest_s = max(file.readiness_s - file.low_s for file, _ in hidden)
    files = f"{len(hidden)} of {format_count(len(ready), 'file')}"
    return [f"{files} may have been ready up to {longest_s:.1f} s earlier: no try could tell meanwhile ({why})"]


# --- on all agents ---------------------------------------------------------------------------------


def measure_readiness(
    experiment: Experiment, payload: Generator, files: int, *, poll_s: float | None = None, deadline_s: float = 60.0,
    clock: Callable[[], int] = now_ns, label: str = "", published: Mapping[str, Any] | None = None,
    expect: Sequence[Expectation] = (),
) -> Result:  # fmt: skip
    """Upload files one after another while another client tries to download each, and make one entry.

    The first agent uploads. The reader is the first agent on another host, else the second one, else a process that is
    started for it. The others idle. The reader tries from before the upload begins until the file exists and equals
    the uploaded one. The offset between the two clocks is measured before and after (``offsets.Span``).

    Args:
        experiment: the test's experiment.
        payload: makes the content of each file.
        files: the number of files.
        poll_s: pause from the end of one try to the start of the next (the thesis: 0.5). None is as long as a try,
            10 ms at most. A provider that refuses or fails is asked ever more rarely.
        deadline_s: the time to wait for a file after its upload. Later it counts as lost ("not ready").
        clock: the clock of this process, which tests shift.
        label: as for ``Experiment.conclude``.
        published: as there.
        expect: as there.

    Raises UsageError for arguments that make no sense, and otherwise what ``Experiment.run`` raises.
    """
    if files < 1 or (poll_s is not None and poll_s < 0) or deadline_s <= 0:
        arguments = f"files={files}, poll_s={poll_s}, deadline_s={deadline_s:g}"
        raise UsageError(f"measure_readiness: {arguments}; expected files and a deadline above 0, poll_s 0 or more")
    with experiment.scratch(payload) as (run, on):
        series = _FileSeries(experiment, run, on, poll_s, deadline_s, clock)
        series.measure(files)
    arguments_of_conclusion = series.conclude_arguments(files)
    if published and "readiness_s" in published:
        arguments_of_conclusion["extra"]["published_ms"] = published["readiness_s"] * 1e3
    else:
        arguments_of_conclusion["columns"] = [column for column in _COLUMNS if column != "published_ms"]
    return experiment.conclude(**arguments_of_conclusion, label=label, published=published, expect=expect)


@dataclass(slots=True)
class _FileSeries:
    """The measurement of some files of one size. All agents hold the same roles and the same results.

    Attributes:
        writer, reader: indices of agents, equal if the reader is a helper process of the only agent.
        host_names: the names of agents' hosts. Empty if all agents are on the controller's machine.
        uploads, results: for every file so far.
        problems: the number of failed uploads by kind of error.
        span: the offset from the reader's clock to the writer's.
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
    host_names: Mapping[int, str] = field(default_factory=dict)
    uploads: list[tuple[int, int] | None] = field(default_factory=list)
    results: list[ReaderResult] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)
    span: Span | None = None
    stopped: str = ""

    def measure(self, files: int) -> None:
        """Measure all files. All agents call this together."""
        agent, facts = self.experiment.agent, self.experiment.facts
        self._assign_roles()
        size_bytes = self.on.payload.size_bytes
        fits = [files]
        fits += [facts.max_ops // 2] if facts.max_ops is not None else []
        fits += [facts.max_bytes // max(1, 2 * size_bytes)] if facts.max_bytes is not None else []
        count = min(fits)
        if count < files:
            self.stopped = f"{count} of {format_count(files, 'file fits', 'files fit')} into --max-ops and --max-bytes"
        budget = Budget(
            None if facts.max_ops is None else facts.max_ops - count,
            None if facts.max_bytes is None else facts.max_bytes - count * size_bytes,
        )
        load = LoadShape(2 * count, count * size_bytes)
        with self.experiment.logged(self.run, load) as log, agent.sign_of_life(), self._open_reader(budget) as reader:
            before = self._measure_clocks("before", reader)
            for number in range(count):
                if not self._measure_file(number, reader, log):
                    break
            after = self._measure_clocks("after", reader)
        self.span = Span(before, after) if before and after else None

    def _assign_roles(self) -> None:
        """Choose the agent that uploads, and the one that reads, on another host if there is one."""
        agent = self.experiment.agent
        answers = agent.gather(f"cast:{self.run}", Whereabouts(agent.index, host_id(), agent.host_name))
        whereabouts = list(map(Whereabouts.from_plain, answers.values()))
        hosts = {agent_host.index: (agent_host.host, agent_host.host_name) for agent_host in whereabouts}
        if any(agent_host.host_name for agent_host in whereabouts):
            self.host_names = {agent_host.index: agent_host.host_name or THIS_MACHINE for agent_host in whereabouts}
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

    def _open_reader(self, budget: Budget) -> AbstractContextManager[Watcher | ReaderProcess | None]:
        """Open the reader if this agent is the reader or runs the reading process."""
        agent, provider = self.experiment.agent, self.experiment.provider
        if agent.index != self.reader:
            return nullcontext()
        if self._is_alone:
            return ReaderProcess(agent.ask("provide", provider.spec), budget)
        return Watcher(provider.driver, budget, self.clock)

    def _measure_clocks(self, when: str, reader: Watcher | ReaderProcess | None) -> Offset | None:
        """Measure the current offset from the reader's clock to the writer's. None if one of them is gone."""
        agent, own_offset = self.experiment.agent, None
        if isinstance(reader, ReaderProcess):
            own_offset = measure_offset(reader.clock, self.clock).inverse()
        elif self._is_writer or reader is not None:
            own_offset = measure_offset(lambda: int(agent.ask("clock")), self.clock)
        answers = agent.gather(f"clock:{self.run}:{when}", ClockReading(agent.index, own_offset))
        readings = map(ClockReading.from_plain, answers.values())
        offsets = {reading.index: reading.offset for reading in readings if reading.offset is not None}
        if self._is_alone:
            return offsets.get(self.reader)
        if self.reader not in offsets or self.writer not in offsets:
            return None
        return offsets[self.reader].minus(offsets[self.writer])

    def _measure_file(self, number: int, reader: Watcher | ReaderProcess | None, log: RecordLog) -> bool:
        """Measure one file. Return False to end the series: a needed agent is gone, or a budget is used up."""
        agent, name = self.experiment.agent, f"{self.run}:{number}"
        path, content = self.on.file(number, 0)
        if reader is not None:
            reader.watch(path, content, self.poll_s)
        agent.gather(f"watched:{name}")
        own_upload = self._upload_file(number, log) if self._is_writer else None
        upload = _parse_only_answer(UploadSeen, agent.gather(f"uploaded:{name}", own_upload))
        own_result = None
        if reader is not None:
            is_there = upload is not None and not upload.problem
            attempts = reader.finish(self.deadline_s if is_there else 0.0, agent.stop.is_set)
            self._record_attempts(number, attempts, log)
            own_result = ReaderResult.from_attempts(attempts, reader.stopped)
        result = _parse_only_answer(ReaderResult, agent.gather(f"seen:{name}", own_result))
        if upload is None or result is None:
            return False
        self.problems.update([upload.problem] if upload.problem else [])
        self.uploads.append(None if upload.problem else (upload.start_ns, upload.end_ns))
        self.results.append(result)
        if self._is_writer:
            failed = sum(earlier.intact_start_ns is None for earlier in self.results)
            agent.tell("progress", ProgressReport(2 * len(self.results), 0, failed, ()))
        return not result.stopped

    def _upload_file(self, number: int, log: RecordLog) -> UploadSeen:
        """Upload a file and record it. A failure is counted, and not retried."""
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

    def _record_attempts(self, number: int, attempts: Sequence[Attempt], log: RecordLog) -> None:
        """Record every try as an ordinary operation."""
        for seq, attempt in enumerate(attempts):
            kind = None
            if attempt.problem:
                kind = ErrorKind.CORRUPT if attempt.problem == SHORT else ErrorKind(attempt.problem)
            outcome = outcome_of(kind) if kind else Outcome.OK
            index, start_ns = self.experiment.agent.index, attempt.start_ns
            log.record(
                Op(Verb.GET, number, seq, index, start_ns, start_ns, attempt.first_byte_ns, attempt.end_ns,
                   attempt.read_bytes, outcome, kind, detail=attempt.detail, requests=attempt.requests)
            )  # fmt: skip

    # -- results --------------------------------------------------------------------------

    def conclude_arguments(self, files: int) -> dict[str, Any]:
        """Return the arguments of ``Experiment.conclude``."""
        metrics, ready, doubts = summarize(self.uploads, self.results, self.span)
        doubts = [self.stopped, *doubts] if self.stopped else doubts
        if len(self.results) < files and not doubts:
            doubts.append(f"{files - len(self.results)} of {files} files were not measured")
        errors = sum((Counter(result.problems) for result in self.results), Counter[str]())
        rounds_s, names = [file.readiness_s for file in ready], self.host_names
        extra = {
            "files": sum(upload is not None for upload in self.uploads),
            "size_bytes": self.on.payload.size_bytes,
            "not_ready": sum(
                upload is not None
                and result.intact_start_ns is None
                and not (result.stopped or is_unjudged(upload, result, self.span))
                for upload, result in zip(self.uploads, self.results, strict=True)
            ),
            "upload_s": [(end - start) / 1e9 for start, end in filter(None, self.uploads)],
            "readiness_s": metrics["readiness_p50"],
            "readiness_raw_s": [file.raw_s for file in ready],
            "readiness_low_s": [file.low_s for file in ready],
            "readiness_high_s": [file.high_s for file in ready],
            "download_s": [file.download_s for file in ready],
            "resolution_ms": max((file.resolution_s * 1e3 for file in ready), default=None),
            "reader": "a process of its own" if self._is_alone else f"agent {self.reader}",
            "reader_host": "another host" if self.is_other_host else "the same host",
            **({"uploaded_from": names[self.writer], "read_from": names[self.reader]} if names else {}),
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
        """Return notes that explain the numbers in sentences."""
        notes = []
        if "read_from" in extra:
            notes.append(f"files were uploaded from {extra['uploaded_from']}, and read from {extra['read_from']}")
        size = f"files of {format_count(extra['size_bytes'], 'byte')}"
        if extra["not_ready"]:
            notes.append(
                f"{size}: {extra['not_ready']} of {extra['files']} were not ready within {self.deadline_s:g} s"
            )
        if self.problems:
            why = ", ".join(f"{count} {problem}" for problem, count in sorted(self.problems.items()))
            notes.append(
                f"{size}: {sum(self.problems.values())} of {format_count(len(self.uploads), 'upload')} failed ({why})"
            )
        for key, content in (
            ("partial_reads", "a part of the file"),
            ("corrupt_reads", "other bytes than were uploaded"),
        ):
            if extra[key]:
                notes.append(f"{size}: {format_count(extra[key], 'download')} gave {content}, and no error")
        high_ms = [file.high_s * 1e3 for file in ready if not file.low_s]
        if high_ms:
            later = f", or {max(high_ms):.1f} ms later at most" if max(high_ms) >= 0.1 else ""
            count = f"{len(high_ms)} of {len(ready)}"
            notes.append(f"{size}: {count} were never seen missing after the end of their upload: ready at once{later}")
        return notes


def _parse_only_answer(kind: type[_M], answers: Mapping[str, Any]) -> _M | None:
    """Return the answer of the one agent that gave one, None if none did."""
    return next((kind.from_plain(answer) for answer in answers.values() if answer is not None), None)
