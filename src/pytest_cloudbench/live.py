"""A run's progress while it lasts: a line redrawn on a terminal, an occasional new line elsewhere.

What may live here: the progress of the fleet for people to look at. It measures nothing and stores nothing.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from pytest_cloudbench.clock import now_ns

__all__ = ["SAY_EVERY_S", "WINDOW_S", "Live", "Meter", "Progress", "Spoken", "render", "terminal"]

SAY_EVERY_S = 30.0
"""Without a terminal: the time between two lines of one experiment."""

WINDOW_S = 10.0
"""The window of ``rate_per_s`` and ``p99_s``, in seconds before now."""

_REDRAW_S = 0.25


@dataclass(frozen=True, slots=True)
class Progress:
    """What the fleet has done so far in the current experiment.

    Attributes:
        nodeid: the experiment.
        done: operations finished, of all agents.
        throttled: of these, operations that the service refused because there were too many.
        failed: of these, others that did not succeed.
        planned: operations the experiment will try.
        agents: agents that have reported so far.
        elapsed_s: seconds since the experiment began.
        rate_per_s: recently finished operations per second; None before there are any.
        p99_s: the 99th percentile of the response times of operations that recently succeeded, estimated from a sample
            of them; None if there are none.
    """

    nodeid: str
    done: int
    throttled: int
    failed: int
    planned: int
    agents: int
    elapsed_s: float
    rate_per_s: float | None = None
    p99_s: float | None = None


class Meter:
    """Adds up what agents report about four times a second. Final figures come from the records, not from this."""

    def __init__(self, clock: Callable[[], int] = now_ns) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._experiment: tuple[str, int, int] | None = None
        self._totals: dict[str, tuple[int, int, int]] = {}
        self._lately: deque[tuple[int, int, float, Sequence[float]]] = deque()

    def begin(self, nodeid: str, planned: int, start_ns: int) -> None:
        """An experiment begins."""
        with self._lock:
            self._totals, self._experiment = {}, (nodeid, planned, start_ns)
            self._lately.clear()

    def end(self) -> None:
        """No experiment is running."""
        self._experiment = None

    def told(self, agent: str, done: int, throttled: int, failed: int, sample_s: Sequence[float]) -> None:
        """Take an agent's totals, and a sample of response times since its last report."""
        with self._lock:
            former = self._totals.get(agent, (0, 0, 0))
            self._totals[agent] = (done, throttled, failed)
            succeeded = done - throttled - failed - (former[0] - former[1] - former[2])
            weight = succeeded / len(sample_s) if sample_s else 0.0
            now = self._clock()
            self._lately.append((now, done - former[0], weight, sample_s))
            self._forget(now)

    def _forget(self, now: int) -> None:
        while self._lately and self._lately[0][0] < now - WINDOW_S * 1e9:
            self._lately.popleft()

    def progress(self) -> Progress | None:
        """Returns the progress of the current experiment; None if there is none."""
        with self._lock:
            if self._experiment is None:
                return None
            nodeid, planned, start_ns = self._experiment
            now = self._clock()
            self._forget(now)
            elapsed_s = max(0.0, (now - start_ns) / 1e9)
            done, throttled, failed = (sum(row[at] for row in self._totals.values()) for at in range(3))
            lately = sum(row[1] for row in self._lately)
            rate = lately / min(WINDOW_S, elapsed_s) if lately and elapsed_s else None
            if not lately and elapsed_s > WINDOW_S:
                rate = 0.0
            sample = [(value, weight) for _, _, weight, values in self._lately for value in values]
            return Progress(nodeid, done, throttled, failed, planned, len(self._totals), elapsed_s, rate, _p99(sample))


def _p99(sample: list[tuple[float, float]]) -> float | None:
    """The weighted 99th percentile: the smallest value that at least 99 % of the weight does not exceed."""
    sample.sort()
    left = 0.99 * sum(weight for _, weight in sample)
    for value, weight in sample:
        left -= weight
        if left <= 1e-9:
            return value
    return None


def render(progress: Progress, width: int) -> str:
    """One line of at most ``width`` characters."""
    share = min(1.0, progress.done / progress.planned) if progress.planned else 0.0
    bar = "━" * round(share * 20) + "╺" * (20 - round(share * 20))
    return f"{bar} {_told(progress)}  {progress.nodeid.rpartition('::')[2]}"[:width]


def _told(progress: Progress) -> str:
    """The numbers, most important first."""
    rate = "-" if progress.rate_per_s is None else f"{progress.rate_per_s:,.{1 if progress.rate_per_s < 10 else 0}f}"
    p99 = "-" if progress.p99_s is None else f"{progress.p99_s * 1e3:,.{1 if progress.p99_s < 0.01 else 0}f} ms"
    return (
        f"{progress.done:,}/{progress.planned:,} ops in {progress.elapsed_s:.0f} s  "
        f"last {min(WINDOW_S, progress.elapsed_s):.0f} s: {rate}/s, p99 {p99}  "
        f"{progress.throttled:,} throttled  {progress.failed:,} failed  "
        f"{progress.agents} agent{'s' * (progress.agents != 1)}"
    )


def terminal(mode: str = "w") -> IO[str] | None:
    """Returns the terminal itself, bypassing pytest's capture, to write or to read (``r``); None if there is none."""
    windows = "CONIN$" if mode == "r" else "CONOUT$"
    try:
        return open(windows if os.name == "nt" else "/dev/tty", mode, encoding="utf-8")
    except OSError:
        return None


class Spoken:
    """Prints progress occasionally, where a redrawn line would not be seen: in a CI log or a file."""

    def __init__(self, say: Callable[[str], None], read: Callable[[], Progress | None]) -> None:
        self._say, self._read = say, read
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._speak, name="spoken", daemon=True)
        self._thread.start()

    def hide(self) -> None:
        """Nothing to clear."""

    def close(self) -> None:
        """Stop printing."""
        self._ended.set()
        self._thread.join()

    def _speak(self) -> None:
        while not self._ended.wait(SAY_EVERY_S):
            progress = self._read()
            if progress is not None:
                self._say(f"cloudbench: {progress.nodeid.rpartition('::')[2]}: {_told(progress)}")


class Live:
    """A line redrawn while an experiment runs, and cleared before anything else is printed."""

    def __init__(self, stream: IO[str], read: Callable[[], Progress | None]) -> None:
        self._stream, self._read = stream, read
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._region: Any = None
        self._thread = threading.Thread(target=self._redraw, name="live", daemon=True)
        self._thread.start()

    def hide(self) -> None:
        """Hide the line until the next experiment makes progress."""
        with self._lock:
            if self._region is not None:
                self._region.stop()
                self._region = None

    def close(self) -> None:
        """Clear the line for good."""
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
                    # What pytest's capture puts in the place of stdout is not rich's to replace and to bring back.
                    self._region = Region(
                        console=console,
                        transient=True,
                        auto_refresh=False,
                        redirect_stdout=False,
                        redirect_stderr=False,
                    )
                    self._region.start()
                self._region.update(Text(render(progress, console.width), no_wrap=True), refresh=True)
