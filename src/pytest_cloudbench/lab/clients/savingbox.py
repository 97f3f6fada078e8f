"""Any sync client behind a savingbox (UDS): files change in the savingbox, which hands them on to the client's folder.

Both start, wait and end in a fixed order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_cloudbench import __version__
from pytest_cloudbench.lab.clients.base import MissingProgramError, Proof, Receiver, SyncClient
from pytest_cloudbench.lab.clients.processes import Loopback, Processes, Runner, Side, find_binary
from pytest_cloudbench.lab.clients.trees import FolderTree, difference
from pytest_cloudbench.model import ClientError, UsageError

_START_S, _LEAST_S = 60.0, 1.0


@dataclass(frozen=True, slots=True)
class SavingboxPush:
    """One push, as the savingbox reported it.

    Attributes:
        why: the rule that made it due.
        counted_bytes: compressed bytes that the counter had.
        waited_s: since the first change in it.
    """

    why: str
    counted_bytes: int
    waited_s: float


class SavingboxClient:
    """A sync client whose folder is the sync folder of a savingbox.

    A client that does not watch its folder is run after each push, not after each change: when it is asked to carry out
    a change, and while it is waited for.

    Args:
        options: of the savingbox alone, by the names of its command's options (``bytes``, ``quiet``, ``at_most``, ...).
        inner: the client, not yet prepared.
    """

    def __init__(self, options: Mapping[str, str], inner: SyncClient) -> None:
        if inner.facts.outside is not None:
            reason = f"over={inner.facts.name}: only a client that is started here can be behind a savingbox"
            raise UsageError(f"client 'savingbox': {reason}; for your own, run cloudbench savingbox")
        self._arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        self._inner = inner
        self.facts = replace(inner.facts, name="savingbox", over=inner.facts.over or inner.facts.name)

    @property
    def folder(self) -> Path:
        """The savingbox, in which files are changed."""
        return self._workdir / "folder"

    def prepare(
        self,
        workdir: Path,
        *,
        server_address: str = "127.0.0.1",
        client_address: str = "127.0.0.1",
        runner: Runner | None = None,
    ) -> None:
        """Prepare the client in a folder below ``workdir``, and make the savingbox.

        Raises MissingProgramError if the command cannot be found, and what the client raises.
        """
        self.stop()
        command = find_binary("cloudbench")
        if command is None:
            raise MissingProgramError("cloudbench is not installed: it comes with pytest-cloudbench (pip install)")
        self._command = command
        self._workdir = workdir.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._inner.prepare(
            self._workdir / "inner", server_address=server_address, client_address=client_address, runner=runner
        )
        self._processes = Processes(self._workdir, runner or Loopback())
        own_names: frozenset[str] = getattr(self._inner, "own_names", frozenset())
        self._box_tree, self._sync_tree = FolderTree(self.folder), FolderTree(self._inner.folder, own_names)
        self._log, self._read_bytes, self._read_events = Path(), 0, list[dict[str, Any]]()
        self._ran_after = 0
        self._carried: dict[str, str] | None = None

    def start(self) -> None:
        """Start the client, then the savingbox. Raises ClientError, leaving nothing running."""
        try:
            self._inner.start()
            argv = [self._command, "savingbox", str(self.folder), str(self._inner.folder), "--json"]
            argv += [f"--state={self._workdir / 'state'}", *self._arguments]
            process = self._processes.start("client", "savingbox", argv)
            self._log = process.log_path
            self._processes.wait_until(lambda: bool(self._events_of("ready")), _START_S, "the savingbox was not ready")
        except BaseException:
            self.stop()
            raise

    def before_change(self) -> None:
        """Prepare the client for a change of files."""
        self._inner.before_change()

    def after_change(self) -> None:
        """Run a client that does not watch its folder, if there was a push since its last run."""
        if not self.facts.watches_folder and (count := len(self.pushes())) > self._ran_after:
            self._ran_after = count
            self._run_inner()

    def wait_synced(self, timeout_s: float) -> Proof:
        """Wait until all is pushed, and then until the client has brought it to its server."""
        deadline_s = time.monotonic() + timeout_s
        sizes_bytes, digests = self._box_tree.sizes_bytes(), self._box_tree.digests()

        def is_pushed() -> bool:
            self.after_change()
            return self._sync_tree.sizes_bytes() == sizes_bytes and self._sync_tree.digests() == digests

        try:
            self._processes.wait_until(is_pushed, timeout_s, "the savingbox did not push everything")
        except ClientError as error:
            differences = difference(digests, self._sync_tree.digests())
            raise ClientError(f"savingbox: the sync folder differs: {differences}; {error}") from error
        if not self.facts.watches_folder and self._carried != digests:  # the last push was not reported yet
            self._run_inner()
        return self._inner.wait_synced(max(deadline_s - time.monotonic(), _LEAST_S))

    def idle(self, duration_s: float) -> None:
        """Leave both alone for that long. Raises ClientError as soon as a process ends."""
        self._processes.check()
        self.after_change()
        self._inner.idle(duration_s)

    def stop(self) -> None:
        """End the savingbox, then the client. Safe to call again, and before ``prepare``."""
        try:
            if hasattr(self, "_processes"):
                self._processes.stop()
        finally:
            self._inner.stop()

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the client and of the savingbox, which is this package."""
        return {**self._inner.versions(), "savingbox": __version__}

    def pids(self, side: Side) -> tuple[int, ...]:
        """Return the processes of one side. The savingbox is at the client's."""
        return (*self._processes.pids(side), *self._inner.pids(side))

    def cpu_s(self, side: Side) -> float | None:
        """Return the CPU seconds of one side. The client's side is the client and the savingbox together."""
        inner_s = self._inner.cpu_s(side)
        return inner_s if side != "client" or inner_s is None else inner_s + self.box_cpu_s()

    def receiver(self) -> Receiver | None:
        """Return the client's side where files arrive."""
        return self._inner.receiver()

    # --- what only a savingbox has ---

    def pushes(self) -> list[SavingboxPush]:
        """Return all pushes since the start."""
        return [
            SavingboxPush(event["why"], event["counted_bytes"], event["waited_ns"] / 1e9)
            for event in self._events_of("push")
        ]

    def settings(self) -> Mapping[str, Any]:
        """Return its settings: ``limit_bytes``, ``quiet_s``, ``at_most_s``, ``mechanism`` and all others it reports."""
        return self._events_of("ready")[0]

    def box_cpu_s(self) -> float:
        """Return the CPU seconds of the savingbox alone."""
        return self._processes.cpu_s("client") or 0.0

    def _run_inner(self) -> None:
        self._carried = self._sync_tree.digests()
        self._inner.after_change()

    def _events_of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind, from the complete lines of the savingbox's output so far."""
        with self._log.open("rb") as log:
            log.seek(self._read_bytes)
            lines = log.read().rpartition(b"\n")[0]
        self._read_bytes += len(lines) + bool(lines)
        # Errors are in the same file.
        self._read_events += [json.loads(line) for line in lines.splitlines() if line.startswith(b"{")]
        return [event for event in self._read_events if event["event"] == kind]
