"""The account, its space, and the tokens.

What may live here: ``users/``, ``check/``, ``auth/`` and the two OAuth functions. Any plausible refresh token
or code is good, because a test has to bring one; those that begin with ``invalid`` or were revoked are not.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlencode

from pytest_cloudbench.emulators.dropbox.answers import ApiError, answer_json, answer_text
from pytest_cloudbench.emulators.dropbox.args import array, string, struct
from pytest_cloudbench.emulators.dropbox.state import Function, State
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

__all__ = ["ACCOUNT_ID", "FUNCTIONS", "TEAM", "TEAM_MEMBER_ID", "authorize", "is_app", "token"]

ACCOUNT_ID = "dbid:AAemulatedAccountOfPytestCloudbench"
TEAM = {"id": "dbtid:AAemulatedTeamOfPytestCloudbench000", "name": "Emulated Team"}
TEAM_MEMBER_ID = "dbmid:AAemulatedMemberOfPytestCloudbench"
_UNLIMITED_BYTES = 2**50
_SCOPE = "account_info.read files.content.read files.content.write files.metadata.read sharing.read sharing.write"
_get_account = struct(account_id=string(minimum=40, maximum=40))
_get_accounts = struct(account_ids=array(string(minimum=40, maximum=40), minimum=1, maximum=300))
_echo = struct(query=(string(maximum=500), ""))


_PERSON: Mapping[str, Any] = {
    "account_id": ACCOUNT_ID,
    "name": {
        "given_name": "Emulated",
        "surname": "User",
        "familiar_name": "Emulated",
        "display_name": "Emulated User",
        "abbreviated_name": "EU",
    },
    "email": "emulated@example.com",
    "email_verified": True,
    "disabled": False,
}


def _run_get_account(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    if arg["account_id"] != ACCOUNT_ID:
        raise ApiError("no_account")
    return {**_PERSON, "is_teammate": False}


def _run_get_accounts(state: State, arg: dict[str, Any], call: Call) -> list[dict[str, Any]]:
    for account_id in arg["account_ids"]:
        if account_id != ACCOUNT_ID:
            failure = ApiError("no_account")
            failure.error["no_account"] = account_id
            raise failure
    return [{**_PERSON, "is_teammate": False} for _ in arg["account_ids"]]


def _run_get_current_account(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    namespace = state.tree.namespace
    account: dict[str, Any] = {
        **_PERSON,
        "country": "US",
        "locale": "en",
        "referral_link": "https://db.tt/emulated",
        "is_paired": False,
        "account_type": {".tag": state.account.type},
        "root_info": {".tag": "user", "root_namespace_id": namespace, "home_namespace_id": namespace},
    }
    if state.account.type == "business":
        account["team"] = {
            **TEAM,
            "sharing_policies": {
                "shared_folder_member_policy": {".tag": "anyone"},
                "shared_folder_join_policy": {".tag": "from_anyone"},
                "shared_link_create_policy": {".tag": "default_public"},
                "group_creation_policy": {".tag": "admins_and_members"},
                "shared_folder_link_restriction_policy": {".tag": "anyone"},
                "enforce_link_password_policy": {".tag": "optional"},
                "default_link_expiration_days_policy": {".tag": "none"},
                "shared_link_default_permissions_policy": {".tag": "default"},
            },
            "office_addin_policy": {".tag": "disabled"},
            "top_level_content_policy": {".tag": "everyone"},
        }
        account["team_member_id"] = TEAM_MEMBER_ID
    return account


def _run_get_space_usage(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    allocated = state.tree.quota_bytes or _UNLIMITED_BYTES
    allocation: dict[str, Any] = {".tag": "individual", "allocated": allocated}
    return {"used": state.tree.used_bytes, "allocation": allocation}


def _run_echo(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return {"result": arg["query"]}


def _run_revoke(state: State, arg: dict[str, Any], call: Call) -> None:
    header = next(value for name, value in call.headers if name == b"authorization")
    state.tokens.pop(header, None)


def _issue(state: State, now_s: float) -> str:
    access_token = state.tree.token("sl.emulated-", 64)
    state.tokens[f"Bearer {access_token}".encode()] = now_s + state.account.token_lifetime_s
    return access_token


def token(state: State, call: Call) -> Answer:
    """``oauth2/token``: an access token for a refresh token or a code."""
    form = {name: values[-1] for name, values in parse_qs(call.body.decode("utf-8", "replace")).items()}
    grant = form.get("grant_type", "")
    proof = form.get({"refresh_token": "refresh_token", "authorization_code": "code"}.get(grant, ""), "")
    if grant not in ("refresh_token", "authorization_code"):
        return _oauth_error("unsupported_grant_type", f"grant_type {grant!r} is not supported")
    if not form.get("client_id") and not any(name == b"authorization" for name, _ in call.headers):
        return _oauth_error("invalid_client_id: Invalid client_id", "no client_id")
    if not proof or proof.startswith("invalid") or proof in state.dead_grants:
        return _oauth_error("invalid_grant", f"{'code' if grant != 'refresh_token' else grant} is invalid or revoked")
    answer: dict[str, Any] = {
        "access_token": _issue(state, call.now_s),
        "token_type": "bearer",
        "expires_in": int(state.account.token_lifetime_s),
        "account_id": ACCOUNT_ID,
    }
    if grant == "authorization_code":
        state.dead_grants.add(proof)
        answer |= {"refresh_token": state.tree.token("", 64), "scope": _SCOPE, "uid": "1234567"}
    return answer_json(answer)


def _oauth_error(error: str, description: str) -> Answer:
    answer = answer_json({"error_description": description, "error": error})
    answer.status = 400
    return answer


def authorize(state: State, call: Call) -> Answer:
    """``oauth2/authorize``: agree at once and send the browser back with a code, or show it."""
    query = {name: values[-1] for name, values in parse_qs(call.query.decode("ascii", "replace")).items()}
    code = state.tree.token("", 43)
    if "redirect_uri" not in query:
        return answer_text(200, code)
    back = {"code": code, **({"state": query["state"]} if "state" in query else {})}
    place = f"{query['redirect_uri']}?{urlencode(back)}"
    return Answer(302, [(b"location", place.encode("ascii", "replace"))], b"")


def is_app(header: bytes) -> bool:
    """Whether an ``Authorization`` header names an app with its secret."""
    scheme, _, pair = header.partition(b" ")
    try:
        return scheme.lower() == b"basic" and b":" in base64.b64decode(pair, validate=True)
    except ValueError:
        return False


FUNCTIONS: Mapping[str, Function] = {
    "users/get_account": Function(Kind.META, "rpc", _get_account, _run_get_account),
    "users/get_account_batch": Function(Kind.META, "rpc", _get_accounts, _run_get_accounts),
    "users/get_current_account": Function(Kind.META, "rpc", None, _run_get_current_account),
    "users/get_space_usage": Function(Kind.META, "rpc", None, _run_get_space_usage),
    "check/user": Function(Kind.META, "rpc", _echo, _run_echo),
    "check/app": Function(Kind.META, "rpc", _echo, _run_echo, auth="app"),
    "auth/token/revoke": Function(Kind.FREE, "rpc", None, _run_revoke),
}
