"""The command ``cloudbench line``: what the access line of each host carries, and how far the provider is."""

from __future__ import annotations

import argparse
import math
import secrets
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.commands.command import Command, argument, check_patience, output_width, print_line
from pytest_cloudbench.model import CloudError, ErrorKind, FleetError, UsageError

if TYPE_CHECKING:
    from pytest_cloudbench.fleet.hosts.table import Host
    from pytest_cloudbench.providers import Provider
    from pytest_cloudbench.providers.line import AccessLine, LineRequest

_MIB = 1 << 20


def measure(options: argparse.Namespace) -> int:
    """Measure, print and store the access line of each host. Returns 1 if one was not measured. Raises UsageError."""
    from pytest_cloudbench.fleet.hosts.table import read_hosts
    from pytest_cloudbench.providers.line import LineRequest
    from pytest_cloudbench.results.places import results_folder

    check_patience(options.patience)
    hosts = read_hosts(Path(options.file)) if options.file else [None]
    if options.provider is None and not options.file:
        raise UsageError("line: name the other end of this machine's line with --provider, or a table of hosts")
    if not (options.connects >= 1 and 0 < options.seconds < math.inf and options.mib >= 1):
        raise UsageError("line: expected --connects and --mib of 1 or more, and --seconds above 0")
    request, has_failed = LineRequest(None, "", options.connects, options.seconds, options.mib * _MIB), False
    path: Path | None = None
    with ExitStack() as stack:
        if options.provider is not None:
            request = stack.enter_context(_open_provider(options, request, len(hosts)))
        for host in hosts:  # one after the other, because they may share a part of their way
            name, result = _measure_one(host, request, options)
            print_line(f"{name}: {result if isinstance(result, str) else describe_line(result)}")
            has_failed |= isinstance(result, str) or result.up is None or result.down is None
            # A stored line without any measured value would hide an earlier one.
            if not isinstance(result, str) and (result.up or result.down or result.round_trip_min_s is not None):
                path = _store(results_folder(), host, options.provider, result)
    bounds = (
        f"bounds: {options.seconds:g} s and {options.mib} MiB in each direction, one file at a time, one host after "
        "the other. A rate is that of the quickest file, so the line carries at least that."
    )
    for part in textwrap.wrap(bounds, output_width(), subsequent_indent="  "):
        print_line(part)
    if path is not None:
        print_line(f"stored in {path}, and with each run of these hosts from now on")
    return int(has_failed)


def _measure_one(host: Host | None, request: LineRequest, options: argparse.Namespace) -> tuple[str, AccessLine | str]:
    """Return a host's name, and its line or why there is none."""
    from pytest_cloudbench.providers.line import measure_line
    from pytest_cloudbench.results.machine import THIS_MACHINE

    path = f"{request.path}/{host.name if host is not None else 'here'}"
    request = request.replace(path=path)
    if host is None:
        return THIS_MACHINE, measure_line(request)
    return host.name, measure_from(host, request, options.patience)


def measure_from(host: Host, request: LineRequest, patience_s: float) -> AccessLine | str:
    """Return the access line of a host, or why there is none."""
    from pytest_cloudbench.fleet.hosts.connection import HostConnection
    from pytest_cloudbench.providers.line import measure_host

    connection = HostConnection(host, patience_s, lambda connection: None)
    connection.open()
    try:
        connection.wait(patience_s)
        return measure_host(connection, request)
    except FleetError as error:
        return f"not measured: {str(error).removeprefix(f'{host.name}: ')}"
    finally:
        connection.close()


@contextmanager
def _open_provider(options: argparse.Namespace, request: LineRequest, count: int) -> Iterator[LineRequest]:
    """Make a folder for the files on the provider, which is removed at the end. Raises UsageError and CloudError."""
    from pytest_cloudbench import providers
    from pytest_cloudbench.results.owner import owner_text
    from pytest_cloudbench.support import redact

    text = options.provider
    if providers.resolve(text).accounts() and not options.yes:
        amount = f"up to {count * options.mib} MiB in each direction"
        account = f"a real account of {redact.mask_named(text)}"
        raise UsageError(f"line: this moves {amount} with {account}: add --yes if that is all right")
    folder = f"/cloudbench-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}/line"
    with providers.provided(text) as provider:
        if provider.is_kept:
            provider.claim(folder, owner_text())
        if provider.driver.capabilities.folders:
            with suppress(CloudError):  # the parent folder may exist; if not, a write says why
                provider.driver.mkdir(folder.rpartition("/")[0])
            provider.driver.mkdir(folder)
        try:
            yield request.replace(provided=provider.opened[1], path=folder)
        finally:
            _remove_folder(provider, folder)


def _remove_folder(provider: Provider, folder: str) -> None:
    try:
        provider.driver.delete(folder)
    except CloudError as error:
        if error.kind is not ErrorKind.NOT_FOUND:
            sys.stderr.write(f"cloudbench line: {error}: 'cloudbench clean' removes what is left\n")
            return
    if provider.is_kept:
        provider.release(folder)


def _store(folder: Path, host: Host | None, provider: str | None, line: AccessLine) -> Path:
    from pytest_cloudbench.providers.line import TO_THIS_MACHINE
    from pytest_cloudbench.results import lines, rows
    from pytest_cloudbench.results.machine import THIS_MACHINE
    from pytest_cloudbench.support import redact

    origin = {
        "host": host.name if host is not None else THIS_MACHINE,
        "key": rows.identify(host.command) if host is not None else rows.identify(),
        "provider": TO_THIS_MACHINE if provider is None else redact.mask_named(provider),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return lines.add_line(folder, origin | line.plain())


def describe_line(line: AccessLine) -> str:
    """Return a line in words."""
    parts = list[str]()
    if line.round_trip_min_s is not None and line.round_trip_median_s is not None:
        best, usual = (f"{trip_s * 1e3:.3g} ms" for trip_s in (line.round_trip_min_s, line.round_trip_median_s))
        parts.append(f"round trip {best}, median {usual} ({line.connects} to {line.to})")
    parts += [
        f"{name} {_describe_transfer(transfer)}"
        for name, transfer in (("up", line.up), ("down", line.down))
        if transfer
    ]
    return "; ".join([*parts, *line.problems])


def _describe_transfer(transfer: Mapping[str, Any]) -> str:
    from pytest_cloudbench.report.hosts import format_rate

    moved = f"{transfer['moved_bytes'] / 1e6:.3g} MB in {transfer['took_s']:.2g} s"
    return f"{format_rate(transfer['bytes_per_s'])} ({moved}, ended by {transfer['ended_by']})"


COMMANDS: Sequence[Command] = (
    Command(
        "line",
        measure,
        "measure the access line of hosts, or of this machine",
        "Measure how far a provider is from each host (TCP connects), and what the line carries up and down (files "
        "that are removed again). Without --provider, the connection of each host to this machine.",
        (
            argument("file", metavar="HOSTS.toml", nargs="?", help="a table of hosts (default: this machine)"),
            argument("--provider", metavar="SPEC", help="the other end of the line"),
            argument("--seconds", type=float, default=10.0, metavar="S", help="about the most for each direction (10)"),
            argument("--mib", type=int, default=16, metavar="N", help="the most MiB in each direction (16)"),
            argument("--connects", type=int, default=10, metavar="N", help="round trips (10)"),
            argument("--patience", type=float, default=20.0, metavar="S", help="the longest silence of a host (20)"),
            argument("--yes", action="store_true", help="move these bytes with a real account, too"),
        ),
    ),
)
