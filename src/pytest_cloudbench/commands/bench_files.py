"""The commands about bench files, which are experiments without Python: ``cloudbench new`` and ``schema``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_cloudbench.commands.command import Command, argument
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.support import opening

_PACKAGE = Path(__file__).resolve().parents[1]
_SCHEMA = _PACKAGE / "plugin" / "configs" / "bench.schema.json"
_EXAMPLE = _PACKAGE / "data" / "example.bench.toml"


def write_example(options: argparse.Namespace) -> int:
    """Write a commented example of a bench file. Returns the exit status. Raises UsageError."""
    _, text = _EXAMPLE.read_text(encoding="utf-8").split("\n", 1)
    text = f"#:schema {_SCHEMA.as_uri()}\n{text}"  # editors that understand Taplo's line offer keys and values
    if options.file == "-":
        sys.stdout.write(text)
        return 0
    if not options.file.endswith(".bench.toml"):
        raise UsageError(f"new {options.file}: expected a name that ends in .bench.toml, or pytest would not find it")
    try:
        with open(options.file, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"new {options.file}: the file exists and was not changed; give another name") from None
    except (OSError, ValueError) as error:
        why = opening.explain_error(error)
        raise UsageError(f"new {options.file}: cannot be written: {why}") from error
    sys.stdout.write(f"{options.file} is written; run it with: pytest {options.file}\n")
    return 0


def print_schema(options: argparse.Namespace) -> int:
    """Print the JSON Schema of bench files, or its path. Returns the exit status."""
    sys.stdout.write(f"{_SCHEMA}\n" if options.path else _SCHEMA.read_text(encoding="utf-8"))
    return 0


NEW = Command(
    "new",
    write_example,
    "write a commented example of an experiment without Python",
    "Write a commented example of a bench file. An existing file is not touched.",
    (
        argument(
            "file", metavar="FILE", nargs="?", default="experiment.bench.toml",
            help="a name that ends in .bench.toml, or - for the standard output (default: %(default)s)",
        ),
    ),
)  # fmt: skip
SCHEMA = Command(
    "schema",
    print_schema,
    "print the JSON Schema of bench files",
    "Print the JSON Schema of bench files, for editors.",
    (argument("--path", action="store_true", help="print where it is installed instead"),),
)
COMMANDS = (NEW, SCHEMA)
