"""What a run puts on the wire: bytes of TCP connections to its services, and packets if they are captured.

What may live here: which connections and packets are the services', when their counts are believed, and what an entry
says of them. ``sockets`` does the counting, by the controller; ``capture`` the capturing, by one agent for all.
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

_USUAL = (443,)
_LOOPBACK = "lo"
_SNAP_BYTES = 128


def begin(asked: Iterable[Start]) -> TcpCounter:
    """Count from now on what the connections of a run carry, given what all its agents say of it.

    Connections to services of the run are known by where these listen. Of any other provider, only which processes the
    clients are is known.
    """
    from pytest_cloudbench.net.sockets.counter import OwnCounter, ServiceCounter

    agents = list(asked)
    addresses = agents[0].addresses
    return OwnCounter(each.pid for each in agents) if addresses == () else ServiceCounter(addresses)


def ended(counter: TcpCounter) -> Carried:
    """Return what the clients' connections have carried; questions whether a service still answers are left out."""
    from pytest_cloudbench.services.child import OWN_QUESTIONS

    return counter.stop(OWN_QUESTIONS)


def believed(found: Carried, operation: Verb, payload_bytes: int, missing: Collection[str]) -> Carried:
    """Return what was counted for a run, unless something shows that it is not what all its operations have carried.

    Args:
        found: what was counted.
        operation: what was measured.
        payload_bytes: of operations that succeeded.
        missing: agents that were lost.
    """
    if found.bytes is None:
        return found
    if missing:
        return Carried(why="an agent was lost, so it is not known how many operations these bytes are of")
    if operation in (Verb.PUT, Verb.GET) and found.bytes < payload_bytes:
        counted = f"only {found.bytes:,} bytes were counted for a payload of {payload_bytes:,}"
        return Carried(why=f"{counted}: the client compresses, or it has other connections")
    return found


def told(found: Carried) -> dict[str, Any]:
    """Return what an entry says of ``wire_bytes_per_op``: how it was found, or why it is not known."""
    is_known = found.bytes is not None
    return {
        "wire_by": "socket counters" if is_known else None,
        "wire_connections": found.connections if is_known else None,
        "wire_unknown": found.why or None,
    }


class WireSeen(Message, frozen=True):
    """The packets of one run.

    Attributes:
        bytes: of all packets, with their headers, in both directions; None if they are not known.
        packets: how many.
        unique_bytes: what TCP carried in both directions, each byte once, as ``sockets`` counts it; None if it is not
            known.
        why: why they are not known, or an empty text.
    """

    bytes: int | None = None
    packets: int = 0
    why: str = ""
    unique_bytes: int | None = None


@dataclass(slots=True)
class Wire:
    """Captures runs of one experiment.

    Attributes:
        experiment: whose runs.
        interface: where to capture; empty for loopback, where emulators and local servers are.
        notes: what a reader of the numbers should know.
    """

    experiment: Experiment
    interface: str = ""
    notes: list[str] = field(default_factory=list)
    _captures: int = 0
    _open: Capture | None = None

    def of(self, run: Callable[[], Result]) -> tuple[Result, WireSeen]:
        """Run something while its packets are captured. All agents call this together."""
        self._captures += 1
        agent, number = self.experiment.agent, self._captures
        problem = agent.once(f"wire:{self.experiment.nodeid}:{number}:start", self._start)
        try:
            result = run()
        finally:
            told = agent.once(f"wire:{self.experiment.nodeid}:{number}:stop", lambda: self._stop(str(problem)).plain())
        return result, WireSeen.from_plain(told)

    def _start(self) -> str:
        """Begin to capture. Return why not, or an empty text."""
        from pytest_cloudbench.net.capture import Capture

        try:
            interface, ports = self._where()
            path = self.experiment.folder / f"wire-{self._captures}.pcapng"
            path.parent.mkdir(parents=True, exist_ok=True)
            wanted = " or ".join(f"port {port}" for port in ports)
            capture = Capture(interface, path, filter=wanted, snaplen=_SNAP_BYTES)
            with self.experiment.agent.sign_of_life():
                capture.__enter__()
        except (CloudbenchError, OSError) as error:
            return str(error)
        self._open = capture
        return ""

    def _stop(self, problem: str) -> WireSeen:
        from pytest_cloudbench.net.dissect import open_capture
        from pytest_cloudbench.net.traffic import analyze

        capture, self._open = self._open, None
        if capture is None:
            return WireSeen(why=problem or "nothing was captured")
        found = capture.stop()
        try:
            if not found.is_valid:
                return WireSeen(why=f"the capture is not complete: {'; '.join(found.reasons)}")
            with open_capture(found.path) as (data, release):
                seen = analyze(data, source=found.path.name, release=release)
                unique_bytes = int(seen.table.sums["unique_bytes"].sum())
                return WireSeen(seen.wire_bytes, found.packets, unique_bytes=unique_bytes)
        except UsageError as error:
            return WireSeen(why=str(error))
        finally:
            found.path.unlink(missing_ok=True)

    def _where(self) -> tuple[str, list[int]]:
        """Return the interface, and the ports of the service. Raises UsageError if they cannot be known."""
        given: Any = self.experiment.agent.ask("provide", self.experiment.provider.spec)
        provided = Provided.from_plain(given)
        if provided.children:
            raise UsageError("a provider made of others has no packets of its own")
        if provided.endpoint is None:
            if not self.interface:
                raise UsageError("name the interface that leads to this provider: --cloudbench-capture=eth0")
            note = f"wire bytes: everything on port 443 of {self.interface}, also that of other programs"
            self.notes += [] if note in self.notes else [note]
            return self.interface, list(_USUAL)
        return self.interface or _LOOPBACK, sorted({port for _, port in provided.endpoint.addresses})
