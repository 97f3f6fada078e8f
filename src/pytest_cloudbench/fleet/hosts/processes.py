"""The processes that a relay starts on its host: agents, and the one that they are forked from.

A part of the program that is sent to the host (see ``relay``), so it needs nothing but the standard library.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_ANSWER_BYTES = 1 << 16
_MOST_STOPPED = 3
"""How often in a row the warm process may be seen stopped before agents are started without it."""


class _Process:
    """An agent's process: a child of this one, or one that was forked from a child.

    Args:
        pid: its number.
        popen: the child. It leads a group of processes.
    """

    def __init__(self, pid: int, popen: subprocess.Popen[bytes] | None = None) -> None:
        self._popen = popen
        self._pidfd = -1
        if popen is None:
            with contextlib.suppress(OSError):  # it has ended already
                self._pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        """End the process at once. A child is ended with all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            if self._popen is not None:
                os.killpg(self._popen.pid, signal.SIGKILL)
            elif self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def has_ended(self) -> bool:
        """Return whether the process has ended. If so, close its descriptor."""
        if self._popen is not None:
            return self._popen.poll() is not None
        if self._pidfd < 0:
            return True
        is_over = wait_readable(self._pidfd, 0)
        if is_over:
            os.close(self._pidfd)
            self._pidfd = -1
        return is_over

    def wait(self) -> None:
        """Wait for the end of the process."""
        if self._popen is not None:
            self._popen.wait()
        elif self._pidfd >= 0:
            wait_readable(self._pidfd)


class _NewAgent(NamedTuple):
    """An agent that is to be started.

    Attributes:
        stream: the number of its stream.
        connection: its standard input and output.
        request: what the warm process is asked for.
        how: the interpreter that is started otherwise.
    """

    stream: int
    connection: socket.socket
    request: list[Any]
    how: dict[str, Any]


class _WarmProcess:
    """The process that agents are forked from, one after the other (see ``fleet.start``).

    Attributes:
        control: a connection to it.
        waiting: the agents that have yet to be forked. It works on the first one.
    """

    def __init__(self, control: socket.socket, pid: int) -> None:
        self.control, self._pid = control, pid
        self.waiting = deque[_NewAgent]()
        self._stopped_count = 0

    def ask(self, agent: _NewAgent) -> None:
        """Have an agent forked."""
        self.waiting.append(agent)
        if len(self.waiting) == 1:
            self._send()

    def _send(self) -> None:
        agent = self.waiting[0]
        with contextlib.suppress(OSError):  # it has ended, which reading shows
            socket.send_fds(self.control, [json.dumps(agent.request).encode()], [agent.connection.fileno()])

    def receive(self) -> tuple[_NewAgent | None, dict[str, Any]]:
        """Return the first waiting agent and the answer to its request. The agent is None if the process has ended."""
        try:
            answer = self.control.recv(_ANSWER_BYTES)
        except OSError:
            answer = b""
        if not answer:
            return None, {}
        agent = self.waiting.popleft()
        if self.waiting:
            self._send()
        return agent, json.loads(answer)

    def end_if_stopped(self) -> None:
        """End the process if agents wait for it and it has been stopped for long."""
        self._stopped_count = self._stopped_count + 1 if self.waiting and is_stopped(self._pid) else 0
        if self._stopped_count == _MOST_STOPPED:
            os.kill(self._pid, signal.SIGKILL)


class Starter:
    """Starts agents: forked from one warm process where there is one, or as interpreters.

    Args:
        folder: the folder below which agents run.
        say: called with a message for the controller.
        find_installed: returns the folder of code that was installed here, by its name and the variables of a process.
    """

    def __init__(
        self, folder: str, say: Callable[..., None], find_installed: Callable[[str, Mapping[str, str]], str]
    ) -> None:
        self._folder, self._say, self._find_installed = folder, say, find_installed
        self._agents: dict[int, _Process] = {}
        self._groups: list[_Process] = []
        self._unwanted = set[int]()
        self._warm: _WarmProcess | None = None

    @property
    def control(self) -> socket.socket | None:
        """The connection to the warm process, whose answers ``serve`` takes."""
        return None if self._warm is None else self._warm.control

    def start(self, stream: int, connection: socket.socket, request: list[Any], how: dict[str, Any]) -> None:
        """Start an agent.

        Args:
            stream: the number of its stream.
            connection: its standard input and output.
            request: what the warm process is asked for, if there is one.
            how: the interpreter that is started otherwise: ``argv``, ``env`` and ``folder``.
        """
        agent = _NewAgent(stream, connection, request, how)
        if self._warm is None:
            self._start_interpreter(agent)
        else:
            self._warm.ask(agent)

    def start_warm(self, content: str, **how: Any) -> None:
        """Start the warm process, if the system can fork. It reads ``content`` (in base 64) first."""
        if not hasattr(os, "pidfd_open"):
            return
        control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        how["argv"].append(str(far.fileno()))
        # If it fails, each agent is an interpreter of its own.
        with far, tempfile.TemporaryFile() as file, contextlib.suppress(OSError):
            file.write(base64.b64decode(content))
            file.seek(0)
            process = self._open_process(**how, pass_fds=[far.fileno()], stdin=file, stdout=subprocess.DEVNULL)
            self._groups.append(_Process(process.pid, process))
            self._warm = _WarmProcess(control, process.pid)

    def serve(self) -> None:
        """Take an answer of the warm process: note an agent that was forked, or start an interpreter in its place."""
        assert self._warm is not None
        warm = self._warm
        agent, answer = warm.receive()
        if agent is None:
            self._warm = None
            self._say(obstacle="the process that others are forked from has ended")
            for waiting in warm.waiting:
                self._start_interpreter(waiting)
        elif "pid" in answer:
            agent.connection.close()
            self._note_start(agent.stream, _Process(answer["pid"]))
        else:
            self._say(obstacle=answer["refused"])
            self._start_interpreter(agent)

    def kill(self, stream: int) -> None:
        """End an agent at once. One that has yet to be started is ended at its start."""
        self._unwanted.add(stream)
        if (agent := self._agents.get(stream)) is not None:
            agent.kill()

    def reap(self) -> None:
        """Forget agents that have ended, and end a warm process that has been stopped for long."""
        for stream in [stream for stream, agent in self._agents.items() if agent.has_ended()]:
            del self._agents[stream]
        if self._warm is not None:
            self._warm.end_if_stopped()

    def end(self) -> None:
        """End all that was started, and wait for it."""
        processes = [*self._agents.values(), *self._groups]
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()

    def _start_interpreter(self, agent: _NewAgent) -> None:
        with agent.connection as connection:
            try:
                process = self._open_process(**agent.how, stdin=connection.fileno(), stdout=connection.fileno())
            except OSError as error:
                self._say(failed=f"cannot start {agent.how['argv'][0]} in {agent.how['folder']}: {error}")
                return
        self._note_start(agent.stream, _Process(process.pid, process))

    def _note_start(self, stream: int, agent: _Process) -> None:
        self._agents[stream] = agent
        if stream in self._unwanted:
            agent.kill()
        self._say(started=stream)

    def _open_process(
        self, argv: list[str], env: dict[str, str], folder: str, installed: str = "", **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a program with the code of the name ``installed``, if that was installed here."""
        cwd = os.path.join(self._folder, folder)
        os.makedirs(cwd, exist_ok=True)
        command = [word or sys.executable for word in argv]
        variables = {**os.environ, **env}
        if packages := self._find_installed(installed, variables):
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, [packages, variables.get("PYTHONPATH")]))
        return subprocess.Popen(command, cwd=cwd, env=variables, start_new_session=True, **options)


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, or gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "TtZX"


def wait_readable(descriptor: int, timeout_s: float | None = None) -> bool:
    """Wait until a descriptor can be read, and return whether it can.

    Uses ``poll``, because ``select.select`` refuses descriptors above 1023.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
