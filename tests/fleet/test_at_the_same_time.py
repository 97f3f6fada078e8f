"""Two pytest processes at the same time, in one results folder and one storage. Nothing of either is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cloudbench.commands.cli import main
from pytest_cloudbench.results.index import Index
from pytest_cloudbench.results.oplog import read_parquet

from .harness import Lab, RunningSession, lab_in

OPS = 40
TEST = f"""
    def test_it(experiment, payloads):
        (HERE / "measures").touch()
        wait_for("both-measure")
        experiment.run(payloads.random(100), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor={OPS // 2})
        (HERE / "has-measured").touch()
        wait_for("both-have-measured")
"""


def start(lab: Lab, shared: Path) -> RunningSession:
    lab.write(TEST)
    options = (f"--cloudbench-results={shared / 'results'}", f"--benchmark-storage=file://{shared / 'stored'}")
    return lab.start("--provider", "folder:objects", "--benchmark-autosave", *options)


def test_simultaneous_sessions_are_both_stored_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each waits for the other before it measures and before it stores, so that both do so at the same time."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with lab_in(tmp_path / "a") as one, lab_in(tmp_path / "b") as other:
        sessions = [start(lab, tmp_path) for lab in (one, other)]
        for sign, signal in (("measures", "both-measure"), ("has-measured", "both-have-measured")):
            for lab, session in zip((one, other), sessions, strict=True):
                session.wait_for(sign, (lab.folder / sign).exists)
            for lab in (one, other):
                (lab.folder / signal).touch()
        for session in sessions:
            ended = session.end()
            assert (ended.status, ended.leftovers) == (0, []), ended.text

    index = Index.open(tmp_path / "stored")
    runs = index.runs()
    assert index.problems == []
    assert len({run.run_id for run in runs}) == len(runs) == 2
    assert [(run.outcome, run.ops) for run in runs] == [("passed", OPS)] * 2
    names = [entry.info["ops_file"] for run in runs for entry in index.entries(run.place)]
    paths = {path.relative_to(path.parents[1]).as_posix(): path for path in (tmp_path / "results").rglob("*.parquet")}
    assert sorted(names) == sorted(paths)
    assert [len(read_parquet(path)) for path in paths.values()] == [OPS] * 2
    assert not list((tmp_path / "results").rglob("*.oplog")), "merged, each by its own session"

    assert main(["baseline", "list", "--storage", str(tmp_path / "stored")]) == 0
    out = capsys.readouterr().out
    assert all(run.name in out for run in runs)
