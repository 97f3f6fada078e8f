"""What agents report becomes what figures need: nothing is lost, nothing is invented, and memory stays small."""

from __future__ import annotations

import tracemalloc

import pytest

from pytest_cloudbench.report.digest import MOST_PARTS, Digest
from pytest_cloudbench.report.live import AgentReport
from pytest_cloudbench.report.live_digest import LiveDigest, LiveDigests

SECOND = 1_000_000_000


def heard(
    at_s: float, ok: int = 0, throttled: int = 0, failed: int = 0, *, agent: str = "gw0", in_flight: int = 2,
    sample_s: tuple[float, ...] = (),
) -> AgentReport:  # fmt: skip
    weight = ok / len(sample_s) if sample_s else 0.0
    return AgentReport(agent, round(at_s * SECOND), ok, throttled, failed, in_flight, sample_s, weight)


def digested(*reports: AgentReport) -> Digest:
    made = LiveDigest(0)
    for each in reports:
        made.take(each)
    found = made.digest()
    assert found is not None
    return found


def test_parts_have_what_was_reported_in_them() -> None:
    found = digested(heard(0.5, 8, sample_s=(0.1, 0.3)), heard(1.5, 4, 2, 1, sample_s=(0.2,)), heard(3.5, 0, 5))
    assert found.edges_s == [0.0, 1.0, 2.0, 3.0, 3.5]
    assert found.outcomes == [{"ok": 8}, {"ok": 4, "throttled": 2, "failed": 1}, {}, {"throttled": 5}]
    assert found.p50_s == [pytest.approx(0.1, rel=0.01), pytest.approx(0.2, rel=0.01), None, None]
    assert found.p99_s[0] == pytest.approx(0.3, rel=0.01)
    assert (found.ops, found.overall.total, found.overall.value_count, found.is_by_end) == (20, 12, 3, True)


def test_a_response_time_stands_for_as_many_operations_as_its_agent_did() -> None:
    found = digested(heard(0.5, 990, sample_s=(0.01,)), heard(0.6, 10, agent="gw1", sample_s=(1.0,) * 10))
    assert found.overall.value_at(0.99) == pytest.approx(0.01, rel=0.01)
    assert found.overall.value_at(0.991) == pytest.approx(1.0, rel=0.01)


def test_a_last_part_that_is_too_short_for_a_rate_belongs_to_the_one_before() -> None:
    assert digested(heard(0.5, 1), heard(1.5, 1), heard(2.25, 9)).edges_s == [0.0, 1.0, 2.25]


def test_nothing_is_drawn_before_an_operation_has_ended() -> None:
    made = LiveDigest(0)
    made.take(heard(-1.0, 3))
    made.take(heard(1.0))
    assert made.digest() is None


def test_a_long_run_keeps_every_operation_in_few_parts_and_little_memory() -> None:
    made = LiveDigest(0)
    tracemalloc.start()
    try:
        for second in range(36_000):
            made.take(heard(second + 0.5, 3, 1, sample_s=(0.01 * (1 + second % 700), 0.02, 0.03)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    found = made.digest()
    assert found is not None
    assert MOST_PARTS / 2 <= len(found.outcomes) <= MOST_PARTS
    assert sum(sum(each.values()) for each in found.outcomes) == found.ops == 4 * 36_000
    assert found.overall.total == pytest.approx(3 * 36_000)
    assert peak < 10_000_000


def test_few_operations_have_few_parts() -> None:
    found = digested(*(heard(second, second % 10 == 0) for second in range(1, 61)))
    assert found.ops == 6
    assert len(found.outcomes) <= 10


# --- silences ---


def steady(
    from_s: int, to_s: int, ok: int, in_flight: int = 2, agent: str = "gw0", at: float = 0.0
) -> list[AgentReport]:
    """A report each quarter of a second."""
    return [heard(each / 4 + at, ok, agent=agent, in_flight=in_flight, sample_s=(0.01,) * bool(ok))
            for each in range(4 * from_s + 1, 4 * to_s + 1)]  # fmt: skip


def silences(*reports: list[AgentReport]) -> list[tuple[float, float, int]]:
    ordered = sorted((each for some in reports for each in some), key=lambda each: each.at_ns)
    return [(each.from_s, each.to_s, each.waiting) for each in digested(*ordered).silences]


def test_a_time_in_which_nothing_ended_although_operations_waited_is_a_silence() -> None:
    assert silences(steady(0, 5, 4), steady(5, 9, 0, 3), steady(9, 12, 4)) == [(5.0, 9.0, 3)]


def test_it_is_one_while_it_lasts() -> None:
    assert silences(steady(0, 5, 4), steady(5, 9, 0)) == [(5.0, 9.0, 2)]


def test_without_operations_that_wait_it_is_a_pause() -> None:
    assert silences(steady(0, 5, 4), steady(5, 9, 0, 1), steady(9, 12, 4)) == []


def test_slow_operations_are_no_silence() -> None:
    slow = [heard(second, 2 * (second % 4 == 0), sample_s=(4.0,) * (second % 4 == 0)) for second in range(1, 41)]
    assert silences(slow) == []


def test_one_agent_that_still_gets_answers_breaks_it_and_one_that_is_lost_does_not_make_it() -> None:
    others = steady(0, 12, 4, agent="gw1", at=0.1)
    assert silences(steady(0, 5, 4), steady(5, 12, 0), others) == []
    lost = steady(0, 5, 4, in_flight=9, agent="gw1", at=0.1)
    assert silences(lost, steady(0, 5, 4), steady(5, 9, 0, in_flight=0), steady(9, 12, 4)) == []


def test_a_machine_that_pauses_is_no_silence_of_the_provider() -> None:
    """No report comes, and then all that were late."""
    assert silences(steady(0, 5, 4), [heard(9.0, 4), heard(9.01, 4)]) == []


# --- experiments ---


def test_runs_of_an_experiment_are_lines_and_sides_go_on_where_they_were() -> None:
    digests = LiveDigests()
    for at_s, line in enumerate(("A", "B", "B", "A")):
        digests.begin("t", line, at_s * SECOND)
        digests.take(heard(at_s + 0.5, 10, sample_s=(0.1,)))
    found = digests.digests_of("t")
    assert [(name, each.ops) for name, each in found.items()] == [("B", 20), ("A", 20)]
    assert (digests.latest, digests.version("t"), digests.version("other")) == ("t", 4, None)


def test_another_experiment_begins_and_the_former_keeps_its_figures() -> None:
    digests = LiveDigests()
    digests.begin("t", "run 1", 0)
    digests.take(heard(0.5, 10, sample_s=(0.1,)))
    digests.begin("u", "run 1", SECOND)
    digests.take(heard(1.5, 5))
    assert (digests.digests_of("t")["run 1"].ops, digests.digests_of("u")["run 1"].ops) == (10, 5)
    digests.begin("t", "run 1", 2 * SECOND)  # measured again
    digests.take(heard(2.5, 1))
    assert digests.digests_of("t")["run 1"].ops == 1


def test_of_many_runs_the_latest_are_kept() -> None:
    digests = LiveDigests()
    for number in range(30):
        digests.begin("t", f"run {number}", 0)
        digests.take(heard(0.5, 1))
    assert list(digests.digests_of("t")) == [f"run {number}" for number in range(22, 30)]
