"""Times and traffic of a sync client on a slow, lossy or interrupted link."""

from __future__ import annotations

from pytest_cloudbench import Curve, Metric, Suite, TimeCourse

CLOUDBENCH_SUITE = Suite(
    "mobile",
    figures=(
        Curve(
            test="test_figure_5",
            x="rtt_ms",
            y="completion",
            title="Completion time over round trips",
            caption="A client with many small messages is slow on long round trips (mobile study, Figure 5).",
        ),
        Curve(
            test="test_figure_4",
            x="how",
            y="recovery_overhead",
            title="Traffic of recovery by how a transfer was interrupted",
            caption=("The cost of an interruption at half of the content, as a share of it (mobile study, Figure 4)."),
        ),
        Curve(
            test="test_loss",
            x="loss",
            y="completion",
            title="Completion time over lost packets",
            caption="The recovery of a client's connections (mobile study).",
        ),
        TimeCourse(
            test="test_figure_2",
            y="traffic_bytes",
            values="interval_bytes",
            times="interval_s",
            title="Traffic since the start",
            caption="The running sum: the cost of the start, then the client's own traffic (mobile study, Figure 2).",
            published=(("published_start_bytes", "published_start_s", "the largest start"),),
        ),
    ),
    conclusions={
        "login_traffic": Metric("bytes"),
        "idle_traffic": Metric("bit/s"),
        "sync_delay": Metric("s"),
    },
)
