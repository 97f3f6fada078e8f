"""Tests that the emulator repeats recorded answers of OneDrive with the same status, content type and shape.

Each line of the fixture is one answer from some state. The state is made from the request and the answer's status
and shape alone, by rules that hold for every line of a function.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator

from .graph_wire import GraphReply, GraphWire

_FIXTURE = Path(__file__).parents[2] / "fixtures" / "onedrive-recorded.jsonl"
_OTHER = {19: "the emulator has one account, so there is no folder that somebody else shares with it"}
"""Lines whose answers differ, and why."""
_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (int, float)}


def _lines() -> Iterator[Any]:
    for number, line in enumerate(_FIXTURE.read_text("utf-8").splitlines()):
        record = json.loads(line)
        marks = [pytest.mark.xfail(reason=_OTHER[number], strict=True)] if number in _OTHER else []
        yield pytest.param(record, id=f"{number}-{record['cassette']}-{record['step']}", marks=marks)


def differences(recorded: Any, answer: Any, path: str = "") -> list[str]:
    """Return the differences of an answer from the recorded shape: missing keys, other types, other texts.

    Keys that the service has added since the recording are allowed. Each recorded item of a list must match an item of
    the answer's list.
    """
    if isinstance(recorded, dict):
        if not isinstance(answer, dict):
            return [f"{path}: expected an object, got {answer!r}"]
        mismatches = []
        for key, item in recorded.items():
            key_path = f"{path}.{key}"
            mismatches += [f"{key_path}: missing"] if key not in answer else differences(item, answer[key], key_path)
        return mismatches
    if isinstance(recorded, list):
        if not isinstance(answer, list):
            return [f"{path}: expected a list, got {answer!r}"]
        if bool(recorded) != bool(answer):
            return [f"{path}: {len(recorded)} items expected, got {len(answer)}"]
        comparisons = [[differences(item, other, f"{path}[]") for other in answer] for item in recorded]
        return [min(options, key=len)[0] for options in comparisons if min(options, key=len)]
    if path.endswith("@odata.context"):
        context = re.sub(r"\('[^']*'\)", "('ID')", str(answer).partition("://")[2])
        context = context if context.startswith(("graph.", "api.")) else f"HOST/{context.partition('/')[2]}"
        return [] if context == recorded else [f"{path}: expected {recorded}, got {context}"]
    return _word_differences(recorded, answer, path)


def _word_differences(recorded: Any, answer: Any, path: str) -> list[str]:
    if isinstance(recorded, str) and (recorded.startswith("{") or recorded in {"str:digits", "URL"}):
        recorded = "str"
    if isinstance(recorded, str) and recorded.startswith("str:"):
        shape = re.sub(r"\d", "9", str(answer))
        return [] if shape == recorded[4:] else [f"{path}: expected {recorded}, got {answer!r}"]
    kinds = _TYPES.get(recorded) if isinstance(recorded, str) else None
    if kinds is None:
        return [] if recorded == answer else [f"{path}: expected {recorded!r}, got {answer!r}"]
    is_match = isinstance(answer, kinds) and (bool in kinds or not isinstance(answer, bool))
    return [] if is_match else [f"{path}: expected {recorded}, got {answer!r}"]


def _find_values(value: Any, key: str) -> list[Any]:
    """Return all values of a key at any depth."""
    if isinstance(value, dict):
        own = [value[key]] if key in value else []
        return own + [entry for item in value.values() for entry in _find_values(item, key)]
    return [entry for item in value for entry in _find_values(item, key)] if isinstance(value, list) else []


class _Case:
    """A recorded interaction with the state that it needs."""

    def __init__(self, wire: GraphWire, emulator: EmulatorService, record: dict[str, Any]) -> None:
        self.wire, self.record, self.body = wire, record, record["body"]
        kinds = [drive_type for drive_type in _find_values(self.body, "driveType") if isinstance(drive_type, str)]
        shared = record["route"].startswith("/v1.0/drives/")
        kind = kinds[0] if kinds else "documentLibrary" if shared else "personal"
        emulator.control(set={"account.type": kind})
        self.function = self._function()
        self.item_id = ""

    def _function(self) -> str:
        """Return the name of the function that the route calls."""
        route = re.sub(r"^/v1\.0/(me/drives$|me/drive|drives/[^/]+|drive)", "", self.record["route"])
        route = re.sub(r"^/(root|items/[^/:]+)", "", route)
        route = re.sub(r"^:/[^:]*:?", "", route).strip("/")
        return route.split("/")[0].removeprefix("action.").removeprefix("view.").partition("(")[0]

    def prepare(self) -> None:
        """Create the items that must exist before the request."""
        wire, record = self.wire, self.record
        route = record["route"]
        if record["status"] == 404 or "not-a-drive-id" in route or self.function in ("recent", "sharedWithMe"):
            return
        shows_folder = isinstance(self.body, dict) and "folder" in self.body
        holds_items = self.function in ("children", "delta", "search", "createUploadSession") or ":/" in route
        if holds_items or shows_folder:
            self.item_id = wire.folder("item")["id"]
        else:
            self.item_id = wire.put("item test.txt", b"recorded")["id"]
        if ":/" in route:
            self._make_at_path(route, is_folder=shows_folder or self.function == "children")
        if record["method"] == "GET" and isinstance(self.body, dict) and self.body.get("value"):
            for number, entry in enumerate(self.body["value"]):
                self._make_entry(f"test {number}", entry)
        if record["status"] == 409:
            wire.folder(record["arg"]["name"])
        if self.function == "createLink" and record["status"] == 200:
            self.ask()  # status 200 means that the link existed already
        if self.function == "permissions":
            self.permission = self._permission()

    def _make_at_path(self, route: str, *, is_folder: bool) -> None:
        """Create the item that an address names by path, unless the request itself creates it."""
        base = "root" if "/root:/" in route else self.item_id
        names = route.partition(":/")[2].partition(":")[0].strip("/").split("/")
        if names == [""] or self.record["status"] == 201 or self.function == "createUploadSession":
            return
        folder = base
        for name in names[:-1] if not is_folder else names:
            folder = self.wire.folder(name, folder)["id"]
        if not is_folder:
            self.wire("PUT", f"/v1.0/me/drive/items/{folder}:/{names[-1]}:/content", b"before")

    def _make_entry(self, name: str, entry: dict[str, Any]) -> None:
        """Create an entry of a list."""
        parent = "root" if "/root" in self.record["route"] or "items/root" in self.record["route"] else self.item_id
        if "folder" in entry and "remoteItem" not in entry:
            self.wire.folder(name, parent)
        elif "file" in entry:
            self.wire("PUT", f"/v1.0/me/drive/items/{parent}:/{name}.txt:/content", b"x")

    def _permission(self) -> str:
        if "link" in self.body and self.body["roles"] != ["owner"] and self.body["link"].get("scope") != "users":
            link = self.wire("POST", f"/v1.0/me/drive/items/{self.item_id}/createLink", {"type": "view"})
            return str(link.value["id"])
        if self.record["method"] == "GET" and not _find_values(self.body, "grantedToIdentities"):
            listed = self.wire("GET", f"/v1.0/me/drive/items/{self.item_id}/permissions")
            return str(listed.value["value"][0]["id"])
        invited = {"recipients": [{"email": "user@example.com"}], "roles": ["read"]}
        self.wire("POST", f"/v1.0/me/drive/items/{self.item_id}/invite", invited)
        listed = self.wire("GET", f"/v1.0/me/drive/items/{self.item_id}/permissions")
        return str(listed.value["value"][1]["id"])

    def ask(self) -> GraphReply:
        """Send the request, and return its answer. A redirect is followed if the content was recorded."""
        record, wire = self.record, self.wire
        route = re.sub(r"/permissions/\{\w+\}", lambda _: f"/permissions/{self.permission}", record["route"])
        route = re.sub(r"/items/\{\w+\}", f"/items/{self.item_id}", route)
        route = re.sub(r"/drives/\{\w+\}", f"/drives/{wire.drive_id}", route)
        query = "&".join(f"{name}={value}" for name, value in record["query"].items())
        body = record["arg"]
        if record["style"] == "content":
            body = b"x" * record["request_bytes"]
        reply = wire(record["method"], f"{route}?{query}" if query else route, body)
        if reply.status == 302 and record["status"] == 200:
            reply = wire("GET", reply.headers["location"], token=None)
        return reply


@pytest.fixture(scope="module")
def running() -> Iterator[EmulatorService]:
    with start_emulator("onedrive-ideal") as emulator:
        yield emulator


@pytest.mark.parametrize("record", list(_lines()))
def test_recorded_interaction(record: dict[str, Any], running: EmulatorService) -> None:
    running.control(reset=True)
    wire = GraphWire(running.endpoint)
    with closing(wire.connection):
        _compare(record, _answer(record, wire, running))


def _answer(record: dict[str, Any], wire: GraphWire, running: EmulatorService) -> GraphReply:
    if record["route"].startswith(("/up/", "/monitor/")):
        return _ask_without_token(wire, record)
    case = _Case(wire, running, record)
    case.prepare()
    return case.ask()


def _compare(record: dict[str, Any], reply: GraphReply) -> None:
    assert reply.status == record["status"], reply.value
    for name, text in record["response_headers"].items():
        assert name in reply.headers
        if name in ("content-type", "odata-version"):
            assert reply.headers[name] == text
    body = record["body"]
    if set(body) == {"text_bytes"}:
        assert len(reply.value) == body["text_bytes"]
    elif body.get("type") != "Buffer":
        assert differences(body, reply.value) == []


def _ask_without_token(wire: GraphWire, record: dict[str, Any]) -> GraphReply:
    """Send a request to an address that the service gave out, and return its answer."""
    if record["route"].startswith("/monitor/"):
        item = wire.put("a.txt")
        wire.folder("there")
        copied = wire("POST", f"/v1.0/me/drive/items/{item['id']}/copy", {"name": "b.txt"})
        return wire("GET", copied.headers["location"], token=None)
    session = wire("POST", "/v1.0/me/drive/root:/up.bin:/createUploadSession")
    return wire("PUT", session.value["uploadUrl"], b"x" * 10, token=None, Content_Range="bytes 20-29/100")


def test_comparer_sees_differences() -> None:
    url = "https://graph.microsoft.com/v1.0/$metadata#drives"
    recorded = {"@odata.context": "graph.microsoft.com/v1.0/$metadata#drives('ID')", "size": "int", "at": "str:99Z"}
    same = {
        "@odata.context": "https://graph.microsoft.com/v1.0/$metadata#drives('a')",
        "size": 1,
        "at": "12Z",
        "new": 1,
    }
    assert differences(recorded, same) == []
    assert differences(recorded, {**same, "size": True}) == [".size: expected int, got True"]
    assert differences(recorded, {**same, "at": "1Z"}) == [".at: expected str:99Z, got '1Z'"]
    assert differences({"value": [{"name": "str"}]}, {"value": [{}]}) == [".value[].name: missing"]
    other = {**same, "@odata.context": url}
    assert len(differences(recorded, other)) == 1
