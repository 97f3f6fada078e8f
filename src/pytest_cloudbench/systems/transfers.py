"""A sync client over a link whose transfers are measured one by one: windows of time within one capture.

What may live here: the order in which link, capture, client and interruption live, and the quantities of one window.
What a number means is known in ``traffic.metrics``; nothing is concluded here.
"""

from __future__ import annotations

import time
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from pytest_cloudbench.capture import CaptureResult
from pytest_cloudbench.clients.base import Proof, SyncClient
from pytest_cloudbench.detect.observe import observe, window
from pytest_cloudbench.detect.values import Observation
from pytest_cloudbench.link import Link, Way
from pytest_cloudbench.model import ClientError, UsageError
from pytest_cloudbench.systems.looking import briefly, difference, wait_quiet
from pytest_cloudbench.systems.network import Network, OwnLink, proof_notes
from pytest_cloudbench.systems.usage import energy_j, read_energy_uj, rss_bytes
from pytest_cloudbench.systems.workloads import Workload, put
from pytest_cloudbench.traffic import Analysis, Flow, FlowTable, metrics
from pytest_cloudbench.traffic.owners import nameless_doubt

__all__ = ["Interruption", "Transfer", "Transfers"]

_WAY = Way(delay_ms=10)
_NEVER = 1 << 60
_SEEN_SHARE = 0.9
"""Random bytes cannot be sent as fewer; what is missing was not seen."""
_STORAGE_SHARE = 0.1
"""A server that gets less of what the client sends is not where the content goes."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """What happens to the link in the middle of a transfer; see ``Link.interrupt``."""

    how: Literal["reset", "drop", "black_hole"]
    at_byte: int
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one set of files cost. None is "not known". Sums are over all flows, also those that only control.

    Attributes:
        files, content_bytes: of the set.
        start_up_s, completion_s, overhead, tue: see ``traffic.metrics`` (paper 001, section 5; 002: TUE).
        synced_s: from the change until the other side was seen to hold the content; a look every 20 ms.
        wire_bytes: whole frames, both ways.
        up_bytes, down_bytes: payload; what TCP sent twice counts once.
        connections: how many were asked for.
        cpu_s, server_cpu_s: CPU time of the two sides.
        peak_bytes: resident memory of the client's processes, the sum of each one's peak so far.
        energy_j: of the whole machine.
        interrupted: empty without an interruption; else ``how``, ``at_byte``, ``duration_s``, ``happened`` and
            ``run_again`` (a client that is run for each change failed, and was run once more); if it happened also
            ``passed_bytes`` to the server, ``sent_after_bytes`` by the client on connections that it opened then, and
            ``recovery_s`` until the last payload of the content.
        is_synced: whether the other side got the content.
        error: what the client said if not.
        nameless_bytes: of flows that may be the client's or not (``traffic.owners``); in no other count.
        reasons: why the numbers may be wrong; empty when they may be used.
    """

    files: int
    content_bytes: int
    start_up_s: float | None = None
    completion_s: float | None = None
    synced_s: float | None = None
    wire_bytes: int | None = None
    up_bytes: int = 0
    down_bytes: int = 0
    connections: int = 0
    turns: int = 0
    cpu_s: float | None = None
    server_cpu_s: float | None = None
    peak_bytes: int | None = None
    energy_j: float | None = None
    interrupted: Mapping[str, Any] = field(default_factory=dict)
    is_synced: bool = True
    error: str = ""
    nameless_bytes: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def tue(self) -> float | None:
        """Wire bytes over bytes of content."""
        return None if self.wire_bytes is None else self.wire_bytes / self.content_bytes

    @property
    def overhead(self) -> float | None:
        """TUE less one: 0.47 is the paper's "47 %"."""
        return None if self.tue is None else self.tue - 1

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        plain = {**asdict(self), "tue": self.tue, "overhead": self.overhead}
        return {**plain, "interrupted": dict(self.interrupted), "reasons": list(self.reasons)}


@dataclass(frozen=True, slots=True)
class _Window:
    """One transfer before its packets were looked at."""

    about: Transfer
    first_ns: int
    synced_ns: int
    last_ns: int
    is_random: bool
    interrupted_ns: int | None = None


class Transfers:
    """A client in a network, and transfers one after another; all of it ends with the context.

    Args:
        client: not prepared yet.
        workdir: a folder for everything that is written.
        captures: where captures stay; ``captures`` in ``workdir`` if left out.
        seed: what contents are made from; new for each run, or a server might know it already.
        up, down: the link; ``down`` is the same as ``up`` when left out.
        interruptible: whether a transfer will be interrupted, which needs our forwarder.
        timeout_s: how long a client may take for one transfer.
        stream_s: how long one TCP stream runs in each direction when the link is measured, to see its rate; 0: only
            delay and loss are measured; None: nothing.
        network: in place of a link, and of what is said of it above.
    """

    def __init__(
        self, client: SyncClient, workdir: Path, *, captures: Path | None = None, seed: str, up: Way = _WAY,
        down: Way | None = None, interruptible: bool = False, timeout_s: float = 120.0,
        stream_s: float | None = 0.3, network: Network | None = None,
    ) -> None:  # fmt: skip
        self.client, self.workdir = client, workdir
        self.network: Network = network or OwnLink(
            up, down, stream_s=stream_s, interruptible=interruptible, seed=zlib.crc32(seed.encode())
        )
        self.versions: Mapping[str, str] = {}
        self.congestion_control = ""
        self.captures: list[CaptureResult] = []
        self.proofs: set[Proof] = set()
        self._captures = captures or workdir / "captures"
        self._seed, self._timeout_s = seed, timeout_s
        self._stack = ExitStack()
        self._started = False
        self._count = 0

    def __enter__(self) -> Transfers:
        """Raises LinkUnavailable and ClientUnavailable: whatever is not here."""
        self._captures.mkdir(parents=True, exist_ok=True)
        with self._stack:
            self._stack.callback(self.network.close)
            self.network.open(self.client, self.workdir / "client")
            self.versions = self.client.versions()
            self.congestion_control = self.network.congestion_control()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def link(self) -> Link:
        """The client's link. Raises UsageError where it has none."""
        if self.network.link is None:
            raise UsageError("there is no link on the user's own network")
        return self.network.link

    def run(self, workload: Workload, times: int = 1, *, interruption: Interruption | None = None) -> list[Transfer]:
        """Transfer a set so often, each time with other content, in one capture.

        A client that does not bring a set over is not asked again: the list is shorter then. Raises
        CaptureUnavailable, and ClientError when the client does not start.
        """
        path = self._captures / f"{len(self.captures)}.pcapng"
        about = {"client": self.client.facts.name, "files": workload.files, "size_bytes": workload.size_bytes}
        with self.network.capture(path, about) as capture:
            if not self._started:  # within the capture: connections are seen from their first packet
                self.client.start()
                self._started = True
            wait_quiet(path)
            windows: list[_Window] = []
            for _ in range(times):
                windows.append(self._transfer(workload, path, interruption))
                if not windows[-1].about.is_synced:
                    break
        assert capture.result is not None
        self.captures.append(capture.result)
        return self._analyzed(capture.result, windows)

    def record(self) -> dict[str, Any]:
        """What was measured with, as plain data to store beside results."""
        return {
            "client": self.client.facts.name,
            "client_versions": dict(self.versions),
            "link": self.network.record(),
            "congestion_control": self.congestion_control,
            "captures": [
                {"file": each.path.name, "packets": each.packets, "dropped": each.dropped,
                 "is_valid": each.is_valid, "reasons": list(each.reasons)}
                for each in self.captures
            ],
        }  # fmt: skip

    def doubts(self) -> list[str]:
        """Why numbers may be wrong although each capture is whole."""
        return self.network.doubts()

    def notes(self) -> list[str]:
        """What a reader of its numbers should know."""
        return [*self.network.notes(), *proof_notes(self.proofs)]

    # --- one transfer ---

    def _transfer(self, workload: Workload, path: Path, interruption: Interruption | None) -> _Window:
        client, self._count = self.client, self._count + 1
        before = (client.cpu_s("client"), client.cpu_s("server"), read_energy_uj())
        if interruption is not None:
            self.link.interrupt(interruption.how, at_byte=interruption.at_byte, duration_s=interruption.duration_s)
        folder = client.folder / f"set{self._count:04d}"
        client.before_change()
        first_ns = put(workload, folder, self.workdir / "stage", f"{self._seed}/{self._count}")
        error, is_run_again = self._bring(), False
        if error and interruption is not None and not client.facts.watches_folder:
            error, is_run_again = self._bring(), True
        synced_ns = time.time_ns()
        after = (client.cpu_s("client"), client.cpu_s("server"), read_energy_uj())
        peak_bytes = rss_bytes(client.pids("client"), peak=True)
        wait_quiet(path)
        done = Transfer(
            workload.files, workload.total_bytes, synced_s=None if error else (synced_ns - first_ns) / 1e9,
            cpu_s=difference(after[0], before[0]), server_cpu_s=difference(after[1], before[1]), peak_bytes=peak_bytes,
            energy_j=energy_j(before[2], after[2]), is_synced=not error, error=error,
        )  # fmt: skip
        interrupted_ns, facts = self._happened(interruption)
        done = replace(done, interrupted={**facts, "run_again": is_run_again} if facts else {})
        return _Window(done, first_ns, synced_ns, time.time_ns(), workload.kind == "binary", interrupted_ns)

    def _bring(self) -> str:
        """Let the client do its work; why it did not."""
        try:
            self.client.after_change()
            self.proofs.add(self.client.wait_synced(self._timeout_s))
        except ClientError as raised:
            return briefly(raised)
        return ""

    def _happened(self, asked: Interruption | None) -> tuple[int | None, dict[str, Any]]:
        """When the interruption was, in nanoseconds since 1970, and what is known of it."""
        if asked is None:
            return None, {}
        facts: dict[str, Any] = {**asdict(asked), "happened": False}
        seen = self.link.interruptions()[-1]
        if not seen["happened_ns"]:
            self.link.interrupt("reset", at_byte=_NEVER)  # takes its place, or the next transfer would be hit
            return None, facts
        offset_ns = time.time_ns() - time.monotonic_ns()
        facts |= {"happened": True, "passed_bytes": seen["passed_bytes"]}
        return seen["happened_ns"] + offset_ns, facts

    # --- what was seen ---

    def _analyzed(self, capture: CaptureResult, windows: Sequence[_Window]) -> list[Transfer]:
        def see(analysis: Analysis) -> list[Transfer]:
            return [_measured(analysis, each) for each in windows]

        found, bad = self.network.look(capture, see)
        return [replace(each.about, reasons=bad) for each in windows] if found is None else found


def _measured(analysis: Analysis, one: _Window) -> Transfer:
    """A window's packets as the quantities of its transfer."""
    seen = observe(analysis, Observation("new"), one.first_ns, one.last_ns, round_trip_s=None)
    # What comes after the content is there (news, tear-down) is no part of the completion time.
    table = window(analysis.table, one.first_ns, one.synced_ns)
    storage = _storage(table)
    interrupted = dict(one.about.interrupted)
    start_up_s = metrics.start_up_s(table, storage, one.first_ns)
    completion_s = metrics.completion_s(table, storage, one.first_ns) if one.about.is_synced else None
    wire_bytes = seen.wire_bytes if seen.up_bytes else None
    doubt = nameless_doubt(seen.nameless_bytes, wire_bytes if wire_bytes is not None else seen.up_bytes)
    if not seen.up_bytes:
        doubt.append("nothing that the client sent was seen")
    elif one.is_random and one.about.is_synced and seen.up_bytes < _SEEN_SHARE * one.about.content_bytes:
        what = f"of {one.about.content_bytes:,} new random bytes, {seen.up_bytes:,} were seen"
        doubt.append(f"{what}: not all servers of the client are told")
    if one.interrupted_ns is not None:
        interrupted["sent_after_bytes"] = _sent_on_new_flows(analysis, one.interrupted_ns, one.last_ns)
        if start_up_s is not None and completion_s is not None:
            interrupted["recovery_s"] = start_up_s + completion_s - (one.interrupted_ns - one.first_ns) / 1e9
    return replace(
        one.about,
        start_up_s=start_up_s,
        completion_s=completion_s,
        wire_bytes=wire_bytes,
        up_bytes=seen.up_bytes,
        down_bytes=seen.down_bytes,
        connections=seen.syns,
        turns=seen.turns,
        interrupted=interrupted,
        nameless_bytes=seen.nameless_bytes,
        reasons=tuple(dict.fromkeys((*seen.reasons, *doubt))),
    )


def _sent_on_new_flows(analysis: Analysis, first_ns: int, last_ns: int) -> int:
    """Payload that the client sent on connections whose first packet is of this time."""
    new = [flow for flow in analysis.table.flows if first_ns <= flow.first_ns < last_ns]
    return sum(flow.up.unique_bytes for flow in new)


def _storage(table: FlowTable) -> list[Flow]:
    """The flows to servers that get a good part of what the client sends in this window."""
    sent: dict[tuple[Any, int], int] = defaultdict(int)
    flows = [flow for flow in table.flows if len(table.rows(flow)) and not flow.server.is_multicast]
    for flow in flows:
        rows = table.rows(flow)
        sent[flow.server, flow.server_port] += int(table.packets.payload[rows][table.up[rows]].sum())
    total = sum(sent.values())
    return [flow for flow in flows if total and sent[flow.server, flow.server_port] >= _STORAGE_SHARE * total]
