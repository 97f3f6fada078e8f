"""Tests of refusals by the emulators of Dropbox and Drive: secrets, scopes, tokens, links, functions."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from .drive_wire import FOLDER, DriveWire

_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_AUTH = "https://www.googleapis.com/auth/"


def dropbox_token(wire: Any, in_query: bool = False, /, **fields: str) -> Any:
    form = urlencode({"grant_type": "refresh_token", "client_id": "key", "refresh_token": "made-up", **fields})
    if in_query:
        return wire.request("POST", f"/oauth2/token?{form}", b"", {"Content-Type": "application/json"})
    return wire.request("POST", "/oauth2/token", form.encode(), _FORM)


def dropbox_code(wire: Any, **fields: str) -> str:
    query = urlencode({"client_id": "key", "redirect_uri": "http://localhost:1/", **fields})
    reply = wire.request("GET", f"/oauth2/authorize?{query}", b"", {})
    return str(parse_qs(urlsplit(reply.headers["location"]).query)["code"][0])


# ---------------------------------------------------------------- Dropbox


@pytest.mark.parametrize("in_query", [True, False])
def test_a_refresh_in_the_query_or_in_the_form(wire: Any, in_query: bool) -> None:
    reply = dropbox_token(wire, in_query, client_secret="right")
    assert reply.status == 200
    assert wire("check/user", {"query": "x"}, token=reply.value["access_token"]).status == 200
    reply = dropbox_token(wire, in_query, refresh_token="invalid")
    assert (reply.status, reply.value["error"]) == (400, "invalid_grant")


def test_another_secret_of_the_same_client_is_refused(wire: Any) -> None:
    assert dropbox_token(wire, client_secret="right").status == 200
    for secret in ("wrong", "right ", "Right"):
        reply = dropbox_token(wire, client_secret=secret)
        assert (reply.status, reply.value["error"].partition(":")[0]) == (400, "invalid_client")
    basic = base64.b64encode(b"key:wrong").decode()
    body = b"grant_type=refresh_token&refresh_token=made-up"
    assert wire.request("POST", "/oauth2/token", body, {**_FORM, "Authorization": f"Basic {basic}"}).status == 400
    assert dropbox_token(wire, client_secret="right").status == 200
    assert dropbox_token(wire, client_id="other", refresh_token="other", client_secret="wrong").status == 200


def test_refresh_token_works_only_for_its_client(wire: Any) -> None:
    form = {"grant_type": "authorization_code", "redirect_uri": "http://localhost:1/"}
    refresh_token = dropbox_token(wire, **form, code=dropbox_code(wire), client_secret="right").value["refresh_token"]
    assert dropbox_token(wire, refresh_token=refresh_token, client_secret="right").status == 200
    assert dropbox_token(wire, refresh_token=refresh_token).value["error"].startswith("invalid_client")
    assert dropbox_token(wire, refresh_token=refresh_token, client_id="other").value["error"] == "invalid_grant"


def test_application_credentials_are_checked(wire: Any) -> None:
    assert dropbox_token(wire, client_secret="right").status == 200
    for secret, status in (("right", 200), ("wrong", 400), ("", 400)):
        basic = base64.b64encode(f"key:{secret}".encode()).decode()
        headers = {"Authorization": f"Basic {basic}", "Content-Type": "application/json"}
        assert wire.request("POST", "/2/check/app", b'{"query": "x"}', headers, "check/app").status == status


@pytest.mark.parametrize(
    ("scope", "allowed", "refused"),
    [
        ("files.metadata.read", ("files/list_folder", {"path": ""}), ("files/create_folder_v2", {"path": "/a"})),
        ("account_info.read", ("users/get_current_account", None), ("files/list_folder", {"path": ""})),
        ("files.content.write", ("files/create_folder_v2", {"path": "/a"}), ("files/get_metadata", {"path": "/a"})),
        ("sharing.read", ("sharing/list_folders", {}), ("sharing/share_folder", {"path": "/a"})),
        ("files.content.write files.content.read", ("files/delete_batch", {"entries": []}), ("check/user", {})),
    ],
)
def test_reduced_scope_allows_fewer_functions(wire: Any, scope: str, allowed: Any, refused: Any) -> None:
    reply = dropbox_token(wire, scope=scope)
    assert (reply.status, reply.value["scope"]) == (200, scope)
    token = reply.value["access_token"]
    assert wire(*allowed, token=token).status == 200
    denied = wire(*refused, token=token)
    assert (denied.status, denied.value["error"][".tag"]) == (401, "missing_scope")
    assert denied.value["error"]["required_scope"] not in scope.split()


def test_scopes_are_never_more_than_were_granted(wire: Any) -> None:
    form = {"grant_type": "authorization_code", "redirect_uri": "http://localhost:1/"}
    code = dropbox_code(wire, scope="files.metadata.read account_info.read")
    tokens = dropbox_token(wire, **form, code=code).value
    assert tokens["scope"] == "files.metadata.read account_info.read"
    renewed_token = dropbox_token(wire, refresh_token=tokens["refresh_token"]).value["access_token"]
    assert wire("files/create_folder_v2", {"path": "/a"}, token=renewed_token).status == 401
    assert wire("files/list_folder", {"path": ""}, token=renewed_token).status == 200
    refusal = dropbox_token(wire, refresh_token=tokens["refresh_token"], scope="files.content.write")
    assert (refusal.status, refusal.value["error"]) == (400, "invalid_scope")
    assert dropbox_token(wire, scope="files.metadata.reads").value["error"] == "invalid_scope"


@pytest.mark.parametrize("token", ["asdf", "malformed", "z" * 62, "sl.x"])
def test_unknown_token_is_refused_with_401(wire: Any, token: str) -> None:
    reply = wire("files/list_folder", {"path": ""}, token=token)
    assert (reply.status, reply.value["error"][".tag"]) == (401, "invalid_access_token")


def test_a_namespace_that_is_not_the_accounts_is_refused(wire: Any) -> None:
    own = wire("users/get_current_account").value["root_info"]["root_namespace_id"]
    assert own.isdigit()
    for root, status in ((own, 200), ("1234567890", 422), (str(int(own) + 1), 422)):
        for tag in ("root", "namespace_id"):
            header = {"Dropbox-API-Path-Root": json.dumps({".tag": tag, tag: root})}
            assert wire.request(
                "POST", "/2/files/list_folder", b'{"path": ""}',
                {"Authorization": f"Bearer {wire.token}", "Content-Type": "application/json", **header},
            ).status == status  # fmt: skip


def test_accounts_of_other_seeds_have_other_namespaces() -> None:
    from pytest_cloudbench.emulators.dropbox.tree import Tree

    assert len({Tree(seed=seed).namespace for seed in range(50)}) == 50


def test_an_expired_link_is_listed_but_not_opened(wire: Any) -> None:
    wire("files/upload", {"path": "/a"}, b"x")
    settings = {"expires": "2019-03-12T10:34:42Z"}
    url = wire("sharing/create_shared_link_with_settings", {"path": "/a", "settings": settings}).value["url"]
    assert [link["url"] for link in wire("sharing/list_shared_links", {}).value["links"]] == [url]
    for name in ("sharing/get_shared_link_metadata", "sharing/get_shared_link_file"):
        denied = wire(name, {"url": url})
        assert (denied.status, denied.value["error"][".tag"]) == (409, "shared_link_access_denied")
    wire("sharing/modify_shared_link_settings", {"url": url, "settings": {}, "remove_expiration": True})
    assert wire("sharing/get_shared_link_file", {"url": url}).value == b"x"


@pytest.mark.parametrize("count", [20, 21, 200])
def test_many_folders_at_once_are_a_job(wire: Any, count: int) -> None:
    reply = wire("files/create_folder_batch", {"paths": [f"/{number}" for number in range(count)]})
    assert reply.value[".tag"] == ("complete" if count <= 20 else "async_job_id")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("files/get_thumbnail_v2", "thumbnails"),
        ("files/get_preview", "previews"),
        ("file_requests/list_v2", "file requests"),
        ("team/members/list_v2", "teams"),
        ("team_log/get_events", "teams"),
        ("paper/docs/list", "Paper"),
        ("file_properties/templates/list_for_user", "properties"),
        ("files/tags/add", "tags"),
        ("sharing/add_file_member", "members of shared files"),
        ("contacts/delete_manual_contacts", "contacts"),
    ],
)
def test_functions_that_are_not_offered_say_so(wire: Any, name: str, what: str) -> None:
    reply = wire.request("POST", f"/2/{name}", b"{}", {"Authorization": f"Bearer {wire.token}"})
    assert reply.status == 400
    assert reply.value == f'Error in call to API function "{name}": this emulator does not offer {what}'


def test_unknown_function_has_an_error_of_its_own(wire: Any) -> None:
    reply = wire.request("POST", "/2/files/nonsense", b"{}", {"Authorization": f"Bearer {wire.token}"})
    assert (reply.status, reply.value) == (400, 'Unknown API function: "files/nonsense"')


@pytest.mark.parametrize("header", ["Dropbox-API-Select-User", "Dropbox-API-Select-Admin"])
def test_requests_for_a_team_are_refused(wire: Any, header: str) -> None:
    reply = wire("files/list_folder", {"path": ""}, headers={header: "dbmid:x"})
    assert (reply.status, "does not offer teams" in reply.value) == (400, True)


# ---------------------------------------------------------------- Drive


def drive_token(wire: DriveWire, **fields: str) -> Any:
    form = {"grant_type": "refresh_token", "client_id": "app", "refresh_token": "made-up", **fields}
    return wire("POST", "/token", urlencode(form).encode(), headers=_FORM)


def assertion(**claims: object) -> str:
    parts = [
        {"alg": "RS256"},
        {"iss": "robot", "aud": "https://oauth2.googleapis.com/token", "iat": 1, "exp": 2, **claims},
    ]
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts), "signed"])


def test_google_refuses_another_client_secret(drive: DriveWire) -> None:
    assert drive_token(drive, client_secret="right").status == 200
    reply = drive_token(drive, client_secret="wrong")
    assert (reply.status, reply.value["error"]) == (401, "invalid_client")


@pytest.mark.parametrize(
    ("scope", "reads_content", "changes_metadata", "writes"),
    [
        ("drive", True, True, True),
        ("drive.file", True, True, True),
        ("drive.readonly", True, False, False),
        ("drive.metadata", False, True, False),
        ("drive.metadata.readonly", False, False, False),
    ],
)
@pytest.mark.parametrize("by_assertion", [False, True])
def test_drive_scopes_limit_reading_and_writing(
    drive: DriveWire, scope: str, reads_content: bool, changes_metadata: bool, writes: bool, by_assertion: bool
) -> None:
    file_id = drive.upload("a", b"x")
    grant = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": assertion(scope=_AUTH + scope)}
    token = drive_token(drive, **(grant if by_assertion else {"scope": _AUTH + scope})).value["access_token"]
    assert drive("GET", f"files/{file_id}", token=token).status == 200
    assert drive("GET", "files", token=token).status == 200
    as_get = {"X-HTTP-Method-Override": "GET", "Content-Type": "application/x-www-form-urlencoded"}
    assert drive("POST", "files", b"q=trashed%3Dfalse", headers=as_get, token=token).status == 200
    attempts = [
        drive("GET", f"files/{file_id}?alt=media", token=token),
        drive("PATCH", f"files/{file_id}", {"name": "b"}, token=token),
        drive("POST", "files", {"name": "c", "mimeType": FOLDER}, token=token),
        drive("POST", "/upload/drive/v3/files?uploadType=media", b"x", token=token),
        drive("POST", "/upload/drive/v3/files?uploadType=resumable", {}, token=token),
        drive("DELETE", f"files/{file_id}", token=token),
    ]
    assert [reply.status < 300 for reply in attempts] == [reads_content, changes_metadata, *[writes] * 4]
    for reply in attempts:
        assert reply.status < 300 or (reply.status, reply.reason) == (403, "insufficientPermissions")


def test_the_hidden_space_of_an_application(drive: DriveWire) -> None:
    drive.upload("ordinary")
    drive.upload("hidden", b"secret", "appDataFolder")
    assert drive.names() == ["ordinary"]
    assert drive.names(spaces="drive") == ["ordinary"]
    assert drive.names(spaces="appDataFolder") == ["hidden"]
    assert drive.names("name = 'hidden' and trashed = false", spaces="appDataFolder") == ["hidden"]
    assert drive.names("'appDataFolder' in parents", spaces="appDataFolder") == ["hidden"]
    assert sorted(drive.names(spaces="appDataFolder, drive")) == ["hidden", "ordinary"]
    query = {"spaces": "appDataFolder", "fields": "files(id,spaces,parents)"}
    (file,) = drive.ok("GET", "files", query=query)["files"]
    assert file["spaces"] == ["appDataFolder"]
    assert drive.ok("GET", f"files/{file['id']}?alt=media") == b"secret"
    assert drive.ok("GET", "files/appDataFolder?fields=name,id")["id"] == file["parents"][0]
    assert drive("GET", "files?spaces=elsewhere").status == 400
    moved = drive("PATCH", f"files/{file['id']}?addParents=root&removeParents=appDataFolder", {})
    assert (moved.status, moved.reason) == (403, "cannotAddParent")


def test_changes_of_the_hidden_space_are_its_own(drive: DriveWire) -> None:
    token = drive.ok("GET", "changes/startPageToken")["startPageToken"]
    ordinary, hidden = drive.upload("a"), drive.upload("b", parent="appDataFolder")
    for spaces, expected in (
        ("drive", [ordinary]),
        ("appDataFolder", [hidden]),
        ("drive,appDataFolder", [ordinary, hidden]),
    ):
        changes = drive.ok("GET", "changes", query={"pageToken": token, "spaces": spaces})["changes"]
        assert [change["fileId"] for change in changes] == expected


@pytest.mark.parametrize(
    ("scope", "spaces", "status"),
    [
        ("drive", "appDataFolder", 403),
        ("drive.appdata", "drive", 403),
        ("drive.file", "appDataFolder,drive", 403),
        ("drive.appdata", "appDataFolder", 200),
        ("drive drive.appdata", "drive,appDataFolder", 200),
    ],
)
def test_spaces_need_their_scopes(drive: DriveWire, scope: str, spaces: str, status: int) -> None:
    words = " ".join(_AUTH + word for word in scope.split())
    token = drive_token(drive, scope=words).value["access_token"]
    reply = drive("GET", "files", query={"spaces": spaces}, token=token)
    assert reply.status == status
    assert status == 200 or reply.reason == "insufficientScopes"


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ("sharedWithMe and name contains 'hello'", []),
        ("sharedWithMe", []),
        ("not sharedWithMe and name contains 'hello'", ["hello.txt"]),
        ("sharedWithMe = false", ["hello.txt"]),
        ("not trashed and (starred or name = 'hello.txt')", ["hello.txt"]),
        ("name contains 'hello' and starred", []),
    ],
)
def test_a_flag_may_stand_alone(drive: DriveWire, q: str, expected: list[str]) -> None:
    drive.upload("hello.txt")
    assert drive.names(q) == expected


@pytest.mark.parametrize(
    "q", ["sharedWithMe =", "sharedWithMe name = 'a'", "name", "trashed = maybe", "and sharedWithMe"]
)
def test_malformed_search_is_refused(drive: DriveWire, q: str) -> None:
    assert drive("GET", "files", query={"q": q}).status == 400


def test_header_without_308_changes_status_of_upload_pieces(drive: DriveWire) -> None:
    """Google's client for Go sends this header, because its HTTP library would take 308 for a redirect."""
    unit, data = 256 * 1024, bytes(range(256)) * 2048
    for header, status in ((None, 308), ("yes", 200), ("Yes", 200), ("no", 308)):
        session = drive("POST", "/upload/drive/v3/files?uploadType=resumable", {"name": "pieces"})
        location = urlsplit(session.headers["location"])
        path, more = f"{location.path}?{location.query}", {"X-GUploader-No-308": header} if header else {}
        progress = drive("PUT", path, b"", headers={"Content-Range": "bytes */*", **more})
        assert (progress.status, "range" in progress.headers) == (status, False)
        first_range = {"Content-Range": f"bytes 0-{unit - 1}/*", **more}
        first = drive("POST", path, data[:unit], headers=first_range)
        assert (first.status, first.headers["range"]) == (status, f"bytes=0-{unit - 1}")
        assert first.headers.get("x-http-status-code-override") == ("308" if status == 200 else None)
        last = drive(
            "POST", path, data[unit:], headers={"Content-Range": f"bytes {unit}-{len(data) - 1}/{len(data)}", **more}
        )
        assert (last.status, last.value["name"]) == (200, "pieces")
        assert "x-http-status-code-override" not in last.headers
        assert drive.ok("GET", f"files/{last.value['id']}?alt=media") == data


def test_more_than_the_range_names_is_refused(drive: DriveWire) -> None:
    session = drive("POST", "/upload/drive/v3/files?uploadType=resumable", {"name": "more"})
    location = urlsplit(session.headers["location"])
    reply = drive("PUT", f"{location.path}?{location.query}", b"x" * 11, headers={"Content-Range": "bytes 0-9/10"})
    assert reply.status == 400
    assert drive.names() == []


@pytest.mark.parametrize(
    ("verb", "path", "what"),
    [
        ("GET", "/drive/v2/files", "versions of the API before v3"),
        ("POST", "/batch/drive/v3", "batches"),
        ("POST", "files/x/watch", "push notifications"),
        ("POST", "changes/watch", "push notifications"),
        ("GET", "files/x/listLabels", "labels"),
        ("GET", "files/x/approvals", "approvals"),
        ("GET", "files/x/accessproposals", "access proposals"),
        ("GET", "apps", "other applications"),
    ],
)
def test_functions_of_drive_that_are_not_offered_say_so(drive: DriveWire, verb: str, path: str, what: str) -> None:
    reply = drive(verb, path)
    assert reply.status == 400
    assert reply.value["error"]["message"] == f"This emulator does not offer {what}."
