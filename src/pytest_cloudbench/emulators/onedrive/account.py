"""Tokens of Microsoft's identity platform, and the refusal of calls without a valid one.

What may live here: how Microsoft speaks OAuth (login.microsoftonline.com, and login.live.com for personal accounts),
the device code flow (RFC 8628), and the answers with status 401.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from pytest_cloudbench.emulators.http import fields
from pytest_cloudbench.emulators.oauth import Dialect, Grant, Renewal
from pytest_cloudbench.emulators.onedrive.answers import GraphError
from pytest_cloudbench.emulators.onedrive.state import GraphState
from pytest_cloudbench.emulators.skin import Answer, Call

__all__ = ["DIALECT", "agree", "denied", "device_code", "token"]

_DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
_SCOPE = "Files.ReadWrite offline_access"
_DEVICE_S = 900
_POLL_S = 5
_CHALLENGE = (
    b"www-authenticate",
    b'Bearer realm="", authorization_uri="https://login.microsoftonline.com/common/oauth2/authorize", '
    b'client_id="00000003-0000-0000-c000-000000000000"',
)
_WORDS: Mapping[str, tuple[int, str]] = {
    "unsupported_grant_type": (70003, "The app requested an unsupported grant type."),
    "invalid_client": (900144, "The request body must contain the following parameter: 'client_id'."),
    "invalid_grant": (70000, "The provided value for the input parameter is not valid, or the grant has expired."),
    "invalid_request": (900144, "The request body does not contain a required parameter."),
    "redirect_uri_mismatch": (50011, "The redirect URI specified in the request does not match the app's."),
    "authorization_pending": (70016, "OAuth 2.0 device flow error. Authorization is pending. Continue polling."),
    "expired_token": (
        70020,
        "The provided value for the input parameter 'device_code' is not valid. This device code has expired.",
    ),
    "bad_verification_code": (70000, "The provided value for the input parameter 'device_code' is not valid."),
}


def _granted(grant: Grant) -> Answer:
    answer: dict[str, Any] = {
        "token_type": "Bearer",
        "scope": grant.scope or _SCOPE,
        "expires_in": grant.expires_s,
        "ext_expires_in": grant.expires_s,
        "access_token": grant.access_token,
    }
    if grant.refresh_token:
        answer["refresh_token"] = grant.refresh_token
    return _plain(200, answer)


def _refused(error: str, form: Mapping[str, str]) -> Answer:
    number, words = _WORDS.get(error, (70000, error.replace("_", " ")))
    name = {"redirect_uri_mismatch": "invalid_request", "invalid_client": "invalid_request"}.get(error, error)
    answer = {
        "error": name,
        "error_description": f"AADSTS{number}: {words}",
        "error_codes": [number],
        "error_uri": f"https://login.microsoftonline.com/error?code={number}",
    }
    return _plain(400, answer)


def _plain(status: int, value: Mapping[str, Any]) -> Answer:
    headers = [(b"content-type", b"application/json; charset=utf-8"), (b"cache-control", b"no-store, no-cache")]
    return Answer(status, headers, json.dumps(value).encode())


DIALECT = Dialect(
    granted=_granted,
    refused=_refused,
    access=("EwB", 120),
    refresh=("M.C5_BAY.", 80),
    code=("M.C5_BAY.2.U.", 36),
    proofs={"refresh_token": "refresh_token", "authorization_code": "code", _DEVICE: "device_code"},
    renewal=Renewal.BESIDE,
)
"""How Microsoft speaks OAuth. A refresh brings another refresh token, and the old one still works."""


def token(state: GraphState, call: Call) -> Answer:
    """The token route; a device code brings a token once its user has agreed."""
    form = fields(call.body)
    if form.get("grant_type") == _DEVICE:
        known = state.devices.get(form.get("device_code", ""))
        if known is None:
            return _refused("bad_verification_code", form)
        if known.expires_s < call.now_s:
            return _refused("expired_token", form)
        if not known.is_agreed:
            return _refused("authorization_pending", form)
        del state.devices[form["device_code"]]
    answer = state.oauth.token(call)
    if form.get("grant_type") == _DEVICE and answer.status == 200:  # this grant brings a refresh token, too
        value = json.loads(bytes(answer.body))
        answer = _plain(200, {**value, "refresh_token": f"M.C5_BAY.{state.tree.token(80)}"})
    return answer


def device_code(state: GraphState, call: Call) -> Answer:
    """``devicecode``: a code for the client, and one for its user to type."""
    form = fields(call.body)
    if not form.get("client_id"):
        return _refused("invalid_client", form)
    code, user_code = f"D{state.tree.token(100)}", state.tree.guid().replace("-", "")[:9].upper()
    state.add_device(code, user_code, call.now_s + _DEVICE_S)
    place = "https://microsoft.com/devicelogin"
    return _plain(
        200,
        {
            "user_code": user_code,
            "device_code": code,
            "verification_uri": place,
            "expires_in": _DEVICE_S,
            "interval": _POLL_S,
            "message": f"To sign in, open the page {place} and enter the code {user_code} to authenticate.",
        },
    )


def agree(state: GraphState, call: Call) -> Answer:
    """The page where a user types the code: sending a code means agreeing."""
    given = {**dict(parse_qsl(call.query.decode("latin-1"))), **fields(call.body)}.get("otc", "").strip().upper()
    known = [each for each in state.devices.values() if given and each.user_code == given]
    text = "You have signed in." if known else "That code didn't work. Check the code and try again."
    for each in known:
        each.is_agreed = True
    return Answer(200 if known or not given else 400, [(b"content-type", b"text/plain; charset=utf-8")], text.encode())


def denied(state: GraphState, call: Call) -> GraphError | None:
    """Returns the refusal of a call without a valid token."""
    header = call.headers.get(b"authorization")
    if header is None:
        return GraphError(401, "InvalidAuthenticationToken", "Access token is empty.", "", (_CHALLENGE,))
    kind, _, rest = header.partition(b" ")
    expires_s = state.oauth.tokens.get(b"Bearer " + rest if kind.lower() == b"bearer" else header)
    if expires_s is None:
        message = "IDX14100: JWT is not well formed, there are no dots (.)."
        return GraphError(401, "InvalidAuthenticationToken", message, "", (_CHALLENGE,))
    if expires_s <= call.now_s:
        message = "Lifetime validation failed, the token is expired."
        return GraphError(401, "InvalidAuthenticationToken", message, "", (_CHALLENGE,))
    return None
