"""One sync client in its lab: the client, the network that it is in, and captures of what it sends.

A lab sets the order in which network, capture and client start and end, knows whether the client works at all, and
records all three. The modules that use a lab change the client's folder and interpret its packets.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from pytest_cloudbench.lab.clients.base import Proof, SyncClient
from pytest_cloudbench.lab.sync.network import Network, OwnLink, network_of, proof_notes
from pytest_cloudbench.model import ClientError, UsageError
from pytest_cloudbench.net.capture import CaptureResult
from pytest_cloudbench.net.link import Link, Way
from pytest_cloudbench.net.traffic import Analysis
from pytest_cloudbench.support.clock import wait_for

_WAY = Way(delay_ms=10)
_POLL_S, _QUIET_POLLS, _QUIET_BYTES, _QUIET_MOST_S = 0.1, 4, 2_000, 4.0
_LAST_LINES, _MOST_CHARACTERS = 3, 400

_Result = TypeVar("_Result")


class Lab:
    """A client, its network, and captures. All of it ends when the context exits.

    A session (step by step), activities, transfers and propagation use it. The client starts once, when the first of
    them needs it, and the capture of that start shows connections from their first packet.

    Args:
        client: one that is not prepared yet.
        workdir: a folder for everything that is written. Captures are in ``captures`` below it.
        seed: contents are derived from it. It is new for each run. Otherwise a server might already know them.
        up: the link towards the server. If omitted, it has a delay of 10 ms, so that waiting for an answer is visible.
        down: the way back, the same as ``up`` if omitted. If one of the two is given, a client on the user's own
            network is refused.
        stream_s: the time that one TCP stream runs in each direction to measure the link's rate. With 0, only delay and
            loss are measured. With None, nothing is.
        interruptible: whether the link will be interrupted, which needs our forwarder.
        timeout_s: the time that the client may take to bring one change to its server.
        rights: see ``link.Link``.

    Attributes:
        captures: those that have ended.
        metrics: the findings of each capture, as plain data, by file name.
        versions: of the client's programs.
        proofs: the ways in which the server was known to have each change.
        out_of_sync: the reason why nothing counts any more: the client did not carry out a change, and the change was
            not undone, so its traffic may come later. Empty while the lab is usable.
    """

    def __init__(
        self, client: SyncClient, workdir: Path, *, seed: str, up: Way | None = None, down: Way | None = None,
        stream_s: float | None = 0.3, interruptible: bool = False, timeout_s: float = 120.0, rights: str = "auto",
    ) -> None:  # fmt: skip
        self.client, self.workdir, self.seed, self.timeout_s = client, workdir, seed, timeout_s
        network_seed = zlib.crc32(seed.encode())
        self.network: Network = (
            network_of(client, _WAY, stream_s=stream_s, seed=network_seed, rights=rights)
            if up is None and down is None and not interruptible
            else OwnLink(
                up or _WAY, down, stream_s=stream_s, interruptible=interruptible, seed=network_seed, rights=rights
            )
        )
        self.captures: list[CaptureResult] = []
        self.metrics: dict[str, dict[str, Any]] = {}
        self.versions: Mapping[str, str] = {}
        self.proofs: set[Proof] = set()
        self.out_of_sync = ""
        self._congestion_control = ""
        self._stack = ExitStack()
        self._recorded = Path()
        self._synced, self._failed, self._failure = 0, 0, ""
        self._is_started = False
        self._start_error: ClientError | None = None

    # --- opening, starting, closing ---

    def __enter__(self) -> Lab:
        """Raises LinkUnavailable or ClientUnavailable if either is missing."""
        (self.workdir / "captures").mkdir(parents=True, exist_ok=True)
        with self._stack:
            self._stack.callback(self.network.close)
            self.network.open(self.client, self.workdir / "client")
            self.versions = self.client.versions()
            self._congestion_control = self.network.congestion_control()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def is_started(self) -> bool:
        """True if the lab started the client. A client outside the lab was already running."""
        return self._is_started or self.client.facts.outside is not None

    def start(self) -> None:
        """Start the client once. If that fails, it is stopped for good, and every later call raises the same error."""
        if self._start_error is not None:
            raise self._start_error
        if not self._is_started:
            try:
                self.client.start()
            except ClientError as error:
                self._start_error = error
                raise
            self._is_started = True

    @property
    def link(self) -> Link:
        """The link, for shaping and interrupting. Raises UsageError on the user's own network, which has none."""
        if self.network.link is None:
            raise UsageError(
                f"client {self.client.facts.name} is on the user's own network: there is no link to change"
            )
        return self.network.link

    # --- captures ---

    @contextmanager
    def capture(self, **about: Any) -> Iterator[None]:
        """Capture what the client sends and receives while the context is open. ``read_capture`` reads it afterwards.

        One capture covers a series of measurements, which are cut out of it by time, so there is one place only where
        packets may be dropped. ``about`` goes into the file's comment. Raises CaptureUnavailable.
        """
        path = self.workdir / "captures" / f"{len(self.captures)}.pcapng"
        with self.network.capture(path, {"client": self.client.facts.name, **about}) as capture:
            self._recorded = path
            yield
        assert capture.result is not None
        self.captures.append(capture.result)

    def wait_quiet(self) -> None:
        """Return when the open capture hardly grows any more, or after some seconds: a client may never be quiet."""
        sizes: list[int] = []

        def is_quiet() -> bool:
            sizes.append(self._recorded.stat().st_size)
            return len(sizes) > _QUIET_POLLS and sizes[-1] - sizes[-1 - _QUIET_POLLS] < _QUIET_BYTES

        wait_for(is_quiet, _QUIET_MOST_S, poll_s=_POLL_S)

    def read_capture(self, read: Callable[[Analysis], _Result]) -> tuple[_Result | None, tuple[str, ...]]:
        """Return what ``read`` returns for the client's packets in the last capture, or None and the reasons."""

        def note_and_read(analysis: Analysis) -> _Result:
            self.metrics[self.captures[-1].path.name] = analysis.as_dict()
            return read(analysis)

        return self.network.read_capture(self.captures[-1], note_and_read)

    # --- changes, and whether the client carries them out ---

    def bring_change(self) -> str:
        """Let the client bring the change to its server. Returns why it did not, in one line, or an empty string.

        Raises ClientUnavailable when nothing can tell.
        """
        try:
            self.client.after_change()
            self.note_synced(self.client.wait_synced(self.timeout_s))
        except ClientError as error:
            return self.note_failed(error)
        return ""

    def bring_undo(self) -> str:
        """Let the client bring an undone change, which counts neither as a change nor as a failure."""
        try:
            self.client.after_change()
            self.client.wait_synced(self.timeout_s)
        except ClientError as error:
            return _summarize_error(error)
        return ""

    def note_synced(self, proof: Proof) -> None:
        """Record that a change reached the server, and how that is known."""
        self._synced += 1
        self.proofs.add(proof)

    def note_failed(self, error: ClientError) -> str:
        """Record that a change did not reach the server. Returns why, in one line."""
        why = _summarize_error(error)
        self._failed, self._failure = self._failed + 1, self._failure or why
        return why

    @property
    def never_synced(self) -> str:
        """The reason why no change ever reached the server. Empty if one did, or if there was none to bring."""
        return "" if self._synced else self._failure

    # --- results ---

    def record(self) -> dict[str, Any]:
        """Return what was used for measuring, as plain data to store beside results."""
        return {
            "client": self.client.facts.name,
            "versions": dict(self.versions),
            "link": self.network.record(),
            "congestion_control": self._congestion_control,
            "proofs": sorted(proof.value for proof in self.proofs),
            "captures": [
                {"file": capture.path.name, "packets": capture.packets, "dropped": capture.dropped,
                 "is_valid": capture.is_valid, "reasons": list(capture.reasons)}
                for capture in self.captures
            ],
        }  # fmt: skip

    def doubts(self) -> list[str]:
        """Return why times may be wrong although each capture is complete: the link differs from the requested one."""
        return self.network.doubts()

    def notes(self) -> list[str]:
        """Return what a reader of the numbers should know."""
        failed = (
            [f"changes that were not carried out: {self._failed}; the first: {self._failure}"] if self._failed else []
        )
        return [*failed, *self.network.notes(), *proof_notes(self.proofs)]


def _summarize_error(error: Exception) -> str:
    """Return the first and the last lines of an error's message.

    Clients append a log, whose last lines say most.
    """
    first, *log_lines = str(error).strip().splitlines() or [""]
    last = " | ".join(line.strip() for line in log_lines[-_LAST_LINES:])
    if len(last) > _MOST_CHARACTERS:
        last = f"...{last[-_MOST_CHARACTERS:]}"
    return f"{first[:_MOST_CHARACTERS]} ({last})" if last else first[:_MOST_CHARACTERS]
