"""The ``experiment`` fixture: what an experiment does on every agent.

What may live here: one run from its empty folder to its merged result, and conclusions from several runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from pytest_cloudbench.arrival import Arrival, Closed, ThinkTime, Threads, plan
from pytest_cloudbench.engine import Budget, Engine
from pytest_cloudbench.expect import Expectation
from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.facts import Names, RunFacts, slug
from pytest_cloudbench.fleet.logs import open_log
from pytest_cloudbench.fleet.operations import Deal, Files, OnFile, Upload, budget_of, task_of
from pytest_cloudbench.fleet.provider import Provider
from pytest_cloudbench.fleet.room import available_bytes, check_room
from pytest_cloudbench.fleet.verdicts import ExpectationBroken, ExpectationUnknown, failing_gates, properties
from pytest_cloudbench.model import BudgetError, CloudError, EmulatorError, ErrorKind, FleetError, UsageError, Verb
from pytest_cloudbench.payload import Generator, fresh
from pytest_cloudbench.results.oplog import OpLog

__all__ = ["Experiment", "Result", "result_of"]

_LISTING_ROWS = 2000
_SAMPLES = 64
"""How many response times all agents together report at a time, for the live line."""

_PATIENT_TRIES = 60
_PATIENT_S = 1.0
_PREPARING_THREADS = 8
_PASSING = frozenset({ErrorKind.THROTTLED, ErrorKind.NETWORK, ErrorKind.SERVER})
"""What work that is not measured waits for."""

_KEPT = ("ops", "loop", "ops_file", "cpu_share", "client_cpu_s")
"""What a conclusion needs of each of its runs."""

_PASSING_REMOVAL = frozenset({ErrorKind.THROTTLED, ErrorKind.SERVER})


def _own(parts: Sequence[Result]) -> dict[str, float | None]:
    """How busy the machine was in several runs: the busiest one's share of its CPUs, and their agents' CPU time."""
    shares = [part["cpu_share"] for part in parts if part.info.get("cpu_share") is not None]
    cpu_s = [part.info.get("client_cpu_s") for part in parts]
    return {
        "cpu_share": max(shares, default=None),
        "client_cpu_s": None if None in cpu_s or not cpu_s else sum(filter(None, cpu_s)),
    }


def _plain(expect: Sequence[Expectation]) -> list[dict[str, Any]]:
    """Expectations as an execnet channel can carry them."""
    return [asdict(claim) | {"date": claim.date.isoformat()} for claim in expect]


@dataclass(frozen=True, slots=True)
class Result:
    """The merged result of one ``experiment.run``, or of ``experiment.conclude``, the same on every agent.

    Attributes:
        info: every metric by name (see docs/method.md) and what one must know to trust it.
        judgements: (status, line) of each expectation and gate.
        doubts: why the numbers may be wrong; empty when there is no reason to think so.
        notes: what else the controller has to say.
        ops: with ``detail``, columns of all operations in the order of their start: ``sensor``, ``seq``, ``outcome``,
            ``kind`` (texts), ``start_s`` from the run's start, ``service_s``, ``response_s``, ``first_byte_s`` (None
            where it is not known).
        files: with ``keep``, the files that the run has left on the provider, for the next one.
    """

    info: Mapping[str, Any]
    judgements: tuple[tuple[str, str], ...] = ()
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ops: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    files: Files | None = None

    def __getitem__(self, metric: str) -> Any:
        return self.info[metric]

    @property
    def ok_s(self) -> list[float]:
        """With ``detail``, the service times of operations that succeeded, in the order of their start."""
        taken = zip(self.ops["service_s"], self.ops["outcome"], strict=True)
        return [taken_s for taken_s, outcome in taken if outcome == "ok"]

    def check(self) -> None:
        """Assert what is expected of this experiment; call it last.

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
class _Run:
    """One run while it lasts, as this agent sees it."""

    name: str
    task: Upload | OnFile
    files: Files
    deal: Deal
    about: Mapping[str, Any]
    budget: Budget
    is_prepared: bool
    verify: bool
    label: str


@dataclass(slots=True)
class Experiment:
    """Runs operations on all agents at the same time and merges what they measured.

    Attributes:
        agent: this process in the fleet.
        provider: where the operations go.
        facts: the run's facts.
        test: the test function's name; expectations can be limited to it.
        nodeid, name, params: pytest's names for the item.
        unmet: takes the lines of gates that are to fail the item, whatever becomes of its results.
        properties: takes what reports for machines are to say of the item (``user_properties``).
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
    _runs: int = 0
    _entries: int = 0
    _kept: list[str] = field(default_factory=list)
    _parts: list[Result] = field(default_factory=list)

    def run(
        self, payload: Generator | None = None, *, arrival: Arrival | Closed, sensors: int = 0, ops_per_sensor: int = 1,
        files: int = 0, operation: Verb = Verb.PUT, on: Files | None = None, sample: float = 1.0, keep: bool = False,
        verify: bool = True, mkdir: bool = True, store: bool = True, detail: bool = False, label: str = "",
        published: Mapping[str, Any] | None = None, expect: Sequence[Expectation] = (),
        names: Names | None = None, facts: Mapping[str, Any] | None = None, notes: Sequence[str] = (),
    ) -> Result:  # fmt: skip
        """Upload new files, or do something else with files that are there: one file per operation.

        Args:
            payload: makes the content of each file; not needed with ``on``.
            arrival: when operations are due. ``ThinkTime`` and ``Threads`` are closed loops, everything else is an open
                one. A ``Replay`` also says what each operation is and its size, and sensors may have fewer operations.
            sensors: logical sensors, shared out evenly among the agents.
            ops_per_sensor: operations of each sensor.
            files: with ``Threads``, the number of files instead of the two above.
            operation: what is measured. All but an upload need files, which are uploaded before, unmeasured, if ``on``
                does not name some; a download is compared with what was uploaded.
            on: files that a former run has kept; with ``Threads`` all of them, or a random ``sample``.
            sample: with ``on`` and ``Threads``, the share of the files that is used, chosen anew by each run.
            keep: leave the files for another run of this test; they are removed at its end.
            verify: after uploads and deletions, compare the provider's listing.
            mkdir: make the folder first. Without, the first upload makes it and an emulator keeps what it holds: then a
                provider in trouble is measured, not waited for.
            store: make an entry of it, judge expectations and show it. Without, it is a part of a conclusion.
            detail: give every operation's times (``Result.ops``); for up to some thousand operations.
            label: names the entry where a test makes several.
            published: figures by metric that are to stand beside the measured ones, with their ``source``.
            expect: expectations besides those that are recorded in a file.
            names: what new files are called, where that matters.
            facts: what else the entry should hold (plain data).
            notes: what should be read beside the numbers.

        Raises UsageError for arguments that do not fit together or an operation that the provider does not offer,
        FleetError when the controller is gone, CloudError when the folder cannot be made, filled or listed, and
        EmulatorError when that is because the emulator has died.
        """
        self._runs += 1
        self._entries += store
        name, is_new = f"{self.nodeid}#{self._runs}", on is None
        if on is None:
            if payload is None:
                raise UsageError("experiment.run: expected a payload, or on=files of a former run")
            payload = fresh(payload, self._runs) if self._runs > 1 else payload
            on = Files(f"/cloudbench-{self.facts.run_id}/{slug(name)}", payload, named=names)
            deal = self._deal(arrival, sensors, ops_per_sensor, files, None)
        else:
            deal = self._deal(arrival, sensors, ops_per_sensor, files, self._chosen(on, sample, name))
        check_room(deal, lambda: self.agent.once(f"room:{name}", available_bytes))
        prepares = is_new and operation is not Verb.PUT
        load = deal.load(self.agent.index, self.agent.count)
        about = {
            **self._about(name, label), **self._load_facts(deal, on, prepares), "operation": operation.value,
            "stores": store, "detail": detail, "published": dict(published or {}),
            "expect": _plain(expect),
            "facts": dict(facts or {}), "notes": list(notes),
        }  # fmt: skip
        task = task_of(self.provider.driver, operation, on, load.targets if load else {})
        place, bounds = (self.agent.index, self.agent.count), (self.facts.max_ops, self.facts.max_bytes)
        budget = budget_of(deal, on.payload, prepares, place, bounds)
        run = _Run(name, task, on, deal, about, budget, prepares, verify, label)
        result = self._within_folder(run, is_new, keep, mkdir)
        told = {key: result[key] for key in _KEPT if key in result.info}
        self._parts.append(Result(told, doubts=result.doubts, notes=result.notes))  # a long series stays small
        return result

    def conclude(
        self, metrics: Mapping[str, Any], rounds_s: Sequence[float], *, stats_of: str,
        of: Sequence[Result] | None = None, columns: Sequence[str] = (), label: str = "",
        facts: Mapping[str, Any] | None = None, published: Mapping[str, Any] | None = None,
        doubts: Sequence[str] = (), notes: Sequence[str] = (), expect: Sequence[Expectation] = (),
    ) -> Result:  # fmt: skip
        """Make one entry of what several runs with ``store=False`` have shown, and judge it.

        Doubts, notes and record files of those runs belong to it. All agents call this with the same arguments:
        conclusions are pure functions of merged results.

        Args:
            metrics: values by name; expectations and gates can name those in ``expect.METRICS``. None is "not known".
            rounds_s: the durations that pytest-benchmark compares, at least one.
            stats_of: what these durations are.
            of: the runs it is made of; None for all runs that no conclusion has used yet.
            columns: names of metrics or facts for the table at the end of the run.
            facts: what else the entry should hold (plain data), such as every level that was tried.
            label: names the entry where a test makes several.
            published: figures to show beside the measured ones, with their ``source``.
            doubts: why the numbers may be wrong, besides the doubts of the runs.
            notes: other remarks to show with the numbers, besides the notes of the runs.
            expect: expectations besides those that are recorded in a file.
        """
        self._runs += 1
        self._entries += 1
        parts = self._parts if of is None else of
        concluded = {part.info.get("ops_file") for part in parts}
        self._parts = [part for part in self._parts if part.info.get("ops_file") not in concluded]
        told = [*doubts, *(doubt for part in parts for doubt in part.doubts)]
        noted = [*notes, *(note for part in parts for note in part.notes)]
        about = {
            **self._about(f"{self.nodeid}#{self._runs}", label), "metrics": dict(metrics), "rounds_s": list(rounds_s),
            "stats_of": stats_of, "columns": list(columns), "facts": dict(facts or {}),
            "doubts": list(dict.fromkeys(told)), "notes": list(dict.fromkeys(noted)),
            "published": dict(published or {}),
            "ops_files": [part["ops_file"] for part in parts if "ops_file" in part.info],
            "own": _own(parts), "ops": sum(part["ops"] for part in parts), "loop": parts[-1]["loop"] if parts else None,
            "expect": _plain(expect),
        }  # fmt: skip
        return self._result(self.agent.gather(f"conclude:{about['run']}", about), label)

    @contextmanager
    def scratch(self, payload: Generator) -> Iterator[tuple[str, Files]]:
        """A new folder on the provider for what is no ``run``: an emulator is fresh, a real service's is journaled.

        Gives the name of this run, and what is to be written into the folder, which is removed at the end. All agents
        enter and leave it together. Raises CloudError, FleetError and EmulatorError like ``run``.
        """
        self._runs += 1
        name = f"{self.nodeid}#{self._runs}"
        folder = f"/cloudbench-{self.facts.run_id}/{slug(name)}"
        try:
            self.agent.once(f"folder:{name}", lambda: self._make(folder, True))
            try:
                yield name, Files(folder, fresh(payload, self._runs) if self._runs > 1 else payload)
            finally:
                if not self.agent.stop.is_set():
                    self.agent.once(f"clean:{name}", lambda: self._remove(folder))
        except (CloudError, FleetError) as error:
            self._blame(error)
            raise

    @contextmanager
    def logged(self, run: str, about: Mapping[str, Any]) -> Iterator[OpLog]:
        """A log for what this agent does in ``scratch``; it is merged into the run's records, a part of a conclusion.

        ``about`` says what is planned: ``ops`` and ``bytes`` at least. All agents enter and leave it together.
        """
        about = {
            **self._about(run, ""), "stores": False, "detail": False, "published": {}, "expect": [], "prepared": 0,
            "operation": Verb.PUT.value, "names": {}, "facts": {}, "notes": [], "planned_s": 0.0,
            **dict.fromkeys(("sensors", "threads", "arrival", "loop", "size_bytes", "payload")), **about,
        }  # fmt: skip
        agent = self.agent
        agent.gather(f"start:{run}", about)
        with open_log(self.agent, self.facts, self.nodeid, run) as log:
            yield log
        self._parts.append(self._handed_in(run, log, "", stopped="", verified=False))

    def remove(self, files: Files) -> bool:
        """Remove what a run has kept, before the end of the test. What cannot be removed now is removed at the end.

        Returns whether it is gone. Raises UsageError for files that no run of this test has kept.
        """
        if files.folder not in self._kept:
            raise UsageError(f"experiment.remove: {files.folder} was not kept by a run of this test, or is removed")
        if gone := bool(self.agent.once(f"remove:{files.folder}", partial(self._removed, files.folder))):
            self._kept.remove(files.folder)
        return gone

    def report(self, text: str, file: str = "", content: str = "") -> None:
        """Show a text below the tables at the end. All agents call this with the same arguments.

        Args:
            text: some lines.
            file: the name of a file to keep in ``folder``; the end of the text says where it is.
            content: what is in it.

        Raises FleetError when the file cannot be written.
        """
        told = {"text": text, "path": str(self.folder / file) if file else "", "content": content}
        self.agent.once(f"report:{self.nodeid}#{self._runs}", lambda: self.agent.ask("report", told))

    @property
    def folder(self) -> Path:
        """Where files about this test belong: on the controller, beside its records. It may not exist yet."""
        return Path(self.facts.results) / slug(self.nodeid)

    def close(self) -> None:
        """Remove the files that runs have kept. The fixture does it."""
        kept, self._kept = self._kept, []
        for folder in kept:
            if not self.agent.stop.is_set():
                self.agent.once(f"clean:{folder}", partial(self._remove, folder))

    # -- one run ----------------------------------------------------------------------------------

    @staticmethod
    def _deal(
        arrival: Arrival | Closed, sensors: int, count: int, files: int, members: Sequence[tuple[int, int]] | None
    ) -> Deal:
        given: dict[str, object] = {"sensors": sensors, "ops_per_sensor": count, "files": files}
        for key, value in given.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise UsageError(f"experiment.run: {key}={value!r}: expected a whole number of 1 or more")
        if not isinstance(arrival, Threads):
            if files or sensors < 1 or count < 1:
                found = f"files={files}" if files else f"sensors={sensors}, ops_per_sensor={count}"
                raise UsageError(f"experiment.run: {found}: {arrival!r} expects 1 or more sensors and ops_per_sensor")
            return Deal(arrival, sensors, count)
        if sensors or (files < 1 and members is None):
            raise UsageError("experiment.run: Threads expect the number of files, not sensors")
        chosen = members if members is None or not files else members[:files]
        return Deal(arrival, files if chosen is None else len(chosen), 1, chosen)

    def _chosen(self, on: Files, sample: float, name: str) -> Sequence[tuple[int, int]]:
        """A random share of kept files, the same on every agent; at least one."""
        if not sample > 0:
            raise UsageError(f"experiment.run: sample={sample!r}: expected a share above 0, such as 0.5")
        if sample >= 1.0:
            return on.members
        count = max(1, round(sample * len(on.members)))
        return sorted(Random(f"{self.facts.seed}/sample/{name}").sample(list(on.members), count))

    def _within_folder(self, run: _Run, is_new: bool, keep: bool, mkdir: bool) -> Result:
        folder = run.files.folder
        try:
            if is_new:
                self.agent.once(f"folder:{run.name}", lambda: self._make(folder, mkdir))
            try:
                result = self._measured(run)
                if keep:
                    if is_new:
                        self._kept.append(folder)
                    members = run.deal.files(0, 1) if run.deal.load(0, 1) is None else ()
                    return replace(result, files=replace(run.files, members=members))
                return result
            finally:
                if is_new and folder not in self._kept and not self.agent.stop.is_set():
                    self.agent.once(f"clean:{run.name}", lambda: self._remove(folder))
        except (CloudError, FleetError) as error:
            self._blame(error)
            raise

    def _blame(self, error: Exception) -> None:
        """Raise EmulatorError where the emulator has died: that explains the error."""
        why = "" if self.agent.stop.is_set() else self.agent.ask("died", self.provider.spec)
        if why:
            raise EmulatorError(f"{why}; its records are kept, run again") from error

    def _measured(self, run: _Run) -> Result:
        agent, deal = self.agent, run.deal
        stopped = self._prepare(run) if run.is_prepared else ""
        planned_s = deal.planned_s() / self.facts.time_scale
        lists = run.verify and run.task.verb in (Verb.PUT, Verb.DELETE)
        with open_log(agent, self.facts, self.nodeid, run.name, lambda *told: agent.tell("progress", told)) as log:
            log.samples = max(1, _SAMPLES // agent.count)
            engine = Engine(run.task, log.record, agent.index, agent.stop, run.budget)
            begun_cpu_s = time.process_time()
            stopped = self._load(run, engine, planned_s, stopped)
            cpu_s = time.process_time() - begun_cpu_s
            log.stop()  # but it is open until it is handed in: only so it survives its removal
            agent.gather(f"measured:{run.name}", run.name)
            if lists:
                agent.once(f"list:{run.name}", lambda: self._list(run.name, run.files.folder))
        return self._handed_in(run.name, log, run.label, stopped=stopped, verified=lists, cpu_s=cpu_s)

    def _handed_in(
        self, run: str, log: OpLog, label: str, *, stopped: str, verified: bool, cpu_s: float | None = None
    ) -> Result:
        """Hand in this agent's log, which has ended; what the controller makes of all agents'."""
        agent = self.agent
        for piece in () if agent.same_clock else log.pieces():  # the controller cannot read it where it is
            agent.ask("records", {"run": run, "piece": piece})
        done = {"run": run, "log_path": str(log.path) if agent.same_clock else "", "notes": log.notes, "cpu_s": cpu_s,
                "stopped": stopped, "verified": verified, "clock_offset_ns": str(agent.clock_offset_ns)}  # fmt: skip
        return self._result(agent.gather(f"result:{run}", done), label)

    def _load(self, run: _Run, engine: Engine, planned_s: float, stopped: str) -> str:
        """Put this agent's part of the load on the provider. Returns why it ended early, or an empty text."""
        agent, facts, deal = self.agent, self.facts, run.deal
        mine = range(agent.index, deal.sensors, agent.count)

        def start_ns(planned_s: float = planned_s) -> int:
            told = agent.gather(f"start:{run.name}", {**run.about, "planned_s": planned_s})
            return int(told["start_ns"]) - agent.clock_offset_ns

        if stopped:
            start_ns()
            return stopped
        try:
            if isinstance(deal.arrival, Threads):
                files, threads = deal.files(agent.index, agent.count), deal.threads(agent.index, agent.count)
                engine.run_pool(deal.arrival, threads, files, facts.seed, start_ns, facts.time_scale)
            elif isinstance(deal.arrival, ThinkTime):
                count, scale = deal.ops_per_sensor, facts.time_scale
                engine.run_closed(deal.arrival, mine, count, facts.seed, start_ns(), scale)
            else:
                schedule = plan(deal.arrival, mine, deal.ops_per_sensor, facts.seed, facts.time_scale)
                engine.run_schedule(schedule, start_ns(schedule.horizon_s))
        except BudgetError as error:
            return str(error)
        return ""

    # -- what is known before it starts -----------------------------------------------------------

    def _about(self, run: str, label: str) -> dict[str, Any]:
        """Who this is, for the controller; plain data."""
        number = label or (str(self._entries) if self._entries > 1 else "")
        return {
            "run": run, "nodeid": self.nodeid, "fullname": self.nodeid + (f"#{number}" if number else ""),
            "name": self.name, "test": self.test, "params": dict(self.params), "folder": slug(run),
            "provider": self.provider.spec, "profile": self.provider.profile, "is_kept": self.provider.is_kept,
            "versions": dict(self.provider.driver.versions()),
        }  # fmt: skip

    @staticmethod
    def _load_facts(deal: Deal, files: Files, prepares: bool) -> dict[str, Any]:
        """What the load is, for the controller; plain data."""
        load, payload = deal.load(0, 1), files.payload
        ops = load.ops if load else deal.sensors * deal.ops_per_sensor
        threads = deal.arrival.count if isinstance(deal.arrival, Threads) else None
        return {
            "sensors": deal.sensors if threads is None else None, "ops_per_sensor": deal.ops_per_sensor,
            "threads": threads,
            "ops": ops, "bytes": load.size_bytes if load else ops * payload.size_bytes,
            "prepared": ops if prepares else 0,
            "size_bytes": None if load else payload.size_bytes, "payload": type(payload).__name__,
            "arrival": repr(deal.arrival),
            "loop": "closed" if isinstance(deal.arrival, Closed) else "open", "names": asdict(files.names),
        }  # fmt: skip

    # -- what is not measured ---------------------------------------------------------------------

    def _prepare(self, run: _Run) -> str:
        """Upload this agent's files. Returns why that ended early, or an empty text."""
        agent, driver = self.agent, self.provider.driver

        def upload(member: tuple[int, int]) -> None:
            path, content = run.files.file(*member)
            run.budget.take(content.size_bytes)
            self._patiently(lambda: driver.put(path, content))

        agent.once(f"unmeasured:{run.name}", lambda: self._faults(False))  # until the common start
        stopped, members = "", run.deal.files(agent.index, agent.count)
        with agent.sign_of_life():
            try:
                with ThreadPoolExecutor(_PREPARING_THREADS, "prepare") as pool:
                    list(pool.map(upload, members))
                if members:  # not ready yet is no failure of what is measured
                    last = run.files.path(*members[-1])
                    self._patiently(lambda: driver.stat(last), _PASSING | {ErrorKind.NOT_FOUND})
            except BudgetError as error:
                stopped = str(error)
            agent.gather(f"prepared:{run.name}")
        return stopped

    def _list(self, run: str, folder: str) -> int:
        """Send the provider's listing of the folder to the controller, in pieces."""
        rows: list[list[Any]] = []
        try:
            for entry in self.provider.driver.list(folder):
                if not entry.is_folder:
                    rows.append([entry.path.rpartition("/")[2], entry.size_bytes, entry.digest])
                if len(rows) >= _LISTING_ROWS:
                    self.agent.ask("listing", {"run": run, "rows": rows})
                    rows = []
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND:  # no folder: not one file was accepted
                raise
        return int(self.agent.ask("listing", {"run": run, "rows": rows}))

    def _make(self, folder: str, mkdir: bool) -> None:
        if self.provider.is_kept:
            self._patiently(lambda: self.provider.claim(folder, self.facts.owner))
        elif not self._kept and (mkdir or self._runs == 1):
            self.agent.ask("fresh", self.provider.spec)
        if mkdir:
            with self._unmeasured():
                self._patiently(lambda: self.provider.driver.mkdir(folder), {ErrorKind.THROTTLED})

    @contextmanager
    def _unmeasured(self) -> Iterator[None]:
        """Work that one agent does for all, and that an emulator's faults must not hit."""
        self._faults(False)
        try:
            yield
        finally:
            self._faults(True)

    def _faults(self, are_on: bool) -> None:
        if not self.provider.is_kept:
            self.agent.ask("faults", {"provider": self.provider.spec, "are_on": are_on})

    def _patiently(self, work: Callable[[], object], passing: Set[ErrorKind] = _PASSING) -> None:
        """Do what is not measured, also where the provider is in trouble because of what was."""
        for _ in range(_PATIENT_TRIES):
            try:
                work()
                return
            except CloudError as error:
                if error.kind not in passing:
                    raise
                wait_s = (error.retry_after_s or _PATIENT_S) / self.facts.time_scale
            if self.agent.stop.wait(wait_s):
                return
        work()

    def _removed(self, folder: str) -> bool:
        """Try once to remove a folder; an outage is no reason to wait here."""
        try:
            self._remove(folder, passing=frozenset())
        except CloudError:
            return False
        return True

    def _remove(self, folder: str, passing: Set[ErrorKind] = _PASSING_REMOVAL) -> None:
        try:
            with self._unmeasured():
                self._patiently(lambda: self.provider.driver.delete(folder), passing)
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
        if self.provider.is_kept:
            self._patiently(lambda: self.provider.release(folder), passing)

    def _result(self, answer: Mapping[str, Any], label: str) -> Result:
        result = result_of(answer)
        self.unmet += [f"{label}: {line}" if label else line for line in failing_gates(result.judgements)]
        if "expectations" in result.info:  # it is an entry, no part of one
            number = label or (str(self._entries) if self._entries > 1 else "")
            self.properties += properties(result.info, result.judgements, number)
        return result


def result_of(answer: Mapping[str, Any]) -> Result:
    """The result as the controller sent it."""
    judgements = tuple((status, line) for status, line in answer["judgements"])
    return Result(answer["info"], judgements, tuple(answer["doubts"]), tuple(answer["notes"]), answer["ops"])
