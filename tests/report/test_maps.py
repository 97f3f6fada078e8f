"""Maps show the regions of an entry's servers, and the number of servers without a region."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import pytest

from pytest_cloudbench.net.locate.sphere import Cap, Position
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.figures.maps import draw_maps
from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.results.suite import Suite, WorldMap, read_declared

ROW = WorldMap("test_*", "places", "Where the servers are")


def make_measurement(subject: str, places: Any) -> Measurement:
    """Return a measurement whose entry lists servers."""
    nodeid = "suites/datacenters/test_datacenters.py::test_provider"
    return Measurement(nodeid, subject, "test_provider", {}, {"places": places}, (), {}, run=cast(Any, None))


def server_row(name: str, cap: Cap | None) -> dict[str, Any]:
    row = {"name": name, "address": "192.0.2.1", "operator": "Fjord", "place": "somewhere", "known_by": "round trips"}
    if cap is None:
        return row
    return {**row, "latitude_deg": cap.center[0], "longitude_deg": cap.center[1], "radius_km": cap.radius_km}


def draw(*members: Measurement) -> tuple[Figure, str]:
    (figure,) = draw_maps(ROW, members)
    return figure, figure.draw(380).to_svg()


OSLO = Cap(Position(59.9, 10.7), 180.0)


def test_map_draws_region_and_counts_servers_without_one() -> None:
    figure, svg = draw(make_measurement("a", [server_row("files.example", OSLO), server_row("lost.example", None)]))
    assert svg.count('class="reach') == 1
    assert 'class="land"' in svg
    assert "1 server of a with a known region, and 1 without" in figure.description
    assert figure.rows[0] == [
        "a", "files.example", "192.0.2.1", "Fjord", "somewhere", 59.9, 10.7, 180.0, "round trips",
    ]  # fmt: skip
    assert figure.rows[1][5:8] == [None, None, None]


@pytest.mark.parametrize("center", [Position(-18.0, 179.5), Position(-18.0, -179.5), Position(80.0, 0.0)])
def test_a_region_beyond_180_degrees_is_drawn_without_a_bar(center: Position) -> None:
    _, svg = draw(make_measurement("a", [server_row("a", Cap(center, 500.0))]))
    path = re.findall(r'<path d="([^"]+)" class="reach', svg)[0]
    steps = [float(number) for number in re.findall(r"-?[\d.]+", path.partition("l")[2])]
    assert max(map(abs, steps)) < 60


def test_servers_all_over_the_world_fit() -> None:
    caps = [OSLO, Cap(Position(-36.8, 174.7), 900.0), Cap(Position(39.0, -77.5), 250.0)]
    _, svg = draw(make_measurement("a", [server_row(str(number), cap) for number, cap in enumerate(caps)]))
    assert svg.count('class="reach') == 3
    assert len(svg) < 60_000


@pytest.mark.parametrize("places", [None, "x", [1], [], {}])
def test_an_entry_without_servers_has_no_map(places: Any) -> None:
    assert draw_maps(ROW, [make_measurement("a", places)]) == []


def test_numbers_that_are_no_region_are_no_region() -> None:
    odd = {"name": "odd", "latitude_deg": 999.0, "longitude_deg": float("nan"), "radius_km": "far"}
    figure, svg = draw(make_measurement("a", [odd]))
    assert 'class="reach' not in svg
    assert figure.rows[0][5] is None


def test_areas_that_a_paper_names_are_rings_beside_the_servers() -> None:
    places = (
        ("Dropbox <storage>: Northern Virginia", 38.9, -77.5), ("Wuala: Zurich", 47.4, 8.5),
        ("Nowhere", float("nan"), 400.0),
    )  # fmt: skip
    row = ROW._replace(published=places)
    (figure,) = draw_maps(row, [make_measurement("a", [server_row("files.example", OSLO)])])
    svg = figure.draw(380).to_svg()
    rings = re.findall(r'<circle cx="([\d.]+)" cy="[\d.]+" r="4" class="published"><title>([^<]+)', svg)
    assert [title for _, title in rings] == ["Dropbox &lt;storage&gt;: Northern Virginia", "Wuala: Zurich"]
    assert 0 < float(rings[0][0]) < float(rings[1][0]) < 380
    assert "Rings: 2 areas that the paper names" in figure.description
    assert [line[0] for line in figure.rows] == ["a", "published", "published"]
    assert draw_maps(row, [make_measurement("a", [])]) == []


def test_published_areas_survive_an_entry() -> None:
    row = ROW._replace(published=(("Wuala: Zurich", 47.4, 8.5),))
    plain = json.loads(json.dumps(Suite("own", figures=(row,)).about("test_it").plain()))
    declared = read_declared(plain)
    assert declared is not None
    assert declared.figures == (row,)
