"""Ranges of addresses that large clouds publish: the operator, the region and the product of an address.

The text of a table has a line for each group of ranges, ``OPERATOR<tab>REGION<tab>PRODUCT<tab>KIND``, followed by the
group's ranges, one per line. The kind is ``edge``, ``storage`` or empty. Lines that begin with # are comments, and the
first of them has the date.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from socket import AF_INET, AF_INET6, inet_pton
from typing import NamedTuple, TypeVar

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.locate.sphere import Cap, Position

_T = TypeVar("_T")


class CloudRange(NamedTuple):
    """An operator's description of a range of its addresses. Region, product and kind may be empty."""

    operator: str
    region: str = ""
    product: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Region:
    """The location of a cloud's region as its operator names it, and a cap around all points that the name may mean."""

    name: str
    cap: Cap


class CloudRanges:
    """All published ranges, for looking up single addresses.

    Attributes:
        dated: when they were published.
    """

    def __init__(self, text: str, source: str) -> None:
        """Read a table. Raises UsageError that names the first invalid line."""
        self.dated = ""
        self._groups: list[CloudRange] = []
        self._rows: dict[tuple[int, int], dict[int, list[int]]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("#"):
                self.dated = self.dated or line.strip("# ")
            elif "\t" in line:
                self._groups.append(CloudRange(*line.split("\t")[:4]))
            elif line:
                self._add_range(line, f"{source}:{number}")

    def _add_range(self, line: str, where: str) -> None:
        # Not ip_network, which takes ten times as long for each of 35,000 lines.
        text, _, length = line.partition("/")
        version, bits = (6, 128) if ":" in text else (4, 32)
        try:
            number = int.from_bytes(inet_pton(AF_INET6 if version == 6 else AF_INET, text), "big")
            shift = bits - int(length)
            if not 0 <= shift <= bits:
                raise ValueError
        except (OSError, ValueError) as error:
            raise UsageError(f"{where}: {line[:50]}: expected a range of addresses such as 192.0.2.0/24") from error
        if not self._groups:
            raise UsageError(f"{where}: {line}: comes before the line that names its operator")
        by_number = self._rows.setdefault((version, shift), {})
        by_number.setdefault(number >> shift, []).append(len(self._groups) - 1)

    def find(self, address: str) -> CloudRange | None:
        """Return what is published about an address, or None.

        Ranges are nested. Each of operator, region, and product with kind comes from the smallest range that states it,
        and is empty if ranges of the same size disagree.
        """
        ip = ipaddress.ip_address(address)
        groups: list[list[CloudRange]] = []
        for (version, shift), by_number in sorted(self._rows.items()):
            if version == ip.version and (numbers := by_number.get(int(ip) >> shift)):
                groups.append([self._groups[number] for number in numbers])
        if not groups:
            return None
        kinds = _find_agreed({(row.product, row.kind) for row in rows if row.product or row.kind} for rows in groups)
        region = _find_agreed({row.region for row in rows if row.region} for rows in groups)
        operator = _find_agreed({row.operator for row in rows} for rows in groups) or ""
        return CloudRange(operator, region or "", *(kinds or ("", "")))


def _find_agreed(sets: Iterable[set[_T]]) -> _T | None:
    """Return the only member of the first nonempty set, or None if it has several."""
    first = next((values for values in sets if values), set())
    return first.pop() if len(first) == 1 else None


def parse_regions(text: str) -> Mapping[tuple[str, str], Region]:
    """Read the table of places: operator, region, latitude, longitude, the radius in km, and the operator's name."""
    rows = (line.split("\t") for line in text.splitlines() if line and not line.startswith("#"))
    return {
        (operator, region): Region(name, Cap(Position(float(latitude), float(longitude)), float(radius)))
        for operator, region, latitude, longitude, radius, name in rows
    }
