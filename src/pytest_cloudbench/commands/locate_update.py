"""``cloudbench locate --update``: renews the tables of ranges and registries for one user."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from pytest_cloudbench import data
from pytest_cloudbench.commands.command import print_line
from pytest_cloudbench.lab.locating import read_table, renewed_folder
from pytest_cloudbench.model import CloudbenchError, UsageError
from pytest_cloudbench.net.locate.rdap import Bootstrap
from pytest_cloudbench.net.locate.renewal import RangeSource, Sources, parse_sources, replace_ranges
from pytest_cloudbench.support import opening
from pytest_cloudbench.support.wording import format_count

_MOST_BYTES = 64 * opening.MIB
_REGISTRIES = "registries"
_TIMEOUT_S = 30.0


def update(arguments: list[str]) -> int:
    """Renew all tables, or those named as ``OPERATOR=FILE``. Returns 1 if one could not be renewed.

    Raises UsageError for a name that is no operator's.
    """
    sources = parse_sources(data.read_locate_table("sources.toml"))
    status = 0
    for operator, locations in _choose(sources, arguments).items():
        try:
            print_line(f"{operator}: {_renew(sources, operator, locations)}")
        except CloudbenchError as error:
            print_line(f"{operator}: kept as it was: {error}")
            status = 1
    return status


def _choose(sources: Sources, arguments: list[str]) -> dict[str, list[str]]:
    """Return the files or URLs to read for each operator that is to be renewed."""
    locations_of: dict[str, list[str]] = {}
    for source in sources.ranges:
        locations_of.setdefault(source.operator, []).append(source.url)
    locations_of[_REGISTRIES] = [*sources.registry_urls]
    chosen: dict[str, list[str]] = {}
    for text in arguments:
        operator, _, location = text.partition("=")
        if operator not in locations_of:
            raise UsageError(f"--update {text}: expected one of {', '.join(locations_of)}, with =FILE or =URL")
        chosen.setdefault(operator, []).extend([location] if location else locations_of[operator])
    return chosen or locations_of


def _renew(sources: Sources, operator: str, locations: list[str]) -> str:
    """Replace what is known of an operator's addresses by what these files or URLs hold. Returns what it was."""
    if "" in locations:
        raise UsageError(f"its file has no permanent address: download it, and give --update {operator}=FILE")
    texts = [(_fetch(location), location) for location in locations]
    if operator == _REGISTRIES:
        joined = f"[{','.join(text for text, _ in texts)}]"
        dated = Bootstrap(joined, ", ".join(locations)).dated
        _write("rdap.json", joined)
        return f"lists of {dated}"
    by_location = {source.url: source for source in sources.ranges if source.operator == operator}
    first_source: RangeSource = next(iter(by_location.values()))  # its form is that of a file which the user names
    rows = [
        row
        for text, location in texts
        for row in sources.read_ranges(by_location.get(location, first_source), text, location)
    ]
    _write("prefixes.txt", replace_ranges(read_table("prefixes.txt"), rows, f"{datetime.now(UTC):%Y-%m-%d}"))
    return format_count(len(rows), "range")


def _fetch(location: str) -> str:
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    try:
        if "://" not in location:
            return opening.read_file(Path(location), _MOST_BYTES).decode()
        if not location.startswith(("https://", "http://")):
            raise UsageError(f"{location}: expected a file, or an address that begins with https://")
        with urlopen(Request(location, headers={"User-Agent": "pytest-cloudbench"}), timeout=_TIMEOUT_S) as response:
            return bytes(response.read(_MOST_BYTES)).decode()
    except (HTTPException, OSError, ValueError) as error:
        raise UsageError(
            f"{location}: {getattr(error, 'strerror', None) or getattr(error, 'reason', error)}"
        ) from error


def _write(name: str, text: str) -> None:
    """Write a table atomically, so that nobody reads half of it."""
    folder = renewed_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{name}.{os.getpid()}.part"
        part.write_text(text, "utf-8")
        part.replace(folder / name)
    except OSError as error:
        raise UsageError(f"{folder / name}: {error.strerror}") from error
