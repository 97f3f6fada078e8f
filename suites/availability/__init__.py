"""Availability, integrity and response time over a long time (Cloud-RAID, Tables I and III)."""

from __future__ import annotations

from pytest_cloudbench import Metric, Rounds, Suite, time_percentiles

CLOUDBENCH_SUITE = Suite(
    "availability",
    figures=(
        Rounds(
            "test_*",
            table="cloud-raid-2012-table-3",
            calls_caption="Cloud-RAID found no influence of the size (III.D; its Figures 3 and 4 print no numbers).",
        ),
    ),
    conclusions={
        "availability": Metric("fraction", "higher"),
        "wrong_hash_rate": Metric("fraction"),
        **time_percentiles("hash_call"),
    },
)
