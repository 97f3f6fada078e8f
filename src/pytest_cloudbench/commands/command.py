"""A command of ``cloudbench`` as data: its name, its help, its arguments and the function that runs it."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.support.printable import printable

if TYPE_CHECKING:  # the class is generic for mypy alone
    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]

_PIPE_COLUMNS = 400
_MOST_PATIENCE_S = 1e6


class Argument(NamedTuple):  # made at each start: a frozen dataclass takes five times as long
    """An argument of a command, as ``ArgumentParser.add_argument`` takes it."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]


def argument(*names: str, **settings: Any) -> Argument:
    """Describe an argument. Names and settings are those of ``ArgumentParser.add_argument``."""
    return Argument(names, settings)


class Command(NamedTuple):
    """A command without subcommands.

    Attributes:
        name: its word after ``cloudbench``.
        run: does the work. Returns the exit status, and raises CloudbenchError.
        summary: its line in the list of all commands.
        description: the first paragraph of its own help.
        arguments: its arguments, in the order of the help.
    """

    name: str
    run: Callable[[argparse.Namespace], int]
    summary: str
    description: str
    arguments: tuple[Argument, ...] = ()

    def add_to(self, parsers: Parsers) -> argparse.ArgumentParser:
        """Add the command to a parser. Returns its own parser."""
        parser = parsers.add_parser(self.name, help=self.summary, description=self.description)
        for item in self.arguments:
            parser.add_argument(*item.names, **item.settings)
        parser.set_defaults(run=self.run)
        return parser


def escape_lines(text: str) -> str:
    """Escape what a terminal would obey in a text from another program, but keep its line breaks."""
    return "\n".join(map(printable, text.split("\n")))


def print_line(text: str) -> None:
    """Print a line at once, because the work that it announces may take long."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def discard_output() -> None:
    """Discard what is still to be printed, or Python would try again to write it when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def output_width() -> int:
    """Return the terminal's width. Tables for a pipe are hardly ever folded, because programs read them."""
    import shutil  # which imports three libraries of compression

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_COLUMNS


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, broken between words on a terminal."""
    from pytest_cloudbench.report.columns import wrap_line

    if sys.stdout.isatty():
        lines = [part for line in lines for part in wrap_line(line, output_width())]
    sys.stdout.writelines(f"{line}\n" for line in lines)


def check_patience(patience_s: float) -> None:
    """Refuse a value of ``--patience`` for which no process can wait. Raises UsageError."""
    if not 0 < patience_s < _MOST_PATIENCE_S:
        raise UsageError(f"--patience {patience_s:g}: expected seconds above 0 and below {_MOST_PATIENCE_S:,.0f}")


def why_left_alone(is_alive: bool | None) -> str:
    """Say why ``clean`` and ``recover`` leave a run alone. None means that its process cannot be seen from here."""
    return "still running" if is_alive else "may run on another machine or in a container; see --force"
