"""Tests of rights in the OneDrive emulator: applications, tokens and their scopes, links, groups of a library."""

from __future__ import annotations

import base64
import json
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from pytest_cloudbench.emulators import start_emulator
from pytest_cloudbench.emulators.onedrive.scopes import DriveReach, drive_reach, scopes_cover
from tests.limits import HANG_S

from .graph_wire import GraphReply, GraphWire

ROOT = "/v1.0/me/drive/root"
BACK = "http://localhost:5/back"
FULL = "Files.ReadWrite offline_access"


def ask(graph: GraphWire, path: str = "token", **form: str) -> GraphReply:
    """Send a form to the identity platform."""
    headers = {"Content_Type": "application/x-www-form-urlencoded"}
    body = urlencode({"client_id": "app", **form}).encode()
    return graph("POST", f"/common/oauth2/v2.0/{path}", body, token=None, **headers)


def refresh(graph: GraphWire, token: str = "made-up", **form: str) -> GraphReply:
    """Request a new token with a refresh token."""
    return ask(graph, grant_type="refresh_token", refresh_token=token, **form)


def code_for(graph: GraphWire, **query: str) -> str:
    """Let the user agree, and return the code from the redirect."""
    query_string = urlencode({"client_id": "app", "redirect_uri": BACK, "response_type": "code", **query})
    reply = graph("GET", f"/common/oauth2/v2.0/authorize?{query_string}", token=None)
    return parse_qs(urlsplit(reply.headers["location"]).query)["code"][0]


def exchange_code(graph: GraphWire, code: str, **form: str) -> GraphReply:
    """Request a token for a code."""
    return ask(graph, grant_type="authorization_code", code=code, redirect_uri=BACK, **form)


# --- applications ---


@pytest.mark.parametrize("wrong", ["", "other", "right ", "RIGHT", "invalid"])
def test_an_application_has_one_secret(graph: GraphWire, wrong: str) -> None:
    assert refresh(graph, client_secret="right").status == 200
    reply = refresh(graph, client_secret=wrong)
    assert (reply.status, reply.value["error"], reply.value["error_codes"]) == (401, "invalid_client", [7000215])
    if wrong:
        assert exchange_code(graph, code_for(graph), client_secret=wrong).status == 401
    assert refresh(graph, client_secret="right").status == 200
    assert refresh(graph, "another", client_id="public").status == 200


def test_application_obtains_token_by_its_own_credentials(graph: GraphWire) -> None:
    form = {"grant_type": "client_credentials", "scope": "https://graph.microsoft.com/.default"}
    assert ask(graph, **form).value["error"] == "invalid_client"
    answer = ask(graph, client_secret="right", **form).value
    assert "refresh_token" not in answer
    assert graph("PUT", f"{ROOT}:/a.txt:/content", b"x", token=answer["access_token"]).status == 201
    assert ask(graph, client_secret="wrong", **form).status == 401


def test_a_refresh_token_belongs_to_one_application(graph: GraphWire) -> None:
    refresh_token = exchange_code(graph, code_for(graph, scope=FULL)).value["refresh_token"]
    reply = refresh(graph, refresh_token, client_id="other")
    assert (reply.status, reply.value["error"]) == (400, "invalid_grant")
    assert refresh(graph, refresh_token).status == 200
    assert refresh(graph).status == 200
    assert refresh(graph, client_id="other").value["error"] == "invalid_grant"


def test_a_device_code_belongs_to_one_application(graph: GraphWire) -> None:
    device = ask(graph, "devicecode", scope="Files.Read").value
    graph("GET", f"/devicelogin?otc={device['user_code']}", token=None)
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "device_code": device["device_code"]}
    assert ask(graph, client_id="other", **form).value["error"] == "bad_verification_code"
    answer = ask(graph, **form).value
    assert (answer["scope"], "refresh_token" in answer) == ("Files.Read", False)


# --- scopes ---


@pytest.mark.parametrize(
    ("scope", "reach"),
    [
        ("Files.Read User.Read", DriveReach.READ),
        ("https://graph.microsoft.com/Files.ReadWrite.All", DriveReach.WRITE),
        ("https://graph.microsoft.com/.default", DriveReach.WRITE),
        ("Sites.Read.All offline_access", DriveReach.READ),
        ("onedrive.readonly wl.signin", DriveReach.READ),
        ("Files.ReadWrite.AppFolder", DriveReach.APP_FOLDER),
        ("openid profile User.Read Mail.Read", DriveReach.NOTHING),
        ("", DriveReach.NOTHING),
    ],
)
def test_scopes_decide_the_reach_into_the_drive(scope: str, reach: DriveReach) -> None:
    assert drive_reach(scope) is reach


@pytest.mark.parametrize(
    ("granted", "requested", "is_covered"),
    [
        ("Files.ReadWrite", "Files.Read", True),
        ("Files.Read", "Files.ReadWrite", False),
        ("Files.Read", "Mail.Read", False),
        ("Files.ReadWrite.AppFolder", "Files.Read", False),
        ("Files.Read", "openid profile offline_access Files.Read", True),
        ("Files.Read.All", "https://graph.microsoft.com/Files.Read.All", True),
    ],
)
def test_granted_scopes_cover_wanted_ones(granted: str, requested: str, is_covered: bool) -> None:
    assert scopes_cover(granted, requested) is is_covered


def test_a_token_that_reads_does_not_write(graph: GraphWire) -> None:
    item = graph.put("a.txt")
    token = refresh(graph, scope="Files.Read").value["access_token"]
    address = f"/v1.0/me/drive/items/{item['id']}"
    assert graph("GET", address, token=token).status == 200
    assert graph("GET", f"{ROOT}/delta", token=token).status == 200
    for method, path, body in (
        ("PUT", f"{ROOT}:/b.txt:/content", b"x"),
        ("PATCH", address, {"name": "b.txt"}),
        ("DELETE", address, None),
        ("POST", f"{ROOT}/children", {"name": "b", "folder": {}}),
        ("POST", f"{address}/copy", {"name": "b.txt"}),
        ("POST", f"{address}/createLink", {"type": "view"}),
        ("POST", f"{ROOT}:/b.txt:/createUploadSession", {}),
    ):
        reply = graph(method, path, body, token=token)
        assert (reply.status, reply.code) == (403, "accessDenied"), path


def test_a_token_without_files_reaches_nothing(graph: GraphWire) -> None:
    token = refresh(graph, scope="User.Read").value["access_token"]
    assert graph("GET", "/v1.0/me", token=token).status == 200
    assert graph("GET", ROOT, token=token).code == "accessDenied"
    assert graph("GET", "/v1.0/me/drive", token=token).code == "accessDenied"


def test_an_application_in_its_own_folder(graph: GraphWire) -> None:
    elsewhere = graph.put("a.txt")["id"]
    token = refresh(graph, scope="Files.ReadWrite.AppFolder").value["access_token"]
    own = graph("PUT", "/v1.0/me/drive/special/approot:/b/c.txt:/content", b"x", token=token)
    assert own.status == 201
    assert graph("GET", f"/v1.0/me/drive/items/{own.value['id']}", token=token).status == 200
    path = own.value["parentReference"]["path"].partition("root:")[2]
    assert graph("GET", f"{ROOT}:{path}/c.txt", token=token).status == 200
    for address in (ROOT, f"/v1.0/me/drive/items/{elsewhere}", f"{ROOT}:/a.txt", "/v1.0/me/drive/special/documents"):
        assert graph("GET", address, token=token).status == 403, address


def test_refresh_does_not_widen_granted_scopes(graph: GraphWire) -> None:
    tokens = exchange_code(graph, code_for(graph, scope="Files.Read offline_access")).value
    assert tokens["scope"] == "Files.Read offline_access"
    reply = refresh(graph, tokens["refresh_token"], scope=FULL)
    assert (reply.status, reply.value["error_codes"]) == (400, [65001])
    renewed_tokens = refresh(graph, tokens["refresh_token"]).value
    assert renewed_tokens["scope"] == "Files.Read offline_access"
    narrower = refresh(graph, renewed_tokens["refresh_token"], scope="User.Read offline_access").value
    assert graph("GET", ROOT, token=narrower["access_token"]).status == 403
    assert refresh(graph, narrower["refresh_token"]).value["scope"] == "Files.Read offline_access"
    assert refresh(graph, scope="Files.Read").status == refresh(graph, scope=FULL).status == 200
    assert graph("PUT", f"{ROOT}:/b.txt:/content", b"x", token=renewed_tokens["access_token"]).status == 403


def test_a_refresh_token_comes_only_if_it_is_asked_for(graph: GraphWire) -> None:
    assert "refresh_token" not in exchange_code(graph, code_for(graph, scope="Files.ReadWrite")).value
    assert exchange_code(graph, code_for(graph, scope=FULL)).value["refresh_token"]


# --- OpenID ---


@pytest.mark.parametrize("tenant", ["common", "consumers", "9188040d-6c67-4c5b-b112-36a304b66dad"])
def test_openid_configuration_leads_to_the_emulator(graph: GraphWire, tenant: str) -> None:
    configuration = graph("GET", f"/{tenant}/v2.0/.well-known/openid-configuration", token=None).value
    assert configuration == graph("GET", f"/{tenant}/.well-known/openid-configuration", token=None).value
    assert configuration["token_endpoint"] == f"{graph.origin}/{tenant}/oauth2/v2.0/token"
    instance = graph("GET", f"/{tenant}/discovery/instance?api-version=1.1", token=None).value
    assert instance["tenant_discovery_endpoint"].endswith(f"/{tenant}/v2.0/.well-known/openid-configuration")
    for name in ("authorization_endpoint", "device_authorization_endpoint", "jwks_uri"):
        assert configuration[name].startswith(f"{graph.origin}/{tenant}/")


def claims_of(token: str) -> dict[str, Any]:
    """Return the claims of a token."""
    text = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return claims


def test_id_token_names_the_signed_in_user(graph: GraphWire) -> None:
    code = code_for(graph, scope="openid Files.Read", nonce="n-1")
    answer = exchange_code(graph, code, client_info="1").value
    claims = claims_of(answer["id_token"])
    assert (claims["aud"], claims["nonce"], claims["preferred_username"]) == ("app", "n-1", "emulated@example.com")
    assert claims_of(f".{answer['client_info']}")["uid"] == claims["oid"]
    assert "id_token" not in exchange_code(graph, code_for(graph, scope="Files.Read")).value


def test_authorization_code_is_returned_by_form_post(graph: GraphWire) -> None:
    query = urlencode({"client_id": "app", "redirect_uri": BACK, "state": '"><x', "response_mode": "form_post"})
    reply = graph("GET", f"/common/oauth2/v2.0/authorize?{query}", token=None)
    page = reply.value.decode()
    assert (reply.status, f'action="{BACK}"' in page, '"><x' in page) == (200, True, False)
    assert 'name="code"' in page


# --- links and groups ---


def test_a_link_ends_when_it_expires() -> None:
    with (
        start_emulator("onedrive-ideal", time_scale=1000) as emulator,
        closing((graph := GraphWire(emulator.endpoint)).connection),
    ):
        item = graph.put("a.txt")
        created_at = datetime.fromisoformat(item["createdDateTime"]).astimezone(UTC)
        until = (created_at + timedelta(seconds=2000)).strftime("%Y-%m-%dT%H:%M:%SZ")
        address = f"/v1.0/me/drive/items/{item['id']}"
        link = graph("POST", f"{address}/createLink", {"type": "view", "expirationDateTime": until}).value
        assert link["expirationDateTime"] == until
        share, end_s = f"/v1.0/shares/{link['shareId']}/driveItem", time.monotonic() + HANG_S
        while (reply := graph("GET", share)).status == 200 and time.monotonic() < end_s:
            pass
        assert (reply.status, reply.code) == (403, "accessDenied")
        assert graph("GET", f"{address}/permissions/{link['id']}").status == 404
        again = graph("POST", f"{address}/createLink", {"type": "view"})
        assert (again.status, again.value["id"] == link["id"]) == (201, False)


def test_folders_pass_their_links_on(graph: GraphWire) -> None:
    graph.put("folder/below/a.txt")
    folder = graph.item("folder").value["id"]
    link = graph("POST", f"/v1.0/me/drive/items/{folder}/createLink", {"type": "view"}).value
    permissions = graph("GET", f"{ROOT}:/folder/below/a.txt:/permissions").value["value"]
    inherited = next(entry for entry in permissions if entry["id"] == link["id"])
    assert inherited["inheritedFrom"]["id"] == folder
    permission = f"{ROOT}:/folder/below/a.txt:/permissions/{link['id']}"
    assert graph("GET", permission).value["id"] == link["id"]
    assert graph("DELETE", permission).status == 403
    assert graph("DELETE", f"{ROOT}:/folder:/permissions/{link['id']}").status == 204
    assert graph("GET", permission).status == 404


def test_links_to_unknown_shares_are_refused(graph: GraphWire) -> None:
    for share, expected in (
        ("u!" + base64.urlsafe_b64encode(b"https://1drv.ms/u/c/none").decode(), (403, "accessDenied")),
        ("u!%FF", (400, "invalidRequest")),
        ("s!AvA_none", (403, "accessDenied")),
        ("u!", (403, "accessDenied")),
    ):
        reply = graph("GET", f"/v1.0/shares/{share}/driveItem")
        assert (reply.status, reply.code) == expected, share


def test_a_library_belongs_to_a_group() -> None:
    with start_emulator("onedrive-ideal") as emulator:
        emulator.control(set={"account.type": "documentLibrary"})
        emulator.control(reset=True)
        with closing((graph := GraphWire(emulator.endpoint)).connection):
            drives = graph("GET", "/v1.0/sites/team/drives").value["value"]
            assert set(drives[0]["owner"]["group"]) == {"displayName", "email", "id"}
            graph.put("folder/a.txt")
            file = graph("GET", f"/v1.0/drives/{graph.drive_id}/root:/folder:/children").value["value"][0]
            assert (file["file"]["fileExtension"], file["shared"]) == ("txt", {"scope": "users"})
            permissions = graph("GET", f"/v1.0/drives/{graph.drive_id}/items/{file['id']}/permissions").value["value"]
            groups = [entry for entry in permissions if "siteGroup" in entry["grantedToV2"]]
            assert [entry["roles"] for entry in groups] == [["owner"], ["write"], ["read"]]
            assert all(entry["inheritedFrom"] == {} for entry in permissions)
            permission = f"/v1.0/drives/{graph.drive_id}/items/{file['id']}/permissions/{groups[1]['id']}"
            assert graph("GET", permission).value["roles"] == ["write"]
            assert graph("PATCH", permission, {"roles": ["read"]}).status == 403
            invitation = {"recipients": [{"email": "a@example.com"}], "roles": ["write"]}
            invited = graph("POST", f"/v1.0/drives/{graph.drive_id}/items/{file['id']}/invite", invitation).value[
                "value"
            ][0]
            assert invited["grantedToV2"]["siteUser"]["loginName"] == "i:0#.f|membership|a@example.com"
            permission = f"/v1.0/drives/{graph.drive_id}/items/{file['id']}/permissions/{invited['id']}"
            assert graph("GET", permission).value["grantedTo"] == invited["grantedTo"]
            at_top = graph("GET", f"/v1.0/drives/{graph.drive_id}/root/permissions").value["value"]
            assert not any("inheritedFrom" in entry for entry in at_top)
