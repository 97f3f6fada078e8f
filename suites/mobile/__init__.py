"""How a sync client copes with a slow, lossy or interrupted link."""

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
            told="Many small messages make a client slow where round trips are long (mobile study, Figure 5).",
        ),
        Curve(
            test="test_figure_4",
            x="how",
            y="recovery_overhead",
            title="Traffic of recovery by how a transfer was interrupted",
            told=(
                "What an interruption at half of the content costs, as a share of the content (mobile study, Figure 4)."
            ),
        ),
        Curve(
            test="test_loss",
            x="loss",
            y="completion",
            title="Completion time over lost packets",
            told="How a client's connections recover (mobile study).",
        ),
        TimeCourse(
            test="test_figure_2",
            y="traffic_bytes",
            values="interval_bytes",
            times="interval_s",
            title="Traffic since the start",
            told="The sum so far: what a start costs, and then what a client sends by itself (mobile study, Figure 2).",
            published=(("published_start_bytes", "published_start_s", "the largest start"),),
        ),
    ),
    conclusions={
        "login_traffic": Metric("bytes"),
        "idle_traffic": Metric("bit/s"),
        "sync_delay": Metric("s"),
    },
)
