"""Results of every schema so far stay readable, with the same values as on the day they were stored.

When a schema changes, its number goes up, this module's history gets a line, and the new version adds a folder
``fixtures/results-schema-N``; the folders before it are never written again.

* 1: one run of 500 uploads against the emulated service, of which 139 were throttled.
* 2: records have the provider's own words and the number of requests. Of 200 uploads 181 were throttled.
* 3: records mark the warm-up, and metrics leave it out: 50 of 100 uploads.
* 4: records have the time that each operation's thread waited for a CPU: 60 uploads on a busy machine.
* 5: records name the host of each operation if agents were on several hosts: 38 uploads of four agents on three hosts.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.judge.baseline import BaselineValue, choose_baseline
from pytest_cloudbench.judge.expect import judge_gate, parse_gate
from pytest_cloudbench.judge.metrics import summarize
from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.model import ErrorKind, Outcome, Verb
from pytest_cloudbench.results import benchmarks, parquet
from pytest_cloudbench.results.oplog import LOG_SCHEMA, PARQUET_SCHEMA, read_log, read_logs, read_parquet

pytest_plugins = ["pytester"]

LATER = {
    "payload_bytes_per_op", "quiet_p50", "quiet_p99", "quiet_share", "service_p25", "starved_share", "duplicate_rate",
    "response_p95", "service_p95", "refused_p95", "first_byte_p95", "lateness_p95", "quiet_p95",
    "unstarved_p50",
}  # fmt: skip
"""Metrics that are newer than the first schemas."""
FIXTURES = Path(__file__).parents[2] / "fixtures"
ONE, TWO, THREE, FOUR, FIVE = (FIXTURES / f"results-schema-{number}" for number in (1, 2, 3, 4, 5))


@pytest.fixture(scope="module")
def entry() -> dict[str, Any]:
    """The entry in the JSON of schema 1."""
    (stored,) = json.loads((ONE / "0001_worst-case.json").read_text())["benchmarks"]
    assert isinstance(stored, dict)
    return stored


def test_every_schema_has_its_old_files() -> None:
    assert max(LOG_SCHEMA, PARQUET_SCHEMA) == len(list(FIXTURES.glob("results-schema-*")))


def test_the_records_of_an_old_run_give_the_same_metrics(entry: dict[str, Any]) -> None:
    """The loss rate needs the provider's listing. All other metrics follow from the records."""
    summary, info = summarize(read_parquet(ONE / "worst-case.parquet"), None), entry["extra_info"]
    assert summary.ops == info["ops"] == 500
    assert {kind.value: count for kind, count in summary.kinds.items()} == info["errors"] == {"throttled": 139}
    recomputed = {
        name: value for name, value in summary.metrics.items() if not name.endswith("loss_rate") and name not in LATER
    }
    assert recomputed.pop("requests_per_op") is None, "records had no requests in them"
    assert {name: info[name] for name in recomputed} == recomputed
    assert sorted(summary.response_s)[-1] == entry["stats"]["max"]


def test_an_old_log_is_read() -> None:
    log, parquet = list(read_log(ONE / "gw0.oplog").ops()), list(read_parquet(ONE / "worst-case.parquet").ops())
    assert len(log) == 20
    assert all(op in parquet for op in log)
    assert [op.outcome for op in log[:8]] == [Outcome.THROTTLED] * 8
    assert {(op.verb, op.kind, op.size_bytes) for op in log[:8]} == {(Verb.PUT, ErrorKind.THROTTLED, 5120)}
    assert {len(op.digest) for op in log} == {32}


def test_records_of_schema_1_have_neither_words_nor_requests() -> None:
    for table in (read_log(ONE / "gw0.oplog"), read_parquet(ONE / "worst-case.parquet")):
        assert set(table.detail) == {""}
        assert set(table.requests) == {None}


def test_records_of_schema_2_have_both() -> None:
    (stored,) = json.loads((TWO / "0001_worst-case.json").read_text())["benchmarks"]
    log, parquet = list(read_log(TWO / "gw0.oplog").ops()), read_parquet(TWO / "worst-case.parquet")
    summary, info = summarize(parquet, None), stored["extra_info"]
    assert (len(log), len(parquet)) == (100, 200)
    assert all(op in list(parquet.ops()) for op in log)
    words = {Outcome.OK: "", Outcome.THROTTLED: "429 too_many_write_operations"}
    assert all(op.detail == words[op.outcome] and op.requests == 1 for op in parquet.ops())
    assert summary.errors() == {key: info[key] for key in ("errors", "error_details")}
    recomputed = {
        name: value for name, value in summary.metrics.items() if not name.endswith("loss_rate") and name not in LATER
    }
    assert {name: info[name] for name in recomputed} == recomputed


def test_records_of_schema_3_have_a_warm_up_that_metrics_leave_out() -> None:
    (stored,) = json.loads((THREE / "0001_warm-up.json").read_text())["benchmarks"]
    path, info = THREE / "warm-up.parquet", stored["extra_info"]
    columns, _ = parquet.read(path.read_bytes())
    table = read_parquet(path)
    first_ns = min(due for due, phase in zip(table.scheduled_ns, columns["phase"], strict=True) if phase == "measured")
    measured = summarize(table.since(first_ns), None)
    assert (len(table), measured.ops, info["ops"], info["warm_up_ops"]) == (100, 50, 50, 50)
    assert Counter(columns["phase"]) == {"warm_up": 50, "measured": 50}
    recomputed = {name: value for name, value in measured.metrics.items() if name in info and "loss_rate" not in name}
    assert {"response_p50", "ops_per_s", "requests_per_op"} <= recomputed.keys()  # newer metrics are missing
    assert {name: info[name] for name in recomputed} == recomputed


def test_records_of_schema_4_have_waits_and_those_before_have_none() -> None:
    log, table = read_log(FOUR / "gw0.oplog"), read_parquet(FOUR / "waits.parquet")
    assert (len(log), len(table), list(log.ops())) == (30, 60, list(table.ops())[:30])
    waits_ns = table.cpu_wait_ns
    assert None not in waits_ns
    assert min(wait for wait in waits_ns if wait is not None) >= 0
    assert sum(wait for wait in waits_ns if wait is not None) > 0
    for older in (read_log(ONE / "gw0.oplog"), read_log(TWO / "gw0.oplog"), read_parquet(THREE / "warm-up.parquet")):
        assert set(older.cpu_wait_ns) == {None}


def test_records_of_schema_5_have_hosts_and_those_before_have_none() -> None:
    logs, table = read_logs(sorted(FIVE.glob("*.oplog"))), read_parquet(FIVE / "hosts.parquet")
    assert logs == table
    hosts = {0: "this machine", 1: "oslo", 2: "oslo", 3: "lima"}
    assert logs.hosts == table.hosts == hosts
    assert table.host == [hosts[agent] for agent in table.agent]
    assert Counter(table.host) == {"this machine": 12, "oslo": 18, "lima": 8}
    for older in (read_log(FOUR / "gw0.oplog"), read_parquet(FOUR / "waits.parquet"), read_log(FIVE / "gw0.oplog")):
        assert set(older.host) == {""}


def test_a_log_of_schema_1_and_one_of_2_are_merged() -> None:
    table = OpTable(read_log(ONE / "gw0.oplog"), read_log(TWO / "gw0.oplog"))
    assert (len(table), len(list(table.ops()))) == (120, 120)
    assert set(table.detail[:20]) == {""}
    assert table.detail[20:] == read_log(TWO / "gw0.oplog").detail


def test_a_gate_compares_with_an_old_run(pytester: pytest.Pytester, entry: dict[str, Any]) -> None:
    shutil.copytree(ONE, pytester.path / "store")
    config = pytester.parseconfigure("-p", "no:cacheprovider", "--benchmark-storage=store")
    stored = benchmarks.stored_runs(config).entries_of(entry["fullname"])
    gate = parse_gate("loss_rate:10%")
    unnamed = choose_baseline(stored, {}, "loss_rate")
    assert unnamed == BaselineValue(None, "no baseline: the stored run came from another version")
    former = choose_baseline(stored, {}, "loss_rate", named="0001")
    assert former == BaselineValue(0.278, "0001_worst-case.json came from another version")
    assert judge_gate(gate, {"loss_rate": 0.3}, former, []).status == "met"
    assert judge_gate(gate, {"loss_rate": 0.31}, former, []).status == "broken"
