"""Published ranges: the smallest range decides, disagreement is unknown, and the shipped tables can be read."""

from __future__ import annotations

import pytest

from pytest_cloudbench import data
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.locate.prefixes import CloudRange, CloudRanges, parse_regions
from pytest_cloudbench.net.locate.sphere import Position, distance_km

TABLE = """# 2026-11-01
Amazon\t\t\t
192.0.2.0/24
Amazon\teu-west-1\t\t
192.0.2.0/25
Amazon\teu-west-1\tS3\tstorage
192.0.2.64/26
Amazon\t\tCLOUDFRONT\tedge
192.0.2.192/26
Google\teurope-north1\t\t
2001:db8:1::/48
203.0.113.0/24
Microsoft\tnorwaye\t\t
203.0.113.0/24
"""


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.1", CloudRange("Amazon", "eu-west-1")),
        ("192.0.2.65", CloudRange("Amazon", "eu-west-1", "S3", "storage")),
        ("192.0.2.129", CloudRange("Amazon")),
        ("192.0.2.193", CloudRange("Amazon", "", "CLOUDFRONT", "edge")),
        ("2001:db8:1:7::1", CloudRange("Google", "europe-north1")),
        ("203.0.113.9", CloudRange("")),
        ("198.51.100.1", None),
        ("2001:db8:2::1", None),
    ],
)
def test_the_smallest_range_decides(address: str, expected: CloudRange | None) -> None:
    assert CloudRanges(TABLE, "table").find(address) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("192.0.2.0/24", "t:1: 192.0.2.0/24: comes before the line that names its operator"),
        ("Amazon\t\t\t\nhere", "t:2: here: expected a range of addresses"),
    ],
)
def test_a_bad_line_is_named(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        CloudRanges(text, "t")


def test_the_shipped_ranges_know_documented_addresses() -> None:
    ranges = CloudRanges(data.read_locate_table("prefixes.txt"), "prefixes.txt")
    assert ranges.dated == "2026-10-26"
    assert ranges.find("52.216.1.1") == CloudRange("Amazon", "us-east-1", "S3", "storage")
    assert ranges.find("3.5.140.1") == CloudRange("Amazon", "ap-northeast-2")  # listed for two services
    assert ranges.find("1.1.1.1") is None
    cloudflare = ranges.find("104.16.0.1")
    assert cloudflare is not None
    assert (cloudflare.operator, cloudflare.kind) == ("Cloudflare", "edge")


def test_most_regions_of_the_three_large_clouds_have_a_place() -> None:
    regions = parse_regions(data.read_locate_table("regions.txt"))
    text = data.read_locate_table("prefixes.txt")
    published = {tuple(line.split("\t")[:2]) for line in text.splitlines() if "\t" in line and line.split("\t")[1]}
    large = {(operator, region) for operator, region in published if operator in {"Amazon", "Google", "Microsoft"}}
    assert len(large & {*regions}) >= 0.8 * len(large)
    assert distance_km(regions["Google", "europe-west10"].cap.center, Position(52.52, 13.41)) < 10
