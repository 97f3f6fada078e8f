"""Tests of rights in the OneDrive emulator: applications, tokens and their scopes, links, groups of a library."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.emulators.onedrive.scopes import DriveReach, drive_reach, scopes_cover
from tests.limits import HANG_S

from .graph_wire import GraphReply, GraphWire

ROOT = "/v1.0/me/drive/root"
BACK = "http://localhost:5/back"
FULL = "Files.ReadWrite offline_access"


@pytest.fixture(scope="module")
def running() -> Iterator[EmulatorService]:
    with start_emulator("onedrive-ideal") as emulator:
        yield emulator


@pytest.fixture
def wire(running: EmulatorService) -> Iterator[GraphWire]:
    running.control(reset=True)
    client = GraphWire(running.endpoint)
    yield client
    client.connection.close()


def ask(wire: GraphWire, path: str = "token", **form: str) -> GraphReply:
    """Send a form to the identity platform."""
    headers = {"Content_Type": "application/x-www-form-urlencoded"}
    body = urlencode({"client_id": "app", **form}).encode()
    return wire("POST", f"/common/oauth2/v2.0/{path}", body, token=None, **headers)


def refresh(wire: GraphWire, token: str = "made-up", **form: str) -> GraphReply:
    """Request a new token with a refresh token."""
    return ask(wire, grant_type="refresh_token", refresh_token=token, **form)


def code_for(wire: GraphWire, **query: str) -> str:
    """Let the user agree, and return the code from the redirect."""
    query_string = urlencode({"client_id": "app", "redirect_uri": BACK, "response_type": "code", **query})
    reply = wire("GET", f"/common/oauth2/v2.0/authorize?{query_string}", token=None)
    return parse_qs(urlsplit(reply.headers["location"]).query)["code"][0]


def exchange_code(wire: GraphWire, code: str, **form: str) -> GraphReply:
    """Request a token for a code."""
    return ask(wire, grant_type="authorization_code", code=code, redirect_uri=BACK, **form)


# --- applications ---


@pytest.mark.parametrize("wrong", ["", "other", "right ", "RIGHT", "invalid"])
def test_an_application_has_one_secret(wire: GraphWire, wrong: str) -> None:
    assert refresh(wire, client_secret="right").status == 200
    reply = refresh(wire, client_secret=wrong)
    assert (reply.status, reply.value["error"], reply.value["error_codes"]) == (401, "invalid_client", [7000215])
    if wrong:
        assert exchange_code(wire, code_for(wire), client_secret=wrong).status == 401
    assert refresh(wire, client_secret="right").status == 200
    assert refresh(wire, "another", client_id="public").status == 200


def test_application_obtains_token_by_its_own_credentials(wire: GraphWire) -> None:
    form = {"grant_type": "client_credentials", "scope": "https://graph.microsoft.com/.default"}
    assert ask(wire, **form).value["error"] == "invalid_client"
    answer = ask(wire, client_secret="right", **form).value
    assert "refresh_token" not in answer
    assert wire("PUT", f"{ROOT}:/a.txt:/content", b"x", token=answer["access_token"]).status == 201
    assert ask(wire, client_secret="wrong", **form).status == 401


def test_a_refresh_token_belongs_to_one_application(wire: GraphWire) -> None:
    refresh_token = exchange_code(wire, code_for(wire, scope=FULL)).value["refresh_token"]
    reply = refresh(wire, refresh_token, client_id="other")
    assert (reply.status, reply.value["error"]) == (400, "invalid_grant")
    assert refresh(wire, refresh_token).status == 200
    assert refresh(wire).status == 200
    assert refresh(wire, client_id="other").value["error"] == "invalid_grant"


def test_a_device_code_belongs_to_one_application(wire: GraphWire) -> None:
    device = ask(wire, "devicecode", scope="Files.Read").value
    wire("GET", f"/devicelogin?otc={device['user_code']}", token=None)
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "device_code": device["device_code"]}
    assert ask(wire, client_id="other", **form).value["error"] == "bad_verification_code"
    answer = ask(wire, **form).value
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


def test_a_token_that_reads_does_not_write(wire: GraphWire) -> None:
    item = wire.put("a.txt")
    token = refresh(wire, scope="Files.Read").value["access_token"]
    address = f"/v1.0/me/drive/items/{item['id']}"
    assert wire("GET", address, token=token).status == 200
    assert wire("GET", f"{ROOT}/delta", token=token).status == 200
    for method, path, body in (
        ("PUT", f"{ROOT}:/b.txt:/content", b"x"),
        ("PATCH", address, {"name": "b.txt"}),
        ("DELETE", address, None),
        ("POST", f"{ROOT}/children", {"name": "b", "folder": {}}),
        ("POST", f"{address}/copy", {"name": "b.txt"}),
        ("POST", f"{address}/createLink", {"type": "view"}),
        ("POST", f"{ROOT}:/b.txt:/createUploadSession", {}),
    ):
        reply = wire(method, path, body, token=token)
        assert (reply.status, reply.code) == (403, "accessDenied"), path


def test_a_token_without_files_reaches_nothing(wire: GraphWire) -> None:
    token = refresh(wire, scope="User.Read").value["access_token"]
    assert wire("GET", "/v1.0/me", token=token).status == 200
    assert wire("GET", ROOT, token=token).code == "accessDenied"
    assert wire("GET", "/v1.0/me/drive", token=token).code == "accessDenied"


def test_an_application_in_its_own_folder(wire: GraphWire) -> None:
    elsewhere = wire.put("a.txt")["id"]
    token = refresh(wire, scope="Files.ReadWrite.AppFolder").value["access_token"]
    own = wire("PUT", "/v1.0/me/drive/special/approot:/b/c.txt:/content", b"x", token=token)
    assert own.status == 201
    assert wire("GET", f"/v1.0/me/drive/items/{own.value['id']}", token=token).status == 200
    path = own.value["parentReference"]["path"].partition("root:")[2]
    assert wire("GET", f"{ROOT}:{path}/c.txt", token=token).status == 200
    for address in (ROOT, f"/v1.0/me/drive/items/{elsewhere}", f"{ROOT}:/a.txt", "/v1.0/me/drive/special/documents"):
        assert wire("GET", address, token=token).status == 403, address


def test_refresh_does_not_widen_granted_scopes(wire: GraphWire) -> None:
    tokens = exchange_code(wire, code_for(wire, scope="Files.Read offline_access")).value
    assert tokens["scope"] == "Files.Read offline_access"
    reply = refresh(wire, tokens["refresh_token"], scope=FULL)
    assert (reply.status, reply.value["error_codes"]) == (400, [65001])
    renewed_tokens = refresh(wire, tokens["refresh_token"]).value
    assert renewed_tokens["scope"] == "Files.Read offline_access"
    narrower = refresh(wire, renewed_tokens["refresh_token"], scope="User.Read offline_access").value
    assert wire("GET", ROOT, token=narrower["access_token"]).status == 403
    assert refresh(wire, narrower["refresh_token"]).value["scope"] == "Files.Read offline_access"
    assert refresh(wire, scope="Files.Read").status == refresh(wire, scope=FULL).status == 200
    assert wire("PUT", f"{ROOT}:/b.txt:/content", b"x", token=renewed_tokens["access_token"]).status == 403


def test_a_refresh_token_comes_only_if_it_is_asked_for(wire: GraphWire) -> None:
    assert "refresh_token" not in exchange_code(wire, code_for(wire, scope="Files.ReadWrite")).value
    assert exchange_code(wire, code_for(wire, scope=FULL)).value["refresh_token"]


# --- OpenID ---


@pytest.mark.parametrize("tenant", ["common", "consumers", "9188040d-6c67-4c5b-b112-36a304b66dad"])
def test_openid_configuration_leads_to_the_emulator(wire: GraphWire, tenant: str) -> None:
    configuration = wire("GET", f"/{tenant}/v2.0/.well-known/openid-configuration", token=None).value
    assert configuration == wire("GET", f"/{tenant}/.well-known/openid-configuration", token=None).value
    assert configuration["token_endpoint"] == f"{wire.origin}/{tenant}/oauth2/v2.0/token"
    instance = wire("GET", f"/{tenant}/discovery/instance?api-version=1.1", token=None).value
    assert instance["tenant_discovery_endpoint"].endswith(f"/{tenant}/v2.0/.well-known/openid-configuration")
    for name in ("authorization_endpoint", "device_authorization_endpoint", "jwks_uri"):
        assert configuration[name].startswith(f"{wire.origin}/{tenant}/")


def claims_of(token: str) -> dict[str, Any]:
    """Return the claims of a token."""
    text = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return claims


def test_id_token_names_the_signed_in_user(wire: GraphWire) -> None:
    code = code_for(wire, scope="openid Files.Read", nonce="n-1")
    answer = exchange_code(wire, code, client_info="1").value
    claims = claims_of(answer["id_token"])
    assert (claims["aud"], claims["nonce"], claims["preferred_username"]) == ("app", "n-1", "emulated@example.com")
    assert claims_of(f".{answer['client_info']}")["uid"] == claims["oid"]
    assert "id_token" not in exchange_code(wire, code_for(wire, scope="Files.Read")).value


def test_authorization_code_is_returned_by_form_post(wire: GraphWire) -> None:
    query = urlencode({"client_id": "app", "redirect_uri": BACK, "state": '"><x', "response_mode": "form_post"})
    reply = wire("GET", f"/common/oauth2/v2.0/authorize?{query}", token=None)
    page = reply.value.decode()
    assert (reply.status, f'action="{BACK}"' in page, '"><x' in page) == (200, True, False)
    assert 'name="code"' in page


# --- links and groups ---


def test_a_link_ends_when_it_expires() -> None:
    with (
        start_emulator("onedrive-ideal", time_scale=1000) as emulator,
        closing((wire := GraphWire(emulator.endpoint)).connection),
    ):
        item = wire.put("a.txt")
        created_at = datetime.fromisoformat(item["createdDateTime"]).astimezone(UTC)
        until = (created_at + timedelta(seconds=2000)).strftime("%Y-%m-%dT%H:%M:%SZ")
        address = f"/v1.0/me/drive/items/{item['id']}"
        link = wire("POST", f"{address}/createLink", {"type": "view", "expirationDateTime": until}).value
        assert link["expirationDateTime"] == until
        share, end_s = f"/v1.0/shares/{link['shareId']}/driveItem", time.monotonic() + HANG_S
        while (reply := wire("GET", share)).status == 200 and time.monotonic() < end_s:
            pass
        assert (reply.status, reply.code) == (403, "accessDenied")
        assert wire("GET", f"{address}/permissions/{link['id']}").status == 404
        again = wire("POST", f"{address}/createLink", {"type": "view"})
        assert (again.status, again.value["id"] == link["id"]) == (201, False)


def test_folders_pass_their_links_on(wire: GraphWire) -> None:
    wire.put("folder/below/a.txt")
    folder = wire.item("folder").value["id"]
    link = wire("POST", f"/v1.0/me/drive/items/{folder}/createLink", {"type": "view"}).value
    permissions = wire("GET", f"{ROOT}:/folder/below/a.txt:/permissions").value["value"]
    inherited = next(entry for entry in permissions if entry["id"] == link["id"])
    assert inherited["inheritedFrom"]["id"] == folder
    permission = f"{ROOT}:/folder/below/a.txt:/permissions/{link['id']}"
    assert wire("GET", permission).value["id"] == link["id"]
    assert wire("DELETE", permission).status == 403
    assert wire("DELETE", f"{ROOT}:/folder:/permissions/{link['id']}").status == 204
    assert wire("GET", permission).status == 404


def test_links_to_unknown_shares_are_refused(wire: GraphWire) -> None:
    for share, expected in (
        ("u!" + base64.urlsafe_b64encode(b"https://1drv.ms/u/c/none").decode(), (403, "accessDenied")),
        ("u!%FF", (400, "invalidRequest")),
        ("s!AvA_none", (403, "accessDenied")),
        ("u!", (403, "accessDenied")),
    ):
        reply = wire("GET", f"/v1.0/shares/{share}/driveItem")
        assert (reply.status, reply.code) == expected, share


def test_a_library_belongs_to_a_group() -> None:
    with start_emulator("onedrive-ideal") as emulator:
        emulator.control(set={"account.type": "documentLibrary"})
        emulator.control(reset=True)
        with closing((wire := GraphWire(emulator.endpoint)).connection):
            drives = wire("GET", "/v1.0/sites/team/drives").value["value"]
            assert set(drives[0]["owner"]["group"]) == {"displayName", "email", "id"}
            wire.put("folder/a.txt")
            file = wire("GET", f"/v1.0/drives/{wire.drive_id}/root:/folder:/children").value["value"][0]
            assert (file["file"]["fileExtension"], file["shared"]) == ("txt", {"scope": "users"})
            permissions = wire("GET", f"/v1.0/drives/{wire.drive_id}/items/{file['id']}/permissions").value["value"]
            groups = [entry for entry in permissions if "siteGroup" in entry["grantedToV2"]]
            assert [entry["roles"] for entry in groups] == [["owner"], ["write"], ["read"]]
            assert all(entry["inheritedFrom"] == {} for entry in permissions)
            permission = f"/v1.0/drives/{wire.drive_id}/items/{file['id']}/permissions/{groups[1]['id']}"
            assert wire("GET", permission).value["roles"] == ["write"]
            assert wire("PATCH", permission, {"roles": ["read"]}).status == 403
            invitation = {"recipients": [{"email": "a@example.com"}], "roles": ["write"]}
            invited = wire("POST", f"/v1.0/drives/{wire.drive_id}/items/{file['id']}/invite", invitation).value[
                "value"
            ][0]
            assert invited["grantedToV2"]["siteUser"]["loginName"] == "i:0#.f|membership|a@example.com"
            permission = f"/v1.0/drives/{wire.drive_id}/items/{file['id']}/permissions/{invited['id']}"
            assert wire("GET", permission).value["grantedTo"] == invited["grantedTo"]
            at_top = wire("GET", f"/v1.0/drives/{wire.drive_id}/root/permissions").value["value"]
            assert not any("inheritedFrom" in entry for entry in at_top)
