"""The commands about the regression gate: ``cloudbench gate power`` and ``cloudbench gate backtest``.

What may live here: what they read and print. The rule is in ``judge.gate``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.judge.baseline import ONLY_AT_GATE
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.past import add_storage, open_index

if TYPE_CHECKING:
    from pytest_cloudbench.judge.gate import Check, Ruling
    from pytest_cloudbench.judge.watched import Margins
    from pytest_cloudbench.results.index import Point

__all__ = ["add_commands"]


def add_commands(commands: Any) -> None:
    """Add ``gate`` to the commands of ``cloudbench``."""
    gate = commands.add_parser("gate", help="what the regression gate could see in stored runs, or would have said")
    which = gate.add_subparsers(metavar="WHAT", required=True)
    about = {
        "power": (_power, "for each experiment, the smallest change that --cloudbench-gate would see in 9 of 10 cases"),
        "backtest": (_backtest, "judge each stored run against those before it: which would have been called broken"),
    }
    for name, (run, text) in about.items():
        command = which.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        add_storage(command)
        command.add_argument("-k", metavar="TEXT", default="", help="only experiments whose full name has this text")
        command.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class _Run:
    """One entry of a test in one run: its conditions, its numbers, and whether it may be a baseline."""

    point: Point
    numbers: Mapping[str, Any]


def _histories(options: argparse.Namespace) -> dict[str, list[_Run]]:
    """Returns the stored entries of each experiment, the oldest first. Raises UsageError."""
    from pytest_cloudbench.judge.watched import NUMBERS

    index, found = open_index(options), {}
    for test in sorted(index.tests()):
        if options.k in test:
            rows = zip(index.series(test, "ops"), index.numbers(test, sorted(NUMBERS)), strict=True)
            found[test] = [_Run(point, {name: each for name, each in row.items() if each is not None})
                           for point, row in rows]  # fmt: skip
    if not found:
        raise UsageError(f"gate: {index.storage}: no stored experiment" + (f" has {options.k!r}" if options.k else ""))
    return found


def _margins() -> tuple[Margins, int]:
    """The margins that the project sets, and how many runs are the baseline."""
    from pytest_cloudbench.load.gate_settings import read_settings

    settings = read_settings(Path.cwd(), strict=False)
    return settings.margins, settings.runs


def _checks(test: str, runs: Sequence[_Run], margins: Margins, most: int) -> list[Check]:
    """The last of these runs against those before it that may be its baseline."""
    from pytest_cloudbench.judge.watched import checks_of

    *before, now = runs
    fit = [each.numbers for each in before if not each.point.fit and each.point.fingerprint == now.point.fingerprint]
    return checks_of(test, now.numbers, tuple(now.numbers), fit, margins, runs=most)


def _power(options: argparse.Namespace) -> int:
    from pytest_cloudbench.judge.gate import FEWEST_RUNS, detectable

    margins, most = _margins()
    checks: dict[str, list[Check]] = {}
    for test, runs in _histories(options).items():
        fit = [each for each in runs if not each.point.fit]
        # The last run stands for the next one: it is in the baseline and is what is judged.
        checks[test] = _checks(test, [*fit, fit[-1]], margins, most) if fit else []
    tests = sum(check.kind in ("level", "rate") for found in checks.values() for check in found)
    for test, found in checks.items():
        runs_seen = max((len(check.baseline) for check in found), default=0)
        few = f", and {FEWEST_RUNS} are the least" if runs_seen < FEWEST_RUNS else ""
        _say(f"{test}: {runs_seen} runs{few}")
        for check in found:
            change = detectable(check, tests)
            if check.kind == "exact":
                _say(f"  {check.metric}: never varied: half a percent more would be seen")
            elif check.kind != "yes" and change is not None and len(check.baseline) >= 3:
                _say(f"  {check.metric}: {_seen(check, change, tests)}")
    return 0


def _seen(check: Check, change: float, tests: int) -> str:
    from pytest_cloudbench.judge.gate import operations_for

    unit = "points" if check.kind == "rate" else "%"
    text = f"changes from {change * 100:.2g} {unit} would be seen (margin {check.margin * 100:.2g} {unit})"
    if change <= check.margin or check.kind == "rate":
        return text
    ops = operations_for(check, tests)
    if ops is None:
        return f"{text}: the runs themselves differ too much"
    return f"{text}: about {ops:,} quiet operations and {max(15, len(check.baseline))} runs would do"


def _backtest(options: argparse.Namespace) -> int:
    from pytest_cloudbench.judge.gate import AGAIN, FEWEST_RUNS, is_suspect, judge

    margins, most = _margins()
    sessions: dict[str, list[Check]] = {}
    for test, runs in _histories(options).items():
        for end in range(FEWEST_RUNS, len(runs)):
            if runs[end].point.fit in ("", ONLY_AT_GATE, "did not pass"):
                sessions.setdefault(runs[end].point.run, []).extend(_checks(test, runs[: end + 1], margins, most))
    judged = suspects = alarms = 0
    lines: list[str] = []
    for run, checks in sorted(sessions.items()):
        # What measuring again would have said is not known: the worst case is that it had said the same.
        worst = [replace(check, again=(check.now,) * AGAIN) for check in checks]
        judged += any(len(check.baseline) >= FEWEST_RUNS for check in checks)
        suspects += sum(map(is_suspect, checks))
        broken = [each for each in judge(worst) if each.answer == "broken"]
        alarms += bool(broken)
        lines += _told(run, broken)
    for line in lines:
        _say(line)
    _say(
        f"{judged} of {len(sessions)} sessions had {FEWEST_RUNS} runs before them; {suspects} metrics would have been "
        f"measured again; at most {alarms} sessions would have been red"
    )
    return 0


def _told(run: str, broken: Sequence[Ruling]) -> Iterator[str]:
    from pytest_cloudbench.load.gate_text import ruling_text

    for each in broken:
        yield f"{run}: {each.check.experiment}: {ruling_text(each)}"


def _say(line: str) -> None:
    sys.stdout.write("".join(each if each.isprintable() else repr(each)[1:-1] for each in line) + "\n")
