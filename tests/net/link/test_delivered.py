"""Judging a link: known values are found, and a link that is not as requested is flagged."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.link import Way
from pytest_cloudbench.net.link.delivered import (
    choose_probe_settings,
    choose_train_settings,
    compute_train_rate,
    judge_delivery,
    limit_stream_bytes,
)

STREAM = {"bytes": 1_000_000, "timed_bytes": 1_000_000, "seconds": 0.8, "overhead": 1.04}


def make_measurements(**changes: Any) -> dict[str, Any]:
    """Return the measurements of a link with 20 ms up, 5 ms down and no loss.

    There are ten probes of the delay and a thousand of the loss.
    """
    return {
        "delay": {"up_ns": [20_000_000] * 10, "down_ns": [5_000_000] * 10},
        "loss": {"sent": 1000, "arrived": 1000, "back": 1000},
        "missed": {"up": 0, "down": 0},
        **changes,
    }


UP, DOWN = Way(delay_ms=20), Way(delay_ms=5)


def test_a_link_as_requested_is_accepted() -> None:
    delivered = judge_delivery(UP, DOWN, make_measurements(up=STREAM, down=STREAM))
    assert delivered.is_as_asked
    assert (delivered.rtt_ms, delivered.up.delay_ms, delivered.down.delay_ms, delivered.up.jitter_ms) == (
        25.0,
        20.0,
        5.0,
        0.0,
    )
    assert delivered.up.goodput_bit_per_s == pytest.approx(10e6)
    assert delivered.up.throughput_bit_per_s == pytest.approx(10.4e6)
    assert delivered.as_dict()["down"]["sent"] == 1000


@pytest.mark.parametrize(
    ("up", "changes", "word"),
    [
        (Way(delay_ms=30), {}, "up delay"),
        (Way(delay_ms=20, jitter_ms=10), {}, "up jitter"),
        (Way(delay_ms=20, loss=0.05), {}, "up loss"),
        (UP, {"loss": {"sent": 1000, "arrived": 999, "back": 999}}, "up loss"),
        (UP, {"loss": {"sent": 1000, "arrived": 1000, "back": 999}}, "down loss"),
        (Way(delay_ms=20, rate_bit_per_s=5e6), {"rates": {"up": 10e6}}, "up rate"),
        (Way(delay_ms=20, rate_bit_per_s=5e6), {"rates": {"up": None}}, "up rate: 5e+06 bit/s requested, not measured"),
        (Way(delay_ms=20, rate_bit_per_s=21e6), {"rates": {"up": 10e6}, "up": STREAM}, "up rate"),
        (UP, {"missed": {"up": 3, "down": 0}}, "missed 3"),
        (UP, {"delay": {"up_ns": [], "down_ns": []}}, "not measured"),
    ],
)
def test_each_deviation_is_reported(up: Way, changes: dict[str, Any], word: str) -> None:
    delivered = judge_delivery(up, DOWN, make_measurements(**changes))
    assert any(word in text for text in delivered.off), delivered.off


def test_the_rate_is_not_judged_under_loss() -> None:
    loss = {"sent": 1000, "arrived": 950, "back": 950}
    lossy = Way(delay_ms=20, loss=0.05, rate_bit_per_s=50e6)
    assert judge_delivery(lossy, DOWN, make_measurements(loss=loss, up=STREAM, rates={"up": 40e6})).is_as_asked


def test_a_slow_start_does_not_make_a_link_slow() -> None:
    link = Way(delay_ms=20, rate_bit_per_s=12e6)
    delivered = judge_delivery(link, DOWN, make_measurements(up=STREAM, rates={"up": 11.9e6}))
    assert delivered.is_as_asked
    assert delivered.up.throughput_bit_per_s == pytest.approx(10.4e6)
    assert delivered.up.rate_bit_per_s == 11.9e6


def test_a_rate_reached_only_by_a_stream_counts() -> None:
    link = Way(delay_ms=20, rate_bit_per_s=10e6)
    assert judge_delivery(link, DOWN, make_measurements(up=STREAM, rates={"up": 7e6})).is_as_asked


SECONDS = 1_000_000_000


@pytest.mark.parametrize("rate_bit_per_s", [9_600, 500e3, 12e6, 200e6])
def test_a_train_shows_the_rate_through_pauses_and_jitter(rate_bit_per_s: float) -> None:
    way = Way(delay_ms=30, rate_bit_per_s=rate_bit_per_s)
    settings = choose_train_settings(way, way)
    assert settings is not None
    count, size = int(settings["count"]), int(settings["size_bytes"])
    interval_ns = (size + 28) * 8 * SECONDS / rate_bit_per_s
    assert settings["spacing_s"] * SECONDS == pytest.approx(interval_ns / 1.25)
    steady_ns = [round(number * interval_ns) for number in range(count)]
    assert compute_train_rate(steady_ns, size) == pytest.approx(rate_bit_per_s, rel=0.01)
    paused_ns = [
        time_ns + round(count / 10 * interval_ns) * (number > count // 3) for number, time_ns in enumerate(steady_ns)
    ]
    assert compute_train_rate(paused_ns, size) == pytest.approx(rate_bit_per_s, rel=0.05)
    truncated_ns = steady_ns[: count * 3 // 4]
    assert compute_train_rate(truncated_ns, size) == pytest.approx(rate_bit_per_s, rel=0.05)
    assert compute_train_rate(steady_ns[:5], size) is None
    assert compute_train_rate([0] * count, size) is None


def test_no_rate_needs_no_train() -> None:
    assert choose_train_settings(Way(delay_ms=30), Way()) is None


def test_rare_pauses_show_in_p99_and_not_in_jitter() -> None:
    delays = {"up_ns": [20_000_000] * 9 + [90_000_000], "down_ns": [5_000_000] * 10}
    delivered = judge_delivery(UP, DOWN, make_measurements(delay=delays))
    assert delivered.up.jitter_ms == 0
    assert delivered.up.delay_p99_ms == 90


def test_probes_use_a_quarter_of_a_slow_link() -> None:
    settings = choose_probe_settings((Way(rate_bit_per_s=64_000), Way()))["loss"]
    assert settings["spacing_s"] == pytest.approx(48 * 8 * 4 / 64_000)
    assert settings["count"] * settings["spacing_s"] <= 4.1


def test_sending_a_probes_bits_is_expected_delay() -> None:
    slow = Way(rate_bit_per_s=64_000)
    delays = {"up_ns": [6_200_000] * 10, "down_ns": [6_200_000] * 10}
    assert judge_delivery(slow, slow, make_measurements(delay=delays)).is_as_asked
    delivered = judge_delivery(
        slow, slow, make_measurements(delay={"up_ns": [100_000] * 10, "down_ns": [6_200_000] * 10})
    )
    assert [text.partition(":")[0] for text in delivered.off] == ["up delay", "round trip"]


def test_stream_bytes_are_bounded_by_the_rate() -> None:
    assert limit_stream_bytes(Way(rate_bit_per_s=8e6), 0.5) == 500_000
    assert limit_stream_bytes(Way(rate_bit_per_s=9_600), 1.0) == 30_000
    assert limit_stream_bytes(Way(delay_ms=10), 1.0) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay_ms": -1},
        {"jitter_ms": 1},
        {"loss": 1.0},
        {"loss": -0.1},
        {"rate_bit_per_s": 0},
        {"queue_bytes": 0},
        {"delay_ms": math.inf},
        {"rate_bit_per_s": math.inf},
        {"queue_bytes": math.nan},
    ],
)
def test_impossible_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wrong))}|finite"):
        Way(**wrong)


def test_the_default_queue_is_100_ms_of_the_rate() -> None:
    assert Way(rate_bit_per_s=80e6).settings()["queue_bytes"] == 1_000_000
    assert Way(rate_bit_per_s=80e6, queue_bytes=7).settings()["queue_bytes"] == 7
    assert Way(rate_bit_per_s=1e6).settings()["queue_bytes"] == 65536
