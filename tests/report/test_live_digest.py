"""Digests of agents' reports neither lose nor add operations, and need little memory."""

from __future__ import annotations

import tracemalloc

import pytest

from pytest_cloudbench.report.digest import MOST_PARTS, Digest
from pytest_cloudbench.report.live import AgentReport
from pytest_cloudbench.report.live_digest import LiveDigest, LiveDigests

SECOND = 1_000_000_000


def make_report(
    at_s: float, ok: int = 0, throttled: int = 0, failed: int = 0, *, agent: str = "gw0", in_flight: int = 2,
    sample_s: tuple[float, ...] = (),
) -> AgentReport:  # fmt: skip
    weight = ok / len(sample_s) if sample_s else 0.0
    return AgentReport(agent, round(at_s * SECOND), ok, throttled, failed, in_flight, sample_s, weight)


def summarize_reports(*reports: AgentReport) -> Digest:
    live = LiveDigest(0)
    for report in reports:
        live.take(report)
    summary = live.digest()
    assert summary is not None
    return summary


def test_parts_contain_their_reports() -> None:
    summary = summarize_reports(
        make_report(0.5, 8, sample_s=(0.1, 0.3)), make_report(1.5, 4, 2, 1, sample_s=(0.2,)), make_report(3.5, 0, 5)
    )
    assert summary.edges_s == [0.0, 1.0, 2.0, 3.0, 3.5]
    assert summary.outcomes == [{"ok": 8}, {"ok": 4, "throttled": 2, "failed": 1}, {}, {"throttled": 5}]
    assert summary.p50_s == [pytest.approx(0.1, rel=0.01), pytest.approx(0.2, rel=0.01), None, None]
    assert summary.p99_s[0] == pytest.approx(0.3, rel=0.01)
    assert (summary.ops, summary.overall.total, summary.overall.value_count, summary.is_by_end) == (20, 12, 3, True)


def test_response_times_are_weighted_by_operations() -> None:
    summary = summarize_reports(
        make_report(0.5, 990, sample_s=(0.01,)), make_report(0.6, 10, agent="gw1", sample_s=(1.0,) * 10)
    )
    assert summary.overall.value_at(0.99) == pytest.approx(0.01, rel=0.01)
    assert summary.overall.value_at(0.991) == pytest.approx(1.0, rel=0.01)


def test_short_last_part_is_merged() -> None:
    assert summarize_reports(make_report(0.5, 1), make_report(1.5, 1), make_report(2.25, 9)).edges_s == [0.0, 1.0, 2.25]


def test_no_digest_before_an_operation_has_ended() -> None:
    live = LiveDigest(0)
    live.take(make_report(-1.0, 3))
    live.take(make_report(1.0))
    assert live.digest() is None


def test_long_run_needs_few_parts_and_little_memory() -> None:
    live = LiveDigest(0)
    tracemalloc.start()
    try:
        for second in range(36_000):
            live.take(make_report(second + 0.5, 3, 1, sample_s=(0.01 * (1 + second % 700), 0.02, 0.03)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    summary = live.digest()
    assert summary is not None
    assert MOST_PARTS / 2 <= len(summary.outcomes) <= MOST_PARTS
    assert sum(sum(counts.values()) for counts in summary.outcomes) == summary.ops == 4 * 36_000
    assert summary.overall.total == pytest.approx(3 * 36_000)
    assert peak < 10_000_000


def test_few_operations_have_few_parts() -> None:
    summary = summarize_reports(*(make_report(second, second % 10 == 0) for second in range(1, 61)))
    assert summary.ops == 6
    assert len(summary.outcomes) <= 10


# --- silences ---


def steady_reports(
    from_s: int, to_s: int, ok: int, in_flight: int = 2, agent: str = "gw0", at: float = 0.0
) -> list[AgentReport]:
    """Return a report for each quarter of a second."""
    return [make_report(quarter / 4 + at, ok, agent=agent, in_flight=in_flight, sample_s=(0.01,) * bool(ok))
            for quarter in range(4 * from_s + 1, 4 * to_s + 1)]  # fmt: skip


def silences(*reports: list[AgentReport]) -> list[tuple[float, float, int]]:
    ordered = sorted((report for group in reports for report in group), key=lambda report: report.at_ns)
    return [(silence.from_s, silence.to_s, silence.waiting) for silence in summarize_reports(*ordered).silences]


def test_waiting_operations_without_end_are_a_silence() -> None:
    assert silences(steady_reports(0, 5, 4), steady_reports(5, 9, 0, 3), steady_reports(9, 12, 4)) == [(5.0, 9.0, 3)]


def test_silence_is_reported_while_it_lasts() -> None:
    assert silences(steady_reports(0, 5, 4), steady_reports(5, 9, 0)) == [(5.0, 9.0, 2)]


def test_pause_without_waiting_operations_is_no_silence() -> None:
    assert silences(steady_reports(0, 5, 4), steady_reports(5, 9, 0, 1), steady_reports(9, 12, 4)) == []


def test_slow_operations_are_no_silence() -> None:
    slow = [make_report(second, 2 * (second % 4 == 0), sample_s=(4.0,) * (second % 4 == 0)) for second in range(1, 41)]
    assert silences(slow) == []


def test_active_agent_ends_silence_and_lost_agent_begins_none() -> None:
    others = steady_reports(0, 12, 4, agent="gw1", at=0.1)
    assert silences(steady_reports(0, 5, 4), steady_reports(5, 12, 0), others) == []
    lost = steady_reports(0, 5, 4, in_flight=9, agent="gw1", at=0.1)
    assert silences(lost, steady_reports(0, 5, 4), steady_reports(5, 9, 0, in_flight=0), steady_reports(9, 12, 4)) == []


def test_paused_machine_is_no_silence() -> None:
    """No report comes for a while, and then all late reports come at once."""
    assert silences(steady_reports(0, 5, 4), [make_report(9.0, 4), make_report(9.01, 4)]) == []


# --- experiments ---


def test_runs_are_lines_and_sides_continue_theirs() -> None:
    digests = LiveDigests()
    for at_s, line in enumerate(("A", "B", "B", "A")):
        digests.begin("t", line, at_s * SECOND)
        digests.take(make_report(at_s + 0.5, 10, sample_s=(0.1,)))
    lines = digests.digests_of("t")
    assert [(name, line.ops) for name, line in lines.items()] == [("B", 20), ("A", 20)]
    assert (digests.latest, digests.version("t"), digests.version("other")) == ("t", 4, None)


def test_former_experiment_keeps_its_figures() -> None:
    digests = LiveDigests()
    digests.begin("t", "run 1", 0)
    digests.take(make_report(0.5, 10, sample_s=(0.1,)))
    digests.begin("u", "run 1", SECOND)
    digests.take(make_report(1.5, 5))
    assert (digests.digests_of("t")["run 1"].ops, digests.digests_of("u")["run 1"].ops) == (10, 5)
    digests.begin("t", "run 1", 2 * SECOND)  # measured again
    digests.take(make_report(2.5, 1))
    assert digests.digests_of("t")["run 1"].ops == 1


def test_only_latest_runs_are_kept() -> None:
    digests = LiveDigests()
    for number in range(30):
        digests.begin("t", f"run {number}", 0)
        digests.take(make_report(0.5, 1))
    assert list(digests.digests_of("t")) == [f"run {number}" for number in range(22, 30)]
