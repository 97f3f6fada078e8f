"""The survey that locates servers by name: it asks resolvers, registries and vantage points, and judges the answers.

Servers of others are only asked if the user agrees: ten connects to each address from each vantage point, and one
question about each network. Without that, the user's own resolver and what operators publish have to suffice.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cloudbench import data
from pytest_cloudbench.fleet.hosts.table import Host
from pytest_cloudbench.fleet.hosts.vantages import measure_from_hosts
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.locate import rtt
from pytest_cloudbench.net.locate.gazetteer import Airports, Cities, parse_place
from pytest_cloudbench.net.locate.placing import Location, PlaceJudge
from pytest_cloudbench.net.locate.prefixes import CloudRanges, parse_regions
from pytest_cloudbench.net.locate.ptr import PtrPatterns
from pytest_cloudbench.net.locate.sphere import Cap
from pytest_cloudbench.net.locate.summary import summarize_location
from pytest_cloudbench.net.locate.survey import (
    ContentSeen,
    HopSeen,
    NameSeen,
    OwnerSeen,
    ServerSurvey,
    VantagePoint,
    collect_evidence,
)
from pytest_cloudbench.support import opening

if TYPE_CHECKING:
    from pytest_cloudbench.net.locate.rdap import Bootstrap
    from pytest_cloudbench.net.locate.resolve import IPNetwork, Manners, Resolver

_MOST_TRACES = 16
_CONNECTS = 10
_HERE = "this machine"
_GAP_S = 0.02
_MOST_TABLE_BYTES = 64 * opening.MIB


@dataclass(frozen=True, slots=True)
class LocateSettings:
    """Settings of a survey of locations: the allowed queries, and the services that answer them.

    Attributes:
        resolvers: DNS servers to ask. Empty to ask none.
        subnets: networks of clients. Names are asked for as if from each of them (RFC 7871).
        manners: how often resolvers are asked.
        hosts: vantage points besides this machine. Their label ``location`` says where they are.
        here: where this machine is, or None if unknown.
        port: the port to connect to.
        is_agreed: servers and registries that are not the user's own may be asked.
        bootstrap: registries to ask. None asks none.
        asks_private: the registries answer for private networks, too.
        controls: an address that nobody has, for each version of IP, to find proxies. Empty tries none.
        patience_s: how long a host may take to answer.
        content: URLs of files that nobody has read before.
    """

    resolvers: tuple[Resolver, ...]
    manners: Manners
    subnets: tuple[IPNetwork, ...] = ()
    hosts: tuple[Host, ...] = ()
    here: Cap | None = None
    port: int = 443
    is_agreed: bool = False
    bootstrap: Bootstrap | None = None
    asks_private: bool = False
    controls: Mapping[int, str] = field(default_factory=lambda: rtt.CONTROL_ADDRESSES)
    patience_s: float = 60.0
    content: tuple[str, ...] = ()


def survey_servers(names: Mapping[str, NameSeen], settings: LocateSettings, tables: LocateTables) -> ServerSurvey:
    """Return a survey of names and their addresses. Addresses that are already known are kept."""
    host_names = {name: seen for name, seen in names.items() if not is_address(name)}
    names_seen, problems = _ask_names(host_names, settings)
    names_seen = {**{name: names[name] for name in names}, **names_seen}
    survey = ServerSurvey(datetime.now(UTC).isoformat(timespec="seconds"), names_seen)
    addresses = survey.asked_addresses
    allowed = [address for address in addresses if settings.is_agreed or is_own(address)]
    trusted = [resolver for resolver in settings.resolvers if str(resolver) not in problems]
    # Of a trace, only the names of routers are used, which need a resolver.
    traced = [address for address in allowed if not is_own(address)][:_MOST_TRACES] if trusted else []
    hops = {address: _trace(address) for address in traced}
    routers = dict.fromkeys(hop.address for row in hops.values() for hop in row[-2:])
    return ServerSurvey(
        survey.taken, names_seen, _measure(allowed, settings, tables),
        _ask_ptr([*addresses, *routers], trusted, settings.manners, tables),
        _ask_owners(allowed, settings, tables), problems, content=_read_content(names_seen, allowed, settings),
        hops=hops,
    )  # fmt: skip


def _trace(address: str) -> list[HopSeen]:
    from pytest_cloudbench.net.locate.trace import trace_route

    try:
        return [HopSeen(*hop) for hop in trace_route(address)]
    except OSError:  # a policy of this machine forbids it, and it would only give a hint
        return []


def _read_content(
    names: Mapping[str, NameSeen], allowed: Sequence[str], settings: LocateSettings
) -> dict[str, list[ContentSeen]]:
    """Read each URL from the first server of its name only. After that, the others may have the file already."""
    from pytest_cloudbench.net.locate.content import parse_url, read_content

    rows = dict[str, list[ContentSeen]]()
    for url in settings.content:
        seen = names.get(parse_url(url).hostname or "")
        if address := next((address for address in (seen.addresses if seen else ()) if address in allowed), ""):
            reading = read_content(url, address, settings.manners.timeout_s)
            rows.setdefault(address, []).append(reading)
    return rows


def is_address(name: str) -> bool:
    """Return whether a name is an address itself."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_own(address: str) -> bool:
    """Return whether an address is of this machine. A private one may be anybody's, for example in a capture."""
    return ipaddress.ip_address(address).is_loopback


def _ask_names(names: Mapping[str, NameSeen], settings: LocateSettings) -> tuple[dict[str, NameSeen], dict[str, str]]:
    """Ask resolvers for the addresses of names.

    Returns what is known of each name then, and for each resolver that is not believed the reason.
    """
    if not (names and settings.resolvers):
        return {}, {}
    from pytest_cloudbench.net.locate import resolve

    times = 2 if settings.subnets else 1  # ``find_heeding_name`` compares two replies to each question
    replies = resolve.ask_resolvers(
        [*names], settings.resolvers, settings.subnets, times=times, manners=settings.manners
    )  # fmt: skip

    def certifies(address: str, name: str) -> bool | None:
        if not (settings.is_agreed or is_own(address)):
            return None
        return resolve.has_certificate(address, name, settings.port, settings.manners.timeout_s)

    liars = resolve.find_liars(replies, settings.resolvers, manners=settings.manners, certifies=certifies)
    good = [reply for reply in replies if reply.resolver not in liars]
    heeding = set[str | None]()
    for resolver in settings.resolvers if settings.subnets else ():
        heeding_name, more_replies = resolve.find_heeding_name(good, resolver, manners=settings.manners)
        heeding, good = heeding | {heeding_name}, [*good, *more_replies]
    addresses = {name: [*known.addresses] for name, known in names.items()}
    for reply in good:
        addresses[reply.name] += reply.addresses
    names_seen = {
        name: NameSeen([*dict.fromkeys(addresses[name])], known.phases, True if name in heeding else None)
        for name, known in names.items()
    }
    return names_seen, {str(resolver): problem for resolver, problem in liars.items()}


def _ask_ptr(
    addresses: Sequence[str], resolvers: Sequence[Resolver], manners: Manners, tables: LocateTables
) -> dict[str, list[str]]:
    """Return the names of addresses by reverse DNS.

    Whoever holds an address may give it any name. So a name in the form of an operator's is left out if it leads to
    other addresses only.
    """
    if not (addresses and resolvers):
        return {}
    from pytest_cloudbench.net.locate import resolve

    names_by_address = resolve.look_up_ptr(addresses, resolvers[0], manners=manners)
    checked = dict.fromkeys(
        name for names in names_by_address.values() for name in names if tables.has_form_of_operator(name)
    )
    replies = resolve.ask_resolvers([*checked], resolvers[:1], manners=manners)
    leads_to = {reply.name: reply.addresses for reply in replies if reply.addresses}
    return {
        address: [name for name in names if name not in leads_to or address in leads_to[name]]
        for address, names in names_by_address.items()
    }


def _ask_owners(addresses: Sequence[str], settings: LocateSettings, tables: LocateTables) -> dict[str, OwnerSeen]:
    """Ask registries for the owners of addresses that are in no published range."""
    if settings.bootstrap is None:
        return {}
    from pytest_cloudbench.net.locate.rdap import OwnerClient

    client = OwnerClient(settings.bootstrap, asks_private=settings.asks_private)
    unknown = [address for address in addresses if tables.ranges.find(address) is None]
    owners = {address: client.find_owner(address) for address in unknown}
    return {address: OwnerSeen(row.name, row.country, row.problem) for address, row in owners.items()}


def _measure(addresses: Sequence[str], settings: LocateSettings, tables: LocateTables) -> list[VantagePoint]:
    """Measure from this machine and then from all hosts at once, so that no server gets a burst from one place."""
    if not addresses:
        return []
    request = {
        "addresses": [*addresses], "port": settings.port, "connects": _CONNECTS, "gap_s": _GAP_S, "timeout_s": 2.0,
        "controls": [
            control for version, control in settings.controls.items() if _may_have_proxy(addresses, version)
        ],
    }  # fmt: skip
    vantages = []
    if settings.here is not None or not settings.hosts:
        vantages.append(_to_vantage(_HERE, settings.here, rtt.measure(request), ""))
    answers = measure_from_hosts(settings.hosts, request, settings.patience_s)
    for host, (answer, problem) in zip(settings.hosts, answers, strict=True):
        vantages.append(_to_vantage(host.name, place_of_host(host, tables.cities), answer, problem))
    return vantages


def _may_have_proxy(addresses: Sequence[str], version: int) -> bool:
    return any(ip.version == version and not ip.is_loopback for ip in map(ipaddress.ip_address, addresses))


def place_of_host(host: Host, cities: Cities) -> Cap | None:
    """Return where a host is, as its label ``location`` says, or None without one. Raises UsageError."""
    text = host.labels.get("location", "")
    return parse_place(text, cities, f"host {host.name}: location") if text else None


def _to_vantage(name: str, place: Cap | None, answer: Mapping[str, Any], problem: str) -> VantagePoint:
    latitude, longitude = place.center if place is not None else (None, None)
    off_km = place.radius_km if place is not None else 0.0
    return VantagePoint(
        name, latitude, longitude, off_km, answer.get("rtts", {}), answer.get("has_proxy"), problem
    )  # fmt: skip


class LocateTables:
    """Published tables of addresses and places, as shipped or as this user has renewed them."""

    def __init__(self) -> None:
        self.cities = Cities(data.read_locate_table("cities.txt"))
        self._regions = parse_regions(data.read_locate_table("regions.txt"))
        airports = Airports(data.read_locate_table("airports.txt"))
        self._patterns = PtrPatterns(data.read_locate_table("ptr.toml"), airports, self._regions)
        self.ranges = CloudRanges(read_table("prefixes.txt"), "prefixes.txt")

    def has_form_of_operator(self, name: str) -> bool:
        """Return whether a name by reverse DNS has a form that an operator uses."""
        return bool(self._patterns.find_operator(name))

    def judge(self, survey: ServerSurvey) -> tuple[dict[str, Location], Mapping[str, str]]:
        """Return the location of each address, and vantage points that do not count, with the reason."""
        evidences, left_out = collect_evidence(survey, self.ranges.find)
        judge = PlaceJudge(self.cities, self._patterns, self._regions)
        return {evidence.address: judge.locate(evidence) for evidence in evidences}, left_out


def renewed_folder() -> Path:
    """Return the folder of the tables that this user has renewed."""
    import platformdirs

    return platformdirs.user_data_path("pytest-cloudbench") / "locate"


def read_table(name: str) -> str:
    """Return the text of a table: the user's own if there is one, or what ships. Raises UsageError."""
    own = renewed_folder() / name
    if not own.is_file():
        return data.read_locate_table(name)
    try:
        return opening.read_file(own, _MOST_TABLE_BYTES).decode()
    except (OSError, ValueError) as error:
        why = opening.explain_error(error)
        raise UsageError(f"{own}: cannot be read ({why}): remove it, or run cloudbench locate --update") from error


def describe_json(
    survey: ServerSurvey, locations: Mapping[str, Location], left_out: Mapping[str, str]
) -> dict[str, Any]:
    """Return everything that is known as plain data."""
    return {
        "taken": survey.taken,
        "names": {name: json.loads(_encode(seen)) for name, seen in survey.names.items()},
        "servers": {address: _plain_location(location) for address, location in locations.items()},
        "left_out": dict(left_out),
        "resolvers": dict(survey.resolvers),
    }


def _encode(value: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(value)


def _plain_location(location: Location) -> dict[str, Any]:
    return {
        "operator": location.operator, "operator_by": location.operator_by, "place": location.place,
        "region": _plain_cap(location.cap), "known_by": location.by, "vantage_points": location.vantages,
        "layer": location.layer, "layer_by": location.layer_by,
        "sites": [_plain_cap(cap) for cap in location.sites], "hints": [*location.hints],
        "left_out": dict(location.left_out),
    }  # fmt: skip


def _plain_cap(cap: Cap | None) -> dict[str, float] | None:
    if cap is None:
        return None
    return {
        "latitude_deg": round(cap.center.latitude_deg, 4), "longitude_deg": round(cap.center.longitude_deg, 4),
        "radius_km": round(cap.radius_km, 1),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocatedServers:
    """Servers of a run and where they are, as plain data for an entry.

    Attributes:
        places: of each server: name, address, operator, place, known_by, layer, vantage_points, and the region if it is
            known: latitude_deg, longitude_deg and radius_km.
        location: of all servers together, for ``location`` of an entry, which later runs then state, too. None if it
            is unknown, or may be that of a proxy.
        rtts_ms: the shortest round trip from this machine to each address.
        notes: what does not count, and why.
    """

    places: list[dict[str, Any]]
    location: dict[str, Any] | None
    rtts_ms: dict[str, float]
    notes: list[str]


def locate_servers(
    names: Mapping[str, NameSeen],
    *,
    here: str = "",
    hosts: Path | None = None,
    is_agreed: bool = False,
    port: int = 443,
) -> LocatedServers:
    """Return the locations of servers with known names and addresses. No resolver is asked.

    Args:
        names: the servers.
        here: where this machine is, or empty.
        hosts: a table of more vantage points, or None.
        is_agreed: servers that are not on this machine may be connected to, and registries asked.
        port: the port to connect to.

    Raises UsageError for a place that nobody knows, and for a bad table.
    """
    from pytest_cloudbench.fleet.hosts.table import read_hosts
    from pytest_cloudbench.net.locate.rdap import Bootstrap
    from pytest_cloudbench.net.locate.resolve import Manners
    from pytest_cloudbench.report.locations import format_remarks

    tables = LocateTables()
    settings = LocateSettings(
        (), Manners(), hosts=tuple(read_hosts(hosts)) if hosts is not None else (),
        here=parse_place(here, tables.cities, "here") if here else None, port=port, is_agreed=is_agreed,
        bootstrap=Bootstrap(read_table("rdap.json"), "rdap.json") if is_agreed else None,
    )  # fmt: skip
    survey = survey_servers(names, settings, tables)
    locations, left_out = tables.judge(survey)
    own = [vantage.rtts for vantage in survey.vantages if vantage.name == _HERE]
    rtts_ms = {address: min(rtts) for rows in own for address, rtts in rows.items() if rtts}
    places = [
        _flat_place(name, locations[address]) for name, seen in survey.names.items() for address in seen.addresses
    ]  # fmt: skip
    location = summarize_location([*names], [*locations.values()], settings.here, survey.taken)
    notes = [*format_remarks(survey, locations, left_out)]
    if location is not None and _may_lead_to_proxy(survey.addresses):
        location = None
        notes = [*notes, "a proxy is set here: what was located may be the proxy, and is not kept for runs"]
    return LocatedServers(places, location, rtts_ms, notes)


def _may_lead_to_proxy(addresses: Sequence[str]) -> bool:
    """Return whether connections to others may end at a proxy that this process is told to use."""
    from urllib.request import getproxies

    has_proxy = bool(getproxies().keys() & {"http", "https", "all"})
    return has_proxy and not all(map(is_own, addresses))


def _flat_place(name: str, location: Location) -> dict[str, Any]:
    row = {
        "name": name, "address": location.address, "operator": location.operator or "unknown", "place": location.place,
        "known_by": location.by, "layer": location.layer, "vantage_points": location.vantages,
    }  # fmt: skip
    return {**row, **(_plain_cap(location.cap) or {})}
