"""Verdicts on real clients, from our own recordings and from a table of bytes per phase measured elsewhere.

``recorded.json`` holds observations of real runs (docs/suites/sync_capabilities.md says how they are made), with the
capabilities that each client documents. An answer that contradicts a documented yes or no is wrong. An unknown one is
not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.lab.detect import Observation, judge_capabilities

RECORDED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("recorded.json").read_text("utf-8"))
STAYS_UNKNOWN = {
    ("bundling", "reference?bundling=pipelined"),
    ("chunking", "script: 1 MiB every 0.25 s, with progress reports"),
    ("chunking", "rsync --bwlimit over ssh"),
    ("chunking", "script: parts of 1 MiB, not waited for"),
    ("chunking", "script: windows of 1 MiB"),
    ("compression", "script: base64 for what is no text"),
    ("bundling", "script: tar over ssh, which lists each file"),
    ("bundling", "script: one request for each file, eight at a time on one HTTP/2 connection"),
    ("bundling", "script: all requests one after another, answers not waited for"),
    ("bundling", "script: ten files, then their ten answers"),
}
"""Documented capabilities that stay unknown: bundling in a stream with an answer for each file, and behaviour that
only looks like waiting or compressing."""


def load_observations(spec: str) -> list[Observation]:
    rows = [dict(row) for row in RECORDED[spec]["observations"]]
    for row in rows:
        for name in ("chunks_bytes", "reasons"):
            row[name] = tuple(row.get(name, ()))
        row["rounds_bytes"] = tuple((back, up) for back, up in row.get("rounds_bytes", ()))
    return [Observation(**row) for row in rows]


@pytest.mark.parametrize("spec", RECORDED)
def test_recorded_clients(spec: str) -> None:
    truth, verdicts = RECORDED[spec]["truth"], judge_capabilities(load_observations(spec))
    documented = {name: answer for name, answer in truth.items() if answer != "unknown"}
    answers = {name: verdicts[name].answer for name in documented}
    assert answers == {
        name: "unknown" if (name, spec) in STAYS_UNKNOWN else answer for name, answer in documented.items()
    }


MIB = 1 << 20
TEXT_ZLIB = 1_454_876
TABLE = {
    # client: (random, copy, text, append, insert, 100 files, SYNs of these), of files of 4 MiB
    "syncthing": (4_202_760, 1_608, 4_202_698, 1_754, 133_107, 1_012_711, 0),
    "syncthing, compression always": (4_202_759, 1_608, 2_239_235, 1_753, 133_107, 1_014_058, 0),
    "lsyncd driving rsync -z": (4_195_642, 4_195_642, 1_437_639, 398, 2_450, 1_007_620, 1),
    "unison": (4_204_478, 2_529, 4_203_031, 2_890, 5_010, 1_086_348, 0),
    "rclone": (4_195_776, 4_195_040, 4_195_041, 4_196_552, 4_195_672, 1_049_399, 201),
    "rclone chunker": (4_203_603, 4_203_603, 4_202_995, 4_205_198, 4_206_021, 1_285_369, 4),
    "rclone compress": (4_197_163, 4_197_163, 1_496_826, 4_197_371, 4_197_435, 1_189_609, 5),
    "restic": (4_214_033, 11_786, 1_473_584, 500_000, 1_400_000, 1_031_503, 17),
    "restic, with less luck": (4_214_033, 11_786, 1_473_584, 1_500_000, 3_700_000, 1_031_503, 17),
}
EXPECTED = {
    # client: deduplication, delta, compression, bundling
    "syncthing": ("yes", "unknown", "no", "unknown"),
    "syncthing, compression always": ("yes", "unknown", "yes", "unknown"),
    "lsyncd driving rsync -z": ("no", "yes", "yes", "unknown"),
    "unison": ("yes", "unknown", "no", "unknown"),
    "rclone": ("no", "no", "no", "no"),
    "rclone chunker": ("no", "no", "no", "unknown"),
    "rclone compress": ("no", "no", "yes", "unknown"),
    "restic": ("yes", "unknown", "yes", "unknown"),
    "restic, with less luck": ("yes", "unknown", "yes", "unknown"),
}
"""Without twins, edits may be cheap because of deduplication. Without a second batch, only connections show."""


@pytest.mark.parametrize("client", TABLE)
def test_table_of_bytes(client: str) -> None:
    random, copy, text, append, insert, files, syns = TABLE[client]
    size = 4 * MIB
    observations = [
        Observation("idle", duration_s=4.0),
        Observation("new", size, size, up_bytes=random, duration_s=4.0),
        Observation("copy", size, size, up_bytes=copy, duration_s=4.0),
        Observation("text", size, size, zlib_bytes=TEXT_ZLIB, up_bytes=text, duration_s=4.0),
        Observation("append", size + 64, 64, up_bytes=append, duration_s=4.0),
        Observation("insert", size + 128, 64, up_bytes=insert, duration_s=4.0),
        Observation("many", 1_000_000, 1_000_000, 100, up_bytes=files, syns=syns, duration_s=4.0),
    ]
    verdicts = judge_capabilities(observations)
    capabilities = ("deduplication", "delta", "compression", "bundling")
    assert tuple(verdicts[name].answer for name in capabilities) == EXPECTED[client]
    assert verdicts["chunking"].answer == "unknown"
