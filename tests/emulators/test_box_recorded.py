"""Tests that the emulator repeats recorded answers of Box with the same status, content type and shape.

The state is made from the request and the recorded answer alone, by rules that hold for all lines. Redirects are
followed, as the recorded client did.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator

from .box_wire import BoxReply, BoxWire

_FIXTURE = Path(__file__).parents[2] / "fixtures" / "box-recorded.jsonl"
_LINES = [json.loads(line) for line in _FIXTURE.read_text().splitlines()]


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorService]:
    with start_emulator("ideal", api="box") as running:
        yield running


@pytest.fixture
def box(emulator: EmulatorService) -> Iterator[BoxWire]:
    emulator.control(reset=True)
    client = BoxWire(emulator.endpoint)
    yield client
    client.close()


def _matches(shape: Any, value: object) -> bool:
    """Return whether a value matches a recorded shape, such as digits or a time. A plain word matches only itself."""
    if not isinstance(shape, str):
        return bool(shape == value)
    if shape == "null":
        return value is None
    kinds: dict[str, tuple[type, ...]] = {"int": (int,), "bool": (bool,), "float": (int, float), "str": (str,)}
    if shape in kinds:
        return isinstance(value, kinds[shape]) and (shape == "bool" or not isinstance(value, bool))
    if shape == "str:digits":
        return isinstance(value, str) and value.isdigit()
    if shape.startswith("str:"):
        pattern = re.escape(shape.removeprefix("str:")).replace("9", r"\d")
        return (
            isinstance(value, str)
            and re.fullmatch(pattern.replace(r"\-\d\d:\d\d", r"[-+]\d\d:\d\d"), value) is not None
        )
    return value == shape or shape.startswith("{")


def differences(recorded: Any, answer: Any, path: str = "") -> list[str]:
    """Return the differences of an answer from the recorded shape. Additional keys are allowed."""
    if isinstance(recorded, dict):
        if not isinstance(answer, dict):
            return [f"{path}: expected an object, got {answer!r}"]
        absent = [f"{path}.{key}: missing" for key in recorded if key not in answer]
        return absent + [
            rule
            for key in recorded.keys() & answer
            for rule in differences(recorded[key], answer[key], f"{path}.{key}")
        ]
    if isinstance(recorded, list):
        if not isinstance(answer, list) or bool(recorded) != bool(answer):
            return [f"{path}: expected {len(recorded)} items, got {answer!r}"]
        comparisons = [[differences(item, other, f"{path}[]") for other in answer] for item in recorded]
        return [min(options, key=len)[0] for options in comparisons if min(options, key=len)]
    return [] if _matches(recorded, answer) else [f"{path}: expected {recorded}, got {answer!r}"]


def create_item(box: BoxWire, record: dict[str, Any]) -> str:
    """Create the item that the route names, in the folder that the answer shows, and return its id."""
    kind, body = record["route"].split("/")[2], record["body"]
    parent = box.folder("parent")["id"] if str(body.get("parent", {}).get("etag")) == "str:digits" else "0"
    if kind == "comments":
        file = box.file("commented.txt")
        return str(
            box("POST", "/comments", {"item": {"type": "file", "id": file["id"]}, "message": body["message"]}).value[
                "id"
            ]
        )
    if kind == "folders":
        folder = str(box.folder("test", parent)["id"])
        for entry in body.get("item_collection", {}).get("entries", []):
            box.folder("inside", folder) if entry["type"] == "folder" else box.file("inside.txt", parent=folder)
        return folder
    source = box.folder("elsewhere")["id"] if record["route"].endswith("/copy") else parent
    return str(box.file("test.txt", parent=source)["id"])


def ask(box: BoxWire, record: dict[str, Any]) -> BoxReply:
    """Make the state, send the recorded request, and return the answer."""
    route, status, body = record["route"].removeprefix("/api").removeprefix("/2.0"), record["status"], record["body"]
    arg, conflict = record["arg"], status == 409
    if "{" in route:
        route = re.sub(r"\{\w+\}", create_item(box, record), route)
    elif conflict and route == "/folders":
        box.folder(arg["name"])
    elif conflict:
        box.file("f")
    elif body.get("entries"):
        for entry in body["entries"]:
            box.folder("a test") if entry["type"] == "folder" else box.file("test.txt")
    query = f"?{urlencode(record['query'])}" if record["query"] else ""
    token = "wrong" if status == 401 else None
    if record["style"] == "multipart":
        return box.upload({"name": "f", "parent": {"id": "0"}}, b"1")
    if route.endswith("/content"):
        return box.download(route + query)
    return box(record["method"], route + query, arg, token=token)


@pytest.mark.parametrize("record", _LINES, ids=[f"{number}-{line['cassette']}" for number, line in enumerate(_LINES)])
def test_recorded_interaction(record: dict[str, Any], box: BoxWire) -> None:
    reply = ask(box, record)
    assert reply.status == record["status"], reply.value
    for name, value in record["response_headers"].items():
        assert name in reply.headers
        if value != "str":
            assert reply.headers[name] == value
    body = record["body"]
    if set(body) == {"text_bytes"}:
        assert len(reply.value) == body["text_bytes"]
    elif body.get("type") == "Buffer":
        assert isinstance(reply.value, bytes)
    else:
        assert differences(body, reply.value) == []


def test_comparer_sees_differences() -> None:
    recorded = {
        "type": "file",
        "id": "str:digits",
        "at": "str:9999-99-99T99:99:99-99:99",
        "link": "null",
        "list": [{"n": "int"}],
    }
    same = {"type": "file", "id": "12", "at": "2026-01-02T03:04:05-07:00", "link": None, "list": [{"n": 1}], "new": 1}
    assert differences(recorded, same) == []
    for key, value in (
        ("type", "folder"),
        ("id", "x"),
        ("at", "2026-01-02T03:04:05Z"),
        ("link", ""),
        ("list", []),
        ("list", [{"n": True}]),
    ):
        assert len(differences(recorded, {**same, key: value})) == 1, key
    assert differences(recorded, {}) == [f".{key}: missing" for key in recorded]
