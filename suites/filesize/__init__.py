"""File sizes that a provider handles badly (thesis, section 4.2.3)."""

from __future__ import annotations

from pytest_cloudbench import Curve, Metric, Suite

CLOUDBENCH_SUITE = Suite(
    "filesize",
    figures=(
        Curve(
            test="test_*",
            x="size_bytes",
            y="median_s",
            title="Time of one file over its size",
            caption="A size that is off the line is handled badly (thesis 4.2.3, Figures 4.5 and 4.6).",
            published="fitted_s",
            beside="fitted",
        ),
    ),
    conclusions={
        "latency": Metric("s", time_like=True),
        "bandwidth": Metric("bytes/s", "higher", time_like=True),
        "sizes_off": Metric("sizes"),
    },
)
