"""Addresses by resolver and subnet from real servers: bad resolvers are named, and good ones are not."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import trustme

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.locate import resolve
from pytest_cloudbench.net.locate.resolve import DnsReply, Manners, Resolver

from .dns_server import ANYONE, Zone, serve_dns

NAME = "storage.example.com"
ADDRESSES = {ANYONE: ["192.0.2.1", "2001:db8::1"], "198.51.100.0/24": ["192.0.2.2"], "203.0.113.0/24": ["192.0.2.3"]}
SUBNETS = [resolve.parse_subnet(word, "") for word in ("198.51.100.77/32", "203.0.113.0/24")]
FAST = Manners(rate_per_s=2000.0, timeout_s=0.3)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start_resolver(stack: ExitStack, fault: str = "", names: dict[str, dict[str, list[str]]] | None = None) -> Resolver:
    return stack.enter_context(serve_dns(Zone(names or {NAME: ADDRESSES}, fault=fault)))


def test_all_addresses_come_by_resolver_and_subnet(stack: ExitStack) -> None:
    resolver = start_resolver(stack)
    replies = resolve.ask_resolvers([NAME, "absent.example.com"], [resolver], SUBNETS, manners=FAST)
    assert [(reply.name, reply.subnet, reply.status, reply.addresses) for reply in replies] == [
        (NAME, "", "answered", ("192.0.2.1", "2001:db8::1")),
        (NAME, "198.51.100.0/24", "answered", ("192.0.2.2",)),
        (NAME, "203.0.113.0/24", "answered", ("192.0.2.3",)),
        ("absent.example.com", "", "no such name", ()),
        ("absent.example.com", "198.51.100.0/24", "no such name", ()),
        ("absent.example.com", "203.0.113.0/24", "no such name", ()),
    ]


@pytest.mark.parametrize(("fault", "name"), [("", NAME), ("ignores subnets", None), ("rotates", None)])
def test_whether_a_subnet_was_heeded_shows_in_the_answers(stack: ExitStack, fault: str, name: str | None) -> None:
    resolver = start_resolver(stack, fault)
    replies = resolve.ask_resolvers([NAME], [resolver], SUBNETS, times=2, manners=FAST)
    assert resolve.find_heeding_name(replies, resolver, manners=FAST)[0] == name


def test_a_few_addresses_that_take_turns_heed_no_subnet(stack: ExitStack) -> None:
    resolver = start_resolver(stack, "takes turns")
    by_chance = [
        DnsReply(NAME, resolver, str(subnet), "answered", (f"192.0.2.{100 + number}",))
        for number, subnet in enumerate(SUBNETS)
        for _ in range(2)
    ]
    name, new_replies = resolve.find_heeding_name(by_chance, resolver, manners=FAST)
    assert name is None
    assert {address for reply in new_replies for address in reply.addresses} == {"192.0.2.100", "192.0.2.101"}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("", None),
        ("ignores subnets", None),
        ("dead", "no answer"),
        ("refuses", "it refuses to answer"),
        ("wrong id", "its answers are no answers"),
        ("lies", "it lies: it knows an address for a name that cannot exist"),
    ],
)
def test_a_bad_resolver_is_named_with_its_fault(stack: ExitStack, fault: str, words: str | None) -> None:
    good, other = start_resolver(stack), start_resolver(stack, fault)
    replies = resolve.ask_resolvers([NAME], [good, other], manners=FAST)
    assert resolve.find_liars(replies, [good, other], manners=FAST) == ({} if words is None else {other: words})


def test_an_address_that_only_one_resolver_gives_needs_a_certificate(stack: ExitStack) -> None:
    good, liar = start_resolver(stack), start_resolver(stack, names={NAME: {ANYONE: ["192.0.2.66"]}})
    third = start_resolver(stack, names={NAME: {ANYONE: ["192.0.2.7", "192.0.2.1"]}})
    resolvers = [good, liar, third]
    replies = resolve.ask_resolvers([NAME], resolvers, manners=FAST)
    certified = {"192.0.2.1": True, "192.0.2.66": False}
    liars = resolve.find_liars(replies, resolvers, certifies=lambda address, name: certified.get(address), manners=FAST)
    assert liars == {liar: f"it lies: no server at 192.0.2.66 has a certificate for {NAME}"}
    assert resolve.find_liars(replies, resolvers, certifies=lambda address, name: None, manners=FAST) == {}
    nobody_is_known = dict.fromkeys(("192.0.2.1", "192.0.2.7", "192.0.2.66", "2001:db8::1"), False)
    assert resolve.find_liars(replies, resolvers, certifies=lambda a, _: nobody_is_known[a], manners=FAST) == {}


@pytest.mark.parametrize("name", ["b\ufffd\ufffdcher.example.com", "a..example.com", "x" * 64 + ".example.com"])
def test_a_name_that_cannot_be_asked_for_does_not_exist(stack: ExitStack, name: str) -> None:
    zone = Zone({NAME: ADDRESSES})
    resolver = stack.enter_context(serve_dns(zone))
    replies = resolve.ask_resolvers([name, NAME], [resolver], times=3, manners=FAST)
    assert [reply.status for reply in replies] == ["no such name", "answered"] * 3
    assert {asked for asked, _ in zone.asked} == {NAME}


def test_a_dead_resolver_costs_two_timeouts_and_not_one_for_every_name(stack: ExitStack) -> None:
    zone = Zone({}, fault="dead")
    resolver = stack.enter_context(serve_dns(zone))
    names = [f"n{number}.example.com" for number in range(200)]
    replies = resolve.ask_resolvers(names, [resolver], manners=Manners(2000.0, timeout_s=0.05))
    assert {reply.status for reply in replies} == {"silent"}
    assert len(zone.asked) < 150


def test_a_resolver_that_is_dead_for_ipv6_still_answers_for_every_name(stack: ExitStack) -> None:
    names = {f"n{number}.example.com": {ANYONE: [f"192.0.2.{number}"]} for number in range(60)}
    resolver = start_resolver(stack, "dead for IPv6", names)
    replies = resolve.ask_resolvers([*names], [resolver], manners=Manners(2000.0, timeout_s=0.3))
    assert [(reply.status, reply.addresses) for reply in replies] == [
        ("answered", tuple(rows[ANYONE])) for rows in names.values()
    ]


def test_a_lost_packet_loses_no_answer(stack: ExitStack) -> None:
    names = {f"n{number}.example.com": {ANYONE: [f"192.0.2.{number}"]} for number in range(40)}
    resolver = start_resolver(stack, "loses every fifth", names)
    replies = resolve.ask_resolvers([*names], [resolver], manners=FAST)
    assert [reply.addresses for reply in replies] == [tuple(rows[ANYONE]) for rows in names.values()]


def test_names_by_reverse_dns(stack: ExitStack) -> None:
    zone = Zone({}, ptr={"1.2.0.192.in-addr.arpa": "lhr25s01.example.net"})
    resolver = stack.enter_context(serve_dns(zone))
    assert resolve.look_up_ptr(["192.0.2.1", "192.0.2.9"], resolver, manners=FAST) == {
        "192.0.2.1": ("lhr25s01.example.net",)
    }


def test_lists_are_read_with_comments() -> None:
    text = "192.0.2.53  # at home\n\n192.0.2.54:5353\n2001:db8::53\n[2001:db8::54]:5353\n"
    assert [str(resolver) for resolver in resolve.read_resolvers(text, "r")] == [
        "192.0.2.53", "192.0.2.54:5353", "2001:db8::53", "[2001:db8::54]:5353",
    ]  # fmt: skip
    assert [str(subnet) for subnet in resolve.read_subnets("2001:db8:1:2::/64\n", "s")] == ["2001:db8:1::/56"]


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (resolve.read_resolvers, "192.0.2.53\nbox\n", "list:2: box: expected an address"),
        (resolve.read_resolvers, "192.0.2.53:99999", "list:1: 192.0.2.53:99999: no port has the number 99999"),
        (resolve.read_resolvers, "# nothing\n", "list: lists nothing"),
        (resolve.read_subnets, "192.0.2.0/99", "list:1: 192.0.2.0/99: expected a network"),
    ],
)
def test_a_bad_line_is_named(read: object, text: str, words: str) -> None:
    assert callable(read)
    with pytest.raises(UsageError, match=words):
        read(text, "list")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "two words",
        "a..b",
        "localhost/",
        "999.1.1.1",
        "[::1]",
        "example.com:443",
        "x" * 64 + ".com",
        "https://example.com",
    ],
)
def test_invalid_host_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is no host name"):
        resolve.check_name(name)


def test_names_are_asked_for_in_one_spelling() -> None:
    assert resolve.check_name("Storage.Example.COM.") == "storage.example.com"
    assert resolve.check_name("bücher.example") == "xn--bcher-kva.example"


def test_a_certificate_tells_a_server_of_a_name_from_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(NAME).configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        thread = threading.Thread(target=shake_hands, args=(server, context, 2), daemon=True)
        thread.start()
        answers = [resolve.has_certificate("127.0.0.1", name, port, 5.0) for name in (NAME, "other.example.com")]
        thread.join()
    assert answers == [True, False]
    assert resolve.has_certificate("127.0.0.1", NAME, port, 5.0) is None


def shake_hands(server: socket.socket, context: ssl.SSLContext, times: int) -> None:
    for _ in range(times):
        connection, _ = server.accept()
        with connection, suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(1)
