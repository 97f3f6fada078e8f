"""Places in names from reverse DNS, found by an operator's own pattern or as mere hints.

Nearly half of all words of three letters are codes of airports, among them cdn, api, dns and box. So a code counts only
where an operator's whole name has a known form, and then only if round trips allow the place. Any other code is a hint.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import NamedTuple

from pytest_cloudbench.net.locate.gazetteer import Airports
from pytest_cloudbench.net.locate.prefixes import Region
from pytest_cloudbench.net.locate.sphere import Cap, Position

_AIRPORT_KM = 80.0
"""Largest distance from a city's airport to its data centers."""
_CODE = re.compile(r"(?<![a-z])([a-z]{3})-?\d{1,3}(?![a-z]{2})")
_NO_PLACES = frozenset(
    "pop cdn api com dns vps lan vip mta box srv web net www isp van ssl img app db2 sql ftp ntp smtp dev gw1 cpe ppp "
    "dsl adsl pub ext int mx1 log tcp udp vlan bgp edg ae0 icr ccr bbr cor agg".split()
)


class PtrHint(NamedTuple):
    """A place that a name mentions.

    Attributes:
        name: the whole name.
        place: the city or region.
        cap: where that is.
        operator: the operator whose pattern the name matches. Empty for a mere hint.
    """

    name: str
    place: str
    cap: Cap
    operator: str = ""


class PtrPatterns:
    """Patterns of operators' names, from a TOML text, with dictionaries for their codes."""

    def __init__(self, text: str, airports: Airports, regions: Mapping[tuple[str, str], Region]) -> None:
        self._airports, self._regions = airports, regions
        self._operators = [
            (row["name"], [re.compile(pattern) for pattern in row["patterns"]], row.get("places", {}))
            for row in tomllib.loads(text)["operator"]
        ]

    def read(self, name: str) -> PtrHint | None:
        """Return the place that an operator's pattern finds in a name, or None."""
        for operator, patterns, places in self._operators:
            for match in filter(None, (pattern.fullmatch(name) for pattern in patterns)):
                groups = match.groupdict()
                if "region" in groups and (region := self._regions.get((operator, groups["region"]))):
                    return PtrHint(name, region.name, region.cap, operator)
                if "code" in groups and (hint := self._look_up(name, groups["code"], operator, places)):
                    return hint
        return None

    def find_operator(self, name: str) -> str:
        """Return the operator whose pattern a name matches, or an empty text."""
        return next(
            (operator for operator, patterns, _ in self._operators if any(p.fullmatch(name) for p in patterns)), ""
        )

    def guess(self, name: str) -> list[PtrHint]:
        """Return airport codes in a name as hints, each of which may well be wrong."""
        labels = ".".join(name.split(".")[:-2])
        codes = [code for code in _CODE.findall(labels) if code not in _NO_PLACES]
        return [hint for hint in (self._look_up(name, code, "", {}) for code in dict.fromkeys(codes)) if hint]

    def _look_up(self, name: str, code: str, operator: str, places: Mapping[str, object]) -> PtrHint | None:
        operator_place = places.get(code)
        if isinstance(operator_place, list):
            north, east, city = operator_place
            return PtrHint(name, city, Cap(Position(north, east), _AIRPORT_KM), operator)
        airport = self._airports.find(code)
        return PtrHint(name, airport[0], Cap(airport[1], _AIRPORT_KM), operator) if airport else None
