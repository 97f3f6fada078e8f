"""The number of parts in which an object is uploaded fastest (Cloud-RAID, III.D, Table II)."""

from __future__ import annotations

from pytest_cloudbench import Curve, Metric, Suite

CLOUDBENCH_SUITE = Suite(
    "segmentation",
    figures=(
        Curve(
            test="test_*",
            x="segments",
            y="time_s",
            title="Time of an object over its segments",
            caption="Few segments are limited by bandwidth, many by latency (Cloud-RAID III.D, Figure 7).",
            inside="segments_s",
            mark="best_segments",
        ),
    ),
    conclusions={
        "best_segments": Metric("segments"),
        "native": Metric("s", time_like=True),
        "segmented": Metric("s", time_like=True),
        "single_chunk": Metric("s", time_like=True),
        "improvement_factor": Metric("ratio", "higher"),
    },
)
