"""Truths that a test has set in an emulator, and when a run can be compared with them.

What may live here: the one place that decides whether a run's own doubts leave it out, and how far it may be off.
A machine that is slow or busy makes everything longer, and says so in the run's doubts and notes. Such a run is left
out, never passed over: the test checks that the run says why, and the session's last lines count what was left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tests.fleet.harness import Ended

__all__ = ["JUDGED", "Truths", "summary"]

JUDGED = "set truth"
_BUSY = "this machine was busy"
_SHOWN = 8


class Truths:
    """The truths of one test. A test that sets one asks ``judged`` before it asserts on times."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node

    def judged(self, run: Ended, *infos: Mapping[str, Any]) -> bool:
        """Whether these entries of a run are free of doubts. The run must state each doubt; a run with one is
        counted."""
        against = list(dict.fromkeys(reason for info in infos for reason in _against(info)))
        self._node.user_properties.append((JUDGED, "; ".join(against)))
        assert set(run.counts()) <= ({"passed", "skipped"} if against else {"passed"}), run.text
        for reason in against:
            assert run.lines_with(reason[:100]), f"it does not say: {reason}"
        return not against

    @staticmethod
    def assert_time(found_s: float, truth_s: float, rel: float, own_s: float = 0.0) -> None:
        """A time is what was set, up to a relative tolerance and what the client itself had to compute meanwhile.

        The other side computes about as much, on the same machine.
        """
        assert truth_s * (1 - rel) <= found_s <= truth_s * (1 + rel) + 2 * own_s, (found_s, truth_s, own_s)


def _against(info: Mapping[str, Any]) -> Iterable[str]:
    yield from info["doubts"]
    yield from (note for note in info["notes"] if note.startswith(_BUSY))


def summary(reports: Iterable[pytest.TestReport]) -> list[str]:
    """How many set truths were judged, and which were left out."""
    found = {
        report.nodeid: str(against)
        for report in reports if report.when == "call"
        for name, against in report.user_properties if name == JUDGED
    }  # fmt: skip
    if not found:
        return []
    left_out = {nodeid: against for nodeid, against in found.items() if against}
    lines = [f"set truths: {len(found) - len(left_out)} judged, {len(left_out)} left out because the run had doubts"]
    lines += [f"  {nodeid}: {against}" for nodeid, against in list(left_out.items())[:_SHOWN]]
    if left_out:
        lines.append("  to judge them, name them on the command line and let the machine do nothing else")
    return lines
