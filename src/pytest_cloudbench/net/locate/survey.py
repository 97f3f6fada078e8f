"""Stored observations of names and servers. Surveys of several hosts and days can be merged and judged again.

A survey holds observations and no conclusions, so a better rule or another vantage point needs no new queries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address

import msgspec

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.locate.discs import Disc
from pytest_cloudbench.net.locate.placing import AddressEvidence
from pytest_cloudbench.net.locate.prefixes import CloudRange
from pytest_cloudbench.net.locate.sphere import Position

SCHEMA = 2
"""1: the first. 2: content that was read, and routers on the way."""
MOST_ADDRESSES = 256
"""The most addresses that a survey asks about. More would no longer be a few polite questions."""


class VantagePoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host and the round trips that it measured, in milliseconds, by address.

    Attributes:
        name: the host's.
        latitude_deg, longitude_deg, off_km: where it is, and how far from there at most. None if that is not known.
        rtts: all round trips to each address.
        has_proxy: whether something near it answered for an address of nobody. None if that was not tried.
        problem: why it measured nothing, or empty.
    """

    name: str
    latitude_deg: float | None = None
    longitude_deg: float | None = None
    off_km: float = 0.0
    rtts: dict[str, list[float]] = {}
    has_proxy: bool | None = None
    problem: str = ""


class NameSeen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All addresses that resolvers gave for a name, and the phases of a client's work in which it was contacted.

    Attributes:
        addresses: of both families.
        phases: such as ``start``, ``change`` and ``idle``.
        heeds_subnets: whether the answers depended on the client's network. None if that is not known.
    """

    addresses: list[str]
    phases: list[str] = []
    heeds_subnets: bool | None = None


class OwnerSeen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer of a registry about an address."""

    name: str = ""
    country: str = ""
    problem: str = ""


class ContentSeen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The times and rates of several reads of content that was new to a server. The URL is not stored.

    Attributes:
        rtt_ms: the shortest round trip to the server. None if it does not answer.
        first_ms: from the request, on an open connection, to the first byte of content, when it was read first.
        again_ms: the same for later reads, the shortest of them.
        first_bytes_per_s, again_bytes_per_s: how fast the rest came. None if all of it came at once.
        is_cached: whether a header says that another server than the origin answered.
        problem: why there are no times. Empty if there are.
    """

    rtt_ms: float | None = None
    first_ms: float | None = None
    again_ms: float | None = None
    first_bytes_per_s: float | None = None
    again_bytes_per_s: float | None = None
    is_cached: bool = False
    problem: str = ""


class HopSeen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A router on the way from one vantage point, ``ttl`` hops away. See ``net.locate.trace``."""

    ttl: int
    address: str
    rtt_ms: float


class ServerSurvey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All observations of one time.

    Attributes:
        taken: when, as a date and time of UTC.
        names: the names that were looked up.
        vantages: who measured round trips.
        ptr: the names of addresses by reverse DNS.
        owners: the owners of addresses.
        resolvers: resolvers that cannot be trusted, and why.
        schema: see ``SCHEMA``.
        content: what was read from servers, by address.
        hops: routers on the way to servers, by address.
    """

    taken: str
    names: dict[str, NameSeen]
    vantages: list[VantagePoint] = []
    ptr: dict[str, list[str]] = {}
    owners: dict[str, OwnerSeen] = {}
    resolvers: dict[str, str] = {}
    schema: int = SCHEMA
    content: dict[str, list[ContentSeen]] = {}
    hops: dict[str, list[HopSeen]] = {}

    @property
    def addresses(self) -> list[str]:
        """All addresses, each once, in the order of names."""
        return [*dict.fromkeys(address for name_seen in self.names.values() for address in name_seen.addresses)]

    @property
    def asked_addresses(self) -> list[str]:
        """The addresses that may be asked about."""
        return self.addresses[:MOST_ADDRESSES]

    @property
    def skipped_addresses(self) -> list[str]:
        """The addresses beyond those, of which no vantage point has measured anything."""
        measured = {address for vantage in self.vantages for address in vantage.rtts}
        return [address for address in self.addresses[MOST_ADDRESSES:] if address not in measured]


def encode_survey(survey: ServerSurvey) -> bytes:
    """Return a survey as a line of JSON."""
    return msgspec.json.encode(survey) + b"\n"


def decode_survey(data: bytes, source: str) -> ServerSurvey:
    """Read what ``encode_survey`` wrote. Raises UsageError, in one line, for anything else."""
    try:
        survey = msgspec.json.decode(data, type=ServerSurvey)
        for address in survey.addresses:
            ip_address(address)
        for vantage in survey.vantages:
            _check_place(vantage)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"{source}: is not a survey stored by `cloudbench locate --save` ({error})") from error
    if survey.schema > SCHEMA:
        raise UsageError(f"{source}: has schema {survey.schema}, and this version reads {SCHEMA}: install a newer one")
    return survey


def _check_place(vantage: VantagePoint) -> None:
    """Raise ValueError if the stated position of a vantage point does not exist."""
    north, east = vantage.latitude_deg or 0.0, vantage.longitude_deg or 0.0
    if not (abs(north) <= 90 and abs(east) <= 180 and vantage.off_km >= 0):
        raise ValueError(f"{vantage.name} is at {north:g},{east:g} within {vantage.off_km:g} km")


def merge_surveys(surveys: Sequence[ServerSurvey]) -> ServerSurvey:
    """Return all surveys as one. A later one's owners and names of addresses replace those of an earlier one."""
    ordered = sorted(surveys, key=lambda survey: survey.taken)
    names: dict[str, NameSeen] = {}
    for survey in ordered:
        for name, name_seen in survey.names.items():
            names[name] = _merge_names(names[name], name_seen) if name in names else name_seen
    return ServerSurvey(
        ordered[-1].taken, names, [vantage for survey in ordered for vantage in survey.vantages],
        {address: row for survey in ordered for address, row in survey.ptr.items()},
        {address: row for survey in ordered for address, row in survey.owners.items()},
        {resolver: row for survey in ordered for resolver, row in survey.resolvers.items()},
        content={
            address: [row for survey in ordered for row in survey.content.get(address, [])]
            for address in dict.fromkeys(address for survey in ordered for address in survey.content)
        },
        hops={address: row for survey in ordered for address, row in survey.hops.items()},
    )  # fmt: skip


def _merge_names(one: NameSeen, other: NameSeen) -> NameSeen:
    heeds = True if True in (one.heeds_subnets, other.heeds_subnets) else one.heeds_subnets
    return NameSeen(
        [*dict.fromkeys(one.addresses + other.addresses)], [*dict.fromkeys(one.phases + other.phases)], heeds
    )


def collect_evidence(
    survey: ServerSurvey, find_range: Callable[[str], CloudRange | None]
) -> tuple[list[AddressEvidence], Mapping[str, str]]:
    """Return what is known of each address, and vantage points that do not count, with the reason.

    One name at two places is two vantage points. The name of the later one then includes its place.
    """
    discs: dict[str, list[Disc]] = defaultdict(list)
    left_out = dict[str, str]()
    places: dict[str, Position] = {}
    for vantage in survey.vantages:
        if vantage.problem:
            left_out[vantage.name] = vantage.problem
            continue
        if vantage.latitude_deg is None or vantage.longitude_deg is None:
            left_out[vantage.name] = "nobody said where it is"
            continue
        position = Position(vantage.latitude_deg, vantage.longitude_deg)
        is_same = places.setdefault(vantage.name, position) == position
        name = vantage.name if is_same else f"{vantage.name} at {position[0]:g},{position[1]:g}"
        for address, rtts in vantage.rtts.items():
            if rtts:
                discs[address].append(Disc(name, position, min(rtts), vantage.off_km, vantage.has_proxy))
    evidences = [
        AddressEvidence(
            address, tuple(discs[address]), tuple(survey.ptr.get(address, ())), find_range(address),
            survey.owners[address].name if address in survey.owners else "", tuple(survey.content.get(address, ())),
            _name_last_hops(survey, address),
        )
        for address in survey.addresses
    ]  # fmt: skip
    return evidences, left_out


def _name_last_hops(survey: ServerSurvey, address: str) -> tuple[str, ...]:
    """Return the names of the routers that are next to a server, the nearest first."""
    nearest = sorted(survey.hops.get(address, []), key=lambda hop: hop.ttl, reverse=True)[:_LAST_HOPS]
    return tuple(name for hop in nearest for name in survey.ptr.get(hop.address, ()))


_LAST_HOPS = 2
"""Number of routers next to a server. Those further away are on the user's side, or in between."""
