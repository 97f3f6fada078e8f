"""Tests that the emulator repeats recorded answers of Google Drive with the same status, content type and shape.

Each line of the fixture is one answer from some state. The state is made from the request and the status alone, by
rules that hold for every line of a function. It includes existing and missing files and their number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator

from .drive_wire import FOLDER, DriveReply, DriveWire, drive_client

_FIXTURE = Path(__file__).parents[2] / "fixtures" / "gdrive-recorded.jsonl"
_PLACEHOLDER = re.compile(r"\{\w+\}")
_APPS = "application/vnd.google-apps."


def _lines() -> Iterator[Any]:
    for number, line in enumerate(_FIXTURE.read_text().splitlines()):
        record = json.loads(line)
        yield pytest.param(record, id=f"{number}-{record['cassette'].replace('/', '-')}-{record['step']}")


@pytest.fixture(scope="module")
def running() -> Iterator[EmulatorService]:
    with start_emulator("gdrive-ideal") as service:
        yield service


@pytest.fixture
def wire(running: EmulatorService) -> Iterator[DriveWire]:
    before = running.control(get="profile")["profile"]
    running.control(reset=True)
    running.control(set={"quota.bytes": 16_106_127_360})
    with drive_client(running.endpoint) as client:
        yield client
    running.control(set=before)


class _State:
    """The state that a recorded interaction needs, and its request."""

    def __init__(self, wire: DriveWire, record: dict[str, Any]) -> None:
        self.wire, self.record = wire, record
        self.query: dict[str, str] = dict(record["query"])
        self.parts = record["route"].removeprefix("/upload").removeprefix("/drive/v3/").split("/")

    def make(self, shape: dict[str, Any], parent: str = "root") -> str:
        """Create the item that an answer shows: a folder, a Google document, or a file with content."""
        mime = str(shape.get("mimeType", ""))
        if mime == FOLDER:
            return self.wire.folder("recorded", parent)
        return self.wire.upload("recorded", b"12345", parent, mime=mime if mime.startswith(_APPS) else "")

    def make_file(self) -> str:
        """Create the file that the route names, and return its id. For a 404, return the id of no file."""
        if self.record["status"] == 404:
            return "1nobodyhasthisid"
        body = self.record["body"]
        if self.parts[2:] == ["export"]:
            return self.make({"mimeType": f"{_APPS}spreadsheet"})
        if "revisions" in self.parts:
            return self.make({"mimeType": f"{_APPS}document"})
        return self.make(body if isinstance(body, dict) and self.parts[2:] in ([], ["copy"]) else {})

    def make_listing(self) -> None:
        """Create the files that the recorded list shows, and enough others for a further page."""
        body, text, parent = self.record["body"], self.query.get("q", ""), "root"
        for placeholder in _PLACEHOLDER.findall(text):
            parent = self.wire.folder("parent")
            text = text.replace(placeholder, parent)
        self.query["q"] = text
        kind = re.search(r"""mimeType\s*=\s*["']([^"']+)["']""", text)
        for shape in body["files"]:
            self.make({**shape, **({"mimeType": kind[1]} if kind else {})}, parent)
        pages = ("nextPageToken" in body) + ("pageToken" in self.query)
        kinds = [FOLDER if shape.get("mimeType") == FOLDER else "a/b" for shape in body["files"]]
        for number in range(int(self.query.get("pageSize", 100)) * pages):
            entry = {"name": "more", "parents": [parent], "mimeType": kinds[number % len(kinds)]}
            self.wire.ok("POST", "files", entry)
        if "pageToken" in self.query:
            first = {name: value for name, value in self.query.items() if name != "pageToken"}
            self.query["pageToken"] = self.wire.ok("GET", "files", query=first)["nextPageToken"]

    def route(self) -> list[str]:
        """Create the items that the route names, and return its parts with their ids."""
        parts = list(self.parts)
        if parts[0] == "files" and len(parts) == 1 and self.record["method"] == "GET":
            self.make_listing()
        if parts[0] == "files" and len(parts) > 1:
            parts[1] = self.make_file()
        if parts[0] == "drives":
            more = 11 if "nextPageToken" in self.record["body"] else 1
            drive_ids = [self.wire.ok("POST", f"drives?requestId={n}", {"name": "d"})["id"] for n in range(more)]
            parts[1:2] = [drive_ids[0]] if len(parts) > 1 else []
        if len(parts) > 3 and parts[2] == "permissions":
            permission = {"type": "anyone", "role": "reader"}
            parts[3] = self.wire.ok("POST", f"files/{parts[1]}/permissions", permission)["id"]
        if len(parts) > 3 and parts[2] == "comments":
            parts[3] = self.wire.ok("POST", f"files/{parts[1]}/comments?fields=id", {"content": "c"})["id"]
        if parts == ["changes"]:
            self.query["pageToken"] = self.wire.ok("GET", "changes/startPageToken")["startPageToken"]
        return parts

    def ask(self) -> DriveReply:
        """Send the recorded request, and return its answer."""
        path = f"{'/upload' if '/upload/' in self.record['route'] else ''}/drive/v3/{'/'.join(self.route())}"
        body: Any = self.record["arg"]
        headers = {}
        if self.record["style"] == "content":
            body = b"x" * self.record["request_bytes"]
            headers = {"Content-Type": self.record["request_content_type"]}
        return self.wire(self.record["method"], path, body, query=self.query, headers=headers)


_PATTERNS = {"str:digits": r"\d+", "str:9999-99-99T99:99:99.999Z": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"}
_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (int, float)}


def drive_differences(recorded: Any, answer: Any, path: str = "") -> list[str]:
    """Return the differences of an answer from the recorded shape: keys, types and texts."""
    if isinstance(recorded, dict):
        if not isinstance(answer, dict):
            return [f"{path}: expected an object, got {answer!r}"]
        if list(recorded) == ["MAP"]:
            return [
                mismatch
                for key in answer
                for mismatch in drive_differences(recorded["MAP"], answer[key], f"{path}.{key}")
            ]
        mismatches = [
            f"{path}.{key}: {'missing' if key in recorded else 'too many'}" for key in recorded.keys() ^ answer.keys()
        ]
        for key in recorded.keys() & answer.keys():
            mismatches += drive_differences(recorded[key], answer[key], f"{path}.{key}")
        return mismatches
    if isinstance(recorded, list):
        if not isinstance(answer, list) or bool(recorded) != bool(answer):
            return [f"{path}: {len(recorded)} items expected, got {answer!r}"]
        comparisons = [[drive_differences(item, other, f"{path}[]") for other in answer] for item in recorded]
        return [min(options, key=len)[0] for options in comparisons if min(options, key=len)]
    if recorded is None or isinstance(recorded, (bool, int)):
        return [] if recorded == answer else [f"{path}: expected {recorded!r}, got {answer!r}"]
    if recorded in _PATTERNS:
        is_match = isinstance(answer, str) and re.fullmatch(_PATTERNS[recorded], answer) is not None
    elif recorded in _TYPES:
        is_match = isinstance(answer, _TYPES[recorded]) and (recorded == "bool" or not isinstance(answer, bool))
    else:  # a text without the values of the recorded account
        pattern = ".+".join(re.escape(part) for part in _PLACEHOLDER.split(recorded))
        is_match = isinstance(answer, str) and re.fullmatch(pattern, answer) is not None
    return [] if is_match else [f"{path}: expected {recorded}, got {answer!r}"]


@pytest.mark.parametrize("record", list(_lines()))
def test_recorded_interaction(record: dict[str, Any], wire: DriveWire) -> None:
    reply = _State(wire, record).ask()
    assert reply.status == record["status"], reply.value
    if "content-type" in record["response_headers"]:
        assert reply.headers["content-type"] == record["response_headers"]["content-type"]
    body = record["body"]
    if set(body) == {"text_bytes"}:
        assert len(reply.value) == body["text_bytes"]
    else:
        assert drive_differences(body, reply.value) == []


def test_comparer_sees_differences() -> None:
    recorded = {"id": "{id1}", "size": "str:digits", "items": [{"name": "str"}], "words": "no {id1} here"}
    same = {"id": "x", "size": "1", "items": [{"name": "a"}], "words": "no x here"}
    assert drive_differences(recorded, same) == []
    assert drive_differences(recorded, {**same, "size": 1}) == [".size: expected str:digits, got 1"]
    assert drive_differences(recorded, {**same, "new": 1}) == [".new: too many"]
    assert drive_differences(recorded, {**same, "items": []}) == [".items: 1 items expected, got []"]
    assert drive_differences(recorded, {**same, "words": "yes"}) == [".words: expected no {id1} here, got 'yes'"]
    assert drive_differences({"MAP": ["str"]}, {"a": [1]}) == [".a[]: expected str, got 1"]
