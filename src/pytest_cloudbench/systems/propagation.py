"""How long until the other side has new files, intact, with what that costs on both sides.

What may live here: looking at the receiving folder while a client works. Both folders are on this machine, also where
a link is between the two halves, so there is one clock and no byte on the link for looking.
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

from pytest_cloudbench.clients.base import Receiver, SyncClient
from pytest_cloudbench.clients.processes import End, Side
from pytest_cloudbench.link import Link
from pytest_cloudbench.model import ClientError, chunks
from pytest_cloudbench.systems.looking import briefly, difference
from pytest_cloudbench.systems.usage import rss_bytes
from pytest_cloudbench.systems.workloads import Workload, put

__all__ = ["Arrival", "propagate"]

_PAUSE_S, _ALIVE_S = 0.005, 0.05
_PAUSE_SHARE = 2.0
"""After a look that took long (many files), the pause is so many times as long: looking must not be the load."""
_QUIET_S, _QUIET_BYTES, _QUIET_MOST_S = 0.3, 2_000, 4.0
_SIDES: tuple[Side, ...] = ("client", "server", "device")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A set of files on its way to the other side. None is "not known".

    Attributes:
        files, content_bytes: of the set.
        high_s: from the change until the end of the first look that found all of it intact.
        low_s: from the change until the begin of the last look that did not; the truth is between the two.
        up_bytes, down_bytes: that the client's device sent and received (IP packets and, but for TUN, link headers),
            until the link was quiet.
        other_down_bytes, other_up_bytes: that the receiver received and sent: its end of the link, or payload where
            its traffic does not cross the link.
        cpu_s, memory_bytes: by side; memory is resident, the sum of each process's peak so far.
        error: why it did not arrive; empty when it did.
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
        """As plain data."""
        return {**asdict(self), "cpu_s": dict(self.cpu_s), "memory_bytes": dict(self.memory_bytes)}


class _Watch(threading.Thread):
    """Looks at a folder until it holds what is wanted.

    Attributes:
        missing_ns: when the last look began that found it incomplete or wrong.
        intact_ns: when the first look ended that did not.
    """

    def __init__(self, folder: Path, wanted: Mapping[str, tuple[int, str]]) -> None:
        super().__init__(name="watch-receiver", daemon=True)
        self._folder, self._wanted = folder, wanted
        self._sizes = {name: size for name, (size, _) in wanted.items()}
        self.missing_ns, self.intact_ns = time.time_ns(), 0
        self.done, self.stop = threading.Event(), threading.Event()

    def run(self) -> None:
        """Look again and again."""
        while not self.stop.is_set():
            begin_ns = time.time_ns()
            if self._is_intact():
                self.intact_ns = time.time_ns()
                self.done.set()
                return
            self.missing_ns = begin_ns
            took_s = (time.time_ns() - begin_ns) / 1e9
            self.stop.wait(max(_PAUSE_S, took_s * _PAUSE_SHARE))

    def _is_intact(self) -> bool:
        try:
            entries = {one.name: one for one in os.scandir(self._folder) if one.name in self._wanted}
            if {name: one.stat().st_size for name, one in entries.items()} != self._sizes:
                return False
            return all(_digest(Path(entries[name].path)) == digest for name, (_, digest) in self._wanted.items())
        except OSError:  # not there yet, or replaced while it was read
            return False


def propagate(
    client: SyncClient, receiver: Receiver, link: Link, workload: Workload, *, stage: Path, name: str, seed: str,
    timeout_s: float,
) -> Arrival:  # fmt: skip
    """Let a set appear in the client's folder, as the new folder ``name``, and wait for it at the other side.

    Args:
        client: started.
        receiver: the other side; it keeps plain files.
        link: between client and server; its devices count bytes.
        workload: what appears.
        stage: a folder on the client's file system, where files are made before they are moved in.
        name: new for each call.
        seed: what contents are made from.
        timeout_s: how long that may take.
    """
    wanted = {file: (content.size_bytes, _sha256(content)) for file, content in workload.contents(seed)}
    client.before_change()
    before, other_before = _device(link, "client"), _moved(link, receiver)
    cpu_before = {side: client.cpu_s(side) for side in _SIDES}
    watch = _Watch(receiver.folder / name, wanted)
    watch.start()
    first_ns = put(workload, client.folder / name, stage, seed)
    error = _wait(client, watch, timeout_s)
    watch.stop.set()
    watch.join()
    after, other_after = _quiet(link), _moved(link, receiver)
    cpu_after = {side: client.cpu_s(side) for side in _SIDES}
    return Arrival(
        workload.files,
        workload.total_bytes,
        high_s=(watch.intact_ns - first_ns) / 1e9 if watch.intact_ns else None,
        low_s=max(0.0, (watch.missing_ns - first_ns) / 1e9),
        up_bytes=after["sent_bytes"] - before["sent_bytes"],
        down_bytes=after["received_bytes"] - before["received_bytes"],
        other_down_bytes=other_after[0] - other_before[0] if other_after and other_before else None,
        other_up_bytes=other_after[1] - other_before[1] if other_after and other_before else None,
        cpu_s={side: difference(cpu_after[side], cpu_before[side]) for side in _SIDES},
        memory_bytes={side: rss_bytes(client.pids(side), peak=True) for side in _SIDES},
        error=error,
    )


def _wait(client: SyncClient, watch: _Watch, timeout_s: float) -> str:
    """Return when the set is there; else why it will not come."""
    until_s = time.monotonic() + timeout_s
    try:
        client.after_change()
        while not watch.done.wait(_ALIVE_S):
            client.idle(0.0)  # raises when a process has ended
            if time.monotonic() >= until_s:
                return f"not there, or not intact, after {timeout_s:g} s"
    except ClientError as error:
        return briefly(error)
    return ""


def _quiet(link: Link) -> dict[str, int]:
    """The counters when the link hardly carries anything any more, or after some seconds: it may never be quiet."""
    pause, now, until_s = threading.Event(), _device(link, "client"), time.monotonic() + _QUIET_MOST_S
    while time.monotonic() < until_s:
        former = now
        pause.wait(_QUIET_S)
        now = _device(link, "client")
        if sum(now.values()) - sum(former.values()) < _QUIET_BYTES:
            break
    return now


def _device(link: Link, end: End) -> dict[str, int]:
    seen = link.stats()["devices"][end]
    return {key: int(seen[key]) for key in ("sent_bytes", "received_bytes")}


def _moved(link: Link, receiver: Receiver) -> tuple[int, int] | None:
    """What the other side has received and sent; None: whoever counts it has ended."""
    if receiver.bytes_moved is not None:
        try:
            return receiver.bytes_moved()
        except ClientError:
            return None
    seen = _device(link, "server")
    return seen["received_bytes"], seen["sent_bytes"]


def _sha256(content: Any) -> str:
    digest = hashlib.sha256()
    for piece in chunks(content):
        digest.update(piece)
    return digest.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
