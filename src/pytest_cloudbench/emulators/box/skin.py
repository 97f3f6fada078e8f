"""Box's API 2.0 on top of the core, written from the published specification and documents.

What may live here: routing, who may ask, and the form of errors. The functions themselves are in the modules beside
this one, each with its ``FUNCTIONS``. Nothing here imports a driver or an SDK, or a shared bug would go unnoticed.
"""

from __future__ import annotations

from collections.abc import Awaitable

from pytest_cloudbench.emulators.box import account, downloads, events, files, sessions, sharing, social, uploads
from pytest_cloudbench.emulators.box.answers import BoxError, unauthorized
from pytest_cloudbench.emulators.box.items import query_of
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.routing import RouteTable
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Match, Route
from pytest_cloudbench.emulators.throttle import Refusal

__all__ = ["Box"]

_FUNCTIONS = (
    *uploads.FUNCTIONS, *downloads.FUNCTIONS, *files.FUNCTIONS, *sessions.FUNCTIONS, *sharing.FUNCTIONS,
    *account.FUNCTIONS, *events.FUNCTIONS, *social.FUNCTIONS,
)  # fmt: skip


class Box:
    """The skin: see ``skin.Skin``."""

    roles = ("api", "upload", "account")
    host_names = (
        "api.box.com",
        "upload.box.com",
        "upload.app.box.com",
        "account.box.com",
        "app.box.com",
        "www.box.com",
        "dl.boxcloud.com",
        "*.realtime.services.box.net",
    )

    def __init__(self, profile: Profile, clock: Clock, seed: int) -> None:
        self.state = BoxState(seed, clock, profile.account, profile.jobs, account.DIALECT)
        token = self.state.token("", 32)
        self.credentials = {"access_token": token}
        self.state.oauth.add(token)
        self.configure(profile)
        self._routes = RouteTable((each.method, each.path, self._route(each)) for each in _FUNCTIONS)

    def configure(self, profile: Profile) -> None:
        """The profile changed."""
        store, readiness = self.state.store, profile.readiness
        store.quota_bytes = profile.quota.bytes
        store.readiness_s, store.list_delay_s = readiness.delay_s, readiness.list_delay_s
        store.delete_delay_s = readiness.delete_delay_s
        self.state.account, self.state.job_times = profile.account, profile.jobs

    def route(self, method: str, path: str, query: bytes) -> Match | None:
        """What a request is for. Hosts of uploads serve the same functions below ``/api``."""
        return self._routes.find(method, _plain(path))

    def refused(self, call: Call, refusal: Refusal) -> Answer:
        """Status 429."""
        return BoxError(429, refusal.reason).answer((b"retry-after", b"%d" % refusal.retry_after_s))

    def broken(self, call: Call) -> Answer:
        """Status 500."""
        return BoxError(500, "internal_server_error").answer()

    def unknown(self, method: str, path: str) -> Answer:
        """Not a function of the API, or not with this method."""
        if allowed := self._routes.methods(_plain(path)):
            return BoxError(405, "method_not_allowed").answer((b"allow", ", ".join(allowed).encode()))
        return BoxError(404, "not_found").answer()

    # ---------------------------------------------------------------- one request

    def _route(self, function: BoxFunction) -> Route:
        def handler(call: Call) -> Answer | Awaitable[Answer]:
            try:
                made: Answer | Awaitable[Answer] = function.run(self.state, call)
            except BoxError as error:
                return error.answer()
            return made

        denied = None if function.is_open else self._denied
        return Route(function.name, function.kind, handler, sink=function.sink, denied=denied)

    def _denied(self, call: Call) -> Answer | None:
        """Returns the refusal of a call without a valid token; None if it is allowed."""
        header = call.headers.get(b"authorization")
        if header is None and b"access_token=" in call.query:
            header = f"Bearer {query_of(call).get('access_token', '')}".encode()
        until_s = None if header is None else self.state.oauth.tokens.get(header)
        if until_s is not None and until_s > call.now_s:
            return None
        return unauthorized(header is not None)


def _plain(path: str) -> str:
    """Returns a path without the prefix of upload hosts, and without a slash at the end."""
    path = path.removeprefix("/api") if path.startswith("/api/2.0/") else path
    return path.rstrip("/") or "/"
