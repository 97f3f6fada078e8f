"""The summary of a location: the limits of the servers' distances, and values that must stay unknown."""

from __future__ import annotations

from pytest_cloudbench.net.locate.placing import Location
from pytest_cloudbench.net.locate.sphere import Cap, Position, distance_km
from pytest_cloudbench.net.locate.summary import bound_distance_km, summarize_location

OSLO, ROME = Position(59.91, 10.75), Position(41.89, 12.48)


def server(place: str, cap: Cap | None, vantages: int = 1) -> Location:
    return Location("192.0.2.1", "Fjord AS", "registry", place, cap, "round trips", vantages, "unknown")


def test_all_servers_are_between_the_two_distances() -> None:
    caps = [Cap(OSLO, 50.0), Cap(ROME, 120.0)]
    near_km, far_km = bound_distance_km(caps, Cap(OSLO, 10.0))
    assert (near_km, far_km) == (0.0, round(distance_km(OSLO, ROME) + 130, 1))
    assert bound_distance_km(caps[1:], Cap(OSLO, 10.0))[0] == round(distance_km(OSLO, ROME) - 130, 1)


def test_a_distance_is_unknown_without_the_place_of_this_machine_or_of_one_server() -> None:
    for caps, here in (([Cap(OSLO, 50.0)], None), ([Cap(OSLO, 50.0), None], Cap(ROME, 1.0)), ([], Cap(ROME, 1.0))):
        assert bound_distance_km(caps, here) == (None, None)


def test_servers_that_differ_are_named_one_after_the_other() -> None:
    servers = [server("Oslo", Cap(OSLO, 50.0)), server("Rome", Cap(ROME, 50.0)), server("Oslo", Cap(OSLO, 50.0))]
    summary = summarize_location(["a.example"], servers, None, "2026-11-27")
    assert summary is not None
    assert (summary["place"], summary["operator"], summary["servers"]) == ("Oslo or Rome", "Fjord AS", 3)


def test_location_is_absent_without_measurement_and_unknown_after_failed_ones() -> None:
    assert summarize_location(["a.example"], [server("unknown", None, 0)], None, "2026-11-27") is None
    summary = summarize_location(["a.example"], [server("unknown", None, 2)], None, "2026-11-27")
    assert summary is not None
    assert summary["place"] == "unknown"
