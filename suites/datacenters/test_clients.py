"""Which servers does a sync client contact at its start, after a change, and when idle? (IMC 2013, section 2.1)

A client and a server that run here are on a link of the run, so servers and names are only counted. The servers of
``external`` are real, and are located if the user agrees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_cloudbench import RandomContent, count_contacts

from .places import SOURCE, describe, locate, located_share

if TYPE_CHECKING:
    import pytest

    from pytest_cloudbench import LabItem, Window

IDLE_S = {"quick": 10.0, "paper": 16 * 60.0}
FILE_BYTES = 100_000
HTTPS_PORT = 443


def test_client(lab: LabItem, grid: str, pytestconfig: pytest.Config) -> None:
    """Section 2.1: names and servers by phase, and section 3.2: where they are."""
    locate({}, pytestconfig, HTTPS_PORT)  # refuses an unknown place before anything is measured
    start = lab.login()
    _, change = lab.new_file("contacts", RandomContent("contacts", FILE_BYTES))
    after_change, idle = lab.watch([change, lab.rest(IDLE_S[grid])])
    phases = {"start": start, "change": after_change, "idle": idle}
    watched = {phase: window for phase, window in phases.items() if window is not None}
    contacts = [contact for window in watched.values() for contact in window.contacts]
    extra: dict[str, Any] = {**count_contacts(contacts), "phases": list_phases(watched)}
    for phase, window in watched.items():
        counts = count_contacts(window.contacts)
        extra |= {f"{phase}_servers": counts["contacted_servers"], f"{phase}_names": counts["contacted_names"]}
    share, notes = None, ["the client was running already: its start is unknown"] if start is None else []
    if lab.facts.outside is None:
        extra |= {"place": "here, on a link of the run", "places": [], "data_centers": None}
    else:
        names: dict[str, list[str]] = {}
        for contact in dict.fromkeys(contacts):
            names.setdefault(contact.name, []).append(contact.address)
        located = locate(names, pytestconfig, HTTPS_PORT)
        extra |= describe(located)
        share, notes = located_share(located), [*notes, *located.notes]
    result = lab.conclude(
        {"located_share": share},
        [sum(window.duration_s for window in watched.values())],
        stats_of="how long the client was watched",
        columns=("start_servers", "change_servers", "idle_servers", "contacted_names", "place"),
        extra=extra,
        published={"source": SOURCE, "contacted_servers": "SkyDrive contacts 13 servers at its start"},
        notes=notes,
    )
    lab.settle([result])


def list_phases(watched: dict[str, Window]) -> dict[str, list[str]]:
    """Return the names of each phase, in order."""
    return {phase: sorted({contact.name for contact in window.contacts}) for phase, window in watched.items()}
