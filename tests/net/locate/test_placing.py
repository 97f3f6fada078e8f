"""Names, ranges and round trips together: an operator's statement counts only if round trips allow it."""

from __future__ import annotations

from functools import cache

import pytest

from pytest_cloudbench import data
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.locate.discs import Disc
from pytest_cloudbench.net.locate.gazetteer import Airports, Cities, parse_place
from pytest_cloudbench.net.locate.placing import AddressEvidence, PlaceJudge, find_suspect_vantage, judge_layer
from pytest_cloudbench.net.locate.prefixes import CloudRange, parse_regions
from pytest_cloudbench.net.locate.ptr import PtrPatterns
from pytest_cloudbench.net.locate.sphere import Cap, Position, distance_km

OSLO, ROME, LONDON = Position(59.91, 10.75), Position(41.89, 12.48), Position(51.51, -0.13)
PARIS, BERLIN, MADRID = Position(48.86, 2.35), Position(52.52, 13.41), Position(40.42, -3.70)
DUBLIN_RANGE = CloudRange("Amazon", "eu-west-1", "S3", "storage")


@cache
def cities() -> Cities:
    return Cities(data.read_locate_table("cities.txt"))


@cache
def patterns() -> PtrPatterns:
    regions = parse_regions(data.read_locate_table("regions.txt"))
    return PtrPatterns(
        data.read_locate_table("ptr.toml"), Airports(data.read_locate_table("airports.txt")), regions
    )  # fmt: skip


@cache
def judge() -> PlaceJudge:
    return PlaceJudge(cities(), patterns(), parse_regions(data.read_locate_table("regions.txt")))


def discs(truth: Position, *names: tuple[str, Position], has_proxy: bool | None = False) -> tuple[Disc, ...]:
    return tuple(
        Disc(name, center, distance_km(center, truth) / 100 * 1.3 + 0.3, has_proxy=has_proxy) for name, center in names
    )


NEAR_LONDON = discs(LONDON, ("paris", PARIS), ("berlin", BERLIN))
GOOGLE_LONDON = "lhr25s34-in-f14.1e100.net"


def test_operator_name_counts_if_round_trips_allow_its_place() -> None:
    location = judge().locate(AddressEvidence("192.0.2.1", NEAR_LONDON, (GOOGLE_LONDON,)))
    assert (location.operator, location.place) == ("Google", "London")
    assert location.by == "operator's name of the server, allowed by 2 vantage points"
    assert location.cap is not None
    assert distance_km(location.cap.center, LONDON) <= location.cap.radius_km


def test_a_name_that_round_trips_exclude_is_dropped_and_named() -> None:
    location = judge().locate(AddressEvidence("192.0.2.1", discs(ROME, ("rome", ROME)), (GOOGLE_LONDON,)))
    assert location.place.startswith("within 33 km of Rome")
    assert "London" in location.by
    assert "excluded" in location.by


def test_a_name_is_not_confirmed_by_a_region_of_half_a_continent() -> None:
    far = discs(LONDON, ("rome", ROME))
    assert "within" in judge().locate(AddressEvidence("192.0.2.1", far, (GOOGLE_LONDON,))).place
    published = judge().locate(AddressEvidence("192.0.2.1", far, published=DUBLIN_RANGE))
    assert published.place.startswith("eu-west-1")
    assert "not confirmed (round trips allow" in published.by


def test_a_name_alone_is_unknown() -> None:
    location = judge().locate(AddressEvidence("192.0.2.1", (), (GOOGLE_LONDON,)))
    assert (location.operator, location.place, location.cap) == ("Google", "unknown", None)


def test_published_region_is_reported_with_its_confirmation() -> None:
    near_dublin = discs(Position(53.35, -6.26), ("london", LONDON), ("paris", PARIS))
    confirmed = judge().locate(AddressEvidence("192.0.2.1", near_dublin, published=DUBLIN_RANGE))
    alone = judge().locate(AddressEvidence("192.0.2.1", published=DUBLIN_RANGE))
    assert confirmed.place == alone.place == "eu-west-1 (Europe (Ireland))"
    assert "allowed by 2 vantage points" in confirmed.by
    assert "not confirmed" in alone.by
    assert confirmed.layer == "storage"


def test_published_region_excluded_by_round_trips_is_not_reported() -> None:
    location = judge().locate(AddressEvidence("192.0.2.1", discs(ROME, ("rome", ROME)), published=DUBLIN_RANGE))
    assert "Rome" in location.place
    assert "is excluded" in location.by


def test_anycast_names_its_sites_and_no_place() -> None:
    two = (*discs(OSLO, ("oslo", OSLO)), *discs(ROME, ("rome", ROME)))
    location = judge().locate(AddressEvidence("192.0.2.1", two, published=CloudRange("Cloudflare", kind="edge")))
    assert (location.place, location.layer) == ("unknown", "edge")
    assert "within 30 km of Oslo, within 33 km of Rome" in location.by


@pytest.mark.parametrize(("kind", "expected"), [("edge", True), ("", False), ("storage", False)])
def test_an_edge_is_placed_by_the_nearest_vantage_point_alone(kind: str, expected: bool) -> None:
    """Servers in Oslo and in Rome share the address, and slow round trips do not exclude one server in between."""
    slow = (Disc("oslo", OSLO, 11.0, has_proxy=False), Disc("rome", ROME, 10.0, has_proxy=False))
    location = judge().locate(AddressEvidence("192.0.2.1", slow, published=CloudRange("Cloudflare", kind=kind)))
    assert location.cap is not None
    assert any(distance_km(location.cap.center, site) <= location.cap.radius_km for site in (OSLO, ROME)) is expected
    assert location.vantages == (1 if expected else 2)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        (GOOGLE_LONDON, "London"),
        ("ec2-192-0-2-1.eu-central-1.compute.amazonaws.com", "Europe (Frankfurt)"),
        ("server-192-0-2-1.fra56.r.cloudfront.net", "Frankfurt am Main"),
        ("core1.dc3.nbg1.hetzner.com", "Nuremberg"),
        ("core53.sto.hetzner.com", "Stockholm"),
        ("server-15.230.39.60.ord53-c1.r.cloudfront.net", "Chicago"),
        ("par21s23-in-f14.1e100.net", "Paris"),
        ("lcboma-as-in-x0e.1e100.net", "Mumbai"),
        ("be-102-0.ibr01.lon24.ntwk.msn.net", "London"),
        ("edge-star-mini-shv-01-arn2.facebook.com", "Stockholm"),
        ("be102.rbx-g1-nc5.fr.eu", "Roubaix"),
        ("gra-g3-nc1.ovh.fr", "Gravelines"),
        ("s3-us-west-2-r-w.amazonaws.com", "Oregon"),
        ("ge-5-2-0-55.tuk-64cb-1b.ntwk.msn.net", None),
        ("yx-in-f101.1e100.net", None),
        ("lhr25s34-in-f14.1e100.net.example.com", None),
        ("lhr01.cdn.example.net", None),
        ("cdn1.api2.example.com", None),
    ],
)
def test_only_an_operators_own_form_of_a_name_tells_a_place(name: str, place: str | None) -> None:
    hint = patterns().read(name)
    assert (hint and hint.place) == place


def test_other_codes_are_hints_and_words_of_the_trade_are_none() -> None:
    assert [hint.place for hint in patterns().guess("edge1.ams2.example.net")] == ["Amsterdam"]
    assert patterns().guess("vip2.cdn1.box3.dns4.example.net") == []
    location = judge().locate(AddressEvidence("192.0.2.1", (), ("edge1.ams2.example.net",)))
    assert location.place == "unknown"
    assert location.hints == ("Amsterdam in edge1.ams2.example.net",)


def test_a_vantage_point_that_contradicts_all_others_is_suspect() -> None:
    truths = (LONDON, PARIS)
    liar = ("liar", Position(35.68, 139.69))
    evidences = [
        AddressEvidence(
            f"192.0.2.{n}",
            (*discs(truth, ("oslo", OSLO), ("rome", ROME), ("berlin", BERLIN)), Disc("liar", liar[1], 3.0)),
        )
        for n, truth in enumerate(truths)
    ]
    assert find_suspect_vantage(evidences) == "liar"
    assert find_suspect_vantage(evidences[:1]) == ""
    good = [AddressEvidence("192.0.2.1", discs(LONDON, ("oslo", OSLO), ("rome", ROME)))]
    assert find_suspect_vantage(good) == ""


@pytest.mark.parametrize(
    ("rtt_ms", "first_bytes_ms", "published", "layer"),
    [
        (10.0, [11.0, 40.0], "unknown", "storage"),
        (10.0, [60.0, 61.0], "edge", "edge"),
        (10.0, [60.0, 61.0], "unknown", "unknown"),
        (10.0, [], "storage", "storage"),
        (10.0, [], "unknown", "unknown"),
    ],
)
def test_slow_content_proves_no_storage_behind(
    rtt_ms: float, first_bytes_ms: list[float], published: str, layer: str
) -> None:
    assert judge_layer(rtt_ms, first_bytes_ms, published)[0] == layer  # type: ignore[arg-type]  # one of three words


@pytest.mark.parametrize(
    ("cap", "words"),
    [
        (Cap(OSLO, 179.2), "within 180 km of Oslo"),
        (Cap(Position(61.9, 10.75), 100.0), "within 100 km of 61.90,10.75"),
        (Cap(Position(-48.0, -123.0), 2000.0), "within 2000 km of -48.00,-123.00"),
    ],
)
def test_regions_in_words_hold_all_of_the_region(cap: Cap, words: str) -> None:
    assert cities().describe(cap).startswith(words)


def test_places_of_vantage_points_are_read() -> None:
    assert parse_place("59.91,10.75", cities(), "w") == Cap(OSLO, 0.0)
    oslo = parse_place("oslo", cities(), "w")
    assert distance_km(oslo.center, OSLO) < 5
    assert oslo.radius_km == 20.0
    for text in ("Nowhereville", "95,10", "1,2,3"):
        with pytest.raises(UsageError, match="w: "):
            parse_place(text, cities(), "w")
