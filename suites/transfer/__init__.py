"""How fast are uploads and downloads of one file by its size, and what does a transfer cost besides its bytes?"""

from __future__ import annotations

from pytest_cloudbench import Curve, Metric, Suite

CLOUDBENCH_SUITE = Suite(
    "transfer",
    figures=(
        Curve(
            test="test_sizes",
            x="size_bytes",
            y="throughput",
            title="Throughput over the size of a file",
            caption="Small files pay for latency, large ones for bandwidth.",
        ),
        Curve(
            test="test_parallel",
            x="threads",
            y="throughput",
            title="Throughput over threads",
            caption="Where the curve stops rising, more of them bring nothing.",
        ),
        Curve(
            test="test_parts",
            x="parts",
            y="throughput",
            title="Throughput over parts",
            caption="Where the curve stops rising, more of them bring nothing.",
        ),
    ),
    conclusions={
        "wire_ratio": Metric("ratio", gated="exact"),
        "extra_bytes_per_op": Metric("bytes"),
        "extra_bytes_per_request": Metric("bytes"),
    },
    columns={"extra_bytes_per_op": "extra/op", "extra_bytes_per_request": "extra/req"},
)
