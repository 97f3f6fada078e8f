"""The commands about the regression gate: ``cloudbench gate power`` and ``cloudbench gate backtest``.

The rule is in ``judge.gate``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.commands.command import print_lines
from pytest_cloudbench.commands.history import FIRST_STORAGE, add_storage, open_index
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.support.printable import printable
from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:
    from pytest_cloudbench.judge.checks import Check
    from pytest_cloudbench.judge.gate import Ruling
    from pytest_cloudbench.judge.watched import Margins
    from pytest_cloudbench.results.points import Point


def add_commands(commands: Any) -> None:
    """Add ``gate`` to the commands of ``cloudbench``."""
    gate = commands.add_parser("gate", help="what the regression gate could see in stored runs, or would have said")
    inner = gate.add_subparsers(metavar="WHAT", required=True)
    about = {
        "power": (
            _print_power,
            "for each experiment, the smallest change that --cloudbench-gate would see in 9 of 10 cases",
        ),
        "backtest": (
            _print_backtest,
            "judge each stored run against those before it: which would have been called broken",
        ),
    }
    for name, (run, text) in about.items():
        command = inner.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        add_storage(command, FIRST_STORAGE)
        command.add_argument("-k", metavar="TEXT", default="", help="only experiments whose full name has this text")
        command.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class _Run:
    """An entry of a test in one run, with its conditions, its numbers, and whether it may be a baseline."""

    point: Point
    numbers: Mapping[str, Any]


def _read_histories(options: argparse.Namespace) -> dict[str, list[_Run]]:
    """Return the stored entries of each experiment under all its names, the oldest first. Raises UsageError.

    As for the gate, entries that a test has under a former name do not count once another test has taken that name.
    """
    from pytest_cloudbench.judge.watched import needed_numbers
    from pytest_cloudbench.results.acceptance import (
        explain_superseded,
        former_names,
        names_after,
        names_before,
        read_acceptances,
    )
    from pytest_cloudbench.results.points import without_copies

    index, histories = open_index(options, all_storages=False), {}
    renamed, acceptances = former_names(index.storage), read_acceptances(index.storage)
    tests = index.tests()
    for test in sorted(tests):
        names = (test, *names_before(renamed, test))
        if not any(options.k in name for name in names):
            continue
        later_names = [later for later in names_after(renamed, test) if later in tests]
        since_ms = max((index.find_parting_ms(test, later) for later in later_names), default=0)
        runs = index.collect_runs(names, sorted(needed_numbers()))
        if entries := [(point, row) for point, row in runs if point.time_ms >= since_ms]:
            histories[test] = [
                _Run(
                    point.superseded(explain_superseded(acceptances, names, point.time_ms)),
                    point.numbers_for_gate({name: number for name, number in row.items() if number is not None}),
                )
                for point, row in without_copies(sorted(entries, key=lambda entry: entry[0].time_ms))
            ]
    if not histories:
        raise UsageError(f"gate: {index.storage}: no stored experiment" + (f" has {options.k!r}" if options.k else ""))
    return histories


def _read_margins() -> tuple[Margins, int]:
    """Return the margins that the project sets, and how many runs make a baseline."""
    from pytest_cloudbench.load.gate.settings import read_settings
    from pytest_cloudbench.results.places import project_folder

    settings = read_settings(project_folder(Path.cwd()), strict=False)
    for line in settings.describe_unused():
        sys.stderr.write(f"cloudbench: {line}\n")
    return settings.margins, settings.runs


def _check_last_run(test: str, runs: Sequence[_Run], margins: Margins, max_runs: int) -> list[Check]:
    """Check the last run against those before it that may be its baseline."""
    from pytest_cloudbench.judge.watched import checks_of

    *before, now = runs
    usable = [
        run.numbers for run in before if run.point.is_comparable and run.point.fingerprint == now.point.fingerprint
    ]
    return checks_of(test, now.numbers, now.point.columns, usable, margins, runs=max_runs)


def _print_power(options: argparse.Namespace) -> int:
    """Print for each test what change the gate would find in its next run. Returns 0."""
    from pytest_cloudbench.judge.gate import FEWEST_RUNS

    histories = _read_histories(options)  # first: stored runs declare their suites' metrics, which margins may name
    margins, max_runs = _read_margins()
    checks: dict[str, list[Check]] = {}
    for test, runs in histories.items():
        usable = [run for run in runs if not run.point.unfit_reason]
        # The last run stands for the next one: it is in the baseline and is what is judged.
        checks[test] = _check_last_run(test, [*usable, usable[-1]], margins, max_runs) if usable else []
    tests = sum(
        check.kind in ("level", "rate") and not check.why for test_checks in checks.values() for check in test_checks
    )
    for test, test_checks in checks.items():
        count = max((len(check.baseline) for check in test_checks), default=0)
        shortage = (
            f", and {FEWEST_RUNS} are needed{_explain_other_runs(histories[test])}" if count < FEWEST_RUNS else ""
        )
        lines = [f"  {check.metric}: {line}" for check in test_checks if (line := _describe_detectable(check, tests))]
        print_lines(map(printable, [f"{test}: {format_count(count, 'run')}{shortage}", *lines]))
    return 0


def _explain_other_runs(runs: Sequence[_Run]) -> str:
    """Return in parentheses why other runs are not in the baseline of the next one. Empty if all are."""
    from pytest_cloudbench.judge.baseline import describe_differences, explain_no_baseline

    last = next((run for run in reversed(runs) if not run.point.unfit_reason), runs[-1])
    obstacles = [
        run.point.unfit_reason or describe_differences(run.point.fingerprint, last.point.fingerprint)
        for run in reversed(runs)
    ]
    reasons = [obstacle for obstacle in obstacles if obstacle]
    return f" ({explain_no_baseline(reasons).removeprefix('no baseline: ')})" if reasons else ""


def _describe_detectable(check: Check, tests: int) -> str:
    """Return the change of a metric that the gate would see, or why it would not judge it.

    Empty if the metric is judged by yes and no, or has fewer runs than the gate needs.
    """
    from pytest_cloudbench.judge.gate import amount_text, detectable, fewest_runs, operations_for

    if check.why and (check.decides or check.kind == "level"):  # quiet_share needs only a client that uses more CPU
        return check.why
    if check.kind == "yes" or len(check.baseline) < fewest_runs(check.kind):
        return ""
    if check.kind == "exact":
        return f"never varied: more than {amount_text(check, check.tolerance)} worse would be seen"
    change = detectable(check, tests)
    if change is None:
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


def _print_backtest(options: argparse.Namespace) -> int:
    """Print what the gate would have said about the stored runs, one after the other. Returns 0."""
    from pytest_cloudbench.judge.gate import FEWEST_RUNS, backtest

    histories = _read_histories(options)  # first: stored runs declare their suites' metrics, which margins may name
    margins, max_runs = _read_margins()
    sessions: dict[str, list[Check]] = {}
    for test, runs in histories.items():
        for run, checks in _check_in_turn(test, runs, margins, max_runs):
            sessions.setdefault(run, []).extend(checks)
    judged = suspects = alarms = 0
    lines: list[str] = []
    for run, checks in sorted(sessions.items()):
        # The gate measures suspects again. A stored run has no second measurement, so assume it would have agreed.
        count, broken = backtest(checks)
        judged += any(len(check.baseline) >= FEWEST_RUNS for check in checks)
        suspects += count
        alarms += bool(broken)
        lines += _ruling_lines(run, broken)
    lines.append(
        f"{judged} of {format_count(len(sessions), 'session')} had {FEWEST_RUNS} runs before them; "
        f"{format_count(suspects, 'metric')} would have been measured again; at most "
        f"{format_count(alarms, 'session')} would have been red"
    )
    print_lines(map(printable, lines))
    return 0


def _check_in_turn(
    test: str, runs: Sequence[_Run], margins: Margins, max_runs: int
) -> Iterator[tuple[str, list[Check]]]:
    """Yield the name of each run that can be judged against those before it, with its checks."""
    from pytest_cloudbench.judge.gate import FEWEST_RUNS
    from pytest_cloudbench.judge.watched import FormerNumbers, checks_of

    groups = _number_groups([run.point.fingerprint for run in runs])
    usable: list[list[Mapping[str, Any]]] = [[] for _ in range(max(groups, default=-1) + 1)]
    for run, group in zip(runs, groups, strict=True):
        usable[group] += [run.numbers] if run.point.is_comparable else []
    former, earlier_counts = [FormerNumbers(numbers) for numbers in usable], [0] * len(usable)
    for position, (run, group) in enumerate(zip(runs, groups, strict=True)):
        if position >= FEWEST_RUNS and (run.point.is_comparable or run.point.unfit_reason == "did not pass"):
            earlier = former[group].before(earlier_counts[group])
            yield run.point.run, checks_of(test, run.numbers, run.point.columns, earlier, margins, runs=max_runs)
        earlier_counts[group] += run.point.is_comparable


def _number_groups(fingerprints: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return a group number, from 0, for each fingerprint. Equal fingerprints have the same."""
    different, number_of = list[Mapping[str, Any]](), dict[int, int]()
    for fingerprint in fingerprints:
        if id(fingerprint) not in number_of:  # by identity first: most runs of a test share one object
            different += [] if fingerprint in different else [fingerprint]
            number_of[id(fingerprint)] = different.index(fingerprint)
    return [number_of[id(fingerprint)] for fingerprint in fingerprints]


def _ruling_lines(run: str, broken: Sequence[Ruling]) -> Iterator[str]:
    from pytest_cloudbench.load.gate.text import ruling_text

    for ruling in broken:
        yield f"{run}: {ruling.check.experiment}: {ruling_text(ruling)}"
