"""``cloudbench put``, ``get`` and ``mixed``: one load without a file, measured by the suite ``load``."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

from pytest_cloudbench.commands.become import become_pytest

_SUITE = "suites.load.test_load"
_LOADS = {
    "put": "upload files at a rate, or as fast as threads can",
    "get": "upload some files, then download them in turn",
    "mixed": "upload, download, stat and list files in given shares",
}
_OPTIONS_FILE = Path(__file__).resolve().parents[1] / "suites" / "load" / "options.toml"
_OPTIONS_OF = {
    "put": ("size", "rate", "threads", "for"),
    "get": ("size", "rate", "threads", "for", "files"),
    "mixed": ("size", "rate", "for", "mix"),
}


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the three commands. Their options have the help texts of the suite's own."""
    rows = tomllib.loads(_OPTIONS_FILE.read_text("utf-8"))
    for name, summary in _LOADS.items():
        parser = commands.add_parser(
            name,
            help=summary,
            description=f"{summary.capitalize()}. The run is an experiment like any other: it is stored, can be gated "
            "and compared, and shows the pytest test that would do the same. Options of pytest may follow, such as "
            "-n 4 or --cloudbench-gate.",
            usage=f"cloudbench {name} SPEC [SPEC ...] [options] [options of pytest]",
            allow_abbrev=False,
        )
        parser.add_argument("specs", metavar="SPEC", nargs="+", help="provider, as for pytest's --provider")
        for option in _OPTIONS_OF[name]:
            row = rows[option]
            parser.add_argument(f"--{option}", metavar=row["metavar"], help=row["help"].format_map(row))
        parser.set_defaults(run=run, load=name, passes_on=True)


def run(options: argparse.Namespace) -> int:
    """Become pytest on the suite's test of this load. Returns its exit status where a process cannot be replaced."""
    chosen = {name: getattr(options, name) for name in _OPTIONS_OF[options.load]}
    arguments = ["--pyargs", f"pytest_cloudbench.{_SUITE}::test_{options.load}", "--no-header"]
    arguments += [f"--cloudbench-provider={spec}" for spec in options.specs]
    arguments += [f"--cloudbench-load-{name}={value}" for name, value in chosen.items() if value is not None]
    return become_pytest([*arguments, *options.rest])
