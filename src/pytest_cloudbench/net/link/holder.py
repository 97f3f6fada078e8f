"""The holder: the one process of a link that has rights. It owns namespaces and devices, forwards, and cleans up.

What may live here: its start, work and end. Only this process and the processes inside own the namespaces and devices,
so the kernel removes them when those are gone. It ends, and ends what runs inside, when its owner closes the pipe, dies
(even by SIGKILL) or asks for it. Talks JSON, one object per line: settings as the argument, then requests on stdin and
answers on stdout.
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
from pytest_cloudbench.net.link.leftovers import Mark, end_all, inside

_POLL_S = 1.0


class _NoDevicesError(OSError):
    """Namespaces work, but nothing here can connect them."""


class _Ends:
    """Both namespaces with their devices; ``ports`` are descriptors to forward between, none with netem."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.namespaces: dict[str, int] = {}
        self.counters: dict[str, int] = {}
        self.ports: dict[str, int] = {}
        self.header_bytes = 0
        self.offloads: dict[str, dict[str, bool]] = {}
        self.has_ipv6 = True
        self.refusals: list[str] = []
        for side in ADDRESSES:
            self.namespaces[side] = devices.new_net()
            self.counters[side] = devices.open_counters()
        self.middle = devices.new_net()
        self.mode = self._connect(settings)
        for side, addresses in ADDRESSES.items():
            devices.enter_net(self.namespaces[side])
            self.offloads[side] = devices.switch_off_offloads(INTERFACE)
            self.has_ipv6 &= devices.set_up(INTERFACE, *addresses)
        devices.enter_net(self.middle)

    def _connect(self, settings: dict[str, Any]) -> str:
        for mode in settings["modes"]:
            devices.enter_net(self.middle)
            try:
                getattr(self, f"_{mode}")(settings)
            except OSError as error:
                self.refusals.append(f"{mode}: {error}")
                self._undo()
            else:
                return str(mode)
        raise _NoDevicesError("; ".join(self.refusals))

    def _undo(self) -> None:
        """Remove what a mode made before it failed."""
        devices.enter_net(self.middle)
        for side in self.namespaces:
            with contextlib.suppress(OSError):
                devices.remove(side)
        for port in self.ports.values():
            os.close(port)
        self.ports = {}

    def _netem(self, settings: dict[str, Any]) -> None:
        """Netem in the middle, because a capture at a sender would see packets only after its own device's netem."""
        devices.make_netem("lo", settings["up"])  # fails if there is no netem at all, before anything is made
        self._veths()
        for side, other, way in (("server", "client", "up"), ("client", "server", "down")):
            devices.redirect(other, side)
            devices.make_netem(side, settings[way])

    def _tun(self, settings: dict[str, Any]) -> None:
        for side, namespace in self.namespaces.items():
            devices.enter_net(namespace)
            self.ports[side] = devices.make_tun(INTERFACE)

    def _packet(self, settings: dict[str, Any]) -> None:
        self._veths()
        self.ports = {side: devices.forwarding_socket(side) for side in self.namespaces}
        self.header_bytes = 14

    def _veths(self) -> None:
        """A veth pair for each side: one end there, the other in the middle, named after the side."""
        for side, namespace in self.namespaces.items():
            devices.make_veth(side, INTERFACE, namespace)
            devices.switch_off_offloads(side)
            devices.bring_up(side)


class _Holder:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.owner = Mark.parse(settings["mark"])
        if settings["user_namespace"]:
            devices.enter_user_namespace()
        self.ends = _Ends(settings)
        self.directions: dict[str, Direction] = {}
        self.interrupter: Interrupter | None = None
        ports, header_bytes = self.ends.ports, self.ends.header_bytes
        if ports:
            for name, source, sink in (("up", "client", "server"), ("down", "server", "client")):
                seed = f"{settings['seed']} {name}"
                self.directions[name] = Direction(ports[source], ports[sink], header_bytes, settings[name], seed)
            headers = devices.link_headers(header_bytes)
            self.interrupter = Interrupter(self.directions["up"], self.directions["down"], headers)
        self.requests = b""

    def say(self, **answer: Any) -> None:
        os.write(1, json.dumps(answer).encode() + b"\n")

    def ready(self) -> None:
        ends = self.ends
        self.say(
            ok=True,
            pid=os.getpid(),
            namespaces=ends.namespaces,
            mode=ends.mode,
            refusals=ends.refusals,
            offloads=ends.offloads,
            has_ipv6=ends.has_ipv6,
        )

    def serve(self) -> None:
        """Forward packets and answer requests until the owner is gone."""
        directions = list(self.directions.values())
        sources = {direction.source: direction for direction in directions}
        watched = [0, *sources]
        look_s = time.monotonic() + _POLL_S
        while True:
            due_s = look_s
            for direction in directions:
                next_s = direction.release()
                if next_s is not None and next_s < due_s:
                    due_s = next_s
            if self.interrupter is not None and self.interrupter.armed is not None:
                self.interrupter.tick()
                due_s = min(due_s, self.interrupter.due_s() or due_s)
            wait_s = due_s - time.monotonic()
            # select, because its timeout is precise to some microseconds; epoll's is in milliseconds
            for descriptor in select.select(watched, (), (), max(wait_s, 0.0))[0]:
                if descriptor:
                    sources[descriptor].take()
                elif not self.read_requests():
                    return
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + _POLL_S
                if not self.owner.is_alive():
                    return

    def read_requests(self) -> bool:
        """Answer pending requests; False at the end of input."""
        data = os.read(0, 65536)
        self.requests += data
        while b"\n" in self.requests:
            line, self.requests = self.requests.split(b"\n", 1)
            request = json.loads(line)
            if "interrupt" in request and self.interrupter is not None:
                self.interrupter.arm(**request["interrupt"])
            self.say(ok=True, **self.stats())
        return bool(data)

    def stats(self) -> dict[str, Any]:
        """Counts since the start."""
        seen = {side: devices.read_counters(counters, INTERFACE) for side, counters in self.ends.counters.items()}
        for name, side in (("up", "client"), ("down", "server")) if self.directions else ():
            counts = self.directions[name].counts
            if self.ends.header_bytes:
                counts.missed += devices.count_missed(self.ends.ports[side])
            else:
                counts.missed = seen[side]["sent_dropped"]
        return {
            "directions": {name: asdict(direction.counts) for name, direction in self.directions.items()},
            "devices": seen,
            "interruptions": self.interrupter.records() if self.interrupter else [],
        }


def main() -> int:
    """Run the holder (``argv[1]`` is its settings); the exit status."""
    settings = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        holder = _Holder(settings)
    except OSError as error:
        answer = {"ok": False, "error": str(error), "has_namespaces": isinstance(error, _NoDevicesError)}
        os.write(1, json.dumps(answer).encode() + b"\n")
        return 1
    with contextlib.suppress(OSError):  # a user namespace has no right to this
        os.nice(-15)  # a network does not wait for the programs that use it
        with open("/proc/self/autogroup", "w", encoding="ascii") as file:  # the same for its own session
            file.write("-15")
    gc.disable()  # a collection is a pause in which packets wait; there are no cycles here
    try:
        holder.ready()
        holder.serve()
    finally:
        with contextlib.suppress(OSError):
            end_all(inside(set(holder.ends.namespaces.values())))
    return 0
