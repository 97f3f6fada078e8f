"""The controller's part of a pytest session; without xdist it is the one agent as well.

What may live here: what the plugin's hooks delegate to in the controller. A session with xdist opens it
whether or not it has a fleet item, so everything that only a fleet needs is in ``serving`` and made on demand.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench.fleet.agent import host_id
from pytest_cloudbench.fleet.facts import RunFacts
from pytest_cloudbench.fleet.interrupts import Interrupts
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.options import long_name, taken_names
from pytest_cloudbench.results.owner import owner_text

if TYPE_CHECKING:
    from pytest_cloudbench.fleet.agent import Agent
    from pytest_cloudbench.fleet.serving import Serving

__all__ = ["ControllerSession"]

_ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


class ControllerSession:
    """Connects workers, and serves their agents from the moment one of them has something to say."""

    is_worker = False
    fleet_run = False

    def __init__(self, config: pytest.Config, channel_key: str, facts_key: str) -> None:
        self.config, self._channel_key, self._facts_key = config, channel_key, facts_key
        _check(config)
        self.facts = _run_facts(config)
        self._lock = threading.Lock()
        self._serving: Serving | None = None
        self._channels: dict[str, Any] = {}
        self._gateways: dict[str, Any] = {}
        self._scheduler: Any = None
        self._fleet_items: set[str] = set()
        self._interrupts = Interrupts(self._say_at_once, self._abandon)
        self._collections: dict[Any, list[str]] = {}
        option = config.option
        if option.cloudbench_provider or option.cloudbench_fail or option.cloudbench_expectations:
            self.serve()  # bad input is reported now

    def serve(self) -> Serving:
        """What serves the agents, made at the first call. Raises UsageError for bad input."""
        self._interrupts.install()  # in the main thread only: a receiver's call may come first
        with self._lock:
            if self._serving is None:
                from pytest_cloudbench.fleet.serving import Serving

                self._serving = Serving(self.config, self.facts, self)
                for name, channel in self._channels.items():
                    self._serving.coordinator.join(name, channel.send)
            return self._serving

    @property
    def agent(self) -> Agent:
        """The one agent of a run without xdist."""
        return self.serve().agent

    # -- xdist ------------------------------------------------------------------------------------

    def add_node(self, node: Any) -> None:
        """Open a channel to a new worker; it is duplex, needs no port and ends with the worker."""
        channel, name = node.gateway.newchannel(), node.gateway.id
        node.workerinput[self._channel_key] = channel
        node.workerinput[self._facts_key] = self.facts.plain()
        with self._lock:
            self._channels[name], self._gateways[name] = channel, node.gateway
            if self._serving is not None:
                self._serving.coordinator.join(name, channel.send)

        def received(message: Any) -> None:
            if message is None:
                self.lose_node(name)
            else:
                self.serve().coordinator.receive(name, message)

        channel.setcallback(received, endmarker=None)

    def lose_node(self, name: str) -> None:
        """A worker has ended."""
        with self._lock:
            self._channels.pop(name, None)
            serving = self._serving
        if serving is not None:
            serving.coordinator.leave_fleet(name, "was lost")

    def take_over(self, node: Any, nodeids: list[str]) -> None:
        """A worker has collected its items: where some are for the whole fleet, from now on ours says who runs what.

        Its agent has told so before. A session without such items keeps the scheduler that xdist, or another plugin,
        has made.
        """
        xdist: Any = self.config.pluginmanager.getplugin("dsession")
        if self._fleet_items and self._scheduler is None and not xdist.sched.collection_is_completed:
            from pytest_cloudbench.fleet.scheduler import FleetScheduling

            ours = FleetScheduling(self.config, xdist.log, lambda: self.serve().coordinator, self._fleet_items)
            for each in xdist.sched.nodes:
                ours.add_node(each)
                if each in self._collections:
                    ours.add_node_collection(each, self._collections[each])
            self._scheduler = xdist.sched = ours
        self._collections[node] = nodeids

    def apart(self, agent: str) -> bool:
        """Whether an agent is at an item that it alone runs."""
        return False if self._scheduler is None else bool(self._scheduler.apart(agent))

    def collected(self, nodeids: list[str]) -> None:
        """A worker has collected items that all of them run."""
        self._fleet_items.update(nodeids)

    def ask(self, agent: str, answered: Callable[[], None]) -> None:
        """Ask whether an agent's process runs; execnet answers in a thread of its own, whatever the agent does."""

        def wait() -> None:
            with contextlib.suppress(OSError, EOFError):  # it is gone
                self._gateways[agent].remote_status()
                answered()

        threading.Thread(target=wait, name=f"ask-{agent}", daemon=True).start()

    def kill(self, agent: str) -> None:
        """End an agent's process at once. It is our child (over ssh: what connects us), so no other can be meant."""
        self._gateways[agent]._io.kill()

    def check_baseline(self) -> None:
        """Check before anything starts that gates have something to compare with. Raises UsageError."""
        if self._serving is not None:
            self._serving.check_baseline()

    # -- report -----------------------------------------------------------------------------------

    def header(self) -> list[str]:
        """Lines for pytest's header, where it is known by then that the plugin is used."""
        if self._serving is None:
            return []
        providers = ", ".join(self.config.option.cloudbench_provider or ["the default provider"])
        return [f"cloudbench: {providers}, run {self.facts.run_id}, seed {self.facts.seed}"]

    def summarize(self, reporter: Any) -> None:
        """The table of all experiments, at the end."""
        if self._serving is not None:
            self._serving.summarize(reporter)
            taken = sorted(taken_names(self.config._parser))
            if taken:
                reporter.write_line(
                    f"cloudbench: another plugin or a conftest.py owns {', '.join(taken)}; "
                    f"use {', '.join(map(long_name, taken))}"
                )

    def finish(self, session: pytest.Session) -> None:
        """Report tests that no worker was left for, keep what unfinished experiments measured, and save the entries."""
        self._report_not_run(session)
        if self._serving is not None:
            self._serving.finish(session)

    def _report_not_run(self, session: pytest.Session) -> None:
        """Report every collected test, unless the session was told to stop."""
        xdist: Any = self.config.pluginmanager.getplugin("dsession")
        if xdist is None or self._scheduler is None or xdist.shouldstop or session.exitstatus not in _ENDED:
            return
        why = xdist._summary_report or "no worker was left to run it"
        for nodeid in self._scheduler.unreported():
            path = nodeid.partition("::")[0]
            report = pytest.TestReport(nodeid, (path, None, path), {}, "failed", f"not run: {why}", "call")
            self.config.hook.pytest_runtest_logreport(report=report)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def close(self) -> None:
        """End the emulators."""
        if self._serving is not None:
            self._serving.close()
        self._interrupts.restore()

    def _say_at_once(self, line: str) -> None:
        """Write a line from a signal handler, past pytest's capture and whatever is being written."""
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        with contextlib.suppress(AttributeError, OSError, ValueError):
            os.write(reporter._tw._file.fileno(), f"\n{line}\n".encode())

    def _abandon(self) -> None:
        """End the workers at once; the emulators end with this process."""
        for gateway in list(self._gateways.values()):
            gateway._io.kill()


_NUMBERS: tuple[tuple[str, str, Callable[[float], bool]], ...] = (
    ("--time-scale", "a number above 0", lambda value: value > 0),
    ("--cloudbench-patience", "seconds above 0", lambda value: value > 0),
    ("--cloudbench-max-lateness", "0 or more seconds", lambda value: value >= 0),
    ("--max-ops", "0 or more", lambda value: value >= 0),
    ("--max-bytes", "0 or more", lambda value: value >= 0),
    ("--capacity-loss", "a share from 0 to 1", lambda value: 0 <= value <= 1),
    ("--capacity-p99", "seconds above 0", lambda value: value > 0),
    ("--capacity-seconds", "seconds above 0", lambda value: value > 0),
    ("--capacity-ops", "1 or more", lambda value: value >= 1),
    ("--idle-seconds", "seconds above 0", lambda value: value > 0),
)
"""Numeric options: the expected range of each, and its check."""


def _check(config: pytest.Config) -> None:
    """Raises UsageError for numbers that mean nothing."""
    for name, expected, is_right in _NUMBERS:
        word = name.removeprefix("--").removeprefix("cloudbench-").replace("-", "_")
        value = getattr(config.option, f"cloudbench_{word}", None)
        if value is not None and not (isfinite(value) and is_right(value)):
            raise UsageError(f"{name} {value:g}: expected {expected}")


def _run_facts(config: pytest.Config) -> RunFacts:
    option = config.option
    unique = os.urandom(2).hex()
    run_id = f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}-{unique}"
    root = Path(config.invocation_params.dir) / option.cloudbench_results
    return RunFacts(
        run_id=run_id,
        seed=option.cloudbench_seed or run_id,
        time_scale=option.cloudbench_time_scale,
        max_ops=option.cloudbench_max_ops,
        max_bytes=option.cloudbench_max_bytes,
        max_lateness_s=option.cloudbench_max_lateness,
        results=str(root / _machine_id() / run_id),
        host=host_id(),
        owner=owner_text(),
    )


def _machine_id() -> str:
    from pytest_benchmark.utils import get_machine_id

    return str(get_machine_id())
