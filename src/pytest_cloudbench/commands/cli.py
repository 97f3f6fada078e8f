"""The ``cloudbench`` command: the parser of all commands, and the exit status of each error."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from pytest_cloudbench import __version__
from pytest_cloudbench.commands import (
    accounts,
    analyze,
    bench_files,
    catalogue,
    clean,
    emulate,
    estimate,
    export,
    gate,
    history,
    load,
    published,
    raid,
    recover,
    report,
    savingbox,
    testbed,
)
from pytest_cloudbench.commands.command import escape_lines
from pytest_cloudbench.emulators.registry import SKINS
from pytest_cloudbench.model import CloudbenchError, UsageError

_READER_GONE = 141
"""The exit status that a shell reports for a program ended by SIGPIPE."""


_START = """\
cloudbench measures and gates cloud storage. What people do with it:

  check a provider   cloudbench doctor emulated:ideal
  put load on it     cloudbench put emulated:ideal --rate 50/s --for 10s
  test of your own   cloudbench new; pytest experiment.bench.toml
  gate a build       pytest experiment.bench.toml --cloudbench-gate
  look at results    cloudbench show last; cloudbench report last -o report.html

cloudbench --help lists all commands, cloudbench COMMAND --help explains one.
"""
"""What the command says without any argument."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns the exit status: 0 done, 1 failed, 4 for an error that the user can fix, 141 if the reader of the output is
    gone.
    """
    try:
        return _run(argv)
    except BrokenPipeError:  # `cloudbench analyze FILE | head`: it has seen enough
        with contextlib.suppress(OSError, ValueError):  # or Python would write what is left when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_GONE


def _run(argv: Sequence[str] | None) -> int:
    if not (sys.argv[1:] if argv is None else argv):
        sys.stdout.write(_START)
        sys.stdout.flush()
        return 0
    try:
        parser = make_parser()
        options, rest = parser.parse_known_args(argv)
        if rest and "passes_on" not in options:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        options.rest = rest
    except SystemExit:
        sys.stdout.flush()  # of --help
        raise
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except UsageError as error:
        sys.stderr.write(f"cloudbench: {escape_lines(str(error))}\n")
        return 4
    except CloudbenchError as error:
        sys.stderr.write(f"cloudbench: {escape_lines(str(error))}\n")
        return 1
    return status


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="cloudbench", usage="cloudbench [-h] [--version] COMMAND ...",
        description="Measure and gate cloud storage.", formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"pytest-cloudbench {__version__}")
    commands = parser.add_subparsers(
        prog=parser.prog, metavar="COMMAND", required=True, help=argparse.SUPPRESS
    )  # fmt: skip
    load.add_commands(commands)
    estimate.add_command(commands)
    for command in (
        emulate.COMMAND, clean.COMMAND, recover.COMMAND, bench_files.NEW, bench_files.SCHEMA, published.COMMAND,
        analyze.COMMAND, *accounts.COMMANDS,
    ):  # fmt: skip
        command.add_to(commands)
    testbed.add_commands(commands)
    history.add_commands(commands)
    export.add_commands(commands)
    report.add(commands)
    gate.add_commands(commands)
    savingbox.add_command(commands)
    raid.add_commands(commands)
    catalogue.add_examples(parser, next(iter(SKINS)))
    return parser


if __name__ == "__main__":
    sys.exit(main())
