"""What does batching in front of a sync client save, and what delay does it add?"""

from __future__ import annotations

from pytest_cloudbench import Curve, Metric, Suite, TimeCourse

CLOUDBENCH_SUITE = Suite(
    "batching",
    figures=(
        Curve(
            test="test_threshold",
            x="threshold_kb",
            y="tue",
            title="Traffic usage efficiency over the byte counter c",
            caption="The more bytes wait together, the fewer sessions are needed (UDS, Figure 19).",
            mark="published_best_kb",
            x_title="byte counter c, KB",
        ),
        Curve(
            test="test_threshold",
            x="threshold_kb",
            y="pushes",
            title="Pushes over the byte counter c",
            caption="The number of times that changes were handed on, for the same stream of appends.",
            mark="published_best_kb",
            x_title="byte counter c, KB",
        ),
        Curve(
            test="test_threshold",
            x="threshold_kb",
            y="sync_delay_s",
            title="Sync delay over the byte counter c",
            caption="Time from the last append until the server has everything (UDS, Figure 20).",
            mark="published_best_kb",
            x_title="byte counter c, KB",
        ),
        TimeCourse(
            test="test_download",
            y="traffic per byte of the file",
            values="each_second_bytes",
            times=1.0,
            title="Traffic while a file is downloaded",
            caption="The running sum over the final size of the file. 1 is the best (UDS, Figures 16 and 21).",
            over="file_bytes",
            published=(("uds_tue", "", "client alone"), ("uds_tue_batched", "", "with UDS")),
        ),
        TimeCourse(
            test="test_log",
            y="traffic per byte of the file",
            values="each_second_bytes",
            times=1.0,
            title="Traffic while a log grows",
            caption="The running sum over the final size of the log. 1 is the best (UDS, Figures 15 and 22).",
            over="file_bytes",
            published=(("uds_tue", "", "client alone"),),
        ),
        TimeCourse(
            test="test_cpu",
            y="cpu_share",
            values="cpu_shares",
            times="cpu_shares_at_s",
            title="CPU time while a file grows",
            caption=(
                "CPU time of the client and of the savingbox in front of it, as a share of one core (UDS, Figures 23 "
                "to 25). Published values are means on a processor of 2012."
            ),
            is_sum=False,
            published=(
                ("uds_cpu_share", "", "client alone"),
                ("uds_cpu_share_batched", "", "with UDS"),
                ("uds_cpu_share_ranges", "", "with UDS+"),
            ),
        ),
        TimeCourse(
            test="test_single_bytes",
            y="traffic per byte of the file",
            values="each_second_bytes",
            times=1.0,
            title="Traffic while single bytes are appended",
            caption="The running sum over the final size of the file (UDS, section 3.3).",
            over="file_bytes",
        ),
    ),
    conclusions={
        "sync_delay": Metric("s"),
        "traffic_mb": Metric("MB"),
    },
)
