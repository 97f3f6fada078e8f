"""The commands for CI: ``cloudbench export`` (stored runs for other programs, or as Markdown) and ``machine``.

The formats are in ``report.export`` and ``report.summary``.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cloudbench.commands.history import RUN_HELP, add_storage, open_index
from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.support.printable import printable

if TYPE_CHECKING:
    from pytest_cloudbench.report.export import StoredRun

_FORMATS = ("markdown", "openmetrics", "csv", "github-action-benchmark", "bencher")
_NEED_METRIC = frozenset({"github-action-benchmark", "bencher"})
"""Formats whose readers chart and compare each number that they get, so the user chooses the metrics."""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the commands with the parser of ``cloudbench``."""
    machine = commands.add_parser(
        "machine",
        help="tell the class of this machine",
        description="Print which machines' runs are compared with those of this one: system, processors, Python.",
    )
    machine.add_argument("--key", action="store_true", help="print it as a name for a file, or a cache in CI")
    machine.set_defaults(run=_print_machine)
    parser = commands.add_parser(
        "export",
        help="write stored runs for other programs, or as Markdown",
        description="Write stored runs in a form that other programs read, or as Markdown for a job's summary. Unknown "
        "numbers are left out and counted on the standard error. Exit status 1 if no number is left.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help=RUN_HELP)
    add_storage(parser)
    parser.add_argument(
        "--format", metavar="FORMAT", required=True, choices=_FORMATS, help=f"the form: {', '.join(_FORMATS)}"
    )
    parser.add_argument(
        "--metric", dest="metrics", metavar="METRIC", action="append", default=[],
        help="only this metric, may repeat, the headline first; github-action-benchmark and bencher need it",
    )  # fmt: skip
    parser.add_argument(
        "--without-doubts", action="store_true",
        help="leave out numbers that may be wrong; without it, they say so",
    )  # fmt: skip
    parser.add_argument("-o", "--output", metavar="FILE", default="-", help="default: the standard output")
    parser.set_defaults(run=_export_numbers)


def _export_numbers(options: argparse.Namespace) -> int:
    from pytest_cloudbench.report.export import FORMATS, check_metric, choose_numbers, is_comparison
    from pytest_cloudbench.report.summary import render_summary

    runs = _read_named_runs(options)  # first: entries may declare their suites' metrics, which check_metric needs
    metrics = list(dict.fromkeys(map(check_metric, options.metrics)))
    if options.format in _NEED_METRIC and not metrics:
        raise UsageError(
            f"export --format {options.format}: --metric is missing: name what its charts show, such as response_p99"
        )
    chosen = choose_numbers(runs, metrics, doubted=not options.without_doubts)
    sys.stderr.write(f"cloudbench export: {chosen.describe()}\n")
    if options.format == "markdown" and runs:  # its table also has rows without numbers
        _write_output(options.output, render_summary(runs, metrics) + "\n")
        if any(is_comparison(info) for run in runs for _, info in run.entries):
            return 0
    elif chosen.numbers:
        _write_output(options.output, FORMATS[options.format](chosen))
    return 0 if chosen.numbers else 1


def _read_named_runs(options: argparse.Namespace) -> list[StoredRun]:
    """Return the runs that the user named, by their files or as runs of the storage, each once.

    Prints what was left out.
    """
    from pytest_cloudbench.report.export import StoredRun
    from pytest_cloudbench.results import stored

    index, runs = None, dict[str, StoredRun]()
    for name in options.runs:
        try:
            if Path(name).exists() or name.endswith(".json"):
                commit, stored_ms, entries = stored.read_run(Path(name))
                starts_ms = [stored.start_ms(entry.info) or stored_ms for entry in entries]
                time_ms = min((start_ms for start_ms in starts_ms if start_ms is not None), default=stored_ms)
                entry_infos = [(entry.fullname, entry.info) for entry in entries]
                run = StoredRun(Path(name).stem, time_ms, commit.id, commit.branch, entry_infos)
                runs[os.path.realpath(name)] = run
            else:
                index = index or open_index(options)
                row = index.find(name)
                entry_infos = [(entry.fullname, entry.info) for entry in index.entries(row.place)]
                run = StoredRun(row.name, row.time_ms, row.commit, row.branch, entry_infos)
                runs[os.path.realpath(index.storage / row.place)] = run
        except ResultsError as error:
            sys.stderr.write(f"cloudbench export: left out: {printable(str(error))}\n")
    return [*runs.values()]


def _print_machine(options: argparse.Namespace) -> int:
    from pytest_cloudbench.results.machine import describe_machine

    text = describe_machine()
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-") if options.key else text
    sys.stdout.write(f"{name}\n")
    return 0


def _write_output(output: str, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    if output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return
    try:
        Path(output).write_bytes(data)
    except OSError as error:
        raise ResultsError(f"export {output}: cannot be written: {error.strerror}") from error
