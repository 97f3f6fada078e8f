"""Owners of flows: known by name, by DNS, by other connections to the server, by its address, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from pytest_cloudbench.net.traffic import Analysis, Whose, analyze, parse_rules
from pytest_cloudbench.net.traffic.owners import nameless_doubt
from tests.net.traffic import craft
from tests.net.traffic.test_handshake import hello, question

CLIENT = craft.CLIENT
OURS, OTHER, SHARED = "10.1.0.1", "10.2.0.1", "10.3.0.1"

_PORTS = iter(range(40_000, 60_000))


def make_whose() -> Whose:
    return Whose(("*.example.com",))


def add_hidden_name(client_hello: bytes) -> bytes:
    """Return a hello with one more extension: an encrypted hello, beside which its name may mean nothing."""
    extension, data = b"\xfe\x0d\0\4\0\0\0\0", bytearray(client_hello)
    at = 43  # behind the random bytes
    for width in (1, 2, 1):  # session, ciphers, compression
        at += width + int.from_bytes(data[at : at + width], "big")
    for start, end in ((3, 5), (6, 9), (at, at + 2)):
        length = int.from_bytes(data[start:end], "big") + len(extension)
        data[start:end] = length.to_bytes(end - start, "big")
    return bytes(data) + extension


def flow(
    server: str, name: str = "", *, size: int = 100, port: int = 0, is_complete: bool = True, is_hiding: bool = False
) -> Iterator[craft.Record]:
    """Yield a connection that shows a name or none. An incomplete one was open before the capture."""
    data = (add_hidden_name(hello(name)) if is_hiding else hello(name)) if name else bytes(size)
    segments = craft.connection(data, port=port or next(_PORTS), mss=1400)
    for segment in segments if is_complete else segments[3:-3]:
        yield segment.at_ns, craft.Segment(**{**vars(segment), "server": server}).frame()


def answer(name: str, *addresses: str) -> craft.Record:
    """Return a DNS answer to the client."""
    answers = b"".join(b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + ip_address(address).packed for address in addresses)
    head = b"\x12\x34\x81\x80\x00\x01" + len(addresses).to_bytes(2, "big") + bytes(4)
    data = head + question(name) + b"\0\1\0\1" + answers
    return craft.START_NS, craft.udp("10.0.0.53", 53, CLIENT, next(_PORTS), data)


def analyze_records(whose: Whose, *records: Iterable[craft.Record] | craft.Record, client: Any = CLIENT) -> Analysis:
    flat: list[Any] = [record for group in records for record in ([group] if isinstance(group, tuple) else group)]
    return analyze(craft.pcapng(sorted(flat)), client=client, whose=whose)


def summarize_owners(analysis: Analysis) -> tuple[list[str], int, int]:
    """Return how the client's flows are known, the number of flows without a name, and the number of others'."""
    assert analysis.sorted is not None
    assert [facts.flow for facts in analysis.facts] == analysis.table.flows == analysis.sorted.own
    return [*analysis.sorted.by.values()], len(analysis.sorted.nameless), len(analysis.sorted.others)


def test_a_hello_decides_the_owner() -> None:
    analysis = analyze_records(
        make_whose(), flow(OURS, "a.example.com"), flow(OURS, "a.example.org"), flow(OTHER, "example.com")
    )
    assert summarize_owners(analysis) == (["SNI"], 0, 2)
    assert analysis.as_dict()["flow_packets"] == analysis.as_dict()["flows"][0]["packets"]
    assert len(analysis.table.foreign) == 2


def test_a_connection_opened_earlier_is_nameless() -> None:
    analysis = analyze_records(make_whose(), flow(OURS, is_complete=False, size=5_000))
    assert summarize_owners(analysis) == ([], 1, 0)
    assert analysis.as_dict()["unique_up_bytes"] == 0


def test_dns_and_other_connections_give_names() -> None:
    by_dns = analyze_records(
        make_whose(), answer("a.example.com", OURS), answer("b.example.org", OTHER), flow(OURS), flow(OTHER)
    )
    assert summarize_owners(by_dns) == (["DNS"], 0, 1)
    by_other = analyze_records(
        make_whose(), flow(OURS, "a.example.com"), flow(OURS), flow(OTHER, "b.example.org"), flow(OTHER)
    )
    assert summarize_owners(by_other) == (["SNI", "other connections to its server"], 0, 2)


def test_a_server_with_names_of_both_stays_unknown() -> None:
    answers = (answer("a.example.com", SHARED), answer("b.example.org", SHARED))
    assert summarize_owners(analyze_records(make_whose(), *answers, flow(SHARED), flow(SHARED, "a.example.com"))) == (
        ["SNI"],
        1,
        0,
    )
    hellos = (flow(SHARED, "a.example.com"), flow(SHARED, "b.example.org"))
    assert summarize_owners(analyze_records(make_whose(), *hellos, flow(SHARED))) == (["SNI"], 1, 1)


def test_names_of_one_capture_hold_in_the_next() -> None:
    whose = make_whose()
    analyze_records(whose, flow(SHARED, "a.example.com", port=7_000), flow(SHARED, "b.example.org", port=7_001))
    second_capture = analyze_records(
        whose, flow(SHARED, port=7_000, is_complete=False), flow(SHARED, port=7_001, is_complete=False)
    )
    assert summarize_owners(second_capture) == (["earlier capture"], 0, 1)
    new_connection = analyze_records(whose, flow(SHARED, port=7_000))
    assert summarize_owners(new_connection) == ([], 1, 0), "a new connection from the same port is another one"


def test_a_name_that_may_hide_another_tells_nothing_of_other_connections_and_captures() -> None:
    whose = make_whose()
    hiding = flow(SHARED, "front.example.org", port=7_000, is_hiding=True)
    assert summarize_owners(analyze_records(whose, hiding, flow(SHARED))) == ([], 2, 0)
    assert summarize_owners(analyze_records(whose, flow(SHARED, port=7_000, is_complete=False))) == ([], 1, 0)
    own = flow(OURS, "a.example.com", port=7_000, is_hiding=True)
    assert summarize_owners(analyze_records(whose, own, flow(OURS)))[1:] == (0, 0)
    second_capture = analyze_records(whose, flow(OURS, port=7_000, is_complete=False))
    assert summarize_owners(second_capture) == (["earlier capture"], 0, 0)


def test_known_server_name_is_used_for_later_connections() -> None:
    """This includes connections whose hello is in an earlier capture or in none."""

    def list_names(*records: Iterable[craft.Record]) -> list[str]:
        owners = analyze_records(whose, *records).sorted
        assert owners is not None
        return [*owners.names.values()]

    whose = make_whose()
    assert list_names(flow(OURS, "a.example.com", port=7_000), flow(OURS)) == ["a.example.com"] * 2
    assert list_names(flow(OURS, port=7_000, is_complete=False)) == ["a.example.com"]
    assert list_names(flow(OTHER, is_complete=False)) == [OTHER]
    whose = make_whose()
    analyze_records(whose, flow(SHARED, "a.example.com", port=7_000), flow(SHARED, "b.example.org", port=7_001))
    later = list_names(
        flow(SHARED, port=7_000, is_complete=False), flow(SHARED, port=7_001, is_complete=False), flow(SHARED)
    )
    assert {*later} == {"a.example.com", "b.example.org", SHARED}


RULES = """
[[rules]]
role = "storage"
names = ["upload.example.com"]
[[rules]]
role = "control"
names = ["*.example.com", "10.2.0.1"]
"""


def find_roles(*records: Iterable[craft.Record] | craft.Record) -> list[str]:
    """Return the roles of all TCP flows."""
    flat: list[Any] = [record for group in records for record in ([group] if isinstance(group, tuple) else group)]
    analysis = analyze(craft.pcapng(sorted(flat)), rules=parse_rules(RULES))
    return [facts.role for facts in analysis.facts if facts.flow.is_tcp]


def test_a_server_that_shares_its_address_has_the_role_of_its_own_name() -> None:
    answers = (answer("upload.example.com", SHARED), answer("www.example.com", SHARED))
    assert find_roles(*answers, flow(SHARED, "api.example.com")) == ["control"]
    assert find_roles(*answers, flow(SHARED, "api.example.org")) == ["other"]
    assert find_roles(*answers, flow(SHARED, "upload.example.com")) == ["storage"]
    assert find_roles(*answers, flow(SHARED)) == ["storage"], "one of its names may be its own"
    assert find_roles(answer("www.example.org", OTHER), flow(OTHER)) == ["other"], "a name counts and not the address"
    assert find_roles(flow(OTHER)) == ["control"]


def test_a_name_that_may_hide_another_leaves_the_role_to_both() -> None:
    analysis = analyze_records(make_whose(), answer("upload.example.com", SHARED), flow(SHARED, "front.example.com"))
    (facts,) = (facts for facts in analysis.facts if facts.sni)
    names = []
    for facts.has_ech in (False, True):
        names.append(facts.names_for_role)
    assert names == [("front.example.com",), ("front.example.com", "upload.example.com")]


def test_server_addresses_leave_no_flow_nameless() -> None:
    servers = (ip_network("10.1.0.0/16"),)
    flows = [[*flow(OURS, is_complete=False)], [*flow(OTHER, is_complete=False)], [*flow(OURS, "b.example.org")]]
    assert summarize_owners(analyze_records(Whose((), servers), *flows)) == (["server address"] * 2, 0, 1)
    analysis = analyze_records(Whose(("*.example.com",), servers), *flows, flow(OTHER, "a.example.com"))
    grounds, nameless, others = summarize_owners(analysis)
    assert ({*grounds}, nameless, others) == ({"server address", "SNI"}, 0, 2), "where a name is seen, it decides"


def test_multicast_and_dns_have_no_owner() -> None:
    """Name resolution belongs to all programs, and multicast and broadcast to none in particular."""
    datagrams = [("10.0.0.53", 53), ("233.252.0.9", 9), ("255.255.255.255", 17500)]
    records = [(craft.START_NS, craft.udp(CLIENT, next(_PORTS), *endpoint, b"1")) for endpoint in datagrams]
    assert summarize_owners(analyze_records(make_whose(), *records)) == ([], 0, 0)


def test_queries_of_other_programs_are_not_kept() -> None:
    queries = [b"\x12\x34\x01\x00\x00\x01" + bytes(6) + question(f"{name}.com") + b"\0\1\0\1"
             for name in ("a.example", "private")]  # fmt: skip
    analysis = analyze_records(
        make_whose(), [(craft.START_NS, craft.udp(CLIENT, 5_000, "10.0.0.53", 53, query)) for query in queries]
    )
    assert analysis.dns_queries == {"a.example.com": 1}
    assert "private" not in str(analysis.as_dict())


def test_defects_of_other_flows_do_not_matter() -> None:
    """The defects are a hole and segments that were joined before they were captured."""
    large = [*flow(OTHER, size=5_000)]
    huge = craft.connection(bytes(9_000), mss=9_000, port=next(_PORTS))
    huge = [craft.Segment(**{**vars(segment), "server": OTHER, "options": b""}) for segment in huge]
    records = [*large[:4], *large[6:], *craft.records(huge)]
    validity = analyze(craft.pcapng(sorted(records)), client=CLIENT).validity
    assert (validity.verdict, validity.sizes_known) == ("invalid", False)
    sorted_validity = analyze_records(make_whose(), *records, flow(OURS, "a.example.com")).validity
    assert (sorted_validity.verdict, sorted_validity.sizes_known) == ("valid", True)


def test_a_client_may_have_a_silent_address() -> None:
    flows = (flow(OURS, "a.example.com"), flow(OTHER, "b.example.com"))
    assert (
        summarize_owners(analyze_records(make_whose(), *flows, client=["192.0.2.1", CLIENT, "2001:db8::1"]))[0]
        == ["SNI"] * 2
    )
    assert summarize_owners(analyze_records(make_whose(), *flows, client="192.0.2.1")) == ([], 0, 0)


@pytest.mark.parametrize(
    ("nameless", "total_bytes", "is_doubt"), [(0, 0, False), (1, 0, True), (50, 1_000, False), (51, 1_000, True)]
)
def test_many_nameless_bytes_are_a_doubt(nameless: int, total_bytes: float, is_doubt: bool) -> None:
    assert bool(nameless_doubt(nameless, total_bytes)) is is_doubt
