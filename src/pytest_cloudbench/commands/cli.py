"""The ``cloudbench`` command: the parser of all commands, and the exit status of each error."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence

from pytest_cloudbench import __version__
from pytest_cloudbench.commands import catalogue
from pytest_cloudbench.commands.command import discard_output, escape_lines
from pytest_cloudbench.model import CloudbenchError, UsageError

_READER_GONE = 141
"""The exit status that a shell reports for a program ended by SIGPIPE."""
_INTERRUPTED = 130
"""The exit status that a shell reports for a program ended by SIGINT."""
_MISUSED = 4
"""The exit status of an error that the user can fix, as pytest's."""


_MODULES = {
    "load": ("put", "get", "mixed"),
    "estimate": ("estimate",),
    "emulate": ("emulate",),
    "clean": ("clean",),
    "recover": ("recover",),
    "bench_files": ("new", "schema"),
    "published": ("published",),
    "analyze": ("analyze",),
    "accounts": ("login", "status", "logout", "doctor"),
    "testbed": ("testbed",),
    "hosts": ("hosts",),
    "line": ("line",),
    "locate": ("locate",),
    "history": ("history", "compare", "show", "ops", "baseline"),
    "export": ("machine", "export"),
    "report": ("report",),
    "gate": ("gate",),
    "savingbox": ("savingbox",),
    "raid": ("raid",),
}
"""The first words of the commands in each module of this package."""


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
    gone, and 130 if the user has interrupted it.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed: the next file to be opened would take its place
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # for the whole process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # no name ends a command, whatever the terminal can show
    try:
        return _run(argv)
    except KeyboardInterrupt:
        sys.stderr.write("\ncloudbench: interrupted\n")
        return _INTERRUPTED
    except BrokenPipeError:  # `cloudbench analyze FILE | head`: the reader has seen enough
        discard_output()
        return _READER_GONE


def _run(argv: Sequence[str] | None) -> int:
    """Run a command and return its exit status. An expected error becomes one line."""
    words = sys.argv[1:] if argv is None else argv
    if not words:
        sys.stdout.write(_START)
        sys.stdout.flush()
        return 0
    try:
        parser = make_parser(words[0])
        options, other_words = parser.parse_known_args(words)
        if other_words and "passes_on" not in options:
            options.parser.error(f"unrecognized arguments: {' '.join(other_words)}")
        options.rest, options.ends_process = other_words, argv is None
    except SystemExit as end:
        sys.stdout.flush()  # of --help
        sys.exit(_MISUSED if end.code else 0)  # argparse would end with 2, and pytest ends with 4
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except CloudbenchError as error:
        sys.stderr.write(f"cloudbench: {escape_lines(_without_secrets(str(error), words))}\n")
        return _MISUSED if isinstance(error, UsageError) else 1
    except BrokenPipeError:
        raise
    except OSError as error:  # of the system: a name that no file can have, a folder that is closed, a full disk
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        sys.stderr.write(f"cloudbench: {escape_lines(_without_secrets(text, words))}\n")
        try:
            sys.stdout.flush()
        except OSError:
            discard_output()
        return 1
    return status


def _without_secrets(text: str, words: Sequence[str]) -> str:
    """Return a text without the secrets that are in the specs of a command line."""
    from pytest_cloudbench.support import redact

    for word in words:
        redact.learn_named(word)
    return redact.clean(text)


def make_parser(word: str = "") -> argparse.ArgumentParser:
    """Return the parser of the commands that begin with this word, or of all commands if there are none.

    Importing the modules of all commands takes longer than most commands do.
    """
    parser = argparse.ArgumentParser(
        prog="cloudbench", usage="cloudbench [-h] [--version] COMMAND ...",
        description="Measure and gate cloud storage.", formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"pytest-cloudbench {__version__}")
    commands = parser.add_subparsers(
        prog=parser.prog, metavar="COMMAND", required=True, help=argparse.SUPPRESS
    )  # fmt: skip
    module_names = [name for name, words in _MODULES.items() if word in words]
    for name in module_names or _MODULES:
        module = importlib.import_module(f"pytest_cloudbench.commands.{name}")
        for command in getattr(module, "COMMANDS", ()):
            command.add_to(commands)
        if hasattr(module, "add_commands"):
            module.add_commands(commands)
    for _, command_parser in catalogue.leaf_parsers(parser):
        command_parser.set_defaults(parser=command_parser)  # whose usage says what the command takes
    catalogue.add_examples(parser)
    if not module_names:
        catalogue.add_groups(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
