"""A sync client in a network, with a capture on its side: steps in, observations out.

What may live here: the order in which network, capture and client live, and what is recorded of them. Nothing is
concluded here.

One capture lasts for one series of steps and is cut by time: so there is one place in which a drop can hide, and
connections are seen from their first packet. The client and its network stay up between series.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from pytest_cloudbench.capture import CaptureResult
from pytest_cloudbench.clients.base import ClientUnavailable, Proof, SyncClient
from pytest_cloudbench.detect import Observation, Step, Verdict, first_steps, judge, more_steps, observe
from pytest_cloudbench.link import Way
from pytest_cloudbench.model import ClientError
from pytest_cloudbench.systems.changes import Changes
from pytest_cloudbench.systems.looking import briefly, difference, wait_quiet
from pytest_cloudbench.systems.network import Network, network_of, proof_notes
from pytest_cloudbench.traffic import Analysis

__all__ = ["SyncSession"]

_WAY = Way(delay_ms=10)
_TRIAL, _SEEN_SHARE = Step("big", 1_000_000), 0.9


class SyncSession:
    """A client, the network that it is in, and captures; all of it ends with the context.

    Args:
        client: not prepared yet.
        workdir: a folder for everything that is written; captures are in ``captures`` below it.
        seed: what contents are made from; new for each run.
        way: the link in each direction. Its delay is what makes an answer that is waited for visible.
        timeout_s: how long a client may take for one step.
        measure_link: whether to measure what the link delivers, before anything else.
        rights: see ``link.Link``.

    A client that runs outside has no link: then ``way`` and what follows from it has no meaning.
    """

    def __init__(
        self, client: SyncClient, workdir: Path, *, seed: str, way: Way = _WAY, timeout_s: float = 120.0,
        measure_link: bool = True, rights: str = "auto",
    ) -> None:  # fmt: skip
        self.client, self.workdir = client, workdir
        self.network: Network = network_of(client, way, stream_s=0.3 if measure_link else None, rights=rights)
        self.captures: list[CaptureResult] = []
        self.metrics: list[dict[str, Any]] = []
        self.observations: list[Observation] = []
        self.versions: Mapping[str, str] = {}
        self.proofs: set[Proof] = set()
        self._seed, self._timeout_s = seed, timeout_s
        self._stack = ExitStack()
        self._broken = ""
        self._synced, self._failed, self._failure, self._lost_base = 0, 0, "", ""
        self._lacks: str | None = None
        self._started = False
        self._start_error: ClientError | None = None
        self._offers_h2 = False

    def __enter__(self) -> SyncSession:
        """Raises LinkUnavailable, CaptureUnavailable, ClientUnavailable: whatever is not here."""
        (self.workdir / "captures").mkdir(parents=True, exist_ok=True)
        with self._stack:
            self._stack.callback(self.network.close)
            self.network.open(self.client, self.workdir / "client")
            self._changes = Changes(self.client.folder, self.workdir / "stage", self._seed)
            self.versions = self.client.versions()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def measure(self, steps: Sequence[Step]) -> list[Observation]:
        """Do the steps one after another, in one capture; what each of them showed, in their order.

        A step that the client does not carry out is taken back, and its observation is not valid. When that does
        not help either, neither are those after it. Raises ClientError when the client does not start, and what
        ``try_out`` raises.
        """
        self.try_out()
        found = self._measure(steps)
        self.observations += found
        return found

    def try_out(self) -> None:
        """Let a client that runs outside send random bytes, once: they must be seen, or not all its servers are told.

        Raises ClientUnavailable when they are not. Nothing for a client that is alone in its network.
        """
        if self.client.facts.outside is None:
            return
        if self._lacks is None:
            (seen,) = self._measure([_TRIAL])
            size = seen.size_bytes
            lacks, is_seen = list(seen.reasons), seen.up_bytes >= _SEEN_SHARE * size
            if not is_seen and not lacks:
                lacks.append(f"of {size:,} new random bytes, {seen.up_bytes:,} were seen: names or servers lack some")
            self._lacks = "; ".join(lacks) + ("" if is_seen else self.network.others_text(size))
        if self._lacks:
            raise ClientUnavailable(f"inconclusive: {self._lacks}")

    def _measure(self, steps: Sequence[Step]) -> list[Observation]:
        path = self.workdir / "captures" / f"{len(self.captures)}.pcapng"
        about = {"client": self.client.facts.name, "steps": [step.kind for step in steps]}
        with self.network.capture(path, about) as capture:
            self._start()
            wait_quiet(path)
            phases = [self._phase(step, path) for step in steps]
        assert capture.result is not None
        self.captures.append(capture.result)
        return self._analyzed(capture.result, phases)

    def _start(self) -> None:
        """Start the client once. One that did not start is stopped for good, and its error is told again."""
        if self._start_error is not None:
            raise self._start_error
        if not self._started:
            try:
                self.client.start()
            except ClientError as error:
                self._start_error = error
                raise
            self._started = True

    def examine(self) -> dict[str, Verdict]:
        """Measure until all is known or repeating does not help: a verdict for each capability."""
        steps = first_steps()
        while steps and not self.never_synced:
            self.measure(steps)
            steps = more_steps(self.observations)
        return judge(self.observations)

    # --- whether it works at all ---

    @property
    def never_synced(self) -> str:
        """Why no change ever got to the server, though some were asked for; empty where one did, or none was."""
        return "" if self._synced else self._failure

    def has_synced(self, proof: Proof) -> None:
        """A change got to the server, known in this way."""
        self._synced += 1
        self.proofs.add(proof)

    def has_failed(self, error: ClientError) -> str:
        """A change did not get to the server; why, briefly."""
        why = briefly(error)
        self._failed, self._failure = self._failed + 1, self._failure or why
        return why

    def record(self) -> dict[str, Any]:
        """What was measured with, as plain data to store beside results."""
        return {
            "client": self.client.facts.name,
            "versions": dict(self.versions),
            "link": self.network.record(),
            "proofs": sorted(each.value for each in self.proofs),
            "captures": [
                {"packets": each.packets, "dropped": each.dropped, "is_valid": each.is_valid,
                 "reasons": list(each.reasons)}
                for each in self.captures
            ],
        }  # fmt: skip

    def notes(self) -> list[str]:
        """What a reader of its numbers should know."""
        failed = (
            [f"changes that were not carried out: {self._failed}; the first: {self._failure}"] if self._failed else []
        )
        return [*failed, *self.network.notes(), *proof_notes(self.proofs)]

    # --- one phase ---

    def _phase(self, step: Step, path: Path) -> tuple[Observation, int, int]:
        """Change, wait until in sync and quiet; what was done, and from when to when."""
        if self._broken:
            now = time.time_ns()
            return Observation(step.kind, reasons=(self._broken,)), now, now
        if self._lost_base and not self._changes.can_apply(step):
            now = time.time_ns()
            return (
                Observation(step.kind, reasons=(f"the file that it changes is missing: {self._lost_base}",)),
                now,
                now,
            )
        cpu_s = self.client.cpu_s("client")
        self.client.before_change()
        done = self._changes.apply(step)
        first_ns = time.time_ns() if step.kind == "idle" else self._changes.moved_ns
        if step.kind == "idle":
            threading.Event().wait(step.duration_s)
        else:
            try:
                self.client.after_change()
                self.has_synced(self.client.wait_synced(self._timeout_s))
            except ClientError as error:
                why = f"the client did not carry it out: {self.has_failed(error)}"
                done = replace(done, reasons=(why,))
                self._lost_base = why if step.kind == "new" else self._lost_base
                self._take_back()
            wait_quiet(path)
        used_s = self.client.cpu_s("client")
        return replace(done, cpu_s=difference(used_s, cpu_s)), first_ns, time.time_ns()

    def _take_back(self) -> None:
        self.client.before_change()
        self._changes.undo()
        try:
            self.client.after_change()
            self.client.wait_synced(self._timeout_s)
        except ClientError as error:
            self._broken = f"the client was out of sync since an earlier step: {briefly(error)}"

    # --- what was seen ---

    def _analyzed(self, capture: CaptureResult, phases: Sequence[tuple[Observation, int, int]]) -> list[Observation]:
        def see(analysis: Analysis) -> list[Observation]:
            self._offers_h2 |= any("h2" in facts.alpn for facts in analysis.facts)
            self.metrics.append(analysis.as_dict())
            return [
                observe(analysis, about, first_ns, last_ns, round_trip_s=self.network.round_trip_s)
                for about, first_ns, last_ns in phases
            ]

        found, bad = self.network.look(capture, see)
        if found is None:
            return [replace(about, reasons=(*about.reasons, *bad)) for about, _, _ in phases]
        found = [replace(each, reasons=(*each.reasons, *_unseen(each))) for each in found]
        return [replace(each, offers_h2=each.offers_h2 or self._offers_h2) for each in found]


def _unseen(seen: Observation) -> list[str]:
    """A change that got to the server and of which nothing was seen is no cheap change."""
    is_unseen = seen.kind != "idle" and not seen.up_bytes and seen.is_valid
    return ["the server has it, and nothing that the client sent was seen"] if is_unseen else []
