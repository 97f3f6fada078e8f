"""The time until another device has a new file."""

from __future__ import annotations

from pytest_cloudbench import Metric, Suite

CLOUDBENCH_SUITE = Suite(
    "propagation",
    conclusions={
        "propagation": Metric("s", time_like=True),
    },
)
