"""The datacenters suite locates this machine where the option says, and finds no server of a folder."""

from __future__ import annotations

import pytest

from tests.fleet.harness import Lab
from tests.suites.harness import SUITES, run_suite


@pytest.mark.slow
def test_local_service_is_located_at_this_machine(lab: Lab) -> None:
    run = run_suite(lab, "datacenters", "--provider", "emulated:ideal", "--datacenters-here", "59.91,10.75")
    info = run.info("test_provider[emulated:ideal]")
    (server,) = info["places"]
    assert server["address"] == "127.0.0.1"
    assert info["place"].endswith("km of Oslo")
    assert server["radius_km"] < 500
    assert info["located_share"] == 1.0
    assert info["layer"] in {"storage", "unknown"}
    assert 0 < info["server_rtt"] < 1
    assert info["emulated"] is True


@pytest.mark.slow
def test_later_runs_state_the_location_of_servers(lab: Lab) -> None:
    run_suite(lab, "datacenters", "--provider", "emulated:ideal", "--datacenters-here", "59.91,10.75")
    lab.write("""
        def test_it(experiment, payloads):
            experiment.run(payloads.random(10), arrival=FixedInterval(0.01), sensors=1, ops_per_sensor=3)
    """)
    (lab.folder / "objects").mkdir(exist_ok=True)
    run = lab.run("--provider", "emulated:ideal", "--provider", "folder:objects")
    located = run.info("test_it[emulated:ideal]")["location"]
    assert located["place"].endswith("km of Oslo")
    assert located["nearest_km"] == 0.0
    assert run.lines_with("km away")
    assert "location" not in run.info("test_it[folder:objects]")


@pytest.mark.slow
def test_locations_stand_beside_providers_in_the_table(lab: Lab) -> None:
    (lab.folder / "objects").mkdir(exist_ok=True)
    providers = ("--provider", "folder:objects", "--provider", "emulated:ideal")
    run = run_suite(lab, "datacenters", *providers, "--datacenters-here", "59.91,10.75")
    head = run.lines_with("round trip ms")[0]
    assert "location" in head
    assert run.lines_with("km of Oslo")


@pytest.mark.slow
def test_without_a_place_of_this_machine_nothing_is_located(lab: Lab) -> None:
    info = run_suite(lab, "datacenters", "--provider", "emulated:ideal").info("test_provider[emulated:ideal]")
    assert (info["place"], info["located_share"]) == ("unknown", 0.0)
    assert info["contacted_servers"] == 1


@pytest.mark.slow
def test_a_folder_has_no_server(lab: Lab) -> None:
    (lab.folder / "objects").mkdir(exist_ok=True)
    info = run_suite(lab, "datacenters", "--provider", "folder:objects").info("test_provider[folder:objects]")
    assert (info["contacted_servers"], info["located_share"], info["server_rtt"]) == (0, None, None)


def test_unknown_location_option_is_refused(lab: Lab) -> None:
    (lab.folder / "objects").mkdir(exist_ok=True)
    run = run_suite(lab, "datacenters", "--provider", "folder:objects", "--datacenters-here", "Atlantis")
    assert run.status != 0
    assert "here: 'Atlantis': expected a city" in run.text


@pytest.mark.slow
def test_a_client_contacts_its_server_at_the_start_and_after_a_change_and_not_when_idle(lab: Lab) -> None:
    run = lab.run(str(SUITES / "datacenters" / "test_clients.py"), "-rs", "--client", "reference")
    if run.lines_with("SKIPPED"):
        pytest.skip(run.lines_with("SKIPPED")[0])
    info = run.info("test_client[reference]")
    assert [info[f"{phase}_servers"] for phase in ("start", "change", "idle")] == [1, 1, 0]
    assert info["phases"]["idle"] == []
    assert info["place"] == "here, on a link of the run"
