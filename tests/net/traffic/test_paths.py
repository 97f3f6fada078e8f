"""Random captures of all kinds: equal to tshark, frame by frame, and the same in every way of reading."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from pytest_cloudbench.net.traffic import Analysis, analyze, counts, resent
from tests.net.traffic import paths
from tests.net.traffic.test_captures import MARKS

FIELDS = ("tcp.len", "tcp.flags.syn", "tcp.flags.ack", *(f"tcp.analysis.{mark}" for mark in MARKS))


def read_with_tshark(data: bytes) -> dict[str, list[tuple[int, int]]]:
    """Return (number, value) of the frames with a value other than 0, by field."""
    options = [word for field in FIELDS for word in ("-e", field)]
    command = ["tshark", "-n", "-r", "-", "-T", "fields", "-e", "frame.number", "-E", "separator=|", *options]
    lines = subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode().splitlines()
    rows = [line.split("|") for line in lines]
    columns = {field: [(int(row[0]), int(row[at] or 0)) for row in rows] for at, field in enumerate(FIELDS, 1)}
    return {field: [entry for entry in column if entry[1]] for field, column in columns.items()}


def list_values(analysis: Analysis) -> dict[str, list[tuple[int, int]]]:
    packets = analysis.table.packets
    marks = {
        f"tcp.analysis.{mark}": [int(kind in kinds) for kind in analysis.table.verdicts]
        for mark, kinds in MARKS.items()
    }
    syn, ack = (packets.flags >> 1 & 1).tolist(), (packets.flags >> 4 & 1).tolist()
    columns = {"tcp.len": packets.payload.tolist(), "tcp.flags.syn": syn, "tcp.flags.ack": ack, **marks}
    numbers = packets.number.tolist()
    return {
        field: [(number, int(value)) for number, value in zip(numbers, column, strict=True) if value]
        for field, column in columns.items()
    }


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
@pytest.mark.parametrize("seed", range(12))
def test_every_path_equals_tshark(seed: int) -> None:
    data = paths.capture(seed)
    values = list_values(analyze(data))
    assert values == read_with_tshark(data)
    assert values["tcp.analysis.retransmission"]


@pytest.mark.parametrize("seed", range(100, 106))
def test_every_way_of_reading_agrees(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = paths.capture(seed)
    at_once = analyze(data)
    monkeypatch.setattr(counts, "_CHUNK_ROWS", 50)
    monkeypatch.setattr(counts, "_PART_ROWS", 50)
    monkeypatch.setattr(resent, "_FEW", 0)
    assert analyze(data).as_dict() == at_once.as_dict()
    assert at_once.aside.fragments == at_once.aside.malformed == at_once.aside.not_understood == 0
