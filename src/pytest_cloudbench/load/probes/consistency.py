"""The reads after an answered write: of a new, overwritten or removed file, or of one with several writers.

What may live here: the writes and reads of each check. Two clients in one process share a clock: one writes, and the
other, with connections of its own, reads again and again. ``judge.staleness`` interprets the reads.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.drivers.base import Counting, Driver, Preparing
from pytest_cloudbench.judge.staleness import UNKNOWN, ObservedRead, Settling, Trial, history_of, summarize_trials
from pytest_cloudbench.load.engine.engine import Budget, outcome_of
from pytest_cloudbench.load.messages import LoadShape
from pytest_cloudbench.model import BudgetError, CloudError, Content, ErrorKind, Op, Outcome, UsageError, Verb, chunks
from pytest_cloudbench.providers import connect
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.results.oplog import RecordLog
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.support.wording import format_count, format_counts
from pytest_cloudbench.workload.payload import Generator, RandomContent

if TYPE_CHECKING:
    from pytest_cloudbench.load.experiment import Experiment, Result

CHECKS = (
    "read_after_write", "list_after_write", "read_after_overwrite", "list_after_overwrite", "read_after_delete",
    "list_after_delete", "concurrent_overwrite", "repeated_write",
)  # fmt: skip
"""The checks, one per entry."""

SETTLE_S = 2.0
"""The default of the least time for which reading goes on without a stale read."""

_NEEDS_OVERWRITES = frozenset({"read_after_overwrite", "list_after_overwrite", "concurrent_overwrite"})

_COLUMNS = (
    "files", "violation_rate", "stale_reads", "flips", "never", "consistency_p50", "consistency_max", "within_ms",
    "resolution_ms", "asked_every_ms",
)  # fmt: skip

_THREADS = 10
_WRITERS = 4
_PAUSE_S = (0.0005, 0.01)
_SLOWING_FACTOR = 0.05
"""Once a file is right, reads become rarer. They wait this share of the time since the last change."""

_MAX_RETRY_WAIT_S = 1.0
_MAX_HIDDEN_S = 1.0
"""Failed reads that hide for longer when a file became right make its time doubtful, and that none was stale."""

_MAY_HAVE_ARRIVED = frozenset({ErrorKind.CONFLICT, ErrorKind.NETWORK, ErrorKind.SERVER})
"""A write that failed so has met the others at the service, or may have. Any other was turned away before."""

_OLD, _STILL_THERE, _MISSING, _OTHER = "old content", "still there", "not there", "content of no write"


def measure_consistency(
    experiment: Experiment, payload: Generator, check: str, files: int, *, deadline_s: float = 30.0,
    settle_s: float = SETTLE_S,
) -> Result:  # fmt: skip
    """Write files, read each again and again until it has settled, and make one entry.

    The first agent measures with two clients, while the others wait.

    Args:
        experiment: the test's experiment.
        payload: gives the size of the files. Versions of one file differ by a byte in size.
        check: one of ``CHECKS``.
        files: the number of files.
        deadline_s: a file that is stale for longer counts as never consistent, and its time is a lower bound.
        settle_s: reading goes on until no stale read occurred for as long as the file was stale, and for at least this
            long. It therefore ends by ``deadline_s`` plus the longer of the two.

    Raises UsageError for a check that is unknown, or that needs what the provider's driver does not offer, and
    otherwise what ``Experiment.run`` raises.
    """
    if check not in CHECKS or files < 1 or deadline_s <= 0 or settle_s <= 0:
        arguments = f"check={check!r}, files={files}, deadline_s={deadline_s:g}, settle_s={settle_s:g}"
        raise UsageError(f"measure_consistency: {arguments}; expected one of {', '.join(CHECKS)}, and numbers above 0")
    if check in _NEEDS_OVERWRITES and not experiment.provider.driver.capabilities.overwrites:
        raise UsageError(f"measure_consistency: {check}: this provider's driver does not overwrite")
    agent, facts = experiment.agent, experiment.facts
    with experiment.scratch(payload) as (run, on):
        load = LoadShape(files, files * payload.size_bytes)
        with experiment.logged(run, load) as log:

            def run_probe() -> dict[str, Any]:
                answer = agent.ask("provide", experiment.provider.spec)
                reader = connect(Provided.from_plain(answer))
                try:
                    if isinstance(reader, Preparing):
                        reader.prepare(on.folder)
                    writer, key = experiment.provider.driver, f"{facts.seed}/{run}"
                    budget = Budget(facts.max_ops, facts.max_bytes)
                    probe = _Probe(
                        writer, reader, on.folder, key, payload.size_bytes, agent.index, log, budget, agent.stop,
                        deadline_s, settle_s,
                    )  # fmt: skip
                    with agent.sign_of_life():
                        return probe.run(check, files)
                finally:
                    reader.close()

            outcome = agent.once(f"consistency:{run}", run_probe)
    trials = [_parse_trial(plain) for plain in outcome["trials"]]
    return _conclude(experiment, check, files, trials, outcome["stopped"], deadline_s, settle_s)


def _conclude(
    experiment: Experiment, check: str, files: int, trials: Sequence[Trial], stopped: str, deadline_s: float,
    settle_s: float,
) -> Result:  # fmt: skip
    """Store the entry about all trials, and return its result."""
    summary = summarize_trials(trials)
    extra, metrics = summary["extra"], summary["metrics"]
    times_s = [time_s for time_s in extra["consistent_s"] if time_s is not None]
    doubts = [stopped] if stopped else _doubt_reads(extra, files)
    notes = [f"{check}: {note}" for note in _notes(metrics, extra, deadline_s)]
    if history := history_of(trials):
        lines = "".join(f"{json.dumps(line)}\n" for line in history)
        observations = ", ".join(f"{content} {count} x" for content, count in sorted(extra["seen"].items()))
        counts = f"{extra['violated']} of {format_count(extra['files'], 'file')} ({observations})"
        experiment.report(f"{check} on {experiment.provider.spec}: {counts}", f"violations-{check}.jsonl", lines)
    settings = {"check": check, "deadline_s": deadline_s, "settle_s": settle_s}
    return experiment.conclude(
        metrics, times_s or [deadline_s], columns=_COLUMNS, extra={**extra, **settings},
        stats_of="time until consistent: from the answer to the last write to the first read after which none was stale"
        if times_s else "the deadline: no time is known",
        doubts=doubts, notes=notes,
        spread={"consistency_p50": times_s, "consistency_max": times_s,
                "violation_rate": [float(count > 0) for count in extra["stale_per_file"]]},
    )  # fmt: skip


def _doubt_reads(extra: Mapping[str, Any], files: int) -> list[str]:
    """Return why reads may not show what they seem to show: they failed, or were too few."""
    doubts = []
    if extra["files"] < files:
        why = format_counts(extra["problems"]) or "nothing was read"
        doubts.append(f"{files - extra['files']} of {files} files were not judged: {why}")
    of_files = f"of {format_count(extra['files'], 'file')}"
    if undecided := extra["undecided"]:
        doubts.append(f"{undecided} {of_files} showed nothing stale, but could not be read often enough to tell")
    if hidden := [hidden_s for hidden_s in extra["hidden_s"] if hidden_s > _MAX_HIDDEN_S]:
        span = f"for up to {max(hidden):.1f} s in which all reads failed"
        doubts.append(f"{len(hidden)} {of_files} may have been stale {span}")
    return doubts


def _notes(metrics: Mapping[str, Any], extra: Mapping[str, Any], deadline_s: float) -> list[str]:
    """Return notes that explain the numbers in sentences."""
    notes = []
    if extra["flapped"]:
        notes.append(
            f"{extra['flapped']} of {format_count(extra['files'], 'file')} flapped: reads went back to a former state "
            f"{format_count(metrics['flips'], 'time')}; the last stale one began {max(extra['low_s']):.3f} s after "
            "the write"
        )
    if extra["never"]:
        rows = zip(extra["low_s"], extra["consistent_s"], strict=True)
        longest_s = max(low_s for low_s, time_s in rows if time_s is None)
        failed = f"; {format_count(extra['unknown_reads'], 'read')} failed meanwhile" if extra["unknown_reads"] else ""
        notes.append(
            f"{extra['never']} of {extra['files']} files were not consistent after {deadline_s:g} s, as far as could "
            f"be seen: their times are lower bounds, the longest {longest_s:.3f} s{failed}"
        )
    return notes


def _parse_trial(plain: Mapping[str, Any]) -> Trial:
    reads = tuple(ObservedRead(start, end, observation) for start, end, observation in plain["reads"])
    return Trial(plain["number"], plain["write_s"], reads, plain["problem"], plain["is_settled"])


class _FailedWriteError(Exception):
    """A failed write on which the check depends."""


@dataclass(slots=True)
class _Probe:
    """The run of one check."""

    writer: Driver
    reader: Driver
    folder: str
    key: str
    size_bytes: int
    agent: int
    log: RecordLog
    budget: Budget
    stop: threading.Event
    deadline_s: float
    settle_s: float
    stopped: str = ""
    _counts: dict[int, int] = field(default_factory=dict)

    def run(self, check: str, files: int) -> dict[str, Any]:
        """Run a check on all files. Return plain data: the trials, and the reason if it ended early."""
        run_check: Callable[[int], Trial] = getattr(self, f"_{check}")

        def run_guarded(number: int) -> Trial | None:
            if self.stopped or self.stop.is_set():
                return None
            try:
                return run_check(number)
            except BudgetError as error:
                self.stopped = str(error)
                return None
            except _FailedWriteError as error:
                return Trial(number, 0.0, (), str(error))

        with ThreadPoolExecutor(_THREADS, "consistency") as pool:
            trials = [trial for trial in pool.map(run_guarded, range(files)) if trial is not None]
        return {
            "stopped": self.stopped,
            "trials": [
                {"number": trial.number, "write_s": trial.write_s, "problem": trial.problem,
                 "is_settled": trial.is_settled,
                 "reads": [[read.start_s, read.end_s, read.seen] for read in trial.reads]}
                for trial in trials
            ],
        }  # fmt: skip

    # -- the checks ---------------------------------------------------------------------------------

    def _read_after_write(self, number: int) -> Trial:
        return self._poll_until_settled(number, *self._upload(number, 0), lambda: self._look_at_content(number, 0))

    def _list_after_write(self, number: int) -> Trial:
        return self._poll_until_settled(number, *self._upload(number, 0), lambda: self._look_at_listing(number, 0))

    def _read_after_overwrite(self, number: int) -> Trial:
        self._upload(number, 0)
        self._wait_until_right(number, lambda: self._look_at_content(number, 0))
        return self._poll_until_settled(number, *self._upload(number, 1), lambda: self._look_at_content(number, 1))

    def _list_after_overwrite(self, number: int) -> Trial:
        self._upload(number, 0)
        self._wait_until_right(number, lambda: self._look_at_listing(number, 0))
        return self._poll_until_settled(number, *self._upload(number, 1), lambda: self._look_at_listing(number, 1))

    def _read_after_delete(self, number: int) -> Trial:
        self._upload(number, 0)
        self._wait_until_right(number, lambda: self._look_at_content(number, 0))
        return self._poll_until_settled(number, *self._delete(number), lambda: self._look_at_content(number, None))

    def _list_after_delete(self, number: int) -> Trial:
        self._upload(number, 0)
        self._wait_until_right(number, lambda: self._look_at_listing(number, 0))
        return self._poll_until_settled(number, *self._delete(number), lambda: self._look_at_listing(number, None))

    def _concurrent_overwrite(self, number: int) -> Trial:
        """Let several writers overwrite a file at once. Any of them may win, but the winner must not change."""
        self._upload(number, 0)
        self._wait_until_right(number, lambda: self._look_at_content(number, 0))
        versions = range(1, _WRITERS + 1)
        answered = dict(self._upload_at_once(number, versions))
        began_ns, ended_ns = min(start for start, _ in answered.values()), max(end for _, end in answered.values())
        last_start_ns = max(start for start, _ in answered.values())
        # A write answered before another one began is overwritten. A refused one may have arrived all the same.
        overwritten = {f"version {version}" for version, (_, end_ns) in answered.items() if end_ns < last_start_ns}
        overwritten.add("version 0")
        # A missing file, or one with content that no client wrote, may still become what it should be.
        reads, is_settled = self._poll(
            ended_ns, lambda: self._look_at_version(number, (0, *versions)),
            lambda observation: observation.startswith("version") and observation not in overwritten,
        )  # fmt: skip
        final = next((read.seen for read in reversed(reads) if not read.seen.startswith(UNKNOWN)), "")
        judged_reads = [
            ObservedRead(
                read.start_s, read.end_s,
                read.seen if read.seen.startswith(UNKNOWN)
                else "" if read.seen == final and final not in overwritten and final.startswith("version")
                else f"{read.seen}, overwritten" if read.seen in overwritten
                else read.seen,
            )
            for read in reads
        ]  # fmt: skip
        return Trial(number, (ended_ns - began_ns) / 1e9, tuple(judged_reads), is_settled=is_settled)

    def _repeated_write(self, number: int) -> Trial:
        """Let a client repeat an upload before the first attempt is answered. There must be one file then."""
        spans = [span for _, span in self._upload_at_once(number, (0, 0))]
        began_ns, ended_ns = min(start for start, _ in spans), max(end for _, end in spans)
        return self._poll_until_settled(number, began_ns, ended_ns, lambda: self._look_at_copies(number))

    # -- reading ------------------------------------------------------------------------------------

    def _poll_until_settled(self, number: int, began_ns: int, ended_ns: int, look: Callable[[], str]) -> Trial:
        """Read a file until it has settled, or until the deadline, and return the trial."""
        reads, is_settled = self._poll(ended_ns, look)
        return Trial(number, (ended_ns - began_ns) / 1e9, tuple(reads), is_settled=is_settled)

    def _wait_until_right(self, number: int, look: Callable[[], str]) -> None:
        """Wait until the initial file of a check has settled. Raises _FailedWriteError at the deadline."""
        if not self._poll(now_ns(), look)[1]:
            raise _FailedWriteError("the initial file did not settle in time")

    def _poll(
        self,
        since_ns: int,
        look: Callable[[], str],
        is_final: Callable[[str], bool] = lambda view: not view,
    ) -> tuple[list[ObservedRead], bool]:
        """Read again and again. Return the reads, and whether the file has settled to what ``is_final`` accepts."""
        reads, settling = list[ObservedRead](), Settling(self.settle_s, is_final)
        while not self.stop.is_set():
            start_ns = now_ns()
            wait_s = 0.0
            try:
                view = look()
            except CloudError as error:
                view = f"{UNKNOWN} {error.kind.value}"
                wait_s = min(error.retry_after_s or 0.1, _MAX_RETRY_WAIT_S)
            end_ns = now_ns()
            read = ObservedRead((start_ns - since_ns) / 1e9, (end_ns - since_ns) / 1e9, view)
            reads.append(read)
            settling.add(read)
            is_late = settling.stale_s > self.deadline_s or read.end_s > self.deadline_s + settling.needed_s
            if settling.is_settled or is_late:
                break
            pause_s = min(max(read.end_s - read.start_s, _PAUSE_S[0]), _PAUSE_S[1])
            sparing_s = _SLOWING_FACTOR * (read.start_s - settling.changed_s) if settling.is_right else 0.0
            self.stop.wait(max(wait_s, pause_s, sparing_s))
        return reads, settling.is_settled

    def _look_at_content(self, number: int, version: int | None) -> str:
        """Download a file. Return an empty text if it is that version (None: if it is gone), else a description."""
        downloaded = self._download(number, (0, 1))
        if version is None:
            return "" if downloaded is None else _STILL_THERE
        if downloaded is None:
            return _MISSING
        return "" if downloaded == version else _OTHER if downloaded < 0 else _OLD

    def _look_at_version(self, number: int, versions: Sequence[int]) -> str:
        downloaded = self._download(number, versions)
        return _MISSING if downloaded is None else _OTHER if downloaded < 0 else f"version {downloaded}"

    def _download(self, number: int, versions: Sequence[int]) -> int | None:
        """Download a file and return its version: -1 if it is none of ``versions``, and None if there is no file."""

        def download() -> int:
            data = b"".join(self.reader.get(self._file_path(number)))
            return next(
                (version for version in versions if data == _read_content(self._file_content(number, version))), -1
            )

        try:
            return int(self._record_operation(Verb.GET, number, self.reader, download, self.size_bytes))
        except CloudError as error:
            if error.kind is ErrorKind.NOT_FOUND:
                return None
            raise

    def _look_at_listing(self, number: int, version: int | None) -> str:
        """List the folder. Return an empty text if it shows that version (None: if the file is not shown)."""
        sizes = [entry.size_bytes for entry in self._list_files(number) if entry.path == self._file_path(number)]
        if version is None:
            return _STILL_THERE if sizes else ""
        if not sizes:
            return _MISSING
        if len(sizes) > 1:
            return f"listed {len(sizes)} times"
        return "" if sizes[0] == self._file_content(number, version).size_bytes else _OLD

    def _look_at_copies(self, number: int) -> str:
        """List the folder. Return an empty text if there is exactly one file of this number, under its own name."""
        stem = self._file_path(number).removesuffix(".bin")
        paths = [entry.path for entry in self._list_files(number) if entry.path.startswith(stem)]
        if not paths:
            return _MISSING
        return "" if paths == [self._file_path(number)] else f"{len(paths)} files"

    def _list_files(self, number: int) -> list[Any]:
        def list_folder() -> list[Any]:
            try:
                return [entry for entry in self.reader.list(self.folder) if not entry.is_folder]
            except CloudError as error:
                if error.kind is ErrorKind.NOT_FOUND:  # a folder of which nothing is visible yet
                    return []
                raise

        files: list[Any] = self._record_operation(Verb.LIST, number, self.reader, list_folder, 0)
        return files

    # -- writing ------------------------------------------------------------------------------------

    def _file_path(self, number: int) -> str:
        return f"{self.folder}/file-{number:05d}.bin"

    def _file_content(self, number: int, version: int) -> RandomContent:
        """Return the content of a version. Versions differ in size, so that a listing shows which one it is."""
        return RandomContent(f"{self.key}/{number}/{version}", self.size_bytes + version)

    def _upload(self, number: int, version: int) -> tuple[int, int]:
        """Upload a version, and retry when throttled. Return start and end of the attempt that succeeded."""
        return self._write_patiently(
            Verb.PUT, number, lambda: self.writer.put(self._file_path(number), self._file_content(number, version))
        )

    def _delete(self, number: int) -> tuple[int, int]:
        return self._write_patiently(Verb.DELETE, number, lambda: self.writer.delete(self._file_path(number)))

    def _upload_at_once(self, number: int, versions: Sequence[int]) -> list[tuple[int, tuple[int, int]]]:
        """Upload versions at once, without a retry. Return those that succeeded, each with its start and end.

        Raises _FailedWriteError if none succeeded, or if fewer than two can have met at the service.
        """
        with ThreadPoolExecutor(len(versions), "writer") as pool:
            attempts = list(pool.map(lambda version: self._try_upload(number, version), versions))
        refusals = [attempt for attempt in attempts if isinstance(attempt, ErrorKind)]
        kinds = ", ".join(sorted({kind.value for kind in refusals}))
        if len(refusals) == len(versions):
            raise _FailedWriteError(f"no writer succeeded ({kinds})")
        if sum(kind not in _MAY_HAVE_ARRIVED for kind in refusals) == len(versions) - 1:
            raise _FailedWriteError(f"all writers but one were refused ({kinds})")
        return [
            (version, attempt)
            for version, attempt in zip(versions, attempts, strict=True) if not isinstance(attempt, ErrorKind)
        ]  # fmt: skip

    def _try_upload(self, number: int, version: int) -> tuple[int, int] | ErrorKind:
        """Try an upload once. Return its start and end, or the reason if it failed."""
        begin_ns = now_ns()
        content = self._file_content(number, version)
        try:
            self._record_operation(
                Verb.PUT,
                number,
                self.writer,
                lambda: self.writer.put(self._file_path(number), content),
                content.size_bytes,
            )
        except CloudError as error:
            return error.kind
        return begin_ns, now_ns()

    def _write_patiently(self, verb: Verb, number: int, work: Callable[[], object]) -> tuple[int, int]:
        waited_s = 0.0
        while True:
            begin_ns = now_ns()
            try:
                self._record_operation(verb, number, self.writer, work, self.size_bytes if verb is Verb.PUT else 0)
            except CloudError as error:
                wait_s = min(error.retry_after_s or 0.1, _MAX_RETRY_WAIT_S)
                if error.kind is not ErrorKind.THROTTLED or waited_s > self.deadline_s or self.stop.wait(wait_s):
                    raise _FailedWriteError(f"{verb.value}: {error.kind.value}") from error
                waited_s += wait_s
            else:
                return begin_ns, now_ns()

    def _record_operation(
        self, verb: Verb, number: int, driver: Driver, work: Callable[[], Any], size_bytes: int
    ) -> Any:
        """Run one operation and record it. Raises CloudError and BudgetError."""
        self.budget.take(size_bytes)
        seq = self._counts[number] = self._counts.get(number, -1) + 1
        requests = driver.requests if isinstance(driver, Counting) else None
        before = requests() if requests else 0
        outcome, kind, detail = Outcome.OK, None, ""
        start_ns = now_ns()
        try:
            return work()
        except CloudError as error:
            outcome, kind, detail = outcome_of(error.kind), error.kind, error.detail
            raise
        finally:
            self.log.record(
                Op(verb, number, seq, self.agent, start_ns, start_ns, 0, now_ns(), size_bytes, outcome, kind,
                   detail=detail, requests=requests() - before if requests else None)
            )  # fmt: skip


def _read_content(content: Content) -> bytes:
    return b"".join(chunks(content))
