"""Contacted servers and names in a capture, and in a part of it."""

from __future__ import annotations

from pathlib import Path

from pytest_cloudbench.lab.detect.observe import cut_window
from pytest_cloudbench.lab.sync.contacts import Contact, count_contacts, find_contacts
from pytest_cloudbench.net.traffic import analyze
from tests.net.traffic import craft

FOLDER = Path(__file__).resolve().parents[3] / "fixtures" / "captures"


def test_servers_are_known_by_their_best_names_and_name_resolution_is_no_server() -> None:
    analysis = analyze((FOLDER / "names.pcapng").read_bytes())
    contacts = find_contacts(analysis, analysis.table)
    expected = {
        Contact(facts.names[0], facts.address) for facts in analysis.facts if facts.flow.server_port != 53
    }  # fmt: skip
    assert {*contacts} == expected
    assert "quic.example.com" not in {contact.address for contact in contacts}
    assert any(contact.name != contact.address for contact in contacts)
    assert any(facts.flow.server_port == 53 for facts in analysis.facts)


def test_nothing_is_contacted_before_the_first_packet() -> None:
    analysis = analyze((FOLDER / "names.pcapng").read_bytes())
    assert find_contacts(analysis, cut_window(analysis.table, 0, 1)) == ()


def test_broadcast_and_encrypted_name_resolution_are_no_contacts() -> None:
    ends = [("255.255.255.255", 21027), ("10.0.0.53", 853), ("10.0.0.3", 22067)]
    frames = [(craft.START_NS, craft.udp(craft.CLIENT, 40_000, *end, b"1")) for end in ends]
    analysis = analyze(craft.pcapng(frames))
    assert find_contacts(analysis, analysis.table) == (Contact("10.0.0.3", "10.0.0.3"),)


def test_a_server_with_two_names_counts_once() -> None:
    contacts = [Contact("a.example", "192.0.2.1"), Contact("b.example", "192.0.2.1"), Contact("b.example", "192.0.2.2")]
    assert count_contacts(contacts) == {"contacted_servers": 2, "contacted_names": 2}
    assert count_contacts([]) == {"contacted_servers": 0, "contacted_names": 0}
