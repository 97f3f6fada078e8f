"""Tests of the OAuth code that the emulated services share: codes, challenges, token lifetimes, revocation."""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from pytest_cloudbench.emulators.core import Tokens
from pytest_cloudbench.emulators.oauth import Dialect, Grant, OAuth, Renewal, basic_credentials
from pytest_cloudbench.emulators.skin import Answer, Call, Kind, Route

BACK = "http://127.0.0.1:5/back"
VERIFIER = "v" * 43
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()


def make_oauth(**options: Any) -> tuple[OAuth, list[Grant]]:
    """Return an OAuth service that answers with the name of an error, and the list of its grants."""
    grants: list[Grant] = []

    def answer_grant(grant: Grant) -> Answer:
        grants.append(grant)
        return Answer(200, [], b"")

    def answer_refusal(error: str, form: Any) -> Answer:
        return Answer(400, [], error.encode())

    return OAuth(Dialect(answer_grant, answer_refusal, **options), Tokens(1).next, lambda: 60.0), grants


def call(form: dict[str, str] | None = None, *, now_s: float = 0.0, query: dict[str, str] | None = None) -> Call:
    route = Route("x", Kind.FREE, lambda call: Answer(200, [], b""))
    query_string = urlencode(query or {}).encode()
    return Call(route, "POST", "/token", {}, query_string, {}, now_s, urlencode(form or {}).encode())


def code_for(oauth: OAuth, **query: str) -> str:
    """Let the user agree, and return the code from the redirect."""
    answer = oauth.authorize(call(query={"client_id": "c", "redirect_uri": BACK, "state": "s", **query}))
    location = urlsplit(dict(answer.headers)[b"location"].decode())
    assert (answer.status, f"{location.scheme}://{location.netloc}{location.path}") == (302, BACK)
    fields = parse_qs(location.query)
    assert fields["state"] == ["s"]
    return fields["code"][0]


def exchange_code(oauth: OAuth, code: str, **form: str) -> bytes:
    """Request a token for a code, and return the error, or nothing on success."""
    fields = {"grant_type": "authorization_code", "code": code, "client_id": "c", "redirect_uri": BACK, **form}
    return bytes(oauth.token(call(fields)).body)


def test_a_code_becomes_a_token_that_ends() -> None:
    oauth, grants = make_oauth()
    assert exchange_code(oauth, code_for(oauth, scope="a b")) == b""
    assert (grants[0].scope, grants[0].expires_s) == ("a b", 60)
    assert oauth.tokens[f"Bearer {grants[0].access_token}".encode()] == 60.0
    refresh = {"grant_type": "refresh_token", "refresh_token": grants[0].refresh_token, "client_id": "c"}
    oauth.token(call(refresh, now_s=100.0))
    assert oauth.tokens[f"Bearer {grants[1].access_token}".encode()] == 160.0
    assert grants[1].refresh_token == ""


def test_a_code_is_for_one_use_one_client_and_one_address() -> None:
    oauth, _ = make_oauth()
    code = code_for(oauth)
    assert exchange_code(oauth, code, client_id="other") == b"invalid_grant"
    assert exchange_code(oauth, code, redirect_uri="http://127.0.0.1:6/back") == b"invalid_grant"
    assert exchange_code(oauth, code) == b""
    assert exchange_code(oauth, code) == b"invalid_grant"


@pytest.mark.parametrize(("method", "challenge"), [("S256", CHALLENGE), ("plain", VERIFIER)])
def test_a_challenge_wants_its_verifier(method: str, challenge: str) -> None:
    oauth, _ = make_oauth()
    code = code_for(oauth, code_challenge=challenge, code_challenge_method=method)
    assert exchange_code(oauth, code) == b"invalid_grant"
    assert exchange_code(oauth, code, code_verifier="w" * 43) == b"invalid_grant"
    assert exchange_code(oauth, code, code_verifier=VERIFIER) == b""


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"code_challenge_method": "S512"}, b"invalid_request"),
        ({"redirect_uri": ""}, b"invalid_request"),
        ({"redirect_uri": "http://example.com/"}, b"redirect_uri_mismatch"),
        ({"redirect_uri": "javascript:alert(1)"}, b"redirect_uri_mismatch"),
        ({"redirect_uri": "http://[broken"}, b"redirect_uri_mismatch"),
    ],
)
def test_authorization_page_refuses_unsafe_redirects(query: dict[str, str], error: bytes) -> None:
    oauth, _ = make_oauth()
    assert oauth.authorize(call(query={"client_id": "c", "redirect_uri": BACK, **query})).body == error


def test_a_code_can_be_shown() -> None:
    oauth, _ = make_oauth(shown=lambda code: Answer(200, [], code.encode()))
    code = bytes(oauth.authorize(call(query={"client_id": "c"})).body).decode()
    assert exchange_code(oauth, code) == b"invalid_grant"
    assert exchange_code(oauth, code, redirect_uri="") == b""


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({"grant_type": "password", "client_id": "c"}, b"unsupported_grant_type"),
        ({"client_id": "c"}, b"unsupported_grant_type"),
        ({"grant_type": "refresh_token", "refresh_token": "r"}, b"invalid_client"),
        ({"grant_type": "refresh_token", "refresh_token": "r", "client_id": "invalid"}, b"invalid_client"),
        ({"grant_type": "refresh_token", "refresh_token": "invalid", "client_id": "c"}, b"invalid_grant"),
        ({"grant_type": "refresh_token", "client_id": "c"}, b"invalid_grant"),
        ({"grant_type": "refresh_token", "refresh_token": "made up", "client_id": "c"}, b""),
        ({"grant_type": "own", "proof": "p"}, b""),
    ],
)
def test_token_request_needs_a_known_grant_and_proof(form: dict[str, str], error: bytes) -> None:
    proofs = {"refresh_token": "refresh_token", "own": "proof"}
    oauth, _ = make_oauth(proofs=proofs, clientless=frozenset({"own"}))
    assert oauth.token(call(form)).body == error


@pytest.mark.parametrize(
    ("renewal", "brings", "again"),
    [(Renewal.NONE, False, b""), (Renewal.BESIDE, True, b""), (Renewal.INSTEAD, True, b"invalid_grant")],
)
def test_refresh_keeps_adds_or_replaces_the_refresh_token(renewal: Renewal, brings: bool, again: bytes) -> None:
    oauth, grants = make_oauth(renewal=renewal)
    form = {"grant_type": "refresh_token", "refresh_token": "made-up", "client_id": "c"}
    oauth.token(call(form))
    assert bool(grants[0].refresh_token) == brings
    assert oauth.token(call(form)).body == again


def test_revoking_ends_all_that_belongs_together() -> None:
    oauth, grants = make_oauth()
    oauth.add_token("given")
    exchange_code(oauth, code_for(oauth))
    refresh = {"grant_type": "refresh_token", "refresh_token": grants[0].refresh_token, "client_id": "c"}
    oauth.token(call(refresh))
    assert len(oauth.tokens) == 3
    assert oauth.revoke(grants[1].access_token)
    assert list(oauth.tokens) == [b"Bearer given"]
    assert oauth.token(call(refresh)).body == b"invalid_grant"
    assert oauth.revoke("given")
    assert oauth.tokens == {}
    assert not oauth.revoke("given")
    assert not oauth.revoke(grants[0].refresh_token)


def test_a_refresh_token_can_be_revoked_before_its_first_use() -> None:
    oauth, grants = make_oauth(renewal=Renewal.INSTEAD)
    exchange_code(oauth, code_for(oauth))
    assert oauth.revoke(grants[0].refresh_token)
    assert oauth.tokens == {}


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (b"Basic " + base64.b64encode(b"app:secret"), ("app", "secret")),
        (b"Basic app:secret", ("", "")),
        (b"Bearer x", ("", "")),
        (b"", ("", "")),
    ],
)
def test_client_in_a_header(header: bytes, name: tuple[str, str]) -> None:
    assert basic_credentials(header) == name
