"""Tokens of Microsoft's identity platform, and the refusal of calls without a valid one.

This is Microsoft's dialect of OAuth (login.microsoftonline.com, and login.live.com for personal accounts), with the
device code flow (RFC 8628), the discovery requests of OpenID clients, and the answers with status 401 and 403.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import parse_qsl

from pytest_cloudbench.emulators.http import encode_base64url, parse_form
from pytest_cloudbench.emulators.oauth import Dialect, Grant, Renewal, credentials_of, is_plausible
from pytest_cloudbench.emulators.onedrive.address import GraphAddress
from pytest_cloudbench.emulators.onedrive.answers import GraphError
from pytest_cloudbench.emulators.onedrive.scopes import DriveReach, scopes_cover
from pytest_cloudbench.emulators.onedrive.state import GraphState, WaitingDevice
from pytest_cloudbench.emulators.skin import Answer, Call

_TENANT = "9188040d-6c67-4c5b-b112-36a304b66dad"
"""The tenant of all personal accounts, from Microsoft's documents."""
_REFRESH_TOKEN, _CLIENT_CREDENTIALS = "refresh_token", "client_credentials"
_DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
_SCOPE = "Files.ReadWrite offline_access"
_DEVICE_S = 900
_POLL_S = 5
_CHALLENGE = (
    b"www-authenticate",
    b'Bearer realm="", authorization_uri="https://login.microsoftonline.com/common/oauth2/authorize", '
    b'client_id="00000003-0000-0000-c000-000000000000"',
)
_REFUSALS: Mapping[str, tuple[int, str]] = {
    "unsupported_grant_type": (70003, "The app requested an unsupported grant type."),
    "invalid_client": (900144, "The request body must contain the following parameter: 'client_id'."),
    "invalid_grant": (70000, "The provided value for the input parameter is not valid, or the grant has expired."),
    "invalid_request": (900144, "The request body does not contain a required parameter."),
    "redirect_uri_mismatch": (50011, "The redirect URI specified in the request does not match the app's."),
    "invalid_client_secret": (7000215, "Invalid client secret provided."),
    "consent_required": (
        65001,
        "The user or administrator has not consented to use the application with these scopes.",
    ),
    "authorization_pending": (70016, "OAuth 2.0 device flow error. Authorization is pending. Continue polling."),
    "expired_token": (
        70020,
        "The provided value for the input parameter 'device_code' is not valid. This device code has expired.",
    ),
    "bad_verification_code": (70000, "The provided value for the input parameter 'device_code' is not valid."),
}


def _format_grant(grant: Grant) -> Answer:
    answer: dict[str, Any] = {
        "token_type": "Bearer",
        "scope": grant.scope or _SCOPE,
        "expires_in": grant.expires_s,
        "ext_expires_in": grant.expires_s,
        "access_token": grant.access_token,
    }
    if grant.refresh_token:
        answer["refresh_token"] = grant.refresh_token
    return _answer_uncached(200, answer)


def _format_refusal(error: str, form: Mapping[str, str]) -> Answer:
    if error == "invalid_client" and is_plausible("client", form.get("client_id", "")):
        error = "invalid_client_secret"
    number, description = _REFUSALS.get(error, (70000, error.replace("_", " ")))
    name = {
        "redirect_uri_mismatch": "invalid_request", "invalid_client": "invalid_request",
        "invalid_client_secret": "invalid_client", "consent_required": "invalid_grant",
    }.get(error, error)  # fmt: skip
    answer = {
        "error": name,
        "error_description": f"AADSTS{number}: {description}",
        "error_codes": [number],
        "error_uri": f"https://login.microsoftonline.com/error?code={number}",
    }
    return _answer_uncached(401 if name == "invalid_client" else 400, answer)


def _answer_uncached(status: int, value: Mapping[str, Any]) -> Answer:
    headers = [(b"content-type", b"application/json; charset=utf-8"), (b"cache-control", b"no-store, no-cache")]
    return Answer(status, headers, json.dumps(value).encode())


DIALECT = Dialect(
    granted=_format_grant,
    refused=_format_refusal,
    access=("EwB", 120),
    refresh=("M.C5_BAY.", 80),
    code=("M.C5_BAY.2.U.", 36),
    proofs={
        _REFRESH_TOKEN: _REFRESH_TOKEN,
        "authorization_code": "code",
        _DEVICE_CODE: "device_code",
        _CLIENT_CREDENTIALS: "client_secret",
    },
    renewal=Renewal.BESIDE,
)
"""Microsoft's dialect of OAuth. A refresh issues another refresh token, and the old one still works."""


def grant_token(state: GraphState, call: Call) -> Answer:
    """Answer a request for a token. A device code is worth a token once its user has agreed."""
    form = parse_form(call.body)
    (client, secret), kind = credentials_of(call, form), form.get("grant_type", "")
    proof = form.get(DIALECT.proofs.get(kind, ""), "")
    if (kind == _CLIENT_CREDENTIALS and not secret) or secret.startswith("invalid"):
        return _format_refusal("invalid_client_secret", form)
    scope, granted_scope = form.get("scope", ""), ""
    if kind == _DEVICE_CODE:
        if refusal := _refuse_device(state, proof, client, call.now_s):
            return _format_refusal(refusal, form)
        scope = state.devices.pop(proof).scope
    elif kind == _REFRESH_TOKEN:
        granted_scope = state.scopes.get(proof, "")
        scope = scope or granted_scope
        if granted_scope and not scopes_cover(granted_scope, scope):
            return _format_refusal("consent_required", form)
    answer = state.oauth.token(call)
    if answer.status != 200:
        return answer
    value: dict[str, Any] = json.loads(bytes(answer.body))
    value["scope"] = scope = scope or value["scope"]
    state.scopes[value["access_token"]] = scope
    if "offline_access" not in scope.split():
        value.pop("refresh_token", None)
    else:
        refresh_token = value.setdefault("refresh_token", f"M.C5_BAY.{state.tree.random_token(80)}")
        if kind != _REFRESH_TOKEN or granted_scope:  # a token that a test invented has every scope
            state.scopes[refresh_token] = granted_scope or scope
    identity = _identity_fields(state.person, call, client, scope, form, state.nonces.pop(proof, ""))
    return _answer_uncached(200, value | identity)


def _refuse_device(state: GraphState, code: str, client: str, now_s: float) -> str:
    """Return the error for a device code, or an empty text if it is worth a token."""
    device = state.devices.get(code)
    if device is None or device.client != client:
        return "bad_verification_code"
    if device.expires_s < now_s:
        return "expired_token"
    return "" if device.is_agreed else "authorization_pending"


def _identity_fields(
    person: Mapping[str, str], call: Call, client: str, scope: str, form: Mapping[str, str], nonce: str
) -> dict[str, str]:
    """Return OpenID's token (unsigned) and ``client_info`` about the user, as far as the application asks for them."""
    identity: dict[str, str] = {}
    if "openid" in scope.split():
        claims = {
            "aud": client, "iss": f"{_origin(call)}/{_TENANT}/v2.0", "iat": int(call.now_s), "nbf": int(call.now_s),
            "exp": int(call.now_s) + 3600, "sub": person["id"], "oid": person["id"], "tid": _TENANT, "ver": "2.0",
            "name": person["displayName"], "preferred_username": person["email"], **({"nonce": nonce} if nonce else {}),
        }  # fmt: skip
        identity["id_token"] = f"{_encode_json({'typ': 'JWT', 'alg': 'none'})}.{_encode_json(claims)}."
    if form.get("client_info"):
        identity["client_info"] = _encode_json({"uid": person["id"], "utid": _TENANT})
    return identity


def _encode_json(value: Mapping[str, Any]) -> str:
    return encode_base64url(json.dumps(value).encode())


def _host(call: Call) -> str:
    return call.headers.get(b"host", b"login.microsoftonline.com").decode("latin-1")


def _origin(call: Call) -> str:
    return f"https://{_host(call)}"


def authorize_user(state: GraphState, call: Call) -> Answer:
    """Agree in place of the user, and return the code to the application in the way that ``response_mode`` names."""
    answer, query = state.oauth.authorize(call), parse_form(call.query)
    if answer.status != 302:
        return answer
    address, _, text = dict(answer.headers)[b"location"].decode().partition("?")
    parameters = parse_form(text.encode())
    state.nonces[parameters["code"]] = query.get("nonce", "")
    if query.get("response_mode") != "form_post":
        return answer
    inputs = "".join(f'<input type="hidden" name="{escape(k)}" value="{escape(v)}">' for k, v in parameters.items())
    page = (
        f'<!DOCTYPE html><form method="post" action="{escape(address)}">{inputs}<button>Continue</button></form>'
        "<script>document.forms[0].submit()</script>"
    )
    return Answer(200, [(b"content-type", b"text/html; charset=utf-8")], page.encode())


def openid_configuration(call: Call) -> Answer:
    """Answer OpenID Connect Discovery with the addresses of the identity platform."""
    home = f"{_origin(call)}/{call.parameters['tenant']}"
    return _answer_uncached(200, {
        "issuer": f"{_origin(call)}/{_TENANT}/v2.0",
        "authorization_endpoint": f"{home}/oauth2/v2.0/authorize",
        "token_endpoint": f"{home}/oauth2/v2.0/token",
        "device_authorization_endpoint": f"{home}/oauth2/v2.0/devicecode",
        "jwks_uri": f"{home}/discovery/v2.0/keys",
        "response_modes_supported": ["query", "form_post"],
        "response_types_supported": ["code"],
        "scopes_supported": ["openid", "profile", "email", "offline_access"],
        "subject_types_supported": ["pairwise"],
        "id_token_signing_alg_values_supported": ["none"],
        "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
    })  # fmt: skip


def instance_discovery(call: Call) -> Answer:
    """Answer with the host names of the identity platform."""
    host = _host(call)
    address = f"{_origin(call)}/{call.parameters['tenant']}/v2.0/.well-known/openid-configuration"
    names = {"preferred_network": host, "preferred_cache": host, "aliases": [host]}
    return _answer_uncached(200, {"tenant_discovery_endpoint": address, "api-version": "1.1", "metadata": [names]})


def issue_device_code(state: GraphState, call: Call) -> Answer:
    """Answer ``devicecode`` with a code for the client, and one for its user to type."""
    form = parse_form(call.body)
    if not form.get("client_id"):
        return _format_refusal("invalid_client", form)
    code, user_code = f"D{state.tree.random_token(100)}", state.tree.random_guid().replace("-", "")[:9].upper()
    scope = form.get("scope", "") or _SCOPE
    state.devices[code] = WaitingDevice(user_code, call.now_s + _DEVICE_S, form["client_id"], scope)
    page_url = "https://microsoft.com/devicelogin"
    return _answer_uncached(
        200,
        {
            "user_code": user_code,
            "device_code": code,
            "verification_uri": page_url,
            "expires_in": _DEVICE_S,
            "interval": _POLL_S,
            "message": f"To sign in, open the page {page_url} and enter the code {user_code} to authenticate.",
        },
    )


def accept_user_code(state: GraphState, call: Call) -> Answer:
    """Answer the page where a user types a code. The user agrees by sending it."""
    user_code = (
        {**dict(parse_qsl(call.query.decode("latin-1"))), **parse_form(call.body)}.get("otc", "").strip().upper()
    )
    devices = [device for device in state.devices.values() if user_code and device.user_code == user_code]
    text = "You have signed in." if devices else "That code didn't work. Check the code and try again."
    for device in devices:
        device.is_agreed = True
    status = 200 if devices or not user_code else 400
    return Answer(status, [(b"content-type", b"text/plain; charset=utf-8")], text.encode())


def normalise_header(header: bytes) -> bytes:
    """Return an ``Authorization`` header in the form of the keys of ``OAuth.tokens``, with ``Bearer`` capitalised."""
    if header.startswith(b"Bearer "):
        return header
    kind, _, token = header.partition(b" ")
    return b"Bearer " + token if kind.lower() == b"bearer" else header


def refuse_unauthorized(state: GraphState, call: Call, address: GraphAddress | None) -> GraphError | None:
    """Return the refusal of a call, or None if its token is valid and its scopes allow the call."""
    header = call.headers.get(b"authorization")
    if header is None:
        return GraphError(401, "InvalidAuthenticationToken", "Access token is empty.", "", (_CHALLENGE,))
    expires_s = state.oauth.tokens.get(normalise_header(header))
    if expires_s is None:
        message = "IDX14100: JWT is not well formed, there are no dots (.)."
        return GraphError(401, "InvalidAuthenticationToken", message, "", (_CHALLENGE,))
    if expires_s <= call.now_s:
        message = "Lifetime validation failed, the token is expired."
        return GraphError(401, "InvalidAuthenticationToken", message, "", (_CHALLENGE,))
    if address is None or _allows_request(state, state.find_reach(header), call.method, address):
        return None
    return GraphError(403, "accessDenied", "Access denied")


def _allows_request(state: GraphState, reach: DriveReach, method: str, address: GraphAddress) -> bool:
    """Return whether a token with this reach allows a request."""
    if reach is DriveReach.APP_FOLDER:
        is_drive = method == "GET" and not address.base and not address.function
        return is_drive or state.is_in_app_folder(address)
    return reach is DriveReach.WRITE or (reach is DriveReach.READ and method == "GET")
