"""The ``experiment`` fixture, on every agent.

What may live here: one run from its empty folder to its merged result, and conclusions from several runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Unpack

from pytest_cloudbench.drivers.base import Counting
from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.run import RunFacts, slug
from pytest_cloudbench.judge.expect import Expectation
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.judge.ranking import group_values
from pytest_cloudbench.load.engine.engine import Budget, Engine
from pytest_cloudbench.load.engine.limits import available_bytes
from pytest_cloudbench.load.engine.memory import check_memory
from pytest_cloudbench.load.engine.operations import (
    Deal,
    FileOperation,
    Upload,
    agent_budget,
    make_load_shape,
    make_task,
    sample_files,
    written_files,
)
from pytest_cloudbench.load.engine.pool import start_time_s
from pytest_cloudbench.load.engine.stopping import RunWatch
from pytest_cloudbench.load.engine.unmeasured import Unmeasured
from pytest_cloudbench.load.gate.verdicts import ExpectationBroken, ExpectationUnknown, entry_properties, failing_gates
from pytest_cloudbench.load.messages import (
    UNKNOWN_LOAD,
    Conclusion,
    HandedIn,
    LoadShape,
    LogMoved,
    LogPiece,
    Merged,
    ProgressReport,
    Start,
    Started,
    Subject,
    TextReport,
    Turn,
    plain_numbers,
)
from pytest_cloudbench.load.parts import FAILURE_KEYS, WORK_KEYS, combine_losses, combine_runs
from pytest_cloudbench.load.request import EntryOptions, Files, Load, RunKeywords, parse_request
from pytest_cloudbench.model import (
    BudgetError,
    CloudError,
    FleetError,
    ServiceError,
    UnknownMetric,
    UsageError,
    Verb,
    did_you_mean,
)
from pytest_cloudbench.providers import Provider
from pytest_cloudbench.results.entry_names import Labels, entry_names
from pytest_cloudbench.results.oplog import OpLog, RecordLog, SentLog
from pytest_cloudbench.results.owner import owner_text
from pytest_cloudbench.support.wording import format_count, format_counts
from pytest_cloudbench.workload.arrival import ThinkTime, Threads, plan
from pytest_cloudbench.workload.payload import Generator, fresh

_RUNS_PER_REPETITION = 1000
"""Runs of a repeated test are numbered from the next thousand on, so that their files and records are new ones."""

_SAMPLES_PER_REPORT = 64
"""The number of response times that all agents together report at a time, for the live line."""

_NO_ENTRY = EntryOptions(store=False)


@dataclass(frozen=True, slots=True)
class Result:
    """The merged result of one ``experiment.run``, or of ``experiment.conclude``, the same on every agent.

    Attributes:
        info: every metric by name (see docs/method.md), and the values that a reader needs to trust it.
        judgements: (status, line) of each expectation and gate.
        doubts: reasons why the numbers may be wrong, empty if none is known.
        notes: further remarks of the controller.
        ops: with ``detail``, columns of all operations in the order of their start: ``sensor``, ``seq``, ``outcome``,
            ``kind`` (texts), ``start_s`` from the run's start, ``service_s``, ``response_s``, ``first_byte_s`` (None
            if unknown).
        files: with ``keep``, the files that the run has left on the provider for the next one.
    """

    info: Mapping[str, Any]
    judgements: tuple[tuple[str, str], ...] = ()
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ops: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    files: Files | None = None
    tried: bytes | None = field(default=None, repr=False)

    def __getitem__(self, metric: str) -> Any:
        """Return a metric or extra value, None if it is unknown. Raises UnknownMetric if the run has no such value."""
        if metric not in self.info:
            hint = did_you_mean(metric, [*METRICS.keys() & self.info.keys(), *self.info])
            raise UnknownMetric(f"{metric}: this run has no such metric{hint or '; docs/method.md lists all'}")
        return self.info[metric]

    @property
    def ok_s(self) -> list[float]:
        """The service times of operations that succeeded, in the order of their start. Needs ``detail``."""
        rows = zip(self.ops["service_s"], self.ops["outcome"], strict=True)
        return [service_s for service_s, outcome in rows if outcome == "ok"]

    def check(self) -> None:
        """Assert this experiment's expectations and gates. Call it last.

        Raises ExpectationBroken when a claim is broken (or a gate cannot be judged), and ExpectationUnknown
        when an expectation cannot be judged. Without a recorded expectation it passes.
        """
        gates = failing_gates(self.judgements)
        if bad := [line for status, line in self.judgements if status == "broken" or line in gates]:
            raise ExpectationBroken("\n".join(bad))
        unknown = [line for status, line in self.judgements if status == "unknown"]
        if unknown:
            raise ExpectationUnknown("\n".join(unknown))


@dataclass(frozen=True, slots=True)
class _Part:
    """This agent's part of one run, while it lasts."""

    name: str
    load: Load
    task: Upload | FileOperation
    files: Files
    deal: Deal
    request: Start
    budget: Budget
    is_prepared: bool


@dataclass(slots=True, repr=False)
class Experiment:
    """An experiment, which runs operations on all agents at the same time and merges their results.

    Attributes:
        agent: this process in the fleet.
        provider: the provider that is measured.
        facts: the run's facts.
        test: the test function's name, to which expectations can be limited.
        nodeid, name, params: pytest's names for the item.
        unmet: collects the lines of gates that must fail the item, whatever the test does with its results.
        properties: collects the item's properties for machine-readable reports (``user_properties``).
        turn: the block of a comparison of two sides, None for an ordinary test.
        margins: margins of the regression gate by metric, from the item's marks.
        suite: the declarations of the item's suite about its entries, as plain data.
        stored_name: the name under which the item's runs are stored. If it is empty, they have its node id.
    """

    agent: Agent
    provider: Provider
    facts: RunFacts
    test: str
    nodeid: str
    name: str
    params: Mapping[str, Any]
    unmet: list[str] = field(default_factory=list)
    properties: list[tuple[str, object]] = field(default_factory=list)
    turn: Turn | None = None
    margins: Mapping[str, float | None] = field(default_factory=dict)
    suite: Mapping[str, Any] = field(default_factory=dict)
    stored_name: str = ""
    _runs: int = 0
    _meetings: int = 0
    _labels: Labels = field(default_factory=Labels)
    _kept_folders: list[str] = field(default_factory=list)
    _parts: list[Result] = field(default_factory=list)
    _unmeasured: Unmeasured = field(init=False)

    def __post_init__(self) -> None:
        self._unmeasured = Unmeasured(self.agent, self.provider, self.facts)
        self._runs = _RUNS_PER_REPETITION * (self.agent.again or 0)

    def __repr__(self) -> str:  # pytest shows it above each assertion that fails
        return f"<experiment of {self.name}>"

    def run(
        self, load: Load | Generator | None = None, entry: EntryOptions | None = None, **keywords: Unpack[RunKeywords]
    ) -> Result:
        """Upload new files, or run another operation on existing files: one file per operation.

        Args:
            load: the operations and their due times. A payload and keywords make a ``Load``, too.
            entry: options for its entry.
            keywords: fields of ``Load`` and of ``EntryOptions``, which replace those of the two above.

        Raises UsageError for conflicting arguments or an operation that the provider lacks, FleetError if the
        controller is gone, CloudError if the folder cannot be made, filled or listed, ServiceError if a service died.
        """
        load, entry = parse_request(load, entry, keywords)
        self._runs += 1
        if entry.store:
            entry = replace(entry, label=self._labels.new(entry.label))
        run = self._prepare_part(load, replace(entry, gate=self._merge_margins(entry.gate)))
        result = self._run_in_folder(run)
        shared = {key: result[key] for key in (*WORK_KEYS, *FAILURE_KEYS) if key in result.info}
        shared["is_entry"] = entry.store
        self._parts.append(Result(shared, doubts=result.doubts, notes=result.notes))  # a long series stays small
        return result

    def conclude(
        self, metrics: Mapping[str, Any], rounds_s: Sequence[float], *, stats_of: str,
        of: Sequence[Result] | None = None, columns: Sequence[str] = (), label: str = "",
        extra: Mapping[str, Any] | None = None, published: Mapping[str, Any] | None = None,
        doubts: Sequence[str] = (), notes: Sequence[str] = (), expect: Sequence[Expectation] = (),
        spread: Mapping[str, Sequence[float]] | None = None, gate: Mapping[str, Any] | None = None,
    ) -> Result:  # fmt: skip
        """Make one entry from the results of several runs with ``store=False``, and judge it.

        The entry has the doubts, notes and record files of those runs, and the share of files that they lost silently
        or found corrupt, together with runs before them that have no entry yet. All agents call this with the same
        arguments, because conclusions are pure functions of merged results.

        Args:
            metrics: values by name. Expectations and gates can name the metrics of this package, and those that the
                suite declares. None means unknown, True is 1.
            rounds_s: the durations that pytest-benchmark compares, at least one.
            stats_of: a description of these durations.
            of: the runs that it combines. None for all runs that no conclusion has used yet.
            columns: names of metrics, or of values in ``extra``, for the table at the end of the run.
                If there are none, it shows all metrics.
            extra: further values for the entry (plain data), such as every level that was tried.
            label: names the entry if a test makes several.
            published: figures to show beside the measured ones, with their ``source``.
            doubts: reasons why the numbers may be wrong, besides the doubts of the runs.
            notes: other remarks to show with the numbers, besides the notes of the runs.
            expect: expectations besides those that are recorded in a file.
            gate: see ``run``.
            spread: maps a metric to its value in each repeat, in order. Providers can be distinguished with five
                repeats or more.
        """
        self._runs += 1
        label = self._labels.new(label)
        parts = self._parts if of is None else of
        concluded_files = {part.info.get("ops_file") for part in parts}
        is_combined = [part.info.get("ops_file") in concluded_files for part in self._parts]
        before = self._parts[: is_combined.index(True) if True in is_combined else None]
        self._parts = [part for part, combined in zip(self._parts, is_combined, strict=True) if not combined]
        all_doubts = [*doubts, *(doubt for part in parts for doubt in part.doubts)]
        all_notes = [*notes, *(note for part in parts for note in part.notes)]
        run, runs = self._run_name(), [part.info for part in parts]
        losses = combine_losses([*runs, *(part.info for part in before if not part.info.get("is_entry"))])
        if self.turn is not None:  # what neither side has would be one more metric to await
            losses = {name: share for name, share in losses.items() if share}
        entry = EntryOptions(
            label, extra=extra or {}, notes=tuple(dict.fromkeys(all_notes)), published=published or {},
            expect=tuple(expect), gate=self._merge_margins(gate),
        )  # fmt: skip
        conclusion = Conclusion(
            self.make_subject(run, label), entry, plain_numbers(metrics), tuple(rounds_s), stats_of, tuple(columns),
            tuple(dict.fromkeys(all_doubts)), ops=sum(part["ops"] for part in parts),
            loop=parts[-1]["loop"] if parts else None, own=combine_runs(runs), losses=losses,
            ops_files=tuple(part["ops_file"] for part in parts if "ops_file" in part.info),
            spread={name: group_values(values, median) or list(values) for name, values in (spread or {}).items()},
        )  # fmt: skip
        return self._take_result(self.agent.gather(f"conclude:{run}", conclusion), label)

    @contextmanager
    def scratch(self, payload: Generator) -> Iterator[tuple[str, Files]]:
        """Make a folder on the provider for work outside ``run``: on a fresh emulator, or journaled on a real service.

        Yield the name of this run, and the files to write into the folder, which is removed at the end. All agents
        enter and leave it together. Raises CloudError, FleetError and ServiceError like ``run``.
        """
        self._runs += 1
        name = self._run_name()
        folder = f"/cloudbench-{self.facts.run_id}/{slug(name)}"
        self._ask_consent(name, Start(self.make_subject(name, "", stores=False), UNKNOWN_LOAD, _NO_ENTRY))
        try:
            self.agent.once(
                f"folder:{name}",
                lambda: self._unmeasured.make_folder(folder, mkdir=True, is_fresh=not self._kept_folders),
            )
            try:
                self._unmeasured.prepare_driver(name, folder)
                yield name, Files(folder, fresh(payload, self._runs) if self._runs > 1 else payload)
            finally:
                if not self.agent.stop.is_set():
                    self.agent.once(f"clean:{name}", lambda: self._unmeasured.remove_folder(folder))
        except (CloudError, FleetError) as error:
            self._raise_if_service_died(error)
            raise

    @contextmanager
    def logged(self, run: str, load: LoadShape) -> Iterator[RecordLog]:
        """Yield a log for this agent's work in ``scratch``. Its records become a part of the next conclusion.

        ``load`` is the plan of that work. All agents enter and leave together.
        """
        self.agent.gather(f"start:{run}", Start(self.make_subject(run, "", stores=False), load, _NO_ENTRY))
        with _open_log(self.agent, self.facts, self.nodeid, run) as log:
            yield log
        result = self._hand_in_log(run, log, "", stopped="", verified=False)
        # Errors are left out, because failures in ``scratch`` are part of the method.
        shared = {key: result[key] for key in WORK_KEYS if key in result.info}
        self._parts.append(replace(result, info=shared))

    @contextmanager
    def elsewhere(self, provider: Provider) -> Iterator[None]:
        """Direct the runs of the block to another provider. Files that they keep there are removed at the end."""
        former = self.provider, self._unmeasured, self._kept_folders
        self.provider, self._unmeasured, self._kept_folders = provider, Unmeasured(self.agent, provider, self.facts), []
        try:
            yield
        finally:
            self.close()
            self.provider, self._unmeasured, self._kept_folders = former

    def remove(self, files: Files) -> bool:
        """Remove a run's kept files now instead of at the end of the test. If that fails, they are removed then.

        Return whether they are removed. Raises UsageError for files that no run of this test kept.
        """
        if files.folder not in self._kept_folders:
            raise UsageError(
                f"experiment.remove: {files.folder} was not kept by a run of this test, or has been removed"
            )
        remove = partial(self._unmeasured.try_remove_folder, files.folder)
        is_removed = bool(self.agent.once(self._new_meeting(f"remove:{files.folder}"), remove))
        if is_removed:
            self._kept_folders.remove(files.folder)
        return is_removed

    def report(self, text: str, file: str = "", content: str = "") -> None:
        """Show a text below the tables at the end. All agents call this with the same arguments.

        Args:
            text: some lines.
            file: the name of a file to keep in ``folder``. Its path is shown after the text.
            content: the file's content.

        A test of two sides (``--cloudbench-versus``) shows no text. Raises FleetError if the file cannot be written.
        """
        if self.turn is not None:
            return  # one block does not speak for both sides
        message = TextReport(text, str(self.folder / file) if file else "", content)
        self.agent.once(self._new_meeting(f"report:{self._run_name()}"), lambda: self.agent.ask("report", message))

    @property
    def folder(self) -> Path:
        """The folder for files about this test, next to its records on the controller. It may not exist yet."""
        return Path(self.facts.results) / slug(self.nodeid)

    def close(self) -> None:
        """Remove the files that runs have kept. The fixture calls this."""
        folders, self._kept_folders = self._kept_folders, []
        for folder in folders:
            if not self.agent.stop.is_set():
                self.agent.once(f"clean:{folder}", partial(self._unmeasured.remove_folder, folder))

    def _new_meeting(self, name: str) -> str:
        """Return a name that no other meeting of this test has, because the answer to an old name is the old one."""
        self._meetings += 1
        return f"{name}, {self._meetings}"

    def _merge_margins(self, own_margins: Mapping[str, Any] | None) -> dict[str, float | None]:
        """Return the item's margins, with the entry's own ones in place of some of them. Raises UsageError."""
        if not own_margins:
            return dict(self.margins)
        from pytest_cloudbench.judge.watched import merge_margins, parse_margins

        return merge_margins(self.margins, parse_margins(own_margins, f"{self.nodeid}: gate"))

    # -- one run ----------------------------------------------------------------------------------

    def _prepare_part(self, load: Load, entry: EntryOptions) -> _Part:
        """Prepare this agent's part of a run. Raises UsageError."""
        name, provider = self._run_name(), self.provider
        files, deal = self._plan(load, name)
        prepares = load.on is None and load.operation is not Verb.PUT
        request = Start(
            self.make_subject(name, entry.label, stores=entry.store), make_load_shape(load, deal, files, prepares),
            entry, addresses=provider.addresses,
        )  # fmt: skip
        work = deal.traced_work(self.agent.index, self.agent.count)
        task = make_task(provider.driver, load.operation, files, work.targets if work else {})
        agent, bounds = (self.agent.index, self.agent.count), (self.facts.max_ops, self.facts.max_bytes)
        budget = agent_budget(deal, files.payload, prepares, agent, bounds)
        return _Part(name, load, task, files, deal, request, budget, prepares)

    def _plan(self, load: Load, name: str) -> tuple[Files, Deal]:
        """Return the files of a run, and how its operations are dealt out. Raises UsageError."""
        if load.on is None:
            assert load.payload is not None  # see Load.check
            payload = fresh(load.payload, self._runs) if self._runs > 1 else load.payload
            files = Files(f"/cloudbench-{self.facts.run_id}/{slug(name)}", payload, named=load.names)
            deal = Deal.from_load(load, None, self.facts.seed)
        else:
            files = load.on.in_turn() if load.in_turn else load.on
            deal = Deal.from_load(
                load, sample_files(load.on, load.sample, f"{self.facts.seed}/sample/{name}"), self.facts.seed
            )
        check_memory(deal, lambda: self.agent.once(f"room:{name}", available_bytes))
        return files, deal

    def _run_in_folder(self, run: _Part) -> Result:
        """Run a load in its folder, which is made and removed here if it is the run's own."""
        folder, is_new, mkdir = run.files.folder, run.load.on is None, run.load.mkdir
        self._ask_consent(run.name, run.request.replace(planned_s=run.deal.shortest_s() / self.facts.time_scale))
        try:
            if is_new:
                is_fresh = not self._kept_folders and (mkdir or self._runs % _RUNS_PER_REPETITION == 1)
                self.agent.once(
                    f"folder:{run.name}", lambda: self._unmeasured.make_folder(folder, mkdir=mkdir, is_fresh=is_fresh)
                )
            try:
                result = self._measure(run)
                if run.load.keep:
                    if is_new:
                        self._kept_folders.append(folder)
                    return replace(result, files=written_files(run.files, run.deal, result.tried))
                return result
            finally:
                if is_new and folder not in self._kept_folders and not self.agent.stop.is_set():
                    self.agent.once(f"clean:{run.name}", lambda: self._unmeasured.remove_folder(folder))
        except (CloudError, FleetError) as error:
            self._raise_if_service_died(error)
            raise

    def _ask_consent(self, name: str, request: Start) -> None:
        """Let the controller announce a run whose files outlive it, and ask the user. Raises FleetError on a no."""
        if self.provider.is_kept:
            self.agent.once(f"agree:{name}", lambda: self.agent.ask("agree", request))

    def _raise_if_service_died(self, error: Exception) -> None:
        """Raise ServiceError if a service of the provider has died, because that explains the error."""
        why = "" if self.agent.stop.is_set() else self.agent.ask("died", self.provider.spec)
        if why:
            raise ServiceError(f"{why}; the records of this run are kept; run the test again") from error

    def _measure(self, run: _Part) -> Result:
        """Run this agent's share of a load, hand in its log, and return the result of all agents."""
        agent, deal = self.agent, run.deal
        if run.load.mkdir or run.load.on is not None:
            self._unmeasured.prepare_driver(run.name, run.files.folder)
        stopped = ""
        if run.is_prepared:
            members = deal.agent_files(agent.index, agent.count)
            stopped = self._unmeasured.upload(run.name, run.files, members, run.budget)
        planned_s = deal.planned_s() / self.facts.time_scale
        lists = run.load.verify and run.task.verb in (Verb.PUT, Verb.DELETE)

        def report_progress(
            done: int, throttled: int, failed: int, sample_s: Sequence[float], late_s: float | None
        ) -> None:
            in_flight = engine.in_flight if engine is not None else 0
            agent.tell("progress", ProgressReport(done, throttled, failed, tuple(sample_s), late_s, in_flight))
            if watch is not None:
                watch.report()

        engine: Engine | None = None
        watch: RunWatch | None = None
        with _open_log(agent, self.facts, self.nodeid, run.name, report_progress) as log:
            log.samples = max(1, _SAMPLES_PER_REPORT // agent.count)
            driver = self.provider.driver
            requests = driver.requests if isinstance(driver, Counting) else None
            engine = Engine(run.task, log.record, agent.index, agent.stop, run.budget, agent.agents_here, requests)
            if run.load.until is not None:
                watch = RunWatch(agent, run.name, run.load.until, log.record)
                engine.record = watch.record
                watch.end_engine(engine)
            begun_cpu_s = time.process_time()
            stopped = self._apply_load(run, engine, planned_s, stopped, watch)
            cpu_s = engine.measured_cpu_s() if run.load.warm_up_s else time.process_time() - begun_cpu_s
            log.notes += engine.notes
            log.stop()  # it stays open until it is handed in, so that it survives the removal of its file
            agent.gather(f"measured:{run.name}", run.name)
            if lists:
                agent.once(f"list:{run.name}", lambda: self._unmeasured.send_listing(run.name, run.files.folder))
        return self._hand_in_log(
            run.name, log, run.request.entry.label, stopped=stopped, verified=lists, cpu_s=cpu_s, doubts=engine.doubts
        )

    def _hand_in_log(
        self, run: str, log: RecordLog, label: str, *, stopped: str, verified: bool, cpu_s: float | None = None,
        doubts: Sequence[str] = (),
    ) -> Result:  # fmt: skip
        """Hand in this agent's finished log. Return the result that the controller merged from all agents' logs."""
        path = str(log.path) if isinstance(log, OpLog) else ""
        all_doubts = tuple(filter(None, (*doubts, self.agent.check_clock())))
        handed_in = HandedIn(run, path, tuple(log.notes), cpu_s, stopped, verified, all_doubts)
        return self._take_result(self.agent.gather(f"result:{run}", handed_in), label)

    def _apply_load(self, run: _Part, engine: Engine, planned_s: float, stopped: str, watch: RunWatch | None) -> str:
        """Run this agent's share of the load. Return the reason if it ended early, or an empty text."""
        agent, facts, deal = self.agent, self.facts, run.deal
        own_sensors = range(agent.index, deal.sensors, agent.count)

        def wait_for_start(planned_s: float = planned_s, start_s: float = 0.0) -> int:
            reach_s = 2 * agent.clock_error_ns / 1e9  # a round trip, of which one way may be all
            request = run.request.replace(planned_s=planned_s, pid=agent.pid, start_s=start_s, reach_s=reach_s)
            answer = agent.gather(f"start:{run.name}", request)
            began_ns = Started.from_plain(answer).start_ns - agent.clock_offset_ns
            engine.measured_from_ns = began_ns + round(run.load.warm_up_s / facts.time_scale * 1e9)
            if deal.for_s:
                engine.end_ns = began_ns + round(deal.for_s / facts.time_scale * 1e9)
            if watch is not None:
                watch.measured_from_ns = engine.measured_from_ns
            return began_ns

        if stopped:
            wait_for_start()
            return stopped
        try:
            if isinstance(deal.arrival, Threads):
                files = deal.agent_files(agent.index, agent.count)
                threads = deal.agent_threads(agent.index, agent.count)
                engine.run_pool(deal.arrival, threads, files, facts.seed, wait_for_start, facts.time_scale)
            elif isinstance(deal.arrival, ThinkTime):
                start_ns = wait_for_start()
                engine.run_closed(deal.arrival, own_sensors, deal.ops_of_sensor, facts.seed, start_ns, facts.time_scale)
            else:
                schedule = plan(deal.arrival, own_sensors, deal.ops_per_sensor, facts.seed, facts.time_scale)
                schedule = schedule if deal.limits is None else schedule.limit_operations(deal.ops_of_sensor)
                engine.run_schedule(schedule, wait_for_start(schedule.horizon_s, start_time_s(schedule)))
        except BudgetError as error:
            return str(error)
        return ""

    # -- the run's name and subject ---------------------------------------------------------------

    def _run_name(self) -> str:
        """Return the name of this run within the session."""
        block = "" if self.turn is None else f"@{self.turn.number}{self.turn.side}"
        return f"{self.nodeid}#{self._runs}{block}"

    def make_subject(self, run: str, label: str, *, stores: bool = True) -> Subject:
        """Return what messages say about this test, its provider and one of its runs."""
        (fullname, name), provider = entry_names(self.stored_name or self.nodeid, self.name, label), self.provider
        return Subject(
            run, self.nodeid, fullname, name, self.test, self.params, slug(run), provider.spec, provider.profile,
            provider.is_kept, provider.driver.versions(), provider.emulated, self.turn, self.suite if stores else {},
            provider.opened[1].find_server(provider.driver),
        )  # fmt: skip

    # -- the run's result -----------------------------------------------------------------------

    def _take_result(self, answer: Any, label: str) -> Result:
        result = parse_result(answer)
        self.unmet += [f"{label}: {line}" if label else line for line in failing_gates(result.judgements)]
        if "expectations" in result.info:  # it is an entry, not part of one
            self.properties += entry_properties(result.info, result.judgements, label)
        return result


def require_success(*results: Result) -> None:
    """Fail the test if operations were tried and none of them succeeded, because then nothing was measured.

    Raises ExpectationBroken, which counts the errors by kind.
    """
    ops, runs = sum(result["ops"] for result in results), [result.info for result in results]
    if ops and not any(result["ok"] for result in results):
        lost = sum(run.get("silently_lost") or 0 for run in runs)
        reasons = {**combine_runs(runs)["errors"], "lost": lost}
        raise ExpectationBroken(f"none of {format_count(ops, 'operation')} succeeded: {format_counts(reasons)}")


def parse_result(answer: Any) -> Result:
    """Build the result from the controller's answer."""
    merged = Merged.from_plain(answer)
    return Result(merged.info, merged.judgements, merged.doubts, merged.notes, merged.ops, tried=merged.tried)


def _open_log(
    agent: Agent, facts: RunFacts, nodeid: str, run: str, progress: Callable[..., None] | None = None
) -> RecordLog:
    """Open this agent's log of a run: in the run's folder, or sent to the controller from another host."""
    header = {"agent": agent.name, "nodeid": nodeid, "run": run, "owner": facts.owner, "writer": owner_text()}
    if not agent.same_clock:
        return SentLog(
            {**header, "host": agent.host_name}, progress,
            lambda piece: agent.tell("records", LogPiece(run, piece, agent.controller_ns())), agent.clock_offset_ns,
        )  # fmt: skip
    path = Path(facts.results) / slug(run) / f"{agent.name}.oplog"
    return OpLog(path, header, progress, moved=lambda path: agent.tell("moved", LogMoved(run, str(path))))
