"""The controller at work in one pytest session.

What may live here: the conductor and its coordinator bound to that session, the progress line, and the session's end,
with what is printed and saved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_cloudbench.fleet.agent import Agent, local_agent
from pytest_cloudbench.fleet.hosts.facts import SessionHosts
from pytest_cloudbench.fleet.interrupts import is_ctrl_c_ignored
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.judge import expect
from pytest_cloudbench.load import policy
from pytest_cloudbench.load.conductor.conductor import Conductor
from pytest_cloudbench.load.conductor.outputs import Outputs
from pytest_cloudbench.load.merging.entries import Entries
from pytest_cloudbench.model import CloudbenchError, UsageError
from pytest_cloudbench.report.live import Live, PeriodicProgress, open_terminal
from pytest_cloudbench.results import benchmarks, recovery, stored
from pytest_cloudbench.results.installed import learn_installed, learn_loaded
from pytest_cloudbench.results.locations import StoredLocations
from pytest_cloudbench.results.places import session_results_folder
from pytest_cloudbench.support import redact
from pytest_cloudbench.support.printable import shorten_path
from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:
    from pytest_cloudbench.fleet.hosts.table import Host
    from pytest_cloudbench.load.cassette.cassette import Cassette
    from pytest_cloudbench.load.gate.session import SessionGate
    from pytest_cloudbench.report.live_page import LivePage

_GATE_MARKUP: dict[str, dict[str, bool]] = {"broken": {"red": True}, "inconclusive": {"yellow": True}}

_DISMISS_S = 5.0
"""The time that agents have to stop and flush their records when the session ends during a run."""


class Workers(Protocol):
    """xdist's workers, as this service for their agents needs them."""

    def is_apart(self, agent: str) -> bool:
        """Return whether an agent is at a different item from the one where others wait for it."""

    def size(self) -> int:
        """Return how many agents run an item for the whole fleet, if none is lost."""

    def is_elsewhere(self, agent: str) -> bool:
        """Return whether an agent is on another host."""

    def find_host(self, agent: str) -> str:
        """Return the name of an agent's host, empty for this machine."""

    def list_planned_hosts(self) -> Sequence[tuple[Host, str]]:
        """Return the hosts of the user's table, each with why it was given up, or an empty text."""

    def way_here(self, agent: str) -> Callable[[tuple[str, int]], int] | None:
        """Return a function that finds the port of an agent's host for an address here. None if nothing leads here."""

    def add_fleet_items(self, nodeids: list[str]) -> None:
        """Note items that workers have collected and that all of them run."""

    def ask(self, agent: str, answered: Callable[[], None]) -> None:
        """Ask whether an agent's process runs, without waiting for its answer."""

    def kill(self, agent: str) -> None:
        """End an agent's process at once, whatever its state."""


class Serving:
    """The controller's service for the agents of one session. Raises UsageError for bad input.

    Args:
        config: pytest's configuration in the controller.
        facts: the run's facts.
        workers: xdist's workers.
        cassette: records or replays this session, None if it does neither.
    """

    def __init__(
        self,
        config: pytest.Config,
        facts: RunFacts,
        workers: Workers,
        cassette: Cassette | None = None,
    ) -> None:
        option = config.option
        learn_loaded(config.pluginmanager.get_plugins())
        if option.cloudbench_fail or facts.gated:
            learn_installed()  # bounds may name metrics of any suite, whichever runs
        gates = [expect.parse_gate(text) for text in option.cloudbench_fail]
        self.config, self.facts, self._workers, self._cassette = config, facts, workers, cassette
        self._outputs = Outputs(option, facts.run_id)
        gate = _make_gate(config) if facts.gated else None
        self.entries = Entries(config, facts, gates, gate)
        self._read_expectations()
        self.conductor = Conductor(config, facts, self.entries, self._say, self._find_asker)
        if cassette is not None:
            self.conductor.doubts = (cassette.doubt,)
            self.conductor.spending.is_agreed |= cassette.is_replay
        self.conductor.is_elsewhere = workers.is_elsewhere
        self.entries.hosts = SessionHosts(
            workers.find_host, workers.list_planned_hosts, session_results_folder(config)
        )  # fmt: skip
        self.entries.locations = StoredLocations(session_results_folder(config))
        self.conductor.way_here = workers.way_here
        self.conductor.on_start = self._show_progress
        config.pluginmanager.register(_Endings(self._end_test), "cloudbench-endings")
        self._storage_folder: Path | None = None
        self._hint_if_not_stored = ""
        self._report_path: Path | None = None
        self._is_announced = False
        self._shown_count = 0
        self._live: Live | PeriodicProgress | None = None
        meter = self.conductor.meter
        self._page: LivePage | None = None
        if option.cloudbench_live is not None:
            from pytest_cloudbench.report.live_digest import LiveDigests
            from pytest_cloudbench.report.live_page import LivePage  # a server's libraries, which few runs need

            meter.follower = digests = LiveDigests()
            self._page = LivePage(option.cloudbench_live, meter.overview, digests)
        self._output_descriptor: int | None = None
        self._is_distributed = str(getattr(option, "dist", "no")) != "no"
        self.coordinator = self.conductor.build_coordinator(
            option.cloudbench_patience,
            workers.add_fleet_items,
            kill=self._end_agent,
            ask=workers.ask,
            apart=workers.is_apart,
            size=workers.size,
            stop=self._stop_reason,
            maxfail=config.getvalue("maxfail") if self._is_distributed else 0,
            **({"again": gate.round_of} if gate else {}),
        )

    @cached_property
    def agent(self) -> Agent:
        """The one agent of a run without xdist."""
        agent = local_agent(self.coordinator)
        agent.gated = self.facts.gated
        return agent

    def _read_expectations(self) -> None:
        """Read what results are judged by, again whenever a suite brings more. Raises UsageError."""
        self._claims_files = files = policy.find_claims(self.config, self._read_expectations)
        if files:
            learn_loaded(self.config.pluginmanager.get_plugins())
            learn_installed()  # claims may name metrics of any suite, whichever runs
        self.entries.expectations = [claim for file in files for claim in self._outputs.read_judging(file)]

    def _shorten(self, path: Path) -> Path:
        return shorten_path(path, self.config.invocation_params.dir)

    def _say(self, line: str, **markup: bool) -> None:
        plugins = self.config.pluginmanager
        reporter: Any = plugins.getplugin("terminalreporter")
        capture: Any = None if self._is_distributed else plugins.getplugin("capturemanager")
        if reporter is not None:
            with nullcontext() if capture is None else capture.global_and_fixture_disabled():  # a test is running here
                reporter.ensure_newline()
                if reporter._tw.width_of_current_line:  # with xdist, results are in a line that it does not know of
                    reporter.line("")
                reporter.write_line(line, **markup)

    def _end_test(self, nodeid: str, outcome: str) -> None:
        """Record a test's outcome, and print a line for each experiment that has ended since the last call."""
        from pytest_cloudbench.report.table import render_result

        self.conductor.record_outcome(nodeid, outcome)
        findings, reporter = self.entries.findings, self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and self.config.option.verbose > -2:
            for finding in findings[self._shown_count :]:
                verdict = finding.info.get("verdict")
                line = render_result(finding, min(reporter._tw.fullwidth, 80))
                self._say(line, red=verdict == "broken", yellow=verdict == "inconclusive")
        self._shown_count = len(findings)

    def _find_asker(self) -> Callable[[str], bool] | None:
        """Return a function that puts a question to the user, or None if no user sits at a terminal."""
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        if "CI" in os.environ or reporter is None or not reporter.isatty:
            return None
        keyboard = open_terminal("r")  # bypasses pytest's capture, which gives tests an empty standard input
        if keyboard is None:
            return None
        keyboard.close()

        def ask(question: str) -> bool:
            self._say(question)
            terminal = open_terminal("r")
            if terminal is None:
                return False
            with terminal:
                return terminal.readline().strip().lower() in {"y", "yes"}

        return ask

    def _end_agent(self, agent: str, reason: str) -> None:
        self._say(f"cloudbench: {agent} {reason}", yellow=True)
        self._workers.kill(agent)

    def _stop_reason(self) -> str:
        session: Any = self.config.pluginmanager.getplugin("dsession")
        return str(getattr(session, "shouldstop", "") or "")

    def check_baseline(self) -> None:
        """Check before anything starts that relative gates have something to compare with. Raises UsageError."""
        if self.entries.has_relative and not benchmarks.is_loaded(self.config):
            relative = next(text for text in self.config.option.cloudbench_fail if text.strip().endswith("%"))
            raise UsageError(
                f"--cloudbench-fail {relative}: pytest-benchmark stores the runs to compare with, and it is switched "
                "off here; remove -p no:benchmark, or give a bound without %"
            )
        for line in self.entries.gate.open_history() if self.entries.gate is not None else ():
            self._say(f"cloudbench: gate: {line}", yellow=True)
        unreadable = self.entries.read_stored_runs()
        if unreadable:
            shown = ", ".join(unreadable[-3:]) + (f" and {len(unreadable) - 3} more" if len(unreadable) > 3 else "")
            self._say(f"cloudbench: gates leave out these stored runs, which cannot be read: {shown}", yellow=True)

    def repetitions(self) -> tuple[Callable[[], Sequence[str]] | None, Callable[[str], None]]:
        """Return the two callbacks of the scheduler about repetitions. See ``Answering``."""
        gate = self.entries.gate
        if gate is None:
            return None, lambda nodeid: None

        def start_repetition() -> Sequence[str]:
            items = gate.repetitions()
            if line := gate.announcement():
                self._say(f"cloudbench: {line}")
            return items

        return start_repetition, gate.end_of_round

    def settle(self, session: pytest.Session) -> None:
        """Log the reports that the gate has held."""
        if self.entries.gate is not None:
            self.entries.gate.settle(session)

    def header(self) -> list[str]:
        """Return lines for pytest's header, if it is already known that the plugin is used."""
        specs = map(redact.mask_named, self.config.option.cloudbench_provider)
        providers = ", ".join(specs) or "the default provider"
        return [f"cloudbench: {providers}, run {self.facts.run_id}, seed {self.facts.seed}"]

    def summarize(self, reporter: Any) -> None:
        """Write the table of all experiments, at the end, after a hint at reasons that pytest does not show."""
        skipped = len(reporter.stats.get("skipped", ()))
        if skipped and self.config.option.verbose > -2 and not reporter.hasopt("skipped"):
            reporter.write_line(f"cloudbench: {format_count(skipped, 'skipped test')}: -rs says why")
        self._write_results(reporter)

    def _write_results(self, reporter: Any) -> None:
        """Write all tables, reports, comparisons and answers of the gate to the terminal."""
        from pytest_cloudbench.report.table import markup, render

        findings, comparisons = self.entries.findings, self.entries.comparisons
        if not findings and not comparisons:
            return
        verbosity, width = self.config.option.verbose, reporter._tw.fullwidth
        # With -q, there is one table of all providers, and only the doubts of other experiments.
        if verbosity == -1 and (names := self._list_compared()):
            compared_findings = [finding for finding in findings if finding.experiment in names]
            lines = render([finding for finding in findings if finding not in compared_findings], width, verbosity)
            lines += render(compared_findings, width, -2)
        else:
            lines = render(findings, width, verbosity)
        if lines:
            reporter.section("cloudbench")
        for line in lines:
            _write_wrapped(reporter, line, markup(line))
        if comparisons:
            from pytest_cloudbench.report import versus

            reporter.section("cloudbench: A versus B")
            for line in versus.render(comparisons, width, verbosity):
                _write_wrapped(reporter, line, versus.markup(line))
        if verbosity < -1:
            return
        for text, path in self.conductor.reports:
            log_lines = [f"log: {self._shorten(path)}"] if path else []
            for line in [*text.splitlines(), *log_lines, ""]:
                reporter.write_line(line)
        self._write_comparisons(reporter)
        if self.entries.gate is not None and (gate_lines := [*self.entries.gate.summary()]):
            reporter.section("cloudbench: gate")
            for line in gate_lines:
                _write_wrapped(reporter, line, _GATE_MARKUP.get(line.partition(" ")[0], {}))
        self._write_places(reporter)
        if self.entries.gate is not None and (counts := self.entries.gate.counts()):
            if metrics := self.entries.gate.metric_counts():
                _write_wrapped(reporter, f"cloudbench: gate: metrics: {metrics}", {})
            reporter.write_line(f"cloudbench: gate: {counts}")

    def _write_places(self, reporter: Any) -> None:
        """Write where the run's files are, in one line or in one for each."""
        records, folder = self._shorten(Path(self.facts.results)), self._storage_folder
        entries = self._shorten(folder) if folder else f"not stored ({self._hint_if_not_stored})"
        if not benchmarks.is_loaded(self.config):
            entries = "not stored (-p no:benchmark switches off what stores them)"
        files = [f"records: {records}", f"entries: {entries}"]
        files += [f"report: {self._shorten(self._report_path)}"] if self._report_path else []
        line = "   ".join(files)
        for text in [line] if len(line) <= reporter._tw.fullwidth else files:
            _write_wrapped(reporter, text, {})

    def _list_compared(self) -> set[str]:
        """Return the names of the experiments that ran on several providers."""
        if len(self.entries.findings) < 2:
            return set()
        from pytest_cloudbench.report.comparison import compared_experiments

        return compared_experiments(self.entries.findings)

    def _write_comparisons(self, reporter: Any) -> None:
        """Write the tables that compare hosts and providers, one below the other, if there are several."""
        findings = self.entries.findings
        if len(findings) < 2 and not any("by_host" in finding.info for finding in findings):
            return
        from pytest_cloudbench.report.comparison import emphasize_best, render_comparison, render_hosts

        for title, render in (("hosts", render_hosts), ("providers", render_comparison)):
            lines = render(findings, reporter._tw.fullwidth)
            if lines:
                reporter.section(f"cloudbench: {title} compared")
            for line in lines:
                reporter.write_line(emphasize_best(line, lambda text: reporter._tw.markup(text, green=True, bold=True)))

    def _show_progress(self) -> None:
        """Show progress from the first experiment on, continuously on a terminal and occasionally elsewhere."""
        if not self._is_announced:
            self._is_announced = True
            self._expect_local_items()
            self._announce_session()
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        if self._live is not None or reporter is None or self.config.option.verbose < 0:
            return
        stream = open_terminal() if reporter.isatty else None
        if stream is not None:
            prints = not self._is_distributed and self.config.option.capture == "no"
            self._live = Live(stream, self.conductor.meter.overview, is_single=prints)
        elif not reporter.isatty:
            self._live = PeriodicProgress(
                self._say if self._is_distributed else self._open_past_capture(), self.conductor.meter.overview
            )
        if self._live is not None:
            self.conductor.on_end = self._live.hide

    def _expect_local_items(self) -> None:
        """Tell the live view which items to count, if they run in this process and not in workers."""
        session: Any = self.config.pluginmanager.getplugin("session")
        if not self._is_distributed and session is not None:
            items = getattr(session, "items", ())
            nodeids = [item.nodeid for item in items if "fleet" in getattr(item, "fixturenames", ())]
            self.conductor.expect_items(nodeids)

    def _announce_session(self) -> None:
        """Print remarks that the user should know before the first experiment."""
        if self._page is not None:
            self._say(f"cloudbench: live view at {self._page.address}")
        if is_ctrl_c_ignored():
            self._say(
                f"cloudbench: Ctrl-C is ignored because of how this run was started; "
                f"`kill {os.getpid()}` ends it cleanly"
            )
        root = Path(self.facts.results).parents[1]
        killed = sum(unmerged.is_alive is False for unmerged in recovery.find_unmerged(root))
        if killed:
            runs = format_count(killed, "killed run has", "killed runs have")
            self._say(f"cloudbench: {runs} left records; `cloudbench recover {self._shorten(root)}` merges them")

    def _open_past_capture(self) -> Callable[[str], None]:
        """Return a function that prints lines past pytest's capture while a test runs in this process.

        Other threads call it, which must not suspend the capture. So that happens only here, to copy the descriptor.
        """
        capture: Any = self.config.pluginmanager.getplugin("capturemanager")
        with nullcontext() if capture is None else capture.global_and_fixture_disabled():
            try:
                descriptor = os.dup(sys.stdout.fileno())
            except (OSError, ValueError):  # a program that called pytest has replaced it
                return lambda line: None
        self._output_descriptor = descriptor
        return lambda line: _write_text(descriptor, f"\n{line}\n")

    def finish(self, session: pytest.Session) -> None:
        """Merge unfinished runs, and save the entries."""
        if self._live is not None:
            self._live.close()
        if self._page is not None:
            self._page.close()
            self._page = None
        if self._output_descriptor is not None:
            os.close(self._output_descriptor)
            self._output_descriptor = None
        if self._is_distributed:
            self.coordinator.dismiss(_DISMISS_S)
        if self._cassette is not None:
            with self._fail_for_errors(session):
                self._cassette.close()
        is_interrupted = session.exitstatus == pytest.ExitCode.INTERRUPTED
        self.conductor.salvage("interrupted" if is_interrupted else "ended before its result")
        if self.conductor.is_incomplete and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if is_interrupted:
            self.entries.mark_interrupted()
        self._fail_for_gates(session)
        self._write_outputs(session)
        if not self.entries.findings and not self.entries.comparisons:
            return
        with self._fail_for_errors(session):
            self._save_entries()
            self._write_report()

    def _save_entries(self) -> None:
        is_stored = policy.is_adopted(self.config) or self.entries.stores or bool(self.entries.comparisons)
        self._hint_if_not_stored = "see above"
        if benchmarks.save_entries(self.config, self.facts.run_id if is_stored else None):
            self._storage_folder = benchmarks.storage_folder(self.config)
        self._hint_if_not_stored = "--benchmark-autosave stores them"

    @contextmanager
    def _fail_for_errors(self, session: pytest.Session) -> Generator[None]:
        """Print an error at the session's end as one line, and fail the session for it."""
        try:
            yield
        except CloudbenchError as error:
            self._say(f"cloudbench: {error}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write_outputs(self, session: pytest.Session) -> None:
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        counted = {} if reporter is None else {name: len(reports) for name, reports in reporter.stats.items() if name}
        outcomes = ("failed", "error", "passed", "skipped", "xfailed", "xpassed")
        remark = ", ".join(f"{counted[name]} {name}" for name in outcomes if counted.get(name))
        summary_line = f"pytest: {remark or 'no test was run'}"
        with self._fail_for_errors(session):
            for line in self._outputs.write(self.entries.findings, self.entries.comparisons, summary_line):
                self._say(line)

    def _write_report(self) -> None:
        """Write the page about this run, if it was asked for. Raises ResultsError."""
        if not (name := self.config.option.cloudbench_report):
            return
        from pytest_cloudbench.load.gate.settings import open_with_margins
        from pytest_cloudbench.report.gathering import EarlierRuns, PageRun, format_commit, gather_session
        from pytest_cloudbench.report.writing import write_page

        commit = format_commit(stored.read_commit(benchmarks.commit_info(self.config)))
        path = self.config.invocation_params.dir / name
        findings = [*self.entries.findings, *self.entries.comparisons]
        gathered = gather_session(findings, PageRun(self.facts.run_id, None, commit), self._records_folder)
        folder = benchmarks.storage_folder(self.config)
        if folder is not None and folder.is_dir():
            gathered.add_earlier(EarlierRuns(*open_with_margins(folder, self.config.rootpath)))
        write_page(path, gathered)
        self._report_path = path

    @property
    def _records_folder(self) -> Path:
        """The folder to which the names of record files in entries are relative."""
        return Path(self.facts.results).parent

    def _fail_for_gates(self, session: pytest.Session) -> None:
        """Fail the session for gates that were not met, whatever the outcome of the tests."""
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not _has_chosen(self.config):
            for line in self.entries.list_unmatched_claims({Path(file).parent for file in self._claims_files}):
                self._say(f"cloudbench: {line}", yellow=True)
        lines, fails = self.entries.list_unjudged_gates()
        for line in lines:
            self._say(f"cloudbench: gate {line}", red=fails, yellow=not fails)
        gate = self.entries.gate
        if gate is not None and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            expected = self.entries.selected or 0
            if not gate.has_judged and self.entries.selected is not None:
                for line in gate.nothing_judged_lines(expected, self.entries.deselected):
                    self._say(f"cloudbench: gate: {line}", yellow=True)
            if not _has_selected(self.config.option):  # tests that a hook deselected were expected, too
                expected += self.entries.deselected
            status = gate.exit_status(session.testsfailed, expected)
            session.exitstatus = session.exitstatus if status is None else status
        if session.exitstatus == pytest.ExitCode.OK:
            forgiven_lines = self.entries.list_forgiven_gates()
            for line in forgiven_lines:
                self._say(f"cloudbench: {line}", red=True)
            if forgiven_lines or (lines and fails):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def close(self) -> None:
        """End the services."""
        if self._page is not None:
            self._page.close()
        try:
            self.conductor.close()
        except CloudbenchError as error:
            sys.stderr.write(f"cloudbench: {error}\n")


def _write_text(descriptor: int, text: str) -> None:
    with suppress(OSError):  # nobody reads it any more
        os.write(descriptor, text.encode())


class _Endings:
    """A plugin that reports the outcome of each test."""

    def __init__(self, report_outcome: Callable[[str, str], None]) -> None:
        self._report_outcome, self._worst = report_outcome, dict[str, str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_logreport."""
        if report.outcome != "passed" and self._worst.get(report.nodeid) != "failed":
            self._worst[report.nodeid] = report.outcome
        if report.when == "teardown" or str(report.outcome) == "rerun":
            self._report_outcome(report.nodeid, self._worst.pop(report.nodeid, "passed"))


def _has_selected(option: Any) -> bool:
    """Return whether the user chose among the tests on the command line."""
    names = ("keyword", "markexpr", "deselect", "lf", "stepwise", "splits")  # the last one is pytest-split's
    return any(getattr(option, name, None) for name in names)


def _has_chosen(config: pytest.Config) -> bool:
    """Return whether the user chose among the tests of files, by their names or in another way."""
    return _has_selected(config.option) or any("::" in arg for arg in config.args)


def _make_gate(config: pytest.Config) -> SessionGate:
    from pytest_cloudbench.load.gate.session import SessionGate  # with all that it knows of statistics

    return SessionGate(config)


def _write_wrapped(reporter: Any, line: str, markup: Mapping[str, bool]) -> None:
    """Write a line, wrapped between words at the terminal's width, with its continuation indented."""
    from pytest_cloudbench.report.columns import wrap_line

    for part in wrap_line(line, reporter._tw.fullwidth):
        reporter.write_line(part, **markup)
