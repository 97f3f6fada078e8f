"""Tests of each function of the Drive emulator. Every answer is checked against Google's description of the API."""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator

from .drive_wire import FOLDER, DriveWire, drive_client

UPLOAD = "/upload/drive/v3/files"
APPS = "application/vnd.google-apps."
SHEET = f"{APPS}spreadsheet"


@pytest.fixture(scope="module")
def running() -> Iterator[EmulatorService]:
    with start_emulator("gdrive-ideal", time_scale=50) as service:
        yield service


@pytest.fixture
def emulator(running: EmulatorService) -> Iterator[EmulatorService]:
    """The emulator with an empty account. Its settings are restored after the test."""
    before = running.control(get="profile")["profile"]
    running.control(reset=True)
    yield running
    running.control(set=before)


@pytest.fixture
def wire(emulator: EmulatorService) -> Iterator[DriveWire]:
    with drive_client(emulator.endpoint) as client:
        yield client


# --- files ---


def test_the_life_of_a_file(wire: DriveWire) -> None:
    file_id = wire.upload("a.txt", b"0123456789", mime="text/plain")
    metadata = wire.ok("GET", f"files/{file_id}", query={"fields": "*"})
    assert (metadata["size"], metadata["md5Checksum"], metadata["fileExtension"]) == (
        "10", hashlib.md5(b"0123456789", usedforsecurity=False).hexdigest(), "txt",
    )  # fmt: skip
    assert metadata["sha256Checksum"] == hashlib.sha256(b"0123456789").hexdigest()
    assert wire.ok("GET", f"files/{file_id}") == {
        "kind": "drive#file", "id": file_id, "name": "a.txt", "mimeType": "text/plain",
    }  # fmt: skip
    assert wire.ok("GET", f"files/{file_id}?alt=media") == b"0123456789"
    assert wire("DELETE", f"files/{file_id}").status == 204
    refusal = wire("GET", f"files/{file_id}")
    assert (refusal.status, refusal.reason) == (404, "notFound")
    assert refusal.value["error"]["message"] == f"File not found: {file_id}."


def test_ranges(wire: DriveWire) -> None:
    file_id, empty = wire.upload("a", b"0123456789"), wire.upload("b", b"")
    for text, status, data in (
        ("bytes=7-", 206, b"789"),
        ("bytes=2-3", 206, b"23"),
        ("bytes=-2", 206, b"89"),
        ("lines=1-", 200, b"0123456789"),
    ):
        reply = wire("GET", f"files/{file_id}?alt=media", headers={"Range": text})
        assert (reply.status, reply.value) == (status, data)
    beyond = wire("GET", f"files/{file_id}?alt=media", headers={"Range": "bytes=10-"})
    assert (beyond.status, beyond.headers["content-range"]) == (416, "bytes */10")
    assert (
        wire("GET", f"files/{empty}?alt=media", headers={"Range": "bytes=0-9"}).headers["content-range"] == "bytes */0"
    )


def test_several_files_may_have_one_name(wire: DriveWire) -> None:
    ids = {wire.upload("same", b"1"), wire.upload("same", b"2")}
    assert {file["id"] for file in wire.ok("GET", "files?q=name='same'")["files"]} == ids


def test_an_update_is_a_revision(wire: DriveWire) -> None:
    file_id = wire.upload("a", b"one")
    first = wire.ok("GET", f"files/{file_id}?fields=headRevisionId,version")
    wire.ok("PATCH", f"{UPLOAD}/{file_id}?uploadType=media", b"second", headers={"Content-Type": "text/plain"})
    assert wire.ok("GET", f"files/{file_id}?alt=media") == b"second"
    revisions = wire.ok("GET", f"files/{file_id}/revisions")["revisions"]
    assert revisions[0]["id"] == first["headRevisionId"]
    assert len(revisions) == 2
    assert wire.ok("GET", f"files/{file_id}/revisions/{first['headRevisionId']}?alt=media") == b"one"
    assert wire("GET", f"files/{file_id}/revisions/none").reason == "notFound"
    wire.ok("PATCH", f"files/{file_id}/revisions/{revisions[0]['id']}", {"keepForever": True})
    wire.ok("DELETE", f"files/{file_id}/revisions/{revisions[1]['id']}")
    assert wire.ok("GET", f"files/{file_id}?alt=media") == b"one"
    assert wire("DELETE", f"files/{file_id}/revisions/{revisions[0]['id']}").status == 403


def test_files_move_and_rename_and_impossible_changes_are_refused(wire: DriveWire) -> None:
    one, two = wire.folder("one"), wire.folder("two")
    inner, file_id = wire.folder("inner", one), wire.upload("a", parent=one)
    moved = wire.ok(
        "PATCH", f"files/{file_id}", {"name": "b"}, query={"addParents": two, "removeParents": one, "fields": "*"}
    )
    assert (moved["name"], moved["parents"]) == ("b", [two])
    assert wire("PATCH", f"files/{one}?addParents={inner}", {}).reason == "cannotAddParent"
    assert wire("PATCH", f"files/{file_id}?addParents={file_id}", {}).status == 403
    assert wire("PATCH", f"files/{file_id}", {"parents": [one]}).reason == "fieldNotWritable"
    assert wire("PATCH", f"files/{file_id}", {"size": "1"}).reason == "fieldNotWritable"
    assert wire("DELETE", "files/root").status == 403
    assert wire("PATCH", "files/none", {}).status == 404


def test_a_refused_move_changes_nothing_else(wire: DriveWire) -> None:
    outer = wire.folder("outer")
    changes = {"name": "new", "description": "new", "trashed": True}
    reply = wire("PATCH", f"files/{outer}?addParents={wire.folder('inner', outer)}", changes)
    assert (reply.status, reply.reason) == (403, "cannotAddParent")
    fields = wire.ok("GET", f"files/{outer}?fields=name,description,trashed")
    assert fields == {"name": "outer", "trashed": False}


def test_move_accepts_null_as_its_body(wire: DriveWire) -> None:
    """Google's library for Go sends null if there is no file. rclone does so when it merges folders."""
    one, two = wire.folder("one"), wire.folder("two")
    file_id = wire.upload("a", parent=one)
    wire.ok("PATCH", f"files/{file_id}?addParents={two}&removeParents={one}", b"null")
    assert wire.names(f"'{two}' in parents") == ["a"]


def test_copy(wire: DriveWire) -> None:
    folder, file_id = wire.folder("to"), wire.upload("a", b"abc", mime="text/plain")
    copied = wire.ok("POST", f"files/{file_id}/copy?fields=*", {"name": "b", "parents": [folder]})
    assert (copied["name"], copied["parents"], copied["size"], copied["mimeType"]) == ("b", [folder], "3", "text/plain")
    assert wire.ok("POST", f"files/{file_id}/copy", {})["name"] == "Copy of a"
    assert wire("POST", f"files/{folder}/copy", {}).reason == "cannotCopyFile"


def test_times_and_other_properties(wire: DriveWire) -> None:
    file_id = wire.upload("a", modifiedTime="2001-02-03T04:05:06.789Z", description="d", appProperties={"k": "v"})
    metadata = wire.ok("GET", f"files/{file_id}?fields=modifiedTime,description,appProperties")
    assert metadata == {"modifiedTime": "2001-02-03T04:05:06.789Z", "description": "d", "appProperties": {"k": "v"}}
    later = wire.ok("PATCH", f"files/{file_id}?fields=modifiedTime", {"modifiedTime": "2001-02-03T06:05:06+02:00"})
    assert later["modifiedTime"] == "2001-02-03T04:05:06.000Z"
    cut = wire.ok("PATCH", f"files/{file_id}?fields=modifiedTime", {"modifiedTime": "2001-02-03T04:05:06.499999999Z"})
    assert cut["modifiedTime"] == "2001-02-03T04:05:06.499Z"  # rclone's tests expect that times are cut to milliseconds
    assert wire.names("appProperties has { key='k' and value='v' }") == ["a"]
    assert wire("PATCH", f"files/{file_id}", {"modifiedTime": "yesterday"}).status == 400


def test_ids_can_be_made_before_the_file(wire: DriveWire) -> None:
    first, second = wire.ok("GET", "files/generateIds?count=2")["ids"]
    assert wire.ok("POST", "files", {"id": first, "name": "a"})["id"] == first
    again = wire("POST", "files", {"id": first, "name": "a"})
    assert (again.status, again.reason) == (409, "fileIdInUse")
    assert wire("POST", "files", {"id": "made-up", "name": "a"}).status == 400
    assert second != first


def test_documents_of_google_have_no_content(wire: DriveWire) -> None:
    sheet = wire.upload("s", b"1,2\n", mime=SHEET)
    metadata = wire.ok("GET", f"files/{sheet}?fields=*")
    assert "md5Checksum" not in metadata
    assert "headRevisionId" not in metadata
    refusal = wire("GET", f"files/{sheet}?alt=media")
    assert (refusal.status, refusal.reason) == (403, "fileNotDownloadable")
    exported = wire("GET", f"files/{sheet}/export?mimeType=text/csv")
    assert (exported.status, exported.headers["content-type"], exported.value) == (200, "text/csv", b"1,2\n")
    assert wire("GET", f"files/{sheet}/export?mimeType=image/png").status == 400
    assert wire("GET", f"files/{wire.upload('a')}/export?mimeType=text/csv").reason == "fileNotExportable"
    assert wire.ok("GET", f"files/{sheet}/revisions/1")["id"] == "1"


def test_links_to_exports_lead_somewhere(wire: DriveWire) -> None:
    """rclone reads a document by its link instead of ``files.export``, by default as docx."""
    kinds = {"document": "wordprocessingml.document", "spreadsheet": "spreadsheetml.sheet",
             "presentation": "presentationml.presentation"}  # fmt: skip
    for kind, office in kinds.items():
        document_id = wire.upload("a", b"x", mime=f"{APPS}{kind}")
        links = wire.ok("GET", f"files/{document_id}?fields=exportLinks")["exportLinks"]
        assert set(links) == set(wire.ok("GET", "about?fields=exportFormats")["exportFormats"][f"{APPS}{kind}"])
        link = urlsplit(links[f"application/vnd.openxmlformats-officedocument.{office}"])
        assert link.hostname == "docs.google.com"
        answer = wire("GET", f"{link.path}?{link.query}")
        assert (answer.status, answer.value) == (200, b"x")
        assert wire("GET", f"{link.path}?id={document_id}&exportFormat=exe").status == 400
        assert wire("GET", f"{link.path}?{link.query}", token="wrong").status == 401


def test_shortcuts(wire: DriveWire) -> None:
    target = wire.upload("a")
    kind = {"mimeType": "application/vnd.google-apps.shortcut"}
    shortcut = wire.ok("POST", "files?fields=*", {"name": "s", "shortcutDetails": {"targetId": target}, **kind})
    assert shortcut["shortcutDetails"] == {"targetId": target, "targetMimeType": "application/octet-stream"}
    assert "size" not in shortcut
    assert wire.names(f"shortcutDetails.targetId = '{target}'") == ["s"]
    assert wire("POST", "files", kind).status == 400


# --- trash, space, changes ---


def test_trash(wire: DriveWire) -> None:
    folder = wire.folder("f")
    file_id = wire.upload("a", b"abc", folder)
    wire.ok("PATCH", f"files/{folder}?fields=", {"trashed": True})
    assert wire.ok("GET", f"files/{file_id}?fields=trashed,explicitlyTrashed") == {
        "trashed": True,
        "explicitlyTrashed": False,
    }
    assert wire.names("trashed = false") == []
    assert sorted(wire.names("trashed = true")) == ["a", "f"]
    assert wire.ok("GET", "about?fields=storageQuota")["storageQuota"]["usageInDriveTrash"] == "3"
    wire.ok("PATCH", f"files/{folder}", {"trashed": False})
    assert sorted(wire.names("trashed = false")) == ["a", "f"]
    wire.ok("PATCH", f"files/{file_id}", {"trashed": True})
    assert wire("DELETE", "files/trash").status == 204
    assert wire.names() == ["f"]


def test_space(wire: DriveWire, emulator: EmulatorService) -> None:
    emulator.control(set={"quota.bytes": 5})
    file_id = wire.upload("a", b"1234")
    quota = wire.ok("GET", "about?fields=storageQuota")["storageQuota"]
    assert (quota["usage"], quota["limit"]) == ("4", "5")
    headers = {"X-Upload-Content-Length": "2"}
    full = wire("POST", f"{UPLOAD}?uploadType=resumable", {"name": "b"}, headers=headers)
    assert (full.status, full.reason) == (403, "storageQuotaExceeded")
    assert wire("POST", f"{UPLOAD}?uploadType=media", b"12").reason == "storageQuotaExceeded"
    before = wire.ok("GET", f"files/{file_id}?fields=*")
    assert wire("PATCH", f"{UPLOAD}/{file_id}?uploadType=media", b"123456").reason == "storageQuotaExceeded"
    assert wire.ok("GET", f"files/{file_id}?fields=*") == before
    assert wire("GET", "about").reason == "required"
    assert wire.ok("GET", "about?fields=*")["kind"] == "drive#about"


def test_changes(wire: DriveWire) -> None:
    token = wire.ok("GET", "changes/startPageToken")["startPageToken"]
    kept_id, removed_id = wire.upload("kept"), wire.upload("gone")
    wire.ok("PATCH", f"files/{kept_id}", {"name": "other"})
    wire.ok("DELETE", f"files/{removed_id}")
    page = wire.ok("GET", f"changes?pageToken={token}&fields=*")
    assert [(change["fileId"], change["removed"]) for change in page["changes"]] == [
        (kept_id, False),
        (removed_id, True),
    ]
    assert page["changes"][0]["file"]["name"] == "other"
    assert wire.ok("GET", f"changes?pageToken={page['newStartPageToken']}")["changes"] == []
    first = wire.ok("GET", f"changes?pageToken={token}&pageSize=1")
    assert "newStartPageToken" not in first
    assert len(wire.ok("GET", f"changes?pageToken={first['nextPageToken']}")["changes"]) == 2
    assert len(wire.ok("GET", f"changes?pageToken={token}&includeRemoved=false")["changes"]) == 1
    assert wire("GET", "changes?pageToken=nonsense").status == 400
    assert wire("GET", "changes").reason == "required"


# --- lists ---


def test_pages(wire: DriveWire) -> None:
    folder = wire.folder("f")
    for number in range(7):
        wire.upload(f"{number}", parent=folder)
    query = {"q": f"'{folder}' in parents", "pageSize": "3", "fields": "nextPageToken,files/name", "orderBy": "name"}
    names: list[str] = []
    token, pages = "", 0
    while token or not pages:
        page = wire.ok("GET", "files", query={**query, **({"pageToken": token} if token else {})})
        names += [file["name"] for file in page["files"]]
        token, pages = page.get("nextPageToken", ""), pages + 1
    assert (names, pages) == ([f"{number}" for number in range(7)], 3)
    wrongs = "pageSize=0 pageSize=1001 pageToken=x orderBy=colour q=name q=name+=+x fields=files(x fields=none".split()
    for wrong in (*wrongs, "fields=files(none)"):
        assert wire("GET", f"files?{wrong}").status == 400, wrong


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["a'b", "Report one", "x\\y", "folder", "one"]),
        ("name = 'report ONE'", ["Report one"]),
        ("name = 'a\\'b'", ["a'b"]),
        ("name = 'x\\\\y'", ["x\\y"]),
        ('name="one"', ["one"]),
        ("name contains 'one'", ["Report one", "one"]),
        ("name contains 'port'", []),
        ("name != 'one' and not name contains 'rep'", ["a'b", "x\\y", "folder"]),
        ("mimeType = 'application/vnd.google-apps.folder'", ["folder"]),
        ("mimeType != 'application/vnd.google-apps.folder' and trashed=false", ["a'b", "Report one", "x\\y", "one"]),
        ("mimeType contains 'text/'", ["one"]),
        ("fullText contains 'hello'", ["one"]),
        ("'root' in parents and (name = 'one' or name = 'folder')", ["folder", "one"]),
        ("starred = true", ["folder"]),
        ("'me' in owners and 'me' in writers and starred = true", ["folder"]),
        ("modifiedTime > '2030-01-01T00:00:00'", []),
        ("modifiedTime < '2000-01-01T00:00:00Z'", ["one"]),
        ("createdTime >= '2001-01-01'", ["a'b", "Report one", "x\\y", "folder", "one"]),
        ("visibility = 'limited' and name = 'one'", ["one"]),
        ("name = 'one' or name = 'folder' and starred = true", ["folder"]),  # from left to right
        ("name = 'one' or (name = 'folder' and starred = true)", ["folder", "one"]),
        ("sharedWithMe", []),
        ("sharedWithMe = true", []),
        ("'nobody' in colours", None),
        ("name = one", None),
        ("(name = 'one'", None),
        ("name = 'one' or", None),
        ("(" * 60 + "name = 'one'" + ")" * 60, None),
        ("name ~ 'one'", None),
        ("trashed > true", None),
        ("modifiedTime > 'soon'", None),
    ],
)
def test_searches(wire: DriveWire, query: str, names: list[str] | None) -> None:
    folder = wire.folder("folder")
    wire.ok("PATCH", f"files/{folder}", {"starred": True})
    for name in ("a'b", "Report one", "x\\y"):
        wire.upload(name)
    wire.upload("one", b"hello", mime="text/plain", modifiedTime="1999-12-31T00:00:00Z")
    if names is None:
        assert wire("GET", "files", query={"q": query}).status == 400
    else:
        assert sorted(wire.names(query)) == sorted(names)


def test_a_search_in_a_folder_that_is_not_there(wire: DriveWire) -> None:
    reply = wire("GET", "files?q='none'+in+parents")
    assert (reply.status, reply.value["error"]["message"]) == (404, "File not found: .")


def test_list_longer_than_an_address_is_sent_as_post(wire: DriveWire) -> None:
    wire.upload("one")
    query = urlencode({"q": " or ".join(["name = 'one'"] * 40), "fields": "files(name)"}).encode()
    headers = {"X-HTTP-Method-Override": "GET", "Content-Type": "application/x-www-form-urlencoded"}
    assert json.loads(json.dumps(wire("POST", "files", query, headers=headers).value)) == {"files": [{"name": "one"}]}
    zipped = {**headers, "Content-Encoding": "gzip"}  # as Google's library for Java sends it
    assert wire("POST", "files", gzip.compress(query), headers=zipped).value == {"files": [{"name": "one"}]}
    assert wire("POST", "files", query, headers=zipped).status == 400


def test_a_change_is_sent_as_post_by_clients_without_patch(wire: DriveWire) -> None:
    file_id = wire.upload("one")
    as_patch = {"X-HTTP-Method-Override": "PATCH"}
    assert wire.ok("POST", f"files/{file_id}", {"name": "two"}, headers=as_patch)["name"] == "two"
    assert wire("POST", f"files/{file_id}", {"name": "two"}).status == 404
    assert wire("POST", f"files/{file_id}", {"name": "two"}, headers=as_patch, token="wrong").status == 401


def test_bodies_may_be_compressed(wire: DriveWire) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/octet-stream"}
    assert wire.ok("POST", "files", gzip.compress(b'{"name": "a"}'), headers=headers)["name"] == "a"
    file_id = wire.ok("POST", f"{UPLOAD}?uploadType=media", gzip.compress(b"content"), headers=headers)["id"]
    assert wire.ok("GET", f"files/{file_id}?alt=media") == b"content"
    for body in (b"content", gzip.compress(b"content")[:-1]):
        assert wire("POST", f"{UPLOAD}?uploadType=media", body, headers=headers).status == 400
        assert wire("POST", "files", body, headers=headers).status == 400


# --- sharing, comments, shared drives ---


def test_a_link_works_until_it_is_taken_back(wire: DriveWire) -> None:
    file_id = wire.upload("a", b"abc")
    public = f"/uc?id={file_id}&export=download"
    assert wire("GET", public, headers={"Authorization": ""}).status == 403
    permission = wire.ok("POST", f"files/{file_id}/permissions", {"type": "anyone", "role": "reader"})
    assert (permission["id"], permission["role"], permission["allowFileDiscovery"]) == (
        "anyoneWithLink",
        "reader",
        False,
    )
    assert wire("GET", public, headers={"Authorization": ""}).value == b"abc"
    assert wire.names("visibility = 'anyoneWithLink'") == ["a"]
    assert wire.ok("PATCH", f"files/{file_id}/permissions/anyoneWithLink", {"role": "commenter"})["role"] == "commenter"
    assert wire("DELETE", f"files/{file_id}/permissions/anyoneWithLink").status == 204
    assert wire("DELETE", f"files/{file_id}/permissions/anyoneWithLink").reason == "notFound"
    assert wire("GET", public, headers={"Authorization": ""}).status == 403
    assert wire("GET", "/uc?id=none", headers={"Authorization": ""}).status == 404


def test_permissions(wire: DriveWire) -> None:
    file_id = wire.upload("a")
    owner = wire.ok("GET", f"files/{file_id}/permissions")["permissions"][0]
    person = {"type": "user", "emailAddress": "a@b.c"}
    permission = wire.ok("POST", f"files/{file_id}/permissions?fields=*", {**person, "role": "writer"})
    assert wire.ok("GET", f"files/{file_id}/permissions/{permission['id']}?fields=*") == permission
    again = wire.ok("POST", f"files/{file_id}/permissions", {**person, "role": "reader"})
    assert (again["id"], again["role"]) == (permission["id"], "reader")
    for wrong in ({}, {"role": "king", "type": "anyone"}, {"role": "reader"}, {"role": "reader", "type": "user"},
                  {"role": "reader", "type": "domain"}, {"role": "owner", "type": "anyone"}):  # fmt: skip
        assert wire("POST", f"files/{file_id}/permissions", wrong).status in (400, 403), wrong
    assert wire("DELETE", f"files/{file_id}/permissions/{owner['id']}").status == 403
    assert wire.ok("GET", f"files/{file_id}?fields=shared,permissionIds")["shared"] is True


def test_comments_and_replies(wire: DriveWire) -> None:
    base = f"files/{wire.upload('a')}/comments"
    assert wire("GET", base).reason == "required"
    note = wire.ok("POST", f"{base}?fields=*", {"content": "<hello>"})
    assert note["htmlContent"] == "&lt;hello&gt;"
    reply = wire.ok("POST", f"{base}/{note['id']}/replies?fields=*", {"content": "r", "action": "resolve"})
    assert wire.ok("GET", f"{base}/{note['id']}?fields=*")["resolved"] is True
    assert wire.ok("PATCH", f"{base}/{note['id']}/replies/{reply['id']}?fields=content", {"content": "s"}) == {
        "content": "s"
    }
    assert wire.ok("GET", f"{base}/{note['id']}/replies?fields=replies/content") == {"replies": [{"content": "s"}]}
    wire.ok("DELETE", f"{base}/{note['id']}/replies/{reply['id']}")
    assert wire.ok("PATCH", f"{base}/{note['id']}?fields=content", {"content": "b"}) == {"content": "b"}
    wire.ok("DELETE", f"{base}/{note['id']}")
    assert wire.ok("GET", f"{base}?fields=comments/id") == {"comments": []}
    assert len(wire.ok("GET", f"{base}?fields=*&includeDeleted=true")["comments"]) == 1
    assert wire("GET", f"{base}/{note['id']}?fields=*").status == 404


def test_shared_drives(wire: DriveWire) -> None:
    drive = wire.ok("POST", "drives?requestId=1", {"name": "team"})
    assert wire("POST", "drives?requestId=1", {"name": "team"}).status == 409
    assert wire("POST", "drives", {"name": "team"}).status == 400
    file_id, own_id = wire.upload("a", parent=drive["id"]), wire.upload("own")
    both = {"pageToken": "1", "includeItemsFromAllDrives": "true", "supportsAllDrives": "true"}
    for query, ids in (
        ({"pageToken": "1"}, {own_id}), ({**both, "driveId": drive["id"]}, {drive["id"], file_id}),
        (both, {drive["id"], file_id, own_id}),
    ):  # fmt: skip
        changes = wire.ok("GET", "changes", query=query)["changes"]
        assert {change[f"{change['changeType']}Id"] for change in changes} == ids
    wire.ok("DELETE", f"files/{own_id}")
    metadata = wire.ok("GET", f"files/{file_id}?fields=driveId,parents,owners")
    assert metadata == {"driveId": drive["id"], "parents": [drive["id"]]}
    assert wire.names() == []
    assert wire.names(corpora="drive", driveId=drive["id"], includeItemsFromAllDrives="true") == ["a"]
    assert wire.ok("PATCH", f"drives/{drive['id']}", {"name": "other"})["name"] == "other"
    assert wire.ok("POST", f"drives/{drive['id']}/hide?fields=hidden") == {"hidden": True}
    assert wire.ok("GET", "drives")["drives"] == [{"kind": "drive#drive", "id": drive["id"], "name": "other"}]
    assert wire("DELETE", f"drives/{drive['id']}").reason == "teamDriveNotEmpty"
    wire.ok("DELETE", f"files/{file_id}")
    assert wire("DELETE", f"drives/{drive['id']}").status == 204
    assert wire("GET", f"drives/{drive['id']}").status == 404


# --- refused requests, throttling and faults ---


def test_missing_and_wrong_tokens_are_refused(wire: DriveWire) -> None:
    reply = wire("GET", "files", token="wrong")
    assert (reply.status, reply.reason) == (401, "authError")
    assert reply.headers["www-authenticate"].endswith('error="invalid_token"')
    assert wire("GET", "files", headers={"Authorization": ""}).reason == "required"
    assert wire("GET", f"files?access_token={wire.token}", headers={"Authorization": ""}).status == 200
    assert wire("POST", f"{UPLOAD}?uploadType=media", b"x" * 100_000, token="wrong").status == 401
    assert wire("GET", "files", headers={"If-Match": '"x"'}).reason == "conditionNotMet"


@pytest.mark.parametrize(("reason", "status"), [("userRateLimitExceeded", 403), ("rateLimitExceeded", 429)])
def test_too_many(wire: DriveWire, emulator: EmulatorService, reason: str, status: int) -> None:
    limits = {"throttle.rate_per_s": 1e-6, "throttle.burst": 1, "throttle.reason": reason, "throttle.retry_after_s": 0}
    emulator.control(set=limits)
    wire.upload("a")
    refusal = wire("POST", "files", {"name": "b"})
    assert (refusal.status, refusal.reason) == (status, reason)
    assert refusal.value["error"]["errors"][0]["domain"] == "usageLimits"
    assert "retry-after" not in refusal.headers
    emulator.control(set={"throttle.retry_after_s": 3})
    assert wire("POST", "files", {"name": "b"}).headers["retry-after"] == "3"


def test_broken_and_unknown(wire: DriveWire, emulator: EmulatorService) -> None:
    assert wire("GET", "nothing").status == 404
    assert wire("PUT", "files").status == 404
    assert wire("POST", "files", b"{").reason == "parseError"
    emulator.control(set={"faults.error_rate": 1.0})
    broken = wire("GET", "files")
    assert (broken.status, broken.reason) == (500, "backendError")
    emulator.control(set={"faults.error_rate": 0.0, "faults.corrupt_rate": 1.0})
    file_id = wire.upload("a", b"\0" * 8)
    emulator.control(set={"faults.corrupt_rate": 0.0})
    assert sum(byte.bit_count() for byte in wire.ok("GET", f"files/{file_id}?alt=media")) == 1


def test_upload_not_ready_is_hidden_from_reads(wire: DriveWire, emulator: EmulatorService) -> None:
    emulator.control(set={"readiness.delay_s": 3600})
    file_id = wire.upload("a")
    assert wire("GET", f"files/{file_id}").status == 404
    assert wire.names() == []
    assert wire.ok("GET", "changes?pageToken=1")["changes"] == []


def test_writes_see_a_file_that_is_not_ready(wire: DriveWire, emulator: EmulatorService) -> None:
    emulator.control(set={"readiness.delay_s": 3600, "readiness.delete_delay_s": 7200})
    fields = "fields=id,size,md5Checksum,folderColorRgb"
    first = wire.ok("POST", f"{UPLOAD}?uploadType=media&{fields}", b"abc")
    assert (first.keys(), first["size"]) == ({"id", "size", "md5Checksum"}, "3")
    file_id = first["id"]
    assert wire.ok("PATCH", f"{UPLOAD}/{file_id}?uploadType=media&{fields}", b"longer")["size"] == "6"
    assert wire.ok("PATCH", f"files/{file_id}", {"name": "b"})["name"] == "b"
    assert wire.ok("POST", f"files/{file_id}/copy?{fields}", {})["size"] == "6"
    assert wire("DELETE", f"files/{file_id}").status == 204
    assert wire("GET", f"files/{file_id}").status == 404
    emulator.control(set={"readiness.delay_s": 0})


def test_a_change_with_an_impossible_value_changes_nothing(wire: DriveWire) -> None:
    file_id = wire.upload("a")
    before = wire.ok("GET", f"files/{file_id}?fields=*")
    for wrong in ({"modifiedTime": "yesterday"}, {"name": 3}, {"starred": "yes"}):
        assert wire("PATCH", f"files/{file_id}", {"description": "x", **wrong}).status == 400
        assert wire.ok("GET", f"files/{file_id}?fields=*") == before


# --- tokens ---


def form(wire: DriveWire, path: str = "/token", **values: str) -> Any:
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": ""}
    return wire("POST", path, urlencode(values).encode(), headers=headers)


def test_tokens_end_and_are_renewed(wire: DriveWire, emulator: EmulatorService) -> None:
    emulator.control(set={"account.token_lifetime_s": 5})
    app = {"client_id": "app", "client_secret": "secret"}
    answer = form(wire, grant_type="refresh_token", refresh_token="1//made-up", **app).value
    assert sorted(answer) == ["access_token", "expires_in", "scope", "token_type"]
    assert wire("GET", "files", token=answer["access_token"]).status == 200
    status = 200
    while status == 200:  # 5 s of the emulator's clock are 0.1 s
        status = wire("GET", "files", token=answer["access_token"]).status
    assert status == 401
    refusal = form(wire, grant_type="refresh_token", refresh_token="invalid", **app)
    assert (refusal.status, refusal.value["error"]) == (400, "invalid_grant")
    assert form(wire, grant_type="refresh_token", refresh_token="1//x").value["error"] == "invalid_client"
    assert form(wire, grant_type="password", **app).value["error"] == "unsupported_grant_type"


def test_a_code_and_its_revocation(wire: DriveWire) -> None:
    page = wire("GET", "/o/oauth2/v2/auth?client_id=app&response_type=code&redirect_uri=http://127.0.0.1:1/&state=s")
    code = parse_qs(urlsplit(page.headers["location"]).query)["code"][0]
    fields = {
        "grant_type": "authorization_code",
        "code": code,
        "client_id": "app",
        "redirect_uri": "http://127.0.0.1:1/",
    }
    answer = form(wire, **fields).value
    assert sorted(answer) == ["access_token", "expires_in", "refresh_token", "scope", "token_type"]
    assert form(wire, **fields).value["error"] == "invalid_grant"
    assert form(wire, "/revoke", token=answer["refresh_token"]).status == 200
    assert wire("GET", "files", token=answer["access_token"]).status == 401
    assert form(wire, "/revoke", token="nobody's").value["error"] == "invalid_token"
    assert wire("GET", "/o/oauth2/v2/auth?client_id=app&redirect_uri=http://example.com/").status == 400


def test_malformed_assertion_is_refused(wire: DriveWire) -> None:
    grant = "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert form(wire, grant_type=grant, assertion="a.b.c").value["error"] == "invalid_grant"
    deep = base64.urlsafe_b64encode(b"[" * 100_000).decode()
    assert form(wire, grant_type=grant, assertion=f"a.{deep}.c").value["error"] == "invalid_grant"


def test_a_connection_is_kept(wire: DriveWire) -> None:
    wire.upload("a")
    before: http.client.HTTPSConnection = wire.connection
    local = before.sock.getsockname()
    wire.ok("POST", "files", {"name": "f", "mimeType": FOLDER})
    assert before.sock.getsockname() == local
