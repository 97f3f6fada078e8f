"""Shared links.

An expired link is still listed, and can be changed or revoked, but no longer opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

from pytest_cloudbench.emulators.accounts import display_name_of
from pytest_cloudbench.emulators.dropbox.account import TEAM, member_id
from pytest_cloudbench.emulators.dropbox.answers import ApiError, answer_text, lookup_error, timestamp
from pytest_cloudbench.emulators.dropbox.args import (
    boolean,
    create_path,
    optional,
    read_path,
    string,
    struct,
    union,
)
from pytest_cloudbench.emulators.dropbox.args import timestamp as timestamp_arg
from pytest_cloudbench.emulators.dropbox.state import Function, SharedLink, State
from pytest_cloudbench.emulators.http import parse_form
from pytest_cloudbench.emulators.nodes import File, Node, StoreError
from pytest_cloudbench.emulators.skin import Answer, Call, Kind, Route

_text = optional(string())
_flag = optional(boolean)
_audience = union(
    public=None, team=None, no_one=None, password=None, members=None, public_logged_in_only=None, other=None
)
_settings = struct(
    require_password=(_flag, None),
    link_password=(_text, None),
    expires=(optional(timestamp_arg), None),
    audience=(optional(_audience), None),
    access=(optional(union(viewer=None, editor=None, max=None, default=None, other=None)), None),
    requested_visibility=(optional(union(public=None, team_only=None, password=None)), None),
    allow_download=(_flag, None),
)
_create = struct(path=read_path, settings=(optional(_settings), None))
_create_v1 = struct(
    path=string(), short_url=(boolean, False), pending_upload=(optional(union(file=None, folder=None)), None)
)
_list = struct(path=(optional(read_path), None), cursor=(_text, None), direct_only=(_flag, None))
_metadata = struct(url=string(), path=(optional(create_path), None), link_password=(_text, None))
_revoke = struct(url=string())
_modify = struct(url=string(), settings=_settings, remove_expiration=(boolean, False))

_FORMS = ("/s/", "/sh/", "/scl/fi/", "/scl/fo/")
_HOSTS = ("dropbox.com", "www.dropbox.com")
_PREVIEWS: Mapping[str, str] = {
    **dict.fromkeys(("txt", "md", "csv", "log", "json", "py"), "text"),
    **dict.fromkeys(("doc", "docx", "odt", "rtf"), "document"),
    **dict.fromkeys(("jpg", "jpeg", "png", "gif", "bmp", "tiff"), "photo"),
    **dict.fromkeys(("mp4", "mov", "avi", "mkv"), "video"),
    **dict.fromkeys(("mp3", "wav", "flac", "ogg"), "audio"),
    "pdf": "pdf",
}
_LIST_PAGE = 100


def _link_permissions(state: State, link: SharedLink) -> dict[str, Any]:
    """Return what a link allows, and what the type of account lets its owner change."""
    business = state.account.type == "business"
    visibility = {".tag": link.visibility}
    return {
        "resolved_visibility": visibility,
        "requested_visibility": visibility,
        "can_revoke": True,
        "visibility_policies": [
            _visibility_policy("public", True),
            _visibility_policy("team_only", business),
            _visibility_policy("password", state.account.type != "basic"),
        ],
        "can_set_expiry": state.account.type != "basic",
        "can_remove_expiry": link.expires_s is not None,
        "can_set_password": state.account.type != "basic",
        "can_remove_password": link.password is not None,
        "can_use_extended_sharing_controls": state.account.type != "basic",
        "allow_download": link.allows_download,
        "can_allow_download": True,
        "can_disallow_download": business,
        "allow_comments": True,
        "team_restricts_comments": False,
        "link_access_level": {".tag": "viewer"},
        "audience_options": [
            _audience_option("public", True),
            _audience_option("team", business),
            _audience_option("no_one", True),
        ],
        "effective_audience": {".tag": {"team_only": "team"}.get(link.visibility, "public")},
        "require_password": link.password is not None,
    }


def _audience_option(name: str, allowed: bool) -> dict[str, Any]:
    option: dict[str, Any] = {"audience": {".tag": name}, "allowed": allowed}
    if not allowed:
        option["disallowed_reason"] = {".tag": "user_account_type"}
    return option


def _visibility_policy(name: str, allowed: bool) -> dict[str, Any]:
    policy: dict[str, Any] = {"policy": {".tag": name}, "resolved_policy": {".tag": name}, "allowed": allowed}
    if not allowed:
        policy["disallowed_reason"] = {".tag": "user_account_type"}
    return policy


def _describe_link(state: State, link: SharedLink, node: Node, now_s: float) -> dict[str, Any]:
    """Return the metadata of a link and of the file or folder that it leads to."""
    path, version = state.tree.paths.path(node), node.seen(now_s) if isinstance(node, File) else None
    result: dict[str, Any] = {
        ".tag": "file" if isinstance(node, File) else "folder",
        "url": link.url,
        "id": node.id,
        "name": node.name,
        "path_lower": path.lower(),
        "created_timestamp": timestamp(link.created_s),
        "link_permissions": _link_permissions(state, link),
    }
    if link.expires_s is not None:
        result["expires"] = timestamp(link.expires_s)
    if state.account.type == "business":
        person = {"display_name": display_name_of(state.address), "member_id": member_id(state)}
        result["team_member_info"] = {"team_info": TEAM, **person}
    if version is not None:
        result |= {
            "client_modified": timestamp(version.client_s),
            "server_modified": timestamp(version.server_s),
            "rev": version.rev,
            "size": version.blob.size_bytes,
            "preview_type": _PREVIEWS.get(node.name.rpartition(".")[2].lower(), "file"),
        }
    return result


def _find_target(state: State, link: SharedLink) -> Node | None:
    node = state.tree.store.by_id(link.node_id)
    return node if node is not None and node.deleted_s is None else None


def _read_visibility(settings: dict[str, Any]) -> str:
    """Return public, team_only or password, from the old and the new setting. Raises ApiError."""
    requested = (settings["requested_visibility"] or ("", None))[0]
    audience = (settings["audience"] or ("", None))[0]
    protected = requested == "password" or audience == "password" or bool(settings["require_password"])
    if protected and not settings["link_password"]:
        raise ApiError("settings_error", "invalid_settings")
    if settings["link_password"] or protected:
        return "password"
    return "team_only" if requested == "team_only" or audience in ("team", "members") else "public"


def _check_settings(state: State, settings: dict[str, Any]) -> str:
    visibility = _read_visibility(settings)
    account_type = state.account.type
    needs_paid_plan = settings["expires"] is not None or visibility == "password" or settings["allow_download"] is False
    if (account_type == "basic" and needs_paid_plan) or (account_type != "business" and visibility == "team_only"):
        raise ApiError("settings_error", "not_authorized")
    return visibility


def _run_create(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    """Make a link to a file or folder. Raises ApiError if it has one already."""
    try:
        node = state.tree.get(arg["path"], call.now_s).node
    except StoreError as error:
        raise lookup_error(error) from error
    settings = arg["settings"] or _settings({})
    visibility = _check_settings(state, settings)
    for link in state.links.values():
        if link.node_id == node.id:
            inside = {".tag": "metadata", "metadata": _describe_link(state, link, node, call.now_s)}
            failure = ApiError("shared_link_already_exists", "metadata")
            failure.error = {".tag": "shared_link_already_exists", "shared_link_already_exists": inside}
            raise failure
    form = "fi" if isinstance(node, File) else "fo"
    token, key = state.tree.token("", 21).lower(), state.tree.token("", 25).lower()
    url = f"https://www.dropbox.com/scl/{form}/{token}/{quote(node.name)}?rlkey={key}&dl=0"
    link = SharedLink(
        url, node.id, visibility, settings["link_password"], settings["expires"], call.now_s,
        settings["allow_download"] is not False,
    )  # fmt: skip
    state.links[_link_key(url)] = link
    return _describe_link(state, link, node, call.now_s)


def _run_create_v1(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    try:
        node = state.tree.get(arg["path"], call.now_s).node
    except StoreError as error:
        raise lookup_error(error) from error
    link = next((link for link in state.links.values() if link.node_id == node.id), None)
    url = link.url if link else _run_create(state, {"path": arg["path"], "settings": None}, call)["url"]
    return {
        "url": url,
        "path": state.tree.paths.path(node).lower(),
        "visibility": {".tag": link.visibility if link else "public"},
    }


def _run_list(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    """Return a page of all links, or of those that lead to a path."""
    pairs = [(link, node) for link in state.links.values() if (node := _find_target(state, link)) is not None]
    if arg["path"] is not None:
        try:
            target = state.tree.get(arg["path"], call.now_s).node
        except StoreError as error:
            raise lookup_error(error) from error
        pairs = [pair for pair in pairs if _is_link_for(state, pair[1], target, bool(arg["direct_only"]))]
    start = 0
    if arg["cursor"]:
        if not (arg["cursor"].isascii() and arg["cursor"].isdigit()):
            raise ApiError("reset")
        start = int(arg["cursor"])
    page = pairs[start : start + _LIST_PAGE]
    has_more = start + len(page) < len(pairs)
    links = [_describe_link(state, *pair, call.now_s) for pair in page]
    result: dict[str, Any] = {"links": links, "has_more": has_more}
    if has_more:
        result["cursor"] = str(start + len(page))
    return result


def _is_link_for(state: State, linked: Node, target: Node, direct_only: bool) -> bool:
    if linked is target:
        return True
    return not direct_only and target.parent is not None and state.tree.store.holds(linked, target.parent)


def _link_key(url: str) -> str:
    """Return the identity of a link: host and path without the query, which ``dl=0`` and ``dl=1`` change."""
    parts = urlsplit(url)
    return f"{(parts.hostname or '').removeprefix('www.')}{parts.path}"


def has_link(state: State, path: str) -> bool:
    """Return whether a path is that of a shared link of this account."""
    return f"{_HOSTS[0]}{quote(path)}" in state.links


def _is_link(url: str) -> bool:
    try:
        parts = urlsplit(url)
        form = next((form for form in _FORMS if parts.path.startswith(form)), None)
        return parts.scheme in ("http", "https") and parts.hostname in _HOSTS and form is not None
    except ValueError:
        return False


def _find_link(
    state: State, url: str, password: str | None = None, opened_s: float | None = None
) -> tuple[SharedLink, Node]:
    """Return a link and its target. ``opened_s`` is the time of opening the link, which fails if it has expired."""
    link = state.links.get(_link_key(url)) if _is_link(url) else None
    node = _find_target(state, link) if link else None
    if link is None or node is None:
        raise ApiError("shared_link_not_found")
    if opened_s is not None and link.expires_s is not None and link.expires_s <= opened_s:
        raise ApiError("shared_link_access_denied")
    if password is not None and link.password is not None and link.password != password:
        raise ApiError("shared_link_access_denied")
    return link, node


def _follow_link(state: State, arg: dict[str, Any], call: Call) -> tuple[SharedLink, Node]:
    """Return the link, and its target or the node at ``path`` below that."""
    link, node = _find_link(state, arg["url"], arg["link_password"], call.now_s)
    if arg["path"] is None or arg["path"] == "/":
        return link, node
    try:
        return link, state.tree.get(state.tree.paths.path(node) + arg["path"], call.now_s).node
    except StoreError:
        raise ApiError("shared_link_not_found") from None


def _run_metadata(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return _describe_link(state, *_follow_link(state, arg, call), call.now_s)


def _run_file(state: State, arg: dict[str, Any], call: Call) -> Answer:
    link, node = _follow_link(state, arg, call)
    if not isinstance(node, File):
        raise ApiError("shared_link_is_directory")
    version = node.seen(call.now_s)
    if version is None:
        raise ApiError("shared_link_not_found")
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"dropbox-api-result", json.dumps(_describe_link(state, link, node, call.now_s)).encode()),
    ]
    return Answer(200, headers, version.blob)


def _run_revoke(state: State, arg: dict[str, Any], call: Call) -> None:
    if not _is_link(arg["url"]):
        raise ApiError("shared_link_malformed")
    link, _ = _find_link(state, arg["url"])
    del state.links[_link_key(link.url)]


def _change_visibility(state: State, link: SharedLink, settings: dict[str, Any]) -> tuple[str, str | None]:
    """Return the visibility and the password of a link after a change, which keeps what it does not name.

    Raises ApiError.
    """
    visibility = _check_settings(state, settings)
    if any(settings[name] for name in ("require_password", "link_password", "audience", "requested_visibility")):
        return visibility, settings["link_password"]
    if link.visibility == "password" and settings["require_password"] is False:
        return "public", None
    return link.visibility, link.password


def _run_modify(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    link, node = _find_link(state, arg["url"])
    settings = arg["settings"]
    visibility, password = _change_visibility(state, link, settings)
    expires_s = None if arg["remove_expiration"] else settings["expires"] or link.expires_s
    allowed = settings["allow_download"]
    new_link = replace(
        link, visibility=visibility, password=password, expires_s=expires_s,
        allows_download=link.allows_download if allowed is None else allowed,
    )  # fmt: skip
    state.links[_link_key(link.url)] = new_link
    return _describe_link(state, new_link, node, call.now_s)


def page_routes(state: State) -> list[tuple[str, str, Route]]:
    """Return the routes of the links themselves, which people open without a token: a page, or with ``dl=1`` the file.

    A link with a password or for a team is refused with status 403, because nobody can log in here.
    """

    def open_link(call: Call) -> Answer:
        try:
            link, node = _find_link(state, f"https://{_HOSTS[1]}{quote(call.path)}", opened_s=call.now_s)
        except ApiError:
            return answer_text(404, "Not Found")
        query, version = parse_form(call.query), node.seen(call.now_s) if isinstance(node, File) else None
        if query.get("rlkey") != parse_form(urlsplit(link.url).query.encode()).get("rlkey"):
            return answer_text(404, "Not Found")
        if link.visibility != "public":
            return answer_text(403, "Restricted Content")
        is_download = query.get("dl") == "1" or query.get("raw") == "1"
        if version is not None and is_download and link.allows_download:
            return Answer(200, [(b"content-type", b"application/binary")], version.blob)
        page = f"<!DOCTYPE html><title>Dropbox - {node.name.replace('<', '&lt;')}</title>"
        return Answer(200, [(b"content-type", b"text/html; charset=utf-8")], page.encode())

    route = Route("link page", Kind.READ, open_link)
    return [("GET", f"/scl/{form}/{{token}}/{{name}}", route) for form in ("fi", "fo")]


FUNCTIONS: Mapping[str, Function] = {
    "sharing/create_shared_link": Function(Kind.WRITE, "rpc", _create_v1, _run_create_v1),
    "sharing/create_shared_link_with_settings": Function(Kind.WRITE, "rpc", _create, _run_create),
    "sharing/list_shared_links": Function(Kind.META, "rpc", _list, _run_list),
    "sharing/get_shared_link_metadata": Function(Kind.META, "rpc", _metadata, _run_metadata),
    "sharing/get_shared_link_file": Function(Kind.READ, "download", _metadata, _run_file),
    "sharing/modify_shared_link_settings": Function(Kind.WRITE, "rpc", _modify, _run_modify),
    "sharing/revoke_shared_link": Function(Kind.WRITE, "rpc", _revoke, _run_revoke),
}
