"""The command ``cloudbench hosts``, which checks whether agents can run on other hosts, and installs what they need."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cloudbench.commands.command import Command, argument, check_patience, print_line
from pytest_cloudbench.support import redact

if TYPE_CHECKING:
    from pytest_cloudbench.commands.command import Parsers
    from pytest_cloudbench.fleet.hosts.checks import Checked


def check(options: argparse.Namespace) -> int:
    """Print a line for each host. Returns 1 if agents cannot run on one of them. Raises UsageError."""
    from pytest_cloudbench.fleet.hosts.checks import check_hosts
    from pytest_cloudbench.fleet.hosts.table import read_hosts

    check_patience(options.patience)
    checked = check_hosts(read_hosts(Path(options.file)), options.patience)
    if options.provider:
        checked = _check_ways(checked, options.provider, options.patience)
    for host_check in checked:
        print_line(f"{host_check.host.name}: {'ready' if host_check.is_ready else 'not ready'}: {host_check.text}")
    return 0 if all(host_check.is_ready for host_check in checked) else 1


def _check_ways(checked: Sequence[Checked], spec: str, patience_s: float) -> list[Checked]:
    """Return the checks, extended by whether each ready host reaches a provider. Raises UsageError."""
    from pytest_cloudbench import providers
    from pytest_cloudbench.commands.line import describe_line, measure_from
    from pytest_cloudbench.providers.line import LineRequest

    with providers.provided(spec) as provider:
        request = LineRequest(provider.opened[1], connects=3, most_bytes=0)

        def check_way(host_check: Checked) -> Checked:
            if not host_check.is_ready:
                return host_check
            line = measure_from(host_check.host, request, patience_s)
            if isinstance(line, str):
                return replace(host_check, is_ready=False, text=line)
            is_reached = line.round_trip_min_s is not None
            does_reach = "does not reach" if line.is_unreachable else "reaches" if is_reached else "may reach"
            text = f"{host_check.text}; {does_reach} {redact.mask_named(spec)}: {describe_line(line)}"
            return replace(host_check, is_ready=not line.is_unreachable, text=text)

        with ThreadPoolExecutor(len(checked)) as pool:
            return list(pool.map(check_way, checked))


def install(options: argparse.Namespace) -> int:
    """Bring this package to each host, and print a line. Returns 1 if one of them lacks it. Raises UsageError."""
    from pytest_cloudbench.fleet.hosts.installing import install_hosts
    from pytest_cloudbench.fleet.hosts.table import read_hosts

    check_patience(options.patience)
    extras = [extra for text in options.extra for extra in text.split(",")]
    done = install_hosts(read_hosts(Path(options.file)), options.patience, extras)
    for host_check in done:
        print_line(f"{host_check.host.name}: {'' if host_check.is_ready else 'not installed: '}{host_check.text}")
    return 0 if all(host_check.is_ready for host_check in done) else 1


_FILE = argument("file", metavar="FILE.toml", help="the table of hosts")
_PATIENCE = argument(
    "--patience", type=float, default=20.0, metavar="SECONDS", help="for each that is silent (default: %(default)s)"
)

CHECK = Command(
    "check",
    check,
    "whether agents can run on the hosts of a table",
    "Connect to each host of a table for --cloudbench-hosts, and print a line: its Python, cores, memory and clock, or "
    "what is missing there. With a provider, also whether each host reaches it.",
    (_FILE, argument("--provider", metavar="SPEC", help="a provider that the hosts are to reach"), _PATIENCE),
)
INSTALL = Command(
    "install",
    install,
    "bring this package to the hosts of a table",
    "Send this package and what it needs, as they are installed here, to each host of a table for --cloudbench-hosts. "
    "Hosts need no package index, only a Python of the same kind. Sessions with the same code use it, and "
    "`cloudbench clean --hosts FILE` removes it.",
    (
        _FILE, _PATIENCE,
        argument("--extra", action="append", default=[], metavar="NAME", help="an extra (providers); may repeat"),
    ),
)  # fmt: skip


def add_commands(parsers: Parsers) -> None:
    """Add ``hosts check`` and ``hosts install``."""
    hosts = parsers.add_parser(
        "hosts", help="other hosts that carry agents", description="Other hosts that carry agents (--cloudbench-hosts)."
    )
    subparsers = hosts.add_subparsers(metavar="COMMAND", required=True)
    CHECK.add_to(subparsers)
    INSTALL.add_to(subparsers)
