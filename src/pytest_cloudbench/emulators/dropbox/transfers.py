"""Downloading a folder as one ZIP file, and saving the content of a URL as a file.

The emulator never leaves loopback. A URL on any other host fails with the service's own error for a host that cannot be
reached.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import zipfile
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from time import gmtime
from typing import Any, cast
from urllib.parse import urlsplit

from pytest_cloudbench.emulators.blob import PieceWriter
from pytest_cloudbench.emulators.dropbox.answers import (
    ApiError,
    file_metadata,
    folder_metadata,
    lookup_error,
    nest_tags,
    write_tags,
)
from pytest_cloudbench.emulators.dropbox.args import ArgError, create_path, read_path, string, struct
from pytest_cloudbench.emulators.dropbox.blocks import BlockBlob, BlockWriter
from pytest_cloudbench.emulators.dropbox.state import Function, State
from pytest_cloudbench.emulators.dropbox.temporary import is_loopback
from pytest_cloudbench.emulators.nodes import StoreError
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

_MAX_ZIP_BYTES, _MAX_ZIP_FILES = 20 * 1024**3, 10_000
_MAX_SAVED_BYTES = 1024**3
_PIECE_BYTES = 1024 * 1024
_FETCH_S = 15 * 60.0
"""A transfer must be complete within 15 minutes, according to the specification."""
_FIRST_YEAR = 1980
"""The earliest time that a ZIP file can hold."""


def _check_saved_path(value: Any) -> str:
    path: str = create_path(value)
    if not path.startswith("/"):
        raise ArgError(f"{path!r} did not match pattern '/(.|[\\r\\n])*'")
    return path


_download_zip = struct(path=read_path)
_save_url = struct(path=_check_saved_path, url=string())
_poll = struct(async_job_id=string(minimum=1))


class _ZipOutput(PieceWriter):
    """The output of a ZIP file."""

    def write(self, piece: bytes | memoryview) -> int:
        self.feed(piece)
        return len(piece)

    def flush(self) -> None:
        return


def _run_zip(state: State, arg: dict[str, Any], call: Call) -> Answer:
    """Answer with a folder and all its content as an archive. Raises ApiError if it is too large."""
    try:
        folder = state.tree.find_folder(arg["path"], call.now_s)
    except StoreError as error:
        raise lookup_error(error) from error
    prefix_length = len(state.tree.paths.path(folder)) - len(folder.name)
    entries = list(state.tree.paths.entries(folder, call.now_s, recursive=True))
    if len(entries) > _MAX_ZIP_FILES:
        raise ApiError("too_many_files")
    if sum(entry.version.blob.size_bytes for entry in entries if entry.version) > _MAX_ZIP_BYTES:
        raise ApiError("too_large")
    file = _ZipOutput()
    with zipfile.ZipFile(cast(Any, file), "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(f"{folder.name or 'Dropbox'}/"), b"")
        for entry in entries:
            name = entry.path[prefix_length:] if folder.name else f"Dropbox{entry.path}"
            if entry.version is None:
                archive.writestr(zipfile.ZipInfo(f"{name}/"), b"")
                continue
            time = gmtime(entry.version.client_s)[:6]
            info = zipfile.ZipInfo(name, time if time[0] >= _FIRST_YEAR else (_FIRST_YEAR, 1, 1, 0, 0, 0))
            info.file_size = entry.version.blob.size_bytes  # decides whether the entry's sizes need 64 bits
            with archive.open(info, "w") as output:
                for chunk in entry.version.blob.chunks():
                    output.write(chunk)
    result = {"metadata": folder_metadata(state.tree.newest_entry(folder))}
    headers = [(b"content-type", b"application/zip"), (b"dropbox-api-result", json.dumps(result).encode())]
    return Answer(200, headers, file.finish())


def _run_save_url(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    try:
        parts = urlsplit(arg["url"])
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ApiError("invalid_url")
    try:
        state.tree.check_target(arg["path"])
    except StoreError as error:
        raise ApiError("path", *write_tags(error)) from error
    job_id = state.tree.token("dbjid:", 86)
    state.saves[job_id] = asyncio.ensure_future(_save_url_content(state, arg["path"], arg["url"]))
    return {".tag": "async_job_id", "async_job_id": job_id}


async def _save_url_content(state: State, path: str, url: str) -> dict[str, Any]:
    """Save the content of a URL, and return the job's result as its check reports it."""
    try:
        content = await asyncio.to_thread(_fetch_url, url)
    except FileNotFoundError:
        return {".tag": "failed", "failed": {".tag": "not_found"}}
    except (OSError, HTTPException, ValueError):
        return {".tag": "failed", "failed": {".tag": "download_failed"}}
    try:
        stored_path, node, version, _ = state.tree.put(path, content, state.clock.now_s(), autorename=True)
    except StoreError as error:
        return {".tag": "failed", "failed": nest_tags("path", *write_tags(error))}
    assert version is not None
    return {".tag": "complete", **file_metadata(stored_path, node.id, version)}


def _fetch_url(url: str) -> BlockBlob:
    """Return the content of an address on loopback. Raises OSError, HTTPException and ValueError."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not is_loopback(host):
        raise ConnectionError("not on loopback")
    address = "127.0.0.1" if host == "localhost" else host  # regardless of what the name resolves to here
    connection = HTTPConnection(address, parts.port, timeout=_FETCH_S)
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # loopback reaches no other machine
        connection = HTTPSConnection(address, parts.port, timeout=_FETCH_S, context=context)
    try:
        connection.request("GET", f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}")
        answer = connection.getresponse()
        if answer.status in (404, 410):
            raise FileNotFoundError(url)
        if answer.status != 200:  # a redirect may lead anywhere
            raise ConnectionError(str(answer.status))
        writer = BlockWriter()
        while writer.size_bytes <= _MAX_SAVED_BYTES and (piece := answer.read(_PIECE_BYTES)):
            writer.feed(piece)
        if writer.size_bytes > _MAX_SAVED_BYTES or answer.length:
            raise ConnectionError("too long, or not all of it")
        return writer.finish()
    finally:
        connection.close()


def _run_save_status(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    job = state.saves.get(arg["async_job_id"])
    if job is None:
        raise ApiError("invalid_async_job_id")
    return job.result() if job.done() else {".tag": "in_progress"}


FUNCTIONS: Mapping[str, Function] = {
    "files/download_zip": Function(Kind.READ, "download", _download_zip, _run_zip),
    "files/save_url": Function(Kind.WRITE, "rpc", _save_url, _run_save_url),
    "files/save_url/check_job_status": Function(Kind.META, "rpc", _poll, _run_save_status),
}
