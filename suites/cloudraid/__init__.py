"""The gains and costs of an array of providers, and the losses that it survives (Cloud-RAID)."""

from __future__ import annotations

from pytest_cloudbench import Metric, Suite

CLOUDBENCH_SUITE = Suite(
    "cloudraid",
    conclusions={
        "slower_with_losses": Metric("ratio"),
        "reads_failed": Metric("reads"),
        "objects_harmed": Metric("objects"),
        "over_the_bound": Metric("fraction"),
        "availability": Metric("fraction", "higher"),
    },
)
