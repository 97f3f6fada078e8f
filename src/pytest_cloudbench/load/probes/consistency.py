"""What reads see after a write was answered: for new, overwritten and removed files, and for one with several writers.

What may live here: the writes and reads of each check, by two clients in one process and so on one clock: one writes,
the other, with connections of its own, reads again and again. ``judge.staleness`` says what the reads mean.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.drivers.base import Counting, Driver, Preparing
from pytest_cloudbench.judge.staleness import UNKNOWN, Glance, Settling, Trial, history_of, summarize_trials
from pytest_cloudbench.load.engine.engine import Budget, outcome_of
from pytest_cloudbench.load.messages import LoadShape
from pytest_cloudbench.model import BudgetError, CloudError, Content, ErrorKind, Op, Outcome, UsageError, Verb, chunks
from pytest_cloudbench.providers import connect
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.results.oplog import OpLog
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.workload.payload import Generator, RandomContent

if TYPE_CHECKING:
    from pytest_cloudbench.load.experiment import Experiment, Result

CHECKS = (
    "read_after_write", "list_after_write", "read_after_overwrite", "list_after_overwrite", "read_after_delete",
    "list_after_delete", "concurrent_overwrite", "repeated_write",
)  # fmt: skip
"""The checks, one per entry."""

SETTLE_S = 2.0
"""Reading goes on for so long without a stale read, at least, unless a test says otherwise."""

_NEEDS_OVERWRITES = frozenset({"read_after_overwrite", "list_after_overwrite", "concurrent_overwrite"})

_COLUMNS = (
    "files", "violation_rate", "stale_reads", "flips", "never", "consistency_p50", "consistency_max", "within_ms",
    "resolution_ms", "asked_every_ms",
)  # fmt: skip

_THREADS = 10
_WRITERS = 4
_PAUSE_S = (0.0005, 0.01)
_SPARING = 0.05
"""Once a file is right, reads become rarer: they wait this share of the time since the last change."""

_PATIENCE_S = 1.0
_OLD, _THERE, _MISSING, _OTHER = "old content", "still there", "not there", "content of no write"


def measure_consistency(
    experiment: Experiment, payload: Generator, check: str, files: int, *, deadline_s: float = 30.0,
    settle_s: float = SETTLE_S,
) -> Result:  # fmt: skip
    """Write files, read each again and again until it has settled, and make one entry.

    The first agent does it with two clients; the others wait.

    Args:
        experiment: the test's experiment.
        payload: its size is that of the files; versions of one file differ by a byte in size.
        check: one of ``CHECKS``.
        files: how many.
        deadline_s: a file that is stale for longer counts as never consistent: its time is a lower bound.
        settle_s: reading goes on until nothing stale was seen for as long as the file was stale, and for this at least.
            So it ends by ``deadline_s`` plus the longer of the two.

    Raises UsageError for a check that is unknown, or that needs what the provider's driver does not offer, and
    otherwise what ``Experiment.run`` raises.
    """
    if check not in CHECKS or files < 1 or deadline_s <= 0 or settle_s <= 0:
        given = f"check={check!r}, files={files}, deadline_s={deadline_s:g}, settle_s={settle_s:g}"
        raise UsageError(f"measure_consistency: {given}; expected one of {', '.join(CHECKS)}, and numbers above 0")
    if check in _NEEDS_OVERWRITES and not experiment.provider.driver.capabilities.overwrites:
        raise UsageError(f"measure_consistency: {check}: this provider's driver does not overwrite")
    agent, facts = experiment.agent, experiment.facts
    with experiment.scratch(payload) as (run, on):
        load = LoadShape(files, files * payload.size_bytes)
        with experiment.logged(run, load) as log:

            def work() -> dict[str, Any]:
                given = agent.ask("provide", experiment.provider.spec)
                reader = connect(Provided.from_plain(given))
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

            told = agent.once(f"consistency:{run}", work)
    trials = [_trial_of(each) for each in told["trials"]]
    return _concluded(experiment, check, files, trials, told["stopped"], deadline_s, settle_s)


def _concluded(
    experiment: Experiment, check: str, files: int, trials: Sequence[Trial], stopped: str, deadline_s: float,
    settle_s: float,
) -> Result:  # fmt: skip
    summary = summarize_trials(trials)
    extra, metrics = summary["extra"], summary["metrics"]
    times_s = [each for each in extra["consistent_s"] if each is not None]
    doubts = [stopped] if stopped else []
    if not stopped and extra["files"] < files:
        why = ", ".join(f"{problem} {count}" for problem, count in sorted(extra["problems"].items()))
        doubts.append(f"{files - extra['files']} of {files} files were not judged: {why or 'nothing was read'}")
    notes = [f"{check}: {note}" for note in _notes(metrics, extra, deadline_s)]
    if history := history_of(trials):
        lines = "".join(f"{json.dumps(each)}\n" for each in history)
        seen = ", ".join(f"{what} {count} x" for what, count in sorted(extra["seen"].items()))
        text = f"{check} on {experiment.provider.spec}: {extra['violated']} of {extra['files']} files ({seen})"
        experiment.report(text, f"violations-{check}.jsonl", lines)
    settings = {"check": check, "deadline_s": deadline_s, "settle_s": settle_s}
    return experiment.conclude(
        metrics, times_s or [deadline_s], columns=_COLUMNS, extra={**extra, **settings},
        stats_of="time until consistent: from the answer to the last write to the first read after which none was stale"
        if times_s else "the deadline: no time is known",
        doubts=doubts, notes=notes,
        spread={"consistency_p50": times_s, "consistency_max": times_s,
                "violation_rate": [float(count > 0) for count in extra["stale_per_file"]]},
    )  # fmt: skip


def _notes(metrics: Mapping[str, Any], extra: Mapping[str, Any], deadline_s: float) -> list[str]:
    """Return what the numbers mean, in sentences."""
    notes = []
    if extra["flapped"]:
        notes.append(
            f"{extra['flapped']} of {extra['files']} files flapped: reads went back to a former state "
            f"{metrics['flips']} times; the last stale one began {max(extra['low_s']):.3f} s after the write"
        )
    if extra["never"]:
        rows = zip(extra["low_s"], extra["consistent_s"], strict=True)
        longest_s = max(low_s for low_s, time_s in rows if time_s is None)
        failed = f"; {extra['unknown_reads']} reads failed meanwhile" if extra["unknown_reads"] else ""
        notes.append(
            f"{extra['never']} of {extra['files']} files were not consistent after {deadline_s:g} s, as far as could "
            f"be seen: their times are lower bounds, the longest {longest_s:.3f} s{failed}"
        )
    return notes


def _trial_of(plain: Mapping[str, Any]) -> Trial:
    reads = tuple(Glance(start, end, seen) for start, end, seen in plain["reads"])
    return Trial(plain["number"], plain["write_s"], reads, plain["problem"], plain["is_settled"])


class _FailedWriteError(Exception):
    """A write that the check depends on did not succeed."""


@dataclass(slots=True)
class _Probe:
    """One check at work."""

    writer: Driver
    reader: Driver
    folder: str
    key: str
    size_bytes: int
    agent: int
    log: OpLog
    budget: Budget
    stop: threading.Event
    deadline_s: float
    settle_s: float
    stopped: str = ""
    _counts: dict[int, int] = field(default_factory=dict)

    def run(self, check: str, files: int) -> dict[str, Any]:
        """Return plain data: the trials, and why it ended early."""
        one: Callable[[int], Trial] = getattr(self, f"_{check}")

        def guarded(number: int) -> Trial | None:
            if self.stopped or self.stop.is_set():
                return None
            try:
                return one(number)
            except BudgetError as error:
                self.stopped = str(error)
                return None
            except _FailedWriteError as error:
                return Trial(number, 0.0, (), str(error))

        with ThreadPoolExecutor(_THREADS, "consistency") as pool:
            trials = [trial for trial in pool.map(guarded, range(files)) if trial is not None]
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
        return self._asked(number, *self._put(number, 0), lambda: self._seen(number, 0))

    def _list_after_write(self, number: int) -> Trial:
        return self._asked(number, *self._put(number, 0), lambda: self._listed(number, 0))

    def _read_after_overwrite(self, number: int) -> Trial:
        self._put(number, 0)
        self._until_right(number, lambda: self._seen(number, 0))
        return self._asked(number, *self._put(number, 1), lambda: self._seen(number, 1))

    def _list_after_overwrite(self, number: int) -> Trial:
        self._put(number, 0)
        self._until_right(number, lambda: self._listed(number, 0))
        return self._asked(number, *self._put(number, 1), lambda: self._listed(number, 1))

    def _read_after_delete(self, number: int) -> Trial:
        self._put(number, 0)
        self._until_right(number, lambda: self._seen(number, 0))
        return self._asked(number, *self._delete(number), lambda: self._seen(number, None))

    def _list_after_delete(self, number: int) -> Trial:
        self._put(number, 0)
        self._until_right(number, lambda: self._listed(number, 0))
        return self._asked(number, *self._delete(number), lambda: self._listed(number, None))

    def _concurrent_overwrite(self, number: int) -> Trial:
        """Several writers at once. Any of them may win, but then it has won."""
        self._put(number, 0)
        self._until_right(number, lambda: self._seen(number, 0))
        versions = range(1, _WRITERS + 1)
        with ThreadPoolExecutor(_WRITERS, "writer") as pool:
            writes = [pool.submit(self._try_put, number, version) for version in versions]
            spans = {version: write.result() for version, write in zip(versions, writes, strict=True)}
        done = {version: span for version, span in spans.items() if span is not None}
        if not done:
            raise _FailedWriteError("no writer succeeded")
        began_ns, ended_ns = min(start for start, _ in done.values()), max(end for _, end in done.values())
        last_start_ns = max(start for start, _ in done.values())
        # A write answered before another one began is overwritten; a refused one may have arrived all the same.
        over = {f"version {version}" for version, (_, end_ns) in done.items() if end_ns < last_start_ns} | {"version 0"}
        # A missing file, or one with content that no client wrote, may still become what it should be.
        reads, is_settled = self._polled(
            ended_ns, lambda: self._version(number, (0, *versions)),
            lambda seen: seen.startswith("version") and seen not in over,
        )  # fmt: skip
        final = next((read.seen for read in reversed(reads) if not read.seen.startswith(UNKNOWN)), "")
        judged = [
            Glance(
                read.start_s, read.end_s,
                read.seen if read.seen.startswith(UNKNOWN)
                else "" if read.seen == final and final not in over and final.startswith("version")
                else f"{read.seen}, overwritten" if read.seen in over
                else read.seen,
            )
            for read in reads
        ]  # fmt: skip
        return Trial(number, (ended_ns - began_ns) / 1e9, tuple(judged), is_settled=is_settled)

    def _repeated_write(self, number: int) -> Trial:
        """A client that repeats an upload before the first attempt is answered: there must be one file."""
        with ThreadPoolExecutor(2, "writer") as pool:
            attempts = [pool.submit(self._try_put, number, 0) for _ in range(2)]
            spans = [span for span in (attempt.result() for attempt in attempts) if span is not None]
        if not spans:
            raise _FailedWriteError("neither attempt succeeded")
        began_ns, ended_ns = min(start for start, _ in spans), max(end for _, end in spans)
        return self._asked(number, began_ns, ended_ns, lambda: self._copies(number))

    # -- reading ------------------------------------------------------------------------------------

    def _asked(self, number: int, began_ns: int, ended_ns: int, look: Callable[[], str]) -> Trial:
        """Read until the file has settled, or until the deadline."""
        reads, is_settled = self._polled(ended_ns, look)
        return Trial(number, (ended_ns - began_ns) / 1e9, tuple(reads), is_settled=is_settled)

    def _until_right(self, number: int, look: Callable[[], str]) -> None:
        """Wait until what the check begins with has settled. Raises _FailedWriteError at the deadline."""
        if not self._polled(now_ns(), look)[1]:
            raise _FailedWriteError("the initial file did not settle in time")

    def _polled(
        self, since_ns: int, look: Callable[[], str], is_final: Callable[[str], bool] = lambda seen: not seen
    ) -> tuple[list[Glance], bool]:
        """Read again and again. Return the reads, and whether the file has settled to what ``is_final`` accepts."""
        reads, settling = list[Glance](), Settling(self.settle_s, is_final)
        while not self.stop.is_set():
            start_ns = now_ns()
            wait_s = 0.0
            try:
                seen = look()
            except CloudError as error:
                seen, wait_s = f"{UNKNOWN} {error.kind.value}", min(error.retry_after_s or 0.1, _PATIENCE_S)
            end_ns = now_ns()
            read = Glance((start_ns - since_ns) / 1e9, (end_ns - since_ns) / 1e9, seen)
            reads.append(read)
            settling.add(read)
            is_late = settling.stale_s > self.deadline_s or read.end_s > self.deadline_s + settling.needed_s
            if settling.is_settled or is_late:
                break
            pause_s = min(max(read.end_s - read.start_s, _PAUSE_S[0]), _PAUSE_S[1])
            sparing_s = _SPARING * (read.start_s - settling.changed_s) if settling.is_right else 0.0
            self.stop.wait(max(wait_s, pause_s, sparing_s))
        return reads, settling.is_settled

    def _seen(self, number: int, version: int | None) -> str:
        """Download a file. Return an empty text if it is that version (None: if it is gone), else what was seen."""
        found = self._download(number, (0, 1))
        if version is None:
            return "" if found is None else _THERE
        if found is None:
            return _MISSING
        return "" if found == version else _OTHER if found < 0 else _OLD

    def _version(self, number: int, versions: Sequence[int]) -> str:
        found = self._download(number, versions)
        return _MISSING if found is None else _OTHER if found < 0 else f"version {found}"

    def _download(self, number: int, versions: Sequence[int]) -> int | None:
        """Return which of the versions a download gives, -1 if none of them, and None if there is no file."""

        def read() -> int:
            data = b"".join(self.reader.get(self._path(number)))
            return next((version for version in versions if data == _bytes(self._content(number, version))), -1)

        try:
            return int(self._recorded(Verb.GET, number, self.reader, read, self.size_bytes))
        except CloudError as error:
            if error.kind is ErrorKind.NOT_FOUND:
                return None
            raise

    def _listed(self, number: int, version: int | None) -> str:
        """List the folder. Return an empty text if it shows that version (None: if the file is not shown)."""
        sizes = [entry.size_bytes for entry in self._listing(number) if entry.path == self._path(number)]
        if version is None:
            return _THERE if sizes else ""
        if not sizes:
            return _MISSING
        if len(sizes) > 1:
            return f"listed {len(sizes)} times"
        return "" if sizes[0] == self._content(number, version).size_bytes else _OLD

    def _copies(self, number: int) -> str:
        """List the folder. Return an empty text if there is exactly one file of this number, under its own name."""
        stem = self._path(number).removesuffix(".bin")
        found = [entry.path for entry in self._listing(number) if entry.path.startswith(stem)]
        if not found:
            return _MISSING
        return "" if found == [self._path(number)] else f"{len(found)} files"

    def _listing(self, number: int) -> list[Any]:
        def read() -> list[Any]:
            try:
                return [entry for entry in self.reader.list(self.folder) if not entry.is_folder]
            except CloudError as error:
                if error.kind is ErrorKind.NOT_FOUND:  # a folder of which nothing is visible yet
                    return []
                raise

        found: list[Any] = self._recorded(Verb.LIST, number, self.reader, read, 0)
        return found

    # -- writing ------------------------------------------------------------------------------------

    def _path(self, number: int) -> str:
        return f"{self.folder}/file-{number:05d}.bin"

    def _content(self, number: int, version: int) -> RandomContent:
        """Versions differ in size, so that a listing tells them apart."""
        return RandomContent(f"{self.key}/{number}/{version}", self.size_bytes + version)

    def _put(self, number: int, version: int) -> tuple[int, int]:
        """Upload, and wait if the provider asks for it. Return start and end of the attempt that succeeded."""
        return self._written(
            Verb.PUT, number, lambda: self.writer.put(self._path(number), self._content(number, version))
        )

    def _delete(self, number: int) -> tuple[int, int]:
        return self._written(Verb.DELETE, number, lambda: self.writer.delete(self._path(number)))

    def _try_put(self, number: int, version: int) -> tuple[int, int] | None:
        """Upload once. Return its start and end, or None if it failed."""
        begin_ns = now_ns()
        content = self._content(number, version)
        try:
            self._recorded(
                Verb.PUT, number, self.writer, lambda: self.writer.put(self._path(number), content), content.size_bytes
            )
        except CloudError:
            return None
        return begin_ns, now_ns()

    def _written(self, verb: Verb, number: int, work: Callable[[], object]) -> tuple[int, int]:
        waited_s = 0.0
        while True:
            begin_ns = now_ns()
            try:
                self._recorded(verb, number, self.writer, work, self.size_bytes if verb is Verb.PUT else 0)
            except CloudError as error:
                wait_s = min(error.retry_after_s or 0.1, _PATIENCE_S)
                if error.kind is not ErrorKind.THROTTLED or waited_s > self.deadline_s or self.stop.wait(wait_s):
                    raise _FailedWriteError(f"{verb.value}: {error.kind.value}") from error
                waited_s += wait_s
            else:
                return begin_ns, now_ns()

    def _recorded(self, verb: Verb, number: int, driver: Driver, work: Callable[[], Any], size_bytes: int) -> Any:
        """Do one operation and record it. Raises CloudError and BudgetError."""
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


def _bytes(content: Content) -> bytes:
    return b"".join(chunks(content))
