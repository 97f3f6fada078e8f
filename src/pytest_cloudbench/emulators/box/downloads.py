"""Downloads: a redirect to an address on another host, which needs no token and expires after a while."""

from __future__ import annotations

import hashlib
import hmac
from math import inf
from urllib.parse import quote

from pytest_cloudbench.emulators.box.answers import BoxError, empty_answer, host_url
from pytest_cloudbench.emulators.box.items import read_query
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState
from pytest_cloudbench.emulators.http import answer_range
from pytest_cloudbench.emulators.nodes import File, Node, Version
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

_DOWNLOAD_S = 900.0
"""The address of a download is valid for 15 minutes (developer.box.com, "Token & URL expiration")."""

_TYPES = {
    "csv": "text/csv", "gif": "image/gif", "html": "text/html", "jpeg": "image/jpeg", "jpg": "image/jpeg",
    "json": "application/json", "md": "text/markdown", "pdf": "application/pdf", "png": "image/png",
    "txt": "text/plain", "xml": "text/xml", "zip": "application/zip",
}  # fmt: skip


def is_unchanged(state: BoxState, call: Call, node: Node, version: Version | None = None) -> bool:
    """Return whether the client already has the state of an item that reads see (``If-None-Match``)."""
    known_etag = call.headers.get(b"if-none-match", b"").decode("latin-1").strip('" ')
    return bool(known_etag) and known_etag == str(state.changes(node, version).etag)


def find_version(state: BoxState, file: File, version_id: str, now_s: float = inf) -> Version:
    """Return a version of a file by its id. Raises BoxError if there is none, or if it is in the trash.

    A read passes ``now_s``, and finds only versions that reads see.
    """
    if version_id in state.meta(file).trashed_versions:
        raise BoxError(404, "trashed")
    return find_any_version(file, version_id, now_s)


def find_any_version(file: File, version_id: str, now_s: float = inf) -> Version:
    """Like ``find_version``, but also return a version that is in the trash."""
    for version in file.versions[file.born :]:
        if version.rev == version_id and version.visible_s <= now_s:
            return version
    raise BoxError(404, "not_found")


def _sign_text(state: BoxState, text: str) -> str:
    return hmac.new(state.secret.encode(), text.encode(), hashlib.sha256).hexdigest()[:40]


def is_signed(state: BoxState, token: str) -> bool:
    """Return whether a token from the address of a download has the signature of this account."""
    text, _, signature = token.rpartition(".")
    return hmac.compare_digest(signature.encode(), _sign_text(state, text).encode())


def _redirect_to_content(state: BoxState, call: Call) -> Answer:
    file, newest = state.find_readable_file(call.parameters["id"], call.now_s)
    version_id = read_query(call).get("version")
    version = find_version(state, file, version_id, call.now_s) if version_id else newest
    text = f"{file.id}.{version.rev}.{int(call.now_s + _DOWNLOAD_S)}"
    url = f"{host_url(call, 'dl.boxcloud.com')}/d/1/{text}.{_sign_text(state, text)}/download"
    return Answer(302, [(b"location", url.encode()), (b"cache-control", b"no-cache, no-store")], b"")


def _send_content(state: BoxState, call: Call) -> Answer:
    parts = call.parameters["token"].split(".")[:-1]
    if len(parts) != 3 or not is_signed(state, call.parameters["token"]):
        return empty_answer(404)
    if call.now_s > int(parts[2]):
        return empty_answer(403)
    file = state.store.by_id(parts[0])
    if not isinstance(file, File) or state.is_purged(file, call.now_s):
        return empty_answer(404)
    return answer_content(file, find_any_version(file, parts[1]), call)


def answer_content(file: File, version: Version, call: Call) -> Answer:
    """Return the bytes of a version, or the requested range of them."""
    blob = version.blob
    mime = _TYPES.get(file.name.rpartition(".")[2].lower(), "application/octet-stream")
    ascii_name = file.name.encode("ascii", "replace").replace(b'"', b"'")
    headers = [
        (b"content-type", mime.encode()),
        (b"accept-ranges", b"bytes"),
        (
            b"content-disposition",
            b"attachment;filename=\"%b\";filename*=UTF-8''%b" % (ascii_name, quote(file.name, safe="").encode()),
        ),
        (b"etag", b'"%b"' % blob.hash_hex.encode()),
    ]
    return answer_range(call, headers, blob)


FUNCTIONS = (
    BoxFunction("GET", "/d/1/{token}/download", "download_content", Kind.READ, _send_content, is_open=True),
    BoxFunction("GET", "/2.0/files/{id}/content", "download", Kind.META, _redirect_to_content),
)
