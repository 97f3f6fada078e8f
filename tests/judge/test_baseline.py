"""Tests of the choice of the stored entry that a relative gate compares with."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.judge.baseline import (
    BaselineCandidate,
    BaselineValue,
    baseline_faults,
    choose_baseline,
    conditions_of,
    describe_differences,
    is_about_times,
)

NOW: dict[str, Any] = {
    "schema": 2, "outcome": "unfinished", "doubts": [], "missing_agents": {}, "agents": 4, "machine": "Linux, 2 x CPU",
    "provider": "emulated:dropbox", "profile_digest": "abc", "time_scale": 1.0, "operation": "put", "sensors": 50,
    "threads": None, "planned_ops": 500, "payload": "RandomPayload", "size_bytes": 5120, "arrival": "FixedInterval(1)",
    "loop": "open", "seed": "one", "response_p99": 0.5,
}  # fmt: skip

LATE = "engine saturated (lateness p99 310 ms is over 200 ms)"
LONG_NAME = "Linux x86_64, 16 x 11th Gen Intel(R) Core(TM) i7-11800H @ 2.30GHz, CPython "
OUTLIER = {"answer": "met", "quarantined": ["quiet_p50"]}


def make_candidate(value: object = 1.0, run: str = "0001_a.json", **changes: object) -> BaselineCandidate:
    """Return a valid entry with the given changes."""
    return BaselineCandidate(run, {**NOW, "outcome": "passed", "seed": "another", "response_p99": value, **changes})


def test_the_latest_comparable_entry_is_chosen() -> None:
    assert choose_baseline(
        [make_candidate(1), make_candidate(2), make_candidate(3)], NOW, "response_p99"
    ) == BaselineValue(3.0)
    worse = [
        make_candidate(9, outcome="failed"),
        make_candidate(9, doubts=["engine saturated"]),
        make_candidate(9, agents=50),
    ]
    assert choose_baseline([make_candidate(1), make_candidate(2), *worse], NOW, "response_p99") == BaselineValue(2.0)
    assert choose_baseline([], NOW, "response_p99") == BaselineValue(None, "no baseline yet")


@pytest.mark.parametrize(("unit", "value"), [("s", 1.0), ("ms", None), (5, None), (None, 1.0)])
def test_a_number_in_another_unit_is_no_baseline(unit: object, value: float | None) -> None:
    suite = {"name": "album", "conclusions": {"response_p99": {"unit": unit}}}
    chosen = choose_baseline([make_candidate(suite=suite)], NOW, "response_p99")
    remark = "" if value else "no baseline: the stored run held response_p99 in another unit"
    assert chosen == BaselineValue(value, remark)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"outcome": "failed"}, "did not pass"),
        ({"outcome": "failed", "gate": {"answer": "broken"}}, "failed only at the gate"),
        ({"outcome": "failed", "gate": {"answer": "broken"}, "doubts": ["late"]}, "had doubts"),
        ({"outcome": "interrupted", "gate": {"answer": "broken"}}, "ended in an interruption"),
        ({"outcome": "failed", "gate": "broken"}, "did not pass"),
        ({"outcome": "skipped"}, "did not pass"),
        ({"outcome": "rerun"}, "did not pass"),
        ({"outcome": None}, "did not pass"),
        ({"outcome": "interrupted"}, "ended in an interruption"),
        ({"outcome": "unfinished"}, "ended in an interruption"),
        ({"doubts": ["--max-ops 10 is used up"]}, "had doubts"),
        ({"doubts": [LATE]}, "had doubts about its times"),
        ({"doubts": [LATE, "2 of 500 operations were not tried"]}, "had doubts"),
        ({"doubts": [LATE], "missing_agents": {"gw1": "was lost"}}, "had doubts"),
        ({"doubts": LATE}, "had doubts"),
        ({"doubts": [LATE, None]}, "had doubts"),
        ({"doubts": [LATE], "outcome": "failed"}, "did not pass"),
        ({"doubts": [LATE], "outcome": "failed", "gate": {"answer": "broken"}}, "failed only at the gate"),
        ({"doubts": [LATE], "gate": OUTLIER}, "was an outlier that did not come again"),
        ({"doubts": ["gone"], "gate": OUTLIER}, "had doubts"),
        ({"gate": OUTLIER}, "was an outlier that did not come again"),
        ({"outcome": "failed", "gate": OUTLIER | {"answer": "broken"}}, "failed only at the gate"),
        ({"outcome": "interrupted", "gate": OUTLIER}, "ended in an interruption"),
        ({"doubts": None}, "had doubts"),
        ({"missing_agents": {"gw1": "was lost"}}, "had doubts"),
        ({"agents": 50}, "differed in agents (50, here 4)"),
        ({"machine": "Darwin, 8 x CPU"}, "differed in machine (Darwin, 8 x CPU, here Linux, 2 x CPU)"),
        ({"profile_digest": "def"}, "differed in profile_digest (def, here abc)"),
        ({"time_scale": 10.0}, "differed in time_scale (10.0, here 1.0)"),
        ({"size_bytes": 1, "planned_ops": 5}, "differed in planned_ops (5, here 500), size_bytes (1, here 5120)"),
        ({"machine": f"{LONG_NAME}3.12"}, f"differed in machine ({LONG_NAME}3.12, here Linux, 2 x CPU)"),
        ({"arrival": "x" * 101}, f"differed in arrival ({'x' * 97}..., here FixedInterval(1))"),
        ({"schema": 1}, "came from another version"),
    ],
)
def test_entries_that_are_no_baseline_and_why(changes: dict[str, Any], reason: str) -> None:
    candidate = make_candidate(**changes)
    assert choose_baseline([candidate], NOW, "response_p99") == BaselineValue(
        None, f"no baseline: the stored run {reason}"
    )
    assert choose_baseline([candidate] * 3, NOW, "response_p99") == BaselineValue(
        None, f"no baseline: the 3 stored runs {reason}"
    )
    chosen = choose_baseline([candidate], NOW, "response_p99", named="0001")
    if reason.startswith(("differed", "came")):
        assert chosen == BaselineValue(1.0, f"0001_a.json {reason}"), (
            "a named run is used, and a remark says how it differs"
        )
    else:
        assert chosen == BaselineValue(None, f"0001_a.json {reason}", fails=True)


@pytest.mark.parametrize("value", [nan, inf, "1.0", None, True, [1], 10**400])
def test_an_entry_without_a_number_is_no_baseline(value: object) -> None:
    reason = "held no number for response_p99"
    assert choose_baseline([make_candidate(value)], NOW, "response_p99") == BaselineValue(
        None, f"no baseline: the stored run {reason}"
    )
    assert choose_baseline([make_candidate(value)], NOW, "response_p99", "1") == BaselineValue(
        None, f"0001_a.json {reason}", fails=True
    )
    assert choose_baseline([make_candidate(2), make_candidate(value)], NOW, "response_p99") == BaselineValue(2.0)


def test_all_faults_of_an_entry_are_listed_the_gravest_first() -> None:
    info = make_candidate(doubts=[LATE], outcome="failed", gate={"answer": "broken"}).info
    assert baseline_faults(info) == ["failed only at the gate", "had doubts about its times"]
    assert baseline_faults(make_candidate(doubts=["gone"], outcome="failed").info) == ["had doubts", "did not pass"]
    assert baseline_faults(make_candidate(gate={"answer": "met", "quarantined": []}).info) == []


@pytest.mark.parametrize(
    ("doubt", "is_about"),
    [
        (LATE, True),
        ("threads waited for a CPU for 63% of the operations' time", True),
        ("response_p50 drifted during the run (+12.0%)", True),
        ("response_p50 is 14.2% above that of the run's second half: it was still settling", True),
        ("2 of 500 operations were not tried", False),
        ("emulator of emulated:dropbox has died (exit status -9)", False),
        ("gw1 was lost: engine saturated (", False),
        ("it is said that response_p50 drifted during the run (", False),
        ("", False),
        (None, False),
        (["engine saturated ("], False),
    ],
)
def test_a_doubt_is_about_times_only_if_counts_are_right_all_the_same(doubt: object, is_about: bool) -> None:
    assert is_about_times(doubt) is is_about


def test_several_reasons_are_counted() -> None:
    entries = [
        make_candidate(agents=50),
        make_candidate(agents=50),
        make_candidate(outcome="failed"),
        BaselineCandidate("x", {"mean": 1}),
    ]
    assert choose_baseline(entries, NOW, "response_p99").remark == (
        "no baseline: of 4 stored runs 1 held no number for response_p99, 1 did not pass, "
        "2 differed in agents (50, here 4)"
    )


def test_a_named_run_without_the_test_is_an_error() -> None:
    assert choose_baseline([], NOW, "response_p99", named="0001") == BaselineValue(
        None, "the run 0001 has no entry for this test", fails=True
    )


plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
    max_leaves=4,
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from([*NOW, "other"]), plain), max_size=3), st.sampled_from(["", "0001"]))
def test_any_stored_entry_is_judged(infos: list[dict[str, Any]], run: str) -> None:
    chosen = choose_baseline([BaselineCandidate("0001_a.json", info) for info in infos], NOW, "response_p99", run)
    assert chosen.value is not None or chosen.remark
    assert "\n" not in chosen.remark


def test_zero_is_no_baseline_for_metrics_where_higher_is_better() -> None:
    reason = "held 0 for response_p99, to which no percentage applies"
    assert choose_baseline([make_candidate(0.0)], NOW, "response_p99") == BaselineValue(0.0)
    assert choose_baseline([make_candidate(0.0)], NOW, "response_p99", higher=True) == BaselineValue(
        None, f"no baseline: the stored run {reason}"
    )
    assert choose_baseline([make_candidate(2), make_candidate(0.0)], NOW, "response_p99", higher=True) == BaselineValue(
        2.0
    )
    assert choose_baseline([make_candidate(0.0)], NOW, "response_p99", "1", higher=True) == BaselineValue(
        None, f"0001_a.json {reason}", fails=True
    )


def host(name: str, agents: int = 2, **changes: object) -> dict[str, object]:
    """Return the description of a host in an entry. A comparison ignores its clock and address."""
    defaults: dict[str, object] = {"machine": "Linux, 4 x CPU", "clock_error_ns": 9, "address": "10.0.0.1"}
    return {"name": name, "agents": agents, "lost_agents": 0, "absent_agents": 0, **defaults, **changes}


BOTH = [host("oslo"), host("lima")]


@pytest.mark.parametrize(
    ("then", "here", "difference"),
    [
        (BOTH, [host("lima", clock_error_ns=5), host("oslo", address="10.0.0.2")], ""),
        (None, None, ""),
        ([host("oslo")], BOTH, "differed in hosts (without lima)"),
        ([host("oslo"), host("lima", 0, absent_agents=2)], BOTH, "differed in hosts (without lima)"),
        ([host("oslo"), host("lima", lost_agents=2)], BOTH, "differed in hosts (without lima)"),
        (BOTH, [host("oslo")], "differed in hosts (with lima, which is missing here)"),
        (BOTH, None, "differed in hosts (with oslo, which is missing here; with lima, which is missing here)"),
        (
            [host("oslo"), host("lima", lost_agents=1)], BOTH,
            "differed in hosts (lima: 1 agents on Linux, 4 x CPU, here 2 agents on Linux, 4 x CPU)",
        ),
        (
            [host("oslo", machine="Linux, 1 x CPU")], [host("oslo")],
            "differed in hosts (oslo: 2 agents on Linux, 1 x CPU, here 2 agents on Linux, 4 x CPU)",
        ),
        ([3, {"agents": "x"}], BOTH, "differed in hosts (without oslo; without lima)"),
    ],
)  # fmt: skip
def test_runs_from_other_hosts_are_not_compared(then: object, here: object, difference: str) -> None:
    former, now = {**NOW, "hosts": then}, {**NOW, "hosts": here}
    assert describe_differences(former, now) == difference
    stored_form = {"schema": 2, **conditions_of(former)}
    assert describe_differences(stored_form, now) == difference, "the index has the conditions only"
    chosen = choose_baseline([make_candidate(1, hosts=then)], now, "response_p99")
    assert (chosen.value, difference in chosen.remark) == (None if difference else 1.0, True)


def test_entries_of_one_machine_have_the_conditions_of_those_before_hosts() -> None:
    assert "hosts" not in conditions_of({**NOW, "hosts": []})
