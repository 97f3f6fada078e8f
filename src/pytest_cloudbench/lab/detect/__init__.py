"""Verdicts on a sync client from observations of it: yes, no or unknown, with the evidence.

Pure functions. ``values`` has what goes in and comes out, and ``observe`` makes observations from a capture.
``chunking``, ``bundling`` and ``sent`` are the detectors. ``waits`` and ``rhythm`` judge waits and periods.
``procedure`` has the steps to take, and all verdicts together.
"""

from __future__ import annotations

from pytest_cloudbench.lab.detect.observe import observe
from pytest_cloudbench.lab.detect.procedure import CAPABILITIES, first_steps, judge_capabilities, more_steps
from pytest_cloudbench.lab.detect.values import KINDS, Observation, Step, Verdict

__all__ = [
    "CAPABILITIES", "KINDS", "Observation", "Step", "Verdict", "first_steps", "judge_capabilities", "more_steps",
    "observe",
]  # fmt: skip
