"""State files of series: durable lines, torn ends, damage, other schemas, one writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results import series

KEY = {"test": "test_series", "provider": "folder:x", "params": {}}
SETUP = {"files": 3}
HEADER = {"key": KEY, "setup": SETUP, "plan": {"rounds": 2}}


def session_line(at_s: float) -> dict[str, Any]:
    return {"session": {"at_s": at_s, "run_id": "r"}}


def round_line(number: int, ended_s: float) -> dict[str, Any]:
    return {"round": number, "ended_s": ended_s}


def write_series(path: Path, *lines: dict[str, Any]) -> Path:
    file = series.create_series(path, HEADER)
    for line in lines:
        file.add(line)
    file.close()
    return path


def test_resumed_series_returns_its_lines_and_continues_counts(tmp_path: Path) -> None:
    added = [session_line(100.0), round_line(0, 110.0), round_line(1, 130.0), session_line(500.0), round_line(2, 507.0)]
    path = write_series(tmp_path / "deep" / "a.jsonl", *added)
    file = series.resume_series(path, KEY, SETUP)
    assert (file.rounds, file.observed_s, file.is_finished, file.was_torn) == (3, 37.0, False, False)
    lines, offset = [], 0
    while page := file.read_page(offset, 2):
        lines += page[0]
        offset = page[1]
        if not offset:
            break
    assert lines == added
    assert file.read_page(0, 100) == (added, 0)
    file.add(round_line(3, 510.0))
    assert file.rounds == 4
    file.close()
    assert [json.loads(line).get("round") for line in path.read_text().splitlines()[2:]] == [0, 1, None, 2, 3]
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_clock_that_was_set_back_takes_no_time_away(tmp_path: Path) -> None:
    lines = [session_line(100.0), round_line(0, 110.0), session_line(500.0), round_line(1, 200.0), session_line(300.0)]
    file = series.resume_series(write_series(tmp_path / "a.jsonl", *lines), KEY, SETUP)
    assert file.observed_s == 10.0
    file.close()


def test_second_series_of_a_name_does_not_replace_the_first(tmp_path: Path) -> None:
    """A session runs a test again to compare two sides, or to repeat it for the gate."""
    names = []
    for number in range(3):
        file = series.create_series(tmp_path / "a.jsonl", HEADER)
        file.add(session_line(number))
        file.close()
        names.append(file.path.name)
    assert names == ["a.jsonl", "a-2.jsonl", "a-3.jsonl"]
    assert [list(series.read_lines(tmp_path / name)) for name in names] == [[session_line(at_s)] for at_s in range(3)]


@pytest.mark.parametrize("end", [b'{"round":1,"en', b'{"round":1,"ended_s":5}', b"\x00\x00\x00\n", b"17\n"])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, end: bytes) -> None:
    path = write_series(tmp_path / "a.jsonl", session_line(0.0), round_line(0, 3.0))
    data = path.read_bytes()
    path.write_bytes(data + end)
    file = series.SeriesFile(path)
    assert (file.rounds, file.was_torn) == (1, True)
    file.close()
    assert path.read_bytes() == data


def test_damage_in_the_middle_is_no_torn_end(tmp_path: Path) -> None:
    path = write_series(tmp_path / "a.jsonl", session_line(0.0), round_line(0, 3.0))
    data = path.read_bytes()
    for line, message in ((b"{ \n", "damaged at byte"), (b'{"round":7,"ended_s":1}\n', "expected round 1, found 7"),
                      (b'{"round":0,"ended_s":1}\n', "expected round 1, found 0"),
                      (b'{"round":1}\n', "damaged at byte"), (b'{"session":{}}\n', "damaged at byte"),
                      (b"[" * 100_000 + b"\n", "damaged at byte"),
                      (b'{"round":1,"ended_s":1' + b"0" * 400 + b"}\n", "damaged at byte"),
                      (b'{"round":1,"ended_s":1e999}\n', "damaged at byte")):  # fmt: skip
        path.write_bytes(data + line + b'{"round":1,"ended_s":9}\n')
        with pytest.raises(ResultsError, match=message):
            series.SeriesFile(path)


def test_series_of_unknown_schema_or_format_are_refused(tmp_path: Path) -> None:
    path = write_series(tmp_path / "a.jsonl", session_line(0.0))
    path.write_text(path.read_text().replace('"schema":1', '"schema":2'))
    with pytest.raises(ResultsError, match="schema 2; this version reads 1"):
        series.resume_series(path, KEY, SETUP)
    with pytest.raises(ResultsError, match="schema 2; this version reads 1"):
        series.find_latest(tmp_path, KEY)
    for text in ("", "hello\n", '{"key": {}}\n'):
        path.write_text(text)
        with pytest.raises(ResultsError, match="expected the state file of a series"):
            series.SeriesFile(path)
    with pytest.raises(ResultsError, match="No such file"):
        series.SeriesFile(tmp_path / "none.jsonl")


def test_series_of_another_setup_is_refused_with_the_difference(tmp_path: Path) -> None:
    path = write_series(tmp_path / "a.jsonl", session_line(0.0))
    with pytest.raises(ResultsError, match="files was 3 and is 4"):
        series.resume_series(path, KEY, {"files": 4})
    with pytest.raises(ResultsError, match="provider was 'folder:x' and is 'folder:y'"):
        series.resume_series(path, {**KEY, "provider": "folder:y"}, SETUP)
    series.resume_series(path, KEY, SETUP).close()


def test_series_file_is_open_in_one_process_only(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    path = write_series(tmp_path / "a.jsonl", session_line(0.0))
    file = series.SeriesFile(path)
    with pytest.raises(ResultsError, match="another run is using this series now"):
        series.SeriesFile(path)
    file.close()
    series.SeriesFile(path).close()


def test_the_latest_unfinished_one_of_the_key_is_found(tmp_path: Path) -> None:
    import os

    older = write_series(tmp_path / "older.jsonl", session_line(0.0))
    newer = write_series(tmp_path / "newer.jsonl", session_line(0.0))
    finished = write_series(tmp_path / "finished.jsonl", session_line(0.0), round_line(0, 1.0), {"end": {"at_s": 2.0}})
    for age, path in enumerate((finished, newer, older)):
        os.utime(path, (1e9 - age, 1e9 - age))
    assert series.find_latest(tmp_path, KEY) == newer
    assert series.find_latest(tmp_path, {**KEY, "provider": "folder:y"}) is None
    assert series.find_latest(tmp_path / "none", KEY) is None
    file = series.SeriesFile(finished)
    assert file.is_finished
    file.close()
