"""Tests that a request which the OneDrive emulator refuses changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from .graph_wire import GraphWire
from .skin_connection import SetClock, connect_graph

ROOT = "/v1.0/me/drive/root"
TIME, NO_TIME = "2020-01-02T03:04:05Z", "yesterday"
CHANGE = {"fileSystemInfo": {"createdDateTime": TIME, "lastModifiedDateTime": TIME}, "description": "changed"}


def list_names(graph: GraphWire) -> list[str]:
    return [entry["name"] for entry in graph("GET", f"{ROOT}/children").value["value"]]


def describe(graph: GraphWire, path: str) -> Any:
    """Return an item without the addresses that differ in each answer."""
    return {name: value for name, value in graph.item(path).value.items() if not name.startswith("@")}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"name": "taken"}, 409),
        ({"name": "con"}, 400),
        ({"name": "b", "@microsoft.graph.conflictBehavior": "guess"}, 400),
        ({"parentReference": {"id": "unknown"}}, 404),
        ({"parentReference": {"path": "/drive/root:/unknown"}}, 404),
        ({"parentReference": "root"}, 400),
        ({"name": "b", "fileSystemInfo": {"createdDateTime": TIME, "lastModifiedDateTime": NO_TIME}}, 400),
        ({"fileSystemInfo": {"createdDateTime": TIME, "lastModifiedDateTime": NO_TIME}}, 400),
    ],
)
def test_refused_change_of_an_item_changes_nothing(graph: GraphWire, change: dict[str, Any], status: int) -> None:
    graph.put("taken")
    graph.put("a")
    before = describe(graph, "a")
    assert graph("PATCH", f"{ROOT}:/a", {**CHANGE, **change}).status == status
    assert describe(graph, "a") == before


def test_accepted_change_of_an_item_is_made_as_a_whole(graph: GraphWire) -> None:
    graph.put("a")
    assert graph("PATCH", f"{ROOT}:/a", {**CHANGE, "name": "b"}).status == 200
    assert CHANGE.items() <= describe(graph, "b").items()


def test_folder_with_a_wrong_time_is_not_made(graph: GraphWire) -> None:
    body = {"name": "a", "folder": {}, "fileSystemInfo": {"lastModifiedDateTime": NO_TIME}}
    assert graph("POST", f"{ROOT}/children", body).status == 400
    assert list_names(graph) == []


@pytest.mark.parametrize(
    "properties",
    [
        {"fileSystemInfo": {"lastModifiedDateTime": NO_TIME}},
        {"@microsoft.graph.conflictBehavior": "guess"},
        {"name": "con"},
    ],
)
def test_upload_session_of_wrong_properties_is_not_begun(graph: GraphWire, properties: dict[str, Any]) -> None:
    reply = graph("POST", f"{ROOT}:/new/a:/createUploadSession", {"item": properties})
    assert (reply.status, reply.code) == (400, "invalidRequest")
    assert list_names(graph) == []


def test_upload_session_stores_the_times_of_its_item(graph: GraphWire) -> None:
    times = {"createdDateTime": TIME, "lastModifiedDateTime": "2021-01-02T03:04:05Z"}
    url = graph("POST", f"{ROOT}:/a:/createUploadSession", {"item": {"fileSystemInfo": times}}).value["uploadUrl"]
    reply = graph("PUT", url, b"content", token=None, Content_Range="bytes 0-6/7")
    assert (reply.status, reply.value["fileSystemInfo"]) == (201, times)


@pytest.mark.parametrize("path", ["new/con/a", "new/a/b*", "new/" + "n" * 250 + "/" + "n" * 250])
def test_upload_to_a_path_that_no_item_can_have_makes_no_folder(graph: GraphWire, path: str) -> None:
    assert graph("PUT", f"{ROOT}:/{path}:/content", b"x").status == 400
    assert list_names(graph) == []


# --- a full drive ---


@pytest.fixture
def full() -> GraphWire:
    """A client of a drive with a file of 4 bytes, and space for one more byte."""
    graph = connect_graph(SetClock(), "[quota]\nbytes = 5")
    graph.put("old/a", b"1234")
    return graph


@pytest.mark.parametrize("path", ["new/a", "new/deep/er/a", "old/new/a"])
def test_upload_without_space_makes_no_folder(full: GraphWire, path: str) -> None:
    before = full("GET", f"{ROOT}/delta").value["value"]
    folders = [entry["id"] for entry in before]
    for properties in ({"fileSize": 2}, {"fileSize": 2, "name": "b"}):
        session = full("POST", f"{ROOT}:/{path}:/createUploadSession", {"item": properties})
        assert (session.status, session.code) == (507, "quotaLimitReached")
    assert full("PUT", f"{ROOT}:/{path}:/content", b"12").status == 507
    assert [entry["id"] for entry in full("GET", f"{ROOT}/delta").value["value"]] == folders
    assert full("PUT", f"{ROOT}:/{path}:/content", b"1").status == 201


def test_upload_session_of_unknown_size_makes_folders_only_with_its_file(full: GraphWire) -> None:
    """As the documents say, the last fragment may exceed the quota."""
    folders = [entry["id"] for entry in full("GET", f"{ROOT}/delta").value["value"]]
    session = full("POST", f"{ROOT}:/new/deep/a:/createUploadSession", {})
    url = session.value["uploadUrl"]
    refused = full("PUT", url, b"12", token=None, Content_Range="bytes 0-1/2")
    assert (session.status, refused.status, refused.code) == (200, 507, "quotaLimitReached")
    assert [entry["id"] for entry in full("GET", f"{ROOT}/delta").value["value"]] == folders
    sessions = [full("POST", f"{ROOT}:/new/{name}:/createUploadSession", {}).value["uploadUrl"] for name in ("a", "b")]
    statuses = [full("PUT", url, b"1", token=None, Content_Range="bytes 0-0/1").status for url in sessions]
    assert statuses == [201, 507]
    assert full.item("new/a").value["size"] == 1


@pytest.mark.parametrize("behavior", ["replace", "rename", "fail"])
def test_copy_without_space_leaves_the_file_of_its_name(full: GraphWire, behavior: str) -> None:
    full.put("b", b"1")
    body = {"name": "b", "@microsoft.graph.conflictBehavior": behavior}
    monitor = full("POST", f"{ROOT}:/old/a:/copy", {**body, "parentReference": {"path": "/drive/root:"}})
    assert full("GET", monitor.headers["location"], token=None).value["status"] == "failed"
    assert sorted(list_names(full)) == ["b", "old"]
    assert full.item("b").value["size"] == 1
