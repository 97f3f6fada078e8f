"""The traffic of a sync client while nobody touches its folder."""

from __future__ import annotations

from pytest_cloudbench import Metric, Suite, TimeCourse

CLOUDBENCH_SUITE = Suite(
    "idle",
    figures=(
        TimeCourse(
            test="test_idle",
            y="traffic_bytes",
            values="interval_bytes",
            times="interval_s",
            title="Traffic of a client that is left alone",
            caption="The running sum. At each step the client asks for news (IMC, Figure 1).",
        ),
    ),
    conclusions={
        "login_traffic": Metric("bytes"),
        "idle_traffic": Metric("bit/s"),
        "polling_period": Metric("s"),
    },
    columns={"contacted_servers": "servers", "contacted_names": "names"},
)
