"""Shared links: how an item gets and loses one, and what holders of the link see.

What may live here: links and ``shared_items``. A link names one item until it is removed or expires.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from pytest_cloudbench.emulators.box.answers import BoxError, answer_json, bad_parameter, nothing, read_time
from pytest_cloudbench.emulators.box.downloads import content_answer
from pytest_cloudbench.emulators.box.items import chosen, entry, query_of
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState, ItemLink
from pytest_cloudbench.emulators.nodes import File, Node
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

_ACCESS = ("open", "company", "collaborators")


def set_link(state: BoxState, node: Node, wanted: object, now_s: float) -> None:
    """Give an item the link that a request describes; None removes it. Raises BoxError."""
    meta = state.meta(node)
    if wanted is None:
        if meta.link is not None:
            state.links.pop(meta.link.token, None)
            meta.link = None
            state.happened("ITEM_SHARED_UNSHARE", node, now_s)
        return
    if not isinstance(wanted, dict):
        raise bad_parameter("shared_link", f"Invalid value '{wanted}'.")
    access = wanted.get("access") or (meta.link.access if meta.link else "open")
    if access not in _ACCESS:
        raise bad_parameter("access", f"Invalid value '{access}'.")
    rights = wanted.get("permissions") or {}
    until = wanted.get("unshared_at")
    until_s = None if until is None else read_time(until, "unshared_at")
    is_new = meta.link is None
    link = meta.link or ItemLink(state.token("", 32).lower())
    link.access = access
    if "password" in wanted:
        link.password = wanted["password"] or None
    if "unshared_at" in wanted:
        link.unshared_s = until_s
    if isinstance(rights, dict):
        link.can_download = bool(rights.get("can_download", link.can_download))
        link.can_edit = bool(rights.get("can_edit", link.can_edit))
    if isinstance(wanted.get("vanity_name"), str):
        link.vanity_name = wanted["vanity_name"]
    meta.link = link
    state.links[link.token] = node
    state.happened("ITEM_SHARED_CREATE" if is_new else "ITEM_SHARED_UPDATE", node, now_s)


def _linked(state: BoxState, token: str, now_s: float) -> tuple[Node, ItemLink]:
    node = state.links.get(token)
    link = state.meta(node).link if node is not None else None
    if node is None or link is None or node.deleted_s is not None or state.in_trash(node):
        raise BoxError(404, "not_found")
    if link.unshared_s is not None and link.unshared_s <= now_s:
        raise BoxError(404, "not_found")
    return node, link


def _shared_item(state: BoxState, call: Call) -> Answer:
    given = dict(parse_qsl(call.headers.get(b"boxapi", b"").decode("latin-1")))
    if "shared_link" not in given:
        raise bad_parameter("boxapi", "'boxapi' is required")
    token = given["shared_link"].rstrip("/").rpartition("/")[2]
    node, link = _linked(state, token, call.now_s)
    if link.password is not None and given.get("shared_link_password") != link.password:
        raise BoxError(403, "incorrect_shared_item_password")
    return answer_json(entry(state, node, call.now_s, chosen(query_of(call))))


def _page(state: BoxState, call: Call) -> Answer:
    try:
        node, _ = _linked(state, call.parameters["token"], call.now_s)
    except BoxError:
        return nothing(404)
    text = f"<!DOCTYPE html><title>{node.name.replace('<', '&lt;')} | Powered by Box</title>"
    return Answer(200, [(b"content-type", b"text/html; charset=utf-8")], text.encode())


def _static(state: BoxState, call: Call) -> Answer:
    try:
        node, link = _linked(state, call.parameters["token"].partition(".")[0], call.now_s)
    except BoxError:
        return nothing(404)
    version = node.seen(call.now_s) if isinstance(node, File) else None
    if not isinstance(node, File) or version is None or not link.can_download or link.access != "open" or link.password:
        return nothing(404)
    link.downloads += 1
    return content_answer(node, version, call)


FUNCTIONS = (
    BoxFunction("GET", "/2.0/shared_items", "shared_item", Kind.META, _shared_item),
    BoxFunction("GET", "/s/{token}", "shared_page", Kind.META, _page, is_open=True),
    BoxFunction("GET", "/shared/static/{token}", "shared_static", Kind.READ, _static, is_open=True),
)
