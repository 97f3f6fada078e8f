"""The real suite with the reference client, whose start-up, completion and overhead follow from its protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.fleet.harness import Lab

from .clients import entries_of, run_client_suite

ROUND_TRIP_S = 0.02


@pytest.fixture
def entries(lab: Lab) -> Mapping[str, Mapping[str, Any]]:
    return entries_of(run_client_suite(lab, "sync_performance", "--client", "reference?settle_s=0.3"))


@pytest.mark.slow
def test_measured_traffic_and_times_match_the_protocol(entries: Mapping[str, Mapping[str, Any]]) -> None:
    assert sorted(entries) == ["100x10kB-binary", "10x100kB-binary", "1x100kB-binary", "1x1MB-binary", "1x1MB-text"]
    for info in entries.values():
        assert 0.3 <= info["start_up"] <= 1.5, "it waits for settle_s without a change"
        assert info["tue"] == pytest.approx(info["overhead"] + 1)
        assert 0.036 <= info["overhead"] <= 0.15, "52 bytes of headers for 1448 are 3.6 %"
        assert info["doubts"] == []
        assert info["repeats"] == len(info["transfers"]) == 2
        assert all(item["is_valid"] for item in info["setting"]["captures"])
        assert info["setting"]["link"]["asked"]["up"]["delay_ms"] == 10
        assert info["setting"]["link"]["delivered"]["rtt_ms"] == pytest.approx(20, abs=3)
        assert info["versions"]["reference"]
        assert info["connections"] == 0, "one connection that stays"
    # Without bundling each of a hundred files is answered before the next one: a round trip each.
    assert 100 * ROUND_TRIP_S <= entries["100x10kB-binary"]["completion"] <= 100 * ROUND_TRIP_S * 3
    assert 10 * ROUND_TRIP_S <= entries["10x100kB-binary"]["completion"] <= 10 * ROUND_TRIP_S * 6
    # One file: a few flights of a window that doubles, and the answer.
    assert ROUND_TRIP_S <= entries["1x100kB-binary"]["completion"] <= 20 * ROUND_TRIP_S
    # Without compression, text costs as much as random bytes.
    assert entries["1x1MB-text"]["overhead"] == pytest.approx(entries["1x1MB-binary"]["overhead"], abs=0.03)
    quoted = [item["said"] for item in entries["1x1MB-binary"]["published"]["quoted"]]
    assert "Google Drive 300 ms (15 ms of RTT)" in quoted
    assert entries["1x1MB-text"]["published"]["quoted"] == []
