"""Box's items as JSON: files and folders in their variants, and pages of them.

Without ``fields`` an item has its standard keys. With it, an item has only ``type``, ``id``, ``etag`` and the requested
keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from pytest_cloudbench.emulators.box.answers import BoxError, bad_parameter, timestamp
from pytest_cloudbench.emulators.box.state import BoxState, ItemMeta
from pytest_cloudbench.emulators.http import parse_form
from pytest_cloudbench.emulators.nodes import File, Folder, Node, Version
from pytest_cloudbench.emulators.skin import Call

_TRASH_DAYS_S = 30 * 86_400
_ROLES = ["editor", "viewer", "previewer", "uploader", "previewer uploader", "viewer uploader", "co-owner"]
_EXTENSION_FREE = ""
_DEFAULT_LIMIT, _MAX_LIMIT, _MAX_OFFSET = 100, 1000, 10_000


def _mini_folder(state: BoxState, folder: Folder) -> dict[str, Any]:
    """Return a folder in its short form. The root has no etag."""
    if folder.parent is None:
        name = "Trash" if folder is state.trash else "All Files"
        folder_id = "1" if folder is state.trash else folder.id
        return {"type": "folder", "id": folder_id, "sequence_id": None, "etag": None, "name": name}
    etag = str(state.meta(folder).etag)
    return {"type": "folder", "id": folder.id, "sequence_id": etag, "etag": etag, "name": folder.name}


def mini_item(state: BoxState, node: Node, version: Version | None = None) -> dict[str, Any]:
    """Return an item in its short form."""
    if isinstance(node, Folder):
        return _mini_folder(state, node)
    assert isinstance(node, File)
    visible = version or node.versions[-1]
    etag, sha1 = str(state.changes(node, visible).etag), visible.blob.hash_hex
    return {
        "type": "file",
        "id": node.id,
        "file_version": {"type": "file_version", "id": visible.rev, "sha1": sha1},
        "sequence_id": etag,
        "etag": etag,
        "sha1": sha1,
        "name": node.name,
    }


def _common_fields(state: BoxState, node: Node, size_bytes: int, version: Version | None = None) -> dict[str, Any]:
    """Return the keys that files and folders share in the standard form."""
    meta, changes = state.meta(node), state.changes(node, version)
    parent, trashed_s = state.visible_parent(node)
    ancestors: list[dict[str, Any]] = []
    folder = parent
    while folder is not None:
        ancestors.append(_mini_folder(state, folder))
        folder = folder.parent
    ancestors.reverse()
    is_root = parent is None
    return {
        "description": meta.description,
        "size": size_bytes,
        "path_collection": {"total_count": len(ancestors), "entries": ancestors},
        "created_at": None if is_root else timestamp(meta.created_s),
        "modified_at": None if is_root else timestamp(changes.modified_s),
        "trashed_at": timestamp(trashed_s),
        "purged_at": timestamp(None if trashed_s is None else trashed_s + _TRASH_DAYS_S),
        "content_created_at": None if is_root else timestamp(meta.content_created_s),
        "content_modified_at": None if is_root else timestamp(changes.content_modified_s),
        "created_by": {"type": "user", "id": "", "name": "", "login": ""} if is_root else state.user,
        "modified_by": state.user,
        "owned_by": state.user,
        "shared_link": _link_item(state, node, meta),
        "parent": None if parent is None else ancestors[-1],
        "item_status": "trashed" if ancestors and ancestors[0]["id"] == "1" else "active",
    }


def _link_item(state: BoxState, node: Node, meta: ItemMeta) -> dict[str, Any] | None:
    """Return an item's own link, or None."""
    link = meta.link
    if link is None:
        return None
    is_file = isinstance(node, File)
    extension = f".{node.name.rpartition('.')[2]}" if "." in node.name else ""
    home = "https://app.box.com"
    vanity = f"{home}/v/{link.vanity_name}" if link.vanity_name else None
    permission = "can_edit" if link.can_edit else "can_download" if link.can_download else "can_preview"
    return {
        "url": f"{home}/s/{link.token}",
        "download_url": f"{home}/shared/static/{link.token}{extension}" if is_file and link.can_download else None,
        "vanity_url": vanity,
        "vanity_name": link.vanity_name,
        "effective_access": link.access,
        "effective_permission": permission,
        "is_password_enabled": link.password is not None,
        "unshared_at": timestamp(link.unshared_s),
        "download_count": link.downloads,
        "preview_count": 0,
        "access": link.access,
        "permissions": {"can_preview": True, "can_download": link.can_download, "can_edit": link.can_edit},
    }


def _extra_fields(state: BoxState, node: Node, version: Version | None) -> dict[str, Callable[[], Any]]:
    """Return functions for the keys that an answer has only on request."""
    meta = state.meta(node)
    rights = dict.fromkeys(
        ("can_download", "can_upload", "can_rename", "can_delete", "can_share", "can_invite_collaborator",
         "can_set_share_access"), True,
    )  # fmt: skip
    makers: dict[str, Callable[[], Any]] = {
        "is_externally_owned": lambda: False,
        "has_collaborations": lambda: any(entry["item"]["id"] == node.id for entry in state.collaborations.values()),
        "allowed_invitee_roles": lambda: _ROLES,
        "is_accessible_via_shared_link": lambda: meta.link is not None,
        "watermark_info": lambda: {"is_watermarked": False},
        "classification": lambda: None,
        "metadata": lambda: {},
        "is_associated_with_app_item": lambda: False,
    }
    if meta.tags:  # the specification has no empty list of tags
        makers["tags"] = lambda: meta.tags
    if isinstance(node, Folder):
        return makers | {
            "permissions": lambda: rights,
            "sync_state": lambda: "not_synced",
            "can_non_owners_invite": lambda: True,
            "can_non_owners_view_collaborators": lambda: True,
            "is_collaboration_restricted_to_enterprise": lambda: False,
            "allowed_shared_link_access_levels": lambda: ["collaborators", "open", "company"],
            "folder_upload_email": lambda: None,
        }
    assert isinstance(node, File)
    assert version is not None
    annotation_rights = (
        "can_annotate",
        "can_comment",
        "can_preview",
        "can_view_annotations_all",
        "can_view_annotations_self",
    )
    return makers | {
        "permissions": lambda: rights | dict.fromkeys(annotation_rights, True),
        "version_number": lambda: str(node.versions.index(version) - node.born + 1),
        "comment_count": lambda: sum(entry["item"]["id"] == node.id for entry in state.comments.values()),
        "extension": lambda: node.name.rpartition(".")[2] if "." in node.name else _EXTENSION_FREE,
        "is_package": lambda: False,
        "lock": lambda: _lock_item(state, meta),
        "expires_at": lambda: None,
        "disposition_at": lambda: None,
        "representations": lambda: {"entries": []},
        "uploader_display_name": lambda: state.user["name"],
        "shared_link_permission_options": lambda: ["can_preview", "can_download", "can_edit"],
    }


def _lock_item(state: BoxState, meta: ItemMeta) -> dict[str, Any] | None:
    """Return the lock of a file, or None if it has none or the lock has expired."""
    lock = meta.lock
    if lock is None or (lock.expires_s is not None and lock.expires_s <= state.clock.now_s()):
        return None
    item = {
        "type": "lock", "id": lock.id, "created_by": state.user, "created_at": timestamp(lock.created_s),
        "is_download_prevented": lock.prevents_download, "app_type": None,
    }  # fmt: skip
    return item if lock.expires_s is None else {**item, "expired_at": timestamp(lock.expires_s)}


def _pick_fields(
    state: BoxState, node: Node, item: dict[str, Any], names: Sequence[str] | None, version: Version | None = None
) -> dict[str, Any]:
    if names is None:
        return item
    fields = {key: item[key] for key in ("type", "id", "etag")}
    extra: dict[str, Callable[[], Any]] | None = None
    for name in names:
        if name in item:
            fields[name] = item[name]
        elif name and name not in fields:
            extra = _extra_fields(state, node, version) if extra is None else extra
            if name in extra:
                fields[name] = extra[name]()
    return fields


def file_item(
    state: BoxState, file: File, version: Version | None, names: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return a file with one of its versions, by default the newest."""
    visible = version or file.versions[-1]
    item = mini_item(state, file, visible) | _common_fields(state, file, visible.blob.size_bytes, visible)
    return _pick_fields(state, file, item, names, visible)


def folder_item(
    state: BoxState,
    folder: Folder,
    now_s: float,
    names: Sequence[str] | None = None,
    *,
    contents: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a folder. ``contents`` are the parameters of the page of items to include, or None for no such page."""
    size_bytes = sum(node.versions[-1].blob.size_bytes for node in folder.below() if isinstance(node, File))
    item = mini_item(state, folder) | _common_fields(state, folder, size_bytes) | {"folder_upload_email": None}
    if contents is not None and (names is None or "item_collection" in names):
        item["item_collection"] = list_page(state, folder, contents, now_s, None)
    return _pick_fields(state, folder, item, names)


def standard_item(state: BoxState, node: Node, now_s: float, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a file or a folder in its standard form."""
    if isinstance(node, Folder):
        return folder_item(state, node, now_s, names)
    assert isinstance(node, File)
    return file_item(state, node, node.seen(now_s), names)


def version_item(state: BoxState, file: File, version: Version, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a version of a file."""
    user, time = state.user, timestamp(version.server_s)
    trashed_s = state.meta(file).trashed_versions.get(version.rev)
    item = {
        "type": "file_version", "id": version.rev, "sha1": version.blob.hash_hex, "name": file.name,
        "size": version.blob.size_bytes, "uploader_display_name": user["name"], "created_at": time, "modified_at": time,
        "modified_by": user, "trashed_at": timestamp(trashed_s), "trashed_by": None if trashed_s is None else user,
        "restored_at": None, "restored_by": None, "purged_at": None,
        "version_number": str(file.versions.index(version) - file.born + 1),
    }  # fmt: skip
    if names is None:
        return {key: value for key, value in item.items() if value is not None or key.endswith("_at")}
    return {key: item[key] for key in ("type", "id", *names) if key in item}


def name_conflict(state: BoxState, node: Node, *, as_list: bool) -> BoxError:
    """Return the error for a name that is in use. It holds a list of items for a new folder, otherwise one item."""
    item = mini_item(state, node)
    return BoxError(409, "item_name_in_use", context={"conflicts": [item] if as_list else item})


# -------------------------------------------------------------------- pages


def requested_fields(query: Mapping[str, str]) -> Sequence[str] | None:
    """Return the keys that a request asks for, or None for the standard ones."""
    return [name.strip() for name in query["fields"].split(",")] if query.get("fields") else None


def read_number(query: Mapping[str, str], name: str, default: int) -> int:
    """Return a number of the query. Raises BoxError."""
    text = query.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit():
        raise BoxError(400, f"invalid_{name}")
    return int(text)


def _is_listed(node: Node, now_s: float) -> bool:
    return not isinstance(node, File) or node.listed(now_s) is not None


def _rank_by_id(node: Node) -> tuple[bool, int]:
    return isinstance(node, File), int(node.id)


def _rank_by_name(node: Node) -> tuple[bool, str]:
    return isinstance(node, File), node.name.lower()


def _list_by_id(state: BoxState, folder: Folder, now_s: float, after: tuple[int, int]) -> Iterator[Node]:
    """Yield the items that listings see in a folder and that come after a type and id."""
    nodes: Iterator[Node] = folder.sorted_by(_rank_by_id).after(after)
    fading = [node for node in state.store.fading(folder, now_s) if _rank_by_id(node) > after]
    if fading:
        nodes = merge(nodes, sorted(fading, key=_rank_by_id), key=_rank_by_id)
    return (node for node in nodes if _is_listed(node, now_s))


def _list_sorted(state: BoxState, folder: Folder, now_s: float, by: str, is_descending: bool) -> Sequence[Node]:
    """Return the items that listings see in a folder, folders first."""
    if by == "name" and not is_descending and state.store.is_settled(now_s):
        return folder.sorted_by(_rank_by_name)
    fading = state.store.fading(folder, now_s)
    nodes = [node for node in (*folder.nodes(), *fading) if _is_listed(node, now_s)]
    nodes.sort(key=_sort_key(state, by, now_s), reverse=is_descending)
    nodes.sort(key=lambda node: isinstance(node, File))
    return nodes


def _listed_version(node: Node, now_s: float) -> Version | None:
    """Return the version of a file that listings see, or None for a folder and for a file that they do not see."""
    return node.listed(now_s) if isinstance(node, File) else None


def _sort_key(state: BoxState, by: str, now_s: float) -> Callable[[Node], Any]:
    if by == "id":
        return lambda node: int(node.id)
    if by == "date":
        return lambda node: (state.changes(node, _listed_version(node, now_s)).modified_s, node.name.lower())
    if by == "size":
        return lambda node: (
            version.blob.size_bytes if (version := _listed_version(node, now_s)) else 0,
            node.name.lower(),
        )
    return lambda node: node.name.lower()


def list_page(
    state: BoxState, folder: Folder, query: Mapping[str, str], now_s: float, names: Sequence[str] | None
) -> dict[str, Any]:
    """Return one page of the items in a folder, folders first.

    Pages are by offset, or by a marker, which survives changes between pages.
    """
    limit = min(read_number(query, "limit", _DEFAULT_LIMIT), _MAX_LIMIT)
    by, direction = query.get("sort", "name"), query.get("direction", "ASC").upper()
    if by not in ("id", "name", "date", "size"):
        raise bad_parameter("sort", f"Invalid value '{by}'.")
    if direction not in ("ASC", "DESC"):
        raise bad_parameter("direction", f"Invalid value '{direction}'.")

    def format_node(node: Node) -> dict[str, Any]:
        version = _listed_version(node, now_s)
        if names is None:
            return mini_item(state, node, version)
        return (
            file_item(state, node, version, names)
            if isinstance(node, File)
            else standard_item(state, node, now_s, names)
        )

    order = [{"by": "type", "direction": "ASC"}, {"by": by, "direction": direction}]
    if query.get("usemarker", "").lower() == "true":
        after = _parse_marker(query.get("marker", ""))
        nodes = list(islice(_list_by_id(state, folder, now_s, after), limit + 1))
        page: dict[str, Any] = {"entries": [format_node(node) for node in nodes[:limit]], "limit": limit}
        if len(nodes) > limit:
            is_file, number = _rank_by_id(nodes[limit - 1])
            page["next_marker"] = f"{int(is_file)}x{number:x}" if limit else query.get("marker", "")
        return page | {"order": [order[0], {"by": "id", "direction": "ASC"}]}
    offset = read_number(query, "offset", 0)
    if offset > _MAX_OFFSET:
        raise BoxError(400, "invalid_offset")
    children = _list_sorted(state, folder, now_s, by, direction == "DESC")
    entries = [format_node(node) for node in children[offset : offset + limit]]
    return {"total_count": len(children), "entries": entries, "offset": offset, "limit": limit, "order": order}


def _parse_marker(marker: str) -> tuple[int, int]:
    """Return the type and id of the item after which the page begins."""
    if not marker:
        return -1, 0
    kind, _, number = marker.partition("x")
    try:
        return int(kind), int(number, 16)
    except ValueError:
        raise bad_parameter("marker", f"Invalid value '{marker}'.") from None


def read_query(call: Call) -> dict[str, str]:
    """Return the fields of a request's query."""
    return parse_form(call.query) if call.query else {}
