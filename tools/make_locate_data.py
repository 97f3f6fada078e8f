"""Make ``src/pytest_cloudbench/data/locate`` from packages, unpacked side by side in a folder, and from IANA's files.

Usage: ``python tools/make_locate_data.py FOLDER``. README.md there names the packages and their licences.
"""

from __future__ import annotations

import csv
import gzip
import ipaddress
import json
import lzma
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

TARGET = Path(__file__).resolve().parent.parent / "src" / "pytest_cloudbench" / "data" / "locate"
SERVICES = {
    "CLOUDFRONT": "edge", "GLOBALACCELERATOR": "edge", "AZUREFRONTDOOR": "edge", "S3": "storage", "STORAGE": "storage",
    "EC2": "",
}  # fmt: skip
"""Maps a service to its kind of place, edge or storage, if that is known. All other services are left out."""
LEAST_PEOPLE = 100_000
STEPS_PER_DEGREE = 4
OPERATORS = {
    "aws": "Amazon", "gcp": "Google", "azure": "Microsoft", "cloudflare": "Cloudflare", "digitalocean": "DigitalOcean",
    "oracle": "Oracle",
}  # fmt: skip


def write_packed(name: str, lines: Iterable[str]) -> None:
    """Write a compressed file that is the same for the same lines."""
    data = "".join(f"{line}\n" for line in lines).encode()
    (TARGET / f"{name}.xz").write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))


def prefix_lines(database: dict[str, Any]) -> Iterator[str]:
    """Yield prefixes by operator, region and service: a line that names these, then one line for each prefix."""
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for row in database["ranges"]:
        region = (row.get("r") or "").lower()
        operator = database["providers"][row["p"]]
        service = next((name for name in SERVICES if (row.get("s") or "").startswith(name)), "")
        groups[operator, "" if region == "global" else region, service].append(row["cidr"])
    for (operator, region, service), cidrs in sorted(groups.items()):
        ipv4_networks = [ipaddress.IPv4Network(cidr) for cidr in cidrs if ":" not in cidr]
        ipv6_networks = [ipaddress.IPv6Network(cidr) for cidr in cidrs if ":" in cidr]
        kind = "edge" if operator == "cloudflare" else SERVICES.get(service, "")
        yield f"{OPERATORS[operator]}\t{region}\t{service}\t{kind}"
        yield from map(str, ipaddress.collapse_addresses(ipv4_networks))
        yield from map(str, ipaddress.collapse_addresses(ipv6_networks))


def city_lines(cities: dict[str, Any]) -> Iterator[str]:
    """Yield cities, the largest first: name, country, degrees north and east, and thousands of people."""
    rows = [city for city in cities.values() if city["population"] >= LEAST_PEOPLE]
    for city in sorted(rows, key=lambda city: (-city["population"], city["name"])):
        coordinates = f"{city['latitude']:.2f}\t{city['longitude']:.2f}"
        yield f"{city['name']}\t{city['countrycode']}\t{coordinates}\t{city['population'] // 1000}"


def airport_lines(airports: list[dict[str, str]]) -> Iterator[str]:
    """Yield airports by IATA code: code, degrees north and east, and the city."""
    for row in sorted(airports, key=lambda row: row["iata"]):
        if row["iata"]:
            yield f"{row['iata'].lower()}\t{float(row['lat']):.2f}\t{float(row['lon']):.2f}\t{row['city']}"


def decode_arcs(topology: dict[str, Any]) -> list[list[tuple[float, float]]]:
    """Return the arcs of a TopoJSON file in degrees: longitude, latitude."""
    (scale_x, scale_y), (move_x, move_y) = topology["transform"]["scale"], topology["transform"]["translate"]
    arcs = []
    for arc in topology["arcs"]:
        x = y = 0
        points = []
        for dx, dy in arc:
            x, y = x + dx, y + dy
            points.append((x * scale_x + move_x, y * scale_y + move_y))
        arcs.append(points)
    return arcs


def coast_lines(topology: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each ring of land: its first point and then steps, in quarters of a degree."""
    arcs = decode_arcs(topology)
    for polygon in topology["objects"]["land"]["geometries"][0]["arcs"]:
        for ring in polygon:
            points: list[tuple[float, float]] = []
            for index in ring:
                part = arcs[index] if index >= 0 else arcs[~index][::-1]
                points += part[1:] if points else part
            steps = [(round(x * STEPS_PER_DEGREE), round(y * STEPS_PER_DEGREE)) for x, y in points]
            steps = [steps[0], *(new for old, new in pairwise(steps) if new != old)]
            if len(steps) > 3:
                moves = [steps[0], *((new[0] - old[0], new[1] - old[1]) for old, new in pairwise(steps))]
                yield " ".join(f"{x},{y}" for x, y in moves)


def find_file(folder: Path, pattern: str) -> Path:
    """Return the one file below the folder that matches."""
    return next(iter(sorted(folder.rglob(pattern))))


def main(folder: Path) -> None:
    """Make all generated files. The others are maintained by hand."""
    TARGET.mkdir(exist_ok=True)
    database = msgspec.msgpack.decode(gzip.decompress(find_file(folder, "cloudip.msgpack.gz").read_bytes()))
    write_packed("prefixes.txt", [f"# {database['version']}", *prefix_lines(database)])
    airports = [*csv.DictReader(find_file(folder, "airports.csv").read_text("utf-8").splitlines())]
    write_packed("airports.txt", airport_lines(airports))
    cities = json.loads(find_file(folder, "cities15000.json").read_text("utf-8"))
    write_packed("cities.txt", city_lines(cities))
    land = json.loads(find_file(folder, "land-110m.json").read_text("utf-8"))
    (TARGET / "coasts.txt").write_text("\n".join(coast_lines(land)) + "\n", "ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
