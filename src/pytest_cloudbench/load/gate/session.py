"""The regression gate of one session: baselines, suspects and their repetitions, and what is logged of each test.

What may live here: ``judge.gate`` and ``judge.watched`` bound to stored runs, commits and pytest's reports. Runs in the
controller process, or in the only process without xdist.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.fleet.messages import ItemEnded, WhatToLog
from pytest_cloudbench.fleet.protocol import change_outcome
from pytest_cloudbench.judge.baseline import is_about_times
from pytest_cloudbench.judge.gate import (
    AGAIN,
    Answer,
    Check,
    Ruling,
    answer_of,
    is_suspect,
    is_test,
    judge,
    needs_again,
    suspicion,
)
from pytest_cloudbench.judge.watched import TIMES_DOUBTED, Margins, Numbers, checks_of, needed_numbers
from pytest_cloudbench.load.gate.history import GateHistory
from pytest_cloudbench.load.gate.settings import GateSettings
from pytest_cloudbench.load.gate.text import brief, remarks_of, ruling_text
from pytest_cloudbench.load.messages import Subject
from pytest_cloudbench.load.names import parse_label
from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results import benchmarks

INCONCLUSIVE = 6
"""The exit status of a strict session in which nothing failed but what could not be judged; pytest's own end at 5."""


@dataclass(slots=True)
class Gated:
    """One entry that the gate judges.

    Attributes:
        fullname, nodeid: of the entry and of its test.
        info: the entry's extra_info; the answer is written into it.
        columns, margins, runs: see ``watched.checks_of``.
        baseline: numbers of former runs, the oldest first; ``commit`` is that of the last one, if known.
        remark: why other stored runs cannot be a baseline, or an empty text.
        why, why_times: why it, or its times, cannot be judged, or an empty text.
        offer: a line that offers the runs of another test, if it has none.
        again: numbers of the runs that measured it again.
        left_out: the doubts of those that do not count, each a text.
        is_over: its test did not pass, so there is nothing to judge.
        rulings, answer: of the last judgement.
    """

    fullname: str
    nodeid: str
    info: dict[str, Any]
    columns: Sequence[str]
    margins: Margins
    runs: int
    baseline: Sequence[Numbers] = ()
    commit: str = ""
    remark: str = ""
    why: str = ""
    why_times: str = ""
    offer: str = ""
    again: list[Numbers] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    is_over: bool = False
    rulings: list[Ruling] = field(default_factory=list)
    answer: Answer | None = None

    def checks(self) -> list[Check]:
        """What is to be judged of it."""
        return checks_of(
            self.fullname, self.info, self.columns, self.baseline, self.margins, self.again, self.why, self.runs,
            self.why_times,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GatedPairs:
    """One comparison of two sides that the gate judges (``load.versus.contest``).

    Attributes:
        fullname, nodeid: of the entry and of its test.
        answer: the gate's.
        lines: what a reader must know of the answer.
        told: by metric, its answer, change and interval.
    """

    fullname: str
    nodeid: str
    answer: Answer
    lines: Sequence[str]
    told: Mapping[str, str]


@dataclass(slots=True)
class _Held:
    """Reports of a suspect, or of the repetition that failed.

    Attributes:
        reports: as they came.
        since_s: when its first run ended.
        took_s: how long that took.
        has_failed: whether it is a repetition that failed.
    """

    reports: Sequence[Any]
    since_s: float
    took_s: float
    has_failed: bool = False


class SessionGate:
    """Judges every entry of a session against its former runs.

    Args:
        config: pytest's configuration in this process.
        settings: the user's.

    Attributes:
        entries: what was judged, in the order of measuring.
        comparisons: of two sides, which need no former runs.
        pardoned: tests that passed, and that the gate alone skipped or failed as inconclusive.
        collected: the node ids of this session's tests.
    """

    def __init__(self, config: pytest.Config, settings: GateSettings) -> None:
        self.config, self.settings = config, settings
        self.entries: list[Gated] = []
        self.comparisons: list[GatedPairs] = []
        self.pardoned: set[str] = set()
        self.collected: set[str] = set()
        self._first = ""
        self._held: dict[str, _Held] = {}
        self._round: dict[str, int] = {}
        self._curtain = ""
        self._repeats = False
        self._history: GateHistory | None = None
        self._unread = ""
        self._tests = 0  # checks of all entries so far: what is significant depends on it
        self._opened_s = time.monotonic()
        self._begun_s: dict[str, float] = {}
        self._budget_s = self._spent_s = 0.0
        self._unmeasured: set[str] = set()  # suspects for whose repetitions no time was left

    def open(self) -> Sequence[str]:
        """Read what runs are stored. Returns a line for each file that cannot be read."""
        folder = benchmarks.storage_folder(self.config)
        if folder is None:
            off = not benchmarks.is_loaded(self.config)
            self._unread = (
                "-p no:benchmark switches off what stores runs: nothing is compared, and nothing is stored" if off
                else "pytest-benchmark's storage is not a folder: nothing is compared"
            )  # fmt: skip
            return [self._unread]
        try:
            self._history = GateHistory(folder, Path(self.config.rootpath), self.settings.branch)
        except ResultsError as error:
            self._unread = str(error)
            return [self._unread]
        self._opened_s = time.monotonic()
        return self._history.problems

    # --- rounds ---

    def end_of_round(self, nodeid: str) -> None:
        """Note that the scheduler queues this item a second time, only to ask for repetitions before anything ends."""
        self._curtain = nodeid

    def repetitions(self) -> list[str]:
        """Returns the items to measure again, in order.

        The most suspicious come first. As many as the budget is sure to suffice for take turns, so that what disturbs
        one for a while does not disturb all of its repetitions. Others follow one by one, while there is time. Without
        any budget, nothing is measured again.
        """
        self._repeats = True
        self._budget_s = self.settings.budget.seconds(time.monotonic() - self._opened_s)
        if not self._budget_s:
            self._unmeasured.update(self._held)
            return []
        ranked = sorted(self._held, key=self._suspicion)
        sure, needed_s = ranked[:1], AGAIN * sum(self._held[nodeid].took_s for nodeid in ranked[:1])
        for nodeid in ranked[1:]:
            needed_s += AGAIN * self._held[nodeid].took_s
            if needed_s > self._budget_s:
                break
            sure.append(nodeid)
        self._first = ranked[0] if ranked else ""
        return sure * AGAIN + [nodeid for nodeid in ranked[len(sure) :] for _ in range(AGAIN)]

    def announcement(self) -> str:
        """Returns what a user must know before suspects are measured again; empty if there are none."""
        if not self._held:
            return ""
        count, wanted_s = len(self._held), AGAIN * sum(held.took_s for held in self._held.values())
        noun = "1 suspect" if count == 1 else f"{count} suspects"
        if not self._budget_s:
            return f"gate: {noun} will not be measured again: the budget is {_seconds(0)} (cloudbench_gate_budget)"
        first_s = AGAIN * self._held[self._first].took_s
        most_s = min(wanted_s, max(self._budget_s, first_s))
        wait_s = self.apart_s(self._first)
        line = f"gate: measuring {noun} again, about {_seconds(most_s + wait_s)}"
        line += f", of which {_seconds(wait_s)} to be apart from the first time" if wait_s >= 1 else ""
        if wanted_s > most_s:
            line += f"; the budget is {_seconds(self._budget_s)} (cloudbench_gate_budget), "
            line += f"all would take {_seconds(wanted_s)}"
        return line

    def _suspicion(self, nodeid: str) -> float:
        checks = (check for entry in self.entries if entry.nodeid == nodeid for check in entry.checks())
        return min((suspicion(check) for check in checks if is_suspect(check)), default=1.0)

    def round_of(self, nodeid: str, before: int) -> int | None:
        """Returns how often an item was run before, or None if it is not run this time. See ``Coordinator``."""
        if before and nodeid == self._curtain:
            self._curtain = ""
            return None
        if before and not (self._repeats and nodeid in self._held and self._may_repeat(nodeid)):
            return None
        self._round[nodeid] = before
        self._begun_s[nodeid] = time.monotonic() + self.apart_s(nodeid)
        return before

    def _may_repeat(self, nodeid: str) -> bool:
        """Returns whether a suspect is to be measured once more: it is not cleared yet, and there is time."""
        mine = [entry for entry in self.entries if entry.nodeid == nodeid]
        if not any(needs_again(check) for entry in mine for check in entry.checks()):
            return False
        has_time = nodeid == self._first or self._spent_s + self._held[nodeid].took_s <= self._budget_s
        if not has_time:
            self._unmeasured.add(nodeid)
        return has_time

    def apart_s(self, nodeid: str) -> float:
        """Returns the seconds to wait before a suspect is measured again."""
        held = self._held.get(nodeid)
        return max(0.0, held.since_s + self.settings.apart_s - time.monotonic()) if held else 0.0

    # --- entries ---

    def take(
        self, subject: Subject, info: dict[str, Any], doubts: Sequence[str], columns: Sequence[str], margins: Margins
    ) -> bool:
        """Take a measured entry. Returns False if it repeats a suspect: then it is not a separate entry."""
        if self._round.get(subject.nodeid):
            for entry in self.entries:
                if entry.fullname != subject.fullname:
                    continue
                if all(map(is_about_times, doubts)):
                    entry.again.append(
                        {name: info.get(name) for name in needed_numbers()} | {TIMES_DOUBTED: bool(doubts)}
                    )
                if doubts:
                    entry.left_out.append("; ".join(doubts))
            return False
        entry = Gated(
            subject.fullname, subject.nodeid, info, columns, {**self.settings.margins, **margins}, self.settings.runs
        )
        self._find_baseline(entry)
        if doubts and all(map(is_about_times, doubts)):
            entry.why_times = f"doubts: {'; '.join(doubts)}"
        elif doubts:
            entry.why = f"doubts: {'; '.join(doubts)}"
        self.entries.append(entry)
        self._tests += sum(map(is_test, entry.checks()))
        return True

    def _find_baseline(self, entry: Gated) -> None:
        if self._history is None:
            entry.why = self._unread
            return
        former = self._history.former_runs(entry.fullname, entry.info)
        entry.baseline, entry.commit, entry.remark = former.numbers, former.commit, former.remark
        if not former.numbers and not former.remark:
            entry.offer = self._history.offer(entry.fullname, entry.info, self.collected)

    # --- answers ---

    def ended(self, asked: ItemEnded) -> WhatToLog:
        """Decide what is logged of an item that has ended."""
        mine = [entry for entry in self.entries if entry.nodeid == asked.nodeid]
        compared = [each for each in self.comparisons if each.nodeid == asked.nodeid]
        if self._round.get(asked.nodeid):
            held = self._held[asked.nodeid]
            self._spent_s += time.monotonic() - self._begun_s[asked.nodeid]
            if asked.outcome != "passed" and not held.has_failed:
                self._held[asked.nodeid] = replace(held, reports=asked.reports, has_failed=True)
            return WhatToLog(is_held=True)
        if compared and asked.outcome == "passed":
            return self._what_to_log(compared)
        if not mine:
            return WhatToLog()
        if asked.outcome != "passed":
            for entry in mine:
                entry.is_over = True
            return WhatToLog()
        if any(is_suspect(check) for entry in mine for check in entry.checks()):
            now_s = time.monotonic()
            self._held[asked.nodeid] = _Held(asked.reports, now_s, now_s - self._begun_s.get(asked.nodeid, now_s))
            return WhatToLog(is_held=True)
        self._judge(mine)
        return self._what_to_log(mine)

    def _judge(self, entries: Sequence[Gated]) -> None:
        """Judge entries. Only for all of them together can anything be called broken; suspects are held until then."""
        open_ = [entry for entry in entries if not entry.is_over]
        checks = [(entry, check) for entry in open_ for check in entry.checks()]
        for entry in open_:
            entry.rulings = []
        rulings = judge([check for _, check in checks], tests=self._tests)
        for (entry, _), ruling in zip(checks, rulings, strict=True):
            entry.rulings.append(ruling)
        for entry in open_:
            entry.answer = answer_of(entry.rulings) or ("inconclusive" if entry.why else None)

    def _what_to_log(self, mine: Sequence[Gated | GatedPairs]) -> WhatToLog:
        answers = [entry.answer for entry in mine]
        worst = next((each for each in ("broken", "inconclusive", "met") if each in answers), None)
        if worst is None:
            return WhatToLog()
        lines = [line for entry in mine if entry.answer == worst for line in self.lines(entry)]
        properties: list[tuple[str, str]] = [("cloudbench.gate", worst)]
        properties += [
            (f"cloudbench.gate.{metric}", told) for entry in mine for metric, told in _told(entry).items()
        ]  # fmt: skip
        outcome = ""
        if worst == "broken" or (worst == "inconclusive" and self.settings.strict):
            outcome = "failed"
        elif worst == "inconclusive":
            outcome = "skipped"
        if worst == "inconclusive":
            self.pardoned.add(mine[0].nodeid)
        return WhatToLog(outcome=outcome, text="\n".join(lines), properties=tuple(properties))

    def lines(self, entry: Gated | GatedPairs) -> list[str]:
        """What a reader must know of an entry's answer: a line for each metric that gave it."""
        if isinstance(entry, GatedPairs):
            return list(entry.lines)
        label = parse_label(entry.nodeid, entry.fullname)
        begin = f"{label}: gate" if label else "gate"
        if entry.why:
            return [f"{begin} {entry.answer}: {entry.why}"]
        giving = [each for each in entry.rulings if each.answer == entry.answer]
        if entry.answer == "inconclusive":
            giving = [each for each in giving if each.check.decides]
        few = [each for each in giving if each.why.startswith("baseline ")]
        too_few = dict.fromkeys(each.why for each in few)
        rest = [each for each in giving if each not in few]
        remark = f" ({entry.remark or entry.offer})" if entry.remark or entry.offer else ""
        lines = [f"{begin} {entry.answer}: {why}{remark}" for why in too_few]
        since = self._since(entry) if rest and entry.answer == "broken" else ""
        return lines + [
            f"{begin} {entry.answer}: {ruling_text(each)}{since or self._why_unmeasured(entry, each)}" for each in rest
        ]

    def _why_unmeasured(self, entry: Gated, ruling: Ruling) -> str:
        """Why a suspect was not measured again often enough, as the end of a line."""
        if not needs_again(ruling.check):
            return ""
        end = _left_out(entry)
        if entry.nodeid in self._unmeasured:
            used = " and was used up" if self._budget_s else ""
            end += f"; the budget is {_seconds(self._budget_s)}{used} (cloudbench_gate_budget)"
        return end

    def _since(self, entry: Gated) -> str:
        """Which commit may have broken it, as the end of a line."""
        if not entry.commit:
            return "; its commits are not known"
        assert self._history is not None
        first, count = self._history.commits.first_after(entry.commit)
        if not first:
            return f"; no commit since the baseline's last ({entry.commit[:10]})"
        return f"; first suspect commit {first[:10]} (of {count} since {entry.commit[:10]})"

    # --- the end ---

    def settle(self, session: pytest.Session) -> None:
        """Log what was held, and write the answers into the entries."""
        self._judge(self.entries)
        for nodeid, held in self._held.items():
            mine = [entry for entry in self.entries if entry.nodeid == nodeid]
            hook = self.config.hook
            reports = [hook.pytest_report_from_serializable(config=self.config, data=data) for data in held.reports]
            if held.has_failed:
                for entry in mine:
                    entry.is_over, entry.answer = True, None
            else:
                change_outcome(reports, self._what_to_log(mine))
            for report in reports:
                hook.pytest_runtest_logreport(report=report)
            failed = any(report.failed for report in reports)
            if failed and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._held.clear()
        for entry in self.entries:
            if entry.answer is not None:
                entry.info["gate"] = {
                    "answer": entry.answer, "lines": self.lines(entry),
                    "runs": max((len(each.check.baseline) for each in entry.rulings), default=0),
                    "quarantined": [each.check.metric for each in entry.rulings if each.is_quarantined],
                    "again": [{name: value for name, value in each.items() if value is not None}
                              for each in entry.again],
                }  # fmt: skip

    def exit_status(self, failed: int, selected: int) -> int | None:
        """Returns the exit status if all ``failed`` tests are those that a strict gate could not judge.

        The same holds if tests were ``selected`` that measure something, and none did.
        """
        is_unsure = failed == len(self.pardoned) and (self.pardoned or (selected and not self.has_judged))
        return INCONCLUSIVE if self.settings.strict and is_unsure else None

    @property
    def has_judged(self) -> bool:
        """Whether anything was measured that the gate could judge."""
        return bool(self.entries or self.comparisons)

    def counts(self) -> str:
        """Return how many entries had which answer, such as ``12 met, 1 broken``; empty if none was judged."""
        entries: list[Gated | GatedPairs] = [*self.entries, *self.comparisons]
        judged = Counter(entry.answer for entry in entries if entry.answer)
        return ", ".join(f"{judged[answer]} {answer}" for answer in ("met", "broken", "inconclusive") if judged[answer])

    def summary(self) -> Iterator[str]:
        """Lines for the end: each entry with its answer, the worst last."""
        for answer in ("met", "inconclusive", "broken"):
            judged: list[Gated | GatedPairs] = [*self.entries, *self.comparisons]
            for entry in judged:
                if entry.answer == answer:
                    changes = [f"{name} {change}" for name, each in _told(entry).items()
                               if (change := each.partition(" ")[2])]  # fmt: skip
                    yield f"{answer:12} {entry.fullname}: {'; '.join(changes) or 'nothing could be compared'}"
                    if answer != "met":
                        yield from (f"{'':12} {line}" for line in self.lines(entry))
                    if isinstance(entry, Gated):
                        yield from (f"{'':12} {line}" for each in entry.rulings for line in remarks_of(each))


def _seconds(seconds: float) -> str:
    digits = ".1g" if 0 < seconds < 1 else ".0f"
    return f"{seconds:{digits}} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _left_out(entry: Gated) -> str:
    """Why repetitions do not count, as the end of a line."""
    if not (count := len(entry.left_out)):
        return ""
    noun = "1 repetition does" if count == 1 else f"{count} repetitions do"
    return f"; {noun} not count: {entry.left_out[0]}"


def _told(entry: Gated | GatedPairs) -> dict[str, str]:
    """Returns each metric's answer, in one word, and its change, if that is known."""
    if isinstance(entry, GatedPairs):
        return dict(entry.told)
    return {each.check.metric: f"{each.answer} {brief(each)}".strip() for each in entry.rulings}
