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
    columns={
        "stored_per_byte": "stored/byte",
        # two sizes in one row: each of these names its own (measures.PLACED_BYTES and LEARNING_BYTES)
        "throughput_s": "10 MB ms",
        "least_s": "10 MB least ms",
        "over_the_bound": "10 MB over least",
        "equal_s": "512 KiB equal ms",
        "equal_least_s": "512 KiB equal least ms",
    },
)
