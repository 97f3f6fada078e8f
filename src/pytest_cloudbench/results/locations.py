"""Locations of servers as seen from this machine, which ``cloudbench locate --save`` and runs keep among the results.

Later runs state the last location of their provider. Locations that another machine stored are not read, because names
may lead elsewhere from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from pytest_cloudbench.results.rows import add_row, identify, read_rows

LOCATIONS = "locations.jsonl"
"""The name of the file, in the results folder."""


class StoredLocations:
    """The locations in a results folder, as ``net.locate.summary`` makes them. There are none without a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._path = folder / LOCATIONS if folder is not None else None

    @cached_property
    def _own(self) -> list[dict[str, Any]]:
        key = identify()
        return [row for row in read_rows(self._path) if row.get("key") == key] if self._path is not None else []

    def add(self, location: Mapping[str, Any], provider: str = "", server: str = "") -> Path | None:
        """Store a location of a provider or of names alone, unless ``find`` returns it already. Return the file.

        Raises ResultsError.
        """
        if self._path is not None and location != self.find(provider, server):
            row = {"provider": provider, "key": identify(), **location}
            add_row(self._path, row)
            self._own.append(row)
        return self._path

    def find(self, provider: str, server: str) -> dict[str, Any]:
        """Return the last location of a provider, or of its server by name or address. Empty if none is known.

        A name of loopback says nothing of a provider, because a tunnel may begin there.
        """
        for row in reversed(self._own):
            names = row.get("names")
            is_named = isinstance(names, list) and server in names and not _is_loopback(server)
            if is_named or (provider and row.get("provider") == provider):
                return {key: value for key, value in row.items() if key not in ("provider", "key")}
        return {}


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
