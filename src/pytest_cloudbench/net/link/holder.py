"""The holder, the privileged process of a link: it owns namespaces and devices, forwards packets, and cleans up.

Only this process and the processes inside own the namespaces and devices, so the kernel removes them when those
processes are gone. The holder ends, and ends all processes inside, when its owner closes the pipe or dies (even by
SIGKILL). It gets its settings as an argument, reads requests from stdin and writes answers to stdout, one JSON object
per line.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
from dataclasses import asdict
from typing import Any

from pytest_cloudbench.net.link import devices
from pytest_cloudbench.net.link.devices import ADDRESSES, INTERFACE
from pytest_cloudbench.net.link.forward import Direction, Interrupter
from pytest_cloudbench.net.link.leftovers import Mark, end_all, find_inside

_POLL_S = 1.0


class _NoDevicesError(OSError):
    """Network namespaces work here, but no mode can connect them."""


class _Network:
    """Both namespaces with their devices. ``ports`` holds the descriptors to forward between, none with netem."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.namespaces: dict[str, int] = {}
        self.counters: dict[str, int] = {}
        self.ports: dict[str, int] = {}
        self.header_bytes = 0
        self.offloads: dict[str, dict[str, bool]] = {}
        self.has_ipv6 = True
        self.refusals: list[str] = []
        for side in ADDRESSES:
            self.namespaces[side] = devices.enter_new_net()
            self.counters[side] = devices.open_counters()
        self.middle = devices.enter_new_net()
        self.mode = self._connect_sides(settings)
        for side, addresses in ADDRESSES.items():
            devices.enter_net(self.namespaces[side])
            self.offloads[side] = devices.switch_off_offloads(INTERFACE)
            self.has_ipv6 &= devices.set_up_device(INTERFACE, *addresses)
        devices.enter_net(self.middle)

    def _connect_sides(self, settings: dict[str, Any]) -> str:
        for mode in settings["modes"]:
            devices.enter_net(self.middle)
            try:
                getattr(self, f"_connect_{mode}")(settings)
            except OSError as error:
                self.refusals.append(f"{mode}: {error}")
                self._remove_devices()
            else:
                return str(mode)
        raise _NoDevicesError("; ".join(self.refusals))

    def _remove_devices(self) -> None:
        """Remove the devices that a mode created before it failed."""
        devices.enter_net(self.middle)
        for side in self.namespaces:
            with contextlib.suppress(OSError):
                devices.remove_device(side)
        for port in self.ports.values():
            os.close(port)
        self.ports = {}

    def _connect_netem(self, settings: dict[str, Any]) -> None:
        """Apply netem in the middle, because a sender's capture would see packets only after its own device's netem."""
        devices.make_netem("lo", settings["up"])  # if there is no netem, this fails before any device is created
        self._make_veths()
        for side, other, way in (("server", "client", "up"), ("client", "server", "down")):
            devices.redirect_packets(other, side)
            devices.make_netem(side, settings[way])

    def _connect_tun(self, settings: dict[str, Any]) -> None:
        for side, namespace in self.namespaces.items():
            devices.enter_net(namespace)
            self.ports[side] = devices.make_tun(INTERFACE)

    def _connect_packet(self, settings: dict[str, Any]) -> None:
        self._make_veths()
        self.ports = {side: devices.open_packet_socket(side) for side in self.namespaces}
        self.header_bytes = 14

    def _make_veths(self) -> None:
        """Create a veth pair for each side. Its other end is in the middle and named after the side."""
        for side, namespace in self.namespaces.items():
            devices.make_veth(side, INTERFACE, namespace)
            devices.switch_off_offloads(side)
            devices.bring_up(side)


class _Holder:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.owner = Mark.parse(settings["mark"])
        if settings["user_namespace"]:
            devices.enter_user_namespace()
        self.network = _Network(settings)
        self.directions: dict[str, Direction] = {}
        self.interrupter: Interrupter | None = None
        ports, header_bytes = self.network.ports, self.network.header_bytes
        if ports:
            for name, source, sink in (("up", "client", "server"), ("down", "server", "client")):
                seed = f"{settings['seed']} {name}"
                self.directions[name] = Direction(ports[source], ports[sink], header_bytes, settings[name], seed)
            headers = devices.make_link_headers(header_bytes)
            self.interrupter = Interrupter(self.directions["up"], self.directions["down"], headers)
        self.requests = b""

    def send_answer(self, **answer: Any) -> None:
        os.write(1, json.dumps(answer).encode() + b"\n")

    def announce(self) -> None:
        network = self.network
        self.send_answer(
            ok=True,
            pid=os.getpid(),
            namespaces=network.namespaces,
            mode=network.mode,
            refusals=network.refusals,
            offloads=network.offloads,
            has_ipv6=network.has_ipv6,
        )

    def serve(self) -> None:
        """Forward packets and answer requests until the owner is gone."""
        directions = list(self.directions.values())
        sources = {direction.source: direction for direction in directions}
        descriptors = [0, *sources]
        owner_check_s = time.monotonic() + _POLL_S
        while True:
            due_s = owner_check_s
            for direction in directions:
                next_s = direction.write_due_packets()
                if next_s is not None and next_s < due_s:
                    due_s = next_s
            if self.interrupter is not None and self.interrupter.armed is not None:
                self.interrupter.start_if_due()
                due_s = min(due_s, self.interrupter.due_s() or due_s)
            wait_s = due_s - time.monotonic()
            # select's timeout is precise to some microseconds, while epoll's is in milliseconds
            for descriptor in select.select(descriptors, (), (), max(wait_s, 0.0))[0]:
                if descriptor:
                    sources[descriptor].read_packets()
                elif not self.answer_requests():
                    return
            if time.monotonic() >= owner_check_s:
                owner_check_s = time.monotonic() + _POLL_S
                if not self.owner.is_alive():
                    return

    def answer_requests(self) -> bool:
        """Answer pending requests, and return False at the end of input."""
        data = os.read(0, 65536)
        self.requests += data
        while b"\n" in self.requests:
            line, self.requests = self.requests.split(b"\n", 1)
            request = json.loads(line)
            if "interrupt" in request and self.interrupter is not None:
                self.interrupter.arm(**request["interrupt"])
            self.send_answer(ok=True, **self.count_all())
        return bool(data)

    def count_all(self) -> dict[str, Any]:
        """Return all counts since the start."""
        device_counts = {
            side: devices.read_counters(counters, INTERFACE) for side, counters in self.network.counters.items()
        }
        for name, side in (("up", "client"), ("down", "server")) if self.directions else ():
            counts = self.directions[name].counts
            if self.network.header_bytes:
                counts.missed += devices.count_missed(self.network.ports[side])
            else:
                counts.missed = device_counts[side]["sent_dropped"]
        return {
            "directions": {name: asdict(direction.counts) for name, direction in self.directions.items()},
            "devices": device_counts,
            "interruptions": self.interrupter.records() if self.interrupter else [],
        }


def main() -> int:
    """Run the holder with the settings in ``argv[1]``, and return the exit status."""
    settings = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        holder = _Holder(settings)
    except OSError as error:
        answer = {"ok": False, "error": str(error), "has_namespaces": isinstance(error, _NoDevicesError)}
        os.write(1, json.dumps(answer).encode() + b"\n")
        return 1
    with contextlib.suppress(OSError):  # not permitted in a user namespace
        os.nice(-15)  # programs that use the link must not delay it
        with open("/proc/self/autogroup", "w", encoding="ascii") as file:  # nice compares within a session only
            file.write("-15")
    gc.disable()  # packets would wait during a collection, and there are no cycles to collect
    try:
        holder.announce()
        holder.serve()
    finally:
        with contextlib.suppress(OSError):
            end_all(find_inside(set(holder.network.namespaces.values())))
    return 0
