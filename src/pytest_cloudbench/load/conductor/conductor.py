"""The controller's work for the fleet: the common start, progress, and the merge of runs.

What may live here: the handlers behind the coordinator. They run in the controller process, or in the only
process without xdist, and measure nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench.fleet.coordinator import Coordinator, Handler, Item
from pytest_cloudbench.fleet.hosts.facts import HostFacts
from pytest_cloudbench.fleet.messages import ItemEnded, Message, StockEntry, WhatToLog, missing_lines
from pytest_cloudbench.fleet.run import RunFacts, slug
from pytest_cloudbench.judge.baseline import ENTRY_SCHEMA, session_conditions
from pytest_cloudbench.judge.stats import Listing
from pytest_cloudbench.load.conductor.costs import Spending, announce_run
from pytest_cloudbench.load.conductor.host_logs import HostLogs
from pytest_cloudbench.load.engine.stopping import Decider
from pytest_cloudbench.load.merging import wire
from pytest_cloudbench.load.merging.entries import Entries
from pytest_cloudbench.load.merging.merge import OpenRun, make_answer, merge_run, plan_info, warm_up_info
from pytest_cloudbench.load.messages import (
    AccountRequest,
    BlockEnded,
    Conclusion,
    EndOfRun,
    HandedIn,
    ListingPage,
    LogMoved,
    LogPiece,
    Merged,
    OpenedAccount,
    ProgressReport,
    SeriesAdd,
    SeriesOpen,
    Start,
    Started,
    Subject,
    SwitchFaults,
    TextReport,
    Watched,
)
from pytest_cloudbench.load.series import SeriesKeeper
from pytest_cloudbench.model import CloudbenchError, UsageError
from pytest_cloudbench.providers import Providers, elsewhere, resolve
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.providers.leaves import load_credentials
from pytest_cloudbench.providers.numbered import with_number
from pytest_cloudbench.report.live import Meter
from pytest_cloudbench.results import benchmarks, recovery
from pytest_cloudbench.results.entry_names import parse_label
from pytest_cloudbench.results.machine import read_cpu_ticks, reference_cpu_s
from pytest_cloudbench.results.places import make_results_folder
from pytest_cloudbench.support import redact
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:
    from pytest_cloudbench.load.engine.cpu_wait import WaitSampler
    from pytest_cloudbench.load.versus.contest import Contests

_BUSY = 0.95
_START_MARGIN_S = 0.05
_START_MARGIN_PER_AGENT_S = 0.002


class Conductor:
    """The service for the agents of one session.

    Args:
        config: pytest's configuration in this process.
        facts: the run's facts.
        entries: the session's entries.
        say: writes a line to the terminal.
        asker: returns a function that puts a question to the user, or None if there is no user to ask.
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
            allow=self.spending.check, serve_at=option.cloudbench_serve_at or "", adapt=self._adapt,
        )  # fmt: skip
        self._runs: dict[str, OpenRun] = {}
        self._host_logs = HostLogs(
            lambda run, agent: Path(facts.results) / slug(run) / f"{agent}.oplog",
            lambda run, agent, path: self._note_moved_log(agent, LogMoved(run, str(path))),
        )
        self.reports: list[tuple[str, Path | None]] = []
        self._announced, self._announcing = set[str](), threading.Lock()
        self.is_incomplete = False
        self.doubts: tuple[str, ...] = ()
        self.meter = Meter()
        self.is_elsewhere: Callable[[str], bool] = lambda agent: False
        self.way_here: Callable[[str], elsewhere.FindPort | None] = lambda agent: None
        self.on_start: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None
        self.coordinator: Coordinator | None = None
        self._series = SeriesKeeper(facts, config.invocation_params.dir)
        self._contests: Contests | None = None
        entries.add_block = lambda *block: self._get_contests().add_block(*block)

    def build_coordinator(
        self, patience_s: float, collected: Callable[[list[str]], None], **options: Any
    ) -> Coordinator:
        """Build the coordinator with these handlers. ``collected`` is called with the node ids that all agents run."""
        self.coordinator = Coordinator(
            handlers={
                "start": _handle_gathering(Start, self._start_run),
                "result": _handle_gathering(HandedIn, self._finish_run),
                "conclude": _handle_gathering(Conclusion, self._judge_conclusion),
                "turn": _handle_gathering(BlockEnded, lambda *ended: self._get_contests().next_turn(*ended)),
                "measured": self._stop_measuring,
            },
            answers={
                "alive": lambda agent, payload: None,
                "has_hosts": lambda agent, payload: self.entries.hosts.are_planned,
                "host": _handle_request(HostFacts, self.entries.hosts.add_facts),
                "secret": lambda agent, payload: redact.learn(payload),
                "clock": lambda agent, payload: now_ns(),
                "collected": lambda agent, payload: self._add_collected(payload, collected),
                "selected": self._note_selected,
                "deselected": self._note_deselected,
                "entries": self._add_stock,
                "alone": _handle_request(Conclusion, self._conclude_alone),
                "provide": self._providers.provide,
                "account": _handle_request(AccountRequest, self._open_account),
                "agree": _handle_request(Start, self._announce_run),
                "ruled": _handle_request(ItemEnded, self._rule_on_item),
                "apart": lambda agent, nodeid: self.entries.gate.pause_s(nodeid) if self.entries.gate else 0.0,
                "fresh": lambda agent, text: self._providers.reset(text),
                "faults": _handle_request(
                    SwitchFaults, lambda agent, switch: self._providers.faults(switch.provider, switch.are_on)
                ),
                "died": lambda agent, text: self._providers.died(text),
                "waits": lambda agent, text: self._say(f"cloudbench: {text}"),
                "stored": self._list_stored,
                "listing": _handle_request(ListingPage, self._add_listing_page),
                "records": _handle_request(LogPiece, self._host_logs.add),
                "moved": _handle_request(LogMoved, self._note_moved_log),
                "report": _handle_request(TextReport, self._keep_report),
                "progress": _handle_request(ProgressReport, self._add_progress),
                "watched": _handle_request(Watched, self._end_if_steady),
                "series-open": _handle_request(SeriesOpen, self._open_series),
                "series-add": _handle_request(SeriesAdd, self._add_round),
                **self._series.answers(),
            },
            patience_s=patience_s,
            unhandled=self._doubt_all,
            **options,
        )
        return self.coordinator

    def _doubt_all(self, agent: str, message: str, error: Exception) -> None:
        """Doubt all that follows, because a message that awaits no answer could not be handled."""
        doubt = f"a message of an agent ({message}) could not be handled: {error}"
        self.is_incomplete = True
        if doubt not in self.doubts:
            self.doubts = (*self.doubts, doubt)
            self._say(f"cloudbench: {doubt}")

    # -- answers to single agents -----------------------------------------------------------------

    def _adapt(self, agent: str, text: str, provided: Provided) -> Provided:
        """Return what an agent needs to connect. Raises UsageError if its host cannot reach the provider."""
        if not self.is_elsewhere(agent):
            return provided
        if (way_here := self.way_here(agent)) is None:
            return elsewhere.prepare(provided, None)

        def find_port(address: tuple[str, int]) -> int:
            self.entries.note_way(text, agent)
            return way_here(address)

        return elsewhere.prepare(provided, find_port)

    def _add_collected(self, nodeids: list[str], collected: Callable[[list[str]], None]) -> None:
        self.expect_items(nodeids)
        collected(nodeids)

    def expect_items(self, nodeids: Sequence[str]) -> None:
        """Note the session's tests that measure something."""
        self.meter.expect_experiments(nodeids)
        self.entries.collected.update(nodeids)
        if self.entries.gate is not None:
            self.entries.gate.collected.update(nodeids)

    def _note_selected(self, agent: str, count: int) -> None:
        self.entries.selected = max(count, self.entries.selected or 0)

    def _note_deselected(self, agent: str, count: int) -> None:
        self.entries.deselected = max(count, self.entries.deselected)

    def _add_stock(self, agent: str, payload: list[Any]) -> None:
        for plain in payload:
            benchmarks.add_entry(self.config, **StockEntry.from_plain(plain).plain())

    def _conclude_alone(self, agent: str, conclusion: Conclusion) -> Merged:
        """Judge and store the conclusion of an item that is not a fleet item, as one entry."""
        return self._judge_conclusion(Item(conclusion.subject.nodeid, entered=[agent]), {agent: conclusion})

    def _rule_on_item(self, agent: str, ended: ItemEnded) -> WhatToLog:
        return self.entries.gate.rule_on_item(ended) if self.entries.gate is not None else WhatToLog()

    def _add_progress(self, agent: str, report: ProgressReport) -> None:
        self.meter.add_totals(
            agent, report.done, report.throttled, report.failed, report.sample_s, report.late_s, report.in_flight
        )

    def _end_if_steady(self, agent: str, report: Watched) -> None:
        """End a run on all agents when its metric is steady, late enough for the message to reach all in time."""
        run = self._runs.get(report.run)
        if run is not None and run.decider is not None and run.decider.add_report(report):
            run.end_ns = now_ns() + run.margin_ns
            run.item.busy_until_s = run.end_ns / 1e9
            if self.coordinator is not None:
                self.coordinator.say(run.item.nodeid, "end", EndOfRun(report.run, run.end_ns))

    def _add_listing_page(self, agent: str, page: ListingPage) -> int:
        run = self._runs[page.run]
        if page.is_first:
            run.listing = Listing()
        run.listing.add(page.names, page.sizes_bytes, page.digests)
        return len(run.listing)

    def _note_moved_log(self, agent: str, moved: LogMoved) -> None:
        """Note the new path of an agent's log, so that it is found even if that agent is lost."""
        run = self._runs.get(moved.run)
        if run is not None:
            run.logs[agent] = Path(moved.path)
            self._write_recovery_note(run)

    def _keep_report(self, agent: str, report: TextReport) -> None:
        """Keep a text for the end of the session, and write its file next to the records."""
        path = Path(report.path) if report.path else None
        if path is not None:
            make_results_folder(path.parent)
            path.write_text(redact.clean(report.content), encoding="utf-8", errors="backslashreplace", newline="\n")
        self.reports.append((redact.clean(report.text), path))

    # -- handlers ---------------------------------------------------------------------------------

    def _announce_run(self, agent: str, request: Start) -> None:
        """Announce a run whose files outlive it. On real accounts, check the bound on money and the user's consent."""
        with self._announcing:  # or two agents would ask the user the same
            accounts = self._providers.accounts(request.subject.provider)
            line = self.spending.begin(request, accounts) if accounts else announce_run(request)
            turn = request.subject.turn
            if request.subject.nodeid:
                is_news = turn is None or not turn.pair  # of many blocks, only the first
            else:  # a sandbox, of which each process has one
                is_news = bool(accounts) and line not in self._announced
                self._announced.add(line)
            verbosity = getattr(self.config.option, "verbose", -1)  # -p no:terminal leaves the option out
            if verbosity >= 0 and is_news:
                self._say(line)

    def _start_run(self, item: Item, payloads: Mapping[str, Start]) -> Started:
        """Begin a run for which all agents are ready. Return its common start."""
        request = next(iter(payloads.values()))
        subject, load = request.subject, request.load
        self._providers.refill(subject.provider)
        self._providers.faults(subject.provider, True)
        folder = Path(self.facts.results) / subject.folder
        make_results_folder(folder)
        is_gated = self.entries.gate is not None and subject.turn is None  # two sides are their own reference
        reference_s = (reference_cpu_s(),) if is_gated else ()
        counter = wire.start_counting(payloads.values(), self._providers.find_provided(subject.provider))
        sampler = self._start_sampler(subject.provider, payloads.values())
        start_s = max(start.start_s for start in payloads.values())
        margin_ns = _margin_ns(payloads.values())
        start_ns = now_ns() + margin_ns + round(start_s * 1e9)
        item.busy_until_s = start_ns / 1e9 + max(start.planned_s for start in payloads.values())
        wall_ms = (time.time_ns() + start_ns - now_ns()) // 1_000_000
        run = self._runs[subject.run] = OpenRun(
            folder, item, request, start_ns, wall_ms, self._providers.digest(subject.provider),
            notes=[*request.entry.notes, *self.entries.way_notes(subject, item)], cpu_ticks=read_cpu_ticks(),
            measured_from_ns=start_ns + round(load.warm_up_s / self.facts.time_scale * 1e9),
            decider=Decider(load.until) if load.until is not None else None, reference_s=reference_s,
            counter=counter, sampler=sampler, margin_ns=margin_ns,
        )  # fmt: skip
        self._write_recovery_note(run)
        planned_s = max(start.planned_s for start in payloads.values())
        self.meter.begin_run(item.nodeid, load.ops, start_ns, planned_s, len(payloads), _run_remark(subject))
        self.on_start()
        return Started(start_ns)

    def _start_sampler(self, provider: str, agents: Iterable[Start]) -> WaitSampler:
        """Begin to sample how long threads of a run wait for a CPU, other than those of its operations."""
        from pytest_cloudbench.load.engine.cpu_wait import WaitSampler
        from pytest_cloudbench.services.child import ChildService

        services = self._providers.services(provider)
        pids = [service.child.pid for service in services if isinstance(service, ChildService)]
        return WaitSampler(pids, [agent.pid for agent in agents])

    def _list_stored(self, agent: str, provider: str) -> list[tuple[str, bytes]] | None:
        """Return what a provider's services store. None if it has none, or one whose store cannot be read."""
        from pytest_cloudbench.services import ShowsStore

        services = self._providers.services(provider)
        if not services or not all(isinstance(service, ShowsStore) for service in services):
            return None
        return [item for service in services if isinstance(service, ShowsStore) for item in service.stored()]

    def _open_account(self, agent: str, request: AccountRequest) -> OpenedAccount:
        """Return another account of a provider. Raises UsageError and ServiceError if there is none."""
        from pytest_cloudbench.services import HasAccounts

        text, provided = request.provider, self._providers.provide(agent, request.provider)
        if provided.children:
            raise UsageError(f"{text}: an array has no accounts; ask the providers that it is made of")
        services = self._providers.services(text)
        if not services:
            spec = with_number(text, request.number)
            parts = map(resolve, (text, spec))
            first, other = (load_credentials(part.bound, part.account) for part in parts)
            if first == other:
                raise UsageError(f"{spec}: has the credentials of {text}; give those of another account")
            return OpenedAccount(spec, self._providers.provide(agent, spec))
        if not isinstance(services[0], HasAccounts):
            raise UsageError(f"{text}: its server has one account")
        endpoint = services[0].open_account(request.number)
        return OpenedAccount(text, self._adapt(agent, text, provided.replace(endpoint=endpoint)))

    def _write_recovery_note(self, run: OpenRun) -> None:
        """Write the note that ``cloudbench recover`` needs if this process is killed.

        A full disk does not stop the run.
        """
        request, subject = run.request, run.request.subject
        info = {
            **self.entries.common_info(subject, run.item, request.entry.published, run.profile_digest),
            **request.entry.extra, **plan_info(request.load), **warm_up_info(run),
        }  # fmt: skip
        note = {
            "measured_from_ns": run.measured_from_ns if request.load.warm_up_s else None,
            "fullname": subject.fullname, "name": subject.name, "run": subject.run, "params": subject.params,
            "run_id": self.facts.run_id, "info": info,
        }  # fmt: skip
        with contextlib.suppress(OSError):
            recovery.write_note(run.folder, note, run.logs)

    def _stop_measuring(self, item: Item, payloads: Mapping[str, str]) -> None:
        """Stop counters and samplers when all agents have finished their operations."""
        run, now = self._runs[next(iter(payloads.values()))], read_cpu_ticks()
        if run.counter is not None:
            run.carried = wire.stop_counting(run.counter)
        self._providers.faults(run.request.subject.provider, False)  # the listing is not part of the measurement
        if run.sampler is not None:
            run.helper_waits, run.sampler = run.sampler.stop(), None
        if run.cpu_ticks is not None and now is not None and (shares := now.shares_since(run.cpu_ticks)):
            run.cpu_share, run.steal_share = shares
            if run.cpu_share > _BUSY:
                run.notes.append(f"this machine was busy (CPU above {_BUSY:.0%}), which may have added to the times")

    def _finish_run(self, item: Item, payloads: Mapping[str, HandedIn]) -> Merged:
        """Merge, verify, store and judge a run that all agents are done with. Return the answer to all of them."""
        self.meter.end_run()
        self.on_end()
        first = next(iter(payloads.values()))
        run = self._runs.pop(first.run)
        self._providers.faults(run.request.subject.provider, True)
        run.is_verified = first.verified
        cpu_s = [handed_in.cpu_s for handed_in in payloads.values()]
        if run.reference_s:
            run.reference_s += (reference_cpu_s(),)
        run.client_cpu_s = None if None in cpu_s else sum(filter(None, cpu_s))
        for agent, handed_in in payloads.items():
            run.notes += [note for note in handed_in.notes if note not in run.notes]
            if handed_in.log_path:
                run.logs[agent] = Path(handed_in.log_path)
        try:
            doubts = dict.fromkeys(doubt for handed_in in payloads.values() for doubt in handed_in.doubts)
            return self._merge_run(run, [*self._budget_doubts(payloads), *doubts])
        except KeyboardInterrupt:  # without xdist this is the thread that Ctrl-C reaches
            self._runs[first.run] = run
            raise

    def _budget_doubts(self, payloads: Mapping[str, HandedIn]) -> list[str]:
        """Return a doubt for each limit of the user that stopped an agent early.

        An agent has a part of each limit only.
        """
        limits = {"--max-ops": self.facts.max_ops, "--max-bytes": self.facts.max_bytes}
        reasons = {handed_in.stopped for handed_in in payloads.values() if handed_in.stopped}
        used_up = {option for option in limits if any(reason.startswith(option) for reason in reasons)}
        return [f"{option} {limits[option]} is used up" for option in sorted(used_up)]

    def _merge_run(self, run: OpenRun, stopped: list[str]) -> Merged:
        doubts = [*self.doubts, *self._lost_agent_doubts(run.item), *stopped]
        if run.counter is not None:
            run.counter.close()
        if run.sampler is not None:  # the run did not reach its end
            run.sampler.stop()
        kept = self._host_logs.end(run.request.subject.run)
        run.logs |= kept.paths
        run.notes += [note for note in kept.notes if note not in run.notes]
        run.is_incomplete |= bool(kept.doubts)
        doubts += kept.doubts
        provider = run.request.subject.provider
        died, servers = self._providers.died(provider), self._providers.own_servers(provider)
        merged = merge_run(run, self.entries, doubts, died, servers)
        self.is_incomplete |= run.is_incomplete
        return merged

    def _lost_agent_doubts(self, item: Item) -> list[str]:
        """Return doubts about agents that were lost during an item or before, and about hosts that lost all agents."""
        absent = item.expected - len({*item.entered, *item.missing})
        remark = f"began with {len(item.entered)} of {format_count(item.expected, 'agent')}"
        remark += f": {absent} had been lost before, and not been replaced yet"
        hosts = [
            f"host {host['name']} was not there to the end: {host['lost_because']}"
            for host in self.entries.hosts.describe(item) if host["lost_agents"] >= host["agents"]
        ]  # fmt: skip
        return [*missing_lines(item.missing), *([remark] if absent > 0 else []), *hosts]

    def _open_series(self, agent: str, message: SeriesOpen) -> None:
        """Begin a series, or continue one."""
        self._series.begin(message, self._find_item(agent).nodeid)

    def _add_round(self, agent: str, message: SeriesAdd) -> None:
        """Record a round of a series, with what may be different in another session."""
        item = self._find_item(agent)
        self._series.add(message, session_conditions({
            "schema": ENTRY_SCHEMA, "agents": len(item.entered), "machine": self.entries.machine,
            "profile_digest": self._providers.digest(message.provider), "hosts": self.entries.hosts.describe(item),
        }))  # fmt: skip

    def _find_item(self, agent: str) -> Item:
        """Return the item at which an agent is."""
        item = self.coordinator.find_item(agent) if self.coordinator is not None else None
        return item or Item("", entered=[agent])

    def _judge_conclusion(self, item: Item, payloads: Mapping[str, Conclusion]) -> Merged:
        """Judge and store a test's conclusion from several runs as one entry."""
        from pytest_cloudbench.judge.watched import capabilities  # imports the judgement of a history

        conclusion = next(iter(payloads.values()))
        subject, entry, metrics = conclusion.subject, conclusion.entry, {**conclusion.losses, **conclusion.metrics}
        doubts = list(dict.fromkeys([*self.doubts, *self._lost_agent_doubts(item), *conclusion.doubts]))
        notes = [*entry.notes, *self.entries.way_notes(subject, item)]
        digest = self._providers.digest(subject.provider)
        info = {
            **self.entries.common_info(subject, item, entry.published, digest), "ops": conclusion.ops,
            "ops_files": list(conclusion.ops_files), "stats_of": conclusion.stats_of, "loop": conclusion.loop,
            **conclusion.own, **entry.extra, **metrics, **conclusion.shown, **capabilities(metrics),
            **({} if self.entries.gate is None else {"reference_cpu_s": reference_cpu_s()}),
        }  # fmt: skip
        if differences := self._series.describe_differences(item.nodeid, session_conditions(info)):
            info["resumed_rounds"] = differences
            notes.append(f"resumed: {differences}")
        judgements = self.entries.judge(subject, entry.expect, metrics, doubts, info)
        columns = conclusion.columns or tuple(conclusion.metrics)
        self.entries.add(
            subject, info, conclusion.rounds_s, judgements, doubts, notes, columns, conclusion.spread, entry.gate
        )
        return make_answer(info, judgements, doubts, notes)

    def _get_contests(self) -> Contests:
        """Return the comparisons of two sides, created at first use because most sessions have none."""
        if self._contests is None:
            from pytest_cloudbench.load.versus.contest import Contests, Rules

            option, gate = self.config.option, self.entries.gate
            rules = Rules(option.cloudbench_versus_minutes, setup=option.cloudbench_versus_setup or "")
            if deciding := option.cloudbench_versus_metric:
                rules = replace(rules, deciding=tuple(dict.fromkeys(deciding)))
            self._contests = Contests(rules, self.entries, gate.settings.margins if gate is not None else None)
        return self._contests

    # -- the end ----------------------------------------------------------------------------------

    def record_outcome(self, nodeid: str, outcome: str) -> None:
        """Record the outcome of a test that was reported."""
        if self._contests is not None:
            self._contests.end_test(nodeid, outcome)
        self.entries.record_outcome(nodeid, outcome)
        self.meter.end_experiment(nodeid, outcome)

    def salvage(self, why: str) -> None:
        """Merge the runs that never reached their result, after Ctrl-C or the loss of the fleet."""
        unfinished, self._runs = self._runs, {}
        for run in unfinished.values():
            if run.counter is not None:
                run.counter.close()
            if not (run.logs or run.folder.is_dir()):
                continue
            try:
                self._merge_run(run, [why])
            except CloudbenchError as error:
                self._say(str(error))
        if self._contests is not None:
            self._contests.close(why)
        for line in self._series.describe_stopped():
            self._say(f"cloudbench: {line}")

    def close(self) -> None:
        """End the coordinator, the series and the services. Raises ServiceError if a service had already died."""
        if self.coordinator is not None:
            self.coordinator.close()
        self._host_logs.close()
        self._series.close()
        self._providers.close()


def _run_remark(subject: Subject) -> str:
    """Return what distinguishes a run from others of its test: its side or its label, but not a mere number."""
    if subject.turn is not None:
        return f"{subject.turn.side}{'' if subject.turn.pair else ', warm-up'}"
    label = parse_label(subject.nodeid, subject.fullname)
    return "" if label.isdigit() else label


def _margin_ns(agents: Collection[Start]) -> int:
    """Return the longest time that a message takes to reach all agents on a busy machine, and on the hosts."""
    reach_s = max(agent.reach_s for agent in agents)
    return round((_START_MARGIN_S + _START_MARGIN_PER_AGENT_S * len(agents) + reach_s) * 1e9)


def _handle_gathering(kind: type[Message], handler: Callable[[Item, dict[str, Any]], Any]) -> Handler:
    """Return a handler for a gathering whose payloads are messages of one kind."""
    return lambda item, payloads: handler(
        item, {agent: kind.from_plain(payload) for agent, payload in payloads.items()}
    )


def _handle_request(kind: type[Message], answer: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """Return a handler for requests that are messages of one kind."""
    return lambda agent, payload: answer(agent, kind.from_plain(payload))
