"""The command ``cloudbench clean``: the removal of what killed runs left on real providers."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cloudbench.commands.command import Command, argument, escape_lines, print_line, why_left_alone
from pytest_cloudbench.model import CloudbenchError, UsageError
from pytest_cloudbench.support import redact
from pytest_cloudbench.support.printable import printable
from pytest_cloudbench.support.wording import format_count

_PATIENCE_S = 20.0

if TYPE_CHECKING:
    from pytest_cloudbench.results.journal import LeftFolder


def clean(options: argparse.Namespace) -> int:
    """Remove what killed runs left on providers. Returns 1 if a folder is still there. Raises UsageError."""
    from pytest_cloudbench.results import journal

    if options.forget is not None:
        return _forget(*options.forget, may_live=options.force)
    if options.hosts is not None:
        return _clean_hosts(options)
    if options.dry_run:
        return _clean_all(options)
    with journal.wait_to_clean(lambda: print_line("another `cloudbench clean` is at work: waiting for it")):
        return _clean_all(options)


def _clean_hosts(options: argparse.Namespace) -> int:
    """Remove from hosts what was installed there, and what killed sessions left."""
    from pytest_cloudbench.fleet.hosts.installing import remove_from_hosts
    from pytest_cloudbench.fleet.hosts.table import read_hosts

    hosts = read_hosts(Path(options.hosts))
    if options.dry_run:
        for host in hosts:
            print_line(f"{host.name}: what `cloudbench hosts install` brought there would be removed")
        return 0
    removed = remove_from_hosts(hosts, _PATIENCE_S)
    for result in removed:
        print_line(f"{result.host.name}: {'' if result.is_ready else 'not cleaned: '}{result.text}")
    return 0 if all(result.is_ready for result in removed) else 1


def _clean_all(options: argparse.Namespace) -> int:
    """Remove all pending folders of the journal, or only name them. Returns 1 if one could not be removed."""
    from pytest_cloudbench.results import journal
    from pytest_cloudbench.results.owner import is_alive

    folders, problems = journal.pending_folders()
    removed = examined = 0
    for left_folder in folders:
        provider = redact.mask_named(left_folder.provider)
        folder = printable(f"{provider} {left_folder.folder}")
        is_running = is_alive(left_folder.owner) if left_folder.owner else False
        if is_running or (is_running is None and not options.force):
            sys.stdout.write(f"left alone: {folder}: {why_left_alone(is_running)}\n")
            continue
        examined += 1
        if options.dry_run:
            sys.stdout.write(f"{folder}\n")
            continue
        try:
            problem = _remove(left_folder)
        except CloudbenchError as error:  # such as missing credentials; other providers may have theirs
            problem = printable(error)
        if problem:
            label = shlex.join(map(printable, (provider, left_folder.folder)))
            problems.append(f"{folder}: {problem} (if nothing is there: cloudbench clean --forget {label})")
        else:
            sys.stdout.write(f"{folder}: removed\n")
            removed += 1
    for problem in problems:
        sys.stderr.write(f"cloudbench: {problem}\n")
    count, verb = (examined, "would be looked at") if options.dry_run else (removed, "removed")
    sys.stdout.write(f"{format_count(count, 'folder')} {verb}\n")
    return 1 if problems else 0


def _forget(provider: str, folder: str, *, may_live: bool) -> int:
    """Cross out a folder in the journal, for a provider that can no longer be asked, or never could.

    ``provider`` is its spec, or the spec without secrets, as ``clean`` shows it.
    """
    from pytest_cloudbench.results import journal
    from pytest_cloudbench.results.owner import is_alive

    command = f"clean --forget {provider} {folder}"
    pending = [
        entry for entry in journal.pending_folders()[0]
        if entry.folder == folder and provider in (entry.provider, redact.mask_named(entry.provider))
    ]  # fmt: skip
    if not pending:
        raise UsageError(f"{command}: not in the journal, which 'cloudbench clean --dry-run' lists")
    is_running = is_alive(pending[0].owner) if pending[0].owner else False
    if is_running or (is_running is None and not may_live):
        raise UsageError(f"{command}: {why_left_alone(is_running)}")
    journal.forget_folder(pending[0].provider, folder)
    shown = escape_lines(f"{redact.mask_named(provider)} {folder}")
    sys.stdout.write(f"{shown}: crossed out; if the folder exists, remove it yourself\n")
    return 0


def _remove(left_folder: LeftFolder) -> str:
    """Remove what one run left and check that it is gone. Returns why that failed, or an empty string."""
    from pytest_cloudbench import providers
    from pytest_cloudbench.drivers import describe_raised
    from pytest_cloudbench.results import journal

    with providers.opened(left_folder.provider) as driver:
        try:
            return journal.remove_folder(driver, left_folder)
        except CloudbenchError:
            raise
        except Exception as error:  # of a driver of another distribution: the other folders can still be removed
            return f"{describe_raised(type(driver).__name__, error, __file__)}: tell its author"


COMMAND = Command(
    "clean",
    clean,
    "remove what killed runs left on providers",
    "Remove the folders that killed runs left on real providers and in local folders. This user's journal names them, "
    "of all projects, wherever this command is called. A folder is removed when it has a run's name and holds that "
    "run's marker, once the run has ended; nothing else.",
    (
        argument("--dry-run", action="store_true", help="only say what would be removed"),
        argument(
            "--force", action="store_true",
            help="also those of other machines or containers, which may still be running",
        ),
        argument(
            "--hosts", metavar="FILE.toml",
            help="only what `cloudbench hosts install` and killed sessions left on the hosts of this table",
        ),
        argument(
            "--forget", nargs=2, metavar=("PROVIDER", "FOLDER"),
            help="only cross this folder out in the journal, such as one of a mistyped provider; nothing is removed",
        ),
    ),
)  # fmt: skip
COMMANDS = (COMMAND,)
