"""Owners by RDAP from a real server: the configured owner is found, and a refusal leaves the owner unknown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_cloudbench import data
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.locate.rdap import Bootstrap, Owner, OwnerClient, parse_owner
from pytest_cloudbench.net.locate.resolve import Manners

from .rdap_server import Registry, bootstrap, network, serve_rdap

FAST = Manners(rate_per_s=500.0, timeout_s=2.0)


@contextmanager
def open_client(networks: dict[str, Any]) -> Iterator[tuple[OwnerClient, Registry]]:
    registry = Registry(networks)
    with serve_rdap(registry) as url:
        lists = Bootstrap(bootstrap(url, "192.0.2.0/24", "198.51.100.0/24", "2001:db8::/32"), "b")
        yield OwnerClient(lists, FAST, asks_private=True), registry


def test_the_owner_that_a_registry_knows_is_found_and_asked_for_once_for_each_network() -> None:
    networks = {
        "192.0.2.0/24": network("192.0.2.0/24", "Fjord Storage AS"),
        "2001:db8::/32": network("2001:db8::/32", "Six"),
    }
    with open_client(networks) as (client, registry):
        owner = client.find_owner("192.0.2.7")
        assert owner == Owner("Fjord Storage AS", "NET-FJO", "NO")
        assert client.find_owner("192.0.2.200") is owner
        assert client.find_owner("2001:db8::1").name == "Six"
        assert registry.asked == ["192.0.2.7", "2001:db8::1"]


@pytest.mark.parametrize("status", [403, 404, 422, 429, 500])
def test_refusal_of_a_registry_leaves_the_owner_unknown(status: int) -> None:
    with open_client({"192.0.2.0/24": status, "198.51.100.0/24": network("198.51.100.0/24", "Late")}) as (
        client,
        registry,
    ):
        owner = client.find_owner("192.0.2.7")
        assert owner.name == ""
        assert str(status) in owner.problem
        # After 403 and 429 the registry is left in peace.
        assert bool(client.find_owner("198.51.100.1").name) is (status not in {403, 429})
        assert len(registry.asked) == (1 if status in {403, 429} else 2)


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b"", b"[" * 100_000])
def test_malformed_rdap_answer_leaves_owner_unknown(answer: bytes) -> None:
    with open_client({"192.0.2.0/24": answer}) as (client, _):
        assert "answer is no" in client.find_owner("192.0.2.7").problem


def test_a_registry_that_is_not_there_is_unknown() -> None:
    client = OwnerClient(Bootstrap(bootstrap("http://127.0.0.1:9/", "192.0.2.0/24"), "b"), FAST, asks_private=True)
    assert "127.0.0.1:9 does not answer" in client.find_owner("192.0.2.7").problem


def test_private_addresses_and_those_of_nobody_are_not_asked_for() -> None:
    with open_client({}) as (client, registry):
        assert client.find_owner("203.0.113.1").problem == "no registry is listed for the address"
        assert registry.asked == []
    polite = OwnerClient(Bootstrap(bootstrap("http://127.0.0.1:9/", "10.0.0.0/8"), "b"), FAST)
    assert "private or test network" in polite.find_owner("10.1.2.3").problem


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"name": "NET"}, Owner("NET")),
        ({}, Owner(problem="the registry names no owner")),
        ({"entities": "x", "name": 7, "handle": "H"}, Owner(handle="H", problem="the registry names no owner")),
        (
            {"entities": [{"roles": ["technical"], "entities": network("192.0.2.0/24", "Deep")["entities"]}]},
            Owner("Deep"),
        ),
    ],
)
def test_unusual_registry_answers_are_parsed(answer: dict[str, Any], expected: Owner) -> None:
    assert parse_owner(answer) == expected


def test_the_longest_prefix_names_the_registry() -> None:
    text = json.dumps(
        [
            {"services": [[["192.0.0.0/8"], ["http://a/", "https://a/"]], [["192.0.2.0/24"], ["https://b/"]]]},
            {"services": [[["2001:db8::/32"], ["https://six/"]]]},
        ]
    )
    lists = Bootstrap(text, "b")
    assert [lists.find_url(a) for a in ("192.1.2.3", "192.0.2.3", "2001:db8::1", "10.0.0.1")] == [
        "https://a/", "https://b/", "https://six/", "",
    ]  # fmt: skip


def test_the_shipped_lists_name_a_registry_of_each_region() -> None:
    lists = Bootstrap(data.read_locate_table("rdap.json"), "rdap.json")
    assert lists.dated == "2019-11-06"
    hosts = [lists.find_url(address).split("/")[2] for address in ("8.8.8.8", "193.0.6.139", "1.1.1.1", "2a00::1")]
    assert hosts == ["rdap.arin.net", "rdap.db.ripe.net", "rdap.apnic.net", "rdap.db.ripe.net"]


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"services": [[["x"], ["y"]]]}'])
def test_invalid_list_of_registries_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="list: is not a list of RDAP services"):
        Bootstrap(text, "list")
