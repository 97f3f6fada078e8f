"""A session's progress while it lasts: a few lines redrawn on a terminal, an occasional new line elsewhere.

What may live here: the progress of the fleet for people to look at, as values and as lines of text. It measures nothing
and stores nothing. ``report.live_page`` makes a page of the same values.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol

from pytest_cloudbench.support.clock import now_ns

SAY_EVERY_S = 30.0
"""Without a terminal: the time between two lines of one experiment."""

WINDOW_S = 10.0
"""The window of rates, percentiles and lateness, in seconds before now."""

_REDRAW_S = 1.0
_SILENT_S = 5.0
"""An agent that has said nothing for this long is not counted as alive; it reports four times a second."""
_LEAST_S = 2.0
"""No rate over a shorter time is used for an estimate."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the fleet has done so far in the current run of the current experiment.

    Attributes:
        nodeid: the experiment.
        done: operations finished, of all agents.
        throttled: of these, operations that the service refused because there were too many.
        failed: of these, others that did not succeed.
        planned: operations the run will try at most.
        agents: agents that were heard of lately.
        elapsed_s: seconds since the run began.
        rate_per_s: recently finished operations per second; None before there are any.
        p99_s: the 99th percentile of the response times of operations that recently succeeded, estimated from a sample
            of them; None if there are none.
        p50_s: their median.
        late_s: the most that a recent operation of the sample began after it was due.
        left_s: estimated seconds until the last operation; None if that is not known.
        of_agents: agents that began the run.
        run: which run of the experiment, from 1.
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
    p50_s: float | None = None
    late_s: float | None = None
    left_s: float | None = None
    of_agents: int = 0
    run: int = 1


@dataclass(frozen=True, slots=True)
class ExperimentRow:
    """One experiment of the session.

    Attributes:
        nodeid: its name.
        state: ``waiting``, ``running``, or how it ended: ``passed``, ``failed``, ``skipped``...
        took_s: seconds since its first run began, to its end if it has ended; None if it has not begun.
    """

    nodeid: str
    state: str
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """All experiments that are known, in order; the progress of the running one; seconds since the first began."""

    experiments: tuple[ExperimentRow, ...]
    progress: Progress | None
    elapsed_s: float

    def count(self) -> str:
        """How many are done, running and waiting, in words."""
        states = Counter(each.state if each.state in _OPEN else "done" for each in self.experiments)
        told = f"{states['done']} of {len(self.experiments)} experiments done"
        return told + "".join(f", {states[state]} {state}" for state in _OPEN if states[state])


_OPEN = ("running", "waiting")


@dataclass(slots=True)
class _Row:
    state: str = "waiting"
    began_ns: int | None = None
    ended_ns: int | None = None
    runs: int = 0

    def took_s(self, now: int) -> float | None:
        """Seconds since its first run began, to its end or until now."""
        if self.began_ns is None:
            return None
        return max(0.0, ((now if self.ended_ns is None else self.ended_ns) - self.began_ns) / 1e9)


@dataclass(frozen=True, slots=True)
class AgentReport:
    """One report of an agent.

    Attributes:
        agent, at_ns: whose, and when it came.
        ok, throttled, failed: operations that ended since its last one, by what became of them.
        in_flight: operations that had begun and not ended.
        sample_s, weight: response times of some that succeeded; each stands for this many.
        late_s: the most that an operation of the sample began after it was due.
    """

    agent: str
    at_ns: int
    ok: int
    throttled: int
    failed: int
    in_flight: int
    sample_s: Sequence[float]
    weight: float
    late_s: float | None = None

    @property
    def done(self) -> int:
        """Operations that ended, whatever became of them."""
        return self.ok + self.throttled + self.failed


class Follower(Protocol):
    """What else wants to know what a meter is told, such as figures."""

    def begin(self, nodeid: str, line: str, start_ns: int) -> None:
        """A run of an experiment begins; ``line`` is what tells it from the experiment's other runs."""

    def take(self, heard: AgentReport) -> None:
        """An agent has reported."""


@dataclass(frozen=True, slots=True)
class _Run:
    nodeid: str
    planned: int
    start_ns: int
    planned_s: float
    agents: int


class Meter:
    """Adds up what agents report about four times a second. Final figures come from the records, not from this.

    Attributes:
        follower: is told as well, if there is one.
    """

    def __init__(self, clock: Callable[[], int] = now_ns) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._run: _Run | None = None
        self._rows: dict[str, _Row] = {}
        self._began_ns: int | None = None
        self._totals: dict[str, tuple[int, int, int]] = {}
        self._heard_ns: dict[str, int] = {}
        self._lately: deque[AgentReport] = deque()
        self.follower: Follower | None = None

    def expect(self, nodeids: Iterable[str]) -> None:
        """Take the names of experiments in their order; those that are known stay where they are."""
        with self._lock:
            for nodeid in nodeids:
                self._rows.setdefault(nodeid, _Row())

    def begin(
        self, nodeid: str, planned: int, start_ns: int, planned_s: float = 0.0, agents: int = 0, line: str = ""
    ) -> None:  # fmt: skip
        """A run of an experiment begins: operations at most, and the least seconds that they take."""
        with self._lock:
            row = self._rows.setdefault(nodeid, _Row())
            row.state, row.runs = "running", row.runs + 1
            row.began_ns = start_ns if row.began_ns is None else row.began_ns
            row.ended_ns = None
            self._began_ns = start_ns if self._began_ns is None else self._began_ns
            self._totals, self._heard_ns = {}, {}
            self._run = _Run(nodeid, planned, start_ns, planned_s, agents)
            self._lately.clear()
            if self.follower is not None:
                self.follower.begin(nodeid, line or f"run {row.runs}", start_ns)

    def end(self) -> None:
        """No run is in progress."""
        self._run = None

    def ended(self, nodeid: str, outcome: str) -> None:
        """An experiment has ended. Other tests are not counted."""
        with self._lock:
            row = self._rows.get(nodeid)
            if row is not None:
                row.state, row.ended_ns = outcome, self._clock()

    def told(
        self, agent: str, done: int, throttled: int, failed: int, sample_s: Sequence[float],
        late_s: float | None = None, in_flight: int = 0,
    ) -> None:  # fmt: skip
        """Take an agent's totals, and a sample of response times and the greatest lateness since its last report."""
        with self._lock:
            before, self._totals[agent] = self._totals.get(agent, (0, 0, 0)), (done, throttled, failed)
            news, refused, other = done - before[0], throttled - before[1], failed - before[2]
            ok, now = news - refused - other, self._clock()
            self._heard_ns[agent] = now
            weight = max(0, ok) / len(sample_s) if sample_s else 0.0
            heard = AgentReport(agent, now, ok, refused, other, in_flight, sample_s, weight, late_s)
            self._lately.append(heard)
            self._forget(now)
            if self.follower is not None and self._run is not None:
                self.follower.take(heard)

    def _forget(self, now: int) -> None:
        while self._lately and self._lately[0].at_ns < now - WINDOW_S * 1e9:
            self._lately.popleft()

    def progress(self) -> Progress | None:
        """Return the progress of the current run; None if there is none."""
        with self._lock:
            return self._progress()

    def _progress(self) -> Progress | None:
        run = self._run
        if run is None:
            return None
        now = self._clock()
        self._forget(now)
        elapsed_s = max(0.0, (now - run.start_ns) / 1e9)
        done, throttled, failed = (sum(row[at] for row in self._totals.values()) for at in range(3))
        lately = sum(each.done for each in self._lately)
        rate = lately / min(WINDOW_S, elapsed_s) if lately and elapsed_s else None
        if not lately and elapsed_s > WINDOW_S:
            rate = 0.0
        sample = sorted((value, each.weight) for each in self._lately for value in each.sample_s)
        late_s = max((each.late_s for each in self._lately if each.late_s is not None), default=None)
        alive = sum(heard_ns >= now - _SILENT_S * 1e9 for heard_ns in self._heard_ns.values())
        return Progress(
            run.nodeid, done, throttled, failed, run.planned, alive, elapsed_s, rate, _weighted(sample, 0.99),
            _weighted(sample, 0.5), late_s, _left_s(run, done, elapsed_s, rate), run.agents or alive,
            self._rows[run.nodeid].runs,
        )  # fmt: skip

    def overview(self) -> Overview:
        """Return all experiments and the current progress."""
        with self._lock:
            now = self._clock()
            experiments = tuple(ExperimentRow(nodeid, row.state, row.took_s(now)) for nodeid, row in self._rows.items())
            elapsed_s = max(0.0, (now - self._began_ns) / 1e9) if self._began_ns is not None else 0.0
            return Overview(experiments, self._progress(), elapsed_s)


def _left_s(run: _Run, done: int, elapsed_s: float, rate_per_s: float | None) -> float | None:
    """The time that is planned, or what the last seconds' rate makes of the rest once that is over."""
    if run.planned_s > elapsed_s and run.planned_s - elapsed_s > 1:
        return run.planned_s - elapsed_s
    if not rate_per_s or elapsed_s < _LEAST_S:
        return None
    return max(0.0, (run.planned - done) / rate_per_s)


def _weighted(ordered: Sequence[tuple[float, float]], share: float) -> float | None:
    """The weighted percentile: the smallest value that at least that share of the weight does not exceed."""
    left = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        left -= weight
        if left <= 1e-9:
            return value
    return None


# --- lines of text ---


def duration(seconds: float) -> str:
    """A time for people: ``43 s``, ``12 m 05 s``, ``3 h 07 m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} m {whole % 60:02} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02} m"


def figures(progress: Progress) -> list[str]:
    """The numbers in groups, most important first; a dash is not known."""
    rate = "-" if progress.rate_per_s is None else f"{progress.rate_per_s:,.{1 if progress.rate_per_s < 10 else 0}f}"
    left = "" if progress.left_s is None else f", {duration(progress.left_s)} left"
    plural = "s" * (progress.of_agents != 1)
    agents = progress.agents if progress.agents == progress.of_agents else f"{progress.agents} of {progress.of_agents}"
    return [
        f"{progress.done:,}/{progress.planned:,} ops in {duration(progress.elapsed_s)}{left}",
        f"last {min(WINDOW_S, progress.elapsed_s):.0f} s: {rate}/s, p50 {_milliseconds(progress.p50_s)}, "
        f"p99 {_milliseconds(progress.p99_s)}",
        f"{progress.throttled:,} throttled",
        f"{progress.failed:,} failed",
        f"late {_milliseconds(progress.late_s)}",
        f"{agents} agent{plural}",
    ]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.{1 if seconds < 0.01 else 0}f} ms"


def _bar(progress: Progress) -> str:
    share = min(1.0, progress.done / progress.planned) if progress.planned else 0.0
    return "━" * round(share * 20) + "╺" * (20 - round(share * 20))


def _name(nodeid: str) -> str:
    """A test's own name, without control characters."""
    name = nodeid.rpartition("::")[2] or nodeid
    return "".join(each if each.isprintable() else "?" for each in name)


def render(progress: Progress, width: int) -> str:
    """One line of at most ``width`` characters."""
    return f"{_bar(progress)} {'  '.join(figures(progress))}  {_name(progress.nodeid)}"[:width]


def lines(overview: Overview, width: int, height: int) -> list[str]:
    """All experiments and the running one's figures, in at most ``height`` lines of at most ``width`` characters."""
    progress = overview.progress
    told = list(_filled(figures(progress), width - 4)) if progress is not None else []
    running = [f"    {_bar(progress)}", *(f"    {line}" for line in told)] if progress is not None else []
    head = f"cloudbench: {overview.count()}; {duration(overview.elapsed_s)}"
    rows = _shown(overview, max(1, height - 1 - len(running)))
    found = [head]
    for row in rows:
        found.append(f"  {_row(row, progress)}" if isinstance(row, ExperimentRow) else f"  {row}")
        if isinstance(row, ExperimentRow) and progress is not None and row.nodeid == progress.nodeid:
            found += running
    return [line[: max(0, width)] for line in found[: max(1, height)]]


def _row(experiment: ExperimentRow, progress: Progress | None) -> str:
    run = ""
    if progress is not None and progress.nodeid == experiment.nodeid and progress.run > 1:
        run = f", run {progress.run}"
    took = "" if experiment.took_s is None else f"  {duration(experiment.took_s)}"
    return f"{experiment.state:8} {_name(experiment.nodeid)}{run}{took}"


def _shown(overview: Overview, room: int) -> list[ExperimentRow | str]:
    """As many experiments as there is room for, around the running one, and how many are left out."""
    rows = overview.experiments
    if len(rows) <= room:
        return list(rows)
    at = next((at for at, row in enumerate(rows) if row.state == "running"), len(rows) - 1)
    room = max(1, room - 2)
    first = max(0, min(at - room // 3, len(rows) - room))
    before = [f"... {first} before"] if first else []
    after = [f"... {len(rows) - first - room} more"] if first + room < len(rows) else []
    return [*before, *rows[first : first + room], *after]


def _filled(groups: Sequence[str], width: int) -> Iterator[str]:
    """Groups on lines that hold as many as fit."""
    line = ""
    for group in groups:
        if line and len(line) + 2 + len(group) > width:
            yield line
            line = ""
        line = f"{line}  {group}" if line else group
    if line:
        yield line


def terminal(mode: str = "w") -> IO[str] | None:
    """Return the terminal itself, bypassing pytest's capture, to write or to read (``r``); None if there is none."""
    windows = "CONIN$" if mode == "r" else "CONOUT$"
    try:
        return open(windows if os.name == "nt" else "/dev/tty", mode, encoding="utf-8")
    except OSError:
        return None


class Spoken:
    """Prints progress occasionally, where a redrawn line would not be seen: in a CI log or a file."""

    def __init__(self, say: Callable[[str], None], read: Callable[[], Overview]) -> None:
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
            overview = self._read()
            progress = overview.progress
            if progress is not None:
                total = len(overview.experiments)
                at = next((at for at, row in enumerate(overview.experiments, 1) if row.nodeid == progress.nodeid), 1)
                of = f" ({at} of {total})" if total > 1 else ""
                self._say(f"cloudbench: {_name(progress.nodeid)}{of}: {'  '.join(figures(progress))}")


class Live:
    """Lines redrawn while an experiment runs, and cleared before anything else is printed.

    Args:
        stream: the terminal.
        read: the session's progress.
        is_single: only one line, where tests print into the terminal themselves.
    """

    def __init__(self, stream: IO[str], read: Callable[[], Overview], *, is_single: bool = False) -> None:
        self._stream, self._read, self._is_single = stream, read, is_single
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._region: Any = None
        self._thread = threading.Thread(target=self._redraw, name="live", daemon=True)
        self._thread.start()

    def hide(self) -> None:
        """Hide the lines until the next experiment makes progress."""
        with self._lock:
            if self._region is not None:
                self._region.stop()
                self._region = None

    def close(self) -> None:
        """Clear the lines for good."""
        self._ended.set()
        self._thread.join()
        self.hide()
        self._stream.close()

    def _size(self) -> tuple[int, int]:
        """Columns and rows of the terminal itself; pytest's capture stands where rich would look."""
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return 80, 24
        return size.columns or 80, size.lines or 24

    def _redraw(self) -> None:
        from rich.console import Console
        from rich.live import Live as Region
        from rich.text import Text

        console = Console(file=self._stream)
        while not self._ended.wait(_REDRAW_S):
            with self._lock:
                overview = self._read()
                if overview.progress is None:
                    continue
                if self._region is None:
                    self._stream.write("\n")
                    # Rich must not replace, and later restore, what pytest's capture has put in place of stdout.
                    self._region = Region(
                        console=console,
                        transient=True,
                        auto_refresh=False,
                        redirect_stdout=False,
                        redirect_stderr=False,
                    )
                    self._region.start()
                width, height = console.size = self._size()
                shown = [render(overview.progress, width)] if self._is_single else lines(overview, width, height - 2)
                self._region.update(Text("\n".join(shown), no_wrap=True), refresh=True)
