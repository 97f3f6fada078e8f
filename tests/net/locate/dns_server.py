"""A small real DNS server on loopback or in a namespace, honest or with one fault."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rrset

from pytest_cloudbench.net.locate.resolve import Resolver

ANYONE = "0.0.0.0/0"


@dataclass
class Zone:
    """Answers by name and by the client's subnet.

    The longest subnet that holds the client counts. ECS may name another client. ``pools`` are names for which each
    query gets one address by chance.
    """

    names: Mapping[str, Mapping[str, list[str]]]
    ptr: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    aliases: Mapping[str, str] = field(default_factory=dict)
    pools: Mapping[str, list[str]] = field(default_factory=dict)
    chance: Random = field(default_factory=lambda: Random(1))

    def answer(self, wire: bytes, client: str) -> bytes | None:
        query = dns.message.from_wire(wire)
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True).lower(), question.rdtype.name
        owner = question.name
        self.asked.append((name, kind))
        if self.fault == "dead" or (self.fault == "dead for IPv6" and kind == "AAAA"):
            return None
        is_first = self.asked.count((name, kind)) == 1
        if self.fault == "loses every fifth" and is_first and len({*self.asked}) % 5 == 0:
            return None
        response = dns.message.make_response(query)
        while name in self.aliases:
            name = self.aliases[name]
            response.answer.append(dns.rrset.from_text(owner, 60, "IN", "CNAME", f"{name}."))
            owner = dns.name.from_text(name)
        if self.fault == "refuses":
            response.set_rcode(dns.rcode.REFUSED)
        elif self.fault == "lies":
            if kind == "A":
                response.answer.append(dns.rrset.from_text(question.name, 60, "IN", "A", "127.0.0.66"))
        elif kind == "PTR" and name in self.ptr:
            response.answer.append(dns.rrset.from_text(question.name, 60, "IN", "PTR", f"{self.ptr[name]}."))
        elif name not in self.names and name not in self.pools:
            response.set_rcode(dns.rcode.NXDOMAIN)
        elif kind in {"A", "AAAA"}:
            version = 4 if kind == "A" else 6
            chosen = [a for a in self._select(name, query, client) if ipaddress.ip_address(a).version == version]
            if chosen:
                response.answer.append(dns.rrset.from_text(owner, 60, "IN", kind, *chosen))
        if self.fault == "wrong id":
            response.id ^= 1
        return response.to_wire()

    def _select(self, name: str, query: dns.message.Message, client: str) -> list[str]:
        if self.fault != "ignores subnets":
            for option in query.options:
                if isinstance(option, dns.edns.ECSOption):
                    client = option.address
        if self.fault == "rotates":
            return [f"192.0.2.{100 + len(self.asked)}"]
        if self.fault == "takes turns":
            return [f"192.0.2.{100 + sum(kind == 'A' for _, kind in self.asked) % 2}"]
        if name in self.pools:
            return [self.chance.choice(self.pools[name])]
        rows = self.names[name]
        inside = [net for net in rows if ipaddress.ip_address(client) in ipaddress.ip_network(net)]
        return rows[max(inside, key=lambda net: ipaddress.ip_network(net).prefixlen)] if inside else []


@contextmanager
def serve_dns(zone: Zone, address: str = "127.0.0.1", port: int = 0) -> Iterator[Resolver]:
    """Answer on UDP until the block ends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, port))
        thread = threading.Thread(target=_serve, args=(server, zone), daemon=True)
        thread.start()
        bound = server.getsockname()
        try:
            yield Resolver(*bound)
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stop:
                stop.sendto(b"stop", bound)
            thread.join()


def _serve(server: socket.socket, zone: Zone) -> None:
    while True:
        wire, client = server.recvfrom(4096)
        if wire == b"stop":
            return
        reply = zone.answer(wire, client[0])
        if reply is not None:
            server.sendto(reply, client)
