"""The command ``cloudbench report``: one page about stored runs.

What may live here: what it asks and prints. The page is in ``report``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cloudbench.commands.history import RUN_HELP, add_records, add_storage, find_storage, open_index
from pytest_cloudbench.model import UsageError

if TYPE_CHECKING:
    from pytest_cloudbench.report.gathering import EarlierRuns


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "report",
        help="make one HTML page of stored runs",
        description="Make one page that needs no network: what was measured on what, what is good and bad, provider "
        "beside provider, and each experiment with its figures, as CSV too.",
    )
    parser.add_argument(
        "runs", metavar="RUN", nargs="+",
        help=f"{RUN_HELP}, such as results/*/0001_*.json; or a folder: all runs in it",
    )  # fmt: skip
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
    """Write the page, and say what it leaves out. Returns 0. Raises UsageError if there is nothing to show."""
    from pytest_cloudbench.report.gathering import gather_runs
    from pytest_cloudbench.report.writing import write_page
    from pytest_cloudbench.results.places import record_folders

    if options.last < 1:
        raise UsageError(f"--last {options.last}: expected 1 or more")
    files = list(dict.fromkeys(_files(options)))
    gathered = gather_runs(files, record_folders(options.records))
    if not gathered.measurements:
        why = "; ".join(gathered.left_out) or "there are no stored runs in these folders"
        raise UsageError(f"report: nothing to show: {why}")
    runs = len(files) - len(gathered.left_out)
    if (earlier := _earlier(options)) is not None:
        gathered.add_earlier(earlier)
    size_bytes = write_page(options.output, gathered)
    for line in gathered.left_out:
        sys.stdout.write(f"left out: {line}\n")
    sys.stdout.write(
        f"{options.output}: {_counted(len(gathered.measurements), 'experiment')} of {_counted(runs, 'run')}, "
        f"{size_bytes / 1e6:.2f} MB\n"
    )
    return 0


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _files(options: argparse.Namespace) -> Iterator[Path]:
    """Yields the files of the runs that are named: folders and files, wherever they are, or runs of the storage."""
    index = None
    for name in options.runs:
        path = Path(name)
        if path.is_dir():
            yield from _below(path)
        elif path.exists() or name.endswith(".json"):
            yield path
        else:
            index = index or open_index(options)
            yield from index.files(index.find(name).place)


def _earlier(options: argparse.Namespace) -> EarlierRuns | None:
    """Returns the runs that histories show: of the storage, or of the first folder that is named; None without any."""
    from pytest_cloudbench.load.gate.settings import read_settings
    from pytest_cloudbench.report.gathering import EarlierRuns
    from pytest_cloudbench.results.index import Index

    named = [Path(name) for name in options.runs if Path(name).is_dir()]
    storage = named[0] if options.storage is None and named else find_storage(options)
    if storage is None:
        return None
    margins = read_settings(Path.cwd(), strict=False).margins
    return EarlierRuns(Index.open(storage), margins, options.last)


def _below(folder: Path) -> list[Path]:
    """Returns the files of all runs in a storage, oldest first."""
    from pytest_cloudbench.results.stored import find_run_files

    return [file.path for file in sorted(find_run_files(folder), key=lambda file: file.place)]
