"""The ``experiment`` fixture: what an experiment does on every agent.

What may live here: providers as tests see them, tasks that put a driver under the engine, and results.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_cloudbench.arrival import Arrival, Plan, ThinkTime, plan
from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.engine import Budget, Engine
from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.facts import RunFacts, slug
from pytest_cloudbench.fleet.replay import Upload, load_of
from pytest_cloudbench.model import (
    BudgetError,
    CloudError,
    EmulatorError,
    Endpoint,
    ErrorKind,
    FleetError,
    ProviderSpec,
    UsageError,
)
from pytest_cloudbench.payload import Generator, fresh
from pytest_cloudbench.results import journal
from pytest_cloudbench.results.oplog import OpLog

__all__ = ["ExpectationBroken", "ExpectationUnknown", "Experiment", "Provider", "Result", "find_provider"]

_LISTING_ROWS = 2000
_PATIENT_TRIES = 60


class ExpectationBroken(AssertionError):
    """An expectation or a gate is not met; the message is one line per claim."""


class ExpectationUnknown(Exception):
    """An expectation cannot be judged because the numbers may be wrong."""


class Provider:
    """A storage service under test, as the ``provider`` fixture gives it.

    Args:
        spec: what the user named.
        driver: the connected driver, safe to use from many threads.
        profile: the emulator's behaviour profile, or None for a real service.
        connect: gives driver and profile when they are first needed, instead of the two above.
    """

    def __init__(
        self,
        spec: str,
        driver: Driver | None = None,
        profile: str | None = None,
        *,
        connect: Callable[[], tuple[Driver, str | None]] | None = None,
    ) -> None:
        self.spec, self._connect = spec, connect
        if driver is not None:
            self._connected = (driver, profile)

    @cached_property
    def _connected(self) -> tuple[Driver, str | None]:
        if self._connect is None:
            raise UsageError(f"provider {self.spec}: has neither a driver nor a way to connect one")
        connected = self._connect()
        gc.freeze()  # what connecting imported stays for good: fifty agents need not collect it again and again
        return connected

    @property
    def driver(self) -> Driver:
        """The connected driver."""
        return self._connected[0]

    @property
    def profile(self) -> str | None:
        """The emulator's behaviour profile, or None for a real service."""
        return self._connected[1]

    def close(self) -> None:
        """Release the driver's connections, if there are any."""
        if "_connected" in self.__dict__:
            self.driver.close()

    @property
    def is_kept(self) -> bool:
        """Whether what is written outlives the run: then it is journaled, and a run is announced."""
        return self.profile is None


def _shares(whole: int, wanted: Sequence[int]) -> list[int]:
    """Share out ``whole`` as evenly as what each one wants allows; nothing is left over that somebody wants."""
    given, left = [0] * len(wanted), whole
    for rank, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[index] = min(wanted[index], -(-left // (len(wanted) - rank)))
        left -= given[index]
    return given


def find_provider(text: str, agent: Agent) -> Provider:
    """A provider that this agent connects to when it first needs it."""
    return Provider(text, connect=lambda: _connect(text, agent))


def _connect(text: str, agent: Agent) -> tuple[Driver, str | None]:
    """Connect this agent to a provider; an emulator is started by the controller at the first call."""
    from pytest_cloudbench import credentials, drivers

    given = agent.ask("provide", text)
    spec = ProviderSpec.parse(text)
    if given["endpoint"] is None:
        found = credentials.load(spec.scheme, spec.params.get("token_env"))
        return drivers.connect(spec, None, found), None
    endpoint = Endpoint(**given["endpoint"])
    return drivers.connect(ProviderSpec.parse(given["api"]), endpoint, {}), given["profile"]


@dataclass(frozen=True, slots=True)
class Result:
    """The merged result of one ``experiment.run``, the same on every agent.

    Attributes:
        info: every metric by name (see docs/method.md) and what one must know to trust it.
        judgements: (status, line) of each expectation and gate.
        doubts: why the numbers may be wrong; empty when there is no reason to think so.
    """

    info: Mapping[str, Any]
    judgements: tuple[tuple[str, str], ...]
    doubts: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    def __getitem__(self, metric: str) -> Any:
        return self.info[metric]

    def check(self) -> None:
        """Assert what is expected of this experiment; call it last.

        Raises ExpectationBroken when a claim is broken (or a gate cannot be judged), and ExpectationUnknown
        when an expectation cannot be judged. Without a recorded expectation it passes.
        """
        bad = [line for status, line in self.judgements if status == "broken"]
        bad += [line for status, line in self.judgements if status == "unknown" and line.startswith("gate")]
        if bad:
            raise ExpectationBroken("\n".join(bad))
        unknown = [line for status, line in self.judgements if status == "unknown"]
        if unknown:
            raise ExpectationUnknown("\n".join(unknown))


@dataclass(slots=True)
class Experiment:
    """Runs operations on all agents at the same time and merges what they measured.

    Attributes:
        agent: this process in the fleet.
        provider: where the operations go.
        facts: the run's facts.
        test: the test function's name; expectations can be limited to it.
        nodeid, name, params: pytest's names for the item.
    """

    agent: Agent
    provider: Provider
    facts: RunFacts
    test: str
    nodeid: str
    name: str
    params: Mapping[str, Any]
    runs: int = 0

    def run(
        self, payload: Generator, *, arrival: Arrival | ThinkTime, sensors: int, ops_per_sensor: int,
        verify: bool = True, published: Mapping[str, Any] | None = None,
    ) -> Result:  # fmt: skip
        """Upload ``ops_per_sensor`` new files from each of ``sensors`` sensors.

        Args:
            payload: makes the content of each file.
            arrival: when operations are due: ``ThinkTime`` is a closed loop, everything else an open one. A ``Replay``
                also says what each operation is and its size, and sensors may have fewer operations.
            sensors: logical sensors, shared out evenly among the agents.
            ops_per_sensor: files per sensor.
            verify: compare every file with the provider's listing at the end.
            published: figures by metric that are to stand beside the measured ones, with their ``source``.

        Raises FleetError when the controller is gone, CloudError when the folder cannot be made or listed, and
        EmulatorError when that is because the emulator has died.
        """
        self.runs += 1
        if self.runs > 1:
            payload = fresh(payload, self.runs)
        run = f"{self.nodeid}#{self.runs}"
        folder = f"/cloudbench-{self.facts.run_id}/{slug(run)}"
        about = {**self._about(run, arrival, sensors, ops_per_sensor, payload), "published": dict(published or {})}
        try:
            self.agent.once(f"folder:{run}", lambda: self._make(folder))
            try:
                return self._measured(run, folder, payload, arrival, about, verify)
            finally:
                if not self.agent.stop.is_set():
                    self.agent.once(f"clean:{run}", lambda: self._remove(folder))
        except (CloudError, FleetError) as error:
            why = "" if self.agent.stop.is_set() else self.agent.ask("died", self.provider.spec)
            if why:
                raise EmulatorError(f"{why}; its records are kept, run again") from error
            raise

    def _measured(
        self, run: str, folder: str, payload: Generator, arrival: Arrival | ThinkTime,
        about: Mapping[str, Any], verify: bool,
    ) -> Result:  # fmt: skip
        agent, count = self.agent, about["ops_per_sensor"]
        mine = range(agent.index, about["sensors"], agent.count)
        schedule: Plan | ThinkTime
        scale, load = self.facts.time_scale, None
        if isinstance(arrival, ThinkTime):
            schedule, planned_s = arrival, arrival.horizon_s(count) / scale
        else:
            schedule, load = plan(arrival, mine, count, self.facts.seed, scale), load_of(arrival, mine, count)
            planned_s = schedule.horizon_s
        local, budget = self._log_folder(run), self._budget(about, arrival)
        upload = Upload(self.provider.driver, folder, payload, load.targets if load else {}, about["suffix"])
        start_ns = agent.gather(f"start:{run}", {**about, "planned_s": planned_s})["start_ns"] - agent.clock_offset_ns
        with OpLog(
            local / f"{agent.name}.oplog", {"agent": agent.name, "nodeid": self.nodeid},
            progress=lambda done, not_ok: agent.tell("progress", [done, not_ok]),
        ) as log:  # fmt: skip
            engine = Engine(upload, log.record, agent.index, agent.stop, budget)
            stopped = self._run_engine(engine, schedule, mine, count, start_ns)
        agent.gather(f"measured:{run}")
        if verify:
            agent.once(f"list:{run}", lambda: self._list(run, folder))
        sent = None if agent.same_clock else log.path.read_bytes()
        done = {"run": run, "notes": log.notes, "log": sent, "log_path": str(log.path), "stopped": stopped,
                "verified": verify, "clock_offset_ns": agent.clock_offset_ns}  # fmt: skip
        return self._result(agent.gather(f"result:{run}", done))

    def _run_engine(self, engine: Engine, schedule: Plan | ThinkTime, mine: range, count: int, start_ns: int) -> str:
        """Returns why the run ended before its plan did, or an empty text."""
        try:
            if isinstance(schedule, ThinkTime):
                engine.run_closed(schedule, mine, count, self.facts.seed, start_ns, self.facts.time_scale)
            else:
                engine.run_schedule(schedule, start_ns)
        except BudgetError as error:
            return str(error)
        return ""

    def _about(
        self, run: str, arrival: Arrival | ThinkTime, sensors: int, count: int, payload: Generator
    ) -> dict[str, Any]:
        """What the controller must know of this run; plain data."""
        fullname = self.nodeid + (f"#{self.runs}" if self.runs > 1 else "")
        load = None if isinstance(arrival, ThinkTime) else load_of(arrival, range(sensors), count)
        ops = load.ops if load else sensors * count
        return {
            "run": run, "nodeid": self.nodeid, "fullname": fullname, "name": self.name, "test": self.test,
            "params": dict(self.params), "provider": self.provider.spec, "profile": self.provider.profile,
            "is_kept": self.provider.is_kept, "sensors": sensors, "ops_per_sensor": count, "ops": ops,
            "bytes": load.size_bytes if load else ops * payload.size_bytes,
            "size_bytes": None if load else payload.size_bytes,
            "arrival": repr(arrival), "loop": "closed" if isinstance(arrival, ThinkTime) else "open",
            "folder": slug(run), "suffix": getattr(payload, "suffix", ""),
            "versions": dict(self.provider.driver.versions()),
        }  # fmt: skip

    def _budget(self, about: Mapping[str, Any], arrival: Arrival | ThinkTime) -> Budget:
        """This agent's part of the experiment's budget."""
        if self.facts.max_ops is None and self.facts.max_bytes is None:
            return Budget()
        index, agents, size_bytes = self.agent.index, self.agent.count, about["size_bytes"]
        shares = [range(each, about["sensors"], agents) for each in range(agents)]
        ops = [len(share) * about["ops_per_sensor"] for share in shares]
        units, unit = ops, max(1, size_bytes or 0)
        if size_bytes is None and not isinstance(arrival, ThinkTime):  # each operation has a size of its own
            loads = [load_of(arrival, share, about["ops_per_sensor"]) for share in shares]
            ops, units = [load.ops if load else 0 for load in loads], [load.size_bytes if load else 0 for load in loads]

        def part(whole: int | None, wanted: Sequence[int], unit: int) -> int | None:
            return None if whole is None else _shares(whole // unit, wanted)[index] * unit

        return Budget(part(self.facts.max_ops, ops, 1), part(self.facts.max_bytes, units, unit))

    def _log_folder(self, run: str) -> Path:
        """Where this agent logs: the run's folder, or a temporary one on another host."""
        if self.agent.same_clock:
            return Path(self.facts.results) / slug(run)
        import tempfile

        return Path(tempfile.mkdtemp(prefix="cloudbench-"))

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

    def _make(self, folder: str) -> None:
        if self.provider.is_kept:
            journal.note(self.provider.spec, folder)
        self._patiently(self.provider.driver.mkdir, folder)

    def _patiently(self, work: Callable[[str], None], folder: str) -> None:
        """Do what is not measured, also where the provider still throttles because of what was."""
        for _ in range(_PATIENT_TRIES):
            try:
                work(folder)
                return
            except CloudError as error:
                if error.kind is not ErrorKind.THROTTLED:
                    raise
                wait_s = (error.retry_after_s or 1.0) / self.facts.time_scale
            if self.agent.stop.wait(wait_s):
                return
        work(folder)

    def _remove(self, folder: str) -> None:
        try:
            self._patiently(self.provider.driver.delete, folder)
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
        if self.provider.is_kept:
            journal.forget(self.provider.spec, folder)

    @staticmethod
    def _result(answer: Mapping[str, Any]) -> Result:
        judgements = tuple((status, line) for status, line in answer["judgements"])
        return Result(answer["info"], judgements, tuple(answer["doubts"]), tuple(answer["notes"]))
