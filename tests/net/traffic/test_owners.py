"""Whose flows they are: by name, by DNS, by what else is known of the server, by its address; or unknown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from pytest_cloudbench.net.traffic import Analysis, Whose, analyze
from pytest_cloudbench.net.traffic.owners import nameless_doubt
from tests.net.traffic import craft
from tests.net.traffic.test_handshake import hello, question

CLIENT = craft.CLIENT
OURS, OTHER, SHARED = "10.1.0.1", "10.2.0.1", "10.3.0.1"

_PORTS = iter(range(40_000, 60_000))


def mine() -> Whose:
    return Whose(("*.example.com",))


def flow(server: str, name: str = "", *, size: int = 100, port: int = 0, whole: bool = True) -> Iterator[craft.Record]:
    """A connection that shows a name, or none; without its beginning, it was open before."""
    data = hello(name) if name else bytes(size)
    segments = craft.connection(data, port=port or next(_PORTS), mss=1400)
    for each in segments if whole else segments[3:-3]:
        yield each.at_ns, craft.Segment(**{**vars(each), "server": server}).frame()


def answer(name: str, *addresses: str) -> craft.Record:
    """A DNS answer to the client."""
    found = b"".join(b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + ip_address(each).packed for each in addresses)
    head = b"\x12\x34\x81\x80\x00\x01" + len(addresses).to_bytes(2, "big") + bytes(4)
    data = head + question(name) + b"\0\1\0\1" + found
    return craft.START_NS, craft.udp("10.0.0.53", 53, CLIENT, next(_PORTS), data)


def seen(whose: Whose, *records: Iterable[craft.Record] | craft.Record, client: Any = CLIENT) -> Analysis:
    every: list[Any] = [one for each in records for one in ([each] if isinstance(each, tuple) else each)]
    return analyze(craft.pcapng(sorted(every)), client=client, whose=whose)


def sorts(found: Analysis) -> tuple[list[str], int, int]:
    """(how the client's flows are known, flows without a name, others')."""
    assert found.sorted is not None
    assert [each.flow for each in found.facts] == found.table.flows == found.sorted.own
    return [*found.sorted.by.values()], len(found.sorted.nameless), len(found.sorted.others)


def test_a_hello_decides_the_owner() -> None:
    found = seen(mine(), flow(OURS, "a.example.com"), flow(OURS, "a.example.org"), flow(OTHER, "example.com"))
    assert sorts(found) == (["SNI"], 0, 2)
    assert found.as_dict()["flow_packets"] == found.as_dict()["flows"][0]["packets"]
    assert len(found.table.foreign) == 2


def test_a_connection_opened_earlier_is_nameless() -> None:
    found = seen(mine(), flow(OURS, whole=False, size=5_000))
    assert sorts(found) == ([], 1, 0)
    assert found.as_dict()["unique_up_bytes"] == 0


def test_dns_and_other_connections_give_names() -> None:
    by_dns = seen(mine(), answer("a.example.com", OURS), answer("b.example.org", OTHER), flow(OURS), flow(OTHER))
    assert sorts(by_dns) == (["DNS"], 0, 1)
    by_other = seen(mine(), flow(OURS, "a.example.com"), flow(OURS), flow(OTHER, "b.example.org"), flow(OTHER))
    assert sorts(by_other) == (["SNI", "other connections to its server"], 0, 2)


def test_a_server_with_names_of_both_stays_unknown() -> None:
    both = (answer("a.example.com", SHARED), answer("b.example.org", SHARED))
    assert sorts(seen(mine(), *both, flow(SHARED), flow(SHARED, "a.example.com"))) == (["SNI"], 1, 0)
    hellos = (flow(SHARED, "a.example.com"), flow(SHARED, "b.example.org"))
    assert sorts(seen(mine(), *hellos, flow(SHARED))) == (["SNI"], 1, 1)


def test_names_of_one_capture_hold_in_the_next() -> None:
    whose = mine()
    seen(whose, flow(SHARED, "a.example.com", port=7_000), flow(SHARED, "b.example.org", port=7_001))
    later = seen(whose, flow(SHARED, port=7_000, whole=False), flow(SHARED, port=7_001, whole=False))
    assert sorts(later) == (["earlier capture"], 0, 1)
    again = seen(whose, flow(SHARED, port=7_000))
    assert sorts(again) == ([], 1, 0), "a new connection from the same port is another one"


def test_known_server_name_is_used_for_later_connections() -> None:
    """Also for the rest of a connection whose hello is in an earlier capture, and one whose hello is in none."""

    def called(*records: Iterable[craft.Record]) -> list[str]:
        found = seen(whose, *records).sorted
        assert found is not None
        return [*found.names.values()]

    whose = mine()
    assert called(flow(OURS, "a.example.com", port=7_000), flow(OURS)) == ["a.example.com"] * 2
    assert called(flow(OURS, port=7_000, whole=False)) == ["a.example.com"]
    assert called(flow(OTHER, whole=False)) == [OTHER]
    whose = mine()
    seen(whose, flow(SHARED, "a.example.com", port=7_000), flow(SHARED, "b.example.org", port=7_001))
    later = called(flow(SHARED, port=7_000, whole=False), flow(SHARED, port=7_001, whole=False), flow(SHARED))
    assert {*later} == {"a.example.com", "b.example.org", SHARED}


def test_server_addresses_leave_no_flow_nameless() -> None:
    servers = (ip_network("10.1.0.0/16"),)
    flows = [[*flow(OURS, whole=False)], [*flow(OTHER, whole=False)], [*flow(OURS, "b.example.org")]]
    assert sorts(seen(Whose((), servers), *flows)) == (["server address"] * 2, 0, 1)
    found = seen(Whose(("*.example.com",), servers), *flows, flow(OTHER, "a.example.com"))
    by, nameless, others = sorts(found)
    assert ({*by}, nameless, others) == ({"server address", "SNI"}, 0, 2), "where a name is seen, it decides"


def test_multicast_and_dns_have_no_owner() -> None:
    """Name resolution belongs to all programs, and multicast and broadcast to none in particular."""
    datagrams = [("10.0.0.53", 53), ("233.252.0.9", 9), ("255.255.255.255", 17500)]
    records = [(craft.START_NS, craft.udp(CLIENT, next(_PORTS), *each, b"1")) for each in datagrams]
    assert sorts(seen(mine(), *records)) == ([], 0, 0)


def test_queries_of_other_programs_are_not_kept() -> None:
    asked = [b"\x12\x34\x01\x00\x00\x01" + bytes(6) + question(f"{name}.com") + b"\0\1\0\1"
             for name in ("a.example", "private")]  # fmt: skip
    found = seen(mine(), [(craft.START_NS, craft.udp(CLIENT, 5_000, "10.0.0.53", 53, each)) for each in asked])
    assert found.dns_queries == {"a.example.com": 1}
    assert "private" not in str(found.as_dict())


def test_defects_of_other_flows_do_not_matter() -> None:
    """A hole, and segments that were put together before the capture saw them."""
    large = [*flow(OTHER, size=5_000)]
    huge = craft.connection(bytes(9_000), mss=9_000, port=next(_PORTS))
    huge = [craft.Segment(**{**vars(each), "server": OTHER, "options": b""}) for each in huge]
    records = [*large[:4], *large[6:], *craft.records(huge)]
    alone = analyze(craft.pcapng(sorted(records)), client=CLIENT).validity
    assert (alone.verdict, alone.sizes_known) == ("invalid", False)
    found = seen(mine(), *records, flow(OURS, "a.example.com")).validity
    assert (found.verdict, found.sizes_known) == ("valid", True)


def test_a_client_may_have_a_silent_address() -> None:
    both = (flow(OURS, "a.example.com"), flow(OTHER, "b.example.com"))
    assert sorts(seen(mine(), *both, client=["192.0.2.1", CLIENT, "2001:db8::1"]))[0] == ["SNI"] * 2
    assert sorts(seen(mine(), *both, client="192.0.2.1")) == ([], 0, 0)


@pytest.mark.parametrize(
    ("nameless", "of", "is_doubt"), [(0, 0, False), (1, 0, True), (50, 1_000, False), (51, 1_000, True)]
)
def test_many_nameless_bytes_are_a_doubt(nameless: int, of: float, is_doubt: bool) -> None:
    assert bool(nameless_doubt(nameless, of)) is is_doubt
