"""Tests of requests to Dropbox that are malformed, are unauthorised or use paths of every form."""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import quote

import pytest

from pytest_cloudbench.emulators import EmulatorService

_SENTENCE = 'Error in call to API function "{}": {}'


def _tags(value: Any) -> str:
    """Return the chain of tags of an error."""
    if not isinstance(value, dict) or ".tag" not in value:
        return ""
    inner = value.get(value[".tag"], value.get("reason"))
    inner_tags = _tags(inner)
    return f"{value['.tag']}/{inner_tags}" if inner_tags else str(value[".tag"])


@pytest.mark.parametrize(
    ("token", "status", "message"),
    [
        ("mal formed", 400, "The given OAuth 2 access token is malformed."),
        ("malformed", 401, "invalid_access_token"),
        ("sl." + "x" * 60, 401, "invalid_access_token"),
        ("x" * 64, 401, "invalid_access_token"),
        ("", 400, "Invalid authorization value"),
    ],
)
def test_tokens(wire: Any, token: str, status: int, message: str) -> None:
    for reply in (
        wire("users/get_current_account", token=token),
        wire("files/upload", {"path": "/a"}, b"x", token=token),
        wire("files/download", {"path": "/a"}, token=token),
    ):
        assert reply.status == status
        assert message in str(reply.value)


def test_no_authorization_at_all(wire: Any) -> None:
    reply = wire.request("POST", "/2/check/user", b"{}", {"Content-Type": "application/json"}, "check/user")
    assert (reply.status, "Must provide HTTP header" in reply.value) == (400, True)


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("files/get_metadata", b"{", "request body: could not decode input as JSON"),
        ("files/get_metadata", b"[" * 100_000, "request body: could not decode input as JSON"),
        ("files/get_metadata", b"\xff\xfe\x00", "request body: could not decode input as JSON"),
        ("files/get_metadata", b"[]", "request body: expected object, got list"),
        ("files/get_metadata", b"{}", "request body: missing required field 'path'"),
        ("files/get_metadata", b'{"path": 1}', "request body: path: expected string, got integer"),
        ("files/get_metadata", b'{"path": "/a", "more": 1}', "request body: unknown field 'more'"),
        ("files/get_metadata", b'{"path": "a"}', "request body: path: 'a' did not match pattern"),
        ("files/get_metadata", b'{"path": ""}', "request body: path: '' did not match pattern"),
        ("files/list_folder", b'{"path": "/"}', "Specify the root folder as an empty string rather than as"),
        ("files/list_folder", b'{"path": "", "limit": 0}', "limit: 0 is not within range 1 to 2000"),
        ("files/list_folder", b'{"path": "", "recursive": 1}', "recursive: expected bool, got integer"),
        ("files/list_folder/longpoll", b'{"cursor": "x", "timeout": 3}', "timeout: 3 is not within range 30 to 480"),
        ("files/create_folder_v2", b'{"path": "id:abc"}', "path: 'id:abc' did not match pattern"),
        ("files/delete_v2", b'{"path": "/a", "parent_rev": "xyz"}', "parent_rev: 'xyz' did not match pattern"),
        ("files/copy_batch_v2", b'{"entries": []}', "entries: list has 0 items"),
        ("files/copy_batch_v2", b'{"entries": [{"from_path": "/a"}]}', "entries: 0: missing required field 'to_path'"),
        ("check/user", b'{"query": null}', "query: expected string, got null"),
        ("users/get_space_usage", b'{"x": 1}', "expected null"),
    ],
)
def test_bad_arguments_of_rpcs(wire: Any, name: str, raw: bytes, message: str) -> None:
    reply = wire(name, raw=raw)
    assert reply.status == 400
    assert reply.value.startswith(_SENTENCE.format(name, ""))
    assert message in reply.value


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"{", 'HTTP header "Dropbox-API-Arg": could not decode input as JSON'),
        (b'{"path": "a.txt"}', "path: 'a.txt' did not match pattern"),
        (b'{"path": "/a", "mode": "replace"}', "mode: unknown tag 'replace'"),
        (b'{"path": "/a", "mode": {".tag": "update"}}', "mode: missing 'update' key"),
        (b'{"path": "/a", "mode": {"update": "x"}}', "mode: update: 'x' did not match pattern"),
        (b'{"path": "/a", "mode": 3}', "mode: expected string or object with '.tag', got integer"),
        (b'{"path": "/a", "client_modified": "today"}', "client_modified: time data 'today' does not match"),
        (b'{"path": "/a", "content_hash": "abc"}', "must be at least 64 characters, got 3"),
    ],
)
def test_bad_arguments_of_uploads(wire: Any, raw: bytes, message: str) -> None:
    reply = wire("files/upload", content=b"x", raw=raw)
    assert reply.status == 400
    assert message in reply.value


def test_wrong_content_type_method_and_function(wire: Any) -> None:
    reply = wire("files/upload", {"path": "/a"}, b"x", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert (reply.status, 'Bad HTTP "Content-Type" header' in reply.value) == (400, True)
    assert wire.request("GET", "/2/files/upload", b"", {}).status == 405
    assert wire.request("POST", "/2/files/nonsense", b"", {}).value == 'Unknown API function: "files/nonsense"'
    assert wire.request("GET", "/", b"", {}).status == 404
    assert wire.request("HEAD", "/", b"", {}).status == 404
    assert wire("check/user", {"query": "still there"}).value == {"result": "still there"}


@pytest.mark.parametrize("path", ["//x", "/../x", "/a/./b", "/x\\y", "/x/", "/", "/a//b", "/" + "n" * 256])
def test_malformed_paths(wire: Any, path: str) -> None:
    errors = {
        "files/get_metadata": "path/malformed_path",
        "files/create_folder": "path/malformed_path",
        "files/create_folder_v2": "path/malformed_path",
        "files/delete": "path_lookup/malformed_path",
        "files/delete_v2": "path_lookup/malformed_path",
        "files/list_revisions": "path/malformed_path",
        "files/download": "path/malformed_path",
        "sharing/create_shared_link_with_settings": "path/malformed_path",
    }
    for name, expected in errors.items():
        reply = wire(name, {"path": path})
        assert (reply.status, _tags(reply.value["error"])) == (409, expected), name
        assert reply.value["error_summary"] == f"{expected}/.."
    reply = wire("files/upload", {"path": path}, b"x")
    assert (reply.status, _tags(reply.value["error"])) == (409, "path/malformed_path")
    wire("files/upload", {"path": "/there.txt"}, b"x")
    for version in ("", "_v2"):
        reply = wire(f"files/copy{version}", {"from_path": path, "to_path": "/b"})
        assert _tags(reply.value["error"]) == "from_lookup/malformed_path"
        reply = wire(f"files/move{version}", {"from_path": "/there.txt", "to_path": path})
        assert _tags(reply.value["error"]) == "to/malformed_path"


def test_paths_by_id_revision_and_namespace(wire: Any, emulator: EmulatorService) -> None:
    file = wire("files/upload", {"path": "/Dir/a.txt"}, b"x").value
    folder = wire("files/get_metadata", {"path": "/dir"}).value["id"]
    root = wire("users/get_current_account").value["root_info"]["root_namespace_id"]
    for path in (file["id"], f"{folder}/A.TXT", f"rev:{file['rev']}", f"ns:{root}/dir/a.txt"):
        assert wire("files/get_metadata", {"path": path}).value["id"] == file["id"], path
    for path in ("id:nobody", "rev:0123456789", "ns:5/dir/a.txt"):
        assert _tags(wire("files/get_metadata", {"path": path}).value["error"]) == "path/not_found", path
    assert len(wire("files/list_folder", {"path": folder}).value["entries"]) == 1
    assert len(wire("files/list_folder", {"path": f"ns:{root}"}).value["entries"]) == 1
    assert wire("files/upload", {"path": file["id"], "mode": "overwrite"}, b"y").value["id"] == file["id"]
    assert (
        wire("files/move_v2", {"from_path": file["id"], "to_path": f"{folder}/b.txt"}).value["metadata"]["path_display"]
        == "/Dir/b.txt"
    )
    assert wire("files/delete_v2", {"path": file["id"]}).status == 200
    wire("files/create_folder_v2", {"path": "/kept"})
    assert _tags(wire("files/download", {"path": "/kept"}).value["error"]) == "path/not_file"


@pytest.mark.parametrize("name", ["desktop.ini", "Thumbs.db", ".DS_Store", ".dropbox"])
def test_disallowed_names(wire: Any, name: str) -> None:
    reply = wire("files/upload", {"path": f"/a/{name}"}, b"x")
    assert _tags(reply.value["error"]) == "path/disallowed_name"


def test_only_answers_of_open_types_have_a_top_level_tag(wire: Any) -> None:
    upload = wire("files/upload", {"path": "/a.txt"}, b"x").value
    folder = wire("files/create_folder", {"path": "/f"}).value
    folder_v2 = wire("files/create_folder_v2", {"path": "/g"}).value
    assert ".tag" not in upload
    assert ".tag" not in folder
    assert list(folder_v2) == ["metadata"]
    assert ".tag" not in folder_v2["metadata"]
    assert wire("files/get_metadata", {"path": "/a.txt"}).value[".tag"] == "file"
    assert wire("files/copy", {"from_path": "/a.txt", "to_path": "/b.txt"}).value[".tag"] == "file"
    assert wire("files/move_v2", {"from_path": "/f", "to_path": "/h"}).value["metadata"][".tag"] == "folder"
    assert wire("files/delete", {"path": "/h"}).value[".tag"] == "folder"


@pytest.mark.parametrize(
    ("header", "status", "content", "content_range"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=0-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
        ("bytes=1-2,4-5", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=x-", 200, b"0123456789", None),
    ],
)
def test_ranges(wire: Any, header: str, status: int, content: bytes, content_range: str | None) -> None:
    wire("files/upload", {"path": "/a.bin"}, b"0123456789")
    reply = wire("files/download", {"path": "/a.bin"}, headers={"Range": header})
    assert (reply.status, reply.value, reply.headers.get("content-range")) == (status, content, content_range)


def test_requests_that_arrive_together_or_in_pieces(wire: Any) -> None:
    wire.connection.connect()
    head = f"POST /2/check/user HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {wire.token}\r\n"
    request = f'{head}Content-Type: application/json\r\nContent-Length: 15\r\n\r\n{{"query": "hi"}}'.encode()
    wire.connection.sock.sendall(request * 3)
    received = b""
    while received.count(b'{"result": "hi"}') < 3:
        received += wire.connection.sock.recv(65536)
    assert received.count(b"HTTP/1.1 200 OK") == 3
    for index in range(len(request)):
        wire.connection.sock.sendall(request[index : index + 1])
    received = b""
    while b'{"result": "hi"}' not in received:
        received += wire.connection.sock.recv(65536)


def test_client_that_waits_for_leave_to_send(wire: Any) -> None:
    wire.connection.connect()
    arg = 'Dropbox-API-Arg: {"path": "/e.txt"}\r\nContent-Type: application/octet-stream\r\nContent-Length: 2'
    head = f"POST /2/files/upload HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {wire.token}\r\n{arg}"
    wire.connection.sock.sendall(f"{head}\r\nExpect: 100-continue\r\n\r\n".encode())
    assert wire.connection.sock.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire.connection.sock.sendall(b"ok")
    assert wire.connection.sock.recv(65536).startswith(b"HTTP/1.1 200 OK")


_GIB = 2**30


@pytest.mark.parametrize("expects", [False, True], ids=["", "expect"])
@pytest.mark.parametrize(
    ("authorization", "length", "status"),
    [("Bearer sl.wrong", _GIB, 401), ("", _GIB, 400), ("Bearer sl.wrong", 0, 401), ("Bearer sl.wrong", None, 401)],
)
def test_unauthorized_request_is_refused_before_its_body(
    wire: Any, authorization: str, length: int | None, status: int, expects: bool
) -> None:
    """The answer comes after the headers, before a byte of the body is sent."""
    wire.connection.putrequest("POST", "/2/files/upload")
    if authorization:
        wire.connection.putheader("Authorization", authorization)
    for name, value in (("Dropbox-API-Arg", '{"path": "/a"}'), ("Content-Type", "application/octet-stream")):
        wire.connection.putheader(name, value)
    wire.connection.putheader(*(("Transfer-Encoding", "chunked") if length is None else ("Content-Length", length)))
    if expects:
        wire.connection.putheader("Expect", "100-continue")
    wire.connection.endheaders()
    answer = wire.connection.getresponse()
    assert (answer.status, answer.will_close) == (status, length != 0)


def test_large_body_of_unauthorized_request_is_cut_off(wire: Any, emulator: EmulatorService) -> None:
    wire.connection.putrequest("POST", "/2/files/upload")
    for name, value in (("Authorization", "Bearer sl.wrong"), ("Content-Length", _GIB)):
        wire.connection.putheader(name, value)
    wire.connection.endheaders()
    sent_bytes = 0
    with contextlib.suppress(OSError):  # a reset or a broken pipe
        while sent_bytes < _GIB:
            wire.connection.send(bytes(1_000_000))
            sent_bytes += 1_000_000
    assert sent_bytes < 100_000_000
    assert emulator.control(get="stats")["stats"]["routes"] == {"files/upload": {"401": 1}}


def test_chunked_upload(wire: Any) -> None:
    headers = {"Authorization": f"Bearer {wire.token}", "Content-Type": "application/octet-stream"}
    pieces = iter([b"one ", b"two ", b"three"])
    wire.connection.request("POST", "/2/files/upload", pieces, {**headers, "Dropbox-API-Arg": '{"path": "/c.txt"}'})
    assert wire.connection.getresponse().read()
    assert wire("files/download", {"path": "/c.txt"}).value == b"one two three"


def test_argument_in_the_query(wire: Any) -> None:
    headers = {"Authorization": f"Bearer {wire.token}", "Content-Type": "application/octet-stream"}
    path = "/2/files/upload?arg=%7B%22path%22%3A%20%22/q.txt%22%7D"
    assert wire.request("POST", path, b"x", headers, "files/upload").value["name"] == "q.txt"


def test_token_answers(wire: Any) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    body = b"grant_type=authorization_code&code=abc&client_id=key&redirect_uri=http%3A%2F%2Flocalhost"
    reply = wire.request("POST", "/oauth2/token", body, form)
    assert (reply.status, sorted(reply.value)) == (
        200,
        ["access_token", "account_id", "expires_in", "refresh_token", "scope", "token_type", "uid"],
    )
    assert wire("check/user", {"query": "x"}, token=reply.value["access_token"]).status == 200
    again = wire.request("POST", "/oauth2/token", body, form)
    assert (again.status, again.value["error"]) == (400, "invalid_grant")
    reply = wire.request("POST", "/oauth2/token", b"grant_type=password&client_id=key", form)
    assert (reply.status, reply.value["error"]) == (400, "unsupported_grant_type")
    page = "/oauth2/authorize?client_id=key&response_type=code&state=s&redirect_uri=http%3A%2F%2Flocalhost%3A1%2Fback"
    reply = wire.request("GET", page, b"", {})
    assert reply.status == 302
    assert reply.headers["location"].startswith("http://localhost:1/back?code=")
    assert reply.headers["location"].endswith("&state=s")


@pytest.mark.parametrize("name", ["sharing/get_shared_link_metadata", "sharing/revoke_shared_link"])
@pytest.mark.parametrize(
    ("url", "malformed"),
    [
        ("https://www.dropbox.com/s/xisqw2dgfnwnbri/shared_file.txt?dl=0", False),
        ("https://www.dropbox.com/scl/fi/xisqw2/a.txt?rlkey=1&dl=0", False),
        ("https://www.dropbox.com/al0w4e11j0e1kp3/file.docx?dl=0", True),
        ("https://example.com/s/xisqw2dgfnwnbri/a.txt", True),
        ("https://[broken", True),
        ("nonsense", True),
    ],
)
def test_links_that_do_not_exist(wire: Any, name: str, url: str, malformed: bool) -> None:
    reply = wire(name, {"url": url})
    expected = "shared_link_malformed" if malformed and "revoke" in name else "shared_link_not_found"
    assert (reply.status, _tags(reply.value["error"])) == (409, expected)


def test_a_download_by_get_that_has_not_changed_is_not_sent_again(wire: Any) -> None:
    wire("files/upload", {"path": "/kept.bin"}, b"0123456789")
    arg, bearer = quote('{"path": "/kept.bin"}'), {"Authorization": f"Bearer {wire.token}"}
    path = f"/2/files/download?arg={arg}"
    first = wire.request("GET", path, b"", bearer, "files/download")
    assert (first.status, first.value) == (200, b"0123456789")
    again = wire.request("GET", path, b"", {**bearer, "If-None-Match": first.headers["etag"]})
    assert (again.status, again.value, again.headers["etag"]) == (304, b"", first.headers["etag"])
    wire("files/upload", {"path": "/kept.bin", "mode": "overwrite"}, b"new")
    changed = wire.request("GET", path, b"", {**bearer, "If-None-Match": first.headers["etag"]}, "files/download")
    assert (changed.status, changed.value) == (200, b"new")
    assert wire.request("GET", "/2/files/get_metadata", b"", bearer).status == 405


def test_listing_a_shared_link_is_refused(wire: Any) -> None:
    wire("files/upload", {"path": "/linked/a.bin"}, b"x")
    link = wire("sharing/create_shared_link_with_settings", {"path": "/linked"}).value["url"]
    reply = wire("files/list_folder", {"path": "", "shared_link": {"url": link}})
    assert (reply.status, "shared_link" in reply.value) == (400, True)
