"""Columns and lines about located servers, for both kinds of tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import LocatedServers, NameSeen, locate_servers

SOURCE = "Benchmarking personal cloud storage, IMC 2013, section 3.2"
IMC = (
    "Dropbox: San Jose, storage at Amazon in Northern Virginia; Cloud Drive: Ireland, Northern Virginia, Oregon; "
    "SkyDrive: Seattle, Southern Virginia, Singapore; Wuala: Nuremberg (2), Zurich, Northern France; "
    "Google Drive: more than 100 edge nodes"
)


def locate(names: Mapping[str, list[str]], config: pytest.Config, port: int) -> LocatedServers:
    """Locate servers whose addresses are known, with the session's hosts as vantage points."""
    hosts = getattr(config.option, "cloudbench_hosts", None)
    return locate_servers(
        {name: NameSeen(addresses) for name, addresses in names.items()},
        here=config.option.cloudbench_datacenters_here or "",
        hosts=Path(hosts) if hosts else None,
        is_agreed=bool(config.option.cloudbench_yes),
        port=port,
    )


def describe(located: LocatedServers) -> dict[str, Any]:
    """Return an entry's facts about servers: columns, and the list that the map is drawn from."""
    operators = dict.fromkeys(server["operator"] for server in located.places)
    places = dict.fromkeys(server["place"] for server in located.places)
    reasons = dict.fromkeys(server["known_by"] for server in located.places)
    return {
        "operator": ", ".join(operators) or "unknown", "place": ", ".join(places) or "unknown",
        "data_centers": len(places.keys() - {"unknown"}) or None,
        "known_by": "; ".join(reasons) or "no server was seen", "places": located.places, "imc_2013": IMC,
        **({"location": located.location} if located.location else {}),
    }  # fmt: skip


def located_share(located: LocatedServers) -> float | None:
    """Return the share of servers whose place is known."""
    located_count = sum(server["place"] != "unknown" for server in located.places)
    return located_count / len(located.places) if located.places else None
