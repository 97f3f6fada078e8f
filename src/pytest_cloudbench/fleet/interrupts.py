"""Ctrl-C and SIGTERM while a fleet works: the first ends the run cleanly, later ones do not disturb that.

What may live here: the handler of both signals, in the controller and in workers. Installed in sessions that have
a fleet, and only where the stock handlers are.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Interrupts", "is_ctrl_c_ignored"]

_ENDED_AT_ONCE = 2
"""pytest's exit status of an interrupted session."""


def is_ctrl_c_ignored() -> bool:
    """Whether this process was started with Ctrl-C ignored, as by ``nohup ... &`` in a script."""
    return signal.getsignal(signal.SIGINT) == signal.SIG_IGN


class Interrupts:
    """Turns the first signal into KeyboardInterrupt; a second one is answered with a line, a third ends at once.

    Args:
        say: writes a line; it is called in a signal handler.
        abandon: called before the process ends at once; None where further signals are ignored (in workers).
    """

    def __init__(
        self, say: Callable[[str], None] = lambda line: None, abandon: Callable[[], None] | None = None
    ) -> None:
        self._say, self._abandon = say, abandon
        self._count, self._is_done = 0, False
        self._former: dict[int, Any] = {}

    def install(self) -> None:
        """Handle both signals from now on, except where another handler is set or the signal is ignored.

        A worker that gets SIGTERM alone is lost as by any other signal, and the others go on.
        """
        if self._is_done or threading.current_thread() is not threading.main_thread():
            return
        self._is_done = True
        for number, stock in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) == stock and (self._abandon is not None or number == signal.SIGINT):
                self._former[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restore the previous handlers."""
        if threading.current_thread() is threading.main_thread():
            while self._former:
                signal.signal(*self._former.popitem())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
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
