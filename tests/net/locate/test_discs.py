"""Discs around vantage points: the server is inside the answer, which is as small as possible, or it is unknown."""

from __future__ import annotations

from math import inf, nan
from random import Random

import pytest

from pytest_cloudbench.net.locate.discs import Disc, is_possible, place_server
from pytest_cloudbench.net.locate.sphere import Cap, Position, distance_km, enclose, move

from .layouts import EUROPE, PATHS, WORLD, choose_position, make_disc, make_layout

OSLO, ROME, TOKYO = Position(59.91, 10.75), Position(41.89, 12.48), Position(35.68, 139.69)
BERLIN, PARIS = Position(52.52, 13.41), Position(48.86, 2.35)


@pytest.mark.parametrize("paths", PATHS)
def test_the_truth_is_inside_200_layouts_and_no_answer_is_wider_than_the_smallest_disc(paths: str) -> None:
    answers = 0
    for seed in range(200):
        layout = make_layout(seed, paths=paths)
        placed = place_server(layout.discs)
        assert placed.reason in {"", "too wide"}, (seed, placed)
        if placed.cap is None:
            assert layout.smallest_ms > 25
            continue
        answers += 1
        assert distance_km(layout.truth, placed.cap.center) <= placed.cap.radius_km + 0.01, seed
        assert placed.cap.radius_km <= 100 * layout.smallest_ms + 1e-9, seed
        if layout.smallest_ms <= 5:
            assert placed.cap.radius_km <= 500
    assert answers > 100


def test_clocks_that_read_too_little_seldom_lose_the_truth() -> None:
    lost = answers = 0
    for seed in range(200):
        layout = make_layout(seed, paths="straight", low_ms=0.05)
        if (cap := place_server(layout.discs).cap) is not None:
            answers += 1
            lost += distance_km(layout.truth, cap.center) > cap.radius_km
    # Only where the answer is the smallest disc itself, which gets no slack.
    assert answers > 100
    assert lost <= 0.05 * answers


def test_more_vantage_points_make_the_answer_smaller() -> None:
    discs = [
        Disc(name, center, distance_km(center, BERLIN) / 100 * 1.1)
        for name, center in (("oslo", OSLO), ("rome", ROME), ("paris", PARIS))
    ]
    alone, together = place_server(discs[:1]), place_server(discs)
    assert alone.cap is not None
    assert together.cap is not None
    assert alone.cap.radius_km == pytest.approx(discs[0].rtt_ms * 100)
    assert together.cap.radius_km < 0.5 * alone.cap.radius_km
    assert distance_km(together.cap.center, BERLIN) < together.cap.radius_km


def test_disjoint_discs_without_proxy_are_anycast() -> None:
    placed = place_server([Disc("oslo", OSLO, 2.0, has_proxy=False), Disc("rome", ROME, 3.0, has_proxy=False)])
    assert placed.cap is None
    assert placed.reason == "anycast"
    assert [cap.radius_km for cap in placed.sites] == [200.0, 300.0]
    assert "at least 2 servers" in placed.detail


def test_without_a_check_for_proxies_they_may_be_one() -> None:
    assert (
        place_server([Disc("oslo", OSLO, 2.0), Disc("rome", ROME, 3.0, has_proxy=False)]).reason == "proxy or anycast"
    )


def test_two_large_discs_that_exclude_each_other_are_seen_beside_a_small_one() -> None:
    between = Position(50.9, 11.6)
    discs = [Disc("oslo", OSLO, 9.9), Disc("rome", ROME, 9.6), Disc("between", between, 2.0)]
    assert place_server([discs[0], discs[2]]).cap is not None
    assert place_server([discs[1], discs[2]]).cap is not None
    assert place_server(discs).reason == "proxy or anycast"


def test_a_vantage_point_behind_a_proxy_does_not_count() -> None:
    placed = place_server([Disc("oslo", OSLO, 0.3, has_proxy=True), Disc("rome", ROME, 3.0, has_proxy=False)])
    assert placed.cap == Cap(ROME, 300.0)
    assert "proxy" in placed.left_out["oslo"]
    assert placed.vantages == 1


@pytest.mark.parametrize("rtt_ms", [0.0, -1.0, nan, inf])
def test_a_round_trip_of_no_time_is_a_wrong_clock(rtt_ms: float) -> None:
    placed = place_server([Disc("oslo", OSLO, rtt_ms)])
    assert (placed.cap, placed.reason) == (None, "clock")
    assert place_server([Disc("oslo", OSLO, rtt_ms), Disc("rome", ROME, 3.0)]).cap == Cap(ROME, 300.0)


def test_nothing_measured_is_unknown() -> None:
    assert place_server([]).reason == "no round trip"


def test_three_discs_that_meet_only_in_pairs_are_a_contradiction() -> None:
    corners = [move(BERLIN, bearing, 500.0) for bearing in (0, 120, 240)]
    placed = place_server([Disc(f"v{n}", corner, 4.5) for n, corner in enumerate(corners)])
    assert (placed.cap, placed.reason) == (None, "contradiction")


def test_far_server_is_not_placed_and_its_distance_is_given() -> None:
    placed = place_server([Disc("oslo", OSLO, 160.0), Disc("rome", ROME, 180.0)])
    assert (placed.cap, placed.reason) == (None, "too wide")
    assert "160 ms" in placed.detail


def test_the_uncertainty_of_a_vantage_point_widens_its_disc() -> None:
    placed = place_server([Disc("oslo", OSLO, 1.0, off_km=20.0)])
    assert placed.cap == Cap(OSLO, 120.0)


def test_repeated_vantage_points_count_once_with_their_shortest_round_trip() -> None:
    placed = place_server([Disc("oslo", OSLO, 3.0), Disc("oslo", OSLO, 1.0)])
    assert (placed.cap, placed.vantages) == (Cap(OSLO, 100.0), 1)


def test_region_is_possible_only_within_round_trips() -> None:
    discs = [Disc("oslo", OSLO, 10.0)]
    assert is_possible(Cap(BERLIN, 30.0), discs)
    assert not is_possible(Cap(TOKYO, 30.0), discs)


def test_anycast_with_two_sites_is_never_placed_at_one() -> None:
    """If the discs do not exclude each other, each site is inside all discs of its own vantage points."""
    anycast_count = 0
    for seed in range(100):
        random = Random(seed)
        sites = [choose_position(random, WORLD), choose_position(random, WORLD)]
        centers = [choose_position(random, WORLD) for _ in range(12)]
        discs = [
            make_disc(random, f"v{n}", c, min(sites, key=lambda site: distance_km(site, c)), "good", 0.0)
            for n, c in enumerate(centers)
        ]
        placed = place_server(discs)
        if placed.reason == "anycast":
            anycast_count += 1
            assert all(any(distance_km(s, cap.center) <= cap.radius_km for s in sites) for cap in placed.sites)
    assert anycast_count > 40


def test_the_smallest_cap_holds_all_points_and_none_much_smaller_does() -> None:
    random = Random(7)
    for _ in range(50):
        points = [choose_position(random, EUROPE) for _ in range(random.randint(1, 30))]
        cap = enclose([point.vector for point in points])
        assert all(distance_km(point, cap.center) <= cap.radius_km + 1e-6 for point in points)
        for bearing in range(0, 360, 30):
            moved = move(cap.center, bearing, 5.0)
            assert max(distance_km(point, moved) for point in points) >= cap.radius_km - 1e-6


def test_a_cap_across_the_date_line_and_the_pole() -> None:
    cap = enclose([Position(0.0, 179.0).vector, Position(0.0, -179.0).vector])
    assert distance_km(cap.center, Position(0.0, 180.0)) < 0.001
    at_pole = enclose([Position(89.0, 0.0).vector, Position(89.0, 180.0).vector])
    assert distance_km(at_pole.center, Position(90.0, 0.0)) < 0.001
