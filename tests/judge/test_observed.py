"""Tests of bounds from measurements: only trusted entries give bounds, which are wide enough for the next run."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from pytest_cloudbench.judge.expect import Expectation
from pytest_cloudbench.judge.observed import SessionEntry, observe

TODAY = datetime.date(2026, 11, 22)
THEN = datetime.date(2026, 1, 1)


def entry(test: str = "test_x", params: Any = None, is_conclusion: bool = False, **changes: Any) -> SessionEntry:
    info = {
        "schema": 2, "outcome": "passed", "doubts": [], "missing_agents": {}, "time_scale": 1.0, "ops": 300,
        "files": 300, "run_id": "r1", "machine": "m", **changes,
    }  # fmt: skip
    return SessionEntry(["folder:x"], test, params or {}, info, is_conclusion)


def claim(
    metric: str, at_least: float | None = None, at_most: float | None = None, source: str = "observed 1", **where: Any
) -> Expectation:
    return Expectation("folder:x", metric, at_least, at_most, source, THEN, where)


def bounds(*entries: SessionEntry) -> dict[str, tuple[float | None, float | None]]:
    return {
        expectation.metric: (expectation.at_least, expectation.at_most)
        for expectation in observe(entries, [], TODAY).added
    }


def test_a_new_experiment_gets_bounds_in_the_direction_that_matters() -> None:
    added = observe([entry(loss_rate=0.0, response_p50=0.2, response_p99=1.0, throughput=5.0)], [], TODAY).added
    assert {expectation.metric: (expectation.at_least, expectation.at_most) for expectation in added} == {
        "loss_rate": (None, 0.0), "response_p50": (None, 0.22), "response_p99": (None, 1.25),
    }  # fmt: skip
    assert all(
        (expectation.provider, expectation.date, expectation.where) == ("folder:x", TODAY, {"test": "test_x"})
        for expectation in added
    )
    assert added[1].source == "observed 0.2 s in run r1 on m; margin 10%"


def test_a_conclusion_gets_bounds_on_its_own_metrics() -> None:
    times: dict[str, Any] = {"readiness_p50": 2.0, "readiness_p90": 3.0}
    assert bounds(entry(is_conclusion=True, improvement_factor=2.0, chunking=1.0, tue=None, **times)) == {
        "improvement_factor": (1.8, None), "chunking": (1.0, None), "readiness_p50": (None, 2.2),
    }  # fmt: skip


def test_an_answer_in_words_gets_a_bound_from_its_number() -> None:
    assert bounds(entry(is_conclusion=True, chunking="yes", is_chunking=1)) == {"chunking": (1.0, None)}


@pytest.mark.parametrize(
    ("count", "upper_bound"),
    [(3, 0.029), (30, 0.14), (0, 0.0), (300, 1.0)],  # Wilson: 0.02897 and 0.1391, rounded up
)
def test_a_rates_bound_is_the_end_of_its_interval(count: int, upper_bound: float) -> None:
    assert bounds(entry(failed_rate=count / 300)) == {"failed_rate": (None, upper_bound)}


def renew(metric: str, **changes: Any) -> tuple[float | None, str]:
    """Return the new bound of an observed claim on one metric, and what its source says about the bound."""
    (renewed,) = observe([entry(**changes)], [claim(metric, None, 9.0)], TODAY).renewed.values()
    return renewed.at_most, renewed.source.partition("; ")[2]


def test_a_rate_of_files_is_as_certain_as_its_number_of_files() -> None:
    for_300_files = (0.029, "95 % interval of 300 files, 0 and 1 exact")
    for metric in ("duplicate_rate", "silent_loss_rate", "loss_rate"):
        assert renew(metric, ops=3000, files=300, **{metric: 0.01}) == for_300_files
    assert renew("failed_rate", ops=3000, files=300, failed_rate=0.01) == (
        0.0143, "95 % interval of 3000 operations, 0 and 1 exact"
    )  # fmt: skip


def test_a_share_of_time_has_a_margin_instead_of_an_interval() -> None:
    assert renew("starved_share", starved_share=0.2) == (0.22, "margin 10%")


def test_a_bound_is_rounded_away_from_the_number() -> None:
    assert bounds(entry(response_p99=0.100001)) == {"response_p99": (None, 0.126)}
    (renewed,) = observe([entry(throughput=123456.0)], [claim("throughput", 1.0)], TODAY).renewed.values()
    assert renewed.at_least == 92500.0
    assert bounds(entry(response_p99=1234.0)) == {"response_p99": (None, 1550.0)}


def test_an_observed_claim_is_renewed_in_its_place_and_keeps_its_form() -> None:
    claims = [claim("loss_rate", None, 0.5, "an agreement"), claim("response_p50", 0.1, 9.0, test="test_x")]
    changes = observe([entry(response_p50=2.0, response_p99=3.0, loss_rate=0.0)], claims, TODAY)
    assert list(changes.renewed) == [1]
    renewed = changes.renewed[1]
    assert (renewed.at_least, renewed.at_most, renewed.date) == (1.8, 2.2, TODAY)
    assert renewed.where == {"test": "test_x"}
    assert not changes.added  # the user has chosen the bounds of this experiment


def test_claims_of_other_sources_stay_and_are_not_repeated() -> None:
    changes = observe([entry(loss_rate=0.9, response_p50=1.0)], [claim("loss_rate", None, 0.0, "an agreement")], TODAY)
    assert not changes.renewed
    assert [expectation.metric for expectation in changes.added] == ["response_p50"]


def test_a_claim_that_still_holds_is_not_touched() -> None:
    changes = observe([entry(response_p50=1.0)], [claim("response_p50", None, 1.1)], TODAY)
    assert (changes.kept, changes.renewed, changes.added) == (1, {}, [])


def test_a_claim_on_several_entries_holds_for_all_of_them() -> None:
    slow, fast = entry(params={"n": 1}, response_p50=3.0), entry(params={"n": 2}, response_p50=1.0)
    (renewed,) = observe([slow, fast], [claim("response_p50", 0.0, 0.0)], TODAY).renewed.values()
    assert (renewed.at_least, renewed.at_most) == (0.9, 3.3)
    assert renewed.source.startswith("observed 1 to 3 s ")
    twice = observe([entry(response_p50=3.0), entry(response_p50=1.0)], [], TODAY).added
    assert [expectation.at_most for expectation in twice] == [3.3]


def test_a_parameter_called_test_does_not_hide_the_name_of_the_function() -> None:
    entries = [entry(params={"test": number, "n": 1}, response_p50=float(number)) for number in (1, 2)]
    (added,) = observe(entries, [], TODAY).added
    assert (list(added.where.items()), added.at_most) == ([("test", "test_x"), ("n", 1)], 2.2)
    assert not observe([entry("test_y", {"test": "test_x"}, response_p50=9.0)], [added], TODAY).renewed


UNFIT = [
    ({"doubts": ["late"]}, "had doubts"),
    ({"outcome": "failed"}, "did not pass"),
    ({"outcome": "skipped"}, "did not pass"),
    ({"outcome": "interrupted"}, "ended in an interruption"),
    ({"outcome": "unfinished"}, "ended in an interruption"),
    ({"missing_agents": {"gw1": "was lost"}}, "had doubts"),
    ({"time_scale": 5.0}, "had times that --time-scale distorts"),
    ({"through_controller": ["gw1"]}, "had times that include the connection to other hosts"),
    ({"response_p50": float("inf")}, "held no number for response_p50"),
]


@pytest.mark.parametrize(("change", "reason"), UNFIT, ids=[reason for _, reason in UNFIT])
def test_an_entry_that_may_be_no_baseline_becomes_no_bound(change: dict[str, Any], reason: str) -> None:
    unfit = entry(**{"response_p50": 1.0, **change})
    assert not observe([unfit], [], TODAY).added
    changes = observe([entry(response_p50=1.0), unfit], [claim("response_p50", None, 9.0)], TODAY)
    assert not changes.renewed
    assert changes.left == {reason: 1}
    assert observe([entry(response_p50=1.0)], [claim("response_p50", None, 9.0)], TODAY).renewed


def test_a_parameter_that_toml_cannot_hold_makes_no_claim() -> None:
    changes = observe([entry(params={"payload": object()}, response_p50=1.0)], [], TODAY)
    assert (changes.added, dict(changes.left)) == ([], {"has a parameter that TOML cannot hold": 1})
