"""The stored runs with which the regression gate of a session compares.

What may live here: the choice among stored runs by settings and by git's history, and remarks if there are none. It
runs in the controller process, or in the only process without xdist.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from pytest_cloudbench.judge.baseline import FOLLOWED, describe_differences, explain_no_baseline
from pytest_cloudbench.judge.watched import Numbers, needed_numbers
from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results.acceptance import (
    explain_superseded,
    former_names,
    names_after,
    names_before,
    read_acceptances,
)
from pytest_cloudbench.results.commits import Commits
from pytest_cloudbench.results.entry_names import split_name
from pytest_cloudbench.results.index import Index
from pytest_cloudbench.results.places import RESULTS
from pytest_cloudbench.results.points import Point, without_copies
from pytest_cloudbench.support.wording import format_count

_CLOCKS_DIFFER_MS = 60_000
"""The most by which clocks of machines that share runs usually differ."""


@dataclass(frozen=True, slots=True)
class FormerRuns:
    """The usable stored runs of one experiment.

    Attributes:
        numbers: the numbers of each run, the oldest first.
        commit: the commit of the last run that is a baseline, empty if unknown.
        remark: the reason why other runs do not count, or an empty text.
    """

    numbers: Sequence[Numbers]
    commit: str = ""
    remark: str = ""


class GateHistory:
    """The stored runs that a session's gate may compare with.

    Args:
        index: of the stored runs.
        root: the project's folder, for git, and to find the files of tests.
        branch: the default branch's name, empty to determine it.
    """

    def __init__(self, index: Index, root: Path, branch: str) -> None:
        self._storage, self._index = index.storage, index
        self._names, self._root = former_names(index.storage), root
        self._acceptances = read_acceptances(index.storage)
        self.commits = Commits(root, branch)
        self._yet_to_come: dict[str, int] = {}  # runs that began later than now, with their times
        self._others: dict[Path, Index] = {}  # opened storages of surrounding projects

    @property
    def problems(self) -> Sequence[str]:
        """A line for each file that cannot be read."""
        return self._index.problems

    def former_runs(self, fullname: str, info: Mapping[str, Any], collected: Collection[str]) -> FormerRuns:
        """Return the stored runs with which an entry can be compared. ``collected`` are the tests of this session."""
        names, reasons = [fullname, *names_before(self._names, fullname)], list[str]()
        runs = self._index.collect_runs(names, sorted(needed_numbers()))
        for later in names_after(self._names, fullname):
            if self._still_exists(later, collected):  # so this test is new, and its name was that of the other one
                parted_ms = self._index.find_parting_ms(fullname, later)
                own_runs = [run for run in runs if run[0].time_ms >= parted_ms]
                reasons += [f"were of the test that is called {later} now"] * (len(runs) - len(own_runs))
                runs = own_runs
        runs.sort(key=lambda run: run[0].time_ms)
        usable: list[Numbers] = []
        commit = ""
        now_ms = time.time_ns() // 1_000_000
        for point, run_numbers in without_copies(runs):
            if point.time_ms > now_ms + _CLOCKS_DIFFER_MS:
                self._yet_to_come[point.name] = point.time_ms
            reason = self._reason_against(point, info)
            # An acceptance names the test as it was called then, and begins the baseline of all its names.
            if reason := reason or explain_superseded(self._acceptances, names, point.time_ms):
                reasons.append(reason)
                continue
            usable.append(point.numbers_for_gate(run_numbers))
            if point.unfit_reason in FOLLOWED:
                reasons.append(point.unfit_reason)
            else:
                commit = point.commit or commit
        remark = explain_no_baseline(reasons).removeprefix("no baseline: ") if reasons else ""
        return FormerRuns(usable, commit, remark)

    def describe_clock(self) -> str:
        """Return a line if runs of the tests so far are dated later than now, so that their order is not known."""
        if not self._yet_to_come:
            return ""
        name, time_ms = max(self._yet_to_come.items(), key=lambda run: run[1])
        when = datetime.fromtimestamp(time_ms / 1e3, UTC).isoformat(" ", "minutes")
        return (
            f"{format_count(len(self._yet_to_come), 'run')} in the storage began later than now (the last: {name}, "
            f"{when}): a clock was ahead then, or is behind now, and until that time they count as the latest; to "
            "delete them: cloudbench baseline drop"
        )

    def _reason_against(self, point: Point, info: Mapping[str, Any]) -> str:
        """Return the reason if a run does not count, or an empty text."""
        reason = "" if point.is_comparable else point.unfit_reason
        if reason := reason or describe_differences(point.fingerprint, info):
            return reason
        return self.explain_commit(point)

    def explain_commit(self, point: Point) -> str:
        """Return why a run does not count because of its commit, or an empty text."""
        before = self._is_before(point)
        return "" if before else "were of commits that were not on the default branch when this work left it"

    def _is_before(self, point: Point) -> bool:
        """Return whether this work builds on the commit of a run, as far as is known."""
        if not point.commit or not self.commits.base:
            return True
        is_before = self.commits.is_before(point.commit)
        if is_before is None:  # a shallow clone knows few commits
            return not point.branch or point.branch == self.commits.branch
        return is_before

    def last_runs(self, collected: Collection[str]) -> dict[str, Point]:
        """Return the last run of each stored test that still exists, of the runs on whose commits this work builds."""
        last: dict[str, Point] = {}
        for name in self._index.tests():
            if not self._still_exists(name, collected):
                continue
            points = (point for point in reversed(self._index.series(name, "ops")) if self._is_before(point))
            if (point := next(points, None)) is not None:
                last[name] = point
        return last

    def offer_renamed(self, fullname: str, info: Mapping[str, Any], collected: Collection[str]) -> str:
        """Return a line that offers the runs of another test to one that has none, because it may have been renamed.

        The other test had the same conditions, and is neither among the tests ``collected`` nor in its file. The
        most similar name is offered.
        """
        if self._index.series(fullname, "ops") or names_before(self._names, fullname):
            return ""
        candidates: list[tuple[float, str, int]] = []
        for name in self._index.tests():
            count = sum(not self._reason_against(point, info) for point in self._index.series(name, "ops"))
            if count and not self._still_exists(name, collected):
                candidates.append((SequenceMatcher(None, name, fullname).ratio(), name, count))
        if not candidates:
            return ""
        _, name, count = max(candidates)
        old, new = split_name(name), split_name(fullname)
        is_function = (old.parameters, old.label) == (new.parameters, new.label)
        old_name, new_name = (old.test, new.test) if is_function else (name, fullname)
        command = f"cloudbench baseline rename {shlex.quote(old_name)} {shlex.quote(new_name)}"
        return f"{format_count(count, 'run')} of {name} had the same conditions; if that was its name: {command}"

    def find_runs_elsewhere(self, fullname: str, info: Mapping[str, Any], count: int) -> str:
        """Return a line about runs of a test that a session with another root folder of pytest has stored.

        Seen from another root folder, the test has a longer or shorter path, and projects around this one or inside it
        have storages of their own. Empty unless there are more than the ``count`` runs that are found here.
        """
        nodeid = f"{self._root.as_posix()}/{fullname}"
        best_match = (count, "", self._storage)
        for storage, index in ((self._storage, self._index), *self._storages_around(fullname)):
            for name in index.tests():
                if (storage == self._storage and name == fullname) or not nodeid.endswith(f"/{name}"):
                    continue
                points = index.series(name, "ops")
                matching_count = sum(not self._reason_against(point, info) for point in points)
                best_match = max(best_match, (matching_count, name, storage), key=lambda runs: runs[0])
        count, name, storage = best_match
        if not name:
            return ""
        own_text = "" if storage == self._storage else f", and those of this session in {_folder_text(self._storage)}"
        return f"{format_count(count, f'run of {name} is', f'runs of {name} are')} in {_folder_text(storage)}{own_text}"

    def _storages_around(self, fullname: str) -> list[tuple[Path, Index]]:
        """Return the other storages of the projects in which a test's file may be, with their indexes."""
        storages: list[tuple[Path, Index]] = []
        for folder in (self._root / fullname.partition("::")[0]).parents:
            if (storage := folder / RESULTS) in self._others:
                storages.append((storage, self._others[storage]))
            elif storage != self._storage and storage.is_dir():
                try:
                    self._others[storage] = Index.open(storage)
                except ResultsError:  # a folder of that name which cannot be listed is not ours
                    continue
                storages.append((storage, self._others[storage]))
        return storages

    def _still_exists(self, name: str, collected: Collection[str]) -> bool:
        """Return whether a test still exists, in this session or in its file, which may not have been selected."""
        test = split_name(name).test
        if any(is_same_test(split_name(nodeid).test, test) for nodeid in collected):
            return True
        file, *parts = test.split("::")
        try:
            text = (self._root / file).read_text("utf-8", "replace")
        except (OSError, ValueError):
            return False
        return all(re.search(rf"\b{re.escape(part)}\b", text) for part in parts)


def is_same_test(nodeid: str, test: str) -> bool:
    """Return whether a node id and a stored test are the same. Their paths may differ in length (``stored_nodeid``)."""
    return f"/{nodeid}".endswith(f"/{test}") or f"/{test}".endswith(f"/{nodeid}")


def _folder_text(folder: Path) -> str:
    return os.path.relpath(folder)
