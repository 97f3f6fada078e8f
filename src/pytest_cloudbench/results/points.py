"""One metric of one entry in one stored run, and for what it counts.

What may live here: what may be asked of such a point, as pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_cloudbench.judge.baseline import COMPARABLE, FOLLOWED, HAD_DOUBTFUL_TIMES, ONLY_AT_GATE, WAS_OUTLIER
from pytest_cloudbench.judge.watched import FOLLOWED_ONLY, TIMES_DOUBTED, Numbers


def name_of(place: str) -> str:
    """Returns the name of a run for its ``place``."""
    return place.rpartition("/")[2].removesuffix(".json")


@dataclass(frozen=True, slots=True)
class Point:
    """One metric of one entry in one run.

    Attributes:
        run: the run's ``place``.
        time_ms: when it started, Unix epoch, milliseconds.
        commit, branch: of the code under test; empty if unknown.
        value: the metric in its unit; None if the entry has no number for it.
        fingerprint: the conditions of the measurement, by name; equal ones may be compared.
        fit: why the entry may not be a baseline, empty if it may: ``value`` is a number then.
        is_superseded: it may not, but only because a later run was accepted as the new baseline.
        faults: all that speaks against it, whatever the metric; see ``baseline.faults``.
    """

    run: str
    time_ms: int
    commit: str
    branch: str
    value: float | None
    fingerprint: Mapping[str, Any]
    fit: str
    is_superseded: bool = False
    faults: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The run's name, as in ``RunRow``."""
        return name_of(self.run)

    @property
    def has_doubtful_times(self) -> bool:
        """Whether only its counts can be believed."""
        return HAD_DOUBTFUL_TIMES in self.faults

    @property
    def is_comparable(self) -> bool:
        """Whether the regression gate compares later runs with it, at least in part.

        If its times are doubtful, it does so in counts only; if it has failed the run, or the run was an outlier, it
        only follows what adds up.
        """
        return self.fit in COMPARABLE and not self.is_superseded

    def numbers_for_gate(self, numbers: Numbers) -> Numbers:
        """Returns the run's numbers as the regression gate takes them, with its name and for what they count."""
        followed = self.fit if self.fit in FOLLOWED else ""
        return {**numbers, "run": self.name, FOLLOWED_ONLY: followed, TIMES_DOUBTED: self.has_doubtful_times}

    @property
    def counts(self) -> bool:
        """Whether the history counts it: it may be a baseline, or would be without the gate or an accepted run.

        What the gate found is what a history is to show.
        """
        is_fit = (self.is_superseded and WAS_OUTLIER not in self.faults) or self.fit in ("", ONLY_AT_GATE)
        return self.value is not None and is_fit and not self.has_doubtful_times
