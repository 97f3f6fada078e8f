"""The fast path for plain packets: the same results as the slow one, whatever packets are in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from pytest_cloudbench.net.traffic import analyze, plain
from pytest_cloudbench.net.traffic.endpoints import Recent
from pytest_cloudbench.net.traffic.packets import Packets
from pytest_cloudbench.net.traffic.records import Batch
from tests.net.traffic import craft, paths

_BY_PAIR = ("pair", "from_high")  # these numbers may be in another order


def yield_nothing(self: plain.Plain, batch: Batch) -> Iterator[Any]:
    return iter(())


def analyze_columns(data: bytes) -> tuple[dict[str, Any], Any, Any]:
    analysis = analyze(data)
    names = [field.name for field in fields(Packets) if field.name not in _BY_PAIR]
    columns = {name: getattr(analysis.table.packets, name) for name in names}
    kinds = {name: (str(column.dtype), column.tolist()) for name, column in columns.items()}
    return analysis.as_dict(), kinds, analysis.table.up.tolist()


def damage(data: bytes, draw: random.Random) -> bytes:
    broken = bytearray(data)
    for _ in range(draw.choice([5, 50, 500])):
        broken[draw.randrange(40, len(broken))] = draw.choice([0, 255, 0x45, draw.getrandbits(8)])
    return bytes(broken)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(200, 206))
def test_fast_and_slow_path_agree(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, intact = random.Random(seed), paths.capture(seed)
    for data in (intact, *(damage(intact, draw) for _ in range(3))):
        fast = analyze_columns(data)
        with monkeypatch.context() as patch:
            patch.setattr(plain.Plain, "columns", yield_nothing)
            assert fast == analyze_columns(data)


@pytest.mark.parametrize("snaplen", [*range(50, 76), 90, 200])
def test_fast_and_slow_path_agree_on_cut_packets(snaplen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = craft.connection(b"x" * 5000)
    six = [(at, craft.ethernet("2001:db8::1", "2001:db8::2", 6, frame[34:])) for at, frame in craft.records(segments)]
    data = craft.pcap([*craft.records(segments), *six], snaplen=snaplen)
    fast = analyze_columns(data)
    monkeypatch.setattr(plain.Plain, "columns", yield_nothing)
    assert fast == analyze_columns(data)


def test_a_plain_upload_needs_no_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cloudbench.net.traffic.packets.Headers", None)
    analysis = analyze(craft.pcap(craft.records(craft.connection(b"x" * 5000))))
    assert analysis.as_dict()["payload_up_bytes"] == 5000


def make_datagrams(draw: random.Random) -> list[bytes]:
    """Return frames of UDP: plain ones, tunnels, sentinels, and lengths that contradict each other."""
    frames = []
    for _ in range(300):
        source, target = draw.choice([("10.0.0.1", "10.9.0.2"), ("2001:db8::1", "2001:db8::2")])
        if draw.random() < 0.1:
            source, target = "10.0.0.1", "233.252.0.9"
        ports = [draw.choice([443, 53, 4789, 4500, 51820, 40_000, draw.randrange(65_536)]) for _ in range(2)]
        content = draw.choice([b"", b"cloudbench-sentinel token end", draw.randbytes(draw.randrange(100))])
        frame = bytearray(craft.udp(source, ports[0], target, ports[1], content))
        length_at = 14 + (20 if frame[12:14] == b"\x08\0" else 40) + 4
        if draw.random() < 0.2:
            frame[length_at : length_at + 2] = draw.choice([0, 7, 8, 9, 60_000]).to_bytes(2, "big")
        frames.append(bytes(frame) + bytes(draw.choice([0, 0, 18])))
    return frames


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("snaplen", [41, 42, 61, 62, 70, 262_144])
def test_fast_and_slow_path_agree_on_udp(seed: int, snaplen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = make_datagrams(random.Random(seed))
    tcp = craft.records(craft.connection(b"x" * 500))
    data = craft.pcap([*enumerate(frames), *tcp][:: -1 if seed % 2 else 1], snaplen=snaplen)
    fast = analyze_columns(data)
    monkeypatch.setattr(plain.Plain, "columns", yield_nothing)
    assert fast == analyze_columns(data)


@pytest.mark.parametrize(("source", "target"), [("10.0.0.1", "10.9.0.2"), ("2001:db8::1", "2001:db8::2")])
def test_plain_datagrams_need_no_slow_path(source: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cloudbench.net.traffic.packets.Headers", None)
    sizes = [30, 1200, 12]
    frames = [craft.udp(source, 40_000, target, 443, bytes(size)) for size in sizes]
    assert analyze(craft.pcap(list(enumerate(frames)))).as_dict()["payload_up_bytes"] == sum(sizes)


@pytest.mark.parametrize(("bits", "max_keys"), [(17, 1 << 16), (2, 1 << 16), (4, 40), (1, 300)])
def test_keys_in_shared_slots_keep_their_numbers(bits: int, max_keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recent, "_BITS", bits)
    monkeypatch.setattr(Recent, "_MAX_KEYS", max_keys)
    draw, recent = np.random.default_rng(bits), Recent(2)
    for _ in range(30):
        first, second = draw.integers(0, draw.integers(1, 12), (2, draw.integers(1, 200))).astype(np.uint64)
        true = (first * np.uint64(100) + second).astype(np.int32)
        assert recent.assign_numbers([first, second], true.__getitem__).tolist() == true.tolist()
