"""Tests of the registry of metrics: its rows, and the numbers of a run that they are computed from."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest

from pytest_cloudbench.judge.metrics import BUILT_IN, CONCLUSIONS, METRICS, Run, summarize
from pytest_cloudbench.judge.quiet import WaitSeries
from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.model import ErrorKind, Outcome, Verb

from .test_stats import NS, op, table_of


def test_a_metric_that_records_do_not_give_is_a_conclusion() -> None:
    assert {name for name, metric in BUILT_IN.items() if metric.of is None} == CONCLUSIONS.keys()
    assert not [name for name, metric in CONCLUSIONS.items() if metric.column or metric.about]


def test_no_two_columns_have_one_title() -> None:
    titles = Counter(metric.column for metric in METRICS.values() if metric.column)
    assert titles.keys() >= {"loss rate", "p50 ms", "p99 ms", "late p99"}
    assert not [title for title, count in titles.items() if count > 1]


def test_metrics_of_uploads_are_about_uploads_everywhere() -> None:
    """Runs of other operations have no such number, so bench files cannot expect it of them."""
    about = {name: metric.about for name, metric in METRICS.items() if metric.about}
    assert about.pop("throughput") == (Verb.PUT, Verb.GET)
    assert {name for name, verbs in about.items() if verbs == (Verb.PUT,)} == {
        "loss_rate",
        "silent_loss_rate",
        "duplicate_rate",
    }
    assert {name.rpartition("_")[0] for name, verbs in about.items() if verbs == (Verb.GET,)} == {"first_byte"}


def test_a_run_by_hand() -> None:
    refused = op(seq=2, end_ns=19 * NS, outcome=Outcome.THROTTLED, kind=ErrorKind.THROTTLED)
    run = Run(table_of(op(seq=0), op(seq=1, start_ns=12 * NS), refused), None, WaitSeries())
    assert run.elapsed_s == 9.0
    assert run.good_bytes == 10
    assert run.per_s(run.good_bytes) == pytest.approx(10 / 9)
    assert run.share(Outcome.THROTTLED) == pytest.approx(1 / 3)
    assert run.kinds == {ErrorKind.THROTTLED: 1}
    assert run.sorted_ns("response") == [4 * NS, 4 * NS]
    assert run.sorted_ns("service") == [2 * NS, 3 * NS]
    assert run.sorted_ns("refused") == [9 * NS]
    assert run.sorted_ns("lateness") == [NS, NS, 2 * NS]
    assert run.sorted_ns("first_byte") == [0, NS]
    assert Run(OpTable(), None, WaitSeries()).per_s(1.0) is None
    assert summarize(OpTable(), None).metrics["elapsed"] is None


@pytest.mark.parametrize(
    ("waits_s", "median_s", "elsewhere"),
    [((0.0, 0.0, 0.0), 0.4, 0.1 / 1.2), ((0.1, 0.5, 0.0), 0.2, 0.1 / 0.6), ((0.1, None, 0.0), None, None)],
)
def test_unstarved_time_subtracts_waits_of_the_own_thread(
    waits_s: tuple[float | None, ...], median_s: float | None, elsewhere: float | None
) -> None:
    """Three operations of 0.4, 0.6 and 0.2 s follow each other. A server waits for 0.1 s in all."""
    ops, start_ns = [], 10 * NS
    for seq, (took_s, wait_s) in enumerate(zip((0.4, 0.6, 0.2), waits_s, strict=True)):
        end_ns, wait_ns = start_ns + round(took_s * NS), None if wait_s is None else round(wait_s * NS)
        ops.append(op(seq=seq, scheduled_ns=start_ns, start_ns=start_ns, end_ns=end_ns, cpu_wait_ns=wait_ns))
        start_ns = end_ns
    server = WaitSeries(array("q", (10 * NS, start_ns)), array("q", (0, NS // 10)))
    summary = summarize(table_of(*ops), None, server)
    assert summary.metrics["unstarved_p50"] == (None if median_s is None else pytest.approx(median_s))
    share = summary.quiet["starved_elsewhere_share"]
    assert share == (None if elsewhere is None else pytest.approx(elsewhere, rel=0.02))
    assert summary.metrics["service_p50"] == pytest.approx(0.4)
    unknown = summarize(table_of(*ops), None, WaitSeries(why="the server is not a process of this run"))
    assert unknown.metrics["unstarved_p50"] == summary.metrics["unstarved_p50"]
    assert unknown.quiet["starved_elsewhere_share"] is None


def test_operations_that_the_client_delayed_are_not_quiet() -> None:
    """Thirty operations begin a second apart. The tenth of them begins 50 ms late and takes long."""
    ops = [
        op(seq=number, scheduled_ns=number * NS, start_ns=number * NS, end_ns=number * NS + NS // 10)
        for number in range(30)
    ]
    late = op(seq=9, scheduled_ns=9 * NS, start_ns=9 * NS + NS // 20, end_ns=9 * NS + NS // 2)
    summary = summarize(table_of(*ops[:9], late, *ops[10:]), None)
    assert summary.metrics["quiet_share"] == pytest.approx(19 / 30)
    assert summary.metrics["quiet_p99"] == pytest.approx(0.1)
    assert summary.metrics["service_p99"] == pytest.approx(0.45)
    assert (summary.quiet["quiet_ops"], summary.quiet["quiet_p50_error"]) == (19, 0.0)
    assert summary.metrics["payload_bytes_per_op"] == 5
    nothing = summarize(OpTable(), None)
    assert (nothing.metrics["quiet_share"], nothing.metrics["quiet_p50"], nothing.quiet["quiet_ops"]) == (None, None, 0)
