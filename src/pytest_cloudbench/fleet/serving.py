"""What a controller does once there are agents to serve.

What may live here: the conductor and its coordinator bound to one pytest session, the progress line, and what
is printed and saved at the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pytest

from pytest_cloudbench import expect, opening
from pytest_cloudbench.fleet import policy
from pytest_cloudbench.fleet.agent import Agent, local_agent
from pytest_cloudbench.fleet.conductor import Conductor, check_provider
from pytest_cloudbench.fleet.facts import RunFacts
from pytest_cloudbench.fleet.interrupts import is_ctrl_c_ignored
from pytest_cloudbench.live import Live, Spoken, terminal
from pytest_cloudbench.model import CloudbenchError, ConfigError, UsageError
from pytest_cloudbench.results import benchmarks, recovery

__all__ = ["Serving", "Workers"]

_DISMISS_S = 5.0
"""How long agents may take to stop and flush their records when the session ends in mid-run."""


class Workers(Protocol):
    """xdist's workers, as the service for their agents needs them."""

    def apart(self, agent: str) -> bool:
        """Whether an agent is at a different item from the one others wait for it at."""

    def collected(self, nodeids: list[str]) -> None:
        """Workers have collected items that all of them run."""

    def ask(self, agent: str, answered: Callable[[], None]) -> None:
        """Ask whether an agent's process runs, without waiting for its answer."""

    def kill(self, agent: str) -> None:
        """End an agent's process at once, whatever its state."""


class Serving:
    """The controller at work. Raises UsageError for bad input.

    Args:
        config: pytest's configuration in the controller.
        facts: the run's facts.
        workers: what the session knows of xdist's workers.
    """

    def __init__(
        self,
        config: pytest.Config,
        facts: RunFacts,
        workers: Workers,
    ) -> None:
        option = config.option
        for spec in option.cloudbench_provider:
            check_provider(spec, option.cloudbench_time_scale)
        gates = [expect.parse_gate(text) for text in option.cloudbench_fail]
        self.config, self.facts, self._workers = config, facts, workers
        self.conductor = Conductor(config, facts, _expectations(option.cloudbench_expectations), gates, self._say)
        self.conductor.on_start = self._show_progress
        config.pluginmanager.register(_Endings(self.conductor.ended), "cloudbench-endings")
        self._stored_in: Path | None = None
        self._is_said = False
        self._live: Live | Spoken | None = None
        self._out: int | None = None
        self._distributed = str(getattr(option, "dist", "no")) != "no"
        self.coordinator = self.conductor.build_coordinator(
            option.cloudbench_patience,
            workers.collected,
            kill=self._end,
            ask=workers.ask,
            apart=workers.apart,
            stop=self._stop_reason,
            maxfail=config.getvalue("maxfail") if self._distributed else 0,
        )

    @cached_property
    def agent(self) -> Agent:
        """The one agent of a run without xdist."""
        return local_agent(self.coordinator)

    def _say(self, line: str, **markup: bool) -> None:
        plugins = self.config.pluginmanager
        reporter: Any = plugins.getplugin("terminalreporter")
        capture: Any = None if self._distributed else plugins.getplugin("capturemanager")
        if reporter is not None:
            with nullcontext() if capture is None else capture.global_and_fixture_disabled():  # a test is running here
                reporter.ensure_newline()
                if reporter._tw.width_of_current_line:  # with xdist, results stand in a line of which it does not know
                    reporter.line("")
                reporter.write_line(line, **markup)

    def _end(self, agent: str, reason: str) -> None:
        self._say(f"cloudbench: {agent} {reason}", yellow=True)
        self._workers.kill(agent)

    def _stop_reason(self) -> str:
        session: Any = self.config.pluginmanager.getplugin("dsession")
        return str(getattr(session, "shouldstop", "") or "")

    def check_baseline(self) -> None:
        """Check before anything starts that relative gates have something to compare with. Raises UsageError."""
        if self.conductor.stores and not benchmarks.is_loaded(self.config):
            relative = next(text for text in self.config.option.cloudbench_fail if text.strip().endswith("%"))
            raise UsageError(
                f"--cloudbench-fail {relative}: pytest-benchmark stores the runs to compare with, and it is switched "
                "off here; remove -p no:benchmark, or give a bound without %"
            )
        unreadable = self.conductor.compare()
        if unreadable:
            shown = ", ".join(unreadable[-3:]) + (f" and {len(unreadable) - 3} more" if len(unreadable) > 3 else "")
            self._say(
                f"cloudbench: gates compare with none of these stored runs, which cannot be read: {shown}", yellow=True
            )

    def summarize(self, reporter: Any) -> None:
        """The table of all experiments, at the end."""
        from pytest_cloudbench.report.table import markup, render

        findings = self.conductor.findings
        if not findings:
            return
        verbosity = self.config.option.verbose
        lines = render(findings, reporter._tw.fullwidth, verbosity)
        if verbosity > -2 or lines:
            reporter.section("cloudbench")
        for line in lines:
            reporter.write_line(line, **markup(line))
        if verbosity < -1:
            return
        for text, path in self.conductor.reports:
            where = [f"log: {_relative(path)}"] if path else []
            for line in [*text.splitlines(), *where, ""]:
                reporter.write_line(line)
        records, folder = _relative(Path(self.facts.results)), self._stored_in
        entries = _relative(folder) if folder else "not stored (--benchmark-autosave stores them)"
        if not benchmarks.is_loaded(self.config):
            entries = "not stored (-p no:benchmark switches off what stores them)"
        reporter.write_line(f"records: {records}   entries: {entries}")

    def _show_progress(self) -> None:
        """Show progress from the first experiment on: continuously on a terminal, now and then elsewhere."""
        if not self._is_said:
            self._is_said = True
            self._say_before()
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        if self._live is not None or reporter is None or self.config.option.verbose < 0:
            return
        stream = terminal() if reporter.isatty else None
        if stream is not None:
            self._live = Live(stream, self.conductor.meter.progress)
        elif not reporter.isatty:
            self._live = Spoken(self._say if self._distributed else self._past_capture(), self.conductor.meter.progress)
        if self._live is not None:
            self.conductor.on_end = self._live.hide

    def _say_before(self) -> None:
        """Print what the user should know before the first experiment."""
        if is_ctrl_c_ignored():
            self._say(
                f"cloudbench: Ctrl-C is ignored because of how this run was started; "
                f"`kill {os.getpid()}` ends it cleanly"
            )
        root = Path(self.facts.results).parents[1]
        killed = sum(left.lives is False for left in recovery.find_left(root))
        if killed:
            runs = "a killed run has" if killed == 1 else f"{killed} killed runs have"
            self._say(f"cloudbench: {runs} left records; `cloudbench recover {_relative(root)}` merges them")

    def _past_capture(self) -> Callable[[str], None]:
        """Writes lines while a test runs in this process: another thread must not suspend pytest's capture."""
        capture: Any = self.config.pluginmanager.getplugin("capturemanager")
        with nullcontext() if capture is None else capture.global_and_fixture_disabled():
            try:
                out = os.dup(sys.stdout.fileno())
            except (OSError, ValueError):  # pytest was called by a program that has replaced it
                return lambda line: None
        self._out = out
        return lambda line: _write(out, f"\n{line}\n")

    def finish(self, session: pytest.Session) -> None:
        """Keep what unfinished experiments measured, and save the entries."""
        if self._live is not None:
            self._live.close()
        if self._out is not None:
            os.close(self._out)
            self._out = None
        if self._distributed:
            self.coordinator.dismiss(_DISMISS_S)
        interrupted = session.exitstatus == pytest.ExitCode.INTERRUPTED
        self.conductor.salvage("interrupted" if interrupted else "ended before its result")
        if self.conductor.is_incomplete and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if interrupted:
            self.conductor.interrupted()
        self._fail_for_gates(session)
        if not self.conductor.findings:
            return
        try:
            stores = policy.adopted(self.config) or self.conductor.stores
            if benchmarks.save(self.config, self.facts.run_id if stores else None):
                self._stored_in = benchmarks.storage(self.config)
        except CloudbenchError as error:
            self._say(f"cloudbench: {error}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _fail_for_gates(self, session: pytest.Session) -> None:
        """No gate is green that was not met, whatever has become of the tests."""
        lines, fails = self.conductor.unjudged()
        for line in lines:
            self._say(f"cloudbench: gate {line}", red=fails, yellow=not fails)
        if session.exitstatus == pytest.ExitCode.OK:
            forgiven = self.conductor.forgiven()
            for line in forgiven:
                self._say(f"cloudbench: {line}", red=True)
            if forgiven or (lines and fails):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def close(self) -> None:
        """End the emulators."""
        try:
            self.conductor.close()
        except CloudbenchError as error:
            sys.stderr.write(f"cloudbench: {error}\n")


def _write(place: int, text: str) -> None:
    with suppress(OSError):  # nobody reads it any more
        os.write(place, text.encode())


class _Endings:
    """A plugin that sees how each test ends."""

    def __init__(self, told: Callable[[str, str], None]) -> None:
        self._told, self._worst = told, dict[str, str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtest_logreport."""
        if report.outcome != "passed" and self._worst.get(report.nodeid) != "failed":
            self._worst[report.nodeid] = report.outcome
        if report.when == "teardown" or str(report.outcome) == "rerun":
            self._told(report.nodeid, self._worst.pop(report.nodeid, "passed"))


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _expectations(path: str | None) -> list[expect.Expectation]:
    if path is None:
        return []
    try:
        return expect.parse_expectations(opening.read_file(path).decode(), path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(path, "", f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
