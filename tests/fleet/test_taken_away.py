"""Results folders that are removed, moved or replaced while a test runs. No record is lost, and a line says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.runs import SPREAD, Spread

from .harness import FOLDER, Lab, grid, keys

TESTS = """
    def test_long(experiment, payloads, fleet):
        told(fleet)
        experiment.run(payloads.random(50), arrival=FixedInterval(0.05), sensors=4, ops_per_sensor=60).check()

    def test_next(experiment, payloads):
        experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=4, ops_per_sensor=2).check()
"""


def move(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


def replace(folder: Path) -> None:
    move(folder)
    folder.mkdir()


@SPREAD
@pytest.mark.parametrize(
    "how",
    [shutil.rmtree, pytest.param(move, marks=pytest.mark.slow), pytest.param(replace, marks=pytest.mark.slow)],
    ids=["removed", "moved", "replaced"],
)
def test_a_results_folder_that_is_taken_away_loses_no_record(lab: Lab, how: object, spread: Spread) -> None:
    running = lab.write(TESTS).start(*FOLDER, *spread)
    agents = ("gw0", "gw1") if spread else ("main",)
    for agent in agents:
        running.wait_for_records(agent, "test_long", 20)
    assert callable(how)
    how(lab.folder / "results")
    run = running.end()
    assert run.status == 0, run.text
    assert run.leftovers == []
    assert "Traceback" not in run.text
    results = lab.folder / "results"
    shutil.rmtree(lab.folder / "moved", ignore_errors=True)
    assert keys(run.records()["test_long"]) == grid(4, 60)
    assert keys(run.records()["test_next"]) == grid(4, 2)
    assert list(results.rglob("*.oplog")) == []
    assert len(run.lines_with("was removed, moved or replaced during the run")) == len(agents), run.text
    assert run.info("test_long[folder:objects]")["ops"] == 240


@pytest.mark.slow
def test_a_results_folder_that_becomes_a_file_loses_no_record(lab: Lab) -> None:
    """Neither the logs nor the merged records can be written there any more."""
    temporary = lab.folder / "kept"
    temporary.mkdir()
    running = lab.write(TESTS).start(*FOLDER, "-n", "2", env={"TMPDIR": str(temporary)})
    for agent in ("gw0", "gw1"):
        running.wait_for_records(agent, "test_long", 20)
    move(lab.folder / "results")
    (lab.folder / "results").write_text("in the way")
    run = running.end()
    assert run.status == 1, run.text
    assert "Traceback" not in run.text
    shutil.rmtree(lab.folder / "moved")
    done = [key for key in run.all_records() if key in set(grid(4, 60))]
    assert sorted(set(done)) == grid(4, 60)
    assert run.lines_with(f"the agents' logs stay in {temporary}"), run.text
