"""The command ``cloudbench recover``: records of killed runs become entries that are marked as interrupted."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_cloudbench.commands.command import Command, argument, why_left_alone
from pytest_cloudbench.model import CloudbenchError, UsageError
from pytest_cloudbench.support.printable import printable
from pytest_cloudbench.support.wording import format_count


def recover(options: argparse.Namespace) -> int:
    """Merge the records that killed runs left. Returns 1 if a run could not be merged. Raises UsageError."""
    from pytest_cloudbench.results import places, recovery

    if options.results is not None and not options.results.is_dir():
        raise UsageError(f"recover {options.results}: expected the folder that --cloudbench-results named")
    roots = [options.results] if options.results is not None else places.folders_of_killed_runs()
    if not roots:
        where = " or ".join(map(str, dict.fromkeys([places.results_folder(), *places.storage_folders()])))
        raise UsageError(f"recover: there is no {where}; give the folder that --cloudbench-results named")
    status = 0
    for records in list(recovery.find_unmerged(*roots)):
        run = printable(records.note["fullname"])
        if records.is_alive or (records.is_alive is None and not options.force):
            sys.stdout.write(f"left alone: {run}: {why_left_alone(records.is_alive)}\n")
            continue
        if options.dry_run:
            sys.stdout.write(f"would be recovered: {run}: {', '.join(sorted(map(printable, records.logs)))}\n")
            continue
        try:
            recovered = recovery.recover_run(records)
        except CloudbenchError as error:
            sys.stdout.write(f"left alone: {run}: {printable(error)}\n")
            status = 1
        else:
            if recovered is not None:
                sys.stdout.write(
                    f"recovered: {run}: {format_count(recovered[0], 'record')} in {printable(recovered[1])}\n"
                )
    return status


COMMAND = Command(
    "recover",
    recover,
    "merge the records that killed runs left",
    "Merge the logs that agents of killed runs left into Parquet files, each with an entry beside it that is marked as "
    "interrupted and is never a baseline. Logs of runs that are still running are left alone.",
    (
        argument(
            "results", metavar="RESULTS", nargs="?", type=Path,
            help="the results folder (default: the configured one, or results; storage folders are searched too)",
        ),
        argument("--dry-run", action="store_true", help="only say what would be merged"),
        argument(
            "--force", action="store_true",
            help="also merge runs of other machines or containers, which may still be running",
        ),
    ),
)  # fmt: skip
COMMANDS = (COMMAND,)
