"""Work that an API accepts and does later, in jobs whose entries are done one after the other, each when it is due.

There is no clock here, because callers pass ``now_s`` in seconds. Jobs do not run in the background either: code that
reads the account first calls ``advance``, which does everything that is due by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any

Step = Callable[[float], Any]
"""Processes one entry and returns its result."""


@dataclass(slots=True, eq=False)
class Job:
    """One job. ``results`` has a value for each completed step, and ``is_complete`` is true once all are completed."""

    kind: str
    steps: Sequence[Step]
    entry_s: float
    results: list[Any] = field(default_factory=list)
    is_complete: bool = False


class Jobs:
    """All jobs of one account."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._due: list[tuple[float, int, Job]] = []
        self._count = 0

    def start(
        self, job_id: str, kind: str, steps: Sequence[Step], now_s: float, *, start_s: float, entry_s: float
    ) -> None:
        """Accept a job that begins ``start_s`` later and needs ``entry_s`` for each step.

        Each step is called with the time at which it is due. If both delays are 0, everything is done immediately.
        """
        job = self._jobs[job_id] = Job(kind, steps, entry_s)
        self._schedule(job, now_s + start_s + (entry_s if steps else 0.0))
        self.advance(now_s)

    def find(self, job_id: str, kind: str) -> Job | None:
        """Return the job with this id if it is of that kind, else None. Jobs are kept as long as the account."""
        job = self._jobs.get(job_id)
        return job if job is not None and job.kind == kind else None

    def advance(self, now_s: float) -> None:
        """Do everything that is due by now, in order of due time."""
        while self._due and self._due[0][0] <= now_s:
            due_s, _, job = heappop(self._due)
            if job.steps:
                job.results.append(job.steps[len(job.results)](due_s))
            if len(job.results) < len(job.steps):
                self._schedule(job, due_s + job.entry_s)
            else:
                job.is_complete, job.steps = True, ()

    def next_s(self) -> float:
        """Return when the next entry is due, or infinity if there is none."""
        return self._due[0][0] if self._due else inf

    def _schedule(self, job: Job, due_s: float) -> None:
        self._count += 1
        heappush(self._due, (due_s, self._count, job))
