"""Judging a link: what was put in is found, and a link that is not as asked is flagged."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cloudbench.link import Way
from pytest_cloudbench.link.delivered import judged, probe_settings
from pytest_cloudbench.model import UsageError

STREAM = {"bytes": 1_000_000, "timed_bytes": 1_000_000, "seconds": 0.8, "overhead": 1.04}


def seen(**changes: Any) -> dict[str, Any]:
    """Ten probes of 20 ms up and 5 ms down, all of a thousand there and back."""
    return {
        "delay": {"up_ns": [20_000_000] * 10, "down_ns": [5_000_000] * 10},
        "loss": {"sent": 1000, "arrived": 1000, "back": 1000},
        "missed": {"up": 0, "down": 0},
        **changes,
    }


UP, DOWN = Way(delay_ms=20), Way(delay_ms=5)


def test_a_link_as_asked() -> None:
    got = judged(UP, DOWN, seen(up=STREAM, down=STREAM))
    assert got.is_as_asked
    assert (got.rtt_ms, got.up.delay_ms, got.down.delay_ms, got.up.jitter_ms) == (25.0, 20.0, 5.0, 0.0)
    assert got.up.goodput_bit_per_s == pytest.approx(10e6)
    assert got.up.throughput_bit_per_s == pytest.approx(10.4e6)
    assert got.as_dict()["down"]["sent"] == 1000


@pytest.mark.parametrize(
    ("up", "changes", "word"),
    [
        (Way(delay_ms=30), {}, "up delay"),
        (Way(delay_ms=20, jitter_ms=10), {}, "up jitter"),
        (Way(delay_ms=20, loss=0.05), {}, "up loss"),
        (UP, {"loss": {"sent": 1000, "arrived": 999, "back": 999}}, "up loss"),
        (UP, {"loss": {"sent": 1000, "arrived": 1000, "back": 999}}, "down loss"),
        (Way(delay_ms=20, rate_bit_per_s=5e6), {"up": STREAM}, "up rate"),
        (UP, {"missed": {"up": 3, "down": 0}}, "missed 3"),
        (UP, {"delay": {"up_ns": [], "down_ns": []}}, "not measured"),
    ],
)
def test_a_link_that_is_not_as_asked(up: Way, changes: dict[str, Any], word: str) -> None:
    got = judged(up, DOWN, seen(**changes))
    assert any(word in text for text in got.off), got.off


def test_a_rate_below_loss_is_not_judged() -> None:
    loss = {"sent": 1000, "arrived": 950, "back": 950}
    assert judged(Way(delay_ms=20, loss=0.05, rate_bit_per_s=50e6), DOWN, seen(loss=loss, up=STREAM)).is_as_asked


def test_rare_pauses_are_no_jitter_but_are_shown() -> None:
    delays = {"up_ns": [20_000_000] * 9 + [90_000_000], "down_ns": [5_000_000] * 10}
    got = judged(UP, DOWN, seen(delay=delays))
    assert got.up.jitter_ms == 0
    assert got.up.delay_p99_ms == 90


def test_probes_take_a_quarter_of_a_slow_link() -> None:
    settings = probe_settings((Way(rate_bit_per_s=64_000), Way()))["loss"]
    assert settings["spacing_s"] == pytest.approx(48 * 8 * 4 / 64_000)
    assert settings["count"] * settings["spacing_s"] <= 4.1


@pytest.mark.parametrize(
    "wrong",
    [{"delay_ms": -1}, {"jitter_ms": 1}, {"loss": 1.0}, {"loss": -0.1}, {"rate_bit_per_s": 0}, {"queue_bytes": 0}],
)
def test_no_link_has_these(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Way(**wrong)


def test_the_queue_is_a_tenth_of_a_second_of_the_rate() -> None:
    assert Way(rate_bit_per_s=80e6).settings()["queue_bytes"] == 1_000_000
    assert Way(rate_bit_per_s=80e6, queue_bytes=7).settings()["queue_bytes"] == 7
    assert Way(rate_bit_per_s=1e6).settings()["queue_bytes"] == 65536
