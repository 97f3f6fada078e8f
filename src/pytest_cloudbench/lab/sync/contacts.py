"""Servers that a client was in contact with during a part of a capture (IMC 2013, section 2.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pytest_cloudbench.net.traffic import Analysis, FlowTable
from pytest_cloudbench.net.traffic.owners import leads_to_server


class Contact(NamedTuple):
    """A server: its best name, which is its address where no name is known, and its address."""

    name: str
    address: str


def find_contacts(analysis: Analysis, table: FlowTable) -> tuple[Contact, ...]:
    """Return the servers of all flows that have packets in a table, each once.

    Name resolution, multicast and broadcast do not count.

    Args:
        analysis: of the whole capture.
        table: its flows, cut to a part of the time (``detect.observe.cut_window``).
    """
    numbers = [flow.number for flow in table.flows if len(table.rows(flow)) and leads_to_server(flow)]
    all_facts = [analysis.known.get(number) for number in numbers]
    return tuple(dict.fromkeys(Contact(facts.names[0], facts.address) for facts in all_facts))


def count_contacts(contacts: Iterable[Contact]) -> dict[str, int]:
    """Return how many servers and how many names there are, as columns of an entry."""
    all_contacts = [*contacts]
    return {
        "contacted_servers": len({contact.address for contact in all_contacts}),
        "contacted_names": len({contact.name for contact in all_contacts}),
    }
