"""Tests of the lists of changes, of searches and of recent files in the OneDrive emulator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator

from .graph_wire import GraphReply, GraphWire

ROOT = "/v1.0/me/drive/root"


@pytest.fixture(scope="module")
def running() -> Iterator[EmulatorService]:
    with start_emulator("onedrive-ideal") as emulator:
        yield emulator


@pytest.fixture
def wire(running: EmulatorService) -> Iterator[GraphWire]:
    running.control(reset=True)
    client = GraphWire(running.endpoint)
    yield client
    client.connection.close()


def names(reply: GraphReply) -> list[str]:
    return [entry["name"] for entry in reply.value["value"]]


def test_changes(wire: GraphWire) -> None:
    wire.put("folder/a.txt")
    wire.put("b.txt")
    first = wire("GET", f"{ROOT}/delta?$top=2")
    all_names, page = names(first), first
    while "@odata.nextLink" in page.value:
        page = wire("GET", page.value["@odata.nextLink"])
        all_names += names(page)
    assert all_names == ["root", "folder", "a.txt", "b.txt"]
    link = page.value["@odata.deltaLink"].replace("$top=2&", "")
    assert names(wire("GET", link)) == []
    wire.put("b.txt", b"changed")
    wire("PATCH", f"{ROOT}:/b.txt", {"name": "c.txt"})
    wire("DELETE", f"{ROOT}:/folder")
    news = wire("GET", link).value["value"]
    assert {(entry["name"], "deleted" in entry) for entry in news} == {
        ("c.txt", False), ("folder", True), ("a.txt", True)
    }  # fmt: skip
    latest = wire("GET", f"{ROOT}/delta?token=latest")
    assert latest.value["value"] == []
    wire.put("d.txt")
    assert names(wire("GET", latest.value["@odata.deltaLink"])) == ["d.txt"]
    reply = wire("GET", f"{ROOT}/delta?token=other")
    assert (reply.status, reply.code) == (410, "resyncRequired")
    assert reply.headers["location"].endswith("/root/delta")


def test_delta_lists_deleted_items_with_their_folder(wire: GraphWire) -> None:
    wire.put("folder/kept.txt")
    folder = wire.item("folder").value["id"]
    for name in ("binned.txt", "purged.txt", "below/deep.txt"):
        wire.put(f"folder/{name}")
    inner_folder = wire.item("folder/below").value["id"]
    link = wire("GET", f"{ROOT}/delta?token=latest").value["@odata.deltaLink"]
    wire("DELETE", f"{ROOT}:/folder/binned.txt")
    wire("POST", f"{ROOT}:/folder/purged.txt:/permanentDelete")
    wire("DELETE", f"{ROOT}:/folder/below")
    news = wire("GET", link).value["value"]
    assert {entry["name"]: entry["parentReference"]["id"] for entry in news if "deleted" in entry} == {
        "binned.txt": folder, "purged.txt": folder, "below": folder, "deep.txt": inner_folder
    }  # fmt: skip


class Follower:
    """A client that follows the changes below a folder from now on."""

    def __init__(self, wire: GraphWire, path: str) -> None:
        folder = wire.item(path).value["id"]
        self._wire = wire
        self._link = wire("GET", f"/v1.0/me/drive/items/{folder}/delta?token=latest").value["@odata.deltaLink"]

    def news(self) -> dict[str, bool]:
        """Return whether each item that has changed since the last call is listed as deleted."""
        page = self._wire("GET", self._link).value
        self._link = page["@odata.deltaLink"]
        return {entry["name"]: "deleted" in entry for entry in page["value"]}


def test_delta_of_a_folder_leaves_out_what_was_never_in_it(wire: GraphWire) -> None:
    for path in ("watched/moved", "watched/binned", "watched/below/deep", "watched/kept", "outside", "renamed"):
        wire.put(path)
    follower = Follower(wire, "watched")
    wire.put("elsewhere")
    wire("DELETE", f"{ROOT}:/outside")
    wire("PATCH", f"{ROOT}:/renamed", {"name": "other"})
    assert follower.news() == {}
    wire.put("watched/new")
    wire("PATCH", f"{ROOT}:/watched/moved", {"parentReference": {"path": "/drive/root:"}})
    wire("DELETE", f"{ROOT}:/watched/binned")
    wire("DELETE", f"{ROOT}:/watched/below")
    assert follower.news() == {"new": False, "moved": True, "binned": True, "below": True, "deep": True}
    wire.put("moved", b"changed after it left")
    assert follower.news() == {}


def test_delta_of_a_folder_lists_what_left_it_by_a_folder_or_by_the_recycle_bin(wire: GraphWire) -> None:
    wire.put("watched/below/deep")
    binned = wire.put("watched/binned")["id"]
    follower = Follower(wire, "watched")
    wire("PATCH", f"{ROOT}:/watched/below", {"parentReference": {"path": "/drive/root:"}})
    wire.put("below/deep", b"changed")
    wire("DELETE", f"{ROOT}:/watched/binned")
    restored = wire("POST", f"/v1.0/me/drive/items/{binned}/restore", {"parentReference": {"path": "/drive/root:"}})
    assert restored.status == 200
    assert follower.news() == {"below": True, "deep": True, "binned": True}
    wire("PATCH", f"{ROOT}:/below", {"parentReference": {"path": "/drive/root:/watched"}})
    assert follower.news() == {"below": False}


def test_searching(wire: GraphWire) -> None:
    for path in ("reports/it's 2026.txt", "reports/other.txt", "it's.txt"):
        wire.put(path)
    reply = wire("GET", f"{ROOT}/search(q='it''s')")
    assert sorted(names(reply)) == ["it's 2026.txt", "it's.txt"]
    assert names(wire("GET", f"{ROOT}/search(q='nothing')")) == []
    assert names(wire("GET", "/v1.0/me/drive/search(q='other')")) == ["other.txt"]


@pytest.mark.parametrize("function", ["search(q='hit')", "recent"])
def test_long_results_come_in_pages(wire: GraphWire, function: str) -> None:
    hits = {wire.put(f"below/hit{number}")["name"] for number in range(5)}
    page = wire("GET", f"/v1.0/me/drive/{function}?$top=2")
    pages = [names(page)]
    while "@odata.nextLink" in page.value:
        page = wire("GET", page.value["@odata.nextLink"])
        pages.append(names(page))
    assert [len(found) for found in pages] == [2, 2, 1]
    assert {name for found in pages for name in found} == hits
    assert "@odata.nextLink" not in wire("GET", f"/v1.0/me/drive/{function}?$top=5").value
