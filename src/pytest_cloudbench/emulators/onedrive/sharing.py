"""Sharing links, invitations and permissions.

What may live here: functions that decide who may see an item, and finding an item by its link.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

from pytest_cloudbench.emulators.nodes import File, Folder, Node, StoreError
from pytest_cloudbench.emulators.onedrive.answers import GRAPH, GraphError, answer_json, seconds_of, timestamp
from pytest_cloudbench.emulators.onedrive.items import GROUP, PERSON, context, item, selected
from pytest_cloudbench.emulators.onedrive.state import GraphFunction, GraphPermission, GraphRequest, GraphState
from pytest_cloudbench.emulators.skin import Answer, Kind

_ROLES = {"view": ["read"], "edit": ["write"], "embed": ["read"]}
_SCOPES = ("anonymous", "organization", "users")
_OWNER, _OWNER_NUMBER = "owner", "7"
_SITE_GROUPS = (("Owners", "3", "owner"), ("Members", "5", "write"), ("Visitors", "4", "read"))
"""The groups that SharePoint makes with a site: the end of a name, its id, and what it may do in the library."""


def _share_id(url: str) -> str:
    return "u!" + urlsafe_b64encode(url.encode()).decode().rstrip("=")


def shared_item(state: GraphState, share_id: str, now_s: float) -> Node:
    """Returns the item that an encoded link, or the id of one, shows. Raises GraphError and StoreError."""
    url = ""
    if share_id.startswith("u!"):
        text = share_id.removeprefix("u!")
        try:
            url = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
        except ValueError:
            raise GraphError(400, "invalidRequest", "The request is malformed or incorrect.") from None
    for link in state.permissions.values():
        if share_id in (link.id, _share_id(link.url)) or link.url == url:
            if link.is_over(now_s):
                break
            return state.tree.get(link.node_id)
    message = "The sharing link no longer exists, or you do not have permission to access it."
    raise GraphError(403, "accessDenied", message)


def _link(known: GraphPermission) -> dict[str, Any]:
    """Returns a link, or an invitation, as a permission."""
    shown: dict[str, Any] = {
        "id": known.id,
        "roles": known.roles,
        "shareId": _share_id(known.url),
        "hasPassword": known.has_password,
        "link": {
            "scope": known.scope,
            "type": known.type,
            "webUrl": known.url,
            "preventsDownload": known.prevents_download,
        },
    }
    if known.people:
        identities = [{"user": {"displayName": email, "email": email}} for email in known.people]
        shown |= {"grantedToIdentities": identities, "grantedToIdentitiesV2": identities}
    if known.expires_s is not None:
        shown["expirationDateTime"] = timestamp(known.expires_s)
    return shown


def _granted_to(name: str, email: str, person_id: str, number: str) -> dict[str, Any]:
    """Returns whom a permission is for: a person, whose id in the site is a number."""
    person = {"displayName": name, "email": email, "id": person_id}
    site = {**person, "id": number, "loginName": f"i:0#.f|membership|{email}"}
    return {
        "grantedTo": {"user": dict(person)},
        "grantedToV2": {"siteUser": site, "user": {"@odata.type": "#microsoft.graph.sharePointIdentity", **person}},
    }


def _invited(state: GraphState, known: GraphPermission) -> dict[str, Any]:
    """Returns whom an invitation is for. Personal drives name them only as the identities of a link."""
    if state.account.type == "personal" or not known.people:
        return {}
    email = known.people[0]
    return _granted_to(email, email, known.id.lower(), str(10 + [*state.permissions].index(known.id)))


def _owned(request: GraphRequest, node: Node, known: GraphPermission | None = None) -> dict[str, Any]:
    """Returns the permission of a person: the owner's, or one that was changed."""
    shown_id = known.id if known is not None else urlsafe_b64encode(f"{_OWNER}.{node.id}".encode()).decode()
    shown: dict[str, Any] = {
        "id": shown_id,
        "roles": known.roles if known is not None else [_OWNER],
        "shareId": shown_id,
        **_granted_to(PERSON["displayName"], PERSON["email"], PERSON["id"], _OWNER_NUMBER),
    }
    if request.state.account.type == "personal":
        shown["link"] = {"webUrl": f"https://1drv.ms/u/c/{request.state.drive_id}/{node.id[-16:]}"}
        shown["grantedTo"]["user"]["id"] = _OWNER_NUMBER
    elif known is None and node is not request.tree.root:
        shown["inheritedFrom"] = {}
    return shown


def _of_site_groups(request: GraphRequest, node: Node) -> list[dict[str, Any]]:
    """Returns the permissions that a site's groups have in its library; other drives have none."""
    if request.state.account.type != "documentLibrary":
        return []
    inherited: dict[str, Any] = {} if node is request.tree.root else {"inheritedFrom": {}}
    value = []
    for end, number, role in _SITE_GROUPS:
        name = f"{GROUP['displayName']} {end}"
        shown_id = urlsafe_b64encode(name.encode()).decode().rstrip("=")
        identity = {"displayName": name, "id": number, "loginName": name}
        value.append({
            "id": shown_id, "roles": [role], "shareId": shown_id, "grantedTo": {"user": {"displayName": name}},
            "grantedToV2": {"siteGroup": identity}, **inherited,
        })  # fmt: skip
    return value


def _inherited_links(request: GraphRequest, node: Node) -> list[dict[str, Any]]:
    """Returns the links to the folders above an item, which show the item too. Libraries do not say to which."""
    state, value, above = request.state, [], node.parent if node is not request.tree.root else None
    while above is not None and above is not state.tree.store.root:
        path = f"/drive/root:{state.tree.path(above)}"
        source = {"driveId": state.drive_id, "id": above.id, "path": path} if state.account.type == "personal" else {}
        value += [{**_link(link), "inheritedFrom": source} for link in state.links_to(above, request.now_s)]
        above = above.parent
    return value


def _create_link(request: GraphRequest) -> Answer:
    body, node = request.json_body(), request.node()
    kind, scope = body.get("type", "view"), body.get("scope") or "anonymous"
    if kind not in _ROLES or scope not in _SCOPES:
        raise GraphError(400, "invalidRequest", f"Invalid sharing link: type {kind!r:.40}, scope {scope!r:.40}")
    state = request.state
    expires_s = seconds_of(body["expirationDateTime"]) if body.get("expirationDateTime") else None
    if expires_s is not None and expires_s <= request.now_s:
        raise GraphError(400, "invalidRequest", "The expiration must be in the future")
    same = [each for each in state.links_to(node, request.now_s) if not each.people]
    known = next((each for each in same if (each.type, each.scope, each.roles) == (kind, scope, _ROLES[kind])), None)
    is_new = known is None
    if known is None:
        letter = "f" if isinstance(node, Folder) else "u"
        start = f"https://emulated-my.sharepoint.com/:{letter}:/g/personal/emulated"
        if state.account.type == "personal":
            start = f"https://1drv.ms/{letter}/c/{state.drive_id}"
        known = GraphPermission(
            state.tree.guid(), node.id, kind, scope, f"{start}/{state.tree.token(32)}", list(_ROLES[kind]),
            bool(body.get("password")), expires_s,
        )  # fmt: skip
        state.permit(known)
    value = {"@odata.context": f"{GRAPH}microsoft.graph.permission", **_link(known)}
    return answer_json(value, 201 if is_new else 200, (b"location", request.origin.encode("latin-1")))


def _invite(request: GraphRequest) -> Answer:
    body, node = request.json_body(), request.node()
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
        url = f"https://1drv.ms/u/c/{state.drive_id}/{state.tree.token(32)}"
        known = GraphPermission(state.tree.guid(), node.id, kind, "users", url, roles, people=[email])
        state.permit(known)
        identities = [{"user": {"email": email}}]
        value.append(
            {
                "grantedToIdentities": identities,
                "grantedToIdentitiesV2": identities,
                "id": known.id,
                "invitation": {"email": email, "signInRequired": body.get("requireSignIn") is True},
                "link": {"type": kind, "webUrl": url},
                "roles": roles,
                **_invited(state, known),
            }
        )
    told = {"@odata.context": f"{GRAPH}Collection(microsoft.graph.permission)", "value": value}
    return answer_json(told, 200, (b"location", request.origin.encode("latin-1")))


def _list_permissions(request: GraphRequest) -> Answer:
    node = request.node()
    state = request.state
    links = [{**_link(link), **_invited(state, link)} for link in state.links_to(node, request.now_s)]
    groups, inherited = _of_site_groups(request, node), _inherited_links(request, node)
    value = [_owned(request, node), *links, *groups, *inherited]
    return answer_json({"@odata.context": context(request, "permissions"), "value": value})


def _find(request: GraphRequest, node: Node) -> GraphPermission | dict[str, Any]:
    """Returns a permission by its id, as JSON if it cannot be changed here. Raises StoreError."""
    wanted = request.address.argument
    known = request.state.permissions.get(wanted)
    if known is not None and known.node_id == node.id and not known.is_over(request.now_s):
        return known
    fixed = [_owned(request, node), *_of_site_groups(request, node), *_inherited_links(request, node)]
    shown = next((permission for permission in fixed if permission["id"] == wanted), None)
    if shown is None:
        raise StoreError("not_found")
    return shown


def _get_permission(request: GraphRequest) -> Answer:
    node = request.node()
    known = _find(request, node)
    shown = {**_link(known), **_invited(request.state, known)} if isinstance(known, GraphPermission) else known
    return answer_json({"@odata.context": context(request, "permissions/$entity"), **shown})


def _update_permission(request: GraphRequest) -> Answer:
    node, body = request.node(), request.json_body()
    known = _find(request, node)
    if not isinstance(known, GraphPermission):
        raise GraphError(
            403, "accessDenied", "A permission of an owner, or one that is inherited, cannot be changed here"
        )
    if body.get("roles") not in (["read"], ["write"]):
        raise GraphError(400, "invalidRequest", "The roles of a permission are read or write")
    known.roles = list(body["roles"])
    known.type = "view" if known.roles == ["read"] else "edit"
    shown = {**_owned(request, node, known), **({"link": _link(known)["link"]} if not known.people else {})}
    return answer_json({"@odata.context": context(request, "permissions/$entity"), **shown})


def _delete_permission(request: GraphRequest) -> Answer:
    known = _find(request, request.node())
    if not isinstance(known, GraphPermission):
        raise GraphError(
            403, "accessDenied", "A permission of an owner, or one that is inherited, cannot be removed here"
        )
    request.state.forbid(known)
    return Answer(204, [], b"")


def _get_shared(request: GraphRequest) -> Answer:
    node = request.node()
    if isinstance(node, File) and node.seen(request.now_s) is None:
        raise StoreError("not_found")
    return answer_json({"@odata.context": context(request, "items/$entity"), **selected(request, item(request, node))})


FUNCTIONS: Mapping[tuple[str, str], GraphFunction] = {
    ("POST", "createLink"): GraphFunction(Kind.WRITE, _create_link),
    ("POST", "invite"): GraphFunction(Kind.WRITE, _invite),
    ("GET", "permissions"): GraphFunction(Kind.META, _list_permissions),
    ("GET", "permissions/*"): GraphFunction(Kind.META, _get_permission),
    ("PATCH", "permissions/*"): GraphFunction(Kind.WRITE, _update_permission),
    ("DELETE", "permissions/*"): GraphFunction(Kind.WRITE, _delete_permission),
    ("GET", "driveItem"): GraphFunction(Kind.META, _get_shared),
}
