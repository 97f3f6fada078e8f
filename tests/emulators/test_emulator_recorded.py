"""Tests that the Dropbox emulator repeats recorded answers with the same status, content type and shape.

Each line of the fixture is one answer from some state. The state is made from the request and the status
alone, by rules that hold for every line of a function. It includes existing and missing items and the type of account.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.emulators import EmulatorService

_FIXTURES = [Path(__file__).parents[2] / "fixtures" / f"{name}-recorded.jsonl" for name in ("dropbox", "dropbox2026")]
_OTHER = ("sharing/add_file_member", "sharing/list_file_members", "sharing/unshare_file")
"""Functions that the emulator does not offer: members of shared files."""

_FILE_ENDINGS = (".txt", ".jpg", ".png", ".docx", ".pdf")
_SPECIFIC = {"session_id", "url", "async_job_id", "copy_reference"}
"""Values that only the service that issued them knows. The set-up replaces them by the emulator's own."""

Wire = Callable[..., Any]


def _lines() -> Iterator[Any]:
    lines = [line for fixture in _FIXTURES for line in fixture.read_text().splitlines()]
    for number, line in enumerate(lines):
        record = json.loads(line)
        record["route"] = record["route"].removeprefix("/2/")
        if record["route"] not in _OTHER:
            foreign = record["cassette"] == "copy_reference_save/no_permission.yml"
            reason = "the emulator has one account, so there is no reference to somebody else's file"
            marks = [pytest.mark.xfail(reason=reason)] if foreign else []
            yield pytest.param(record, id=f"{number}-{record['cassette'].removesuffix('.yml')}", marks=marks)


def _tags(value: Any) -> list[str]:
    """Return all tags of an error or result, outermost first."""
    if isinstance(value, dict):
        own = [value[".tag"]] if isinstance(value.get(".tag"), str) else []
        return own + [tag for key, item in value.items() if key != ".tag" for tag in _tags(item)]
    if isinstance(value, list):
        return [tag for item in value for tag in _tags(item)]
    return []


class _State:
    """The state that a recorded interaction needs."""

    def __init__(self, wire: Wire, emulator: EmulatorService, record: dict[str, Any]) -> None:
        self.wire, self.emulator, self.record = wire, emulator, record
        self.name, self.status = record["route"], record["status"]
        body = record["body"]
        self.error = _tags(body["error"]) if isinstance(body, dict) and "error" in body else []
        self.arg: dict[str, Any] = dict(record["arg"] or {})
        self.token: str | None = None
        self.length = max(record["request_bytes"], 0)

    def make(self, path: str, *, folder: bool | None = None) -> None:
        """Create a folder, or a file if ``folder`` is False or the path ends like a file's."""
        is_folder = not path.endswith(_FILE_ENDINGS) if folder is None else folder
        if is_folder:
            self.wire("files/create_folder_v2", {"path": path})
        else:
            self.wire("files/upload", {"path": path, "mode": "overwrite"}, b"recorded!!")

    def paths(self) -> list[str]:
        """Return the paths that have to exist for the request to succeed."""
        entries = self.arg.get("entries") or []
        candidates = [self.arg.get(key) for key in ("from_path", "path")]
        candidates += [entry.get("path") or entry.get("from_path") for entry in entries]
        return [path for path in candidates if isinstance(path, str) and path.startswith("/")]

    def prepare(self) -> None:
        """Make the state before the request."""
        body = self.record["body"]
        if isinstance(self.record["body"], str) and "access token is malformed" in self.record["body"]:
            self.token = "{malformed}"  # the service now answers 401 to a malformed token of allowed letters
        if "not_authorized" in self.error:
            self.emulator.control(set={"account.type": "basic"})
        if self.name == "users/get_current_account":
            self.emulator.control(set={"account.type": body["account_type"][".tag"]})
        if self.name == "sharing/list_folders" and body["entries"]:
            self.wire("sharing/share_folder", {"path": "/shared"})
        if self.name == "sharing/list_folder_members":
            shared = self.wire("sharing/share_folder", {"path": "/shared"}).value
            self.arg["shared_folder_id"] = shared["shared_folder_id"]
        if self.arg.get("cursor") == "{id1}":
            self.arg["cursor"] = self.wire("files/list_folder", {"path": "", "recursive": True}).value["cursor"]
        makes_new = self.name.startswith(("files/create_folder", "files/upload"))
        if self.name == "files/copy_reference/save":
            self.make_copy_reference()
        elif "check" in self.name:
            self.make_job()
        elif self.name.startswith("files/upload_session"):
            self.make_session()
        elif "url" in self.arg:
            self.make_link()
        elif not makes_new and "not_found" not in self.error and "malformed_path" not in self.error:
            self.make_existing()
        if "conflict" in self.error + _tags(self.record["body"]) and "path" in self.arg:
            self.make(self.arg["path"])
        for path in self.arg.get("paths", []):
            if "conflict" in _tags(self.record["body"]):
                self.make(path)

    def make_existing(self) -> None:
        """Create the items that a successful request needs, in the state that its answer shows."""
        tags = _tags(self.record["body"])
        for path in self.paths():
            is_folder = True if self.name.startswith("files/list_folder") else None
            self.make(path, folder=is_folder)
            if self.name.startswith("files/list_folder") and self.record["body"]["entries"]:
                self.make_entries(path)
            if self.name == "sharing/list_shared_links" and self.record["body"]["links"]:
                self.wire("sharing/create_shared_link_with_settings", {"path": path})
            if "deleted" in tags and not self.name.startswith("files/list_folder"):
                self.wire("files/delete_v2", {"path": path})
        if self.name.startswith("files/list_folder") and self.arg.get("path") == "":
            self.make_entries("")
        if self.arg.get("autorename") and "to_path" in self.arg:
            self.make(self.arg["to_path"])
        for entry in self.arg.get("entries") or []:
            if "parent_rev" in entry:
                entry["parent_rev"] = self.wire("files/get_metadata", {"path": entry["path"]}).value["rev"]

    def make_entries(self, path: str) -> None:
        """Create the entries of a recorded listing below a folder."""
        for entry in self.record["body"]["entries"]:
            self.make(f"{path}/{entry['.tag']}", folder=entry[".tag"] == "folder")
            if entry[".tag"] == "deleted":
                self.wire("files/delete_v2", {"path": f"{path}/deleted"})

    def make_link(self) -> None:
        """Create a link to a file or folder, unless the request must not find one."""
        if "shared_link_malformed" in self.error or "shared_link_not_found" in self.error:
            return
        folder = "folder" in _tags(self.record["body"]) or "/sh/" in self.arg["url"]
        self.make("/linked", folder=folder)
        self.arg["url"] = self.wire("sharing/create_shared_link_with_settings", {"path": "/linked"}).value["url"]

    def make_session(self) -> None:
        """Start an upload session with the number of bytes that a successful request names."""
        if "cursor" not in self.arg or "not_found" in self.error:
            return
        offset = 0 if "incorrect_offset" in self.error else self.arg["cursor"]["offset"]
        reply = self.wire("files/upload_session/start", {}, b"x" * offset)
        self.arg["cursor"] = {**self.arg["cursor"], "session_id": reply.value["session_id"]}

    def make_job(self) -> None:
        """Start a job whose result has the recorded outcomes."""
        if self.error:
            return
        verb = self.name.removeprefix("files/").partition("_batch")[0]
        outcomes = [entry[".tag"] for entry in self.record["body"]["entries"]]
        paths = [f"/job {number}" for number in range(len(outcomes))]
        for path, outcome in zip(paths, outcomes, strict=True):
            if (outcome == "success") != (verb == "create_folder"):
                self.make(path)
        if verb == "create_folder":
            reply = self.wire("files/create_folder_batch", {"paths": paths, "force_async": True})
        elif verb == "delete":
            reply = self.wire("files/delete_batch", {"entries": [{"path": path} for path in paths]})
        else:
            pairs = [{"from_path": path, "to_path": f"{path} new"} for path in paths]
            reply = self.wire(f"files/{verb}_batch_v2", {"entries": pairs})
        self.arg["async_job_id"] = reply.value["async_job_id"]

    def make_copy_reference(self) -> None:
        """Create a copy reference to a file, unless the request must not find one."""
        if self.error and "malformed_path" not in self.error:
            return
        self.make("/referenced.txt")
        reference = self.wire("files/copy_reference/get", {"path": "/referenced.txt"}).value
        self.arg["copy_reference"] = reference["copy_reference"]

    def ask(self) -> Any:
        """Send the recorded request, and return its answer."""
        if self.record["arg"] is None:  # the JavaScript SDK sends no argument in this form
            headers = {"Content-Type": self.record["request_content_type"]}
            return self.wire(self.name, raw=b"", headers=headers, token=self.token)
        content = self.record["style"] == "content"
        body = b"x" * self.length if content else None
        return self.wire(self.name, self.arg, body, token=self.token)


_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (int, float)}


def differences(recorded: Any, answer: Any, path: str = "") -> list[str]:
    """Return the differences of an answer from the recorded shape: missing keys, other types, other tags.

    Keys that the service has added since the recording are allowed. Each recorded item of a list must match an item
    of the answer's list.
    """
    if isinstance(recorded, dict):
        if not isinstance(answer, dict):
            return [f"{path}: expected an object, got {answer!r}"]
        mismatches = []
        for key, item in recorded.items():
            key_path = f"{path}.{key}"
            if key == ".tag" and item == "str":
                if not isinstance(answer.get(key), str):  # several tags were recorded
                    mismatches.append(f"{key_path}: expected any tag, got {answer.get(key)}")
            elif key == ".tag" and answer.get(key) != item:
                mismatches.append(f"{key_path}: expected {item}, got {answer.get(key)}")
            elif key == "error_summary":
                if not str(answer.get(key)).startswith(item):
                    mismatches.append(f"{key_path}: expected {item}..., got {answer.get(key)}")
            elif key not in answer:
                mismatches.append(f"{key_path}: missing")
            elif key != ".tag":
                mismatches += differences(item, answer[key], key_path)
        if ".tag" in answer and ".tag" not in recorded:
            mismatches.append(f"{path}..tag: not expected")
        return mismatches
    if isinstance(recorded, list):
        if not isinstance(answer, list):
            return [f"{path}: expected a list, got {answer!r}"]
        if bool(recorded) != bool(answer):
            return [f"{path}: {len(recorded)} items expected, got {len(answer)}"]
        comparisons = [[differences(item, other, f"{path}[]") for other in answer] for item in recorded]
        return [min(options, key=len)[0] for options in comparisons if min(options, key=len)]
    return _difference(recorded, answer, path)


def _difference(recorded: Any, answer: Any, path: str) -> list[str]:
    """Return the difference of a single value from the recorded one."""
    if isinstance(recorded, str) and recorded.startswith("str:"):
        form = {"digits": r"\d+"}.get(recorded[4:], recorded[4:].replace("9", r"\d"))
        is_like = isinstance(answer, str) and re.fullmatch(form, answer) is not None
        return [] if is_like else [f"{path}: expected {recorded}, got {answer!r}"]
    kinds = (str,) if recorded == "{id1}" else _TYPES.get(recorded)  # an id that a later request uses
    if kinds is None:
        return [] if recorded == answer else [f"{path}: expected {recorded!r}, got {answer!r}"]
    is_match = isinstance(answer, kinds) and (bool in kinds or not isinstance(answer, bool))
    return [] if is_match else [f"{path}: expected {recorded}, got {answer!r}"]


@pytest.mark.parametrize("record", list(_lines()))
def test_recorded_interaction(record: dict[str, Any], wire: Any, emulator: EmulatorService) -> None:
    state = _State(wire, emulator, record)
    state.prepare()
    reply = state.ask()
    assert (reply.status, reply.headers["content-type"]) == (
        record["status"],
        record["response_headers"]["content-type"],
    ), reply.value
    body, value = record["body"], reply.value
    if isinstance(body, str):
        assert value == body
    elif set(body) == {"text_bytes"}:
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        assert len(text) == body["text_bytes"]
    else:
        assert differences(body, value) == []
    if "dropbox-api-result" in record["response_headers"]:
        header = json.loads(reply.headers["dropbox-api-result"])
        assert differences(record["response_headers"]["dropbox-api-result"], header) == []


def test_comparer_sees_differences() -> None:
    recorded = {".tag": "file", "size": "int", "error_summary": "path", "items": [{"name": "str"}]}
    same = {".tag": "file", "size": 1, "error_summary": "path/not_found/..", "items": [{"name": "a"}], "new": 1}
    assert differences(recorded, same) == []
    assert differences(recorded, {**same, ".tag": "folder"}) == ["..tag: expected file, got folder"]
    assert differences(recorded, {**same, "size": True}) == [".size: expected int, got True"]
    assert differences(recorded, {**same, "items": []}) == [".items: 1 items expected, got 0"]
    assert differences({"at": "str:9999-99", "id": "str:digits"}, {"at": "2026-11", "id": "12"}) == []
    assert differences("str:digits", "1x") == [": expected str:digits, got '1x'"]
    assert differences({".tag": "str"}, {}) == ["..tag: expected any tag, got None"]
    assert differences({"size": "int"}, {".tag": "file", "size": 1}) == ["..tag: not expected"]
