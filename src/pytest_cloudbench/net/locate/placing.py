"""The place of one address: what its operator says, as far as round trips allow it.

What an operator says is more exact than round trips, but it can be old, or about something else than what answers here.
So a place that an operator names is confirmed only if round trips bound the server to a small region that overlaps it,
and it is dropped if they exclude it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pytest_cloudbench.net.locate.discs import Disc, DiscVerdict, is_possible, place_nearest_server, place_server
from pytest_cloudbench.net.locate.gazetteer import Cities
from pytest_cloudbench.net.locate.prefixes import CloudRange, Region
from pytest_cloudbench.net.locate.ptr import PtrPatterns
from pytest_cloudbench.net.locate.sphere import Cap
from pytest_cloudbench.support.wording import format_count

Layer = Literal["edge", "storage", "unknown"]
UNKNOWN: Literal["unknown"] = "unknown"
"""The place of a server about which nothing is known."""


class ContentRow(Protocol):
    """The times and rates at which a server gave content. See ``net.locate.survey.ContentSeen``."""

    @property
    def rtt_ms(self) -> float | None: ...
    @property
    def first_ms(self) -> float | None: ...
    @property
    def first_bytes_per_s(self) -> float | None: ...
    @property
    def again_bytes_per_s(self) -> float | None: ...
    @property
    def is_cached(self) -> bool: ...
    @property
    def problem(self) -> str: ...


@dataclass(frozen=True, slots=True)
class AddressEvidence:
    """All that is known about an address.

    Attributes:
        address: the address.
        discs: the bounds of all vantage points.
        ptr_names: its names by reverse DNS.
        published: the range that holds it among those that operators publish.
        owner: who holds its network, as a registry says, or empty.
        content: what was read from it.
        hop_names: names of the routers next to it.
    """

    address: str
    discs: tuple[Disc, ...] = ()
    ptr_names: tuple[str, ...] = ()
    published: CloudRange | None = None
    owner: str = ""
    content: tuple[ContentRow, ...] = ()
    hop_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Location:
    """Who runs the server at an address, and where it is.

    Attributes:
        address: the address.
        operator: who runs it, or empty. ``operator_by`` says how that is known.
        place: where it is, in words, or ``unknown``.
        cap: the same as a region. None if it is unknown.
        by: how the place is known, or why it is not.
        vantages: how many vantage points have a round trip that counts.
        layer: whether content is stored there, or whether it is an edge in front of a storage.
        layer_by: how that is known, or why it is not.
        sites: where the servers are that share an address.
        hints: places that names mention, which prove nothing.
        left_out: vantage points that do not count, and why.
    """

    address: str
    operator: str
    operator_by: str
    place: str
    cap: Cap | None
    by: str
    vantages: int
    layer: Layer
    sites: tuple[Cap, ...] = ()
    hints: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    layer_by: str = ""


class PlaceJudge:
    """A judge that turns evidence into locations, with the help of published tables."""

    def __init__(self, cities: Cities, patterns: PtrPatterns, regions: Mapping[tuple[str, str], Region]) -> None:
        self._cities, self._patterns, self._regions = cities, patterns, regions

    def locate(self, evidence: AddressEvidence) -> Location:
        """Return who runs a server, and where it is. A place that round trips exclude is never returned."""
        verdict = place_server(evidence.discs)
        if verdict.cap is not None and evidence.published is not None and evidence.published.kind == "edge":
            verdict = place_nearest_server(evidence.discs)
        operator, operator_by = self._find_operator(evidence)
        place, cap, by = self._find_place(evidence, verdict)
        layer, layer_by = judge_content(evidence)
        vague = (name for name in evidence.ptr_names if self._patterns.read(name) is None)
        guesses = [f"{hint.place} in {hint.name}" for name in vague for hint in self._patterns.guess(name)]
        guesses += self._read_hops(evidence)
        return Location(
            evidence.address, operator, operator_by, place, cap, by, verdict.vantages,
            layer, verdict.sites, tuple(dict.fromkeys(guesses)),
            verdict.left_out, layer_by,
        )  # fmt: skip

    def _read_hops(self, evidence: AddressEvidence) -> Iterable[str]:
        """Yield places in names of the routers next to a server, unless round trips exclude the server from there.

        Routers are no vantage points. Their answers may take another way back, so no difference of round trips bounds
        the distance from a router to the server.
        """
        for name in evidence.hop_names:
            exact_hint = self._patterns.read(name)
            for hint in [exact_hint] if exact_hint is not None else self._patterns.guess(name):
                if is_possible(hint.cap, evidence.discs):
                    yield f"{hint.place} in {name}, a router before it"

    def _find_operator(self, evidence: AddressEvidence) -> tuple[str, str]:
        if evidence.published is not None and evidence.published.operator:
            return evidence.published.operator, "published range"
        if evidence.owner:
            return evidence.owner, "registry"
        for name in evidence.ptr_names:
            if operator := self._patterns.find_operator(name):
                return operator, "name of the server"
        return "", ""

    def _find_place(self, evidence: AddressEvidence, verdict: DiscVerdict) -> tuple[str, Cap | None, str]:
        if verdict.sites:
            sites = ", ".join(map(self._cities.describe, verdict.sites))
            return UNKNOWN, None, f"{verdict.reason}: {verdict.detail}; {sites}"
        claims = list(self._list_claims(evidence))
        count = format_count(verdict.vantages, "vantage point")
        for place, cap, source in claims:
            if verdict.cap is not None and is_possible(cap, evidence.discs):
                if verdict.cap.radius_km <= _CONFIRMING_KM:
                    return place, _choose_smaller(cap, verdict.cap), f"{source}, allowed by {count}"
                if source == _PUBLISHED:
                    return place, cap, f"{source}, not confirmed (round trips allow {verdict.cap.radius_km:.0f} km)"
        if verdict.cap is not None:
            is_excluded = claims and not is_possible(claims[0][1], evidence.discs)
            excluded = f"; {claims[0][0]}, by the {claims[0][2]}, is excluded" if is_excluded else ""
            return self._cities.describe(verdict.cap), verdict.cap, f"round trips from {count}{excluded}"
        if verdict.reason == "contradiction" or not claims:
            return UNKNOWN, None, f"{verdict.reason}: {verdict.detail}"
        return self._find_unconfirmed_place(evidence, claims, verdict)

    def _find_unconfirmed_place(
        self, evidence: AddressEvidence, claims: Sequence[tuple[str, Cap, str]], verdict: DiscVerdict
    ) -> tuple[str, Cap | None, str]:
        """Return the place that an operator publishes. A server's name alone is too little evidence."""
        for place, cap, source in claims:
            if source == _PUBLISHED and is_possible(cap, evidence.discs):
                return place, cap, f"{source}, not confirmed ({verdict.reason})"
        return UNKNOWN, None, f"{verdict.reason}: {verdict.detail}"

    def _list_claims(self, evidence: AddressEvidence) -> Iterable[tuple[str, Cap, str]]:
        """Yield the places that an operator names, first by the server's own name, which is the most exact."""
        for name in evidence.ptr_names:
            if hint := self._patterns.read(name):
                yield hint.place, hint.cap, "operator's name of the server"
        if (row := evidence.published) and row.region:
            region = self._regions.get((row.operator, row.region))
            if region is not None:
                yield f"{row.region} ({region.name})", region.cap, _PUBLISHED


_PUBLISHED = "operator's published region"
_CONFIRMING_KM = 1000.0
"""Largest radius of a region that confirms a place. A larger one holds too many cities to confirm any."""


def _choose_smaller(one: Cap, other: Cap) -> Cap:
    return one if one.radius_km <= other.radius_km else other


def find_suspect_vantage(evidences: Iterable[AddressEvidence]) -> str:
    """Return the one vantage point whose removal resolves all contradictions, or an empty text.

    At least two addresses must have contradictions. The place or the clock of the vantage point may be wrong. But a
    service with several addresses that has servers near this vantage point and near all others looks the same. So no
    place may rest on leaving it out.
    """
    measured = [evidence for evidence in evidences if evidence.discs]
    contradicted = [
        e for e in measured if place_server(e.discs).reason not in ("", "too wide", "no round trip", "clock")
    ]
    if len(contradicted) < 2:
        return ""
    names = sorted({disc.vantage for evidence in contradicted for disc in evidence.discs})
    suspects = []
    for name in names:
        remaining_discs = [[disc for disc in evidence.discs if disc.vantage != name] for evidence in contradicted]
        if all(
            len({d.vantage for d in discs}) > 1 and place_server(discs).reason in ("", "too wide")
            for discs in remaining_discs
        ):
            suspects.append(name)
    return suspects[0] if len(suspects) == 1 else ""


def judge_layer(rtt_ms: float, first_bytes_ms: Sequence[float], published: Layer = "unknown") -> tuple[Layer, str]:
    """Return whether content is stored at the server where a connection ends, and how that is known.

    Args:
        rtt_ms: the shortest round trip to the server.
        first_bytes_ms: times from a request on an open connection to the first byte of content that was never
            requested before.
        published: what the operator says.

    The fastest answer bounds how far the storage is behind the server that TCP reaches: 100 km for each ms more
    than a round trip. Slow answers prove nothing, because a slow disc is as likely as a long way.
    """
    if not first_bytes_ms or rtt_ms <= 0:
        return published, "nothing was fetched"
    behind_ms = max(0.0, min(first_bytes_ms) - rtt_ms)
    if behind_ms <= _NEAR_MS:
        return "storage", f"content comes within {behind_ms:.1f} ms more than a round trip"
    if published == "edge":
        return "edge", f"the operator says so, and content takes {behind_ms:.1f} ms more than a round trip"
    return UNKNOWN, f"content takes {behind_ms:.1f} ms more than a round trip: a long way behind, or a slow disc"


_NEAR_MS = 2.0


def judge_content(evidence: AddressEvidence) -> tuple[Layer, str]:
    """Return whether content is stored at an address, by what its operator publishes and what was read from it."""
    kind = evidence.published.kind if evidence.published is not None else ""
    published: Layer = "edge" if kind == "edge" else "storage" if kind == "storage" else UNKNOWN
    reason = "" if published == UNKNOWN else "the operator says so"
    rows = [row for row in evidence.content if row.rtt_ms and row.first_ms]
    if not rows:
        problems = (row.problem for row in evidence.content if row.problem)
        return published, reason or next((f"no content was read: {problem}" for problem in problems), "")
    if published == "storage":
        return published, reason
    if any(row.is_cached for row in rows):
        return published, reason or "a header says that another server than the origin answered"
    rtt_ms = min(row.rtt_ms for row in rows if row.rtt_ms)
    layer, why = judge_layer(rtt_ms, [row.first_ms for row in rows if row.first_ms], published)
    return layer, f"{why}{_compare_rates(rows[-1])}"


def _compare_rates(row: ContentRow) -> str:
    """Return the rates of the first read and of later ones as text. They may differ because of a cache or a disc."""
    if row.first_bytes_per_s is None or row.again_bytes_per_s is None:
        return ""
    return f"; {row.first_bytes_per_s / 1e6:.3g} MB/s at first, {row.again_bytes_per_s / 1e6:.3g} MB/s when read again"
