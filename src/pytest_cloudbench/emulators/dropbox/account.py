"""The account, its space and its tokens, with Dropbox's words on the routes of ``emulators.oauth``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_cloudbench.emulators.accounts import display_name_of
from pytest_cloudbench.emulators.dropbox.answers import ApiError, answer_json, answer_text
from pytest_cloudbench.emulators.dropbox.args import array, string, struct, union
from pytest_cloudbench.emulators.dropbox.scopes import SCOPES
from pytest_cloudbench.emulators.dropbox.state import Function, State
from pytest_cloudbench.emulators.http import parse_form
from pytest_cloudbench.emulators.oauth import Dialect, Grant, is_plausible
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

ACCOUNT_ID = "dbid:AAemulatedAccountOfPytestCloudbench"
TEAM = {"id": "dbtid:AAemulatedTeamOfPytestCloudbench000", "name": "Emulated Team"}
_FIRST_MEMBER_ID = "dbmid:AAemulatedMemberOfPytestCloudbench"
_UNLIMITED_BYTES = 2**50
_get_account = struct(account_id=string(minimum=40, maximum=40))
_get_accounts = struct(account_ids=array(string(minimum=40, maximum=40), minimum=1, maximum=300))
_get_features = struct(
    features=array(
        union(paper_as_files=None, file_locking=None, team_shared_dropbox=None, distinct_member_home=None, other=None)
    )
)
_echo = struct(query=(string(maximum=500), ""))


def person_id(state: State) -> str:
    """Return the id of an account: ``ACCOUNT_ID`` for the first, and the same with another end for the others."""
    return _replace_end(ACCOUNT_ID, state)


def member_id(state: State) -> str:
    """Return the id that an account has in its team."""
    return _replace_end(_FIRST_MEMBER_ID, state)


def _replace_end(first_id: str, state: State) -> str:
    number, _, _ = state.address.partition(".")
    return first_id if "@" in number else f"{first_id[: -len(number)]}{number}"


def _describe_person(state: State) -> dict[str, Any]:
    name = display_name_of(state.address)
    given_name, _, surname = name.partition(" ")
    return {
        "account_id": person_id(state),
        "email": state.address,
        "name": {
            "given_name": given_name,
            "surname": surname,
            "familiar_name": given_name,
            "display_name": name,
            "abbreviated_name": given_name[0] + surname[0],
        },
        "email_verified": True,
        "disabled": False,
    }


def _run_get_account(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    if arg["account_id"] != person_id(state):
        raise ApiError("no_account")
    return {**_describe_person(state), "is_teammate": False}


def _run_get_accounts(state: State, arg: dict[str, Any], call: Call) -> list[dict[str, Any]]:
    for account_id in arg["account_ids"]:
        if account_id != person_id(state):
            failure = ApiError("no_account")
            failure.error["no_account"] = account_id
            raise failure
    return [{**_describe_person(state), "is_teammate": False} for _ in arg["account_ids"]]


def _run_get_current_account(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    """Return the description of the account, with its team if it has one."""
    namespace = state.tree.namespace
    account: dict[str, Any] = {
        **_describe_person(state),
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
        account["team_member_id"] = member_id(state)
    return account


def _run_get_space_usage(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    allocated = state.tree.store.quota_bytes or _UNLIMITED_BYTES
    allocation: dict[str, Any] = {".tag": "individual", "allocated": allocated}
    if state.account.type == "business":
        allocation = {
            ".tag": "team",
            "used": state.tree.store.used_bytes,
            "allocated": allocated,
            "user_within_team_space_allocated": 0,
            "user_within_team_space_limit_type": {".tag": "off"},
            "user_within_team_space_used_cached": 0,
        }
    return {"used": state.tree.store.used_bytes, "allocation": allocation}


def _run_get_features(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    if not arg["features"]:
        raise ApiError("empty_features_list")
    kinds = {
        "paper_as_files": {".tag": "enabled", "enabled": True},
        "file_locking": {".tag": "enabled", "enabled": state.account.type == "business"},
        "team_shared_dropbox": {".tag": "enabled", "enabled": False},
        "distinct_member_home": {".tag": "enabled", "enabled": False},
    }
    tags = [tag for tag, _ in arg["features"]]
    return {"values": [{".tag": tag, **({tag: kinds[tag]} if tag in kinds else {})} for tag in tags]}


def _run_echo(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return {"result": arg["query"]}


def _run_revoke(state: State, arg: dict[str, Any], call: Call) -> None:
    header = call.headers.get(b"authorization", b"").decode("latin-1") or parse_form(call.query)["authorization"]
    state.oauth.revoke(header.partition(" ")[2])


def _token_answer(grant: Grant) -> Answer:
    answer: dict[str, Any] = {
        "access_token": grant.access_token,
        "token_type": "bearer",
        "expires_in": grant.expires_s,
        "account_id": ACCOUNT_ID,
    }
    if grant.refresh_token or grant.scope:
        answer["scope"] = grant.scope or " ".join(sorted(SCOPES))
    if grant.refresh_token:
        answer |= {"refresh_token": grant.refresh_token, "uid": "1234567"}
    return answer_json(answer)


def _error_answer(error: str, form: Mapping[str, str]) -> Answer:
    kind = form.get("grant_type", "")
    proof = "refresh_token" if kind == "refresh_token" else "code"
    messages = {
        "unsupported_grant_type": ("unsupported_grant_type", f"grant_type {kind!r} is not supported"),
        "invalid_client": ("invalid_client_id: Invalid client_id", "no client_id"),
        "invalid_scope": ("invalid_scope", "a requested scope is unknown, or was not granted"),
        "invalid_grant": ("invalid_grant", f"{proof} is invalid or revoked"),
    }
    if is_plausible("client", form.get("client_id", "")):
        messages["invalid_client"] = (
            "invalid_client: Invalid client_id or client_secret",
            "the client_secret is wrong",
        )
    name, description = messages.get(error, (error, f"{error.replace('_', ' ')}"))
    answer = answer_json({"error_description": description, "error": name})
    answer.status = 400
    return answer


DIALECT = Dialect(
    granted=_token_answer,
    refused=_error_answer,
    shown=lambda code: answer_text(200, code),
    access=("sl.emulated-", 64),
    is_scope=SCOPES.__contains__,
    takes_query=True,  # the official SDK for JavaScript sends the fields there
)
"""Dropbox's variant of OAuth."""


FUNCTIONS: Mapping[str, Function] = {
    "users/get_account": Function(Kind.META, "rpc", _get_account, _run_get_account),
    "users/get_account_batch": Function(Kind.META, "rpc", _get_accounts, _run_get_accounts),
    "users/get_current_account": Function(Kind.META, "rpc", None, _run_get_current_account),
    "users/get_space_usage": Function(Kind.META, "rpc", None, _run_get_space_usage),
    "users/features/get_values": Function(Kind.META, "rpc", _get_features, _run_get_features),
    "check/user": Function(Kind.META, "rpc", _echo, _run_echo),
    "check/app": Function(Kind.META, "rpc", _echo, _run_echo, auth="app"),
    "auth/token/revoke": Function(Kind.FREE, "rpc", None, _run_revoke),
}
