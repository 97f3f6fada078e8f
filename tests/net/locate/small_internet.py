"""A small internet: a network namespace for each site, and a way of ``net.link`` from each site to every other.

One thread reads packets from TUN devices, and the link's own forwarder takes them to the site that has the address.
If several sites have an address, the nearest one gets the packet, as with anycast. On a busy machine packets come later
and never earlier, so the true positions stay within the limits of the round trips.
"""

from __future__ import annotations

import ipaddress
import os
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_cloudbench.net.link import Way, devices
from pytest_cloudbench.net.link.forward import Direction
from pytest_cloudbench.net.locate.sphere import Position, distance_km

_MS_PER_KM = 1.2 / 100
_FIXED_MS = 0.4
_STOP, _CHANGE = b"s", b"c"

Server = Callable[[str], AbstractContextManager[Any]]


def run(*words: str, text: str = "") -> None:
    subprocess.run(words, check=True, capture_output=True, input=text.encode())


@dataclass
class Site:
    """A namespace at a position, with its addresses.

    If the site is ``behind`` a proxy, the proxy's site answers its packets. ``routers`` are on the way to the site.
    They drop packets whose time to live is too short, and report it to the sender.
    """

    name: str
    position: Position
    addresses: tuple[str, ...]
    behind: str = ""
    routers: tuple[str, ...] = ()
    servers: list[tuple[str, Server]] = field(default_factory=list)
    descriptor: int = -1

    @property
    def namespace(self) -> str:
        return f"loc{os.getpid()}-{self.name}"

    def command(self, *words: str) -> list[str]:
        """Return the command that runs a program at the site."""
        return ["ip", "netns", "exec", self.namespace, *words]


Ways = Callable[[Site, Site], Way]


def usual_way(source: Site, target: Site) -> Way:
    """Return a way that is a fifth longer than a straight line, the same in both directions."""
    return Way((distance_km(source.position, target.position) * _MS_PER_KM + _FIXED_MS) / 2)


class Road:
    """A way of the link from one site to another."""

    def __init__(self, way: Way, sink: int, seed: str) -> None:
        self._entry, self._source = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._source.setblocking(False)
        self._direction = Direction(self._source.fileno(), sink, 0, way.settings(), seed)

    def enter(self, packet: bytes) -> None:
        """Take a packet."""
        self._entry.send(packet)
        self._direction.read_packets()

    def deliver(self) -> float | None:
        """Hand over packets that have arrived. Return when the next one arrives, on the monotonic clock."""
        return self._direction.write_due_packets()

    def close(self) -> None:
        """Drop all packets on the way."""
        self._entry.close()
        self._source.close()


class SmallInternet:
    """Sites, and the thread that carries their packets on the ways that a function gives."""

    def __init__(self, *sites: Site, ways: Ways = usual_way) -> None:
        self.sites = {site.name: site for site in sites}
        self._ways = ways
        self._roads: dict[tuple[str, str, bool], Road] = {}
        self._requests, self._request = os.pipe()
        self._has_changed = threading.Event()

    def change_ways(self, ways: Ways) -> None:
        """Send packets on other ways from now on. Packets that are on the way are lost."""
        self._ways = ways
        self._has_changed.clear()
        os.write(self._request, _CHANGE)
        self._has_changed.wait()

    def rtt_ms(self, first: Site, second: Site) -> float:
        """Return the usual round trip between two sites."""
        return self._ways(first, second).delay_ms + self._ways(second, first).delay_ms

    def __enter__(self) -> SmallInternet:
        self._stack = ExitStack()
        for site in self.sites.values():
            self._open(site)
        carrier = threading.Thread(target=self._carry, daemon=True)
        carrier.start()
        self._stack.callback(carrier.join)
        self._stack.callback(os.write, self._request, _STOP)
        for site in self.sites.values():
            if site.servers:
                self._stack.enter_context(_serve_at(site))
        return self

    def __exit__(self, *reasons: object) -> None:
        self._stack.close()

    def _open(self, site: Site) -> None:
        run("ip", "netns", "add", site.namespace)
        self._stack.callback(run, "ip", "netns", "delete", site.namespace)
        with enter_site(site):
            site.descriptor = devices.make_tun("net0")
        self._stack.callback(os.close, site.descriptor)
        behind = [client for client in self.sites.values() if client.behind == site.name]
        lines = [f"link set {device} up" for device in ("lo", "net0")]
        for version, all_addresses, proxied_addresses in ((4, "0.0.0.0/0", "192.0.0.0/2"), (6, "::/0", "2000::/3")):
            own = filter_version(version, site.addresses)
            lines += [f"address add {address} dev net0{' nodad' * (version == 6)}" for address in own]
            lines += [f"route add {all_addresses} dev net0 src {address}" for address in own[:1]]
            clients = filter_version(version, [address for client in behind for address in client.addresses])
            lines += [f"route add {address} dev net0" for address in clients]  # so that answers go back
            # All incoming packets are local.
            lines += [f"route add local {proxied_addresses} dev lo table main" for _ in clients[:1]]
        run("ip", "-n", site.namespace, "-batch", "-", text="\n".join(lines))

    def _find(self, source: Site, address: str) -> Site | None:
        if source.behind:
            return self.sites[source.behind]
        holders = [site for site in self.sites.values() if address in site.addresses]
        return min(holders, key=lambda site: self.rtt_ms(source, site)) if holders else None

    def _carry(self) -> None:
        by_descriptor = {site.descriptor: site for site in self.sites.values()}
        due_s: float | None = None
        while True:
            timeout_s = None if due_s is None else max(0.0, due_s - time.monotonic())
            ready, _, _ = select.select([*by_descriptor, self._requests], [], [], timeout_s)
            if self._requests in ready:
                for road in self._roads.values():
                    road.close()
                self._roads = {}
                if os.read(self._requests, 1) == _STOP:
                    return
                self._has_changed.set()
            for descriptor in ready:
                if descriptor != self._requests:
                    self._forward(by_descriptor[descriptor], os.read(descriptor, 65536))
            next_dues = [due for road in self._roads.values() if (due := road.deliver()) is not None]
            due_s = min(next_dues, default=None)

    def _forward(self, source: Site, packet: bytes) -> None:
        is_four = packet[0] >> 4 == 4
        target = self._find(source, str(ipaddress.ip_address(packet[16:20] if is_four else packet[24:40])))
        if target is None:
            return
        time_to_live = packet[8] if is_four else packet[7]
        if time_to_live > len(target.routers):
            way = self._ways(source, target)
            self._choose_road(source, target, way, target.descriptor).enter(packet)
        elif is_four:
            way = Way(self.rtt_ms(source, target))  # the whole round trip at once
            answer = make_time_exceeded(packet, target.routers[time_to_live - 1])
            self._choose_road(source, target, way, source.descriptor).enter(answer)

    def _choose_road(self, source: Site, target: Site, way: Way, sink: int) -> Road:
        key = source.name, target.name, sink == source.descriptor
        if key not in self._roads:
            self._roads[key] = Road(way, sink, f"{source.name} {target.name}")
        return self._roads[key]


def filter_version(version: int, addresses: Iterable[str]) -> list[str]:
    """Return the addresses of one version of IP."""
    return [address for address in addresses if ipaddress.ip_address(address).version == version]


@contextmanager
def enter_site(site: Site) -> Iterator[None]:
    """Move this thread into a site's namespace until the block ends."""
    own_descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    site_descriptor = os.open(Path("/run/netns") / site.namespace, os.O_RDONLY)
    try:
        devices.enter_net(site_descriptor)
        yield
    finally:
        devices.enter_net(own_descriptor)
        os.close(own_descriptor)
        os.close(site_descriptor)


@contextmanager
def _serve_at(site: Site) -> Iterator[None]:
    """Run a site's servers in a thread of its namespace until the block ends."""
    is_ready, is_over, failed = threading.Event(), threading.Event(), list[BaseException]()

    def serve() -> None:
        try:
            with enter_site(site), ExitStack() as stack:
                for address, server in site.servers:
                    stack.enter_context(server(address))
                is_ready.set()
                is_over.wait()
        except BaseException as error:
            failed.append(error)
            is_ready.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    is_ready.wait()
    try:
        if failed:
            raise failed[0]
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def listen(address: str, port: int = 443) -> Iterator[None]:
    """Let the kernel accept connections until the block ends."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, port), family=family):
        yield


def make_time_exceeded(packet: bytes, router: str) -> bytes:
    """Return the ICMP message that a router sends to the sender of a dropped packet (RFC 792)."""
    quoted = packet[: (packet[0] & 15) * 4 + 8]
    message = struct.pack("!BBHI", 11, 0, 0, 0) + quoted
    message = message[:2] + compute_checksum(message) + message[4:]
    address = ipaddress.ip_address(router).packed
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(message), 0, 0, 64, 1, 0) + address + packet[12:16]
    return header[:10] + compute_checksum(header) + header[12:] + message


def compute_checksum(data: bytes) -> bytes:
    """Return the Internet checksum (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)


def hosts_toml(sites: Mapping[str, Site]) -> str:
    """Return the table of hosts for sites that are vantage points, with their positions in degrees."""
    rows = []
    for site in sites.values():
        command = ", ".join(f'"{word}"' for word in site.command("python3"))
        location = f"{site.position.latitude_deg},{site.position.longitude_deg}"
        rows.append(f'[[host]]\nname = "{site.name}"\ncommand = [{command}]\nlabels = {{location = "{location}"}}\n')
    return "\n".join(rows)
