"""Ctrl-C, SIGTERM and a closed terminal while a fleet works: the first ends the run cleanly, later ones do no harm.

The handlers are installed in sessions that have a fleet, in the controller and in workers, and only in place of the
stock handlers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_ENDED_AT_ONCE = 2
"""pytest's exit status of an interrupted session."""


def is_ctrl_c_ignored() -> bool:
    """Return True if this process was started with Ctrl-C ignored, as by ``nohup ... &`` in a script."""
    return signal.getsignal(signal.SIGINT) == signal.SIG_IGN


class Interrupts:
    """Signal handlers: the first signal raises KeyboardInterrupt, a second prints a line, a third ends the process.

    Args:
        say: writes a line; it is called in a signal handler.
        abandon: called before the process ends at once; None if further signals are ignored (in workers).
    """

    def __init__(
        self, say: Callable[[str], None] = lambda line: None, abandon: Callable[[], None] | None = None
    ) -> None:
        self._say, self._abandon = say, abandon
        self._count, self._is_installed = 0, False
        self._former: dict[int, Any] = {}
        self._terminals: set[int] = set()

    def install(self) -> None:
        """Handle the signals from now on, except those that have another handler or are ignored, as by ``nohup``.

        A worker does not handle SIGTERM: it ends, and the other workers go on.
        """
        if self._is_installed or threading.current_thread() is not threading.main_thread():
            return
        self._is_installed = True
        self._terminals = {os.fstat(output).st_rdev for output in (1, 2) if os.isatty(output)}
        if self._terminals:
            with contextlib.suppress(OSError):
                self._terminals.add(os.stat("/dev/tty").st_rdev)  # another device number of the same terminal
        stock: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        if hangup := getattr(signal, "SIGHUP", None):  # Windows has none
            stock[hangup] = signal.SIG_DFL
        for number, handler in stock.items():
            if signal.getsignal(number) == handler and (self._abandon is not None or number != signal.SIGTERM):
                self._former[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restore the previous handlers."""
        if threading.current_thread() is threading.main_thread():
            while self._former:
                signal.signal(*self._former.popitem())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if number not in {signal.SIGINT, signal.SIGTERM}:
            self._leave_terminal()
        if self._count == 1:
            raise KeyboardInterrupt(signal.Signals(number).name)
        if self._abandon is None:
            return
        if self._count == 2:
            self._say("cloudbench: the run is ending and keeps its records; interrupt it again to end it at once")
            return
        self._say("cloudbench: ended at once; the agents' logs stay, `cloudbench recover` merges them")
        self._abandon()
        os._exit(_ENDED_AT_ONCE)

    def _leave_terminal(self) -> None:
        """Discard output to a closed terminal: each write to it would raise an error and end pytest."""
        for descriptor in range(256) if self._terminals else ():  # pytest's capture has copies of its own
            with contextlib.suppress(OSError):
                if os.fstat(descriptor).st_rdev in self._terminals and not os.isatty(descriptor):
                    nowhere = os.open(os.devnull, os.O_RDWR)
                    os.dup2(nowhere, descriptor)
                    os.close(nowhere)
