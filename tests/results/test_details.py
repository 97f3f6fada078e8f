"""Error texts of a provider are stored once each, without secrets, in logs, merged tables and Parquet files."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_cloudbench.judge.metrics import summarize
from pytest_cloudbench.judge.records import RECORD_BYTES, OpTable
from pytest_cloudbench.model import ErrorKind, Op, Outcome, ResultsError, Verb
from pytest_cloudbench.results import oplog
from pytest_cloudbench.results.oplog import OpLog, read_log, read_parquet, write_parquet
from pytest_cloudbench.support import redact

BUSY, LONG = "429 too_many_write_operations", "503 " + "Überlast " * 12


def op(seq: int, detail: str = "", kind: ErrorKind | None = ErrorKind.THROTTLED, requests: int | None = 1) -> Op:
    outcome = Outcome.OK if kind is None else Outcome.THROTTLED
    return Op(Verb.PUT, 1, seq, 0, seq, seq, 0, seq + 10, 6, outcome, kind, None, b"\0", detail, requests)


def write_and_read(path: Path, ops: Iterable[Op]) -> OpTable:
    with OpLog(path, {"agent": path.stem}) as log:
        for record in ops:
            log.record(record)
    return read_log(path)


def test_details_come_back_from_a_log(tmp_path: Path) -> None:
    ops = [op(0, BUSY), op(1, kind=None), op(2, LONG), op(3, BUSY, requests=None), op(4, requests=0)]
    table = write_and_read(tmp_path / "gw0.oplog", ops)
    assert len(table) == 5
    assert table.detail == [BUSY, "", LONG.strip(), BUSY, ""]
    assert table.requests == [1, 1, 1, None, 0]
    assert [record.seq for record in table.ops()] == [0, 1, 2, 3, 4]


def test_a_text_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "gw0.oplog"
    write_and_read(path, [op(seq, BUSY) for seq in range(1000)])
    assert path.stat().st_size < 1002 * RECORD_BYTES + 100


def test_logs_that_number_their_texts_differently_are_merged(tmp_path: Path) -> None:
    one = write_and_read(tmp_path / "gw0.oplog", [op(0, "a"), op(1, "b"), op(2)])
    two = write_and_read(tmp_path / "gw1.oplog", [op(3, "b"), op(4, "c"), op(5, "a")])
    merged = OpTable(one, two, OpTable.of([op(6, "c"), op(7, "d")]))
    assert merged.detail == ["a", "b", "", "b", "c", "a", "c", "d"]
    assert merged.details == ["", "a", "b", "c", "d"]
    assert [merged.values(block, "detail") for block in OpTable(merged).blocks()] == [
        ["a", "b", ""], ["b", "c", "a"], ["c", "d"],
    ]  # fmt: skip
    path = tmp_path / "it.parquet"
    write_parquet(merged, path, {})
    back = read_parquet(path)
    assert back == merged
    assert back.detail == merged.detail


def test_a_full_table_says_that_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cloudbench.judge.records._MAX_TEXTS", 3)
    table = OpTable(OpTable.of([op(0, "a"), op(1, "b")]), OpTable.of([op(2, "c"), op(3, "b"), op(4, "d")]))
    more = "(more different details than a table holds)"
    assert table.detail == ["a", "b", more, "b", more]


def test_a_provider_that_numbers_its_errors_does_not_fill_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "gw0.oplog"
    table = write_and_read(path, [op(seq, f"500 request {seq}") for seq in range(3000)])
    assert table.detail[:250] == [f"500 request {seq}" for seq in range(250)]
    assert set(table.detail[250:]) == {"(not kept: the agent had 250 different ones before)"}
    assert path.stat().st_size < 3300 * RECORD_BYTES


def test_a_secret_that_a_server_echoes_is_in_no_file(tmp_path: Path) -> None:
    token = "sl.hidden-in-the-details-0815"
    redact.learn([token])
    path, parquet = tmp_path / "gw0.oplog", tmp_path / "it.parquet"
    table = write_and_read(path, [op(0, f"401 your token {token} is bad"), op(1, "x" * 190 + token)])
    write_parquet(table, parquet, {})
    assert table.detail[0] == "401 your token *** is bad"
    assert token[:12] not in "".join(read_parquet(parquet).detail)
    assert token[:12].encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        ("two\nlines\r\n and\ttabs", "two lines and tabs"),
        ("\x1b[31mred\x1b[0m \x07", r"\x1b[31mred\x1b[0m \x07"),
        ("right\u202eleft \u2066", r"right\u202eleft \u2066"),
        ("half a \udc80 character", r"half a \udc80 character"),
        ("Größe 日本", "Größe 日本"),
        ("long " * 100, "long " * 39 + "lo..."),
        (" \n ", ""),
    ],
)
def test_details_are_one_short_line(tmp_path: Path, detail: str, expected: str) -> None:
    assert write_and_read(tmp_path / "gw0.oplog", [op(0, detail)]).detail == [expected]


def test_escape_sequences_in_foreign_logs_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oplog, "_format_detail", str)
    table = write_and_read(tmp_path / "gw0.oplog", [op(0, "\x1b[2J")])
    monkeypatch.undo()
    assert table.detail == ["\x1b[2J"], "this log is as one that another program made"
    assert read_log(tmp_path / "gw0.oplog").detail == [r"\x1b[2J"]


def test_many_threads_number_one_text_once(tmp_path: Path) -> None:
    with OpLog(tmp_path / "gw0.oplog", {}) as log:

        def record() -> None:
            for seq in range(500):
                log.record(op(seq, f"text {seq % 7}"))

        threads = [threading.Thread(target=record) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    table = read_log(tmp_path / "gw0.oplog")
    assert all(row.detail == f"text {row.seq % 7}" for row in table.ops())
    assert len(table.details) == 8


def test_every_torn_end_of_a_log_gives_whole_operations(tmp_path: Path) -> None:
    """A log has each text before the first record that refers to it, so a killed agent leaves no number without one."""
    ops = [op(0), op(1, LONG), op(2, BUSY), op(3, LONG)]
    path, torn = tmp_path / "gw0.oplog", tmp_path / "torn.oplog"
    assert write_and_read(path, ops).detail == ["", LONG.strip(), BUSY, LONG.strip()]
    data = path.read_bytes()
    start = data.index(b"\n") + 1
    counts = set()
    for end in range(start, len(data) + 1, 7):
        torn.write_bytes(data[:end])
        table = read_log(torn)
        counts.add(len(table))
        assert table.detail == [
            LONG.strip() if record.detail == LONG else record.detail for record in ops[: len(table)]
        ]
    assert counts >= {0, 1, 2, 3}


def test_log_with_missing_detail_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gw0.oplog"
    write_and_read(path, [op(0, "a")])
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"\n") + 1] + data[-RECORD_BYTES:])
    with pytest.raises(ResultsError, match="holds records of an unknown form"):
        read_log(path)


def test_entry_counts_the_first_error_texts_of_each_kind() -> None:
    busy = [op(seq, f"busy {seq % 9}") for seq in range(20)]
    others = [op(30, "gone", ErrorKind.NETWORK), op(31, "", ErrorKind.SERVER), op(32, kind=None)]
    summary = summarize(OpTable.of([*reversed(busy), *others]), None)
    assert summary.details[ErrorKind.THROTTLED][0] == ("busy 0", 3)
    assert sum(count for _, count in summary.details[ErrorKind.THROTTLED]) == 20
    details = summary.errors()["error_details"]
    assert details["throttled"]["count"] == 20
    assert [row["detail"] for row in details["throttled"]["said"]] == [f"busy {number}" for number in range(5)]
    assert details["network"] == {"count": 1, "said": [{"detail": "gone", "count": 1}]}
    assert details.keys() == {"throttled", "network"}, "the server's error had no text"


def test_requests_of_an_operation_are_known_or_not() -> None:
    assert summarize(OpTable.of([op(0, requests=1), op(1, requests=4)]), None).metrics["requests_per_op"] == 2.5
    assert summarize(OpTable.of([op(0, requests=1), op(1, requests=None)]), None).metrics["requests_per_op"] is None
    assert summarize(OpTable.of([]), None).metrics["requests_per_op"] is None
