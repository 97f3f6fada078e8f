"""The embedded Dropbox: API v2 on top of the core, written from the published specification and documents.

What may live here: routing, the envelopes of a request (who asks, the argument, how errors are said). The
functions themselves are in the modules beside this one, each with its ``FUNCTIONS`` table. Nothing here
imports a driver or the official SDK, or one bug would cancel the other.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from typing import Any
from urllib.parse import parse_qs

from pytest_cloudbench.emulators.core import Tree
from pytest_cloudbench.emulators.dropbox import account, batches, files, listing, sharing, uploads
from pytest_cloudbench.emulators.dropbox.answers import (
    ApiError,
    BadRequest,
    answer_json,
    answer_text,
    error_answer,
    unauthorized,
)
from pytest_cloudbench.emulators.dropbox.args import ArgError
from pytest_cloudbench.emulators.dropbox.state import Function, State
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Handler, Headers, Kind, Route
from pytest_cloudbench.emulators.throttle import Refusal

__all__ = ["Dropbox", "create"]

_FUNCTIONS: Mapping[str, Function] = {
    **uploads.FUNCTIONS,
    **files.FUNCTIONS,
    **listing.FUNCTIONS,
    **batches.FUNCTIONS,
    **sharing.FUNCTIONS,
    **account.FUNCTIONS,
}
_TOKEN_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~+/=")
_CONTENT_TYPES = {
    "rpc": (
        b"application/json",
        b"application/json; charset=utf-8",
        b"application/json;charset=utf-8",
        b"text/plain; charset=dropbox-cors-hack",
    ),
    "upload": (b"application/octet-stream", b"text/plain; charset=dropbox-cors-hack"),
}


def create(profile: Profile, clock: Clock, seed: int) -> Dropbox:
    """A new, empty account."""
    return Dropbox(profile, clock, seed)


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
    )

    def __init__(self, profile: Profile, clock: Clock, seed: int) -> None:
        self.access_token = Tree(seed=seed).token("sl.emulated-", 64)
        self.state = State(Tree(seed=seed + 1), clock, profile.account, self.access_token)
        self.state.tokens[f"Bearer {self.access_token}".encode()] = float("inf")
        self.configure(profile)
        self.routes: dict[str, Route] = {f"/2/{name}": self._route(name, entry) for name, entry in _FUNCTIONS.items()}
        token: Handler = lambda call: account.token(self.state, call)  # noqa: E731 - one line says it all
        authorize: Handler = lambda call: account.authorize(self.state, call)  # noqa: E731 - as above
        self.routes["/oauth2/token"] = Route("oauth2/token", Kind.FREE, token)
        self.routes["/1/oauth2/token"] = self.routes["/oauth2/token"]
        self.routes["/oauth2/authorize"] = Route("oauth2/authorize", Kind.FREE, authorize, method="GET")

    def configure(self, profile: Profile) -> None:
        """The profile changed."""
        self.state.tree.quota_bytes = profile.quota.bytes
        self.state.tree.readiness_s = profile.readiness.delay_s
        self.state.account = profile.account

    def refused(self, route: Route, refusal: Refusal) -> Answer:
        """Status 429; the body names the wait only where it is not the specification's default of one second."""
        error: dict[str, Any] = {"reason": {".tag": refusal.reason}}
        if refusal.retry_after_s != 1:
            error["retry_after"] = refusal.retry_after_s
        return error_answer(429, refusal.reason, error, (b"retry-after", b"%d" % refusal.retry_after_s))

    def broken(self, route: Route) -> Answer:
        """Status 500."""
        return answer_text(500, "Internal Server Error")

    def unknown(self, method: str, path: str) -> Answer:
        """Not a function of the API."""
        if path in self.routes:
            expected = self.routes[path].method
            return answer_text(405, f"This function requires HTTP {expected}, your request is {method}.")
        if path.startswith("/2/"):
            return answer_text(400, f'Unknown API function: "{path[3:]}"')
        return answer_text(404, "Not Found")

    # ---------------------------------------------------------------- one request

    def _route(self, name: str, function: Function) -> Route:
        where = "request body" if function.style == "rpc" else 'HTTP header "Dropbox-API-Arg"'
        sentence = f'Error in call to API function "{name}": '

        def denied(headers: Headers, now_s: float) -> Answer | None:
            try:
                return self._denied(function, dict(headers), now_s)
            except BadRequest as error:
                return answer_text(400, f"{sentence}{error}")

        def handler(call: Call) -> Answer | Awaitable[Answer]:
            try:
                result = function.run(self.state, _argument(function, dict(call.headers), call), call)
            except ApiError as error:
                return error_answer(409, error.summary, error.error)
            except ArgError as error:
                return answer_text(400, f"{sentence}{where}: {error}")
            except BadRequest as error:
                return answer_text(400, f"{sentence}{error}")
            if isinstance(result, Answer):
                return result
            return answer_json(result) if not isinstance(result, Awaitable) else _later(result, sentence)

        return Route(name, function.kind, handler, content=function.style == "upload", denied=denied)

    def _denied(self, function: Function, given: Mapping[bytes, bytes], now_s: float) -> Answer | None:
        """The answer to one who may not ask this way; None where all is well. Raises BadRequest."""
        header = given.get(b"authorization")
        expires_s = self.state.tokens.get(header) if header is not None else None
        if function.auth == "none" or (expires_s is not None and expires_s > now_s):
            return self._wrong_root(given[b"dropbox-api-path-root"]) if b"dropbox-api-path-root" in given else None
        if expires_s is not None:
            return unauthorized("expired_access_token")
        if header is None:
            raise BadRequest('Must provide HTTP header "Authorization" or URL parameter "authorization".')
        if function.auth == "app" and account.is_app(header):
            return None
        scheme, _, token = header.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise BadRequest('Invalid authorization value in HTTP header "Authorization": expecting "Bearer <token>".')
        if not _looks_like_token(token):
            raise BadRequest("The given OAuth 2 access token is malformed.")
        return unauthorized("invalid_access_token")

    def _wrong_root(self, header: bytes) -> Answer | None:
        """Status 422 when a request is for another root than the account's own."""
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


def _looks_like_token(token: str) -> bool:
    """Whether a token has the form of one: short-lived ones begin with ``sl.``, old ones are long."""
    return _TOKEN_LETTERS.issuperset(token) and (token.startswith("sl.") or len(token) >= 40)


def _argument(function: Function, given: Mapping[bytes, bytes], call: Call) -> dict[str, Any]:
    """The checked argument of a call. Raises BadRequest and ArgError."""
    if function.style == "rpc":
        text, where = call.body, "request body"
    else:
        text, where = given.get(b"dropbox-api-arg") or _query_argument(call.query), 'HTTP header "Dropbox-API-Arg"'
    if function.arg is None:
        if text.strip() not in (b"", b"null"):
            raise BadRequest(f"{where}: expected null, the function takes no argument")
        return {}
    kind = given.get(b"content-type", b"")
    allowed = _CONTENT_TYPES.get(function.style)
    if allowed is not None and kind not in allowed:
        expected = ", ".join(f'"{name.decode()}"' for name in allowed)
        shown = kind.decode("latin-1")
        raise BadRequest(f'Bad HTTP "Content-Type" header: "{shown}".  Expecting one of {expected}.')
    try:
        value = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise BadRequest(f"{where}: could not decode input as JSON") from None
    arg: dict[str, Any] = function.arg(value)
    return arg


def _query_argument(query: bytes) -> bytes:
    """The argument as content functions may also carry it: ``?arg=...``."""
    values = parse_qs(query.decode("ascii", "replace")).get("arg", [""])
    return values[-1].encode()


async def _later(result: Awaitable[Any], sentence: str) -> Answer:
    """The answer of a function that waits."""
    try:
        return answer_json(await result)
    except ApiError as error:
        return error_answer(409, error.summary, error.error)
    except BadRequest as error:
        return answer_text(400, f"{sentence}{error}")
