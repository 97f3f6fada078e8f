"""Random layouts as stored surveys: the true position is inside every region that the judgement gives."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from pytest_cloudbench.lab.locating import LocateTables
from pytest_cloudbench.net.locate.discs import WIDEST_KM
from pytest_cloudbench.net.locate.placing import UNKNOWN, Location
from pytest_cloudbench.net.locate.sphere import Position, distance_km, move
from pytest_cloudbench.net.locate.survey import (
    NameSeen,
    ServerSurvey,
    VantagePoint,
    decode_survey,
    encode_survey,
    merge_surveys,
)

from .layouts import PATHS, Layout, make_disc, make_layout

NAME = "files.fjord.example"
PLAIN, OTHER, IRELAND = "198.18.5.1", "198.18.5.2", "52.218.0.1"
DUBLIN = Position(53.35, -6.26)
TOKYO_NAME, VAGUE_NAME = "nrt12s34-in-f14.1e100.net", "edge1.ams2.example.net"
TOKYO = Position(35.77, 140.39)
DAYS = ("2026-11-01T10:00:00+00:00", "2026-11-02T10:00:00+00:00", "2026-11-03T10:00:00+00:00")
LAYOUTS = 200


@cache
def tables() -> LocateTables:
    return LocateTables()


def measure(random: Random, layout: Layout, truths: dict[str, Position], paths: str) -> list[VantagePoint]:
    """Return vantage points with their round trips to all servers: several connects, and the shortest counts."""
    vantages = []
    for disc in layout.discs:
        rtts = dict[str, list[float]]()
        for address, truth in truths.items():
            shortest_ms = make_disc(random, disc.vantage, disc.center, truth, paths, low_ms=0.0).rtt_ms
            rtts[address] = [shortest_ms + random.expovariate(0.5) for _ in range(random.randint(0, 3))] + [shortest_ms]
            random.shuffle(rtts[address])
        vantages.append(VantagePoint(disc.vantage, *disc.center, rtts=rtts, has_proxy=False))
    everywhere = {address: [0.3] for address in truths}
    vantages.append(VantagePoint("proxied", -33.9, 18.4, rtts=dict(everywhere), has_proxy=True))
    vantages.append(VantagePoint("nowhere", rtts=dict(everywhere)))
    vantages.append(VantagePoint("gone", 0.0, 0.0, problem="Permission denied"))
    return vantages


def place_servers(random: Random, layout: Layout, seed: int) -> tuple[dict[str, Position], dict[str, list[str]]]:
    """Return the positions of servers and their names: none, one with a code that proves nothing, or a false one."""
    neighbour = move(layout.truth, random.uniform(0, 360), random.uniform(0, 300))
    truths = {
        PLAIN: layout.truth,
        OTHER: neighbour,
        IRELAND: move(DUBLIN, random.uniform(0, 360), random.uniform(0, 20)),
    }
    names = {0: [], 1: [VAGUE_NAME], 2: [TOKYO_NAME]}[seed % 3]
    is_far = distance_km(layout.truth, TOKYO) > 2 * WIDEST_KM  # nearby, a false name cannot be told from a true one
    return truths, {PLAIN: names if is_far else []}


def judge_layout(seed: int) -> tuple[dict[str, Position], dict[str, Location]]:
    random, paths = Random(seed), [*PATHS][seed % 3]
    layout = make_layout(seed, paths=paths, is_odd=True)
    truths, ptr = place_servers(random, layout, seed)
    days = random.choices(DAYS, k=len(layout.discs) + 3)
    vantages = measure(random, layout, truths, paths)
    surveys = []
    for day in DAYS:
        day_vantages = [vantage for vantage, its_day in zip(vantages, days, strict=True) if its_day == day]
        surveys.append(ServerSurvey(day, {NAME: NameSeen([*truths])}, day_vantages, ptr))
    stored = [decode_survey(encode_survey(survey), "stored") for survey in surveys]
    locations, _ = tables().judge(merge_surveys(stored))
    return truths, locations


@pytest.mark.slow
def test_the_truth_is_inside_every_region_of_200_layouts() -> None:
    regions, excluded = 0, 0
    for seed in range(LAYOUTS):
        truths, locations = judge_layout(seed)
        for address, truth in truths.items():
            location = locations[address]
            if location.cap is None:
                assert (location.place, location.by.partition(":")[0]) == (UNKNOWN, "too wide"), (seed, location)
                continue
            regions += 1
            excluded += "excluded" in location.by
            off_km = distance_km(location.cap.center, truth) - location.cap.radius_km
            assert off_km <= 0, (seed, off_km, location)
    assert regions > LAYOUTS
    assert excluded > 0


def test_published_regions_are_used_and_false_names_are_not() -> None:
    results = [judge_layout(seed) for seed in range(60)]
    assert all("eu-west-1" in locations[IRELAND].place for _, locations in results)
    far_locations = [
        locations[PLAIN] for truths, locations in results if distance_km(truths[PLAIN], TOKYO) > 2 * WIDEST_KM
    ]
    assert len(far_locations) > 10
    assert not any("Tokyo" in location.place or "Narita" in location.place for location in far_locations)
