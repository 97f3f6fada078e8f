"""The logs of agents on other hosts, which come in pieces while the agents run.

What may live here: writing them as if those agents were here. A full disk loses no record, and ends no agent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pytest_cloudbench.load.messages import LogPiece
from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results.log_file import LogFile
from pytest_cloudbench.support.clock import now_ns

_IS_LATE_S = 1.0


@dataclass(slots=True)
class _HostLog:
    """The log of one agent: its file once it is open, and what could not be written yet, with the reason."""

    file: LogFile | None = None
    unwritten: bytearray = field(default_factory=bytearray)
    problem: str = ""

    def write(self, open_file: Callable[[], LogFile]) -> None:
        try:
            self.file = self.file or open_file()
            self.file.write(self.unwritten)
            self.problem = ""
        except ResultsError as error:  # what is unwritten is tried again with the next piece
            self.problem = str(error)


@dataclass(slots=True)
class KeptLogs:
    """The logs of one run.

    Attributes:
        paths: agent to its log, if that had to continue elsewhere.
        notes: remarks about how they came and were written.
        doubts: agents whose records are not complete, and why.
    """

    paths: dict[str, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


class HostLogs:
    """The logs of all runs of a session.

    Args:
        find_path: returns the path of the log of a run and an agent.
        moved: called with a run, an agent and the new path of its log, when that has to continue elsewhere.
    """

    def __init__(self, find_path: Callable[[str, str], Path], moved: Callable[[str, str, Path], None]) -> None:
        self._find_path, self._moved = find_path, moved
        self._logs = dict[str, dict[str, _HostLog]]()
        self._late_s = dict[str, float]()
        self._kept = dict[str, KeptLogs]()
        self._lock = threading.Lock()

    def add(self, agent: str, log_piece: LogPiece) -> None:
        """Write the next piece of an agent's log.

        The first piece may come before the run begins. A piece after its end is from an agent that was given up.
        """
        run = log_piece.run
        with self._lock:
            if run in self._kept:
                return
            late_s = (now_ns() - log_piece.sent_ns) / 1e9
            self._late_s[run] = max(late_s, self._late_s.get(run, 0.0))
            log = self._logs.setdefault(run, {}).setdefault(agent, _HostLog())
            log.unwritten += log_piece.piece
            log.write(partial(self._open, run, agent))

    def end(self, run: str) -> KeptLogs:
        """Close a run's logs, to which nothing is added any more, and return how they were kept."""
        with self._lock:
            if run not in self._kept:
                self._kept[run] = self._close(run)
            return self._kept[run]

    def close(self) -> None:
        """Close the logs of runs that never began."""
        for run in list(self._logs):
            self.end(run)

    def _open(self, run: str, agent: str) -> LogFile:
        return LogFile(self._find_path(run, agent), partial(self._moved, run, agent))

    def _close(self, run: str) -> KeptLogs:
        kept = KeptLogs()
        for agent, log in self._logs.pop(run, {}).items():
            log.write(partial(self._open, run, agent))  # what is missing, and all if the file was taken away
            if log.problem:
                kept.doubts.append(f"not all records of {agent} could be written: {log.problem}")
            if log.file is not None:
                log.file.close()
                kept.notes += log.file.notes
                if log.file.path != self._find_path(run, agent):
                    kept.paths[agent] = log.file.path
        if (late_s := self._late_s.pop(run, 0.0)) > _IS_LATE_S:
            kept.notes.append(
                f"records of other hosts came up to {late_s:.1f} s after they were sent, because this machine or the "
                "network was busy; a host that had died would have lost as much of its records"
            )
        return kept
