"""Comparison of what a link was asked for with what it delivered, as pure functions of the echo's measurements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.support.wording import format_count

_DELAY_SHARE, _DELAY_MS = 0.10, 1.0
_JITTER_SHARE, _JITTER_MS = 0.30, 1.0
_LOSS_SIGMAS = 3.3
_RATE_SHARE = 0.10
_QUEUE_S, _QUEUE_MIN_BYTES = 0.1, 64 * 1024
_PROBE_IP_BYTES = 48
_PROBES_S = 4.0
_MIN_STREAM_BYTES = 30_000
_TRAIN_S, _TRAIN_JITTERS, _TRAIN_FASTER = 0.3, 8, 1.25
_MIN_TRAIN, _TRAIN_PACKETS, _MAX_TRAIN, _TRAIN_IP_BYTES = 25, 80, 20_000, (128, 1200)
_UDP_HEADER_BYTES = 28


@dataclass(frozen=True, slots=True)
class Way:
    """The requested properties of one direction. A round trip takes the delays of both directions.

    Raises UsageError for impossible values.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """Uniform deviation from the delay, by up to this much either way. At most the delay."""
    loss: float = 0.0
    """Share of packets lost, independent of each other."""
    rate_bit_per_s: float | None = None
    """Rate of IP packets, or None for no limit."""
    queue_bytes: int | None = None
    """Capacity of the queue before the rate limit, as in a router. None for 100 ms of the rate, at least 64 KiB."""

    def __post_init__(self) -> None:
        """Check the values."""
        problems = [
            text
            for is_right, text in (
                (all(map(_is_finite, astuple(self))), "every value must be a finite number"),
                (self.delay_ms >= 0, "delay_ms is negative"),
                (0 <= self.jitter_ms <= self.delay_ms, "jitter_ms is not between 0 and delay_ms"),
                (0 <= self.loss < 1, "loss must be a share from 0 to below 1"),
                (self.rate_bit_per_s is None or self.rate_bit_per_s > 0, "rate_bit_per_s is not positive"),
                (self.queue_bytes is None or self.queue_bytes > 0, "queue_bytes is not positive"),
            )
            if not is_right
        ]
        if problems:
            raise UsageError(f"link: {'; '.join(problems)}")

    def settings(self) -> dict[str, Any]:
        """Return the values as plain data, with the actual queue size."""
        queue_bytes = self.queue_bytes
        if queue_bytes is None:
            queue_bytes = max(_QUEUE_MIN_BYTES, int((self.rate_bit_per_s or 0) / 8 * _QUEUE_S))
        return {**asdict(self), "queue_bytes": queue_bytes}


@dataclass(frozen=True, slots=True)
class DeliveredWay:
    """The measured properties of one direction. None means unknown: nothing arrived, or it was not measured."""

    delay_ms: float | None
    """Median one-way delay."""
    jitter_ms: float | None
    """Half the width of the uniform distribution with the same median absolute deviation. It ignores rare pauses."""
    delay_p99_ms: float | None
    """99th percentile of one-way delay, which shows rare pauses of this machine."""
    sent: int
    arrived: int
    loss: float | None
    goodput_bit_per_s: float | None
    """Payload rate of one TCP stream, from its first to its last byte."""
    throughput_bit_per_s: float | None
    """The same with IP and TCP headers. A short stream is slower than its link because it starts slowly."""
    rate_bit_per_s: float | None
    """Rate of IP packets, measured by sending datagrams faster than the link can carry them."""
    stream_bytes: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """The measured properties of a link. ``off`` describes each one outside its tolerance.

    Tolerances: delay and round trip 10 % + 1 ms, jitter 30 % + 1 ms, loss 3.3 standard deviations of the number of
    probes, rate 10 %. The rate is not judged if a loss is requested, because lost packets do not arrive. Packets that
    the forwarder read too late are always reported.
    """

    rtt_ms: float | None
    """Median round trip on the idle link."""
    rtt_mad_ms: float | None
    """Median absolute deviation of the round trip."""
    up: DeliveredWay
    down: DeliveredWay
    off: tuple[str, ...]

    @property
    def is_as_asked(self) -> bool:
        """True if everything measured is within its tolerance."""
        return not self.off

    def as_dict(self) -> dict[str, Any]:
        """Return the values as plain data."""
        return asdict(self)


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _expected_delay_ms(way: Way) -> float:
    """Return the delay of a probe on an idle link. At a low rate, most of it is sending the probe's own bits."""
    return way.delay_ms + (_PROBE_IP_BYTES * 8e3 / way.rate_bit_per_s if way.rate_bit_per_s else 0.0)


def limit_stream_bytes(way: Way, stream_s: float) -> int | None:
    """Return the most bytes a stream may send, so that a slow link drains quickly, or None for no limit."""
    return max(_MIN_STREAM_BYTES, int(way.rate_bit_per_s / 8 * stream_s)) if way.rate_bit_per_s else None


def choose_train_settings(way: Way, back: Way) -> dict[str, float] | None:
    """Return the number, size and spacing of datagrams that measure a direction's rate, or None if it has no rate.

    They are sent a quarter faster than the rate, so a queue forms and spaces them at the rate. Unlike a stream, they
    need no time to speed up, however long the round trip is. There are enough of them to average out jitter.
    """
    if not way.rate_bit_per_s:
        return None
    seconds = max(_TRAIN_S, _TRAIN_JITTERS * way.jitter_ms / 1000)
    min_bytes, max_bytes = _TRAIN_IP_BYTES
    ip_bytes = int(min(max_bytes, max(min_bytes, way.rate_bit_per_s * seconds / 8 / _TRAIN_PACKETS)))
    spacing_s = ip_bytes * 8 / way.rate_bit_per_s / _TRAIN_FASTER
    return {
        "count": min(_MAX_TRAIN, max(_MIN_TRAIN, math.ceil(seconds / spacing_s))),
        "size_bytes": ip_bytes - _UDP_HEADER_BYTES,
        "spacing_s": spacing_s,
        "wait_s": sum(each_way.delay_ms + each_way.jitter_ms for each_way in (way, back)) / 1000 + 0.5 + 3 * spacing_s,
    }


def compute_train_rate(arrived_ns: Sequence[int], size_bytes: int) -> float | None:
    """Return bits per second of IP packets from the arrival times of equal datagrams, or None if too few arrived.

    It is the median over all pairs that are a quarter of the train apart, because a pause of the sender or forwarder
    affects only a minority of these pairs.
    """
    times_ns, lag = sorted(arrived_ns), len(arrived_ns) // 4
    if len(times_ns) < _MIN_TRAIN // 2:
        return None
    gap_ns = statistics.median(later - earlier for earlier, later in zip(times_ns, times_ns[lag:], strict=False))
    return lag * (size_bytes + _UDP_HEADER_BYTES) * 8e9 / gap_ns if gap_ns else None


def choose_probe_settings(ways: Sequence[Way]) -> dict[str, dict[str, float]]:
    """Return the number and spacing of datagrams, and the time to wait: few and sparse for delay, many for loss."""
    jitter_s = max(way.jitter_ms for way in ways) / 1000
    wait_s = sum(way.delay_ms + way.jitter_ms for way in ways) / 1000 + 0.3
    slowest_bit_per_s = min((way.rate_bit_per_s for way in ways if way.rate_bit_per_s), default=math.inf)
    # At a quarter of the rate, probes do not queue. Delay probes are spaced by more than the jitter, so that none waits
    # for the one before it.
    loss_spacing_s = max(0.0005, _PROBE_IP_BYTES * 8 * 4 / slowest_bit_per_s)
    delay_spacing_s = max(0.004, 2.5 * jitter_s, loss_spacing_s)
    max_probes = 2000 if any(way.loss for way in ways) else 500
    delay_count = max(10, min(60, int(_PROBES_S / delay_spacing_s)))
    loss_count = max(20, min(max_probes, int(_PROBES_S / loss_spacing_s)))
    return {
        "delay": {"count": delay_count, "spacing_s": delay_spacing_s, "wait_s": wait_s},
        "loss": {"count": loss_count, "spacing_s": loss_spacing_s, "wait_s": wait_s},
    }


def _median_ms(values_ns: Sequence[float]) -> float | None:
    return statistics.median(values_ns) / 1e6 if values_ns else None


def _median_deviation_ms(values_ns: Sequence[float]) -> float | None:
    """Return the median absolute deviation."""
    if not values_ns:
        return None
    median_ns = statistics.median(values_ns)
    return _median_ms([abs(value - median_ns) for value in values_ns])


def _describe_deviation(
    name: str, unit: str, requested: float, delivered: float | None, relative_tolerance: float, tolerance: float
) -> list[str]:
    if delivered is None:
        return [f"{name}: {requested:g} {unit} requested, not measured"]
    if abs(delivered - requested) <= requested * relative_tolerance + tolerance:
        return []
    return [f"{name}: {requested:g} {unit} requested, {delivered:.4g} delivered"]


def _judge_way(
    name: str, way: Way, delays_ns: Sequence[int], sent: int, arrived: int, measured: Mapping[str, Any]
) -> tuple[DeliveredWay, list[str]]:
    deviation_ms = _median_deviation_ms(delays_ns)
    jitter_ms = None if deviation_ms is None else 2 * deviation_ms
    goodput = throughput = None
    stream: Mapping[str, float] | None = measured.get(name)
    if stream and stream["seconds"] > 0:
        goodput = stream["timed_bytes"] * 8 / stream["seconds"]
        throughput = goodput * stream["overhead"]
    delivered = DeliveredWay(
        delay_ms=_median_ms(delays_ns),
        jitter_ms=jitter_ms,
        delay_p99_ms=sorted(delays_ns)[math.ceil(len(delays_ns) * 0.99) - 1] / 1e6 if delays_ns else None,
        sent=sent,
        arrived=arrived,
        loss=1 - arrived / sent if sent else None,
        goodput_bit_per_s=goodput,
        throughput_bit_per_s=throughput,
        rate_bit_per_s=measured.get("rates", {}).get(name),
        stream_bytes=int(stream["bytes"]) if stream else 0,
    )
    delay_ms = delivered.delay_ms
    deviations = _describe_deviation(f"{name} delay", "ms", _expected_delay_ms(way), delay_ms, _DELAY_SHARE, _DELAY_MS)
    deviations += _describe_deviation(f"{name} jitter", "ms", way.jitter_ms, jitter_ms, _JITTER_SHARE, _JITTER_MS)
    tolerance = _LOSS_SIGMAS * math.sqrt(sent * way.loss * (1 - way.loss))
    if abs(sent - arrived - sent * way.loss) > tolerance:
        deviations.append(f"{name} loss: {way.loss:g} requested, {sent - arrived} of {sent} lost")
    # From about 1 Gbit/s, the datagrams may be too many to handle, but a stream of larger packets can show the rate.
    if way.rate_bit_per_s and name in measured.get("rates", {}) and not matches_rate(way, throughput):
        rate = delivered.rate_bit_per_s
        deviations += _describe_deviation(f"{name} rate", "bit/s", way.rate_bit_per_s, rate, _RATE_SHARE, 0.0)
    return delivered, deviations


def describe_missed(missed: Mapping[str, int]) -> list[str]:
    """Return in words how many packets of each direction came too fast for the forwarder."""
    counts = missed.items()
    return [f"{name}: the forwarder missed {format_count(count, 'packet')}" for name, count in counts if count]


def matches_rate(way: Way, delivered_bit_per_s: float | None) -> bool:
    """Return whether a rate is the requested one, within the tolerance."""
    requested_bit_per_s = way.rate_bit_per_s
    return requested_bit_per_s is None or (
        delivered_bit_per_s is not None
        and abs(delivered_bit_per_s - requested_bit_per_s) <= _RATE_SHARE * requested_bit_per_s
    )


def judge_delivery(up: Way, down: Way, measured: Mapping[str, Any]) -> Delivered:
    """Compare a link's measurements with the request.

    ``measured`` holds ``delay`` and ``loss`` of the datagrams, ``up`` and ``down`` of the streams, ``rates`` with the
    result of ``compute_train_rate`` for each direction whose rate was measured, and ``missed`` with the packets that
    came too fast for the forwarder.
    """
    delay, loss = measured["delay"], measured["loss"]
    round_ns = [up_ns + down_ns for up_ns, down_ns in zip(delay["up_ns"], delay["down_ns"], strict=True)]
    rtt_ms = _median_ms(round_ns)
    is_rate_known = not (up.loss or down.loss)
    ways = []
    deviations: list[str] = []
    for name, way, sent, arrived in (
        ("up", up, loss["sent"], loss["arrived"]),
        ("down", down, loss["arrived"], loss["back"]),
    ):
        delivered, way_deviations = _judge_way(name, way, delay[f"{name}_ns"], sent, arrived, measured)
        ways.append(delivered)
        deviations += [text for text in way_deviations if is_rate_known or " rate: " not in text]
    deviations += describe_missed(measured["missed"])
    expected_ms = _expected_delay_ms(up) + _expected_delay_ms(down)
    deviations += _describe_deviation("round trip", "ms", expected_ms, rtt_ms, _DELAY_SHARE, _DELAY_MS)
    return Delivered(rtt_ms, _median_deviation_ms(round_ns), ways[0], ways[1], tuple(deviations))
