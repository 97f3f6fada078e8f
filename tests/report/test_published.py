"""A run beside a paper's table has the same rows and units, and no number where it measured none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.report.published import render_overview, render_table
from pytest_cloudbench.results.published import Table, add_measured, load_table, table_names

ROOT = Path(__file__).parents[2]
ENTRIES = [ROOT / "src/pytest_cloudbench/lab/sync/transfers.py", ROOT / "suites/updates/test_updates.py"]
"""Files that compute numbers of suites, besides the suites' own files."""
TEST = "suites/iot/test_iot.py::test_table_4_2[30-1s-x]"
CLAIM = "loss_rate >= 0.45 and <= 0.7 (thesis 2014, 2014-06-01): met, measured 0.58"
ROW = {"sensors": 30, "interval_s": 1, "first_delay_max_s": 0}


def entry(fullname: str = TEST, params: Any = ROW, **info: Any) -> dict[str, Any]:
    return {"fullname": fullname, "params": params, "extra_info": {"provider": "mine", **info}}


def show_table(name: str, *run: dict[str, Any]) -> list[str]:
    table = load_table(name)
    add_measured(table, run)
    return [" ".join(line.split()) for line in render_table(table)]


def table_of(run: dict[str, Any]) -> Table:
    table = load_table("thesis-2014-table-4.2")
    assert add_measured(table, [run])
    return table


def test_every_table_can_be_shown_and_is_listed() -> None:
    tables = [load_table(name) for name in table_names()]
    assert [line.split()[0] for line in render_overview(tables)[2:]] == table_names()
    for table in tables:
        lines = render_table(table)
        assert len(lines) >= len(table.rows) + 5
        assert not [line for line in lines if " inf" in line or " nan" in line]


def test_published_value_has_the_papers_unit() -> None:
    assert "30 1 0 55.33 %" in show_table("thesis-2014-table-4.2")
    assert "polling interval idle Google Drive s 40" in show_table("imc-2013-quoted")
    assert "Chunking Dropbox yes" in show_table("imc-2013-table-1")


@pytest.mark.parametrize(
    "value", [10**400, float("nan"), float("inf"), "0.5", [0.5]], ids=["huge", "nan", "inf", "text", "list"]
)
def test_what_is_no_number_is_not_known(value: object) -> None:
    (row,) = [row for row in table_of(entry(loss_rate=value)).rows if row.measured]
    assert row.measured[0].value is None


def test_a_run_that_is_named_twice_is_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"benchmarks": [entry(loss_rate=0.58)]}))
    shown = []
    for names in (["run.json"], ["run.json", str(tmp_path / "run.json"), "./run.json"]):
        assert cli.main(["published", "thesis-2014-table-4.2", "--run", *names]) == 0
        shown.append(capsys.readouterr().out)
    assert "58.00 %" in shown[0]
    assert shown[1] == shown[0]


def test_measured_run_is_shown_with_difference() -> None:
    lines = show_table("thesis-2014-table-4.2", entry(loss_rate=0.58, emulated=True))
    assert "sensors interval_s first_delay_max_s published mine difference" in lines
    assert "30 1 0 55.33 % 58.00 % +2.67 points" in lines
    assert "30 10 0 17.33 % - -" in lines
    assert "note: an emulated run measures the client and the loopback, not the service" in lines


def test_ratios_are_of_times_and_not_to_zero() -> None:
    table = load_table("cloud-raid-2012-table-1")
    row = table.rows[0]
    info = {row.entry["extra_info"]["stats_metric"]: 2 * row.value}
    assert add_measured(table, [entry(row.entry["fullname"], dict(row.params), **info)])
    assert " ".join(render_table(table)[5].split()).endswith(
        f"{row.value:g} mine".replace("mine", f"{2 * row.value:g} 2.00 x")
    )
    zero = show_table("thesis-2014-table-4.2", entry(params={**ROW, "sensors": 10}, loss_rate=0.06))
    assert "10 1 0 0.00 % 6.00 % +6.00 points" in zero


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "much"])
def test_unknown_measured_value_is_a_dash(value: Any) -> None:
    assert "30 1 0 55.33 % - -" in show_table("thesis-2014-table-4.2", entry(loss_rate=value))


def test_entry_without_the_number_measured_nothing() -> None:
    whole = "suites/availability/test_availability.py::test_series"
    run = [entry(f"{whole}[x]#PUT", None, elapsed=1.0), entry(f"{whole}[x]", None, availability=0.75)]
    table = load_table("cloud-raid-2012-table-3")
    assert add_measured(table, run) == len(table.rows)
    assert {len(row.measured) for row in table.rows} == {1}
    assert add_measured(load_table("cloud-raid-2012-table-3"), run[:1]) == 0


def test_doubts_are_marked_and_listed() -> None:
    lines = show_table("thesis-2014-table-4.2", entry(loss_rate=0.5, doubts=["gw3 was lost"]), entry(loss_rate=0.6))
    assert "30 1 0 55.33 % 50.00 %?; 60.00 % -5.33 points; +4.67 points" in lines
    assert "? gw3 was lost" in lines


def test_times_of_a_scaled_run_are_in_doubt() -> None:
    table = load_table("cloud-raid-2012-table-1")
    scaled: dict[str, Any] = {"time_scale": 10.0}
    row = table.rows[0]
    test, metric = row.entry["fullname"], row.entry["extra_info"]["stats_metric"]
    assert add_measured(table, [entry(test, dict(row.params), **{metric: row.value}, **scaled)])
    assert "? --time-scale 10 distorts times" in render_table(table)
    assert f"{row.value:g}? 1.00 x" in " ".join(render_table(table)[5].split())
    lines = show_table("thesis-2014-table-4.2", entry(loss_rate=0.58, **scaled))
    assert "30 1 0 55.33 % 58.00 % +2.67 points" in lines, "a rate is none"


@pytest.mark.parametrize("width", [75, 80, 120])
def test_every_table_fits_on_a_terminal(width: int) -> None:
    run_name = "emulated:dropbox-2014"
    run = entry(loss_rate=0.58, provider=run_name, emulated=True, expectations=[CLAIM])
    for name in table_names():
        table = load_table(name)
        add_measured(table, [run])
        assert max(map(len, render_table(table, width))) <= width
    lines = render_table(table_of(run), width)
    assert [line.split()[-3:] for line in lines if "difference" in line] == [[run_name, "difference", "allowed"]]
    text = " ".join(" ".join(lines).split())
    assert "+2.67 points" in text
    assert "the two captions are taken to be swapped, as the text has it." in text


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
def test_only_matching_rows_have_measured_values(fullname: str, params: Any, count: int) -> None:
    assert add_measured(load_table("thesis-2014-table-4.2"), [entry(fullname, params, loss_rate=0.5)]) == count


def test_unpublished_provider_is_shown_with_all_services() -> None:
    table = load_table("cloud-raid-2012-table-3")
    run = [entry("suites/availability/test_availability.py::test_series[x]", None, availability=0.75)]
    assert add_measured(table, run) == len(table.rows)


def test_share_just_below_one_is_not_rounded_to_one() -> None:
    lines = show_table("thesis-2014-table-4.2", entry(loss_rate=0.99998))
    assert "30 1 0 55.33 % 99.998 % +44.67 points" in lines


IDLE = "suites/idle/test_idle.py::test_idle[x]"
PERFORMANCE = "suites/sync_performance/test_sync_performance.py::test_figure_6[x]#1x100kB-binary"
CAPABILITIES = "suites/sync_capabilities/test_sync_capabilities.py"
DELAYS = "suites/updates/test_updates.py::test_delays[1B-1024-x]"
CPU = "suites/batching/test_batching.py::test_cpu[x]"
DOWNLOAD = "suites/batching/test_batching.py::test_download[x]"
LOG = "suites/batching/test_batching.py::test_log[x]"
FIVE_MIB = 5 * 1024 * 1024


@pytest.mark.parametrize(
    ("table", "run", "lines"),
    [
        ("imc-2013-quoted", entry("suites/idle/test_idle.py::test_login[x]", {}, login_traffic=75e3),
         ["login traffic first 16 min SkyDrive bytes 150,000 75,000 0.50 x"]),
        ("imc-2013-quoted", entry(IDLE, {}, polling_period=20.0, idle_traffic=84.0),
         ["polling interval idle Google Drive s 40 20 0.50 x",
          "background traffic idle Google Drive b/s 42 84 2.00 x"]),
        ("imc-2013-quoted", entry(PERFORMANCE, {"set": "1 x 100 kB", "kind": "binary"}, overhead=0.5, start_up=3.0),
         ["overhead 1 x 100 kB Dropbox % 47.00 % 50.00 % +3.00 points", "startup time any SkyDrive s 9 3 0.33 x",
          "overhead 1 x 1 MB Dropbox % 22.00 % - -"]),
        ("imc-2013-quoted",
         entry(f"{CAPABILITIES}::test_figure_3[100-x]", {"files": 100}, completion_s=3),
         ["completion time 100 x 10 kB, Figure 3 Google Drive s 30 3 0.10 x",
          "completion time 100 x 10 kB Google Drive s 42 - -"]),
        ("imc-2013-table-1",
         entry(f"{CAPABILITIES}::test_table_1[x]#Chunking",
               {"capability": "Chunking", "service": "x"}, has_capability=1),
         ["Chunking Dropbox yes yes same", "Chunking Cloud Drive no yes other", "Bundling Dropbox yes - -"]),
        ("uds-2013-quoted", entry(DELAYS, {"append_bytes": 1, "count": 9}, start_up_p50=0.2, start_up_max=0.5),
         ["indexing time, median 5400 RPM 0.4 0.2 0.50 x", "indexing time, longest both 0.96 0.5 0.52 x"]),
        ("uds-2013-quoted", entry(DELAYS, {"append_bytes": 1024}, start_up_p50=0.2), []),
        ("uds-2013-download", entry(DOWNLOAD, {}, file_bytes=FIVE_MIB, traffic_bytes=15e6),
         ["traffic Dropbox alone B 75,000,000 15,000,000 0.20 x", "traffic with UDS B 6,200,000 - -"]),
        ("uds-2013-download", entry(DOWNLOAD, {}, file_bytes=FIVE_MIB, traffic_bytes=6.2e6, pushes=3),
         ["traffic with UDS B 6,200,000 6,200,000 1.00 x", "traffic Dropbox alone B 75,000,000 - -"]),
        ("uds-2013-download", entry(DOWNLOAD, {}, file_bytes=100, traffic_bytes=6.2e6), []),
        ("uds-2013-log", entry(LOG, {}, tue=7.0), ["traffic over size Dropbox alone ratio 21 7 0.33 x"]),
        ("uds-2013-cpu", entry(CPU, {}, cpu_share=0.27), ["CPU Dropbox alone 0.54 0.27 0.50 x"]),
        ("uds-2013-cpu", entry(CPU, {}, cpu_share=0.06, pushes=3, mechanism="compare"),
         ["CPU Dropbox and UDS 0.12 0.06 0.50 x", "CPU Dropbox alone 0.54 - -"]),
    ],
)  # fmt: skip
def test_quoted_value_is_shown_with_measured_one(table: str, run: dict[str, Any], lines: list[str]) -> None:
    table_lines = show_table(table, run)
    assert [line for line in lines if line not in table_lines] == []
    assert bool(lines) == any("mine" in line for line in table_lines)


def test_rows_refer_to_existing_tests_and_numbers() -> None:
    unmatched = set()
    for row in (row for name in table_names() for row in load_table(name).rows):
        extra_info = row.entry["extra_info"]
        reference = extra_info.get(
            "beside", {"test": row.entry["fullname"], "metric": extra_info["stats_metric"], "run": row.params}
        )
        if reference["metric"] == "value":
            unmatched.add(row.params["quantity"])
            continue
        file, _, test = reference["test"].partition("::")
        source = (ROOT / file).read_text(encoding="utf-8")
        assert f"\ndef {test.partition('[')[0]}(" in source
        sources = "".join(path.read_text(encoding="utf-8") for path in ENTRIES) + source
        assert (
            reference["metric"] in METRICS
            or f'"{reference["metric"]}"' in sources
            or f" {reference['metric']}:" in sources
        )
        assert all(f'"{name}"' in sources for name in [*reference.get("has", ()), *reference.get("lacks", ())])
    assert unmatched == {
        "round trip time", "upload rate", "byte counter", "timer", "fail-safe timer", "mean gap",
        "overhead of session maintenance", "CPU", "traffic", "upload over file",
    }  # fmt: skip


# --- the command ---


def test_the_command_lists_shows_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "machine" / "0001_x.json"
    run.parent.mkdir()
    run.write_text(json.dumps({"benchmarks": [entry(loss_rate=0.58, schema=1)]}))
    assert cli.main(["published"]) == 0
    assert "thesis-2014-table-4.2      15  loss rate in percent" in capsys.readouterr().out
    assert cli.main(["published", "--run", str(run)]) == 0
    by_file = capsys.readouterr().out
    assert by_file.startswith("thesis-2014-table-4.2: loss rate in percent\n")
    for name in ("last", "1", "0001_x"):
        assert cli.main(["published", "--run", name, "--storage", str(tmp_path)]) == 0
        assert capsys.readouterr().out == by_file


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (None, ["no-such"], "there is no such table; there are: cloud-raid"),
        (None, ["--run", "run.json"], "run.json: there is no such file"),
        ("[]", ["--run", "run.json"], "run.json: is not a run stored by pytest-benchmark"),
        ("{", ["--run", "run.json"], "run.json: is not a run stored by pytest-benchmark"),
        ('{"benchmarks": []}', ["--run", "run.json"], "no experiment in run.json repeats a row of any published table"),
        (None, ["--run", "/dev/zero"], "there is no such file"),
    ],
)
def test_bad_input_is_a_one_line_error(
    content: str | None, words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("run.json").write_text(content)
    assert cli.main(["published", *words]) == 4
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
