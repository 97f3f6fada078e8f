"""The time until the other side has new files, intact, and its cost on both sides.

Both folders are on this machine, even if there is a link between client and server. So there is one clock, and looking
at the receiving folder sends no byte over the link.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_cloudbench.lab.clients.base import Proof, Receiver
from pytest_cloudbench.lab.clients.processes import End, Side
from pytest_cloudbench.lab.sync.changes import Workload, put
from pytest_cloudbench.lab.sync.lab import Lab
from pytest_cloudbench.lab.sync.usage import difference, rss_bytes
from pytest_cloudbench.model import ClientError, UsageError, chunks
from pytest_cloudbench.net.link import Link
from pytest_cloudbench.support.clock import now_ns, wait_for, wall_offset_ns

_PAUSE_S, _ALIVE_S = 0.005, 0.05
_PAUSE_SHARE = 2.0
"""After a long look (many files), the pause is this many times as long: looking must not be the load."""
_QUIET_S, _QUIET_BYTES, _QUIET_MOST_S = 0.3, 2_000, 4.0
_SIDES: tuple[Side, ...] = ("client", "server", "device")


@dataclass(frozen=True, slots=True)
class Propagation:
    """A set of files on its way to the other side. None means "not known".

    Attributes:
        files, content_bytes: of the set.
        high_s: from the change until the end of the first look that found all of it intact.
        low_s: from the change until the start of the last look that did not. The true time is between the two.
        up_bytes, down_bytes: what the client's network device sent and received (IP packets and, except for TUN, link
            headers) until the link was quiet.
        other_down_bytes, other_up_bytes: what the receiver received and sent, at its end of the link. Only payload if
            its traffic does not cross the link.
        cpu_s, memory_bytes: by side. Memory is resident, the sum of each process's peak so far.
        error: the reason why it did not arrive, or empty when it did.
    """

    files: int
    content_bytes: int
    high_s: float | None
    low_s: float
    up_bytes: int
    down_bytes: int
    other_down_bytes: int | None
    other_up_bytes: int | None
    cpu_s: Mapping[str, float | None]
    memory_bytes: Mapping[str, int | None]
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "cpu_s": dict(self.cpu_s), "memory_bytes": dict(self.memory_bytes)}


class _ReceiverWatch(threading.Thread):
    """Looks at a folder until it holds the expected files.

    Attributes:
        missing_ns: the start of the last look that found it incomplete or wrong, by the monotonic clock.
        intact_ns: the end of the first look that found it complete.
    """

    def __init__(self, folder: Path, expected: Mapping[str, tuple[int, str]]) -> None:
        super().__init__(name="watch-receiver", daemon=True)
        self._folder, self._expected = folder, expected
        self._sizes = {name: size for name, (size, _) in expected.items()}
        self.missing_ns, self.intact_ns = now_ns(), 0
        self.done, self.stop = threading.Event(), threading.Event()

    def run(self) -> None:
        """Look repeatedly."""
        while not self.stop.is_set():
            begin_ns = now_ns()
            if self._is_intact():
                self.intact_ns = now_ns()
                self.done.set()
                return
            self.missing_ns = begin_ns
            took_s = (now_ns() - begin_ns) / 1e9
            self.stop.wait(max(_PAUSE_S, took_s * _PAUSE_SHARE))

    def _is_intact(self) -> bool:
        try:
            entries = {entry.name: entry for entry in os.scandir(self._folder) if entry.name in self._expected}
            if {name: entry.stat().st_size for name, entry in entries.items()} != self._sizes:
                return False
            return all(_hash_file(Path(entries[name].path)) == digest for name, (_, digest) in self._expected.items())
        except OSError:  # not there yet, or replaced while it was read
            return False


def propagate(lab: Lab, workload: Workload, *, name: str, seed: str, timeout_s: float | None = None) -> Propagation:
    """Make a set appear in the client's folder, as the new folder ``name``, and wait for it on the other side.

    Args:
        lab: one with a link, whose devices count bytes. The other side must be on this machine and keep plain files.
        workload: the set.
        name: a new one for each call.
        seed: the contents are made from it.
        timeout_s: the time to wait for the set, by default the lab's timeout.

    If the client was out of sync before, nothing is written, and the result's error says so.
    Raises UsageError if the client has no link, or no other side on this machine.
    """
    client, link, receiver = lab.client, lab.link, lab.client.receiver()
    if receiver is None:
        raise UsageError(f"client {client.facts.name} has no other side on this machine to look at")
    if lab.out_of_sync:
        return Propagation(
            workload.files, workload.total_bytes, high_s=None, low_s=0.0, up_bytes=0, down_bytes=0,
            other_down_bytes=None, other_up_bytes=None, cpu_s=dict.fromkeys(_SIDES), memory_bytes=dict.fromkeys(_SIDES),
            error=lab.out_of_sync,
        )  # fmt: skip
    lab.start()
    expected = {file: (content.size_bytes, _hash_content(content)) for file, content in workload.contents(seed)}
    client.before_change()
    before, other_before = _read_device_counters(link, "client"), _count_receiver_bytes(link, receiver)
    cpu_before = {side: client.cpu_s(side) for side in _SIDES}
    watch = _ReceiverWatch(receiver.folder / name, expected)
    watch.start()
    try:
        offset_ns = wall_offset_ns()
        appeared_ns = put(workload, client.folder / name, lab.workdir / "stage", seed) - offset_ns
        error = _wait_for_arrival(lab, watch, lab.timeout_s if timeout_s is None else timeout_s)
    finally:
        watch.stop.set()
        watch.join()
    after, other_after = _wait_for_quiet_link(link), _count_receiver_bytes(link, receiver)
    cpu_after = {side: client.cpu_s(side) for side in _SIDES}
    return Propagation(
        workload.files,
        workload.total_bytes,
        high_s=(watch.intact_ns - appeared_ns) / 1e9 if watch.intact_ns else None,
        low_s=max(0.0, (watch.missing_ns - appeared_ns) / 1e9),
        up_bytes=after["sent_bytes"] - before["sent_bytes"],
        down_bytes=after["received_bytes"] - before["received_bytes"],
        other_down_bytes=other_after[0] - other_before[0] if other_after and other_before else None,
        other_up_bytes=other_after[1] - other_before[1] if other_after and other_before else None,
        cpu_s={side: difference(cpu_after[side], cpu_before[side]) for side in _SIDES},
        memory_bytes={side: rss_bytes(client.pids(side), peak=True) for side in _SIDES},
        error=error,
    )


def _wait_for_arrival(lab: Lab, watch: _ReceiverWatch, timeout_s: float) -> str:
    """Wait until the set is there. Returns why it will not come, or an empty string."""
    client, until_s = lab.client, time.monotonic() + timeout_s
    try:
        client.after_change()
        while not watch.done.wait(_ALIVE_S):
            client.idle(0.0)  # raises when a process has ended
            if time.monotonic() >= until_s:
                raise ClientError(f"not there, or not intact, after {timeout_s:g} s")
    except ClientError as error:
        why = lab.note_failed(error)
        lab.out_of_sync = f"the client has been out of sync since an earlier set of files: {why}"
        return why
    lab.note_synced(Proof.CONTENT)
    return ""


def _wait_for_quiet_link(link: Link) -> dict[str, int]:
    """Wait until the link is nearly quiet, but only some seconds, since it may never be. Returns the counters."""
    readings: list[dict[str, int]] = []

    def is_quiet() -> bool:
        readings.append(_read_device_counters(link, "client"))
        return len(readings) > 1 and sum(readings[-1].values()) - sum(readings[-2].values()) < _QUIET_BYTES

    wait_for(is_quiet, _QUIET_MOST_S, poll_s=_QUIET_S)
    return readings[-1]


def _read_device_counters(link: Link, end: End) -> dict[str, int]:
    counters = link.stats()["devices"][end]
    return {key: int(counters[key]) for key in ("sent_bytes", "received_bytes")}


def _count_receiver_bytes(link: Link, receiver: Receiver) -> tuple[int, int] | None:
    """Return the bytes that the other side has received and sent, or None if the counting process has ended."""
    if receiver.bytes_moved is not None:
        try:
            return receiver.bytes_moved()
        except ClientError:
            return None
    counters = _read_device_counters(link, "server")
    return counters["received_bytes"], counters["sent_bytes"]


def _hash_content(content: Any) -> str:
    digest = hashlib.sha256()
    for piece in chunks(content):
        digest.update(piece)
    return digest.hexdigest()


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
