"""Which stored runs the regression gate of a session compares with.

What may live here: the choice among stored runs, by what the user set and by what git knows, and what to say if there
are none. Runs in the controller process, or in the only process without xdist.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from pytest_cloudbench.judge.baseline import FOLLOWED, describe_differences, explain_no_baseline
from pytest_cloudbench.judge.watched import Numbers, needed_numbers
from pytest_cloudbench.results.acceptance import former_names
from pytest_cloudbench.results.commits import Commits
from pytest_cloudbench.results.index import Index
from pytest_cloudbench.results.points import Point


@dataclass(frozen=True, slots=True)
class FormerRuns:
    """The stored runs of one experiment that count.

    Attributes:
        numbers: of each run, the oldest first.
        commit: of the last one that is a baseline, empty if it is not known.
        remark: why other runs do not count, or an empty text.
    """

    numbers: Sequence[Numbers]
    commit: str = ""
    remark: str = ""


class GateHistory:
    """The stored runs that a session's gate may compare with.

    Args:
        storage: the folder of stored runs.
        root: the project's folder, for git, and to see which tests are there.
        branch: the default branch's name; empty to find it out.

    Raises ResultsError if the storage cannot be listed.
    """

    def __init__(self, storage: Path, root: Path, branch: str) -> None:
        self._index = Index.open(storage)
        self._names, self._root = former_names(storage), root
        self.commits = Commits(root, branch)

    @property
    def problems(self) -> Sequence[str]:
        """Returns a line for each file that cannot be read."""
        return self._index.problems

    def former_runs(self, fullname: str, info: Mapping[str, Any]) -> FormerRuns:
        """Returns the stored runs that an entry can be compared with."""
        runs: list[tuple[Point, dict[str, Any]]] = []
        for name in (fullname, *self._former_names(fullname)):
            points, numbers = self._index.series(name, "ops"), self._index.numbers(name, sorted(needed_numbers()))
            runs += zip(points, numbers, strict=True)
        runs.sort(key=lambda run: run[0].time_ms)
        usable: list[Numbers] = []
        reasons: list[str] = []
        commit = ""
        for point, numbers_of in runs:
            if reason := self._reason_against(point, info):
                reasons.append(reason)
                continue
            usable.append(point.numbers_for_gate(numbers_of))
            if point.fit in FOLLOWED:
                reasons.append(point.fit)
            else:
                commit = point.commit or commit
        remark = explain_no_baseline(reasons).removeprefix("no baseline: ") if reasons else ""
        return FormerRuns(usable, commit, remark)

    def _former_names(self, fullname: str) -> list[str]:
        """Returns the names that a test had before; a test function stands for all its parameters."""
        test, bracket, params = fullname.partition("[")
        names = list(self._names.get(fullname, ()))
        return names + [f"{old}{bracket}{params}" for old in self._names.get(test, ()) if bracket]

    def _reason_against(self, point: Point, info: Mapping[str, Any]) -> str:
        """Returns why a run does not count, or an empty text."""
        reason = "" if point.is_comparable else point.fit
        if reason := reason or describe_differences(point.fingerprint, info):
            return reason
        if not point.commit or not self.commits.base:
            return ""
        is_before = self.commits.is_before(point.commit)
        if is_before is None:  # a shallow clone knows few commits
            is_before = not point.branch or point.branch == self.commits.branch
        return "" if is_before else "were of commits that this work does not build on"

    def offer(self, fullname: str, info: Mapping[str, Any], here: Collection[str]) -> str:
        """Returns a line that offers the runs of another test to one that has none: it may have been renamed.

        The other one has the same conditions, is neither among the tests ``here`` nor in its file, and of several the
        name is most alike.
        """
        if self._index.series(fullname, "ops") or self._former_names(fullname):
            return ""
        alike: list[tuple[float, str, int]] = []
        for name in self._index.tests():
            count = sum(not self._reason_against(point, info) for point in self._index.series(name, "ops"))
            if count and not self._is_there(name, here):
                alike.append((SequenceMatcher(None, name, fullname).ratio(), name, count))
        if not alike:
            return ""
        _, name, count = max(alike)
        runs = "1 run" if count == 1 else f"{count} runs"
        (old, _, old_params), (new, _, new_params) = name.partition("["), fullname.partition("[")
        old, new = (old, new) if old_params == new_params else (name, fullname)
        command = f"cloudbench baseline rename {shlex.quote(old)} {shlex.quote(new)}"
        return f"{runs} of {name} had the same conditions; if that was its name: {command}"

    def _is_there(self, name: str, here: Collection[str]) -> bool:
        """Returns whether a test still exists: in this session, or in its file, which may not have been selected."""
        test = name.partition("[")[0]
        if any(_are_same(nodeid.partition("[")[0], test) for nodeid in here):
            return True
        file, *parts = test.split("::")
        try:
            text = (self._root / file).read_text("utf-8", "replace")
        except (OSError, ValueError):
            return False
        return all(re.search(rf"\b{re.escape(part)}\b", text) for part in parts)


def _are_same(nodeid: str, test: str) -> bool:
    """Return whether a node id is that of a stored test, whose path may be longer or shorter (``stored_nodeid``)."""
    return f"/{nodeid}".endswith(f"/{test}") or f"/{test}".endswith(f"/{nodeid}")
