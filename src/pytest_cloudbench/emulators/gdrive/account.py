"""Google's dialect of OAuth: tokens for codes, refresh tokens and service accounts, and their revocation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pytest_cloudbench.emulators.gdrive.answers import answer_json, answer_page
from pytest_cloudbench.emulators.gdrive.scopes import is_scope
from pytest_cloudbench.emulators.http import decode_base64url, parse_form
from pytest_cloudbench.emulators.oauth import Dialect, Grant, OAuth, is_plausible
from pytest_cloudbench.emulators.skin import Answer, Call

_ASSERTION = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_SCOPE = "https://www.googleapis.com/auth/drive"
_REFUSALS: Mapping[str, tuple[int, str]] = {
    "invalid_client": (401, "The OAuth client was not found."),
    "invalid_grant": (400, "Bad Request"),
    "invalid_token": (400, "Token expired or revoked"),
    "redirect_uri_mismatch": (400, "Bad Request"),
    "invalid_scope": (400, "Some requested scopes were invalid."),
    "invalid_request": (400, "Missing required parameter"),
}


def _format_grant(grant: Grant) -> Answer:
    answer: dict[str, Any] = {"access_token": grant.access_token, "expires_in": max(1, grant.expires_s - 1)}
    if grant.refresh_token:
        answer["refresh_token"] = grant.refresh_token
    if grant.kind != _ASSERTION:
        answer["scope"] = grant.scope or _SCOPE
    return answer_json({**answer, "token_type": "Bearer"})


def _format_refusal(error: str, form: Mapping[str, str]) -> Answer:
    status, message = _REFUSALS.get(error, (400, "Bad Request"))
    if error == "invalid_client" and is_plausible("client", form.get("client_id", "")):
        message = "Unauthorized"
    if error == "unsupported_grant_type":
        message = f"Invalid grant_type: {form.get('grant_type', '')}"
    if error == "invalid_grant" and form.get("grant_type") == "refresh_token":
        message = "Token has been expired or revoked."
    if error == "invalid_grant" and form.get("grant_type") == _ASSERTION:
        message = "Invalid JWT Signature."
    if "redirect_uri" in form and "grant_type" not in form:
        return answer_page(400, f"Error 400: {error}")
    answer = answer_json({"error": error, "error_description": message})
    answer.status = status
    return answer


def _accepts_proof(kind: str, proof: str) -> bool:
    """Return whether an assertion names its issuer, its token route and its period. The signature is not checked."""
    if kind != _ASSERTION:
        return is_plausible(kind, proof)
    claims, signature = _read_claims(proof), proof.rpartition(".")[2]
    try:
        return bool(signature and claims["iss"] and claims["aud"] and claims["exp"] > claims["iat"])
    except (KeyError, TypeError):
        return False


def _read_claims(assertion: str) -> Mapping[str, Any]:
    """Return the claims of an assertion, or an empty mapping if it cannot be read."""
    payload = assertion.partition(".")[2].partition(".")[0]
    try:
        claims = json.loads(decode_base64url(payload))
    except (ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


DIALECT = Dialect(
    granted=_format_grant,
    refused=_format_refusal,
    access=("ya29.emulated-", 64),
    refresh=("1//emulated-", 60),
    code=("4/0emulated-", 40),
    proofs={"refresh_token": "refresh_token", "authorization_code": "code", _ASSERTION: "assertion"},
    clientless=frozenset({_ASSERTION}),
    accepts=_accepts_proof,
    is_scope=is_scope,
    asserted_scopes=lambda kind, proof: str(_read_claims(proof).get("scope", "")) if kind == _ASSERTION else "",
)
"""Google's dialect of OAuth."""


def revoke_token(oauth: OAuth, call: Call) -> Answer:
    """Revoke the token that is in the form or in the query."""
    token = (parse_form(call.body) | parse_form(call.query)).get("token", "")
    return answer_json({}) if oauth.revoke(token) else _format_refusal("invalid_token", {})
