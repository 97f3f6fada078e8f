"""Downloads: a redirect to an address on another host, which needs no token and expires after a while.

What may live here: giving out the content of files, whole or in ranges.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import quote

from pytest_cloudbench.emulators.box.answers import BoxError, nothing, origin
from pytest_cloudbench.emulators.box.items import query_of
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState
from pytest_cloudbench.emulators.http import byte_range
from pytest_cloudbench.emulators.nodes import File, Node, Version
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

_DOWNLOAD_S = 900.0
"""The address of a download lives for 15 minutes (developer.box.com, "Token & URL expiration")."""

_TYPES = {
    "csv": "text/csv", "gif": "image/gif", "html": "text/html", "jpeg": "image/jpeg", "jpg": "image/jpeg",
    "json": "application/json", "md": "text/markdown", "pdf": "application/pdf", "png": "image/png",
    "txt": "text/plain", "xml": "text/xml", "zip": "application/zip",
}  # fmt: skip


def is_unchanged(state: BoxState, call: Call, node: Node) -> bool:
    """Returns whether the client already has an item's current state (``If-None-Match``)."""
    known = call.headers.get(b"if-none-match", b"").decode("latin-1").strip('" ')
    return bool(known) and known == str(state.meta(node).etag)


def version_of(state: BoxState, file: File, version_id: str) -> Version:
    """Returns a version of a file by its id, unless it is in the trash. Raises BoxError."""
    if version_id in state.meta(file).trashed_versions:
        raise BoxError(404, "trashed")
    return any_version_of(file, version_id)


def any_version_of(file: File, version_id: str) -> Version:
    """Returns a version of a file by its id, be it in the trash. Raises BoxError."""
    for version in file.versions[file.born :]:
        if version.rev == version_id:
            return version
    raise BoxError(404, "not_found")


def _signed(state: BoxState, text: str) -> str:
    return hmac.new(state.secret.encode(), text.encode(), hashlib.sha256).hexdigest()[:40]


def _download(state: BoxState, call: Call) -> Answer:
    file, version = state.read(call.parameters["id"], call.now_s)
    wanted = query_of(call).get("version")
    if wanted:
        version = version_of(state, file, wanted)
    if is_unchanged(state, call, file):
        return nothing(304)
    text = f"{file.id}.{version.rev}.{int(call.now_s + _DOWNLOAD_S)}"
    url = f"{origin(call, 'dl.boxcloud.com')}/d/1/{text}.{_signed(state, text)}/download"
    return Answer(302, [(b"location", url.encode()), (b"cache-control", b"no-cache, no-store")], b"")


def _content(state: BoxState, call: Call) -> Answer:
    text, _, signature = call.parameters["token"].rpartition(".")
    parts = text.split(".")
    if len(parts) != 3 or not hmac.compare_digest(signature.encode(), _signed(state, text).encode()):
        return nothing(404)
    if call.now_s > int(parts[2]):
        return nothing(403)
    file = state.store.by_id(parts[0])
    if not isinstance(file, File):
        return nothing(404)
    return content_answer(file, any_version_of(file, parts[1]), call)


def content_answer(file: File, version: Version, call: Call) -> Answer:
    """The bytes of a version, or the range of them that is asked for."""
    blob = version.blob
    kind = _TYPES.get(file.name.rpartition(".")[2].lower(), "application/octet-stream")
    plain = file.name.encode("ascii", "replace").replace(b'"', b"'")
    headers = [
        (b"content-type", kind.encode()),
        (b"accept-ranges", b"bytes"),
        (
            b"content-disposition",
            b"attachment;filename=\"%b\";filename*=UTF-8''%b" % (plain, quote(file.name, safe="").encode()),
        ),
        (b"etag", b'"%b"' % blob.hash_hex.encode()),
    ]
    bounds = byte_range(call.headers.get(b"range", b""), blob.size_bytes)
    if bounds is None:
        return Answer(200, headers, blob)
    if bounds[0] >= bounds[1]:
        return Answer(416, [(b"content-range", b"bytes */%d" % blob.size_bytes)], b"")
    headers.append((b"content-range", b"bytes %d-%d/%d" % (bounds[0], bounds[1] - 1, blob.size_bytes)))
    return Answer(206, headers, blob.part(*bounds))


FUNCTIONS = (
    BoxFunction("GET", "/d/1/{token}/download", "download_content", Kind.READ, _content, is_open=True),
    BoxFunction("GET", "/2.0/files/{id}/content", "download", Kind.META, _download),
)
