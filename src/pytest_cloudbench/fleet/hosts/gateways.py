"""The plugin that gives xdist its workers on other hosts, and goes on without a host that is gone.

It uses private names of pytest-xdist and execnet, as ``fleet.start.forking`` does. Tests in ``tests/fleet/hosts``
fail and name it when one of them moves.
"""

from __future__ import annotations

import base64
import inspect
import os
from collections.abc import Callable, Generator, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import execnet
import pytest
from xdist.scheduler import EachScheduling
from xdist.workermanage import parse_tx_spec_config

from pytest_cloudbench import __version__
from pytest_cloudbench.fleet.hosts import probe, streams, travel
from pytest_cloudbench.fleet.hosts.connection import HostConnection, HostStream
from pytest_cloudbench.fleet.hosts.table import Host, read_hosts
from pytest_cloudbench.fleet.start.forking import INTERPRETER, RUN_MODULE, WORKER, SharedInput, open_gateway
from pytest_cloudbench.fleet.worker import FACTS_KEY
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.support.argument_files import expand_argument_files

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

_HOSTS = pytest.StashKey[list[Host]]()
_ARCHIVE = pytest.StashKey[bytes]()
_LOST_EVENT = "cloudbench_host_lost"
_ARGS_KEY = "cloudbench_args"

_WORKER = """
receive = channel.receive

def receive_here():
    del channel.receive
    workerinput, _args, options, _sys_path = receive()
    options.pop("basetemp", None)
    return workerinput, workerinput.pop({args_key!r}), options, None

channel.receive = receive_here
"""
"""The code that precedes xdist's own in a worker on another host. It replaces the arguments by those for the host."""


def plan_agents(config: pytest.Config, table: str) -> None:
    """Have xdist start the agents of a table's hosts, beside those of ``-n`` and ``--tx``.

    Raises pytest.UsageError (one line, exit status 4) for a table that cannot be read, or tests that cannot be sent.
    """
    option = config.option
    try:
        hosts = read_hosts(Path(table))
        if option.collectonly:
            return
        # Now, because pytest reports a usage error as one only before it has started anything.
        config.stash[_ARCHIVE] = travel.pack_files(config.rootpath, [config.inipath] if config.inipath else [])
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_HOSTS] = hosts
    option.tx = [*option.tx, *(f"{host.agents}*{_tx_spec(host)}" for host in hosts)]
    option.dist = "load" if option.dist == "no" else option.dist


def connect_hosts(config: pytest.Config, program: str) -> None:
    """Begin to connect to the planned hosts, if there are any, before xdist starts its workers.

    Args:
        config: pytest's configuration in the controller.
        program: the module that runs in the process that agents are forked from.
    """
    if hosts := config.stash.get(_HOSTS, []):
        agents = HostAgents(config, hosts, config.option.cloudbench_patience, program)
        config.pluginmanager.register(agents, "cloudbench-hosts")


def _tx_spec(host: Host) -> str:
    """Return xdist's spec of a worker on a host. For xdist it is a local one, since nothing is to be copied there."""
    return f"popen//host={host.name}"


class HostAgents:
    """A plugin of the controller that starts agents on hosts, with one connection to each host.

    Args:
        config: pytest's configuration in the controller.
        hosts: the hosts of the agents.
        patience_s: how long a host may say nothing.
        program: the module that runs in the process that agents are forked from.
    """

    def __init__(self, config: pytest.Config, hosts: Sequence[Host], patience_s: float, program: str) -> None:
        self._config, self._program = config, program
        self._dsession: Any = config.pluginmanager.getplugin("dsession")
        self._nodemanager: Any = self._dsession.nodemanager
        self._set_up_node = self._nodemanager.setup_node
        self._nodemanager.setup_node = self._set_up
        self._group: Any = self._nodemanager.group
        self._connect_elsewhere = self._group.makegateway
        self._report_end = self._dsession.worker_errordown
        self._group.makegateway = self._connect
        self._dsession.worker_errordown = self._end_worker
        setattr(self._dsession, f"worker_{_LOST_EVENT}", self._print_loss)
        self._numbers, self._streams = count(1), dict[str, HostStream]()
        self._inputs = {host.name: SharedInput() for host in hosts}
        self._is_on_host, self._printed_hosts = False, set[str]()
        self._check = f"from {probe.__name__} import check; check({__version__!r}, {probe.digest_code()!r})"
        self._connections = {host.name: HostConnection(host, patience_s, self._note_loss) for host in hosts}
        self._open()

    def _open(self) -> None:
        for connection in self._connections.values():
            connection.open()
            connection.send(streams.FILES, self._config.stash[_ARCHIVE])
            connection.send(streams.FILES, b"")

    def list_hosts(self) -> list[tuple[Host, str]]:
        """Return the hosts in the order of their table, each with why it was given up, or an empty text."""
        return [(connection.host, connection.lost_because) for connection in self._connections.values()]

    # -- hooks ----------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)  # after all plugins have added to the worker's input
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Start a worker on another host, and tell it that it shares neither this machine's clock nor its files."""
        self._is_on_host = bool(node.gateway.spec.host)
        if self._is_on_host:
            node.workerinput[FACTS_KEY]["host"] = ""
            self._start(node)
            node.workerinput[_ARGS_KEY] = self._map_arguments()

    def pytest_xdist_getremotemodule(self) -> Any:
        """Return the code for a worker on another host."""
        if not self._is_on_host:
            return None
        from xdist import remote

        own = WORKER.format(source=inspect.getsource(remote), path=remote.__file__)
        return _WORKER.format(args_key=_ARGS_KEY) + own

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around the end of the workers
    def pytest_sessionfinish(self) -> Generator[None, None, None]:
        """End everything on all hosts, after the workers have ended."""
        try:
            yield
        finally:
            for connection in self._connections.values():
                connection.end()
            for connection in self._connections.values():
                connection.close()

    def way_here(self, host: str) -> Callable[[tuple[str, int]], int]:
        """Return a function that finds the port of a host's loopback that leads to an address of this machine."""
        return self._connections[host].find_port

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say why workers of a host were not forked."""
        for connection in self._connections.values():
            if connection.obstacle:
                name = connection.host.name
                terminalreporter.write_line(
                    f"cloudbench: agents of host {name} were started one by one: {connection.obstacle}"
                )

    # -- workers --------------------------------------------------------------------------------------

    def _set_up(self, spec: Any, putevent: Any) -> Any:
        """Start a worker as xdist does. Until that is done, hide the loss of its host, on which xdist would fail."""
        node = self._set_up_node(spec, putevent)
        if (stream := self._streams.get(node.gateway.id)) is not None:
            stream.release()
        return node

    def _connect(self, spec: Any = None) -> Any:
        """Return a gateway, in place of ``execnet.Group.makegateway``. It never waits for a host."""
        if not (isinstance(spec, execnet.XSpec) and spec.host):
            return self._connect_elsewhere(spec)
        self._group.allocate_id(spec)
        connection, number = self._connections[str(spec.host)], next(self._numbers)
        stream = connection.add_stream(number, self._group.execmodel, is_held=True)
        self._streams[str(spec.id)] = stream
        return open_gateway(self._group, stream, spec)

    def _start(self, node: WorkerController) -> None:
        """Start an agent once its arguments are known. It is forked if its host can fork and has several agents."""
        worker: str = node.gateway.id
        connection = self._connections[str(node.gateway.spec.host)]
        shared = self._inputs[connection.host.name]
        is_first = shared.is_empty
        request = [worker, shared.add(node.workerinput)]
        if is_first and connection.host.agents > 1 and self._config.option.cloudbench_start != "spawn":
            content = base64.b64encode(shared.pack(self._map_arguments(), None)).decode()
            warm = self._describe_start(connection, RUN_MODULE, self._program)
            connection.command(warm={"content": content, **warm})
        agent = self._describe_start(connection, INTERPRETER.format(worker))
        connection.command(start={"stream": self._streams[worker].number, "request": request, **agent})

    def _describe_start(self, connection: HostConnection, code: str, *args: str) -> dict[str, Any]:
        return connection.describe_program(f"{self._check}\n{code}", *args, folder=self._find_folder())

    def is_awaited(self, worker: str) -> bool:
        """Return whether a worker's process has yet to be started, on a host that is not lost."""
        stream = self._streams.get(worker)
        return stream is not None and not stream.has_started

    def _find_folder(self) -> str:
        """Return the folder that pytest was called in, below its root directory."""
        folder = os.path.relpath(Path(self._config.invocation_params.dir), self._config.rootpath)
        return "." if folder.startswith("..") else folder

    def _map_arguments(self) -> list[str]:
        """Return the arguments for pytest on a host: those of this one, with each path replaced by the host's."""
        paths = self._map_paths()
        invocation = self._config.invocation_params
        args = expand_argument_files(map(str, invocation.args), invocation.dir)  # a host has no such files
        # An expression after -k or -m may read like a path.
        return [arg if before in ("-k", "-m") else paths.get(arg, arg) for before, arg in pairwise(["", *args])]

    def _map_paths(self) -> dict[str, str]:
        """Return a host's path for each argument that leads below the root directory, also as part of an option.

        Paths on a host are relative to the folder that agents run in.
        """
        config, option = self._config, self._config.option
        called_in, root = Path(config.invocation_params.dir), config.rootpath
        start = root / self._find_folder()
        paths = {}
        for arg in (*config.args, str(root), str(config.inipath or root), option.rootdir, option.inifilename):
            name, colons, test = (arg or "").partition("::")
            path = os.path.normpath(called_in / name)
            is_module = option.pyargs and os.sep not in name
            if name and not is_module and Path(path).is_relative_to(root):
                paths[arg] = f"{os.path.relpath(path, start)}{colons}{test}"
        options = ("--rootdir=", "--config-file=", "-c")
        return paths | {f"{name}{arg}": f"{name}{path}" for arg, path in paths.items() for name in options}

    def _end_worker(self, node: WorkerController, error: object | None) -> None:
        """Do what xdist does when a worker has crashed. On a host that is gone, none replaces it."""
        connection = self._connections.get(str(node.gateway.spec.host))
        if connection is not None and not hasattr(node, "workerinfo"):
            connection.give_up(f"an agent did not start: {connection.last_line() or error}")
        if connection is None or not connection.lost_because:
            self._report_end(node, error)
            return
        self._print_loss(connection)  # now, because the session may end before the event is handled
        xdist = self._dsession
        if node in xdist.sched.nodes and (item := xdist.sched.remove_node(node)):
            xdist.handle_crashitem(item, node)
        xdist._active_nodes.remove(node)
        if xdist._active_nodes:
            self._go_on_without(connection.host)
        else:
            xdist.shouldstop = "no host is left"

    def _go_on_without(self, host: Host) -> None:
        """Have the scheduler wait for no worker of a host, and begin if it has waited for these alone."""
        option, sched = self._config.option, self._dsession.sched
        option.tx = [spec for spec in option.tx if not spec.endswith(_tx_spec(host))]
        if not option.tx:  # the other workers of the last host are about to end, too
            return
        sched.numnodes = len(parse_tx_spec_config(self._config))
        collected, nodes = sched.node2collection, sched.nodes
        if not collected or len(collected) < sched.numnodes or any(node not in collected for node in nodes):
            return
        if isinstance(sched, EachScheduling):
            sched.collection_is_completed = True
        sched.schedule()

    def _note_loss(self, connection: HostConnection) -> None:
        self._dsession.queue.put((_LOST_EVENT, {"connection": connection}))

    def _print_loss(self, connection: HostConnection) -> None:
        """Say once that a host is gone."""
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        host = connection.host
        is_printed = host.name in self._printed_hosts
        self._printed_hosts.add(host.name)
        if reporter is not None and not is_printed:
            reporter.ensure_newline()
            reporter.write_line(
                f"cloudbench: host {host.name}: {connection.lost_because}; going on without its agents ({host.agents})"
            )
