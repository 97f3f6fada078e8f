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

_BY_PAIR = ("pair", "from_high")  # numbers that may be given in another order


def nothing(self: plain.Plain, batch: Batch) -> Iterator[Any]:
    return iter(())


def read(data: bytes) -> tuple[dict[str, Any], Any, Any]:
    found = analyze(data)
    names = [each.name for each in fields(Packets) if each.name not in _BY_PAIR]
    columns = {name: getattr(found.table.packets, name) for name in names}
    kinds = {name: (str(column.dtype), column.tolist()) for name, column in columns.items()}
    return found.as_dict(), kinds, found.table.up.tolist()


def damaged(data: bytes, draw: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(draw.choice([5, 50, 500])):
        found[draw.randrange(40, len(found))] = draw.choice([0, 255, 0x45, draw.getrandbits(8)])
    return bytes(found)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(200, 206))
def test_fast_and_slow_path_agree(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, whole = random.Random(seed), paths.capture(seed)
    for data in (whole, *(damaged(whole, draw) for _ in range(3))):
        short = read(data)
        with monkeypatch.context() as patch:
            patch.setattr(plain.Plain, "columns", nothing)
            assert short == read(data)


@pytest.mark.parametrize("snaplen", [*range(50, 76), 90, 200])
def test_fast_and_slow_path_agree_on_cut_packets(snaplen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = craft.connection(b"x" * 5000)
    six = [(at, craft.ethernet("2001:db8::1", "2001:db8::2", 6, frame[34:])) for at, frame in craft.records(made)]
    data = craft.pcap([*craft.records(made), *six], snaplen=snaplen)
    short = read(data)
    monkeypatch.setattr(plain.Plain, "columns", nothing)
    assert short == read(data)


def test_a_plain_upload_needs_no_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cloudbench.net.traffic.packets.Headers", None)
    found = analyze(craft.pcap(craft.records(craft.connection(b"x" * 5000))))
    assert found.as_dict()["payload_up_bytes"] == 5000


@pytest.mark.parametrize(("bits", "most"), [(17, 1 << 16), (2, 1 << 16), (4, 40), (1, 300)])
def test_keys_in_shared_slots_keep_their_numbers(bits: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recent, "_BITS", bits)
    monkeypatch.setattr(Recent, "_MAX_KEYS", most)
    draw, recent = np.random.default_rng(bits), Recent(2)
    for _ in range(30):
        first, second = draw.integers(0, draw.integers(1, 12), (2, draw.integers(1, 200))).astype(np.uint64)
        true = (first * np.uint64(100) + second).astype(np.int32)
        assert recent.assign_numbers([first, second], true.__getitem__).tolist() == true.tolist()
