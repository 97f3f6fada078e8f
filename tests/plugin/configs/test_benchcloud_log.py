"""BenchCloud's log has exactly its lines and tables, and failures do not count as successes."""

from __future__ import annotations

import re
import time
from datetime import UTC, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.plugin.configs.benchcloud_log import (
    LoggedOperation,
    LoggedRun,
    format_statistics,
    log_line,
    log_text,
)

ZONE = timezone(timedelta(hours=2))
START_MS = 1_396_001_000_123
"""28 March 2014, 10:03:20 UTC."""
LINE = re.compile(r"\[(\d+)\] \d\d [A-Z][a-z][a-z] \d{4} \d\d:\d\d:\d\d \| (.*)")

# The output of prettytable 0.7.2, which BenchCloud used, for these values.
TABLES = """\
+-----------+-------------+
| Operation |     Time    |
+-----------+-------------+
|     #0    |     5ms     |
|     #1    |   12345ms   |
|    #10    |     99ms    |
|    #100   | 123456789ms |
+-----------+-------------+
+-----+-------------+------------+
| Min |     Max     |  Average   |
+-----+-------------+------------+
| 5ms | 123456789ms | 30867309ms |
+-----+-------------+------------+"""


def operation(seq: int, took_ms: int, failure: str = "", start_ms: int = START_MS) -> LoggedOperation:
    return LoggedOperation(seq, f"f{seq}", start_ms, start_ms + took_ms, failure)


def messages(text: str) -> list[str]:
    return [match[2] for match in map(LINE.fullmatch, text.splitlines()) if match]


def test_a_line_has_a_timestamp_and_a_local_time() -> None:
    assert log_line(START_MS, "x", ZONE) == "[1396001000123] 28 Mar 2014 12:03:20 | x"
    assert log_line(999, "x", UTC) == "[999] 01 Jan 1970 00:00:00 | x"


def test_local_times_are_those_of_this_machine_before_and_after_its_clocks_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        change_ms = 1_396_141_200_000  # 30 March 2014, 02:00 in Berlin, when it became 03:00
        text = log_text(LoggedRun("d", "upload", change_ms - 1000, change_ms, []))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert re.findall(r"30 Mar 2014 \S+", text) == ["30 Mar 2014 01:59:59", *["30 Mar 2014 03:00:00"] * 2]


def test_the_tables_are_drawn_as_the_library_of_that_time_drew_them() -> None:
    operations = [operation(100, 123_456_789), operation(1, 12_345), operation(0, 5), operation(10, 99)]
    assert format_statistics(operations) == TABLES


def test_an_upload_is_logged_step_by_step() -> None:
    first = LoggedOperation(
        0, "b-x.jpg", START_MS + 20, START_MS + 140, "", (START_MS + 3, START_MS + 12), START_MS + 5140
    )
    second = LoggedOperation(1, "b-y.jpg", START_MS + 5145, START_MS + 5245)
    run = LoggedRun("a test", "upload", START_MS, START_MS + 5245, [second, first], sleep_s=5, start_sleeps_s=[0, 3])
    text = log_text(run, UTC)
    assert messages(text) == [
        "Start testing: a test",
        "Worker #0: Sleep before start: 0s",
        "Worker #1: Sleep before start: 3s",
        "Start operation #0",
        "Operation #0: Generating file...",
        "Operation #0: File generated: b-x.jpg (9ms)",
        "Operation #0: About to execute operation...",
        "Operation #0 finished. (120ms)",
        "Operation #0: File object closed: b-x.jpg",
        "Operation #0: About to sleep for 5 second(s)...",
        "Operation #0: Sleep finished, now wake up.",
        "Start operation #1",
        "Operation #1: Generating file...",
        "Operation #1: File generated: b-y.jpg",
        "Operation #1: About to execute operation...",
        "Operation #1 finished. (100ms)",
        "Operation #1: File object closed: b-y.jpg",
        "Operation #1: About to sleep for 5 second(s)...",
        "",
        "Time spent for all operations: 5245ms",
    ]
    assert "[1396001000135] 28 Mar 2014 10:03:20 | Operation #0: File generated: b-x.jpg (9ms)\n" in text
    ending = text.partition("10:03:25 | \n")[2]
    assert ending.startswith("All 2 operations finished! :)\n\nStatistics of all operations:\n+-----------+")
    assert ending.endswith(
        "| 100ms | 120ms |  110ms  |\n"
        "+-------+-------+---------+\n"
        "[1396001005368] 28 Mar 2014 10:03:25 | Time spent for all operations: 5245ms\n"
    )


def test_a_download_is_logged_in_two_lines() -> None:
    run = LoggedRun("d", "download", START_MS, START_MS + 9, [LoggedOperation(0, "/a/é", START_MS + 1, START_MS + 8)])
    assert messages(log_text(run, ZONE))[1:3] == ["Start downloading file #0: /a/é", "Operation #0 finished. (7ms)"]


def test_a_failure_is_neither_finished_nor_part_of_the_average() -> None:
    operations = [operation(0, 100), operation(1, 5000, "throttled"), operation(2, 201)]
    text = log_text(LoggedRun("d", "upload", START_MS, START_MS + 6000, operations), ZONE)
    assert "Operation #1 failed: throttled. (5000ms)" in messages(text)
    assert "Operation #1 finished" not in text
    assert "\nAll 3 operations finished, 1 of them failed! :(\n" in text
    assert "|     #1    | failed |" in text
    assert "| 100ms | 201ms |  150ms  |" in text, "the average is cut, as in Python 2"


@pytest.mark.parametrize("operations", [[], [operation(0, 7, "not_found")]])
def test_without_a_success_there_is_no_time(operations: list[LoggedOperation]) -> None:
    assert format_statistics(operations).endswith("|  -  |  -  |    -    |\n+-----+-----+---------+")


@given(st.lists(st.tuples(st.integers(0, 10**9), st.booleans()), max_size=12), st.text(max_size=20))
def test_every_operation_has_its_row_and_its_line(results: list[tuple[int, bool]], name: str) -> None:
    operations = [
        LoggedOperation(seq, name, START_MS, START_MS + ms, "server" if failed else "")
        for seq, (ms, failed) in enumerate(results)
    ]
    text = log_text(LoggedRun(name, "upload", START_MS, START_MS + 10**9, operations), ZONE)
    endings = [message for message in messages(text) if " finished. (" in message or " failed: server. (" in message]
    assert len(endings) == len(results)
    rows = [line for line in format_statistics(operations).splitlines() if line.startswith("|")]
    assert len(rows) == len(results) + 3
    tables = format_statistics(operations).splitlines()
    assert len({len(line) for line in tables[: len(results) + 4]}) == 1, "the borders are in line"
    stamps = [int(match[1]) for match in map(LINE.fullmatch, text.split("\n")) if match]
    assert stamps == sorted(stamps)
