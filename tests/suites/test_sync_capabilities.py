"""The suite of sync clients finds what is set in the reference client, and stores it beside the published values."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from pytest_cloudbench import Observation, Step
from pytest_cloudbench.lab.sync.item import LabItem
from suites.sync_capabilities import test_sync_capabilities as capabilities
from tests.fleet.harness import FinishedRun, Lab

from .harness import SUITES

pytestmark = pytest.mark.usefixtures("can_link", "can_capture")

ROOT = SUITES.parent
FILE = SUITES / "sync_capabilities/test_sync_capabilities.py"
CLEVER = "reference?chunking=1&bundling=1&deduplication=1&delta=1&compression=smart"


def run(lab: Lab, client: str, only: str) -> FinishedRun:
    return lab.run(str(SUITES / "sync_capabilities"), "--client", client, "-k", only)


@pytest.mark.slow
def test_copies_and_batches_of_a_client_that_does_nothing_and_of_one_that_does_all(lab: Lab) -> None:
    plain, clever = (run(lab, client, "test_table_4_7 or (test_figure_3 and 100-)") for client in ("reference", CLEVER))
    for ended in (plain, clever):
        assert ended.counts()["passed"] == 2, ended.text
    identical, files = "test_table_4_7[2MB-3-{}]", "test_figure_3[100-{}]"
    assert plain.info(identical.format("reference"))["traffic_mb"] == pytest.approx(6, rel=0.08)
    assert clever.info(identical.format(CLEVER))["traffic_mb"] == pytest.approx(2, rel=0.1)
    assert plain.info(files.format("reference"))["exchanges"] >= 99
    assert clever.info(files.format(CLEVER))["exchanges"] < 5


BROKEN = """
name = "broken"
[sync]
command = ["sh", "-c", "echo no space left >&2; exit 3"]
[verify]
folder = "{stored}"
"""


@pytest.mark.parametrize(
    "suite",
    [
        "sync_capabilities::test_table_1",
        pytest.param("sync_capabilities::test_table_4_7", marks=pytest.mark.slow),
        pytest.param("sync_performance", marks=pytest.mark.slow),
        pytest.param("updates::test_table_1", marks=pytest.mark.slow),
    ],
)
def test_a_client_that_never_synced_fails_and_says_why(lab: Lab, suite: str) -> None:
    (lab.folder / "broken.toml").write_text(BROKEN)
    folder, _, test = suite.partition("::")
    ended = lab.run(str(SUITES / folder), "--client", "broken.toml", "-k", test or "test_")
    assert ended.counts().get("passed", 0) == 0
    assert ended.counts()["failed"] >= 1, ended.text
    assert ended.lines_with("client broken.toml never synced: sync (client): exit status 3 (no space left)")


@pytest.mark.slow
def test_figures_of_a_client_that_does_nothing_and_of_one_that_does_all(lab: Lab) -> None:
    only = "test_figure_4_10 or test_figure_4_8 or (test_figure_5 and text) or (test_figure_4 and random)"
    plain, clever = (run(lab, client, only).info for client in ("reference", CLEVER))
    assert plain("test_figure_4_10[50-reference]")["traffic_mb"] == pytest.approx(4, rel=0.08)
    assert clever(f"test_figure_4_10[50-{CLEVER}]")["traffic_mb"] == pytest.approx(3, rel=0.1)
    assert plain("test_figure_5[text-1000000-reference]")["tue"] > 1
    assert clever(f"test_figure_5[text-1000000-{CLEVER}]")["tue"] < 0.5
    assert plain("test_figure_4_8[10-reference]")["tue"] > 1
    assert clever(f"test_figure_4_8[10-{CLEVER}]")["tue"] < 0.1
    assert plain("test_figure_4[random-10485760-reference]")["uploaded_mb"] > 10
    assert clever(f"test_figure_4[random-10485760-{CLEVER}]")["uploaded_mb"] < 0.2


@pytest.mark.slow
def test_table_1_finds_the_configured_capabilities(lab: Lab) -> None:
    ended = run(lab, CLEVER, "test_table_1")
    assert ended.counts()["passed"] == 1, ended.text
    info = {name: ended.info(f"test_table_1[{name}-{CLEVER}]") for name in
            ("Chunking", "Bundling", "Deduplication", "Delta-encoding", "Compression")}  # fmt: skip
    assert [entry["has_capability"] for entry in info.values()] == [1] * 5
    assert info["Deduplication"]["deduplication"] == "yes"
    assert info["Compression"]["how"].startswith("smart")
    assert info["Chunking"]["how"].startswith("chunks of 1 MiB, in files of 16 MiB")
    assert all(entry["evidence"] for entry in info.values())
    assert ended.lines_with("Dropbox, Wuala")


def test_every_published_row_has_a_test_of_its_name() -> None:
    output = subprocess.run(
        [sys.executable, "-m", "pytest", str(FILE), "--grid", "paper", "--collect-only", "-q", "--client", "reference"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    for name in ("thesis-2014-table-4.7", "imc-2013-table-1"):
        rows = json.loads((ROOT / f"results/published/{name}.json").read_text())["benchmarks"]
        for row in rows:
            test, params = row["fullname"].rpartition("::")[2].partition("[")[0], row["params"]
            assert f"::{test}[" in output
            if "size" in params:
                assert f"[{params['size'].replace(' ', '')}-{params['files']}-" in output


class LoudLab:
    """A lab whose client sends this much while nothing is changed, and 200 kB for a change, in two seconds each."""

    def __init__(self, idle_bytes: int) -> None:
        self.idle_bytes = idle_bytes
        self.metrics: Mapping[str, float | None] = {}
        self.doubts: Sequence[str] = ()

    def measure(self, steps: Sequence[Step]) -> list[Observation]:
        size_bytes = steps[1].size_bytes
        change = Observation(steps[1].kind, size_bytes, size_bytes, wire_bytes=200_000, duration_s=2.0)
        return [Observation("idle", wire_bytes=self.idle_bytes, duration_s=2.0), change]

    def conclude(self, metrics: Mapping[str, float | None], *_: Any, doubts: Sequence[str], **__: Any) -> None:
        self.metrics, self.doubts = metrics, doubts

    def settle(self, results: Any) -> None: ...


@pytest.mark.parametrize(("idle_bytes", "traffic_mb"), [(0, 0.2), (50_000, 0.15), (200_000, None), (900_000, None)])
def test_no_traffic_is_left_of_a_change_when_the_idle_client_is_louder(
    idle_bytes: int, traffic_mb: float | None
) -> None:
    loud_lab = LoudLab(idle_bytes)
    capabilities.test_figure_5(cast(LabItem, loud_lab), "random", 1_000_000)
    assert loud_lab.metrics == {"tue": traffic_mb, "traffic_mb": traffic_mb}
    assert bool(loud_lab.doubts) == (traffic_mb is None)
