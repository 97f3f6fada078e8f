"""The warm worker: pytest, configured and collected once, from which xdist's workers are forked.

A fork is safe before there is a thread, a connection or a child process. What a worker knows of itself (its id, its
channels, its temporary folder) is put right in the forked process. A project whose code asks for such a thing while it
is collected would get the same answer in all workers, so its workers are started as xdist does.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import pytest
from execnet import gateway_base

from pytest_cloudbench.fleet.start.leaving import QuickEnd
from pytest_cloudbench.fleet.start.socket_io import SocketIO, discard_task

_REQUEST_BYTES = 1 << 16

_channels: queue.SimpleQueue[tuple[Any, threading.Event] | None] = queue.SimpleQueue()
"""A forked worker's channel, and what tells that it is no longer needed. None at the end of its connection."""

_forked: list[str] = []
"""The id of the worker that this process has become."""


def is_forked() -> bool:
    """Return whether this process was forked from a warm worker."""
    return bool(_forked)


def hand_over(channel: Any) -> None:
    """Give a worker's channel to pytest in the main thread, and wait until pytest no longer needs it."""
    is_done = threading.Event()
    _channels.put((channel, is_done))
    is_done.wait()


@dataclass(frozen=True, slots=True)
class Identity:
    """The values by which workers differ, prepared in the warm worker and put right in a forked one.

    Attributes:
        config: pytest's configuration.
        workerinput: a ``WatchedDict`` (see ``plugin.warm_entry``), which pytest has as ``config.workerinput``.
        environment: a ``WatchedDict``: the data of ``os.environ``.
        channels: key in ``workerinput`` to a ``FutureChannel``.
        events: the ``FutureChannel`` over which xdist's worker tells what happens.
        interrupt_handler: SIGINT's handler before it was ignored.
        added_variables: variables of the environment that only the warm worker has.
        adapt: called in a forked process with the worker's id, after all else.
    """

    config: Any
    workerinput: Any
    environment: Any
    channels: Mapping[str, Any]
    events: Any
    interrupt_handler: Any
    added_variables: Collection[str]
    adapt: Callable[[str], None]

    def find_reader(self, keys: list[str]) -> str:
        """Return the code that has read one of these keys of ``workerinput``, or the worker's id in the environment."""
        for key, reader in [*self.environment.reads.items(), *self.workerinput.reads.items()]:
            if isinstance(key, bytes):
                return f"{reader} reads {os.fsdecode(key)}"
            if key in keys:
                return f"{reader} reads workerinput[{key!r}]"
        return ""

    def become(self, interactor: Any, channel: Any) -> None:
        """Become the worker whose channel this is."""
        workerinput, _args, options, _sys_path = channel.receive()
        self.environment.watching = self.workerinput.watching = False
        channels = {key: workerinput[key] for key in self.channels}
        name = workerinput["workerid"]
        os.environ["PYTEST_XDIST_WORKER"] = name
        for variable in self.added_variables:
            del os.environ[variable]
        self.workerinput.clear()
        self.workerinput.update(workerinput)
        interactor.workerid, interactor.testrunuid = name, workerinput["testrunuid"]
        interactor.channel = channel
        _move_temporary_folder(self.config, options.get("basetemp"))
        _restart_capture(self.config)
        if (random := sys.modules.get("numpy.random")) is not None:
            random.seed()  # Python's own generator is seeded anew by os.fork
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            signal.signal(signal.SIGINT, self.interrupt_handler)
        self.adapt(name)
        # Plugins' messages about the collection must arrive before xdist's own, after which tests are scheduled.
        for key, future in self.channels.items():
            future.become(channels[key])
        self.events.become(channel)


def _move_temporary_folder(config: Any, basetemp: str | None) -> None:
    config.option.basetemp = basetemp
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        factory._given_basetemp = Path(os.path.abspath(basetemp)) if basetemp else None
        factory._basetemp = None


def _restart_capture(config: Any) -> None:
    """Open new files for captured output, because forked processes share those of the warm worker."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()


class ForkServer:
    """A pytest plugin of the warm worker: forks at the beginning of the test loop, which goes on in the forks.

    Args:
        control: a connection to the controller.
        identity: what is put right in a forked process.
        interactor: xdist's plugin of a worker.
        preload: imports what the collected tests will need, without connecting to anything.
    """

    def __init__(
        self, control: socket.socket, identity: Identity, interactor: Any, preload: Callable[[pytest.Session], None]
    ) -> None:
        self._control, self._identity, self._interactor, self._preload = control, identity, interactor, preload
        self._children: set[int] = set()
        self._inherited = {os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in (0, 1, 2, control.fileno())}
        self._gateway: threading.Thread | None = None
        self._is_done: threading.Event | None = None
        self._end: QuickEnd | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """https://docs.pytest.org/en/stable/reference/reference.html#pytest.hookspec.pytest_runtestloop."""
        self._preload(session)
        obstacle = self._find_obstacle()
        gc.collect()
        self._end = QuickEnd()
        gc.freeze()  # garbage collection writes to each object that it visits, and each written page would be copied
        gc.enable()
        while not is_forked():
            self._serve_request(obstacle)
        return (yield)

    def refuse_all(self, reason: str) -> NoReturn:
        """Refuse all forks, until the controller has gone."""
        while True:
            self._serve_request(reason)

    def end(self) -> None:
        """Let the gateway of a forked process end, after pytest has, and then the process."""
        if self._gateway is None or self._is_done is None or self._end is None:
            return
        self._is_done.set()
        self._gateway.join()
        self._end.leave()

    def _find_obstacle(self) -> str:
        """Return why a fork would not be safe now."""
        threads = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
        if threads:
            return f"the thread {threads[0]} was started while tests were collected"
        if sockets := [name for name in _list_sockets() if name not in self._inherited]:
            return f"a connection ({sockets[0]}) was opened while tests were collected"
        if _has_temporary_folder():
            return "a temporary folder was made while tests were collected"
        return "a process was started while tests were collected" if _has_children() else ""

    def _serve_request(self, obstacle: str) -> None:
        """Wait for a request to fork a worker, and answer it. Ends this process when the controller has gone."""
        request, descriptors, _flags, _address = socket.recv_fds(self._control, _REQUEST_BYTES, 1)
        self._reap()
        if not request:
            for pid in self._children:
                os.waitpid(pid, 0)
            os._exit(0)
        worker, differing_keys = json.loads(request)
        if reason := obstacle or self._identity.find_reader(differing_keys):
            os.close(descriptors[0])
            self._control.send(json.dumps({"refused": reason}).encode())
            return
        pid = os.fork()
        if pid == 0:
            self._control.close()
            self._become(worker, socket.socket(fileno=descriptors[0]))
            return
        self._children.add(pid)
        os.close(descriptors[0])
        self._control.send(json.dumps({"pid": pid}).encode())

    def _reap(self) -> None:
        self._children -= {pid for pid in self._children if os.waitpid(pid, os.WNOHANG)[0]}

    def _become(self, worker: str, connection: socket.socket) -> None:
        _forked.append(worker)
        io = SocketIO(connection, gateway_base.get_execmodel("main_thread_only"))

        def serve() -> None:
            try:
                gateway_base.serve(io, f"{worker}-worker")
            except RuntimeError as error:  # the system allows no further thread
                os.write(2, f"cloudbench: {worker} cannot be started: {error}\n".encode())
            finally:
                _channels.put(None)

        self._gateway = threading.Thread(target=serve, name="execnet", daemon=True)
        self._gateway.start()
        if (task := _channels.get()) is None:  # it could not serve, or the controller has gone
            discard_task(io)
            os._exit(1)
        channel, self._is_done = task
        self._identity.become(self._interactor, channel)


def _has_temporary_folder() -> bool:
    """Return whether the end of this process, and of all forked from it, would remove a temporary folder."""
    finalize: Any = weakref.finalize
    remove_folder = vars(TemporaryDirectory)["_cleanup"].__func__
    return any(getattr(info.func, "__func__", None) is remove_folder for info in finalize._registry.values())


def _list_sockets() -> list[str]:
    """Return the sockets and event queues that this process has open, as Linux names them."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # the descriptor that listed the folder
            continue
        if name.startswith(("socket:", "anon_inode:[eventpoll]", "anon_inode:[io_uring]")):
            names.append(name)
    return names


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
