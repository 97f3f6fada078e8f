"""The values that a conclusion takes from the runs that it combines, besides the metrics that its test computes.

Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_cloudbench.judge.metrics import error_details

Info = Mapping[str, Any]
"""The metrics and other values of one run by name."""

WORK_KEYS = ("ops", "loop", "ops_file", "cpu_share", "client_cpu_s")
FAILURE_KEYS = ("errors", "error_details", "silently_lost", "files", "corrupt")
"""The values of each run that a conclusion needs."""


def combine_runs(runs: Sequence[Info]) -> dict[str, Any]:
    """Return the CPU share of the busiest run, the agents' CPU time, and the errors of all runs."""
    counts, details = Counter[str](), dict[str, Counter[str]]()
    for run in runs:
        counts.update(run.get("errors", {}))
        for kind, listed in run.get("error_details", {}).items():
            details.setdefault(kind, Counter()).update({text["detail"]: text["count"] for text in listed["said"]})
    shares = [run["cpu_share"] for run in runs if run.get("cpu_share") is not None]
    cpu_s = [run.get("client_cpu_s") for run in runs]
    return {
        "cpu_share": max(shares, default=None),
        "client_cpu_s": None if None in cpu_s or not cpu_s else sum(filter(None, cpu_s)),
        "errors": dict(counts),
        "error_details": error_details(counts, {kind: texts.items() for kind, texts in details.items()}),
    }


def combine_losses(runs: Sequence[Info]) -> dict[str, float]:
    """Return ``silent_loss_rate`` and ``corrupt_rate`` of all runs together, if any run has looked for them."""
    shares = {"silent_loss_rate": ("silently_lost", "files"), "corrupt_rate": ("corrupt", "ops")}
    losses = {}
    for name, (count_key, total_key) in shares.items():
        known = [run for run in runs if run.get(count_key) is not None]
        if total := sum(run[total_key] for run in known):
            losses[name] = sum(run[count_key] for run in known) / total
    return losses
