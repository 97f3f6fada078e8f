"""Tests that a request which the OneDrive emulator refuses changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from .graph_wire import GraphWire

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
