"""The controller's part of a pytest session; without xdist it is the one agent as well.

What may live here: what the plugin's hooks delegate to in the controller.
"""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import expect
from pytest_cloudbench.fleet import policy
from pytest_cloudbench.fleet.agent import Agent, host_id, local_agent
from pytest_cloudbench.fleet.conductor import Conductor, parse_provider
from pytest_cloudbench.fleet.facts import RunFacts
from pytest_cloudbench.live import Live, terminal
from pytest_cloudbench.model import CloudbenchError, ConfigError, UsageError
from pytest_cloudbench.results import benchmarks

__all__ = ["ControllerSession"]

_DISMISS_S = 5.0
"""How long agents may take to stop and flush their records when the session ends in mid-run."""


class ControllerSession:
    """Serves the agents; without xdist it is the one agent as well."""

    is_worker = False
    fleet_run = False

    def __init__(self, config: pytest.Config, channel_key: str, facts_key: str) -> None:
        self.config, self._channel_key, self._facts_key = config, channel_key, facts_key
        option = config.option
        if not (0 < option.time_scale < float("inf")):
            raise UsageError(f"--time-scale {option.time_scale}: expected a number above 0")
        if not option.cloudbench_patience > 0:
            raise UsageError(f"--cloudbench-patience {option.cloudbench_patience:g}: expected seconds above 0")
        for name, bound in (("--max-ops", option.max_ops), ("--max-bytes", option.max_bytes)):
            if bound is not None and bound < 0:
                raise UsageError(f"{name} {bound}: expected 0 or more")
        for spec in option.provider:
            parse_provider(spec, option.time_scale)
        gates = [expect.parse_gate(text) for text in option.cloudbench_fail]
        self.facts = _run_facts(config)
        self.conductor = Conductor(config, self.facts, _expectations(option.cloudbench_expectations), gates, self._say)
        self._scheduler: Any = None
        self._live: Live | None = None
        self.conductor.on_start = self._show_progress
        self.coordinator = self.conductor.build_coordinator(
            option.cloudbench_patience,
            kill=self.conductor.kill,
            apart=self._apart,
            stop=self._stop_reason,
            maxfail=config.getvalue("maxfail") if self._distributed else 0,
        )
        self._agent: Agent | None = None

    @property
    def _distributed(self) -> bool:
        return str(getattr(self.config.option, "dist", "no")) != "no"

    @property
    def agent(self) -> Agent:
        """The one agent of a run without xdist."""
        if self._agent is None:
            self._agent = local_agent(self.coordinator)
        return self._agent

    def _say(self, line: str) -> None:
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)

    def _stop_reason(self) -> str:
        session: Any = self.config.pluginmanager.getplugin("dsession")
        return str(getattr(session, "shouldstop", "") or "")

    def _apart(self, agent: str) -> bool:
        return False if self._scheduler is None else bool(self._scheduler.apart(agent))

    # -- xdist ------------------------------------------------------------------------------------

    def add_node(self, node: Any) -> None:
        """Open a channel to a new worker; it is duplex, needs no port and ends with the worker."""
        channel, name = node.gateway.newchannel(), node.gateway.id
        node.workerinput[self._channel_key] = channel
        node.workerinput[self._facts_key] = self.facts.plain()
        self.coordinator.join(name, channel.send)

        def received(message: Any) -> None:
            if message is None:
                self.coordinator.leave_fleet(name, "was lost")
            else:
                self.coordinator.receive(name, message)

        channel.setcallback(received, endmarker=None)

    def lose_node(self, name: str) -> None:
        """A worker has ended."""
        self.coordinator.leave_fleet(name, "was lost")

    def make_scheduler(self, log: Any) -> Any:
        """The scheduler of this session."""
        from pytest_cloudbench.fleet.scheduler import FleetScheduling

        self._scheduler = scheduler = FleetScheduling(self.config, log, self.coordinator)
        self.conductor.on_collected = lambda agent, nodeids: scheduler.fleet_items.update(nodeids)
        return scheduler

    # -- report -----------------------------------------------------------------------------------

    def header(self) -> list[str]:
        """Lines for pytest's header."""
        providers = ", ".join(self.config.option.provider or ["the default provider"])
        return [f"cloudbench: {providers}, run {self.facts.run_id}, seed {self.facts.seed}"]

    def summarize(self, reporter: Any) -> None:
        """The table of all experiments, at the end."""
        from pytest_cloudbench.report.table import render

        findings = self.conductor.findings
        if not findings:
            return
        reporter.section("cloudbench")
        for line in render(findings, reporter._tw.fullwidth):
            reporter.write_line(line)
        folder = benchmarks.storage(self.config)
        records = _relative(Path(self.facts.results))
        reporter.write_line(f"records: {records}" + (f"   entries: {_relative(folder)}" if folder else ""))

    def _show_progress(self) -> None:
        """Draw the progress line from the first experiment on, if somebody can look at it."""
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        if self._live is None and reporter is not None and reporter.isatty and self.config.option.verbose >= 0:
            stream = terminal()
            if stream is not None:
                self._live = Live(stream, self.conductor.progress)
                self.conductor.on_end = self._live.hide

    def finish(self, session: pytest.Session) -> None:
        """Keep what unfinished experiments measured, and save the entries."""
        if self._live is not None:
            self._live.close()
        if self._distributed:
            self.coordinator.dismiss(_DISMISS_S)
        interrupted = session.exitstatus == pytest.ExitCode.INTERRUPTED
        self.conductor.salvage("interrupted" if interrupted else "ended before its result")
        if self.conductor.is_incomplete and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if not self.conductor.findings:
            return
        try:
            benchmarks.save(self.config, self.facts.run_id if policy.adopted(self.config) else None)
        except CloudbenchError as error:
            self._say(f"cloudbench: {error}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def close(self) -> None:
        """End the emulators."""
        try:
            self.conductor.close()
        except CloudbenchError as error:
            sys.stderr.write(f"cloudbench: {error}\n")


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _run_facts(config: pytest.Config) -> RunFacts:
    option = config.option
    unique = os.urandom(2).hex()
    run_id = f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}-{unique}"
    root = Path(config.invocation_params.dir) / option.cloudbench_results
    return RunFacts(
        run_id=run_id,
        seed=option.cloudbench_seed or run_id,
        time_scale=option.time_scale,
        max_ops=option.max_ops,
        max_bytes=option.max_bytes,
        max_lateness_s=option.cloudbench_max_lateness,
        results=str(root / _machine_id() / run_id),
        host=host_id(),
    )


def _machine_id() -> str:
    from pytest_benchmark.utils import get_machine_id

    return str(get_machine_id())


def _expectations(path: str | None) -> list[expect.Expectation]:
    if path is None:
        return []
    try:
        return expect.parse_expectations(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(path, "", f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
