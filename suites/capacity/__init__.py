"""The load that a provider can take before too many files are lost or late."""

from __future__ import annotations

from pytest_cloudbench import Metric, Probes, Suite

CLOUDBENCH_SUITE = Suite(
    "capacity",
    figures=(Probes("test_*", {"capacity_per_s": "uploads per second", "capacity_sensors": "sensors"}),),
    conclusions={
        "capacity_per_s": Metric("1/s", "higher", time_like=True),
        "capacity_sensors": Metric("sensors", "higher"),
    },
)
