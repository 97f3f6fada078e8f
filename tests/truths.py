"""Truths that a test has set in an emulator, and the runs that can be compared with them.

This is the one place that decides whether a run's own doubts leave it out, and how far it may be off. A machine that is
slow or busy makes everything longer, and the run's doubts and notes say so. Such a run is left out, but not silently:
the test checks that the run says why, and the session's last lines count the runs that were left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tests.fleet.harness import FinishedRun

__all__ = ["JUDGED", "Truths", "summary"]

JUDGED = "set truth"
_BUSY = "this machine was busy"
_SHOWN = 8


class Truths:
    """The truths of one test. A test that sets one calls ``judged`` before it asserts on times."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node

    def judged(self, run: FinishedRun, *infos: Mapping[str, Any]) -> bool:
        """Return whether these entries of a run are free of doubts. The run must state each doubt, and is counted if it
        has one."""
        doubts = list(dict.fromkeys(reason for info in infos for reason in _find_doubts(info)))
        self.count(doubts)
        assert set(run.counts()) <= ({"passed", "skipped"} if doubts else {"passed"}), run.text
        for reason in doubts:
            assert run.lines_with(reason[:100]), f"it does not say: {reason}"
        return not doubts

    def count(self, doubts: Iterable[str] = ()) -> None:
        """Count this test's truth as judged, or as left out if there are doubts."""
        self._node.user_properties.append((JUDGED, "; ".join(doubts)))

    @staticmethod
    def assert_time(measured_s: float, truth_s: float, rel: float, own_s: float = 0.0) -> None:
        """Assert that a time is the set one, up to a relative tolerance and the computing time of the client itself.

        The other side computes about as much, on the same machine.
        """
        assert truth_s * (1 - rel) <= measured_s <= truth_s * (1 + rel) + 2 * own_s, (measured_s, truth_s, own_s)


def _find_doubts(info: Mapping[str, Any]) -> Iterable[str]:
    yield from info["doubts"]
    yield from (note for note in info["notes"] if note.startswith(_BUSY))


def summary(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Return the lines that say how many set truths were judged, and which were left out."""
    doubts_by_test = {
        report.nodeid: str(doubts)
        for report in reports if report.when == "call"
        for name, doubts in report.user_properties if name == JUDGED
    }  # fmt: skip
    if not doubts_by_test:
        return []
    left_out = {nodeid: doubts for nodeid, doubts in doubts_by_test.items() if doubts}
    lines = [
        f"set truths: {len(doubts_by_test) - len(left_out)} judged, {len(left_out)} left out because the run had doubts"
    ]
    lines += [f"  {nodeid}: {doubts}" for nodeid, doubts in list(left_out.items())[:_SHOWN]]
    if left_out:
        lines.append("  to judge them, name them on the command line and let the machine do nothing else")
    return lines
