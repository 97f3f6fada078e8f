"""How a run's operations and its budget are dealt out to agents."""

from __future__ import annotations

import pytest

from pytest_cloudbench.load.engine.operations import Deal, agent_budget
from pytest_cloudbench.load.request import Files, Load
from pytest_cloudbench.model import Verb
from pytest_cloudbench.workload.arrival import Arrival, Closed, FixedInterval, ThinkTime, Threads
from pytest_cloudbench.workload.payload import Generator, Payloads
from suites.availability.rounds import SizeClasses
from tests.fleet.harness import grid

OF_MANY_SIZES = [
    SizeClasses("s", (1000, 1, 10)),
    Payloads("s").mixed("lognormal", median_bytes=1000, sigma=3.0),
]


@pytest.mark.parametrize("payload", OF_MANY_SIZES, ids=["size classes", "mixed"])
@pytest.mark.parametrize("agents", [1, 2, 4])
def test_a_bound_above_all_files_stops_no_agent(payload: Generator, agents: int) -> None:
    deal = Deal(Threads(4), 25, 1)
    for index in range(agents):
        sizes = [payload.content(*file).size_bytes for file in deal.agent_files(index, agents)]
        max_bytes = agent_budget(deal, payload, False, (index, agents), (None, 10**13)).max_bytes
        assert max_bytes is not None
        assert max_bytes >= sum(sizes)


@pytest.mark.parametrize("payload", [*OF_MANY_SIZES, Payloads("s").random(100)], ids=["size classes", "mixed", "equal"])
@pytest.mark.parametrize("agents", [1, 2, 4])
@pytest.mark.parametrize("bound", [0, 1, 999, 123_457, 1_000_001, 10**13])
def test_agents_share_a_bound_and_no_more(payload: Generator, agents: int, bound: int) -> None:
    deal = Deal(Threads(4), 25, 1)
    budgets = [agent_budget(deal, payload, False, (index, agents), (None, bound)) for index in range(agents)]
    shares = [budget.max_bytes or 0 for budget in budgets]
    assert bound - agents < sum(shares) <= bound


def files_of(counts: list[int]) -> Files:
    members = [(sensor, seq) for sensor, count in enumerate(counts) for seq in range(count)]
    return Files("/f", Payloads("s").random(1), members)


@pytest.mark.parametrize("arrival", [ThinkTime(0), FixedInterval(1)], ids=["closed", "open"])
@pytest.mark.parametrize("verb", [Verb.GET, Verb.STAT, Verb.DELETE])
def test_a_sensor_without_files_does_nothing_with_files_in_turn(arrival: Arrival | Closed, verb: Verb) -> None:
    load = Load(arrival=arrival, on=files_of([0, 3, 1]), in_turn=True, operation=verb, sensors=4, ops_per_sensor=5)
    deal = Deal.from_load(load, None)
    assert [deal.ops_of_sensor(sensor) for sensor in range(4)] == [0, 5, 5, 0]
    assert deal.ops == 10


@pytest.mark.parametrize("verb", [Verb.PUT, Verb.LIST])
def test_operations_that_need_no_file_are_done_by_all_sensors(verb: Verb) -> None:
    load = Load(arrival=ThinkTime(0), on=files_of([0, 3, 1]), in_turn=True, operation=verb, sensors=4, ops_per_sensor=5)
    assert sorted(Deal.from_load(load, None).agent_files(0, 1)) == grid(4, 5)
