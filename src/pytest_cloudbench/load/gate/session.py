"""The regression gate of one session: baselines, suspects and their repetitions, and each test's logged outcome.

What may live here: ``judge.gate`` and ``judge.watched`` bound to stored runs, commits and pytest's reports. It runs in
the controller process, or in the only process without xdist.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.fleet.messages import ItemEnded, WhatToLog
from pytest_cloudbench.fleet.protocol import change_outcome
from pytest_cloudbench.judge.baseline import ONLY_AT_GATE, is_about_times
from pytest_cloudbench.judge.gate import (
    AGAIN,
    FEWEST_RUNS,
    Answer,
    Ruling,
    answer_of,
    is_suspect,
    is_test,
    judge,
    needs_again,
    suspicion,
)
from pytest_cloudbench.judge.watched import (
    TIMES_DOUBTED,
    FormerNumbers,
    Margins,
    facts_of,
    list_unjudged,
    merge_margins,
    needed_numbers,
)
from pytest_cloudbench.load.gate.history import GateHistory, is_same_test
from pytest_cloudbench.load.gate.judged import GatedEntry, GatedPairs
from pytest_cloudbench.load.gate.settings import GateSettings, find_unused_settings, read_settings
from pytest_cloudbench.load.gate.text import exclusion_text, remarks_of, ruling_text
from pytest_cloudbench.load.messages import Subject
from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results import benchmarks
from pytest_cloudbench.results.entry_names import parse_label, split_name
from pytest_cloudbench.results.index import Index
from pytest_cloudbench.support.wording import format_count

_ANSWERS: tuple[Answer, ...] = ("met", "broken", "inconclusive")
_MOST_NAMES = 5
INCONCLUSIVE = 6
"""The exit status of a strict session whose only failures are tests that could not be judged. pytest's own end at 5."""


@dataclass(slots=True)
class _HeldReports:
    """Reports of a suspect, or of the repetition that failed.

    Attributes:
        reports: the reports of its phases, as plain data.
        since_s: the end of its first run.
        took_s: the duration of its first run.
        has_failed: whether it is a repetition that failed.
    """

    reports: Sequence[Any]
    since_s: float
    took_s: float
    has_failed: bool = False


class SessionGate:
    """The regression gate, which judges every entry of a session against its former runs.

    Args:
        config: pytest's configuration in this process.

    Attributes:
        settings: the user's settings, from ``open_history`` on.
        entries: the judged entries, in the order of measuring.
        comparisons: comparisons of two sides, which need no former runs.
        pardoned: tests that passed, and that only the gate skipped or failed as inconclusive.
        collected: the node ids of this session's tests.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.settings = config, GateSettings()
        self.entries: list[GatedEntry] = []
        self.comparisons: list[GatedPairs] = []
        self.pardoned: set[str] = set()
        self.collected: set[str] = set()
        self._top_suspect = ""
        self._held: dict[str, _HeldReports] = {}
        self._rounds: dict[str, int] = {}
        self._marker_item = ""
        self._is_repeating = False
        self._history: GateHistory | None = None
        self._no_history_reason = ""
        self._test_count = 0  # checks of all entries so far, on which significance depends
        self._began_s = time.monotonic()
        self._item_began_s: dict[str, float] = {}
        self._budget_s = self._spent_s = 0.0
        self._unmeasured: set[str] = set()  # suspects for whose repetitions there was no time
        self._without_entry: set[str] = set()  # tests that passed and measured nothing

    def open_history(self) -> Sequence[str]:
        """Read the settings, and open the history of stored runs. Return a line for each file that cannot be read.

        Raises ConfigError and UsageError. pytest-benchmark must have its storage by now.
        """
        option, index = self.config.option, self._open_index()  # first: see read_settings
        _, *tests = self._folders_of_tests()
        self.settings = read_settings(
            self.config.rootpath, option.cloudbench_gate_strict, option.cloudbench_gate_budget, tests
        )  # fmt: skip
        if index is None:
            return [self._no_history_reason]
        self._history = GateHistory(index, Path(self.config.rootpath), self.settings.branch)
        self._began_s = time.monotonic()
        unused = find_unused_settings(self.config.rootpath, self._folders_of_tests())
        return [
            *self._history.problems,
            *self.settings.describe_unused(),
            *(f"the settings in {os.path.relpath(path)} are not used: {self._root_text()}" for path in unused),
        ]

    def _open_index(self) -> Index | None:
        """Return the index of the stored runs, or None without one, and note the reason."""
        folder = benchmarks.storage_folder(self.config)
        if folder is None:
            off = not benchmarks.is_loaded(self.config)
            self._no_history_reason = (
                "-p no:benchmark switches off what stores runs: nothing is compared, and nothing is stored" if off
                else "pytest-benchmark's storage is not a folder: nothing is compared"
            )  # fmt: skip
            return None
        try:
            return Index.open(folder)
        except ResultsError as error:
            self._no_history_reason = str(error)
            return None

    def _folders_of_tests(self) -> list[Path]:
        """Return the folders that pytest was told to collect, and the one in which it was started."""
        start = self.config.invocation_params.dir
        return [start, *(start / arg.partition("::")[0] for arg in self.config.args)]

    # --- rounds ---

    def end_of_round(self, nodeid: str) -> None:
        """Note the item that the scheduler queues a second time only to mark the end of a round.

        It makes the scheduler ask for repetitions before the session ends, and is not run again.
        """
        self._marker_item = nodeid

    def repetitions(self) -> list[str]:
        """Return the items to measure again, in order.

        The most suspicious come first. Those for which the budget surely suffices take turns, so that a temporary
        disturbance does not affect all repetitions of one. Others follow one by one, while there is time. Without any
        budget, nothing is measured again.
        """
        self._is_repeating = True
        self._budget_s = self.settings.budget.seconds(time.monotonic() - self._began_s)
        if not self._budget_s:
            self._unmeasured.update(self._held)
            return []
        ranked = sorted(self._held, key=self._suspicion)
        affordable, needed_s = ranked[:1], AGAIN * sum(self._held[nodeid].took_s for nodeid in ranked[:1])
        for nodeid in ranked[1:]:
            needed_s += AGAIN * self._held[nodeid].took_s
            if needed_s > self._budget_s:
                break
            affordable.append(nodeid)
        self._top_suspect = ranked[0] if ranked else ""
        return affordable * AGAIN + [nodeid for nodeid in ranked[len(affordable) :] for _ in range(AGAIN)]

    def announcement(self) -> str:
        """Return the line that announces repetitions to the user, empty without suspects."""
        if not self._held:
            return ""
        count, needed_s = len(self._held), AGAIN * sum(held.took_s for held in self._held.values())
        noun = format_count(count, "suspect")
        if not self._budget_s:
            return f"gate: {noun} will not be measured again: the budget is {_format_time(0)} (cloudbench_gate_budget)"
        first_s = AGAIN * self._held[self._top_suspect].took_s
        most_s = min(needed_s, max(self._budget_s, first_s))
        wait_s = self.apart_s(self._top_suspect)
        line = f"gate: measuring {noun} again, about {_format_time(most_s + wait_s)}"
        line += f", of which {_format_time(wait_s)} to be apart from the first time" if wait_s >= 1 else ""
        if needed_s > most_s:
            line += f"; the budget is {_format_time(self._budget_s)} (cloudbench_gate_budget), "
            line += f"all would take {_format_time(needed_s)}"
        return line

    def _suspicion(self, nodeid: str) -> float:
        checks = (check for entry in self.entries if entry.nodeid == nodeid for check in entry.list_checks())
        return min((suspicion(check) for check in checks if is_suspect(check)), default=1.0)

    def round_of(self, nodeid: str, before: int) -> int | None:
        """Return the number of an item's former runs, or None if it is not run this time. See ``Coordinator``."""
        if before and nodeid == self._marker_item:
            self._marker_item = ""
            return None
        if before and not self._is_due_again(nodeid):
            return None
        self._rounds[nodeid] = before
        self._item_began_s[nodeid] = time.monotonic()
        return before

    def _is_due_again(self, nodeid: str) -> bool:
        return self._is_repeating and nodeid in self._held and self._may_repeat(nodeid)

    def _may_repeat(self, nodeid: str) -> bool:
        """Return whether a suspect is measured once more: it is not cleared yet, and there is time."""
        entries = [entry for entry in self.entries if entry.nodeid == nodeid]
        if not any(needs_again(check) for entry in entries for check in entry.list_checks()):
            return False
        has_time = nodeid == self._top_suspect or self._spent_s + self._held[nodeid].took_s <= self._budget_s
        if not has_time:
            self._unmeasured.add(nodeid)
        return has_time

    def pause_s(self, nodeid: str) -> float:
        """Return the seconds for which agents wait before an item. 0 unless it is a suspect that is measured again."""
        return self.apart_s(nodeid) if self._is_due_again(nodeid) else 0.0

    def apart_s(self, nodeid: str) -> float:
        """Return the seconds to wait before a suspect is measured again."""
        held = self._held.get(nodeid)
        return max(0.0, held.since_s + self.settings.apart_s - time.monotonic()) if held else 0.0

    # --- entries ---

    def take_entry(
        self, subject: Subject, info: dict[str, Any], doubts: Sequence[str], columns: Sequence[str], margins: Margins
    ) -> bool:
        """Take a measured entry. Return False if it repeats a suspect, and is therefore not a separate entry."""
        if self._rounds.get(subject.nodeid):
            for entry in self.entries:
                if entry.fullname != subject.fullname:
                    continue
                only_times_doubted = all(map(is_about_times, doubts))
                numbers = {name: info.get(name) for name in needed_numbers()} if only_times_doubted else facts_of(info)
                entry.again.append(numbers | {TIMES_DOUBTED: bool(doubts)})
                if doubts:
                    entry.left_out.append("; ".join(doubts))
            return False
        entry = GatedEntry(
            subject.fullname, subject.nodeid, info, columns, merge_margins(self.settings.margins, margins),
            self.settings.runs,
        )  # fmt: skip
        self._find_baseline(entry)
        if doubts and all(map(is_about_times, doubts)):
            entry.why_times = f"doubts: {'; '.join(doubts)}"
        elif doubts:
            entry.why = f"doubts: {'; '.join(doubts)}"
        self.entries.append(entry)
        self._test_count += sum(map(is_test, entry.list_checks()))
        return True

    def _find_baseline(self, entry: GatedEntry) -> None:
        if self._history is None:
            entry.why = self._no_history_reason
            return
        former = self._history.former_runs(entry.fullname, entry.info, self.collected)
        entry.former, entry.commit, entry.remark = FormerNumbers(former.numbers), former.commit, former.remark
        if len(former.numbers) < FEWEST_RUNS and (
            elsewhere := self._history.find_runs_elsewhere(entry.fullname, entry.info, len(former.numbers))
        ):
            entry.offer = f"{elsewhere}: {self._root_text()}"
        elif not former.numbers and not former.remark:
            entry.offer = self._history.offer_renamed(entry.fullname, entry.info, self.collected)

    def _root_text(self) -> str:
        """Say which folder pytest takes for the project's, and why."""
        root, reason = os.path.relpath(self.config.rootpath), self.config.inipath
        return f"pytest's root folder is {root}" + (f", because of {os.path.relpath(reason)}" if reason else "")

    # --- answers ---

    def rule_on_item(self, ended: ItemEnded) -> WhatToLog:
        """Decide the logged outcome of an item that has ended, or hold its reports if it is a suspect."""
        entries_of_item = [entry for entry in self.entries if entry.nodeid == ended.nodeid]
        compared = [comparison for comparison in self.comparisons if comparison.nodeid == ended.nodeid]
        if self._rounds.get(ended.nodeid):
            held = self._held[ended.nodeid]
            self._spent_s += time.monotonic() - self._item_began_s[ended.nodeid]
            if ended.outcome == "failed" and not held.has_failed:
                self._held[ended.nodeid] = replace(held, reports=ended.reports, has_failed=True)
            return WhatToLog(is_held=True)
        if compared and ended.outcome == "passed":
            return self._what_to_log(compared)
        if not entries_of_item:
            if not compared and ended.outcome == "passed":
                self._without_entry.add(ended.nodeid)
            return WhatToLog()
        for entry in entries_of_item:
            entry.is_over, entry.has_passed = ended.outcome == "failed", ended.outcome == "passed"
        if ended.outcome == "failed":
            return WhatToLog()
        if any(is_suspect(check) for entry in entries_of_item for check in entry.list_checks()):
            now_s = time.monotonic()
            self._held[ended.nodeid] = _HeldReports(
                ended.reports, now_s, now_s - self._item_began_s.get(ended.nodeid, now_s)
            )
            return WhatToLog(is_held=True)
        self._judge(entries_of_item)
        return self._what_to_log(entries_of_item)

    def _judge(self, entries: Sequence[GatedEntry]) -> None:
        """Judge entries together.

        Only the judgement of all entries can find a broken one, so suspects are held until then.
        """
        judged_entries = [entry for entry in entries if not entry.is_over]
        checks = [(entry, check) for entry in judged_entries for check in entry.list_checks()]
        for entry in judged_entries:
            entry.rulings = []
        rulings = judge([check for _, check in checks], tests=self._test_count)
        for (entry, _), ruling in zip(checks, rulings, strict=True):
            entry.rulings.append(ruling)
        for entry in judged_entries:
            entry.answer = answer_of(entry.decisive_rulings) or ("inconclusive" if entry.why else None)
            if not entry.has_passed and entry.answer != "broken":
                entry.answer = None

    def _what_to_log(self, entries: Sequence[GatedEntry | GatedPairs]) -> WhatToLog:
        answers = [entry.answer for entry in entries]
        worst = next((answer for answer in ("broken", "inconclusive", "met") if answer in answers), None)
        if worst is None:
            return WhatToLog()
        lines = [line for entry in entries if entry.answer == worst for line in self.answer_lines(entry)]
        properties: list[tuple[str, str]] = [("cloudbench.gate", worst)]
        properties += [
            (f"cloudbench.gate.{metric}", text) for entry in entries for metric, text in entry.metric_texts.items()
        ]  # fmt: skip
        outcome = ""
        if worst == "broken" or (worst == "inconclusive" and self.settings.strict):
            outcome = "failed"
        elif worst == "inconclusive":
            outcome = "skipped"
        if worst == "inconclusive":
            self.pardoned.add(entries[0].nodeid)
        return WhatToLog(outcome=outcome, text="\n".join(lines), properties=tuple(properties))

    def answer_lines(self, entry: GatedEntry | GatedPairs) -> list[str]:
        """Return the explanation of an entry's answer: a line for each metric that led to it."""
        if isinstance(entry, GatedPairs):
            return list(entry.lines)
        label = parse_label(entry.nodeid, entry.fullname)
        prefix = f"{label}: gate" if label else "gate"
        if entry.why and entry.answer != "broken":
            return [f"{prefix} {entry.answer}: {entry.why}"]
        deciding = [ruling for ruling in entry.rulings if ruling.answer == entry.answer]
        if entry.answer == "inconclusive":
            deciding = [ruling for ruling in deciding if ruling.check.decides]
        too_short = [ruling for ruling in deciding if ruling.why.startswith("baseline ")]
        too_few = dict.fromkeys(ruling.why for ruling in too_short)
        others = [ruling for ruling in deciding if ruling not in too_short]
        remark = f" ({'; '.join(filter(None, (entry.remark, entry.offer)))})" if entry.remark or entry.offer else ""
        lines = [f"{prefix} {entry.answer}: {why}{remark}" for why in too_few]
        since = self._suspect_commit_text(entry) if others and entry.answer == "broken" else ""
        since += f"; {entry.why}" if since and entry.why else ""
        return lines + [
            f"{prefix} {entry.answer}: {ruling_text(ruling)}{since or self._why_unmeasured(entry, ruling)}"
            for ruling in others
        ]

    def _why_unmeasured(self, entry: GatedEntry, ruling: Ruling) -> str:
        """Return the end of a line: why a suspect was not measured again often enough."""
        if not needs_again(ruling.check):
            return ""
        end = exclusion_text(ruling, entry.left_out)
        if entry.nodeid in self._unmeasured:
            used = " and was used up" if self._budget_s else ""
            end += f"; the budget is {_format_time(self._budget_s)}{used} (cloudbench_gate_budget)"
        return end

    def _suspect_commit_text(self, entry: GatedEntry) -> str:
        """Return the end of a line: the first commit that may have broken the entry."""
        if not entry.commit:
            return "; its commits are not known"
        assert self._history is not None
        first, count = self._history.commits.first_after(entry.commit)
        if not first:
            return f"; no commit since the baseline's last ({entry.commit[:10]})"
        return f"; first suspect commit {first[:10]} (of {count} since {entry.commit[:10]})"

    # --- the end ---

    def settle(self, session: pytest.Session) -> None:
        """Log the reports that were held, and write the answers into the entries."""
        self._judge(self.entries)
        for nodeid, held in self._held.items():
            entries_of_item = [entry for entry in self.entries if entry.nodeid == nodeid]
            hook = self.config.hook
            reports = [hook.pytest_report_from_serializable(config=self.config, data=data) for data in held.reports]
            if held.has_failed:
                for entry in entries_of_item:
                    entry.is_over, entry.answer = True, None
            else:
                change_outcome(reports, self._what_to_log(entries_of_item))
            for report in reports:
                hook.pytest_runtest_logreport(report=report)
            failed = any(report.failed for report in reports)
            if failed and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._held.clear()
        for entry in self.entries:
            if entry.answer is not None:
                entry.info["gate"] = {
                    "answer": entry.answer, "lines": self.answer_lines(entry),
                    "runs": max((len(ruling.check.baseline) for ruling in entry.rulings), default=0),
                    "quarantined": [ruling.check.metric for ruling in entry.rulings if ruling.is_quarantined],
                    "again": [{name: value for name, value in numbers.items() if value is not None}
                              for numbers in entry.again],
                }  # fmt: skip

    def exit_status(self, failed: int, selected: int) -> int | None:
        """Return the exit status if the only ``failed`` tests are those that a strict gate could not judge, else None.

        The status is the same if ``selected`` tests should have measured something, and none did.
        """
        is_unsure = failed == len(self.pardoned) and (self.pardoned or (selected and not self.has_judged))
        return INCONCLUSIVE if self.settings.strict and is_unsure else None

    @property
    def has_judged(self) -> bool:
        """True if anything was measured that the gate could judge."""
        return bool(self.comparisons) or any(entry.is_judged for entry in self.entries)

    def nothing_judged_lines(self, selected: int, deselected: int) -> Iterator[str]:
        """Yield the lines for the end of a session that judged nothing: why, and which tests it should have judged."""
        if self.entries:
            why = "no experiment has a metric that the gate judges"
        elif selected:
            why = "no experiment was measured"
        elif deselected:
            why = (
                "the only experiment was deselected"
                if deselected == 1
                else f"all {deselected} experiments were deselected"
            )
        else:
            why = "no test in this run measures anything"
        yield f"{why}, so nothing was judged"
        yield from self._unmeasured_lines()

    def counts(self) -> str:
        """Return the number of entries by answer, such as ``12 met, 1 broken``. Empty if none was judged."""
        entries: list[GatedEntry | GatedPairs] = [*self.entries, *self.comparisons]
        judged = Counter(entry.answer for entry in entries if entry.answer)
        return _format_counts(judged)

    def metric_counts(self) -> str:
        """Return the number of metrics by answer, and the names of the inconclusive ones.

        One metric that cannot be judged makes an experiment inconclusive. This says how much was judged all the same.
        Empty if no metric is inconclusive, or all are.
        """
        rulings = [
            ruling for entry in self.entries if entry.answer for ruling in entry.rulings
            if (ruling.check.decides or ruling.answer == "broken") and not ruling.why.startswith("baseline ")
        ]  # fmt: skip
        count = Counter(ruling.answer for ruling in rulings)
        inconclusive_metrics = Counter(ruling.check.metric for ruling in rulings if ruling.answer == "inconclusive")
        if not inconclusive_metrics or len(count) == 1:
            return ""
        names = _join_names([f"{metric} in {tests}" for metric, tests in inconclusive_metrics.most_common()])
        return f"{_format_counts(count)} ({names}); cloudbench gate power tells what would be found"

    def summary(self) -> Iterator[str]:
        """Yield the lines for the end of the session: each entry with its answer, the worst last."""
        for answer in ("met", "inconclusive", "broken"):
            judged: list[GatedEntry | GatedPairs] = [*self.entries, *self.comparisons]
            for entry in judged:
                if entry.answer == answer:
                    changes = [f"{name} {change}" for name, text in entry.metric_texts.items()
                               if (change := text.partition(" ")[2])]  # fmt: skip
                    yield f"{answer:12} {entry.fullname}: {'; '.join(changes) or 'nothing could be compared'}"
                    if answer != "met":
                        yield from (f"{'':12} {line}" for line in self.answer_lines(entry))
                    if isinstance(entry, GatedEntry):
                        yield from (f"{'':12} {line}" for ruling in entry.rulings for line in remarks_of(ruling))
        if self._history is not None and (line := self._history.describe_clock()):
            yield line
        if names := list(dict.fromkeys(name for entry in self.entries for name in list_unjudged(entry.margins))):
            yield f"no former run can judge {_join_names(names)}: the margin is for comparisons of two sides alone"
        unjudged = [entry.fullname for entry in self.entries if not entry.is_judged]
        if unjudged and self.has_judged:
            yield f"not judged, because the gate judges none of its metrics: {_join_names(unjudged)}"
        yield from self._unmeasured_lines()

    def _unmeasured_lines(self) -> Iterator[str]:
        """Yield a line for tests that should have been measured here, and one for those that were broken before."""
        last = self._history.last_runs(self.collected) if self._history is not None else {}
        measured = {entry.fullname for entry in self.entries}
        no_entry = [
            name for name in last
            if any(is_same_test(nodeid, split_name(name).item) for nodeid in self._without_entry)
        ]  # fmt: skip
        broken = [
            name for name, point in last.items()
            if ONLY_AT_GATE in point.faults and not point.is_accepted and name not in {*measured, *no_entry}
        ]  # fmt: skip
        if no_entry:
            yield f"nothing was measured by tests that passed, and were measured before: {_join_names(no_entry)}"
        if broken:
            yield f"not measured here, and broken when they last were: {_join_names(broken)}"


def _format_counts(counts: Counter[Answer]) -> str:
    """Return the answers that occur with their counts, such as ``12 met, 1 broken``."""
    return ", ".join(f"{counts[answer]} {answer}" for answer in _ANSWERS if counts[answer])


def _join_names(names: Sequence[str]) -> str:
    """Return a few names, and how many more there are."""
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def _format_time(seconds: float) -> str:
    digits = ".1g" if 0 < seconds < 1 else ".0f"
    return f"{seconds:{digits}} s" if seconds < 120 else f"{seconds / 60:.0f} min"
