"""Beginnings of flows: many read at once equal each read alone."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pytest_cloudbench.net.traffic import analyze, streams
from tests.net.traffic import craft, paths


def make_datagrams(seed: int) -> bytes:
    """Return datagrams of few flows. Many are empty, and some are cut by the snap length."""
    draw, frames = random.Random(seed), list[craft.Record]()
    for number in range(500):
        ends = [("10.0.0.1", 5000 + draw.randrange(9)), ("10.0.0.9", 443)]
        (source, source_port), (target, target_port) = ends if draw.random() < 0.5 else ends[::-1]
        data = draw.randbytes(draw.choice([0, 0, 0, 5, 300]))
        frames.append((craft.START_NS + number, craft.udp(source, source_port, target, target_port, data)))
    return craft.pcap(frames, snaplen=draw.choice([100, 1000]))


@pytest.mark.parametrize("few_rows", [1, 5, 64])
@pytest.mark.parametrize("make", [paths.capture, make_datagrams])
@pytest.mark.parametrize("seed", range(3))
def test_beginnings_of_many_flows_are_those_of_each(
    seed: int, make: Callable[[int], bytes], few_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_FEW_ROWS", few_rows)
    monkeypatch.setattr(streams, "_FLOWS_AT_ONCE", 7)
    data = make(seed)
    table = analyze(data).table
    numbers = table.numbers.tolist()[::-1]

    def read_singly(number: int, up: bool, limit: int) -> bytes:
        if table.who.is_tcp[number]:
            return streams.read_beginning(table, data, number, up=up, limit=limit)
        return next(streams.read_datagrams(table, data, number, up=up), b"")[:limit]

    for limit in (1, 64, 5000):
        singly = [(read_singly(number, True, limit), read_singly(number, False, limit)) for number in numbers]
        assert [*streams.read_beginnings(table, data, numbers, limit)] == singly
        assert len({*singly}) > 2


def test_a_beginning_of_short_segments_is_joined_up_to_a_missing_byte() -> None:
    parts = [(1005, b"world"), (1000, b"hello"), (1002, b"llo"), (1010, b"!"), (1012, b"after a hole")]
    segments = [craft.Segment(craft.START_NS + at, True, seq, data=data) for at, (seq, data) in enumerate(parts)]
    data = craft.pcap(craft.records(segments))
    assert [*streams.read_beginnings(analyze(data).table, data, [0], 64)] == [(b"helloworld!", b"")]
    assert [*streams.read_beginnings(analyze(data).table, data, [0], 7)] == [(b"hellowo", b"")]
