"""Dropbox's API v2 on top of the core, written from the published specification and documents.

What may live here: routing, the envelopes of a request (authentication, the argument, the form of errors). The
functions themselves are in the modules beside this one, each with its ``FUNCTIONS`` table. Nothing here imports a
driver or the official SDK, or a shared bug would go unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from typing import Any

from pytest_cloudbench.emulators.core import Tokens
from pytest_cloudbench.emulators.dropbox import (
    account,
    batches,
    files,
    listing,
    search,
    shared_folders,
    sharing,
    temporary,
    transfers,
    uploads,
)
from pytest_cloudbench.emulators.dropbox.answers import (
    ApiError,
    BadRequest,
    answer_json,
    answer_text,
    error_answer,
    unauthorized,
)
from pytest_cloudbench.emulators.dropbox.args import ArgError
from pytest_cloudbench.emulators.dropbox.blocks import BlockWriter
from pytest_cloudbench.emulators.dropbox.scopes import not_offered, required_scope
from pytest_cloudbench.emulators.dropbox.state import Function, State
from pytest_cloudbench.emulators.dropbox.tree import Tree
from pytest_cloudbench.emulators.http import parse_form
from pytest_cloudbench.emulators.oauth import OAuth, basic_credentials
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.routing import RouteTable
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Kind, Match, Route
from pytest_cloudbench.emulators.throttle import Refusal

_FUNCTIONS: Mapping[str, Function] = {
    **uploads.FUNCTIONS,
    **files.FUNCTIONS,
    **listing.FUNCTIONS,
    **search.FUNCTIONS,
    **batches.FUNCTIONS,
    **transfers.FUNCTIONS,
    **temporary.FUNCTIONS,
    **sharing.FUNCTIONS,
    **shared_folders.FUNCTIONS,
    **account.FUNCTIONS,
}
_TOKEN_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~+/=")
_TEAM_HEADERS = frozenset({b"dropbox-api-select-user", b"dropbox-api-select-admin"})
_raw_decode = json.JSONDecoder().raw_decode
_CONTENT_TYPES = {
    "rpc": (
        b"application/json",
        b"application/json; charset=utf-8",
        b"application/json;charset=utf-8",
        b"text/plain; charset=dropbox-cors-hack",
    ),
    "upload": (b"application/octet-stream", b"text/plain; charset=dropbox-cors-hack"),
}


class Dropbox:
    """The skin: see ``skin.Skin``."""

    roles = ("api", "content", "notify", "web")
    host_names = (
        "api.dropboxapi.com",
        "content.dropboxapi.com",
        "notify.dropboxapi.com",
        "api.dropbox.com",
        "content.dropbox.com",
        "www.dropbox.com",
        temporary.CONTENT_HOST,
    )

    def __init__(self, profile: Profile, clock: Clock, seed: int) -> None:
        access_token = Tokens(seed).next("sl.emulated-", 64)
        self.credentials = {"access_token": access_token}
        tree = Tree(seed=seed + 1)
        oauth = OAuth(account.DIALECT, tree.token, lambda: self.state.account.token_lifetime_s)
        oauth.add(access_token)
        self.state = State(tree, clock, profile.account, profile.jobs, oauth)
        self.configure(profile)
        token = Route("oauth2/token", Kind.FREE, oauth.token)
        authorize = Route("oauth2/authorize", Kind.FREE, oauth.authorize)
        functions = {name: self._route(name, entry) for name, entry in _FUNCTIONS.items()}
        downloads = [name for name, entry in _FUNCTIONS.items() if entry.style == "download"]
        self._routes = RouteTable(
            [
                *(("POST", f"/2/{name}", route) for name, route in functions.items()),
                *(("GET", f"/2/{name}", functions[name]) for name in downloads),
                ("POST", "/oauth2/token", token),
                ("POST", "/1/oauth2/token", token),
                ("GET", "/oauth2/authorize", authorize),
                *temporary.routes(self.state),
            ]
        )

    def configure(self, profile: Profile) -> None:
        """The profile changed."""
        self.state.tree.store.quota_bytes = profile.quota.bytes
        store, readiness = self.state.tree.store, profile.readiness
        store.readiness_s, store.list_delay_s = readiness.delay_s, readiness.list_delay_s
        store.delete_delay_s = readiness.delete_delay_s
        self.state.account = profile.account
        self.state.job_times = profile.jobs

    def route(self, method: str, path: str, query: bytes) -> Match | None:
        """Every function has its own path and uses POST; those that download also use GET."""
        return self._routes.find(method, path)

    def refused(self, call: Call, refusal: Refusal) -> Answer:
        """Status 429; the body names the wait only if it is not the specification's default of one second."""
        error: dict[str, Any] = {"reason": {".tag": refusal.reason}}
        if refusal.retry_after_s != 1:
            error["retry_after"] = refusal.retry_after_s
        return error_answer(429, refusal.reason, error, (b"retry-after", b"%d" % refusal.retry_after_s))

    def broken(self, call: Call) -> Answer:
        """Status 500."""
        return answer_text(500, "Internal Server Error")

    def unknown(self, method: str, path: str) -> Answer:
        """Not a function of the API."""
        if expected := self._routes.methods(path):
            return answer_text(405, f"This function requires HTTP {expected[0]}, your request is {method}.")
        if path.startswith("/2/") and (missing := not_offered(path[3:])):
            return answer_text(
                400, f'Error in call to API function "{path[3:]}": this emulator does not offer {missing}'
            )
        if path.startswith("/2/"):
            return answer_text(400, f'Unknown API function: "{path[3:]}"')
        return answer_text(404, "Not Found")

    # ---------------------------------------------------------------- one request

    def _route(self, name: str, function: Function) -> Route:
        where = "request body" if function.style == "rpc" else 'HTTP header "Dropbox-API-Arg"'
        sentence = f'Error in call to API function "{name}": '

        scope = required_scope(name)

        def denied(call: Call) -> Answer | None:
            try:
                return self._denied(function, scope, call)
            except BadRequest as error:
                return answer_text(400, f"{sentence}{error}")

        def handler(call: Call) -> Answer | Awaitable[Answer]:
            self.state.jobs.advance(call.now_s)
            try:
                result = function.run(self.state, _argument(function, call), call)
            except ApiError as error:
                return error_answer(409, error.summary, error.error)
            except ArgError as error:
                return answer_text(400, f"{sentence}{where}: {error}")
            except BadRequest as error:
                return answer_text(400, f"{sentence}{error}")
            if isinstance(result, dict):
                return answer_json(result)
            if isinstance(result, Answer):
                return result
            return _later(result, sentence) if isinstance(result, Awaitable) else answer_json(result)

        return Route(
            name, function.kind, handler, sink=_block_writer if function.style == "upload" else None, denied=denied
        )

    def _denied(self, function: Function, scope: str, call: Call) -> Answer | None:
        """Returns the refusal of a call that is not authorized; None if it is allowed. Raises BadRequest."""
        given, now_s = call.headers, call.now_s
        header, where = given.get(b"authorization"), 'HTTP header "Authorization"'
        if header is None and (value := parse_form(call.query).get("authorization")) is not None:
            header, where = value.encode(), 'URL parameter "authorization"'
        oauth = self.state.oauth
        expires_s = oauth.tokens.get(header) if header is not None else None
        for name in _TEAM_HEADERS & given.keys():
            raise BadRequest(f'this emulator does not offer teams, so not HTTP header "{name.decode()}"')
        if scope and header is not None and scope not in oauth.scopes.get(header, (scope,)):
            return unauthorized("missing_scope", required_scope=scope)
        if function.auth == "none" or (expires_s is not None and expires_s > now_s):
            return self._wrong_root(given[b"dropbox-api-path-root"]) if b"dropbox-api-path-root" in given else None
        if expires_s is not None:
            return unauthorized("expired_access_token")
        if header is None:
            raise BadRequest('Must provide HTTP header "Authorization" or URL parameter "authorization".')
        client, secret = basic_credentials(header)
        if function.auth == "app" and client:
            if secret and oauth.accepts_secret(client, secret):
                return None
            raise BadRequest(f"Invalid app key or app secret in {where}.")
        scheme, _, token = header.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise BadRequest(f'Invalid authorization value in {where}: expecting "Bearer <token>".')
        if not _TOKEN_LETTERS.issuperset(token):
            raise BadRequest("The given OAuth 2 access token is malformed.")
        return unauthorized("invalid_access_token")

    def _wrong_root(self, header: bytes) -> Answer | None:
        """Returns status 422 if a request is for a root other than the account's own."""
        own = self.state.tree.namespace
        try:
            value = json.loads(header)
            tag = value[".tag"]
            chosen = value[tag] if tag in ("root", "namespace_id") else own
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BadRequest('HTTP header "Dropbox-API-Path-Root": could not decode input as JSON') from None
        if chosen == own:
            return None
        if tag == "namespace_id":
            return error_answer(422, "no_permission", {".tag": "no_permission"})
        root = {".tag": "user", "root_namespace_id": own, "home_namespace_id": own}
        return error_answer(422, "invalid_root", {".tag": "invalid_root", "invalid_root": root})


def _argument(function: Function, call: Call) -> dict[str, Any]:
    """Returns the checked argument of a call. Raises BadRequest and ArgError."""
    if function.style == "rpc":
        text, where = call.body, "request body"
    else:
        text, where = (
            call.headers.get(b"dropbox-api-arg") or _query_argument(call.query),
            'HTTP header "Dropbox-API-Arg"',
        )
    if function.arg is None:
        if text.strip() not in (b"", b"null"):
            raise BadRequest(f"{where}: expected null, the function takes no argument")
        return {}
    kind = call.headers.get(b"content-type", b"")
    allowed = _CONTENT_TYPES.get(function.style)
    if allowed is not None and kind not in allowed:
        expected = ", ".join(f'"{name.decode()}"' for name in allowed)
        shown = kind.decode("latin-1")
        raise BadRequest(f'Bad HTTP "Content-Type" header: "{shown}".  Expecting one of {expected}.')
    try:
        value = _decoded(text.decode())
    except (ValueError, RecursionError):
        raise BadRequest(f"{where}: could not decode input as JSON") from None
    arg: dict[str, Any] = function.arg(value)
    return arg


def _decoded(text: str) -> Any:
    """Returns what ``json.loads`` does, without its two regular expressions if nothing surrounds the value."""
    try:
        value, end = _raw_decode(text)
    except ValueError:
        return json.loads(text)
    return value if end == len(text) else json.loads(text)


def _block_writer(call: Call) -> BlockWriter:
    return BlockWriter()


def _query_argument(query: bytes) -> bytes:
    """Returns the argument from the query, which content functions also accept: ``?arg=...``."""
    return parse_form(query).get("arg", "").encode()


async def _later(result: Awaitable[Any], sentence: str) -> Answer:
    """Returns the answer of a function that waits."""
    try:
        return answer_json(await result)
    except ApiError as error:
        return error_answer(409, error.summary, error.error)
    except BadRequest as error:
        return answer_text(400, f"{sentence}{error}")
