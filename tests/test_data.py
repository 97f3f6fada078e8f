"""The shipped trace is the output of its tool. A user's file is looked up in the folder of the file that names it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from pytest_cloudbench.data import SHIPPED, read_trace
from pytest_cloudbench.model import ConfigError, Verb
from pytest_cloudbench.workload.arrival import arrival, plan
from pytest_cloudbench.workload.trace import VERBS, Replay, parse_trace
from tests.tool_scripts import load_tool


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("make_trace")


def test_the_trace_that_ships_is_made_again_from_its_seed(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.make() == read_trace("iot-hour")
    assert tool.main(["--check"]) == 0
    other = tmp_path / "other.csv"
    assert tool.main(["--seed", "other", "--output", str(other)]) == 0
    assert other.read_text() != read_trace("iot-hour")
    assert tool.main(["--output", str(other), "--check"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "other.csv: differs"


def test_shipped_trace_has_the_properties_its_tool_declares() -> None:
    text = read_trace("iot-hour")
    assert text.startswith("# Synthetic: every number is a choice, none was measured.")
    trace = parse_trace(text)
    verbs = Counter(VERBS[code] for code in trace.code)
    assert verbs.keys() == {Verb.PUT, Verb.GET}
    assert verbs[Verb.PUT] > 100 * verbs[Verb.GET] > 0
    assert trace.sensors == tuple(map(str, range(52)))
    assert set(trace.size_bytes[: trace.first[40]]) == {5 * 1024}
    assert {after - before for before, after in zip(trace.first[:40], trace.first[1:41], strict=True)} == {60}
    assert max(trace.size_bytes) <= 4_000_000
    assert trace.begin_s >= 0
    assert max(trace.time_s) < 3600


@pytest.mark.parametrize("name", SHIPPED)
def test_traces_that_ship_can_be_replayed_by_name(name: str) -> None:
    replay = arrival("trace", {"file": name, "scale": 60}, read_trace)
    assert isinstance(replay, Replay)
    schedule = plan(replay, range(replay.sensors), replay.ops_per_sensor, "seed")
    assert len(schedule) == len(replay.trace)
    assert schedule.horizon_s < 60


def test_a_file_is_found_beside_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("time\n", encoding="utf-8")
    assert read_trace("mine.csv", tmp_path) == "time\n"
    assert read_trace(str(tmp_path / "mine.csv"), Path("/nowhere")) == "time\n"


@pytest.mark.parametrize("file", ["nothing.csv", ".", "a\x00b", "latin.csv"])
def test_a_file_that_cannot_be_read_is_named(file: str, tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes(b"\xe4")
    with pytest.raises(ConfigError, match=r"cannot be read .*expected a CSV file or iot-hour") as caught:
        read_trace(file, tmp_path)
    assert str(caught.value).startswith(file)
