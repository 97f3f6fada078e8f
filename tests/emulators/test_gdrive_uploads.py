"""Tests of uploads to the Drive emulator. Every answer is checked against Google's description of the API."""

from __future__ import annotations

import json
import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

import pytest

from pytest_cloudbench.emulators import EmulatorService
from tests.limits import HANG_S

from .drive_wire import DriveWire

UPLOAD = "/upload/drive/v3/files"
UNIT = 256 * 1024


def open_session(drive: DriveWire, name: str = "big", size: int | None = None, file_id: str = "") -> str:
    """Start a resumable upload, and return the path for its pieces."""
    headers = {"X-Upload-Content-Type": "text/plain"} | ({"X-Upload-Content-Length": str(size)} if size else {})
    verb, path = ("PATCH", f"{UPLOAD}/{file_id}") if file_id else ("POST", UPLOAD)
    reply = drive(verb, f"{path}?uploadType=resumable", {} if file_id else {"name": name}, headers=headers)
    assert (reply.status, reply.value) == (200, b"")
    location = urlsplit(reply.headers["location"])
    assert location.netloc == f"127.0.0.1:{drive.connection.port}"
    return f"{location.path}?{location.query}"


def send_piece(drive: DriveWire, path: str, span: str, data: bytes = b"", verb: str = "PUT") -> Any:
    return drive(verb, path, data, headers={"Content-Range": f"bytes {span}", "Authorization": ""})


@pytest.mark.parametrize("verb", ["PUT", "POST"])
def test_a_resumable_upload(drive: DriveWire, verb: str) -> None:
    data = bytes(range(256)) * 4096  # 1 MiB
    path = open_session(drive, size=len(data))
    progress = send_piece(drive, path, f"*/{len(data)}")
    assert (progress.status, "range" in progress.headers) == (308, False)
    first = send_piece(drive, path, f"0-{2 * UNIT - 1}/{len(data)}", data[: 2 * UNIT], verb)
    assert (first.status, first.headers["range"]) == (308, f"bytes=0-{2 * UNIT - 1}")
    last = send_piece(drive, path, f"{2 * UNIT}-{len(data) - 1}/{len(data)}", data[2 * UNIT :], verb)
    assert (last.status, last.value["name"], last.value["mimeType"]) == (200, "big", "text/plain")
    again = send_piece(drive, path, f"*/{len(data)}")
    assert (again.status, again.value["id"]) == (200, last.value["id"])
    assert drive.ok("GET", f"files/{last.value['id']}?alt=media") == data
    path = open_session(drive, file_id=last.value["id"])
    assert send_piece(drive, path, "0-2/3", b"new", verb).status == 200
    assert drive.ok("GET", f"files/{last.value['id']}?alt=media") == b"new"


def test_pieces_that_do_not_fit(drive: DriveWire) -> None:
    path = open_session(drive)
    assert b"offset is 262144 byte(s)" in send_piece(drive, path, f"{UNIT}-{2 * UNIT - 1}/*", bytes(UNIT)).value
    assert b"equal or greater than 262144" in send_piece(drive, path, "0-9/*", bytes(10)).value
    odd = send_piece(drive, path, f"0-{UNIT + 9}/*", bytes(UNIT + 10))
    assert (odd.status, odd.headers["range"]) == (308, f"bytes=0-{UNIT - 1}")
    again = send_piece(drive, path, f"0-{2 * UNIT - 1}/*", b"x" * (2 * UNIT))
    assert again.headers["range"] == f"bytes=0-{2 * UNIT - 1}"
    reply = send_piece(drive, path, f"{2 * UNIT}-{2 * UNIT}/{2 * UNIT + 1}", b"e")
    assert drive.ok("GET", f"files/{reply.value['id']}?alt=media") == bytes(UNIT) + b"x" * UNIT + b"e"
    assert send_piece(drive, path, "nonsense").status == 400
    assert send_piece(drive, f"{UPLOAD}?uploadType=resumable&upload_id=none", "0-0/1", b"x").status == 404


def test_a_repeated_piece_is_accepted_and_stored_once(drive: DriveWire) -> None:
    data = bytes(range(256)) * 2048  # two units
    path = open_session(drive, size=len(data))
    for _ in range(2):  # a client that has lost the answer sends the piece again
        reply = send_piece(drive, path, f"0-{UNIT - 1}/{len(data)}", data[:UNIT])
        assert (reply.status, reply.headers["range"]) == (308, f"bytes=0-{UNIT - 1}")
    reply = send_piece(drive, path, f"{UNIT}-{len(data) - 1}/{len(data)}", data[UNIT:])
    assert drive.ok("GET", f"files/{reply.value['id']}?alt=media") == data


def test_a_piece_is_repeated_after_a_server_error(drive: DriveWire, gdrive: EmulatorService) -> None:
    data = bytes(range(256)) * 2048
    path = open_session(drive, size=len(data))
    gdrive.control(set={"faults.error_rate": 1.0})
    assert send_piece(drive, path, f"0-{UNIT - 1}/{len(data)}", data[:UNIT]).status == 500
    gdrive.control(set={"faults.error_rate": 0.0})
    assert send_piece(drive, path, f"0-{UNIT - 1}/{len(data)}", data[:UNIT]).status == 308
    reply = send_piece(drive, path, f"{UNIT}-{len(data) - 1}/{len(data)}", data[UNIT:])
    assert drive.ok("GET", f"files/{reply.value['id']}?alt=media") == data


def test_a_session_needs_space_only_for_what_is_more_than_before(drive: DriveWire, gdrive: EmulatorService) -> None:
    gdrive.control(set={"quota.bytes": 1000})
    file_id = drive.upload("a", b"x" * 900)
    path = open_session(drive, size=1000, file_id=file_id)
    assert send_piece(drive, path, "0-999/1000", b"y" * 1000).status == 200
    assert drive.ok("GET", f"files/{file_id}?alt=media") == b"y" * 1000
    headers = {"X-Upload-Content-Length": "1001"}
    reply = drive("PATCH", f"{UPLOAD}/{file_id}?uploadType=resumable", {}, headers=headers)
    assert (reply.status, reply.reason) == (403, "storageQuotaExceeded")


def test_a_session_can_be_ended(drive: DriveWire) -> None:
    path = open_session(drive)
    assert drive("DELETE", path).status == 499
    assert send_piece(drive, path, "*/*").status == 404


def test_an_upload_goes_on_after_a_cut(drive: DriveWire, gdrive: EmulatorService) -> None:
    data = bytes(range(256)) * 4096
    path = open_session(drive, size=len(data))
    context = ssl.create_default_context(cafile=gdrive.endpoint.ca_file)
    port = urlsplit(gdrive.endpoint.url).port
    plain = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as cut:
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        head += f"Content-Range: bytes 0-{len(data) - 1}/{len(data)}\r\n\r\n"
        cut.sendall(head.encode() + data[: 2 * UNIT + 100])
        while send_piece(drive, path, "*/*").headers.get("range") != f"bytes=0-{2 * UNIT - 1}":
            pass  # wait until this much has arrived
    progress = send_piece(drive, path, f"*/{len(data)}")
    assert (progress.status, progress.headers["range"]) == (308, f"bytes=0-{2 * UNIT - 1}")
    reply = send_piece(drive, path, f"{2 * UNIT}-{len(data) - 1}/{len(data)}", data[2 * UNIT :])
    assert drive.ok("GET", f"files/{reply.value['id']}?alt=media") == data


def test_upload_session_takes_whole_file_without_its_size(drive: DriveWire) -> None:
    path = open_session(drive)
    reply = drive("PUT", path, b"abc", headers={"Authorization": ""})
    assert drive.ok("GET", f"files/{reply.value['id']}?alt=media") == b"abc"


def test_a_resumable_upload_into_a_deleted_file_is_refused_and_uses_no_space(drive: DriveWire) -> None:
    file_id = drive.upload("a", b"x" * 1000)
    path = open_session(drive, file_id=file_id)
    drive.ok("DELETE", f"files/{file_id}")
    reply = send_piece(drive, path, "0-4999/5000", b"y" * 5000)
    assert (reply.status, reply.reason) == (404, "notFound")
    assert drive("GET", f"files/{file_id}").status == 404
    assert drive.ok("GET", "about?fields=storageQuota")["storageQuota"]["usage"] == "0"
    assert send_piece(drive, path, "*/5000").status == 404


@pytest.mark.parametrize("label", ["multipart/related", "multipart/form-data", "multipart/mixed"])
@pytest.mark.parametrize("data", [b"", b"abc", b"\r\n--other\r\n", b"ends with a line\r\n", bytes(range(256))])
def test_multipart(drive: DriveWire, label: str, data: bytes) -> None:
    body = (
        b'preamble\r\n--a b\r\nContent-Disposition: form-data; name="metadata"\r\n'
        b'Content-Type: application/json\r\n\r\n{"name": "m"}\r\n--a b\r\nContent-Type: text/plain\r\n\r\n'
        + data
        + b"\r\n--a b--\r\n"
    )
    headers = {"Content-Type": f'{label}; boundary="a b"'}
    file = drive.ok("POST", f"{UPLOAD}?uploadType=multipart", body, headers=headers)
    assert (file["name"], file["mimeType"]) == ("m", "text/plain")
    assert drive.ok("GET", f"files/{file['id']}?alt=media") == data


@pytest.mark.parametrize("data", [b"x\r", b"x\n", b"x\r\n", b"\r", b"\n", b""])
def test_multipart_by_a_client_that_ends_lines_its_own_way(drive: DriveWire, data: bytes) -> None:
    """Google's client for Python separates parts by a line feed alone, so a CR before it is content."""
    head = b'--b\nContent-Type: application/json\n\n{"name": "m"}\n--b\nContent-Type: text/plain\n\n'
    body = head + data + b"\n--b--"
    headers = {"Content-Type": 'multipart/related; boundary="b"'}
    file = drive.ok("POST", f"{UPLOAD}?uploadType=multipart", body, headers=headers)
    assert drive.ok("GET", f"files/{file['id']}?alt=media") == data


def test_a_multipart_body_in_chunks(drive: DriveWire) -> None:
    pieces = iter([b"--b\r\n\r\n{}\r\n--b\r\nContent-Transfer-Encoding: base64\r\n\r\n", b"YWJj\r\n", b"--b--"])
    headers = {"Authorization": f"Bearer {drive.token}", "Content-Type": "multipart/related; boundary=b"}
    drive.connection.request("POST", f"{UPLOAD}?uploadType=multipart", pieces, headers, encode_chunked=True)
    file = json.loads(drive.connection.getresponse().read())
    assert file["name"] == "Untitled"
    assert drive.ok("GET", f"files/{file['id']}?alt=media") == b"abc"


@pytest.mark.parametrize(
    ("query", "kind", "body"),
    [
        ("uploadType=multipart", "multipart/related; boundary=b", b"--b\r\n\r\n{}\r\n--b--"),
        ("uploadType=multipart", "multipart/related; boundary=b", b"nothing"),
        ("uploadType=multipart", "multipart/related; boundary=b", b"--b\r\n\r\n{\r\n--b\r\n\r\nx\r\n--b--"),
        ("uploadType=multipart", "application/json", b"{}"),
        ("uploadType=other", "text/plain", b"x"),
        ("", "text/plain", b"x"),
        ("uploadType=resumable", "application/json", b"[]"),
    ],
)
def test_uploads_that_make_no_sense(drive: DriveWire, query: str, kind: str, body: bytes) -> None:
    assert drive("POST", f"{UPLOAD}?{query}", body, headers={"Content-Type": kind}).status == 400
    assert drive.names() == []
