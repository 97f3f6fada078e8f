"""Tests of what reads see of the OneDrive emulator while a write is not ready. The tests set the emulator's time."""

from __future__ import annotations

from typing import Any

import pytest

from .graph_wire import GraphWire
from .skin_connection import SetClock, connect_graph

ROOT = "/v1.0/me/drive/root"
ITEMS = "/v1.0/me/drive/items"
READY_LATER = "[readiness]\ndelay_s = 10"


def content(graph: GraphWire, path: str) -> Any:
    redirect = graph("GET", f"{ROOT}:/{path}:/content")
    return graph("GET", redirect.headers["location"], token=None).value


def changing_properties(item: Any) -> dict[str, Any]:
    """Return the properties of an item that differ between its versions."""
    names = ("eTag", "cTag", "lastModifiedDateTime", "fileSystemInfo", "size", "file")
    return {name: item[name] for name in names}


def listed_properties(graph: GraphWire, name: str) -> dict[str, Any]:
    (entry,) = (entry for entry in graph("GET", f"{ROOT}/children").value["value"] if entry["name"] == name)
    return changing_properties(entry)


def test_file_that_was_deleted_before_it_was_ready_does_not_come_back() -> None:
    clock = SetClock()
    graph = connect_graph(clock, READY_LATER)
    graph.put("recycled")
    by_id = graph.put("recycled by id")["id"]
    graph.put("removed")
    assert graph.item("recycled").status == 404
    assert graph("DELETE", f"{ROOT}:/recycled").status == 204
    assert graph("DELETE", f"{ITEMS}/{by_id}").status == 204
    assert graph("POST", f"{ROOT}:/removed:/permanentDelete").status == 204
    clock.at_s += 20
    assert [graph.item(name).status for name in ("recycled", "recycled by id", "removed")] == [404] * 3
    assert graph("GET", f"{ROOT}/children").value["value"] == []


def test_writes_change_a_file_before_it_is_ready() -> None:
    clock = SetClock()
    graph = connect_graph(clock, READY_LATER)
    item = graph.put("a", b"old")
    assert graph("PUT", f"{ITEMS}/{item['id']}/content", b"newer").value["size"] == 5
    assert graph("PATCH", f"{ROOT}:/a", {"name": "b"}).value["name"] == "b"
    assert graph("POST", f"{ITEMS}/{item['id']}/createLink", {"type": "view"}).status == 201
    assert graph("POST", f"{ROOT}:/b:/copy", {"name": "c"}).status == 202
    assert graph.item("b").status == 404
    clock.at_s += 20
    assert content(graph, "b") == content(graph, "c") == b"newer"


def test_overwritten_file_changes_as_a_whole_when_the_new_version_is_ready() -> None:
    clock = SetClock()
    graph = connect_graph(clock, READY_LATER)
    graph.put("a", b"old")
    clock.at_s += 20
    before = graph.item("a").value
    answer = graph.put("a", b"newer")
    assert answer["size"] == 5, "the answer to a write shows what it wrote"
    new_url = answer["@microsoft.graph.downloadUrl"]
    assert graph("GET", new_url, token=None).status == 401
    clock.at_s += 5
    during = graph.item("a").value
    assert changing_properties(during) == listed_properties(graph, "a") == changing_properties(before)
    assert graph("GET", f"{ROOT}:/a", If_None_Match=before["eTag"]).status == 304
    download = graph("GET", during["@microsoft.graph.downloadUrl"], token=None)
    assert (download.value, download.headers["etag"]) == (b"old", before["eTag"])
    clock.at_s += 5
    after = graph.item("a").value
    assert changing_properties(after) == listed_properties(graph, "a") == changing_properties(answer)
    assert all(after[name] != before[name] for name in changing_properties(after))
    news = graph("GET", f"{ROOT}:/a", If_None_Match=before["eTag"])
    assert (news.status, news.value["size"]) == (200, 5)
    download = graph("GET", new_url, token=None)
    assert (download.value, download.headers["etag"]) == (b"newer", after["eTag"])


def test_tag_is_new_after_each_change_that_reads_see() -> None:
    clock = SetClock()
    graph = connect_graph(clock, READY_LATER)
    item = graph.put("a", b"old")
    clock.at_s += 20
    tags = [graph.item("a").value["eTag"]]
    graph.put("a", b"newer")
    graph("PATCH", f"{ITEMS}/{item['id']}", {"name": "b"})
    tags.append(graph.item("b").value["eTag"])
    clock.at_s += 20
    tags.append(graph.item("b").value["eTag"])
    assert len(set(tags)) == 3


def test_listings_that_lag_show_the_tag_of_the_version_they_list() -> None:
    clock = SetClock()
    graph = connect_graph(clock, "[readiness]\nlist_delay_s = 10")
    graph.put("a", b"old")
    clock.at_s += 20
    before = graph.item("a").value
    graph.put("a", b"newer")
    after = graph.item("a").value
    assert after["eTag"] != before["eTag"]
    assert listed_properties(graph, "a") == changing_properties(before)
    clock.at_s += 20
    assert listed_properties(graph, "a") == changing_properties(after)


def test_listing_by_time_follows_the_times_that_it_shows() -> None:
    clock = SetClock()
    graph = connect_graph(clock, READY_LATER)
    for name in ("a", "b"):
        graph.put(name)
        clock.at_s += 20
    graph.put("a", b"newer")
    for names in (["a", "b"], ["b", "a"]):
        page = graph("GET", f"{ROOT}/children?$orderby=lastModifiedDateTime")
        assert [entry["name"] for entry in page.value["value"]] == names
        clock.at_s += 20


@pytest.mark.parametrize("settings", [READY_LATER, "[readiness]\nlist_delay_s = 10"])
def test_listing_by_size_follows_the_sizes_that_it_shows(settings: str) -> None:
    clock = SetClock()
    graph = connect_graph(clock, settings)
    for name, size in (("a", 1), ("b", 2), ("c", 3)):
        graph.put(name, b"x" * size)
    clock.at_s += 20
    graph.put("a", b"x" * 9)
    graph.put("c", b"")
    for sizes in ({"a": 1, "b": 2, "c": 3}, {"c": 0, "b": 2, "a": 9}):
        for direction, expected in (("", list(sizes)), (" desc", [*sizes][::-1])):
            entries = graph("GET", f"{ROOT}/children?$orderby=size{direction}").value["value"]
            assert [entry["name"] for entry in entries] == expected
            assert {entry["name"]: entry["size"] for entry in entries} == sizes
        clock.at_s += 20


@pytest.mark.parametrize("kind", ["personal", "business", "documentLibrary"])
def test_listing_by_creation_follows_the_times_that_it_shows(kind: str) -> None:
    clock = SetClock()
    graph = connect_graph(clock, f'[account]\ntype = "{kind}"')
    for name, year in (("a", 2022), ("b", 2020), ("c", 2021)):
        graph.put(name)
        times = {"createdDateTime": f"{year}-01-02T03:04:05Z"}
        assert graph("PATCH", f"{ROOT}:/{name}", {"fileSystemInfo": times}).status == 200
        clock.at_s += 1
    entries = graph("GET", f"{ROOT}/children?$orderby=createdDateTime").value["value"]
    times_shown = [entry["createdDateTime"] for entry in entries]
    assert times_shown == sorted(times_shown)
