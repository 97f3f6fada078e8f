"""One metric of one entry in one stored run, and what it may be used for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from pytest_cloudbench.judge.baseline import COMPARABLE, FOLLOWED, HAD_DOUBTFUL_TIMES, ONLY_AT_GATE, WAS_OUTLIER
from pytest_cloudbench.judge.watched import ACCEPTED, COLUMNS, FOLLOWED_ONLY, TIMES_DOUBTED, Numbers


def run_name(place: str) -> str:
    """Return the name of a run for its ``place``."""
    return place.rpartition("/")[2].removesuffix(".json")


def without_copies(runs: Iterable[tuple[Point, Numbers]]) -> list[tuple[Point, Numbers]]:
    """Return runs of a test, each once. A folder that was copied into another one holds them twice."""
    once: dict[tuple[Any, ...], tuple[Point, Numbers]] = {}
    for point, numbers in runs:
        once.setdefault((point.time_ms, *sorted(numbers.items(), key=itemgetter(0))), (point, numbers))
    return list(once.values())


@dataclass(frozen=True, slots=True)
class Point:
    """One metric of one entry in one run.

    Attributes:
        run: the run's ``place``.
        time_ms: when it started, Unix epoch, milliseconds.
        commit, branch: those of the code under test, or empty if unknown.
        value: the metric in its unit, or None if the entry has no number for it.
        fingerprint: the conditions of the measurement, by name. Points with equal ones may be compared.
        unfit_reason: why the entry may not be a baseline, or empty if it may. In that case ``value`` is a number.
        is_superseded: whether it may not be a baseline only because a later run was accepted as the new one.
        faults: all objections to it, whatever the metric, as in ``baseline.baseline_faults``.
        is_accepted: whether it was already stored when its run, or an earlier one, became the new baseline.
        columns: of a conclusion, the names that its table shows.
        begins_baseline: whether its own run became the new baseline, so that what had happened in it is allowed.
    """

    run: str
    time_ms: int
    commit: str
    branch: str
    value: float | None
    fingerprint: Mapping[str, Any]
    unfit_reason: str
    is_superseded: bool = False
    faults: tuple[str, ...] = ()
    is_accepted: bool = False
    columns: tuple[str, ...] = ()
    begins_baseline: bool = False

    @property
    def name(self) -> str:
        """The run's name, as in ``RunRow``."""
        return run_name(self.run)

    @property
    def has_doubtful_times(self) -> bool:
        """True if only its counts can be believed."""
        return HAD_DOUBTFUL_TIMES in self.faults

    @property
    def is_comparable(self) -> bool:
        """True if the regression gate compares later runs with it, at least in part.

        If its times are doubtful, the gate compares counts only. If the gate failed the run, or the run was an outlier,
        the gate only follows it for a slow rise.
        """
        return self.unfit_reason in COMPARABLE and not self.is_superseded

    def superseded(self, why: str) -> Point:
        """Return the point as one that a later run supersedes, or unchanged if ``why`` is empty or it is unfit."""
        if not why or not self.is_comparable:
            return self
        return replace(self, unfit_reason=self.unfit_reason or why, is_superseded=True)

    def numbers_for_gate(self, numbers: Numbers) -> Numbers:
        """Return the run's numbers as the regression gate takes them, with its name and its restrictions."""
        followed = self.unfit_reason if self.unfit_reason in FOLLOWED else ""
        restrictions = {FOLLOWED_ONLY: followed, TIMES_DOUBTED: self.has_doubtful_times, ACCEPTED: self.begins_baseline}
        return {**numbers, "run": self.name, COLUMNS: self.columns, **restrictions}

    @property
    def counts(self) -> bool:
        """True if the history counts it: it may be a baseline, or would be without the gate or an accepted run.

        A history has to show what the gate found.
        """
        is_fit = (self.is_superseded and WAS_OUTLIER not in self.faults) or self.unfit_reason in ("", ONLY_AT_GATE)
        return self.value is not None and is_fit and not self.has_doubtful_times
