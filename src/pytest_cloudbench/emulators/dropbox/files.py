"""Metadata, folders, delete, copy and move, downloads, revisions and restore.

Listings are in ``listing``, batches in ``batches``, uploads in ``uploads``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pytest_cloudbench.emulators.dropbox.answers import (
    ApiError,
    entry_metadata,
    file_metadata,
    folder_metadata,
    lookup_error,
    relocation_error,
    timestamp,
    write_tags,
)
from pytest_cloudbench.emulators.dropbox.args import (
    array,
    boolean,
    create_path,
    integer,
    optional,
    read_path,
    rev,
    revisions_path,
    string,
    struct,
    union,
    write_path,
)
from pytest_cloudbench.emulators.dropbox.state import Function, State
from pytest_cloudbench.emulators.http import answer_range
from pytest_cloudbench.emulators.nodes import StoreError
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

_template_filter = optional(union(filter_some=array(string(minimum=1), minimum=1)))
_get_metadata = struct(
    path=read_path,
    include_media_info=(boolean, False),
    include_deleted=(boolean, False),
    include_has_explicit_shared_members=(boolean, False),
    include_property_groups=(_template_filter, None),
)
_create_folder = struct(path=create_path, autorename=(boolean, False))
_relocation = struct(
    from_path=write_path,
    to_path=write_path,
    allow_shared_folder=(boolean, False),
    autorename=(boolean, False),
    allow_ownership_transfer=(boolean, False),
)
_download = struct(path=read_path, rev=(optional(rev), None))
_list_revisions = struct(
    path=revisions_path,
    mode=(union(path=None, id=None), ("path", None)),
    limit=(integer(1, 100), 10),
    before_rev=(optional(rev), None),
    include_restorable_info=(boolean, False),
)
_restore = struct(path=create_path, rev=rev)
_get_reference = struct(path=read_path)
_save_reference = struct(copy_reference=string(), path=create_path)
delete_arg = struct(path=write_path, parent_rev=(optional(rev), None))

_REFERENCE_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_REFERENCE_LENGTH = 22
_REFERENCE_LIFE_S = 30 * 365 * 86_400.0


def _run_get_metadata(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    try:
        return entry_metadata(state.tree.get(arg["path"], call.now_s, include_deleted=arg["include_deleted"]))
    except StoreError as error:
        raise lookup_error(error) from error


def make_folder(state: State, path: str, autorename: bool, now_s: float) -> dict[str, Any]:
    """Create a folder, and return its metadata without ``.tag``. Raises ApiError."""
    try:
        return folder_metadata(state.tree.create_folder(path, now_s, autorename=autorename))
    except StoreError as error:
        raise ApiError("path", *write_tags(error)) from error


def _run_create_folder(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return make_folder(state, arg["path"], arg["autorename"], call.now_s)


def _run_create_folder_v2(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return {"metadata": _run_create_folder(state, arg, call)}


def delete_entry(state: State, arg: dict[str, Any], now_s: float) -> dict[str, Any]:
    """Delete an entry, and return its last metadata with ``.tag``. Raises ApiError."""
    try:
        return entry_metadata(state.tree.delete(arg["path"], now_s, parent_rev=arg["parent_rev"] or ""))
    except StoreError as error:
        if error.reason.startswith("conflict"):
            raise ApiError("path_write", *write_tags(error)) from error
        raise lookup_error(error, "path_lookup") from error


def _run_delete(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return delete_entry(state, arg, call.now_s)


def _run_delete_v2(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return {"metadata": delete_entry(state, arg, call.now_s)}


def _run_permanently_delete(state: State, arg: dict[str, Any], call: Call) -> None:
    try:
        state.tree.purge(arg["path"], call.now_s, parent_rev=arg["parent_rev"] or "")
    except StoreError as error:
        if error.reason.startswith("conflict"):
            raise ApiError("path_write", *write_tags(error)) from error
        raise lookup_error(error, "path_lookup") from error


def relocate(state: State, verb: str, source: str, target: str, now_s: float, *, autorename: bool) -> dict[str, Any]:
    """Copy or move an entry, and return the result's metadata with ``.tag``. Raises ApiError."""
    operation = state.tree.copy if verb == "copy" else state.tree.move
    try:
        return entry_metadata(operation(source, target, now_s, autorename=autorename))
    except StoreError as error:
        raise relocation_error(error) from error


def _run_copy(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return relocate(state, "copy", arg["from_path"], arg["to_path"], call.now_s, autorename=arg["autorename"])


def _run_copy_v2(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return {"metadata": _run_copy(state, arg, call)}


def _run_move(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return relocate(state, "move", arg["from_path"], arg["to_path"], call.now_s, autorename=arg["autorename"])


def _run_move_v2(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return {"metadata": _run_move(state, arg, call)}


def _run_download(state: State, arg: dict[str, Any], call: Call) -> Answer:
    path = f"rev:{arg['rev']}" if arg["rev"] else arg["path"]
    try:
        entry, version = state.tree.find_file(path, call.now_s)
    except StoreError as error:
        raise lookup_error(error) from error
    etag = b'W/"%s"' % version.rev.encode()
    if etag in call.headers.get(b"if-none-match", b"").replace(b" ", b"").split(b","):
        return Answer(304, [(b"etag", etag)], b"")
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"dropbox-api-result", json.dumps(file_metadata(entry.path, entry.node.id, version)).encode()),
        (b"etag", etag),
        (b"accept-ranges", b"bytes"),
        (b"original-content-length", b"%d" % version.blob.size_bytes),
    ]
    return answer_range(call, headers, version.blob)


def _run_list_revisions(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    try:
        path, node_id, versions, deleted_s = state.tree.list_revisions(arg["path"], call.now_s)
    except StoreError as error:
        raise lookup_error(error) from error
    if arg["before_rev"] is not None:
        indexes = [index for index, version in enumerate(versions) if version.rev == arg["before_rev"]]
        if not indexes:
            raise ApiError("invalid_before_rev")
        versions = versions[indexes[0] + 1 :]
    result: dict[str, Any] = {
        "is_deleted": deleted_s is not None,
        "entries": [file_metadata(path, node_id, version) for version in versions[: arg["limit"]]],
        "has_more": len(versions) > arg["limit"],
    }
    if deleted_s is not None:
        result["server_deleted"] = timestamp(deleted_s)
    return result


def _run_restore(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    try:
        path, node, version, _ = state.tree.restore(arg["path"], arg["rev"], call.now_s)
        assert version is not None
        return file_metadata(path, node.id, version)
    except StoreError as error:
        if error.reason == "invalid_revision":
            raise ApiError("invalid_revision") from error
        if error.reason in ("insufficient_space", "disallowed_name") or "/" in error.reason:
            raise ApiError("path_write", *write_tags(error)) from error
        raise lookup_error(error, "path_lookup") from error


def _run_get_reference(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    try:
        entry = state.tree.get(arg["path"], call.now_s)
    except StoreError as error:
        raise lookup_error(error) from error
    reference = state.tree.token("", _REFERENCE_LENGTH)
    state.copy_references[reference] = arg["path"] if arg["path"].startswith("rev:") else entry.node.id
    expires = timestamp(call.now_s + _REFERENCE_LIFE_S)
    return {"metadata": entry_metadata(entry), "copy_reference": reference, "expires": expires}


def _run_save_reference(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    reference = arg["copy_reference"]
    if len(reference) != _REFERENCE_LENGTH or not _REFERENCE_LETTERS.issuperset(reference):
        raise ApiError("invalid_copy_reference")
    try:
        state.tree.check_target(arg["path"])
    except StoreError as error:
        raise ApiError("path", *write_tags(error)) from error
    source = state.copy_references.get(reference)
    try:
        if source is None:
            raise StoreError("not_found")
        return {"metadata": entry_metadata(state.tree.copy(source, arg["path"], call.now_s))}
    except StoreError as error:
        if error.reason.startswith("to/") or error.reason == "insufficient_space":
            tags = write_tags(StoreError(error.reason.removeprefix("to/")))
            raise ApiError("path", *tags) from error
        raise ApiError("not_found") from error


FUNCTIONS: Mapping[str, Function] = {
    "files/get_metadata": Function(Kind.META, "rpc", _get_metadata, _run_get_metadata),
    "files/create_folder": Function(Kind.WRITE, "rpc", _create_folder, _run_create_folder),
    "files/create_folder_v2": Function(Kind.WRITE, "rpc", _create_folder, _run_create_folder_v2),
    "files/delete": Function(Kind.WRITE, "rpc", delete_arg, _run_delete),
    "files/delete_v2": Function(Kind.WRITE, "rpc", delete_arg, _run_delete_v2),
    "files/permanently_delete": Function(Kind.WRITE, "rpc", delete_arg, _run_permanently_delete),
    "files/copy": Function(Kind.WRITE, "rpc", _relocation, _run_copy),
    "files/copy_v2": Function(Kind.WRITE, "rpc", _relocation, _run_copy_v2),
    "files/move": Function(Kind.WRITE, "rpc", _relocation, _run_move),
    "files/move_v2": Function(Kind.WRITE, "rpc", _relocation, _run_move_v2),
    "files/download": Function(Kind.READ, "download", _download, _run_download),
    "files/list_revisions": Function(Kind.META, "rpc", _list_revisions, _run_list_revisions),
    "files/restore": Function(Kind.WRITE, "rpc", _restore, _run_restore),
    "files/copy_reference/get": Function(Kind.META, "rpc", _get_reference, _run_get_reference),
    "files/copy_reference/save": Function(Kind.WRITE, "rpc", _save_reference, _run_save_reference),
}
