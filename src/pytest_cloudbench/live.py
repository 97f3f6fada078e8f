"""The line that shows a run while it lasts, on a terminal only.

What may live here: the progress of the fleet for people to look at. It measures nothing and stores nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

__all__ = ["Live", "Progress", "render", "terminal"]

_REDRAW_S = 0.25


@dataclass(frozen=True, slots=True)
class Progress:
    """What the fleet has done so far in the current experiment.

    Attributes:
        nodeid: the experiment.
        done: operations finished, of all agents.
        not_ok: of these, operations that did not succeed.
        planned: operations the experiment will try.
        agents: agents that have reported so far.
        elapsed_s: seconds since the experiment began.
    """

    nodeid: str
    done: int
    not_ok: int
    planned: int
    agents: int
    elapsed_s: float


def render(progress: Progress, width: int) -> str:
    """One line of at most ``width`` characters."""
    share = min(1.0, progress.done / progress.planned) if progress.planned else 0.0
    bar = "━" * round(share * 20) + "╺" * (20 - round(share * 20))
    test = progress.nodeid.rpartition("::")[2]
    text = (
        f"{bar} {progress.done:,}/{progress.planned:,} ops  {progress.not_ok:,} not ok  "
        f"{progress.agents} agents  {progress.elapsed_s:.0f} s  {test}"
    )
    return text[:width]


def terminal() -> IO[str] | None:
    """The terminal itself, past pytest's capture; None where there is none."""
    try:
        return open("CONOUT$" if os.name == "nt" else "/dev/tty", "w", encoding="utf-8")
    except OSError:
        return None


class Live:
    """A line that is redrawn while an experiment runs, and gone before anything else is printed."""

    def __init__(self, stream: IO[str], read: Callable[[], Progress | None]) -> None:
        self._stream, self._read = stream, read
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._region: Any = None
        self._thread = threading.Thread(target=self._redraw, name="live", daemon=True)
        self._thread.start()

    def hide(self) -> None:
        """Take the line away until the next experiment makes progress."""
        with self._lock:
            if self._region is not None:
                self._region.stop()
                self._region = None

    def close(self) -> None:
        """Take the line away for good."""
        self._ended.set()
        self._thread.join()
        self.hide()
        self._stream.close()

    def _redraw(self) -> None:
        from rich.console import Console
        from rich.live import Live as Region
        from rich.text import Text

        console = Console(file=self._stream)
        while not self._ended.wait(_REDRAW_S):
            with self._lock:
                progress = self._read()
                if progress is None:
                    continue
                if self._region is None:
                    self._stream.write("\n")
                    self._region = Region(console=console, transient=True, auto_refresh=False)
                    self._region.start()
                self._region.update(Text(render(progress, console.width), no_wrap=True), refresh=True)
