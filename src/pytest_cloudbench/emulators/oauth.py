"""OAuth 2.0 as emulated services offer it: the token route, the consent page and revocation (RFC 6749, 7009).

It covers grants, codes with their PKCE challenges (RFC 7636), tokens and their lifetimes. Each skin brings the words of
its service in a ``Dialect``.

Tests make up refresh tokens and codes, so any plausible one is accepted: not empty, not beginning with ``invalid``, and
not used up or revoked. A code that this service issued is accepted only with what it was issued for.

==================  ============================================================================================
a code issued for   is refused
==================  ============================================================================================
a challenge         without the verifier whose hash it is
a redirect address  with another one
a client            to another one
once                the second time
==================  ============================================================================================

A client's secret is the first one that it sends, and a refresh token belongs to the client that it was issued to or
that first used it. Another secret or another client is refused. An access token is limited to the scopes that were
requested, and a refresh can request fewer, never more.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from urllib.parse import urlencode, urlsplit

from pytest_cloudbench.emulators.http import encode_base64url, parse_form
from pytest_cloudbench.emulators.skin import Answer, Call

_CODE, _REFRESH = "authorization_code", "refresh_token"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Renewal(Enum):
    """The effect of a refresh on the refresh token."""

    NONE = "none"
    """It stays the same, and the answer does not repeat it."""
    BESIDE = "beside"
    """The answer brings another one, and the old one still works."""
    INSTEAD = "instead"
    """The answer brings another one, and the old one is used up."""


@dataclass(frozen=True, slots=True)
class Grant:
    """An issued access token that lives for ``expires_s``. ``refresh_token`` is empty if none comes with it."""

    form: Mapping[str, str]
    kind: str
    access_token: str
    refresh_token: str
    expires_s: int
    scope: str


def is_plausible(kind: str, proof: str) -> bool:
    """Return whether a made-up proof is accepted, as described in the module."""
    return bool(proof) and not proof.startswith("invalid")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The variant of OAuth that one service speaks.

    Attributes:
        granted: returns the answer that brings a token.
        refused: returns the answer to a request that fails. Its arguments are the error's name in RFC 6749 (or
            ``redirect_uri_mismatch``) and the fields of the form or the query.
        shown: returns the page that shows a code, for clients without a redirect address. If None, they are refused.
        access: the prefix of an access token, and how many characters follow it.
        refresh: the same for a refresh token.
        code: the same for a code.
        proofs: maps a grant type to the field that proves it.
        clientless: grant types that need no client id.
        renewal: see ``Renewal``.
        accepts: returns whether a proof is accepted, for the service's own grant types.
        is_scope: returns whether a word is a scope. If None, scopes are neither checked nor kept.
        asserted_scopes: returns the scopes that a proof itself requests, for the service's own grant types.
        takes_query: whether the token route also takes its fields from the query.
    """

    granted: Callable[[Grant], Answer]
    refused: Callable[[str, Mapping[str, str]], Answer]
    shown: Callable[[str], Answer] | None = None
    access: tuple[str, int] = ("", 64)
    refresh: tuple[str, int] = ("", 64)
    code: tuple[str, int] = ("", 43)
    proofs: Mapping[str, str] = field(default_factory=lambda: {_REFRESH: _REFRESH, _CODE: "code"})
    clientless: frozenset[str] = frozenset()
    renewal: Renewal = Renewal.NONE
    accepts: Callable[[str, str], bool] = is_plausible
    is_scope: Callable[[str], bool] | None = None
    asserted_scopes: Callable[[str, str], str] = lambda kind, proof: ""
    takes_query: bool = False


@dataclass(frozen=True, slots=True)
class _Origin:
    """The client and scopes that a refresh token was issued for, and whether the client proved itself by its secret."""

    client: str
    scopes: frozenset[str]
    has_secret: bool


class OAuth:
    """The tokens of one account.

    Args:
        dialect: the service's variant of OAuth.
        next_token: makes names that look random, such as ``core.Tokens.next``.
        lifetime_s: returns how long an access token lasts, seconds.

    Attributes:
        tokens: maps an ``Authorization`` header to the time at which its token expires, on the emulator's clock.
        scopes: maps an ``Authorization`` header to the scopes of its token, if they are limited.
    """

    def __init__(
        self, dialect: Dialect, next_token: Callable[[str, int], str], lifetime_s: Callable[[], float]
    ) -> None:
        self._dialect, self._next_token, self._lifetime_s = dialect, next_token, lifetime_s
        self.tokens: dict[bytes, float] = {}
        self.scopes: dict[bytes, frozenset[str]] = {}
        self._origins: dict[bytes, str] = {}
        self._secrets: dict[str, str] = {}
        self._refreshes: dict[str, _Origin] = {}
        self._issued_refreshes: set[str] = set()
        self._spent: set[str] = set()
        self._codes: dict[str, Mapping[str, str]] = {}

    def add_token(self, access_token: str, expires_s: float = float("inf")) -> None:
        """Accept a token of the account until the given second."""
        self.tokens[f"Bearer {access_token}".encode()] = expires_s

    def is_valid(self, header: bytes, now_s: float) -> bool:
        """Return whether an ``Authorization`` header has a token of the account that has not ended."""
        return self.tokens.get(header, 0.0) > now_s

    def token(self, call: Call) -> Answer:
        """Serve the token route: return an access token for a refresh token, a code, or the dialect's own proof."""
        dialect = self._dialect
        form = {**(parse_form(call.query) if dialect.takes_query else {}), **parse_form(call.body)}
        kind = form.get("grant_type", "")
        if kind not in dialect.proofs:
            return dialect.refused("unsupported_grant_type", form)
        client, secret = credentials_of(call, form)
        if kind not in dialect.clientless and not is_plausible("client", client):
            return dialect.refused("invalid_client", form)
        if not self.accepts_secret(client, secret):
            return dialect.refused("invalid_client", {**form, "client_id": client})
        proof = form.get(dialect.proofs[kind], "")
        authorization = self._codes.get(proof, {}) if kind == _CODE else {}
        if proof in self._spent or not dialect.accepts(kind, proof) or not _code_fits(authorization, form, client):
            return dialect.refused("invalid_grant", form)
        origin = self._refreshes.get(proof) if kind == _REFRESH else None
        if origin is not None and origin.client != client:
            return dialect.refused("invalid_grant", form)
        if origin is not None and origin.has_secret and not secret:
            return dialect.refused("invalid_client", {**form, "client_id": client})
        scope = authorization.get("scope", "") or form.get("scope", "") or dialect.asserted_scopes(kind, proof)
        scopes, granted_scopes = frozenset(scope.split()), frozenset[str]() if origin is None else origin.scopes
        is_checked = dialect.is_scope is not None
        if not self._knows_scopes(scopes) or (is_checked and granted_scopes and not scopes <= granted_scopes):
            return dialect.refused("invalid_scope", form)
        refresh_token = self._issue_refresh_token(kind, proof)
        self._keep_origin(kind, proof, refresh_token, _Origin(client, scopes, bool(secret)))
        access_token = self._next_token(*dialect.access)
        header = f"Bearer {access_token}".encode()
        self.add_token(access_token, call.now_s + self._lifetime_s())
        if is_checked and (scopes or granted_scopes):
            self.scopes[header] = scopes or granted_scopes
        self._origins[header] = refresh_token or (proof if kind == _REFRESH else "")
        return dialect.granted(Grant(form, kind, access_token, refresh_token, int(self._lifetime_s()), scope))

    def accepts_secret(self, client: str, secret: str) -> bool:
        """Return whether a secret is the first one that this client has sent. An empty secret is accepted, too."""
        return not secret or hmac.compare_digest(self._secrets.setdefault(client, secret).encode(), secret.encode())

    def _knows_scopes(self, scopes: Iterable[str]) -> bool:
        is_scope = self._dialect.is_scope
        return is_scope is None or all(map(is_scope, scopes))

    def _keep_origin(self, kind: str, proof: str, refresh_token: str, origin: _Origin) -> None:
        """Record the origin of refresh tokens. One that a test made up stands for all scopes of that client."""
        if kind == _REFRESH:
            origin = self._refreshes.setdefault(proof, replace(origin, scopes=frozenset()))
        if refresh_token:
            self._refreshes[refresh_token] = origin

    def _issue_refresh_token(self, kind: str, proof: str) -> str:
        """Mark a proof as used up, and return a new refresh token if the answer brings one."""
        renewal = self._dialect.renewal
        if kind == _CODE or (kind == _REFRESH and renewal is Renewal.INSTEAD):
            self._spent.add(proof)
        is_issued = kind == _CODE or (kind == _REFRESH and renewal is not Renewal.NONE)
        if not is_issued:
            return ""
        refresh_token = self._next_token(*self._dialect.refresh)
        self._issued_refreshes.add(refresh_token)
        return refresh_token

    def authorize(self, call: Call) -> Answer:
        """Serve the consent page: agree at once, and send the browser back with a code, or show the code."""
        query, dialect = parse_form(call.query), self._dialect
        target = query.get("redirect_uri", "")
        if query.get("code_challenge_method", "plain") not in ("S256", "plain"):
            return dialect.refused("invalid_request", query)
        if not target and dialect.shown is None:
            return dialect.refused("invalid_request", query)
        if target and not _is_safe_target(target):
            return dialect.refused("redirect_uri_mismatch", query)
        if not self._knows_scopes(query.get("scope", "").split()):
            return dialect.refused("invalid_scope", query)
        code = self._next_token(*dialect.code)
        self._codes[code] = query
        if not target and dialect.shown is not None:
            return dialect.shown(code)
        parameters = {"code": code, **({"state": query["state"]} if "state" in query else {})}
        location = f"{target}{'&' if '?' in target else '?'}{urlencode(parameters)}"
        return Answer(302, [(b"location", location.encode("ascii", "replace"))], b"")

    def revoke(self, token: str) -> bool:
        """End an access or refresh token, with the refresh token and all access tokens that belong to it.

        Return whether there was such a token.
        """
        header = f"Bearer {token}".encode()
        origin = self._origins.get(header, "") if header in self.tokens else token
        related_headers = [
            related_header for related_header, from_token in self._origins.items() if origin and from_token == origin
        ]
        is_known = (
            header in self.tokens
            or bool(related_headers)
            or (token in self._issued_refreshes and token not in self._spent)
        )
        if origin and is_known:
            self._spent.add(origin)
        for related_header in (header, *related_headers):
            self.tokens.pop(related_header, None)
            self.scopes.pop(related_header, None)
            self._origins.pop(related_header, None)
        return is_known


def credentials_of(call: Call, form: Mapping[str, str]) -> tuple[str, str]:
    """Return a client's id and secret, from the form or from the header. Both are empty if they are missing."""
    client, secret = basic_credentials(call.headers.get(b"authorization", b""))
    return form.get("client_id", "") or client, form.get("client_secret", "") or secret


def basic_credentials(header: bytes) -> tuple[str, str]:
    """Return the client id and the secret in an ``Authorization`` header. Both are empty if it does not hold any."""
    scheme, _, pair = header.partition(b" ")
    try:
        name, colon, secret = base64.b64decode(pair, validate=True).partition(b":")
    except ValueError:
        return "", ""
    is_basic = scheme.lower() == b"basic" and bool(colon)
    return (name.decode("latin-1"), secret.decode("latin-1")) if is_basic else ("", "")


def _code_fits(authorization: Mapping[str, str], form: Mapping[str, str], client: str) -> bool:
    """Return whether a code may be used with this form. ``authorization`` is the query for which it was issued."""
    if not authorization:
        return True
    is_same_client = (
        authorization.get("redirect_uri", "") == form.get("redirect_uri", "")
        and authorization.get("client_id", client) == client
    )
    challenge, verifier = authorization.get("code_challenge"), form.get("code_verifier", "")
    if not is_same_client or challenge is None:
        return is_same_client
    if authorization.get("code_challenge_method", "plain") == "S256":
        verifier = encode_base64url(hashlib.sha256(verifier.encode()).digest())
    return hmac.compare_digest(verifier.encode(), challenge.encode())


def _is_safe_target(address: str) -> bool:
    """Return whether a code may be sent to an address: over TLS, or to this machine."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
