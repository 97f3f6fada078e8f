"""The project's own measurements: a machine that gets slower in the middle changes no ratio."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import ROOT, Blocks, Figure, alternating
from tests.limits import HANG_S


@pytest.mark.parametrize("slowdown", [1.0, 1.1, 2.0])
def test_what_drifts_cancels_out_of_a_ratio(slowdown: float) -> None:
    """Each block is slower than the one before by a tenth of this machine's slowdown."""
    speed = (slowdown ** (number / 10) for number in itertools.count())
    found = alternating(lambda: 3.0 * next(speed), lambda: 2.0 * next(speed), 8)
    assert found.ratio == pytest.approx(1.5, rel=0.01)


def test_blocks_take_turns_after_one_of_each_that_does_not_count() -> None:
    order: list[str] = []

    def block(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = alternating(lambda: block("a"), lambda: block("b"), 3)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert found == Blocks([3.0, 6.0, 7.0], [4.0, 5.0, 8.0])


@pytest.mark.parametrize(
    ("value", "sense", "met"), [(2.0, "at most", True), (2.0, "below", False), (1.9, "at least", False)]
)
def test_a_bound_is_met_or_not(value: float, sense: str, met: bool) -> None:
    assert Figure("a", value, "x", 2.0, sense).met is met  # type: ignore[arg-type]  # a parameter is any text


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_the_process_that_measures_is_not_counted(tmp_path: Path) -> None:
    large = "import subprocess, sys; held = bytearray(b'x') * 400_000_000; subprocess.run(sys.argv[1:], check=True)"
    measured = [sys.executable, "-m", "benchmarks.bench_raid", str(tmp_path), "1000000"]
    done = subprocess.run(
        [sys.executable, "-c", large, *measured], cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANG_S
    )
    assert all(0 < int(word) < 300_000 for word in done.stdout.split()), done.stdout
