"""The rounds of a series: its duration, its continuation and its errors."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.judge.baseline import ENTRY_SCHEMA
from pytest_cloudbench.load import series
from pytest_cloudbench.load.messages import SeriesAdd, SeriesNext, SeriesOpen, SeriesPlan
from pytest_cloudbench.load.series import SeriesKeeper
from pytest_cloudbench.model import ResultsError, UsageError

from .harness import Lab

REQUEST: dict[str, Any] = {"name": "test_it[x]", "key": {"test": "test_it", "provider": "x", "params": {}}, "setup": {}}
NODEID = "test_it.py::test_it[x]"


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s - 500


def make_keeper(folder: Path, time_scale: float = 1.0) -> SeriesKeeper:
    return SeriesKeeper(RunFacts("r", "seed", time_scale, None, None, 0.2, str(folder / "m" / "r"), "host"), folder)


def open_series(folder: Path, plan: SeriesPlan, resume: str | None = None, scale: float = 1.0) -> SeriesKeeper:
    keeper = make_keeper(folder, scale)
    message = SeriesOpen.from_plain({**REQUEST, "plan": asdict(plan), "resume": resume, "keeps_plan": False})
    keeper.begin(message, NODEID)
    return keeper


def run_rounds(keeper: SeriesKeeper, clock: Clock, round_s: float, limit: int = 99) -> list[int]:
    """Run rounds of a duration until the keeper has no further one, and return their numbers."""
    numbers: list[int] = []
    while len(numbers) < limit:
        next_round = keeper.next(SeriesNext(REQUEST["name"], bool(numbers)))
        if next_round.number is None:
            break
        clock.now_s += next_round.pause_s + round_s
        keeper.add(SeriesAdd(REQUEST["name"], "x", {"round": next_round.number}), {})
        numbers.append(next_round.number)
    keeper.close()
    return numbers


def test_series_begins_only_rounds_that_fit_into_its_duration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(series, "time", clock)
    plan = SeriesPlan(3)
    assert run_rounds(open_series(tmp_path / "a", plan), clock, 10) == [0, 1, 2]
    timed = SeriesPlan(3, 95.0, 10.0)
    assert run_rounds(open_series(tmp_path / "b", timed), clock, 10) == [0, 1, 2, 3, 4]
    assert run_rounds(open_series(tmp_path / "c", timed, scale=10), clock, 1) == [0, 1, 2, 3, 4]
    assert run_rounds(open_series(tmp_path / "d", replace(timed, duration_s=0.0)), clock, 10) == [0]


def test_the_time_between_sessions_is_not_time_of_the_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(series, "time", clock)
    plan = SeriesPlan(3, 50.0)
    assert run_rounds(open_series(tmp_path, plan), clock, 10, limit=2) == [0, 1]
    clock.now_s += 1e6
    assert run_rounds(open_series(tmp_path, plan, resume=""), clock, 10) == [2, 3, 4]


def test_a_stopped_series_says_how_it_goes_on(tmp_path: Path) -> None:
    keeper = open_series(tmp_path, SeriesPlan(3))
    assert keeper.describe_stopped() == [], "no round is lost"
    for number, rounds in enumerate(("1 round", "2 rounds")):
        keeper.add(SeriesAdd(REQUEST["name"], "x", {"round": number}), {})
        (line,) = keeper.describe_stopped()
        words, path = line.rsplit(" ", 1)
        assert words == f"test_it[x]: stopped after {rounds}; to continue: --resume"
        assert not Path(path).is_absolute()
        assert (tmp_path / path).is_file()
    keeper.end(REQUEST["name"])
    assert keeper.describe_stopped() == []


def test_series_with_damaged_plan_is_refused_in_one_line(tmp_path: Path) -> None:
    keeper = open_series(tmp_path, SeriesPlan(3))
    keeper.close()
    (path,) = tmp_path.rglob("*.jsonl")
    path.write_text(path.read_text().replace('"rounds":3', '"rounds":"many"'))
    second_keeper = make_keeper(tmp_path)
    request = {**REQUEST, "plan": asdict(SeriesPlan(1)), "resume": "", "keeps_plan": True}
    message = r"jsonl: cannot continue with its own plan \(.*Expected `int`, got `str` - at `\$\.rounds`"
    with pytest.raises(ResultsError, match=message):
        second_keeper.begin(SeriesOpen.from_plain(request), NODEID)


def test_one_series_has_one_round_of_a_number(tmp_path: Path) -> None:
    keeper = open_series(tmp_path, SeriesPlan(3))
    keeper.add(SeriesAdd(REQUEST["name"], "x", {"round": 0}), {})
    keeper.end(REQUEST["name"])
    with pytest.raises(UsageError, match="has no unfinished series of test_it with x"):
        open_series(tmp_path, SeriesPlan(3), resume="")
    with pytest.raises(ResultsError, match="expected the state file of a series"):
        open_series(tmp_path, SeriesPlan(3), resume="other.jsonl")


def test_rounds_of_other_machines_and_of_versions_that_noted_none_are_counted(tmp_path: Path) -> None:
    here = {"schema": ENTRY_SCHEMA, "agents": 1, "machine": "Linux, CPython 3.13", "profile_digest": None}
    sessions: list[dict[str, Any]] = [{}, {**here, "machine": "Linux, CPython 3.12"}, {**here, "agents": 2}, here]
    for number, conditions in enumerate(sessions):
        keeper = open_series(tmp_path, SeriesPlan(9), resume="" if number else None)
        keeper.add(SeriesAdd(REQUEST["name"], "x", {"round": number}), conditions)
        text = keeper.describe_differences(NODEID, here)
        keeper.close()
    assert text == (
        "1 of 4 rounds came from another version; 1 of 4 rounds differed in machine (Linux, CPython 3.12, here Linux, "
        "CPython 3.13); 1 of 4 rounds differed in agents (2, here 1)"
    )
    assert keeper.describe_differences("test_it.py::test_other", here) == ""


SERIES = """
    import os
    from pytest_cloudbench import Series, SeriesPlan, Threads

    def test_it(experiment, payloads):
        resume = os.environ.get("RESUME")
        series = Series(experiment, {}, SeriesPlan(2), resume, keeps_plan=False)
        for number in series.rounds():
            experiment.run(payloads.random(10), arrival=Threads(1), files=1, mkdir=not number, store=False)
            series.add({"round": number})
            if "STOP" in os.environ:
                return
        experiment.conclude({"ok_rate": 1.0}, [1.0], stats_of="nothing")
        series.end()
"""


def test_rounds_of_another_profile_are_named_and_make_no_baseline(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A series of months survives a change, but its numbers are those of no one set-up."""
    provider = ("--provider", "emulated:./mine.toml")
    meta = '[meta]\nname = "mine"\napi = "dropbox"\ndescription = "a test"\n'
    (lab.folder / "mine.toml").write_text(meta)
    lab.write(SERIES)
    with monkeypatch.context() as only_here:
        only_here.setenv("STOP", "1")
        stopped = lab.run(*provider)
    assert stopped.status == 0, stopped.text
    (lab.folder / "mine.toml").write_text(meta + "[latency]\nmedian_s = 0.01\nsigma = 0\n")
    with monkeypatch.context() as only_here:
        only_here.setenv("RESUME", "")
        resumed = lab.run(*provider, "--cloudbench-fail", "ok_rate:10%")
    assert resumed.status == 0, resumed.text
    assert resumed.lines_with("resumed: 1 of 2 rounds differed in profile_digest (")
    assert resumed.info("test_it[emulated:./mine.toml]")["resumed_rounds"].startswith(
        "1 of 2 rounds differed in profile_digest ("
    )
    whole = lab.run(*provider, "--cloudbench-fail", "ok_rate:10%")
    assert "resumed_rounds" not in whole.info("test_it[emulated:./mine.toml]")
    assert whole.lines_with("no baseline: the stored run differed in resumed_rounds (1 of 2 rounds differed in")
    assert not lab.run(*provider, "--cloudbench-fail", "ok_rate:10%").lines_with("no baseline")
