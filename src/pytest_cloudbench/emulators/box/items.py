"""Box's items as JSON: files and folders in their variants, and pages of them.

What may live here: converting the account's items to JSON. No state of its own, no routes.

Without ``fields`` an item has its standard keys; with it, only ``type``, ``id``, ``etag`` and those named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_cloudbench.emulators.box.answers import BoxError, bad_parameter, timestamp
from pytest_cloudbench.emulators.box.state import USER_ID, BoxState, ItemMeta
from pytest_cloudbench.emulators.http import parse_form
from pytest_cloudbench.emulators.nodes import File, Folder, Node, Version
from pytest_cloudbench.emulators.skin import Call

USER: Mapping[str, str] = {
    "type": "user", "id": USER_ID, "name": "Emulated User", "login": "emulated@example.com",
}  # fmt: skip
_TRASH_DAYS_S = 30 * 86_400
_ROLES = ["editor", "viewer", "previewer", "uploader", "previewer uploader", "viewer uploader", "co-owner"]
_EXTENSION_FREE = ""
_DEFAULT_LIMIT, _MAX_LIMIT, _MAX_OFFSET = 100, 1000, 10_000


def _mini_folder(state: BoxState, folder: Folder) -> dict[str, Any]:
    """A folder in its short form; the root has no etag."""
    if folder.parent is None:
        name = "Trash" if folder is state.trash else "All Files"
        folder_id = "1" if folder is state.trash else folder.id
        return {"type": "folder", "id": folder_id, "sequence_id": None, "etag": None, "name": name}
    etag = str(state.meta(folder).etag)
    return {"type": "folder", "id": folder.id, "sequence_id": etag, "etag": etag, "name": folder.name}


def mini(state: BoxState, node: Node, version: Version | None = None) -> dict[str, Any]:
    """An item in its short form."""
    if isinstance(node, Folder):
        return _mini_folder(state, node)
    assert isinstance(node, File)
    seen = version or node.versions[-1]
    etag, sha1 = str(state.meta(node).etag), seen.blob.hash_hex
    return {
        "type": "file",
        "id": node.id,
        "file_version": {"type": "file_version", "id": seen.rev, "sha1": sha1},
        "sequence_id": etag,
        "etag": etag,
        "sha1": sha1,
        "name": node.name,
    }


def _common(state: BoxState, node: Node, meta: ItemMeta, size_bytes: int) -> dict[str, Any]:
    """What files and folders have in common, in the standard form."""
    parent, trashed_s = state.place(node)
    above: list[dict[str, Any]] = []
    folder = parent
    while folder is not None:
        above.append(_mini_folder(state, folder))
        folder = folder.parent
    above.reverse()
    is_root = parent is None
    return {
        "description": meta.description,
        "size": size_bytes,
        "path_collection": {"total_count": len(above), "entries": above},
        "created_at": None if is_root else timestamp(meta.created_s),
        "modified_at": None if is_root else timestamp(meta.modified_s),
        "trashed_at": timestamp(trashed_s),
        "purged_at": timestamp(None if trashed_s is None else trashed_s + _TRASH_DAYS_S),
        "content_created_at": None if is_root else timestamp(meta.content_created_s),
        "content_modified_at": None if is_root else timestamp(meta.content_modified_s),
        "created_by": {"type": "user", "id": "", "name": "", "login": ""} if is_root else USER,
        "modified_by": USER,
        "owned_by": USER,
        "shared_link": _shared_link(state, node, meta),
        "parent": None if parent is None else above[-1],
        "item_status": "trashed" if above and above[0]["id"] == "1" else "active",
    }


def _shared_link(state: BoxState, node: Node, meta: ItemMeta) -> dict[str, Any] | None:
    """An item's own link; None if it has none."""
    link = meta.link
    if link is None:
        return None
    is_file = isinstance(node, File)
    ending = f".{node.name.rpartition('.')[2]}" if "." in node.name else ""
    home = "https://app.box.com"
    vanity = f"{home}/v/{link.vanity_name}" if link.vanity_name else None
    right = "can_edit" if link.can_edit else "can_download" if link.can_download else "can_preview"
    return {
        "url": f"{home}/s/{link.token}",
        "download_url": f"{home}/shared/static/{link.token}{ending}" if is_file and link.can_download else None,
        "vanity_url": vanity,
        "vanity_name": link.vanity_name,
        "effective_access": link.access,
        "effective_permission": right,
        "is_password_enabled": link.password is not None,
        "unshared_at": timestamp(link.unshared_s),
        "download_count": link.downloads,
        "preview_count": 0,
        "access": link.access,
        "permissions": {"can_preview": True, "can_download": link.can_download, "can_edit": link.can_edit},
    }


def _extra(state: BoxState, node: Node) -> dict[str, Callable[[], Any]]:
    """Keys that an answer has only if they were asked for."""
    meta = state.meta(node)
    rights = dict.fromkeys(
        ("can_download", "can_upload", "can_rename", "can_delete", "can_share", "can_invite_collaborator",
         "can_set_share_access"), True,
    )  # fmt: skip
    found: dict[str, Callable[[], Any]] = {
        "is_externally_owned": lambda: False,
        "has_collaborations": lambda: any(each["item"]["id"] == node.id for each in state.collaborations.values()),
        "allowed_invitee_roles": lambda: _ROLES,
        "is_accessible_via_shared_link": lambda: meta.link is not None,
        "watermark_info": lambda: {"is_watermarked": False},
        "classification": lambda: None,
        "metadata": lambda: {},
        "is_associated_with_app_item": lambda: False,
    }
    if meta.tags:  # the specification has no empty list of them
        found["tags"] = lambda: meta.tags
    if isinstance(node, Folder):
        return found | {
            "permissions": lambda: rights,
            "sync_state": lambda: "not_synced",
            "can_non_owners_invite": lambda: True,
            "can_non_owners_view_collaborators": lambda: True,
            "is_collaboration_restricted_to_enterprise": lambda: False,
            "allowed_shared_link_access_levels": lambda: ["collaborators", "open", "company"],
            "folder_upload_email": lambda: None,
        }
    assert isinstance(node, File)
    annotating = ("can_annotate", "can_comment", "can_preview", "can_view_annotations_all", "can_view_annotations_self")
    return found | {
        "permissions": lambda: rights | dict.fromkeys(annotating, True),
        "version_number": lambda: str(len(node.versions) - node.born),
        "comment_count": lambda: sum(each["item"]["id"] == node.id for each in state.comments.values()),
        "extension": lambda: node.name.rpartition(".")[2] if "." in node.name else _EXTENSION_FREE,
        "is_package": lambda: False,
        "lock": lambda: _lock(state, meta),
        "expires_at": lambda: None,
        "disposition_at": lambda: None,
        "representations": lambda: {"entries": []},
        "uploader_display_name": lambda: USER["name"],
        "shared_link_permission_options": lambda: ["can_preview", "can_download", "can_edit"],
    }


def _lock(state: BoxState, meta: ItemMeta) -> dict[str, Any] | None:
    """A file's lock; None if it has none, or if it has expired."""
    lock = meta.lock
    if lock is None or (lock.expires_s is not None and lock.expires_s <= state.clock.now_s()):
        return None
    shown = {
        "type": "lock", "id": lock.id, "created_by": USER, "created_at": timestamp(lock.created_s),
        "is_download_prevented": lock.prevents_download, "app_type": None,
    }  # fmt: skip
    return shown if lock.expires_s is None else {**shown, "expired_at": timestamp(lock.expires_s)}


def _picked(state: BoxState, node: Node, whole: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    if names is None:
        return whole
    picked = {key: whole[key] for key in ("type", "id", "etag")}
    more: dict[str, Callable[[], Any]] | None = None
    for name in names:
        if name in whole:
            picked[name] = whole[name]
        elif name and name not in picked:
            more = _extra(state, node) if more is None else more
            if name in more:
                picked[name] = more[name]()
    return picked


def file_item(
    state: BoxState, file: File, version: Version | None, names: Sequence[str] | None = None
) -> dict[str, Any]:
    """A file with one of its versions, the newest by default."""
    seen = version or file.versions[-1]
    whole = mini(state, file, seen) | _common(state, file, state.meta(file), seen.blob.size_bytes)
    return _picked(state, file, whole, names)


def folder_item(
    state: BoxState,
    folder: Folder,
    now_s: float,
    names: Sequence[str] | None = None,
    *,
    contents: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A folder; ``contents`` are the parameters of the page of items to include, None for no such page."""
    size_bytes = sum(node.versions[-1].blob.size_bytes for node in folder.below() if isinstance(node, File))
    whole = mini(state, folder) | _common(state, folder, state.meta(folder), size_bytes) | {"folder_upload_email": None}
    if contents is not None and (names is None or "item_collection" in names):
        whole["item_collection"] = page(state, children(state, folder, now_s), contents, now_s, None)
    return _picked(state, folder, whole, names)


def entry(state: BoxState, node: Node, now_s: float, names: Sequence[str] | None = None) -> dict[str, Any]:
    """A file or a folder in its standard form."""
    if isinstance(node, Folder):
        return folder_item(state, node, now_s, names)
    assert isinstance(node, File)
    return file_item(state, node, node.seen(now_s), names)


def version_item(state: BoxState, file: File, version: Version, names: Sequence[str] | None = None) -> dict[str, Any]:
    """A version of a file."""
    at, trashed_s = timestamp(version.server_s), state.meta(file).trashed_versions.get(version.rev)
    whole = {
        "type": "file_version", "id": version.rev, "sha1": version.blob.hash_hex, "name": file.name,
        "size": version.blob.size_bytes, "uploader_display_name": USER["name"], "created_at": at, "modified_at": at,
        "modified_by": USER, "trashed_at": timestamp(trashed_s), "trashed_by": None if trashed_s is None else USER,
        "restored_at": None, "restored_by": None, "purged_at": None,
        "version_number": str(file.versions.index(version) - file.born + 1),
    }  # fmt: skip
    if names is None:
        return {key: value for key, value in whole.items() if value is not None or key.endswith("_at")}
    return {key: whole[key] for key in ("type", "id", *names) if key in whole}


def conflict(state: BoxState, node: Node, *, as_list: bool) -> BoxError:
    """The name is taken: the answer has a list of items if a folder was to be made, otherwise one item."""
    found = mini(state, node)
    return BoxError(409, "item_name_in_use", context={"conflicts": [found] if as_list else found})


# -------------------------------------------------------------------- pages


def chosen(query: Mapping[str, str]) -> Sequence[str] | None:
    """Returns the keys that a request wants to see; None for the standard ones."""
    return [name.strip() for name in query["fields"].split(",")] if query.get("fields") else None


def number_of(query: Mapping[str, str], name: str, default: int) -> int:
    """Returns a number of the query. Raises BoxError."""
    text = query.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit():
        raise BoxError(400, f"invalid_{name}")
    return int(text)


def children(state: BoxState, folder: Folder, now_s: float) -> list[Node]:
    """Returns what listings see in a folder."""
    nodes = (*folder.nodes(), *state.store.fading(folder, now_s))
    return [node for node in nodes if isinstance(node, Folder) or (isinstance(node, File) and node.listed(now_s))]


def _order(state: BoxState, by: str) -> Callable[[Node], Any]:
    if by == "id":
        return lambda node: int(node.id)
    if by == "date":
        return lambda node: (state.meta(node).modified_s, node.name.lower())
    if by == "size":
        return lambda node: (node.versions[-1].blob.size_bytes if isinstance(node, File) else 0, node.name.lower())
    return lambda node: node.name.lower()


def page(
    state: BoxState, nodes: list[Node], query: Mapping[str, str], now_s: float, names: Sequence[str] | None
) -> dict[str, Any]:
    """One page of items, folders first. By offset, or by a marker, which survives changes between pages."""
    limit = min(number_of(query, "limit", _DEFAULT_LIMIT), _MAX_LIMIT)
    by, direction = query.get("sort", "name"), query.get("direction", "ASC").upper()
    if by not in ("id", "name", "date", "size"):
        raise bad_parameter("sort", f"Invalid value '{by}'.")
    if direction not in ("ASC", "DESC"):
        raise bad_parameter("direction", f"Invalid value '{direction}'.")

    def shown(node: Node) -> dict[str, Any]:
        version = node.listed(now_s) if isinstance(node, File) else None
        if names is None:
            return mini(state, node, version)
        return file_item(state, node, version, names) if isinstance(node, File) else entry(state, node, now_s, names)

    order = [{"by": "type", "direction": "ASC"}, {"by": by, "direction": direction}]
    if query.get("usemarker", "").lower() == "true":
        after = _marked(query.get("marker", ""))
        ranked = sorted((isinstance(node, File), int(node.id), node) for node in nodes)
        left = [(rank, node) for *rank, node in ranked if rank > after]
        found: dict[str, Any] = {"entries": [shown(node) for _, node in left[:limit]], "limit": limit}
        if len(left) > limit:
            found["next_marker"] = (
                f"{int(left[limit - 1][0][0])}x{left[limit - 1][0][1]:x}" if limit else query.get("marker", "")
            )
        return found | {"order": [order[0], {"by": "id", "direction": "ASC"}]}
    offset = number_of(query, "offset", 0)
    if offset > _MAX_OFFSET:
        raise BoxError(400, "invalid_offset")
    nodes.sort(key=_order(state, by), reverse=direction == "DESC")
    nodes.sort(key=lambda node: isinstance(node, File))
    entries = [shown(node) for node in nodes[offset : offset + limit]]
    return {"total_count": len(nodes), "entries": entries, "offset": offset, "limit": limit, "order": order}


def _marked(marker: str) -> list[int]:
    """Returns the place that a marker names."""
    if not marker:
        return [-1, 0]
    kind, _, number = marker.partition("x")
    try:
        return [int(kind), int(number, 16)]
    except ValueError:
        raise bad_parameter("marker", f"Invalid value '{marker}'.") from None


def query_of(call: Call) -> dict[str, str]:
    """Returns the fields of a request's query."""
    return parse_form(call.query) if call.query else {}
