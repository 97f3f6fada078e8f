"""Routing, authentication, arguments and errors of Dropbox's API v2, after its published specification and documents.

The functions of the API are in the modules beside this one, each with its ``FUNCTIONS`` table. No module of the
emulator imports a driver or the official SDK, because a bug that both sides shared would go unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pytest_cloudbench.emulators.core import NodeStore, Tokens
from pytest_cloudbench.emulators.dropbox import (
    account,
    batches,
    files,
    listing,
    members,
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
from pytest_cloudbench.emulators.dropbox.scopes import missing_feature, required_scope
from pytest_cloudbench.emulators.dropbox.state import Function, State
from pytest_cloudbench.emulators.dropbox.tree import Tree
from pytest_cloudbench.emulators.http import parse_form
from pytest_cloudbench.emulators.oauth import OAuth, basic_credentials
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.routing import RouteTable
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Kind, Match, Route, Skin
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
    **members.FUNCTIONS,
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
    """The skin of Dropbox, as described by ``skin.Skin``."""

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
        oauth.add_token(access_token)
        self.state = State(tree, clock, profile.account, profile.jobs, oauth)
        self.meet(lambda: (self,))
        self.configure(profile)
        token = Route("oauth2/token", Kind.FREE, oauth.token)
        authorize = Route("oauth2/authorize", Kind.FREE, oauth.authorize)
        functions = {name: self._make_route(name, entry) for name, entry in _FUNCTIONS.items()}
        downloads = [name for name, entry in _FUNCTIONS.items() if entry.style == "download"]
        self._routes = RouteTable(
            [
                *(("POST", f"/2/{name}", route) for name, route in functions.items()),
                *(("GET", f"/2/{name}", functions[name]) for name in downloads),
                ("POST", "/oauth2/token", token),
                ("POST", "/1/oauth2/token", token),
                ("GET", "/oauth2/authorize", authorize),
                *temporary.link_routes(self.state),
                *sharing.page_routes(self.state),
            ]
        )

    @property
    def store(self) -> NodeStore:
        """The account's files."""
        return self.state.tree.store

    def configure(self, profile: Profile) -> None:
        """Apply a changed profile."""
        self.state.tree.store.quota_bytes = profile.quota.bytes
        store, readiness = self.state.tree.store, profile.readiness
        store.readiness_s, store.list_delay_s = readiness.delay_s, readiness.list_delay_s
        store.delete_delay_s = readiness.delete_delay_s
        self.state.account = profile.account
        self.state.job_times = profile.jobs

    def end_waits(self) -> None:
        """Answer the clients that wait for changes, because a reset is about to replace the account."""
        self.state.tree.paths.log.finish()

    def route(self, method: str, path: str, query: bytes) -> Match | None:
        """Return the route of a request. Every function has its own path and uses POST. Downloads also use GET."""
        return self._routes.find(method, path)

    def recognises(self, path: str, query: bytes, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request has a token of this account, or is for one of its links."""
        if (header := _read_authorization(query, headers)) is not None:
            return header in self.state.oauth.tokens
        return not self.state.temporary.keys().isdisjoint(path.split("/")) or sharing.has_link(self.state, path)

    def meet(self, peers: Callable[[], Sequence[Skin]]) -> None:
        """Note how to find the accounts of the service, this one among them."""
        self.state.peers = lambda: [peer.state for peer in peers() if isinstance(peer, Dropbox)]

    def refused(self, call: Call, refusal: Refusal) -> Answer:
        """Answer with status 429. The body names the wait unless it is the specification's default of one second."""
        error: dict[str, Any] = {"reason": {".tag": refusal.reason}}
        if refusal.retry_after_s != 1:
            error["retry_after"] = refusal.retry_after_s
        return error_answer(429, refusal.reason, error, (b"retry-after", b"%d" % refusal.retry_after_s))

    def broken(self, call: Call) -> Answer:
        """Answer with status 500."""
        return answer_text(500, "Internal Server Error")

    def unknown(self, method: str, path: str) -> Answer:
        """Answer that there is no such function."""
        if expected := self._routes.methods(path):
            return answer_text(405, f"This function requires HTTP {expected[0]}, your request is {method}.")
        if path.startswith("/2/") and (feature := missing_feature(path[3:])):
            return answer_text(
                400, f'Error in call to API function "{path[3:]}": this emulator does not offer {feature}'
            )
        if path.startswith("/2/"):
            return answer_text(400, f'Unknown API function: "{path[3:]}"')
        return answer_text(404, "Not Found")

    # ---------------------------------------------------------------- one request

    def _make_route(self, name: str, function: Function) -> Route:
        """Return the route of a function, which turns its errors into Dropbox's answers."""
        where = "request body" if function.style == "rpc" else 'HTTP header "Dropbox-API-Arg"'
        error_prefix = f'Error in call to API function "{name}": '

        scope = required_scope(name)

        def refuse(call: Call) -> Answer | None:
            try:
                return self._refuse_unauthorized(function, scope, call)
            except BadRequest as error:
                return answer_text(400, f"{error_prefix}{error}")

        def handler(call: Call) -> Answer | Awaitable[Answer]:
            self.state.jobs.advance(self.state.clock.now_s())  # a replica that leads shifts the call's time
            try:
                state, arg = members.lead_to_owner(self.state, name, _read_argument(function, call))
                result = function.run(state, arg, call)
            except ApiError as error:
                return error_answer(409, error.summary, error.error)
            except ArgError as error:
                return answer_text(400, f"{error_prefix}{where}: {error}")
            except BadRequest as error:
                return answer_text(400, f"{error_prefix}{error}")
            if isinstance(result, dict):
                return answer_json(result)
            if isinstance(result, Answer):
                return result
            return _answer_later(result, error_prefix) if isinstance(result, Awaitable) else answer_json(result)

        return Route(
            name, function.kind, handler, sink=_make_block_writer if function.style == "upload" else None, denied=refuse
        )

    def _refuse_unauthorized(self, function: Function, scope: str, call: Call) -> Answer | None:
        """Return the refusal of a call that is not authorized, or None if it is allowed. Raises BadRequest."""
        headers, now_s = call.headers, call.now_s
        header, where = headers.get(b"authorization"), 'HTTP header "Authorization"'
        if header is None and (value := parse_form(call.query).get("authorization")) is not None:
            header, where = value.encode(), 'URL parameter "authorization"'
        oauth = self.state.oauth
        expires_s = oauth.tokens.get(header) if header is not None else None
        if team_headers := _TEAM_HEADERS & headers.keys():
            raise BadRequest(f'this emulator does not offer teams, so not HTTP header "{min(team_headers).decode()}"')
        if scope and header is not None and scope not in oauth.scopes.get(header, (scope,)):
            return unauthorized("missing_scope", required_scope=scope)
        if function.auth == "none" or (expires_s is not None and expires_s > now_s):
            return self._check_root(headers[b"dropbox-api-path-root"]) if b"dropbox-api-path-root" in headers else None
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

    def _check_root(self, header: bytes) -> Answer | None:
        """Return status 422 if a request is for a root other than the account's own, else None."""
        own = self.state.tree.namespace
        try:
            value = json.loads(header)
            tag = value[".tag"]
            requested = value[tag] if tag in ("root", "namespace_id") else own
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BadRequest('HTTP header "Dropbox-API-Path-Root": could not decode input as JSON') from None
        if requested == own:
            return None
        if tag == "namespace_id":
            return error_answer(422, "no_permission", {".tag": "no_permission"})
        root = {".tag": "user", "root_namespace_id": own, "home_namespace_id": own}
        return error_answer(422, "invalid_root", {".tag": "invalid_root", "invalid_root": root})


def _read_authorization(query: bytes, headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the ``Authorization`` value of a request, from the header or the query, or None if there is none."""
    header = headers.get(b"authorization")
    if header is None and b"authorization=" in query:
        value = parse_form(query).get("authorization")
        return value.encode() if value is not None else None
    return header


def _read_argument(function: Function, call: Call) -> dict[str, Any]:
    """Return the checked argument of a call. Raises BadRequest and ArgError."""
    if function.style == "rpc":
        text, where = call.body, "request body"
    else:
        text = call.headers.get(b"dropbox-api-arg") or _read_query_argument(call.query)
        where = 'HTTP header "Dropbox-API-Arg"'
    if function.arg is None:
        if text.strip() not in (b"", b"null"):
            raise BadRequest(f"{where}: expected null, the function takes no argument")
        return {}
    raw_type = call.headers.get(b"content-type", b"")
    allowed = _CONTENT_TYPES.get(function.style)
    if allowed is not None and raw_type not in allowed:
        expected = ", ".join(f'"{name.decode()}"' for name in allowed)
        content_type = raw_type.decode("latin-1")
        raise BadRequest(f'Bad HTTP "Content-Type" header: "{content_type}".  Expecting one of {expected}.')
    try:
        value = _decode_json(text.decode())
    except (ValueError, RecursionError):
        raise BadRequest(f"{where}: could not decode input as JSON") from None
    arg: dict[str, Any] = function.arg(value)
    return arg


def _decode_json(text: str) -> Any:
    """Return the result of ``json.loads``, but skip its two regular expressions if nothing surrounds the value."""
    try:
        value, end = _raw_decode(text)
    except ValueError:
        return json.loads(text)
    return value if end == len(text) else json.loads(text)


def _make_block_writer(call: Call) -> BlockWriter:
    return BlockWriter()


def _read_query_argument(query: bytes) -> bytes:
    """Return the argument from the query, which content functions also accept: ``?arg=...``."""
    return parse_form(query).get("arg", "").encode()


async def _answer_later(result: Awaitable[Any], error_prefix: str) -> Answer:
    """Return the answer of a function that waits."""
    try:
        return answer_json(await result)
    except ApiError as error:
        return error_answer(409, error.summary, error.error)
    except BadRequest as error:
        return answer_text(400, f"{error_prefix}{error}")
