"""Observations of a sync client into verdicts: yes, no or unknown, with the evidence.

What may live here: pure functions. ``values``: what goes in and comes out; ``observe``: a capture into observations;
``chunking``, ``bundling``, ``sent``: the detectors; ``waits``, ``rhythm``: what waits and periods show; ``procedure``:
which steps to take, and all verdicts together.
"""

from __future__ import annotations

from pytest_cloudbench.lab.detect.observe import observe
from pytest_cloudbench.lab.detect.procedure import CAPABILITIES, first_steps, judge, more_steps
from pytest_cloudbench.lab.detect.values import KINDS, Observation, Step, Verdict

__all__ = [
    "CAPABILITIES", "KINDS", "Observation", "Step", "Verdict", "first_steps", "judge", "more_steps", "observe",
]  # fmt: skip
