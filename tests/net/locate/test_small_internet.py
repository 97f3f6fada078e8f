"""``cloudbench locate`` in a known small internet: places, owners, anycast, a proxy, and answers by subnet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pytest_cloudbench.net.locate.placing import judge_layer
from pytest_cloudbench.net.locate.sphere import Position, distance_km
from tests.limits import HANG_S
from tests.truths import Truths

from .content_times import expected_layer
from .plans import Plan
from .world import (
    ANYCAST,
    CDN,
    EDGE_A,
    EDGE_B,
    FALSE,
    FAR_ROUTER,
    NAMED,
    NAMES,
    NEAR_ROUTER,
    NEEDS_NAMESPACES,
    PLAIN,
    POOL,
    SIX,
    STORAGE,
    World,
    region_of,
)

pytestmark = [pytest.mark.slow, NEEDS_NAMESPACES]

OSLO, BERLIN, MADRID, ROME = (
    Position(59.91, 10.75), Position(52.52, 13.41), Position(40.42, -3.70), Position(41.89, 12.48),
)  # fmt: skip
ZURICH, LONDON, LISBON = Position(47.38, 8.54), Position(51.51, -0.13), Position(38.72, -9.14)
PLAN = Plan(
    BERLIN, {"oslo": OSLO, "madrid": MADRID, "rome": ROME}, ZURICH, ZURICH, (LONDON, "lhr"), (ROME, "lhr"),
    (OSLO, ROME), (OSLO, ROME), OSLO, MADRID, proxied=LISBON, routers=(FAR_ROUTER, NEAR_ROUTER),
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"), PLAN)
    with world.internet:
        yield world


@pytest.mark.truth  # beside busy processes, round trips are too long to confirm that London is possible
def test_places_owners_and_anycast_are_as_they_were_set(world: World) -> None:
    result = world.locate(*NAMES)
    servers = result["servers"]
    for address, truth in ((PLAIN, ZURICH), (NAMED, LONDON), (FALSE, ROME), (EDGE_A, OSLO)):
        center, radius_km = region_of(servers[address])
        assert distance_km(center, truth) <= radius_km, address
    assert servers[PLAIN]["operator"] == "Alpine Storage AG"
    assert servers[PLAIN]["vantage_points"] == 4
    assert (servers[NAMED]["operator"], servers[NAMED]["place"]) == ("Google", "London")
    assert "excluded" in servers[FALSE]["known_by"]
    assert servers[ANYCAST]["place"] == "unknown"
    assert servers[ANYCAST]["known_by"].startswith("anycast: at least 2 servers")
    assert result["names"]["edges.example"]["addresses"] == [EDGE_A]


def test_a_server_beside_a_vantage_point_is_placed_within_500_km(world: World) -> None:
    _, radius_km = region_of(world.locate("edges.example")["servers"][EDGE_A])
    assert radius_km < 500


def test_more_addresses_come_to_light_by_clients_networks(world: World) -> None:
    result = world.locate("plain.example", "edges.example", "--subnets", "subnets.txt")
    assert result["names"]["plain.example"]["heeds_subnets"] is None
    assert result["names"]["edges.example"] == {
        "addresses": [EDGE_A, EDGE_B], "phases": [], "heeds_subnets": True,
    }  # fmt: skip
    for address, truth in ((EDGE_A, OSLO), (EDGE_B, ROME)):
        center, radius_km = region_of(result["servers"][address])
        assert distance_km(center, truth) <= radius_km


def test_answers_from_a_pool_by_chance_heed_no_subnet(world: World) -> None:
    answer = world.locate(POOL, "--subnets", "subnets.txt", vantages=())["names"][POOL]
    assert answer["heeds_subnets"] is None
    assert {*answer["addresses"]} <= {EDGE_A, EDGE_B}


def test_a_vantage_point_behind_a_proxy_does_not_fake_anycast(world: World) -> None:
    server = world.locate("plain.example", vantages=("oslo", "rome", "proxied"))["servers"][PLAIN]
    center, radius_km = region_of(server)
    assert distance_km(center, ZURICH) <= radius_km
    assert "proxy" in server["left_out"]["proxied"]
    assert server["vantage_points"] == 3


def test_a_proxy_for_ipv6_alone_is_found_too(world: World) -> None:
    server = world.locate("six.example", vantages=("oslo", "proxied"))["servers"][SIX]
    center, radius_km = region_of(server)
    assert distance_km(center, ZURICH) <= radius_km
    assert "proxy" in server["left_out"]["proxied"]


def test_routers_before_a_server_give_hints_that_round_trips_allow(world: World) -> None:
    result = world.locate("plain.example", "named.example", "--save", "traced.json")
    hint = "Zurich in ae1.zrh2.transit.example.net, a router before it"
    assert result["servers"][PLAIN]["hints"] == [hint]  # a router in Tokyo is too far from the server
    assert result["servers"][NAMED]["hints"] == []
    hops = json.loads((world.folder / "traced.json").read_bytes())["hops"]
    assert [hop["address"] for hop in hops[PLAIN]] == [FAR_ROUTER, NEAR_ROUTER]
    assert hops[NAMED] == []
    assert all(hop["rtt_ms"] > distance_km(BERLIN, ZURICH) / 100 for hop in hops[PLAIN])


def test_any_user_may_ask_for_the_way_to_a_server(world: World) -> None:
    code = (
        "import os; from pytest_cloudbench.net.locate.trace import trace_route; os.setgid(65534); os.setuid(65534); "
        f"print(*(hop.address for hop in trace_route('{PLAIN}')))"
    )
    command = world.sites["home"].command(sys.executable, "-c", code)
    finished = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
    assert finished.stdout.split() == [FAR_ROUTER, NEAR_ROUTER]


def test_locate_tells_a_storage_by_content_that_nobody_has_read_before(world: World, truths: Truths) -> None:
    words = ("--content", f"http://{STORAGE}/new-1", f"http://{STORAGE}/new-2", "--save", "read.json")
    server = world.locate(*words)["servers"][STORAGE]
    center, radius_km = region_of(server)
    assert distance_km(center, MADRID) <= radius_km
    rows = json.loads((world.folder / "read.json").read_bytes())["content"][STORAGE]
    assert server["layer"] == expected_layer(rows, truths), server["layer_by"]


def test_locate_takes_no_edge_for_a_storage(world: World) -> None:
    server = world.locate("--content", f"http://{CDN}/new-1", f"http://{CDN}/new-2")["servers"][CDN]
    assert server["layer"] == "unknown"
    assert "a long way behind, or a slow disc" in server["layer_by"]


def test_an_edge_in_front_of_a_storage_is_no_storage(world: World) -> None:
    rtt_ms, first_bytes_ms = world.read_first_bytes(CDN)
    assert min(first_bytes_ms) - rtt_ms > distance_km(OSLO, MADRID) / 100
    assert judge_layer(rtt_ms, first_bytes_ms, "edge")[0] == "edge"
    assert judge_layer(rtt_ms, first_bytes_ms)[0] == "unknown"


def test_storage_server_is_recognized_by_its_first_bytes(world: World) -> None:
    assert judge_layer(*world.read_first_bytes(STORAGE))[0] == "storage"
