"""The progress of a session: a few lines that are redrawn on a terminal, or a new line once in a while elsewhere.

Nothing here is a result: final figures come from the records. ``report.live_page`` is a page of the same values.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol

from pytest_cloudbench.results.entry_names import split_name
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.support.wording import format_count

SAY_EVERY_S = 30.0
"""The time between two lines where there is no terminal."""

WINDOW_S = 10.0
"""The period before now for which rates, percentiles and lateness are computed."""

_REDRAW_S = 1.0
_LONGEST_SILENCE_S = 5.0
"""An agent without a report for this long is not counted as alive. Agents report four times a second."""
_SHORTEST_RATE_S = 2.0
"""The remaining time is not estimated from a rate over a shorter time."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The fleet's progress in the current run of the current experiment.

    Attributes:
        nodeid: the experiment.
        done: operations of all agents that ended.
        throttled: of these, operations that the service refused because there were too many.
        failed: of these, other operations that did not succeed.
        planned: the maximum number of operations of the run.
        agents: agents that have reported recently.
        elapsed_s: seconds since the run began.
        rate_per_s: recently ended operations per second, or None before there are any.
        p99_s: the 99th percentile of the response times of operations that recently succeeded, estimated from a sample
            of them, or None if there are none.
        p50_s: their median.
        late_s: the maximum time that a recent operation of the sample began after it was due.
        left_s: estimated seconds until the last operation ends, or None if unknown.
        of_agents: agents that began the run.
        run: the number of the experiment's run, from 1.
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
        took_s: seconds from the start of its first run until its end or until now, or None if it has not begun.
    """

    nodeid: str
    state: str
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """All known experiments in order, the progress of the running one, and the time since the first began."""

    experiments: tuple[ExperimentRow, ...]
    progress: Progress | None
    elapsed_s: float

    def describe_counts(self) -> str:
        """Return the numbers of done, running and waiting experiments, in words."""
        states = Counter(experiment.state if experiment.state in _OPEN else "done" for experiment in self.experiments)
        text = f"{states['done']} of {format_count(len(self.experiments), 'experiment')} done"
        return text + "".join(f", {states[state]} {state}" for state in _OPEN if states[state])


_OPEN = ("running", "waiting")


@dataclass(slots=True)
class _ExperimentState:
    state: str = "waiting"
    began_ns: int | None = None
    ended_ns: int | None = None
    runs: int = 0

    def took_s(self, now_ns: int) -> float | None:
        """Return the seconds from the start of its first run until its end or until now."""
        if self.began_ns is None:
            return None
        return max(0.0, ((now_ns if self.ended_ns is None else self.ended_ns) - self.began_ns) / 1e9)


@dataclass(frozen=True, slots=True)
class AgentReport:
    """One report of an agent.

    Attributes:
        agent, at_ns: the name of the agent, and when the report arrived.
        ok, throttled, failed: operations that ended since the agent's last report, by their outcome.
        in_flight: operations that had begun and not ended.
        sample_s, weight: a sample of the response times of those that succeeded, and how many each represents.
        late_s: the maximum time that an operation of the sample began after it was due.
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
        """The number of ended operations, whatever their outcome."""
        return self.ok + self.throttled + self.failed


class Follower(Protocol):
    """A listener to the reports that a meter receives, such as figures."""

    def begin(self, nodeid: str, line: str, start_ns: int) -> None:
        """Begin a run of an experiment. ``line`` distinguishes it from other runs of the experiment."""

    def take(self, report: AgentReport) -> None:
        """Take a report of an agent."""


@dataclass(frozen=True, slots=True)
class _Run:
    nodeid: str
    planned: int
    start_ns: int
    planned_s: float
    agents: int


class Meter:
    """Adds up the reports of agents, which they send about four times a second.

    Attributes:
        follower: receives all reports as well, if there is one.
    """

    def __init__(self, clock: Callable[[], int] = now_ns) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._run: _Run | None = None
        self._rows: dict[str, _ExperimentState] = {}
        self._began_ns: int | None = None
        self._totals: dict[str, tuple[int, int, int]] = {}
        self._heard_ns: dict[str, int] = {}
        self._recent: deque[AgentReport] = deque()
        self.follower: Follower | None = None

    def expect_experiments(self, nodeids: Iterable[str]) -> None:
        """Add the names of experiments in their order. Known ones keep their position."""
        with self._lock:
            for nodeid in nodeids:
                self._rows.setdefault(nodeid, _ExperimentState())

    def begin_run(
        self, nodeid: str, planned: int, start_ns: int, planned_s: float = 0.0, agents: int = 0, line: str = ""
    ) -> None:  # fmt: skip
        """Begin a run of an experiment.

        Args:
            nodeid: the experiment.
            planned: the maximum number of operations.
            start_ns: when the run begins.
            planned_s: the minimum duration of the operations in seconds.
            agents: the number of agents.
            line: distinguishes the run from other runs of the experiment.
        """
        with self._lock:
            row = self._rows.setdefault(nodeid, _ExperimentState())
            row.state, row.runs = "running", row.runs + 1
            row.began_ns = start_ns if row.began_ns is None else row.began_ns
            row.ended_ns = None
            self._began_ns = start_ns if self._began_ns is None else self._began_ns
            self._totals, self._heard_ns = {}, {}
            self._run = _Run(nodeid, planned, start_ns, planned_s, agents)
            self._recent.clear()
            if self.follower is not None:
                self.follower.begin(nodeid, line or f"run {row.runs}", start_ns)

    def end_run(self) -> None:
        """End the current run."""
        self._run = None

    def end_experiment(self, nodeid: str, outcome: str) -> None:
        """End an experiment. Other tests are ignored."""
        with self._lock:
            row = self._rows.get(nodeid)
            if row is not None:
                row.state, row.ended_ns = outcome, self._clock()

    def add_totals(
        self, agent: str, done: int, throttled: int, failed: int, sample_s: Sequence[float],
        late_s: float | None = None, in_flight: int = 0,
    ) -> None:  # fmt: skip
        """Add a report of an agent.

        Args:
            agent: its name.
            done: its ended operations since the run began.
            throttled: of these, those that the service refused because there were too many.
            failed: of these, others that did not succeed.
            sample_s: a sample of response times since its last report.
            late_s: the maximum lateness since its last report.
            in_flight: operations that have begun and not ended.
        """
        with self._lock:
            former, self._totals[agent] = self._totals.get(agent, (0, 0, 0)), (done, throttled, failed)
            ended, throttled_now, failed_now = done - former[0], throttled - former[1], failed - former[2]
            ok, now_ns = ended - throttled_now - failed_now, self._clock()
            self._heard_ns[agent] = now_ns
            weight = max(0, ok) / len(sample_s) if sample_s else 0.0
            report = AgentReport(agent, now_ns, ok, throttled_now, failed_now, in_flight, sample_s, weight, late_s)
            self._recent.append(report)
            self._drop_old_reports(now_ns)
            if self.follower is not None and self._run is not None:
                self.follower.take(report)

    def _drop_old_reports(self, now_ns: int) -> None:
        while self._recent and self._recent[0].at_ns < now_ns - WINDOW_S * 1e9:
            self._recent.popleft()

    def progress(self) -> Progress | None:
        """Return the progress of the current run, or None if there is none."""
        with self._lock:
            return self._progress()

    def _progress(self) -> Progress | None:
        run = self._run
        if run is None:
            return None
        now_ns = self._clock()
        self._drop_old_reports(now_ns)
        elapsed_s = max(0.0, (now_ns - run.start_ns) / 1e9)
        done, throttled, failed = (sum(row[index] for row in self._totals.values()) for index in range(3))
        recent = sum(report.done for report in self._recent)
        rate = recent / min(WINDOW_S, elapsed_s) if recent and elapsed_s else None
        if not recent and elapsed_s > WINDOW_S:
            rate = 0.0
        sample = sorted((value, report.weight) for report in self._recent for value in report.sample_s)
        late_s = max((report.late_s for report in self._recent if report.late_s is not None), default=None)
        alive = sum(heard_ns >= now_ns - _LONGEST_SILENCE_S * 1e9 for heard_ns in self._heard_ns.values())
        return Progress(
            run.nodeid, done, throttled, failed, run.planned, alive, elapsed_s, rate,
            _weighted_percentile(sample, 0.99), _weighted_percentile(sample, 0.5), late_s,
            _remaining_s(run, done, elapsed_s, rate), run.agents or alive, self._rows[run.nodeid].runs,
        )  # fmt: skip

    def overview(self) -> Overview:
        """Return all experiments and the current progress."""
        with self._lock:
            now_ns = self._clock()
            experiments = tuple(
                ExperimentRow(nodeid, row.state, row.took_s(now_ns)) for nodeid, row in self._rows.items()
            )
            elapsed_s = max(0.0, (now_ns - self._began_ns) / 1e9) if self._began_ns is not None else 0.0
            return Overview(experiments, self._progress(), elapsed_s)


def _remaining_s(run: _Run, done: int, elapsed_s: float, rate_per_s: float | None) -> float | None:
    """Return the remaining planned time. When it is over, estimate the remaining time from the recent rate."""
    if (planned_left_s := run.planned_s - elapsed_s) > 1:
        return planned_left_s
    if not rate_per_s or elapsed_s < _SHORTEST_RATE_S:
        return None
    return max(0.0, (run.planned - done) / rate_per_s)


def _weighted_percentile(ordered: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return the weighted percentile: the smallest value that at least ``share`` of the weight does not exceed."""
    remaining = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        remaining -= weight
        if remaining <= 1e-9:
            return value
    return None


# --- lines of text ---


def format_duration(seconds: float) -> str:
    """Return a duration as ``43 s``, ``12 m 05 s`` or ``3 h 07 m``."""
    whole_s = round(seconds)
    if whole_s < 60:
        return f"{whole_s} s"
    return (
        f"{whole_s // 60} m {whole_s % 60:02} s"
        if whole_s < 3600
        else f"{whole_s // 3600} h {whole_s % 3600 // 60:02} m"
    )


def format_figures(progress: Progress) -> list[str]:
    """Return groups of figures, the most important first. An unknown value is a dash."""
    rate = "-" if progress.rate_per_s is None else f"{progress.rate_per_s:,.{1 if progress.rate_per_s < 10 else 0}f}"
    remaining_text = "" if progress.left_s is None else f", {format_duration(progress.left_s)} left"
    agents = "" if progress.agents == progress.of_agents else f"{progress.agents} of "
    return [
        f"{progress.done:,}/{progress.planned:,} ops in {format_duration(progress.elapsed_s)}{remaining_text}",
        f"last {min(WINDOW_S, progress.elapsed_s):.0f} s: {rate}/s, p50 {_format_milliseconds(progress.p50_s)}, "
        f"p99 {_format_milliseconds(progress.p99_s)}",
        f"{progress.throttled:,} throttled",
        f"{progress.failed:,} failed",
        f"late {_format_milliseconds(progress.late_s)}",
        f"{agents}{format_count(progress.of_agents, 'agent')}",
    ]


def _format_milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.{1 if seconds < 0.01 else 0}f} ms"


def _progress_bar(progress: Progress) -> str:
    share = min(1.0, progress.done / progress.planned) if progress.planned else 0.0
    return "━" * round(share * 20) + "╺" * (20 - round(share * 20))


def _test_name(nodeid: str) -> str:
    """Return a test's name without its path and control characters."""
    return "".join(character if character.isprintable() else "?" for character in split_name(nodeid).title)


def render_line(progress: Progress, width: int) -> str:
    """Return the progress in one line of at most ``width`` characters."""
    return f"{_progress_bar(progress)} {'  '.join(format_figures(progress))}  {_test_name(progress.nodeid)}"[:width]


def render_lines(overview: Overview, width: int, height: int) -> list[str]:
    """Return all experiments and the figures of the running one, in ``height`` lines of ``width`` characters."""
    progress = overview.progress
    figure_lines = list(_fill_lines(format_figures(progress), width - 4)) if progress is not None else []
    running_lines = (
        [f"    {_progress_bar(progress)}", *(f"    {line}" for line in figure_lines)] if progress is not None else []
    )
    head = f"cloudbench: {overview.describe_counts()}; {format_duration(overview.elapsed_s)}"
    rows = _visible_rows(overview, max(1, height - 1 - len(running_lines)))
    all_lines = [head]
    for row in rows:
        all_lines.append(f"  {_experiment_line(row, progress)}" if isinstance(row, ExperimentRow) else f"  {row}")
        if isinstance(row, ExperimentRow) and progress is not None and row.nodeid == progress.nodeid:
            all_lines += running_lines
    return [line[: max(0, width)] for line in all_lines[: max(1, height)]]


def _experiment_line(experiment: ExperimentRow, progress: Progress | None) -> str:
    run = ""
    if progress is not None and progress.nodeid == experiment.nodeid and progress.run > 1:
        run = f", run {progress.run}"
    took = "" if experiment.took_s is None else f"  {format_duration(experiment.took_s)}"
    return f"{experiment.state:8} {_test_name(experiment.nodeid)}{run}{took}"


def _visible_rows(overview: Overview, room: int) -> list[ExperimentRow | str]:
    """Return as many experiments around the running one as fit, and the numbers of omitted ones."""
    rows = overview.experiments
    if len(rows) <= room:
        return list(rows)
    current = next((current for current, row in enumerate(rows) if row.state == "running"), len(rows) - 1)
    room = max(1, room - 2)
    first = max(0, min(current - room // 3, len(rows) - room))
    before = [f"... {first} before"] if first else []
    after = [f"... {len(rows) - first - room} more"] if first + room < len(rows) else []
    return [*before, *rows[first : first + room], *after]


def _fill_lines(groups: Sequence[str], width: int) -> Iterator[str]:
    """Yield lines with as many groups as fit."""
    line = ""
    for group in groups:
        if line and len(line) + 2 + len(group) > width:
            yield line
            line = ""
        line = f"{line}  {group}" if line else group
    if line:
        yield line


def open_terminal(mode: str = "w") -> IO[str] | None:
    """Open the terminal for writing or reading (``r``), bypassing pytest's capture. Return None if there is none."""
    windows = "CONIN$" if mode == "r" else "CONOUT$"
    try:
        return open(windows if os.name == "nt" else "/dev/tty", mode, encoding="utf-8")
    except OSError:
        return None


class PeriodicProgress:
    """Prints the progress once in a while, for a CI log or a file, where lines cannot be redrawn."""

    def __init__(self, say: Callable[[str], None], read: Callable[[], Overview]) -> None:
        self._say, self._read = say, read
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._print_periodically, name="live lines", daemon=True)
        self._thread.start()

    def hide(self) -> None:
        """Do nothing, since printed lines are not redrawn."""

    def close(self) -> None:
        """Stop printing."""
        self._ended.set()
        self._thread.join()

    def _print_periodically(self) -> None:
        while not self._ended.wait(SAY_EVERY_S):
            overview = self._read()
            progress = overview.progress
            if progress is not None:
                total = len(overview.experiments)
                number = next(
                    (number for number, row in enumerate(overview.experiments, 1) if row.nodeid == progress.nodeid), 1
                )
                position = f" ({number} of {total})" if total > 1 else ""
                self._say(f"cloudbench: {_test_name(progress.nodeid)}{position}: {'  '.join(format_figures(progress))}")


class Live:
    """Redraws lines while an experiment runs, and clears them before anything else is printed.

    Args:
        stream: the terminal.
        read: the session's progress.
        is_single: whether to draw one line only, because tests print to the terminal themselves.
    """

    def __init__(self, stream: IO[str], read: Callable[[], Overview], *, is_single: bool = False) -> None:
        self._stream, self._read, self._is_single = stream, read, is_single
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._region: Any = None
        self._thread = threading.Thread(target=self._redraw, name="live", daemon=True)
        self._thread.start()

    def hide(self) -> None:
        """Hide the lines until there is progress again."""
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
        """Return the columns and rows of the terminal. Rich would ask stdout, which pytest's capture replaces."""
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return 80, 24
        return size.columns or 80, size.lines or 24

    def _redraw(self) -> None:
        """Redraw the lines until the end. Nothing is shown while no experiment runs."""
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
                    # Rich must not replace and later restore stdout, which is pytest's capture.
                    self._region = Region(
                        console=console,
                        transient=True,
                        auto_refresh=False,
                        redirect_stdout=False,
                        redirect_stderr=False,
                    )
                    self._region.start()
                width, height = console.size = self._size()
                visible = (
                    [render_line(overview.progress, width)]
                    if self._is_single
                    else render_lines(overview, width, height - 2)
                )
                self._region.update(Text("\n".join(visible), no_wrap=True), refresh=True)
