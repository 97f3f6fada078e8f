"""What the controller does for the fleet: emulators, the common start, merged results, progress.

What may live here: the handlers behind the coordinator. Runs in the controller process, or in the only
process without xdist. Nothing here measures: it starts, merges and judges.
"""

from __future__ import annotations

import contextlib
import datetime
import shutil
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import __version__, expect, redact, stats
from pytest_cloudbench.baseline import Compared, choose
from pytest_cloudbench.engine import now_ns
from pytest_cloudbench.fleet.coordinator import Coordinator, Item
from pytest_cloudbench.fleet.facts import Names, RunFacts, slug
from pytest_cloudbench.fleet.series import SeriesKeeper
from pytest_cloudbench.fleet.verdicts import failing_gates
from pytest_cloudbench.live import Meter
from pytest_cloudbench.model import (
    CloudbenchError,
    EmulatorError,
    Endpoint,
    Outcome,
    ProviderSpec,
    ResultsError,
    UsageError,
    Verb,
)
from pytest_cloudbench.records import OpTable
from pytest_cloudbench.results import benchmarks, oplog, recovery
from pytest_cloudbench.results.machine import cpu_ticks, machine_text

__all__ = ["Conductor", "Finding", "check_provider", "parse_provider"]

_ENTRY_SCHEMA = 2
"""Of an entry's extra_info. 1: the first. 2: how its test ended, and what must be the same in a run to compare with."""

_OF_UPLOADS = frozenset({"loss_rate", "silent_loss_rate"})

_LEAST_TICKS, _BUSY = 20, 0.95
_MOVES_FILES = frozenset({Verb.PUT.value, Verb.GET.value})

_START_MARGIN_S = 0.05
_MOST_SILENT_S = 30.0
"""An emulator that is silent for this long is blamed before its agents are."""
_START_MARGIN_PER_AGENT_S = 0.002


@dataclass(frozen=True, slots=True)
class Finding:
    """One finished experiment, as the report shows it; ``columns`` where it is a conclusion from several runs."""

    nodeid: str
    provider: str
    params: Mapping[str, Any]
    info: dict[str, Any]
    columns: Sequence[str] = ()


@dataclass(slots=True)
class _Run:
    """One ``experiment.run`` while it lasts. ``folder`` holds the agents' logs; ``start_ns`` is the common start."""

    folder: Path
    item: Item
    about: Mapping[str, Any]
    start_ns: int
    start_wall_ms: int
    listing: stats.Listing = field(default_factory=stats.Listing)
    notes: list[str] = field(default_factory=list)
    logs: dict[str, Path] = field(default_factory=dict)
    cpu_ticks: tuple[int, int] | None = None
    cpu_share: float | None = None
    client_cpu_s: float | None = None
    verified: bool = False


def parse_provider(text: str, time_scale: float) -> ProviderSpec:
    """Check a ``--provider`` as far as that is possible without talking to it. Raises UsageError."""
    from pytest_cloudbench import credentials, drivers
    from pytest_cloudbench.emulators.profile import load_profile

    spec = ProviderSpec.parse(text)
    if spec.is_emulated:
        load_profile(spec.target)
        return spec
    if time_scale != 1.0:
        raise UsageError(
            f"--time-scale {time_scale:g} needs an emulated provider: {text} runs in real time; leave the option out"
        )
    drivers.driver_class(spec.scheme)
    credentials.load(spec.scheme, spec.params.get("token_env"))
    return spec


def check_provider(text: str, time_scale: float) -> None:
    """Check a ``--provider`` before anything starts; connecting costs no network call. Raises UsageError."""
    from pytest_cloudbench import credentials, drivers

    spec = parse_provider(text, time_scale)
    if not spec.is_emulated:
        drivers.connect(spec, None, credentials.load(spec.scheme, spec.params.get("token_env"))).close()


class Conductor:
    """Serves the agents of one session.

    Args:
        config: pytest's configuration in this process.
        facts: the run's facts.
        expectations: recorded expectations.
        gates: bounds from the command line.
        say: writes a line to the terminal.
    """

    def __init__(
        self,
        config: pytest.Config,
        facts: RunFacts,
        expectations: list[expect.Expectation],
        gates: list[expect.Gate],
        say: Callable[[str], None],
    ) -> None:
        self.config, self.facts, self._say = config, facts, say
        self._expectations, self._gates = expectations, gates
        self._emulators: dict[str, Any] = {}
        self._provided: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._stored: benchmarks.Runs | None = None
        self._open: dict[str, list[dict[str, Any]]] = {}
        self.findings: list[Finding] = []
        self.reports: list[tuple[str, Path | None]] = []
        self._judged: set[expect.Gate] = set()
        self._failing: list[tuple[str, dict[str, Any], str]] = []  # a test, its entry, and a gate that fails it
        self._selected: int | None = None  # tests that are expected to measure something; None: none is to be run
        self.is_incomplete = False
        self.meter = Meter()
        self._machine = machine_text()
        self.on_start: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None
        self.coordinator: Coordinator | None = None
        self._series = SeriesKeeper(facts, config.invocation_params.dir)

    def build_coordinator(
        self, patience_s: float, collected: Callable[[list[str]], None], **options: Any
    ) -> Coordinator:
        """The coordinator whose handlers these are; ``collected`` gets the node ids that all agents run."""
        self.coordinator = Coordinator(
            handlers={
                "start": self._start,
                "result": self._result,
                "conclude": self._conclusion,
                "measured": self._all_measured,
            },
            services={
                "alive": lambda agent, payload: None,
                "secret": lambda agent, payload: redact.learn(payload),
                "clock": lambda agent, payload: now_ns(),
                "collected": lambda agent, payload: collected(payload),
                "selected": self._select,
                "entries": self._entries,
                "alone": self._alone,
                "provide": self._provide,
                "fresh": self._fresh,
                "faults": lambda agent, asked: self._faults(asked["provider"], asked["are_on"]),
                "died": self._died,
                "listing": self._listing,
                "records": self._records,
                "moved": self._moved,
                "report": self._report,
                "progress": self._progress,
                "series": lambda agent, payload: self._series.answer(payload),
            },
            patience_s=patience_s,
            **options,
        )
        return self.coordinator

    # -- services ---------------------------------------------------------------------------------

    def _select(self, agent: str, count: int) -> None:
        self._selected = max(count, self._selected or 0)

    def _entries(self, agent: str, payload: list[dict[str, Any]]) -> None:
        for entry in payload:
            benchmarks.add_entry(self.config, **entry)

    def _alone(self, agent: str, about: Mapping[str, Any]) -> dict[str, Any]:
        """What an item that is no fleet item concludes: judged and stored as one entry."""
        return self._conclusion(Item(about["nodeid"], entered=[agent]), {agent: about})

    def _progress(self, agent: str, payload: tuple[int, int, int, list[float]]) -> None:
        self.meter.told(agent, *payload)

    def _provide(self, agent: str, text: str) -> dict[str, Any]:
        """What an agent needs to connect: found out once, and the same for all."""
        with self._lock:
            if text not in self._provided:
                self._provided[text] = self._prepare_provider(text)
            return self._provided[text]

    def _prepare_provider(self, text: str) -> dict[str, Any]:
        """Check a provider, and start its emulator if it has one."""
        spec = parse_provider(text, self.facts.time_scale)
        if not spec.is_emulated:
            return {"endpoint": None, "api": spec.scheme, "profile": None}
        from pytest_cloudbench.emulators.profile import digest, load_profile

        emulator, profile = self._start_emulator(spec), load_profile(spec.target)
        self._emulators[text] = emulator
        endpoint: Endpoint = emulator.endpoint
        fields = {name: getattr(endpoint, name) for name in Endpoint.__slots__}
        return {"endpoint": {**fields, "hosts": dict(endpoint.hosts)}, "api": profile.meta.api,
                "profile": endpoint.profile, "digest": digest(profile)}  # fmt: skip

    def _start_emulator(self, spec: ProviderSpec) -> Any:
        from pytest_cloudbench import emulators

        log_path = Path(self.facts.results) / f"emulator-{slug(spec.target)}.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        drawn = sha256(f"{self.facts.seed}/{spec.target}".encode()).digest()
        seed = int.from_bytes(drawn[:6], "big")  # the run's own draws: with --cloudbench-seed the same ones again
        emulator = emulators.start(spec.target, time_scale=self.facts.time_scale, seed=seed, log_path=log_path)
        emulator.watch(min(_MOST_SILENT_S, self.config.option.cloudbench_patience / 4))
        return emulator

    def _fresh(self, agent: str, provider: str) -> None:
        """Empty an emulator's account, and give it a full bucket."""
        emulator = self._emulators.get(provider)
        if emulator is not None:
            emulator.control(reset=True)

    def _faults(self, provider: str, are_on: bool) -> None:
        """Switch a profile's faults on while operations are measured, and off otherwise."""
        emulator = self._emulators.get(provider)
        if emulator is not None and emulator.alive():
            emulator.control(faults=are_on)

    def _died(self, agent: str, provider: str) -> str:
        """Says that the emulator of a provider has died, if it has."""
        emulator = self._emulators.get(provider)
        with self._lock:  # Popen.poll() says "alive" while another thread is asking
            if emulator is None or emulator.alive():
                return ""
        return f"the emulator of {provider} died ({emulator.exit_reason()})"

    def _records(self, agent: str, payload: Mapping[str, Any]) -> None:
        """Keep a piece of the log of an agent on another host."""
        run = self._runs[payload["run"]]
        run.folder.mkdir(parents=True, exist_ok=True)
        with (run.folder / f"{agent}.oplog").open("ab") as file:
            file.write(payload["piece"])

    def _listing(self, agent: str, payload: Mapping[str, Any]) -> int:
        run = self._runs[payload["run"]]
        for name, size_bytes, digest in payload["rows"]:
            run.listing.add(name, size_bytes, digest)
        return len(run.listing)

    def _moved(self, agent: str, payload: tuple[str, str]) -> None:
        """An agent's log goes on elsewhere; it is found there even if that agent is lost."""
        run = self._runs.get(payload[0])
        if run is not None:
            run.logs[agent] = Path(payload[1])
            self._note(run)

    def _report(self, agent: str, payload: Mapping[str, str]) -> None:
        """Keep a text for the end, and its file beside the records."""
        path = Path(payload["path"]) if payload["path"] else None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(payload["content"], encoding="utf-8", errors="backslashreplace", newline="\n")
        self.reports.append((payload["text"], path))

    # -- handlers ---------------------------------------------------------------------------------

    def _start(self, item: Item, payloads: dict[str, Any]) -> dict[str, Any]:
        """All agents are ready: agree on the time at which the experiment begins."""
        about = next(iter(payloads.values()))
        emulator = self._emulators.get(about["provider"])
        if emulator is not None:
            emulator.control(refill=True)
            emulator.control(faults=True)
        elif about["is_kept"] and self.config.option.verbose >= 0:
            more = f" ({about['prepared']} uploads before)" if about["prepared"] else ""
            moved = f", {about['bytes']:,} bytes {'down' if about['operation'] == Verb.GET.value else 'up'}"
            if about["operation"] not in _MOVES_FILES and not more:
                moved = f" ({about['operation']})"
            self._say(f"{about['provider']}: about {about['ops']} operations{moved}{more}")
        folder = Path(self.facts.results) / about["folder"]
        folder.mkdir(parents=True, exist_ok=True)
        margin_s = _START_MARGIN_S + _START_MARGIN_PER_AGENT_S * len(payloads)
        item.facts["busy_until_s"] = now_ns() / 1e9 + margin_s + max(each["planned_s"] for each in payloads.values())
        start_ns = now_ns() + round(margin_s * 1e9)
        wall_ms = (time.time_ns() + start_ns - now_ns()) // 1_000_000
        self._runs[about["run"]] = _Run(
            folder, item, about, start_ns, wall_ms, notes=list(about["notes"]), cpu_ticks=cpu_ticks()
        )
        self._note(self._runs[about["run"]])
        self.meter.begin(item.nodeid, about["ops"], start_ns)
        self.on_start()
        return {"start_ns": start_ns}

    def _note(self, run: _Run) -> None:
        """Write down what ``cloudbench recover`` needs if this process is killed; a full disk is no reason to stop."""
        about = run.about
        names = {key: about[key] for key in ("fullname", "name", "run", "params")}
        facts = {**self._info(run.item, about), **about["facts"], "planned_ops": about["ops"]}
        with contextlib.suppress(OSError):
            recovery.write_note(run.folder, {**names, "run_id": self.facts.run_id, "info": facts}, run.logs)

    def _all_measured(self, item: Item, payloads: dict[str, Any]) -> None:
        """No agent does operations any more: how busy was this machine?"""
        run, now = self._runs[next(iter(payloads.values()))], cpu_ticks()
        self._faults(run.about["provider"], False)  # the listing is no part of it
        if run.cpu_ticks is not None and now is not None and now[1] - run.cpu_ticks[1] >= _LEAST_TICKS:
            run.cpu_share = (now[0] - run.cpu_ticks[0]) / (now[1] - run.cpu_ticks[1])
            if run.cpu_share > _BUSY:
                run.notes.append(f"this machine was busy (CPU above {_BUSY:.0%}), which may have added to the times")

    def _result(self, item: Item, payloads: dict[str, Any]) -> dict[str, Any]:
        """All agents are done: merge, verify, store and judge. The answer is what every agent's test goes on with."""
        self.meter.end()
        self.on_end()
        about = next(iter(payloads.values()))
        run = self._runs.pop(about["run"])
        self._faults(run.about["provider"], True)
        run.verified = about["verified"]
        cpu_s = [each["cpu_s"] for each in payloads.values()]
        run.client_cpu_s = None if None in cpu_s else sum(cpu_s)
        for agent, each in payloads.items():
            run.notes += each["notes"]
            if each["log_path"]:
                run.logs[agent] = Path(each["log_path"])
        # As text: execnet cannot carry an integer below -2**31, and an agent's host may have been up for longer.
        offsets = {agent: int(each["clock_offset_ns"]) for agent, each in payloads.items()}
        try:
            return self._conclude(run, self._stopped(payloads), offsets)
        except KeyboardInterrupt:  # without xdist this is the thread that Ctrl-C reaches
            self._runs[about["run"]] = run
            raise

    def _stopped(self, payloads: Mapping[str, Any]) -> list[str]:
        """Why agents stopped early; their budget is a part of what the user gave."""
        given = {"--max-ops": self.facts.max_ops, "--max-bytes": self.facts.max_bytes}
        reasons = {each["stopped"] for each in payloads.values() if each["stopped"]}
        used = {option for option in given if any(reason.startswith(option) for reason in reasons)}
        return [f"{option} {given[option]} is used up" for option in sorted(used)]

    # -- merging ----------------------------------------------------------------------------------

    def _conclude(self, run: _Run, stopped: list[str], offsets: Mapping[str, int]) -> dict[str, Any]:
        about = run.about
        logs = {path.stem: path for path in sorted(run.folder.glob("*.oplog"))} | run.logs
        table = OpTable(*(oplog.read_log(path).shifted(offsets.get(agent, 0)) for agent, path in logs.items()))
        names = Names(**about["names"])
        verification = stats.verify(table, run.listing, names.name) if run.verified else None
        run.listing = stats.Listing()  # the memory of the other one is of use to what follows
        summary = stats.summarize(table, verification)
        metrics = summary.metrics
        if about["operation"] != Verb.PUT.value:  # nothing was uploaded that could be lost
            metrics = {key: value for key, value in metrics.items() if key not in _OF_UPLOADS}
            verification = None
        doubts = [*self._missing(run.item), *stopped, *self._doubts(about, summary)]
        info = {
            **self._info(run.item, about), **about["facts"], **self._run_info(run, summary, verification), **metrics,
        }  # fmt: skip
        judgements = self._judge(about, metrics, doubts, info) if about["stores"] else []
        ops = stats.columns(table, run.start_ns) if about["detail"] else {}  # while the logs are there
        try:
            parquet = run.folder.parent / f"{run.folder.name}.parquet"
            oplog.write_parquet(table, parquet, {"nodeid": about["nodeid"], "run_id": self.facts.run_id})
            info["ops_file"] = str(Path(parquet.parent.name) / parquet.name)
            shutil.rmtree(run.folder, ignore_errors=True)
            for path in logs.values():
                path.unlink(missing_ok=True)
        except ResultsError as error:
            self.is_incomplete = True
            folders = sorted({str(path.parent) for path in logs.values()})
            run.notes.append(f"{error}; the agents' logs stay in {' and '.join(folders)}")
            judgements.append(expect.Judgement("broken", str(error)))
        if about["stores"]:
            info["stats_of"] = f"response time of operations ({about['operation']}) that succeeded"
            data_s = summary.response_s
            if not data_s:
                info["stats_of"] = "elapsed time: no operation succeeded"
                data_s = array("d", [] if info["elapsed"] is None else [info["elapsed"]])
            self._store(about, info, data_s, judgements, doubts, run.notes)
        return _answer(info, judgements, doubts, run.notes, ops)

    def _conclusion(self, item: Item, payloads: dict[str, Any]) -> dict[str, Any]:
        """What a test makes of several runs: judged and stored as one entry."""
        about = next(iter(payloads.values()))
        doubts = list(dict.fromkeys([*self._missing(item), *about["doubts"]]))
        metrics = about["metrics"]
        own = {key: about[key] for key in ("ops", "ops_files", "stats_of", "loop")}
        own |= about.get("own", {})
        info = {**self._info(item, about), **own, **about["facts"], **metrics, **about.get("shown", {})}
        judgements = self._judge(about, metrics, doubts, info)
        self._store(about, info, about["rounds_s"], judgements, doubts, about["notes"], about["columns"])
        return _answer(info, judgements, doubts, about["notes"], {})

    @staticmethod
    def _missing(item: Item) -> list[str]:
        return [f"{agent} {reason}" for agent, reason in item.missing.items()]

    def _doubts(self, about: Mapping[str, Any], summary: stats.Summary) -> list[str]:
        """Why this run's numbers may be wrong."""
        doubts = []
        late_s = summary.metrics["lateness_p99"]
        if late_s is not None and late_s > self.facts.max_lateness_s:
            bound_ms = self.facts.max_lateness_s * 1e3
            doubts.append(f"engine saturated (lateness p99 {late_s * 1e3:.0f} ms is over {bound_ms:.0f} ms)")
        if summary.ops < about["ops"]:
            doubts.append(f"{about['ops'] - summary.ops} of {about['ops']} operations were not tried")
        died = self._died("", about["provider"])
        return [*doubts, died] if died else doubts

    def _judge(
        self, about: Mapping[str, Any], metrics: Mapping[str, float | None], doubts: list[str], info: Mapping[str, Any]
    ) -> list[expect.Judgement]:
        names = [about["provider"], *([f"emulated:{about['profile']}"] if about["profile"] else [])]
        given = [*self._expectations, *map(_claim, about["expect"])]
        claims = [
            claim for claim in expect.select(given, names, about["test"], about["params"]) if claim.metric in metrics
        ]
        scaled = [f"--time-scale {self.facts.time_scale:g} bends times"] if self.facts.time_scale != 1.0 else []

        def doubts_of(metric: str) -> list[str]:
            return doubts + (scaled if expect.METRICS[metric].time_like else [])

        judged = [expect.judge_expectation(claim, metrics, doubts_of(claim.metric)) for claim in claims]
        gates = [gate for gate in self._gates if gate.metric in metrics]
        self._judged.update(gates)
        for gate in gates:
            compared = self._compared(about["fullname"], gate.metric, info) if gate.relative else None
            judged.append(expect.judge_gate(gate, metrics, compared, doubts_of(gate.metric)))
        return judged

    def unjudged(self) -> tuple[list[str], bool]:
        """Gates that no experiment was judged by, each with the reason, and whether that is a failure."""
        if self.findings:
            why = "no experiment in this run has that metric"
        elif self._selected is None:
            return [], False
        else:
            why = "no experiment was measured" if self._selected else "no test in this run measures anything"
        lines = [f"{gate.text}: {why}" for gate in self._gates if gate not in self._judged]
        return lines, bool(self.findings or self._selected)

    def forgiven(self) -> list[str]:
        """Gates that were to fail a test which did not fail: it ended the session, or a hook has made it pass."""
        return [
            f"{line} ({fullname} {info['outcome']})"
            for fullname, info, line in self._failing if info["outcome"] in ("passed", "unfinished")
        ]  # fmt: skip

    def compare(self) -> Sequence[str]:
        """Read what relative gates compare with. Returns the names of files that cannot be read.

        Raises UsageError where a run was named and cannot be.
        """
        if self.stores:
            self._stored = benchmarks.stored_runs(self.config)
        return self._stored.unreadable if self._stored else ()

    @property
    def stores(self) -> bool:
        """Whether a gate compares runs: then the entries of this one are stored, for the next."""
        return any(gate.relative for gate in self._gates)

    def _compared(self, fullname: str, metric: str, info: Mapping[str, Any]) -> Compared:
        runs = self._stored or benchmarks.Runs()
        found = choose(runs.of(fullname), info, metric, runs.named)
        if found.value is None and runs.unreadable:
            files = ", ".join(runs.unreadable[:3])
            more = f" and {len(runs.unreadable) - 3} more" if len(runs.unreadable) > 3 else ""
            return replace(found, remark=f"{found.remark}; {files}{more} cannot be read")
        return found

    def ended(self, nodeid: str, outcome: str) -> None:
        """Record in a test's entries how it ended."""
        for info in self._open.pop(nodeid, ()):
            info["outcome"] = outcome

    def interrupted(self) -> None:
        """The session was interrupted: none of its entries may be a baseline."""
        for finding in self.findings:
            finding.info["outcome"] = "interrupted"

    def _info(self, item: Item, about: Mapping[str, Any]) -> dict[str, Any]:
        """What every entry's extra_info says, and one must know to trust it."""
        return {
            "schema": _ENTRY_SCHEMA,
            "outcome": "unfinished",
            "machine": self._machine,
            "agents": len(item.entered),
            "missing_agents": dict(item.missing),
            "provider": about["provider"],
            "profile": about["profile"],
            "profile_digest": self._provided.get(about["provider"], {}).get("digest"),
            "emulated": about["profile"] is not None,
            "published": about["published"],
            "time_scale": self.facts.time_scale,
            "seed": self.facts.seed,
            "run_id": self.facts.run_id,
            "versions": {"pytest-cloudbench": __version__, **about["versions"]},
        }

    @staticmethod
    def _run_info(run: _Run, summary: stats.Summary, verification: stats.Verification | None) -> dict[str, Any]:
        """What the extra_info of one run's entry says besides: all counts, and what the load was."""
        load = ("operation", "sensors", "threads", "arrival", "loop", "size_bytes", "payload")
        return {
            "start_wall_ms": run.start_wall_ms,
            "ops": summary.ops,
            "planned_ops": run.about["ops"],
            "files": verification.checked if verification else None,
            "lost": verification.lost if verification else None,
            "silently_lost": verification.silent if verification else None,
            **{name.value: summary.outcomes.get(name, 0) for name in Outcome if name is not Outcome.LOST},
            "errors": {kind.value: count for kind, count in summary.kinds.items()},
            "digest_checked": verification.digest_checked if verification else None,
            **{key: run.about[key] for key in load},
            "cpu_share": run.cpu_share,
            "client_cpu_s": run.client_cpu_s,
        }

    def _store(
        self, about: Mapping[str, Any], info: dict[str, Any], data_s: Sequence[float],
        judgements: Sequence[expect.Judgement], doubts: list[str], notes: list[str], columns: Sequence[str] = (),
    ) -> None:  # fmt: skip
        info |= {
            "doubts": doubts,
            "notes": notes,
            "expectations": [each.line for each in judgements] or ["no expectation"],
            "expectations_unmet": [each.line for each in judgements if each.status != "met"],
        }
        if data_s:  # nothing was measured where all agents are lost before their first record: no time is not 0 s
            benchmarks.add_entry(
                self.config, name=about["name"], fullname=about["fullname"], params=about["params"], extra_info=info,
                data_s=data_s,
            )  # fmt: skip
        self._open.setdefault(about["nodeid"], []).append(info)
        failing = failing_gates([(each.status, each.line) for each in judgements])
        self._failing += [(about["fullname"], info, line) for line in failing]
        self.findings.append(Finding(about["fullname"], about["provider"], about["params"], info, columns))

    # -- the end ----------------------------------------------------------------------------------

    def salvage(self, why: str) -> None:
        """Keep what was measured by experiments that never came to their result (Ctrl-C, a lost fleet)."""
        unfinished, self._runs = self._runs, {}
        for run in unfinished.values():
            if not (run.logs or run.folder.is_dir()):
                continue
            try:
                self._conclude(run, [why], {})
            except CloudbenchError as error:
                self._say(str(error))

    def close(self) -> None:
        """End the emulators and the watch. Raises EmulatorError when an emulator had died before."""
        if self.coordinator is not None:
            self.coordinator.close()
        dead = [f"{name} ({emulator.exit_reason()})" for name, emulator in self._emulators.items()
                if not emulator.alive()]  # fmt: skip
        for emulator in self._emulators.values():
            emulator.stop()
        self._emulators.clear()
        self._series.close()
        if dead:
            raise EmulatorError(f"the emulator died: {', '.join(dead)}")


def _claim(plain: Mapping[str, Any]) -> expect.Expectation:
    """An expectation that came over a channel as plain data."""
    return expect.Expectation(**{**plain, "date": datetime.date.fromisoformat(plain["date"])})


def _answer(
    info: Mapping[str, Any], judgements: Sequence[expect.Judgement], doubts: list[str], notes: list[str],
    ops: Mapping[str, list[Any]],
) -> dict[str, Any]:  # fmt: skip
    """A result as plain data."""
    judged = [[each.status, each.line] for each in judgements]
    return {"info": info, "judgements": judged, "doubts": doubts, "notes": notes, "ops": ops}
