"""The means by which a sync client saves traffic."""

from __future__ import annotations

from pytest_cloudbench import Answers, Curve, Metric, Quote, Suite

CLOUDBENCH_SUITE = Suite(
    "sync_capabilities",
    figures=(
        Answers("test_table_1", "imc-2013-table-1"),
        Curve(
            test="test_figure_3",
            x="files",
            y="syns",
            title="Connections over the number of files",
            caption="The same bytes in more files. A client that bundles opens no more connections (IMC, Figure 3).",
            quotes=(Quote("imc-2013-quoted", "connections", "100 x 10 kB", x=100),),
        ),
        Curve(
            test="test_figure_3",
            x="files",
            y="completion_s",
            title="Completion time over the number of files",
            caption="The same bytes in more files. A client that bundles takes no longer (IMC, Figure 3).",
            quotes=(Quote("imc-2013-quoted", "completion time", "100 x 10 kB, Figure 3", x=100),),
        ),
        Curve(
            test="test_figure_4",
            x="size_bytes",
            y="uploaded_mb",
            title="Uploaded over the size of a changed file",
            caption="A client with delta encoding sends only the change (IMC, Figure 4).",
        ),
        Curve(
            test="test_figure_5",
            x="size_bytes",
            y="uploaded_mb",
            title="Uploaded over the size of a file",
            caption="A client that compresses sends less of a text (IMC, Figure 5).",
        ),
        Curve(
            test="test_figure_4_8",
            x="size_mb",
            y="traffic_mb",
            title="Traffic over the size of a sparse file",
            caption=(
                "A flat line means that holes are not sent. Published traffic differs by 3.6 KB (thesis, Figure 4.8)."
            ),
        ),
        Curve(
            test="test_figure_4_10",
            x="percent",
            y="traffic_mb",
            title="Traffic over the common part of versions",
            caption="Several versions of a file. Delta encoding sends the common part once (thesis, Figure 4.10).",
            published="delta_encoded_mb",
            beside="with delta encoding",
            x_title="identical part, %",
        ),
    ),
    conclusions={
        "traffic_mb": Metric("MB"),
    },
)
