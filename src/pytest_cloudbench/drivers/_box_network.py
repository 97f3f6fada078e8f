"""The layer between the Box SDK and the network: sessions, redirects and tokens.

What may live here: parts that the driver gives the SDK, and what they do to each request. No verbs and no paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from http.cookiejar import DefaultCookiePolicy
from importlib import import_module
from typing import Any, cast
from urllib.parse import urlsplit

from pytest_cloudbench.drivers.base import NextToken
from pytest_cloudbench.drivers.egress import egress_of
from pytest_cloudbench.drivers.sdk import UNLIMITED_POOL, OwnError, SdkDriver
from pytest_cloudbench.drivers.web import Bearer
from pytest_cloudbench.model import CredentialsError, Endpoint, ErrorKind

# One pool of connections for each host, and downloads may come from many.
_POOLS = 256
# How often a commit is sent, and the longest wait that a service may ask for.
_COMMITS, _LONGEST_WAIT_S = 20, 100
_HOSTS = (".box.com", ".boxcloud.com")
_API = "https://api.box.com"


def _new_session(endpoint: Endpoint | None, url: str) -> Any:
    """Return a session whose adapter never retries (``max_retries=0``) and has room for many threads."""
    requests: Any = import_module("requests")
    session = requests.Session()
    size = {"pool_connections": _POOLS, "pool_maxsize": UNLIMITED_POOL, "max_retries": 0}
    session.mount("https://", requests.adapters.HTTPAdapter(**size))
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    session.egress = egress_of(endpoint, url)
    session.egress.direct_session(session)
    return session


class _Redirects:
    """Follows a download's redirects, and only these, only to a host of the service, and only over TLS."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self._hosts = hosts

    def __call__(self, response: Any) -> str | None:
        """Return the target of a redirect that may be followed, and None for any other."""
        target = response.headers.get("location")
        path = urlsplit(response.request.url).path
        if not response.is_redirect or response.request.method != "GET" or not path.endswith("/content"):
            return None
        url = urlsplit(target)
        is_own = url.netloc in self._hosts or ((url.hostname or "").endswith(_HOSTS) and self._hosts == _HOSTS)
        return str(target) if url.scheme == "https" and is_own else None


def new_network_session(sdk: Any, endpoint: Endpoint | None, timeout_s: float) -> tuple[Any, Any]:
    """Return a session, and the SDK's network layer on top of it, which repeats nothing."""
    session = _new_session(endpoint, _API)
    urls: dict[str, str] = {}
    hosts: tuple[str, ...] = _HOSTS
    if endpoint is not None:
        urls = {"base_url": endpoint.urls["api"], "upload_url": f"{endpoint.urls['upload']}/api"}
        hosts = tuple({urlsplit(url).netloc for url in endpoint.urls.values()})
    session.get_redirect_target = _Redirects(hosts)
    timeouts = dict.fromkeys(("connection_timeout_ms", "read_timeout_ms"), round(timeout_s * 1000))
    network = sdk.NetworkSession(
        network_client=sdk.BoxNetworkClient(session),
        base_urls=sdk.BaseUrls(**urls),
        retry_strategy=sdk.BoxRetryStrategy(max_attempts=1, max_retries_on_exception=0),
        timeout_config=sdk.TimeoutConfig(**timeouts),
    )
    return session, network


class RenewsBoxToken(SdkDriver):
    """Tells where the next access token comes from, for a driver that has the SDK's authentication."""

    _auth: Any

    def renew_by(self, next_token: NextToken) -> None:
        """Call this function when the present access token is about to end."""

        def load() -> tuple[str, float]:
            try:
                return next_token()
            except CredentialsError as error:
                raise OwnError(ErrorKind.AUTH, str(error)) from error

        self._auth.bearer = _renewed_bearer(load)


def _renewed_bearer(next_token: NextToken) -> Bearer:
    class Grant:
        """Gives the next token, in place of the client that ``Bearer`` expects."""

        def send_json(self, *_args: object, **_options: object) -> Mapping[str, object]:
            token, lifetime_s = next_token()
            return {"access_token": token, "expires_in": lifetime_s}

    return Bearer(cast("Any", Grant()), {"refresh_token": ""}, "", bytes)


def authentication(sdk: Any, network: Any, secrets: Mapping[str, str]) -> Any:
    """Return the SDK's authentication with a ``bearer``: of a fixed token, or of one renewed before it ends."""

    class Bearing(sdk.BoxDeveloperTokenAuth):  # type: ignore[misc]  # the SDK has no types here
        """Authentication that gives the SDK the header of each request."""

        def __init__(self, bearer: Bearer) -> None:
            super().__init__(token="")
            self.bearer = bearer

        def retrieve_authorization_header(self, *, network_session: Any = None) -> str:
            return str(self.bearer.header())

    if "access_token" in secrets:
        return Bearing(Bearer(cast("Any", None), secrets, "", bytes))
    config = sdk.CCGConfig(
        client_id=secrets["client_id"], client_secret=secrets["client_secret"],
        enterprise_id=secrets.get("enterprise_id"), user_id=secrets.get("user_id"),
    )  # fmt: skip
    granted = sdk.BoxCCGAuth(config=config)

    def grant() -> tuple[str, float]:
        token = granted.refresh_token(network_session=network)
        return token.access_token, token.expires_in

    return Bearing(_renewed_bearer(grant))


def forget_details(error: Any) -> None:
    """Remove request and response from an error of the SDK, except for the item that has the name already.

    The SDK prints them with line breaks, so a filter would not find a token that the service repeats.
    """
    request, response = getattr(error, "request_info", None), getattr(error, "response_info", None)
    if request is None or response is None:
        return
    request.headers, request.query_params, request.body = {}, {}, None
    context = response.context_info if isinstance(response.context_info, dict) else {}
    is_taken = response.code == "item_name_in_use"
    response.context_info = {"conflicts": context.get("conflicts")} if is_taken else {}
    response.headers, response.body, response.raw_body = {}, None, None
    response.request_id = response.help_url = None


def commit_retries(sdk: Any) -> Any:
    """Return the SDK's rule for a commit: wait while the service says so, and repeat nothing else."""

    class CommitRetries(sdk.BoxRetryStrategy):  # type: ignore[misc]  # the SDK has no types here
        """Sends a commit again if it was answered by 202 and a time to wait."""

        def should_retry(self, fetch_options: Any, fetch_response: Any, attempt_number: int) -> bool:
            wait = fetch_response.headers.get("Retry-After", "") if fetch_response.status == 202 else ""
            return wait.isascii() and wait.isdigit() and int(wait) <= _LONGEST_WAIT_S and attempt_number < _COMMITS

    return CommitRetries(max_attempts=_COMMITS, max_retries_on_exception=0)
