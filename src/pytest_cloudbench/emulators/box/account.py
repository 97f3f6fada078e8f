"""The account, its space and the token routes, in Box's words. ``emulators.oauth`` does the work of the token routes.

A refresh token works once, as Box's do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pytest_cloudbench.emulators.box.answers import BoxError, answer_json, timestamp
from pytest_cloudbench.emulators.box.items import mini_item, read_query, requested_fields
from pytest_cloudbench.emulators.box.scopes import SCOPES, Bounds, parse_resource
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState
from pytest_cloudbench.emulators.box.uploads import MAX_UPLOAD_BYTES
from pytest_cloudbench.emulators.http import parse_form
from pytest_cloudbench.emulators.oauth import Dialect, Grant, Renewal
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

_UNLIMITED_BYTES = 10**15
"""The quota that an account with unlimited space reports."""

_JWT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_PROOFS = {
    "refresh_token": "refresh_token",
    "authorization_code": "code",
    "client_credentials": "box_subject_id",
    _JWT: "assertion",
    _EXCHANGE: "subject_token",
}

_GRANT_ERRORS = {
    "refresh_token": "Invalid refresh token",
    "authorization_code": "Auth code doesn't exist or is invalid for the client",
    "client_credentials": "Grant credentials are invalid",
    _JWT: "Please check the 'sub' claim.",
    _EXCHANGE: "Invalid subject_token",
}
_ERRORS = {
    "invalid_client": ("invalid_client", "The client credentials are invalid"),
    "unsupported_grant_type": ("invalid_request", "Invalid grant_type parameter or parameter missing"),
    "invalid_scope": ("invalid_scope", "A scope is unknown, or the token that is exchanged does not have it"),
    "invalid_resource": ("invalid_resource", "The resource is no file or folder that the token reaches"),
    "redirect_uri_mismatch": ("redirect_uri_mismatch", "The redirect URI did not match the one of the application"),
}


def _error_answer(error: str, form: Mapping[str, str]) -> Answer:
    if error == "invalid_grant":
        texts = error, _GRANT_ERRORS.get(form.get("grant_type", ""), error)
    else:
        texts = _ERRORS.get(error, (error, "Invalid request"))
    return answer_json({"error": texts[0], "error_description": texts[1]}, 400)


def _token_answer(grant: Grant) -> Answer:
    answer: dict[str, Any] = {
        "access_token": grant.access_token, "expires_in": grant.expires_s, "restricted_to": [], "token_type": "bearer",
    }  # fmt: skip
    if grant.kind == _EXCHANGE:
        answer["issued_token_type"] = "urn:ietf:params:oauth:token-type:access_token"
    if grant.refresh_token:
        answer["refresh_token"] = grant.refresh_token
    return answer_json(answer)


DIALECT = Dialect(
    _token_answer, _error_answer, access=("", 32), refresh=("", 64), code=("", 32), proofs=_PROOFS,
    clientless=frozenset({_EXCHANGE}), renewal=Renewal.INSTEAD,
)  # fmt: skip
"""Box's words for OAuth (its specification, and its guide to common errors)."""


# -------------------------------------------------------------------- tokens


def _issue_token(state: BoxState, call: Call) -> Answer:
    form = parse_form(call.body)
    kind = form.get("grant_type", "")
    needs_secret = kind in _PROOFS and kind != _EXCHANGE and "code_verifier" not in form
    if (needs_secret and not form.get("client_secret")) or not _is_right_secret(state, form):
        return _error_answer("invalid_client", form)
    proof = form.get(_PROOFS.get(kind, ""), "")
    bounds = state.bounds.get(proof)
    if kind == _EXCHANGE:
        downscoped = _downscope(state, bounds, form, call.now_s)
        if isinstance(downscoped, str):
            return _error_answer(downscoped, form)
        bounds = downscoped
    answer = state.oauth.token(call)
    return answer if bounds is None or answer.status != 200 else _limit_tokens(state, answer, bounds)


def _limit_tokens(state: BoxState, answer: Answer, bounds: Bounds) -> Answer:
    """Record the bounds of the tokens in an answer, and return the answer with them."""
    value = json.loads(bytes(answer.body))
    state.bounds |= {value[name]: bounds for name in ("access_token", "refresh_token") if name in value}
    if bounds.node is not None:
        item = mini_item(state, bounds.node)
        value["restricted_to"] = [{"scope": scope, "object": item} for scope in sorted(bounds.scopes)]
    return answer_json(value)


def _is_right_secret(state: BoxState, form: Mapping[str, str]) -> bool:
    """Return whether an application sent its own secret, or none."""
    secret = form.get("client_secret", "")
    is_accepted = not secret or state.oauth.accepts_secret(form.get("client_id", ""), secret)
    return is_accepted and not secret.startswith("invalid")


def _downscope(state: BoxState, former: Bounds | None, form: Mapping[str, str], now_s: float) -> Bounds | str:
    """Return the bounds of a token that is requested in exchange for another one, or the name of an error."""
    if not state.oauth.is_valid(f"Bearer {form.get('subject_token', '')}".encode(), now_s):
        return "invalid_grant"
    scopes, address = frozenset(form.get("scope", "").split()), form.get("resource", "")
    if not scopes or not scopes <= SCOPES.keys():
        return "invalid_scope"
    kind, item_id = parse_resource(address)
    if address and not kind:
        return "invalid_resource"
    try:
        node = None if not kind else state.find_folder(item_id) if kind == "folders" else state.find_file(item_id)
    except BoxError:
        return "invalid_resource"
    downscoped = Bounds(scopes, node) if former is None else former.within(scopes, node)
    return "invalid_scope" if downscoped is None else downscoped


def _revoke_token(state: BoxState, call: Call) -> Answer:
    form = parse_form(call.body)
    if not form.get("client_id") or not form.get("client_secret") or not _is_right_secret(state, form):
        return _error_answer("invalid_client", form)
    state.oauth.revoke(form.get("token", ""))
    return Answer(200, [], b"")


def _authorize_client(state: BoxState, call: Call) -> Answer:
    answer, scope = state.oauth.authorize(call), read_query(call).get("scope", "")
    if answer.status == 302 and scope:
        location = dict(answer.headers)[b"location"]
        state.bounds[parse_form(location.partition(b"?")[2])["code"]] = Bounds(frozenset(scope.split()))
    return answer


# -------------------------------------------------------------------- users


def _get_current_user(state: BoxState, call: Call) -> Answer:
    """Answer with the user, in the standard form or with the requested fields only."""
    started = timestamp(state.started_s)
    user: dict[str, Any] = {
        **state.user,
        "created_at": started, "modified_at": started, "language": "en", "timezone": "America/Los_Angeles",
        "space_amount": state.store.quota_bytes or _UNLIMITED_BYTES, "space_used": state.store.used_bytes,
        "max_upload_size": MAX_UPLOAD_BYTES[state.account.type], "status": "active", "job_title": "", "phone": "",
        "address": "", "avatar_url": f"https://app.box.com/api/avatar/large/{state.user['id']}",
        "notification_email": None,
    }  # fmt: skip
    names = requested_fields(read_query(call))
    if names is None:
        return answer_json(user)
    user |= {
        "role": "admin", "tracking_codes": [], "can_see_managed_users": True, "is_sync_enabled": True,
        "is_external_collab_restricted": False, "is_exempt_from_device_limits": False,
        "is_exempt_from_login_verification": False, "my_tags": [], "hostname": "https://app.box.com/",
        "is_platform_access_only": False,
    }  # fmt: skip
    if state.enterprise is not None:
        user["enterprise"] = state.enterprise
    return answer_json({key: user[key] for key in dict.fromkeys(("type", "id", *names)) if key in user})


def _get_user(state: BoxState, call: Call) -> Answer:
    if call.parameters["id"] != state.user["id"]:
        raise BoxError(404, "not_found")
    return _get_current_user(state, call)


FUNCTIONS = (
    BoxFunction("GET", "/2.0/users/me", "user_me", Kind.META, _get_current_user),
    BoxFunction("GET", "/2.0/users/{id}", "user_get", Kind.META, _get_user),
    *(
        BoxFunction(method, f"{home}{path}", name, Kind.FREE, run, is_open=True)
        for home in ("", "/api")
        for method, path, name, run in (
            ("POST", "/oauth2/token", "oauth_token", _issue_token),
            ("POST", "/oauth2/revoke", "oauth_revoke", _revoke_token),
            ("GET", "/oauth2/authorize", "oauth_authorize", _authorize_client),
        )
    ),
)
