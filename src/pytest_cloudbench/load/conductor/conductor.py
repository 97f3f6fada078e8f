"""What the controller does for the fleet: the common start, progress, and when runs are merged.

What may live here: the handlers behind the coordinator. Runs in the controller process, or in the only
process without xdist. Nothing here measures: it starts, merges and judges.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench.fleet.coordinator import Coordinator, Handler, Item
from pytest_cloudbench.fleet.messages import ItemEnded, Message, StockEntry, WhatToLog, missing_lines
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.load.conductor.costs import Spending, announcement
from pytest_cloudbench.load.engine.stopping import Decider
from pytest_cloudbench.load.merging import wire
from pytest_cloudbench.load.merging.entries import Entries
from pytest_cloudbench.load.merging.merge import OpenRun, answer, merge, planned_of, warm_up_info
from pytest_cloudbench.load.messages import (
    BlockEnded,
    Conclusion,
    EndOfRun,
    HandedIn,
    ListingPage,
    LogMoved,
    LogPiece,
    Merged,
    ProgressReport,
    Start,
    Started,
    Subject,
    SwitchFaults,
    TextReport,
    Watched,
)
from pytest_cloudbench.load.names import label_of
from pytest_cloudbench.load.series import SeriesKeeper
from pytest_cloudbench.model import CloudbenchError
from pytest_cloudbench.providers import Providers
from pytest_cloudbench.report.live import Meter
from pytest_cloudbench.results import benchmarks, recovery
from pytest_cloudbench.results.machine import read_cpu_ticks, reference_cpu_s
from pytest_cloudbench.results.places import make_results_folder
from pytest_cloudbench.support import redact
from pytest_cloudbench.support.clock import now_ns

if TYPE_CHECKING:
    from pytest_cloudbench.load.engine.cpu_wait import WaitSampler
    from pytest_cloudbench.load.versus.contest import Contests

_BUSY = 0.95

_START_MARGIN_S = 0.05
_START_MARGIN_PER_AGENT_S = 0.002


class Conductor:
    """Serves the agents of one session.

    Args:
        config: pytest's configuration in this process.
        facts: the run's facts.
        entries: what the session has found out.
        say: writes a line to the terminal.
        asker: returns a function that puts a question to the user; None if there is no user to ask.
    """

    def __init__(
        self,
        config: pytest.Config,
        facts: RunFacts,
        entries: Entries,
        say: Callable[[str], None],
        asker: Callable[[], Callable[[str], bool] | None] = lambda: None,
    ) -> None:
        self.config, self.facts, self.entries, self._say = config, facts, entries, say
        option = config.option
        self.spending = Spending(option.cloudbench_max_cost, option.cloudbench_yes, asker)
        self._providers = Providers(
            facts.seed, time_scale=facts.time_scale, patience_s=option.cloudbench_patience, logs=Path(facts.results),
            allow=self.spending.check,
        )  # fmt: skip
        self._runs: dict[str, OpenRun] = {}
        self.reports: list[tuple[str, Path | None]] = []
        self.is_incomplete = False
        self.doubts: tuple[str, ...] = ()
        self.meter = Meter()
        self.on_start: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None
        self.coordinator: Coordinator | None = None
        self._series = SeriesKeeper(facts, config.invocation_params.dir)
        self._contests: Contests | None = None
        entries.add_block = lambda *block: self._versus().add(*block)

    def build_coordinator(
        self, patience_s: float, collected: Callable[[list[str]], None], **options: Any
    ) -> Coordinator:
        """Build the coordinator with these handlers; ``collected`` gets the node ids that all agents run."""
        self.coordinator = Coordinator(
            handlers={
                "start": _gathered(Start, self._start),
                "result": _gathered(HandedIn, self._result),
                "conclude": _gathered(Conclusion, self._conclusion),
                "turn": _gathered(BlockEnded, lambda *ended: self._versus().next(*ended)),
                "measured": self._all_measured,
            },
            answers={
                "alive": lambda agent, payload: None,
                "secret": lambda agent, payload: redact.learn(payload),
                "clock": lambda agent, payload: now_ns(),
                "collected": lambda agent, payload: self._collected(payload, collected),
                "selected": self._select,
                "entries": self._add_stock,
                "alone": _asked(Conclusion, self._alone),
                "provide": self._providers.provide,
                "agree": _asked(Start, self._agree),
                "ruled": _asked(ItemEnded, self._ruled),
                "apart": lambda agent, nodeid: self.entries.gate.apart_s(nodeid) if self.entries.gate else 0.0,
                "fresh": lambda agent, text: self._providers.reset(text),
                "faults": _asked(
                    SwitchFaults, lambda agent, asked: self._providers.faults(asked.provider, asked.are_on)
                ),
                "died": lambda agent, text: self._providers.died(text),
                "listing": _asked(ListingPage, self._listing),
                "records": _asked(LogPiece, self._records),
                "moved": _asked(LogMoved, self._moved),
                "report": _asked(TextReport, self._report),
                "progress": _asked(ProgressReport, self._progress),
                "watched": _asked(Watched, self._watched),
                **self._series.answers(),
            },
            patience_s=patience_s,
            **options,
        )
        return self.coordinator

    # -- answers to single agents -----------------------------------------------------------------

    def _collected(self, nodeids: list[str], collected: Callable[[list[str]], None]) -> None:
        self.expect(nodeids)
        collected(nodeids)

    def expect(self, nodeids: Sequence[str]) -> None:
        """Take note of the session's tests that measure something."""
        self.meter.expect(nodeids)
        if self.entries.gate is not None:
            self.entries.gate.collected.update(nodeids)

    def _select(self, agent: str, count: int) -> None:
        self.entries.selected = max(count, self.entries.selected or 0)

    def _add_stock(self, agent: str, payload: list[Any]) -> None:
        for each in payload:
            benchmarks.add_entry(self.config, **StockEntry.from_plain(each).plain())

    def _alone(self, agent: str, asked: Conclusion) -> Merged:
        """Judge and store the conclusion of an item that is not a fleet item, as one entry."""
        return self._conclusion(Item(asked.subject.nodeid, entered=[agent]), {agent: asked})

    def _ruled(self, agent: str, asked: ItemEnded) -> WhatToLog:
        return self.entries.gate.ended(asked) if self.entries.gate is not None else WhatToLog()

    def _progress(self, agent: str, told: ProgressReport) -> None:
        self.meter.told(agent, told.done, told.throttled, told.failed, told.sample_s, told.late_s, told.in_flight)

    def _watched(self, agent: str, told: Watched) -> None:
        """End a run on all agents when its metric has been steady; a little later, so that all hear of it in time."""
        run = self._runs.get(told.run)
        if run is not None and run.decider is not None and run.decider.add_report(told):
            run.end_ns = now_ns() + _margin_ns(len(run.item.members))
            run.item.busy_until_s = run.end_ns / 1e9
            if self.coordinator is not None:
                self.coordinator.say(run.item.nodeid, "end", EndOfRun(told.run, run.end_ns))

    def _records(self, agent: str, told: LogPiece) -> None:
        """Keep a piece of the log of an agent on another host."""
        run = self._runs[told.run]
        make_results_folder(run.folder)
        with (run.folder / f"{agent}.oplog").open("ab") as file:
            file.write(told.piece)

    def _listing(self, agent: str, page: ListingPage) -> int:
        run = self._runs[page.run]
        for file in zip(page.names, page.sizes_bytes, page.digests, strict=True):
            run.listing.add(*file)
        return len(run.listing)

    def _moved(self, agent: str, told: LogMoved) -> None:
        """Note that an agent's log continues in another place, so that it is found even if that agent is lost."""
        run = self._runs.get(told.run)
        if run is not None:
            run.logs[agent] = Path(told.path)
            self._note(run)

    def _report(self, agent: str, told: TextReport) -> None:
        """Keep a text for the end, and its file beside the records."""
        path = Path(told.path) if told.path else None
        if path is not None:
            make_results_folder(path.parent)
            path.write_text(told.content, encoding="utf-8", errors="backslashreplace", newline="\n")
        self.reports.append((told.text, path))

    # -- handlers ---------------------------------------------------------------------------------

    def _agree(self, agent: str, asked: Start) -> None:
        """Announce a run whose files outlive it; on real accounts, check the bound and that the user agreed."""
        accounts = self._providers.accounts(asked.subject.provider)
        line = self.spending.begin(asked, accounts) if accounts else announcement(asked)
        turn = asked.subject.turn
        if self.config.option.verbose >= 0 and (turn is None or not turn.pair):  # of many blocks, only the first
            self._say(line)

    def _start(self, item: Item, payloads: Mapping[str, Start]) -> Started:
        """All agents are ready: set the time at which the experiment begins."""
        asked = next(iter(payloads.values()))
        subject, load = asked.subject, asked.load
        self._providers.refill(subject.provider)
        self._providers.faults(subject.provider, True)
        folder = Path(self.facts.results) / subject.folder
        make_results_folder(folder)
        is_gated = self.entries.gate is not None and subject.turn is None  # two sides are their own reference
        reference_s = (reference_cpu_s(),) if is_gated else ()
        counter = wire.begin(payloads.values())
        sampler = self._sampler(subject.provider, payloads.values())
        start_ns = now_ns() + _margin_ns(len(payloads))
        item.busy_until_s = start_ns / 1e9 + max(each.planned_s for each in payloads.values())
        wall_ms = (time.time_ns() + start_ns - now_ns()) // 1_000_000
        run = self._runs[subject.run] = OpenRun(
            folder, item, asked, start_ns, wall_ms, self._providers.digest(subject.provider),
            notes=list(asked.entry.notes), cpu_ticks=read_cpu_ticks(),
            measured_from_ns=start_ns + round(load.warm_up_s / self.facts.time_scale * 1e9),
            decider=Decider(load.until) if load.until is not None else None, reference_s=reference_s,
            counter=counter, sampler=sampler,
        )  # fmt: skip
        self._note(run)
        planned_s = max(each.planned_s for each in payloads.values())
        self.meter.begin(item.nodeid, load.ops, start_ns, planned_s, len(payloads), _line(subject))
        self.on_start()
        return Started(start_ns)

    def _sampler(self, provider: str, agents: Iterable[Start]) -> WaitSampler:
        """Begin to sample how long threads wait for a CPU that work for a run beside those of its operations."""
        from pytest_cloudbench.load.engine.cpu_wait import WaitSampler

        return WaitSampler(self._providers.pids(provider), [agent.pid for agent in agents])

    def _note(self, run: OpenRun) -> None:
        """Write down what ``cloudbench recover`` needs if this process is killed; a full disk does not stop the run."""
        asked, subject = run.asked, run.asked.subject
        info = {
            **self.entries.info(subject, run.item, asked.entry.published, run.profile_digest), **asked.entry.extra,
            **planned_of(asked.load), **warm_up_info(run),
        }  # fmt: skip
        note = {
            "measured_from_ns": run.measured_from_ns if asked.load.warm_up_s else None,
            "fullname": subject.fullname, "name": subject.name, "run": subject.run, "params": subject.params,
            "run_id": self.facts.run_id, "info": info,
        }  # fmt: skip
        with contextlib.suppress(OSError):
            recovery.write_note(run.folder, note, run.logs)

    def _all_measured(self, item: Item, payloads: Mapping[str, str]) -> None:
        """All agents have finished their operations: record how busy this machine was."""
        run, now = self._runs[next(iter(payloads.values()))], read_cpu_ticks()
        if run.counter is not None:
            run.carried = wire.ended(run.counter)
        self._providers.faults(run.asked.subject.provider, False)  # the listing is not part of the measurement
        if run.sampler is not None:
            run.beside, run.sampler = run.sampler.stop(), None
        if run.cpu_ticks is not None and now is not None and (shares := now.shares_since(run.cpu_ticks)):
            run.cpu_share, run.steal_share = shares
            if run.cpu_share > _BUSY:
                run.notes.append(f"this machine was busy (CPU above {_BUSY:.0%}), which may have added to the times")

    def _result(self, item: Item, payloads: Mapping[str, HandedIn]) -> Merged:
        """All agents are done: merge, verify, store and judge. Return the answer that every agent's test receives."""
        self.meter.end()
        self.on_end()
        first = next(iter(payloads.values()))
        run = self._runs.pop(first.run)
        self._providers.faults(run.asked.subject.provider, True)
        run.verified = first.verified
        cpu_s = [each.cpu_s for each in payloads.values()]
        if run.reference_s:
            run.reference_s += (reference_cpu_s(),)
        run.client_cpu_s = None if None in cpu_s else sum(filter(None, cpu_s))
        for agent, each in payloads.items():
            run.notes += each.notes
            if each.log_path:
                run.logs[agent] = Path(each.log_path)
        offsets_ns = {agent: each.clock_offset_ns for agent, each in payloads.items()}
        try:
            return self._conclude(run, self._stopped(payloads), offsets_ns)
        except KeyboardInterrupt:  # without xdist this is the thread that Ctrl-C reaches
            self._runs[first.run] = run
            raise

    def _stopped(self, payloads: Mapping[str, HandedIn]) -> list[str]:
        """Why agents stopped early; an agent's budget is its part of what the user allowed."""
        given = {"--max-ops": self.facts.max_ops, "--max-bytes": self.facts.max_bytes}
        reasons = {each.stopped for each in payloads.values() if each.stopped}
        used = {option for option in given if any(reason.startswith(option) for reason in reasons)}
        return [f"{option} {given[option]} is used up" for option in sorted(used)]

    def _conclude(self, run: OpenRun, stopped: list[str], offsets_ns: Mapping[str, int]) -> Merged:
        doubts = [*self.doubts, *_lost(run.item), *stopped]
        if run.counter is not None:
            run.counter.close()
        if run.sampler is not None:  # it did not come to its end
            run.sampler.stop()
        provider = run.asked.subject.provider
        died, servers = self._providers.died(provider), self._providers.own_servers(provider)
        merged = merge(run, self.entries, doubts, died, servers, offsets_ns)
        self.is_incomplete |= run.is_incomplete
        return merged

    def _conclusion(self, item: Item, payloads: Mapping[str, Conclusion]) -> Merged:
        """Judge and store what a test concludes from several runs, as one entry."""
        from pytest_cloudbench.judge.watched import capabilities  # imports what judges a history

        asked = next(iter(payloads.values()))
        doubts = list(dict.fromkeys([*self.doubts, *_lost(item), *asked.doubts]))
        digest = self._providers.digest(asked.subject.provider)
        info = {
            **self.entries.info(asked.subject, item, asked.entry.published, digest), "ops": asked.ops,
            "ops_files": list(asked.ops_files), "stats_of": asked.stats_of, "loop": asked.loop, **asked.own,
            **asked.entry.extra, **asked.metrics, **asked.shown, **capabilities(asked.metrics),
            **({} if self.entries.gate is None else {"reference_cpu_s": reference_cpu_s()}),
        }  # fmt: skip
        judgements = self.entries.judge(asked.subject, asked.entry.expect, asked.metrics, doubts, info)
        self.entries.add(
            asked.subject, info, asked.rounds_s, judgements, doubts, asked.entry.notes, asked.columns, asked.spread,
            asked.entry.gate,
        )  # fmt: skip
        return answer(info, judgements, doubts, asked.entry.notes)

    def _versus(self) -> Contests:
        """What compares two sides, made at its first use: most sessions compare none."""
        if self._contests is None:
            from pytest_cloudbench.load.versus.contest import Contests, Rules

            option, gate = self.config.option, self.entries.gate
            rules = Rules(option.cloudbench_versus_minutes, setup=option.cloudbench_versus_setup or "")
            if deciding := option.cloudbench_versus_metric:
                rules = replace(rules, deciding=tuple(dict.fromkeys(deciding)))
            self._contests = Contests(rules, self.entries, gate.settings.margins if gate is not None else None)
        return self._contests

    # -- the end ----------------------------------------------------------------------------------

    def ended(self, nodeid: str, outcome: str) -> None:
        """A test has been reported."""
        if self._contests is not None:
            self._contests.ended(nodeid, outcome)
        self.entries.ended(nodeid, outcome)
        self.meter.ended(nodeid, outcome)

    def salvage(self, why: str) -> None:
        """Keep what was measured by experiments that never reached their result (Ctrl-C, a lost fleet)."""
        unfinished, self._runs = self._runs, {}
        for run in unfinished.values():
            if run.counter is not None:
                run.counter.close()
            if not (run.logs or run.folder.is_dir()):
                continue
            try:
                self._conclude(run, [why], {})
            except CloudbenchError as error:
                self._say(str(error))
        if self._contests is not None:
            self._contests.close(why)

    def close(self) -> None:
        """End the services and the watch. Raises ServiceError if a service had already died."""
        if self.coordinator is not None:
            self.coordinator.close()
        self._series.close()
        self._providers.close()


def _lost(item: Item) -> list[str]:
    """Return a doubt for agents that an item has lost, and one for those that had been lost before it began."""
    absent = item.expected - len({*item.entered, *item.missing})
    began = f"began with {len(item.entered)} of {item.expected} agents"
    began += f": {absent} had been lost before, and not been replaced yet"
    return [*missing_lines(item.missing), *([began] if absent > 0 else [])]


def _line(subject: Subject) -> str:
    """Return what tells a run from others of its experiment: its side, its label, or nothing if it has a number."""
    if subject.turn is not None:
        return f"{subject.turn.side}{'' if subject.turn.pair else ', warm-up'}"
    label = label_of(subject.nodeid, subject.fullname)
    return "" if label.isdigit() else label


def _margin_ns(agents: int) -> int:
    """How long a message takes at most to reach all agents, on a busy machine."""
    return round((_START_MARGIN_S + _START_MARGIN_PER_AGENT_S * agents) * 1e9)


def _gathered(kind: type[Message], handler: Callable[[Item, dict[str, Any]], Any]) -> Handler:
    """Return a handler for a gathering whose payloads are messages of one kind."""
    return lambda item, payloads: handler(
        item, {agent: kind.from_plain(payload) for agent, payload in payloads.items()}
    )


def _asked(kind: type[Message], answer: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """Return what answers requests that are messages of one kind."""
    return lambda agent, payload: answer(agent, kind.from_plain(payload))
