"""``cloudbench locate`` in random small internets: no answer is wrong, whatever the layout."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.lab.locating import LocateTables
from pytest_cloudbench.net.link import Way
from pytest_cloudbench.net.locate import rtt
from pytest_cloudbench.net.locate.discs import KM_PER_MS, SLACK_KM, WIDEST_KM
from pytest_cloudbench.net.locate.sphere import Position, distance_km
from pytest_cloudbench.net.locate.survey import NameSeen, ServerSurvey, VantagePoint

from .layouts import MOST_VANTAGES, PATHS, make_layout
from .plans import KINDS, make_plan
from .small_internet import Site, SmallInternet, enter_site
from .world import (
    ALIASES,
    ANYCAST,
    ANYCAST_2,
    CDN,
    EDGE_A,
    EDGE_B,
    FALSE,
    NAMED,
    NAMES,
    NEEDS_NAMESPACES,
    OWNER,
    PLAIN,
    SIX,
    STORAGE,
    World,
    region_of,
)

pytestmark = [pytest.mark.slow, NEEDS_NAMESPACES]
_ROUNDED_KM = 0.1
LAYOUTS = 200
CENTER = Position(0.0, 0.0)


@cache
def tables() -> LocateTables:
    return LocateTables()


@pytest.mark.parametrize("kind", KINDS)
def test_no_answer_is_wrong_in_a_small_internet_at_random(kind: str, tmp_path: Path) -> None:
    world = World(tmp_path, make_plan(kind, seed=1))
    with world.internet:
        names = [*NAMES, "alias.example"]
        result = world.locate(*names, "--subnets", "subnets.txt", "--save", "seen.json")
        content_result = world.locate("--content", f"http://{STORAGE}/new", f"http://{CDN}/new", "--save", "read.json")
    survey = json.loads((tmp_path / "seen.json").read_bytes())
    check_places(world, result["servers"], survey)
    check_places(world, content_result["servers"], json.loads((tmp_path / "read.json").read_bytes()))
    check_names(world, result, survey)
    assert content_result["servers"][CDN]["layer"] == "unknown"
    assert content_result["servers"][STORAGE]["layer"] in {"storage", "unknown"}


def test_the_truth_is_inside_the_answer_of_200_layouts_that_connects_measured() -> None:
    vantages = {
        f"v{number}": Site(f"v{number}", CENTER, (f"198.18.{20 + number}.1",)) for number in range(MOST_VANTAGES)
    }
    server = Site("server", CENTER, (PLAIN,))  # its ports are closed, and a refusal takes as long as an answer
    with SmallInternet(server, *vantages.values()) as internet, ExitStack() as stack:
        threads = {name: stack.enter_context(start_thread(site)) for name, site in vantages.items()}
        outcomes = [check_layout(internet, threads, seed) for seed in range(LAYOUTS)]
    assert sum(is_placed for is_placed, _ in outcomes) > LAYOUTS // 2
    assert sum(is_near for _, is_near in outcomes) > LAYOUTS // 10


def check_layout(internet: SmallInternet, threads: dict[str, ThreadPoolExecutor], seed: int) -> tuple[bool, bool]:
    """Measure one layout by real connects and judge it. Return whether it was placed, and by a near vantage point."""
    layout = make_layout(seed, paths=[*PATHS][seed % 3], is_odd=True)
    share_out = (seed % 9 + 1) / 10  # ways there and back are rarely the same
    rtts = {disc.vantage: disc.rtt_ms for disc in layout.discs}

    def way(source: Site, target: Site) -> Way:
        if target.name == "server":
            return Way(rtts.get(source.name, 0.0) * share_out)
        return Way(rtts.get(target.name, 0.0) * (1 - share_out))

    internet.change_ways(way)
    request = {
        "addresses": [PLAIN], "port": 443, "connects": 2, "gap_s": 0.0, "timeout_s": 10.0, "controls": [],
    }  # fmt: skip
    futures = {name: threads[name].submit(rtt.measure, request) for name in rtts}
    vantages = [
        VantagePoint(disc.vantage, *disc.center, rtts=futures[disc.vantage].result()["rtts"], has_proxy=False)
        for disc in layout.discs
    ]
    locations, _ = tables().judge(ServerSurvey("2026-11-27", {"a.example": NameSeen([PLAIN])}, vantages))
    location = locations[PLAIN]
    smallest_ms = min(min(vantage.rtts[PLAIN]) for vantage in vantages)
    if location.cap is None:
        assert (location.by.partition(":")[0], smallest_ms * KM_PER_MS > WIDEST_KM) == ("too wide", True), seed
        return False, False
    assert distance_km(location.cap.center, layout.truth) <= location.cap.radius_km, seed
    assert location.cap.radius_km <= smallest_ms * KM_PER_MS + 1e-6, seed
    assert smallest_ms > 5 or location.cap.radius_km < 500, seed
    return True, smallest_ms <= 5


def start_thread(site: Site) -> ThreadPoolExecutor:
    """Start a thread that stays in a site's namespace."""
    stack = ExitStack()
    return ThreadPoolExecutor(1, initializer=lambda: stack.enter_context(enter_site(site)))


def check_places(world: World, servers: dict[str, Any], survey: dict[str, Any]) -> None:
    """Check each server's region against the truth, and against the shortest round trip that was stored."""
    rows = [row for row in survey["vantages"] if not row["has_proxy"]]
    assert [row["name"] for row in survey["vantages"] if row["has_proxy"]] == (
        ["proxied"] if world.plan.proxied is not None else []
    )
    for address, truth in world.truths.items():
        if address not in servers:
            continue
        smallest_ms = min(min(row["rtts"][address]) for row in rows if row["rtts"].get(address))
        if servers[address]["region"] is None:
            assert servers[address]["known_by"].startswith("too wide"), address
            assert smallest_ms * KM_PER_MS > WIDEST_KM, address
            continue
        center, radius_km = region_of(servers[address])
        assert distance_km(center, truth) <= radius_km, address
        assert radius_km <= smallest_ms * KM_PER_MS + _ROUNDED_KM, address
        assert radius_km < 500 + _ROUNDED_KM or smallest_ms > 5, address


def check_names(world: World, result: dict[str, Any], survey: dict[str, Any]) -> None:
    """Check the statements about names, owners, reverse names and shared addresses."""
    servers, plan = result["servers"], world.plan
    assert result["names"]["edges.example"]["addresses"] == [EDGE_A, EDGE_B]
    assert result["names"]["edges.example"]["heeds_subnets"] is True
    has_six = plan.resolver_fault != "dead for IPv6"
    assert result["names"]["six.example"]["addresses"] == ([SIX] if has_six else [])
    assert result["names"]["alias.example"]["addresses"] == [PLAIN], ALIASES
    assert result["resolvers"] == {}
    assert servers[PLAIN]["operator"] == OWNER
    assert servers[NAMED]["operator"] == servers[FALSE]["operator"] == "Google"
    assert not servers[FALSE]["known_by"].startswith("operator's name")
    for address in (ANYCAST, ANYCAST_2):
        if servers[address]["region"] is None:
            assert servers[address]["known_by"].startswith(("anycast", "too wide")), address
        else:
            center, radius_km = region_of(servers[address])
            has_site = any(distance_km(center, site) <= radius_km for site in plan.anycast)
            assert has_site or not are_two_servers_visible(survey, address), address


def are_two_servers_visible(survey: dict[str, Any], address: str) -> bool:
    """Return whether two vantage points were both too near for one server. On a busy machine, none may be."""
    bounds = [
        (Position(row["latitude_deg"], row["longitude_deg"]), min(row["rtts"][address]) * KM_PER_MS + SLACK_KM)
        for row in survey["vantages"]
        if not row["has_proxy"] and row["rtts"].get(address)
    ]
    return any(
        distance_km(one, other) > one_km + other_km for (one, one_km), (other, other_km) in combinations(bounds, 2)
    )
