"""The controller's part of a pytest session. Without xdist, the controller is the one agent as well.

The plugin's hooks delegate to it in the controller. A session with xdist opens it whether or not it has a fleet item,
so everything that only a fleet needs is made on demand.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_cloudbench.fleet.agent import host_id
from pytest_cloudbench.fleet.interrupts import Interrupts
from pytest_cloudbench.fleet.messages import ToAgent, decode_from_agent, encode
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.results.owner import owner_text
from pytest_cloudbench.results.places import session_results_folder
from pytest_cloudbench.support.collector import freeze_objects

if TYPE_CHECKING:
    from pytest_cloudbench.fleet.agent import Agent
    from pytest_cloudbench.fleet.coordinator import Coordinator

_STARTERS = ("cloudbench-forking", "cloudbench-hosts")
"""The names of the controller's plugins that start agents."""
_ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


class Answering(Protocol):
    """The part that answers agents, and reports at the end of a session. The fleet itself only transports messages."""

    coordinator: Coordinator

    @property
    def agent(self) -> Agent:
        """The one agent of a run without xdist."""

    def header(self) -> list[str]:
        """Lines for pytest's header."""

    def check_baseline(self) -> None:
        """Check before anything starts that gates have something to compare with. Raises UsageError."""

    def repetitions(self) -> tuple[Callable[[], Sequence[str]] | None, Callable[[str], None]]:
        """Return the arguments ``again`` and ``curtain`` of ``FleetScheduling``."""

    def settle(self, session: pytest.Session) -> None:
        """Log the reports that were held until everything was measured."""

    def summarize(self, reporter: Any) -> None:
        """Write the results, at the end."""

    def finish(self, session: pytest.Session) -> None:
        """Keep the results of unfinished work."""

    def close(self) -> None:
        """End everything that was started."""


class ControllerSession:
    """A session that connects workers, and serves their agents from the first message on.

    Args:
        config: pytest's configuration in the controller.
        channel_key, facts_key: where a worker finds its channel and the run's facts.
        make_answering: called once there are agents to serve. Raises UsageError for bad input.
    """

    is_worker = False
    fleet_run = False

    def __init__(
        self, config: pytest.Config, channel_key: str, facts_key: str,
        make_answering: Callable[[ControllerSession], Answering],
    ) -> None:  # fmt: skip
        self.config, self._channel_key, self._facts_key = config, channel_key, facts_key
        self._make_answering = make_answering
        self.facts = run_facts(config)
        self._lock = threading.Lock()
        self._serving: Answering | None = None
        self._channels: dict[str, Any] = {}
        self._gateways: dict[str, Any] = {}
        self._scheduler: Any = None
        self._fleet_items: set[str] = set()
        self._interrupts = Interrupts(self._say_at_once, self._abandon)
        self._collections: dict[Any, list[str]] = {}

    @property
    def serves(self) -> bool:
        """True if there were agents to serve."""
        return self._serving is not None

    def serve(self) -> Answering:
        """Return the object that serves the agents, created at the first call.

        Raises pytest.UsageError (one line, exit status 4) for bad input.
        """
        self._interrupts.install()  # in the main thread only: a receiver's call may come first
        with self._lock:
            if self._serving is None:
                try:
                    self._serving = self._make_answering(self)
                except UsageError as error:
                    raise pytest.UsageError(str(error)) from None
                for name, channel in self._channels.items():
                    self._serving.coordinator.join(name, _sender(channel))
                freeze_objects()  # of what it has imported, too: pytest collects twice at the end
            return self._serving

    @property
    def agent(self) -> Agent:
        """The one agent of a run without xdist."""
        return self.serve().agent

    # -- xdist ------------------------------------------------------------------------------------

    def add_node(self, node: Any) -> None:
        """Open a channel to a new worker. It is duplex, needs no port and ends with the worker."""
        channel, name = node.gateway.newchannel(), node.gateway.id
        node.workerinput[self._channel_key] = channel
        host_name = _name_host(node.gateway.spec)
        agents_here = sum(_name_host(spec) == host_name for spec in node.nodemanager.specs)
        facts = self.facts.replace(host_name=host_name, agents_here=agents_here)
        node.workerinput[self._facts_key] = facts.plain()
        with self._lock:
            self._channels[name], self._gateways[name] = channel, node.gateway
            if self._serving is not None:
                self._serving.coordinator.join(name, _sender(channel))

        def receive(data: bytes | None) -> None:
            if data is None:
                self.lose_node(name)
            else:
                self.serve().coordinator.receive(name, decode_from_agent(data))

        channel.setcallback(receive, endmarker=None)

    def lose_node(self, name: str) -> None:
        """Go on without a worker that has ended."""
        with self._lock:
            self._channels.pop(name, None)
            serving = self._serving
        if serving is not None:
            serving.coordinator.leave_fleet(name, "was lost")

    def take_over(self, node: Any, nodeids: list[str]) -> None:
        """Note the items that a worker has collected. If some are for the whole fleet, our scheduler takes over.

        Its agent has announced those before. Without such items, a session keeps the scheduler that it has.
        """
        xdist: Any = self.config.pluginmanager.getplugin("dsession")
        if self._fleet_items and self._scheduler is None and not xdist.sched.collection_is_completed:
            from pytest_cloudbench.fleet.scheduler import FleetScheduling

            scheduler = FleetScheduling(
                self.config, xdist.log, lambda: self.serve().coordinator, self._fleet_items,
                *self.serve().repetitions(),
            )  # fmt: skip
            for xdist_node in xdist.sched.nodes:
                scheduler.add_node(xdist_node)
                if xdist_node in self._collections:
                    scheduler.add_node_collection(xdist_node, self._collections[xdist_node])
            self._scheduler = xdist.sched = scheduler
        self._collections[node] = nodeids

    def is_apart(self, agent: str) -> bool:
        """Return whether an agent is at an item that only it runs."""
        return False if self._scheduler is None else bool(self._scheduler.is_apart(agent))

    def is_elsewhere(self, agent: str) -> bool:
        """Return whether an agent was started on another host, by a table of hosts or by xdist."""
        return bool(self.find_host(agent))

    def find_host(self, agent: str) -> str:
        """Return the name of an agent's host, in the table of hosts or as xdist reaches it. Empty for this machine."""
        gateway = self._gateways.get(agent)
        return "" if gateway is None else _name_host(gateway.spec)

    def list_planned_hosts(self) -> Sequence[tuple[Any, str]]:
        """Return the hosts of the user's table, each with why it was given up, or an empty text."""
        plugin: Any = self.config.pluginmanager.getplugin("cloudbench-hosts")
        planned: Sequence[tuple[Any, str]] = plugin.list_hosts() if plugin is not None else ()
        return planned

    def way_here(self, agent: str) -> Callable[[tuple[str, int]], int] | None:
        """Return a function that finds the port of an agent's host that leads to an address here, or None."""
        hosts: Any = self.config.pluginmanager.getplugin("cloudbench-hosts")
        gateway = self._gateways.get(agent)
        return hosts.way_here(str(gateway.spec.host)) if hosts and gateway and gateway.spec.host else None

    def size(self) -> int:
        """Return how many agents run an item for the whole fleet, if none is lost."""
        if self._scheduler is None:
            return 1
        xdist: Any = self.config.pluginmanager.getplugin("dsession")
        return len(xdist.nodemanager.specs)

    def add_fleet_items(self, nodeids: list[str]) -> None:
        """Note items that a worker has collected and that all workers run."""
        self._fleet_items.update(nodeids)

    def ask(self, agent: str, answered: Callable[[], None]) -> None:
        """Ask whether an agent's process runs. execnet answers in a separate thread, whatever the agent does."""
        gateway = self._gateways.get(agent)
        if gateway is None or self._is_awaited(agent):  # without workers, the agent is this process
            answered()
            return

        def wait() -> None:
            with contextlib.suppress(OSError, EOFError):  # it is gone
                gateway.remote_status()
                answered()

        try:
            threading.Thread(target=wait, name=f"ask-{agent}", daemon=True).start()
        except RuntimeError:  # the system allows no further thread: nothing is known about the agent yet
            answered()

    def _is_awaited(self, agent: str) -> bool:
        """Return whether an agent's process has yet to be started, by a plugin that still works on it."""
        starters = map(self.config.pluginmanager.getplugin, _STARTERS)
        return any(starter is not None and starter.is_awaited(agent) for starter in starters)

    def kill(self, agent: str) -> None:
        """End an agent's process at once. It is our child (over ssh: the connection is), so no other can be hit."""
        if agent in self._gateways:  # without workers, the agent is this process
            self._gateways[agent]._io.kill()

    def check_baseline(self) -> None:
        """Check before anything starts that gates have something to compare with. Raises UsageError."""
        if self._serving is not None:
            self._serving.check_baseline()

    # -- report -----------------------------------------------------------------------------------

    def header(self) -> list[str]:
        """Return lines for pytest's header, if it is already known that the plugin is used."""
        return [] if self._serving is None else self._serving.header()

    def repeat(self, session: pytest.Session) -> None:
        """Without xdist: run the items that are to be repeated at the end of the session."""
        again = self._serving.repetitions()[0] if self._serving is not None else None
        items = {item.nodeid: item for item in session.items}
        repeated = [items[nodeid] for nodeid in again()] if again is not None else []
        for item, nextitem in zip(repeated, [*repeated[1:], None], strict=False):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)

    def summarize(self, reporter: Any) -> None:
        """Write the table of all experiments, at the end."""
        if self._serving is not None:
            self._serving.summarize(reporter)

    def finish(self, session: pytest.Session) -> None:
        """Report tests that had no worker left, keep what unfinished experiments measured, and save the entries."""
        if self._serving is not None:
            self._serving.settle(session)
        self._report_not_run(session)
        if self._serving is not None:
            self._serving.finish(session)

    def _report_not_run(self, session: pytest.Session) -> None:
        """Report tests that were never run as failed, unless the session was told to stop."""
        xdist: Any = self.config.pluginmanager.getplugin("dsession")
        if xdist is None or self._scheduler is None or xdist.shouldstop or session.exitstatus not in _ENDED:
            return
        why = xdist._summary_report or "no worker was left to run it"
        for nodeid in self._scheduler.list_unreported():
            path = nodeid.partition("::")[0]
            report = pytest.TestReport(nodeid, (path, None, path), {}, "failed", f"not run: {why}", "call")
            self.config.hook.pytest_runtest_logreport(report=report)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def close(self) -> None:
        """End the emulators, and restore the signal handlers."""
        if self._serving is not None:
            self._serving.close()
        self._interrupts.restore()

    def _say_at_once(self, line: str) -> None:
        """Write a line from a signal handler, past pytest's capture and whatever is being written."""
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        with contextlib.suppress(AttributeError, OSError, ValueError):
            os.write(reporter._tw._file.fileno(), f"\n{line}\n".encode())

    def _abandon(self) -> None:
        """End the workers at once. The emulators end with this process."""
        for gateway in list(self._gateways.values()):
            gateway._io.kill()


def _name_host(spec: Any) -> str:
    """Return the name of a worker's host by execnet's spec of the worker. Empty for this machine."""
    return str(spec.host or ("" if spec.popen else spec.ssh or spec.socket or spec))


def _sender(channel: Any) -> Callable[[ToAgent | None], None]:
    """Return a function that sends to the agent at the other end of a channel. None is sent as None."""
    return lambda message: channel.send(None if message is None else encode(message))


def run_facts(config: pytest.Config) -> RunFacts:
    """Return the facts of a new run in this process."""
    option = config.option
    unique = os.urandom(2).hex()
    run_id = f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}-{unique}"
    return RunFacts(
        run_id=run_id,
        seed=option.cloudbench_seed or run_id,
        time_scale=option.cloudbench_time_scale,
        max_ops=option.cloudbench_max_ops,
        max_bytes=option.cloudbench_max_bytes,
        max_lateness_s=option.cloudbench_max_lateness,
        results=str(session_results_folder(config) / _machine_id() / run_id),
        host=host_id(),
        owner=owner_text(),
        gated=option.cloudbench_gate or option.cloudbench_gate_strict,
    )


def _machine_id() -> str:
    from pytest_benchmark.utils import get_machine_id

    return str(get_machine_id())
