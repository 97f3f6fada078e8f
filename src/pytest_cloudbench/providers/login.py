"""Logging in to a provider by OAuth: a browser that comes back to loopback, a code to paste, or a device code.

What is special to a provider is data of its driver (``drivers.base.OAuthLogin``).
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import sys
import webbrowser
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, Queue
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from urllib.request import Request

from pytest_cloudbench.drivers.base import OAuthLogin
from pytest_cloudbench.drivers.egress import egress_of
from pytest_cloudbench.model import CredentialsError, Endpoint
from pytest_cloudbench.support import redact
from pytest_cloudbench.support.clock import due_ns, now_ns, wait_for

_ANSWER_S = 100.0
_AGREE_S = 600.0
_POLL_S = 0.1
_MOST_BYTES = 1024 * 1024
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_DONE = b"<!doctype html><title>pytest-cloudbench</title><p>You are logged in. This window can be closed."
_FAILED = b"<!doctype html><title>pytest-cloudbench</title><p>That did not work; the terminal says why."


@dataclass(frozen=True, slots=True)
class Application:
    """The application for which a user logs in.

    Attributes:
        oauth: addresses and rules of the provider's login.
        client_id: the application's id.
        client_secret: its secret, or empty. Applications with PKCE need none.
        ca_file: the CA of an emulator, or empty for the system's.
    """

    oauth: OAuthLogin
    client_id: str
    client_secret: str = ""
    ca_file: str = ""


def redirect_to_service(oauth: OAuthLogin, endpoint: Endpoint) -> OAuthLogin:
    """Return the same login at a service that stands in for the provider."""
    service = urlsplit(endpoint.url)

    def redirect(url: str) -> str:
        return urlunsplit(urlsplit(url)._replace(scheme=service.scheme, netloc=service.netloc)) if url else ""

    return replace(
        oauth, authorize_url=redirect(oauth.authorize_url), token_url=redirect(oauth.token_url),
        device_url=redirect(oauth.device_url),
    )  # fmt: skip


def login_by_browser(
    app: Application, show: Callable[[str], object], visit: Callable[[str], object] = webbrowser.open
) -> Mapping[str, str]:
    """Return the tokens that a user grants in a browser, which comes back to a port of loopback.

    Args:
        app: the application.
        show: prints a line for the user.
        visit: opens a page in a browser.

    Raises CredentialsError.
    """
    verifier, state = secrets.token_urlsafe(64), secrets.token_urlsafe(16)
    with _ReturnServer(state, app.oauth.port) as server:
        address = _login_address(app, verifier, {"redirect_uri": server.url, "state": state})
        show(f"waiting for your browser (10 minutes); if none opens, visit: {address}")
        visit(address)
        code = server.wait_for_code()
    form = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier, "redirect_uri": server.url}
    return _exchange_code(app, form)


def login_by_pasted_code(
    app: Application, show: Callable[[str], object], ask: Callable[[str], str]
) -> Mapping[str, str]:
    """Return the tokens for a code that a user copies from a browser, on this machine or another.

    Args:
        app: the application.
        show: prints a line for the user.
        ask: shows a question and returns what the user types.

    Raises CredentialsError.
    """
    verifier, state = secrets.token_urlsafe(64), secrets.token_urlsafe(16)
    return_fields = {} if app.oauth.shows_code else {"redirect_uri": _loopback(app.oauth.port or 1), "state": state}
    show(f"visit: {_login_address(app, verifier, return_fields)}")
    if app.oauth.shows_code:
        code = ask("code: ").strip()
    else:
        show("when you have agreed, the browser shows an error, because nothing listens there: copy its address")
        address = ask("address: ").strip()
        if "state" not in _query(address):
            raise CredentialsError("login: the address has no code; copy all of it")
        if not _has_state(address, state):
            raise CredentialsError("login: the address belongs to another login; begin again")
        code = _read_code(address)
    if not code:
        raise CredentialsError("login: no code was given; begin again, and paste the code that the page shows")
    redirect = {name: value for name, value in return_fields.items() if name == "redirect_uri"}
    return _exchange_code(
        app, {"grant_type": "authorization_code", "code": code, "code_verifier": verifier, **redirect}
    )


def login_by_device_code(app: Application, show: Callable[[str], object]) -> Mapping[str, str]:
    """Return the tokens that a user grants on any device (RFC 8628). Raises CredentialsError."""
    form = {"client_id": app.client_id, "scope": " ".join(app.oauth.scopes)}
    status, offer = _post(app, app.oauth.device_url, form)
    if status != 200 or not isinstance(offer.get("device_code"), str):
        raise CredentialsError(f"login: no device code: {_describe_refusal(offer, status)}")
    redact.learn([offer["device_code"]])
    show(f"visit {offer.get('verification_uri')} and type {offer.get('user_code')}")
    pause_s, lifetime_s = _read_seconds(offer.get("interval"), 5), _read_seconds(offer.get("expires_in"), 900)
    until_ns = due_ns(min(lifetime_s, _AGREE_S))
    form = {"grant_type": _DEVICE_GRANT, "device_code": offer["device_code"], "client_id": app.client_id}
    while now_ns() < until_ns:
        wait_for(lambda: False, pause_s, poll_s=pause_s)
        status, answer = _post(app, app.oauth.token_url, form)
        reason = answer.get("error")
        if status == 200:
            return _read_tokens(answer)
        if reason == "slow_down":
            pause_s += 5
        elif reason != "authorization_pending":
            raise CredentialsError(f"login: refused: {_describe_refusal(answer, status)}")
    raise CredentialsError("login: nobody agreed in time; try again")


def request_tokens(app: Application, refresh_token: str) -> tuple[Mapping[str, str], float]:
    """Return the next tokens for a refresh token, and how many seconds the access token lasts.

    Raises CredentialsError.
    """
    redact.learn([refresh_token, app.client_secret])
    form = {
        "grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": app.client_id,
        "client_secret": app.client_secret,
    }  # fmt: skip
    status, answer = _post(app, app.oauth.token_url, form)
    if status != 200:
        raise CredentialsError(f"login: the provider renewed no token: {_describe_refusal(answer, status)}")
    return _read_tokens(answer), _read_seconds(answer.get("expires_in"), 0)


class _Server(ThreadingHTTPServer):
    """A server with a thread for each connection, because browsers open connections that they may never use."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that hangs up. Its code has arrived, or it comes back on another connection."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _ReturnServer:
    """A port of loopback to which the browser comes back with a code."""

    def __init__(self, state: str, port: int) -> None:
        answers: Queue[str | CredentialsError] = Queue()

        class Handler(BaseHTTPRequestHandler):
            timeout = _ANSWER_S

            def do_GET(self) -> None:
                """Take the answer to this login. Any other request changes nothing, whoever sends it."""
                own_host = f"127.0.0.1:{self.connection.getsockname()[1]}"
                # Other users, and pages whose name leads to loopback, can send requests; browsers ask for an icon.
                if self.headers.get_all("host") != [own_host] or not _has_state(self.path, state):
                    self.send_error(404, "Not the login that waits here")
                    return
                answer: str | CredentialsError
                try:
                    answer, status, page = _read_code(self.path), 200, _DONE
                except CredentialsError as error:
                    answer, status, page = error, 400, _FAILED
                try:
                    self.send_response(status)
                    self.send_header("content-type", "text/html")
                    self.end_headers()
                    self.wfile.write(page)
                finally:  # after the page, because the process may end as soon as it has the code
                    answers.put(answer)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing, because the path holds the code."""

        try:
            self._server = _Server(("127.0.0.1", port), Handler)
        except OSError as error:
            raise CredentialsError(
                f"login: the browser must come back to port {port}, which is taken ({error.strerror}); try --no-browser"
            ) from None
        self._answers, self.url = answers, _loopback(self._server.server_port)

    def __enter__(self) -> _ReturnServer:
        Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait_for_code(self) -> str:
        """Return the code that the browser brings. Raises CredentialsError if none comes."""
        try:
            answer = self._answers.get(timeout=_AGREE_S)
        except Empty:
            message = "login: the browser did not come back within 10 minutes; try --no-browser"
            raise CredentialsError(message) from None
        if isinstance(answer, CredentialsError):
            raise answer
        return answer


def _loopback(port: int) -> str:
    return f"http://127.0.0.1:{port}/"


def _has_state(address: str, state: str) -> bool:
    """Return whether an address carries the state of this login, which only its user and the provider know."""
    return secrets.compare_digest(_query(address).get("state", "").encode(errors="replace"), state.encode())


def _read_code(address: str) -> str:
    """Return the code in an address that belongs to this login. Raises CredentialsError."""
    query = _query(address)
    if "error" in query:
        raise CredentialsError(f"login: refused: {_describe_refusal(query, 400)}")
    if not query.get("code"):
        raise CredentialsError("login: the address has no code; copy all of it")
    redact.learn([query["code"]])
    return query["code"]


def _query(address: str) -> dict[str, str]:
    """Return the parameters of an address. A text that is no address has none."""
    try:
        return dict(parse_qsl(urlsplit(address).query))
    except ValueError:
        return {}


def _login_address(app: Application, verifier: str, return_fields: Mapping[str, str]) -> str:
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    query = {
        "client_id": app.client_id, "response_type": "code", "code_challenge": challenge,
        "code_challenge_method": "S256", **({"scope": " ".join(app.oauth.scopes)} if app.oauth.scopes else {}),
        **app.oauth.extra, **return_fields,
    }  # fmt: skip
    return f"{app.oauth.authorize_url}?{urlencode(query)}"


def _exchange_code(app: Application, form: Mapping[str, str]) -> Mapping[str, str]:
    """Exchange a code for tokens. Raises CredentialsError."""
    client = {"client_id": app.client_id, **({"client_secret": app.client_secret} if app.client_secret else {})}
    status, answer = _post(app, app.oauth.token_url, {**form, **client})
    if status != 200:
        raise CredentialsError(f"login: the provider gave no tokens: {_describe_refusal(answer, status)}")
    return _read_tokens(answer)


def _read_tokens(answer: Mapping[str, Any]) -> Mapping[str, str]:
    tokens = {name: answer[name] for name in ("access_token", "refresh_token") if isinstance(answer.get(name), str)}
    redact.learn(tokens.values())
    if "access_token" not in tokens:
        raise CredentialsError("login: the provider's answer has no access token")
    return tokens


def _post(app: Application, url: str, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Send a form. Returns the status and the answer's JSON object, or {} if it has none. Raises CredentialsError."""
    egress = egress_of(Endpoint({}, ca_file=app.ca_file) if app.ca_file else None, url)
    request = Request(url, urlencode(form).encode(), {"accept": "application/json"})
    try:
        try:
            with egress.opener(url).open(request, timeout=_ANSWER_S) as response:
                status, body = response.status, response.read(_MOST_BYTES)
        except HTTPError as error:
            with error:
                status, body = error.code, error.read(_MOST_BYTES)
    except (OSError, HTTPException) as error:
        raise CredentialsError(f"login: {urlsplit(url).netloc}: {redact.clean(str(error))}") from None
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    return status, answer if isinstance(answer, dict) else {}


def _describe_refusal(answer: Mapping[str, Any], status: int) -> str:
    reason = answer.get("error_description") or answer.get("error") or f"status {status}"
    return redact.clean(" ".join(str(reason).split()))[:300]


def _read_seconds(value: Any, default: float) -> float:
    """Return a time that a provider gives, or the default if the value is no time."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return seconds if 0 < seconds < float("inf") else default
