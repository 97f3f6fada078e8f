"""Several providers in one run: a known difference is marked, equals are not, and their entries are one group."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tests.fleet.harness import FinishedRun, Lab
from tests.truths import Truths

UPLOADS = """
from pytest_cloudbench.workload.arrival import Threads

def test_uploads(experiment, payloads):
    experiment.run(payloads.random(1000), arrival=Threads(4), files=40)
"""


def run_on(lab: Lab, latencies_s: dict[str, float], *args: str) -> FinishedRun:
    """Run uploads to emulators that answer after a set time. ``args`` may name other providers."""
    chosen: list[str] = []
    for name, median_s in latencies_s.items():
        head = f'[meta]\nname = "{name}"\napi = "dropbox"\ndescription = "set"\n'
        (lab.folder / f"{name}.toml").write_text(f"{head}[latency]\nmedian_s = {median_s}\nsigma = 0.2\n")
        chosen += ["--provider", f"emulated:./{name}.toml"]
    return lab.write(UPLOADS).run(*chosen, *args)


def cells(run: FinishedRun) -> dict[str, Sequence[str]]:
    """Return the cells of the last table by provider."""
    table = run.text.rpartition("providers compared")[2]
    rows = re.findall(r"^  ((?:emulated|folder):\S+) +(.*)$", table, re.M)
    return {name: re.split(r" {2,}", row.strip()) for name, row in rows}


def test_configured_difference_between_providers_is_found(lab: Lab, truths: Truths) -> None:
    run = run_on(lab, {"slow": 0.2, "fast": 0.03}, "--provider", "folder:objects")
    assert run.status == 0, run.text
    rows = cells(run)
    assert list(rows) == ["emulated:./slow.toml", "emulated:./fast.toml", "folder:objects"]
    assert {entry["group"] for entry in run.document["benchmarks"]} == {"test_it.py::test_uploads"}
    assert "not emulated: folder:objects" in run.text
    infos = [entry["extra_info"] for entry in run.document["benchmarks"]]
    if truths.judged(run, *infos):
        assert "*" in rows["folder:objects"][1], run.text
        assert not any("*" in cell or "~" in cell for cell in rows["emulated:./slow.toml"])


@pytest.mark.slow
def test_two_equal_providers_are_not_marked(lab: Lab) -> None:
    run = run_on(lab, {"one": 0.1, "other": 0.1}, "-q")
    assert run.status == 0, run.text
    rows = cells(run)
    assert set(rows) == {"emulated:./one.toml", "emulated:./other.toml"}
    assert not any("*" in cell or "~" in cell for cells_of_row in rows.values() for cell in cells_of_row), run.text
    close = " ".join(run.lines_with("no difference found: ") + run.lines_with("differs by less than 25 %: "))
    assert "loss rate" in close
    assert "p50 ms" in close
    assert not run.lines_with("files  threads"), "with -q this is the only table"


def test_single_provider_has_no_comparison_table(lab: Lab) -> None:
    run = run_on(lab, {"one": 0.0})
    assert "compared" not in run.text
