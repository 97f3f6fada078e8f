"""Retransmissions in known sequences, and the shortcut compared with step-by-step judgement."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_cloudbench.net.traffic import analyze
from pytest_cloudbench.net.traffic.resent import (
    FAST,
    KEEP_ALIVE,
    OUT_OF_ORDER,
    RETRANSMITTED,
    SPURIOUS,
    Segments,
    judge_packets,
)  # fmt: skip
from tests.limits import scale_examples
from tests.net.traffic import craft

MS = craft.SECOND // 1000
Row = tuple[int, bool, int, int, int, int, int]


def judge_rows(rows: Sequence[Row], *, stepwise: bool = False, part: int = 1000) -> list[int]:
    kinds = (np.int64, bool, np.uint32, np.uint32, np.uint8, np.uint16, np.uint32)
    columns = [np.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    parts = (Segments(*(column[at : at + part] for column in columns)) for at in range(0, len(rows), part))
    return [int(kind) for kind in judge_packets(parts, stepwise=stepwise)]


def segment(
    at_ms: float, up: bool, seq: int, size: int = 0, ack: int = 1, *, flags: int = 16, window: int = 500
) -> Row:
    return round(at_ms * MS), not up, seq & 0xFFFFFFFF, ack, flags, window, size


BEGIN = [segment(0, True, 99, flags=2, ack=0), segment(10, False, 0, flags=18, ack=100), segment(20, True, 100)]


@pytest.mark.parametrize("base", [100, 0xFFFFFF00])
def test_ordinary_packets_have_no_verdict(base: int) -> None:
    rows = [segment(30 + number, True, base + number * 100, 100) for number in range(50)]
    assert judge_rows(rows) == [0] * 50


@pytest.mark.parametrize(
    ("late_ms", "acks", "verdict"),
    [(300, 0, RETRANSMITTED), (2, 0, OUT_OF_ORDER), (2, 3, FAST), (300, 1, RETRANSMITTED)],
)
def test_a_filled_hole_is_retransmitted_or_out_of_order(late_ms: int, acks: int, verdict: int) -> None:
    rows = [*BEGIN, segment(30, True, 100, 100), segment(31, True, 300, 100), segment(32, True, 400, 100)]
    rows += [segment(32 + number / 10, False, 1, ack=200) for number in range(acks)]
    rows.append(segment(32 + late_ms, True, 200, 100))
    if verdict == FAST:
        rows.insert(6, segment(31.9, False, 1, ack=200))
    assert judge_rows(rows)[-1] == verdict


def test_resending_acknowledged_bytes_is_spurious() -> None:
    rows = [*BEGIN, segment(30, True, 100, 100), segment(31, False, 1, ack=200), segment(400, True, 100, 100)]
    assert judge_rows(rows) == [0, 0, 0, 0, 0, SPURIOUS]


def test_keep_alives_and_probes_are_told_apart() -> None:
    rows = [*BEGIN, segment(30, True, 100, 100), segment(31, False, 1, ack=200, window=0)]
    rows += [segment(5000, True, 199, 1), segment(9000, True, 199, 0), segment(9500, True, 200, 1)]
    assert judge_rows(rows) == [0, 0, 0, 0, 0, KEEP_ALIVE, KEEP_ALIVE, 0]


@pytest.mark.parametrize(("late_ms", "verdict"), [(-5, RETRANSMITTED), (-50, OUT_OF_ORDER)])
def test_a_handshake_with_backward_time_is_judged_like_tshark(late_ms: int, verdict: int) -> None:
    """tshark's times are unsigned: after a negative round trip only what came earlier still is long ago."""
    rows = [segment(0, True, 99, flags=2, ack=0), segment(1, False, 0, flags=18, ack=100), segment(-20, True, 100)]
    rows += [segment(30, True, 100, 100), segment(31, True, 300, 100), segment(31 + late_ms, True, 200, 50)]
    assert judge_rows(rows)[-1] == verdict


def test_a_repeated_syn_is_judged() -> None:
    rows = [segment(0, True, 99, flags=2, ack=0), segment(1000, True, 99, flags=2, ack=0)]
    assert judge_rows(rows) == [0, RETRANSMITTED]


def story(draw: random.Random, base: int | None = None) -> list[Row]:
    """Return a connection mostly in order, which sometimes jumps, repeats, closes a window, resets, or starts again."""
    bases = [draw.choice([0, 1, 5, 0xFFFFFFD0]) if base is None else base for _ in range(2)]
    following, now = [*bases], 3 * MS
    rows: list[Row] = []
    if draw.random() < 0.5:
        rows = [
            (0, False, bases[0] - 1 & 0xFFFFFFFF, 0, 2, 100, 0),
            (MS, True, bases[1] - 1 & 0xFFFFFFFF, bases[0], 18, 100, 0),
        ]
        rows.append((2 * MS, False, bases[0], bases[1], 16, 100, 0))
    for _ in range(draw.randrange(1, 40)):
        side = draw.randrange(2)
        now += draw.choice([0, 1, MS // 10, MS, 4 * MS, 30 * MS, -MS])
        seq = following[side] + draw.choice([0] * 12 + [-1, -10, -20, 10, 20])
        ack = following[1 - side] + draw.choice([0] * 8 + [-10, -10, -20, 10])
        flags = draw.choice([16] * 20 + [24, 17, 4, 20, 2, 18, 0])
        if flags == 2 and base is not None:
            # A new number, because versions of tshark disagree about the same one after FIN or RST.
            seq += draw.randrange(1000, 9000)
        window, size = draw.choice([100] * 8 + [0, 200]), draw.choice([0, 0, 0, 1, 10, 10, 10, 20])
        rows.append((now, bool(side), seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, flags, window, size))
        following[side] = max(following[side], seq + size)
    return rows


@settings(deadline=None, max_examples=scale_examples(300))
@given(st.integers(0, 2**32), st.integers(1, 9))
@example(31, 3)
def test_columns_and_single_steps_agree(seed: int, part: int) -> None:
    rows = story(random.Random(seed))
    assert judge_rows(rows) == judge_rows(rows, part=part) == judge_rows(rows, stepwise=True)


def test_ordinary_stretches_are_not_stepped_through() -> None:
    rows = [segment(number, True, 100 + number * 100, 100) for number in range(5000)]
    rows += [segment(6000, True, 100 + 4998 * 100, 100), segment(6001, True, 100 + 5000 * 100, 100)]
    assert judge_rows(rows) == judge_rows(rows, stepwise=True) == [0] * 5000 + [RETRANSMITTED, 0]


# --- against tshark itself ---


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_crafted_connections_equal_tshark(seed: int) -> None:
    """Several hundred connections are in one capture, each from its own port."""
    draw = random.Random(seed)
    stories = [story(draw, 100_000) for _ in range(400)]
    packets: list[craft.Record] = []
    for number, rows in enumerate(stories):
        for now, down, seq, ack, flags, window, size in rows:
            sent_segment = craft.Segment(
                craft.START_NS + number * 10**12 + now, not down, seq, ack, flags, bytes(size), window,
                client_port=20_000 + number,
            )  # fmt: skip
            packets.append((sent_segment.at_ns, sent_segment.frame()))
    data = craft.pcap(packets, nano=True)
    names = ("stream", "retransmission", "fast_retransmission", "spurious_retransmission", "out_of_order", "keep_alive")
    options = [word for name in names for word in ("-e", f"tcp.{'' if name == 'stream' else 'analysis.'}{name}")]
    finished = subprocess.run(
        ["tshark", "-n", "-r", "-", "-T", "fields", "-E", "separator=,", *options],
        input=data, capture_output=True, check=True,
    )  # fmt: skip
    analysis = analyze(data)
    kinds = {
        RETRANSMITTED: "1,,,,",
        FAST: "1,1,,,",
        SPURIOUS: "1,,1,,",
        OUT_OF_ORDER: ",,,1,",
        KEEP_ALIVE: ",,,,1",
        0: ",,,,",
    }
    lines = finished.stdout.decode().splitlines()
    own_marks = [kinds[int(kind)] for kind in analysis.table.verdicts]
    tshark_marks = [",".join("1" if value else "" for value in line.split(",")[1:]) for line in lines]
    assert len(analysis.table.flows) == 1 + max(int(line.split(",")[0]) for line in lines) > len(stories)
    assert len(own_marks) == len(tshark_marks) == len(packets)
    wrong = [row for row, pair in enumerate(zip(own_marks, tshark_marks, strict=True)) if pair[0] != pair[1]]
    assert not wrong, [(row, own_marks[row], tshark_marks[row]) for row in wrong]


def test_stored_answers_cover_each_verdict() -> None:
    path = Path(__file__).resolve().parents[3] / "fixtures" / "captures" / "tshark.json"
    stored = json.loads(path.read_text("utf-8"))["captures"].values()
    for kind in ("retransmission", "fast_retransmission", "out_of_order", "keep_alive"):
        assert any(truth[kind] for truth in stored), kind
