"""The slowdown of a transfer by simultaneous ones (Cloud-RAID, III.D, Figures 5 and 6)."""

from __future__ import annotations

from pytest_cloudbench import Curve, Metric, Suite

CLOUDBENCH_SUITE = Suite(
    "constancy",
    figures=(
        Curve(
            test="test_*",
            x="level",
            y="median_s",
            title="Time of one transfer over the number of simultaneous transfers",
            caption="A flat line means that others do not slow a transfer (Cloud-RAID III.D, Figures 5 and 6).",
            high="slowest_s",
        ),
    ),
    conclusions={
        "slowdown": Metric("ratio"),
    },
)
