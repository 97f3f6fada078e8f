"""A trace through a whole run. Its operations and sizes reach the provider, and unsupported ones are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.load.engine.operations import TracedWork, Upload, find_traced_work
from pytest_cloudbench.load.names import FileNames
from pytest_cloudbench.load.request import Files, Load
from pytest_cloudbench.model import Capabilities, CloudError, Content, ErrorKind, UsageError, Verb
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.workload.arrival import FixedInterval
from pytest_cloudbench.workload.payload import RandomContent, RandomPayload
from pytest_cloudbench.workload.trace import Mixture, Replay, parse_trace
from tests.runs import SPREAD, Spread

from .harness import Lab

HEAD = "time,sensor,operation,size\n"
TRACE = HEAD + "".join(
    f"{row / 100},{row % 5},{'get' if row % 10 == 7 else 'stat' if row == 16 else 'put'},{100 + row}\n"
    for row in range(30)
)
TESTS = f'''
    import dataclasses
    from pytest_cloudbench.workload.arrival import Diurnal, Poisson
    from pytest_cloudbench.workload.trace import Replay, parse_trace

    TRACE = parse_trace({TRACE!r}, "mine.csv")

    def test_trace(experiment, payloads):
        replay = Replay(TRACE)
        result = experiment.run(
            payloads.random(1), arrival=replay, sensors=replay.sensors, ops_per_sensor=replay.ops_per_sensor
        )
        result.check()
        assert result["ops"] == 30 and result["files"] == 26 and result["lost"] == 0 and result.doubts == ()

    def test_poisson(experiment, payloads):
        assert experiment.run(payloads.random(9), arrival=Poisson(0.05), sensors=6, ops_per_sensor=3)["ok"] == 18

    def test_bad(experiment, payloads):
        replay = Replay(parse_trace("{HEAD.strip()}\\n0,0,delete,0\\n"))
        experiment.run(payloads.random(9), arrival=replay, sensors=1, ops_per_sensor=1)
'''


@pytest.mark.slow
@SPREAD
def test_a_trace_is_replayed_by_any_number_of_agents(lab: Lab, spread: Spread) -> None:
    run = lab.write(TESTS).run("--provider", "folder:objects", *spread, "-k", "trace or poisson")
    assert run.status == 0, run.text
    table = run.records()["test_trace"]
    operations = {
        (sensor, seq): (verb, size)
        for sensor, seq, verb, size in zip(table.sensor, table.seq, table.verb, table.size_bytes, strict=True)
    }
    expected = {}
    for row in range(30):
        verb = Verb.GET if row % 10 == 7 else Verb.STAT if row == 16 else Verb.PUT
        size = {Verb.PUT: 100 + row, Verb.GET: 100 + row - 5, Verb.STAT: 0}[verb]
        expected[row % 5, row // 5] = (verb, size)
    assert operations == expected
    info = run.info("test_trace[folder:objects]")
    assert "mine.csv, 5 sensors, 30 operations" in info["arrival"]
    assert info["size_bytes"] is None


def test_trace_with_unsupported_operation_fails_in_one_line(lab: Lab) -> None:
    run = lab.write(TESTS).run("--provider", "folder:objects", "-k", "bad")
    assert run.status == 1, run.text
    assert run.lines_with("operation 1 of sensor 0 is delete; only put, get, stat, list are replayed")


@pytest.mark.parametrize(
    "arrival",
    [Replay(parse_trace(HEAD + "0,0,put,1\n")), Mixture(FixedInterval(1.0), {Verb.PUT: 1.0}, 9)],
    ids=["trace", "mixture"],
)
def test_files_of_a_trace_are_not_kept_because_their_sizes_are_not_known_later(arrival: Replay | Mixture) -> None:
    with pytest.raises(UsageError, match=r"keep=True: .* sets the size of each file, which a later run does not know"):
        Load(RandomPayload("seed", 1), arrival=arrival, sensors=1, keep=True).check()
    Load(RandomPayload("seed", 1), arrival=arrival, sensors=1).check()


@pytest.mark.slow
def test_the_budget_of_a_trace_counts_its_bytes(lab: Lab) -> None:
    run = lab.write(TESTS).run("--provider", "folder:objects", "-k", "trace", "--max-bytes", "1000")
    assert run.status == 1, run.text
    table = run.records()["test_trace"]
    assert 0 < sum(table.size_bytes) <= 1000
    assert run.lines_with("--max-bytes 1000 is used up")


def test_the_load_of_a_trace() -> None:
    replay = Replay(parse_trace(HEAD + "1,0,put,9\n2,0,get,1\n3,0,put,5\n4,0,stat,0\n5,0,list,3\n1,1,list,0\n"))
    assert find_traced_work(replay, range(3), 9) == TracedWork(
        {Verb.PUT: 2, Verb.GET: 1, Verb.STAT: 1, Verb.LIST: 2}, 9 + 5, 9, {(0, 1): (0, 9), (0, 3): (2, 5)}
    )
    assert find_traced_work(replay, range(1), 2) == TracedWork({Verb.PUT: 1, Verb.GET: 1}, 9, 9, {(0, 1): (0, 9)})
    assert find_traced_work(replay, (), 2) == TracedWork({}, 0, 0, {})
    assert find_traced_work(FixedInterval(1.0), range(3), 2) is None
    assert find_traced_work(FixedInterval(1.0), (), 2) is None


def test_a_read_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="operation 1 of sensor 1 is get, but the sensor has put nothing before"):
        find_traced_work(Replay(parse_trace(HEAD + "0,0,put,1\n1,1,get,1\n")), range(2), 9)


def test_a_trace_with_calendar_times_is_refused_unless_they_count_from_its_first() -> None:
    trace = parse_trace(HEAD + "1700000000,a,put,5\n1700000001,a,put,5\n")
    text = "begins after 19,675.9 days; with from_first, its times count from its earliest row"
    with pytest.raises(UsageError, match=text):
        find_traced_work(Replay(trace), range(1), 2)
    for replay in (
        Replay(trace, from_first=True),
        Replay(trace, scale=1e6),
        Replay(parse_trace(HEAD + "86400,a,put,5\n")),
    ):
        work = find_traced_work(replay, range(1), 2)
        assert work is not None
        assert work.up_bytes == 5 * replay.ops_per_sensor


class CannedDriver:
    """A driver that gives the same pieces for every request."""

    capabilities = Capabilities(digest=None, verbs=frozenset())

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        return iter(self.pieces)


FILES = Files("/f", RandomPayload("seed", 1))


def make_driver(*pieces: bytes) -> Driver:
    return cast(Driver, CannedDriver(*pieces))


def test_a_download_has_a_first_byte_and_the_length_that_was_uploaded() -> None:
    def get(*pieces: bytes) -> int:
        task = Upload(make_driver(*pieces), FILES, {(0, 1): (0, 5)}).step(Verb.GET, 0)
        prepared, size_bytes, _ = task.prepare(0, 1)
        assert (prepared[0], size_bytes) == (f"/f/{FileNames().name(0, 0)}", 5)
        return task.execute(prepared)

    right, before = RandomPayload("seed", 5).content(0, 0).read(0, 5), now_ns()
    assert before <= get(right[:2], right[2:]) <= now_ns()
    for wrong, message in ((right[:4], "4 bytes instead of 5"), (b"12345", "other bytes than were uploaded")):
        with pytest.raises(CloudError, match=message) as caught:
            get(wrong)
        assert caught.value.kind is ErrorKind.CORRUPT


def test_files_get_the_size_of_their_row_and_differ() -> None:
    upload = Upload(make_driver(), FILES)
    (_, first), size_bytes, _ = upload.step(Verb.PUT, 70).prepare(0, 0)
    assert (first.size_bytes, size_bytes) == (70, 70)
    (_, second), _, _ = upload.step(Verb.PUT, 70).prepare(0, 1)
    assert first.read(0, 70) != second.read(0, 70)


def test_a_generator_of_one_size_cannot_be_replayed() -> None:
    class OneSize:
        size_bytes = 3

        def content(self, sensor: int, seq: int) -> Content:
            return RandomContent("key", 3)

    with pytest.raises(UsageError, match="OneSize makes files of one size only"):
        Upload(make_driver(), Files("/f", OneSize())).step(Verb.PUT, 4)
