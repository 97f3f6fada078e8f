"""Arrays and grids survive the loss of nodes. Those that lose more than they promise, or whose repair does nothing, are
found.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_cloudbench import Endpoint, Inquiry, ProviderSpec, connect_driver, load_recipe, open_provider
from pytest_cloudbench.drivers.tahoe import TahoeDriver
from pytest_cloudbench.providers import Provider
from pytest_cloudbench.providers.for_agents import Provided
from suites.security import grid, nodes
from tests.fleet.harness import Lab

from .harness import SUITES

needs_numpy = pytest.mark.skipif(find_spec("numpy") is None, reason="an array needs the raid extra")
needs_tahoe = pytest.mark.skipif(
    bool(load_recipe("tahoe").describe_missing()), reason="cloudbench testbed install tahoe"
)


@needs_numpy
@pytest.mark.slow
def test_array_survives_its_promised_losses() -> None:
    ruling = nodes.try_losses(ProviderSpec.parse("raid:six"))
    assert (ruling.answer, ruling.how) == ("yes", "read with 2 of 6 nodes killed, and after a repair with 2 others")
    assert ruling.evidence[0] == "1 of 6 nodes killed: read, not written"
    assert ruling.evidence[-1] == "3 nodes killed: not read"


@needs_numpy
@pytest.mark.slow
def test_a_repair_that_does_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "note_all_missing", lambda array, child: 0)
    ruling = nodes.try_losses(ProviderSpec.parse("raid:six"))
    assert (ruling.answer, ruling.how) == ("no", "it survives 2 of 6 nodes, but is not whole after a repair")


def write_array(folder: Path, k: int, m: int) -> ProviderSpec:
    """Write the file of an array of emulated children, and return its spec."""
    children = ["emulated:ideal"] * (k + m)
    (folder / "array.toml").write_text(f'k = {k}\nm = {m}\nkey = "array.key"\nchildren = {children}\n', "utf-8")
    return ProviderSpec.parse(f"raid:{folder}/array.toml")


@needs_numpy
@pytest.mark.slow
def test_an_array_that_promises_to_survive_nothing_does_not_pass_for_one_that_survives(tmp_path: Path) -> None:
    ruling = nodes.try_losses(write_array(tmp_path, 2, 0))
    assert (ruling.answer, ruling.how) == ("no", "not read with 1 of 2 nodes killed; it promises to survive none")


@needs_numpy
@pytest.mark.slow
def test_nothing_follows_if_an_array_is_read_without_enough_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "can_read", lambda array, path, content: True)
    ruling = nodes.try_losses(write_array(tmp_path, 1, 1))
    assert (ruling.answer, ruling.evidence[-1]) == ("unknown", "2 nodes killed: read")


def test_a_service_that_shows_no_nodes_is_not_judged() -> None:
    with open_provider("emulated:ideal") as provider:
        inquiry = Inquiry(provider, "/run", "seed", lambda: None, lambda _: None)
        assert nodes.ask_nodes(inquiry).answer == "unknown"


@needs_tahoe
@pytest.mark.slow
@pytest.mark.parametrize(("needed", "happy", "total"), [(2, 3, 4), (1, 3, 3), (3, 3, 4)])
def test_grid_survives_its_promised_losses(needed: int, happy: int, total: int) -> None:
    ruling, spare = grid.try_servers(needed, happy, total), total - needed
    how = f"read with {spare} of {total} nodes killed, and after a repair with {spare} others"
    assert (ruling.answer, ruling.how) == ("yes", how), ruling
    written = ["written" if total - lost >= happy else "not written" for lost in range(1, spare + 1)]
    assert ruling.evidence[0] == f"N={total} shares on as many nodes; H={happy} for a write, K={needed} for a read"
    assert [line.rpartition(", ")[2] for line in ruling.evidence[1 : spare + 1]] == written
    assert ruling.evidence[-1] == "a file that was not repaired: not read"


@needs_tahoe
@pytest.mark.slow
def test_a_grid_that_survives_less_than_it_says_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    start = grid.Grid.start
    monkeypatch.setattr(grid.Grid, "start", lambda needed, happy, total, stack: start(3, happy, total, stack))
    ruling = grid.try_servers()
    assert (ruling.answer, ruling.how) == ("no", "with 2 of 4 nodes killed it cannot be read; it promises 2")


@needs_tahoe
@pytest.mark.slow
def test_grid_with_ineffective_repair_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    repair = TahoeDriver.repair
    monkeypatch.setattr(TahoeDriver, "repair", lambda driver, path: path == "/kept" or repair(driver, path))
    ruling = grid.try_servers()
    assert (ruling.answer, ruling.how) == ("no", "it survives 2 of 4 nodes, but is not whole after a repair")


@needs_tahoe
@pytest.mark.slow
def test_nodes_that_are_not_lost_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid.Grid, "lose_oldest", lambda started: True)
    assert grid.try_servers().answer == "unknown"


@needs_tahoe
@pytest.mark.slow
def test_the_suite_asks_a_grid_of_this_run(lab: Lab) -> None:
    test = f"{SUITES}/security/test_security.py::test_section_2_3"
    run = lab.run(test, "--provider", "local:tahoe")
    assert run.counts() == {"passed": 1}, run.text
    assert run.info("test_section_2_3[local:tahoe-nodes]")["answer"] == "yes"


def test_a_grid_that_is_not_of_this_run_is_not_killed() -> None:
    spec = "tahoe:https://example.org"
    driver = connect_driver(ProviderSpec.parse(spec), Endpoint({"": "https://example.org"}, {"cap": "URI:DIR2:a:b"}))
    provider = Provider(spec, open=lambda: (driver, Provided(spec)))
    ruling = nodes.ask_nodes(Inquiry(provider, "/run", "seed", lambda: None, lambda _: None))
    assert (ruling.answer, ruling.how) == ("unknown", "only nodes that a run starts are killed, not those of tahoe")
    driver.close()
