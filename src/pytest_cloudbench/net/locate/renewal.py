"""Renewal of the table of ranges from the files that operators publish, as the table of sources describes them."""

from __future__ import annotations

import ipaddress
import json
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.locate.prefixes import CloudRange

_FEWEST_RANGES = 3
"""A file with fewer ranges is an error page or something else."""


@dataclass(frozen=True, slots=True)
class RangeSource:
    """A file of an operator's ranges, and the path of each value in it. See ``data/locate/sources.toml``."""

    operator: str
    url: str
    rows: str = ""
    prefix: str = ""
    region: str = ""
    product: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Sources:
    """All files of ranges, the lists of registries, and the kinds of products."""

    ranges: tuple[RangeSource, ...]
    registry_urls: tuple[str, ...]
    kinds: Mapping[str, str]

    def read_ranges(self, source: RangeSource, text: str, where: str) -> list[tuple[CloudRange, str]]:
        """Return each range in a file with its description. Raises UsageError if it is not a file of ranges."""
        try:
            rows = [*self._parse(source, text)]
            for _, prefix in rows:
                ipaddress.ip_network(prefix)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"{where}: is not a file of ranges of {source.operator} ({error})") from error
        if len(rows) < _FEWEST_RANGES:
            raise UsageError(f"{where}: has {len(rows)} ranges of {source.operator}, which cannot be all")
        return rows

    def _parse(self, source: RangeSource, text: str) -> Iterator[tuple[CloudRange, str]]:
        if not source.rows:
            for line in text.split():
                yield CloudRange(source.operator, kind=source.kind), line
            return
        document = json.loads(text)
        for row in [row for key in source.rows.split("|") for row in document.get(key, ())]:
            product = str(_look_up(row, source.product) or "")
            region = str(_look_up(row, source.region) or "").lower()
            known_product = product if product in self.kinds else ""
            group = CloudRange(
                source.operator,
                "" if region == "global" else region,
                known_product,
                self.kinds.get(known_product, source.kind),
            )
            prefixes = _look_up(row, source.prefix)
            for prefix in prefixes if isinstance(prefixes, list) else [prefixes]:
                yield group, str(prefix)


def parse_sources(text: str) -> Sources:
    """Read the table of sources."""
    document = tomllib.loads(text)
    ranges = tuple(RangeSource(**row) for row in document["source"])
    return Sources(ranges, tuple(row["url"] for row in document["registry"]), document["kinds"])


def replace_ranges(table: str, rows: Iterable[tuple[CloudRange, str]], dated: str) -> str:
    """Return a table in which these rows replace all earlier rows of the same operators."""
    groups: dict[CloudRange, list[str]] = defaultdict(list)
    for group, prefix in rows:
        groups[group].append(prefix)
    operators = {group.operator for group in groups}
    lines, is_kept = [f"# {dated}"], True
    for line in table.splitlines():
        if line.startswith("#"):
            continue
        if "\t" in line:
            is_kept = line.split("\t")[0] not in operators
        if is_kept:
            lines.append(line)
    for group, prefixes in sorted(groups.items()):
        lines += ["\t".join(group), *_collapse(prefixes)]
    return "\n".join(lines) + "\n"


def _collapse(prefixes: Iterable[str]) -> Iterator[str]:
    networks = [ipaddress.ip_network(prefix) for prefix in prefixes]
    four = [network for network in networks if isinstance(network, ipaddress.IPv4Network)]
    six = [network for network in networks if isinstance(network, ipaddress.IPv6Network)]
    yield from map(str, ipaddress.collapse_addresses(four))
    yield from map(str, ipaddress.collapse_addresses(six))


def _look_up(row: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path, or None. ``A.B`` is B inside A, ``A|B`` is A or else B."""
    for alternative in path.split("|"):
        value: Any = row
        for key in alternative.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None
