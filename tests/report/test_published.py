"""A run beside a paper's table: the same rows, the same unit, and no number where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import cli
from pytest_cloudbench.report.published import overview, render
from pytest_cloudbench.results.published import beside, load, names

TEST = "suites/iot/test_iot.py::test_table_4_2[30-1s-x]"
ROW = {"sensors": 30, "interval_s": 1, "first_delay_max_s": 0}


def entry(fullname: str = TEST, params: Any = ROW, **info: Any) -> dict[str, Any]:
    return {"fullname": fullname, "params": params, "extra_info": {"provider": "mine", **info}}


def shown(table: str, *run: dict[str, Any]) -> list[str]:
    found = load(table)
    beside(found, run)
    return [" ".join(line.split()) for line in render(found)]


def test_every_table_can_be_shown_and_is_listed() -> None:
    tables = [load(name) for name in names()]
    assert [line.split()[0] for line in overview(tables)[2:]] == names()
    for table in tables:
        lines = render(table)
        assert len(lines) >= len(table.rows) + 5
        assert not [line for line in lines if " inf" in line or " nan" in line]


def test_a_published_value_is_in_the_papers_unit() -> None:
    assert "30 1 0 55.33 %" in shown("thesis-2014-table-4.2")
    assert "polling interval idle Google Drive s 40" in shown("imc-2013-quoted")
    assert "Chunking Dropbox yes" in shown("imc-2013-table-1")


def test_a_run_stands_beside_with_its_difference() -> None:
    lines = shown("thesis-2014-table-4.2", entry(loss_rate=0.58, emulated=True))
    assert "sensors interval_s first_delay_max_s published mine difference" in lines
    assert "30 1 0 55.33 % 58.00 % +2.67 points" in lines
    assert "30 10 0 17.33 % - -" in lines
    assert "note: an emulated run measures the client and the loopback, not the service" in lines


def test_a_ratio_is_one_of_times_and_there_is_none_to_zero() -> None:
    table = load("cloud-raid-2012-table-1")
    row = table.rows[0]
    info = {row.entry["extra_info"]["stats_metric"]: 2 * row.value}
    assert beside(table, [entry(row.entry["fullname"], dict(row.params), **info)])
    assert " ".join(render(table)[5].split()).endswith(
        f"{row.value:g} mine".replace("mine", f"{2 * row.value:g} 2.00 x")
    )
    zero = shown("thesis-2014-table-4.2", entry(params={**ROW, "sensors": 10}, loss_rate=0.06))
    assert "10 1 0 0.00 % 6.00 % +6.00 points" in zero


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "much"])
def test_what_a_run_does_not_know_is_a_dash(value: Any) -> None:
    assert "30 1 0 55.33 % - -" in shown("thesis-2014-table-4.2", entry(loss_rate=value))


def test_a_doubt_is_marked_and_told() -> None:
    lines = shown("thesis-2014-table-4.2", entry(loss_rate=0.5, doubts=["gw3 was lost"]), entry(loss_rate=0.6))
    assert "30 1 0 55.33 % 50.00 %?; 60.00 % -5.33 points; +4.67 points" in lines
    assert "? gw3 was lost" in lines


@pytest.mark.parametrize(
    ("fullname", "params", "count"),
    [
        (TEST, {**ROW, "sensors": 31}, 0),
        ("suites/iot/test_iot.py::test_worst_case[30-1s-x]", ROW, 0),
        ("mine/test_iot.py::test_table_4_2[30-1s-x]", ROW, 0),
        (TEST, None, 0),
        ("venv/lib/pytest_cloudbench/suites/iot/test_iot.py::test_table_4_2[30-1s-x]", ROW, 1),
    ],
    ids=["another row", "another test", "another suite", "no parameters", "in a wheel"],
)
def test_only_what_repeats_a_row_stands_beside_it(fullname: str, params: Any, count: int) -> None:
    assert beside(load("thesis-2014-table-4.2"), [entry(fullname, params, loss_rate=0.5)]) == count


def test_a_provider_that_no_paper_had_stands_beside_all_of_them() -> None:
    table = load("cloud-raid-2012-table-3")
    run = [entry("suites/availability/test_availability.py::test_series[x]", None, availability=0.75)]
    assert beside(table, run) == len(table.rows)


def test_a_share_just_below_one_is_not_one() -> None:
    lines = shown("thesis-2014-table-4.2", entry(loss_rate=0.99998))
    assert "30 1 0 55.33 % 99.9980 % +44.67 points" in lines


# --- the command ---


def test_the_command_lists_shows_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "0001_x.json"
    run.write_text(json.dumps({"benchmarks": [entry(loss_rate=0.58)]}))
    assert cli.main(["published"]) == 0
    assert "thesis-2014-table-4.2      15  loss rate in percent" in capsys.readouterr().out
    assert cli.main(["published", "--run", str(run)]) == 0
    assert capsys.readouterr().out.startswith("thesis-2014-table-4.2: loss rate in percent\n")


@pytest.mark.parametrize(
    ("content", "words", "told"),
    [
        (None, ["no-such"], "there is no such table; there are: cloud-raid"),
        (None, ["--run", "run.json"], "run.json: there is no such file"),
        ("[]", ["--run", "run.json"], "run.json: is not a run stored by pytest-benchmark"),
        ("{", ["--run", "run.json"], "run.json: is not a run stored by pytest-benchmark"),
        ('{"benchmarks": []}', ["--run", "run.json"], "no experiment in run.json repeats a row of any published table"),
        (None, ["--run", "/dev/zero"], "there is no such file"),
    ],
)
def test_bad_input_is_one_line(
    content: str | None, words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("run.json").write_text(content)
    assert cli.main(["published", *words]) == 4
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
