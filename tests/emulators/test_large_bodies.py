"""Tests that every emulator returns content of any size complete, without holding it in memory."""

from __future__ import annotations

import base64
import hashlib
import http.client
import itertools
import json
import re
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.model import MIB, Endpoint
from tests.emulators.mega_wire import MegaWire, attributes, ecb, encode
from tests.limits import HANG_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process's peak of memory is read from /proc")

_BLOCK = hashlib.shake_128(b"block").digest(MIB)
_GIB = 1024 * MIB
_SIZE_BYTES = 64 * MIB + 12_345
_SLACK_BYTES = 24 * MIB
"""Memory for the buffers of connections, TLS and the allocator."""
_MAX_MEMORY_BYTES = 200 * MIB
"""The limit of the whole process for content of any size."""


def content(start_byte: int, end_byte: int) -> Iterator[bytes]:
    """Yield a range of the test file's bytes. Each MiB is different."""
    for number in range(start_byte // MIB, -(-end_byte // MIB)):
        block = number.to_bytes(8, "big") + _BLOCK[8:]
        yield block[max(0, start_byte - number * MIB) : end_byte - number * MIB]


def digest_of(pieces: Iterable[bytes], algorithm: str = "sha256") -> str:
    total = hashlib.new(algorithm)
    for piece in pieces:
        total.update(piece)
    return total.hexdigest()


class Client:
    """A client with one connection that streams in both directions."""

    def __init__(self, endpoint: Endpoint) -> None:
        context = ssl.create_default_context(cafile=endpoint.ca_file)
        port = urlsplit(endpoint.url).port
        self.connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=HANG_S, context=context)
        self.mega = MegaWire(endpoint) if "email" in endpoint.credentials else None
        self.headers = {"Authorization": f"Bearer {endpoint.credentials.get('access_token', '')}"}

    def close(self) -> None:
        self.connection.close()
        if self.mega is not None:
            self.mega.connection.close()

    def ask(
        self, method: str, url: str, body: bytes | Iterable[bytes] = b"", length: int = 0, /, **headers: str
    ) -> http.client.HTTPResponse:
        """Send a request, and return its unread answer. ``url`` may be a path or a complete address."""
        parts = urlsplit(url)
        extra_headers = {name.replace("_", "-"): text for name, text in headers.items()}
        size = str(len(body) if isinstance(body, bytes) else length)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        self.connection.request(method, target, body, {**self.headers, "Content-Length": size, **extra_headers})
        return self.connection.getresponse()

    def json(self, method: str, url: str, value: object = None, **headers: str) -> dict[str, object]:
        """Send a JSON request that has to succeed, and return its answer."""
        body = b"" if value is None else json.dumps(value).encode()
        answer = self.ask(method, url, body, Content_Type="application/json", **headers)
        data = answer.read()
        assert answer.status in (200, 201), data
        return dict(json.loads(data))


def read_answer(answer: http.client.HTTPResponse, *statuses: int) -> bytes:
    """Return the body of an answer, which must have one of these statuses."""
    data = answer.read()
    assert answer.status in (statuses or (200, 201)), (answer.status, data[:500])
    return data


def pieces_of(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    assert answer.status in (200, 206)
    while piece := answer.read(MIB):
        yield piece


Download = Callable[..., http.client.HTTPResponse]
"""A function that requests the stored content, with additional headers."""


def dropbox_sessions(client: Client, size_bytes: int) -> Download:
    part, kind = 24 * MIB, "application/octet-stream"
    answer = read_answer(client.ask("POST", "/2/files/upload_session/start", Dropbox_API_Arg="{}", Content_Type=kind))
    session = json.loads(answer)["session_id"]
    for start in range(0, size_bytes, part):
        end = min(start + part, size_bytes)
        arg = json.dumps({"cursor": {"session_id": session, "offset": start}})
        url = "/2/files/upload_session/append_v2"
        read_answer(client.ask("POST", url, content(start, end), end - start, Dropbox_API_Arg=arg, Content_Type=kind))
    finish = {"cursor": {"session_id": session, "offset": size_bytes}, "commit": {"path": "/large"}}
    url = "/2/files/upload_session/finish"
    file = json.loads(read_answer(client.ask("POST", url, Dropbox_API_Arg=json.dumps(finish), Content_Type=kind)))
    assert file["size"] == size_bytes
    return lambda **headers: client.ask("POST", "/2/files/download", Dropbox_API_Arg='{"path": "/large"}', **headers)


def dropbox_zip(client: Client, size_bytes: int) -> Download:
    """Upload the file by a session, and read it in a ZIP file, too."""
    download = dropbox_sessions(client, size_bytes)
    client.json("POST", "/2/files/move_v2", {"from_path": "/large", "to_path": "/folder/large"})
    answer = client.ask("POST", "/2/files/download_zip", Dropbox_API_Arg='{"path": "/folder"}')
    assert sum(map(len, pieces_of(answer))) > size_bytes
    client.json("POST", "/2/files/move_v2", {"from_path": "/folder/large", "to_path": "/large"})
    return download


def drive_download(client: Client, answer: bytes, size_bytes: int) -> Download:
    file_id = json.loads(answer)["id"]
    metadata = client.json("GET", f"/drive/v3/files/{file_id}?fields=size,md5Checksum")
    assert metadata == {"size": str(size_bytes), "md5Checksum": digest_of(content(0, size_bytes), "md5")}
    return lambda **headers: client.ask("GET", f"/drive/v3/files/{file_id}?alt=media", **headers)


_DRIVE = "/upload/drive/v3/files?uploadType="


def drive_media(client: Client, size_bytes: int) -> Download:
    answer = read_answer(client.ask("POST", f"{_DRIVE}media", content(0, size_bytes), size_bytes))
    return drive_download(client, answer, size_bytes)


def drive_multipart(client: Client, size_bytes: int) -> Download:
    head = b'--b\r\nContent-Type: application/json\r\n\r\n{"name": "large"}\r\n--b\r\nContent-Type: a/b\r\n\r\n'
    tail = b"\r\n--b--\r\n"
    kind, length = "multipart/related; boundary=b", len(head) + size_bytes + len(tail)
    body_pieces = itertools.chain([head], content(0, size_bytes), [tail])
    answer = read_answer(client.ask("POST", f"{_DRIVE}multipart", body_pieces, length, Content_Type=kind))
    return drive_download(client, answer, size_bytes)


def drive_resumable(client: Client, size_bytes: int) -> Download:
    first_answer = client.ask("POST", f"{_DRIVE}resumable", b'{"name": "large"}')
    read_answer(first_answer)
    url, part, answer = first_answer.headers["location"], 16 * MIB, b""
    for start in range(0, size_bytes, part):
        end = min(start + part, size_bytes)
        content_range = f"bytes {start}-{end - 1}/{size_bytes}"
        answer = read_answer(
            client.ask("PUT", url, content(start, end), end - start, Content_Range=content_range), 200, 308
        )
    return drive_download(client, answer, size_bytes)


def follow_redirect(client: Client, url: str) -> Download:
    """Return a download that follows a redirect to another address."""

    def download(**headers: str) -> http.client.HTTPResponse:
        redirect = client.ask("GET", url)
        read_answer(redirect, 302)
        return client.ask("GET", redirect.headers["location"], **headers)

    return download


def onedrive_sessions(client: Client, size_bytes: int) -> Download:
    url = str(client.json("POST", "/v1.0/me/drive/root:/large:/createUploadSession", {})["uploadUrl"])
    part = 20 * MIB
    for start in range(0, size_bytes, part):
        end = min(start + part, size_bytes)
        content_range = f"bytes {start}-{end - 1}/{size_bytes}"
        read_answer(
            client.ask("PUT", url, content(start, end), end - start, Content_Range=content_range), 200, 201, 202
        )

    return follow_redirect(client, "/v1.0/me/drive/root:/large:/content")


def onedrive_put(client: Client, size_bytes: int) -> Download:
    url = "/v1.0/me/drive/root:/large:/content"
    read_answer(client.ask("PUT", url, content(0, size_bytes), size_bytes))
    return follow_redirect(client, url)


def box_download(client: Client, answer: bytes) -> Download:
    file_id = json.loads(answer)["entries"][0]["id"]
    return follow_redirect(client, f"/2.0/files/{file_id}/content")


def box_form(client: Client, size_bytes: int) -> Download:
    line = b'--b\r\nContent-Disposition: form-data; name="'
    head = (
        line
        + b'attributes"\r\n\r\n{"name": "large", "parent": {"id": "0"}}\r\n'
        + line
        + b'file"; filename="x"\r\n\r\n'
    )
    tail = b"\r\n--b--\r\n"
    body_pieces = itertools.chain([head], content(0, size_bytes), [tail])
    kind, length = "multipart/form-data; boundary=b", len(head) + size_bytes + len(tail)
    return box_download(
        client, read_answer(client.ask("POST", "/api/2.0/files/content", body_pieces, length, Content_Type=kind))
    )


def box_sessions(client: Client, size_bytes: int) -> Download:
    request = {"folder_id": "0", "file_name": "large", "file_size": size_bytes}
    session = client.json("POST", "/api/2.0/files/upload_sessions", request)
    url, part, parts = f"/api/2.0/files/upload_sessions/{session['id']}", int(str(session["part_size"])), []
    for start in range(0, size_bytes, part):
        end = min(start + part, size_bytes)
        content_range = f"bytes {start}-{end - 1}/{size_bytes}"
        digest = base64.b64encode(bytes.fromhex(digest_of(content(start, end), "sha1"))).decode()
        answer = client.ask(
            "PUT", url, content(start, end), end - start, Content_Range=content_range, Digest=f"sha={digest}"
        )
        parts.append(json.loads(read_answer(answer))["part"])
    digest = base64.b64encode(bytes.fromhex(digest_of(content(0, size_bytes), "sha1"))).decode()
    body = json.dumps({"parts": parts}).encode()
    return box_download(client, read_answer(client.ask("POST", f"{url}/commit", body, Digest=f"sha={digest}")))


def mega_one_piece(client: Client, size_bytes: int) -> Download:
    return mega_upload(client, [0, size_bytes])


def mega_pieces(client: Client, size_bytes: int) -> Download:
    eight_chunks_bytes = sum(range(1, 9)) * 128 * 1024  # chunks grow up to 1 MiB
    return mega_upload(client, [0, *range(eight_chunks_bytes, size_bytes, 40 * MIB), size_bytes])


def mega_upload(client: Client, bounds: Sequence[int]) -> Download:
    wire = client.mega
    assert wire is not None
    wire.login()
    url, handle = wire("u", s=bounds[-1])["p"], b""
    for start, end in itertools.pairwise(bounds):
        handle = read_answer(client.ask("POST", f"{url}/{start}", content(start, end), end - start))
    key = bytes(16)
    entry = {"h": handle.decode(), "t": 0, "a": attributes(key, "x"), "k": encode(ecb(wire.master_key, key * 2))}
    node = wire("p", t=wire.tops[2], n=[entry])["f"][0]
    download_url = str(wire("g", g=1, n=node["h"])["g"])

    def download(**headers: str) -> http.client.HTTPResponse:
        match = re.fullmatch(r"bytes=(\d+-\d+)", headers.get("Range", ""))
        return client.ask("GET", f"{download_url}/{match[1]}" if match else download_url)

    return download


WAYS: Mapping[str, tuple[str, Callable[[Client, int], Download]]] = {
    "dropbox sessions": ("ideal", dropbox_sessions),
    "dropbox zip": ("ideal", dropbox_zip),
    "gdrive media": ("gdrive-ideal", drive_media),
    "gdrive multipart": ("gdrive-ideal", drive_multipart),
    "gdrive resumable": ("gdrive-ideal", drive_resumable),
    "onedrive sessions": ("onedrive-ideal", onedrive_sessions),
    "onedrive put": ("onedrive-ideal", onedrive_put),
    "box form": ("box-ideal", box_form),
    "box sessions": ("box-ideal", box_sessions),
    "mega one piece": ("mega-ideal", mega_one_piece),
    "mega pieces": ("mega-ideal", mega_pieces),
}


def peak_bytes(service: EmulatorService) -> int:
    """Return the peak memory of the emulator's process."""
    status = Path("/proc", str(service.child.pid), "status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def check_stored_on_disk(profile: str, upload: Callable[[Client, int], Download], size_bytes: int) -> None:
    with start_emulator(profile) as service:
        client = Client(service.endpoint)
        before = peak_bytes(service)
        download = upload(client, size_bytes)
        answer = download()
        assert answer.headers["content-length"] == str(size_bytes)
        assert digest_of(pieces_of(answer)) == digest_of(content(0, size_bytes))
        first = (size_bytes - 1) // MIB * MIB
        part = download(Range=f"bytes={first}-{size_bytes - 1}")
        assert part.read() == b"".join(content(first, size_bytes))
        client.close()
        assert peak_bytes(service) - before < _SLACK_BYTES + size_bytes // 64
        assert peak_bytes(service) < _MAX_MEMORY_BYTES


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("way", WAYS)
def test_content_comes_back_whole_and_is_not_in_memory(way: str) -> None:
    check_stored_on_disk(*WAYS[way], _SIZE_BYTES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "size_bytes"),
    [
        *itertools.product(("dropbox sessions", "gdrive media"), (2 * _GIB - 1, 2 * _GIB, 4 * _GIB + 1)),
        *((way, 2 * _GIB) for way in WAYS if way not in ("dropbox sessions", "gdrive media")),
    ],
)
def test_two_gib_and_more_come_back_whole(way: str, size_bytes: int) -> None:
    check_stored_on_disk(*WAYS[way], size_bytes)


@pytest.mark.parametrize("way", ["dropbox sessions", "gdrive media", "onedrive put", "box form", "mega one piece"])
def test_a_full_disk_is_an_answer(way: str) -> None:
    import resource

    profile, upload = WAYS[way]
    with start_emulator(profile) as service:
        resource.prlimit(service.child.pid, resource.RLIMIT_FSIZE, (MIB, MIB))
        for size_bytes in (2 * MIB, 200_000):
            client = Client(service.endpoint)
            if size_bytes > MIB:
                with pytest.raises((AssertionError, ConnectionError), match=r"507|reset|pipe"):
                    upload(client, size_bytes)
            else:
                assert digest_of(pieces_of(upload(client, size_bytes)())) == digest_of(content(0, size_bytes))
            client.close()
