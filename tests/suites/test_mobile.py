"""The real suite with the reference client: known round trips, and interruptions whose cost follows from it."""

from __future__ import annotations

import pytest

from tests.fleet.harness import Lab

from .clients import entries_of, run_client_suite

HALF = 500_000


@pytest.mark.slow
def test_interruption_without_resuming_repeats_the_passed_bytes(lab: Lab) -> None:
    run = run_client_suite(lab, "mobile::test_figure_4", "--client", "reference?retry=3", "-k", "reset")
    (info,) = entries_of(run).values()
    assert info["how_recovered"] == "starts over"
    assert info["passed_bytes"] == info["interrupted_at_byte"] == HALF
    assert HALF <= info["again_bytes"] <= HALF + 300_000, "and what waited in the queue of 250 kB"
    assert info["repeated_share"] == pytest.approx(1, abs=0.03)
    assert 0.5 <= info["recovery_overhead"] <= 0.85
    assert 1.3 <= info["recovery"] <= 5, "a second of patience, and 0.44 s for all of it"
    assert len(run.lines_with("1 x 1 MB  reset    starts over")) == 1


@pytest.mark.slow
def test_a_client_without_another_try_never_recovers(lab: Lab) -> None:
    run = run_client_suite(lab, "mobile::test_figure_4", "--client", "reference", "-k", "reset")
    (info,) = entries_of(run).values()
    assert info["how_recovered"] == "never"
    assert (info["recovery"], info["recovery_overhead"], info["again_bytes"]) == (None, None, None)
    assert run.lines_with("note: reset: reference: ")


@pytest.mark.slow
def test_the_round_trip_is_in_the_completion_of_each_file(lab: Lab) -> None:
    run = run_client_suite(lab, "mobile::test_figure_5", "--client", "reference", "-k", "200ms")
    entries = entries_of(run)
    many, one = entries["10x400kB"], entries["1x4MB"]
    assert 10 * 0.2 <= many["completion"] <= 10 * 0.2 * 3
    assert 0.2 <= one["completion"] <= 6
    for info in (many, one):
        assert info["asked_ms"] == 200
        assert info["delivered_ms"] == pytest.approx(200, abs=21)
        assert info["energy_j"] is None or info["energy_j"] > 0
        assert info["synced"] == "1 of 1"


@pytest.mark.slow
def test_start_and_later_polls_form_one_course(lab: Lab) -> None:
    run = run_client_suite(lab, "mobile::test_figure_2", "--client", "reference?polling=2")
    (info,) = entries_of(run).values()
    started, polled = info["login_traffic"], 1000 * info["idle_kb"]
    assert 1500 < started < 6000, "a TLS handshake and one question"
    assert sum(info["interval_bytes"]) == pytest.approx(started + polled)
    assert len(info["interval_bytes"]) == pytest.approx(info["lasted_s"], abs=2), "an interval is a second here"
    assert sum(map(bool, info["interval_bytes"])) >= 8, "it polls every two seconds"
    assert info["idle_traffic"] == pytest.approx(8 * polled / info["idle_s"])
