"""Starts pytest in processes that are forked from one that has imported pytest, by multiprocessing's fork server.

Several hundred tests run pytest on small projects. There, an interpreter of its own spends a third of the time on
imports. Nothing of this package is imported before the fork, and no library that the package imports late.
"""

from __future__ import annotations

import atexit
import functools
import io
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_IMPORTED = [
    "pytest", "_pytest.doctest", "_pytest.fixtures", "_pytest.junitxml", "_pytest.legacypath", "_pytest.pastebin",
    "_pytest.pytester", "_pytest.python", "_pytest.terminal", "_pytest.unittest", "email.message", "email.utils",
    "importlib.metadata", "logging", "msgspec", "sqlite3", "ssl", "tomllib", "unittest",
]  # fmt: skip


class WarmPytest:
    """A process that was forked to run pytest, with the part of ``subprocess.Popen`` that the harness uses.

    Args:
        args: pytest's arguments.
        folder: its working folder, and its first folder of modules.
        environment: all its variables.
        out: the file that its standard output and error are written to.
    """

    def __init__(self, args: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path) -> None:
        self._process: ForkServerProcess = _fork_server().Process(
            target=_run, args=(list(args), str(folder), dict(environment), str(out), _module_folders())
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit status. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("pytest", timeout_s or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it still runs."""
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()


@functools.cache
def _fork_server() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


@functools.cache
def _module_folders() -> list[str]:
    """Return where an interpreter of its own looks for modules, after its working folder."""
    command = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    folders: list[str] = json.loads(subprocess.check_output(command))
    return folders


def _run(args: list[str], folder: str, environment: dict[str, str], out: str, module_folders: list[str]) -> None:
    """Become ``python -m pytest`` as it is started in a folder. Does not return."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    stream = os.open(out, os.O_WRONLY | os.O_APPEND)
    for descriptor, text in ((1, sys.stdout), (2, sys.stderr)):
        os.dup2(stream, descriptor)
        assert isinstance(text, io.TextIOWrapper)
        text.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    os.close(stream)
    sys.path[:] = [folder, *module_folders]
    for module in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[module]  # a project may have a package of this name
    sys.argv = ["pytest", *args]
    try:
        runpy.run_module("pytest", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
