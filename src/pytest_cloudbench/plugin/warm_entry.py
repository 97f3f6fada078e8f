"""The warm worker's entry: configures pytest as ``xdist.remote`` does, and hands over to ``pytest_cloudbench``.

It runs as a program, because pytest must be configured before anything of xdist or of this package is imported: pytest
warns of a module that was imported before its asserts could be rewritten.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

_WORKER_VARIABLE = b"PYTEST_XDIST_WORKER"
_THREAD_COUNTS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
"""Variables that keep a numerical library from starting threads as it is imported: a fork would lose them."""
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_READERS_THAT_ADAPT = (
    "/xdist/remote.py", "/pytest_cloudbench/fleet/worker.py",
    # These only ask whether there is a worker, or hand all variables to a child process that needs none.
    "/pytest_benchmark/session.py", "/pytest_cloudbench/drivers/surroundings.py", "/platform.py",
)  # fmt: skip
"""Ends of the names of files whose objects are adapted after the fork, or that keep no value."""


class WatchedDict(dict[Any, Any]):
    """A dict that notes where its values are read, until ``watching`` is set to False.

    Attributes:
        reads: a key to the file and line that first read its value.
    """

    watching = True

    def __init__(self, values: dict[Any, Any], keys: frozenset[Any] | None = None) -> None:
        super().__init__(values)
        self.reads: dict[Any, str] = {}
        self._keys = keys

    def _note(self, *keys: Any) -> None:
        new_keys = [key for key in keys if key not in self.reads and (self._keys is None or key in self._keys)]
        if self.watching and new_keys and (reader := _find_reader()):
            self.reads.update(dict.fromkeys(new_keys, reader))

    def __getitem__(self, key: Any) -> Any:
        self._note(key)
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return a value, as of any dict."""
        self._note(key)
        return super().get(key, default)

    def __iter__(self) -> Iterator[Any]:  # else dict() copies the values without a call
        return super().__iter__()

    def items(self) -> Any:
        """Return all keys and values, as of any dict."""
        self._note(*self)
        return super().items()

    def values(self) -> Any:
        """Return all values, as of any dict."""
        self._note(*self)
        return super().values()


def _find_reader() -> str:
    """Return the file and line of the code that reads a value. Empty if it adapts to the process that it is in."""
    frame = sys._getframe(3)
    while frame.f_back is not None and _reads_for_others(frame.f_code.co_filename):
        # Whether there is a worker's id has the same answer in all workers. A module of Python's own that copies all
        # variables as it is imported, as wsgiref does, uses none of them.
        if frame.f_code.co_name == "__contains__" or frame.f_back.f_code.co_filename.startswith("<frozen importlib"):
            return ""
        frame = frame.f_back
    name = frame.f_code.co_filename
    return "" if name.endswith(_READERS_THAT_ADAPT) else f"{name}:{frame.f_lineno}"


def _reads_for_others(name: str) -> bool:
    """Return whether the code in this file reads a value for its caller, as the standard library does."""
    is_standard = name.startswith((_STANDARD_LIBRARY, "<frozen", "<string>")) and "site-packages" not in name
    return is_standard and not name.endswith(_READERS_THAT_ADAPT)


class FutureChannel:
    """A stand-in for a worker's channel that is not open yet. It keeps what is sent, and the callback that receives."""

    def __init__(self, execmodel: Any) -> None:
        self.gateway = type("FutureGateway", (), {"execmodel": execmodel})()
        self._sent: list[Any] = []
        self._receiver: tuple[Callable[[Any], None], dict[str, Any]] | None = None
        self._channel: Any = None

    def send(self, item: Any) -> None:
        """Send, now or later."""
        self._sent.append(item) if self._channel is None else self._channel.send(item)

    def setcallback(self, callback: Callable[[Any], None], **options: Any) -> None:
        """Receive by calling ``callback``, now or later."""
        if self._channel is None:
            self._receiver = callback, options
        else:
            self._channel.setcallback(callback, **options)

    def isclosed(self) -> bool:
        """Return whether the channel is closed. A future one is not."""
        return self._channel is not None and self._channel.isclosed()

    def become(self, channel: Any) -> None:
        """Become this channel: send what was kept, and receive through it from now on."""
        self._channel = channel
        for item in self._sent:
            channel.send(item)
        if self._receiver is not None:
            channel.setcallback(self._receiver[0], **self._receiver[1])


def main() -> None:
    """Read the first worker's input from standard input, configure pytest, and serve requests until the end."""
    gc.disable()  # imports make much that stays, and nothing that the collector could free
    interrupt_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller ends this process
    control = socket.socket(fileno=int(sys.argv[2]))
    del sys.argv[1:]
    from execnet import gateway_base

    workerinput, channel_keys, args, sys_path = gateway_base.loads(sys.stdin.buffer.read())
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    if sys_path is None:  # on another host; xdist's own module does the same there
        sys.path.insert(0, os.getcwd())
        os.environ["PYTHONPATH"] = os.getcwd() + os.pathsep + os.environ.get("PYTHONPATH", "")
    else:
        sys.path = sys_path
    os.environ["PYTEST_XDIST_TESTRUNUID"] = workerinput["testrunuid"]
    os.environ["PYTEST_XDIST_WORKER"] = workerinput["workerid"]
    os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(workerinput["workercount"])
    added_names = [name for name in _THREAD_COUNTS if name not in os.environ]
    os.environ.update(dict.fromkeys(added_names, "1"))
    variables: Any = os.environ
    variables._data = WatchedDict(variables._data, frozenset({_WORKER_VARIABLE}))
    execmodel = gateway_base.get_execmodel("main_thread_only")
    channels = {key: FutureChannel(execmodel) for key in channel_keys}
    identity = {
        "workerinput": WatchedDict(workerinput | channels), "environment": variables._data, "channels": channels,
        "events": FutureChannel(execmodel), "interrupt_handler": interrupt_handler, "added_variables": added_names,
    }  # fmt: skip

    from _pytest.config import _prepareconfig

    config = _prepareconfig(args, None)
    from pytest_cloudbench.plugin.warm import run_warm_worker

    run_warm_worker(config, control, identity)


if __name__ == "__main__":
    main()
