"""Tests of the Box emulator over TLS. Each answer is checked against the published specification."""

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
    client = BoxWire(emulator.endpoint)
    yield client
    client.close()


def refusal(reply: BoxReply) -> tuple[int, str]:
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
    assert refusal(box("GET", f"/files/{entry['id']}")) == (404, "trashed")


def test_fields_parameter_limits_the_shown_fields(box: BoxWire) -> None:
    file = box.file("a.txt")
    assert box("GET", f"/files/{file['id']}?fields=name,size").value == {
        "type": "file", "id": file["id"], "etag": "0", "name": "a.txt", "size": 7,
    }  # fmt: skip
    names_text = "permissions,version_number,comment_count,extension,tags,lock,is_package,has_collaborations,nonsense"
    values = box("GET", f"/files/{file['id']}?fields={names_text}").value
    assert (values["extension"], values["version_number"], "nonsense" in values) == ("txt", "1", False)
    assert box("GET", "/folders/0?fields=permissions,allowed_invitee_roles,sync_state").status == 200


def test_new_version_keeps_former_versions_restorable(box: BoxWire) -> None:
    file = box.file("a", b"1")
    again = box.upload({"name": "b"}, b"22", file["id"])
    entry = again.value["entries"][0]
    assert (again.status, entry["id"], entry["name"], entry["size"]) == (200, file["id"], "b", 2)
    versions = box("GET", f"/files/{file['id']}/versions").value
    assert [version["id"] for version in versions["entries"]] == [file["file_version"]["id"]]
    old = versions["entries"][0]["id"]
    assert box.download(f"/files/{file['id']}/content?version={old}").value == b"1"
    assert box("POST", f"/files/{file['id']}/versions/current", {"type": "file_version", "id": old}).status == 201
    assert box.download(f"/files/{file['id']}/content").value == b"1"
    assert box("GET", f"/files/{file['id']}/versions/{old}").value["size"] == 1
    assert box("DELETE", f"/files/{file['id']}/versions/{old}").status == 204
    trashed = box("GET", f"/files/{file['id']}/versions/{old}").value
    assert (trashed["trashed_at"] is not None, trashed["trashed_by"]["type"]) == (True, "user")
    listed = {
        version["id"]: version["trashed_at"] for version in box("GET", f"/files/{file['id']}/versions").value["entries"]
    }
    assert listed[old] == trashed["trashed_at"]
    assert refusal(box("GET", f"/files/{file['id']}/content?version={old}")) == (404, "trashed")
    assert refusal(box("POST", f"/files/{file['id']}/versions/current", {"id": old})) == (404, "trashed")
    assert refusal(box("DELETE", f"/files/{file['id']}/versions/{old}")) == (404, "trashed")
    assert refusal(box("PUT", f"/files/{file['id']}/versions/{old}", {})) == (400, "bad_request")
    assert box("PUT", f"/files/{file['id']}/versions/{old}", {"trashed_at": None}).value["trashed_at"] is None
    assert box.download(f"/files/{file['id']}/content?version={old}").value == b"1"


def test_preconditions(box: BoxWire) -> None:
    file = box.file("a")
    path = f"/files/{file['id']}"
    assert box("GET", path, headers={"If-None-Match": "0"}).status == 304
    assert box("GET", f"{path}/content", headers={"If-None-Match": "0"}).status == 302, "only for what is known of it"
    assert box("PUT", path, {"description": "x"}, headers={"If-Match": "0"}).value["etag"] == "1"
    assert box("GET", path, headers={"If-None-Match": "0"}).status == 200
    assert refusal(box("PUT", path, {"name": "b"}, headers={"If-Match": "0"})) == (412, "precondition_failed")
    assert refusal(box("DELETE", path, headers={"If-Match": "0"})) == (412, "precondition_failed")
    assert refusal(box.upload({"name": "a"}, b"1", file["id"], If_Match="0")) == (412, "precondition_failed")
    assert box("DELETE", path, headers={"If-Match": "1"}).status == 204


def test_folders_are_made_moved_copied_and_removed(box: BoxWire) -> None:
    a, other = box.folder("a"), box.folder("other")
    box.file("x", b"12", a["id"])
    inner = box.folder("inner", a["id"])
    assert refusal(box("POST", "/folders", {"name": "A", "parent": {"id": "0"}})) == (409, "item_name_in_use")
    moved = box("PUT", f"/folders/{a['id']}", {"name": "b", "parent": {"id": other["id"]}}).value
    assert [ancestor["name"] for ancestor in moved["path_collection"]["entries"]] == ["All Files", "other"]
    assert (moved["size"], moved["item_collection"]["total_count"]) == (2, 2)
    twin = box("POST", f"/folders/{a['id']}/copy", {"parent": {"id": "0"}, "name": "twin"})
    assert (twin.status, names(box("GET", f"/folders/{twin.value['id']}/items"))) == (201, ["inner", "x"])
    inside = {"parent": {"id": inner["id"]}}
    assert refusal(box("PUT", f"/folders/{a['id']}", inside)) == (400, "cyclical_folder_structure")
    assert refusal(box("POST", f"/folders/{a['id']}/copy", inside)) == (400, "cyclical_folder_structure")
    assert refusal(box("DELETE", f"/folders/{a['id']}")) == (400, "folder_not_empty")
    assert box("DELETE", f"/folders/{a['id']}?recursive=true").status == 204
    assert refusal(box("GET", f"/folders/{inner['id']}")) == (404, "trashed")
    assert refusal(box("DELETE", "/folders/0?recursive=true")) == (403, "access_denied_insufficient_permissions")


def test_copy_and_move_onto_taken_name_are_refused(box: BoxWire) -> None:
    a, b, folder = box.file("a"), box.file("b"), box.folder("f")
    copy = box("POST", f"/files/{a['id']}/copy", {"parent": {"id": folder["id"]}})
    assert (copy.status, copy.value["sha1"], copy.value["etag"]) == (201, a["sha1"], "0")
    conflict = box("POST", f"/files/{a['id']}/copy", {"parent": {"id": "0"}, "name": "B"})
    assert (*refusal(conflict), conflict.value["context_info"]["conflicts"]["id"]) == (409, "item_name_in_use", b["id"])
    assert refusal(box("PUT", f"/files/{a['id']}", {"parent": {"id": folder["id"]}})) == (409, "item_name_in_use")
    assert refusal(box("PUT", f"/files/{a['id']}", {"name": "b"})) == (409, "item_name_in_use")
    assert box("PUT", f"/files/{a['id']}", {"name": "A"}).value["name"] == "A"
    assert refusal(box("PUT", f"/files/{a['id']}", {"parent": {"id": "4711"}})) == (404, "not_found")


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
        assert refusal(reply) == (400, code)


def test_name_may_begin_with_a_space(box: BoxWire) -> None:
    """rclone stores a name with a leading space unchanged on Box. It replaces only a space at the end."""
    folder = box.folder(" in")
    assert box.file(" a", parent=folder["id"])["name"] == " a"
    listed = box("GET", f"/folders/{folder['id']}/items").value["entries"]
    assert (folder["name"], [entry["name"] for entry in listed]) == (" in", [" a"])


def test_unknown_ids_and_malformed_ids_are_refused(box: BoxWire) -> None:
    reply = box("GET", "/folders/4711")
    assert refusal(reply) == (404, "not_found")
    assert reply.value["context_info"]["errors"][0]["message"].startswith("Invalid value 'd_4711'. 'folder'")
    assert refusal(box("GET", "/files/4711")) == (404, "not_found")
    assert refusal(box("GET", "/files/abc")) == (405, "method_not_allowed")
    assert refusal(box("PATCH", "/files/4711")) == (405, "method_not_allowed")
    assert refusal(box("GET", "/nonsense")) == (404, "not_found")
    assert refusal(box("GET", f"/folders/{box.file('a')['id']}")) == (404, "not_found")


# --- pages ---


def test_pages_by_offset_and_by_marker(box: BoxWire) -> None:
    for name in ("c", "a", "B"):
        box.file(name)
    box.folder("z")
    first = box("GET", "/folders/0/items?limit=3").value
    assert ([item["name"] for item in first["entries"]], first["total_count"]) == (["z", "a", "B"], 4)
    assert names(box("GET", "/folders/0/items?limit=3&offset=3")) == ["c"]
    assert names(box("GET", "/folders/0/items?sort=name&direction=DESC&fields=name")) == ["z", "c", "B", "a"]
    listed_names, query = [], "limit=3"
    while query:
        page = box("GET", f"/folders/0/items?usemarker=true&{query}").value
        listed_names += [item["name"] for item in page["entries"]]
        assert "total_count" not in page
        query = f"limit=3&marker={page['next_marker']}" if "next_marker" in page else ""
        box.file(f"new {len(listed_names)}")
    assert sorted(listed_names) == ["B", "a", "c", "new 3", "z"]
    assert refusal(box("GET", "/folders/0/items?limit=x")) == (400, "invalid_limit")
    assert refusal(box("GET", "/folders/0/items?offset=10001")) == (400, "invalid_offset")
    assert refusal(box("GET", "/folders/0/items?usemarker=true&marker=x")) == (400, "bad_request")
    assert refusal(box("GET", "/folders/0/items?sort=colour")) == (400, "bad_request")


# --- uploads ---


def test_the_check_before_an_upload(box: BoxWire) -> None:
    body = {"name": "a", "parent": {"id": "0"}, "size": 7}
    ready = box("OPTIONS", "/files/content/", body)
    assert ready.status == 200
    assert urlsplit(ready.value["upload_url"]).path == "/api/2.0/files/content"
    file = box.file("a")
    conflict = box("OPTIONS", "/files/content", body)
    assert (*refusal(conflict), conflict.value["context_info"]["conflicts"]["id"]) == (
        409,
        "item_name_in_use",
        file["id"],
    )
    assert box("OPTIONS", f"/files/{file['id']}/content", {"size": 9}).status == 200
    assert refusal(box("OPTIONS", "/files/content", {**body, "parent": {"id": "4711"}})) == (404, "not_found")


def test_bodies_of_uploads(box: BoxWire) -> None:
    body = {"name": "a", "parent": {"id": "0"}}
    tricky = b"\r\n--boundary-471\r\n--boundary" * 3 + b"\r\n"
    file = box.upload(body, tricky, content="contents").value["entries"][0]
    assert box.download(f"/files/{file['id']}/content").value == tricky
    large = bytes(range(256)) * 4096
    file = box.upload({**body, "name": "large"}, large).value["entries"][0]
    assert file["sha1"] == hashlib.sha1(large).hexdigest()
    assert refusal(box.upload("{", b"1")) == (400, "bad_request")
    assert refusal(box.upload({**body, "name": "b"}, b"1", Content_MD5="0" * 40)) == (400, "bad_digest")
    assert box.upload({**body, "name": "b"}, b"1", Content_MD5=hashlib.sha1(b"1").hexdigest()).status == 201
    kind = {"Content-Type": "multipart/form-data; boundary=B"}
    late = b'--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n1\r\n--B--\r\n'
    assert refusal(box("POST", "/files/content", late, headers=kind)) == (400, "metadata_after_file_contents")
    assert refusal(box("POST", "/files/content", b"--B\r\n", headers=kind)) == (400, "bad_request")
    assert refusal(box("POST", "/files/content", b"{}")) == (400, "bad_request")


@pytest.mark.parametrize("attributes", [None, b"{}", b'{"name": null}', b'{"name": null, "parent": null}'])
def test_a_new_version_needs_no_attributes(box: BoxWire, attributes: bytes | None) -> None:
    file = box.file("a.txt")
    kind = {"Content-Type": "multipart/form-data; boundary=B"}
    part = b'--B\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    content = part.replace(b'name="%b"', b'name="file"; filename="x"') % b"new"
    body = (b"" if attributes is None else part % (b"attributes", attributes)) + content
    reply = box("POST", f"/files/{file['id']}/content", body + b"--B--\r\n", headers=kind)
    assert (reply.status, reply.value["entries"][0]["name"], reply.value["entries"][0]["size"]) == (200, "a.txt", 3)
    late = box(
        "POST", f"/files/{file['id']}/content", content + part % (b"attributes", b"{}") + b"--B--\r\n", headers=kind
    )
    assert refusal(late) == (400, "metadata_after_file_contents")
    assert box("POST", "/files/content", body + b"--B--\r\n", headers=kind).status == 400


def test_a_file_is_locked_until_it_is_unlocked(box: BoxWire) -> None:
    path = f"/files/{box.file('a.txt')['id']}?fields=lock"
    until = "2099-01-02T03:04:05-07:00"
    lock_request = {"type": "lock", "expires_at": until, "is_download_prevented": True}
    lock = box("PUT", path, {"lock": lock_request}).value["lock"]
    assert (lock["type"], lock["expired_at"], lock["is_download_prevented"]) == ("lock", until, True)
    assert box("GET", path).value["lock"] == lock
    assert box("PUT", path, {"name": "b.txt"}).value["lock"] == lock
    for wrong in ("x", {"type": "key"}, {"type": "lock", "expires_at": "2001-01-01T00:00:00Z"}):
        assert refusal(box("PUT", path, {"lock": wrong})) == (400, "bad_request"), wrong
    assert box("PUT", path, {"lock": None}).value["lock"] is None
    assert "expired_at" not in box("PUT", path, {"lock": {"access": "lock"}}).value["lock"]


def test_space_and_the_largest_file(box: BoxWire, emulator: EmulatorService) -> None:
    body = {"name": "a", "parent": {"id": "0"}}
    emulator.control(set={"quota.bytes": 10, "account.type": "personal"})
    try:
        assert refusal(box("OPTIONS", "/files/content", {**body, "size": 11})) == (403, "storage_limit_exceeded")
        assert refusal(box("OPTIONS", "/files/content", {**body, "size": 300 * 2**20})) == (
            403,
            "file_size_limit_exceeded",
        )
        assert refusal(box.upload(body, b"x" * 11)) == (403, "storage_limit_exceeded")
        file = box.file("a", b"x" * 9)
        box("DELETE", f"/files/{file['id']}")
        user = box("GET", "/users/me").value
        assert (user["space_used"], user["space_amount"], user["max_upload_size"]) == (9, 10, 250 * 2**20)
        assert refusal(box.upload(body, b"xx")) == (403, "storage_limit_exceeded")  # items in the trash count
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
        content_range = f"bytes {begin}-{begin + len(part) - 1}/{len(self.data)}"
        return self.box(
            "PUT", self.home, part, headers={"Content-Range": content_range, "Digest": f"sha={digest}", **headers}
        )

    def commit(self, parts: list[Any], **headers: str) -> BoxReply:
        digest = base64.b64encode(hashlib.sha1(self.data).digest()).decode()
        return self.box("POST", f"{self.home}/commit", {"parts": parts}, headers={"Digest": f"sha={digest}", **headers})


def test_an_upload_in_parts_goes_on_after_a_cut(box: BoxWire) -> None:
    upload = Parts(box)
    assert (upload.session["part_size"], upload.session["total_parts"]) == (8 * 2**20, 3)
    parts = [upload.put(number).value["part"] for number in (2, 0)]
    assert refusal(upload.commit(parts)) == (400, "parts_mismatch")
    assert refusal(upload.put(0)) == (409, "range_overlaps_existing_range")
    listing = box("GET", f"{upload.home}/parts").value  # a client that lost its answers lists the parts
    assert sorted(part["part_id"] for part in listing["entries"]) == sorted(part["part_id"] for part in parts)
    assert box("GET", upload.home).value["num_parts_processed"] == 2
    parts.append(upload.put(1).value["part"])
    reply = upload.commit(parts)
    assert (reply.status, reply.value["entries"][0]["sha1"]) == (201, hashlib.sha1(upload.data).hexdigest())
    assert box("GET", upload.home).status == 404
    assert box("DELETE", upload.home).status == 204
    again = Parts(box, file_id=reply.value["entries"][0]["id"])
    reply = again.commit([again.put(number).value["part"] for number in range(3)], If_Match="0")
    assert reply.value["entries"][0]["etag"] == "1"


def test_upload_session_refuses_wrong_sizes_digests_and_targets(box: BoxWire, emulator: EmulatorService) -> None:
    path = "/files/upload_sessions"
    body = {"folder_id": "0", "file_name": "a", "file_size": 20 * MB}
    assert refusal(box("POST", path, {**body, "file_size": 20 * MB - 1})) == (400, "file_size_too_small")
    assert refusal(box("POST", path, {"folder_id": "0", "file_name": "a"})) == (400, "missing_file_size")
    assert refusal(box("POST", path, {"file_size": 1})) == (400, "missing_destination")
    assert refusal(box("POST", path, {**body, "folder_id": "4711"})) == (404, "not_found")
    box.file("a")
    assert refusal(box("POST", path, body)) == (409, "item_name_in_use")
    upload = Parts(box)
    assert refusal(upload.put(0, Digest="sha=AAAA")) == (412, "digest_mismatch")
    assert upload.put(0, **{"Content-Range": f"bytes 1-8388608/{20 * MB + 1}"}).status == 416
    parts = [upload.put(number).value["part"] for number in range(3)]
    reply = upload.commit(parts, Digest="sha=AAAA")
    assert refusal(reply) == (400, "digest_mismatch")
    assert reply.value["message"].startswith("File digest was incorrect. Actual: ")
    emulator.control(set={"jobs.start_s": 86_400.0})
    try:
        late_upload = Parts(box)
        late_upload.put(0)
        waits = late_upload.commit([])
        assert (waits.status, 86_000 < int(waits.headers["retry-after"]) <= 86_400) == (202, True)
    finally:
        emulator.control(set={"jobs.start_s": 0.0})
    assert box("DELETE", upload.home).status == 204
    assert refusal(upload.put(0)) == (404, "not_found")
    assert refusal(box("GET", "/files/upload_sessions/no-session")) == (400, "invalid_upload_session_id")


def test_upload_session_needs_space_only_for_what_is_more_than_before(box: BoxWire, emulator: EmulatorService) -> None:
    file_id = box.file("a", bytes(20 * MB))["id"]
    emulator.control(set={"quota.bytes": 30 * MB})
    try:
        path = f"/files/{file_id}/upload_sessions"
        assert box("POST", path, {"file_size": 30 * MB}).status == 201
        assert refusal(box("POST", path, {"file_size": 30 * MB + 1})) == (403, "storage_limit_exceeded")
        new_file = {"folder_id": "0", "file_name": "b", "file_size": 20 * MB}
        assert refusal(box("POST", "/files/upload_sessions", new_file)) == (403, "storage_limit_exceeded")
    finally:
        emulator.control(set={"quota.bytes": 0})


# --- trash ---


def test_a_download_address_ends_with_its_file(box: BoxWire) -> None:
    file_id = box.file("a", b"content")["id"]
    address = urlsplit(box("GET", f"/files/{file_id}/content").headers["location"]).path
    box("DELETE", f"/files/{file_id}")
    assert box("GET", address, token="").value == b"content", "it is in the trash"
    assert box("DELETE", f"/files/{file_id}/trash").status == 204
    reply = box("GET", address, token="")
    assert (reply.status, reply.value) == (404, b"")


def test_the_trash_keeps_and_gives_back(box: BoxWire) -> None:
    folder = box.folder("f")
    file = box.file("a", b"1", folder["id"])
    box("DELETE", f"/folders/{folder['id']}?recursive=true")
    assert names(box("GET", "/folders/trash/items")) == ["f"]
    assert refusal(box("GET", f"/files/{file['id']}/trash")) == (404, "trashed")
    trashed = box("GET", f"/folders/{folder['id']}/trash").value
    assert (trashed["item_status"], trashed["trashed_at"] is None) == ("trashed", False)
    other = box.folder("f")
    assert refusal(box("POST", f"/folders/{folder['id']}", {})) == (409, "item_name_in_use")
    reply = box("POST", f"/folders/{folder['id']}", {"name": "g", "parent": {"id": other["id"]}})
    assert (reply.status, reply.value["item_status"]) == (201, "active")
    assert box.download(f"/files/{file['id']}/content").value == b"1"
    assert refusal(box("DELETE", f"/files/{file['id']}/trash")) == (404, "not_trashed")
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
    assert refusal(box("GET", "/shared_items", headers=by_link)) == (403, "incorrect_shared_item_password")
    right = {"BoxApi": f"shared_link={link['url']}&shared_link_password=let me in"}
    assert box("GET", "/shared_items", headers=right).status == 200
    assert box("PUT", f"/files/{file['id']}", {"shared_link": None}).value["shared_link"] is None
    assert refusal(box("GET", "/shared_items", headers=right)) == (404, "not_found")
    assert box("GET", urlsplit(link["url"]).path, token="").status == 404


def test_events_list_changes_and_wake_a_long_poll(box: BoxWire, emulator: EmulatorService) -> None:
    now = box("GET", "/events?stream_position=now").value
    assert (now["chunk_size"], now["entries"]) == (0, [])
    file = box.file("a")
    box("PUT", f"/files/{file['id']}", {"name": "b"})
    box("DELETE", f"/files/{file['id']}")
    page = box("GET", f"/events?stream_position={now['next_stream_position']}").value
    assert [event["event_type"] for event in page["entries"]] == ["ITEM_UPLOAD", "ITEM_RENAME", "ITEM_TRASH"]
    assert box("GET", f"/events?stream_position={page['next_stream_position']}").value["entries"] == []
    server = box("OPTIONS", "/events").value["entries"][0]
    address = urlsplit(server["url"])
    waiting: list[BoxReply] = []
    other = BoxWire(emulator.endpoint)
    thread = threading.Thread(target=lambda: waiting.append(other("GET", f"{address.path}?{address.query}", token="")))
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
    assert refusal(box("GET", "/search")) == (400, "bad_request")
    comment_body = {"item": {"type": "file", "id": file["id"]}, "message": "first"}
    comment = box("POST", "/comments", comment_body)
    assert comment.status == 201
    path = f"/comments/{comment.value['id']}"
    assert box("PUT", path, {"message": "second"}).value["message"] == "second"
    assert box("GET", path).value["message"] == "second"
    assert box("GET", f"/files/{file['id']}/comments").value["total_count"] == 1
    assert box("DELETE", path).status == 204
    assert box("GET", path).status == 404
    invitation = {
        "item": {"type": "folder", "id": folder["id"]},
        "accessible_by": {"type": "user", "login": "x@example.com"},
    }
    reply = box("POST", "/collaborations", {**invitation, "role": "viewer"})
    assert (reply.status, reply.value["status"]) == (201, "pending")
    path = f"/collaborations/{reply.value['id']}"
    assert box("PUT", path, {"role": "editor"}).value["role"] == "editor"
    assert len(box("GET", f"/folders/{folder['id']}/collaborations").value["entries"]) == 1
    assert box("GET", "/collaborations?status=pending").value["total_count"] == 0
    assert box("DELETE", path).status == 204
    collaboration = box(
        "POST", "/collaborations", {**invitation, "accessible_by": {"type": "user", "id": "7"}, "role": "viewer"}
    ).value
    assert (collaboration["status"], collaboration["accessible_by"]["id"], collaboration["invite_email"]) == (
        "accepted",
        "7",
        None,
    )


# --- tokens, throttling and faults ---


def test_unauthorized_requests_are_refused_with_their_realm(box: BoxWire, emulator: EmulatorService) -> None:
    reply = box("GET", "/users/me", token="wrong")
    assert (reply.status, reply.value) == (401, b"")
    assert reply.headers["www-authenticate"] == (
        'Bearer realm="Service", error="invalid_token", error_description="The access token provided is invalid."'
    )
    assert box("GET", "/users/me", token="").headers["www-authenticate"] == 'Bearer realm="Service"'
    file = box.file("a", b"1")
    assert box("GET", f"/files/{file['id']}/content?access_token={box.token}", token="").status == 302
    changed_url = box("GET", f"/files/{file['id']}/content").headers["location"].replace(file["id"], "4711")
    assert box("GET", urlsplit(changed_url).path, token="").status == 404


def token_for(box: BoxWire, **form: str) -> BoxReply:
    client = {"client_id": "me", "client_secret": "secret"}
    return box("POST", "/oauth2/token", urlencode({**client, **form}).encode(), token="")


def test_tokens_end_and_are_renewed(box: BoxWire, emulator: EmulatorService) -> None:
    tokens = token_for(box, grant_type="refresh_token", refresh_token="r1").value
    assert box("GET", "/users/me", token=tokens["access_token"]).status == 200
    assert token_for(box, grant_type="refresh_token", refresh_token="r1").value == {
        "error": "invalid_grant", "error_description": "Invalid refresh token",
    }  # fmt: skip
    assert token_for(box, grant_type="refresh_token", refresh_token=tokens["refresh_token"]).status == 200
    machine = token_for(box, grant_type="client_credentials", box_subject_type="enterprise", box_subject_id="1").value
    assert "refresh_token" not in machine
    assert (
        token_for(box, grant_type="client_credentials", box_subject_id="1", client_secret="").value["error"]
        == "invalid_client"
    )
    assert token_for(box, grant_type="nonsense").value["error"] == "invalid_request"
    headers = box(
        "GET", "/api/oauth2/authorize?client_id=me&redirect_uri=http://localhost:1/&state=s", token=""
    ).headers
    code = headers["location"].partition("code=")[2].partition("&")[0]
    assert token_for(box, grant_type="authorization_code", code=code, redirect_uri="http://localhost:1/").status == 200
    revocation = urlencode({"client_id": "me", "client_secret": "secret", "token": machine["access_token"]}).encode()
    assert box("POST", "/oauth2/revoke", revocation, token="").status == 200
    assert box("GET", "/users/me", token=machine["access_token"]).status == 401
    emulator.control(set={"account.token_lifetime_s": 0.0})
    try:
        token = token_for(box, grant_type="refresh_token", refresh_token="r2").value["access_token"]
    finally:
        emulator.control(set={"account.token_lifetime_s": 3600.0})
    assert box("GET", "/users/me", token=token).status == 401


def test_too_many_uploads_and_a_broken_service(box: BoxWire, emulator: EmulatorService) -> None:
    emulator.control(set={"throttle.rate_per_s": 1e-6, "throttle.burst": 1, "throttle.retry_after_s": 100})
    try:
        box.file("a")
        reply = box.upload({"name": "b", "parent": {"id": "0"}}, b"")
        assert box("GET", "/users/me").status == 200  # only uploads take tokens from the bucket
    finally:
        emulator.control(set={"throttle.rate_per_s": 0, "throttle.burst": 0})
    assert (*refusal(reply), reply.headers["retry-after"]) == (429, "rate_limit_exceeded", "100")
    assert reply.value["message"] == "Request rate limit exceeded, please try again later"
    emulator.control(set={"faults.error_rate": 1.0})
    try:
        assert refusal(box("GET", "/users/me")) == (500, "internal_server_error")
    finally:
        emulator.control(set={"faults.error_rate": 0.0})


def test_an_upload_is_seen_when_it_is_ready(box: BoxWire, emulator: EmulatorService) -> None:
    emulator.control(set={"readiness.delay_s": 86_400.0})
    try:
        file = box.file("a")
        assert refusal(box("GET", f"/files/{file['id']}")) == (404, "not_found")
        assert box("GET", "/folders/0/items").value["total_count"] == 0
        assert box("GET", "/events?stream_position=0").value["entries"] == []
        assert refusal(box.upload({"name": "a", "parent": {"id": "0"}}, b"")) == (409, "item_name_in_use")
    finally:
        emulator.control(set={"readiness.delay_s": 0.0})


def test_answers_to_broken_json(box: BoxWire) -> None:
    for body in (b"{", b"[]", b"\xff", json.dumps("x").encode()):
        assert refusal(box("POST", "/folders", body)) == (400, "bad_request")
    assert refusal(box("POST", "/folders", {"name": "a"})) == (400, "bad_request")
