"""The network that a client runs in, which tells the client's packets: a link of its own, or the user's interface.

Sessions, activities and transfers need a network to run a client in it, to capture there, and to describe it. What was
sent, and what follows from it, does not belong here.
"""

from __future__ import annotations

import mmap
import socket
import statistics
import struct
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pytest_cloudbench.lab.clients.base import ClientUnavailable, Outside, Proof, SyncClient
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.capture import Capture, CaptureResult
from pytest_cloudbench.net.link import Link, LinkUnavailable, Way
from pytest_cloudbench.net.traffic import Analysis, Flow, Whose, analyze
from pytest_cloudbench.net.traffic.replies import measure_round_trips
from pytest_cloudbench.results import journal
from pytest_cloudbench.results.owner import owner_text
from pytest_cloudbench.support.wording import format_count

_Result = TypeVar("_Result")

_CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"
_NAMES_SHOWN = 4


class Network(Protocol):
    """A network with one client in it, from ``open`` to ``close``."""

    @property
    def link(self) -> Link | None:
        """The link, which can be shaped and interrupted, or None on the user's own network."""
        ...

    @property
    def round_trip_s(self) -> float | None:
        """The time between the client and its server, as requested or as seen so far, or None if unknown."""
        ...

    def open(self, client: SyncClient, workdir: Path) -> None:
        """Prepare the client to run here. Raises LinkUnavailable or ClientUnavailable if either is missing."""
        ...

    def close(self) -> None:
        """Stop the client, and remove what was made for it. Safe to call again."""
        ...

    def capture(self, path: Path, about: Mapping[str, Any]) -> Capture:
        """Return a capture, not yet open, of what the client sends and receives."""
        ...

    def read_capture(
        self, capture: CaptureResult, read: Callable[[Analysis], _Result]
    ) -> tuple[_Result | None, tuple[str, ...]]:
        """Return what ``read`` returns for the client's packets in a capture, or None and the reasons.

        ``read`` must keep no columns of the analysis, which are valid only while the file is mapped.
        """
        ...

    def congestion_control(self) -> str:
        """Return the kernel's name for the client's congestion control.

        It decides results with loss or long round trips.
        """
        ...

    def record(self) -> dict[str, Any]:
        """Return the network as plain data, to store beside results."""
        ...

    def notes(self) -> list[str]:
        """Return what a reader of numbers from this network should know."""
        ...

    def doubts(self) -> list[str]:
        """Return why numbers may be wrong although each capture is complete."""
        ...

    def others_text(self, least_bytes: int) -> str:
        """Return other servers in the last capture, as text to append to a message, or nothing if there were none."""
        ...


def network_of(
    client: SyncClient, up: Way, down: Way | None = None, *, stream_s: float | None = None, seed: int = 0,
    rights: str = "auto",
) -> Network:  # fmt: skip
    """Return the user's interface for a client outside the lab, and otherwise a link of its own, see ``OwnLink``."""
    if client.facts.outside is not None:
        return UsersInterface(client.facts.outside)
    return OwnLink(up, down, stream_s=stream_s, seed=seed, rights=rights)


class OwnLink:
    """Two network namespaces with a link between them: the client in one, its server in the other, and nobody else.

    Args:
        up, down: the link. ``down`` is the same as ``up`` if omitted.
        stream_s: the time that one TCP stream runs in each direction to measure the link's rate. With 0, only delay and
            loss are measured. With None, nothing is.
        interruptible, seed, rights: see ``link.Link``.
    """

    def __init__(
        self, up: Way, down: Way | None = None, *, stream_s: float | None = None, interruptible: bool = False,
        seed: int = 0, rights: str = "auto",
    ) -> None:  # fmt: skip
        self.link: Link = Link(up, down, interruptible=interruptible, seed=seed, rights=rights)
        self._stream_s = stream_s
        self._stack = ExitStack()

    @property
    def round_trip_s(self) -> float | None:
        """The round trip as requested."""
        return (self.link.up.delay_ms + self.link.down.delay_ms) / 1e3

    def open(self, client: SyncClient, workdir: Path) -> None:
        """Make the link, measure it, and prepare both halves at its two ends."""
        if client.facts.outside is not None:
            raise LinkUnavailable(
                f"client {client.facts.name} is on the user's own network, which cannot be shaped here"
            )
        with self._stack:
            self._stack.enter_context(self.link)
            if self._stream_s is not None:
                measure_link(self.link, self._stream_s)
            self._stack.callback(client.stop)
            server_ip, client_ip = self.link.address("server"), self.link.address("client")
            client.prepare(workdir, server_address=server_ip, client_address=client_ip, runner=self.link)
            self._stack = self._stack.pop_all()

    def close(self) -> None:
        """Stop the client and end the link."""
        self._stack.close()

    def capture(self, path: Path, about: Mapping[str, Any]) -> Capture:
        """Capture on the client's side."""
        return Capture(self.link.interface, path, netns=self.link.enter("client", as_root=True), comment=about)

    def read_capture(
        self, capture: CaptureResult, read: Callable[[Analysis], _Result]
    ) -> tuple[_Result | None, tuple[str, ...]]:
        """Read every packet of the capture: all are the client's."""
        return analyze_capture(capture, read, client=(self.link.address("client"),))

    def congestion_control(self) -> str:
        """Return the congestion control of the client's namespace."""
        cat = self.link.run("client", ["cat", _CONGESTION_CONTROL], capture_output=True, text=True)
        return str(cat.stdout).strip() or "unknown"

    def record(self) -> dict[str, Any]:
        """Return the link as requested and as delivered."""
        return self.link.record()

    def notes(self) -> list[str]:
        """Return where client and server run.

        Bytes and waits do not depend on how exactly the link keeps its delay.
        """
        ways = dict.fromkeys(f"{way.delay_ms:g} ms" for way in (self.link.up, self.link.down))
        return [
            f"client and server are on this machine, with a link of {' and '.join(ways)} each way between them",
            *(f"the link did not deliver what was asked: {deviation}" for deviation in self.link.deviations()),
        ]

    def doubts(self) -> list[str]:
        """Return the figures in which the link differs from what was requested."""
        return link_doubts(self.link)

    def others_text(self, least_bytes: int) -> str:
        """Return nothing: the client is alone."""
        del least_bytes
        return ""


class UsersInterface:
    """An interface of this machine that other programs use, too. The network is measured and not shaped.

    The client's flows are identified by their servers' names or addresses (``net.traffic.owners``). Flows that cannot
    be identified are not counted, and the notes say how much that was.
    """

    link = None

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._whose = Whose(outside.names, tuple(ip_network(server) for server in outside.servers))
        self._addresses: tuple[str, ...] = ()
        self._client: SyncClient | None = None
        self._known_by: dict[object, str] = {}
        self._servers: dict[str, None] = {}
        self._nameless: Counter[object] = Counter()
        self._others: set[object] = set()
        self._sent_to_others: Counter[str] = Counter()
        self._handshakes = 0
        self._handshakes_s: dict[str, float] = {}
        self._answers_s: dict[str, float] = {}

    @property
    def round_trip_s(self) -> float | None:
        """The median over servers of the quickest handshake, or without handshakes of the quickest acknowledgement.

        A busy machine makes a handshake slower and never quicker, so slower ones say nothing about the network.
        """
        times_s = self._handshakes_s or self._answers_s
        return statistics.median(times_s.values()) if times_s else None

    def open(self, client: SyncClient, workdir: Path) -> None:
        """Find out what to capture. Raises ClientUnavailable if that is not specified."""
        name, outside = client.facts.name, self._outside
        if not outside.interface:
            interfaces = ", ".join(interface for _, interface in socket.if_nameindex())
            raise ClientUnavailable(f"{name}: give interface, the one that the client uses; there are: {interfaces}")
        if not outside.names and not outside.servers:
            raise ClientUnavailable(
                f"{name}: cannot identify the client's traffic on {outside.interface}; give names, product or servers"
            )
        self._addresses = outside.addresses or interface_addresses(outside.interface)
        if not self._addresses:
            raise ClientUnavailable(f"{name}: no address of {outside.interface} is known; give address")
        self._client = client
        journal.note_folder(*_journal_key(client), owner_text())
        try:
            client.prepare(workdir)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the client's new folder. The client itself runs on."""
        client, self._client = self._client, None
        if client is not None:
            client.stop()
            if not client.folder.exists():
                journal.forget_folder(*_journal_key(client))

    def capture(self, path: Path, about: Mapping[str, Any]) -> Capture:
        """Capture on the interface, and only the client's flows if their addresses alone identify them."""
        packet_filter = None if self._outside.names else " or ".join(f"net {server}" for server in self._whose.servers)
        return Capture(self._outside.interface, path, comment=about, filter=packet_filter)

    def read_capture(
        self, capture: CaptureResult, read: Callable[[Analysis], _Result]
    ) -> tuple[_Result | None, tuple[str, ...]]:
        """Read only the packets that are known to be the client's."""

        def count_and_read(analysis: Analysis) -> _Result:
            self._count_flows(analysis)
            return read(analysis)

        return analyze_capture(capture, count_and_read, client=self._addresses, whose=self._whose)

    def congestion_control(self) -> str:
        """Return the congestion control of this machine."""
        try:
            return Path(_CONGESTION_CONTROL).read_text("ascii").strip()
        except OSError:
            return "unknown"

    def record(self) -> dict[str, Any]:
        """Return what was captured, how flows were told apart, and the round trip that was seen."""
        return {
            "asked": None, "delivered": None, "mode": "the user's own network, not shaped",
            "interface": self._outside.interface, "addresses": list(self._addresses),
            "names": list(self._outside.names), "servers": list(self._outside.servers),
            "round_trip_s": self.round_trip_s, "handshakes": self._handshakes,
            "flows_by": dict(Counter(self._known_by.values())), "flows_of_others": len(self._others),
            "nameless": {"flows": len(self._nameless), "wire_bytes": self._nameless.total()},
            "seen_servers": list(self._servers),
        }  # fmt: skip

    def notes(self) -> list[str]:
        """Return where the client was measured, how flows were identified, and how many were not counted."""
        outside, trip_s = self._outside, self.round_trip_s
        source = "handshakes" if self._handshakes_s else "acknowledgements"
        trip_text = "not known" if trip_s is None else f"{_format_ms(trip_s)}, measured from {source}"
        signs = [("name", outside.names), ("server address", outside.servers)]
        recognised = " and ".join(f"{noun} ({_join_some(values)})" for noun, values in signs if values)
        counts = (
            ", ".join(f"{count} by {name}" for name, count in Counter(self._known_by.values()).items())
            or "none was seen"
        )
        notes = [
            f"the user's own client on interface {outside.interface}, over a network that is not shaped: round trip "
            f"{trip_text}",
            f"flows are recognised by {recognised}: {counts}; name resolution is not counted",
            "times until the network was quiet may be up to 4 s longer than the client took: others send there, too",
        ]
        if self._nameless:
            flows, size = len(self._nameless), self._nameless.total()
            notes.append(
                f"{format_count(flows, 'flow')} / {format_count(size, 'byte')} without a name on this interface: not "
                "counted"
            )
        return notes

    def doubts(self) -> list[str]:
        """Return none. Traffic without a name is a doubt about the time in which it was seen."""
        return []

    def others_text(self, least_bytes: int) -> str:
        """Return the names of servers used by other programs, for a message to the user, but never for a result."""
        others = [
            f"{name} ({size:,} bytes)" for name, size in self._sent_to_others.most_common() if size >= least_bytes
        ]
        return f"; in that time most went to {', '.join(others[:_NAMES_SHOWN])}" if others else ""

    def _count_flows(self, analysis: Analysis) -> None:
        """Add the flows of a capture to the counts of the client's own, of others' and of unknown ones."""
        owners = analysis.sorted
        assert owners is not None
        # A connection that several captures show counts once.
        self._known_by |= {_flow_key(flow): owners.by[flow.number] for flow in owners.own}
        self._others |= {_flow_key(flow) for flow in owners.others}
        self._sent_to_others = Counter()
        for flow in owners.others:
            self._sent_to_others[owners.names.get(flow.number, str(flow.server))] += flow.up.unique_bytes
        for flow in owners.nameless:
            self._nameless[_flow_key(flow)] += flow.up.wire_bytes + flow.down.wire_bytes
        for facts in analysis.facts:
            server, never_s = owners.names.get(facts.flow.number, facts.names[0]), float("inf")
            self._servers[server] = None
            if facts.flow.initial_rtt_ns is not None:
                self._handshakes += 1
                quickest_s = min(self._handshakes_s.get(server, never_s), facts.flow.initial_rtt_ns / 1e9)
                self._handshakes_s[server] = quickest_s
            elif (trips := measure_round_trips(analysis.table, facts.flow, up=True)) is not None:
                self._answers_s[server] = min(self._answers_s.get(server, never_s), trips["min"])


def _journal_key(client: SyncClient) -> tuple[str, str]:
    """Return provider and path of the client's new folder, by which ``cloudbench clean`` finds it after a kill."""
    return f"folder:{client.folder.parent.resolve()}", f"/{client.folder.name}"


def _format_ms(time_s: float) -> str:
    """Format a time with few digits, so that the entries of one run say the same."""
    return f"{1e3 * time_s:.0f} ms" if time_s >= 0.01 else f"{1e3 * time_s:.2g} ms"


def _flow_key(flow: Flow) -> tuple[object, ...]:
    return flow.protocol, flow.client, flow.client_port, flow.server, flow.server_port


def analyze_capture(
    capture: CaptureResult, read: Callable[[Analysis], _Result], *, client: Sequence[str] = (),
    whose: Whose | None = None,
) -> tuple[_Result | None, tuple[str, ...]]:  # fmt: skip
    """Return what ``read`` returns for a capture's packets, or None and the reasons.

    Args:
        capture: one that has ended.
        read: called with the analysis. It must keep no columns, which are valid only while the file is mapped.
        client: the client's addresses. If omitted, the client of each flow is the end that opened it.
        whose: tells the client's flows, if other programs use the same addresses.
    """
    if capture.reasons:
        return None, tuple(f"capture: {reason}" for reason in capture.reasons)
    with capture.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            analysis: Analysis = analyze(data, source=capture.path.name, client=client, whose=whose)
        except UsageError as error:  # there are packets, but none of the client's
            return None, (str(error),)
        result = read(analysis)
        del analysis
    return result, ()


def proof_notes(proofs: Collection[Proof]) -> list[str]:
    """Return notes on how it was known that the server had everything."""
    notes = {
        Proof.CLIENT: "that the server had everything is the client's own word: what the server holds was not compared",
        Proof.QUIET: "a quiet network is taken as a sign that the server had everything, which is weaker than checking "
        "the server; times until it was in sync include the quiet seconds",
    }
    return [note for proof, note in notes.items() if proof in proofs]


def _join_some(values: tuple[str, ...]) -> str:
    return ", ".join(values[:_NAMES_SHOWN]) + (", ..." if len(values) > _NAMES_SHOWN else "")


def measure_link(link: Link, stream_s: float) -> None:
    """Measure what the link delivers.

    Measure it again if that is not as requested, since the machine may have been busy.
    """
    if not link.measure(stream_s=stream_s).is_as_asked:
        link.measure(stream_s=stream_s)


def link_doubts(link: Link) -> list[str]:
    """Return how a link differs from what was requested, also while a client used it."""
    unmeasured = [] if link.delivered is not None else ["it was not measured"]
    return [f"link: {text}" for text in [*unmeasured, *link.deviations()]]


# --- addresses of an interface ---

_GET_ADDRESS, _NEW_ADDRESS = 22, 20
_REQUEST_OF_ALL = 0x301  # NLM_F_REQUEST with NLM_F_DUMP
_ADDRESS, _LOCAL = 1, 2
"""Types of attributes: the address of the interface or, of two ends, the other one's, and the interface's own."""


def interface_addresses(interface: str) -> tuple[str, ...]:
    """Return all addresses of an interface from the kernel (rtnetlink(7)), or none outside Linux."""
    family = getattr(socket, "AF_NETLINK", None)
    if family is None or interface not in [name for _, name in socket.if_nameindex()]:
        return ()
    index, addresses = socket.if_nametoindex(interface), list[str]()
    with socket.socket(family, socket.SOCK_RAW, 0) as kernel:
        # The head of a message (length, type, flags, number, port), then the one of a question about addresses.
        kernel.send(struct.pack("=IHHIIBBBBi", 24, _GET_ADDRESS, _REQUEST_OF_ALL, 1, 0, socket.AF_UNSPEC, 0, 0, 0, 0))
        while True:
            data = kernel.recv(1 << 16)
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind == _NEW_ADDRESS and struct.unpack_from("=i", data, 20)[0] == index:
                    attributes = dict(_read_attributes(data[24:length]))
                    address = attributes.get(_LOCAL, attributes.get(_ADDRESS, b""))  # of two ends, the first is ours
                    addresses.append(str(ip_address(address)))
                elif kind != _NEW_ADDRESS:  # the end of the list, or an error
                    return tuple(dict.fromkeys(addresses))
                data = data[(length + 3) & ~3 :]


def _read_attributes(data: bytes) -> list[tuple[int, bytes]]:
    """Return type and value of each attribute. Their lengths count the four bytes of their heads, and no padding."""
    attributes = []
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        attributes.append((kind, data[4:length]))
        data = data[(max(length, 4) + 3) & ~3 :]  # each begins at a multiple of four
    return attributes
