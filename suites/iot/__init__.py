"""Cloud storage as the backend of many sensors (thesis, section 4.2.4)."""

from __future__ import annotations

from pytest_cloudbench import LossGrid, Suite

CLOUDBENCH_SUITE = Suite(
    "iot",
    figures=(
        LossGrid("test_table_4_2", "thesis-2014-table-4.2"),
        LossGrid("test_table_4_3", "thesis-2014-table-4.3"),
        LossGrid("test_worst_case"),
        LossGrid("test_average_case"),
    ),
)
