"""A sync client, step by step: steps in, observations out.

The steps are done in one capture, and undone where the client does not carry them out. Nothing is concluded here, and
``changes`` has what a step writes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pytest_cloudbench.lab.clients.base import ClientUnavailable
from pytest_cloudbench.lab.detect import (
    Observation,
    Step,
    Verdict,
    first_steps,
    judge_capabilities,
    more_steps,
    observe,
)
from pytest_cloudbench.lab.detect.observe import find_http2
from pytest_cloudbench.lab.sync.changes import Changes
from pytest_cloudbench.lab.sync.lab import Lab
from pytest_cloudbench.lab.sync.usage import difference
from pytest_cloudbench.net.traffic import Analysis
from pytest_cloudbench.support.clock import due_ns, sleep_until_ns

_TRIAL, _SEEN_SHARE = Step("big", 1_000_000), 0.9


class SyncSession:
    """Runs steps in the folder of an open lab, one series after another.

    ``observations`` are those of all series so far.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.observations: list[Observation] = []
        self._changes = Changes(lab.client.folder, lab.workdir / "stage", lab.seed)
        self._lost_base = ""
        self._base_pids: set[int] = set()
        self._trial_problem: str | None = None
        self._offers_h2 = False

    def measure(self, steps: Sequence[Step]) -> list[Observation]:
        """Do the steps one after another in one capture. Returns their observations, in order.

        If the client does not carry out a step, the step is undone, and its observation is not valid. If the client
        does not carry out the undo either, all later observations are not valid. Raises ClientError when the client
        does not start, and what ``try_out`` raises.
        """
        self.try_out()
        observations = self._run_steps(steps)
        self.observations += observations
        return observations

    def try_out(self) -> None:
        """Make a client outside the lab send random bytes, once, to see whether all its servers are specified.

        Raises ClientUnavailable if they are not seen. Does nothing for a client that is alone in its network.
        """
        if self.lab.client.facts.outside is None:
            return
        if self._trial_problem is None:
            (observation,) = self._run_steps([_TRIAL])
            size = observation.size_bytes
            problems, is_seen = list(observation.reasons), observation.up_bytes >= _SEEN_SHARE * size
            if not is_seen and not problems:
                share = f"only {observation.up_bytes:,} of {size:,} new random bytes were seen"
                problems.append(f"{share}: names or servers are incomplete")
            self._trial_problem = "; ".join(problems) + ("" if is_seen else self.lab.network.others_text(size))
        if self._trial_problem:
            raise ClientUnavailable(f"inconclusive: {self._trial_problem}")

    def examine(self) -> dict[str, Verdict]:
        """Measure until everything is known or repeating does not help. Returns a verdict for each capability."""
        steps = first_steps()
        while steps and not self.lab.never_synced:
            self.measure(steps)
            steps = more_steps(self.observations)
        return judge_capabilities(self.observations)

    def _run_steps(self, steps: Sequence[Step]) -> list[Observation]:
        with self.lab.capture(steps=[step.kind for step in steps]):
            self.lab.start()
            self.lab.wait_quiet()
            phases = [self._run_phase(step) for step in steps]
        return self._read_observations(phases)

    # --- one phase ---

    def _run_phase(self, step: Step) -> tuple[Observation, int, int]:
        """Make a change, and wait until in sync and quiet. Returns an observation, and its start and end."""
        lab, now_ns = self.lab, time.time_ns()
        if obstacle := self._find_obstacle(step):
            return Observation(step.kind, reasons=(obstacle,)), now_ns, now_ns
        if step.kind == "new":
            self._base_pids = set(lab.client.pids("client"))
        before_s = lab.client.cpu_s("client")
        lab.client.before_change()
        observation = self._changes.apply(step)
        first_ns = time.time_ns() if step.kind == "idle" else self._changes.moved_ns
        if step.kind == "idle":
            sleep_until_ns(due_ns(step.duration_s))
        else:
            if error := lab.bring_change():
                why = f"the client did not carry it out: {error}"
                observation = replace(observation, reasons=(why,))
                if step.kind == "new":
                    self._lost_base = why
                self._undo_step()
            lab.wait_quiet()
        last_ns, cpu_s = time.time_ns(), difference(lab.client.cpu_s("client"), before_s)
        is_restarted = not self._base_pids.issubset(lab.client.pids("client"))
        return replace(observation, cpu_s=cpu_s, is_restarted=is_restarted), first_ns, last_ns

    def _find_obstacle(self, step: Step) -> str:
        """Return why a step cannot be done now, or an empty text."""
        if self.lab.out_of_sync:
            return self.lab.out_of_sync
        if self._lost_base and not self._changes.can_apply(step):
            return f"the file that it changes is missing: {self._lost_base}"
        return self._changes.explain_conflict(step)

    def _undo_step(self) -> None:
        self.lab.client.before_change()
        self._changes.undo()
        if error := self.lab.bring_undo():
            self.lab.out_of_sync = f"the client has been out of sync since an earlier step: {error}"

    # --- what was seen ---

    def _read_observations(self, phases: Sequence[tuple[Observation, int, int]]) -> list[Observation]:
        def observe_all(analysis: Analysis) -> list[Observation]:
            self._offers_h2 |= bool(find_http2(analysis))
            return [
                observe(analysis, about, first_ns, last_ns, round_trip_s=self.lab.network.round_trip_s)
                for about, first_ns, last_ns in phases
            ]

        observations, reasons = self.lab.read_capture(observe_all)
        if observations is None:
            return [replace(about, reasons=(*about.reasons, *reasons)) for about, _, _ in phases]
        observations = [
            replace(observation, reasons=(*observation.reasons, *_explain_unseen(observation)))
            for observation in observations
        ]
        return [
            replace(observation, offers_h2=observation.offers_h2 or self._offers_h2) for observation in observations
        ]


def _explain_unseen(observation: Observation) -> list[str]:
    """Return a reason against a change that counts as in sync without a packet in the capture, or nothing."""
    is_unseen = observation.kind != "idle" and not observation.up_bytes and observation.is_valid
    return ["it counts as in sync, but nothing from the client was captured"] if is_unseen else []
