"""The number of threads that an application needs (thesis, section 4.2.2)."""

from __future__ import annotations

from pytest_cloudbench import Curve, Metric, Suite

CLOUDBENCH_SUITE = Suite(
    "concurrency",
    figures=(
        Curve(
            test="test_*",
            x="threads",
            y="elapsed",
            title="Total time over threads",
            caption=(
                "The knee is the smallest number of threads whose total is within 5 % of the best (thesis 4.2.2, "
                "Figures 4.1 to 4.4)."
            ),
            mark="knee_threads",
        ),
    ),
    conclusions={
        "knee_threads": Metric("threads"),
        "best_total": Metric("s", time_like=True),
    },
)
