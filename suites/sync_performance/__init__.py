"""The times and the traffic of a sync client's uploads."""

from __future__ import annotations

from pytest_cloudbench import Curve, Quote, Suite

CLOUDBENCH_SUITE = Suite(
    "sync_performance",
    columns={"contacted_servers": "servers", "contacted_names": "names"},
    figures=(
        Curve(
            test="test_figure_6",
            x="set",
            y="start_up",
            title="Start-up time by set of files",
            caption="Time from the change to the first byte of content (IMC, Figure 6a).",
            low="start_up_min",
            high="start_up_max",
            quotes=(
                Quote("imc-2013-quoted", "startup time", "any"),
                Quote("imc-2013-quoted", "startup time", "100 x 10 kB", x="100 x 10 kB"),
            ),
        ),
        Curve(
            test="test_figure_6",
            x="set",
            y="completion",
            title="Completion time by set of files",
            caption="Time from the first to the last byte of content (IMC, Figure 6b).",
            low="completion_min",
            high="completion_max",
            quotes=tuple(
                Quote("imc-2013-quoted", "completion time", name, x=name) for name in ("1 x 1 MB", "100 x 10 kB")
            ),
        ),
        Curve(
            test="test_figure_6",
            x="set",
            y="overhead",
            title="Overhead by set of files",
            caption="Bytes besides the files, as a share of them (IMC, Figure 6c).",
            low="overhead_min",
            high="overhead_max",
            quotes=(
                *(
                    Quote("imc-2013-quoted", "overhead", name, x=name, factor=0.01)
                    for name in ("1 x 100 kB", "1 x 1 MB")
                ),
                Quote("imc-2013-quoted", "traffic over data size", "100 x 10 kB", x="100 x 10 kB", plus=-1.0),
            ),
        ),
    ),
)
