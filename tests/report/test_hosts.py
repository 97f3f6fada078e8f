"""Results of several hosts after the run: on a page, on the terminal, in a summary, a history and exports."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.judge.by_host import figures_by_host
from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.model import Op, Outcome, Verb
from pytest_cloudbench.report.figures import WIDTH
from pytest_cloudbench.report.figures.hosts import from_hosts
from pytest_cloudbench.report.gathering import Measurement, gather_runs
from pytest_cloudbench.report.hosts import describe_host
from pytest_cloudbench.results.oplog import write_parquet
from tests.report.stored import HOSTILE, MS, entry, store
from tests.report.test_page import Page, make_page
from tests.results.stored_runs import info, store_series
from tests.results.stored_runs import store as store_run

TEST = "test_it.py::test_put"
NEAR_MS, FAR_MS = 10, 90
HOSTS = {0: "oslo", 1: "lima"}


def operations_from_two_hosts(count: int = 120) -> list[Op]:
    """Return operations of two hosts.

    Those of the nearer host take 10 ms. Those of the other host take 90 ms, and a tenth of them fail.
    """
    ops = []
    for number in range(2 * count):
        agent, due_ns = number % 2, 10**12 + number * 20 * MS
        end_ns = due_ns + (FAR_MS if agent else NEAR_MS) * MS
        outcome = Outcome.FAILED if agent and number % 20 == 1 else Outcome.OK
        ops.append(Op(Verb.PUT, number, 0, agent, due_ns, due_ns, 0, end_ns, 5120, outcome))
    return ops


def host(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name, "labels": {"location": "Oslo", "region": "north"}, "agents": 1, "lost_agents": 0,
        "absent_agents": 0, "lost_because": "", "machine": "Linux x86_64, 2 x CPU, CPython 3.11",
        "kernel": "Linux 6.1", "memory_bytes": 512_000_000, "address": "198.51.100.7", "clock_offset_ns": 2 * 10**9,
        "clock_error_ns": 300_000, **changes,
    }  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hosts")
    ops = operations_from_two_hosts()
    gone = host("gone", agents=0, absent_agents=2, lost_because="no answer within 20 s")
    hosts = [host("oslo"), host("lima", labels={}), gone]
    by_host = figures_by_host(OpTable.of(ops, HOSTS), None)
    stored = store(folder / "0001_run.json", [entry(folder, TEST, "dropbox", ops, hosts=hosts, by_host=by_host)])
    write_parquet(OpTable.of(ops, HOSTS), folder / "run" / "0.parquet", {})
    return stored


@pytest.fixture(scope="module")
def page(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return make_page(tmp_path_factory.mktemp("page"), run)


def read_measurement(run: Path) -> Measurement:
    (measurement,) = gather_runs([run]).measurements
    return measurement


def test_figures_of_a_host_are_of_its_own_operations() -> None:
    table = OpTable.of(operations_from_two_hosts(), HOSTS)
    figures = figures_by_host(table, None)
    assert {name: (row["ops"], row["failed"]) for name, row in figures.items()} == {"oslo": (120, 0), "lima": (120, 12)}
    assert (figures["oslo"]["response_p50"], figures["lima"]["response_p99"]) == (NEAR_MS / 1e3, FAR_MS / 1e3)
    table.correct(bytes([1] * 240), bytes(240))
    assert figures_by_host(table, None)["oslo"]["ok_rate"] == 0.0, "corrections by the listing hold for hosts, too"
    later = figures_by_host(table, 10**12 + 120 * 20 * MS)
    assert {name: row["ops"] for name, row in later.items()} == {"oslo": 60, "lima": 60}, "the rest was a warm-up"
    assert figures_by_host(OpTable.of(operations_from_two_hosts()), None) == {}


def test_records_of_several_logs_are_split_by_host_without_reading_others() -> None:
    ops = operations_from_two_hosts(10)
    parts = [OpTable.of([op for op in ops if op.agent == agent], {agent: HOSTS[agent]}) for agent in (0, 1)]
    table = OpTable(*parts)
    table.correct(bytes([0] * 10 + [2] * 10), bytes(20))
    assert {op.agent for op in table.of_host("lima").ops()} == {1}
    assert set(table.of_host("lima").codes("outcome")) == {2}
    assert set(table.of_host("oslo").codes("outcome")) == {0}
    assert len(table.of_host("rome")) == 0


def test_figure_shows_each_host(run: Path) -> None:
    figure = from_hosts(read_measurement(run))
    assert figure is not None
    assert [list(row) for row in figure.rows] == [
        ["oslo", 120, 0, 0, 0, 0, 0.01, 0.01], ["lima", 120, 0, 12, 0, 0, 0.09, 0.09]
    ]  # fmt: skip
    drawing = figure.draw(WIDTH).to_svg()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawing)
    assert {"oslo", "lima", "0 %", "10 %"} <= {*texts}
    assert "lima: median 90 ms" in drawing
    label_heights = [float(y) for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>(?:0 %|10 %)<', drawing)]
    assert label_heights == sorted(label_heights), "hosts are drawn in the order of their table"


def test_an_experiment_of_one_machine_has_no_figure_of_hosts(tmp_path: Path) -> None:
    one = store(tmp_path / "0001_run.json", [entry(tmp_path, TEST, "dropbox", operations_from_two_hosts())])
    assert from_hosts(read_measurement(one)) is None
    page = make_page(tmp_path, one)
    assert "Hosts side by side" not in page.words
    assert "From each host" not in page.words


def test_page_of_one_machine_has_its_access_line(tmp_path: Path) -> None:
    line = {"provider": "dropbox", "date": "2026-11-03T10:00:00+00:00", "round_trip_min_s": 0.012,
            "up": {"bytes_per_s": 20_593_750}, "down": {"bytes_per_s": 92_722_500}}  # fmt: skip
    one = store(tmp_path / "0001_run.json", [entry(tmp_path, TEST, "dropbox", access_line=line)])
    page = make_page(tmp_path, one)
    assert "12 ms, up 165 Mbit/s, down 742 Mbit/s (to dropbox, 2026-11-03)" in page.words
    strange = store(tmp_path / "0002_run.json", [entry(tmp_path, TEST, "dropbox", access_line=[HOSTILE])])
    assert "Hosts" in make_page(tmp_path, strange).words


def test_page_has_the_facts_of_hosts_their_ranking_and_their_figure(page: Page) -> None:
    assert {"Hosts side by side", "Hosts compared", "From each host", "Oslo, north", "512 MB", "198.51.100.7"} <= {
        *page.words
    }
    assert "+2 s within 0.3 ms" in page.words
    assert "0, 2 absent" in page.words
    assert '<span class="best">100.00 %*</span>' in page.text
    assert '<span class="best">10*</span>' not in page.text, "the other host completed fewer operations"


def test_hosts_of_strangers_do_no_harm_to_a_page(tmp_path: Path) -> None:
    hosts = [{"name": HOSTILE, "labels": HOSTILE, "agents": HOSTILE, "clock_error_ns": True}, 3, {"name": 3}]
    by_host = {HOSTILE: {"response_p50": HOSTILE, "ops": 0}, "x": {"response_p50": -1, "failed": 1e400}, "y": 3}
    strange = store(tmp_path / "0001_run.json", [entry(tmp_path, TEST, "a", hosts=hosts, by_host=by_host)])
    page = make_page(tmp_path, strange)
    assert "alert(1)" not in re.sub(r"&lt;script&gt;alert\(1\)", "", page.text)
    assert describe_host({"name": "x"}) == ["x", "-", "0", "-", "-", "-", "-", "-", "-"]


def cells(text: str, row: str) -> Sequence[str]:
    """Return the last cells of the row that contains a text."""
    (line,) = [line for line in text.splitlines() if row in line]
    return line.replace("|", " ").split()[-8:]


def test_show_and_summary_have_a_row_for_each_host(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for command in (["show", str(run)], ["export", str(run), "--format", "markdown"]):
        assert cli.main(command) == 0
        text = capfd.readouterr().out
        assert cells(text, " lima ") == ["1", "120", "0", "12", "0", "90", "90", "90"]
        assert cells(text, " oslo ") == ["1", "120", "0", "0", "0", "10", "10", "10"]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("openmetrics", 'cloudbench_response_p50_seconds{test="test_it.py::test_put[1-dropbox]",provider="dropbox",'
                        'emulated="yes",host="lima",doubted="no"} 0.09'),
        ("github-action-benchmark", '"name": "test_it.py::test_put[1-dropbox] from lima response_p50"'),
        ("bencher", '"test_it.py::test_put[1-dropbox] from lima (emulated)"'),
    ],
)  # fmt: skip
def test_exports_name_the_host(run: Path, capfd: pytest.CaptureFixture[str], form: str, expected: str) -> None:
    assert cli.main(["export", str(run), "--format", form, "--metric", "response_p50"]) == 0
    assert expected in capfd.readouterr().out


def test_csv_names_the_host_in_its_last_column(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(run), "--format", "csv", "--metric", "failed_rate"]) == 0
    rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    assert [(row["host"], float(row["value"])) for row in rows] == [("", 0.05), ("oslo", 0.0), ("lima", 0.1)]


def test_sql_knows_the_host_of_each_operation(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb")
    sql = "SELECT host, count(*) AS ops, max(response_s) AS longest FROM ops GROUP BY host ORDER BY host"
    assert cli.main(["ops", "last", "--storage", str(run.parent), "--csv", "--sql", sql]) == 0
    assert capfd.readouterr().out.splitlines() == ["host,ops,longest", "lima,120,0.09", "oslo,120,0.01"]


def test_history_of_one_host(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    by_host = {"oslo": {"response_p50": 0.02, "ok_rate": 1.0}, "lima": {"response_p50": 0.5}}
    store_series(tmp_path, [0.1, 0.1], by_host=by_host, hosts=[host("oslo"), host("lima")])
    command = ["history", "test_put", "--storage", str(tmp_path), "--metric"]
    assert cli.main([*command, "response_p50@lima"]) == 0
    text = capfd.readouterr().out
    assert text.count(" 500 ms") == 2
    assert cli.main([*command, "response_p50@rome"]) == 4


def test_history_keeps_runs_apart_that_a_host_missed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runs = {1: [host("oslo"), host("lima", agents=0, absent_agents=1)], 2: [host("oslo"), host("lima")]}
    for number, hosts in runs.items():
        store_run(tmp_path, number, {TEST: info(hosts=hosts, start_wall_ms=1_790_000_000_000 + number)})
    assert cli.main(["history", "test_put", "--storage", str(tmp_path)]) == 0
    assert "apart: differed in hosts (without lima)" in capfd.readouterr().out
