"""What a run puts on the wire: packets of one provider's service, captured on one agent while all agents work.

What may live here: which packets are the service's, and how many bytes they have. ``capture`` does the capturing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_cloudbench.fleet.wire import Message
from pytest_cloudbench.model import CloudbenchError, UsageError
from pytest_cloudbench.providers import Provided

if TYPE_CHECKING:
    from pytest_cloudbench.capture import Capture
    from pytest_cloudbench.load.experiment import Experiment, Result

__all__ = ["Wire", "WireSeen"]

_USUAL = (443,)
_PORTS = {"https": 443, "http": 80}
_LOOPBACK = "lo"
_SNAP_BYTES = 128


@dataclass(frozen=True, slots=True)
class WireSeen(Message):
    """The packets of one run.

    Attributes:
        bytes: of all packets, with their headers, in both directions; None if they are not known.
        packets: how many.
        unique_bytes: what TCP carried in both directions, each byte once: no headers, retransmissions or bare
            acknowledgements; None if it is not known.
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
        """Begin to capture. Returns why not, or an empty text."""
        from pytest_cloudbench.capture import Capture

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
        from pytest_cloudbench.dissect import opened
        from pytest_cloudbench.traffic import analyze

        capture, self._open = self._open, None
        if capture is None:
            return WireSeen(why=problem or "nothing was captured")
        found = capture.stop()
        try:
            if not found.is_valid:
                return WireSeen(why=f"the capture is not complete: {'; '.join(found.reasons)}")
            with opened(found.path) as (data, release):
                seen = analyze(data, source=found.path.name, release=release)
                unique_bytes = int(seen.table.sums["unique_bytes"].sum())
                return WireSeen(seen.wire_bytes, found.packets, unique_bytes=unique_bytes)
        except UsageError as error:
            return WireSeen(why=str(error))
        finally:
            found.path.unlink(missing_ok=True)

    def _where(self) -> tuple[str, list[int]]:
        """Returns the interface, and the ports of the service. Raises UsageError if they cannot be known."""
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
        urls = [urlsplit(url) for url in provided.endpoint.urls.values()]
        ports = sorted({url.port or _PORTS.get(url.scheme, 443) for url in urls})
        return self.interface or _LOOPBACK, ports
