"""Content of any size through every emulator: it comes back whole, and memory does not hold it."""

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
"""Buffers of connections, of TLS, and of the allocator."""
_MAX_MEMORY_BYTES = 200 * MIB
"""The whole process, at any size of the content."""


def content(start_byte: int, end_byte: int) -> Iterator[bytes]:
    """The test file's bytes in a range; each MiB is different."""
    for number in range(start_byte // MIB, -(-end_byte // MIB)):
        block = number.to_bytes(8, "big") + _BLOCK[8:]
        yield block[max(0, start_byte - number * MIB) : end_byte - number * MIB]


def digest_of(pieces: Iterable[bytes], algorithm: str = "sha256") -> str:
    total = hashlib.new(algorithm)
    for piece in pieces:
        total.update(piece)
    return total.hexdigest()


class Client:
    """One connection that streams in both directions."""

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
        """Send a request; returns its answer, which is not read yet. ``url`` may be a path or a whole address."""
        parts = urlsplit(url)
        given = {name.replace("_", "-"): text for name, text in headers.items()}
        size = str(len(body) if isinstance(body, bytes) else length)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        self.connection.request(method, target, body, {**self.headers, "Content-Length": size, **given})
        return self.connection.getresponse()

    def json(self, method: str, url: str, value: object = None, **headers: str) -> dict[str, object]:
        """Send a JSON request that succeeds; returns its answer."""
        body = b"" if value is None else json.dumps(value).encode()
        answer = self.ask(method, url, body, Content_Type="application/json", **headers)
        data = answer.read()
        assert answer.status in (200, 201), data
        return dict(json.loads(data))


def done(answer: http.client.HTTPResponse, *statuses: int) -> bytes:
    """The body of an answer that has one of these statuses."""
    data = answer.read()
    assert answer.status in (statuses or (200, 201)), (answer.status, data[:500])
    return data


def pieces_of(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    assert answer.status in (200, 206)
    while piece := answer.read(MIB):
        yield piece


Download = Callable[..., http.client.HTTPResponse]
"""What sends the request for the stored content, with further headers."""


def dropbox_sessions(client: Client, size_bytes: int) -> Download:
    part, kind = 24 * MIB, "application/octet-stream"
    begun = done(client.ask("POST", "/2/files/upload_session/start", Dropbox_API_Arg="{}", Content_Type=kind))
    session = json.loads(begun)["session_id"]
    for at in range(0, size_bytes, part):
        end = min(at + part, size_bytes)
        arg = json.dumps({"cursor": {"session_id": session, "offset": at}})
        url = "/2/files/upload_session/append_v2"
        done(client.ask("POST", url, content(at, end), end - at, Dropbox_API_Arg=arg, Content_Type=kind))
    finish = {"cursor": {"session_id": session, "offset": size_bytes}, "commit": {"path": "/large"}}
    url = "/2/files/upload_session/finish"
    made = json.loads(done(client.ask("POST", url, Dropbox_API_Arg=json.dumps(finish), Content_Type=kind)))
    assert made["size"] == size_bytes
    return lambda **headers: client.ask("POST", "/2/files/download", Dropbox_API_Arg='{"path": "/large"}', **headers)


def dropbox_zip(client: Client, size_bytes: int) -> Download:
    """The file again, and it can be had in a ZIP, too."""
    download = dropbox_sessions(client, size_bytes)
    client.json("POST", "/2/files/move_v2", {"from_path": "/large", "to_path": "/folder/large"})
    answer = client.ask("POST", "/2/files/download_zip", Dropbox_API_Arg='{"path": "/folder"}')
    assert sum(map(len, pieces_of(answer))) > size_bytes
    client.json("POST", "/2/files/move_v2", {"from_path": "/folder/large", "to_path": "/large"})
    return download


def drive_download(client: Client, made: bytes, size_bytes: int) -> Download:
    file_id = json.loads(made)["id"]
    known = client.json("GET", f"/drive/v3/files/{file_id}?fields=size,md5Checksum")
    assert known == {"size": str(size_bytes), "md5Checksum": digest_of(content(0, size_bytes), "md5")}
    return lambda **headers: client.ask("GET", f"/drive/v3/files/{file_id}?alt=media", **headers)


_DRIVE = "/upload/drive/v3/files?uploadType="


def drive_media(client: Client, size_bytes: int) -> Download:
    made = done(client.ask("POST", f"{_DRIVE}media", content(0, size_bytes), size_bytes))
    return drive_download(client, made, size_bytes)


def drive_multipart(client: Client, size_bytes: int) -> Download:
    head = b'--b\r\nContent-Type: application/json\r\n\r\n{"name": "large"}\r\n--b\r\nContent-Type: a/b\r\n\r\n'
    tail = b"\r\n--b--\r\n"
    kind, length = "multipart/related; boundary=b", len(head) + size_bytes + len(tail)
    whole = itertools.chain([head], content(0, size_bytes), [tail])
    made = done(client.ask("POST", f"{_DRIVE}multipart", whole, length, Content_Type=kind))
    return drive_download(client, made, size_bytes)


def drive_resumable(client: Client, size_bytes: int) -> Download:
    begun = client.ask("POST", f"{_DRIVE}resumable", b'{"name": "large"}')
    done(begun)
    url, part, made = begun.headers["location"], 16 * MIB, b""
    for at in range(0, size_bytes, part):
        end = min(at + part, size_bytes)
        place = f"bytes {at}-{end - 1}/{size_bytes}"
        made = done(client.ask("PUT", url, content(at, end), end - at, Content_Range=place), 200, 308)
    return drive_download(client, made, size_bytes)


def redirected(client: Client, url: str) -> Download:
    """A download by a redirect to another address."""

    def download(**headers: str) -> http.client.HTTPResponse:
        redirect = client.ask("GET", url)
        done(redirect, 302)
        return client.ask("GET", redirect.headers["location"], **headers)

    return download


def onedrive_sessions(client: Client, size_bytes: int) -> Download:
    url = str(client.json("POST", "/v1.0/me/drive/root:/large:/createUploadSession", {})["uploadUrl"])
    part = 20 * MIB
    for at in range(0, size_bytes, part):
        end = min(at + part, size_bytes)
        place = f"bytes {at}-{end - 1}/{size_bytes}"
        done(client.ask("PUT", url, content(at, end), end - at, Content_Range=place), 200, 201, 202)

    return redirected(client, "/v1.0/me/drive/root:/large:/content")


def onedrive_put(client: Client, size_bytes: int) -> Download:
    url = "/v1.0/me/drive/root:/large:/content"
    done(client.ask("PUT", url, content(0, size_bytes), size_bytes))
    return redirected(client, url)


def box_download(client: Client, made: bytes) -> Download:
    file_id = json.loads(made)["entries"][0]["id"]
    return redirected(client, f"/2.0/files/{file_id}/content")


def box_form(client: Client, size_bytes: int) -> Download:
    line = b'--b\r\nContent-Disposition: form-data; name="'
    head = (
        line
        + b'attributes"\r\n\r\n{"name": "large", "parent": {"id": "0"}}\r\n'
        + line
        + b'file"; filename="x"\r\n\r\n'
    )
    tail = b"\r\n--b--\r\n"
    whole = itertools.chain([head], content(0, size_bytes), [tail])
    kind, length = "multipart/form-data; boundary=b", len(head) + size_bytes + len(tail)
    return box_download(client, done(client.ask("POST", "/api/2.0/files/content", whole, length, Content_Type=kind)))


def box_sessions(client: Client, size_bytes: int) -> Download:
    wanted = {"folder_id": "0", "file_name": "large", "file_size": size_bytes}
    session = client.json("POST", "/api/2.0/files/upload_sessions", wanted)
    url, part, parts = f"/api/2.0/files/upload_sessions/{session['id']}", int(str(session["part_size"])), []
    for at in range(0, size_bytes, part):
        end = min(at + part, size_bytes)
        place = f"bytes {at}-{end - 1}/{size_bytes}"
        digest = base64.b64encode(bytes.fromhex(digest_of(content(at, end), "sha1"))).decode()
        stored = client.ask("PUT", url, content(at, end), end - at, Content_Range=place, Digest=f"sha={digest}")
        parts.append(json.loads(done(stored))["part"])
    digest = base64.b64encode(bytes.fromhex(digest_of(content(0, size_bytes), "sha1"))).decode()
    body = json.dumps({"parts": parts}).encode()
    return box_download(client, done(client.ask("POST", f"{url}/commit", body, Digest=f"sha={digest}")))


def mega_one_piece(client: Client, size_bytes: int) -> Download:
    return mega_upload(client, [0, size_bytes])


def mega_pieces(client: Client, size_bytes: int) -> Download:
    eight_chunks_bytes = sum(range(1, 9)) * 128 * 1024  # they grow to 1 MiB, and stay so
    return mega_upload(client, [0, *range(eight_chunks_bytes, size_bytes, 40 * MIB), size_bytes])


def mega_upload(client: Client, bounds: Sequence[int]) -> Download:
    wire = client.mega
    assert wire is not None
    wire.login()
    url, handle = wire("u", s=bounds[-1])["p"], b""
    for at, end in itertools.pairwise(bounds):
        handle = done(client.ask("POST", f"{url}/{at}", content(at, end), end - at))
    key = bytes(16)
    entry = {"h": handle.decode(), "t": 0, "a": attributes(key, "x"), "k": encode(ecb(wire.master_key, key * 2))}
    node = wire("p", t=wire.tops[2], n=[entry])["f"][0]
    place = str(wire("g", g=1, n=node["h"])["g"])

    def download(**headers: str) -> http.client.HTTPResponse:
        found = re.fullmatch(r"bytes=(\d+-\d+)", headers.get("Range", ""))
        return client.ask("GET", f"{place}/{found[1]}" if found else place)

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
    """The most memory that the emulator's process has had."""
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
