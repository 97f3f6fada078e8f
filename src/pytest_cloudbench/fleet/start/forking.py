"""The controller's side of forked workers: gateways whose processes start later, and the warm worker."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import execnet
import pytest
from execnet.gateway import RInfo

from pytest_cloudbench.fleet.hosts.processes import is_stopped, wait_readable
from pytest_cloudbench.fleet.start.socket_io import SocketIO, discard_task

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

_ANSWER_BYTES = 1 << 16
_LOOK_S = 1.0
_MOST_STOPPED = 3
"""How often in a row the warm worker may be seen stopped before the others are started without it."""
_END_S = 10.0

INTERPRETER = (
    "from execnet import gateway_base as base; "
    "base.serve(base.init_popen_io(base.get_execmodel('main_thread_only')), id='{}-worker')"
)
"""The code that makes an interpreter a worker, as execnet's own start does once its code is there."""

_RUN_FILE = "import sys; exec(compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec'))"
"""Runs a file in a ``__main__`` without ``__file__``, as in xdist's workers: other code may look for it."""

RUN_MODULE = f"""
import sys
from importlib.util import find_spec
package, *names = sys.argv[1].split(".")
sys.argv[1] = "/".join([*find_spec(package).submodule_search_locations, *names]) + ".py"
{_RUN_FILE}
"""
"""Runs a module of a package in the same way where its file is not known. Nothing of the package is imported."""

WORKER = """
import sys
warm = sys.modules.get("pytest_cloudbench.fleet.start.warm")
if warm is not None and warm.is_forked():
    warm.hand_over(channel)
else:
    exec(compile({source!r}, {path!r}, "exec"), globals())
"""
"""The code that xdist runs in a worker: it hands over to a pytest that waits there, or is xdist's own module."""


def fork_workers(config: pytest.Config, specs: Sequence[Any], program: str) -> None:
    """Have xdist's local workers forked from a warm one, where the system can and the user has not said otherwise.

    Args:
        config: pytest's configuration in the controller.
        specs: xdist's specs of the workers.
        program: the module that the warm worker's interpreter runs.
    """
    is_possible = sys.platform == "linux" and hasattr(os, "pidfd_open")
    spec = find_spec(program)
    if not is_possible or config.option.cloudbench_start == "spawn" or spec is None or spec.origin is None:
        return
    forkable = [spec for spec in specs if _is_local(spec)]
    if len(forkable) > 1:
        config.pluginmanager.register(Forking(config, dict(forkable[0].env), spec.origin), "cloudbench-forking")


class WorkerProcess:
    """A worker's process, which another process may have yet to start.

    Args:
        end_starter: ends the process that is to start this one.
    """

    def __init__(self, end_starter: Callable[[], None]) -> None:
        self._end_starter = end_starter
        self._is_settled = threading.Event()
        self._pidfd: int | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._is_unwanted = False
        self._lock = threading.Lock()

    def began(self, pid: int, popen: subprocess.Popen[bytes] | None = None) -> None:
        """Note that the process runs."""
        with self._lock:
            self._popen = popen
            with contextlib.suppress(OSError):  # it has ended already
                self._pidfd = os.pidfd_open(pid)
            self._is_settled.set()
        if self._is_unwanted:
            self.kill()

    def give_up(self) -> None:
        """Note that there will be no process."""
        self._is_settled.set()

    def wait(self) -> None:
        """Wait for the end of the process."""
        self._is_settled.wait()
        if self._pidfd is not None:
            wait_readable(self._pidfd)
        if self._popen is not None:
            self._popen.wait()

    def kill(self) -> None:
        """End the process at once. If it has not been started yet, end its starter."""
        self._is_unwanted = True
        if not self._is_settled.is_set():
            self._end_starter()
        with self._lock:
            if self._pidfd is not None:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


@dataclass(slots=True)
class _Request:
    """A worker that is to be started: its process, its end of the connection, and the keys of its input that differ."""

    worker: str
    process: WorkerProcess
    connection: socket.socket
    differing_keys: list[str] = field(default_factory=list)


class SharedInput:
    """The input of several workers.

    The warm worker is configured with the first worker's input, from which others may differ.
    """

    def __init__(self) -> None:
        self._first: dict[str, Any] | None = None
        self._channels: list[str] = []

    @property
    def is_empty(self) -> bool:
        """True if no worker has been added."""
        return self._first is None

    def add(self, workerinput: dict[str, Any]) -> list[str]:
        """Add a worker's input, and return the keys whose values differ from the first worker's."""
        plain = {key: value for key, value in workerinput.items() if not isinstance(value, execnet.Channel)}
        channels = sorted(workerinput.keys() - plain.keys())
        if self._first is None:
            self._first, self._channels = plain, channels
        keys = self._first.keys() | plain.keys()
        differing_keys = sorted(key for key in keys if self._first.get(key) != plain.get(key))
        return differing_keys if channels == self._channels else [*differing_keys, f"channels {channels}"]

    def pack(self, args: list[str], sys_path: list[str] | None) -> bytes:
        """Return the encoded input that the warm worker reads first.

        Args:
            args: pytest's arguments.
            sys_path: where modules are found. None for a warm worker on another host, which has its own.
        """
        packed: bytes = execnet.dumps((self._first, self._channels, args, sys_path))
        return packed


class Forking:
    """A plugin of the controller that has xdist's local workers forked from a warm one.

    Workers elsewhere, and those with an interpreter, a folder or a priority of their own, start as always. So do
    workers whose environment is not that of the first one.

    Args:
        config: pytest's configuration in the controller.
        env: variables of the environment that the first worker is to have.
        program: the file that the warm worker's interpreter runs.
    """

    def __init__(self, config: pytest.Config, env: dict[str, str], program: str) -> None:
        self._config, self._env = config, env
        self._warm = _WarmWorker(program, {**os.environ, **env})
        self._requests: dict[str, _Request] = {}
        self._is_forked_node = False
        dsession: Any = config.pluginmanager.getplugin("dsession")
        self._group: Any = dsession.nodemanager.group
        self._make_gateway = self._group.makegateway
        self._group.makegateway = self._connect
        config.add_cleanup(self._end)

    # -- hooks ----------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)  # after all plugins have added to the worker's input
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Ask for the process of a worker once its input is known."""
        request = self._requests.pop(node.gateway.id, None)
        self._is_forked_node = request is not None
        if request is not None:
            args = [str(arg) for arg in self._config.invocation_params.args]
            self._warm.ask(request, node.workerinput, args)

    def pytest_xdist_getremotemodule(self) -> Any:
        """Return the code for a worker that may have been forked. Others run xdist's own module."""
        if not self._is_forked_node:
            return None
        import inspect

        from xdist import remote

        return WORKER.format(source=inspect.getsource(remote), path=remote.__file__)

    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Say why a worker ended that never began."""
        if why := self._warm.failures.pop(node.gateway.id, ""):
            reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
            if reporter is not None:
                reporter.ensure_newline()
                reporter.write_line(f"cloudbench: {node.gateway.id} cannot be started: {why}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around the end of the workers
    def pytest_sessionfinish(self) -> Generator[None, None, None]:
        """End the warm worker, after all others."""
        self._warm.give_up()
        try:
            yield
        finally:
            self._warm.close()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say why workers were not forked."""
        if self._warm.obstacle:
            terminalreporter.write_line(f"cloudbench: agents were started one by one: {self._warm.obstacle}")

    # ------------------------------------------------------------------------------------------------

    def is_awaited(self, worker: str) -> bool:
        """Return whether a worker's process has yet to be started, and the warm worker works."""
        return self._warm.is_awaited(worker)

    def _end(self) -> None:
        """End the warm worker if the session failed while it started: pytest then calls no ``pytest_sessionfinish``."""
        self._warm.give_up()
        self._warm.kill()
        self._warm.close()

    def _connect(self, spec: Any = None) -> Any:
        """Return a gateway, in place of ``execnet.Group.makegateway``. Its process is asked for later."""
        if not (isinstance(spec, execnet.XSpec) and _is_local(spec) and dict(spec.env) == self._env):
            return self._make_gateway(spec)
        self._group.allocate_id(spec)
        near, far = socket.socketpair()
        process = WorkerProcess(self._warm.kill)
        io = SocketIO(near, self._group.execmodel, process.wait, process.kill)
        gateway = open_gateway(self._group, io, spec)
        self._requests[gateway.id] = _Request(gateway.id, process, far)
        return gateway


def open_gateway(group: Any, io: Any, spec: Any) -> Any:
    """Return a gateway of a group whose other end need not be there yet.

    xdist asks for facts about a worker's process before it says what the worker is to do, so there may be no process to
    answer. This process's own facts are given, which ``-v`` does not print. What the worker says of itself is printed
    later.
    """
    gateway = execnet.Gateway(io, spec)
    gateway._cache_rinfo = RInfo(
        {
            "executable": sys.executable, "version_info": sys.version_info[:5], "platform": sys.platform,
            "cwd": os.getcwd(), "pid": None,
        }
    )  # fmt: skip
    group._register(gateway)
    return gateway


def _is_local(spec: Any) -> bool:
    """Return whether a worker is to run with this interpreter, in this folder."""
    return bool(spec.popen) and not (
        spec.host or spec.python or spec.chdir or spec.via or spec.nice or getattr(spec, "dont_write_bytecode", None)
    )


class _WarmWorker:
    """The warm worker's process, and a thread that has it fork the others, one after the other.

    Attributes:
        obstacle: why workers were started as interpreters. Empty if none was.
        failures: why a worker could not be started, by its id.
    """

    def __init__(self, program: str, env: dict[str, str]) -> None:
        self.obstacle, self._env = "", env
        self.failures = dict[str, str]()
        self._control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-u", "-c", _RUN_FILE, program, str(far.fileno())]
        self._process = subprocess.Popen(
            command, pass_fds=[far.fileno()], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env
        )
        far.close()
        self._input = SharedInput()
        self._waiting: dict[str, _Request] = {}
        self._queue = queue.SimpleQueue[_Request | None]()
        self._is_closing = False
        self._thread = threading.Thread(target=self._start_all, name="start-workers", daemon=True)

    def ask(self, request: _Request, workerinput: dict[str, Any], args: list[str]) -> None:
        """Request a worker with this ``workerinput`` and pytest's arguments."""
        is_first = self._input.is_empty
        request.differing_keys = self._input.add(workerinput)
        if is_first:
            from xdist.plugin import _sys_path

            with contextlib.suppress(OSError):  # it has ended; the thread notices
                assert self._process.stdin is not None
                self._process.stdin.write(self._input.pack(args, _sys_path))
                self._process.stdin.close()
            self._thread.start()
        self._waiting[request.worker] = request
        self._queue.put(request)

    def is_awaited(self, worker: str) -> bool:
        """Return whether a worker has not been started yet, while this process is alive and works."""
        return worker in self._waiting and not is_stopped(self._process.pid)

    def give_up(self) -> None:
        """Start no more workers: the session ends."""
        self._is_closing = True
        if self._waiting:
            self.kill()
        self._queue.put(None)

    def kill(self) -> None:
        """End the process at once. Workers that it has not forked are started as interpreters."""
        self._process.kill()

    def close(self) -> None:
        """End the process, and wait for it. Does nothing at further calls."""
        if self._thread.is_alive():
            self._thread.join()
        self._control.close()
        with contextlib.suppress(OSError):  # it has ended before it was given its input
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    # -- in the thread ----------------------------------------------------------------------------------

    def _start_all(self) -> None:
        while (request := self._queue.get()) is not None:
            self._start(request)
            request.connection.close()
            self._waiting.pop(request.worker, None)

    def _start(self, request: _Request) -> None:
        answer: dict[str, Any] = {}
        if not self._is_closing:
            answer = self._request_fork(request)
        if "pid" in answer:
            request.process.began(answer["pid"])
        elif self._is_closing:
            request.process.give_up()
        else:
            self.obstacle = self.obstacle or answer["refused"]
            self._start_interpreter(request)

    def _start_interpreter(self, request: _Request) -> None:
        command = [sys.executable, "-u", "-c", INTERPRETER.format(request.worker)]
        connection = request.connection.fileno()
        try:
            popen = subprocess.Popen(command, stdin=connection, stdout=connection, env=self._env)
        except OSError as error:  # no process or no memory is left: to xdist, the worker has ended
            self.failures[request.worker] = error.strerror or str(error)
            self._read_task(request.connection)
            request.process.give_up()
        else:
            request.process.began(popen.pid, popen)

    def _read_task(self, connection: socket.socket) -> None:
        """Read what a worker is to do, because xdist fails if it cannot send that."""
        while not wait_readable(connection.fileno(), _LOOK_S):
            if self._is_closing:
                return
        connection.settimeout(_END_S)
        discard_task(SocketIO(connection, None))

    def _request_fork(self, request: _Request) -> dict[str, Any]:
        message = json.dumps([request.worker, request.differing_keys]).encode()
        try:
            socket.send_fds(self._control, [message], [request.connection.fileno()])
            answer = self._receive()
        except OSError:
            answer = b""
        if not answer:
            return {"refused": "the worker that others are forked from has ended"}
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    def _receive(self) -> bytes:
        """Return the warm worker's answer, or nothing if it has ended. One that is stopped for long is ended."""
        stopped_count = 0
        while not wait_readable(self._control.fileno(), _LOOK_S):
            stopped_count = stopped_count + 1 if is_stopped(self._process.pid) else 0
            if stopped_count == _MOST_STOPPED:
                self._process.kill()
        return self._control.recv(_ANSWER_BYTES)
