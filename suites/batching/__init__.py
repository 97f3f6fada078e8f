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
            told="More bytes wait together, so fewer sessions are paid for (UDS, Figure 19).",
            mark="published_best_kb",
            x_title="byte counter c, KB",
        ),
        Curve(
            test="test_threshold",
            x="threshold_kb",
            y="pushes",
            title="Pushes over the byte counter c",
            told="How often changes were handed on for the same stream of appends.",
            mark="published_best_kb",
            x_title="byte counter c, KB",
        ),
        Curve(
            test="test_threshold",
            x="threshold_kb",
            y="sync_delay_s",
            title="Sync delay over the byte counter c",
            told="From the last append until the server has all: what still waits in the end (UDS, Figure 20).",
            mark="published_best_kb",
            x_title="byte counter c, KB",
        ),
        TimeCourse(
            test="test_download",
            y="traffic per byte of the file",
            values="each_second_bytes",
            times=1.0,
            title="Traffic while a file is downloaded",
            told="The sum so far, over the size that the file has in the end; 1 is the best (UDS, Figures 16 and 21).",
            over="file_bytes",
            published=(("uds_tue", "", "client alone"), ("uds_tue_batched", "", "with UDS")),
        ),
        TimeCourse(
            test="test_log",
            y="traffic per byte of the file",
            values="each_second_bytes",
            times=1.0,
            title="Traffic while a log grows",
            told="The sum so far, over the size that the log has in the end; 1 is the best (UDS, Figures 15 and 22).",
            over="file_bytes",
            published=(("uds_tue", "", "client alone"),),
        ),
        TimeCourse(
            test="test_cpu",
            y="cpu_share",
            values="cpu_shares",
            times="cpu_shares_at_s",
            title="CPU time while a file grows",
            told=(
                "Of the client, and of what batches in front of it, as a share of one core (UDS, Figures 23 to 25); "
                "published are means on a processor of 2012."
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
            told="The sum so far, over the size that the file has in the end (UDS, section 3.3).",
            over="file_bytes",
        ),
    ),
    conclusions={
        "sync_delay": Metric("s"),
        "traffic_mb": Metric("MB"),
    },
)
