"""Addresses of names: what each listed resolver answers for each client subnet, and which resolvers cannot be trusted.

A service's answer depends on who asks (IMC 2013, section 2.1 asked 2,000 open resolvers). Here only the resolvers that
the user lists are asked, at a bounded rate. With a client subnet (RFC 7871), a resolver asks for a client elsewhere.
Only the answers show whether a server heeded the subnet, because what servers state about it may be wrong.
"""

from __future__ import annotations

import ipaddress
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, Literal

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.support import clock

if TYPE_CHECKING:
    from dns.message import Message

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Status = Literal["answered", "no such name", "refused", "silent", "broken"]

_TYPES = ("A", "AAAA")
_PREFIX_BITS = {4: 24, 6: 56}
"""Number of a subnet's bits that are sent. Some servers refuse more, and more would identify a client needlessly."""
_MOST_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Resolver:
    """A DNS server that may be asked, by its address and port."""

    address: str
    port: int = 53

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address and self.port != 53 else self.address
        return host if self.port == 53 else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Manners:
    """The limits on queries to servers: their number per second in all, and the time that each is waited for."""

    rate_per_s: float = 20.0
    timeout_s: float = 3.0


_POLITE = Manners()


@dataclass(frozen=True, slots=True)
class DnsReply:
    """The answer of one resolver about one name.

    Attributes:
        name: the name.
        resolver: who was asked.
        subnet: the client's network that was sent, or empty.
        status: what came. ``silent`` is no answer in time, ``broken`` one that is not DNS or not to this question.
        addresses: of both families, sorted.
        aliases: the names that the name leads to.
    """

    name: str
    resolver: Resolver
    subnet: str
    status: Status
    addresses: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


def read_resolvers(text: str, source: str) -> list[Resolver]:
    """Read a list of resolvers, an address with an optional port a line. Raises UsageError that names the line."""
    return [_parse_resolver(word, where) for word, where in _lines(text, source)]


def read_subnets(text: str, source: str) -> list[IPNetwork]:
    """Read a list of client subnets, one a line. Raises UsageError that names the line."""
    return [parse_subnet(word, where) for word, where in _lines(text, source)]


def parse_subnet(word: str, where: str) -> IPNetwork:
    """Read a network such as ``198.51.100.0/24``, shortened to the bits that are sent. Raises UsageError."""
    try:
        network = ipaddress.ip_network(word, strict=False)
    except ValueError as error:
        raise UsageError(f"{where}: {word}: expected a network such as 198.51.100.0/24") from error
    bits = _PREFIX_BITS[network.version]
    return network if network.prefixlen <= bits else network.supernet(new_prefix=bits)


def list_system_resolvers() -> list[Resolver]:
    """Return the resolvers that this system is set to use. There may be none."""
    import dns.exception
    import dns.resolver

    try:
        configured = dns.resolver.Resolver()
    except dns.exception.DNSException:
        return []
    return [Resolver(str(server), configured.port) for server in configured.nameservers]


def check_name(name: str) -> str:
    """Return a host name in lower case without a final dot. Raises UsageError if no host can have it."""
    import dns.exception
    import dns.name

    bare = name.strip().rstrip(".")
    try:
        labels = dns.name.from_text(bare).labels
        text = dns.name.from_text(bare).to_text(omit_final_dot=True).lower()
    except (dns.exception.DNSException, UnicodeError) as error:
        raise UsageError(f"{name!r} {_NO_HOST_NAME}") from error
    if len(labels) < 2 or labels[-2].isdigit() or any(set(label.decode("ascii")) - _HOST_LETTERS for label in labels):
        raise UsageError(f"{name!r} {_NO_HOST_NAME}")
    return text


_NO_HOST_NAME = "is no host name: expected one such as storage.example.com, without scheme or port"


_HOST_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


class Pace:
    """A limit on the number of questions that all threads together begin in a second."""

    def __init__(self, rate_per_s: float) -> None:
        self._step_ns, self._next_ns = round(1e9 / rate_per_s), 0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Return when the next question may begin."""
        with self._lock:
            due_ns = max(self._next_ns, clock.now_ns())
            self._next_ns = due_ns + self._step_ns
        clock.sleep_until_ns(due_ns)


def ask_resolvers(
    names: Sequence[str], resolvers: Sequence[Resolver], subnets: Sequence[IPNetwork] = (), *,
    times: int = 1, manners: Manners = _POLITE,
) -> list[DnsReply]:  # fmt: skip
    """Ask every resolver for every name, without a subnet and with each. A silent resolver is asked only once more.

    The replies are in the order of names, resolvers and subnets. Each is about both families of addresses. Every
    question is asked ``times`` times, because ``find_heeding_name`` needs at least two replies.
    """
    return _ask_all([*product(names, resolvers, (None, *subnets))] * times, manners)


def _ask_all(
    questions: Sequence[tuple[str, Resolver, IPNetwork | None]], manners: Manners, at_once: int = _MOST_AT_ONCE
) -> list[DnsReply]:
    pace, silent = Pace(manners.rate_per_s), _Silent()

    def ask(question: tuple[str, Resolver, IPNetwork | None]) -> DnsReply:
        return _ask_both(*question, pace, silent, manners.timeout_s)

    with ThreadPoolExecutor(at_once) as pool:
        return [*pool.map(ask, questions)]


def find_liars(
    replies: Iterable[DnsReply], resolvers: Sequence[Resolver], *, manners: Manners = _POLITE,
    certifies: Callable[[str, str], bool | None] | None = None,
) -> dict[Resolver, str]:  # fmt: skip
    """Return resolvers that lie, refuse or are dead, each with the reason.

    A resolver lies if it knows an address for a name that cannot exist (RFC 6761, section 6.4). It also lies if it
    alone gives its addresses, no server at them has a certificate for the name, and a server at another resolver's
    address has one. ``certifies(address, name)`` tells whether a server has a certificate. If no server has one, this
    accuses no resolver.
    """
    all_replies = [*replies]
    problems = {
        resolver: _describe_problem([reply for reply in all_replies if reply.resolver == resolver])
        for resolver in resolvers
    }
    invented = f"{secrets.token_hex(8)}.invalid"
    usable_resolvers = [resolver for resolver in resolvers if not problems[resolver]]
    for reply in ask_resolvers([invented], usable_resolvers, manners=manners):
        if reply.addresses:
            problems[reply.resolver] = "it lies: it knows an address for a name that cannot exist"
    for reply in _find_lonely_replies(all_replies) if certifies else ():
        if not problems[reply.resolver] and certifies and _is_refuted(reply, all_replies, certifies):
            problems[reply.resolver] = f"it lies: no server at {reply.addresses[0]} has a certificate for {reply.name}"
    return {resolver: problem for resolver, problem in problems.items() if problem}


def _is_refuted(reply: DnsReply, replies: Iterable[DnsReply], certifies: Callable[[str, str], bool | None]) -> bool:
    """Return whether no server in a reply has a certificate for the name, but a server in another reply has one."""
    if not all(certifies(address, reply.name) is False for address in reply.addresses):
        return False
    others = {a for other in replies if other.name == reply.name for a in other.addresses} - {*reply.addresses}
    return any(certifies(address, reply.name) for address in sorted(others))


def has_certificate(address: str, name: str, port: int, timeout_s: float) -> bool | None:
    """Return whether a server has a certificate for a name that this system trusts. None if no TLS server answers."""
    import socket
    import ssl

    try:
        with socket.create_connection((address, port), timeout_s) as connection:
            context = ssl.create_default_context()
            with context.wrap_socket(connection, server_hostname=name):
                return True
    except ssl.SSLCertVerificationError:
        return False
    except (OSError, ValueError):
        return None


def find_heeding_name(
    replies: Sequence[DnsReply], resolver: Resolver, *, manners: Manners = _POLITE
) -> tuple[str | None, list[DnsReply]]:
    """Return a name for which a resolver's answers depend on the client's subnet, and replies to further questions.

    The answers depend on it if two subnets share no address although each gets the same address repeatedly. So
    ``replies`` must answer each question at least twice. Servers that choose among a few addresses at random or in turn
    sometimes look the same. So the first such pair is asked about again, in random order. There is no name if the
    difference is not confirmed.
    """
    difference = _find_different_subnets(replies, resolver)
    if difference is None:
        return None, []
    name, *subnets = difference
    pairs = [(name, resolver, parse_subnet(subnet, "")) for subnet in subnets * _TIMES_AGAIN]
    secrets.SystemRandom().shuffle(pairs)
    again = _ask_all(pairs, manners, at_once=1)
    before = [reply for reply in replies if reply.name == name and reply.subnet in subnets]
    return (name if _find_different_subnets([*before, *again], resolver) else None), again


_TIMES_AGAIN = 12
"""How often each of two subnets is asked about again. If a server alternates between two addresses, only one of 1.3
million orders gives each subnet its own address."""


def _find_different_subnets(replies: Iterable[DnsReply], resolver: Resolver) -> tuple[str, str, str] | None:
    """Return a name and two subnets that share no address although each always gets a certain one, or None."""
    by_name: dict[str, dict[str, list[set[str]]]] = {}
    for reply in replies:
        if reply.resolver == resolver and reply.subnet and reply.addresses:
            by_name.setdefault(reply.name, {}).setdefault(reply.subnet, []).append({*reply.addresses})
    for name, by_subnet in by_name.items():
        steady = {net: set.union(*sets) for net, sets in by_subnet.items() if len(sets) > 1 and set.intersection(*sets)}
        for one, other in combinations(steady, 2):
            if not steady[one] & steady[other]:
                return name, one, other
    return None


def look_up_ptr(
    addresses: Sequence[str], resolver: Resolver, *, manners: Manners = _POLITE
) -> dict[str, tuple[str, ...]]:
    """Return the names that addresses have by reverse DNS. Addresses without any are left out."""
    import dns.reversename

    pace, silent = Pace(manners.rate_per_s), _Silent()

    def ask(address: str) -> tuple[str, ...]:
        query = dns.reversename.from_address(address).to_text()
        _, message = _exchange(query, "PTR", resolver, None, pace, silent, manners.timeout_s)
        rows = _records(message, "PTR") if message is not None else []
        return tuple(sorted({row.target.to_text(omit_final_dot=True).lower() for row in rows}))

    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        names = dict(zip(addresses, pool.map(ask, addresses), strict=True))
    return {address: own_names for address, own_names in names.items() if own_names}


class _Silent:
    """Counts answers and timeouts, so that a dead resolver does not cost a timeout for every name.

    They are counted for each type of record, because some resolvers answer all questions but those for IPv6.
    """

    def __init__(self) -> None:
        self._surplus: dict[tuple[Resolver, str], int] = {}
        self._lock = threading.Lock()

    def add(self, resolver: Resolver, kind: str, *, is_answered: bool) -> None:
        with self._lock:
            self._surplus[resolver, kind] = self._surplus.get((resolver, kind), 0) + (-1 if is_answered else 1)

    def is_given_up(self, resolver: Resolver, kind: str) -> bool:
        with self._lock:
            return self._surplus.get((resolver, kind), 0) > 1


def _ask_both(
    name: str, resolver: Resolver, subnet: IPNetwork | None, pace: Pace, silent: _Silent, timeout_s: float
) -> DnsReply:
    addresses, aliases, statuses = set[str](), set[str](), list[Status]()
    for kind in _TYPES:
        status, message = _exchange(name, kind, resolver, subnet, pace, silent, timeout_s)
        statuses.append(status)
        if message is not None:
            addresses |= {row.address for row in _records(message, kind)}
            aliases |= {row.target.to_text(omit_final_dot=True).lower() for row in _records(message, "CNAME")}
    status = "answered" if "answered" in statuses else statuses[0]
    ordered = sorted(addresses, key=lambda address: (":" in address, ipaddress.ip_address(address)))
    return DnsReply(name, resolver, str(subnet or ""), status, tuple(ordered), tuple(sorted(aliases)))


_TRIES = 3
"""Number of attempts, because a packet may be lost."""


def _exchange(
    name: str, kind: str, resolver: Resolver, subnet: IPNetwork | None, pace: Pace, silent: _Silent, timeout_s: float
) -> tuple[Status, Message | None]:
    import dns.edns
    import dns.exception
    import dns.message
    import dns.query
    import dns.rcode

    options = [] if subnet is None else [dns.edns.ECSOption(str(subnet.network_address), subnet.prefixlen)]
    try:
        query = dns.message.make_query(name, kind, use_edns=0, options=options)  # type: ignore[arg-type]  # of one kind
    except (dns.exception.DNSException, UnicodeError):  # a capture may have such a name, and no question can
        return "no such name", None
    for _ in range(_TRIES):
        if silent.is_given_up(resolver, kind):
            return "silent", None
        pace.wait()
        try:
            message, _ = dns.query.udp_with_fallback(query, resolver.address, timeout_s, resolver.port)
        except (dns.exception.Timeout, OSError):
            silent.add(resolver, kind, is_answered=False)
            continue
        except (dns.exception.DNSException, ValueError, EOFError):
            return "broken", None
        silent.add(resolver, kind, is_answered=True)
        break
    else:
        return "silent", None
    if message.rcode() == dns.rcode.NXDOMAIN:
        return "no such name", None
    if message.rcode() != dns.rcode.NOERROR:
        return "refused", None
    return "answered", message


def _records(message: Message, kind: str) -> list[Any]:
    import dns.rdatatype

    record_type = dns.rdatatype.from_text(kind)
    return [row for rows in message.answer if rows.rdtype == record_type for row in rows]


def _describe_problem(replies: Sequence[DnsReply]) -> str:
    statuses = {reply.status for reply in replies}
    if statuses and not statuses & {"answered", "no such name"}:
        words = {"silent": "no answer", "refused": "it refuses to answer", "broken": "its answers are no answers"}
        return words[min(statuses)] if len(statuses) == 1 else "no usable answer"
    return ""


def _find_lonely_replies(replies: Sequence[DnsReply]) -> list[DnsReply]:
    """Return the replies that share no address with any other resolver's, if others answered for the same name."""
    answered = [reply for reply in replies if reply.addresses]
    lonely = []
    for reply in answered:
        others = [o for o in answered if o.name == reply.name and o.resolver != reply.resolver]
        if others and not any(set(reply.addresses) & set(other.addresses) for other in others):
            lonely.append(reply)
    return lonely


def _parse_resolver(word: str, where: str) -> Resolver:
    host, _, port = word.rpartition("]:") if word.startswith("[") else word.rpartition(":")
    host, port = (host.lstrip("["), port) if host and (word.startswith("[") or word.count(":") == 1) else (word, "53")
    try:
        address = str(ipaddress.ip_address(host.strip("[]")))
        number = int(port)
    except ValueError as error:
        raise UsageError(f"{where}: {word}: expected an address, such as 192.0.2.53 or 192.0.2.53:5353") from error
    if not 0 < number < 65536:
        raise UsageError(f"{where}: {word}: no port has the number {number}")
    return Resolver(address, number)


def _lines(text: str, source: str) -> list[tuple[str, str]]:
    """Return the first word of each line that has one, and where it is. Comments begin with #."""
    rows = [(line.partition("#")[0].split(), number) for number, line in enumerate(text.splitlines(), 1)]
    words = [(row[0], f"{source}:{number}") for row, number in rows if row]
    if not words:
        raise UsageError(f"{source}: lists nothing")
    return words
