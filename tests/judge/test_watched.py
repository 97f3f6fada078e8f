"""Tests of the metrics that the gate watches in an entry, and of the margins that the user may set for them."""

from __future__ import annotations

from math import exp, log
from typing import Any, Literal

import pytest

from pytest_cloudbench.judge.baseline import ONLY_AT_GATE, WAS_OUTLIER
from pytest_cloudbench.judge.gate import Ruling, answer_of, judge
from pytest_cloudbench.judge.metrics import METRICS, Metric
from pytest_cloudbench.judge.watched import (
    ACCEPTED,
    COLUMNS,
    FOLLOWED_ONLY,
    TIMES_DOUBTED,
    capabilities,
    checks_of,
    find_unknown,
    hint_at_metric,
    list_unjudged,
    parse_margins,
)
from pytest_cloudbench.load.gate.text import ruling_text
from pytest_cloudbench.model import UsageError

RUN: dict[str, Any] = {
    "ops": 400, "failed": 0, "throttled": 0, "corrupt": 0, "lost": 0, "files": 400,
    "loss_rate": 0.0, "failed_rate": 0.0, "throttled_rate": 0.0, "corrupt_rate": 0.0,
    "quiet_p50": 0.1, "quiet_p99": 0.2, "quiet_share": 1.0, "quiet_ops": 400, "quiet_kept": 400,
    "requests_per_op": 3.0, "payload_bytes_per_op": 1000.0, "wire_bytes_per_op": 5400.0,
    "cpu_per_op": 0.002, "reference_cpu_s": 0.004,
}  # fmt: skip


def answers(now: dict[str, Any], before: list[dict[str, Any]] | None = None, again: bool = True) -> dict[str, str]:
    """Return the answer on each metric of a run that differs by ``now`` from twenty others."""
    info = RUN | now
    checks = checks_of("t", info, (), before or [RUN] * 20, {}, [info] * 3 if again else [])
    return {ruling.check.metric: ruling.answer for ruling in judge(checks)}


def test_an_unchanged_run_is_met_in_all_metrics_but_the_quiet_share() -> None:
    answer_by_metric = answers({})
    assert answer_by_metric.pop("quiet_share") == "inconclusive"
    assert set(answer_by_metric.values()) == {"met"}
    assert answer_by_metric.keys() >= {
        "quiet_p50",
        "quiet_p99",
        "failed_rate",
        "loss_rate",
        "requests_per_op",
        "cpu_per_op",
    }
    assert answer_of(judge(checks_of("t", RUN, (), [RUN] * 20, {}))) == "met"


def test_a_time_below_zero_is_unknown_in_a_run_and_in_its_baseline() -> None:
    assert answers({"quiet_p50": -0.1})["quiet_p50"] == "inconclusive"
    set_back = [RUN | {"quiet_p50": -0.1}]
    assert answers({}, [*[RUN] * 19, *set_back])["quiet_p50"] == "met"
    assert answers({}, [*[RUN] * 9, *set_back * 11])["quiet_p50"] == "inconclusive", "too few have one"


@pytest.mark.parametrize(
    ("change", "metric"),
    [
        ({"quiet_p50": 0.12}, "quiet_p50"),
        ({"quiet_p99": 0.30}, "quiet_p99"),
        ({"failed": 12, "failed_rate": 0.03}, "failed_rate"),
        ({"lost": 12, "loss_rate": 0.03}, "loss_rate"),
        ({"requests_per_op": 4.0}, "requests_per_op"),
        ({"payload_bytes_per_op": 1100.0}, "payload_bytes_per_op"),
        ({"wire_bytes_per_op": 5600.0}, "wire_bytes_per_op"),
        ({"cpu_per_op": 0.003}, "cpu_per_op"),
        ({"quiet_kept": 200, "quiet_share": 0.5, "cpu_per_op": 0.0021}, "quiet_share"),
    ],
)
def test_each_change_that_stays_breaks_its_own_metric(change: dict[str, Any], metric: str) -> None:
    assert [name for name, answer in answers(change).items() if answer == "broken"] == [metric]
    so_far = "inconclusive" if metric in ("quiet_p50", "quiet_p99", "cpu_per_op", "quiet_share") else "broken"
    assert answers(change, again=False)[metric] == so_far, (
        "what has happened is known, what is slow is a suspect so far"
    )


def test_a_slower_machine_is_no_regression() -> None:
    """Everything takes 1.4 times the CPU, also the fixed work. At 2.4 times nothing is concluded."""
    assert answers({"cpu_per_op": 0.0028, "reference_cpu_s": 0.0056})["cpu_per_op"] == "met"
    checks = checks_of("t", RUN | {"cpu_per_op": 0.0048, "reference_cpu_s": 0.0096}, (), [RUN] * 20, {})
    (why,) = [check.why for check in checks if check.metric == "cpu_per_op"]
    assert why == "this machine is 2.4 times as slow as in the baseline"


@pytest.mark.parametrize(("reference_s", "answer"), [(0.005, "broken"), (0.0096, "inconclusive")])
def test_a_client_that_takes_longer_on_a_slower_machine_is_no_regression(reference_s: float, answer: str) -> None:
    """Times of a sync client depend on the machine, whose speed the fixed work shows."""
    before = {"start_up": 2.0, "reference_cpu_s": 0.004}
    now = {"start_up": 3.5, "reference_cpu_s": reference_s}
    (ruling,) = judge(checks_of("t", now, ("start_up",), [before] * 20, {}, [now] * 3))
    assert (ruling.check.metric, ruling.answer) == ("start_up", answer)
    assert ruling.why == ("" if answer == "broken" else "this machine is 2.4 times as slow as in the baseline")


@pytest.mark.parametrize(
    ("quiet_ops", "p50", "answer"),
    [(40, 0.1, "met"), (39, 0.1, "inconclusive"), (40, 0.12, "broken"), (39, 0.12, "inconclusive")],
)
def test_a_repetition_with_too_few_quiet_operations_neither_clears_nor_breaks(
    quiet_ops: int, p50: float, answer: str
) -> None:
    repetitions = [RUN | {"quiet_p50": p50, "quiet_ops": quiet_ops}] * 3
    checks = checks_of("t", RUN | {"quiet_p50": 0.12}, (), [RUN] * 20, {}, repetitions)
    assert {ruling.check.metric: ruling.answer for ruling in judge(checks)}["quiet_p50"] == answer


@pytest.mark.parametrize(("reference_s", "answer"), [(0.005, "broken"), (0.0096, "inconclusive")])
def test_repetitions_on_a_slower_machine_do_not_break(reference_s: float, answer: str) -> None:
    before = {"start_up": 2.0, "reference_cpu_s": 0.004}
    now = before | {"start_up": 3.5}
    (ruling,) = judge(
        checks_of("t", now, ("start_up",), [before] * 20, {}, [now | {"reference_cpu_s": reference_s}] * 3)
    )
    assert (ruling.check.metric, ruling.answer) == ("start_up", answer)


def test_fewer_quiet_operations_count_only_if_the_client_uses_more_cpu() -> None:
    assert answers({"quiet_kept": 200, "quiet_share": 0.5})["quiet_share"] == "inconclusive"


@pytest.mark.parametrize(("starved", "before", "answer"), [
    (0.05, 0.05, "broken"), (0.02, 0.05, "broken"), (None, None, "broken"),
    (0.30, 0.05, "inconclusive"),  # the machine was busy: each operation costs some more CPU time then, too
    (0.30, None, "inconclusive"),  # nobody knows how long threads waited before
])  # fmt: skip
def test_fewer_quiet_operations_count_only_if_threads_did_not_wait_more(
    starved: float | None, before: float | None, answer: str
) -> None:
    now = {"quiet_kept": 200, "quiet_share": 0.5, "cpu_per_op": 0.0021, "starved_share": starved}
    assert answers(now, [RUN | {"starved_share": before}] * 20)["quiet_share"] == answer


@pytest.mark.parametrize(("lost", "answer"), [(0, "met"), (1, "broken"), (60, "broken")])
def test_silent_loss_breaks_gate_despite_clean_repetitions(lost: int, answer: str) -> None:
    now = RUN | {"silently_lost": lost, "silent_loss_rate": lost / 400}
    clean = RUN | {"silently_lost": 0, "silent_loss_rate": 0.0}
    for baseline in ([clean] * 20, []):
        rulings = judge(checks_of("t", now, (), baseline, {}, [clean] * 3))
        (ruling,) = [candidate for candidate in rulings if candidate.check.metric == "silent_loss_rate"]
        assert (ruling.answer, ruling.why) == (answer, "not in 3 repetitions: intermittent" if lost else "")


@pytest.mark.parametrize("metric", ["first_byte_p50", "refused_p50"])
def test_a_margin_of_a_metric_that_no_run_has_makes_nothing_inconclusive(metric: str) -> None:
    uploads = RUN | {metric: None}
    assert answers_with(uploads, [uploads] * 20, {metric: 0.1}) == answers_with(uploads, [uploads] * 20, {})
    downloads = RUN | {metric: 0.2}
    assert answers_with(uploads, [downloads] * 20, {metric: 0.1})[metric] == "inconclusive", (
        "a value must not go missing"
    )


@pytest.mark.parametrize(("value", "answer"), [(5300.0, "met"), (5800.0, "broken")])
def test_the_users_margin_also_holds_for_exact_metrics(value: float, answer: str) -> None:
    now = RUN | {"wire_bytes_per_op": value}
    before = [RUN | {"wire_bytes_per_op": 5200.0}] * 20
    assert answers_with(now, before, {})["wire_bytes_per_op"] == "broken"
    assert answers_with(now, before, {"wire_bytes_per_op": 0.05})["wire_bytes_per_op"] == answer


def answers_with(now: dict[str, Any], before: list[dict[str, Any]], margins: dict[str, float | None]) -> dict[str, str]:
    rulings = judge(checks_of("t", now, (), before, margins, [now] * 3))
    return {ruling.check.metric: ruling.answer for ruling in rulings}


def test_margins_that_only_comparisons_of_two_sides_use_are_listed() -> None:
    margins = parse_margins(
        {"ok_rate": 0.1, "violation_rate": 0.05, "failed_rate": 0.1, "response_p99": "30%", "tue": 0.1, "p50": 0.1},
        "here",
    )
    assert list_unjudged(margins) == ["ok_rate", "violation_rate"]


def test_only_the_users_bound_or_an_accepted_run_allows_a_loss() -> None:
    now = RUN | {"silently_lost": 4, "silent_loss_rate": 0.01}
    for margins, baseline, answer in (
        ({"silent_loss_rate": 0.02}, [RUN] * 20, "met"),
        ({"silent_loss_rate": 0.005}, [RUN] * 20, "broken"),
        ({}, [now | {ACCEPTED: True}] + [RUN] * 30, "met"),
        ({}, [RUN | {"silently_lost": 2, "silent_loss_rate": 0.005, ACCEPTED: True}] * 12, "broken"),
        ({}, [now] * 12, "broken"),
    ):
        rulings = judge(checks_of("t", now, (), baseline, margins))
        assert [ruling.answer for ruling in rulings if ruling.check.metric == "silent_loss_rate"] == [answer], margins


def test_doubts_about_times_leave_counts_to_be_judged() -> None:
    now = RUN | {"requests_per_op": 6.0, "quiet_p50": 0.3}
    checks = checks_of("t", now, (), [RUN] * 20, {}, why_times="engine saturated")
    answer_by_metric = {ruling.check.metric: (ruling.answer, ruling.why) for ruling in judge(checks)}
    assert answer_by_metric["requests_per_op"] == ("broken", "it was not measured again")
    assert answer_by_metric["quiet_p50"] == ("inconclusive", "engine saturated")
    assert {answer for name, (answer, _) in answer_by_metric.items() if name.endswith("_rate")} == {"met"}


def test_a_baseline_run_with_doubtful_times_counts_for_counts_only() -> None:
    runs = [RUN] * 12 + [RUN | {TIMES_DOUBTED: True, "quiet_p50": 0.9}] * 4
    checks = {check.metric: check for check in checks_of("t", RUN, (), runs, {})}
    assert (len(checks["quiet_p50"].baseline), len(checks["failed_rate"].baseline)) == (12, 16)


def test_a_retry_in_a_few_operations_is_an_incident_and_more_requests_in_most_are_broken() -> None:
    before = [RUN | {"requests_usual": 3.0}] * 20
    few_operations, most_operations = (
        {"requests_per_op": 3.02, "requests_usual": 3.0},
        {"requests_per_op": 3.6, "requests_usual": 4.0},
    )
    for change, answer, is_quarantined in ((few_operations, "met", True), (most_operations, "broken", False)):
        rulings = judge(checks_of("t", RUN | change, (), before, {}, before[:3]))
        (ruling,) = [candidate for candidate in rulings if candidate.check.metric == "requests_per_op"]
        assert (ruling.answer, ruling.is_quarantined) == (answer, is_quarantined)


@pytest.mark.parametrize(("starved", "answer"), [(0.01, "broken"), (0.25, "met"), (0.7, "met")])
def test_waiting_for_a_cpu_explains_some_of_a_rise(starved: float, answer: str) -> None:
    """A rise by a tenth is no regression if threads waited longer than before, by a quarter of the time."""
    before = [RUN | {"starved_share": 0.01, "quiet_p50": 0.1 * (1 + number % 4 / 100)} for number in range(20)]
    now = RUN | {"starved_share": starved, "quiet_p50": 0.114}
    (ruling,) = [candidate for candidate in judge(checks_of("t", now, (), before, {"quiet_p50": 0.2}, [now] * 3))
                 if candidate.check.metric == "quiet_p50"]  # fmt: skip
    assert ruling.answer == answer


BUSY: dict[str, Any] = RUN | {
    "ok": 400, "starved_share": 0.2, "starved_elsewhere_share": 0.02, "unstarved_p50": 0.1, "quiet_ops": 20,
    "quiet_kept": 20, "quiet_share": 0.05,
}  # fmt: skip
"""A run while the machine does other work, with too few quiet operations for a percentile."""


def make_varied_runs(run: dict[str, Any], *names: str, runs: int = 20) -> list[dict[str, Any]]:
    """Return former runs whose values of these metrics differ by up to 6 %."""
    return [run | {name: run[name] * (0.97 + number % 4 / 50) for name in names} for number in range(runs)]


def p50_rulings(now: dict[str, Any], before: list[dict[str, Any]]) -> dict[str, Ruling]:
    """Return the rulings on p50, with three repetitions that are like the run."""
    rulings = judge(checks_of("t", now, (), before, {}, [now] * 3))
    return {ruling.check.metric: ruling for ruling in rulings if ruling.check.metric.endswith("_p50")}


@pytest.mark.parametrize(
    ("slowdown", "answer"), [(1.0, "met"), (1.02, "met"), (1.06, "inconclusive"), (1.25, "broken"), (2.0, "broken")]
)
def test_beside_other_work_p50_is_decided_without_the_waits_of_the_operations(slowdown: float, answer: str) -> None:
    ruling_by_metric = p50_rulings(BUSY | {"unstarved_p50": 0.1 * slowdown}, make_varied_runs(BUSY, "unstarved_p50"))
    assert ruling_by_metric["unstarved_p50"].answer == answer
    assert [name for name, ruling in ruling_by_metric.items() if ruling.check.decides] == ["unstarved_p50"]
    assert ruling_text(ruling_by_metric["unstarved_p50"]).startswith("unstarved_p50: ")


def test_a_median_that_only_waiting_has_raised_is_no_regression() -> None:
    """Quiet operations take 30 % longer than in calm runs only because they waited. Without the waits nothing
    changed."""
    calm = BUSY | {"starved_share": 0.01, "starved_elsewhere_share": 0.005, "quiet_ops": 400, "quiet_kept": 400}
    now = calm | {"starved_share": 0.3, "starved_elsewhere_share": 0.01, "quiet_p50": 0.13, "unstarved_p50": 0.101}
    ruling_by_metric = p50_rulings(now, make_varied_runs(calm, "unstarved_p50", "quiet_p50"))
    assert {name: ruling.answer for name, ruling in ruling_by_metric.items()} == {
        "quiet_p50": "inconclusive", "unstarved_p50": "met",
    }  # fmt: skip


@pytest.mark.parametrize(("starved", "answer"), [(0.05, "broken"), (0.3, "inconclusive")])
def test_the_waits_of_a_server_explain_some_of_a_rise(starved: float, answer: str) -> None:
    now = BUSY | {"starved_elsewhere_share": starved, "unstarved_p50": 0.122}
    assert p50_rulings(now, make_varied_runs(BUSY, "unstarved_p50"))["unstarved_p50"].answer == answer


@pytest.mark.parametrize("unknown", [{}, {"starved_elsewhere_share": None}])
def test_unknown_wait_of_the_server_leaves_the_answer_inconclusive(unknown: dict[str, None]) -> None:
    """The client waited for 35 % of the time, up from 5 %. The server's wait is known in one of the cases."""
    calm = BUSY | {"starved_share": 0.05} | unknown
    now = calm | {"starved_share": 0.35, "unstarved_p50": 0.122}
    answer = p50_rulings(now, make_varied_runs(calm, "unstarved_p50"))["unstarved_p50"].answer
    assert answer == ("inconclusive" if unknown else "broken")


@pytest.mark.parametrize(
    ("before", "now", "answer"),
    [(0.15, 0.15, "met"), (0.15, 0.02, "inconclusive"), (0.08, 0.02, "inconclusive"), (0.02, 0.15, "met")],
)
def test_a_rise_that_less_waiting_may_hide_is_not_met(before: float, now: float, answer: str) -> None:
    """Times are as before although servers waited less for a CPU, so something else may take longer."""
    former = make_varied_runs(BUSY | {"starved_elsewhere_share": before}, "unstarved_p50")
    assert p50_rulings(BUSY | {"starved_elsewhere_share": now}, former)["unstarved_p50"].answer == answer


@pytest.mark.parametrize(
    "now",
    [{"starved_share": 0.04}, {"cpu_per_op": 0.0022}, {"cpu_per_op": None}, {"starved_share": None}],
    ids=["calm", "more CPU", "CPU unknown", "waits unknown"],
)
def test_quiet_operations_decide_unless_other_work_kept_the_threads_waiting(now: dict[str, float | None]) -> None:
    ruling_by_metric = p50_rulings(BUSY | now, make_varied_runs(BUSY, "unstarved_p50"))
    assert [name for name, ruling in ruling_by_metric.items() if ruling.check.decides] == ["quiet_p50"]
    assert ruling_by_metric["quiet_p50"].answer == "inconclusive"
    slower = p50_rulings(BUSY | now | {"unstarved_p50": 0.15}, make_varied_runs(BUSY, "unstarved_p50"))
    assert slower["unstarved_p50"].answer == "broken", "it can break a test, whatever decides"


def test_runs_that_lack_the_time_without_waits_are_judged_as_before() -> None:
    old = {name: value for name, value in BUSY.items() if name not in ("unstarved_p50", "starved_elsewhere_share")}
    former = make_varied_runs(old | {"quiet_ops": 400}, "quiet_p50")
    for now, before in ((BUSY, former), (BUSY, [*former, *[BUSY] * 9]), (old, [BUSY] * 20)):
        ruling_by_metric = p50_rulings(now, before)
        assert list(ruling_by_metric) == ["quiet_p50"]
        assert ruling_by_metric["quiet_p50"].check.decides
        assert ruling_by_metric["quiet_p50"].why == "40 quiet operations are needed, found 20"
    slower = p50_rulings(BUSY | {"quiet_ops": 400, "quiet_p50": 0.2, "starved_share": 0.01}, former)
    assert slower["quiet_p50"].answer == "broken"


def test_the_time_without_waits_has_the_margin_of_quiet_operations() -> None:
    for margins, margin in (({"p50": 0.3}, 0.3), ({"quiet_p50": 0.2}, 0.2), ({"unstarved_p50": 0.15}, 0.15)):
        checks = checks_of("t", BUSY, (), [BUSY] * 20, margins)
        assert [check.margin for check in checks if check.metric == "unstarved_p50"] == [margin]
    assert "unstarved_p50" not in {check.metric for check in checks_of("t", BUSY, (), [BUSY] * 20, {"quiet_p50": None})}


def test_too_few_quiet_operations_are_inconclusive() -> None:
    checks = {check.metric: check for check in checks_of("t", RUN | {"quiet_ops": 39}, (), [RUN] * 20, {})}
    assert checks["quiet_p50"].why == "40 quiet operations are needed, found 39"
    assert checks["quiet_p99"].why == "300 quiet operations are needed, found 39"


def test_an_exact_number_that_varied_before_decides_nothing_alone() -> None:
    before = [RUN | {"requests_per_op": 3 + number % 3 / 10} for number in range(20)]
    (check,) = [candidate for candidate in checks_of("t", RUN, (), before, {}) if candidate.metric == "requests_per_op"]
    assert (check.kind, check.decides) == ("level", False)


@pytest.mark.parametrize(("now", "answer"), [(5410.0, "met"), (5600.0, "broken")])
def test_bytes_on_the_wire_that_vary_a_little_still_tell_a_client_that_sends_more(now: float, answer: str) -> None:
    """The number of connections that operations open varies."""
    before = [RUN | {"wire_bytes_per_op": 5400.0 + 10 * (number % 4)} for number in range(20)]
    assert answers({"wire_bytes_per_op": now}, before)["wire_bytes_per_op"] == answer


@pytest.mark.parametrize(("connections", "answer"), [(12, "broken"), (22, "met"), (400, "broken")])
def test_handshakes_of_a_busy_machine_are_no_regression(connections: int, answer: str) -> None:
    """More operations at a time come from other work on the machine, but a connection for each operation from the
    client."""
    before = [RUN | {"wire_connections": 9 + number % 4} for number in range(20)]
    now = {"wire_bytes_per_op": 5600.0, "wire_connections": connections}
    assert answers(now, before)["wire_bytes_per_op"] == answer
    assert answer_of(judge(checks_of("t", RUN | now, (), before, {}, [RUN | now] * 3))) == answer


def test_more_connections_do_not_hide_a_client_that_sends_much_more() -> None:
    before = [RUN | {"wire_connections": 9 + number % 4} for number in range(20)]
    now = {"wire_bytes_per_op": 5800.0, "wire_connections": 22}
    assert answers(now, before)["wire_bytes_per_op"] == "broken", "ten handshakes carry 205 bytes per operation at most"


def test_bytes_on_the_wire_that_older_runs_do_not_have_decide_nothing() -> None:
    before = [{key: value for key, value in RUN.items() if key != "wire_bytes_per_op"}] * 20
    assert answer_of(judge(checks_of("t", RUN, (), before, {}))) == "met"


def test_the_baseline_begins_after_the_last_lasting_improvement() -> None:
    """The last twelve runs are a third faster. A run as slow as those before them is broken."""
    slow_runs = [RUN | {"quiet_p50": 0.15 + number % 4 / 1000} for number in range(30)]
    improved_runs = [RUN | {"quiet_p50": 0.10 + number % 4 / 1000} for number in range(12)]
    (check,) = [
        candidate
        for candidate in checks_of("t", RUN, (), slow_runs + improved_runs, {})
        if candidate.metric == "quiet_p50"
    ]
    assert [reading.value for reading in check.baseline] == [run["quiet_p50"] for run in improved_runs]
    assert answers({"quiet_p50": 0.15}, slow_runs + improved_runs)["quiet_p50"] == "broken"
    assert answers({"quiet_p50": 0.15}, slow_runs)["quiet_p50"] == "met"


def runs_of(*levels: float) -> list[dict[str, Any]]:
    """Return numbered runs, one for each of these levels of p50 with a variation of up to 3 %."""
    return [RUN | {"quiet_p50": level * (1 + number % 4 / 100), "run": f"{number:04d}"}
            for number, level in enumerate(levels)]  # fmt: skip


def ruling_on_p50(now: float, runs: list[dict[str, Any]]) -> Ruling:
    info = RUN | {"quiet_p50": now}
    (ruling,) = [candidate for candidate in judge(checks_of("t", info, (), runs, {}, [info] * 3))
                 if candidate.check.metric == "quiet_p50"]  # fmt: skip
    return ruling


def test_few_runs_after_an_improvement_are_compared_with_those_before_it() -> None:
    runs = runs_of(*[0.15] * 12, *[0.10] * 4)
    ruling = ruling_on_p50(0.10, runs)
    assert (ruling.answer, ruling.check.is_before) == ("inconclusive", True)
    assert ruling.why == "it improved by 33 % at 0012: too few runs since then, and not worse than before"
    assert ruling_on_p50(0.30, runs).answer == "broken", "an improvement hides nothing"


@pytest.mark.parametrize("factor", [1.2, 3.0, 9.0])
def test_a_lasting_change_for_the_worse_begins_no_baseline(factor: float) -> None:
    """Runs that failed only at the gate are no baseline, however many they are."""
    worse = [run | {FOLLOWED_ONLY: ONLY_AT_GATE} for run in runs_of(*[0.10] * 14, *[0.10 * factor] * 12)[14:]]
    ruling = ruling_on_p50(0.10 * factor, runs_of(*[0.10] * 14) + worse)
    assert (ruling.answer, len(ruling.check.baseline), ruling.check.since) == ("broken", 14, "")


def test_a_step_that_was_not_found_at_once_is_an_open_regression_and_never_met() -> None:
    runs = runs_of(*[0.10] * 20, *[0.1115] * 30)
    ruling = ruling_on_p50(0.1115, runs)
    assert ruling.answer == "broken"
    assert ruling.course is not None
    assert ruling.course.is_worse
    assert "0020" <= ruling.course.since <= "0030"
    assert ruling_on_p50(0.10, runs).answer in ("inconclusive", "met"), "it is gone, once that is sure"


def test_broken_runs_before_the_first_twenty_are_complete_are_not_among_them() -> None:
    worse = [run | {FOLLOWED_ONLY: ONLY_AT_GATE} for run in runs_of(*[0.10] * 12, *[0.13] * 10)[12:]]
    runs = runs_of(*[0.10] * 12) + worse + runs_of(*[0.10] * 30)[22:]
    (check,) = [check for check in checks_of("t", RUN, (), runs, {}) if check.metric == "quiet_p50"]
    assert check.drift is not None
    assert len(check.drift) == 20
    assert not check.drift.preview(log(0.10)).is_open


def test_outliers_that_did_not_come_again_belong_to_the_course_and_are_no_baseline() -> None:
    runs = runs_of(*[0.10] * 20, *[0.10, 0.10, 0.10, 0.10, 0.10, 0.30] * 2)
    for run in runs[25::6]:
        run[FOLLOWED_ONLY] = WAS_OUTLIER
    (check,) = [check for check in checks_of("t", RUN, (), runs, {}) if check.metric == "quiet_p50"]
    assert check.drift is not None
    assert (len(check.drift), len(check.baseline)) == (32, 20)
    assert not check.drift.preview(log(0.10)).is_open, "they open nothing alone"


def test_after_a_broken_run_one_that_is_still_worse_is_not_met() -> None:
    """Its own interval would allow it. Only the run before shows that this is a regression."""
    levels = [0.10 * exp(0.02 * (number % 5 - 2)) for number in range(24)]
    (worse,) = runs_of(*levels, 0.125)[24:]
    still_worse = 0.1025
    assert ruling_on_p50(still_worse, runs_of(*levels)).answer == "met"
    ruling = ruling_on_p50(still_worse, [*runs_of(*levels), worse | {FOLLOWED_ONLY: ONLY_AT_GATE}])
    assert ruling.answer == "inconclusive"
    assert ruling.course is not None
    assert ruling.course.since == "0024"


def test_after_a_broken_run_one_that_has_most_of_the_margin_left_is_broken() -> None:
    """Among many tests it is not significant alone. Good runs before the broken one do not count for the regression."""
    levels = [0.10 * exp(0.02 * (number % 5 - 2)) for number in range(24)]
    (worse,) = runs_of(*levels, 0.125)[24:]
    info = RUN | {"quiet_p50": 0.115}
    former_runs = [*runs_of(*levels), worse | {FOLLOWED_ONLY: ONLY_AT_GATE}]
    checks = [check for check in checks_of("t", info, (), former_runs, {}, [info] * 3) if check.metric == "quiet_p50"]
    (ruling,) = judge(checks, tests=60)
    assert (ruling.answer, ruling.is_significant) == ("broken", False)


def test_only_the_last_runs_are_searched_for_a_change() -> None:
    """The gate searches the same runs as the commands that report what it can detect."""
    slow_runs = [RUN | {"quiet_p50": 0.15 + number % 4 / 1000} for number in range(20)]
    improved_runs = [RUN | {"quiet_p50": 0.10 + number % 4 / 1000} for number in range(60)]
    (check,) = [
        candidate
        for candidate in checks_of("t", RUN, (), slow_runs + improved_runs, {})
        if candidate.metric == "quiet_p50"
    ]
    assert (len(check.baseline), check.since) == (20, "")


@pytest.mark.parametrize(
    ("metric", "former", "now"), [("consistency_max", 0.30, 0.0), ("tue", 0.05, 0.0), ("tue", 0.05, -0.01)]
)
def test_zero_or_less_is_met_where_lower_is_better(metric: str, former: float, now: float) -> None:
    """A service that became consistent at once is no regression. A ratio may be below zero."""
    former_runs = [{metric: former + number % 5 / 100} for number in range(20)]
    info = {metric: now}
    (ruling,) = judge(checks_of("t", info, (metric,), former_runs, {}, [info] * 3))
    assert (ruling.answer, ruling.change) == ("met", -1.0)
    assert ruling_text(ruling) == f"{metric}: better than 20 runs, -100 %"


def test_zero_breaks_a_metric_of_which_more_is_better() -> None:
    former_runs = [{"throughput": 5e6 + 1e4 * (number % 5)} for number in range(20)]
    info = {"throughput": 0.0}
    (ruling,) = judge(checks_of("t", info, ("throughput",), former_runs, {}, [info] * 3))
    assert ruling.answer == "broken"


def test_handshakes_of_more_bytes_than_were_sent_break_nothing() -> None:
    """What is subtracted is the most that a handshake carries, so that less than nothing may be left."""
    former_runs = [
        RUN | {"wire_bytes_per_op": 1500.0 + number % 5 * 10, "wire_connections": 10} for number in range(20)
    ]
    info = {"wire_bytes_per_op": 2000.0, "wire_connections": 150}
    assert answers(info, former_runs)["wire_bytes_per_op"] == "met"


@pytest.mark.parametrize("count", [-1, 401])
def test_impossible_counts_are_unknown(count: int) -> None:
    assert answers({"failed": count}, again=False)["failed_rate"] == "inconclusive"


def test_a_conclusion_is_watched_in_its_columns_and_capabilities() -> None:
    info = {"ops": 9, "sync_delay_p99": 2.0, "delta": "yes", "tue": 1.5, "files": 3} | capabilities({"delta": 1})
    checks = {check.metric: check for check in checks_of("t", info, ("sync_delay_p99", "files"), [info] * 12, {})}
    assert {name: (check.kind, check.margin) for name, check in checks.items()} == {
        "sync_delay_p99": ("level", 0.25), "delta": ("yes", 0.1), "tue": ("exact", 0.1),
    }  # fmt: skip
    assert {ruling.answer for ruling in judge(list(checks.values()))} == {"met"}


@pytest.mark.parametrize(("name", "value"), [("elapsed", 1.0), ("requests_per_op", 3.0), ("deduplication", 1)])
@pytest.mark.parametrize("margins", [{}, {"elapsed": 0.2}], ids=["default", "named"])
def test_a_conclusion_is_not_met_by_leaving_a_metric_out(name: str, value: float, margins: dict[str, float]) -> None:
    columns = ("completion", name)
    full = {"completion": 2.0, name: value} | capabilities({name: value})
    before = [full | {COLUMNS: columns, "run": str(number)} for number in range(12)]
    assert answer_of(judge(checks_of("t", full, columns, before, margins))) == "met"
    now = {"completion": 2.0}
    rulings = judge(checks_of("t", now, ("completion",), before, margins))
    assert {ruling.check.metric: ruling.answer for ruling in rulings} == {"completion": "met", name: "inconclusive"}
    assert answer_of(rulings) == "inconclusive"
    later = [*before, *[now | {COLUMNS: ("completion",)}] * 12]
    assert answer_of(judge(checks_of("t", now, ("completion",), later, margins))) == "met", "most runs are without it"


def test_a_metric_that_the_user_names_may_not_be_left_out_either() -> None:
    before = [RUN | {"throughput": 5.0, "run": str(number)} for number in range(12)]
    for now, answer in ((RUN | {"throughput": 5.0}, "met"), (RUN, "inconclusive")):
        rulings = judge(checks_of("t", now, (), before, {"throughput": 0.1}))
        assert {ruling.check.metric: ruling.answer for ruling in rulings}["throughput"] == answer_of(rulings) == answer


def test_an_answer_whose_name_says_so_is_watched_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "is_secret", Metric("1 is yes", "higher"))
    info = {"ops": 1, "is_secret": 1} | capabilities({"is_secret": 1})
    assert info == {"ops": 1, "is_secret": 1}
    (check,) = checks_of("t", info, (), [info] * 3, {})
    assert (check.metric, check.kind, check.now.value) == ("is_secret", "yes", 1.0)


@pytest.mark.parametrize(("better", "usual", "now", "answer"), [
    ("lower", 0, 1, "broken"), ("lower", 1, 0, "met"), ("lower", 0, 0, "met"), ("lower", 1, 1, "met"),
    ("higher", 1, 0, "broken"), ("higher", 0, 1, "met"), ("higher", 1, 1, "met"), ("higher", 0, 0, "met"),
])  # fmt: skip
def test_an_answer_is_worse_in_the_direction_that_its_row_says(
    monkeypatch: pytest.MonkeyPatch, better: Literal["lower", "higher"], usual: int, now: int, answer: str
) -> None:
    monkeypatch.setitem(METRICS, "is_leaking", Metric("1 is yes", better))
    info, former = {"ops": 1, "is_leaking": now}, {"ops": 1, "is_leaking": usual}
    (ruling,) = judge(checks_of("t", info, (), [former] * 12, {}, [info] * 3))
    assert ruling.answer == answer


def with_delta(is_yes: bool) -> dict[str, Any]:
    return {"delta": "yes" if is_yes else "no"} | capabilities({"delta": int(is_yes)})


@pytest.mark.parametrize("runs", [4, 9, 10])
def test_a_capability_lost_a_few_runs_after_it_was_gained_is_broken(runs: int) -> None:
    lost, former_runs = with_delta(False), [with_delta(False)] * 12 + [with_delta(True)] * runs
    (unconfirmed,) = judge(checks_of("t", lost, (), former_runs, {}))
    assert (unconfirmed.answer, unconfirmed.why) == ("inconclusive", "a suspect, measured again 0 of 3 times")
    (confirmed,) = judge(checks_of("t", lost, (), former_runs, {}, [lost] * 3))
    assert (confirmed.answer, confirmed.check.is_before) == ("broken", False)
    (kept,) = judge(checks_of("t", with_delta(True), (), former_runs, {}))
    assert kept.answer == "met"


def test_the_margins_of_the_user_apply() -> None:
    margins = parse_margins({"p50": "5%", "quiet_p99": False, "response_p50": 0.3, "failed_rate": 0.05}, "here")
    assert margins == {"p50": 0.05, "quiet_p99": None, "response_p50": 0.3, "failed_rate": 0.05}
    info = RUN | {"response_p50": 0.1}
    margin_by_metric = {check.metric: check.margin for check in checks_of("t", info, (), [info] * 20, margins)}
    assert (margin_by_metric["quiet_p50"], margin_by_metric["response_p50"], margin_by_metric["failed_rate"]) == (
        0.05,
        0.3,
        0.05,
    )
    assert "quiet_p99" not in margin_by_metric


@pytest.mark.parametrize(
    ("name", "is_unknown"),
    [
        ("knee_p50", True), ("album_cost", True), ("quiet_p05", False), ("quiet_p5", False), ("quiet_p", False),
        ("quite_p50", False), ("failled_rate", False), ("response_p99", False), ("p50", False),
    ],
)  # fmt: skip
def test_a_margin_that_another_suite_may_declare_is_no_misspelt_one(name: str, is_unknown: bool) -> None:
    assert find_unknown([name]) == (() if name in {"response_p99", "p50"} else (name,))
    assert bool(hint_at_metric(name)) != is_unknown or name in {"response_p99", "p50"}


@pytest.mark.parametrize("value", [0, -0.1, True, "10", "ten%", float("nan"), [0.1]])
def test_an_invalid_margin_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="here: p50: expected a margin such as "):
        parse_margins({"p50": value}, "here")
    with pytest.raises(UsageError, match="here: quite_p50: no such metric"):
        parse_margins({"quite_p50": 0.1}, "here")
