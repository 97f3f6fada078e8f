"""Tests of the folders that the OneDrive emulator makes when a client asks for them by their special name."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from .graph_wire import GraphWire

DRIVE = "/v1.0/me/drive"


def token_that_reads(graph: GraphWire) -> str:
    form = {"grant_type": "refresh_token", "refresh_token": "any", "client_id": "app", "scope": "Files.Read"}
    reply = graph("POST", "/common/oauth2/v2.0/token", urlencode(form).encode(), token=None)
    return str(reply.value["access_token"])


def list_names(graph: GraphWire) -> list[str]:
    return [entry["name"] for entry in graph("GET", f"{DRIVE}/root/children").value["value"]]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("approot", "Apps/pytest-cloudbench"),
        ("cameraroll", "Pictures/Camera Roll"),
        ("desktop", "Desktop"),
        ("documents", "Documents"),
        ("music", "Music"),
        ("photos", "Pictures"),
    ],
)
def test_special_folder_is_the_one_that_shows_its_name(graph: GraphWire, name: str, path: str) -> None:
    folder = graph("GET", f"{DRIVE}/special/{name}").value
    assert (folder["name"], folder["specialFolder"]) == (path.rpartition("/")[2], {"name": name})
    assert graph.item(path).value["id"] == folder["id"]
    assert graph("GET", f"{DRIVE}/special/{name}").value["id"] == folder["id"]
    other = graph.folder("other")["id"]
    assert "specialFolder" not in graph.folder(folder["name"], other)


def test_token_that_reads_makes_no_special_folder(graph: GraphWire) -> None:
    token = token_that_reads(graph)
    for address in ("documents", "documents/children", "documents:/a.txt", "cameraroll", "approot"):
        reply = graph("GET", f"{DRIVE}/special/{address}", token=token)
        assert (reply.status, reply.code) == (403, "accessDenied"), address
    assert list_names(graph) == []
    made = graph("GET", f"{DRIVE}/special/documents").value
    assert graph("GET", f"{DRIVE}/special/documents", token=token).value["id"] == made["id"]


def test_unknown_special_name_is_refused(graph: GraphWire) -> None:
    for method, address, body in (
        ("GET", "holidays", None),
        ("POST", "holidays/children", {"name": "a", "folder": {}}),
        ("PUT", "holidays:/a.txt:/content", b"x"),
    ):
        reply = graph(method, f"{DRIVE}/special/{address}", body)
        assert (reply.status, reply.code) == (400, "invalidRequest"), address
    assert list_names(graph) == []
