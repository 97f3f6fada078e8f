"""The entries of a session: judged by expectations and gates, stored, and kept for the table at its end.

What may live here: the common part of a run's entry and of the entry of a conclusion from several runs. It runs in the
controller process, or in the only process without xdist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import __version__
from pytest_cloudbench.fleet.coordinator import Item
from pytest_cloudbench.fleet.hosts.facts import SessionHosts
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.judge import expect
from pytest_cloudbench.judge.baseline import ENTRY_SCHEMA, LINK_IN_TIMES, BaselineValue, choose_baseline
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.load.gate.verdicts import failing_gates
from pytest_cloudbench.load.messages import Subject
from pytest_cloudbench.load.policy import find_test_functions
from pytest_cloudbench.results import benchmarks
from pytest_cloudbench.results.entry_names import split_name
from pytest_cloudbench.results.installed import learn_declared
from pytest_cloudbench.results.locations import StoredLocations
from pytest_cloudbench.results.machine import describe_machine
from pytest_cloudbench.results.suite import read_declared
from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:  # most sessions have no gate
    from pytest_cloudbench.load.gate.judged import GatedPairs
    from pytest_cloudbench.load.gate.session import SessionGate

_EMULATED = {"all": True, "some": "some", "none": False}
"""The entry's ``emulated`` by ``Subject.emulated``."""


_AddBlock = Callable[
    [Subject, Mapping[str, Any], Sequence[str], Sequence[float], Mapping[str, float | None]], None
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One finished experiment, as the report shows it. It has ``columns`` if it is a conclusion from several runs.

    ``experiment`` is its name without the provider, ``spread`` has a metric's values in parts of the run, and ``test``
    is the test function's name.
    """

    nodeid: str
    provider: str
    params: Mapping[str, Any]
    info: dict[str, Any]
    columns: Sequence[str] = ()
    experiment: str = ""
    spread: Mapping[str, Sequence[float]] = field(default_factory=dict)
    test: str = ""


class Entries:
    """The entries of one session.

    Args:
        config: pytest's configuration in this process.
        facts: the run's facts.
        gates: bounds from the command line.
        gate: the regression gate, None if it is off.

    Attributes:
        findings: finished experiments, for the table at the end.
        comparisons: comparisons of two sides, for a table of their own.
        expectations: expectations that are recorded in files.
        add_block: takes the results of one block of a comparison, which become no entry of their own.
        selected: the number of tests that are expected to measure something. None if no test is to be run.
        deselected: the number of such tests that were collected, and then deselected.
        collected: the node ids of the session's tests that all agents run.
        hosts: the hosts of the session.
        locations: where providers' servers were found to be.
        machine: the controller's machine, as entries describe it.
    """

    def __init__(
        self, config: pytest.Config, facts: RunFacts, gates: Sequence[expect.Gate], gate: SessionGate | None = None
    ) -> None:
        self.config, self.facts, self.gate = config, facts, gate
        self.findings: list[Finding] = []
        self.hosts = SessionHosts()
        self.locations = StoredLocations()
        self.selected: int | None = None
        self.deselected = 0
        self.collected: set[str] = set()
        self.expectations: Sequence[expect.Expectation] = ()
        self._gates = gates
        self._stored: benchmarks.Runs | None = None
        self._open_entries: dict[str, list[dict[str, Any]]] = {}
        self._judged_gates: set[expect.Gate] = set()
        self._matched_claims: set[expect.Expectation] = set()  # they are about an entry, which may lack their metric
        self._judged_claims: set[expect.Expectation] = set()
        self._failing: list[tuple[str, dict[str, Any], str]] = []  # a test, its entry, and a gate that fails it
        self.comparisons: list[Finding] = []
        self.machine = describe_machine()
        self.add_block: _AddBlock | None = None
        self._connected_agents: dict[str, set[str]] = {}

    def note_way(self, provider: str, agent: str) -> None:
        """Note that an agent reaches a provider's service through the controller's connection to its host."""
        self._connected_agents.setdefault(provider, set()).add(agent)

    def _agents_through_controller(self, subject: Subject, item: Item) -> list[str]:
        """Return the agents of an item that reached its provider through the controller's connections."""
        return [agent for agent in item.entered if agent in self._connected_agents.get(subject.provider, ())]

    def way_notes(self, subject: Subject, item: Item) -> list[str]:
        """Return a remark if the times of agents on other hosts include the connection to these hosts."""
        count = len(self._agents_through_controller(subject, item))
        return [
            f"{count} of {format_count(len(item.entered), 'agent')} reached {subject.shown_provider} through this "
            "machine's connection to their host: their times include that way"
        ] if count else []  # fmt: skip

    def common_info(
        self, subject: Subject, item: Item, published: Mapping[str, Any], profile_digest: str | None
    ) -> dict[str, Any]:
        """Return the part of extra_info that every entry has: all that a reader needs to trust the entry."""
        learn_declared(subject.suite)
        return {
            "schema": ENTRY_SCHEMA,
            "outcome": "unfinished",
            "machine": self.machine,
            "agents": len(item.entered),
            "missing_agents": dict(item.missing),
            **self._host_info(subject, item),
            "provider": subject.shown_provider,
            "profile": subject.profile,
            "profile_digest": profile_digest,
            "emulated": _EMULATED[subject.emulated],
            "published": published,
            "time_scale": self.facts.time_scale,
            "seed": self.facts.seed,
            "run_id": self.facts.run_id,
            "versions": {"pytest-cloudbench": __version__, **subject.versions},
            **({"block": subject.turn.plain()} if subject.turn else {}),
            **({"through_controller": agents} if (agents := self._agents_through_controller(subject, item)) else {}),
            **({"suite": subject.suite} if subject.suite else {}),
            **({"suite_options": options} if (options := self._suite_options(subject)) else {}),
        }

    def _suite_options(self, subject: Subject) -> str:
        """Return what the command line says of how much a suite does: the grid, and numbers for its own options."""
        texts: Mapping[str, str] = self.config.option.cloudbench_suite_options
        return texts.get(str(subject.suite.get("name", "")), texts[""])

    def _host_info(self, subject: Subject, item: Item) -> dict[str, Any]:
        """Return an entry's facts about hosts, or about access line and servers if only this machine took part.

        Servers are located from this machine only, because their names may lead to other servers on other hosts.
        """
        if hosts := self.hosts.describe(item, subject.shown_provider):
            return {"hosts": hosts}
        line = self.hosts.own_line(subject.shown_provider)
        location = self.locations.find(subject.shown_provider, subject.server)
        return {**({"access_line": line} if line else {}), **({"location": location} if location else {})}

    def judge(
        self, subject: Subject, own_expectations: Sequence[expect.Expectation], metrics: Mapping[str, float | None],
        doubts: Sequence[str], info: Mapping[str, Any],
    ) -> list[expect.Judgement]:  # fmt: skip
        """Judge an entry by its own and the recorded expectations, and by all gates.

        A block of a comparison is not judged.
        """
        if subject.turn is not None:
            return []
        names = [subject.provider, *claim_names(subject.shown_provider, {"profile": subject.profile})]
        expectations = expect.select([*self.expectations, *own_expectations], names, subject.test, subject.params)
        # A recorded claim may be about another entry of the test, one of its own is about this one.
        claims = [claim for claim in expectations if claim.metric in metrics or claim in own_expectations]
        self._matched_claims.update(expectations)
        self._judged_claims.update(claims)
        time_scale_doubt = (
            [f"--time-scale {self.facts.time_scale:g} distorts times"] if self.facts.time_scale != 1.0 else []
        )

        link_doubt = [LINK_IN_TIMES] if info.get("through_controller") else []

        def doubts_of(metric: str) -> list[str]:
            is_time = metric in METRICS and METRICS[metric].time_like
            return [*doubts, *([*time_scale_doubt, *link_doubt] if is_time else [])]

        judgements = [expect.judge_expectation(claim, metrics, doubts_of(claim.metric)) for claim in claims]
        gates = [gate for gate in self._gates if gate.metric in metrics]
        self._judged_gates.update(gates)
        for gate in gates:
            compared = self._compare_with_stored(subject.fullname, gate.metric, info) if gate.relative else None
            judgements.append(expect.judge_gate(gate, metrics, compared, doubts_of(gate.metric)))
        if self._gates:
            bounded = [gate.metric for gate in gates if not gate.relative]  # a bound that breaks fails the test itself
            bounded += [claim.metric for claim in claims if expect.allows(claim, metrics)]
            judgements += expect.judge_facts(metrics, bounded)
        return judgements

    def add(
        self, subject: Subject, info: dict[str, Any], data_s: Sequence[float],
        judgements: Sequence[expect.Judgement], doubts: Sequence[str], notes: Sequence[str],
        columns: Sequence[str] = (), spread: Mapping[str, Sequence[float]] = MappingProxyType({}),
        margins: Mapping[str, float | None] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Store a judged entry, and keep it for the table at the end. The gate takes a repetition of a suspect instead.

        All entries of one experiment belong to one group, so that pytest-benchmark shows its providers beside each
        other.
        """
        if subject.turn is not None and self.add_block is not None:
            self.add_block(subject, info, doubts, spread.get("quiet_service", ()), margins)
            return
        experiment, provider = _without_provider(subject), subject.shown_provider
        if isinstance(location := info.get("location"), Mapping):
            self.locations.add(location, provider, subject.server)
        info |= {
            "doubts": list(doubts),
            "notes": list(notes),
            "expectations": [judgement.line for judgement in judgements] or ["no expectation"],
            "expectations_unmet": [judgement.line for judgement in judgements if judgement.status != "met"],
            "verdict": expect.worst(judgement.status for judgement in judgements),
            "statuses": [judgement.status for judgement in judgements],
            "experiment": experiment,
            "columns": list(columns),
            "spread": {metric: list(values) for metric, values in spread.items()},
        }
        if (declared := read_declared(info.get("suite"))) is not None:
            info["suite"] = declared.of_entry({**subject.params, **info}).plain()
        if self.gate is not None and not self.gate.take_entry(subject, info, doubts, columns, margins):
            return
        if data_s:  # empty if all agents were lost before their first record: an unknown time is not 0 s
            benchmarks.add_entry(
                self.config, name=subject.name, fullname=subject.fullname, params=subject.params, extra_info=info,
                data_s=data_s, group=experiment,
            )  # fmt: skip
        self._open_entries.setdefault(subject.nodeid, []).append(info)
        failing = failing_gates([(judgement.status, judgement.line) for judgement in judgements])
        self._failing += [(subject.fullname, info, line) for line in failing]
        self.findings.append(
            Finding(subject.fullname, provider, subject.params, info, columns, experiment, spread, subject.test)
        )

    def add_comparison(
        self, subject: Subject, info: dict[str, Any], data_s: Sequence[float], doubts: Sequence[str],
        notes: Sequence[str], gated: GatedPairs | None = None,
    ) -> None:  # fmt: skip
        """Store one entry for both sides of a comparison, and keep it for its table and for the gate."""
        info |= {"doubts": list(doubts), "notes": list(notes), "expectations": ["no expectation"]}
        if self.gate is not None and gated is not None:
            self.gate.comparisons.append(gated)
            info["gate"] = {"answer": gated.answer, "lines": list(gated.lines)}
        benchmarks.add_entry(
            self.config, name=subject.name, fullname=subject.fullname, params=subject.params, extra_info=info,
            data_s=data_s,
        )  # fmt: skip
        self._open_entries.setdefault(subject.nodeid, []).append(info)
        self.comparisons.append(Finding(subject.fullname, info["provider"], subject.params, info))

    def list_unmatched_claims(self, folders: Collection[Path]) -> list[str]:
        """Return a line for each test of which recorded expectations were judged by no entry.

        The test may have been renamed, or it measured other metrics. Claims on providers that were not measured are
        left out, and so are those on other tests that files below ``folders`` have.
        """
        tests = {split_name(nodeid).function.rpartition("::")[2] for nodeid in self.collected}
        tests |= {finding.test for finding in self.findings}
        measured = {name for finding in self.findings for name in claim_names(finding.provider, finding.info)}
        unjudged_claims, problems = self._matched_claims - self._judged_claims, Counter[str]()
        claims = {claim: claim.where["test"] for claim in self.expectations
                  if claim.provider in measured and "test" in claim.where}  # fmt: skip
        unknown_names = {*claims.values()} - tests
        unknown_names -= find_test_functions(self.config, folders, unknown_names)
        for claim, test in claims.items():
            if test in unknown_names:
                problems[f"{test}, a name that no test here has"] += 1
            elif claim in unjudged_claims:
                problems[f"{claim.metric}, which {test} did not measure"] += 1
        return [
            f"{format_count(count, 'expectation is', 'expectations are')} of {problem}"
            for problem, count in problems.items()
        ]

    def list_unjudged_gates(self) -> tuple[list[str], bool]:
        """Return a line with the reason for each gate that judged no experiment, and whether that is a failure."""
        if self.findings or self.comparisons:
            why = "no experiment in this run has that metric"
        elif self.selected is None:
            return [], False
        else:
            why = "no experiment was measured" if self.selected else "no test in this run measures anything"
        lines = [f"{gate.text}: {why}" for gate in self._gates if gate not in self._judged_gates]
        return lines, bool(self.findings or self.selected)

    def list_forgiven_gates(self) -> list[str]:
        """Return a line for each gate that must fail a test which did not fail.

        Such a test ended the session, or a hook made it pass.
        """
        return [
            f"{line} ({fullname} {info['outcome']})"
            for fullname, info, line in self._failing if info["outcome"] in ("passed", "unfinished")
        ]  # fmt: skip

    def read_stored_runs(self) -> Sequence[str]:
        """Read the stored runs that relative gates compare with. Return the names of files that cannot be read.

        Raises UsageError if the user named a run that cannot be read.
        """
        if self.has_relative:
            self._stored = benchmarks.stored_runs(self.config)
        return self._stored.unreadable if self._stored else ()

    @property
    def stores(self) -> bool:
        """True if a gate compares runs. This run's entries are then stored for the next run."""
        return self.gate is not None or self.has_relative

    @property
    def has_relative(self) -> bool:
        """True if a bound from the command line is relative to an earlier run."""
        return any(gate.relative for gate in self._gates)

    def _compare_with_stored(self, fullname: str, metric: str, info: Mapping[str, Any]) -> BaselineValue:
        runs = self._stored or benchmarks.Runs()
        compared = choose_baseline(
            runs.entries_of(fullname), info, metric, runs.named, higher=METRICS[metric].better == "higher"
        )
        if compared.value is None and runs.unreadable:
            files = ", ".join(runs.unreadable[:3])
            more = f" and {len(runs.unreadable) - 3} more" if len(runs.unreadable) > 3 else ""
            return replace(compared, remark=f"{compared.remark}; {files}{more} cannot be read")
        return compared

    def record_outcome(self, nodeid: str, outcome: str) -> None:
        """Record a test's outcome in its entries. A pardoned test counts as passed, so that it may be a baseline."""
        if self.gate is not None and nodeid in self.gate.pardoned:
            outcome = "passed"
        for info in self._open_entries.pop(nodeid, ()):
            info["outcome"] = outcome

    def mark_interrupted(self) -> None:
        """Mark all entries as interrupted, so that none of them becomes a baseline."""
        for finding in (*self.findings, *self.comparisons):
            finding.info["outcome"] = "interrupted"


def claim_names(provider: str, info: Mapping[str, Any]) -> list[str]:
    """Return the names of a provider in claims: its spec, and that of the profile of its emulator."""
    return [provider, *([f"emulated:{info['profile']}"] if info.get("profile") else [])]


def _without_provider(subject: Subject) -> str:
    """Return an entry's name without the provider among its parameters, so that it is the same for all providers."""
    entry = split_name(subject.fullname)
    if not entry.parameters:
        return subject.fullname
    inside, label = entry.parameters[1:-1], f"#{entry.label}" if entry.label else ""
    name = subject.shown_provider.encode("unicode_escape").decode()  # as pytest writes it
    around = f"-{inside}-"
    if name and f"-{name}-" in around:
        inside = around.replace(f"-{name}-", "-", 1).strip("-")
        return f"{entry.test}[{inside}]{label}" if inside else f"{entry.test}{label}"
    params = "-".join(str(value) for value in subject.params.values())
    return f"{entry.test}[{params}]{label}" if params else f"{entry.test}{label}"
