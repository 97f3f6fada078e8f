"""The commands about the regression gate: ``cloudbench gate power`` and ``cloudbench gate backtest``.

What may live here: what they read and print. The rule is in ``judge.gate``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.commands.history import add_storage, open_index
from pytest_cloudbench.model import UsageError

if TYPE_CHECKING:
    from pytest_cloudbench.judge.gate import Check, Ruling
    from pytest_cloudbench.judge.watched import Margins
    from pytest_cloudbench.results.points import Point


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
    from pytest_cloudbench.judge.watched import needed_numbers
    from pytest_cloudbench.results.points import without_copies

    index, found = open_index(options), {}
    for test in sorted(index.tests()):
        if options.k in test:
            every = zip(index.series(test, "ops"), index.numbers(test, sorted(needed_numbers())), strict=True)
            found[test] = [
                _Run(
                    point, point.numbers_for_gate({name: number for name, number in row.items() if number is not None})
                )
                for point, row in without_copies(every)
            ]
    if not found:
        raise UsageError(f"gate: {index.storage}: no stored experiment" + (f" has {options.k!r}" if options.k else ""))
    return found


def _margins() -> tuple[Margins, int]:
    """The margins that the project sets, and how many runs are the baseline."""
    from pytest_cloudbench.load.gate.settings import read_settings

    settings = read_settings(Path.cwd(), strict=False)
    return settings.margins, settings.runs


def _checks(test: str, runs: Sequence[_Run], margins: Margins, most: int) -> list[Check]:
    """The last of these runs against those before it that may be its baseline."""
    from pytest_cloudbench.judge.watched import checks_of

    *before, now = runs
    usable = [
        run.numbers for run in before if run.point.is_comparable and run.point.fingerprint == now.point.fingerprint
    ]
    return checks_of(test, now.numbers, tuple(now.numbers), usable, margins, runs=most)


def _power(options: argparse.Namespace) -> int:
    from pytest_cloudbench.judge.gate import FEWEST_RUNS

    margins, most = _margins()
    histories = _histories(options)
    checks: dict[str, list[Check]] = {}
    for test, runs in histories.items():
        fit = [each for each in runs if not each.point.fit]
        # The last run stands for the next one: it is in the baseline and is what is judged.
        checks[test] = _checks(test, [*fit, fit[-1]], margins, most) if fit else []
    tests = sum(check.kind in ("level", "rate") and not check.why for found in checks.values() for check in found)
    for test, found in checks.items():
        seen = max((len(check.baseline) for check in found), default=0)
        few = f", and {FEWEST_RUNS} are needed{_others(histories[test])}" if seen < FEWEST_RUNS else ""
        _say(f"{test}: {_runs(seen)}{few}")
        for check in found:
            if line := _sight(check, tests):
                _say(f"  {check.metric}: {line}")
    return 0


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"


def _others(runs: Sequence[_Run]) -> str:
    """Why other runs are not in the baseline of the next one."""
    from pytest_cloudbench.judge.baseline import describe_differences, explain_no_baseline

    last = next((each for each in reversed(runs) if not each.point.fit), runs[-1])
    whys = [
        each.point.fit or describe_differences(each.point.fingerprint, last.point.fingerprint)
        for each in reversed(runs)
    ]
    reasons = [why for why in whys if why]
    return f" ({explain_no_baseline(reasons).removeprefix('no baseline: ')})" if reasons else ""


def _sight(check: Check, tests: int) -> str:
    """What the gate would see of a metric, or why it would not judge it; empty if there is nothing to say."""
    from pytest_cloudbench.judge.gate import amount_text, detectable, operations_for

    if check.why and check.decides:
        return check.why
    if check.kind == "exact":
        return "never varied: half a percent more would be seen"
    change = detectable(check, tests)
    if check.kind == "yes" or change is None or len(check.baseline) < 3:
        return ""
    text = f"changes from {amount_text(check, change)} would be seen (margin {amount_text(check, check.margin)})"
    if change > check.margin:
        ops, kind = operations_for(check, tests), "" if check.kind == "rate" else "quiet "
        runs = max(15, len(check.baseline))
        text += f": about {ops:,} {kind}operations and {runs} runs would suffice" if ops else (
            ": the runs themselves differ too much"
        )  # fmt: skip
    if check.is_before:
        text += f"; it improved at {check.since}, and there are too few runs since then"
    return text


def _backtest(options: argparse.Namespace) -> int:
    from pytest_cloudbench.judge.gate import FEWEST_RUNS, backtest

    margins, most = _margins()
    sessions: dict[str, list[Check]] = {}
    for test, runs in _histories(options).items():
        for run, checks in _in_turn(test, runs, margins, most):
            sessions.setdefault(run, []).extend(checks)
    judged = suspects = alarms = 0
    lines: list[str] = []
    for run, checks in sorted(sessions.items()):
        # What measuring again would have said is not known: assume the worst, that it would have said the same.
        count, broken = backtest(checks)
        judged += any(len(check.baseline) >= FEWEST_RUNS for check in checks)
        suspects += count
        alarms += bool(broken)
        lines += _told(run, broken)
    for line in lines:
        _say(line)
    _say(
        f"{judged} of {len(sessions)} sessions had {FEWEST_RUNS} runs before them; {suspects} metrics would have been "
        f"measured again; at most {alarms} sessions would have been red"
    )
    return 0


def _in_turn(test: str, runs: Sequence[_Run], margins: Margins, most: int) -> Iterator[tuple[str, list[Check]]]:
    """Yields each run that can be judged against those before it, with its checks."""
    from pytest_cloudbench.judge.gate import FEWEST_RUNS
    from pytest_cloudbench.judge.watched import FormerNumbers, checks_of

    numbers = _numbered([run.point.fingerprint for run in runs])
    fit: list[list[Mapping[str, Any]]] = [[] for _ in range(max(numbers, default=-1) + 1)]
    for run, number in zip(runs, numbers, strict=True):
        fit[number] += [run.numbers] if run.point.is_comparable else []
    former, before = [FormerNumbers(each) for each in fit], [0] * len(fit)
    for place, (run, number) in enumerate(zip(runs, numbers, strict=True)):
        if place >= FEWEST_RUNS and (run.point.is_comparable or run.point.fit == "did not pass"):
            earlier = former[number].before(before[number])
            yield run.point.run, checks_of(test, run.numbers, tuple(run.numbers), earlier, margins, runs=most)
        before[number] += run.point.is_comparable


def _numbered(found: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the same number for equal ones; most are not only equal but the same."""
    known, number_of = list[Mapping[str, Any]](), dict[int, int]()
    for each in found:
        if id(each) not in number_of:
            known += [] if each in known else [each]
            number_of[id(each)] = known.index(each)
    return [number_of[id(each)] for each in found]


def _told(run: str, broken: Sequence[Ruling]) -> Iterator[str]:
    from pytest_cloudbench.load.gate.text import ruling_text

    for each in broken:
        yield f"{run}: {each.check.experiment}: {ruling_text(each)}"


def _say(line: str) -> None:
    sys.stdout.write("".join(each if each.isprintable() else repr(each)[1:-1] for each in line) + "\n")
