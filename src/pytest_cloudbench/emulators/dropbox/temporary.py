"""Links that work for some hours without a token: one kind to download a file, one to upload a file once.

A link has the host to which the client sent its request. That is this process's address on loopback, or a real name for
clients that come through the proxy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pytest_cloudbench.emulators.dropbox.answers import answer_json, answer_text, entry_metadata, lookup_error
from pytest_cloudbench.emulators.dropbox.args import ArgError, read_path, struct
from pytest_cloudbench.emulators.dropbox.blocks import BlockWriter
from pytest_cloudbench.emulators.dropbox.state import Function, State, TemporaryLink
from pytest_cloudbench.emulators.dropbox.uploads import commit_arg, store_content
from pytest_cloudbench.emulators.http import answer_range
from pytest_cloudbench.emulators.nodes import StoreError
from pytest_cloudbench.emulators.skin import Answer, Call, Kind, Route

CONTENT_HOST = "uc-emulated.dl.dropboxusercontent.com"
"""The host of temporary links for clients that used a real name. The service has many such hosts."""
_UPLOAD_HOST = "content.dropboxapi.com"
_LIFE_S = 4 * 3600.0
_MIN_LIFE_S = 60.0
_UPLOAD_TYPES = (b"application/octet-stream", b"text/plain")


def _check_duration(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgError("expected float")
    if not _MIN_LIFE_S <= value <= _LIFE_S:
        raise ArgError(f"{value} is not within range {_MIN_LIFE_S:g} to {_LIFE_S:g}")
    return float(value)


_get_link = struct(path=read_path)
_get_upload_link = struct(commit_info=commit_arg, duration=(_check_duration, _LIFE_S))


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, without resolving names."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_url(call: Call, real_name: str) -> str:
    host = call.headers.get(b"host", b"").decode("latin-1")
    try:
        is_own = is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        is_own = False
    return f"https://{host if is_own else real_name}"


def _run_get_link(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    try:
        entry, _ = state.tree.find_file(arg["path"], call.now_s)
    except StoreError as error:
        raise lookup_error(error) from error
    token = state.tree.token("", 160)
    source = arg["path"] if arg["path"].startswith("rev:") else entry.node.id
    state.temporary[token] = TemporaryLink(call.now_s + _LIFE_S, source=source)
    file_fields = entry_metadata(entry)
    del file_fields[".tag"]
    return {"metadata": file_fields, "link": f"{_host_url(call, CONTENT_HOST)}/cd/0/get/{token}/file"}


def _run_get_upload_link(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    token = state.tree.token("", 40)
    state.temporary[token] = TemporaryLink(call.now_s + arg["duration"], commit=arg["commit_info"])
    return {"link": f"{_host_url(call, _UPLOAD_HOST)}/apitul/1/{token}"}


def link_routes(state: State) -> list[tuple[str, str, Route]]:
    """Return the routes of the links, which need no token."""

    def download(call: Call) -> Answer:
        link = state.temporary.get(call.parameters["token"])
        if link is None or link.commit is not None:
            return answer_text(404, "Not Found")
        if link.ends_s <= call.now_s:
            return answer_text(410, "Gone")
        try:
            _, version = state.tree.find_file(link.source, call.now_s)
        except StoreError:
            return answer_text(404, "Not Found")
        headers = [(b"content-type", b"application/binary"), (b"accept-ranges", b"bytes")]
        return answer_range(call, headers, version.blob)

    def upload(call: Call) -> Answer:
        link = state.temporary.get(call.parameters["token"])
        if call.headers.get(b"content-type", b"").partition(b";")[0] not in _UPLOAD_TYPES:
            return answer_text(400, "Content-Type must be application/octet-stream or text/plain")
        if link is None or link.commit is None:
            return answer_text(409, "Conflict")
        if link.is_used or link.ends_s <= call.now_s:
            return answer_text(410, "Gone")
        try:
            store_content(state, link.commit, call.body, call.now_s, call.damage)
        except StoreError:
            return answer_text(409, "Conflict")
        link.is_used = True
        return answer_json({"content-hash": call.body.hash_hex})

    return [
        ("GET", "/cd/0/get/{token}/file", Route("temporary_link", Kind.READ, download)),
        ("POST", "/apitul/1/{token}", Route("temporary_upload_link", Kind.WRITE, upload, sink=lambda _: BlockWriter())),
    ]


FUNCTIONS: Mapping[str, Function] = {
    "files/get_temporary_link": Function(Kind.META, "rpc", _get_link, _run_get_link),
    "files/get_temporary_upload_link": Function(Kind.META, "rpc", _get_upload_link, _run_get_upload_link),
}
