"""Tests of the OneDrive emulator over TLS. Every answer is checked against Graph's metadata."""

from __future__ import annotations

import base64
import json
import random
from urllib.parse import quote

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.emulators.onedrive.address import parse_address
from pytest_cloudbench.workload.payload.quickxor import QuickXor

from .graph_wire import GraphReply, GraphWire, problems

ROOT = "/v1.0/me/drive/root"
UNIT = 320 * 1024


def content(graph: GraphWire, path: str, **headers: str) -> GraphReply:
    """Download a file by the address in the redirect."""
    redirect = graph("GET", f"{ROOT}:/{path}:/content")
    assert (redirect.status, redirect.value) == (302, b"")
    return graph("GET", redirect.headers["location"], token=None, **headers)


def names(reply: GraphReply) -> list[str]:
    return [entry["name"] for entry in reply.value["value"]]


# --- the metadata, addresses, the hash ---


def test_metadata_check_finds_unknown_and_wrong_properties() -> None:
    assert problems("driveItem", {"id": "1", "size": 3, "file": {"mimeType": "text/plain"}}) == []
    assert problems("driveItem", {"id": "1", "size": "3"})
    assert problems("driveItem", {"id": "1", "sized": 3})
    assert problems("driveItem", {"size": 3})
    assert problems("error", {"error": {"code": "x"}})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1.0/me/drive", ("", None, "", "")),
        ("/v1.0/drives/b!x/root:/a%2Fb/c:/content", ("root", "a/b/c", "content", "")),
        ("/v1.0/me/drive/items/A!1:/n.txt:/createUploadSession", ("A!1", "n.txt", "createUploadSession", "")),
        ("/_api/v2.0/drives('b!q')/items('root')/children('T')", ("root", "/T", "", "")),
        ("/v1.0/me/drive/root/microsoft.graph.delta(token='x')", ("root", None, "delta", "x")),
        ("/v1.0/me/drive/items/i/versions/1.0/content", ("i", None, "versions/*/content", "1.0")),
        ("/v1.0/me/drive/root/search(q='it''s')", ("root", None, "search", "it's")),
        ("/v1.0/me/drive/root:/items('x').txt", ("root", "items('x').txt", "", "")),
    ],
)
def test_addresses(path: str, expected: tuple[str, str | None, str, str]) -> None:
    address = parse_address(path)
    assert address is not None
    assert address[3:] == expected


@pytest.mark.parametrize(
    ("path", "same"),
    [
        ("/v1.0//me/drive", "/v1.0/me/drive"),
        ("/v1.0/me//drive/root//children", "/v1.0/me/drive/root/children"),
        ("/v1.0/drives/b!x/items/root%3A%2Fa%2Fb.txt%3A/content", "/v1.0/drives/b!x/items/root:/a/b.txt:/content"),
        ("/v1.0/drives/b!x/items/A!1%3a%2fn%25.txt%3a", "/v1.0/drives/b!x/items/A!1:/n%25.txt:"),
        ("/v1.0/me/drive/special/approot%3A%2Fc d%3A/children", "/v1.0/me/drive/special/approot:/c%20d:/children"),
        ("/v1.0/me/drive/root%3A/e.txt", "/v1.0/me/drive/root:/e.txt"),
    ],
)
def test_addresses_as_clients_write_them(path: str, same: str) -> None:
    address, plain_address = parse_address(path), parse_address(same)
    assert address is not None
    assert plain_address is not None
    assert address[3:] == plain_address[3:]
    assert address.drive == plain_address.drive


@pytest.mark.parametrize(
    "path",
    ["/v1.0/me/drives/b!x/root", "/v1.0/groups/g/drive/root", "/v1.0/groups/g/drives/b!x", "/v1.0/sites/s/drive"],
)
def test_drives_have_owners(path: str) -> None:
    address = parse_address(path)
    assert address is not None
    assert address.drive_id == ("b!x" if "b!x" in path else "")


@pytest.mark.parametrize("path", ["/v1.0/me/driver", "/v2.0/me/drive", "/me/drive"])
def test_foreign_paths_are_no_addresses(path: str) -> None:
    assert parse_address(path) is None


@pytest.mark.parametrize("size", [0, 1, 159, 160, 161, 5000])
def test_quickxor_is_the_published_one(size: int) -> None:
    data = random.Random(size).randbytes(size)
    ring = 0
    for index, byte in enumerate(data):
        ring ^= byte << 11 * index % 160
    ring = (ring ^ ring >> 160) % 2**160 ^ size << 96
    in_pieces = QuickXor()
    for start_ in range(0, size, 77):
        in_pieces.update(data[start_ : start_ + 77])
    assert in_pieces.digest() == ring.to_bytes(20, "little")


def test_quickxor_of_a_known_text() -> None:
    hasher = QuickXor()
    hasher.update(b"hello world")
    assert base64.b64encode(hasher.digest()) == b"aCgDG9jwBhDc4Q1yawMZAAAAAAA="


# --- items ---


def test_the_life_of_a_file(graph: GraphWire) -> None:
    first = graph("PUT", f"{ROOT}:/new folder/ä #1.txt:/content", b"hello world", Content_Type="text/plain")
    assert first.status == 201
    item = first.value
    assert (item["name"], item["size"], item["file"]["mimeType"]) == ("ä #1.txt", 11, "text/plain")
    assert item["file"]["hashes"]["quickXorHash"] == "aCgDG9jwBhDc4Q1yawMZAAAAAAA="
    assert item["parentReference"]["path"].endswith("/root:/new%20folder")
    again = graph("PUT", f"/v1.0/me/drive/items/{item['id']}/content", b"0123456789")
    assert (again.status, again.value["id"]) == (200, item["id"])
    assert again.value["eTag"] != item["eTag"]
    assert content(graph, "new folder/ä #1.txt").value == b"0123456789"
    part = content(graph, "New Folder/ä #1.TXT", Range="bytes=7-")
    assert (part.status, part.value, part.headers["content-range"]) == (206, b"789", "bytes 7-9/10")
    assert content(graph, "new folder/ä #1.txt", Range="bytes=10-").status == 416
    direct = graph("GET", again.value["@microsoft.graph.downloadUrl"], token=None)
    assert direct.value == b"0123456789"
    assert "filename*=UTF-8''%C3%A4%20%231.txt" in direct.headers["content-disposition"]
    assert graph("DELETE", f"{ROOT}:/new folder/ä #1.txt").status == 204
    assert graph.item("new folder/ä #1.txt").code == "itemNotFound"
    assert graph("GET", again.value["@microsoft.graph.downloadUrl"], token=None).status == 401


def test_conflict_behaviour_fails_or_renames(graph: GraphWire) -> None:
    graph.put("a.txt")
    reply = graph("PUT", f"{ROOT}:/a.txt:/content?@microsoft.graph.conflictBehavior=fail", b"2")
    assert (reply.status, reply.code) == (409, "nameAlreadyExists")
    reply = graph("PUT", f"{ROOT}:/a.txt:/content?@microsoft.graph.conflictBehavior=rename", b"2")
    assert (reply.status, reply.value["name"]) == (201, "a 1.txt")
    folder = {"name": "A.TXT", "folder": {}}
    assert graph("POST", f"{ROOT}/children", folder).status == 409
    renamed = graph("POST", f"{ROOT}/children", {**folder, "@microsoft.graph.conflictBehavior": "rename"})
    assert renamed.value["name"] == "A 2.TXT"
    assert graph("PUT", f"{ROOT}:/A 2.txt:/content", b"2").code == "nameAlreadyExists"
    assert graph("PUT", f"{ROOT}:/a.txt/below:/content", b"2").code == "nameAlreadyExists"


@pytest.mark.parametrize(
    "name",
    ["a:b", "a*b", 'a"b', "x" * 256, " a", "", "CON", "nul", "Com7", "LPT0", "~$x", ".lock", "Desktop.ini", "a_VTI_b"],
)
def test_names_that_no_item_can_have(graph: GraphWire, name: str) -> None:
    reply = graph("POST", f"{ROOT}/children", {"name": name, "folder": {}})
    assert (reply.status, reply.code) == (400, "invalidRequest")


@pytest.mark.parametrize("name", ["CON.txt", "console", "a~$x", "COM10", "lock", "vti"])
def test_names_that_look_like_reserved_ones(graph: GraphWire, name: str) -> None:
    assert graph("PUT", f"{ROOT}:/{name}:/content", b"x").status == 201


@pytest.mark.parametrize("way", ["PUT", "PATCH", "copy", "session", "above"])
def test_reserved_names_are_refused_however_they_are_given(graph: GraphWire, way: str) -> None:
    item = f"/v1.0/me/drive/items/{graph.put('a.txt')['id']}"
    reply = {
        "PUT": lambda: graph("PUT", f"{ROOT}:/AUX:/content", b"x"),
        "PATCH": lambda: graph("PATCH", item, {"name": "prn"}),
        "copy": lambda: graph("POST", f"{item}/copy", {"name": "~$a.docx"}),
        "session": lambda: graph("POST", f"{ROOT}:/COM1:/createUploadSession"),
        "above": lambda: graph("PUT", f"{ROOT}:/LPT9/a.txt:/content", b"x"),
    }[way]()
    assert (reply.status, reply.code) == (400, "invalidRequest")


def test_pages_of_children(graph: GraphWire) -> None:
    folder = graph.folder("many")["id"]
    for number in range(7):
        graph("PUT", f"/v1.0/me/drive/items/{folder}:/{number}.txt:/content", b"x" * number)
    all_names, url = [], f"/v1.0/me/drive/items/{folder}/children?$top=3&$select=name,size"
    while url:
        page = graph("GET", url)
        assert len(page.value["value"]) <= 3
        assert set(page.value["value"][0]) == {"@odata.etag", "name", "size"}
        all_names += names(page)
        url = page.value.get("@odata.nextLink", "")
    assert all_names == [f"{number}.txt" for number in range(7)]
    largest = graph("GET", f"{ROOT}:/many:/children?$orderby=size desc&$top=2")
    assert names(largest) == ["6.txt", "5.txt"]
    assert names(graph("GET", largest.value["@odata.nextLink"])) == ["4.txt", "3.txt"]
    assert graph("GET", f"{ROOT}/children?$top=0").status == 400
    assert graph("GET", f"{ROOT}/children?$orderby=colour").status == 400
    assert graph("GET", f"{ROOT}/children?$skiptoken=!").status == 400


def test_moving_and_renaming(graph: GraphWire) -> None:
    item = graph.put("from/a.txt")
    folder = graph.folder("to")
    changes = {"name": "b.txt", "parentReference": {"id": folder["id"]}}
    moved = graph("PATCH", f"{ROOT}:/from/a.txt", changes)
    assert (moved.status, moved.value["id"], moved.value["name"]) == (200, item["id"], "b.txt")
    times = {"createdDateTime": "2020-01-02T03:04:05Z", "lastModifiedDateTime": "2021-01-02T03:04:05.6Z"}
    reply = graph("PATCH", f"/v1.0/me/drive/items/{item['id']}", {"fileSystemInfo": times})
    assert reply.value["fileSystemInfo"]["lastModifiedDateTime"] == "2021-01-02T03:04:05Z"
    assert reply.value["createdDateTime"] == item["createdDateTime"], "of its arrival, unlike in business accounts"
    graph.put("to/c.txt")
    assert graph("PATCH", f"{ROOT}:/to/c.txt", {"name": "B.txt"}).code == "nameAlreadyExists"
    assert graph("PATCH", f"{ROOT}:/to/b.txt", {"name": "B.txt"}).value["name"] == "B.txt"
    inside = {"parentReference": {"id": folder["id"]}}
    assert graph("PATCH", f"{ROOT}:/to", inside).code == "invalidRequest"
    by_path = {"parentReference": {"path": "/drive/root:/from"}}
    assert graph("PATCH", f"{ROOT}:/to/b.txt", by_path).status == 200
    assert graph.item("from").value["size"] == 5
    assert graph.item("to").value["size"] == 5
    assert graph("PATCH", ROOT, {"name": "x"}).status == 400


def test_tags_protect_from_lost_updates(graph: GraphWire) -> None:
    item = graph.put("a.txt")
    address = f"/v1.0/me/drive/items/{item['id']}"
    assert graph("GET", address, If_None_Match=item["eTag"]).status == 304
    graph.put("a.txt", b"other")
    for method, path, body in (("PATCH", address, {"name": "b"}), ("DELETE", address, None),
                               ("PUT", f"{address}/content", b"mine")):  # fmt: skip
        reply = graph(method, path, body, If_Match=item["eTag"])
        assert (reply.status, reply.code) == (412, "resourceModified")
    newest = graph("GET", address).value["eTag"]
    assert graph("DELETE", address, If_Match=newest).status == 204


def test_copies_and_their_monitor(graph: GraphWire, onedrive: EmulatorService) -> None:
    graph.put("from/sub/a.txt")
    copy = graph("POST", f"{ROOT}:/from:/copy", {"name": "to"}, Prefer="respond-async")
    assert (copy.status, copy.value) == (202, b"")
    progress = graph("GET", copy.headers["location"], token=None)
    assert (progress.status, progress.value["status"], progress.value["percentageComplete"]) == (
        200,
        "completed",
        100.0,
    )
    assert graph("GET", f"/v1.0/me/drive/items/{progress.value['resourceId']}").value["name"] == "to"
    assert content(graph, "to/sub/a.txt").value == b"hello"
    again = graph("POST", f"{ROOT}:/from:/copy", {"name": "to"})
    failed = graph("GET", again.headers["location"], token=None).value
    assert (failed["status"], failed["error"]["code"]) == ("failed", "nameAlreadyExists")
    renamed_copy = graph("POST", f"{ROOT}:/from:/copy?@microsoft.graph.conflictBehavior=rename", {"name": "to"})
    assert graph("GET", renamed_copy.headers["location"], token=None).value["status"] == "completed"
    assert graph.item("to 1/sub/a.txt").status == 200
    onedrive.control(set={"jobs.start_s": 3600})
    later = graph("POST", f"{ROOT}:/from:/copy", {"name": "later"})
    pending = graph("GET", later.headers["location"], token=None)
    assert (pending.status, pending.value["status"]) == (202, "inProgress")
    assert graph.item("later").status == 404
    assert graph("POST", f"{ROOT}:/no:/copy", {"name": "x"}).status == 404
    assert graph("GET", "/monitor/none", token=None).status == 404


def test_the_recycle_bin(graph: GraphWire) -> None:
    item = graph.put("folder/a.txt", b"12345")
    folder = graph.item("folder").value
    graph("DELETE", f"{ROOT}:/folder")
    quota = graph("GET", "/v1.0/me/drive").value["quota"]
    assert (quota["used"], quota["deleted"], quota["state"]) == (0, 5, "normal")
    assert graph("GET", f"/v1.0/me/drive/items/{item['id']}").status == 404
    back = graph("POST", f"/v1.0/me/drive/items/{folder['id']}/restore")
    assert (back.status, back.value["name"]) == (200, "folder")
    assert content(graph, "folder/a.txt").value == b"12345"
    assert graph("POST", f"/v1.0/me/drive/items/{folder['id']}/permanentDelete").status == 204
    assert graph("POST", f"/v1.0/me/drive/items/{folder['id']}/restore").status == 404
    assert graph("GET", "/v1.0/me/drive").value["quota"]["deleted"] == 0
    assert graph("DELETE", ROOT).status == 403


def test_only_a_personal_drive_restores_by_its_api(graph: GraphWire, onedrive: EmulatorService) -> None:
    item = graph.put("a.txt", b"1")
    graph("DELETE", f"{ROOT}:/a.txt")
    restore = f"/v1.0/me/drive/items/{item['id']}/restore"
    onedrive.control(set={"account.type": "business"})
    refusal = graph("POST", restore)
    onedrive.control(set={"account.type": "personal"})
    assert (refusal.status, refusal.value["error"]["code"]) == (400, "notSupported")
    assert graph("POST", restore).status == 200


def test_versions(graph: GraphWire) -> None:
    graph.put("a.txt", b"one")
    item = graph.put("a.txt", b"three")
    address = f"/v1.0/me/drive/items/{item['id']}/versions"
    assert [(entry["id"], entry["size"]) for entry in graph("GET", address).value["value"]] == [("2.0", 5), ("1.0", 3)]
    redirect = graph("GET", f"{address}/1.0/content")
    assert graph("GET", redirect.headers["location"], token=None).value == b"one"
    assert graph("POST", f"{address}/1.0/restoreVersion").status == 204
    assert content(graph, "a.txt").value == b"one"
    assert graph("GET", f"{address}/9.0").status == 404


# --- upload sessions ---


def open_session(graph: GraphWire, path: str, **item: object) -> str:
    reply = graph("POST", f"{ROOT}:/{path}:/createUploadSession", {"item": item} if item else None)
    assert reply.status == 200, reply.value
    return str(reply.value["uploadUrl"])


def send(graph: GraphWire, url: str, data: bytes, first: int, total: int) -> GraphReply:
    return graph("PUT", url, data, token=None, Content_Range=f"bytes {first}-{first + len(data) - 1}/{total}")


def test_an_upload_goes_on_after_a_cut(graph: GraphWire, onedrive: EmulatorService) -> None:
    data = random.Random(1).randbytes(2 * UNIT + 10)
    times = {"lastModifiedDateTime": "2020-01-01T00:00:00Z"}
    url = open_session(graph, "big.bin", fileSystemInfo=times, **{"@microsoft.graph.conflictBehavior": "replace"})
    first = send(graph, url, data[:UNIT], 0, len(data))
    assert (first.status, first.value["nextExpectedRanges"]) == (202, [f"{UNIT}-"])
    graph.connection.close()
    other = GraphWire(onedrive.endpoint)
    progress = other("GET", url, token=None)
    assert (progress.status, progress.value["nextExpectedRanges"]) == (200, [f"{UNIT}-"])
    assert send(other, url, data[UNIT : 2 * UNIT], UNIT, len(data)).status == 202
    reply = send(other, url, data[2 * UNIT :], 2 * UNIT, len(data))
    assert (reply.status, reply.value["size"]) == (201, len(data))
    assert reply.value["fileSystemInfo"]["lastModifiedDateTime"] == times["lastModifiedDateTime"]
    assert content(other, "big.bin").value == data
    assert other("GET", url, token=None).code == "itemNotFound"
    other.connection.close()


def test_fragments_that_do_not_fit(graph: GraphWire) -> None:
    url, data = open_session(graph, "a.bin"), b"x" * UNIT
    total = 3 * UNIT
    for first, words in ((UNIT, "Uploaded fragment is out of order."),):
        reply = send(graph, url, data, first, total)
        assert (reply.status, reply.code, reply.value["error"]["message"]) == (416, "invalidRange", words)
    assert send(graph, url, data, 0, total).status == 202
    reply = send(graph, url, data, 0, total)
    assert (reply.status, reply.value["error"]["innerError"]["code"]) == (416, "fragmentOverlap")
    assert send(graph, url, data, UNIT, total + 1).status == 400
    assert send(graph, url, data[:-1], UNIT, total).status == 400
    wrong = graph("PUT", url, data, token=None, Content_Range=f"bytes {UNIT}-{UNIT + 5}/{total}")
    assert wrong.value["error"]["innerError"]["code"] == "fragmentLengthMismatch"
    assert graph("PUT", url, data, token=None).status == 400
    assert graph("POST", url, token=None).value["error"]["innerError"]["code"] == "uploadSessionIncomplete"
    assert graph("GET", url, token=None).value["nextExpectedRanges"] == [f"{UNIT}-"]
    assert graph("DELETE", url, token=None).status == 204
    assert send(graph, url, data, UNIT, total).status == 404
    assert graph("GET", url[:-1] + "x", token=None).status == 401


def test_upload_sessions_onto_existing_files_follow_conflict_behaviour(graph: GraphWire) -> None:
    item = graph.put("a.txt")
    fails = {"item": {"@microsoft.graph.conflictBehavior": "fail"}}
    reply = graph("POST", f"{ROOT}:/a.txt:/createUploadSession", fails)
    assert (reply.status, reply.code) == (409, "nameAlreadyExists")
    overwritten = send(graph, open_session(graph, "a.txt"), b"as rclone does", 0, 14)
    assert (overwritten.status, overwritten.value["id"]) == (200, item["id"])
    renamed = send(graph, open_session(graph, "a.txt", **{"@microsoft.graph.conflictBehavior": "rename"}), b"new", 0, 3)
    assert (renamed.status, renamed.value["name"]) == (201, "a 1.txt")
    update = graph("POST", f"/v1.0/me/drive/items/{item['id']}/createUploadSession").value["uploadUrl"]
    replaced = send(graph, update, b"newer", 0, 5)
    assert (replaced.status, replaced.value["id"]) == (200, item["id"])
    deferred = graph("POST", f"{ROOT}:/d.txt:/createUploadSession", {"deferCommit": True}).value["uploadUrl"]
    assert send(graph, deferred, b"abc", 0, 3).status == 202
    assert graph.item("d.txt").status == 404
    assert graph("POST", deferred, token=None).status == 201
    url = open_session(graph, "late.txt", **{"@microsoft.graph.conflictBehavior": "fail"})
    graph.put("late.txt")
    assert send(graph, url, b"abc", 0, 3).code == "nameAlreadyExists"


def test_upload_session_that_replaces_a_file_needs_space_for_the_difference(
    graph: GraphWire, onedrive: EmulatorService
) -> None:
    graph.put("a.txt", bytes(80))
    onedrive.control(set={"quota.bytes": 100})

    def answer(path: str, size_bytes: int, behavior: str) -> int:
        item = {"fileSize": size_bytes, "@microsoft.graph.conflictBehavior": behavior}
        return graph("POST", f"{ROOT}:/{path}:/createUploadSession", {"item": item}).status

    assert answer("a.txt", 100, "replace") == 200
    assert answer("a.txt", 101, "replace") == 507
    assert answer("a.txt", 21, "rename") == answer("b.txt", 21, "replace") == 507
    assert answer("a.txt", 20, "rename") == answer("b.txt", 20, "replace") == 200


# --- links ---


def test_links_and_permissions(graph: GraphWire) -> None:
    item = graph.put("a.txt")
    address = f"/v1.0/me/drive/items/{item['id']}"
    link = graph("POST", f"{address}/createLink", {"type": "view", "scope": "anonymous"})
    again = graph("POST", f"{address}/createLink", {"type": "view", "scope": "anonymous"})
    assert (link.status, again.status, again.value["id"]) == (201, 200, link.value["id"])
    url = link.value["link"]["webUrl"]
    share = "u!" + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
    assert graph("GET", f"/v1.0/shares/{share}/driveItem").value["id"] == item["id"]
    permissions = graph("GET", f"{address}/permissions").value["value"]
    assert [entry["roles"] for entry in permissions] == [["owner"], ["read"]]
    permission = f"{address}/permissions/{link.value['id']}"
    assert graph("PATCH", permission, {"roles": ["write"]}).value["roles"] == ["write"]
    assert graph("DELETE", permission).status == 204
    assert graph("GET", permission).status == 404
    refusal = graph("GET", f"/v1.0/shares/{share}/driveItem")
    assert (refusal.status, refusal.code) == (403, "accessDenied")
    assert graph("DELETE", f"{address}/permissions/{permissions[0]['id']}").status == 403
    invited = graph("POST", f"{address}/invite", {"recipients": [{"email": "a@example.com"}], "roles": ["write"]})
    assert invited.value["value"][0]["roles"] == ["write"]
    assert graph("POST", f"{address}/invite", {"recipients": []}).status == 400
    assert graph("POST", f"{address}/createLink", {"type": "eat"}).status == 400


# --- tokens, refused requests and faults ---


def test_missing_wrong_and_expired_tokens_are_refused(graph: GraphWire, onedrive: EmulatorService) -> None:
    for token, words in ((None, "Access token is empty."), ("wrong", "JWT is not well formed")):
        reply = graph("GET", ROOT, token=token)
        assert (reply.status, reply.code) == (401, "InvalidAuthenticationToken")
        assert words in reply.value["error"]["message"]
        assert reply.headers["www-authenticate"].startswith("Bearer")
    onedrive.control(set={"account.token_lifetime_s": 0})
    form = b"grant_type=refresh_token&refresh_token=r&client_id=c"
    path = "/common/oauth2/v2.0/token"
    answer = graph("POST", path, form, Content_Type="application/x-www-form-urlencoded").value
    reply = graph("GET", ROOT, token=answer["access_token"])
    assert reply.value["error"]["message"] == "Lifetime validation failed, the token is expired."


def test_tokens_and_device_codes(graph: GraphWire) -> None:
    def ask(path: str, form: str) -> GraphReply:
        headers = {"Content_Type": "application/x-www-form-urlencoded"}
        return graph("POST", f"/common/oauth2/v2.0/{path}", form.encode(), token=None, **headers)

    reply = ask("token", "grant_type=refresh_token&refresh_token=r&client_id=c")
    assert (reply.value["token_type"], reply.value["expires_in"]) == ("Bearer", 14_400)
    assert reply.value["refresh_token"]
    assert graph("GET", ROOT, token=reply.value["access_token"]).status == 200
    refusal = ask("token", "grant_type=refresh_token&refresh_token=invalid&client_id=c")
    assert (refusal.status, refusal.value["error"]) == (400, "invalid_grant")
    assert refusal.value["error_description"].startswith("AADSTS")
    device = ask("devicecode", "client_id=c&scope=Files.ReadWrite+offline_access").value
    grant = f"grant_type=urn:ietf:params:oauth:grant-type:device_code&client_id=c&device_code={device['device_code']}"
    assert ask("token", grant).value["error"] == "authorization_pending"
    assert graph("GET", "/devicelogin?otc=WRONG", token=None).status == 400
    assert graph("GET", f"/devicelogin?otc={device['user_code']}", token=None).status == 200
    tokens = ask("token", grant)
    assert graph("GET", ROOT, token=tokens.value["access_token"]).status == 200
    assert tokens.value["refresh_token"]
    assert ask("token", grant).value["error"] == "bad_verification_code"


@pytest.mark.parametrize(
    ("method", "path", "what"),
    [
        ("GET", "/v1.0/me/drive/items/x/thumbnails", "thumbnails"),
        ("GET", "/v1.0/me/drive/items/x/thumbnails/0/large/content", "thumbnails"),
        ("POST", "/v1.0/me/drive/root:/a.txt:/microsoft.graph.preview", "previews"),
        ("POST", "/v1.0//$batch", "$batch"),
        ("GET", "/v1.0/subscriptions", "subscriptions"),
        ("POST", "/v1.0/me/drive/items/x/checkout", "checking in and out"),
        ("POST", "/v1.0/me/drive/items/x/assignSensitivityLabel", "labels"),
        ("GET", "/v1.0/drives/b!x/items/y/getActivitiesByInterval(startDateTime='2026')", "analytics"),
        ("GET", f"{ROOT}/children?$expand=thumbnails", "expanding anything but children"),
        ("GET", f"{ROOT}/children?$expand=children", "expanding the children of more than one item"),
        ("GET", f"{ROOT}/delta?expand=children", "expanding the children of more than one item"),
        ("GET", "/v1.0/me/drive?$expand=children", "expanding the children of more than one item"),
        ("GET", f"{ROOT}/children?$filter=name eq 'a'", "$filter and $apply"),
    ],
)
def test_unsupported_functions_are_refused_in_one_line(graph: GraphWire, method: str, path: str, what: str) -> None:
    reply = graph(method, path)
    assert (reply.status, reply.code) == (400, "notSupported")
    assert reply.value["error"]["message"] == f"This emulator does not offer {what}."


def test_children_of_one_item_can_be_expanded(graph: GraphWire) -> None:
    graph.put("folder/a.txt")
    address = f"{ROOT}:/folder:"
    share = graph("POST", f"{address}/createLink", {"type": "view"}).value["shareId"]
    for path in (f"{address}?$expand=children", f"/v1.0/shares/{share}/driveItem?$expand=children"):
        assert [child["name"] for child in graph("GET", path).value["children"]] == ["a.txt"]
    refusal = graph("GET", f"/v1.0/shares/{share}/driveItem?$expand=thumbnails")
    assert (refusal.status, refusal.code) == (400, "notSupported")


def test_pages_cannot_be_skipped(graph: GraphWire) -> None:
    reply = graph("GET", f"{ROOT}/children?$skip=1")
    assert (reply.status, reply.code) == (400, "invalidRequest")


def test_unknown_paths_and_malformed_bodies_are_refused(graph: GraphWire) -> None:
    for path, expected in (
        ("/v1.0/me/drive/root/eat", (400, "BadRequest")),
        ("/v1.0/nothing", (400, "BadRequest")),
        ("/v1.0/me/drive/root:/thumbnails/list:/eat", (400, "BadRequest")),
        ("/elsewhere", (404, "ResourceNotFound")),
        ("/v1.0/drives/0123456789ABCDEF/root", (404, "itemNotFound")),
        ("/v1.0/drives/wrong/root", (400, "invalidRequest")),
        ("/v1.0/me/drive/items/none", (404, "itemNotFound")),
    ):
        reply = graph("GET", path)
        assert (reply.status, reply.code) == expected, path
    assert graph("PUT", f"{ROOT}/children", b"{}").status == 405
    for text in (b"[]", b"{", b'"a"'):
        reply = graph("POST", f"{ROOT}/children", text)
        assert (reply.status, reply.code) == (400, "invalidRequest")
    assert graph("POST", f"{ROOT}/children", {"name": "x"}).status == 400
    deep = "/".join(["x" * 100] * 5)
    assert graph("PUT", f"{ROOT}:/{deep}:/content", b"x").status == 400


def test_full_quota_and_too_many_requests_are_refused(graph: GraphWire, onedrive: EmulatorService) -> None:
    onedrive.control(set={"quota.bytes": 3})
    reply = graph("PUT", f"{ROOT}:/x:/content", b"1234")
    assert (reply.status, reply.code) == (507, "quotaLimitReached")
    onedrive.control(set={"quota.bytes": 0, "throttle.rate_per_s": 1e-6, "throttle.burst": 1,
                          "throttle.retry_after_s": 7})  # fmt: skip
    answers = [graph("PUT", f"{ROOT}:/x:/content", b"x") for _ in range(2)]
    assert [reply.status for reply in answers] == [201, 429]
    assert (answers[1].code, answers[1].headers["retry-after"]) == ("activityLimitReached", "7")
    onedrive.control(set={"faults.error_rate": 1.0})
    assert graph("GET", ROOT).code == "generalException"


def test_both_kinds_of_address(graph: GraphWire) -> None:
    graph.put("a.txt")
    for prefix in ("/v1.0/me/drive", "/_api/v2.0/me/drive", f"/v1.0/drives/{graph.drive_id}",
                   f"/_api/v2.0/drives('{graph.drive_id}')", "/v1.0/users/x/drive"):  # fmt: skip
        assert graph("GET", f"{prefix}/root:/a.txt").value["name"] == "a.txt", prefix


def test_a_written_file_is_seen_when_it_is_ready(graph: GraphWire, onedrive: EmulatorService) -> None:
    onedrive.control(set={"readiness.delay_s": 3600})
    graph("PUT", f"{ROOT}:/a.txt:/content", b"x")
    assert graph.item("a.txt").status == 404
    assert names(graph("GET", f"{ROOT}/children")) == []
    assert names(graph("GET", f"{ROOT}/delta")) == ["root"]


def test_business_accounts_answer_with_their_own_ids_and_types() -> None:
    with start_emulator("onedrive-ideal") as onedrive:
        onedrive.control(set={"account.type": "business"})
        onedrive.control(reset=True)
        graph = GraphWire(onedrive.endpoint)
        assert graph.drive_id.startswith("b!")
        item = graph.put("a.txt")
        assert item["id"].startswith("01")
        assert item["parentReference"]["driveType"] == "business"
        assert "sharepoint.com" in item["webUrl"]
        patch = {"fileSystemInfo": {"createdDateTime": "2020-01-02T03:04:05Z"}}
        reply = graph("PATCH", f"/v1.0/me/drive/items/{item['id']}", patch)
        assert reply.value["createdDateTime"] == "2020-01-02T03:04:05Z", "rclone's tests expect it of business accounts"
        listed = graph("GET", f"/v1.0/drives/{quote(graph.drive_id)}/root/children")
        assert names(listed) == ["a.txt"]
        changes = graph("GET", f"/v1.0/drives/{graph.drive_id}/root/delta")
        assert changes.value["@microsoft.graph.hasMoreData"] is False
        graph.connection.close()


def test_requests_are_named_in_refusals(graph: GraphWire) -> None:
    reply = graph("GET", "/v1.0/me/drive/items/none", client_request_id="mine")
    inner = json.loads(json.dumps(reply.value))["error"]["innerError"]
    assert inner["client-request-id"] == "mine"
    assert set(inner) == {"date", "request-id", "client-request-id"}
