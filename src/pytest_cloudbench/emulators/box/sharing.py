"""Shared links: creating and removing them, and the answers to holders of a link.

A link belongs to one item until it is removed or expires. Other accounts open it as far as its ``access`` allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from pytest_cloudbench.emulators.box.answers import BoxError, answer_json, bad_parameter, empty_answer, read_time
from pytest_cloudbench.emulators.box.downloads import answer_content, is_unchanged
from pytest_cloudbench.emulators.box.items import read_query, requested_fields, standard_item
from pytest_cloudbench.emulators.box.members import find_item, find_role, refuse_member
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState, ItemLink
from pytest_cloudbench.emulators.nodes import File, Node
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

_ACCESS = ("open", "company", "collaborators")
_READS = frozenset({"file_get", "download", "folder_get", "folder_items"})
"""The functions on items that take a link in the header ("Find item for shared link")."""


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
    if not node.is_seen(now_s):
        raise BoxError(404, "not_found")
    return node, link


def _read_link(headers: Mapping[bytes, bytes]) -> Mapping[str, str]:
    """Return the address of the link, and its password, that a request names in its header."""
    return dict(parse_qsl(headers.get(b"boxapi", b"").decode("latin-1")))


def _open_link(owner: BoxState, guest: BoxState, call: Call) -> tuple[Node, ItemLink]:
    """Return the item behind the link in a header, and the link. Raises BoxError if it is not open to an account."""
    fields = _read_link(call.headers)
    node, link = _follow_link(owner, fields["shared_link"], call.now_s)
    if owner is not guest and not _is_open_to(guest, owner, node, link):
        raise BoxError(404, "not_found")
    if link.password is not None and fields.get("shared_link_password") != link.password:
        raise BoxError(403, "incorrect_shared_item_password")
    return node, link


def _get_shared_item(state: BoxState, call: Call) -> Answer:
    address = _read_link(call.headers).get("shared_link")
    if address is None:
        raise bad_parameter("boxapi", "'boxapi' is required")
    owner = next((peer for peer in state.peers() if find_linked_node(peer, address) is not None), state)
    node, _ = _open_link(owner, state, call)
    if is_unchanged(owner, call, node, node.seen(call.now_s) if isinstance(node, File) else None):
        return empty_answer(304)
    return answer_json(standard_item(owner, node, call.now_s, requested_fields(read_query(call))))


def leads_to(state: BoxState, path: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the item of a path is that of the link of this account in a header, or below it."""
    if b"boxapi" not in headers:
        return False
    linked_node = find_linked_node(state, _read_link(headers).get("shared_link", ""))
    node = find_item(state, path)
    while node is not None and node is not linked_node:
        node = node.parent
    return node is not None


def refuse_guest(state: BoxState, call: Call, guest: BoxState) -> Answer | None:
    """Return the refusal of another account's request, or None if its role, or the link in the header, allows it."""
    refusal = refuse_member(state, call, guest.address)
    if refusal is None or call.route.name not in _READS or not leads_to(state, call.path, call.headers):
        return refusal
    try:
        _, link = _open_link(state, guest, call)
    except BoxError as error:
        return error.answer()
    if call.route.name == "download" and not link.can_download:
        return BoxError(403, "access_denied_insufficient_permissions").answer()
    return None


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
