"""Shared links: creating and removing them, and the answers to holders of a link.

A link belongs to one item until it is removed or expires. Other accounts open it as far as its ``access`` allows.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from pytest_cloudbench.emulators.box.answers import BoxError, answer_json, bad_parameter, empty_answer, read_time
from pytest_cloudbench.emulators.box.downloads import answer_content
from pytest_cloudbench.emulators.box.items import read_query, requested_fields, standard_item
from pytest_cloudbench.emulators.box.members import find_role
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState, ItemLink
from pytest_cloudbench.emulators.nodes import File, Node
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

_ACCESS = ("open", "company", "collaborators")


def set_link(state: BoxState, node: Node, link_request: object, now_s: float) -> None:
    """Set the link of an item as a request describes it, or remove it if the request is None. Raises BoxError."""
    meta = state.meta(node)
    if link_request is None:
        if meta.link is not None:
            state.links.pop(meta.link.token, None)
            meta.link = None
            state.log_event("ITEM_SHARED_UNSHARE", node, now_s)
        return
    if not isinstance(link_request, dict):
        raise bad_parameter("shared_link", f"Invalid value '{link_request}'.")
    access = link_request.get("access") or (meta.link.access if meta.link else "open")
    if access not in _ACCESS:
        raise bad_parameter("access", f"Invalid value '{access}'.")
    permissions = link_request.get("permissions") or {}
    expiry = link_request.get("unshared_at")
    expires_s = None if expiry is None else read_time(expiry, "unshared_at")
    is_new = meta.link is None
    link = meta.link or ItemLink(state.random_token("", 32).lower())
    link.access = access
    if "password" in link_request:
        link.password = link_request["password"] or None
    if "unshared_at" in link_request:
        link.unshared_s = expires_s
    if isinstance(permissions, dict):
        link.can_download = bool(permissions.get("can_download", link.can_download))
        link.can_edit = bool(permissions.get("can_edit", link.can_edit))
    if isinstance(link_request.get("vanity_name"), str):
        link.vanity_name = link_request["vanity_name"]
    meta.link = link
    state.links[link.token] = node
    state.log_event("ITEM_SHARED_CREATE" if is_new else "ITEM_SHARED_UPDATE", node, now_s)


def find_linked_node(state: BoxState, address: str) -> Node | None:
    """Return the item behind the address of a link of this account: ``/s/TOKEN``, or ``/v/NAME`` with its own name."""
    home, _, name = address.rstrip("/").rpartition("/")
    if not home.endswith("/v"):
        return state.links.get(name.partition(".")[0])
    links = ((node, state.meta(node).link) for node in state.links.values())
    return next((node for node, link in links if link is not None and link.vanity_name == name), None)


def _follow_link(state: BoxState, address: str, now_s: float) -> tuple[Node, ItemLink]:
    """Return the item behind a link, and the link. Raises BoxError if it has expired or reads do not see the item."""
    node = find_linked_node(state, address)
    link = state.meta(node).link if node is not None else None
    if node is None or link is None or node.deleted_s is not None or state.is_in_trash(node):
        raise BoxError(404, "not_found")
    if link.unshared_s is not None and link.unshared_s <= now_s:
        raise BoxError(404, "not_found")
    if isinstance(node, File) and node.seen(now_s) is None:
        raise BoxError(404, "not_found")
    return node, link


def _get_shared_item(state: BoxState, call: Call) -> Answer:
    fields = dict(parse_qsl(call.headers.get(b"boxapi", b"").decode("latin-1")))
    if "shared_link" not in fields:
        raise bad_parameter("boxapi", "'boxapi' is required")
    address = fields["shared_link"]
    owner = next((peer for peer in state.peers() if find_linked_node(peer, address) is not None), state)
    node, link = _follow_link(owner, address, call.now_s)
    if owner is not state and not _is_open_to(state, owner, node, link):
        raise BoxError(404, "not_found")
    if link.password is not None and fields.get("shared_link_password") != link.password:
        raise BoxError(403, "incorrect_shared_item_password")
    return answer_json(standard_item(owner, node, call.now_s, requested_fields(read_query(call))))


def _is_open_to(state: BoxState, owner: BoxState, node: Node, link: ItemLink) -> bool:
    """Return whether a link of another account is open to this one: to all, to its company, or to its role."""
    is_in_company = state.enterprise is not None and state.enterprise == owner.enterprise
    is_open = link.access == "open" or (link.access == "company" and is_in_company)
    return is_open or bool(find_role(owner, node, state.address))


def _show_page(state: BoxState, call: Call) -> Answer:
    try:
        node, _ = _follow_link(state, call.path, call.now_s)
    except BoxError:
        return empty_answer(404)
    text = f"<!DOCTYPE html><title>{node.name.replace('<', '&lt;')} | Powered by Box</title>"
    return Answer(200, [(b"content-type", b"text/html; charset=utf-8")], text.encode())


def _get_static_content(state: BoxState, call: Call) -> Answer:
    try:
        node, link = _follow_link(state, call.path, call.now_s)
    except BoxError:
        return empty_answer(404)
    version = node.seen(call.now_s) if isinstance(node, File) else None
    if not isinstance(node, File) or version is None or not link.can_download or link.access != "open" or link.password:
        return empty_answer(404)
    link.downloads += 1
    return answer_content(node, version, call)


FUNCTIONS = (
    BoxFunction("GET", "/2.0/shared_items", "shared_item", Kind.META, _get_shared_item),
    BoxFunction("GET", "/s/{token}", "shared_page", Kind.META, _show_page, is_open=True),
    BoxFunction("GET", "/v/{name}", "shared_page", Kind.META, _show_page, is_open=True),
    BoxFunction("GET", "/shared/static/{token}", "shared_static", Kind.READ, _get_static_content, is_open=True),
)
