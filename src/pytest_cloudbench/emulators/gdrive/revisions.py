"""``revisions`` of the API."""

from __future__ import annotations

from typing import Any

from pytest_cloudbench.emulators.gdrive.answers import DriveError, answer_no_content, format_time
from pytest_cloudbench.emulators.gdrive.requests import (
    answer_list,
    answer_selected,
    find_named_node,
    query_params,
    read_json_body,
    seen_s,
)
from pytest_cloudbench.emulators.gdrive.selection import Selection
from pytest_cloudbench.emulators.gdrive.state import APPS, DriveState, drive_meta, is_document
from pytest_cloudbench.emulators.nodes import File, Version
from pytest_cloudbench.emulators.skin import Answer, Call

_REVISION: Selection = {"kind": None, "id": None, "mimeType": None, "modifiedTime": None}
_REVISIONS: Selection = {"kind": None, "nextPageToken": None, "revisions": _REVISION}


def _list_visible_revisions(state: DriveState, call: Call) -> tuple[File, list[tuple[str, Version]]]:
    """Return a file and its visible revisions with their ids, which are numbers for Google's own documents."""
    node = find_named_node(state, call)
    if not isinstance(node, File):
        raise DriveError(403, "revisionsNotSupported", "The file does not support revisions.")
    visible = [version for version in node.versions if version.visible_s <= seen_s(call)]
    if is_document(drive_meta(node).mime):
        return node, [(str(number), version) for number, version in enumerate(visible, 1)]
    return node, [(version.rev, version) for version in visible]


def _find_revision(state: DriveState, call: Call) -> tuple[File, str, Version]:
    node, versions = _list_visible_revisions(state, call)
    requested_id = call.parameters["revision"]
    for revision_id, version in versions:
        if requested_id in (revision_id, "head") and (requested_id != "head" or version is versions[-1][1]):
            return node, revision_id, version
    raise DriveError(404, "notFound", f"Revision not found: {requested_id}.", "revisionId")


def _describe_revision(state: DriveState, node: File, revision_id: str, version: Version) -> dict[str, Any]:
    meta = drive_meta(node)
    value: dict[str, Any] = {
        "kind": "drive#revision", "id": revision_id, "mimeType": meta.mime,
        "modifiedTime": format_time(version.client_s), "keepForever": revision_id in meta.kept_revisions,
        "published": False, "lastModifyingUser": state.user,
    }  # fmt: skip
    if not meta.mime.startswith(APPS):
        value |= {"size": str(version.blob.size_bytes), "md5Checksum": version.blob.hash_hex}
        value["originalFilename"] = meta.client_properties.get("originalFilename", node.name)
    return value


def list_revisions(state: DriveState, call: Call) -> Answer:
    """Answer ``revisions.list``, the oldest first."""
    node, versions = _list_visible_revisions(state, call)
    items = [_describe_revision(state, node, revision_id, version) for revision_id, version in versions]
    return answer_list(call, "revisions", items, "drive#revisionList", _REVISIONS)


def get_revision(state: DriveState, call: Call) -> Answer:
    """Answer ``revisions.get`` with the metadata of a revision, or with its content."""
    node, revision_id, version = _find_revision(state, call)
    params = query_params(call)
    if params.get("alt") == "media":
        if drive_meta(node).mime.startswith(APPS):
            raise DriveError(403, "fileNotDownloadable", "Only files with binary content can be downloaded.", "alt")
        return Answer(200, [(b"content-type", drive_meta(node).mime.encode("latin-1", "replace"))], version.blob)
    return answer_selected(_describe_revision(state, node, revision_id, version), params, _REVISION)


def update_revision(state: DriveState, call: Call) -> Answer:
    """Answer ``revisions.update``, which can keep a revision forever."""
    node, revision_id, version = _find_revision(state, call)
    if read_json_body(call).get("keepForever"):
        drive_meta(node).kept_revisions.add(revision_id)
    else:
        drive_meta(node).kept_revisions.discard(revision_id)
    return answer_selected(_describe_revision(state, node, revision_id, version), query_params(call), _REVISION)


def delete_revision(state: DriveState, call: Call) -> Answer:
    """Answer ``revisions.delete``. The only revision of a file cannot be deleted."""
    node, _, version = _find_revision(state, call)
    if len(node.versions) == 1 or is_document(drive_meta(node).mime):
        raise DriveError(403, "cannotDeleteOnlyRevision", "The revision cannot be deleted.", "revisionId")
    if version is node.versions[-1]:
        state.store.used_bytes += node.versions[-2].blob.size_bytes - version.blob.size_bytes
    node.remove_version(version)
    state.log_change(node, call.now_s)
    return answer_no_content()
