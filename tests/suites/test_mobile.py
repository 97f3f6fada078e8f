"""The real suite with the reference client: known round trips, and interruptions whose cost follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from pytest_cloudbench import Way, Workload
from pytest_cloudbench.lab.sync.item import LabItem
from pytest_cloudbench.lab.sync.transfers import Transfer
from suites.mobile import test_mobile as mobile
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


class LossyLab:
    """A lab whose client transfers some sets, and not the next one."""

    setting: Mapping[str, Any] = {
        "congestion_control": "cubic", "link": {"delivered": {"rtt_ms": 40.0, "up": {"loss": 0.1}}},
    }  # fmt: skip

    def __init__(self, transfers: list[Transfer]) -> None:
        self.transfers = transfers
        self.concluded: dict[str, Any] = {}

    def rebuild(self, *_: Any, **__: Any) -> None: ...

    def transfer(self, workload: Workload, times: int) -> list[Transfer]:
        return self.transfers

    def doubts(self) -> list[str]:
        return []

    def conclude(self, metrics: Mapping[str, Any], *_: Any, extra: Mapping[str, Any], **__: Any) -> None:
        self.concluded = {**extra, **metrics}


@pytest.mark.parametrize(("is_last_synced", "synced"), [(True, "3 of 3"), (False, "2 of 3")])
def test_times_are_not_known_if_a_transfer_did_not_finish(is_last_synced: bool, synced: str) -> None:
    done = Transfer(1, 1_000_000, start_up_s=0.1, completion_s=2.0, synced_s=2.1, wire_bytes=1_100_000)
    last = done if is_last_synced else Transfer(1, 1_000_000, is_synced=False, error="not after 60 s")
    lossy_lab = LossyLab([done, done, last])
    mobile.conclude_transfers(cast(LabItem, lossy_lab), "quick", Way(20, loss=0.1), ["1 x 1 MB"], {"loss": 0.1}, {})
    times = [lossy_lab.concluded[name] for name in ("start_up", "completion", "overhead", "tue")]
    assert times == (pytest.approx([0.1, 2.0, 0.1, 1.1]) if is_last_synced else [None] * 4)
    assert lossy_lab.concluded["synced"] == synced
