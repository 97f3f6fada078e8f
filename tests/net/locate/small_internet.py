"""A small internet: a network namespace for each site, and packets that take as long as between the cities.

One thread carries IPv4 packets between TUN devices, each to whoever has the address. Where several sites have one, the
nearest gets the packet, as with anycast. On a busy machine packets come later and never earlier, so a truth stays
inside what round trips allow.
"""

from __future__ import annotations

import heapq
import ipaddress
import os
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_cloudbench.net.link import devices
from pytest_cloudbench.net.locate.sphere import Position, distance_km

_MS_PER_KM = 1.2 / 100
_FIXED_MS = 0.4
_STOP = b"s"

Server = Callable[[str], AbstractContextManager[Any]]


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@dataclass
class Site:
    """A namespace at a place, with its addresses. What goes out of a site with a proxy is answered by the proxy's.

    ``routers`` are before it, on the way to it: they drop packets whose time to live is too short, and say so.
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
        """The command that runs a program at the site."""
        return ["ip", "netns", "exec", self.namespace, *words]


class SmallInternet:
    """Sites, and the thread that carries their packets."""

    def __init__(self, *sites: Site) -> None:
        self.sites = {site.name: site for site in sites}
        self._end, self._ask_end = os.pipe()

    def rtt_ms(self, one: Site, other: Site) -> float:
        """The round trip between two sites."""
        return distance_km(one.position, other.position) * _MS_PER_KM + _FIXED_MS

    def __enter__(self) -> SmallInternet:
        self._stack = ExitStack()
        for site in self.sites.values():
            self._open(site)
        carrier = threading.Thread(target=self._carry, daemon=True)
        carrier.start()
        self._stack.callback(carrier.join)
        self._stack.callback(os.write, self._ask_end, _STOP)
        for site in self.sites.values():
            if site.servers:
                self._stack.enter_context(_serve_at(site))
        return self

    def __exit__(self, *reasons: object) -> None:
        self._stack.close()

    def _open(self, site: Site) -> None:
        run("ip", "netns", "add", site.namespace)
        self._stack.callback(run, "ip", "netns", "delete", site.namespace)
        with _inside(site):
            site.descriptor = devices.make_tun("net0")
        self._stack.callback(os.close, site.descriptor)
        inside = ("ip", "-n", site.namespace)
        for device in ("lo", "net0"):
            run(*inside, "link", "set", device, "up")
        for address in site.addresses:
            run(*inside, "address", "add", f"{address}/32", "dev", "net0")
        run(*inside, "route", "add", "default", "dev", "net0", "src", site.addresses[0])
        for client in self.sites.values():
            if client.behind == site.name:  # all that comes is for here, and answers go back
                run(*inside, "route", "add", f"{client.addresses[0]}/32", "dev", "net0")
                run(*inside, "route", "add", "local", "192.0.0.0/2", "dev", "lo", "table", "main")

    def _find(self, source: Site, address: str) -> Site | None:
        if source.behind:
            return self.sites[source.behind]
        holders = [site for site in self.sites.values() if address in site.addresses]
        return min(holders, key=lambda site: self.rtt_ms(source, site)) if holders else None

    def _carry(self) -> None:
        by_descriptor = {site.descriptor: site for site in self.sites.values()}
        waiting: list[tuple[float, int, int, bytes]] = []
        number = 0
        while True:
            timeout_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            ready, _, _ = select.select([*by_descriptor, self._end], [], [], timeout_s)
            if self._end in ready:
                return
            for descriptor in ready:
                packet = os.read(descriptor, 65536)
                if packet[0] >> 4 != 4:
                    continue
                source = by_descriptor[descriptor]
                target = self._find(source, str(ipaddress.ip_address(packet[16:20])))
                if target is not None:
                    number += 1
                    way_s, receiver = self.rtt_ms(source, target) / 2000, target.descriptor
                    if packet[8] <= len(target.routers):  # its time to live
                        way_s, receiver = 2 * way_s, descriptor
                        packet = exceed_time(packet, target.routers[packet[8] - 1])
                    heapq.heappush(waiting, (time.monotonic() + way_s, number, receiver, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, descriptor, packet = heapq.heappop(waiting)
                os.write(descriptor, packet)


@contextmanager
def _inside(site: Site) -> Iterator[None]:
    """Have this thread in a site's namespace for the block."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(Path("/run/netns") / site.namespace, os.O_RDONLY)
    try:
        devices.enter_net(there)
        yield
    finally:
        devices.enter_net(own)
        os.close(own)
        os.close(there)


@contextmanager
def _serve_at(site: Site) -> Iterator[None]:
    """Run a site's servers in a thread of its namespace until the block ends."""
    is_ready, is_over, failed = threading.Event(), threading.Event(), list[BaseException]()

    def serve() -> None:
        try:
            with _inside(site), ExitStack() as stack:
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
    """Accept connections, by the kernel alone."""
    with socket.create_server((address, port)):
        yield


def exceed_time(packet: bytes, router: str) -> bytes:
    """What a router sends to the sender of a packet that it drops (RFC 792)."""
    quoted = packet[: (packet[0] & 15) * 4 + 8]
    message = struct.pack("!BBHI", 11, 0, 0, 0) + quoted
    message = message[:2] + sum_up(message) + message[4:]
    address = ipaddress.ip_address(router).packed
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(message), 0, 0, 64, 1, 0) + address + packet[12:16]
    return header[:10] + sum_up(header) + header[12:] + message


def sum_up(data: bytes) -> bytes:
    """The Internet checksum (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)


def hosts_toml(sites: Mapping[str, Site]) -> str:
    """The table of hosts of sites that are vantage points, with their places in degrees."""
    rows = []
    for site in sites.values():
        command = ", ".join(f'"{word}"' for word in site.command("python3"))
        place = f"{site.position.latitude_deg},{site.position.longitude_deg}"
        rows.append(f'[[host]]\nname = "{site.name}"\ncommand = [{command}]\nlabels = {{location = "{place}"}}\n')
    return "\n".join(rows)
