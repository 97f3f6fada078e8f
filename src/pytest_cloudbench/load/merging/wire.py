"""The bytes of TCP connections between a run and its services, and the packets if they are captured.

What may live here: which connections and packets belong to the services, when their counts can be trusted, and the
entry's values about them. The controller counts with ``sockets``, and one agent captures for all with ``capture``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.fleet.messages import Message
from pytest_cloudbench.model import CloudbenchError, UsageError, Verb
from pytest_cloudbench.net.sockets.sums import Carried
from pytest_cloudbench.providers.for_agents import Provided

if TYPE_CHECKING:
    from pytest_cloudbench.load.experiment import Experiment, Result
    from pytest_cloudbench.load.messages import Start
    from pytest_cloudbench.net.capture import Capture
    from pytest_cloudbench.net.sockets.counter import TcpCounter

_HTTPS_PORTS = (443,)
_LOOPBACK = "lo"
_SNAP_BYTES = 128


def start_counting(requests: Iterable[Start], provided: Provided | None) -> TcpCounter:
    """Begin to count the bytes of a run's connections, given the requests of all its agents.

    Connections to services of the run are recognized by the addresses of these services. Those in ``provided`` are
    preferred, because agents on other hosts know other addresses than this machine. Of any other provider, only the
    processes of its clients are known.
    """
    from pytest_cloudbench.net.sockets.counter import OwnCounter, ServiceCounter

    agents = list(requests)
    addresses = agents[0].addresses if provided is None else provided.addresses
    return OwnCounter(agent.pid for agent in agents) if addresses == () else ServiceCounter(addresses)


def stop_counting(counter: TcpCounter) -> Carried:
    """Return the bytes of the clients' connections, without this package's own checks that a service still answers."""
    from pytest_cloudbench.services.child import HEALTH_CHECK_SOCKETS

    return counter.stop(HEALTH_CHECK_SOCKETS)


def trusted_counts(carried: Carried, operation: Verb, payload_bytes: int, missing: Collection[str]) -> Carried:
    """Return the counts of a run, or the reason why they cannot be those of all its operations.

    Args:
        carried: the counts.
        operation: the measured operation.
        payload_bytes: content bytes of the operations that succeeded.
        missing: agents that were lost.
    """
    if carried.bytes is None:
        return carried
    if missing:
        return Carried(why="an agent was lost, so it is not known how many operations these bytes are of")
    if operation in (Verb.PUT, Verb.GET) and carried.bytes < payload_bytes:
        remark = f"only {carried.bytes:,} bytes were counted for a payload of {payload_bytes:,}"
        return Carried(why=f"{remark}: the client compresses, or it has other connections")
    return carried


def wire_info(carried: Carried) -> dict[str, Any]:
    """Return the source of ``wire_bytes_per_op`` for the entry, or why it is unknown."""
    is_known = carried.bytes is not None
    return {
        "wire_by": "socket counters" if is_known else None,
        "wire_connections": carried.connections if is_known else None,
        "wire_unknown": carried.why or None,
    }


class WireSeen(Message, frozen=True):
    """The packets of one run.

    Attributes:
        bytes: the bytes of all packets, with their headers, in both directions. None if unknown.
        packets: the number of packets.
        unique_bytes: the bytes that TCP carried in both directions, each once, as ``sockets`` counts them. None if
            unknown.
        why: the reason if they are unknown, or an empty text.
    """

    bytes: int | None = None
    packets: int = 0
    why: str = ""
    unique_bytes: int | None = None


@dataclass(slots=True)
class Wire:
    """The capture of runs of one experiment.

    Attributes:
        experiment: the experiment that runs.
        interface: the network interface, empty for loopback, where emulators and local servers are.
        notes: remarks for a reader of the numbers.
    """

    experiment: Experiment
    interface: str = ""
    notes: list[str] = field(default_factory=list)
    _captures: int = 0
    _open: Capture | None = None

    def of(self, run: Callable[[], Result]) -> tuple[Result, WireSeen]:
        """Call ``run`` while its packets are captured. All agents call this together."""
        self._captures += 1
        agent, number = self.experiment.agent, self._captures
        problem = agent.once(f"wire:{self.experiment.nodeid}:{number}:start", self._start_capture)
        try:
            result = run()
        finally:
            message = agent.once(
                f"wire:{self.experiment.nodeid}:{number}:stop", lambda: self._stop_capture(str(problem)).plain()
            )
        return result, WireSeen.from_plain(message)

    def _start_capture(self) -> str:
        """Begin to capture. Return the reason if that is impossible, or an empty text."""
        from pytest_cloudbench.net.capture import Capture

        try:
            interface, ports = self._interface_and_ports()
            path = self.experiment.folder / f"wire-{self._captures}.pcapng"
            path.parent.mkdir(parents=True, exist_ok=True)
            port_filter = " or ".join(f"port {port}" for port in ports)
            capture = Capture(interface, path, filter=port_filter, snaplen=_SNAP_BYTES)
            with self.experiment.agent.sign_of_life():
                capture.__enter__()
        except (CloudbenchError, OSError) as error:
            return str(error)
        self._open = capture
        return ""

    def _stop_capture(self, problem: str) -> WireSeen:
        from pytest_cloudbench.net.dissect import open_capture
        from pytest_cloudbench.net.traffic import analyze

        capture, self._open = self._open, None
        if capture is None:
            return WireSeen(why=problem or "nothing was captured")
        result = capture.stop()
        try:
            if not result.is_valid:
                return WireSeen(why=f"the capture is not complete: {'; '.join(result.reasons)}")
            with open_capture(result.path) as (data, release):
                analysis = analyze(data, source=result.path.name, release=release)
                unique_bytes = int(analysis.table.sums["unique_bytes"].sum())
                return WireSeen(analysis.wire_bytes, result.packets, unique_bytes=unique_bytes)
        except UsageError as error:
            return WireSeen(why=str(error))
        finally:
            result.path.unlink(missing_ok=True)

    def _interface_and_ports(self) -> tuple[str, list[int]]:
        """Return the interface and the ports of the service. Raises UsageError if they are unknown."""
        answer: Any = self.experiment.agent.ask("provide", self.experiment.provider.spec)
        provided = Provided.from_plain(answer)
        agent = self.experiment.agent
        is_partial = provided.endpoint is None or not agent.same_clock  # services' packets are all on the controller
        if is_partial and agent.count > 1 and agent.ask("has_hosts"):
            raise UsageError("agents are on several machines, and none sees the packets of all")
        if provided.children:
            raise UsageError("a provider made of others has no packets of its own")
        if provided.endpoint is None:
            if not self.interface:
                raise UsageError("name the interface that leads to this provider: --cloudbench-capture=eth0")
            note = f"wire bytes: everything on port 443 of {self.interface}, also that of other programs"
            self.notes += [] if note in self.notes else [note]
            return self.interface, list(_HTTPS_PORTS)
        return self.interface or _LOOPBACK, sorted({port for _, port in provided.endpoint.addresses})
