"""The command ``cloudbench published``: the papers' tables, and stored runs beside them."""

from __future__ import annotations

import argparse
import sys

from pytest_cloudbench.commands.command import Command, argument, output_width
from pytest_cloudbench.commands.history import RUN_HELP, find_run_files, storage_argument
from pytest_cloudbench.model import UsageError


def show_published(options: argparse.Namespace) -> int:
    """Print the papers' tables. Returns the exit status. Raises UsageError and ResultsError."""
    from pytest_cloudbench.report.published import render_overview, render_table
    from pytest_cloudbench.results import published

    tables = [published.load_table(name) for name in ([options.table] if options.table else published.table_names())]
    runs = [entry for path in find_run_files(options) for entry in published.read_run(path)]
    measured = [table for table in tables if runs and published.add_measured(table, runs)]
    if options.runs and not measured:
        table_name = options.table or "any published table"
        raise UsageError(f"published: no experiment in {' '.join(options.runs)} repeats a row of {table_name}")
    selected = measured if options.runs else tables if options.table else []
    width = output_width()
    lines = [line for table in selected for line in [*render_table(table, width), ""]] or render_overview(tables)
    sys.stdout.write("\n".join(lines).rstrip() + "\n")
    return 0


COMMAND = Command(
    "published",
    show_published,
    "show the papers' tables, and a run beside them",
    "List the papers' tables, or show one in its own units. With --run, show stored runs beside it.",
    (
        argument("table", metavar="TABLE", nargs="?", help="a table's name (default: list them)"),
        argument(
            "--run", dest="runs", metavar="RUN", nargs="+", default=[],
            help=f"show these beside it, or beside every table without TABLE. Each is {RUN_HELP}; or a folder: all "
            "runs in it",
        ),
        storage_argument(),
    ),
)  # fmt: skip
COMMANDS = (COMMAND,)
