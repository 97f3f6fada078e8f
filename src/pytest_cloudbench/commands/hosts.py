"""The command ``cloudbench hosts``: whether agents can run on other hosts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cloudbench.commands.command import Command, argument, print_line

if TYPE_CHECKING:
    from pytest_cloudbench.commands.command import Parsers


def check(options: argparse.Namespace) -> int:
    """Print a line for each host. Returns 1 if agents cannot run on one of them. Raises UsageError."""
    from pytest_cloudbench.fleet.hosts.checks import check_hosts
    from pytest_cloudbench.fleet.hosts.table import read_hosts

    checked = check_hosts(read_hosts(Path(options.file)), options.patience)
    for one in checked:
        print_line(f"{one.host.name}: {'ready' if one.is_ready else 'not ready'}: {one.text}")
    return 0 if all(one.is_ready for one in checked) else 1


CHECK = Command(
    "check",
    check,
    "whether agents can run on the hosts of a table",
    "Connect to each host of a table for --cloudbench-hosts, and print a line: its Python, cores, memory and clock, or "
    "what is missing there.",
    (
        argument("file", metavar="FILE.toml", help="the table of hosts"),
        argument("--patience", type=float, default=20.0, metavar="SECONDS", help="for each (default: %(default)s)"),
    ),
)


def add_commands(parsers: Parsers) -> None:
    """Add ``hosts check``."""
    hosts = parsers.add_parser(
        "hosts", help="other hosts that carry agents", description="Other hosts that carry agents (--cloudbench-hosts)."
    )
    CHECK.add_to(hosts.add_subparsers(metavar="COMMAND", required=True))
