"""Observations of a sync client into verdicts: yes, no or unknown, with the evidence.

What may live here: pure functions. ``values``: what goes in and comes out; ``observe``: a capture into observations.
"""

from __future__ import annotations

from pytest_cloudbench.detect.observe import observe
from pytest_cloudbench.detect.values import KINDS, Observation, Step, Verdict

__all__ = ["KINDS", "Observation", "Step", "Verdict", "observe"]
