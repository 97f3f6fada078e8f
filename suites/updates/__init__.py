"""Traffic and delays of a sync client for streams of small updates."""

from __future__ import annotations

from pytest_cloudbench import Curve, Delays, Metric, Quote, Suite, TimeCourse, time_percentiles

CLOUDBENCH_SUITE = Suite(
    "updates",
    figures=(
        Delays(
            test="test_delays",
            values={"start_ups_s": "start-up", "sync_delays_s": "sync delay"},
            caption=(
                "Start-up is the time from a change to the first payload that the client sent, and sync delay the time "
                "to the last one. A client that indexes or waits before it sends starts late (UDS, Figures 8 and 9)."
            ),
            published={
                "start_up_p50_7200_rpm_s": "median start-up with a disk of 7,200 rpm",
                "start_up_p50_5400_rpm_s": "with one of 5,400 rpm",
                "start_up_max_s": "the longest start-up",
            },
            shares={"sync_delay_1_to_4_s_share": (1.0, 4.0), "sync_delay_4_to_7_s_share": (4.0, 7.0)},
            shares_of="sync delay",
        ),
        Curve(
            test="test_table_1",
            x="changed_bytes",
            y="tue",
            title="Traffic usage efficiency over the size of a new file",
            caption="Bytes on the wire per byte of the file. 1 is the best (UDS, Table 1 and Figure 4).",
            published="uds_tue",
            x_title="size of the file",
            table="uds-2013-table-1",
        ),
        Curve(
            test="test_table_1",
            x="changed_bytes",
            y="sync_delay_s",
            title="Sync delay over the size of a new file",
            caption="Time from the new file to the last payload before the server had it (UDS, Table 1).",
            published="uds_delay_s",
            x_title="size of the file",
            table="uds-2013-table-1",
        ),
        Curve(
            test="test_appends",
            x="interval_s",
            y="tue",
            title="Traffic usage efficiency over the interval of appends",
            caption="A client that batches sends less per change when changes come fast (UDS, Figures 6, 7 and 12).",
        ),
        Curve(
            test="test_appends",
            x="interval_s",
            y="traffic_kb",
            title="Traffic over the interval of appends",
            caption="The cost of the same number of one-byte appends (UDS, Figures 4 to 7).",
            quotes=(
                Quote("uds-2013-appends", "traffic", x=1.0, factor=0.001, given={"interval_s": 1.0, "count": 1024}),
            ),
        ),
        Curve(
            test="test_blocks",
            x="block_kb",
            y="traffic_kb",
            title="Traffic over the size of the written blocks",
            caption="The same bytes in blocks of different sizes (UDS, Figure 10).",
        ),
        Curve(
            test="test_download",
            x="rate_kbit_per_s",
            y="traffic_kb",
            title="Traffic over the speed of a download",
            caption="A slow download is many small changes (UDS, Figure 16).",
            quotes=(Quote("uds-2013-download", "traffic", "alone", x=80, factor=0.001),),
        ),
        Curve(
            test="test_download",
            x="rate_kbit_per_s",
            y="up_over_file",
            title="Upload per byte of a file that is downloaded",
            caption="1 is the best. Faster downloads come closer to it (UDS, Figure 17).",
            quotes=(Quote("uds-2013-ratios", "upload over file"),),
        ),
        TimeCourse(
            test="test_appends",
            y="traffic_bytes",
            values="each_second_bytes",
            times=1.0,
            title="Traffic while bytes are appended",
            caption=(
                "The running sum. Each change costs the same again unless changes are sent together (UDS, Figures 4 "
                "and 5)."
            ),
            quotes=(Quote("uds-2013-appends", "traffic", given={"interval_s": 1.0, "count": 1024}),),
        ),
        TimeCourse(
            test="test_download",
            y="traffic per byte of the file",
            values="each_second_bytes",
            times=1.0,
            title="Traffic while a file is downloaded",
            caption="The running sum over the final size of the file. 1 is the best (UDS, Figure 16).",
            over="file_bytes",
            quotes=(
                Quote("uds-2013-download", "traffic", "alone", factor=1 / 5000000.0, given={"rate_kbit_per_s": 80}),
            ),
        ),
    ),
    conclusions={
        "sync_delay": Metric("s"),
        "traffic_mb": Metric("MB"),
        **time_percentiles("start_up", "sync_delay"),
    },
)
