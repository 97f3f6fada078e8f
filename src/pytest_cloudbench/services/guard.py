"""Start a real server, and end it whatever happens to the process that owns it.

This file is run by its path and cannot import the package. The first line on stdin is JSON. It is not an argument,
because other users can read arguments. Its keys are ``argv``, ``folder`` (the server's current folder, removed at the
end), ``port``, ``ready`` (part of the line that the server prints when it accepts requests, or empty: it is ready once
it listens) and ``setup`` (a command to run then). One line on stdout says that the server is ready. When stdin ends,
because the owner has died or closed it, the server is ended; on SIGTERM it is killed, because it no longer answers. In
both cases all that it has started ends as well. The exit status is the server's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STOP_S = 3.0
_SETUP_S = 30.0
_POLL_S = 0.02
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> int:
    """Run the server until it or stdin ends, and return its exit status, negative for a signal."""
    request = json.loads(sys.stdin.buffer.readline() or b"null")
    if request is None:
        return 0
    die_with_us = _adopt_orphans()
    try:
        process = subprocess.Popen(
            request["argv"], cwd=request["folder"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if request["ready"] else sys.stderr, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=die_with_us,  # noqa: PLW1509  # there is no other thread yet
        )  # fmt: skip
    except OSError as error:
        sys.stderr.write(f"{request['argv'][0]}: {error.strerror}\n")
        shutil.rmtree(request["folder"], ignore_errors=True)
        return 127
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: _kill_server(process, ended))
    threading.Thread(target=_end_with_stdin, args=(process, ended), daemon=True).start()
    follow = threading.Thread(
        target=_follow_output if request["ready"] else _wait_for_port, args=(process, request, ended), daemon=True
    )
    follow.start()
    if hasattr(os, "waitid"):  # it is not reaped yet, so no other process can have its pid or its group's
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        ended.set()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    status = process.wait()
    ended.set()
    _end_orphans()
    follow.join(_STOP_S)
    shutil.rmtree(request["folder"], ignore_errors=True)
    return status


def _announce_ready(process: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
    if request.get("setup") and not _run_setup(request):
        process.kill()
        return
    with contextlib.suppress(OSError):  # the owner no longer waits for it
        os.write(1, b"ready\n")


def _run_setup(request: dict[str, Any]) -> bool:
    """Run the setup command, such as one that creates a bucket. Returns whether that worked."""
    try:
        result = subprocess.run(
            request["setup"],
            cwd=request["folder"],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            timeout=_SETUP_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"setup: {error}\n")
        return False
    return result.returncode == 0


def _follow_output(process: subprocess.Popen[bytes], request: dict[str, Any], ended: threading.Event) -> None:
    """Pass on the server's output, and look for the words that mean it is ready."""
    assert process.stdout is not None
    words, is_ready = request["ready"].encode(), False
    for line in process.stdout:
        os.write(2, line)
        if not is_ready and words in line:
            is_ready = True
            threading.Thread(target=_announce_ready, args=(process, request), daemon=True).start()


def _wait_for_port(process: subprocess.Popen[bytes], request: dict[str, Any], ended: threading.Event) -> None:
    """Try to connect until that succeeds, because no event says when another process begins to listen."""
    while not ended.is_set():
        try:
            socket.create_connection(("127.0.0.1", request["port"]), timeout=_STOP_S).close()
        except OSError:
            ended.wait(_POLL_S)
        else:
            _announce_ready(process, request)
            return


def _end_with_stdin(process: subprocess.Popen[bytes], ended: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    for number in (signal.SIGTERM, signal.SIGKILL if os.name == "posix" else signal.SIGTERM):
        if not ended.is_set():
            with contextlib.suppress(OSError):
                os.kill(process.pid, number)
        ended.wait(_STOP_S)


def _kill_server(process: subprocess.Popen[bytes], ended: threading.Event) -> None:
    """Kill the server, also one that is stopped and would not act on another signal. ``main`` then ends the others."""
    if not ended.is_set():
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)


def _adopt_orphans() -> Callable[[], Any] | None:
    """Become the parent of the server's orphans, on Linux. Return a function that makes a child die with its parent."""
    if sys.platform != "linux":
        return None
    import ctypes

    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_orphans() -> None:
    """End the processes that the server left behind, also those in their own sessions."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    with contextlib.suppress(OSError):
        while pids := children.read_text("ascii").split():
            for pid in map(int, pids):
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


if __name__ == "__main__":
    _status = main()
    sys.stderr.flush()
    if _status < 0:  # end by the same signal as the server, for those who ask why
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-_status, signal.SIG_DFL)
        os.kill(os.getpid(), -_status)
    os._exit(_status % 256)  # the thread that reads stdin may still be waiting
