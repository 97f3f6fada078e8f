"""The Box emulator, asked over TLS; each answer is checked against the published specification."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator
from tests.limits import HANG_S

from .box_wire import BoxReply, BoxWire, broken_rules

MB = 1_000_000


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorService]:
    with start_emulator("ideal", api="box", time_scale=100) as running:
        yield running


@pytest.fixture
def box(emulator: EmulatorService) -> Iterator[BoxWire]:
    emulator.control(reset=True)
    made = BoxWire(emulator.endpoint)
    yield made
    made.close()


def said(reply: BoxReply) -> tuple[int, str]:
    return reply.status, reply.value["code"]


def names(reply: BoxReply) -> list[str]:
    return [entry["name"] for entry in reply.value["entries"]]


# --- the checker itself ---


def test_schema_check_finds_broken_rules() -> None:
    schema = {"$ref": "#/schemas/File--Full"}
    assert broken_rules(schema, {"type": "file", "id": "1", "size": 1}) == []
    assert broken_rules(schema, {"type": "file", "id": 1})
    assert broken_rules(schema, {"type": "file"})
    assert broken_rules(schema, {"type": "file", "id": "1", "colour": "red"})
    assert broken_rules({"$ref": "#/schemas/Files"}, {"entries": [{"type": "file", "id": "1", "colour": "red"}]})


# --- items ---


def test_the_life_of_a_file(box: BoxWire) -> None:
    file = box.upload(
        {"name": "ä.txt", "parent": {"id": "0"}, "content_modified_at": "2020-01-02T03:04:05Z"}, b"0123456789"
    )
    assert (file.status, file.value["total_count"]) == (201, 1)
    entry = file.value["entries"][0]
    assert (entry["name"], entry["size"], entry["etag"]) == ("ä.txt", 10, "0")
    assert entry["sha1"] == hashlib.sha1(b"0123456789").hexdigest()
    assert entry["content_modified_at"] == "2020-01-01T20:04:05-07:00"
    assert box("GET", f"/files/{entry['id']}").value == entry
    assert entry["id"].isdigit()
    reply = box.download(f"/files/{entry['id']}/content")
    assert (reply.status, reply.value, reply.headers["accept-ranges"]) == (200, b"0123456789", "bytes")
    assert reply.headers["content-disposition"] == "attachment;filename=\"?.txt\";filename*=UTF-8''%C3%A4.txt"
    ranged = box.download(f"/files/{entry['id']}/content", Range="bytes=7-")
    assert (ranged.status, ranged.value, ranged.headers["content-range"]) == (206, b"789", "bytes 7-9/10")
    assert box.download(f"/files/{entry['id']}/content", Range="bytes=10-").status == 416
    assert box("DELETE", f"/files/{entry['id']}").status == 204
    assert said(box("GET", f"/files/{entry['id']}")) == (404, "trashed")


def test_fields_parameter_limits_the_shown_fields(box: BoxWire) -> None:
    file = box.file("a.txt")
    assert box("GET", f"/files/{file['id']}?fields=name,size").value == {
        "type": "file", "id": file["id"], "etag": "0", "name": "a.txt", "size": 7,
    }  # fmt: skip
    every = "permissions,version_number,comment_count,extension,tags,lock,is_package,has_collaborations,nonsense"
    shown = box("GET", f"/files/{file['id']}?fields={every}").value
    assert (shown["extension"], shown["version_number"], "nonsense" in shown) == ("txt", "1", False)
    assert box("GET", "/folders/0?fields=permissions,allowed_invitee_roles,sync_state").status == 200


def test_new_version_keeps_former_versions_restorable(box: BoxWire) -> None:
    file = box.file("a", b"1")
    again = box.upload({"name": "b"}, b"22", file["id"])
    entry = again.value["entries"][0]
    assert (again.status, entry["id"], entry["name"], entry["size"]) == (200, file["id"], "b", 2)
    past = box("GET", f"/files/{file['id']}/versions").value
    assert [each["id"] for each in past["entries"]] == [file["file_version"]["id"]]
    old = past["entries"][0]["id"]
    assert box.download(f"/files/{file['id']}/content?version={old}").value == b"1"
    assert box("POST", f"/files/{file['id']}/versions/current", {"type": "file_version", "id": old}).status == 201
    assert box.download(f"/files/{file['id']}/content").value == b"1"
    assert box("GET", f"/files/{file['id']}/versions/{old}").value["size"] == 1
    assert box("DELETE", f"/files/{file['id']}/versions/{old}").status == 204
    trashed = box("GET", f"/files/{file['id']}/versions/{old}").value
    assert (trashed["trashed_at"] is not None, trashed["trashed_by"]["type"]) == (True, "user")
    listed = {each["id"]: each["trashed_at"] for each in box("GET", f"/files/{file['id']}/versions").value["entries"]}
    assert listed[old] == trashed["trashed_at"]
    assert said(box("GET", f"/files/{file['id']}/content?version={old}")) == (404, "trashed")
    assert said(box("POST", f"/files/{file['id']}/versions/current", {"id": old})) == (404, "trashed")
    assert said(box("DELETE", f"/files/{file['id']}/versions/{old}")) == (404, "trashed")
    assert said(box("PUT", f"/files/{file['id']}/versions/{old}", {})) == (400, "bad_request")
    assert box("PUT", f"/files/{file['id']}/versions/{old}", {"trashed_at": None}).value["trashed_at"] is None
    assert box.download(f"/files/{file['id']}/content?version={old}").value == b"1"


def test_preconditions(box: BoxWire) -> None:
    file = box.file("a")
    path = f"/files/{file['id']}"
    assert box("GET", path, headers={"If-None-Match": "0"}).status == 304
    assert box("PUT", path, {"description": "x"}, headers={"If-Match": "0"}).value["etag"] == "1"
    assert box("GET", path, headers={"If-None-Match": "0"}).status == 200
    assert said(box("PUT", path, {"name": "b"}, headers={"If-Match": "0"})) == (412, "precondition_failed")
    assert said(box("DELETE", path, headers={"If-Match": "0"})) == (412, "precondition_failed")
    assert said(box.upload({"name": "a"}, b"1", file["id"], If_Match="0")) == (412, "precondition_failed")
    assert box("DELETE", path, headers={"If-Match": "1"}).status == 204


def test_folders_are_made_moved_copied_and_removed(box: BoxWire) -> None:
    a, other = box.folder("a"), box.folder("other")
    box.file("x", b"12", a["id"])
    inner = box.folder("inner", a["id"])
    assert said(box("POST", "/folders", {"name": "A", "parent": {"id": "0"}})) == (409, "item_name_in_use")
    moved = box("PUT", f"/folders/{a['id']}", {"name": "b", "parent": {"id": other["id"]}}).value
    assert [each["name"] for each in moved["path_collection"]["entries"]] == ["All Files", "other"]
    assert (moved["size"], moved["item_collection"]["total_count"]) == (2, 2)
    twin = box("POST", f"/folders/{a['id']}/copy", {"parent": {"id": "0"}, "name": "twin"})
    assert (twin.status, names(box("GET", f"/folders/{twin.value['id']}/items"))) == (201, ["inner", "x"])
    inside = {"parent": {"id": inner["id"]}}
    assert said(box("PUT", f"/folders/{a['id']}", inside)) == (400, "cyclical_folder_structure")
    assert said(box("POST", f"/folders/{a['id']}/copy", inside)) == (400, "cyclical_folder_structure")
    assert said(box("DELETE", f"/folders/{a['id']}")) == (400, "folder_not_empty")
    assert box("DELETE", f"/folders/{a['id']}?recursive=true").status == 204
    assert said(box("GET", f"/folders/{inner['id']}")) == (404, "trashed")
    assert said(box("DELETE", "/folders/0?recursive=true")) == (403, "access_denied_insufficient_permissions")


def test_copy_and_move_onto_taken_name_are_refused(box: BoxWire) -> None:
    a, b, folder = box.file("a"), box.file("b"), box.folder("f")
    copy = box("POST", f"/files/{a['id']}/copy", {"parent": {"id": folder["id"]}})
    assert (copy.status, copy.value["sha1"], copy.value["etag"]) == (201, a["sha1"], "0")
    taken = box("POST", f"/files/{a['id']}/copy", {"parent": {"id": "0"}, "name": "B"})
    assert (*said(taken), taken.value["context_info"]["conflicts"]["id"]) == (409, "item_name_in_use", b["id"])
    assert said(box("PUT", f"/files/{a['id']}", {"parent": {"id": folder["id"]}})) == (409, "item_name_in_use")
    assert said(box("PUT", f"/files/{a['id']}", {"name": "b"})) == (409, "item_name_in_use")
    assert box("PUT", f"/files/{a['id']}", {"name": "A"}).value["name"] == "A"
    assert said(box("PUT", f"/files/{a['id']}", {"parent": {"id": "4711"}})) == (404, "not_found")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", "bad_request"),
        ("x" * 256, "item_name_too_long"),
        ("a/b", "item_name_invalid"),
        ("a\\b", "item_name_invalid"),
        ("a\n", "item_name_invalid"),
        ("end ", "item_name_invalid"),
        ("..", "item_name_invalid"),
    ],
)
def test_invalid_file_names_are_refused(box: BoxWire, name: str, code: str) -> None:
    body = {"name": name, "parent": {"id": "0"}}
    for reply in (box("POST", "/folders", body), box("OPTIONS", "/files/content", body), box.upload(body, b"")):
        assert said(reply) == (400, code)


def test_name_may_begin_with_a_space(box: BoxWire) -> None:
    """rclone keeps such names on Box as they are, and replaces only a space at the end."""
    folder = box.folder(" in")
    assert box.file(" a", parent=folder["id"])["name"] == " a"
    listed = box("GET", f"/folders/{folder['id']}/items").value["entries"]
    assert (folder["name"], [entry["name"] for entry in listed]) == (" in", [" a"])


def test_unknown_ids_and_malformed_ids_are_refused(box: BoxWire) -> None:
    reply = box("GET", "/folders/4711")
    assert said(reply) == (404, "not_found")
    assert reply.value["context_info"]["errors"][0]["message"].startswith("Invalid value 'd_4711'. 'folder'")
    assert said(box("GET", "/files/4711")) == (404, "not_found")
    assert said(box("GET", "/files/abc")) == (405, "method_not_allowed")
    assert said(box("PATCH", "/files/4711")) == (405, "method_not_allowed")
    assert said(box("GET", "/nonsense")) == (404, "not_found")
    assert said(box("GET", f"/folders/{box.file('a')['id']}")) == (404, "not_found")


# --- pages ---


def test_pages_by_offset_and_by_marker(box: BoxWire) -> None:
    for name in ("c", "a", "B"):
        box.file(name)
    box.folder("z")
    first = box("GET", "/folders/0/items?limit=3").value
    assert ([each["name"] for each in first["entries"]], first["total_count"]) == (["z", "a", "B"], 4)
    assert names(box("GET", "/folders/0/items?limit=3&offset=3")) == ["c"]
    assert names(box("GET", "/folders/0/items?sort=name&direction=DESC&fields=name")) == ["z", "c", "B", "a"]
    found, query = [], "limit=3"
    while query:
        page = box("GET", f"/folders/0/items?usemarker=true&{query}").value
        found += [each["name"] for each in page["entries"]]
        assert "total_count" not in page
        query = f"limit=3&marker={page['next_marker']}" if "next_marker" in page else ""
        box.file(f"new {len(found)}")
    assert sorted(found) == ["B", "a", "c", "new 3", "z"]
    assert said(box("GET", "/folders/0/items?limit=x")) == (400, "invalid_limit")
    assert said(box("GET", "/folders/0/items?offset=10001")) == (400, "invalid_offset")
    assert said(box("GET", "/folders/0/items?usemarker=true&marker=x")) == (400, "bad_request")
    assert said(box("GET", "/folders/0/items?sort=colour")) == (400, "bad_request")


# --- uploads ---


def test_the_check_before_an_upload(box: BoxWire) -> None:
    body = {"name": "a", "parent": {"id": "0"}, "size": 7}
    ready = box("OPTIONS", "/files/content/", body)
    assert ready.status == 200
    assert urlsplit(ready.value["upload_url"]).path == "/api/2.0/files/content"
    file = box.file("a")
    taken = box("OPTIONS", "/files/content", body)
    assert (*said(taken), taken.value["context_info"]["conflicts"]["id"]) == (409, "item_name_in_use", file["id"])
    assert box("OPTIONS", f"/files/{file['id']}/content", {"size": 9}).status == 200
    assert said(box("OPTIONS", "/files/content", {**body, "parent": {"id": "4711"}})) == (404, "not_found")


def test_bodies_of_uploads(box: BoxWire) -> None:
    body = {"name": "a", "parent": {"id": "0"}}
    tricky = b"\r\n--boundary-471\r\n--boundary" * 3 + b"\r\n"
    file = box.upload(body, tricky, content="contents").value["entries"][0]
    assert box.download(f"/files/{file['id']}/content").value == tricky
    large = bytes(range(256)) * 4096
    file = box.upload({**body, "name": "large"}, large).value["entries"][0]
    assert file["sha1"] == hashlib.sha1(large).hexdigest()
    assert said(box.upload("{", b"1")) == (400, "bad_request")
    assert said(box.upload({**body, "name": "b"}, b"1", Content_MD5="0" * 40)) == (400, "bad_digest")
    assert box.upload({**body, "name": "b"}, b"1", Content_MD5=hashlib.sha1(b"1").hexdigest()).status == 201
    kind = {"Content-Type": "multipart/form-data; boundary=B"}
    late = b'--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n1\r\n--B--\r\n'
    assert said(box("POST", "/files/content", late, headers=kind)) == (400, "metadata_after_file_contents")
    assert said(box("POST", "/files/content", b"--B\r\n", headers=kind)) == (400, "bad_request")
    assert said(box("POST", "/files/content", b"{}")) == (400, "bad_request")


@pytest.mark.parametrize("attributes", [None, b"{}", b'{"name": null}', b'{"name": null, "parent": null}'])
def test_a_new_version_needs_no_attributes(box: BoxWire, attributes: bytes | None) -> None:
    file = box.file("a.txt")
    kind = {"Content-Type": "multipart/form-data; boundary=B"}
    part = b'--B\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    content = part.replace(b'name="%b"', b'name="file"; filename="x"') % b"new"
    body = (b"" if attributes is None else part % (b"attributes", attributes)) + content
    made = box("POST", f"/files/{file['id']}/content", body + b"--B--\r\n", headers=kind)
    assert (made.status, made.value["entries"][0]["name"], made.value["entries"][0]["size"]) == (200, "a.txt", 3)
    late = box(
        "POST", f"/files/{file['id']}/content", content + part % (b"attributes", b"{}") + b"--B--\r\n", headers=kind
    )
    assert said(late) == (400, "metadata_after_file_contents")
    assert box("POST", "/files/content", body + b"--B--\r\n", headers=kind).status == 400


def test_a_file_is_locked_until_it_is_unlocked(box: BoxWire) -> None:
    path = f"/files/{box.file('a.txt')['id']}?fields=lock"
    until = "2099-01-02T03:04:05-07:00"
    wanted = {"type": "lock", "expires_at": until, "is_download_prevented": True}
    lock = box("PUT", path, {"lock": wanted}).value["lock"]
    assert (lock["type"], lock["expired_at"], lock["is_download_prevented"]) == ("lock", until, True)
    assert box("GET", path).value["lock"] == lock
    assert box("PUT", path, {"name": "b.txt"}).value["lock"] == lock
    for wrong in ("x", {"type": "key"}, {"type": "lock", "expires_at": "2001-01-01T00:00:00Z"}):
        assert said(box("PUT", path, {"lock": wrong})) == (400, "bad_request"), wrong
    assert box("PUT", path, {"lock": None}).value["lock"] is None
    assert "expired_at" not in box("PUT", path, {"lock": {"access": "lock"}}).value["lock"]


def test_space_and_the_largest_file(box: BoxWire, emulator: EmulatorService) -> None:
    body = {"name": "a", "parent": {"id": "0"}}
    emulator.control(set={"quota.bytes": 10, "account.type": "personal"})
    try:
        assert said(box("OPTIONS", "/files/content", {**body, "size": 11})) == (403, "storage_limit_exceeded")
        assert said(box("OPTIONS", "/files/content", {**body, "size": 300 * 2**20})) == (
            403,
            "file_size_limit_exceeded",
        )
        assert said(box.upload(body, b"x" * 11)) == (403, "storage_limit_exceeded")
        file = box.file("a", b"x" * 9)
        box("DELETE", f"/files/{file['id']}")
        user = box("GET", "/users/me").value
        assert (user["space_used"], user["space_amount"], user["max_upload_size"]) == (9, 10, 250 * 2**20)
        assert said(box.upload(body, b"xx")) == (403, "storage_limit_exceeded")  # what is in the trash counts
        box("DELETE", f"/files/{file['id']}/trash")
        assert box("GET", "/users/me?fields=space_used,enterprise").value["space_used"] == 0
    finally:
        emulator.control(set={"quota.bytes": 0, "account.type": "enterprise"})


class Parts:
    """An upload in parts, step by step."""

    def __init__(self, box: BoxWire, size_bytes: int = 20 * MB + 1, file_id: str = "") -> None:
        self.box, self.data = box, hashlib.shake_128(b"parts").digest(size_bytes)
        body: dict[str, Any] = {"file_size": size_bytes}
        if not file_id:
            body |= {"folder_id": "0", "file_name": "parts"}
        path = f"/api/2.0/files/{file_id}/upload_sessions" if file_id else "/api/2.0/files/upload_sessions"
        self.session = box("POST", path, body).value
        self.home = f"/files/upload_sessions/{self.session['id']}"

    def put(self, number: int, **headers: str) -> BoxReply:
        begin = number * self.session["part_size"]
        part = self.data[begin : begin + self.session["part_size"]]
        digest = base64.b64encode(hashlib.sha1(part).digest()).decode()
        place = f"bytes {begin}-{begin + len(part) - 1}/{len(self.data)}"
        return self.box("PUT", self.home, part, headers={"Content-Range": place, "Digest": f"sha={digest}", **headers})

    def commit(self, parts: list[Any], **headers: str) -> BoxReply:
        digest = base64.b64encode(hashlib.sha1(self.data).digest()).decode()
        return self.box("POST", f"{self.home}/commit", {"parts": parts}, headers={"Digest": f"sha={digest}", **headers})


def test_an_upload_in_parts_goes_on_after_a_cut(box: BoxWire) -> None:
    upload = Parts(box)
    assert (upload.session["part_size"], upload.session["total_parts"]) == (8 * 2**20, 3)
    parts = [upload.put(number).value["part"] for number in (2, 0)]
    assert said(upload.commit(parts)) == (400, "parts_mismatch")
    assert said(upload.put(0)) == (409, "range_overlaps_existing_range")
    listed = box("GET", f"{upload.home}/parts").value  # a client that lost its answers asks what there is
    assert sorted(each["part_id"] for each in listed["entries"]) == sorted(each["part_id"] for each in parts)
    assert box("GET", upload.home).value["num_parts_processed"] == 2
    parts.append(upload.put(1).value["part"])
    made = upload.commit(parts)
    assert (made.status, made.value["entries"][0]["sha1"]) == (201, hashlib.sha1(upload.data).hexdigest())
    assert box("GET", upload.home).status == 404
    assert box("DELETE", upload.home).status == 204
    again = Parts(box, file_id=made.value["entries"][0]["id"])
    made = again.commit([again.put(number).value["part"] for number in range(3)], If_Match="0")
    assert made.value["entries"][0]["etag"] == "1"


def test_upload_session_refuses_wrong_sizes_digests_and_targets(box: BoxWire, emulator: EmulatorService) -> None:
    start_it = "/files/upload_sessions"
    body = {"folder_id": "0", "file_name": "a", "file_size": 20 * MB}
    assert said(box("POST", start_it, {**body, "file_size": 20 * MB - 1})) == (400, "file_size_too_small")
    assert said(box("POST", start_it, {"folder_id": "0", "file_name": "a"})) == (400, "missing_file_size")
    assert said(box("POST", start_it, {"file_size": 1})) == (400, "missing_destination")
    assert said(box("POST", start_it, {**body, "folder_id": "4711"})) == (404, "not_found")
    box.file("a")
    assert said(box("POST", start_it, body)) == (409, "item_name_in_use")
    upload = Parts(box)
    assert said(upload.put(0, Digest="sha=AAAA")) == (412, "digest_mismatch")
    assert upload.put(0, **{"Content-Range": f"bytes 1-8388608/{20 * MB + 1}"}).status == 416
    parts = [upload.put(number).value["part"] for number in range(3)]
    wrong = upload.commit(parts, Digest="sha=AAAA")
    assert said(wrong) == (400, "digest_mismatch")
    assert wrong.value["message"].startswith("File digest was incorrect. Actual: ")
    emulator.control(set={"jobs.start_s": 86_400.0})
    try:
        late = Parts(box)
        late.put(0)
        waits = late.commit([])
        assert (waits.status, 86_000 < int(waits.headers["retry-after"]) <= 86_400) == (202, True)
    finally:
        emulator.control(set={"jobs.start_s": 0.0})
    assert box("DELETE", upload.home).status == 204
    assert said(upload.put(0)) == (404, "not_found")
    assert said(box("GET", "/files/upload_sessions/no-session")) == (400, "invalid_upload_session_id")


# --- trash ---


def test_the_trash_keeps_and_gives_back(box: BoxWire) -> None:
    folder = box.folder("f")
    file = box.file("a", b"1", folder["id"])
    box("DELETE", f"/folders/{folder['id']}?recursive=true")
    assert names(box("GET", "/folders/trash/items")) == ["f"]
    assert said(box("GET", f"/files/{file['id']}/trash")) == (404, "trashed")
    shown = box("GET", f"/folders/{folder['id']}/trash").value
    assert (shown["item_status"], shown["trashed_at"] is None) == ("trashed", False)
    other = box.folder("f")
    assert said(box("POST", f"/folders/{folder['id']}", {})) == (409, "item_name_in_use")
    back = box("POST", f"/folders/{folder['id']}", {"name": "g", "parent": {"id": other["id"]}})
    assert (back.status, back.value["item_status"]) == (201, "active")
    assert box.download(f"/files/{file['id']}/content").value == b"1"
    assert said(box("DELETE", f"/files/{file['id']}/trash")) == (404, "not_trashed")
    box("DELETE", f"/files/{file['id']}")
    assert box("DELETE", f"/files/{file['id']}/trash").status == 204
    assert box("GET", f"/files/{file['id']}/trash").status == 404


# --- sharing, events, search, comments ---


def test_a_link_shows_its_item_until_it_is_gone(box: BoxWire) -> None:
    file = box.file("a.txt", b"shared")
    link = box("PUT", f"/files/{file['id']}?fields=shared_link", {"shared_link": {}}).value["shared_link"]
    assert (link["access"], link["effective_permission"]) == ("open", "can_download")
    again = box("PUT", f"/files/{file['id']}", {"shared_link": {"access": "open"}}).value["shared_link"]
    assert again["url"] == link["url"]
    by_link = {"BoxApi": f"shared_link={link['url']}"}
    assert box("GET", "/shared_items", headers=by_link).value["id"] == file["id"]
    assert box("GET", urlsplit(link["url"]).path, token="").status == 200
    assert box("GET", urlsplit(link["download_url"]).path, token="").value == b"shared"
    box("PUT", f"/files/{file['id']}", {"shared_link": {"password": "let me in"}})
    assert said(box("GET", "/shared_items", headers=by_link)) == (403, "incorrect_shared_item_password")
    right = {"BoxApi": f"shared_link={link['url']}&shared_link_password=let me in"}
    assert box("GET", "/shared_items", headers=right).status == 200
    assert box("PUT", f"/files/{file['id']}", {"shared_link": None}).value["shared_link"] is None
    assert said(box("GET", "/shared_items", headers=right)) == (404, "not_found")
    assert box("GET", urlsplit(link["url"]).path, token="").status == 404


def test_events_list_changes_and_wake_a_long_poll(box: BoxWire, emulator: EmulatorService) -> None:
    now = box("GET", "/events?stream_position=now").value
    assert (now["chunk_size"], now["entries"]) == (0, [])
    file = box.file("a")
    box("PUT", f"/files/{file['id']}", {"name": "b"})
    box("DELETE", f"/files/{file['id']}")
    page = box("GET", f"/events?stream_position={now['next_stream_position']}").value
    assert [each["event_type"] for each in page["entries"]] == ["ITEM_UPLOAD", "ITEM_RENAME", "ITEM_TRASH"]
    assert box("GET", f"/events?stream_position={page['next_stream_position']}").value["entries"] == []
    server = box("OPTIONS", "/events").value["entries"][0]
    place = urlsplit(server["url"])
    waiting: list[BoxReply] = []
    other = BoxWire(emulator.endpoint)
    thread = threading.Thread(target=lambda: waiting.append(other("GET", f"{place.path}?{place.query}", token="")))
    thread.start()
    box.folder("news")
    thread.join(HANG_S)
    other.close()
    assert waiting[0].value == {"message": "new_change"}


def test_search_comments_and_collaborations(box: BoxWire) -> None:
    folder = box.folder("Report 2026")
    file = box.file("report.txt", b"", folder["id"])
    assert names(box("GET", "/search?query=REPORT")) == ["Report 2026", "report.txt"]
    assert names(box("GET", f"/search?query=report&type=file&ancestor_folder_ids={folder['id']}")) == ["report.txt"]
    assert said(box("GET", "/search")) == (400, "bad_request")
    about = {"item": {"type": "file", "id": file["id"]}, "message": "first"}
    comment = box("POST", "/comments", about)
    assert comment.status == 201
    path = f"/comments/{comment.value['id']}"
    assert box("PUT", path, {"message": "second"}).value["message"] == "second"
    assert box("GET", path).value["message"] == "second"
    assert box("GET", f"/files/{file['id']}/comments").value["total_count"] == 1
    assert box("DELETE", path).status == 204
    assert box("GET", path).status == 404
    invited = {
        "item": {"type": "folder", "id": folder["id"]},
        "accessible_by": {"type": "user", "login": "x@example.com"},
    }
    made = box("POST", "/collaborations", {**invited, "role": "viewer"})
    assert (made.status, made.value["status"]) == (201, "pending")
    path = f"/collaborations/{made.value['id']}"
    assert box("PUT", path, {"role": "editor"}).value["role"] == "editor"
    assert len(box("GET", f"/folders/{folder['id']}/collaborations").value["entries"]) == 1
    assert box("GET", "/collaborations?status=pending").value["total_count"] == 0
    assert box("DELETE", path).status == 204
    known = box(
        "POST", "/collaborations", {**invited, "accessible_by": {"type": "user", "id": "7"}, "role": "viewer"}
    ).value
    assert (known["status"], known["accessible_by"]["id"], known["invite_email"]) == ("accepted", "7", None)


# --- who may ask, how often, and what goes wrong ---


def test_unauthorized_requests_are_refused_with_their_realm(box: BoxWire, emulator: EmulatorService) -> None:
    wrong = box("GET", "/users/me", token="wrong")
    assert (wrong.status, wrong.value) == (401, b"")
    assert wrong.headers["www-authenticate"] == (
        'Bearer realm="Service", error="invalid_token", error_description="The access token provided is invalid."'
    )
    assert box("GET", "/users/me", token="").headers["www-authenticate"] == 'Bearer realm="Service"'
    file = box.file("a", b"1")
    assert box("GET", f"/files/{file['id']}/content?access_token={box.token}", token="").status == 302
    stolen = box("GET", f"/files/{file['id']}/content").headers["location"].replace(file["id"], "4711")
    assert box("GET", urlsplit(stolen).path, token="").status == 404


def token_for(box: BoxWire, **form: str) -> BoxReply:
    client = {"client_id": "me", "client_secret": "secret"}
    return box("POST", "/oauth2/token", urlencode({**client, **form}).encode(), token="")


def test_tokens_end_and_are_renewed(box: BoxWire, emulator: EmulatorService) -> None:
    granted = token_for(box, grant_type="refresh_token", refresh_token="r1").value
    assert box("GET", "/users/me", token=granted["access_token"]).status == 200
    assert token_for(box, grant_type="refresh_token", refresh_token="r1").value == {
        "error": "invalid_grant", "error_description": "Invalid refresh token",
    }  # fmt: skip
    assert token_for(box, grant_type="refresh_token", refresh_token=granted["refresh_token"]).status == 200
    machine = token_for(box, grant_type="client_credentials", box_subject_type="enterprise", box_subject_id="1").value
    assert "refresh_token" not in machine
    assert (
        token_for(box, grant_type="client_credentials", box_subject_id="1", client_secret="").value["error"]
        == "invalid_client"
    )
    assert token_for(box, grant_type="nonsense").value["error"] == "invalid_request"
    place = box("GET", "/api/oauth2/authorize?client_id=me&redirect_uri=http://localhost:1/&state=s", token="").headers
    code = place["location"].partition("code=")[2].partition("&")[0]
    assert token_for(box, grant_type="authorization_code", code=code, redirect_uri="http://localhost:1/").status == 200
    ended = urlencode({"client_id": "me", "client_secret": "secret", "token": machine["access_token"]}).encode()
    assert box("POST", "/oauth2/revoke", ended, token="").status == 200
    assert box("GET", "/users/me", token=machine["access_token"]).status == 401
    emulator.control(set={"account.token_lifetime_s": 0.0})
    try:
        short = token_for(box, grant_type="refresh_token", refresh_token="r2").value["access_token"]
    finally:
        emulator.control(set={"account.token_lifetime_s": 3600.0})
    assert box("GET", "/users/me", token=short).status == 401


def test_too_many_uploads_and_a_broken_service(box: BoxWire, emulator: EmulatorService) -> None:
    emulator.control(set={"throttle.rate_per_s": 1e-6, "throttle.burst": 1, "throttle.retry_after_s": 100})
    try:
        box.file("a")
        reply = box.upload({"name": "b", "parent": {"id": "0"}}, b"")
        assert box("GET", "/users/me").status == 200  # only uploads take from the bucket
    finally:
        emulator.control(set={"throttle.rate_per_s": 0, "throttle.burst": 0})
    assert (*said(reply), reply.headers["retry-after"]) == (429, "rate_limit_exceeded", "100")
    assert reply.value["message"] == "Request rate limit exceeded, please try again later"
    emulator.control(set={"faults.error_rate": 1.0})
    try:
        assert said(box("GET", "/users/me")) == (500, "internal_server_error")
    finally:
        emulator.control(set={"faults.error_rate": 0.0})


def test_an_upload_is_seen_when_it_is_ready(box: BoxWire, emulator: EmulatorService) -> None:
    emulator.control(set={"readiness.delay_s": 86_400.0})
    try:
        file = box.file("a")
        assert said(box("GET", f"/files/{file['id']}")) == (404, "not_found")
        assert box("GET", "/folders/0/items").value["total_count"] == 0
        assert box("GET", "/events?stream_position=0").value["entries"] == []
        assert said(box.upload({"name": "a", "parent": {"id": "0"}}, b"")) == (409, "item_name_in_use")
    finally:
        emulator.control(set={"readiness.delay_s": 0.0})


def test_answers_to_broken_json(box: BoxWire) -> None:
    for body in (b"{", b"[]", b"\xff", json.dumps("x").encode()):
        assert said(box("POST", "/folders", body)) == (400, "bad_request")
    assert said(box("POST", "/folders", {"name": "a"})) == (400, "bad_request")
