"""What was requested of a link, what it delivered, and whether the two agree.

What may live here: values and pure functions from what the echo saw to numbers. No I/O.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from pytest_cloudbench.model import UsageError

_DELAY_SHARE, _DELAY_MS = 0.10, 1.0
_JITTER_SHARE, _JITTER_MS = 0.30, 1.0
_LOSS_SIGMAS = 3.3
_RATE_SHARE = 0.10
_QUEUE_S, _QUEUE_MIN_BYTES = 0.1, 64 * 1024
_PROBE_IP_BYTES = 48
_PROBES_S = 4.0
_STREAM_LEAST_BYTES = 30_000
_TRAIN_S, _TRAIN_JITTERS, _TRAIN_FASTER = 0.3, 8, 1.25
_TRAIN_LEAST, _TRAIN_PACKETS, _TRAIN_MOST, _TRAIN_IP_BYTES = 25, 80, 20_000, (128, 1200)
_UDP_HEADER_BYTES = 28


@dataclass(frozen=True, slots=True)
class Way:
    """What is requested of one direction. Delay is one way: a round trip takes the delays of both directions.

    Raises UsageError for a value that no link can have.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """Uniform, up to this much more or less than the delay; at most the delay."""
    loss: float = 0.0
    """Share of packets, independent of each other."""
    rate_bit_per_s: float | None = None
    """Of IP packets; None: as fast as possible."""
    queue_bytes: int | None = None
    """What may wait before the rate limit, as in a router; more is dropped. None: 100 ms of the rate, or 64 KiB."""

    def __post_init__(self) -> None:
        """Check the values."""
        wrong = [
            text
            for is_right, text in (
                (all(map(_is_finite, astuple(self))), "every value is a finite number"),
                (self.delay_ms >= 0, "delay_ms is negative"),
                (0 <= self.jitter_ms <= self.delay_ms, "jitter_ms is not between 0 and delay_ms"),
                (0 <= self.loss < 1, "loss is a share, from 0 to below 1"),
                (self.rate_bit_per_s is None or self.rate_bit_per_s > 0, "rate_bit_per_s is not positive"),
                (self.queue_bytes is None or self.queue_bytes > 0, "queue_bytes is not positive"),
            )
            if not is_right
        ]
        if wrong:
            raise UsageError(f"link: {'; '.join(wrong)}")

    def settings(self) -> dict[str, Any]:
        """As plain data, with the queue size in use."""
        queue_bytes = self.queue_bytes
        if queue_bytes is None:
            queue_bytes = max(_QUEUE_MIN_BYTES, int((self.rate_bit_per_s or 0) / 8 * _QUEUE_S))
        return {**asdict(self), "queue_bytes": queue_bytes}


@dataclass(frozen=True, slots=True)
class DeliveredWay:
    """What one direction delivered to the probes. None: not known, because nothing arrived or it was not measured."""

    delay_ms: float | None
    """Median, one way."""
    jitter_ms: float | None
    """Half the width of a uniform distribution with the same median absolute deviation: rare pauses do not count."""
    delay_p99_ms: float | None
    """The 99th percentile of the probes: rare pauses of this machine show here."""
    sent: int
    arrived: int
    loss: float | None
    goodput_bit_per_s: float | None
    """Payload of one TCP stream, from its first to its last byte."""
    throughput_bit_per_s: float | None
    """The same with IP and TCP headers. A short stream is slower than its link: it starts slowly."""
    rate_bit_per_s: float | None
    """What the link carries, of IP packets: measured by datagrams that come faster than it lets them through."""
    stream_bytes: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a link delivered; ``off`` names each figure outside its tolerance.

    Tolerances: delay and round trip 10 % + 1 ms, jitter 30 % + 1 ms, loss 3.3 standard deviations of the number of
    probes, rate 10 % (not judged if a loss is requested: what is lost does not arrive). Packets that the forwarder was
    too late to read are always named.
    """

    rtt_ms: float | None
    """Median round trip of an idle link."""
    rtt_mad_ms: float | None
    """Median absolute deviation of the same."""
    up: DeliveredWay
    down: DeliveredWay
    off: tuple[str, ...]

    @property
    def is_as_asked(self) -> bool:
        """Whether everything that was measured is within its tolerance."""
        return not self.off

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _idle_delay_ms(way: Way) -> float:
    """How long a probe takes on an idle link: at a low rate, sending its own bits takes most of that."""
    return way.delay_ms + (_PROBE_IP_BYTES * 8e3 / way.rate_bit_per_s if way.rate_bit_per_s else 0.0)


def stream_bytes(way: Way, stream_s: float) -> int | None:
    """The most a stream may send, so that a slow link drains quickly; None for no bound."""
    return max(_STREAM_LEAST_BYTES, int(way.rate_bit_per_s / 8 * stream_s)) if way.rate_bit_per_s else None


def train_settings(way: Way, back: Way) -> dict[str, float] | None:
    """How many datagrams measure the rate of a direction, how large and how far apart; None if it has no rate.

    They come a quarter faster than the rate, so a queue forms and spaces them at the rate. Unlike a stream they need no
    time to speed up, however long the round trip is. There are enough of them to even out jitter.
    """
    if not way.rate_bit_per_s:
        return None
    seconds = max(_TRAIN_S, _TRAIN_JITTERS * way.jitter_ms / 1000)
    low, high = _TRAIN_IP_BYTES
    ip_bytes = int(min(high, max(low, way.rate_bit_per_s * seconds / 8 / _TRAIN_PACKETS)))
    spacing_s = ip_bytes * 8 / way.rate_bit_per_s / _TRAIN_FASTER
    return {
        "count": min(_TRAIN_MOST, max(_TRAIN_LEAST, math.ceil(seconds / spacing_s))),
        "size_bytes": ip_bytes - _UDP_HEADER_BYTES,
        "spacing_s": spacing_s,
        "wait_s": sum(each.delay_ms + each.jitter_ms for each in (way, back)) / 1000 + 0.5 + 3 * spacing_s,
    }


def train_rate(arrived_ns: Sequence[int], size_bytes: int) -> float | None:
    """Bits per second of IP packets, from when datagrams of one size arrived; None for too few of them.

    The median over all pairs with a quarter of the others in between: a pause of the sender or forwarder affects only a
    minority of these pairs.
    """
    times_ns, lag = sorted(arrived_ns), len(arrived_ns) // 4
    if len(times_ns) < _TRAIN_LEAST // 2:
        return None
    apart_ns = statistics.median(late - early for early, late in zip(times_ns, times_ns[lag:], strict=False))
    return lag * (size_bytes + _UDP_HEADER_BYTES) * 8e9 / apart_ns if apart_ns else None


def probe_settings(ways: Sequence[Way]) -> dict[str, dict[str, float]]:
    """How many datagrams to send, how fast, and how long to wait: few and far apart for delays, many for loss."""
    jitter_s = max(way.jitter_ms for way in ways) / 1000
    wait_s = sum(way.delay_ms + way.jitter_ms for way in ways) / 1000 + 0.3
    slowest = min((way.rate_bit_per_s for way in ways if way.rate_bit_per_s), default=math.inf)
    # A quarter of the rate, so that probes do not queue; further apart than jitter, so that none waits for another.
    spacing_s = max(0.0005, _PROBE_IP_BYTES * 8 * 4 / slowest)
    apart_s = max(0.004, 2.5 * jitter_s, spacing_s)
    most = 2000 if any(way.loss for way in ways) else 500
    return {
        "delay": {"count": max(10, min(60, int(_PROBES_S / apart_s))), "spacing_s": apart_s, "wait_s": wait_s},
        "loss": {"count": max(20, min(most, int(_PROBES_S / spacing_s))), "spacing_s": spacing_s, "wait_s": wait_s},
    }


def _median_ms(values_ns: Sequence[float]) -> float | None:
    return statistics.median(values_ns) / 1e6 if values_ns else None


def _deviation_ms(values_ns: Sequence[float]) -> float | None:
    """Median absolute deviation."""
    if not values_ns:
        return None
    middle = statistics.median(values_ns)
    return _median_ms([abs(value - middle) for value in values_ns])


def _is_off(name: str, unit: str, asked: float, got: float | None, share: float, plus: float) -> list[str]:
    if got is None:
        return [f"{name}: {asked:g} {unit} asked, not measured"]
    return [] if abs(got - asked) <= asked * share + plus else [f"{name}: {asked:g} {unit} asked, {got:.4g} delivered"]


def _way(
    name: str, way: Way, delays_ns: Sequence[int], sent: int, arrived: int, seen: Mapping[str, Any]
) -> tuple[DeliveredWay, list[str]]:
    deviation_ms = _deviation_ms(delays_ns)
    jitter_ms = None if deviation_ms is None else 2 * deviation_ms
    goodput = throughput = None
    stream: Mapping[str, float] | None = seen.get(name)
    if stream and stream["seconds"] > 0:
        goodput = stream["timed_bytes"] * 8 / stream["seconds"]
        throughput = goodput * stream["overhead"]
    got = DeliveredWay(
        delay_ms=_median_ms(delays_ns),
        jitter_ms=jitter_ms,
        delay_p99_ms=sorted(delays_ns)[math.ceil(len(delays_ns) * 0.99) - 1] / 1e6 if delays_ns else None,
        sent=sent,
        arrived=arrived,
        loss=1 - arrived / sent if sent else None,
        goodput_bit_per_s=goodput,
        throughput_bit_per_s=throughput,
        rate_bit_per_s=seen.get("rates", {}).get(name),
        stream_bytes=int(stream["bytes"]) if stream else 0,
    )
    off = _is_off(f"{name} delay", "ms", _idle_delay_ms(way), got.delay_ms, _DELAY_SHARE, _DELAY_MS)
    off += _is_off(f"{name} jitter", "ms", way.jitter_ms, jitter_ms, _JITTER_SHARE, _JITTER_MS)
    bound = _LOSS_SIGMAS * math.sqrt(sent * way.loss * (1 - way.loss))
    if abs(sent - arrived - sent * way.loss) > bound:
        off.append(f"{name} loss: {way.loss:g} asked, {sent - arrived} of {sent} lost")
    # At a Gbit/s and more, datagrams may be too many to handle; a stream of larger packets may still show the rate.
    if way.rate_bit_per_s and name in seen.get("rates", {}) and not is_rate(way, throughput):
        off += _is_off(f"{name} rate", "bit/s", way.rate_bit_per_s, got.rate_bit_per_s, _RATE_SHARE, 0.0)
    return got, off


def is_rate(way: Way, got_bit_per_s: float | None) -> bool:
    """Whether a rate is the requested one, within the tolerance."""
    asked = way.rate_bit_per_s
    return asked is None or (got_bit_per_s is not None and abs(got_bit_per_s - asked) <= _RATE_SHARE * asked)


def judged(up: Way, down: Way, seen: Mapping[str, Any]) -> Delivered:
    """Numbers from what was seen: ``delay`` and ``loss`` of the datagrams, ``up`` and ``down`` of the streams.

    ``rates`` has what ``train_rate`` says about each direction whose rate was measured; ``missed`` has the packets that
    came too fast for the forwarder, by direction.
    """
    delay, loss = seen["delay"], seen["loss"]
    round_ns = [there + back for there, back in zip(delay["up_ns"], delay["down_ns"], strict=True)]
    rtt_ms = _median_ms(round_ns)
    is_rate_known = not (up.loss or down.loss)
    ways = []
    off: list[str] = []
    for name, way, sent, arrived in (
        ("up", up, loss["sent"], loss["arrived"]),
        ("down", down, loss["arrived"], loss["back"]),
    ):
        got, wrong = _way(name, way, delay[f"{name}_ns"], sent, arrived, seen)
        ways.append(got)
        off += [text for text in wrong if is_rate_known or " rate: " not in text]
    off += [f"{name}: the forwarder missed {count} packets" for name, count in seen["missed"].items() if count]
    off += _is_off("round trip", "ms", _idle_delay_ms(up) + _idle_delay_ms(down), rtt_ms, _DELAY_SHARE, _DELAY_MS)
    return Delivered(rtt_ms, _deviation_ms(round_ns), ways[0], ways[1], tuple(off))
