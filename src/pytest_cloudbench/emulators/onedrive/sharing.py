"""Sharing links, invitations and permissions, and the item behind a link."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pytest_cloudbench.emulators.http import decode_base64url, encode_base64url, parse_form
from pytest_cloudbench.emulators.nodes import File, Folder, Node, StoreError
from pytest_cloudbench.emulators.onedrive.address import parse_address
from pytest_cloudbench.emulators.onedrive.answers import GRAPH, GraphError, answer_json, format_time, parse_time
from pytest_cloudbench.emulators.onedrive.items import GROUP, describe_expanded, odata_context
from pytest_cloudbench.emulators.onedrive.state import GraphFunction, GraphPermission, GraphRequest, GraphState
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

_PLAIN = [(b"content-type", b"text/plain; charset=utf-8")]
_ROLES = {"view": ["read"], "edit": ["write"], "embed": ["read"]}
_SCOPES = ("anonymous", "organization", "users")
_OWNER, _OWNER_NUMBER = "owner", "7"
_SITE_GROUPS = (("Owners", "3", "owner"), ("Members", "5", "write"), ("Visitors", "4", "read"))
"""The groups that SharePoint makes with a site: the suffix of its name, its id, and its role in the library."""


def _share_id(url: str) -> str:
    return "u!" + encode_base64url(url.encode())


def find_shared_item(state: GraphState, share_id: str, now_s: float) -> Node:
    """Return the item behind an encoded link or the id of a link. Raises GraphError and StoreError."""
    url = ""
    if share_id.startswith("u!"):
        try:
            url = decode_base64url(share_id.removeprefix("u!")).decode()
        except ValueError:
            raise GraphError(400, "invalidRequest", "The request is malformed or incorrect.") from None
    for link in state.permissions.values():
        if share_id in (link.id, _share_id(link.url)) or link.url == url:
            if link.is_expired(now_s):
                break
            return state.tree.find_by_id(link.node_id)
    message = "The sharing link no longer exists, or you do not have permission to access it."
    raise GraphError(403, "accessDenied", message)


def has_link(state: GraphState, path: str) -> bool:
    """Return whether a path is that of a link of this account."""
    return any(urlsplit(entry.url).path == path for entry in state.permissions.values())


def find_roles(state: GraphState, path: str, email: str) -> set[str]:
    """Return the roles that an invited person has on the item of a path, from it or a folder above. Empty if none."""
    address = parse_address(path)
    if address is None or address.drive_id.lower() != state.drive_id.lower() or address.path is not None:
        return set()
    node, roles = state.tree.store.by_id(address.base), set[str]()
    while node is not None and node.deleted_s is None:
        for permission in state.active_links(node, state.clock.now_s()):
            roles.update(permission.roles if email in permission.people else ())
        node = node.parent
    return roles


def refuse_member(state: GraphState, call: Call, email: str) -> GraphError | None:
    """Return the refusal of a request of another account, or None if its roles on the item allow it."""
    roles = find_roles(state, call.path, email)
    if not roles:
        return GraphError(404, "itemNotFound", "The resource could not be found.")
    if call.method == "GET":
        return None
    shares = call.route.name in ("POST invite", "POST createLink") or "permissions" in call.route.name
    action = "share" if shares else "delete" if call.route.name == "DELETE item" else "write"
    is_allowed = state.account.lets_member(action, by_role="write" in roles)
    return None if is_allowed else GraphError(403, "accessDenied", "Access denied")


def open_link_page(state: GraphState, call: Call) -> Answer:
    """Answer a person without an account who opens a link. With ``download=1`` the answer is the file, else a page."""
    link = next((entry for entry in state.permissions.values() if urlsplit(entry.url).path == call.path), None)
    if link is None or link.is_expired(call.now_s):
        return Answer(404, _PLAIN, b"This link has been removed.")
    node = state.tree.find_by_id(link.node_id)
    if link.scope != "anonymous" or link.has_password or link.people:
        return Answer(403, _PLAIN, b"You need permission to access this item.")
    version = node.seen(call.now_s) if isinstance(node, File) else None
    if version is None or parse_form(call.query).get("download") != "1":
        return Answer(200, [(b"content-type", b"text/html")], b"<!DOCTYPE html><title>OneDrive</title>")
    return Answer(200, [(b"content-type", b"application/octet-stream")], version.blob)


def _describe_link(permission: GraphPermission) -> dict[str, Any]:
    """Return a link or an invitation as a permission resource."""
    properties: dict[str, Any] = {
        "id": permission.id,
        "roles": permission.roles,
        "shareId": _share_id(permission.url),
        "hasPassword": permission.has_password,
        "link": {
            "scope": permission.scope,
            "type": permission.type,
            "webUrl": permission.url,
            "preventsDownload": permission.prevents_download,
        },
    }
    if permission.people:
        identities = [{"user": {"displayName": email, "email": email}} for email in permission.people]
        properties |= {"grantedToIdentities": identities, "grantedToIdentitiesV2": identities}
    if permission.expires_s is not None:
        properties["expirationDateTime"] = format_time(permission.expires_s)
    return properties


def _grantee_fields(name: str, email: str, person_id: str, number: str) -> dict[str, Any]:
    """Return the fields that name the person of a permission. ``number`` is the id of the person in the site."""
    person = {"displayName": name, "email": email, "id": person_id}
    site = {**person, "id": number, "loginName": f"i:0#.f|membership|{email}"}
    return {
        "grantedTo": {"user": dict(person)},
        "grantedToV2": {"siteUser": site, "user": {"@odata.type": "#microsoft.graph.sharePointIdentity", **person}},
    }


def _invitee_fields(state: GraphState, permission: GraphPermission) -> dict[str, Any]:
    """Return the fields that name an invited person. Personal drives name people only as identities of a link."""
    if state.account.type == "personal" or not permission.people:
        return {}
    email = permission.people[0]
    return _grantee_fields(email, email, permission.id.lower(), str(10 + [*state.permissions].index(permission.id)))


def _describe_shared(state: GraphState, permission: GraphPermission) -> dict[str, Any]:
    """Return a link or an invitation as a permission resource, with the person whom it invites."""
    return {**_describe_link(permission), **_invitee_fields(state, permission)}


def _describe_personal_permission(
    request: GraphRequest, node: Node, permission: GraphPermission | None = None
) -> dict[str, Any]:
    """Return the permission resource of a person, which is the owner's unless a changed ``permission`` is given."""
    permission_id = (
        permission.id if permission is not None else urlsafe_b64encode(f"{_OWNER}.{node.id}".encode()).decode()
    )
    person = request.state.person
    properties: dict[str, Any] = {
        "id": permission_id,
        "roles": permission.roles if permission is not None else [_OWNER],
        "shareId": permission_id,
        **_grantee_fields(person["displayName"], person["email"], person["id"], _OWNER_NUMBER),
    }
    if request.state.account.type == "personal":
        properties["link"] = {"webUrl": f"https://1drv.ms/u/c/{request.state.drive_id}/{node.id[-16:]}"}
        properties["grantedTo"]["user"]["id"] = _OWNER_NUMBER
    elif permission is None and node is not request.tree.root:
        properties["inheritedFrom"] = {}
    return properties


def _list_site_group_permissions(request: GraphRequest, node: Node) -> list[dict[str, Any]]:
    """Return the permissions of the site's groups in its library. Other drives have no groups."""
    if request.state.account.type != "documentLibrary":
        return []
    inherited: dict[str, Any] = {} if node is request.tree.root else {"inheritedFrom": {}}
    value = []
    for suffix, number, role in _SITE_GROUPS:
        name = f"{GROUP['displayName']} {suffix}"
        permission_id = encode_base64url(name.encode())
        identity = {"displayName": name, "id": number, "loginName": name}
        value.append({
            "id": permission_id, "roles": [role], "shareId": permission_id,
            "grantedTo": {"user": {"displayName": name}}, "grantedToV2": {"siteGroup": identity}, **inherited,
        })  # fmt: skip
    return value


def _list_inherited_links(request: GraphRequest, node: Node) -> list[dict[str, Any]]:
    """Return the links to folders above an item, which share the item too. Only personal drives name these folders."""
    state, value, ancestor = request.state, [], node.parent if node is not request.tree.root else None
    while ancestor is not None and ancestor is not state.tree.store.root:
        path = f"/drive/root:{state.tree.path_of(ancestor)}"
        source = {"driveId": state.drive_id, "id": ancestor.id, "path": path}
        inherited = {"inheritedFrom": source if state.account.type == "personal" else {}}
        value += [{**_describe_link(link), **inherited} for link in state.active_links(ancestor, request.now_s)]
        ancestor = ancestor.parent
    return value


def _create_link(request: GraphRequest) -> Answer:
    """Answer with a link on the requested terms, which is an existing one if there is one."""
    body, node = request.read_json_body(), request.find_existing_node()
    kind, scope = body.get("type", "view"), body.get("scope") or "anonymous"
    if kind not in [*_ROLES] or scope not in _SCOPES:  # a client may send anything, also what is no key
        raise GraphError(400, "invalidRequest", f"Invalid sharing link: type {kind!r:.40}, scope {scope!r:.40}")
    state = request.state
    expires_s = parse_time(body["expirationDateTime"]) if body.get("expirationDateTime") else None
    if expires_s is not None and expires_s <= request.now_s:
        raise GraphError(400, "invalidRequest", "The expiration must be in the future")
    links = [link for link in state.active_links(node, request.now_s) if not link.people]
    terms = (kind, scope, _ROLES[kind])
    permission = next((link for link in links if (link.type, link.scope, link.roles) == terms), None)
    is_new = permission is None
    if permission is None:
        letter = "f" if isinstance(node, Folder) else "u"
        address = f"https://emulated-my.sharepoint.com/:{letter}:/g/personal/emulated"
        if state.account.type == "personal":
            address = f"https://1drv.ms/{letter}/c/{state.drive_id}"
        permission = GraphPermission(
            state.tree.random_guid(), node.id, kind, scope, f"{address}/{state.tree.random_token(32)}",
            list(_ROLES[kind]), bool(body.get("password")), expires_s,
        )  # fmt: skip
        state.add_permission(permission)
    value = {"@odata.context": f"{GRAPH}microsoft.graph.permission", **_describe_link(permission)}
    return answer_json(value, 201 if is_new else 200, (b"location", request.origin.encode("latin-1")))


def _invite_people(request: GraphRequest) -> Answer:
    """Answer with a new permission on an item for each address that is invited. Raises GraphError."""
    body, node = request.read_json_body(), request.find_existing_node()
    people, roles = body.get("recipients"), body.get("roles") or ["read"]
    if not isinstance(people, list) or not people or roles not in (["read"], ["write"]):
        raise GraphError(400, "invalidRequest", "An invitation needs recipients, and the roles read or write")
    emails = [str(entry.get("email", "")) if isinstance(entry, dict) else "" for entry in people]
    if not all("@" in email for email in emails):
        raise GraphError(400, "invalidRequest", "A recipient needs an email address")
    value = []
    state = request.state
    kind = "view" if roles == ["read"] else "edit"
    for email in emails:
        url = f"https://1drv.ms/u/c/{state.drive_id}/{state.tree.random_token(32)}"
        permission = GraphPermission(state.tree.random_guid(), node.id, kind, "users", url, roles, people=[email])
        state.add_permission(permission)
        identities = [{"user": {"email": email}}]
        value.append(
            {
                "grantedToIdentities": identities,
                "grantedToIdentitiesV2": identities,
                "id": permission.id,
                "invitation": {"email": email, "signInRequired": body.get("requireSignIn") is True},
                "link": {"type": kind, "webUrl": url},
                "roles": roles,
                **_invitee_fields(state, permission),
            }
        )
    answer = {"@odata.context": f"{GRAPH}Collection(microsoft.graph.permission)", "value": value}
    return answer_json(answer, 200, (b"location", request.origin.encode("latin-1")))


def _list_permissions(request: GraphRequest) -> Answer:
    node = request.find_node()
    state = request.state
    links = [_describe_shared(state, link) for link in state.active_links(node, request.now_s)]
    groups, inherited = _list_site_group_permissions(request, node), _list_inherited_links(request, node)
    value = [_describe_personal_permission(request, node), *links, *groups, *inherited]
    return answer_json({"@odata.context": odata_context(request, "permissions"), "value": value})


def _find_permission(request: GraphRequest, node: Node) -> GraphPermission | dict[str, Any]:
    """Return the permission with the requested id, as JSON if it cannot be changed here. Raises StoreError."""
    permission_id = request.address.argument
    permission = request.state.permissions.get(permission_id)
    if permission is not None and permission.node_id == node.id and not permission.is_expired(request.now_s):
        return permission
    fixed = [
        _describe_personal_permission(request, node),
        *_list_site_group_permissions(request, node),
        *_list_inherited_links(request, node),
    ]
    inherited = next((candidate for candidate in fixed if candidate["id"] == permission_id), None)
    if inherited is None:
        raise StoreError("not_found")
    return inherited


def _get_permission(request: GraphRequest) -> Answer:
    node = request.find_node()
    permission = _find_permission(request, node)
    properties = _describe_shared(request.state, permission) if isinstance(permission, GraphPermission) else permission
    return answer_json({"@odata.context": odata_context(request, "permissions/$entity"), **properties})


def _update_permission(request: GraphRequest) -> Answer:
    node, body = request.find_existing_node(), request.read_json_body()
    permission = _find_permission(request, node)
    if not isinstance(permission, GraphPermission):
        raise GraphError(
            403, "accessDenied", "A permission of an owner, or one that is inherited, cannot be changed here"
        )
    if body.get("roles") not in (["read"], ["write"]):
        raise GraphError(400, "invalidRequest", "The roles of a permission are read or write")
    permission.roles = list(body["roles"])
    permission.type = "view" if permission.roles == ["read"] else "edit"
    properties = _describe_personal_permission(request, node, permission)
    if not permission.people:
        properties["link"] = _describe_link(permission)["link"]
    return answer_json({"@odata.context": odata_context(request, "permissions/$entity"), **properties})


def _delete_permission(request: GraphRequest) -> Answer:
    permission = _find_permission(request, request.find_existing_node())
    if not isinstance(permission, GraphPermission):
        raise GraphError(
            403, "accessDenied", "A permission of an owner, or one that is inherited, cannot be removed here"
        )
    request.state.remove_permission(permission)
    return Answer(204, [], b"")


def _get_shared(request: GraphRequest) -> Answer:
    node = request.find_node()
    if not node.is_seen(request.now_s):
        raise StoreError("not_found")
    properties = describe_expanded(request, node)
    return answer_json({"@odata.context": odata_context(request, "items/$entity"), **properties})


FUNCTIONS: Mapping[tuple[str, str], GraphFunction] = {
    ("POST", "createLink"): GraphFunction(Kind.WRITE, _create_link),
    ("POST", "invite"): GraphFunction(Kind.WRITE, _invite_people),
    ("GET", "permissions"): GraphFunction(Kind.META, _list_permissions),
    ("GET", "permissions/*"): GraphFunction(Kind.META, _get_permission),
    ("PATCH", "permissions/*"): GraphFunction(Kind.WRITE, _update_permission),
    ("DELETE", "permissions/*"): GraphFunction(Kind.WRITE, _delete_permission),
    ("GET", "driveItem"): GraphFunction(Kind.META, _get_shared),
}
