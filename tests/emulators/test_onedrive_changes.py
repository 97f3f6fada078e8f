"""Tests of the lists of changes, of searches and of recent files in the OneDrive emulator."""

from __future__ import annotations

import pytest

from .graph_wire import GraphReply, GraphWire
from .skin_connection import SetClock, connect_graph

ROOT = "/v1.0/me/drive/root"


def names(reply: GraphReply) -> list[str]:
    return [entry["name"] for entry in reply.value["value"]]


def test_changes(graph: GraphWire) -> None:
    graph.put("folder/a.txt")
    graph.put("b.txt")
    first = graph("GET", f"{ROOT}/delta?$top=2")
    all_names, page = names(first), first
    while "@odata.nextLink" in page.value:
        page = graph("GET", page.value["@odata.nextLink"])
        all_names += names(page)
    assert all_names == ["root", "folder", "a.txt", "b.txt"]
    link = page.value["@odata.deltaLink"].replace("$top=2&", "")
    assert names(graph("GET", link)) == []
    graph.put("b.txt", b"changed")
    graph("PATCH", f"{ROOT}:/b.txt", {"name": "c.txt"})
    graph("DELETE", f"{ROOT}:/folder")
    news = graph("GET", link).value["value"]
    assert {(entry["name"], "deleted" in entry) for entry in news} == {
        ("c.txt", False), ("folder", True), ("a.txt", True)
    }  # fmt: skip
    latest = graph("GET", f"{ROOT}/delta?token=latest")
    assert latest.value["value"] == []
    graph.put("d.txt")
    assert names(graph("GET", latest.value["@odata.deltaLink"])) == ["d.txt"]
    reply = graph("GET", f"{ROOT}/delta?token=other")
    assert (reply.status, reply.code) == (410, "resyncRequired")
    assert reply.headers["location"].endswith("/root/delta")


def test_delta_lists_deleted_items_with_their_folder(graph: GraphWire) -> None:
    graph.put("folder/kept.txt")
    folder = graph.item("folder").value["id"]
    for name in ("binned.txt", "purged.txt", "below/deep.txt"):
        graph.put(f"folder/{name}")
    inner_folder = graph.item("folder/below").value["id"]
    link = graph("GET", f"{ROOT}/delta?token=latest").value["@odata.deltaLink"]
    graph("DELETE", f"{ROOT}:/folder/binned.txt")
    graph("POST", f"{ROOT}:/folder/purged.txt:/permanentDelete")
    graph("DELETE", f"{ROOT}:/folder/below")
    news = graph("GET", link).value["value"]
    assert {entry["name"]: entry["parentReference"]["id"] for entry in news if "deleted" in entry} == {
        "binned.txt": folder, "purged.txt": folder, "below": folder, "deep.txt": inner_folder
    }  # fmt: skip


def follow_pages(graph: GraphWire, page: GraphReply) -> list[dict[str, bool]]:
    """Return whether each item on the pages after this one is listed as deleted."""
    pages = []
    while "@odata.nextLink" in page.value:
        page = graph("GET", page.value["@odata.nextLink"])
        pages.append({entry["name"]: "deleted" in entry for entry in page.value["value"]})
    return pages


def test_first_list_reports_what_was_deleted_between_its_pages(graph: GraphWire) -> None:
    graph.put("gone before")
    graph("DELETE", f"{ROOT}:/gone before")
    for name in ("a", "b", "c"):
        graph.put(name)
    page = graph("GET", f"{ROOT}/delta?$top=2")
    assert names(page) == ["root", "a"]
    graph("DELETE", f"{ROOT}:/a")
    assert follow_pages(graph, page) == [{"b": False, "c": False}, {"a": True}]


def test_first_list_of_a_folder_reports_what_left_it_between_its_pages(graph: GraphWire) -> None:
    for name in ("a", "b", "c"):
        graph.put(f"watched/{name}")
    folder = graph.item("watched").value["id"]
    page = graph("GET", f"/v1.0/me/drive/items/{folder}/delta?$top=2")
    assert names(page) == ["watched", "a"]
    graph("PATCH", f"{ROOT}:/watched/a", {"parentReference": {"path": "/drive/root:"}})
    assert follow_pages(graph, page) == [{"b": False, "c": False}, {"a": True}]


def test_later_list_reports_on_each_page_what_left_the_folder_since_its_beginning(graph: GraphWire) -> None:
    graph.put("watched/below/deep")
    folder = graph.item("watched").value["id"]
    latest = graph("GET", f"/v1.0/me/drive/items/{folder}/delta?token=latest").value["@odata.deltaLink"]
    graph.put("watched/new")
    graph("PATCH", f"{ROOT}:/watched/below", {"parentReference": {"path": "/drive/root:"}})
    graph.put("below/deep", b"changed")
    page = graph("GET", f"{latest}&$top=2")
    assert {entry["name"]: "deleted" in entry for entry in page.value["value"]} == {"new": False, "below": True}
    assert follow_pages(graph, page) == [{"below": True, "deep": True}]


class Follower:
    """A client that follows the changes below a folder from now on."""

    def __init__(self, graph: GraphWire, path: str) -> None:
        folder = graph.item(path).value["id"]
        self._wire = graph
        self._link = graph("GET", f"/v1.0/me/drive/items/{folder}/delta?token=latest").value["@odata.deltaLink"]

    def news(self) -> dict[str, bool]:
        """Return whether each item that has changed since the last call is listed as deleted."""
        page = self._wire("GET", self._link).value
        self._link = page["@odata.deltaLink"]
        return {entry["name"]: "deleted" in entry for entry in page["value"]}


def test_delta_of_a_folder_leaves_out_what_was_never_in_it(graph: GraphWire) -> None:
    for path in ("watched/moved", "watched/binned", "watched/below/deep", "watched/kept", "outside", "renamed"):
        graph.put(path)
    follower = Follower(graph, "watched")
    graph.put("elsewhere")
    graph("DELETE", f"{ROOT}:/outside")
    graph("PATCH", f"{ROOT}:/renamed", {"name": "other"})
    assert follower.news() == {}
    graph.put("watched/new")
    graph("PATCH", f"{ROOT}:/watched/moved", {"parentReference": {"path": "/drive/root:"}})
    graph("DELETE", f"{ROOT}:/watched/binned")
    graph("DELETE", f"{ROOT}:/watched/below")
    assert follower.news() == {"new": False, "moved": True, "binned": True, "below": True, "deep": True}
    graph.put("moved", b"changed after it left")
    assert follower.news() == {}


def test_delta_of_a_folder_lists_what_left_it_by_a_folder_or_by_the_recycle_bin(graph: GraphWire) -> None:
    graph.put("watched/below/deep")
    binned = graph.put("watched/binned")["id"]
    follower = Follower(graph, "watched")
    graph("PATCH", f"{ROOT}:/watched/below", {"parentReference": {"path": "/drive/root:"}})
    graph.put("below/deep", b"changed")
    graph("DELETE", f"{ROOT}:/watched/binned")
    restored = graph("POST", f"/v1.0/me/drive/items/{binned}/restore", {"parentReference": {"path": "/drive/root:"}})
    assert restored.status == 200
    assert follower.news() == {"below": True, "deep": True, "binned": True}
    graph("PATCH", f"{ROOT}:/below", {"parentReference": {"path": "/drive/root:/watched"}})
    assert follower.news() == {"below": False}


def test_searching(graph: GraphWire) -> None:
    for path in ("reports/it's 2026.txt", "reports/other.txt", "it's.txt"):
        graph.put(path)
    reply = graph("GET", f"{ROOT}/search(q='it''s')")
    assert sorted(names(reply)) == ["it's 2026.txt", "it's.txt"]
    assert names(graph("GET", f"{ROOT}/search(q='nothing')")) == []
    assert names(graph("GET", "/v1.0/me/drive/search(q='other')")) == ["other.txt"]


@pytest.mark.parametrize("function", ["search(q='hit')", "recent"])
def test_long_results_come_in_pages(graph: GraphWire, function: str) -> None:
    hits = {graph.put(f"below/hit{number}")["name"] for number in range(5)}
    page = graph("GET", f"/v1.0/me/drive/{function}?$top=2")
    pages = [names(page)]
    while "@odata.nextLink" in page.value:
        page = graph("GET", page.value["@odata.nextLink"])
        pages.append(names(page))
    assert [len(found) for found in pages] == [2, 2, 1]
    assert {name for found in pages for name in found} == hits
    assert "@odata.nextLink" not in graph("GET", f"/v1.0/me/drive/{function}?$top=5").value


@pytest.mark.parametrize("function", ["recycle", "permanentDelete"])
def test_delta_tells_when_the_files_of_a_removed_folder_are_gone(function: str) -> None:
    clock = SetClock()
    graph = connect_graph(clock, "[readiness]\ndelete_delay_s = 10")
    graph.put("folder/below/deep")
    link = graph("GET", f"{ROOT}/delta?token=latest").value["@odata.deltaLink"]
    if function == "recycle":
        graph("DELETE", f"{ROOT}:/folder")
    else:
        graph("POST", f"{ROOT}:/folder:/permanentDelete")
    page = graph("GET", link).value
    assert {entry["name"]: "deleted" in entry for entry in page["value"]} == {"folder": True, "below": True}
    clock.at_s += 20
    page = graph("GET", page["@odata.deltaLink"]).value
    assert {entry["name"]: "deleted" in entry for entry in page["value"]} == {"deep": True}
