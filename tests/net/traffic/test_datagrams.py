"""Counts of UDP packets that are not kept: the same results, in memory that does not grow with their number."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from pytest_cloudbench.net.traffic import analyze, packets
from pytest_cloudbench.net.traffic.records import BATCH_RECORDS
from tests.net.traffic import craft, paths

_BLOCK_ROWS = 4096  # so that the columns of a small capture grow visibly


def make_conversations(seed: int, count: int, *, tagged_share: float = 0) -> bytes:
    """Return a capture of QUIC, DNS, SSDP and TCP, with empty datagrams and servers that speak first.

    A share of the datagrams has a VLAN tag.
    """
    draw, frames = random.Random(seed), list[tuple[int, bytes]]()
    ends = [("10.0.0.1", "10.9.0.2"), ("10.0.0.3", "10.0.0.1"), ("2001:db8::1", "2001:db8::2")]
    for at in range(count):
        source, target = draw.choice(ends)
        ports = 40_000 + draw.randrange(8), draw.choice([443, 53, 1900, 45_000])
        body = draw.choice([b"", b"\xc3\0\0\0\1\0\0" + bytes(20), draw.randbytes(draw.randrange(80)), b"GET / x" * 5])
        if draw.random() < 0.5:
            source, target, ports = target, source, (ports[1], ports[0])
        frame = craft.udp(source, ports[0], target, ports[1], body)
        if draw.random() < tagged_share:
            frame = frame[:12] + b"\x81\0\0\5" + frame[12:]
        frames.append((draw.randrange(at, at + 30) * 1000, frame))
    return craft.pcap([*craft.records(craft.connection(b"x" * 3000)), *frames])


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("batch_records", [7, BATCH_RECORDS])
def test_counts_are_those_of_all_packets(seed: int, batch_records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cloudbench.net.traffic.records.BATCH_RECORDS", batch_records)
    for data in (make_conversations(seed, 600), paths.capture(seed)):
        full, thin = (analyze(data, keeps_datagrams=keeps) for keeps in (True, False))
        assert thin.as_dict() == full.as_dict()


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_the_same_if_some_packets_of_each_flow_have_a_tag(seed: int) -> None:
    plain, tagged = (make_conversations(seed, 600, tagged_share=share) for share in (0, 0.5))
    assert len(tagged) > len(plain)
    full, thin = (analyze(tagged, keeps_datagrams=keeps) for keeps in (True, False))
    assert thin.as_dict() == full.as_dict()
    assert len(thin.table.packets) < len(full.table.packets)


@pytest.mark.parametrize("client", ["10.0.0.1", "10.9.0.2", "2001:db8::2"])
def test_counts_of_one_client_are_those_of_all_its_packets(client: str) -> None:
    data = make_conversations(9, 600)
    full, thin = (analyze(data, client=client, keeps_datagrams=keeps) for keeps in (True, False))
    assert thin.as_dict() == full.as_dict()
    assert len(thin.table.packets) < len(full.table.packets)


def make_flood(count: int) -> bytes:
    """Return a capture with this many datagrams of ten flows."""
    frames = [craft.udp("10.0.0.1", 40_000 + flow, "10.9.0.2", 443, bytes(60)) for flow in range(10)]
    return craft.pcap([(at * 1000, frames[at % 10]) for at in range(count)])


def measure_peak_bytes(data: bytes, *, keeps: bool) -> int:
    tracemalloc.start()
    try:
        analyze(data, keeps_datagrams=keeps).as_dict()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_datagrams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets._Column, "_ROWS", _BLOCK_ROWS)
    monkeypatch.setattr("pytest_cloudbench.net.traffic.records.BATCH_RECORDS", 2048)
    monkeypatch.setattr("pytest_cloudbench.net.traffic.records.WINDOW_BYTES", 1 << 20)
    few, many = make_flood(10_000), make_flood(40_000)
    analyze(many).as_dict()  # imports and caches
    growth = {}
    for keeps in (True, False):
        peaks = [measure_peak_bytes(data, keeps=keeps) for data in (few, many)]
        growth[keeps] = peaks[1] - peaks[0]
    assert growth[True] > 30_000 * 40  # keeping all packets would show
    assert growth[False] < growth[True] / 10
