"""Exports of runs are accepted by the readers of other programs, and have no values for unknown numbers."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.report.export import FORMATS, StoredRun, choose_numbers

HOSTILE = 'x.py::t["a\\|b`\n<script>=1,{c}]'


def info(**changes: Any) -> dict[str, Any]:
    return {
        "provider": "emulated:ideal", "emulated": True, "outcome": "passed", "doubts": [], "time_scale": 1.0,
        "response_p50": 0.25, "response_p99": 1.5, "loss_rate": 0.0, "throughput": 2e6, "first_byte_p50": None,
        **changes,
    }  # fmt: skip


def a_run(*entries: tuple[str, dict[str, Any]], name: str = "0001_x", time_ms: int | None = 1000) -> StoredRun:
    return StoredRun(name, time_ms, "0123abc", "main", entries or (("t.py::t[x]", info()),))


def export_text(form: str, *runs: StoredRun, metrics: tuple[str, ...] = (), doubted: bool = True) -> str:
    return FORMATS[form](choose_numbers(runs, metrics, doubted=doubted))


# --- choice of numbers ---


def test_unknown_numbers_are_counted_and_left_out() -> None:
    chosen = choose_numbers([a_run(("a", info(loss_rate=float("nan"))), ("b", info(response_p50="fast")))], ())
    assert {number.metric for number in chosen.numbers} == {"response_p50", "response_p99", "loss_rate", "throughput"}
    assert chosen.left_out == {"unknown": 4}
    assert chosen.describe() == "6 numbers of 2 experiments; left out: 4 unknown"


def test_comparisons_are_counted_and_left_out() -> None:
    chosen = choose_numbers(
        [a_run(("a", info()), ("b", {"provider": "x versus y", "ops": 5, "versus": {}}))], ["loss_rate"]
    )
    assert [number.fullname for number in chosen.numbers] == ["a"]
    assert chosen.left_out == {"of two sides (only Markdown has them)": 1}


def test_answer_in_words_is_exported_as_its_number() -> None:
    answers = {"chunking": "yes", "is_chunking": 1, "delta": "no", "is_delta": 0, "bundling": "unknown",
               "is_bundling": None}  # fmt: skip
    run = a_run(("t", {"provider": "rclone", "outcome": "passed", "doubts": [], **answers}))
    chosen = choose_numbers([run])
    assert {number.metric: number.value for number in chosen.numbers} == {"chunking": 1.0, "delta": 0.0}
    assert chosen.left_out == {"unknown": 1}
    (unknown,) = families(FORMATS["openmetrics"](chosen))["cloudbench_unknown_numbers"].samples
    assert unknown.value == 1.0


def test_zero_is_exported() -> None:
    (number,) = choose_numbers([a_run()], ["loss_rate"]).numbers
    assert number.value == 0.0


def test_entries_without_the_metric_are_counted() -> None:
    assert choose_numbers([a_run()], ["tue"]).describe() == "0 numbers of 0 experiments; left out: 1 without tue"


def test_doubted_numbers_can_be_left_out() -> None:
    entries = (
        ("good", info()), ("doubted", info(doubts=["engine saturated"])), ("scaled", info(time_scale=9.0)),
        ("stopped", info(outcome="interrupted")), ("through", info(through_controller=["gw1"])),
    )  # fmt: skip
    chosen = choose_numbers([a_run(*entries)], ["response_p99", "loss_rate"], doubted=False)
    assert [(number.fullname, number.metric) for number in chosen.numbers] == [
        ("good", "response_p99"), ("good", "loss_rate"), ("scaled", "loss_rate"), ("through", "loss_rate"),
    ]  # fmt: skip
    assert chosen.left_out == {"with doubts": 6}


def test_last_entry_of_a_repeated_test_counts() -> None:
    chosen = choose_numbers([a_run(("a", info(loss_rate=1.0)), ("a", info(loss_rate=0.5)))], ["loss_rate"])
    assert [number.value for number in chosen.numbers] == [0.5]
    assert chosen.left_out == {"measured again later in the run": 1}


# --- OpenMetrics, read by Prometheus's own parser ---


def families(text: str) -> dict[str, Any]:
    samples = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]  # it has no types
    return {family.name: family for family in samples}


def test_prometheus_reads_every_metric_with_its_unit() -> None:
    everything = info(**{name: 0.5 + at for at, name in enumerate(METRICS)})
    families_by_name = families(export_text("openmetrics", a_run((HOSTILE, everything))))
    measured = [
        family for family in families_by_name.values() if family.type == "gauge" and "better" in family.documentation
    ]
    assert len(measured) == len(METRICS)
    assert {family.samples[0].value for family in measured} == {0.5 + at for at in range(len(METRICS))}
    assert families_by_name["cloudbench_response_p99_seconds"].unit == "seconds"
    assert families_by_name["cloudbench_loss_rate_ratio"].unit == "ratio"
    assert "cloudbench_ops_per_second" in families_by_name  # Prometheus wants no abbreviated units
    assert families_by_name["cloudbench_loss_rate_ratio"].samples[0].labels == {
        "test": HOSTILE, "provider": "emulated:ideal", "emulated": "yes", "doubted": "no",
    }  # fmt: skip


def test_openmetrics_has_doubts_and_unknown_counts() -> None:
    text = export_text("openmetrics", a_run(("a", info(doubts=["late", 'by "2 s"'])), ("b", info(emulated="some"))))
    families_by_name = families(text)
    assert [s.labels["doubted"] for s in families_by_name["cloudbench_response_p99_seconds"].samples] == ["yes", "no"]
    assert [s.value for s in families_by_name["cloudbench_unknown_numbers"].samples] == [1.0, 1.0]
    experiments = {
        s.labels["test"]: (s.labels["doubts"], s.labels["emulated"])
        for s in families_by_name["cloudbench_experiment"].samples
    }
    assert experiments == {"a": ('late; by "2 s"', "yes"), "b": ("none", "partly emulated")}
    assert "first_byte" not in text


def test_an_experiment_without_any_known_number_is_counted_and_says_how_it_ended() -> None:
    run = a_run(("a", info()), ("gone", info(response_p99=None, outcome="failed")))
    families_by_name = families(export_text("openmetrics", run, metrics=("response_p99",)))
    assert [s.labels["test"] for s in families_by_name["cloudbench_response_p99_seconds"].samples] == ["a"]
    counts = {s.labels["test"]: s.value for s in families_by_name["cloudbench_unknown_numbers"].samples}
    assert counts == {"a": 1.0, "gone": 2.0}
    samples = families_by_name["cloudbench_experiment"].samples
    assert {s.labels["test"]: s.labels["outcome"] for s in samples} == {"a": "passed", "gone": "failed"}


def test_only_several_runs_have_times() -> None:
    runs = [a_run(name="0002_y", time_ms=2500), a_run(name="0001_x", time_ms=1000)]
    (family,) = [f for name, f in families(export_text("openmetrics", *runs)).items() if name.endswith("p99_seconds")]
    assert [float(sample.timestamp) for sample in family.samples] == [1.0, 2.5]
    (family,) = [f for name, f in families(export_text("openmetrics", runs[0])).items() if name.endswith("p99_seconds")]
    assert family.samples[0].timestamp is None


@pytest.mark.parametrize(("time_ms", "why"), [(None, "when it was stored"), (1000, "at the same time")])
def test_runs_with_equal_times_are_rejected(time_ms: int | None, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        export_text("openmetrics", a_run(), a_run(name="other", time_ms=time_ms))


# --- CSV ---


def test_csv_has_a_row_for_each_number() -> None:
    text = export_text("csv", a_run((HOSTILE, info(doubts=["late"]))), metrics=("response_p99", "throughput"))
    first, second = csv.DictReader(io.StringIO(text, newline=""))
    assert (first["metric"], first["value"], first["unit"], first["better"]) == ("response_p99", "1.5", "s", "lower")
    assert (second["unit"], second["better"]) == ("bytes/s", "higher")
    assert (first["test"], first["doubts"], first["emulated"]) == (HOSTILE, "late", "emulated")
    assert (first["time"], first["commit"]) == ("1970-01-01T00:00:01.000+00:00", "0123abc")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "\t=1"])
def test_name_is_escaped_against_formulas(name: str) -> None:
    (row,) = csv.DictReader(io.StringIO(export_text("csv", a_run((name, info())), metrics=("loss_rate",)), newline=""))
    assert row["test"] == f"'{name}"


@pytest.mark.parametrize("line_break", ["\r", "\n", "\r\n"])
def test_every_line_break_in_a_name_is_quoted(line_break: str) -> None:
    """Readers refuse a carriage return outside quotes."""
    name = f"t.py::t[a{line_break}b]"
    text = export_text("csv", a_run((name, info())), metrics=("loss_rate",))
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row["test"] == name
    assert text.endswith("\n")
    assert "\r\n" not in text.replace(name, "")


# --- JSON ---


def test_github_action_benchmark_gets_the_chosen_metric() -> None:
    entries = (("a", info()), ("b", info(response_p99=None)), ("c", info(doubts=["late"], outcome="failed")))
    benchmarks = json.loads(export_text("github-action-benchmark", a_run(*entries), metrics=("response_p99",)))
    assert [(benchmark["name"], benchmark["value"], benchmark["unit"]) for benchmark in benchmarks] == [
        ("a response_p99", 1.5, "s"), ("c response_p99", 1.5, "s"),
    ]  # fmt: skip
    assert benchmarks[0]["extra"].splitlines() == [
        "lower is better", "provider: emulated:ideal",
        "emulated: measures the client and the loopback, not the service",
    ]  # fmt: skip
    assert benchmarks[1]["extra"].splitlines()[-2:] == ["test failed", "doubt: late"]


def test_github_action_benchmark_rejects_two_directions() -> None:
    with pytest.raises(UsageError, match="customBiggerIsBetter"):
        export_text("github-action-benchmark", a_run(), metrics=("response_p99", "throughput"))


def test_bencher_gets_the_chosen_metric_with_unit_and_direction() -> None:
    benchmarks = json.loads(export_text("bencher", a_run(), metrics=("response_p99", "throughput")))
    assert benchmarks == {
        "t.py::t[x] (emulated)": {
            "response_p99 (s, lower is better)": {"value": 1.5},
            "throughput (bytes/s, higher is better)": {"value": 2e6},
        }
    }


def test_bencher_ignores_doubted_numbers() -> None:
    """Bencher removes the suffix that marks a doubted number.

    Its names of benchmarks have at most 1,024 bytes, and its names of measures at most 64.
    """
    names = json.loads(
        export_text("bencher", a_run(("a", info(doubts=["late"], emulated=False))), metrics=("loss_rate",))
    )
    assert list(names) == ["a-bencher-ignore"]
    everything = info(**dict.fromkeys(METRICS, 1.0))
    assert max(map(len, json.loads(export_text("bencher", a_run(("a", everything))))["a (emulated)"])) <= 64
    with pytest.raises(UsageError, match="1024 bytes"):
        export_text("bencher", a_run(("a" * 1020, info())), metrics=("loss_rate",))


@pytest.mark.parametrize("form", ["bencher", "github-action-benchmark"])
def test_chart_formats_reject_several_runs(form: str) -> None:
    with pytest.raises(UsageError, match="one run"):
        export_text(form, a_run(), a_run(name="0002"), metrics=("loss_rate",))
