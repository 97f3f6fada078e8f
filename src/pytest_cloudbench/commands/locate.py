"""The command ``cloudbench locate``: who runs the servers of a name, and where they are."""

from __future__ import annotations

import argparse
import ipaddress
import json
import math
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cloudbench.commands.command import Command, argument, escape_lines, output_width, print_line
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.support import opening
from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:
    from pytest_cloudbench.lab.locating import LocateSettings, LocateTables
    from pytest_cloudbench.net.locate.placing import Location
    from pytest_cloudbench.net.locate.survey import NameSeen, ServerSurvey

_MOST_BYTES = 64 * opening.MIB


def locate(options: argparse.Namespace) -> int:
    """Print where servers are. Returns 0 if the place of each name is known, and otherwise 1. Raises UsageError."""
    from pytest_cloudbench.lab import locating
    from pytest_cloudbench.report import locations as printed
    from pytest_cloudbench.support import extras

    if options.update is not None:
        from pytest_cloudbench.commands.locate_update import update

        return update(options.update)
    modes = [bool(options.names or options.content), options.capture is not None, bool(options.judge)]
    if sum(modes) != 1:
        raise UsageError("expected names, or --capture FILE, or --judge FILE...: one of the three")
    if not options.judge:
        extras.require_extra("locate", "locate")
    tables = locating.LocateTables()
    survey = _read_surveys(options.judge) if options.judge else _take_survey(options, tables)
    locations, left_out = tables.judge(survey)
    stored = _save(survey, locations, options, tables) if options.save is not None else None
    if options.json:
        print_line(json.dumps(locating.describe_json(survey, locations, left_out), indent=1))
    else:
        for line in printed.format_names(printed.summarize_names(survey, locations), output_width()):
            print_line(line)
        remarks = [*printed.format_remarks(survey, locations, left_out)]
        if not (options.judge or options.cloudbench_yes):
            remarks += _offer_more(survey, len(options.hosts_read) + 1)
        for remark in remarks:
            for line in textwrap.wrap(escape_lines(remark), output_width(), subsequent_indent="  "):
                print_line(line)
        if stored is not None:
            print_line(f"stored in {stored}, and with each run of providers with these names from now on")
    has_addresses = bool(survey.names) and all(seen.addresses for seen in survey.names.values())
    return 0 if has_addresses and all(row.place != "unknown" for row in locations.values()) else 1


def _take_survey(options: argparse.Namespace, tables: LocateTables) -> ServerSurvey:
    from pytest_cloudbench.lab.locating import survey_servers

    names = _read_capture(options.capture) if options.capture is not None else _check_names(_list_names(options))
    settings = _make_settings(options, tables)
    options.hosts_read = settings.hosts
    return survey_servers(names, settings, tables)


def _make_settings(options: argparse.Namespace, tables: LocateTables) -> LocateSettings:
    """Return the settings that the options name, after checking them. Raises UsageError."""
    from pytest_cloudbench.fleet.hosts.table import read_hosts
    from pytest_cloudbench.lab import locating
    from pytest_cloudbench.net.locate import resolve
    from pytest_cloudbench.net.locate.gazetteer import parse_place
    from pytest_cloudbench.net.locate.rdap import Bootstrap

    if not (math.isfinite(options.rate) and options.rate > 0):
        raise UsageError(f"--rate {options.rate:g}: expected questions a second, more than 0")
    if not 0 < options.port < 65536:
        raise UsageError(f"--port {options.port}: expected a number from 1 to 65535")
    hosts = read_hosts(options.cloudbench_hosts) if options.cloudbench_hosts is not None else []
    for host in hosts:
        locating.place_of_host(host, tables.cities)  # raises for an unknown place, before any server is asked
    path = options.resolvers
    resolvers = resolve.list_system_resolvers() if path is None else resolve.read_resolvers(_read(path), str(path))
    if not resolvers and not all(map(locating.is_address, _list_names(options))):
        raise UsageError("this system names no DNS resolver: list some with --resolvers FILE")
    subnets = [] if options.subnets is None else resolve.read_subnets(_read(options.subnets), str(options.subnets))
    rdap_text = _read(options.rdap) if options.rdap is not None else locating.read_table("rdap.json")
    bootstrap = Bootstrap(rdap_text, str(options.rdap or "rdap.json"))
    return locating.LocateSettings(
        tuple(resolvers), resolve.Manners(options.rate), tuple(subnets), tuple(hosts),
        parse_place(options.here, tables.cities, "--here") if options.here is not None else None,
        options.port, options.cloudbench_yes,
        bootstrap if options.rdap is not None or options.cloudbench_yes else None, options.rdap is not None,
        content=tuple(options.content),
    )  # fmt: skip


def _list_names(options: argparse.Namespace) -> list[str]:
    """Return the names among the arguments, and those in the URLs of content. Raises UsageError."""
    from pytest_cloudbench.net.locate.content import parse_url

    hosts = (parse_url(url).hostname or "" for url in options.content)
    return [*dict.fromkeys([*options.names, *hosts])]


def _check_names(names: list[str]) -> Mapping[str, NameSeen]:
    from pytest_cloudbench.lab.locating import is_address
    from pytest_cloudbench.net.locate.resolve import check_name
    from pytest_cloudbench.net.locate.survey import NameSeen

    addresses = {}
    for name in names:
        if is_address(name):
            address = str(ipaddress.ip_address(name))
            if "%" in address:
                raise UsageError(f"{name!r} is an address in one network: expected one that is the same everywhere")
            addresses[address] = NameSeen([address])
        else:
            addresses[check_name(name)] = NameSeen([])
    return addresses


def _read_capture(path: Path) -> Mapping[str, NameSeen]:
    """Return the names of servers in a capture with their addresses. Name resolution and multicast are left out."""
    from pytest_cloudbench.net import dissect
    from pytest_cloudbench.net.traffic import analyze
    from pytest_cloudbench.net.traffic.owners import leads_to_server
    from pytest_cloudbench.support import extras

    extras.require_extra("capture", "locate --capture")
    with dissect.open_capture(path) as (buffer, release):
        analysis = analyze(buffer, source=str(path), release=release)
        if analysis.validity.verdict == "invalid":
            reason = f"cloudbench: {path}: servers may be missing: {analysis.validity.reasons[0]}"
            sys.stderr.write(f"{escape_lines(reason)}\n")
        flows = [(facts.names[0], facts.address) for facts in analysis.facts if leads_to_server(facts.flow)]
        del analysis, buffer
    return name_servers(flows, path)


def name_servers(flows: list[tuple[str, str]], path: Path) -> Mapping[str, NameSeen]:
    """Return the addresses of each name, as flows show them. Raises UsageError if there are none."""
    from pytest_cloudbench.net.locate.survey import NameSeen

    addresses: dict[str, list[str]] = {}
    for name, address in flows:
        if address not in addresses.setdefault(name, []):
            addresses[name].append(address)
    if not addresses:
        raise UsageError(f"{path}: has no flow to a server")
    return {name: NameSeen(seen_addresses) for name, seen_addresses in addresses.items()}


def _read_surveys(paths: list[Path]) -> ServerSurvey:
    from pytest_cloudbench.net.locate.survey import decode_survey, merge_surveys

    return merge_surveys([decode_survey(_read(path).encode(), str(path)) for path in paths])


def _save(
    survey: ServerSurvey, locations: Mapping[str, Location], options: argparse.Namespace, tables: LocateTables
) -> Path | None:
    """Write a survey, and store each name's location for later runs. Returns its file, None if no location is known."""
    from pytest_cloudbench.net.locate.gazetteer import parse_place
    from pytest_cloudbench.net.locate.summary import summarize_location
    from pytest_cloudbench.net.locate.survey import encode_survey
    from pytest_cloudbench.results.locations import StoredLocations
    from pytest_cloudbench.results.places import results_folder

    try:
        options.save.write_bytes(encode_survey(survey))
    except OSError as error:
        raise UsageError(f"--save {options.save}: {error.strerror}") from error
    here = parse_place(options.here, tables.cities, "--here") if options.here is not None else None
    stored, path = StoredLocations(results_folder()), None
    for name, server in survey.names.items():
        rows = [locations[address] for address in server.addresses if address in locations]
        if location := summarize_location([name], rows, here, survey.taken):
            path = stored.add(location)
    return path


def _read(path: Path) -> str:
    try:
        return opening.read_file(path, _MOST_BYTES).decode()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {opening.explain_error(error)}") from error


def _offer_more(survey: ServerSurvey, points: int) -> list[str]:
    """Return what was not measured and what would measure it. Empty if all was."""
    from pytest_cloudbench.lab.locating import is_own

    others = [address for address in survey.addresses if not is_own(address)]
    if not others:
        return []
    return [
        f"not measured: {format_count(len(others), 'address', 'addresses')} of others; --cloudbench-yes connects ten "
        f"times to each from {format_count(points, 'vantage point')}, traces the way to some, and asks registries for "
        "their owners"
    ]


COMMAND = Command(
    "locate",
    locate,
    "who runs the servers of a name, and where they are",
    "Say who runs the servers of names, where they are as far as that can be known, and how it is known. Asks the "
    "system's resolver alone, and connects to nobody else's servers, unless told to.",
    (
        argument("names", metavar="NAME", nargs="*", help="names or addresses of servers"),
        argument("--capture", metavar="FILE", type=Path, help="the servers of a pcap or pcapng file"),
        argument(
            "--content", metavar="URL", nargs="+", default=[],
            help="files that nobody has read before, to tell a storage from what stands before it",
        ),
        argument("--judge", metavar="FILE", type=Path, nargs="+", help="merge what --save wrote, and ask nobody"),
        argument(
            "--update", metavar="OPERATOR=FILE", nargs="*",
            help="renew the tables of ranges and registries: all, or those of some operators, from their files or URLs",
        ),
        argument("--save", metavar="FILE", type=Path, help="store what was seen, to be merged and judged again"),
        argument("--json", action="store_true", help="print JSON"),
        argument("--here", metavar="PLACE", help="where this machine is: a city, or degrees such as 59.91,10.75"),
        argument(
            "--cloudbench-hosts", metavar="FILE", type=Path,
            help="more vantage points: a table of hosts, with a place in each label `location`",
        ),
        argument("--cloudbench-yes", action="store_true", help="also connect to servers of others, and ask registries"),
        argument("--port", metavar="N", type=int, default=443, help="the port of connects (default: %(default)s)"),
        argument("--resolvers", metavar="FILE", type=Path, help="resolvers to ask instead, one address a line"),
        argument("--subnets", metavar="FILE", type=Path, help="networks of clients to ask for, one a line"),
        argument("--rdap", metavar="FILE", type=Path, help="registries to ask instead, as RFC 9224 lists them"),
        argument(
            "--rate", metavar="N", type=float, default=20.0, help="questions a second to resolvers (default: 20)",
        ),
    ),
)  # fmt: skip
COMMANDS = (COMMAND,)
