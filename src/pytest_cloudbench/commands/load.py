"""``cloudbench put``, ``get`` and ``mixed``: one load without a file, measured by the suite ``load``."""

from __future__ import annotations

import argparse

from pytest_cloudbench.commands.become import become_pytest

_SUITE = "suites.load.test_load"
_LOADS = {
    "put": "upload files at a rate, or as fast as threads can",
    "get": "upload some files, then download them in turn",
    "mixed": "upload, download, stat and list files in given shares",
}
_OPTIONS = {
    "size": ("SIZE", "size of each file, such as 5KiB or 1MB (default: 64KiB)"),
    "rate": (
        "RATE",
        "operations that are due in a time, such as 50/s or 600/min, whether earlier ones have ended or not",
    ),
    "threads": ("N", "without --rate: threads that each begin an operation when the last one has ended (default: 4)"),
    "for": ("TIME", "how long it lasts, such as 30s or 2h (default: 10s)"),
    "files": ("N", "files that are uploaded first and then downloaded in turn (default: 16)"),
    "mix": ("SHARES", "shares of put, get, stat and list (default: put=25,get=60,stat=15)"),
}
_OPTIONS_OF = {
    "put": ("size", "rate", "threads", "for"),
    "get": ("size", "rate", "threads", "for", "files"),
    "mixed": ("size", "rate", "for", "mix"),
}


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the three commands."""
    for name, summary in _LOADS.items():
        parser = commands.add_parser(
            name,
            help=summary,
            description=f"{summary.capitalize()}. The run is an experiment like any other: it is stored, can be gated "
            "and compared, and shows the pytest test that would do the same.",
            usage=f"cloudbench {name} SPEC [SPEC ...] [options] [options of pytest, such as -n 4 --cloudbench-gate]",
            allow_abbrev=False,
        )
        parser.add_argument("specs", metavar="SPEC", nargs="+", help="provider, as for pytest's --provider")
        for option in _OPTIONS_OF[name]:
            metavar, text = _OPTIONS[option]
            parser.add_argument(f"--{option}", metavar=metavar, help=text)
        parser.set_defaults(run=run, load=name, passes_on=True)


def run(options: argparse.Namespace) -> int:
    """Become pytest on the suite's test of this load. Returns pytest's exit status where a process cannot do that."""
    chosen = {name: getattr(options, name) for name in _OPTIONS_OF[options.load]}
    arguments = ["--pyargs", f"pytest_cloudbench.{_SUITE}::test_{options.load}", "--no-header"]
    arguments += [f"--cloudbench-provider={spec}" for spec in options.specs]
    arguments += [f"--cloudbench-load-{name}={value}" for name, value in chosen.items() if value is not None]
    return become_pytest([*arguments, *options.rest])
