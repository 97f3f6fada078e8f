"""The command ``cloudbench report``, which makes one page of stored runs by the package ``report``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cloudbench.commands.history import RUN_HELP, add_records, add_storage, find_run_files, find_storage
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.support.printable import printable
from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:
    from pytest_cloudbench.report.gathering import EarlierRuns


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "report",
        help="make one HTML page of stored runs",
        description="Make one page that needs no network: what was measured on what, what is good and bad, provider "
        "beside provider, and each experiment with its figures, as CSV too.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help=f"{RUN_HELP}; or a folder: all runs in it")
    add_storage(parser)
    add_records(parser)
    parser.add_argument(
        "--last", metavar="N", type=int, default=100,
        help="histories show the last N runs of the storage (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, default=Path("report.html"),
        help="the page; one that is there is replaced (default: %(default)s)",
    )  # fmt: skip
    parser.set_defaults(run=report)


def report(options: argparse.Namespace) -> int:
    """Write the page, and print what it leaves out. Returns 0. Raises UsageError if there is nothing to show."""
    from pytest_cloudbench.report.gathering import gather_runs
    from pytest_cloudbench.report.writing import write_page
    from pytest_cloudbench.results.places import record_folders

    if options.last < 1:
        raise UsageError(f"--last {options.last}: expected 1 or more")
    gathered = gather_runs(find_run_files(options), record_folders(options.records))
    if not gathered.measurements:
        reason = "; ".join(gathered.left_out) or "there are no stored runs in these folders"
        raise UsageError(f"report: nothing to show: {reason}")
    if (earlier := _open_earlier_runs(options)) is not None:
        gathered.add_earlier(earlier)
    size_bytes = write_page(options.output, gathered)
    for line in gathered.left_out:
        sys.stdout.write(f"left out: {printable(line)}\n")
    sys.stdout.write(
        f"{options.output}: {format_count(len(gathered.measurements), 'experiment')} of "
        f"{format_count(gathered.runs, 'run')}, {size_bytes / 1e6:.2f} MB\n"
    )
    return 0


def _open_earlier_runs(options: argparse.Namespace) -> EarlierRuns | None:
    """Return the runs for histories, from the storage or the first named folder. None if there are none."""
    from pytest_cloudbench.load.gate.settings import open_with_margins
    from pytest_cloudbench.report.gathering import EarlierRuns
    from pytest_cloudbench.results.places import project_folder

    folders = [Path(name) for name in options.runs if Path(name).is_dir()]
    storage = folders[0] if options.storage is None and folders else find_storage(options)
    if storage is None:
        return None
    return EarlierRuns(*open_with_margins(storage, project_folder(Path.cwd())), options.last)
